//! One volume: its limits as exact levels, its requests, and the times for which it was held up.

use evenkeel_core::qos::pacing::Limit;

use super::device::Device;
use super::event::{Completed, Dispatched};
use super::requests::{Request, Requests};
use super::system::{DIMENSIONS, VolumePromise};
use super::token_level::{Level, UNIT, worth};

/// One dimension of a volume's or an instance's promise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limited {
    /// The minimum that the volume is promised: time that the server was late is forfeited beyond
    /// the depth. If the volume is ready by this level, it must be served.
    pub(super) pacer: Level,
    /// The maximum that it may get: time that the server was late is caught up with. If the volume
    /// is not ready by this level, it must not be served.
    pub(super) generous: Level,
    pub(super) credit: Option<Level>,
}

/// Nanoseconds so far in which the first request of the queue was held up although the volume's own
/// limits let it pass, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct HeldUp {
    /// All of it.
    pub(super) all_ns: u64,
    /// While its instance let it pass, too.
    pub(super) past_instance_ns: u64,
    /// While the device had room as well, and nothing paused: there is no excuse.
    pub(super) unexcused_ns: u64,
    /// As `unexcused_ns`, less the time in which its instance was only taking turns: the volume was
    /// passed over even for that.
    pub(super) passed_over_ns: u64,
    /// Time that is to be caught up with: as `past_instance_ns`, and all of the waiting time while
    /// the volume catches up.
    pub(super) catch_up_ns: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct VolumeModel {
    pub(super) promise: VolumePromise,
    /// The limits in I/Os, bytes and units of the guard.
    pub(super) limits: [Option<Limited>; DIMENSIONS],
    pub(super) requests: Requests,
    pub(super) next_seq: u64,
    pub(super) settled_at: u64,
    pub(super) held_up: HeldUp,
    /// The time held up in the last settled span, all of it at the span's end, in nanoseconds.
    pub(super) last_held_up_ns: u64,
    /// The continuous time held up until then, since the last dispatch, in nanoseconds.
    pub(super) unserved_ns: u64,
    /// Time at which its queue was last empty; meaningless while it is.
    pub(super) backlogged_since: u64,
    pub(super) modifications: u64,
    /// The counters of its instance at the last settling.
    others: Others,
}

/// Counters of a volume's instance, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Others {
    /// Time in which the instance let one more request pass.
    pub(super) open_ns: u64,
    /// Time in which it did so for longer than turns take.
    pub(super) idle_ns: u64,
    /// End of the last such stretch.
    pub(super) idle_until: u64,
}

impl VolumeModel {
    pub(super) fn new(now: u64, promise: &VolumePromise) -> Self {
        let [operations, bytes, guard] = promise.limits();
        let tolerance_ns = promise.tolerance_ns;
        let balances = promise.balances;
        Self {
            promise: *promise,
            limits: [
                operations.map(|limit| Limited::new(limit, tolerance_ns, balances.operations)),
                bytes.map(|limit| Limited::new(limit, tolerance_ns, balances.bytes)),
                guard.map(|limit| Limited::new(limit, tolerance_ns, None)),
            ],
            requests: Requests::default(),
            next_seq: 0,
            settled_at: now,
            held_up: HeldUp::default(),
            last_held_up_ns: 0,
            unserved_ns: 0,
            backlogged_since: now,
            modifications: 0,
            others: Others::default(),
        }
    }

    /// Sets the counters of the instance at the start.
    pub(super) fn catch_up(&mut self, others: Others) {
        self.others = others;
    }

    pub(super) fn is_backlogged(&self) -> bool {
        self.requests.queued > 0
    }

    /// Returns the limit that holds the volume longest after a charge of `units`; `None` if none
    /// does.
    pub(super) fn bound_after(&self, units: &[u64; DIMENSIONS]) -> Option<usize> {
        let wait = |dimension: usize| {
            let limited = self.limits[dimension].as_ref()?;
            let wait_ns = limited.wait_after(units[dimension]);
            (wait_ns > 0).then_some((wait_ns, dimension))
        };
        (0..DIMENSIONS).filter_map(wait).max().map(|(_, dimension)| dimension)
    }

    /// Advances the time to `now`. `others` are the present counters of its instance; `stalled_ns`
    /// is the time in stalls since the last settling.
    pub(super) fn settle(
        &mut self,
        now: u64,
        others: Others,
        device: &Device,
        stalled_ns: u64,
        catch_up_ns: u64,
    ) {
        let span_ns = now - self.settled_at;
        let open = others.open_ns.saturating_sub(self.others.open_ns);
        let idle = others.idle_ns.saturating_sub(self.others.idle_ns);
        (self.settled_at, self.others) = (now, others);
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
            self.unserved_ns = if ready == span_ns { self.unserved_ns + ready } else { ready };
            self.held_up.all_ns += ready;
            self.held_up.past_instance_ns += owed_ns;
            // The volume was ready at the end of the span. Earlier room of the device was of no use
            // to it.
            let room = device.room_ns(now - ready, now);
            self.held_up.unexcused_ns += owed_ns.min(room).saturating_sub(stalled_ns);
            // The volume was ready at the end of the span. What its instance did before does not
            // count.
            let idle = idle.min(others.idle_until.saturating_sub(now - ready)).min(ready);
            self.held_up.passed_over_ns += idle.min(room).saturating_sub(stalled_ns);
            if self.limits.iter().flatten().any(Limited::catches_up) {
                owed_ns = span_ns;
            }
            self.held_up.catch_up_ns += owed_ns;
        }
        for limited in self.limits.iter_mut().flatten() {
            limited.pass(span_ns, owed_ns, catch_up_ns);
            if self.requests.queued == 0 {
                limited.forfeit();
            }
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
            self.unserved_ns = 0;
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
        self.unserved_ns = 0;
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
        Self { credit, ..Self::plain(Level::pacer(limit.per_second, tolerance_ns)) }
    }

    /// Creates a limit without credits.
    pub(super) const fn plain(pacer: Level) -> Self {
        Self { pacer, generous: pacer, credit: None }
    }

    /// Creates a limit that a modification adds. It starts with nothing saved.
    fn empty(limit: Limit, tolerance_ns: u64) -> Self {
        let mut limited = Self::new(limit, tolerance_ns, Some(0));
        (limited.pacer.level, limited.generous.level) = (0, 0);
        limited
    }

    fn change(&mut self, limit: Limit, tolerance_ns: u64, debt_ns: u64) {
        let depth = worth(limit.per_second, tolerance_ns);
        self.pacer.change(limit.per_second, depth, debt_ns);
        self.generous.change(limit.per_second, depth, debt_ns);
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

    /// Returns the nanoseconds at the end of the coming `span_ns` in which it lets a request pass.
    pub(super) fn ready_for(&self, span_ns: u64) -> u64 {
        let of = |level: &Level| level.ready_for(level.raised(span_ns), span_ns);
        of(&self.pacer).min(self.credit.as_ref().map_or(span_ns, of))
    }

    /// Returns whether there is something left to catch up with.
    pub(super) fn catches_up(&self) -> bool {
        self.generous.level > self.pacer.level
    }

    /// Forfeits the catch-up of a volume without waiting requests.
    fn forfeit(&mut self) {
        self.generous.level = self.generous.level.min(self.generous.depth);
    }

    /// Advances the time. `owed_ns` of it are not forfeited, up to `catch_up_ns` in all.
    pub(super) fn pass(&mut self, span_ns: u64, owed_ns: u64, catch_up_ns: u64) {
        self.pacer.pass(span_ns, 0);
        let generous = &mut self.generous;
        let extra = (generous.level - generous.depth).max(0) + worth(generous.rate, owed_ns);
        generous.pass(span_ns, extra.min(worth(generous.rate, catch_up_ns)));
        if let Some(credit) = &mut self.credit {
            credit.pass(span_ns, 0);
        }
    }

    pub(super) fn take(&mut self, units: u64) {
        if units > 0 {
            // A dispatched request was ready, so it has caught up by at least this much.
            self.pacer.level = self.pacer.level.max(self.generous.level.min(0));
        }
        self.pacer.take(units);
        self.generous.take(units);
        if let Some(credit) = &mut self.credit {
            credit.take(units);
        }
    }

    /// Returns the time for which it lets no request pass after a charge of `units`, in
    /// nanoseconds.
    fn wait_after(&self, units: u64) -> u64 {
        let credit = self.credit.as_ref().map_or(0, |credit| credit.wait_after(units));
        self.pacer.wait_after(units).max(credit)
    }

    /// Returns whether the credits hold it longest after a charge of `units`.
    pub(super) fn on_refill_after(&self, units: u64) -> bool {
        let credit = self.credit.as_ref().map_or(0, |credit| credit.wait_after(units));
        credit > self.pacer.wait_after(units)
    }

    /// Returns the maximum charge in the coming `span_ns` before one more request, with everything
    /// saved by now, in level units. The last settling was `back_ns` ago.
    pub(super) fn most(&self, back_ns: u64, span_ns: u64) -> i128 {
        let of =
            |level: &Level| level.raised(back_ns).min(level.depth) + worth(level.rate, span_ns);
        let paced = of(&self.pacer);
        self.credit.as_ref().map_or(paced, |credit| paced.min(of(credit)))
    }

    /// Returns the maximum that a backlogged owner can be served in the coming `span_ns`, in level
    /// units.
    pub(super) fn entitled(&self, span_ns: u64) -> i128 {
        let paced = self.pacer.level.min(0) + worth(self.pacer.rate, span_ns);
        let earned = |credit: &Level| credit.level + worth(credit.rate, span_ns);
        self.credit.as_ref().map_or(paced, |credit| paced.min(earned(credit)))
    }
}
