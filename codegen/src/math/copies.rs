//! Takes out what merely repeats another value: wiring a block into a block makes such copies.

use std::collections::BTreeMap;

use super::ir::{Assign, Expr, Program, Role, TensorId, VarId};

/// The same program without locals that repeat a value, and without outputs that repeat a local.
pub(super) fn without_copies(program: &Program) -> Program {
    let mut copies = Copies::default();
    without_repeated_locals(&program.map_assigns(|assign| copies.kept(program, assign)))
}

/// What each local repeats, over the variables of its own assignment.
#[derive(Default)]
struct Copies(BTreeMap<TensorId, (Vec<VarId>, Expr)>);

impl Copies {
    /// The assignment with every copy read at its source; nothing where it only makes a copy.
    fn kept(&mut self, program: &Program, assign: &Assign) -> Option<Assign> {
        let value = self.resolved(&assign.value);
        let is_plain = |index: &[Expr]| index.iter().all(|i| matches!(i, Expr::Var(_)));
        match &value {
            Expr::Load(_, index) if program.tensors[assign.tensor].role == Role::Local && is_plain(index) => {
                self.0.insert(assign.tensor, (assign.index.clone(), value));
                None
            }
            _ => Some(Assign { value, ..assign.clone() }),
        }
    }

    fn resolved(&self, expr: &Expr) -> Expr {
        if !expr.loads().iter().any(|t| self.0.contains_key(t)) {
            return expr.clone();
        }
        let expr = expr.map(|part| self.resolved(part));
        match &expr {
            Expr::Load(tensor, at) => match self.0.get(tensor) {
                Some((vars, source)) => source.replace_vars(vars, at),
                None => expr,
            },
            _ => expr,
        }
    }
}

/// An output that repeats a whole local is that local.
fn without_repeated_locals(program: &Program) -> Program {
    let mut same: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for (assign, inside) in program.assigns() {
        let Expr::Load(local, index) = &assign.value else { continue };
        let is_whole = index.iter().cloned().eq(assign.index.iter().copied().map(Expr::Var));
        let (of, output) = (&program.tensors[*local], &program.tensors[assign.tensor]);
        let is_made_there = program.assigns().any(|(a, i)| a.tensor == *local && i == inside);
        let fits = of.role == Role::Local && output.role == Role::Output && of.shape == output.shape;
        if is_whole && fits && is_made_there {
            same.entry(*local).or_insert(assign.tensor);
        }
    }
    program.map_assigns(|assign| {
        let tensor = same.get(&assign.tensor).copied().unwrap_or(assign.tensor);
        let value = renamed(&assign.value, &same);
        let repeats_itself = matches!(&value, Expr::Load(t, _) if *t == tensor);
        (!repeats_itself).then(|| Assign { tensor, value, ..assign.clone() })
    })
}

fn renamed(expr: &Expr, same: &BTreeMap<TensorId, TensorId>) -> Expr {
    if !expr.loads().iter().any(|t| same.contains_key(t)) {
        return expr.clone();
    }
    match expr {
        Expr::Load(tensor, index) => {
            let index = index.iter().map(|i| renamed(i, same)).collect();
            Expr::Load(same.get(tensor).copied().unwrap_or(*tensor), index)
        }
        _ => expr.map(|part| renamed(part, same)),
    }
}
