//! Every test that runs a generated kernel, in one binary that runs on the emulator and, by one switch, on a card.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adjoints;
mod determinism;
mod edges;
mod graphs;
mod learning;
mod neighbours;
mod parts;
mod producers;
mod schedules;
mod smoothing;
mod sp4;
mod timing;
