//! The device layer, on the emulator; `UNIO_TEST_DEVICE=cuda` runs the same kernels on a card.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Instant;

use unio::device::{
    Arg, CompileOptions, Device, DeviceError, EmulatorOptions, Kernel, Kind, LaunchConfig, Real, Source, Target,
    ThreadOrder, nvrtc,
};

const F64: CompileOptions = CompileOptions { real: Real::F64 };
const F32: CompileOptions = CompileOptions { real: Real::F32 };

fn device() -> Device {
    let target = std::env::var("UNIO_TEST_DEVICE").unwrap_or("emulator".into());
    Device::open(target.parse().unwrap()).unwrap()
}

fn emulator(order: ThreadOrder) -> Device {
    Device::emulator(EmulatorOptions { order, workers: None }).unwrap()
}

fn kernel(device: &Device, name: &str, text: &str) -> Kernel {
    device.load(&Source { name: "test.cu", text }, &F32).unwrap().kernel(name).unwrap()
}

fn launch(kernel: &Kernel, config: LaunchConfig, args: &[Arg<'_>]) -> Result<(), DeviceError> {
    // SAFETY: each test passes what its kernel declares, and enough memory.
    unsafe { kernel.launch(&config, args) }
}

const SAXPY: &str = "UNIO_KERNEL(256) saxpy(UNIO_IN(real, x), UNIO_INOUT(real, y), real a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = unio_fma(a, x[i], y[i]);
}";

#[test]
fn saxpy_in_both_types() {
    let device = device();
    println!("{}", device.describe());
    let n = 1000;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.1).collect();
    let y = device.alloc_from(&vec![1.0f32; n]).unwrap();
    let saxpy = kernel(&device, "saxpy", SAXPY);
    let xs = device.alloc_from(&x).unwrap();
    let args = [Arg::Buffer(&xs, 0), Arg::Buffer(&y, 0), Arg::F32(2.0), Arg::I32(n as i32)];
    launch(&saxpy, LaunchConfig::new(4, 256), &args).unwrap();
    let want: Vec<f32> = x.iter().map(|x| 2.0f32.mul_add(*x, 1.0)).collect();
    assert_eq!(y.read_vec::<f32>().unwrap(), want);

    let attributes = saxpy.attributes(&LaunchConfig::new(4, 256)).unwrap();
    println!("{attributes:?}");
    assert_eq!(attributes.is_some(), device.kind() == Kind::Cuda);
    assert!(attributes.is_none_or(|a| a.registers > 0 && a.local_bytes == 0 && a.max_threads >= 256));
    assert!(attributes.is_none_or(|a| a.occupancy(256) > 0.0 && a.occupancy(256) <= 1.0));

    let wide = device.load(&Source { name: "wide.cu", text: SAXPY }, &F64).unwrap().kernel("saxpy").unwrap();
    let xs = device.alloc_from(&[1.0f64, 2.0]).unwrap();
    let y = device.alloc_from(&[0.5f64, 0.25]).unwrap();
    let args = [Arg::Buffer(&xs, 8), Arg::Buffer(&y, 8), Arg::F64(3.0), Arg::I32(1)];
    launch(&wide, LaunchConfig::new(1, 32), &args).unwrap();
    assert_eq!(y.read_vec::<f64>().unwrap(), [0.5, 6.25]);
}

#[test]
fn nothing_is_launched_for_an_empty_grid() {
    let device = device();
    let saxpy = kernel(&device, "saxpy", SAXPY);
    let none = device.alloc(0).unwrap();
    assert!(none.is_empty() && none.read_vec::<f32>().unwrap().is_empty());
    none.zero().unwrap();
    let args = [Arg::Buffer(&none, 0), Arg::Buffer(&none, 0), Arg::F32(2.0), Arg::I32(0)];
    launch(&saxpy, LaunchConfig::new(0, 256), &args).unwrap();
    launch(&saxpy, LaunchConfig::new(1, 256), &args).unwrap();
    device.synchronize().unwrap();
}

const REDUCE: &str = "UNIO_KERNEL(1024) reduce(UNIO_IN(float, x), UNIO_OUT(float, sums), int n) {
    UNIO_SHARED(float, part, 16);
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    part[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}";

fn tree_sums(device: &Device, n: usize, block: usize) -> Vec<f32> {
    let x: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1000) as f32 * 1e-3).collect();
    let grid = n.div_ceil(block);
    let (xs, sums) = (device.alloc_from(&x).unwrap(), device.alloc(grid * 4).unwrap());
    let args = [Arg::Buffer(&xs, 0), Arg::Buffer(&sums, 0), Arg::I32(n as i32)];
    let config = LaunchConfig::new(grid as u32, block as u32).shared(16 + block as u32 * 4);
    launch(&kernel(device, "reduce", REDUCE), config, &args).unwrap();
    sums.read_vec().unwrap()
}

#[test]
fn tree_reduction_through_shared_memory() {
    let device = device();
    for n in [1, 31, 32, 33, 255, 256, 257, 1023, 1025, 5000] {
        for block in [1, 32, 64, 256, 1024] {
            let sums = tree_sums(&device, n, block);
            for (b, sum) in sums.iter().enumerate() {
                let of_block = (b * block..n.min((b + 1) * block)).map(|i| ((i * 7919) % 1000) as f64 * 1e-3);
                assert!((f64::from(*sum) - of_block.sum::<f64>()).abs() < 1e-3, "n {n} block {block}");
            }
        }
    }
}

#[test]
fn both_thread_orders_give_equal_bits() {
    let forward = tree_sums(&emulator(ThreadOrder::Forward), 5000, 256);
    let reversed = tree_sums(&emulator(ThreadOrder::Reversed), 5000, 256);
    assert_eq!(
        forward.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        reversed.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    );
}

#[test]
fn reversed_order_shows_a_race() {
    let text = "UNIO_KERNEL(64) race(UNIO_INOUT(int, last)) { last[0] = threadIdx.x; }";
    let mut seen = Vec::new();
    for order in [ThreadOrder::Forward, ThreadOrder::Reversed] {
        let device = emulator(order);
        let last = device.alloc(4).unwrap();
        launch(&kernel(&device, "race", text), LaunchConfig::new(1, 64), &[Arg::Buffer(&last, 0)]).unwrap();
        seen.extend(last.read_vec::<i32>().unwrap());
    }
    assert_eq!(seen, [63, 0]);
}

const COLLECTIVES: &str = "UNIO_KERNEL(96) collectives(UNIO_OUT(long long, out)) {
    unsigned t = threadIdx.x, lane = t & 31, all = 0xffffffffu;
    long long* mine = out + t * 16;
    mine[0] = __shfl_sync(all, (int)t * 3, 5);
    mine[1] = __shfl_xor_sync(all, (unsigned)t, 7);
    mine[2] = __shfl_down_sync(all, (long long)t << 33, 3);
    mine[3] = __ballot_sync(all, t % 3 == 0);
    mine[4] = __any_sync(all, t == 40);
    mine[5] = __all_sync(all, t < 64);
    mine[6] = __match_any_sync(all, (int)(t % 4));
    mine[7] = __match_any_sync(all, (unsigned long long)(t / 8) << 40);
    mine[8] = (long long)(__shfl_sync(all, (double)t * 0.5, (int)lane + 1) * 2.0);
    mine[9] = (long long)__shfl_xor_sync(all, (float)t, 1);
    mine[10] = __shfl_sync(all, (int)t, 2, 8);
    mine[11] = __shfl_down_sync(all, (int)t, 3, 8);
    mine[12] = __shfl_xor_sync(all, (int)t, 4, 8);
    if (lane < 16) mine[13] = __shfl_sync(0x0000ffffu, (int)t, 15);
    else mine[13] = __ballot_sync(0xffff0000u, lane & 1);
    __syncwarp();
    mine[14] = __popc(t) + 10 * __ffs(t) + 100 * __clz(t);
    mine[15] = min((int)t, 50) + 1000 * max((int)t, 20);
}";

#[test]
fn warp_collectives() {
    let device = device();
    let kernel = kernel(&device, "collectives", COLLECTIVES);
    let out = device.alloc(96 * 16 * 8).unwrap();
    launch(&kernel, LaunchConfig::new(1, 96), &[Arg::Buffer(&out, 0)]).unwrap();
    let out: Vec<i64> = out.read_vec().unwrap();
    let warp_bits =
        |warp: i64, f: &dyn Fn(i64) -> bool| (0..32).filter(|l| f(warp * 32 + l)).map(|l| 1i64 << l).sum::<i64>();
    for t in 0..96i64 {
        let (warp, lane) = (t / 32, t % 32);
        let first = warp * 32;
        let odd = 0xaaaa_0000i64;
        let want = [
            (first + 5) * 3,
            first + (lane ^ 7),
            (if lane + 3 < 32 { t + 3 } else { t }) << 33,
            warp_bits(warp, &|u| u % 3 == 0),
            i64::from(warp == 1),
            i64::from(warp < 2),
            warp_bits(warp, &|u| u % 4 == t % 4),
            warp_bits(warp, &|u| u / 8 == t / 8),
            first + (lane + 1) % 32,
            first + (lane ^ 1),
            first + (lane / 8) * 8 + 2,
            if lane % 8 + 3 < 8 { t + 3 } else { t },
            first + (lane ^ 4),
            if lane < 16 { first + 15 } else { odd },
            i64::from(t.count_ones())
                + 10 * (if t == 0 { 0 } else { i64::from(t.trailing_zeros()) + 1 })
                + 100 * i64::from((t as u32).leading_zeros()),
            t.min(50) + 1000 * t.max(20),
        ];
        assert_eq!(out[t as usize * 16..][..16], want, "thread {t}");
    }
}

#[test]
fn vectors_and_device_functions() {
    let device = device();
    let text = "UNIO_DEVICE float4 twice(float4 v) { return make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w); }
    UNIO_KERNEL(32) vectors(UNIO_IN(float, x), UNIO_OUT(float, y)) {
        int i = threadIdx.x + gridDim.x - 1;
        reinterpret_cast<float4*>(y)[i] = twice(reinterpret_cast<const float4*>(x)[i]);
        __threadfence(); __threadfence_system();
    }";
    let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let (xs, y) = (device.alloc_from(&x).unwrap(), device.alloc(128).unwrap());
    let args = [Arg::Buffer(&xs, 0), Arg::Buffer(&y, 0)];
    launch(&kernel(&device, "vectors", text), LaunchConfig::new(1, 8), &args).unwrap();
    assert_eq!(y.read_vec::<f32>().unwrap(), x.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
}

#[test]
fn blocks_wait_for_stacks() {
    let workers = Some(20);
    let device = Device::emulator(EmulatorOptions { order: ThreadOrder::Forward, workers }).unwrap();
    assert_eq!(tree_sums(&device, 1024 * 40, 1024).len(), 40);
}

// --- faults -----------------------------------------------------------------------------------------------------------

/// Emulator only: on a card these are undefined.
fn fault(text: &str, block: u32) -> DeviceError {
    let device = emulator(ThreadOrder::Forward);
    let bad = kernel(&device, "bad", text);
    let out = device.alloc(4096).unwrap();
    let args = [Arg::Buffer(&out, 0)];
    let error = launch(&bad, LaunchConfig::new(3, block), &args).unwrap_err();
    // The device is still usable.
    assert_eq!(tree_sums(&device, 100, 32).len(), 4);
    error
}

#[test]
fn barrier_divergence_is_an_error() {
    let text = "UNIO_KERNEL(64) bad(UNIO_OUT(int, out)) { if (blockIdx.x == 1 && threadIdx.x == 7) return; __syncthreads(); out[0] = 1; }";
    let error = fault(text, 64);
    let DeviceError::BarrierDivergence { kernel, block, thread, reason } = &error else { panic!("{error}") };
    assert_eq!((kernel.as_str(), *block, *thread), ("bad", 1, 0));
    assert!(reason.contains("thread 7"), "{reason}");
}

#[test]
fn missing_lanes_are_an_error() {
    let cases = [
        ("if (threadIdx.x != 3) out[0] = __shfl_sync(~0u, 1, 0);", 0, "thread 3, which has exited"),
        (
            "if (threadIdx.x != 3) out[0] = __shfl_sync(~0u, 1, 0); else __syncthreads();",
            0,
            "thread 3, which waits at a barrier",
        ),
        (
            "if (threadIdx.x != 3) out[0] = __shfl_sync(~0u, 1, 0); else out[0] = __ballot_sync(~0u, 1);",
            0,
            "waits at another",
        ),
        ("out[0] = __shfl_sync(1u << threadIdx.x % 2, 1, 0);", 2, "leaves it out"),
    ];
    for (body, who, words) in cases {
        let error = fault(&format!("UNIO_KERNEL(64) bad(UNIO_OUT(int, out)) {{ {body} }}"), 64);
        let DeviceError::WarpDivergence { block: 0, thread, reason, .. } = &error else { panic!("{error}") };
        assert_eq!(*thread, who, "{reason}");
        assert!(reason.contains(words), "{reason}");
    }
}

#[test]
fn shared_memory_starts_as_nan_in_every_block() {
    let device = emulator(ThreadOrder::Forward);
    let text = "UNIO_KERNEL(32) leak(UNIO_OUT(int, out)) { UNIO_SHARED(float, s, 0); out[blockIdx.x] = s[0] != s[0]; s[0] = 1.0f; }";
    let out = device.alloc(16 * 4).unwrap();
    launch(&kernel(&device, "leak", text), LaunchConfig::new(16, 1).shared(4), &[Arg::Buffer(&out, 0)]).unwrap();
    assert_eq!(out.read_vec::<i32>().unwrap(), [1; 16]);
}

#[test]
fn launch_limits_have_typed_errors() {
    let device = device();
    let saxpy = kernel(&device, "saxpy", SAXPY);
    let memory = device.alloc(4).unwrap();
    let args = [Arg::Buffer(&memory, 0), Arg::Buffer(&memory, 0), Arg::F32(0.0), Arg::I32(0)];
    let shared = device.limits().max_shared_bytes;
    for bad in [LaunchConfig::new(1, 257), LaunchConfig::new(u32::MAX, 1), LaunchConfig::new(1, 1).shared(shared + 1)] {
        assert!(matches!(launch(&saxpy, bad, &args), Err(DeviceError::LaunchLimit { .. })));
    }
    for good in [48 * 1024 - 1, 48 * 1024, 48 * 1024 + 1, shared] {
        launch(&saxpy, LaunchConfig::new(1, 256).shared(good), &args).unwrap();
    }
    let clustered = LaunchConfig { cluster: 2, ..LaunchConfig::new(2, 32) };
    assert!(matches!(launch(&saxpy, clustered, &args), Err(DeviceError::Unsupported { .. })));
    assert!(matches!(launch(&saxpy, LaunchConfig::new(1, 0), &args), Err(DeviceError::Arguments { .. })));
    assert!(matches!(launch(&saxpy, LaunchConfig::new(1, 1), &args[1..]), Err(DeviceError::Arguments { .. })));
    let past = [Arg::Buffer(&memory, 5), args[1], args[2], args[3]];
    assert!(matches!(launch(&saxpy, LaunchConfig::new(1, 1), &past), Err(DeviceError::Arguments { .. })));
    device.synchronize().unwrap();
}

#[test]
fn wrong_arguments_are_found_on_the_emulator() {
    let device = emulator(ThreadOrder::Forward);
    let saxpy = kernel(&device, "saxpy", SAXPY);
    let (mine, other) = (device.alloc(4).unwrap(), emulator(ThreadOrder::Forward).alloc(4).unwrap());
    let args = [Arg::Buffer(&mine, 0), Arg::Buffer(&mine, 0), Arg::F64(0.0), Arg::I32(0)];
    let error = launch(&saxpy, LaunchConfig::new(1, 1), &args).unwrap_err().to_string();
    assert!(error.contains("argument 2 is F64, the parameter is float"), "{error}");
    let args = [Arg::Buffer(&mine, 0), Arg::Buffer(&other, 0), Arg::F32(0.0), Arg::I32(0)];
    assert!(matches!(launch(&saxpy, LaunchConfig::new(1, 1), &args), Err(DeviceError::WrongMemory { .. })));
}

#[test]
fn lengths_are_checked() {
    let memory = device().alloc(6).unwrap();
    assert!(matches!(memory.write(&[0; 5]), Err(DeviceError::Length { .. })));
    assert!(matches!(memory.read_vec::<f32>(), Err(DeviceError::Length { .. })));
    assert!(matches!(memory.read_at(4, &mut [0; 3]), Err(DeviceError::Length { .. })));
    assert!(matches!(memory.write_at(usize::MAX, &[0; 3]), Err(DeviceError::Length { .. })));
    memory.write_at(4, &[1, 2]).unwrap();
    let mut all = [9; 6];
    memory.read(&mut all).unwrap();
    assert_eq!(all, [0, 0, 0, 0, 1, 2]);
}

#[test]
fn mapped_memory_is_seen_by_the_host() {
    let device = device();
    let text = "UNIO_KERNEL(1) stamp(UNIO_OUT(unsigned long long, out), unsigned long long v) { out[1] = v; __threadfence_system(); }";
    let mapped = device.alloc_mapped(16).unwrap();
    launch(&kernel(&device, "stamp", text), LaunchConfig::new(1, 1), &[Arg::Buffer(&mapped, 0), Arg::U64(1 << 40)])
        .unwrap();
    device.synchronize().unwrap();
    assert_eq!((mapped.peek(0).unwrap(), mapped.peek(8).unwrap()), (0, 1 << 40));
    assert_eq!(mapped.read_vec::<u64>().unwrap(), [0, 1 << 40]);
    assert!(mapped.peek(16).is_err() && mapped.peek(4).is_err() && device.alloc(8).unwrap().peek(0).is_err());
}

#[test]
fn compile_errors_name_the_specs_line() {
    let text = "UNIO_KERNEL(1) f(UNIO_OUT(real, y)) {\n#line 41 \"specs/x.toml\"\n y[0] = undeclared_name;\n}";
    let error = device().load(&Source { name: "x", text }, &F32).unwrap_err();
    let DeviceError::Compile { name, log, .. } = &error else { panic!("{error}") };
    assert_eq!(name, "x");
    assert!(log.contains("specs/x.toml") && log.contains("41") && log.contains("undeclared_name"), "{log}");
}

#[test]
fn kernels_are_listed_when_one_is_missing() {
    let device = device();
    let sources = [Source { name: "a", text: SAXPY }, Source { name: "b", text: REDUCE }];
    let modules = device.load_all(&sources, &F32).unwrap();
    assert_eq!(modules.iter().map(|m| m.name()).collect::<Vec<_>>(), ["a", "b"]);
    let error = modules[0].kernel("reduce").unwrap_err().to_string();
    assert!(error.contains("`a` has no kernel `reduce`; it has: saxpy"), "{error}");
}

#[test]
fn launches_from_many_threads_do_not_lock_up() {
    use rayon::prelude::*;
    let device = emulator(ThreadOrder::Forward);
    (0..64).into_par_iter().for_each(|i| assert_eq!(tree_sums(&device, 1000 + i, 64).len(), (1000 + i).div_ceil(64)));
}

// --- CUDA -------------------------------------------------------------------------------------------------------------

#[test]
fn cuda_fails_in_one_line_where_there_is_none() {
    match Device::open(Target::Cuda) {
        Ok(device) => assert_eq!(device.kind(), Kind::Cuda),
        Err(error) => {
            let text = error.to_string();
            assert!(matches!(error, DeviceError::NoCuda { .. }), "{text}");
            assert!(!text.contains('\n') && text.contains("libcuda.so"), "{text}");
            assert_eq!(Device::open(Target::Auto).unwrap().kind(), Kind::Emulator);
        }
    }
}

#[test]
fn nvrtc_compiles_every_text_without_a_card() {
    let version = match nvrtc::available() {
        Ok(version) => version,
        Err(error) => return println!("skipped: {error}"),
    };
    let supported = nvrtc::supported_architectures().unwrap();
    println!("NVRTC {version}: {supported:?}");
    for arch in [80, 89, 90, 100].iter().filter(|arch| supported.contains(arch)) {
        for text in [SAXPY, REDUCE, COLLECTIVES] {
            for options in [F32, F64] {
                let image = nvrtc::compile(text, "sample.cu", &format!("sm_{arch}"), &options).unwrap();
                assert!(image.starts_with(b"\x7fELF"));
            }
        }
    }
    let ptx = nvrtc::compile(SAXPY, "sample.cu", "compute_80", &F32).unwrap();
    assert!(String::from_utf8_lossy(&ptx).contains(".visible .entry saxpy"));
    let error = nvrtc::compile("\n#line 7 \"specs/x.toml\"\noops", "x", "sm_90", &F32).unwrap_err().to_string();
    assert!(error.contains("specs/x.toml(7)"), "{error}");
    assert!(nvrtc::compile(SAXPY, "x", "sm_1", &F32).is_err());
}

/// Prints what a barrier costs; asserts nothing, since machines differ.
#[test]
fn barrier_speed() {
    let device = device();
    let text = "UNIO_KERNEL(64) barriers(UNIO_OUT(int, out), int n) { for (int i = 0; i < n; i++) __syncthreads(); out[blockIdx.x] = n; }";
    let kernel = kernel(&device, "barriers", text);
    let out = device.alloc(128).unwrap();
    let args = [Arg::Buffer(&out, 0), Arg::I32(400)];
    for _ in 0..3 {
        let start = Instant::now();
        launch(&kernel, LaunchConfig::new(32, 64), &args).unwrap();
        device.synchronize().unwrap();
        println!("64 threads x 400 barriers x 32 blocks: {:?}", start.elapsed());
    }
}
