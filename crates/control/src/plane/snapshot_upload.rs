//! Snapshots that clients fill, read and compare unit by unit.
//!
//! A filled snapshot is decided and committed before the data plane is called, as any other. Then
//! its units go to the data plane, several at a time, and each is durable when it is answered; the
//! journal does not have them. Memory has only the time of the last unit, and the digests of the
//! units. They are compared with the client's count and checksum when it completes the snapshot.
//! After a restart, or if there are too many of them, the units that differ from the parent are
//! counted in the store, and read back for the checksum.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::ids::SnapshotId;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{
    Bytes, Command as AgentCommand, FailedKind, NewSnapshot, Reply, UNIT_BYTES, Units, UnitsWanted,
};
use evenkeel_wire::aws::checksum::{self, Digest, Linear};
use tracing::{info, warn};

use super::calls::unexpected;
use super::{Plane, PlaneError};
use crate::events::During;
use crate::key_locks::Key;
use crate::model::{Event, Filled, Refusal, Snapshot, SnapshotPhase};

/// Maximum number of units whose digests are in memory, of all snapshots together: 512 GiB of data,
/// in about 60 MiB.
pub const UNITS_KNOWN_MAX: usize = 1 << 20;
/// Maximum number of units that are requested at once.
const PAGE: u32 = 10_000;

/// Why a snapshot is not completed.
#[derive(Debug)]
pub enum NotComplete {
    /// The client's count or checksum differs from the units that were put.
    Differs(String),
    /// The change failed as any other may.
    Failed(PlaneError),
}

impl<T: Into<PlaneError>> From<T> for NotComplete {
    fn from(error: T) -> Self {
        Self::Failed(error.into())
    }
}

/// State in memory of the snapshots that are being filled.
#[derive(Debug)]
pub(super) struct Fillings {
    /// When this server started, since the machine's boot. Earlier units are unknown.
    began: Duration,
    all: BTreeMap<SnapshotId, Filling>,
    /// Number of digests of all snapshots.
    known: usize,
}

#[derive(Debug)]
struct Filling {
    /// When its client put a unit last, since the machine's boot.
    last: Duration,
    /// Digests of its units; `None` if some are unknown.
    digests: Option<BTreeMap<u64, Digest>>,
    /// Units put since the server's start.
    units: u64,
}

impl Fillings {
    pub fn new(began: Duration) -> Self {
        Self { began, all: BTreeMap::new(), known: 0 }
    }

    fn forget(&mut self, id: SnapshotId) {
        let gone = self.all.remove(&id);
        self.known -= gone.and_then(|gone| gone.digests).map_or(0, |digests| digests.len());
        self.check();
    }

    /// Adds a snapshot without units.
    fn begin(&mut self, id: SnapshotId, now: Duration) {
        let new = Filling { last: now, digests: Some(BTreeMap::new()), units: 0 };
        self.all.entry(id).or_insert(new).last = now;
    }

    fn heard(&mut self, id: SnapshotId, now: Duration) -> &mut Filling {
        let filling = self.all.entry(id).or_insert(Filling { last: now, digests: None, units: 0 });
        filling.last = now;
        filling
    }

    fn put(&mut self, id: SnapshotId, unit: u64, digest: Digest, now: Duration) {
        let is_room = self.known < UNITS_KNOWN_MAX;
        let filling = self.heard(id, now);
        let Some(digests) = &mut filling.digests else {
            filling.units += 1;
            return;
        };
        if !is_room && !digests.contains_key(&unit) {
            let gone = digests.len();
            (filling.digests, filling.units) = (None, filling.units + 1);
            self.known -= gone;
        } else if digests.insert(unit, digest).is_none() {
            filling.units += 1;
            self.known += 1;
        }
        self.check();
    }

    /// Asserts that the counts are those of the digests.
    fn invariants(&self) {
        let mut known = 0;
        for (id, filling) in &self.all {
            let Some(digests) = &filling.digests else { continue };
            assert_eq!(filling.units, digests.len() as u64, "units of {id}, and their digests");
            known += digests.len();
        }
        assert_eq!(self.known, known, "digests of all snapshots");
        assert!(known <= UNITS_KNOWN_MAX, "{known} digests");
    }

    /// Calls [`Self::invariants`] in debug builds.
    fn check(&self) {
        if cfg!(debug_assertions) {
            self.invariants();
        }
    }

    /// Returns the bytes that were put since the server's start into snapshots that are not
    /// complete.
    fn bytes(&self) -> u64 {
        self.all.values().map(|filling| filling.units * UNIT_BYTES).sum()
    }

    fn last(&self, id: SnapshotId) -> Duration {
        self.all.get(&id).map_or(self.began, |filling| filling.last)
    }
}

impl Plane {
    fn fillings(&self) -> MutexGuard<'_, Fillings> {
        // No code between two related changes may panic, so the state is consistent.
        self.fillings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asserts that the counts of units are those of the digests.
    pub(super) fn check_fillings(&self) {
        self.fillings().invariants();
    }

    pub(super) fn forget_filling(&self, id: SnapshotId) {
        self.fillings().forget(id);
    }

    /// Calls the data plane for a snapshot to fill that was decided now or earlier.
    pub(super) fn begin_filling(
        &self,
        snapshot: &Snapshot,
        is_new: bool,
    ) -> Result<(), PlaneError> {
        let &Snapshot { id, size_gib, ref filled, .. } = snapshot;
        let parent = filled.as_ref().and_then(|filled| filled.parent);
        let size = ByteCount::from_gib(size_gib);
        let is_encrypted = snapshot.is_encrypted;
        let new = NewSnapshot { id, size, parent, is_encrypted };
        match self.call(AgentCommand::StartSnapshot(new)) {
            Ok(()) => {}
            Err(failed) if failed.kind == FailedKind::Unanswered || !is_new => {
                return Err(PlaneError::Agent(failed));
            }
            Err(failed) => {
                let _cause = During::because(&failed.message);
                self.commit_snapshots(vec![Event::SnapshotGone(id)])?;
                return Err(PlaneError::Agent(failed));
            }
        }
        if is_new {
            self.fillings().begin(id, self.clock.since_boot())
        } else {
            _ = self.fillings().heard(id, self.clock.since_boot())
        }
        Ok(())
    }

    /// Returns the snapshot, if it is being filled.
    fn filling(&self, id: SnapshotId) -> Result<Snapshot, Refusal> {
        let model = self.model();
        let snapshot = model.snapshot(id)?;
        match snapshot.phase {
            SnapshotPhase::Filling => Ok(snapshot.clone()),
            _ => Err(Refusal::NotFilling(id, snapshot.state())),
        }
    }

    /// Fills one unit of a snapshot. It is durable when this returns.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn put_unit(
        &self,
        id: SnapshotId,
        unit: u64,
        bytes: Vec<u8>,
        digest: Digest,
    ) -> Result<(), PlaneError> {
        let snapshot = self.filling(id)?;
        let units = ByteCount::from_gib(snapshot.size_gib).0 / UNIT_BYTES;
        if unit >= units {
            return Err(Refusal::NoUnit { id, unit, units }.into());
        }
        self.admit_unit()?;
        self.call(AgentCommand::PutSnapshot(id, unit, Bytes(bytes))).map_err(PlaneError::Agent)?;
        let mut fillings = self.fillings();
        // The snapshot may have been deleted meanwhile; then the unit is not recorded.
        if self.filling(id).is_ok() {
            fillings.put(id, unit, digest, self.clock.since_boot());
        }
        Ok(())
    }

    /// Checks that there is room for one more unit beside all sold space.
    fn admit_unit(&self) -> Result<(), Refusal> {
        let Some(room) = self.room() else { return Ok(()) };
        let for_sale = self.settings.space_oversell.for_sale(room.space.total);
        let Some(for_sale) = for_sale else { return Ok(()) };
        let filled = self.fillings().bytes();
        let sold = ByteCount(self.model().taken_of(&room).0.saturating_add(filled));
        if sold.0.saturating_add(UNIT_BYTES) > for_sale.0 {
            let needed = ByteCount(UNIT_BYTES);
            Err(Refusal::SpaceForSnapshot { for_sale, sold, needed })
        } else {
            Ok(())
        }
    }

    /// Completes a snapshot. The client reports that it has put `count` units, and the checksum of
    /// their checksums. Does nothing if the snapshot is complete.
    ///
    /// # Errors
    /// See [`NotComplete`].
    pub fn complete_snapshot(
        &self,
        id: SnapshotId,
        count: u64,
        linear: Option<Digest>,
    ) -> Result<(), NotComplete> {
        let _keys = self.lock_keys(vec![Key::Snapshot(id)])?;
        if let Snapshot { phase: SnapshotPhase::Completed { .. }, filled: Some(_), .. } =
            self.model().snapshot(id)?
        {
            return Ok(());
        }
        let snapshot = self.filling(id)?;
        let known = {
            let mut fillings = self.fillings();
            let filling = fillings.heard(id, self.clock.since_boot());
            filling.digests.as_ref().map(|digests| {
                let mut all = Linear::default();
                digests.values().for_each(|digest| all.add(digest));
                (digests.len() as u64, all.digest())
            })
        };
        if let Some((present, digest)) = &known {
            compare(count, linear.as_ref(), *present, digest).map_err(NotComplete::Differs)?;
        }
        let parent = snapshot.filled.as_ref().and_then(|filled| filled.parent);
        if let (None, Some(parent)) = (&known, parent)
            && self.model().snapshot(parent).is_err()
        {
            return Err(NotComplete::Differs(format!(
                "the server was restarted since {id} was started, and its parent {parent} is \
                 deleted, so its blocks cannot be counted; start it again"
            )));
        }
        self.call(AgentCommand::CompleteSnapshot(id)).map_err(PlaneError::Agent)?;
        if known.is_none() {
            let (present, digest) = self.read_back(id, parent, linear.is_some())?;
            if let Err(why) = compare(count, linear.as_ref(), present, &digest) {
                self.fail_filling(&snapshot, &format!("{why}; delete it, and start again"))?;
                return Err(NotComplete::Differs(why));
            }
        }
        self.note_complete(snapshot)?;
        self.forget_filling(id);
        Ok(())
    }

    /// Returns the number of units in which a complete snapshot differs from its parent and, on
    /// request, the checksum of their checksums.
    fn read_back(
        &self,
        id: SnapshotId,
        older: Option<SnapshotId>,
        is_read: bool,
    ) -> Result<(u64, Digest), PlaneError> {
        let mut count = 0;
        let mut all = Linear::default();
        let mut next = Some(0);
        while let Some(first) = next {
            let page = self.ask_units(UnitsWanted { id, older, first, max: PAGE })?;
            count += page.units.len() as u64;
            if is_read {
                for unit in page.units {
                    let bytes = self.ask_unit(id, unit)?;
                    let bytes = bytes.unwrap_or_else(|| vec![0; UNIT_BYTES as usize]);
                    all.add(&checksum::digest(&bytes));
                }
            }
            next = page.next;
        }
        Ok((count, all.digest()))
    }

    fn fail_filling(&self, snapshot: &Snapshot, reason: &str) -> Result<(), PlaneError> {
        let phase = SnapshotPhase::Error(reason.into());
        self.commit_snapshots(vec![Event::Snapshot(Snapshot { phase, ..snapshot.clone() })])?;
        self.forget_filling(snapshot.id);
        Ok(())
    }

    /// Puts snapshots that were idle for too long into error, which frees their space.
    pub(super) fn expire_fillings(&self) {
        let now = self.clock.since_boot();
        let is_idle = |snapshot: &&Snapshot| {
            let last = self.fillings().last(snapshot.id);
            let filled = snapshot.filled.as_ref();
            let minutes = filled.map_or(u64::MAX, |filled| filled.timeout_min.into());
            now.saturating_sub(last) > Duration::from_secs(minutes.saturating_mul(60))
        };
        // The model must not be held while their keys are locked.
        let all: Vec<Snapshot> = self.model().filling().cloned().collect();
        for Snapshot { id, .. } in all.iter().filter(is_idle) {
            let id = *id;
            let Some(_keys) = self.keys.try_lock(vec![Key::Snapshot(id)]) else { continue };
            let Ok(snapshot) = self.filling(id) else { continue };
            let Some(Filled { timeout_min, .. }) = snapshot.filled else { continue };
            let reason = format!("nothing was put into it for {timeout_min} minutes; delete it");
            if let Err(error) = self.fail_filling(&snapshot, &reason) {
                warn!(snapshot = %id, %error, "idle, and that could not be stored");
                continue;
            }
            info!(snapshot = %id, reason, "a snapshot is in error");
            if let Err(failed) = self.call(AgentCommand::DeleteSnapshot(id)) {
                let reason = failed.message;
                warn!(snapshot = %id, reason, "keeps its space until it is deleted");
            }
        }
    }

    /// Checks that a snapshot can be read.
    fn readable(&self, id: SnapshotId) -> Result<Snapshot, Refusal> {
        let model = self.model();
        let snapshot = model.snapshot(id)?;
        snapshot.check_usable(self.now())?;
        Ok(snapshot.clone())
    }

    /// Returns a completed snapshot, and some of its units that have data or differ from those of
    /// an older snapshot.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn units(&self, wanted: UnitsWanted) -> Result<(Snapshot, Units), PlaneError> {
        let snapshot = self.readable(wanted.id)?;
        if let Some(older) = wanted.older {
            self.readable(older)?;
        }
        Ok((snapshot, self.ask_units(wanted)?))
    }

    /// Returns the bytes of one unit of a completed snapshot; `None` if it has no data.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn read_unit(&self, id: SnapshotId, unit: u64) -> Result<Option<Vec<u8>>, PlaneError> {
        self.readable(id)?;
        self.ask_unit(id, unit)
    }

    pub(super) fn ask_units(&self, wanted: UnitsWanted) -> Result<Units, PlaneError> {
        match self.agent.call(AgentCommand::SnapshotUnits(wanted)) {
            Reply::Units(units) => Ok(units),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("SnapshotUnits was answered otherwise"))),
        }
    }

    pub(super) fn ask_unit(
        &self,
        id: SnapshotId,
        unit: u64,
    ) -> Result<Option<Vec<u8>>, PlaneError> {
        match self.agent.call(AgentCommand::ReadSnapshot(id, unit)) {
            Reply::Unit(bytes) => Ok(bytes.map(|bytes| bytes.0)),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("ReadSnapshot was answered otherwise"))),
        }
    }
}

/// Compares the client's count and checksum with the store's.
fn compare(
    count: u64,
    linear: Option<&Digest>,
    present: u64,
    digest: &Digest,
) -> Result<(), String> {
    if count != present {
        return Err(format!(
            "x-amz-ChangedBlocksCount is {count}, and {present} different blocks were put"
        ));
    }
    match linear {
        Some(linear) if linear != digest => Err(format!(
            "the aggregate checksum is {}, and that of the blocks that were put is {}",
            checksum::text(linear),
            checksum::text(digest)
        )),
        _ => Ok(()),
    }
}
