//! Launches that are made together, again and again, with all that they point to.

use std::cmp::Reverse;
use std::sync::Arc;

use unio_interface::edges::{heights, levels};

use super::cuda::CudaDevice;
use super::cuda_graph::{Executable, Template};
use super::error::{DeviceError, Result};
use super::kernel::{Arg, Kernel, LaunchConfig};
use super::memory::Memory;
use super::{Backend, Device, ThreadOrder};

/// An argument that stays as it is as long as the graph lives. There is none for a scalar that varies from step to step:
/// such a number lies in memory.
pub(crate) enum Held {
    /// A pointer into a memory, so many bytes from its start; the graph keeps the memory.
    Buffer(Arc<Memory>, usize),
    /// A number that follows from the plan and the lengths of memories.
    Number(i32),
}

impl Held {
    fn arg(&self) -> Arg<'_> {
        match self {
            Self::Buffer(memory, offset) => Arg::Buffer(memory, *offset),
            Self::Number(n) => Arg::I32(*n),
        }
    }
}

/// A launch of a graph; it keeps module and memories alive.
struct Node {
    kernel: Kernel,
    config: LaunchConfig,
    args: Vec<Held>,
    after: Vec<usize>,
}

/// A graph that is being built. Nothing runs meanwhile.
pub(crate) struct Builder {
    device: Device,
    nodes: Vec<Node>,
}

impl Builder {
    pub(crate) fn new(device: &Device) -> Self {
        Self { device: device.clone(), nodes: Vec::new() }
    }

    /// Adds a launch that waits for earlier ones, named by the order of their adding, and otherwise runs beside them.
    ///
    /// Errors: as for [`Kernel::launch`]; a grid of 0, which is no node.
    ///
    /// # Safety
    /// As for [`Kernel::launch`], whenever the graph is launched; and of two launches that touch the same bytes, one of
    /// them to write, one waits for the other, perhaps by others.
    pub(crate) unsafe fn add(
        &mut self,
        kernel: &Kernel,
        config: &LaunchConfig,
        args: Vec<Held>,
        after: &[usize],
    ) -> Result<()> {
        let node = Node { kernel: kernel.clone(), config: *config, args, after: after.to_vec() };
        kernel.check_node(config, &node.args())?;
        self.nodes.push(node);
        Ok(())
    }

    /// The graph, ready to be launched. Runs nothing.
    pub(crate) fn finish(self) -> Result<Graph, Fault> {
        let executable = match &self.device.backend {
            Backend::Cuda(device) if !self.nodes.is_empty() => Some(executable(device, &self.nodes)?),
            Backend::Cuda(_) | Backend::Emulator(_) => None,
        };
        let order = order(&self.nodes, self.device.launch_order());
        Ok(Graph { executable, nodes: self.nodes, order })
    }
}

/// Launches with their order. On CUDA one call launches them all, side by side where no edge orders them; the emulator
/// makes them one by one.
pub(crate) struct Graph {
    /// Before the nodes, so that it goes before what it points to.
    executable: Option<Executable>,
    nodes: Vec<Node>,
    /// In which the emulator runs them.
    order: Vec<usize>,
}

/// Why a graph did not run, and the launch where that is known.
pub(crate) struct Fault {
    pub(crate) node: Option<usize>,
    pub(crate) source: DeviceError,
}

impl Graph {
    /// Makes all launches once. Waits for nothing; on CUDA a fault inside may show only at the next read.
    pub(crate) fn launch(&mut self) -> Result<(), Fault> {
        match &mut self.executable {
            Some(executable) => executable.launch().map_err(|source| Fault { node: None, source }),
            None => self
                .order
                .iter()
                .try_for_each(|at| self.nodes[*at].launch().map_err(|source| Fault { node: Some(*at), source })),
        }
    }

    /// For each launch, the ones that it waits for.
    pub(crate) fn after(&self) -> impl Iterator<Item = &[usize]> {
        self.nodes.iter().map(|node| node.after.as_slice())
    }
}

impl Node {
    fn args(&self) -> Vec<Arg<'_>> {
        self.args.iter().map(Held::arg).collect()
    }

    fn launch(&self) -> Result<()> {
        // SAFETY: whoever added the launch promised that it may be made at any time.
        unsafe { self.kernel.launch(&self.config, &self.args()) }
    }
}

/// What the card launches.
///
/// Of launches that may begin together the one that was added first gets the card first, as was measured (BENCHMARKS.md). So
/// they are added level by level, and in a level the one first that the longest way leads on from: what is off that way takes
/// what room is left.
fn executable(device: &Arc<CudaDevice>, nodes: &[Node]) -> Result<Executable, Fault> {
    let unnamed = |source| Fault { node: None, source };
    let after: Vec<Vec<usize>> = nodes.iter().map(|node| node.after.clone()).collect();
    let (levels, heights) = (levels(&after), heights(&after));
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|n| (levels[*n], Reverse(heights[*n])));
    let mut places = vec![0; nodes.len()];
    let mut template = Template::new(device).map_err(unnamed)?;
    for (place, &n) in order.iter().enumerate() {
        places[n] = place;
        let node = &nodes[n];
        let after: Vec<usize> = node.after.iter().map(|before| places[*before]).collect();
        // SAFETY: whoever added the launch promised that it may be made at any time.
        let added = unsafe { node.kernel.add_to(&mut template, &node.config, &node.args(), &after) };
        added.map_err(|source| Fault { node: Some(n), source })?;
    }
    template.instantiate().map_err(unnamed)
}

/// The order in which launches were added; or that in which, of all that may run, the last added goes first.
fn order(nodes: &[Node], order: ThreadOrder) -> Vec<usize> {
    if order == ThreadOrder::Forward {
        return (0..nodes.len()).collect();
    }
    let (mut sorted, mut done) = (Vec::new(), vec![false; nodes.len()]);
    let may_run = |at: &usize, done: &[bool]| !done[*at] && nodes[*at].after.iter().all(|n| done[*n]);
    while let Some(next) = (0..nodes.len()).rev().find(|at| may_run(at, &done)) {
        done[next] = true;
        sorted.push(next);
    }
    sorted
}
