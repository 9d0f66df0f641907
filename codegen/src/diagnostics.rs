//! Everything a user can be told: one table of codes, one renderer.
//!
//! A stage pushes all it finds into a [`Report`] and the driver stops at the end of the stage.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// A place in a spec file: which file, and the byte range in it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Loc {
    /// Index of the file in [`Files`].
    pub file: usize,
    /// Bytes of the file's text.
    pub range: Range<usize>,
}

/// The texts that were read, kept for carets.
#[derive(Clone, Debug, Default)]
pub struct Files(Vec<File>);

/// One file: the path as it is shown, and its text.
#[derive(Clone, Debug)]
pub struct File {
    /// Path relative to the set's root, `/` as separator.
    pub path: String,
    /// The whole text.
    pub text: String,
}

impl Files {
    /// Adds a file and gives its index.
    pub fn add(&mut self, path: String, text: String) -> usize {
        self.0.push(File { path, text });
        self.0.len() - 1
    }

    /// The file at an index.
    pub fn get(&self, file: usize) -> &File {
        &self.0[file]
    }

    /// `path:line` of a place, for provenance comments.
    pub fn provenance(&self, loc: &Loc) -> String {
        let file = self.get(loc.file);
        let end = loc.range.start.min(file.text.len());
        let line = file.text.as_bytes()[..end].iter().filter(|b| **b == b'\n').count() + 1;
        format!("{}:{line}", file.path)
    }
}

macro_rules! codes {
    ($($name:ident $id:literal $title:literal => $cure:literal)*) => {
        /// Every diagnostic there is. The id is stable; the title says what is wrong, the cure what to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Code { $($name),* }

        impl Code {
            /// All codes in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// Stable identifier, `Unnnn`.
            pub fn id(self) -> &'static str {
                match self { $(Code::$name => $id),* }
            }

            /// What is wrong, in general.
            pub fn title(self) -> &'static str {
                match self { $(Code::$name => $title),* }
            }

            /// What to do about it, in general.
            pub fn cure(self) -> &'static str {
                match self { $(Code::$name => $cure),* }
            }
        }
    };
}

codes! {
    // Reading: files, TOML, keys.
    SetUnreadable   "U0101" "the spec set cannot be read" => "a spec set is a folder with a `unio.toml` and readable `*.toml` files"
    TomlSyntax      "U0102" "the file is not valid TOML" => "mend it at the caret: texts stand in quotes, a key stands once in its table"
    KeyUnknown      "U0103" "the entry has a key that its kind does not know" => "correct the spelling, or remove it; the editor's schema is spec.schema.json"
    KindUnknown     "U0104" "no such kind of entry" => "the kinds are const, slot, state, smoothing, producer, block, update, external, group and model"
    VersionUnknown  "U0105" "this version of the spec language is not known" => "write `version = 1` in unio.toml"
    IncludeUnknown  "U0106" "no such spec set to include" => "the sets that ship with Unio are `unio:common`; others are named by a relative path"
    EntryTwice      "U0107" "two entries share one name" => "rename one of them; all files of a set and of its includes are one namespace"
    NameIllegal     "U0108" "the name cannot be used" => "names are made of letters, digits and `_`, and start with a letter"
    NameCollides    "U0109" "two names give the same generated symbol" => "rename one of them so that both stay distinct in Rust and CUDA"
    ShapeSyntax     "U0110" "the shape cannot be read" => "a shape is a list of sizes or size names, such as \"[H, I]\"; a scalar is \"[]\""
    InitUnknown     "U0111" "no such initialiser" => "a parameter starts with zeros, ones, constant(x), uniform(a), lecun_uniform, lecun_uniform(n) over its last n dimensions, or glorot_uniform"
    KeyMissing      "U0112" "a key is missing" => "add it; the editor's schema, spec.schema.json, says what it holds"
    ValueUnfit      "U0113" "the value does not fit its key" => "write a value of the kind that is expected there"
    // Equations: grammar.
    EquationLex     "U0201" "the equation has a character that no equation has" => "remove it; a comment is written // or /* */, and the operators are + - * / < <= > >= == != && || !"
    EquationSyntax  "U0202" "the equation cannot be read" => "an equation is `name[index, ...] = expression`, one after the other"
    EquationTooLarge "U0203" "the equation is too large" => "split it: give its parts names of their own"
    // Names and shapes.
    NameUnknown     "U0301" "the name means nothing here" => "declare it, or correct the spelling"
    FunctionUnknown "U0302" "no such function" => "the functions are listed in the README under \"Equations\""
    AssignedTwice   "U0303" "a value is assigned twice" => "give the second value a name of its own; only state has a `next`"
    NotAssigned     "U0304" "a declared value is never assigned" => "add an equation for it, or remove the declaration"
    RankMismatch    "U0305" "the number of indices does not fit the shape" => "give one index for each dimension"
    ExtentConflict  "U0306" "one index runs over two different sizes" => "rename one of the indices, or correct a shape"
    ExtentUnknown   "U0307" "the extent of an index cannot be told" => "use the index on a declared tensor, so that its size is known"
    TypeMismatch    "U0308" "the types do not fit" => "comparisons give booleans; indices are integers; arithmetic mixes f32 and i32 only towards f32"
    ArityMismatch   "U0309" "the function takes another number of arguments" => "see the README under \"Equations\""
    IndexUnbound    "U0310" "an index of the left side is not used on the right, so nothing gives its extent" => "declare the value with a shape"
    WriteForbidden  "U0311" "this cannot be assigned" => "inputs, tables, parameters and slots are read only; state is written as `next.NAME`"
    IndexOutside    "U0312" "the index lies outside the tensor" => "indices begin at 0 and end one below the size"
    // Wiring.
    SizeUnknown     "U0401" "the size of a dimension is not known" => "give it in the model's `size`, or in the stage's"
    InputMissing    "U0402" "an input of the block is not wired" => "add it to the stage's `input`"
    SourceUnknown   "U0403" "no such value to wire from" => "values are `STAGE.OUTPUT`, an `external` or an output of an update"
    ShapeMismatch   "U0404" "the shape of the source does not fit the input" => "compare the two shapes; a scanned stage takes one step's slice of its inputs"
    StageCycle      "U0405" "the stages wait for one another" => "a stage may only read stages before it; use a scan for recurrence"
    TwoWriters      "U0406" "two entries write one slot or state" => "one of them must yield a new name"
    SlotIndexTwice  "U0407" "two slots share an index" => "change one index, or leave it out and let the generator give one"
    ResetMissing    "U0408" "a slot or state has no reset policy" => "add `reset = \"fold\"`, `\"epoch\"` or `\"never\"`"
    ReaderMissing   "U0409" "nobody reads this slot or state" => "read it, or remove it; what people alone read is marked `monitoring = true`"
    NowCycle        "U0410" "reads of this step's values wait for one another" => "read one of them as `prev.NAME`"
    ParamUnowned    "U0411" "a trainable tensor is in no optimizer launch" => "add it to the `tensors` of a group"
    ParamTwice      "U0412" "a trainable tensor is in two optimizer launches" => "remove it from one of the groups"
    GroupEmpty      "U0413" "the group names no tensor" => "patterns are `stage.param` or `stage.*`"
    MemberMissing   "U0414" "the slot has several members; which one is meant?" => "write `prev.NAME[GROUP]`, or read it in an entry that runs once a group"
    ObjectiveShape  "U0415" "the objective must be one number a sample" => "give the loss the shape \"[]\""
    ReductionUnordered "U0417" "the optimizer would read a gradient that is not reduced yet" => "let it read the model's gradients"
    EntryUnused     "U0418" "nothing uses this entry" => "use it, or remove it"
    SizeIllegal     "U0419" "the size cannot be used" => "a size is a whole number of at least 1"
    SlotStart       "U0420" "a slot has no start of its own" => "remove `init`: a smoothed slot and its smoothing state return to 0 together, so that Pearl A takes the first observation; a value that starts elsewhere is the state of an update"
    WriterMissing   "U0421" "nobody writes this slot" => "let a producer steer it; what someone outside the set writes is marked `external = true`, what is kept free `reserved = true`"
    KeyIdle         "U0422" "the key has no effect here" => "remove it"
    // Adjoints.
    NoAdjoint       "U0501" "this has no adjoint" => "wrap it in stop(...) if its gradient is meant to be zero, or write it with sum, softmax and select"
    // Limits.
    IndexTooLarge   "U0602" "an index would not fit into 32 bits" => "make it smaller: no buffer has 2^31 elements"
    ThreadsIllegal  "U0603" "no block has that many threads" => "write a multiple of 32, from 32 to 1024, or leave it out"
    // Output.
    Stale           "U0701" "the generated files are not current" => "run `cargo run --bin unio -- gen` and commit the result"
    Internal        "U0703" "the generator contradicts itself" => "this is a fault of Unio, not of the spec: please report it with the spec"
    Unwritable      "U0702" "an output cannot be written" => "check the folder's permissions"
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its row in the table.
    pub code: Code,
    /// Where; `None` for the set as a whole.
    pub loc: Option<Loc>,
    /// What stands at the caret, in particular.
    pub label: String,
    /// The cure; the table's unless a better one is known here.
    pub note: String,
}

/// The findings of a stage.
#[derive(Debug, Default)]
pub struct Report(Vec<Diagnostic>);

impl Report {
    /// Adds a finding with the table's cure.
    pub fn push(&mut self, code: Code, loc: &Loc, label: impl Into<String>) {
        self.push_note(code, loc, label, code.cure());
    }

    /// Adds a finding with a cure of its own.
    pub fn push_note(&mut self, code: Code, loc: &Loc, label: impl Into<String>, note: impl Into<String>) {
        self.0.push(Diagnostic { code, loc: Some(loc.clone()), label: label.into(), note: note.into() });
    }

    /// Adds a finding about the set as a whole.
    pub fn push_global(&mut self, code: Code, label: impl Into<String>) {
        self.0.push(Diagnostic { code, loc: None, label: label.into(), note: code.cure().into() });
    }

    /// Adds that a name is not known, with the nearest of those that are.
    pub fn push_unknown<'a>(
        &mut self,
        code: Code,
        loc: &Loc,
        label: impl Into<String>,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) {
        match nearest(name, known) {
            Some(near) => self.push_note(code, loc, label, format!("is `{near}` meant?")),
            None => self.push(code, loc, label),
        }
    }

    /// How many findings there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether something is said about a place already, so that what follows from it need not be.
    pub fn is_told(&self, code: Code, loc: &Loc) -> bool {
        self.0.iter().any(|d| d.code == code && d.loc.as_ref() == Some(loc))
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value if nothing was found, else the findings with their texts.
    pub fn finish<T>(self, value: T, files: &Files) -> Result<T, Diagnostics> {
        if self.0.is_empty() { Ok(value) } else { Err(Diagnostics::new(self.0, files.clone())) }
    }
}

/// The known name that a misspelt one is likely to mean.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |other: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &other.to_lowercase());
    let near = known.into_iter().map(|other| (distance(other), other)).min()?;
    // One slip for three letters; a name of one letter has no near neighbour.
    (near.0 <= name.chars().count().div_ceil(3) && name.chars().count() > 1).then_some(near.1)
}

/// What a failed stage leaves: findings in file order, with the texts to show them in.
#[derive(Debug)]
pub struct Diagnostics {
    findings: Vec<Diagnostic>,
    files: Files,
}

impl Diagnostics {
    fn new(mut findings: Vec<Diagnostic>, files: Files) -> Self {
        let place = |d: &Diagnostic| d.loc.as_ref().map(|l| (l.file, l.range.start, l.range.end));
        findings.sort_by_key(|d| (place(d), d.code));
        findings.dedup();
        Self { findings, files }
    }

    /// One finding that has no place in a file.
    pub fn global(code: Code, label: impl Into<String>) -> Self {
        let mut report = Report::default();
        report.push_global(code, label);
        Self::new(report.0, Files::default())
    }

    /// One finding in a text that belongs to no spec yet.
    pub fn at(code: Code, path: &str, text: &str, range: Range<usize>, label: impl Into<String>) -> Self {
        let mut files = Files::default();
        let file = files.add(path.to_owned(), text.to_owned());
        let mut report = Report::default();
        report.push(code, &Loc { file, range }, label);
        Self::new(report.0, files)
    }

    /// The findings.
    pub fn findings(&self) -> &[Diagnostic] {
        &self.findings
    }

    fn render(&self, finding: &Diagnostic) -> String {
        let title = Level::ERROR.primary_title(finding.code.title()).id(finding.code.id());
        let note = Level::HELP.message(finding.note.as_str());
        let group = match &finding.loc {
            None => title.element(Level::NOTE.message(finding.label.as_str())).element(note),
            Some(loc) => {
                let file = self.files.get(loc.file);
                let end = loc.range.end.min(file.text.len());
                let caret = AnnotationKind::Primary.span(loc.range.start.min(end)..end).label(finding.label.as_str());
                title
                    .element(Snippet::source(file.text.as_str()).path(file.path.as_str()).annotation(caret))
                    .element(note)
            }
        };
        Renderer::plain().render(&[group])
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, finding) in self.findings.iter().enumerate() {
            if n > 0 {
                writeln!(f, "\n")?;
            }
            f.write_str(&self.render(finding))?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}
