//! Generating a workspace's sets: for a user's `build.rs`, and for the command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use serde::Deserialize;

use crate::diagnostics::{Code, Diagnostics};
use crate::spec::SetFiles;
use crate::write::{self, Difference};
use crate::{Compiled, common, compile, emit};

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
    let outcome = Config::of_package(&root).and_then(|config| build_sets(&root, &config, &out));
    let error = outcome.err().map(|e| e.to_string()).unwrap_or_default();
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
        Ok(config.unwrap_or(Config {
            specs: default_specs(),
            mirror: None,
        }))
    }
}

fn build_sets(root: &Path, config: &Config, out: &Path) -> Result<(), Diagnostics> {
    let mut outputs = BTreeMap::new();
    let mut names = Vec::new();
    for specs in &config.specs {
        let dir = root.join(specs);
        println!("cargo::rerun-if-changed={}", dir.display());
        let set = Generated::of_dir(&dir)?;
        set.watch_includes();
        set.write_lock();
        if let Some(mirror) = &config.mirror {
            set.mirror(&root.join(mirror));
        }
        let json = serde_json::to_string(&set.compiled.artefacts).unwrap_or_default();
        names.push(set.compiled.artefacts.set.clone());
        outputs.insert(format!("{}.json", set.compiled.artefacts.set), json);
    }
    outputs.insert("sets.json".into(), serde_json::to_string(&names).unwrap_or_default());
    for (name, text) in outputs {
        let written = write::write_if_changed(&out.join(&name), &text);
        written.map_err(|e| Diagnostics::global(Code::Unwritable, format!("{name}: {e}")))?;
    }
    Ok(())
}

/// A set compiled from its folder.
#[derive(Debug)]
pub struct Generated {
    /// The folder.
    pub dir: PathBuf,
    /// What it gives.
    pub compiled: Compiled,
    includes: Vec<String>,
}

impl Generated {
    /// Compiles the set in a folder, with its includes and its layout lock.
    ///
    /// # Errors
    /// Whatever is wrong in the set.
    pub fn of_dir(dir: &Path) -> Result<Self, Diagnostics> {
        let set = SetFiles::from_dir(dir, &shown(dir))?;
        let included = common::included(&set, Some(dir))?;
        let lock = fs::read_to_string(lock_path(dir)).unwrap_or_default();
        let compiled = compile(&set, &included, &lock)?;
        Ok(Self {
            dir: dir.to_owned(),
            compiled,
            includes: set.includes(),
        })
    }

    fn watch_includes(&self) {
        for include in self.includes.iter().filter(|i| !i.starts_with("unio:")) {
            println!("cargo::rerun-if-changed={}", self.dir.join(include).display());
        }
    }

    /// Keeps the layout beside the folder, not in it: a watched folder must hold no output.
    fn write_lock(&self) {
        if let Err(error) = write::write_if_changed(&lock_path(&self.dir), &self.compiled.lock) {
            println!("cargo::warning=the layout lock could not be written: {error}");
        }
    }

    /// Mirrors what people review; a read-only checkout is no error.
    fn mirror(&self, root: &Path) {
        if let Err(error) = write::mirror(root, &self.compiled.mirror, &[self.compiled.artefacts.set.clone()]) {
            println!("cargo::warning=kernels-generated is not refreshed: {error}");
        }
    }
}

/// Where a set's layout is kept.
fn lock_path(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".layout.lock");
    dir.with_file_name(name)
}

/// A folder as messages and generated text show it: the last two parts, never an absolute path.
fn shown(dir: &Path) -> String {
    let names: Vec<String> = dir
        .components()
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .collect();
    match names.as_slice() {
        [.., parent, name] if parent != ".." => format!("{parent}/{name}"),
        [.., name] => name.clone(),
        [] => String::new(),
    }
}

/// Generates, or only compares, all sets of a workspace: every folder of `specs/` that has a `unio.toml`.
///
/// # Errors
/// Whatever is wrong in a set, all sets at once; what cannot be written.
pub fn generate(root: &Path, check_only: bool) -> Result<Difference, Diagnostics> {
    let unwritable = |e: io::Error| Diagnostics::global(Code::Unwritable, e.to_string());
    let mut files = BTreeMap::from([("spec.schema.json".to_owned(), emit::schema())]);
    let mut locks = BTreeMap::new();
    let mut owned = Vec::new();
    for dir in set_dirs(root)? {
        let set = Generated::of_dir(&dir)?;
        if set.compiled.artefacts.kernels.is_empty() {
            continue;
        }
        let lock = lock_path(&dir)
            .strip_prefix(root)
            .map(|p| p.to_string_lossy().into_owned())
            .unwrap_or_default();
        locks.insert(lock, set.compiled.lock);
        files.extend(set.compiled.mirror);
        owned.push(set.compiled.artefacts.set);
    }
    let mirror = root.join("kernels-generated");
    let run = if check_only { write::difference } else { write::mirror };
    let mut difference = run(&mirror, &files, &owned).map_err(unwritable)?;
    difference
        .stale
        .extend(run(root, &locks, &[]).map_err(unwritable)?.stale);
    Ok(difference)
}

/// Folders of a workspace's `specs/` that are sets.
///
/// # Errors
/// `U0101` where `specs/` cannot be listed.
pub fn set_dirs(root: &Path) -> Result<Vec<PathBuf>, Diagnostics> {
    let specs = root.join("specs");
    let list = fs::read_dir(&specs).map_err(|e| Diagnostics::global(Code::SetUnreadable, format!("specs: {e}")))?;
    let mut dirs: Vec<PathBuf> = list
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.join("unio.toml").is_file())
        .collect();
    dirs.sort();
    Ok(dirs)
}
