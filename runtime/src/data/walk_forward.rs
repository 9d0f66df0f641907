//! Walk-forward folds: train on the first k spans of time, test on the next.
//!
//! Rows are in time order and row `r` knows bars up to its own; its label reaches `horizon` rows further. Between
//! training and test, `purge` rows are dropped so that no training label reaches into the test span, and `embargo` rows
//! more so that what lingers after a label (volatility clusters) does not either. Purge and embargo after López de
//! Prado, *Advances in Financial Machine Learning* (2018), chapter 7; nothing is trained on after a test span here, so
//! both stand before it.

use std::ops::Range;

use super::{DataError, HORIZON};

/// How rows are cut into folds. The default is 4 spans, a purge of [`HORIZON`] and an embargo of as many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folds {
    /// Spans of (nearly) equal length; gives `spans - 1` folds.
    pub spans: usize,
    /// Rows dropped before a test span: the labels' horizon or more.
    pub purge: usize,
    /// Rows dropped besides.
    pub embargo: usize,
}

/// One fold: rows trained on and rows tested on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    /// From 1: the number of spans before the test span.
    pub number: usize,
    /// Training rows, from the first row on; those purged and embargoed are not among them.
    pub train: Range<usize>,
    /// Test rows: one whole span.
    pub test: Range<usize>,
}

impl Default for Folds {
    fn default() -> Self {
        Self { spans: 4, purge: HORIZON, embargo: HORIZON }
    }
}

impl Folds {
    /// The spans: they cover `0..rows` in order without gaps, and their lengths differ by one at most.
    pub fn spans(&self, rows: usize) -> impl Iterator<Item = Range<usize>> {
        let edge = move |span: usize| rows / self.spans * span + rows % self.spans * span / self.spans;
        (0..self.spans).map(move |span| edge(span)..edge(span + 1))
    }

    /// The folds, in order of time. A fold has no training rows where purge and embargo leave none.
    ///
    /// # Errors
    /// [`DataError::TooFewSpans`] for fewer than two spans.
    pub fn over(&self, rows: usize) -> Result<Vec<Fold>, DataError> {
        if self.spans < 2 {
            return Err(DataError::TooFewSpans { spans: self.spans });
        }
        let gap = self.purge.saturating_add(self.embargo);
        let fold =
            |(number, test): (usize, Range<usize>)| Fold { number, train: 0..test.start.saturating_sub(gap), test };
        Ok(self.spans(rows).enumerate().skip(1).map(fold).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spans_cover_every_row_once_and_are_equal(rows in 0usize..6000, spans in 1usize..9) {
            let cut: Vec<_> = Folds { spans, ..Folds::default() }.spans(rows).collect();
            prop_assert_eq!(cut.len(), spans);
            prop_assert_eq!(cut.iter().cloned().flatten().collect::<Vec<_>>(), (0..rows).collect::<Vec<_>>());
            let lengths = cut.iter().map(Range::len);
            prop_assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
        }

        #[test]
        fn no_training_label_reaches_a_test_span(
            rows in 1usize..3000, spans in 2usize..7, horizon in 1usize..40, extra in 0usize..10, embargo in 0usize..40,
        ) {
            let folds = Folds { spans, purge: horizon + extra, embargo };
            let cut = folds.over(rows).unwrap();
            prop_assert_eq!(cut.len(), spans - 1);
            for (fold, span) in cut.iter().zip(folds.spans(rows).skip(1)) {
                // Row r is bar r, its label is made of bars r + 1 to r + horizon.
                let label_bars = fold.train.clone().flat_map(|r| r + 1..=r + horizon);
                prop_assert!(label_bars.clone().all(|bar| !fold.test.contains(&bar)));
                prop_assert!(label_bars.max().is_none_or(|last| last + embargo < fold.test.start));
                prop_assert_eq!(fold.train.start, 0);
                prop_assert_eq!(&fold.test, &span);
            }
            prop_assert!(cut.windows(2).all(|w| w[0].train.end <= w[1].train.end && w[0].test.end == w[1].test.start));
            prop_assert_eq!(cut.last().unwrap().test.end, rows);
        }
    }

    #[test]
    fn a_gap_longer_than_a_span_leaves_no_training_rows() {
        let trained = |folds: Folds| folds.over(40).unwrap()[0].train.len();
        assert_eq!(trained(Folds::default()), 0);
        assert_eq!(trained(Folds { embargo: 4, ..Folds::default() }), 1);
        assert_eq!(trained(Folds { purge: usize::MAX, ..Folds::default() }), 0);
    }

    #[test]
    fn one_span_is_no_fold() {
        let one = Folds { spans: 1, ..Folds::default() };
        assert!(matches!(one.over(100), Err(DataError::TooFewSpans { spans: 1 })));
    }
}
