//! Parts of a step as they are measured: cut out, grown, repeated.

use unio::bench::{Bench, Data, Part, Repeats};
use unio::device::Real;
use unio::interface::Artefacts;
use unio::{Phase, Session};
use unio_tests::{compile_run, compile_set, device};

const ONCE: Repeats = Repeats { steps: 2, replays: 1 };

fn warm(artefacts: &Artefacts) -> Session {
    let mut session = Session::new(&device().unwrap(), artefacts, Real::F32).unwrap();
    unio_tests::fill_externals(&mut session, artefacts, 64).unwrap();
    session.init_params(1).unwrap();
    session.run(Phase::Train).unwrap();
    session
}

fn names(part: &Part) -> Vec<&str> {
    part.launches().iter().map(|launch| launch.name.as_str()).collect()
}

#[test]
fn a_grown_optimizer_moves_its_arrays() {
    let artefacts = compile_set("perception").artefacts;
    let session = warm(&artefacts);
    let bench = Bench::new(&session, &artefacts).unwrap();
    let part = bench.part(|launch| launch.name == "adamw[trunk]");
    let counted = part.count().unwrap() as u64;
    let scalars = part.bytes() - 28 * counted;
    for n in [1, 4097] {
        let grown = part.resized(n).unwrap();
        assert_eq!(grown.count(), Some(n));
        assert_eq!(grown.bytes(), 28 * n as u64 + scalars);
        let shapes = bench.shapes(&grown).unwrap();
        assert_eq!(shapes[0].config.grid, n.div_ceil(512) as u32);
        assert!(bench.time(&grown, Data::Hot, ONCE).unwrap() > 0.0);
    }
}

/// What tells the number of elements has just so many, also where that is fewer than in the step.
#[test]
fn a_part_shrinks_with_its_buffer() {
    let artefacts = compile_set("sp4").artefacts;
    let session = warm(&artefacts);
    let bench = Bench::new(&session, &artefacts).unwrap();
    let part = bench.part(|launch| launch.name == "target_q_bound" || launch.name.starts_with("target_q_bound."));
    for (n, made) in [(4, 1), (64, 1), (5000, 5)] {
        let resized = part.resized(n).unwrap();
        assert!((4 * n as u64..4 * n as u64 + 200).contains(&resized.bytes()), "{n}: {}", resized.bytes());
        assert_eq!(bench.shapes(&resized).unwrap().len(), made, "{n}");
    }
}

#[test]
fn a_grown_reducer_keeps_its_rows() {
    let artefacts = compile_run("cfc", &[("B", 32)]).artefacts;
    let session = warm(&artefacts);
    let bench = Bench::new(&session, &artefacts).unwrap();
    let grown = bench.part(|launch| launch.name == "reduce_axis0").resized(1000).unwrap();
    assert_eq!(grown.bytes(), (32 + 1) * 1000 * 4);
    assert!(bench.time(&grown, Data::Hot, ONCE).unwrap() > 0.0);
}

/// A row may be less than what stands behind the first dimension: here six weights a day of a sample.
#[test]
fn a_grown_producer_has_rows_of_its_own() {
    let artefacts = compile_set("perception").artefacts;
    let session = warm(&artefacts);
    let bench = Bench::new(&session, &artefacts).unwrap();
    let part = bench.part(|launch| launch.name == "vsn_mask");
    let scalars = part.bytes() - 24 * part.count().unwrap() as u64;
    assert_eq!(part.resized(1000).unwrap().bytes(), 24 * 1000 + scalars);
}

/// An entry of several launches reads its data once; what its launches tell each other does not count.
#[test]
fn an_entry_is_measured_as_one() {
    let artefacts = compile_set("sp4").artefacts;
    let session = warm(&artefacts);
    let bench = Bench::new(&session, &artefacts).unwrap();
    let part = bench.part(|launch| launch.name.starts_with("target_q_bound."));
    assert_eq!(part.launches().len(), 5);
    let grown = part.resized(5000).unwrap();
    assert!((20_000..20_200).contains(&grown.bytes()), "{}", grown.bytes());
    assert!(bench.time(&grown, Data::Cold, ONCE).unwrap() > 0.0);
}

#[test]
fn a_size_in_the_text_stays() {
    let artefacts = compile_set("perception").artefacts;
    let session = warm(&artefacts);
    let bench = Bench::new(&session, &artefacts).unwrap();
    for name in ["cfc.forward", "cfc.adjoint", "pick_batch", "clip"] {
        assert!(bench.part(|launch| launch.name == name).resized(77).is_none(), "{name}");
    }
}

/// What is cut out in between hands its edges on; the whole is the whole.
#[test]
fn the_control_plane_is_producers_and_scalar_updates() {
    let artefacts = compile_set("perception").artefacts;
    let session = warm(&artefacts);
    let bench = Bench::new(&session, &artefacts).unwrap();
    let control = bench.control();
    let names = names(&control);
    for name in ["grad_norm", "clip", "advance", "bound_raise[heads]", "group_oracle[heads]", "trunk_state"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for name in ["adamw[heads]", "reduce_axis0", "pick_batch", "cfc.forward", "cfc.adjoint"] {
        assert!(!names.contains(&name), "{name} is in {names:?}");
    }
    let place = |name: &str| names.iter().position(|n| *n == name).unwrap();
    // The optimizer stood between them.
    assert_eq!(control.launches()[place("group_oracle[heads]")].after, [place("clip")]);
    assert!(bench.time(&control, Data::Hot, ONCE).unwrap() > 0.0);
}
