//! CUDA text, through handlebars skeletons.

use std::collections::BTreeMap;

use handlebars::{Handlebars, no_escape};
use serde::Serialize;
use serde_json::json;
use unio_interface::{KernelParam, Source};

use crate::lower::producer::{ColumnText, ProducerText, QuantileText, SumText, Walk};
use crate::lower::{
    Kernel, KernelBody, Op, REDUCER_COLUMNS, REDUCER_ROWS, SharedArray, Sharing, c_type, pointer_macro,
};
use crate::names;
use crate::plan::{ProducerStep, Table};

/// One file an entry, in the order of their names.
pub(super) fn sources(set: &str, kernels: &[Kernel]) -> Vec<Source> {
    let mut by_entry: BTreeMap<&str, Vec<&Kernel>> = BTreeMap::new();
    for kernel in kernels {
        by_entry.entry(&kernel.entry).or_default().push(kernel);
    }
    let skeletons = skeletons();
    let files = by_entry.into_iter();
    files
        .map(|(entry, kernels)| Source { path: names::kernel_file(set, entry), text: file(&skeletons, set, &kernels) })
        .collect()
}

fn skeletons() -> Handlebars<'static> {
    let mut skeletons = Handlebars::new();
    skeletons.register_escape_fn(no_escape);
    skeletons.set_strict_mode(true);
    let templates = [
        ("file", include_str!("../../templates/file.cu.hbs")),
        ("whole", include_str!("../../templates/producer_one.cu.hbs")),
        ("linear", include_str!("../../templates/producer_linear.cu.hbs")),
        ("count", include_str!("../../templates/producer_count.cu.hbs")),
        ("settle", include_str!("../../templates/producer_settle.cu.hbs")),
        ("exponents", include_str!("../../templates/producer_exponents.cu.hbs")),
        ("refine", include_str!("../../templates/producer_refine.cu.hbs")),
        ("finish", include_str!("../../templates/producer_finish.cu.hbs")),
        ("clear", include_str!("../../templates/producer_clear.hbs")),
        ("accumulators", include_str!("../../templates/producer_accumulators.hbs")),
        ("unsettled", include_str!("../../templates/producer_unsettled.hbs")),
        ("step", include_str!("../../templates/producer_step.hbs")),
        ("elements", include_str!("../../templates/producer_elements.hbs")),
        ("take", include_str!("../../templates/producer_take.hbs")),
        ("accumulate", include_str!("../../templates/producer_accumulate.hbs")),
        ("totals", include_str!("../../templates/producer_totals.hbs")),
        ("signals", include_str!("../../templates/producer_signals.hbs")),
        ("reduce_axis0", include_str!("../../templates/reduce_axis0.cu.hbs")),
    ];
    for (name, text) in templates {
        // A broken template is a fault of this crate; its text then says so, and no compiler takes it.
        if let Err(error) = skeletons.register_template_string(name, text) {
            let _ = skeletons.register_template_string(name, format!("#error template {name}: {error}"));
        }
    }
    skeletons
}

fn render(skeletons: &Handlebars<'_>, name: &str, data: &impl Serialize) -> String {
    skeletons.render(name, data).unwrap_or_else(|error| format!("#error template {name}: {error}\n"))
}

fn file(skeletons: &Handlebars<'_>, set: &str, kernels: &[&Kernel]) -> String {
    let mut functions: BTreeMap<&str, serde_json::Value> = BTreeMap::new();
    for function in kernels.iter().flat_map(|k| &k.functions) {
        let body = ops(&function.body, 1);
        let value = json!({ "comment": function.comment, "signature": function.signature, "body": body.trim_end() });
        functions.insert(&function.signature, value);
    }
    let functions: Vec<_> = functions.into_values().collect();
    let kernels: Vec<_> = kernels
        .iter()
        .map(|k| {
            json!({
                "comment": k.comment.iter().flat_map(|c| wrap(c, 112)).collect::<Vec<_>>(),
                "threads": k.threads,
                "alone": k.alone,
                "symbol": k.symbol,
                "params": k.params.iter().map(|p| param(p, k.sharing)).collect::<Vec<_>>(),
                "arrays": k.arrays.iter().map(array).collect::<Vec<_>>(),
                "body": body(skeletons, k),
            })
        })
        .collect();
    render(skeletons, "file", &json!({ "set": set, "functions": functions, "kernels": kernels }))
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().filter(|line| line.is_empty() || line.len() + 1 + word.len() <= width);
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

fn param(param: &KernelParam, sharing: Sharing) -> String {
    match param {
        KernelParam::Buffer { name, elem, access, role, .. } => {
            format!("{}({}, {name})", pointer_macro(*access, role, sharing), c_type(*elem))
        }
        KernelParam::Count { name } | KernelParam::Number { name } | KernelParam::Rows { name, .. } => {
            format!("int {name}")
        }
    }
}

fn array(array: &SharedArray) -> serde_json::Value {
    json!({ "ty": array.ty, "name": array.name, "offset": array.offset })
}

fn body(skeletons: &Handlebars<'_>, kernel: &Kernel) -> String {
    let text = match &kernel.body {
        KernelBody::Ops(body) => ops(body, 1),
        KernelBody::Producer(text) => ops(&text.scalars, 1) + &render(skeletons, step_name(text.step), &producer(text)),
        KernelBody::ReduceAxis0 { batch, place } => {
            let (columns, rows) = (REDUCER_COLUMNS, REDUCER_ROWS);
            let data = json!({ "columns": columns, "rows": rows, "half": rows / 2, "batch": batch, "place": place });
            render(skeletons, "reduce_axis0", &data)
        }
    };
    text.trim_end_matches('\n').to_owned()
}

fn step_name(step: ProducerStep) -> &'static str {
    match step {
        ProducerStep::Whole => "whole",
        ProducerStep::Linear => "linear",
        ProducerStep::Count => "count",
        ProducerStep::Settle => "settle",
        ProducerStep::Exponents => "exponents",
        ProducerStep::Refine => "refine",
        ProducerStep::Finish => "finish",
    }
}

fn producer(text: &ProducerText) -> serde_json::Value {
    let mut data = json!({
        "counted": text.counted,
        "ranged": text.ranged,
        "reads": text.reads,
        "early": text.early,
        "missing": text.missing,
        "columns": text.columns.iter().map(column).collect::<Vec<_>>(),
        "sums": text.sums.iter().map(sum).collect::<Vec<_>>(),
        "maxima": text.maxima.iter().map(sum).collect::<Vec<_>>(),
        "quantiles": text.quantiles.iter().map(quantile).collect::<Vec<_>>(),
        "reads_before": text.reads_before,
        "signal_threads": text.signal_threads,
        "signals": ops(&text.signals, 2).trim_end(),
    });
    if let (Some(data), Some(layout)) = (data.as_object_mut(), layout(text).as_object_mut()) {
        data.append(layout);
    }
    data
}

/// Of the tables, and of a turn's elements.
fn layout(text: &ProducerText) -> serde_json::Value {
    let Walk { chunk, alike, lead, head, place, neighbour, fours } = text.walk();
    json!({
        "unroll": text.unroll,
        "threads": text.threads,
        "chunk": chunk,
        "alike": alike,
        "lead": lead,
        "loop": head,
        "place": place,
        "neighbour": neighbour,
        "fours": fours.iter().map(|(first, ahead)| json!({ "first": first, "ahead": ahead })).collect::<Vec<_>>(),
        "list": text.table.list(),
        "outside": 2 * text.quantiles.len(),
        "pairs": text.table.pair(0),
        "rows": text.table.rows(),
        "bins": Table::BINS,
        "row_total": text.threads as usize / 32 * text.bins(),
        "width": text.table.width(),
        "sum_width": text.table.sums,
        "refined_width": text.table.refined_width(),
    })
}

fn column(column: &ColumnText) -> serde_json::Value {
    json!({ "ty": column.ty, "pointer": column.pointer, "array": column.array, "next": column.next })
}

fn sum(sum: &SumText) -> serde_json::Value {
    json!({
        "acc": sum.acc, "before": ops(&sum.before, 3).trim_end(), "value": sum.value,
        "factors": sum.factors.as_ref().map(|(a, b)| json!({ "a": a, "b": b })),
        "total": sum.total, "result": sum.result, "finish": sum.finish, "place": sum.place,
    })
}

fn quantile(q: &QuantileText) -> serde_json::Value {
    json!({
        "counts": q.counts, "before": ops(&q.before, 3).trim_end(), "value": q.value, "share": q.share,
        "result": q.result, "pair": q.pair, "above": q.pair + 1, "column": q.column,
        "window": q.bracket, "settled": q.bracket + 1, "key": q.bracket + 2, "below": q.bracket + 3,
        "inside": q.bracket + 4, "finite": q.bracket + 5, "refined_column": q.refined_column,
    })
}

/// Statements as lines, indented by four spaces a level.
fn ops(list: &[Op], level: usize) -> String {
    let indent = "    ".repeat(level);
    let mut text = String::new();
    for op in list {
        let line = match op {
            Op::Let { ty, name, value } => format!("const {ty} {name} = {value};"),
            Op::Var { ty, name, value } => format!("{ty} {name} = {value};"),
            Op::Set { place, value } => format!("{place} = {value};"),
            Op::Do(text) => format!("{text};"),
            Op::Barrier => "__syncthreads();".to_owned(),
            Op::For { head, body } => format!("for ({head}) {{\n{}{indent}}}", ops(body, level + 1)),
            Op::Unrolled { head, times, body } => {
                let times = times.map_or(String::new(), |times| times.to_string());
                format!("UNIO_UNROLL({times}) for ({head}) {{\n{}{indent}}}", ops(body, level + 1))
            }
            Op::If { condition, body, otherwise } if otherwise.is_empty() => {
                format!("if ({condition}) {{\n{}{indent}}}", ops(body, level + 1))
            }
            Op::If { condition, body, otherwise } => {
                let (body, otherwise) = (ops(body, level + 1), ops(otherwise, level + 1));
                format!("if ({condition}) {{\n{body}{indent}}} else {{\n{otherwise}{indent}}}")
            }
        };
        text.push_str(&format!("{indent}{line}\n"));
    }
    text
}
