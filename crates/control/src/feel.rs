//! How volumes of a server for tests feel (`serve --feel ebs`): which type each has, and how far
//! its blocks are fetched from its snapshot by the server's clock. A store in front of the others
//! executes it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::feel::Latencies;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::UnixMs;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::VolumeType;

use crate::model::{Event, Model, Volume};

/// The part of a server that makes volumes feel like those of EBS.
pub trait IoFeel: fmt::Debug + Send + Sync {
    /// Sets the type of a volume. If it is new, its first `cold` bytes are not fetched yet; returns
    /// whether it is new.
    fn set(&self, id: VolumeId, volume_type: VolumeType, cold: ByteCount) -> bool;

    /// Removes a volume.
    fn forget(&self, id: VolumeId);

    /// Records that the first `bytes` of a volume are fetched.
    fn fetched_until(&self, id: VolumeId, bytes: ByteCount);

    /// Returns the percentage of a volume's blocks that are fetched; `None` if all are.
    fn percent_fetched(&self, id: VolumeId) -> Option<u32>;
}

/// A volume whose blocks are being fetched in the background.
#[derive(Debug)]
struct Fetching {
    since: UnixMs,
    bytes: ByteCount,
    mibps: Option<u32>,
}

/// The feel of a server's volumes.
#[derive(Debug)]
pub struct Feel {
    io: Arc<dyn IoFeel>,
    latencies: &'static Latencies,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Volumes with cold blocks.
    fetching: BTreeMap<VolumeId, Fetching>,
    /// The volume that is created next with a rate of its own, in MiB per second.
    expected: Option<(VolumeId, u32)>,
}

impl Feel {
    /// Creates the feel of a server without volumes.
    #[must_use]
    pub fn new(io: Arc<dyn IoFeel>, latencies: &'static Latencies) -> Self {
        Self { io, latencies, state: Mutex::default() }
    }

    /// Sets the rate in MiB per second at which the blocks of the volume that is created next are
    /// fetched. It is in memory only: after a restart the rate is the default one.
    pub fn expect(&self, id: VolumeId, mibps: u32) {
        self.state().expected = Some((id, mibps));
    }

    /// Takes a change of a volume.
    pub fn note(&self, model: &Model, event: &Event) {
        match event {
            Event::Volume(volume) => self.volume(model, volume),
            Event::VolumeGone(id) => {
                self.io.forget(*id);
                self.state().fetching.remove(id);
            }
            _ => {}
        }
    }

    /// Takes a volume as it is now. A volume that was made of a snapshot begins cold, unless fast
    /// restore has fetched all of it.
    pub fn volume(&self, model: &Model, volume: &Volume) {
        let bytes = ByteCount::from_gib(cold_gib(model, volume));
        let is_new = self.io.set(volume.id, volume.spec.volume_type, bytes);
        let mut state = self.state();
        let expected = state.expected.take_if(|(id, _)| *id == volume.id);
        if is_new && bytes.0 > 0 {
            let mibps = expected.map(|(_, mibps)| mibps);
            let fetching = Fetching { since: volume.created, bytes, mibps };
            state.fetching.insert(volume.id, fetching);
        }
    }

    /// Fetches the blocks that the background has fetched by `now`.
    pub fn fetch(&self, now: UnixMs) {
        self.state().fetching.retain(|id, fetching| {
            let Fetching { since, bytes, mibps } = *fetching;
            let fetched = self.latencies.fetched(mibps, now.ms_since(since));
            self.io.fetched_until(*id, fetched);
            fetched.0 < bytes.0 && self.io.percent_fetched(*id).is_some()
        });
    }

    /// Returns the percentage of a volume's blocks that are fetched; `None` if all are.
    #[must_use]
    pub fn percent_fetched(&self, id: VolumeId) -> Option<u32> {
        self.io.percent_fetched(id)
    }

    /// Returns the seconds until the background has fetched all of a volume that has a rate of its
    /// own and cold blocks.
    #[must_use]
    pub fn seconds_left(&self, id: VolumeId, now: UnixMs) -> Option<u64> {
        let state = self.state();
        let Fetching { since, bytes, mibps } = state.fetching.get(&id)?;
        let each_second = self.latencies.fetched(Some((*mibps)?), 1_000).0;
        let done = self.latencies.fetched(*mibps, now.ms_since(*since)).0;
        Some(bytes.0.saturating_sub(done).div_ceil(each_second))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of it leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the size of the part of a new volume that is cold.
fn cold_gib(model: &Model, volume: &Volume) -> u32 {
    match volume.snapshot {
        Some(id) if !volume.is_fast_restored => {
            let snapshot = model.snapshots.get(&id);
            snapshot.map_or(volume.spec.size_gib, |snapshot| snapshot.size_gib)
        }
        _ => 0,
    }
}
