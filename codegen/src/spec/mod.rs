//! Stage *read*: spec files as written, every value with its span.
//!
//! Nothing here knows what a name means: [`crate::model`] resolves that.

pub mod entries;
pub mod equation;
mod read;

pub use read::{Entry, Set, SetFiles, Spec, loc_of, names, read};
