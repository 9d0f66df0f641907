//! Launches, prepared once.

use unio_interface::{Arg, Artefacts, Grid, KernelParam, Launch, Program, Role};

use super::check;
use super::convert::Stored;
use super::error::{Result, SessionError};
use crate::device::{LaunchConfig, Real};

/// The launches of a phase, in order.
pub(super) struct Sequence {
    pub(super) launches: Vec<Prepared>,
    /// Buffers that the run fills and a launch reads.
    pub(super) external: Vec<usize>,
}

/// A launch; only the addresses are missing.
pub(super) struct Prepared {
    pub(super) name: String,
    pub(super) kernel: usize,
    pub(super) config: LaunchConfig,
    pub(super) places: Vec<Place>,
    /// What the launch walks over.
    pub(super) walked: Vec<Walked>,
    /// Buffer and row length that tell the number of elements, where the run does, and the kernel's grid.
    pub(super) counted_by: Option<(usize, usize, Grid)>,
    /// The number of elements, or rows, where the plan does.
    pub(super) count: Option<usize>,
    wrong_real: Option<WrongReal>,
}

/// A buffer of which a launch takes as many rows as it counts.
#[derive(Clone, Copy)]
pub(super) struct Walked {
    pub(super) buffer: usize,
    /// First element.
    pub(super) start: usize,
    /// Elements of a row.
    pub(super) row: usize,
}

/// Where an argument comes from.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// A buffer from a byte on.
    Buffer { buffer: usize, offset: usize },
    /// A number of elements.
    Count(i32),
    /// A number that the plan fixes.
    Number(i32),
    /// The rows of a buffer, which the run tells.
    Rows { buffer: usize, row_len: usize },
}

/// A buffer that a kernel reads as another type of real than this session stores.
struct WrongReal {
    buffer: String,
    asked: &'static str,
    stored: &'static str,
}

impl Sequence {
    pub(super) fn new(artefacts: &Artefacts, program: &Program, launches: &[Launch], real: Real) -> Self {
        let prepare = |launch| Prepared::new(artefacts, program, launch, real);
        let launches: Vec<Prepared> = launches.iter().map(prepare).collect();
        let runs = launches.iter().filter(|launch| launch.config.grid > 0 || launch.counted_by.is_some());
        let mut external: Vec<usize> = runs.flat_map(Prepared::buffers).collect();
        external.retain(|buffer| program.buffers[*buffer].external);
        external.sort_unstable();
        external.dedup();
        Self { launches, external }
    }

    pub(super) fn of_kernel(&self, kernel: usize) -> Option<&Prepared> {
        self.launches.iter().find(|launch| launch.kernel == kernel)
    }
}

impl Prepared {
    fn new(artefacts: &Artefacts, program: &Program, launch: &Launch, real: Real) -> Self {
        let kernel = &artefacts.kernels[launch.kernel];
        let place = |arg: &Arg| match *arg {
            Arg::Count(n) => Place::Count(n),
            Arg::Number(n) => Place::Number(n),
            Arg::Rows { buffer, row_len } | Arg::CountOf { buffer, row_len } => Place::Rows { buffer, row_len },
            Arg::Buffer { buffer, start } => {
                let size = Stored::of(program.buffers[buffer].elem, real).size();
                Place::Buffer { buffer, offset: start.saturating_mul(size) }
            }
        };
        let shared = kernel.shared.total(if real == Real::F64 { 8 } else { 4 });
        Self {
            name: launch.name.clone(),
            kernel: launch.kernel,
            config: LaunchConfig::new(launch.grid, kernel.threads).shared(shared),
            places: launch.args.iter().map(place).collect(),
            walked: walked(&kernel.params, launch),
            counted_by: launch.args.iter().find_map(|arg| match *arg {
                Arg::CountOf { buffer, row_len } => Some((buffer, row_len, kernel.grid)),
                _ => None,
            }),
            count: launch.args.iter().find_map(|arg| match *arg {
                Arg::Count(n) => usize::try_from(n).ok(),
                _ => None,
            }),
            wrong_real: wrong_real(artefacts, program, launch, real),
        }
    }

    pub(super) fn buffers(&self) -> impl Iterator<Item = usize> + '_ {
        self.places.iter().filter_map(|place| match place {
            Place::Buffer { buffer, .. } => Some(*buffer),
            Place::Count(_) | Place::Number(_) | Place::Rows { .. } => None,
        })
    }

    /// Kernels outside differentiable blocks exist in f32 only.
    pub(super) fn fits_real(&self) -> Result<()> {
        let Some(wrong) = &self.wrong_real else {
            return Ok(());
        };
        Err(SessionError::WrongReal {
            launch: self.name.clone(),
            buffer: wrong.buffer.clone(),
            asked: wrong.asked,
            stored: wrong.stored,
        })
    }
}

/// A kernel with a count walks over every buffer of which it knows no length; tables tell their rows themselves, and those
/// between launches have rows of their own.
fn walked(params: &[KernelParam], launch: &Launch) -> Vec<Walked> {
    let walks = |role: &Role| !matches!(role, Role::Table | Role::Saved);
    let walked = params.iter().zip(&launch.args).filter_map(|pair| match pair {
        (KernelParam::Buffer { len: None, row, role, .. }, Arg::Buffer { buffer, start }) if walks(role) => {
            Some(Walked { buffer: *buffer, start: *start, row: (*row).max(1) })
        }
        _ => None,
    });
    walked.collect()
}

/// Elements that the launches of a program need of each buffer.
pub(super) fn least(artefacts: &Artefacts, program: &Program) -> Vec<usize> {
    let mut least = vec![0; program.buffers.len()];
    for launch in program.train.iter().chain(&program.evaluate) {
        let kernel = &artefacts.kernels[launch.kernel];
        for (param, arg) in kernel.params.iter().zip(&launch.args) {
            match *arg {
                Arg::Buffer { buffer, start } => {
                    let end = start.saturating_add(check::least(launch, param));
                    least[buffer] = end.max(least[buffer]);
                }
                // A kernel takes every index back into the table, which must therefore have a row.
                Arg::Rows { buffer, row_len } => least[buffer] = row_len.max(least[buffer]),
                Arg::Count(_) | Arg::CountOf { .. } | Arg::Number(_) => {}
            }
        }
    }
    least
}

fn wrong_real(artefacts: &Artefacts, program: &Program, launch: &Launch, real: Real) -> Option<WrongReal> {
    let params = &artefacts.kernels[launch.kernel].params;
    params.iter().zip(&launch.args).find_map(|(param, arg)| {
        let (KernelParam::Buffer { elem, .. }, Arg::Buffer { buffer, .. }) = (param, arg) else {
            return None;
        };
        let buffer = &program.buffers[*buffer];
        let (asked, stored) = (Stored::of(*elem, real), Stored::of(buffer.elem, real));
        // Of one size is enough: integers lie in words of the f32 state buffer.
        (asked.size() != stored.size()).then(|| WrongReal {
            buffer: buffer.name.clone(),
            asked: asked.name(),
            stored: stored.name(),
        })
    })
}
