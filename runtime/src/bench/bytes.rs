//! Bytes that a launch moves, from what its arguments are.

use unio_interface::{Access, Arg, Elem, Kernel, KernelParam, Launch, Program, Role};

/// Bytes of all arguments: each is read, or written, or both, once from end to end. Tables that are gathered from, and steps
/// that return at once because there is nothing to do, move less.
pub(super) fn bytes(kernel: &Kernel, program: &Program, launch: &Launch) -> u64 {
    let count = count(program, launch);
    let pairs = kernel.params.iter().zip(&launch.args);
    pairs.map(|(param, arg)| argument(param, arg, program, count)).sum()
}

/// Elements, or rows, that a launch covers.
pub(super) fn count(program: &Program, launch: &Launch) -> Option<usize> {
    launch.args.iter().find_map(|arg| match *arg {
        Arg::Count(n) => usize::try_from(n).ok().filter(|n| *n > 0),
        Arg::CountOf { buffer, row_len } => program.buffers[buffer].len.map(|len| len / row_len.max(1)),
        Arg::Buffer { .. } | Arg::Number(_) | Arg::Rows { .. } => None,
    })
}

fn argument(param: &KernelParam, arg: &Arg, program: &Program, count: Option<usize>) -> u64 {
    let (KernelParam::Buffer { elem, access, len, role, .. }, Arg::Buffer { buffer, start }) = (param, arg) else {
        return 0;
    };
    let held = &program.buffers[*buffer];
    let rest = held.len.unwrap_or(0).saturating_sub(*start);
    let elements = match (len, role, held.shape.last()) {
        // A block writes its own columns of each sample's row.
        (Some(len), Role::ParamGradient(_), Some(&row)) if row > 0 && *len > 0 => {
            ((len - 1) % row + 1) * program.batch.max(1)
        }
        (Some(len), ..) => *len,
        (None, Role::Saved | Role::Table, _) => rest,
        (None, ..) => count.map_or(rest, |n| (n * row(program, *buffer, Some(n))).min(rest)),
    };
    let times = if *access == Access::InOut { 2 } else { 1 };
    (elements * size(*elem)) as u64 * times
}

/// Elements of one counted row of a buffer: 1 where single elements are counted.
pub(super) fn row(program: &Program, buffer: usize, count: Option<usize>) -> usize {
    let held = &program.buffers[buffer];
    let row: usize = held.shape.iter().skip(1).product::<usize>().max(1);
    let whole = count.zip(held.len).is_some_and(|(count, len)| count * row == len);
    if whole { row } else { 1 }
}

/// Bytes of an element in a step that trains.
pub(super) fn size(elem: Elem) -> usize {
    match elem {
        Elem::Real | Elem::F32 | Elem::I32 => 4,
        Elem::F64 => 8,
    }
}
