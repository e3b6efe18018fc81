//! Snapshots: what they are, and how they are made and deleted.
//!
//! ```text
//!             decide                settle: done or found in the store      settle: failed
//! create    - -> pending            completed                               gone
//! delete    any -> deleting         gone                                    deleting
//! ```
//!
//! A snapshot holds a volume at one moment, so a call that was not answered is never repeated:
//! whether there is a snapshot is found out from the store ([`Model::settle_snapshots`]).

use std::collections::BTreeMap;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::VolumeType;
use evenkeel_wire::agent::StoredSnapshot;

use super::{Decision, Event, Model, Phase, Refusal, TAGS_MAX, Tags, UnixMs};

/// The most snapshots of one control plane: EC2's quota.
pub const SNAPSHOTS_MAX: usize = 100_000;
/// The most pending snapshots of one volume.
const PENDING_MAX: usize = 5;
/// The same of an st1 or sc1 volume.
const PENDING_HDD_MAX: usize = 1;

/// Why a snapshot of which the store knows nothing is in error.
const NOT_STORED: &str =
    "the store does not have it: the server ended before it was durable; delete it";
/// The same of one that was complete before.
const LOST: &str = "its bytes are missing: the store does not have it; delete it";

/// The phase of a snapshot's life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotPhase {
    /// It is being made.
    Pending,
    /// Volumes can be made of it.
    Completed {
        /// The bytes of data in it.
        data: ByteCount,
        /// When this was noticed.
        ended: UnixMs,
    },
    /// The store does not have it; the text has the reason.
    Error(String),
    /// It is being deleted, and no longer shown. It counts with these bytes until it is gone.
    Deleting {
        /// The bytes of data in it, if they were known.
        data: ByteCount,
    },
}

/// A snapshot with all its properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The volume that it was made of, which may be deleted.
    pub volume: VolumeId,
    /// The size of that volume when it was made.
    pub size_gib: u32,
    /// What the client says about it.
    pub description: String,
    /// When it was asked for.
    pub started: UnixMs,
    /// Its phase.
    pub phase: SnapshotPhase,
    /// Its tags.
    pub tags: Tags,
}

impl Snapshot {
    /// Its state, as the EC2 API names it.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match self.phase {
            SnapshotPhase::Pending => "pending",
            SnapshotPhase::Completed { .. } => "completed",
            SnapshotPhase::Error(_) | SnapshotPhase::Deleting { .. } => "error",
        }
    }

    /// How much of it is made, in percent.
    #[must_use]
    pub const fn percent(&self) -> u32 {
        match self.phase {
            SnapshotPhase::Completed { .. } => 100,
            _ => 0,
        }
    }

    /// Whether it is shown to clients.
    #[must_use]
    pub const fn is_shown(&self) -> bool {
        !matches!(self.phase, SnapshotPhase::Deleting { .. })
    }

    /// Whether its outcome has to be found out from the store.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        matches!(self.phase, SnapshotPhase::Pending)
    }

    /// Whether the data plane must still be called, or asked.
    #[must_use]
    pub const fn is_unsettled(&self) -> bool {
        matches!(self.phase, SnapshotPhase::Pending | SnapshotPhase::Deleting { .. })
    }

    /// The bytes that it counts with, of those for sale: all its data, though it may share most of
    /// it with its volume and with other snapshots. Before it is completed nothing is known.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        match self.phase {
            SnapshotPhase::Completed { data, .. } | SnapshotPhase::Deleting { data } => data.0,
            SnapshotPhase::Pending | SnapshotPhase::Error(_) => 0,
        }
    }
}

/// The parameters of a snapshot to make.
pub(super) struct NewSnapshot<'a> {
    pub id: SnapshotId,
    pub volume: VolumeId,
    pub description: &'a str,
    pub tags: &'a Tags,
}

impl Model {
    /// The snapshot, or the refusal that there is none.
    ///
    /// # Errors
    /// [`Refusal::SnapshotsNotFound`].
    pub fn snapshot(&self, id: SnapshotId) -> Result<&Snapshot, Refusal> {
        let found = self.snapshots.get(&id).filter(|snapshot| snapshot.is_shown());
        found.ok_or_else(|| Refusal::SnapshotsNotFound(vec![id]))
    }

    pub(super) fn create_snapshot(
        &self,
        new: &NewSnapshot<'_>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let &NewSnapshot { id, volume: of, description, tags } = new;
        let volume = self.volume(of)?;
        if volume.phase != Phase::Ready {
            return Err(Refusal::NotForSnapshot(of, volume.state()));
        }
        if tags.len() > TAGS_MAX {
            return Err(Refusal::TooManyTags(id.to_string()));
        }
        let max = match volume.spec.volume_type {
            VolumeType::St1 | VolumeType::Sc1 => PENDING_HDD_MAX,
            _ => PENDING_MAX,
        };
        if self.index.pending_snapshots_of(of) >= max {
            return Err(Refusal::TooManyPending(of));
        }
        if self.snapshots.len() >= SNAPSHOTS_MAX {
            return Err(Refusal::TooManySnapshots);
        }
        if self.snapshots.contains_key(&id) {
            return Err(Refusal::IdTaken(id.to_string()));
        }
        let snapshot = Snapshot {
            id,
            volume: of,
            size_gib: volume.spec.size_gib,
            description: description.into(),
            started: now,
            phase: SnapshotPhase::Pending,
            tags: tags.clone(),
        };
        Ok(Decision {
            events: vec![Event::Snapshot(snapshot)],
            snapshot: Some(id),
            ..Decision::default()
        })
    }

    pub(super) fn delete_snapshot(&self, id: SnapshotId) -> Result<Decision, Refusal> {
        let snapshot = self.snapshot(id)?;
        let phase = SnapshotPhase::Deleting { data: ByteCount(snapshot.taken()) };
        Ok(Decision {
            events: vec![Event::Snapshot(Snapshot { phase, ..snapshot.clone() })],
            snapshot: Some(id),
            ..Decision::default()
        })
    }

    /// Checks that a volume of this size can be made of a snapshot.
    ///
    /// # Errors
    /// [`Refusal::SnapshotsNotFound`], [`Refusal::SnapshotUnready`], [`Refusal::BelowSnapshot`].
    pub(super) fn check_snapshot_for_volume(
        &self,
        id: SnapshotId,
        size_gib: u32,
    ) -> Result<(), Refusal> {
        let snapshot = self.snapshot(id)?;
        if !matches!(snapshot.phase, SnapshotPhase::Completed { .. }) {
            return Err(Refusal::SnapshotUnready(id, snapshot.state()));
        }
        if size_gib < snapshot.size_gib {
            return Err(Refusal::BelowSnapshot { id, size_gib, least_gib: snapshot.size_gib });
        }
        Ok(())
    }

    /// The events for `ids` after the store has listed all its snapshots. One that the store has
    /// becomes completed when it is complete there; one that the store does not have is in error.
    /// Snapshots that are being deleted stay so.
    #[must_use]
    pub fn settle_snapshots(
        &self,
        ids: impl IntoIterator<Item = SnapshotId>,
        stored: &BTreeMap<SnapshotId, StoredSnapshot>,
        now: UnixMs,
    ) -> Vec<Event> {
        let settled = |id: SnapshotId| {
            let snapshot = self.snapshots.get(&id)?;
            let phase = match (&snapshot.phase, stored.get(&id)) {
                (SnapshotPhase::Deleting { .. }, _) => return None,
                (SnapshotPhase::Completed { .. }, Some(_)) => return None,
                (_, Some(found)) if found.is_complete => {
                    SnapshotPhase::Completed { data: found.data, ended: now }
                }
                (_, Some(_)) | (SnapshotPhase::Error(_), None) => return None,
                (SnapshotPhase::Pending, None) => SnapshotPhase::Error(NOT_STORED.into()),
                (SnapshotPhase::Completed { .. }, None) => SnapshotPhase::Error(LOST.into()),
            };
            Some(Event::Snapshot(Snapshot { phase, ..snapshot.clone() }))
        };
        ids.into_iter().filter_map(settled).collect()
    }

    /// Snapshots for which the data plane must still be called or asked, by id.
    pub fn unsettled_snapshots(&self) -> impl Iterator<Item = SnapshotId> {
        self.index.unsettled_snapshots().iter().copied()
    }
}
