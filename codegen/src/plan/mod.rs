//! Stage *plan*: which kernels there are, where every value lives, in which order a step runs.

mod ahead;
mod block;
mod deferred;
mod fission;
pub(crate) mod lanes;
mod order;
mod producer;
mod rows;
mod stages;
mod step;
mod updates;

use std::collections::BTreeMap;

use crate::diagnostics::{Diagnostics, Loc, Report};
use crate::equations::Equations;
use crate::math::{Assign, Elem, Program, Role, StatisticKind, TensorId, VarId};
use crate::model::Model;

/// Everything that is to be lowered, and how it is launched.
#[derive(Debug)]
pub struct Plan {
    /// Buffers of the step.
    pub buffers: Vec<Buffer>,
    /// Kernels.
    pub kernels: Vec<KernelPlan>,
    /// Launches of a training step, in order.
    pub train: Vec<Launch>,
    /// Launches of an evaluation, in order.
    pub evaluate: Vec<Launch>,
    /// For each stage: its kernels.
    pub stages: Vec<StageKernels>,
    /// Reset registry.
    pub resets: Vec<Reset>,
}

/// The kernels of a stage.
#[derive(Clone, Debug)]
pub struct StageKernels {
    /// The stage.
    pub name: String,
    /// Its values.
    pub forward: usize,
    /// Its derivatives; `None` where no gradient flows.
    pub adjoint: Option<usize>,
    /// Gradients of its parameters, where the adjoint defers them.
    pub gradients: Option<usize>,
}

/// A device buffer.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Unique name.
    pub name: String,
    /// Extents; a leading 0 is any length.
    pub shape: Vec<usize>,
    /// Element type.
    pub elem: unio_interface::Elem,
    /// Value at the start.
    pub fill: f64,
    /// Whether the run fills it.
    pub external: bool,
    /// Whether a checkpoint holds it.
    pub kept: bool,
}

/// An entry of the reset registry.
#[derive(Debug)]
pub struct Reset {
    /// Slot family, state or buffer.
    pub name: String,
    /// When.
    pub when: unio_interface::When,
    /// Ranges that return to their start together.
    pub parts: Vec<unio_interface::ResetPart>,
}

/// A kernel before it is lowered.
#[derive(Debug)]
pub struct KernelPlan {
    /// Symbol.
    pub symbol: String,
    /// Entry that it comes from; kernels of one entry share a file.
    pub entry: String,
    /// What it does.
    pub doc: String,
    /// Place of the entry.
    pub loc: Loc,
    /// Threads a block.
    pub threads: u32,
    /// Pointer parameters.
    pub params: Vec<Param>,
    /// What it computes and how.
    pub body: Body,
}

/// A pointer parameter of a kernel.
#[derive(Clone, Debug)]
pub struct Param {
    /// Name in the text.
    pub name: String,
    /// Element type in memory.
    pub elem: unio_interface::Elem,
    /// Use.
    pub access: unio_interface::Access,
    /// Elements of one sample; `None` for any number.
    pub len: Option<usize>,
    /// Elements from one sample to the next; `None` where all samples share it.
    pub stride: Option<usize>,
    /// What it is to the equations.
    pub role: unio_interface::Role,
    /// Elements of a row, of a table with any number of rows.
    pub row_len: Option<usize>,
    /// Elements of one that is counted, of a buffer that is walked over; of a part of the union, of a table between launches.
    pub row: usize,
}

/// The kinds of kernel.
#[derive(Debug)]
pub enum Body {
    /// One sample a block.
    Block(BlockBody),
    /// Element by element.
    Update(UpdateBody),
    /// Statistics of buffers, smoothed into slots.
    Producer(ProducerBody),
    /// Gradients of a stage's parameters, each one sum over the batch.
    Gradients(GradientsBody),
    /// Sum over the batch.
    ReduceAxis0 {
        /// Samples.
        batch: usize,
        /// From which column of the scratch on the sums lie how far behind it among the gradients.
        shifts: Vec<(usize, usize)>,
    },
}

/// A kernel of deferred gradients: each element is one sum over the batch and whatever else its terms are summed over.
#[derive(Debug)]
pub struct GradientsBody {
    /// One assignment a parameter, each a sum of sums; per-sample tensors have the batch as their leading index.
    pub program: Program,
    /// Parameter of each tensor.
    pub params: BTreeMap<TensorId, usize>,
}

/// A block-per-batch kernel: phases between barriers.
#[derive(Debug)]
pub struct BlockBody {
    /// Samples.
    pub batch: usize,
    /// Samples that a block takes at once; they are the leading index of the program then.
    pub rows: usize,
    /// Whether one block takes them all, one after the other.
    pub single: bool,
    /// The program.
    pub program: Program,
    /// Where tensors live.
    pub homes: BTreeMap<TensorId, Home>,
    /// What happens, in order.
    pub phases: Vec<Phase>,
    /// Real elements of shared memory.
    pub shared_reals: usize,
    /// Integers and truth values of shared memory.
    pub shared_ints: usize,
}

/// Where a tensor lives; a value that only its own phase reads stays in a register.
#[derive(Clone, Debug, Default)]
pub struct Home {
    /// First element in shared memory.
    pub shared: Option<usize>,
    /// Whether shared memory holds one step only.
    pub one_step: bool,
    /// Index in the kernel's parameters.
    pub global: Option<usize>,
    /// Of a parameter that the block copies into shared memory at its start: elements from one row to the next.
    pub staged: Option<usize>,
    /// Where it is copied there for registers only, the turn in which that is done: others take its place then.
    pub passes: Option<usize>,
}

/// A phase of a block kernel.
#[derive(Debug)]
pub enum Phase {
    /// All threads meet.
    Barrier,
    /// The threads of each warp meet.
    WarpBarrier,
    /// Kept parameters go through shared memory into registers.
    Pass,
    /// Copies of parameters into shared memory begin.
    Copy,
    /// They are waited for.
    Copied,
    /// Each thread takes elements of an index space.
    Parallel(Parallel),
    /// Steps of the scan.
    Loop {
        /// The step.
        var: VarId,
        /// From the last to the first.
        reversed: bool,
        /// What a step does.
        body: Vec<Phase>,
    },
}

/// Assignments over one index space, element by element.
#[derive(Clone, Debug)]
pub struct Parallel {
    /// The space, outermost first; the scan's own variable is not among them.
    pub vars: Vec<VarId>,
    /// What is assigned, in order.
    pub items: Vec<Item>,
    /// Threads that share each element: lanes of one warp, which split its sums between them. A power of 2.
    pub lanes: usize,
    /// Elements of a thread that are worked on side by side, so that their reads are on the way together.
    pub at_once: usize,
    /// A variable of which a thread takes so many values together: what is read for one serves all. Lanes, where there are any,
    /// are as many: each sums its part for all the values and finishes one.
    pub tile: Option<(VarId, usize)>,
    /// Parameters of which each thread keeps its own part in registers through all steps of the scan around.
    pub kept: Vec<TensorId>,
    /// Tensors in memory of which each thread reads its own element a step ahead; where that is the same at all steps, once.
    pub ahead: Vec<TensorId>,
}

impl Parallel {
    /// Values of a variable that a thread takes together.
    pub fn values(&self, var: VarId) -> usize {
        self.tile.filter(|(tiled, _)| *tiled == var).map_or(1, |(_, size)| size)
    }
}

/// An assignment of a phase.
#[derive(Clone, Debug)]
pub struct Item {
    /// The assignment.
    pub assign: Assign,
    /// Whether it is a carry's value for the next step, or its start.
    pub carry: Carry,
}

/// What an assignment is to a carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// Nothing.
    None,
    /// Its value before the first step.
    Start,
    /// Its value for the next step.
    Next,
}

/// An element-wise kernel.
#[derive(Debug)]
pub struct UpdateBody {
    /// The program.
    pub program: Program,
    /// Elements, if the spec fixes them.
    pub len: Option<usize>,
    /// Variable over the elements; `None` for a scalar update.
    pub element: Option<VarId>,
    /// Parameter of each tensor.
    pub params: BTreeMap<TensorId, usize>,
    /// Parameter of each scalar read.
    pub scalars: Vec<usize>,
    /// Conditions whose elements are counted, and the parameter for the blocks' counts.
    pub counters: Vec<(TensorId, usize)>,
}

/// Layout of the tables between the steps of a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Sums and maxima.
    pub sums: usize,
    /// Quantiles.
    pub quantiles: usize,
}

impl Table {
    /// Rows that a part has room for. The prelude's `UNIO_ROWS` says the same.
    pub const ROWS: usize = 512;

    /// Whether a thread keeps so much that only smaller blocks, with fewer elements at a time, leave room for several.
    pub fn keeps_much(&self) -> bool {
        self.quantiles > 1 || self.sums > 8
    }

    /// Most blocks of the launch that fills a part's rows: what a large card of 132 multiprocessors has room for, since each row has to
    /// be joined.
    pub fn rows(&self) -> usize {
        if self.keeps_much() { 3 * 132 } else { Self::ROWS }
    }

    /// The same where a rank is looked for anew: each block joins the rows of all. The prelude's `UNIO_REFINED_ROWS` says the same.
    pub const REFINED_ROWS: usize = 128;
    /// Elements that a thread reads before it counts them.
    pub const UNROLL: usize = 8;

    /// The same where many elements are read.
    pub fn unroll(&self) -> usize {
        if self.keeps_much() { Self::UNROLL / 2 } else { Self::UNROLL }
    }

    /// Elements of a part for each block of its launch. The prelude's `UNIO_ROW_ELEMENTS` says the same.
    pub const PER_BLOCK: u32 = 1024;
    /// Bins of a level of the quantile search: the float's exponent, then the top bits of its mantissa. One a thread.
    pub const BINS: usize = 256;
    /// Bins of both levels about the last answer that the first read counts. The prelude's `UNIO_WINDOW` says the same.
    pub const WINDOW: usize = 128;
    /// Places of a warp's list of values that wait to be counted: fewer than one a lane, and those of one turn.
    pub fn list(&self) -> usize {
        32 + 32 * self.unroll()
    }
    /// Integers in front of a row: elements of the part, rows in the part, and two for alignment.
    pub const HEAD: usize = 4;

    /// The layout that a producer's statistics need.
    pub fn of(program: &Program) -> Self {
        let quantiles = program.statistics.iter().filter(|s| matches!(s.kind, StatisticKind::Quantile(_))).count();
        Self { sums: program.statistics.len() - quantiles, quantiles }
    }

    /// Integers that a quantile keeps from step to step and from kernel to kernel: its window's first bin, whether the rank
    /// lay in it, the bin of the rank, what lies below and in that bin, what is finite, and two for alignment.
    pub const BRACKET: usize = 8;

    /// Integers of a row: for each quantile what is not finite, what lies above its window, and the window's counts.
    pub fn width(&self) -> usize {
        Self::HEAD + self.quantiles * (2 + Self::WINDOW)
    }

    /// Place of what is not finite in a row; what lies above comes after.
    pub fn pair(&self, quantile: usize) -> usize {
        Self::HEAD + 2 * quantile
    }

    /// First of the window's counts in a row.
    pub fn column(&self, quantile: usize) -> usize {
        Self::HEAD + 2 * self.quantiles + quantile * Self::WINDOW
    }

    /// Integers of a row of counts by exponent, or by mantissa.
    pub fn refined_width(&self) -> usize {
        self.quantiles * Self::BINS
    }
}

/// What a kernel of a producer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProducerStep {
    /// Everything, in one block.
    Whole,
    /// The same, with quantiles by linear bins: the first design, for comparison.
    Linear,
    /// Sums and counts in a window around the last answer, a row a block.
    Count,
    /// Whether each rank lies in its window.
    Settle,
    /// Counts by exponent, where one does not.
    Exponents,
    /// Counts by mantissa under the exponent that holds the rank.
    Refine,
    /// Joins the rows, gives the signals, smooths the slots.
    Finish,
}

/// A producer's kernel.
#[derive(Debug)]
pub struct ProducerBody {
    /// It is launched for more elements than the first and at most as many as the second; `None`: for any number.
    pub range: Option<(usize, usize)>,
    /// Which of its steps.
    pub step: ProducerStep,
    /// Statistics and signals.
    pub program: Program,
    /// Parameter of each tensor that is read.
    pub params: BTreeMap<TensorId, usize>,
    /// Parameter of each scalar read.
    pub scalars: Vec<usize>,
    /// The signals.
    pub signals: Vec<SignalPlan>,
    /// Name of the smoothing law.
    pub law: String,
    /// The smoothing law.
    pub smoothing: Program,
    /// Its states beside the mean, in order.
    pub states: Vec<String>,
}

/// A signal's places among the parameters of its kernel.
#[derive(Debug)]
pub struct SignalPlan {
    /// Tensor of the observation.
    pub tensor: TensorId,
    /// Observation.
    pub observed: usize,
    /// Observations that were not finite.
    pub skipped: usize,
    /// Slot and smoothing states, of a signal that has a slot.
    pub smoothed: Option<(usize, usize)>,
}

/// How many elements a launch covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The kernel does not ask.
    None,
    /// So many.
    Fixed(usize),
    /// As many as a buffer holds rows of so many elements.
    Of(usize, usize),
}

/// A launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Name in plans and logs.
    pub name: String,
    /// Kernel.
    pub kernel: usize,
    /// Elements to cover.
    pub count: Count,
    /// Buffer and first element of each pointer parameter.
    pub args: Vec<(usize, usize)>,
    /// Parts of the union that a finishing kernel joins.
    pub parts: Option<usize>,
    /// Launches of the list that come before.
    pub after: Vec<usize>,
}

/// Plans kernels, storage and order.
///
/// # Errors
/// Cycles among reads of this step's values, and what does not fit the limits.
pub fn plan(model: &Model, equations: &Equations) -> Result<Plan, Diagnostics> {
    let mut report = Report::default();
    let plan = step::plan(model, equations, &mut report);
    report.finish(plan, &model.files)
}

/// Element type in memory of a tensor of a block.
fn memory_elem(elem: Elem) -> unio_interface::Elem {
    match elem {
        Elem::Real => unio_interface::Elem::Real,
        Elem::Int | Elem::Bool => unio_interface::Elem::I32,
    }
}

/// What a tensor's role is called outside.
fn outer_role(program: &Program, tensor: TensorId) -> unio_interface::Role {
    use unio_interface::Role as Outer;
    let name = |of: TensorId| program.tensors[of].name.clone();
    match program.tensors[tensor].role {
        Role::Input => Outer::Input,
        Role::Table => Outer::Table,
        Role::Param => Outer::Param,
        Role::Output => Outer::Output,
        Role::CotangentIn { of, .. } => Outer::CotangentOf(name(of)),
        Role::CotangentOut { of } => Outer::CotangentTo(name(of)),
        Role::ParamGradient { of } => Outer::ParamGradient(name(of)),
        Role::State | Role::Next { .. } => Outer::State,
        Role::Local | Role::Carry { .. } | Role::Saved | Role::Statistic | Role::BlockCount => Outer::Saved,
    }
}
