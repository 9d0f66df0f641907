//! Kernels and launches of updates: controllers, clamps in place, optimizers with their state and counters.

use std::collections::{BTreeMap, BTreeSet};

use unio_interface::{Access, Elem as Memory, Role as Outer};

use super::order::{Node, NodeCount, Place};
use super::step::{COUNTER_BLOCKS, Part, Planner, READ, REDUCED, UPDATE_THREADS, UPDATED, param_total};
use super::{Body, KernelPlan, Param, UpdateBody, block, memory_elem};
use crate::math::{Elem, Program, Role, TensorId};
use crate::model::{Group, Over, Update};
use crate::names;

impl Planner<'_> {
    pub(super) fn add_updates(&mut self, select: impl Fn(&Update) -> bool) {
        let model = self.model;
        for (update, program) in model.updates.iter().zip(&self.equations.updates) {
            if select(update) {
                self.add_update_outputs(update);
                let kernel = self.add_update_kernel(update, program);
                match &update.over {
                    Over::Buffer { buffers, .. } => (0..buffers.len())
                        .for_each(|n| self.add_update_node(update, program, kernel, None, Some(&Part::Member(n)))),
                    _ => self.add_update_node(update, program, kernel, None, None),
                }
            }
        }
    }

    fn add_update_outputs(&mut self, update: &Update) {
        for (name, shape, elem) in &update.outputs {
            self.add_buffer(&names::stage_value(&update.name, name), shape.clone(), memory_elem(*elem));
        }
    }

    fn add_update_kernel(&mut self, update: &Update, program: &Program) -> usize {
        let has_elements = update.over != Over::Scalar;
        let element = (has_elements && !program.vars.is_empty()).then_some(0);
        let len = match &update.over {
            Over::Group | Over::Buffer { .. } => None,
            Over::Size { extent, .. } => Some(*extent),
            Over::Scalar => Some(1),
        };
        let (mut params, places) = pointers(update, program);
        let counts = program.tensors.iter().enumerate().filter(|(_, t)| t.role == Role::BlockCount);
        let counters = counts.zip(params.len()..).map(|((id, _), param)| (id, param)).collect();
        params.extend(program.tensors.iter().filter(|t| t.role == Role::BlockCount).map(|t| counter(&t.name)));
        let scalars = (params.len()..params.len() + program.scalars.len()).collect();
        params.extend(block::scalar_params(program));
        let body = UpdateBody { counters, program: program.clone(), len, element, params: places, scalars };
        self.add_kernel(KernelPlan {
            symbol: names::kernel(&self.model.set, &update.name, ""),
            entry: update.name.clone(),
            doc: update.doc.clone(),
            loc: update.loc.clone(),
            threads: if has_elements { UPDATE_THREADS } else { 1 },
            params,
            body: Body::Update(body),
        })
    }

    fn add_update_node(
        &mut self,
        update: &Update,
        program: &Program,
        kernel: usize,
        group: Option<&Group>,
        part: Option<&Part<'_>>,
    ) {
        let mut needs = BTreeSet::new();
        let args = self.update_args(update, program, group, part, &mut needs);
        let mut gives: BTreeSet<String> =
            update.outputs.iter().map(|(name, ..)| names::stage_value(&update.name, name)).collect();
        let own = self.model.states.iter().filter(|s| s.writer.as_ref() == Some(&update.name));
        let writes = own.map(|s| s.name.clone()).filter(|_| group.is_none()).collect();
        if group.is_some() {
            gives.insert(UPDATED.to_owned());
            needs.extend([REDUCED.to_owned(), READ.to_owned()]);
        }
        let group_name = group.map(|g| g.name.as_str());
        let (name, count) = name_and_count(update, group_name, part);
        self.nodes.push(Node {
            name,
            kernel,
            count,
            parts: None,
            args,
            needs,
            gives,
            reads: Self::scalar_reads(program, group_name),
            writes,
            overwrites: changed(update, part).cloned(),
            instead_of: None,
            evaluates: group.is_none() && !update.training_only,
            loc: update.loc.clone(),
        });
    }

    /// Buffers of a launch, in the order of the kernel's parameters; and the values that it needs of them.
    fn update_args(
        &self,
        update: &Update,
        program: &Program,
        group: Option<&Group>,
        part: Option<&Part<'_>>,
        needs: &mut BTreeSet<String>,
    ) -> Vec<Place> {
        let mut args = Vec::new();
        for tensor in &program.tensors {
            match tensor.role {
                Role::Table | Role::Input => {
                    let source = update.read.iter().find(|(name, _)| *name == tensor.name).map(|(_, s)| s);
                    args.push(self.source_arg(source, part, needs));
                }
                Role::State => args.push(self.state_arg(update, &tensor.name, part)),
                Role::Output => args.push((String::from(&names::stage_value(&update.name, &tensor.name)), 0)),
                _ => {}
            }
        }
        let counts = program.tensors.iter().filter(|t| t.role == Role::BlockCount);
        args.extend(counts.map(|tensor| self.counter_arg(&tensor.name, group, part)));
        args.extend(self.scalar_args(program, group.map(|g| g.name.as_str())));
        args
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

    pub(super) fn counter_arg(&self, counter: &str, group: Option<&Group>, part: Option<&Part<'_>>) -> Place {
        let sub = if let Some(Part::Sub(sub)) = part { Some(*sub) } else { None };
        let is_own =
            |(name, s): &(String, Option<String>)| group.is_some_and(|g| g.name == *name) && s.as_deref() == sub;
        let place = self.counting_launches(counter).iter().position(is_own).unwrap_or(0);
        (counter.to_owned(), place * COUNTER_BLOCKS)
    }

    /// Buffers of the counters that optimizers keep.
    pub(super) fn add_counters(&mut self) {
        let model = self.model;
        for counter in model.updates.iter().flat_map(|u| &u.counters).collect::<BTreeSet<_>>() {
            let len = self.counting_launches(counter).len() * COUNTER_BLOCKS;
            self.add_kept(counter, vec![len], Memory::I32);
        }
    }

    fn state_arg(&self, update: &Update, name: &str, part: Option<&Part<'_>>) -> Place {
        if let (Over::Buffer { element, .. }, Some(buffer)) = (&update.over, changed(update, part))
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

    pub(super) fn add_optimizer_state(&mut self) {
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

    pub(super) fn add_optimizers(&mut self) {
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
}

/// Parameters for everything that a kernel reads and writes but counters and scalars, and each tensor's place among them.
fn pointers(update: &Update, program: &Program) -> (Vec<Param>, BTreeMap<TensorId, usize>) {
    let (mut params, mut places) = (Vec::new(), BTreeMap::new());
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
        params.push(Param { name: tensor.name.clone(), elem, access, len, stride: None, role, row_len, row: 1 });
    }
    (params, places)
}

fn counter(name: &str) -> Param {
    let (access, len, role) = (Access::Out, Some(COUNTER_BLOCKS), Outer::Saved);
    Param { name: name.to_owned(), elem: Memory::I32, access, len, stride: None, role, row_len: None, row: 1 }
}

/// A launch's name, and how many elements it covers.
fn name_and_count(update: &Update, group: Option<&str>, part: Option<&Part<'_>>) -> (String, NodeCount) {
    match (group, part) {
        (Some(g), Some(Part::Range(group))) => {
            (format!("{}[{g}]", update.name), NodeCount::Fixed(group.range.1 - group.range.0))
        }
        (_, Some(Part::Sub(sub))) => {
            (format!("{}[{sub}]", update.name), NodeCount::Of(names::stage_value(sub, "params")))
        }
        _ => match changed(update, part) {
            Some(buffer) => (format!("{}[{buffer}]", update.name), NodeCount::Of(buffer.clone())),
            None => (update.name.clone(), NodeCount::None),
        },
    }
}

/// The buffer that a launch changes in place.
fn changed<'u>(update: &'u Update, part: Option<&Part<'_>>) -> Option<&'u String> {
    match (&update.over, part) {
        (Over::Buffer { buffers, .. }, Some(Part::Member(n))) => buffers.get(*n),
        _ => None,
    }
}

fn scalar_elem(elem: Elem) -> Memory {
    match elem {
        Elem::Real => Memory::F32,
        Elem::Int | Elem::Bool => Memory::I32,
    }
}
