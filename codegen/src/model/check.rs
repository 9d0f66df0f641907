//! What the generator proves about a resolved set. Each check is a function whose name says what it proves.

use std::collections::{BTreeMap, BTreeSet};

use super::types::{Model, Over, Producer};
use crate::diagnostics::{Code, Loc, Report};
use crate::names;
use crate::spec::equation::{Expr, ExprKind, Statement, When};

/// Runs every check.
pub fn check(model: &Model, report: &mut Report) {
    every_slot_and_state_is_read(model, report);
    symbols_stay_distinct(model, report);
    kernels_stay_distinct(model, report);
}

/// What is right but could be better: two entries that read the same buffers read them twice.
pub fn hints(model: &Model) -> Vec<String> {
    let mut hints = Vec::new();
    let reads = |p: &Producer| p.read.iter().map(|(_, source, ..)| source.clone()).collect::<Vec<_>>();
    for (n, producer) in model.producers.iter().enumerate() {
        for other in &model.producers[n + 1..] {
            let same = reads(producer).iter().any(|source| reads(other).contains(source));
            if same
                && producer.per_group == other.per_group
                && producer.smooth == other.smooth
                && producer.union == other.union
            {
                let (a, b) = (model.files.provenance(&producer.loc), model.files.provenance(&other.loc));
                hints.push(format!(
                    "`{}` ({a}) and `{}` ({b}) read the same buffers: signals of one entry share the read",
                    producer.name, other.name
                ));
            }
        }
    }
    hints
}

/// A signal nobody reads, and a state nobody reads, is work for nothing or a forgotten wire.
fn every_slot_and_state_is_read(model: &Model, report: &mut Report) {
    let mut read = BTreeSet::new();
    for statements in model.updates.iter().map(|u| &u.statements) {
        statements.iter().for_each(|s| reads(s, &mut read));
    }
    for producer in &model.producers {
        for signal in &producer.signals {
            expr_reads(&signal.expr, &mut read);
            signal_reads(producer, &signal.expr, &mut read);
        }
    }
    for stage in model.network.iter().flat_map(|n| &n.stages) {
        stage.statements.iter().for_each(|s| reads(s, &mut read));
    }
    for slot in model.slots.iter().filter(|s| !s.monitoring && !s.reserved && s.producer.is_some()) {
        if !read.contains(&slot.name) {
            report.push(
                Code::ReaderMissing,
                &slot.loc,
                format!("no equation reads `prev.{0}`, `now.{0}` or `observed.{0}`", slot.name),
            );
        }
    }
    for state in model.states.iter().filter(|s| !s.monitoring) {
        let own = model.updates.iter().filter(|u| Some(&u.name) == state.writer.as_ref() && u.over != Over::Group);
        let at_home = own.flat_map(|u| &u.statements).any(|s| names_state(s, &state.name));
        if !read.contains(&state.name) && !at_home {
            report.push(
                Code::ReaderMissing,
                &state.loc,
                format!("no equation reads `prev.{0}` or `now.{0}`", state.name),
            );
        }
    }
}

fn reads(statement: &Statement, read: &mut BTreeSet<String>) {
    expr_reads(&statement.value, read);
    statement.when.iter().for_each(|w| expr_reads(w, read));
}

fn expr_reads(expr: &Expr, read: &mut BTreeSet<String>) {
    expr.visit(&mut |e| {
        if let ExprKind::Read(When::Prev | When::Now | When::Observed, name, _) = &e.kind {
            read.insert(name.text.clone());
        }
    });
}

/// A signal may read those above it in its producer by name.
fn signal_reads(producer: &Producer, expr: &Expr, read: &mut BTreeSet<String>) {
    expr.visit(&mut |e| {
        if let ExprKind::Name(name) = &e.kind {
            read.extend(producer.signals.iter().find(|s| s.target == *name).map(|s| s.slot.clone()));
        }
    });
}

fn names_state(statement: &Statement, name: &str) -> bool {
    let mut found = false;
    for expr in [Some(&statement.value), statement.when.as_ref()].into_iter().flatten() {
        expr.visit(&mut |e| found |= matches!(&e.kind, ExprKind::Name(n) if n == name));
    }
    found
}

/// Members of families become constants and symbols beside plain slots and states.
fn symbols_stay_distinct(model: &Model, report: &mut Report) {
    let mut symbols: BTreeMap<String, String> = BTreeMap::new();
    for slot in &model.slots {
        let mut all = vec![slot.name.clone()];
        all.extend(slot.members.iter().map(|m| names::slot_member(&slot.name, m)));
        for symbol in all {
            let other = symbols.insert(names::rust_const(&symbol), slot.name.clone());
            // One name twice is another slip, which is reported as such.
            if let Some(other) = other.filter(|other| *other != slot.name) {
                report.push(
                    Code::NameCollides,
                    &slot.loc,
                    format!("`{symbol}` stands for `{other}` and for `{}`", slot.name),
                );
            }
        }
    }
}

/// Entries give their names to kernels and to files.
fn kernels_stay_distinct(model: &Model, report: &mut Report) {
    let mut kernels: Vec<(String, &str, &Loc)> = Vec::new();
    kernels.extend(model.updates.iter().map(|u| (u.name.clone(), u.name.as_str(), &u.loc)));
    kernels.extend(model.producers.iter().map(|p| (p.name.clone(), p.name.as_str(), &p.loc)));
    for stage in model.network.iter().flat_map(|n| &n.stages) {
        let names = ["", "_forward", "_adjoint", "_gradients"].map(|end| format!("{}{end}", stage.name));
        kernels.extend(names.map(|symbol| (symbol, stage.name.as_str(), &stage.loc)));
    }
    let mut taken = BTreeMap::from([(String::from("reduce_axis0"), "the sum of the gradients")]);
    for (symbol, name, loc) in kernels {
        if let Some(other) = taken.insert(symbol.to_ascii_lowercase(), name)
            && !report.is_told(Code::EntryTwice, loc)
        {
            let label = format!("the kernel of `{name}` would be called as that of `{other}`");
            report.push(Code::NameCollides, loc, label);
        }
    }
}
