use std::fmt;
use std::ops::Range;

use super::Feature;

/// Movement below this share of a column's size (at least 1, features being logarithms) is rounding, not data.
const STILL: f64 = 1e-9;

/// How one feature column was normalised: `(value - mean) / scale`.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The feature.
    pub feature: Feature,
    /// Mean of the training rows.
    pub mean: f64,
    /// Standard deviation (over n) of the training rows; 1 if they do not move.
    pub scale: f64,
    /// Whether it moves.
    pub state: ColumnState,
}

/// Whether a column moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnState {
    /// It moves in training.
    Moves,
    /// It never moves.
    Constant,
    /// It does not move in training but does later, so later values come in units the training has not seen.
    ConstantInTraining {
        /// The first row that differs.
        moves_at: usize,
    },
}

impl Column {
    /// Statistics of training rows only; later rows decide nothing but what the report says.
    pub(super) fn of(feature: Feature, values: &[f64], train: Range<usize>) -> Self {
        let (seen, later) = (&values[train.clone()], &values[train.end..]);
        if let Some(centre) = still(seen) {
            let moves = later.iter().position(|value| differs(*value, centre));
            let moves = moves.map(|after| ColumnState::ConstantInTraining { moves_at: train.end + after });
            return Self { feature, mean: centre, scale: 1.0, state: moves.unwrap_or(ColumnState::Constant) };
        }
        let count = seen.len() as f64;
        let mean = seen.iter().sum::<f64>() / count;
        let square = seen.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self { feature, mean, scale: square.sqrt(), state: ColumnState::Moves }
    }

    /// A value in training units; rounding of a constant column is taken away with its mean.
    pub(super) fn normalise(&self, value: f64) -> f32 {
        match self.state {
            ColumnState::Moves => ((value - self.mean) / self.scale) as f32,
            _ if differs(value, self.mean) => (value - self.mean) as f32,
            _ => 0.0,
        }
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { feature, mean, scale, state } = self;
        match state {
            ColumnState::Moves => {
                write!(f, "feature `{feature}`: mean {mean:.6}, scale {scale:.6}")
            }
            ColumnState::Constant => {
                write!(f, "feature `{feature}` is always {mean:.6}: centred, scale 1")
            }
            ColumnState::ConstantInTraining { moves_at } => {
                write!(
                    f,
                    "feature `{feature}` is always {mean:.6} in training and moves at row {moves_at}: centred, scale 1"
                )
            }
        }
    }
}

/// The one value of a column that does not move.
fn still(values: &[f64]) -> Option<f64> {
    let first = *values.first()?;
    values.iter().all(|value| !differs(*value, first)).then_some(first)
}

fn differs(value: f64, centre: f64) -> bool {
    (value - centre).abs() > STILL * centre.abs().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_rows_alone_give_mean_and_scale() {
        let column = Column::of(Feature::Return1, &[1.0, 3.0, 1.0, 3.0, 900.0], 0..4);
        assert_eq!((column.mean, column.scale, column.state), (2.0, 1.0, ColumnState::Moves));
        assert_eq!(column.normalise(900.0), 898.0);
    }

    #[test]
    fn a_constant_column_is_centred_and_named() {
        let noisy = [0.1, 0.1 + 1e-16, 0.1 - 1e-16, 0.1];
        let column = Column::of(Feature::VolumeChange, &noisy, 0..3);
        assert_eq!((column.scale, column.state), (1.0, ColumnState::Constant));
        assert!(noisy.iter().all(|value| column.normalise(*value) == 0.0));
        assert_eq!(column.to_string(), "feature `volume_change` is always 0.100000: centred, scale 1");
    }

    #[test]
    fn a_column_constant_in_training_that_moves_later_is_reported() {
        let column = Column::of(Feature::VolumeChange, &[2.0, 2.0, 2.0, 2.0, 5.0], 0..3);
        assert_eq!(column.state, ColumnState::ConstantInTraining { moves_at: 4 });
        assert_eq!(column.normalise(5.0), 3.0);
        assert!(column.to_string().contains("moves at row 4"), "{column}");
    }
}
