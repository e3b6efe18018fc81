//! A pool in front of another one, with the behaviour of a configured device: real timing with
//! channels, costs, a write cache, stalls and slowdowns, and random failures. For tests and
//! demonstrations: the effect of a scheduler on a device can be shown on a machine without one.
//!
//! The pool below transfers the bytes at once; only the answers wait. All volumes of a pool share
//! one device, across the threads that serve them, and each has a timer that wakes it when the next
//! answer is due.

pub mod device;
pub mod setup;
mod volume;

use crate::timer::Timer;
use crate::{Pool, Store, StoreError, forwarding};
use device::Device;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use evenkeel_os::clock;
use setup::Setup;
use std::sync::{Arc, Mutex};

/// See the module's text.
pub struct FaultyPool {
    below: Arc<dyn Pool>,
    setup: Setup,
    device: Arc<Mutex<Device>>,
}

impl FaultyPool {
    /// Creates a pool with the volumes of `below` behind a device with this setup, whose time
    /// begins now.
    #[must_use]
    pub fn new(below: Arc<dyn Pool>, setup: &Setup) -> Self {
        let device = Arc::new(Mutex::new(Device::new(setup, clock::monotonic())));
        Self { below, setup: *setup, device }
    }
}

impl forwarding::ForwardingPool for FaultyPool {
    fn below(&self) -> &dyn Pool {
        self.below.as_ref()
    }

    fn describe(&self) -> String {
        format!("{}, behind a device of {}", self.below.describe(), self.setup)
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let timer = Timer::new().map_err(|e| StoreError::io("make a timer", e))?;
        let below = self.below.open(id, size)?;
        let device = Arc::clone(&self.device);
        Ok(Box::new(volume::FaultyStore::new(id, below, device, timer, &self.setup)))
    }
}

#[cfg(test)]
mod tests;
