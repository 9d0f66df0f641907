//! Compiled kernels as shared libraries of this process.

use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use libloading::Library;

use super::EmulatorDevice;
use super::block::Thread;
use super::compiler;
use crate::device::cache::Key;
use crate::device::error::{DeviceError, Result, system};
use crate::device::kernel::Arg;
use crate::device::nvrtc::label;
use crate::device::source::{CompileOptions, Declared, Source, emulator_prelude, prelude};

/// A kernel's trampoline: unpacks an array of pointers to the arguments and calls the kernel.
pub(super) type EntryPoint = unsafe extern "C" fn(*const *mut c_void);
/// Where the library keeps the current thread, on the calling worker.
pub(super) type SlotOf = unsafe extern "C" fn() -> *mut *mut Thread;

pub(crate) struct Code {
    library: Arc<Library>,
    slot: SlotOf,
}

impl Code {
    pub(crate) fn load(
        device: &EmulatorDevice,
        source: &Source<'_>,
        options: &CompileOptions,
        kernels: &[Declared],
    ) -> Result<Self> {
        let flags = compiler::flags().join(" ");
        let real = options.real.define();
        let identity = device.compiler.identity();
        let headers = [emulator_prelude(), prelude()];
        let key = Key::of(&["emulator", identity, &flags, &real, headers[0], headers[1], source.name, source.text]);
        let build = || device.compiler.compile(source.name, &whole_text(source, kernels), std::slice::from_ref(&real));
        let bytes = device.cache.get_or_build(&key, build)?;
        Self::open(source.name, &bytes, device.cache.folder())
    }

    /// Opened from a file of its own, removed at once: damage to the cache cannot reach a running kernel.
    fn open(name: &str, bytes: &[u8], cache: &Path) -> Result<Self> {
        let temporary = std::env::temp_dir();
        let mut last = None;
        // A folder for temporary files may forbid running code; then the cache may do.
        for folder in [temporary.as_path(), cache] {
            match open_in(folder, bytes) {
                Ok(library) => return Self::bind(name, library),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(|| failed(name, "no folder".into()), |e| failed(name, e)))
    }

    fn bind(name: &str, library: Library) -> Result<Self> {
        // SAFETY: the prelude defines this function with this type.
        let slot = unsafe { library.get::<SlotOf>("unio_slot") }.map_err(|e| failed(name, e.to_string()))?;
        let slot = *slot;
        Ok(Self { library: Arc::new(library), slot })
    }

    pub(crate) fn function(&self, module: &str, name: &str) -> Result<Function> {
        let missing = |e: libloading::Error| failed(module, e.to_string());
        // SAFETY: the loader appended both functions, with these types.
        let entry = unsafe { self.library.get::<EntryPoint>(format!("unio_entry_{name}")) }.map_err(missing)?;
        // SAFETY: as above.
        let kinds =
            unsafe { self.library.get::<unsafe extern "C" fn() -> *const c_char>(format!("unio_kinds_{name}")) };
        let kinds = kinds.map_err(missing)?;
        // SAFETY: it returns a constant string that ends in NUL.
        let kinds = unsafe { CStr::from_ptr(kinds()) }.to_string_lossy().into_owned();
        Ok(Function { entry: *entry, slot: self.slot, kinds: kinds.into(), _library: Arc::clone(&self.library) })
    }
}

#[derive(Clone)]
pub(crate) struct Function {
    pub(super) entry: EntryPoint,
    pub(super) slot: SlotOf,
    /// One letter a parameter.
    kinds: Arc<str>,
    _library: Arc<Library>,
}

impl Function {
    /// The compiler knows each parameter's type, so a wrong argument is found before the launch.
    pub(crate) fn check_kinds(&self, kernel: &str, args: &[Arg<'_>]) -> Result<()> {
        let wrong = |reason| Err(DeviceError::Arguments { kernel: kernel.into(), reason });
        if self.kinds.len() != args.len() {
            return wrong(format!("{} arguments for {} parameters", args.len(), self.kinds.len()));
        }
        for (at, (kind, arg)) in self.kinds.chars().zip(args).enumerate() {
            let (letter, given) = described(arg);
            if kind != letter {
                return wrong(format!("argument {at} is {given}, the parameter is {}", parameter(kind)));
            }
        }
        Ok(())
    }
}

fn described(arg: &Arg<'_>) -> (char, &'static str) {
    match arg {
        Arg::Buffer(..) => ('p', "a buffer"),
        Arg::I32(_) => ('i', "I32"),
        Arg::U32(_) => ('u', "U32"),
        Arg::I64(_) => ('l', "I64"),
        Arg::U64(_) => ('m', "U64"),
        Arg::F32(_) => ('f', "F32"),
        Arg::F64(_) => ('d', "F64"),
    }
}

fn parameter(kind: char) -> &'static str {
    match kind {
        'p' => "a pointer",
        'i' => "int",
        'u' => "unsigned",
        'l' => "long long",
        'm' => "unsigned long long",
        'f' => "float",
        'd' => "double",
        _ => "of a type that cannot be passed",
    }
}

fn whole_text(source: &Source<'_>, kernels: &[Declared]) -> String {
    let entries: String = kernels.iter().map(|k| format!("UNIO_ENTRY({})\n", k.name)).collect();
    format!(
        "#line 1 \"emulator.h\"\n{}\n#line 1 \"unio.cuh\"\n{}\n#line 1 \"{}\"\n{}\n#line 1 \"entries\"\n{entries}",
        emulator_prelude(),
        prelude(),
        label(source.name),
        source.text
    )
}

fn open_in(folder: &Path, bytes: &[u8]) -> std::result::Result<Library, String> {
    let write = || {
        let mut file = tempfile::Builder::new().prefix("unio-").suffix(".so").tempfile_in(folder)?;
        file.write_all(bytes)?;
        Ok(file.into_temp_path())
    };
    let path = write().map_err(|e| system("writing a kernel")(e).to_string())?;
    // SAFETY: compiled by us from a text without constructors.
    unsafe { Library::new(path.as_os_str()) }.map_err(|e| e.to_string())
}

fn failed(name: &str, reason: String) -> DeviceError {
    DeviceError::Load { name: name.into(), reason }
}
