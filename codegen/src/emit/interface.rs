//! The data that the macro expands and the runtime executes.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use unio_interface::{
    Arg, Artefacts, Buffer, Init, Kernel as Outer, KernelParam, Launch, Param, Program, Reset, Slot, Source, Stage,
    State,
};

use crate::equations::Equations;
use crate::lower::Kernel;
use crate::math::Elem;
use crate::model::{self, Model, Network};
use crate::plan::{Count, Plan, StageKernels};
use crate::spec::equation::When as Read;

pub(super) fn artefacts(
    model: &Model,
    equations: &Equations,
    plan: &Plan,
    kernels: &[Kernel],
    sources: Vec<Source>,
) -> Artefacts {
    let readers = readers(model, equations);
    let slots: Vec<Slot> = model.slots.iter().filter(|s| s.is_in_isv()).map(|s| slot(s, &readers)).collect();
    let states: Vec<State> = model.states.iter().map(|s| state(s, &readers)).collect();
    let resets =
        plan.resets.iter().map(|r| Reset { name: r.name.clone(), when: r.when, parts: r.parts.clone() }).collect();
    let program = (!plan.train.is_empty()).then(|| program(model, plan, kernels));
    Artefacts {
        set: model.set.clone(),
        fingerprint: fingerprint(model, &slots, &states, program.as_ref()),
        kernels: kernels.iter().map(|k| kernel(model, k, &sources)).collect(),
        sources,
        isv_len: slots.iter().map(|s| s.index + s.members.len().max(1)).max().unwrap_or(0),
        slots,
        states,
        resets,
        program,
    }
}

/// Over names, indices, totals and the parameter layout: whatever makes an older checkpoint mean something else.
fn fingerprint(model: &Model, slots: &[Slot], states: &[State], program: Option<&Program>) -> String {
    let mut hash = Sha256::new();
    for slot in slots {
        hash.update(format!("slot {} {} {:?} {}\n", slot.name, slot.index, slot.scratch, slot.members.join(",")));
    }
    for hidden in model.slots.iter().filter(|s| s.producer.is_some() && !(s.is_in_isv() && s.listed)) {
        let (index, members) = (hidden.index, hidden.members.join(","));
        hash.update(format!("hidden {} {index} {} {members}\n", hidden.name, hidden.scratch));
    }
    for state in states {
        hash.update(format!("state {} {} {}\n", state.name, state.word, state.int));
    }
    for param in program.iter().flat_map(|p| &p.params) {
        hash.update(format!("param {} {:?} {}\n", param.path, param.shape, param.offset));
    }
    for buffer in program.iter().flat_map(|p| &p.buffers).filter(|b| b.kept) {
        hash.update(format!("buffer {} {:?}\n", buffer.name, buffer.shape));
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// For each slot and state: who reads it, as `entry (prev)`.
fn readers(model: &Model, equations: &Equations) -> BTreeMap<String, Vec<String>> {
    let mut readers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let stages = model.network.iter().flat_map(|n| &n.stages).map(|s| s.name.as_str());
    let updates = model.updates.iter().map(|u| u.name.as_str());
    let producers = model.producers.iter().map(|p| p.name.as_str());
    let programs = equations.stages.iter().map(|s| &s.forward).chain(&equations.updates).chain(&equations.producers);
    for (entry, program) in stages.chain(updates).chain(producers).zip(programs) {
        for read in &program.scalars {
            let when = match read.when {
                Read::Prev => "prev",
                Read::Now => "now",
                Read::Observed => "observed",
            };
            let list = readers.entry(read.name.clone()).or_default();
            let reader = match &read.member {
                Some(member) => format!("{entry} ({when} {member})"),
                None => format!("{entry} ({when})"),
            };
            if !list.contains(&reader) {
                list.push(reader);
            }
        }
    }
    readers
}

fn slot(slot: &model::Slot, readers: &BTreeMap<String, Vec<String>>) -> Slot {
    Slot {
        name: slot.name.clone(),
        doc: slot.doc.clone(),
        index: slot.index,
        scratch: slot.producer.as_ref().filter(|_| slot.listed).map(|_| slot.scratch),
        members: slot.members.clone(),
        producer: slot.producer.as_ref().map(|(producer, _)| producer.clone()),
        smooth: slot.smooth.clone(),
        readers: readers.get(&slot.name).cloned().unwrap_or_default(),
        reset: slot.reset.into(),
        monitoring: slot.monitoring,
        reserved: slot.reserved,
        fingerprint: slot.fingerprint,
    }
}

fn state(state: &model::State, readers: &BTreeMap<String, Vec<String>>) -> State {
    let mut readers = readers.get(&state.name).cloned().unwrap_or_default();
    if readers.is_empty() {
        readers.extend(state.writer.iter().map(|w| format!("{w} (own)")));
    }
    State {
        name: state.name.clone(),
        doc: state.doc.clone(),
        word: state.word,
        int: state.elem == Elem::Int,
        init: state.init,
        writer: state.writer.clone(),
        readers,
        reset: state.reset.into(),
    }
}

fn kernel(model: &Model, kernel: &Kernel, sources: &[Source]) -> Outer {
    let path = crate::names::kernel_file(&model.set, &kernel.entry);
    Outer {
        symbol: kernel.symbol.clone(),
        doc: kernel.comment.join(" "),
        source: sources.iter().position(|s| s.path == path).unwrap_or(0),
        threads: kernel.threads,
        grid: kernel.grid,
        shared: kernel.shared,
        params: kernel.params.clone(),
    }
}

/// A set without a model still has a step: its producers and updates, over what the run fills.
fn program(model: &Model, plan: &Plan, kernels: &[Kernel]) -> Program {
    let buffer_at = |name: &str| plan.buffers.iter().position(|b| b.name == name).unwrap_or(0);
    let network = model.network.as_ref();
    let head = |network: &Network, (name, stage, output): &(String, usize, String)| {
        let value = crate::names::stage_value(&network.stages[*stage].name, output);
        (name.clone(), buffer_at(&value))
    };
    let stage = |s: &StageKernels| Stage {
        name: s.name.clone(),
        forward: s.forward,
        adjoint: s.adjoint,
        gradients: s.gradients,
    };
    Program {
        model: network.map_or(model.set.clone(), |n| n.name.clone()),
        batch: network.map_or(1, |n| n.batch),
        sizes: network.iter().flat_map(|n| &n.sizes).map(|(name, size)| (name.clone(), *size)).collect(),
        buffers: plan.buffers.iter().map(buffer).collect(),
        params: network.iter().flat_map(|n| &n.params).map(param).collect(),
        heads: network.iter().flat_map(|n| n.heads.iter().map(|h| head(n, h))).collect(),
        train: plan.train.iter().map(|l| launch(l, kernels)).collect(),
        evaluate: plan.evaluate.iter().map(|l| launch(l, kernels)).collect(),
        stages: plan.stages.iter().map(stage).collect(),
    }
}

fn buffer(buffer: &crate::plan::Buffer) -> Buffer {
    let any = buffer.shape.first() == Some(&0) && buffer.external;
    Buffer {
        name: buffer.name.clone(),
        elem: buffer.elem,
        len: (!any).then(|| buffer.shape.iter().product()),
        shape: buffer.shape.clone(),
        fill: buffer.fill,
        external: buffer.external,
        kept: buffer.kept,
    }
}

fn launch(launch: &crate::plan::Launch, kernels: &[Kernel]) -> Launch {
    let kernel = &kernels[launch.kernel];
    let mut pointers = launch.args.iter();
    let table =
        |of: &str| kernel.params.iter().position(|p| matches!(p, KernelParam::Buffer { name, .. } if name == of));
    let arg = |param: &KernelParam| match param {
        KernelParam::Buffer { .. } => {
            pointers.next().map_or(Arg::Number(0), |(buffer, start)| Arg::Buffer { buffer: *buffer, start: *start })
        }
        KernelParam::Rows { of, row_len, .. } => {
            Arg::Rows { buffer: table(of).map_or(0, |n| launch.args[n].0), row_len: *row_len }
        }
        KernelParam::Number { .. } => Arg::Number(launch.parts.unwrap_or(0) as i32),
        KernelParam::Count { .. } => match launch.count {
            Count::None => Arg::Count(0),
            Count::Fixed(n) => Arg::Count(n as i32),
            Count::Of(buffer, row_len) => Arg::CountOf { buffer, row_len },
        },
    };
    let args = kernel.params.iter().map(arg).collect();
    let known = if let Count::Fixed(n) = launch.count { n } else { 0 };
    Launch {
        name: launch.name.clone(),
        kernel: launch.kernel,
        grid: kernel.grid.blocks(known),
        args,
        after: launch.after.clone(),
    }
}

fn param(param: &model::Param) -> Param {
    let fan_in = *param.shape.last().unwrap_or(&1) as f64;
    let fan_out = param.shape.iter().rev().nth(1).copied().unwrap_or(1) as f64;
    let init = match param.init {
        model::Init::Constant(x) => Init::Constant(x),
        model::Init::Uniform(a) => Init::Uniform(a),
        model::Init::LecunUniform => Init::Uniform((3.0 / fan_in).sqrt()),
        model::Init::GlorotUniform => Init::Uniform((6.0 / (fan_in + fan_out)).sqrt()),
    };
    Param {
        path: param.path.clone(),
        shape: param.shape.clone(),
        offset: param.offset,
        group: param.group.clone(),
        init,
    }
}
