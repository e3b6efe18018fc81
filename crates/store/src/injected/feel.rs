//! How the volumes of a pool feel: how long each takes for a request, and which of its blocks are
//! not fetched from its snapshot yet.

use evenkeel_core::feel::{Latencies, VolumeFeel};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::VolumeType;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The feel of one volume, which outlasts its store.
pub(super) type Shared = Arc<Mutex<VolumeFeel>>;

/// The feel of a pool's volumes. It has one entry for each volume that was [set](Self::set).
#[derive(Clone)]
pub struct Feel {
    latencies: &'static Latencies,
    seed: u64,
    volumes: Arc<Mutex<BTreeMap<VolumeId, Shared>>>,
}

impl fmt::Debug for Feel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feel").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Feel {
    /// Creates the feel of a pool without volumes.
    #[must_use]
    pub fn new(latencies: &'static Latencies, seed: u64) -> Self {
        Self { latencies, seed, volumes: Arc::default() }
    }

    /// Sets the type of a volume. If the volume is new here, its first `cold` bytes are not fetched
    /// yet; returns whether it is new.
    pub fn set(&self, id: VolumeId, volume_type: VolumeType, cold: ByteCount) -> bool {
        match self.all().entry(id) {
            Entry::Occupied(known) => {
                locked(known.get()).set_type(volume_type);
                false
            }
            Entry::Vacant(free) => {
                let new = VolumeFeel::new(self.latencies, self.seed, (id, volume_type), cold);
                free.insert(Arc::new(Mutex::new(new)));
                true
            }
        }
    }

    /// Removes a volume.
    pub fn forget(&self, id: VolumeId) {
        self.all().remove(&id);
    }

    /// Records that the first `bytes` of a volume are fetched.
    pub fn fetched_until(&self, id: VolumeId, bytes: ByteCount) {
        if let Some(feel) = self.of(id) {
            locked(&feel).fetched_until(bytes);
        }
    }

    /// Returns the percentage of a volume's blocks that are fetched; `None` if all are.
    #[must_use]
    pub fn percent_fetched(&self, id: VolumeId) -> Option<u32> {
        locked(&self.of(id)?).percent_fetched()
    }

    pub(super) fn of(&self, id: VolumeId) -> Option<Shared> {
        self.all().get(&id).map(Arc::clone)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Shared>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks the feel of a volume, which each change leaves whole.
pub(super) fn locked(feel: &Shared) -> MutexGuard<'_, VolumeFeel> {
    feel.lock().unwrap_or_else(PoisonError::into_inner)
}
