//! Kernels and launches of producers: one block where there is little to read, else rows of counts from many blocks.

use std::collections::{BTreeMap, BTreeSet};

use unio_interface::{Access, Elem as Memory, Role as Outer};

use super::order::{Node, NodeCount};
use super::step::{Bank, COUNTER_BLOCKS, ELEMENT_THREADS, Part, Planner, vector};
use super::{Body, KernelPlan, Param, ProducerBody, ProducerStep, SignalPlan, Table, block, memory_elem};
use crate::math::{Program, Role};
use crate::model::{Group, Over, Producer, Smoothing, Source};
use crate::names;
use crate::spec::entries::ProducerSchedule;
use crate::spec::equation::When;

/// Quantiles for which a large block's counts fit into the shared memory of any card.
const MOST_RANKED: usize = 4;

/// How many elements the launches of a producer find.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forms {
    /// One block reads them.
    Few,
    /// Or as many as it takes.
    Many,
    /// The run tells, and each step takes the one or the other.
    ByLength,
}

/// The kernels of a producer.
struct Kernels {
    few: Option<usize>,
    many: Option<(Table, Vec<(ProducerStep, usize)>)>,
    /// Elements up to which it is the first.
    limit: usize,
}

impl Planner<'_> {
    pub(super) fn add_producers(&mut self) {
        let model = self.model;
        for (producer, program) in model.producers.iter().zip(&self.equations.producers) {
            let Some(smoothing) = model.smoothings.iter().find(|s| s.name == producer.smooth) else { continue };
            let groups: Vec<Option<&Group>> = match producer.per_group {
                true => model.groups.iter().map(Some).collect(),
                false => vec![None],
            };
            let forms = self.forms(producer, program, &groups);
            let kernels = self.add_producer_kernels(producer, program, smoothing, forms);
            for group in groups {
                self.add_producer_nodes(producer, program, &kernels, group);
            }
        }
    }

    fn forms(&self, producer: &Producer, program: &Program, groups: &[Option<&Group>]) -> Forms {
        if producer.schedule == ProducerSchedule::Linear {
            return Forms::Few;
        }
        let few = Table::of(program).few();
        let lengths: Vec<Option<usize>> = groups.iter().map(|g| self.fixed_length(producer, program, *g)).collect();
        match lengths {
            // What several launches read, one of them cannot finish.
            _ if groups.iter().any(|group| self.producer_parts(producer, *group).len() > 1) => Forms::Many,
            known if known.iter().all(|n| n.is_some_and(|n| n <= few)) => Forms::Few,
            known if known.iter().all(|n| n.is_some_and(|n| n > few)) => Forms::Many,
            _ => Forms::ByLength,
        }
    }

    /// Whether an update changes what the producer reads, by a slot's value from before the producer writes it.
    fn is_clamped_between(&self, producer: &Producer) -> bool {
        let reads = |buffer: &String| producer.read.iter().any(|(_, source, ..)| source.names(buffer));
        let own = |name: &String| producer.signals.iter().any(|signal| signal.slot == *name);
        self.model.updates.iter().zip(&self.equations.updates).any(|(update, program)| {
            matches!(&update.over, Over::Buffer { buffers, .. } if buffers.iter().any(reads))
                && program.scalars.iter().any(|read| read.when == When::Prev && own(&read.name))
        })
    }

    /// Elements of the only part, where the plan knows them.
    fn fixed_length(&self, producer: &Producer, program: &Program, group: Option<&Group>) -> Option<usize> {
        let parts = self.producer_parts(producer, group);
        match self.elements(producer, program, parts.first()?.as_ref()) {
            NodeCount::Fixed(n) => Some(n),
            _ => None,
        }
    }

    fn add_producer_kernels(
        &mut self,
        producer: &Producer,
        program: &Program,
        law: &Smoothing,
        forms: Forms,
    ) -> Kernels {
        let table = Table::of(program);
        // A clamp by the step before's bound comes between the read and the slot, so that one kernel cannot do both. What is
        // launched hangs on that, the texts do not.
        let limit = match (forms, self.is_clamped_between(producer)) {
            (Forms::Few, _) => usize::MAX,
            (Forms::Many, _) | (Forms::ByLength, true) => 0,
            (Forms::ByLength, false) => table.few(),
        };
        let mut add = |step: ProducerStep| {
            let range = if step == ProducerStep::Whole { (0, limit) } else { (limit, usize::MAX) };
            let range = (forms == Forms::ByLength).then_some(range);
            self.add_producer_kernel(producer, program, law, step, range)
        };
        let whole = match producer.schedule {
            ProducerSchedule::Linear => ProducerStep::Linear,
            ProducerSchedule::Counts => ProducerStep::Whole,
        };
        let few = (forms != Forms::Many).then(|| add(whole));
        let steps = ProducerStep::of_many(&table);
        let many = (forms != Forms::Few).then(|| (table, steps.into_iter().map(|step| (step, add(step))).collect()));
        Kernels { few, many, limit }
    }

    fn add_producer_kernel(
        &mut self,
        producer: &Producer,
        program: &Program,
        law: &Smoothing,
        step: ProducerStep,
        range: Option<(usize, usize)>,
    ) -> usize {
        let mut params = Vec::new();
        let mut places = BTreeMap::new();
        let reads = step.reads_buffers();
        for (id, tensor) in program.tensors.iter().enumerate().filter(|(_, t)| reads && t.role == Role::Table) {
            places.insert(id, params.len());
            let whole = pointer(&tensor.name, memory_elem(tensor.elem), Access::In, None, Outer::Input);
            params.push(Param { row: tensor.shape[1..].iter().product(), ..whole });
        }
        let scalars = (params.len()..params.len() + program.scalars.len()).collect();
        params.extend(block::scalar_params(program));
        let table = Table::of(program);
        for (name, elem, access) in tables(step, &table) {
            let len = (name == "brackets").then_some(table.quantiles * Table::BRACKET);
            let row = if len.is_some() { 1 } else { Table::ROWS * table.row_len(name) };
            params.push(Param { row, ..pointer(&format!("{name}_"), elem, access, len, Outer::Saved) });
        }
        let signals =
            if step.gives_signals() { self.signal_params(producer, program, law, &mut params) } else { Vec::new() };
        let body = ProducerBody {
            step,
            range,
            program: program.clone(),
            params: places,
            scalars,
            signals,
            law: law.name.clone(),
            smoothing: self.equations.smoothings[&law.name].clone(),
            states: law.states.clone(),
        };
        self.add_kernel(KernelPlan {
            symbol: names::kernel(&self.model.set, &producer.name, step.name()),
            entry: producer.name.clone(),
            doc: producer.doc.clone(),
            loc: producer.loc.clone(),
            threads: step.threads(&Table::of(program), producer.signals.len()),
            params,
            body: Body::Producer(body),
        })
    }

    fn signal_params(
        &self,
        producer: &Producer,
        program: &Program,
        law: &Smoothing,
        params: &mut Vec<Param>,
    ) -> Vec<SignalPlan> {
        let mut signals = Vec::new();
        for signal in &producer.signals {
            let Some(tensor) = program.tensors.iter().position(|t| t.role == Role::Output && t.name == signal.target)
            else {
                continue;
            };
            let only = self.model.slots.iter().any(|s| s.name == signal.slot && s.observed_only);
            let mut add = |what: &str, elem, len| {
                params.push(pointer(
                    &format!("{}_{what}", signal.target),
                    elem,
                    Access::InOut,
                    Some(len),
                    Outer::Scalar,
                ));
                params.len() - 1
            };
            let slot = (!only).then(|| add("slot", Memory::F32, 1));
            let observed = add("observed", Memory::F32, 1);
            let states = (!only).then(|| add("smoothing", Memory::F32, law.states.len()));
            let skipped = add("skipped", Memory::I32, 1);
            signals.push(SignalPlan { tensor, observed, skipped, smoothed: slot.zip(states) });
        }
        signals
    }

    fn add_producer_nodes(&mut self, producer: &Producer, program: &Program, kernels: &Kernels, group: Option<&Group>) {
        let name = group.map_or(producer.name.clone(), |g| format!("{}[{}]", producer.name, g.name));
        let length = self.fixed_length(producer, program, group);
        if let Some(kernel) = kernels.few.filter(|_| kernels.limit > 0 && length.is_none_or(|n| n <= kernels.limit)) {
            let part = self.producer_parts(producer, group).into_iter().next().flatten();
            let mut node = self.reading_node(producer, program, kernel, group, part.as_ref());
            self.add_signals(producer, group, &mut node);
            node.name = name.clone();
            self.nodes.push(node);
        }
        let by_length = kernels.few.is_some();
        let Some((table, steps)) = kernels.many.as_ref().filter(|_| length.is_none_or(|n| n > kernels.limit)) else {
            return;
        };
        let parts = self.producer_parts(producer, group);
        self.add_tables(&name, table, parts.len());
        for (step, kernel) in steps {
            for n in 0..if step.reads_buffers() { parts.len() } else { 1 } {
                self.add_step_node(producer, program, (&name, *step, n), (*kernel, table, by_length), group);
            }
        }
    }

    /// Tables between the steps of one producer and group; each part of a union has rows of its own.
    fn add_tables(&mut self, name: &str, table: &Table, parts: usize) {
        let rows = parts * Table::ROWS;
        self.add_buffer(&format!("{name}.rows"), vec![rows, table.width()], Memory::I32);
        if table.sums > 0 {
            self.add_buffer(&format!("{name}.sums"), vec![rows, table.sums], Memory::F64);
        }
        if table.quantiles > 0 {
            self.add_buffer(&format!("{name}.brackets"), vec![table.quantiles, Table::BRACKET], Memory::I32);
            for counts in ["exponents", "refined"] {
                self.add_buffer(&format!("{name}.{counts}"), vec![rows, table.refined_width()], Memory::I32);
            }
        }
    }

    /// A node that reads the buffers of a part.
    fn reading_node(
        &self,
        producer: &Producer,
        program: &Program,
        kernel: usize,
        group: Option<&Group>,
        part: Option<&Part<'_>>,
    ) -> Node {
        let mut needs = BTreeSet::new();
        let mut args = Vec::new();
        for tensor in program.tensors.iter().filter(|t| t.role == Role::Table) {
            args.push(self.source_arg(source(producer, &tensor.name), part, &mut needs));
        }
        let group_name = group.map(|g| g.name.as_str());
        args.extend(self.scalar_args(program, group_name));
        Node {
            name: String::new(),
            kernel,
            count: self.elements(producer, program, part),
            parts: None,
            args,
            needs,
            gives: BTreeSet::new(),
            reads: Self::scalar_reads(program, group_name),
            writes: BTreeSet::new(),
            overwrites: None,
            instead_of: None,
            evaluates: false,
            loc: producer.loc.clone(),
        }
    }

    /// A launch of one step: over a part of the union if it reads buffers, over all rows if not.
    fn add_step_node(
        &mut self,
        producer: &Producer,
        program: &Program,
        (name, step, n): (&str, ProducerStep, usize),
        (kernel, table, by_length): (usize, &Table, bool),
        group: Option<&Group>,
    ) {
        let parts = self.producer_parts(producer, group);
        let part = parts[n].as_ref().filter(|_| step.reads_buffers());
        let mut node = self.reading_node(producer, program, kernel, group, part);
        if !step.reads_buffers() {
            node.args = self.scalar_args(program, group.map(|g| g.name.as_str()));
            node.needs.clear();
            // Whether there is anything to join hangs on the length too.
            node.count = match by_length {
                true => self.elements(producer, program, parts[n].as_ref()),
                false => NodeCount::None,
            };
        }
        node.instead_of = by_length.then(|| name.to_owned());
        node.parts = Some(parts.len());
        for (buffer, _, access) in tables(step, table) {
            // A step writes the rows of its own part, and reads those of all.
            let first = if access == Access::Out { n * Table::ROWS * table.row_len(buffer) } else { 0 };
            let buffer = format!("{name}.{buffer}");
            if access != Access::In {
                node.gives.insert(format!("{buffer} after {}", step.name()));
            }
            node.args.push((buffer, first));
        }
        node.needs.extend(step.before(table).map(|(table, step)| format!("{name}.{table} after {}", step.name())));
        if step.gives_signals() {
            self.add_signals(producer, group, &mut node);
        }
        let place = if parts.len() > 1 && step.reads_buffers() { format!("[{n}]") } else { String::new() };
        node.name = format!("{name}.{}{place}", step.name());
        self.nodes.push(node);
    }

    /// Slot, observation, smoothing state and counter of each signal.
    fn add_signals(&self, producer: &Producer, group: Option<&Group>, node: &mut Node) {
        let group_name = group.map(|g| g.name.as_str());
        for signal in &producer.signals {
            let Some(slot) = self.model.slots.iter().find(|s| s.name == signal.slot) else { continue };
            let member = group_name.map_or(signal.member, |_| self.slot_arg(slot, group_name));
            let (scratch, bank) = (slot.scratch + member, Bank::of(slot));
            if !slot.observed_only {
                node.args.push((vector(slot).to_owned(), slot.index + member));
            }
            node.args.push((bank.observed().to_owned(), scratch));
            if !slot.observed_only {
                node.args.push((bank.smoothing().to_owned(), scratch * self.smoothing_stride));
            }
            node.args.push((bank.skipped().to_owned(), scratch));
            node.writes.insert(signal.slot.clone());
            node.writes.insert(group_name.map_or(signal.slot.clone(), |g| format!("{}[{g}]", signal.slot)));
        }
        if group.is_some() {
            // A reader of another group's member must not wait for this one.
            node.writes.retain(|w| w.contains('['));
        }
    }

    /// What the launches of a producer cover.
    fn producer_parts<'b>(&self, producer: &Producer, group: Option<&'b Group>) -> Vec<Option<Part<'b>>> {
        match producer.union {
            _ if producer.read.is_empty() => vec![None],
            0 | 1 => self.parts(group),
            count => (0..count).map(|n| Some(Part::Member(n))).collect(),
        }
    }

    /// Elements, or rows, that the statistics of a part run over.
    fn elements(&self, producer: &Producer, program: &Program, part: Option<&Part<'_>>) -> NodeCount {
        let Some(tensor) = program.tensors.iter().find(|t| t.role == Role::Table) else { return NodeCount::Fixed(0) };
        let (name, _) = self.source_arg(source(producer, &tensor.name), part, &mut BTreeSet::new());
        if let Some(Source::Counter(_)) = source(producer, &tensor.name) {
            return NodeCount::Fixed(COUNTER_BLOCKS);
        }
        let row: usize = tensor.shape[1..].iter().product();
        if let (Some(Part::Range(group)), false) =
            (part, matches!(source(producer, &tensor.name), Some(Source::Buffer(_))))
        {
            return NodeCount::Fixed(group.range.1 - group.range.0);
        }
        let buffer = self.buffers.iter().find(|b| b.name == name);
        match buffer.map(|b| (b.shape.first() == Some(&0), b.shape.iter().product::<usize>())) {
            Some((false, len)) => NodeCount::Fixed(len / row.max(1)),
            _ if row == 1 => NodeCount::Of(name),
            _ => NodeCount::RowsOf(name, row),
        }
    }
}

fn source<'a>(producer: &'a Producer, name: &str) -> Option<&'a Source> {
    producer.read.iter().find(|(n, ..)| n == name).map(|(_, source, ..)| source)
}

/// The tables that a step writes or reads, in the order of its parameters.
fn tables(step: ProducerStep, table: &Table) -> Vec<(&'static str, Memory, Access)> {
    use Access::{In, InOut, Out};
    let tables = match step {
        ProducerStep::Whole | ProducerStep::Linear => vec![],
        ProducerStep::Count => vec![("rows", Out), ("sums", Out), ("brackets", In)],
        ProducerStep::Settle => vec![("rows", In), ("brackets", InOut)],
        ProducerStep::Exponents => vec![("brackets", In), ("exponents", Out)],
        ProducerStep::Refine => vec![("rows", In), ("brackets", In), ("exponents", In), ("refined", Out)],
        ProducerStep::Finish => {
            vec![("rows", In), ("sums", In), ("brackets", InOut), ("exponents", In), ("refined", In)]
        }
    };
    let exists = |name: &str| match name {
        "rows" => true,
        "sums" => table.sums > 0,
        _ => table.quantiles > 0,
    };
    let elem = |name: &str| if name == "sums" { Memory::F64 } else { Memory::I32 };
    tables.into_iter().filter(|(name, _)| exists(name)).map(|(name, access)| (name, elem(name), access)).collect()
}

impl ProducerStep {
    /// The steps over many elements, in order.
    fn of_many(table: &Table) -> Vec<Self> {
        let ranks = [Self::Settle, Self::Exponents, Self::Refine];
        let ranks = ranks.into_iter().filter(|_| table.quantiles > 0);
        [Self::Count].into_iter().chain(ranks).chain([Self::Finish]).collect()
    }

    /// Its part of a kernel's symbol; nothing where one kernel does it all.
    fn name(self) -> &'static str {
        match self {
            ProducerStep::Whole | ProducerStep::Linear => "",
            ProducerStep::Count => "count",
            ProducerStep::Settle => "settle",
            ProducerStep::Exponents => "exponents",
            ProducerStep::Refine => "refine",
            ProducerStep::Finish => "finish",
        }
    }

    /// Threads of its blocks; a bin a thread at least where it ranks.
    fn threads(self, table: &Table, signals: usize) -> u32 {
        match self {
            // Nothing is read but slots: a warp a signal.
            ProducerStep::Whole if table.sums + table.quantiles == 0 => 32 * signals.clamp(1, 8) as u32,
            // Each warp counts each quantile in shared memory of its own.
            ProducerStep::Count if table.keeps_much() => ELEMENT_THREADS,
            ProducerStep::Whole if table.quantiles > MOST_RANKED => ELEMENT_THREADS,
            ProducerStep::Count | ProducerStep::Whole | ProducerStep::Finish => 2 * ELEMENT_THREADS,
            ProducerStep::Settle => 4 * ELEMENT_THREADS,
            _ => ELEMENT_THREADS,
        }
    }

    fn reads_buffers(self) -> bool {
        !matches!(self, ProducerStep::Settle | ProducerStep::Finish)
    }

    fn gives_signals(self) -> bool {
        matches!(self, ProducerStep::Whole | ProducerStep::Linear | ProducerStep::Finish)
    }

    /// The table and step that it waits for.
    fn before(self, table: &Table) -> impl Iterator<Item = (&'static str, ProducerStep)> {
        let before = match self {
            ProducerStep::Whole | ProducerStep::Linear | ProducerStep::Count => None,
            ProducerStep::Settle => Some(("rows", ProducerStep::Count)),
            ProducerStep::Exponents => Some(("brackets", ProducerStep::Settle)),
            ProducerStep::Refine => Some(("exponents", ProducerStep::Exponents)),
            ProducerStep::Finish if table.quantiles == 0 => Some(("rows", ProducerStep::Count)),
            ProducerStep::Finish => Some(("refined", ProducerStep::Refine)),
        };
        before.into_iter()
    }
}

impl Table {
    /// Elements that one block reads faster than several could start and join. Where it ranks, as many as its threads hold
    /// at once.
    fn few(&self) -> usize {
        let held = 2 * ELEMENT_THREADS as usize * Table::UNROLL;
        if self.quantiles > 0 { held } else { 4 * held }
    }

    /// Elements of a row of a table.
    fn row_len(&self, name: &str) -> usize {
        match name {
            "rows" => self.width(),
            "sums" => self.sums,
            _ => self.refined_width(),
        }
    }
}

fn pointer(name: &str, elem: Memory, access: Access, len: Option<usize>, role: Outer) -> Param {
    Param { name: name.to_owned(), elem, access, len, stride: None, role, row_len: None, row: 1 }
}
