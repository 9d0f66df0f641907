//! Sessions and checkpoints, with a tiny set written by hand; `UNIO_TEST_DEVICE=cuda` runs it on a card.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use unio::device::{Device, DeviceError, Real};
use unio::interface::{
    Access, Arg, Artefacts, Buffer, Elem, Grid, Init, Kernel, KernelParam, Launch, Param, Program, Reset, ResetPart,
    Role, Shared, Slot, Source, Stage, State,
};
use unio::random::permutation;
use unio::{BufferOf, CheckpointError, Direction, Launching, Phase, Session, SessionError, SlotOf, StateOf, When};

const ISV: usize = 0;
const OBSERVED: usize = 1;
const SMOOTHING: usize = 2;
const SKIPPED: usize = 3;
const STATES: usize = 4;
const PARAMS: usize = 5;
const GRADS: usize = 6;
const MOMENT: usize = 7;
const TABLE: usize = 8;
const ROWS: usize = 9;
const Y: usize = 10;

const TABLE_F32: BufferOf<f32> = BufferOf::new(TABLE, "table");
const ROWS_I32: BufferOf<i32> = BufferOf::new(ROWS, "rows");
const Y_F32: BufferOf<f32> = BufferOf::new(Y, "scale.y");
const STEPS: StateOf<i32> = StateOf::new(0, "steps");
const RATE: StateOf<f32> = StateOf::new(1, "rate");
const LEVEL: SlotOf = SlotOf::new(2, "level", &["low", "high"]);

/// y = a table[rows] steps; the gradient of a; m and a move by it; the mean of y goes to the slot.
const TEXT: &str = "
UNIO_KERNEL(1) toy_count(UNIO_INOUT(int, steps), UNIO_INOUT(float, rate)) { steps[0] += 1; rate[0] *= 0.5f; }
UNIO_KERNEL(32) toy_scale_forward(UNIO_IN(real, table), UNIO_IN(int, rows), UNIO_IN(real, a), UNIO_IN(int, steps),
                                  UNIO_OUT(real, y)) {
    int i = threadIdx.x;
    if (i < 6) y[i] = a[i % 3] * table[rows[i / 3] * 3 + i % 3] * (real)steps[0];
}
UNIO_KERNEL(32) toy_scale_adjoint(UNIO_IN(real, table), UNIO_IN(int, rows), UNIO_OUT(real, d_a)) {
    int i = threadIdx.x;
    if (i < 3) d_a[i] = table[rows[0] * 3 + i] + table[rows[1] * 3 + i];
    if (i == 3) d_a[3] = 0;
}
UNIO_KERNEL(32) toy_adam(UNIO_INOUT(real, w), UNIO_IN(real, g), UNIO_INOUT(real, m), UNIO_IN(float, rate), int n) {
    int i = threadIdx.x;
    if (i < n) { m[i] = (real)0.5 * m[i] + g[i]; w[i] -= (real)rate[0] * m[i]; }
}
UNIO_KERNEL(1) toy_level(UNIO_IN(float, q), UNIO_INOUT(float, slot), UNIO_INOUT(float, observed),
                         UNIO_INOUT(float, smoothing), UNIO_INOUT(int, skipped), int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum += q[i];
    observed[0] = sum; smoothing[1] += 1.0f; slot[0] = 0.5f * slot[0] + 0.5f * sum; skipped[0] += 1;
}
UNIO_KERNEL(1) toy_never(UNIO_OUT(real, y)) { y[0] = 1e30f; }
";

fn device() -> Device {
    let target = std::env::var("UNIO_TEST_DEVICE").unwrap_or("emulator".into());
    Device::open(target.parse().unwrap()).unwrap()
}

fn pointer(name: &str, elem: Elem, access: Access, len: Option<usize>, role: Role) -> KernelParam {
    KernelParam::Buffer { name: name.into(), elem, access, len, row: 1, role }
}

fn kernel(symbol: &str, threads: u32, params: Vec<KernelParam>) -> Kernel {
    let grid = Grid::Fixed(1);
    Kernel { symbol: symbol.into(), doc: String::new(), source: 0, threads, grid, shared: Shared::default(), params }
}

fn kernels() -> Vec<Kernel> {
    use Access::{In, InOut, Out};
    use Elem::{F32, I32, Real as R};
    let count = || KernelParam::Count { name: "n".into() };
    let table = || pointer("table", R, In, None, Role::Table);
    let rows = || pointer("rows", I32, In, Some(2), Role::Input);
    let one = |name, elem, access| pointer(name, elem, access, Some(1), Role::Scalar);
    let (steps, rate) = (one("steps", I32, InOut), one("rate", F32, InOut));
    let forward = vec![
        table(),
        rows(),
        pointer("a", R, In, Some(3), Role::Param),
        one("steps", I32, In),
        pointer("y", R, Out, Some(6), Role::Output),
    ];
    let adam = vec![
        pointer("w", R, InOut, None, Role::State),
        pointer("g", R, In, None, Role::Reduced),
        pointer("m", R, InOut, None, Role::State),
        one("rate", F32, In),
        count(),
    ];
    let level = vec![
        pointer("q", F32, In, None, Role::Input),
        one("slot", F32, InOut),
        one("observed", F32, InOut),
        pointer("smoothing", F32, InOut, Some(2), Role::Scalar),
        one("skipped", I32, InOut),
        count(),
    ];
    vec![
        kernel("toy_count", 1, vec![steps, rate]),
        kernel("toy_scale_forward", 32, forward),
        kernel("toy_scale_adjoint", 32, vec![table(), rows(), pointer("d_a", R, Out, Some(4), Role::Reduced)]),
        kernel("toy_adam", 32, adam),
        kernel("toy_level", 1, level),
        kernel("toy_never", 1, vec![pointer("y", R, Out, Some(6), Role::Output)]),
    ]
}

fn buffers() -> Vec<Buffer> {
    let buffer = |name: &str, elem, shape: &[usize], kept| Buffer {
        name: name.into(),
        elem,
        len: Some(shape.iter().product()),
        shape: shape.to_vec(),
        fill: 0.0,
        external: false,
        kept,
    };
    let table = Buffer { len: None, external: true, ..buffer("table", Elem::Real, &[0, 3], false) };
    let rows = Buffer { external: true, ..buffer("rows", Elem::I32, &[2], false) };
    vec![
        buffer("isv", Elem::F32, &[6], true),
        buffer("observed", Elem::F32, &[2], true),
        buffer("smoothing", Elem::F32, &[2, 2], true),
        buffer("skipped", Elem::I32, &[2], true),
        buffer("state", Elem::F32, &[4], true),
        buffer("params", Elem::Real, &[4], true),
        buffer("grads", Elem::Real, &[4], false),
        Buffer { fill: 0.25, ..buffer("adam.m", Elem::Real, &[4], true) },
        table,
        rows,
        buffer("scale.y", Elem::Real, &[2, 3], false),
    ]
}

fn launch(name: &str, kernel: usize, grid: u32, args: &[(usize, usize)], count: Option<i32>) -> Launch {
    let mut args: Vec<Arg> = args.iter().map(|&(buffer, start)| Arg::Buffer { buffer, start }).collect();
    args.extend(count.map(Arg::Count));
    Launch { name: name.into(), kernel, grid, args, after: Vec::new() }
}

fn program() -> Program {
    let forward = launch("scale.forward", 1, 1, &[(TABLE, 0), (ROWS, 0), (PARAMS, 0), (STATES, 0), (Y, 0)], None);
    let count = launch("count", 0, 1, &[(STATES, 0), (STATES, 1)], None);
    let forward = Launch { after: vec![0], ..forward };
    let mut train = vec![
        count.clone(),
        forward.clone(),
        launch("never", 5, 0, &[(Y, 0)], None),
        launch("scale.adjoint", 2, 1, &[(TABLE, 0), (ROWS, 0), (GRADS, 0)], None),
        launch("adam[a]", 3, 1, &[(PARAMS, 0), (GRADS, 0), (MOMENT, 0), (STATES, 1)], Some(3)),
        launch("level[high]", 4, 1, &[(Y, 0), (ISV, 3), (OBSERVED, 1), (SMOOTHING, 2), (SKIPPED, 1)], Some(6)),
    ];
    train[2].after = vec![1];
    train[4].after = vec![1, 3];
    train[5].after = vec![2];
    let param = |path: &str, shape: &[usize], offset, init| Param {
        path: path.into(),
        shape: shape.to_vec(),
        offset,
        group: "all".into(),
        init,
    };
    Program {
        model: "tiny".into(),
        batch: 2,
        sizes: vec![("B".into(), 2)],
        buffers: buffers(),
        params: vec![param("scale.a", &[3], 0, Init::Uniform(0.5)), param("scale.b", &[1], 3, Init::Constant(2.0))],
        heads: Vec::new(),
        train,
        evaluate: vec![count, forward],
        stages: vec![
            Stage { name: "scale".into(), forward: 1, adjoint: Some(2), gradients: None },
            Stage { name: "data".into(), forward: 5, adjoint: None, gradients: None },
        ],
    }
}

fn state(name: &str, word: usize, int: bool, init: f64, reset: When) -> State {
    let (doc, writer, readers) = (String::new(), None, Vec::new());
    State { name: name.into(), doc, word, int, init, writer, readers, reset }
}

fn slot() -> Slot {
    Slot {
        name: "level".into(),
        doc: String::new(),
        index: 2,
        scratch: Some(0),
        members: vec!["low".into(), "high".into()],
        producer: Some("level".into()),
        smooth: None,
        readers: Vec::new(),
        reset: When::Fold,
        monitoring: true,
        reserved: false,
        fingerprint: false,
    }
}

fn resets() -> Vec<Reset> {
    let part = |buffer, start, len, value, int| ResetPart { buffer, start, len, value, int };
    let reset = |name: &str, when, parts: &[ResetPart]| Reset { name: name.into(), when, parts: parts.to_vec() };
    let level = [
        part(ISV, 2, 2, 0.0, false),
        part(OBSERVED, 0, 2, 0.0, false),
        part(SKIPPED, 0, 2, -1.0, true),
        part(SMOOTHING, 0, 4, 0.5, false),
    ];
    vec![
        reset("level", When::Fold, &level),
        reset("steps", When::Fold, &[part(STATES, 0, 1, 7.0, true)]),
        reset("rate", When::Epoch, &[part(STATES, 1, 1, 0.5, false)]),
        reset("seen", When::Never, &[part(STATES, 2, 1, -1.0, true)]),
        reset("adam.m", When::Fold, &[part(MOMENT, 0, 4, 0.25, false)]),
    ]
}

fn artefacts() -> Artefacts {
    Artefacts {
        set: "toy".into(),
        fingerprint: "f1".into(),
        sources: vec![Source { path: "toy/cuda/toy.cu".into(), text: TEXT.into() }],
        kernels: kernels(),
        slots: vec![slot()],
        isv_len: 6,
        states: vec![
            state("steps", 0, true, 7.0, When::Fold),
            state("rate", 1, false, 0.5, When::Epoch),
            state("seen", 2, true, -1.0, When::Never),
        ],
        resets: resets(),
        program: Some(program()),
    }
}

fn unbound() -> Session {
    Session::new(&device(), &artefacts(), Real::F32).unwrap()
}

fn session() -> Session {
    let mut session = unbound();
    session.init_params(1).unwrap();
    session.write(TABLE_F32, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    session.write(ROWS_I32, &[1, 0]).unwrap();
    session
}

/// Bits of everything that is kept.
fn kept(session: &Session) -> BTreeMap<String, Vec<u64>> {
    let names = session.program().buffers.iter().filter(|b| b.kept).map(|b| b.name.clone());
    names.map(|name| (name.clone(), session.dump(&name).unwrap().iter().map(|v| v.to_bits()).collect())).collect()
}

#[test]
fn everything_starts_as_the_artefacts_say() {
    let session = unbound();
    assert_eq!(session.dump("state").unwrap(), [7.0, 0.5, -1.0, 0.0]);
    assert_eq!(session.state(STEPS).unwrap(), 7);
    assert_eq!(session.state(RATE).unwrap(), 0.5);
    assert_eq!(session.state_named("seen").unwrap(), -1.0);
    assert_eq!(session.dump("adam.m").unwrap(), [0.25; 4]);
    assert_eq!(session.read_named::<i32>("skipped").unwrap(), [-1, -1]);
    assert_eq!(session.dump("smoothing").unwrap(), [0.5; 4]);
    assert_eq!(session.dump("params").unwrap(), [0.0; 4]);
}

#[test]
fn parameters_depend_on_seed_path_and_index_only() {
    let (mut a, mut other) = (unbound(), unbound());
    a.init_params(9).unwrap();
    other.init_params(10).unwrap();
    let values = a.dump("params").unwrap();
    assert!(values[..3].iter().all(|v| v.abs() <= 0.5 && *v != 0.0) && values[3] == 2.0, "{values:?}");
    assert_ne!(values, other.dump("params").unwrap());

    let mut turned = artefacts();
    let params = &mut turned.program.as_mut().unwrap().params;
    params.reverse();
    (params[0].offset, params[1].offset) = (0, 1);
    let mut turned = Session::new(&device(), &turned, Real::F32).unwrap();
    turned.init_params(9).unwrap();
    assert_eq!(turned.dump("params").unwrap(), [&values[3..], &values[..3]].concat());

    let mut wide = Session::new(&device(), &artefacts(), Real::F64).unwrap();
    wide.init_params(9).unwrap();
    let rounded: Vec<f64> = wide.read_real("params").unwrap().iter().map(|v| f64::from(*v as f32)).collect();
    assert_eq!(rounded, values);
}

#[test]
fn a_permutation_depends_on_seed_and_epoch() {
    let items: Vec<i32> = (0..50).collect();
    assert_eq!(permutation(1, 2, &items), permutation(1, 2, &items));
    assert_ne!(permutation(1, 2, &items), permutation(1, 3, &items));
    assert_ne!(permutation(1, 2, &items), permutation(2, 2, &items));
}

#[test]
fn launches_run_in_order() {
    let mut session = session();
    let a = session.read_named::<f32>("params").unwrap();
    session.run(Phase::Train).unwrap();
    // The count came before the stage that reads it, and the optimizer after its gradient.
    assert_eq!(session.state(STEPS).unwrap(), 8);
    let y: Vec<f32> =
        [4.0, 5.0, 6.0, 1.0, 2.0, 3.0].iter().zip(a[..3].iter().cycle()).map(|(x, a)| a * x * 8.0).collect();
    assert_eq!(session.read(Y_F32).unwrap(), y);
    let m: Vec<f32> = [5.0, 7.0, 9.0].iter().map(|g| 0.125 + g).collect();
    assert_eq!(session.read_named::<f32>("adam.m").unwrap()[..3], m);
    let want: Vec<f32> = a[..3].iter().zip(&m).map(|(a, m)| a - 0.25 * m).collect();
    assert_eq!(session.read_named::<f32>("params").unwrap()[..3], want);
    // The producer came last; the launch without blocks wrote nothing.
    let sum = y.iter().fold(0.0f32, |sum, y| sum + y);
    assert_eq!(session.slot(LEVEL, 1).unwrap(), 0.5 * sum);
    assert_eq!(session.isv().unwrap(), [0.0, 0.0, 0.0, 0.5 * sum, 0.0, 0.0]);
    assert_eq!(session.slot_named("level").unwrap(), [0.0, 0.5 * sum]);

    let before = kept(&session);
    session.run(Phase::Evaluate).unwrap();
    assert_eq!(session.state(STEPS).unwrap(), 9);
    let after = kept(&session);
    assert_eq!((&after["params"], &after["isv"]), (&before["params"], &before["isv"]));
}

/// The launch without blocks is left out, and what waited for it waits for what it waited for.
#[test]
fn a_step_is_one_graph() {
    let (mut session, mut eager) = (session(), session());
    eager.set_launching(Launching::Eager);
    let before = kept(&session);
    let mut graph = session.graph(Phase::Train).unwrap();
    assert_eq!(graph.launches(), ["count", "scale.forward", "scale.adjoint", "adam[a]", "level[high]"]);
    assert_eq!(graph.edges(), [vec![], vec![0], vec![], vec![1, 2], vec![1]]);
    graph.replay(0).unwrap();
    assert_eq!(kept(&session), before, "building it and no step change nothing");
    session.graph(Phase::Train).unwrap().replay(3).unwrap();
    (0..3).for_each(|_| eager.run(Phase::Train).unwrap());
    assert_eq!(kept(&session), kept(&eager));
}

/// In a second step a launch waits for what read or wrote its memory in the first, and for nothing else; of more steps each
/// looks like the second.
#[test]
fn several_steps_are_one_graph() {
    let mut session = session();
    assert_eq!(session.graph_of(Phase::Train, 0).unwrap().launches().len(), 0);
    let graph = session.graph_of(Phase::Train, 3).unwrap();
    let (names, edges) = (graph.launches(), graph.edges());
    assert_eq!(names[5..10], names[..5]);
    let back = |n: usize, by: usize| edges[n].iter().map(|e| e - by).collect::<Vec<_>>();
    // `scale.forward` writes what `level[high]` reads, `scale.adjoint` and `count` what `adam[a]` reads.
    assert_eq!(edges[5..10], [vec![3], vec![4, 5], vec![3], vec![6, 7], vec![6]]);
    assert!((5..10).all(|n| back(n + 5, 5) == edges[n]), "{edges:?}");
    let (mut together, mut eager) = (self::session(), self::session());
    eager.set_launching(Launching::Eager);
    let steps = 2 * unio::STEPS_TOGETHER + 1;
    together.run_steps(Phase::Train, steps).unwrap();
    eager.run_steps(Phase::Train, steps).unwrap();
    assert_eq!(kept(&together), kept(&eager));
}

/// A table of another length has another memory: the next step reads that one.
#[test]
fn a_graph_never_reads_what_was_replaced() {
    let mut session = session();
    session.run(Phase::Train).unwrap();
    session.write(TABLE_F32, &[0.0; 9]).unwrap();
    session.run(Phase::Train).unwrap();
    assert_eq!(session.read(Y_F32).unwrap(), [0.0; 6]);
    session.write(TABLE_F32, &[1.0; 9]).unwrap();
    session.run(Phase::Train).unwrap();
    assert!(session.read(Y_F32).unwrap().iter().all(|y| *y != 0.0), "new values of the same length");
}

/// Nothing is begun when a graph cannot be made: the error names the launch, and the session goes on.
#[test]
fn a_graph_that_cannot_be_made_names_the_launch() {
    let mut wide = artefacts();
    wide.kernels[3].threads = 64;
    let mut unordered = artefacts();
    unordered.program.as_mut().unwrap().train[4].after = vec![1];
    let cases = [(wide, "launch `adam[a]`"), (unordered, "`scale.adjoint` and `adam[a]` both use `grads`")];
    for (artefacts, says) in cases {
        let mut session = Session::new(&device(), &artefacts, Real::F32).unwrap();
        session.write(TABLE_F32, &[1.0, 2.0, 3.0]).unwrap();
        session.write(ROWS_I32, &[0, 0]).unwrap();
        let before = kept(&session);
        let error = session.run(Phase::Train).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(kept(&session), before);
        session.run(Phase::Evaluate).unwrap();
        assert_eq!(session.state(STEPS).unwrap(), 8);
    }
}

#[test]
fn a_mirror_counts_steps_and_shows_slots_and_states() {
    let mut session = session();
    let mirror = session.mirror().unwrap();
    assert!(mirror.read().unwrap().is_none());
    session.run(Phase::Train).unwrap();
    session.synchronize().unwrap();
    let seen = mirror.read().unwrap().unwrap();
    assert_eq!((seen.step(), seen.state(STEPS).unwrap(), seen.state(RATE).unwrap()), (1, 8, 0.25));
    assert_eq!(seen.slot(LEVEL, 1).unwrap(), session.slot(LEVEL, 1).unwrap());
    assert!(matches!(seen.slot(LEVEL, 2), Err(SessionError::Member { .. })));
    assert!(matches!(seen.state(StateOf::<i32>::new(1, "rate")), Err(SessionError::ElementType { .. })));
    assert_eq!(session.graph(Phase::Train).unwrap().edges()[5], [3, 4], "after all that none waits for");
}

#[test]
fn a_stage_runs_alone_in_both_types() {
    let mut wide = Session::new(&device(), &artefacts(), Real::F64).unwrap();
    wide.write_real("params", &[0.1, 0.2, 0.3, 0.4]).unwrap();
    wide.write_real("table", &[1.0, 2.0, 3.0]).unwrap();
    wide.write(ROWS_I32, &[0, 0]).unwrap();
    wide.run_stage("scale", Direction::Forward).unwrap();
    assert_eq!(wide.read_real("scale.y").unwrap()[1], 0.2 * 2.0 * 7.0);
    wide.run_stage("scale", Direction::Adjoint).unwrap();
    assert_eq!(wide.dump("grads").unwrap(), [2.0, 4.0, 6.0, 0.0]);
    // The producer reads float; a session of double must not hand it doubles.
    let refused = wide.run(Phase::Train);
    assert!(matches!(&refused, Err(SessionError::WrongReal { launch, .. }) if launch == "level[high]"), "{refused:?}");

    let mut narrow = session();
    assert!(matches!(narrow.run_stage("data", Direction::Adjoint), Err(SessionError::NoKernel { .. })));
    let unknown = narrow.run_stage("none", Direction::Forward).unwrap_err().to_string();
    assert!(unknown.contains("`none`") && unknown.contains("scale, data"), "{unknown}");
}

#[test]
fn resets_return_to_the_start_and_name_what_they_reset() {
    let mut session = session();
    session.set_state(STEPS, -5).unwrap();
    session.set_state(RATE, 0.125).unwrap();
    session.set_state_named("seen", 3.0).unwrap();
    session.run(Phase::Train).unwrap();
    assert_eq!(session.reset(When::Never).unwrap(), [""; 0]);
    assert_eq!(session.reset(When::Epoch).unwrap(), ["rate"]);
    assert_eq!((session.state(RATE).unwrap(), session.state(STEPS).unwrap()), (0.5, -4));
    session.set_state(RATE, 0.125).unwrap();
    assert_eq!(session.read_named::<i32>("skipped").unwrap(), [-1, 0]);
    assert_eq!(session.reset(When::Fold).unwrap(), ["level", "steps", "rate", "adam.m"]);
    assert_eq!((session.state(RATE).unwrap(), session.state(STEPS).unwrap()), (0.5, 7));
    assert_eq!(session.read_named::<i32>("skipped").unwrap(), [-1, -1]);
    assert_eq!(session.dump("smoothing").unwrap(), [0.5; 4]);
    assert_eq!(session.isv().unwrap(), [0.0; 6]);
    assert_eq!(session.state_named("seen").unwrap(), 3.0);
}

#[test]
fn unfilled_buffers_are_named() {
    let mut session = unbound();
    let error = session.run(Phase::Train).unwrap_err().to_string();
    assert!(error.contains("`table`, `rows`"), "{error}");
    assert!(matches!(session.read(ROWS_I32), Err(SessionError::Unbound { .. })));
    assert!(matches!(session.run_stage("scale", Direction::Forward), Err(SessionError::Unbound { .. })));
}

#[test]
fn wrong_writes_are_refused() {
    let mut session = session();
    let error = session.write(ROWS_I32, &[1, 2, 3]).unwrap_err();
    assert!(error.to_string().contains("`rows` holds 2 elements and 3 were given"), "{error}");
    assert!(matches!(session.write(TABLE_F32, &[1.0; 4]), Err(SessionError::Rows { row: 3, given: 4, .. })));
    let ints = BufferOf::<i32>::new(TABLE, "table");
    assert!(matches!(session.write(ints, &[1; 3]), Err(SessionError::ElementType { .. })));
    assert!(matches!(session.read(ints), Err(SessionError::ElementType { .. })));
    let foreign = BufferOf::<f32>::new(TABLE, "other");
    assert!(matches!(session.write(foreign, &[1.0; 3]), Err(SessionError::Foreign { .. })));
    assert!(matches!(session.read(BufferOf::<f32>::new(99, "x")), Err(SessionError::Foreign { .. })));
    assert!(matches!(session.state(StateOf::<f32>::new(0, "steps")), Err(SessionError::ElementType { .. })));
    assert!(matches!(session.state(StateOf::<f32>::new(2, "rate")), Err(SessionError::Foreign { .. })));
    assert!(matches!(session.slot(LEVEL, 2), Err(SessionError::Member { members: 2, .. })));
    assert!(matches!(session.dump("nothing"), Err(SessionError::Unknown { .. })));
    // Longer and shorter tables replace the old one.
    session.write(TABLE_F32, &[0.5; 9]).unwrap();
    assert_eq!(session.read(TABLE_F32).unwrap(), [0.5; 9]);
    session.write(TABLE_F32, &[]).unwrap();
    assert!(session.read(TABLE_F32).unwrap().is_empty());
}

#[test]
fn buffers_that_do_not_fit_are_refused_before_they_are_allocated() {
    let mut large = artefacts();
    let buffers = &mut large.program.as_mut().unwrap().buffers;
    (buffers[Y].name, buffers[Y].len, buffers[Y].shape) = ("gradient_scratch".into(), Some(1 << 50), vec![1 << 50]);
    let error = Session::new(&device(), &large, Real::F32).unwrap_err();
    let SessionError::TooLarge { needed, free, largest, cure } = &error else { panic!("{error}") };
    assert!(*needed > 1 << 52 && *free > 0 && free < needed, "{error}");
    assert!(largest.starts_with("`gradient_scratch` [1125899906842624] with 4503599627370496, "), "{error}");
    assert!(cure.contains("deferred"), "{error}");
}

#[test]
fn artefacts_that_contradict_themselves_are_refused() {
    type Change = fn(&mut Artefacts);
    let cases: &[(Change, &str)] = &[
        (|a| a.program.as_mut().unwrap().train[1].kernel = 9, "scale.forward"),
        (|a| a.program.as_mut().unwrap().train[1].args[4] = Arg::Buffer { buffer: Y, start: 1 }, "scale.y"),
        (|a| a.program.as_mut().unwrap().train[4].args[4] = Arg::Count(5), "params"),
        (|a| a.program.as_mut().unwrap().train[4].args[4] = Arg::Count(-1), "adam[a]"),
        (|a| a.program.as_mut().unwrap().train[3].after = vec![3], "scale.adjoint"),
        (|a| a.program.as_mut().unwrap().params[1].offset = usize::MAX, "scale.b"),
        (|a| a.resets[0].parts[0].len = 5, "level"),
        (|a| a.states[0].word = 4, "steps"),
        (|a| a.kernels[0].source = 1, "toy_count"),
    ];
    for (change, place) in cases {
        let mut wrong = artefacts();
        change(&mut wrong);
        let error = Session::new(&device(), &wrong, Real::F32).unwrap_err();
        assert!(matches!(error, SessionError::Artefacts { .. }) && error.to_string().contains(place), "{error}");
    }
    let mut none = artefacts();
    none.program = None;
    assert!(matches!(Session::new(&device(), &none, Real::F32), Err(SessionError::NoModel { .. })));
    let mut missing = artefacts();
    missing.kernels[0].symbol = "toy_gone".into();
    let error = Session::new(&device(), &missing, Real::F32);
    assert!(matches!(error, Err(SessionError::Device(DeviceError::NoKernel { .. }))), "{error:?}");
}

#[test]
fn the_first_number_that_is_not_finite_is_named() {
    let mut session = session();
    // The bits of -1 would be a NaN if an integer were taken for a float.
    assert_eq!(session.first_non_finite().unwrap(), None);
    session.write_named("grads", &[0.0f32, 0.0, f32::INFINITY, f32::NAN]).unwrap();
    session.write_named("params", &[f32::NAN; 4]).unwrap();
    assert_eq!(session.first_non_finite().unwrap().unwrap().to_string(), "`grads`[2] is inf");
    session.write(TABLE_F32, &[1.0, f32::NEG_INFINITY, 0.0]).unwrap();
    assert_eq!(session.first_non_finite().unwrap().unwrap().to_string(), "`table`[1] is -inf");
}

#[test]
fn a_checkpoint_restores_every_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let user = BTreeMap::from([("epoch".to_owned(), "3".to_owned()), ("ü \"".to_owned(), "\n".to_owned())]);
    let mut first = session();
    first.run(Phase::Train).unwrap();
    // NaN payload, negative zero, a word that nobody owns.
    first.write_named("state", &[f32::from_bits(9), -0.0, f32::from_bits(0x7fa0_1234), 5.0]).unwrap();
    first.save(&path, &user).unwrap();
    let saved = kept(&first);

    let mut second = session();
    assert_eq!(second.load(&path).unwrap(), user);
    assert_eq!(kept(&second), saved);
    assert_eq!(second.state(STEPS).unwrap(), 9);
    for session in [&mut first, &mut second] {
        session.run(Phase::Train).unwrap();
    }
    assert_eq!(kept(&first), kept(&second));

    // One state, one file.
    let again = folder.path().join("b.safetensors");
    second.load(&path).unwrap();
    second.save(&again, &user).unwrap();
    assert_eq!(fs::read(&path).unwrap(), fs::read(&again).unwrap());
}

#[test]
fn a_checkpoint_names_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    session().save(&path, &BTreeMap::new()).unwrap();
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort_unstable();
    let want = [
        "adam.m/scale.a",
        "adam.m/scale.b",
        "buffer/isv@0",
        "buffer/isv@4",
        "buffer/state@3",
        "scale.a",
        "scale.b",
        "slot/level",
        "slot/level/observed",
        "slot/level/skipped",
        "slot/level/smoothing",
        "state/rate",
        "state/seen",
        "state/steps",
    ];
    assert_eq!(names, want);
    assert_eq!(file.tensor("slot/level/smoothing").unwrap().shape(), [2, 2]);
    assert_eq!(file.tensor("state/steps").unwrap().dtype(), safetensors::Dtype::I32);
}

#[test]
fn an_export_has_any_buffer_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let mut session = session();
    session.run(Phase::Train).unwrap();
    session.export(&path, &["table", "grads", "scale.y", "params"]).unwrap();
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let shapes: BTreeMap<String, Vec<usize>> = file.iter().map(|(name, t)| (name.into(), t.shape().to_vec())).collect();
    let rows = session.read(TABLE_F32).unwrap().len() / 3;
    let want = [
        ("buffer/scale.y", vec![2, 3]),
        ("buffer/table", vec![rows, 3]),
        ("grads/scale.a", vec![3]),
        ("grads/scale.b", vec![1]),
        ("scale.a", vec![3]),
        ("scale.b", vec![1]),
    ];
    assert_eq!(shapes, BTreeMap::from(want.map(|(name, shape)| (name.to_owned(), shape))));
    let y: Vec<u8> = session.read(Y_F32).unwrap().into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(file.tensor("buffer/scale.y").unwrap().data(), y);
    let load = session.load(&path);
    assert!(matches!(load, Err(CheckpointError::NotOurs { .. })), "{load:?}");
    let unknown = session.export(&path, &["nothing"]).unwrap_err().to_string();
    assert!(unknown.contains("`nothing`") && unknown.contains("scale.y"), "{unknown}");
}

#[test]
fn scalars_are_what_a_launch_reads() {
    let mut session = session();
    session.set_state(RATE, 0.5).unwrap();
    session.set_state(STEPS, 7).unwrap();
    let scalar = |launch: &str| session.scalars(launch).unwrap();
    assert_eq!(scalar("adam[a]"), BTreeMap::from([("rate".to_owned(), 0.5)]));
    assert_eq!(scalar("scale.forward"), BTreeMap::from([("steps".to_owned(), 7.0)]));
    assert_eq!(scalar("count"), BTreeMap::new(), "it writes what it has");
    let unknown = session.scalars("gone").unwrap_err().to_string();
    assert!(unknown.contains("`gone`") && unknown.contains("scale.adjoint"), "{unknown}");
}

#[test]
fn another_layout_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    session().save(&path, &BTreeMap::new()).unwrap();
    let mut other = artefacts();
    other.fingerprint = "f2".into();
    other.states[1].name = "speed".into();
    other.slots[0].index = 3;
    other.resets[2].name = "speed".into();
    let mut other = Session::new(&device(), &other, Real::F32).unwrap();
    let before = kept(&other);
    let error = other.load(&path).unwrap_err();
    let text = error.to_string();
    let CheckpointError::Fingerprint { differences, .. } = error else {
        panic!("{text}");
    };
    assert_eq!((differences.added, differences.removed), (vec!["state `speed`".into()], vec!["state `rate`".into()]));
    assert!(text.contains("moved: slot `level` (was 2 [low high], is 3 [low high])"), "{text}");
    assert_eq!(kept(&other), before);

    let mut wide = Session::new(&device(), &artefacts(), Real::F64).unwrap();
    assert!(matches!(wide.load(&path), Err(CheckpointError::NotOurs { .. })));
}

/// What loading a file of these bytes says; nothing of the session may have changed.
fn load_bytes(folder: &Path, bytes: &[u8]) -> CheckpointError {
    let path = folder.join("damaged");
    fs::write(&path, bytes).unwrap();
    let mut session = session();
    let before = kept(&session);
    let error = session.load(&path).unwrap_err();
    assert_eq!(kept(&session), before);
    error
}

#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    session().save(&path, &BTreeMap::new()).unwrap();
    let whole = fs::read(&path).unwrap();
    let load = |bytes: &[u8]| load_bytes(folder.path(), bytes);

    assert!(matches!(load(&[]), CheckpointError::Empty { .. }));
    for cut in [1, 7, 8, 9, whole.len() / 2, whole.len() - 1] {
        let error = load(&whole[..cut]);
        assert!(matches!(error, CheckpointError::Truncated { .. }), "{cut}: {error}");
    }
    assert!(matches!(load(&[&whole[..], &[0]].concat()), CheckpointError::Truncated { .. }));
    let huge = |length: u64| load(&[&length.to_le_bytes()[..], &whole[8..]].concat());
    assert!(matches!(huge(u64::MAX), CheckpointError::HeaderLength { .. }));
    assert!(matches!(huge(100_000_001), CheckpointError::HeaderLength { .. }));
    assert!(matches!(huge(99_999_999), CheckpointError::Truncated { .. }));
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(matches!(load(&flipped), CheckpointError::Checksum { .. }));
}

#[test]
fn lying_headers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let load = |header: &str| {
        let length = header.len() as u64;
        load_bytes(folder.path(), &[&length.to_le_bytes()[..], header.as_bytes()].concat())
    };
    assert!(matches!(load("nonsense"), CheckpointError::Header { .. }));
    assert!(matches!(load("{}"), CheckpointError::NotOurs { .. }));
    let error = load(r#"{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#);
    assert!(matches!(error, CheckpointError::Overflow { .. }), "{error}");
    let error = load(r#"{"x":{"dtype":"U8","shape":[2305843009213693951],"data_offsets":[0,2305843009213693951]}}"#);
    assert!(matches!(error, CheckpointError::Truncated { .. }), "{error}");
    let error = load(r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#);
    assert!(matches!(error, CheckpointError::Header { .. }), "{error}");
    let error = load(r#"{"__metadata__":{"unio":"{}"}}"#);
    assert!(matches!(error, CheckpointError::NotOurs { .. }), "{error}");
}

#[test]
fn a_failed_save_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let session = session();
    let none = BTreeMap::new();
    let nowhere = folder.path().join("missing").join("a.safetensors");
    assert!(matches!(session.save(&nowhere, &none), Err(CheckpointError::Save { .. })));
    assert!(!nowhere.exists());

    // Renaming onto a folder fails after all was written.
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("inside"), "x").unwrap();
    assert!(matches!(session.save(&taken, &none), Err(CheckpointError::Save { .. })));
    assert_eq!(fs::read(taken.join("inside")).unwrap(), b"x");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    // What a killed run left behind bothers nobody.
    let path = folder.path().join("a.safetensors");
    session.save(&path, &none).unwrap();
    fs::write(folder.path().join(".checkpoint-dead.partial"), "half").unwrap();
    let old = fs::read(&path).unwrap();
    session.save(&path, &none).unwrap();
    assert_eq!(fs::read(&path).unwrap(), old);
    assert!(matches!(session.save(path.join("below"), &none), Err(CheckpointError::Save { .. })));
    assert_eq!(fs::read(&path).unwrap(), old);
}

#[test]
fn every_message_names_a_cure() {
    let mut session = unbound();
    let messages = [
        session.write(ROWS_I32, &[1]).unwrap_err().to_string(),
        session.run(Phase::Train).unwrap_err().to_string(),
        session.dump("x").unwrap_err().to_string(),
        session.slot(LEVEL, 7).unwrap_err().to_string(),
        session.load("no/such/file").unwrap_err().to_string(),
    ];
    for message in messages {
        assert!(message.contains(';') && message.contains('`') || message.contains("no/such/file"), "{message}");
    }
}
