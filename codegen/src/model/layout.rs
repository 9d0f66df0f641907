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
pub(super) fn place(
    slots: &mut Vec<Slot>,
    fixed: &Fixed,
    states: &mut Vec<State>,
    lock: &Lock,
    report: &mut Report,
) -> Lock {
    let mut taken = Taken::default();
    for slot in slots.iter_mut() {
        if let Some(&index) = fixed.slots.get(&slot.name) {
            slot.index = index;
            taken.slot(slot, report);
        }
    }
    for slot in slots.iter_mut() {
        let known = lock.slot.get(&slot.name).filter(|p| p.len == slot.len());
        if let Some(place) = known {
            taken.observe(slot, fixed.scratch.get(&slot.name).copied().unwrap_or(place.scratch));
            if !fixed.slots.contains_key(&slot.name) {
                slot.index = place.index;
                taken.slot(slot, report);
            }
        }
    }
    for slot in slots.iter_mut() {
        let known = lock.slot.get(&slot.name).is_some_and(|p| p.len == slot.len());
        if !known {
            let next = free(&taken.scratch);
            taken.observe(slot, fixed.scratch.get(&slot.name).copied().unwrap_or(next));
            if !fixed.slots.contains_key(&slot.name) {
                slot.index = free(&taken.slots);
                taken.slot(slot, report);
            }
        }
    }
    slots.sort_by_key(|s| s.index);
    let words = place_states(states, lock);
    let place = |s: &Slot| {
        (
            s.name.clone(),
            SlotPlace {
                index: s.index,
                scratch: s.scratch,
                len: s.len(),
            },
        )
    };
    Lock {
        slot: slots.iter().map(place).collect(),
        state: words,
    }
}

fn place_states(states: &mut [State], lock: &Lock) -> BTreeMap<String, usize> {
    let kept = |s: &State| lock.state.get(&s.name).copied();
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
    names: BTreeMap<usize, String>,
}

impl Taken {
    fn slot(&mut self, slot: &Slot, report: &mut Report) {
        for index in slot.index..slot.index + slot.len() {
            if let Some(other) = self.names.insert(index, slot.name.clone()) {
                report.push(
                    Code::SlotIndexTwice,
                    &slot.loc,
                    format!("index {index} belongs to `{other}`"),
                );
            }
        }
        self.slots.insert(slot.index, slot.len());
    }
}

impl Taken {
    /// A slot that nobody measures takes no observation.
    fn observe(&mut self, slot: &mut Slot, place: usize) {
        if slot.producer.is_some() {
            slot.scratch = place;
            self.scratch.insert(place, slot.len());
        }
    }
}

fn free(taken: &BTreeMap<usize, usize>) -> usize {
    taken.iter().map(|(start, len)| start + len).max().unwrap_or(0)
}
