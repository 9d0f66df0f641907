//! One block: its threads run as coroutines until all have exited, or one waits for what cannot come.

use std::ffi::c_void;
use std::ptr;

use corosensei::{Coroutine, Yielder};

use super::launch::Job;
use super::stack::{Range, Stacks};
use crate::device::ThreadOrder;
use crate::device::error::Result;

const READY: u32 = 0;
const DONE: u32 = 1;
const AT_BARRIER: u32 = 2;
const AT_WARP: u32 = 3;
const OUTSIDE_MASK: u32 = 4;
const WARP: usize = 32;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Dim {
    x: u32,
    y: u32,
    z: u32,
}

/// `unio_thread` of the emulator's header.
#[repr(C)]
pub(super) struct Thread {
    index: Dim,
    state: u32,
    block: *mut Block,
    op: u32,
    mask: u32,
    source: u32,
    pad: u32,
    value: u64,
    result: u64,
    yielder: *const Yielder<(), ()>,
}

/// `unio_block` of the emulator's header, and below it what only this side knows.
#[repr(C)]
struct Block {
    index: Dim,
    dim: Dim,
    grid: Dim,
    pad: u32,
    shared: *mut u8,
    threads: *mut Thread,
    suspend: unsafe extern "C" fn(*mut Thread),
    waiting: [u32; WARP],
    entry: unsafe extern "C" fn(*const *mut c_void),
    args: *const *mut c_void,
}

/// Why a block cannot go on.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) thread: u32,
    pub(super) warp: bool,
    pub(super) reason: String,
}

type Fiber = Coroutine<(), (), (), Range>;

/// Everything one worker needs to run blocks, one after another.
pub(super) struct Runner<'a> {
    job: &'a Job,
    stacks: Stacks,
    fibers: Vec<Fiber>,
    threads: Vec<Thread>,
    shared: Vec<Line>,
    block: Box<Block>,
    /// The library's cell for the current thread, on this worker.
    slot: *mut *mut Thread,
}

/// Shared memory is aligned as CUDA's arena.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; 128]);

impl<'a> Runner<'a> {
    pub(super) fn new(job: &'a Job) -> Result<Self> {
        let count = job.config.block as usize;
        let lines = (job.config.shared_bytes as usize).div_ceil(size_of::<Line>());
        let mut runner = Self {
            job,
            stacks: Stacks::take(count)?,
            fibers: Vec::with_capacity(count),
            threads: Vec::with_capacity(count),
            shared: vec![Line([0xff; 128]); lines],
            block: Box::new(Block::new(job)),
            // SAFETY: answers with the address of a thread-local of this worker, where the runner stays.
            slot: unsafe { (job.slot)() },
        };
        let block: *mut Block = &mut *runner.block;
        runner.threads.extend((0..job.config.block).map(|x| Thread::new(x, block)));
        runner.block.threads = runner.threads.as_mut_ptr();
        runner.block.shared = runner.shared.as_mut_ptr().cast();
        Ok(runner)
    }

    /// Runs the block of this index to its end.
    pub(super) fn run(&mut self, index: u32) -> Result<(), Fault> {
        self.reset(index);
        let outcome = self.run_intervals();
        for fiber in &mut self.fibers {
            // SAFETY: a kernel's frames own nothing; unwinding through C++ would abort.
            unsafe { fiber.force_reset() };
        }
        self.fibers.clear();
        outcome
    }

    fn reset(&mut self, index: u32) {
        self.block.index.x = index;
        self.block.waiting = [0; WARP];
        // NaN, so that shared memory read before it is written shows.
        self.shared.fill(Line([0xff; 128]));
        for at in 0..self.threads.len() {
            self.threads[at].state = READY;
            // SAFETY: neither vector nor box is resized or moved while fibers exist.
            let thread = unsafe { self.block.threads.add(at) };
            self.fibers.push(Coroutine::with_stack(self.stacks.range(at), move |yielder, ()| body(thread, yielder)));
        }
    }

    fn run_intervals(&mut self) -> Result<(), Fault> {
        loop {
            let mut exited = 0;
            for warp in self.ordered(self.threads.len().div_ceil(WARP)) {
                exited += self.run_warp(warp)?;
            }
            if exited == self.threads.len() {
                return Ok(());
            }
            if exited > 0 {
                return Err(self.divergence());
            }
            for thread in &mut self.threads {
                thread.state = READY;
            }
        }
    }

    /// Runs a warp until each lane has exited or waits at the barrier; answers how many have exited.
    fn run_warp(&mut self, warp: usize) -> Result<usize, Fault> {
        let first = warp * WARP;
        let count = WARP.min(self.threads.len() - first);
        loop {
            self.run_lanes(first, count);
            let lanes = &self.threads[first..first + count];
            if lanes.iter().any(|lane| lane.state == READY) {
                continue;
            }
            if let Some(lane) = lanes.iter().find(|lane| lane.state >= AT_WARP) {
                return Err(missing_lanes(lane, lanes));
            }
            return Ok(lanes.iter().filter(|lane| lane.state == DONE).count());
        }
    }

    fn run_lanes(&mut self, first: usize, count: usize) {
        let mut step = |at: usize| {
            let thread = &raw mut self.threads[at];
            // SAFETY: a live element; no reference to it is held across the switch.
            if unsafe { (*thread).state } == READY {
                // SAFETY: the worker's own cell.
                unsafe { *self.slot = thread };
                self.fibers[at].resume(());
            }
        };
        match self.job.order {
            ThreadOrder::Forward => (first..first + count).for_each(&mut step),
            ThreadOrder::Reversed => (first..first + count).rev().for_each(&mut step),
        }
    }

    fn ordered(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let reversed = self.job.order == ThreadOrder::Reversed;
        (0..count).map(move |at| if reversed { count - 1 - at } else { at })
    }

    fn divergence(&self) -> Fault {
        let index = |state| self.threads.iter().find(|t| t.state == state).map_or(0, |t| t.index.x);
        let gone = index(DONE);
        let reason = format!("it waits at a barrier that thread {gone}, which has exited, will not reach");
        Fault { thread: index(AT_BARRIER), warp: false, reason }
    }
}

/// What a lane that no other lane will release is waiting for.
fn missing_lanes(lane: &Thread, lanes: &[Thread]) -> Fault {
    let fault = |reason| Fault { thread: lane.index.x, warp: true, reason };
    if lane.state == OUTSIDE_MASK {
        return fault(format!("it calls a warp collective with mask {:#010x}, which leaves it out", lane.mask));
    }
    let inside = lanes.iter().enumerate().filter(|(at, _)| lane.mask >> at & 1 == 1).map(|(_, other)| other);
    for other in inside {
        let thread = other.index.x;
        match other.state {
            DONE => {
                return fault(format!("it waits at a warp collective for thread {thread}, which has exited"));
            }
            AT_BARRIER => {
                return fault(format!("it waits at a warp collective for thread {thread}, which waits at a barrier"));
            }
            _ if (other.mask, other.op) != (lane.mask, lane.op) => {
                return fault(format!("it waits at a warp collective for thread {thread}, which waits at another"));
            }
            _ => {}
        }
    }
    fault("it waits at a warp collective that nobody completes".into())
}

impl Thread {
    fn new(x: u32, block: *mut Block) -> Self {
        let index = Dim { x, y: 0, z: 0 };
        let yielder = ptr::null();
        Self { index, state: READY, block, op: 0, mask: 0, source: 0, pad: 0, value: 0, result: 0, yielder }
    }
}

impl Block {
    fn new(job: &Job) -> Self {
        let line = |x| Dim { x, y: 1, z: 1 };
        Self {
            index: Dim::default(),
            dim: line(job.config.block),
            grid: line(job.config.grid),
            pad: 0,
            shared: ptr::null_mut(),
            threads: ptr::null_mut(),
            suspend,
            waiting: [0; WARP],
            entry: job.entry,
            args: job.args,
        }
    }
}

/// A coroutine's life.
fn body(thread: *mut Thread, yielder: &Yielder<(), ()>) {
    // SAFETY: thread and block outlive the coroutine; the launch's caller promised that the arguments fit.
    unsafe {
        (*thread).yielder = yielder;
        let block = (*thread).block;
        ((*block).entry)((*block).args);
        (*thread).state = DONE;
    }
}

/// Called by a kernel at a barrier or collective, on its coroutine's stack.
unsafe extern "C" fn suspend(thread: *mut Thread) {
    // SAFETY: the yielder lies on the stack that this call is on.
    unsafe { &*(*thread).yielder }.suspend(());
}
