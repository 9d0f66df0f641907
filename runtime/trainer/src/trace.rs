//! `trainer trace`: a fold's first steps, with every number that another program needs to check them.
//!
//! | file | what it holds |
//! |---|---|
//! | `start.safetensors` | parameters by name before the first step |
//! | `data.safetensors` | what the run keeps on the device; `order` is the first epoch's |
//! | `order-E.safetensors` | `order` of a later epoch |
//! | `step-1.safetensors` | everything that the first step computed: values, cotangents, gradients |
//! | `params-N.safetensors` | parameters after N steps, for powers of ten and the last step |
//! | `steps.jsonl` | an object a step: the loss, all slots, and the scalars that each launch was given |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use unio::data::FoldData;
use unio::device::{Device, Real, Target};
use unio::interface::{Buffer, Program};
use unio::run::Run;
use unio::{Phase, Session};

use crate::perception::artefacts;
use crate::train::{batch, load, open};
use crate::{DEFAULT_RUN, feed};

/// A gradient a sample: `grads` has their sum, and it would be most of the trace.
const NOT_TRACED: &str = "gradient_scratch";

/// What to trace, and where.
#[derive(clap::Args)]
pub struct TraceArgs {
    /// Run file.
    #[arg(default_value = DEFAULT_RUN)]
    run: PathBuf,
    /// Folder for the trace.
    #[arg(long)]
    out: PathBuf,
    /// How many steps.
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Type of the model's numbers; slots and states are always f32.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    real: Precision,
    /// Device: auto, cuda or emulator.
    #[arg(long, default_value = "auto")]
    device: Target,
    /// Fold, from 1.
    #[arg(long, default_value_t = 1)]
    fold: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Precision {
    F32,
    F64,
}

impl From<Precision> for Real {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::F64 => Self::F64,
        }
    }
}

/// A line of `steps.jsonl`.
#[derive(Serialize)]
struct Step {
    #[serde(flatten)]
    at: Place,
    /// The objective, mean over the batch.
    loss: f64,
    /// Every slot after the step: one number, or one a member.
    slots: BTreeMap<String, Vec<f32>>,
    /// What each launch read of slots, states and observations, by its kernel's names.
    read: Scalars,
}

/// Where a step stands.
#[derive(Clone, Copy, Default, Serialize)]
struct Place {
    /// From 1.
    step: usize,
    /// From 1.
    epoch: usize,
    /// First entry of `order` that the step takes.
    cursor: usize,
    /// How many entries of `order` the epoch has.
    rows: usize,
}

/// By launch and name.
type Scalars = BTreeMap<String, BTreeMap<String, f64>>;

/// Traces as the arguments say.
pub fn trace(args: &TraceArgs) -> Result<()> {
    ensure!(args.steps > 0, "--steps 0 traces nothing: name at least 1");
    let (run, program) = open(&args.run)?;
    let folds = load(&run)?;
    let data = args.fold.checked_sub(1).and_then(|at| folds.get(at));
    let data = data.with_context(|| format!("there is no fold {}: the run has {}, from 1", args.fold, folds.len()))?;
    let device = Device::open(args.device)?;
    let session = Session::new(&device, artefacts(), args.real.into())?;
    let folder = &args.out;
    fs::create_dir_all(folder)
        .with_context(|| format!("the folder {} cannot be made: name another with --out", folder.display()))?;
    println!("Device: {}", device.describe());
    let loss = Tracer { run: &run, data, program, session, folder }.steps(args.steps)?;
    println!("{} steps, the last at a loss of {loss:.6}; the trace is in {}.", args.steps, folder.display());
    Ok(())
}

struct Tracer<'a> {
    run: &'a Run,
    data: &'a FoldData,
    program: &'a Program,
    session: Session,
    folder: &'a Path,
}

impl Tracer<'_> {
    /// Takes all steps; gives the last one's loss.
    fn steps(&mut self, count: usize) -> Result<f64> {
        feed::begin(&mut self.session, self.run, self.data)?;
        self.export("start", &["params"])?;
        let mut lines = File::create(self.folder.join("steps.jsonl")).context("steps.jsonl cannot be made")?;
        let (mut at, mut loss) = (Place::default(), 0.0);
        for step in 1..=count {
            at = self.next(at)?;
            let line = self.step(at)?;
            loss = line.loss;
            writeln!(lines, "{}", serde_json::to_string(&line)?).context("steps.jsonl cannot be written")?;
            if step == 1 {
                self.export("step-1", &self.computed())?;
            }
            if step == count || is_power_of_ten(step) {
                self.export(&format!("params-{step}"), &["params"])?;
            }
        }
        Ok(loss)
    }

    /// The place after this one; begins an epoch where the last one's rows are used up.
    fn next(&mut self, at: Place) -> Result<Place> {
        let (step, cursor) = (at.step + 1, at.cursor + batch());
        if at.step > 0 && cursor < at.rows {
            return Ok(Place { step, cursor, ..at });
        }
        let epoch = at.epoch + 1;
        let rows = feed::begin_epoch(&mut self.session, self.run, self.data, epoch)?;
        match epoch {
            1 => self.export("data", &self.names(|buffer| buffer.external))?,
            _ => self.export(&format!("order-{epoch}"), &["order"])?,
        }
        Ok(Place { step, epoch, cursor: 0, rows })
    }

    fn step(&mut self, at: Place) -> Result<Step> {
        let before = self.scalars()?;
        self.session.run(Phase::Train)?;
        let loss = self.session.read_real("loss.total")?;
        let mut read = self.scalars()?;
        for (launch, scalars) in &mut read {
            let old = |name: &str| name.starts_with("prev_").then(|| before[launch][name]);
            scalars.iter_mut().for_each(|(name, value)| *value = old(name).unwrap_or(*value));
        }
        let mut slots = BTreeMap::new();
        for slot in &artefacts().slots {
            slots.insert(slot.name.clone(), self.session.slot_named(&slot.name)?);
        }
        Ok(Step { at, loss: loss.iter().sum::<f64>() / loss.len() as f64, slots, read })
    }

    /// What every launch reads of scalars, as it stands now.
    fn scalars(&self) -> Result<Scalars> {
        let mut all = Scalars::new();
        for launch in &self.program.train {
            let scalars = self.session.scalars(&launch.name)?;
            if !scalars.is_empty() {
                all.insert(launch.name.clone(), scalars);
            }
        }
        Ok(all)
    }

    /// What a step computes and the next computes anew.
    fn computed(&self) -> Vec<&str> {
        self.names(|buffer| !buffer.external && !buffer.kept && buffer.name != NOT_TRACED)
    }

    fn names(&self, which: impl Fn(&Buffer) -> bool) -> Vec<&str> {
        self.program.buffers.iter().filter(|b| which(b)).map(|b| b.name.as_str()).collect()
    }

    fn export(&self, file: &str, buffers: &[&str]) -> Result<()> {
        Ok(self.session.export(self.folder.join(format!("{file}.safetensors")), buffers)?)
    }
}

fn is_power_of_ten(n: usize) -> bool {
    std::iter::successors(Some(1_usize), |power| power.checked_mul(10)).take_while(|power| *power <= n).any(|p| p == n)
}
