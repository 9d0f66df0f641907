//! Properties of every generated text: of all sets of `specs/`, of the fixtures that run, and of a user's sets.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use unio::device::{CompileOptions, Real, nvrtc};
use unio::interface::{Artefacts, Kernel};
use unio_codegen::build::{Generated, generate, set_dirs};
use unio_codegen::plan::Table;
use unio_codegen::{Compiled, SetFiles, common, compile};
use unio_tests::{compile_run, compile_scheduled, fixture};

/// Environment variable: CUDA's compiler must be there, and is not skipped.
const REQUIRE_VARIABLE: &str = "UNIO_REQUIRE_NVRTC";
/// Ampere, Ada, Hopper, Blackwell.
const ARCHITECTURES: [u32; 4] = [80, 89, 90, 100];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every set that is a folder.
fn folders() -> Vec<PathBuf> {
    let mut folders = set_dirs(&root()).unwrap();
    folders.extend(["specs", "words"].map(|set| fixture("outside").join(set)));
    folders
}

/// Names of the fixtures that run.
fn fixtures() -> Vec<String> {
    let list = fs::read_dir(fixture("run")).unwrap();
    let stem = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut names: Vec<String> = list.map(|entry| stem(entry.unwrap().path())).collect();
    names.retain(|name| name != "common");
    names.sort();
    names
}

/// Everything, by a name for messages.
fn everything() -> BTreeMap<String, Compiled> {
    let sets = folders().into_iter().map(|dir| {
        let set = Generated::of_dir(&dir).unwrap_or_else(|e| panic!("{e}"));
        (dir.file_name().unwrap().to_string_lossy().into_owned(), set.compiled)
    });
    let fixtures = fixtures().into_iter().map(|name| (format!("run/{name}"), compile_run(&name, &[])));
    let scheduled = ["cfc", "pool", "grn", "mamba2", "head"].map(|name| {
        let schedule = "grid = \"single\", gradients = \"deferred\"";
        (format!("run/{name} in one block, deferred"), compile_scheduled(name, &[], schedule))
    });
    sets.chain(fixtures).chain(scheduled).collect()
}

/// All that a set gives, by path.
fn outputs(compiled: &Compiled) -> BTreeMap<String, String> {
    let mut outputs = compiled.mirror.clone();
    outputs.insert("layout.lock".into(), compiled.lock.clone());
    outputs.insert("artefacts.json".into(), serde_json::to_string(&compiled.artefacts).unwrap());
    outputs
}

fn for_every_output(check: impl Fn(&str, &str)) {
    for (name, compiled) in everything() {
        for (path, text) in outputs(&compiled) {
            check(&format!("{name}: {path}"), &text);
        }
    }
}

#[test]
fn nothing_is_atomic() {
    for_every_output(|name, text| assert!(!text.to_lowercase().contains("atomic"), "{name}"));
}

#[test]
fn every_template_renders() {
    for_every_output(|name, text| {
        let broken = ["#error", "{{", "homeless"].into_iter().find(|mark| text.contains(mark));
        assert_eq!(broken, None, "{name}");
    });
}

#[test]
fn no_output_tells_where_or_when_it_was_made() {
    let root = root().to_string_lossy().into_owned();
    for_every_output(|name, text| {
        assert!(!text.contains(&root), "{name} holds the workspace's path");
        assert_eq!(absolute_path(text), None, "{name}");
        assert_eq!(date(text), None, "{name}");
    });
}

fn absolute_path(text: &str) -> Option<&str> {
    let words = text.split(|c: char| c.is_whitespace() || "\"'`()[]{},;".contains(c));
    words.filter(|word| word.starts_with('/') && !word.starts_with("//")).find(|word| word[1..].contains('/'))
}

/// `2031-12-24` or a time of day, `12:34:56`.
fn date(text: &str) -> Option<String> {
    let shape: Vec<char> = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let find = |pattern: &str| {
        let pattern: Vec<char> = pattern.chars().collect();
        let at = shape.windows(pattern.len()).position(|window| window == pattern)?;
        Some(text.chars().skip(at).take(pattern.len()).collect())
    };
    find("0000-00-00").or_else(|| find("00:00:00"))
}

#[test]
fn generation_repeats_byte_for_byte() {
    let (once, again) = (everything(), everything());
    for (name, compiled) in &once {
        assert_eq!(outputs(compiled), outputs(&again[name]), "{name}");
    }
}

#[test]
fn the_order_of_files_does_not_matter() {
    for dir in folders() {
        let files = SetFiles::from_dir(&dir, "specs/set").unwrap().files;
        let given: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
        let forwards = outputs(&compiled(given.iter().copied(), &dir));
        let backwards = outputs(&compiled(given.iter().rev().copied(), &dir));
        assert_eq!(forwards, backwards, "{}", dir.display());
    }
}

fn compiled<'a>(texts: impl Iterator<Item = (&'a str, &'a str)>, dir: &Path) -> Compiled {
    let set = SetFiles::from_texts(texts);
    let mut included = common::included(&set, Some(dir)).unwrap();
    included.reverse();
    compile(&set, &included, "").unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn where_a_set_lies_does_not_matter() {
    let elsewhere = tempfile::Builder::new().prefix("unio été ").tempdir().unwrap();
    for dir in set_dirs(&root()).unwrap() {
        let name = dir.file_name().unwrap();
        let copy = elsewhere.path().join("specs").join(name);
        fs::create_dir_all(&copy).unwrap();
        // Copied backwards, so that the folder lists its files in another order.
        let files = SetFiles::from_dir(&dir, "").unwrap().files;
        for (path, text) in files.iter().rev() {
            fs::write(copy.join(path.trim_start_matches('/')), text).unwrap();
        }
        let lock = format!("{}.layout.lock", name.to_string_lossy());
        let _ = fs::copy(dir.with_file_name(&lock), copy.with_file_name(&lock));
        let (here, there) = (Generated::of_dir(&dir).unwrap(), Generated::of_dir(&copy).unwrap());
        assert_eq!(outputs(&here.compiled), outputs(&there.compiled), "{}", dir.display());
    }
}

#[test]
fn what_is_checked_in_is_what_the_library_generates() {
    let difference = generate(&root(), true).unwrap_or_else(|e| panic!("{e}"));
    assert!(difference.is_empty(), "run `cargo run --bin unio -- gen`: {difference:?}");
}

#[test]
fn the_shipped_set_is_the_folder() {
    let folder = root().join("specs/common");
    let files = SetFiles::from_dir(&folder, "unio:common").unwrap().files;
    let shipped: BTreeMap<String, String> =
        common::COMMON.iter().map(|(p, t)| (p.to_string(), t.to_string())).collect();
    assert_eq!(shipped, files);
}

/// A text, by the architecture and the type that it is compiled for.
struct Job<'a> {
    name: String,
    text: &'a str,
    architecture: u32,
    real: Real,
}

#[test]
fn cuda_compiles_every_kernel_for_every_architecture() {
    let supported = match nvrtc::available().and_then(|_| nvrtc::supported_architectures()) {
        Ok(supported) => supported,
        Err(error) if std::env::var_os(REQUIRE_VARIABLE).is_some() => panic!("{REQUIRE_VARIABLE} is set: {error}"),
        Err(error) => return println!("skipped, no kernel was shown to CUDA's compiler: {error}"),
    };
    let everything = everything();
    let jobs = jobs(&everything);
    for architecture in ARCHITECTURES {
        assert!(supported.contains(&architecture), "this NVRTC knows no sm_{architecture}");
    }
    let failed = compile_in_parallel(&jobs);
    assert!(failed.is_empty(), "{} of {} fail:\n{}", failed.len(), jobs.len(), failed.join("\n"));
    println!("{} compilations by NVRTC {}", jobs.len(), nvrtc::available().unwrap());
}

/// f64 serves checks of gradients only, so that one architecture is enough.
fn jobs(everything: &BTreeMap<String, Compiled>) -> Vec<Job<'_>> {
    let targets = ARCHITECTURES.map(|a| (a, Real::F32)).into_iter().chain([(90, Real::F64)]);
    let targets: Vec<(u32, Real)> = targets.collect();
    let sources = everything
        .iter()
        .flat_map(|(set, compiled)| compiled.artefacts.sources.iter().map(move |source| (set, source)));
    let mut jobs = Vec::new();
    for (set, source) in sources {
        for (architecture, real) in &targets {
            jobs.push(Job {
                name: format!("{set}: {}", source.path),
                text: &source.text,
                architecture: *architecture,
                real: *real,
            });
        }
    }
    jobs
}

fn compile_in_parallel(jobs: &[Job<'_>]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mine = std::iter::from_fn(|| jobs.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.filter_map(failure).collect::<Vec<String>>()
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(2, usize::from);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

fn failure(job: &Job<'_>) -> Option<String> {
    let options = CompileOptions { real: job.real };
    let outcome = nvrtc::compile(job.text, "kernel.cu", &format!("sm_{}", job.architecture), &options);
    match outcome {
        Ok(code) if code.starts_with(b"\x7fELF") => None,
        Ok(_) => Some(format!("{} for sm_{}: no CUBIN", job.name, job.architecture)),
        Err(error) => Some(format!("{} for sm_{} in {}: {error}", job.name, job.architecture, job.real.type_name())),
    }
}

/// Numbers that may fall and must not rise unseen.
#[test]
fn barriers_and_shared_memory_of_the_perception_set() {
    let set = Generated::of_dir(&root().join("specs/perception")).unwrap();
    let artefacts = &set.compiled.artefacts;
    let rows = artefacts.kernels.iter().map(|kernel| {
        let (barriers, shared) = (barriers(artefacts, kernel), kernel.shared.total(4));
        format!("{:<32} {barriers:>3} {shared:>6}", kernel.symbol)
    });
    let table = format!("kernel                      barriers  bytes\n{}", rows.collect::<Vec<_>>().join("\n"));
    insta::assert_snapshot!(table);
}

/// Barriers in a kernel's own text; those inside the prelude's functions are not seen.
fn barriers(artefacts: &Artefacts, kernel: &Kernel) -> usize {
    let text = &artefacts.sources[kernel.source].text;
    let mut kernels = text.split("UNIO_KERNEL(").skip(1);
    let start = format!(" {}(", kernel.symbol);
    let body = kernels.find(|body| body.lines().next().is_some_and(|line| line.contains(&start)));
    body.unwrap().matches("__syncthreads()").count()
}

/// The plan and the device code lay out the same tables, and each has the numbers to itself.
#[test]
fn the_prelude_has_the_numbers_of_the_plan() {
    let prelude = fs::read_to_string(root().join("runtime/src/device/prelude/statistics.cuh")).unwrap();
    let numbers = [
        ("UNIO_BINS", Table::BINS),
        ("UNIO_WINDOW", Table::WINDOW),
        ("UNIO_ROWS", Table::ROWS),
        ("UNIO_REFINED_ROWS", Table::REFINED_ROWS),
        ("UNIO_ROW_ELEMENTS", Table::PER_BLOCK as usize),
    ];
    for (name, number) in numbers {
        assert!(prelude.lines().any(|line| line == format!("#define {name} {number}")), "{name} is not {number}");
    }
}

/// Documents rot where nobody looks: what they name in backticks and has a `/` must be there.
#[test]
fn paths_that_documents_name_exist() {
    let root = fixture("../..");
    let mut missing = Vec::new();
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "BENCHMARKS.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        for name in text.split('`').skip(1).step_by(2).filter(|name| is_path(name)) {
            let path = name.split("::").next().unwrap_or(name);
            if !root.join(path).exists() {
                missing.push(format!("{document}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

fn is_path(name: &str) -> bool {
    let folders = ["specs/", "codegen/", "macros/", "runtime/", "kernels-generated/", "tests/", ".ci/"];
    folders.iter().any(|f| name.starts_with(f)) && !name.contains(['<', '*', ' ', '…'])
}
