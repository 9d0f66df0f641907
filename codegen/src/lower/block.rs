//! Block-per-batch kernels.

use std::collections::{BTreeMap, VecDeque};

use unio_interface::{Grid, Shared};

use super::expr::{Code, Namer, Places, Printer, flat, register_type, scalar_value, unflat};
use super::sums::Tile;
use super::{KernelBody, Lowered, Op, SharedArray};
use crate::math::{Elem, Expr, TensorId, VarId};
use crate::plan::{BlockBody, Carry, Item, KernelPlan, Parallel, Phase};

/// Threads of a warp.
const WARP: usize = 32;
/// Turns of a copy that are written out together.
const COPIED: usize = 16;

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
    let mut lowerer = Lowerer {
        body,
        threads: kernel.threads,
        names,
        shared_names,
        namer,
        kept: BTreeMap::new(),
        ahead: VecDeque::new(),
    };
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
    /// Arrays that hold a thread's part of a parameter while a scan runs, and their lengths; for each phase that keeps one, since
    /// another may read other elements of the same parameter.
    kept: BTreeMap<(PhaseId, TensorId), (String, usize)>,
    /// For the phases to come of a scan's step, what each has read ahead, and where.
    ahead: VecDeque<BTreeMap<TensorId, String>>,
}

/// What tells phases apart: the first tensor that one assigns, which no other does.
type PhaseId = TensorId;

fn phase_id(parallel: &Parallel) -> PhaseId {
    parallel.items[0].assign.tensor
}

/// The step that a phase is in.
struct Step {
    var: VarId,
    /// Its name.
    name: String,
    /// The step after it, and whether there is one.
    next: String,
    has_next: String,
    /// The first step.
    first: usize,
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
        Code::atom(scalar_value(&self.body.program, scalar, &self.names[first + scalar]))
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

impl Step {
    fn new(var: VarId, name: &str, last: usize, reversed: bool) -> Self {
        let (next, has_next, first) = match reversed {
            true => (format!("({name} - 1)"), format!("{name} > 0"), last),
            false => (format!("({name} + 1)"), format!("{name} + 1 < {}", last + 1), 0),
        };
        Self { var, name: name.to_owned(), next, has_next, first }
    }
}

/// The thread's lane.
fn own_lane(lanes: usize, lane: &str) -> Op {
    Op::Let { ty: "int", name: lane.to_owned(), value: format!("threadIdx.x % {lanes}") }
}

/// The tile of a phase: its number takes the place of its variable among the names, which a lane that finishes one value names.
fn tile(parallel: &Parallel, printer: &mut Printer<'_>, names: &mut [String], ops: &mut Vec<Op>) -> Option<Tile> {
    let (var, size) = parallel.tile?;
    let at = parallel.vars.iter().position(|v| *v == var)?;
    let number = printer.namer.unique(&format!("{}_tile", names[at]));
    let own = std::mem::replace(&mut names[at], number.clone());
    if let Some((_, lane)) = &printer.lanes {
        ops.push(Op::Let { ty: "int", name: own, value: format!("{number} * {size} + {lane}") });
    }
    Some(Tile { var, number, size, turn: printer.namer.unique("n") })
}

/// Reads the elements of a phase that are read ahead, of those whose index is wanted.
fn reads_ahead(
    parallel: &Parallel,
    names: &BTreeMap<TensorId, String>,
    printer: &mut Printer<'_>,
    wanted: impl Fn(&[Expr]) -> bool,
) -> Vec<Op> {
    let mut loads: BTreeMap<TensorId, Expr> = BTreeMap::new();
    for item in &parallel.items {
        item.assign.value.visit(&mut |e| {
            if let Expr::Load(tensor, index) = e
                && names.contains_key(tensor)
                && wanted(index)
            {
                loads.insert(*tensor, e.clone());
            }
        });
    }
    let mut read = |(tensor, load): (TensorId, Expr)| Op::Set {
        place: names[&tensor].clone(),
        value: printer.expr(&load, &mut Vec::new()).text(),
    };
    loads.into_iter().map(&mut read).collect()
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

    fn phases_at(&mut self, phases: &[Phase], step: Option<&Step>, ops: &mut Vec<Op>) {
        for phase in phases {
            match phase {
                Phase::Barrier => ops.push(Op::Barrier),
                Phase::WarpBarrier => ops.push(Op::Do("__syncwarp()".to_owned())),
                Phase::Pass => self.pass_parameters(phases, ops),
                Phase::Copy => self.stage_parameters(ops),
                Phase::Copied => ops.push(Op::Do("unio_copied()".to_owned())),
                Phase::Parallel(parallel) => {
                    let ahead = step.and_then(|_| self.ahead.pop_front()).unwrap_or_default();
                    ops.push(self.parallel(parallel, step, &ahead));
                }
                Phase::Loop { var, reversed, body } => {
                    let variable = &self.body.program.vars[*var];
                    let name = self.namer.unique(&crate::names::c_ident(&variable.name.to_ascii_lowercase()));
                    let step = Step::new(*var, &name, variable.extent - 1, *reversed);
                    let last = variable.extent - 1;
                    let head = match reversed {
                        true => format!("int {name} = {last}; {name} >= 0; --{name}"),
                        false => format!("int {name} = 0; {name} <= {last}; ++{name}"),
                    };
                    let mut inner = Vec::new();
                    self.keep_parameters(body, ops);
                    self.read_first(body, &step, ops);
                    self.phases_at(body, Some(&step), &mut inner);
                    self.namer.release(&name);
                    ops.push(Op::For { head, body: inner });
                }
            }
        }
    }

    /// Reads what the phases of the first step have read ahead.
    fn read_first(&mut self, phases: &[Phase], step: &Step, ops: &mut Vec<Op>) {
        for phase in phases {
            let Phase::Parallel(parallel) = phase else { continue };
            let names: BTreeMap<TensorId, String> =
                parallel.ahead.iter().map(|id| (*id, self.ahead_name(*id))).collect();
            for (id, name) in &names {
                let ty = register_type(self.body.program.tensors[*id].elem);
                ops.push(Op::Var { ty, name: name.clone(), value: format!("{ty}(0)") });
            }
            if !names.is_empty() {
                let program = &self.body.program;
                let places = self.places(BTreeMap::new());
                let vars = BTreeMap::from([(step.var, step.first.to_string())]);
                let mut printer = Printer::new(program, &places, vars, self.namer.clone());
                let vars: Vec<String> = parallel.vars.iter().map(|v| printer.bind(*v)).collect();
                let extents: Vec<usize> = parallel.vars.iter().map(|v| program.vars[*v].extent).collect();
                let element = printer.namer.unique("e");
                let lanes = (parallel.lanes > 1).then_some(parallel.lanes);
                let reads = reads_ahead(parallel, &names, &mut printer, |_| true);
                ops.push(self.spread(&vars, &extents, &element, (lanes, 1), reads));
            }
            self.ahead.push_back(names);
        }
    }

    fn ahead_name(&mut self, tensor: TensorId) -> String {
        self.namer.unique(&format!("{}_a", crate::names::c_stem(&self.body.program.tensors[tensor].name)))
    }

    /// Begins to copy parameters into shared memory; neighbours are read together.
    fn stage_parameters(&mut self, ops: &mut Vec<Op>) {
        let staged = self.body.homes.iter().filter(|(_, home)| home.staged.is_some() && home.passes.is_none());
        let staged: Vec<TensorId> = staged.map(|(id, _)| *id).collect();
        if self.body.single && !staged.is_empty() {
            ops.push(Op::Barrier);
        }
        ops.extend(staged.into_iter().filter_map(|id| self.copy(id)));
    }

    fn copy(&mut self, id: TensorId) -> Option<Op> {
        let home = &self.body.homes[&id];
        let (Some(stride), Some(global), Some(name)) = (home.staged, home.global, self.shared_names.get(&id)) else {
            return None;
        };
        let shape = &self.body.program.tensors[id].shape;
        let (len, row) = (shape.iter().product::<usize>(), shape[shape.len() - 1]);
        let at = self.namer.unique("n");
        let place = match stride == row {
            true => format!("{name} + {at}"),
            false => format!("{name} + {at} / {row} * {stride} + {at} % {row}"),
        };
        let copy = Op::Do(format!("unio_copy({place}, {} + {at})", self.names[global]));
        let head = format!("int {at} = threadIdx.x; {at} < {len}; {at} += {}", self.threads);
        self.namer.release(&at);
        Some(Op::Unrolled { head, times: Some(COPIED), body: vec![copy] })
    }

    /// Parameters that go through shared memory into registers, turn by turn.
    fn pass_parameters(&mut self, phases: &[Phase], ops: &mut Vec<Op>) {
        let looped =
            phases.iter().filter_map(|phase| if let Phase::Loop { body, .. } = phase { Some(body) } else { None });
        let kept = looped.flatten().filter_map(|phase| match phase {
            Phase::Parallel(parallel) => Some(parallel.kept.iter().map(move |tensor| (parallel, *tensor))),
            _ => None,
        });
        let kept: Vec<(&Parallel, TensorId)> = kept.flatten().collect();
        if self.body.single {
            ops.push(Op::Barrier);
        }
        for turn in 0.. {
            let now: Vec<_> = kept.iter().filter(|(_, id)| self.body.homes[id].passes == Some(turn)).collect();
            if now.is_empty() {
                break;
            }
            ops.extend(now.iter().filter_map(|(_, id)| self.copy(*id)));
            ops.extend([Op::Do("unio_copied()".to_owned()), Op::Barrier]);
            now.iter().for_each(|(parallel, id)| self.keep(parallel, *id, ops));
            ops.push(Op::Barrier);
        }
    }

    /// Loads what the phases of a scan keep, before its first step.
    fn keep_parameters(&mut self, phases: &[Phase], ops: &mut Vec<Op>) {
        for phase in phases {
            let Phase::Parallel(parallel) = phase else { continue };
            for tensor in &parallel.kept {
                if !self.kept.contains_key(&(phase_id(parallel), *tensor)) {
                    self.keep(parallel, *tensor, ops);
                }
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
        let load = printer.turns(&var, count, &turn, true, vec![Op::Set { place: format!("{array}[{turn}]"), value }]);
        let lanes = printer.lanes.take();
        let own = lanes.as_ref().map(|(lanes, lane)| own_lane(*lanes, lane));
        let body = own.into_iter().chain([load]).collect();
        ops.push(self.spread(&names, &extents, &element, (lanes.map(|(lanes, _)| lanes), 1), body));
        self.kept.insert((phase_id(parallel), tensor), (array, count));
    }

    fn parallel(&mut self, parallel: &Parallel, step: Option<&Step>, ahead: &BTreeMap<TensorId, String>) -> Op {
        let program = &self.body.program;
        let vars = step.iter().map(|step| (step.var, step.name.clone())).collect();
        let mut body = Vec::new();
        let places = self.places(BTreeMap::new());
        let mut printer = Printer::new(program, &places, vars, self.namer.clone());
        let mut names: Vec<String> = parallel.vars.iter().map(|v| printer.bind(*v)).collect();
        let extents: Vec<usize> = parallel.vars.iter().map(|v| program.vars[*v].extent / parallel.values(*v)).collect();
        let element = printer.namer.unique("e");
        let lane = (parallel.lanes > 1).then(|| printer.namer.unique("lane"));
        printer.lanes = lane.map(|lane| (parallel.lanes, lane));
        let busy = extents.iter().product::<usize>() * parallel.lanes;
        printer.whole = [busy, self.threads as usize].iter().all(|threads| threads.is_multiple_of(WARP));
        body.extend(printer.lanes.as_ref().map(|(lanes, lane)| own_lane(*lanes, lane)));
        printer.tile = tile(parallel, &mut printer, &mut names, &mut body);
        let registers = self.take_ahead(parallel, step, ahead, &mut printer, &mut body);
        let known = self.places(registers.clone());
        let namer = printer.namer.clone();
        let mut printer = printer.at(&known, namer);
        let kept = self.kept.iter().filter(|((phase, _), _)| *phase == phase_id(parallel));
        printer.kept = kept.map(|((_, tensor), array)| (*tensor, array.clone())).collect();
        self.items(parallel, step, registers, printer, &mut body);
        let lanes = (parallel.lanes > 1).then_some(parallel.lanes);
        self.spread(&names, &extents, &element, (lanes, parallel.at_once), body)
    }

    /// Takes what was read ahead, and reads it for the next step: the registers that have it now.
    fn take_ahead(
        &self,
        parallel: &Parallel,
        step: Option<&Step>,
        ahead: &BTreeMap<TensorId, String>,
        printer: &mut Printer<'_>,
        ops: &mut Vec<Op>,
    ) -> BTreeMap<TensorId, String> {
        let mut registers = BTreeMap::new();
        let Some(step) = step else { return registers };
        for (id, value) in ahead {
            let tensor = &self.body.program.tensors[*id];
            let name = printer.namer.unique(&format!("{}_", crate::names::c_stem(&tensor.name)));
            registers.insert(*id, name.clone());
            ops.push(Op::Let { ty: register_type(tensor.elem), name, value: value.clone() });
        }
        printer.vars.insert(step.var, step.next.clone());
        let reads = reads_ahead(parallel, ahead, printer, |index| index.contains(&Expr::Var(step.var)));
        printer.vars.insert(step.var, step.name.clone());
        if !reads.is_empty() {
            ops.push(Op::If { condition: step.has_next.clone(), body: reads, otherwise: Vec::new() });
        }
        registers
    }

    /// What a thread does for an element: first the sums that know nothing of the phase, then item by item.
    fn items(
        &self,
        parallel: &Parallel,
        step: Option<&Step>,
        mut registers: BTreeMap<TensorId, String>,
        mut first: Printer<'_>,
        ops: &mut Vec<Op>,
    ) {
        let program = &self.body.program;
        let made = parallel.items.iter().map(|item| item.assign.tensor).collect();
        let values: Vec<&Expr> = parallel.items.iter().map(|item| &item.assign.value).collect();
        first.sum_ahead(&values, &made, ops);
        let mut rest = Vec::new();
        let mut namer = first.namer.clone();
        for item in &parallel.items {
            let places = self.places(registers.clone());
            let mut printer = first.at(&places, namer);
            let tensor = &program.tensors[item.assign.tensor];
            let value = printer.expr(&item.assign.value, &mut rest).text();
            namer = printer.namer;
            let register = namer.unique(&format!("{}_", crate::names::c_stem(&tensor.name)));
            rest.push(Op::Let { ty: register_type(tensor.elem), name: register.clone(), value });
            let mut stores = Vec::new();
            self.store(item, &register, step, &first.vars, &mut stores);
            match first.lanes.as_ref().filter(|_| !stores.is_empty() && first.tile.is_none()) {
                Some((_, lane)) => {
                    rest.push(Op::If { condition: format!("{lane} == 0"), body: stores, otherwise: Vec::new() });
                }
                None => rest.extend(stores),
            }
            if item.carry == Carry::None {
                registers.insert(item.assign.tensor, register);
            }
        }
        match first.tile.as_ref().filter(|_| first.lanes.is_none()) {
            Some(tile) => ops.push(tile.each(&first.vars[&tile.var], rest)),
            None => ops.extend(rest),
        }
    }

    fn store(&self, item: &Item, value: &str, step: Option<&Step>, vars: &BTreeMap<usize, String>, ops: &mut Vec<Op>) {
        let tensor = item.assign.tensor;
        let program = &self.body.program;
        let home = &self.body.homes[&tensor];
        let places = self.places(BTreeMap::new());
        let scan = program.scan();
        let index: Vec<String> = item
            .assign
            .index
            .iter()
            .map(|v| match scan.filter(|scan| scan.var == *v && item.carry == Carry::Start) {
                Some(scan) => Step::new(*v, "", program.vars[*v].extent - 1, scan.reversed).first.to_string(),
                None => vars.get(v).cloned().unwrap_or_default(),
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
                (Carry::Next, Some(step)) => {
                    let next: Vec<String> = (index.iter().enumerate())
                        .map(|(n, i)| if n == 0 { step.next.clone() } else { i.clone() })
                        .collect();
                    ops.push(Op::If {
                        condition: step.has_next.clone(),
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
        (lanes, at_once): (Option<usize>, usize),
        body: Vec<Op>,
    ) -> Op {
        let total: usize = extents.iter().product();
        let threads = self.threads as usize;
        let (share, own) = match lanes {
            Some(lanes) => (lanes, format!("threadIdx.x / {lanes}")),
            None => (1, "threadIdx.x".to_owned()),
        };
        let counter = if names.len() == 1 { names[0].as_str() } else { element };
        let mut all: Vec<Op> = Vec::new();
        if names.len() > 1 {
            all.extend(unflat(names, extents, element));
        }
        all.extend(body);
        if total * share > threads {
            let head = format!("int {counter} = {own}; {counter} < {total}; {counter} += {}", threads / share);
            return match at_once {
                1 => Op::For { head, body: all },
                times => Op::Unrolled { head, times: Some(times), body: all },
            };
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
