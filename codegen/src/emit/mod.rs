//! Stage *emit*: text only. Nothing is decided here, and nothing can fail but a template, which tests print.

mod cuda;
mod interface;
mod wiring;

use std::collections::BTreeMap;

use unio_interface::Artefacts;

use crate::equations::Equations;
use crate::lower::Kernel;
use crate::model::Model;
use crate::plan::Plan;

/// Everything a set gives, as text and as data.
#[derive(Debug)]
pub struct Emitted {
    /// What the macro and the runtime read.
    pub artefacts: Artefacts,
    /// Files below `kernels-generated/`: path and text.
    pub mirror: BTreeMap<String, String>,
}

/// Prints a set.
pub fn emit(model: &Model, equations: &Equations, plan: &Plan, kernels: &[Kernel]) -> Emitted {
    let sources = cuda::sources(&model.set, kernels);
    let artefacts = interface::artefacts(model, equations, plan, kernels, sources);
    let mut mirror: BTreeMap<String, String> =
        artefacts.sources.iter().map(|s| (s.path.clone(), s.text.clone())).collect();
    mirror.insert(format!("{}/WIRING.md", model.set), wiring::page(model, &artefacts));
    Emitted { artefacts, mirror }
}

/// The editor's schema of spec files.
pub fn schema() -> String {
    let schema = schemars::schema_for!(crate::spec::entries::SpecFile);
    serde_json::to_string_pretty(&schema).map(|text| text + "\n").unwrap_or_default()
}
