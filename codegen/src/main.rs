//! The command `unio`: generate, check and look at spec sets.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use unio_codegen::Code;
use unio_codegen::build::{Generated, explain_dir, generate, set_dirs};
use unio_codegen::interface::Artefacts;
use unio_codegen::view;

/// Unio's code generator.
#[derive(Parser)]
#[command(name = "unio", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Folder that holds `specs/` and `kernels-generated/`.
    #[arg(long, global = true, default_value = ".")]
    root: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Refresh `kernels-generated/` and the layout locks.
    Gen {
        /// Only compare; fail where something is stale.
        #[arg(long)]
        check: bool,
    },
    /// Check all sets, or those given, without writing.
    Check {
        /// Folders of sets.
        sets: Vec<PathBuf>,
    },
    /// Show the slots of a set: index, law, who writes and who reads.
    Slots {
        /// Folder of the set.
        set: PathBuf,
        /// How to print them.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Show what the generator makes of a stage: equations, adjoint, where each value lives, launch shapes, memory.
    Explain {
        /// Folder of the set.
        set: PathBuf,
        /// Stage, or block; all stages if left out.
        name: Option<String>,
    },
    /// Show a step's launches and what each waits for; what may run side by side stands in one level.
    Plan {
        /// Folder of the set.
        set: PathBuf,
        /// How to show them.
        #[arg(long, value_enum, default_value = "text")]
        format: Drawing,
        /// Which launches.
        #[arg(long, value_enum, default_value = "train")]
        phase: Phase,
    },
    /// Print the schema of spec files, for editors.
    Schema,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Table,
    Json,
}

#[derive(Clone, Copy, ValueEnum)]
enum Drawing {
    /// An aligned list by level.
    Text,
    /// Text for Graphviz.
    Dot,
    /// A picture.
    Svg,
}

#[derive(Clone, Copy, ValueEnum)]
enum Phase {
    /// A training step.
    Train,
    /// The forward part alone.
    Evaluate,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    match &cli.command {
        Command::Gen { check } => generate_all(&cli.root, *check),
        Command::Check { sets } => check(&cli.root, sets),
        Command::Slots { set, format } => slots(&Generated::of_dir(set)?.compiled.artefacts, *format),
        Command::Explain { set, name } => {
            print!("{}", explain_dir(set, name.as_deref())?);
            Ok(())
        }
        Command::Plan { set, format, phase } => {
            let text = view::draw(&Generated::of_dir(set)?.compiled.artefacts, (*phase).into(), (*format).into())?;
            // Not by a macro, which would panic where a reader such as `head` has seen enough.
            std::io::stdout().write_all(text.as_bytes()).context("the step cannot be printed")
        }
        Command::Schema => {
            print!("{}", unio_codegen::emit::schema());
            Ok(())
        }
    }
}

impl From<Drawing> for view::Drawing {
    fn from(drawing: Drawing) -> Self {
        match drawing {
            Drawing::Text => Self::Text,
            Drawing::Dot => Self::Dot,
            Drawing::Svg => Self::Svg,
        }
    }
}

impl From<Phase> for view::Phase {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Train => Self::Train,
            Phase::Evaluate => Self::Evaluate,
        }
    }
}

fn generate_all(root: &Path, check_only: bool) -> Result<()> {
    let difference = generate(root, check_only)?;
    for path in &difference.stale {
        println!("{} {path}", if check_only { "stale" } else { "wrote" });
    }
    for path in &difference.orphans {
        println!("{} {path}", if check_only { "orphan" } else { "removed" });
    }
    if check_only && !difference.is_empty() {
        let stale = Code::Stale;
        bail!("error[{}]: {}: {}", stale.id(), stale.title(), stale.cure());
    }
    Ok(())
}

fn check(root: &Path, sets: &[PathBuf]) -> Result<()> {
    let sets = if sets.is_empty() { set_dirs(root)? } else { sets.to_vec() };
    let mut failed = Vec::new();
    for dir in sets {
        match Generated::of_dir(&dir) {
            Ok(set) => {
                println!("{}: {}", dir.display(), summary(&set.compiled.artefacts));
                set.compiled.hints.iter().for_each(|hint| println!("  hint: {hint}"));
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n\n")) }
}

fn summary(artefacts: &Artefacts) -> String {
    let launches = artefacts.program.as_ref().map_or(0, |p| p.train.len());
    let (kernels, slots) = (artefacts.kernels.len(), artefacts.isv_len);
    format!("ok, {kernels} kernels, {slots} slots, {launches} launches a step")
}

fn slots(artefacts: &Artefacts, format: Format) -> Result<()> {
    let rows: Vec<serde_json::Value> = artefacts.slots.iter().flat_map(rows).collect();
    match format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&rows)?),
        Format::Table => rows.iter().for_each(|row| println!("{}", line(row))),
    }
    Ok(())
}

/// One row an index of the ISV.
fn rows(slot: &unio_codegen::interface::Slot) -> Vec<serde_json::Value> {
    let members: Vec<Option<&String>> =
        if slot.members.is_empty() { vec![None] } else { slot.members.iter().map(Some).collect() };
    let row = |(n, member): (usize, Option<&String>)| {
        let scratch = slot.scratch.map(|s| s + n);
        serde_json::json!({
            "index": slot.index + n,
            "name": member.map_or(slot.name.clone(), |m| unio_codegen::names::slot_member(&slot.name, m)),
            "family": slot.name,
            "member": member,
            "scratch": scratch,
            "wiener": scratch.map(|s| [3 * s, 3 * s + 3]),
            "producer": slot.producer,
            "smooth": slot.smooth,
            "readers": readers(slot, member),
            "reset": slot.reset,
        })
    };
    members.into_iter().enumerate().map(row).collect()
}

/// Who reads this member: those that name no member, or this one.
fn readers<'s>(slot: &'s unio_codegen::interface::Slot, member: Option<&String>) -> Vec<&'s String> {
    let names = |reader: &str, member: &str| reader.ends_with(&format!(" {member})"));
    let others = slot.members.iter().filter(|m| Some(*m) != member).collect::<Vec<_>>();
    slot.readers.iter().filter(|reader| !others.iter().any(|other| names(reader, other))).collect()
}

fn line(row: &serde_json::Value) -> String {
    let text = |key: &str| match &row[key] {
        serde_json::Value::String(s) => s.clone(),
        serde_json::Value::Null => "–".into(),
        other => other.to_string(),
    };
    let readers: Vec<&str> = row["readers"].as_array().into_iter().flatten().filter_map(|r| r.as_str()).collect();
    format!(
        "{:>4}  {:<28} {:<18} {:<10} {:<6} {}",
        text("index"),
        text("name"),
        text("producer"),
        text("smooth"),
        text("reset"),
        readers.join(", ")
    )
}
