//! Stacks for coroutines. Making one costs far more than running on it, so they are kept; each takes two of the process's
//! memory maps, so their number is bounded.

use std::sync::{Condvar, Mutex, PoisonError};

use corosensei::stack::{DefaultStack, Stack, StackPointer};

use super::MAX_THREADS;
use crate::device::error::{Result, system};

/// Enough for a kernel's local arrays; pages that are not touched cost nothing.
const STACK_BYTES: usize = 256 * 1024;
/// Half of what the usual limit of 65,530 maps allows.
const MOST_STACKS: usize = 16 * MAX_THREADS as usize;

/// Stacks on loan; they go back when dropped.
pub(super) struct Stacks(Vec<Owned>);

/// One stack's ends. The stack itself stays in a [`Stacks`].
#[derive(Clone, Copy)]
pub(super) struct Range {
    base: StackPointer,
    limit: StackPointer,
}

// SAFETY: the range is that of a `DefaultStack`, guard page included, shortened at the top by a multiple of 64 bytes.
unsafe impl Stack for Range {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

struct Owned {
    stack: DefaultStack,
    number: usize,
}

struct Pool {
    free: Vec<Owned>,
    made: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { free: Vec::new(), made: 0 });
static RETURNED: Condvar = Condvar::new();

impl Stacks {
    /// Waits while too many are on loan. A block asks once and gives all back, so waiting ends.
    pub(super) fn take(count: usize) -> Result<Self> {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        while pool.free.len() + MOST_STACKS - pool.made < count {
            pool = RETURNED.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
        let kept = pool.free.len() - count.min(pool.free.len());
        let mut taken = Self(pool.free.split_off(kept));
        while taken.0.len() < count {
            let stack = DefaultStack::new(STACK_BYTES).map_err(system("making a stack for an emulated thread"));
            match stack {
                Ok(stack) => taken.0.push(Owned { stack, number: pool.made }),
                Err(error) => {
                    // The lock is held here and giving back takes it again.
                    drop(pool);
                    return Err(error);
                }
            }
            pool.made += 1;
        }
        Ok(taken)
    }

    pub(super) fn range(&self, at: usize) -> Range {
        let Owned { stack, number } = &self.0[at];
        // Tops at the same place of a page would all compete for the same few cache lines.
        let shift = number % 64 * 64;
        let base = StackPointer::new(stack.base().get() - shift).unwrap_or(stack.base());
        Range { base, limit: stack.limit() }
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        POOL.lock().unwrap_or_else(PoisonError::into_inner).free.append(&mut self.0);
        RETURNED.notify_all();
    }
}
