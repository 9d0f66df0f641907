//! Times for BENCHMARKS.md: not a test, so ignored unless asked for (`--ignored timing`).

use std::time::Instant;

use unio::device::Real;
use unio::{Launching, Phase, Session};
use unio_tests::{MANIFEST, compile_set, device, fill_externals};

use crate::producers::normal;

/// Repetitions behind one figure; the host waits once, at the end.
const REPEATS: u32 = 200;

fn microseconds(session: &mut Session, mut run: impl FnMut(&mut Session)) -> f64 {
    for _ in 0..20 {
        run(session);
    }
    session.synchronize().unwrap();
    let start = Instant::now();
    for _ in 0..REPEATS {
        run(session);
    }
    session.synchronize().unwrap();
    start.elapsed().as_secs_f64() * 1e6 / f64::from(REPEATS)
}

#[test]
#[ignore = "prints times"]
fn timing() {
    let base = normal(1 << 20);
    for n in [4096, 65_536, 1 << 20, 1 << 24, 1 << 26] {
        let data: Vec<f64> = base.iter().cycle().take(n).copied().collect();
        for (schedule, limit) in [("counts", usize::MAX), ("linear", 1 << 20)] {
            if n <= limit {
                println!("p99 {schedule} n={n} us={:.1}", p99(&data, schedule));
            }
        }
    }
    let artefacts = compile_set("perception").artefacts;
    let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
    fill_externals(&mut session, &artefacts, 64).unwrap();
    session.init_params(1).unwrap();
    for launching in [Launching::Eager, Launching::Graph] {
        session.set_launching(launching);
        let step = microseconds(&mut session, |s| s.run(Phase::Train).unwrap());
        println!("perception step, {launching:?} us={step:.1}");
    }
    session.mirror().unwrap();
    let step = microseconds(&mut session, |s| s.run(Phase::Train).unwrap());
    println!("perception step, Graph with the mirror us={step:.1}");
}

fn p99(data: &[f64], schedule: &str) -> f64 {
    let spec = format!(
        "[external.data]\ndoc = \"x\"\nshape = \"[*]\"\n[producer.p99]\ndoc = \"p99\"\nread = {{ x = \"data\" }}\n\
         signal = \"p99(abs(x))\"\nsmooth = \"pearl_ad\"\nreset = \"fold\"\nmonitoring = true\nschedule = \"{schedule}\"\n"
    );
    let compiled = unio_codegen::compile_texts(&[("specs/t/unio.toml", MANIFEST), ("specs/t/p.toml", &spec)]).unwrap();
    let mut session = Session::new(&device().unwrap(), &compiled.artefacts, Real::F32).unwrap();
    session.write_real("data", data).unwrap();
    microseconds(&mut session, |s| s.run(Phase::Train).unwrap())
}
