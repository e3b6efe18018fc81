//! Accounting of space for stored bytes: how much of the disk is sold, and whether one more volume
//! fits.
//!
//! A volume counts with its whole size from its creation, written to or not, because the client may
//! fill it. A snapshot counts with all its data when it is completed, because its volume may
//! overwrite everything that they share. The sum is updated with every event, so the cost of a
//! decision does not depend on the number of volumes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use evenkeel_core::convert::saturating;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::qos::admission::{MalformedOversell, Oversell, PPM};
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_wire::agent::Space;

use super::{Event, Model, Refusal, Settings, Snapshot, SnapshotPhase, Volume};

/// How many times over the space of the store is sold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceOversell {
    /// This many times; once unless the operator sets it.
    Times(Oversell),
    /// Without a bound: no volume is refused for lack of space.
    Unlimited,
}

impl Default for SpaceOversell {
    fn default() -> Self {
        Self::Times(Oversell::NONE)
    }
}

impl fmt::Display for SpaceOversell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(times) => times.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

impl FromStr for SpaceOversell {
    type Err = MalformedOversell;

    fn from_str(text: &str) -> Result<Self, MalformedOversell> {
        match text {
            "unlimited" => Ok(Self::Unlimited),
            times => times.parse().map(Self::Times),
        }
    }
}

impl SpaceOversell {
    /// Returns the bytes that may be sold if the store holds `total` bytes; `None` means any
    /// number.
    #[must_use]
    pub fn for_sale(self, total: ByteCount) -> Option<ByteCount> {
        let Self::Times(times) = self else { return None };
        let bytes = u128::from(total.0) * u128::from(times.ppm()) / u128::from(PPM);
        Some(ByteCount(saturating(bytes)))
    }
}

/// The space for stored bytes, as the data plane reported it last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// The total space and the free part of it.
    pub space: Space,
    /// Stored bytes that belong to no volume, by the id of their former volume. They count like a
    /// volume of their size until they are deleted or adopted.
    pub unowned: Vec<(VolumeId, ByteCount)>,
    /// Data of stored snapshots that the database does not know, likewise.
    pub unowned_snapshots: Vec<(SnapshotId, ByteCount)>,
}

/// Space that pending snapshots may take. The data of a snapshot is unknown before it is completed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ToBeKept {
    /// Data of each volume of which a snapshot is requested, if the data plane knows it.
    pub of: BTreeMap<VolumeId, ByteCount>,
    /// Bytes that pending snapshots may take.
    pub pending: ByteCount,
}

/// A shortage of space for a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceShort {
    /// The volume as requested.
    pub asked: VolumeSpec,
    /// Bytes that it needs in addition to those it has already.
    pub needed: ByteCount,
    /// Bytes that may still be sold.
    pub left: ByteCount,
    /// The total space in bytes.
    pub total: ByteCount,
    /// How many times over the total is sold.
    pub oversell: SpaceOversell,
}

impl ToBeKept {
    /// Returns the bytes that a new snapshot may take.
    #[must_use]
    pub fn by(&self, new: &Snapshot) -> ByteCount {
        match new.phase {
            SnapshotPhase::Pending => self.of.get(&new.volume).copied().unwrap_or_default(),
            _ => ByteCount(new.taken()),
        }
    }
}

/// Returns the bytes that a volume takes; during a modification, the larger of before and after.
pub(super) fn taken(volume: &Volume) -> u64 {
    let before = volume.modification.as_ref().filter(|_| volume.is_being_modified());
    let before = before.map_or(0, |modification| modification.original.size_gib);
    ByteCount::from_gib(volume.spec.size_gib.max(before)).0
}

impl Model {
    /// Returns the bytes sold to the existing volumes and snapshots.
    #[must_use]
    pub fn bytes_sold(&self) -> ByteCount {
        ByteCount(saturating(self.index.bytes_sold()))
    }

    /// Returns the sold bytes that are in use: by the volumes and snapshots, and by stored bytes
    /// that belong to none.
    #[must_use]
    pub fn taken_of(&self, room: &Room) -> ByteCount {
        let unowned = room.unowned.iter().filter(|(id, _)| !self.volumes.contains_key(id));
        let unowned = unowned.map(|(_, bytes)| bytes.0).fold(0, u64::saturating_add);
        let unknown = |(id, _): &&(SnapshotId, ByteCount)| !self.snapshots.contains_key(id);
        let snapshots = room.unowned_snapshots.iter().filter(unknown);
        let unowned = snapshots.map(|(_, bytes)| bytes.0).fold(unowned, u64::saturating_add);
        ByteCount(self.bytes_sold().0.saturating_add(unowned))
    }

    /// Checks that there is space for the volume or the snapshots in `events`. A volume that needs
    /// no more than before is never refused. A snapshot takes the data that its volume has now, or
    /// the bytes that it is a copy of; if that is unknown, it is refused only if nothing is left.
    ///
    /// # Errors
    /// [`Refusal::Space`], [`Refusal::SpaceForSnapshot`].
    pub fn admit_bytes(
        &self,
        settings: &Settings,
        room: Option<Room>,
        kept: &ToBeKept,
        events: &[Event],
    ) -> Result<(), Refusal> {
        let Some(mut room) = room else { return Ok(()) };
        let total = room.space.total;
        let Some(for_sale) = settings.space_oversell.for_sale(total) else { return Ok(()) };
        let sold = ByteCount(self.taken_of(&room).0.saturating_add(kept.pending.0));
        let mut needed = 0_u64;
        for event in events {
            if let Event::Snapshot(new) = event
                && new.is_pending()
                && !self.snapshots.contains_key(&new.id)
            {
                needed = needed.saturating_add(kept.by(new).0.max(1));
                if sold.0.saturating_add(needed) > for_sale.0 {
                    let needed = ByteCount(needed);
                    return Err(Refusal::SpaceForSnapshot { for_sale, sold, needed });
                }
            }
            let Event::Volume(after) = event else { continue };
            let before = self.volumes.get(&after.id).map_or(0, taken);
            let needed = taken(after).saturating_sub(before);
            if needed == 0 {
                continue;
            }
            // Bytes that it adopts are counted already.
            room.unowned.retain(|(id, _)| *id != after.id);
            let left = for_sale.0.saturating_sub(self.taken_of(&room).0);
            if needed > left {
                return Err(Refusal::Space(Box::new(SpaceShort {
                    asked: after.spec,
                    needed: ByteCount(needed),
                    left: ByteCount(left),
                    total,
                    oversell: settings.space_oversell,
                })));
            }
        }
        Ok(())
    }
}
