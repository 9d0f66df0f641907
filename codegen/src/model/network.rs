//! Models: sizes, stages in order, parameters, groups.

use std::collections::{BTreeMap, BTreeSet};

use super::resolve::{dims, elem};
use super::types::{External, Group, Init, Network, Param, Stage, Wire, WireSource};
use crate::diagnostics::{Code, Loc, Report};
use crate::math::{Declared, Elem, Role};
use crate::names;
use crate::spec::entries::{self, Named, Str, Tensor};
use crate::spec::equation::parse_statements;
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
        report.push_note(
            Code::EntryTwice,
            &second.loc,
            "a set has one model",
            "move it to a set of its own",
        );
    }
    let sizes: BTreeMap<String, usize> = entry
        .keys
        .size
        .iter()
        .map(|(k, v)| (k.get_ref().clone(), *v.get_ref() as usize))
        .collect();
    let mut r = Resolver {
        spec,
        entry,
        file: entry.loc.file,
        sizes,
        report,
        stages: Vec::new(),
        params: Vec::new(),
    };
    let batch = r.size(&entry.keys.batch)?;
    let externals = r.externals();
    r.stages(&externals, batch);
    let objective = r.objective()?;
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
pub fn extents(spec: &Spec, file: usize, shape: &Str, sizes: &BTreeMap<String, usize>, report: &mut Report) -> Vec<usize> {
    let mut extents = Vec::new();
    for dim in dims(spec, file, shape, report) {
        match extent(&dim, sizes) {
            Some(extent) => extents.push(extent),
            None => report.push(Code::SizeUnknown, &loc_of(file, shape), format!("no size `{dim}`")),
        }
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
            report.push_note(Code::GroupEmpty, &loc, "the set has no model whose tensors this could name", "list `buffers`");
        }
        for buffer in &entry.keys.buffers {
            if let Some(other) = owner.insert(buffer.get_ref(), &entry.name) {
                let loc = loc_of(entry.loc.file, buffer);
                report.push(Code::ParamTwice, &loc, format!("`{}` is in `{other}` too", buffer.get_ref()));
            }
        }
        check_optimizer(spec, entry, report);
        groups.push(draft(entry));
    }
    groups.sort_by(|a, b| (a.index, &a.name).cmp(&(b.index, &b.name)));
    groups
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
        report.push(Code::NameUnknown, &loc, format!("no update over a group is named `{name}`"));
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
    let declared = stage
        .declared
        .iter()
        .find(|d| d.name == output && d.role == Role::Output)?;
    let mut shape = declared.shape.clone();
    if let Some((_, steps)) = &stage.scan {
        shape.insert(0, *steps);
    }
    Some((shape, declared.elem))
}

fn extent(dim: &str, sizes: &BTreeMap<String, usize>) -> Option<usize> {
    match dim {
        "*" => Some(0),
        dim => dim.parse().ok().or_else(|| sizes.get(dim).copied()),
    }
}

fn parts(tensor: &Tensor) -> (&Str, Elem) {
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
}

impl<'a> Resolver<'a> {
    fn size(&mut self, name: &Str) -> Option<usize> {
        let size = self.sizes.get(name.get_ref()).copied();
        if size.is_none() {
            self.report.push(
                Code::SizeUnknown,
                &loc_of(self.file, name),
                format!("no size `{}`", name.get_ref()),
            );
        }
        size
    }

    fn externals(&mut self) -> Vec<External> {
        let mut externals = Vec::new();
        for (name, _, tensor) in crate::spec::names(self.file, &self.entry.keys.external) {
            let (shape, elem) = shape_of(self.spec, self.file, tensor, &self.sizes, self.report);
            externals.push(External {
                name: name.to_owned(),
                shape,
                elem,
            });
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
                let stage = self.stage(name, loc, keys, externals, batch);
                self.stages.extend(stage);
            }
            if waiting.len() == before {
                break;
            }
        }
        for (name, loc, _) in waiting {
            self.report.push(
                Code::StageCycle,
                &loc,
                format!("`{name}` waits for itself or for a stage that could not be resolved"),
            );
        }
    }

    fn is_ready(&self, stage: &entries::Stage) -> bool {
        stage.input.values().all(|source| {
            let owner = source.get_ref().split_once('.').map(|(owner, _)| owner);
            let is_stage = owner.is_some_and(|o| self.entry.keys.stage.keys().any(|k| k.get_ref() == o));
            !is_stage || self.stages.iter().any(|s| Some(s.name.as_str()) == owner)
        })
    }

    fn stage(
        &mut self,
        name: &str,
        loc: Loc,
        keys: &'a entries::Stage,
        externals: &[External],
        batch: usize,
    ) -> Option<Stage> {
        let spec = self.spec;
        if !names::is_legal(name) {
            self.report.push(Code::NameIllegal, &loc, format!("`{name}`"));
        }
        let Some(block) = spec.blocks.iter().find(|b| b.name == *keys.block.get_ref()) else {
            self.report.push(
                Code::NameUnknown,
                &loc_of(self.file, &keys.block),
                format!("no block `{}`", keys.block.get_ref()),
            );
            return None;
        };
        let scan = match &keys.scan {
            Some(scan) => Some((scan.over.get_ref().clone(), self.size(&scan.over)?)),
            None => None,
        };
        let carry = self.carry(keys, block);
        let mut binder = Binder {
            r: self,
            block,
            keys,
            scan: scan.as_ref().map(|s| s.1),
            sizes: BTreeMap::new(),
            sliced: BTreeSet::new(),
        };
        binder.explicit_sizes();
        let wires = binder.wires(externals, batch, &carry);
        binder.other_sizes();
        let declared = binder.declare(&carry);
        let sizes = binder.sizes;
        self.add_params(name, block, &declared);
        let statements = parse_statements(&spec.text(block.loc.file, &block.keys.math), self.report);
        let threads = keys.schedule.threads.as_ref().map(|t| *t.get_ref());
        let doc = block.keys.doc.clone();
        let block_loc = block.loc.clone();
        let block = block.name.clone();
        Some(Stage {
            name: name.to_owned(),
            block,
            doc,
            sizes,
            wires,
            scan,
            carry,
            declared,
            statements,
            threads,
            loc,
            block_loc,
        })
    }

    fn carry(&mut self, keys: &entries::Stage, block: &Entry<entries::Block>) -> Vec<(String, String)> {
        let mut carry = Vec::new();
        let pairs = keys
            .scan
            .iter()
            .flat_map(|scan| crate::spec::names(self.file, &scan.carry));
        for (input, loc, output) in pairs {
            let has = |map: &Named<Tensor>, name: &str| map.keys().any(|k| k.get_ref() == name);
            if !has(&block.keys.input, input) {
                self.report
                    .push(Code::NameUnknown, &loc, format!("the block has no input `{input}`"));
            } else if !has(&block.keys.output, output.get_ref()) {
                self.report.push(
                    Code::NameUnknown,
                    &loc_of(self.file, output),
                    format!("the block has no output `{}`", output.get_ref()),
                );
            } else {
                carry.push((input.to_owned(), output.get_ref().clone()));
            }
        }
        carry
    }

    fn add_params(&mut self, stage: &str, block: &Entry<entries::Block>, declared: &[Declared]) {
        let file = block.loc.file;
        for (name, _, tensor) in crate::spec::names(file, &block.keys.param) {
            let Some(d) = declared.iter().find(|d| d.name == name) else {
                continue;
            };
            let init = match tensor {
                Tensor::Keys(entries::TensorKeys { init: Some(init), .. }) => self.init(init, file),
                _ if d.shape.len() >= 2 => Init::LecunUniform,
                _ => Init::Constant(0.0),
            };
            let path = names::stage_value(stage, name);
            self.params.push(Param {
                path,
                shape: d.shape.clone(),
                offset: 0,
                init,
                group: String::new(),
            });
        }
    }

    fn init(&mut self, init: &Str, file: usize) -> Init {
        let text = init.get_ref().trim();
        let argument = |name: &str| -> Option<f64> {
            text.strip_prefix(name)?
                .trim()
                .strip_prefix('(')?
                .strip_suffix(')')?
                .trim()
                .parse()
                .ok()
        };
        let known = match text {
            "zeros" => Some(Init::Constant(0.0)),
            "ones" => Some(Init::Constant(1.0)),
            "lecun_uniform" => Some(Init::LecunUniform),
            "glorot_uniform" => Some(Init::GlorotUniform),
            _ => argument("constant")
                .map(Init::Constant)
                .or_else(|| argument("uniform").map(Init::Uniform)),
        };
        if known.is_none() {
            self.report
                .push(Code::InitUnknown, &loc_of(file, init), format!("`{text}`"));
        }
        known.unwrap_or(Init::Constant(0.0))
    }

    fn stage_output(&mut self, value: &Str) -> Option<(usize, String)> {
        let found = value.get_ref().split_once('.').and_then(|(stage, output)| {
            let index = self.stages.iter().position(|s| s.name == stage)?;
            output_shape(&self.stages[index], output)?;
            Some((index, output.to_owned()))
        });
        if found.is_none() {
            self.report.push(
                Code::SourceUnknown,
                &loc_of(self.file, value),
                format!("no stage output `{}`", value.get_ref()),
            );
        }
        found
    }

    fn objective(&mut self) -> Option<(usize, String)> {
        let value = &self.entry.keys.objective;
        let (stage, output) = self.stage_output(value)?;
        let shape = output_shape(&self.stages[stage], &output).map(|(s, _)| s);
        if shape.is_some_and(|s| !s.is_empty()) {
            self.report
                .push(Code::ObjectiveShape, &loc_of(self.file, value), "not one number");
        }
        Some((stage, output))
    }

    fn heads(&mut self) -> Vec<(String, usize, String)> {
        let entry = self.entry;
        let mut heads = Vec::new();
        for (name, _, value) in crate::spec::names(self.file, &entry.keys.head) {
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
            check_optimizer(spec, entry, self.report);
            groups.push(draft(entry));
        }
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        for param in self.params.iter().filter(|p| p.group.is_empty()) {
            let label = format!("`{}` is in no group, so nothing trains it", param.path);
            self.report.push(Code::ParamUnowned, &self.entry.loc, label);
        }
        self.params.sort_by(|a, b| a.group.cmp(&b.group));
        let mut offset = 0;
        for param in &mut self.params {
            param.offset = offset;
            offset += param.len();
        }
        for group in &mut groups {
            let members = self.params.iter().filter(|p| p.group == group.name);
            let start = members.clone().map(|p| p.offset).min().unwrap_or(0);
            group.range = (start, start + members.map(Param::len).sum::<usize>());
        }
        groups
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
        if !found {
            self.report
                .push(Code::GroupEmpty, &loc, format!("`{text}` names no trainable tensor"));
        }
    }

    /// A block of the set itself that no stage uses would be a kernel that nobody launches.
    fn check_used_blocks(&mut self) {
        let used: BTreeSet<&str> = self.stages.iter().map(|s| s.block.as_str()).collect();
        for block in self
            .spec
            .blocks
            .iter()
            .filter(|b| b.loc.file < self.spec.first_included)
        {
            if !used.contains(block.name.as_str()) {
                self.report
                    .push(Code::EntryUnused, &block.loc, format!("no stage uses `{}`", block.name));
            }
        }
    }
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
            let known = block
                .keys
                .input
                .keys()
                .chain(block.keys.table.keys())
                .any(|k| k.get_ref() == name);
            if !known {
                self.r.report.push(
                    Code::NameUnknown,
                    &loc,
                    format!("the block `{}` has no input `{name}`", block.name),
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
                    format!("`{}` of the block `{}`", name.get_ref(), block.name),
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
        let Some((from, mut shape, elem)) = self.find(source.get_ref(), externals) else {
            self.r
                .report
                .push(Code::SourceUnknown, &loc, format!("no value `{}`", source.get_ref()));
            return None;
        };
        let batched = matches!(from, WireSource::Stage(..));
        if !is_table && !batched {
            if shape.first() != Some(&batch) {
                self.r.report.push(
                    Code::ShapeMismatch,
                    &loc,
                    "an input is given for each sample: the batch must be the leading dimension",
                );
                return None;
            }
            shape.remove(0);
        }
        let (_, wanted) = parts(tensor);
        if elem != wanted {
            self.r
                .report
                .push(Code::TypeMismatch, &loc, format!("`{name}` has another element type"));
        }
        self.unify(name, tensor, &shape, &loc);
        Some(Wire {
            input: name.to_owned(),
            from,
        })
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
        let dims = dims(self.r.spec, self.block.loc.file, text, self.r.report);
        let mut shape = shape;
        if let Some(steps) = self.scan
            && shape.len() == dims.len() + 1
            && shape[0] == steps
        {
            self.sliced.insert(name.to_owned());
            shape = &shape[1..];
        }
        if shape.len() != dims.len() {
            let label = format!("`{name}` has {} dimensions, the source {}", dims.len(), shape.len());
            return self.r.report.push(Code::ShapeMismatch, loc, label);
        }
        for (dim, &extent) in dims.iter().zip(shape) {
            let fixed = if dim == "*" { Some(extent) } else { dim.parse().ok() };
            let known = fixed.unwrap_or_else(|| *self.sizes.entry(dim.clone()).or_insert(extent));
            if known != extent {
                self.r.report.push(
                    Code::ShapeMismatch,
                    loc,
                    format!("`{dim}` of `{name}` is {known}, the source has {extent}"),
                );
            }
        }
    }

    /// Dimensions that no input tells are sizes of the model of the same name.
    fn other_sizes(&mut self) {
        let block = self.block;
        let keys = &block.keys;
        let tensors = keys
            .input
            .iter()
            .chain(&keys.table)
            .chain(&keys.param)
            .chain(&keys.output);
        for (_, tensor) in tensors {
            let (text, _) = parts(tensor);
            for dim in dims(self.r.spec, block.loc.file, text, self.r.report) {
                if extent(&dim, &self.sizes).is_some() {
                    continue;
                }
                match self.r.sizes.get(&dim) {
                    Some(&size) => {
                        self.sizes.insert(dim, size);
                    }
                    None => {
                        let at = loc_of(self.r.file, &self.keys.block);
                        self.r
                            .report
                            .push(Code::SizeUnknown, &at, format!("`{dim}` of the block `{}`", block.name));
                        self.sizes.insert(dim, 1);
                    }
                }
            }
        }
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
                let (shape, elem) = shape_of(self.r.spec, block.loc.file, tensor, &self.sizes, self.r.report);
                let carried = carry.iter().any(|(input, _)| input == name);
                let sliced = scanned && (role == Role::Output || carried || self.sliced.contains(name));
                declared.push(Declared {
                    name: name.to_owned(),
                    role,
                    elem,
                    shape,
                    sliced,
                    loc,
                });
            }
        }
        declared
    }
}
