//! Takes out of a scan what need not wait for its steps: what knows nothing of the step before goes in front, for all
//! steps at once, and what the next step does not need goes behind.

use std::collections::BTreeSet;

use crate::math::{Assign, Node, Program, Role, Scan, TensorId};

/// The same program with as little as possible inside its scan.
pub(super) fn split(program: &Program) -> Program {
    let mut body = Vec::new();
    for node in &program.body {
        match node {
            Node::Assign(assign) => body.push(Node::Assign(assign.clone())),
            Node::Scan(scan) => body.extend(parts(program, scan)),
        }
    }
    Program { body, ..program.clone() }
}

fn parts(program: &Program, scan: &Scan) -> Vec<Node> {
    let late = dependents(program, scan);
    let needed = needed(program, scan, &late);
    let side = |assign: &Assign| (late.contains(&assign.tensor), needed.contains(&assign.tensor));
    let select = |wanted: fn((bool, bool)) -> bool| scan.body.iter().filter(move |a| wanted(side(a))).cloned();
    let before = select(|(late, _)| !late).map(Node::Assign);
    let inside: Vec<Assign> = select(|(late, needed)| late && needed).collect();
    let after = select(|(late, needed)| late && !needed).map(Node::Assign);
    before.chain([Node::Scan(Scan { body: inside, ..scan.clone() })]).chain(after).collect()
}

/// What reads a carry, however far away.
fn dependents(program: &Program, scan: &Scan) -> BTreeSet<TensorId> {
    let mut late = BTreeSet::new();
    for assign in &scan.body {
        let waits = |t: &TensorId| late.contains(t) || is_carry(program, *t);
        if assign.value.loads().iter().any(waits) {
            late.insert(assign.tensor);
        }
    }
    late
}

/// What the next step needs, and what reads a carry itself: a carry holds one step only.
fn needed(program: &Program, scan: &Scan, late: &BTreeSet<TensorId>) -> BTreeSet<TensorId> {
    let carried =
        program.tensors.iter().filter_map(|t| if let Role::Carry { from } = t.role { Some(from) } else { None });
    let mut needed: BTreeSet<TensorId> = carried.filter(|from| late.contains(from)).collect();
    for assign in scan.body.iter().rev() {
        let loads = assign.value.loads();
        if needed.contains(&assign.tensor) || loads.iter().any(|t| is_carry(program, *t)) {
            needed.insert(assign.tensor);
            needed.extend(loads.into_iter().filter(|t| late.contains(t)));
        }
    }
    needed
}

fn is_carry(program: &Program, tensor: TensorId) -> bool {
    matches!(program.tensors[tensor].role, Role::Carry { .. })
}
