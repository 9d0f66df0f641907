//! Block-per-batch kernels.

use std::collections::BTreeMap;

use unio_interface::{Grid, Shared};

use super::expr::{Code, Namer, Places, Printer, flat, register_type, unflat};
use super::{KernelBody, Lowered, Op, SharedArray};
use crate::math::{Elem, Expr, TensorId};
use crate::plan::{BlockBody, Carry, Item, KernelPlan, Parallel, Phase};

pub(super) fn lower(kernel: &KernelPlan, body: &BlockBody, names: &[String], mut namer: Namer) -> Lowered {
    let mut shared_names = BTreeMap::new();
    let mut arrays = Vec::new();
    for (id, home) in &body.homes {
        let Some(offset) = home.shared else { continue };
        let tensor = &body.program.tensors[*id];
        let name = namer.unique(&format!("{}_s", crate::names::c_stem(&tensor.name)));
        let (ty, offset) = match tensor.elem {
            Elem::Real => ("real", format!("{offset} * sizeof(real)")),
            _ => ("int", format!("{} * sizeof(real) + {}", body.shared_reals, offset * 4)),
        };
        arrays.push(SharedArray { ty, name: name.clone(), offset });
        shared_names.insert(*id, name);
    }
    let sample = body.single.then(|| namer.unique("sample"));
    let mut ops = Vec::new();
    let mut lowerer = Lowerer { body, threads: kernel.threads, names, shared_names, namer, kept: BTreeMap::new() };
    lowerer.stage_parameters(&mut ops);
    lowerer.phases(&body.phases, &mut ops);
    let ops = match &sample {
        Some(sample) => one_by_one(kernel, names, sample, body.batch, ops),
        None => sample_pointers(kernel, names, "size_t(blockIdx.x) * ").into_iter().chain(ops).collect(),
    };
    Lowered {
        grid: Grid::Fixed(if body.single { 1 } else { body.batch as u32 }),
        shared: Shared { reals: body.shared_reals as u32, bytes: body.shared_ints as u32 * 4 },
        arrays,
        counted: false,
        numbers: Vec::new(),
        functions: Vec::new(),
        body: KernelBody::Ops(ops),
    }
}

/// Moves each per-sample pointer on by so many samples.
fn sample_pointers(kernel: &KernelPlan, names: &[String], samples: &str) -> Vec<Op> {
    let strided = kernel.params.iter().zip(names).filter_map(|(p, name)| Some((name, p.stride?)));
    strided
        .map(|(name, stride)| Op::Set { place: name.clone(), value: format!("{name} + {samples}{stride}") })
        .collect()
}

/// All samples in one block: the pointers go from each sample to the next.
fn one_by_one(kernel: &KernelPlan, names: &[String], sample: &str, batch: usize, mut body: Vec<Op>) -> Vec<Op> {
    body.extend(sample_pointers(kernel, names, ""));
    vec![Op::For { head: format!("int {sample} = 0; {sample} < {batch}; ++{sample}"), body }]
}

struct Lowerer<'a> {
    body: &'a BlockBody,
    threads: u32,
    names: &'a [String],
    shared_names: BTreeMap<TensorId, String>,
    namer: Namer,
    /// Arrays that hold a thread's part of a parameter while a scan runs, and their lengths.
    kept: BTreeMap<TensorId, (String, usize)>,
}

/// Places inside one phase: registers of the phase first, then shared memory, then global memory.
struct PhasePlaces<'a> {
    body: &'a BlockBody,
    names: &'a [String],
    shared_names: &'a BTreeMap<TensorId, String>,
    registers: BTreeMap<TensorId, String>,
}

impl Places for PhasePlaces<'_> {
    fn load(&self, tensor: usize, _: &[Expr], index: &[String]) -> Code {
        match self.registers.get(&tensor) {
            Some(register) => Code::atom(register.clone()),
            None => Code::atom(self.memory(tensor, index)),
        }
    }

    fn rows(&self, tensor: usize) -> String {
        let global = self.body.homes.get(&tensor).and_then(|home| home.global);
        global.map(|global| super::rows_name(&self.names[global])).unwrap_or_default()
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

impl PhasePlaces<'_> {
    fn memory(&self, tensor: TensorId, index: &[String]) -> String {
        let shape = &self.body.program.tensors[tensor].shape;
        let home = &self.body.homes[&tensor];
        match (self.shared_names.get(&tensor), home.global) {
            (Some(name), _) => format!("{name}[{}]", self.shared_index(tensor, index)),
            (None, Some(global)) => format!("{}[{}]", self.names[global], flat(shape, index)),
            (None, None) => format!("/* homeless {tensor} */"),
        }
    }

    fn shared_index(&self, tensor: TensorId, index: &[String]) -> String {
        if let Some(stride) = self.body.homes[&tensor].staged {
            let shape = &self.body.program.tensors[tensor].shape;
            let padded = [&shape[..shape.len() - 1], &[stride]].concat();
            return flat(&padded, index);
        }
        let skip = usize::from(self.body.homes[&tensor].one_step);
        flat(&self.body.program.tensors[tensor].shape[skip..], &index[skip..])
    }
}

/// Where in an equation a tensor is read under a sum: its index, and the variable that is summed over.
fn kept_load(value: &Expr, tensor: TensorId) -> Option<(Vec<Expr>, usize)> {
    let mut found = None;
    value.visit(&mut |e| {
        let Expr::Reduce(_, vars, body) = e else { return };
        body.visit(&mut |part| match part {
            Expr::Load(t, index) if *t == tensor => found = Some((index.clone(), vars[0])),
            _ => {}
        });
    });
    found
}

impl Lowerer<'_> {
    fn places(&self, registers: BTreeMap<TensorId, String>) -> PhasePlaces<'_> {
        PhasePlaces { body: self.body, names: self.names, shared_names: &self.shared_names, registers }
    }

    fn phases(&mut self, phases: &[Phase], ops: &mut Vec<Op>) {
        self.phases_at(phases, None, ops);
    }

    fn phases_at(&mut self, phases: &[Phase], step: Option<(usize, String)>, ops: &mut Vec<Op>) {
        for phase in phases {
            match phase {
                Phase::Barrier => ops.push(Op::Barrier),
                Phase::Parallel(parallel) => ops.push(self.parallel(parallel, step.as_ref())),
                Phase::Loop { var, reversed, body } => {
                    let variable = &self.body.program.vars[*var];
                    let name = self.namer.unique(&crate::names::c_ident(&variable.name.to_ascii_lowercase()));
                    let last = variable.extent - 1;
                    let head = match reversed {
                        true => format!("int {name} = {last}; {name} >= 0; --{name}"),
                        false => format!("int {name} = 0; {name} <= {last}; ++{name}"),
                    };
                    let mut inner = Vec::new();
                    self.keep_parameters(body, ops);
                    self.phases_at(body, Some((*var, name.clone())), &mut inner);
                    self.kept.clear();
                    self.namer.release(&name);
                    ops.push(Op::For { head, body: inner });
                }
            }
        }
    }

    /// Copies parameters into shared memory; neighbours are read together.
    fn stage_parameters(&mut self, ops: &mut Vec<Op>) {
        let mut any = false;
        for (id, home) in &self.body.homes {
            let (Some(stride), Some(global), Some(name)) = (home.staged, home.global, self.shared_names.get(id)) else {
                continue;
            };
            let shape = &self.body.program.tensors[*id].shape;
            let (len, row) = (shape.iter().product::<usize>(), shape[shape.len() - 1]);
            let at = self.namer.unique("n");
            let place = match stride == row {
                true => format!("{name}[{at}]"),
                false => format!("{name}[{at} / {row} * {stride} + {at} % {row}]"),
            };
            let copy = Op::Set { place, value: format!("{}[{at}]", self.names[global]) };
            let head = format!("int {at} = threadIdx.x; {at} < {len}; {at} += {}", self.threads);
            if self.body.single && !any {
                ops.push(Op::Barrier);
            }
            ops.push(Op::For { head, body: vec![copy] });
            self.namer.release(&at);
            any = true;
        }
        if any {
            ops.push(Op::Barrier);
        }
    }

    /// Loads what the phases of a scan keep, before its first step.
    fn keep_parameters(&mut self, phases: &[Phase], ops: &mut Vec<Op>) {
        for phase in phases {
            let Phase::Parallel(parallel) = phase else { continue };
            for tensor in &parallel.kept {
                self.keep(parallel, *tensor, ops);
            }
        }
    }

    fn keep(&mut self, parallel: &Parallel, tensor: TensorId, ops: &mut Vec<Op>) {
        let program = &self.body.program;
        let Some((index, sum)) = parallel.items.iter().find_map(|item| kept_load(&item.assign.value, tensor)) else {
            return;
        };
        let array = self.namer.unique(&format!("{}_r", crate::names::c_stem(&program.tensors[tensor].name)));
        let count = program.vars[sum].extent / parallel.lanes;
        ops.push(Op::Do(format!("real {array}[{count}]")));
        let places = self.places(BTreeMap::new());
        let mut printer = Printer::new(program, &places, BTreeMap::new(), self.namer.clone());
        let names: Vec<String> = parallel.vars.iter().map(|v| printer.bind(*v)).collect();
        let extents: Vec<usize> = parallel.vars.iter().map(|v| program.vars[*v].extent).collect();
        let element = printer.namer.unique("e");
        printer.lanes = (parallel.lanes > 1).then(|| (parallel.lanes, printer.namer.unique("lane")));
        let (var, turn) = (printer.bind(sum), printer.namer.unique("turn"));
        let value = printer.expr(&Expr::Load(tensor, index), &mut Vec::new()).text();
        let load = printer.turns(&var, count, &turn, vec![Op::Set { place: format!("{array}[{turn}]"), value }]);
        let lanes = printer.lanes.clone();
        ops.push(self.spread(&names, &extents, &element, lanes.as_ref(), vec![load]));
        self.kept.insert(tensor, (array, count));
    }

    fn parallel(&mut self, parallel: &Parallel, step: Option<&(usize, String)>) -> Op {
        let program = &self.body.program;
        let places = self.places(BTreeMap::new());
        let mut vars = BTreeMap::new();
        if let Some((var, name)) = step {
            vars.insert(*var, name.clone());
        }
        let mut printer = Printer::new(program, &places, vars, self.namer.clone());
        let names: Vec<String> = parallel.vars.iter().map(|v| printer.bind(*v)).collect();
        let extents: Vec<usize> = parallel.vars.iter().map(|v| program.vars[*v].extent).collect();
        let element = printer.namer.unique("e");
        let lane = (parallel.lanes > 1).then(|| printer.namer.unique("lane"));
        let lanes = lane.map(|lane| (parallel.lanes, lane));
        let (vars, namer) = (printer.vars, printer.namer);
        let body = self.items(parallel, step, vars, namer, lanes.as_ref());
        self.spread(&names, &extents, &element, lanes.as_ref(), body)
    }

    fn items(
        &self,
        parallel: &Parallel,
        step: Option<&(usize, String)>,
        vars: BTreeMap<usize, String>,
        mut namer: Namer,
        lanes: Option<&(usize, String)>,
    ) -> Vec<Op> {
        let program = &self.body.program;
        let mut registers: BTreeMap<TensorId, String> = BTreeMap::new();
        let mut ops = Vec::new();
        for item in &parallel.items {
            let places = self.places(registers.clone());
            let mut printer = Printer::new(program, &places, vars.clone(), namer);
            printer.lanes = lanes.cloned();
            printer.kept = self.kept.clone();
            let tensor = &program.tensors[item.assign.tensor];
            let value = printer.expr(&item.assign.value, &mut ops).text();
            namer = printer.namer;
            let register = namer.unique(&format!("{}_", crate::names::c_stem(&tensor.name)));
            ops.push(Op::Let { ty: register_type(tensor.elem), name: register.clone(), value });
            let mut stores = Vec::new();
            self.store(item, &register, step, &vars, &mut stores);
            match lanes.filter(|_| !stores.is_empty()) {
                Some((_, lane)) => {
                    ops.push(Op::If { condition: format!("{lane} == 0"), body: stores, otherwise: Vec::new() });
                }
                None => ops.extend(stores),
            }
            if item.carry == Carry::None {
                registers.insert(item.assign.tensor, register);
            }
        }
        ops
    }

    fn store(
        &self,
        item: &Item,
        value: &str,
        step: Option<&(usize, String)>,
        vars: &BTreeMap<usize, String>,
        ops: &mut Vec<Op>,
    ) {
        let tensor = item.assign.tensor;
        let program = &self.body.program;
        let home = &self.body.homes[&tensor];
        let places = self.places(BTreeMap::new());
        let step_var = program.scan().map(|s| s.var);
        let index: Vec<String> = item
            .assign
            .index
            .iter()
            .map(|v| match step_var == Some(*v) && item.carry == Carry::Start {
                true => "0".to_owned(),
                false => vars.get(v).cloned().unwrap_or_default(),
            })
            .collect();
        if let Some(name) = self.shared_names.get(&tensor) {
            let place = format!("{name}[{}]", places.shared_index(tensor, &index));
            ops.push(Op::Set { place, value: value.to_owned() });
        }
        if let Some(global) = home.global {
            let shape = &program.tensors[tensor].shape;
            let set = |index: &[String]| Op::Set {
                place: format!("{}[{}]", self.names[global], flat(shape, index)),
                value: value.to_owned(),
            };
            match (item.carry, step) {
                (Carry::Next, Some((_, t))) => {
                    let next: Vec<String> = index
                        .iter()
                        .enumerate()
                        .map(|(n, i)| if n == 0 { format!("({t} + 1)") } else { i.clone() })
                        .collect();
                    ops.push(Op::If {
                        condition: format!("{t} + 1 < {}", shape[0]),
                        body: vec![set(&next)],
                        otherwise: Vec::new(),
                    });
                }
                _ => ops.push(set(&index)),
            }
        }
    }

    /// Spreads an index space over the threads of the block.
    fn spread(
        &self,
        names: &[String],
        extents: &[usize],
        element: &str,
        lanes: Option<&(usize, String)>,
        body: Vec<Op>,
    ) -> Op {
        let total: usize = extents.iter().product();
        let threads = self.threads as usize;
        let (share, own) = match lanes {
            Some((lanes, _)) => (*lanes, format!("threadIdx.x / {lanes}")),
            None => (1, "threadIdx.x".to_owned()),
        };
        let counter = if names.len() == 1 { names[0].as_str() } else { element };
        let lane = lanes.map(|(lanes, lane)| {
            let value = format!("threadIdx.x % {lanes}");
            Op::Let { ty: "int", name: lane.clone(), value }
        });
        let mut all: Vec<Op> = lane.into_iter().collect();
        if names.len() > 1 {
            all.extend(unflat(names, extents, element));
        }
        all.extend(body);
        if total * share > threads {
            let head = format!("int {counter} = {own}; {counter} < {total}; {counter} += {}", threads / share);
            return Op::For { head, body: all };
        }
        if !names.is_empty() {
            all.insert(0, Op::Let { ty: "int", name: counter.to_owned(), value: own });
        }
        let condition = match total * share {
            1 => "threadIdx.x == 0".to_owned(),
            busy => format!("threadIdx.x < {busy}"),
        };
        Op::If { condition, body: all, otherwise: Vec::new() }
    }
}
