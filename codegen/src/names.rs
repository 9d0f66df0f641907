//! The naming authority: every symbol that reaches generated text is made here.

pub use unio_interface::names::rust_const;

/// Kernel symbol of an entry's launch: `<set>_<entry>_<what>`.
pub fn kernel(set: &str, entry: &str, what: &str) -> String {
    match what {
        "" => format!("{set}_{entry}"),
        what => format!("{set}_{entry}_{what}"),
    }
}

/// File of a kernel below `kernels-generated/`.
pub fn kernel_file(set: &str, entry: &str) -> String {
    format!("{set}/cuda/{entry}.cu")
}

/// A tensor of a stage, as models and people write it: `stage.tensor`.
pub fn stage_value(stage: &str, tensor: &str) -> String {
    format!("{stage}.{tensor}")
}

/// The derivative by a stage's input.
pub fn stage_cotangent(stage: &str, input: &str) -> String {
    format!("{stage}.d_{input}")
}

/// A value that a stage's forward kernel keeps for its adjoint.
pub fn stage_saved(stage: &str, tensor: &str) -> String {
    format!("{stage}.saved.{tensor}")
}

/// A value that a stage's kernel leaves in memory for itself or for a later one.
pub fn stage_kept(stage: &str, what: &str, tensor: &str) -> String {
    format!("{stage}.{what}.{tensor}")
}

/// Per-element state of an optimizer.
pub fn update_state(update: &str, state: &str) -> String {
    format!("{update}.{state}")
}

/// Member of a slot family: `name_group`.
pub fn slot_member(slot: &str, member: &str) -> String {
    format!("{slot}_{member}")
}

/// Whether a name may stand for an entry, a tensor or a size.
pub fn is_legal(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.contains("__")
        && !name.ends_with('_')
}

/// An identifier for C++ and CUDA; words that these know get a `_`, which no legal name ends in.
pub fn c_ident(name: &str) -> String {
    let name = c_stem(name);
    match C_WORDS.contains(&name.as_str()) || name.starts_with("unio") || name.starts_with("UNIO") {
        true => format!("{name}_"),
        false => name,
    }
}

/// What a longer C++ name is made of. A name under a namespace has a dot, which no C++ name has.
pub fn c_stem(name: &str) -> String {
    name.replace('.', "_")
}

/// Words of C++, of CUDA and of the prelude.
const C_WORDS: &[&str] = &[
    "alignas",
    "alignof",
    "and",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "compl",
    "const",
    "constexpr",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "nullptr",
    "operator",
    "or",
    "private",
    "protected",
    "public",
    "register",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
    "threadIdx",
    "blockIdx",
    "blockDim",
    "gridDim",
    "warpSize",
    "real",
    "min",
    "max",
    "abs",
    "exp",
    "log",
    "tanh",
    "sqrt",
    "sin",
    "cos",
    "floor",
    "pow",
    "sample",
    "acc",
    "value",
    "linux",
    "unix",
    "half",
    "float2",
    "float4",
    "int2",
    "int4",
    "uint",
    "size_t",
    "signbit",
    "isfinite",
    "isnan",
    "log1p",
    "y0",
    "y1",
    "yn",
    "j0",
    "j1",
    "jn",
];
