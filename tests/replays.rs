//! What users of the hand-written control plane did, replayed on a copy of its set: signals added, groups split, slots
//! given a start. What cost them a dozen edits costs one entry; what they found at run time does not build.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use unio::checkpoint::{CheckpointError, Differences};
use unio::device::Real;
use unio::interface::{Access, Arg, Artefacts, KernelParam, Launch, Program, ResetPart, Slot, When};
use unio::{Phase, Session};
use unio_codegen::{Code, Compiled, Diagnostics, SetFiles, common, compile, compile_texts};
use unio_tests::{MANIFEST, device, fixture, fixture_text, fixtures};

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
        let end = text[start..].find("\n\n").map_or(text.len(), |len| start + len + 1);
        let own = &text[start..end];
        assert_eq!(own.matches(from).count(), 1, "{from} in {entry}");
        let text = [&text[..start], &own.replace(from, to), &text[end..]].concat();
        self.files.files.insert(path.clone(), text);
        self
    }

    /// The line of a key in an entry's own table.
    fn line_of(&self, entry: &str, key: &str) -> String {
        let header = format!("[{entry}]\n");
        let rest = self.files.files.values().find_map(|text| text.split_once(&header)).unwrap().1;
        let line = rest.lines().find(|line| line.split_whitespace().next() == Some(key));
        format!("{}\n", line.unwrap())
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
        self.compile().expect_err("it builds")
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
        // Another law keeps other numbers beside the mean, and an older checkpoint has not got them.
        assert_eq!(before.artefacts.fingerprint == after.artefacts.fingerprint, to != "kalman", "{entry}");
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

/// What a model set's optimizer groups may look like: two tensors, `cell.w` and `cell.b`.
fn split(groups: &[(&str, &str)]) -> Result<Compiled, Diagnostics> {
    let with = |name: &str| fixture_text(&format!("fail/with/{name}.toml"));
    let cell = with("cell")
        .replace("param  = { w = \"[I]\" }", "param  = { w = \"[I]\", b = \"[]\" }")
        .replace("w[i] * x[i])", "w[i] * x[i]) + b");
    let training = with("training");
    let mut text = training.split("[group.").next().unwrap().to_owned();
    for (name, tensors) in groups {
        text += &format!("[group.{name}]\ndoc = \"Some.\"\ntensors = [{tensors}]\noptimizer = \"sgd\"\n");
    }
    let texts =
        [("t/unio.toml", MANIFEST), ("t/cell.toml", &cell), ("t/wiring.toml", &with("wiring")), ("t/a.toml", &text)];
    compile_texts(&texts)
}

/// A split into three launches once lost 130 tensors.
#[test]
fn a_split_that_leaves_a_tensor_out_or_takes_one_twice_does_not_build() {
    assert!(split(&[("all", "\"cell.*\"")]).is_ok());
    assert!(split(&[("first", "\"cell.w\""), ("second", "\"cell.b\"")]).is_ok());
    for (groups, code, name) in [
        (&[("first", "\"cell.w\"")][..], Code::ParamUnowned, "`cell.b`"),
        (&[("first", "\"cell.*\""), ("second", "\"cell.b\"")], Code::ParamTwice, "`cell.b` is in `first` too"),
        (&[("first", "\"cell.w\", \"cell.*\"")], Code::ParamTwice, "`cell.w` is in `first` too"),
    ] {
        let found = split(groups).unwrap_err();
        assert!(found.findings().iter().any(|f| f.code == code && f.label.contains(name)), "{found}");
    }
}

#[test]
fn a_split_that_takes_a_sub_buffer_twice_does_not_build() {
    let twice = |from, to| Copy::sp4().edit("group", from, to).refused();
    for (found, name) in [
        (twice("[\"attn_all\"]", "[\"attn_all\", \"iqn_all\"]"), "`iqn_all` is in `attn` too"),
        (twice("[\"attn_all\"]", "[\"attn_all\", \"attn_all\"]"), "`attn_all` stands in `attn` already"),
        (twice("[\"curiosity_w1\",", "[\"iql_low_all\", \"curiosity_w1\","), "`iql_low_all` is in"),
    ] {
        let codes: Vec<Code> = found.findings().iter().map(|f| f.code).collect();
        assert_eq!(codes, [Code::ParamTwice], "{found}");
        assert!(found.findings()[0].label.contains(name), "{found}");
    }
    let found = twice("[\"attn_all\"]", "[]");
    assert_eq!(found.findings()[0].code, Code::GroupEmpty, "{found}");
}

/// The group's own line, as the file has it.
fn group_line(group: &str) -> String {
    let text = fixture_text("../../specs/sp4/groups.toml");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(group));
    format!("{}\n", line.unwrap())
}

#[test]
fn a_set_without_its_last_group_builds_and_its_slots_stay_free() {
    let (whole, without) = (Copy::sp4().compiled(), Copy::sp4().edit("group", &group_line("curiosity"), "").compiled());
    let indices = |a: &Artefacts| a.slots.iter().map(|s| (s.name.clone(), s.index, s.scratch)).collect::<Vec<_>>();
    assert_eq!(indices(&whole.artefacts), indices(&without.artefacts));
    assert_eq!(without.artefacts.isv_len, 173);
    assert!(!launches(&without).iter().any(|l| l.name.contains("curiosity")));
    // With one sub-buffer a group, the counts of 256 blocks are few enough for one kernel, and what has other lengths has a
    // form for few elements too.
    assert_changed(&whole, &without, &["moment_diagnostics", "param_group_oracle", "rate_deficit"]);
}

/// Without a group in their midst, the slots of those behind it would move.
#[test]
fn a_set_without_a_group_in_the_midst_is_refused() {
    let found = Copy::sp4().edit("group", &group_line("iqn"), "").refused();
    let codes: Vec<Code> = found.findings().iter().map(|f| f.code).collect();
    assert_eq!(codes, [Code::ValueUnfit], "{found}");
    assert!(found.findings()[0].label.contains("no group has the place 3"), "{found}");
}

/// A session whose buffers all hold something, save those of absent sub-buffers.
fn filled(artefacts: &Artefacts, absent: &str) -> Session {
    let mut session = Session::new(&device().unwrap(), artefacts, Real::F32).unwrap();
    for buffer in artefacts.program.as_ref().unwrap().buffers.iter().filter(|b| b.external) {
        let row: usize = buffer.shape.iter().filter(|n| **n > 0).product();
        let len = if buffer.name.starts_with(absent) { 0 } else { buffer.len.unwrap_or(8 * row) };
        let values: Vec<f64> = (0..len).map(|n| 0.1 + 0.01 * n as f64).collect();
        session.write_real(&buffer.name, &values).unwrap();
    }
    session
}

#[test]
fn a_group_that_is_absent_at_run_time_is_skipped_and_its_slots_stay() {
    let artefacts = Copy::sp4().compiled().artefacts;
    let mut session = filled(&artefacts, "iqn_all.");
    for _ in 0..3 {
        session.run(Phase::Train).unwrap();
    }
    for family in ["weight_bound", "adam_m_bound", "adam_v_bound", "wd_rate"] {
        let slots = session.slot_named(family).unwrap();
        assert_eq!(slots[3], 0.0, "{family}");
        assert!((0..8).filter(|g| *g != 3).all(|g| slots[g] != 0.0), "{family}: {slots:?}");
    }
    assert_eq!(session.first_non_finite().unwrap().map(|f| f.to_string()), None);
    assert!(session.dump("skipped").unwrap().iter().all(|n| *n == 0.0));
    let engaged = session.dump("clamp_engage").unwrap();
    assert!(engaged[3 * 256..4 * 256].iter().all(|n| *n == 0.0));
}

/// A group that goes away keeps what it had: nothing stale is measured again.
#[test]
fn a_group_that_goes_away_keeps_its_slots() {
    let artefacts = Copy::sp4().compiled().artefacts;
    let mut session = filled(&artefacts, "none");
    session.run(Phase::Train).unwrap();
    let kept = |session: &Session| {
        let families = ["weight_bound", "adam_m_bound", "adam_v_bound", "wd_rate"];
        families.map(|family| session.slot_named(family).unwrap()[3])
    };
    // Not the same numbers as before, so that measuring them again would move the mean.
    session.write_real("iqn_all.params", &[0.7; 8]).unwrap();
    session.run(Phase::Train).unwrap();
    let (before, smoothing) = (kept(&session), session.dump("smoothing").unwrap()[3 * 8..3 * 9].to_vec());
    for array in ["params", "grads", "m", "v"] {
        session.write_real(&format!("iqn_all.{array}"), &[]).unwrap();
    }
    session.run(Phase::Train).unwrap();
    assert_eq!(kept(&session), before);
    assert_eq!(session.dump("smoothing").unwrap()[3 * 8..3 * 9], smoothing);
}

fn launches(compiled: &Compiled) -> &[Launch] {
    &compiled.artefacts.program.as_ref().unwrap().train
}

/// Entry of a launch, without group, sub-buffer and step.
fn entry(launch: &Launch) -> &str {
    launch.name.split(['.', '[']).next().unwrap()
}

/// Places of an entry's launches in the step, first and last.
fn places(launches: &[Launch], name: &str) -> (usize, usize) {
    let found = |l: &Launch| entry(l) == name;
    (launches.iter().position(found).unwrap(), launches.iter().rposition(found).unwrap())
}

/// All launches that must have finished before one may start, however indirectly.
fn before(launches: &[Launch], at: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut waiting = launches[at].after.clone();
    while let Some(next) = waiting.pop() {
        if found.insert(next) {
            waiting.extend(&launches[next].after);
        }
    }
    found
}

/// Each buffer that a clamp works on, the bound it reads.
const CLAMPED: [(&str, usize); 9] = [
    ("target_q", 131),
    ("atom_positions_0", 132),
    ("atom_positions_1", 133),
    ("atom_positions_2", 134),
    ("atom_positions_3", 135),
    ("save_h_s2", 169),
    ("bw_d_h_s2", 171),
    ("d_value_logits", 172),
    ("d_adv_logits", 172),
];

#[test]
fn bounds_are_measured_before_their_clamps_in_order_and_by_edges() {
    let compiled = Copy::sp4().compiled();
    let (artefacts, launches) = (&compiled.artefacts, launches(&compiled));
    let program = artefacts.program.as_ref().unwrap();
    for (buffer, index) in CLAMPED {
        let clamp = launches.iter().position(|l| writes(artefacts, program, l, buffer)).unwrap();
        let slot = artefacts.slots.iter().find(|s| (s.index..s.index + s.members.len().max(1)).contains(&index));
        let producer = slot.unwrap().producer.clone().unwrap();
        let (first, last) = places(launches, &producer);
        assert!(last < clamp, "{producer} after the clamp of {buffer}");
        let earlier = before(launches, clamp);
        assert!((first..=last).filter(|l| entry(&launches[*l]) == producer).all(|l| earlier.contains(&l)), "{buffer}");
    }
}

/// Whether a launch changes a buffer of the run.
fn writes(artefacts: &Artefacts, program: &Program, launch: &Launch, buffer: &str) -> bool {
    let params = &artefacts.kernels[launch.kernel].params;
    params.iter().zip(&launch.args).any(|(param, arg)| match (param, arg) {
        (KernelParam::Buffer { access: Access::InOut | Access::Out, .. }, Arg::Buffer { buffer: at, .. }) => {
            program.buffers[*at].name == buffer
        }
        _ => false,
    })
}

#[test]
fn per_group_producers_run_after_the_optimizers() {
    let compiled = Copy::sp4().compiled();
    let launches = launches(&compiled);
    let optimizers: BTreeSet<usize> =
        (0..launches.len()).filter(|l| ["adam", "adam_l1"].contains(&entry(&launches[*l]))).collect();
    assert_eq!(optimizers.len(), 11, "seven groups of one sub-buffer, one of four");
    let groups = ["param_group_oracle", "moment_diagnostics", "rate_deficit"];
    for at in (0..launches.len()).filter(|l| groups.contains(&entry(&launches[*l]))) {
        assert!(before(launches, at).is_superset(&optimizers), "{}", launches[at].name);
    }
}

/// Every kernel is launched, no launch is there twice, and only what runs once a group, a
/// sub-buffer, a buffer of a union or a site of a clamp runs more than once.
#[test]
fn everything_fires_exactly_once_a_step() {
    let compiled = Copy::sp4().compiled();
    let launches = launches(&compiled);
    let names: BTreeSet<&str> = launches.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names.len(), launches.len());
    for (at, kernel) in compiled.artefacts.kernels.iter().enumerate() {
        let count = launches.iter().filter(|l| l.kernel == at).count();
        assert!([1, 2, 3, 8, 10, 11].contains(&count), "{} is launched {count} times", kernel.symbol);
    }
    let finishing = launches.iter().filter(|l| l.name.ends_with(".finish") || !l.name.contains('.'));
    let mut seen = BTreeSet::new();
    for launch in finishing.filter(|l| !entry(l).starts_with("adam")) {
        assert!(seen.insert(launch.name.clone()), "{}", launch.name);
    }
}

#[test]
fn nothing_is_atomic_and_no_number_comes_from_the_host() {
    let compiled = Copy::sp4().compiled();
    for (path, text) in texts(&compiled) {
        assert!(!text.to_lowercase().contains("atomic"), "{path}");
        let heads = text.split("UNIO_KERNEL(").skip(1).map(|kernel| kernel.split(") {").next().unwrap());
        for param in
            heads.flat_map(|head| head.lines().skip(1)).map(str::trim).filter(|line| !line.starts_with("UNIO_"))
        {
            let by_value = param.trim_end_matches(',');
            assert!(by_value.is_empty() || by_value.starts_with("int "), "{path}: {param}");
        }
    }
    for launch in launches(&compiled) {
        let kernel = &compiled.artefacts.kernels[launch.kernel];
        for (param, arg) in kernel.params.iter().zip(&launch.args) {
            assert!(is_planned(param, arg), "{}: {param:?} {arg:?}", launch.name);
        }
    }
}

/// A pointer, or a number that follows from lengths and the plan alone.
fn is_planned(param: &KernelParam, arg: &Arg) -> bool {
    matches!(
        (param, arg),
        (KernelParam::Buffer { .. }, Arg::Buffer { .. })
            | (KernelParam::Count { .. }, Arg::Count(_) | Arg::CountOf { .. })
            | (KernelParam::Number { .. }, Arg::Number(_))
            | (KernelParam::Rows { .. }, Arg::Rows { .. })
    )
}

#[test]
fn slots_go_back_with_all_that_belongs_to_them() {
    let artefacts = Copy::sp4().compiled().artefacts;
    for slot in artefacts.slots.iter().filter(|s| s.producer.is_some()) {
        let reset = artefacts.resets.iter().find(|r| r.name == slot.name).unwrap();
        assert_eq!((reset.when, slot.reset), (When::Fold, When::Fold), "{}", slot.name);
        let listed = slot.name != "q_abs_ref";
        let bank = |name: &str| if listed { name.to_owned() } else { format!("{name}_unlisted") };
        let wanted = [("isv".to_owned(), 1), (bank("observed"), 1), (bank("skipped"), 1), (bank("smoothing"), 3)];
        assert_eq!(
            parts(&artefacts, &reset.parts),
            wanted.map(|(b, width)| (b, width * slot.members.len().max(1))),
            "{}",
            slot.name
        );
        let starts: Vec<usize> = reset.parts.iter().map(|part| part.start).collect();
        assert_eq!(starts[0], slot.index, "{}", slot.name);
        assert!(slot.scratch.is_none_or(|s| starts[1..] == [s, s, 3 * s]), "{}: {starts:?}", slot.name);
        assert!(reset.parts.iter().all(|part| part.value == 0.0), "{}", slot.name);
    }
}

/// Buffer and length of each part of a reset.
fn parts(artefacts: &Artefacts, parts: &[ResetPart]) -> [(String, usize); 4] {
    let buffers = &artefacts.program.as_ref().unwrap().buffers;
    let parts: Vec<_> = parts.iter().map(|part| (buffers[part.buffer].name.clone(), part.len)).collect();
    parts.try_into().unwrap()
}

/// Resetting the slow average was tried and reverted; the host owns the rate, and others the fingerprint's words.
#[test]
fn of_all_averages_only_the_slow_one_survives_a_fold() {
    let artefacts = Copy::sp4().compiled().artefacts;
    let survive: BTreeSet<&str> =
        artefacts.resets.iter().filter(|r| r.when == When::Never).map(|r| r.name.as_str()).collect();
    assert_eq!(survive, BTreeSet::from(["grad_norm_slow", "layout_fingerprint", "learning_rate"]));
    let registered: BTreeSet<&str> = artefacts.resets.iter().map(|r| r.name.as_str()).collect();
    let states = artefacts.states.iter().map(|s| s.name.as_str());
    assert!(states.chain(["clamp_engage"]).all(|name| registered.contains(name)));
}

/// An entry without a reset arm does not build; nor does the reverse, because there is no other place to write one.
#[test]
fn a_reset_forgotten_does_not_build() {
    for entry in ["producer.target_q_bound", "producer.moe", "producer.param_group_oracle", "state.learning_rate"] {
        let text = Copy::sp4();
        let line = text.line_of(entry, "reset");
        let found = text.edit(entry, &line, "").refused();
        assert!(found.findings().iter().all(|f| f.code == Code::ResetMissing), "{found}");
    }
}

/// Constructs that the plane is made of, each in a small set of its own.
#[test]
fn small_sets_of_every_construct_compile() {
    for name in ["families", "unions", "counted", "in_place"] {
        let files = fixtures::files(&fixture_text(&format!("pass/{name}.toml")));
        let compiled = compile_texts(&fixtures::borrowed(&files)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let launched: BTreeSet<usize> = launches(&compiled).iter().map(|l| l.kernel).collect();
        assert_eq!(launched.len(), compiled.artefacts.kernels.len(), "{name}: a kernel that nobody launches");
        Session::new(&device().unwrap(), &compiled.artefacts, Real::F32).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn members_and_unions_lie_where_the_set_says() {
    let files = fixtures::files(&fixture_text("pass/families.toml"));
    let families = compile_texts(&fixtures::borrowed(&files)).unwrap().artefacts;
    assert_eq!(slot(&families, "column").index, 2);
    assert_eq!(slot(&families, "column").members, ["0", "1", "2", "3"]);
    assert_eq!(slot(&families, "side").members, ["near", "far"]);
    let files = fixtures::files(&fixture_text("pass/counted.toml"));
    let counted = compile_texts(&fixtures::borrowed(&files)).unwrap().artefacts;
    assert_eq!(slot(&counted, "bound").members, ["trunk", "head"]);
    let buffers = &counted.program.as_ref().unwrap().buffers;
    assert_eq!(buffers.iter().find(|b| b.name == "engaged").unwrap().len, Some(3 * 256));
}

/// Whether every launch that reads a buffer which another changes has its place before or after that one by edges: a
/// graph runs side by side what no edge orders.
fn unordered(compiled: &Compiled) -> Vec<String> {
    let (launches, artefacts) = (launches(compiled), &compiled.artefacts);
    let program = artefacts.program.as_ref().unwrap();
    let mut loose = Vec::new();
    for buffer in program.buffers.iter().enumerate().filter(|(_, b)| b.external) {
        for writer in (0..launches.len()).filter(|l| writes(artefacts, program, &launches[*l], &buffer.1.name)) {
            let touches =
                |l: &Launch| l.args.iter().any(|a| matches!(a, Arg::Buffer { buffer: b, .. } if *b == buffer.0));
            for other in (0..launches.len()).filter(|l| *l != writer && touches(&launches[*l])) {
                if !before(launches, writer).contains(&other) && !before(launches, other).contains(&writer) {
                    loose.push(format!("{} and {}", launches[other].name, launches[writer].name));
                }
            }
        }
    }
    loose
}

#[test]
fn whatever_reads_a_clamped_buffer_is_ordered_by_edges() {
    assert_eq!(unordered(&Copy::sp4().compiled()), Vec::<String>::new());
}

#[test]
fn another_reader_of_a_clamped_buffer_is_ordered_by_edges() {
    let reader = "[producer.mean_target]\ndoc = \"Not the bound.\"\nread = { q = \"target_q\" }\nsignal = \"rms(q)\"\n\
                  smooth = \"pearl_ad\"\nreset = \"fold\"\nmonitoring = true\n";
    assert_eq!(unordered(&Copy::sp4().with(reader).compiled()), Vec::<String>::new());
}

/// A word is never given away: a state that is renamed finds room behind the others, and the buffer reaches so far.
#[test]
fn a_renamed_state_has_room() {
    let set = |name: &str| {
        let entry = format!(
            "[update.u]\ndoc = \"x\"\nover = \"scalar\"\nmath = \"next.{name} = {name} + 1\\nnext.z = z + 1\"\n\
             [update.u.state]\n{name} = {{ reset = \"fold\", monitoring = true }}\n\
             z = {{ reset = \"fold\", monitoring = true }}\n"
        );
        SetFiles::from_texts([("t/unio.toml", "version = 1\nname = \"t\"\n"), ("t/a.toml", entry.as_str())])
    };
    let before = unio_codegen::compile(&set("a"), &[], "").unwrap();
    let after = unio_codegen::compile(&set("b"), &[], &before.lock).unwrap().artefacts;
    let words: Vec<usize> = after.states.iter().map(|s| s.word).collect();
    let buffer = after.program.as_ref().unwrap().buffers.iter().find(|b| b.name == "state").unwrap();
    assert!(words.iter().all(|word| *word < buffer.len.unwrap()), "{words:?} in {:?}", buffer.len);
    assert!(words.contains(&2), "{words:?}");
}
