//! How many threads share an element of a phase: a long sum is split between lanes of a warp, where threads would be idle or
//! would read a weight's rows a stride apart.

use super::Parallel;
use super::block::{Grouped, elements};
use crate::math::{Expr, Program, Reduction, Role, TensorId, VarId};

/// Most threads of a block.
pub(super) const MOST_THREADS: usize = 1024;
/// Lanes of a warp.
const WARP: usize = 32;
/// Fewest terms that a lane sums where many elements run side by side; below, joining costs what splitting gains.
const TERMS: usize = 16;
/// The same where few elements are all there is to do.
const TERMS_OF_FEW: usize = 4;
/// The same along a weight's row, which lanes read together.
const TERMS_OF_ROWS: usize = 8;
/// So many elements are few.
const FEW: usize = 8;
/// Lanes that read neighbours of a weight's row: a sector of memory has 8 numbers.
const SECTOR: usize = 8;

/// Neighbours that a lane takes together, so that it reads them at once.
pub(crate) const GROUP: usize = 4;
/// Elements of a thread that are worked on side by side, and most terms of their sums: longer ones have reads enough on the way.
const AT_ONCE: usize = 4;
const SHORT: usize = 8;
/// Most values of a tile.
const MOST_TILE: usize = 8;
/// Fewest tiles of a phase, whose lanes share them and where each is one thread's: with fewer, threads would be idle.
const LEAST_TILES: usize = 64;
const LEAST_TILES_OF_THREADS: usize = 128;
/// Threads that keep a block busy, so that lanes need not help.
const BUSY: usize = 256;

/// Whether lanes share a sum of so many terms in groups of neighbours.
pub(crate) fn in_groups(terms: usize, lanes: usize) -> bool {
    terms.is_multiple_of(GROUP * lanes)
}

/// Chooses the lanes of every phase.
pub(super) fn choose(program: &Program, groups: &mut [Grouped]) {
    for group in groups {
        match group {
            Grouped::Parallel(phase) => match tile(program, phase) {
                Some((var, size, lanes)) => (phase.tile, phase.lanes) = (Some((var, size)), lanes),
                None => {
                    phase.lanes = outside(program, phase);
                    phase.at_once = if longest(program, phase) <= SHORT { AT_ONCE } else { 1 };
                }
            },
            Grouped::Loop { body, .. } => {
                body.iter_mut().for_each(|phase| phase.lanes = inside(program, phase));
                follow(program, body);
            }
        }
    }
}

/// A variable that something summed does not depend on, how many of its values a thread takes together, and the lanes that share
/// them: it is read once for all. Lanes read along a weight's rows, or where threads would be idle; else each thread sums alone.
fn tile(program: &Program, phase: &Parallel) -> Option<(VarId, usize, usize)> {
    let (var, reads_weight) = tiled(program, phase)?;
    let (extent, all, terms) = (program.vars[var].extent, elements(program, phase), longest(program, phase));
    let most = |fits: &dyn Fn(usize) -> bool| doubled(MOST_TILE, |size| extent.is_multiple_of(size) && fits(size));
    let shared = most(&|size| reads_weight && all / size >= LEAST_TILES && terms >= size * GROUP);
    let alone = most(&|size| all / size >= LEAST_TILES_OF_THREADS);
    let along = reads_rows(program, phase);
    let is_busy = all / alone >= BUSY;
    match (shared > 1 && (along || !is_busy), alone > 1 && !along) {
        (true, _) => Some((var, shared, shared)),
        (false, true) => Some((var, alone, 1)),
        (false, false) => None,
    }
}

/// The variable, and whether it is a weight that does not depend on it; where all that is summed is there before the phase.
/// Threads side by side have neighbours of the last one.
fn tiled(program: &Program, phase: &Parallel) -> Option<(VarId, bool)> {
    let made: Vec<TensorId> = phase.items.iter().map(|item| item.assign.tensor).collect();
    let sums: Vec<_> = phase.items.iter().flat_map(|item| sums_of(&item.assign.value)).collect();
    let is_free = |(op, _, body): &(Reduction, _, Expr)| {
        *op == Reduction::Sum && body.loads().iter().all(|tensor| !made.contains(tensor))
    };
    let read = |var: VarId| sums.iter().flat_map(move |(_, _, body)| read_without(body, var));
    let (_, outer) = phase.vars.split_last()?;
    let var = outer.iter().copied().find(|var| read(*var).next().is_some()).filter(|_| sums.iter().all(is_free))?;
    Some((var, read(var).any(|tensor| program.tensors[tensor].role == Role::Param)))
}

/// Tensors of which an element is read that is the same for all values of a variable.
fn read_without(body: &Expr, var: VarId) -> Vec<TensorId> {
    let mut found = Vec::new();
    body.visit(&mut |e| {
        if let Expr::Load(tensor, index) = e {
            let same = index.len() > 1 && index.iter().all(|part| !part.free_vars().contains(&var));
            found.extend(same.then_some(*tensor));
        }
    });
    found
}

/// In a step of a scan: as many as there are threads and terms for. Where weights could stay in registers, the block is kept
/// small: then each thread has many.
fn inside(program: &Program, phase: &Parallel) -> usize {
    let (elements, terms) = (elements(program, phase), longest(program, phase));
    let least = if elements <= FEW { TERMS_OF_FEW } else { TERMS };
    let most = if candidates(program, phase).is_empty() { MOST_THREADS } else { KEEPING_THREADS };
    doubled(WARP, |lanes| terms >= lanes * least && elements * lanes <= most)
}

/// What sums nothing takes the lanes of the phase before it, where that has the same elements: only lanes of one element meet
/// then, and the threads of other warps need not.
fn follow(program: &Program, body: &mut [Parallel]) {
    let extents = |phase: &Parallel| -> Vec<usize> { phase.vars.iter().map(|v| program.vars[*v].extent).collect() };
    for n in 0..body.len() {
        let before = &body[(n + body.len() - 1) % body.len()];
        if longest(program, &body[n]) == 0 && extents(before) == extents(&body[n]) {
            body[n].lanes = before.lanes;
        }
    }
}

/// Outside a scan: long sums of few elements are split as far as there are threads, and a weight's row is read together.
fn outside(program: &Program, phase: &Parallel) -> usize {
    let (elements, terms) = (elements(program, phase), longest(program, phase));
    let least = if elements <= FEW { TERMS_OF_FEW } else { TERMS };
    let employed = doubled(WARP, |lanes| terms >= lanes * least && elements * lanes <= MOST_THREADS);
    match reads_rows(program, phase) {
        true => employed.max(doubled(SECTOR, |lanes| terms >= lanes * TERMS_OF_ROWS)),
        false => employed,
    }
}

fn doubled(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let mut lanes = 1;
    while lanes < most && fits(lanes * 2) {
        lanes *= 2;
    }
    lanes
}

/// Terms of the longest sum of a phase; 0 where there is none.
fn longest(program: &Program, phase: &Parallel) -> usize {
    let sums = phase.items.iter().flat_map(|item| reductions(&item.assign.value));
    let terms = |vars: &[VarId]| vars.iter().map(|v| program.vars[*v].extent).product::<usize>();
    sums.map(|(vars, _)| terms(&vars)).max().unwrap_or(0)
}

/// The reductions of an equation: their variables, and what they join.
fn reductions(value: &Expr) -> Vec<(Vec<VarId>, Expr)> {
    sums_of(value).into_iter().map(|(_, vars, body)| (vars, body)).collect()
}

fn sums_of(value: &Expr) -> Vec<(Reduction, Vec<VarId>, Expr)> {
    let mut found = Vec::new();
    value.visit(&mut |e| {
        if let Expr::Reduce(op, vars, body) = e {
            found.push((*op, vars.clone(), (**body).clone()));
        }
    });
    found
}

/// Whether a sum runs along the rows of a parameter.
fn reads_rows(program: &Program, phase: &Parallel) -> bool {
    let sums = phase.items.iter().flat_map(|item| reductions(&item.assign.value));
    sums.into_iter().any(|(vars, body)| {
        let mut along = false;
        body.visit(&mut |e| {
            if let Expr::Load(tensor, index) = e {
                let last = vars.last().map(|var| Expr::Var(*var));
                along |= program.tensors[*tensor].role == Role::Param && index.last() == last.as_ref();
            }
        });
        along
    })
}

/// Threads of a block that keeps weights in registers: with more, the registers of each would go to other things.
const KEEPING_THREADS: usize = 256;
/// Registers that a thread needs for everything else.
const OTHER_REGISTERS: usize = 48;
/// Registers of a multiprocessor, and most that a thread may have.
const REGISTERS: usize = 65_536;
const MOST_REGISTERS: usize = 255;
/// Most elements of one tensor that a thread keeps: its loop is written out.
const MOST_KEPT: usize = 64;

/// Lets threads keep their part of a parameter through all steps, as long as there are registers: it is read once then. Gives how
/// many a thread has left.
pub(super) fn keep_parameters(program: &Program, groups: &mut [Grouped], threads: u32) -> usize {
    let threads = threads as usize;
    let mut free = (REGISTERS / threads).min(MOST_REGISTERS).saturating_sub(OTHER_REGISTERS);
    for group in groups {
        let Grouped::Loop { body, .. } = group else { continue };
        for phase in body.iter_mut().filter(|phase| elements(program, phase) * phase.lanes <= threads) {
            for (tensor, count) in candidates(program, phase) {
                if count <= free.min(MOST_KEPT) {
                    free -= count;
                    phase.kept.push(tensor);
                }
            }
        }
    }
    free
}

/// Parameters that a phase reads once, each thread the same part at every step; and how many elements that is.
fn candidates(program: &Program, phase: &Parallel) -> Vec<(TensorId, usize)> {
    let sums: Vec<_> = phase.items.iter().flat_map(|item| reductions(&item.assign.value)).collect();
    let mut found: Vec<(TensorId, usize)> = Vec::new();
    for (vars, body) in &sums {
        let [var] = vars.as_slice() else { continue };
        let (terms, is_whole) = (program.vars[*var].extent, program.vars[*var].extent.is_multiple_of(phase.lanes));
        let mut loads = Vec::new();
        body.visit(&mut |e| {
            if let Expr::Load(tensor, index) = e {
                let own = |i: &Expr| matches!(i, Expr::Var(v) if v == var || phase.vars.contains(v));
                let is_param = program.tensors[*tensor].role == Role::Param;
                loads.extend((is_param && is_whole && index.iter().all(own)).then_some(*tensor));
            }
        });
        found.extend(loads.into_iter().map(|tensor| (tensor, terms / phase.lanes)));
    }
    let reads =
        |tensor: TensorId| phase.items.iter().map(|item| count_loads(&item.assign.value, tensor)).sum::<usize>();
    found.retain(|(tensor, _)| reads(*tensor) == 1);
    found
}

/// Fewest elements of a parameter that goes through shared memory into registers: it costs two barriers.
const LEAST_PASSED: usize = 1024;

/// Kept parameters that threads would read across rows, and nobody reads but to keep: copied first, neighbours are read
/// together.
pub(super) fn passing(program: &Program, groups: &[Grouped]) -> Vec<Staged> {
    let mut found = Vec::new();
    for group in groups {
        let Grouped::Loop { body, .. } = group else { continue };
        for phase in body.iter().filter(|phase| reads_rows(program, phase)) {
            for tensor in &phase.kept {
                let loads: usize = program.assigns().map(|(a, _)| count_loads(&a.value, *tensor)).sum();
                let shape = &program.tensors[*tensor].shape;
                if loads == 1 && shape.len() > 1 && shape.iter().product::<usize>() >= LEAST_PASSED {
                    let stride = padded(program, *tensor, true, phase.lanes, true);
                    found.push(Staged { tensor: *tensor, stride, in_scan: true });
                }
            }
        }
    }
    found
}

fn count_loads(value: &Expr, tensor: TensorId) -> usize {
    let mut count = 0;
    value.visit(&mut |e| count += usize::from(matches!(e, Expr::Load(t, _) if *t == tensor)));
    count
}

/// A parameter that the block copies into shared memory at its start.
pub(super) struct Staged {
    pub(super) tensor: TensorId,
    /// Elements from one row to the next: such that lanes and threads of a warp meet different banks.
    pub(super) stride: usize,
    /// Whether a scan reads it, at every step.
    pub(super) in_scan: bool,
}

/// Reads of one element of a parameter that make a copy worth while.
const REUSE: usize = 4;
/// Banks of shared memory.
const BANKS: usize = 32;

/// Parameters that are read again and again, and do not stay in registers: those of a scan first.
pub(super) fn staged(program: &Program, groups: &[Grouped]) -> Vec<Staged> {
    let mut found: Vec<Staged> = Vec::new();
    for group in groups {
        match group {
            Grouped::Parallel(phase) => reused(program, phase, false, &mut found),
            Grouped::Loop { body, .. } => body.iter().for_each(|phase| reused(program, phase, true, &mut found)),
        }
    }
    found.sort_by_key(|staged| !staged.in_scan);
    found
}

fn reused(program: &Program, phase: &Parallel, in_scan: bool, found: &mut Vec<Staged>) {
    for (vars, body) in phase.items.iter().flat_map(|item| reductions(&item.assign.value)) {
        body.visit(&mut |e| {
            let Expr::Load(tensor, index) = e else { return };
            let is_param = program.tensors[*tensor].role == Role::Param && index.len() > 1;
            let is_plain = index.iter().all(|i| matches!(i, Expr::Var(_)));
            if !is_param || !is_plain || phase.kept.contains(tensor) || found.iter().any(|s| s.tensor == *tensor) {
                return;
            }
            let others = phase.vars.iter().filter(|v| !index.contains(&Expr::Var(**v)));
            let times: usize = others.map(|v| program.vars[*v].extent / phase.values(*v)).product();
            if in_scan || times >= REUSE {
                let along = vars.last().is_some_and(|v| index.last() == Some(&Expr::Var(*v)));
                let terms = vars.iter().map(|v| program.vars[*v].extent).product();
                let stride = padded(program, *tensor, along, phase.lanes, in_groups(terms, phase.lanes));
                found.push(Staged { tensor: *tensor, stride, in_scan });
            }
        });
    }
}

/// Threads of a warp read different rows at one column, or neighbours of one row: the rows begin at different banks, and at
/// whole groups where lanes read such.
fn padded(program: &Program, tensor: TensorId, along: bool, lanes: usize, grouped: bool) -> usize {
    let row = program.tensors[tensor].shape.last().copied().unwrap_or(1);
    let bank = |stride: usize| stride % BANKS;
    let fits = |stride: &usize| match (along, grouped) {
        (true, true) => bank(*stride) == GROUP * lanes % BANKS,
        (true, false) => bank(*stride) == lanes % BANKS,
        (false, true) => bank(GROUP * stride) == (BANKS / lanes).max(GROUP) % BANKS,
        (false, false) => bank(*stride) == BANKS / lanes % BANKS,
    };
    (row..row + BANKS).find(fits).filter(|_| along || lanes > 1).unwrap_or(row)
}
