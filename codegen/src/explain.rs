//! A stage as the generator sees it, for people: its equations, its adjoint, where every value lives, what it takes.

use std::fmt::{self, Write as _};

use crate::diagnostics::{Code, Diagnostics};
use crate::equations::{Equations, StageEquations};
use crate::lower::Kernel;
use crate::math::{Program, TensorId};
use crate::model::{Model, Network, Stage};
use crate::names;
use crate::plan::{BlockBody, Body, Buffer, Home, KernelPlan, Parallel, Phase, Plan, StageKernels};
use crate::spec::Spec;
use crate::spec::entries::Gradients;

/// Bytes of a real number in a step that trains.
const REAL: usize = 4;

/// A set with everything that is known of its stages.
pub struct Explained<'a> {
    /// As written.
    pub spec: &'a Spec,
    /// Resolved.
    pub model: &'a Model,
    /// Programs and adjoints.
    pub equations: &'a Equations,
    /// Kernels and buffers.
    pub plan: &'a Plan,
    /// Launch shapes.
    pub kernels: &'a [Kernel],
}

impl Explained<'_> {
    /// The stages of this name, those of the block of this name, or all.
    ///
    /// # Errors
    /// `U0301` for a name that is neither; `U0401` for a block that no stage is made of.
    pub fn text(&self, name: Option<&str>) -> Result<String, Diagnostics> {
        let Some(network) = &self.model.network else {
            return Err(Diagnostics::global(Code::NameUnknown, "the set has no model, and only a model has stages"));
        };
        let chosen = |s: &&Stage| name.is_none_or(|name| s.name == name || s.block == name);
        let stages: Vec<&Stage> = network.stages.iter().filter(chosen).collect();
        if let (true, Some(name)) = (stages.is_empty(), name) {
            return Err(self.unknown(network, name));
        }
        let mut text = String::new();
        for stage in stages {
            // A string takes whatever is written to it.
            let _ = self.stage(&mut text, network, stage);
            text.push('\n');
        }
        let _ = totals(&mut text, network, self.plan);
        Ok(text)
    }

    fn unknown(&self, network: &Network, name: &str) -> Diagnostics {
        if self.spec.blocks.iter().any(|b| b.name == name) {
            let label = format!("no stage is made of the block `{name}`, and only a stage gives it sizes");
            return Diagnostics::global(Code::SizeUnknown, label);
        }
        let known: Vec<&str> = network.stages.iter().map(|s| s.name.as_str()).collect();
        let label = format!("no stage or block `{name}`; the stages are {}", known.join(", "));
        Diagnostics::global(Code::NameUnknown, label)
    }

    fn stage(&self, text: &mut String, network: &Network, stage: &Stage) -> fmt::Result {
        let index = network.stages.iter().position(|s| s.name == stage.name).unwrap_or(0);
        let (eq, kernels) = (&self.equations.stages[index], &self.plan.stages[index]);
        let scan = match (&stage.spread, &stage.scan) {
            (Some((over, n)), _) => format!(", for each of {n} {over}, a CUDA block each"),
            (None, Some((over, n))) => format!(", a scan over {over} of {n} steps"),
            (None, None) => String::new(),
        };
        writeln!(text, "stage {}: block {}{scan}, {} samples", stage.name, stage.block, network.batch)?;
        program(text, "equations, in normal form", &eq.forward)?;
        match &eq.adjoint {
            Some(adjoint) => program(text, "adjoint", &adjoint.program)?,
            None => writeln!(text, "\n  no adjoint: no gradient flows through it")?,
        }
        kept(text, eq)?;
        for kernel in [Some(kernels.forward), kernels.adjoint, kernels.gradients].into_iter().flatten() {
            self.kernel(text, kernel)?;
        }
        memory(text, network, stage, self.plan, kernels)
    }

    fn kernel(&self, text: &mut String, index: usize) -> fmt::Result {
        let (planned, lowered) = (&self.plan.kernels[index], &self.kernels[index]);
        let shared = lowered.shared.total(REAL as u32);
        let blocks = counted(lowered.grid.blocks(0) as usize, "block");
        let barriers = match &planned.body {
            Body::Block(body) => format!(", {}", barriers(body)),
            _ => String::new(),
        };
        let symbol = &lowered.symbol;
        writeln!(
            text,
            "\n  kernel {symbol}: {blocks} of {} threads{barriers}, {shared} bytes shared",
            lowered.threads
        )?;
        match &planned.body {
            Body::Block(body) => homes(text, planned, body),
            Body::Gradients(body) => {
                let lines = body.program.assigns().map(|(a, _)| body.program.assignment(a));
                lines.for_each(|line| text.push_str(&format!("    {line}\n")));
                let place = |(id, param): (&TensorId, &usize)| row(&body.program, *id, &global(planned, *param));
                table(text, body.params.iter().map(place).collect())
            }
            _ => Ok(()),
        }
    }
}

/// A program's lines, moved in.
fn program(text: &mut String, title: &str, program: &Program) -> fmt::Result {
    writeln!(text, "\n  {title}")?;
    program.to_string().lines().try_for_each(|line| writeln!(text, "    {line}"))
}

/// What the forward kernel leaves for the adjoint, and what the adjoint makes anew.
fn kept(text: &mut String, eq: &StageEquations) -> fmt::Result {
    let Some(adjoint) = &eq.adjoint else { return Ok(()) };
    let names = |ids: &[TensorId]| {
        let names: Vec<&str> = ids.iter().map(|id| eq.forward.tensors[*id].name.as_str()).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    };
    writeln!(text, "\n  forward saves        {}", names(&adjoint.saved))?;
    writeln!(text, "  backward recomputes  {}", names(&adjoint.recomputed))
}

fn homes(text: &mut String, kernel: &KernelPlan, body: &BlockBody) -> fmt::Result {
    let scanned = body.program.scan().map(|s| body.program.vars[s.var].extent);
    let place = |(id, home): (&TensorId, &Home)| {
        let steps = scanned.is_some() && body.program.tensors[*id].shape.first() == scanned.as_ref();
        let mut places = Vec::new();
        let is_kept = phases(&body.phases).any(|phase| phase.kept.contains(id));
        places.extend(is_kept.then(|| "registers, through all steps".to_owned()));
        places.extend(home.shared.map(|_| match (home.one_step, steps) {
            _ if home.passes.is_some() => "shared, on the way there".to_owned(),
            _ if home.staged.is_some() => "shared, copied at the start".to_owned(),
            (true, _) => "shared, one step".to_owned(),
            (false, true) => "shared, all steps".to_owned(),
            (false, false) => "shared".to_owned(),
        }));
        places.extend(home.global.map(|param| global(kernel, param)));
        let place = if places.is_empty() { "register".to_owned() } else { places.join("; ") };
        row(&body.program, *id, &place)
    };
    table(text, body.homes.iter().map(place).collect())
}

/// The parallel phases of a kernel, those of its scan among them.
fn phases(all: &[Phase]) -> impl Iterator<Item = &Parallel> {
    let inner = all.iter().flat_map(|p| if let Phase::Loop { body, .. } = p { body.as_slice() } else { &[] });
    all.iter().chain(inner).filter_map(|p| if let Phase::Parallel(phase) = p { Some(phase) } else { None })
}

fn row(program: &Program, id: TensorId, place: &str) -> [String; 3] {
    let tensor = &program.tensors[id];
    [tensor.name.clone(), shape(&tensor.shape), place.to_owned()]
}

fn global(kernel: &KernelPlan, param: usize) -> String {
    use unio_interface::{Access, Role};
    let param = &kernel.params[param];
    let access = match param.access {
        Access::In => "read",
        Access::Out => "written",
        Access::InOut => "read and written",
    };
    let place = match param.role {
        Role::ParamGradient(_) => "gradient scratch",
        Role::GradientOf(_) => "gradients",
        _ => "global",
    };
    format!("{place}, {access}")
}

fn barriers(body: &BlockBody) -> String {
    let count = |phases: &[Phase]| phases.iter().filter(|p| matches!(p, Phase::Barrier)).count();
    let looped = body.phases.iter().find_map(|p| if let Phase::Loop { body, .. } = p { Some(body) } else { None });
    // Each turn of parameters that go through shared memory takes two.
    let passed = 2 * body.homes.values().filter_map(|home| home.passes).max().map_or(0, |last| last + 1);
    let outside = counted(count(&body.phases) + passed, "barrier");
    let steps = looped.map_or(String::new(), |inner| format!(" and {} a step", count(inner)));
    let samples = match (body.single, body.rows) {
        (true, _) => format!(", {} samples one after the other", body.batch),
        (false, 1) => String::new(),
        (false, rows) => format!(", {rows} samples a block"),
    };
    format!("{outside}{steps}{samples}")
}

/// Buffers of a stage, and its part of the scratch.
fn memory(text: &mut String, network: &Network, stage: &Stage, plan: &Plan, kernels: &StageKernels) -> fmt::Result {
    let own = format!("{}.", stage.name);
    let buffers = plan.buffers.iter().filter(|b| b.name.starts_with(&own));
    writeln!(text, "\n  buffers")?;
    table(text, buffers.map(|b| [b.name.clone(), shape(&b.shape), bytes(size(b))]).collect())?;
    let params = network.params.iter().filter(|p| p.path.starts_with(&own)).map(|p| p.len()).sum::<usize>();
    let scratch = match (stage.schedule.gradients, kernels.gradients) {
        (Gradients::Deferred, Some(_)) => {
            let kept = names::stage_kept(&stage.name, "adjoint", "");
            let deltas = plan.buffers.iter().filter(|b| b.name.starts_with(&kept)).map(size).sum();
            format!("none: its gradients are deferred, the adjoint keeps {} for them", bytes(deltas))
        }
        _ => format!(
            "{} samples × {params} parameters × {REAL} = {}",
            network.batch,
            bytes(network.batch * params * REAL)
        ),
    };
    writeln!(text, "\n  gradient scratch  {scratch}")
}

/// What the model takes as a whole.
fn totals(text: &mut String, network: &Network, plan: &Plan) -> fmt::Result {
    let scratch = plan.buffers.iter().filter(|b| b.name == "gradient_scratch").map(size).sum();
    let all = plan.buffers.iter().map(size).sum();
    writeln!(text, "model {}", network.name)?;
    writeln!(text, "  gradient scratch  {}", bytes(scratch))?;
    writeln!(text, "  all buffers       {}, those of any length aside", bytes(all))
}

fn size(buffer: &Buffer) -> usize {
    let element = if buffer.elem == unio_interface::Elem::F64 { 8 } else { REAL };
    buffer.shape.iter().product::<usize>() * element
}

fn table(text: &mut String, rows: Vec<[String; 3]>) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    rows.iter().try_for_each(|[a, b, c]| writeln!(text, "    {a:<first$}  {b:<second$}  {c}"))
}

fn shape(shape: &[usize]) -> String {
    let extents: Vec<String> = shape.iter().map(|n| if *n == 0 { "*".to_owned() } else { n.to_string() }).collect();
    format!("[{}]", extents.join(","))
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Bytes as people read them.
fn bytes(n: usize) -> String {
    match n {
        n if n < 10 << 10 => format!("{n} bytes"),
        n if n < 10 << 20 => format!("{:.1} KiB", n as f64 / 1024.0),
        n => format!("{:.1} MiB", n as f64 / 1024.0 / 1024.0),
    }
}
