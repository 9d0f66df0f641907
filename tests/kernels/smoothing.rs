//! Smoothing laws on simulated signals, against the best fixed gain that hindsight could choose.

use unio::device::Real;
use unio::{Phase, Session};
use unio_tests::{device, fixture_text};

use crate::producers::{compiled_from, normal};

const STEPS: usize = 4000;
/// Steps that a law may take to find its way.
const BURN_IN: usize = 500;
const NAMES: [&str; 5] = ["white noise", "drift", "slow walk", "fast walk", "step"];

/// Five signals with noise of unit variance, half that for the step.
fn signals() -> Vec<[f64; 5]> {
    let noise = normal(7 * STEPS);
    let (mut slow, mut fast) = (3.0, 3.0);
    let sample = |t: usize| {
        let n: Vec<f64> = (0..7).map(|k| noise[7 * t + k]).collect();
        slow += 0.1 * n[5];
        fast += 0.5 * n[6];
        let level = if t < STEPS / 2 { 3.0 } else { 8.0 };
        [3.0 + n[0], 3.0 + 0.01 * t as f64 + n[1], slow + n[2], fast + n[3], level + 0.5 * n[4]]
    };
    (0..STEPS).map(sample).collect()
}

/// Mean squared error of predicting each observation by the level before it.
fn error(observed: &[f64], levels: &[f64]) -> f64 {
    let errors = (BURN_IN..observed.len()).map(|t| (observed[t] - levels[t - 1]).powi(2));
    errors.sum::<f64>() / (observed.len() - BURN_IN) as f64
}

fn best_fixed_gain(observed: &[f64]) -> (f64, f64) {
    let gains = (0..25).map(|k| 0.01 * 100f64.powf(f64::from(k) / 24.0));
    let run = |gain: f64| {
        let mut level = observed[0];
        let levels: Vec<f64> = observed
            .iter()
            .map(|x| {
                level += gain * (x - level);
                level
            })
            .collect();
        (error(observed, &levels), gain)
    };
    gains.map(run).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

#[test]
fn kalman_is_within_a_tenth_of_the_best_fixed_gain() {
    let spec = fixture_text("producers/laws.toml");
    let artefacts = compiled_from(&spec);
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
    let signals = signals();
    let mut levels: Vec<[Vec<f64>; 2]> = vec![[Vec::new(), Vec::new()]; 5];
    for row in &signals {
        session.write_real("signals", row).unwrap();
        session.run(Phase::Train).unwrap();
        for (law, name) in ["kalman", "pearl"].iter().enumerate() {
            let slots = session.slot_named(name).unwrap();
            slots.iter().enumerate().for_each(|(s, level)| levels[s][law].push(f64::from(*level)));
        }
    }
    println!("error against the best fixed gain      kalman  pearl_ad  best gain");
    for (s, name) in NAMES.iter().enumerate() {
        let observed: Vec<f64> = signals.iter().map(|row| row[s]).collect();
        let (best, gain) = best_fixed_gain(&observed);
        let [kalman, pearl] = [0, 1].map(|law| error(&observed, &levels[s][law]) / best);
        println!("{name:<38} {kalman:>6.3} {pearl:>9.3} {gain:>10.3}");
        assert!(kalman <= 1.10, "{name}: {kalman}");
    }
}
