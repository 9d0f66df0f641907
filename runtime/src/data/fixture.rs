//! Made-up bars for the tests of this module.

use std::fmt::Write;

use super::Bars;

/// A random walk with weekends left out: the same for the same seed, and a shorter one is the start of a longer one.
pub(super) fn bars(count: usize, seed: u64) -> Bars {
    let mut random = SplitMix(seed);
    let mut text = String::from("date,open,high,low,close,volume\n");
    let (mut day, mut close) = (jiff::civil::date(2001, 1, 1), 100.0);
    for _ in 0..count {
        let open = close;
        close *= (0.04 * (random.unit() - 0.5)).exp();
        let (high, low) = (f64::max(open, close) * (1.0 + 0.01 * random.unit()), f64::min(open, close) * 0.99);
        writeln!(text, "{day},{open},{high},{low},{close},{}", 1.0 + 1e6 * random.unit()).unwrap();
        day = day.saturating_add(jiff::Span::new().days(if day.weekday() == jiff::civil::Weekday::Friday {
            3
        } else {
            1
        }));
    }
    Bars::parse("fixture.csv", text.as_bytes()).unwrap()
}

/// Bars that open, peak and end at each close.
pub(super) fn from_closes(closes: &[f64], volumes: &[f64]) -> Bars {
    let mut text = String::from("date,open,high,low,close,volume\n");
    let days = jiff::civil::date(2001, 1, 1).series(jiff::Span::new().days(1));
    for ((close, volume), day) in closes.iter().zip(volumes).zip(days) {
        writeln!(text, "{day},{close:e},{close:e},{close:e},{close:e},{volume:e}").unwrap();
    }
    Bars::parse("fixture.csv", text.as_bytes()).unwrap()
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct SplitMix(u64);

impl SplitMix {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
