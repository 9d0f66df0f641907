//! Slots and states as the last whole step left them, read by the host without waiting for the device.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unio_interface::Artefacts;

use super::access::{own_slot, own_state};
use super::error::{Result, SessionError};
use super::handles::{Scalar, SlotOf, StateOf};
use super::{ISV, STATE, Session};
use crate::device::{Arg, Builder, CompileOptions, Device, Held, Kernel, LaunchConfig, Memory, Source};

const NAME: &str = "unio_mirror";
const TEXT: &str = include_str!("mirror.cu");
const THREADS: u32 = 256;
/// Stamps before the words: begin and end, in bytes of one each.
const STAMP: usize = 8;
/// Far longer than a card takes to write the mirror.
const PATIENCE: Duration = Duration::from_secs(10);

/// Slots and states in the host's own memory, written by the last launch of every step. It may be read from any thread while
/// steps run; the device is not asked.
#[derive(Clone)]
pub struct Mirror {
    artefacts: Arc<Artefacts>,
    memory: Arc<Memory>,
    isv_len: usize,
    state_len: usize,
}

/// Slots and states at the end of one step, all of that step.
#[derive(Clone)]
pub struct Snapshot {
    artefacts: Arc<Artefacts>,
    step: u64,
    isv: Vec<f32>,
    state: Vec<u32>,
}

/// The mirror, and the launch that writes it.
pub(super) struct Mirroring {
    kernel: Kernel,
    isv: Arc<Memory>,
    state: Arc<Memory>,
    /// Steps since the mirror was made.
    steps: Arc<Memory>,
    mirror: Mirror,
}

impl Session {
    /// The mirror of slots and states. The first call makes it; from then on every step, of either phase, graph or eager,
    /// ends by writing it.
    ///
    /// Errors: no memory; the kernel that writes it does not compile.
    pub fn mirror(&mut self) -> Result<Mirror> {
        if let Some(mirroring) = &self.mirroring {
            return Ok(mirroring.mirror.clone());
        }
        let mirroring = Mirroring::new(self)?;
        let mirror = mirroring.mirror.clone();
        // Graphs that were built before do not write it.
        self.graphs.clear();
        self.mirroring = Some(mirroring);
        Ok(mirror)
    }
}

impl Mirroring {
    fn new(session: &Session) -> Result<Self> {
        let device = &session.device;
        let module = device.load(&Source { name: NAME, text: TEXT }, &CompileOptions::default())?;
        let (isv, isv_len) = words(session, ISV)?;
        let (state, state_len) = words(session, STATE)?;
        let bytes = 2 * STAMP + ((isv_len + state_len) * 4).next_multiple_of(8);
        let memory = Arc::new(device.alloc_mapped(bytes)?);
        let mirror = Mirror { artefacts: Arc::clone(&session.artefacts), memory, isv_len, state_len };
        Ok(Self { kernel: module.kernel(NAME)?, isv, state, steps: zero(device)?, mirror })
    }

    pub(super) fn name(&self) -> &'static str {
        NAME
    }

    fn config(&self) -> LaunchConfig {
        LaunchConfig::new(1, THREADS)
    }

    fn lengths(&self) -> [i32; 2] {
        [self.mirror.isv_len, self.mirror.state_len].map(|len| i32::try_from(len).unwrap_or(i32::MAX))
    }

    pub(super) fn launch(&self) -> Result<()> {
        let [isv_len, state_len] = self.lengths();
        let memories = [&self.isv, &self.state, &self.steps, &self.mirror.memory].map(|m| Arg::Buffer(m, 0));
        let [isv, state, steps, mirror] = memories;
        // SAFETY: the kernel's own parameters; the memories are as long as the lengths that go with them say.
        let launched = unsafe {
            let args = [isv, state, steps, mirror, Arg::I32(isv_len), Arg::I32(state_len)];
            self.kernel.launch(&self.config(), &args)
        };
        launched.map_err(failed)
    }

    /// The same as the last launch of a step in a graph.
    pub(super) fn add_to(&self, builder: &mut Builder, after: &[usize]) -> Result<()> {
        let memories = [&self.isv, &self.state, &self.steps, &self.mirror.memory];
        let mut args: Vec<Held> = memories.into_iter().map(|m| Held::Buffer(Arc::clone(m), 0)).collect();
        args.extend(self.lengths().map(Held::Number));
        // SAFETY: as above; it waits for its own step, and whatever changes slots or states in the next waits for it.
        unsafe { builder.add(&self.kernel, &self.config(), args, after) }.map_err(failed)
    }
}

/// The memory of a buffer of 32-bit words, and how many it holds; a set without it has none.
fn words(session: &Session, name: &str) -> Result<(Arc<Memory>, usize)> {
    match session.index_of(name) {
        Some(buffer) => Ok((Arc::clone(session.memory(buffer)?), session.len(buffer).unwrap_or(0))),
        None => Ok((zero(&session.device)?, 0)),
    }
}

fn zero(device: &Device) -> Result<Arc<Memory>> {
    Ok(Arc::new(device.alloc(STAMP)?))
}

fn failed(source: crate::device::DeviceError) -> SessionError {
    SessionError::Launch { launch: NAME.into(), source }
}

impl Mirror {
    /// What the last whole step left; `None` before the first. Waits only while the device is writing just now.
    ///
    /// Errors: the device stopped while it wrote.
    pub fn read(&self) -> Result<Option<Snapshot>> {
        let start = Instant::now();
        loop {
            match self.attempt()? {
                (0, _) => return Ok(None),
                (step, Some(words)) => return Ok(Some(self.snapshot(step, &words))),
                (step, None) if start.elapsed() > PATIENCE => return Err(SessionError::MirrorStopped { step }),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// The step that was last begun, 0 before the first whole one; and its words, unless they are being written.
    ///
    /// The device writes begin, words, end, and waits after each; in the opposite order two equal stamps enclose words of
    /// that step alone.
    fn attempt(&self) -> Result<(u64, Option<Vec<u32>>)> {
        let end = self.memory.peek(STAMP)?;
        if end == 0 {
            return Ok((0, None));
        }
        let mut words = Vec::with_capacity(self.isv_len + self.state_len + 1);
        for offset in (2 * STAMP..self.memory.len()).step_by(8) {
            let pair = self.memory.peek(offset)?;
            words.extend([pair as u32, (pair >> 32) as u32]);
        }
        let begin = self.memory.peek(0)?;
        Ok((begin, (begin == end).then_some(words)))
    }

    fn snapshot(&self, step: u64, words: &[u32]) -> Snapshot {
        let (isv, rest) = words.split_at(self.isv_len);
        Snapshot {
            artefacts: Arc::clone(&self.artefacts),
            step,
            isv: isv.iter().copied().map(f32::from_bits).collect(),
            state: rest[..self.state_len].to_vec(),
        }
    }
}

impl Snapshot {
    /// The step, counted from 1 since the mirror was made.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// All slots, by their index in the ISV.
    pub fn isv(&self) -> &[f32] {
        &self.isv
    }

    /// A member of a slot family, as [`Session::slot`] gives it. Errors: no such member; a constant of another set.
    pub fn slot(&self, slot: SlotOf, member: usize) -> Result<f32> {
        Ok(self.isv[own_slot(&self.artefacts, slot, member)?])
    }

    /// A scalar state. Errors: a constant of another set or of the wrong type.
    pub fn state<T: Scalar>(&self, state: StateOf<T>) -> Result<T> {
        Ok(T::from_word(self.state[own_state(&self.artefacts, state)?]))
    }
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("set", &self.artefacts.set).finish_non_exhaustive()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("set", &self.artefacts.set).field("step", &self.step).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::nvrtc;

    /// Where CUDA's compiler is installed; the tests of sessions run the text on the emulator.
    #[test]
    fn the_text_compiles_for_a_card() {
        match nvrtc::available() {
            Ok(_) => drop(nvrtc::compile(TEXT, NAME, "sm_90", &CompileOptions::default()).expect("it compiles")),
            Err(error) => assert!(std::env::var_os("UNIO_REQUIRE_NVRTC").is_none(), "{error}"),
        }
    }
}
