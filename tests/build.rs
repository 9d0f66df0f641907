//! A crate outside the workspace, as a user's would be: what `cargo build` does with its specs.
//!
//! Every test has a copy of `fixtures/outside` of its own, under a path with a space and an accent. The copies share one
//! target folder, so that the dependencies are compiled once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use unio_tests::fixture;

/// What the template's `main` prints.
const PRINTED: &str = "grad_norm = 5\nmoments = [0.0, 0.3, 0.4]\n";

/// A copy of the template.
struct Outside {
    name: &'static str,
    folder: PathBuf,
    _temporary: TempDir,
}

/// What a run of cargo left.
struct Outcome {
    ok: bool,
    printed: String,
    messages: String,
}

impl Outside {
    /// The name is the package's, so that copies do not share build folders.
    fn new(name: &'static str) -> Self {
        let temporary = tempfile::Builder::new().prefix("unio été ").tempdir().unwrap();
        let folder = temporary.path().join("my crate");
        copy(&fixture("outside"), &folder);
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
        let manifest = fs::read_to_string(folder.join("Cargo.toml.in")).unwrap();
        let manifest = manifest.replace("@NAME@", name);
        let manifest = manifest.replace("@WORKSPACE@", &workspace.to_string_lossy());
        fs::write(folder.join("Cargo.toml"), manifest).unwrap();
        Self { name, folder, _temporary: temporary }
    }

    /// A copy that was built once.
    fn built(name: &'static str) -> Self {
        let outside = Self::new(name);
        let outcome = outside.cargo(&["build"]);
        assert!(outcome.ok, "{}", outcome.messages);
        outside
    }

    /// The template with one of its `variants` as `main`.
    fn variant(name: &'static str) -> Self {
        let outside = Self::new(name);
        let variant = outside.folder.join("variants").join(format!("{name}.rs"));
        fs::copy(variant, outside.folder.join("src/main.rs")).unwrap();
        outside
    }

    fn cargo(&self, arguments: &[&str]) -> Outcome {
        // One build at a time: cargo would wait for the others anyway, and say so.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .arg("--offline")
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", target())
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_TERM_COLOR", "never")
            .output()
            .unwrap();
        Outcome {
            ok: output.status.success(),
            printed: String::from_utf8_lossy(&output.stdout).into(),
            messages: String::from_utf8_lossy(&output.stderr).into(),
        }
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.folder.join(path)).unwrap()
    }

    fn edit(&self, path: &str, from: &str, to: &str) {
        let text = self.read(path);
        assert!(text.contains(from), "{path} has no `{from}`");
        fs::write(self.folder.join(path), text.replacen(from, to, 1)).unwrap();
    }

    /// The folder that the build script wrote last.
    fn out_dir(&self) -> PathBuf {
        let builds = fs::read_dir(target().join("debug/build")).unwrap();
        let ours = format!("{}-", self.name);
        let outs = builds.map(|entry| entry.unwrap()).filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.strip_prefix(&ours).is_some_and(|hash| !hash.contains('-'))
        });
        let outs = outs.map(|entry| entry.path().join("out/unio")).filter(|out| out.is_dir());
        outs.max_by_key(|out| fs::metadata(out.join("sets.json")).and_then(|m| m.modified()).ok()).unwrap()
    }

    /// Time of change of every file of the crate and of its outputs.
    fn times(&self) -> BTreeMap<PathBuf, SystemTime> {
        let mut files = Vec::new();
        list(&self.folder, &mut files);
        list(&self.out_dir(), &mut files);
        let time = |path: PathBuf| {
            let time = fs::metadata(&path).unwrap().modified().unwrap();
            (path, time)
        };
        files.into_iter().map(time).collect()
    }
}

/// The next run has other paths, and so other build folders: these would pile up.
impl Drop for Outside {
    fn drop(&mut self) {
        self.cargo(&["clean", "--package", self.name]);
    }
}

impl Outcome {
    /// Packages that were compiled.
    fn compiled(&self) -> Vec<&str> {
        let lines = self.messages.lines().filter_map(|l| l.trim_start().strip_prefix("Compiling "));
        lines.map(|l| l.split(' ').next().unwrap_or(l)).collect()
    }
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside été")
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, files);
        }
        files.push(path);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let copied = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &copied);
        } else {
            fs::copy(&path, &copied).unwrap();
        }
    }
}

#[test]
fn a_crate_of_its_own_builds_and_launches_kernels() {
    let outside = Outside::new("first");
    let outcome = outside.cargo(&["run"]);
    assert!(outcome.ok, "{}", outcome.messages);
    assert_eq!(outcome.printed, PRINTED);
    assert!(!outcome.messages.contains("warning"), "{}", outcome.messages);
}

#[test]
fn what_is_generated_does_not_tell_where() {
    let outside = Outside::built("nowhere");
    let mut files = Vec::new();
    list(&outside.folder.join("kernels-generated"), &mut files);
    list(&outside.out_dir(), &mut files);
    files.push(outside.folder.join("specs.layout.lock"));
    for path in files.iter().filter(|path| path.is_file()) {
        let text = fs::read_to_string(path).unwrap();
        let told = ["été", "my crate"].into_iter().find(|part| text.contains(part));
        assert_eq!(told, None, "{}", path.display());
    }
}

#[test]
fn a_second_build_compiles_nothing_and_touches_no_file() {
    let outside = Outside::built("second");
    let before = outside.times();
    let outcome = outside.cargo(&["build"]);
    assert!(outcome.ok, "{}", outcome.messages);
    assert_eq!(outcome.compiled(), [""; 0], "{}", outcome.messages);
    assert_eq!(outside.times(), before);
}

#[test]
fn an_edit_shows_after_one_build_of_one_crate() {
    let outside = Outside::built("edited");
    outside.edit("specs/training.toml", "signal = \"norm(g)\"", "signal = \"2 * norm(g)\"");
    let outcome = outside.cargo(&["build"]);
    assert!(outcome.ok, "{}", outcome.messages);
    assert_eq!(outcome.compiled(), ["edited"], "{}", outcome.messages);
    let outcome = outside.cargo(&["run"]);
    assert_eq!(outcome.compiled(), [""; 0], "{}", outcome.messages);
    assert!(outcome.printed.starts_with("grad_norm = 10\n"), "{}", outcome.printed);
    assert!(outside.read("kernels-generated/line/cuda/grad_norm.cu").contains("real(2) *"));
}

#[test]
fn an_edit_leaves_what_it_does_not_change() {
    let outside = Outside::built("untouched");
    let before = outside.times();
    outside.edit("specs/training.toml", "signal = \"norm(g)\"", "signal = \"2 * norm(g)\"");
    assert!(outside.cargo(&["build"]).ok);
    let after = outside.times();
    for path in ["cuda/adamw.cu", "cuda/fit.cu", "cuda/reduce_axis0.cu", "WIRING.md"] {
        let path = outside.folder.join("kernels-generated/line").join(path);
        assert_eq!(before[&path], after[&path], "{}", path.display());
    }
}

#[test]
fn a_spec_replaced_by_an_older_file_is_noticed() {
    let outside = Outside::built("older");
    let other = outside.folder.join("other.toml");
    let text = outside.read("specs/training.toml").replace("\"norm(g)\"", "\"3 * norm(g)\"");
    fs::write(&other, text).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::options().write(true).open(&other).unwrap().set_modified(long_ago).unwrap();
    fs::rename(&other, outside.folder.join("specs/training.toml")).unwrap();
    let outcome = outside.cargo(&["run"]);
    assert!(outcome.printed.starts_with("grad_norm = 15\n"), "{}{}", outcome.printed, outcome.messages);
}

#[test]
fn a_broken_spec_is_a_compile_error_with_place_code_and_cure() {
    let outside = Outside::built("broken");
    outside.edit("specs/training.toml", "square(g)", "squared(g)");
    let outcome = outside.cargo(&["build"]);
    assert!(!outcome.ok);
    let parts = ["error[U0302]", "--> specs/training.toml:21:30", "v_new  = 0.999", " ^^^^^^^ ", "= help: "];
    for part in parts {
        assert!(outcome.messages.contains(part), "no `{part}` in:\n{}", outcome.messages);
    }
    outside.edit("specs/training.toml", "squared(g)", "square(g)");
    let outcome = outside.cargo(&["run"]);
    assert_eq!(outcome.printed, PRINTED, "{}", outcome.messages);
}

#[test]
fn an_error_in_an_included_folder_is_gone_once_it_is_mended_there() {
    let outside = Outside::new("included");
    let shared = outside.folder.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("unio.toml"), "version = 1\nname = \"shared\"\n").unwrap();
    fs::write(shared.join("const.toml"), "[const]\nRATE = \"high\"\n").unwrap();
    outside.edit("specs/unio.toml", "[\"unio:common\"]", "[\"unio:common\", \"../shared\"]");
    let outcome = outside.cargo(&["build"]);
    assert!(!outcome.ok && outcome.messages.contains("const.toml:2:"), "{}", outcome.messages);
    fs::write(shared.join("const.toml"), "[const]\nRATE = 0.5\n").unwrap();
    let outcome = outside.cargo(&["run"]);
    assert_eq!(outcome.printed, PRINTED, "{}", outcome.messages);
}

#[test]
fn words_of_rust_and_cuda_give_legal_names() {
    let outside = Outside::variant("words");
    outside.edit("Cargo.toml", "specs = [\"specs\"]", "specs = [\"words\"]");
    let outcome = outside.cargo(&["run"]);
    assert!(outcome.ok, "{}", outcome.messages);
    assert!(!outcome.messages.contains("warning"), "{}", outcome.messages);
    assert_eq!(outcome.printed, "7 slots, 10 resets\n");
}

/// A producer that walks over pairs, and finds few or many of them.
const PAIRS: &str = r#"
[external.pairs]
doc   = "Any number of pairs."
shape = "[*, 2]"

[producer.spread]
doc        = "How far the two of a pair lie apart."
read       = { p = "pairs" }
signal     = "p99(abs(p[0] - p[1]))"
smooth     = "pearl_ad"
reset      = "fold"
monitoring = true

[producer.grad_norm]"#;

#[test]
fn a_launcher_asks_for_whole_rows_and_whole_tables() {
    let outside = Outside::variant("tables");
    outside.edit("specs/training.toml", "\n[producer.grad_norm]", PAIRS);
    let outcome = outside.cargo(&["run"]);
    assert!(outcome.ok, "{}", outcome.messages);
    let lines: Vec<&str> = outcome.printed.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[0], "launched");
    assert!(lines[1].contains("`p`") && lines[1].contains('8'), "{lines:?}");
    assert!(lines[2].contains("`rows_`"), "{lines:?}");
}

#[test]
fn an_optimizer_takes_no_gradient_that_is_not_reduced() {
    let outcome = Outside::variant("unreduced").cargo(&["build"]);
    assert!(!outcome.ok);
    let message = "expected `&Reduced<f32>`, found `&Gradient";
    assert!(outcome.messages.contains(message), "{}", outcome.messages);
    assert_eq!(outcome.messages.matches("\nerror[").count(), 1, "{}", outcome.messages);
}

/// A second stage, and the first one's gradients deferred.
const DEFERRED: &str = r#"fit = { block = "fit", input = { x = "x", y = "shift.z" }, schedule = { gradients = "deferred" } }
shift = { block = "shift", input = { y = "y" } }

[block.shift]
doc    = "A point's height above the ground."
input  = { y = "[]" }
param  = { ground = "[]" }
output = { z = "[]" }
math   = "z = y - ground""#;

#[test]
fn a_gradient_is_complete_only_after_all_kernels_that_give_it() {
    let outside = Outside::variant("deferred");
    let fit = r#"fit = { block = "fit", input = { x = "x", y = "y" } }"#;
    outside.edit("specs/model.toml", fit, DEFERRED);
    let outcome = outside.cargo(&["run"]);
    assert!(outcome.ok, "{}", outcome.messages);
    assert_eq!(outcome.printed, "gradients = [2.0, 1.0, 2.0, 3.0]\n");
    let reduce = "    let sum = ReduceAxis0::load";
    outside.edit("src/main.rs", reduce, "    let _done = ReduceAxis0::load");
    outside.edit("src/main.rs", "sum, n: 1", "sum: todo!(), n: 1");
    let outcome = outside.cargo(&["build"]);
    assert!(!outcome.ok);
    let message = "expected `&Reduced<f32>`, found `&After<f32, FitGradients>`";
    assert!(outcome.messages.contains(message), "{}", outcome.messages);
}

#[test]
fn a_mirror_that_cannot_be_written_is_only_warned_of() {
    let outside = Outside::new("readonly");
    // A file where the folder should be: permissions alone would not stop a privileged user.
    fs::write(outside.folder.join("kernels-generated"), "").unwrap();
    let outcome = outside.cargo(&["run"]);
    assert_eq!(outcome.printed, PRINTED, "{}", outcome.messages);
    assert!(outcome.messages.contains("kernels-generated is not refreshed"), "{}", outcome.messages);
    let outcome = outside.cargo(&["build"]);
    assert_eq!(outcome.compiled(), [""; 0], "{}", outcome.messages);
}

#[test]
fn a_read_only_mirror_builds() {
    let outside = Outside::built("sealed");
    let mirror = outside.folder.join("kernels-generated");
    set_read_only(&mirror, true);
    outside.edit("specs/training.toml", "signal = \"norm(g)\"", "signal = \"2 * norm(g)\"");
    let outcome = outside.cargo(&["run"]);
    set_read_only(&mirror, false);
    assert!(outcome.printed.starts_with("grad_norm = 10\n"), "{}", outcome.messages);
}

fn set_read_only(folder: &Path, read_only: bool) {
    let mut paths = vec![folder.to_owned()];
    list(folder, &mut paths);
    for path in paths {
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        #[allow(clippy::permissions_set_readonly_false, reason = "the folder is removed next")]
        permissions.set_readonly(read_only);
        fs::set_permissions(&path, permissions).unwrap();
    }
}
