//! Launches cut out of a step.

use std::collections::{BTreeMap, BTreeSet};

use unio_interface::edges::{direct, earlier};
use unio_interface::{Access, Arg, Artefacts, Buffer, Kernel, KernelParam, Launch, Program, Role};

use super::bytes;

/// Launches of a step as a set of their own: it has their kernels and buffers, and neither slots nor parameters.
#[derive(Debug, Clone)]
pub struct Part {
    artefacts: Artefacts,
    program: Program,
    /// For each buffer, the buffer of the whole set that it stands for, and the element where it begins.
    origins: Vec<(usize, usize)>,
    /// For each buffer, how many rows the blocks of a launch fill, a row a block.
    rows: Vec<usize>,
}

impl Part {
    /// `lens` are the lengths of the set's buffers, also of those that the run fills.
    pub(super) fn cut(
        artefacts: &Artefacts,
        program: &Program,
        lens: &[usize],
        keep: impl Fn(&Launch) -> bool,
    ) -> Self {
        let told = |(b, len): (&Buffer, &usize)| Buffer { len: Some(*len), external: false, kept: false, ..b.clone() };
        let whole = Program { buffers: program.buffers.iter().zip(lens).map(told).collect(), ..program.clone() };
        let made: Vec<bool> = program.train.iter().map(keep).collect();
        let after = direct(&earlier(program.train.iter().map(|l| l.after.as_slice())), &made);
        let kept = program.train.iter().zip(&made).filter(|(_, made)| **made).map(|(launch, _)| launch);
        let launches: Vec<Launch> = kept.zip(after).map(|(launch, after)| Launch { after, ..launch.clone() }).collect();
        let origins: Vec<usize> = touched(&launches).into_iter().collect();
        let buffers = origins.iter().map(|b| whole.buffers[*b].clone());
        let place = |buffer: usize| origins.iter().position(|b| *b == buffer).unwrap_or(0);
        let program = Program {
            buffers: buffers.collect(),
            params: Vec::new(),
            heads: Vec::new(),
            train: launches.iter().map(|launch| rewired(launch, place)).collect(),
            evaluate: Vec::new(),
            stages: Vec::new(),
            ..program.clone()
        };
        let rows = origins.iter().map(|b| rows(artefacts, &whole, *b)).collect();
        let origins = origins.iter().map(|b| (*b, 0)).collect();
        Self { artefacts: bare(artefacts), program, origins, rows }.with_own_kernels()
    }

    /// The same with every launch over `n` elements, or rows, instead of as many as in the step; `None` where the text of a
    /// kernel, or the way its buffers are shared, fixes the size.
    pub fn resized(&self, n: usize) -> Option<Self> {
        let mut part = self.clone();
        let mut lens: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for at in 0..self.program.train.len() {
            self.resize_launch(at, n, &mut part, &mut lens)?;
        }
        for (buffer, (start, len)) in lens {
            part.origins[buffer].1 += start;
            let held = &mut part.program.buffers[buffer];
            held.len = Some(len);
            if let Some(first) = held.shape.first_mut() {
                *first = 0;
            }
        }
        Some(part.with_program())
    }

    /// Errors out of a launch without a count, unless it only joins tables.
    fn resize_launch(
        &self,
        at: usize,
        n: usize,
        part: &mut Self,
        lens: &mut BTreeMap<usize, (usize, usize)>,
    ) -> Option<()> {
        let launch = &self.program.train[at];
        let kernel = &self.artefacts.kernels[launch.kernel];
        let Some(count) = bytes::count(&self.program, launch) else {
            let joins = |p: &KernelParam| !matches!(p, KernelParam::Buffer { role: Role::Input | Role::State, .. });
            return (self.program.train.len() > 1 && kernel.params.iter().all(joins)).then_some(());
        };
        // A buffer that tells the count has just that many; others may have more.
        let tells = launch.args.iter().any(|arg| matches!(arg, Arg::CountOf { .. }));
        for (p, (param, arg)) in kernel.params.iter().zip(&launch.args).enumerate() {
            let KernelParam::Buffer { len, row, role, .. } = param else { continue };
            let Arg::Buffer { buffer, start } = *arg else { continue };
            let Some(row) = row_of(*len, *row, role, count)? else { continue };
            let held = self.program.buffers[buffer].len.unwrap_or(0).saturating_sub(start);
            let needed = if tells || len.is_some() { n * row } else { (n * row).max(held.min(count * row)) };
            // One buffer, one stretch: a part that uses two of it cannot grow both.
            let known = lens.entry(buffer).or_insert((start, needed));
            if *known != (start, needed) {
                return None;
            }
            part.program.train[at].args[p] = Arg::Buffer { buffer, start: 0 };
            if let (true, KernelParam::Buffer { len, .. }) =
                (len.is_some(), &mut part.artefacts.kernels[launch.kernel].params[p])
            {
                *len = Some(n * row);
            }
        }
        let grown = i32::try_from(n).ok()?;
        let args = part.program.train[at].args.iter_mut();
        args.filter(|arg| matches!(arg, Arg::Count(_))).for_each(|arg| *arg = Arg::Count(grown));
        part.program.train[at].grid = kernel.grid.blocks(n);
        for buffer in written(kernel, launch) {
            part.rows[buffer] = kernel.grid.blocks(n) as usize;
        }
        Some(())
    }

    /// So many steps one after another, each on the next of so many copies of all buffers.
    pub fn repeated(&self, steps: usize, copies: usize) -> Self {
        let (buffers, launches) = (self.program.buffers.len(), self.program.train.len());
        let copy = |n: usize| {
            let name = move |b: &Buffer| if n == 0 { b.name.clone() } else { format!("{}~{n}", b.name) };
            self.program.buffers.iter().map(move |b| Buffer { name: name(b), ..b.clone() })
        };
        let last: Vec<usize> =
            (0..launches).filter(|n| !self.program.train.iter().any(|l| l.after.contains(n))).collect();
        let step = |step: usize| {
            let (last, shift) = (&last, buffers * (step % copies.max(1)));
            self.program.train.iter().map(move |launch| {
                let mut launch = rewired(launch, |buffer| buffer + shift);
                launch.name = format!("{}~{step}", launch.name);
                launch.after = match (launch.after.as_slice(), step) {
                    ([], 1..) => last.iter().map(|n| n + (step - 1) * launches).collect(),
                    (after, _) => after.iter().map(|n| n + step * launches).collect(),
                };
                launch
            })
        };
        let program = Program {
            buffers: (0..copies.max(1)).flat_map(copy).collect(),
            train: (0..steps.max(1)).flat_map(step).collect(),
            ..self.program.clone()
        };
        let (origins, rows) = (self.origins.repeat(copies.max(1)), self.rows.repeat(copies.max(1)));
        let artefacts = Artefacts { program: Some(program.clone()), ..self.artefacts.clone() };
        Self { artefacts, program, origins, rows }
    }

    /// The launches.
    pub fn launches(&self) -> &[Launch] {
        &self.program.train
    }

    /// A launch's kernel.
    pub fn kernel(&self, launch: &Launch) -> &Kernel {
        &self.artefacts.kernels[launch.kernel]
    }

    /// Elements, or rows, that the launches cover: the largest count among them; `None` where the text fixes the size.
    pub fn count(&self) -> Option<usize> {
        self.program.train.iter().filter_map(|launch| bytes::count(&self.program, launch)).max()
    }

    /// Bytes that the launches move, if each stretch of memory is read once, and written once, from end to end. Tables between
    /// launches of one entry do not count, and launches that find nothing to do move less.
    pub fn bytes(&self) -> u64 {
        bytes::bytes(&self.artefacts.kernels, &self.program, &self.rows)
    }

    /// Bytes of all buffers.
    pub(super) fn size(&self) -> u64 {
        let of = |b: &Buffer| (b.len.unwrap_or(0) * bytes::size(b.elem)) as u64;
        self.program.buffers.iter().map(of).sum()
    }

    pub(super) fn artefacts(&self) -> &Artefacts {
        &self.artefacts
    }

    /// For each buffer: its name, what it stands for, from which element on, and its length.
    pub(super) fn fills(&self) -> impl Iterator<Item = (&str, usize, usize, usize)> {
        let pairs = self.program.buffers.iter().zip(&self.origins);
        pairs.map(|(b, (origin, start))| (b.name.as_str(), *origin, *start, b.len.unwrap_or(0)))
    }

    /// Leaves out kernels and texts that no launch uses.
    fn with_own_kernels(mut self) -> Self {
        let used: BTreeSet<usize> = self.program.train.iter().map(|launch| launch.kernel).collect();
        let texts: BTreeSet<usize> = used.iter().map(|k| self.artefacts.kernels[*k].source).collect();
        let place = |set: &BTreeSet<usize>, n: usize| set.iter().position(|other| *other == n).unwrap_or(0);
        let kernel = |k: &usize| {
            let kernel = self.artefacts.kernels[*k].clone();
            Kernel { source: place(&texts, kernel.source), ..kernel }
        };
        self.artefacts.kernels = used.iter().map(kernel).collect();
        self.artefacts.sources = texts.iter().map(|t| self.artefacts.sources[*t].clone()).collect();
        self.program.train.iter_mut().for_each(|launch| launch.kernel = place(&used, launch.kernel));
        self.with_program()
    }

    fn with_program(mut self) -> Self {
        self.artefacts.program = Some(self.program.clone());
        self
    }
}

/// Elements of a parameter's buffer for each that is counted; an inner `None` for one that does not grow, an outer one where
/// its size is in the text.
fn row_of(len: Option<usize>, row: usize, role: &Role, count: usize) -> Option<Option<usize>> {
    match (len, role) {
        (_, Role::Scalar | Role::Saved | Role::Table) => Some(None),
        (None, _) => Some(Some(row)),
        (Some(len), Role::Input | Role::Reduced) if len > 0 && len.is_multiple_of(count) => Some(Some(len / count)),
        (Some(_), _) => None,
    }
}

/// A set without what only names things.
fn bare(artefacts: &Artefacts) -> Artefacts {
    Artefacts { slots: Vec::new(), states: Vec::new(), resets: Vec::new(), program: None, ..artefacts.clone() }
}

/// Blocks of the launch that fills a table.
fn rows(artefacts: &Artefacts, program: &Program, buffer: usize) -> usize {
    let blocks = |launch: &Launch| {
        let kernel = &artefacts.kernels[launch.kernel];
        let n = bytes::count(program, launch)?;
        written(kernel, launch).any(|b| b == buffer).then(|| kernel.grid.blocks(n) as usize)
    };
    program.train.iter().filter_map(blocks).max().unwrap_or(1)
}

/// Buffers that a launch writes.
fn written(kernel: &Kernel, launch: &Launch) -> impl Iterator<Item = usize> {
    let pairs = kernel.params.iter().zip(&launch.args);
    pairs.filter_map(|pair| match pair {
        (KernelParam::Buffer { access, .. }, Arg::Buffer { buffer, .. }) if *access != Access::In => Some(*buffer),
        _ => None,
    })
}

fn touched(launches: &[Launch]) -> BTreeSet<usize> {
    let buffer = |arg: &Arg| match *arg {
        Arg::Buffer { buffer, .. } | Arg::CountOf { buffer, .. } | Arg::Rows { buffer, .. } => Some(buffer),
        Arg::Count(_) | Arg::Number(_) => None,
    };
    launches.iter().flat_map(|launch| &launch.args).filter_map(buffer).collect()
}

/// A launch whose buffers have other places.
fn rewired(launch: &Launch, place: impl Fn(usize) -> usize) -> Launch {
    let arg = |arg: &Arg| match *arg {
        Arg::Buffer { buffer, start } => Arg::Buffer { buffer: place(buffer), start },
        Arg::CountOf { buffer, row_len } => Arg::CountOf { buffer: place(buffer), row_len },
        Arg::Rows { buffer, row_len } => Arg::Rows { buffer: place(buffer), row_len },
        ref number @ (Arg::Count(_) | Arg::Number(_)) => number.clone(),
    };
    Launch { args: launch.args.iter().map(arg).collect(), ..launch.clone() }
}
