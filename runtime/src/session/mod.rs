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

use std::fmt;

use unio_interface::{Access, Arg as Planned, Artefacts, Buffer, Init, KernelParam, Program, Reset, ResetPart, When};

use crate::device::{Arg, CompileOptions, Device, Kernel, Memory, Real, Source};
use crate::random::Stream;

mod check;
mod convert;
mod error;
mod handles;
mod launch;

pub use error::{Result, SessionError};
pub use handles::{BufferOf, Element, Scalar, SlotOf, StateOf};

pub(crate) use check::product;
pub(crate) use convert::Stored;

use launch::{Place, Prepared, Sequence};

/// Buffers that the generator names alike in every set.
pub(crate) const ISV: &str = "isv";
pub(crate) const OBSERVED: &str = "observed";
pub(crate) const SMOOTHING: &str = "smoothing";
pub(crate) const SKIPPED: &str = "skipped";
pub(crate) const STATE: &str = "state";
pub(crate) const PARAMS: &str = "params";

/// Which launches [`Session::run`] makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A training step.
    Train,
    /// The forward part alone.
    Evaluate,
}

/// Which kernel of a stage [`Session::run_stage`] launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The values.
    Forward,
    /// The derivatives.
    Adjoint,
}

/// The first number found that is NaN or infinite.
#[derive(Debug, Clone, PartialEq)]
pub struct NonFinite {
    /// The buffer.
    pub buffer: String,
    /// The element.
    pub index: usize,
    /// The number.
    pub value: f64,
}

/// A spec set on a device.
///
/// The session owns the memory of every buffer. Nothing is allocated after the run's own buffers are written.
pub struct Session {
    device: Device,
    real: Real,
    artefacts: Artefacts,
    program: Program,
    kernels: Vec<Kernel>,
    /// By buffer; `None` until the run fills it.
    memories: Vec<Option<Memory>>,
    /// Elements that the launches need, by buffer.
    least: Vec<usize>,
    train: Sequence,
    evaluate: Sequence,
}

/// Making, running, starting over.
impl Session {
    /// Compiles and loads all kernels, allocates all buffers that the run does not fill, and gives buffers, slots and
    /// states their start. Parameters start at zero until [`Session::init_params`].
    ///
    /// `artefacts` come from the generator: their kernel texts run as they are, with the device's full access.
    ///
    /// Errors: the set has no model; artefacts that contradict themselves; a text that does not compile or lacks a
    /// kernel; memory.
    pub fn new(device: &Device, artefacts: &Artefacts, real: Real) -> Result<Self> {
        let no_model = || SessionError::NoModel { set: artefacts.set.clone() };
        let program = artefacts.program.clone().ok_or_else(no_model)?;
        check::check(artefacts, &program)?;
        let mut session = Self {
            device: device.clone(),
            real,
            kernels: load(device, artefacts, real)?,
            memories: allocate(device, &program, real)?,
            least: launch::least(artefacts, &program),
            train: Sequence::new(artefacts, &program, &program.train, real),
            evaluate: Sequence::new(artefacts, &program, &program.evaluate, real),
            artefacts: Artefacts { sources: Vec::new(), program: None, ..artefacts.clone() },
            program,
        };
        session.start()?;
        Ok(session)
    }

    /// Launches a phase's kernels in order. Waits for nothing; on CUDA a fault may show only at the next read.
    ///
    /// Errors: buffers that the run has not filled; a launch that fails; a kernel that is not made for this session's
    /// type of real.
    pub fn run(&mut self, phase: Phase) -> Result<()> {
        let sequence = self.sequence(phase);
        self.bound(&sequence.external)?;
        let mut args = Vec::new();
        sequence.launches.iter().try_for_each(|launch| self.launch(launch, &mut args))
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
        };
        let find = |kernel| self.train.of_kernel(kernel).or_else(|| self.evaluate.of_kernel(kernel));
        let launch = kernel.and_then(find).ok_or_else(|| SessionError::NoKernel {
            stage: stage.into(),
            direction: name,
        })?;
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
            let bytes: Vec<u8> = (0..len).flat_map(|at| stored.encode(value(at), false)).collect();
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

/// Reading and writing through the constants that `unio::specs!()` makes.
impl Session {
    /// Overwrites a buffer. A buffer without a fixed length is allocated by its first write, and again when the number
    /// of elements changes; it needs whole rows, and as many elements as the step reads.
    ///
    /// Errors: a wrong number of elements; integers for reals or the reverse; a constant of another set.
    pub fn write<T: Element>(&mut self, buffer: BufferOf<T>, values: &[T]) -> Result<()> {
        let index = self.own_buffer(buffer)?;
        self.write_index(index, values)
    }

    /// All elements of a buffer, after all launches before.
    ///
    /// Errors: the run has not filled it; integers for reals or the reverse; a constant of another set.
    pub fn read<T: Element>(&self, buffer: BufferOf<T>) -> Result<Vec<T>> {
        self.read_index(self.own_buffer(buffer)?)
    }

    /// A scalar state, after all launches before. Errors: a constant of another set or of the wrong type.
    pub fn state<T: Scalar>(&self, state: StateOf<T>) -> Result<T> {
        let word = self.own_state(state)?;
        Ok(T::from_word(self.word(STATE, word)?))
    }

    /// Sets a scalar state. Errors: as for [`Session::state`].
    pub fn set_state<T: Scalar>(&mut self, state: StateOf<T>, value: T) -> Result<()> {
        let word = self.own_state(state)?;
        self.set_word(word, value.to_word())
    }

    /// A member of a slot family, by its place in [`SlotOf::members`]; 0 for a single slot.
    ///
    /// Errors: no such member; a constant of another set.
    pub fn slot(&self, slot: SlotOf, member: usize) -> Result<f32> {
        let found = self.artefacts.slots.iter().find(|s| s.name == slot.name && s.index == slot.index);
        let Some(found) = found else {
            return Err(self.foreign("slot", slot.name, slot.index));
        };
        let members = found.members.len().max(1);
        if member >= members {
            return Err(SessionError::Member { slot: slot.name.into(), members, member });
        }
        self.word(ISV, slot.index + member).map(f32::from_bits)
    }

    /// All slots, by their index in the ISV.
    pub fn isv(&self) -> Result<Vec<f32>> {
        match self.index_of(ISV) {
            Some(index) => self.read_index(index),
            None => Ok(Vec::new()),
        }
    }
}

/// Reading and writing by name, for tools and tests.
impl Session {
    /// What is known of a buffer. Errors: no such name.
    pub fn buffer_named(&self, name: &str) -> Result<&Buffer> {
        Ok(&self.program.buffers[self.named(name)?])
    }

    /// [`Session::write`] by name.
    pub fn write_named<T: Element>(&mut self, name: &str, values: &[T]) -> Result<()> {
        self.write_index(self.named(name)?, values)
    }

    /// [`Session::read`] by name.
    pub fn read_named<T: Element>(&self, name: &str) -> Result<Vec<T>> {
        self.read_index(self.named(name)?)
    }

    /// Overwrites a buffer of reals, whatever their type in this session; in f32 the values are rounded.
    pub fn write_real(&mut self, name: &str, values: &[f64]) -> Result<()> {
        self.write_named(name, values)
    }

    /// All elements of a buffer of reals, whatever their type in this session.
    pub fn read_real(&self, name: &str) -> Result<Vec<f64>> {
        self.read_named(name)
    }

    /// A scalar state as a number, be it real or integer. Errors: no such name.
    pub fn state_named(&self, name: &str) -> Result<f64> {
        let state = self.state_of(name)?;
        let word = self.word(STATE, state.word)?;
        Ok(if state.int { f64::from(word as i32) } else { f64::from(f32::from_bits(word)) })
    }

    /// Sets a scalar state; an integer takes the whole part. Errors: no such name.
    pub fn set_state_named(&mut self, name: &str, value: f64) -> Result<()> {
        let state = self.state_of(name)?;
        let (word, int) = (state.word, state.int);
        self.set_word(word, if int { value as i32 as u32 } else { (value as f32).to_bits() })
    }

    /// The members of a slot family, in order; one value for a single slot. Errors: no such name.
    pub fn slot_named(&self, name: &str) -> Result<Vec<f32>> {
        let slots = &self.artefacts.slots;
        let Some(slot) = slots.iter().find(|s| s.name == name) else {
            return Err(self.unknown("slot", name, slots.iter().map(|s| &s.name)));
        };
        let isv = self.isv()?;
        Ok(isv[slot.index..slot.index + slot.members.len().max(1)].to_vec())
    }

    /// Any buffer as numbers; integers that lie in words of a real buffer are shown as the integers they are.
    ///
    /// Errors: no such name; the run has not filled it.
    pub fn dump(&self, name: &str) -> Result<Vec<f64>> {
        self.dump_index(self.named(name)?)
    }

    /// The first NaN or infinity: first among buffers that the training step only reads, then among the others, in the
    /// order in which the step first writes them. Buffers that the run has not filled are passed over.
    pub fn first_non_finite(&self) -> Result<Option<NonFinite>> {
        for buffer in self.scan_order() {
            if self.memories[buffer].is_none() {
                continue;
            }
            let values = self.dump_index(buffer)?;
            if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                let buffer = self.program.buffers[buffer].name.clone();
                return Ok(Some(NonFinite { buffer, index, value: values[index] }));
            }
        }
        Ok(None)
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

    pub(crate) fn memory(&self, buffer: usize) -> Result<&Memory> {
        self.memories[buffer].as_ref().ok_or_else(|| SessionError::Unbound {
            names: format!("`{}`", self.program.buffers[buffer].name),
        })
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
        parts.into_iter().try_for_each(|part| self.apply(part))
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

    /// `args` is the caller's, so that a step allocates one list and no launch another.
    fn launch<'a>(&'a self, launch: &Prepared, args: &mut Vec<Arg<'a>>) -> Result<()> {
        if launch.config.grid == 0 {
            return Ok(());
        }
        launch.fits_real()?;
        args.clear();
        for place in &launch.places {
            args.push(match *place {
                Place::Buffer { buffer, offset } => Arg::Buffer(self.memory(buffer)?, offset),
                Place::Count(n) => Arg::I32(n),
            });
        }
        let kernel = &self.kernels[launch.kernel];
        // SAFETY: the generator promises that a kernel reads and writes no more behind each pointer than its parameter's
        // length, or the launch's count, says; `check` and `write` saw to it that the memories are that long, and
        // `fits_real` that elements have the size the kernel was compiled for.
        let launched = unsafe { kernel.launch(&launch.config, args) };
        launched.map_err(|source| SessionError::Launch { launch: launch.name.clone(), source })
    }

    fn write_index<T: Element>(&mut self, index: usize, values: &[T]) -> Result<()> {
        let stored = self.stored(index);
        let bytes = convert::encode(values, stored).ok_or_else(|| self.wrong_type::<T>(index))?;
        self.fits(index, values.len())?;
        if self.len(index) != Some(values.len()) {
            self.memories[index] = Some(self.device.alloc(bytes.len())?);
        }
        Ok(self.memory(index)?.write(&bytes)?)
    }

    /// Whether a buffer may have so many elements.
    fn fits(&self, index: usize, given: usize) -> Result<()> {
        let (buffer, least) = (&self.program.buffers[index], self.least[index]);
        let name = || buffer.name.clone();
        if let Some(len) = buffer.len {
            return match len == given {
                true => Ok(()),
                false => Err(SessionError::Length { buffer: name(), len, given }),
            };
        }
        let row = buffer.shape.get(1..).and_then(product).unwrap_or(1).max(1);
        if !given.is_multiple_of(row) {
            return Err(SessionError::Rows { buffer: name(), row, given });
        }
        match given >= least {
            true => Ok(()),
            false => Err(SessionError::TooShort { buffer: name(), least, given }),
        }
    }

    fn read_index<T: Element>(&self, index: usize) -> Result<Vec<T>> {
        let memory = self.memory(index)?;
        let values = convert::decode(memory, self.stored(index)).ok_or_else(|| self.wrong_type::<T>(index))?;
        Ok(values?)
    }

    fn dump_index(&self, index: usize) -> Result<Vec<f64>> {
        match self.stored(index) {
            Stored::F64 => self.read_index(index),
            Stored::I32 => Ok(self.read_index::<i32>(index)?.into_iter().map(f64::from).collect()),
            Stored::F32 => {
                let values = self.read_index::<f32>(index)?;
                let mut wide: Vec<f64> = values.iter().copied().map(f64::from).collect();
                for at in self.integer_words(index) {
                    wide[at] = f64::from(values[at].to_bits() as i32);
                }
                Ok(wide)
            }
        }
    }

    /// Elements of a buffer of reals whose bits are integers.
    fn integer_words(&self, buffer: usize) -> impl Iterator<Item = usize> + '_ {
        let is_state = self.program.buffers[buffer].name == STATE;
        let states = self.artefacts.states.iter().filter(move |state| is_state && state.int).map(|state| state.word);
        let parts = self.artefacts.resets.iter().flat_map(|reset| &reset.parts);
        let parts = parts.filter(move |part| part.int && part.buffer == buffer);
        states.chain(parts.flat_map(|part| part.start..part.start + part.len))
    }

    fn scan_order(&self) -> Vec<usize> {
        let mut written = Vec::new();
        for launch in &self.program.train {
            for (param, arg) in self.artefacts.kernels[launch.kernel].params.iter().zip(&launch.args) {
                let (KernelParam::Buffer { access, .. }, Planned::Buffer { buffer, .. }) = (param, arg) else {
                    continue;
                };
                if *access != Access::In && !written.contains(buffer) {
                    written.push(*buffer);
                }
            }
        }
        let only_read = (0..self.program.buffers.len()).filter(|buffer| !written.contains(buffer));
        only_read.chain(written.iter().copied()).collect()
    }

    fn word(&self, buffer: &str, word: usize) -> Result<u32> {
        let mut bytes = [0; 4];
        let memory = self.memory(self.named(buffer)?)?;
        memory.read_at(word * 4, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn set_word(&mut self, word: usize, value: u32) -> Result<()> {
        let memory = self.memory(self.named(STATE)?)?;
        Ok(memory.write_at(word * 4, &value.to_le_bytes())?)
    }

    fn named(&self, name: &str) -> Result<usize> {
        let names = self.program.buffers.iter().map(|b| &b.name);
        self.index_of(name).ok_or_else(|| self.unknown("buffer", name, names))
    }

    fn state_of(&self, name: &str) -> Result<&unio_interface::State> {
        let states = &self.artefacts.states;
        let found = states.iter().find(|state| state.name == name);
        found.ok_or_else(|| self.unknown("state", name, states.iter().map(|s| &s.name)))
    }

    fn own_buffer<T>(&self, handle: BufferOf<T>) -> Result<usize> {
        let own = self.program.buffers.get(handle.index).is_some_and(|b| b.name == handle.name);
        own.then_some(handle.index).ok_or_else(|| self.foreign("buffer", handle.name, handle.index))
    }

    fn own_state<T: Scalar>(&self, handle: StateOf<T>) -> Result<usize> {
        let mut states = self.artefacts.states.iter();
        let Some(state) = states.find(|s| s.name == handle.name && s.word == handle.word) else {
            return Err(self.foreign("state", handle.name, handle.word));
        };
        let name = |int| if int { "i32" } else { "f32" };
        match state.int == T::INT {
            true => Ok(state.word),
            false => Err(SessionError::ElementType {
                what: "state",
                name: state.name.clone(),
                stored: name(state.int),
                asked: name(T::INT),
            }),
        }
    }

    fn wrong_type<T: Element>(&self, index: usize) -> SessionError {
        SessionError::ElementType {
            what: "buffer",
            name: self.program.buffers[index].name.clone(),
            stored: self.stored(index).name(),
            asked: T::OWN.name(),
        }
    }

    fn foreign(&self, what: &'static str, name: &str, index: usize) -> SessionError {
        SessionError::Foreign { set: self.artefacts.set.clone(), what, name: name.into(), index }
    }

    fn unknown<'a>(
        &self,
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a String>,
    ) -> SessionError {
        let known: Vec<&str> = known.map(String::as_str).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        SessionError::Unknown { set: self.artefacts.set.clone(), what, name: name.into(), known }
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`[{}] is {}", self.buffer, self.index, self.value)
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
fn allocate(device: &Device, program: &Program, real: Real) -> Result<Vec<Option<Memory>>> {
    let memory = |buffer: &Buffer| match buffer.len {
        Some(len) if !buffer.external => {
            let bytes = len.saturating_mul(Stored::of(buffer.elem, real).size());
            Ok(Some(device.alloc(bytes)?))
        }
        _ => Ok(None),
    };
    program.buffers.iter().map(memory).collect()
}
