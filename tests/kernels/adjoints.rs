//! Every derived adjoint against central differences of its own generated forward kernels, in f64.

use unio::device::Real;
use unio::interface::Artefacts;
use unio::random::Stream;
use unio::{Phase, Session};
use unio_tests::{compile_run, device, times};

/// Elements of one tensor that are varied; larger tensors are sampled.
const ELEMENTS: usize = 24;
/// Step of the central difference.
const STEP: f64 = 1e-5;
/// Largest error, relative to the larger of 1 and the gradient.
const TOLERANCE: f64 = 1e-6;

#[test]
fn two_step_scan() {
    check("two_step_scan", &[]);
}

/// What a block carries lies in memory of its own where shared memory has no room; backwards it goes the other way.
#[test]
fn a_carry_too_wide_for_shared_memory() {
    check("wide_carry", &[]);
}

#[test]
fn functions() {
    for size in [1, 3, 33] {
        check("functions", &[("I", size)]);
    }
}

#[test]
fn what_a_select_leaves_out_reaches_no_gradient() {
    check("guarded", &[]);
}

#[test]
fn cfc_at_odd_sizes() {
    check("cfc", &[]);
    check("cfc", &[("K", 1), ("I", 1), ("U", 1), ("H", 1)]);
    check("cfc", &[("K", 3), ("I", 33), ("U", 3), ("H", 33)]);
}

/// Each phase of a step keeps its own elements of the weight in registers.
#[test]
fn a_weight_that_a_step_reads_in_two_ways() {
    check("tied", &[]);
    check("tied", &[("H", 33), ("U", 5)]);
    check("tied", &[("H", 64), ("U", 32)]);
}

#[test]
fn softmax_of_sums() {
    check("softmax_of_sums", &[]);
    check("softmax_of_sums", &[("K", 1), ("H", 1)]);
    check("softmax_of_sums", &[("K", 5), ("H", 33)]);
}

/// Beyond a warp: sums are split between lanes there, and weights stay in registers.
#[test]
fn cfc_and_mamba2_at_wide_sizes() {
    check("cfc", &[("K", 3), ("I", 40), ("U", 64), ("H", 70)]);
    check("mamba2", &[("K", 3), ("H", 64), ("G", 2), ("P", 32), ("N", 16)]);
}

#[test]
fn pool_at_odd_sizes() {
    check("pool", &[]);
    check("pool", &[("K", 1), ("H", 1), ("A", 1)]);
    check("pool", &[("K", 33), ("H", 3), ("A", 33)]);
}

#[test]
fn head_at_odd_sizes() {
    for size in [1, 3, 33] {
        check("head", &[("I", size)]);
    }
}

#[test]
fn cfc_variants_at_odd_sizes() {
    for variant in ["cfc_no_gate", "cfc_pure"] {
        check(variant, &[]);
        check(variant, &[("K", 1), ("I", 1), ("U", 1), ("H", 1)]);
        check(variant, &[("K", 3), ("I", 33), ("U", 3), ("H", 33)]);
    }
}

#[test]
fn norms_at_odd_sizes() {
    for size in [1, 3, 33] {
        check("layer_norm", &[("I", size)]);
        check("rms_norm", &[("I", size)]);
    }
}

#[test]
fn grn_at_odd_sizes() {
    check("grn", &[]);
    check("grn", &[("I", 1), ("H", 1)]);
    check("grn", &[("I", 33), ("H", 3)]);
}

#[test]
fn grn_with_context_and_skip_at_odd_sizes() {
    for name in ["grn_dense", "grn_context", "grn_dense_context"] {
        check(name, &[]);
        check(name, &[("I", 1), ("H", 1), ("O", 1), ("C", 1)]);
        check(name, &[("I", 33), ("H", 3), ("O", 3), ("C", 33)]);
    }
}

#[test]
fn vsn_from_one_variable_to_many() {
    check("vsn", &[]);
    check("vsn", &[("M", 1), ("I", 1), ("H", 1)]);
    check("vsn", &[("M", 33), ("I", 3), ("H", 3)]);
    check("vsn_each", &[]);
    check("vsn_each", &[("K", 1), ("M", 1), ("I", 3), ("H", 33)]);
}

#[test]
fn masked_pool_at_odd_sizes() {
    check("masked_pool", &[]);
    check("masked_pool", &[("K", 1), ("H", 1), ("A", 1)]);
    check("masked_pool", &[("K", 33), ("H", 3), ("A", 33)]);
}

#[test]
fn regression_heads_at_odd_sizes() {
    for size in [1, 3, 33] {
        check("squared_head", &[("I", size)]);
        check("huber_head", &[("I", size)]);
    }
}

#[test]
fn gathers_from_what_is_trained() {
    check("gathers", &[]);
    check("gathers", &[("I", 33), ("J", 9)]);
}

#[test]
fn mamba2_at_odd_sizes() {
    check("mamba2_head", &[]);
    check("mamba2_head", &[("K", 1), ("P", 1), ("N", 1)]);
    check("mamba2_head", &[("K", 3), ("P", 33), ("N", 3)]);
    check("mamba2", &[]);
    check("mamba2", &[("K", 1), ("H", 1), ("G", 1), ("P", 1), ("N", 1)]);
    check("mamba2", &[("K", 3), ("H", 33), ("G", 3), ("P", 1), ("N", 3)]);
}

fn check(name: &str, sizes: &[(&str, usize)]) {
    let artefacts = compile_run(name, sizes).artefacts;
    let worst = Checker::new(&artefacts).worst();
    assert!(worst.1 < TOLERANCE, "{name} {sizes:?}: {} is off by {:e}", worst.0, worst.1);
}

struct Checker<'a> {
    artefacts: &'a Artefacts,
    session: Session,
    params: Vec<f64>,
    objective: String,
}

impl<'a> Checker<'a> {
    fn new(artefacts: &'a Artefacts) -> Self {
        Self::of(artefacts, Real::F64)
    }

    fn of(artefacts: &'a Artefacts, real: Real) -> Self {
        let mut session = Session::new(&device().unwrap(), artefacts, real).unwrap();
        let program = artefacts.program.as_ref().unwrap();
        for buffer in program.buffers.iter().filter(|b| b.external) {
            let stream = Stream::new(7, &buffer.name);
            let draws: Vec<f64> = (0..buffer.len.unwrap()).map(|n| stream.symmetric(n as u64)).collect();
            match buffer.name.as_str() {
                // Some rows lie beyond either end.
                "row" => {
                    let rows: Vec<i32> = draws.iter().map(|x| (3.0 + 5.0 * x) as i32).collect();
                    session.write_named("row", &rows).unwrap();
                }
                // The first sample is masked as a whole.
                "mask" => {
                    let steps = draws.len() / program.batch;
                    let mask: Vec<f64> =
                        draws.iter().enumerate().map(|(n, x)| f64::from(n >= steps && *x > -0.3)).collect();
                    session.write_real("mask", &mask).unwrap();
                }
                name => {
                    let values: Vec<f64> = draws.iter().map(|x| 1.0 + 0.5 * x).collect();
                    session.write_real(name, &values).unwrap();
                }
            }
        }
        session.init_params(3).unwrap();
        let mut params = session.read_real("params").unwrap();
        // Biases start at zero, where a wrong derivative could hide.
        for (n, p) in params.iter_mut().enumerate() {
            *p += 0.1 * Stream::new(5, "params").symmetric(n as u64);
        }
        let objective = objective(artefacts);
        Self { artefacts, session, params, objective }
    }

    /// The parameter whose gradient is furthest from the difference, and by how much.
    fn worst(&mut self) -> (String, f64) {
        let derived = self.gradient();
        let mut worst = (String::new(), 0.0);
        for param in &self.artefacts.program.as_ref().unwrap().params {
            let len = param.shape.iter().product::<usize>();
            for n in (0..len).step_by(len.div_ceil(times(ELEMENTS, 2))) {
                let at = param.offset + n;
                let expected = self.difference(at);
                let error = (derived[at] - expected).abs() / expected.abs().max(1.0);
                if error.is_nan() || error > worst.1 {
                    worst = (format!("{}[{n}]: derived {}, difference {expected}", param.path, derived[at]), error);
                }
            }
        }
        worst
    }

    fn gradient(&mut self) -> Vec<f64> {
        self.session.write_real("params", &self.params).unwrap();
        self.session.run(Phase::Train).unwrap();
        self.session.read_real("grads").unwrap()
    }

    fn difference(&mut self, at: usize) -> f64 {
        let mut moved = |by: f64| {
            let mut params = self.params.clone();
            params[at] += by;
            self.session.write_real("params", &params).unwrap();
            self.session.run(Phase::Evaluate).unwrap();
            let losses = self.session.read_real(&self.objective).unwrap();
            losses.iter().sum::<f64>() / losses.len() as f64
        };
        (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
    }
}

/// The buffer of the objective: what the last forward launch writes.
fn objective(artefacts: &Artefacts) -> String {
    let program = artefacts.program.as_ref().unwrap();
    let ends = |b: &&unio::interface::Buffer| b.name.ends_with(".total") || b.name == "head.loss";
    program.buffers.iter().find(ends).unwrap().name.clone()
}

/// Blocks of `unio:common` at the sizes at which PyTorch is asked about them.
const FOR_PYTORCH: &[(&str, &[(&str, usize)])] = &[
    ("cfc", &[("K", 3), ("I", 33), ("U", 3), ("H", 33)]),
    ("cfc", &[("K", 1), ("I", 1), ("U", 1), ("H", 1)]),
    ("cfc_no_gate", &[("K", 3), ("I", 33), ("U", 3), ("H", 33)]),
    ("cfc_pure", &[("K", 3), ("I", 33), ("U", 3), ("H", 33)]),
    ("grn", &[("I", 33), ("H", 3)]),
    ("grn_dense", &[("I", 33), ("H", 3), ("O", 3)]),
    ("grn_context", &[("I", 33), ("H", 3), ("C", 33)]),
    ("grn_dense_context", &[("I", 33), ("H", 3), ("O", 3), ("C", 1)]),
    ("vsn", &[("M", 33), ("I", 3), ("H", 3)]),
    ("vsn", &[("M", 1), ("I", 1), ("H", 33)]),
    ("vsn_each", &[("K", 3), ("M", 3), ("I", 3), ("H", 33), ("C", 1)]),
    ("pool", &[("K", 33), ("H", 3), ("A", 33)]),
    ("masked_pool", &[("K", 33), ("H", 3), ("A", 33)]),
    ("mamba2_head", &[("K", 3), ("P", 33), ("N", 3)]),
    ("mamba2", &[("K", 3), ("H", 33), ("G", 3), ("P", 1), ("N", 3)]),
    ("layer_norm", &[("I", 33)]),
    ("rms_norm", &[("I", 33)]),
    ("head", &[("I", 33)]),
    ("squared_head", &[("I", 33)]),
    ("huber_head", &[("I", 33)]),
];

/// Writes what `tests/peers/blocks_torch.py` needs to say whether PyTorch finds the same gradients: data, parameters and
/// gradients of each block, in f64 and in f32, as JSON into the folder that `UNIO_PEER_OUT` names.
#[test]
#[ignore = "writes files for another program"]
fn for_pytorch() {
    let folder = std::path::PathBuf::from(std::env::var_os("UNIO_PEER_OUT").unwrap());
    std::fs::create_dir_all(&folder).unwrap();
    for (real, called) in [(Real::F64, "f64"), (Real::F32, "f32")] {
        for (n, (name, sizes)) in FOR_PYTORCH.iter().enumerate() {
            let text = serde_json::to_string(&told(name, sizes, real)).unwrap();
            std::fs::write(folder.join(format!("{n:02}-{name}-{called}.json")), text).unwrap();
        }
    }
}

fn told(name: &str, sizes: &[(&str, usize)], real: Real) -> serde_json::Value {
    let artefacts = compile_run(name, sizes).artefacts;
    let mut checker = Checker::of(&artefacts, real);
    let grads = checker.gradient();
    let program = artefacts.program.as_ref().unwrap();
    let buffers = program.buffers.iter().filter(|b| b.external);
    let data = buffers.map(|b| {
        let values = checker.session.read_real(&b.name).unwrap();
        (b.name.clone(), serde_json::json!({ "shape": b.shape, "values": values }))
    });
    let data: serde_json::Map<_, _> = data.collect();
    let params = program.params.iter().map(|p| {
        let range = p.offset..p.offset + p.shape.iter().product::<usize>();
        let (values, gradient) = (&checker.params[range.clone()], &grads[range]);
        (p.path.clone(), serde_json::json!({ "shape": p.shape, "values": values, "gradient": gradient }))
    });
    let params: serde_json::Map<_, _> = params.collect();
    serde_json::json!({ "block": name, "real": real.type_name(), "data": data, "params": params })
}
