//! Stage *write*: files that change only where their content does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// How a folder differs from what it should hold, by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Files that are missing or have another content.
    pub stale: Vec<String>,
    /// Files that should not be there.
    pub orphans: Vec<String>,
}

impl Difference {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.stale.is_empty() && self.orphans.is_empty()
    }
}

/// Compares a folder with what it should hold; only the sub-folders named in `owned` are searched for orphans.
///
/// # Errors
/// Where a folder cannot be listed.
pub fn difference(root: &Path, files: &BTreeMap<String, String>, owned: &[String]) -> io::Result<Difference> {
    let stale = |(path, text): (&String, &String)| (!is_current(&root.join(path), text)).then(|| path.clone());
    let mut orphans = Vec::new();
    for folder in owned {
        orphans.extend(listed(root, &root.join(folder))?.into_iter().filter(|path| !files.contains_key(path)));
    }
    Ok(Difference { stale: files.iter().filter_map(stale).collect(), orphans })
}

/// Makes a folder hold just `files`; leaves alone what is current.
///
/// # Errors
/// Where something cannot be written or removed.
pub fn mirror(root: &Path, files: &BTreeMap<String, String>, owned: &[String]) -> io::Result<Difference> {
    let difference = difference(root, files, owned)?;
    for path in &difference.stale {
        write_if_changed(&root.join(path), &files[path])?;
    }
    for path in &difference.orphans {
        fs::remove_file(root.join(path))?;
    }
    Ok(difference)
}

/// Writes a file whole, by rename, unless it holds the text already.
///
/// # Errors
/// Where the folder cannot be made or the file not be written.
pub fn write_if_changed(path: &Path, text: &str) -> io::Result<()> {
    if is_current(path, text) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Builds for two target folders may write one mirror at a time.
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let part = PathBuf::from(part);
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

fn is_current(path: &Path, text: &str) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}

/// Names of the folders in a folder; none where it does not exist.
///
/// # Errors
/// Where it cannot be listed.
pub fn folders(root: &Path) -> io::Result<Vec<String>> {
    if !root.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Files below a folder, relative to the root, `/` as separator.
fn listed(root: &Path, folder: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    if !folder.is_dir() {
        return Ok(files);
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(listed(root, &path)?);
        } else if let Ok(relative) = path.strip_prefix(root) {
            let parts: Vec<String> = relative.iter().map(|p| p.to_string_lossy().into_owned()).collect();
            files.push(parts.join("/"));
        }
    }
    files.sort();
    Ok(files)
}
