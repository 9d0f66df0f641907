//! Element-wise kernels: optimizers, controllers, batch choice; and the equations of smoothing laws.

use std::collections::BTreeMap;

use unio_interface::{Grid, Shared};

use super::expr::{Code, Namer, Places, Printer, flat, register_type};
use super::{KernelBody, Lowered, Op};
use crate::math::{Expr, Program, Role, TensorId};
use crate::plan::{KernelPlan, UpdateBody};

/// Blocks of an element-wise launch; the kernel strides beyond. Counters of clamps have room for no more.
pub(super) const MOST_BLOCKS: u32 = 256;

pub(super) fn lower(kernel: &KernelPlan, body: &UpdateBody, names: &[String], namer: Namer) -> Lowered {
    let pointers = body
        .params
        .iter()
        .map(|(id, param)| {
            (
                *id,
                Pointer {
                    name: names[*param].clone(),
                    first: 0,
                },
            )
        })
        .collect();
    let scalars = body.scalars.iter().map(|s| names[*s].clone()).collect();
    let element = body.element.map(|var| (var, body.program.vars[var].name.clone()));
    let equations = Equations {
        program: &body.program,
        pointers,
        scalars,
        values: BTreeMap::new(),
    };
    let (ops, element) = equations.lower(element.map(|(var, _)| var), namer);
    let Some(element) = element else {
        return Lowered {
            grid: Grid::Fixed(1),
            shared: Shared::default(),
            arrays: Vec::new(),
            counted: false,
numbers: Vec::new(),
            body: KernelBody::Ops(ops),
        };
    };
    let threads = kernel.threads;
    let (count, grid) = match body.len {
        Some(len) => (
            len.to_string(),
            Grid::Fixed((len as u32).div_ceil(threads).min(MOST_BLOCKS)),
        ),
        None => (
            "n".to_owned(),
            Grid::Elements {
                per_block: threads,
                most: MOST_BLOCKS,
            },
        ),
    };
    let head = format!(
        "int {element} = blockIdx.x * {threads} + threadIdx.x; {element} < {count}; {element} += gridDim.x * {threads}"
    );
    let ops = vec![Op::For { head, body: ops }];
    Lowered {
        grid,
        shared: Shared::default(),
        arrays: Vec::new(),
        counted: body.len.is_none(),
numbers: Vec::new(),
        body: KernelBody::Ops(ops),
    }
}

/// A pointer, and the element at which a tensor begins.
#[derive(Clone, Debug)]
pub(super) struct Pointer {
    pub(super) name: String,
    pub(super) first: usize,
}

impl Pointer {
    fn element(&self, index: &str) -> String {
        match (self.first, index) {
            (0, index) => format!("{}[{index}]", self.name),
            (first, "0") => format!("{}[{first}]", self.name),
            (first, index) => format!("{}[{first} + {index}]", self.name),
        }
    }
}

/// Equations with an old value and a `next` for each state.
pub(super) struct Equations<'a> {
    /// The program.
    pub(super) program: &'a Program,
    /// Pointer of each tensor in memory; a state and its next share one.
    pub(super) pointers: BTreeMap<TensorId, Pointer>,
    /// Pointer of each slot and state that is read.
    pub(super) scalars: Vec<String>,
    /// Tensors that are values at hand.
    pub(super) values: BTreeMap<TensorId, String>,
}

impl Places for Equations<'_> {
    fn load(&self, tensor: usize, _: &[Expr], index: &[String]) -> Code {
        if let Some(value) = self.values.get(&tensor) {
            return Code::atom(value.clone());
        }
        let shape = &self.program.tensors[tensor].shape;
        match self.pointers.get(&tensor) {
            Some(pointer) => Code::atom(pointer.element(&flat(shape, index))),
            None => Code::atom(format!("/* homeless {tensor} */")),
        }
    }

    fn rows(&self, tensor: usize) -> String {
        self.pointers
            .get(&tensor)
            .map(|p| super::rows_name(&p.name))
            .unwrap_or_default()
    }

    fn scalar(&self, scalar: usize) -> Code {
        match self.program.scalars[scalar].int {
            true => Code::atom(format!("{}[0]", self.scalars[scalar])),
            false => Code::atom(format!("real({}[0])", self.scalars[scalar])),
        }
    }
}

impl Equations<'_> {
    /// Loads old values, computes, and stores at the end, so that every equation reads the old state.
    pub(super) fn lower(mut self, element: Option<usize>, mut namer: Namer) -> (Vec<Op>, Option<String>) {
        let mut vars = BTreeMap::new();
        let name = element.map(|var| namer.unique(&crate::names::c_ident(&self.program.vars[var].name)));
        if let (Some(var), Some(name)) = (element, &name) {
            vars.insert(var, name.clone());
        }
        let mut ops = self.load_states(name.as_deref(), &mut namer);
        let mut stores = Vec::new();
        for (assign, _) in self.program.assigns() {
            let tensor = &self.program.tensors[assign.tensor];
            let mut printer = Printer {
                program: self.program,
                places: &self,
                vars: vars.clone(),
                namer,
            };
            let value = printer.expr(&assign.value, &mut ops).text();
            namer = printer.namer;
            let base = if let Role::Next { .. } = tensor.role {
                format!("next_{}", tensor.name)
            } else {
                format!("{}_", tensor.name)
            };
            let register = namer.unique(&base);
            ops.push(Op::Let {
                ty: register_type(tensor.elem),
                name: register.clone(),
                value,
            });
            if let Some(pointer) = self.pointers.get(&assign.tensor) {
                let index: Vec<String> = assign.index.iter().filter_map(|v| vars.get(v).cloned()).collect();
                stores.push(Op::Set {
                    place: pointer.element(&flat(&tensor.shape, &index)),
                    value: register.clone(),
                });
            }
            self.values.insert(assign.tensor, register);
        }
        ops.extend(stores);
        (ops, name)
    }

    fn load_states(&mut self, element: Option<&str>, namer: &mut Namer) -> Vec<Op> {
        let mut ops = Vec::new();
        for (id, tensor) in self.program.tensors.iter().enumerate() {
            let is_element = matches!(tensor.role, Role::State | Role::Input) && tensor.shape.len() <= 1;
            let Some(pointer) = self.pointers.get(&id).filter(|_| is_element) else {
                continue;
            };
            let index = if tensor.shape.is_empty() {
                "0"
            } else {
                element.unwrap_or("0")
            };
            let register = namer.unique(&format!("{}_", tensor.name));
            ops.push(Op::Let {
                ty: register_type(tensor.elem),
                name: register.clone(),
                value: pointer.element(index),
            });
            self.values.insert(id, register);
        }
        ops
    }
}
