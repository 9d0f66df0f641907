//! Kernels and launches of producers: one block where there is little to read, else rows of counts from many blocks.

use std::collections::{BTreeMap, BTreeSet};

use unio_interface::{Access, Elem as Memory, Role as Outer};

use super::order::{Node, NodeCount};
use super::step::{Bank, COUNTER_BLOCKS, ELEMENT_THREADS, Part, Planner, vector};
use super::{Body, KernelPlan, Param, ProducerBody, ProducerStep, SignalPlan, Table, block, memory_elem};
use crate::math::{Program, Role};
use crate::model::{Group, Producer, Smoothing, Source};
use crate::names;
use crate::spec::entries::ProducerSchedule;

/// Elements that one block reads faster than several could start and join.
const ONE_BLOCK: usize = 16 * 1024;

/// The kernels of a producer.
enum Kernels {
    Whole(usize),
    Steps { count: usize, refine: Option<usize>, finish: usize, table: Table },
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
            let is_small = groups.iter().all(|group| self.is_small(producer, program, *group));
            let kernels = self.add_producer_kernels(producer, program, smoothing, is_small);
            for group in groups {
                self.add_producer_nodes(producer, program, &kernels, group);
            }
        }
    }

    fn is_small(&self, producer: &Producer, program: &Program, group: Option<&Group>) -> bool {
        let parts = self.producer_parts(producer, group);
        let count = |part: &Option<Part<'_>>| match self.elements(producer, program, part.as_ref()) {
            NodeCount::Fixed(n) => n,
            _ => usize::MAX,
        };
        parts.len() == 1 && parts.iter().map(count).all(|n| n <= ONE_BLOCK)
    }

    fn add_producer_kernels(
        &mut self,
        producer: &Producer,
        program: &Program,
        law: &Smoothing,
        is_small: bool,
    ) -> Kernels {
        if producer.schedule == ProducerSchedule::Linear {
            return Kernels::Whole(self.add_producer_kernel(producer, program, law, ProducerStep::Linear));
        }
        if is_small {
            return Kernels::Whole(self.add_producer_kernel(producer, program, law, ProducerStep::Whole));
        }
        let table = Table::of(program);
        let mut add = |step| self.add_producer_kernel(producer, program, law, step);
        let count = add(ProducerStep::Count);
        let refine = (table.quantiles > 0).then(|| add(ProducerStep::Refine));
        Kernels::Steps { count, refine, finish: add(ProducerStep::Finish), table }
    }

    fn add_producer_kernel(
        &mut self,
        producer: &Producer,
        program: &Program,
        law: &Smoothing,
        step: ProducerStep,
    ) -> usize {
        let mut params = Vec::new();
        let mut places = BTreeMap::new();
        let reads = step != ProducerStep::Finish;
        for (id, tensor) in program.tensors.iter().enumerate().filter(|(_, t)| reads && t.role == Role::Table) {
            places.insert(id, params.len());
            params.push(pointer(&tensor.name, memory_elem(tensor.elem), Access::In, None, Outer::Input));
        }
        let scalars = (params.len()..params.len() + program.scalars.len()).collect();
        params.extend(block::scalar_params(program));
        let tables = tables(step, &Table::of(program), &mut params);
        let ends = step != ProducerStep::Count && step != ProducerStep::Refine;
        let signals = if ends { self.signal_params(producer, program, law, &mut params) } else { Vec::new() };
        let body = ProducerBody {
            step,
            tables,
            program: program.clone(),
            params: places,
            scalars,
            signals,
            law: law.name.clone(),
            smoothing: self.equations.smoothings[&law.name].clone(),
            states: law.states.clone(),
        };
        let what = match step {
            ProducerStep::Whole | ProducerStep::Linear => "",
            ProducerStep::Count => "count",
            ProducerStep::Refine => "refine",
            ProducerStep::Finish => "finish",
        };
        self.add_kernel(KernelPlan {
            symbol: names::kernel(&self.model.set, &producer.name, what),
            entry: producer.name.clone(),
            doc: producer.doc.clone(),
            loc: producer.loc.clone(),
            threads: ELEMENT_THREADS,
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
        match kernels {
            Kernels::Whole(kernel) => {
                let part = self.producer_parts(producer, group).into_iter().next().flatten();
                let mut node = self.reading_node(producer, program, *kernel, group, part.as_ref());
                self.add_signals(producer, group, &mut node);
                node.name = name;
                self.nodes.push(node);
            }
            Kernels::Steps { count, refine, finish, table } => {
                let parts = self.producer_parts(producer, group);
                self.add_tables(&name, table, parts.len());
                for (n, part) in parts.iter().enumerate() {
                    self.add_step_node(producer, program, (&name, "count", n), (*count, table), group, part.as_ref());
                }
                for (n, part) in parts.iter().enumerate() {
                    if let Some(refine) = refine {
                        self.add_step_node(
                            producer,
                            program,
                            (&name, "refine", n),
                            (*refine, table),
                            group,
                            part.as_ref(),
                        );
                    }
                }
                self.add_finish_node(producer, program, &name, (*finish, table), group, parts.len());
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
            self.add_buffer(&format!("{name}.refined"), vec![rows, table.refined_width()], Memory::I32);
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
            evaluates: false,
            loc: producer.loc.clone(),
        }
    }

    fn add_step_node(
        &mut self,
        producer: &Producer,
        program: &Program,
        (name, step, n): (&str, &str, usize),
        (kernel, table): (usize, &Table),
        group: Option<&Group>,
        part: Option<&Part<'_>>,
    ) {
        let mut node = self.reading_node(producer, program, kernel, group, part);
        let first = n * Table::ROWS;
        if step == "count" {
            node.args.push((format!("{name}.rows"), first * table.width()));
            if table.sums > 0 {
                node.args.push((format!("{name}.sums"), first * table.sums));
            }
        } else {
            node.parts = Some(self.producer_parts(producer, group).len());
            node.args.push((format!("{name}.rows"), 0));
            node.args.push((format!("{name}.refined"), first * table.refined_width()));
            node.needs.insert(format!("{name}.rows"));
        }
        node.gives.insert(format!("{name}.{}", if step == "count" { "rows" } else { "refined" }));
        node.name = format!(
            "{name}.{step}{}",
            if self.producer_parts(producer, group).len() > 1 { format!("[{n}]") } else { String::new() }
        );
        self.nodes.push(node);
    }

    fn add_finish_node(
        &mut self,
        producer: &Producer,
        program: &Program,
        name: &str,
        (kernel, table): (usize, &Table),
        group: Option<&Group>,
        parts: usize,
    ) {
        let mut node = self.reading_node(producer, program, kernel, group, None);
        node.args = self.scalar_args(program, group.map(|g| g.name.as_str()));
        node.needs.clear();
        node.count = NodeCount::None;
        node.parts = Some(parts);
        let mut tables = vec!["rows"];
        tables.extend((table.sums > 0).then_some("sums"));
        tables.extend((table.quantiles > 0).then_some("refined"));
        for table in tables {
            node.args.push((format!("{name}.{table}"), 0));
        }
        node.needs.insert(format!("{name}.rows"));
        if table.quantiles > 0 {
            node.needs.insert(format!("{name}.refined"));
        }
        self.add_signals(producer, group, &mut node);
        node.name = format!("{name}.finish");
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

/// Adds the tables that a step writes or reads; gives their places.
fn tables(step: ProducerStep, table: &Table, params: &mut Vec<Param>) -> [Option<usize>; 3] {
    let (out, none) = (Some(Access::Out), None);
    let read = Some(Access::In);
    let access = match step {
        ProducerStep::Whole | ProducerStep::Linear => [none, none, none],
        ProducerStep::Count => [out, out, none],
        ProducerStep::Refine => [read, none, out],
        ProducerStep::Finish => [read, read, read],
    };
    let exists = [true, table.sums > 0, table.quantiles > 0];
    let kinds = [("rows", Memory::I32), ("sums", Memory::F64), ("refined", Memory::I32)];
    let mut places = [None; 3];
    for (n, ((name, elem), access)) in kinds.into_iter().zip(access).enumerate() {
        if let (Some(access), true) = (access, exists[n]) {
            places[n] = Some(params.len());
            params.push(pointer(name, elem, access, None, Outer::Saved));
        }
    }
    places
}

fn pointer(name: &str, elem: Memory, access: Access, len: Option<usize>, role: Outer) -> Param {
    Param { name: name.to_owned(), elem, access, len, stride: None, role, row_len: None }
}
