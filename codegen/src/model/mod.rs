//! Stage *resolve* and *check*: from [`Spec`](crate::spec::Spec) to [`Model`], all names resolved, all sizes known.

mod check;
mod compose;
mod layout;
mod network;
mod resolve;
mod signals;
mod types;

pub use check::hints;
pub use layout::Lock;
pub use resolve::resolve;
pub use types::{
    External, Group, Init, Model, Network, Over, Param, Producer, Schedule, Signal, Slot, Smoothing, Source, Stage,
    State, Update, Wire, WireSource,
};
