//! One volume: its limits as exact levels, its requests, and for how long it was held up by whom.

use evenkeel_core::qos::pacing::Limit;

use super::event::{Completed, Dispatched};
use super::level::{Level, UNIT, worth};
use super::requests::{Request, Requests};
use super::system::VolumePromise;

/// One dimension of a volume's or an instance's promise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limited {
    pub(super) pacer: Level,
    pub(super) credit: Option<Level>,
}

/// Nanoseconds since the beginning in which the first of the queue was held up although the
/// volume's own limits let it pass, by whom else had a hand in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct HeldUp {
    /// By anybody.
    pub(super) all_ns: u64,
    /// While its instance would have let it pass too: what is to be made whole.
    pub(super) made_whole_ns: u64,
    /// While the device had room as well, and nobody stood still: there is no excuse.
    pub(super) unexcused_ns: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) promise: VolumePromise,
    /// I/Os, then bytes.
    pub(super) limits: [Option<Limited>; 2],
    pub(super) requests: Requests,
    pub(super) next_seq: u64,
    pub(super) settled_at: u64,
    pub(super) held_up: HeldUp,
    /// In the span that was settled last, all of it at its end.
    pub(super) last_held_up_ns: u64,
    /// When its queue was last empty; meaningless while it is.
    pub(super) backlogged_since: u64,
    pub(super) modifications: u64,
    /// Its instance's and the device's counters when it was settled last.
    open_ns: u64,
    room_ns: u64,
}

impl Volume {
    pub(super) fn new(now: u64, promise: &VolumePromise) -> Self {
        let [operations, bytes] = promise.limits();
        let tolerance_ns = promise.tolerance_ns;
        let balances = promise.balances;
        Self {
            promise: *promise,
            limits: [
                operations.map(|limit| Limited::new(limit, tolerance_ns, balances.operations)),
                bytes.map(|limit| Limited::new(limit, tolerance_ns, balances.bytes)),
            ],
            requests: Requests::default(),
            next_seq: 0,
            settled_at: now,
            held_up: HeldUp::default(),
            last_held_up_ns: 0,
            backlogged_since: now,
            modifications: 0,
            open_ns: 0,
            room_ns: 0,
        }
    }

    /// Notes the counters of others as of its beginning.
    pub(super) fn catch_up(&mut self, open_ns: u64, room_ns: u64) {
        (self.open_ns, self.room_ns) = (open_ns, room_ns);
    }

    pub(super) fn is_backlogged(&self) -> bool {
        self.requests.queued > 0
    }

    /// Lets time pass up to `now`. `open_ns` and `room_ns` are the present counters of its instance
    /// and of the device; `stalled_ns` of the time since the last settling nobody could do
    /// anything.
    pub(super) fn settle(
        &mut self,
        now: u64,
        open_ns: u64,
        room_ns: u64,
        stalled_ns: u64,
        made_whole_ns: u64,
    ) {
        let span_ns = now - self.settled_at;
        let open = open_ns.saturating_sub(self.open_ns);
        let room = room_ns.saturating_sub(self.room_ns);
        (self.settled_at, self.open_ns, self.room_ns) = (now, open_ns, room_ns);
        self.last_held_up_ns = 0;
        if span_ns == 0 {
            return;
        }
        let mut owed_ns = 0;
        if self.is_backlogged() {
            let ready_for = |limited: &Limited| limited.ready_for(span_ns);
            let ready = self.limits.iter().flatten().map(ready_for).min().unwrap_or(span_ns);
            owed_ns = ready.min(open);
            self.last_held_up_ns = ready;
            self.held_up.all_ns += ready;
            self.held_up.made_whole_ns += owed_ns;
            self.held_up.unexcused_ns += owed_ns.min(room).saturating_sub(stalled_ns);
        }
        for limited in self.limits.iter_mut().flatten() {
            limited.pass(span_ns, owed_ns, made_whole_ns, self.requests.queued > 0);
        }
    }

    pub(super) fn modify(&mut self, promise: &VolumePromise, debt_ns: u64) {
        for (limited, limit) in self.limits.iter_mut().zip(promise.limits()) {
            match (limited.as_mut(), limit) {
                (Some(limited), Some(limit)) => {
                    limited.change(limit, promise.tolerance_ns, debt_ns);
                }
                (None, Some(limit)) => *limited = Some(Limited::empty(limit, promise.tolerance_ns)),
                (_, None) => *limited = None,
            }
        }
        self.promise = *promise;
        self.modifications += 1;
    }

    pub(super) fn set_balances(&mut self, units: &[Option<u64>; 2]) {
        for (limited, units) in self.limits.iter_mut().zip(units) {
            let credit = limited.as_mut().and_then(|limited| limited.credit.as_mut());
            if let (Some(credit), Some(units)) = (credit, units) {
                credit.level = credit.depth.min(i128::from(*units) * UNIT);
            }
        }
    }

    pub(super) fn enqueue(&mut self, handle: u64, request: Request) {
        if !self.is_backlogged() {
            self.backlogged_since = self.settled_at;
        }
        self.next_seq += 1;
        self.requests.insert(handle, request);
    }

    pub(super) fn dispatch(&mut self, dispatched: &Dispatched) {
        for (limited, units) in self.limits.iter_mut().zip(dispatched.charge()) {
            if let Some(limited) = limited {
                limited.take(units);
            }
        }
        self.requests.dispatch(dispatched);
    }

    pub(super) fn cancel(&mut self, handle: u64) {
        self.requests.cancel(handle);
    }

    pub(super) fn complete(&mut self, completed: &Completed) {
        self.requests.complete(completed);
    }
}

impl Limited {
    pub(super) fn new(limit: Limit, tolerance_ns: u64, balance: Option<u64>) -> Self {
        let credit = limit.credit.map(|credit| {
            let balance = balance.unwrap_or(credit.capacity);
            Level::credit(credit.refill_per_second, credit.capacity, balance)
        });
        Self { pacer: Level::pacer(limit.per_second, tolerance_ns), credit }
    }

    /// A limit that a modification brings into being is no gift.
    fn empty(limit: Limit, tolerance_ns: u64) -> Self {
        let mut limited = Self::new(limit, tolerance_ns, Some(0));
        limited.pacer.level = 0;
        limited
    }

    fn change(&mut self, limit: Limit, tolerance_ns: u64, debt_ns: u64) {
        self.pacer.change(limit.per_second, worth(limit.per_second, tolerance_ns), debt_ns);
        match (self.credit.as_mut(), limit.credit) {
            (Some(level), Some(credit)) => {
                let depth = i128::from(credit.capacity) * UNIT;
                level.change(credit.refill_per_second, depth, debt_ns);
            }
            (None, Some(credit)) => {
                self.credit = Some(Level::credit(credit.refill_per_second, credit.capacity, 0));
            }
            (_, None) => self.credit = None,
        }
    }

    /// Of the coming `span_ns`, how many at its end it lets pass.
    pub(super) fn ready_for(&self, span_ns: u64) -> u64 {
        let of = |level: &Level| level.ready_for(level.raised(span_ns), span_ns);
        of(&self.pacer).min(self.credit.as_ref().map_or(span_ns, of))
    }

    /// Lets time pass. Of a volume that waits, `owed_ns` were our lateness: they are not forfeited,
    /// up to `made_whole_ns` in all.
    fn pass(&mut self, span_ns: u64, owed_ns: u64, made_whole_ns: u64, waits: bool) {
        let pacer = &mut self.pacer;
        let extra = if waits && (owed_ns > 0 || pacer.level > pacer.depth) {
            let owed = (pacer.level - pacer.depth).max(0) + worth(pacer.rate, owed_ns);
            owed.min(worth(pacer.rate, made_whole_ns))
        } else {
            0
        };
        pacer.pass(span_ns, extra);
        if let Some(credit) = &mut self.credit {
            credit.pass(span_ns, 0);
        }
    }

    pub(super) fn take(&mut self, units: u64) {
        self.pacer.take(units);
        if let Some(credit) = &mut self.credit {
            credit.take(units);
        }
    }

    /// The most that a backlogged owner can be served in `span_ns` from now on, in level units.
    pub(super) fn entitled(&self, span_ns: u64) -> i128 {
        let paced = self.pacer.level.min(0) + worth(self.pacer.rate, span_ns);
        let earned = |credit: &Level| credit.level + worth(credit.rate, span_ns);
        self.credit.as_ref().map_or(paced, |credit| paced.min(earned(credit)))
    }
}
