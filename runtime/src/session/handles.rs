use std::fmt;
use std::marker::PhantomData;

use super::convert::Convert;

/// A buffer whose elements the host sees as `T`. `unio::specs!()` gives one constant a buffer.
pub struct BufferOf<T> {
    pub(super) index: usize,
    pub(super) name: &'static str,
    element: PhantomData<fn() -> T>,
}

/// A scalar state, `f32` or `i32`. `unio::specs!()` gives one constant a state.
pub struct StateOf<T> {
    pub(super) word: usize,
    pub(super) name: &'static str,
    element: PhantomData<fn() -> T>,
}

/// A slot family of the ISV. `unio::specs!()` gives one constant a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotOf {
    pub(super) index: usize,
    pub(super) name: &'static str,
    pub(super) members: &'static [&'static str],
}

/// What a buffer can be read and written as: `f32`, `f64`, `i32`. Reals convert to the session's type and back; a
/// number of the buffer's own type is copied bit by bit.
pub trait Element: Convert {}

/// What a state can be: `f32`, `i32`.
pub trait Scalar: Element {
    /// Whether it is an integer.
    const INT: bool;
    /// From the word on the device.
    fn from_word(word: u32) -> Self;
    /// To the word on the device.
    fn to_word(self) -> u32;
}

impl<T: Element> BufferOf<T> {
    /// Buffer `index` of the set's program, whose name is `name`.
    pub const fn new(index: usize, name: &'static str) -> Self {
        let element = PhantomData;
        Self { index, name, element }
    }

    /// The buffer's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T: Scalar> StateOf<T> {
    /// The state in word `word`, whose name is `name`.
    pub const fn new(word: usize, name: &'static str) -> Self {
        let element = PhantomData;
        Self { word, name, element }
    }

    /// The state's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl SlotOf {
    /// The family `name` from ISV index `index` on; `members` is empty for a single slot.
    pub const fn new(index: usize, name: &'static str, members: &'static [&'static str]) -> Self {
        Self { index, name, members }
    }

    /// The family's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Index in the ISV; of the first member where the family has any.
    pub const fn index(&self) -> usize {
        self.index
    }

    /// The members' names, in order; empty for a single slot.
    pub const fn members(&self) -> &'static [&'static str] {
        self.members
    }
}

impl Element for f32 {}
impl Element for f64 {}
impl Element for i32 {}

impl Scalar for f32 {
    const INT: bool = false;

    fn from_word(word: u32) -> Self {
        Self::from_bits(word)
    }

    fn to_word(self) -> u32 {
        self.to_bits()
    }
}

impl Scalar for i32 {
    const INT: bool = true;

    fn from_word(word: u32) -> Self {
        word as Self
    }

    fn to_word(self) -> u32 {
        self as u32
    }
}

impl<T> Clone for BufferOf<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for BufferOf<T> {}

impl<T> Clone for StateOf<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for StateOf<T> {}

impl<T> fmt::Debug for BufferOf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferOf({} {})", self.index, self.name)
    }
}

impl<T> fmt::Debug for StateOf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateOf({} {})", self.word, self.name)
    }
}
