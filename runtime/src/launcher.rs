//! What the launchers that `specs!()` generates are made of: typed device tensors, and gradients that must be reduced
//! before an optimizer takes them.

use std::marker::PhantomData;

use unio_interface::{Artefacts, Grid};

use crate::device::{Arg, CompileOptions, Device, DeviceError, Kernel, LaunchConfig, Memory, Pod, Source};

/// A launch that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// An argument has fewer elements than the kernel touches.
    #[error(
        "{kernel}: the argument `{argument}` has {given} elements, the kernel touches {needed}: pass a larger tensor"
    )]
    TooShort {
        /// Kernel symbol.
        kernel: &'static str,
        /// Argument.
        argument: &'static str,
        /// Elements that the kernel touches.
        needed: usize,
        /// Elements that it has.
        given: usize,
    },
    /// A count does not fit the kernel's `int`.
    #[error("{kernel}: {count} elements are more than 2^31 - 1: launch in parts")]
    TooMany {
        /// Kernel symbol.
        kernel: &'static str,
        /// Elements.
        count: usize,
    },
    /// The device refuses.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A device tensor of `T`, row-major.
#[derive(Debug)]
pub struct Tensor<T> {
    memory: Memory,
    len: usize,
    elem: PhantomData<T>,
}

impl<T: Pod> Tensor<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// Where the device is out of memory.
    pub fn zeros(device: &Device, len: usize) -> Result<Self, DeviceError> {
        Ok(Self { memory: device.alloc(len * size_of::<T>())?, len, elem: PhantomData })
    }

    /// A copy of host values.
    ///
    /// # Errors
    /// Where the device is out of memory.
    pub fn from_slice(device: &Device, values: &[T]) -> Result<Self, DeviceError> {
        Ok(Self { memory: device.alloc_from(values)?, len: values.len(), elem: PhantomData })
    }

    /// The values, after all launches before.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn to_vec(&self) -> Result<Vec<T>, DeviceError> {
        self.memory.read_vec()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some elements that a kernel may read and write one by one: a slot of an ISV, or a state.
    ///
    /// Gives fewer where the tensor ends before.
    pub fn words(&self, start: usize, len: usize) -> Words<'_, T> {
        let start = start.min(self.len);
        Words { tensor: self, start, len: len.min(self.len - start) }
    }

    /// The argument from an element on.
    #[doc(hidden)]
    pub fn arg(&self) -> Arg<'_> {
        Arg::Buffer(&self.memory, 0)
    }
}

/// A few elements of a tensor. Kernels take them through pointers that may alias.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a, T> {
    tensor: &'a Tensor<T>,
    start: usize,
    len: usize,
}

impl<'a, T: Pod> Words<'a, T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The argument.
    #[doc(hidden)]
    pub fn arg(&self) -> Arg<'a> {
        Arg::Buffer(&self.tensor.memory, self.start * size_of::<T>())
    }
}

/// Room for a gradient that is not reduced over the batch yet. No optimizer takes it.
#[derive(Debug)]
pub struct Gradient<T>(Tensor<T>);

impl<T: Pod> Gradient<T> {
    /// Room for `len` elements.
    ///
    /// # Errors
    /// Where the device is out of memory.
    pub fn room(device: &Device, len: usize) -> Result<Self, DeviceError> {
        Tensor::zeros(device, len).map(Self)
    }

    /// The tensor, for the reducer.
    #[doc(hidden)]
    pub fn tensor(&self) -> &Tensor<T> {
        &self.0
    }

    /// What the only kernel that gives gradients has written.
    #[doc(hidden)]
    pub fn reduced(self) -> Reduced<T> {
        Reduced(self.0)
    }

    /// What the first of several kernels has written.
    #[doc(hidden)]
    pub fn after<K>(self) -> After<T, K> {
        After(self.0, PhantomData)
    }
}

/// A gradient to which the kernels up to `K` have given their parts. Others are missing: no optimizer takes it.
#[derive(Debug)]
pub struct After<T, K>(Tensor<T>, PhantomData<K>);

impl<T: Pod, K> After<T, K> {
    /// The tensor, for the next kernel.
    #[doc(hidden)]
    pub fn tensor(&self) -> &Tensor<T> {
        &self.0
    }

    /// With the part of the next kernel.
    #[doc(hidden)]
    pub fn after<L>(self) -> After<T, L> {
        After(self.0, PhantomData)
    }

    /// With the part of the last kernel.
    #[doc(hidden)]
    pub fn reduced(self) -> Reduced<T> {
        Reduced(self.0)
    }
}

/// A gradient after the reduction over the batch: what an optimizer takes. Only the launch that completes it makes one: the
/// reducer's, or the last one where stages defer their gradients.
#[derive(Debug)]
pub struct Reduced<T>(Tensor<T>);

impl<T: Pod> Reduced<T> {
    /// The tensor.
    pub fn tensor(&self) -> &Tensor<T> {
        &self.0
    }

    /// Gives the room back for the next step's reduction.
    pub fn into_gradient(self) -> Gradient<T> {
        Gradient(self.0)
    }
}

/// A loaded kernel of a generated launcher.
#[derive(Clone, Debug)]
pub struct Launcher {
    kernel: Kernel,
    threads: u32,
    shared_bytes: u32,
    grid: Grid,
}

impl Launcher {
    /// Loads the kernel at an index of the artefacts.
    ///
    /// # Errors
    /// Where its text cannot be compiled for the device.
    #[doc(hidden)]
    pub fn load(device: &Device, artefacts: &Artefacts, index: usize) -> Result<Self, DeviceError> {
        let kernel = &artefacts.kernels[index];
        let source = &artefacts.sources[kernel.source];
        let options = CompileOptions::default();
        let module = device.load(&Source { name: &source.path, text: &source.text }, &options)?;
        Ok(Self {
            kernel: module.kernel(&kernel.symbol)?,
            threads: kernel.threads,
            shared_bytes: kernel.shared.total(4),
            grid: kernel.grid,
        })
    }

    /// Launches over `n` elements, where the kernel counts any; no elements, no launch.
    ///
    /// # Safety
    /// The arguments must fit the kernel's parameters in number, type and length. Generated launchers check just that.
    #[doc(hidden)]
    pub unsafe fn launch(&self, n: usize, args: &[Arg<'_>]) -> Result<(), LaunchError> {
        let config = LaunchConfig::new(self.grid.blocks(n), self.threads).shared(self.shared_bytes);
        // SAFETY: passed on to the caller.
        unsafe { self.kernel.launch(&config, args)? };
        Ok(())
    }
}

/// Refuses an argument that is too short; for generated launchers.
#[doc(hidden)]
pub fn check_len(kernel: &'static str, argument: &'static str, needed: usize, given: usize) -> Result<(), LaunchError> {
    if given < needed {
        return Err(LaunchError::TooShort { kernel, argument, needed, given });
    }
    Ok(())
}

/// A count as the kernel's `int`; for generated launchers.
#[doc(hidden)]
pub fn check_count(kernel: &'static str, count: usize) -> Result<i32, LaunchError> {
    i32::try_from(count).map_err(|_| LaunchError::TooMany { kernel, count })
}

/// The artefacts that `specs!()` embeds.
#[doc(hidden)]
pub fn artefacts(json: &str) -> Artefacts {
    // The macro read the same text when it expanded, so that a damaged one did not build.
    serde_json::from_str(json).unwrap_or_else(|error| unreachable!("embedded artefacts: {error}"))
}
