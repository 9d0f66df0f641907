//! Sets that ship inside this crate, and how an `include` is resolved.

use std::path::Path;

use crate::diagnostics::{Code, Diagnostics};
use crate::spec::SetFiles;

/// Prefix of the names of shipped sets.
const SHIPPED: &str = "unio:";

/// Files of `unio:common`. A test holds the list to the folder.
pub const COMMON: &[(&str, &str)] = &[
    (
        "unio:common/attention.toml",
        include_str!("../../specs/common/attention.toml"),
    ),
    ("unio:common/cfc.toml", include_str!("../../specs/common/cfc.toml")),
    ("unio:common/heads.toml", include_str!("../../specs/common/heads.toml")),
    (
        "unio:common/smoothing.toml",
        include_str!("../../specs/common/smoothing.toml"),
    ),
    ("unio:common/unio.toml", include_str!("../../specs/common/unio.toml")),
];

/// The sets that a set includes, and those that they include; relative paths are resolved against `dir`.
///
/// # Errors
/// `U0106` where a name is not shipped and no folder of that path can be read.
pub fn included(set: &SetFiles, dir: Option<&Path>) -> Result<Vec<SetFiles>, Diagnostics> {
    let mut found: Vec<(String, SetFiles)> = Vec::new();
    let mut waiting = set.includes();
    while let Some(name) = waiting.pop() {
        if found.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let set = find(&name, dir)?;
        waiting.extend(set.includes());
        found.push((name, set));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found.into_iter().map(|(_, set)| set).collect())
}

fn find(name: &str, dir: Option<&Path>) -> Result<SetFiles, Diagnostics> {
    match (name.strip_prefix(SHIPPED), dir) {
        (Some("common"), _) => Ok(SetFiles::from_texts(COMMON.iter().copied())),
        (None, Some(dir)) => SetFiles::from_dir(&dir.join(name), name)
            .map_err(|_| Diagnostics::global(Code::IncludeUnknown, format!("`{name}` is no folder beside the set"))),
        _ => Err(Diagnostics::global(Code::IncludeUnknown, format!("`{name}`"))),
    }
}
