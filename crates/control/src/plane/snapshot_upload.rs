//! Snapshots that clients fill, read and compare unit by unit.
//!
//! A filled snapshot is decided and stored before the data plane is called, as any other. Then its
//! units go to the data plane, several at a time, and each is durable when it is answered; the
//! journal knows nothing of them. What is in memory only is when something was put last, and the
//! digests of the units, with which a client's count and checksum are compared when it completes
//! the snapshot. After a restart, or where there are too many of them, the store itself is asked:
//! the units that differ from the parent are counted, and read back for the checksum.

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
use crate::clock;
use crate::events::During;
use crate::key_locks::Key;
use crate::model::{Event, Filled, Refusal, Snapshot, SnapshotPhase};

/// The most units whose digests are in memory, of all snapshots together: 512 GiB of data, for some
/// 60 MiB.
pub const UNITS_KNOWN_MAX: usize = 1 << 20;
/// The most units that are asked for at once.
const PAGE: u32 = 10_000;

/// Why a snapshot is not completed.
#[derive(Debug)]
pub enum NotComplete {
    /// What the client says is not what was put.
    Differs(String),
    /// As for any change.
    Failed(PlaneError),
}

impl<T: Into<PlaneError>> From<T> for NotComplete {
    fn from(error: T) -> Self {
        Self::Failed(error.into())
    }
}

/// What is in memory of the snapshots that are being filled.
#[derive(Debug)]
pub(super) struct Fillings {
    /// When this server started, since the machine's boot. Nothing is known of what was put before.
    began: Duration,
    all: BTreeMap<SnapshotId, Filling>,
    /// The digests of all of them.
    known: usize,
}

#[derive(Debug)]
struct Filling {
    /// When its client was heard of last, since the machine's boot.
    last: Duration,
    /// Of its units; `None` if they are not all known.
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
    }

    /// Begins with nothing that was put before.
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
            return;
        }
        if digests.insert(unit, digest).is_none() {
            filling.units += 1;
            self.known += 1;
        }
    }

    /// Bytes that were put since the server's start into snapshots that are not complete.
    fn bytes(&self) -> u64 {
        self.all.values().map(|filling| filling.units * UNIT_BYTES).sum()
    }

    fn last(&self, id: SnapshotId) -> Duration {
        self.all.get(&id).map_or(self.began, |filling| filling.last)
    }
}

impl Plane {
    fn fillings(&self) -> MutexGuard<'_, Fillings> {
        // Nothing that may panic is between two changes that belong together.
        self.fillings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget_filling(&self, id: SnapshotId) {
        self.fillings().forget(id);
    }

    /// Calls the data plane for a snapshot to fill, as decided just now or earlier.
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
        match is_new {
            true => self.fillings().begin(id, clock::since_boot()),
            false => _ = self.fillings().heard(id, clock::since_boot()),
        }
        Ok(())
    }

    /// The snapshot, if it is being filled.
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
        // It may have been deleted meanwhile, and is not remembered then.
        if self.filling(id).is_ok() {
            fillings.put(id, unit, digest, clock::since_boot());
        }
        Ok(())
    }

    /// Whether there is room for one more unit beside everything that is sold.
    fn admit_unit(&self) -> Result<(), Refusal> {
        let Some(room) = self.room() else { return Ok(()) };
        let for_sale = self.settings.space_oversell.for_sale(room.space.total);
        let Some(for_sale) = for_sale else { return Ok(()) };
        let filled = self.fillings().bytes();
        let sold = ByteCount(self.model().taken_of(&room).0.saturating_add(filled));
        match sold.0.saturating_add(UNIT_BYTES) > for_sale.0 {
            true => {
                let needed = ByteCount(UNIT_BYTES);
                Err(Refusal::SpaceForSnapshot { for_sale, sold, needed })
            }
            false => Ok(()),
        }
    }

    /// Completes a snapshot of which the client says that it has put `count` units, and that this
    /// is the checksum of their checksums. Done if it is complete.
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
            let filling = fillings.heard(id, clock::since_boot());
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
                 deleted, so what was put cannot be counted; start it again"
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

    /// The number of units in which a complete snapshot differs from its parent, and the checksum
    /// of their checksums, if it is wanted.
    fn read_back(
        &self,
        id: SnapshotId,
        older: Option<SnapshotId>,
        is_read: bool,
    ) -> Result<(u64, Digest), PlaneError> {
        let (mut count, mut all, mut next) = (0, Linear::default(), Some(0));
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

    /// Snapshots into which nothing was put for too long go into error, and give their space back.
    pub(super) fn expire_fillings(&self) {
        let now = clock::since_boot();
        let is_idle = |snapshot: &&Snapshot| {
            let last = self.fillings().last(snapshot.id);
            let filled = snapshot.filled.as_ref();
            let minutes = filled.map_or(u64::MAX, |filled| filled.timeout_min.into());
            now.saturating_sub(last) > Duration::from_secs(minutes.saturating_mul(60))
        };
        // The model is not held where these are locked.
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

    /// Some units of a completed snapshot that have data, or that differ from those of an older
    /// one. Returns the snapshot, too.
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

    /// The bytes of one unit of a completed snapshot; `None` if it has no data.
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

/// Whether what a client says is what there is.
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
