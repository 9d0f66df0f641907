//! Signals of a producer: families with one member an index, and sums over a family, written out.

use std::collections::BTreeMap;

use super::types::Signal;
use crate::diagnostics::{Code, Loc, Report};
use crate::names;
use crate::spec::entries::{self, Signals, Str};
use crate::spec::equation::{BinaryOp, Expr, ExprKind, Name, parse_expr};
use crate::spec::{Entry, Spec};

/// A signal as written, whichever way.
pub(super) struct Written<'a> {
    pub(super) name: &'a str,
    pub(super) doc: Option<&'a str>,
    pub(super) loc: Loc,
    pub(super) values: Vec<&'a Str>,
    pub(super) members: Vec<String>,
    pub(super) index: Option<&'a Str>,
    pub(super) slot: Option<u32>,
    pub(super) scratch: Option<u32>,
    /// Members that the spec asks for by number.
    pub(super) count: Option<u32>,
    pub(super) monitoring: bool,
    pub(super) observed_only: bool,
}

/// The signals of a producer in the order of the file.
pub(super) fn written(entry: &Entry<entries::Producer>) -> Vec<Written<'_>> {
    let number = |n: &Option<toml::Spanned<u32>>| n.as_ref().map(|n| *n.get_ref());
    let mut signals = match &entry.keys.signal {
        Signals::One(value) => vec![Written {
            name: &entry.name,
            doc: None,
            loc: entry.loc.clone(),
            values: vec![value],
            members: Vec::new(),
            index: None,
            slot: number(&entry.keys.slot),
            scratch: number(&entry.keys.scratch),
            count: None,
            monitoring: false,
            observed_only: false,
        }],
        Signals::Many(map) => crate::spec::names(entry.loc.file, map)
            .map(|(name, loc, keys)| Written {
                name,
                doc: keys.doc.as_deref(),
                loc,
                values: keys.value.iter().chain(&keys.values).collect(),
                members: members(keys),
                index: keys.index.as_ref(),
                slot: number(&keys.slot),
                scratch: number(&keys.scratch),
                count: keys.count,
                monitoring: keys.monitoring,
                observed_only: keys.observed_only,
            })
            .collect(),
    };
    signals.sort_by_key(|s| s.loc.range.start);
    signals
}

/// Names of a family's members: as given, or numbers.
fn members(keys: &entries::SignalKeys) -> Vec<String> {
    match keys.count {
        Some(count) if keys.members.is_empty() => (0..count.min(MOST_MEMBERS)).map(|n| n.to_string()).collect(),
        _ => keys.members.iter().map(|m| m.get_ref().clone()).collect(),
    }
}

/// Members of one family; each costs a kernel an accumulator.
const MOST_MEMBERS: u32 = 256;

/// Targets of the families that stand above, by family.
type Families = BTreeMap<String, Vec<String>>;

/// One expression for each member of each signal.
pub(super) fn resolve(spec: &Spec, entry: &Entry<entries::Producer>, report: &mut Report) -> Vec<Signal> {
    let mut families = Families::new();
    let mut signals = Vec::new();
    for written in written(entry) {
        let exprs: Vec<Expr> =
            written.values.iter().filter_map(|v| parse_expr(&spec.text(entry.loc.file, v), report)).collect();
        if !fits(entry, &written, report) || exprs.len() != written.values.len() {
            continue;
        }
        let mut targets = Vec::new();
        for member in 0..written.members.len().max(1) {
            let expr = exprs.get(member).unwrap_or(&exprs[0]);
            let expr = written.index.map_or(expr.clone(), |index| bind(expr, index.get_ref(), member as i64));
            let target = match written.members.get(member) {
                Some(name) => names::slot_member(written.name, name),
                None => written.name.to_owned(),
            };
            targets.push(target.clone());
            signals.push(Signal { slot: written.name.to_owned(), member, target, expr: write_out(&expr, &families) });
        }
        if !written.members.is_empty() {
            families.insert(written.name.to_owned(), targets);
        }
    }
    signals
}

/// A place in a vector is given only to what lies there.
pub(super) fn check_places(entry: &Entry<entries::Producer>, written: &Written<'_>, report: &mut Report) {
    let keys = &entry.keys;
    let in_isv = !written.observed_only && !keys.beside;
    if written.slot.is_some() && !in_isv {
        let why = if written.observed_only { "only observed" } else { "kept beside the ISV" };
        report.push(Code::KeyIdle, &written.loc, format!("`{}` is {why}, and has no index `slot`", written.name));
    }
    if written.scratch.is_some() && (!in_isv || keys.unlisted) {
        let label = format!("the observation of `{}` is not among the numbered ones", written.name);
        report.push_note(Code::KeyIdle, &written.loc, label, "remove `scratch`");
    }
}

/// A family has one value for all members, told apart by an index, or one for each.
fn fits(entry: &Entry<entries::Producer>, written: &Written<'_>, report: &mut Report) -> bool {
    let (values, members) = (written.values.len(), written.members.len());
    if values == 0 {
        let label = format!("nothing says how `{}` is measured", written.name);
        report.push_note(Code::KeyMissing, &written.loc, label, "give it a `value`");
        return false;
    }
    if let Some(slip) = slip(entry, written) {
        report.push_note(
            Code::ValueUnfit,
            &written.loc,
            slip,
            "a family is numbered by `count`, or named by `members`",
        );
        return false;
    }
    for (n, member) in written.members.iter().enumerate().filter(|_| written.count.is_none()) {
        if !names::is_legal(member) {
            report.push(Code::NameIllegal, &written.loc, format!("`{member}` cannot name a member"));
            return false;
        }
        if written.members[..n].contains(member) {
            let label = format!("`{member}` is a member already");
            report.push_note(Code::EntryTwice, &written.loc, label, "give each member a name of its own");
            return false;
        }
    }
    let told = values == 1 && (members == 0 || written.index.is_some());
    if told || (values > 1 && values == members) {
        return true;
    }
    let label = format!("{values} value{} for {members} members", if values == 1 { "" } else { "s" });
    let cure = "give `value` with an `index`, or `values` with one for each of `members`";
    report.push_note(Code::ValueUnfit, &written.loc, label, cure);
    false
}

/// What is wrong with the members of a family, if anything is.
fn slip(entry: &Entry<entries::Producer>, written: &Written<'_>) -> Option<String> {
    let (name, named) = (written.name, !written.members.is_empty());
    match written.count {
        Some(0) => Some(format!("`{name}` has 0 members")),
        Some(count) if count > MOST_MEMBERS => Some(format!("{count} members, the most is {MOST_MEMBERS}")),
        Some(count) if count as usize != written.members.len() => {
            Some(format!("{count} members by number, {} by name", written.members.len()))
        }
        _ if named && entry.keys.each.is_some() => Some(format!("`{name}` has a member for each group already")),
        None if !named && written.index.is_some() => {
            Some(format!("`{name}` has no members for its `index` to tell apart"))
        }
        _ => None,
    }
}

/// The expression with an index replaced by a number.
fn bind(expr: &Expr, index: &str, value: i64) -> Expr {
    map(expr, &|e| match &e.kind {
        ExprKind::Name(name) if name == index => Some(Expr { kind: ExprKind::Int(value), loc: e.loc.clone() }),
        _ => None,
    })
}

/// The expression with members of families by name, and sums over a family term by term.
fn write_out(expr: &Expr, families: &Families) -> Expr {
    map(expr, &|e| match &e.kind {
        ExprKind::Call(name, args) if name.text == "sum" || name.text == "mean" => sum(name, args, families),
        ExprKind::Index(name, args) => member(name, args, families),
        _ => None,
    })
}

fn sum(name: &Name, args: &[Expr], families: &Families) -> Option<Expr> {
    let [Expr { kind: ExprKind::Name(index), .. }, body] = args else {
        return None;
    };
    let count = family_of(body, index, families)?;
    let terms = (0..count as i64).map(|n| write_out(&bind(body, index, n), families));
    let plus = |a: Expr, b: Expr| Expr {
        loc: name.loc.clone(),
        kind: ExprKind::Binary(BinaryOp::Add, Box::new(a), Box::new(b)),
    };
    let total = terms.reduce(plus)?;
    if name.text == "sum" {
        return Some(total);
    }
    let count = Expr { kind: ExprKind::Float(count as f64), loc: name.loc.clone() };
    Some(Expr { loc: name.loc.clone(), kind: ExprKind::Binary(BinaryOp::Div, Box::new(total), Box::new(count)) })
}

/// Members of the family that an index runs over in this expression, if it does.
fn family_of(body: &Expr, index: &str, families: &Families) -> Option<usize> {
    let mut count = None;
    body.visit(&mut |e| {
        if let ExprKind::Index(name, args) = &e.kind
            && let [Expr { kind: ExprKind::Name(i), .. }] = args.as_slice()
            && i == index
        {
            count = families.get(&name.text).map(Vec::len).or(count);
        }
    });
    count
}

fn member(name: &Name, args: &[Expr], families: &Families) -> Option<Expr> {
    let [Expr { kind: ExprKind::Int(n), .. }] = args else {
        return None;
    };
    let target = families.get(&name.text)?.get(usize::try_from(*n).ok()?)?;
    Some(Expr { kind: ExprKind::Name(target.clone()), loc: name.loc.clone() })
}

/// The expression with every part replaced for which `f` has something; outer parts first.
fn map(expr: &Expr, f: &impl Fn(&Expr) -> Option<Expr>) -> Expr {
    if let Some(new) = f(expr) {
        return new;
    }
    let all = |args: &[Expr]| args.iter().map(|a| map(a, f)).collect();
    let kind = match &expr.kind {
        ExprKind::Index(name, args) => ExprKind::Index(name.clone(), all(args)),
        ExprKind::Call(name, args) => ExprKind::Call(name.clone(), all(args)),
        ExprKind::Unary(op, a) => ExprKind::Unary(*op, Box::new(map(a, f))),
        ExprKind::Binary(op, a, b) => ExprKind::Binary(*op, Box::new(map(a, f)), Box::new(map(b, f))),
        kind => kind.clone(),
    };
    Expr { kind, loc: expr.loc.clone() }
}
