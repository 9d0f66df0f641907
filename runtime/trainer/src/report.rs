//! What a run tells: lines for people, an object an epoch in `metrics.jsonl`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use unio::interface::Program;

use crate::perception::artefacts;

/// One epoch of one fold.
#[derive(Debug, Serialize)]
pub struct EpochMetrics {
    /// Fold, from 1.
    pub fold: usize,
    /// Epoch, from 1.
    pub epoch: usize,
    /// Mean loss over the training rows, while they were trained on.
    pub train_loss: f64,
    /// Mean loss over the test rows.
    pub valid_loss: f64,
    /// AUC over the test rows by head; null where one class is absent.
    pub valid_auc: BTreeMap<String, Option<f64>>,
    /// Slots of the ISV by name.
    pub slots: BTreeMap<String, f32>,
    /// Steps of the fold whose gradient was scaled down.
    pub steps_clipped: i32,
    /// Steps of the fold that were skipped because the gradient was not finite.
    pub steps_skipped: i32,
    /// Wall-clock seconds of training and test together.
    pub seconds: f64,
}

/// What is read again of a line of `metrics.jsonl`.
#[derive(Debug, Deserialize)]
pub struct Row {
    fold: usize,
    epoch: usize,
    valid_auc: BTreeMap<String, Option<f64>>,
}

/// Lines of `metrics.jsonl` with what they say, as they stand there: figures that are kept are not written anew.
pub struct Lines(Vec<(Row, String)>);

impl Lines {
    /// What a folder holds. A line that broke off, where a run was stopped, says nothing.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(METRICS);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("{} cannot be read", path.display()))?,
        };
        let row = |line: &str| Some((serde_json::from_str(line).ok()?, line.to_owned()));
        Ok(Self(text.lines().filter_map(row).collect()))
    }

    /// No line, for a run that begins anew.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Whether there are lines of a fold for just these epochs.
    pub fn has_all(&self, fold: usize, epochs: usize) -> bool {
        let found = self.0.iter().filter(|(row, _)| row.fold == fold).map(|(row, _)| row.epoch);
        found.eq(1..=epochs)
    }

    /// Leaves out a fold that is trained again.
    pub fn drop_fold(&mut self, fold: usize) {
        self.0.retain(|(row, _)| row.fold != fold);
    }
}

/// Name of the file of metrics.
const METRICS: &str = "metrics.jsonl";

/// Writes metrics as they come.
pub struct Report {
    file: File,
    folder: PathBuf,
    lines: Lines,
}

impl Report {
    /// Makes the folder and a `metrics.jsonl` in it that holds what is kept.
    pub fn create(folder: &Path, kept: Lines) -> Result<Self> {
        fs::create_dir_all(folder)
            .with_context(|| format!("the folder {} cannot be made: name another with --out", folder.display()))?;
        let path = folder.join(METRICS);
        let file = File::create(&path)
            .with_context(|| format!("{} cannot be written: name another folder with --out", path.display()))?;
        let mut report = Self { file, folder: folder.into(), lines: kept };
        let kept: String = report.lines.0.iter().map(|(_, line)| format!("{line}\n")).collect();
        report.write(&kept)?;
        Ok(report)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.file.write_all(text.as_bytes()).with_context(|| format!("{METRICS} cannot be written: is the disk full?"))
    }

    /// Adds an epoch.
    pub fn epoch(&mut self, bar: &ProgressBar, metrics: EpochMetrics) -> Result<()> {
        let line = serde_json::to_string(&metrics)?;
        self.write(&format!("{line}\n"))?;
        bar.suspend(|| println!("{}", describe(&metrics)));
        let row = Row { fold: metrics.fold, epoch: metrics.epoch, valid_auc: metrics.valid_auc };
        self.lines.0.push((row, line));
        Ok(())
    }

    /// Prints what the last epochs scored, and where the figures are.
    pub fn finish(&self, epochs: usize) {
        let last: Vec<&Row> = self.lines.0.iter().map(|(row, _)| row).filter(|r| r.epoch == epochs).collect();
        println!("\nTest AUC of the last epoch, mean over {} folds (a random guess scores 0.5):", last.len());
        for head in last.iter().flat_map(|r| r.valid_auc.keys()).collect::<std::collections::BTreeSet<_>>() {
            let scores: Vec<f64> = last.iter().filter_map(|r| *r.valid_auc.get(head)?).collect();
            let list: Vec<String> = scores.iter().map(|s| format!("{s:.4}")).collect();
            println!("  {head:<12} {:.4}   ({})", scores.iter().sum::<f64>() / scores.len() as f64, list.join(", "));
        }
        println!("Metrics and checkpoints are in {}.", self.folder.display());
    }

    /// Where the run leaves its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn describe(m: &EpochMetrics) -> String {
    let auc =
        |(head, value): (&String, &Option<f64>)| format!("{head} {}", value.map_or("–".into(), |v| format!("{v:.4}")));
    let auc: Vec<String> = m.valid_auc.iter().map(auc).collect();
    // Families would fill the screen; they are in the file.
    let single = |name: &&String| artefacts().slots.iter().any(|slot| slot.members.is_empty() && slot.name == **name);
    let slots: Vec<String> = m.slots.keys().filter(single).map(|name| format!("{name} {:.3}", m.slots[name])).collect();
    format!(
        "fold {} epoch {:>2}  train {:.4}  test {:.4}  AUC {}  |  {}  ({:.1?})",
        m.fold,
        m.epoch,
        m.train_loss,
        m.valid_loss,
        auc.join(" "),
        slots.join("  "),
        Duration::try_from_secs_f64(m.seconds).unwrap_or_default()
    )
}

/// What a step's gradients take on the device until they are summed.
pub fn memory(program: &Program) -> String {
    let scratch = program.buffers.iter().find(|b| b.name == "gradient_scratch").and_then(|b| b.len);
    match scratch.filter(|len| *len > 0) {
        Some(len) => {
            let (batch, bytes) = (program.batch, len * size_of::<f32>());
            format!("Gradient scratch: {batch} samples × {} parameters × 4 = {bytes} bytes", len / batch)
        }
        None => "Gradient scratch: none, all gradients are deferred".into(),
    }
}

/// A bar over all steps of a run.
pub fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} steps  {elapsed} of {duration}  {msg}");
    let bar = ProgressBar::new(steps);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
