//! Normal form: every reduction and every transcendental function has a tensor of its own.
//!
//! In that form an adjoint reads results instead of computing them again, and no reduction hides inside another.

use super::ir::{Assign, BinaryFn, Expr, Node, Program, Role, Scan, Tensor, TensorId, VarId};
use crate::diagnostics::Loc;

/// The same program in normal form. What does not change over a scan moves in front of it.
pub fn normalize(program: &Program) -> Program {
    let mut normal =
        Normalizer { program: super::copies::without_copies(program), before: Vec::new(), out: Vec::new(), step: None };
    let mut body = Vec::new();
    for node in &normal.program.body.clone() {
        match node {
            Node::Assign(assign) => {
                normal.assign(assign);
                body.extend(std::mem::take(&mut normal.out).into_iter().map(Node::Assign));
            }
            Node::Scan(scan) => {
                let scan = normal.scan(scan);
                body.extend(std::mem::take(&mut normal.before).into_iter().map(Node::Assign));
                body.push(Node::Scan(scan));
            }
        }
    }
    normal.program.body = body;
    normal.program
}

struct Normalizer {
    program: Program,
    /// Assignments that a scan does not change.
    before: Vec<Assign>,
    out: Vec<Assign>,
    step: Option<VarId>,
}

impl Normalizer {
    fn scan(&mut self, scan: &Scan) -> Scan {
        self.step = Some(scan.var);
        for assign in &scan.body {
            self.assign(assign);
        }
        self.step = None;
        Scan { var: scan.var, reversed: scan.reversed, body: std::mem::take(&mut self.out) }
    }

    fn assign(&mut self, assign: &Assign) {
        let at = Site {
            index: assign.index.clone(),
            name: self.program.tensors[assign.tensor].name.clone(),
            loc: assign.loc.clone(),
        };
        let value = match &assign.value {
            Expr::Reduce(op, vars, body) => self.reduce(*op, vars, body, &at),
            value => value.map(|part| self.hoist(part, &at)),
        };
        self.out.push(Assign { tensor: assign.tensor, index: assign.index.clone(), value, loc: assign.loc.clone() });
    }

    /// Nested sums become one over all their variables; what is not arithmetic leaves the body.
    fn reduce(&mut self, op: super::Reduction, vars: &[VarId], body: &Expr, at: &Site) -> Expr {
        if let Expr::Reduce(inner, more, body) = body
            && *inner == op
        {
            let all: Vec<VarId> = vars.iter().chain(more).copied().collect();
            return self.reduce(op, &all, body, at);
        }
        debug_assert!(vars.iter().all(|v| !at.index.contains(v)), "a variable is bound inside its own scope");
        let inner = Site { index: at.index.iter().chain(vars).copied().collect(), ..at.clone() };
        let body = self.hoist(body, &inner);
        Expr::Reduce(op, vars.to_vec(), Box::new(body))
    }

    fn hoist(&mut self, expr: &Expr, at: &Site) -> Expr {
        match expr {
            Expr::Reduce(op, vars, body) => {
                let value = self.reduce(*op, vars, body, at);
                self.name(value, at)
            }
            Expr::Unary(op, _) if op.is_costly() => {
                let value = expr.map(|part| self.hoist(part, at));
                self.name(value, at)
            }
            // A quotient's derivative reads the quotient.
            Expr::Binary(BinaryFn::Div, ..) => {
                let value = expr.map(|part| self.hoist(part, at));
                if value.loads().is_empty() { value } else { self.name(value, at) }
            }
            _ => expr.map(|part| self.hoist(part, at)),
        }
    }

    /// Gives a value a tensor, or finds the one that already holds it.
    fn name(&mut self, value: Expr, at: &Site) -> Expr {
        let free = value.free_vars();
        let moves = self.is_invariant(&value);
        let index: Vec<VarId> =
            at.index.iter().copied().filter(|v| free.contains(v) || (!moves && Some(*v) == self.step)).collect();
        let tensor = match self.existing(&value, &index) {
            Some(tensor) => tensor,
            None => {
                let tensor = self.add_local(&value, &index, at);
                let list = if moves { &mut self.before } else { &mut self.out };
                list.push(Assign { tensor, index: index.clone(), value, loc: at.loc.clone() });
                tensor
            }
        };
        Expr::Load(tensor, index.into_iter().map(Expr::Var).collect())
    }

    fn existing(&self, value: &Expr, index: &[VarId]) -> Option<TensorId> {
        let extents = |list: &[VarId]| list.iter().map(|v| self.program.vars[*v].extent).collect::<Vec<_>>();
        let same = |a: &&Assign| {
            self.program.tensors[a.tensor].role == Role::Local
                && extents(&a.index) == extents(index)
                && a.value == value.substitute(index, &a.index)
        };
        self.before.iter().chain(&self.out).find(same).map(|a| a.tensor)
    }

    /// Whether a value inside the scan is the same at every step.
    fn is_invariant(&self, value: &Expr) -> bool {
        let Some(step) = self.step else { return false };
        !value.free_vars().contains(&step)
    }

    fn add_local(&mut self, value: &Expr, index: &[VarId], at: &Site) -> TensorId {
        let is_taken = |name: &str| self.program.tensors.iter().any(|t| t.name == name);
        let name = (1..).map(|n| format!("{}_{n}", at.name)).find(|name| !is_taken(name)).unwrap_or_default();
        let shape = index.iter().map(|v| self.program.vars[*v].extent).collect();
        let elem = self.program.elem(value);
        self.program.add_tensor(Tensor { name, role: Role::Local, elem, shape, loc: at.loc.clone() })
    }
}

/// Where a part stands: the variables in force, and the equation.
#[derive(Clone)]
struct Site {
    index: Vec<VarId>,
    name: String,
    loc: Loc,
}
