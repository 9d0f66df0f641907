//! The same seed gives the same bits: run after run, and whichever thread goes first.

use unio::device::{Device, Real};
use unio::interface::Artefacts;
use unio::{Phase, Session};
use unio_tests::{compile_run, compile_set, fill_externals, times, twin_devices};

/// Every buffer after some steps, by name and as bits.
pub(crate) type Bits = Vec<(String, Vec<u64>)>;

#[test]
fn thread_order_changes_no_bit() {
    for name in ["cfc", "pool", "head", "functions", "two_step_scan"] {
        let artefacts = compile_run(name, &[]).artefacts;
        let [forward, reversed] = twin_devices().unwrap();
        assert_same(name, &steps(&forward, &artefacts, 3), &steps(&reversed, &artefacts, 3));
    }
}

#[test]
fn thread_order_changes_no_bit_of_the_perception_step() {
    let artefacts = compile_set("perception").artefacts;
    let [forward, reversed] = twin_devices().unwrap();
    assert_same("perception", &steps(&forward, &artefacts, 3), &steps(&reversed, &artefacts, 3));
}

#[test]
fn twenty_runs_of_one_seed_give_one_hash() {
    let artefacts = compile_set("perception").artefacts;
    let [device, _] = twin_devices().unwrap();
    let first = steps(&device, &artefacts, 4);
    for _ in 1..times(20, 3) {
        assert_same("perception", &first, &steps(&device, &artefacts, 4));
    }
}

pub(crate) fn assert_same(what: &str, a: &Bits, b: &Bits) {
    for ((name, a), (_, b)) in a.iter().zip(b) {
        assert!(a == b, "{what}: `{name}` differs");
    }
}

pub(crate) fn steps(device: &Device, artefacts: &Artefacts, count: usize) -> Bits {
    let mut session = Session::new(device, artefacts, Real::F32).unwrap();
    fill_externals(&mut session, artefacts, 64).unwrap();
    session.init_params(11).unwrap();
    for _ in 0..count {
        session.run(Phase::Train).unwrap();
    }
    bits(&session)
}

/// Every buffer that there is.
pub(crate) fn bits(session: &Session) -> Bits {
    let bits = |name: &str| session.dump(name).unwrap().into_iter().map(f64::to_bits).collect();
    session.program().buffers.iter().map(|b| (b.name.clone(), bits(&b.name))).collect()
}
