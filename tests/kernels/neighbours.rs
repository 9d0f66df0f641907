//! Kernels that take four neighbours by one access: from any element on, and in any number of blocks, they do what they do one by one.

use unio::device::{Arg, CompileOptions, Device, LaunchConfig, Memory, Real, Source};
use unio::interface::{Access, Artefacts, Elem, Kernel, KernelParam};
use unio::random::Stream;
use unio_tests::{compile_set, device};

/// Elements that two blocks of 512 threads take four at a time, with some left over; eight blocks take them one by one.
const ELEMENTS: usize = 3 * 2048 + 7;
const BY_FOURS: u32 = 2;
const ONE_BY_ONE: u32 = 8;

/// What a kernel's parameters hold: numbers by name, where each array begins, and how long the others are.
struct Call<'a> {
    artefacts: &'a Artefacts,
    kernel: &'a Kernel,
    real: Real,
    blocks: u32,
    start: usize,
    table: &'a dyn Fn(&str) -> Option<Vec<f64>>,
}

fn kernel<'a>(artefacts: &'a Artefacts, symbol: &str) -> &'a Kernel {
    artefacts.kernels.iter().find(|k| k.symbol == symbol).unwrap()
}

/// Values that differ between arrays; a moment that is squared is not negative.
fn array(name: &str) -> Vec<f64> {
    let stream = Stream::new(5, name);
    let value = |n: u64| if name == "v" { stream.symmetric(n).abs() } else { stream.symmetric(n) };
    (0..ELEMENTS as u64 + 16).map(value).collect()
}

impl Call<'_> {
    /// Runs it once; gives each buffer by its name, as numbers.
    fn run(&self, device: &Device) -> Vec<(String, Vec<f64>)> {
        let source = &self.artefacts.sources[self.kernel.source];
        let options = CompileOptions { real: self.real };
        let module = device.load(&Source { name: &source.path, text: &source.text }, &options).unwrap();
        let memories: Vec<Option<(String, Elem, usize, Memory)>> =
            self.kernel.params.iter().map(|param| self.memory(device, param)).collect();
        let args: Vec<Arg<'_>> = memories
            .iter()
            .map(|memory| match memory {
                Some((_, elem, start, memory)) => Arg::Buffer(memory, start * self.size(*elem)),
                None => Arg::I32(ELEMENTS as i32),
            })
            .collect();
        let shared = self.kernel.shared.total(self.size(Elem::Real) as u32);
        let config = LaunchConfig { shared_bytes: shared, ..LaunchConfig::new(self.blocks, self.kernel.threads) };
        // SAFETY: the kernel's own parameters; arrays have more elements than it is told, tables as many as it has blocks for.
        unsafe { module.kernel(&self.kernel.symbol).unwrap().launch(&config, &args) }.unwrap();
        memories.into_iter().flatten().map(|(name, elem, _, memory)| (name, self.numbers(elem, &memory))).collect()
    }

    /// Name, type, first element that is used, and memory of a buffer.
    fn memory(&self, device: &Device, param: &KernelParam) -> Option<(String, Elem, usize, Memory)> {
        let KernelParam::Buffer { name, elem, access, .. } = param else { return None };
        let (values, start) = match (self.table)(name) {
            Some(values) => (values, 0),
            None => (array(name), self.start),
        };
        assert!(*access != Access::Out || start == 0, "{name}: what is written anew is a table");
        let memory = match self.stored(*elem) {
            Elem::I32 => device.alloc_from(&values.iter().map(|x| *x as i32).collect::<Vec<_>>()),
            Elem::F64 => device.alloc_from(&values),
            _ => device.alloc_from(&values.iter().map(|x| *x as f32).collect::<Vec<_>>()),
        };
        Some((name.clone(), *elem, start, memory.unwrap()))
    }

    fn numbers(&self, elem: Elem, memory: &Memory) -> Vec<f64> {
        match self.stored(elem) {
            Elem::I32 => memory.read_vec::<i32>().unwrap().into_iter().map(f64::from).collect(),
            Elem::F64 => memory.read_vec::<f64>().unwrap(),
            _ => memory.read_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
        }
    }

    fn stored(&self, elem: Elem) -> Elem {
        match (elem, self.real) {
            (Elem::Real, Real::F64) => Elem::F64,
            (Elem::Real, Real::F32) => Elem::F32,
            (elem, _) => elem,
        }
    }

    fn size(&self, elem: Elem) -> usize {
        if self.stored(elem) == Elem::F64 { 8 } else { 4 }
    }
}

#[test]
fn an_optimizer_takes_neighbours_from_any_start() {
    let (artefacts, device) = (compile_set("perception").artefacts, device().unwrap());
    let kernel = kernel(&artefacts, "perception_adamw");
    let table = |name: &str| match name {
        "clamp_engage" => Some(vec![0.0; ONE_BY_ONE as usize]),
        "now_step_taken" | "now_clip_scale" => Some(vec![1.0]),
        "now_bias_1" | "prev_learning_rate" => Some(vec![0.1]),
        "now_bias_2" | "prev_wd_rate" => Some(vec![0.01]),
        "prev_effective_bound" => Some(vec![0.5]),
        _ => None,
    };
    for real in [Real::F32, Real::F64] {
        for start in 0..5 {
            let run = |blocks| Call { artefacts: &artefacts, kernel, real, blocks, start, table: &table }.run(&device);
            let (fours, ones) = (run(BY_FOURS), run(ONE_BY_ONE));
            for ((name, fours), (_, ones)) in fours.iter().zip(&ones) {
                if name == "clamp_engage" {
                    assert_eq!(fours.iter().sum::<f64>(), ones.iter().sum::<f64>(), "{name} from {start}");
                    continue;
                }
                assert!(fours == ones, "{name} from {start}: neighbours give other numbers");
            }
            let w = &fours.iter().find(|(name, _)| name == "w").unwrap().1;
            for (n, (after, before)) in w.iter().zip(array("w")).enumerate() {
                let before = if real == Real::F32 { f64::from(before as f32) } else { before };
                let inside = (start..start + ELEMENTS).contains(&n);
                assert_eq!(*after != before, inside, "weight {n} from {start}");
            }
        }
    }
}

/// The bin of both levels.
fn key(x: f64) -> i32 {
    ((x as f32).abs().to_bits() >> 15) as i32
}

#[test]
fn a_first_read_counts_neighbours_from_any_start() {
    let (artefacts, device) = (compile_set("perception").artefacts, device().unwrap());
    let kernel = kernel(&artefacts, "perception_group_oracle_count");
    let program = artefacts.program.as_ref().unwrap();
    let shape = |what: &str| {
        program.buffers.iter().find(|b| b.name == format!("group_oracle[select].{what}")).unwrap().shape[1]
    };
    let (width, sums) = (shape("rows"), shape("sums"));
    let (quantiles, window) = (3, key(0.5));
    let bins = (width - 4) / quantiles - 2;
    let table = |name: &str| match name {
        "rows_" => Some(vec![0.0; width * ONE_BY_ONE as usize]),
        "sums_" => Some(vec![0.0; sums * ONE_BY_ONE as usize]),
        "brackets_" => Some((0..8 * quantiles).map(|n| if n % 8 == 0 { f64::from(window) } else { 0.0 }).collect()),
        _ => None,
    };
    for start in 0..5 {
        let totals = |blocks: u32| {
            let call = Call { artefacts: &artefacts, kernel, real: Real::F32, blocks, start, table: &table };
            let buffers = call.run(&device);
            let joined = |name: &str, width: usize| -> Vec<f64> {
                let rows = &buffers.iter().find(|(n, _)| n == name).unwrap().1;
                (0..width).map(|column| rows.iter().skip(column).step_by(width).sum()).collect()
            };
            (joined("rows_", width), joined("sums_", sums))
        };
        let ((fours, sum_fours), (ones, sum_ones)) = (totals(BY_FOURS), totals(ONE_BY_ONE));
        assert_eq!(fours[4..], ones[4..], "from {start}");
        // The third is a maximum, whose rows have no sum.
        for (n, (a, b)) in sum_fours.iter().zip(&sum_ones).enumerate().filter(|(n, _)| *n != 2) {
            assert!((a - b).abs() <= 1e-12 * b.abs(), "sum {n} from {start}: {a} {b}");
        }
        for (q, name) in ["w", "m", "v"].into_iter().enumerate() {
            let keys: Vec<i32> = array(name)[start..start + ELEMENTS].iter().map(|x| key(*x) - window).collect();
            let count = |holds: &dyn Fn(i32) -> bool| keys.iter().filter(|k| holds(**k)).count() as f64;
            assert_eq!(fours[4 + 2 * q + 1], count(&|k| k >= bins as i32), "{name} beyond, from {start}");
            for bin in 0..bins {
                let counted = fours[4 + 2 * quantiles + q * bins + bin];
                assert_eq!(counted, count(&|k| k == bin as i32), "{name} in bin {bin}, from {start}");
            }
        }
    }
}
