//! Rust spellings of the names that specs use: the checks of the generator and the macro must agree on them.

/// A constant: upper case. A table of a producer's group is named `oracle[heads].rows`: `ORACLE_HEADS_ROWS`.
pub fn rust_const(name: &str) -> String {
    name.replace(['.', '['], "_").replace(']', "").to_ascii_uppercase()
}

/// A type: `adamw.m` as `AdamwM`.
pub fn rust_type(name: &str) -> String {
    let capital = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|c| c.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
    };
    name.split(['_', '.']).map(capital).collect()
}
