//! Models: sizes, stages in order, parameters, groups.

use std::collections::{BTreeMap, BTreeSet};

use super::compose::{self, Composed};
use super::resolve::{dims, elem};
use super::types::{External, Group, Init, Network, Param, Schedule, Stage, Wire, WireSource};
use crate::diagnostics::{Code, Loc, Report};
use crate::math::{Declared, Elem, Role};
use crate::names;
use crate::spec::entries::{self, Gradients, Named, StageGrid, Str, Tensor};
use crate::spec::equation::Statement;
use crate::spec::{Entry, Spec, loc_of};

/// A model with its groups.
pub struct Resolved {
    pub network: Network,
    pub groups: Vec<GroupDraft>,
}

/// A group before it joins the model.
#[derive(Clone)]
pub struct GroupDraft {
    pub name: String,
    pub doc: String,
    pub optimizer: String,
    pub range: (usize, usize),
    pub index: u32,
    pub buffers: Vec<String>,
}

impl GroupDraft {
    /// The group.
    pub fn finish(self) -> Group {
        Group { name: self.name, doc: self.doc, optimizer: self.optimizer, range: self.range, buffers: self.buffers }
    }
}

/// Resolves the set's model, if it has one.
pub fn resolve(spec: &Spec, report: &mut Report) -> Option<Resolved> {
    let entry = spec.models.first()?;
    if let Some(second) = spec.models.get(1) {
        report.push_note(Code::EntryTwice, &second.loc, "a set has one model", "move it to a set of its own");
    }
    let sizes = sizes(entry, report);
    let mut r = Resolver {
        spec,
        entry,
        file: entry.loc.file,
        sizes,
        report,
        stages: Vec::new(),
        params: Vec::new(),
        used: BTreeSet::new(),
        failed: BTreeSet::new(),
    };
    // What cannot be found is reported; the placeholder lets the rest be checked all the same.
    let batch = r.size(&entry.keys.batch).unwrap_or(1);
    let externals = r.externals();
    r.check_threads(&entry.keys.schedule);
    r.stages(&externals, batch);
    let objective = r.objective().unwrap_or_default();
    let heads = r.heads();
    let groups = r.groups();
    r.check_used_blocks();
    let network = Network {
        name: entry.name.clone(),
        doc: entry.keys.doc.clone(),
        sizes: r.sizes,
        batch,
        externals,
        stages: r.stages,
        params: r.params,
        objective,
        heads,
        loc: entry.loc.clone(),
    };
    Some(Resolved { network, groups })
}

/// Sizes by name; one of 0 would leave nothing to compute, and 0 stands for any length.
fn sizes(entry: &Entry<entries::Model>, report: &mut Report) -> BTreeMap<String, usize> {
    let mut sizes = BTreeMap::new();
    for (name, value) in &entry.keys.size {
        check_name(name.get_ref(), &loc_of(entry.loc.file, name), report);
        let mut size = *value.get_ref() as usize;
        let loc = loc_of(entry.loc.file, value);
        if size == 0 {
            report.push(Code::SizeIllegal, &loc, format!("`{}` is 0", name.get_ref()));
            size = 1;
        }
        if size > MOST {
            report.push(Code::IndexTooLarge, &loc, format!("`{}` is 2^31 or more", name.get_ref()));
            size = 1;
        }
        sizes.insert(name.get_ref().clone(), size);
    }
    sizes
}

/// Names reach generated text, so they must be legal there.
pub fn check_name(name: &str, loc: &Loc, report: &mut Report) {
    if !names::is_legal(name) {
        report.push(Code::NameIllegal, loc, format!("`{name}` is not made like that"));
    }
}

/// Most elements of a tensor: an index is a 32-bit integer.
const MOST: usize = i32::MAX as usize;

/// Number of elements, if an index can name them all.
fn elements(shape: &[usize]) -> Option<usize> {
    let len = shape.iter().try_fold(1usize, |len, extent| len.checked_mul(*extent));
    len.filter(|len| *len <= MOST)
}

/// Shape and type of a named buffer of a model as a whole: outputs have the batch in front.
pub fn buffer(spec: &Spec, network: &Network, name: &str, report: &mut Report) -> Option<(Vec<usize>, Elem)> {
    if let Some(external) = network.externals.iter().find(|e| e.name == name) {
        return Some((external.shape.clone(), external.elem));
    }
    let (owner, output) = name.split_once('.')?;
    if let Some(stage) = network.stages.iter().find(|s| s.name == owner) {
        let (mut shape, elem) = output_shape(stage, output)?;
        shape.insert(0, network.batch);
        return Some((shape, elem));
    }
    update_output(spec, owner, output, &network.sizes, report)
}

/// Names of the buffers that externals and stages give.
pub fn buffers(network: &Network) -> Vec<String> {
    let outputs = network.stages.iter().flat_map(|s| {
        let outputs = s.declared.iter().filter(|d| d.role == Role::Output);
        outputs.map(|d| names::stage_value(&s.name, &d.name))
    });
    network.externals.iter().map(|e| e.name.clone()).chain(outputs).collect()
}

/// Extents of a declared tensor whose dimensions are sizes of the model.
pub fn shape_of(
    spec: &Spec,
    file: usize,
    tensor: &Tensor,
    sizes: &BTreeMap<String, usize>,
    report: &mut Report,
) -> (Vec<usize>, Elem) {
    let (shape, elem) = parts(tensor);
    (extents(spec, file, shape, sizes, report), elem)
}

/// Extents of a shape text; 0 for a leading `*`.
pub fn extents(
    spec: &Spec,
    file: usize,
    shape: &Str,
    sizes: &BTreeMap<String, usize>,
    report: &mut Report,
) -> Vec<usize> {
    let loc = loc_of(file, shape);
    let mut extents = Vec::new();
    for dim in dims(spec, file, shape, report).unwrap_or_default() {
        if dim.parse() == Ok(0) {
            report.push(Code::SizeIllegal, &loc, "an extent of 0 leaves no element");
        }
        match extent(&dim, sizes) {
            Some(extent) => extents.push(extent),
            None => {
                let known = sizes.keys().map(String::as_str);
                report.push_unknown(Code::SizeUnknown, &loc, format!("no size `{dim}`"), &dim, known);
            }
        }
    }
    if elements(&extents).is_none() {
        report.push(Code::IndexTooLarge, &loc, format!("{} elements", written_product(&extents)));
        extents.fill(1);
    }
    extents
}

/// Groups of a set without a model: lists of external sub-buffers, in the order of their indices.
pub fn external_groups(spec: &Spec, report: &mut Report) -> Vec<GroupDraft> {
    let mut groups = Vec::new();
    let mut owner: BTreeMap<&str, &str> = BTreeMap::new();
    for entry in &spec.groups {
        for pattern in &entry.keys.tensors {
            let loc = loc_of(entry.loc.file, pattern);
            report.push_note(
                Code::GroupEmpty,
                &loc,
                "the set has no model whose tensors this could name",
                "list `buffers`",
            );
        }
        for buffer in &entry.keys.buffers {
            let loc = loc_of(entry.loc.file, buffer);
            check_name(buffer.get_ref(), &loc, report);
            if let Some(other) = owner.insert(buffer.get_ref(), &entry.name) {
                let label = match other == entry.name {
                    true => format!("`{}` stands in `{other}` already", buffer.get_ref()),
                    false => format!("`{}` is in `{other}` too", buffer.get_ref()),
                };
                report.push(Code::ParamTwice, &loc, label);
            }
        }
        if entry.keys.buffers.is_empty() && entry.keys.tensors.is_empty() {
            let label = format!("`{}` lists no buffer", entry.name);
            report.push_note(
                Code::GroupEmpty,
                &entry.loc,
                label,
                "list `buffers`; one that may be absent is given no element at run time",
            );
        }
        check_optimizer(spec, entry, report);
        groups.push(draft(entry));
    }
    groups.sort_by(|a, b| (a.index, &a.name).cmp(&(b.index, &b.name)));
    check_places(spec, report);
    groups
}

/// A place that no group has would move the slots of those behind it; a place taken twice leaves their order to chance.
fn check_places(spec: &Spec, report: &mut Report) {
    let placed = spec.groups.iter().filter_map(|e| Some((*e.keys.index.as_ref()?.get_ref(), e)));
    let mut placed: Vec<(u32, &Entry<entries::Group>)> = placed.collect();
    placed.sort_by_key(|(index, _)| *index);
    let mut free = 0;
    for (index, entry) in placed {
        let loc = entry.keys.index.as_ref().map_or(entry.loc.clone(), |i| loc_of(entry.loc.file, i));
        if index < free {
            let label = format!("another group has the place {index} too");
            report.push_note(Code::SlotIndexTwice, &loc, label, "give each group a place of its own");
        } else if index > free {
            let label = format!("no group has the place {free}, so the slots of `{}` would lie there", entry.name);
            let cure = "keep a group that may be absent, and give its buffers no element at run time: it is not launched, \
                        and its slots stay";
            report.push_note(Code::ValueUnfit, &loc, label, cure);
        }
        free = index.saturating_add(1);
    }
}

fn draft(entry: &Entry<entries::Group>) -> GroupDraft {
    GroupDraft {
        name: entry.name.clone(),
        doc: entry.keys.doc.clone(),
        optimizer: entry.keys.optimizer.get_ref().clone(),
        range: (0, 0),
        index: entry.keys.index.as_ref().map_or(u32::MAX, |i| *i.get_ref()),
        buffers: entry.keys.buffers.iter().map(|b| b.get_ref().clone()).collect(),
    }
}

fn check_optimizer(spec: &Spec, entry: &Entry<entries::Group>, report: &mut Report) {
    let name = entry.keys.optimizer.get_ref();
    let update = spec.updates.iter().find(|u| u.name == *name);
    if update.is_none_or(|u| u.keys.over.get_ref() != "group") {
        let loc = loc_of(entry.loc.file, &entry.keys.optimizer);
        let known = spec.updates.iter().filter(|u| u.keys.over.get_ref() == "group");
        let label = format!("no update over a group is named `{name}`");
        report.push_unknown(Code::NameUnknown, &loc, label, name, known.map(|u| u.name.as_str()));
    }
}

fn written_product(extents: &[usize]) -> String {
    let extents: Vec<String> = extents.iter().map(usize::to_string).collect();
    extents.join(" × ")
}

/// Any length is for tables and for what the run fills, whose length the run knows; and it leads.
pub fn check_any_length(spec: &Spec, file: usize, shape: &Str, may_lead: bool, report: &mut Report) {
    let dims = dims(spec, file, shape, report).unwrap_or_default();
    let wrong = dims.iter().enumerate().any(|(n, dim)| dim == "*" && (n > 0 || !may_lead));
    if wrong {
        let label = match may_lead {
            true => "only the first dimension may have any length",
            false => "only a table or an external may have any length",
        };
        report.push(Code::ShapeSyntax, &loc_of(file, shape), label);
    }
}

fn update_output(
    spec: &Spec,
    owner: &str,
    output: &str,
    sizes: &BTreeMap<String, usize>,
    report: &mut Report,
) -> Option<(Vec<usize>, Elem)> {
    let update = spec.updates.iter().find(|u| u.name == owner)?;
    let (_, tensor) = update.keys.output.iter().find(|(k, _)| k.get_ref() == output)?;
    Some(shape_of(spec, update.loc.file, tensor, sizes, report))
}

fn output_shape(stage: &Stage, output: &str) -> Option<(Vec<usize>, Elem)> {
    let declared = stage.declared.iter().find(|d| d.name == output && d.role == Role::Output)?;
    let mut shape = declared.shape.clone();
    if let Some((_, steps)) = stage.scan.as_ref().or(stage.spread.as_ref()) {
        shape.insert(0, *steps);
    }
    Some((shape, declared.elem))
}

pub fn extent(dim: &str, sizes: &BTreeMap<String, usize>) -> Option<usize> {
    match dim {
        "*" => Some(0),
        dim => dim.parse().ok().or_else(|| sizes.get(dim).copied()),
    }
}

pub fn parts(tensor: &Tensor) -> (&Str, Elem) {
    match tensor {
        Tensor::Shape(shape) => (shape, Elem::Real),
        Tensor::Keys(keys) => (&keys.shape, elem(keys.elem)),
    }
}

struct Resolver<'a> {
    spec: &'a Spec,
    entry: &'a Entry<entries::Model>,
    file: usize,
    sizes: BTreeMap<String, usize>,
    report: &'a mut Report,
    stages: Vec<Stage>,
    params: Vec<Param>,
    /// Blocks that a stage holds.
    used: BTreeSet<String>,
    /// Stages and externals that something is said about already.
    failed: BTreeSet<String>,
}

/// A block fitted to a stage.
struct Bound {
    sizes: BTreeMap<String, usize>,
    wires: Vec<Wire>,
    scan: Option<(String, usize)>,
    spread: Option<(String, usize)>,
    carry: Vec<(String, String)>,
    declared: Vec<Declared>,
    schedule: Schedule,
}

/// Buffers that every set has.
const OWN_BUFFERS: &[&str] = &[
    "isv",
    "beside",
    "observed",
    "observed_unlisted",
    "smoothing",
    "smoothing_unlisted",
    "skipped",
    "skipped_unlisted",
    "state",
    "params",
    "grads",
    "gradient_scratch",
    "objective_seed",
];

/// A buffer that the run fills needs a name of its own beside those that every set has.
pub fn check_buffer_name(name: &str, loc: &Loc, report: &mut Report) {
    check_name(name, loc, report);
    if OWN_BUFFERS.contains(&name) {
        report.push(Code::NameCollides, loc, format!("`{name}` is a buffer that every set has"));
    }
}

impl<'a> Resolver<'a> {
    fn size(&mut self, name: &Str) -> Option<usize> {
        let size = self.sizes.get(name.get_ref()).copied();
        if size.is_none() {
            self.report.push_unknown(
                Code::SizeUnknown,
                &loc_of(self.file, name),
                format!("no size `{}`", name.get_ref()),
                name.get_ref(),
                self.sizes.keys().map(String::as_str),
            );
        }
        size
    }

    fn externals(&mut self) -> Vec<External> {
        let mut externals = Vec::new();
        for (name, loc, tensor) in crate::spec::names(self.file, &self.entry.keys.external) {
            let before = self.report.len();
            check_buffer_name(name, &loc, self.report);
            if let Some(other) = self.spec.externals.iter().find(|e| e.name == name) {
                let label = format!("`{name}` stands at {} too", self.spec.files.provenance(&other.loc));
                self.report.push(Code::EntryTwice, &loc, label);
            }
            check_any_length(self.spec, self.file, parts(tensor).0, true, self.report);
            check_no_init(self.file, tensor, self.report);
            let (shape, elem) = shape_of(self.spec, self.file, tensor, &self.sizes, self.report);
            if self.report.len() > before {
                self.failed.insert(name.to_owned());
            }
            externals.push(External { name: name.to_owned(), shape, elem });
        }
        externals
    }

    /// Stages in an order in which each reads what stands before it.
    fn stages(&mut self, externals: &[External], batch: usize) {
        let entry = self.entry;
        let mut waiting: Vec<(&str, Loc, &entries::Stage)> = crate::spec::names(self.file, &entry.keys.stage).collect();
        loop {
            let before = waiting.len();
            let ready = waiting.iter().position(|(_, _, stage)| self.is_ready(stage));
            if let Some(ready) = ready {
                let (name, loc, keys) = waiting.remove(ready);
                match self.stage(name, loc, keys, externals, batch) {
                    Some(stage) => self.stages.push(stage),
                    None => self.failed.extend([name.to_owned()]),
                }
            }
            if waiting.len() == before {
                break;
            }
        }
        self.report_cycles(&waiting);
        self.failed.extend(waiting.iter().map(|(name, ..)| (*name).to_owned()));
    }

    /// Of the stages that are left, those that wait for themselves; what merely waits for these is no slip of its own.
    fn report_cycles(&mut self, waiting: &[(&str, Loc, &entries::Stage)]) {
        for (name, loc, keys) in waiting {
            let mut path: Vec<&str> = Vec::new();
            let mut next = self.awaited(keys);
            while let Some(owner) = next.pop().filter(|_| !path.contains(name)) {
                let found = waiting.iter().find(|(other, ..)| *other == owner);
                if let Some((other, _, keys)) = found.filter(|(other, ..)| !path.contains(other)) {
                    path.push(other);
                    next.extend(self.awaited(keys));
                }
            }
            if path.contains(name) {
                let label = match path.as_slice() {
                    [_] => format!("`{name}` reads its own output"),
                    _ => format!("`{name}` waits for {}", quoted(&self.awaited(keys))),
                };
                self.report.push(Code::StageCycle, loc, label);
            }
        }
    }

    /// Stages that a stage reads from.
    fn awaited<'k>(&self, stage: &'k entries::Stage) -> Vec<&'k str> {
        let owners = stage.input.values().filter_map(|s| s.get_ref().split_once('.'));
        owners
            .map(|(owner, _)| owner)
            .filter(|owner| self.entry.keys.stage.keys().any(|k| k.get_ref() == owner))
            .collect()
    }

    fn is_ready(&self, stage: &entries::Stage) -> bool {
        let known = |owner: &&str| self.stages.iter().any(|s| s.name == **owner) || self.failed.contains(*owner);
        self.awaited(stage).iter().all(known)
    }

    fn stage(
        &mut self,
        name: &str,
        loc: Loc,
        keys: &'a entries::Stage,
        externals: &[External],
        batch: usize,
    ) -> Option<Stage> {
        check_name(name, &loc, self.report);
        self.check_threads(&keys.schedule);
        let block = self.block(keys)?;
        let mut bound = self.bound(block, keys, externals, batch)?;
        let samples = batch.saturating_mul(bound.spread.as_ref().map_or(1, |s| s.1));
        self.check_elements(name, &loc, &bound.declared, samples, bound.scan.as_ref().map_or(1, |s| s.1));
        let statements = self.composed(name, block, &mut bound);
        self.check_gradients_key(&keys.schedule, &bound.declared);
        Some(Stage {
            name: name.to_owned(),
            block: block.name.clone(),
            doc: block.keys.doc.clone(),
            sizes: bound.sizes,
            wires: bound.wires,
            scan: bound.scan,
            spread: bound.spread,
            carry: bound.carry,
            declared: bound.declared,
            statements,
            schedule: bound.schedule,
            loc,
            block_loc: block.loc.clone(),
        })
    }

    fn block(&mut self, keys: &entries::Stage) -> Option<&'a Entry<entries::Block>> {
        let (spec, wanted) = (self.spec, keys.block.get_ref());
        let block = spec.blocks.iter().find(|b| b.name == *wanted);
        if block.is_none() {
            let known = spec.blocks.iter().map(|b| b.name.as_str());
            let loc = loc_of(self.file, &keys.block);
            self.report.push_unknown(Code::NameUnknown, &loc, format!("no block `{wanted}`"), wanted, known);
        }
        block
    }

    /// Fits a block to what the stage wires it to.
    fn bound(
        &mut self,
        block: &'a Entry<entries::Block>,
        keys: &'a entries::Stage,
        externals: &[External],
        batch: usize,
    ) -> Option<Bound> {
        let over = match self.steps(keys) {
            Some(over) => Some((over.get_ref().clone(), self.size(over)?)),
            None => None,
        };
        let carry = self.carry(keys, block);
        let schedule = self.schedule(keys);
        let scan = over.as_ref().map(|s| s.1);
        let mut binder = Binder { r: self, block, keys, scan, sizes: BTreeMap::new(), sliced: BTreeSet::new() };
        binder.explicit_sizes();
        let wires = binder.wires(externals, batch, &carry);
        binder.other_sizes();
        let (scan, spread) = if binder.may_spread(&schedule) { (None, over) } else { (over, None) };
        binder.scan = scan.as_ref().map(|s| s.1);
        let declared = binder.declare(&carry);
        binder.check_carried(&carry, &declared);
        let sizes = binder.sizes;
        Some(Bound { sizes, wires, scan, spread, carry, declared, schedule })
    }

    /// The equations of a block with those of the blocks inside it, whose tensors join the declared ones.
    fn composed(&mut self, name: &str, block: &'a Entry<entries::Block>, bound: &mut Bound) -> Vec<Statement> {
        let before = self.report.len();
        let scanned = bound.scan.is_some();
        let composed = compose::compose(self.spec, block, &bound.sizes, &bound.declared, scanned, self.report);
        if self.report.len() > before {
            self.failed.insert(name.to_owned());
        }
        self.add_params(name, block, &bound.declared, &composed);
        self.used.insert(block.name.clone());
        self.used.extend(composed.blocks);
        bound.declared.extend(composed.declared);
        composed.statements
    }

    /// What the stage runs over: the steps of a scan, or values that know nothing of one another.
    fn steps<'k>(&mut self, keys: &'k entries::Stage) -> Option<&'k Str> {
        if let (Some(_), Some(each)) = (&keys.scan, &keys.each) {
            let label = "a stage with a `scan` runs over its steps already";
            self.report.push(Code::KeyIdle, &loc_of(self.file, each), label);
        }
        keys.scan.as_ref().map(|scan| &scan.over).or(keys.each.as_ref())
    }

    /// The stage's own keys win over the model's. What is applied to many values defers its gradients unless told otherwise: a
    /// sample of the scratch would be summed over all of them.
    fn schedule(&self, keys: &entries::Stage) -> Schedule {
        let (own, all) = (&keys.schedule, &self.entry.keys.schedule);
        let by_itself = if keys.each.is_some() { Gradients::Deferred } else { Gradients::default() };
        Schedule {
            threads: own.threads.as_ref().or(all.threads.as_ref()).map(|t| *t.get_ref()),
            grid: own.grid.or(all.grid).unwrap_or_default(),
            gradients: own.gradients.as_ref().or(all.gradients.as_ref()).map_or(by_itself, |g| *g.get_ref()),
        }
    }

    fn check_gradients_key(&mut self, own: &entries::Schedule, declared: &[Declared]) {
        if let Some(key) = own.gradients.as_ref().filter(|_| !declared.iter().any(|d| d.role == Role::Param)) {
            self.report.push(Code::KeyIdle, &loc_of(self.file, key), "the stage has no parameter");
        }
    }

    fn check_threads(&mut self, schedule: &entries::Schedule) {
        let threads = schedule.threads.as_ref();
        if let Some(threads) = threads.filter(|t| !(32..=1024).contains(t.get_ref()) || t.get_ref() % 32 != 0) {
            let label = format!("{} is no multiple of 32 up to 1024", threads.get_ref());
            self.report.push(Code::ThreadsIllegal, &loc_of(self.file, threads), label);
        }
    }

    /// Every element of a batch must have an index.
    fn check_elements(&mut self, stage: &str, loc: &Loc, declared: &[Declared], batch: usize, steps: usize) {
        for d in declared.iter().filter(|d| d.role == Role::Output) {
            let mut shape = vec![batch];
            shape.extend(d.sliced.then_some(steps));
            shape.extend(&d.shape);
            if elements(&shape).is_none() {
                let label = format!("`{stage}.{}` has {} elements", d.name, written_product(&shape));
                self.report.push(Code::IndexTooLarge, loc, label);
            }
        }
    }

    fn carry(&mut self, keys: &entries::Stage, block: &Entry<entries::Block>) -> Vec<(String, String)> {
        let mut carry = Vec::new();
        let pairs = keys.scan.iter().flat_map(|scan| crate::spec::names(self.file, &scan.carry));
        for (input, loc, output) in pairs {
            let has = |map: &Named<Tensor>, name: &str| map.keys().any(|k| k.get_ref() == name);
            if !has(&block.keys.input, input) {
                let label = format!("the block has no input `{input}`");
                self.report.push_unknown(Code::NameUnknown, &loc, label, input, keys_of(&block.keys.input));
            } else if !has(&block.keys.output, output.get_ref()) {
                let loc = loc_of(self.file, output);
                let label = format!("the block has no output `{}`", output.get_ref());
                self.report.push_unknown(Code::NameUnknown, &loc, label, output.get_ref(), keys_of(&block.keys.output));
            } else if let Some((name, _)) = keys.input.iter().find(|(k, _)| k.get_ref() == input) {
                let label = format!("`{input}` is carried from step to step, so nothing is wired to it");
                self.report.push_note(
                    Code::AssignedTwice,
                    &loc_of(self.file, name),
                    label,
                    "remove the wire, or the carry",
                );
            } else {
                carry.push((input.to_owned(), output.get_ref().clone()));
            }
        }
        carry
    }

    fn add_params(
        &mut self,
        stage: &str,
        block: &'a Entry<entries::Block>,
        declared: &[Declared],
        composed: &Composed<'a>,
    ) {
        let own = block.keys.param.iter().map(|(name, tensor)| (name.get_ref(), block.loc.file, tensor));
        let used = composed.params.iter().map(|(name, file, tensor)| (name, *file, *tensor));
        for (name, file, tensor) in own.chain(used) {
            let Some(d) = declared.iter().chain(&composed.declared).find(|d| d.name == *name) else {
                continue;
            };
            let init = match tensor {
                Tensor::Keys(entries::TensorKeys { init: Some(init), .. }) => self.init(init, file, &d.shape),
                _ if d.shape.len() - lifts(d, file, tensor, self.spec) >= 2 => Init::LecunUniform,
                _ => Init::Constant(0.0),
            };
            let path = names::stage_value(stage, name);
            self.params.push(Param { path, shape: d.shape.clone(), offset: 0, init, group: String::new() });
        }
    }

    fn init(&mut self, init: &Str, file: usize, shape: &[usize]) -> Init {
        let text = init.get_ref().trim();
        let argument = |name: &str| -> Option<f64> {
            text.strip_prefix(name)?
                .trim()
                .strip_prefix('(')?
                .strip_suffix(')')?
                .trim()
                .parse()
                .ok()
                .filter(|x: &f64| x.is_finite())
        };
        let known = match text {
            "zeros" => Some(Init::Constant(0.0)),
            "ones" => Some(Init::Constant(1.0)),
            "lecun_uniform" => Some(Init::LecunUniform),
            "glorot_uniform" => Some(Init::GlorotUniform),
            _ => argument("constant")
                .map(Init::Constant)
                .or_else(|| argument("uniform").map(Init::Uniform))
                .or_else(|| argument("lecun_uniform").and_then(|dims| lecun_over(dims, shape))),
        };
        if known.is_none() {
            self.report.push(Code::InitUnknown, &loc_of(file, init), format!("`{text}` is none"));
        }
        known.unwrap_or(Init::Constant(0.0))
    }

    fn stage_output(&mut self, value: &Str) -> Option<(usize, String)> {
        let found = value.get_ref().split_once('.').and_then(|(stage, output)| {
            let index = self.stages.iter().position(|s| s.name == stage)?;
            output_shape(&self.stages[index], output)?;
            Some((index, output.to_owned()))
        });
        let owner = value.get_ref().split('.').next().unwrap_or_default();
        if found.is_none() && !self.failed.contains(owner) {
            let outputs = self.outputs();
            self.report.push_unknown(
                Code::SourceUnknown,
                &loc_of(self.file, value),
                format!("no stage output `{}`", value.get_ref()),
                value.get_ref(),
                outputs.iter().map(String::as_str),
            );
        }
        found
    }

    /// Outputs of the stages so far, as they are written in a wire.
    fn outputs(&self) -> Vec<String> {
        let outputs = self.stages.iter().flat_map(|s| {
            let outputs = s.declared.iter().filter(|d| d.role == Role::Output);
            outputs.map(|d| names::stage_value(&s.name, &d.name))
        });
        outputs.collect()
    }

    fn objective(&mut self) -> Option<(usize, String)> {
        let value = &self.entry.keys.objective;
        let (stage, output) = self.stage_output(value)?;
        let (shape, elem) = output_shape(&self.stages[stage], &output)?;
        let label = match elem {
            _ if !shape.is_empty() => format!("`{output}` has {} elements a sample", written_product(&shape)),
            Elem::Real => return Some((stage, output)),
            _ => format!("`{output}` is an integer, which has no derivative"),
        };
        self.report.push(Code::ObjectiveShape, &loc_of(self.file, value), label);
        Some((stage, output))
    }

    fn heads(&mut self) -> Vec<(String, usize, String)> {
        let entry = self.entry;
        let mut heads = Vec::new();
        for (name, loc, value) in crate::spec::names(self.file, &entry.keys.head) {
            check_name(name, &loc, self.report);
            if let Some((stage, output)) = self.stage_output(value) {
                heads.push((name.to_owned(), stage, output));
            }
        }
        heads
    }

    /// Puts every parameter into its group and gives all their places.
    fn groups(&mut self) -> Vec<GroupDraft> {
        let spec = self.spec;
        let mut groups = Vec::new();
        for entry in &spec.groups {
            for pattern in &entry.keys.tensors {
                self.assign_group(entry, pattern);
            }
            if entry.keys.tensors.is_empty() {
                self.report.push(Code::GroupEmpty, &entry.loc, format!("`{}` has no pattern", entry.name));
            }
            self.check_idle(entry);
            check_optimizer(spec, entry, self.report);
            groups.push(draft(entry));
        }
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        self.check_owned();
        self.params.sort_by(|a, b| a.group.cmp(&b.group));
        let mut offset = 0;
        for param in &mut self.params {
            param.offset = offset;
            offset += param.len();
        }
        self.check_gradients(offset);
        for group in &mut groups {
            let members = self.params.iter().filter(|p| p.group == group.name);
            let start = members.clone().map(|p| p.offset).min().unwrap_or(0);
            group.range = (start, start + members.map(Param::len).sum::<usize>());
        }
        groups
    }

    /// With a model, its tensors are what a group holds, and names give the order.
    fn check_idle(&mut self, entry: &Entry<entries::Group>) {
        let file = entry.loc.file;
        for buffer in &entry.keys.buffers {
            let label = format!("`{}` would not be trained: the set has a model", buffer.get_ref());
            self.report.push_note(Code::KeyIdle, &loc_of(file, buffer), label, "name its tensors in `tensors`");
        }
        if let Some(index) = &entry.keys.index {
            let label = "the groups of a model stand in the order of their names";
            self.report.push(Code::KeyIdle, &loc_of(file, index), label);
        }
    }

    /// The caret stands below the stage whose parameter nobody trains.
    fn check_owned(&mut self) {
        for param in self.params.iter().filter(|p| p.group.is_empty()) {
            let owner = param.path.split('.').next().unwrap_or_default();
            let stage = self.stages.iter().find(|s| s.name == owner);
            let label = format!("`{}` is in no group, so nothing trains it", param.path);
            let loc = stage.map_or(&self.entry.loc, |s| &s.loc);
            self.report.push(Code::ParamUnowned, loc, label);
        }
    }

    /// Each sample has gradients of its own until they are summed.
    fn check_gradients(&mut self, params: usize) {
        let Some(batch) = self.sizes.get(self.entry.keys.batch.get_ref()) else {
            return;
        };
        if elements(&[*batch, params]).is_none() {
            let label = format!("the gradients of a batch have {} elements", written_product(&[*batch, params]));
            self.report.push(Code::IndexTooLarge, &self.entry.loc, label);
        }
    }

    fn assign_group(&mut self, entry: &Entry<entries::Group>, pattern: &Str) {
        let loc = loc_of(entry.loc.file, pattern);
        let text = pattern.get_ref();
        let matches = |path: &str| match text.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == text,
        };
        let mut found = false;
        for param in self.params.iter_mut().filter(|p| matches(&p.path)) {
            found = true;
            if !param.group.is_empty() {
                let label = format!("`{}` is in `{}` too", param.path, param.group);
                self.report.push(Code::ParamTwice, &loc, label);
            }
            param.group = entry.name.clone();
        }
        let owner = text.split('.').next().unwrap_or_default();
        if !found && !self.failed.contains(owner) && (text != "*" || self.failed.is_empty()) {
            let paths: Vec<String> = self.params.iter().map(|p| p.path.clone()).collect();
            let label = format!("`{text}` names no trainable tensor");
            let known = paths.iter().map(String::as_str);
            self.report.push_unknown(Code::GroupEmpty, &loc, label, text, known);
        }
    }

    /// A block of the set itself that no stage uses would be a kernel that nobody launches.
    fn check_used_blocks(&mut self) {
        let used = &self.used;
        for block in self.spec.blocks.iter().filter(|b| b.loc.file < self.spec.first_included && self.failed.is_empty())
        {
            if !used.contains(&block.name) {
                self.report.push(Code::EntryUnused, &block.loc, format!("no stage uses `{}`", block.name));
            }
        }
    }
}

/// Dimensions that the uses around a parameter put in front of its own.
fn lifts(d: &Declared, file: usize, tensor: &Tensor, spec: &Spec) -> usize {
    let own = dims(spec, file, parts(tensor).0, &mut Report::default()).map_or(0, |dims| dims.len());
    d.shape.len().saturating_sub(own)
}

/// As `lecun_uniform`, where so many of the last dimensions are what a row sums over.
fn lecun_over(dims: f64, shape: &[usize]) -> Option<Init> {
    let dims = (dims.fract() == 0.0 && dims >= 1.0 && dims <= shape.len() as f64).then_some(dims as usize)?;
    let fan_in: usize = shape[shape.len() - dims..].iter().product();
    Some(Init::Uniform((3.0 / fan_in as f64).sqrt()))
}

/// Fits a block's dimensions to the shapes of what it is wired to.
struct Binder<'b, 'a> {
    r: &'b mut Resolver<'a>,
    block: &'a Entry<entries::Block>,
    keys: &'a entries::Stage,
    scan: Option<usize>,
    sizes: BTreeMap<String, usize>,
    sliced: BTreeSet<String>,
}

impl<'a> Binder<'_, 'a> {
    fn explicit_sizes(&mut self) {
        for (name, _, size) in crate::spec::names(self.r.file, &self.keys.size) {
            if let Some(size) = self.r.size(size) {
                self.sizes.insert(name.to_owned(), size);
            }
        }
    }

    fn wires(&mut self, externals: &[External], batch: usize, carry: &[(String, String)]) -> Vec<Wire> {
        let mut wires = Vec::new();
        let (block, keys) = (self.block, self.keys);
        for (name, loc, _) in crate::spec::names(self.r.file, &keys.input) {
            let known = block.keys.input.keys().chain(block.keys.table.keys()).any(|k| k.get_ref() == name);
            if !known {
                self.r.report.push_unknown(
                    Code::NameUnknown,
                    &loc,
                    format!("the block `{}` has no input `{name}`", block.name),
                    name,
                    keys_of(&block.keys.input).chain(keys_of(&block.keys.table)),
                );
            }
        }
        let inputs = block.keys.input.iter().map(|(k, t)| (k, t, false));
        let tables = block.keys.table.iter().map(|(k, t)| (k, t, true));
        for (name, tensor, is_table) in inputs.chain(tables) {
            if carry.iter().any(|(input, _)| input == name.get_ref()) {
                continue;
            }
            let Some((_, source)) = keys.input.iter().find(|(k, _)| *k == name) else {
                let at = loc_of(self.r.file, &keys.block);
                self.r.report.push(
                    Code::InputMissing,
                    &at,
                    format!("`{}` of the block `{}` has no source", name.get_ref(), block.name),
                );
                continue;
            };
            wires.extend(self.wire(name.get_ref(), tensor, is_table, source, externals, batch));
        }
        wires
    }

    fn wire(
        &mut self,
        name: &str,
        tensor: &Tensor,
        is_table: bool,
        source: &Str,
        externals: &[External],
        batch: usize,
    ) -> Option<Wire> {
        let loc = loc_of(self.r.file, source);
        let owner = source.get_ref().split('.').next().unwrap_or_default();
        if self.r.failed.contains(owner) {
            return None;
        }
        let Some((from, shape, elem)) = self.find(source.get_ref(), externals) else {
            let outputs = self.r.outputs();
            let known = externals.iter().map(|e| &e.name).chain(&outputs).map(String::as_str);
            let label = format!("no value `{}`", source.get_ref());
            self.r.report.push_unknown(Code::SourceUnknown, &loc, label, source.get_ref(), known);
            return None;
        };
        let batched = matches!(from, WireSource::Stage(..));
        let shape = self.shape_of_one(name, is_table, (shape, batched), batch, &loc)?;
        let (_, wanted) = parts(tensor);
        if elem != wanted {
            let called = |elem| if elem == Elem::Int { "integers" } else { "real numbers" };
            let label = format!("`{name}` takes {}, this holds {}", called(wanted), called(elem));
            let note = "compare the two types; `type = \"i32\"` says that a tensor holds integers";
            self.r.report.push_note(Code::TypeMismatch, &loc, label, note);
        }
        self.unify(name, tensor, &shape, &loc);
        Some(Wire { input: name.to_owned(), from })
    }

    /// The shape that a block sees: of a table as it is, of an input without the batch, which a stage's value does not name.
    fn shape_of_one(
        &mut self,
        name: &str,
        is_table: bool,
        (mut shape, batched): (Vec<usize>, bool),
        batch: usize,
        loc: &Loc,
    ) -> Option<Vec<usize>> {
        if is_table && batched {
            let label = format!("`{name}` is a table, which all samples share; a stage gives one a sample");
            let note = "declare it as an `input` of the block";
            self.r.report.push_note(Code::ShapeMismatch, loc, label, note);
            return None;
        }
        if !is_table && !batched {
            if shape.first() != Some(&batch) {
                let label =
                    format!("an input is given for each sample: the batch, {batch}, must be its first dimension");
                self.r.report.push(Code::ShapeMismatch, loc, label);
                return None;
            }
            shape.remove(0);
        }
        Some(shape)
    }

    fn find(&mut self, source: &str, externals: &[External]) -> Option<(WireSource, Vec<usize>, Elem)> {
        if let Some(e) = externals.iter().find(|e| e.name == source) {
            return Some((WireSource::External(e.name.clone()), e.shape.clone(), e.elem));
        }
        let (owner, output) = source.split_once('.')?;
        if let Some(index) = self.r.stages.iter().position(|s| s.name == owner) {
            let (shape, elem) = output_shape(&self.r.stages[index], output)?;
            return Some((WireSource::Stage(index, output.to_owned()), shape, elem));
        }
        let (shape, elem) = update_output(self.r.spec, owner, output, &self.r.sizes, self.r.report)?;
        Some((WireSource::Update(owner.to_owned(), output.to_owned()), shape, elem))
    }

    fn unify(&mut self, name: &str, tensor: &Tensor, shape: &[usize], loc: &Loc) {
        let (text, _) = parts(tensor);
        let Some(dims) = dims(self.r.spec, self.block.loc.file, text, self.r.report) else {
            return;
        };
        let mut shape = shape;
        if let Some(steps) = self.scan
            && shape.len() == dims.len() + 1
            && shape[0] == steps
        {
            self.sliced.insert(name.to_owned());
            shape = &shape[1..];
        }
        if shape.len() != dims.len() {
            let label = format!("`{name}` has {}, the source {}", dimensions(dims.len()), shape.len());
            return self.r.report.push(Code::ShapeMismatch, loc, label);
        }
        for (dim, &extent) in dims.iter().zip(shape) {
            let fixed = if dim == "*" { Some(extent) } else { dim.parse().ok() };
            // A source of any length fits any extent only where the input leaves it open too.
            let known = fixed.unwrap_or_else(|| *self.sizes.entry(dim.clone()).or_insert(extent));
            if known != extent {
                self.r.report.push(
                    Code::ShapeMismatch,
                    loc,
                    format!("`{dim}` of `{name}` is {known}, the source has {}", length(extent)),
                );
            }
        }
    }

    /// Dimensions that no input tells are sizes of the model of the same name.
    fn other_sizes(&mut self) {
        let block = self.block;
        let keys = &block.keys;
        let tensors = keys.input.iter().chain(&keys.table).chain(&keys.param).chain(&keys.output);
        for (_, tensor) in tensors {
            let (text, _) = parts(tensor);
            for dim in dims(self.r.spec, block.loc.file, text, self.r.report).unwrap_or_default() {
                if extent(&dim, &self.sizes).is_some() {
                    continue;
                }
                match self.r.sizes.get(&dim) {
                    Some(&size) => {
                        self.sizes.insert(dim, size);
                    }
                    None => {
                        let at = loc_of(self.r.file, &self.keys.block);
                        self.r.report.push(
                            Code::SizeUnknown,
                            &at,
                            format!("how large is `{dim}` of the block `{}`?", block.name),
                        );
                        self.sizes.insert(dim, 1);
                    }
                }
            }
        }
    }

    /// Whether each value that the block is applied to may have a CUDA block of its own: it then stands for a sample, so that
    /// every input has a slice for it, and no sample has a gradient.
    fn may_spread(&self, schedule: &Schedule) -> bool {
        self.keys.each.is_some()
            && self.keys.scan.is_none()
            && schedule.grid == StageGrid::Batch
            && schedule.gradients == Gradients::Deferred
            && self.block.keys.input.keys().all(|name| self.sliced.contains(name.get_ref()))
    }

    fn declare(&mut self, carry: &[(String, String)]) -> Vec<Declared> {
        let block = self.block;
        let keys = &block.keys;
        let scanned = self.scan.is_some();
        let mut declared = Vec::new();
        let kinds = [
            (&keys.input, Role::Input),
            (&keys.table, Role::Table),
            (&keys.param, Role::Param),
            (&keys.output, Role::Output),
        ];
        for (map, role) in kinds {
            for (name, loc, tensor) in crate::spec::names(block.loc.file, map) {
                self.check_tensor(name, &loc, tensor, role, &declared);
                let (shape, elem) = shape_of(self.r.spec, block.loc.file, tensor, &self.sizes, self.r.report);
                let carried = carry.iter().any(|(input, _)| input == name);
                let sliced = scanned && (role == Role::Output || carried || self.sliced.contains(name));
                declared.push(Declared { name: name.to_owned(), role, elem, shape, sliced, loc });
            }
        }
        declared
    }

    fn check_tensor(&mut self, name: &str, loc: &Loc, tensor: &Tensor, role: Role, before: &[Declared]) {
        let file = self.block.loc.file;
        check_name(name, loc, self.r.report);
        check_any_length(self.r.spec, file, parts(tensor).0, role == Role::Table, self.r.report);
        if role != Role::Param {
            check_no_init(file, tensor, self.r.report);
        }
        if let Some(other) = before.iter().find(|d| d.name == name) {
            let place = self.r.spec.files.provenance(&other.loc);
            let label = format!("`{name}` stands at {place} too");
            let note = "rename one of them: the equations could not tell them apart";
            self.r.report.push_note(Code::EntryTwice, loc, label, note);
        }
    }

    /// What is carried must fit what carries it.
    fn check_carried(&mut self, carry: &[(String, String)], declared: &[Declared]) {
        for (input, output) in carry {
            let find = |name: &str| declared.iter().find(|d| d.name == name);
            let (Some(to), Some(from)) = (find(input), find(output)) else {
                continue;
            };
            if to.shape != from.shape || to.elem != from.elem {
                let label = format!("`{input}` is {}, `{output}` is {}", described(to), described(from));
                let at = loc_of(self.r.file, &self.keys.block);
                let note = "a carried input has the shape and the type of its output";
                self.r.report.push_note(Code::ShapeMismatch, &at, label, note);
            }
        }
    }
}

fn described(d: &Declared) -> String {
    let kind = if d.elem == Elem::Int { "i32" } else { "f32" };
    let extents: Vec<String> = d.shape.iter().map(usize::to_string).collect();
    format!("{kind} [{}]", extents.join(", "))
}

pub fn dimensions(count: usize) -> String {
    match count {
        1 => "1 dimension".to_owned(),
        count => format!("{count} dimensions"),
    }
}

/// An extent as people read it.
fn length(extent: usize) -> String {
    match extent {
        0 => "any length".to_owned(),
        extent => extent.to_string(),
    }
}

fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
    names.join(", ")
}

fn keys_of<T>(map: &Named<T>) -> impl Iterator<Item = &str> {
    map.keys().map(|k| k.get_ref().as_str())
}

/// Only a parameter has a start; elsewhere it would be ignored.
pub fn check_no_init(file: usize, tensor: &Tensor, report: &mut Report) {
    if let Tensor::Keys(entries::TensorKeys { init: Some(init), .. }) = tensor {
        report.push_note(Code::InitUnknown, &loc_of(file, init), "only a parameter is given a start", "remove it");
    }
}
