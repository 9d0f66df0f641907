use std::ops::Range;
use std::path::PathBuf;

use jiff::civil::Date;

use crate::digest;

use super::normalise::{Column, ColumnState};
use super::{Bars, DataError, Feature, Fold, Folds, WARM_UP, features, labels};

/// Features and labels of every usable day. Row `r` is bar `r + WARM_UP`; the last `horizon` bars have no label and
/// give no row.
#[derive(Debug, Clone)]
pub struct Dataset {
    path: PathBuf,
    features: Vec<Feature>,
    horizon: usize,
    dates: Vec<Date>,
    values: Vec<f64>,
    dt: Vec<f64>,
    direction: Vec<bool>,
    realised: Vec<f64>,
}

/// What one fold trains and tests on: flat arrays over all rows, and the rows that each side draws windows at.
///
/// A row index `r` means the window of rows `r + 1 - window ..= r`. A training window lies in the training rows whole. A
/// test window may look back into rows before the test span, purged ones included: it reads only features, which on
/// that day are in the past, and a live model would read them too.
#[derive(Debug, Clone, PartialEq)]
pub struct FoldData {
    /// The fold.
    pub fold: Fold,
    /// Rows a window holds.
    pub window: usize,
    /// Normalised features, `[rows, features]` row-major.
    pub features: Vec<f32>,
    /// Days since the bar before, `[rows]`, at least 1, not normalised.
    pub dt: Vec<f32>,
    /// 1 where the next day's close is above the day's, else 0: `[rows]`.
    pub direction: Vec<f32>,
    /// 1 where the volatility of the days ahead is above [`FoldData::threshold`], else 0: `[rows]`.
    pub volatility: Vec<f32>,
    /// Logarithm of the volatility of the days ahead, at least [`FLOOR`](super::features::FLOOR) a day, with mean 0 and
    /// standard deviation 1 over the rows in [`FoldData::train`]: `[rows]`.
    pub log_volatility: Vec<f32>,
    /// Training rows, rising.
    pub train: Vec<i32>,
    /// Test rows, rising: the whole test span.
    pub test: Vec<i32>,
    /// Median realised volatility a day of the rows in [`FoldData::train`].
    pub threshold: f64,
    /// How each feature was normalised, in column order.
    pub columns: Vec<Column>,
}

impl Dataset {
    /// Computes `features` and the labels of `horizon` days (usually [`HORIZON`](super::HORIZON)).
    ///
    /// # Errors
    /// [`DataError::FeatureList`], [`DataError::Horizon`] or [`DataError::TooFewBars`].
    pub fn new(bars: &Bars, features: &[Feature], horizon: usize) -> Result<Self, DataError> {
        check_features(features)?;
        let rows = rows_of(bars, horizon)?;
        let kept = WARM_UP..WARM_UP + rows;
        let mut values = features::compute(bars, features);
        values.truncate(rows * features.len());
        Ok(Self {
            path: bars.path().into(),
            features: features.to_vec(),
            horizon,
            dates: bars.dates()[kept.clone()].to_vec(),
            values,
            dt: bars.day_gaps()[kept.clone()].to_vec(),
            direction: labels::direction(bars)[kept.clone()].to_vec(),
            realised: labels::realised_volatility(bars, horizon)[kept].to_vec(),
        })
    }

    /// Number of rows, at least one.
    pub fn rows(&self) -> usize {
        self.dates.len()
    }

    /// Features, in column order.
    pub fn features(&self) -> &[Feature] {
        &self.features
    }

    /// The day of each row.
    pub fn dates(&self) -> &[Date] {
        &self.dates
    }

    /// Realised volatility a day of the days after each row.
    pub fn realised_volatility(&self) -> &[f64] {
        &self.realised
    }

    /// The data of each fold, for windows of `window` rows.
    ///
    /// # Errors
    /// [`DataError::EmptyWindow`]; [`DataError::Leak`] if the purge is shorter than the labels' horizon;
    /// [`DataError::TooFewSpans`]; [`DataError::TooFewRows`] if a fold's training rows hold no window.
    pub fn folds(&self, folds: &Folds, window: usize) -> Result<Vec<FoldData>, DataError> {
        if window == 0 {
            return Err(DataError::EmptyWindow);
        }
        if folds.purge < self.horizon {
            return Err(DataError::Leak { purge: folds.purge, horizon: self.horizon });
        }
        let cut = folds.over(self.rows())?;
        self.check_windows(folds, &cut, window)?;
        Ok(cut.into_iter().map(|fold| self.fold(fold, window)).collect())
    }

    fn check_windows(&self, folds: &Folds, cut: &[Fold], window: usize) -> Result<(), DataError> {
        let Some(short) = cut.iter().find(|fold| fold.train.len() < window) else {
            return Ok(());
        };
        Err(DataError::TooFewRows {
            path: self.path.clone(),
            fold: short.number,
            found: short.train.len(),
            rows: self.rows(),
            purge: folds.purge,
            embargo: folds.embargo,
            needed: window,
        })
    }

    fn fold(&self, fold: Fold, window: usize) -> FoldData {
        let ends = fold.train.start + window - 1..fold.train.end;
        // Checked before: there is one training row at least.
        let threshold = labels::median(&self.realised[ends.clone()]).unwrap_or_default();
        let columns = self.columns(&fold.train);
        FoldData {
            window,
            features: self.normalised(&columns),
            dt: self.dt.iter().map(|days| *days as f32).collect(),
            direction: flags(self.direction.iter().copied()),
            volatility: flags(self.realised.iter().map(|volatility| *volatility > threshold)),
            log_volatility: self.log_volatility(&ends),
            train: indices(ends),
            test: indices(fold.test.clone()),
            threshold,
            columns,
            fold,
        }
    }

    fn log_volatility(&self, train: &Range<usize>) -> Vec<f32> {
        let logs: Vec<f64> = self.realised.iter().map(|volatility| volatility.max(features::FLOOR).ln()).collect();
        let seen = &logs[train.clone()];
        let mean = seen.iter().sum::<f64>() / seen.len() as f64;
        let square = seen.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / seen.len() as f64;
        // Volatility that never moves is a target of 0, not of 0 / 0.
        let scale = if square > 0.0 { square.sqrt() } else { 1.0 };
        logs.iter().map(|x| ((x - mean) / scale) as f32).collect()
    }

    fn columns(&self, train: &Range<usize>) -> Vec<Column> {
        let column = |(at, feature): (usize, &Feature)| {
            let values: Vec<f64> = self.values.iter().skip(at).step_by(self.features.len()).copied().collect();
            Column::of(*feature, &values, train.clone())
        };
        self.features.iter().enumerate().map(column).collect()
    }

    fn normalised(&self, columns: &[Column]) -> Vec<f32> {
        self.values.iter().zip(columns.iter().cycle()).map(|(value, column)| column.normalise(*value)).collect()
    }
}

impl FoldData {
    /// Number of rows of every array.
    pub fn rows(&self) -> usize {
        self.dt.len()
    }

    /// SHA-256, in hexadecimal, of all that the fold trains and tests on: two folds with the same digest give the same
    /// numbers. Rows after the last test row do not count.
    pub fn digest(&self) -> String {
        let (rows, columns) = (self.fold.test.end, self.columns.len());
        let series = [&self.dt, &self.direction, &self.volatility, &self.log_volatility].map(|series| &series[..rows]);
        let values = series.into_iter().chain([&self.features[..rows * columns]]);
        let values = values.map(|part| part.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        let rows = [&self.train, &self.test].map(|rows| rows.iter().flat_map(|row| row.to_le_bytes()).collect());
        let parts: Vec<Vec<u8>> = values.chain(rows).chain([self.window.to_le_bytes().to_vec()]).collect();
        digest::of(parts.iter().map(Vec::as_slice))
    }

    /// Columns that do not move in training, for a report: each prints as one line that names its feature.
    pub fn still_columns(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(|column| column.state != ColumnState::Moves)
    }
}

fn check_features(features: &[Feature]) -> Result<(), DataError> {
    let repeated = (1..features.len()).any(|at| features[..at].contains(&features[at]));
    if !features.is_empty() && !repeated {
        return Ok(());
    }
    let names: Vec<_> = features.iter().map(|feature| feature.name()).collect();
    Err(DataError::FeatureList { found: names.join(", ") })
}

fn rows_of(bars: &Bars, horizon: usize) -> Result<usize, DataError> {
    if horizon < 2 {
        return Err(DataError::Horizon { horizon });
    }
    let needed = horizon.saturating_add(WARM_UP + 1);
    let rows = (bars.len() + 1).checked_sub(needed).filter(|rows| *rows > 0);
    rows.ok_or(DataError::TooFewBars { path: bars.path().into(), bars: bars.len(), warm_up: WARM_UP, horizon, needed })
}

fn flags(values: impl Iterator<Item = bool>) -> Vec<f32> {
    values.map(|value| if value { 1.0 } else { 0.0 }).collect()
}

/// Never near 2^31: a calendar has fewer days.
fn indices(rows: Range<usize>) -> Vec<i32> {
    rows.map(|row| row as i32).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture;
    use super::*;

    fn dataset(bars: usize, seed: u64) -> Dataset {
        Dataset::new(&fixture::bars(bars, seed), &Feature::ALL, 5).unwrap()
    }

    #[test]
    fn shapes_and_row_lists() {
        let data = dataset(425, 1);
        assert_eq!(data.rows(), 400);
        let folds = data.folds(&Folds { spans: 4, purge: 5, embargo: 7 }, 16).unwrap();
        for (fold, k) in folds.iter().zip(1..) {
            assert_eq!(fold.features.len(), 400 * Feature::ALL.len());
            assert!([&fold.dt, &fold.direction, &fold.volatility].iter().all(|series| series.len() == 400));
            assert_eq!(fold.train, (15..100 * k - 12).collect::<Vec<i32>>());
            assert_eq!(fold.test, (100 * k..100 * (k + 1)).collect::<Vec<i32>>());
            assert!(fold.features.iter().all(|value| value.is_finite()));
        }
    }

    #[test]
    fn rows_are_the_days_they_say() {
        let bars = fixture::bars(60, 2);
        let data = Dataset::new(&bars, &[Feature::Return1], 5).unwrap();
        let fold = &data.folds(&Folds { spans: 2, purge: 5, embargo: 0 }, 1).unwrap()[0];
        assert_eq!(data.dates(), &bars.dates()[20..55]);
        for row in 0..data.rows() {
            let (today, next) = (bars.close()[row + 20], bars.close()[row + 21]);
            assert_eq!(fold.direction[row], f32::from(u8::from(next > today)));
            assert_eq!(f64::from(fold.dt[row]), bars.day_gaps()[row + 20]);
        }
    }

    #[test]
    fn training_rows_are_centred_and_their_labels_balanced() {
        for fold in dataset(800, 4).folds(&Folds::default(), 1).unwrap() {
            let column = fold.train.iter().map(|row| f64::from(fold.features[*row as usize * Feature::ALL.len() + 7]));
            let count = fold.train.len() as f64;
            assert!((column.clone().sum::<f64>() / count).abs() < 1e-6);
            assert!((column.map(|value| value * value).sum::<f64>() / count - 1.0).abs() < 1e-5);
            let above: f32 = fold.train.iter().map(|row| fold.volatility[*row as usize]).sum();
            assert_eq!(above as usize, fold.train.len() / 2);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Whatever happens from the first test day on, nothing that training reads moves by a bit.
        #[test]
        fn training_never_sees_the_test_span(
            seed in 0u64..1000, bars in 200usize..500, window in 1usize..20, embargo in 0usize..10, k in 1usize..4,
        ) {
            let folds = Folds { spans: 4, purge: 5, embargo };
            let before = fixture::bars(bars, seed);
            let first_test_bar = folds.over(bars - WARM_UP - 5).unwrap()[k - 1].test.start + WARM_UP;
            let after = before.clone().with_tail_of(&fixture::bars(bars, seed + 5000), first_test_bar);
            let fold = |bars| Dataset::new(bars, &Feature::ALL, 5).unwrap().folds(&folds, window).unwrap().remove(k - 1);
            let (a, b) = (fold(&before), fold(&after));
            let rows = a.fold.train.end;
            prop_assert_ne!(&a.features, &b.features);
            prop_assert_eq!(&a.features[..rows * Feature::ALL.len()], &b.features[..rows * Feature::ALL.len()]);
            prop_assert_eq!((&a.direction[..rows], &a.volatility[..rows]), (&b.direction[..rows], &b.volatility[..rows]));
            prop_assert_eq!(&a.log_volatility[..rows], &b.log_volatility[..rows]);
            // Whether a column that stands still in training moves later is for the report alone.
            let scales = |fold: &FoldData| -> Vec<(f64, f64)> { fold.columns.iter().map(|c| (c.mean, c.scale)).collect() };
            prop_assert_eq!((a.threshold, scales(&a), &a.train), (b.threshold, scales(&b), &b.train));
        }

        #[test]
        fn windows_stay_inside_their_rows(bars in 100usize..400, window in 1usize..40) {
            let Ok(folds) = dataset(bars, 9).folds(&Folds::default(), window) else { return Ok(()) };
            for fold in folds {
                let first = |row: &i32| *row + 1 - window as i32;
                prop_assert!(fold.train.iter().all(|row| first(row) >= 0 && (*row as usize) < fold.fold.train.end));
                prop_assert!(fold.test.iter().all(|row| first(row) >= 0 && fold.fold.test.contains(&(*row as usize))));
                prop_assert!(fold.train.last().unwrap() + 5 < fold.test[0]);
            }
        }
    }

    #[test]
    fn one_row_short_of_a_window_is_refused_with_numbers() {
        let data = dataset(20 + 5 + 100, 3);
        let folds = Folds { spans: 4, purge: 5, embargo: 0 };
        assert_eq!(data.folds(&folds, 20).unwrap()[0].train, [19]);
        let message = data.folds(&folds, 21).unwrap_err().to_string();
        let said = "fixture.csv: fold 1 has 20 training rows (100 rows in all, less purge 5 and embargo 0), fewer than the 21 of one window";
        assert!(message.starts_with(said), "{message}");
    }

    #[test]
    fn one_bar_short_of_a_row_is_refused_with_numbers() {
        let with = |bars| Dataset::new(&fixture::bars(bars, 1), &Feature::ALL, 5);
        assert_eq!(with(26).unwrap().rows(), 1);
        assert!(with(25).unwrap_err().to_string().starts_with("fixture.csv: 25 bars are too few"));
        assert!(with(1).unwrap_err().to_string().contains("so 26 at least"));
        let far = Dataset::new(&fixture::bars(26, 1), &Feature::ALL, usize::MAX);
        assert!(matches!(far, Err(DataError::TooFewBars { .. })));
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let data = dataset(400, 1);
        assert!(matches!(data.folds(&Folds::default(), 0), Err(DataError::EmptyWindow)));
        let leaking = Folds { purge: 4, embargo: 50, spans: 4 };
        assert!(matches!(data.folds(&leaking, 8), Err(DataError::Leak { purge: 4, horizon: 5 })));
        let bars = fixture::bars(100, 1);
        assert!(matches!(Dataset::new(&bars, &[Feature::Return1], 1), Err(DataError::Horizon { .. })));
        assert!(matches!(Dataset::new(&bars, &[], 5), Err(DataError::FeatureList { .. })));
        let twice = Dataset::new(&bars, &[Feature::Return1, Feature::Return1], 5).unwrap_err().to_string();
        assert!(twice.contains("[return_1, return_1]"), "{twice}");
    }

    #[test]
    fn still_columns_are_named() {
        let mut volume = vec![7.0; 300];
        volume[200..].iter_mut().zip(1..).for_each(|(v, i)| *v = f64::from(i));
        let closes = fixture::bars(300, 6).close().to_vec();
        let data = Dataset::new(&fixture::from_closes(&closes, &volume), &[Feature::Return1, Feature::VolumeChange], 5)
            .unwrap();
        let folds = data.folds(&Folds::default(), 8).unwrap();
        let said: Vec<String> = folds[0].still_columns().map(ToString::to_string).collect();
        assert_eq!(
            said,
            ["feature `volume_change` is always 0.000000 in training and moves at row 180: centred, scale 1"]
        );
        assert_eq!(folds[2].still_columns().count(), 0);
    }
}
