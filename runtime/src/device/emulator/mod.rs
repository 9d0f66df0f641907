//! The emulator: kernels compiled for the CPU, every CUDA thread a coroutine.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cache::Cache;
use super::error::{DeviceError, Result};
use super::kernel::{LaunchConfig, Words};
use super::{EmulatorOptions, Limits, ThreadOrder};

mod block;
mod compiler;
mod launch;
mod library;
mod stack;

pub(crate) use library::{Code, Function};

use compiler::Compiler;
use launch::{Job, Workers};

/// As much as a Hopper card gives one block.
const MAX_SHARED_BYTES: u32 = 227 * 1024;
pub(super) const MAX_THREADS: u32 = 1024;

pub(crate) struct EmulatorDevice {
    order: ThreadOrder,
    compiler: Compiler,
    cache: Cache,
    workers: Workers,
    /// The one stream: whoever holds it is the only one to touch the device's memory.
    stream: Mutex<()>,
}

impl EmulatorDevice {
    pub(super) fn open(options: EmulatorOptions) -> Result<Self> {
        Ok(Self {
            order: options.order,
            compiler: Compiler::find()?,
            cache: Cache::open(),
            workers: Workers::new(options.workers)?,
            stream: Mutex::new(()),
        })
    }

    pub(super) fn describe(&self) -> String {
        let order = match self.order {
            ThreadOrder::Forward => "forward",
            ThreadOrder::Reversed => "reversed",
        };
        format!("emulator: {}, {} workers, threads in {order} order", self.compiler.version(), self.workers.count())
    }

    pub(super) fn limits(&self) -> Limits {
        Limits { max_threads: MAX_THREADS, max_shared_bytes: MAX_SHARED_BYTES, total_memory: total_memory() }
    }

    pub(super) fn order(&self) -> ThreadOrder {
        self.order
    }

    fn stream(&self) -> MutexGuard<'_, ()> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Function {
    /// # Safety
    /// The words fit the kernel's parameters, and the kernel stays inside the memories passed.
    pub(super) unsafe fn launch(
        &self,
        device: &EmulatorDevice,
        kernel: &str,
        config: &LaunchConfig,
        words: &mut Words,
    ) -> Result<()> {
        let _stream = device.stream();
        // SAFETY: the caller's promise; the words outlive the run, which ends before this returns.
        let job = unsafe { Job::new(self, kernel, config, words.pointers(), device.order) };
        device.workers.run(job)
    }
}

/// Memory on the host, aligned as the card's would be.
pub(crate) struct Buffer {
    device: Arc<EmulatorDevice>,
    start: *mut u8,
    layout: Layout,
    len: usize,
    mapped: bool,
}

// SAFETY: the bytes are reached only by whoever holds the device's stream, or as atomic words.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(super) fn new(device: &Arc<EmulatorDevice>, len: usize, mapped: bool) -> Result<Self> {
        let full = || DeviceError::OutOfMemory { bytes: len };
        let layout = Layout::from_size_align(len.max(8), 256).map_err(|_| full())?;
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(full());
        }
        Ok(Self { device: Arc::clone(device), start, layout, len, mapped })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    pub(super) fn belongs_to(&self, device: &Arc<EmulatorDevice>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let _stream = self.device.stream();
        // SAFETY: the range was checked, and the stream is ours.
        unsafe { self.start.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let _stream = self.device.stream();
        // SAFETY: the range was checked, and the stream is ours.
        unsafe { self.start.add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    pub(super) fn zero(&self) -> Result<()> {
        let _stream = self.device.stream();
        // SAFETY: the whole memory, and the stream is ours.
        unsafe { self.start.write_bytes(0, self.len) };
        Ok(())
    }

    /// `offset` is inside, and divisible by 8.
    pub(super) fn peek(&self, offset: usize) -> Option<u64> {
        if !self.mapped {
            return None;
        }
        // SAFETY: inside memory that lives as long as `self`; kernels write words whole.
        let word = unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) };
        Some(word.load(Ordering::Acquire))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; launches end before they return, so nothing uses it.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// The machine's memory in bytes, 0 where it does not say.
fn total_memory() -> u64 {
    memory_info("MemTotal:").unwrap_or(0)
}

/// What the machine could give without swapping.
pub(super) fn free_memory() -> Option<u64> {
    memory_info("MemAvailable:")
}

fn memory_info(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}
