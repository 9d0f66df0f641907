//! Bytes that a launch moves, from what its arguments are.

use std::collections::BTreeMap;

use unio_interface::{Access, Arg, Elem, Kernel, KernelParam, Launch, Program, Role};

/// Bytes of the arguments of all launches: each stretch of memory is read once, and written once, from end to end. Tables
/// that only hand something from one launch to the next do not count. A table that is gathered from moves less.
pub(super) fn bytes(kernels: &[Kernel], program: &Program, rows: &[usize]) -> u64 {
    let mut moved: BTreeMap<(usize, usize, bool), u64> = BTreeMap::new();
    for launch in &program.train {
        let count = count(program, launch);
        for (param, arg) in kernels[launch.kernel].params.iter().zip(&launch.args) {
            let (KernelParam::Buffer { access, len, role, .. }, Arg::Buffer { buffer, start }) = (param, arg) else {
                continue;
            };
            if program.train.len() > 1 && *role == Role::Saved && len.is_none() {
                continue;
            }
            let bytes = argument(param, *buffer, *start, program, count, rows[*buffer]);
            for writes in [false, true].into_iter().filter(|writes| does(*access, *writes)) {
                let known = moved.entry((*buffer, *start, writes)).or_default();
                *known = bytes.max(*known);
            }
        }
    }
    moved.values().sum()
}

fn does(access: Access, writes: bool) -> bool {
    match access {
        Access::In => !writes,
        Access::Out => writes,
        Access::InOut => true,
    }
}

/// Elements, or rows, that a launch covers.
pub(super) fn count(program: &Program, launch: &Launch) -> Option<usize> {
    launch.args.iter().find_map(|arg| match *arg {
        Arg::Count(n) => usize::try_from(n).ok().filter(|n| *n > 0),
        Arg::CountOf { buffer, row_len } => program.buffers[buffer].len.map(|len| len / row_len.max(1)),
        Arg::Buffer { .. } | Arg::Number(_) | Arg::Rows { .. } => None,
    })
}

/// `rows` are those of a table that its writer fills.
fn argument(
    param: &KernelParam,
    buffer: usize,
    start: usize,
    program: &Program,
    count: Option<usize>,
    rows: usize,
) -> u64 {
    let KernelParam::Buffer { elem, len, row, role, .. } = param else { return 0 };
    let held = &program.buffers[buffer];
    let rest = held.len.unwrap_or(0).saturating_sub(start);
    let elements = match (len, role, held.shape.last()) {
        // A block writes its own columns of each sample's row.
        (Some(len), Role::ParamGradient(_), Some(&row)) if row > 0 && *len > 0 => {
            ((len - 1) % row + 1) * program.batch.max(1)
        }
        (Some(len), ..) => *len,
        (None, Role::Saved, _) => (rows * held.shape.iter().skip(1).product::<usize>()).min(rest),
        (None, Role::Table, _) => rest,
        (None, ..) => count.map_or(rest, |n| (n * row).min(rest)),
    };
    (elements * size(*elem)) as u64
}

/// Bytes of an element in a step that trains.
pub(super) fn size(elem: Elem) -> usize {
    match elem {
        Elem::Real | Elem::F32 | Elem::I32 => 4,
        Elem::F64 => 8,
    }
}
