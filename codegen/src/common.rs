//! Sets that ship inside this crate, and how an `include` is resolved.

use std::path::Path;

use crate::diagnostics::{Code, Diagnostics};
use crate::spec::SetFiles;
use crate::spec::entries::Str;

/// Prefix of the names of shipped sets.
pub(crate) const SHIPPED: &str = "unio:";

/// Files of `unio:common`. A test holds the list to the folder.
pub const COMMON: &[(&str, &str)] = &[
    ("unio:common/attention.toml", include_str!("../../specs/common/attention.toml")),
    ("unio:common/cfc.toml", include_str!("../../specs/common/cfc.toml")),
    ("unio:common/grn.toml", include_str!("../../specs/common/grn.toml")),
    ("unio:common/mamba2.toml", include_str!("../../specs/common/mamba2.toml")),
    ("unio:common/norm.toml", include_str!("../../specs/common/norm.toml")),
    ("unio:common/heads.toml", include_str!("../../specs/common/heads.toml")),
    ("unio:common/smoothing.toml", include_str!("../../specs/common/smoothing.toml")),
    ("unio:common/vsn.toml", include_str!("../../specs/common/vsn.toml")),
    ("unio:common/unio.toml", include_str!("../../specs/common/unio.toml")),
];

/// The sets that a set includes, and those that they include; relative paths are resolved against `dir`.
///
/// # Errors
/// `U0106` where a name is not shipped and no folder of that path can be read.
pub fn included(set: &SetFiles, dir: Option<&Path>) -> Result<Vec<SetFiles>, Diagnostics> {
    let mut found: Vec<(String, SetFiles)> = Vec::new();
    let mut waiting = set.placed_includes();
    while let Some(name) = waiting.pop() {
        if found.iter().any(|(known, _)| known == name.get_ref()) {
            continue;
        }
        let included = find(name.get_ref(), dir).ok_or_else(|| unknown(set, &name))?;
        waiting.extend(included.placed_includes());
        found.push((name.into_inner(), included));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found.into_iter().map(|(_, set)| set).collect())
}

fn find(name: &str, dir: Option<&Path>) -> Option<SetFiles> {
    match (name.strip_prefix(SHIPPED), dir) {
        (Some("common"), _) => Some(SetFiles::from_texts(COMMON.iter().copied())),
        (None, Some(dir)) => SetFiles::from_dir(&dir.join(name), name).ok().filter(|set| set.manifest().is_some()),
        _ => None,
    }
}

/// Points at the include where the set itself has it, else at nothing.
fn unknown(set: &SetFiles, name: &Str) -> Diagnostics {
    let label = match name.get_ref().starts_with(SHIPPED) {
        true => format!("no set `{}` ships with Unio", name.get_ref()),
        false => format!("`{}` is no folder with a `unio.toml`, seen from this set", name.get_ref()),
    };
    match set.manifest().filter(|_| set.placed_includes().contains(name)) {
        Some((path, text)) => Diagnostics::at(Code::IncludeUnknown, path, text, name.span(), label),
        None => Diagnostics::global(Code::IncludeUnknown, label),
    }
}
