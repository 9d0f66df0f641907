//! From equations as written to a [`Program`]: names, extents and types.

use std::collections::{BTreeMap, BTreeSet};

use super::ir::{
    Assign, BinaryFn, Elem, Expr, Node, Program, Reduction, Role, ScalarRead, Scan, Statistic, StatisticKind, Tensor,
    TensorId, UnaryFn, VarId,
};
use crate::diagnostics::{Code, Loc, Report};
use crate::spec::equation::{BinaryOp, Expr as Ast, ExprKind, Extent, Name, Statement, UnaryOp, When};

/// A declared tensor.
#[derive(Clone, Debug)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// What it is to the program.
    pub role: Role,
    /// Element type.
    pub elem: Elem,
    /// Extents of one sample and one step; a leading 0 is any length.
    pub shape: Vec<usize>,
    /// Whether a scan takes one slice of it a step.
    pub sliced: bool,
    /// Place of the declaration.
    pub loc: Loc,
}

/// Finds a slot or state: which of its values, its name, its member.
pub type FindScalar<'a> = dyn Fn(When, &Name, Option<&Name>, &mut Report) -> Option<ScalarRead> + 'a;

/// What names mean beside the declared tensors.
pub struct Scope<'a> {
    /// Named numbers.
    pub constants: &'a BTreeMap<String, f64>,
    /// Sizes, readable as integers.
    pub sizes: &'a BTreeMap<String, usize>,
    /// Steps of the scan, if there is one: name of the size, and its value.
    pub scan: Option<(String, usize)>,
    /// Carries of the scan: input, and the output of the step before.
    pub carry: Vec<(String, String)>,
    /// Variable over whose values an update runs; state is read without naming it.
    pub element: Option<(String, usize)>,
    /// Whether statistics over whole buffers may be written.
    pub statistics: bool,
    /// Finds a slot or state; reports what is wrong with the read, if anything is.
    pub scalar: &'a FindScalar<'a>,
}

/// Gives equations their meaning.
///
/// The program is returned also where the report is not empty; it is then of no use.
pub fn elaborate(declared: &[Declared], statements: &[Statement], scope: &Scope<'_>, report: &mut Report) -> Program {
    let mut e = Elaborator::new(scope, report);
    for d in declared {
        e.declare(d);
    }
    e.add_carries();
    e.later = statements.iter().map(|s| s.target.name.text.clone()).collect();
    for s in statements {
        e.statement(s);
    }
    e.check_outputs(declared);
    e.finish()
}

/// The variable over the elements of measured buffers.
const ELEMENT: &str = "e";
/// The variable over the steps of a scan.
const STEP: &str = "step";

struct Elaborator<'a, 'r> {
    scope: &'a Scope<'a>,
    report: &'r mut Report,
    program: Program,
    names: BTreeMap<String, TensorId>,
    assigned: BTreeMap<TensorId, Loc>,
    sliced: BTreeMap<TensorId, bool>,
    step: Option<VarId>,
    element: Option<VarId>,
    /// Variables in force, innermost last; an extent not yet known is `None`.
    vars: Vec<(String, VarId)>,
    extents: Vec<Option<usize>>,
    out: Vec<Assign>,
    /// All names that an equation of the list assigns.
    later: BTreeSet<String>,
    /// Values whose own equation is at fault, and reads of them: what follows from a fault is not reported again.
    broken: BTreeSet<TensorId>,
    broken_reads: usize,
}

impl<'a, 'r> Elaborator<'a, 'r> {
    fn new(scope: &'a Scope<'a>, report: &'r mut Report) -> Self {
        let mut e = Self {
            scope,
            report,
            program: Program::default(),
            names: BTreeMap::new(),
            assigned: BTreeMap::new(),
            sliced: BTreeMap::new(),
            step: None,
            element: None,
            vars: Vec::new(),
            extents: Vec::new(),
            out: Vec::new(),
            later: BTreeSet::new(),
            broken: BTreeSet::new(),
            broken_reads: 0,
        };
        e.step = scope.scan.as_ref().map(|(_, extent)| e.add_var(STEP, Some(*extent)));
        e.element = scope.element.as_ref().map(|(name, extent)| e.add_var(name, Some(*extent)));
        e
    }

    fn add_var(&mut self, name: &str, extent: Option<usize>) -> VarId {
        self.extents.push(extent);
        self.program.add_var(name, extent.unwrap_or(0))
    }

    fn declare(&mut self, d: &Declared) {
        let mut shape = d.shape.clone();
        if d.sliced
            && let Some((_, steps)) = &self.scope.scan
        {
            shape.insert(0, *steps);
        }
        let id = self.program.add_tensor(Tensor {
            name: d.name.clone(),
            role: d.role,
            elem: d.elem,
            shape,
            loc: d.loc.clone(),
        });
        self.sliced.insert(id, d.sliced);
        if d.role == Role::BlockCount {
            self.names.insert(format!("count.{}", d.name), id);
        } else if let Role::Next { .. } = d.role {
            self.names.insert(format!("next.{}", d.name), id);
        } else {
            self.names.insert(d.name.clone(), id);
        }
        if !matches!(d.role, Role::Output | Role::Local | Role::Next { .. } | Role::BlockCount) {
            self.assigned.insert(id, d.loc.clone());
        }
    }

    /// A carried input is no input: it is the output of the step before.
    fn add_carries(&mut self) {
        for (input, output) in &self.scope.carry {
            if let (Some(&to), Some(&from)) = (self.names.get(input), self.names.get(output)) {
                self.program.tensors[to].role = Role::Carry { from };
            }
        }
    }

    fn statement(&mut self, s: &Statement) {
        let key = match (s.target.next, s.target.count) {
            (true, _) => format!("next.{}", s.target.name.text),
            (_, true) => format!("count.{}", s.target.name.text),
            _ => s.target.name.text.clone(),
        };
        let declared = self.names.get(&key).copied();
        if !self.may_assign(s, declared) || !self.is_small(s) {
            declared.into_iter().for_each(|t| self.give_up(t, &s.target.name.loc));
            return;
        }
        let before = self.faults();
        self.vars.clear();
        let index = self.target_index(s, declared);
        let elem = declared.map_or(Elem::Real, |t| self.program.tensors[t].elem);
        let mut value = self.value(s, elem, declared.is_some());
        if let Some(when) = &s.when {
            value = self.when(s, when, value, declared);
        }
        self.resolve_extents(s, &index, before);
        let Some(tensor) = declared.or_else(|| self.add_local(s, &index, &value)) else {
            return;
        };
        self.assigned.insert(tensor, s.target.name.loc.clone());
        if self.faults() > before {
            self.broken.insert(tensor);
        }
        let full = self.full_index(tensor, index);
        self.push(tensor, full, value, &s.value.loc);
    }

    /// Findings so far, and reads of what they spoilt.
    fn faults(&self) -> usize {
        self.report.len() + self.broken_reads
    }

    /// A value whose equation cannot be read counts as given, so that nothing is said of it twice.
    fn give_up(&mut self, tensor: TensorId, loc: &Loc) {
        self.assigned.entry(tensor).or_insert_with(|| loc.clone());
        self.broken.insert(tensor);
    }

    /// Functions such as `square` repeat their argument: nested, they would fill any memory.
    fn is_small(&mut self, s: &Statement) -> bool {
        let small = weight(&s.value).max(s.when.as_ref().map_or(0, weight)) <= MOST_PARTS;
        if !small {
            self.report.push(Code::EquationTooLarge, &s.value.loc, "written out, this has too many parts");
        }
        small
    }

    fn push(&mut self, tensor: TensorId, index: Vec<VarId>, value: Expr, loc: &Loc) {
        self.out.push(Assign { tensor, index, value, loc: loc.clone() });
    }

    fn full_index(&self, tensor: TensorId, index: Vec<VarId>) -> Vec<VarId> {
        let step = self.step.filter(|_| self.sliced.get(&tensor).copied().unwrap_or(false));
        let implicit = self.element.filter(|_| index.is_empty() && self.program.tensors[tensor].shape.len() == 1);
        step.into_iter().chain(implicit).chain(index).collect()
    }

    fn may_assign(&mut self, s: &Statement, declared: Option<TensorId>) -> bool {
        let name = &s.target.name;
        if s.target.count && declared.is_none() {
            let label = "elements are counted in an update over a group";
            self.report.push_note(Code::WriteForbidden, &name.loc, label, "count there, or sum in a producer");
            return false;
        }
        if s.target.next && declared.is_none() {
            let known = self.names.keys().filter_map(|n| n.strip_prefix("next."));
            let label = format!("no state `{}` here", name.text);
            self.report.push_unknown(Code::NameUnknown, &name.loc, label, &name.text, known);
            return false;
        }
        let Some(tensor) = declared else {
            let kind = match &name.text {
                text if self.scope.constants.contains_key(text) => "constant",
                text if self.scope.sizes.contains_key(text) => "size",
                _ => return true,
            };
            let label = format!("`{}` is a {kind}", name.text);
            self.report.push_note(Code::AssignedTwice, &name.loc, label, "give the value another name");
            return false;
        };
        let role = self.program.tensors[tensor].role;
        if !matches!(role, Role::Output | Role::Next { .. } | Role::Local | Role::BlockCount) {
            let label = format!("`{}` is {} here", name.text, role_name(role));
            self.report.push(Code::WriteForbidden, &name.loc, label);
            return false;
        }
        if self.assigned.contains_key(&tensor) {
            self.report.push(Code::AssignedTwice, &name.loc, format!("`{}` already has a value", name.text));
            return false;
        }
        true
    }

    fn target_index(&mut self, s: &Statement, declared: Option<TensorId>) -> Vec<VarId> {
        let shape = declared.map(|t| self.own_shape(t));
        let implicit = s.target.indices.is_empty() && self.element.is_some();
        if let Some(shape) = &shape
            && shape.len() != s.target.indices.len()
            && !(implicit && shape.len() == 1)
        {
            let label = rank_label(&s.target.name.text, shape.len(), s.target.indices.len());
            self.report.push(Code::RankMismatch, &s.target.name.loc, label);
        }
        let mut index = Vec::new();
        for (n, name) in s.target.indices.iter().enumerate() {
            let told = s.target.extents.get(n).and_then(Option::as_ref).and_then(|e| self.told_extent(e));
            let own = shape.as_ref().and_then(|shape| shape.get(n).copied());
            self.check_told(told, own, name);
            let extent = own.or(told);
            let element = self.element.filter(|e| self.program.vars[*e].name == name.text);
            let var = element.unwrap_or_else(|| self.add_var(&name.text, extent));
            self.vars.push((name.text.clone(), var));
            index.push(var);
        }
        if let (Some(element), Some(tensor)) = (self.element, declared) {
            self.check_own_element(s, element, tensor, &index);
        }
        index
    }

    /// How far an index is said to run.
    fn told_extent(&mut self, extent: &Extent) -> Option<usize> {
        match extent {
            Extent::Known(extent) => Some(*extent),
            Extent::Sizes(names) => {
                names.iter().map(|name| self.size(name)).try_fold(1, |all: usize, one| all.checked_mul(one?))
            }
        }
    }

    fn size(&mut self, name: &Name) -> Option<usize> {
        let size = self.scope.sizes.get(&name.text).copied();
        if size.is_none() {
            let known = self.scope.sizes.keys().map(String::as_str);
            let label = format!("no size `{}`", name.text);
            self.report.push_unknown(Code::SizeUnknown, &name.loc, label, &name.text, known);
        }
        size
    }

    fn check_told(&mut self, told: Option<usize>, own: Option<usize>, index: &Name) {
        if let (Some(told), Some(own)) = (told, own)
            && told != own
        {
            let label = format!("`{}` has {told} values here, {own} as declared", index.text);
            self.report.push(Code::ExtentConflict, &index.loc, label);
        }
    }

    /// An update gives the element that it is at and no other: another thread is at that one.
    fn check_own_element(&mut self, s: &Statement, element: VarId, tensor: TensorId, index: &[VarId]) {
        let name = &s.target.name;
        let shape = self.own_shape(tensor);
        let runs = self.program.vars[element].clone();
        if self.program.tensors[tensor].role != Role::Output || shape.len() > 1 {
            return;
        }
        if shape.is_empty() || index.first().is_some_and(|v| *v != element) {
            let label = format!("the update runs over `{}`, and gives only that element", runs.name);
            let note = format!("write `{}[{}]`, or let the update run over another size", name.text, runs.name);
            self.report.push_note(Code::WriteForbidden, &name.loc, label, note);
        } else if shape != [runs.extent] {
            let label = format!("`{}` has {} elements, the update runs over {}", name.text, shape[0], runs.extent);
            self.report.push_note(Code::ExtentConflict, &name.loc, label, "give both the same size");
        }
    }

    /// Extents without the scan's own.
    fn own_shape(&self, tensor: TensorId) -> Vec<usize> {
        let shape = &self.program.tensors[tensor].shape;
        let skip = usize::from(self.step.is_some() && self.sliced.get(&tensor).copied().unwrap_or(false));
        shape[skip.min(shape.len())..].to_vec()
    }

    fn value(&mut self, s: &Statement, elem: Elem, declared: bool) -> Expr {
        if let ExprKind::Call(name, args) = &s.value.kind
            && name.text == "softmax"
        {
            return self.softmax(name, args);
        }
        let value = self.expr(&s.value);
        if declared { self.convert(value, elem, &s.value.loc) } else { self.settle(value) }
    }

    /// A plain integer literal becomes real: locals are integers only where something integer is read.
    fn settle(&self, value: Expr) -> Expr {
        match value {
            Expr::Int(n) => Expr::Real(n as f64),
            value => value,
        }
    }

    fn when(&mut self, s: &Statement, when: &Ast, value: Expr, declared: Option<TensorId>) -> Expr {
        let condition = self.boolean(when);
        let old = declared.map(|t| self.program.tensors[t].role);
        let Some(Role::Next { of }) = old else {
            self.report.push_note(
                Code::WriteForbidden,
                &when.loc,
                format!("`{}` has no old value to keep, so it takes no `when`", s.target.name.text),
                "only `next.NAME` takes one; elsewhere write select(condition, a, b)",
            );
            return value;
        };
        let index = self.implicit_index(of);
        Expr::select(condition, value, Expr::Load(of, index))
    }

    fn implicit_index(&self, tensor: TensorId) -> Vec<Expr> {
        let implicit = self.element.filter(|_| self.program.tensors[tensor].shape.len() == 1);
        implicit.into_iter().map(Expr::Var).collect()
    }

    fn resolve_extents(&mut self, s: &Statement, index: &[VarId], before: usize) {
        let is_told = self.faults() > before;
        for (name, var) in s.target.indices.iter().zip(index) {
            if self.extents[*var].is_none() && !is_told {
                self.report.push(Code::IndexUnbound, &name.loc, format!("nothing tells how far `{}` runs", name.text));
            }
        }
        for (var, extent) in self.program.vars.iter_mut().zip(&self.extents) {
            var.extent = extent.unwrap_or(0);
        }
    }

    fn add_local(&mut self, s: &Statement, index: &[VarId], value: &Expr) -> Option<TensorId> {
        let elem = self.program.elem(value);
        let mut shape: Vec<usize> = index.iter().map(|v| self.program.vars[*v].extent).collect();
        if self.element.is_some() && index.is_empty() {
            shape = self.element.map(|e| self.program.vars[e].extent).into_iter().collect();
        }
        if let Some(step) = self.step {
            shape.insert(0, self.program.vars[step].extent);
        }
        let name = s.target.name.text.clone();
        let id = self.program.add_tensor(Tensor {
            name: name.clone(),
            role: Role::Local,
            elem,
            shape,
            loc: s.target.name.loc.clone(),
        });
        self.sliced.insert(id, self.step.is_some());
        self.names.insert(name, id);
        Some(id)
    }

    /// `softmax(k, e)` for the index k of the left side: shifted by the maximum, which has no derivative of its own.
    /// `softmax(k, e, live)` runs over those alone that are live; the others are 0, and all are where none is live.
    fn softmax(&mut self, name: &Name, args: &[Ast]) -> Expr {
        let (Some(over), Some(body)) = (args.first(), args.get(1)) else {
            let label = "an index and an expression are needed";
            self.report.push_note(Code::ArityMismatch, &name.loc, label, "write softmax(k, e[k])");
            return Expr::Real(0.0);
        };
        let var = match &over.kind {
            ExprKind::Name(n) => self.lookup_var(n),
            _ => None,
        };
        let Some(var) = var.filter(|_| args.len() <= 3) else {
            self.report.push_note(
                Code::IndexUnbound,
                &over.loc,
                "this is no index of the left side",
                "softmax runs over one of them, as in `p[k] = softmax(k, e[k])`",
            );
            return Expr::Real(0.0);
        };
        let body = self.real(body);
        let live = args.get(2).map(|live| self.boolean(live));
        // The maximum stands inside the total, so that each has a variable of its own.
        let [of_top, of_total] =
            [(); 2].map(|()| self.add_var(&self.program.vars[var].name.clone(), self.extents[var]));
        let reduce = |op, over, e: &Expr| Expr::Reduce(op, vec![over], Box::new(e.substitute(&[var], &[over])));
        let masked = |e: Expr, other: f64| match &live {
            Some(live) => Expr::select(live.clone(), e, Expr::Real(other)),
            None => e,
        };
        let highest = reduce(Reduction::Max, of_top, &masked(body.clone(), f64::NEG_INFINITY));
        let top = Expr::Unary(UnaryFn::Stop, Box::new(highest));
        let shifted = masked(Expr::sub(body, top), 0.0);
        let weight = masked(Expr::Unary(UnaryFn::Exp, Box::new(shifted)), 0.0);
        let total = reduce(Reduction::Sum, of_total, &weight);
        // The largest weight is 1, so a smaller total means that none is live.
        let total = match live {
            Some(_) => Expr::Binary(BinaryFn::Max, Box::new(total), Box::new(Expr::Real(1.0))),
            None => total,
        };
        Expr::div(weight, total)
    }

    fn lookup_var(&self, name: &str) -> Option<VarId> {
        self.vars.iter().rev().find(|(n, _)| n == name).map(|(_, v)| *v)
    }

    fn expr(&mut self, ast: &Ast) -> Expr {
        match &ast.kind {
            ExprKind::Float(x) => Expr::Real(*x),
            ExprKind::Int(n) => Expr::Int(*n),
            ExprKind::Name(name) => self.name(name, &ast.loc),
            ExprKind::Index(name, args) => self.load(name, args),
            ExprKind::Call(name, args) => self.call(name, args, &ast.loc),
            ExprKind::Read(when, name, member) => self.scalar(*when, name, member.as_ref()),
            ExprKind::Unary(UnaryOp::Neg, a) => {
                let a = self.expr(a);
                Expr::neg(a)
            }
            ExprKind::Unary(UnaryOp::Not, a) => Expr::Unary(UnaryFn::Not, Box::new(self.boolean(a))),
            ExprKind::Binary(op, a, b) => self.binary(*op, a, b),
        }
    }

    fn name(&mut self, name: &str, loc: &Loc) -> Expr {
        if let Some(var) = self.lookup_var(name) {
            return Expr::Var(var);
        }
        if let Some(&tensor) = self.names.get(name) {
            return self.whole(tensor, name, loc);
        }
        if let Some(var) = self.element.filter(|e| self.program.vars[*e].name == name) {
            return Expr::Var(var);
        }
        if let Some(size) = self.scope.sizes.get(name) {
            return Expr::Int(*size as i64);
        }
        if let Some(value) = self.scope.constants.get(name) {
            return Expr::Real(*value);
        }
        self.unknown(name, loc);
        Expr::Real(0.0)
    }

    fn unknown(&mut self, name: &str, loc: &Loc) {
        if self.later.contains(name) {
            let note = "move its equation up: an equation reads what stands above it";
            let label = format!("`{name}` has no value yet");
            return self.report.push_note(Code::NameUnknown, loc, label, note);
        }
        let vars = self.vars.iter().map(|(n, _)| n.as_str());
        let sizes = self.scope.sizes.keys().chain(self.scope.constants.keys()).map(String::as_str);
        let known = self.names.keys().map(String::as_str).chain(vars).chain(sizes);
        let label = format!("`{name}` is no tensor, index, size or constant");
        self.report.push_unknown(Code::NameUnknown, loc, label, name, known);
    }

    fn whole(&mut self, tensor: TensorId, name: &str, loc: &Loc) -> Expr {
        let rank = self.own_shape(tensor).len();
        let implicit = self.element.is_some() && rank == 1;
        if self.is_walked(tensor) && !implicit {
            self.refuse_walked(tensor, name, loc, 0);
        } else if rank > 0 && !implicit {
            self.report.push_note(
                Code::RankMismatch,
                loc,
                rank_label(name, rank, 0),
                format!("name the element, as in `{name}[{}]`", ["i", "j", "k", "l"][..rank.min(4)].join(",")),
            );
        }
        if implicit {
            self.check_element(tensor, name, loc);
        }
        self.check_assigned(tensor, name, loc);
        let index = self.full_index(tensor, Vec::new());
        Expr::Load(tensor, index.into_iter().map(Expr::Var).collect())
    }

    /// Without an index, an update reads the element that it is at: both must have as many.
    fn check_element(&mut self, tensor: TensorId, name: &str, loc: &Loc) {
        let runs = self.element.and_then(|e| self.extents[e]);
        let extent = self.own_shape(tensor).first().copied();
        if let (Some(runs), Some(extent)) = (runs, extent)
            && runs != extent
            && !self.scope.statistics
        {
            let count = |n: usize| if n == 0 { "any number".to_owned() } else { n.to_string() };
            let label = format!("`{name}` has {} elements, this runs over {}", count(extent), count(runs));
            let note = format!("name the element that is meant, as in `{name}[0]`");
            self.report.push_note(Code::ExtentConflict, loc, label, note);
        }
    }

    fn check_assigned(&mut self, tensor: TensorId, name: &str, loc: &Loc) {
        self.broken_reads += usize::from(self.broken.contains(&tensor));
        if !self.assigned.contains_key(&tensor) {
            let note = "move its equation up: an equation reads what stands above it";
            let label = format!("`{name}` has no value yet");
            self.report.push_note(Code::NameUnknown, loc, label, note);
        }
    }

    fn load(&mut self, name: &Name, args: &[Ast]) -> Expr {
        let Some(&tensor) = self.names.get(&name.text) else {
            self.unknown(&name.text, &name.loc);
            return Expr::Real(0.0);
        };
        self.check_assigned(tensor, &name.text, &name.loc);
        let mut shape = self.own_shape(tensor);
        // In a statistic the row is the element at hand; only what is inside the row is named.
        let row = self.element.filter(|_| self.scope.statistics && shape.len() == args.len() + 1);
        if row.is_some() {
            shape.remove(0);
        } else if self.is_walked(tensor) {
            self.refuse_walked(tensor, &name.text, &name.loc, args.len());
            return Expr::Real(0.0);
        }
        if shape.len() != args.len() {
            let label = rank_label(&name.text, shape.len(), args.len());
            self.report.push(Code::RankMismatch, &name.loc, label);
            return Expr::Real(0.0);
        }
        let step = self.step.filter(|_| self.sliced.get(&tensor).copied().unwrap_or(false));
        let mut index: Vec<Expr> = step.into_iter().chain(row).map(Expr::Var).collect();
        for (arg, extent) in args.iter().zip(shape) {
            index.push(self.index(arg, extent));
        }
        Expr::Load(tensor, index)
    }

    /// Whether a producer reads the tensor: it has no elements but those that a statistic walks over.
    fn is_walked(&self, tensor: TensorId) -> bool {
        self.scope.statistics && self.program.tensors[tensor].role == Role::Table
    }

    fn refuse_walked(&mut self, tensor: TensorId, name: &str, loc: &Loc, given: usize) {
        let rank = self.own_shape(tensor).len().saturating_sub(1);
        let (label, note) = match self.element {
            None => {
                (format!("`{name}` stands in no statistic"), "measure it, as in `mean(x)`, `p99(abs(x))` or `max(x)`")
            }
            Some(_) => (
                format!("a row of {}", rank_label(name, rank, given)),
                "a statistic walks over all rows: name only what is inside a row",
            ),
        };
        self.report.push_note(Code::RankMismatch, loc, label, note);
    }

    fn index(&mut self, arg: &Ast, extent: usize) -> Expr {
        if let ExprKind::Name(name) = &arg.kind
            && let Some(var) = self.lookup_var(name)
        {
            self.bind_extent(var, extent, name, &arg.loc);
            return Expr::Var(var);
        }
        if let ExprKind::Name(name) = &arg.kind
            && let Some(var) = self.element.filter(|e| self.program.vars[*e].name == *name)
        {
            self.bind_extent(var, extent, name, &arg.loc);
        }
        let index = self.expr(arg);
        self.check_inside(&index, extent, &arg.loc);
        if self.program.elem(&index) != Elem::Int {
            let label = format!("an index is an integer, this is {}", type_name(self.program.elem(&index)));
            self.report.push(Code::TypeMismatch, &arg.loc, label);
        }
        index
    }

    /// A gather is held inside its tensor when it runs; a number that never fits is a slip.
    fn check_inside(&mut self, index: &Expr, extent: usize, loc: &Loc) {
        let at = match index {
            Expr::Int(n) => *n,
            Expr::Unary(UnaryFn::Neg, a) => match **a {
                Expr::Int(n) => -n,
                _ => return,
            },
            _ => return,
        };
        if at < 0 || (extent > 0 && at >= extent as i64) {
            let label = match extent {
                0 => format!("{at} is below 0"),
                extent => format!("{at} is not within 0 and {}", extent - 1),
            };
            self.report.push(Code::IndexOutside, loc, label);
        }
    }

    fn bind_extent(&mut self, var: VarId, extent: usize, name: &str, loc: &Loc) {
        match self.extents[var] {
            _ if extent == 0 => {}
            None => self.extents[var] = Some(extent),
            Some(known) if known == extent => {}
            Some(known) => {
                let label = format!("`{name}` has {extent} values here, {known} before");
                self.report.push(Code::ExtentConflict, loc, label);
            }
        }
    }

    fn scalar(&mut self, when: When, name: &Name, member: Option<&Name>) -> Expr {
        let scalar = self.scope.scalar;
        let Some(read) = scalar(when, name, member, self.report) else {
            return Expr::Real(0.0);
        };
        let index = match self.program.scalars.iter().position(|s| *s == read) {
            Some(index) => index,
            None => {
                self.program.scalars.push(read);
                self.program.scalars.len() - 1
            }
        };
        Expr::Scalar(index)
    }

    fn binary(&mut self, op: BinaryOp, a: &Ast, b: &Ast) -> Expr {
        let f = match op {
            BinaryOp::And | BinaryOp::Or => {
                let f = if op == BinaryOp::And { BinaryFn::And } else { BinaryFn::Or };
                let (a, b) = (self.boolean(a), self.boolean(b));
                return Expr::Binary(f, Box::new(a), Box::new(b));
            }
            BinaryOp::Add => BinaryFn::Add,
            BinaryOp::Sub => BinaryFn::Sub,
            BinaryOp::Mul => BinaryFn::Mul,
            BinaryOp::Div => BinaryFn::Div,
            BinaryOp::Lt => BinaryFn::Lt,
            BinaryOp::Le => BinaryFn::Le,
            BinaryOp::Gt => BinaryFn::Gt,
            BinaryOp::Ge => BinaryFn::Ge,
            BinaryOp::Eq => BinaryFn::Eq,
            BinaryOp::Ne => BinaryFn::Ne,
        };
        let (x, y) = (self.expr(a), self.expr(b));
        let (x, y) = self.join(x, y, a, b);
        folded(f, &x, &y).unwrap_or_else(|| Expr::Binary(f, Box::new(x), Box::new(y)))
    }

    /// Both sides as one type: integers become real beside a real.
    fn join(&mut self, x: Expr, y: Expr, a: &Ast, b: &Ast) -> (Expr, Expr) {
        match (self.program.elem(&x), self.program.elem(&y)) {
            (Elem::Int, Elem::Int) => (x, y),
            // One finding is enough where both sides are wrong.
            (Elem::Bool, Elem::Bool) => (self.convert(x, Elem::Real, &a.loc), y),
            _ => (self.convert(x, Elem::Real, &a.loc), self.convert(y, Elem::Real, &b.loc)),
        }
    }

    fn convert(&mut self, value: Expr, to: Elem, loc: &Loc) -> Expr {
        match (self.program.elem(&value), to) {
            (from, to) if from == to => value,
            (Elem::Int, Elem::Real) => match value {
                Expr::Int(n) => Expr::Real(n as f64),
                value => Expr::ToReal(Box::new(value)),
            },
            (from, to) => {
                self.report.push(
                    Code::TypeMismatch,
                    loc,
                    format!("{} stands where {} is needed", type_name(from), type_name(to)),
                );
                placeholder(to)
            }
        }
    }

    fn boolean(&mut self, ast: &Ast) -> Expr {
        let value = self.expr(ast);
        self.convert(value, Elem::Bool, &ast.loc)
    }

    fn real(&mut self, ast: &Ast) -> Expr {
        let value = self.expr(ast);
        self.convert(value, Elem::Real, &ast.loc)
    }

    fn call(&mut self, name: &Name, args: &[Ast], loc: &Loc) -> Expr {
        if self.scope.statistics
            && let Some(kind) = self.statistic_kind(name, args)
        {
            return self.statistic(kind, args.last(), loc);
        }
        if self.is_reduction(name, args) {
            return self.reduction(name, args);
        }
        if let (Some(f), [arg]) = (unary_fn(&name.text), args) {
            let arg = self.real(arg);
            return Expr::Unary(f, Box::new(arg));
        }
        if let (Some(f), [arg]) = (made_of_others(&name.text), args) {
            return f(self.real(arg));
        }
        match (name.text.as_str(), args) {
            ("select", [condition, a, b]) => {
                let condition = self.boolean(condition);
                let (x, y) = (self.expr(a), self.expr(b));
                let (x, y) = if self.program.elem(&x) == Elem::Bool {
                    let y = self.convert(y, Elem::Bool, &b.loc);
                    (x, y)
                } else {
                    self.join(x, y, a, b)
                };
                Expr::select(condition, x, y)
            }
            ("min" | "max", [a, b]) => {
                let f = if name.text == "min" { BinaryFn::Min } else { BinaryFn::Max };
                let (x, y) = (self.expr(a), self.expr(b));
                let (x, y) = self.join(x, y, a, b);
                Expr::Binary(f, Box::new(x), Box::new(y))
            }
            ("softmax", _) => {
                self.report.push_note(
                    Code::FunctionUnknown,
                    &name.loc,
                    "inside an expression there is no softmax",
                    "give it an equation of its own: it stands alone on the right side",
                );
                Expr::Real(0.0)
            }
            _ => self.unknown_call(name, args, loc),
        }
    }

    fn statistic_kind(&mut self, name: &Name, args: &[Ast]) -> Option<StatisticKind> {
        Some(match (name.text.as_str(), args) {
            ("quantile", [Ast { kind: ExprKind::Float(q), .. }, _]) if (0.0..=1.0).contains(q) => {
                StatisticKind::Quantile(*q)
            }
            ("p99", [_]) => StatisticKind::Quantile(0.99),
            ("sum", [_]) => StatisticKind::Sum,
            ("mean", [_]) => StatisticKind::Mean,
            ("rms", [_]) => StatisticKind::Rms,
            ("norm", [_]) => StatisticKind::Norm,
            ("max", [_]) => StatisticKind::Max,
            _ => return None,
        })
    }

    /// A statistic of each element's value; equal statistics are measured once.
    fn statistic(&mut self, kind: StatisticKind, arg: Option<&Ast>, loc: &Loc) -> Expr {
        let outer = self.element;
        let element =
            self.program.vars.iter().position(|v| v.name == ELEMENT).unwrap_or_else(|| self.add_var(ELEMENT, Some(0)));
        self.element = Some(element);
        let value = arg.map_or(Expr::Real(0.0), |arg| self.real(arg));
        self.element = outer;
        let known = self.program.statistics.iter().find(|s| s.kind == kind && s.value == value);
        let tensor = match known {
            Some(known) => known.tensor,
            None => {
                let name = format!("stat_{}", self.program.statistics.len());
                let tensor =
                    Tensor { name, role: Role::Statistic, elem: Elem::Real, shape: Vec::new(), loc: loc.clone() };
                let tensor = self.program.add_tensor(tensor);
                self.program.statistics.push(Statistic { kind, value, element, tensor });
                tensor
            }
        };
        Expr::Load(tensor, Vec::new())
    }

    fn unknown_call(&mut self, name: &Name, args: &[Ast], loc: &Loc) -> Expr {
        let is_statistic = self.scope.statistics && STATISTICS.contains(&name.text.as_str());
        match FUNCTIONS.contains(&name.text.as_str()) || is_statistic {
            true => {
                let label = match args.len() {
                    1 => format!("`{}` with 1 argument", name.text),
                    count => format!("`{}` with {count} arguments", name.text),
                };
                let note = format!("write {}", usage(&name.text, self.scope.statistics));
                self.report.push_note(Code::ArityMismatch, loc, label, note);
            }
            false => self.unknown_function(name),
        }
        Expr::Real(0.0)
    }

    fn unknown_function(&mut self, name: &Name) {
        let label = format!("no function `{}`", name.text);
        let is_statistic = STATISTICS.contains(&name.text.as_str());
        match is_statistic && !self.scope.statistics {
            true => self.report.push_note(
                Code::FunctionUnknown,
                &name.loc,
                format!("`{}` measures whole buffers, which only a producer does", name.text),
                "read the producer's slot here",
            ),
            false => {
                self.report.push_unknown(Code::FunctionUnknown, &name.loc, label, &name.text, FUNCTIONS.iter().copied())
            }
        }
    }

    fn is_reduction(&self, name: &Name, args: &[Ast]) -> bool {
        let [Ast { kind: ExprKind::Name(index), .. }, _] = args else {
            return false;
        };
        let fresh = !self.names.contains_key(index)
            && !self.scope.constants.contains_key(index)
            && !self.scope.sizes.contains_key(index);
        matches!(name.text.as_str(), "sum" | "mean")
            || (matches!(name.text.as_str(), "max" | "min") && fresh && self.lookup_var(index).is_none())
    }

    fn reduction(&mut self, name: &Name, args: &[Ast]) -> Expr {
        let ExprKind::Name(index) = &args[0].kind else {
            return Expr::Real(0.0);
        };
        let before = self.faults();
        let var = self.add_var(index, None);
        self.vars.push((index.clone(), var));
        let body = self.real(&args[1]);
        self.vars.pop();
        let Some(extent) = self.extents[var] else {
            if self.faults() == before {
                self.report.push(Code::ExtentUnknown, &args[0].loc, format!("nothing tells how far `{index}` runs"));
            }
            return Expr::Real(0.0);
        };
        self.program.vars[var].extent = extent;
        let reduce = |op| Expr::Reduce(op, vec![var], Box::new(body.clone()));
        match name.text.as_str() {
            "sum" => reduce(Reduction::Sum),
            "mean" => Expr::mul(reduce(Reduction::Sum), Expr::Real(1.0 / extent as f64)),
            "max" => reduce(Reduction::Max),
            _ => reduce(Reduction::Min),
        }
    }

    fn check_outputs(&mut self, declared: &[Declared]) {
        for (id, tensor) in self.program.tensors.iter().enumerate() {
            if matches!(tensor.role, Role::Output | Role::Local | Role::Next { .. }) && !self.assigned.contains_key(&id)
            {
                let next = if matches!(tensor.role, Role::Next { .. }) { "next." } else { "" };
                let loc = declared.get(id).map_or(&tensor.loc, |d| &d.loc);
                self.report.push(Code::NotAssigned, loc, format!("no equation gives `{next}{}`", tensor.name));
            }
        }
    }

    fn finish(mut self) -> Program {
        let out = std::mem::take(&mut self.out);
        // Without a carry the steps know nothing of one another: their variable is an index like any other.
        self.program.body = match self.step.filter(|_| !self.scope.carry.is_empty()) {
            Some(var) => vec![Node::Scan(Scan { var, reversed: false, body: out })],
            None => out.into_iter().map(Node::Assign).collect(),
        };
        self.program
    }
}

/// Arithmetic of two numbers, in f64, so that `1 - 0.9` is rounded once.
fn folded(f: BinaryFn, x: &Expr, y: &Expr) -> Option<Expr> {
    let (Expr::Real(x), Expr::Real(y)) = (x, y) else {
        return None;
    };
    let value = match f {
        BinaryFn::Add => x + y,
        BinaryFn::Sub => x - y,
        BinaryFn::Mul => x * y,
        BinaryFn::Div => x / y,
        _ => return None,
    };
    // No literal holds what is not finite; the device computes it as written.
    value.is_finite().then_some(Expr::Real(value))
}

/// Functions of all equations.
const FUNCTIONS: &[&str] = &[
    "abs", "cos", "elu", "exp", "floor", "isfinite", "log", "log1p", "max", "mean", "min", "real", "relu", "select",
    "sigmoid", "silu", "sin", "softmax", "softplus", "sqrt", "square", "stop", "sum", "tanh",
];
/// Functions of producers' signals alone.
const STATISTICS: &[&str] = &["norm", "p99", "quantile", "rms"];

/// How a function is written.
fn usage(name: &str, statistics: bool) -> String {
    match name {
        "quantile" => "quantile(q, x) with a q of 0.0 to 1.0".to_owned(),
        "sum" | "mean" if statistics => format!("{name}(x), or {name}(k, x[k]) over an index"),
        "sum" | "mean" => format!("{name}(k, x[k]), with the index first"),
        "softmax" => "softmax(k, e[k]), or softmax(k, e[k], condition)".to_owned(),
        "min" | "max" => format!("{name}(a, b), or {name}(k, x[k]) over an index"),
        "select" => "select(condition, a, b)".to_owned(),
        name => format!("{name}(x)"),
    }
}

/// Most parts of an equation once functions that repeat their argument are written out.
const MOST_PARTS: usize = 4096;

/// Parts of an expression, written out.
fn weight(ast: &Ast) -> usize {
    let sum = |args: &[Ast]| args.iter().map(weight).fold(1, usize::saturating_add);
    match &ast.kind {
        ExprKind::Call(name, args) => {
            let times = match name.text.as_str() {
                "square" | "relu" | "silu" => 2,
                "elu" => 4,
                "softmax" => 6,
                _ => 1,
            };
            sum(args).saturating_mul(times)
        }
        ExprKind::Index(_, args) => sum(args),
        ExprKind::Unary(_, a) => weight(a).saturating_add(1),
        ExprKind::Binary(_, a, b) => weight(a).saturating_add(weight(b)).saturating_add(1),
        _ => 1,
    }
}

/// A value of the type that was needed.
fn placeholder(elem: Elem) -> Expr {
    match elem {
        Elem::Real => Expr::Real(0.0),
        Elem::Int => Expr::Int(0),
        Elem::Bool => Expr::Unary(UnaryFn::IsFinite, Box::new(Expr::Real(0.0))),
    }
}

fn rank_label(name: &str, rank: usize, given: usize) -> String {
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let given = match given {
        0 => "no index is given".to_owned(),
        1 => "1 index is given".to_owned(),
        n => format!("{n} indices are given"),
    };
    format!("`{name}` has {rank} dimension{}, {given}", plural(rank))
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Input | Role::Carry { .. } => "an input",
        Role::Table => "a table",
        Role::Param => "a parameter",
        Role::State => "the old value of a state",
        _ => "read only",
    }
}

/// Functions of one number that are written with others.
fn made_of_others(name: &str) -> Option<fn(Expr) -> Expr> {
    Some(match name {
        "real" => |a| a,
        "square" => |a| Expr::mul(a.clone(), a),
        "relu" => |a| {
            let positive = Expr::Binary(BinaryFn::Gt, Box::new(a.clone()), Box::new(Expr::Real(0.0)));
            Expr::select(positive, a, Expr::Real(0.0))
        },
        "silu" => |a| Expr::mul(a.clone(), Expr::Unary(UnaryFn::Sigmoid, Box::new(a))),
        "elu" => elu,
        _ => return None,
    })
}

/// `x > 0 ? x : exp(min(x, 0)) - 1`; the minimum keeps the side not taken finite.
fn elu(x: Expr) -> Expr {
    let positive = Expr::Binary(BinaryFn::Gt, Box::new(x.clone()), Box::new(Expr::Real(0.0)));
    let below = Expr::select(positive.clone(), Expr::Real(0.0), x.clone());
    let curve = Expr::sub(Expr::Unary(UnaryFn::Exp, Box::new(below)), Expr::Real(1.0));
    Expr::select(positive, x, curve)
}

fn unary_fn(name: &str) -> Option<UnaryFn> {
    Some(match name {
        "abs" => UnaryFn::Abs,
        "exp" => UnaryFn::Exp,
        "log" => UnaryFn::Log,
        "log1p" => UnaryFn::Log1p,
        "tanh" => UnaryFn::Tanh,
        "sigmoid" => UnaryFn::Sigmoid,
        "softplus" => UnaryFn::Softplus,
        "sqrt" => UnaryFn::Sqrt,
        "sin" => UnaryFn::Sin,
        "cos" => UnaryFn::Cos,
        "floor" => UnaryFn::Floor,
        "isfinite" => UnaryFn::IsFinite,
        "stop" => UnaryFn::Stop,
        _ => return None,
    })
}

fn type_name(elem: Elem) -> &'static str {
    match elem {
        Elem::Real => "a real number",
        Elem::Int => "an integer",
        Elem::Bool => "a truth value",
    }
}
