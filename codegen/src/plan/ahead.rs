//! Reads ahead: what a thread reads from memory at its own element of a step does not wait for the step before, so it is on the
//! way while that one runs.

use std::collections::BTreeMap;

use super::block::{Grouped, accesses, busy};
use super::{Home, Parallel};
use crate::math::{Expr, Program, Role, TensorId, VarId};

/// Most such values of a phase: each takes a register.
const MOST: usize = 8;
/// Registers that must be left for values that are the same at all steps: they come from a near cache anyway.
const LEFT: usize = 32;

/// Chooses them for every phase of a scan in which a thread has one element; so many registers are free.
pub(super) fn choose(
    program: &Program,
    homes: &BTreeMap<TensorId, Home>,
    groups: &mut [Grouped],
    threads: u32,
    free: usize,
) {
    for group in groups {
        let Grouped::Loop { var, body, .. } = group else { continue };
        for phase in body.iter_mut().filter(|phase| busy(program, phase) <= threads as usize) {
            phase.ahead = of_phase(program, homes, (*var, free), phase);
        }
    }
}

fn of_phase(
    program: &Program,
    homes: &BTreeMap<TensorId, Home>,
    (step, free): (VarId, usize),
    phase: &Parallel,
) -> Vec<TensorId> {
    let mut found: BTreeMap<TensorId, Vec<Expr>> = BTreeMap::new();
    let mut others = Vec::new();
    for (tensor, index) in phase.items.iter().flat_map(|item| accesses(&item.assign.value)) {
        let is_own = |part: &Expr| matches!(part, Expr::Var(v) if *v == step || phase.vars.contains(v));
        let known = found.entry(tensor).or_insert_with(|| index.clone());
        if *known != index || !index.iter().all(is_own) {
            others.push(tensor);
        }
    }
    let may = |tensor: &TensorId| {
        let in_memory = homes.get(tensor).is_some_and(|home| home.global.is_some() && home.shared.is_none());
        in_memory && is_given(program.tensors[*tensor].role) && !others.contains(tensor)
    };
    let is_worth = |index: &[Expr]| free >= LEFT || index.contains(&Expr::Var(step));
    let wanted = found.iter().filter(|(tensor, index)| may(tensor) && is_worth(index));
    wanted.map(|(tensor, _)| *tensor).take(MOST).collect()
}

/// Whether the kernel reads it and never writes it.
fn is_given(role: Role) -> bool {
    matches!(role, Role::Input | Role::Param | Role::CotangentIn { .. } | Role::Saved)
}
