//! Schedules of the same equations: how a stage is laid out changes its speed, and never what it gives.

use unio::device::{Device, Real};
use unio::interface::{Artefacts, Elem};
use unio::random::Stream;
use unio::{Phase, Session};
use unio_tests::{compile_edited, compile_scheduled, device, twin_devices};

use crate::determinism::{assert_same, steps};

/// Fixtures of every kind of stage.
const FIXTURES: [&str; 9] =
    ["cfc", "pool", "grn", "mamba2", "head", "vsn_each", "mamba2_head", "masked_pool", "gathers"];
/// A block a sample with a scratch; one block; the gradients by a kernel of their own; both.
const SCHEDULES: [&str; 4] = [
    "grid = \"batch\", gradients = \"scratch\"",
    "grid = \"single\"",
    "gradients = \"deferred\"",
    "grid = \"single\", gradients = \"deferred\"",
];
/// Samples in the step, where several are summed.
const BATCH: usize = 5;

#[test]
fn schedules_give_the_same_gradients_in_f64() {
    for name in FIXTURES {
        compare(name, &[("B", BATCH)], Real::F64, 1e-12);
    }
}

#[test]
fn schedules_give_the_same_gradients_in_f32() {
    for name in FIXTURES {
        compare(name, &[("B", BATCH)], Real::F32, 1e-5);
    }
}

#[test]
fn a_single_block_agrees_with_a_batch_of_one() {
    for name in FIXTURES {
        let gradients = |schedule| gradients(&compile_scheduled(name, &[("B", 1)], schedule).artefacts, Real::F32);
        let (batch, single) = (gradients(SCHEDULES[0]), gradients(SCHEDULES[1]));
        let off = batch.iter().zip(&single).map(|(a, b)| (a - b).abs() / a.abs().max(f64::MIN_POSITIVE));
        let worst = off.fold(0.0, f64::max);
        assert!(worst <= 1e-6, "{name}: off by {worst:e} of the value");
    }
}

#[test]
fn every_schedule_gives_the_same_bits_whichever_thread_goes_first() {
    let [forward, reversed] = twin_devices().unwrap();
    for name in FIXTURES {
        for schedule in SCHEDULES {
            let artefacts = compile_scheduled(name, &[("B", BATCH)], schedule).artefacts;
            let run = |device: &Device| steps(device, &artefacts, 2);
            assert_same(&format!("{name}, {schedule}"), &run(&forward), &run(&reversed));
        }
    }
}

/// One stage defers, its neighbours do not: the reducer leaves its part of the gradients alone.
#[test]
fn stages_of_one_model_may_differ() {
    for name in FIXTURES {
        let whole = compile_scheduled(name, &[("B", BATCH)], SCHEDULES[0]).artefacts;
        let expected = gradients(&whole, Real::F64);
        let stages: Vec<String> = whole.program.unwrap().stages.into_iter().map(|s| s.name).collect();
        for stage in stages.iter().filter(|s| !["probe", "loss"].contains(&s.as_str())) {
            let mixed = mixed(name, stage);
            let program = mixed.program.as_ref().unwrap();
            assert!(program.buffers.iter().any(|b| b.name == "gradient_scratch"), "{name}: {stage}");
            let off = worst(&expected, &gradients(&mixed, Real::F64));
            assert!(off <= 1e-12, "{name}: with `{stage}` deferred the gradients are off by {off:e}");
        }
    }
}

/// Where all gradients are deferred there is no scratch, and nothing to reduce.
#[test]
fn deferred_gradients_take_no_scratch() {
    let artefacts = compile_scheduled("cfc", &[], SCHEDULES[2]).artefacts;
    let program = artefacts.program.unwrap();
    assert!(program.buffers.iter().all(|b| b.name != "gradient_scratch"));
    assert!(program.train.iter().all(|l| l.name != "reduce_axis0"));
    let optimizer = program.train.iter().position(|l| l.name.starts_with("sgd")).unwrap();
    let deferred = program.train.iter().rposition(|l| l.name.ends_with(".gradients")).unwrap();
    assert!(deferred < optimizer, "an optimizer runs before the gradients are there");
}

/// The model with one stage's gradients deferred.
fn mixed(name: &str, stage: &str) -> Artefacts {
    let edit = |line: &str| match line.strip_prefix(stage).and_then(|rest| rest.trim_start().strip_prefix("= {")) {
        Some(keys) => format!("{stage} = {{ schedule = {{ gradients = \"deferred\" }},{keys}"),
        // What is applied to many values would defer by itself.
        None if line.starts_with("batch") => format!("{line}\nschedule = {{ gradients = \"scratch\" }}"),
        None => line.to_owned(),
    };
    let edit = |text: &str| text.lines().map(edit).collect::<Vec<_>>().join("\n");
    compile_edited(name, &[("B", BATCH)], edit).artefacts
}

/// Sizes beyond a warp and no multiple of anything: sums that lanes split, weights that stay in registers, gradients in tiles.
#[test]
fn wide_stages_agree_too() {
    let wide: [(&str, &[(&str, usize)]); 4] = [
        ("cfc", &[("B", 2), ("K", 3), ("I", 40), ("U", 66), ("H", 70)]),
        ("vsn_each", &[("B", 2), ("K", 2), ("M", 3), ("I", 2), ("H", 67), ("C", 33)]),
        ("mamba2", &[("B", 2), ("K", 3), ("H", 66), ("G", 2), ("P", 33), ("N", 16)]),
        ("pool", &[("B", 2), ("K", 5), ("H", 64), ("A", 96)]),
    ];
    for (name, sizes) in wide {
        compare(name, sizes, Real::F64, 1e-12);
        compare(name, sizes, Real::F32, 1e-5);
    }
}

/// Many samples: a block takes several, and a thread sums a weight's products for all of them.
#[test]
fn several_samples_a_block_agree_with_one() {
    let many: [(&str, &[(&str, usize)]); 2] =
        [("vsn", &[("B", 256), ("M", 3), ("I", 3), ("H", 9)]), ("grn", &[("B", 512), ("I", 64), ("H", 64)])];
    let [forward, reversed] = twin_devices().unwrap();
    for (name, sizes) in many {
        compare(name, sizes, Real::F64, 1e-12);
        compare(name, sizes, Real::F32, 1e-5);
        let artefacts = compile_scheduled(name, sizes, SCHEDULES[2]).artefacts;
        let run = |device: &Device| steps(device, &artefacts, 2);
        assert_same(name, &run(&forward), &run(&reversed));
    }
}

fn compare(name: &str, sizes: &[(&str, usize)], real: Real, tolerance: f64) {
    let gradients = |schedule| gradients(&compile_scheduled(name, sizes, schedule).artefacts, real);
    let expected = gradients(SCHEDULES[0]);
    assert!(expected.iter().any(|g| *g != 0.0), "{name}: no gradient at all");
    for schedule in &SCHEDULES[1..] {
        let off = worst(&expected, &gradients(schedule));
        assert!(off <= tolerance, "{name}, {schedule}: off by {off:e}");
    }
}

/// The largest difference, relative to the larger of 1 and the largest gradient.
fn worst(expected: &[f64], given: &[f64]) -> f64 {
    assert_eq!(expected.len(), given.len());
    let norm = expected.iter().fold(1.0, |norm: f64, g| norm.max(g.abs()));
    let off = expected.iter().zip(given).map(|(a, b)| (a - b).abs());
    off.fold(0.0, |worst: f64, off| if off.is_nan() { f64::INFINITY } else { worst.max(off) }) / norm
}

fn gradients(artefacts: &Artefacts, real: Real) -> Vec<f64> {
    let mut session = Session::new(&device().unwrap(), artefacts, real).unwrap();
    for buffer in artefacts.program.as_ref().unwrap().buffers.iter().filter(|b| b.external) {
        if buffer.elem == Elem::I32 {
            // Some indices lie outside what they point into.
            let rows: Vec<i32> = (0..buffer.len.unwrap() as i32).map(|n| n * 5 % 11 - 2).collect();
            session.write_named(&buffer.name, &rows).unwrap();
            continue;
        }
        let stream = Stream::new(7, &buffer.name);
        let values: Vec<f64> = (0..buffer.len.unwrap()).map(|n| 1.0 + 0.5 * stream.symmetric(n as u64)).collect();
        session.write_real(&buffer.name, &values).unwrap();
    }
    session.init_params(3).unwrap();
    session.run(Phase::Train).unwrap();
    session.read_real("grads").unwrap()
}
