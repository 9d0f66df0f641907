//! Reductions as text: loops in front of the equation that uses them. Those of a phase stand together, so that their reads
//! are on the way at the same time and what several of them read is read once.

use std::collections::BTreeSet;

use super::Op;
use super::expr::{ATOM, Code, Printer, SUM, TERM, unflat};
use crate::math::{BinaryFn, Expr, Reduction, TensorId, VarId};
use crate::plan::lanes::{GROUP, in_groups};

/// Turns of a split sum that are written out together.
const UNROLLED: usize = 8;

/// Values of one variable that a thread takes together. Where lanes share the terms, each sums its share for all values and
/// finishes the one of its own number; a thread alone finishes one after the other.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// The variable.
    pub(super) var: VarId,
    /// The name of the tile's number.
    pub(super) number: String,
    /// Values of a tile.
    pub(super) size: usize,
    /// What counts them.
    pub(super) turn: String,
}

impl Tile {
    /// What is done for one value after the other, each under the name of its own.
    pub(super) fn each(&self, name: &str, mut body: Vec<Op>) -> Op {
        let value = format!("{} * {} + {}", self.number, self.size, self.turn);
        body.insert(0, Op::Let { ty: "int", name: name.to_owned(), value });
        self.over(body)
    }

    fn over(&self, body: Vec<Op>) -> Op {
        let turn = &self.turn;
        Op::Unrolled { head: format!("int {turn} = 0; {turn} < {}; ++{turn}", self.size), times: None, body }
    }
}

impl Printer<'_> {
    /// Sums what equations sum and none of them makes, before any of them.
    pub(super) fn sum_ahead(&mut self, values: &[&Expr], made: &BTreeSet<TensorId>, ops: &mut Vec<Op>) {
        let (mut loops, mut joins) = (Vec::new(), Vec::new());
        for value in values {
            for sums in sum_groups(value, self.lanes.is_some()) {
                let waits = sums.iter().any(|sum| !sum.loads().is_disjoint(made));
                if !waits && self.total(&sums).is_none() {
                    let total = self.partials(&sums, &mut loops, &mut joins);
                    self.ready.push((sums.into_iter().cloned().collect(), total));
                }
            }
        }
        ops.extend(merged(loops));
        ops.extend(joins);
    }

    fn total(&self, sums: &[&Expr]) -> Option<String> {
        let same = |known: &[Expr]| known.len() == sums.len() && known.iter().zip(sums).all(|(a, b)| a == *b);
        self.ready.iter().find(|(known, _)| same(known)).map(|(_, total)| total.clone())
    }

    /// Several sums that lanes split are added before the lanes join: once instead of once a sum.
    pub(super) fn joined_sums(&mut self, op: BinaryFn, a: &Expr, b: &Expr, before: &mut Vec<Op>) -> Option<Code> {
        if self.lanes.is_none() || op != BinaryFn::Add {
            return None;
        }
        let mut terms = Vec::new();
        add_terms(a, &mut terms);
        add_terms(b, &mut terms);
        let (sums, others): (Vec<&Expr>, Vec<&Expr>) = terms.into_iter().partition(|e| is_sum(e));
        if sums.len() < 2 {
            return None;
        }
        let mut text = self.summed(&sums, before);
        for other in &others {
            text = format!("{text} + {}", self.expr(other, before).at(TERM));
        }
        Some(Code { text, level: if others.is_empty() { ATOM } else { SUM } })
    }

    /// The total of reductions that are added; where they stand alone, of the one.
    pub(super) fn summed(&mut self, sums: &[&Expr], before: &mut Vec<Op>) -> String {
        if let Some(total) = self.total(sums) {
            return total;
        }
        let mut joins = Vec::new();
        let total = self.partials(sums, before, &mut joins);
        before.extend(joins);
        total
    }

    /// A thread's own part of each of the sums, and how the lanes join them: the name that has the total then.
    fn partials(&mut self, sums: &[&Expr], loops: &mut Vec<Op>, joins: &mut Vec<Op>) -> String {
        let mut parts = Vec::new();
        let mut joined = Reduction::Sum;
        for sum in sums {
            let Expr::Reduce(op, vars, body) = sum else { continue };
            joined = *op;
            parts.push(self.partial(*op, vars, body, loops));
        }
        let total = parts[0].clone();
        let place = |part: &String| match &self.tile {
            Some(tile) => format!("{part}[{}]", tile.turn),
            None => part.clone(),
        };
        let Some((lanes, _)) = &self.lanes else { return place(&total) };
        let there = if self.whole { "UNIO_WARP".to_owned() } else { format!("unio_sharers<{lanes}>()") };
        if let Some(tile) = &self.tile {
            let add =
                |part: &String| Op::Set { place: place(&total), value: format!("{} + {}", place(&total), place(part)) };
            let body: Vec<Op> = parts[1..].iter().map(add).collect();
            joins.extend((!body.is_empty()).then(|| tile.over(body)));
            let own = self.namer.unique("own");
            joins.push(Op::Let {
                ty: "real",
                name: own.clone(),
                value: format!("unio_lanes_own<{lanes}>({there}, {total})"),
            });
            return own;
        }
        let join = match joined {
            Reduction::Sum => "unio_lanes_sum",
            Reduction::Max => "unio_lanes_max",
            Reduction::Min => "unio_lanes_min",
        };
        let value = format!("{join}<{lanes}>({there}, {})", parts.join(" + "));
        joins.push(Op::Set { place: total.clone(), value });
        total
    }

    /// A thread's own part of a reduction: the name of its accumulator, or of one for each value of the tile.
    fn partial(&mut self, op: Reduction, vars: &[VarId], body: &Expr, before: &mut Vec<Op>) -> String {
        let acc = self.namer.unique("acc");
        let start = match op {
            Reduction::Sum => "real(0)",
            Reduction::Max => "-real(unio_inf())",
            Reduction::Min => "real(unio_inf())",
        };
        before.push(match &self.tile {
            Some(tile) => Op::Do(format!("real {acc}[{}] = {{}}", tile.size)),
            None => Op::Var { ty: "real", name: acc.clone(), value: start.into() },
        });
        let names: Vec<String> = vars.iter().map(|v| self.bind(*v)).collect();
        let kept = body.loads().into_iter().find_map(|t| self.kept.get(&t).map(|(_, count)| *count));
        let turns = kept.or_else(|| self.grouped(vars));
        let turn = turns.map(|_| self.namer.unique("turn"));
        self.turn = turn.clone().filter(|_| kept.is_some());
        let inner = self.add(op, &acc, body);
        self.turn = None;
        match (turns, turn) {
            (Some(count), Some(turn)) => {
                before.push(self.turns(&names[0], count, &turn, kept.is_some(), inner));
                self.namer.release(&turn);
            }
            _ => {
                let loops = self.loops(vars, &names, inner);
                before.extend(loops);
            }
        }
        vars.iter().zip(&names).for_each(|(var, name)| self.unbind(*var, name));
        acc
    }

    /// Adds one term, to the sum of each value of the tile.
    fn add(&mut self, op: Reduction, acc: &str, body: &Expr) -> Vec<Op> {
        let mut inner = Vec::new();
        let Some(tile) = self.tile.clone() else {
            let value = self.accumulate(op, acc, body, &mut inner);
            inner.push(Op::Set { place: acc.to_owned(), value });
            return inner;
        };
        let own = self.vars.remove(&tile.var);
        let name = self.bind(tile.var);
        let place = format!("{acc}[{}]", tile.turn);
        let value = self.accumulate(op, &place, body, &mut inner);
        inner.push(Op::Set { place, value });
        self.unbind(tile.var, &name);
        self.vars.extend(own.map(|own| (tile.var, own)));
        vec![tile.each(&name, inner)]
    }

    /// Turns of a sum whose terms lanes take in groups of neighbours.
    fn grouped(&self, vars: &[VarId]) -> Option<usize> {
        let ([var], Some((lanes, _))) = (vars, &self.lanes) else { return None };
        let terms = self.program.vars[*var].extent;
        in_groups(terms, *lanes).then_some(terms / lanes)
    }

    /// A loop over a thread's terms; over those that it keeps, written out.
    pub(super) fn turns(&self, var: &str, count: usize, turn: &str, kept: bool, body: Vec<Op>) -> Op {
        let value = match &self.lanes {
            // Neighbours, so that they are read several at a time; lanes take them side by side.
            Some((lanes, lane)) if in_groups(count * lanes, *lanes) => {
                format!("({turn} / {GROUP} * {lanes} + {lane}) * {GROUP} + {turn} % {GROUP}")
            }
            Some((_, lane)) => format!("{lane} * {count} + {turn}"),
            None => turn.to_owned(),
        };
        let mut all = vec![Op::Let { ty: "int", name: var.to_owned(), value }];
        all.extend(body);
        let times = (!kept).then_some(UNROLLED);
        Op::Unrolled { head: format!("int {turn} = 0; {turn} < {count}; ++{turn}"), times, body: all }
    }

    /// Loops over all values; lanes take every so-many-th of them, as one range.
    fn loops(&mut self, vars: &[VarId], names: &[String], mut inner: Vec<Op>) -> Vec<Op> {
        let extents: Vec<usize> = vars.iter().map(|v| self.program.vars[*v].extent).collect();
        if let Some((lanes, lane)) = self.lanes.clone() {
            let total: usize = extents.iter().product();
            let at = if vars.len() == 1 { names[0].clone() } else { self.namer.unique("q") };
            if vars.len() > 1 {
                self.namer.release(&at);
                inner = unflat(names, &extents, &at).into_iter().chain(inner).collect();
            }
            // Each turn's reads are on the way before the first is used.
            let head = format!("int {at} = {lane}; {at} < {total}; {at} += {lanes}");
            return vec![Op::Unrolled { head, times: Some(UNROLLED), body: inner }];
        }
        let mut times = self.tile.is_some().then_some(UNROLLED);
        for (name, extent) in names.iter().zip(&extents).rev() {
            let (head, body) = (format!("int {name} = 0; {name} < {extent}; ++{name}"), inner);
            inner = vec![match times.take() {
                Some(times) => Op::Unrolled { head, times: Some(times), body },
                None => Op::For { head, body },
            }];
        }
        inner
    }
}

/// The sums of an equation as they are joined: those that one addition adds together, the others one by one.
fn sum_groups(value: &Expr, split: bool) -> Vec<Vec<&Expr>> {
    match value {
        Expr::Reduce(..) => vec![vec![value]],
        Expr::Binary(BinaryFn::Add, ..) if split => {
            let mut terms = Vec::new();
            add_terms(value, &mut terms);
            let (sums, others): (Vec<&Expr>, Vec<&Expr>) = terms.into_iter().partition(|e| is_sum(e));
            let together = (!sums.is_empty()).then_some(sums);
            together.into_iter().chain(others.into_iter().flat_map(|e| sum_groups(e, split))).collect()
        }
        Expr::Binary(_, a, b) => [a, b].into_iter().flat_map(|e| sum_groups(e, split)).collect(),
        Expr::Select(c, a, b) => [c, a, b].into_iter().flat_map(|e| sum_groups(e, split)).collect(),
        Expr::Unary(_, a) | Expr::ToReal(a) => sum_groups(a, split),
        Expr::Load(_, index) => index.iter().flat_map(|e| sum_groups(e, split)).collect(),
        Expr::Real(_) | Expr::Int(_) | Expr::Var(_) | Expr::Scalar(_) => Vec::new(),
    }
}

fn is_sum(expr: &Expr) -> bool {
    matches!(expr, Expr::Reduce(Reduction::Sum, ..))
}

/// What a chain of additions adds, in order.
fn add_terms<'e>(expr: &'e Expr, terms: &mut Vec<&'e Expr>) {
    match expr {
        Expr::Binary(BinaryFn::Add, a, b) => {
            add_terms(a, terms);
            add_terms(b, terms);
        }
        other => terms.push(other),
    }
}

/// The same statements with loops over the same range as one; what stands before any of them comes first.
fn merged(ops: Vec<Op>) -> Vec<Op> {
    let mut out: Vec<Op> = Vec::new();
    let mut loops: Vec<Op> = Vec::new();
    for op in ops {
        match op {
            Op::For { .. } | Op::Unrolled { .. } => join_loop(&mut loops, op),
            // Two loops name their terms alike.
            Op::Let { .. } if out.contains(&op) => {}
            op => out.push(op),
        }
    }
    out.extend(loops);
    out
}

fn join_loop(loops: &mut Vec<Op>, op: Op) {
    for known in loops.iter_mut() {
        match (known, &op) {
            (Op::For { head, body }, Op::For { head: same, body: more }) if head == same && may_join(body, more) => {
                *body = merged(body.iter().chain(more).cloned().collect());
                return;
            }
            (Op::Unrolled { head, times, body }, Op::Unrolled { head: same, times: others, body: more })
                if head == same && may_join(body, more) =>
            {
                *times = times.filter(|_| others.is_some());
                *body = merged(body.iter().chain(more).cloned().collect());
                return;
            }
            _ => {}
        }
    }
    loops.push(op);
}

/// Whether two bodies may be one: neither does anything after a loop, and what both name is the same to both.
fn may_join(a: &[Op], b: &[Op]) -> bool {
    let is_loop = |op: &Op| matches!(op, Op::For { .. } | Op::Unrolled { .. });
    let ends_with_loops = |ops: &[Op]| ops.is_sorted_by_key(is_loop);
    let clash = |x: &Op| match x {
        Op::Let { name, .. } => b.iter().any(|y| matches!(y, Op::Let { name: same, .. } if same == name) && x != y),
        _ => false,
    };
    ends_with_loops(a) && ends_with_loops(b) && !a.iter().any(clash)
}
