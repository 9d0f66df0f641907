use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use super::cuda_graph::Template;
use super::error::{DeviceError, Result};
use super::memory::Memory;
use super::source::{self, Declared};
use super::{Backend, Device, Limits};
use super::{cuda, emulator};

/// A loaded kernel text.
#[derive(Clone)]
pub struct Module {
    shared: Arc<Shared>,
}

/// One kernel of a module; it keeps the module loaded.
#[derive(Clone)]
pub struct Kernel {
    module: Arc<Shared>,
    declared: Declared,
    entry: Entry,
}

/// The shape of a launch, in one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks; 0 launches nothing.
    pub grid: u32,
    /// Threads a block.
    pub block: u32,
    /// Blocks a cluster; 1 is no cluster.
    pub cluster: u32,
    /// Dynamic shared memory a block, in bytes.
    pub shared_bytes: u32,
}

impl LaunchConfig {
    /// `grid` blocks of `block` threads, no cluster, no shared memory.
    pub fn new(grid: u32, block: u32) -> Self {
        Self { grid, block, cluster: 1, shared_bytes: 0 }
    }

    /// The same with this much dynamic shared memory.
    pub fn shared(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }
}

/// One argument of a launch.
#[derive(Debug, Clone, Copy)]
pub enum Arg<'a> {
    /// A pointer into a memory, so many bytes from its start.
    Buffer(&'a Memory, usize),
    /// `int`.
    I32(i32),
    /// `unsigned`.
    U32(u32),
    /// `long long`.
    I64(i64),
    /// `unsigned long long`.
    U64(u64),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
}

/// What the compiler made of a kernel, and how much of the card a launch of it fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelAttributes {
    /// Registers a thread.
    pub registers: u32,
    /// Static shared memory a block, in bytes.
    pub shared_bytes: u32,
    /// Local memory a thread, in bytes: what spilled, and arrays that are not in registers.
    pub local_bytes: u32,
    /// Most threads a block.
    pub max_threads: u32,
    /// Blocks of the asked-for shape that a multiprocessor holds at a time.
    pub blocks_per_multiprocessor: u32,
    /// Threads that a multiprocessor could hold.
    pub multiprocessor_threads: u32,
}

impl KernelAttributes {
    /// Share of a multiprocessor's threads that blocks of so many threads fill: the occupancy.
    pub fn occupancy(&self, threads: u32) -> f64 {
        f64::from(self.blocks_per_multiprocessor * threads) / f64::from(self.multiprocessor_threads.max(1))
    }
}

pub(super) struct Shared {
    pub(super) name: String,
    pub(super) device: Device,
    pub(super) kernels: Vec<Declared>,
    pub(super) code: Code,
}

pub(super) enum Code {
    Cuda(cuda::Code),
    Emulator(emulator::Code),
}

#[derive(Clone)]
enum Entry {
    Cuda(cuda::Function),
    Emulator(emulator::Function),
}

impl Module {
    pub(super) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// The kernel of this name, or an error that lists the names there are.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let declared = source::find(&self.shared.name, &self.shared.kernels, name)?.clone();
        let entry = match &self.shared.code {
            Code::Cuda(code) => Entry::Cuda(code.function(&self.shared.name, name)?),
            Code::Emulator(code) => Entry::Emulator(code.function(&self.shared.name, name)?),
        };
        Ok(Kernel { module: Arc::clone(&self.shared), declared, entry })
    }

    /// The kernels' names, in the text's order.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.shared.kernels.iter().map(|k| k.name.as_str())
    }

    /// The source's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }
}

impl Kernel {
    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.declared.name
    }

    /// Puts the kernel on the device's one stream. On CUDA a fault inside it may show only at the next read or
    /// [`Device::synchronize`]; the emulator reports it here.
    ///
    /// Errors: more threads, shared memory or blocks than there are; arguments that differ in number (emulator: in
    /// type) from the parameters; memory of another device.
    ///
    /// # Safety
    /// The arguments have the types of the kernel's parameters, and the kernel, run with them in this shape, stays inside
    /// the memories passed.
    pub unsafe fn launch(&self, config: &LaunchConfig, args: &[Arg<'_>]) -> Result<()> {
        self.check(config, args)?;
        if config.grid == 0 {
            return Ok(());
        }
        match (&self.entry, &self.module.device.backend) {
            // SAFETY: the caller's promise is passed on.
            (Entry::Cuda(function), Backend::Cuda(device)) => unsafe {
                function.launch(device, config, &mut Words::new(args))
            },
            // SAFETY: as above.
            (Entry::Emulator(function), Backend::Emulator(device)) => unsafe {
                function.launch(device, self.name(), config, &mut Words::new(args))
            },
            _ => Err(DeviceError::WrongMemory { what: "kernel and device differ" }),
        }
    }

    /// Registers, spills, limits and the occupancy of launches of this shape, from the driver; `None` on the emulator.
    ///
    /// Errors: the driver does not answer.
    pub fn attributes(&self, config: &LaunchConfig) -> Result<Option<KernelAttributes>> {
        match (&self.entry, &self.module.device.backend) {
            (Entry::Cuda(function), Backend::Cuda(device)) => function.attributes(device, config).map(Some),
            _ => Ok(None),
        }
    }

    /// The device that the kernel is loaded on.
    pub fn device(&self) -> &Device {
        &self.module.device
    }

    /// Checks what [`Kernel::launch`] would, and that there is something to launch.
    pub(super) fn check_node(&self, config: &LaunchConfig, args: &[Arg<'_>]) -> Result<()> {
        self.check(config, args)?;
        if config.grid == 0 {
            let reason = "a launch of 0 blocks is no part of a graph".into();
            return Err(DeviceError::Arguments { kernel: self.name().into(), reason });
        }
        Ok(())
    }

    /// Adds a launch to the driver's graph.
    ///
    /// # Safety
    /// As for [`Kernel::launch`], whenever the graph is launched; [`Kernel::check_node`] found nothing.
    pub(super) unsafe fn add_to(
        &self,
        template: &mut Template,
        config: &LaunchConfig,
        args: &[Arg<'_>],
        after: &[usize],
    ) -> Result<()> {
        match &self.entry {
            // SAFETY: the caller's promise is passed on.
            Entry::Cuda(function) => unsafe { template.add(function, config, &mut Words::new(args), after) },
            Entry::Emulator(_) => Err(DeviceError::WrongMemory { what: "kernel and device differ" }),
        }
    }

    fn check(&self, config: &LaunchConfig, args: &[Arg<'_>]) -> Result<()> {
        self.check_shape(config, self.module.device.limits())?;
        self.check_arguments(args)?;
        if let Entry::Emulator(function) = &self.entry {
            function.check_kinds(self.name(), args)?;
        }
        Ok(())
    }

    fn check_shape(&self, config: &LaunchConfig, limits: Limits) -> Result<()> {
        let threads = self.declared.max_threads.unwrap_or(u32::MAX).min(limits.max_threads);
        let within = |what, asked: u32, limit: u32| match asked <= limit {
            true => Ok(()),
            false => Err(DeviceError::LaunchLimit {
                kernel: self.name().into(),
                what,
                asked: asked.into(),
                limit: limit.into(),
            }),
        };
        within("the grid", config.grid, i32::MAX as u32)?;
        within("the number of threads a block", config.block, threads)?;
        within("the dynamic shared memory a block (bytes)", config.shared_bytes, limits.max_shared_bytes)?;
        if config.block == 0 {
            let reason = "a block of 0 threads".into();
            return Err(DeviceError::Arguments { kernel: self.name().into(), reason });
        }
        if config.cluster > 1 {
            let cure = "launch with cluster 1";
            return Err(DeviceError::Unsupported { what: "a thread-block cluster", cure });
        }
        Ok(())
    }

    fn check_arguments(&self, args: &[Arg<'_>]) -> Result<()> {
        let wrong = |reason| Err(DeviceError::Arguments { kernel: self.name().into(), reason });
        if args.len() != self.declared.parameters {
            return wrong(format!("{} arguments for {} parameters", args.len(), self.declared.parameters));
        }
        for (at, arg) in args.iter().enumerate() {
            let Arg::Buffer(memory, offset) = arg else {
                continue;
            };
            if !memory.belongs_to(&self.module.device.backend) {
                return Err(DeviceError::WrongMemory { what: "a launch argument is memory of another device" });
            }
            if *offset > memory.len() {
                return wrong(format!("argument {at} starts at byte {offset} of {}", memory.len()));
            }
        }
        Ok(())
    }
}

/// Arguments as a launch wants them: one word each, and pointers to the words.
pub(super) struct Words {
    words: Vec<u64>,
    pointers: Vec<*mut c_void>,
}

impl Words {
    pub(super) fn new(args: &[Arg<'_>]) -> Self {
        let mut words: Vec<u64> = args.iter().map(word).collect();
        let pointers = words.iter_mut().map(|w| std::ptr::from_mut(w).cast()).collect();
        Self { words, pointers }
    }

    /// Valid as long as the words are neither moved out nor dropped.
    pub(super) fn pointers(&mut self) -> &mut [*mut c_void] {
        debug_assert_eq!(self.words.len(), self.pointers.len());
        &mut self.pointers
    }
}

/// The argument's bytes at the start of a word (both devices are little endian).
fn word(arg: &Arg<'_>) -> u64 {
    match *arg {
        Arg::Buffer(memory, offset) => memory.address() + offset as u64,
        Arg::I32(v) => u64::from(v as u32),
        Arg::U32(v) => v.into(),
        Arg::I64(v) => v as u64,
        Arg::U64(v) => v,
        Arg::F32(v) => v.to_bits().into(),
        Arg::F64(v) => v.to_bits(),
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Module").field(&self.shared.name).finish()
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("module", &self.module.name).field("name", &self.declared.name).finish()
    }
}
