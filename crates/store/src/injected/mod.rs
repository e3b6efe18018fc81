//! A pool in front of another one whose volumes have faults on request, and take as long as EBS
//! does: for servers for tests.
//!
//! [`Injector`] has the faults in force, and [`Feel`] how long volumes take. A request that either
//! delays goes to the store below at once, and its answer waits; a request that fails does not
//! reach it. The data plane has charged a request to the limits before it is here, so they stay
//! exact. It bounds the requests of a volume, and so the answers that wait.

mod feel;
mod volume;

pub use feel::Feel;

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
    feel: Option<Feel>,
}

impl InjectedPool {
    /// Creates a pool with the volumes of `below`, and the faults of `injector`. With `feel` the
    /// volumes that are set there take their time.
    #[must_use]
    pub fn new(below: Arc<dyn Pool>, injector: Injector, feel: Option<Feel>) -> Self {
        Self { below, injector, feel }
    }
}

impl forwarding::ForwardingPool for InjectedPool {
    fn below(&self) -> &dyn Pool {
        self.below.as_ref()
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let timer = Timer::new().map_err(|e| StoreError::io("make a timer", e))?;
        let below = self.below.open(id, size)?;
        let feel = self.feel.as_ref().and_then(|feel| feel.of(id));
        let store = volume::InjectedStore::new((id, below), self.injector.clone(), feel, timer);
        Ok(Box::new(store))
    }
}

#[cfg(test)]
mod tests;
