//! Graphs of kernel launches on a card, built node by node: nothing is captured, so nothing can go wrong half way through
//! a capture, and the stream stays usable whatever fails here.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::cuda::{CudaDevice, Function, driver};
use super::error::Result;
use super::kernel::{LaunchConfig, Words};

/// A graph that is being built.
pub(super) struct Template {
    device: Arc<CudaDevice>,
    handle: sys::CUgraph,
    /// In the order in which they were added.
    nodes: Vec<sys::CUgraphNode>,
}

impl Template {
    pub(super) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        device.bind()?;
        let mut handle = ptr::null_mut();
        // SAFETY: a handle to write to; there are no flags.
        unsafe { sys::cuGraphCreate(&mut handle, 0) }.result().map_err(driver("making a graph"))?;
        Ok(Self { device: Arc::clone(device), handle, nodes: Vec::new() })
    }

    /// Adds a launch that waits for earlier ones, named by the order of their adding.
    ///
    /// # Safety
    /// As for [`Function::launch`], whenever the graph is launched.
    pub(super) unsafe fn add(
        &mut self,
        function: &Function,
        config: &LaunchConfig,
        words: &mut Words,
        after: &[usize],
    ) -> Result<()> {
        self.device.bind()?;
        function.allow_shared(config.shared_bytes)?;
        let after: Vec<sys::CUgraphNode> = after.iter().map(|earlier| self.nodes[*earlier]).collect();
        let first = if after.is_empty() { ptr::null() } else { after.as_ptr() };
        let params = params(function, config, words);
        let mut node = ptr::null_mut();
        // SAFETY: a live graph and its own nodes; the driver copies the arguments, behind pointers that live as long as
        // `words`, before it returns.
        let added = unsafe { sys::cuGraphAddKernelNode_v2(&mut node, self.handle, first, after.len(), &params) };
        added.result().map_err(driver("adding a launch to a graph"))?;
        self.nodes.push(node);
        Ok(())
    }

    /// What can be launched. Runs nothing.
    pub(super) fn instantiate(self) -> Result<Executable> {
        self.device.bind()?;
        // SAFETY: a live graph.
        let handle = unsafe { result::graph::instantiate(self.handle, sys::CUgraphInstantiate_flags(0)) };
        let handle = handle.map_err(driver("instantiating a graph"))?;
        let executable = Executable { device: Arc::clone(&self.device), handle };
        // SAFETY: both live. This moves the graph to the card ahead of its first launch.
        let uploaded = unsafe { result::graph::upload(handle, self.device.stream()) };
        uploaded.map_err(driver("uploading a graph"))?;
        Ok(executable)
    }
}

fn params(function: &Function, config: &LaunchConfig, words: &mut Words) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: function.handle(),
        gridDimX: config.grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: config.block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: config.shared_bytes,
        kernelParams: words.pointers().as_mut_ptr(),
        extra: ptr::null_mut(),
        // Both are looked at only where `func` is null.
        kern: ptr::null_mut(),
        ctx: ptr::null_mut(),
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: made by us; what was instantiated from it stands on its own.
            let _ = unsafe { result::graph::destroy(self.handle) };
        }
    }
}

/// A graph that can be launched. What its launches point to is kept by its owner.
pub(super) struct Executable {
    device: Arc<CudaDevice>,
    handle: sys::CUgraphExec,
}

// SAFETY: driver handles may be used from any thread that has bound the context.
unsafe impl Send for Executable {}
// SAFETY: as above; every use of the handle takes `&mut`, because the driver does not lock graphs.
unsafe impl Sync for Executable {}

impl Executable {
    /// Puts all launches on the stream.
    pub(super) fn launch(&mut self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: both live; whoever added the launches promised that they may run.
        let launched = unsafe { result::graph::launch(self.handle, self.device.stream()) };
        launched.map_err(driver("launching a graph"))
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // What still runs must end first: its memory goes next.
        let _ = self.device.synchronize();
        // SAFETY: instantiated by us, used no more.
        let _ = unsafe { result::graph::exec_destroy(self.handle) };
    }
}
