//! A step as a graph: the same bits as eager launches, whatever varies; the plan's edges and no others.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use unio::device::{Device, Real};
use unio::interface::Artefacts;
use unio::{Launching, Phase, STEPS_TOGETHER, Session, StateOf, When};
use unio_tests::{compile_run, compile_set, device, fill_externals, times, twin_devices};

use crate::determinism::bits;

/// A session with data and weights.
fn filled(device: &Device, artefacts: &Artefacts, launching: Launching) -> Session {
    let mut session = Session::new(device, artefacts, Real::F32).unwrap();
    fill_externals(&mut session, artefacts, 64).unwrap();
    session.init_params(11).unwrap();
    session.set_launching(launching);
    session
}

fn assert_same(what: &str, a: &Session, b: &Session) {
    for ((name, a), (_, b)) in bits(a).iter().zip(&bits(b)) {
        assert!(a == b, "{what}: `{name}` differs");
    }
}

/// Also when the host changes the rate between steps, starts an epoch, or evaluates in between.
#[test]
fn two_hundred_steps_of_a_graph_equal_as_many_eager_steps() {
    let artefacts = compile_set("perception").artefacts;
    let [first, second] = twin_devices().unwrap();
    let mut graph = filled(&first, &artefacts, Launching::Graph);
    let mut eager = filled(&second, &artefacts, Launching::Eager);
    for step in 0..times(200, 60) as i32 {
        for session in [&mut graph, &mut eager] {
            if step % 40 == 20 {
                session.set_state_named("learning_rate", 0.01 / f64::from(step)).unwrap();
            }
            if step % 50 == 49 {
                session.reset(When::Epoch).unwrap();
                session.run(Phase::Evaluate).unwrap();
            }
            session.run(Phase::Train).unwrap();
        }
        if step % 20 == 19 {
            assert_same(&format!("step {step}"), &graph, &eager);
        }
    }
}

/// Steps that share a graph overlap, the emulator takes them in the last order that the edges allow, and no bit tells.
#[test]
fn steps_that_share_a_graph_equal_as_many_eager_steps() {
    for (set, rounds) in [("perception", 4), ("sp4", 1)] {
        let artefacts = compile_set(set).artefacts;
        let [first, second] = twin_devices().unwrap();
        let mut together = filled(&second, &artefacts, Launching::Graph);
        let mut eager = filled(&first, &artefacts, Launching::Eager);
        for round in 1..=rounds {
            // Two graphs of several steps, and what is left.
            let steps = 2 * STEPS_TOGETHER + 3;
            for session in [&mut together, &mut eager] {
                if set == "perception" {
                    session.set_state_named("learning_rate", 0.01 / f64::from(round)).unwrap();
                    session.reset(When::Epoch).unwrap();
                    session.run(Phase::Evaluate).unwrap();
                }
                session.run_steps(Phase::Train, steps).unwrap();
            }
            assert_same(&format!("{set}, round {round}"), &together, &eager);
        }
    }
}

/// A forward part waits for the weights that it reads, and not for what is measured of them.
#[test]
fn a_step_begins_beside_the_end_of_the_one_before() {
    let artefacts = compile_set("perception").artefacts;
    let mut session = filled(&device().unwrap(), &artefacts, Launching::Graph);
    let graph = session.graph_of(Phase::Train, 3).unwrap();
    let (names, before) = (graph.launches(), all_before(&graph.edges()));
    let made = names.len() / 3;
    let at = |step: usize, name: &str| step * made + names[..made].iter().position(|n| n == name).unwrap();
    for step in [1, 2] {
        let waits = |name, other| before[at(step, name)].contains(&at(step - 1, other));
        assert!(waits("select.forward", "adamw[select]") && waits("window.forward", "select.adjoint"));
        assert!(!waits("loss.forward", "rate_deficit[trunk]") && !waits("mamba.forward", "group_oracle[trunk].count"));
        assert!(waits("reduce_axis0", "group_oracle[trunk].count") && waits("adamw[trunk]", "bound_raise[trunk]"));
        assert!(waits("trunk_state", "trunk_state"), "one smoothing");
    }
}

#[test]
fn replays_of_the_control_plane_equal_eager_steps() {
    let artefacts = compile_set("sp4").artefacts;
    let [first, second] = twin_devices().unwrap();
    let mut graph = filled(&first, &artefacts, Launching::Graph);
    let mut eager = filled(&second, &artefacts, Launching::Eager);
    graph.graph(Phase::Train).unwrap().replay(3).unwrap();
    (0..3).for_each(|_| eager.run(Phase::Train).unwrap());
    assert_same("sp4", &graph, &eager);
}

#[test]
fn building_a_graph_changes_no_bit() {
    let artefacts = compile_set("perception").artefacts;
    let mut session = filled(&device().unwrap(), &artefacts, Launching::Graph);
    session.run(Phase::Train).unwrap();
    let before = bits(&session);
    for phase in [Phase::Train, Phase::Evaluate] {
        assert!(!session.graph(phase).unwrap().launches().is_empty());
    }
    // Another length of a buffer makes new graphs.
    let order: Vec<i32> = session.read_named("order").unwrap();
    session.write_named("order", &[order.as_slice(), &[0, 0]].concat()).unwrap();
    session.graph(Phase::Train).unwrap();
    for ((name, before), (_, after)) in before.iter().zip(&bits(&session)) {
        assert!(before == after || name == "order", "`{name}` changed");
    }
}

/// Data of another length, or new data of the same: a graph never reads what was there before.
#[test]
fn a_graph_follows_the_data() {
    let artefacts = compile_set("perception").artefacts;
    let [first, second] = twin_devices().unwrap();
    let mut graph = filled(&first, &artefacts, Launching::Graph);
    let mut eager = filled(&second, &artefacts, Launching::Eager);
    for rows in [64, 64, 48, 96, 64] {
        for session in [&mut graph, &mut eager] {
            fill_externals(session, &artefacts, rows).unwrap();
            session.reset(When::Epoch).unwrap();
            session.run(Phase::Train).unwrap();
            session.run(Phase::Train).unwrap();
        }
        assert_same(&format!("{rows} rows"), &graph, &eager);
    }
}

/// All that comes before each launch, however indirectly.
fn all_before(after: &[Vec<usize>]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = Vec::new();
    for direct in after {
        let mut found: BTreeSet<usize> = direct.iter().copied().collect();
        direct.iter().for_each(|n| found.extend(&all[*n]));
        all.push(found);
    }
    all
}

/// The same by name.
fn closure(names: &[String], after: &[Vec<usize>]) -> Vec<(String, BTreeSet<String>)> {
    let named = |set: &BTreeSet<usize>| set.iter().map(|n| names[*n].clone()).collect();
    names.iter().cloned().zip(all_before(after).iter().map(named)).collect()
}

/// Every launch that is made waits for just what the plan says, directly or by others; no edge is implied by others.
#[test]
fn a_graph_has_the_plans_edges() {
    for set in ["perception", "sp4"] {
        let artefacts = compile_set(set).artefacts;
        let mut session = filled(&device().unwrap(), &artefacts, Launching::Graph);
        for phase in [Phase::Train, Phase::Evaluate] {
            let program = artefacts.program.as_ref().unwrap();
            let launches = if phase == Phase::Train { &program.train } else { &program.evaluate };
            let names: Vec<String> = launches.iter().map(|l| l.name.clone()).collect();
            let planned: Vec<Vec<usize>> = launches.iter().map(|l| l.after.clone()).collect();
            let graph = session.graph(phase).unwrap();
            // Of two forms of a producer a step launches the one that fits the length of its buffer.
            let made = graph.launches().to_vec();
            let is_other =
                |name: &String| made.iter().any(|m| name.strip_prefix(m.as_str()).is_some_and(|r| r.starts_with('.')));
            assert!(names.iter().all(|name| made.contains(name) != is_other(name)), "{set}");
            let edges = graph.edges();
            let kept = |set: BTreeSet<String>| set.into_iter().filter(|name| made.contains(name)).collect();
            let planned = closure(&names, &planned).into_iter().filter(|(name, _)| made.contains(name));
            let planned: Vec<(String, BTreeSet<String>)> = planned.map(|(name, set)| (name, kept(set))).collect();
            assert_eq!(closure(&made, &edges), planned, "{set}");
            let before = all_before(&edges);
            let implied = |n: usize, edge: &usize| edges[n].iter().any(|other| before[*other].contains(edge));
            assert!((0..edges.len()).all(|n| edges[n].iter().all(|edge| !implied(n, edge))), "{set}");
        }
    }
}

/// A group that is absent leaves out its launches; what waited for them waits for what they waited for.
#[test]
fn launches_of_nothing_are_left_out_with_their_edges_kept() {
    let artefacts = compile_set("sp4").artefacts;
    let mut session = filled(&device().unwrap(), &artefacts, Launching::Graph);
    let program = artefacts.program.as_ref().unwrap();
    let names: Vec<String> = program.train.iter().map(|l| l.name.clone()).collect();
    let planned: Vec<Vec<usize>> = program.train.iter().map(|l| l.after.clone()).collect();
    for array in ["params", "grads", "m", "v"] {
        session.write_real(&format!("iqn_all.{array}"), &[]).unwrap();
    }
    let graph = session.graph(Phase::Train).unwrap();
    let made: BTreeSet<&String> = graph.launches().iter().collect();
    assert!(made.len() < names.len(), "nothing was left out");
    let mut wanted = closure(&names, &planned);
    wanted.retain(|(name, _)| made.contains(name));
    wanted.iter_mut().for_each(|(_, before)| before.retain(|name| made.contains(name)));
    assert_eq!(closure(graph.launches(), &graph.edges()), wanted);
}

/// Launches that meet in memory are ordered, in every set there is: the graph of a step that lacks an edge is refused.
#[test]
fn every_step_is_ordered_where_it_must_be() {
    for name in ["cfc", "pool", "head", "functions", "two_step_scan"] {
        let artefacts = compile_run(name, &[]).artefacts;
        let mut session = filled(&device().unwrap(), &artefacts, Launching::Graph);
        session.graph(Phase::Train).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let mut artefacts = compile_set("perception").artefacts;
    let launches = &mut artefacts.program.as_mut().unwrap().train;
    launches.iter_mut().find(|l| l.name == "reduce_axis0").unwrap().after.clear();
    let mut session = filled(&device().unwrap(), &artefacts, Launching::Graph);
    let error = session.run(Phase::Train).unwrap_err().to_string();
    assert!(error.contains("no edge orders them") && error.contains("reduce_axis0"), "{error}");
    // Nothing was begun: the other phase runs, and so does this one, one launch after another.
    session.run(Phase::Evaluate).unwrap();
    session.set_launching(Launching::Eager);
    session.run(Phase::Train).unwrap();
}

#[test]
fn the_mirror_shows_the_last_whole_step() {
    let artefacts = compile_set("perception").artefacts;
    let state = |name: &str| artefacts.states.iter().find(|s| s.name == name).unwrap().word;
    let (cursor, sum) =
        (StateOf::<i32>::new(state("cursor"), "cursor"), StateOf::<f32>::new(state("loss_sum"), "loss_sum"));
    for launching in [Launching::Graph, Launching::Eager] {
        let mut session = filled(&device().unwrap(), &artefacts, launching);
        session.run(Phase::Train).unwrap();
        let mirror = session.mirror().unwrap();
        assert!(mirror.read().unwrap().is_none(), "no step since");
        for step in 1..=3 {
            session.run(if step == 2 { Phase::Evaluate } else { Phase::Train }).unwrap();
            session.synchronize().unwrap();
            let seen = mirror.read().unwrap().unwrap();
            assert_eq!(seen.step(), step);
            assert_eq!(seen.isv(), session.isv().unwrap());
            assert_eq!(seen.state(cursor).unwrap(), session.state(cursor).unwrap());
            assert_eq!(seen.state(sum).unwrap().to_bits(), session.state(sum).unwrap().to_bits());
        }
        assert!(mirror.read().unwrap().unwrap().state(StateOf::<f32>::new(state("cursor"), "cursor")).is_err());
    }
}

/// Whoever reads while steps run sees slots and states of one step: here the counts of steps agree with the stamp.
#[test]
fn a_reader_beside_the_loop_sees_whole_steps() {
    let artefacts = compile_set("perception").artefacts;
    let word = |name: &str| artefacts.states.iter().find(|s| s.name == name).unwrap().word;
    let (cursor, rows) =
        (StateOf::<i32>::new(word("cursor"), "cursor"), StateOf::<i32>::new(word("loss_rows"), "loss_rows"));
    for together in [1, 4] {
        let mut session = filled(&device().unwrap(), &artefacts, Launching::Graph);
        session.set_state_named("rows", 1e6).unwrap();
        let mirror = session.mirror().unwrap();
        let mut graph = session.graph_of(Phase::Train, together).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut last, start) = (0, Instant::now());
                while last < 100 && start.elapsed() < Duration::from_secs(600) {
                    let Some(seen) = mirror.read().unwrap() else { continue };
                    assert!(seen.step() >= last);
                    last = seen.step();
                    let done = [seen.state(cursor).unwrap(), seen.state(rows).unwrap()];
                    assert_eq!(done, [32 * last as i32; 2]);
                }
                last
            });
            graph.replay(100 / together).unwrap();
            assert_eq!(reader.join().unwrap(), 100);
        });
        session.synchronize().unwrap();
    }
}
