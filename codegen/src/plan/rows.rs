//! Several samples a block: what it reads of a parameter serves all of them.

use super::deferred::{is_per_sample, of_sample};
use crate::math::{Assign, Node, Program, Role, Tensor};
use crate::model::Schedule;
use crate::spec::entries::StageGrid;

/// Samples that a block may take, most first.
const ROWS: [usize; 3] = [8, 4, 2];
/// Fewest blocks of a launch: with fewer, multiprocessors would be idle.
const LEAST_BLOCKS: usize = 128;

/// How many samples a block may take, most first: only where samples share weights, none has a gradient of its own, and there
/// are enough blocks left.
pub(super) fn choices(program: &Program, batch: usize, schedule: &Schedule) -> impl Iterator<Item = usize> {
    let is_weight = |t: &Tensor| t.role == Role::Param && t.shape.len() > 1;
    let is_gradient = |a: &Assign| matches!(program.tensors[a.tensor].role, Role::ParamGradient { .. });
    let shares = program.tensors.iter().any(is_weight) && !program.assigns().any(|(a, _)| is_gradient(a));
    let may = schedule.grid == StageGrid::Batch && program.scan().is_none() && shares;
    let fits = move |rows: &usize| may && batch.is_multiple_of(*rows) && batch / rows >= LEAST_BLOCKS;
    ROWS.into_iter().filter(fits)
}

/// The same program for so many samples at once: their number becomes the leading index.
pub(super) fn together(program: &Program, rows: usize) -> Program {
    let mut all = program.clone();
    let row = all.add_var("row", rows);
    for tensor in all.tensors.iter_mut().filter(|t| is_per_sample(t.role)) {
        tensor.shape.insert(0, rows);
    }
    let assign = |a: &Assign| {
        let index = std::iter::once(row).chain(a.index.iter().copied()).collect();
        Assign { index, value: of_sample(program, &a.value, row), ..a.clone() }
    };
    all.body = program.assigns().map(|(a, _)| Node::Assign(assign(a))).collect();
    all
}
