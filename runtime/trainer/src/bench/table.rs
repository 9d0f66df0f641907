//! The figures for people.

use super::{KernelRow, Report, StepRow};

const HEAD: [&str; 13] = [
    "kernel",
    "n",
    "hot µs",
    "cold µs",
    "bytes",
    "floor µs",
    "share",
    "blocks",
    "threads",
    "regs",
    "shared",
    "local",
    "occup.",
];

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut text = format!(
        "Device: {}\nTimes by {}: graphs of {} launches, median of {} replays. Floor: bytes at {} TB/s. \
         Share: floor by cold time (by hot time where nothing was cold).\n* is the step's own size.\n\n",
        report.device, report.clock, report.steps, report.replays, report.bandwidth
    );
    let rows = report.kernels.iter().map(cells);
    let rows: Vec<Vec<String>> = std::iter::once(HEAD.map(String::from).to_vec()).chain(rows).collect();
    text.push_str(&aligned(&rows));
    report.whole_steps.iter().for_each(|step| text.push_str(&whole_step(step)));
    if !report.findings.is_empty() {
        text.push_str("\nFindings:\n");
        report.findings.iter().for_each(|finding| text.push_str(&format!("  {finding}\n")));
    }
    text
}

fn cells(row: &KernelRow) -> Vec<String> {
    let n = match (row.n, row.compiled) {
        (Some(n), true) => format!("{n} *"),
        (Some(n), false) => n.to_string(),
        (None, _) => "fixed".into(),
    };
    let name = if row.launches > 1 { format!("{} ({})", row.kernel, row.launches) } else { row.kernel.clone() };
    let Some(f) = &row.figures else {
        return vec![name, n, format!("failed: {}", row.error.as_deref().unwrap_or("?"))];
    };
    let number = |value: Option<u32>| value.map_or("–".into(), |v| v.to_string());
    vec![
        name,
        n,
        format!("{:.2}", f.hot_us),
        f.cold_us.map_or("–".into(), |us| format!("{us:.2}")),
        f.bytes.to_string(),
        format!("{:.2}", f.floor_us),
        format!("{:.3}", f.share),
        f.blocks.to_string(),
        f.threads.to_string(),
        number(f.registers),
        f.shared_bytes.to_string(),
        number(f.local_bytes),
        f.occupancy.map_or("–".into(), |o| format!("{:.0} %", 100.0 * o)),
    ]
}

fn whole_step(step: &StepRow) -> String {
    format!(
        "\nA step of {}: {} nodes, {} edges, {} levels; {:.1} µs eager, {:.1} µs as a graph, {:.1} µs where {} steps share one.\n\
         Its control plane, {} launches: alone {:.1} µs; it adds {:.1} µs to a step, {:.1} µs ({:.1} %) where steps share a graph.\n",
        step.set,
        step.nodes,
        step.edges,
        step.levels,
        step.eager_us,
        step.graph_us,
        step.together_us,
        step.together,
        step.control_nodes,
        step.control_us,
        step.control_added_us,
        step.control_added_together_us,
        100.0 * step.control_added_together_us / step.together_us
    )
}

/// Columns side by side: the first to the left, figures to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let figures = |row: &&Vec<String>| row.len() == HEAD.len();
    let width = |column: usize| {
        rows.iter()
            .filter(figures)
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let cell = |(column, cell): (usize, &String)| match column {
        0 => format!("{cell:<width$}", width = widths[0]),
        _ => format!("  {cell:>width$}", width = widths[column]),
    };
    rows.iter().map(|row| row.iter().enumerate().map(cell).collect::<String>().trim_end().to_owned() + "\n").collect()
}
