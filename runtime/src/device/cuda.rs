//! NVIDIA cards, through the driver. The library is loaded at run time: everything builds without CUDA.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaStream, sys};

use super::cache::Cache;
use super::error::{DeviceError, Result};
use super::kernel::{KernelAttributes, LaunchConfig, Words};
use super::source::{CompileOptions, Source};
use super::{Limits, nvrtc};

/// Above this much dynamic shared memory a function must be told.
const SHARED_WITHOUT_OPT_IN: u32 = 48 * 1024;

pub(crate) struct CudaDevice {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    limits: Limits,
    multiprocessor_threads: u32,
    /// Compute capability; 90 is 9.0.
    capability: u32,
    name: String,
    driver: i32,
    cache: Cache,
}

impl CudaDevice {
    pub(super) fn open() -> Result<Self> {
        // SAFETY: only asks whether the driver's library can be loaded; without it the next call would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(no_cuda("no driver library".into()));
        }
        result::init().map_err(|e| no_cuda(format!("the driver does not start: {}", words(e))))?;
        match result::device::get_count() {
            Ok(0) => return Err(no_cuda("the driver sees no card".into())),
            Ok(_) => {}
            Err(e) => return Err(no_cuda(format!("the driver lists no cards: {}", words(e)))),
        }
        let context = CudaContext::new(0).map_err(driver("opening the card"))?;
        // SAFETY: there is one stream, so no event is needed between streams; off before any buffer exists.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(driver("making the stream"))?;
        Self::describe_card(context, stream).map_err(driver("asking for the card's properties"))
    }

    fn describe_card(context: Arc<CudaContext>, stream: Arc<CudaStream>) -> Result<Self, DriverError> {
        use sys::CUdevice_attribute as A;
        let attribute = |which| context.attribute(which).map(|v| v.max(0) as u32);
        let shared = attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let limits = Limits {
            max_threads: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            max_shared_bytes: shared,
            total_memory: context.total_mem()? as u64,
        };
        let multiprocessor_threads = attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
        let (major, minor) = context.compute_capability()?;
        let mut version = 0;
        // SAFETY: an integer to write to.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
        let name = context.name()?;
        let capability = (major * 10 + minor) as u32;
        let cache = Cache::open();
        Ok(Self { context, stream, limits, multiprocessor_threads, capability, name, driver: version, cache })
    }

    pub(super) fn describe(&self) -> String {
        let (major, minor) = (self.capability / 10, self.capability % 10);
        let (cuda, of_cuda) = (self.driver / 1000, self.driver % 1000 / 10);
        let compiler = nvrtc::available().map_or("no NVRTC".into(), |v| format!("NVRTC {v}"));
        format!("cuda: {}, compute capability {major}.{minor}, driver for CUDA {cuda}.{of_cuda}, {compiler}", self.name)
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn free_memory(&self) -> Result<u64> {
        self.bind()?;
        let (free, _) = result::mem_get_info().map_err(driver("asking for free memory"))?;
        Ok(free as u64)
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        self.bind()?;
        self.wait().map_err(driver("synchronising"))
    }

    fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: our own live stream.
        unsafe { result::stream::synchronize(self.stream()) }
    }

    /// The driver's calls act on the calling thread's context.
    pub(super) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(driver("choosing the card"))
    }

    fn architecture(&self) -> Result<String> {
        let supported = nvrtc::supported_architectures()?;
        let version = nvrtc::available()?.to_string();
        nvrtc::best_architecture(self.capability, &supported).ok_or_else(|| DeviceError::Architecture {
            card: format!("sm_{}", self.capability),
            supported: supported.iter().map(|a| format!("sm_{a}")).collect::<Vec<_>>().join(" "),
            version,
        })
    }
}

/// A loaded module of the driver.
pub(crate) struct Code {
    device: Arc<CudaDevice>,
    handle: sys::CUmodule,
}

// SAFETY: driver handles may be used from any thread that has bound the context.
unsafe impl Send for Code {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Code {}

impl Code {
    pub(super) fn load(device: &Arc<CudaDevice>, source: &Source<'_>, options: &CompileOptions) -> Result<Self> {
        let arch = device.architecture()?;
        let image = nvrtc::image(&device.cache, source, &arch, options)?;
        device.bind()?;
        // SAFETY: a whole CUBIN, or PTX that ends in NUL, as NVRTC gave it.
        let handle = unsafe { result::module::load_data(image.as_ptr().cast()) };
        let handle = handle.map_err(|e| DeviceError::Load { name: source.name.into(), reason: words(e) })?;
        Ok(Self { device: Arc::clone(device), handle })
    }

    pub(super) fn function(&self, module: &str, name: &str) -> Result<Function> {
        self.device.bind()?;
        let failed = |reason| DeviceError::Load { name: module.into(), reason };
        let symbol = CString::new(name).map_err(|e| failed(e.to_string()))?;
        // SAFETY: a live module.
        let handle = unsafe { result::module::get_function(self.handle, symbol) };
        let handle = handle.map_err(|e| failed(format!("kernel `{name}`: {}", words(e))))?;
        Ok(Function { handle, opted_in: Arc::new(AtomicU32::new(SHARED_WITHOUT_OPT_IN)) })
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // What still runs from this module must end first.
        if self.device.synchronize().is_ok() {
            // SAFETY: loaded by us, and nothing runs from it.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}

/// A kernel's handle; the module that it lies in is kept by its owner.
#[derive(Clone)]
pub(crate) struct Function {
    handle: sys::CUfunction,
    /// Dynamic shared memory that the function has been told to allow.
    opted_in: Arc<AtomicU32>,
}

// SAFETY: driver handles may be used from any thread that has bound the context.
unsafe impl Send for Function {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Function {}

impl Function {
    pub(super) fn handle(&self) -> sys::CUfunction {
        self.handle
    }

    /// # Safety
    /// The words fit the kernel's parameters, and the kernel stays inside the memories passed.
    pub(super) unsafe fn launch(&self, device: &CudaDevice, config: &LaunchConfig, words: &mut Words) -> Result<()> {
        device.bind()?;
        self.allow_shared(config.shared_bytes)?;
        let (grid, block) = ((config.grid, 1, 1), (config.block, 1, 1));
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        let launched = unsafe {
            result::launch_kernel(self.handle, grid, block, config.shared_bytes, device.stream(), words.pointers())
        };
        launched.map_err(driver("launching a kernel"))
    }

    /// Raises the function's bound once for each larger request.
    pub(super) fn allow_shared(&self, bytes: u32) -> Result<()> {
        if bytes <= self.opted_in.load(Ordering::Relaxed) {
            return Ok(());
        }
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a live function.
        let set = unsafe { result::function::set_function_attribute(self.handle, which, bytes as i32) };
        set.map_err(driver("raising a kernel's shared memory"))?;
        self.opted_in.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn attributes(&self, device: &CudaDevice, config: &LaunchConfig) -> Result<KernelAttributes> {
        use sys::CUfunction_attribute as A;
        device.bind()?;
        self.allow_shared(config.shared_bytes)?;
        let get = |which| {
            // SAFETY: a live function.
            let value = unsafe { result::function::get_function_attribute(self.handle, which) };
            value.map(|v| v.max(0) as u32).map_err(driver("asking for a kernel's properties"))
        };
        Ok(KernelAttributes {
            registers: get(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared_bytes: get(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: get(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            max_threads: get(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            blocks_per_multiprocessor: self.resident_blocks(config)?,
            multiprocessor_threads: device.multiprocessor_threads,
        })
    }

    fn resident_blocks(&self, config: &LaunchConfig) -> Result<u32> {
        let (threads, shared) = (config.block as i32, config.shared_bytes as usize);
        let mut blocks = 0;
        // SAFETY: a live function, and an integer to write to.
        unsafe { sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.handle, threads, shared) }
            .result()
            .map_err(driver("asking for a kernel's occupancy"))?;
        Ok(blocks.max(0) as u32)
    }
}

/// Memory on the card, or pinned on the host and mapped into the card's addresses.
pub(crate) struct Buffer {
    device: Arc<CudaDevice>,
    address: sys::CUdeviceptr,
    /// The host's address of mapped memory.
    host: Option<*mut c_void>,
    len: usize,
}

// SAFETY: addresses of memory that the driver owns; the host side is reached through the driver or atomically.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(super) fn new(device: &Arc<CudaDevice>, len: usize) -> Result<Self> {
        device.bind()?;
        // SAFETY: the driver refuses sizes it cannot serve; zero bytes are not asked for.
        let address = unsafe { result::malloc_sync(len.max(1)) }.map_err(|e| allocating(e, len))?;
        let buffer = Self { device: Arc::clone(device), address, host: None, len };
        buffer.zero()?;
        Ok(buffer)
    }

    /// Not write-combined: the host reads it.
    pub(super) fn mapped(device: &Arc<CudaDevice>, len: usize) -> Result<Self> {
        device.bind()?;
        let size = len.max(8);
        // SAFETY: as above.
        let host = unsafe { result::malloc_host(size, sys::CU_MEMHOSTALLOC_DEVICEMAP) };
        let host = host.map_err(|e| allocating(e, len))?;
        let mut buffer = Self { device: Arc::clone(device), address: 0, host: Some(host), len };
        // SAFETY: pinned memory of `size` bytes that nothing else knows yet.
        unsafe { host.cast::<u8>().write_bytes(0, size) };
        // SAFETY: memory just allocated with the flag for mapping.
        let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut buffer.address, host, 0) };
        mapped.result().map_err(driver("mapping host memory"))?;
        Ok(buffer)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn belongs_to(&self, device: &Arc<CudaDevice>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the range was checked; the copy has ended when this returns.
        let copied = unsafe { result::memcpy_htod_async(self.address + offset as u64, bytes, self.device.stream()) };
        copied.and_then(|()| self.device.wait()).map_err(driver("writing memory"))
    }

    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the range was checked; the copy has ended when this returns.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, self.address + offset as u64, self.device.stream()) };
        copied.and_then(|()| self.device.wait()).map_err(driver("reading memory"))
    }

    pub(super) fn zero(&self) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the whole buffer, on the stream that all its users are on.
        let set = unsafe { result::memset_d8_async(self.address, 0, self.len, self.device.stream()) };
        set.map_err(driver("clearing memory"))
    }

    /// `offset` is inside, and divisible by 8.
    pub(super) fn peek(&self, offset: usize) -> Option<u64> {
        let host = self.host?;
        // SAFETY: inside pinned memory that lives as long as `self`; the card writes words whole.
        Some(unsafe { AtomicU64::from_ptr(host.cast::<u8>().add(offset).cast()) }.load(Ordering::Acquire))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A launch may still use the memory.
        let _ = self.device.synchronize();
        match self.host {
            // SAFETY: allocated by us, and nothing uses it any more.
            Some(host) => drop(unsafe { result::free_host(host) }),
            // SAFETY: as above.
            None => drop(unsafe { result::free_sync(self.address) }),
        }
    }
}

fn no_cuda(reason: String) -> DeviceError {
    DeviceError::NoCuda { reason, looked_for: "libcuda.so, libcuda.so.1 and a card".into() }
}

fn allocating(error: DriverError, bytes: usize) -> DeviceError {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory { bytes },
        _ => driver("allocating memory")(error),
    }
}

pub(super) fn driver(call: &'static str) -> impl FnOnce(DriverError) -> DeviceError {
    move |error| DeviceError::Driver { call, reason: words(error) }
}

fn words(error: DriverError) -> String {
    let text = |found: Result<&CStr, DriverError>| found.map_or("?".into(), |text| text.to_string_lossy().into_owned());
    format!("{} ({})", text(error.error_name()), text(error.error_string()))
}
