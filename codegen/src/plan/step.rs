//! Buffers, kernels and launches of a set.

use std::collections::BTreeSet;

use unio_interface::{Elem as Memory, ResetPart, When};

use super::order::{Node, NodeCount, Place, direct, order, restrict_evaluation};
use super::{Buffer, Count, KernelPlan, Launch, Plan, Reset, StageKernels, memory_elem};
use crate::diagnostics::{Code, Report};
use crate::equations::Equations;
use crate::math::{Elem, Program};
use crate::model::{Group, Model, Network, Over, Slot, Source};
use crate::names;
use crate::spec::entries::Gradients;

/// Threads of producers and of the reducer.
pub(super) const ELEMENT_THREADS: u32 = 256;
/// Threads of element-wise kernels: with [`COUNTER_BLOCKS`] blocks they fill a large card.
pub(super) const UPDATE_THREADS: u32 = 512;
/// Most blocks of an element-wise launch, and so the counts that each of its counters has room for.
pub const COUNTER_BLOCKS: usize = 256;
/// Value that stands for "all gradients are reduced".
pub(super) const REDUCED: &str = "grads";
/// Value that stands for "every gradient that needs no reducer is there". Its columns lie among the reducer's: the two take
/// turns, so that nobody has to see that they never meet.
pub(super) const DEFERRED: &str = "deferred gradients";
/// Value that stands for "all optimizers have run".
pub(super) const UPDATED: &str = "params";
/// Value that stands for "every adjoint has written its part of the scratch".
pub(super) const SCRATCH: &str = "gradient_scratch";
/// Value that stands for "nobody reads this step's parameters any more".
pub(super) const READ: &str = "params read";

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

    pub(super) fn buffer(&self, name: &str) -> usize {
        self.buffers.iter().position(|b| b.name == name).unwrap_or(0)
    }

    pub(super) fn add_buffer(&mut self, name: &str, shape: Vec<usize>, elem: Memory) -> usize {
        self.buffers.push(Buffer { name: name.to_owned(), shape, elem, fill: 0.0, external: false, kept: false });
        self.buffers.len() - 1
    }

    pub(super) fn add_kept(&mut self, name: &str, shape: Vec<usize>, elem: Memory) -> usize {
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
        // The lock never moves a word, so that those of states which are gone stay empty.
        let words = self.model.states.iter().map(|state| state.word + 1).max().unwrap_or(0);
        self.add_kept("state", vec![words], Memory::F32);
        self.add_externals();
        let Some(network) = &self.model.network else { return };
        let total = param_total(network);
        self.add_kept("params", vec![total], Memory::Real);
        self.add_buffer("grads", vec![total], Memory::Real);
        let columns = scratch_total(network);
        if columns > 0 || total == 0 {
            self.add_buffer("gradient_scratch", vec![network.batch, columns], Memory::Real);
        }
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

    pub(super) fn add_kernel(&mut self, kernel: KernelPlan) -> usize {
        self.kernels.push(kernel);
        self.kernels.len() - 1
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

    fn check_limits(&mut self, report: &mut Report) {
        let Some(network) = &self.model.network else { return };
        for buffer in &self.buffers {
            if buffer.shape.iter().product::<usize>() > i32::MAX as usize {
                report.push(Code::IndexTooLarge, &network.loc, format!("`{}` {:?}", buffer.name, buffer.shape));
            }
        }
    }

    fn finish(mut self, stages: Vec<StageKernels>, report: &mut Report) -> Plan {
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
        resets.push(Reset { name: slot.name.clone(), when: slot.reset.into(), parts: slot_parts(p, slot) });
    }
    for state in &p.model.states {
        let parts =
            vec![ResetPart { int: state.elem == Elem::Int, ..part(p.buffer("state"), state.word, 1, state.init) }];
        resets.push(Reset { name: state.name.clone(), when: state.reset.into(), parts });
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
            resets.push(Reset { name, when: (*reset).into(), parts });
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

pub(super) fn param_total(network: &Network) -> usize {
    network.params.iter().map(|p| p.len()).sum()
}

/// Parameters whose gradients go through the scratch, in the order of its columns.
pub(super) fn scratch_params(network: &Network) -> impl Iterator<Item = &crate::model::Param> {
    let is_deferred = |path: &str| {
        let stage = path.split('.').next().and_then(|name| network.stages.iter().find(|s| s.name == name));
        stage.is_some_and(|s| s.schedule.gradients == Gradients::Deferred)
    };
    network.params.iter().filter(move |p| !is_deferred(&p.path))
}

/// Columns of the scratch.
pub(super) fn scratch_total(network: &Network) -> usize {
    scratch_params(network).map(|p| p.len()).sum()
}
