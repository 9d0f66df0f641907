//! Buffers, kernels and launches of a set.

use std::collections::{BTreeMap, BTreeSet};

use unio_interface::{Access, Elem as Memory, ResetPart, Role as Outer, When};

use super::order::{Node, NodeCount, Place, direct, order, restrict_evaluation};
use super::{BlockBody, Body, Buffer, Count, KernelPlan, Launch, Param, Plan, Reset, UpdateBody, block, memory_elem};
use crate::diagnostics::{Code, Report};
use crate::equations::{Equations, Reader, StageEquations};
use crate::math::{Elem, Program, Role, TensorId};
use crate::model::{Group, Model, Network, Over, Slot, Source, Stage, Update, WireSource};
use crate::names;
use crate::spec::entries;

/// Threads of element-wise kernels, of producers and of the reducer.
pub(super) const ELEMENT_THREADS: u32 = 256;
/// Most blocks of an element-wise launch, and so the counts that each of its counters has room for.
pub const COUNTER_BLOCKS: usize = 256;
/// Value that stands for "all gradients are reduced".
const REDUCED: &str = "grads";
/// Value that stands for "all optimizers have run".
const UPDATED: &str = "params";
/// Value that stands for "every adjoint has written its part of the scratch".
const SCRATCH: &str = "gradient_scratch";
/// Value that stands for "nobody reads this step's parameters any more".
const READ: &str = "params read";

/// Plans a set.
pub(super) fn plan(model: &Model, equations: &Equations, report: &mut Report) -> Plan {
    let mut p = Planner::new(model, equations);
    p.add_scalar_buffers();
    p.add_optimizer_state();
    p.add_counters();
    p.add_updates(|u| u.over != Over::Group);
    let stages = p.add_stages();
    p.add_reducer();
    p.add_producers();
    p.add_optimizers();
    p.check_limits(report);
    p.finish(stages, report)
}

/// Where observations lie: the numbered ones of a set, and those that it keeps out of the numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bank {
    Listed,
    Unlisted,
}

impl Bank {
    pub(super) fn of(slot: &Slot) -> Self {
        if slot.listed { Self::Listed } else { Self::Unlisted }
    }

    pub(super) fn observed(self) -> &'static str {
        if self == Self::Listed { "observed" } else { "observed_unlisted" }
    }

    pub(super) fn smoothing(self) -> &'static str {
        if self == Self::Listed { "smoothing" } else { "smoothing_unlisted" }
    }

    pub(super) fn skipped(self) -> &'static str {
        if self == Self::Listed { "skipped" } else { "skipped_unlisted" }
    }
}

/// The vector that holds a slot.
pub(super) fn vector(slot: &Slot) -> &'static str {
    if slot.beside { "beside" } else { "isv" }
}

/// What one launch of a group covers.
pub(super) enum Part<'a> {
    /// Its range of the parameter buffer.
    Range(&'a Group),
    /// One external sub-buffer.
    Sub(&'a str),
    /// One buffer of a union.
    Member(usize),
}

pub(super) struct Planner<'a> {
    pub(super) model: &'a Model,
    pub(super) equations: &'a Equations,
    pub(super) buffers: Vec<Buffer>,
    kernels: Vec<KernelPlan>,
    pub(super) nodes: Vec<Node>,
    /// States beside the mean that a slot has room for.
    pub(super) smoothing_stride: usize,
}

impl<'a> Planner<'a> {
    fn new(model: &'a Model, equations: &'a Equations) -> Self {
        let smoothing_stride = model.smoothings.iter().map(|s| s.states.len()).max().unwrap_or(0);
        Self { model, equations, buffers: Vec::new(), kernels: Vec::new(), nodes: Vec::new(), smoothing_stride }
    }

    fn buffer(&self, name: &str) -> usize {
        self.buffers.iter().position(|b| b.name == name).unwrap_or(0)
    }

    pub(super) fn add_buffer(&mut self, name: &str, shape: Vec<usize>, elem: Memory) -> usize {
        self.buffers.push(Buffer { name: name.to_owned(), shape, elem, fill: 0.0, external: false, kept: false });
        self.buffers.len() - 1
    }

    fn add_kept(&mut self, name: &str, shape: Vec<usize>, elem: Memory) -> usize {
        let index = self.add_buffer(name, shape, elem);
        self.buffers[index].kept = true;
        index
    }

    /// Slots, observations, smoothing states, scalar states, parameters and what the run fills.
    fn add_scalar_buffers(&mut self) {
        let end = |select: &dyn Fn(&Slot) -> bool, first: &dyn Fn(&Slot) -> usize| {
            self.model.slots.iter().filter(|s| select(s)).map(|s| first(s) + s.len()).max().unwrap_or(0)
        };
        let slots = end(&|s| s.is_in_isv(), &|s| s.index);
        let beside = end(&|s| s.beside, &|s| s.index);
        let observed = |listed: bool| end(&|s| s.producer.is_some() && s.listed == listed, &|s| s.scratch);
        let (listed, unlisted) = (observed(true), observed(false));
        self.add_kept("isv", vec![slots], Memory::F32);
        if beside > 0 {
            self.add_kept("beside", vec![beside], Memory::F32);
        }
        for (bank, len) in [(Bank::Listed, listed), (Bank::Unlisted, unlisted)] {
            if bank == Bank::Listed || len > 0 {
                self.add_kept(bank.observed(), vec![len], Memory::F32);
                self.add_kept(bank.smoothing(), vec![len, self.smoothing_stride], Memory::F32);
                self.add_kept(bank.skipped(), vec![len], Memory::I32);
            }
        }
        self.add_kept("state", vec![self.model.states.len()], Memory::F32);
        self.add_externals();
        let Some(network) = &self.model.network else { return };
        let total = param_total(network);
        self.add_kept("params", vec![total], Memory::Real);
        self.add_buffer("grads", vec![total], Memory::Real);
        self.add_buffer("gradient_scratch", vec![network.batch, total], Memory::Real);
        let seed = self.add_buffer("objective_seed", vec![network.batch], Memory::Real);
        self.buffers[seed].fill = 1.0 / network.batch as f64;
    }

    /// What the run fills: declared buffers, and those that the sub-buffers of groups stand for.
    fn add_externals(&mut self) {
        let model = self.model;
        for external in model.externals.iter().chain(model.network.iter().flat_map(|n| &n.externals)) {
            let index = self.add_buffer(&external.name, external.shape.clone(), memory_elem(external.elem));
            self.buffers[index].external = true;
        }
        for group in &model.groups {
            let optimizer = model.updates.iter().find(|u| u.name == group.optimizer);
            let states = optimizer.iter().flat_map(|u| &u.element_state).map(|(name, ..)| name.as_str());
            let arrays: Vec<&str> = ["params", "grads"].into_iter().chain(states).collect();
            for name in
                group.buffers.iter().flat_map(|sub| arrays.iter().map(move |array| names::stage_value(sub, array)))
            {
                let index = self.add_buffer(&name, vec![0], Memory::Real);
                self.buffers[index].external = true;
            }
        }
    }

    /// What the launches of an entry cover: the whole, a group's range, or each of its sub-buffers.
    pub(super) fn parts<'b>(&self, group: Option<&'b Group>) -> Vec<Option<Part<'b>>> {
        match group {
            None => vec![None],
            Some(group) if group.buffers.is_empty() => vec![Some(Part::Range(group))],
            Some(group) => group.buffers.iter().map(|sub| Some(Part::Sub(sub))).collect(),
        }
    }

    pub(super) fn slot_arg(&self, slot: &Slot, group: Option<&str>) -> usize {
        group.and_then(|g| slot.members.iter().position(|m| m == g)).unwrap_or(0)
    }

    /// Buffer and element of each slot or state that a program reads.
    pub(super) fn scalar_args(&self, program: &Program, group: Option<&str>) -> Vec<Place> {
        let place = |read: &crate::math::ScalarRead| {
            if let Some(slot) = self.model.slots.iter().find(|s| s.name == read.name) {
                let member = self.slot_arg(slot, read.member.as_deref().or(group));
                let observed = slot.observed_only || read.when == crate::spec::equation::When::Observed;
                return match observed {
                    true => (Bank::of(slot).observed().to_owned(), slot.scratch + member),
                    false => (vector(slot).to_owned(), slot.index + member),
                };
            }
            let word = self.model.states.iter().find(|s| s.name == read.name).map_or(0, |s| s.word);
            (String::from("state"), word)
        };
        program.scalars.iter().map(place).collect()
    }

    pub(super) fn scalar_reads(program: &Program, group: Option<&str>) -> Vec<(crate::spec::equation::When, String)> {
        let name = |s: &crate::math::ScalarRead| match s.member.as_deref().or(group) {
            Some(member) => format!("{}[{member}]", s.name),
            None => s.name.clone(),
        };
        // A read of a single slot from within a group names no member.
        program.scalars.iter().flat_map(|s| [(s.when, s.name.clone()), (s.when, name(s))]).collect()
    }

    fn add_updates(&mut self, select: impl Fn(&Update) -> bool) {
        let model = self.model;
        for (update, program) in model.updates.iter().zip(&self.equations.updates) {
            if select(update) {
                self.add_update_outputs(update);
                let kernel = self.add_update_kernel(update, program);
                self.add_update_node(update, program, kernel, None, None);
            }
        }
    }

    fn add_update_outputs(&mut self, update: &Update) {
        for (name, shape, elem) in &update.outputs {
            self.add_buffer(&names::stage_value(&update.name, name), shape.clone(), memory_elem(*elem));
        }
    }

    fn add_update_kernel(&mut self, update: &Update, program: &Program) -> usize {
        let element =
            program.vars.iter().position(|_| update.over != Over::Scalar).filter(|_| update.over != Over::Scalar);
        let len = match &update.over {
            Over::Group | Over::Buffer { .. } => None,
            Over::Size { extent, .. } => Some(*extent),
            Over::Scalar => Some(1),
        };
        let mut params = Vec::new();
        let mut places = BTreeMap::new();
        for (id, tensor) in program.tensors.iter().enumerate() {
            let (access, role) = match tensor.role {
                Role::Table => (Access::In, Outer::Table),
                Role::Input => (Access::In, Outer::Reduced),
                Role::State => (Access::InOut, Outer::State),
                Role::Output => (Access::Out, Outer::Output),
                Role::Next { of } => {
                    places.insert(id, places[&of]);
                    continue;
                }
                _ => continue,
            };
            let any = tensor.shape.first() == Some(&0);
            // Scalar states lie in one bank of f32 words; everything else has the lowering's own real type.
            let by_element = matches!(update.over, Over::Group | Over::Buffer { .. }) && any;
            let in_bank = tensor.role == Role::State && !by_element;
            let elem = if in_bank { scalar_elem(tensor.elem) } else { memory_elem(tensor.elem) };
            let len = (!any).then(|| tensor.shape.iter().product());
            places.insert(id, params.len());
            let row_len = (any && tensor.role == Role::Table).then(|| tensor.shape[1..].iter().product());
            params.push(Param { name: tensor.name.clone(), elem, access, len, stride: None, role, row_len });
        }
        let mut counters = Vec::new();
        for (id, tensor) in program.tensors.iter().enumerate().filter(|(_, t)| t.role == Role::BlockCount) {
            counters.push((id, params.len()));
            let (name, access, len) = (tensor.name.clone(), Access::Out, Some(COUNTER_BLOCKS));
            params.push(Param {
                name,
                elem: Memory::I32,
                access,
                len,
                stride: None,
                role: Outer::Saved,
                row_len: None,
            });
        }
        let scalars = (params.len()..params.len() + program.scalars.len()).collect();
        params.extend(block::scalar_params(program));
        let body = UpdateBody { counters, program: program.clone(), len, element, params: places, scalars };
        let threads = if update.over == Over::Scalar { 1 } else { ELEMENT_THREADS };
        self.add_kernel(KernelPlan {
            symbol: names::kernel(&self.model.set, &update.name, ""),
            entry: update.name.clone(),
            doc: update.doc.clone(),
            loc: update.loc.clone(),
            threads,
            params,
            body: Body::Update(body),
        })
    }

    pub(super) fn add_kernel(&mut self, kernel: KernelPlan) -> usize {
        self.kernels.push(kernel);
        self.kernels.len() - 1
    }

    fn add_update_node(
        &mut self,
        update: &Update,
        program: &Program,
        kernel: usize,
        group: Option<&Group>,
        part: Option<&Part<'_>>,
    ) {
        let mut args = Vec::new();
        let mut needs = BTreeSet::new();
        for tensor in &program.tensors {
            match tensor.role {
                Role::Table | Role::Input => {
                    let source = update.read.iter().find(|(name, _)| *name == tensor.name).map(|(_, s)| s);
                    args.push(self.source_arg(source, part, &mut needs));
                }
                Role::State => args.push(self.state_arg(update, &tensor.name, part)),
                Role::Output => args.push((String::from(&names::stage_value(&update.name, &tensor.name)), 0)),
                _ => {}
            }
        }
        for tensor in program.tensors.iter().filter(|t| t.role == Role::BlockCount) {
            args.push(self.counter_arg(&tensor.name, group, part));
        }
        let group_name = group.map(|g| g.name.as_str());
        args.extend(self.scalar_args(program, group_name));
        let mut gives: BTreeSet<String> =
            update.outputs.iter().map(|(name, ..)| names::stage_value(&update.name, name)).collect();
        let mut writes = BTreeSet::new();
        match group {
            Some(_) => {
                gives.insert(UPDATED.to_owned());
                needs.insert(REDUCED.to_owned());
                needs.insert(READ.to_owned());
            }
            None => writes.extend(
                self.model.states.iter().filter(|s| s.writer.as_ref() == Some(&update.name)).map(|s| s.name.clone()),
            ),
        }
        let (name, count) = match (group_name, part) {
            (Some(g), Some(Part::Range(group))) => {
                (format!("{}[{g}]", update.name), NodeCount::Fixed(group.range.1 - group.range.0))
            }
            (_, Some(Part::Sub(sub))) => {
                (format!("{}[{sub}]", update.name), NodeCount::Of(names::stage_value(sub, "params")))
            }
            _ => (update.name.clone(), own_count(update)),
        };
        let reads = Self::scalar_reads(program, group_name);
        let evaluates = group.is_none() && !update.training_only;
        self.nodes.push(Node {
            name,
            kernel,
            count,
            parts: None,
            args,
            needs,
            gives,
            reads,
            writes,
            overwrites: if let Over::Buffer { buffer, .. } = &update.over { Some(buffer.clone()) } else { None },
            evaluates,
            loc: update.loc.clone(),
        });
    }

    /// Launches that keep a counter, in the order of groups and sub-buffers: each has room of its own.
    fn counting_launches(&self, counter: &str) -> Vec<(String, Option<String>)> {
        let counts = |g: &&Group| {
            self.model.updates.iter().any(|u| u.name == g.optimizer && u.counters.iter().any(|c| c == counter))
        };
        let mut launches = Vec::new();
        for group in self.model.groups.iter().filter(counts) {
            for part in self.parts(Some(group)) {
                let sub = if let Some(Part::Sub(sub)) = part { Some(sub.to_owned()) } else { None };
                launches.push((group.name.clone(), sub));
            }
        }
        launches
    }

    fn counter_arg(&self, counter: &str, group: Option<&Group>, part: Option<&Part<'_>>) -> Place {
        let sub = if let Some(Part::Sub(sub)) = part { Some(*sub) } else { None };
        let is_own =
            |(name, s): &(String, Option<String>)| group.is_some_and(|g| g.name == *name) && s.as_deref() == sub;
        let place = self.counting_launches(counter).iter().position(is_own).unwrap_or(0);
        (counter.to_owned(), place * COUNTER_BLOCKS)
    }

    /// Buffers of the counters that optimizers keep.
    fn add_counters(&mut self) {
        let model = self.model;
        for counter in model.updates.iter().flat_map(|u| &u.counters).collect::<BTreeSet<_>>() {
            let len = self.counting_launches(counter).len() * COUNTER_BLOCKS;
            self.add_kept(counter, vec![len], Memory::I32);
        }
    }

    fn state_arg(&self, update: &Update, name: &str, part: Option<&Part<'_>>) -> Place {
        if let Over::Buffer { element, buffer } = &update.over
            && element == name
        {
            return (buffer.clone(), 0);
        }
        if update.over != Over::Group {
            let word = self.model.states.iter().find(|s| s.name == name).map_or(0, |s| s.word);
            return (String::from("state"), word);
        }
        let is_state = update.element_state.iter().any(|(n, ..)| n == name);
        let array = if is_state { name } else { "params" };
        match part {
            Some(Part::Sub(sub)) => (names::stage_value(sub, array), 0),
            Some(Part::Range(group)) if is_state => (names::update_state(&update.name, name), group.range.0),
            Some(Part::Range(group)) => (String::from("params"), group.range.0),
            Some(Part::Member(_)) | None => (String::from("params"), 0),
        }
    }

    pub(super) fn source_arg(
        &self,
        source: Option<&Source>,
        part: Option<&Part<'_>>,
        needs: &mut BTreeSet<String>,
    ) -> Place {
        let array = |whole: &str, name: &str| match part {
            Some(Part::Sub(sub)) => (names::stage_value(sub, name), 0),
            Some(Part::Range(group)) => (whole.to_owned(), group.range.0),
            Some(Part::Member(_)) | None => (whole.to_owned(), 0),
        };
        match source {
            Some(Source::Params) => {
                needs.insert(UPDATED.into());
                array("params", "params")
            }
            Some(Source::Gradients) => {
                needs.insert(REDUCED.into());
                array("grads", "grads")
            }
            Some(Source::OptimizerState { update, state }) => {
                needs.insert(UPDATED.into());
                array(&names::update_state(update, state), state)
            }
            Some(Source::Buffer(name)) => {
                needs.insert(name.clone());
                (String::from(name), 0)
            }
            Some(Source::Counter(name)) => {
                needs.insert(UPDATED.into());
                match part {
                    Some(Part::Range(group)) => self.counter_arg(name, Some(group), part),
                    Some(Part::Sub(sub)) => {
                        let owner = self.model.groups.iter().find(|g| g.buffers.iter().any(|b| b == sub));
                        self.counter_arg(name, owner, part)
                    }
                    _ => (name.clone(), 0),
                }
            }
            Some(Source::Union(members)) => match part {
                Some(Part::Member(n)) => self.source_arg(members.get(*n), None, needs),
                _ => self.source_arg(members.first(), None, needs),
            },
            None => (String::new(), 0),
        }
    }

    /// Forward kernels in order, adjoints in reverse order.
    fn add_stages(&mut self) -> Vec<(String, usize, Option<usize>)> {
        let Some(network) = &self.model.network else {
            return Vec::new();
        };
        let equations = self.equations;
        let mut stages = Vec::new();
        for (stage, eq) in network.stages.iter().zip(&equations.stages) {
            self.add_stage_buffers(network, stage, eq);
            let forward = self.add_forward(network, stage, eq);
            stages.push((stage.name.clone(), forward, None));
        }
        for (index, eq) in equations.stages.iter().enumerate().rev() {
            stages[index].2 = self.add_adjoint(network, &network.stages[index], eq);
        }
        stages
    }

    fn add_stage_buffers(&mut self, network: &Network, stage: &Stage, eq: &StageEquations) {
        let batched = |shape: &[usize]| std::iter::once(network.batch).chain(shape.iter().copied()).collect::<Vec<_>>();
        for tensor in eq.forward.tensors.iter().filter(|t| t.role == Role::Output) {
            self.add_buffer(
                &names::stage_value(&stage.name, &tensor.name),
                batched(&tensor.shape),
                memory_elem(tensor.elem),
            );
        }
        let Some(adjoint) = &eq.adjoint else { return };
        for id in kept(eq) {
            let tensor = &eq.forward.tensors[id];
            self.add_buffer(
                &names::stage_saved(&stage.name, &tensor.name),
                batched(&tensor.shape),
                memory_elem(tensor.elem),
            );
        }
        for tensor in &adjoint.program.tensors {
            if let Role::CotangentOut { of } = tensor.role {
                let input = &adjoint.program.tensors[of].name;
                self.add_buffer(
                    &names::stage_cotangent(&stage.name, input),
                    batched(&tensor.shape),
                    memory_elem(tensor.elem),
                );
            }
        }
    }

    fn add_forward(&mut self, network: &Network, stage: &Stage, eq: &StageEquations) -> usize {
        let keep = kept(eq);
        let planned = block::plan(&eq.forward, &keep, network.batch, param_total(network), stage.threads);
        let (kernel, args, needs) = self.add_block_kernel(network, stage, eq, planned, "forward");
        let gives = eq
            .forward
            .tensors
            .iter()
            .filter(|t| t.role == Role::Output)
            .map(|t| names::stage_value(&stage.name, &t.name));
        let mut gives: BTreeSet<String> = gives.collect();
        gives.insert(READ.to_owned());
        self.add_block_node(stage, &eq.forward, kernel, args, needs, gives, "forward");
        kernel
    }

    fn add_adjoint(&mut self, network: &Network, stage: &Stage, eq: &StageEquations) -> Option<usize> {
        let adjoint = eq.adjoint.as_ref()?;
        let planned =
            block::plan(&adjoint.program, &BTreeSet::new(), network.batch, param_total(network), stage.threads);
        let (kernel, args, mut needs) = self.add_block_kernel(network, stage, eq, planned, "adjoint");
        needs.extend(
            eq.forward
                .tensors
                .iter()
                .filter(|t| t.role == Role::Output)
                .map(|t| names::stage_value(&stage.name, &t.name)),
        );
        let mut gives: BTreeSet<String> = eq.wanted.iter().map(|i| names::stage_cotangent(&stage.name, i)).collect();
        gives.extend([SCRATCH.to_owned(), READ.to_owned()]);
        self.add_block_node(stage, &adjoint.program, kernel, args, needs, gives, "adjoint");
        Some(kernel)
    }

    #[allow(clippy::too_many_arguments)]
    fn add_block_node(
        &mut self,
        stage: &Stage,
        program: &Program,
        kernel: usize,
        args: Vec<Place>,
        needs: BTreeSet<String>,
        gives: BTreeSet<String>,
        what: &str,
    ) {
        self.nodes.push(Node {
            name: format!("{}.{what}", stage.name),
            kernel,
            count: NodeCount::None,
            parts: None,
            args,
            needs,
            gives,
            reads: Self::scalar_reads(program, None),
            writes: BTreeSet::new(),
            overwrites: None,
            evaluates: what == "forward",
            loc: stage.loc.clone(),
        });
    }

    fn add_block_kernel(
        &mut self,
        network: &Network,
        stage: &Stage,
        eq: &StageEquations,
        planned: block::Planned,
        what: &str,
    ) -> (usize, Vec<Place>, BTreeSet<String>) {
        let mut needs = BTreeSet::new();
        let mut args = Vec::new();
        for (param, tensor) in pointer_tensors(&planned.body) {
            let arg = self.tensor_arg(network, stage, eq, &planned.body.program, tensor, what, &mut needs);
            args.push((param, arg));
        }
        args.sort_by_key(|(param, _)| *param);
        let mut args: Vec<Place> = args.into_iter().map(|(_, arg)| arg).collect();
        args.extend(self.scalar_args(&planned.body.program, None));
        let kernel = KernelPlan {
            symbol: names::kernel(&self.model.set, &stage.name, what),
            entry: stage.name.clone(),
            doc: stage.doc.clone(),
            loc: stage.block_loc.clone(),
            threads: planned.threads,
            params: planned.params,
            body: Body::Block(planned.body),
        };
        (self.add_kernel(kernel), args, needs)
    }

    #[allow(clippy::too_many_arguments)]
    fn tensor_arg(
        &mut self,
        network: &Network,
        stage: &Stage,
        eq: &StageEquations,
        program: &Program,
        id: TensorId,
        what: &str,
        needs: &mut BTreeSet<String>,
    ) -> Place {
        let tensor = &program.tensors[id];
        let own = |name: &str| names::stage_value(&stage.name, name);
        match tensor.role {
            Role::Input | Role::Table => self.wire_arg(network, stage, &tensor.name, needs),
            Role::Param => (String::from("params"), param_offset(network, &own(&tensor.name))),
            Role::ParamGradient { of } => {
                (String::from("gradient_scratch"), param_offset(network, &own(&program.tensors[of].name)))
            }
            Role::Output => (String::from(&own(&tensor.name)), 0),
            Role::CotangentOut { of } => {
                (String::from(&names::stage_cotangent(&stage.name, &program.tensors[of].name)), 0)
            }
            Role::CotangentIn { of, reader } => {
                self.cotangent_arg(network, eq, &program.tensors[of].name, reader, needs)
            }
            _ if eq.forward.tensors.get(id).is_some_and(|t| t.role == Role::Output) => {
                (String::from(&own(&tensor.name)), 0)
            }
            _ if eq.forward.tensors.get(id).is_some() && kept(eq).contains(&id) => {
                (String::from(&names::stage_saved(&stage.name, &tensor.name)), 0)
            }
            _ => {
                let shape: Vec<usize> = std::iter::once(network.batch).chain(tensor.shape.iter().copied()).collect();
                let name = format!("{}.{what}.{}", stage.name, tensor.name);
                self.add_buffer(&name, shape, memory_elem(tensor.elem));
                (name, 0)
            }
        }
    }

    fn wire_arg(&self, network: &Network, stage: &Stage, input: &str, needs: &mut BTreeSet<String>) -> Place {
        let name = match stage.wires.iter().find(|w| w.input == input).map(|w| &w.from) {
            Some(WireSource::Stage(index, output)) => names::stage_value(&network.stages[*index].name, output),
            Some(WireSource::Update(update, output)) => names::stage_value(update, output),
            Some(WireSource::External(name)) => name.clone(),
            None => String::new(),
        };
        needs.insert(name.clone());
        (name, 0)
    }

    fn cotangent_arg(
        &self,
        network: &Network,
        eq: &StageEquations,
        output: &str,
        reader: usize,
        needs: &mut BTreeSet<String>,
    ) -> Place {
        let name = match eq.readers.get(output).and_then(|r| r.get(reader)) {
            Some(Reader::Stage(index, input)) => names::stage_cotangent(&network.stages[*index].name, input),
            _ => "objective_seed".to_owned(),
        };
        needs.insert(name.clone());
        (name, 0)
    }

    fn add_reducer(&mut self) {
        let Some(network) = &self.model.network else { return };
        let total = param_total(network);
        if total == 0 {
            return;
        }
        let param = |name: &str, access, len, role| Param {
            name: name.into(),
            elem: Memory::Real,
            access,
            len: Some(len),
            stride: None,
            role,
            row_len: None,
        };
        let kernel = self.add_kernel(KernelPlan {
            symbol: names::kernel(&self.model.set, "reduce_axis0", ""),
            entry: "reduce_axis0".into(),
            doc: "Sums the gradient scratch over the batch, in a fixed order.".into(),
            loc: network.loc.clone(),
            threads: ELEMENT_THREADS,
            params: vec![
                param("scratch", Access::In, network.batch * total, Outer::Input),
                param("sum", Access::Out, total, Outer::Reduced),
            ],
            body: Body::ReduceAxis0 { batch: network.batch },
        });
        self.nodes.push(Node {
            name: "reduce_axis0".into(),
            kernel,
            count: NodeCount::Fixed(total),
            parts: None,
            args: vec![(String::from("gradient_scratch"), 0), (String::from("grads"), 0)],
            needs: BTreeSet::from([SCRATCH.to_owned()]),
            gives: BTreeSet::from([REDUCED.to_owned()]),
            reads: Vec::new(),
            writes: BTreeSet::new(),
            overwrites: None,
            evaluates: false,
            loc: network.loc.clone(),
        });
    }

    fn add_optimizer_state(&mut self) {
        let model = self.model;
        let in_model = model.updates.iter().filter(|u| u.over == Over::Group && model.network.is_some());
        for update in in_model {
            let total = model.network.as_ref().map_or(0, param_total);
            for (name, init, _) in &update.element_state {
                let buffer = self.add_kept(&names::update_state(&update.name, name), vec![total], Memory::Real);
                self.buffers[buffer].fill = *init;
            }
        }
    }

    fn add_optimizers(&mut self) {
        let model = self.model;
        for (update, program) in
            model.updates.iter().zip(&self.equations.updates).filter(|(u, _)| u.over == Over::Group)
        {
            let kernel = self.add_update_kernel(update, program);
            for group in model.groups.iter().filter(|g| g.optimizer == update.name) {
                for part in self.parts(Some(group)) {
                    self.add_update_node(update, program, kernel, Some(group), part.as_ref());
                }
            }
        }
    }

    fn check_limits(&mut self, report: &mut Report) {
        let Some(network) = &self.model.network else { return };
        for buffer in &self.buffers {
            if buffer.shape.iter().product::<usize>() > i32::MAX as usize {
                report.push(Code::IndexTooLarge, &network.loc, format!("`{}` {:?}", buffer.name, buffer.shape));
            }
        }
    }

    fn finish(mut self, stages: Vec<(String, usize, Option<usize>)>, report: &mut Report) -> Plan {
        restrict_evaluation(&mut self.nodes);
        let (sorted, before) = order(&self.nodes, report);
        for (node, (name, _)) in self.nodes.iter().flat_map(|n| n.args.iter().map(move |a| (n, a))) {
            if !self.buffers.iter().any(|b| b.name == *name) {
                report.push(
                    Code::Internal,
                    &node.loc,
                    format!("`{}` reads a buffer `{name}` that is not there", node.name),
                );
            }
        }
        let place = |(name, start): &Place| (self.buffer(name), *start);
        let train = launches(&self.nodes, &sorted, &before, place, |_| true);
        let evaluate = launches(&self.nodes, &sorted, &before, place, |n| n.evaluates);
        let resets = resets(&self);
        Plan { buffers: self.buffers, kernels: self.kernels, train, evaluate, stages, resets }
    }
}

fn launches(
    nodes: &[Node],
    sorted: &[usize],
    before: &[BTreeSet<usize>],
    place_of: impl Fn(&Place) -> (usize, usize),
    select: impl Fn(&Node) -> bool,
) -> Vec<Launch> {
    let chosen: Vec<usize> = sorted.iter().copied().filter(|n| select(&nodes[*n])).collect();
    let place = |n: &usize| chosen.iter().position(|c| c == n);
    let before = direct(before);
    let count = |count: &NodeCount| match count {
        NodeCount::None => Count::None,
        NodeCount::Fixed(n) => Count::Fixed(*n),
        NodeCount::Of(name) => Count::Of(place_of(&(name.clone(), 0)).0, 1),
        NodeCount::RowsOf(name, row) => Count::Of(place_of(&(name.clone(), 0)).0, *row),
    };
    let launch = |n: &usize| Launch {
        name: nodes[*n].name.clone(),
        kernel: nodes[*n].kernel,
        count: count(&nodes[*n].count),
        parts: nodes[*n].parts,
        args: nodes[*n].args.iter().map(&place_of).collect(),
        after: before[*n].iter().filter_map(place).collect(),
    };
    chosen.iter().map(launch).collect()
}

fn resets(p: &Planner<'_>) -> Vec<Reset> {
    let mut resets = Vec::new();
    for slot in p.model.slots.iter().filter(|s| !s.reserved) {
        resets.push(Reset { name: slot.name.clone(), when: when(slot.reset), parts: slot_parts(p, slot) });
    }
    for state in &p.model.states {
        let parts =
            vec![ResetPart { int: state.elem == Elem::Int, ..part(p.buffer("state"), state.word, 1, state.init) }];
        resets.push(Reset { name: state.name.clone(), when: when(state.reset), parts });
    }
    for counter in p.model.updates.iter().flat_map(|u| &u.counters).collect::<BTreeSet<_>>() {
        let buffer = p.buffer(counter);
        let parts = vec![part(buffer, 0, p.buffers[buffer].shape.iter().product(), 0.0)];
        resets.push(Reset { name: counter.clone(), when: When::Fold, parts });
    }
    // The optimizer state of external sub-buffers is the run's own, to reset as it likes.
    let owned = p.model.updates.iter().filter(|u| u.over == Over::Group && p.model.network.is_some());
    for update in owned {
        for (name, init, reset) in &update.element_state {
            let name = names::update_state(&update.name, name);
            let buffer = p.buffer(&name);
            let parts = vec![part(buffer, 0, p.buffers[buffer].shape.iter().product(), *init)];
            resets.push(Reset { name, when: when(*reset), parts });
        }
    }
    resets
}

/// Slot, observation and smoothing state are parts of one contract: they go back together.
fn slot_parts(p: &Planner<'_>, slot: &Slot) -> Vec<ResetPart> {
    let (len, stride, bank) = (slot.len(), p.smoothing_stride, Bank::of(slot));
    let mut parts = Vec::new();
    if !slot.observed_only {
        parts.push(part(p.buffer(vector(slot)), slot.index, len, 0.0));
    }
    if slot.producer.is_some() {
        parts.push(part(p.buffer(bank.observed()), slot.scratch, len, 0.0));
        parts.push(ResetPart { int: true, ..part(p.buffer(bank.skipped()), slot.scratch, len, 0.0) });
    }
    if slot.producer.is_some() && !slot.observed_only {
        parts.push(part(p.buffer(bank.smoothing()), slot.scratch * stride, len * stride, 0.0));
    }
    parts
}

fn part(buffer: usize, start: usize, len: usize, value: f64) -> ResetPart {
    ResetPart { buffer, start, len, value, int: false }
}

fn when(reset: entries::Reset) -> When {
    match reset {
        entries::Reset::Fold => When::Fold,
        entries::Reset::Epoch => When::Epoch,
        entries::Reset::Never => When::Never,
    }
}

/// Tensors that the forward kernel stores for the adjoint, outputs aside.
fn kept(eq: &StageEquations) -> BTreeSet<TensorId> {
    let saved = eq.adjoint.iter().flat_map(|a| a.saved.iter().copied());
    saved.filter(|id| eq.forward.tensors[*id].role != Role::Output).collect()
}

/// Parameter and tensor of each pointer of a block kernel.
fn pointer_tensors(body: &BlockBody) -> Vec<(usize, TensorId)> {
    body.homes.iter().filter_map(|(id, home)| Some((home.global?, *id))).collect()
}

fn own_count(update: &Update) -> NodeCount {
    match &update.over {
        Over::Buffer { buffer, .. } => NodeCount::Of(buffer.clone()),
        _ => NodeCount::None,
    }
}

fn param_total(network: &Network) -> usize {
    network.params.iter().map(|p| p.len()).sum()
}

fn param_offset(network: &Network, path: &str) -> usize {
    network.params.iter().find(|p| p.path == path).map_or(0, |p| p.offset)
}

fn scalar_elem(elem: Elem) -> Memory {
    match elem {
        Elem::Real => Memory::F32,
        Elem::Int | Elem::Bool => Memory::I32,
    }
}
