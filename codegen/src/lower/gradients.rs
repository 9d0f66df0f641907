//! Deferred gradients: a block covers a tile of one parameter's gradient; its threads share the sum over the batch.

use std::collections::BTreeMap;

use unio_interface::{Grid, Shared};

use super::expr::{Code, Namer, Places, Printer, flat, unflat};
use super::{KernelBody, Lowered, Op, SharedArray};
use crate::math::{Assign, BinaryFn, Expr, Reduction, VarId};
use crate::plan::{GradientsBody, KernelPlan};

/// Names that such a kernel gives itself.
pub(super) const OWN_NAMES: &[&str] = &["sum", "width", "part"];

/// Most elements of a tile: a warp's threads read neighbours. Smaller tensors leave more threads to each element's sum.
const MOST_WIDTH: usize = 32;

pub(super) fn lower(kernel: &KernelPlan, body: &GradientsBody, names: &[String], namer: Namer) -> Lowered {
    let mut ops = vec![
        Op::Var { ty: "real*", name: "sum".into(), value: "nullptr".into() },
        Op::Var { ty: "int", name: "width".into(), value: "0".into() },
        Op::Var { ty: "real", name: "acc".into(), value: "real(0)".into() },
    ];
    let tiles = Tiles { threads: kernel.threads as usize, body, names };
    let mut first = 0;
    for (assign, _) in body.program.assigns() {
        let blocks = tiles.len(assign).div_ceil(tiles.width(assign));
        let condition = match first {
            0 => format!("blockIdx.x < {blocks}"),
            first => format!("blockIdx.x >= {first} && blockIdx.x < {}", first + blocks),
        };
        ops.push(Op::If { condition, body: tiles.tile(assign, first, namer.clone()), otherwise: Vec::new() });
        first += blocks;
    }
    ops.extend(joined(kernel.threads));
    Lowered {
        grid: Grid::Fixed(first as u32),
        shared: Shared { reals: kernel.threads, bytes: 0 },
        arrays: vec![SharedArray { ty: "real", name: "part".into(), offset: "0".into() }],
        counted: false,
        numbers: Vec::new(),
        functions: Vec::new(),
        body: KernelBody::Ops(ops),
    }
}

/// A fixed tree joins what the threads of one element have summed; then the tile is stored.
fn joined(threads: u32) -> Vec<Op> {
    let set = |place: &str, value: &str| Op::Set { place: place.into(), value: value.into() };
    let join = set("part[threadIdx.x]", "part[threadIdx.x] + part[threadIdx.x + half]");
    let below = Op::If { condition: "threadIdx.x < half".into(), body: vec![join], otherwise: Vec::new() };
    let tree = Op::For {
        head: format!("int half = {}; half >= width; half /= 2", threads / 2),
        body: vec![below, Op::Barrier],
    };
    let store = Op::If {
        condition: "threadIdx.x < width && sum != nullptr".into(),
        body: vec![set("sum[0]", "part[threadIdx.x]")],
        otherwise: Vec::new(),
    };
    vec![set("part[threadIdx.x]", "acc"), Op::Barrier, tree, store]
}

struct Tiles<'a> {
    threads: usize,
    body: &'a GradientsBody,
    names: &'a [String],
}

impl Tiles<'_> {
    fn len(&self, assign: &Assign) -> usize {
        self.body.program.tensors[assign.tensor].shape.iter().product()
    }

    fn width(&self, assign: &Assign) -> usize {
        self.len(assign).next_power_of_two().min(MOST_WIDTH)
    }

    fn extents(&self, vars: &[VarId]) -> Vec<usize> {
        vars.iter().map(|v| self.body.program.vars[*v].extent).collect()
    }

    /// One element for `width` threads, the same again for the next `width` threads with the next part of the sum.
    fn tile(&self, assign: &Assign, first: usize, mut namer: Namer) -> Vec<Op> {
        let (len, width) = (self.len(assign), self.width(assign));
        let element = namer.unique("e");
        let value = match first {
            0 => format!("blockIdx.x * {width} + threadIdx.x % {width}"),
            first => format!("(blockIdx.x - {first}) * {width} + threadIdx.x % {width}"),
        };
        let mut printer = Printer { program: &self.body.program, places: self, vars: BTreeMap::new(), namer };
        let names: Vec<String> = assign.index.iter().map(|v| printer.bind(*v)).collect();
        let mut inside = unflat(&names, &self.extents(&assign.index), &element);
        let gradient = &self.names[self.body.params[&assign.tensor]];
        inside.push(Op::Set { place: "sum".into(), value: format!("{gradient} + {element}") });
        self.terms(&assign.value, width, &mut printer, &mut inside);
        vec![
            Op::Set { place: "width".into(), value: width.to_string() },
            Op::Let { ty: "int", name: element.clone(), value },
            Op::If { condition: format!("{element} < {len}"), body: inside, otherwise: Vec::new() },
        ]
    }

    fn terms(&self, value: &Expr, width: usize, printer: &mut Printer<'_>, ops: &mut Vec<Op>) {
        match value {
            Expr::Binary(BinaryFn::Add, a, b) => {
                self.terms(a, width, printer, ops);
                self.terms(b, width, printer, ops);
            }
            Expr::Reduce(Reduction::Sum, vars, body) => ops.push(self.term(vars, body, width, printer)),
            // What is read by nobody has a gradient of 0, and nothing to sum.
            _ => {}
        }
    }

    fn term(&self, vars: &[VarId], body: &Expr, width: usize, printer: &mut Printer<'_>) -> Op {
        let at = printer.namer.unique("s");
        let names: Vec<String> = vars.iter().map(|v| printer.bind(*v)).collect();
        let extents = self.extents(vars);
        let mut ops = unflat(&names, &extents, &at);
        let value = printer.accumulate(Reduction::Sum, "acc", body, &mut ops);
        ops.push(Op::Set { place: "acc".into(), value });
        vars.iter().zip(&names).for_each(|(var, name)| printer.unbind(*var, name));
        printer.namer.release(&at);
        let (total, step) = (extents.iter().product::<usize>(), self.threads / width);
        // Samples, steps and whatever else may be more together than any one tensor has elements.
        let ty = if total + step > i32::MAX as usize { "long long" } else { "int" };
        Op::For { head: format!("{ty} {at} = threadIdx.x / {width}; {at} < {total}; {at} += {step}"), body: ops }
    }
}

impl Places for Tiles<'_> {
    fn load(&self, tensor: usize, _: &[Expr], index: &[String]) -> Code {
        let name = &self.names[self.body.params[&tensor]];
        Code::atom(format!("{name}[{}]", flat(&self.body.program.tensors[tensor].shape, index)))
    }

    fn rows(&self, tensor: usize) -> String {
        super::rows_name(&self.names[self.body.params[&tensor]])
    }

    fn scalar(&self, scalar: usize) -> Code {
        let first = self.names.len() - self.body.program.scalars.len();
        let name = &self.names[first + scalar];
        match self.body.program.scalars[scalar].int {
            true => Code::atom(format!("{name}[0]")),
            false => Code::atom(format!("real({name}[0])")),
        }
    }
}
