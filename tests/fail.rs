//! What a user is told about a slip: one fixture or more for every code, the rendered text beside it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;

use unio_codegen::diagnostics::Code;
use unio_codegen::{Diagnostics, compile_texts};
use unio_tests::fixtures::{borrowed, files};
use unio_tests::{MANIFEST, fixture, fixture_text};

/// Codes that no spec text provokes; each has a test of another kind, or stands for a fault of ours.
const NOT_OF_A_SPEC: &[Code] = &[Code::Stale, Code::Unwritable, Code::Internal];

/// Words of the implementation, which mean nothing to whoever writes a spec.
const INTERNAL_WORDS: &[&str] = &[
    "Option",
    "Vec",
    "untagged",
    "serde",
    "TensorId",
    "VarId",
    "enum",
    "variant",
    "struct",
    "Spanned",
    "DeValue",
    "TokenStream",
    "ident",
    "LitInt",
    "LitFloat",
    "usize",
    "u32",
    "i64",
    "f64",
    "tuple",
    "sequence",
    "borrowed",
    "newtype",
    "unwrap",
    "panicked",
    "None",
    "Some",
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

/// Whoever adds a code must also raise it.
#[test]
fn every_code_is_raised_somewhere() {
    let sources = sources(&fixture("../../codegen/src"));
    for code in Code::ALL {
        let raised = format!("Code::{code:?}");
        assert!(sources.iter().any(|text| names(text, &raised)), "{raised} is never raised");
    }
}

/// Whether a text has a word, and not merely a longer one that begins with it.
fn names(text: &str, word: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
    text.match_indices(word).any(|(at, _)| ends(&text[at + word.len()..]))
}

fn sources(dir: &Path) -> Vec<String> {
    let mut texts = Vec::new();
    for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        match path.is_dir() {
            true => texts.extend(sources(&path)),
            false => texts.push(std::fs::read_to_string(&path).unwrap_or_default()),
        }
    }
    texts
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
        // A string that does not end is missed where the line ends.
        for finding in refused(&path).findings().iter().filter(|f| f.code != Code::TomlSyntax) {
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
        Code::EquationSyntax,
        Code::NameUnknown,
        Code::InitUnknown,
        Code::ShapeSyntax,
        Code::EquationSyntax,
        Code::ResetMissing,
        Code::ReaderMissing,
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
    compile_texts(&borrowed(&files)).err()
}

/// Two branches that each add a state give it the same word, and their locks merge without a conflict.
#[test]
fn a_place_given_twice_by_the_lock_is_told() {
    let states = "[update.u]\ndoc = \"x\"\nover = \"scalar\"\n\
                  state = { a = { reset = \"never\" }, b = { reset = \"never\" } }\nmath = \"next.a = a + b\\nnext.b = b\"\n";
    let set =
        unio_codegen::SetFiles::from_texts([("t/unio.toml", "version = 1\nname = \"t\"\n"), ("t/a.toml", states)]);
    let found = unio_codegen::compile(&set, &[], "[state]\na = 3\nb = 3\n").unwrap_err();
    assert_eq!(found.findings()[0].code, Code::SlotIndexTwice, "{found}");
    for lock in ["", "\0", "[state]\na = -1", "[state]\na = 9223372036854775807", "[slot.a]\nindex = 1", "state = 1"] {
        assert!(unio_codegen::compile(&set, &[], lock).is_ok(), "{lock:?}");
    }
}

/// What no sensible person writes: it may be refused, it may even compile, but nothing may panic or run for long.
#[test]
fn nothing_panics_on_odd_texts() {
    let cell = fixture_text("fail/with/cell.toml");
    let wiring = fixture_text("fail/with/wiring.toml");
    let training = fixture_text("fail/with/training.toml");
    let math = "loss = sum(i, w[i] * x[i])";
    for odd in odd_equations() {
        for quote in ["'''", "\""] {
            let text = cell.replace(&format!("\"{math}\""), &format!("{quote}{odd}{quote}"));
            compiled(&[&text, &wiring, &training]);
            let producer =
                fixture_text("fail/U0308_quantile.toml").replace("\"p99(w)\"", &format!("{quote}{odd}{quote}"));
            compiled(&[&producer, &fixture_text("fail/with/buffer.toml")]);
        }
    }
    for size in
        ["0", "1", "2147483647", "2147483648", "4294967295", "4294967296", "-1", "1.5", "\"3\"", "9999999999999999999"]
    {
        for name in ["B = 2", "I = 3", "J = 4"] {
            let text = wiring.replace(name, &format!("{} = {size}", &name[..1]));
            compiled(&[&cell, &text, &training]);
        }
    }
    for odd in ODD_SHAPES {
        compiled(&[&cell.replace("\"[I]\"", odd), &wiring, &training]);
        compiled(&[&cell, &wiring.replace("\"[B, I]\"", odd), &training]);
    }
    for odd in odd_files() {
        compiled(&[&odd]);
        compiled(&[&odd, &cell, &wiring, &training]);
        let _ = compile_texts(&[("t/unio.toml", &odd)]).map_err(|found| found.to_string());
    }
    let _ = compile_texts(&[]).map_err(|found| found.to_string());
}

const ODD_EQUATIONS: &[&str] = &[
    "",
    " ",
    "\n",
    "\r\n",
    "\t",
    "\u{feff}",
    "=",
    "==",
    "a",
    "a =",
    "= a",
    "loss",
    "loss =",
    "loss = loss",
    "next.loss = 1",
    "next.",
    "next",
    "loss[] = 1",
    "loss[i] = 1",
    "loss = sum(i, x[i]",
    "loss = x[",
    "loss = x[]",
    "loss = sum()",
    "loss = sum(i)",
    "loss = sum(i,)",
    "loss = sum(x, x)",
    "loss = max(i, w[i])",
    "loss = mean(i, w[i])",
    "loss = softmax(i, w[i])",
    "loss = 1/0",
    "loss = 0.0/0.0 + w[0]",
    "loss = 1e38 * 1e38 * w[0]",
    "loss = w[-1]",
    "loss = w[99]",
    "loss = w[2147483648]",
    "loss = w[0.5]",
    "loss = w[i]",
    "loss = i",
    "loss = I",
    "loss = prev.",
    "loss = prev.x[",
    "loss = prev.x[]",
    "loss = now.loss",
    "loss = observed.x",
    "loss = select(1, 2, 3)",
    "loss = !w[0]",
    "loss = -(-(-w[0]))",
    "loss = w[0] when",
    "when = 3",
    "sum = 3",
    "loss = sum",
    "a[i,j,k] = w[i] * w[j] * w[k]\nloss = 1",
    "größe = 1",
    "loss = größe",
    "loss = \u{1f980}",
    "loss = 'a'",
    "loss = \"a\"",
    "loss = r#x",
    "loss = b'x'",
    "loss = x'",
    "loss = 1u8",
    "loss = 0x10",
    "loss = 1_000",
    "loss = 1.",
    "loss = .5",
    "loss = 1..2",
    "loss = x.0",
    "loss = x.y.z",
    "/*",
    "*/",
    "//",
    "/* */ loss = 1",
    "///\nloss = 1",
    "//! x",
    "#![x]",
    "loss = {1}",
    "loss = a::b",
    "loss = sum(k, sum(k, w[k]))",
    "loss = sum(i, sum(i, w[i] * x[i]))",
    "i[i] = w[i]\nloss = 1",
    "loss = quantile(0.5, abs(w))",
    "p99(abs(w))",
    "sum(w) / 0",
    "quantile(0.0, abs(w))",
    "quantile(1.0, abs(w))",
    "sum(1)",
    "norm(prev.size)",
    "1",
    "w",
    "w[0]",
    "loss = stop(w[0])",
    "loss = isfinite(w[0])",
    "loss = floor(w[0])",
    "loss = real(1)",
    "loss = real(w[0])",
    "\0",
    "loss = \u{7f}",
    "loss = \u{2028}1",
];

fn odd_equations() -> Vec<String> {
    let mut odd: Vec<String> = ODD_EQUATIONS.iter().copied().map(String::from).collect();
    let nested =
        |open: &str, inner: &str, close: &str, n: usize| format!("{}{inner}{}", open.repeat(n), close.repeat(n));
    for n in [10, 47, 399, 20_000] {
        odd.push(format!("loss = {}", nested("(", "w[0]", ")", n)));
        odd.push(format!("loss = {}", nested("square(", "w[0]", ")", n)));
        odd.push(format!("loss = {}", nested("elu(", "w[0]", ")", n.min(1000))));
        odd.push(format!("loss = {}w[0]", "-".repeat(n)));
        odd.push(format!("loss = w[0]{}", " + w[0] * x[0]".repeat(n / 3)));
        odd.push(format!("loss = w[0]{}", " / x[0]".repeat(n / 2)));
        odd.push(format!("loss = {}", nested("sum(i, ", "w[i]", ")", n.min(1000))));
        odd.push("[".repeat(n));
        odd.push("a = 1\n".repeat(n.min(1000)));
    }
    odd
}

const ODD_SHAPES: &[&str] = &[
    "\"\"",
    "\"[\"",
    "\"]\"",
    "\"[]\"",
    "\"[,]\"",
    "\"[I,]\"",
    "\"[,I]\"",
    "\"[I,,I]\"",
    "\"[*]\"",
    "\"[*, *]\"",
    "\"[0]\"",
    "\"[B, 0]\"",
    "\"[-1]\"",
    "\"[4294967296]\"",
    "\"[4294967295, 4294967295, 4294967295, 4294967295]\"",
    "\"[I, I, I, I, I, I, I, I, I]\"",
    "\"[größe]\"",
    "\"[ I ]\"",
    "'''\n[I]\n'''",
    "{ shape = \"[I]\" }",
    "{}",
    "[]",
    "3",
    "{ shape = \"[I]\", type = \"f64\" }",
    "{ shape = \"[I]\", init = \"\" }",
    "\"\\u0041\\n[I]\"",
];

const ODD_FILES: &[&str] = &[
    "",
    "\u{feff}",
    "\r\n",
    "\0",
    "=",
    "[",
    "[[",
    "[]",
    "[a",
    "[a]",
    "[block]",
    "[block.x]",
    "[model.m]",
    "[[block.x]]",
    "block = 1",
    "block = []",
    "const = { A = nan }",
    "const = { A = inf, B = -inf, C = 1e308 }",
    "[const]\nA = 1\nA = 2",
    "[const]\n\"\" = 1.0",
    "[const]\n\"\u{1f980}\" = 1.0",
    "x = '''",
    "x = \"\"\"",
    "x = 'a",
    "x = \"\\q\"",
    "[state.a]\ndoc = 'x'\ninit = nan\nreset = 'never'",
    "[slot.a]\ndoc = 'x'\nindex = 4294967295\nreserved = true",
    "version = 99999999999999999999",
    "version = 1\nname = \"\"",
    "version = 1\nname = \"t\"\ninclude = [\"unio:common\", \"unio:common\"]",
    "version = 1\nname = \"t\"\ninclude = [\"\", \".\", \"unio:\"]",
    "[model.m]\ndoc = 'x'\nsize = {}\nbatch = 'B'\nobjective = ''\nstage = {}",
    "[model.m]\ndoc = 'x'\nsize = { B = 1 }\nbatch = 'B'\nobjective = 'a.b'\nstage = {}",
    "[model.m]\ndoc = 'x'\nsize = { B = 1 }\nbatch = 'B'\nobjective = 's.b'\nstage = { s = { block = 's', input = { x = 's.b' } } }",
    "[group.g]\ndoc = 'x'\ntensors = ['']\noptimizer = ''",
    "[update.u]\ndoc = 'x'\nover = ''\nmath = ''",
    "[update.u]\ndoc = 'x'\nover = 'scalar'\nmath = ''",
    "[update.u]\ndoc = 'x'\nover = ': '\nmath = ''",
    "[update.u]\ndoc = 'x'\nover = 'group'\nmath = ''",
    "[smoothing.s]\ndoc = 'x'\nstate = ['mean', 'x', 'a', 'a']\nmath = 'next.mean = x'",
    "[producer.p]\ndoc = 'x'\nread = {}\nsignal = '1'\nsmooth = 'pearl_ad'\nreset = 'fold'\nmonitoring = true",
    "[producer.p]\ndoc = 'x'\nread = {}\nsignal = {}\nsmooth = 'pearl_ad'\nreset = 'fold'\nmonitoring = true",
    "[external.x]\ndoc = 'x'\nshape = '[0]'",
    "[external.x]\ndoc = 'x'\nshape = '[*, 4294967295, 4294967295, 4294967295]'",
    "[external.params]\ndoc = 'x'\nshape = '[3]'",
];

fn odd_files() -> Vec<String> {
    let mut odd: Vec<String> = ODD_FILES.iter().copied().map(String::from).collect();
    odd.push(format!("x = {}{}", "[".repeat(10_000), "]".repeat(10_000)));
    odd.push(format!("[{}a]", "a.".repeat(10_000)));
    odd.push(format!("x = {}1{}", "{ a = ".repeat(10_000), " }".repeat(10_000)));
    odd
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(48))]

    /// Half a file is what an editor saves, and what a build then reads.
    #[test]
    fn nothing_panics_on_truncated_sets(set in 0..2usize, file in 0..16usize, at in 0.0..1.0f64, insert in "[\\[\\]{}()'\"=.,#*0-9a-zé\n]{0,3}") {
        let dir = fixture(["../../specs/perception", "../../specs/sp4"][set]);
        let mut texts = shipped(&dir);
        let count = texts.len();
        let text = &mut texts[file % count].1;
        let at = text.floor_char_boundary((text.len() as f64 * at) as usize);
        let rest = text.split_off(at);
        text.push_str(&insert);
        if file % 3 > 0 {
            text.push_str(rest.split_once('\n').map_or("", |(_, rest)| rest));
        }
        if let Err(found) = compile_texts(&borrowed(&texts)) {
            proptest::prop_assert!(!found.to_string().is_empty());
            proptest::prop_assert!(found.findings().iter().all(|f| f.code != Code::Internal), "{}", found);
        }
    }
}

fn shipped(dir: &Path) -> Vec<(String, String)> {
    let mut texts = Vec::new();
    for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        texts.push((format!("t/{name}"), std::fs::read_to_string(&path).unwrap()));
    }
    texts.sort();
    texts
}

/// Compiles files beside a manifest, and renders what is found.
fn compiled(files: &[&str]) {
    let named: Vec<(String, &str)> = files.iter().enumerate().map(|(n, text)| (format!("t/{n}.toml"), *text)).collect();
    let mut texts: Vec<(&str, &str)> = named.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    texts.push(("t/unio.toml", MANIFEST));
    if let Err(found) = compile_texts(&texts) {
        assert!(found.findings().iter().all(|f| f.code != Code::Internal), "{found}");
        assert!(!found.to_string().is_empty());
    }
}
