use super::error::{DeviceError, Result};

/// One kernel text. It starts with no includes; see [`prelude`] for what it may use.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// A short label for messages, such as the table entry; never an absolute path.
    pub name: &'a str,
    /// CUDA C++ that declares its kernels with `UNIO_KERNEL`.
    pub text: &'a str,
}

/// How a text is compiled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CompileOptions {
    /// What `real` means in the text.
    pub real: Real,
}

/// The element type `real`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Real {
    /// `float`.
    #[default]
    F32,
    /// `double`.
    F64,
}

impl Real {
    /// The C++ type's name.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F64 => "double",
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    pub(crate) fn define(self) -> String {
        format!("-DUNIO_REAL={}", self.type_name())
    }
}

/// The header that goes before every kernel text: macros and math. It may be prepended twice without harm.
///
/// Compile with `-DUNIO_REAL=float` or `double`, `--fmad=false` and no fast math; [`super::nvrtc::compile`] does all that.
pub fn prelude() -> &'static str {
    concat!(include_str!("prelude/unio.cuh"), include_str!("prelude/statistics.cuh"))
}

pub(crate) fn emulator_prelude() -> &'static str {
    include_str!("prelude/emulator.h")
}

/// What the text itself says about one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) parameters: usize,
    /// The launch bound, where it is a plain number.
    pub(crate) max_threads: Option<u32>,
}

/// Finds `UNIO_KERNEL(threads) name(parameters)`, also with a number of blocks after the threads, outside comments and directives.
pub(crate) fn kernels(text: &str) -> Vec<Declared> {
    let text = without_comments(text);
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("UNIO_KERNEL") {
        rest = &rest[at + "UNIO_KERNEL".len()..];
        found.extend(declared(rest));
    }
    found
}

pub(crate) fn find<'a>(module: &str, kernels: &'a [Declared], name: &str) -> Result<&'a Declared> {
    kernels.iter().find(|k| k.name == name).ok_or_else(|| DeviceError::NoKernel {
        module: module.into(),
        kernel: name.into(),
        known: kernels.iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

fn declared(after: &str) -> Option<Declared> {
    let (bound, rest) = parenthesised(after)?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    let (parameters, _) = parenthesised(&rest[end..])?;
    let name = rest[..end].to_owned();
    (!name.is_empty()).then(|| Declared {
        name,
        parameters: count_parameters(parameters),
        max_threads: bound.split(',').next().and_then(|threads| threads.trim().parse().ok()),
    })
}

/// The inside of the parentheses that `text` starts with, and what follows them.
fn parenthesised(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return Some((&text[1..at], &text[at + 1..])),
            ')' => depth = depth.checked_sub(1)?,
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn count_parameters(inside: &str) -> usize {
    let mut depth = 0i32;
    let commas = inside.chars().filter(|&c| {
        depth += i32::from(c == '(' || c == '<') - i32::from(c == ')' || c == '>');
        c == ',' && depth == 0
    });
    let commas = commas.count();
    let inside = inside.trim();
    if inside.is_empty() || inside == "void" { 0 } else { commas + 1 }
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        out.push_str(&rest[..at]);
        let tail = &rest[at..];
        let skipped = if tail.starts_with("//") {
            tail.find('\n').unwrap_or(tail.len())
        } else if tail.starts_with("/*") {
            tail.find("*/").map_or(tail.len(), |end| end + 2)
        } else {
            out.push('/');
            1
        };
        rest = &tail[skipped..];
    }
    out.push_str(rest);
    out.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_in_code_only() {
        let text = "// UNIO_KERNEL(1) no(int a)\n#define K UNIO_KERNEL(2) no2(int a)\n/* UNIO_KERNEL(3) no3() */\n\
                    UNIO_KERNEL(256, 1) yes(UNIO_IN(real, x),\n UNIO_OUT(real, y), int n) { f(a / b); }\n\
                    UNIO_KERNEL(N) none() {}";
        let found = kernels(text);
        let yes = Declared { name: "yes".into(), parameters: 3, max_threads: Some(256) };
        let none = Declared { name: "none".into(), parameters: 0, max_threads: None };
        assert_eq!(found, [yes, none]);
    }
}
