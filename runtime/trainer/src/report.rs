//! What a run tells: lines for people, an object an epoch in `metrics.jsonl`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use unio::interface::Program;

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
    /// Steps whose gradient was scaled down, and skipped because it was not finite.
    pub steps_clipped: i32,
    /// Since the run began.
    pub steps_skipped: i32,
    /// Wall-clock seconds of training and test together.
    pub seconds: f64,
}

/// Writes metrics as they come.
pub struct Report {
    file: File,
    folder: PathBuf,
    rows: Vec<EpochMetrics>,
}

impl Report {
    /// Makes the folder and an empty `metrics.jsonl` in it.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)
            .with_context(|| format!("the folder {} cannot be made: name another with --out", folder.display()))?;
        let path = folder.join("metrics.jsonl");
        let file = File::create(&path)
            .with_context(|| format!("{} cannot be written: name another folder with --out", path.display()))?;
        Ok(Self { file, folder: folder.into(), rows: Vec::new() })
    }

    /// Adds an epoch.
    pub fn epoch(&mut self, bar: &ProgressBar, metrics: EpochMetrics) -> Result<()> {
        let line = serde_json::to_string(&metrics)?;
        writeln!(self.file, "{line}").context("metrics.jsonl cannot be written: is the disk full?")?;
        bar.suspend(|| println!("{}", describe(&metrics)));
        self.rows.push(metrics);
        Ok(())
    }

    /// Prints what the last epochs scored, and where the figures are.
    pub fn finish(&self, epochs: usize) {
        let last: Vec<&EpochMetrics> = self.rows.iter().filter(|r| r.epoch == epochs).collect();
        println!("\nTest AUC of the last epoch, mean over {} folds (a random guess scores 0.5):", last.len());
        for head in last.iter().flat_map(|r| r.valid_auc.keys()).collect::<std::collections::BTreeSet<_>>() {
            let scores: Vec<f64> = last.iter().filter_map(|r| r.valid_auc[head]).collect();
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
    let slots: Vec<String> = m.slots.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
    format!(
        "fold {} epoch {:>2}  train {:.4}  test {:.4}  AUC {}  |  {}  ({:.1} s)",
        m.fold,
        m.epoch,
        m.train_loss,
        m.valid_loss,
        auc.join(" "),
        slots.join("  "),
        m.seconds
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
