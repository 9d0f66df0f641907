//! A step as people look at it: its launches and what each waits for, as an aligned list, as Graphviz text, or drawn.
//!
//! Reads nothing but what the generator hands over, so that a drawing shows what the runtime builds.

use std::fmt::Write as _;

use layout::backends::svg::SVGWriter;
use layout::gv::{DotParser, GraphBuilder};
use unio_interface::edges::{direct, earlier, levels};
use unio_interface::{Artefacts, Launch};

use crate::diagnostics::{Code, Diagnostics};

/// Which launches are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A training step.
    Train,
    /// The forward part alone.
    Evaluate,
}

/// How they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawing {
    /// A list by level: what may run side by side stands in one level.
    Text,
    /// Text for Graphviz.
    Dot,
    /// A picture.
    Svg,
}

/// Launches with the edges that no others imply.
struct View<'a> {
    artefacts: &'a Artefacts,
    phase: Phase,
    launches: &'a [Launch],
    after: Vec<Vec<usize>>,
}

/// Shows a phase of a set's step.
///
/// # Errors
/// `U0301` for a set without launches; `U0703` where the picture cannot be made.
pub fn draw(artefacts: &Artefacts, phase: Phase, drawing: Drawing) -> Result<String, Diagnostics> {
    let Some(program) = &artefacts.program else {
        let label = format!("the set `{}` launches nothing, so that there is no step to show", artefacts.set);
        return Err(Diagnostics::global(Code::NameUnknown, label));
    };
    let launches = match phase {
        Phase::Train => program.train.as_slice(),
        Phase::Evaluate => program.evaluate.as_slice(),
    };
    let earlier = earlier(launches.iter().map(|launch| launch.after.as_slice()));
    let after = direct(&earlier, &vec![true; launches.len()]);
    let view = View { artefacts, phase, launches, after };
    match drawing {
        Drawing::Text => Ok(view.text()),
        Drawing::Dot => Ok(view.dot()),
        Drawing::Svg => svg(&view.dot()),
    }
}

impl View<'_> {
    fn text(&self) -> String {
        let levels = levels(&self.after);
        let last = levels.iter().max().map_or(0, |last| last + 1);
        let edges: usize = self.after.iter().map(Vec::len).sum();
        let (set, phase, launches) = (&self.artefacts.set, self.phase_name(), self.launches.len());
        let mut text = format!("{set}, {phase}: {launches} launches, {edges} edges, {last} levels\n");
        for level in 0..last {
            text.push('\n');
            let here = (0..launches).filter(|n| levels[*n] == level);
            here.for_each(|n| text.push_str(&self.line(level, n)));
        }
        text
    }

    fn line(&self, level: usize, n: usize) -> String {
        let launch = &self.launches[n];
        let names = self.launches.iter().map(|l| l.name.chars().count()).max().unwrap_or(0);
        let waits: Vec<&str> = self.after[n].iter().map(|b| self.launches[*b].name.as_str()).collect();
        let line = format!("{level:>4}  {:<names$}  {:<24}  {}", launch.name, self.shape(launch), waits.join(", "));
        format!("{}\n", line.trim_end())
    }

    /// Blocks and threads; a run that tells a length tells how many blocks.
    fn shape(&self, launch: &Launch) -> String {
        let kernel = &self.artefacts.kernels[launch.kernel];
        let told = launch.args.iter().any(|arg| matches!(arg, unio_interface::Arg::CountOf { .. }));
        let fixed = matches!(kernel.grid, unio_interface::Grid::Fixed(_));
        let blocks = if told && !fixed { "n".to_owned() } else { launch.grid.to_string() };
        let condition = kernel.grid.condition().map_or(String::new(), |c| format!(" if {c}"));
        format!("{blocks} x {}{condition}", kernel.threads)
    }

    fn dot(&self) -> String {
        let mut text = format!("digraph \"{} {}\" {{\n", self.artefacts.set, self.phase_name());
        text.push_str("  rankdir = TB;\n  node [shape = box];\n");
        for (n, launch) in self.launches.iter().enumerate() {
            // A string takes whatever is written to it.
            let _ = writeln!(text, "  n{n} [label = \"{}\\n{}\"];", launch.name, self.shape(launch));
        }
        for (n, after) in self.after.iter().enumerate() {
            after.iter().for_each(|before| text.push_str(&format!("  n{before} -> n{n};\n")));
        }
        text.push_str("}\n");
        text
    }

    fn phase_name(&self) -> &'static str {
        match self.phase {
            Phase::Train => "training",
            Phase::Evaluate => "evaluation",
        }
    }
}

fn svg(dot: &str) -> Result<String, Diagnostics> {
    let mut parser = DotParser::new(dot);
    let graph = parser.process().map_err(|error| Diagnostics::global(Code::Internal, format!("drawing: {error}")))?;
    let mut builder = GraphBuilder::new();
    builder.visit_graph(&graph);
    let mut writer = SVGWriter::new();
    builder.get().do_it(false, false, false, &mut writer);
    Ok(writer.finalize())
}
