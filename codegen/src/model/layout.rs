//! Indices of slots, observations and states: given once, kept in `layout.lock`, never moved.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::types::{Slot, State};
use crate::diagnostics::{Code, Report};

/// What `layout.lock` holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// Slot families.
    #[serde(default)]
    pub slot: BTreeMap<String, SlotPlace>,
    /// Words of scalar states.
    #[serde(default)]
    pub state: BTreeMap<String, usize>,
}

/// Where a slot family lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotPlace {
    /// First index in the ISV.
    pub index: usize,
    /// First observation.
    pub scratch: usize,
    /// Members.
    pub len: usize,
}

impl Lock {
    /// Reads a lock; an unreadable one counts as empty, and is then written anew.
    pub fn parse(text: &str) -> Self {
        toml::from_str(text).unwrap_or_default()
    }

    /// The lock as text.
    pub fn render(&self) -> String {
        let body = toml::to_string(self).unwrap_or_default();
        format!("# Indices given by the generator. Kept under version control, never edited by hand.\n\n{body}")
    }
}

/// Places that the spec itself gives, by slot family.
#[derive(Debug, Default)]
pub(super) struct Fixed {
    /// First index in the ISV.
    pub(super) slots: BTreeMap<String, usize>,
    /// First observation.
    pub(super) scratch: BTreeMap<String, usize>,
}

/// Gives every slot and state its place: what the spec says, else what the lock says, else the next free one.
pub(super) fn place(slots: &mut [Slot], fixed: &Fixed, states: &mut [State], lock: &Lock, report: &mut Report) -> Lock {
    let mut taken = Taken::default();
    for slot in slots.iter_mut().filter(|s| s.is_in_isv()) {
        if let Some(&index) = fixed.slots.get(&slot.name) {
            slot.index = index;
            check_reach(slot, report);
            taken.slot(slot, report);
        }
    }
    for slot in slots.iter_mut() {
        if let Some(place) = known(slot, lock) {
            taken.observe(slot, fixed.scratch.get(&slot.name).copied().unwrap_or(place.scratch), report);
            if slot.beside {
                taken.beside(slot, place.index);
            } else if !fixed.slots.contains_key(&slot.name) && !slot.observed_only {
                slot.index = place.index;
                taken.slot(slot, report);
            }
        }
    }
    for slot in slots.iter_mut() {
        if known(slot, lock).is_none() {
            let next = free(if slot.listed { &taken.scratch } else { &taken.unlisted });
            taken.observe(slot, fixed.scratch.get(&slot.name).copied().unwrap_or(next), report);
            if slot.beside {
                taken.beside(slot, free(&taken.beside));
            } else if !fixed.slots.contains_key(&slot.name) && !slot.observed_only {
                slot.index = free(&taken.slots);
                taken.slot(slot, report);
            }
        }
    }
    slots.sort_by_key(|s| (!s.is_in_isv(), s.observed_only, s.index, s.scratch));
    let words = place_states(states, lock, report);
    let place = |s: &Slot| (s.name.clone(), SlotPlace { index: s.index, scratch: s.scratch, len: s.len() });
    Lock { slot: slots.iter().map(place).collect(), state: words }
}

/// Most slots and states: they lie side by side from 0, and what is empty between them takes memory too.
const MOST: usize = 1 << 20;

/// What the lock says of a slot, if it can be: a lock that was damaged is made anew.
fn known<'l>(slot: &Slot, lock: &'l Lock) -> Option<&'l SlotPlace> {
    let place = lock.slot.get(&slot.name)?;
    (place.len == slot.len() && place.index < MOST && place.scratch < MOST).then_some(place)
}

fn check_reach(slot: &mut Slot, report: &mut Report) {
    if slot.index >= MOST {
        let label = format!("index {} leaves more than {MOST} places before it", slot.index);
        report.push(Code::IndexTooLarge, &slot.loc, label);
        slot.index = 0;
    }
}

/// Two branches that each gave a place may have given the same one.
const LOCK_CURE: &str = "if the layout lock gave it, as after a merge, delete the line of one of them there";

fn place_states(states: &mut [State], lock: &Lock, report: &mut Report) -> BTreeMap<String, usize> {
    let kept = |s: &State| lock.state.get(&s.name).copied().filter(|word| *word < MOST);
    let mut taken: BTreeMap<usize, &State> = BTreeMap::new();
    for state in states.iter() {
        if let Some(other) = kept(state).and_then(|word| taken.insert(word, state)) {
            let label = format!("its word belongs to `{}`", other.name);
            report.push_note(Code::SlotIndexTwice, &state.loc, label, LOCK_CURE);
        }
    }
    let mut next = states.iter().filter_map(kept).map(|w| w + 1).max().unwrap_or(0);
    for state in states.iter_mut() {
        state.word = kept(state).unwrap_or_else(|| {
            next += 1;
            next - 1
        });
    }
    states.sort_by_key(|s| s.word);
    states.iter().map(|s| (s.name.clone(), s.word)).collect()
}

#[derive(Default)]
struct Taken {
    slots: BTreeMap<usize, usize>,
    scratch: BTreeMap<usize, usize>,
    /// Observations that are not among the numbered ones.
    unlisted: BTreeMap<usize, usize>,
    /// Slots beside the ISV.
    beside: BTreeMap<usize, usize>,
    names: BTreeMap<usize, String>,
    observations: BTreeMap<usize, String>,
}

impl Taken {
    fn slot(&mut self, slot: &Slot, report: &mut Report) {
        for index in slot.index..slot.index + slot.len() {
            let other = self.names.insert(index, slot.name.clone());
            // A slot declared twice takes its place twice.
            if let Some(other) = other.filter(|other| *other != slot.name) {
                let label = format!("index {index} belongs to `{other}`");
                let note = format!("{}; {LOCK_CURE}", Code::SlotIndexTwice.cure());
                report.push_note(Code::SlotIndexTwice, &slot.loc, label, note);
            }
        }
        self.slots.insert(slot.index, slot.len());
    }

    fn beside(&mut self, slot: &mut Slot, index: usize) {
        slot.index = index;
        self.beside.insert(index, slot.len());
    }

    /// A slot that nobody measures takes no observation.
    fn observe(&mut self, slot: &mut Slot, place: usize, report: &mut Report) {
        if slot.producer.is_none() {
            return;
        }
        slot.scratch = place;
        if !slot.listed {
            self.unlisted.insert(place, slot.len());
            return;
        }
        for index in place..place + slot.len() {
            let other = self.observations.insert(index, slot.name.clone());
            if let Some(other) = other.filter(|other| *other != slot.name) {
                let label = format!("its observation {index} belongs to `{other}`");
                report.push_note(Code::SlotIndexTwice, &slot.loc, label, LOCK_CURE);
            }
        }
        self.scratch.insert(place, slot.len());
    }
}

fn free(taken: &BTreeMap<usize, usize>) -> usize {
    taken.iter().map(|(start, len)| start + len).max().unwrap_or(0)
}
