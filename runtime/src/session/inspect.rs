//! Looking into buffers, for whoever debugs a run.

use std::collections::BTreeMap;
use std::fmt;

use unio_interface::{Access, Arg, Elem, KernelParam, Role};

use super::convert::Stored;
use super::error::Result;
use super::launch::Prepared;
use super::{Phase, STATE, Session};
use crate::device::{KernelAttributes, LaunchConfig};

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

/// A launch of a step: its shape, and what the compiler made of its kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchShape {
    /// Name in plans and logs.
    pub launch: String,
    /// Symbol of the kernel.
    pub kernel: String,
    /// Blocks, threads, shared memory.
    pub config: LaunchConfig,
    /// Registers, spills and occupancy; `None` on the emulator.
    pub attributes: Option<KernelAttributes>,
}

impl Session {
    /// Shapes of a phase's launches, in order; those of no elements are left out.
    ///
    /// Errors: as for [`Session::run`]; the driver does not answer.
    pub fn shapes(&self, phase: Phase) -> Result<Vec<LaunchShape>> {
        let shape = |launch: &Prepared| {
            let Some(config) = self.shape(launch)? else { return Ok(None) };
            let kernel = &self.kernels[launch.kernel];
            let (launch, attributes) = (launch.name.clone(), kernel.attributes(&config)?);
            Ok(Some(LaunchShape { launch, kernel: kernel.name().into(), config, attributes }))
        };
        self.sequence(phase).launches.iter().filter_map(|launch| shape(launch).transpose()).collect()
    }

    /// Any buffer as numbers; integers that lie in words of a real buffer are shown as the integers they are.
    ///
    /// Errors: no such name; the run has not filled it.
    pub fn dump(&self, name: &str) -> Result<Vec<f64>> {
        self.dump_index(self.named(name)?)
    }

    /// The scalars that a launch of the training step reads, by the names that its kernel has for them, as they are now.
    /// Taken before a step they tell what stands there as `prev_NAME`, after it what stands as `now_NAME`.
    ///
    /// Errors: no such launch.
    pub fn scalars(&self, launch: &str) -> Result<BTreeMap<String, f64>> {
        let launches = &self.program.train;
        let found = launches.iter().find(|l| l.name == launch);
        let found = found.ok_or_else(|| self.unknown("launch", launch, launches.iter().map(|l| &l.name)))?;
        let mut scalars = BTreeMap::new();
        for (param, arg) in self.artefacts.kernels[found.kernel].params.iter().zip(&found.args) {
            let (KernelParam::Buffer { name, elem, access, role, .. }, Arg::Buffer { buffer, start }) = (param, arg)
            else {
                continue;
            };
            if (*access, role) == (Access::In, &Role::Scalar) {
                scalars.insert(name.clone(), self.scalar(*elem, *buffer, *start)?);
            }
        }
        Ok(scalars)
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

impl Session {
    /// One element, of the type that a kernel takes it for.
    fn scalar(&self, elem: Elem, buffer: usize, at: usize) -> Result<f64> {
        let mut bytes = [0; 8];
        let stored = Stored::of(elem, self.real);
        let size = stored.size();
        self.memory(buffer)?.read_at(at * size, &mut bytes[..size])?;
        let [a, b, c, d, ..] = bytes;
        Ok(match stored {
            Stored::F64 => f64::from_le_bytes(bytes),
            Stored::F32 => f64::from(f32::from_le_bytes([a, b, c, d])),
            Stored::I32 => f64::from(i32::from_le_bytes([a, b, c, d])),
        })
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
                let (KernelParam::Buffer { access, .. }, Arg::Buffer { buffer, .. }) = (param, arg) else {
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
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`[{}] is {}", self.buffer, self.index, self.value)
    }
}
