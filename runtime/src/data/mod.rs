//! Daily bars in, training arrays out: reading, features, labels, walk-forward folds.
//!
//! The flow, one module each: [`bars`] reads and checks a CSV file, [`features`] turns each day into numbers that
//! look only backwards, [`labels`] looks forwards, [`walk_forward`] cuts rows into folds that cannot leak, and
//! [`Dataset`] joins them into the flat arrays that a training step keeps on the device.
//!
//! ```no_run
//! use unio::data::{Bars, Dataset, Feature, Folds, HORIZON};
//!
//! let bars = Bars::read("sp500.csv")?;
//! let dataset = Dataset::new(&bars, &Feature::ALL, HORIZON)?;
//! for fold in dataset.folds(&Folds::default(), 32)? {
//!     println!("fold {}: train {}, test {}", fold.fold.number, fold.train.len(), fold.test.len());
//! }
//! # Ok::<(), unio::data::DataError>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic"))]

pub mod bars;
pub mod features;
pub mod labels;
pub mod walk_forward;

mod dataset;
mod error;
mod normalise;
mod table;

#[cfg(test)]
mod fixture;

pub use bars::Bars;
pub use dataset::{Dataset, FoldData};
pub use error::DataError;
pub use features::{Feature, GROUPS, WARM_UP};
pub use labels::HORIZON;
pub use normalise::{Column, ColumnState};
pub use walk_forward::{Fold, Folds};
