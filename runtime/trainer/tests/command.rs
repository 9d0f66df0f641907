//! The command as a user meets it: what it trains, and what it says when it cannot.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use unio::data::{Bars, GROUPS};
use unio::run::Run;

#[path = "../../tests/baseline/mod.rs"]
mod baseline;

/// Days in a window of the model: K.
const DAYS: usize = 8;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn trainer(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.current_dir(root()).args(args);
    command
}

/// One line that begins with `error:`, a failing exit, and no output folder.
fn refused(mut command: Command, out: &Path, says: &[&str]) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    for part in says {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
    assert!(!out.exists(), "{} was left behind", out.display());
}

/// Trains a shipped run as it stands; its mean test AUC of volatility, and that of the two who learn nothing or little.
fn scores(name: &str) -> (f64, f64, f64) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let path = root().join("specs/runs").join(name).with_extension("toml");
    let args = ["train", path.to_str().unwrap(), "--device", "emulator", "--out", out.to_str().unwrap()];
    let output = trainer(&args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = Run::read(&path).unwrap();
    check_outputs(&run, &out, &output);
    let rows = metrics(&out);
    let last = rows.iter().filter(|r| r["epoch"] == run.epochs);
    let areas: Vec<f64> = last.map(|r| r["valid_auc"]["volatility"].as_f64().unwrap()).collect();
    let bars = Bars::read(&run.data).unwrap();
    let (regression, carried) =
        (baseline::logistic_regression(&bars, &run.folds, DAYS), baseline::carry_forward(&bars, &run.folds, DAYS));
    let mean = areas.iter().sum::<f64>() / areas.len() as f64;
    println!("{name}: trained {mean:.4} {areas:.4?}, logistic regression {regression:.4}, carried {carried:.4}");
    (mean, regression, carried)
}

fn check_outputs(run: &Run, out: &Path, output: &Output) {
    let rows = metrics(out);
    assert_eq!(rows.len(), 3 * run.epochs);
    for key in ["fold", "epoch", "train_loss", "valid_loss", "valid_auc", "slots"] {
        assert!(rows.iter().all(|r| r.get(key).is_some()), "{key}");
    }
    assert!(rows.iter().all(|r| r["slots"]["grad_norm"].as_f64().unwrap() > 0.0), "the control plane does not live");
    assert!((1..=3).all(|fold| out.join(format!("fold-{fold}.safetensors")).is_file()));
    assert!(said(output, "volatility"));
    assert!(said(output, "\nGradient scratch: 32 samples × "));
}

#[test]
fn the_main_run_beats_a_logistic_regression() {
    let (trained, regression, carried) = scores("sp500");
    assert!(trained >= regression && trained > carried, "{trained}, {regression}, {carried}");
}

#[test]
fn the_second_run_beats_a_logistic_regression() {
    let (trained, regression, carried) = scores("nasdaq");
    assert!(trained >= regression && trained > carried, "{trained}, {regression}, {carried}");
}

#[test]
fn two_runs_of_one_seed_give_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str, options: &[&str]| {
        let out = dir.path().join(name);
        let args = ["train", "--device", "emulator", "--epochs", "1", "--folds", "1", "--out", out.to_str().unwrap()];
        assert!(trainer(&[&args, options].concat()).output().unwrap().status.success());
        let mut rows = metrics(&out);
        rows.iter_mut().for_each(|r| drop(r.as_object_mut().unwrap().remove("seconds")));
        (fs::read(out.join("fold-1.safetensors")).unwrap(), rows)
    };
    let first = run("a", &[]);
    assert_eq!(first, run("b", &[]));
    assert_eq!(first, run("c", &["--eager"]), "launched one by one");
}

/// Metrics and checkpoints that a folder holds; how long it took is no part of what was found.
fn found(out: &Path) -> (Vec<serde_json::Value>, Vec<Vec<u8>>) {
    let mut rows = metrics(out);
    rows.iter_mut().for_each(|r| drop(r.as_object_mut().unwrap().remove("seconds")));
    let checkpoint = |fold| fs::read(out.join(format!("fold-{fold}.safetensors"))).unwrap();
    (rows, (1..=3).map(checkpoint).collect())
}

/// Trains two epochs of a short run, whose folds are those of two years unless the folder has data of its own.
fn short(dir: &Path, out: &Path, options: &[&str]) -> Output {
    let data = dir.join("short.csv");
    if !data.exists() {
        let text = fs::read_to_string(root().join("specs/data/sp500.csv")).unwrap();
        fs::write(&data, text.lines().take(501).collect::<Vec<_>>().join("\n")).unwrap();
    }
    let run = run_file(dir, &[("data", &format!("{data:?}")), ("epochs", "2")]);
    let args = ["train", run.to_str().unwrap(), "--device", "emulator", "--out", out.to_str().unwrap()];
    trainer(&[&args, options].concat()).output().unwrap()
}

#[test]
fn folds_one_by_one_give_what_one_go_gives() {
    let dir = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| dir.path().join(name));
    assert!(short(dir.path(), &whole, &[]).status.success());
    for fold in ["1", "2", "3"] {
        assert!(short(dir.path(), &parts, &["--fold", fold]).status.success());
    }
    assert_eq!(found(&whole), found(&parts));
    // Again into the same folder: its lines take the place of those that were there.
    assert!(short(dir.path(), &parts, &["--fold", "3"]).status.success());
    assert_eq!(found(&whole), found(&parts));
}

#[test]
fn a_run_that_was_stopped_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let [whole, stopped] = ["whole", "stopped"].map(|name| dir.path().join(name));
    assert!(short(dir.path(), &whole, &[]).status.success());
    assert!(short(dir.path(), &stopped, &["--folds", "2"]).status.success());
    // As if it had been stopped in the second fold, in the middle of a line.
    fs::remove_file(stopped.join("fold-2.safetensors")).unwrap();
    let text = fs::read_to_string(stopped.join("metrics.jsonl")).unwrap();
    fs::write(stopped.join("metrics.jsonl"), &text[..text.len() - 40]).unwrap();
    let output = short(dir.path(), &stopped, &["--resume"]);
    assert!(said(&output, "fold 1 is there") && !said(&output, "fold 2 is there"));
    assert_eq!(found(&whole), found(&stopped));
    let lines = fs::read(stopped.join("metrics.jsonl")).unwrap();
    assert!(said(&short(dir.path(), &stopped, &["--resume"]), "fold 3 is there"));
    assert_eq!(fs::read(stopped.join("metrics.jsonl")).unwrap(), lines, "nothing is trained twice");
    let other = short(dir.path(), &stopped, &["--resume", "--epochs", "1"]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("epochs: 2, not 1"));
}

#[test]
fn a_fold_of_other_data_is_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    assert!(short(dir.path(), &out, &[]).status.success());
    let data = dir.path().join("short.csv");
    let mut lines: Vec<String> = fs::read_to_string(&data).unwrap().lines().map(ToOwned::to_owned).collect();
    // A volume in the last of the four spans: the folds before read nothing of it.
    let (rest, volume) = lines[450].rsplit_once(',').unwrap();
    lines[450] = format!("{rest},{}", volume.parse::<f64>().unwrap() * 2.0);
    fs::write(&data, lines.join("\n")).unwrap();
    let output = short(dir.path(), &out, &["--resume"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(said(&output, "fold 2 is there"), "{text}");
    assert!(text.contains("fold-3.safetensors was trained otherwise (data: "), "{text}");
}

#[test]
fn a_fold_of_other_settings_or_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let none = short(dir.path(), &out, &["--fold", "4"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("folds 1 to 3") && !out.exists());
    assert!(short(dir.path(), &out, &["--fold", "1"]).status.success());
    let run = run_file(
        dir.path(),
        &[("data", &format!("{:?}", dir.path().join("short.csv"))), ("epochs", "2"), ("seed", "9")],
    );
    let args = ["train", run.to_str().unwrap(), "--device", "emulator", "--out", out.to_str().unwrap(), "--resume"];
    let other = trainer(&args).output().unwrap();
    let text = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && text.contains("seed: 1, not 9"), "{text}");
}

#[test]
fn kernels_are_measured_one_by_one_and_at_other_sizes() {
    let output = trainer(&["bench", "--device", "emulator", "--filter", "adam", "--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["clock"], "the host's clock");
    let rows = report["kernels"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|r| r["kernel"].as_str().unwrap()).collect();
    assert!(["perception_adamw", "sp4_adam", "sp4_adam_l1"].iter().all(|name| names.contains(name)), "{names:?}");
    for row in rows {
        assert!(row["error"].is_null() && row["hot_us"].as_f64().unwrap() > 0.0, "{row}");
        // Weight and two moments are read and written, the gradient is read.
        assert!(row["bytes"].as_u64().unwrap() >= 28 * row["n"].as_u64().unwrap(), "{row}");
    }
    assert!(rows.iter().any(|r| r["n"] == 4096 && r["compiled"] == false));
}

#[test]
fn a_step_is_measured_with_its_control_plane() {
    let output = trainer(&["bench", "--device", "emulator"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!said(&output, "failed:"), "{}", String::from_utf8_lossy(&output.stdout));
    for part in ["the host's clock", "A step of perception: ", "A step of sp4: ", "Its control plane, ", "it adds "] {
        assert!(said(&output, part), "`{part}` is not in: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn a_filter_that_names_no_kernel_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let command = trainer(&["bench", "--device", "emulator", "--filter", "adamv"]);
    refused(command, &dir.path().join("out"), &["adamv"]);
}

fn metrics(out: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn said(output: &Output, text: &str) -> bool {
    String::from_utf8_lossy(&output.stdout).contains(text)
}

/// A run file in a folder of its own, with these keys changed.
fn run_file(dir: &Path, changes: &[(&str, &str)]) -> PathBuf {
    let mut keys = BTreeMap::from([
        ("doc", "\"A test.\"".to_owned()),
        ("model", "\"perception\"".to_owned()),
        ("data", format!("{:?}", root().join("specs/data/sp500.csv"))),
        ("epochs", "1".to_owned()),
        ("seed", "1".to_owned()),
    ]);
    keys.extend(changes.iter().map(|(k, v)| (*k, (*v).to_owned())));
    let lines: Vec<String> = keys.iter().map(|(k, v)| format!("{k} = {v}")).collect();
    let path = dir.join("run.toml");
    fs::write(&path, format!("[run.test]\n{}\n", lines.join("\n"))).unwrap();
    path
}

fn refused_run(changes: &[(&str, &str)], says: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (run, out) = (run_file(dir.path(), changes), dir.path().join("out"));
    let args = ["train", run.to_str().unwrap(), "--device", "emulator", "--out", out.to_str().unwrap()];
    refused(trainer(&args), &out, says);
}

#[test]
fn a_missing_data_file_is_named() {
    refused_run(&[("data", "\"nowhere.csv\"")], &["nowhere.csv"]);
}

#[test]
fn a_bad_cell_is_shown_with_row_and_column() {
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(root().join("specs/data/sp500.csv")).unwrap();
    let data = dir.path().join("bad.csv");
    fs::write(&data, text.replace("1999-01-06,1244.780029", "1999-01-06,twelve")).unwrap();
    refused_run(&[("data", &format!("{data:?}"))], &["bad.csv", "open", "twelve", "4"]);
}

#[test]
fn an_unknown_key_of_a_run_is_shown_with_its_line() {
    refused_run(&[("weight_decay", "0.1")], &["weight_decay", "run.toml", "line"]);
}

#[test]
fn an_unknown_state_model_or_feature_is_named() {
    refused_run(&[("model", "\"other\"")], &["other", "perception"]);
    refused_run(&[("state", "{ nonsense = 1.0 }")], &["nonsense", "learning_rate"]);
    refused_run(&[("state", "{ learning_rate = [] }")], &["learning_rate", "no value"]);
    refused_run(&[("features", "{ candle = [\"return_7\"] }")], &["return_7", "return_5"]);
    refused_run(&[("features", "{ candle = [\"return_5\"] }")], &["candle", "volume"]);
    let short = GROUPS.map(|(name, features)| format!("{name} = [\"{}\"]", features[0])).join(", ");
    refused_run(&[("features", &format!("{{ {short} }}"))], &["candle", "1 features", "3"]);
}

#[test]
fn a_missing_run_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    refused(trainer(&["train", "nowhere.toml", "--out", out.to_str().unwrap()]), &out, &["nowhere.toml"]);
}

#[test]
fn cuda_without_a_driver_is_refused_and_never_falls_back() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut command =
        trainer(&["train", "--device", "cuda", "--epochs", "1", "--folds", "1", "--out", out.to_str().unwrap()]);
    if command.output().unwrap().status.success() {
        return println!("skipped: this machine has a card");
    }
    refused(command, &out, &["libcuda"]);
}

#[test]
fn no_compiler_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut command = trainer(&["train", "--device", "emulator", "--out", out.to_str().unwrap()]);
    let cache = dir.path().join("cache");
    command.env("PATH", dir.path()).env_remove("CXX").env("UNIO_CACHE_DIR", cache);
    refused(command, &out, &["C++ compiler"]);
}

/// Tensors of a safetensors file by name: the bytes.
fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&bytes[8..start]).unwrap();
    let range = |about: &serde_json::Value| {
        let [first, end] = [0, 1].map(|n| start + about["data_offsets"][n].as_u64().unwrap() as usize);
        bytes[first..end].to_vec()
    };
    header
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, about)| (name.clone(), range(about)))
        .collect()
}

#[test]
fn a_trace_takes_the_steps_that_training_takes() {
    let dir = tempfile::tempdir().unwrap();
    let (trained, traced) = (dir.path().join("train"), dir.path().join("trace"));
    let run = |args: &[&str], out: &Path| {
        let output = trainer(args).args(["--device", "emulator", "--out"]).arg(out).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["train", "--epochs", "1", "--folds", "1"], &trained);
    run(&["trace", "--steps", "39"], &traced);
    let checkpoint = tensors(&trained.join("fold-1.safetensors"));
    let params = tensors(&traced.join("params-39.safetensors"));
    assert!(!params.is_empty() && params.iter().all(|(name, bytes)| &checkpoint[name] == bytes));
    let start = tensors(&traced.join("start.safetensors"));
    assert!(start.keys().eq(params.keys()) && start != params);
    assert!([1, 10].iter().all(|n| traced.join(format!("params-{n}.safetensors")).is_file()));
}

#[test]
fn a_trace_goes_on_to_the_next_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("trace");
    let output = trainer(&["trace", "--device", "emulator", "--steps", "40", "--out"]).arg(&out).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(out.join("steps.jsonl")).unwrap();
    let steps: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.len(), 40);
    assert_eq!((&steps[38]["epoch"], &steps[39]["epoch"], &steps[39]["cursor"]), (&1.into(), &2.into(), &0.into()));
    assert!(out.join("order-2.safetensors").is_file());
    let rate = |step: usize| steps[step]["read"]["adamw[trunk]"]["prev_learning_rate"].as_f64().unwrap();
    assert!((rate(38) - 1e-3).abs() < 1e-9 && (rate(39) - 5e-4).abs() < 1e-9);
    // What a step reads as the last one's slots is what that one left.
    let left = steps[38]["slots"]["wd_rate"].as_array().unwrap();
    for group in ["heads", "select", "trunk"] {
        let read = steps[39]["read"][format!("adamw[{group}]")]["prev_wd_rate"].as_f64().unwrap();
        assert!(left.iter().any(|slot| slot.as_f64().unwrap() as f32 == read as f32), "{group}: {read}, {left:?}");
    }
}

#[test]
fn a_trace_in_f64_has_values_and_gradients_of_the_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("trace");
    let args = ["trace", "--device", "emulator", "--real", "f64", "--steps", "3", "--fold", "2", "--out"];
    let output = trainer(&args).arg(&out).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let step = tensors(&out.join("step-1.safetensors"));
    assert_eq!(step["buffer/loss.total"].len(), 32 * 8);
    assert!(
        ["grads/cfc.w_h", "buffer/cfc.h_next", "buffer/cfc.saved.u", "buffer/cfc.d_x"]
            .iter()
            .all(|n| step.contains_key(*n))
    );
    assert_eq!(tensors(&out.join("start.safetensors"))["pool.v"].len(), 16 * 8);
    assert_eq!(tensors(&out.join("params-3.safetensors")).len(), tensors(&out.join("start.safetensors")).len());
    assert!(tensors(&out.join("data.safetensors")).contains_key("buffer/order"));
}

#[test]
fn a_trace_of_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let trace = |options: &[&str]| trainer(&[&["trace", "--out", out.to_str().unwrap()], options].concat());
    refused(trace(&["--steps", "0"]), &out, &["--steps 0"]);
    refused(trace(&["--fold", "0"]), &out, &["no fold 0", "3"]);
    refused(trace(&["--fold", "4"]), &out, &["no fold 4", "3"]);
}
