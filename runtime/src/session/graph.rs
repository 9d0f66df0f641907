//! A step, or several, as one graph of launches, built from the plan's edges and, between steps, from the memory that they touch.

use std::collections::BTreeSet;
use std::sync::Arc;

use unio_interface::edges::{direct, earlier};
use unio_interface::{Access, Arg, KernelParam, Launch, Role};

use super::edges::{self, Touch};
use super::error::{Result, SessionError};
use super::launch::{Place, Prepared};
use super::{Argument, ISV, Phase, STATE, Session};
use crate::device::{Builder, Fault, Graph, Held, LaunchConfig};

/// A graph of a phase's steps. It holds every memory that its launches point to.
pub(super) struct Built {
    phase: Phase,
    graph: Graph,
    /// Of the launches, in the plan's order, step by step.
    names: Vec<String>,
}

/// For each launch that is made, by place among them, those that it waits for.
struct Edges {
    /// Of a graph's first step.
    first: Vec<Vec<usize>>,
    /// Of a later step; places are counted from the first launch of the step before it.
    later: Vec<Vec<usize>>,
}

/// Steps, ready to be launched by one call. It borrows the session, so that nothing that it points to can be replaced
/// while it is there; the next [`Session::graph`] builds anew only where something was.
///
/// Numbers that a launch takes are those of the plan and the lengths of buffers. What varies from step to step lies in
/// slots and states, which are read anew by every launch: artefacts with any other scalar are refused when the session is
/// made.
pub struct StepGraph<'s> {
    built: &'s mut Built,
}

impl Session {
    /// The graph of a step, built when it is first asked for, and again when a buffer has changed its length. Building runs
    /// nothing and changes no buffer.
    ///
    /// Errors: buffers that the run has not filled; a launch that the device refuses; a kernel that is not made for this
    /// session's type of real; launches that touch the same memory without an edge between them.
    pub fn graph(&mut self, phase: Phase) -> Result<StepGraph<'_>> {
        self.graph_of(phase, 1)
    }

    /// The graph of so many steps. A launch waits for those of the step before that touch the same memory, and for no
    /// others: what only later steps need, such as a bound that is measured after the optimizer, is computed beside the
    /// next step's forward part. The bits are those of one step after another. The graph of each number that is asked for is
    /// kept, until a buffer changes its length.
    ///
    /// Errors: as for [`Session::graph`].
    pub fn graph_of(&mut self, phase: Phase, steps: usize) -> Result<StepGraph<'_>> {
        let built = match self.graphs.remove(&(phase, steps)) {
            Some(built) => built,
            None => self.build(phase, steps)?,
        };
        Ok(StepGraph { built: self.graphs.entry((phase, steps)).or_insert(built) })
    }

    fn build(&self, phase: Phase, steps: usize) -> Result<Built> {
        let sequence = self.sequence(phase);
        self.bound(&sequence.external)?;
        let shapes = sequence.launches.iter().map(|l| self.shape(l)).collect::<Result<Vec<_>>>()?;
        let edges = self.edges(self.launches(phase), &shapes, steps)?;
        let mut builder = Builder::new(&self.device);
        let mut names = Vec::new();
        for step in 0..steps {
            let shaped = sequence.launches.iter().zip(&shapes);
            let made = shaped.filter_map(|(launch, shape)| Some((launch, shape.as_ref()?)));
            let mut after = edges.of(step).into_iter();
            for ((launch, shape), after) in made.zip(after.by_ref()) {
                self.add(&mut builder, launch, shape, &after)?;
                names.push(launch.name.clone());
            }
            if let (Some(mirroring), Some(after)) = (&self.mirroring, after.next()) {
                mirroring.add_to(&mut builder, &after)?;
                names.push(mirroring.name().into());
            }
        }
        let graph = builder.finish().map_err(|fault| named(fault, phase, &names))?;
        Ok(Built { phase, graph, names })
    }

    /// What each launch that is made waits for, and last the one that writes the mirror.
    ///
    /// Errors: [`SessionError::Unordered`].
    fn edges(&self, launches: &[Launch], shapes: &[Option<LaunchConfig>], steps: usize) -> Result<Edges> {
        let mut made: Vec<bool> = shapes.iter().map(Option::is_some).collect();
        let touches = launches.iter().zip(&made);
        let touches = touches.map(|(launch, made)| if *made { self.touches(launch, launches) } else { vec![] });
        let mut touches: Vec<Vec<Touch>> = touches.collect();
        let mut after: Vec<Vec<usize>> = launches.iter().map(|launch| launch.after.clone()).collect();
        self.check_order(launches, &after, &touches)?;
        if self.mirroring.is_some() {
            after.push((0..launches.len()).collect());
            touches.push(self.mirrored());
            made.push(true);
        }
        Ok(if steps > 1 { Edges::of_several(&after, &touches, &made) } else { Edges::of_one(&after, &made) })
    }

    fn add(&self, builder: &mut Builder, launch: &Prepared, shape: &LaunchConfig, after: &[usize]) -> Result<()> {
        let held = |place: &Place| {
            Ok(match self.argument(*place)? {
                Argument::Memory(memory, offset) => Held::Buffer(Arc::clone(memory), offset),
                Argument::Number(n) => Held::Number(n),
            })
        };
        let args = launch.places.iter().map(held).collect::<Result<Vec<_>>>()?;
        let kernel = &self.kernels[launch.kernel];
        // SAFETY: as for an eager launch; the graph holds the memories, whose lengths never change, and `check_order` saw
        // that launches which meet in memory are ordered.
        let added = unsafe { builder.add(kernel, shape, args, after) };
        added.map_err(|source| SessionError::Launch { launch: launch.name.clone(), source })
    }

    /// Errors: [`SessionError::Unordered`].
    fn check_order(&self, launches: &[Launch], after: &[Vec<usize>], touches: &[Vec<Touch>]) -> Result<()> {
        let earlier = earlier(after.iter().map(Vec::as_slice));
        let Some((first, second, buffer)) = edges::unordered(&earlier, touches) else {
            return Ok(());
        };
        Err(SessionError::Unordered {
            set: self.artefacts.set.clone(),
            first: launches[first].name.clone(),
            second: launches[second].name.clone(),
            buffer: self.program.buffers[buffer].name.clone(),
        })
    }

    /// What a launch touches, as far as its parameters say.
    fn touches(&self, launch: &Launch, all: &[Launch]) -> Vec<Touch> {
        let count = launch.args.iter().find_map(|arg| match *arg {
            Arg::Count(n) => usize::try_from(n).ok().filter(|n| *n > 0),
            Arg::CountOf { buffer, row_len: 1 } => self.len(buffer),
            Arg::CountOf { .. } | Arg::Buffer { .. } | Arg::Number(_) | Arg::Rows { .. } => None,
        });
        let pairs = self.artefacts.kernels[launch.kernel].params.iter().zip(&launch.args);
        let touch = |(param, arg): (&KernelParam, &Arg)| {
            let (KernelParam::Buffer { access, len, role, .. }, Arg::Buffer { buffer, start }) = (param, arg) else {
                return None;
            };
            let writes = *access != Access::In;
            // Of others a launch may read whole rows for each that is counted, and writes its own part.
            let by_element = matches!(role, Role::State | Role::Reduced | Role::Output);
            let len = len.or(count.filter(|_| by_element)).map(|len| self.columns(role, *buffer, len));
            let part = || next_start(all, *buffer, *start).filter(|_| writes);
            let whole = || self.len(*buffer).unwrap_or(0);
            let end = len.map(|len| start.saturating_add(len)).or_else(part).unwrap_or_else(whole);
            Some(Touch { buffer: *buffer, elements: *start..end, writes })
        };
        pairs.filter_map(touch).collect()
    }

    /// What the launch that writes the mirror touches: it reads slots and states, and writes what no other launch knows.
    fn mirrored(&self) -> Vec<Touch> {
        let read = [ISV, STATE].into_iter().filter_map(|name| self.index_of(name));
        let read = read.map(|buffer| Touch { buffer, elements: 0..self.len(buffer).unwrap_or(0), writes: false });
        read.chain([Touch { buffer: usize::MAX, elements: 0..1, writes: true }]).collect()
    }

    /// A block writes its own columns of every row of the gradient scratch; those of one row stand for all.
    fn columns(&self, role: &Role, buffer: usize, len: usize) -> usize {
        match (role, self.program.buffers[buffer].shape.last()) {
            (Role::ParamGradient(_), Some(&row)) if row > 0 && len > 0 => (len - 1) % row + 1,
            _ => len,
        }
    }

    fn launches(&self, phase: Phase) -> &[Launch] {
        match phase {
            Phase::Train => &self.program.train,
            Phase::Evaluate => &self.program.evaluate,
        }
    }
}

impl Edges {
    /// `after` is what launches of one step wait for.
    fn of_one(after: &[Vec<usize>], made: &[bool]) -> Self {
        Self { first: direct(&earlier(after.iter().map(Vec::as_slice)), made), later: Vec::new() }
    }

    /// Between steps, those wait that touch the same memory.
    fn of_several(after: &[Vec<usize>], touches: &[Vec<Touch>], made: &[bool]) -> Self {
        let before = edges::meeting(touches);
        // Who meets over more than one step waits through the steps between, where the same launches are made.
        debug_assert_eq!(edges::unordered(&in_a_row(after, &before, 3), &[touches; 3].concat()), None);
        // A way from a step to the next leads through those two alone: of more steps each looks like the second.
        let mut first = direct(&in_a_row(after, &before, 2), &made.repeat(2));
        let later = first.split_off(first.len() / 2);
        Self { first, later }
    }

    /// The same in the places of a whole graph.
    fn of(&self, step: usize) -> Vec<Vec<usize>> {
        let Some(before) = step.checked_sub(1) else { return self.first.clone() };
        let shift = before * self.first.len();
        self.later.iter().map(|waits| waits.iter().map(|n| n + shift).collect()).collect()
    }
}

impl StepGraph<'_> {
    /// Makes all launches once. Waits for nothing; on CUDA a fault may show only at the next read.
    ///
    /// Errors: the device refuses; on the emulator also whatever fails in a launch, by name.
    pub fn launch(&mut self) -> Result<()> {
        let Built { phase, graph, names } = &mut *self.built;
        graph.launch().map_err(|fault| named(fault, *phase, names))
    }

    /// Launches the graph so many times, one after another.
    ///
    /// Errors: as for [`StepGraph::launch`], which is not called again after one.
    pub fn replay(&mut self, times: usize) -> Result<()> {
        (0..times).try_for_each(|_| self.launch())
    }

    /// The launches that are made, by name, step by step; those of no elements are left out.
    pub fn launches(&self) -> &[String] {
        &self.built.names
    }

    /// For each of [`StepGraph::launches`], the places of those that it waits for; what others imply is left out.
    pub fn edges(&self) -> Vec<Vec<usize>> {
        self.built.graph.after().map(<[usize]>::to_vec).collect()
    }
}

/// Where the next part of a buffer begins, of those that launches are given.
fn next_start(launches: &[Launch], buffer: usize, start: usize) -> Option<usize> {
    let starts = launches.iter().flat_map(|launch| &launch.args).filter_map(|arg| match *arg {
        Arg::Buffer { buffer: other, start: at } if other == buffer && at > start => Some(at),
        _ => None,
    });
    starts.min()
}

/// All that each launch waits for in so many steps; `before` are those of the step before.
fn in_a_row(after: &[Vec<usize>], before: &[Vec<usize>], steps: usize) -> Vec<BTreeSet<usize>> {
    let launches = after.len();
    let waits = |step: usize, n: usize| -> Vec<usize> {
        let own = after[n].iter().map(|earlier| earlier + step * launches);
        let last = before[n].iter().filter(|_| step > 0).map(|earlier| earlier + (step - 1) * launches);
        last.chain(own).collect()
    };
    let all: Vec<Vec<usize>> =
        (0..steps).flat_map(|step| (0..launches).map(move |n| (step, n))).map(|(step, n)| waits(step, n)).collect();
    earlier(all.iter().map(Vec::as_slice))
}

fn named(Fault { node, source }: Fault, phase: Phase, names: &[String]) -> SessionError {
    match node {
        Some(node) => SessionError::Launch { launch: names[node].clone(), source },
        None => SessionError::Graph { phase: words(phase), source },
    }
}

fn words(phase: Phase) -> &'static str {
    match phase {
        Phase::Train => "training",
        Phase::Evaluate => "evaluation",
    }
}
