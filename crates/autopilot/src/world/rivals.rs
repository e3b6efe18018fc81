//! Rules of other products for more space, as their documentation states them, in the same world.
//!
//! They never shrink. A change is one ModifyVolume; the file system grows as soon as it is in
//! force.

use evenkeel_core::convert::saturating;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::autopilot::operation::Call;

use super::load::{HOUR_MS, MINUTE_MS};
use super::space::Space;
use super::state::{UUID, World};

const GIB: u64 = 1 << 30;

/// A rule of another product.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rival {
    /// Free bytes below 10 %: 10 % more, at most every six hours (pvc-autoresizer).
    Free10,
    /// Used bytes above 80 % for five minutes: 50 % more, at most every 22,200 s (Volume
    /// Autoscaler).
    Used80,
    /// Free bytes at most 10 % for five minutes and six hours after the last change: the most of
    /// 10 GiB, 10 % and the growth of seven hours (RDS).
    Rds,
}

impl Rival {
    /// All rules, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Free10, Self::Used80, Self::Rds];

    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free10 => "free < 10 %: +10 %, 6 h",
            Self::Used80 => "> 80 %: +50 %",
            Self::Rds => "RDS rule",
        }
    }

    /// Returns the free bytes below which the rule grows.
    const fn wanted_free(self, size_bytes: u64) -> u64 {
        match self {
            Self::Free10 | Self::Rds => size_bytes / 10,
            Self::Used80 => size_bytes / 5,
        }
    }

    const fn patience_ms(self) -> u64 {
        match self {
            Self::Free10 => 0,
            Self::Used80 | Self::Rds => 5 * MINUTE_MS,
        }
    }

    const fn pause_ms(self) -> u64 {
        match self {
            Self::Free10 | Self::Rds => 6 * HOUR_MS,
            Self::Used80 => 22_200_000,
        }
    }

    fn more_bytes(self, size_bytes: u64, grown_in_hour: u64) -> u64 {
        match self {
            Self::Free10 => size_bytes / 10,
            Self::Used80 => size_bytes / 2,
            Self::Rds => (10 * GIB).max(size_bytes / 10).max(7 * grown_in_hour),
        }
    }
}

/// A product with its rule.
pub(super) struct Other {
    rule: Rival,
    /// Since when free bytes are below the rule's.
    below_since: Option<u64>,
    last_change: Option<u64>,
    /// A volume that grows.
    pending: Option<String>,
    /// The used bytes an hour ago, and when they were read.
    hour_ago: (u64, u64),
    pub(super) changes: u64,
}

impl Other {
    pub(super) fn new(rule: Rival, used: u64) -> Self {
        let hour_ago = (0, used);
        Self { rule, below_since: None, last_change: None, pending: None, hour_ago, changes: 0 }
    }

    /// Runs the rule in the world until its end, a reading every minute.
    pub(super) fn run(&mut self, world: &mut World) {
        let end = world.load.end_ms;
        while world.now_ms < end {
            self.tick(world);
            let minutes = self.quiet_minutes(world);
            world.advance((world.now_ms + minutes * MINUTE_MS).min(end));
        }
    }

    /// Returns the minutes until the next reading that can differ from this one.
    fn quiet_minutes(&self, world: &World) -> u64 {
        if self.pending.is_some() || self.below_since.is_some() || world.is_lacking {
            return 1;
        }
        let free = world.space.room();
        let wanted = self.rule.wanted_free(world.space.size_bytes());
        let rate = growth(world);
        let until_below = (free.saturating_sub(wanted) * 1_000).checked_div(rate);
        let until_below = until_below.unwrap_or(u64::MAX) / MINUTE_MS;
        let next = world.next_segment_ms().unwrap_or(world.load.end_ms);
        let until_segment = next.saturating_sub(world.now_ms) / MINUTE_MS;
        // An hour, because a rule reads the growth of an hour.
        until_below.min(until_segment).clamp(1, 60)
    }

    fn tick(&mut self, world: &mut World) {
        let now = world.now_ms;
        self.finish(world);
        let used = world.space.used();
        let grown = used.saturating_sub(self.hour_ago.1);
        if now >= self.hour_ago.0 + HOUR_MS {
            self.hour_ago = (now, used);
        }
        let size = world.space.size_bytes();
        if world.space.room() >= self.rule.wanted_free(size) {
            self.below_since = None;
            return;
        }
        let since = *self.below_since.get_or_insert(now);
        let is_patient = now >= since + self.rule.patience_ms();
        let is_rested = self.last_change.is_none_or(|last| now >= last + self.rule.pause_ms());
        if self.pending.is_some() || !is_patient || !is_rested {
            return;
        }
        self.grow(world, self.rule.more_bytes(size, grown));
    }

    fn grow(&mut self, world: &mut World, bytes: u64) {
        let volumes: Vec<String> = world.space.volumes().into_iter().map(str::to_owned).collect();
        for id in volumes {
            let Some(from) = world.spec(&id) else { continue };
            let gib: u32 = saturating(bytes.div_ceil(GIB));
            let size_gib = from.size_gib.saturating_add(gib).min(16_384);
            let to = VolumeSpec { size_gib, ..from };
            let call = Call::Modify { volume: id.clone(), to };
            if world.ec2.call(UUID, &call, world.unix_ms()).is_ok() {
                self.pending = Some(id);
                self.last_change = Some(world.now_ms);
                self.changes += 1;
                return;
            }
        }
    }

    fn finish(&mut self, world: &mut World) {
        let Some(id) = &self.pending else { return };
        let Some(volume) = world.ec2.volume(id) else { return };
        if volume.is_being_modified() {
            return;
        }
        let bytes = u64::from(volume.spec.size_gib) * GIB;
        match &mut world.space {
            Space::Btrfs(btrfs) => {
                if let Some(devid) = btrfs.of_volume(id).map(|device| device.devid) {
                    btrfs.rescan(devid, bytes);
                    btrfs.grow(devid);
                }
            }
            Space::Plain(plain) => {
                plain.device_bytes = bytes;
                plain.size_bytes = bytes;
            }
        }
        self.pending = None;
        self.below_since = None;
    }
}

/// Returns the bytes a second that are written now.
pub(super) fn growth(world: &World) -> u64 {
    let line = world.line_bytes_per_s();
    let net: u64 = saturating(world.segment.net_bytes_per_s);
    let net = net.min(line);
    if world.backlog > 0 { line + net } else { net }
}
