//! The SP4 control plane: what the tests of the first, hand-written system asked for, and more.

use std::collections::BTreeMap;

use unio::device::Real;
use unio::interface::{Artefacts, Elem};
use unio::random::Stream;
use unio::{Phase, Session};
use unio_tests::{compile_set, device, times};

use crate::producers::{close, normal, quantile};

/// Sizes that cross warps, blocks and the reach of one block.
const SIZES: [usize; 8] = [1, 31, 32, 33, 255, 256, 257, 4096];

/// A session in which every buffer holds something, and buffers that a test gives.
struct Plane {
    artefacts: Artefacts,
    session: Session,
}

impl Plane {
    fn new(given: &[(&str, &[f64])]) -> Self {
        let artefacts = compile_set("sp4").artefacts;
        let mut session = Session::new(&device().unwrap(), &artefacts, Real::F32).unwrap();
        let given: BTreeMap<&str, &[f64]> = given.iter().copied().collect();
        for buffer in artefacts.program.as_ref().unwrap().buffers.iter().filter(|b| b.external) {
            let row: usize = buffer.shape.iter().filter(|n| **n > 0).product();
            let stream = Stream::new(7, &buffer.name);
            let filler: Vec<f64> =
                (0..buffer.len.unwrap_or(8 * row)).map(|n| 0.1 + 0.05 * stream.symmetric(n as u64)).collect();
            let values = given.get(buffer.name.as_str()).copied().unwrap_or(&filler);
            assert_eq!(buffer.elem, Elem::Real);
            session.write_real(&buffer.name, values).unwrap();
        }
        Self { artefacts, session }
    }

    fn run(&mut self, entry: &str) {
        self.session.run_entry(entry).unwrap();
    }

    fn slots(&self, family: &str) -> Vec<f64> {
        self.session.slot_named(family).unwrap().into_iter().map(f64::from).collect()
    }

    fn slot(&self, family: &str) -> f64 {
        self.slots(family)[0]
    }

    /// Observations that are not zero, by index.
    fn observed(&self) -> BTreeMap<usize, f64> {
        let observed = self.session.dump("observed").unwrap();
        observed.into_iter().enumerate().filter(|(_, x)| *x != 0.0).collect()
    }

    /// Observations that a slot family owns.
    fn own(&self, families: &[&str]) -> Vec<usize> {
        let slots = self.artefacts.slots.iter().filter(|s| families.contains(&s.name.as_str()));
        let places = slots.filter_map(|s| Some((s.scratch?, s.members.len().max(1))));
        let mut own: Vec<usize> = places.flat_map(|(first, len)| first..first + len).collect();
        own.sort_unstable();
        own
    }
}

#[test]
fn the_sums_of_the_layout_hold() {
    let artefacts = compile_set("sp4").artefacts;
    assert_eq!(artefacts.isv_len, 173);
    let listed = artefacts.slots.iter().filter(|s| s.scratch.is_some()).map(|s| s.members.len().max(1)).sum::<usize>();
    assert_eq!(listed, 71);
    let buffers = &artefacts.program.as_ref().unwrap().buffers;
    let len = |name: &str| buffers.iter().find(|b| b.name == name).unwrap().len.unwrap();
    assert_eq!((len("observed"), len("smoothing")), (71, 213));
}

/// What a producer must observe in each of its slots, given its buffer.
type Truth = fn(&[f64]) -> Vec<f64>;

fn p99(data: &[f64]) -> Vec<f64> {
    vec![quantile(data, 0.99)]
}

fn mean_abs(data: &[f64]) -> Vec<f64> {
    vec![data.iter().map(|x| x.abs()).sum::<f64>() / data.len() as f64]
}

fn rms(data: &[f64]) -> Vec<f64> {
    vec![(data.iter().map(|x| x * x).sum::<f64>() / data.len() as f64).sqrt()]
}

/// Column means of rows of `N`, through `f`.
fn columns<const N: usize>(data: &[f64], f: fn(f64) -> f64) -> Vec<f64> {
    let rows = (data.len() / N) as f64;
    (0..N).map(|c| data.iter().skip(c).step_by(N).map(|x| f(*x)).sum::<f64>() / rows).collect()
}

fn iqn(data: &[f64]) -> Vec<f64> {
    let rows = (data.len() / 60) as f64;
    let mean = |tau: usize| data.chunks(60).flat_map(|row| &row[12 * tau..12 * tau + 12]).sum::<f64>() / (12.0 * rows);
    [0, 1, 3, 4].map(mean).to_vec()
}

/// Entry, its slot families, its buffer, numbers a row, truth, tolerance.
type Measured = (&'static str, &'static [&'static str], &'static str, usize, Truth, f64);

const PRODUCERS: &[Measured] = &[
    ("target_q_bound", &["target_q_bound"], "target_q", 1, p99, 0.005),
    ("trunk_state", &["h_s2_bound", "h_s2_rms_ema"], "save_h_s2", 1, |d| [p99(d), rms(d)].concat(), 0.005),
    ("bw_d_h_s2_bound", &["bw_d_h_s2_bound"], "bw_d_h_s2", 1, p99, 0.005),
    ("aux_label_scale", &["aux_label_scale"], "aux_labels", 1, mean_abs, 1e-6),
    ("q_abs_ref", &["q_abs_ref"], "q_values", 1, mean_abs, 1e-6),
    ("vsn_mask", &["vsn_mask_ema"], "vsn_mask", 6, |d| columns::<6>(d, |x| x), 1e-5),
    ("rewards", &["reward_component_ema"], "reward_components", 6, |d| columns::<6>(d, f64::abs), 1e-5),
    ("iqn_quantiles", &["iqn_q_p05", "iqn_q_p25", "iqn_q_p75", "iqn_q_p95"], "iqn_q", 60, iqn, 1e-5),
];

#[test]
fn each_producer_equals_the_truth_and_writes_no_other_observation() {
    for (entry, families, buffer, row, truth, tolerance) in PRODUCERS {
        // A million rows of sixty are more than a test needs.
        let last = if *row == 1 { 1_000_003 } else { 10_007 };
        let first = normal(last * row);
        for n in SIZES.into_iter().chain([last]) {
            // Away from zero, so that a relative error means something for plain means too.
            let data: Vec<f64> =
                first[..n * row].iter().map(|x| f64::from((x + if *row > 1 { 3.0 } else { 0.0 }) as f32)).collect();
            let mut plane = Plane::new(&[(buffer, &data)]);
            plane.run(entry);
            let got: Vec<f64> = families.iter().flat_map(|f| plane.slots(f)).collect();
            for (got, expected) in got.iter().zip(truth(&data)) {
                close(&format!("{entry} of {n}"), *got, expected, *tolerance);
            }
            assert_eq!(plane.observed().into_keys().collect::<Vec<_>>(), plane.own(families), "{entry} of {n}");
            let before = plane.session.dump("observed").unwrap();
            plane.run(entry);
            assert_eq!(before, plane.session.dump("observed").unwrap(), "{entry} of {n} again");
        }
    }
}

#[test]
fn branches_keep_their_scales_apart() {
    let base = normal(4096);
    let scaled: Vec<Vec<f64>> =
        [1.0, 10.0, 100.0, 1000.0].iter().map(|s| base.iter().map(|x| x * s).collect()).collect();
    let names = ["atom_positions_0", "atom_positions_1", "atom_positions_2", "atom_positions_3"];
    let given: Vec<(&str, &[f64])> = names.into_iter().zip(scaled.iter().map(Vec::as_slice)).collect();
    let mut plane = Plane::new(&given);
    plane.run("atom_positions");
    for (got, data) in plane.slots("atom_pos_bound").into_iter().zip(&scaled) {
        close("branch", got, quantile(data, 0.99), 0.005);
    }
    assert_eq!(plane.observed().into_keys().collect::<Vec<_>>(), plane.own(&["atom_pos_bound"]));
}

#[test]
fn a_union_is_measured_as_one_in_either_order() {
    for n in [1, 33, 256, 4096] {
        let (a, b) = (normal(n), normal(2 * n + 1).into_iter().map(|x| 3.0 * x).collect::<Vec<_>>());
        let all: Vec<f64> = a.iter().chain(&b).copied().collect();
        let mut plane = Plane::new(&[("d_value_logits", &a), ("d_adv_logits", &b)]);
        plane.run("q_dir_grad_bound");
        let slot = plane.slot("q_dir_grad_bound");
        close(&format!("union of {n}"), slot, quantile(&all, 0.99), 0.005);
        let mut swapped = Plane::new(&[("d_value_logits", &b), ("d_adv_logits", &a)]);
        swapped.run("q_dir_grad_bound");
        assert_eq!(slot, swapped.slot("q_dir_grad_bound"));
    }
}

#[test]
fn the_oracle_measures_every_group_and_the_union_of_curiosity() {
    let sizes = [1024, 32, 1024, 32];
    let subs = ["curiosity_w1", "curiosity_b1", "curiosity_w2", "curiosity_b2"];
    let mut arrays: Vec<(String, Vec<f64>)> = Vec::new();
    for (k, (sub, n)) in subs.iter().zip(sizes).enumerate() {
        for (j, array) in ["params", "grads", "m", "v"].into_iter().enumerate() {
            let shift = 1000 * (4 * k + j);
            let data = normal(shift + n)[shift..].iter().map(|x| x * (1.0 + j as f64)).collect();
            arrays.push((format!("{sub}.{array}"), data));
        }
    }
    let trunk: Vec<(String, Vec<f64>)> = ["params", "grads", "m", "v"]
        .iter()
        .enumerate()
        .map(|(j, a)| (format!("dqn_trunk_all.{a}"), normal(20_000 + j)))
        .collect();
    arrays.extend(trunk);
    let given: Vec<(&str, &[f64])> = arrays.iter().map(|(n, d)| (n.as_str(), d.as_slice())).collect();
    let lengths_agree: Vec<(&str, &[f64])> =
        given.iter().map(|(n, d)| (*n, if n.starts_with("dqn_trunk") { &d[..20_000] } else { *d })).collect();
    let mut plane = Plane::new(&lengths_agree);
    plane.run("param_group_oracle");
    let all = |names: &[&str], array: &str| -> Vec<f64> {
        names
            .iter()
            .flat_map(|sub| lengths_agree.iter().find(|(n, _)| *n == format!("{sub}.{array}")).unwrap().1.to_vec())
            .collect()
    };
    for (group, names) in [(7, &subs[..]), (0, &["dqn_trunk_all"][..])] {
        let (w, g) = (all(names, "params"), all(names, "grads"));
        let ratio = w.iter().zip(&g).map(|(w, g)| w * g).sum::<f64>().abs() / w.iter().map(|w| w * w).sum::<f64>();
        close("weight bound", plane.slots("weight_bound")[group], quantile(&w, 0.99), 0.005);
        close("m bound", plane.slots("adam_m_bound")[group], quantile(&all(names, "m"), 0.99), 0.005);
        close("v bound", plane.slots("adam_v_bound")[group], quantile(&all(names, "v"), 0.99), 0.005);
        close("decay", plane.slots("wd_rate")[group], ratio, 0.001);
    }
    let own = plane.own(&["weight_bound", "adam_m_bound", "adam_v_bound", "wd_rate"]);
    assert_eq!(plane.observed().into_keys().collect::<Vec<_>>(), own);
}

#[test]
fn the_first_systems_closed_forms_hold() {
    let constant = vec![5.0; 4 * 64];
    let labels: Vec<f64> = (0..256).map(|n| if n % 2 == 0 { 3.0 } else { -3.0 }).collect();
    let gate = vec![1.0 / 8.0; 128 * 8];
    let mask: Vec<f64> = (0..128 * 6).map(|n| ((n % 6) + 1) as f64 / 21.0).collect();
    let iqn: Vec<f64> = (0..32 * 5 * 12).map(|n| ((n / 12 % 5) + 1) as f64 * 0.7).collect();
    let rewards: Vec<f64> =
        (0..128 * 6).map(|n| if (n / 6) % 2 == 0 { 1.0 } else { -1.0 } * ((n % 6) + 1) as f64).collect();
    let mut plane = Plane::new(&[
        ("save_h_s2", &constant),
        ("aux_labels", &labels),
        ("moe_gate", &gate),
        ("vsn_mask", &mask),
        ("iqn_q", &iqn),
        ("reward_components", &rewards),
        ("observed_grad_norm", &[42.0]),
        ("aux_next_bar_loss", &[0.5]),
        ("aux_regime_loss", &[1.2]),
    ]);
    for entry in [
        "grad_clip_bound",
        "trunk_state",
        "aux_label_scale",
        "moe",
        "vsn_mask",
        "iqn_quantiles",
        "rewards",
        "aux_next_bar_mse",
        "aux_regime_ce",
    ] {
        plane.run(entry);
    }
    let observed = plane.session.dump("observed").unwrap();
    assert_eq!((observed[38], plane.slot("grad_clip_bound")), (42.0, 42.0));
    close("rms", plane.slot("h_s2_rms_ema"), 5.0, 1e-5);
    close("labels", plane.slot("aux_label_scale"), 3.0, 1e-5);
    plane.slots("moe_expert_util").into_iter().for_each(|u| close("expert", u, 0.125, 1e-6));
    close("entropy", plane.slot("moe_gate_entropy"), 8f64.ln(), 1e-5);
    plane
        .slots("vsn_mask_ema")
        .into_iter()
        .enumerate()
        .for_each(|(g, m)| close("mask", m, (g + 1) as f64 / 21.0, 1e-5));
    for (name, tau) in [("iqn_q_p05", 1.0), ("iqn_q_p25", 2.0), ("iqn_q_p75", 4.0), ("iqn_q_p95", 5.0)] {
        close(name, plane.slot(name), tau * 0.7, 1e-5);
    }
    plane
        .slots("reward_component_ema")
        .into_iter()
        .enumerate()
        .for_each(|(c, r)| close("reward", r, (c + 1) as f64, 1e-5));
    assert_eq!((plane.slot("aux_next_bar_mse"), plane.slot("aux_regime_ce")), (0.5, f64::from(1.2f32)));
    let smoothing = plane.session.dump("smoothing").unwrap();
    assert_eq!(smoothing[38 * 3..38 * 3 + 2], [0.0, 0.0], "Pearl A leaves the variances alone");
}

#[test]
fn clamps_leave_nothing_beyond_their_bounds_and_keep_the_order() {
    let mut data = normal(4096);
    data[5] = f64::INFINITY;
    data[6] = f64::NAN;
    let finite: Vec<f64> = data.iter().copied().filter(|x| x.is_finite()).collect();
    let mut plane = Plane::new(&[("save_h_s2", &data)]);
    plane.session.run(Phase::Train).unwrap();
    let bound = plane.slot("h_s2_bound");
    close("the producer sees the values before the clamp", bound, quantile(&finite, 0.99), 0.005);
    let after = plane.session.dump("save_h_s2").unwrap();
    assert!(after.iter().all(|x| x.is_finite() && x.abs() <= bound.max(1.0)));
    assert_eq!((after[5], after[6]), (0.0, 0.0));
    // What is changed in place has been measured before.
    assert!(plane.slots("reward_component_ema").iter().all(|x| *x != 0.0));
    assert!(plane.session.dump("reward_components").unwrap().iter().all(|x| *x == 0.0));
}

#[test]
fn l1_rises_as_the_gradient_concentrates() {
    let even = vec![0.5; 20 * 48];
    let mut one = vec![0.0; 20 * 48];
    (0..20).for_each(|row| one[row * 48 + 3] = 1.0);
    let lambda = |grads: &[f64]| {
        let mut plane = Plane::new(&[
            ("trunk_input_grads", grads),
            ("dqn_trunk_all.params", &[2.0; 40]),
            ("dqn_trunk_all.grads", &[1.0; 40]),
            ("dqn_trunk_all.m", &[0.1; 40]),
            ("dqn_trunk_all.v", &[0.1; 40]),
        ]);
        plane.run("param_group_oracle");
        plane.run("l1_oracle");
        plane.slot("l1_lambda_trunk")
    };
    assert!(lambda(&even).abs() < 1e-5, "{}", lambda(&even));
    close("all in one column", lambda(&one), 0.5, 1e-5);
    assert_eq!(lambda(&vec![0.0; 20 * 48]), 0.0);
}

#[test]
fn a_constant_signal_is_within_a_percent_and_a_step_is_tracked() {
    let mut plane = Plane::new(&[("aux_next_bar_loss", &[0.5])]);
    plane.run("aux_next_bar_mse");
    assert_eq!(plane.slot("aux_next_bar_mse"), 0.5);
    for _ in 0..1000 {
        plane.run("aux_next_bar_mse");
    }
    close("constant", plane.slot("aux_next_bar_mse"), 0.5, 0.01);
    plane.session.write_real("aux_next_bar_loss", &[2.0]).unwrap();
    for _ in 0..1000 {
        plane.run("aux_next_bar_mse");
    }
    close("step", plane.slot("aux_next_bar_mse"), 2.0, 0.01);
}

#[test]
fn a_whole_step_runs_and_every_slot_with_a_producer_lives() {
    let mut plane = Plane::new(&[]);
    plane.session.run(Phase::Train).unwrap();
    plane.session.run(Phase::Train).unwrap();
    assert_eq!(plane.session.first_non_finite().unwrap().map(|f| f.to_string()), None);
    for slot in plane.artefacts.slots.iter().filter(|s| s.producer.is_some() && s.name != "l1_lambda_trunk") {
        assert!(plane.slots(&slot.name).iter().all(|x| *x != 0.0), "{}", slot.name);
    }
}

/// The pushed weights: `n` of them, just inside 1, driven outwards.
fn pushed(n: usize) -> Vec<(&'static str, Vec<f64>)> {
    vec![
        ("iqn_all.params", (0..n).map(|k| if k % 4 == 0 { 0.999 } else { 0.1 }).collect()),
        ("iqn_all.grads", vec![-1.0; n]),
        ("iqn_all.m", vec![0.0; n]),
        ("iqn_all.v", vec![0.0; n]),
    ]
}

#[test]
fn engagement_is_counted_block_by_block_and_nowhere_else() {
    for n in [1, 255, 257, 4096, 70_001] {
        let given = pushed(n);
        let given: Vec<(&str, &[f64])> = given.iter().map(|(name, data)| (*name, data.as_slice())).collect();
        let mut plane = Plane::new(&given);
        plane.session.set_state_named("learning_rate", 0.01).unwrap();
        plane.session.run(Phase::Train).unwrap();
        let counts = plane.session.dump("clamp_engage").unwrap();
        assert_eq!(counts.len(), 2816);
        let own = counts[3 * 256..4 * 256].iter().sum::<f64>();
        assert_eq!(own as usize, n.div_ceil(4), "of {n}");
        assert_eq!(counts.iter().sum::<f64>(), own, "another group's counts were written");
        let weights = plane.session.dump("iqn_all.params").unwrap();
        assert!(weights.iter().all(|w| w.abs() <= 1.0));
    }
}

#[test]
fn a_sustained_excess_raises_the_bound_and_a_fold_forgets_it() {
    // The rest is pulled inwards, so that the decay rate stays below the push.
    let mut given = pushed(1000);
    for k in (0..1000).filter(|k| k % 4 != 0) {
        given[0].1[k] = 0.9;
        given[1].1[k] = 0.37;
    }
    let given: Vec<(&str, &[f64])> = given.iter().map(|(name, data)| (*name, data.as_slice())).collect();
    let mut plane = Plane::new(&given);
    plane.session.set_state_named("learning_rate", 0.01).unwrap();
    for _ in 0..60 {
        plane.session.run(Phase::Train).unwrap();
    }
    let beside = plane.session.dump("beside").unwrap();
    let (steps, excess) = (beside[3], beside[8 + 3]);
    assert!(excess > 0.2, "{beside:?}");
    assert!(steps > 50.0, "{beside:?}");
    let largest = plane.session.dump("iqn_all.params").unwrap().iter().fold(0.0, |a: f64, w| a.max(w.abs()));
    let unlisted = plane.session.dump("observed_unlisted").unwrap();
    let raised = unlisted.iter().filter(|x| **x == largest).count();
    assert_eq!(raised, 2, "the largest weight is observed once and is the effective bound");
    plane.session.reset(unio::When::Fold).unwrap();
    assert!(plane.session.dump("beside").unwrap().iter().all(|x| *x == 0.0));
    assert!(plane.session.dump("clamp_engage").unwrap().iter().all(|x| *x == 0.0));
}

#[test]
fn a_fold_returns_slots_and_their_smoothing_together() {
    let mut plane = Plane::new(&[]);
    plane.session.run(Phase::Train).unwrap();
    plane.session.run(Phase::Train).unwrap();
    let slow = plane.session.state_named("grad_norm_slow").unwrap();
    assert!(slow > 0.0);
    plane.session.reset(unio::When::Fold).unwrap();
    for name in ["isv", "observed", "smoothing"] {
        let mut values = plane.session.dump(name).unwrap();
        if name == "isv" {
            // The fingerprint of the layout is the one thing that no fold changes.
            assert!(values[115..117].iter().all(|x| *x != 0.0));
            values[115..117].fill(0.0);
        }
        assert!(values.iter().all(|x| *x == 0.0), "{name}");
    }
    assert_eq!(plane.session.state_named("utilization_ema").unwrap(), 1.0);
    assert_eq!(plane.session.state_named("grad_norm_fast").unwrap(), 0.0);
    assert_eq!(plane.session.state_named("grad_norm_slow").unwrap(), slow, "the slow average survives a fold");
}

/// Pearls A and D as the reference states them, in f64.
#[derive(Clone, Copy, Default)]
struct Pearls {
    mean: f64,
    sample: f64,
    diff: f64,
    lag: f64,
}

impl Pearls {
    fn observe(&mut self, x: f64) {
        if x == 0.0 {
            return;
        }
        if self.mean == 0.0 && self.lag == 0.0 {
            (self.mean, self.lag) = (x, x);
            return;
        }
        let rate = f64::from(1e-3f32);
        self.sample += rate * ((x - self.mean).powi(2) - self.sample);
        self.diff += rate * ((x - self.lag).powi(2) - self.diff);
        let alpha = self.diff / (self.diff + self.sample + 1e-8);
        self.mean += alpha * (x - self.mean);
        self.lag = x;
    }
}

#[test]
fn the_law_is_followed_to_a_few_ulps_case_by_case() {
    let cases: [&[f64]; 5] = [&[0.0], &[0.7], &[0.7, 0.7], &[0.7, 1.5], &[0.7, 0.0, 1.5, -2.0, 0.25, 0.25]];
    for case in cases {
        let (mut plane, mut law) = (Plane::new(&[]), Pearls::default());
        for x in case {
            let x = f64::from(*x as f32);
            plane.session.write_real("aux_next_bar_loss", &[x]).unwrap();
            plane.run("aux_next_bar_mse");
            law.observe(x);
            let state = &plane.session.dump("smoothing").unwrap()[41 * 3..41 * 3 + 3];
            let pairs = [
                (plane.slot("aux_next_bar_mse"), law.mean),
                (state[0], law.sample),
                (state[1], law.diff),
                (state[2], law.lag),
            ];
            for (got, expected) in pairs {
                // Where means cancel, an ulp is one of the largest value that went in.
                let ulp = f64::from(f32::EPSILON) * case.iter().fold(1e-6, |a: f64, x| a.max(x.abs()));
                assert!((got - expected).abs() <= 2.0 * ulp, "{case:?}: {got} instead of {expected}");
            }
        }
    }
}

#[test]
fn a_batch_of_slots_follows_the_law_together() {
    let (mut plane, mut laws) = (Plane::new(&[]), [Pearls::default(); 6]);
    for step in 0..20u64 {
        let stream = Stream::new(step, "batch");
        let row: Vec<f64> = (0..6).map(|k| f64::from((0.3 + 0.2 * stream.symmetric(k)) as f32)).collect();
        plane.session.write_real("vsn_mask", &row).unwrap();
        plane.run("vsn_mask");
        laws.iter_mut().zip(&row).for_each(|(law, x)| law.observe(*x));
    }
    for (got, law) in plane.slots("vsn_mask_ema").into_iter().zip(laws) {
        close("slot", got, law.mean, 1e-5);
    }
}

#[test]
fn flags_are_raised_before_the_clamp_hides_them_and_stay_until_the_fold_ends() {
    let mut data = normal(300);
    data[7] = f64::NAN;
    let mut plane = Plane::new(&[("save_h_s2", &data)]);
    plane.session.run(Phase::Train).unwrap();
    let flag = |plane: &Plane, name: &str| plane.session.state_named(name).unwrap();
    assert_eq!(flag(&plane, "flag_12_h_s2_not_finite"), 1.0);
    assert_eq!((flag(&plane, "flag_49_h_s2_magnitude"), flag(&plane, "halt_non_finite")), (0.0, 1.0));
    // The clamp has mended the buffer; the flag stays.
    plane.session.run(Phase::Train).unwrap();
    assert_eq!(flag(&plane, "flag_12_h_s2_not_finite"), 1.0);
    plane.session.write_real("save_h_s2", &[1e9; 300]).unwrap();
    plane.session.run(Phase::Train).unwrap();
    assert_eq!((flag(&plane, "flag_49_h_s2_magnitude"), flag(&plane, "halt_non_finite")), (1.0, 2.0));
    plane.session.reset(unio::When::Fold).unwrap();
    assert_eq!((flag(&plane, "flag_12_h_s2_not_finite"), flag(&plane, "halt_non_finite")), (0.0, 0.0));
}

#[test]
fn an_engaged_clamp_is_no_alarm() {
    let mut plane = Plane::new(&[("save_h_s2", &normal(5000))]);
    plane.session.run(Phase::Train).unwrap();
    assert_eq!(plane.session.state_named("halt_non_finite").unwrap(), 0.0);
}

#[test]
fn the_oracle_holds_at_every_size() {
    for n in SIZES.into_iter().chain([1_000_003]) {
        let all = normal(n + 3);
        let arrays: Vec<&[f64]> = (0..4).map(|k| &all[k..n + k]).collect();
        let given = ["params", "grads", "m", "v"].map(|a| format!("attn_all.{a}"));
        let given: Vec<(&str, &[f64])> = given.iter().map(String::as_str).zip(arrays.iter().copied()).collect();
        let mut plane = Plane::new(&given);
        plane.run("param_group_oracle");
        let product: f64 = arrays[0].iter().zip(arrays[1]).map(|(w, g)| w * g).sum();
        let squares: f64 = arrays[0].iter().map(|w| w * w).sum();
        close(&format!("decay of {n}"), plane.slots("wd_rate")[6], product.abs() / squares, 1e-4);
        for (family, array) in [("weight_bound", 0), ("adam_m_bound", 2), ("adam_v_bound", 3)] {
            close(&format!("{family} of {n}"), plane.slots(family)[6], quantile(arrays[array], 0.99), 0.005);
        }
    }
}

/// The window only saves a second read: where it stands, even where it was never near, the answer is the same.
#[test]
fn the_answer_does_not_depend_on_the_window() {
    let data = normal(20_000);
    let mut plane = Plane::new(&[("target_q", &data)]);
    plane.run("target_q_bound");
    let first = plane.session.dump("observed").unwrap()[0];
    let bracket = |plane: &Plane| plane.session.read_named::<i32>("target_q_bound.brackets").unwrap();
    assert_eq!(bracket(&plane)[1], 0, "nothing was known yet");
    plane.run("target_q_bound");
    assert_eq!((plane.session.dump("observed").unwrap()[0], bracket(&plane)[1]), (first, 1), "the window stood right");
    let truth = bracket(&plane)[2];
    let bins = unio_codegen::plan::Table::WINDOW as i32;
    for window in [0, truth - bins, truth - bins + 1, truth - 1, truth, truth + 1, 65_000] {
        plane.session.write_named("target_q_bound.brackets", &[window, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        plane.run("target_q_bound");
        assert_eq!(plane.session.dump("observed").unwrap()[0], first, "window at {window}");
        let inside = (window..window + bins).contains(&truth);
        assert_eq!(bracket(&plane)[1], i32::from(inside), "window at {window}");
    }
    close("p99", first, quantile(&data, 0.99), 0.005);
}

/// An average that forgets a tenth a step, and one that grows by a fifth, are followed by one read a step; a jump takes two more.
#[test]
fn a_window_reaches_as_far_as_an_average_moves() {
    let data = normal(20_000);
    let mut plane = Plane::new(&[("target_q", &data)]);
    let mut scale = 1.0;
    let factors = [(1.0, 0), (0.9, 1), (0.9, 1), (1.2, 1), (1.2, 1), (0.5, 0), (0.5, 0), (0.9, 1), (3.0, 0)];
    for (step, (factor, settled)) in factors.into_iter().enumerate() {
        scale *= factor;
        let scaled: Vec<f64> = data.iter().map(|x| x * scale).collect();
        plane.session.write_real("target_q", &scaled).unwrap();
        plane.run("target_q_bound");
        let bracket = plane.session.read_named::<i32>("target_q_bound.brackets").unwrap();
        assert_eq!(bracket[1], settled, "step {step}");
        close("p99", plane.session.dump("observed").unwrap()[0], quantile(&scaled, 0.99), 0.005);
    }
}

/// What a window never holds, a p99 of 0, is told by all that lies below it: no second read, though the window stands still.
#[test]
fn a_quantile_of_zero_takes_one_read() {
    let data: Vec<f64> = (0..20_000).map(|n| if n % 200 == 0 { 1.0 } else { 0.0 }).collect();
    let mut plane = Plane::new(&[("target_q", &data)]);
    for _ in 0..2 {
        plane.run("target_q_bound");
        let bracket = plane.session.read_named::<i32>("target_q_bound.brackets").unwrap();
        assert_eq!(bracket[1..6], [1, 0, 0, 19_900, 20_000]);
        assert_eq!(plane.session.dump("observed").unwrap()[0], 0.0);
    }
}

/// "First observation by Pearl A, a thousand more within a percent, every other observation untouched", for each producer.
#[test]
fn every_producer_settles_on_a_constant_signal() {
    for (entry, families, buffer, row, ..) in PRODUCERS {
        let data: Vec<f64> = (0..7 * row).map(|n| 0.5 + (n % row) as f64 * 0.25).collect();
        let mut plane = Plane::new(&[(buffer, &data)]);
        plane.run(entry);
        let first: Vec<f64> = families.iter().flat_map(|f| plane.slots(f)).collect();
        for _ in 0..times(1000, 10) {
            plane.run(entry);
        }
        let last = families.iter().flat_map(|f| plane.slots(f));
        first.iter().zip(last).for_each(|(first, last)| close(entry, last, *first, 0.01));
        assert_eq!(plane.observed().into_keys().collect::<Vec<_>>(), plane.own(families), "{entry}");
    }
}

#[test]
fn the_fingerprint_stands_in_its_slots_and_utilisation_is_mirrored() {
    let mut plane = Plane::new(&[("utilization", &[0.25])]);
    let words = plane.slots("layout_fingerprint");
    let digits: String = words.iter().map(|w| format!("{:06x}", *w as u32)).collect();
    assert_eq!(digits, plane.artefacts.fingerprint[..12]);
    plane.session.run(Phase::Train).unwrap();
    let seen = plane.session.dump("homeostatic_observable").unwrap();
    assert_eq!(seen[1], 0.25);
    assert!(seen.iter().enumerate().all(|(n, x)| (n == 1) == (*x == 0.25)));
}
