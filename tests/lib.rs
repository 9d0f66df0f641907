//! What tests share: fixtures as spec sets, and the device that tests run on.

pub mod fixtures;

use std::path::{Path, PathBuf};

use unio::device::{Device, DeviceError, EmulatorOptions, Target, ThreadOrder};
use unio::interface::{Artefacts, Elem};
use unio::random::Stream;
use unio::{Session, SessionError};
use unio_codegen::{Compiled, SetFiles, common, compile};

/// Environment variable that chooses the device of tests that run kernels: `emulator` (default) or `cuda`.
pub const DEVICE_VARIABLE: &str = "UNIO_TEST_DEVICE";
/// Environment variable that names the folder of fixtures, for a test binary that runs away from its sources.
pub const FIXTURES_VARIABLE: &str = "UNIO_TEST_FIXTURES";

/// Environment variable that is set where a tool watches every access of a kernel.
pub const WATCHED_VARIABLE: &str = "UNIO_TEST_WATCHED";

/// How often a test repeats itself: fewer times where a tool watches, to which the same launch says the same again.
pub fn times(usual: usize, watched: usize) -> usize {
    if std::env::var_os(WATCHED_VARIABLE).is_some() { watched } else { usual }
}

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
    let set = unio_codegen::build::Generated::of_dir(&specs(name)).unwrap_or_else(|e| panic!("{e}"));
    set.compiled
}

/// Compiles a set of `specs/` with other sizes of its model, as [`compile_run`] does.
///
/// # Panics
/// As [`compile_set`].
pub fn compile_set_sized(name: &str, sizes: &[(&str, usize)]) -> Compiled {
    let dir = specs(name);
    let mut files = SetFiles::from_dir(&dir, &format!("specs/{name}")).unwrap_or_else(|e| panic!("{e}"));
    for text in files.files.values_mut().filter(|text| text.contains("\n[model.")) {
        *text = with_sizes(text, sizes);
    }
    let included = common::included(&files, Some(&dir)).unwrap_or_else(|e| panic!("{e}"));
    compile(&files, &included, "").unwrap_or_else(|e| panic!("{e}"))
}

/// A path below `specs/`, which a bundle has beside its programs.
pub fn specs(path: &str) -> PathBuf {
    let root = fixture("../../specs");
    let root = if root.is_dir() { root } else { PathBuf::from("specs") };
    root.join(path)
}

/// Something for every external buffer: `rows` rows where any number will do, labels of 0 and 1, days that passed, and
/// indices below `rows`. Another number of rows is other data.
///
/// # Errors
/// Where the device refuses.
pub fn fill_externals(session: &mut Session, artefacts: &Artefacts, rows: usize) -> Result<(), SessionError> {
    for buffer in artefacts.program.iter().flat_map(|p| &p.buffers).filter(|b| b.external) {
        let row: usize = buffer.shape.iter().filter(|n| **n > 0).product();
        let len = buffer.len.unwrap_or(rows * row);
        if buffer.elem == Elem::I32 {
            let values: Vec<i32> = (0..len).map(|n| (n % rows) as i32).collect();
            session.write_named(&buffer.name, &values)?;
            continue;
        }
        let stream = Stream::new(rows as u64, &buffer.name);
        let value = |n| match (stream.symmetric(n), buffer.name.as_str()) {
            (x, "gap") => 2.0 + x,
            (x, name) if name.ends_with("label") => f64::from(x > 0.0),
            (x, _) => x,
        };
        session.write_real(&buffer.name, &(0..len as u64).map(value).collect::<Vec<f64>>())?;
    }
    match artefacts.states.iter().any(|s| s.name == "rows") {
        true => session.set_state_named("rows", rows as f64),
        false => Ok(()),
    }
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
