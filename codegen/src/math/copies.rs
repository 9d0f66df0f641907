//! Takes out what merely repeats another value: wiring a block into a block makes such copies.

use std::collections::BTreeMap;

use super::ir::{Assign, Expr, Node, Program, Role, TensorId, VarId};

/// The same program without locals that repeat a value, and without outputs that repeat a local.
pub(super) fn without_copies(program: &Program) -> Program {
    let mut copies = Copies::default();
    let mut plain = Program { body: Vec::new(), ..program.clone() };
    for node in &program.body {
        match node {
            Node::Assign(assign) => plain.body.extend(copies.kept(program, assign).map(Node::Assign)),
            Node::Scan(scan) => {
                let mut scan = scan.clone();
                scan.body = scan.body.iter().filter_map(|assign| copies.kept(program, assign)).collect();
                plain.body.push(Node::Scan(scan));
            }
        }
    }
    without_repeated_locals(plain)
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
                Some((vars, source)) => replaced(source, vars, at),
                None => expr,
            },
            _ => expr,
        }
    }
}

/// The expression with each variable replaced by the part of an index that stands for it.
fn replaced(expr: &Expr, vars: &[VarId], by: &[Expr]) -> Expr {
    match expr {
        Expr::Var(v) => vars.iter().position(|w| w == v).map_or_else(|| expr.clone(), |n| by[n].clone()),
        _ => expr.map(|part| replaced(part, vars, by)),
    }
}

/// An output that repeats a whole local is that local.
fn without_repeated_locals(program: Program) -> Program {
    let mut same: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for (assign, inside) in program.assigns() {
        let Expr::Load(local, index) = &assign.value else { continue };
        let is_whole = index.iter().eq(assign.index.iter().map(|v| Expr::Var(*v)).collect::<Vec<_>>().iter());
        let (of, output) = (&program.tensors[*local], &program.tensors[assign.tensor]);
        let is_made_there = program.assigns().any(|(a, i)| a.tensor == *local && i == inside);
        let fits = of.role == Role::Local && output.role == Role::Output && of.shape == output.shape;
        if is_whole && fits && is_made_there && !same.contains_key(local) {
            same.insert(*local, assign.tensor);
        }
    }
    let renamed = |assign: &Assign| -> Option<Assign> {
        let tensor = same.get(&assign.tensor).copied().unwrap_or(assign.tensor);
        let value = renamed(&assign.value, &same);
        let repeats_itself = matches!(&value, Expr::Load(t, _) if *t == tensor);
        (!repeats_itself).then(|| Assign { tensor, value, ..assign.clone() })
    };
    let body = program.body.iter().filter_map(|node| {
        Some(match node {
            Node::Assign(assign) => Node::Assign(renamed(assign)?),
            Node::Scan(scan) => {
                let mut scan = scan.clone();
                scan.body = scan.body.iter().filter_map(&renamed).collect();
                Node::Scan(scan)
            }
        })
    });
    Program { body: body.collect(), ..program.clone() }
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
