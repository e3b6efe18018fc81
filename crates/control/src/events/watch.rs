//! Derives events from the data plane's reports, and those that depend only on time. Pure.

use std::collections::BTreeMap;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::time::UnixMs;
use evenkeel_wire::agent::{Space, StoreHealth, VolumeReport};

use super::notice::{ServerNews, VolumeEvent, VolumeNews, What};
use crate::model::{Model, ModificationPhase};
use crate::scrub::Target;
use crate::space::{Level, level};

/// Minimum time between two events of a volume's missed promise, in milliseconds.
pub const PROMISE_MS: u64 = 5 * 60_000;
/// Milliseconds between two checks of all volumes.
const CLOSER_MS: u64 = 10_000;
/// Minimum time between two events of one kind of trouble of the store, or of mended copies, in
/// milliseconds.
const STORE_MS: u64 = 60_000;

/// The last events of a volume that had any.
#[derive(Debug, Default)]
struct Told {
    flush_failed: bool,
    is_rotten: bool,
    contract: Contract,
    /// When a missed promise was reported last.
    promise: Option<UnixMs>,
}

/// The last event of one kind of trouble of the store.
#[derive(Debug, Default)]
struct TroubleTold {
    is_on: bool,
    /// When the last event was sent.
    at: Option<UnixMs>,
}

/// The last events of the store.
#[derive(Debug, Default)]
struct StoreTold {
    troubles: BTreeMap<&'static str, TroubleTold>,
    copies: u64,
    /// When mended copies were reported last.
    copies_at: Option<UnixMs>,
}

/// Returns whether the last event of a kind was sent less than [`STORE_MS`] ago.
fn is_recent(told: Option<UnixMs>, now: UnixMs) -> bool {
    told.is_some_and(|time| now >= time && now.ms_since(time) < STORE_MS)
}

impl StoreTold {
    /// Processes the state of the store. A change that comes too early for an event is compared
    /// again in the next call.
    fn look(&mut self, now: UnixMs, health: &StoreHealth) -> Vec<What> {
        let mut all = Vec::new();
        for (kind, troubles) in health.troubles() {
            let told = self.troubles.entry(kind).or_default();
            if told.is_on != (troubles > 0) && !is_recent(told.at, now) {
                *told = TroubleTold { is_on: troubles > 0, at: Some(now) };
                all.push(What::Server(ServerNews::StoreTrouble { kind, troubles }));
            }
        }
        // The data plane was restarted, or this is another node's.
        self.copies = self.copies.min(health.copies_mended);
        let copies = health.copies_mended - self.copies;
        if copies > 0 && !is_recent(self.copies_at, now) {
            (self.copies, self.copies_at) = (health.copies_mended, Some(now));
            all.push(What::Server(ServerNews::CopiesMended { copies }));
        }
        all
    }
}

/// The last events of the data plane.
#[derive(Debug, Default)]
pub struct Watcher {
    volumes: BTreeMap<VolumeId, Told>,
    /// Time of the last check of all volumes.
    looked: UnixMs,
    space: Level,
    store: StoreTold,
}

impl Watcher {
    /// Creates a watcher for events after a point in time.
    #[must_use]
    pub fn new(looked: UnixMs) -> Self {
        Self { looked, ..Self::default() }
    }

    /// Processes the reports of all volumes, ordered by id.
    pub fn look(&mut self, now: UnixMs, reports: &[VolumeReport]) -> Vec<What> {
        let mut all = Vec::new();
        for VolumeReport { id, errors, contract, .. } in reports {
            let id = *id;
            if !errors.flush_failed && !errors.is_rotten && contract.missed == 0 {
                // This is the usual case.
                self.volumes.remove(&id);
                continue;
            }
            let told = self.volumes.entry(id).or_default();
            if errors.flush_failed && !told.flush_failed {
                all.push(What::VolumeNews { id, news: VolumeNews::FlushFailed });
            }
            if errors.is_rotten && !told.is_rotten {
                let target = Target::Volume(id);
                all.push(What::Rotten { target, by: "request", offset: None });
            }
            (told.flush_failed, told.is_rotten) = (errors.flush_failed, errors.is_rotten);
            if contract.seconds < told.contract.seconds {
                // The data plane has begun to count the volume again.
                told.contract = Contract::default();
            }
            let missed = contract.missed.saturating_sub(told.contract.missed);
            let is_early = told
                .promise
                .is_some_and(|promise| now >= promise && now.ms_since(promise) < PROMISE_MS);
            if missed > 0 && !is_early {
                let judged = contract.seconds - told.contract.seconds;
                (told.contract, told.promise) = (*contract, Some(now));
                all.push(What::VolumeNews {
                    id,
                    news: VolumeNews::PromiseMissed { missed, judged },
                });
            }
        }
        if self.volumes.len() > reports.len() {
            let place = |id: &VolumeId| reports.binary_search_by_key(id, |report| report.id);
            self.volumes.retain(|id, _| place(id).is_ok());
        }
        all
    }

    /// Returns whether it is time for [`Self::look_closer`].
    #[must_use]
    pub const fn is_due(&self, now: UnixMs) -> bool {
        now.ms_since(self.looked) >= CLOSER_MS || now.0 < self.looked.0
    }

    /// Processes the state of the store itself. Returns at most one event of each kind in a minute.
    pub fn look_at_store(&mut self, now: UnixMs, health: &StoreHealth) -> Vec<What> {
        self.store.look(now, health)
    }

    /// Checks all volumes, and the space for their bytes.
    pub fn look_closer(&mut self, now: UnixMs, model: &Model, space: Option<Space>) -> Vec<What> {
        let since = std::mem::replace(&mut self.looked, now);
        let mut all = Vec::new();
        for volume in model.volumes.values() {
            let phase = volume.modification.as_ref().map(|modification| &modification.phase);
            if let Some(ModificationPhase::Optimizing { until, .. }) = phase
                && (since < *until && *until <= now)
            {
                let event = VolumeEvent::Modify;
                let result = "completed";
                all.push(What::Volume { id: volume.id, event, result, cause: String::new() });
            }
        }
        if let Some(Space { total, free }) = space {
            let level = level(total, free);
            if level != std::mem::replace(&mut self.space, level) {
                let level = level.name();
                let total = total.0;
                let free = free.0;
                all.push(What::Server(ServerNews::Space { level, total, free }));
            }
        }
        all
    }
}
