//! `trainer bench`: what each kernel of the trainer's sets costs, alone and in the step.

mod measure;
mod table;

use std::io::Write;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use unio::bench::Repeats;
use unio::device::{Device, Kind, Target};
use unio::interface::Artefacts;

use crate::{perception, sp4};

/// What to measure, where, and how to show it.
#[derive(clap::Args)]
pub struct BenchArgs {
    /// How to show the figures.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Device: auto, cuda or emulator.
    #[arg(long, default_value = "auto")]
    device: Target,
    /// Only kernels and entries whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// Memory bandwidth that the floor is reckoned with, in TB/s; 4.3 was seen on an H200.
    #[arg(long, default_value_t = 4.3)]
    bandwidth: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// All figures of a run.
#[derive(Serialize)]
struct Report {
    device: String,
    /// Whose clock measured.
    clock: &'static str,
    /// TB/s behind the floor.
    bandwidth: f64,
    /// Launches in a graph, and replays whose median counts.
    steps: usize,
    replays: usize,
    kernels: Vec<KernelRow>,
    whole_steps: Vec<StepRow>,
    findings: Vec<String>,
}

/// A kernel, or all launches of an entry, at one size.
#[derive(Serialize)]
struct KernelRow {
    set: String,
    kernel: String,
    /// Launches behind the figure: several for an entry as a whole.
    launches: usize,
    /// Elements or rows; absent where the text fixes the size.
    n: Option<usize>,
    /// Whether `n` is the step's own.
    compiled: bool,
    #[serde(flatten)]
    figures: Option<Figures>,
    /// Why there are no figures.
    error: Option<String>,
}

#[derive(Serialize)]
struct Figures {
    hot_us: f64,
    cold_us: Option<f64>,
    bytes: u64,
    floor_us: f64,
    /// Floor by cold time, or by hot time where there is no other.
    share: f64,
    blocks: u32,
    threads: u32,
    registers: Option<u32>,
    /// Static and dynamic.
    shared_bytes: u32,
    local_bytes: Option<u32>,
    occupancy: Option<f64>,
}

/// A whole training step of a set.
#[derive(Serialize)]
struct StepRow {
    set: String,
    nodes: usize,
    edges: usize,
    levels: usize,
    eager_us: f64,
    graph_us: f64,
    /// Where so many steps share a graph.
    together: usize,
    together_us: f64,
    /// Launches of producers and scalar updates, what they take as a graph of their own, and what they add to a step.
    control_nodes: usize,
    control_us: f64,
    control_added_us: f64,
    control_added_together_us: f64,
}

/// How much is measured.
struct Scale {
    repeats: Repeats,
    /// Elements where the run tells how many.
    sizes: &'static [usize],
    /// Rows of the buffers that the run fills, in the whole step.
    rows: usize,
    cold: bool,
}

impl Scale {
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Cuda => Self {
                repeats: Repeats { steps: 100, replays: 20 },
                sizes: &[1 << 16, 1 << 20],
                rows: 4096,
                cold: true,
            },
            // Its times say little; they show that the measuring works.
            Kind::Emulator => Self { repeats: Repeats { steps: 2, replays: 3 }, sizes: &[4096], rows: 64, cold: false },
        }
    }
}

/// Measures and prints.
pub fn bench(args: &BenchArgs) -> Result<()> {
    ensure!(args.bandwidth > 0.0, "--bandwidth {} is no bandwidth: name TB/s above 0", args.bandwidth);
    let device = Device::open(args.device)?;
    let scale = Scale::of(device.kind());
    let mut report = Report {
        device: device.describe(),
        clock: match device.kind() {
            Kind::Cuda => "events of the card",
            Kind::Emulator => "the host's clock",
        },
        bandwidth: args.bandwidth,
        steps: scale.repeats.steps,
        replays: scale.repeats.replays,
        kernels: Vec::new(),
        whole_steps: Vec::new(),
        findings: Vec::new(),
    };
    for artefacts in sets() {
        measure::set(&device, artefacts, &scale, args, &mut report)?;
    }
    ensure!(
        !report.kernels.is_empty() || args.filter.is_none(),
        "no kernel is named so: --filter {}",
        args.filter.as_deref().unwrap_or_default()
    );
    report.findings = findings(&report.kernels);
    let text = match args.format {
        Format::Json => serde_json::to_string_pretty(&report)? + "\n",
        Format::Table => table::text(&report),
    };
    // Not by a macro, which would panic where a reader such as `head` has seen enough.
    std::io::stdout().write_all(text.as_bytes()).context("the figures cannot be printed")
}

fn sets() -> [&'static Artefacts; 2] {
    [perception::artefacts(), sp4::artefacts()]
}

/// Kernels whose registers do not suffice, once each.
fn findings(rows: &[KernelRow]) -> Vec<String> {
    let spill = |row: &KernelRow| {
        let bytes = row.figures.as_ref()?.local_bytes.filter(|bytes| *bytes > 0)?;
        Some(format!("{}: {bytes} bytes of local memory a thread: spilled, or in arrays", row.kernel))
    };
    let mut found: Vec<String> = rows.iter().filter(|row| row.launches == 1).filter_map(spill).collect();
    found.dedup();
    found
}
