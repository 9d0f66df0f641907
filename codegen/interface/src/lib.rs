//! What the generator hands over: kernels, buffers, slots, states, resets and the launches of a step.
//!
//! `unio-codegen` writes an [`Artefacts`], `unio::specs!()` expands it into typed Rust, and the runtime executes its
//! [`Program`]. The types hold data only: all decisions were taken by the generator.

pub mod edges;
pub mod names;

use serde::{Deserialize, Serialize};

/// Everything that one spec set gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Artefacts {
    /// Name of the set.
    pub set: String,
    /// Hash over names, indices, totals and the parameter layout, in hexadecimal.
    pub fingerprint: String,
    /// Kernel texts by file.
    pub sources: Vec<Source>,
    /// Kernels.
    pub kernels: Vec<Kernel>,
    /// Slots of the ISV.
    pub slots: Vec<Slot>,
    /// Number of slots, reserved ones included.
    pub isv_len: usize,
    /// Scalar states.
    pub states: Vec<State>,
    /// Reset registry.
    pub resets: Vec<Reset>,
    /// The model's buffers and launches.
    pub program: Option<Program>,
}

/// A file of kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Path below `kernels-generated/`.
    pub path: String,
    /// CUDA text; compiled behind the runtime's prelude.
    pub text: String,
}

/// A kernel and what it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Symbol in the text.
    pub symbol: String,
    /// What it does.
    pub doc: String,
    /// Index of its text in [`Artefacts::sources`].
    pub source: usize,
    /// Threads a block.
    pub threads: u32,
    /// How many blocks a launch takes.
    pub grid: Grid,
    /// Dynamic shared memory.
    pub shared: Shared,
    /// Parameters in order.
    pub params: Vec<KernelParam>,
}

/// Number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grid {
    /// Always so many.
    Fixed(u32),
    /// As many as cover the `n` elements of the launch, at most so many; the kernel strides beyond.
    Elements {
        /// Elements that one block covers at a time.
        per_block: u32,
        /// Lower limit: 1 where no elements are something to be told.
        least: u32,
        /// Upper limit.
        most: u32,
    },
    /// The same for more than `above` and at most `up_to` elements, else none: of two kernels, one for few elements and one for
    /// many, a step launches one.
    Between {
        /// Elements that one block covers at a time.
        per_block: u32,
        /// Lower limit.
        least: u32,
        /// Upper limit.
        most: u32,
        /// So many elements are too few.
        above: u32,
        /// More are too many.
        up_to: u32,
    },
}

impl Grid {
    /// Blocks for `n` elements; none is no launch.
    pub fn blocks(self, n: usize) -> u32 {
        match self {
            Grid::Fixed(blocks) => blocks,
            Grid::Elements { per_block, least, most } => {
                u32::try_from(n.div_ceil(per_block.max(1) as usize)).unwrap_or(most).clamp(least, most)
            }
            Grid::Between { above, up_to, .. } if n <= above as usize || n > up_to as usize => 0,
            Grid::Between { per_block, least, most, .. } => Grid::Elements { per_block, least, most }.blocks(n),
        }
    }

    /// When a step makes the launch, in a few words; `None`: always, or whenever there are elements.
    pub fn condition(self) -> Option<String> {
        match self {
            Grid::Between { above: 0, up_to: u32::MAX, .. } => None,
            Grid::Between { above: 0, up_to, .. } => Some(format!("n ≤ {up_to}")),
            Grid::Between { above, .. } => Some(format!("n > {above}")),
            Grid::Fixed(_) | Grid::Elements { .. } => None,
        }
    }
}

/// Dynamic shared memory of a block, by what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// Elements of the real type.
    pub reals: u32,
    /// Further bytes.
    pub bytes: u32,
}

impl Shared {
    /// Bytes, given the size of the real type.
    pub fn total(self, real_size: u32) -> u32 {
        self.reals * real_size + self.bytes
    }
}

/// Element type in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Elem {
    /// `float`, or `double` where a gradient is checked.
    Real,
    /// `float`, always.
    F32,
    /// `double`, always.
    F64,
    /// `int`.
    I32,
}

/// How a kernel uses a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Reads it.
    In,
    /// Writes all of it.
    Out,
    /// Reads and writes it.
    InOut,
}

/// A pointer parameter, or the number of elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum KernelParam {
    /// A buffer.
    Buffer {
        /// Name in the text and in the launcher.
        name: String,
        /// Element type.
        elem: Elem,
        /// Use.
        access: Access,
        /// Elements; `None` where the launch tells.
        len: Option<usize>,
        /// Elements of one that the launch counts: several where it walks over rows. Of a table between launches, those of a
        /// part of the union.
        row: usize,
        /// What the tensor is to the equations.
        role: Role,
    },
    /// `int`: the number of elements.
    Count {
        /// Name in the text and in the launcher.
        name: String,
    },
    /// `int`: a number that the plan fixes.
    Number {
        /// Name in the text and in the launcher.
        name: String,
    },
    /// `int`: how many rows a table of any length has; an index beyond them is taken back to the nearest row.
    Rows {
        /// Name in the text.
        name: String,
        /// The parameter that is the table.
        of: String,
        /// Elements of a row.
        row_len: usize,
    },
}

/// What a parameter is to the equations it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Per-sample input.
    Input,
    /// Table shared by all samples.
    Table,
    /// Trainable tensor.
    Param,
    /// Result.
    Output,
    /// Kept by one kernel of the stage for another.
    Saved,
    /// Derivative of the objective by the named output.
    CotangentOf(String),
    /// Derivative of the objective by the named input.
    CotangentTo(String),
    /// Per-sample derivative by the named parameter, in the gradient scratch.
    ParamGradient(String),
    /// Derivative by the named parameter, summed over the batch and in its place among the gradients.
    GradientOf(String),
    /// Slot, state, observation, or other scalar.
    Scalar,
    /// State of an update.
    State,
    /// Gradient after the reduction over the batch.
    Reduced,
}

/// A slot family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// Name.
    pub name: String,
    /// What it is.
    pub doc: String,
    /// First index in the ISV.
    pub index: usize,
    /// First observation; `None` without a producer.
    pub scratch: Option<usize>,
    /// Members; empty for a single slot.
    pub members: Vec<String>,
    /// Producer.
    pub producer: Option<String>,
    /// Smoothing law.
    pub smooth: Option<String>,
    /// Who reads it, `prev` or `now`.
    pub readers: Vec<String>,
    /// Reset policy.
    pub reset: When,
    /// Read by people only.
    pub monitoring: bool,
    /// Kept free.
    pub reserved: bool,
    /// Holds the layout's fingerprint from the start: 24 bits of it a member, which f32 holds exactly.
    pub fingerprint: bool,
}

/// A scalar state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Name.
    pub name: String,
    /// What it is.
    pub doc: String,
    /// Its 32-bit word.
    pub word: usize,
    /// Whether it is an integer.
    pub int: bool,
    /// Start.
    pub init: f64,
    /// Who writes it; `None` for the host.
    pub writer: Option<String>,
    /// Who reads it.
    pub readers: Vec<String>,
    /// Reset policy.
    pub reset: When,
}

/// When something is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// At the start of every fold.
    Fold,
    /// At the start of every epoch.
    Epoch,
    /// Never.
    Never,
}

/// An entry of the reset registry: what is filled with what, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reset {
    /// Name of the slot family, state or buffer.
    pub name: String,
    /// When.
    pub when: When,
    /// Ranges that return to their start together.
    pub parts: Vec<ResetPart>,
}

/// A range of a buffer and the value it returns to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResetPart {
    /// Index of the buffer in [`Program::buffers`].
    pub buffer: usize,
    /// First element.
    pub start: usize,
    /// Elements.
    pub len: usize,
    /// The value.
    pub value: f64,
    /// Whether the elements are integers, whatever the buffer's own type.
    pub int: bool,
}

/// Buffers and launches of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Name of the model.
    pub model: String,
    /// Samples a step.
    pub batch: usize,
    /// Sizes by name.
    pub sizes: Vec<(String, usize)>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Trainable tensors, by place in the parameter buffer.
    pub params: Vec<Param>,
    /// Heads: name, and buffer that holds one number a sample.
    pub heads: Vec<(String, usize)>,
    /// A training step, in order.
    pub train: Vec<Launch>,
    /// The forward part alone.
    pub evaluate: Vec<Launch>,
    /// Single stages, for gradient checks.
    pub stages: Vec<Stage>,
}

/// A device buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// Unique name.
    pub name: String,
    /// Element type.
    pub elem: Elem,
    /// Elements; `None` where the run tells.
    pub len: Option<usize>,
    /// Extents, for people; 0 is any length.
    pub shape: Vec<usize>,
    /// Value of all elements at the start.
    pub fill: f64,
    /// Whether the run fills it.
    pub external: bool,
    /// Whether a checkpoint holds it.
    pub kept: bool,
}

/// A trainable tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Param {
    /// `stage.param`
    pub path: String,
    /// Extents.
    pub shape: Vec<usize>,
    /// First element in the parameter buffer.
    pub offset: usize,
    /// Group.
    pub group: String,
    /// How it starts.
    pub init: Init,
}

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Init {
    /// All the same.
    Constant(f64),
    /// Uniform in ±a.
    Uniform(f64),
}

/// A launch with its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Name in plans and logs: entry, and member or direction.
    pub name: String,
    /// Index of the kernel.
    pub kernel: usize,
    /// Blocks, where the number of elements is known.
    pub grid: u32,
    /// Arguments in order.
    pub args: Vec<Arg>,
    /// Launches that must have finished before, by index in the same list.
    pub after: Vec<usize>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Arg {
    /// A buffer from an element on.
    Buffer {
        /// Index of the buffer.
        buffer: usize,
        /// First element.
        start: usize,
    },
    /// A number of elements.
    Count(i32),
    /// The number of elements, or rows, of a buffer whose length the run tells.
    CountOf {
        /// Index of the buffer.
        buffer: usize,
        /// Elements of a row; 1 where elements are counted.
        row_len: usize,
    },
    /// A number that the plan fixes.
    Number(i32),
    /// How many rows a buffer holds.
    Rows {
        /// Index of the buffer.
        buffer: usize,
        /// Elements of a row.
        row_len: usize,
    },
}

/// The kernels of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Name.
    pub name: String,
    /// Forward kernel.
    pub forward: usize,
    /// Adjoint kernel; `None` where no gradient flows.
    pub adjoint: Option<usize>,
    /// Kernel of the parameters' gradients, where the adjoint defers them.
    pub gradients: Option<usize>,
}
