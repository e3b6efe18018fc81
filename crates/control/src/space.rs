//! The space for stored bytes, as the data plane reports it, and its log lines.
//!
//! Low space is logged as a warning, and critically low space as an error, long before the disk is
//! full.

use std::collections::BTreeMap;

use evenkeel_core::ids::SnapshotId;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::Space;
use tracing::{error, info, warn};

use crate::model::Room;

/// Free space below this part of the total, in percent, is low.
pub(crate) const LOW_PERCENT: u64 = 10;
/// Free space below this part of the total, in percent, is critical: writes are about to fail.
pub(crate) const CRITICAL_PERCENT: u64 = 3;

/// Level of free space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Level {
    /// A tenth of the total, or more.
    #[default]
    Enough,
    /// Less than a tenth of the total.
    Low,
    /// Less than 3 % of the total: writes to new places are about to fail.
    Critical,
}

impl Level {
    /// Returns its name in events.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Enough => "enough",
            Self::Low => "low",
            Self::Critical => "critical",
        }
    }
}

/// The last space reported, and the last level logged.
#[derive(Debug, Default)]
pub struct KnownSpace {
    now: Option<Room>,
    /// Bytes that were promised to pending snapshots.
    pub(crate) promised: BTreeMap<SnapshotId, ByteCount>,
    logged: Level,
    logged_sold_out: bool,
}

impl KnownSpace {
    /// Returns the space that the data plane reported last; `None` if it does not know.
    #[must_use]
    pub fn now(&self) -> Option<Room> {
        self.now.clone()
    }

    /// Takes in the reported space, with the bytes that are sold and those that may be.
    pub fn learn(&mut self, room: Option<Room>, sold: ByteCount, for_sale: Option<ByteCount>) {
        let space = room.as_ref().map(|room| room.space);
        self.now = room;
        let Some(Space { total, free }) = space else { return };
        let level = level(total, free);
        let before = self.logged;
        self.logged = level;
        let total_bytes = total.0;
        let free_bytes = free.0;
        match level {
            Level::Critical if before < level => error!(
                total_bytes,
                free_bytes,
                "the disk of the volumes is nearly full: writes to new places are about to fail; \
                 delete volumes, discard what they no longer need, or make room"
            ),
            Level::Low if before < level => warn!(
                total_bytes,
                free_bytes,
                "the disk of the volumes fills up; delete volumes, discard what they no longer \
                 need, or make room"
            ),
            Level::Enough if before > level => {
                info!(total_bytes, free_bytes, "the disk of the volumes has room again");
            }
            _ => {}
        }
        let sold_out = for_sale.is_some_and(|for_sale| sold > for_sale);
        if sold_out && !std::mem::replace(&mut self.logged_sold_out, sold_out) {
            warn!(
                sold_bytes = sold.0,
                total_bytes,
                "more space is sold than there is: volumes keep what they have, and none is \
                 admitted that takes more; make room, or serve with a larger --oversell-space"
            );
        }
        self.logged_sold_out = sold_out;
    }
}

/// Returns the level of free space, relative to the total.
#[must_use]
pub fn level(total: ByteCount, free: ByteCount) -> Level {
    let below = |percent: u64| u128::from(free.0) * 100 < u128::from(total.0) * u128::from(percent);
    match (below(CRITICAL_PERCENT), below(LOW_PERCENT)) {
        (true, _) => Level::Critical,
        (_, true) => Level::Low,
        _ => Level::Enough,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_judged_relative_to_the_total() {
        for (free, expected) in [
            (1_000, Level::Enough),
            (100, Level::Enough),
            (99, Level::Low),
            (30, Level::Low),
            (29, Level::Critical),
            (0, Level::Critical),
        ] {
            assert_eq!(level(ByteCount(1_000), ByteCount(free)), expected, "{free}");
        }
        assert_eq!(level(ByteCount(0), ByteCount(0)), Level::Enough);
    }
}
