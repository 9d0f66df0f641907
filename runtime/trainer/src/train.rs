//! Walk-forward training: each fold begins anew, trains a fixed number of epochs, and is scored on what comes after.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use unio::data::{Bars, Dataset, FoldData};
use unio::device::{Device, Kind, Real};
use unio::interface::Program;
use unio::run::Run;
use unio::{Launching, Mirror, Phase, STEPS_TOGETHER, Session, metrics};

use crate::TrainArgs;
use crate::feed;
use crate::perception::{artefacts, buffers, states};
use crate::report::{EpochMetrics, Report, memory, progress};
use crate::resume;

/// Trains a run as the arguments say.
pub fn train(args: &TrainArgs) -> Result<()> {
    let (mut run, program) = open(&args.run)?;
    run.epochs = args.epochs.unwrap_or(run.epochs);
    ensure!(run.epochs > 0, "--epochs 0 trains nothing: name at least 1");
    let mut folds = chosen(load(&run)?, args)?;
    let device = Device::open(args.device)?;
    println!("{}\nDevice: {}\n{}", run.doc, device.describe(), memory(program));
    let mut session = Session::new(&device, artefacts(), Real::F32)?;
    session.set_launching(if args.eager { Launching::Eager } else { Launching::Graph });
    let mirror = session.mirror()?;
    let folder = args.out.clone().unwrap_or_else(|| ["out", &run.name].iter().collect());
    let kept = resume::kept(args, &run, &folder, &mut folds, &mut session)?;
    let steps = folds.iter().map(|f| steps(f.train.len()) + steps(f.test.len())).sum::<usize>() * run.epochs;
    let (report, bar) = (Report::create(&folder, kept)?, progress(steps as u64));
    let mut trainer = Trainer { run, session, mirror, report, bar };
    for fold in &folds {
        trainer.fold(fold)?;
    }
    trainer.bar.finish_and_clear();
    trainer.report.finish(trainer.run.epochs);
    Ok(())
}

/// The folds that the arguments ask for.
fn chosen(mut folds: Vec<FoldData>, args: &TrainArgs) -> Result<Vec<FoldData>> {
    folds.truncate(args.folds.unwrap_or(folds.len()));
    let Some(number) = args.fold else { return Ok(folds) };
    let count = folds.len();
    folds.retain(|data| data.fold.number == number);
    ensure!(!folds.is_empty(), "--fold {number}: the run has the folds 1 to {count}");
    Ok(folds)
}

/// A run of the model that this trainer has.
pub fn open(path: &Path) -> Result<(Run, &'static Program)> {
    let run = Run::read(path)?;
    let program = artefacts().program.as_ref().context("the set has no model")?;
    ensure!(
        run.model == program.model,
        "{}: the model `{}` is not in this trainer, which has `{}`",
        path.display(),
        run.model,
        program.model
    );
    check_states(&run, path)?;
    Ok((run, program))
}

/// A run may set what the host sets, and nothing else; said before anything is written.
fn check_states(run: &Run, path: &Path) -> Result<()> {
    let free: Vec<&str> = artefacts().states.iter().filter(|s| s.writer.is_none()).map(|s| s.name.as_str()).collect();
    for name in run.states.keys() {
        ensure!(
            free.contains(&name.as_str()),
            "{}: the model has no state `{name}` for the host to set: known are {}",
            path.display(),
            free.join(", ")
        );
    }
    Ok(())
}

/// The data of every fold.
pub fn load(run: &Run) -> Result<Vec<FoldData>> {
    let bars = Bars::read(&run.data)?;
    let dataset = Dataset::new(&bars, &run.features(), run.horizon)?;
    check_groups(run)?;
    Ok(dataset.folds(&run.folds, size("K")?)?)
}

/// The model takes M groups of I features, and the slots of its selection mask name them.
fn check_groups(run: &Run) -> Result<()> {
    let (groups, features) = (size("M")?, size("I")?);
    let named = artefacts().slots.iter().find(|s| s.name == "vsn_mask_ema").map_or(&[][..], |s| &s.members);
    let found: Vec<&String> = run.groups.iter().map(|(name, _)| name).collect();
    ensure!(
        found.len() == groups && found.iter().copied().eq(named),
        "the run has the feature groups {found:?}, the model takes {named:?}: rename or complete `features`"
    );
    for (name, group) in &run.groups {
        ensure!(
            group.len() == features,
            "the group `{name}` has {} features, the model takes {features} a group: change `features` or the size I",
            group.len()
        );
    }
    Ok(())
}

fn size(name: &str) -> Result<usize> {
    let sizes = artefacts().program.iter().flat_map(|p| &p.sizes);
    sizes
        .into_iter()
        .find(|(n, _)| n == name)
        .map(|(_, size)| *size)
        .with_context(|| format!("the model has no size {name}"))
}

/// Samples a step.
pub fn batch() -> usize {
    artefacts().program.as_ref().map_or(1, |p| p.batch)
}

fn steps(rows: usize) -> usize {
    rows.div_ceil(batch())
}

struct Trainer {
    run: Run,
    session: Session,
    /// What the bar shows: steps that the device has taken, not those that it was asked for.
    mirror: Mirror,
    report: Report,
    bar: ProgressBar,
}

impl Trainer {
    fn fold(&mut self, data: &FoldData) -> Result<()> {
        for column in data.still_columns() {
            self.bar.suspend(|| println!("fold {}: {column}", data.fold.number));
        }
        self.bar.set_message(format!("fold {}", data.fold.number));
        resume::forget(self.report.folder(), data.fold.number)?;
        feed::begin(&mut self.session, &self.run, data)?;
        for epoch in 1..=self.run.epochs {
            let start = Instant::now();
            let train_loss = self.epoch(data, epoch)?;
            let metrics = self.test(data, epoch, train_loss, start)?;
            self.report.epoch(&self.bar, metrics)?;
        }
        let number = data.fold.number;
        self.session.save(resume::place(self.report.folder(), number), &resume::about(&self.run, data))?;
        Ok(())
    }

    /// Trains on every training row once, in an order of its own; gives the mean loss.
    fn epoch(&mut self, data: &FoldData, epoch: usize) -> Result<f64> {
        let rows = feed::begin_epoch(&mut self.session, &self.run, data, epoch)?;
        let mut left = steps(rows);
        // On the emulator, where steps take long, the bar moves after each.
        let most = if self.session.device().kind() == Kind::Cuda { STEPS_TOGETHER } else { 1 };
        while left > 0 {
            let taken = left.min(most);
            self.session.run_steps(Phase::Train, taken)?;
            self.show(data)?;
            left -= taken;
        }
        self.mean_loss()
    }

    /// Scores every test row; nothing that this learns is used for training.
    fn test(&mut self, data: &FoldData, epoch: usize, train_loss: f64, start: Instant) -> Result<EpochMetrics> {
        feed::start_rows(&mut self.session, data, &data.test)?;
        let mut scores: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        for first in (0..data.test.len()).step_by(batch()) {
            self.session.run(Phase::Evaluate)?;
            let live = batch().min(data.test.len() - first);
            for (head, buffer) in buffers::HEADS {
                let values = self.session.read(*buffer)?;
                scores.entry((*head).to_owned()).or_default().extend(&values[..live]);
            }
            self.show(data)?;
        }
        let auc = |(head, scores): (String, Vec<f32>)| {
            let auc = metrics::auc(&scores, &labels(data, &head));
            (head, auc)
        };
        Ok(EpochMetrics {
            fold: data.fold.number,
            epoch,
            train_loss,
            valid_loss: self.mean_loss()?,
            valid_auc: scores.into_iter().map(auc).collect(),
            slots: self.slots()?,
            steps_clipped: self.session.state(states::STEPS_CLIPPED)?,
            steps_skipped: self.session.state(states::STEPS_SKIPPED)?,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Moves the bar without waiting for the device.
    fn show(&self, data: &FoldData) -> Result<()> {
        if let Some(seen) = self.mirror.read()? {
            let loss = mean(seen.state(states::LOSS_SUM)?, seen.state(states::LOSS_ROWS)?);
            self.bar.set_position(seen.step());
            self.bar.set_message(format!("fold {}  loss {loss:.4}", data.fold.number));
        }
        Ok(())
    }

    fn mean_loss(&self) -> Result<f64> {
        Ok(mean(self.session.state(states::LOSS_SUM)?, self.session.state(states::LOSS_ROWS)?))
    }

    fn slots(&self) -> Result<BTreeMap<String, f32>> {
        let isv = self.session.isv()?;
        let mut slots = BTreeMap::new();
        for slot in &artefacts().slots {
            let names: Vec<String> = match slot.members.is_empty() {
                true => vec![slot.name.clone()],
                false => slot.members.iter().map(|m| format!("{}_{m}", slot.name)).collect(),
            };
            slots.extend(names.into_iter().enumerate().map(|(n, name)| (name, isv[slot.index + n])));
        }
        Ok(slots)
    }
}

fn mean(sum: f32, rows: i32) -> f64 {
    f64::from(sum) / f64::from(rows.max(1))
}

/// The test rows' labels for a head, which is named after them.
fn labels(data: &FoldData, head: &str) -> Vec<f32> {
    let all = if head == "direction" { &data.direction } else { &data.volatility };
    data.test.iter().map(|row| all[*row as usize]).collect()
}
