//! Books for bytes at rest, beside those for what a device can do: how much of the disk is sold,
//! and whether one more volume fits.
//!
//! A volume takes its whole size from the moment it is created, written to or not: who has a volume
//! of 100 GiB may fill it. The sum is kept up to date with every event, so what a decision costs
//! does not depend on how many volumes there are.

use std::fmt;
use std::str::FromStr;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::{MalformedOversell, Oversell, PPM};
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_wire::agent::Space;

use super::{Event, Model, Refusal, Settings, Volume};

/// How many times over the space of the store is sold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceOversell {
    /// So many times; once unless the operator says otherwise.
    Times(Oversell),
    /// Without a bound: nothing is refused for want of space.
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
    /// How many bytes may be sold where there is room for `total`; `None` is any number.
    #[must_use]
    pub fn for_sale(self, total: ByteCount) -> Option<ByteCount> {
        let Self::Times(times) = self else { return None };
        let bytes = u128::from(total.0) * u128::from(times.ppm()) / u128::from(PPM);
        Some(ByteCount(u64::try_from(bytes).unwrap_or(u64::MAX)))
    }
}

/// Room for bytes at rest, as the data plane saw it last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// How much there is, and how much of it is free.
    pub space: Space,
    /// Bytes that no volume has, by the volume they were of. They take what is for sale as a volume
    /// of their size does, until they are deleted, or adopted.
    pub unowned: Vec<(VolumeId, ByteCount)>,
}

/// Why a volume is not sold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceShort {
    /// The volume as asked for.
    pub asked: VolumeSpec,
    /// Bytes it would take beside what it has already.
    pub needed: ByteCount,
    /// Bytes that are left for sale.
    pub left: ByteCount,
    /// Bytes there is room for in all.
    pub total: ByteCount,
    /// How many times over that is sold.
    pub oversell: SpaceOversell,
}

/// Bytes that a volume takes: while it is modified, what the larger of before and after does.
pub(super) fn taken(volume: &Volume) -> u64 {
    let before = volume.modification.as_ref().filter(|_| volume.is_being_modified());
    let before = before.map_or(0, |modification| modification.original.size_gib);
    ByteCount::from_gib(volume.spec.size_gib.max(before)).0
}

impl Model {
    /// Bytes that are sold, by the volumes there are.
    #[must_use]
    pub fn bytes_sold(&self) -> ByteCount {
        ByteCount(u64::try_from(self.index.bytes_sold()).unwrap_or(u64::MAX))
    }

    /// Bytes that are taken of what is for sale: by the volumes there are, and by bytes that no
    /// volume has.
    #[must_use]
    pub fn taken_of(&self, room: &Room) -> ByteCount {
        let unowned = room.unowned.iter().filter(|(id, _)| !self.volumes.contains_key(id));
        let unowned = unowned.map(|(_, bytes)| bytes.0).fold(0, u64::saturating_add);
        ByteCount(self.bytes_sold().0.saturating_add(unowned))
    }

    /// Whether there is room for what `events` make of a volume. Who takes no more than before is
    /// never refused.
    ///
    /// # Errors
    /// [`Refusal::Space`].
    pub fn admit_bytes(
        &self,
        settings: &Settings,
        room: Option<Room>,
        events: &[Event],
    ) -> Result<(), Refusal> {
        let Some(mut room) = room else { return Ok(()) };
        let total = room.space.total;
        let Some(for_sale) = settings.space_oversell.for_sale(total) else { return Ok(()) };
        for event in events {
            let Event::Volume(after) = event else { continue };
            let before = self.volumes.get(&after.id).map_or(0, taken);
            let needed = taken(after).saturating_sub(before);
            if needed == 0 {
                continue;
            }
            // What it takes over, it takes already.
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
