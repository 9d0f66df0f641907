//! What users of the hand-written control plane did, replayed on a copy of its set: signals added, groups split, slots
//! given a start. What cost them a dozen edits costs one entry; what they found at run time does not build.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use unio::checkpoint::{CheckpointError, Differences};
use unio::device::Real;
use unio::interface::{Arg, Artefacts, KernelParam, Launch, Program, ResetPart, Slot, When};
use unio::{Phase, Session};
use unio_codegen::{Code, Compiled, Diagnostics, SetFiles, common, compile};
use unio_tests::{device, fixture, fixture_text};

/// A copy of a set, to be changed.
#[derive(Clone)]
struct Copy {
    files: SetFiles,
    lock: String,
}

impl Copy {
    /// The control plane with its layout lock.
    fn sp4() -> Self {
        let files = SetFiles::from_dir(&fixture("../../specs/sp4"), "specs/sp4").unwrap();
        Self { files, lock: fixture_text("../../specs/sp4.layout.lock") }
    }

    /// The same without an entry, written `kind.name`.
    fn without(mut self, entry: &str) -> Self {
        let own = [format!("[{entry}]"), format!("[{entry}.")];
        let mut found = false;
        for text in self.files.files.values_mut() {
            let mut inside = false;
            let kept = text.split_inclusive('\n').filter(|line| {
                inside = if line.starts_with('[') { own.iter().any(|o| line.starts_with(o)) } else { inside };
                found |= inside;
                !inside
            });
            *text = kept.collect();
        }
        assert!(found, "no entry {entry}");
        self
    }

    /// The same with one file more.
    fn with(mut self, text: &str) -> Self {
        let path = format!("specs/sp4/added_{}.toml", self.files.files.len());
        self.files.files.insert(path, text.to_owned());
        self
    }

    /// The same with a text replaced that an entry holds once.
    fn edit(mut self, entry: &str, from: &str, to: &str) -> Self {
        let header = format!("[{entry}]\n");
        let (path, text) = self.files.files.iter().find(|(_, text)| text.contains(&header)).unwrap();
        let start = text.find(&header).unwrap();
        let end = text[start..].find("\n\n").map_or(text.len(), |len| start + len);
        let own = &text[start..end];
        assert_eq!(own.matches(from).count(), 1, "{from} in {entry}");
        let text = [&text[..start], &own.replace(from, to), &text[end..]].concat();
        self.files.files.insert(path.clone(), text);
        self
    }

    /// The same with one more key of an entry.
    fn key(self, entry: &str, key: &str) -> Self {
        let header = format!("[{entry}]\n");
        self.edit(entry, &header, &format!("{header}{key}\n"))
    }

    fn compile(&self) -> Result<Compiled, Diagnostics> {
        compile(&self.files, &common::included(&self.files, None)?, &self.lock)
    }

    fn compiled(&self) -> Compiled {
        self.compile().unwrap_or_else(|e| panic!("{e}"))
    }

    fn refused(&self) -> Diagnostics {
        self.compile().err().expect("it does not build")
    }
}

/// The entries of the step from 171 to 173 slots.
const SANITISERS: [&str; 2] = ["bw_d_h_s2_bound", "q_dir_grad_bound"];
const SANITISER_ENTRIES: [&str; 5] = [
    "producer.bw_d_h_s2_bound",
    "producer.q_dir_grad_bound",
    "update.sanitize_bw_d_h_s2",
    "update.sanitize_d_value_logits",
    "update.sanitize_d_adv_logits",
];

/// The set before the two gradient sanitisers, with the lock that its users had.
fn sp4_of_171() -> Copy {
    let mut copy = SANITISER_ENTRIES.into_iter().fold(Copy::sp4(), Copy::without);
    copy.lock = copy.compiled().lock;
    copy
}

/// The same after the step: the entries stand there again, the lock knows nothing of them yet.
fn sp4_of_173() -> Copy {
    Copy { lock: sp4_of_171().lock, ..Copy::sp4() }
}

/// Kernel texts by file.
fn texts(compiled: &Compiled) -> BTreeMap<&str, &str> {
    compiled.artefacts.sources.iter().map(|s| (s.path.as_str(), s.text.as_str())).collect()
}

/// Files whose text is not the same, or that only one has.
fn changed<'a>(before: &'a Compiled, after: &'a Compiled) -> BTreeSet<&'a str> {
    let (before, after) = (texts(before), texts(after));
    let paths: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    paths.into_iter().filter(|path| before.get(path) != after.get(path)).collect()
}

/// Paths of the kernels of entries.
fn files<'a>(entries: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    entries.into_iter().map(|entry| format!("sp4/cuda/{entry}.cu")).collect()
}

fn assert_changed(before: &Compiled, after: &Compiled, entries: &[&str]) {
    let changed: BTreeSet<String> = changed(before, after).into_iter().map(str::to_owned).collect();
    assert_eq!(changed, files(entries.iter().copied()));
}

/// Every line of the lock and every place of the artefacts is still what it was.
fn assert_nothing_moved(before: &Compiled, after: &Compiled) {
    let places = |lock: &str| lock.split("\n\n").map(str::to_owned).collect::<BTreeSet<_>>();
    let (old, new) = (places(&before.lock), places(&after.lock));
    let states = |places: &BTreeSet<String>| places.iter().filter(|p| p.starts_with("[state]")).cloned().collect();
    let lost: Vec<&String> = old.difference(&new).collect();
    let moved: Vec<String> = states(&new);
    assert!(lost.is_empty(), "{lost:?} {moved:?}");
    let words = |a: &Artefacts| a.states.iter().map(|s| (s.name.clone(), s.word)).collect::<BTreeMap<_, _>>();
    assert_eq!(words(&before.artefacts), words(&after.artefacts));
    let place = |s: &Slot| (s.name.clone(), s.index, s.scratch, s.members.clone());
    let slots: BTreeSet<_> = after.artefacts.slots.iter().map(place).collect();
    assert!(before.artefacts.slots.iter().map(place).all(|slot| slots.contains(&slot)));
}

fn slot<'a>(artefacts: &'a Artefacts, name: &str) -> &'a Slot {
    artefacts.slots.iter().find(|s| s.name == name).unwrap()
}

#[test]
fn two_signals_more_cost_two_entries() {
    let (before, after) = (sp4_of_171().compiled(), sp4_of_173().compiled());
    assert_eq!((before.artefacts.isv_len, after.artefacts.isv_len), (171, 173));
    assert_nothing_moved(&before, &after);
    let entries = SANITISER_ENTRIES.map(|entry| entry.split_once('.').unwrap().1);
    assert_changed(&before, &after, &entries);
    assert_ne!(before.artefacts.fingerprint, after.artefacts.fingerprint);
    assert_eq!(after.artefacts, Copy::sp4().compiled().artefacts);
    let place = |name: &str| (slot(&after.artefacts, name).index, slot(&after.artefacts, name).scratch);
    assert_eq!(SANITISERS.map(place), [(171, Some(69)), (172, Some(70))]);
}

#[test]
fn the_two_signals_find_the_same_places_without_being_told() {
    let mut untold = sp4_of_173();
    for (name, place) in SANITISERS.iter().zip(["slot    = 171\nscratch = 69\n", "slot    = 172\nscratch = 70\n"]) {
        untold = untold.edit(&format!("producer.{name}"), place, "");
    }
    assert_eq!(untold.compiled().artefacts.slots, Copy::sp4().compiled().artefacts.slots);
}

#[test]
fn a_checkpoint_from_before_is_refused_with_the_names_of_what_differs() {
    let (before, after) = (sp4_of_171().compiled(), sp4_of_173().compiled());
    let device = device().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("before.safetensors");
    let session = Session::new(&device, &before.artefacts, Real::F32).unwrap();
    session.save(&path, &BTreeMap::new()).unwrap();
    let mut session = Session::new(&device, &after.artefacts, Real::F32).unwrap();
    let isv = session.isv().unwrap();
    let error = session.load(&path).unwrap_err();
    assert_names_differences(&error);
    assert_eq!(session.isv().unwrap(), isv, "a refused file changes nothing");
    let mut session = Session::new(&device, &before.artefacts, Real::F32).unwrap();
    session.load(&path).unwrap();
}

fn assert_names_differences(error: &CheckpointError) {
    let CheckpointError::Fingerprint { differences, .. } = error else { panic!("{error}") };
    let Differences { added, removed, moved } = differences;
    assert_eq!(*added, SANITISERS.map(|name| format!("slot `{name}`")));
    assert!(removed.is_empty(), "{removed:?}");
    let longer: Vec<&str> = moved.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(longer, ["buffer `isv`", "buffer `observed`", "buffer `skipped`", "buffer `smoothing`"]);
    assert!(SANITISERS.iter().all(|name| error.to_string().contains(name)), "{error}");
}

/// Names before and after all others, so that no order of names hides a move.
#[test]
fn a_producer_without_an_index_moves_nothing_and_changes_no_other_text() {
    let before = Copy::sp4().compiled();
    for name in ["a_first", "zz_last"] {
        let single = format!(
            "[producer.{name}]\ndoc = \"One more.\"\nread = {{ q = \"target_q\" }}\nsignal = \"p99(abs(q))\"\n\
             smooth = \"pearl_ad\"\nreset = \"fold\"\nmonitoring = true\n"
        );
        let after = Copy::sp4().with(&single).compiled();
        assert_nothing_moved(&before, &after);
        assert_changed(&before, &after, &[name]);
        assert_eq!((slot(&after.artefacts, name).index, slot(&after.artefacts, name).scratch), (173, Some(71)));
    }
}

#[test]
fn families_and_observations_without_an_index_move_nothing_either() {
    let before = Copy::sp4().compiled();
    for keys in ["monitoring = true", "monitoring = true\nbeside = true", "monitoring = true\nunlisted = true"] {
        let family = format!(
            "[producer.a_first]\ndoc = \"One more.\"\nfor = \"group\"\nread = {{ w = \"params\" }}\n\
             signal = {{ a_family = {{ value = \"rms(w)\" }}, b_only = {{ observed_only = true, value = \"max(w)\" }} }}\n\
             smooth = \"pearl_ad\"\nreset = \"fold\"\n{keys}\n"
        );
        let after = Copy::sp4().with(&family).compiled();
        assert_nothing_moved(&before, &after);
        assert_changed(&before, &after, &["a_first"]);
    }
}

#[test]
fn a_new_law_and_a_new_update_change_no_other_text() {
    let before = Copy::sp4().compiled();
    let law = "[smoothing.plain]\ndoc = \"Half.\"\nstate = []\nmath = \"next.mean = 0.5 * (mean + x)\"\n\
               [producer.a_first]\ndoc = \"One more.\"\nread = { q = \"target_q\" }\nsignal = \"rms(q)\"\n\
               smooth = \"plain\"\nreset = \"fold\"\n\
               [update.b_second]\ndoc = \"Reads it.\"\nover = \"scalar\"\nmath = \"next.b_state = now.a_first\"\n\
               state = { b_state = { reset = \"epoch\", monitoring = true } }\n";
    let after = Copy::sp4().with(law).compiled();
    let places = |a: &Artefacts| a.slots.iter().map(|s| (s.name.clone(), s.index)).collect::<BTreeMap<_, _>>();
    let (old, new) = (places(&before.artefacts), places(&after.artefacts));
    assert!(old.iter().all(|(name, index)| new.get(name) == Some(index)));
    assert!(
        before.artefacts.states.iter().all(|s| after
            .artefacts
            .states
            .iter()
            .any(|t| (&s.name, s.word) == (&t.name, t.word)))
    );
    assert_changed(&before, &after, &["a_first", "b_second"]);
}

#[test]
fn an_edit_changes_the_text_of_its_own_entry_alone() {
    let before = Copy::sp4().compiled();
    for (entry, from, to) in [
        ("producer.target_q_bound", "p99(abs(q))", "quantile(0.95, abs(q))"),
        ("producer.moe", "Use of the experts", "How the experts are used"),
        ("producer.bw_d_h_s2_bound", "pearl_ad", "kalman"),
        ("update.update_utilization_ema", "= seen[0]", "= 2 * seen[0]"),
        ("update.clamp_target_q", "max(now.", "max(prev."),
    ] {
        let after = Copy::sp4().edit(entry, from, to).compiled();
        assert_changed(&before, &after, &[entry.split_once('.').unwrap().1]);
        assert_eq!(before.artefacts.fingerprint, after.artefacts.fingerprint, "{entry}");
    }
}

/// The first system reset slots to 1.0, 1/6, 1/8 while their triples went to 0: Pearl D then ran from a stale mean.
#[test]
fn a_smoothed_slot_has_no_start_of_its_own() {
    let slot = "[slot.given]\ndoc = \"From outside.\"\nexternal = true\nreset = \"fold\"\ninit = 1\n";
    for copy in [
        Copy::sp4().key("producer.aux_label_scale", "init = 1.0"),
        Copy::sp4().edit("producer.vsn_mask", "vsn_mask_ema = {", "vsn_mask_ema = { init = 0.1667,"),
        Copy::sp4().with(slot),
    ] {
        let found = copy.refused();
        let codes: Vec<Code> = found.findings().iter().map(|f| f.code).collect();
        assert_eq!(codes, [Code::SlotStart], "{found}");
        assert!(found.to_string().contains("Pearl A"), "{found}");
    }
}

/// The three numbers of the other half of the contract cannot be given a start either.
#[test]
fn a_smoothing_state_has_no_start_of_its_own() {
    let law = "[smoothing.late]\ndoc = \"Starts late.\"\nstate = { lag = { init = 1 } }\nmath = \"next.mean = x\"\n";
    let found = Copy::sp4().with(law).refused();
    assert_eq!(found.findings()[0].code, Code::ValueUnfit, "{found}");
}

#[test]
fn explore() {
    for group in ["curiosity", "iqn"] {
        let mut c = Copy::sp4();
        for t in c.files.files.values_mut() {
            *t = t
                .lines()
                .filter(|l| !l.starts_with(&format!("{group} ")) || !l.contains("buffers"))
                .collect::<Vec<_>>()
                .join("\n");
        }
        match c.compile() {
            Ok(c) => {
                println!("{group} {} {:?}", c.artefacts.isv_len, slot(&c.artefacts, "weight_bound"));
            }
            Err(e) => println!("{e}"),
        }
    }
    for (n, text) in [
        ("empty group", "[group.none]\ndoc=\"x\"\nbuffers=[]\noptimizer=\"adam\"\nindex=8\n"),
        ("dup index", "[group.none]\ndoc=\"x\"\nbuffers=[\"zz\"]\noptimizer=\"adam\"\nindex=3\n"),
        ("twice in one", "[group.none]\ndoc=\"x\"\nbuffers=[\"zz\", \"zz\"]\noptimizer=\"adam\"\n"),
        ("twice in two", "[group.none]\ndoc=\"x\"\nbuffers=[\"iqn_all\"]\noptimizer=\"adam\"\n"),
        ("odd name", "[group.none]\ndoc=\"x\"\nbuffers=[\"a b\"]\noptimizer=\"adam\"\n"),
        (
            "unused optimizer",
            "[update.sgd]\ndoc=\"x\"\nover=\"group\"\nparam=\"w\"\ngrad=\"g\"\nmath=\"next.w = w - 0.1 * g\"\n",
        ),
        ("external twice", "[external.utilization]\ndoc=\"x\"\nshape=\"[*]\"\n"),
        ("external isv", "[external.isv]\ndoc=\"x\"\nshape=\"[*]\"\n"),
        ("external beside", "[external.beside]\ndoc=\"x\"\nshape=\"[*]\"\n"),
        ("external clamp_engage", "[external.clamp_engage]\ndoc=\"x\"\nshape=\"[*]\"\n"),
        ("external odd", "[external.\"a b\"]\ndoc=\"x\"\nshape=\"[*]\"\n"),
        ("external dotted", "[external.\"iqn_all.params\"]\ndoc=\"x\"\nshape=\"[*]\"\n"),
        ("external inner any", "[external.z]\ndoc=\"x\"\nshape=\"[4, *]\"\n"),
        ("external unused", "[external.z]\ndoc=\"x\"\nshape=\"[4]\"\n"),
        ("slot orphan", "[slot.z]\ndoc=\"x\"\nreset=\"fold\"\n"),
        ("slot external unread", "[slot.z]\ndoc=\"x\"\nreset=\"fold\"\nexternal=true\n"),
        ("slot count 0", "[slot.z]\ndoc=\"x\"\nreset=\"fold\"\nexternal=true\ncount=0\n"),
        ("slot both", "[slot.z]\ndoc=\"x\"\nreset=\"fold\"\nexternal=true\nreserved=true\n"),
        ("state unread", "[state.z]\ndoc=\"x\"\nreset=\"fold\"\n"),
        ("over buffer of table", "[update.z]\ndoc=\"x\"\nover=\"x: iqn_q\"\nmath=\"next.x = x + 1\"\n"),
        ("over two in place", "[update.z]\ndoc=\"x\"\nover=\"x: target_q\"\nmath=\"next.x = x + 1\"\n"),
        ("over unknown", "[update.z]\ndoc=\"x\"\nover=\"x: target\"\nmath=\"next.x = x + 1\"\n"),
        (
            "over with state",
            "[update.z]\ndoc=\"x\"\nover=\"x: target_q\"\nstate={ s = { reset=\"fold\" } }\nmath=\"next.x = x + 1\\nnext.s = s + x\"\n",
        ),
        (
            "over own read",
            "[update.z]\ndoc=\"x\"\nover=\"x: target_q\"\nread={ y = \"q_values\" }\nmath=\"next.x = x + y[0]\"\n",
        ),
        (
            "over i32",
            "[external.zi]\ndoc=\"x\"\nshape=\"[*]\"\ntype=\"i32\"\n[update.z]\ndoc=\"x\"\nover=\"x: zi\"\nmath=\"next.x = x + 1\"\n",
        ),
        ("over param key", "[update.z]\ndoc=\"x\"\nover=\"x: target_q\"\nparam=\"w\"\nmath=\"next.x = x + 1\"\n"),
        ("over no next", "[update.z]\ndoc=\"x\"\nover=\"x: target_q\"\nmath=\"a = x + 1\"\n"),
        (
            "count in scalar",
            "[update.z]\ndoc=\"x\"\nover=\"scalar\"\nstate={ s = { reset=\"fold\", monitoring=true } }\nmath=\"next.s = s\\ncount.c = s > 1\"\n",
        ),
        ("count in buffer", "[update.z]\ndoc=\"x\"\nover=\"x: target_q\"\nmath=\"next.x = x\\ncount.c = x > 1\"\n"),
        (
            "observed_only prev",
            "[update.z]\ndoc=\"x\"\nover=\"scalar\"\nstate={ s = { reset=\"fold\", monitoring=true } }\nmath=\"next.s = prev.elements[iqn]\"\n",
        ),
        (
            "observed_only now",
            "[update.z]\ndoc=\"x\"\nover=\"scalar\"\nstate={ s = { reset=\"fold\", monitoring=true } }\nmath=\"next.s = now.elements[iqn]\"\n",
        ),
        (
            "no member",
            "[update.z]\ndoc=\"x\"\nover=\"scalar\"\nstate={ s = { reset=\"fold\", monitoring=true } }\nmath=\"next.s = now.weight_bound[iqnn]\"\n",
        ),
        (
            "member of single",
            "[update.z]\ndoc=\"x\"\nover=\"scalar\"\nstate={ s = { reset=\"fold\", monitoring=true } }\nmath=\"next.s = now.h_s2_bound[iqn]\"\n",
        ),
        (
            "group read of numbered family",
            "[producer.z]\ndoc=\"x\"\nfor=\"group\"\nread={ w=\"params\" }\nsmooth=\"pearl_ad\"\nreset=\"fold\"\nmonitoring=true\nsignal=\"max(w) + prev.vsn_mask_ema\"\n",
        ),
        (
            "group read of b family",
            "[producer.z]\ndoc=\"x\"\nfor=\"group\"\nread={ w=\"params\" }\nsmooth=\"pearl_ad\"\nreset=\"fold\"\nmonitoring=true\nsignal=\"max(w) + prev.atom_pos_bound\"\n",
        ),
        (
            "numbered member read",
            "[update.z]\ndoc=\"x\"\nover=\"scalar\"\nstate={ s = { reset=\"fold\", monitoring=true } }\nmath=\"next.s = now.vsn_mask_ema[3]\"\n",
        ),
    ] {
        println!("=== {n}");
        match Copy::sp4().with(text).compile() {
            Ok(_) => println!("It compiles."),
            Err(e) => println!("{e}"),
        }
    }
}
