//! How long generating and building take: `cargo run --release -p unio-tests --bin build-speed`.
//!
//! It edits one number of a spec of this workspace, builds, and puts it back. CUDA's compiler is looked for as the runtime does.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use unio::device::{CompileOptions, Real, nvrtc};
use unio::interface::Source;
use unio_codegen::build::{Generated, generate};

/// Producers of the made-up set.
const PRODUCERS: usize = 1000;
/// What the edit changes, and into what.
const EDIT: (&str, &str, &str) = ("specs/perception/training.toml", "CLIP_FACTOR = 2.0", "CLIP_FACTOR = 2.5");
/// Argument: only compile kernels, in a process that has a cache of its own.
const KERNELS: &str = "--kernels";
/// Variable of the runtime's cache.
const CACHE_VARIABLE: &str = "UNIO_CACHE_DIR";
/// Architecture of an H200.
const ARCHITECTURE: &str = "sm_90";
/// Threads that compile.
const WORKERS: usize = 2;

fn main() -> Result<()> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").context("run it with cargo")?;
    let root = Path::new(&manifest).parent().context("the package lies in a workspace")?;
    if env::args().any(|arg| arg == KERNELS) {
        return kernels(root);
    }
    println!("{} cores; targets in brackets", thread::available_parallelism().map_or(0, usize::from));
    thousand_producers()?;
    trainer(root)?;
    let cache = tempfile::tempdir()?;
    let myself = env::current_exe()?;
    let status = Command::new(myself).arg(KERNELS).env(CACHE_VARIABLE, cache.path()).status()?;
    ensure!(status.success(), "the kernels were not measured");
    Ok(())
}

fn show(what: &str, start: Instant, target: f64) -> f64 {
    let seconds = start.elapsed().as_secs_f64();
    let missed = if seconds > target { "  MISSED" } else { "" };
    println!("{what:<64} {seconds:>8.3} s  [< {target} s]{missed}");
    seconds
}

/// `unio gen` of a set of many producers, from nothing and with nothing to do.
fn thousand_producers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let set = folder.path().join("specs/many");
    fs::create_dir_all(&set)?;
    fs::write(set.join("unio.toml"), "version = 1\nname = \"many\"\ninclude = [\"unio:common\"]\n")?;
    fs::write(set.join("producers.toml"), producers(PRODUCERS))?;
    let start = Instant::now();
    generate(folder.path(), false)?;
    show(&format!("unio gen, a set of {PRODUCERS} producers"), start, 1.0);
    let start = Instant::now();
    generate(folder.path(), true)?;
    show("  the same again, to compare", start, 1.0);
    Ok(())
}

/// As many producers over as many buffers; every tenth takes a quantile, every other one reads what the one before gave.
fn producers(count: usize) -> String {
    let mut text = String::new();
    for n in 0..count {
        let signal = match n % 10 {
            0 => "p99(abs(x))".to_owned(),
            n if n % 2 == 1 => "mean(abs(x))".to_owned(),
            _ => format!("rms(x) + prev.s{}", n - 1),
        };
        // A string takes whatever is written to it.
        let _ = write!(
            text,
            "[external.b{n}]\ndoc = \"Data {n}.\"\nshape = \"[*]\"\n\n[producer.s{n}]\ndoc = \"Signal {n}.\"\n\
             read = {{ x = \"b{n}\" }}\nsignal = \"{signal}\"\nsmooth = \"pearl_ad\"\nreset = \"fold\"\nmonitoring = true\n\n"
        );
    }
    text
}

/// Builds of the trainer in debug: with nothing to do, and after an edit of a spec.
fn trainer(root: &Path) -> Result<()> {
    build(root)?;
    let start = Instant::now();
    build(root)?;
    show("a build of the trainer in debug with nothing to do", start, 0.5);
    let edited = Edited::new(root)?;
    let start = Instant::now();
    build(root)?;
    show("an edit of a spec to a rebuilt trainer in debug", start, 10.0);
    drop(edited);
    // So that what is generated is as it was, too.
    build(root)
}

fn build(root: &Path) -> Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo set for this program would make it build others anew.
    for (name, _) in env::vars_os().filter(|(name, _)| is_of_cargo(name)) {
        command.env_remove(name);
    }
    let status = command
        .args(["build", "--quiet", "--locked", "--package", "unio-trainer", "--bin", "trainer"])
        .current_dir(root)
        .stdout(Stdio::null())
        .status()
        .context("cargo cannot be started")?;
    ensure!(status.success(), "the trainer does not build");
    Ok(())
}

fn is_of_cargo(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO_BIN_NAME"
}

/// A spec with one number changed, which returns when this goes.
struct Edited {
    path: PathBuf,
    text: String,
}

impl Edited {
    fn new(root: &Path) -> Result<Self> {
        let (path, from, to) = (root.join(EDIT.0), EDIT.1, EDIT.2);
        let text = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", EDIT.0))?;
        ensure!(text.contains(from), "{} has no `{from}` to edit", EDIT.0);
        fs::write(&path, text.replacen(from, to, 1))?;
        Ok(Self { path, text })
    }
}

impl Drop for Edited {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.text) {
            eprintln!("error: {} was not put back: {error}", self.path.display());
        }
    }
}

/// All kernels of the perception set through CUDA's compiler, and from the cache.
fn kernels(root: &Path) -> Result<()> {
    let version = match nvrtc::available() {
        Ok(version) => version,
        Err(error) => {
            println!("kernels not compiled: {error}");
            return Ok(());
        }
    };
    let set = Generated::of_dir(&root.join("specs/perception"))?;
    let sources = &set.compiled.artefacts.sources;
    let what = format!("{} texts of perception for {ARCHITECTURE}", sources.len());
    let start = Instant::now();
    compile(sources)?;
    show(&format!("NVRTC {version}, {what}, {WORKERS} threads, cold"), start, 5.0);
    let start = Instant::now();
    compile(sources)?;
    show("  from the cache", start, 0.1);
    Ok(())
}

fn compile(sources: &[Source]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        let options = CompileOptions { real: Real::F32 };
        let mut mine = std::iter::from_fn(|| sources.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.try_for_each(|s| nvrtc::compile_cached(&s.text, &s.path, ARCHITECTURE, &options).map(drop))
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a compiling thread stopped"))??;
        }
        Ok(())
    })
}
