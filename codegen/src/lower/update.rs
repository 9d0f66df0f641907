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
    let turns = body.element.map(|_| Turns::new(body.len, kernel.threads, &mut namer));
    let statements = equations.lower(body.element, namer);
    let (Some(turns), Some(element)) = (turns, &statements.element) else {
        return element_wise(kernel, Grid::Fixed(1), false, statements.all(), &counters);
    };
    let (threads, most) = (kernel.threads, MOST_BLOCKS);
    let grid = match body.len {
        Some(len) => Grid::Fixed((len as u32).div_ceil(threads).min(most)),
        None => Grid::Elements { per_block: threads, least: 0, most },
    };
    let mut all: Vec<Op> = read.into_iter().chain(counters.iter().map(Counter::start)).collect();
    all.extend(turns.ops(&statements, element));
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

/// The loop of a thread over its elements, several at a time: first all their reads, then their equations, then their writes.
/// Where all blocks have many, they are neighbours that one access takes; else they lie as far apart as lets all blocks have some.
struct Turns {
    threads: u32,
    /// How many elements there are.
    count: String,
    /// Whether the text fixes that, so that there are few.
    fixed: bool,
    many: String,
    whole: String,
    lead: String,
    step: String,
    first: String,
    turn: String,
    place: String,
}

impl Turns {
    fn new(len: Option<usize>, threads: u32, namer: &mut Namer) -> Self {
        let [many, whole, lead, step, first, turn, place] =
            ["many", "whole", "lead", "step", "first", "turn", "place"].map(|own| namer.unique(own));
        let count = len.map_or("unsigned(n)".to_owned(), |len| format!("{len}u"));
        Self { threads, count, fixed: len.is_some(), many, whole, lead, step, first, turn, place }
    }

    fn ops(&self, statements: &Statements, element: &str) -> Vec<Op> {
        let Self { threads, count, many, lead, step, first, .. } = self;
        let chunk = *threads as usize * TOGETHER;
        let stride = format!("{first} += gridDim.x * {chunk}");
        // Without a sign: the last turn may step beyond the largest `int`.
        let unsigned = |name: &String, value| Op::Let { ty: "unsigned", name: name.clone(), value };
        let body = self.turn(statements, element);
        if self.fixed {
            let start = format!("unsigned {first} = blockIdx.x * {threads} + threadIdx.x");
            let step = unsigned(step, format!("gridDim.x * {threads}"));
            return vec![step, Op::For { head: format!("{start}; {first} < {count}; {stride}"), body }];
        }
        let start = format!("unsigned {first} = (blockIdx.x * {threads} + threadIdx.x) * ({many} ? {TOGETHER} : 1)");
        let pointers: Vec<&str> = statements.pointers().collect();
        let takes_neighbours = format!("{count} >= gridDim.x * {chunk}u{}", alike(&pointers));
        vec![
            Op::Let { ty: "bool", name: many.clone(), value: takes_neighbours },
            unsigned(lead, self::lead(many, &pointers)),
            unsigned(step, format!("{many} ? 1 : gridDim.x * {threads}")),
            Op::For { head: format!("{start}; {first} < {count} + {lead}; {stride}"), body },
        ]
    }

    fn turn(&self, statements: &Statements, element: &str) -> Vec<Op> {
        let Self { count, many, whole, lead, first, turn, .. } = self;
        let at_turn = |array: &str| format!("{array}[{turn}]");
        let read = |l: &Load| Op::Set { place: at_turn(&l.array), value: l.pointer.element(element) };
        let read4 = |l: &Load| Op::Do(format!("unio_load4({}, {} + ({first} - {lead}))", l.array, l.pointer.name));
        let take = |l: &Load| Op::Let { ty: l.ty, name: l.register.clone(), value: at_turn(&l.array) };
        let keep = |s: &Store| Op::Set { place: at_turn(&s.array), value: s.register.clone() };
        let write = |s: &Store| Op::Set { place: s.pointer.element(element), value: at_turn(&s.array) };
        let write4 = |s: &Store| Op::Do(format!("unio_store4({} + ({first} - {lead}), {})", s.pointer.name, s.array));
        let (loads, stores) = (&statements.loads, &statements.stores);
        let ops = statements.ops.iter().cloned();
        let mut all = statements.arrays();
        if !self.fixed {
            let inside = format!("{many} && unio_whole({first}, {lead}, {TOGETHER}, {count})");
            all.push(Op::Let { ty: "bool", name: whole.clone(), value: inside });
        }
        all.extend(self.either(loads.iter().map(read4).collect(), loads.iter().map(read).collect(), element));
        all.push(self.each(loads.iter().map(take).chain(ops).chain(stores.iter().map(keep)).collect(), element));
        all.extend(self.either(stores.iter().map(write4).collect(), stores.iter().map(write).collect(), element));
        all
    }

    /// What is done at once where all neighbours are there, or to each that is.
    fn either(&self, at_once: Vec<Op>, each: Vec<Op>, element: &str) -> Option<Op> {
        match (each.is_empty(), self.fixed) {
            (true, _) => None,
            (false, true) => Some(self.each(each, element)),
            (false, false) => {
                Some(Op::If { condition: self.whole.clone(), body: at_once, otherwise: vec![self.each(each, element)] })
            }
        }
    }

    fn each(&self, body: Vec<Op>, element: &str) -> Op {
        let Self { count, lead, step, first, turn, place, .. } = self;
        // What lies in front of the first wraps, and is beyond the last too.
        let value =
            format!("{first} + {turn} * {step}{}", if self.fixed { String::new() } else { format!(" - {lead}") });
        let index = Op::Let { ty: "int", name: element.to_owned(), value: format!("int({place})") };
        let body = std::iter::once(index).chain(body).collect();
        Op::Unrolled {
            head: format!("int {turn} = 0; {turn} < {TOGETHER}; ++{turn}"),
            times: None,
            body: vec![
                Op::Let { ty: "unsigned", name: place.clone(), value },
                Op::If { condition: format!("{place} < {count}"), body, otherwise: Vec::new() },
            ],
        }
    }
}

/// Whether all arrays begin alike, so that what is a neighbour in one is it in all; something that may follow a condition.
pub(super) fn alike(pointers: &[&str]) -> String {
    pointers.iter().skip(1).map(|p| format!(" && unio_lead({p}) == unio_lead({})", pointers[0])).collect()
}

/// How far their first element lies from an aligned address, where neighbours are taken together.
pub(super) fn lead(many: &str, pointers: &[&str]) -> String {
    pointers.first().map_or("0".to_owned(), |first| format!("{many} ? unio_lead({first}) : 0"))
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
pub(super) const COUNTED: &str = "counted_s";

/// A count kept in a register, joined by a tree, stored once a block: no atomic operation.
struct Counter {
    tensor: TensorId,
    pointer: String,
    register: String,
}

impl Counter {
    fn new(tensor: TensorId, pointer: &str, namer: &mut Namer) -> Self {
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
#[derive(Clone, Debug, PartialEq)]
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
    /// Everything between, in order.
    ops: Vec<Op>,
    /// New values.
    stores: Vec<Store>,
    /// Name of the element's index, if there is one.
    element: Option<String>,
}

/// A value that is read before the equations that take it.
struct Load {
    ty: &'static str,
    pointer: Pointer,
    /// Where it waits, with those of other elements.
    array: String,
    register: String,
}

/// A value that is written after all equations.
struct Store {
    ty: &'static str,
    pointer: Pointer,
    index: String,
    /// Where it waits; the array of what it takes the place of, if that was read.
    array: String,
    register: String,
}

impl Statements {
    /// In order, where there is one element.
    pub(super) fn all(self) -> Vec<Op> {
        let store = |s: Store| Op::Set { place: s.pointer.element(&s.index), value: s.register };
        self.ops.into_iter().chain(self.stores.into_iter().map(store)).collect()
    }

    /// What is read or written element by element.
    fn pointers(&self) -> impl Iterator<Item = &str> {
        let read = self.loads.iter().map(|l| l.pointer.name.as_str());
        read.chain(self.only_stored().map(|s| s.pointer.name.as_str()))
    }

    /// What is written without having been read.
    fn only_stored(&self) -> impl Iterator<Item = &Store> {
        self.stores.iter().filter(|s| !self.loads.iter().any(|l| l.array == s.array))
    }

    fn arrays(&self) -> Vec<Op> {
        let read = self.loads.iter().map(|l| (l.ty, &l.array));
        let arrays = read.chain(self.only_stored().map(|s| (s.ty, &s.array)));
        arrays.map(|(ty, array)| Op::Do(format!("{ty} {array}[{TOGETHER}]"))).collect()
    }
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
        let loads = if element.is_some() { self.loads(&mut namer) } else { Vec::new() };
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
            if let Some(pointer) = self.pointers.get(&assign.tensor).cloned() {
                let index: Vec<String> = assign.index.iter().filter_map(|v| vars.get(v).cloned()).collect();
                let index = flat(&tensor.shape, &index);
                let read = loads.iter().find(|l| l.pointer == pointer).map(|l| l.array.clone());
                let array = read.unwrap_or_else(|| namer.unique(&format!("{register}_s")));
                stores.push(Store {
                    ty: register_type(tensor.elem),
                    pointer,
                    index,
                    array,
                    register: register.clone(),
                });
            }
            self.values.insert(assign.tensor, register);
        }
        Statements { loads, ops, stores, element: name }
    }

    /// Old values that no element has of its own.
    fn load_scalars(&mut self, alone: bool, namer: &mut Namer) -> Vec<Op> {
        let found = self.register(|shape| shape.is_empty() || alone && shape.len() == 1, namer);
        let load = |(ty, name, pointer): (_, _, Pointer)| Op::Let { ty, name, value: pointer.element("0") };
        found.into_iter().map(load).collect()
    }

    fn loads(&mut self, namer: &mut Namer) -> Vec<Load> {
        let found = self.register(|shape| shape.len() == 1, namer);
        let load = |(ty, register, pointer): (_, String, Pointer)| {
            let array = namer.unique(&format!("{register}s"));
            Load { ty, pointer, array, register }
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
