//! Kernel texts to machine code for NVIDIA cards. Needs the library NVRTC, no card and no driver.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;

use super::cache::{Cache, Key};
use super::error::{DeviceError, Result};
use super::source::{CompileOptions, Source, prelude};

/// Environment variable: the folder that holds `libnvrtc.so*` and `libnvrtc-builtins.so*`.
pub const DIR_VARIABLE: &str = "UNIO_NVRTC_DIR";

/// NVRTC's own version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Of CUDA.
    pub major: i32,
    /// Of CUDA.
    pub minor: i32,
}

/// The library's version, or an error that says where it was looked for.
pub fn available() -> Result<Version> {
    library().map(|library| library.version)
}

/// Architectures that this NVRTC compiles for, as numbers such as 90, ascending.
pub fn supported_architectures() -> Result<Vec<u32>> {
    library()?.architectures()
}

/// The prelude and `text`, compiled for `arch`: `sm_90` and the like give a CUBIN for that card, `compute_90` gives PTX.
///
/// Errors: no NVRTC; the compiler's log, which names lines as `#line` in the text says.
pub fn compile(text: &str, name: &str, arch: &str, options: &CompileOptions) -> Result<Vec<u8>> {
    let whole = format!("#line 1 \"unio.cuh\"\n{}\n#line 1 \"{}\"\n{text}", prelude(), label(name));
    let arguments = flags(arch, options);
    library()?.compile(&whole, name, &arguments, arch.starts_with("compute_"))
}

/// [`compile`], or what it gave before: a machine without a card can fill the cache for one that has it.
///
/// Errors: as for [`compile`].
pub fn compile_cached(text: &str, name: &str, arch: &str, options: &CompileOptions) -> Result<Vec<u8>> {
    image(&Cache::open(), &Source { name, text }, arch, options)
}

/// A text's binary, from the cache where it is there.
pub(crate) fn image(cache: &Cache, source: &Source<'_>, arch: &str, options: &CompileOptions) -> Result<Vec<u8>> {
    let compiler = format!("nvrtc {}", available()?);
    let flags = flags(arch, options).join(" ");
    let key = Key::of(&["cuda", &compiler, &flags, prelude(), source.name, source.text]);
    cache.get_or_build(&key, || compile(source.text, source.name, arch, options))
}

/// Flags that decide bits; they are part of a cache entry's key.
pub(crate) fn flags(arch: &str, options: &CompileOptions) -> Vec<String> {
    let fixed =
        ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--generate-line-info"];
    let mut flags: Vec<String> = fixed.map(String::from).into();
    flags.push(format!("--gpu-architecture={arch}"));
    flags.push(options.real.define());
    flags
}

/// What to compile for a card of this compute capability (90 is 9.0): the best supported architecture not above it.
/// Code for another major version does not run on the card, so that case asks for PTX, which the driver finishes.
pub(crate) fn best_architecture(card: u32, supported: &[u32]) -> Option<String> {
    let best = supported.iter().copied().filter(|&arch| arch <= card).max()?;
    let kind = if best / 10 == card / 10 { "sm" } else { "compute" };
    Some(format!("{kind}_{best}"))
}

/// A name that is safe inside the quotes of `#line`.
pub(crate) fn label(name: &str) -> String {
    name.chars().map(|c| if c == '"' || c == '\\' || c.is_control() { '_' } else { c }).collect()
}

type Code = c_int;
type Program = *mut std::ffi::c_void;

/// NVRTC's functions, by hand: cudarc's loader takes no folder and panics where the library is missing.
struct Nvrtc {
    version: Version,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Code,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Code,
    destroy: unsafe extern "C" fn(*mut Program) -> Code,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> Code,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    count: unsafe extern "C" fn(*mut c_int) -> Code,
    list: unsafe extern "C" fn(*mut c_int) -> Code,
    error: unsafe extern "C" fn(Code) -> *const c_char,
}

/// The library stays loaded for the process; a failed search is repeated, since it may be installed meanwhile.
fn library() -> Result<&'static Nvrtc> {
    static LIBRARY: OnceLock<Nvrtc> = OnceLock::new();
    if let Some(found) = LIBRARY.get() {
        return Ok(found);
    }
    let found = search()?;
    Ok(LIBRARY.get_or_init(|| found))
}

fn search() -> Result<Nvrtc> {
    let folder = env::var_os(DIR_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    let mut looked_for = Vec::new();
    for pair in folder.iter().filter_map(|f| in_folder(f)).chain(system_names()) {
        looked_for.push(pair.nvrtc.display().to_string());
        if let Some(nvrtc) = pair.open() {
            return nvrtc;
        }
    }
    if let Some(folder) = folder {
        looked_for.insert(0, format!("{DIR_VARIABLE}={}", folder.display()));
    }
    Err(DeviceError::NoNvrtc { looked_for: looked_for.join(", ") })
}

/// The compiler and its builtins; loaded in that order the builtins are found at compile time.
struct Pair {
    builtins: Option<PathBuf>,
    nvrtc: PathBuf,
}

impl Pair {
    /// `None` where the library is not there.
    fn open(&self) -> Option<Result<Nvrtc>> {
        if let Some(builtins) = &self.builtins {
            // SAFETY: NVIDIA's library, whose initialiser asks nothing of the caller.
            let loaded = unsafe { Library::new(builtins) };
            std::mem::forget(loaded);
        }
        // SAFETY: as above.
        let library = unsafe { Library::new(&self.nvrtc) }.ok()?;
        Some(Nvrtc::bind(library))
    }
}

fn in_folder(folder: &Path) -> Option<Pair> {
    let mut names: Vec<String> =
        folder.read_dir().ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let find = |stem: &str| {
        let with_version = format!("{stem}.so");
        names.iter().rfind(|name| name.starts_with(&with_version)).map(|name| folder.join(name))
    };
    Some(Pair { builtins: find("libnvrtc-builtins"), nvrtc: find("libnvrtc")? })
}

fn system_names() -> impl Iterator<Item = Pair> {
    let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
    let loader = names.map(|name| Pair { builtins: None, nvrtc: name.into() });
    let toolkit = ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/opt/cuda/lib64"];
    loader.into_iter().chain(toolkit.into_iter().filter_map(|folder| in_folder(Path::new(folder))))
}

macro_rules! symbol {
    ($library:expr, $name:literal) => {
        // SAFETY: the field's type is the function's type in NVIDIA's header.
        *unsafe { $library.get($name) }.map_err(|e| missing(&e))?
    };
}

impl Nvrtc {
    fn bind(library: Library) -> Result<Self> {
        type GetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code;
        let get_version: GetVersion = symbol!(library, "nvrtcVersion");
        let mut version = Version { major: 0, minor: 0 };
        // SAFETY: two integers to write to.
        let code = unsafe { get_version(&mut version.major, &mut version.minor) };
        let nvrtc = Self {
            version,
            create: symbol!(library, "nvrtcCreateProgram"),
            compile: symbol!(library, "nvrtcCompileProgram"),
            destroy: symbol!(library, "nvrtcDestroyProgram"),
            log_size: symbol!(library, "nvrtcGetProgramLogSize"),
            log: symbol!(library, "nvrtcGetProgramLog"),
            cubin_size: symbol!(library, "nvrtcGetCUBINSize"),
            cubin: symbol!(library, "nvrtcGetCUBIN"),
            ptx_size: symbol!(library, "nvrtcGetPTXSize"),
            ptx: symbol!(library, "nvrtcGetPTX"),
            count: symbol!(library, "nvrtcGetNumSupportedArchs"),
            list: symbol!(library, "nvrtcGetSupportedArchs"),
            error: symbol!(library, "nvrtcGetErrorString"),
        };
        // The functions are used until the process ends.
        std::mem::forget(library);
        nvrtc.check("nvrtcVersion", code)?;
        Ok(nvrtc)
    }

    fn architectures(&self) -> Result<Vec<u32>> {
        let mut count = 0;
        // SAFETY: an integer to write to.
        self.check("nvrtcGetNumSupportedArchs", unsafe { (self.count)(&mut count) })?;
        let mut list = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: room for `count` integers.
        self.check("nvrtcGetSupportedArchs", unsafe { (self.list)(list.as_mut_ptr()) })?;
        let mut list: Vec<u32> = list.into_iter().filter_map(|arch| arch.try_into().ok()).collect();
        list.sort_unstable();
        Ok(list)
    }

    fn compile(&self, text: &str, name: &str, flags: &[String], ptx: bool) -> Result<Vec<u8>> {
        let text = c_string("the text", text)?;
        let label = c_string("the name", &label(name))?;
        let flags = flags.iter().map(|flag| c_string("a flag", flag)).collect::<Result<Vec<_>>>()?;
        let flags: Vec<*const c_char> = flags.iter().map(|flag| flag.as_ptr()).collect();
        let mut program = OwnedProgram { nvrtc: self, handle: ptr::null_mut() };
        // SAFETY: both strings end in NUL and outlive the program; there are no headers.
        let code =
            unsafe { (self.create)(&mut program.handle, text.as_ptr(), label.as_ptr(), 0, ptr::null(), ptr::null()) };
        self.check("nvrtcCreateProgram", code)?;
        // SAFETY: a live program and `flags.len()` strings.
        let code = unsafe { (self.compile)(program.handle, flags.len() as c_int, flags.as_ptr()) };
        const COMPILATION: Code = 6;
        if code == COMPILATION {
            let log = program.fetch("nvrtcGetProgramLog", self.log_size, self.log)?;
            let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).into();
            return Err(DeviceError::Compile { name: name.into(), compiler: format!("NVRTC {}", self.version), log });
        }
        self.check("nvrtcCompileProgram", code)?;
        if ptx {
            return program.fetch("nvrtcGetPTX", self.ptx_size, self.ptx);
        }
        program.fetch("nvrtcGetCUBIN", self.cubin_size, self.cubin)
    }

    fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC answers any code with a static string.
        let reason = unsafe { CStr::from_ptr((self.error)(code)) };
        Err(DeviceError::Nvrtc { call, reason: reason.to_string_lossy().into() })
    }
}

struct OwnedProgram<'a> {
    nvrtc: &'a Nvrtc,
    handle: Program,
}

impl OwnedProgram<'_> {
    fn fetch(
        &self,
        call: &'static str,
        size: unsafe extern "C" fn(Program, *mut usize) -> Code,
        get: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: a live program and an integer to write to.
        let code = unsafe { size(self.handle, &mut bytes) };
        self.nvrtc.check(call, code)?;
        let mut out = vec![0u8; bytes];
        // SAFETY: room for the size just given.
        let code = unsafe { get(self.handle, out.as_mut_ptr().cast()) };
        self.nvrtc.check(call, code)?;
        Ok(out)
    }
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: a live program, used no more. The answer says nothing that could be acted on.
            unsafe { (self.nvrtc.destroy)(&mut self.handle) };
        }
    }
}

fn c_string(what: &'static str, text: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|_| DeviceError::Nvrtc { call: "nvrtcCreateProgram", reason: format!("{what} holds a NUL") })
}

fn missing(error: &libloading::Error) -> DeviceError {
    DeviceError::Nvrtc { call: "loading", reason: error.to_string() }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_architecture_is_not_above_the_card() {
        let supported = [75, 80, 86, 89, 90, 100, 120];
        assert_eq!(best_architecture(90, &supported).as_deref(), Some("sm_90"));
        assert_eq!(best_architecture(103, &supported).as_deref(), Some("sm_100"));
        assert_eq!(best_architecture(130, &supported).as_deref(), Some("compute_120"));
        assert_eq!(best_architecture(70, &supported), None);
    }
}
