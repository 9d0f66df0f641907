//! Stage *lower*: kernels ready to print. Every name, index and literal is decided here.

mod block;
mod expr;
mod gradients;
pub mod producer;
mod sums;
mod update;

use unio_interface::{Access, Elem, Grid, KernelParam, Role, Shared};

use crate::diagnostics::Files;
use crate::names;
use crate::plan::{Body, KernelPlan, Param, Plan};

/// A kernel ready to print.
#[derive(Debug)]
pub struct Kernel {
    /// Symbol.
    pub symbol: String,
    /// Entry; kernels of one entry share a file.
    pub entry: String,
    /// What it does, and where it comes from.
    pub comment: Vec<String>,
    /// Threads a block.
    pub threads: u32,
    /// Whether a launch has so few blocks that registers count for more than room for others.
    pub alone: bool,
    /// Blocks.
    pub grid: Grid,
    /// Shared memory.
    pub shared: Shared,
    /// Parameters.
    pub params: Vec<KernelParam>,
    /// What its pointers may share.
    pub sharing: Sharing,
    /// Shared arrays.
    pub arrays: Vec<SharedArray>,
    /// Functions that it calls.
    pub functions: Vec<Function>,
    /// What it does.
    pub body: KernelBody,
}

/// A device function; kernels of one file share it.
#[derive(Debug)]
pub struct Function {
    /// What it does.
    pub comment: String,
    /// Return type, name and parameters.
    pub signature: String,
    /// What it does, in statements.
    pub body: Vec<Op>,
}

/// An array in shared memory.
#[derive(Debug)]
pub struct SharedArray {
    /// C type.
    pub ty: &'static str,
    /// Name.
    pub name: String,
    /// First byte, as an expression.
    pub offset: String,
}

/// What a kernel may reach by two pointers of which it writes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing.
    Nothing,
    /// Elements, but each thread reads and writes its own alone.
    Elements,
    /// A slot or state: `prev.NAME` in the entry that moves it on.
    Scalars,
}

/// Ways to print a kernel.
#[derive(Debug)]
pub enum KernelBody {
    /// Statements, one after the other.
    Ops(Vec<Op>),
    /// The skeleton of producers.
    Producer(producer::ProducerText),
    /// The skeleton of the reducer.
    ReduceAxis0 {
        /// Samples.
        batch: usize,
        /// Where a column's sum belongs.
        place: String,
    },
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `const ty name = value;`
    Let {
        /// C type.
        ty: &'static str,
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// `ty name = value;`, assigned again later.
    Var {
        /// C type.
        ty: &'static str,
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// `place = value;`
    Set {
        /// Left side.
        place: String,
        /// Right side.
        value: String,
    },
    /// `for (head) { body }`
    For {
        /// Between the parentheses.
        head: String,
        /// Inside.
        body: Vec<Op>,
    },
    /// The same, written out by the compiler: what it indexes stays in registers.
    Unrolled {
        /// Between the parentheses.
        head: String,
        /// So many turns at a time; `None` for all.
        times: Option<usize>,
        /// Inside.
        body: Vec<Op>,
    },
    /// `if (condition) { body }`
    If {
        /// Between the parentheses.
        condition: String,
        /// Inside.
        body: Vec<Op>,
        /// After `else`, if anything.
        otherwise: Vec<Op>,
    },
    /// A statement as it is.
    Do(String),
    /// `__syncthreads();`
    Barrier,
}

/// Lowers all kernels of a plan.
pub fn lower(plan: &Plan, files: &Files) -> Vec<Kernel> {
    plan.kernels.iter().map(|k| lower_kernel(k, files)).collect()
}

fn lower_kernel(kernel: &KernelPlan, files: &Files) -> Kernel {
    let mut namer = expr::Namer::default();
    for own in own_names(&kernel.body) {
        namer.unique(own);
    }
    let idents = kernel.params.iter().map(|p| clear_of_numbered(names::c_ident(&p.name), &kernel.body));
    let names: Vec<String> = idents.map(|ident| namer.unique(&ident)).collect();
    let lowered = match &kernel.body {
        Body::Block(body) => block::lower(kernel, body, &names, namer),
        Body::Update(body) => update::lower(kernel, body, &names, namer),
        Body::Producer(body) => producer::lower(kernel, body, &names, namer),
        Body::Gradients(body) => gradients::lower(kernel, body, &names, namer),
        Body::ReduceAxis0 { batch, shifts } => reducer(*batch, shifts),
    };
    let mut params: Vec<KernelParam> =
        kernel.params.iter().zip(&names).map(|(p, name)| pointer(p, name, batch_of(kernel))).collect();
    for (param, name) in kernel.params.iter().zip(&names) {
        if let Some(row_len) = param.row_len {
            params.push(KernelParam::Rows { name: rows_name(name), of: name.clone(), row_len });
        }
    }
    params.extend(lowered.numbers.into_iter().map(|name| KernelParam::Number { name }));
    if lowered.counted {
        params.push(KernelParam::Count { name: "n".into() });
    }
    let provenance = files.provenance(&kernel.loc);
    let line = provenance.rfind(':').map_or(provenance.as_str(), |at| &provenance[..at]);
    Kernel {
        symbol: kernel.symbol.clone(),
        entry: kernel.entry.clone(),
        comment: vec![kernel.doc.clone(), format!("From `{}` in {line}.", kernel.entry)],
        threads: kernel.threads,
        alone: matches!(&kernel.body, Body::Producer(_)) && most_blocks(lowered.grid) <= FEW_BLOCKS,
        grid: lowered.grid,
        shared: lowered.shared,
        params,
        sharing: sharing(kernel),
        arrays: lowered.arrays,
        functions: lowered.functions,
        body: lowered.body,
    }
}

/// Blocks that no two of share a multiprocessor.
const FEW_BLOCKS: u32 = 32;

fn most_blocks(grid: Grid) -> u32 {
    match grid {
        Grid::Fixed(blocks) => blocks,
        Grid::Elements { most, .. } | Grid::Between { most, .. } => most,
    }
}

/// Names that a kernel gives itself: parameters, named after the spec, stay clear of them.
fn own_names(body: &Body) -> &'static [&'static str] {
    match body {
        Body::Producer(_) => producer::OWN_NAMES,
        Body::Update(_) => &["n", update::COUNTED],
        Body::Gradients(_) => gradients::OWN_NAMES,
        Body::Block(_) | Body::ReduceAxis0 { .. } => &[],
    }
}

/// A name that is none of those, with a number in them, that a producer's skeleton makes: no legal name ends in `_`.
fn clear_of_numbered(name: String, body: &Body) -> String {
    let is_numbered = |start: &&str| name.strip_prefix(*start).is_some_and(|rest| rest.starts_with(char::is_numeric));
    match body {
        Body::Producer(_) if producer::NUMBERED_NAMES.iter().any(is_numbered) => format!("{name}_"),
        _ => name,
    }
}

/// Parameter that tells the rows of a table of any length; no legal name ends in `_rows_`.
fn rows_name(table: &str) -> String {
    format!("{table}_rows_")
}

/// What the kinds of kernel give to [`Kernel`].
struct Lowered {
    grid: Grid,
    shared: Shared,
    arrays: Vec<SharedArray>,
    functions: Vec<Function>,
    counted: bool,
    /// Numbers that the plan fixes, by name.
    numbers: Vec<String>,
    body: KernelBody,
}

/// Columns of the gradient that one block of the reducer sums.
pub const REDUCER_COLUMNS: u32 = 32;
/// Row groups of a reducer block; each sums every so-many-th row, then a tree joins them.
pub const REDUCER_ROWS: u32 = 8;

fn reducer(batch: usize, shifts: &[(usize, usize)]) -> Lowered {
    Lowered {
        grid: Grid::Elements { per_block: REDUCER_COLUMNS, least: 0, most: u32::MAX },
        shared: Shared { reals: REDUCER_COLUMNS * REDUCER_ROWS, bytes: 0 },
        arrays: vec![SharedArray { ty: "real", name: "part".into(), offset: "0".into() }],
        counted: true,
        numbers: Vec::new(),
        functions: Vec::new(),
        body: KernelBody::ReduceAxis0 { batch, place: shifted(shifts) },
    }
}

/// Gradients that do not go through the scratch leave gaps between its columns' sums.
fn shifted(shifts: &[(usize, usize)]) -> String {
    let Some(((_, last), before)) = shifts.split_last() else {
        return "column".to_owned();
    };
    let starts = shifts.iter().skip(1).map(|(start, _)| *start);
    let mut shift = String::new();
    // Columns before the first entry are not shifted.
    if shifts[0].0 > 0 {
        shift.push_str(&format!("column < {} ? 0 : ", shifts[0].0));
    }
    for ((_, by), end) in before.iter().zip(starts) {
        shift.push_str(&format!("column < {end} ? {by} : "));
    }
    match shift.as_str() {
        "" => format!("column + {last}"),
        shift => format!("column + ({shift}{last})"),
    }
}

fn batch_of(kernel: &KernelPlan) -> usize {
    match &kernel.body {
        Body::Block(body) => body.batch,
        _ => 1,
    }
}

fn pointer(param: &crate::plan::Param, name: &str, batch: usize) -> KernelParam {
    // A launcher checks lengths of whole buffers: all samples, or the one tensor that they share.
    let len = match param.stride {
        Some(stride) => param.len.map(|len| stride * batch.saturating_sub(1) + len),
        None => param.len,
    };
    let (name, elem, access, row, role) = (name.to_owned(), param.elem, param.access, param.row, param.role.clone());
    KernelParam::Buffer { name, elem, access, len, row, role }
}

/// C type of an element.
pub fn c_type(elem: Elem) -> &'static str {
    match elem {
        Elem::Real => "real",
        Elem::F32 => "float",
        Elem::F64 => "double",
        Elem::I32 => "int",
    }
}

fn sharing(kernel: &KernelPlan) -> Sharing {
    let writes_scalars = |p: &Param| p.role == Role::Scalar && p.access != Access::In;
    match &kernel.body {
        Body::Update(update) if update.element.is_some() => Sharing::Elements,
        Body::Update(_) => Sharing::Scalars,
        Body::Producer(_) if kernel.params.iter().any(writes_scalars) => Sharing::Scalars,
        Body::Producer(_) | Body::Block(_) | Body::Gradients(_) | Body::ReduceAxis0 { .. } => Sharing::Nothing,
    }
}

/// Macro that declares a pointer parameter.
pub fn pointer_macro(access: Access, role: &Role, sharing: Sharing) -> &'static str {
    match (access, sharing) {
        (Access::In, Sharing::Scalars) if *role == Role::Scalar => "UNIO_SCALAR",
        (Access::In, _) => "UNIO_IN",
        (Access::Out, _) => "UNIO_OUT",
        (Access::InOut, Sharing::Elements) => "UNIO_OWN",
        (Access::InOut, _) => "UNIO_INOUT",
    }
}
