//! A pair of events on a card's stream, for measuring.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::cuda::{CudaDevice, driver};
use super::error::Result;

/// Two events of one stream.
pub(super) struct Events {
    device: Arc<CudaDevice>,
    start: sys::CUevent,
    stop: sys::CUevent,
}

// SAFETY: driver handles may be used from any thread that has bound the context.
unsafe impl Send for Events {}
// SAFETY: as above; every use of the handles takes `&mut`.
unsafe impl Sync for Events {}

impl Events {
    pub(super) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        device.bind()?;
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(driver("making an event"));
        let start = event()?;
        let stop = event().inspect_err(|_| {
            // SAFETY: just made by us, and recorded nowhere.
            let _ = unsafe { result::event::destroy(start) };
        })?;
        Ok(Self { device: Arc::clone(device), start, stop })
    }

    pub(super) fn start(&mut self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: a live event and our own live stream.
        unsafe { result::event::record(self.start, self.device.stream()) }.map_err(driver("recording an event"))
    }

    /// Microseconds from the start to now, once all before is done.
    pub(super) fn stop(&mut self) -> Result<f64> {
        self.device.bind()?;
        // SAFETY: as above.
        unsafe { result::event::record(self.stop, self.device.stream()) }.map_err(driver("recording an event"))?;
        self.device.synchronize()?;
        // SAFETY: both live and of one stream, which has passed them.
        let milliseconds = unsafe { result::event::elapsed(self.start, self.stop) };
        Ok(f64::from(milliseconds.map_err(driver("reading a stopwatch"))?) * 1e3)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            for event in [self.start, self.stop] {
                // SAFETY: made by us, used no more; the driver keeps what is still pending.
                let _ = unsafe { result::event::destroy(event) };
            }
        }
    }
}
