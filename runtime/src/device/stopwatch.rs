//! How long a device takes for what is put on its stream.

use std::time::Instant;

use super::cuda_events::Events;
use super::error::Result;
use super::{Backend, Device};

/// Measures a stretch of a device's stream: on CUDA by events of the card, so that the host's own time does not count; on
/// the emulator, which has returned when its work is done, by the host's clock.
pub struct Stopwatch {
    inner: Inner,
}

enum Inner {
    Cuda(Events),
    Host(Instant),
}

impl Stopwatch {
    /// A stopwatch for a device's stream.
    ///
    /// Errors: the driver refuses.
    pub fn new(device: &Device) -> Result<Self> {
        let inner = match &device.backend {
            Backend::Cuda(device) => Inner::Cuda(Events::new(device)?),
            Backend::Emulator(_) => Inner::Host(Instant::now()),
        };
        Ok(Self { inner })
    }

    /// Starts after all that was launched so far. Waits for nothing.
    ///
    /// Errors: the driver refuses.
    pub fn start(&mut self) -> Result<()> {
        match &mut self.inner {
            Inner::Cuda(events) => events.start(),
            Inner::Host(start) => {
                *start = Instant::now();
                Ok(())
            }
        }
    }

    /// Microseconds since the start, once all that was launched since is done.
    ///
    /// Errors: whatever went wrong in it.
    pub fn stop(&mut self) -> Result<f64> {
        match &mut self.inner {
            Inner::Cuda(events) => events.stop(),
            Inner::Host(start) => Ok(start.elapsed().as_secs_f64() * 1e6),
        }
    }
}
