//! A continuous backlog in bins of a tenth of a second, so that its seconds can be judged: one
//! begins with every bin.

use evenkeel_core::convert::exact;
use std::array;

use super::super::event::Dispatched;
use super::super::state::Seen;
use super::super::system::DIMENSIONS;
use super::super::token_level::UNIT;
use super::super::volumes::{Limited, VolumeModel};

/// Length of a bin in nanoseconds.
pub(super) const BIN_NS: u64 = 100_000_000;
/// Number of bins in a second.
pub(super) const SECOND_BINS: usize = 10;

/// Maximum number of bins of one silence that are judged.
const SKIP_BINS: u64 = 100;

/// The counts of a tenth of a second.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    used: [u64; DIMENSIONS],
    cost_ns: u64,
    /// The levels at its start.
    levels: [Option<Limited>; DIMENSIONS],
    held_up_ns: u64,
    by_instance_ns: u64,
}

/// One backlog of one volume.
#[derive(Clone, Debug)]
pub(super) struct Backlog {
    bins: [Bin; SECOND_BINS],
    open: Bin,
    /// Time at which the open bin ends.
    end: u64,
    /// Number of complete bins.
    pub(super) closed: u64,
    /// Whether it began with an idle volume; otherwise it began with a modification.
    pub(super) from_idle: bool,
    /// Largest charge so far.
    pub(super) largest: [u64; DIMENSIONS],
    pub(super) largest_cost_ns: u64,
    /// Time since which each limit is the one that holds the volume: the tokens that it had saved
    /// are spent.
    pub(super) bound_since: [Option<u64>; DIMENSIONS],
    /// Time at which the volume was last held up with an excuse.
    pub(super) excused_at: Option<u64>,
    past_instance_ns: u64,
    unexcused_ns: u64,
}

/// The counts of one second of a backlog.
#[derive(Clone, Debug)]
pub(super) struct Second {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) used: [u64; DIMENSIONS],
    pub(super) cost_ns: u64,
    pub(super) levels: [Option<Limited>; DIMENSIONS],
    pub(super) held_up_ns: u64,
    pub(super) by_instance_ns: u64,
    /// Time that the limits need for the served units: the maximum over the limits in each bin,
    /// summed up.
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

    /// Advances the time to now. Calls `judge` for every second that has ended.
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
                // The skipped bins of a long silence equal those that were judged.
                let skipped = (now - self.end) / BIN_NS;
                self.end += skipped * BIN_NS;
                self.closed += skipped;
            }
            // The time in which it was held up is at the end of the span.
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
        // The levels at the edge of the bin follow from the present ones.
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

/// The times for which a volume was held up between two of its events.
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
    /// Adds `part_ns` of the waiting time, and the instance's share of it.
    fn wait(&mut self, part_ns: u64, waited: &Waited) {
        self.held_up_ns += part_ns;
        let share = u128::from(part_ns) * u128::from(waited.by_instance_ns);
        let share_ns = share / u128::from(waited.all_ns.max(1));
        self.by_instance_ns += exact::<_, u64>(share_ns, "a share is at most the whole");
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

/// Updates the times since which each limit is the one that holds a volume, after a dispatch after
/// which `bound` holds it. A limit saves tokens while another one holds the volume. If none holds
/// it, the server is late, and nothing changes.
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
