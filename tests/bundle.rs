//! `cargo bundle`: a folder that runs on a GPU machine without Rust. It holds the trainer, the tests that launch kernels,
//! what they read, the peers in Python, and a `run.sh`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Packages whose programs are taken.
const PACKAGES: &[&str] = &["unio", "unio-tests", "unio-trainer"];
/// Test programs that launch kernels.
const TESTS: &[&str] = &["device", "device_cache", "device_math", "session", "kernels"];
/// What the programs read.
const READ: &[&str] = &["specs", "tests/fixtures", "tests/peers"];
/// Most bytes of a bundle.
const LIMIT: u64 = 60 << 20;

fn main() -> Result<()> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").context("run it as `cargo bundle`")?;
    let root = Path::new(&manifest).parent().context("the package lies in a workspace")?;
    let bundle = root.join("bundle");
    if bundle.exists() {
        fs::remove_dir_all(&bundle).context("the old bundle cannot be removed")?;
    }
    fs::create_dir_all(bundle.join("bin"))?;
    for (name, program) in programs(root)? {
        install(&program, &bundle.join("bin").join(name))?;
    }
    for folder in READ {
        copy(&root.join(folder), &bundle.join(folder))?;
    }
    if let Some(commit) = commit(root) {
        fs::write(bundle.join("commit.txt"), commit)?;
    }
    let script = bundle.join("run.sh");
    fs::write(&script, include_str!("bundle.sh"))?;
    make_executable(&script)?;
    let bytes = size(&bundle)?;
    ensure!(bytes <= LIMIT, "the bundle has {bytes} bytes, more than {LIMIT}");
    println!("bundle/: {:.1} MiB; copy it and run run.sh", bytes as f64 / f64::from(1 << 20));
    Ok(())
}

/// What this is made from, where git says; a changed working tree is told apart.
fn commit(root: &Path) -> Option<String> {
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root).output().ok()?;
    git.status.success().then(|| String::from_utf8_lossy(&git.stdout).into_owned())
}

/// Builds in release, all at once so that nothing is built twice; gives each program with its name in the bundle.
fn programs(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let packages = PACKAGES.iter().flat_map(|package| ["--package", *package]);
    let tests = TESTS.iter().flat_map(|test| ["--test", *test]);
    let built = build(root, packages.chain(tests).chain(["--bin", "trainer"]))?;
    let find = |target: &str| {
        let found = built.iter().find(|(name, _)| name == target);
        found.map(|(_, path)| path.clone()).with_context(|| format!("cargo built no `{target}`"))
    };
    let mut programs = vec![("trainer".to_owned(), find("trainer")?)];
    for test in TESTS {
        programs.push((format!("test-{test}"), find(test)?));
    }
    Ok(programs)
}

/// Runs `cargo build`; gives the programs that it made, by target.
fn build<'a>(root: &Path, targets: impl Iterator<Item = &'a str>) -> Result<Vec<(String, PathBuf)>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--release", "--locked", "--message-format=json-render-diagnostics"])
        .args(targets)
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cargo cannot be started")?;
    ensure!(output.status.success(), "cargo could not build the programs");
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(program).collect())
}

/// A message of cargo's that tells of a program.
fn program(message: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let path = message.get("executable")?.as_str()?;
    let target = message.get("target")?.get("name")?.as_str()?;
    Some((target.to_owned(), path.into()))
}

/// Copies a program, without its symbols where there is `strip`.
fn install(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    match Command::new("strip").arg(to).status() {
        Ok(status) => ensure!(status.success(), "strip {} failed", to.display()),
        Err(error) => eprintln!("warning: {} keeps its symbols: strip: {error}", to.display()),
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn size(path: &Path) -> Result<u64> {
    if !path.is_dir() {
        return Ok(fs::metadata(path)?.len());
    }
    fs::read_dir(path)?.map(|entry| size(&entry?.path())).sum()
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<()> {
    Ok(())
}
