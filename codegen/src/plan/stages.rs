//! Kernels and launches of a model's stages, and the reducer that joins their gradients.

use std::collections::BTreeSet;

use unio_interface::{Access, Elem as Memory, Role as Outer};

use super::order::{Node, NodeCount, Place};
use super::step::{ELEMENT_THREADS, Planner, READ, REDUCED, SCRATCH, param_total};
use super::{BlockBody, Body, KernelPlan, Param, block, memory_elem};
use crate::equations::{Reader, StageEquations};
use crate::math::{Program, Role, TensorId};
use crate::model::{Network, Stage, WireSource};
use crate::names;

impl Planner<'_> {
    /// Forward kernels in order, adjoints in reverse order.
    pub(super) fn add_stages(&mut self) -> Vec<(String, usize, Option<usize>)> {
        let Some(network) = &self.model.network else {
            return Vec::new();
        };
        let equations = self.equations;
        let mut stages = Vec::new();
        for (stage, eq) in network.stages.iter().zip(&equations.stages) {
            self.add_stage_buffers(network, stage, eq);
            let forward = self.add_forward(network, stage, eq);
            stages.push((stage.name.clone(), forward, None));
        }
        for (index, eq) in equations.stages.iter().enumerate().rev() {
            stages[index].2 = self.add_adjoint(network, &network.stages[index], eq);
        }
        stages
    }

    fn add_stage_buffers(&mut self, network: &Network, stage: &Stage, eq: &StageEquations) {
        let batched = |shape: &[usize]| std::iter::once(network.batch).chain(shape.iter().copied()).collect::<Vec<_>>();
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
        let planned = block::plan(&eq.forward, &keep, network.batch, param_total(network), stage.threads);
        let (kernel, args, needs) = self.add_block_kernel(network, stage, eq, planned, "forward");
        let gives = eq
            .forward
            .tensors
            .iter()
            .filter(|t| t.role == Role::Output)
            .map(|t| names::stage_value(&stage.name, &t.name));
        let mut gives: BTreeSet<String> = gives.collect();
        gives.insert(READ.to_owned());
        self.add_block_node(stage, &eq.forward, kernel, args, needs, gives, "forward");
        kernel
    }

    fn add_adjoint(&mut self, network: &Network, stage: &Stage, eq: &StageEquations) -> Option<usize> {
        let adjoint = eq.adjoint.as_ref()?;
        let planned =
            block::plan(&adjoint.program, &BTreeSet::new(), network.batch, param_total(network), stage.threads);
        let (kernel, args, mut needs) = self.add_block_kernel(network, stage, eq, planned, "adjoint");
        needs.extend(
            eq.forward
                .tensors
                .iter()
                .filter(|t| t.role == Role::Output)
                .map(|t| names::stage_value(&stage.name, &t.name)),
        );
        let mut gives: BTreeSet<String> = eq.wanted.iter().map(|i| names::stage_cotangent(&stage.name, i)).collect();
        gives.extend([SCRATCH.to_owned(), READ.to_owned()]);
        self.add_block_node(stage, &adjoint.program, kernel, args, needs, gives, "adjoint");
        Some(kernel)
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
            evaluates: what == "forward",
            loc: stage.loc.clone(),
        });
    }

    fn add_block_kernel(
        &mut self,
        network: &Network,
        stage: &Stage,
        eq: &StageEquations,
        planned: block::Planned,
        what: &str,
    ) -> (usize, Vec<Place>, BTreeSet<String>) {
        let mut needs = BTreeSet::new();
        let mut args = Vec::new();
        for (param, tensor) in pointer_tensors(&planned.body) {
            let arg = self.tensor_arg(network, stage, eq, &planned.body.program, tensor, what, &mut needs);
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
            Role::ParamGradient { of } => {
                (String::from("gradient_scratch"), param_offset(network, &own(&program.tensors[of].name)))
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
            _ => {
                let shape: Vec<usize> = std::iter::once(network.batch).chain(tensor.shape.iter().copied()).collect();
                let name = format!("{}.{what}.{}", stage.name, tensor.name);
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
        let total = param_total(network);
        if total == 0 {
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
        };
        let kernel = self.add_kernel(KernelPlan {
            symbol: names::kernel(&self.model.set, "reduce_axis0", ""),
            entry: "reduce_axis0".into(),
            doc: "Sums the gradient scratch over the batch, in a fixed order.".into(),
            loc: network.loc.clone(),
            threads: ELEMENT_THREADS,
            params: vec![
                param("scratch", Access::In, network.batch * total, Outer::Input),
                param("sum", Access::Out, total, Outer::Reduced),
            ],
            body: Body::ReduceAxis0 { batch: network.batch },
        });
        self.nodes.push(Node {
            name: "reduce_axis0".into(),
            kernel,
            count: NodeCount::Fixed(total),
            parts: None,
            args: vec![(String::from("gradient_scratch"), 0), (String::from("grads"), 0)],
            needs: BTreeSet::from([SCRATCH.to_owned()]),
            gives: BTreeSet::from([REDUCED.to_owned()]),
            reads: Vec::new(),
            writes: BTreeSet::new(),
            overwrites: None,
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

fn param_offset(network: &Network, path: &str) -> usize {
    network.params.iter().find(|p| p.path == path).map_or(0, |p| p.offset)
}
