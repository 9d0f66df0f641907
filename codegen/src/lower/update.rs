//! Element-wise kernels: optimizers, controllers, batch choice; and the equations of smoothing laws.

use std::collections::BTreeMap;

use unio_interface::{Grid, Shared};

use super::expr::{Code, Namer, Places, Printer, flat, register_type, scalar_value};
use super::{KernelBody, Lowered, Op, SharedArray};
use crate::math::{Expr, Program, Role, TensorId};
use crate::plan::{KernelPlan, UpdateBody};

/// Blocks of an element-wise launch; the kernel strides beyond. Counters of clamps have room for no more.
pub(super) const MOST_BLOCKS: u32 = 256;
/// Elements that a thread takes together: all their reads are on the way before the first is used, which keeps memory busy.
const TOGETHER: usize = 4;

pub(super) fn lower(kernel: &KernelPlan, body: &UpdateBody, names: &[String], mut namer: Namer) -> Lowered {
    let pointer = |(id, param): (&TensorId, &usize)| (*id, Pointer { name: names[*param].clone(), first: 0 });
    let pointers = body.params.iter().map(pointer).collect();
    let scalars: Vec<String> = body.scalars.iter().map(|s| names[*s].clone()).collect();
    let counters: Vec<Counter> =
        body.counters.iter().map(|(id, param)| Counter::new(*id, &names[*param], &mut namer)).collect();
    let counting = counters.iter().map(|c| (c.tensor, c.register.clone())).collect();
    let (scalars, read) = match body.element {
        // Read once, not for every element.
        Some(_) => registers(&body.program, &scalars, &mut namer),
        None => (values(&body.program, &scalars), Vec::new()),
    };
    let equations = Equations { program: &body.program, pointers, scalars, values: BTreeMap::new(), counting };
    let [turn, first, step] = ["turn", "first", "step"].map(|own| match body.element {
        Some(_) => namer.unique(own),
        None => String::new(),
    });
    let statements = equations.lower(body.element, namer);
    let threads = kernel.threads;
    let Some(element) = statements.element else {
        return element_wise(kernel, Grid::Fixed(1), false, statements.ops, &counters);
    };
    let (count, grid) = match body.len {
        Some(len) => (format!("{len}u"), Grid::Fixed((len as u32).div_ceil(threads).min(MOST_BLOCKS))),
        None => ("unsigned(n)".to_owned(), Grid::Elements { per_block: threads, least: 0, most: MOST_BLOCKS }),
    };
    let mut all: Vec<Op> = read.into_iter().chain(counters.iter().map(Counter::start)).collect();
    // Without a sign: the last turn may step beyond the largest `int`.
    let chunk = threads as usize * TOGETHER;
    let many = format!("{count} >= gridDim.x * {chunk}u");
    // Elements that a thread takes together lie as far apart as lets all blocks have some, or side by side where all have many.
    all.push(Op::Let {
        ty: "unsigned",
        name: step.clone(),
        value: format!("{many} ? {threads} : gridDim.x * {threads}"),
    });
    all.push(Op::For {
        head: format!(
            "unsigned {first} = blockIdx.x * ({many} ? {chunk} : {threads}) + threadIdx.x; {first} < {count}; {first} += gridDim.x * {chunk}"
        ),
        body: together(&statements.loads, statements.ops, [&turn, &first, &step, &element, &count]),
    });
    counters.iter().for_each(|c| all.extend(c.finish(threads)));
    element_wise(kernel, grid, body.len.is_none(), all, &counters)
}

fn values(program: &Program, pointers: &[String]) -> Vec<String> {
    pointers.iter().enumerate().map(|(scalar, pointer)| scalar_value(program, scalar, pointer)).collect()
}

/// Registers for the values of scalars.
pub(super) fn registers(program: &Program, pointers: &[String], namer: &mut Namer) -> (Vec<String>, Vec<Op>) {
    let values = values(program, pointers);
    let read = program.scalars.iter().zip(pointers).zip(values).map(|((scalar, pointer), value)| {
        let (ty, name) = (if scalar.int { "int" } else { "real" }, namer.unique(&format!("{pointer}_")));
        (name.clone(), Op::Let { ty, name, value })
    });
    read.unzip()
}

/// First the reads of several elements, then their equations.
fn together(loads: &[Load], ops: Vec<Op>, [turn, first, step, element, count]: [&str; 5]) -> Vec<Op> {
    let place = format!("{first} + {turn} * {step}");
    let each = |body: Vec<Op>| {
        let index = Op::Let { ty: "int", name: element.to_owned(), value: format!("int({place})") };
        let body = std::iter::once(index).chain(body).collect();
        let guarded = Op::If { condition: format!("{place} < {count}"), body, otherwise: Vec::new() };
        Op::Unrolled {
            head: format!("int {turn} = 0; {turn} < {TOGETHER}; ++{turn}"),
            times: None,
            body: vec![guarded],
        }
    };
    let at_turn = |l: &Load| format!("{}[{turn}]", l.array);
    let read = |l: &Load| Op::Set { place: at_turn(l), value: l.place.clone() };
    let take = |l: &Load| Op::Let { ty: l.ty, name: l.register.clone(), value: at_turn(l) };
    let mut all: Vec<Op> = loads.iter().map(|l| Op::Do(format!("{} {}[{TOGETHER}]", l.ty, l.array))).collect();
    if !loads.is_empty() {
        all.push(each(loads.iter().map(read).collect()));
    }
    all.push(each(loads.iter().map(take).chain(ops).collect()));
    all
}

fn element_wise(kernel: &KernelPlan, grid: Grid, counted: bool, ops: Vec<Op>, counters: &[Counter]) -> Lowered {
    let bytes = if counters.is_empty() { 0 } else { 4 * kernel.threads };
    let array = SharedArray { ty: "int", name: COUNTED.into(), offset: "0".into() };
    Lowered {
        grid,
        shared: Shared { reals: 0, bytes },
        arrays: counters.first().map(|_| array).into_iter().collect(),
        counted,
        numbers: Vec::new(),
        functions: Vec::new(),
        body: KernelBody::Ops(ops),
    }
}

/// Shared array in which a block joins its threads' counts.
const COUNTED: &str = "counted_s";

/// A count kept in a register, joined by a tree, stored once a block: no atomic operation.
struct Counter {
    tensor: TensorId,
    pointer: String,
    register: String,
}

impl Counter {
    fn new(tensor: TensorId, pointer: &str, namer: &mut Namer) -> Self {
        namer.unique(COUNTED);
        Self { tensor, pointer: pointer.to_owned(), register: namer.unique(&format!("{pointer}_count_")) }
    }

    fn start(&self) -> Op {
        Op::Var { ty: "int", name: self.register.clone(), value: "0".into() }
    }

    fn finish(&self, threads: u32) -> Vec<Op> {
        let set = |place: &str, value: &str| Op::Set { place: place.to_owned(), value: value.to_owned() };
        let join =
            set(&format!("{COUNTED}[threadIdx.x]"), &format!("{COUNTED}[threadIdx.x] + {COUNTED}[threadIdx.x + half]"));
        let below = Op::If { condition: "threadIdx.x < half".into(), body: vec![join], otherwise: Vec::new() };
        let store = set(&format!("{}[blockIdx.x]", self.pointer), &format!("{COUNTED}[0]"));
        vec![
            set(&format!("{COUNTED}[threadIdx.x]"), &self.register),
            Op::Barrier,
            Op::For {
                head: format!("int half = {}; half > 0; half /= 2", threads / 2),
                body: vec![below, Op::Barrier],
            },
            Op::If { condition: "threadIdx.x == 0".into(), body: vec![store], otherwise: Vec::new() },
            Op::Barrier,
        ]
    }
}

/// A pointer, and the element at which a tensor begins.
#[derive(Clone, Debug)]
pub(super) struct Pointer {
    pub(super) name: String,
    pub(super) first: usize,
}

impl Pointer {
    fn element(&self, index: &str) -> String {
        match (self.first, index) {
            (0, index) => format!("{}[{index}]", self.name),
            (first, "0") => format!("{}[{first}]", self.name),
            (first, index) => format!("{}[{first} + {index}]", self.name),
        }
    }
}

/// What equations become.
pub(super) struct Statements {
    /// Old values of the element.
    loads: Vec<Load>,
    /// Everything else, in order.
    pub(super) ops: Vec<Op>,
    /// Name of the element's index, if there is one.
    element: Option<String>,
}

/// A value that is read before the equations that take it.
struct Load {
    ty: &'static str,
    place: String,
    /// Where it waits, with those of other elements.
    array: String,
    register: String,
}

/// Equations with an old value and a `next` for each state.
pub(super) struct Equations<'a> {
    /// The program.
    pub(super) program: &'a Program,
    /// Pointer of each tensor in memory; a state and its next share one.
    pub(super) pointers: BTreeMap<TensorId, Pointer>,
    /// Value of each slot and state that is read.
    pub(super) scalars: Vec<String>,
    /// Tensors that are values at hand.
    pub(super) values: BTreeMap<TensorId, String>,
    /// Registers in which elements are counted for which a tensor holds.
    pub(super) counting: BTreeMap<TensorId, String>,
}

impl Places for Equations<'_> {
    fn load(&self, tensor: usize, _: &[Expr], index: &[String]) -> Code {
        if let Some(value) = self.values.get(&tensor) {
            return Code::atom(value.clone());
        }
        let shape = &self.program.tensors[tensor].shape;
        match self.pointers.get(&tensor) {
            Some(pointer) => Code::atom(pointer.element(&flat(shape, index))),
            None => Code::atom(format!("/* homeless {tensor} */")),
        }
    }

    fn rows(&self, tensor: usize) -> String {
        self.pointers.get(&tensor).map(|p| super::rows_name(&p.name)).unwrap_or_default()
    }

    fn scalar(&self, scalar: usize) -> Code {
        Code::atom(self.scalars[scalar].clone())
    }
}

impl Equations<'_> {
    /// Loads old values, computes, and stores at the end, so that every equation reads the old state.
    pub(super) fn lower(mut self, element: Option<usize>, mut namer: Namer) -> Statements {
        let mut vars = BTreeMap::new();
        let name = element.map(|var| namer.unique(&crate::names::c_ident(&self.program.vars[var].name)));
        if let (Some(var), Some(name)) = (element, &name) {
            vars.insert(var, name.clone());
        }
        let mut ops = self.load_scalars(element.is_none(), &mut namer);
        let loads = name.as_deref().map_or_else(Vec::new, |element| self.loads(element, &mut namer));
        let mut stores = Vec::new();
        for (assign, _) in self.program.assigns() {
            let tensor = &self.program.tensors[assign.tensor];
            let mut printer = Printer::new(self.program, &self, vars.clone(), namer);
            let value = printer.expr(&assign.value, &mut ops).text();
            namer = printer.namer;
            if let Some(count) = self.counting.get(&assign.tensor) {
                ops.push(Op::Set { place: count.clone(), value: format!("{count} + (({value}) ? 1 : 0)") });
                continue;
            }
            let base = if let Role::Next { .. } = tensor.role {
                format!("next_{}", tensor.name)
            } else {
                format!("{}_", tensor.name)
            };
            let register = namer.unique(&base);
            ops.push(Op::Let { ty: register_type(tensor.elem), name: register.clone(), value });
            if let Some(pointer) = self.pointers.get(&assign.tensor) {
                let index: Vec<String> = assign.index.iter().filter_map(|v| vars.get(v).cloned()).collect();
                stores.push(Op::Set { place: pointer.element(&flat(&tensor.shape, &index)), value: register.clone() });
            }
            self.values.insert(assign.tensor, register);
        }
        ops.extend(stores);
        Statements { loads, ops, element: name }
    }

    /// Old values that no element has of its own.
    fn load_scalars(&mut self, alone: bool, namer: &mut Namer) -> Vec<Op> {
        let found = self.register(|shape| shape.is_empty() || alone && shape.len() == 1, namer);
        let load = |(ty, name, pointer): (_, _, Pointer)| Op::Let { ty, name, value: pointer.element("0") };
        found.into_iter().map(load).collect()
    }

    fn loads(&mut self, element: &str, namer: &mut Namer) -> Vec<Load> {
        let found = self.register(|shape| shape.len() == 1, namer);
        let load = |(ty, register, pointer): (_, String, Pointer)| {
            let array = namer.unique(&format!("{register}s"));
            Load { ty, place: pointer.element(element), array, register }
        };
        found.into_iter().map(load).collect()
    }

    /// Gives a register to each state and input of such a shape.
    fn register(&mut self, fits: impl Fn(&[usize]) -> bool, namer: &mut Namer) -> Vec<(&'static str, String, Pointer)> {
        let mut found = Vec::new();
        for (id, tensor) in self.program.tensors.iter().enumerate() {
            let fits = matches!(tensor.role, Role::State | Role::Input) && fits(&tensor.shape);
            if let Some(pointer) = self.pointers.get(&id).filter(|_| fits) {
                let register = namer.unique(&format!("{}_", tensor.name));
                found.push((register_type(tensor.elem), register.clone(), pointer.clone()));
                self.values.insert(id, register);
            }
        }
        found
    }
}
