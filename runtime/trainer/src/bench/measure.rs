//! Measuring a set.

use std::collections::BTreeSet;

use anyhow::Result;
use unio::bench::{Bench, Data, Part, Repeats, Stretch, entry_of, gives_signals, time_steps};
use unio::device::{Device, Real};
use unio::interface::edges::levels;
use unio::interface::{Artefacts, Buffer, Elem, Launch};
use unio::random::Stream;
use unio::{LaunchShape, Launching, Phase, STEPS_TOGETHER, Session, When};

use super::{BenchArgs, Figures, KernelRow, Report, Scale, StepRow};

/// Steps before anything is measured: windows and averages have settled then.
const WARM: usize = 3;
/// Most bytes of one copy of what is measured.
const LARGEST: u64 = 1 << 30;

/// Adds a set's figures to the report.
pub fn set(device: &Device, artefacts: &Artefacts, scale: &Scale, args: &BenchArgs, report: &mut Report) -> Result<()> {
    let mut session = warm(device, artefacts, scale)?;
    let bench = Bench::new(&session, artefacts)?;
    let wanted = |name: &str| args.filter.as_deref().is_none_or(|filter| name.contains(filter));
    for unit in units(artefacts).into_iter().filter(|unit| wanted(&unit.name)) {
        let whole = bench.part(|launch| unit.launches.contains(&launch.name));
        let grown = scale.sizes.iter().filter(|n| Some(**n) != whole.count()).filter_map(|n| whole.resized(*n));
        let grown = grown.filter(|part| part.bytes() <= LARGEST).map(|part| (part, false));
        let parts = std::iter::once((whole.clone(), true)).chain(grown);
        let row = |(part, compiled)| row(&bench, artefacts, &unit.name, &part, compiled, scale, args.bandwidth);
        report.kernels.extend(parts.filter_map(row));
    }
    if args.filter.is_none() {
        report.whole_steps.push(whole_step(&mut session, &bench, artefacts, scale)?);
    }
    Ok(())
}

/// A session in the middle of a run, with made-up data.
fn warm(device: &Device, artefacts: &Artefacts, scale: &Scale) -> Result<Session> {
    let mut session = Session::new(device, artefacts, Real::F32)?;
    session.init_params(1)?;
    for buffer in artefacts.program.iter().flat_map(|p| &p.buffers).filter(|b| b.external) {
        fill(&mut session, buffer, scale.rows)?;
    }
    // What the host sets, as an integer, is a number of rows.
    for state in artefacts.states.iter().filter(|s| s.writer.is_none() && s.int) {
        session.set_state_named(&state.name, scale.rows as f64)?;
    }
    session.reset(When::Fold)?;
    session.graph(Phase::Train)?.replay(WARM)?;
    Ok(session)
}

fn fill(session: &mut Session, buffer: &Buffer, rows: usize) -> Result<()> {
    let row: usize = buffer.shape.iter().skip(1).product();
    let len = buffer.len.unwrap_or(rows * row);
    let stream = Stream::new(7, &buffer.name);
    match buffer.elem {
        Elem::I32 => session.write_named(&buffer.name, &(0..len).map(|n| (n % rows) as i32).collect::<Vec<_>>())?,
        _ => {
            let values: Vec<f32> = (0..len).map(|n| (0.1 + 0.05 * stream.symmetric(n as u64)) as f32).collect();
            session.write_named(&buffer.name, &values)?;
        }
    }
    Ok(())
}

/// What is measured as one: a kernel's largest launch, or all launches of an entry.
struct Unit {
    name: String,
    launches: BTreeSet<String>,
}

fn units(artefacts: &Artefacts) -> Vec<Unit> {
    let launches = artefacts.program.iter().flat_map(|p| &p.train).collect::<Vec<_>>();
    let mut units = Vec::new();
    for (index, kernel) in artefacts.kernels.iter().enumerate() {
        let of = launches.iter().filter(|launch| launch.kernel == index);
        // The first of several that are alike.
        if let Some(launch) = of.rev().max_by_key(|launch| launch.grid) {
            units.push(Unit { name: kernel.symbol.clone(), launches: BTreeSet::from([launch.name.clone()]) });
        }
    }
    let mut seen = BTreeSet::new();
    for launch in &launches {
        let entry = step_of(&launch.name);
        let all: BTreeSet<String> =
            launches.iter().map(|l| &l.name).filter(|name| step_of(name) == entry).cloned().collect();
        if is_producer(artefacts, &launches, &all) && all.len() > 1 && seen.insert(entry_of(entry)) {
            units.push(Unit { name: format!("{}: all of {entry}", artefacts.set), launches: all });
        }
    }
    units
}

/// `oracle[heads]` of `oracle[heads].count[2]`.
fn step_of(name: &str) -> &str {
    name.rfind('.').map_or(name, |dot| &name[..dot])
}

fn is_producer(artefacts: &Artefacts, launches: &[&Launch], names: &BTreeSet<String>) -> bool {
    let mut of = launches.iter().filter(|launch| names.contains(&launch.name));
    of.any(|launch| gives_signals(&artefacts.kernels[launch.kernel]))
}

/// `None` where nothing is launched: a kernel for few elements over many, or the other way round.
fn row(
    bench: &Bench<'_>,
    artefacts: &Artefacts,
    name: &str,
    part: &Part,
    compiled: bool,
    scale: &Scale,
    bandwidth: f64,
) -> Option<KernelRow> {
    let shapes = bench.shapes(part);
    let launches = shapes.as_ref().map_or(part.launches().len(), Vec::len);
    if launches == 0 {
        return None;
    }
    let figures = shapes.map_err(Into::into).and_then(|shapes| figures(bench, part, &shapes, scale, bandwidth));
    let (figures, error) = match figures {
        Ok(figures) => (Some(figures), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let set = artefacts.set.clone();
    Some(KernelRow { set, kernel: name.into(), launches, n: part.count(), compiled, figures, error })
}

fn figures(bench: &Bench<'_>, part: &Part, shapes: &[LaunchShape], scale: &Scale, bandwidth: f64) -> Result<Figures> {
    let hot_us = bench.time(part, Data::Hot, scale.repeats)?;
    let cold_us = if scale.cold { Some(bench.time(part, Data::Cold, scale.repeats)?) } else { None };
    let bytes = part.bytes();
    let floor_us = bytes as f64 / bandwidth / 1e6;
    // Of several launches, the one with the most blocks stands for all.
    let shape = shapes.iter().max_by_key(|shape| shape.config.grid);
    let attributes = shape.and_then(|shape| shape.attributes);
    let config = shape.map(|shape| shape.config);
    let threads = config.map_or(0, |c| c.block);
    Ok(Figures {
        hot_us,
        cold_us,
        bytes,
        floor_us,
        share: floor_us / cold_us.unwrap_or(hot_us),
        blocks: config.map_or(0, |c| c.grid),
        threads,
        registers: attributes.map(|a| a.registers),
        shared_bytes: config.map_or(0, |c| c.shared_bytes) + attributes.map_or(0, |a| a.shared_bytes),
        local_bytes: attributes.map(|a| a.local_bytes),
        occupancy: attributes.map(|a| a.occupancy(threads)),
    })
}

fn whole_step(session: &mut Session, bench: &Bench<'_>, artefacts: &Artefacts, scale: &Scale) -> Result<StepRow> {
    let control = bench.control();
    // A step is long enough to be timed in short stretches.
    let repeats = Repeats { steps: scale.repeats.steps.min(2 * STEPS_TOGETHER), ..scale.repeats };
    let edges = session.graph(Phase::Train)?.edges();
    session.set_launching(Launching::Graph);
    let graph_us = time_steps(session, Phase::Train, Stretch::OneByOne, repeats)?;
    let together_us = time_steps(session, Phase::Train, Stretch::Together, repeats)?;
    session.set_launching(Launching::Eager);
    let eager_us = time_steps(session, Phase::Train, Stretch::OneByOne, repeats)?;
    let control_us = bench.time(&control, Data::Hot, repeats)?;
    let added_us = |stretch| added(bench, stretch, repeats);
    Ok(StepRow {
        set: artefacts.set.clone(),
        nodes: edges.len(),
        edges: edges.iter().map(Vec::len).sum(),
        levels: levels(&edges).into_iter().max().map_or(0, |last| last + 1),
        eager_us,
        graph_us,
        together: repeats.steps.min(STEPS_TOGETHER),
        together_us,
        control_nodes: control.launches().len(),
        control_us,
        control_added_us: added_us(Stretch::OneByOne)?,
        control_added_together_us: added_us(Stretch::Together)?,
    })
}

/// What the control plane adds to a step: the step with it, less the step without it.
fn added(bench: &Bench<'_>, stretch: Stretch, repeats: Repeats) -> Result<f64> {
    let time = |part: &Part| bench.time_steps(part, stretch, repeats);
    Ok(time(&bench.part(|_| true))? - time(&bench.without_control())?)
}
