//! Unio's code generator: spec text in, CUDA text and launch plans out.
//!
//! [`compile`] is the table of contents. Every stage is a module with types of its own and hands them to the next:
//! `spec` (as written) → `model` (names resolved, checked) → `equations` (programs and adjoints, by `math`) → `plan`
//! (kernels, storage, order) → `lower` (ready to print) → `emit` (text) → `write` (files).

pub mod build;
pub mod common;
pub mod diagnostics;
pub mod emit;
pub mod equations;
mod explain;
pub mod lower;
pub mod math;
pub mod model;
pub mod names;
pub mod plan;
pub mod spec;
pub mod view;
pub mod write;

pub use build::build;
pub use diagnostics::{Code, Diagnostics};
pub use spec::SetFiles;
pub use unio_interface as interface;

/// What compiling a set gives.
#[derive(Debug)]
pub struct Compiled {
    /// Data for the macro and the runtime.
    pub artefacts: interface::Artefacts,
    /// Text of the layout lock after this run.
    pub lock: String,
    /// What builds but could be better.
    pub hints: Vec<String>,
    /// Files below `kernels-generated/`: path and text.
    pub mirror: std::collections::BTreeMap<String, String>,
}

/// Compiles a spec set: `set` with the sets it includes, and the text of its layout lock (empty if there is none).
///
/// # Errors
/// All findings of the first stage that has any, each with code, place and cure.
pub fn compile(set: &SetFiles, included: &[SetFiles], lock: &str) -> Result<Compiled, Diagnostics> {
    std::thread::scope(|scope| {
        let stages = || stages(set, included, lock);
        match std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, stages) {
            Ok(worker) => worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => stages(),
        }
    })
}

/// Bytes of stack for the stages: equations and their adjoints are trees, of bounded depth, walked by recursion.
const STACK: usize = 64 << 20;

fn stages(set: &SetFiles, included: &[SetFiles], lock: &str) -> Result<Compiled, Diagnostics> {
    let spec = spec::read(set, included)?;
    let (model, lock) = model::resolve(&spec, &model::Lock::parse(lock))?;
    let equations = equations::equations(&model)?;
    let plan = plan::plan(&model, &equations)?;
    let kernels = lower::lower(&plan, &model.files);
    let emitted = emit::emit(&model, &equations, &plan, &kernels);
    let hints = model::hints(&model);
    Ok(Compiled { artefacts: emitted.artefacts, lock: lock.render(), hints, mirror: emitted.mirror })
}

/// Explains a set's stage by its name, those of a block, or all of them: equations, adjoint, storage, launch shapes.
///
/// # Errors
/// As [`compile`]; a name that is no stage's and no block's.
pub fn explain(set: &SetFiles, included: &[SetFiles], lock: &str, name: Option<&str>) -> Result<String, Diagnostics> {
    let spec = spec::read(set, included)?;
    let (model, _) = model::resolve(&spec, &model::Lock::parse(lock))?;
    let equations = equations::equations(&model)?;
    let plan = plan::plan(&model, &equations)?;
    let kernels = lower::lower(&plan, &model.files);
    let all = explain::Explained { spec: &spec, model: &model, equations: &equations, plan: &plan, kernels: &kernels };
    all.text(name)
}

/// Compiles a set given as texts, with the shipped sets it includes; for tests and tools.
///
/// # Errors
/// As [`compile`]; `U0106` for an include that is not shipped.
pub fn compile_texts(texts: &[(&str, &str)]) -> Result<Compiled, Diagnostics> {
    let set = SetFiles::from_texts(texts.iter().copied());
    let included = common::included(&set, None)?;
    compile(&set, &included, "")
}
