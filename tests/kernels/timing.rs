//! The workloads of BENCHMARKS.md, timed as graphs: no tests, so ignored unless asked for (`--ignored timing`). Each figure is
//! printed as a line of JSON, and appended to the file that `UNIO_BENCH_OUT` names.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use unio::bench::{Bench, Data, Part, Repeats, Stretch, time_steps};
use unio::device::{Kind, Real};
use unio::interface::Artefacts;
use unio::{Launching, Phase, STEPS_TOGETHER, Session, When};
use unio_tests::{compile_run, compile_scheduled, compile_set, compile_set_sized, device};

use crate::producers::{compiled_from, normal};

/// Environment variable: the file that figures are appended to.
const OUT_VARIABLE: &str = "UNIO_BENCH_OUT";
/// Figures are taken one at a time, whatever the number of test threads.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on_card() -> bool {
    device().unwrap().kind() == Kind::Cuda
}

/// What the emulator does for minutes is left to a card.
fn sizes(all: &[usize], emulated: usize) -> Vec<usize> {
    let most = if on_card() { usize::MAX } else { emulated };
    all.iter().copied().filter(|n| *n <= most).collect()
}

fn repeats() -> Repeats {
    if on_card() { Repeats { steps: 100, replays: 50 } } else { Repeats { steps: 1, replays: 1 } }
}

fn put(line: &serde_json::Value) {
    println!("{line}");
    if let Some(path) = std::env::var_os(OUT_VARIABLE) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

/// Times a part with its data in the cache and, on a card, out of it.
fn record(work: &str, size: &str, bench: &Bench<'_>, part: &Part) {
    let us = bench.time(part, Data::Hot, repeats()).unwrap();
    let cold_us = on_card().then(|| bench.time(part, Data::Cold, repeats()).unwrap());
    let shapes = bench.shapes(part).unwrap();
    let local = shapes.iter().filter_map(|s| s.attributes.map(|a| a.local_bytes)).max();
    put(&serde_json::json!({
        "work": work, "size": size, "us": us, "cold_us": cold_us, "bytes": part.bytes(),
        "launches": shapes.len(), "local_bytes": local,
    }));
}

fn session(artefacts: &Artefacts) -> Session {
    let mut session = Session::new(&device().unwrap(), artefacts, Real::F32).unwrap();
    unio_tests::fill_externals(&mut session, artefacts, 64).unwrap();
    session.init_params(1).unwrap();
    session
}

/// A producer over buffers of any length, with normal data, measured as a whole.
fn producer(work: &str, buffers: &[&str], rest: &str, lengths: &[usize]) {
    let external = |name: &&str| format!("[external.{name}]\ndoc = \"x\"\nshape = \"[*]\"\n");
    let spec = buffers.iter().map(external).collect::<String>() + rest;
    let artefacts = compiled_from(&spec);
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
    let base = normal(sizes(&[1 << 20], 4096).first().copied().unwrap_or(4096));
    for (n, name) in buffers.iter().enumerate() {
        // Buffers that are alike would be no test of anything.
        let data: Vec<f64> = base.iter().map(|x| x * (1.0 + n as f64)).collect();
        session.write_real(name, &data).unwrap();
    }
    session.graph(Phase::Train).unwrap().replay(2).unwrap();
    let bench = Bench::new(&session, &artefacts).unwrap();
    let whole = bench.part(|_| true);
    for n in lengths {
        record(work, &n.to_string(), &bench, &whole.resized(*n).unwrap());
    }
}

#[test]
#[ignore = "prints times"]
fn p99() {
    let _alone = alone();
    let entry = "[producer.p99]\ndoc = \"p99\"\nread = { x = \"data\" }\nsignal = \"p99(abs(x))\"\nsmooth = \"pearl_ad\"\n\
                 reset = \"fold\"\nmonitoring = true\n";
    let lengths = sizes(&[4096, 1 << 14, 1 << 16, 1 << 20, 1 << 24, 1 << 26], 1 << 16);
    producer("p99 with smoothing", &["data"], entry, &lengths);
}

#[test]
#[ignore = "prints times"]
fn group_oracle() {
    let _alone = alone();
    let entry = "[producer.oracle]\ndoc = \"Three quantiles, a ratio and two means.\"\n\
                 read = { w = \"w\", g = \"g\", m = \"m\", v = \"v\" }\nsmooth = \"pearl_ad\"\nreset = \"fold\"\nmonitoring = true\n\
                 [producer.oracle.signal]\nweight = { value = \"p99(abs(w))\" }\nfirst = { value = \"p99(abs(m))\" }\n\
                 second = { value = \"p99(abs(v))\" }\nrate = { value = \"abs(sum(w * g)) / max(sum(w * w), 1e-8)\" }\n\
                 mean_g = { value = \"mean(abs(g))\" }\nmean_w = { value = \"mean(abs(w))\" }\n";
    producer("group oracle", &["w", "g", "m", "v"], entry, &sizes(&[1 << 20, 1 << 24], 1 << 20));
}

/// The optimizer of SP4 over one sub-buffer of its own: decay and bound from slots, clamped, the clamped counted.
#[test]
#[ignore = "prints times"]
fn adamw() {
    let _alone = alone();
    let artefacts = compile_set("sp4").artefacts;
    let mut session = session(&artefacts);
    for (name, value) in [("isv", 0.01), ("observed", 0.05)] {
        let len = session.buffer_named(name).unwrap().len.unwrap();
        session.write_real(name, &vec![value; len]).unwrap();
    }
    for (state, value) in [("clip_scale", 1.0), ("bias_1", 0.1), ("bias_2", 0.001)] {
        session.set_state_named(state, value).unwrap();
    }
    let bench = Bench::new(&session, &artefacts).unwrap();
    let part = bench.part(|launch| launch.name == "adam[iqn_all]");
    assert_eq!(part.launches().len(), 1, "the optimizer's launch has another name");
    for n in sizes(&[1 << 20, 1 << 24, 1 << 27], 1 << 20) {
        record("adamw, clamp, count", &n.to_string(), &bench, &part.resized(n).unwrap());
    }
}

#[test]
#[ignore = "prints times"]
fn reducer() {
    let _alone = alone();
    for (batch, columns) in [(32, 90_000), (32, 1_000_000), (256, 90_000)] {
        let artefacts = compile_run("cfc", &[("B", batch)]).artefacts;
        let session = session(&artefacts);
        let bench = Bench::new(&session, &artefacts).unwrap();
        let part = bench.part(|launch| launch.name == "reduce_axis0");
        record("reduce_axis0", &format!("{batch} x {columns}"), &bench, &part.resized(columns).unwrap());
    }
}

/// Forward and backward of the cell with all gradients of its parameters, and nothing else of the step.
#[test]
#[ignore = "prints times"]
fn cfc() {
    let _alone = alone();
    for batch in sizes(&[1, 32, 256], 1) {
        let sizes = [("B", batch), ("K", 32), ("I", 40), ("H", 128), ("U", 128)];
        for gradients in ["scratch", "deferred"] {
            let artefacts = compile_scheduled("cfc", &sizes, &format!("gradients = \"{gradients}\"")).artefacts;
            let mut session = session(&artefacts);
            session.run(Phase::Train).unwrap();
            let bench = Bench::new(&session, &artefacts).unwrap();
            let part = bench.part(|l| l.name.starts_with("cfc.") || l.name == "reduce_axis0");
            record(&format!("cfc, gradients {gradients}"), &format!("B={batch}"), &bench, &part);
        }
    }
}

/// A whole step, in all ways; its control plane alone; and the step with it and without it, which tells what it costs there.
fn step(set: &str, size: &str, artefacts: &Artefacts) {
    let mut session = session(artefacts);
    session.reset(When::Fold).unwrap();
    session.graph(Phase::Train).unwrap().replay(3).unwrap();
    let nodes = session.graph(Phase::Train).unwrap().launches().len();
    let repeats = if on_card() { Repeats { steps: 3 * STEPS_TOGETHER, replays: 50 } } else { repeats() };
    let (graph, eager) = (Launching::Graph, Launching::Eager);
    let (one_by_one, together) = (Stretch::OneByOne, Stretch::Together);
    let ways = [(graph, one_by_one, "graph"), (graph, together, "steps share a graph"), (eager, one_by_one, "eager")];
    for (launching, stretch, name) in ways {
        session.set_launching(launching);
        let us = time_steps(&mut session, Phase::Train, stretch, repeats).unwrap();
        put(&serde_json::json!({ "work": format!("{set} step, {name}"), "size": size, "us": us, "launches": nodes }));
    }
    let bench = Bench::new(&session, artefacts).unwrap();
    record(&format!("{set} control plane"), size, &bench, &bench.control());
    for (what, part) in [("with", bench.part(|_| true)), ("without", bench.without_control())] {
        for (stretch, name) in [(one_by_one, "a step a graph"), (together, "steps share a graph")] {
            let us = bench.time_steps(&part, stretch, repeats).unwrap();
            put(
                &serde_json::json!({ "work": format!("{set} step {what} control plane, {name}"), "size": size, "us": us }),
            );
        }
    }
}

#[test]
#[ignore = "prints times"]
fn steps() {
    let _alone = alone();
    step("perception", "as it is", &compile_set("perception").artefacts);
    step("sp4", "64 rows", &compile_set("sp4").artefacts);
    for (hidden, batch) in [(64, 32), (64, 256), (128, 32)].into_iter().take(if on_card() { 3 } else { 0 }) {
        let sizes = [("B", batch), ("K", 32), ("M", 6), ("I", 4), ("H", hidden), ("U", hidden)];
        step("perception", &format!("H={hidden} B={batch} K=32"), &compile_set_sized("perception", &sizes).artefacts);
    }
}
