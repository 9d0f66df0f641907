//! What the generator promises, checked once, so that no index is wrong afterwards.

use unio_interface::{Arg, Artefacts, Elem, KernelParam, Launch, Program, Reset, Role};

use super::error::{Result, SessionError};
use super::{ISV, OBSERVED, PARAMS, SKIPPED, SMOOTHING, STATE};

/// Errors: [`SessionError::Artefacts`], for the first contradiction.
pub(super) fn check(artefacts: &Artefacts, program: &Program) -> Result<()> {
    let check = Check { artefacts, program };
    check.buffers()?;
    check.kernels()?;
    check.scalars()?;
    check.params()?;
    artefacts.resets.iter().try_for_each(|reset| check.reset(reset))?;
    for launches in [&program.train, &program.evaluate] {
        launches.iter().enumerate().try_for_each(|(at, launch)| check.launch(at, launch))?;
    }
    Ok(())
}

struct Check<'a> {
    artefacts: &'a Artefacts,
    program: &'a Program,
}

impl Check<'_> {
    fn wrong<T>(&self, place: impl Into<String>, reason: impl Into<String>) -> Result<T> {
        Err(SessionError::Artefacts { set: self.artefacts.set.clone(), place: place.into(), reason: reason.into() })
    }

    fn buffers(&self) -> Result<()> {
        for (at, buffer) in self.program.buffers.iter().enumerate() {
            let place = || format!("buffer `{}`", buffer.name);
            if buffer.len.is_none() && !buffer.external {
                return self.wrong(place(), "has no length and the run does not fill it");
            }
            if self.program.buffers[..at].iter().any(|b| b.name == buffer.name) {
                return self.wrong(place(), "is there twice");
            }
        }
        Ok(())
    }

    fn kernels(&self) -> Result<()> {
        let kernels = &self.artefacts.kernels;
        for kernel in kernels {
            let bytes = 8 * u64::from(kernel.shared.reals) + u64::from(kernel.shared.bytes);
            if kernel.source >= self.artefacts.sources.len() || u32::try_from(bytes).is_err() {
                return self.wrong(format!("kernel `{}`", kernel.symbol), "has no text or too much shared memory");
            }
        }
        for stage in &self.program.stages {
            if stage.forward >= kernels.len() || stage.adjoint.is_some_and(|k| k >= kernels.len()) {
                return self.wrong(format!("stage `{}`", stage.name), "names a kernel that is not there");
            }
        }
        Ok(())
    }

    /// Slots and states lie in the buffers of fixed names; a read of one looks nowhere else.
    fn scalars(&self) -> Result<()> {
        for slot in &self.artefacts.slots {
            let (place, len) = (format!("slot `{}`", slot.name), slot.members.len().max(1));
            self.part(&place, ISV, Elem::F32, slot.index, len)?;
            if let Some(scratch) = slot.scratch {
                self.part(&place, OBSERVED, Elem::F32, scratch, len)?;
                self.part(&place, SKIPPED, Elem::I32, scratch, len)?;
                self.part(&place, SMOOTHING, Elem::F32, 0, 0)?;
            }
        }
        for state in &self.artefacts.states {
            self.part(&format!("state `{}`", state.name), STATE, Elem::F32, state.word, 1)?;
        }
        Ok(())
    }

    fn params(&self) -> Result<()> {
        for param in &self.program.params {
            let place = format!("parameter `{}`", param.path);
            let Some(len) = product(&param.shape) else {
                return self.wrong(place, "is too large");
            };
            self.part(&place, PARAMS, Elem::Real, param.offset, len)?;
        }
        Ok(())
    }

    /// A range of the buffer of this name.
    fn part(&self, place: &str, name: &str, elem: Elem, start: usize, len: usize) -> Result<()> {
        match self.program.buffers.iter().position(|b| b.name == name && b.elem == elem) {
            Some(buffer) => self.range(place, buffer, start, len),
            None => self.wrong(place, format!("there is no buffer `{name}` of its type")),
        }
    }

    /// Buffers whose length the run tells are checked when they are written.
    fn range(&self, place: &str, buffer: usize, start: usize, len: usize) -> Result<()> {
        let Some(found) = self.program.buffers.get(buffer) else {
            return self.wrong(place, format!("there is no buffer {buffer}"));
        };
        let end = start.saturating_add(len);
        if found.len.is_some_and(|held| end > held) {
            let reason = format!("`{}` ends before element {end}", found.name);
            return self.wrong(place, reason);
        }
        Ok(())
    }

    fn reset(&self, reset: &Reset) -> Result<()> {
        let place = format!("reset of `{}`", reset.name);
        for part in &reset.parts {
            self.range(&place, part.buffer, part.start, part.len)?;
            let buffer = &self.program.buffers[part.buffer];
            if buffer.external {
                return self.wrong(place, format!("the run fills `{}`", buffer.name));
            }
            if part.int && buffer.elem == Elem::Real {
                return self.wrong(place, format!("`{}` cannot hold integers", buffer.name));
            }
        }
        Ok(())
    }

    fn launch(&self, at: usize, launch: &Launch) -> Result<()> {
        let place = format!("launch `{}`", launch.name);
        if let Some(later) = launch.after.iter().find(|earlier| **earlier >= at) {
            return self.wrong(place, format!("waits for launch {later}, which does not stand before it"));
        }
        let Some(kernel) = self.artefacts.kernels.get(launch.kernel) else {
            return self.wrong(place, format!("there is no kernel {}", launch.kernel));
        };
        if kernel.params.len() != launch.args.len() {
            let reason = format!("{} arguments for {} parameters", launch.args.len(), kernel.params.len());
            return self.wrong(place, reason);
        }
        for (param, arg) in kernel.params.iter().zip(&launch.args) {
            match (param, arg) {
                (KernelParam::Count { .. }, Arg::Count(n)) if *n >= 0 => {}
                (KernelParam::Number { .. }, Arg::Number(_)) => {}
                (KernelParam::Count { .. }, Arg::CountOf { buffer, row_len }) if *row_len > 0 => {
                    self.range(&place, *buffer, 0, 0)?;
                }
                (KernelParam::Rows { row_len: told, .. }, Arg::Rows { buffer, row_len })
                    if told == row_len && *row_len > 0 =>
                {
                    self.range(&place, *buffer, 0, *row_len)?;
                }
                (KernelParam::Buffer { .. }, Arg::Buffer { buffer, start }) => {
                    self.range(&place, *buffer, *start, least(launch, param))?;
                }
                _ => return self.wrong(place, "an argument is not what its parameter takes"),
            }
        }
        Ok(())
    }
}

/// Elements that a launch needs behind a pointer, as far as the kernel says.
pub(super) fn least(launch: &Launch, param: &KernelParam) -> usize {
    let count = |arg: &Arg| match arg {
        Arg::Count(n) => usize::try_from(*n).ok(),
        Arg::Buffer { .. } | Arg::CountOf { .. } | Arg::Number(_) | Arg::Rows { .. } => None,
    };
    match param {
        KernelParam::Buffer { len: Some(len), .. } => *len,
        // Element-wise: what is not a table of its own length has one element for each that is counted.
        KernelParam::Buffer { role: Role::State | Role::Reduced | Role::Output, .. } => {
            launch.args.iter().filter_map(count).max().unwrap_or(0)
        }
        KernelParam::Buffer { .. }
        | KernelParam::Count { .. }
        | KernelParam::Number { .. }
        | KernelParam::Rows { .. } => 0,
    }
}

pub(crate) fn product(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent))
}
