//! Kernels and launches of a model's stages, and the reducer that joins their gradients.

use std::collections::BTreeSet;

use unio_interface::{Access, Elem as Memory, Role as Outer};

use super::order::{Node, NodeCount, Place};
use super::step::{
    DEFERRED, ELEMENT_THREADS, Planner, READ, REDUCED, SCRATCH, param_total, scratch_params, scratch_total,
};
use super::{BlockBody, Body, KernelPlan, Param, StageKernels, block, deferred, memory_elem};
use crate::equations::{Reader, StageEquations};
use crate::math::{Program, Role, TensorId};
use crate::model::{Network, Stage, WireSource};
use crate::names;
use crate::spec::entries::Gradients;

/// Threads that share the sums of a tile of deferred gradients.
const GRADIENT_THREADS: u32 = 512;
/// What the kernel of deferred gradients is called, after its stage.
const GRADIENTS: &str = "gradients";

impl Planner<'_> {
    /// Forward kernels in order, adjoints in reverse order.
    pub(super) fn add_stages(&mut self) -> Vec<StageKernels> {
        let Some(network) = &self.model.network else {
            return Vec::new();
        };
        let equations = self.equations;
        let mut stages = Vec::new();
        for (stage, eq) in network.stages.iter().zip(&equations.stages) {
            self.add_stage_buffers(network, stage, eq);
            let forward = self.add_forward(network, stage, eq);
            stages.push(StageKernels { name: stage.name.clone(), forward, adjoint: None, gradients: None });
        }
        for (index, eq) in equations.stages.iter().enumerate().rev() {
            self.add_adjoint(network, &network.stages[index], eq, &mut stages[index]);
        }
        stages
    }

    fn add_stage_buffers(&mut self, network: &Network, stage: &Stage, eq: &StageEquations) {
        let batched = |shape: &[usize]| [stage.leading(network.batch).as_slice(), shape].concat();
        for tensor in eq.forward.tensors.iter().filter(|t| t.role == Role::Output) {
            self.add_buffer(
                &names::stage_value(&stage.name, &tensor.name),
                batched(&tensor.shape),
                memory_elem(tensor.elem),
            );
        }
        let Some(adjoint) = &eq.adjoint else { return };
        for id in kept(eq) {
            let tensor = &eq.forward.tensors[id];
            self.add_buffer(
                &names::stage_saved(&stage.name, &tensor.name),
                batched(&tensor.shape),
                memory_elem(tensor.elem),
            );
        }
        for tensor in &adjoint.program.tensors {
            if let Role::CotangentOut { of } = tensor.role {
                let input = &adjoint.program.tensors[of].name;
                self.add_buffer(
                    &names::stage_cotangent(&stage.name, input),
                    batched(&tensor.shape),
                    memory_elem(tensor.elem),
                );
            }
        }
    }

    fn add_forward(&mut self, network: &Network, stage: &Stage, eq: &StageEquations) -> usize {
        let keep = kept(eq);
        let planned =
            block::plan(&eq.forward, &keep, stage.samples(network.batch), scratch_total(network), &stage.schedule);
        let (kernel, args, needs) = self.add_block_kernel(network, stage, eq, &eq.forward, planned, "forward");
        let mut gives: BTreeSet<String> = outputs(stage, eq).collect();
        gives.insert(READ.to_owned());
        self.add_block_node(stage, &eq.forward, kernel, args, needs, gives, "forward");
        kernel
    }

    /// The adjoint's kernel; where gradients are deferred, the kernel that sums them too.
    fn add_adjoint(&mut self, network: &Network, stage: &Stage, eq: &StageEquations, kernels: &mut StageKernels) {
        let Some(adjoint) = &eq.adjoint else { return };
        let is_gradient = |t: &crate::math::Tensor| matches!(t.role, Role::ParamGradient { .. });
        let defers = stage.schedule.gradients == Gradients::Deferred && adjoint.program.tensors.iter().any(is_gradient);
        if !defers {
            let program = &adjoint.program;
            let gives = BTreeSet::from([SCRATCH.to_owned()]);
            kernels.adjoint = Some(self.add_cotangents(network, stage, eq, program, &BTreeSet::new(), gives));
            return;
        }
        let split = deferred::split(&adjoint.program, stage.samples(network.batch));
        let kept = |id: &TensorId| names::stage_kept(&stage.name, "adjoint", &adjoint.program.tensors[*id].name);
        let gives = split.keep.iter().map(kept).collect();
        // Where nobody asks for a gradient but parameters that nothing depends on, there is nothing else to derive.
        if !split.cotangents.body.is_empty() {
            kernels.adjoint = Some(self.add_cotangents(network, stage, eq, &split.cotangents, &split.keep, gives));
        }
        kernels.gradients = Some(self.add_gradients(network, stage, eq, split.gradients));
    }

    fn add_cotangents(
        &mut self,
        network: &Network,
        stage: &Stage,
        eq: &StageEquations,
        program: &Program,
        keep: &BTreeSet<TensorId>,
        mut gives: BTreeSet<String>,
    ) -> usize {
        let planned = block::plan(program, keep, stage.samples(network.batch), scratch_total(network), &stage.schedule);
        let (kernel, args, mut needs) = self.add_block_kernel(network, stage, eq, program, planned, "adjoint");
        needs.extend(outputs(stage, eq));
        gives.extend(eq.wanted.iter().map(|i| names::stage_cotangent(&stage.name, i)));
        gives.insert(READ.to_owned());
        self.add_block_node(stage, program, kernel, args, needs, gives, "adjoint");
        kernel
    }

    /// The kernel that writes the gradients of a stage's parameters where they belong: no reducer comes after it.
    fn add_gradients(&mut self, network: &Network, stage: &Stage, eq: &StageEquations, program: Program) -> usize {
        let (body, params) = deferred::plan(program.clone());
        let mut needs: BTreeSet<String> = outputs(stage, eq).collect();
        let tensors = body.params.keys();
        let mut args: Vec<Place> =
            tensors.map(|id| self.tensor_arg(network, stage, eq, &program, *id, GRADIENTS, &mut needs)).collect();
        args.extend(self.scalar_args(&program, None));
        let kernel = self.add_kernel(KernelPlan {
            symbol: names::kernel(&self.model.set, &stage.name, GRADIENTS),
            entry: stage.name.clone(),
            doc: format!("{} Gradients of its parameters, each one sum over the batch.", stage.doc),
            loc: stage.block_loc.clone(),
            threads: GRADIENT_THREADS,
            params,
            body: Body::Gradients(body),
        });
        let gives = BTreeSet::from([REDUCED, DEFERRED, READ].map(str::to_owned));
        self.add_block_node(stage, &program, kernel, args, needs, gives, GRADIENTS);
        kernel
    }

    #[allow(clippy::too_many_arguments)]
    fn add_block_node(
        &mut self,
        stage: &Stage,
        program: &Program,
        kernel: usize,
        args: Vec<Place>,
        needs: BTreeSet<String>,
        gives: BTreeSet<String>,
        what: &str,
    ) {
        self.nodes.push(Node {
            name: format!("{}.{what}", stage.name),
            kernel,
            count: NodeCount::None,
            parts: None,
            args,
            needs,
            gives,
            reads: Self::scalar_reads(program, None),
            writes: BTreeSet::new(),
            overwrites: None,
            instead_of: None,
            evaluates: what == "forward",
            loc: stage.loc.clone(),
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn add_block_kernel(
        &mut self,
        network: &Network,
        stage: &Stage,
        eq: &StageEquations,
        program: &Program,
        planned: block::Planned,
        what: &str,
    ) -> (usize, Vec<Place>, BTreeSet<String>) {
        let mut needs = BTreeSet::new();
        let mut args = Vec::new();
        for (param, tensor) in pointer_tensors(&planned.body) {
            let arg = self.tensor_arg(network, stage, eq, program, tensor, what, &mut needs);
            args.push((param, arg));
        }
        args.sort_by_key(|(param, _)| *param);
        let mut args: Vec<Place> = args.into_iter().map(|(_, arg)| arg).collect();
        args.extend(self.scalar_args(&planned.body.program, None));
        let kernel = KernelPlan {
            symbol: names::kernel(&self.model.set, &stage.name, what),
            entry: stage.name.clone(),
            doc: stage.doc.clone(),
            loc: stage.block_loc.clone(),
            threads: planned.threads,
            params: planned.params,
            body: Body::Block(planned.body),
        };
        (self.add_kernel(kernel), args, needs)
    }

    #[allow(clippy::too_many_arguments)]
    fn tensor_arg(
        &mut self,
        network: &Network,
        stage: &Stage,
        eq: &StageEquations,
        program: &Program,
        id: TensorId,
        what: &str,
        needs: &mut BTreeSet<String>,
    ) -> Place {
        let tensor = &program.tensors[id];
        let own = |name: &str| names::stage_value(&stage.name, name);
        match tensor.role {
            Role::Input | Role::Table => self.wire_arg(network, stage, &tensor.name, needs),
            Role::Param => (String::from("params"), param_offset(network, &own(&tensor.name))),
            Role::ParamGradient { of } if what == GRADIENTS => {
                (String::from("grads"), param_offset(network, &own(&program.tensors[of].name)))
            }
            Role::ParamGradient { of } => {
                (String::from("gradient_scratch"), scratch_offset(network, &own(&program.tensors[of].name)))
            }
            Role::Output => (String::from(&own(&tensor.name)), 0),
            Role::CotangentOut { of } => {
                (String::from(&names::stage_cotangent(&stage.name, &program.tensors[of].name)), 0)
            }
            Role::CotangentIn { of, reader } => {
                self.cotangent_arg(network, eq, &program.tensors[of].name, reader, needs)
            }
            _ if eq.forward.tensors.get(id).is_some_and(|t| t.role == Role::Output) => {
                (String::from(&own(&tensor.name)), 0)
            }
            _ if eq.forward.tensors.get(id).is_some() && kept(eq).contains(&id) => {
                (String::from(&names::stage_saved(&stage.name, &tensor.name)), 0)
            }
            _ if what == GRADIENTS => {
                let name = names::stage_kept(&stage.name, "adjoint", &tensor.name);
                needs.insert(name.clone());
                (name, 0)
            }
            _ => {
                let shape = [stage.leading(network.batch).as_slice(), &tensor.shape].concat();
                let name = names::stage_kept(&stage.name, what, &tensor.name);
                self.add_buffer(&name, shape, memory_elem(tensor.elem));
                (name, 0)
            }
        }
    }

    fn wire_arg(&self, network: &Network, stage: &Stage, input: &str, needs: &mut BTreeSet<String>) -> Place {
        let name = match stage.wires.iter().find(|w| w.input == input).map(|w| &w.from) {
            Some(WireSource::Stage(index, output)) => names::stage_value(&network.stages[*index].name, output),
            Some(WireSource::Update(update, output)) => names::stage_value(update, output),
            Some(WireSource::External(name)) => name.clone(),
            None => String::new(),
        };
        needs.insert(name.clone());
        (name, 0)
    }

    fn cotangent_arg(
        &self,
        network: &Network,
        eq: &StageEquations,
        output: &str,
        reader: usize,
        needs: &mut BTreeSet<String>,
    ) -> Place {
        let name = match eq.readers.get(output).and_then(|r| r.get(reader)) {
            Some(Reader::Stage(index, input)) => names::stage_cotangent(&network.stages[*index].name, input),
            _ => "objective_seed".to_owned(),
        };
        needs.insert(name.clone());
        (name, 0)
    }

    pub(super) fn add_reducer(&mut self) {
        let Some(network) = &self.model.network else { return };
        let (total, columns) = (param_total(network), scratch_total(network));
        if columns == 0 {
            return;
        }
        let param = |name: &str, access, len, role| Param {
            name: name.into(),
            elem: Memory::Real,
            access,
            len: Some(len),
            stride: None,
            role,
            row_len: None,
            row: 1,
        };
        let kernel = self.add_kernel(KernelPlan {
            symbol: names::kernel(&self.model.set, "reduce_axis0", ""),
            entry: "reduce_axis0".into(),
            doc: "Sums the gradient scratch over the batch, in a fixed order.".into(),
            loc: network.loc.clone(),
            threads: ELEMENT_THREADS,
            params: vec![
                param("scratch", Access::In, network.batch * columns, Outer::Input),
                param("sum", Access::Out, total, Outer::Reduced),
            ],
            body: Body::ReduceAxis0 { batch: network.batch, shifts: shifts(network) },
        });
        self.nodes.push(Node {
            name: "reduce_axis0".into(),
            kernel,
            count: NodeCount::Fixed(columns),
            parts: None,
            args: vec![(String::from("gradient_scratch"), 0), (String::from("grads"), 0)],
            // It is last among those that write gradients, in a graph as in the launchers' types: it has the whole buffer.
            needs: BTreeSet::from([SCRATCH, DEFERRED].map(str::to_owned)),
            gives: BTreeSet::from([REDUCED.to_owned()]),
            reads: Vec::new(),
            writes: BTreeSet::new(),
            overwrites: None,
            instead_of: None,
            evaluates: false,
            loc: network.loc.clone(),
        });
    }
}

/// Tensors that the forward kernel stores for the adjoint, outputs aside.
fn kept(eq: &StageEquations) -> BTreeSet<TensorId> {
    let saved = eq.adjoint.iter().flat_map(|a| a.saved.iter().copied());
    saved.filter(|id| eq.forward.tensors[*id].role != Role::Output).collect()
}

/// Parameter and tensor of each pointer of a block kernel.
fn pointer_tensors(body: &BlockBody) -> Vec<(usize, TensorId)> {
    body.homes.iter().filter_map(|(id, home)| Some((home.global?, *id))).collect()
}

/// Values that the forward kernel gives.
fn outputs<'a>(stage: &'a Stage, eq: &'a StageEquations) -> impl Iterator<Item = String> + 'a {
    let outputs = eq.forward.tensors.iter().filter(|t| t.role == Role::Output);
    outputs.map(|t| names::stage_value(&stage.name, &t.name))
}

/// First column of a parameter in the scratch.
fn scratch_offset(network: &Network, path: &str) -> usize {
    scratch_params(network).take_while(|p| p.path != path).map(|p| p.len()).sum()
}

/// Where the columns of the scratch lie among the gradients: one range unless a deferred stage stands between.
fn shifts(network: &Network) -> Vec<(usize, usize)> {
    let mut shifts: Vec<(usize, usize)> = Vec::new();
    let mut column = 0;
    for param in scratch_params(network) {
        let shift = param.offset - column;
        if shifts.last().map_or(0, |last| last.1) != shift {
            shifts.push((column, shift));
        }
        column += param.len();
    }
    shifts
}

fn param_offset(network: &Network, path: &str) -> usize {
    network.params.iter().find(|p| p.path == path).map_or(0, |p| p.offset)
}
