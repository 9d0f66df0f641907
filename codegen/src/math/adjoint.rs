//! The adjoint of a program in normal form.
//!
//! Each reader of a value contributes an expression; one assignment joins them in a fixed order. What lies outside a
//! scan receives a sum over its steps, after the reversed scan: no gradient is added up step by step.

use std::collections::{BTreeMap, BTreeSet};

use super::ir::{Assign, BinaryFn, Elem, Expr, Node, Program, Reduction, Role, Scan, Tensor, TensorId, UnaryFn, VarId};
use crate::diagnostics::{Code, Loc, Report};

/// An adjoint program and what it needs.
#[derive(Clone, Debug)]
pub struct Adjoint {
    /// The program; tensors of the forward program keep their ids.
    pub program: Program,
    /// Tensors that the forward kernel must keep.
    pub saved: Vec<TensorId>,
    /// Tensors that the adjoint computes anew, because that is cheap.
    pub recomputed: Vec<TensorId>,
}

/// Derives the adjoint of a normal-form program.
///
/// `readers` counts the readers of each output; `wanted` are the inputs whose cotangents somebody reads.
pub fn adjoint(
    forward: &Program,
    readers: &BTreeMap<TensorId, usize>,
    wanted: &BTreeSet<TensorId>,
    report: &mut Report,
) -> Adjoint {
    let active = active_tensors(forward, wanted);
    let mut d = Differentiator {
        forward,
        active: &active,
        program: Program { body: Vec::new(), ..forward.clone() },
        contributions: BTreeMap::new(),
        bars: BTreeMap::new(),
        step: forward.scan().map(|s| s.var),
        selects: forward.assigns().any(|(a, _)| a.value.has_select()),
        out: Vec::new(),
        report,
    };
    d.add_output_cotangents(readers);
    let (looped, outer) = d.derive();
    let keep = Keeper::new(forward, &looped, &outer);
    keep.finish(d.program, looped, outer)
}

/// Tensors through which a wanted input or a parameter reaches an output.
fn active_tensors(program: &Program, wanted: &BTreeSet<TensorId>) -> BTreeSet<TensorId> {
    let mut active = wanted.clone();
    active.extend(program.tensors.iter().enumerate().filter(|(_, t)| t.role == Role::Param).map(|(id, _)| id));
    loop {
        let before = active.len();
        for (assign, _) in program.assigns() {
            let reached = assign.value.loads().iter().any(|t| active.contains(t));
            if reached && program.tensors[assign.tensor].elem == Elem::Real {
                active.insert(assign.tensor);
            }
        }
        for (id, tensor) in program.tensors.iter().enumerate() {
            if let Role::Carry { from } = tensor.role
                && active.contains(&from)
            {
                active.insert(id);
            }
        }
        if active.len() == before {
            return active;
        }
    }
}

/// The assignment through which a cotangent goes.
struct Site {
    tensor: TensorId,
    /// Its index, and the variables of its sum.
    free: Vec<VarId>,
    /// Whether a sum is around.
    reduced: bool,
    loc: Loc,
}

struct Differentiator<'a> {
    forward: &'a Program,
    active: &'a BTreeSet<TensorId>,
    program: Program,
    /// For each tensor: expressions over its own variables ([`Differentiator::own_vars`]).
    contributions: BTreeMap<TensorId, Vec<Expr>>,
    /// Cotangent of a tensor, with the variables it is indexed by.
    bars: BTreeMap<TensorId, (TensorId, Vec<VarId>)>,
    step: Option<VarId>,
    /// Whether the program selects anywhere.
    selects: bool,
    out: Vec<Assign>,
    report: &'a mut Report,
}

impl Differentiator<'_> {
    fn add_output_cotangents(&mut self, readers: &BTreeMap<TensorId, usize>) {
        for (&output, &count) in readers {
            for reader in 0..count {
                let tensor = &self.forward.tensors[output];
                let name =
                    if count == 1 { format!("d_{}", tensor.name) } else { format!("d_{}_{}", tensor.name, reader + 1) };
                let given = Tensor { name, role: Role::CotangentIn { of: output, reader }, ..tensor.clone() };
                let given = self.program.add_tensor(given);
                let index = self.own_vars(output).iter().copied().map(Expr::Var).collect();
                self.contributions.entry(output).or_default().push(Expr::Load(given, index));
            }
        }
    }

    /// The reversed scan's assignments (empty without a scan) and those outside it.
    fn derive(&mut self) -> (Option<Scan>, Vec<Assign>) {
        let scan = self.forward.scan();
        let looped = scan.map(|scan| self.reversed(scan));
        for node in self.forward.body.iter().rev() {
            if let Node::Assign(assign) = node {
                self.through(assign);
            }
        }
        self.ends(|d, id| !d.is_in_scan(id));
        (looped, std::mem::take(&mut self.out))
    }

    fn reversed(&mut self, scan: &Scan) -> Scan {
        self.add_carry_cotangents();
        for assign in scan.body.iter().rev() {
            self.through(assign);
        }
        self.ends(|d, id| d.is_in_scan(id));
        self.fill_carry_cotangents();
        Scan { var: scan.var, reversed: true, body: std::mem::take(&mut self.out) }
    }

    /// What the step after wants of an output that it carries.
    fn add_carry_cotangents(&mut self) {
        for id in 0..self.forward.tensors.len() {
            let tensor = &self.forward.tensors[id];
            let Role::Carry { from } = tensor.role else { continue };
            if !self.active.contains(&id) {
                continue;
            }
            let bar = Tensor { name: format!("d_{}", tensor.name), role: Role::Local, ..tensor.clone() };
            let next = Tensor { name: format!("d_{}_carried", tensor.name), ..bar.clone() };
            let bar = self.program.add_tensor(bar);
            let next = self.program.add_tensor(Tensor { role: Role::Carry { from: bar }, ..next });
            let vars = self.own_vars(id);
            self.bars.insert(id, (bar, vars));
            let index = self.own_vars(from).iter().copied().map(Expr::Var).collect();
            self.contributions.entry(from).or_default().push(Expr::Load(next, index));
        }
    }

    /// Every carried tensor has a cotangent, if only zero, because the carry reads it.
    fn fill_carry_cotangents(&mut self) {
        let carries: Vec<TensorId> = self
            .bars
            .keys()
            .copied()
            .filter(|id| matches!(self.forward.tensors[*id].role, Role::Carry { .. }))
            .collect();
        for id in carries {
            let (bar, index) = self.bars[&id].clone();
            let parts = self.contributions.remove(&id).unwrap_or_default();
            let value = parts.into_iter().fold(Expr::Real(0.0), Expr::add);
            let loc = self.forward.tensors[id].loc.clone();
            self.out.push(Assign { tensor: bar, index, value, loc });
        }
    }

    fn is_in_scan(&self, id: TensorId) -> bool {
        let tensor = &self.forward.tensors[id];
        let Some(step) = self.step else { return false };
        let steps = self.forward.vars[step].extent;
        let sliced = self.bars.get(&id).is_some_and(|(_, vars)| vars.first() == Some(&step));
        sliced || (tensor.shape.first() == Some(&steps) && self.forward.scan().is_some_and(|s| reads_at_step(s, id)))
    }

    /// Variables of a tensor's cotangent: the scan's own for the step, fresh ones for the rest.
    fn own_vars(&mut self, id: TensorId) -> Vec<VarId> {
        if let Some((_, vars)) = self.bars.get(&id) {
            return vars.clone();
        }
        let stepped = self.is_in_scan(id);
        let shape = self.forward.tensors[id].shape.clone();
        let names = self.index_names(id);
        let mut vars = Vec::new();
        for (n, extent) in shape.into_iter().enumerate() {
            match self.step.filter(|_| n == 0 && stepped) {
                Some(step) => vars.push(step),
                None => vars.push(self.program.add_var(names.get(n).map_or("i", |s| s.as_str()), extent)),
            }
        }
        let name = format!("d_{}", self.forward.tensors[id].name);
        let tensor = &self.forward.tensors[id];
        let role = match tensor.role {
            Role::Input => Role::CotangentOut { of: id },
            Role::Param => Role::ParamGradient { of: id },
            _ => Role::Local,
        };
        let name = if tensor.role == Role::Output { format!("{name}_total") } else { name };
        let bar = Tensor { name, role, ..tensor.clone() };
        if !matches!(tensor.role, Role::Carry { .. }) {
            let bar = self.program.add_tensor(bar);
            self.bars.insert(id, (bar, vars.clone()));
        }
        vars
    }

    /// Names of the variables under which a tensor is assigned or first read.
    fn index_names(&self, id: TensorId) -> Vec<String> {
        let name = |v: VarId| self.forward.vars[v].name.clone();
        let mut names = Vec::new();
        for (assign, _) in self.forward.assigns() {
            if assign.tensor == id {
                return assign.index.iter().copied().map(name).collect();
            }
            assign.value.visit(&mut |e| {
                if let Expr::Load(t, index) = e
                    && *t == id
                    && names.is_empty()
                {
                    names = index.iter().map(|i| if let Expr::Var(v) = i { name(*v) } else { "i".into() }).collect();
                }
            });
        }
        names
    }

    /// Cotangents of what nobody assigns: inputs and parameters.
    fn ends(&mut self, select: impl Fn(&Self, TensorId) -> bool) {
        for id in 0..self.forward.tensors.len() {
            let role = self.forward.tensors[id].role;
            if matches!(role, Role::Input | Role::Param) && self.active.contains(&id) && select(self, id) {
                let loc = self.forward.tensors[id].loc.clone();
                self.own_vars(id);
                self.join(id, &loc);
            }
        }
    }

    /// Assigns a tensor's cotangent the sum of what its readers contributed.
    fn join(&mut self, id: TensorId, loc: &Loc) -> bool {
        let Some(parts) = self.contributions.remove(&id).or_else(|| self.always(id)) else {
            return false;
        };
        let (bar, index) = self.bars[&id].clone();
        let value = parts.into_iter().fold(Expr::Real(0.0), Expr::add);
        if let Some(same) = self.alias(bar, &index, &value) {
            self.bars.insert(id, (same, index));
            return true;
        }
        self.out.push(Assign { tensor: bar, index, value, loc: loc.clone() });
        true
    }

    /// The cotangent that a local one merely repeats.
    fn alias(&self, bar: TensorId, index: &[VarId], value: &Expr) -> Option<TensorId> {
        let Expr::Load(same, at) = value else { return None };
        let plain = at.iter().zip(index).all(|(a, v)| *a == Expr::Var(*v)) && at.len() == index.len();
        let is_local = |t: TensorId| self.program.tensors[t].role == Role::Local;
        (plain && is_local(bar) && is_local(*same)).then_some(*same)
    }

    /// Gives a cotangent that goes two ways a tensor of its own, so that it is computed once.
    fn shared_seed(&mut self, seed: Expr, at: &Site) -> Expr {
        if matches!(seed, Expr::Load(..) | Expr::Real(_)) || at.reduced {
            return seed;
        }
        let of = &self.forward.tensors[at.tensor];
        let count = self.program.tensors.iter().filter(|t| t.name.starts_with(&format!("d_{}_part", of.name))).count();
        let name = format!("d_{}_part{}", of.name, count + 1);
        let shared = self.program.add_tensor(Tensor { name, role: Role::Local, ..of.clone() });
        self.out.push(Assign { tensor: shared, index: at.free.clone(), value: seed, loc: at.loc.clone() });
        Expr::Load(shared, at.free.iter().copied().map(Expr::Var).collect())
    }

    /// Cotangents that leave the program are written even where they are zero.
    fn always(&self, id: TensorId) -> Option<Vec<Expr>> {
        matches!(self.forward.tensors[id].role, Role::Input | Role::Param).then(Vec::new)
    }

    fn through(&mut self, assign: &Assign) {
        if !self.active.contains(&assign.tensor) || !self.contributions.contains_key(&assign.tensor) {
            return;
        }
        self.own_vars(assign.tensor);
        self.join(assign.tensor, &assign.loc);
        let (bar, _) = self.bars[&assign.tensor];
        let seed = Expr::Load(bar, assign.index.iter().copied().map(Expr::Var).collect());
        let whole = Expr::Load(assign.tensor, assign.index.iter().copied().map(Expr::Var).collect());
        let mut at =
            Site { tensor: assign.tensor, free: assign.index.clone(), reduced: false, loc: assign.loc.clone() };
        match &assign.value {
            Expr::Reduce(Reduction::Sum, vars, body) => {
                at.free.extend(vars);
                at.reduced = true;
                self.back(body, seed, None, &at);
            }
            Expr::Reduce(..) if self.is_active(&assign.value) => {
                self.report.push(Code::NoAdjoint, &assign.loc, "a maximum or minimum over an index");
            }
            value => self.back(value, seed, Some(&whole), &at),
        }
    }

    fn is_active(&self, expr: &Expr) -> bool {
        expr.loads().iter().any(|t| self.active.contains(t))
    }

    /// Sends the cotangent `seed` of `expr` to what `expr` reads. `whole` is where the value of `expr` itself is kept.
    fn back(&mut self, expr: &Expr, seed: Expr, whole: Option<&Expr>, at: &Site) {
        if !self.is_active(expr) {
            return;
        }
        match expr {
            Expr::Load(tensor, index) => self.contribute(*tensor, index, seed, at),
            Expr::Unary(op, a) => self.back_unary(*op, a, seed, whole, at),
            Expr::Binary(op, a, b) => self.back_binary(*op, (a, b), seed, whole, at),
            Expr::Select(condition, a, b) => {
                let zero = Expr::Real(0.0);
                self.back(a, Expr::select((**condition).clone(), seed.clone(), zero.clone()), None, at);
                self.back(b, Expr::select((**condition).clone(), zero, seed), None, at);
            }
            Expr::Reduce(..) => self.report.push(Code::NoAdjoint, &at.loc, "a reduction inside an expression"),
            Expr::Real(_) | Expr::Int(_) | Expr::Var(_) | Expr::Scalar(_) | Expr::ToReal(_) => {}
        }
    }

    fn back_unary(&mut self, op: UnaryFn, a: &Expr, seed: Expr, whole: Option<&Expr>, at: &Site) {
        let y = whole.cloned().unwrap_or_else(|| Expr::Unary(op, Box::new(a.clone())));
        let of = |f: UnaryFn| Expr::Unary(f, Box::new(a.clone()));
        let one = || Expr::Real(1.0);
        let slope = match op {
            UnaryFn::Neg => return self.back(a, Expr::neg(seed), None, at),
            UnaryFn::Stop | UnaryFn::Not | UnaryFn::IsFinite | UnaryFn::Floor => return,
            UnaryFn::Abs => {
                let positive = Expr::Binary(BinaryFn::Gt, Box::new(a.clone()), Box::new(Expr::Real(0.0)));
                let negative = Expr::Binary(BinaryFn::Lt, Box::new(a.clone()), Box::new(Expr::Real(0.0)));
                let below = Expr::select(negative, Expr::neg(seed.clone()), Expr::Real(0.0));
                return self.back(a, Expr::select(positive, seed, below), None, at);
            }
            UnaryFn::Exp => y,
            UnaryFn::Log => Expr::div(one(), a.clone()),
            UnaryFn::Log1p => Expr::div(one(), Expr::add(one(), a.clone())),
            UnaryFn::Tanh => Expr::sub(one(), Expr::mul(y.clone(), y)),
            UnaryFn::Sigmoid => Expr::mul(y.clone(), Expr::sub(one(), y)),
            UnaryFn::Softplus => of(UnaryFn::Sigmoid),
            UnaryFn::Sqrt => Expr::div(Expr::Real(0.5), y),
            UnaryFn::Sin => of(UnaryFn::Cos),
            UnaryFn::Cos => Expr::neg(of(UnaryFn::Sin)),
        };
        let unbounded = matches!(op, UnaryFn::Exp | UnaryFn::Log | UnaryFn::Log1p | UnaryFn::Sqrt);
        let product = Expr::mul(seed.clone(), slope);
        let product = if unbounded { self.guarded(seed, product) } else { product };
        self.back(a, product, None, at);
    }

    /// A cotangent of 0 stays 0 whatever the slope: where a `select` took the other side, the slope may be no number.
    fn guarded(&self, seed: Expr, product: Expr) -> Expr {
        if !self.selects {
            return product;
        }
        let nothing = Expr::Binary(BinaryFn::Eq, Box::new(seed), Box::new(Expr::Real(0.0)));
        Expr::select(nothing, Expr::Real(0.0), product)
    }

    fn back_binary(&mut self, op: BinaryFn, (a, b): (&Expr, &Expr), seed: Expr, whole: Option<&Expr>, at: &Site) {
        match op {
            BinaryFn::Add | BinaryFn::Sub if self.is_active(a) && self.is_active(b) => {
                let seed = self.shared_seed(seed, at);
                self.back(a, seed.clone(), None, at);
                let other = if op == BinaryFn::Add { seed } else { Expr::neg(seed) };
                self.back(b, other, None, at);
            }
            BinaryFn::Add => {
                self.back(a, seed.clone(), None, at);
                self.back(b, seed, None, at);
            }
            BinaryFn::Sub => {
                self.back(a, seed.clone(), None, at);
                self.back(b, Expr::neg(seed), None, at);
            }
            BinaryFn::Mul => {
                self.back(a, Expr::mul(seed.clone(), b.clone()), None, at);
                self.back(b, Expr::mul(seed, a.clone()), None, at);
            }
            BinaryFn::Div => {
                let quotient = whole.cloned().unwrap_or_else(|| Expr::div(a.clone(), b.clone()));
                let above = Expr::div(seed.clone(), b.clone());
                let below = Expr::neg(Expr::div(Expr::mul(seed.clone(), quotient), b.clone()));
                self.back(a, self.guarded(seed.clone(), above), None, at);
                self.back(b, self.guarded(seed, below), None, at);
            }
            // The first of two equal values takes the whole derivative.
            BinaryFn::Min | BinaryFn::Max => {
                let compare = if op == BinaryFn::Max { BinaryFn::Ge } else { BinaryFn::Le };
                let first = Expr::Binary(compare, Box::new(a.clone()), Box::new(b.clone()));
                self.back(a, Expr::select(first.clone(), seed.clone(), Expr::Real(0.0)), None, at);
                self.back(b, Expr::select(first, Expr::Real(0.0), seed), None, at);
            }
            _ => {}
        }
    }

    /// Adds a contribution at `tensor[index]`, summed over the variables that the index does not name.
    fn contribute(&mut self, tensor: TensorId, index: &[Expr], seed: Expr, at: &Site) {
        if !self.active.contains(&tensor) {
            return;
        }
        let own = self.own_vars(tensor);
        let mut named: Vec<(VarId, VarId)> = Vec::new();
        let mut gathered = Vec::new();
        for (part, own) in index.iter().zip(&own) {
            match part {
                Expr::Var(v) if named.iter().all(|(from, _)| from != v) => named.push((*v, *own)),
                _ if Some(*own) == self.step => {
                    let label = format!("`{}` is gathered from another step here", self.forward.tensors[tensor].name);
                    return self.report.push(Code::NoAdjoint, &at.loc, label);
                }
                part => gathered.push((part, *own)),
            }
        }
        let rest: Vec<VarId> = at.free.iter().copied().filter(|v| named.iter().all(|(from, _)| from != v)).collect();
        let fresh: Vec<VarId> = rest.iter().map(|v| self.renamed(*v)).collect();
        let from: Vec<VarId> = named.iter().map(|(from, _)| *from).chain(rest).collect();
        let to: Vec<VarId> = named.iter().map(|(_, own)| *own).chain(fresh.iter().copied()).collect();
        // A gather's adjoint is a gather too: each element sums, in a fixed order, what was read from it.
        let mut body = seed.substitute(&from, &to);
        for (part, own) in gathered {
            let read_here = self.reads(part, own).substitute(&from, &to);
            body = Expr::select(read_here, body, Expr::Real(0.0));
        }
        let value = if fresh.is_empty() { body } else { Expr::Reduce(Reduction::Sum, fresh, Box::new(body)) };
        self.contributions.entry(tensor).or_default().push(value);
    }

    /// Whether a gather reads the element `own`; the forward kernel takes an index back into its tensor.
    fn reads(&self, part: &Expr, own: VarId) -> Expr {
        let last = self.program.vars[own].extent as i64 - 1;
        let least = Expr::Binary(BinaryFn::Max, Box::new(part.clone()), Box::new(Expr::Int(0)));
        let inside = Expr::Binary(BinaryFn::Min, Box::new(least), Box::new(Expr::Int(last)));
        Expr::Binary(BinaryFn::Eq, Box::new(inside), Box::new(Expr::Var(own)))
    }

    fn renamed(&mut self, var: VarId) -> VarId {
        let var = self.program.vars[var].clone();
        self.program.add_var(&var.name, var.extent)
    }
}

fn reads_at_step(scan: &Scan, id: TensorId) -> bool {
    let mut at_step = false;
    for assign in &scan.body {
        at_step |= assign.tensor == id && assign.index.first() == Some(&scan.var);
        assign.value.visit(&mut |e| {
            if let Expr::Load(t, index) = e {
                at_step |= *t == id && index.first() == Some(&Expr::Var(scan.var));
            }
        });
    }
    at_step
}

/// Decides what the forward kernel keeps and what the adjoint computes anew.
struct Keeper<'a> {
    forward: &'a Program,
    saved: BTreeSet<TensorId>,
    recomputed: BTreeSet<TensorId>,
}

impl<'a> Keeper<'a> {
    fn new(forward: &'a Program, looped: &Option<Scan>, outer: &[Assign]) -> Self {
        let mut keeper = Self { forward, saved: BTreeSet::new(), recomputed: BTreeSet::new() };
        // Values read for all steps at once must be kept; those read step by step may be computed again.
        let inside = looped.iter().flat_map(|s| &s.body).flat_map(|a| a.value.loads());
        let outside: Vec<TensorId> = outer.iter().flat_map(|a| a.value.loads()).collect();
        for id in outside {
            keeper.need(id, looped.is_none());
        }
        for id in inside {
            keeper.need(id, true);
        }
        keeper
    }

    fn need(&mut self, id: TensorId, may_recompute: bool) {
        let Some(tensor) = self.forward.tensors.get(id) else {
            return;
        };
        match tensor.role {
            Role::Output | Role::Carry { .. } => {
                self.saved.insert(id);
            }
            Role::Local => self.need_local(id, may_recompute),
            _ => {}
        }
    }

    fn need_local(&mut self, id: TensorId, may_recompute: bool) {
        let assign = self.forward.assigns().find(|(a, _)| a.tensor == id).map(|(a, _)| a);
        match assign.filter(|a| may_recompute && !a.value.is_costly() && !self.saved.contains(&id)) {
            Some(assign) => {
                if self.recomputed.insert(id) {
                    assign.value.loads().into_iter().for_each(|t| self.need(t, true));
                }
            }
            None => {
                self.saved.insert(id);
                self.recomputed.remove(&id);
            }
        }
    }

    fn finish(self, mut program: Program, looped: Option<Scan>, outer: Vec<Assign>) -> Adjoint {
        for &id in &self.saved {
            program.tensors[id].role = Role::Saved;
        }
        for tensor in &mut program.tensors[..self.forward.tensors.len()] {
            if tensor.role == Role::Output {
                tensor.role = Role::Saved;
            }
        }
        let again = |inside: bool| {
            self.forward
                .assigns()
                .filter(move |(_, i)| *i == inside)
                .map(|(a, _)| a)
                .filter(|a| self.recomputed.contains(&a.tensor))
                .cloned()
        };
        let mut body: Vec<Node> = again(false).map(Node::Assign).collect();
        if let Some(scan) = looped {
            let all = again(true).chain(scan.body).collect();
            body.push(Node::Scan(Scan { body: all, ..scan }));
        }
        body.extend(outer.into_iter().map(Node::Assign));
        program.body = body;
        Adjoint { program, saved: self.saved.into_iter().collect(), recomputed: self.recomputed.into_iter().collect() }
    }
}
