//! Devices: where kernel texts are compiled, loaded and run.
//!
//! One `.cu` text serves two devices. **cuda** compiles it with NVRTC for the real card; the **emulator** compiles it with
//! the system's C++ compiler and runs every CUDA thread as a coroutine, barriers and shuffles included.
//!
//! A text has no includes; [`prelude`] goes before it. It declares kernels and uses the math that both devices share:
//! ```c
//! UNIO_KERNEL(256) saxpy(UNIO_IN(real, x), UNIO_INOUT(real, y), real a, int n) {
//!     int i = blockIdx.x * blockDim.x + threadIdx.x;
//!     if (i < n) y[i] = unio_fma(a, x[i], y[i]);
//! }
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rayon::prelude::*;

mod cache;
mod cuda;
mod cuda_events;
mod cuda_graph;
mod emulator;
mod error;
mod graph;
mod kernel;
mod memory;
pub mod nvrtc;
mod source;
mod stopwatch;

pub use error::{DeviceError, Result};
pub(crate) use graph::{Builder, Fault, Graph, Held};
pub use kernel::{Arg, Kernel, KernelAttributes, LaunchConfig, Module};
pub use memory::{Memory, Pod};
pub use source::{CompileOptions, Real, Source, prelude};
pub use stopwatch::Stopwatch;

/// Which device to open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Target {
    /// CUDA where there is a driver and a card, else the emulator.
    #[default]
    Auto,
    /// The first CUDA card, or an error.
    Cuda,
    /// The emulator.
    Emulator,
}

/// Which device was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An NVIDIA card.
    Cuda,
    /// The emulator.
    Emulator,
}

/// In which order the emulator runs the threads of a block between two barriers, the blocks of a grid, and the launches of a
/// step's graph that no edge orders. Results must not depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ThreadOrder {
    /// From the first upwards.
    #[default]
    Forward,
    /// From the last downwards.
    Reversed,
}

/// How the emulator runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EmulatorOptions {
    /// The order of threads.
    pub order: ThreadOrder,
    /// Worker threads; `None` is one a core.
    pub workers: Option<usize>,
}

/// What one launch may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most threads a block.
    pub max_threads: u32,
    /// Most dynamic shared memory a block, in bytes.
    pub max_shared_bytes: u32,
    /// All memory of the device, in bytes; 0 where it is not known.
    pub total_memory: u64,
}

/// An open device with one stream: launches, writes and reads happen in the order they are asked for.
#[derive(Clone)]
pub struct Device {
    pub(crate) backend: Backend,
}

#[derive(Clone)]
pub(crate) enum Backend {
    Cuda(Arc<cuda::CudaDevice>),
    Emulator(Arc<emulator::EmulatorDevice>),
}

impl Device {
    /// Opens a device. [`Target::Cuda`] never falls back; [`Target::Auto`] says by [`Device::describe`] what it chose.
    pub fn open(target: Target) -> Result<Self> {
        match target {
            Target::Cuda => Self::cuda(),
            Target::Emulator => Self::emulator(EmulatorOptions::default()),
            Target::Auto => match Self::cuda() {
                Err(cuda @ DeviceError::NoCuda { .. }) => Self::instead_of(cuda),
                opened => opened,
            },
        }
    }

    /// Opens the emulator. Errors: there is no C++ compiler.
    pub fn emulator(options: EmulatorOptions) -> Result<Self> {
        let device = emulator::EmulatorDevice::open(options)?;
        Ok(Self { backend: Backend::Emulator(Arc::new(device)) })
    }

    fn cuda() -> Result<Self> {
        Ok(Self { backend: Backend::Cuda(Arc::new(cuda::CudaDevice::open()?)) })
    }

    /// The emulator where there is no card; announced, never silent.
    fn instead_of(cuda: DeviceError) -> Result<Self> {
        match Self::emulator(EmulatorOptions::default()) {
            Ok(device) => {
                tracing::warn!(reason = %cuda, device = device.describe(), "kernels run on the emulator");
                Ok(device)
            }
            Err(emulator) => Err(DeviceError::NoDevice { cuda: cuda.into(), emulator: emulator.into() }),
        }
    }

    /// Which device this is.
    pub fn kind(&self) -> Kind {
        match self.backend {
            Backend::Cuda(_) => Kind::Cuda,
            Backend::Emulator(_) => Kind::Emulator,
        }
    }

    /// One line for people: the card, its compute capability and driver; or the emulator, its compiler and thread order.
    pub fn describe(&self) -> String {
        match &self.backend {
            Backend::Cuda(device) => device.describe(),
            Backend::Emulator(device) => device.describe(),
        }
    }

    /// What one launch may ask for.
    pub fn limits(&self) -> Limits {
        match &self.backend {
            Backend::Cuda(device) => device.limits(),
            Backend::Emulator(device) => device.limits(),
        }
    }

    /// Memory that is free just now, in bytes; `None` where nobody says.
    ///
    /// Errors: the driver does not answer.
    pub fn free_memory(&self) -> Result<Option<u64>> {
        match &self.backend {
            Backend::Cuda(device) => device.free_memory().map(Some),
            Backend::Emulator(_) => Ok(emulator::free_memory()),
        }
    }

    /// Compiles a text, or takes it from the cache, and loads it. Errors: no compiler, the compiler's own words.
    pub fn load(&self, source: &Source<'_>, options: &CompileOptions) -> Result<Module> {
        let kernels = source::kernels(source.text);
        let code = match &self.backend {
            Backend::Cuda(device) => kernel::Code::Cuda(cuda::Code::load(device, source, options)?),
            Backend::Emulator(device) => {
                kernel::Code::Emulator(emulator::Code::load(device, source, options, &kernels)?)
            }
        };
        Ok(Module::new(kernel::Shared { name: source.name.into(), device: self.clone(), kernels, code }))
    }

    /// [`Device::load`] for many texts at once, in parallel; modules come in the sources' order. The first error wins.
    pub fn load_all(&self, sources: &[Source<'_>], options: &CompileOptions) -> Result<Vec<Module>> {
        let loaded: Vec<Result<Module>> = sources.par_iter().map(|source| self.load(source, options)).collect();
        loaded.into_iter().collect()
    }

    /// Memory of so many bytes, all zero. Zero bytes are allowed.
    pub fn alloc(&self, bytes: usize) -> Result<Memory> {
        let inner = match &self.backend {
            Backend::Cuda(device) => memory::Inner::Cuda(cuda::Buffer::new(device, bytes)?),
            Backend::Emulator(device) => memory::Inner::Emulator(emulator::Buffer::new(device, bytes, false)?),
        };
        Ok(Memory { inner })
    }

    /// Memory that holds `values`.
    pub fn alloc_from<T: Pod>(&self, values: &[T]) -> Result<Memory> {
        let memory = self.alloc(size_of_val(values))?;
        memory.write_slice(values)?;
        Ok(memory)
    }

    /// Memory on the host that kernels write directly and [`Memory::peek`] reads without waiting. Slower for kernels.
    pub fn alloc_mapped(&self, bytes: usize) -> Result<Memory> {
        let inner = match &self.backend {
            Backend::Cuda(device) => memory::Inner::Cuda(cuda::Buffer::mapped(device, bytes)?),
            Backend::Emulator(device) => memory::Inner::Emulator(emulator::Buffer::new(device, bytes, true)?),
        };
        Ok(Memory { inner })
    }

    /// Waits until everything asked for so far is done; reports what went wrong in it.
    pub fn synchronize(&self) -> Result<()> {
        match &self.backend {
            Backend::Cuda(device) => device.synchronize(),
            Backend::Emulator(_) => Ok(()),
        }
    }

    /// The order in which a graph's launches run where no edge orders them; CUDA has its own.
    fn launch_order(&self) -> ThreadOrder {
        match &self.backend {
            Backend::Cuda(_) => ThreadOrder::Forward,
            Backend::Emulator(device) => device.order(),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.describe()).finish()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Cuda => "cuda",
            Self::Emulator => "emulator",
        })
    }
}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(text: &str) -> Result<Self, UnknownTarget> {
        [Self::Auto, Self::Cuda, Self::Emulator]
            .into_iter()
            .find(|target| target.to_string() == text)
            .ok_or_else(|| UnknownTarget(text.into()))
    }
}

/// A device's name that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{0}`; choose `auto`, `cuda` or `emulator`")]
pub struct UnknownTarget(String);
