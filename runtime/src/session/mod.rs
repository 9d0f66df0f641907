//! A loaded spec set on a device: its buffers, its launches, its resets.
//!
//! ```no_run
//! # fn artefacts() -> unio::interface::Artefacts { unimplemented!() }
//! use unio::device::{Device, Real, Target};
//! use unio::{BufferOf, Phase, Session, When};
//!
//! const ROWS: BufferOf<i32> = BufferOf::new(12, "rows"); // `unio::specs!()` writes these constants
//!
//! let mut session = Session::new(&Device::open(Target::Auto)?, &artefacts(), Real::F32)?;
//! session.init_params(42)?;
//! session.reset(When::Fold)?;
//! session.write(ROWS, &[0, 1, 2, 3])?;
//! session.run(Phase::Train)?;
//! # Ok::<(), unio::SessionError>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use unio_interface::{Artefacts, Buffer, Init, Program, Reset, ResetPart, When};

use crate::device::{Arg, CompileOptions, Device, Kernel, LaunchConfig, Memory, Real, Source};
use crate::random::Stream;

mod access;
mod check;
mod convert;
mod edges;
mod error;
mod graph;
mod handles;
mod inspect;
mod launch;
mod mirror;
mod room;

pub use error::{Result, SessionError};
pub use graph::StepGraph;
pub use handles::{BufferOf, Element, Scalar, SlotOf, StateOf};
pub use inspect::{LaunchShape, NonFinite};
pub use mirror::{Mirror, Snapshot};

pub(crate) use check::product;
pub(crate) use convert::Stored;

use graph::Built;
use launch::{Place, Prepared, Sequence, Walked};
use mirror::Mirroring;

/// Buffers that the generator names alike in every set.
pub(crate) const ISV: &str = "isv";
pub(crate) const OBSERVED: &str = "observed";
pub(crate) const SMOOTHING: &str = "smoothing";
pub(crate) const SKIPPED: &str = "skipped";
pub(crate) const STATE: &str = "state";
pub(crate) const PARAMS: &str = "params";

/// Most steps that share a graph in [`Session::run_steps`].
pub const STEPS_TOGETHER: usize = 16;

/// Which launches [`Session::run`] makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// A training step.
    Train,
    /// The forward part alone.
    Evaluate,
}

/// How [`Session::run`] makes a step's launches. The bits are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Launching {
    /// As one graph, made by one call; side by side where no edge orders them.
    #[default]
    Graph,
    /// One by one, in order.
    Eager,
}

/// Which kernel of a stage [`Session::run_stage`] launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The values.
    Forward,
    /// The derivatives.
    Adjoint,
    /// Gradients of the parameters, where the stage's schedule defers them.
    Gradients,
}

/// A spec set on a device.
///
/// The session owns the memory of every buffer. Nothing is allocated after the run's own buffers are written, and each phase
/// has run once by each number of steps that share a graph.
pub struct Session {
    device: Device,
    real: Real,
    artefacts: Arc<Artefacts>,
    program: Program,
    kernels: Vec<Kernel>,
    /// By buffer; `None` until the run fills it. Changed by [`Session::replace`] alone, because graphs hold them.
    memories: Vec<Option<Arc<Memory>>>,
    /// Elements that the launches need, by buffer.
    least: Vec<usize>,
    train: Sequence,
    evaluate: Sequence,
    launching: Launching,
    /// By phase and number of steps, once they have run; none holds a memory that the session does not.
    graphs: BTreeMap<(Phase, usize), Built>,
    mirroring: Option<Mirroring>,
}

/// An argument of a launch, as long as no memory is replaced.
enum Argument<'a> {
    /// A memory from a byte on.
    Memory(&'a Arc<Memory>, usize),
    Number(i32),
}

/// Making, running, starting over.
impl Session {
    /// Compiles and loads all kernels, allocates all buffers that the run does not fill, and gives buffers, slots and
    /// states their start. Parameters start at zero until [`Session::init_params`].
    ///
    /// `artefacts` come from the generator: their kernel texts run as they are, with the device's full access.
    ///
    /// Errors: the set has no model; artefacts that contradict themselves; a text that does not compile or lacks a
    /// kernel; buffers that do not fit into the device's free memory.
    pub fn new(device: &Device, artefacts: &Artefacts, real: Real) -> Result<Self> {
        let no_model = || SessionError::NoModel { set: artefacts.set.clone() };
        let program = artefacts.program.clone().ok_or_else(no_model)?;
        check::check(artefacts, &program)?;
        room::check(device, &program, real)?;
        let mut session = Self {
            device: device.clone(),
            real,
            kernels: load(device, artefacts, real)?,
            memories: allocate(device, &program, real)?,
            least: launch::least(artefacts, &program),
            train: Sequence::new(artefacts, &program, &program.train, real),
            evaluate: Sequence::new(artefacts, &program, &program.evaluate, real),
            artefacts: Arc::new(Artefacts { sources: Vec::new(), program: None, ..artefacts.clone() }),
            program,
            launching: Launching::default(),
            graphs: BTreeMap::new(),
            mirroring: None,
        };
        session.start()?;
        Ok(session)
    }

    /// Makes a phase's launches once: as a graph, or as [`Session::set_launching`] says. Waits for nothing; on CUDA a fault
    /// may show only at the next read.
    ///
    /// Errors: buffers that the run has not filled; a launch that fails; a kernel that is not made for this session's
    /// type of real.
    pub fn run(&mut self, phase: Phase) -> Result<()> {
        match self.launching {
            Launching::Graph => self.graph(phase)?.launch(),
            Launching::Eager => self.run_eager(phase),
        }
    }

    /// Takes so many steps, one after another. It is quicker than as many [`Session::run`]s: up to [`STEPS_TOGETHER`] of them
    /// share a graph, in which a step begins while the last one's control plane still measures. The bits are the same.
    ///
    /// Errors: as for [`Session::run`].
    pub fn run_steps(&mut self, phase: Phase, steps: usize) -> Result<()> {
        if self.launching == Launching::Eager {
            return (0..steps).try_for_each(|_| self.run_eager(phase));
        }
        let (mut left, mut together) = (steps, STEPS_TOGETHER);
        // What is left over is taken by graphs of half as many steps, and half of that.
        while left > 0 {
            if left >= together {
                self.graph_of(phase, together)?.replay(left / together)?;
                left %= together;
            }
            together = (together / 2).max(1);
        }
        Ok(())
    }

    /// Chooses how [`Session::run`] makes its launches from now on.
    pub fn set_launching(&mut self, launching: Launching) {
        self.launching = launching;
    }

    fn run_eager(&self, phase: Phase) -> Result<()> {
        let sequence = self.sequence(phase);
        self.bound(&sequence.external)?;
        let mut args = Vec::new();
        sequence.launches.iter().try_for_each(|launch| self.launch(launch, &mut args))?;
        self.mirroring.as_ref().map_or(Ok(()), Mirroring::launch)
    }

    /// Launches, in order, only what the training step launches of one entry, such as a producer; for tests and tools.
    ///
    /// Errors: as for [`Session::run`]; an unknown entry.
    pub fn run_entry(&mut self, entry: &str) -> Result<()> {
        let is_part =
            |name: &str| name.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        let launches: Vec<&Prepared> = self.train.launches.iter().filter(|launch| is_part(&launch.name)).collect();
        if launches.is_empty() {
            return Err(self.unknown("entry", entry, self.train.launches.iter().map(|l| &l.name)));
        }
        let buffers = launches.iter().filter(|launch| launch.config.grid > 0).flat_map(|launch| launch.buffers());
        let unbound: Vec<usize> = buffers.filter(|buffer| self.memories[*buffer].is_none()).collect();
        self.bound(&unbound)?;
        launches.into_iter().try_for_each(|launch| self.launch(launch, &mut Vec::new()))
    }

    /// Launches one kernel of a stage with the arguments it has in the step; for gradient checks.
    ///
    /// Errors: as for [`Session::run`]; an unknown stage; a stage without an adjoint.
    pub fn run_stage(&mut self, stage: &str, direction: Direction) -> Result<()> {
        let stages = &self.program.stages;
        let Some(found) = stages.iter().find(|s| s.name == stage) else {
            return Err(self.unknown("stage", stage, stages.iter().map(|s| &s.name)));
        };
        let (kernel, name) = match direction {
            Direction::Forward => (Some(found.forward), "forward"),
            Direction::Adjoint => (found.adjoint, "adjoint"),
            Direction::Gradients => (found.gradients, "gradients"),
        };
        let find = |kernel| self.train.of_kernel(kernel).or_else(|| self.evaluate.of_kernel(kernel));
        let launch =
            kernel.and_then(find).ok_or_else(|| SessionError::NoKernel { stage: stage.into(), direction: name })?;
        let unbound: Vec<usize> = launch.buffers().filter(|buffer| self.memories[*buffer].is_none()).collect();
        self.bound(&unbound)?;
        self.launch(launch, &mut Vec::new())
    }

    /// Gives every parameter its start. A value depends on the seed, the parameter's path and the element's index only:
    /// neither order nor layout nor other parameters matter. In f32 it is the f64 value, rounded.
    pub fn init_params(&mut self, seed: u64) -> Result<()> {
        let Some(buffer) = self.index_of(PARAMS) else {
            return Ok(());
        };
        let stored = self.stored(buffer);
        for param in &self.program.params {
            let stream = Stream::new(seed, &format!("param/{}", param.path));
            let value = |at: u64| match param.init {
                Init::Constant(value) => value,
                Init::Uniform(bound) => bound * stream.symmetric(at),
            };
            let len = product(&param.shape).unwrap_or(0) as u64;
            let values: Vec<f64> = (0..len).map(value).collect();
            let bytes = convert::encode(&values, stored).ok_or_else(|| self.wrong_type::<f64>(buffer))?;
            self.memory(buffer)?.write_at(param.offset * stored.size(), &bytes)?;
        }
        Ok(())
    }

    /// Applies the reset registry at the start of a fold or an epoch, and returns the names that were reset, in the
    /// registry's order. A fold's start is an epoch's start too, so [`When::Fold`] resets both; [`When::Never`] resets
    /// nothing.
    pub fn reset(&mut self, when: When) -> Result<Vec<String>> {
        let due = |reset: &&Reset| match when {
            When::Fold => reset.when != When::Never,
            When::Epoch => reset.when == When::Epoch,
            When::Never => false,
        };
        let due: Vec<&Reset> = self.artefacts.resets.iter().filter(due).collect();
        due.iter().flat_map(|reset| &reset.parts).try_for_each(|part| self.apply(part))?;
        Ok(due.into_iter().map(|reset| reset.name.clone()).collect())
    }

    /// Waits until everything launched so far is done; reports what went wrong in it.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.device.synchronize()?)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The type of real.
    pub fn real(&self) -> Real {
        self.real
    }

    /// Buffers, parameters and launches of the model.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The set, without kernel texts and program.
    pub fn artefacts(&self) -> &Artefacts {
        &self.artefacts
    }
}

/// What checkpoints need.
impl Session {
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.program.buffers.iter().position(|b| b.name == name)
    }

    pub(crate) fn stored(&self, buffer: usize) -> Stored {
        Stored::of(self.program.buffers[buffer].elem, self.real)
    }

    /// Elements of a buffer; `None` until the run fills it.
    pub(crate) fn len(&self, buffer: usize) -> Option<usize> {
        self.memories[buffer].as_ref().map(|memory| memory.len() / self.stored(buffer).size())
    }

    pub(crate) fn memory(&self, buffer: usize) -> Result<&Arc<Memory>> {
        self.memories[buffer]
            .as_ref()
            .ok_or_else(|| SessionError::Unbound { names: format!("`{}`", self.program.buffers[buffer].name) })
    }
}

impl Session {
    fn sequence(&self, phase: Phase) -> &Sequence {
        match phase {
            Phase::Train => &self.train,
            Phase::Evaluate => &self.evaluate,
        }
    }

    /// Fills, then states, then the registry, which knows best.
    fn start(&mut self) -> Result<()> {
        for (index, buffer) in self.program.buffers.iter().enumerate() {
            if let (Some(len), false) = (buffer.len, buffer.external) {
                self.fill(index, 0, len, buffer.fill, false)?;
            }
        }
        for state in &self.artefacts.states {
            if let Some(buffer) = self.index_of(STATE) {
                self.fill(buffer, state.word, 1, state.init, state.int)?;
            }
        }
        let parts = self.artefacts.resets.iter().flat_map(|reset| &reset.parts);
        parts.into_iter().try_for_each(|part| self.apply(part))?;
        self.write_fingerprint()
    }

    /// Slots that hold the fingerprint: each member has the next six hexadecimal digits, as a number.
    fn write_fingerprint(&self) -> Result<()> {
        let digits = self.artefacts.fingerprint.as_bytes();
        let words =
            digits.chunks(6).map(|six| std::str::from_utf8(six).ok().and_then(|d| u32::from_str_radix(d, 16).ok()));
        for slot in self.artefacts.slots.iter().filter(|s| s.fingerprint) {
            for (member, word) in (0..slot.members.len().max(1)).zip(words.clone()) {
                if let Some(isv) = self.index_of(ISV) {
                    self.fill(isv, slot.index + member, 1, f64::from(word.unwrap_or(0)), false)?;
                }
            }
        }
        Ok(())
    }

    fn apply(&self, part: &ResetPart) -> Result<()> {
        self.fill(part.buffer, part.start, part.len, part.value, part.int)
    }

    fn fill(&self, buffer: usize, start: usize, len: usize, value: f64, int: bool) -> Result<()> {
        let (stored, memory) = (self.stored(buffer), self.memory(buffer)?);
        let element = stored.encode(value, int);
        // The device zeroes without any traffic, and most of what is large returns to zero.
        if len * stored.size() == memory.len() && element.iter().all(|byte| *byte == 0) {
            return Ok(memory.zero()?);
        }
        Ok(memory.write_at(start * stored.size(), &element.repeat(len))?)
    }

    fn bound(&self, buffers: &[usize]) -> Result<()> {
        if buffers.iter().all(|buffer| self.memories[*buffer].is_some()) {
            return Ok(());
        }
        let missing = buffers.iter().filter(|buffer| self.memories[**buffer].is_none());
        let names: Vec<String> = missing.map(|b| format!("`{}`", self.program.buffers[*b].name)).collect();
        Err(SessionError::Unbound { names: names.join(", ") })
    }

    /// Errors: [`SessionError::Uneven`] where a buffer has fewer rows than the launch covers.
    fn check_even(&self, launch: &Prepared) -> Result<()> {
        let told = launch.counted_by.map(|(buffer, row_len, _)| self.rows(buffer, row_len));
        let Some(rows) = told.or(launch.count) else { return Ok(()) };
        for &Walked { buffer, start, row } in &launch.walked {
            // What the run has not filled is told by name elsewhere.
            let Some(len) = self.len(buffer) else { continue };
            let held = len.saturating_sub(start) / row;
            if held < rows {
                let (launch, buffer) = (launch.name.clone(), self.program.buffers[buffer].name.clone());
                return Err(SessionError::Uneven { launch, buffer, held, needed: rows });
            }
        }
        Ok(())
    }

    /// The launch's shape, as long as no memory is replaced; `None` where there is nothing to launch.
    fn shape(&self, launch: &Prepared) -> Result<Option<LaunchConfig>> {
        let mut config = launch.config;
        if let Some((buffer, row_len, grid)) = launch.counted_by {
            config.grid = grid.blocks(self.rows(buffer, row_len));
        }
        self.check_even(launch)?;
        if config.grid == 0 {
            return Ok(None);
        }
        launch.fits_real()?;
        Ok(Some(config))
    }

    fn rows(&self, buffer: usize, row_len: usize) -> usize {
        self.len(buffer).unwrap_or(0) / row_len
    }

    /// What a kernel is given. Numbers follow from the plan and from the lengths of memories, so that a graph may keep them.
    fn argument(&self, place: Place) -> Result<Argument<'_>> {
        Ok(match place {
            Place::Buffer { buffer, offset } => Argument::Memory(self.memory(buffer)?, offset),
            Place::Count(n) | Place::Number(n) => Argument::Number(n),
            Place::Rows { buffer, row_len } => {
                Argument::Number(i32::try_from(self.rows(buffer, row_len)).unwrap_or(i32::MAX))
            }
        })
    }

    /// `args` is the caller's, so that a step allocates one list and no launch another.
    fn launch<'a>(&'a self, launch: &Prepared, args: &mut Vec<Arg<'a>>) -> Result<()> {
        let Some(config) = self.shape(launch)? else {
            return Ok(());
        };
        args.clear();
        for place in &launch.places {
            args.push(match self.argument(*place)? {
                Argument::Memory(memory, offset) => Arg::Buffer(memory, offset),
                Argument::Number(n) => Arg::I32(n),
            });
        }
        let kernel = &self.kernels[launch.kernel];
        // SAFETY: the generator promises that a kernel touches no more behind each pointer than its parameter's length,
        // or the launch's count, says; `check` and `write` saw to it that the memories are that long, and `fits_real`
        // that elements have the size the kernel was compiled for.
        let launched = unsafe { kernel.launch(&config, args) };
        launched.map_err(|source| SessionError::Launch { launch: launch.name.clone(), source })
    }

    /// Gives a buffer another memory. Graphs hold the old one, so that they go with it.
    fn replace(&mut self, buffer: usize, memory: Memory) {
        self.graphs.clear();
        self.memories[buffer] = Some(Arc::new(memory));
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("set", &self.artefacts.set)
            .field("model", &self.program.model)
            .field("device", &self.device)
            .field("real", &self.real)
            .finish_non_exhaustive()
    }
}

/// All kernels, in the artefacts' order.
fn load(device: &Device, artefacts: &Artefacts, real: Real) -> Result<Vec<Kernel>> {
    let sources = artefacts.sources.iter().map(|source| Source { name: &source.path, text: &source.text });
    let sources: Vec<Source<'_>> = sources.collect();
    let modules = device.load_all(&sources, &CompileOptions { real })?;
    let kernel = |kernel: &unio_interface::Kernel| Ok(modules[kernel.source].kernel(&kernel.symbol)?);
    artefacts.kernels.iter().map(kernel).collect()
}

/// Zeroed memory for every buffer that the run does not fill.
fn allocate(device: &Device, program: &Program, real: Real) -> Result<Vec<Option<Arc<Memory>>>> {
    let memory = |buffer: &Buffer| match buffer.len {
        Some(len) if !buffer.external => {
            let bytes = len.saturating_mul(Stored::of(buffer.elem, real).size());
            Ok(Some(Arc::new(device.alloc(bytes)?)))
        }
        _ => Ok(None),
    };
    program.buffers.iter().map(memory).collect()
}
