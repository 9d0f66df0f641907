//! The closed list of features, each computed per day from bars up to and including that day.

use std::fmt;
use std::str::FromStr;

use super::{Bars, DataError};

/// Days of history that a row needs, whatever features are asked for: the first `WARM_UP` bars give no row, so that
/// rows of different feature lists agree.
pub const WARM_UP: usize = 20;

/// Least daily volatility or range, one basis point: keeps the logarithm finite on a day without movement.
pub const FLOOR: f64 = 1e-4;

/// One number a day. `C` is the close returns are taken of ([`Bars::return_close`]), `r = ln(C[t] / C[t-1])`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// `return_1`: `ln(C[t] / C[t-1])`.
    Return1,
    /// `return_5`: `ln(C[t] / C[t-5])`.
    Return5,
    /// `return_20`: `ln(C[t] / C[t-20])`.
    Return20,
    /// `log_range_1`: logarithm of the day's range `ln(high / low)`, at least [`FLOOR`].
    LogRange1,
    /// `log_range_5`: logarithm of the mean range of 5 days, at least [`FLOOR`].
    LogRange5,
    /// `log_range_20`: logarithm of the mean range of 20 days, at least [`FLOOR`].
    LogRange20,
    /// `log_volatility_1`: `ln |r|`, with `|r|` at least [`FLOOR`] (one return has no standard deviation).
    LogVolatility1,
    /// `log_volatility_5`: logarithm of the [volatility] of the last 5 daily returns, at least [`FLOOR`].
    LogVolatility5,
    /// `log_volatility_20`: logarithm of the [volatility] of the last 20, at least [`FLOOR`].
    LogVolatility20,
    /// `volume_change`: logarithm of the day's volume over the mean of 20 days, that day the last.
    ///
    /// A volume of 0 means not recorded, so the last one recorded stands in; 0 before any is recorded.
    VolumeChange,
    /// `relative_return_1`: `return_1` over the mean range of 20 days.
    RelativeReturn1,
    /// `relative_return_5`: `return_5` over the mean range of 20 days.
    RelativeReturn5,
    /// `relative_return_20`: `return_20` over the mean range of 20 days.
    RelativeReturn20,
    /// `log_decayed_range_3`: logarithm of the decayed mean of the range, half-life 3 days, at least [`FLOOR`].
    LogDecayedRange3,
    /// `log_decayed_range_8`: the same with a half-life of 8 days.
    LogDecayedRange8,
    /// `range_change`: `log_range_1` less `log_range_5`.
    RangeChange,
    /// `log_garman_klass_3`: logarithm of the decayed mean, half-life 3 days, of the day's volatility by Garman and Klass
    /// (1980), `√(½ ln(high/low)² − (2 ln 2 − 1) ln(close/open)²)`; at least [`FLOOR`].
    LogGarmanKlass3,
    /// `volatility_to_range_5`: `log_volatility_5` less `log_range_5`.
    VolatilityToRange5,
    /// `range_trend`: `log_decayed_range_3` less `log_range_20`.
    RangeTrend,
    /// `volume_trend`: logarithm of the mean volume of 5 days over that of 20.
    VolumeTrend,
    /// `volume_surge`: logarithm of the day's volume over the mean of 5 days, that day the last.
    VolumeSurge,
    /// `close_place`: where between low (0) and high (1) the day closed, in logarithms; ½ on a day without a range.
    ClosePlace,
    /// `relative_body`: `ln(close / open)` over the mean range of 20 days.
    RelativeBody,
    /// `close_place_5`: mean of `close_place` over 5 days.
    ClosePlace5,
    /// `log_decayed_fall_range_3`: logarithm of the decayed mean of the range and what the close fell by, together, half-life
    /// 3 days, at least [`FLOOR`].
    LogDecayedFallRange3,
    /// `fall_to_range_5`: logarithm of the decayed mean of what the close fell by over that of the range, half-life 5 days.
    FallToRange5,
    /// `rise_to_range_5`: the same of what it rose by.
    RiseToRange5,
}

/// Features by what they are about: what a run takes if it names none. Each group is one variable to the model.
pub const GROUPS: [(&str, [Feature; 3]); 6] = [
    ("candle", [Feature::ClosePlace, Feature::ClosePlace5, Feature::RelativeBody]),
    ("downside", [Feature::LogDecayedFallRange3, Feature::FallToRange5, Feature::RiseToRange5]),
    ("ranges", [Feature::LogDecayedRange3, Feature::LogDecayedRange8, Feature::RangeChange]),
    ("returns", [Feature::RelativeReturn1, Feature::RelativeReturn5, Feature::RelativeReturn20]),
    ("volatility", [Feature::LogGarmanKlass3, Feature::VolatilityToRange5, Feature::RangeTrend]),
    ("volume", [Feature::VolumeTrend, Feature::VolumeChange, Feature::VolumeSurge]),
];

impl Feature {
    /// Every feature, in column order.
    pub const ALL: [Self; 27] = [
        Self::Return1,
        Self::Return5,
        Self::Return20,
        Self::LogRange1,
        Self::LogRange5,
        Self::LogRange20,
        Self::LogVolatility1,
        Self::LogVolatility5,
        Self::LogVolatility20,
        Self::VolumeChange,
        Self::RelativeReturn1,
        Self::RelativeReturn5,
        Self::RelativeReturn20,
        Self::LogDecayedRange3,
        Self::LogDecayedRange8,
        Self::RangeChange,
        Self::LogGarmanKlass3,
        Self::VolatilityToRange5,
        Self::RangeTrend,
        Self::VolumeTrend,
        Self::VolumeSurge,
        Self::ClosePlace,
        Self::RelativeBody,
        Self::ClosePlace5,
        Self::LogDecayedFallRange3,
        Self::FallToRange5,
        Self::RiseToRange5,
    ];

    /// The name that specs and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Return1 => "return_1",
            Self::Return5 => "return_5",
            Self::Return20 => "return_20",
            Self::LogRange1 => "log_range_1",
            Self::LogRange5 => "log_range_5",
            Self::LogRange20 => "log_range_20",
            Self::LogVolatility1 => "log_volatility_1",
            Self::LogVolatility5 => "log_volatility_5",
            Self::LogVolatility20 => "log_volatility_20",
            Self::VolumeChange => "volume_change",
            Self::RelativeReturn1 => "relative_return_1",
            Self::RelativeReturn5 => "relative_return_5",
            Self::RelativeReturn20 => "relative_return_20",
            Self::LogDecayedRange3 => "log_decayed_range_3",
            Self::LogDecayedRange8 => "log_decayed_range_8",
            Self::RangeChange => "range_change",
            Self::LogGarmanKlass3 => "log_garman_klass_3",
            Self::VolatilityToRange5 => "volatility_to_range_5",
            Self::RangeTrend => "range_trend",
            Self::VolumeTrend => "volume_trend",
            Self::VolumeSurge => "volume_surge",
            Self::ClosePlace => "close_place",
            Self::RelativeBody => "relative_body",
            Self::ClosePlace5 => "close_place_5",
            Self::LogDecayedFallRange3 => "log_decayed_fall_range_3",
            Self::FallToRange5 => "fall_to_range_5",
            Self::RiseToRange5 => "rise_to_range_5",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Feature {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        Self::ALL.into_iter().find(|feature| feature.name() == text).ok_or_else(|| DataError::UnknownFeature {
            text: text.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// Raw (not normalised) values, `[bars - WARM_UP, features]` row-major; row `i` is bar `i + WARM_UP`.
///
/// Every value is finite. No rows if there are [`WARM_UP`] bars or fewer.
pub fn compute(bars: &Bars, features: &[Feature]) -> Vec<f64> {
    let history = History::new(bars);
    let row = |bar| features.iter().map(move |feature| (bar, *feature));
    (WARM_UP..bars.len()).flat_map(row).map(|(bar, feature)| history.value(feature, bar)).collect()
}

/// Daily logarithmic returns `ln(C[t] / C[t-1])`, one a bar; the first bar has none and reads 0.
pub fn log_returns(bars: &Bars) -> Vec<f64> {
    let step = |pair: &[f64]| pair[1].ln() - pair[0].ln();
    std::iter::once(0.0).chain(bars.return_close().windows(2).map(step)).collect()
}

/// Realised volatility a day: the sample standard deviation (about the mean, over n - 1) of daily log returns.
///
/// 0 for fewer than two returns. About the mean, not about zero: over 5 days a drift is not counted as risk. This is
/// the definition of the baselines in [`labels`](super::labels).
pub fn volatility(returns: &[f64]) -> f64 {
    if returns.len() < 2 {
        return 0.0;
    }
    let centre = mean(returns);
    let squares: f64 = returns.iter().map(|r| (r - centre).powi(2)).sum();
    (squares / (returns.len() - 1) as f64).sqrt()
}

/// Daily series that features are windows of. Each window is summed afresh: a running sum would let rounding of one
/// day depend on all days before it.
struct History<'a> {
    close: &'a [f64],
    bars: &'a Bars,
    returns: Vec<f64>,
    ranges: Vec<f64>,
    falls: Vec<f64>,
    rises: Vec<f64>,
    garman_klass: Vec<f64>,
    volume: Vec<f64>,
}

impl<'a> History<'a> {
    fn new(bars: &'a Bars) -> Self {
        let ranges: Vec<f64> = bars.high().iter().zip(bars.low()).map(|(high, low)| high.ln() - low.ln()).collect();
        let returns = log_returns(bars);
        Self {
            close: bars.return_close(),
            bars,
            falls: returns.iter().map(|r| (-r).max(0.0)).collect(),
            rises: returns.iter().map(|r| r.max(0.0)).collect(),
            garman_klass: (0..bars.len()).map(|bar| garman_klass(ranges[bar], body(bars, bar))).collect(),
            returns,
            ranges,
            volume: carried(bars.volume()),
        }
    }

    fn value(&self, feature: Feature, bar: usize) -> f64 {
        match feature {
            Feature::Return1 => self.log_return(bar, 1),
            Feature::Return5 => self.log_return(bar, 5),
            Feature::Return20 => self.log_return(bar, 20),
            Feature::LogRange1 => floored_ln(mean(last(&self.ranges, bar, 1))),
            Feature::LogRange5 => floored_ln(mean(last(&self.ranges, bar, 5))),
            Feature::LogRange20 => floored_ln(mean(last(&self.ranges, bar, 20))),
            Feature::LogVolatility1 => floored_ln(self.returns[bar].abs()),
            Feature::LogVolatility5 => floored_ln(volatility(last(&self.returns, bar, 5))),
            Feature::LogVolatility20 => floored_ln(volatility(last(&self.returns, bar, 20))),
            Feature::VolumeChange => self.volume_over(bar, 1, 20),
            Feature::RelativeReturn1 => self.relative(bar, self.log_return(bar, 1)),
            Feature::RelativeReturn5 => self.relative(bar, self.log_return(bar, 5)),
            Feature::RelativeReturn20 => self.relative(bar, self.log_return(bar, 20)),
            Feature::LogDecayedRange3 => decayed_ln(&self.ranges, bar, 3.0),
            Feature::LogDecayedRange8 => decayed_ln(&self.ranges, bar, 8.0),
            Feature::RangeChange => self.value(Feature::LogRange1, bar) - self.value(Feature::LogRange5, bar),
            Feature::LogGarmanKlass3 => decayed_ln(&self.garman_klass, bar, 3.0),
            Feature::VolatilityToRange5 => {
                self.value(Feature::LogVolatility5, bar) - self.value(Feature::LogRange5, bar)
            }
            Feature::RangeTrend => decayed_ln(&self.ranges, bar, 3.0) - self.value(Feature::LogRange20, bar),
            Feature::VolumeTrend => self.volume_over(bar, 5, 20),
            Feature::VolumeSurge => self.volume_over(bar, 1, 5),
            Feature::ClosePlace => self.close_place(bar),
            Feature::RelativeBody => self.relative(bar, body(self.bars, bar)),
            Feature::ClosePlace5 => (bar - 4..=bar).map(|day| self.close_place(day)).sum::<f64>() / 5.0,
            Feature::LogDecayedFallRange3 => {
                floored_ln(decayed(&self.ranges, bar, 3.0) + decayed(&self.falls, bar, 3.0))
            }
            Feature::FallToRange5 => decayed_ln(&self.falls, bar, 5.0) - decayed_ln(&self.ranges, bar, 5.0),
            Feature::RiseToRange5 => decayed_ln(&self.rises, bar, 5.0) - decayed_ln(&self.ranges, bar, 5.0),
        }
    }

    /// In units of the mean range of 20 days, at least [`FLOOR`].
    fn relative(&self, bar: usize, value: f64) -> f64 {
        value / mean(last(&self.ranges, bar, 20)).max(FLOOR)
    }

    fn close_place(&self, bar: usize) -> f64 {
        let above_low = self.bars.close()[bar].ln() - self.bars.low()[bar].ln();
        if self.ranges[bar] > 0.0 { above_low / self.ranges[bar] } else { 0.5 }
    }

    fn log_return(&self, bar: usize, days: usize) -> f64 {
        self.close[bar].ln() - self.close[bar - days].ln()
    }

    /// Logarithm of the mean volume of the last `days` over that of the last `base` days; 0 before any is recorded.
    fn volume_over(&self, bar: usize, days: usize, base: usize) -> f64 {
        let recent = |days| ln_mean_recorded(last(&self.volume, bar, days));
        if self.volume[bar] > 0.0 { recent(days) - recent(base) } else { 0.0 }
    }
}

/// The decayed mean: of the last [`WARM_UP`] days, with weights that halve every `half_life` days, so that an old day does not leave with a
/// jump.
fn decayed(series: &[f64], bar: usize, half_life: f64) -> f64 {
    let weights = (0..WARM_UP).rev().map(|age| (-(age as f64) / half_life).exp2());
    let total: f64 = weights.clone().sum();
    last(series, bar, WARM_UP).iter().zip(weights).map(|(value, weight)| value * weight).sum::<f64>() / total
}

fn decayed_ln(series: &[f64], bar: usize, half_life: f64) -> f64 {
    floored_ln(decayed(series, bar, half_life))
}

fn body(bars: &Bars, bar: usize) -> f64 {
    bars.close()[bar].ln() - bars.open()[bar].ln()
}

fn garman_klass(range: f64, body: f64) -> f64 {
    let square = 0.5 * range * range - (2.0 * std::f64::consts::LN_2 - 1.0) * body * body;
    square.max(0.0).sqrt()
}

fn last(series: &[f64], bar: usize, days: usize) -> &[f64] {
    &series[bar + 1 - days..=bar]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Logarithm of the mean of the days on or after the first recorded one; at least one is recorded. In units of the
/// largest, so that the sum cannot overflow.
fn ln_mean_recorded(volume: &[f64]) -> f64 {
    let recorded = volume.iter().skip_while(|v| **v == 0.0);
    let largest = recorded.clone().copied().fold(0.0, f64::max);
    let shares: Vec<f64> = recorded.map(|v| v / largest).collect();
    largest.ln() + mean(&shares).ln()
}

/// Volumes with each 0 replaced by the last one recorded.
fn carried(volume: &[f64]) -> Vec<f64> {
    let carry = |held: &mut f64, today: &f64| {
        *held = if *today > 0.0 { *today } else { *held };
        Some(*held)
    };
    volume.iter().scan(0.0, carry).collect()
}

fn floored_ln(value: f64) -> f64 {
    value.max(FLOOR).ln()
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn a_group_holds_each_feature_once() {
        let all: Vec<Feature> = GROUPS.iter().flat_map(|(_, features)| *features).collect();
        assert!((1..all.len()).all(|at| !all[..at].contains(&all[at])));
        assert!(GROUPS.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn names_go_both_ways_and_an_unknown_one_lists_them() {
        for feature in Feature::ALL {
            assert_eq!(feature.to_string().parse::<Feature>().unwrap(), feature);
        }
        let message = "log_vol".parse::<Feature>().unwrap_err().to_string();
        assert!(message.contains("\"log_vol\"") && message.contains("log_volatility_5"), "{message}");
    }

    #[test]
    fn a_day_is_what_its_formulas_say() {
        let bars = fixture::bars(30, 3);
        let row = compute(&bars, &Feature::ALL)[4 * 27..5 * 27].to_vec();
        let (c, bar) = (bars.close(), 24);
        let range = |t: usize| (bars.high()[t] / bars.low()[t]).ln();
        let r: Vec<f64> = (bar - 4..=bar).map(|t| (c[t] / c[t - 1]).ln()).collect();
        let m = r.iter().sum::<f64>() / 5.0;
        let sd = (r.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / 4.0).sqrt();
        let v20 = bars.volume()[bar - 19..=bar].iter().sum::<f64>() / 20.0;
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        near(row[0], (c[bar] / c[bar - 1]).ln());
        near(row[2], (c[bar] / c[bar - 20]).ln());
        near(row[4], ((bar - 4..=bar).map(range).sum::<f64>() / 5.0).ln());
        near(row[6], r[4].abs().ln());
        near(row[7], sd.ln());
        near(row[9], (bars.volume()[bar] / v20).ln());
        let m20 = (bar - 19..=bar).map(range).sum::<f64>() / 20.0;
        near(row[11], (c[bar] / c[bar - 5]).ln() / m20);
        let decayed = |half_life: f64, value: &dyn Fn(usize) -> f64| {
            let weight = |t: usize| 0.5f64.powf((bar - t) as f64 / half_life);
            (bar - 19..=bar).map(|t| weight(t) * value(t)).sum::<f64>() / (bar - 19..=bar).map(weight).sum::<f64>()
        };
        near(row[13], decayed(3.0, &range).ln());
        near(row[15], range(bar).ln() - row[4]);
        let body = |t: usize| (bars.close()[t] / bars.open()[t]).ln();
        let daily = |t: usize| (0.5 * range(t).powi(2) - (4f64.ln() - 1.0) * body(t).powi(2)).max(0.0).sqrt();
        near(row[16], decayed(3.0, &daily).max(FLOOR).ln());
        near(row[21], (bars.close()[bar] / bars.low()[bar]).ln() / range(bar));
        let place = |t: usize| (bars.close()[t] / bars.low()[t]).ln() / range(t);
        near(row[23], (bar - 4..=bar).map(place).sum::<f64>() / 5.0);
        let fall = |t: usize| (-(c[t] / c[t - 1]).ln()).max(0.0);
        near(row[24], decayed(3.0, &|t| range(t) + fall(t)).ln());
        near(row[25], decayed(5.0, &fall).max(FLOOR).ln() - decayed(5.0, &range).ln());
    }

    #[test]
    fn no_value_depends_on_a_later_bar() {
        let whole = compute(&fixture::bars(120, 7), &Feature::ALL);
        for length in 0..120 {
            let part = compute(&fixture::bars(120, 7).first(length + 1), &Feature::ALL);
            assert_eq!(part, whole[..part.len()], "{length}");
        }
    }

    #[test]
    fn days_without_movement_or_volume_stay_finite() {
        let flat = fixture::from_closes(&[5.0; 40], &[0.0; 40]);
        let values = compute(&flat, &Feature::ALL);
        assert_eq!(values.len(), 20 * Feature::ALL.len());
        assert!(values.iter().all(|v| v.is_finite()));
        assert_eq!(values[6], FLOOR.ln());
        assert_eq!(values[9], 0.0);
    }

    #[test]
    fn a_volume_not_recorded_is_the_one_before() {
        assert_eq!(carried(&[0.0, 2.0, 0.0, 0.0, 3.0, 0.0]), [0.0, 2.0, 2.0, 2.0, 3.0, 3.0]);
        assert!((ln_mean_recorded(&[0.0, 0.0, 2.0, 4.0]) - 3f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn extreme_prices_and_volumes_stay_finite() {
        let prices: Vec<f64> = (0..40).map(|i| if i % 2 == 0 { f64::MAX } else { f64::MIN_POSITIVE }).collect();
        let values = compute(&fixture::from_closes(&prices, &[f64::MAX; 40]), &Feature::ALL);
        assert!(values.iter().all(|v| v.is_finite()));
    }
}
