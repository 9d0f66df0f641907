//! Fixtures that stand for a spec set each.

use crate::{MANIFEST, fixture_text};

/// A fixture as the files of a set. Its first line may say `# with: NAME, ...` for shared files of `fail/with/`, or
/// `# no manifest`; a line `# file: NAME` starts another file.
pub fn files(text: &str) -> Vec<(String, String)> {
    let mut files = vec![("t/spec.toml".to_owned(), String::new())];
    for line in text.split_inclusive('\n') {
        match (line.strip_prefix("# file: "), files.last_mut()) {
            (Some(name), _) => files.push((format!("t/{}", name.trim()), String::new())),
            (None, Some((_, text))) => text.push_str(line),
            (None, None) => {}
        }
    }
    let first = text.lines().next().unwrap_or_default();
    for name in first.strip_prefix("# with: ").iter().flat_map(|names| names.split(", ")) {
        files.push((format!("t/with_{name}.toml"), fixture_text(&format!("fail/with/{name}.toml"))));
    }
    let has_manifest = files.iter().any(|(path, _)| path == "t/unio.toml") || first == "# no manifest";
    if !has_manifest {
        files.push(("t/unio.toml".to_owned(), MANIFEST.to_owned()));
    }
    files
}

/// The same as pairs of borrowed texts, as the generator takes them.
pub fn borrowed(files: &[(String, String)]) -> Vec<(&str, &str)> {
    files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect()
}
