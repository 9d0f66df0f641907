//! The command `trainer`: trains the generated model on market data, fold by fold; measures the generated kernels.

mod bench;
mod feed;
mod report;
mod resume;
mod trace;
mod train;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use unio::device::Target;

unio::specs!();

/// Run that is trained where none is named.
const DEFAULT_RUN: &str = "specs/runs/sp500.toml";

/// Trains models that Unio generated.
#[derive(Parser)]
#[command(name = "trainer", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Train a run: walk forward over its folds, score the last epoch of each.
    Train(TrainArgs),
    /// Measure every kernel of the trainer's sets, and their steps.
    Bench(bench::BenchArgs),
    /// Train one fold's first steps, and write what another program needs to check every number of them.
    Trace(trace::TraceArgs),
}

/// What to train, where, and where to leave the results.
#[derive(clap::Args)]
struct TrainArgs {
    /// Run file.
    #[arg(default_value = DEFAULT_RUN)]
    run: PathBuf,
    /// Device: auto, cuda or emulator.
    #[arg(long, default_value = "auto")]
    device: Target,
    /// Folder for metrics and checkpoints; `out/RUN` if left out.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Train so many epochs a fold instead of the run's.
    #[arg(long)]
    epochs: Option<usize>,
    /// Stop after so many folds.
    #[arg(long)]
    folds: Option<usize>,
    /// Train this fold alone, counted from 1; what the folder holds of the others stays.
    #[arg(long, conflicts_with = "folds")]
    fold: Option<usize>,
    /// Go on where a run stopped: folds that the folder holds whole are not trained again.
    #[arg(long)]
    resume: bool,
    /// Launch kernels one by one instead of a step's graph; the results are the same.
    #[arg(long)]
    eager: bool,
}

impl Default for TrainArgs {
    fn default() -> Self {
        Self {
            run: DEFAULT_RUN.into(),
            device: Target::Auto,
            out: None,
            epochs: None,
            folds: None,
            fold: None,
            resume: false,
            eager: false,
        }
    }
}

fn main() -> ExitCode {
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_ansi(ansi)
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .without_time()
        .with_target(false)
        .init();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        None => train::train(&TrainArgs::default()),
        Some(Command::Train(args)) => train::train(&args),
        Some(Command::Bench(args)) => bench::bench(&args),
        Some(Command::Trace(args)) => trace::trace(&args),
    }
}
