//! Generating a workspace's sets: for a user's `build.rs`, and for the command.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::{env, fs, io};

use serde::Deserialize;

use crate::diagnostics::{Code, Diagnostics};
use crate::spec::SetFiles;
use crate::write::{self, Difference};
use crate::{Compiled, common, compile, emit, explain};

/// Folder in `OUT_DIR` that `specs!()` reads.
const OUT_FOLDER: &str = "unio";

/// Generates the sets of the crate whose build script calls it, for `unio::specs!()` to expand.
///
/// `[package.metadata.unio]` of its `Cargo.toml` may name `specs` (folders; default `["specs"]`) and `mirror`, a folder
/// to keep reviewable copies in. Never fails by itself: what is wrong in a spec becomes an error of `specs!()`.
pub fn build() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(OUT_FOLDER);
    println!("cargo::rerun-if-changed=Cargo.toml");
    let outcome = Config::of_package(&root).map_err(|e| e.to_string());
    let error = outcome.and_then(|config| build_sets(&root, &config, &out)).err();
    let error = error.unwrap_or_default();
    if let Err(error) = write::write_if_changed(&out.join("error.txt"), &error) {
        println!("cargo::warning=Unio could not write {}: {error}", out.display());
    }
}

/// What a crate says about its sets.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default = "default_specs")]
    specs: Vec<String>,
    mirror: Option<String>,
}

fn default_specs() -> Vec<String> {
    vec!["specs".to_owned()]
}

#[derive(Deserialize)]
struct CargoToml {
    package: Option<Package>,
}

#[derive(Deserialize)]
struct Package {
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    unio: Option<Config>,
}

impl Config {
    fn of_package(root: &Path) -> Result<Self, Diagnostics> {
        let unreadable = |e: String| Diagnostics::global(Code::SetUnreadable, format!("Cargo.toml: {e}"));
        let text = fs::read_to_string(root.join("Cargo.toml")).map_err(|e| unreadable(e.to_string()))?;
        let cargo: CargoToml = toml::from_str(&text).map_err(|e| unreadable(e.message().to_owned()))?;
        let config = cargo.package.and_then(|p| p.metadata).and_then(|m| m.unio);
        Ok(config.unwrap_or(Config { specs: default_specs(), mirror: None }))
    }
}

/// Generates all sets, or gives what is wrong in each of them.
fn build_sets(root: &Path, config: &Config, out: &Path) -> Result<(), String> {
    let mut outputs = BTreeMap::new();
    let (mut names, mut errors) = (Vec::new(), Vec::new());
    for specs in &config.specs {
        let dir = root.join(specs);
        watch(&dir);
        match Generated::shown_as(&dir, &shown(Path::new(specs))) {
            Ok(set) => {
                set.keep(root, config.mirror.as_deref());
                let json = serde_json::to_string(&set.compiled.artefacts).unwrap_or_default();
                names.push(set.compiled.artefacts.set.clone());
                outputs.insert(format!("{}.json", set.compiled.artefacts.set), json);
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    if !errors.is_empty() {
        return Err(errors.join("\n\n"));
    }
    outputs.insert("sets.json".into(), serde_json::to_string(&names).unwrap_or_default());
    outputs.iter().try_for_each(|(name, text)| {
        let written = write::write_if_changed(&out.join(name), text);
        written.map_err(|e| Diagnostics::global(Code::Unwritable, format!("{name}: {e}")).to_string())
    })
}

/// Watches a set's folder and those of its includes, also where the set is broken: the cure may come in any of them.
fn watch(dir: &Path) {
    let mut watched = BTreeSet::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(folder) = waiting.pop() {
        if !watched.insert(folder.clone()) {
            continue;
        }
        println!("cargo::rerun-if-changed={}", folder.display());
        let includes = SetFiles::from_dir(&folder, "").map(|set| set.includes());
        let relative = includes.into_iter().flatten().filter(|i| !i.starts_with(common::SHIPPED));
        waiting.extend(relative.map(|include| dir.join(include)));
    }
}

/// A set compiled from its folder.
#[derive(Debug)]
pub struct Generated {
    /// The folder.
    pub dir: PathBuf,
    /// What it gives.
    pub compiled: Compiled,
}

impl Generated {
    /// Compiles the set in a folder, with its includes and its layout lock.
    ///
    /// # Errors
    /// Whatever is wrong in the set.
    pub fn of_dir(dir: &Path) -> Result<Self, Diagnostics> {
        Self::shown_as(dir, &shown(dir))
    }

    fn shown_as(dir: &Path, name: &str) -> Result<Self, Diagnostics> {
        let (set, included, lock) = read(dir, name)?;
        Ok(Self { dir: dir.to_owned(), compiled: compile(&set, &included, &lock)? })
    }

    /// Refreshes what is kept among the sources. A read-only checkout builds: it is warned of, no more.
    fn keep(&self, root: &Path, mirror: Option<&str>) {
        // Beside the folder, not in it: a watched folder must hold no output.
        if let Err(error) = write::write_if_changed(&lock_path(&self.dir), &self.compiled.lock) {
            println!("cargo::warning=the layout lock could not be written: {error}");
        }
        let Some(mirror) = mirror else { return };
        let owned = [self.compiled.artefacts.set.clone()];
        if let Err(error) = write::mirror(&root.join(mirror), &self.compiled.mirror, &owned) {
            println!("cargo::warning={mirror} is not refreshed: {error}");
        }
    }
}

/// [`explain`](crate::explain) for the set in a folder.
///
/// # Errors
/// As there.
pub fn explain_dir(dir: &Path, name: Option<&str>) -> Result<String, Diagnostics> {
    let (set, included, lock) = read(dir, &shown(dir))?;
    explain(&set, &included, &lock, name)
}

/// A set's files, those of its includes, and its layout lock.
fn read(dir: &Path, name: &str) -> Result<(SetFiles, Vec<SetFiles>, String), Diagnostics> {
    let set = SetFiles::from_dir(dir, name)?;
    let included = common::included(&set, Some(dir))?;
    let lock = fs::read_to_string(lock_path(dir)).unwrap_or_default();
    Ok((set, included, lock))
}

/// Where a set's layout is kept.
fn lock_path(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".layout.lock");
    dir.with_file_name(name)
}

/// A folder as messages and generated text show it: a relative path without its `..`; of an absolute one the last two
/// parts, since where a checkout lies is nobody's business.
fn shown(dir: &Path) -> String {
    let names: Vec<String> = dir
        .components()
        .filter(|c| matches!(c, Component::Normal(_)))
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .collect();
    let first = if dir.is_absolute() { names.len().saturating_sub(2) } else { 0 };
    names[first..].join("/")
}

/// Generates, or only compares, all sets of a workspace: every folder of `specs/` that has a `unio.toml`.
///
/// # Errors
/// Whatever is wrong in the first set that has a fault; what cannot be written.
pub fn generate(root: &Path, check_only: bool) -> Result<Difference, Diagnostics> {
    let unwritable = |e: io::Error| Diagnostics::global(Code::Unwritable, e.to_string());
    let mut files = BTreeMap::from([("spec.schema.json".to_owned(), emit::schema())]);
    let mut locks = BTreeMap::new();
    let mirror = root.join("kernels-generated");
    // Every folder there is Unio's, so that a set that is no more leaves none behind.
    let owned = write::folders(&mirror).map_err(unwritable)?;
    for dir in set_dirs(root)? {
        let set = Generated::of_dir(&dir)?;
        if set.compiled.artefacts.kernels.is_empty() {
            continue;
        }
        let lock = lock_path(&dir).strip_prefix(root).map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
        locks.insert(lock, set.compiled.lock);
        files.extend(set.compiled.mirror);
    }
    let run = if check_only { write::difference } else { write::mirror };
    let mut difference = run(&mirror, &files, &owned).map_err(unwritable)?;
    difference.stale.extend(run(root, &locks, &[]).map_err(unwritable)?.stale);
    Ok(difference)
}

/// Folders of a workspace's `specs/` that are sets.
///
/// # Errors
/// `U0101` where `specs/` cannot be listed.
pub fn set_dirs(root: &Path) -> Result<Vec<PathBuf>, Diagnostics> {
    let specs = root.join("specs");
    let list = fs::read_dir(&specs).map_err(|e| Diagnostics::global(Code::SetUnreadable, format!("specs: {e}")))?;
    let mut dirs: Vec<PathBuf> =
        list.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.join("unio.toml").is_file()).collect();
    dirs.sort();
    Ok(dirs)
}
