//! The math of kernel texts: accuracy against f64, special values, equal bits on every device.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use unio::device::{Arg, CompileOptions, Device, Kernel, LaunchConfig, Real, Source, nvrtc};

const F64: CompileOptions = CompileOptions { real: Real::F64 };
const F32: CompileOptions = CompileOptions { real: Real::F32 };

/// The emulator, or what `UNIO_TEST_DEVICE` names.
fn device() -> Device {
    let target = std::env::var("UNIO_TEST_DEVICE").unwrap_or("emulator".into());
    Device::open(target.parse().unwrap()).unwrap()
}

fn launch(kernel: &Kernel, grid: u32, args: &[Arg<'_>]) {
    // SAFETY: x, y and out hold n values each, and the kernels stay below n.
    unsafe { kernel.launch(&LaunchConfig::new(grid, 256), args) }.unwrap()
}

const UNARY: [&str; 11] = ["exp", "log", "log1p", "tanh", "sigmoid", "softplus", "sqrt", "abs", "floor", "sin", "cos"];
const BINARY: [&str; 3] = ["min", "max", "pow"];

/// One kernel a function: out[i] = unio_NAME(x[i] (, y[i])).
fn math_text() -> String {
    let kernel = |name: &str, call: &str| {
        format!(
            "UNIO_KERNEL(256) math_{name}(UNIO_IN(real, x), UNIO_IN(real, y), UNIO_OUT(real, out), int n) {{
                for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) out[i] = unio_{name}({call});
            }}\n"
        )
    };
    let unary = UNARY.iter().map(|name| kernel(name, "x[i]"));
    unary.chain(BINARY.iter().map(|name| kernel(name, "x[i], y[i]"))).collect()
}

fn evaluate(device: &Device, name: &str, x: &[f32], y: &[f32]) -> Vec<f32> {
    let module = device.load(&Source { name: "math.cu", text: &math_text() }, &F32).unwrap();
    let kernel = module.kernel(&format!("math_{name}")).unwrap();
    let (xs, ys) = (device.alloc_from(x).unwrap(), device.alloc_from(y).unwrap());
    let out = device.alloc(x.len() * 4).unwrap();
    let args = [Arg::Buffer(&xs, 0), Arg::Buffer(&ys, 0), Arg::Buffer(&out, 0), Arg::I32(x.len() as i32)];
    launch(&kernel, 64, &args);
    out.read_vec().unwrap()
}

fn reference(name: &str, x: f64, y: f64) -> f64 {
    match name {
        "exp" => x.exp(),
        "log" => x.ln(),
        "log1p" => x.ln_1p(),
        "tanh" => x.tanh(),
        "sigmoid" if x < 0.0 => x.exp() / (1.0 + x.exp()),
        "sigmoid" => 1.0 / (1.0 + (-x).exp()),
        "softplus" => {
            if x.is_nan() {
                x
            } else {
                x.max(0.0) + (-x.abs()).exp().ln_1p()
            }
        }
        "sqrt" => x.sqrt(),
        "abs" => x.abs(),
        "floor" => x.floor(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "min" => x.min(y),
        "max" => x.max(y),
        "pow" => x.powf(y),
        _ => unreachable!(),
    }
}

/// Distance from the exact value in units of the float's last place; 0 where both are NaN or the same infinity.
fn ulps(got: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if got.is_nan() || rounded.is_nan() {
        return if got.is_nan() && rounded.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got.is_infinite() || rounded.is_infinite() {
        return if got == rounded { 0.0 } else { f64::INFINITY };
    }
    let exponent = (rounded.abs().to_bits() >> 23).max(1) as i32 - 150;
    (f64::from(got) - exact).abs() / 2f64.powi(exponent)
}

/// Floats over all bit patterns, evenly; `odd` steps reach all exponents and signs.
fn sample(count: u32) -> Vec<f32> {
    (0..count).map(|i| f32::from_bits(i.wrapping_mul((u32::MAX / count) | 1))).collect()
}

fn specials() -> Vec<f32> {
    let ends = [
        0.0,
        1.0,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::MAX,
        f32::INFINITY,
        88.72284,
        103.97,
        104.5,
        0.5,
        1e-10,
        2.0,
        3.0,
        0.333,
    ];
    ends.iter().flat_map(|&x| [x, -x]).chain([f32::NAN]).collect()
}

#[test]
fn math_is_accurate_over_all_floats() {
    let device = device();
    let mut x = sample(1 << 20);
    x.extend((0..400_000).map(|i| (i as f32 - 200_000.0) * 5e-4));
    x.extend((0..200_000).map(|i| 1.0 + (i as f32 - 100_000.0) * 1e-5));
    x.extend(specials());
    let worst: BTreeMap<&str, f64> = UNARY
        .iter()
        .map(|name| {
            let got = evaluate(&device, name, &x, &x);
            let errors = x.iter().zip(&got).map(|(x, got)| (ulps(*got, reference(name, f64::from(*x), 0.0)), *x, *got));
            let (worst, at, got) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
            println!("{name}: {worst:.3} ulp at {at:e}, got {got:e}");
            (*name, worst)
        })
        .collect();
    let bound = |name| if name == "sigmoid" { 2.5 } else { 2.0 };
    assert!(worst.iter().all(|(name, worst)| *worst <= bound(*name)), "{worst:?}");
    assert!(["sqrt", "abs", "floor"].iter().all(|name| worst[name] <= 0.5), "{worst:?}");
}

#[test]
fn powers_and_extremes() {
    let device = device();
    let mut pairs: Vec<(f32, f32)> = Vec::new();
    for x in specials() {
        pairs.extend(specials().into_iter().map(|y| (x, y)));
    }
    pairs.extend((0..300_000u32).map(|i| ((i % 1000 + 1) as f32 * 0.01, (i / 1000) as f32 * 0.13 - 15.0)));
    pairs.extend((0..50_000u32).map(|i| (0.999, i as f32 * 2.0)));
    let (x, y): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
    for name in BINARY {
        let got = evaluate(&device, name, &x, &y);
        for ((x, y), got) in x.iter().zip(&y).zip(got) {
            let error = ulps(got, reference(name, f64::from(*x), f64::from(*y)));
            assert!(error <= 1.0, "{name}({x:e}, {y:e}) = {got:e}, {error} ulp");
        }
    }
    let zeros = evaluate(&device, "min", &[0.0, -0.0], &[-0.0, 0.0]);
    assert!(zeros.iter().all(|z| z.to_bits() == 1 << 31));
    let zeros = evaluate(&device, "max", &[0.0, -0.0], &[-0.0, 0.0]);
    assert!(zeros.iter().all(|z| z.to_bits() == 0));
}

/// A hash of every function's bits over one sample. The constant is the same on every device.
#[test]
fn math_bits_are_the_same_everywhere() {
    let device = device();
    let mut x = sample(1 << 18);
    x.extend((0..100_000).map(|i| (i as f32 - 50_000.0) * 2e-3));
    x.extend(specials());
    let y: Vec<f32> = x.iter().rev().copied().collect();
    let mut hashes = BTreeMap::new();
    for name in UNARY.iter().chain(&BINARY) {
        let bits =
            evaluate(&device, name, &x, &y).into_iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() });
        // FNV-1a over whole words.
        let hash = bits.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        hashes.insert(*name, format!("{hash:016x}"));
    }
    let got: Vec<String> = hashes.iter().map(|(name, hash)| format!("{name} {hash}")).collect();
    assert_eq!(got, MATH_BITS, "{}: {got:#?}", device.describe());
}

const MATH_BITS: [&str; 14] = [
    "abs ad8bc93a62c4ed0e",
    "cos bc1c7167a4f0b0a7",
    "exp 008794a3d10243d2",
    "floor bec83561809f1a21",
    "log a1b73feb32ddf53d",
    "log1p f58ede7953110fb0",
    "max 329e79c6ccbd9169",
    "min efa995b9606948e5",
    "pow 9d7ea3c8817ebd96",
    "sigmoid 883ad5627c5378f4",
    "sin 12c9fc63581c0ec5",
    "softplus 6e1893f04c8135f4",
    "sqrt 802f0fb15a899257",
    "tanh 9f81c4a3e7d9223c",
];

#[test]
fn double_math_follows_libm() {
    let device = device();
    let module = device.load(&Source { name: "math64.cu", text: &math_text() }, &F64).unwrap();
    let x: Vec<f64> = (-400..400).map(|i| f64::from(i) * 0.11).collect();
    let y: Vec<f64> = x.iter().rev().copied().collect();
    let (xs, ys, out) = (device.alloc_from(&x).unwrap(), device.alloc_from(&y).unwrap(), device.alloc(6400).unwrap());
    let args = [Arg::Buffer(&xs, 0), Arg::Buffer(&ys, 0), Arg::Buffer(&out, 0), Arg::I32(800)];
    for name in UNARY.iter().chain(&BINARY) {
        launch(&module.kernel(&format!("math_{name}")).unwrap(), 4, &args);
        for ((x, y), got) in x.iter().zip(&y).zip(out.read_vec::<f64>().unwrap()) {
            let want = reference(name, *x, *y);
            let close =
                (got - want).abs() <= 1e-13 * want.abs().max(1e-300) || got == want || (got.is_nan() && want.is_nan());
            assert!(close, "{name}({x}, {y}) = {got}, not {want}");
        }
    }
}

#[test]
fn nvrtc_compiles_the_math_without_a_card() {
    let supported = match nvrtc::supported_architectures() {
        Ok(supported) => supported,
        Err(error) => return println!("skipped: {error}"),
    };
    for arch in [80, 89, 90, 100].iter().filter(|arch| supported.contains(arch)) {
        for options in [F32, F64] {
            let image = nvrtc::compile(&math_text(), "math.cu", &format!("sm_{arch}"), &options);
            assert!(image.unwrap().starts_with(b"\x7fELF"));
        }
    }
}
