//! Stage *equations*: the programs of every entry of a model, and the adjoints of its stages.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnostics::{Code, Diagnostics, Loc, Report};
use crate::math::{Adjoint, Elem, Program, Role, ScalarRead, Scope, TensorId, adjoint, elaborate, normalize};
use crate::model::{Model, Network, Over, Slot, Stage, WireSource};
use crate::spec::equation::{Expr, Name, Statement, Target, When};

/// All programs of a set, in the order of the model's lists.
#[derive(Debug)]
pub struct Equations {
    /// Stages.
    pub stages: Vec<StageEquations>,
    /// Updates.
    pub updates: Vec<Program>,
    /// Producers: statistics, and one output a signal.
    pub producers: Vec<Program>,
    /// Smoothing laws by name.
    pub smoothings: BTreeMap<String, Program>,
}

/// A stage's program and its adjoint.
#[derive(Debug)]
pub struct StageEquations {
    /// In normal form.
    pub forward: Program,
    /// `None` where no gradient flows through the stage.
    pub adjoint: Option<Adjoint>,
    /// Inputs whose cotangent is read by the stage they come from.
    pub wanted: BTreeSet<String>,
    /// For each output: who writes a cotangent of it, in the order of the sum.
    pub readers: BTreeMap<String, Vec<Reader>>,
}

/// Who writes a cotangent of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A stage, through an input.
    Stage(usize, String),
    /// The objective: one over the batch.
    Objective,
}

/// Gives every entry's equations their meaning and derives the adjoints.
///
/// # Errors
/// Whatever is wrong in an equation, and what has no adjoint.
pub fn equations(model: &Model) -> Result<Equations, Diagnostics> {
    let mut report = Report::default();
    let forward: Vec<Program> = match &model.network {
        Some(network) => network.stages.iter().map(|s| stage_program(model, s, &mut report)).collect(),
        None => Vec::new(),
    };
    let updates = model.updates.iter().map(|u| update_program(model, u, &mut report)).collect();
    let producers = model.producers.iter().map(|p| producer_program(model, p, &mut report)).collect();
    let smoothings =
        model.smoothings.iter().map(|s| (s.name.clone(), smoothing_program(model, s, &mut report))).collect();
    if !report.is_empty() {
        return report.finish(Equations { stages: Vec::new(), updates, producers, smoothings }, &model.files);
    }
    let stages = match &model.network {
        Some(network) => adjoints(network, forward, &mut report),
        None => Vec::new(),
    };
    check_elements(&stages, &mut report);
    report.finish(Equations { stages, updates, producers, smoothings }, &model.files)
}

/// Every element of what the equations make must have an index.
fn check_elements(stages: &[StageEquations], report: &mut Report) {
    let adjoints = stages.iter().filter_map(|s| s.adjoint.as_ref()).map(|a| &a.program);
    let programs = stages.iter().map(|s| &s.forward).chain(adjoints);
    for tensor in programs.flat_map(|p| &p.tensors) {
        let len = tensor.shape.iter().try_fold(1usize, |len, extent| len.checked_mul(*extent));
        if len.is_none_or(|len| len > i32::MAX as usize) {
            let extents: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let label = format!("`{}` has {} elements", tensor.name, extents.join(" × "));
            report.push(Code::IndexTooLarge, &tensor.loc, label);
        }
    }
}

fn stage_program(model: &Model, stage: &Stage, report: &mut Report) -> Program {
    let scalar = |when: When, name: &Name, member: Option<&Name>, report: &mut Report| {
        scalar(model, false, when, name, member, report)
    };
    let scope = Scope {
        constants: &model.constants,
        sizes: &stage.sizes,
        scan: stage.scan.clone(),
        carry: stage.carry.clone(),
        element: None,
        statistics: false,
        scalar: &scalar,
    };
    normalize(&elaborate(&stage.declared, &stage.statements, &scope, report))
}

fn update_program(model: &Model, update: &crate::model::Update, report: &mut Report) -> Program {
    let per_group = update.over == Over::Group;
    let scalar = |when: When, name: &Name, member: Option<&Name>, report: &mut Report| {
        scalar(model, per_group, when, name, member, report)
    };
    let none = BTreeMap::new();
    let scope = Scope {
        constants: &model.constants,
        sizes: model.network.as_ref().map_or(&none, |n| &n.sizes),
        scan: None,
        carry: Vec::new(),
        element: match &update.over {
            Over::Group | Over::Buffer { .. } => Some(("e".into(), 0)),
            Over::Size { index, extent } => Some((index.clone(), *extent)),
            Over::Scalar => None,
        },
        statistics: false,
        scalar: &scalar,
    };
    elaborate(&update.declared, &update.statements, &scope, report)
}

fn smoothing_program(model: &Model, smoothing: &crate::model::Smoothing, report: &mut Report) -> Program {
    let scalar = |when: When, name: &Name, member: Option<&Name>, report: &mut Report| {
        scalar(model, false, when, name, member, report)
    };
    let none = BTreeMap::new();
    let scope = Scope {
        constants: &model.constants,
        sizes: &none,
        scan: None,
        carry: Vec::new(),
        element: None,
        statistics: false,
        scalar: &scalar,
    };
    elaborate(&smoothing.declared, &smoothing.statements, &scope, report)
}

fn producer_program(model: &Model, producer: &crate::model::Producer, report: &mut Report) -> Program {
    let scalar = |when: When, name: &Name, member: Option<&Name>, report: &mut Report| {
        scalar(model, producer.per_group, when, name, member, report)
    };
    let none = BTreeMap::new();
    let scope = Scope {
        constants: &model.constants,
        sizes: model.network.as_ref().map_or(&none, |n| &n.sizes),
        scan: None,
        carry: Vec::new(),
        element: None,
        statistics: true,
        scalar: &scalar,
    };
    let declared = producer_tensors(producer);
    let statements: Vec<Statement> = producer.signals.iter().map(|s| signal_statement(&s.target, &s.expr)).collect();
    let program = elaborate(&declared, &statements, &scope, report);
    check_quantiles(&program, report);
    program
}

/// What a producer reads, and its signals.
fn producer_tensors(producer: &crate::model::Producer) -> Vec<crate::math::Declared> {
    let tensor = |name: &str, role, elem, shape: &[usize], loc: &Loc| crate::math::Declared {
        name: name.to_owned(),
        role,
        elem,
        shape: shape.to_vec(),
        sliced: false,
        loc: loc.clone(),
    };
    let read = producer.read.iter();
    let read = read.map(|(name, _, shape, elem)| tensor(name, Role::Table, *elem, shape, &producer.loc));
    let signals = producer.signals.iter();
    read.chain(signals.map(|s| tensor(&s.target, Role::Output, Elem::Real, &[], &s.expr.loc))).collect()
}

fn check_quantiles(program: &Program, report: &mut Report) {
    for statistic in &program.statistics {
        if matches!(statistic.kind, crate::math::StatisticKind::Quantile(_)) && !is_not_negative(&statistic.value) {
            let loc = &program.tensors[statistic.tensor].loc;
            report.push_note(
                Code::TypeMismatch,
                loc,
                "what is measured may be negative, and a quantile orders magnitudes",
                "measure abs(...) of it",
            );
        }
    }
}

/// Quantiles bin the bits of a float, whose order is that of the values only where these are not negative.
fn is_not_negative(value: &crate::math::Expr) -> bool {
    use crate::math::{BinaryFn, Expr, UnaryFn};
    match value {
        Expr::Unary(UnaryFn::Abs | UnaryFn::Sqrt | UnaryFn::Exp | UnaryFn::Sigmoid | UnaryFn::Softplus, _) => true,
        Expr::Binary(BinaryFn::Mul, a, b) => a == b,
        _ => false,
    }
}

fn signal_statement(name: &str, expr: &Expr) -> Statement {
    let name = Name { text: name.to_owned(), loc: expr.loc.clone() };
    Statement {
        target: Target { next: false, count: false, name, indices: Vec::new(), extents: Vec::new() },
        value: expr.clone(),
        when: None,
    }
}

/// Whether an entry that runs once a group has a member of its own in this family.
fn is_of_groups(model: &Model, slot: &Slot) -> bool {
    slot.members.iter().eq(model.groups.iter().map(|g| &g.name))
}

/// Whether a slot can be read so; reports why not.
fn slot_fits(
    model: &Model,
    slot: &Slot,
    per_group: bool,
    when: When,
    name: &Name,
    member: Option<&Name>,
    report: &mut Report,
) -> bool {
    match member {
        Some(m) if slot.members.is_empty() => {
            let label = format!("`{}` is one slot and has no members", slot.name);
            report.push_note(Code::NameUnknown, &m.loc, label, format!("leave `[{}]` out", m.text));
            return false;
        }
        Some(m) if !slot.members.contains(&m.text) => {
            report.push_unknown(
                Code::NameUnknown,
                &m.loc,
                format!("`{}` has no member `{}`, only: {}", slot.name, m.text, slot.members.join(", ")),
                &m.text,
                slot.members.iter().map(String::as_str),
            );
            return false;
        }
        None if !slot.members.is_empty() && (!per_group || !is_of_groups(model, slot)) => {
            let label = format!("`{}` has a member for each of: {}", slot.name, slot.members.join(", "));
            let cure = format!("name one of them, as in `{}[{}]`", name.text, slot.members[0]);
            match is_of_groups(model, slot) {
                true => report.push(Code::MemberMissing, &name.loc, label),
                false => report.push_note(Code::MemberMissing, &name.loc, label, cure),
            }
            return false;
        }
        _ => {}
    }
    if when == When::Observed && slot.producer.is_none() {
        report.push_note(
            Code::NameUnknown,
            &name.loc,
            format!("`{}` has no producer in this set, so nothing is observed", slot.name),
            format!("read it as `prev.{}`", slot.name),
        );
    }
    true
}

/// Finds a slot or a state by name.
fn scalar(
    model: &Model,
    per_group: bool,
    when: When,
    name: &Name,
    member: Option<&Name>,
    report: &mut Report,
) -> Option<ScalarRead> {
    let read = |int| Some(ScalarRead { when, name: name.text.clone(), member: member.map(|m| m.text.clone()), int });
    if let Some(slot) = model.slots.iter().find(|s| s.name == name.text && !s.reserved) {
        return slot_fits(model, slot, per_group, when, name, member, report).then(|| read(false)).flatten();
    }
    match model.states.iter().find(|s| s.name == name.text) {
        Some(state) if when != When::Observed => read(state.elem == Elem::Int),
        Some(_) => {
            report.push_note(
                Code::NameUnknown,
                &name.loc,
                format!("`{}` is a state, and only a slot is observed", name.text),
                format!("read it as `prev.{0}` or `now.{0}`", name.text),
            );
            None
        }
        None => {
            let slots = model.slots.iter().filter(|s| !s.reserved).map(|s| s.name.as_str());
            report.push_unknown(
                Code::NameUnknown,
                &name.loc,
                format!("no slot or state `{}`", name.text),
                &name.text,
                slots.chain(model.states.iter().map(|s| s.name.as_str())),
            );
            None
        }
    }
}

fn adjoints(network: &Network, forward: Vec<Program>, report: &mut Report) -> Vec<StageEquations> {
    let trainable = trainable_stages(network);
    let mut done: Vec<StageEquations> = Vec::new();
    let count = forward.len();
    for (index, program) in forward.into_iter().enumerate().rev() {
        let readers = readers(network, index, &done, count);
        let wanted = wanted_inputs(network, index, &trainable);
        let flows = !readers.is_empty() && trainable[index];
        let adjoint = flows.then(|| derive(&program, &readers, &wanted, report));
        let wanted = if flows { wanted } else { BTreeSet::new() };
        done.push(StageEquations { forward: program, adjoint, wanted, readers });
    }
    done.reverse();
    done
}

/// Stages that hold a parameter, or are fed by one that does.
fn trainable_stages(network: &Network) -> Vec<bool> {
    let mut trainable: Vec<bool> = Vec::new();
    for stage in &network.stages {
        let own = stage.declared.iter().any(|d| d.role == Role::Param);
        let fed = stage.wires.iter().any(|w| matches!(&w.from, WireSource::Stage(i, _) if trainable[*i]));
        trainable.push(own || fed);
    }
    trainable
}

fn wanted_inputs(network: &Network, stage: usize, trainable: &[bool]) -> BTreeSet<String> {
    let stage = &network.stages[stage];
    let is_real_input =
        |name: &str| stage.declared.iter().any(|d| d.name == name && d.role == Role::Input && d.elem == Elem::Real);
    let flows = |w: &&crate::model::Wire| {
        matches!(&w.from, WireSource::Stage(i, _) if trainable[*i]) && is_real_input(&w.input)
    };
    stage.wires.iter().filter(flows).map(|w| w.input.clone()).collect()
}

/// `done` holds the stages after `index`, last first.
fn readers(network: &Network, index: usize, done: &[StageEquations], count: usize) -> BTreeMap<String, Vec<Reader>> {
    let mut readers: BTreeMap<String, Vec<Reader>> = BTreeMap::new();
    for later in index + 1..count {
        let equations = &done[count - 1 - later];
        for wire in &network.stages[later].wires {
            if let WireSource::Stage(from, output) = &wire.from
                && *from == index
                && equations.wanted.contains(&wire.input)
            {
                readers.entry(output.clone()).or_default().push(Reader::Stage(later, wire.input.clone()));
            }
        }
    }
    if network.objective.0 == index {
        readers.entry(network.objective.1.clone()).or_default().push(Reader::Objective);
    }
    readers
}

fn derive(
    forward: &Program,
    readers: &BTreeMap<String, Vec<Reader>>,
    wanted: &BTreeSet<String>,
    report: &mut Report,
) -> Adjoint {
    let id = |name: &str, role: Role| forward.tensors.iter().position(|t| t.name == name && t.role == role);
    let counts: BTreeMap<TensorId, usize> =
        readers.iter().filter_map(|(name, list)| Some((id(name, Role::Output)?, list.len()))).collect();
    let wanted = wanted.iter().filter_map(|name| id(name, Role::Input)).collect();
    adjoint(forward, &counts, &wanted, report)
}
