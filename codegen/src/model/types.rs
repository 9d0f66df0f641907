//! A spec set with all names resolved. Fields are final: a model is built once and only read.

use std::collections::BTreeMap;

use crate::diagnostics::{Files, Loc};
use crate::math::{Declared, Elem};
use crate::spec::entries::{Gradients, Reset, StageGrid};
use crate::spec::equation::{Expr, Statement};

/// A resolved spec set.
#[derive(Debug)]
pub struct Model {
    /// Prefix of all symbols.
    pub set: String,
    /// Named numbers.
    pub constants: BTreeMap<String, f64>,
    /// Slots by index.
    pub slots: Vec<Slot>,
    /// Scalar states by word.
    pub states: Vec<State>,
    /// Smoothing laws.
    pub smoothings: Vec<Smoothing>,
    /// Producers.
    pub producers: Vec<Producer>,
    /// Updates.
    pub updates: Vec<Update>,
    /// Groups, in the order of their names.
    pub groups: Vec<Group>,
    /// Buffers that the run fills.
    pub externals: Vec<External>,
    /// The model, if the set has one.
    pub network: Option<Network>,
    /// Texts, for carets and provenance.
    pub files: Files,
}

/// A slot, or a family of slots with one member a group.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Name of the family.
    pub name: String,
    /// What it is.
    pub doc: String,
    /// Index of the first member in the ISV.
    pub index: usize,
    /// Index of the first member's observation.
    pub scratch: usize,
    /// Groups, or nothing for a single slot.
    pub members: Vec<String>,
    /// Producer and signal that steer it.
    pub producer: Option<(String, String)>,
    /// Smoothing law.
    pub smooth: Option<String>,
    /// When it returns to 0.
    pub reset: Reset,
    /// Whether it is read by people only.
    pub monitoring: bool,
    /// Kept free.
    pub reserved: bool,
    /// Holds the layout's fingerprint.
    pub fingerprint: bool,
    /// Whether its observation counts among the listed ones; others lie in a bank of their own.
    pub listed: bool,
    /// Whether there is an observation only: no index in the ISV, and no law.
    pub observed_only: bool,
    /// Whether it lies in the vector beside the ISV.
    pub beside: bool,
    /// Place of its name.
    pub loc: Loc,
}

impl Slot {
    /// How many indices it takes.
    pub fn len(&self) -> usize {
        self.members.len().max(1)
    }

    /// Whether it has an index in the ISV.
    pub fn is_in_isv(&self) -> bool {
        !self.observed_only && !self.beside
    }

    /// Whether it takes none; never so.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// A scalar on the device outside the ISV.
#[derive(Clone, Debug)]
pub struct State {
    /// Its name.
    pub name: String,
    /// What it is.
    pub doc: String,
    /// Index of its 32-bit word.
    pub word: usize,
    /// Real or integer.
    pub elem: Elem,
    /// Start.
    pub init: f64,
    /// When it returns to its start.
    pub reset: Reset,
    /// The update that writes it; `None` where the host does.
    pub writer: Option<String>,
    /// Whether it is read by people only.
    pub monitoring: bool,
    /// Place of its name.
    pub loc: Loc,
}

/// A smoothing law.
#[derive(Debug)]
pub struct Smoothing {
    /// Its name.
    pub name: String,
    /// What it is.
    pub doc: String,
    /// States beside the mean.
    pub states: Vec<String>,
    /// `mean`, the states and `x`, for the equations.
    pub declared: Vec<Declared>,
    /// The law.
    pub statements: Vec<Statement>,
    /// Place of its name.
    pub loc: Loc,
}

/// What a producer or an update reads a buffer as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// All trainable tensors, or those of the entry's group, after this step's update.
    Params,
    /// Their reduced gradients.
    Gradients,
    /// Per-element state of the optimizer.
    OptimizerState {
        /// The optimizer.
        update: String,
        /// Its state.
        state: String,
    },
    /// A named buffer: external, a stage's output or an update's.
    Buffer(String),
    /// The union of several.
    Union(Vec<Source>),
    /// Block counts of the group's optimizer launches.
    Counter(String),
}

impl Source {
    /// Whether it is, or has in its union, the named buffer.
    pub fn names(&self, buffer: &str) -> bool {
        match self {
            Source::Buffer(name) => name == buffer,
            Source::Union(members) => members.iter().any(|member| member.names(buffer)),
            _ => false,
        }
    }
}

/// A signal: one member of a slot family.
#[derive(Debug)]
pub struct Signal {
    /// The slot family.
    pub slot: String,
    /// Which member; 0 for a single slot.
    pub member: usize,
    /// Name of the observation in the producer's equations.
    pub target: String,
    /// What is measured.
    pub expr: Expr,
}

/// A producer.
#[derive(Debug)]
pub struct Producer {
    /// Its name.
    pub name: String,
    /// What it measures.
    pub doc: String,
    /// Whether it runs once a group.
    pub per_group: bool,
    /// How quantiles are found.
    pub schedule: crate::spec::entries::ProducerSchedule,
    /// Buffers that each of its names stands for; 1 without a union.
    pub union: usize,
    /// Names in the signals, what they stand for, and their shape: elements or rows in front, then what a row holds.
    pub read: Vec<(String, Source, Vec<usize>, Elem)>,
    /// Signals, a member each.
    pub signals: Vec<Signal>,
    /// Smoothing law.
    pub smooth: String,
    /// Place of its name.
    pub loc: Loc,
}

/// Over what an update runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// Every element of a group's tensors.
    Group,
    /// Once.
    Scalar,
    /// Every element of external buffers, in place.
    Buffer {
        /// Name of the element.
        element: String,
        /// The buffers, one launch each.
        buffers: Vec<String>,
    },
    /// Every value of an index.
    Size {
        /// The index.
        index: String,
        /// Its extent.
        extent: usize,
    },
}

/// An update.
#[derive(Debug)]
pub struct Update {
    /// Its name.
    pub name: String,
    /// What it does.
    pub doc: String,
    /// Iteration space.
    pub over: Over,
    /// Whether an evaluation leaves it out.
    pub training_only: bool,
    /// Names bound to buffers: `(name here, source)`; parameter and gradient among them.
    pub read: Vec<(String, Source)>,
    /// Per-element state: name, start, reset. Empty unless over a group.
    pub element_state: Vec<(String, f64, Reset)>,
    /// Conditions whose elements each launch counts, block by block.
    pub counters: Vec<String>,
    /// Outputs: name and shape.
    pub outputs: Vec<(String, Vec<usize>, Elem)>,
    /// All tensors of the equations.
    pub declared: Vec<Declared>,
    /// The law.
    pub statements: Vec<Statement>,
    /// Place of its name.
    pub loc: Loc,
}

/// Trainable tensors that share an optimizer launch.
#[derive(Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub doc: String,
    /// The optimizer.
    pub optimizer: String,
    /// First element of its part of the parameter buffer, and one past the last.
    pub range: (usize, usize),
    /// External sub-buffers, in a set without a model; each stands for its parameters, gradients and optimizer state.
    pub buffers: Vec<String>,
}

/// A model.
#[derive(Debug)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// What it models.
    pub doc: String,
    /// Sizes by name.
    pub sizes: BTreeMap<String, usize>,
    /// Samples a step.
    pub batch: usize,
    /// Buffers that the run fills, which the model declares.
    pub externals: Vec<External>,
    /// Stages in an order in which each reads what stands before it.
    pub stages: Vec<Stage>,
    /// Trainable tensors in the order of the parameter buffer: groups in order, then stages.
    pub params: Vec<Param>,
    /// Stage and output whose mean is made small.
    pub objective: (usize, String),
    /// Head name, stage and output.
    pub heads: Vec<(String, usize, String)>,
    /// Place of its name.
    pub loc: Loc,
}

/// A buffer that the run fills.
#[derive(Clone, Debug)]
pub struct External {
    /// Its name.
    pub name: String,
    /// Extents; a leading 0 is any length.
    pub shape: Vec<usize>,
    /// Element type.
    pub elem: Elem,
}

/// One use of a block, with all sizes known.
#[derive(Debug)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// The block.
    pub block: String,
    /// What the block computes.
    pub doc: String,
    /// Sizes of the block's dimensions.
    pub sizes: BTreeMap<String, usize>,
    /// Inputs and tables: name here, and where it comes from.
    pub wires: Vec<Wire>,
    /// Name of the scanned size and number of steps.
    pub scan: Option<(String, usize)>,
    /// Size over which the block is applied without a carry, each value in a CUDA block of its own, and how many there are.
    pub spread: Option<(String, usize)>,
    /// Input and the output it carries.
    pub carry: Vec<(String, String)>,
    /// All tensors of the equations.
    pub declared: Vec<Declared>,
    /// The equations.
    pub statements: Vec<Statement>,
    /// How it is laid out on the device.
    pub schedule: Schedule,
    /// Place of the stage's name.
    pub loc: Loc,
    /// Place of the block's name.
    pub block_loc: Loc,
}

/// How a stage is laid out on the device; never changes its meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Threads a block, if the spec says so.
    pub threads: Option<u32>,
    /// Which blocks there are.
    pub grid: StageGrid,
    /// How gradients of parameters are summed over the batch.
    pub gradients: Gradients,
}

impl Stage {
    /// Extents that the batch and what the stage is spread over put in front of a tensor.
    pub fn leading(&self, batch: usize) -> Vec<usize> {
        std::iter::once(batch).chain(self.spread.iter().map(|(_, count)| *count)).collect()
    }

    /// CUDA blocks, where each takes one sample, or one value of what the stage is spread over.
    pub fn samples(&self, batch: usize) -> usize {
        self.leading(batch).iter().product()
    }
}

/// An input of a stage and its source.
#[derive(Clone, Debug)]
pub struct Wire {
    /// The block's name for it.
    pub input: String,
    /// Where it comes from.
    pub from: WireSource,
}

/// Where an input comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireSource {
    /// Output of a stage.
    Stage(usize, String),
    /// A buffer of the run.
    External(String),
    /// Output of an update: update and name.
    Update(String, String),
}

/// A trainable tensor.
#[derive(Clone, Debug)]
pub struct Param {
    /// `stage.param`
    pub path: String,
    /// Extents.
    pub shape: Vec<usize>,
    /// First element in the parameter buffer.
    pub offset: usize,
    /// How it starts.
    pub init: Init,
    /// Its group.
    pub group: String,
}

impl Param {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a parameter starts. For `[.., out, in]`, fans are the last two extents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All the same.
    Constant(f64),
    /// Uniform in ±a.
    Uniform(f64),
    /// Uniform in ±√(3/fan_in) (LeCun et al. 1998).
    LecunUniform,
    /// Uniform in ±√(6/(fan_in + fan_out)) (Glorot & Bengio 2010).
    GlorotUniform,
}
