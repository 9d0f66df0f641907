//! Every test that runs a generated kernel, in one binary that runs on the emulator and, by one switch, on a card.

mod adjoints;
mod determinism;
mod learning;
mod producers;
mod sp4;
