//! Producers: statistics of buffers, signals from them, slots smoothed by a law.

use std::collections::BTreeMap;

use unio_interface::{Grid, Shared};

use super::expr::{Namer, Printer, register_type};
use super::update::{Equations, Pointer, alike, lead, registers};
use super::{Function, KernelBody, Lowered, Op, SharedArray};
use crate::math::{BinaryFn, Expr, Role, StatisticKind, TensorId, UnaryFn};
use crate::plan::{KernelPlan, ProducerBody, ProducerStep, SignalPlan, Table};

/// What the skeleton of producers is filled with.
#[derive(Debug)]
pub struct ProducerText {
    /// Which of the producer's steps.
    pub step: ProducerStep,
    /// Whether it is told the number of elements; else the rows tell.
    pub counted: bool,
    /// Whether there is one part, of that number, so that nobody has to tell the rows.
    pub ranged: bool,
    /// Whether it reads buffers; without elements it then observes nothing.
    pub reads: bool,
    /// Threads a block.
    pub threads: u32,
    /// Elements that a thread reads before it counts them.
    pub unroll: usize,
    /// What a quantile takes where there is no element: a value in the lowest bin, which no window holds, or in none.
    pub missing: &'static str,
    /// Buffers with one number an element, which it reads neighbours at a time.
    pub columns: Vec<ColumnText>,
    /// Whether a turn starts the reads of the next.
    pub early: bool,
    /// Layout of the tables between the steps.
    pub table: Table,
    /// Statistics that are sums, or end as one.
    pub sums: Vec<SumText>,
    /// Statistics that are maxima.
    pub maxima: Vec<SumText>,
    /// Statistics that are quantiles.
    pub quantiles: Vec<QuantileText>,
    /// Slots and states that are read, each once.
    pub scalars: Vec<Op>,
    /// Whether they must have been read by all threads before a slot moves.
    pub reads_before: bool,
    /// Signals and smoothing, a signal a warp: its first thread does it.
    pub signals: Vec<Op>,
    /// Threads of those warps.
    pub signal_threads: usize,
}

/// A buffer with one number an element.
#[derive(Debug)]
pub struct ColumnText {
    /// Its C type.
    pub ty: &'static str,
    /// Its pointer.
    pub pointer: String,
    /// Registers of a turn's elements.
    pub array: String,
    /// Registers of those of the next.
    pub next: String,
}

/// A statistic that adds up one number an element.
#[derive(Debug)]
pub struct SumText {
    /// Name of the accumulator.
    pub acc: String,
    /// Statements and value for element `e`.
    pub before: Vec<Op>,
    /// The number added, unless it is a product.
    pub value: String,
    /// Its factors, if it is: what is exact in f64 may be multiplied and added at once.
    pub factors: Option<(String, String)>,
    /// Name of the total over all elements, in f64.
    pub total: String,
    /// Name of the result.
    pub result: String,
    /// The result from the total.
    pub finish: String,
    /// Its place in a row of sums.
    pub place: usize,
}

/// A quantile.
#[derive(Debug)]
pub struct QuantileText {
    /// Name of the array of counts, a row for each warp.
    pub counts: String,
    /// Statements and value for element `e`.
    pub before: Vec<Op>,
    /// The number ranked.
    pub value: String,
    /// Share of the elements below the result.
    pub share: String,
    /// Name of the result.
    pub result: String,
    /// First of its integers in the brackets.
    pub bracket: usize,
    /// Place in a row of what is finite; what lies above its window comes after.
    pub pair: usize,
    /// First of its window's counts in a row.
    pub column: usize,
    /// First of its counts in a row of counts by exponent, or by mantissa.
    pub refined_column: usize,
}

/// Buffers of which a thread has registers for two turns.
const MOST_EARLY: usize = 4;

/// How names begin that the skeleton gives to what belongs to the statistic of a number.
pub(super) const NUMBERED_NAMES: &[&str] = &["stat_", "counts_", "acc_", "total_"];

/// Names that the skeleton gives itself.
pub(super) const OWN_NAMES: &[&str] = &[
    "n",
    "e",
    "k",
    "warp",
    "lane",
    "counted",
    "joined",
    "found",
    "partial",
    "bin",
    "first",
    "place",
    "there",
    "step",
    "row",
    "summed",
    "largest",
    "outside",
    "many",
    "lead",
    "own",
    "whole",
    "next_whole",
    "known",
    "parts",
];

pub(super) fn lower(kernel: &KernelPlan, body: &ProducerBody, names: &[String], mut namer: Namer) -> Lowered {
    let pointer = |(id, param): (&TensorId, &usize)| (*id, Pointer { name: names[*param].clone(), first: 0 });
    let scalars: Vec<String> = body.scalars.iter().map(|s| names[*s].clone()).collect();
    let (scalars, read) = registers(&body.program, &scalars, &mut namer);
    let mut places = Equations {
        program: &body.program,
        pointers: body.params.iter().map(pointer).collect(),
        scalars,
        values: BTreeMap::new(),
        counting: BTreeMap::new(),
    };
    let mut text = blank(kernel, body);
    if body.step == ProducerStep::Count {
        add_columns(&mut text, &mut places, &mut namer);
    }
    let namer = add_statistics(&mut text, body, &mut places, namer);
    add_signals(&mut text, body, names, &mut places, &namer);
    // One thread moves a slot, which another may have to read before.
    text.reads_before = text.signal_threads > 32 && !read.is_empty();
    text.scalars = if body.step == ProducerStep::Settle { Vec::new() } else { read };
    let (arrays, bytes) = arrays(&text);
    let grid = grid(body, &text);
    let numbered = matches!(body.step, ProducerStep::Settle | ProducerStep::Refine | ProducerStep::Finish);
    Lowered {
        grid,
        shared: Shared { reals: 0, bytes },
        arrays,
        counted: text.counted,
        functions: law(body).into_iter().collect(),
        numbers: if numbered { vec!["parts".into()] } else { Vec::new() },
        body: KernelBody::Producer(text),
    }
}

/// Registers for what the first read of many elements takes from buffers with one number each.
fn add_columns(text: &mut ProducerText, places: &mut Equations<'_>, namer: &mut Namer) {
    for (id, tensor) in places.program.tensors.iter().enumerate() {
        let of_elements = tensor.role == Role::Table && tensor.shape.len() == 1;
        if let Some(pointer) = places.pointers.get(&id).filter(|_| of_elements) {
            let [array, next] = ["s", "s_next"].map(|what| namer.unique(&format!("{}_{what}", tensor.name)));
            places.values.insert(id, format!("{array}[k]"));
            text.columns.push(ColumnText {
                ty: register_type(tensor.elem),
                pointer: pointer.name.clone(),
                array,
                next,
            });
        }
    }
    text.early = text.table.quantiles > 1 && (1..=MOST_EARLY).contains(&text.columns.len());
}

/// Each statistic; where a step joins rows, its name and place alone.
fn add_statistics(text: &mut ProducerText, body: &ProducerBody, places: &mut Equations<'_>, mut namer: Namer) -> Namer {
    for (n, statistic) in body.program.statistics.iter().enumerate() {
        let (mut before, mut value, mut factors) = (Vec::new(), String::new(), None);
        if !matches!(body.step, ProducerStep::Finish | ProducerStep::Settle) {
            let vars = BTreeMap::from([(statistic.element, "e".to_owned())]);
            let mut printer = Printer::new(&body.program, places, vars, namer);
            let measured = measured(statistic.kind, &statistic.value);
            match (statistic.kind, &measured) {
                (StatisticKind::Quantile(_) | StatisticKind::Max, _) => {
                    value = printer.expr(&measured, &mut before).text();
                }
                (_, Expr::Binary(BinaryFn::Mul, a, b)) => {
                    let [a, b] = [a, b].map(|factor| wide(&mut printer, factor, &mut before));
                    factors = Some((a, b));
                }
                _ => value = wide(&mut printer, &measured, &mut before),
            }
            namer = printer.namer;
        }
        add_statistic(text, n, statistic.kind, before, (value, factors));
    }
    let results = body.program.statistics.iter().enumerate().map(|(n, s)| (s.tensor, format!("stat_{n}")));
    places.values.extend(results);
    if matches!(body.step, ProducerStep::Exponents | ProducerStep::Refine) {
        // The first read gave them.
        text.sums.clear();
        text.maxima.clear();
    }
    namer
}

/// Each signal by the first thread of a warp; a later one may be made of earlier ones.
fn add_signals(
    text: &mut ProducerText,
    body: &ProducerBody,
    names: &[String],
    places: &mut Equations<'_>,
    namer: &Namer,
) {
    let warps = text.threads as usize / 32;
    for (n, signal) in body.signals.iter().enumerate() {
        let (ops, x) = smooth(body, signal, n % warps * 32, names, places, namer.clone());
        places.values.insert(signal.tensor, x);
        text.signals.extend(ops);
    }
    text.signal_threads = warps.min(body.signals.len()) * 32;
}

fn grid(body: &ProducerBody, text: &ProducerText) -> Grid {
    let (per_block, least, most) = match body.step {
        ProducerStep::Count => (Table::PER_BLOCK, 1, text.table.rows() as u32),
        ProducerStep::Exponents | ProducerStep::Refine => (Table::PER_BLOCK, 1, Table::REFINED_ROWS as u32),
        ProducerStep::Settle => (u32::MAX, text.quantiles.len() as u32, text.quantiles.len() as u32),
        ProducerStep::Whole | ProducerStep::Linear | ProducerStep::Finish => (u32::MAX, 1, 1),
    };
    let limit = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    match body.range {
        Some((above, up_to)) => Grid::Between { per_block, least, most, above: limit(above), up_to: limit(up_to) },
        None if least == most => Grid::Fixed(most),
        None => Grid::Elements { per_block, least, most },
    }
}

fn blank(kernel: &KernelPlan, body: &ProducerBody) -> ProducerText {
    let table = Table::of(&body.program);
    ProducerText {
        step: body.step,
        ranged: body.range.is_some(),
        counted: body.range.is_some() || !matches!(body.step, ProducerStep::Settle | ProducerStep::Finish),
        reads: body.program.tensors.iter().any(|t| t.role == Role::Table),
        threads: kernel.threads,
        unroll: match body.step {
            ProducerStep::Whole | ProducerStep::Linear => Table::UNROLL,
            _ => table.unroll(),
        },
        missing: if body.step == ProducerStep::Count { "0.0f" } else { "unio_nan()" },
        columns: Vec::new(),
        early: false,
        table,
        sums: Vec::new(),
        maxima: Vec::new(),
        quantiles: Vec::new(),
        scalars: Vec::new(),
        reads_before: false,
        signals: Vec::new(),
        signal_threads: 0,
    }
}

/// Adds a statistic; sums and maxima share the table of sums, quantiles have columns of counts.
fn add_statistic(
    text: &mut ProducerText,
    n: usize,
    kind: StatisticKind,
    before: Vec<Op>,
    (value, factors): (String, Option<(String, String)>),
) {
    let result = format!("stat_{n}");
    if let StatisticKind::Quantile(q) = kind {
        let (n_quantile, counts, share) = (text.quantiles.len(), format!("counts_{n}"), format!("{q:?}"));
        text.quantiles.push(QuantileText {
            counts,
            before,
            value,
            share,
            result,
            bracket: n_quantile * Table::BRACKET,
            pair: text.table.pair(n_quantile),
            column: text.table.column(n_quantile),
            refined_column: n_quantile * Table::BINS,
        });
        return;
    }
    let total = format!("total_{n}");
    let (finish, place) = (finish(kind, &total), text.sums.len() + text.maxima.len());
    let sum = SumText { acc: format!("acc_{n}"), before, value, factors, total, result, finish, place };
    if kind == StatisticKind::Max { text.maxima.push(sum) } else { text.sums.push(sum) }
}

/// What a sum adds, in f64 from the elements on: a product of two f32 is exact there, and no square overflows.
fn wide(printer: &mut Printer<'_>, value: &Expr, before: &mut Vec<Op>) -> String {
    match value {
        Expr::Binary(op @ (BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul), a, b) => {
            let sign = match op {
                BinaryFn::Add => "+",
                BinaryFn::Sub => "-",
                _ => "*",
            };
            let (a, b) = (wide(printer, a, before), wide(printer, b, before));
            format!("({a} {sign} {b})")
        }
        // Converting is slow: what is measured with and without its sign converts once.
        Expr::Unary(UnaryFn::Abs, x) => format!("unio_abs({})", wide(printer, x, before)),
        value => format!("double({})", printer.expr(value, before).text()),
    }
}

fn measured(kind: StatisticKind, value: &Expr) -> Expr {
    match kind {
        StatisticKind::Rms | StatisticKind::Norm => Expr::mul(value.clone(), value.clone()),
        _ => value.clone(),
    }
}

/// The result from the total, in f64.
fn finish(kind: StatisticKind, total: &str) -> String {
    match kind {
        StatisticKind::Mean => format!("{total} / double(n)"),
        StatisticKind::Rms => format!("unio_sqrt({total} / double(n))"),
        StatisticKind::Norm => format!("unio_sqrt({total})"),
        _ => total.to_owned(),
    }
}

/// What the step needs of: partial sums, sums joined over threads, the totals that the scan works on, the bin that was found,
/// a row of counts a warp for each quantile.
fn arrays(text: &ProducerText) -> (Vec<SharedArray>, u32) {
    use ProducerStep::{Count, Exponents, Finish, Refine, Settle};
    let (threads, warps) = (text.threads as usize, text.threads as usize / 32);
    let mut offset = 0;
    let mut arrays = Vec::new();
    let mut add = |ty, name: &str, bytes: usize| {
        arrays.push(SharedArray { ty, name: name.to_owned(), offset: offset.to_string() });
        offset += bytes;
    };
    let (step, ranks) = (text.step, !text.quantiles.is_empty());
    let has_totals = !(text.sums.is_empty() && text.maxima.is_empty());
    if has_totals && step != Settle || step == ProducerStep::Linear {
        add("double", "partial", 32 * 8 * text.sums.len().max(text.maxima.len()).max(1));
    }
    if ranks && matches!(step, Count | Settle | Refine | Finish) {
        add("int", "joined", 4 * threads.max(32 * 2 * text.quantiles.len()));
    }
    if ranks && !matches!(step, Count | Exponents) {
        add("int", "counted", (Table::BINS + 32) * 4);
        add("int", "found", 16);
    }
    for q in text.quantiles.iter().filter(|_| !matches!(step, Settle | Finish)) {
        add("int", &q.counts, warps * text.bins() * 4);
        if step == Count {
            add("unsigned short", &format!("{}_lists", q.counts), warps * text.table.list() * 2);
        }
    }
    (arrays, offset as u32)
}

/// How the blocks of a step walk over the elements, in C.
pub struct Walk {
    /// Elements of a block's turn.
    pub chunk: usize,
    /// What must hold besides, so that neighbours are taken together.
    pub alike: String,
    /// How far the first element lies from an aligned address, where they are.
    pub lead: String,
    /// Head of the loop over turns, where no neighbours are taken together.
    pub head: String,
    /// Place of a thread's element `k` of a turn.
    pub place: String,
    /// The same where neighbours are taken together and all are there.
    pub neighbour: String,
    /// Of the neighbours that one access takes: the number of the first, and how far ahead of the thread's first it lies.
    pub fours: Vec<(usize, String)>,
}

impl ProducerText {
    /// The first read takes four neighbours together where it can; the other steps take one element at a time.
    pub fn walk(&self) -> Walk {
        let (threads, chunk, four) = (self.threads, self.unroll * self.threads as usize, 4 * self.threads as usize);
        let ahead = |n: usize| if n == 0 { String::new() } else { format!(" + {}", n * four) };
        let within = if self.unroll == 4 { "k".to_owned() } else { format!("(k / 4 * {four} + k % 4)") };
        let start = format!("unsigned first = blockIdx.x * (many ? {chunk} : {threads})");
        let pointers: Vec<&str> = self.columns.iter().map(|c| c.pointer.as_str()).collect();
        Walk {
            chunk,
            alike: alike(&pointers),
            lead: lead("many", &pointers),
            head: format!("{start}; first < unsigned(n); first += gridDim.x * {chunk}"),
            place: match self.step {
                ProducerStep::Count => format!("own + (many ? {within} : k * step)"),
                _ => "first + k * step + threadIdx.x".to_owned(),
            },
            neighbour: format!("own + {within}"),
            fours: (0..self.unroll / 4).map(|n| (4 * n, ahead(n))).collect(),
        }
    }

    /// Bins of a warp's row of counts.
    pub fn bins(&self) -> usize {
        if self.step == ProducerStep::Count { Table::WINDOW } else { Table::BINS }
    }
}

/// One signal: its observation, and the law that moves its slot, by one thread.
fn smooth(
    body: &ProducerBody,
    signal: &SignalPlan,
    thread: usize,
    names: &[String],
    places: &Equations<'_>,
    mut namer: Namer,
) -> (Vec<Op>, String) {
    let x = namer.unique(&format!("{}_x", body.program.tensors[signal.tensor].name));
    let mut printer = Printer::new(&body.program, places, BTreeMap::new(), namer);
    let mut ops = Vec::new();
    let Some((assign, _)) = body.program.assigns().find(|(a, _)| a.tensor == signal.tensor) else {
        return (ops, x);
    };
    let value = printer.expr(&assign.value, &mut ops).text();
    ops.push(Op::Let { ty: "real", name: x.clone(), value });
    let observe = Op::Set { place: format!("{}[0]", names[signal.observed]), value: x.clone() };
    let skipped = &names[signal.skipped];
    let count = Op::Set { place: format!("{skipped}[0]"), value: format!("{skipped}[0] + 1") };
    let call = |(slot, states): &(usize, usize)| {
        Op::Do(format!("{}({x}, {}, {})", law_symbol(body), names[*slot], names[*states]))
    };
    let moved: Vec<Op> = signal.smoothed.iter().map(call).collect();
    let finite = match moved.is_empty() {
        true => Op::If { condition: format!("!unio_isfinite({x})"), body: vec![count], otherwise: Vec::new() },
        false => Op::If { condition: format!("unio_isfinite({x})"), body: moved, otherwise: vec![count] },
    };
    let (condition, otherwise) = (format!("threadIdx.x == {thread}"), Vec::new());
    ops.push(Op::If { condition, body: vec![observe, finite], otherwise });
    (ops, x)
}

/// The smoothing law as a function of the observation, the slot and the states.
fn law(body: &ProducerBody) -> Option<Function> {
    body.signals.iter().find(|s| s.smoothed.is_some())?;
    let law = &body.smoothing;
    let mut values = BTreeMap::new();
    let mut pointers = BTreeMap::new();
    for (id, tensor) in law.tensors.iter().enumerate() {
        let place = match body.states.iter().position(|s| *s == tensor.name) {
            Some(n) => Pointer { name: "states".into(), first: n },
            None => Pointer { name: "slot".into(), first: 0 },
        };
        match tensor.role {
            Role::Input => drop(values.insert(id, "x".to_owned())),
            Role::State | Role::Next { .. } => drop(pointers.insert(id, place)),
            _ => {}
        }
    }
    let mut namer = Namer::default();
    for taken in ["x", "slot", "states"] {
        namer.unique(taken);
    }
    let equations = Equations { program: law, pointers, scalars: Vec::new(), values, counting: BTreeMap::new() };
    Some(Function {
        comment: format!("The law `{}`: moves a slot and its states on by one observation.", body.law),
        signature: format!("void {}(real x, float* slot, float* states)", law_symbol(body)),
        body: equations.lower(None, namer).all(),
    })
}

fn law_symbol(body: &ProducerBody) -> String {
    format!("{}_law", body.law)
}
