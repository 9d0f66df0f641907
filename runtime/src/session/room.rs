//! Whether the buffers of a session fit into the device, told before anything is allocated.

use unio_interface::{Buffer, Program};

use super::convert::Stored;
use super::error::{Result, SessionError};
use crate::device::{Device, Real};

/// How many of the largest buffers an error names.
const NAMED: usize = 3;

/// Errors: [`SessionError::TooLarge`] where the device says that it has less memory free than the buffers need.
pub(super) fn check(device: &Device, program: &Program, real: Real) -> Result<()> {
    let Some(free) = device.free_memory()? else {
        return Ok(());
    };
    let mut sizes: Vec<(&Buffer, u64)> = program.buffers.iter().filter_map(|b| Some((b, bytes(b, real)?))).collect();
    let needed = sizes.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    if needed <= free {
        return Ok(());
    }
    sizes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let named = sizes.iter().take(NAMED).map(|(b, bytes)| format!("`{}` {:?} with {bytes}", b.name, b.shape));
    Err(SessionError::TooLarge { needed, free, largest: named.collect::<Vec<_>>().join(", "), cure: cure(&sizes) })
}

/// Bytes of a buffer that the session allocates itself.
fn bytes(buffer: &Buffer, real: Real) -> Option<u64> {
    let len = buffer.len.filter(|_| !buffer.external)?;
    Some(len.saturating_mul(Stored::of(buffer.elem, real).size()) as u64)
}

fn cure(sizes: &[(&Buffer, u64)]) -> &'static str {
    match sizes.iter().take(NAMED).any(|(b, _)| b.name == "gradient_scratch") {
        true => {
            "give the largest stages `schedule = { gradients = \"deferred\" }`, which needs no scratch, or make the batch smaller"
        }
        false => "make the batch or the model smaller",
    }
}
