//! From files to [`Spec`]: TOML, one entry at a time, so that every bad entry is reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::entries::{Block, External, Group, Manifest, Model, Named, Producer, Slot, Smoothing, State, Str, Update};
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
        Self { files: texts.into_iter().map(|(p, t)| (p.to_owned(), t.to_owned())).collect() }
    }

    /// The manifest's `include`, without further checks; nothing where it cannot be read.
    pub fn includes(&self) -> Vec<String> {
        let placed = self.placed_includes().into_iter();
        placed.map(Spanned::into_inner).collect()
    }

    /// The same, with their places in the manifest.
    pub fn placed_includes(&self) -> Vec<Str> {
        let manifest = self.manifest().and_then(|(_, t)| toml::from_str::<Manifest>(t).ok());
        manifest.map(|m| m.include).unwrap_or_default()
    }

    /// Path and text of the `unio.toml`, without a byte-order mark.
    pub fn manifest(&self) -> Option<(&str, &str)> {
        let (path, text) = self.files.iter().find(|(p, _)| is_manifest(p))?;
        Some((path, text.strip_prefix('\u{feff}').unwrap_or(text)))
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
    /// Buffers that the set does not make.
    pub externals: Vec<Entry<External>>,
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

/// Kinds of entry.
const KINDS: &[&str] =
    &["const", "slot", "state", "smoothing", "producer", "block", "update", "external", "group", "model"];

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
    externals: Vec<Entry<External>>,
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
        if let Err(error) = DeTable::parse(text) {
            return self.toml_error(Code::TomlSyntax, file, &error, 0..text.len());
        }
        match toml::from_str::<Manifest>(text) {
            Err(error) => {
                let range = narrow(error.span().unwrap_or(0..text.len()), text);
                shape_error(&error, &Loc { file, range }, &mut self.report);
            }
            Ok(manifest) => {
                if *manifest.version.get_ref() != 1 {
                    let loc = Loc { file, range: manifest.version.span() };
                    self.report.push(Code::VersionUnknown, &loc, "this generator reads version 1");
                }
                if own {
                    let loc = Loc { file, range: manifest.name.span() };
                    self.set = Some(Set { name: manifest.name.into_inner(), loc });
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
            "external" => entries(at, value, &mut self.externals, report),
            "group" => entries(at, value, &mut self.groups, report),
            "model" => entries(at, value, &mut self.models, report),
            _ => report.push_unknown(
                Code::KindUnknown,
                &Loc { file, range: span },
                format!("`{kind}` is no kind of entry"),
                kind,
                KINDS.iter().copied(),
            ),
        }
    }

    fn toml_error(&mut self, code: Code, file: usize, error: &toml::de::Error, whole: std::ops::Range<usize>) {
        let range = error.span().unwrap_or(whole);
        self.report.push(code, &Loc { file, range }, error.message().to_owned());
    }

    fn finish(mut self) -> Result<Spec, Diagnostics> {
        if self.set.is_none() && self.report.is_empty() {
            self.report.push_global(Code::SetUnreadable, "the folder has no `unio.toml`");
        }
        let set = self.set.unwrap_or(Set { name: String::new(), loc: Loc::default() });
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
            externals: self.externals,
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
        let loc = Loc { file: at.file, range: whole };
        return report.push(Code::ValueUnfit, &loc, "entries are expected here, as in `[kind.name]`");
    };
    for (name, value) in table {
        let loc = Loc { file: at.file, range: name.span() };
        let range = value.span();
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(keys) => out.push(Entry { name: name.into_inner().into_owned(), loc, keys }),
            Err(error) => {
                let range = narrow(error.span().unwrap_or(range), at.files.get(at.file).text.as_str());
                shape_error(&error, &Loc { file: at.file, range }, report);
            }
        }
    }
}

/// Reports what does not fit the keys of a kind, in words that know nothing of this crate.
fn shape_error(error: &toml::de::Error, loc: &Loc, report: &mut Report) {
    let message = error.message();
    let quoted = || message.split('`').skip(1).step_by(2);
    if message.starts_with("unknown field") {
        let label = message
            .replace("unknown field", "unknown key")
            .replace("expected one of", "known are")
            .replace("expected ", "known is ");
        let name = quoted().next().unwrap_or_default();
        // Of what has a slot; these are keys of a slot, of a producer, of one of its signals.
        let is_slot = quoted().any(|key| ["reserved", "smooth", "observed_only"].contains(&key));
        if name == "init" && is_slot {
            return report.push(Code::SlotStart, loc, "a slot starts at 0, and returns to it");
        }
        return report.push_unknown(Code::KeyUnknown, loc, label, name, quoted().skip(1));
    }
    if message.starts_with("missing field") {
        return report.push(Code::KeyMissing, loc, message.replace("missing field", "there is no"));
    }
    if message.starts_with("unknown variant") {
        let label = message.replace("unknown variant", "unknown word");
        let name = quoted().next().unwrap_or_default();
        return report.push_unknown(Code::ValueUnfit, loc, label, name, quoted().skip(1));
    }
    report.push(Code::ValueUnfit, loc, plain_words(message));
}

/// Names of types, as a reader of specs calls them.
fn plain_words(message: &str) -> String {
    let Some((found, wanted)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let found = found.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ");
    let found = match found {
        "map" => "a table",
        "sequence" => "a list",
        found => found,
    };
    let wanted = match wanted {
        "u32" => "a whole number, 0 or more",
        "f64" => "a number",
        "i64" => "a whole number",
        "a map" => "a table",
        "a sequence" => "a list",
        wanted if wanted.starts_with("struct ") => "a table of keys",
        wanted if wanted.starts_with("enum ") || wanted == "string or table" => "a word",
        wanted => wanted,
    };
    format!("{found} stands where {wanted} is expected")
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
    Text {
        value: value.get_ref().clone(),
        offsets: offsets(raw, span.start, value.get_ref()).unwrap_or_default(),
        loc: Loc { file, range: span },
    }
}

/// For each byte of a string's value, and for its end, where in the file it stands.
fn offsets(raw: &str, start: usize, value: &str) -> Option<Vec<usize>> {
    let quote = ["\'\'\'", "\"\"\"", "'", "\""].into_iter().find(|q| raw.starts_with(q))?;
    let mut at = quote.len();
    if quote.len() == 3 {
        at += ["\r\n", "\n"].into_iter().find(|n| raw[at..].starts_with(n)).map_or(0, str::len);
    }
    let mut offsets = Vec::with_capacity(value.len() + 1);
    for letter in value.chars() {
        let (skipped, len) = written_as(&raw[at..], letter, quote.contains('"'))?;
        offsets.extend(std::iter::repeat_n(start + at + skipped, letter.len_utf8()));
        at += skipped + len;
    }
    offsets.push(start + at);
    Some(offsets)
}

/// How a letter of a string stands in the file: bytes that give no letter, then the bytes of this one.
fn written_as(raw: &str, letter: char, escapes: bool) -> Option<(usize, usize)> {
    let mut skipped = 0;
    // A backslash at the end of a line joins it to the next.
    while escapes
        && let Some(rest) = raw[skipped..].strip_prefix('\\')
        && rest.starts_with([' ', '\t', '\r', '\n'])
    {
        skipped += 1 + rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
    }
    let rest = &raw[skipped..];
    let len = match rest.as_bytes() {
        [b'\\', kind, ..] if escapes => match kind {
            b'x' => 4,
            b'u' => 6,
            b'U' => 10,
            _ => 2,
        },
        [b'\r', b'\n', ..] if letter == '\n' => 2,
        _ if rest.starts_with(letter) => letter.len_utf8(),
        _ => return None,
    };
    rest.is_char_boundary(len).then_some((skipped, len))
}

/// Place of a spanned string.
pub fn loc_of<T>(file: usize, value: &Spanned<T>) -> Loc {
    Loc { file, range: value.span() }
}

/// The keys of a map, as owned names with places.
pub fn names<T>(file: usize, map: &Named<T>) -> impl Iterator<Item = (&str, Loc, &T)> {
    map.iter().map(move |(k, v)| (k.get_ref().as_str(), loc_of(file, k), v))
}
