//! Deferred gradients: an adjoint in two parts. The first gives cotangents and keeps what the parameters' gradients are made
//! of; the second sums over the batch and all steps at once, so that no sample needs a gradient of its own.

use std::collections::{BTreeMap, BTreeSet};

use unio_interface::{Access, Role as Outer};

use super::block::scalar_params;
use super::{GradientsBody, Param, memory_elem, outer_role};
use crate::math::{Assign, BinaryFn, Expr, Node, Program, Reduction, Role, TensorId, VarId};

/// An adjoint in its two parts.
pub(super) struct Split {
    /// Everything but the parameters' gradients.
    pub(super) cotangents: Program,
    /// Values that the first part keeps for the second.
    pub(super) keep: BTreeSet<TensorId>,
    /// The parameters' gradients, with the batch among the indices.
    pub(super) gradients: Program,
}

/// Parts an adjoint program.
pub(super) fn split(adjoint: &Program, batch: usize) -> Split {
    let is_gradient = |a: &Assign| matches!(adjoint.tensors[a.tensor].role, Role::ParamGradient { .. });
    let mut deferred = Vec::new();
    let mut body = adjoint.body.clone();
    body.retain(|node| match node {
        Node::Assign(assign) if is_gradient(assign) => {
            deferred.push(assign.clone());
            false
        }
        _ => true,
    });
    let is_made = |t: &TensorId| matches!(adjoint.tensors[*t].role, Role::Local | Role::Carry { .. });
    let keep = deferred.iter().flat_map(|a| a.value.loads()).filter(is_made).collect();
    let gradients = over_batch(adjoint, deferred, batch);
    Split { cotangents: Program { body, ..adjoint.clone() }, keep, gradients }
}

/// The same assignments for the whole batch: each is summed over the samples, which become the leading index.
fn over_batch(adjoint: &Program, assigns: Vec<Assign>, batch: usize) -> Program {
    let mut program = Program { body: Vec::new(), ..adjoint.clone() };
    let sample = program.add_var("b", batch);
    let assign = |a: Assign| Node::Assign(Assign { value: summed(adjoint, &a.value, sample), ..a });
    program.body = assigns.into_iter().map(assign).collect();
    for tensor in program.tensors.iter_mut().filter(|t| is_per_sample(t.role)) {
        tensor.shape.insert(0, batch);
    }
    program
}

pub(super) fn is_per_sample(role: Role) -> bool {
    !matches!(role, Role::Table | Role::Param | Role::ParamGradient { .. })
}

/// The sum over the samples, drawn into the sums that are there: steps and samples are one range then.
fn summed(program: &Program, value: &Expr, sample: VarId) -> Expr {
    match value {
        Expr::Real(0.0) => value.clone(),
        Expr::Binary(BinaryFn::Add, a, b) if has_sum(value) => {
            Expr::add(summed(program, a, sample), summed(program, b, sample))
        }
        Expr::Reduce(Reduction::Sum, vars, body) => {
            let vars = std::iter::once(sample).chain(vars.iter().copied()).collect();
            Expr::Reduce(Reduction::Sum, vars, Box::new(of_sample(program, body, sample)))
        }
        value => Expr::Reduce(Reduction::Sum, vec![sample], Box::new(of_sample(program, value, sample))),
    }
}

fn has_sum(value: &Expr) -> bool {
    let mut found = false;
    value.visit(&mut |e| found |= matches!(e, Expr::Reduce(..)));
    found
}

/// What an expression reads, with the sample in front of the index of what each sample has for itself.
pub(super) fn of_sample(program: &Program, expr: &Expr, sample: VarId) -> Expr {
    match expr {
        Expr::Load(tensor, index) => {
            let own = is_per_sample(program.tensors[*tensor].role).then_some(Expr::Var(sample));
            let rest = index.iter().map(|part| of_sample(program, part, sample));
            Expr::Load(*tensor, own.into_iter().chain(rest).collect())
        }
        expr => expr.map(|part| of_sample(program, part, sample)),
    }
}

/// The body of the second part's kernel, and its pointer parameters, in the order of the tensors.
pub(super) fn plan(program: Program) -> (GradientsBody, Vec<Param>) {
    let read: BTreeSet<TensorId> = program.assigns().flat_map(|(a, _)| a.value.loads()).collect();
    let written: BTreeSet<TensorId> = program.assigns().map(|(a, _)| a.tensor).collect();
    let mut params: Vec<Param> = Vec::new();
    let mut places = BTreeMap::new();
    for id in read.union(&written) {
        places.insert(*id, params.len());
        params.push(param(&program, *id));
    }
    params.extend(scalar_params(&program));
    (GradientsBody { program, params: places }, params)
}

fn param(program: &Program, id: TensorId) -> Param {
    let tensor = &program.tensors[id];
    let any = tensor.shape.first() == Some(&0);
    let (access, role) = match tensor.role {
        Role::ParamGradient { of } => (Access::Out, Outer::GradientOf(program.tensors[of].name.clone())),
        _ => (Access::In, outer_role(program, id)),
    };
    Param {
        name: tensor.name.clone(),
        elem: memory_elem(tensor.elem),
        access,
        len: (!any).then(|| tensor.shape.iter().product()),
        stride: None,
        role,
        row_len: any.then(|| tensor.shape[1..].iter().product()),
        row: 1,
    }
}
