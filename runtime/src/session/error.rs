use crate::device::DeviceError;

/// What can go wrong with a session. Each message ends with what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Two buffers that one launch walks over together differ in length.
    #[error("launch `{launch}`: `{buffer}` has {held} rows, the launch covers {needed}: write buffers of equal length")]
    Uneven {
        /// The launch.
        launch: String,
        /// The shorter buffer.
        buffer: String,
        /// Rows that it has.
        held: usize,
        /// Rows that the launch covers.
        needed: usize,
    },
    /// The buffers do not fit into the device's free memory.
    #[error("the buffers need {needed} bytes and the device has {free} free; the largest are {largest}: {cure}")]
    TooLarge {
        /// Bytes of all buffers that the session allocates.
        needed: u64,
        /// Bytes that the device has left.
        free: u64,
        /// The largest buffers, with their extents and bytes.
        largest: String,
        /// What to do.
        cure: &'static str,
    },
    /// The device could not do it.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The set describes no model.
    #[error("spec set `{set}` has no model to run; add a [model.NAME] table to it")]
    NoModel {
        /// The set.
        set: String,
    },
    /// The artefacts contradict themselves.
    #[error("spec set `{set}`, {place}: {reason}; generate it again with the generator of this library's version")]
    Artefacts {
        /// The set.
        set: String,
        /// Where: a launch, buffer, slot, …
        place: String,
        /// What is wrong there.
        reason: String,
    },
    /// A typed handle that is not of this session's set.
    #[error("spec set `{set}` has no {what} `{name}` at place {index}; use the constants that were made from this set")]
    Foreign {
        /// The set.
        set: String,
        /// `buffer`, `state` or `slot`.
        what: &'static str,
        /// The handle's name.
        name: String,
        /// The handle's place.
        index: usize,
    },
    /// A name that is none.
    #[error("spec set `{set}` has no {what} `{name}`; it has: {known}")]
    Unknown {
        /// The set.
        set: String,
        /// `buffer`, `state`, `slot` or `stage`.
        what: &'static str,
        /// The name asked for.
        name: String,
        /// All names there are.
        known: String,
    },
    /// Values in another number than the buffer has.
    #[error("buffer `{buffer}` holds {len} elements and {given} were given; give exactly {len}")]
    Length {
        /// The buffer.
        buffer: String,
        /// Its elements.
        len: usize,
        /// The values given.
        given: usize,
    },
    /// Values that do not fill whole rows.
    #[error("buffer `{buffer}` has rows of {row} elements and {given} elements were given; give whole rows")]
    Rows {
        /// The buffer.
        buffer: String,
        /// Elements of one row.
        row: usize,
        /// The values given.
        given: usize,
    },
    /// More values than a kernel counts.
    #[error("buffer `{buffer}`: {given} elements were given, and a kernel counts up to 2^31 - 1; give fewer")]
    TooLong {
        /// The buffer.
        buffer: String,
        /// The values given.
        given: usize,
    },
    /// Fewer values than the kernels read.
    #[error("buffer `{buffer}`: the step reads {least} elements of it and {given} were given; give at least {least}")]
    TooShort {
        /// The buffer.
        buffer: String,
        /// Elements that a launch reads.
        least: usize,
        /// The values given.
        given: usize,
    },
    /// Integers where there are reals, or the reverse.
    #[error("{what} `{name}` holds {stored} and was used as {asked}; use {stored}")]
    ElementType {
        /// `buffer` or `state`.
        what: &'static str,
        /// Its name.
        name: String,
        /// What it holds.
        stored: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// Buffers that the run fills and has not.
    #[error("not filled yet: {names}; write these buffers before the step runs or they are read")]
    Unbound {
        /// The buffers.
        names: String,
    },
    /// A launch failed.
    #[error("launch `{launch}`: {source}")]
    Launch {
        /// Its name in the plan.
        launch: String,
        /// The device's reason.
        source: DeviceError,
    },
    /// A step's graph could not be made or launched.
    #[error("the graph of the {phase} step: {source}; eager launches may tell which one fails")]
    Graph {
        /// `training` or `evaluation`.
        phase: &'static str,
        /// The device's reason.
        source: DeviceError,
    },
    /// Two launches that nothing orders touch the same memory.
    #[error(
        "spec set `{set}`: launches `{first}` and `{second}` both use `{buffer}`, one of them writes it, and no edge orders them; generate the set again, or launch eagerly"
    )]
    Unordered {
        /// The set.
        set: String,
        /// The launch that stands first.
        first: String,
        /// The other.
        second: String,
        /// What both touch.
        buffer: String,
    },
    /// The mirror never showed a whole step.
    #[error(
        "the mirror is in the middle of step {step} and stays there: synchronize the session to see what stopped it"
    )]
    MirrorStopped {
        /// The step that did not end.
        step: u64,
    },
    /// A kernel that exists in f32 only, in a session of f64.
    #[error("launch `{launch}` reads `{buffer}` as {asked} and this session stores {stored}; run it in an f32 session")]
    WrongReal {
        /// Its name in the plan.
        launch: String,
        /// The buffer.
        buffer: String,
        /// What the kernel reads.
        asked: &'static str,
        /// What the buffer holds.
        stored: &'static str,
    },
    /// A stage through which no gradient flows.
    #[error("stage `{stage}` has no {direction} kernel in the step; check gradients only of stages that have one")]
    NoKernel {
        /// The stage.
        stage: String,
        /// `forward`, `adjoint` or `gradients`.
        direction: &'static str,
    },
    /// A slot family's member that is none.
    #[error(
        "slot `{slot}` has {members} members, counted from 0, and member {member} was asked for; ask for one it has"
    )]
    Member {
        /// The family.
        slot: String,
        /// Its members.
        members: usize,
        /// The member asked for.
        member: usize,
    },
}

/// Results of a session.
pub type Result<T, E = SessionError> = std::result::Result<T, E>;
