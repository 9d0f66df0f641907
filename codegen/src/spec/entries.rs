//! The kinds of entry and their keys. The editor's JSON schema is made from these types.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

/// A string with its place in the file.
pub type Str = Spanned<String>;
/// Entries by name.
pub type Named<T> = BTreeMap<Str, T>;

/// `unio.toml`: what makes a folder a spec set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the spec language; 1.
    #[schemars(with = "u32")]
    pub version: Spanned<u32>,
    /// Name of the set; the prefix of its symbols.
    #[schemars(with = "String")]
    pub name: Str,
    /// Sets whose entries join this one's namespace: `unio:common`, or a relative path.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub include: Vec<Str>,
}

/// One file of a set, for the editor's schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpecFile {
    /// Named numbers.
    #[serde(default, rename = "const")]
    pub constant: BTreeMap<String, f64>,
    /// Adaptive bounds with no producer in this set.
    #[serde(default)]
    pub slot: BTreeMap<String, Slot>,
    /// Scalars that the host sets.
    #[serde(default)]
    pub state: BTreeMap<String, State>,
    /// Smoothing laws.
    #[serde(default)]
    pub smoothing: BTreeMap<String, Smoothing>,
    /// Signals and the slots they steer.
    #[serde(default)]
    pub producer: BTreeMap<String, Producer>,
    /// Maps of one sample's tensors, one sample a CUDA block.
    #[serde(default)]
    pub block: BTreeMap<String, Block>,
    /// State laws: optimizers, controllers, batch choice.
    #[serde(default)]
    pub update: BTreeMap<String, Update>,
    /// Buffers that a set reads and does not make.
    #[serde(default)]
    pub external: BTreeMap<String, External>,
    /// Sets of trainable tensors that share an optimizer launch.
    #[serde(default)]
    pub group: BTreeMap<String, Group>,
    /// Stages wired by name.
    #[serde(default)]
    pub model: BTreeMap<String, Model>,
}

/// When a slot or a state returns to its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reset {
    /// At the start of every fold.
    Fold,
    /// At the start of every epoch.
    Epoch,
    /// Never, once the run has begun.
    Never,
}

impl From<Reset> for unio_interface::When {
    fn from(reset: Reset) -> Self {
        match reset {
            Reset::Fold => Self::Fold,
            Reset::Epoch => Self::Epoch,
            Reset::Never => Self::Never,
        }
    }
}

/// Element type of a tensor or state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Elem {
    /// The element type of the lowering: f32, or f64 in gradient checks.
    #[default]
    F32,
    /// 32-bit integer.
    I32,
}

/// A slot with no producer in this set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// What it is.
    pub doc: String,
    /// Index in the ISV.
    #[schemars(with = "Option<u32>")]
    pub index: Option<Spanned<u32>>,
    /// How many indices it takes; 1 if left out.
    pub count: Option<u32>,
    /// Kept free; nobody reads or writes it.
    #[serde(default)]
    pub reserved: bool,
    /// The runtime writes the layout's fingerprint into it at the start, 24 bits a member.
    #[serde(default)]
    pub fingerprint: bool,
    /// Written by someone outside this set.
    #[serde(default)]
    pub external: bool,
    /// When it returns to 0.
    pub reset: Option<Reset>,
}

/// A scalar that the host sets between steps and kernels read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// What it is.
    pub doc: String,
    /// Element type.
    #[serde(default, rename = "type")]
    pub elem: Elem,
    /// Value at the start and after a reset.
    #[serde(default)]
    pub init: f64,
    /// When it returns to its start.
    pub reset: Option<Reset>,
}

/// A law that turns observations into a slot's value: an update over `mean` and the named states, given `x`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Smoothing {
    /// The law in words, with its source.
    pub doc: String,
    /// Names of the states kept beside the mean, all of which start at 0.
    #[schemars(with = "Vec<String>")]
    pub state: Vec<Str>,
    /// Equations: `next.mean` and `next.STATE` from `x`, `mean` and the states.
    #[schemars(with = "String")]
    pub math: Str,
}

/// How quantiles are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProducerSchedule {
    /// Logarithmic bins from the float's bits, over as many blocks as it takes.
    #[default]
    Counts,
    /// The first design: one block, 256 linear bins up to the largest value.
    Linear,
}

/// A signal measured over buffers, and the slot it steers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Producer {
    /// What it measures and who needs it.
    pub doc: String,
    /// `"group"`: one launch and one member of each slot for every parameter group.
    #[serde(rename = "for")]
    #[schemars(with = "Option<String>")]
    pub each: Option<Str>,
    /// Names in the signal, and the buffers they stand for.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub read: Named<Str>,
    /// Names in the signal that stand for the union of several buffers.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Vec<String>>")]
    pub union: Named<Vec<Str>>,
    /// One signal, or several that share one read of the buffers.
    pub signal: Signals,
    /// Index of the slot (of its first member), where one signal stands alone.
    #[schemars(with = "Option<u32>")]
    pub slot: Option<Spanned<u32>>,
    /// Index of its observation, where one signal stands alone.
    #[schemars(with = "Option<u32>")]
    pub scratch: Option<Spanned<u32>>,
    /// Smoothing law.
    #[schemars(with = "String")]
    pub smooth: Str,
    /// When slot and smoothing state return to 0.
    pub reset: Option<Reset>,
    /// For people only: no reader is needed.
    #[serde(default)]
    pub monitoring: bool,
    /// How quantiles are found: `counts` of the float's own bits (the default), or `linear`, the first design, for
    /// comparison.
    #[serde(default)]
    pub schedule: ProducerSchedule,
    /// Keeps the observation out of the numbered ones.
    #[serde(default)]
    pub unlisted: bool,
    /// Keeps the slots themselves out of the ISV, in a vector beside it.
    #[serde(default)]
    pub beside: bool,
}

/// The signals of a producer.
#[derive(Debug, JsonSchema)]
#[serde(untagged)]
pub enum Signals {
    /// One, named as the producer.
    One(#[schemars(with = "String")] Str),
    /// Several by name.
    Many(#[schemars(with = "BTreeMap<String, SignalKeys>")] Named<SignalKeys>),
}

/// One of several signals.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalKeys {
    /// What it measures; the producer's own text if left out.
    pub doc: Option<String>,
    /// Index of its slot.
    #[schemars(with = "Option<u32>")]
    pub slot: Option<Spanned<u32>>,
    /// Index of its observation (of the first member's).
    #[schemars(with = "Option<u32>")]
    pub scratch: Option<Spanned<u32>>,
    /// An observation for other entries to read, with no slot and no smoothing.
    #[serde(default)]
    pub observed_only: bool,
    /// The signal's expression.
    #[schemars(with = "Option<String>")]
    pub value: Option<Str>,
    /// An expression for each member.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub values: Vec<Str>,
    /// Names of the members of a family of slots.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub members: Vec<Str>,
    /// How many members a family has, where they have no names.
    pub count: Option<u32>,
    /// Name of the index that tells the members apart in `value`.
    #[schemars(with = "Option<String>")]
    pub index: Option<Str>,
    /// For people only: no reader is needed.
    #[serde(default)]
    pub monitoring: bool,
}

/// A tensor: its shape, or a table with more to say.
#[derive(Debug, JsonSchema)]
#[serde(untagged)]
pub enum Tensor {
    /// `"[H, I]"`
    Shape(#[schemars(with = "String")] Str),
    /// `{ shape = "[H]", type = "i32", init = "zeros" }`
    Keys(TensorKeys),
}

/// The long form of a tensor.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorKeys {
    /// Its shape.
    #[schemars(with = "String")]
    pub shape: Str,
    /// Its element type.
    #[serde(default, rename = "type")]
    pub elem: Elem,
    /// How a parameter starts.
    #[schemars(with = "Option<String>")]
    pub init: Option<Str>,
}

/// Equations over one sample's tensors.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// What it computes, with its source.
    pub doc: String,
    /// Per-sample tensors that it reads; cotangents flow back through them.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Tensor>")]
    pub input: Named<Tensor>,
    /// Tensors shared by all samples, without gradient; a leading `*` is any length.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Tensor>")]
    pub table: Named<Tensor>,
    /// Trainable tensors.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Tensor>")]
    pub param: Named<Tensor>,
    /// Per-sample tensors that it gives.
    #[schemars(with = "BTreeMap<String, Tensor>")]
    pub output: Named<Tensor>,
    /// Blocks that its equations read as `NAME.OUTPUT`, each with parameters of its own.
    #[serde(default, rename = "use")]
    #[schemars(with = "BTreeMap<String, Use>")]
    pub uses: Named<Use>,
    /// The equations.
    #[schemars(with = "String")]
    pub math: Str,
}

/// A block inside a block.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Use {
    /// The block.
    #[schemars(with = "String")]
    pub block: Str,
    /// Once for every value of this size, each with parameters of its own; inputs with that dimension in front are split.
    #[schemars(with = "Option<String>")]
    pub over: Option<Str>,
    /// Its inputs and tables, and the names that they stand for here.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub input: Named<Str>,
    /// Its sizes, where neither an input nor a size of the same name tells.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub size: Named<Str>,
}

/// A state of an update.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateState {
    /// Element type.
    #[serde(default, rename = "type")]
    pub elem: Elem,
    /// Value at the start and after a reset.
    #[serde(default)]
    pub init: f64,
    /// When it returns to its start.
    pub reset: Option<Reset>,
    /// For people only: no reader is needed.
    #[serde(default)]
    pub monitoring: bool,
}

/// A state law, element by element.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Update {
    /// The law in words, with its source.
    pub doc: String,
    /// `"group"`: every element of a parameter group; `"scalar"`: once; `"b: B"`: over a size of the model; or `"x: NAME"`:
    /// every element x of an external buffer, or of several (`"x: A, B"`), in place.
    #[schemars(with = "String")]
    pub over: Str,
    /// Whether it is part of the optimization alone, so that an evaluation leaves it out.
    #[serde(default)]
    pub training_only: bool,
    /// Name of the parameter in an update over a group; it is state too.
    #[schemars(with = "Option<String>")]
    pub param: Option<Str>,
    /// Name of its reduced gradient.
    #[schemars(with = "Option<String>")]
    pub grad: Option<Str>,
    /// State it keeps, an element for each element (over a group) or a scalar.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, UpdateState>")]
    pub state: Named<UpdateState>,
    /// Buffers it reads: names here, and what they stand for.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub read: Named<Str>,
    /// Buffers it gives.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Tensor>")]
    pub output: Named<Tensor>,
    /// Equations.
    #[schemars(with = "String")]
    pub math: Str,
}

/// A buffer that a set reads and does not make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct External {
    /// What it holds.
    pub doc: String,
    /// Its shape; a leading `*` is any length.
    #[schemars(with = "String")]
    pub shape: Str,
    /// Its element type.
    #[serde(default, rename = "type")]
    pub elem: Elem,
}

/// Trainable tensors that share an optimizer launch.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What it holds.
    pub doc: String,
    /// Patterns of a model's tensors: `stage.param` or `stage.*`.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub tensors: Vec<Str>,
    /// In a set without a model: sub-buffers, each of which stands for `NAME.params`, `NAME.grads` and the optimizer's states.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub buffers: Vec<Str>,
    /// Place among the groups; in the order of their names if left out.
    #[schemars(with = "Option<u32>")]
    pub index: Option<Spanned<u32>>,
    /// The update that advances them.
    #[schemars(with = "String")]
    pub optimizer: Str,
}

/// Stages wired by name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// What it models.
    pub doc: String,
    /// Sizes by name.
    #[schemars(with = "BTreeMap<String, u32>")]
    pub size: BTreeMap<Str, Spanned<u32>>,
    /// Name of the size that counts the samples of a step.
    #[schemars(with = "String")]
    pub batch: Str,
    /// Buffers that the run fills.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Tensor>")]
    pub external: Named<Tensor>,
    /// The stages.
    #[schemars(with = "BTreeMap<String, Stage>")]
    pub stage: Named<Stage>,
    /// Per-sample loss whose mean over the batch is made small.
    #[schemars(with = "String")]
    pub objective: Str,
    /// Outputs that an evaluation reads: head name, and `stage.output`.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub head: Named<Str>,
    /// How all stages are laid out on the device, as far as they do not say so themselves.
    #[serde(default)]
    pub schedule: Schedule,
}

/// One use of a block.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// The block.
    #[schemars(with = "String")]
    pub block: Str,
    /// Inputs and tables of the block, and what they are wired to.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub input: Named<Str>,
    /// Sizes that the inputs do not tell, where the name differs from the model's.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub size: Named<Str>,
    /// The block is one step of a recurrence.
    pub scan: Option<Scan>,
    /// The block is applied to every value of this size, with the same parameters.
    #[schemars(with = "Option<String>")]
    pub each: Option<Str>,
    /// How it is laid out on the device; never changes its meaning.
    #[serde(default)]
    pub schedule: Schedule,
}

/// A recurrence over a size.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scan {
    /// The size that counts the steps.
    #[schemars(with = "String")]
    pub over: Str,
    /// Inputs that carry the output of the step before, and that output; the first step sees 0.
    #[schemars(with = "BTreeMap<String, String>")]
    pub carry: Named<Str>,
}

/// Layout on the device.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Threads a block; a multiple of 32. Chosen from the sizes if left out.
    #[schemars(with = "Option<u32>")]
    pub threads: Option<Spanned<u32>>,
    /// Which blocks there are: one a sample, if left out.
    pub grid: Option<StageGrid>,
    /// How gradients of parameters are summed over the batch: through the scratch, if left out.
    #[schemars(with = "Option<Gradients>")]
    pub gradients: Option<Spanned<Gradients>>,
}

/// Which blocks a stage's kernels have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StageGrid {
    /// A block a sample.
    #[default]
    Batch,
    /// One block that takes the samples one after the other; for measuring.
    Single,
}

/// How gradients of parameters are summed over the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Gradients {
    /// Each sample writes its own part of a scratch, which one launch then sums over the batch.
    #[default]
    Scratch,
    /// The adjoint keeps what the gradients are made of, and a further kernel sums over the batch and all steps at once.
    Deferred,
}

/// A string, or a table of keys. Written by hand because serde's untagged enums lose all spans.
enum TextOr<T> {
    Text(String),
    Keys(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

struct TextOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrVisitor<T> {
    type Value = TextOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a table")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(TextOr::Keys)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Spanned::<TextOr<TensorKeys>>::deserialize(deserializer)?;
        let span = value.span();
        Ok(match value.into_inner() {
            TextOr::Text(shape) => Tensor::Shape(Spanned::new(span, shape)),
            TextOr::Keys(keys) => Tensor::Keys(keys),
        })
    }
}

impl<'de> Deserialize<'de> for Signals {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Spanned::<TextOr<Named<SignalKeys>>>::deserialize(deserializer)?;
        let span = value.span();
        Ok(match value.into_inner() {
            TextOr::Text(signal) => Signals::One(Spanned::new(span, signal)),
            TextOr::Keys(signals) => Signals::Many(signals),
        })
    }
}
