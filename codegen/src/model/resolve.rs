//! From entries as written to a model.

use std::collections::{BTreeMap, BTreeSet};

use super::layout::{self, Fixed, Lock};
use super::types::{External, Group, Model, Network, Over, Producer, Slot, Smoothing, Source, State, Update};
use super::{check, network, signals};
use crate::diagnostics::{Code, Diagnostics, Loc, Report};
use crate::math::{Declared, Elem, Role};
use crate::spec::entries::{self, Reset, Str};
use crate::spec::equation::{ExprKind, Statement, parse_shape, parse_statements};
use crate::spec::{Entry, Spec, loc_of};

/// Resolves all names of a set and checks it; also gives the new layout.
///
/// # Errors
/// Whatever does not resolve, all of it at once.
pub fn resolve(spec: &Spec, lock: &Lock) -> Result<(Model, Lock), Diagnostics> {
    let mut r = Resolver { spec, report: Report::default() };
    r.check_names();
    let network = network::resolve(spec, &mut r.report);
    let externals = r.externals();
    let groups = match &network {
        Some(resolved) => resolved.groups.clone(),
        None => network::external_groups(spec, &mut r.report),
    };
    let (mut slots, fixed) = r.slots(&groups);
    let used_optimizers: BTreeSet<&str> = groups.iter().map(|g| g.optimizer.as_str()).collect();
    let updates = r.updates(network.as_ref().map(|n| &n.network), &used_optimizers);
    let mut states = r.states();
    let lock = layout::place(&mut slots, &fixed, &mut states, lock, &mut r.report);
    let model = Model {
        set: spec.set.name.clone(),
        constants: spec.constants.iter().map(|c| (c.name.clone(), c.keys)).collect(),
        smoothings: r.smoothings(&slots),
        producers: r.producers(network.as_ref().map(|n| &n.network), &groups),
        slots,
        states,
        updates,
        groups: groups.into_iter().map(network::GroupDraft::finish).collect::<Vec<Group>>(),
        externals,
        network: network.map(|n| n.network),
        files: spec.files.clone(),
    };
    check::check(&model, &mut r.report);
    r.report.finish((model, lock), &spec.files)
}

struct Resolver<'a> {
    spec: &'a Spec,
    report: Report,
}

impl Resolver<'_> {
    /// Names are legal, and no two entries that a name may stand for share one.
    fn check_names(&mut self) {
        let mut seen: BTreeMap<(&str, String), Loc> = BTreeMap::new();
        let spec = self.spec;
        let mut all: Vec<(&str, &str, &Loc)> = Vec::new();
        all.extend(spec.constants.iter().map(|e| ("value", e.name.as_str(), &e.loc)));
        all.extend(spec.slots.iter().map(|e| ("value", e.name.as_str(), &e.loc)));
        all.extend(spec.states.iter().map(|e| ("value", e.name.as_str(), &e.loc)));
        all.extend(spec.smoothings.iter().map(|e| ("smoothing", e.name.as_str(), &e.loc)));
        all.extend(spec.producers.iter().map(|e| ("kernel", e.name.as_str(), &e.loc)));
        all.extend(spec.updates.iter().map(|e| ("kernel", e.name.as_str(), &e.loc)));
        all.extend(spec.blocks.iter().map(|e| ("block", e.name.as_str(), &e.loc)));
        all.extend(spec.groups.iter().map(|e| ("group", e.name.as_str(), &e.loc)));
        all.extend(spec.models.iter().map(|e| ("model", e.name.as_str(), &e.loc)));
        all.extend(spec.externals.iter().map(|e| ("buffer", e.name.as_str(), &e.loc)));
        for (kind, name, loc) in all {
            network::check_name(name, loc, &mut self.report);
            if let Some(other) = seen.insert((kind, name.to_ascii_lowercase()), loc.clone()) {
                let place = spec.files.provenance(&other);
                self.report.push(Code::EntryTwice, loc, format!("`{name}` stands at {place} too"));
            }
        }
        network::check_name(&spec.set.name, &spec.set.loc, &mut self.report);
        self.check_constants();
        self.check_used_smoothings();
    }

    /// A constant that is no number would reach generated text.
    fn check_constants(&mut self) {
        for constant in self.spec.constants.iter().filter(|c| !c.keys.is_finite()) {
            let label = format!("`{}` is {}", constant.name, constant.keys);
            self.report.push_note(Code::ValueUnfit, &constant.loc, label, "a constant is a finite number");
        }
    }

    /// A law of the set itself that no producer uses is a forgotten wire; a set without producers is a library.
    fn check_used_smoothings(&mut self) {
        let spec = self.spec;
        if spec.producers.is_empty() && spec.models.is_empty() {
            return;
        }
        let own = spec.smoothings.iter().filter(|s| s.loc.file < spec.first_included);
        for law in own.filter(|s| !spec.producers.iter().any(|p| *p.keys.smooth.get_ref() == s.name)) {
            self.report.push(Code::EntryUnused, &law.loc, format!("no producer is smoothed by `{}`", law.name));
        }
    }

    fn externals(&mut self) -> Vec<External> {
        let spec = self.spec;
        let mut externals = Vec::new();
        for entry in &spec.externals {
            let (file, keys) = (entry.loc.file, &entry.keys);
            network::check_buffer_name(&entry.name, &entry.loc, &mut self.report);
            network::check_any_length(spec, file, &keys.shape, true, &mut self.report);
            let shape = network::extents(spec, file, &keys.shape, &BTreeMap::new(), &mut self.report);
            externals.push(External { name: entry.name.clone(), shape, elem: elem(keys.elem) });
        }
        externals
    }

    fn reset(&mut self, reset: Option<Reset>, name: &str, loc: &Loc) -> Reset {
        if reset.is_none() {
            self.report.push(Code::ResetMissing, loc, format!("when does `{name}` return to its start?"));
        }
        reset.unwrap_or(Reset::Never)
    }

    /// Slots of producers and slots without one; and the indices that the spec fixes.
    fn slots(&mut self, groups: &[network::GroupDraft]) -> (Vec<Slot>, Fixed) {
        let mut slots = Vec::new();
        let mut fixed = Fixed::default();
        let spec = self.spec;
        for entry in &spec.slots {
            let keys = &entry.keys;
            let reset = if keys.reserved { Reset::Never } else { self.reset(keys.reset, &entry.name, &entry.loc) };
            self.check_given_slot(entry);
            if let Some(index) = &keys.index {
                fixed.slots.insert(entry.name.clone(), *index.get_ref() as usize);
            }
            let members = (0..keys.count.filter(|n| *n > 1).unwrap_or(0)).map(|n| n.to_string()).collect();
            slots.push(Slot {
                members,
                reserved: keys.reserved,
                fingerprint: keys.fingerprint,
                reset,
                ..blank_slot(&entry.name, &keys.doc, &entry.loc)
            });
        }
        for entry in &spec.producers {
            let reset = self.reset(entry.keys.reset, &entry.name, &entry.loc);
            let members: Vec<String> = match &entry.keys.each {
                Some(_) => groups.iter().map(|g| g.name.clone()).collect(),
                None => Vec::new(),
            };
            for signal in signals::written(entry) {
                signals::check_places(entry, &signal, &mut self.report);
                let name = signal.name.to_owned();
                fixed.slots.extend(signal.slot.map(|index| (name.clone(), index as usize)));
                fixed.scratch.extend(signal.scratch.map(|index| (name, index as usize)));
                slots.push(Slot {
                    members: if signal.members.is_empty() { members.clone() } else { signal.members },
                    producer: Some((entry.name.clone(), signal.name.to_owned())),
                    smooth: Some(entry.keys.smooth.get_ref().clone()),
                    reset,
                    monitoring: entry.keys.monitoring || signal.monitoring,
                    listed: !entry.keys.unlisted && !entry.keys.beside && !signal.observed_only,
                    beside: entry.keys.beside && !signal.observed_only,
                    observed_only: signal.observed_only,
                    ..blank_slot(signal.name, signal.doc.unwrap_or(&entry.keys.doc), &signal.loc)
                });
            }
        }
        self.check_slot_names(&slots);
        (slots, fixed)
    }

    /// A slot that no producer steers is written by someone outside, or kept free.
    fn check_given_slot(&mut self, entry: &Entry<entries::Slot>) {
        let keys = &entry.keys;
        if !keys.reserved && !keys.external {
            self.report.push(Code::WriterMissing, &entry.loc, format!("no producer steers `{}`", entry.name));
        }
        if keys.count == Some(0) {
            self.report.push(Code::SizeIllegal, &entry.loc, format!("`{}` takes 0 indices", entry.name));
        }
    }

    fn check_slot_names(&mut self, slots: &[Slot]) {
        let mut seen: BTreeMap<String, &Slot> = BTreeMap::new();
        let states = self.spec.states.iter().map(|s| &s.name).chain(self.spec.constants.iter().map(|c| &c.name));
        let taken: BTreeSet<String> = states.map(|n| n.to_ascii_lowercase()).collect();
        for slot in slots {
            let key = slot.name.to_ascii_lowercase();
            network::check_name(&slot.name, &slot.loc, &mut self.report);
            if taken.contains(&key) {
                self.report.push(Code::EntryTwice, &slot.loc, format!("`{}` is a state or a constant too", slot.name));
            }
            // Two entries of one kind and name are reported as such.
            if let Some(other) = seen.insert(key, slot)
                && !self.report.is_told(Code::EntryTwice, &slot.loc)
            {
                let place = self.spec.files.provenance(&other.loc);
                self.report.push(
                    Code::TwoWriters,
                    &slot.loc,
                    format!("`{}` is written by the entry at {place} too", slot.name),
                );
            }
        }
    }

    fn states(&mut self) -> Vec<State> {
        let spec = self.spec;
        let mut states = Vec::new();
        for entry in &spec.states {
            let reset = self.reset(entry.keys.reset, &entry.name, &entry.loc);
            states.push(State {
                name: entry.name.clone(),
                doc: entry.keys.doc.clone(),
                word: 0,
                elem: elem(entry.keys.elem),
                init: entry.keys.init,
                reset,
                writer: None,
                monitoring: false,
                loc: entry.loc.clone(),
            });
        }
        for entry in spec.updates.iter().filter(|u| u.keys.over.get_ref() != "group") {
            for (name, loc, keys) in crate::spec::names(entry.loc.file, &entry.keys.state) {
                let reset = self.reset(keys.reset, name, &loc);
                states.push(State {
                    name: name.to_owned(),
                    doc: entry.keys.doc.clone(),
                    word: 0,
                    elem: elem(keys.elem),
                    init: keys.init,
                    reset,
                    writer: Some(entry.name.clone()),
                    monitoring: keys.monitoring,
                    loc,
                });
            }
        }
        self.check_state_names(&states);
        states
    }

    fn check_state_names(&mut self, states: &[State]) {
        let mut seen: BTreeMap<String, &State> = BTreeMap::new();
        for state in states {
            network::check_name(&state.name, &state.loc, &mut self.report);
            if !state.init.is_finite() {
                let label = format!("`{}` starts at {}", state.name, state.init);
                self.report.push_note(Code::ValueUnfit, &state.loc, label, "a start is a finite number");
            }
            if let Some(other) = seen.insert(state.name.to_ascii_lowercase(), state) {
                let place = self.spec.files.provenance(&other.loc);
                self.report.push(Code::TwoWriters, &state.loc, format!("`{}` is declared at {place} too", state.name));
            }
        }
    }

    fn smoothings(&mut self, slots: &[Slot]) -> Vec<Smoothing> {
        let spec = self.spec;
        for entry in &spec.producers {
            let law = &entry.keys.smooth;
            if !spec.smoothings.iter().any(|s| s.name == *law.get_ref()) {
                let loc = loc_of(entry.loc.file, law);
                self.report.push_unknown(
                    Code::NameUnknown,
                    &loc,
                    format!("no smoothing `{}`", law.get_ref()),
                    law.get_ref(),
                    spec.smoothings.iter().map(|s| s.name.as_str()),
                );
            }
        }
        let used: BTreeSet<&str> = slots.iter().filter_map(|s| s.smooth.as_deref()).collect();
        let smoothings = spec.smoothings.iter().filter(|s| used.contains(s.name.as_str()));
        smoothings.map(|entry| smoothing(spec, entry, &mut self.report)).collect()
    }

    fn producers(&mut self, network: Option<&Network>, groups: &[network::GroupDraft]) -> Vec<Producer> {
        let spec = self.spec;
        let mut producers = Vec::new();
        for entry in &spec.producers {
            let file = entry.loc.file;
            if let Some(each) = entry.keys.each.as_ref().filter(|e| e.get_ref() != "group" || groups.is_empty()) {
                self.report.push_note(
                    Code::ValueUnfit,
                    &loc_of(file, each),
                    match each.get_ref().as_str() {
                        "group" => "this set has no group".to_owned(),
                        other => format!("`{other}` is nothing that an entry runs for"),
                    },
                    "write `for = \"group\"` in a set with groups, or leave it out to run once",
                );
            }
            let signals = signals::resolve(spec, entry, &mut self.report);
            let mut read = Vec::new();
            let mut measured: Option<Measured> = None;
            for (name, loc, value) in crate::spec::names(file, &entry.keys.read) {
                self.check_read_name(name, &loc, &signals);
                if let Some((source, shape, elem)) = self.source(value, file, network) {
                    let used = read_shape(name, &signals, shape.clone());
                    let counted = if let Source::Counter(_) = source { Elem::Real } else { elem };
                    self.check_measured(
                        &loc_of(file, value),
                        counted,
                        Measured::of(&source, &shape, &used),
                        &mut measured,
                    );
                    read.push((name.to_owned(), source, used, elem));
                }
            }
            let union = self.union(entry, network, &signals, &mut read);
            self.check_schedule(entry, union, groups);
            producers.push(Producer {
                union,
                schedule: entry.keys.schedule,
                name: entry.name.clone(),
                doc: entry.keys.doc.clone(),
                per_group: entry.keys.each.is_some(),
                read,
                signals,
                smooth: entry.keys.smooth.get_ref().clone(),
                loc: entry.loc.clone(),
            });
        }
        producers
    }

    /// A launch walks over all its buffers together, and takes their elements for real numbers.
    fn check_measured(&mut self, loc: &Loc, elem: Elem, found: Measured, first: &mut Option<Measured>) {
        if elem != Elem::Real {
            let note = "measure a tensor of real numbers";
            self.report.push_note(Code::TypeMismatch, loc, "this holds integers", note);
        }
        let known = *first.get_or_insert(found);
        if !known.fits(found) {
            let label = format!("this has {found}, what stands before it {known}");
            let note = "an entry walks over its buffers element by element: measure this one in an entry of its own";
            self.report.push_note(Code::ShapeMismatch, loc, label, note);
        }
    }

    fn check_read_name(&mut self, name: &str, loc: &Loc, signals: &[super::Signal]) {
        network::check_name(name, loc, &mut self.report);
        if signals.iter().any(|s| s.target == name) {
            let label = format!("`{name}` is a signal of this entry");
            self.report.push_note(Code::EntryTwice, loc, label, "give the buffer another name here");
        }
    }

    /// What stands in a union is real, counted once, and has rows like the others.
    fn check_member(
        &mut self,
        loc: &Loc,
        source: &Source,
        elem: Elem,
        (used, row): (&[usize], &[usize]),
        before: &[Source],
    ) {
        let whole = !matches!(source, Source::Buffer(_));
        if elem != Elem::Real || whole {
            let label = if whole { "this is spread over the groups" } else { "this holds integers" };
            self.report.push_note(Code::TypeMismatch, loc, label, "a union is one of buffers of real numbers");
        } else if before.contains(source) {
            let note = "remove it: its elements would count twice";
            self.report.push_note(Code::EntryTwice, loc, "this buffer is in the union already", note);
        } else if used != row {
            let label = format!("its rows have {} elements, those before it {}", row_len(used), row_len(row));
            self.report.push_note(Code::ShapeMismatch, loc, label, "a union is one of buffers with the same rows");
        }
    }

    /// The first design knows one buffer at a time.
    fn check_schedule(&mut self, entry: &Entry<entries::Producer>, union: usize, groups: &[network::GroupDraft]) {
        let split = entry.keys.each.is_some() && groups.iter().any(|g| g.buffers.len() > 1);
        if entry.keys.schedule == entries::ProducerSchedule::Linear && (union > 1 || split) {
            let note = "leave `schedule` out: counts are joined over the union";
            self.report.push_note(Code::ValueUnfit, &entry.loc, "linear bins measure one buffer, not a union", note);
        }
    }

    /// Names that stand for several buffers; gives how many, 1 without a union.
    fn union(
        &mut self,
        entry: &Entry<entries::Producer>,
        network: Option<&Network>,
        signals: &[super::Signal],
        read: &mut Vec<(String, Source, Vec<usize>, Elem)>,
    ) -> usize {
        let file = entry.loc.file;
        let mut count = None;
        for (name, loc, sources) in crate::spec::names(file, &entry.keys.union) {
            let mut members = Vec::new();
            let mut shape = None;
            self.check_read_name(name, &loc, signals);
            for value in sources {
                let Some((source, whole, elem)) = self.source(value, file, network) else { continue };
                let used = read_shape(name, signals, whole);
                let row = shape.get_or_insert(used.clone());
                self.check_member(&loc_of(file, value), &source, elem, (&used, row), &members);
                members.push(source);
            }
            let shape = shape.unwrap_or(vec![0]);
            let slip = match (entry.keys.each.is_some(), entry.keys.read.is_empty(), count) {
                (true, ..) => Some("an entry that runs once a group reads its group's buffers".to_owned()),
                (_, false, _) => Some("an entry reads unions or single buffers, not both".to_owned()),
                _ if sources.is_empty() => Some(format!("`{name}` stands for no buffer")),
                (.., Some(n)) if n != sources.len() => {
                    Some(format!("{} buffers, and {n} for the name before", sources.len()))
                }
                _ => None,
            };
            if let Some(slip) = slip {
                let cure =
                    "all names of such an entry stand for unions of equally many buffers, walked over one by one";
                self.report.push_note(Code::ValueUnfit, &loc, slip, cure);
            }
            count = Some(sources.len());
            read.push((name.to_owned(), Source::Union(members), shape, Elem::Real));
        }
        count.unwrap_or(1)
    }

    /// What a name in `read` stands for, its shape (a leading 0 is any length) and type.
    fn source(&mut self, value: &Str, file: usize, network: Option<&Network>) -> Option<(Source, Vec<usize>, Elem)> {
        let has_params = !self.spec.models.is_empty() || !self.spec.groups.is_empty();
        let found = match value.get_ref().as_str() {
            "params" | "grads" if !has_params => {
                let label = "a set with neither model nor group has no parameters";
                self.report.push(Code::SourceUnknown, &loc_of(file, value), label);
                return None;
            }
            "params" => Some((Source::Params, vec![0], Elem::Real)),
            "grads" => Some((Source::Gradients, vec![0], Elem::Real)),
            name => self.optimizer_state(name).or_else(|| self.counter(name)).or_else(|| {
                if let Some(external) = self.external(name) {
                    return Some(external);
                }
                let (shape, elem) = network::buffer(self.spec, network?, name, &mut self.report)?;
                Some((Source::Buffer(name.to_owned()), shape, elem))
            }),
        };
        if found.is_none() {
            let buffers = network.map(network::buffers).unwrap_or_default();
            let externals = self.spec.externals.iter().map(|e| e.name.as_str());
            let known = ["params", "grads"].into_iter().chain(externals);
            let known = known.chain(buffers.iter().map(String::as_str));
            self.report.push_unknown(
                Code::SourceUnknown,
                &loc_of(file, value),
                format!("no buffer `{}`", value.get_ref()),
                value.get_ref(),
                known,
            );
        }
        found
    }

    fn external(&mut self, name: &str) -> Option<(Source, Vec<usize>, Elem)> {
        let spec = self.spec;
        let entry = spec.externals.iter().find(|e| e.name == name)?;
        let shape = network::extents(spec, entry.loc.file, &entry.keys.shape, &BTreeMap::new(), &mut Report::default());
        Some((Source::Buffer(name.to_owned()), shape, elem(entry.keys.elem)))
    }

    fn counter(&self, name: &str) -> Option<(Source, Vec<usize>, Elem)> {
        let counts = |u: &&Entry<entries::Update>| u.keys.math.get_ref().contains(&format!("count.{name}"));
        self.spec.updates.iter().find(counts)?;
        Some((Source::Counter(name.to_owned()), vec![0], Elem::Int))
    }

    fn optimizer_state(&self, name: &str) -> Option<(Source, Vec<usize>, Elem)> {
        let (update, state) = name.split_once('.')?;
        let entry = self.spec.updates.iter().find(|u| u.name == update && u.keys.over.get_ref() == "group")?;
        entry.keys.state.keys().find(|k| k.get_ref() == state)?;
        let source = Source::OptimizerState { update: update.to_owned(), state: state.to_owned() };
        Some((source, vec![0], Elem::Real))
    }

    fn updates(&mut self, network: Option<&Network>, optimizers: &BTreeSet<&str>) -> Vec<Update> {
        let spec = self.spec;
        let mut updates = Vec::new();
        for entry in &spec.updates {
            let is_optimizer = entry.keys.over.get_ref() == "group";
            if is_optimizer && !optimizers.contains(entry.name.as_str()) {
                if entry.loc.file < spec.first_included && (network.is_some() || !spec.groups.is_empty()) {
                    self.report.push(
                        Code::EntryUnused,
                        &entry.loc,
                        format!("no group has `{}` as its optimizer", entry.name),
                    );
                }
                continue;
            }
            updates.extend(self.update(entry, network));
        }
        self.check_one_writer(&updates);
        updates
    }

    /// Which of two clamps of one buffer ran first would be a matter of their names.
    fn check_one_writer(&mut self, updates: &[Update]) {
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for update in updates {
            let Over::Buffer { buffers, .. } = &update.over else { continue };
            for buffer in buffers {
                if let Some(other) = seen.insert(buffer, &update.name) {
                    let label = format!("`{buffer}` is changed by `{other}` too");
                    self.report.push_note(Code::TwoWriters, &update.loc, label, "write both laws in one entry");
                }
            }
        }
    }

    fn update(&mut self, entry: &Entry<entries::Update>, network: Option<&Network>) -> Option<Update> {
        let file = entry.loc.file;
        let over = self.over(entry, network)?;
        let mut read = Vec::new();
        let mut declared = Vec::new();
        for (name, loc, value) in crate::spec::names(file, &entry.keys.read) {
            let Some((source, shape, elem)) = self.source(value, file, network) else {
                continue;
            };
            if source == Source::Gradients {
                self.report.push_note(
                    Code::ReductionUnordered,
                    &loc,
                    "this reads the gradient as if it were any buffer",
                    "in an optimizer, `grad = \"NAME\"` names it; a producer may measure it",
                );
            }
            declared.push(Declared { name: name.to_owned(), role: Role::Table, elem, shape, sliced: false, loc });
            read.push((name.to_owned(), source));
        }
        let element_state = self.declare_state(entry, &over, &mut declared, &mut read);
        let outputs = self.declare_outputs(entry, network, &mut declared);
        let statements = parse_statements(&self.spec.text(file, &entry.keys.math), &mut self.report);
        let counters = declare_counters(&over, &statements, &mut declared);
        self.check_counter_names(&declared);
        self.check_declared_once(&declared);
        self.check_kept(entry, &over);
        self.check_in_place(entry, &over);
        self.check_given(&over, &declared);
        check_numbers(&statements, &declared, &mut self.report);
        Some(Update {
            name: entry.name.clone(),
            doc: entry.keys.doc.clone(),
            over,
            training_only: entry.keys.training_only,
            read,
            element_state,
            counters,
            outputs,
            declared,
            statements,
            loc: entry.loc.clone(),
        })
    }

    /// A counter is a buffer of its name.
    fn check_counter_names(&mut self, declared: &[Declared]) {
        for counter in declared.iter().filter(|d| d.role == Role::BlockCount) {
            network::check_buffer_name(&counter.name, &counter.loc, &mut self.report);
            if self.external(&counter.name).is_some() {
                let label = format!("`{}` is an external buffer too", counter.name);
                self.report.push(Code::NameCollides, &counter.loc, label);
            }
        }
    }

    /// The equations could not tell two values of one name apart.
    fn check_declared_once(&mut self, declared: &[Declared]) {
        let values = declared.iter().filter(|d| !matches!(d.role, Role::Next { .. }));
        let mut seen: BTreeMap<&str, &Loc> = BTreeMap::new();
        for d in values {
            network::check_name(&d.name, &d.loc, &mut self.report);
            if let Some(other) = seen.insert(&d.name, &d.loc) {
                let label = format!("`{}` stands at {} too", d.name, self.spec.files.provenance(other));
                let note = "rename one of them: the equations could not tell them apart";
                self.report.push_note(Code::EntryTwice, &d.loc, label, note);
            }
        }
    }

    /// A thread gives one element of an output: the outputs are as large as what the update runs over.
    fn check_given(&mut self, over: &Over, declared: &[Declared]) {
        for d in declared.iter().filter(|d| d.role == Role::Output) {
            let (fits, note) = match over {
                Over::Size { index, extent } => {
                    (d.shape == [*extent], format!("an update over `{index}` gives [{extent}]"))
                }
                Over::Scalar => {
                    (d.shape.is_empty(), "an update `over = \"scalar\"` gives one number, \"[]\"".to_owned())
                }
                Over::Group | Over::Buffer { .. } => {
                    (false, "an update over a group or a buffer gives new values of these, nothing else".to_owned())
                }
            };
            if !fits {
                let extents: Vec<String> = d.shape.iter().map(usize::to_string).collect();
                let label = format!("`{}` is [{}]", d.name, extents.join(", "));
                self.report.push_note(Code::ShapeMismatch, &d.loc, label, note);
            }
        }
    }

    /// What many threads would write at once is kept by nobody.
    fn check_kept(&mut self, entry: &Entry<entries::Update>, over: &Over) {
        let file = entry.loc.file;
        if let Over::Size { index, .. } | Over::Buffer { element: index, .. } = over {
            for (name, loc, _) in crate::spec::names(file, &entry.keys.state) {
                let label = format!("every `{index}` would write the one `{name}`");
                let note = "keep state in an update `over = \"scalar\"`";
                self.report.push_note(Code::WriteForbidden, &loc, label, note);
            }
        }
        for key in [&entry.keys.param, &entry.keys.grad].into_iter().flatten().filter(|_| *over != Over::Group) {
            let label = "only an update over a group has a parameter and its gradient";
            self.report.push(Code::KeyIdle, &loc_of(file, key), label);
        }
    }

    /// Threads change the elements of the buffer as others would read them.
    fn check_in_place(&mut self, entry: &Entry<entries::Update>, over: &Over) {
        let Over::Buffer { element, buffers } = over else { return };
        let file = entry.loc.file;
        for value in entry.keys.read.values().filter(|v| buffers.contains(v.get_ref())) {
            let label = format!("the update changes `{}` at the same time", value.get_ref());
            let note = format!("`{element}` is the element that it is at; measure others in a producer");
            self.report.push_note(Code::WriteForbidden, &loc_of(file, value), label, note);
        }
    }

    /// External buffers by name, separated by commas; nothing where one of them is none.
    fn in_place(&mut self, names: &str, loc: &Loc) -> Option<Vec<String>> {
        let names: Vec<&str> = names.split(',').map(str::trim).collect();
        for name in &names {
            let (_, _, elem) = self.external(name)?;
            if elem != Elem::Real {
                let note = "an update changes real numbers in place";
                self.report.push_note(Code::TypeMismatch, loc, format!("`{name}` holds integers"), note);
            }
        }
        Some(names.into_iter().map(str::to_owned).collect())
    }

    fn over(&mut self, entry: &Entry<entries::Update>, network: Option<&Network>) -> Option<Over> {
        let text = entry.keys.over.get_ref();
        let loc = loc_of(entry.loc.file, &entry.keys.over);
        match text.as_str() {
            "group" => return Some(Over::Group),
            "scalar" => return Some(Over::Scalar),
            _ => {}
        }
        let parts = text.split_once(':').map(|(index, size)| (index.trim(), size.trim()));
        if let Some((element, names)) = parts
            && let Some(buffers) = self.in_place(names, &loc)
        {
            return Some(Over::Buffer { element: element.to_owned(), buffers });
        }
        let extent = parts.and_then(|(_, size)| network?.sizes.get(size).copied());
        let (Some((index, _)), Some(extent)) = (parts, extent) else {
            let sizes = network.iter().flat_map(|n| n.sizes.keys()).map(String::as_str);
            let sizes = sizes.chain(self.spec.externals.iter().map(|e| e.name.as_str()));
            let (label, name) = match parts {
                Some((_, size)) => (format!("no size and no external buffer `{size}`"), size),
                None => (format!("`{text}` is nothing that an update runs over"), ""),
            };
            match crate::diagnostics::nearest(name, sizes) {
                Some(near) => self.report.push_note(Code::SizeUnknown, &loc, label, format!("is `{near}` meant?")),
                None => self.report.push_note(
                    Code::SizeUnknown,
                    &loc,
                    label,
                    "write \"group\", \"scalar\", \"index: SIZE\" with a size of the model, or \"x: NAME\" with an external buffer",
                ),
            }
            return None;
        };
        Some(Over::Size { index: index.to_owned(), extent })
    }

    /// State and, over a group, parameter and gradient: an old value and a `next` for each.
    fn declare_state(
        &mut self,
        entry: &Entry<entries::Update>,
        over: &Over,
        declared: &mut Vec<Declared>,
        read: &mut Vec<(String, Source)>,
    ) -> Vec<(String, f64, Reset)> {
        let file = entry.loc.file;
        let shape = if *over == Over::Group { vec![0] } else { Vec::new() };
        let mut element_state = Vec::new();
        for (name, loc, keys) in crate::spec::names(file, &entry.keys.state) {
            declare_pair(declared, name, elem(keys.elem), &shape, &loc);
            if *over == Over::Group {
                let reset = self.reset(keys.reset, name, &loc);
                element_state.push((name.to_owned(), keys.init, reset));
            }
        }
        if let Over::Buffer { element, .. } = over {
            declare_pair(declared, element, Elem::Real, &[0], &entry.loc);
        }
        if *over == Over::Group {
            let (Some(param), Some(grad)) = (&entry.keys.param, &entry.keys.grad) else {
                self.report.push_note(
                    Code::KeyMissing,
                    &entry.loc,
                    "an update over a group names its parameter and its gradient",
                    "add `param = \"w\"` and `grad = \"g\"`, with names that the equations use",
                );
                return element_state;
            };
            declare_pair(declared, param.get_ref(), Elem::Real, &shape, &loc_of(file, param));
            let loc = loc_of(file, grad);
            declared.push(Declared {
                name: grad.get_ref().clone(),
                role: Role::Input,
                elem: Elem::Real,
                shape,
                sliced: false,
                loc,
            });
            read.push((param.get_ref().clone(), Source::Params));
            read.push((grad.get_ref().clone(), Source::Gradients));
        }
        element_state
    }

    fn declare_outputs(
        &mut self,
        entry: &Entry<entries::Update>,
        network: Option<&Network>,
        declared: &mut Vec<Declared>,
    ) -> Vec<(String, Vec<usize>, Elem)> {
        let mut outputs = Vec::new();
        let sizes = network.map(|n| n.sizes.clone()).unwrap_or_default();
        for (name, loc, tensor) in crate::spec::names(entry.loc.file, &entry.keys.output) {
            let (shape, elem) = network::shape_of(self.spec, entry.loc.file, tensor, &sizes, &mut self.report);
            declared.push(Declared {
                name: name.to_owned(),
                role: Role::Output,
                elem,
                shape: shape.clone(),
                sliced: false,
                loc,
            });
            outputs.push((name.to_owned(), shape, elem));
        }
        outputs
    }
}

/// Each `count.NAME` of an update over a group is a condition to count.
fn declare_counters(over: &Over, statements: &[Statement], declared: &mut Vec<Declared>) -> Vec<String> {
    let mut counters = Vec::new();
    for target in statements.iter().map(|s| &s.target).filter(|t| t.count && *over == Over::Group) {
        if !counters.contains(&target.name.text) {
            let (name, loc) = (target.name.text.clone(), target.name.loc.clone());
            declared.push(Declared {
                name: name.clone(),
                role: Role::BlockCount,
                elem: Elem::Bool,
                shape: vec![0],
                sliced: false,
                loc,
            });
            counters.push(name);
        }
    }
    counters
}

fn declare_pair(declared: &mut Vec<Declared>, name: &str, elem: Elem, shape: &[usize], loc: &Loc) {
    let state = Declared {
        name: name.to_owned(),
        role: Role::State,
        elem,
        shape: shape.to_vec(),
        sliced: false,
        loc: loc.clone(),
    };
    let of = declared.len();
    declared.push(state.clone());
    declared.push(Declared { role: Role::Next { of }, ..state });
}

/// A thread keeps numbers, not tensors.
fn check_numbers(statements: &[Statement], declared: &[Declared], report: &mut Report) {
    let is_local = |s: &&Statement| !s.target.next && !declared.iter().any(|d| d.name == s.target.name.text);
    for s in statements.iter().filter(is_local).filter(|s| !s.target.indices.is_empty()) {
        let label = format!("`{}` would be a tensor, and here are only numbers", s.target.name.text);
        let note = "leave its index out, or compute it in a block";
        report.push_note(Code::WriteForbidden, &s.target.name.loc, label, note);
    }
}

fn smoothing(spec: &Spec, entry: &Entry<entries::Smoothing>, report: &mut Report) -> Smoothing {
    let file = entry.loc.file;
    let mut declared = Vec::new();
    declare_pair(&mut declared, "mean", Elem::Real, &[], &entry.loc);
    for state in &entry.keys.state {
        declare_pair(&mut declared, state.get_ref(), Elem::Real, &[], &loc_of(file, state));
    }
    let x = Declared {
        name: "x".into(),
        role: Role::Input,
        elem: Elem::Real,
        shape: Vec::new(),
        sliced: false,
        loc: entry.loc.clone(),
    };
    declared.push(x);
    let mut names = vec!["mean", "x"];
    for state in &entry.keys.state {
        if names.contains(&state.get_ref().as_str()) {
            let label = format!("`{}` is a name of this law already", state.get_ref());
            report.push_note(Code::EntryTwice, &loc_of(file, state), label, "rename it; `mean` and `x` are given");
        }
        network::check_name(state.get_ref(), &loc_of(file, state), report);
        names.push(state.get_ref());
    }
    let statements = parse_statements(&spec.text(file, &entry.keys.math), report);
    check_numbers(&statements, &declared, report);
    Smoothing {
        name: entry.name.clone(),
        doc: entry.keys.doc.clone(),
        states: entry.keys.state.iter().map(|s| s.get_ref().clone()).collect(),
        declared,
        statements,
        loc: entry.loc.clone(),
    }
}

fn blank_slot(name: &str, doc: &str, loc: &Loc) -> Slot {
    Slot {
        name: name.to_owned(),
        doc: doc.to_owned(),
        index: 0,
        scratch: 0,
        members: Vec::new(),
        producer: None,
        smooth: None,
        reset: Reset::Never,
        monitoring: false,
        reserved: false,
        fingerprint: false,
        listed: true,
        observed_only: false,
        beside: false,
        loc: loc.clone(),
    }
}

/// Where a signal names elements of a row, the statistics run over rows of as many dimensions; else over all elements.
fn read_shape(name: &str, signals: &[super::Signal], shape: Vec<usize>) -> Vec<usize> {
    let mut named = 0;
    for signal in signals {
        signal.expr.visit(&mut |e| match &e.kind {
            ExprKind::Index(n, index) if n.text == name => named = named.max(index.len()),
            _ => {}
        });
    }
    let over = if named > 0 { shape.len().saturating_sub(named).max(1) } else { shape.len() };
    std::iter::once(0).chain(shape.iter().skip(over).copied()).collect()
}

/// Elements of a row of a buffer as a signal reads it.
fn row_len(used: &[usize]) -> usize {
    used.iter().skip(1).product()
}

/// How many elements, or rows, a producer finds in a buffer.
#[derive(Clone, Copy)]
enum Measured {
    /// As many as its group has parameters.
    Group,
    /// As many as optimizers have blocks.
    Blocks,
    /// A number known before the run; 0 where it is not.
    Elements(usize),
}

impl Measured {
    fn of(source: &Source, shape: &[usize], used: &[usize]) -> Self {
        match source {
            Source::Buffer(_) => Self::Elements(shape[..(shape.len() + 1).saturating_sub(used.len())].iter().product()),
            Source::Counter(_) => Self::Blocks,
            _ => Self::Group,
        }
    }

    fn fits(self, other: Self) -> bool {
        match (self, other) {
            (Self::Elements(a), Self::Elements(b)) => a == b || a == 0 || b == 0,
            (Self::Group, Self::Group) | (Self::Blocks, Self::Blocks) => true,
            _ => false,
        }
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Group => f.write_str("an element a parameter"),
            Self::Blocks => f.write_str("a count a block"),
            Self::Elements(0) => f.write_str("any number"),
            Self::Elements(n) => write!(f, "{n} elements"),
        }
    }
}

/// Element type as written, resolved.
pub fn elem(elem: entries::Elem) -> Elem {
    match elem {
        entries::Elem::F32 => Elem::Real,
        entries::Elem::I32 => Elem::Int,
    }
}

/// Dimensions of a shape text; `None` where it cannot be read.
pub fn dims(spec: &Spec, file: usize, shape: &Str, report: &mut Report) -> Option<Vec<String>> {
    parse_shape(&spec.text(file, shape), report)
}
