//! Models learn what they are given, and a step that must not be taken is not taken.

use unio::data::{Bars, Dataset, FoldData, Folds, GROUPS, HORIZON};
use unio::device::Real;
use unio::interface::Artefacts;
use unio::random::{Stream, permutation};
use unio::{Phase, Session, When};
use unio_tests::{compile_edited, compile_set, compile_set_sized, device, fill_externals, specs};

/// Steps of plain gradient descent that a block is given.
const STEPS: usize = 1500;

/// What may be left of the distance to the least loss there is. Most blocks leave a millionth; cross-entropy comes to 0 only as
/// the inverse of the steps taken.
const LEFT: f64 = 0.03;

/// The losses of one fixed sample at B = 1, while only the parameters named by `learning` learn.
fn losses(name: &str, learning: &[&str], objective: &str) -> (Session, Vec<f64>) {
    let artefacts = compile_edited(name, &[("B", 1)], |text| held(text, learning)).artefacts;
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
    for buffer in artefacts.program.as_ref().unwrap().buffers.iter().filter(|b| b.external) {
        let stream = Stream::new(3, &buffer.name);
        let values: Vec<f64> = (0..buffer.len.unwrap()).map(|n| 1.0 + 0.5 * stream.symmetric(n as u64)).collect();
        session.write_real(&buffer.name, &values).unwrap();
    }
    session.init_params(1).unwrap();
    let mut step = || {
        session.run(Phase::Train).unwrap();
        session.read_real(objective).unwrap()[0]
    };
    let losses: Vec<f64> = (0..STEPS).map(|_| step()).collect();
    assert!(losses.iter().all(|l| l.is_finite()), "{name}: a loss that is not finite");
    (session, losses)
}

/// The model with the stage of the data held still, unless it is named too: what is asked of a block is not done by its input.
fn held(text: &str, learning: &[&str]) -> String {
    if learning.contains(&"source.*") {
        return text.to_owned();
    }
    let own = format!("tensors   = {learning:?}");
    let hold = "\n[group.held]\ndoc = \"The data.\"\ntensors = [\"source.*\"]\noptimizer = \"hold\"\n\
                [update.hold]\ndoc = \"Moves nothing.\"\nover = \"group\"\nparam = \"w\"\ngrad = \"g\"\n\
                math = \"next.w = w - 0 * g\"\n";
    text.replacen("tensors   = [\"*\"]", &own, 1) + hold
}

/// A block's probe has x + x² an element, times a weight: lowest where every element is -1/2.
fn overfits(name: &str, learning: &[&str]) {
    let (session, losses) = losses(name, learning, "probe.total");
    let least = -0.25 * session.read_real("weight").unwrap().iter().sum::<f64>();
    let (first, last) = (losses[0] - least, losses[STEPS - 1] - least);
    println!("{name}: {first:.5} above the least loss falls to {last:.5}");
    assert!(last < LEFT * first, "{name}: {first} above the least loss only falls to {last}");
}

/// A head's loss is lowest at 0: for the binary head because the label is a whole 0 or 1.
fn head_overfits(name: &str, target: (&str, f64)) {
    let edit = |text: &str| held(text, &["head.*"]);
    let artefacts = compile_edited(name, &[("B", 1)], edit).artefacts;
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
    fill_externals(&mut session, &artefacts, 1).unwrap();
    session.write_real(target.0, &[target.1]).unwrap();
    session.init_params(1).unwrap();
    let mut loss = || {
        session.run(Phase::Train).unwrap();
        session.read_real("head.loss").unwrap()[0]
    };
    let losses: Vec<f64> = (0..STEPS).map(|_| loss()).collect();
    println!("{name}: {} falls to {}", losses[0], losses[STEPS - 1]);
    assert!(losses[STEPS - 1] < LEFT * losses[0], "{name}: {} only falls to {}", losses[0], losses[STEPS - 1]);
}

#[test]
fn cfc_overfits_one_sample() {
    overfits("cfc", &["cfc.*"]);
}

#[test]
fn grn_overfits_one_sample() {
    overfits("grn", &["grn.*"]);
}

#[test]
fn vsn_overfits_one_sample() {
    overfits("vsn", &["vsn.*"]);
}

/// A pool only mixes what it is given, so that what it is given has to learn with it.
#[test]
fn attention_pool_overfits_one_sample() {
    overfits("pool", &["pool.*", "source.*"]);
}

#[test]
fn mamba2_overfits_one_sample() {
    overfits("mamba2", &["mamba.*"]);
}

#[test]
fn binary_head_overfits_one_sample() {
    head_overfits("head", ("label", 1.0));
}

#[test]
fn regression_head_overfits_one_sample() {
    head_overfits("huber_head", ("target", 3.0));
    head_overfits("squared_head", ("target", -1.5));
}

#[test]
fn the_perception_model_overfits_one_sample() {
    let artefacts = compile_set_sized("perception", &[("B", 1)]).artefacts;
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
    fill_externals(&mut session, &artefacts, 64).unwrap();
    session.set_state_named("rows", 1.0).unwrap();
    session.write_named("order", &[40]).unwrap();
    session.set_state_named("learning_rate", 3e-3).unwrap();
    session.init_params(1).unwrap();
    let mut step = || {
        session.reset(When::Epoch).unwrap();
        session.run(Phase::Train).unwrap();
        session.read_real("loss.total").unwrap()[0]
    };
    let losses: Vec<f64> = (0..400).map(|_| step()).collect();
    println!("perception: {} falls to {}", losses[0], losses[399]);
    assert!(losses[399] < LEFT * losses[0], "{} only falls to {}", losses[0], losses[399]);
}

/// The first fold of the S&P 500, for windows of 8 days.
fn first_fold() -> FoldData {
    let features: Vec<_> = GROUPS.iter().flat_map(|(_, group)| *group).collect();
    let bars = Bars::read(specs("data/sp500.csv")).unwrap();
    Dataset::new(&bars, &features, HORIZON).unwrap().folds(&Folds::default(), 8).unwrap().remove(0)
}

fn on_device(artefacts: &Artefacts, data: &FoldData) -> Session {
    let mut session = Session::new(&device().unwrap(), artefacts, Real::F32).unwrap();
    for (name, values) in [
        ("feature", &data.features),
        ("gap", &data.dt),
        ("direction_label", &data.direction),
        ("volatility_label", &data.volatility),
        ("log_volatility", &data.log_volatility),
    ] {
        session.write_named(name, values).unwrap();
    }
    session.init_params(1).unwrap();
    session
}

/// Takes every row once, in an order of its own; gives the mean loss over the rows.
fn epoch(session: &mut Session, rows: &[i32], phase: Phase) -> f64 {
    session.write_named("order", &permutation(1, 1, rows)).unwrap();
    session.set_state_named("rows", rows.len() as f64).unwrap();
    session.reset(When::Epoch).unwrap();
    for _ in 0..rows.len().div_ceil(session.program().batch) {
        session.run(phase).unwrap();
    }
    session.state_named("loss_sum").unwrap() / session.state_named("loss_rows").unwrap()
}

/// A sum over the batch that lost samples or took them twice would learn something else, or nothing.
#[test]
fn stacked_trainer_loss_shrinks_at_batch_32() {
    let data = first_fold();
    let mut session = on_device(&compile_set("perception").artefacts, &data);
    let losses = [Phase::Evaluate, Phase::Train, Phase::Evaluate].map(|phase| epoch(&mut session, &data.train, phase));
    println!("{} rows: before, in and after an epoch {losses:?}", data.train.len());
    let [before, within, after] = losses;
    assert!(after < within && within < before && after < 0.8 * before, "{losses:?}");
}

#[test]
fn a_gradient_that_is_not_finite_skips_the_step() {
    let artefacts = compile_set("perception").artefacts;
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
    fill_externals(&mut session, &artefacts, 64).unwrap();
    session.write_named("order", &(20..52).collect::<Vec<i32>>()).unwrap();
    session.set_state_named("rows", 32.0).unwrap();
    session.init_params(1).unwrap();
    session.run(Phase::Train).unwrap();
    let kept = ["params", "adamw.m", "adamw.v"];
    let before: Vec<_> = kept.iter().map(|name| session.dump(name).unwrap()).collect();

    let mut feature = session.read_real("feature").unwrap();
    feature[30 * 18] = f64::NAN;
    session.write_real("feature", &feature).unwrap();
    session.reset(When::Epoch).unwrap();
    session.run(Phase::Train).unwrap();
    assert_eq!(session.state_named("steps_skipped").unwrap(), 1.0);
    assert_eq!(session.state_named("step_taken").unwrap(), 0.0);
    for (name, before) in kept.iter().zip(before) {
        let after = session.dump(name).unwrap();
        assert!(before.iter().zip(&after).all(|(a, b)| a.to_bits() == b.to_bits()), "{name} moved");
    }
    assert!(["isv", "smoothing"].iter().all(|name| session.dump(name).unwrap().iter().all(|x| x.is_finite())));
}
