use std::fmt;

use super::Backend;
use super::cuda;
use super::emulator;
use super::error::{DeviceError, Result};

/// Bytes on a device, zero when new, freed when dropped. Operations on one device happen one after another.
pub struct Memory {
    pub(super) inner: Inner,
}

pub(super) enum Inner {
    Cuda(cuda::Buffer),
    Emulator(emulator::Buffer),
}

impl Memory {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        match &self.inner {
            Inner::Cuda(buffer) => buffer.len(),
            Inner::Emulator(buffer) => buffer.len(),
        }
    }

    /// Whether the size is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Overwrites the whole memory. `bytes` must have its length.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        self.whole("write", bytes.len())?;
        self.write_at(0, bytes)
    }

    /// Copies the whole memory out, after all launches before. `bytes` must have its length.
    pub fn read(&self, bytes: &mut [u8]) -> Result<()> {
        self.whole("read", bytes.len())?;
        self.read_at(0, bytes)
    }

    /// Overwrites `bytes.len()` bytes from byte `offset` on.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.inside("write", offset, bytes.len())?;
        match &self.inner {
            Inner::Cuda(buffer) => buffer.write(offset, bytes),
            Inner::Emulator(buffer) => buffer.write(offset, bytes),
        }
    }

    /// Copies `bytes.len()` bytes from byte `offset` on, after all launches before.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.inside("read", offset, bytes.len())?;
        match &self.inner {
            Inner::Cuda(buffer) => buffer.read(offset, bytes),
            Inner::Emulator(buffer) => buffer.read(offset, bytes),
        }
    }

    /// Sets every byte to zero.
    pub fn zero(&self) -> Result<()> {
        match &self.inner {
            Inner::Cuda(buffer) => buffer.zero(),
            Inner::Emulator(buffer) => buffer.zero(),
        }
    }

    /// Overwrites the whole memory with `values`, whose size must be the memory's.
    pub fn write_slice<T: Pod>(&self, values: &[T]) -> Result<()> {
        self.write(T::bytes(values))
    }

    /// The whole memory as values. Its length must be a multiple of the value's size.
    pub fn read_vec<T: Pod>(&self) -> Result<Vec<T>> {
        let size = size_of::<T>();
        if !self.len().is_multiple_of(size) {
            return Err(DeviceError::Length { what: "read of whole values", asked: size, offset: 0, len: self.len() });
        }
        let mut values = vec![T::default(); self.len() / size];
        self.read(T::bytes_mut(&mut values))?;
        Ok(values)
    }

    /// One 64-bit word of mapped memory, at a byte offset divisible by 8, as the device last made it visible: waits for nothing.
    pub fn peek(&self, offset: usize) -> Result<u64> {
        self.inside("peek", offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(DeviceError::WrongMemory { what: "peek needs an offset divisible by 8" });
        }
        let word = match &self.inner {
            Inner::Cuda(buffer) => buffer.peek(offset),
            Inner::Emulator(buffer) => buffer.peek(offset),
        };
        word.ok_or(DeviceError::WrongMemory { what: "peek needs mapped memory" })
    }

    /// The address as the device's kernels see it.
    pub(crate) fn address(&self) -> u64 {
        match &self.inner {
            Inner::Cuda(buffer) => buffer.address(),
            Inner::Emulator(buffer) => buffer.address(),
        }
    }

    pub(super) fn belongs_to(&self, backend: &Backend) -> bool {
        match (&self.inner, backend) {
            (Inner::Cuda(buffer), Backend::Cuda(device)) => buffer.belongs_to(device),
            (Inner::Emulator(buffer), Backend::Emulator(device)) => buffer.belongs_to(device),
            _ => false,
        }
    }

    fn whole(&self, what: &'static str, asked: usize) -> Result<()> {
        let len = self.len();
        if asked == len { Ok(()) } else { Err(DeviceError::Length { what, asked, offset: 0, len }) }
    }

    fn inside(&self, what: &'static str, offset: usize, asked: usize) -> Result<()> {
        let len = self.len();
        let fits = offset.checked_add(asked).is_some_and(|end| end <= len);
        if fits { Ok(()) } else { Err(DeviceError::Length { what, asked, offset, len }) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Plain numbers that may be copied to and from a device: f32, f64, i32, u32, i64, u64.
pub trait Pod: Copy + Default + sealed::Sealed + 'static {
    /// The values' own bytes.
    fn bytes(values: &[Self]) -> &[u8];
    /// The values' own bytes, to be overwritten.
    fn bytes_mut(values: &mut [Self]) -> &mut [u8];
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! pod {
    ($($t:ty)*) => {$(
        impl sealed::Sealed for $t {}
        impl Pod for $t {
            fn bytes(values: &[Self]) -> &[u8] {
                // SAFETY: a number has no padding, and bytes need no alignment.
                unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
            }
            fn bytes_mut(values: &mut [Self]) -> &mut [u8] {
                // SAFETY: as above; every bit pattern is a number.
                unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
            }
        }
    )*};
}
pod!(f32 f64 i32 u32 i64 u64);
