use std::io;

/// What can go wrong between a kernel's text and its results. Each message ends with what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// `cuda` was asked for and there is no driver, or no card.
    #[error(
        "no CUDA device: {reason} (looked for {looked_for}); install the NVIDIA driver, or choose the device `emulator`"
    )]
    NoCuda {
        /// What is missing.
        reason: String,
        /// Libraries and devices that were looked for.
        looked_for: String,
    },
    /// Neither device can be opened.
    #[error("no device at all: {cuda}; and {emulator}")]
    NoDevice {
        /// Why there is no CUDA device.
        cuda: Box<DeviceError>,
        /// Why there is no emulator.
        emulator: Box<DeviceError>,
    },
    /// NVRTC, which compiles kernels for a card, is not installed.
    #[error(
        "NVRTC was not found (looked for {looked_for}); install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` and set UNIO_NVRTC_DIR to the folder of libnvrtc.so"
    )]
    NoNvrtc {
        /// Folders and library names tried.
        looked_for: String,
    },
    /// NVRTC was found and a call into it failed.
    #[error("NVRTC failed in {call}: {reason}; check that libnvrtc and libnvrtc-builtins have one version")]
    Nvrtc {
        /// The function called.
        call: &'static str,
        /// What it answered.
        reason: String,
    },
    /// NVRTC knows no architecture that this card runs.
    #[error("NVRTC {version} compiles for {supported} and the card is {card}; install an NVRTC that knows the card")]
    Architecture {
        /// The card's architecture, such as `sm_90`.
        card: String,
        /// All that NVRTC supports, such as `sm_75 sm_80`.
        supported: String,
        /// NVRTC's version.
        version: String,
    },
    /// The emulator needs a C++ compiler.
    #[error("the emulator found no C++ compiler (tried {tried}); install g++ or clang++, or set CXX to one")]
    NoCompiler {
        /// Commands tried, in order.
        tried: String,
    },
    /// A kernel's text does not compile.
    #[error("kernel text `{name}` does not compile with {compiler}; correct the lines named here:\n{log}")]
    Compile {
        /// Name of the source.
        name: String,
        /// The compiler and its version.
        compiler: String,
        /// The compiler's own words; `#line` in the text decides which file and line they name.
        log: String,
    },
    /// A compiled kernel could not be loaded.
    #[error("compiled kernel text `{name}` could not be loaded: {reason}; remove the cache folder if it persists")]
    Load {
        /// Name of the source.
        name: String,
        /// What the loader said.
        reason: String,
    },
    /// A module has no kernel of this name.
    #[error("`{module}` has no kernel `{kernel}`; it has: {known}")]
    NoKernel {
        /// Name of the source.
        module: String,
        /// The name asked for.
        kernel: String,
        /// The names there are.
        known: String,
    },
    /// A launch is outside what the device or the kernel allows.
    #[error("kernel `{kernel}`: {what} is {asked}, the limit is {limit}; change the launch shape")]
    LaunchLimit {
        /// The kernel.
        kernel: String,
        /// What is too large.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// The most there is.
        limit: u64,
    },
    /// The arguments do not fit the kernel's parameters.
    #[error("kernel `{kernel}`: {reason}; pass what the kernel's text declares")]
    Arguments {
        /// The kernel.
        kernel: String,
        /// Which argument, and how it differs.
        reason: String,
    },
    /// A read or write does not fit the memory.
    #[error("{what}: {asked} bytes at byte {offset} of a memory of {len} bytes; use the memory's own length")]
    Length {
        /// The operation.
        what: &'static str,
        /// Bytes asked for.
        asked: usize,
        /// Where they start.
        offset: usize,
        /// The memory's size in bytes.
        len: usize,
    },
    /// The device has too little memory.
    #[error("{bytes} bytes could not be allocated on the device; make the batch or the model smaller")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The memory belongs to another device than the kernel, or is of the wrong kind.
    #[error("{what}; use memory that `alloc` or `alloc_mapped` of the same device returned")]
    WrongMemory {
        /// What was expected.
        what: &'static str,
    },
    /// Threads of one block did not all reach the same barrier.
    #[error(
        "kernel `{kernel}`, block {block}, thread {thread}: {reason}; every thread of a block must reach each __syncthreads()"
    )]
    BarrierDivergence {
        /// The kernel.
        kernel: String,
        /// The block's index.
        block: u32,
        /// A thread that waits.
        thread: u32,
        /// What the others do.
        reason: String,
    },
    /// A warp collective whose lanes did not all come.
    #[error(
        "kernel `{kernel}`, block {block}, thread {thread}: {reason}; every lane of the mask must make the same call with the same mask"
    )]
    WarpDivergence {
        /// The kernel.
        kernel: String,
        /// The block's index.
        block: u32,
        /// A thread that waits.
        thread: u32,
        /// Which lanes are missing.
        reason: String,
    },
    /// A call of the CUDA driver failed.
    #[error("CUDA driver: {call} failed: {reason}; after an illegal access the process must be restarted")]
    Driver {
        /// What was being done.
        call: &'static str,
        /// The driver's own name and words.
        reason: String,
    },
    /// The device cannot do this (yet).
    #[error("{what} is not supported on this device; {cure}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// What to do instead.
        cure: &'static str,
    },
    /// Files or memory maps of the operating system.
    #[error("{what}: {source}; check free space, permissions and limits")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's own error.
        source: io::Error,
    },
}

/// Results of the device layer.
pub type Result<T, E = DeviceError> = std::result::Result<T, E>;

pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> DeviceError {
    move |source| DeviceError::System { what, source }
}
