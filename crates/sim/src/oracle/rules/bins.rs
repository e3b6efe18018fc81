//! A continuous backlog cut into tenths of a second, so that every second of it can be judged, one
//! every tenth.

use std::array;

use super::super::event::Dispatched;
use super::super::state::Seen;
use super::super::system::DIMENSIONS;
use super::super::token_level::UNIT;
use super::super::volumes::{Limited, VolumeModel};

/// The length of a bin.
pub(super) const BIN_NS: u64 = 100_000_000;
/// Bins in a second.
pub(super) const SECOND_BINS: usize = 10;

/// Bins of one silence that are judged, at most.
const SKIP_BINS: u64 = 100;

/// A tenth of a second.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    used: [u64; DIMENSIONS],
    cost_ns: u64,
    /// The levels at its beginning.
    levels: [Option<Limited>; DIMENSIONS],
    held_up_ns: u64,
    by_instance_ns: u64,
}

/// One backlog of one volume.
#[derive(Clone, Debug)]
pub(super) struct Backlog {
    bins: [Bin; SECOND_BINS],
    open: Bin,
    /// When the open bin ends.
    end: u64,
    /// Bins that are over.
    pub(super) closed: u64,
    /// Whether it began with an idle volume, not with a modification in its middle.
    pub(super) from_idle: bool,
    /// The largest charge so far.
    pub(super) largest: [u64; DIMENSIONS],
    pub(super) largest_cost_ns: u64,
    /// Since when each limit has been what holds it: the tokens saved before are spent.
    pub(super) bound_since: [Option<u64>; DIMENSIONS],
    /// When somebody else last held it up who is not to blame.
    pub(super) excused_at: Option<u64>,
    past_instance_ns: u64,
    unexcused_ns: u64,
}

/// A second of a backlog.
#[derive(Clone, Debug)]
pub(super) struct Second {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) used: [u64; DIMENSIONS],
    pub(super) cost_ns: u64,
    pub(super) levels: [Option<Limited>; DIMENSIONS],
    pub(super) held_up_ns: u64,
    pub(super) by_instance_ns: u64,
    /// The time that what was served takes at its limits, whichever took longest in each bin.
    pub(super) busy_ns: u64,
}

impl Backlog {
    pub(super) fn new(volume: &VolumeModel, now: u64, from_idle: bool) -> Self {
        Self {
            bins: [Bin::default(); SECOND_BINS],
            open: Bin { levels: volume.limits, ..Bin::default() },
            end: now + BIN_NS,
            closed: 0,
            from_idle,
            largest: [0; DIMENSIONS],
            largest_cost_ns: 0,
            bound_since: [None; DIMENSIONS],
            excused_at: None,
            past_instance_ns: volume.held_up.past_instance_ns,
            unexcused_ns: volume.held_up.unexcused_ns,
        }
    }

    /// Lets time pass up to now; calls `judge` for every second that is over.
    pub(super) fn pass(
        &mut self,
        volume: &VolumeModel,
        seen: &Seen,
        mut judge: impl FnMut(&Self, &Second),
    ) {
        let now = seen.now;
        let held_up = volume.held_up;
        let past_instance = held_up.past_instance_ns - self.past_instance_ns;
        let unexcused = held_up.unexcused_ns - self.unexcused_ns;
        (self.past_instance_ns, self.unexcused_ns) =
            (held_up.past_instance_ns, held_up.unexcused_ns);
        let waited = Waited::new(volume.last_held_up_ns, past_instance);
        if waited.all_ns > unexcused {
            self.excused_at = Some(now);
        }
        let mut left_ns = waited.all_ns;
        let first = self.closed;
        while now >= self.end {
            if self.closed == first + SKIP_BINS {
                // A silence this long has been judged often enough; what is skipped is the same.
                let skipped = (now - self.end) / BIN_NS;
                self.end += skipped * BIN_NS;
                self.closed += skipped;
            }
            // What held it up lies at the end of the span.
            let after_ns = left_ns.min(now - self.end);
            self.open.wait(left_ns - after_ns, &waited);
            left_ns = after_ns;
            self.close(volume, now);
            if self.closed >= SECOND_BINS as u64 {
                judge(self, &self.second());
            }
        }
        self.open.wait(left_ns, &waited);
    }

    fn close(&mut self, volume: &VolumeModel, now: u64) {
        self.bins.rotate_left(1);
        self.bins[SECOND_BINS - 1] = self.open;
        // The levels are known as of now: what they were at the edge is worked out backwards.
        let back_ns = now - self.end;
        let back = |limited: Limited| {
            let mut limited = limited;
            limited.pacer.level = limited.pacer.before(back_ns);
            if let Some(credit) = &mut limited.credit {
                credit.level = credit.before(back_ns);
            }
            limited
        };
        self.open =
            Bin { levels: volume.limits.map(|limited| limited.map(back)), ..Bin::default() };
        self.end += BIN_NS;
        self.closed += 1;
    }

    fn second(&self) -> Second {
        let to = self.end - BIN_NS;
        let sum = |of: fn(&Bin) -> u64| self.bins.iter().map(of).sum();
        Second {
            from: to - SECOND_BINS as u64 * BIN_NS,
            to,
            used: array::from_fn(|dimension| self.bins.iter().map(|bin| bin.used[dimension]).sum()),
            cost_ns: sum(|bin| bin.cost_ns),
            levels: self.bins[0].levels,
            held_up_ns: sum(|bin| bin.held_up_ns),
            by_instance_ns: sum(|bin| bin.by_instance_ns),
            busy_ns: sum(Bin::busy_ns),
        }
    }

    pub(super) fn take(&mut self, dispatched: &Dispatched, volume: &VolumeModel, now: u64) {
        let units = dispatched.charge();
        bind(&mut self.bound_since, volume.bound_after(&units), now);
        for (dimension, units) in units.into_iter().enumerate() {
            self.open.used[dimension] += units;
            self.largest[dimension] = self.largest[dimension].max(units);
        }
        self.open.cost_ns += dispatched.device_cost_ns;
        self.largest_cost_ns = self.largest_cost_ns.max(dispatched.device_cost_ns);
    }
}

/// What held a volume up between two of its events.
struct Waited {
    all_ns: u64,
    by_instance_ns: u64,
}

impl Waited {
    const fn new(all_ns: u64, past_instance_ns: u64) -> Self {
        Self { all_ns, by_instance_ns: all_ns.saturating_sub(past_instance_ns) }
    }
}

impl Bin {
    /// Adds a part of what was waited, and of it the instance's share.
    fn wait(&mut self, part_ns: u64, waited: &Waited) {
        self.held_up_ns += part_ns;
        let share = u128::from(part_ns) * u128::from(waited.by_instance_ns);
        let share_ns = share / u128::from(waited.all_ns.max(1));
        self.by_instance_ns += u64::try_from(share_ns).unwrap_or(part_ns);
    }

    fn busy_ns(&self) -> u64 {
        let busy = |dimension: usize| {
            let limited = self.levels[dimension].as_ref()?;
            let mut paid = *limited;
            paid.pacer.level = 0;
            let entitled = paid.entitled(BIN_NS);
            if entitled <= 0 {
                return Some(BIN_NS);
            }
            let used = i128::from(self.used[dimension]) * UNIT;
            u64::try_from(used * i128::from(BIN_NS) / entitled).ok()
        };
        (0..self.used.len()).filter_map(busy).max().unwrap_or(0)
    }
}

/// Notes since when each limit has been the one that holds a volume, after a dispatch that left it
/// `bound` by one. While another holds it, a limit saves tokens; while none does, we are late.
pub(super) fn bind(since: &mut [Option<u64>; DIMENSIONS], bound: Option<usize>, now: u64) {
    let Some(bound) = bound else { return };
    for (dimension, since) in since.iter_mut().enumerate() {
        if dimension == bound {
            since.get_or_insert(now);
        } else {
            *since = None;
        }
    }
}
