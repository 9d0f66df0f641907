//! What no model is needed for, on the shipped files: the figures that a trained one has to beat.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use unio::data::{Bars, Folds, HORIZON};

mod baseline;

fn bars(file: &str) -> Bars {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../specs/data");
    Bars::read(folder.join(file).with_extension("csv")).unwrap()
}

/// The reference kept nothing apart but what the labels reach into.
fn folds() -> Folds {
    Folds { spans: 4, purge: HORIZON, embargo: 0 }
}

#[test]
fn carry_forward_scores_as_the_reference() {
    for (file, reference) in [("sp500", 0.792), ("nasdaq", 0.808)] {
        let found = baseline::carry_forward(&bars(file), &folds(), 1);
        println!("{file}: last 5 days' volatility, AUC {found:.4}, reference {reference}");
        assert!((found - reference).abs() < 0.002, "{file}: {found}");
    }
}

#[test]
fn logistic_regression_scores_as_the_reference() {
    for (file, reference) in [("sp500", 0.840), ("nasdaq", 0.866)] {
        let found = baseline::logistic_regression(&bars(file), &folds(), 1);
        println!("{file}: logistic regression on six features, AUC {found:.4}, reference {reference}");
        assert!((found - reference).abs() < 0.002, "{file}: {found}");
    }
}
