//! A pool over another one that behaves like a device of one's choice: real timing with channels,
//! costs, a write cache, stalls and slowdowns, and operations that fail by chance. For tests and
//! demonstrations: what a scheduler does on a device can be shown on a machine without one.
//!
//! The bytes are moved by the pool below, at once; what takes time is the answer. All volumes of a
//! pool share one device, across the threads that serve them, and each has a timer of its own that
//! wakes it when the next answer is due.

pub mod device;
pub mod setup;
mod volume;

use crate::clock;
use crate::layout::PoolSeen;
use crate::snapshots::Snapshots;
use crate::{Looked, Pool, PoolHealth, Space, Store, StoreError};
use device::Device;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use setup::Setup;
use std::sync::{Arc, Mutex};

/// See the module's text.
pub struct FaultyPool {
    below: Arc<dyn Pool>,
    setup: Setup,
    device: Arc<Mutex<Device>>,
}

impl FaultyPool {
    /// The volumes of `below` behind a device like `setup`, whose time begins now.
    #[must_use]
    pub fn new(below: Arc<dyn Pool>, setup: &Setup) -> Self {
        let device = Arc::new(Mutex::new(Device::new(setup, clock::now())));
        Self { below, setup: *setup, device }
    }
}

impl Pool for FaultyPool {
    fn is_taken_over(&self) -> bool {
        self.below.is_taken_over()
    }

    fn when_taken_over(&self, tell: Box<dyn FnOnce() + Send>) {
        self.below.when_taken_over(tell);
    }

    fn instance(&self) -> Option<String> {
        self.below.instance()
    }

    fn health(&self) -> PoolHealth {
        self.below.health()
    }

    fn look(&self) -> Result<(), StoreError> {
        self.below.look()
    }

    fn check_owner(&self) -> Result<(), StoreError> {
        self.below.check_owner()
    }

    fn is_fenced(&self, instance: &str) -> Result<bool, StoreError> {
        self.below.is_fenced(instance)
    }

    fn fence(&self, node: &str) -> Result<(), StoreError> {
        self.below.fence(node)
    }

    fn describe(&self) -> String {
        format!("{}, behind a device of {}", self.below.describe(), self.setup)
    }

    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        self.below.create(id, size)
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let timer = clock::Timer::new().map_err(|e| StoreError::io("make a timer", e))?;
        let below = self.below.open(id, size)?;
        let device = Arc::clone(&self.device);
        Ok(Box::new(volume::FaultyStore::new(id, below, device, timer, &self.setup)))
    }

    fn resize(&self, id: VolumeId, from: ByteCount, to: ByteCount) -> Result<(), StoreError> {
        self.below.resize(id, from, to)
    }

    fn delete(&self, id: VolumeId) -> Result<(), StoreError> {
        self.below.delete(id)
    }

    fn list(&self) -> Result<Vec<(VolumeId, ByteCount)>, StoreError> {
        self.below.list()
    }

    fn filled(&self, id: VolumeId) -> Option<ByteCount> {
        self.below.filled(id)
    }

    fn look_at(&self, place: u64) -> Result<Looked, StoreError> {
        self.below.look_at(place)
    }

    fn has(&self, id: VolumeId) -> Result<bool, StoreError> {
        self.below.has(id)
    }

    fn space(&self) -> Result<Option<Space>, StoreError> {
        self.below.space()
    }

    fn look_around(&self) -> Result<Option<PoolSeen>, StoreError> {
        self.below.look_around()
    }

    fn recovery(&self) -> Option<String> {
        self.below.recovery()
    }

    fn wait_closed(&self, id: VolumeId) -> Result<(), StoreError> {
        self.below.wait_closed(id)
    }

    fn note_failed_flush(&self, id: VolumeId) -> Result<(), StoreError> {
        self.below.note_failed_flush(id)
    }

    fn has_failed_flush(&self, id: VolumeId) -> Result<bool, StoreError> {
        self.below.has_failed_flush(id)
    }

    fn forget_failed_flush(&self, id: VolumeId) -> Result<(), StoreError> {
        self.below.forget_failed_flush(id)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.below.snapshots()
    }
}

#[cfg(test)]
mod tests;
