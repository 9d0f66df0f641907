//! Generates the spec sets that this crate expands.

fn main() {
    unio_codegen::build();
}
