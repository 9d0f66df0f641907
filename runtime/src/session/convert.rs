//! Numbers of the host as bytes of a buffer, and back.

use std::borrow::Cow;

use unio_interface::Elem;

use crate::device::{DeviceError, Memory, Pod, Real};

/// How a buffer's elements lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    F32,
    F64,
    I32,
}

impl Stored {
    pub fn of(elem: Elem, real: Real) -> Self {
        match (elem, real) {
            (Elem::I32, _) => Self::I32,
            (Elem::F64, _) | (Elem::Real, Real::F64) => Self::F64,
            (Elem::Real | Elem::F32, _) => Self::F32,
        }
    }

    pub fn size(self) -> usize {
        if self == Self::F64 { 8 } else { 4 }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I32 => "i32",
        }
    }

    /// One element; with `int`, the bits of an integer whatever the type.
    pub fn encode(self, value: f64, int: bool) -> Vec<u8> {
        match self {
            Self::F32 if !int => (value as f32).to_le_bytes().to_vec(),
            Self::F64 => value.to_le_bytes().to_vec(),
            Self::F32 | Self::I32 => (value as i32).to_le_bytes().to_vec(),
        }
    }
}

/// What [`super::Element`] can do; not for other crates.
pub trait Convert: Pod {
    const OWN: Stored;

    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

/// The values as a buffer stores them, or nothing where one side is an integer and the other is not.
pub fn encode<T: Convert>(values: &[T], stored: Stored) -> Option<Cow<'_, [u8]>> {
    let each = values.iter().map(|value| value.to_f64());
    match (T::OWN, stored) {
        (own, stored) if own == stored => Some(Cow::Borrowed(T::bytes(values))),
        (Stored::I32, _) | (_, Stored::I32) => None,
        (_, Stored::F32) => Some(each.flat_map(|value| (value as f32).to_le_bytes()).collect()),
        (_, Stored::F64) => Some(each.flat_map(f64::to_le_bytes).collect()),
    }
}

/// All values of a memory; `None` as for [`encode`].
pub fn decode<T: Convert>(memory: &Memory, stored: Stored) -> Option<Result<Vec<T>, DeviceError>> {
    match (T::OWN, stored) {
        (own, stored) if own == stored => Some(memory.read_vec::<T>()),
        (Stored::I32, _) | (_, Stored::I32) => None,
        (_, Stored::F32) => Some(memory.read_vec::<f32>().map(convert)),
        (_, Stored::F64) => Some(memory.read_vec::<f64>().map(convert)),
    }
}

fn convert<S: Convert, T: Convert>(values: Vec<S>) -> Vec<T> {
    values.into_iter().map(|value| T::from_f64(value.to_f64())).collect()
}

macro_rules! convert {
    ($($number:ident $own:ident),*) => {$(
        impl Convert for $number {
            const OWN: Stored = Stored::$own;

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }
    )*};
}
convert!(f32 F32, f64 F64, i32 I32);
