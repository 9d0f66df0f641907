//! Blocks that use other blocks: their equations become one list, each used block's names under a namespace.
//!
//! `use.each.block = "grn"` brings in `each.w_1`, `each.y` and so on. A use `over` a size stands for one block a value of
//! it: every name inside gets that index in front.

use std::collections::{BTreeMap, BTreeSet};

use super::network::{check_no_init, dimensions, extent, parts, shape_of};
use super::resolve::dims;
use crate::diagnostics::{Code, Loc, Report, nearest};
use crate::math::{Declared, Elem, Role};
use crate::names;
use crate::spec::entries::{self, Str, Tensor};
use crate::spec::equation::{Expr, ExprKind, Extent, Name, Statement, Target, parse_statements};
use crate::spec::{Entry, Spec, loc_of};

/// What the blocks that a block uses come to, together with its own equations.
pub struct Composed<'a> {
    /// All equations, in an order in which each reads what stands above it.
    pub statements: Vec<Statement>,
    /// Tensors of the used blocks, under their namespaces.
    pub declared: Vec<Declared>,
    /// Their parameters: full name, file and declaration.
    pub params: Vec<(String, usize, &'a Tensor)>,
    /// Names of the used blocks.
    pub blocks: BTreeSet<String>,
}

/// Writes out a block's equations with those of the blocks that it uses.
///
/// `declared` are the block's own tensors; `scanned` says whether a scan takes a slice of what is made inside.
pub fn compose<'a>(
    spec: &'a Spec,
    block: &'a Entry<entries::Block>,
    sizes: &BTreeMap<String, usize>,
    declared: &[Declared],
    scanned: bool,
    report: &mut Report,
) -> Composed<'a> {
    let statements = parse_statements(&spec.text(block.loc.file, &block.keys.math), report);
    let shapes = declared.iter().map(|d| (d.name.clone(), d.shape.clone())).collect();
    let mut level = Level::new(spec, block, sizes.clone(), shapes, &statements);
    let root_names = level.shapes.keys().chain(level.ranks.keys()).cloned().collect();
    let composed =
        Composed { statements: Vec::new(), declared: Vec::new(), params: Vec::new(), blocks: BTreeSet::new() };
    let mut composer =
        Composer { spec, report, scanned, root_names, path: vec![&block.name], failed: BTreeSet::new(), composed };
    composer.level(&mut level, statements);
    composer.composed
}

/// An index that every name inside a use gets in front.
#[derive(Clone)]
struct Lift {
    index: String,
    extent: usize,
}

/// One block, as the root or in use, and what its names mean.
struct Level<'a> {
    spec: &'a Spec,
    block: &'a Entry<entries::Block>,
    /// Namespace, with its dot; empty for the root.
    prefix: String,
    sizes: BTreeMap<String, usize>,
    /// Shapes of declared tensors and of the outputs of uses, without the lifts.
    shapes: BTreeMap<String, Vec<usize>>,
    /// Dimensions of what the equations make.
    ranks: BTreeMap<String, usize>,
    lifts: Vec<Lift>,
    /// Inputs that all instances of a lifted use share: how many lifts they have.
    shared: BTreeMap<String, usize>,
    /// Tables, and the root's name for them.
    tables: BTreeMap<String, String>,
    uses: BTreeMap<String, Progress>,
}

#[derive(Clone, Copy, PartialEq)]
enum Progress {
    Begun,
    Done,
}

impl<'a> Level<'a> {
    fn new(
        spec: &'a Spec,
        block: &'a Entry<entries::Block>,
        sizes: BTreeMap<String, usize>,
        shapes: BTreeMap<String, Vec<usize>>,
        statements: &[Statement],
    ) -> Self {
        let ranks = statements.iter().map(|s| (s.target.name.text.clone(), s.target.indices.len())).collect();
        let tables = block.keys.table.keys().map(|k| (k.get_ref().clone(), k.get_ref().clone())).collect();
        Self {
            spec,
            block,
            prefix: String::new(),
            sizes,
            shapes,
            ranks,
            lifts: Vec::new(),
            shared: BTreeMap::new(),
            tables,
            uses: BTreeMap::new(),
        }
    }

    fn is_root(&self) -> bool {
        self.prefix.is_empty()
    }

    fn is_own(&self, name: &str) -> bool {
        self.shapes.contains_key(name) || self.ranks.contains_key(name) || self.tables.contains_key(name)
    }

    /// Dimensions of a name, and its extents where they are known.
    fn rank(&self, name: &str) -> Option<(usize, Option<&[usize]>)> {
        match self.shapes.get(name) {
            Some(shape) => Some((shape.len(), Some(shape))),
            None => self.ranks.get(name).map(|rank| (*rank, None)),
        }
    }

    /// The root's name for a name of this level, and the lifts that it has.
    fn full(&self, name: &str) -> (String, &[Lift]) {
        if let Some(table) = self.tables.get(name) {
            return (table.clone(), &[]);
        }
        if !self.is_own(name) && self.spec.constants.iter().any(|c| c.name == name) {
            return (name.to_owned(), &[]);
        }
        let lifts = self.shared.get(name).map_or(self.lifts.len(), |count| *count);
        (format!("{}{name}", self.prefix), &self.lifts[..lifts])
    }

    /// An equation of this level as the root reads it.
    fn rewrite(&self, s: &Statement, root_names: &BTreeSet<String>) -> Statement {
        if self.is_root() {
            return s.clone();
        }
        let bound = self.bound(s, root_names);
        let (full, lifts) = self.full(&s.target.name.text);
        let loc = &s.target.name.loc;
        let mut indices: Vec<Name> = lifts.iter().map(|l| Name { text: l.index.clone(), loc: loc.clone() }).collect();
        let mut extents: Vec<Option<Extent>> = lifts.iter().map(|l| Some(Extent::Known(l.extent))).collect();
        for (index, extent) in s.target.indices.iter().zip(&s.target.extents) {
            indices.push(Name { text: bound[&index.text].clone(), loc: index.loc.clone() });
            extents.push(extent.clone().map(|extent| self.known(extent)));
        }
        let name = Name { text: full, loc: loc.clone() };
        Statement {
            target: Target { name, indices, extents, ..s.target.clone() },
            value: self.expr(&s.value, &bound),
            when: s.when.as_ref().map(|when| self.expr(when, &bound)),
        }
    }

    fn known(&self, extent: Extent) -> Extent {
        let Extent::Sizes(names) = &extent else { return extent };
        let known =
            names.iter().map(|name| self.sizes.get(&name.text)).try_fold(1, |all: usize, one| all.checked_mul(*one?));
        known.map_or(extent, Extent::Known)
    }

    /// Index names of an equation, and what they become beside the lifts and the root's own names.
    fn bound(&self, s: &Statement, root_names: &BTreeSet<String>) -> BTreeMap<String, String> {
        let mut names: BTreeSet<&str> = s.target.indices.iter().map(|i| i.text.as_str()).collect();
        for expr in std::iter::once(&s.value).chain(&s.when) {
            collect_bound(expr, &|name| self.is_own(name) || self.sizes.contains_key(name), &mut names);
        }
        let is_taken = |name: &str| self.lifts.iter().any(|l| l.index == name) || root_names.contains(name);
        let fresh = |name: &str| {
            let others = (2..).map(|n| format!("{name}_{n}"));
            std::iter::once(name.to_owned()).chain(others).find(|n| !is_taken(n)).unwrap_or_default()
        };
        names.into_iter().map(|name| (name.to_owned(), fresh(name))).collect()
    }

    fn expr(&self, expr: &Expr, bound: &BTreeMap<String, String>) -> Expr {
        let all = |args: &[Expr]| args.iter().map(|a| self.expr(a, bound)).collect::<Vec<_>>();
        let kind = match &expr.kind {
            ExprKind::Name(name) => self.name(name, &expr.loc, bound),
            ExprKind::Index(name, args) => {
                let (full, lifts) = self.full(&name.text);
                let args = lifted(lifts, &expr.loc).chain(all(args)).collect();
                ExprKind::Index(Name { text: full, loc: name.loc.clone() }, args)
            }
            ExprKind::Call(name, args) => ExprKind::Call(name.clone(), all(args)),
            ExprKind::Unary(op, a) => ExprKind::Unary(*op, Box::new(self.expr(a, bound))),
            ExprKind::Binary(op, a, b) => {
                ExprKind::Binary(*op, Box::new(self.expr(a, bound)), Box::new(self.expr(b, bound)))
            }
            ExprKind::Float(_) | ExprKind::Int(_) | ExprKind::Read(..) => expr.kind.clone(),
        };
        Expr { kind, loc: expr.loc.clone() }
    }

    fn name(&self, name: &str, loc: &Loc, bound: &BTreeMap<String, String>) -> ExprKind {
        if let Some(index) = bound.get(name) {
            return ExprKind::Name(index.clone());
        }
        if self.is_root() {
            return ExprKind::Name(name.to_owned());
        }
        if let Some(size) = self.sizes.get(name).filter(|_| !self.is_own(name)) {
            return ExprKind::Int(*size as i64);
        }
        match self.full(name) {
            (full, []) => ExprKind::Name(full),
            (full, lifts) => ExprKind::Index(Name { text: full, loc: loc.clone() }, lifted(lifts, loc).collect()),
        }
    }
}

fn lifted<'l>(lifts: &'l [Lift], loc: &'l Loc) -> impl Iterator<Item = Expr> + 'l {
    lifts.iter().map(|l| Expr { kind: ExprKind::Name(l.index.clone()), loc: loc.clone() })
}

/// Indices of reductions; `max(a, b)` of two values has none.
fn collect_bound<'e>(expr: &'e Expr, is_value: &dyn Fn(&str) -> bool, names: &mut BTreeSet<&'e str>) {
    if let ExprKind::Call(name, args) = &expr.kind
        && let [Expr { kind: ExprKind::Name(index), .. }, _, ..] = args.as_slice()
    {
        let reduces = matches!(name.text.as_str(), "sum" | "mean" | "softmax");
        let may_reduce = matches!(name.text.as_str(), "max" | "min");
        if reduces || (may_reduce && !is_value(index)) {
            names.insert(index);
        }
    }
    match &expr.kind {
        ExprKind::Index(_, args) | ExprKind::Call(_, args) => {
            args.iter().for_each(|a| collect_bound(a, is_value, names));
        }
        ExprKind::Unary(_, a) => collect_bound(a, is_value, names),
        ExprKind::Binary(_, a, b) => {
            collect_bound(a, is_value, names);
            collect_bound(b, is_value, names);
        }
        ExprKind::Name(_) | ExprKind::Float(_) | ExprKind::Int(_) | ExprKind::Read(..) => {}
    }
}

/// Namespaces that an equation reads from.
fn owners(s: &Statement) -> Vec<String> {
    let mut owners = Vec::new();
    for expr in std::iter::once(&s.value).chain(&s.when) {
        expr.visit(&mut |e| {
            let name = match &e.kind {
                ExprKind::Name(name) => name,
                ExprKind::Index(name, _) => &name.text,
                _ => return,
            };
            owners.extend(name.split_once('.').map(|(owner, _)| owner.to_owned()));
        });
    }
    owners
}

struct Composer<'a, 'r> {
    spec: &'a Spec,
    report: &'r mut Report,
    scanned: bool,
    root_names: BTreeSet<String>,
    /// Blocks in use around this one: none may use itself.
    path: Vec<&'a str>,
    /// Uses that something is said about already.
    failed: BTreeSet<String>,
    composed: Composed<'a>,
}

impl<'a> Composer<'a, '_> {
    fn level(&mut self, level: &mut Level<'a>, statements: Vec<Statement>) {
        for s in &statements {
            for owner in owners(s) {
                self.bring_in(level, &owner);
            }
            let statement = level.rewrite(s, &self.root_names);
            self.composed.statements.push(statement);
        }
        let file = level.block.loc.file;
        for (name, loc, _) in crate::spec::names(file, &level.block.keys.uses) {
            if !level.uses.contains_key(name) {
                let label = format!("no equation reads an output of `{name}`");
                self.report.push(Code::EntryUnused, &loc, label);
            }
        }
    }

    /// Puts the equations of a use in front of the first that reads it.
    fn bring_in(&mut self, level: &mut Level<'a>, name: &str) {
        let block = level.block;
        let file = block.loc.file;
        let Some((_, loc, keys)) = crate::spec::names(file, &block.keys.uses).find(|(n, ..)| *n == name) else {
            return;
        };
        match level.uses.get(name) {
            Some(Progress::Done) => return,
            Some(Progress::Begun) => {
                let label = format!("`{name}` waits for itself");
                let note = "let one of the uses in the circle read something else";
                return self.report.push_note(Code::StageCycle, &loc, label, note);
            }
            None => {}
        }
        level.uses.insert(name.to_owned(), Progress::Begun);
        super::network::check_name(name, &loc, self.report);
        for source in keys.input.values() {
            if let Some((owner, _)) = source.get_ref().split_once('.') {
                self.bring_in(level, owner);
            }
        }
        self.instance(level, name, keys);
        level.uses.insert(name.to_owned(), Progress::Done);
    }

    fn instance(&mut self, outer: &mut Level<'a>, name: &str, keys: &'a entries::Use) {
        let file = outer.block.loc.file;
        let Some(block) = self.used_block(file, keys) else {
            self.failed.insert(name.to_owned());
            return;
        };
        let lift = match &keys.over {
            Some(size) => match self.outer_size(outer, file, size) {
                Some(extent) => Some(Lift { index: lift_name(outer, size.get_ref()), extent }),
                None => return,
            },
            None => None,
        };
        let statements = parse_statements(&self.spec.text(block.loc.file, &block.keys.math), self.report);
        let mut inner = Level::new(self.spec, block, BTreeMap::new(), BTreeMap::new(), &statements);
        inner.prefix = format!("{}{name}.", outer.prefix);
        inner.lifts = outer.lifts.iter().cloned().chain(lift.clone()).collect();
        inner.tables.clear();
        self.bind(outer, &mut inner, keys, lift.as_ref());
        self.declare(&mut inner);
        self.copy_inputs(outer, &inner, keys);
        for (output, shape) in inner.block.keys.output.keys().filter_map(|k| inner.shapes.get_key_value(k.get_ref())) {
            let shape = lift.iter().map(|l| l.extent).chain(shape.iter().copied()).collect();
            outer.shapes.insert(names::stage_value(name, output), shape);
        }
        self.path.push(&block.name);
        self.level(&mut inner, statements);
        self.path.pop();
    }

    fn used_block(&mut self, file: usize, keys: &'a entries::Use) -> Option<&'a Entry<entries::Block>> {
        let loc = loc_of(file, &keys.block);
        let wanted = keys.block.get_ref();
        let Some(block) = self.spec.blocks.iter().find(|b| b.name == *wanted) else {
            let known = self.spec.blocks.iter().map(|b| b.name.as_str());
            self.report.push_unknown(Code::NameUnknown, &loc, format!("no block `{wanted}`"), wanted, known);
            return None;
        };
        if self.path.contains(&block.name.as_str()) {
            let note = "a block cannot hold itself: give the inner one equations of its own";
            self.report.push_note(Code::StageCycle, &loc, format!("`{wanted}` uses itself"), note);
            return None;
        }
        self.composed.blocks.insert(block.name.clone());
        Some(block)
    }

    fn outer_size(&mut self, outer: &Level<'a>, file: usize, size: &Str) -> Option<usize> {
        let factors = size.get_ref().split('*').map(|factor| extent(factor.trim(), &outer.sizes));
        let found = factors.filter(|size| *size != Some(0)).try_fold(1, |all: usize, one| all.checked_mul(one?));
        if found.is_none() {
            let known = outer.sizes.keys().map(String::as_str);
            let label = format!("the block has no size `{}`", size.get_ref());
            self.report.push_unknown(Code::SizeUnknown, &loc_of(file, size), label, size.get_ref(), known);
        }
        found
    }

    /// Finds the sizes of the used block: as written, from the shapes of its inputs, else of the same name outside.
    fn bind(&mut self, outer: &Level<'a>, inner: &mut Level<'a>, keys: &'a entries::Use, lift: Option<&Lift>) {
        let file = outer.block.loc.file;
        for (name, _, size) in crate::spec::names(file, &keys.size) {
            if let Some(size) = self.outer_size(outer, file, size) {
                inner.sizes.insert(name.to_owned(), size);
            }
        }
        self.check_inputs(inner, file, keys);
        let block = &inner.block.keys;
        let mut all_bound = true;
        for (name, tensor) in block.input.iter().map(|(k, t)| (k.get_ref(), t)) {
            let source = self.source(inner, name, file, keys);
            all_bound &= source.is_some_and(|source| self.bind_input(outer, inner, name, tensor, source, lift));
        }
        for name in block.table.keys().map(|k| k.get_ref()) {
            if let Some(source) = self.source(inner, name, file, keys) {
                self.bind_table(outer, inner, name, source);
            }
        }
        self.other_sizes(outer, inner, file, keys, all_bound);
    }

    /// A wire to an input that the block does not have.
    fn check_inputs(&mut self, inner: &Level<'a>, file: usize, keys: &entries::Use) {
        let block = &inner.block.keys;
        for (name, loc, _) in crate::spec::names(file, &keys.input) {
            let known = || block.input.keys().chain(block.table.keys()).map(|k| k.get_ref().as_str());
            if !known().any(|k| k == name) {
                let label = format!("the block `{}` has no input `{name}`", inner.block.name);
                self.report.push_unknown(Code::NameUnknown, &loc, label, name, known());
            }
        }
    }

    fn source(&mut self, inner: &Level<'a>, name: &str, file: usize, keys: &'a entries::Use) -> Option<&'a Str> {
        let source = keys.input.iter().find(|(k, _)| k.get_ref() == name).map(|(_, source)| source);
        if source.is_none() {
            let label = format!("`{name}` of the block `{}` has no source", inner.block.name);
            let note = "add it to the `input` of this use";
            self.report.push_note(Code::InputMissing, &loc_of(file, &keys.block), label, note);
        }
        source
    }

    /// Whether the source is there, so that its shape may tell a size.
    fn bind_input(
        &mut self,
        outer: &Level<'a>,
        inner: &mut Level<'a>,
        name: &str,
        tensor: &Tensor,
        source: &Str,
        lift: Option<&Lift>,
    ) -> bool {
        let loc = loc_of(outer.block.loc.file, source);
        let Some((rank, shape)) = outer.rank(source.get_ref()) else {
            self.unknown_source(outer, source, &loc);
            return false;
        };
        let dims = dims(self.spec, inner.block.loc.file, parts(tensor).0, self.report).unwrap_or_default();
        let fits = |lift: &Lift| shape.is_none_or(|shape| shape[0] == lift.extent);
        let is_lifted = lift.is_some_and(|lift| rank == dims.len() + 1 && fits(lift));
        if !is_lifted {
            inner.shared.insert(name.to_owned(), outer.lifts.len());
        }
        if rank != dims.len() + usize::from(is_lifted) {
            let label =
                format!("`{name}` of the block has {}, `{}` has {rank}", dimensions(dims.len()), source.get_ref());
            self.report.push(Code::ShapeMismatch, &loc, label);
            return false;
        }
        let Some(shape) = shape else { return true };
        for (dim, &found) in dims.iter().zip(&shape[usize::from(is_lifted)..]) {
            let known = dim.parse().unwrap_or_else(|_| *inner.sizes.entry(dim.clone()).or_insert(found));
            if known != found {
                let label = format!("`{dim}` of `{name}` is {known}, the source has {found}");
                self.report.push(Code::ShapeMismatch, &loc, label);
            }
        }
        true
    }

    /// What a use that failed, or one that waits for this one, would have given is no slip of its own.
    fn unknown_source(&mut self, outer: &Level<'a>, source: &Str, loc: &Loc) {
        let owner = source.get_ref().split_once('.').map(|(owner, _)| owner);
        if owner.is_some_and(|owner| outer.uses.get(owner) == Some(&Progress::Begun) || self.failed.contains(owner)) {
            return;
        }
        let known = outer.shapes.keys().chain(outer.ranks.keys()).map(String::as_str);
        let label = format!("no value `{}` here", source.get_ref());
        let cure = "wire it to an input, a value of the equations, or an output of another use, as in `norm.y`";
        match nearest(source.get_ref(), known) {
            Some(near) => self.report.push_note(Code::SourceUnknown, loc, label, format!("is `{near}` meant?")),
            None => self.report.push_note(Code::SourceUnknown, loc, label, cure),
        }
    }

    fn bind_table(&mut self, outer: &Level<'a>, inner: &mut Level<'a>, name: &str, source: &Str) {
        let Some(table) = outer.tables.get(source.get_ref()) else {
            let loc = loc_of(outer.block.loc.file, source);
            let label = format!("`{name}` is a table, which all samples share; `{}` is none", source.get_ref());
            let known = outer.tables.keys().map(String::as_str);
            return self.report.push_unknown(Code::SourceUnknown, &loc, label, source.get_ref(), known);
        };
        inner.tables.insert(name.to_owned(), table.clone());
    }

    fn other_sizes(
        &mut self,
        outer: &Level<'a>,
        inner: &mut Level<'a>,
        file: usize,
        keys: &entries::Use,
        all_bound: bool,
    ) {
        let block = &inner.block.keys;
        for (_, tensor) in block.input.iter().chain(&block.param).chain(&block.output) {
            for dim in dims(self.spec, inner.block.loc.file, parts(tensor).0, self.report).unwrap_or_default() {
                if extent(&dim, &inner.sizes).is_some() {
                    continue;
                }
                let size = outer.sizes.get(&dim).copied();
                if size.is_none() && all_bound {
                    let label = format!("how large is `{dim}` of the block `{}`?", inner.block.name);
                    let note = "give it in the `size` of this use";
                    self.report.push_note(Code::SizeUnknown, &loc_of(file, &keys.block), label, note);
                }
                inner.sizes.insert(dim, size.unwrap_or(1));
            }
        }
    }

    /// The used block's tensors become locals and parameters of the root.
    fn declare(&mut self, inner: &mut Level<'a>) {
        let block = inner.block;
        let file = block.loc.file;
        let kinds =
            [(&block.keys.input, Role::Input), (&block.keys.param, Role::Param), (&block.keys.output, Role::Output)];
        for (map, role) in kinds {
            for (name, loc, tensor) in crate::spec::names(file, map) {
                let (shape, elem) = shape_of(self.spec, file, tensor, &inner.sizes, self.report);
                if role != Role::Param {
                    check_no_init(file, tensor, self.report);
                }
                inner.shapes.insert(name.to_owned(), shape.clone());
                self.declare_one(inner, name, loc, (shape, elem), role);
                if role == Role::Param {
                    self.composed.params.push((inner.full(name).0, file, tensor));
                }
            }
        }
    }

    fn declare_one(&mut self, inner: &Level<'a>, name: &str, loc: Loc, (shape, elem): (Vec<usize>, Elem), role: Role) {
        let (full, lifts) = inner.full(name);
        let shape = lifts.iter().map(|l| l.extent).chain(shape).collect();
        let is_param = role == Role::Param;
        let role = if is_param { Role::Param } else { Role::Local };
        let sliced = self.scanned && !is_param;
        self.composed.declared.push(Declared { name: full, role, elem, shape, sliced, loc });
    }

    /// `each.a[m,i] = x[m,i]`: the normal form takes such copies out again.
    fn copy_inputs(&mut self, outer: &Level<'a>, inner: &Level<'a>, keys: &'a entries::Use) {
        let file = outer.block.loc.file;
        for (name, shape) in inner.block.keys.input.keys().filter_map(|k| inner.shapes.get_key_value(k.get_ref())) {
            let Some((_, source)) = keys.input.iter().find(|(k, _)| k.get_ref() == name) else { continue };
            let loc = loc_of(file, source);
            let (full, lifts) = inner.full(name);
            let (around, own) = lifts.split_at(outer.lifts.len());
            let dims = (0..shape.len()).map(|n| format!("i{n}"));
            let local: Vec<String> = own.iter().map(|l| l.index.clone()).chain(dims).collect();
            let bound = local.iter().map(|i| (i.clone(), i.clone())).collect();
            let value = outer.expr(&element(source.get_ref(), &local, &loc), &bound);
            let indices = around.iter().map(|l| l.index.clone()).chain(local);
            let indices: Vec<Name> = indices.map(|text| Name { text, loc: loc.clone() }).collect();
            let extents = vec![None; indices.len()];
            let name = Name { text: full, loc: loc.clone() };
            let target = Target { next: false, count: false, name, indices, extents };
            self.composed.statements.push(Statement { target, value, when: None });
        }
    }
}

/// `name[index, ...]`, or the plain name.
fn element(name: &str, index: &[String], loc: &Loc) -> Expr {
    let at = |text: &String| Expr { kind: ExprKind::Name(text.clone()), loc: loc.clone() };
    let kind = match index {
        [] => ExprKind::Name(name.to_owned()),
        index => ExprKind::Index(Name { text: name.to_owned(), loc: loc.clone() }, index.iter().map(at).collect()),
    };
    Expr { kind, loc: loc.clone() }
}

/// The size's name in small letters, or the first of its like that no lift around has.
fn lift_name(outer: &Level<'_>, size: &str) -> String {
    let base = match size.chars().next() {
        Some(c) if c.is_alphabetic() => size.to_lowercase(),
        _ => "n".to_owned(),
    };
    let others = (2..).map(|n| format!("{base}_{n}"));
    let is_taken = |name: &String| outer.lifts.iter().any(|l| l.index == *name);
    std::iter::once(base.clone()).chain(others).find(|name| !is_taken(name)).unwrap_or(base)
}
