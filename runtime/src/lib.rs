//! Unio: runs what `unio-codegen` generates from a spec set.
//!
//! A spec set says what a training step computes and which signals steer it. The generator turns it into kernels and a
//! plan; this library compiles the kernels, holds the memory, runs the plan. It names no spec set of its own.
//!
//! | module | what it does |
//! |---|---|
//! | [`device`] | opens a card or the emulator, compiles kernel texts, launches them |
//! | [`run`] | run files |
//! | [`session`] | a loaded spec set: buffers, states, slots, resets, a step |
//! | [`checkpoint`] | saves a session to one file and restores it, bit for bit |
//! | [`launcher`] | what the generated launchers of single kernels are made of |
//! | [`random`] | random numbers as pure functions of seed, name and position |
//! | [`data`] | bars in, training arrays out |
//! | [`metrics`] | figures of merit |
//! | [`bench`] | launches of a step, timed alone, together and at other sizes |
//! | [`interface`] | the data that the generator hands over |

pub mod bench;
pub mod checkpoint;
pub mod data;
pub mod device;
pub mod launcher;
pub mod metrics;
pub mod random;
pub mod run;
pub mod session;

mod digest;

pub use unio_interface as interface;
pub use unio_interface::When;
pub use unio_macros::specs;

pub use checkpoint::CheckpointError;
pub use session::{
    BufferOf, Direction, LaunchShape, Launching, Mirror, NonFinite, Phase, STEPS_TOGETHER, Session, SessionError,
    SlotOf, Snapshot, StateOf, StepGraph,
};
