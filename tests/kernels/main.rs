//! Every test that runs a kernel, in one binary that runs on the emulator and, by one switch, on a card.

mod adjoints;
