//! From files to [`Spec`]: TOML, one entry at a time, so that every bad entry is reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::entries::{Block, Group, Manifest, Model, Named, Producer, Slot, Smoothing, State, Str, Update};
use super::equation::Text;
use crate::diagnostics::{Code, Diagnostics, Files, Loc, Report};

/// The texts of a set, before anything is read from them.
#[derive(Clone, Debug, Default)]
pub struct SetFiles {
    /// Path as shown (relative, `/`), and text; `unio.toml` among them.
    pub files: BTreeMap<String, String>,
}

impl SetFiles {
    /// Reads every `*.toml` of a folder.
    ///
    /// # Errors
    /// `U0101` where the folder or a file cannot be read.
    pub fn from_dir(dir: &Path, shown_as: &str) -> Result<Self, Diagnostics> {
        let unreadable = |path: &Path, error: std::io::Error| {
            Diagnostics::global(Code::SetUnreadable, format!("{}: {error}", path.display()))
        };
        let mut files = BTreeMap::new();
        for path in toml_files(dir).map_err(|e| unreadable(dir, e))? {
            let text = std::fs::read_to_string(&path).map_err(|e| unreadable(&path, e))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.insert(format!("{shown_as}/{name}"), text);
        }
        Ok(Self { files })
    }

    /// A set given as texts, for tests and tools.
    pub fn from_texts<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self {
            files: texts.into_iter().map(|(p, t)| (p.to_owned(), t.to_owned())).collect(),
        }
    }

    /// The manifest's `include`, without further checks; nothing where it cannot be read.
    pub fn includes(&self) -> Vec<String> {
        let manifest = self.files.iter().find(|(p, _)| is_manifest(p));
        let manifest = manifest.and_then(|(_, t)| toml::from_str::<Manifest>(t).ok());
        manifest
            .map(|m| m.include.into_iter().map(Spanned::into_inner).collect())
            .unwrap_or_default()
    }
}

fn toml_files(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_manifest(path: &str) -> bool {
    path == "unio.toml" || path.ends_with("/unio.toml")
}

/// What `unio.toml` says.
#[derive(Clone, Debug)]
pub struct Set {
    /// Prefix of all symbols.
    pub name: String,
    /// Its place.
    pub loc: Loc,
}

/// An entry and the place of its name.
#[derive(Debug)]
pub struct Entry<T> {
    /// The name.
    pub name: String,
    /// Place of the name.
    pub loc: Loc,
    /// What is written under it.
    pub keys: T,
}

/// All entries of a set and of its includes.
#[derive(Debug)]
pub struct Spec {
    /// The set itself.
    pub set: Set,
    /// Named numbers.
    pub constants: Vec<Entry<f64>>,
    /// Slots without a producer.
    pub slots: Vec<Entry<Slot>>,
    /// Host-set scalars.
    pub states: Vec<Entry<State>>,
    /// Smoothing laws.
    pub smoothings: Vec<Entry<Smoothing>>,
    /// Producers.
    pub producers: Vec<Entry<Producer>>,
    /// Blocks.
    pub blocks: Vec<Entry<Block>>,
    /// Updates.
    pub updates: Vec<Entry<Update>>,
    /// Groups.
    pub groups: Vec<Entry<Group>>,
    /// Models.
    pub models: Vec<Entry<Model>>,
    /// Index of the first file that comes from an include.
    pub first_included: usize,
    /// The texts, for carets.
    pub files: Files,
}

impl Spec {
    /// A string of an entry as a text with a place.
    pub fn text(&self, file: usize, value: &Str) -> Text {
        text(&self.files, file, value)
    }
}

/// Reads a set; `included` are the sets it names, already resolved to texts.
///
/// # Errors
/// Every bad file, entry and key.
pub fn read(set: &SetFiles, included: &[SetFiles]) -> Result<Spec, Diagnostics> {
    let mut reader = SpecReader::default();
    for (path, text) in &set.files {
        reader.file(path, text, true);
    }
    reader.first_included = set.files.len();
    for (path, text) in included.iter().flat_map(|s| &s.files) {
        reader.file(path, text, false);
    }
    reader.finish()
}

#[derive(Default)]
struct SpecReader {
    files: Files,
    report: Report,
    set: Option<Set>,
    first_included: usize,
    constants: Vec<Entry<f64>>,
    slots: Vec<Entry<Slot>>,
    states: Vec<Entry<State>>,
    smoothings: Vec<Entry<Smoothing>>,
    producers: Vec<Entry<Producer>>,
    blocks: Vec<Entry<Block>>,
    updates: Vec<Entry<Update>>,
    groups: Vec<Entry<Group>>,
    models: Vec<Entry<Model>>,
}

impl SpecReader {
    fn file(&mut self, path: &str, text: &str, own: bool) {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let file = self.files.add(path.to_owned(), text.to_owned());
        if is_manifest(path) {
            return self.manifest(file, text, own);
        }
        let table = match DeTable::parse(text) {
            Ok(table) => table.into_inner(),
            Err(error) => return self.toml_error(Code::TomlSyntax, file, &error, 0..text.len()),
        };
        for (kind, value) in table {
            self.kind(file, kind.get_ref(), kind.span(), value);
        }
    }

    fn manifest(&mut self, file: usize, text: &str, own: bool) {
        match toml::from_str::<Manifest>(text) {
            Err(error) => self.toml_error(Code::TomlSyntax, file, &error, 0..text.len()),
            Ok(manifest) => {
                if *manifest.version.get_ref() != 1 {
                    let loc = Loc {
                        file,
                        range: manifest.version.span(),
                    };
                    self.report.push(Code::VersionUnknown, &loc, "not 1");
                }
                if own {
                    let loc = Loc {
                        file,
                        range: manifest.name.span(),
                    };
                    self.set = Some(Set {
                        name: manifest.name.into_inner(),
                        loc,
                    });
                }
            }
        }
    }

    fn kind(&mut self, file: usize, kind: &str, span: std::ops::Range<usize>, value: Spanned<DeValue<'_>>) {
        let (report, files) = (&mut self.report, &self.files);
        let at = At { file, files };
        match kind {
            "const" => entries(at, value, &mut self.constants, report),
            "slot" => entries(at, value, &mut self.slots, report),
            "state" => entries(at, value, &mut self.states, report),
            "smoothing" => entries(at, value, &mut self.smoothings, report),
            "producer" => entries(at, value, &mut self.producers, report),
            "block" => entries(at, value, &mut self.blocks, report),
            "update" => entries(at, value, &mut self.updates, report),
            "group" => entries(at, value, &mut self.groups, report),
            "model" => entries(at, value, &mut self.models, report),
            _ => report.push(
                Code::KindUnknown,
                &Loc { file, range: span },
                format!("`{kind}` is no kind of entry"),
            ),
        }
    }

    fn toml_error(&mut self, code: Code, file: usize, error: &toml::de::Error, whole: std::ops::Range<usize>) {
        let range = error.span().unwrap_or(whole);
        self.report.push(code, &Loc { file, range }, error.message().to_owned());
    }

    fn finish(mut self) -> Result<Spec, Diagnostics> {
        if self.set.is_none() && self.report.is_empty() {
            self.report
                .push_global(Code::SetUnreadable, "the folder has no `unio.toml`");
        }
        let set = self.set.unwrap_or(Set {
            name: String::new(),
            loc: Loc::default(),
        });
        let files = self.files.clone();
        let spec = Spec {
            set,
            constants: self.constants,
            slots: self.slots,
            states: self.states,
            smoothings: self.smoothings,
            producers: self.producers,
            blocks: self.blocks,
            updates: self.updates,
            groups: self.groups,
            models: self.models,
            first_included: self.first_included,
            files: self.files,
        };
        self.report.finish(spec, &files)
    }
}

#[derive(Clone, Copy)]
struct At<'a> {
    file: usize,
    files: &'a Files,
}

fn entries<T: DeserializeOwned>(at: At<'_>, value: Spanned<DeValue<'_>>, out: &mut Vec<Entry<T>>, report: &mut Report) {
    let whole = value.span();
    let DeValue::Table(table) = value.into_inner() else {
        let loc = Loc {
            file: at.file,
            range: whole,
        };
        return report.push(Code::KeyUnknown, &loc, "a table of entries is expected here");
    };
    for (name, value) in table {
        let loc = Loc {
            file: at.file,
            range: name.span(),
        };
        let range = value.span();
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(keys) => out.push(Entry {
                name: name.into_inner().into_owned(),
                loc,
                keys,
            }),
            Err(error) => {
                let range = narrow(error.span().unwrap_or(range), at.files.get(at.file).text.as_str());
                report.push(
                    Code::KeyUnknown,
                    &Loc { file: at.file, range },
                    error.message().to_owned(),
                );
            }
        }
    }
}

/// The first line of a range: a caret under a whole table helps nobody.
fn narrow(range: std::ops::Range<usize>, text: &str) -> std::ops::Range<usize> {
    let slice = text.get(range.clone()).unwrap_or_default();
    let line = slice.find('\n').unwrap_or(slice.len());
    range.start..range.start + line.max(1)
}

fn text(files: &Files, file: usize, value: &Str) -> Text {
    let span = value.span();
    let raw = files.get(file).text.get(span.clone()).unwrap_or_default();
    let opening = ["'''\r\n", "'''\n", "'''", "\"\"\"\n", "\"\"\"", "'", "\""]
        .into_iter()
        .find(|q| raw.starts_with(q));
    let origin = opening.map(|q| span.start + q.len()).filter(|start| {
        files
            .get(file)
            .text
            .get(*start..)
            .is_some_and(|t| t.starts_with(value.get_ref().as_str()))
    });
    Text {
        value: value.get_ref().clone(),
        loc: Loc { file, range: span },
        origin,
    }
}

/// Place of a spanned string.
pub fn loc_of<T>(file: usize, value: &Spanned<T>) -> Loc {
    Loc {
        file,
        range: value.span(),
    }
}

/// The keys of a map, as owned names with places.
pub fn names<T>(file: usize, map: &Named<T>) -> impl Iterator<Item = (&str, Loc, &T)> {
    map.iter().map(move |(k, v)| (k.get_ref().as_str(), loc_of(file, k), v))
}
