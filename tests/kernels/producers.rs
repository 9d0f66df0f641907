//! Producers against the sorted or closed-form truth.

use unio::device::Real;
use unio::interface::Artefacts;
use unio::random::Stream;
use unio::{Phase, Session};
use unio_tests::{MANIFEST, device, fixture_text};

const SIZES: [usize; 10] = [1, 31, 32, 33, 48, 255, 256, 257, 1025, 4096];

/// A buffer of a known length is read by one block, one of any length by as many as it takes.
#[derive(Clone, Copy, Debug)]
enum Length {
    Known(usize),
    Any,
}

/// A law that remembers nothing.
const LAST: &str = "[smoothing.last]\ndoc = \"x\"\nstate = []\nmath = \"next.mean = x\"\n";

const BOTH: [fn(usize) -> Length; 2] = [Length::Known, |_| Length::Any];

fn compiled(length: Length) -> Artefacts {
    let shape = match length {
        Length::Known(n) => format!("[{n}]"),
        Length::Any => "[*]".into(),
    };
    compiled_from(&fixture_text("producers/statistics.toml").replace("[N]", &shape))
}

/// A set of one file.
pub(crate) fn compiled_from(spec: &str) -> Artefacts {
    let texts = [("specs/t/unio.toml", MANIFEST), ("specs/t/p.toml", spec)];
    unio_codegen::compile_texts(&texts).unwrap_or_else(|e| panic!("{e}")).artefacts
}

struct Measured {
    session: Session,
}

impl Measured {
    fn of(length: Length, data: &[f64]) -> Self {
        let mut session = Session::new(&device().unwrap(), &compiled(length), Real::F32).unwrap();
        let other: Vec<f64> = (0..data.len()).map(|n| Stream::new(9, "other").symmetric(n as u64)).collect();
        session.write_real("data", data).unwrap();
        session.write_real("other", &other).unwrap();
        session.run(Phase::Train).unwrap();
        Self { session }
    }

    fn slot(&self, name: &str) -> f64 {
        f64::from(self.session.slot_named(name).unwrap()[0])
    }
}

/// Values of a normal distribution, as f32 holds them.
pub(crate) fn normal(n: usize) -> Vec<f64> {
    let stream = Stream::new(21, "normal");
    let uniform = |k: u64| 0.5 + 0.5 * stream.symmetric(k);
    let value = |k: usize| {
        let (u, v) = (uniform(2 * k as u64).max(1e-12), uniform(2 * k as u64 + 1));
        f64::from(((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32)
    };
    (0..n).map(value).collect()
}

/// The smallest value with at least this share of the elements at or below it.
pub(crate) fn quantile(data: &[f64], share: f64) -> f64 {
    let mut sorted: Vec<f64> = data.iter().map(|x| x.abs()).collect();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank - 1]
}

pub(crate) fn close(what: &str, got: f64, expected: f64, tolerance: f64) {
    let error = (got - expected).abs() / expected.abs().max(1e-30);
    assert!(error <= tolerance, "{what}: {got} instead of {expected}, off by {error:e}");
}

#[test]
fn statistics_equal_the_truth_at_odd_sizes() {
    for (n, length) in SIZES.into_iter().flat_map(|n| BOTH.map(|length| (n, length(n)))) {
        let data = normal(n);
        let m = Measured::of(length, &data);
        close(&format!("p99 of {n}"), m.slot("p99"), quantile(&data, 0.99), 0.005);
        close(&format!("median of {n}"), m.slot("p50"), quantile(&data, 0.5), 0.005);
        let sum: f64 = data.iter().sum();
        let squares: f64 = data.iter().map(|x| x * x).sum();
        close(&format!("sum of {n}"), m.slot("total"), sum, 1e-6);
        close(&format!("mean of {n}"), m.slot("mean"), data.iter().map(|x| x.abs()).sum::<f64>() / n as f64, 1e-6);
        close(&format!("rms of {n}"), m.slot("root"), (squares / n as f64).sqrt(), 1e-6);
        close(&format!("norm of {n}"), m.slot("norm"), squares.sqrt(), 1e-6);
        close(&format!("max of {n}"), m.slot("top"), data.iter().copied().fold(f64::MIN, f64::max), 0.0);
    }
}

/// Student's t: a normal over the root of a mean of `k` squared normals.
fn student(n: usize, k: usize) -> Vec<f64> {
    let all = normal(n * (k + 1));
    let value = |row: &[f64]| row[0] / (row[1..].iter().map(|x| x * x).sum::<f64>() / k as f64).sqrt();
    all.chunks(k + 1).map(|row| f64::from(value(row) as f32)).collect()
}

fn laplace(n: usize) -> Vec<f64> {
    let stream = Stream::new(22, "laplace");
    (0..n as u64).map(|k| stream.symmetric(k)).map(|u| f64::from((-u.signum() * (1.0 - u.abs()).ln()) as f32)).collect()
}

#[test]
fn quantiles_hold_on_every_shape() {
    let n = 40_000;
    let with =
        |f: fn(usize, f64) -> f64| normal(n).into_iter().enumerate().map(|(k, x)| f64::from(f(k, x) as f32)).collect();
    let shapes: [(&str, Vec<f64>); 8] = [
        ("normal", normal(n)),
        ("Laplace", laplace(n)),
        ("Student 2", student(n, 2)),
        ("Student 3", student(n, 3)),
        ("log-normal", with(|_, x| (3.0 * x).exp())),
        ("all equal", vec![f64::from(0.3f32); n]),
        ("one spike", with(|k, x| if k == 77 { 1e30 } else { x })),
        ("mostly zero", with(|k, x| if k % 50 == 0 { x } else { 0.0 })),
    ];
    for (name, data) in shapes {
        for length in BOTH {
            close(name, Measured::of(length(data.len()), &data).slot("p99"), quantile(&data, 0.99), 0.005);
        }
    }
}

#[test]
fn a_spike_among_a_million_moves_nothing() {
    let mut data = normal(1_000_000);
    data[123_456] = 1e4;
    close("spike", Measured::of(Length::Any, &data).slot("p99"), quantile(&data, 0.99), 0.005);
}

/// Below the smallest normal float only an absolute error can be promised.
#[test]
fn denormals_are_within_two_to_the_minus_133() {
    let tiny = 2f64.powi(-149);
    let data: Vec<f64> = (0..1000).map(|k| f64::from(k * 4096) * tiny).collect();
    for length in BOTH {
        let got = Measured::of(length(data.len()), &data).slot("p99");
        let error = (got - quantile(&data, 0.99)).abs();
        assert!(error <= 2f64.powi(-133), "off by {error:e}");
    }
}

#[test]
fn what_is_not_finite_is_counted_apart() {
    let mut data = normal(1000);
    data[3] = f64::NAN;
    data[999] = f64::INFINITY;
    let finite: Vec<f64> = data.iter().copied().filter(|x| x.is_finite()).collect();
    let m = Measured::of(Length::Any, &data);
    close("p99 of the finite", m.slot("p99"), quantile(&finite, 0.99), 0.005);
    // A sum cannot leave them out: it is no observation, so the slot stays and the event is counted.
    assert_eq!(m.slot("total"), 0.0);
    let skipped = m.session.dump("skipped").unwrap();
    assert!(skipped.contains(&1.0), "{skipped:?}");
}

#[test]
fn nothing_but_nan_is_no_value() {
    let m = Measured::of(Length::Any, &[f64::NAN; 40]);
    assert_eq!(m.slot("p99"), 0.0);
}

#[test]
fn zeros_change_no_slot() {
    let m = Measured::of(Length::Any, &[0.0; 300]);
    for name in ["p99", "p50", "total", "mean", "root", "norm"] {
        assert_eq!(m.slot(name), 0.0, "{name}");
    }
}

#[test]
fn a_million_elements_and_one_more() {
    let data = normal(1_000_003);
    let m = Measured::of(Length::Any, &data);
    close("p99", m.slot("p99"), quantile(&data, 0.99), 0.005);
    close("median", m.slot("p50"), quantile(&data, 0.5), 0.005);
    let squares: f64 = data.iter().map(|x| x * x).sum();
    close("norm", m.slot("norm"), squares.sqrt(), 1e-6);
}

/// One block and many blocks count the same, so that a spec's answer does not hang on its schedule.
#[test]
fn the_answer_depends_on_the_data_alone() {
    let data = normal(9000);
    let (one, many) = (Measured::of(Length::Known(9000), &data), Measured::of(Length::Any, &data));
    for name in ["p99", "p50", "top"] {
        assert_eq!(one.slot(name), many.slot(name), "{name}");
    }
}

/// Whatever a spec calls its buffers and signals, it is not what the kernels call their own.
#[test]
fn buffers_may_be_called_what_kernels_call_their_own() {
    let names = [
        "counts_0",
        "counts_0_list",
        "counts_0_value",
        "stat_0",
        "stat_0_settled",
        "acc_1",
        "total_1",
        "total_1_first",
        "whole",
        "many",
        "lead",
        "own",
        "g",
        "g_s",
        "g_s_next",
        "summed",
        "outside",
        "rows",
        "row",
        "n",
        "e",
        "k",
        "first",
        "joined",
        "known",
        "parts",
    ];
    let reads: Vec<String> = names.iter().map(|name| format!("{name} = \"data\"")).collect();
    let sum: Vec<String> = names.iter().map(|name| format!("sum({name})")).collect();
    for (shape, n) in [("[*]", 5000), ("[64]", 64)] {
        let spec = format!(
            "[external.data]\ndoc = \"x\"\nshape = \"{shape}\"\n[producer.stat_1]\ndoc = \"x\"\nread = {{ {} }}\nsmooth = \"pearl_ad\"\n\
             reset = \"fold\"\nmonitoring = true\n[producer.stat_1.signal]\ncounts_1 = {{ value = \"p99(abs(counts_0))\" }}\n\
             total_2 = {{ value = \"{}\" }}\n",
            reads.join(", "),
            sum.join(" + ")
        );
        let mut session = Session::new(&device().unwrap(), &compiled_from(&spec), Real::F32).unwrap();
        session.write_real("data", &vec![0.5; n]).unwrap();
        session.run(Phase::Train).unwrap();
        close("sum", f64::from(session.slot_named("total_2").unwrap()[0]), 0.5 * (n * names.len()) as f64, 1e-6);
        close("p99", f64::from(session.slot_named("counts_1").unwrap()[0]), 0.5, 0.005);
    }
}

/// The same of an optimizer that counts.
#[test]
fn a_state_may_be_called_what_a_counter_calls_its_own() {
    let spec = format!(
        "[update.adder]\ndoc = \"x\"\nover = \"group\"\nparam = \"w\"\ngrad = \"g\"\n\
         state = {{ counted_s = {{ reset = \"fold\" }} }}\n\
         math = \"\"\"\nnext.w = w - 0.5 * g\nnext.counted_s = counted_s + g\ncount.moved = abs(g) > 0\n\"\"\"\n\
         [group.all]\ndoc = \"x\"\nbuffers = [\"all\"]\noptimizer = \"adder\"\n\
         {LAST}[producer.moves]\ndoc = \"x\"\nfor = \"group\"\nread = {{ m = \"moved\" }}\nsignal = \"sum(real(m))\"\n\
         smooth = \"last\"\nreset = \"fold\"\nmonitoring = true\n"
    );
    let mut session = Session::new(&device().unwrap(), &compiled_from(&spec), Real::F32).unwrap();
    for array in ["params", "grads", "counted_s"] {
        session.write_real(&format!("all.{array}"), &[1.0, 0.0, 2.0]).unwrap();
    }
    session.run(Phase::Train).unwrap();
    assert_eq!(session.slot_named("moves").unwrap(), [2.0]);
    assert_eq!(session.read_real("all.counted_s").unwrap(), [2.0, 0.0, 4.0]);
    assert_eq!(session.read_real("all.params").unwrap(), [0.5, 0.0, 1.0]);
}

#[test]
fn no_elements_are_no_observation() {
    let m = Measured::of(Length::Any, &[]);
    assert_eq!(m.slot("p99"), 0.0);
    assert_eq!(m.slot("total"), 0.0);
}

#[test]
fn sums_that_cancel_and_squares_that_overflow_f32_are_measured() {
    let n = 4096;
    let (x, y): (Vec<f64>, Vec<f64>) =
        (0..n).map(|k| (f64::from(1.0f32 + k as f32 * 1e-4), if k % 2 == 0 { 1.0 } else { -1.0 })).unzip();
    let exact: f64 = x.iter().zip(&y).map(|(x, y)| x * y).sum::<f64>().abs() / x.iter().map(|x| x * x).sum::<f64>();
    let mut session = Session::new(&device().unwrap(), &compiled(Length::Any), Real::F32).unwrap();
    session.write_real("data", &x).unwrap();
    session.write_real("other", &y).unwrap();
    session.run(Phase::Train).unwrap();
    close("ratio", f64::from(session.slot_named("ratio").unwrap()[0]), exact, 1e-6);
    close("norm", Measured::of(Length::Any, &[3e20, 4e20]).slot("norm"), 5e20, 1e-6);
}

#[test]
fn buffers_of_two_lengths_are_refused() {
    let mut session = Session::new(&device().unwrap(), &compiled(Length::Any), Real::F32).unwrap();
    session.write_real("data", &[1.0; 5]).unwrap();
    session.write_real("other", &[1.0; 4]).unwrap();
    let error = session.run(Phase::Train).unwrap_err().to_string();
    assert!(error.contains("`other` has 4 rows"), "{error}");
}

/// Rows of a known number beside elements that the run tells, whichever of them the launch counts.
#[test]
fn fewer_rows_than_a_launch_covers_are_refused() {
    for [rows, elements] in [["a", "b"], ["b", "a"]] {
        let spec = format!(
            "[external.pairs]\ndoc = \"x\"\nshape = \"[2, 2, 3]\"\n[external.data]\ndoc = \"x\"\nshape = \"[*]\"\n{LAST}\
             [producer.size]\ndoc = \"x\"\nread = {{ {rows} = \"pairs\", {elements} = \"data\" }}\n\
             signal = \"sum({rows}[0] * {elements})\"\nsmooth = \"last\"\nreset = \"fold\"\nmonitoring = true\n"
        );
        let mut session = Session::new(&device().unwrap(), &compiled_from(&spec), Real::F32).unwrap();
        session.write_real("pairs", &(0..12).map(f64::from).collect::<Vec<f64>>()).unwrap();
        session.write_real("data", &[1.0; 4]).unwrap();
        session.run(Phase::Train).unwrap();
        assert_eq!(session.slot_named("size").unwrap(), [0.0 + 3.0 + 6.0 + 9.0]);
        let (given, says) = if rows == "a" { (3, "`data` has 3 rows") } else { (5, "`pairs` has 4 rows") };
        session.write_real("data", &vec![1.0; given]).unwrap();
        let error = session.run(Phase::Train).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Also where the rows are a stage's and nobody writes them from outside.
#[test]
fn more_elements_than_a_stage_has_rows_are_refused() {
    let measured = format!(
        "\n[external.data]\ndoc = \"x\"\nshape = \"[*]\"\n{LAST}\
         [producer.size]\ndoc = \"x\"\nread = {{ a = \"data\", h = \"cfc.h_next\" }}\nsignal = \"sum(a * h[0])\"\n\
         smooth = \"last\"\nreset = \"fold\"\nmonitoring = true\n"
    );
    let artefacts = unio_tests::compile_edited("cfc", &[], |text| text.to_owned() + &measured).artefacts;
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
    unio_tests::fill_externals(&mut session, &artefacts, 8).unwrap();
    session.init_params(1).unwrap();
    session.write_real("data", &[1.0; 8]).unwrap();
    session.run(Phase::Train).unwrap();
    let first: f64 = session.read_real("cfc.h_next").unwrap().iter().step_by(3).sum();
    close("size", f64::from(session.slot_named("size").unwrap()[0]), first, 1e-5);
    session.write_real("data", &[1.0; 9]).unwrap();
    let error = session.run(Phase::Train).unwrap_err().to_string();
    assert!(error.contains("`cfc.h_next` has 8 rows"), "{error}");
}

/// The first design, kept as a schedule: right on a normal distribution, lost where one value is far out.
#[test]
fn linear_bins_agree_on_normals_and_fail_on_a_spike() {
    let measure = |data: &[f64], schedule: &str| {
        let spec = fixture_text("producers/statistics.toml").replace("[N]", "[*]");
        let spec = spec.replace("monitoring = true", &format!("monitoring = true\nschedule = \"{schedule}\""));
        let compiled = compiled_from(&spec);
        let mut session = Session::new(&device().unwrap(), &compiled, Real::F32).unwrap();
        session.write_real("data", data).unwrap();
        session.write_real("other", data).unwrap();
        session.run(Phase::Train).unwrap();
        f64::from(session.slot_named("p99").unwrap()[0])
    };
    let mut data = normal(4096);
    close("normal", measure(&data, "linear"), quantile(&data, 0.99), 0.05);
    close("normal", measure(&data, "linear"), measure(&data, "counts"), 0.05);
    data[7] = 1e4;
    let truth = quantile(&data, 0.99);
    close("spike", measure(&data, "counts"), truth, 0.005);
    assert!(measure(&data, "linear") > 5.0 * truth, "256 bins up to 1e4 cannot tell");
}

/// The groups of one model have lengths that the plan knows: few elements of the one, many of another.
#[test]
fn a_models_groups_are_measured_each_over_its_own_elements() {
    let artefacts = unio_tests::compile_set("perception").artefacts;
    let params = &artefacts.program.as_ref().unwrap().params;
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
    unio_tests::fill_externals(&mut session, &artefacts, 64).unwrap();
    session.init_params(1).unwrap();
    session.run(Phase::Train).unwrap();
    let (weights, grads) = (session.read_real("params").unwrap(), session.read_real("grads").unwrap());
    let mut lengths = Vec::new();
    for (member, group) in ["heads", "select", "trunk"].into_iter().enumerate() {
        let own = params.iter().filter(|p| p.group == group);
        let ranges = own.map(|p| p.offset..p.offset + p.shape.iter().product::<usize>());
        let elements: Vec<usize> = ranges.flatten().collect();
        let of = |all: &[f64]| elements.iter().map(|n| all[*n]).collect::<Vec<f64>>();
        let (w, g) = (of(&weights), of(&grads));
        let slot = |name: &str| f64::from(session.slot_named(name).unwrap()[member]);
        close(&format!("weight_bound[{group}]"), slot("weight_bound"), quantile(&w, 0.99), 0.005);
        let product: f64 = w.iter().zip(&g).map(|(w, g)| w * g).sum();
        let squares: f64 = w.iter().map(|w| w * w).sum();
        close(&format!("wd_rate[{group}]"), slot("wd_rate"), product.abs() / squares.max(1e-8), 1e-3);
        lengths.push(elements.len());
    }
    assert!(
        lengths.iter().any(|n| *n <= 4096) && lengths.iter().any(|n| *n > 4096),
        "{lengths:?}: one form was not met"
    );
}

/// A clamp by the bound of the step before comes after the measuring and before the slot moves, however few elements there are.
#[test]
fn a_clamp_by_the_last_bound_comes_between_the_read_and_the_slot() {
    let spec = "[external.data]\ndoc = \"x\"\nshape = \"[*]\"\n\
                [producer.size]\ndoc = \"x\"\nread = { x = \"data\" }\nsignal = \"p99(abs(x))\"\nsmooth = \"pearl_ad\"\n\
                reset = \"fold\"\n\
                [update.clamp]\ndoc = \"x\"\nover = \"x: data\"\n\
                math = \"next.x = min(max(x, -max(prev.size, 0.5)), max(prev.size, 0.5))\"\n";
    let artefacts = compiled_from(spec);
    for n in [1, 100, 5000] {
        let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
        let data: Vec<f64> = normal(n).into_iter().map(|x| 2.0 * x).collect();
        session.write_real("data", &data).unwrap();
        session.graph(Phase::Train).unwrap().launch().unwrap();
        close(&format!("of {n}"), f64::from(session.slot_named("size").unwrap()[0]), quantile(&data, 0.99), 0.005);
        assert!(session.read_real("data").unwrap().iter().all(|x| x.abs() <= 0.5), "{n}");
    }
}

/// Rows have as many dimensions as are named, and there are as many as stand before them.
#[test]
fn a_row_is_what_a_signal_names() {
    let entry = |name: &str, value: &str| {
        format!(
            "[producer.{name}]\ndoc = \"x\"\nread = {{ x = \"data\" }}\nsignal = \"{value}\"\nsmooth = \"last\"\n\
             reset = \"fold\"\nmonitoring = true\n"
        )
    };
    for samples in ["3", "*"] {
        let spec = format!(
            "[external.data]\ndoc = \"x\"\nshape = \"[{samples}, 40, 2]\"\n{LAST}{}{}{}",
            entry("products", "sum(x[0] * x[1])"),
            entry("of_days", "mean(mean(k, x[k,1]))"),
            entry("of_all", "mean(abs(x))"),
        );
        let mut session = Session::new(&device().unwrap(), &compiled_from(&spec), Real::F32).unwrap();
        let data = normal(240);
        session.write_real("data", &data).unwrap();
        session.run(Phase::Train).unwrap();
        let slot = |name: &str| f64::from(session.slot_named(name).unwrap()[0]);
        let pairs = || data.chunks(2);
        close("products", slot("products"), pairs().map(|p| p[0] * p[1]).sum(), 1e-5);
        close("of_days", slot("of_days"), pairs().map(|p| p[1]).sum::<f64>() / 120.0, 1e-5);
        close("of_all", slot("of_all"), data.iter().map(|x| x.abs()).sum::<f64>() / 240.0, 1e-5);
    }
}

/// `prev` of an entry's own slot is what it held before the entry moved it on; the text does not promise that nobody writes it.
#[test]
fn an_entry_reads_what_its_own_slot_was() {
    let spec = format!(
        "[external.data]\ndoc = \"x\"\nshape = \"[*]\"\n{LAST}\
         [producer.size]\ndoc = \"x\"\nread = {{ x = \"data\" }}\nsmooth = \"last\"\nreset = \"fold\"\nmonitoring = true\n\
         [producer.size.signal]\nlevel = {{ value = \"mean(x)\" }}\nchange = {{ value = \"mean(x) - prev.level\" }}\n"
    );
    let artefacts = compiled_from(&spec);
    let found = |what: &str| artefacts.sources.iter().map(|s| s.text.matches(what).count()).sum::<usize>();
    assert_eq!(found("UNIO_SCALAR(float, prev_level)"), found("UNIO_INOUT(float, level_slot)"));
    for n in [100, 20_000] {
        let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
        for (level, change) in [(4.0, 4.0), (6.0, 2.0), (5.0, -1.0)] {
            session.write_real("data", &vec![level; n]).unwrap();
            session.run(Phase::Train).unwrap();
            let slot = |name: &str| session.slot_named(name).unwrap()[0];
            assert_eq!((slot("level"), slot("change")), (level as f32, change as f32), "{n}");
        }
    }
}
