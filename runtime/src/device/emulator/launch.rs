//! One launch: blocks spread over workers, each block whole on one of them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::block::{Fault, Runner};
use super::library::{EntryPoint, Function, SlotOf};
use crate::device::ThreadOrder;
use crate::device::error::{DeviceError, Result, system};
use crate::device::kernel::LaunchConfig;

/// A launch while it runs. Helpers hold it too, but touch the arguments only between [`Gate::enter`] and the gate's closing.
pub(super) struct Job {
    pub(super) config: LaunchConfig,
    pub(super) order: ThreadOrder,
    pub(super) entry: EntryPoint,
    pub(super) slot: SlotOf,
    pub(super) args: *const *mut c_void,
    kernel: String,
    next: AtomicU32,
    failure: Mutex<Option<(u32, DeviceError)>>,
    gate: Gate,
}

// SAFETY: the arguments are read only, and only while the launching call waits.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// # Safety
    /// `args` fit the kernel and stay valid until [`Workers::run`] returns.
    pub(super) unsafe fn new(
        function: &Function,
        kernel: &str,
        config: &LaunchConfig,
        args: &[*mut c_void],
        order: ThreadOrder,
    ) -> Self {
        Self {
            config: *config,
            order,
            entry: function.entry,
            slot: function.slot,
            args: args.as_ptr(),
            kernel: kernel.into(),
            next: AtomicU32::new(0),
            failure: Mutex::new(None),
            gate: Gate::default(),
        }
    }

    /// Runs blocks until none is left.
    fn work(&self) {
        if self.next.load(Ordering::Relaxed) >= self.config.grid {
            return;
        }
        let mut runner = match Runner::new(self) {
            Ok(runner) => runner,
            Err(error) => return self.fail(0, error),
        };
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            if at >= self.config.grid {
                return;
            }
            let block = match self.order {
                ThreadOrder::Forward => at,
                ThreadOrder::Reversed => self.config.grid - 1 - at,
            };
            if let Err(fault) = runner.run(block) {
                self.fail(at, self.error(block, fault));
            }
        }
    }

    /// Keeps the failure of the earliest block, so that the report does not depend on timing; starts no more blocks.
    fn fail(&self, at: u32, error: DeviceError) {
        self.next.fetch_max(self.config.grid, Ordering::Relaxed);
        let mut failure = lock(&self.failure);
        if failure.as_ref().is_none_or(|(earlier, _)| at < *earlier) {
            *failure = Some((at, error));
        }
    }

    fn error(&self, block: u32, fault: Fault) -> DeviceError {
        let kernel = self.kernel.clone();
        let Fault { thread, warp, reason } = fault;
        match warp {
            true => DeviceError::WarpDivergence { kernel, block, thread, reason },
            false => DeviceError::BarrierDivergence { kernel, block, thread, reason },
        }
    }

    fn help(&self) {
        if self.gate.enter() {
            let _leave = Leave(&self.gate);
            self.work();
        }
    }
}

/// The threads that help the launching thread.
pub(super) struct Workers {
    /// `None` uses the pool that all emulators of the process share.
    own: Option<ThreadPool>,
    count: usize,
}

impl Workers {
    pub(super) fn new(count: Option<usize>) -> Result<Self> {
        let Some(count) = count else {
            let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
            return Ok(Self { own: None, count: cores });
        };
        let count = count.max(1);
        Ok(Self { own: (count > 1).then(|| pool(count - 1)).transpose()?, count })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The caller works too. It waits by a lock, not by rayon: stealing other work here could launch again and deadlock.
    pub(super) fn run(&self, job: Job) -> Result<()> {
        let helpers = self.count.min(job.config.grid as usize) - 1;
        let job = Arc::new(job);
        if helpers > 0 {
            let pool = self.pool()?;
            for _ in 0..helpers {
                let job = Arc::clone(&job);
                pool.spawn(move || job.help());
            }
        }
        let closing = Close(&job.gate);
        job.work();
        drop(closing);
        let failure = lock(&job.failure).take();
        failure.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn pool(&self) -> Result<&ThreadPool> {
        static SHARED: OnceLock<ThreadPool> = OnceLock::new();
        if let Some(pool) = self.own.as_ref().or_else(|| SHARED.get()) {
            return Ok(pool);
        }
        let made = pool(self.count - 1)?;
        Ok(SHARED.get_or_init(|| made))
    }
}

fn pool(count: usize) -> Result<ThreadPool> {
    let named = ThreadPoolBuilder::new().num_threads(count).thread_name(|at| format!("unio-emulator-{at}"));
    named.build().map_err(|e| system("starting the emulator's workers")(std::io::Error::other(e)))
}

/// Lets helpers in until it closes, and closes when those inside have left.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    left: Condvar,
}

#[derive(Default)]
struct GateState {
    inside: usize,
    closed: bool,
}

impl Gate {
    fn enter(&self) -> bool {
        let mut state = lock(&self.state);
        state.inside += usize::from(!state.closed);
        !state.closed
    }
}

struct Leave<'a>(&'a Gate);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).inside -= 1;
        self.0.left.notify_all();
    }
}

struct Close<'a>(&'a Gate);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.closed = true;
        while state.inside > 0 {
            state = self.0.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
