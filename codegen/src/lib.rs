//! Unio's code generator: spec text in, CUDA text and launch plans out.
pub mod diagnostics;
pub mod equations;
pub mod lower;
pub mod math;
pub mod model;
pub mod names;
pub mod plan;
pub mod spec;
