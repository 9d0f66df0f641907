//! What a user is told about a slip: one fixture or more for every code, the rendered text beside it.

use std::collections::BTreeSet;
use std::path::Path;

use unio_codegen::diagnostics::Code;
use unio_codegen::{Diagnostics, compile_texts};
use unio_tests::{MANIFEST, fixture, fixture_text};

/// Codes that no spec text provokes; each has a test of another kind, or stands for a fault of ours.
const NOT_OF_A_SPEC: &[Code] = &[Code::Stale, Code::Unwritable, Code::Internal];

/// Words of the implementation, which mean nothing to whoever writes a spec.
const INTERNAL_WORDS: &[&str] = &[
    "Option", "Vec", "untagged", "serde", "TensorId", "VarId", "enum", "variant", "struct", "Spanned", "DeValue",
    "TokenStream", "ident", "LitInt", "LitFloat", "usize", "u32", "i64", "f64", "tuple", "sequence", "borrowed",
    "newtype", "unwrap", "panicked", "None", "Some",
];

/// Set it to write what is told now as what is expected; then review the difference.
const BLESS_VARIABLE: &str = "UNIO_BLESS";

#[test]
fn texts() {
    let bless = std::env::var_os(BLESS_VARIABLE).is_some();
    let mut wrong = Vec::new();
    for path in fixtures() {
        let expected = path.with_extension("stderr");
        let told = format!("{}\n", outcome(&path));
        if std::fs::read_to_string(&expected).is_ok_and(|text| text == told) {
            continue;
        }
        if bless {
            std::fs::write(&expected, &told).unwrap();
        } else {
            wrong.push(format!("{}:\n{told}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "not as expected; {BLESS_VARIABLE}=1 accepts\n{}", wrong.join("\n"));
}

#[test]
fn each_fixture_shows_the_code_of_its_name() {
    for path in fixtures().iter().filter(|p| code_of(p).starts_with('U')) {
        let found = refused(path);
        let ids: Vec<&str> = found.findings().iter().map(|f| f.code.id()).collect();
        assert!(ids.contains(&code_of(path).as_str()), "{}: {ids:?}", path.display());
    }
}

#[test]
fn every_code_has_a_fixture() {
    let shown: BTreeSet<String> = fixtures().iter().map(|p| code_of(p)).collect();
    for code in Code::ALL.iter().filter(|c| !NOT_OF_A_SPEC.contains(c)) {
        assert!(shown.contains(code.id()), "{code:?} {} has no fixture", code.id());
    }
}

#[test]
fn no_text_names_what_is_inside() {
    for path in fixtures() {
        for finding in refused(&path).findings() {
            let told = format!("{} {} {}", finding.code.title(), finding.label, finding.note);
            let words: BTreeSet<&str> = told.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let leak = INTERNAL_WORDS.iter().find(|w| words.contains(*w));
            assert!(leak.is_none(), "{}: {leak:?} in {told}", path.display());
        }
    }
}

#[test]
fn every_caret_stands_on_something() {
    for path in fixtures() {
        for finding in refused(&path).findings() {
            if let Some(loc) = &finding.loc {
                assert!(!loc.range.is_empty(), "{}: {finding:?}", path.display());
            }
        }
    }
}

#[test]
fn independent_slips_are_told_at_once_in_file_order() {
    let found = refused(&fixture("fail/several.toml"));
    let codes: Vec<Code> = found.findings().iter().map(|f| f.code).collect();
    let expected = [
        Code::EquationLex,
        Code::NameUnknown,
        Code::InitUnknown,
        Code::ShapeSyntax,
        Code::EquationSyntax,
        Code::ResetMissing,
    ];
    assert_eq!(codes, expected, "{found}");
}

/// A caret is found by its byte, and shown by its column: both must survive line ends and letters of several bytes.
#[test]
fn carets_survive_line_ends_marks_and_accents() {
    for (before, line_end) in [("", "\n"), ("", "\r\n"), ("\u{feff}", "\n"), ("\u{feff}", "\r\n")] {
        for quote in ["'''", "\"\"\""] {
            let text = format!(
                "{before}# Größe\n[update.u]\ndoc = \"Zähler\"\nover = \"scalar\"\n\
                 state = {{ s = {{ reset = \"never\" }} }}\nmath = {quote}\n\t/* Größe */ a = 1\nnext.s = s + oops\n{quote}\n"
            );
            let text = text.replace('\n', line_end);
            let found = compile_texts(&[("t/unio.toml", MANIFEST), ("t/a.toml", &text)]).unwrap_err();
            let loc = found.findings()[0].loc.clone().unwrap();
            let shown = text.trim_start_matches('\u{feff}');
            assert_eq!(&shown[loc.range], "oops", "{before:?} {line_end:?} {quote}\n{found}");
        }
    }
}

fn fixtures() -> Vec<std::path::PathBuf> {
    let dir = std::fs::read_dir(fixture("fail")).unwrap();
    let paths = dir.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|p| p.extension().is_some_and(|e| e == "toml")).collect();
    paths.sort();
    paths
}

fn code_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap().to_string_lossy();
    stem.split('_').next().unwrap().to_owned()
}

fn refused(path: &Path) -> Diagnostics {
    outcome_of(path).unwrap_or_else(|| panic!("{} compiles", path.display()))
}

fn outcome(path: &Path) -> String {
    outcome_of(path).map_or("It compiles.".to_owned(), |found| found.to_string())
}

fn outcome_of(path: &Path) -> Option<Diagnostics> {
    let files = files(&std::fs::read_to_string(path).unwrap());
    let texts: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    compile_texts(&texts).err()
}

/// A fixture as the files of a set. Its first lines may say `# with: NAME, ...` for shared files of `fail/with/`, and
/// `# no manifest`; a line `# file: NAME` starts another file.
fn files(text: &str) -> Vec<(String, String)> {
    let mut files = vec![("t/spec.toml".to_owned(), String::new())];
    for line in text.split_inclusive('\n') {
        match line.strip_prefix("# file: ") {
            Some(name) => files.push((format!("t/{}", name.trim()), String::new())),
            None => files.last_mut().unwrap().1.push_str(line),
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
