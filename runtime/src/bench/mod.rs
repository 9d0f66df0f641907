//! Measuring launches of a step: alone or together, at other sizes, with data that is in the cache or is not.
//!
//! A [`Part`] is made of launches that are cut out of a set's step. It is data like the set itself, so that whatever runs a
//! set runs it; [`Bench::time`] makes it many times in one graph and times replays of that graph on the device.

use std::collections::BTreeSet;

use unio_interface::{Access, Artefacts, Elem, Kernel, KernelParam, Launch, Program, Role};

use crate::device::{Device, Real, Stopwatch};
use crate::session::{LaunchShape, Result};
use crate::{Phase, Session, SessionError};

mod bytes;
mod part;

pub use part::Part;

/// Bytes that are overwritten between replays, so that nothing of a [`Data::Cold`] part is left in a cache.
const FLUSH: usize = 256 << 20;
/// Bytes over which a cold part rotates.
const ROTATION: u64 = 200 << 20;

/// Microseconds that all replays of a graph may take, about.
const LONGEST: f64 = 500_000.0;

/// Most launches of a graph: its edges are checked pair by pair.
const LAUNCHES: usize = 600;

/// A set with what its buffers hold: parts are measured with numbers as they occur.
pub struct Bench<'a> {
    device: Device,
    artefacts: &'a Artefacts,
    program: &'a Program,
    contents: Vec<Contents>,
}

/// What a buffer holds, in its own type.
enum Contents {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I32(Vec<i32>),
}

/// Whether a launch finds its data in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Data {
    /// The same buffers again and again.
    Hot,
    /// Copies of the buffers in turn, over 200 MB or more or as many as there are steps, none of which is in a cache.
    Cold,
}

/// How often something is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeats {
    /// Times in one graph; fewer of a part that has many launches.
    pub steps: usize,
    /// Replays of the graph; the median counts. Of a graph that takes long there are fewer, but three at least.
    pub replays: usize,
}

impl Repeats {
    /// Replays of a graph that takes so many microseconds.
    fn replays_of(self, us: f64) -> usize {
        let affordable = if us > 0.0 { (LONGEST / us) as usize } else { usize::MAX };
        self.replays.min(affordable.max(3)).max(1)
    }
}

impl<'a> Bench<'a> {
    /// Keeps what the buffers of a session hold now, which should be what they hold in the middle of a run.
    ///
    /// Errors: `artefacts` without a model; a buffer that the run has not filled.
    pub fn new(session: &Session, artefacts: &'a Artefacts) -> Result<Self> {
        let no_model = || SessionError::NoModel { set: artefacts.set.clone() };
        let program = artefacts.program.as_ref().ok_or_else(no_model)?;
        let contents = program.buffers.iter().map(|buffer| contents(session, &buffer.name, buffer.elem));
        Ok(Self { device: session.device().clone(), artefacts, program, contents: contents.collect::<Result<_>>()? })
    }

    /// The launches of a training step for which `keep` holds. What one that is left out waits for, its followers wait for.
    pub fn part(&self, keep: impl Fn(&Launch) -> bool) -> Part {
        let lens: Vec<usize> = self.contents.iter().map(Contents::len).collect();
        Part::cut(self.artefacts, self.program, &lens, keep)
    }

    /// The control plane alone: all producers, and all updates of nothing but scalars.
    pub fn control(&self) -> Part {
        self.part(self.is_control())
    }

    /// A step without its control plane: slots and scalars stay as they are. What that saves is what the control plane costs.
    pub fn without_control(&self) -> Part {
        let is_control = self.is_control();
        self.part(|launch| !is_control(launch))
    }

    fn is_control(&self) -> impl Fn(&Launch) -> bool {
        let kernel = |launch: &Launch| &self.artefacts.kernels[launch.kernel];
        let signals = self.program.train.iter().filter(move |launch| gives_signals(kernel(launch)));
        let producers: BTreeSet<&str> = signals.map(|launch| entry_of(&launch.name)).collect();
        move |launch| producers.contains(entry_of(&launch.name)) || advances_scalars(kernel(launch))
    }

    /// Microseconds of a part on the device: the median over replays of a graph, divided by the steps in it.
    ///
    /// Errors: whatever fails in making or launching it, such as too little memory.
    pub fn time(&self, part: &Part, data: Data, repeats: Repeats) -> Result<f64> {
        let steps = repeats.steps.min(LAUNCHES / part.launches().len().max(1)).max(1);
        let rotation = usize::try_from(ROTATION.div_ceil(part.size().max(1))).unwrap_or(1);
        let copies = match data {
            Data::Hot => 1,
            Data::Cold => rotation.clamp(2, steps.max(2)),
        };
        let repeated = part.repeated(steps, copies);
        let mut session = self.session(&repeated)?;
        let flush = if data == Data::Cold { self.device.alloc(FLUSH)? } else { self.device.alloc(0)? };
        let mut watch = Stopwatch::new(&self.device)?;
        let mut graph = session.graph(Phase::Train)?;
        graph.launch()?;
        let mut times = Vec::new();
        while times.len() < repeats.replays_of(times.first().map_or(0.0, |us| us * steps as f64)) {
            flush.zero()?;
            watch.start()?;
            graph.launch()?;
            times.push(watch.stop()? / steps as f64);
        }
        Ok(median(&mut times))
    }

    /// Microseconds of a part as a step of its own that is taken again and again, in the cache; see [`time_steps`].
    ///
    /// Errors: as for [`Bench::time`].
    pub fn time_steps(&self, part: &Part, stretch: Stretch, repeats: Repeats) -> Result<f64> {
        time_steps(&mut self.session(part)?, Phase::Train, stretch, repeats)
    }

    /// Shape and properties of each launch of a part.
    ///
    /// Errors: as for [`Bench::time`].
    pub fn shapes(&self, part: &Part) -> Result<Vec<LaunchShape>> {
        self.session(part)?.shapes(Phase::Train)
    }

    /// A session of a part, its buffers filled.
    fn session(&self, part: &Part) -> Result<Session> {
        let mut session = Session::new(&self.device, part.artefacts(), Real::F32)?;
        for (name, origin, start, len) in part.fills() {
            match &self.contents[origin] {
                Contents::F32(values) => session.write_named(name, &cycled(values, start, len))?,
                Contents::F64(values) => session.write_named(name, &cycled(values, start, len))?,
                Contents::I32(values) => session.write_named(name, &cycled(values, start, len))?,
            }
        }
        Ok(session)
    }
}

/// The entry that a launch belongs to: `oracle` of `oracle[heads].count`.
pub fn entry_of(launch: &str) -> &str {
    launch.split(['[', '.']).next().unwrap_or(launch)
}

/// Whether a kernel gives slots or observations.
pub fn gives_signals(kernel: &Kernel) -> bool {
    writes(kernel, |role, _| *role == Role::Scalar)
}

/// Whether a kernel advances scalar states and writes nothing else.
fn advances_scalars(kernel: &Kernel) -> bool {
    let scalar = |role: &Role, len: Option<usize>| *role == Role::State && len == Some(1);
    writes(kernel, scalar) && !writes(kernel, |role, len| !scalar(role, len))
}

/// Whether a kernel writes through a parameter of this kind.
fn writes(kernel: &Kernel, is: impl Fn(&Role, Option<usize>) -> bool) -> bool {
    kernel.params.iter().any(|param| match param {
        KernelParam::Buffer { role, len, access, .. } => *access != Access::In && is(role, *len),
        KernelParam::Count { .. } | KernelParam::Number { .. } | KernelParam::Rows { .. } => false,
    })
}

impl Contents {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::I32(values) => values.len(),
        }
    }
}

/// How the steps of a stretch are launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stretch {
    /// Each by a [`Session::run`].
    OneByOne,
    /// All by one [`Session::run_steps`].
    Together,
}

/// Microseconds a step of a whole session, launched as it is set to: the median of so many stretches of so many steps.
///
/// Errors: as for [`Session::run`].
pub fn time_steps(session: &mut Session, phase: Phase, stretch: Stretch, repeats: Repeats) -> Result<f64> {
    let mut watch = Stopwatch::new(session.device())?;
    let mut take = || match stretch {
        Stretch::OneByOne => (0..repeats.steps).try_for_each(|_| session.run(phase)),
        Stretch::Together => session.run_steps(phase, repeats.steps),
    };
    take()?;
    let mut times = Vec::new();
    for _ in 0..repeats.replays.max(1) {
        watch.start()?;
        take()?;
        times.push(watch.stop()? / repeats.steps.max(1) as f64);
    }
    Ok(median(&mut times))
}

fn contents(session: &Session, name: &str, elem: Elem) -> Result<Contents> {
    Ok(match elem {
        Elem::Real | Elem::F32 => Contents::F32(session.read_named(name)?),
        Elem::F64 => Contents::F64(session.read_named(name)?),
        Elem::I32 => Contents::I32(session.read_named(name)?),
    })
}

/// So many elements from `start` on, and from there again where they end.
fn cycled<T: Copy>(values: &[T], start: usize, len: usize) -> Vec<T> {
    values[start.min(values.len())..].iter().cycle().take(len).copied().collect()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
