//! What the environment decides: the cache's folder and the compiler. Each case runs in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Output};

use unio::device::{Arg, CompileOptions, Device, DeviceError, LaunchConfig, Source, Target};

/// Runs one of the ignored tests below with these variables; `None` takes a variable away.
fn child(test: &str, variables: &[(&str, Option<&Path>)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.output().unwrap()
}

fn passes(output: &Output) -> String {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

#[test]
#[ignore = "a child of other tests"]
fn child_runs_a_kernel() {
    let device = Device::open(Target::Emulator).unwrap();
    let text = "UNIO_KERNEL(32) index(UNIO_OUT(int, out)) { out[threadIdx.x] = threadIdx.x; }";
    let source = Source { name: "index.cu", text };
    let kernel = device.load(&source, &CompileOptions::default()).unwrap().kernel("index").unwrap();
    let out = device.alloc(128).unwrap();
    // SAFETY: 32 threads write 32 integers.
    unsafe { kernel.launch(&LaunchConfig::new(1, 32), &[Arg::Buffer(&out, 0)]) }.unwrap();
    assert_eq!(out.read_vec::<i32>().unwrap(), (0..32).collect::<Vec<_>>());
}

#[test]
#[ignore = "a child of other tests"]
fn child_has_no_compiler() {
    let error = Device::open(Target::Emulator).unwrap_err();
    println!("message: {error}");
    assert!(matches!(error, DeviceError::NoCompiler { .. }));
}

fn entries(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

#[test]
fn the_cache_is_hit_and_damage_is_repaired() {
    let folder = tempfile_dir("hit");
    let run = |cxx: Option<&Path>| child("child_runs_a_kernel", &[("UNIO_CACHE_DIR", Some(&folder)), ("CXX", cxx)]);
    passes(&run(None));
    let [entry] = &entries(&folder)[..] else { panic!("one entry") };
    let whole = std::fs::read(entry).unwrap();

    // A compiler that only knows its version: a hit does not need more.
    let fake = folder.join("fake-c++");
    let real = |flag: &str| String::from_utf8(Command::new("c++").arg(flag).output().unwrap().stdout).unwrap();
    let script = format!(
        "#!/bin/sh\ncase $1 in --version) echo '{}';; -dumpmachine) echo '{}';; *) exit 7;; esac\n",
        real("--version").lines().next().unwrap(),
        real("-dumpmachine").trim()
    );
    std::fs::write(&fake, script).unwrap();
    executable(&fake);
    passes(&run(Some(&fake)));

    for damage in [&whole[..whole.len() / 2], &whole[..3], &[&whole[..whole.len() - 1], b"?"].concat()] {
        std::fs::write(entry, damage).unwrap();
        assert!(!run(Some(&fake)).status.success(), "a damaged entry is not used");
        passes(&run(None));
        assert!(std::fs::read(entry).unwrap() != damage, "the entry is whole again");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_cache_that_cannot_be_written_does_no_harm() {
    let file = tempfile_dir("readonly").join("a file");
    std::fs::write(&file, "in the way").unwrap();
    passes(&child("child_runs_a_kernel", &[("UNIO_CACHE_DIR", Some(&file.join("sub")))]));
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
}

#[test]
fn a_missing_compiler_is_one_clear_line() {
    let nowhere = Path::new("/nonexistent");
    let text = passes(&child("child_has_no_compiler", &[("PATH", Some(nowhere)), ("CXX", None)]));
    assert!(text.contains("tried c++, g++, clang++); install g++"), "{text}");
    let text = passes(&child("child_has_no_compiler", &[("CXX", Some(Path::new("/nonexistent/c++")))]));
    assert!(text.contains("tried CXX=/nonexistent/c++"), "{text}");
}

fn tempfile_dir(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("unio-test-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
