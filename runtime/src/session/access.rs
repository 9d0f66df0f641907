//! Reading and writing: through typed constants, and by name.

use unio_interface::{Artefacts, Buffer, State};

use super::check::product;
use super::convert;
use super::error::{Result, SessionError};
use super::handles::{BufferOf, Element, Scalar, SlotOf, StateOf};
use super::{ISV, STATE, Session};

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
        let word = own_state(&self.artefacts, state)?;
        Ok(T::from_word(self.word(STATE, word)?))
    }

    /// Sets a scalar state. Errors: as for [`Session::state`].
    pub fn set_state<T: Scalar>(&mut self, state: StateOf<T>, value: T) -> Result<()> {
        let word = own_state(&self.artefacts, state)?;
        self.set_word(word, value.to_word())
    }

    /// A member of a slot family, by its place in [`SlotOf::members`]; 0 for a single slot.
    ///
    /// Errors: no such member; a constant of another set.
    pub fn slot(&self, slot: SlotOf, member: usize) -> Result<f32> {
        self.word(ISV, own_slot(&self.artefacts, slot, member)?).map(f32::from_bits)
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
}

impl Session {
    fn write_index<T: Element>(&mut self, index: usize, values: &[T]) -> Result<()> {
        let stored = self.stored(index);
        let bytes = convert::encode(values, stored).ok_or_else(|| self.wrong_type::<T>(index))?;
        self.fits(index, values.len())?;
        if self.len(index) != Some(values.len()) {
            let memory = self.device.alloc(bytes.len())?;
            self.replace(index, memory);
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
        if i32::try_from(given).is_err() {
            return Err(SessionError::TooLong { buffer: name(), given });
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

    pub(super) fn read_index<T: Element>(&self, index: usize) -> Result<Vec<T>> {
        let memory = self.memory(index)?;
        let values = convert::decode(memory, self.stored(index)).ok_or_else(|| self.wrong_type::<T>(index))?;
        Ok(values?)
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

    pub(crate) fn named(&self, name: &str) -> Result<usize> {
        let names = self.program.buffers.iter().map(|b| &b.name);
        self.index_of(name).ok_or_else(|| self.unknown("buffer", name, names))
    }

    fn state_of(&self, name: &str) -> Result<&State> {
        let states = &self.artefacts.states;
        let found = states.iter().find(|state| state.name == name);
        found.ok_or_else(|| self.unknown("state", name, states.iter().map(|s| &s.name)))
    }

    fn own_buffer<T>(&self, handle: BufferOf<T>) -> Result<usize> {
        let own = self.program.buffers.get(handle.index).is_some_and(|b| b.name == handle.name);
        own.then_some(handle.index).ok_or_else(|| foreign(&self.artefacts, "buffer", handle.name, handle.index))
    }

    pub(super) fn wrong_type<T: Element>(&self, index: usize) -> SessionError {
        SessionError::ElementType {
            what: "buffer",
            name: self.program.buffers[index].name.clone(),
            stored: self.stored(index).name(),
            asked: T::OWN.name(),
        }
    }

    pub(super) fn unknown<'a>(
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

/// The place in the ISV of a slot family's member.
pub(super) fn own_slot(artefacts: &Artefacts, slot: SlotOf, member: usize) -> Result<usize> {
    let found = artefacts.slots.iter().find(|s| s.name == slot.name && s.index == slot.index);
    let Some(found) = found else {
        return Err(foreign(artefacts, "slot", slot.name, slot.index));
    };
    let members = found.members.len().max(1);
    match member < members {
        true => Ok(slot.index + member),
        false => Err(SessionError::Member { slot: slot.name.into(), members, member }),
    }
}

/// The word of a scalar state.
pub(super) fn own_state<T: Scalar>(artefacts: &Artefacts, handle: StateOf<T>) -> Result<usize> {
    let mut states = artefacts.states.iter();
    let Some(state) = states.find(|s| s.name == handle.name && s.word == handle.word) else {
        return Err(foreign(artefacts, "state", handle.name, handle.word));
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

fn foreign(artefacts: &Artefacts, what: &'static str, name: &str, index: usize) -> SessionError {
    SessionError::Foreign { set: artefacts.set.clone(), what, name: name.into(), index }
}
