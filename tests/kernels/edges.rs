//! Where a formula comes to its edge: nothing to attend to, no time passed, one variable to choose from, a batch not full.

use unio::device::Real;
use unio::interface::{Artefacts, Param};
use unio::random::Stream;
use unio::{Phase, Session, When};
use unio_tests::{compile_run, compile_set, compile_set_sized, device, fill_externals};

fn session(artefacts: &Artefacts, real: Real) -> Session {
    let mut session = Session::new(&device().unwrap(), artefacts, real).unwrap();
    fill_externals(&mut session, artefacts, 64).unwrap();
    session.init_params(3).unwrap();
    session
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_row_masked_as_a_whole_gives_nothing_and_touches_no_other() {
    let artefacts = compile_run("masked_pool", &[]).artefacts;
    let run = |factor: f64| {
        let mut session = session(&artefacts, Real::F32);
        session.write_real("mask", &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]).unwrap();
        let mut scale = session.read_real("scale").unwrap();
        scale[..12].iter_mut().for_each(|x| *x *= factor);
        session.write_real("scale", &scale).unwrap();
        session.run(Phase::Train).unwrap();
        (session.read_real("pool.z").unwrap(), session.read_real("grads").unwrap())
    };
    let ((z, grads), (other_z, other_grads)) = (run(1.0), run(-1e6));
    assert_eq!(z[..3], [0.0; 3]);
    assert!(z[3..].iter().all(|x| *x != 0.0), "{z:?}");
    assert!(grads.iter().all(|g| g.is_finite()) && grads.iter().any(|g| *g != 0.0), "{grads:?}");
    assert_eq!(bits(&z), bits(&other_z));
    assert_eq!(bits(&grads), bits(&other_grads), "the masked row reaches a gradient");
}

/// A CfC cell in f64 with the same time before every step, and `change` to its parameters.
fn cell(name: &str, days: f64, change: impl Fn(&Param, &mut [f64])) -> Session {
    let artefacts = compile_run(name, &[]).artefacts;
    let mut session = session(&artefacts, Real::F64);
    let gap = session.read_real("gap").unwrap();
    session.write_real("gap", &vec![days; gap.len()]).unwrap();
    let mut params = session.read_real("params").unwrap();
    for param in &artefacts.program.as_ref().unwrap().params {
        let own = &mut params[param.offset..][..param.shape.iter().product()];
        // Biases start at zero, where a wrong sign would not show.
        own.iter_mut().enumerate().for_each(|(n, p)| *p += 0.5 * Stream::new(5, &param.path).symmetric(n as u64));
        change(param, own);
    }
    session.write_real("params", &params).unwrap();
    session.run(Phase::Train).unwrap();
    // The optimizer has moved on; whoever compares wants what the outputs came from.
    session.write_real("params", &params).unwrap();
    session
}

/// Parameters of a cell by name; scalars and vectors have an element a channel.
fn values(session: &Session, name: &str) -> Vec<f64> {
    let param = session.program().params.iter().find(|p| p.path == format!("cfc.{name}")).unwrap();
    session.read_real("params").unwrap()[param.offset..][..param.shape.iter().product()].to_vec()
}

fn gradient(session: &Session, name: &str) -> Vec<f64> {
    let param = session.program().params.iter().find(|p| p.path == format!("cfc.{name}")).unwrap();
    session.read_real("grads").unwrap()[param.offset..][..param.shape.iter().product()].to_vec()
}

const CELLS: [&str; 3] = ["cfc", "cfc_no_gate", "cfc_pure"];
/// What time alone multiplies, in each cell.
const OF_TIME: [&[&str]; 3] = [&["w_a", "b_a"], &["w_a", "b_a"], &["w_tau"]];

#[test]
fn cells_are_finite_without_time_and_over_a_long_weekend() {
    for (name, of_time) in CELLS.iter().zip(OF_TIME) {
        let [still, weekend] = [0.0, 3.0].map(|days| cell(name, days, |_, _| {}));
        for session in [&still, &weekend] {
            assert_eq!(session.first_non_finite().unwrap().map(|f| f.to_string()), None, "{name}");
        }
        assert_ne!(still.read_real("cfc.h_next").unwrap(), weekend.read_real("cfc.h_next").unwrap(), "{name}");
        for param in of_time {
            assert!(gradient(&still, param).iter().all(|g| *g == 0.0), "{name}: {param} at no time");
            assert!(gradient(&weekend, param).iter().any(|g| *g != 0.0), "{name}: {param} over a weekend");
        }
    }
}

/// Without time, what multiplies it changes no bit; with weights of 0 behind the trunk, the limits are those of the biases.
#[test]
fn no_time_gives_the_limits_of_the_formulas() {
    for (name, of_time) in CELLS.iter().zip(OF_TIME) {
        let output = |session: &Session| session.read_real("cfc.h_next").unwrap();
        let plain = output(&cell(name, 0.0, |_, _| {}));
        let is_of_time = |p: &Param| of_time.iter().any(|t| p.path == format!("cfc.{t}"));
        let other = cell(name, 0.0, |p, own| {
            if is_of_time(p) {
                own.fill(7.0);
            }
        });
        assert_eq!(bits(&plain), bits(&output(&other)), "{name}");

        let flat = cell(name, 0.0, |p, own| {
            if ["cfc.w_1", "cfc.w_2", "cfc.w_t"].contains(&p.path.as_str()) {
                own.fill(0.0);
            }
        });
        let limit = limit(name, &flat);
        for (got, expected) in output(&flat).iter().zip(limit.iter().cycle()) {
            assert!((got - expected).abs() < 1e-14, "{name}: {got} is not {expected}");
        }
    }
}

/// Δt = 0: the gate is σ(t_b); the exponential is 1. Behind weights of 0, f and t_b are their biases.
fn limit(name: &str, cell: &Session) -> Vec<f64> {
    let read = |param| values(cell, param);
    let channels = 0..read("b_1").len();
    if name == "cfc_pure" {
        return channels.map(|j| read("a")[j] * (1.0 - read("b_1")[j])).collect();
    }
    let keep = if name == "cfc" { 1.0 } else { 0.0 };
    let mix = |j: usize| {
        let gate = 1.0 / (1.0 + (-read("b_t")[j]).exp());
        read("b_1")[j].tanh() * (1.0 - keep * gate) + gate * read("b_2")[j].tanh()
    };
    channels.map(mix).collect()
}

#[test]
fn one_variable_is_always_chosen() {
    let artefacts = compile_run("vsn", &[("M", 1)]).artefacts;
    let mut session = session(&artefacts, Real::F32);
    session.run(Phase::Train).unwrap();
    let mask = session.read_real("vsn.mask").unwrap();
    assert!(!mask.is_empty() && mask.iter().all(|x| *x == 1.0), "{mask:?}");
}

/// Rows of the epochs below: no multiple of any batch there.
const ROWS: usize = 50;

/// What the batches of an epoch took: rows that weigh something, with weight and loss.
struct Epoch {
    taken: Vec<(i32, f64, f64)>,
    mean: f64,
    rows: f64,
}

fn epoch(artefacts: &Artefacts, phase: Phase) -> Epoch {
    let mut session = session(artefacts, Real::F32);
    session.set_state_named("learning_rate", 0.0).unwrap();
    session.write_named("order", &(10..10 + ROWS as i32).collect::<Vec<i32>>()).unwrap();
    session.set_state_named("rows", ROWS as f64).unwrap();
    session.reset(When::Epoch).unwrap();
    let mut taken = Vec::new();
    for _ in 0..ROWS.div_ceil(session.program().batch) {
        session.run(phase).unwrap();
        let rows = session.read_named::<i32>("pick_batch.row").unwrap().into_iter();
        let (weights, losses) =
            (session.read_real("pick_batch.weight").unwrap(), session.read_real("loss.total").unwrap());
        let batch = rows.zip(weights).zip(losses).map(|((row, weight), loss)| (row, weight, loss));
        taken.extend(batch.filter(|(_, weight, _)| *weight != 0.0));
    }
    let (sum, rows) = (session.state_named("loss_sum").unwrap(), session.state_named("loss_rows").unwrap());
    Epoch { taken, mean: sum / rows, rows }
}

#[test]
fn a_padded_batch_counts_each_row_once() {
    for (batch, phase) in [(1, Phase::Train), (32, Phase::Train), (24, Phase::Evaluate), (64, Phase::Evaluate)] {
        let epoch = epoch(&compile_set_sized("perception", &[("B", batch)]).artefacts, phase);
        let rows: Vec<i32> = epoch.taken.iter().map(|(row, ..)| *row).collect();
        assert_eq!(rows, (10..10 + ROWS as i32).collect::<Vec<i32>>(), "batches of {batch}");
        assert_eq!(epoch.rows, ROWS as f64);
        // A batch's mean divides by B, so its live rows together weigh B: as many as are live, each B over that number.
        for live in epoch.taken.chunks(batch) {
            assert!(live.iter().all(|(_, weight, _)| *weight == f64::from(batch as f32 / live.len() as f32)));
        }
    }
}

/// Weights stand still in an evaluation, so that a row's loss is the row's alone, whatever batch it is in.
#[test]
fn the_mean_loss_is_that_of_the_rows() {
    let single = epoch(&compile_set_sized("perception", &[("B", 1)]).artefacts, Phase::Evaluate);
    let mean = single.taken.iter().map(|(.., loss)| loss).sum::<f64>() / ROWS as f64;
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-5 * b.abs(), "{a} is not {b}");
    close(single.mean, mean);
    for artefacts in [compile_set("perception"), compile_set_sized("perception", &[("B", 24)])].map(|c| c.artefacts) {
        let batched = epoch(&artefacts, Phase::Evaluate);
        for ((.., weight, loss), (.., alone)) in batched.taken.iter().zip(&single.taken) {
            close(loss / weight, *alone);
        }
        close(batched.mean, mean);
    }
}

/// An index that a table does not bound may run beyond it: every read is taken back to the last row.
#[test]
fn a_short_table_is_read_to_its_end_and_no_further() {
    let artefacts = compile_run("short_table", &[]).artefacts;
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F64).unwrap();
    session.init_params(3).unwrap();
    session.write_real("table", &[5.0, 6.0]).unwrap();
    session.run(Phase::Train).unwrap();
    assert_eq!(session.read_real("pick.y").unwrap(), [5.0, 6.0, 6.0]);
    assert_eq!(session.read_real("look.z").unwrap(), [5.0, 6.0, 6.0, 6.0].repeat(3));
}
