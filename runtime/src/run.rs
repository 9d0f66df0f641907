//! Run files: a model, a data file, and what is not the model's to say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::data::{Feature, Folds, GROUPS};

/// A run that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The file cannot be opened.
    #[error("{path}: {error}: name a run file, or start in the folder that holds `specs/`")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is no run.
    #[error("{path}: {error}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        error: Box<toml::de::Error>,
    },
    /// The file holds no run, or more than one.
    #[error("{path}: {count} runs in one file: write one `[run.NAME]`")]
    Count {
        /// The file.
        path: PathBuf,
        /// Runs found.
        count: usize,
    },
    /// A value that makes no sense.
    #[error("{path}: `{key}` {problem}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What is wrong, and the cure.
        problem: String,
    },
}

/// A run: `[run.NAME]` of a file.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub doc: String,
    /// The model it trains.
    pub model: String,
    /// The data file.
    pub data: PathBuf,
    /// Named groups of feature columns, in the order of the model's input.
    pub groups: Vec<(String, Vec<Feature>)>,
    /// Epochs of every fold; the last one is scored.
    pub epochs: usize,
    /// Seed of weights and of the order of rows.
    pub seed: u64,
    /// Days ahead over which the volatility label is taken.
    pub horizon: usize,
    /// How time is split.
    pub folds: Folds,
    /// Values of the model's host-set states: one an epoch, of which the last one lasts.
    pub states: BTreeMap<String, Vec<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    run: BTreeMap<String, Keys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    doc: String,
    model: String,
    data: PathBuf,
    features: Option<BTreeMap<String, Vec<String>>>,
    epochs: usize,
    seed: u64,
    #[serde(default = "default_horizon")]
    horizon: usize,
    #[serde(default)]
    folds: FoldKeys,
    #[serde(default)]
    state: BTreeMap<String, Values>,
}

/// A number, or one an epoch.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a number, or a list with one an epoch")]
enum Values {
    One(f64),
    Many(Vec<f64>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FoldKeys {
    spans: usize,
    purge: usize,
    embargo: usize,
}

impl Default for FoldKeys {
    fn default() -> Self {
        let Folds { spans, purge, embargo } = Folds::default();
        Self { spans, purge, embargo }
    }
}

fn default_horizon() -> usize {
    crate::data::HORIZON
}

impl Run {
    /// Reads a run file; its data path is relative to the file.
    ///
    /// # Errors
    /// [`RunError`], with the line where the file is at fault.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        let text = std::fs::read_to_string(path).map_err(|error| RunError::Unreadable { path: path.into(), error })?;
        let file: File =
            toml::from_str(&text).map_err(|e| RunError::Invalid { path: path.into(), error: Box::new(e) })?;
        let count = file.run.len();
        let mut runs = file.run.into_iter();
        let (Some((name, keys)), 1) = (runs.next(), count) else {
            return Err(RunError::Count { path: path.into(), count });
        };
        Self::checked(path, name, keys)
    }

    /// All feature columns, in the order of the model's input.
    pub fn features(&self) -> Vec<Feature> {
        self.groups.iter().flat_map(|(_, features)| features.iter().copied()).collect()
    }

    fn checked(path: &Path, name: String, keys: Keys) -> Result<Self, RunError> {
        let value = |key, problem: String| RunError::Value { path: path.into(), key, problem };
        if keys.epochs == 0 {
            return Err(value("epochs", "is 0: a run trains at least one epoch".into()));
        }
        let groups = match keys.features {
            None => GROUPS.map(|(name, features)| (name.to_owned(), features.to_vec())).to_vec(),
            Some(groups) => groups
                .into_iter()
                .map(|(group, names)| {
                    Ok((group, names.iter().map(|name| feature(name, path)).collect::<Result<_, _>>()?))
                })
                .collect::<Result<_, RunError>>()?,
        };
        let states = keys.state.into_iter().map(|(name, values)| {
            let values = match values {
                Values::One(value) => vec![value],
                Values::Many(values) => values,
            };
            match values.is_empty() {
                true => Err(value("state", format!("gives `{name}` no value: write a number, or one an epoch"))),
                false => Ok((name, values)),
            }
        });
        let states = states.collect::<Result<_, _>>()?;
        let folder = path.parent().unwrap_or(Path::new("."));
        Ok(Self {
            name,
            doc: keys.doc,
            model: keys.model,
            data: folder.join(keys.data),
            groups,
            epochs: keys.epochs,
            seed: keys.seed,
            horizon: keys.horizon,
            folds: Folds { spans: keys.folds.spans, purge: keys.folds.purge, embargo: keys.folds.embargo },
            states,
        })
    }
}

fn feature(name: &str, path: &Path) -> Result<Feature, RunError> {
    name.parse().map_err(|_| RunError::Value {
        path: path.into(),
        key: "features",
        problem: format!("names `{name}`: known are {}", known_features()),
    })
}

fn known_features() -> String {
    Feature::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
