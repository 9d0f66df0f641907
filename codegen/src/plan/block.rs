//! Storage and phases of a block-per-batch kernel.

use std::collections::{BTreeMap, BTreeSet};

use super::{BlockBody, Carry, Home, Item, Parallel, Param, Phase, memory_elem, outer_role};
use super::{ahead, fission, lanes, rows};
use crate::math::{Assign, Elem, Expr, Node, Program, Role, TensorId, VarId};
use crate::model::Schedule;
use crate::spec::entries::StageGrid;

/// Shared memory that a block may take without leave, in f32 elements.
const SHARED_BUDGET: usize = 12 * 1024 - 256;
/// Arrays of shared memory begin at multiples of so many elements, so that the compiler may read several at once and touches no
/// neighbour's.
const ALIGNED: usize = 4;
/// The same with copies of parameters, so that a block fits a multiprocessor in f64 too; and for a scan, which reads them at
/// every step, in f32 alone.
const STAGED_BUDGET: usize = 27 * 1024;
const STAGED_BUDGET_OF_SCANS: usize = 50 * 1024;
/// Fewest threads that a block is given by default, and most for what lies outside a scan.
const THREADS: std::ops::RangeInclusive<usize> = 32..=256;
/// The same where a block takes several samples, so that it has a multiprocessor for itself.
const THREADS_OF_ROWS: usize = 512;

/// Elements that a thread may take one after the other outside a scan.
const ELEMENTS_A_THREAD: usize = 4;

/// A planned body with its pointer parameters and threads.
pub(super) struct Planned {
    pub(super) body: BlockBody,
    pub(super) params: Vec<Param>,
    pub(super) threads: u32,
}

/// Plans a forward or adjoint program; `keep` are locals that the kernel stores for a later one. A block takes as many samples as
/// its shared memory has room for.
pub(super) fn plan(
    program: &Program,
    keep: &BTreeSet<TensorId>,
    batch: usize,
    scratch_total: usize,
    schedule: &Schedule,
) -> Planned {
    let several = rows::choices(program, batch, schedule).find_map(|rows| {
        let all = rows::together(program, rows);
        let (planned, fits) = plan_rows(&all, keep, (rows, batch / rows), scratch_total, schedule);
        fits.then_some(planned)
    });
    several.unwrap_or_else(|| plan_rows(program, keep, (1, batch), scratch_total, schedule).0)
}

/// The plan for so many samples a block and so many blocks, and whether all that is shared has room.
fn plan_rows(
    program: &Program,
    keep: &BTreeSet<TensorId>,
    (rows, batch): (usize, usize),
    scratch_total: usize,
    schedule: &Schedule,
) -> (Planned, bool) {
    let program = &fission::split(program);
    let mut groups = Grouper::new(program).group();
    lanes::choose(program, &mut groups);
    let room = if rows > 1 { STAGED_BUDGET } else { SHARED_BUDGET };
    let mut planner =
        Planner { program, keep, scratch_total, params: Vec::new(), homes: BTreeMap::new(), reals: 0, ints: 0, room };
    planner.place(&groups);
    let fits = planner.params.iter().all(|param| param.access != unio_interface::Access::InOut);
    let threads = schedule.threads.unwrap_or_else(|| default_threads(program, &groups, rows));
    let free = lanes::keep_parameters(program, &mut groups, threads);
    let made = planner.reals;
    planner.stage_parameters(&groups);
    planner.pass_parameters(&groups, made);
    ahead::choose(program, &planner.homes, &mut groups, threads, free);
    let single = schedule.grid == StageGrid::Single;
    let mut barriers = Barriers { program, homes: &planner.homes, block: Pending::default(), warp: Pending::default() };
    if single {
        barriers.start_after(groups.clone());
    }
    let mut phases = barriers.insert(groups);
    add_copies(&planner.homes, &mut phases);
    let scalars = scalar_params(program);
    let mut params = planner.params;
    params.extend(scalars);
    let body = BlockBody {
        batch,
        rows,
        single,
        program: program.clone(),
        homes: planner.homes,
        phases,
        shared_reals: planner.reals,
        shared_ints: planner.ints,
    };
    (Planned { body, params, threads }, fits)
}

/// Parameters for the slots and states that a program reads.
pub(super) fn scalar_params(program: &Program) -> Vec<Param> {
    let elem = |int: bool| {
        if int { unio_interface::Elem::I32 } else { unio_interface::Elem::F32 }
    };
    let scalars = program.scalars.iter();
    scalars
        .map(|s| Param {
            name: scalar_name(s),
            elem: elem(s.int),
            access: unio_interface::Access::In,
            len: Some(1),
            stride: None,
            role: unio_interface::Role::Scalar,
            row_len: None,
            row: 1,
        })
        .collect()
}

fn scalar_name(read: &crate::math::ScalarRead) -> String {
    let when = match read.when {
        crate::spec::equation::When::Prev => "prev",
        crate::spec::equation::When::Now => "now",
        crate::spec::equation::When::Observed => "observed",
    };
    match &read.member {
        Some(member) => format!("{when}_{}_{member}", read.name),
        None => format!("{when}_{}", read.name),
    }
}

fn default_threads(program: &Program, groups: &[Grouped], rows: usize) -> u32 {
    let size = |p: &Parallel| busy(program, p);
    let looped = groups.iter().filter_map(|g| if let Grouped::Loop { body, .. } = g { Some(body) } else { None });
    let inside = looped.flatten().map(size).max();
    // A tile is work for a thread; of single elements it takes several.
    let share = |p: &Parallel| size(p).div_ceil(if p.tile.is_some() { 1 } else { ELEMENTS_A_THREAD });
    let all = groups.iter().filter_map(|g| if let Grouped::Parallel(p) = g { Some(share(p)) } else { None }).max();
    // Threads beyond those that a step employs make its barriers dearer; outside they share work that has few barriers.
    let most = if rows > 1 { THREADS_OF_ROWS } else { *THREADS.end() };
    let outside = all.unwrap_or(1).min(most);
    let most = inside.unwrap_or(1).max(outside).next_multiple_of(32);
    most.clamp(*THREADS.start(), lanes::MOST_THREADS) as u32
}

/// Elements of a phase's index space.
pub(super) fn elements(program: &Program, phase: &Parallel) -> usize {
    phase.vars.iter().map(|v| program.vars[*v].extent).product()
}

/// Threads that a phase employs.
pub(super) fn busy(program: &Program, phase: &Parallel) -> usize {
    elements(program, phase) / phase.tile.map_or(1, |(_, size)| size) * phase.lanes
}

/// Phases before barriers.
#[derive(Clone)]
pub(super) enum Grouped {
    Parallel(Parallel),
    Loop { var: VarId, reversed: bool, body: Vec<Parallel> },
}

/// Joins assignments over one index space that read one another element by element.
struct Grouper<'a> {
    program: &'a Program,
    step: Option<VarId>,
}

impl<'a> Grouper<'a> {
    fn new(program: &'a Program) -> Self {
        Self { program, step: program.scan().map(|s| s.var) }
    }

    fn group(&self) -> Vec<Grouped> {
        let mut out = Vec::new();
        let mut run = Vec::new();
        for node in &self.program.body {
            match node {
                Node::Assign(assign) => run.push(item(assign.clone(), Carry::None)),
                Node::Scan(scan) => {
                    run.extend(self.carries(Carry::Start));
                    out.extend(self.join(std::mem::take(&mut run), false).into_iter().map(Grouped::Parallel));
                    let mut body: Vec<Item> = scan.body.iter().map(|a| item(a.clone(), Carry::None)).collect();
                    body.extend(self.carries(Carry::Next));
                    out.push(Grouped::Loop { var: scan.var, reversed: scan.reversed, body: self.join(body, true) });
                }
            }
        }
        out.extend(self.join(run, false).into_iter().map(Grouped::Parallel));
        out
    }

    /// Assignments that give the carries their start, or their value for the next step.
    fn carries(&self, kind: Carry) -> Vec<Item> {
        let mut items = Vec::new();
        for (id, tensor) in self.program.tensors.iter().enumerate() {
            let Role::Carry { from } = tensor.role else { continue };
            let Some(index) = self.program.assigns().find(|(a, _)| a.tensor == from).map(|(a, _)| a.index.clone())
            else {
                continue;
            };
            let value = match kind {
                Carry::Start => Expr::Real(0.0),
                _ => Expr::Load(from, index.iter().copied().map(Expr::Var).collect()),
            };
            items.push(item(Assign { tensor: id, index, value, loc: tensor.loc.clone() }, kind));
        }
        items
    }

    fn join(&self, items: Vec<Item>, in_loop: bool) -> Vec<Parallel> {
        let mut groups: Vec<Parallel> = Vec::new();
        for item in items {
            let vars: Vec<VarId> = item
                .assign
                .index
                .iter()
                .copied()
                .filter(|v| !in_loop_step(self.step, *v, in_loop || item.carry != Carry::None))
                .collect();
            match groups.last_mut().filter(|g| self.may_join(g, &vars, &item)) {
                Some(group) => {
                    let renamed = renamed(&item, &vars, &group.vars);
                    group.items.push(renamed);
                }
                None => groups.push(Parallel {
                    vars,
                    items: vec![item],
                    lanes: 1,
                    at_once: 1,
                    tile: None,
                    kept: Vec::new(),
                    ahead: Vec::new(),
                }),
            }
        }
        groups
    }

    fn may_join(&self, group: &Parallel, vars: &[VarId], item: &Item) -> bool {
        let extent = |v: &VarId| self.program.vars[*v].extent;
        if group.vars.len() != vars.len() || !group.vars.iter().zip(vars).all(|(a, b)| extent(a) == extent(b)) {
            return false;
        }
        // A carry's start names no step: in a space that runs over the steps, its index would be taken for one.
        if item.carry == Carry::Start && group.vars.iter().any(|v| Some(*v) == self.step) {
            return false;
        }
        let made: BTreeSet<TensorId> = group.items.iter().map(|i| i.assign.tensor).collect();
        let reads_own = accesses(&item.assign.value)
            .into_iter()
            .all(|(t, index)| !made.contains(&t) || is_own(&index, vars, self.step));
        let target = item.assign.tensor;
        let unread = group
            .items
            .iter()
            .flat_map(|i| accesses(&i.assign.value))
            .all(|(t, index)| t != target || is_own(&index, &group.vars, self.step));
        reads_own && unread
    }
}

fn in_loop_step(step: Option<VarId>, var: VarId, in_loop: bool) -> bool {
    in_loop && step == Some(var)
}

fn item(assign: Assign, carry: Carry) -> Item {
    Item { assign, carry }
}

fn renamed(item: &Item, from: &[VarId], to: &[VarId]) -> Item {
    let rename = |v: &VarId| from.iter().position(|f| f == v).map_or(*v, |n| to[n]);
    let index = item.assign.index.iter().map(rename).collect();
    let value = item.assign.value.substitute(from, to);
    Item { assign: Assign { index, value, ..item.assign.clone() }, carry: item.carry }
}

/// Every element read: tensor and index.
pub(super) fn accesses(expr: &Expr) -> Vec<(TensorId, Vec<Expr>)> {
    let mut list = Vec::new();
    expr.visit(&mut |e| {
        if let Expr::Load(t, index) = e {
            list.push((*t, index.clone()));
        }
    });
    list
}

/// Tensors that reductions read.
fn summed(expr: &Expr) -> BTreeSet<TensorId> {
    let mut found = BTreeSet::new();
    expr.visit(&mut |e| {
        if let Expr::Reduce(..) = e {
            found.extend(e.loads());
        }
    });
    found
}

/// Whether an index names just the element that the thread itself is at.
fn is_own(index: &[Expr], vars: &[VarId], step: Option<VarId>) -> bool {
    let plain: Vec<VarId> = index
        .iter()
        .filter_map(|e| if let Expr::Var(v) = e { Some(*v) } else { None })
        .filter(|v| Some(*v) != step || vars.contains(v))
        .collect();
    index.iter().all(|e| matches!(e, Expr::Var(_))) && plain == vars
}

/// Gives tensors their homes.
struct Planner<'a> {
    program: &'a Program,
    keep: &'a BTreeSet<TensorId>,
    scratch_total: usize,
    params: Vec<Param>,
    homes: BTreeMap<TensorId, Home>,
    reals: usize,
    ints: usize,
    /// Elements of shared memory for what the kernel makes.
    room: usize,
}

impl Planner<'_> {
    fn place(&mut self, groups: &[Grouped]) {
        let uses = Uses::new(self.program, groups);
        for id in 0..self.program.tensors.len() {
            if !uses.read.contains(&id) && !uses.written.contains(&id) {
                continue;
            }
            let home = match self.program.tensors[id].role {
                Role::Input | Role::Table | Role::Param | Role::CotangentIn { .. } | Role::Saved => {
                    self.global(id, unio_interface::Access::In)
                }
                Role::CotangentOut { .. } | Role::ParamGradient { .. } => self.global(id, unio_interface::Access::Out),
                Role::Output => self.output(id, &uses),
                _ => self.local(id, &uses),
            };
            self.homes.insert(id, home);
        }
    }

    fn output(&mut self, id: TensorId, uses: &Uses) -> Home {
        let mut home = self.global(id, unio_interface::Access::Out);
        if uses.shared.contains(&id) {
            self.share(id, uses, &mut home);
        }
        home
    }

    fn local(&mut self, id: TensorId, uses: &Uses) -> Home {
        let mut home = match self.keep.contains(&id) {
            true => self.global(id, unio_interface::Access::Out),
            false => Home::default(),
        };
        if uses.shared.contains(&id) || matches!(self.program.tensors[id].role, Role::Carry { .. }) {
            self.share(id, uses, &mut home);
        }
        home
    }

    /// Copies of parameters that are read again and again, as far as shared memory goes.
    fn stage_parameters(&mut self, groups: &[Grouped]) {
        for staged in lanes::staged(self.program, groups) {
            let shape = &self.program.tensors[staged.tensor].shape;
            let len = shape[..shape.len() - 1].iter().product::<usize>() * staged.stride;
            let most = if staged.in_scan { STAGED_BUDGET_OF_SCANS } else { STAGED_BUDGET };
            if self.reals + self.ints + len > most {
                continue;
            }
            if let Some(home) = self.homes.get_mut(&staged.tensor) {
                home.shared = Some(self.reals);
                home.staged = Some(staged.stride);
                self.reals += len.next_multiple_of(ALIGNED);
            }
        }
    }

    /// Kept parameters go through the place of those copies, from where on nothing else lies: as many at a time as have room.
    fn pass_parameters(&mut self, groups: &[Grouped], from: usize) {
        let (mut at, mut turn) = (from, 0);
        for passing in lanes::passing(self.program, groups) {
            let shape = &self.program.tensors[passing.tensor].shape;
            let len = shape[..shape.len() - 1].iter().product::<usize>() * passing.stride;
            let fits = |at: usize| at + len + self.ints <= STAGED_BUDGET_OF_SCANS;
            if !fits(at) {
                (at, turn) = (from, turn + 1);
            }
            if let Some(home) = self.homes.get_mut(&passing.tensor).filter(|_| fits(at)) {
                (home.shared, home.staged, home.passes) = (Some(at), Some(passing.stride), Some(turn));
                at += len.next_multiple_of(ALIGNED);
                self.reals = self.reals.max(at);
            }
        }
    }

    /// Shared memory if it fits, else the sample's own part of a global buffer, read and written.
    fn share(&mut self, id: TensorId, uses: &Uses, home: &mut Home) {
        let tensor = &self.program.tensors[id];
        home.one_step = uses.stepped.contains(&id);
        let skip = usize::from(home.one_step);
        let len: usize = tensor.shape[skip..].iter().product();
        let is_real = tensor.elem == Elem::Real;
        if self.reals + self.ints + len <= self.room {
            let next = if is_real { &mut self.reals } else { &mut self.ints };
            home.shared = Some(*next);
            *next += len.next_multiple_of(ALIGNED);
            return;
        }
        home.one_step = false;
        match home.global {
            Some(param) => self.params[param].access = unio_interface::Access::InOut,
            None => home.global = self.global(id, unio_interface::Access::InOut).global,
        }
    }

    fn global(&mut self, id: TensorId, access: unio_interface::Access) -> Home {
        let tensor = &self.program.tensors[id];
        let any = tensor.shape.first() == Some(&0);
        let len = (!any).then(|| tensor.shape.iter().product());
        let stride = match tensor.role {
            Role::Table | Role::Param => None,
            Role::ParamGradient { .. } => Some(self.scratch_total),
            _ => len,
        };
        self.params.push(Param {
            name: tensor.name.clone(),
            elem: memory_elem(tensor.elem),
            access,
            len,
            stride,
            role: outer_role(self.program, id),
            row_len: any.then(|| tensor.shape[1..].iter().product()),
            row: 1,
        });
        Home { global: Some(self.params.len() - 1), ..Home::default() }
    }
}

/// How tensors are used over all phases.
#[derive(Default)]
struct Uses {
    read: BTreeSet<TensorId>,
    written: BTreeSet<TensorId>,
    /// Read in another phase than the one that makes them, or at another element.
    shared: BTreeSet<TensorId>,
    /// Made and read inside the scan, always at the step itself.
    stepped: BTreeSet<TensorId>,
}

impl Uses {
    fn new(program: &Program, groups: &[Grouped]) -> Self {
        let mut uses = Self::default();
        let mut outside = BTreeSet::new();
        let mut made_inside = BTreeSet::new();
        for group in groups {
            match group {
                Grouped::Parallel(p) => uses.phase(p, &mut outside),
                Grouped::Loop { body, .. } => {
                    for p in body {
                        made_inside.extend(p.items.iter().map(|i| i.assign.tensor));
                        uses.phase(p, &mut BTreeSet::new());
                    }
                }
            }
        }
        let is_carry = |t: &TensorId| matches!(program.tensors[*t].role, Role::Carry { .. });
        uses.stepped = made_inside.into_iter().filter(|t| !outside.contains(t) || is_carry(t)).collect();
        uses
    }

    fn phase(&mut self, phase: &Parallel, reads: &mut BTreeSet<TensorId>) {
        let mut made = BTreeSet::new();
        for item in &phase.items {
            for (tensor, _) in accesses(&item.assign.value) {
                self.read.insert(tensor);
                reads.insert(tensor);
                if !made.contains(&tensor) {
                    self.shared.insert(tensor);
                }
            }
            made.insert(item.assign.tensor);
            self.written.insert(item.assign.tensor);
        }
    }
}

/// Copies of parameters begin at the start, and are waited for before the first phase that reads one. Where kept parameters go
/// through the same place, that comes first: right before the scan if it may, since from then on their registers are taken.
fn add_copies(homes: &BTreeMap<TensorId, Home>, phases: &mut Vec<Phase>) {
    let is_copy =
        |tensor: &TensorId| homes.get(tensor).is_some_and(|home| home.staged.is_some() && home.passes.is_none());
    let first = phases.iter().position(|phase| reads(phase, &is_copy));
    let scan = phases.iter().position(|phase| matches!(phase, Phase::Loop { .. }));
    let passes = homes.values().any(|home| home.passes.is_some());
    let begin = scan.filter(|scan| passes && first.is_none_or(|first| *scan <= first)).unwrap_or(0);
    if let Some(first) = first {
        match first.checked_sub(1).filter(|before| *before >= begin && matches!(phases[*before], Phase::Barrier)) {
            Some(barrier) => phases.insert(barrier, Phase::Copied),
            None => {
                phases.insert(first, Phase::Barrier);
                phases.insert(first, Phase::Copied);
            }
        }
        phases.insert(begin, Phase::Copy);
    }
    if passes {
        phases.insert(begin, Phase::Pass);
    }
}

fn reads(phase: &Phase, wanted: &impl Fn(&TensorId) -> bool) -> bool {
    match phase {
        Phase::Barrier | Phase::WarpBarrier | Phase::Pass | Phase::Copy | Phase::Copied => false,
        Phase::Parallel(parallel) => parallel.items.iter().any(|item| item.assign.value.loads().iter().any(wanted)),
        Phase::Loop { body, .. } => body.iter().any(|phase| reads(phase, wanted)),
    }
}

/// Puts barriers where a phase touches what another thread touched since the last one: of the block, or of the warp where only
/// lanes of one element meet.
struct Barriers<'a> {
    program: &'a Program,
    homes: &'a BTreeMap<TensorId, Home>,
    /// What threads of a block have not told one another.
    block: Pending,
    /// What threads of a warp have not.
    warp: Pending,
}

/// How a phase's elements lie among the threads: extents and tiles of its variables, then the lanes of an element.
#[derive(Clone, Debug, PartialEq)]
struct Space {
    extents: Vec<usize>,
    /// Lanes of which one stores; 1 where each thread has elements of its own.
    sharers: usize,
}

/// Tensors, each with the space in which an element was touched by its own threads alone.
type Touched = BTreeMap<TensorId, Option<Space>>;

/// What was read and written since the last barrier.
#[derive(Clone, Default, PartialEq)]
struct Pending {
    read: Touched,
    written: Touched,
}

impl Pending {
    /// More is pending: what is touched in two ways is nobody's own.
    fn note(&mut self, (read, written): &(Touched, Touched)) {
        for (map, touched) in [(&mut self.read, read), (&mut self.written, written)] {
            for (tensor, space) in touched {
                let known = map.entry(*tensor).or_insert_with(|| space.clone());
                if known != space {
                    *known = None;
                }
            }
        }
    }

    /// Whether a phase meets what is pending in such a way.
    fn clashes(&self, (read, written): &(Touched, Touched), way: fn(&Option<Space>, &Option<Space>) -> bool) -> bool {
        let clash = |now: &Touched, before: &Touched| {
            now.iter().any(|(tensor, space)| before.get(tensor).is_some_and(|known| way(space, known)))
        };
        clash(read, &self.written) || clash(written, &self.read) || clash(written, &self.written)
    }

    fn retain(&mut self, keep: impl Fn(&TensorId) -> bool) {
        self.read.retain(|tensor, _| keep(tensor));
        self.written.retain(|tensor, _| keep(tensor));
    }
}

/// Elements of threads that may be of different warps.
fn between_threads(now: &Option<Space>, before: &Option<Space>) -> bool {
    now.is_none() || now != before
}

/// One element, whose lanes are threads of one warp.
fn between_lanes(now: &Option<Space>, before: &Option<Space>) -> bool {
    now == before && now.as_ref().is_some_and(|space| space.sharers > 1)
}

impl Barriers<'_> {
    /// Begins where the sample before ended, whose shared memory the next sample takes over.
    fn start_after(&mut self, groups: Vec<Grouped>) {
        self.insert(groups);
        let is_shared = |tensor: &TensorId| self.homes.get(tensor).is_some_and(|h| h.shared.is_some());
        self.block.retain(is_shared);
        self.warp.retain(is_shared);
    }

    fn insert(&mut self, groups: Vec<Grouped>) -> Vec<Phase> {
        let mut phases = Vec::new();
        for group in groups {
            match group {
                Grouped::Parallel(p) => self.phase(p, &mut phases),
                Grouped::Loop { var, reversed, body } => self.looped(var, reversed, &body, &mut phases),
            }
        }
        phases
    }

    /// A scan; if that saves a barrier at every step, with one in front.
    fn looped(&mut self, var: VarId, reversed: bool, body: &[Parallel], phases: &mut Vec<Phase>) {
        let mut settled = Self { block: Pending::default(), warp: Pending::default(), ..*self };
        let (alone, joined) = (settled.steps(body), self.steps(body));
        let count = |phases: &[Phase]| phases.iter().filter(|phase| matches!(phase, Phase::Barrier)).count();
        if count(&alone) < count(&joined) {
            *self = settled;
            phases.extend([Phase::Barrier, Phase::Loop { var, reversed, body: alone }]);
        } else {
            phases.push(Phase::Loop { var, reversed, body: joined });
        }
    }

    /// A step follows the step before it: what is pending at the end of one, or before the first, is pending at its start.
    fn steps(&mut self, body: &[Parallel]) -> Vec<Phase> {
        let (block, warp) = (self.block.clone(), self.warp.clone());
        for p in body {
            self.barrier(p);
        }
        self.block.note(&(block.read, block.written));
        self.warp.note(&(warp.read, warp.written));
        let mut phases = Vec::new();
        for p in body {
            self.phase(p.clone(), &mut phases);
        }
        phases
    }

    fn phase(&mut self, p: Parallel, phases: &mut Vec<Phase>) {
        phases.extend(self.barrier(&p));
        phases.push(Phase::Parallel(p));
    }

    /// The barrier that a phase needs, which settles what is pending; then what the phase touches is pending.
    fn barrier(&mut self, p: &Parallel) -> Option<Phase> {
        let touched = self.touched(p);
        let barrier = if self.block.clashes(&touched, between_threads) {
            self.block = Pending::default();
            Some(Phase::Barrier)
        } else {
            self.warp.clashes(&touched, between_lanes).then_some(Phase::WarpBarrier)
        };
        if barrier.is_some() {
            self.warp = Pending::default();
        }
        self.block.note(&touched);
        self.warp.note(&touched);
        barrier
    }

    /// Tensors in memory that other threads may see: for each the space if only own elements are touched.
    fn touched(&self, p: &Parallel) -> (Touched, Touched) {
        let step = self.program.scan().map(|s| s.var);
        let extents = p.vars.iter().flat_map(|v| [self.program.vars[*v].extent, p.values(*v)]).collect();
        // Of lanes that share an element one alone stores it, so that to the others it is another thread's.
        let space = Space { extents, sharers: if p.tile.is_some() { 1 } else { p.lanes } };
        let mut made = BTreeSet::new();
        let (mut read, mut written) = (Touched::new(), Touched::new());
        for item in &p.items {
            // The lanes of a tile sum for one another.
            let summed = if p.tile.is_some() { summed(&item.assign.value) } else { BTreeSet::new() };
            for (tensor, index) in accesses(&item.assign.value) {
                let is_own = is_own(&index, &p.vars, step) && !summed.contains(&tensor);
                let own = is_own.then(|| space.clone());
                if self.is_visible(tensor) && !made.contains(&tensor) {
                    let known = read.entry(tensor).or_insert_with(|| own.clone());
                    if *known != own {
                        *known = None;
                    }
                }
            }
            made.insert(item.assign.tensor);
            if self.is_visible(item.assign.tensor) {
                written.insert(item.assign.tensor, Some(space.clone()));
            }
        }
        (read, written)
    }

    fn is_visible(&self, tensor: TensorId) -> bool {
        let read_back = matches!(self.program.tensors[tensor].role, Role::Local | Role::Carry { .. } | Role::Output);
        read_back && self.homes.get(&tensor).is_some_and(|h| h.shared.is_some() || h.global.is_some())
    }
}
