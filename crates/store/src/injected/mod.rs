//! A pool in front of another one whose volumes have faults on request: for servers for tests.
//!
//! [`Injector`] has the faults in force. Requests of a volume that a fault delays or pauses go to
//! the store below at once, and their answers wait; those that fail do not reach it.

mod volume;

use crate::timer::Timer;
use crate::{Pool, Store, StoreError, forwarding};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::io_fault::IoFault;
use evenkeel_core::units::ByteCount;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A fault in force, and how many requests it has changed.
#[derive(Debug)]
struct Active {
    fault: IoFault,
    hits: AtomicU64,
}

#[derive(Debug, Default)]
struct Shared {
    /// Number of changes of the faults.
    version: AtomicU64,
    faults: RwLock<Vec<Arc<Active>>>,
}

/// The faults of a pool's volumes.
#[derive(Clone, Debug, Default)]
pub struct Injector(Arc<Shared>);

impl Injector {
    /// Sets all faults that are in force from now on. One that was in force before keeps its count.
    pub fn set(&self, faults: Vec<IoFault>) {
        let mut active = self.0.faults.write().unwrap_or_else(PoisonError::into_inner);
        let kept = |fault: IoFault| {
            let before = active.iter().find(|known| known.fault == fault);
            let new = || Arc::new(Active { fault: fault.clone(), hits: AtomicU64::new(0) });
            before.map_or_else(new, Arc::clone)
        };
        *active = faults.into_iter().map(kept).collect();
        self.0.version.fetch_add(1, Ordering::Release);
    }

    /// Returns how many requests each fault has changed, by its number.
    #[must_use]
    pub fn hits(&self) -> Vec<(u64, u64)> {
        let count = |it: &Arc<Active>| (it.fault.number, it.hits.load(Ordering::Relaxed));
        self.active().iter().map(count).collect()
    }

    fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    fn active(&self) -> Vec<Arc<Active>> {
        self.0.faults.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// See the module's text.
pub struct InjectedPool {
    below: Arc<dyn Pool>,
    injector: Injector,
}

impl InjectedPool {
    /// Creates a pool with the volumes of `below`, and the faults of `injector`.
    #[must_use]
    pub fn new(below: Arc<dyn Pool>, injector: Injector) -> Self {
        Self { below, injector }
    }
}

impl forwarding::ForwardingPool for InjectedPool {
    fn below(&self) -> &dyn Pool {
        self.below.as_ref()
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let timer = Timer::new().map_err(|e| StoreError::io("make a timer", e))?;
        let below = self.below.open(id, size)?;
        Ok(Box::new(volume::InjectedStore::new(id, below, self.injector.clone(), timer)))
    }
}

#[cfg(test)]
mod tests;
