//! What tests share: fixtures as spec sets, and the device that tests run on.

pub mod fixtures;

use std::path::{Path, PathBuf};

use unio::device::{Device, DeviceError, EmulatorOptions, Target, ThreadOrder};
use unio_codegen::{Compiled, SetFiles};

/// Environment variable that chooses the device of tests that run kernels: `emulator` (default) or `cuda`.
pub const DEVICE_VARIABLE: &str = "UNIO_TEST_DEVICE";
/// Environment variable that names the folder of fixtures, for a test binary that runs away from its sources.
pub const FIXTURES_VARIABLE: &str = "UNIO_TEST_FIXTURES";

/// The device that tests run on.
///
/// # Errors
/// Where it cannot be opened: no compiler, or no card.
pub fn device() -> Result<Device, DeviceError> {
    match std::env::var(DEVICE_VARIABLE).as_deref() {
        Ok("cuda") => Device::open(Target::Cuda),
        _ => Device::open(Target::Emulator),
    }
}

/// The devices whose bits must agree: threads forwards and backwards on the emulator, the card twice.
///
/// # Errors
/// As [`device`].
pub fn twin_devices() -> Result<[Device; 2], DeviceError> {
    match std::env::var(DEVICE_VARIABLE).as_deref() {
        Ok("cuda") => Ok([Device::open(Target::Cuda)?, Device::open(Target::Cuda)?]),
        _ => {
            let reversed = EmulatorOptions { order: ThreadOrder::Reversed, ..EmulatorOptions::default() };
            Ok([Device::emulator(EmulatorOptions::default())?, Device::emulator(reversed)?])
        }
    }
}

/// A file below `tests/fixtures/`.
pub fn fixture(path: &str) -> PathBuf {
    let root = std::env::var_os(FIXTURES_VARIABLE).map(PathBuf::from);
    // Where tests run under cargo, it names the package's folder in the environment of the process.
    let root = root.or_else(|| std::env::var_os("CARGO_MANIFEST_DIR").map(|dir| Path::new(&dir).join("fixtures")));
    root.unwrap_or_else(|| PathBuf::from("fixtures")).join(path)
}

/// The text of a fixture.
///
/// # Panics
/// Where there is no such file.
pub fn fixture_text(path: &str) -> String {
    let path = fixture(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A manifest for sets that tests make.
pub const MANIFEST: &str = "version = 1\nname = \"t\"\ninclude = [\"unio:common\"]\n";

/// Compiles a fixture of `run/` with other sizes: `("H", 33)` replaces `H = 3` in the model's `size`.
///
/// # Panics
/// Where it does not compile; the message shows the diagnostics.
pub fn compile_run(name: &str, sizes: &[(&str, usize)]) -> Compiled {
    compile_edited(name, sizes, str::to_owned)
}

/// The same under a schedule for all stages: `grid = "single"`.
///
/// # Panics
/// As [`compile_run`].
pub fn compile_scheduled(name: &str, sizes: &[(&str, usize)], schedule: &str) -> Compiled {
    let key = format!("\nschedule  = {{ {schedule} }}\nobjective ");
    compile_edited(name, sizes, |text| text.replacen("\nobjective ", &key, 1))
}

/// The same with the model's text edited.
///
/// # Panics
/// As [`compile_run`].
pub fn compile_edited(name: &str, sizes: &[(&str, usize)], edit: impl FnOnce(&str) -> String) -> Compiled {
    let common = fixture_text("run/common.toml");
    let used = edit(&with_sizes(&fixture_text(&format!("run/{name}.toml")), sizes));
    let common = only_used(&common, &used);
    let texts = [("specs/t/unio.toml", MANIFEST), ("specs/t/common.toml", &common), ("specs/t/model.toml", &used)];
    unio_codegen::compile_texts(&texts).unwrap_or_else(|e| panic!("{e}"))
}

/// Compiles a set of `specs/`.
///
/// # Panics
/// Where it does not compile, or where `specs/` is not found beside the fixtures' parent folder.
pub fn compile_set(name: &str) -> Compiled {
    let dir = set_dir(name);
    let set = unio_codegen::build::Generated::of_dir(&dir).unwrap_or_else(|e| panic!("{e}"));
    set.compiled
}

/// The same with other sizes of its model, as [`compile_run`] takes them.
///
/// # Panics
/// As [`compile_set`].
pub fn compile_set_sized(name: &str, sizes: &[(&str, usize)]) -> Compiled {
    let set = SetFiles::from_dir(&set_dir(name), name).unwrap_or_else(|e| panic!("{e}"));
    let edited: Vec<(&String, String)> = set.files.iter().map(|(path, text)| (path, with_sizes(text, sizes))).collect();
    let texts: Vec<(&str, &str)> = edited.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    unio_codegen::compile_texts(&texts).unwrap_or_else(|e| panic!("{e}"))
}

fn set_dir(name: &str) -> PathBuf {
    let dir = fixture("../../specs").join(name);
    if dir.is_dir() { dir } else { PathBuf::from("specs").join(name) }
}

/// Entries of the shared fixture that a model names; a block that no stage uses would be an error.
fn only_used(common: &str, used: &str) -> String {
    let entries = common.split("\n\n").filter(|entry| match entry.trim_start().strip_prefix("[block.") {
        Some(rest) => rest.split(']').next().is_some_and(|name| used.contains(&format!("\"{name}\""))),
        None => true,
    });
    entries.collect::<Vec<_>>().join("\n\n")
}

fn with_sizes(text: &str, sizes: &[(&str, usize)]) -> String {
    let replace = |line: &str| {
        if !line.trim_start().starts_with("size") {
            return line.to_owned();
        }
        let parts = line.split_inclusive([',', '{', '}']).map(|part| {
            match sizes.iter().find(|(n, _)| part.trim().starts_with(&format!("{n} ="))) {
                Some((name, size)) => {
                    format!(" {name} = {size}{}", part.chars().last().filter(|c| ",}".contains(*c)).unwrap_or(' '))
                }
                None => part.to_owned(),
            }
        });
        parts.collect()
    };
    text.lines().map(replace).collect::<Vec<_>>().join("\n")
}
