//! What no model is needed for, on the shipped files: the figures that a trained one has to beat.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use unio::data::{Bars, Dataset, Feature, FoldData, Folds, HORIZON};
use unio::metrics::auc;

const SIX: [Feature; 6] = [
    Feature::LogVolatility1,
    Feature::LogVolatility5,
    Feature::LogVolatility20,
    Feature::LogRange1,
    Feature::LogRange5,
    Feature::LogRange20,
];

/// Newton steps of the logistic regression; it moves no digit after about eight.
const STEPS: usize = 12;

#[test]
fn carry_forward_scores_as_the_reference() {
    for (file, reference) in [("sp500", 0.792), ("nasdaq", 0.808)] {
        let found = mean_auc(file, &[Feature::LogVolatility5], |fold| fold.features.clone());
        println!("{file}: last 5 days' volatility, AUC {found:.4}, reference {reference}");
        assert!((found - reference).abs() < 0.002, "{file}: {found}");
    }
}

#[test]
fn logistic_regression_scores_as_the_reference() {
    for (file, reference) in [("sp500", 0.840), ("nasdaq", 0.866)] {
        let found = mean_auc(file, &SIX, logistic_scores);
        println!("{file}: logistic regression on six features, AUC {found:.4}, reference {reference}");
        assert!((found - reference).abs() < 0.002, "{file}: {found}");
    }
}

/// Mean over the folds of the test AUC of the volatility label.
fn mean_auc(file: &str, features: &[Feature], scores: impl Fn(&FoldData) -> Vec<f32>) -> f64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../specs/data");
    let bars = Bars::read(folder.join(file).with_extension("csv")).unwrap();
    let dataset = Dataset::new(&bars, features, HORIZON).unwrap();
    let folds = dataset.folds(&Folds { spans: 4, purge: HORIZON, embargo: 0 }, 1).unwrap();
    let areas = folds.iter().map(|fold| {
        let rows = fold.fold.test.clone();
        auc(&scores(fold)[rows.clone()], &fold.volatility[rows]).unwrap()
    });
    areas.sum::<f64>() / folds.len() as f64
}

/// A logistic regression on the training rows, by Newton's method with a ridge of 1e-3; a score for every row.
fn logistic_scores(fold: &FoldData) -> Vec<f32> {
    let inputs: Vec<[f64; 7]> = fold.features.chunks(6).map(with_one).collect();
    let mut weights = [0.0; 7];
    for _ in 0..STEPS {
        let step = newton_step(fold, &inputs, &weights);
        weights.iter_mut().zip(step).for_each(|(weight, delta)| *weight -= delta);
    }
    inputs.iter().map(|input| dot(input, &weights) as f32).collect()
}

fn newton_step(fold: &FoldData, inputs: &[[f64; 7]], weights: &[f64; 7]) -> [f64; 7] {
    let mut system = [[0.0; 8]; 7];
    for row in fold.train.iter().map(|row| *row as usize) {
        let (x, p) = (&inputs[row], 1.0 / (1.0 + (-dot(&inputs[row], weights)).exp()));
        for i in 0..7 {
            (0..7).for_each(|j| system[i][j] += p * (1.0 - p) * x[i] * x[j]);
            system[i][7] += (p - f64::from(fold.volatility[row])) * x[i];
        }
    }
    for i in 0..7 {
        system[i][i] += 1e-3;
        system[i][7] += 1e-3 * weights[i];
    }
    solve(system)
}

/// Gauss and Jordan; the ridge keeps every pivot positive.
fn solve(mut system: [[f64; 8]; 7]) -> [f64; 7] {
    for pivot in 0..7 {
        let row = system[pivot].map(|value| value / system[pivot][pivot]);
        for line in &mut system {
            let factor = line[pivot];
            line.iter_mut().zip(row).for_each(|(value, taken)| *value -= factor * taken);
        }
        system[pivot] = row;
    }
    system.map(|line| line[7])
}

fn with_one(row: &[f32]) -> [f64; 7] {
    std::array::from_fn(|at| row.get(at).map_or(1.0, |value| f64::from(*value)))
}

fn dot(a: &[f64; 7], b: &[f64; 7]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
