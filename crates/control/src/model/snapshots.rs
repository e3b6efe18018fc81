//! Snapshots, and how they are made and deleted.
//!
//! ```text
//!             decide                settle: done or found in the store      settle: failed
//! create    - -> pending            completed                               gone
//! start     - -> filling            filling                                 gone
//! complete  filling                 completed                               filling, or error
//! copy      - -> copying            completed                               error
//! delete    any -> deleting         gone                                    deleting
//! ```
//!
//! A snapshot holds a volume at one moment, so a call without an answer is never repeated: the
//! store's list shows whether the snapshot exists ([`Model::settle_snapshots`]).
//!
//! A snapshot that is *filled* is not made of a volume: a client starts it, puts its units, and
//! completes it. It goes into error when nothing was put for a time.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::quota;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::StoredSnapshot;

use super::{
    Calls, Decision, Event, FastRestore, Lock, Model, Phase, PublicAccess, Refusal, Settings,
    TAGS_MAX, Tags, Tiering, UnixMs,
};

/// Maximum number of snapshots of one control plane: two of every volume. EC2's quota is 100,000,
/// and is raised on request. 200,000 are measured (`cargo bench -p evenkeel-control --bench
/// scale`); this leaves room. All of them in one message of the data plane take a fifth of a
/// frame's maximum.
pub const SNAPSHOTS_MAX: usize = 2 * super::VOLUMES_MAX;
const _: () = assert!(SNAPSHOTS_MAX >= 250_000);
/// Maximum number of snapshots that are being filled: EC2's quota.
pub const FILLING_MAX: usize = quota::EC2.filling;
/// Maximum number of accounts that a snapshot is shared with.
pub(super) const SHARED_MAX: usize = 1_000;
/// The name under which a snapshot is shared with all accounts.
pub const EVERYONE: &str = "all";
/// The volume id of a snapshot that was filled or copied, since it was not made of a volume.
pub const NO_VOLUME: VolumeId = VolumeId::from_bits(u128::MAX);

/// Reason of the error of a snapshot that the store does not have.
const NOT_STORED: &str =
    "the store does not have it: the server ended before it was durable; delete it";
/// Reason of the error of a snapshot that was complete before, and that the store does not have.
const LOST: &str = "its bytes are missing: the store does not have it; delete it";

/// The phase of a snapshot's life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotPhase {
    /// It is being made.
    Pending,
    /// Its units are being put by a client.
    Filling,
    /// It is being made as a copy of another.
    Copying {
        /// Maximum of the bytes of data that it will have.
        data: ByteCount,
    },
    /// Volumes can be made of it.
    Completed {
        /// The bytes of data in it.
        data: ByteCount,
        /// When this was detected.
        ended: UnixMs,
    },
    /// The store does not have it; the text has the reason.
    Error(String),
    /// It is being deleted, and no longer shown. It counts with these bytes until it is gone.
    Deleting {
        /// The bytes of data in it, if they were known.
        data: ByteCount,
    },
    /// It was deleted, and can be restored.
    Binned {
        /// The bytes of data in it.
        data: ByteCount,
        /// When it was completed.
        ended: UnixMs,
        /// When it was deleted.
        entered: UnixMs,
        /// When its bytes are deleted.
        until: UnixMs,
    },
}

impl SnapshotPhase {
    /// Returns whether it is being made, filled or copied.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        matches!(self, Self::Pending | Self::Filling | Self::Copying { .. })
    }
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
    /// The client's description of it.
    pub description: String,
    /// When it was requested.
    pub started: UnixMs,
    /// Its phase.
    pub phase: SnapshotPhase,
    /// Its tags.
    pub tags: Tags,
    /// How it was started, if it is filled by a client instead of made of a volume.
    pub filled: Option<Filled>,
    /// The snapshot that it is a copy of, which may be deleted.
    pub copy_of: Option<SnapshotId>,
    /// The new volume for which alone it was made; such a snapshot is never shown.
    pub for_volume: Option<VolumeId>,
    /// Whether it is encrypted.
    pub is_encrypted: bool,
    /// The lock that keeps it from being deleted.
    pub lock: Option<Lock>,
    /// Accounts that it is shared with, and `all` for every account. A label, since there is one
    /// account.
    pub shared_with: BTreeSet<String>,
    /// Its fast restores, by the zone in which each is turned on.
    pub fast_restores: BTreeMap<String, FastRestore>,
    /// Its storage tier, if it was archived at least once.
    pub tiering: Option<Tiering>,
}

/// How a snapshot that is filled by a client was started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filled {
    /// The snapshot with whose content it begins.
    pub parent: Option<SnapshotId>,
    /// Minutes without a unit after which it goes into error.
    pub timeout_min: u32,
    /// Client token and fingerprint of the request.
    pub token: Option<(String, String)>,
}

impl Snapshot {
    /// Returns its state, as the EC2 API names it.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match self.phase {
            SnapshotPhase::Pending | SnapshotPhase::Filling | SnapshotPhase::Copying { .. } => {
                "pending"
            }
            SnapshotPhase::Completed { .. } | SnapshotPhase::Binned { .. } => "completed",
            SnapshotPhase::Error(_) | SnapshotPhase::Deleting { .. } => "error",
        }
    }

    /// Returns its progress in percent.
    #[must_use]
    pub const fn percent(&self) -> u32 {
        match self.phase {
            SnapshotPhase::Completed { .. } | SnapshotPhase::Binned { .. } => 100,
            _ => 0,
        }
    }

    /// Returns whether it is shown to clients.
    #[must_use]
    pub const fn is_shown(&self) -> bool {
        self.for_volume.is_none()
            && !matches!(self.phase, SnapshotPhase::Deleting { .. } | SnapshotPhase::Binned { .. })
    }

    /// Returns whether it is being made, filled or copied.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        self.phase.is_pending()
    }

    /// Returns whether the data plane must still be called for it.
    #[must_use]
    pub const fn is_unsettled(&self) -> bool {
        matches!(self.phase, SnapshotPhase::Pending | SnapshotPhase::Deleting { .. })
    }

    /// Returns its part of the sold bytes: all its data, even if it shares most of it with its
    /// volume and with other snapshots. Before it is completed the data is unknown, except of a
    /// copy.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        match self.phase {
            SnapshotPhase::Completed { data, .. }
            | SnapshotPhase::Copying { data }
            | SnapshotPhase::Deleting { data }
            | SnapshotPhase::Binned { data, .. } => data.0,
            SnapshotPhase::Pending | SnapshotPhase::Filling | SnapshotPhase::Error(_) => 0,
        }
    }
}

/// A snapshot to make of one moment with others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotOfSet {
    /// Its id.
    pub id: SnapshotId,
    /// The volume.
    pub volume: VolumeId,
    /// Its initial tags.
    pub tags: Tags,
}

/// The parameters of a snapshot to make.
pub(super) struct NewSnapshot<'a> {
    pub id: SnapshotId,
    pub volume: VolumeId,
    pub description: &'a str,
    pub tags: &'a Tags,
}

/// The parameters of a snapshot to fill.
pub(super) struct NewFilled<'a> {
    pub id: SnapshotId,
    pub size_gib: u32,
    pub filled: &'a Filled,
    pub is_encrypted: Option<bool>,
    pub description: &'a str,
    pub tags: &'a Tags,
}

impl Model {
    /// Returns the snapshot, or the refusal that it does not exist.
    ///
    /// # Errors
    /// [`Refusal::SnapshotsNotFound`].
    pub fn snapshot(&self, id: SnapshotId) -> Result<&Snapshot, Refusal> {
        let found = self.snapshots.get(&id).filter(|snapshot| snapshot.is_shown());
        found.ok_or_else(|| Refusal::SnapshotsNotFound(vec![id]))
    }

    /// Checks that all these snapshots exist.
    ///
    /// # Errors
    /// [`Refusal::SnapshotsNotFound`] with those that do not.
    pub fn check_snapshots(&self, ids: &[SnapshotId]) -> Result<(), Refusal> {
        let absent: Vec<_> = ids.iter().copied().filter(|id| self.snapshot(*id).is_err()).collect();
        if absent.is_empty() { Ok(()) } else { Err(Refusal::SnapshotsNotFound(absent)) }
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
        let max = quota::EC2.pending_snapshots(volume.spec.volume_type);
        if self.index.pending_snapshots_of(of) >= max {
            return Err(Refusal::TooManyPending(of));
        }
        self.add_snapshot(Snapshot {
            description: description.into(),
            tags: tags.clone(),
            is_encrypted: volume.is_encrypted,
            ..Snapshot::new(id, of, volume.spec.size_gib, now)
        })
    }

    /// Decides on new snapshots of volumes that this host has attached.
    pub(super) fn create_snapshots(
        &self,
        instance: InstanceId,
        set: &[SnapshotOfSet],
        description: &str,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        self.host(instance)?;
        self.check_room_for_snapshots(set.len())?;
        let mut events = Vec::new();
        let mut ids = Vec::new();
        for SnapshotOfSet { id, volume, tags } in set {
            // It may have been detached since the request arrived.
            let attached = &self.volume(*volume)?.attachments;
            if !attached.iter().any(|attachment| attachment.instance == instance) {
                return Err(Refusal::NotAttachedTo(*volume, instance));
            }
            let new = NewSnapshot { id: *id, volume: *volume, description, tags };
            events.extend(self.create_snapshot(&new, now)?.events);
            ids.push((*volume, *id));
        }
        Ok(Decision { events, calls: Calls::Set(ids) })
    }

    /// Checks that there is room for `more` snapshots.
    pub(super) fn check_room_for_snapshots(&self, more: usize) -> Result<(), Refusal> {
        match self.snapshots.len() + more {
            ..=SNAPSHOTS_MAX => Ok(()),
            _ => Err(Refusal::TooManySnapshots),
        }
    }

    /// Decides on a new snapshot, if there is room for one more.
    pub(super) fn add_snapshot(&self, snapshot: Snapshot) -> Result<Decision, Refusal> {
        self.check_room_for_snapshots(1)?;
        if self.snapshots.contains_key(&snapshot.id) {
            return Err(Refusal::IdTaken(snapshot.id.to_string()));
        }
        Ok(Decision::changing_snapshot(snapshot))
    }

    /// Returns the snapshot that was started with a client token.
    #[must_use]
    pub fn started_with(&self, token: &str) -> Option<&Snapshot> {
        let id = self.index.filled_with(token)?;
        self.snapshot(id).ok()
    }

    pub(super) fn start_snapshot(
        &self,
        settings: &Settings,
        new: &NewFilled<'_>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let &NewFilled { id, size_gib, filled, is_encrypted, description, tags } = new;
        if let Some((name, fingerprint)) = &filled.token
            && let Some(Snapshot { id, filled: Some(known), .. }) = self.started_with(name)
        {
            let is_same = known.token.as_ref().is_some_and(|(_, known)| known == fingerprint);
            return if is_same {
                Ok(Decision { calls: Calls::Snapshot(*id), ..Decision::default() })
            } else {
                Err(Refusal::TokenReused(name.clone()))
            };
        }
        let is_encrypted = match filled.parent {
            Some(parent) => {
                self.check_snapshot_for_volume(parent, size_gib, now)?;
                // It shares the blocks of its parent, and therefore their key.
                self.snapshot(parent)?.is_encrypted
            }
            None => self.encryption(settings, false, is_encrypted)?,
        };
        if tags.len() > TAGS_MAX {
            return Err(Refusal::TooManyTags(id.to_string()));
        }
        if self.filling().count() >= FILLING_MAX {
            return Err(Refusal::TooManyFilling);
        }
        self.add_snapshot(Snapshot {
            description: description.into(),
            phase: SnapshotPhase::Filling,
            tags: tags.clone(),
            filled: Some(filled.clone()),
            is_encrypted,
            ..Snapshot::new(id, NO_VOLUME, size_gib, now)
        })
    }

    /// Returns the snapshots that are being filled, by id.
    pub fn filling(&self) -> impl Iterator<Item = &Snapshot> {
        let pending = self.index.pending_of(NO_VOLUME).filter_map(|id| self.snapshots.get(&id));
        pending.filter(|snapshot| snapshot.phase == SnapshotPhase::Filling)
    }

    pub(super) fn delete_snapshot(
        &self,
        settings: &Settings,
        id: SnapshotId,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let snapshot = self.snapshot(id)?;
        if let Some(state) = snapshot.locked(now) {
            return Err(Refusal::SnapshotLocked(id, state));
        }
        self.check_not_copied(id)?;
        let mut snapshot = snapshot.clone();
        snapshot.phase = match (&snapshot.phase, settings.binned_until(now)) {
            (&SnapshotPhase::Completed { data, ended }, Some(until)) => {
                SnapshotPhase::Binned { data, ended, entered: now, until }
            }
            _ => SnapshotPhase::Deleting { data: ByteCount(snapshot.taken()) },
        };
        // Its client token may be used again, even if the snapshot is restored.
        if let Some(filled) = &mut snapshot.filled {
            filled.token = None;
        }
        Ok(Decision::changing_snapshot(snapshot))
    }

    pub(super) fn share(
        &self,
        id: SnapshotId,
        add: &BTreeSet<String>,
        remove: &Option<BTreeSet<String>>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let mut snapshot = self.snapshot(id)?.clone();
        if !add.is_empty() {
            snapshot.check_not_archived(now)?;
        }
        let access = self.account.public_access;
        if access != PublicAccess::Unblocked && add.contains(EVERYONE) {
            return Err(Refusal::PublicAccessBlocked(id, access));
        }
        match remove {
            None => snapshot.shared_with.clear(),
            Some(gone) => snapshot.shared_with.retain(|account| !gone.contains(account)),
        }
        snapshot.shared_with.extend(add.iter().cloned());
        match snapshot.shared_with.len() {
            ..=SHARED_MAX => Ok(super::locks::changed(snapshot)),
            _ => Err(Refusal::TooManyShares(id)),
        }
    }

    /// Checks that a volume of this size can be made of a snapshot.
    ///
    /// # Errors
    /// [`Refusal::SnapshotsNotFound`], [`Refusal::SnapshotUnready`],
    /// [`Refusal::SnapshotArchived`], [`Refusal::BelowSnapshot`].
    pub(super) fn check_snapshot_for_volume(
        &self,
        id: SnapshotId,
        size_gib: u32,
        now: UnixMs,
    ) -> Result<(), Refusal> {
        let snapshot = self.snapshot(id)?;
        snapshot.check_usable(now)?;
        if size_gib < snapshot.size_gib {
            return Err(Refusal::BelowSnapshot { id, size_gib, least_gib: snapshot.size_gib });
        }
        Ok(())
    }

    /// Returns the events for `ids` after the store has listed all its snapshots. A snapshot
    /// becomes completed if it is complete in the store, and goes into error if the store does not
    /// have it. Snapshots that are being deleted stay so.
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
                (SnapshotPhase::Deleting { .. } | SnapshotPhase::Binned { .. }, _) => return None,
                // The copier decides whether the copy is complete.
                (SnapshotPhase::Copying { .. }, _) => return None,
                // Complete bytes are not enough: the client must complete the snapshot.
                (SnapshotPhase::Filling, Some(_)) => return None,
                (SnapshotPhase::Error(_), _) if snapshot.filled.is_some() => return None,
                (SnapshotPhase::Completed { .. }, Some(_)) => return None,
                (_, Some(found)) if found.is_complete => {
                    SnapshotPhase::Completed { data: found.data, ended: now }
                }
                (_, Some(_)) | (SnapshotPhase::Error(_), None) => return None,
                (SnapshotPhase::Pending | SnapshotPhase::Filling, None) => {
                    SnapshotPhase::Error(NOT_STORED.into())
                }
                (SnapshotPhase::Completed { .. }, None) => SnapshotPhase::Error(LOST.into()),
            };
            Some(Event::Snapshot(Snapshot { phase, ..snapshot.clone() }))
        };
        ids.into_iter().filter_map(settled).collect()
    }

    /// Returns snapshots for which the data plane must still be called, by id.
    pub fn unsettled_snapshots(&self) -> impl Iterator<Item = SnapshotId> {
        self.index.unsettled_snapshots().iter().copied()
    }
}
