//! What no model is needed for: the scores that a trained one has to beat, on the same folds and labels.

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

/// The volatility of the last five days, taken for that of the next: mean over the folds of the test AUC.
pub fn carry_forward(bars: &Bars, folds: &Folds, window: usize) -> f64 {
    mean_auc(bars, folds, window, &[Feature::LogVolatility5], |fold| fold.features.clone())
}

/// A logistic regression on six features: mean over the folds of the test AUC.
pub fn logistic_regression(bars: &Bars, folds: &Folds, window: usize) -> f64 {
    mean_auc(bars, folds, window, &SIX, logistic_scores)
}

fn mean_auc(
    bars: &Bars,
    folds: &Folds,
    window: usize,
    features: &[Feature],
    scores: impl Fn(&FoldData) -> Vec<f32>,
) -> f64 {
    let folds = Dataset::new(bars, features, HORIZON).unwrap().folds(folds, window).unwrap();
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
