//! The order of a step, from who reads and writes what.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnostics::{Code, Loc, Report};
use crate::spec::equation::When;

/// A buffer by name, and the first element of it.
pub(super) type Place = (String, usize);

/// How many elements a launch covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeCount {
    /// The kernel does not ask.
    None,
    /// So many.
    Fixed(usize),
    /// As many as the named buffer holds.
    Of(String),
    /// As many as the named buffer holds rows of so many elements.
    RowsOf(String, usize),
}

/// A launch before it has a place in the step.
#[derive(Debug)]
pub(super) struct Node {
    /// Name in plans and logs.
    pub(super) name: String,
    /// Kernel.
    pub(super) kernel: usize,
    /// Elements to cover: so many, or those of a buffer.
    pub(super) count: NodeCount,
    /// Parts of the union that a finishing kernel joins.
    pub(super) parts: Option<usize>,
    /// Buffer and first element of each pointer parameter.
    pub(super) args: Vec<Place>,
    /// Values it needs from this step.
    pub(super) needs: BTreeSet<String>,
    /// Values it gives.
    pub(super) gives: BTreeSet<String>,
    /// Slots and states that it reads.
    pub(super) reads: Vec<(When, String)>,
    /// Slots and states that it writes.
    pub(super) writes: BTreeSet<String>,
    /// Buffer that it changes in place, after everyone else has read it.
    pub(super) overwrites: Option<String>,
    /// The node that is launched where this one finds too few elements: never both in a step.
    pub(super) instead_of: Option<String>,
    /// Whether an evaluation runs it too.
    pub(super) evaluates: bool,
    /// Place of the entry.
    pub(super) loc: Loc,
}

/// Sorts nodes so that each runs after what it needs; among those that may run, the first listed goes first.
///
/// Gives the order and, for each node, the nodes that come before it.
pub(super) fn order(nodes: &[Node], report: &mut Report) -> (Vec<usize>, Vec<BTreeSet<usize>>) {
    let before = edges(nodes);
    let mut done = vec![false; nodes.len()];
    let mut sorted = Vec::new();
    while let Some(next) = (0..nodes.len()).find(|n| !done[*n] && before[*n].iter().all(|b| done[*b])) {
        done[next] = true;
        sorted.push(next);
    }
    if let Some(first) = done.iter().position(|done| !done) {
        let cycle = cycle(first, &done, &before);
        let names: Vec<&str> = cycle.iter().map(|n| nodes[*n].name.as_str()).collect();
        let label = format!("each of these waits for the next, the last for the first: {}", names.join(", "));
        report.push(Code::NowCycle, &nodes[cycle[0]].loc, label);
    }
    (sorted, before)
}

/// The cycle that one meets by going from what waits to what it waits for.
fn cycle(start: usize, done: &[bool], before: &[BTreeSet<usize>]) -> Vec<usize> {
    let mut path = vec![start];
    let mut at = start;
    while let Some(next) = before[at].iter().copied().find(|n| !done[*n]) {
        if let Some(entry) = path.iter().position(|n| *n == next) {
            return path.split_off(entry);
        }
        path.push(next);
        at = next;
    }
    path
}

/// The same order without edges that others imply.
pub(super) fn direct(before: &[BTreeSet<usize>]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<Option<BTreeSet<usize>>> = vec![None; before.len()];
    for n in 0..before.len() {
        ancestors(n, before, &mut all);
    }
    let implied = |n: usize, edge: usize| {
        before[n].iter().any(|other| *other != edge && all[*other].as_ref().is_some_and(|a| a.contains(&edge)))
    };
    (0..before.len()).map(|n| before[n].iter().copied().filter(|edge| !implied(n, *edge)).collect()).collect()
}

fn ancestors(n: usize, before: &[BTreeSet<usize>], all: &mut Vec<Option<BTreeSet<usize>>>) -> BTreeSet<usize> {
    if let Some(known) = &all[n] {
        return known.clone();
    }
    // A cycle was reported already; here it must only end.
    all[n] = Some(BTreeSet::new());
    let mut found = before[n].clone();
    for earlier in &before[n] {
        found.extend(ancestors(*earlier, before, all));
    }
    all[n] = Some(found.clone());
    found
}

/// An evaluation leaves out what needs a gradient, however far away.
pub(super) fn restrict_evaluation(nodes: &mut [Node]) {
    loop {
        let training = |n: &&Node| !n.evaluates;
        let values: BTreeSet<String> =
            nodes.iter().filter(training).flat_map(|n| n.gives.iter().chain(&n.writes).cloned()).collect();
        let kept: BTreeSet<String> =
            nodes.iter().filter(|n| n.evaluates).flat_map(|n| n.gives.iter().cloned()).collect();
        let needs = |n: &Node| {
            let read_now = n.reads.iter().filter(|(when, _)| *when != When::Prev).map(|(_, name)| name);
            n.needs.iter().filter(|v| !kept.contains(*v)).chain(read_now).any(|v| values.contains(v))
        };
        let Some(next) = nodes.iter().position(|n| n.evaluates && needs(n)) else {
            return;
        };
        nodes[next].evaluates = false;
    }
}

fn exclude(a: &Node, b: &Node) -> bool {
    let stands_for = |a: &Node, b: &Node| a.instead_of.as_ref() == Some(&b.name);
    stands_for(a, b) || stands_for(b, a)
}

fn edges(nodes: &[Node]) -> Vec<BTreeSet<usize>> {
    let mut before = vec![BTreeSet::new(); nodes.len()];
    let mut givers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut writers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (n, node) in nodes.iter().enumerate() {
        node.gives.iter().for_each(|v| givers.entry(v).or_default().push(n));
        node.writes.iter().for_each(|v| writers.entry(v).or_default().push(n));
    }
    for (n, node) in nodes.iter().enumerate() {
        for value in &node.needs {
            before[n].extend(givers.get(value.as_str()).into_iter().flatten().filter(|g| **g != n));
        }
        if let Some(buffer) = &node.overwrites {
            let reads = |other: &usize| *other != n && nodes[*other].needs.contains(buffer);
            before[n].extend((0..nodes.len()).filter(reads));
        }
        for (when, name) in &node.reads {
            let others = writers.get(name.as_str()).into_iter().flatten().filter(|w| **w != n);
            for &writer in others.filter(|w| !exclude(node, &nodes[**w])) {
                // The last step's value is gone once its writer has run.
                match when {
                    When::Prev => before[writer].insert(n),
                    When::Now | When::Observed => before[n].insert(writer),
                };
            }
        }
    }
    before
}
