//! Origins of new volumes, and copies of volumes and snapshots.
//!
//! A copy of a volume begins as a snapshot that is made only for it. So does an encrypted volume
//! whose snapshot or source is not encrypted: the bytes are first copied into a snapshot. Such a
//! snapshot is never shown, and it is deleted as soon as the volume is complete or has failed.

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::quota;
use evenkeel_core::units::ByteCount;

use super::snapshots::SnapshotPhase;
use super::{
    Decision, Event, Model, NO_VOLUME, Phase, Refusal, Settings, Snapshot, TAGS_MAX, Tags, UnixMs,
    Volume,
};

/// Maximum number of copies of volumes in progress.
const VOLUME_COPIES_MAX: usize = quota::EC2.volume_copies;
/// Maximum number of copies of snapshots in progress.
const SNAPSHOT_COPIES_MAX: usize = quota::EC2.snapshot_copies;

/// Origin of a new volume, and whether it is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begins {
    /// The snapshot with which it begins. Without it and a source it begins empty.
    pub snapshot: Option<SnapshotId>,
    /// The volume of which it is a copy.
    pub source: Option<VolumeId>,
    /// Whether encryption was requested; `None` leaves it to its origin and the account.
    pub is_encrypted: Option<bool>,
    /// The rate at which it is fetched from the snapshot, in MiB per second, if one was named. It
    /// takes no credit of fast restore then.
    pub initialization_mibps: Option<u32>,
    /// Ids for snapshots that are made only for it.
    pub spares: [SnapshotId; 2],
}

impl Default for Begins {
    fn default() -> Self {
        let spares = [SnapshotId::from_bits(0); 2];
        let initialization_mibps = None;
        Self { snapshot: None, source: None, is_encrypted: None, initialization_mibps, spares }
    }
}

/// A snapshot to make as a copy.
pub(super) struct NewCopy<'a> {
    pub id: SnapshotId,
    pub of: SnapshotId,
    pub is_encrypted: Option<bool>,
    pub description: &'a str,
    pub tags: &'a Tags,
}

/// How a new volume begins.
pub(super) struct Beginning {
    pub is_adopted: bool,
    pub is_encrypted: bool,
    pub is_fast_restored: bool,
    pub through: Option<SnapshotId>,
    /// Creations of snapshots for it, and the snapshot from which a credit is taken.
    pub events: Vec<Event>,
}

impl Model {
    /// Checks the origin of the new volume `id` of `new_gib` GiB in a zone, and decides which
    /// snapshots are made for it.
    pub(super) fn beginning(
        &self,
        settings: &Settings,
        id: VolumeId,
        new_gib: u32,
        zone: &str,
        begins: &Begins,
        now: UnixMs,
    ) -> Result<Beginning, Refusal> {
        let Begins { snapshot, source, is_encrypted, initialization_mibps, spares } = *begins;
        let mut beginning = Beginning {
            is_adopted: false,
            is_encrypted: false,
            is_fast_restored: false,
            through: None,
            events: vec![],
        };
        let origin = match (snapshot, source) {
            (Some(snapshot), _) => {
                self.check_snapshot_for_volume(snapshot, new_gib, now)?;
                let snapshot = self.snapshot(snapshot)?;
                if initialization_mibps.is_none()
                    && let Some(less) = snapshot.less_a_credit(zone, now)
                {
                    beginning.is_fast_restored = true;
                    beginning.events.push(Event::Snapshot(less));
                }
                Some((snapshot.is_encrypted, snapshot.size_gib))
            }
            (None, Some(of)) => {
                let of = self.check_source(of, new_gib, now)?;
                Some((of.is_encrypted, of.spec.size_gib))
            }
            (None, None) => None,
        };
        let (was_encrypted, size_gib) = origin.unwrap_or((false, new_gib));
        beginning.is_encrypted = self.encryption(settings, was_encrypted, is_encrypted)?;
        let Some(is_same) = origin.map(|_| was_encrypted == beginning.is_encrypted) else {
            return Ok(beginning);
        };
        let [first, second] = spares;
        let own = |own_id, volume, copy_of, is_encrypted| Snapshot {
            copy_of,
            for_volume: Some(id),
            is_encrypted,
            phase: match copy_of {
                Some(of) => SnapshotPhase::Copying { data: self.data_of(of, size_gib) },
                None => SnapshotPhase::Pending,
            },
            ..Snapshot::new(own_id, volume, size_gib, now)
        };
        let mut made = Vec::new();
        if let Some(volume) = source {
            made.push(own(first, volume, None, was_encrypted));
        }
        if !is_same {
            let of = snapshot.unwrap_or(first);
            self.check_copies(true)?;
            made.push(own(second, NO_VOLUME, Some(of), true));
        }
        if let Some(last) = made.last() {
            beginning.through = Some(last.id);
            self.check_room_for_snapshots(made.len())?;
            if let Some(taken) = made.iter().find(|own| self.snapshots.contains_key(&own.id)) {
                return Err(Refusal::IdTaken(taken.id.to_string()));
            }
        }
        beginning.events.extend(made.into_iter().map(Event::Snapshot));
        Ok(beginning)
    }

    /// Checks that a copy of a volume can be made.
    fn check_source(&self, id: VolumeId, size_gib: u32, now: UnixMs) -> Result<&Volume, Refusal> {
        let source = self.volume(id)?;
        if source.phase != Phase::Ready {
            return Err(Refusal::NotForSnapshot(id, source.state()));
        }
        if let Some(modification) = &source.modification {
            let (state, ..) = modification.progress(now);
            if state == "modifying" {
                return Err(Refusal::ModificationUnfinished(id, state));
            }
        }
        if size_gib < source.spec.size_gib {
            let least_gib = source.spec.size_gib;
            return Err(Refusal::BelowSource { id, size_gib, least_gib });
        }
        if let Some(copy) = self.index.copies_of(id).next() {
            return Err(Refusal::BeingCopied { id, copy });
        }
        if self.index.volume_copies() >= VOLUME_COPIES_MAX {
            return Err(Refusal::TooManyVolumeCopies(VOLUME_COPIES_MAX));
        }
        Ok(source)
    }

    pub(super) fn copy_snapshot(
        &self,
        settings: &Settings,
        new: &NewCopy<'_>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let &NewCopy { id, of, is_encrypted, description, tags } = new;
        let source = self.snapshot(of)?;
        source.check_usable(now)?;
        if tags.len() > TAGS_MAX {
            return Err(Refusal::TooManyTags(id.to_string()));
        }
        self.check_copies(false)?;
        let is_encrypted = self.encryption(settings, source.is_encrypted, is_encrypted)?;
        self.add_snapshot(Snapshot {
            description: description.into(),
            phase: SnapshotPhase::Copying { data: ByteCount(source.taken()) },
            tags: tags.clone(),
            copy_of: Some(of),
            is_encrypted,
            ..Snapshot::new(id, NO_VOLUME, source.size_gib, now)
        })
    }

    /// Checks that one more snapshot may be copied, for a client or for a volume.
    fn check_copies(&self, is_own: bool) -> Result<(), Refusal> {
        let alike = self.copying().filter(|copy| copy.for_volume.is_some() == is_own).count();
        match alike {
            ..SNAPSHOT_COPIES_MAX => Ok(()),
            _ => Err(Refusal::TooManySnapshotCopies(SNAPSHOT_COPIES_MAX)),
        }
    }

    /// Returns the bytes of data in a snapshot. If it does not exist, returns its size.
    fn data_of(&self, id: SnapshotId, size_gib: u32) -> ByteCount {
        let known = self.snapshots.get(&id).map(|snapshot| ByteCount(snapshot.taken()));
        known.unwrap_or(ByteCount::from_gib(size_gib))
    }

    /// Returns the snapshots that are being copied, by id.
    pub fn copying(&self) -> impl Iterator<Item = &Snapshot> {
        self.index.copying().iter().filter_map(|id| self.snapshots.get(id))
    }

    /// Returns the snapshots that were made only for a volume, by id.
    pub fn made_for(&self, volume: VolumeId) -> impl Iterator<Item = &Snapshot> {
        self.index.made_for(volume).filter_map(|id| self.snapshots.get(&id))
    }

    /// Returns the events that delete the snapshots that were made only for a volume.
    pub(super) fn without_own(&self, volume: VolumeId) -> Vec<Event> {
        let deleting = |own: &Snapshot| {
            let phase = SnapshotPhase::Deleting { data: ByteCount(own.taken()) };
            Event::Snapshot(Snapshot { phase, ..own.clone() })
        };
        let left = self.made_for(volume);
        left.filter(|own| !matches!(own.phase, SnapshotPhase::Deleting { .. }))
            .map(deleting)
            .collect()
    }

    /// Checks that a snapshot is not being copied.
    pub(super) fn check_not_copied(&self, id: SnapshotId) -> Result<(), Refusal> {
        match self.copying().find(|copy| copy.copy_of == Some(id)) {
            Some(copy) => {
                let own = copy.for_volume.map(|volume| volume.to_string());
                let copy = own.unwrap_or_else(|| copy.id.to_string());
                Err(Refusal::SnapshotBeingCopied { id, copy })
            }
            None => Ok(()),
        }
    }
}

impl Snapshot {
    /// Creates a pending snapshot without any properties.
    #[must_use]
    pub fn new(id: SnapshotId, volume: VolumeId, size_gib: u32, now: UnixMs) -> Self {
        Self {
            id,
            volume,
            size_gib,
            description: String::new(),
            started: now,
            phase: SnapshotPhase::Pending,
            tags: Tags::new(),
            filled: None,
            copy_of: None,
            for_volume: None,
            is_encrypted: false,
            lock: None,
            shared_with: std::collections::BTreeSet::new(),
            fast_restores: std::collections::BTreeMap::new(),
            tiering: None,
        }
    }
}
