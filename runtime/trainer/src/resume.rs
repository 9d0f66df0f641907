//! Folds one by one: what a folder already holds of a run, and what of it stays.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use unio::Session;
use unio::checkpoint::{self, UserMetadata};
use unio::data::FoldData;
use unio::run::Run;

use crate::TrainArgs;
use crate::perception::artefacts;
use crate::report::Lines;

/// Where a fold's checkpoint is.
pub fn place(folder: &Path, fold: usize) -> PathBuf {
    folder.join(format!("fold-{fold}.safetensors"))
}

/// What a fold's checkpoint says of itself: all that its numbers come from.
pub fn about(run: &Run, data: &FoldData) -> UserMetadata {
    let folds = &run.folds;
    let features: Vec<String> = run.features().iter().map(ToString::to_string).collect();
    BTreeMap::from([
        ("run".to_owned(), run.name.clone()),
        ("fold".to_owned(), data.fold.number.to_string()),
        ("epochs".to_owned(), run.epochs.to_string()),
        ("seed".to_owned(), run.seed.to_string()),
        ("horizon".to_owned(), run.horizon.to_string()),
        ("folds".to_owned(), format!("{} spans, purge {}, embargo {}", folds.spans, folds.purge, folds.embargo)),
        ("features".to_owned(), features.join(" ")),
        ("state".to_owned(), format!("{:?}", run.states)),
        ("data".to_owned(), short(&data.digest())),
        ("specs".to_owned(), short(&checkpoint::digest(artefacts()))),
    ])
}

/// As many digits of a hash as a message has room for.
fn short(digest: &str) -> String {
    digest.chars().take(16).collect()
}

/// Leaves in `folds` what is to be trained; gives the metrics of the folder that stay.
pub fn kept(
    args: &TrainArgs,
    run: &Run,
    folder: &Path,
    folds: &mut Vec<FoldData>,
    session: &mut Session,
) -> Result<Lines> {
    if args.fold.is_none() && !args.resume {
        return Ok(Lines::none());
    }
    let mut lines = Lines::read(folder)?;
    let mut left = Vec::new();
    for data in folds.drain(..) {
        let number = data.fold.number;
        if args.resume && is_saved(run, folder, &data, session)? && lines.has_all(number, run.epochs) {
            println!("fold {number} is there");
            continue;
        }
        lines.drop_fold(number);
        left.push(data);
    }
    *folds = left;
    Ok(lines)
}

/// Whether the fold's checkpoint is there, undamaged and of this run; reading it changes nothing that a fold begins with.
fn is_saved(run: &Run, folder: &Path, data: &FoldData, session: &mut Session) -> Result<bool> {
    let path = place(folder, data.fold.number);
    if !path.exists() {
        return Ok(false);
    }
    let found = session.load(&path).context("--resume cannot go on from this file: train without --resume")?;
    let wanted = about(run, data);
    let Some((key, value)) = wanted.iter().find(|(key, value)| found.get(*key) != Some(*value)) else {
        return Ok(true);
    };
    let found = found.get(key).map_or("none", String::as_str);
    bail!(
        "{} was trained otherwise ({key}: {found}, not {value}): train without --resume, or name another \
         folder with --out",
        path.display()
    )
}

/// A checkpoint of an earlier run must not pass for the one that is about to be trained.
pub fn forget(folder: &Path, fold: usize) -> Result<()> {
    let path = place(folder, fold);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", path.display()))
        }
        _ => Ok(()),
    }
}
