//! Producers: statistics of buffers, signals from them, slots smoothed by a law.

use std::collections::BTreeMap;

use unio_interface::{Grid, Shared};

use super::expr::{Namer, Printer};
use super::update::{Equations, Pointer};
use super::{KernelBody, Lowered, Op, SharedArray};
use crate::math::{Expr, Role, StatisticKind, TensorId};
use crate::plan::{KernelPlan, ProducerBody, SignalPlan};

/// Bins of a level of the quantile search: the float's exponent, then the top bits of its mantissa. One a thread.
pub const BINS: usize = 256;

/// What the skeleton of producers is filled with.
#[derive(Debug)]
pub struct ProducerText {
    /// Threads a block.
    pub threads: u32,
    /// Statistics that are sums, or end as one.
    pub sums: Vec<SumText>,
    /// Statistics that are maxima.
    pub maxima: Vec<SumText>,
    /// Statistics that are quantiles.
    pub quantiles: Vec<QuantileText>,
    /// Signals and smoothing, by one thread.
    pub signals: Vec<Op>,
}

/// A statistic that adds up one number an element.
#[derive(Debug)]
pub struct SumText {
    /// Name of the accumulator.
    pub acc: String,
    /// Statements and value for element `e`.
    pub before: Vec<Op>,
    /// The number added.
    pub value: String,
    /// Name of the total over all elements, in f64.
    pub total: String,
    /// Name of the result.
    pub result: String,
    /// The result from the total.
    pub finish: String,
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
}

/// Names that the skeleton gives itself.
pub(super) const OWN_NAMES: &[&str] = &[
    "n", "e", "warp", "lane", "counted", "found", "partial", "bits", "inside", "bin", "first", "half",
];

pub(super) fn lower(kernel: &KernelPlan, body: &ProducerBody, names: &[String], mut namer: Namer) -> Lowered {
    let pointers: BTreeMap<TensorId, Pointer> = body
        .params
        .iter()
        .map(|(id, param)| {
            (
                *id,
                Pointer {
                    name: names[*param].clone(),
                    first: 0,
                },
            )
        })
        .collect();
    let scalars: Vec<String> = body.scalars.iter().map(|s| names[*s].clone()).collect();
    let mut text = ProducerText {
        threads: kernel.threads,
        sums: Vec::new(),
        maxima: Vec::new(),
        quantiles: Vec::new(),
        signals: Vec::new(),
    };
    let mut results = BTreeMap::new();
    for (n, statistic) in body.program.statistics.iter().enumerate() {
        let places = Equations {
            program: &body.program,
            pointers: pointers.clone(),
            scalars: scalars.clone(),
            values: BTreeMap::new(),
        };
        let vars = BTreeMap::from([(statistic.element, "e".to_owned())]);
        let mut printer = Printer {
            program: &body.program,
            places: &places,
            vars,
            namer: namer.clone(),
        };
        let mut before = Vec::new();
        let measured = measured(statistic.kind, &statistic.value);
        let value = printer.expr(&measured, &mut before).text();
        let result = format!("stat_{n}");
        results.insert(statistic.tensor, result.clone());
        match statistic.kind {
            StatisticKind::Quantile(q) => {
                text.quantiles.push(QuantileText {
                    counts: format!("counts_{n}"),
                    before,
                    value,
                    share: format!("{q:?}"),
                    result,
                });
            }
            kind => {
                let total = format!("total_{n}");
                let finish = finish(kind, &total);
                let sum = SumText {
                    acc: format!("acc_{n}"),
                    before,
                    value,
                    total,
                    result,
                    finish,
                };
                if kind == StatisticKind::Max {
                    text.maxima.push(sum)
                } else {
                    text.sums.push(sum)
                }
            }
        }
    }
    for signal in &body.signals {
        text.signals
            .extend(smooth(body, signal, names, &results, &pointers, &scalars, &namer));
    }
    let (arrays, bytes) = arrays(&text);
    Lowered {
        grid: Grid::Fixed(1),
        shared: Shared { reals: 0, bytes },
        arrays,
        counted: true,
        body: KernelBody::Producer(text),
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

/// Partial sums, a row of counts a warp for each quantile, and the totals that the scan works on.
fn arrays(text: &ProducerText) -> (Vec<SharedArray>, u32) {
    let threads = text.threads as usize;
    let mut offset = 0;
    let mut arrays = Vec::new();
    let mut add = |ty, name: &str, bytes: usize| {
        arrays.push(SharedArray {
            ty,
            name: name.to_owned(),
            offset: offset.to_string(),
        });
        offset += bytes;
    };
    add("double", "partial", threads * 8);
    if !text.quantiles.is_empty() {
        add("int", "counted", BINS * 4);
        add("int", "found", 16);
    }
    for q in &text.quantiles {
        add("int", &q.counts, threads / 32 * BINS * 4);
    }
    (arrays, offset as u32)
}

/// One signal: its observation, and the law that moves its slot.
fn smooth(
    body: &ProducerBody,
    signal: &SignalPlan,
    names: &[String],
    results: &BTreeMap<TensorId, String>,
    pointers: &BTreeMap<TensorId, Pointer>,
    scalars: &[String],
    namer: &Namer,
) -> Vec<Op> {
    let places = Equations {
        program: &body.program,
        pointers: pointers.clone(),
        scalars: scalars.to_vec(),
        values: results.clone(),
    };
    let mut namer = namer.clone();
    let x = namer.unique(&format!("{}_x", body.program.tensors[signal.tensor].name));
    let mut printer = Printer {
        program: &body.program,
        places: &places,
        vars: BTreeMap::new(),
        namer,
    };
    let mut ops = Vec::new();
    let Some((assign, _)) = body.program.assigns().find(|(a, _)| a.tensor == signal.tensor) else {
        return ops;
    };
    let value = printer.expr(&assign.value, &mut ops).text();
    let namer = printer.namer;
    ops.push(Op::Let {
        ty: "float",
        name: x.clone(),
        value,
    });
    ops.push(Op::Set {
        place: format!("{}[0]", names[signal.observed]),
        value: x.clone(),
    });
    let skipped = &names[signal.skipped];
    let count = Op::Set {
        place: format!("{skipped}[0]"),
        value: format!("{skipped}[0] + 1"),
    };
    let body = law(body, signal, names, &x, namer);
    ops.push(Op::If {
        condition: format!("unio_isfinite({x})"),
        body,
        otherwise: vec![count],
    });
    ops
}

fn law(body: &ProducerBody, signal: &SignalPlan, names: &[String], x: &str, namer: Namer) -> Vec<Op> {
    let law = &body.smoothing;
    let mut values = BTreeMap::new();
    let mut pointers = BTreeMap::new();
    for (id, tensor) in law.tensors.iter().enumerate() {
        let place = match body.states.iter().position(|s| *s == tensor.name) {
            Some(n) => Pointer {
                name: names[signal.states].clone(),
                first: n,
            },
            None => Pointer {
                name: names[signal.slot].clone(),
                first: 0,
            },
        };
        match tensor.role {
            Role::Input => {
                values.insert(id, x.to_owned());
            }
            Role::State | Role::Next { .. } => {
                pointers.insert(id, place);
            }
            _ => {}
        }
    }
    Equations {
        program: law,
        pointers,
        scalars: Vec::new(),
        values,
    }
    .lower(None, namer)
    .0
}
