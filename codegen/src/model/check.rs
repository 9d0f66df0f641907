//! What the generator proves about a resolved set. Each check is a function whose name says what it proves.

use std::collections::{BTreeMap, BTreeSet};

use super::types::{Model, Over};
use crate::diagnostics::{Code, Report};
use crate::names;
use crate::spec::equation::{Expr, ExprKind, Statement, When};

/// Runs every check.
pub fn check(model: &Model, report: &mut Report) {
    every_slot_and_state_is_read(model, report);
    symbols_stay_distinct(model, report);
}

/// A signal nobody reads, and a state nobody reads, is work for nothing or a forgotten wire.
fn every_slot_and_state_is_read(model: &Model, report: &mut Report) {
    let mut read = BTreeSet::new();
    for statements in model.updates.iter().map(|u| &u.statements) {
        statements.iter().for_each(|s| reads(s, &mut read));
    }
    for signal in model.producers.iter().flat_map(|p| &p.signals) {
        expr_reads(&signal.expr, &mut read);
    }
    for stage in model.network.iter().flat_map(|n| &n.stages) {
        stage.statements.iter().for_each(|s| reads(s, &mut read));
    }
    for slot in model
        .slots
        .iter()
        .filter(|s| !s.monitoring && !s.reserved && s.producer.is_some())
    {
        if !read.contains(&slot.name) {
            report.push(
                Code::ReaderMissing,
                &slot.loc,
                format!("no equation reads `prev.{0}` or `now.{0}`", slot.name),
            );
        }
    }
    for state in model.states.iter().filter(|s| !s.monitoring) {
        let own = model
            .updates
            .iter()
            .filter(|u| Some(&u.name) == state.writer.as_ref() && u.over != Over::Group);
        let at_home = own.flat_map(|u| &u.statements).any(|s| names_state(s, &state.name));
        if !read.contains(&state.name) && !at_home {
            report.push(
                Code::ReaderMissing,
                &state.loc,
                format!("no equation reads `{}`", state.name),
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
            if let Some(other) = symbols.insert(names::rust_const(&symbol), slot.name.clone()) {
                report.push(
                    Code::NameCollides,
                    &slot.loc,
                    format!("`{symbol}` stands for `{other}` and for `{}`", slot.name),
                );
            }
        }
    }
}
