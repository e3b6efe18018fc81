//! All limits of one volume: lets a request pass all of them or returns the time of the next
//! attempt, and accounts the time for which the volume was throttled.

use super::cost::Cost;
use super::pacer::{Pacer, Tolerance};
use super::pacing::{Limit, Pacing};
use super::phase::Phase;
use super::reserves::{Dimension, Reserves, is_burstable};
use crate::time::{Duration, Instant};

/// Nanoseconds for which the first request of a queue was delayed, by the limit that delayed it
/// longest. They sum to the time for which the volume was delayed, exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exceeded {
    /// Delayed by the limit in I/Os.
    pub operations_ns: u64,
    /// Delayed by the limit in bytes.
    pub bytes_ns: u64,
    /// Delayed by the guard.
    pub guard_ns: u64,
    /// Past the volume's limits, delayed by its instance's limit in I/Os, or by the turns of the
    /// instance's other volumes while that limit was exhausted.
    pub instance_operations_ns: u64,
    /// Past the volume's limits, delayed likewise by its instance's limits in bytes.
    pub instance_bytes_ns: u64,
    /// Past all limits, delayed by its device: the server's part.
    pub device_ns: u64,
}

/// Nanoseconds for which a volume's limits had saved the maximum, so that further tokens were lost.
/// Without any limit no token flows, and none is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forfeited {
    /// No request waited: the tenant had no demand.
    pub idle_ns: u64,
    /// A request waited for its instance's limits.
    pub instance_ns: u64,
    /// A request waited for its device, or the server was late with it.
    pub late_ns: u64,
}

/// The limits that each request touches, and the account of throttled time. All limits are checked
/// before any is charged, so nothing is ever undone.
///
/// A burstable dimension has two limits, the pacer of its peak rate here and the credits in
/// [`Reserves`], and both must be ready. The reserves are kept apart because most requests never
/// touch them: of a volume that is not burstable they stay out of the processor's cache.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Limiter {
    operations: Pacer,
    bytes: Pacer,
    settled_at: Instant,
    /// Meaningful while `throttled_by` is present.
    shut_since: Instant,
    /// The end of time if only a change of the limits will open it.
    throttled_until: Instant,
    operations_charged: u64,
    operations_exceeded_ns: u64,
    bytes_exceeded_ns: u64,
    late_ns: u64,
    forfeited: Forfeited,
    tolerance: Tolerance,
    throttled_by: Option<Dimension>,
    burstable: bool,
}

/// Later than every deadline: closed until the limits change.
const NEVER: Instant = Instant::from_ns(u64::MAX);

impl Limiter {
    /// Creates the limiter of a new volume, its pacers full.
    pub fn new(now: Instant, pacing: &Pacing) -> Self {
        let tolerance = Tolerance::new(pacing.tolerance);
        let pacer = |limit: Option<Limit>| Pacer::full(limit.map(|l| l.per_second), tolerance);
        Self {
            operations: pacer(pacing.operations),
            bytes: pacer(pacing.bytes),
            settled_at: now,
            shut_since: now,
            throttled_until: now,
            operations_charged: 0,
            operations_exceeded_ns: 0,
            bytes_exceeded_ns: 0,
            late_ns: 0,
            forfeited: Forfeited::default(),
            tolerance,
            throttled_by: None,
            burstable: is_burstable(pacing),
        }
    }

    /// Settles the pacers at `now`, which must not be before an earlier one. Does not decide anew:
    /// the account of a limiter that throttles stays open.
    pub fn settle(&mut self, now: Instant) {
        let elapsed = now.since(self.settled_at);
        let full = self.settle_by(elapsed, now);
        // A limiter that throttles is examined again when its limits are ready, not when they are
        // full.
        match self.throttled_by {
            None => self.forfeited.idle_ns += full.ns,
            Some(_) => self.forfeited.late_ns += full.ns,
        }
    }

    /// Settles the pacers without counting lost tokens, which saves the divisions.
    pub fn settle_levels(&mut self, now: Instant) {
        let inflow = now.since(self.settled_at);
        if inflow > Duration::ZERO {
            self.settled_at = now;
            let _ = self.operations.settle(inflow, self.tolerance);
            let _ = self.bytes.settle(inflow, self.tolerance);
        }
    }

    /// Settles after a time in which requests of the volume waited for their instance.
    pub fn settle_held(&mut self, now: Instant) {
        self.forfeited.instance_ns += self.settle_by(now.since(self.settled_at), now).ns;
    }

    /// Settles after a time in which requests of the volume waited, but not for its limits, and so
    /// tokens beyond the depth were lost without the tenant's fault. Returns how long the limit
    /// that was exhausted first had been full, and how much of the `owed` time of earlier losses
    /// was paid back meanwhile: a quarter of the time that passed.
    pub fn settle_backlogged(&mut self, now: Instant, owed: Duration) -> (Duration, Duration) {
        let elapsed = now.since(self.settled_at);
        let paid = Duration::from_ns(owed.ns.min(elapsed.ns / 4));
        let full = self.settle_by(elapsed + paid, now);
        self.forfeited.late_ns += full.ns;
        (full, paid)
    }

    /// Adds the inflow of `inflow`. Returns how long all limits were full.
    #[inline]
    fn settle_by(&mut self, inflow: Duration, now: Instant) -> Duration {
        if inflow == Duration::ZERO {
            return inflow; // several requests at the same time are usual
        }
        self.settled_at = now;
        let operations = self.operations.settle(inflow, self.tolerance);
        let bytes = self.bytes.settle(inflow, self.tolerance);
        if self.is_limited() { operations.min(bytes) } else { Duration::ZERO }
    }

    const fn is_limited(&self) -> bool {
        self.operations.rate_per_second().is_some() || self.bytes.rate_per_second().is_some()
    }

    /// Charges `cost` if each limit that it touches is ready as of the last settling. Returns
    /// whether it did.
    #[must_use]
    pub fn admit(&mut self, reserves: &mut Reserves, cost: &Cost) -> bool {
        let allowed = self.allows(reserves, cost);
        if allowed {
            self.charge(reserves, cost);
        }
        allowed
    }

    /// Returns whether each limit that `cost` touches is ready as of the last settling.
    #[must_use]
    #[inline]
    pub fn allows(&self, reserves: &mut Reserves, cost: &Cost) -> bool {
        (cost.operations == 0 || self.operations.is_ready())
            && (cost.bytes == 0 || self.bytes.is_ready())
            && (!self.touches_reserves(cost) || reserves.allow(self.settled_at, *cost))
    }

    /// Returns whether `cost` touches the reserves, as few costs do.
    #[inline]
    const fn touches_reserves(&self, cost: &Cost) -> bool {
        self.burstable || cost.guard > 0
    }

    /// Charges `cost`, which [`Limiter::allows`] has let pass as of the last settling.
    #[inline]
    pub fn charge(&mut self, reserves: &mut Reserves, cost: &Cost) {
        debug_assert!(cost.operations == 0 || self.operations.is_ready(), "{cost:?} in debt");
        debug_assert!(cost.bytes == 0 || self.bytes.is_ready(), "{cost:?} in debt");
        if self.touches_reserves(cost) {
            reserves.charge(*cost);
        }
        let operations = u64::from(cost.operations);
        self.operations.charge(operations);
        self.bytes.charge(cost.bytes);
        self.operations_charged += operations;
    }

    /// Records that a request of `cost` is delayed from the last settling on. Returns when the last
    /// of its limits is ready; `None` if only a change of the limits can make it so.
    pub fn throttle(&mut self, reserves: &mut Reserves, cost: &Cost) -> Option<Instant> {
        let now = self.settled_at;
        let mut until = now;
        let mut by = Dimension::Operations;
        // Ties go to the first: a request that both limits delay is reported under I/Os.
        let mut hold = |wait: Option<Duration>, dimension| {
            let ready_at = wait.map_or(NEVER, |wait| now + wait);
            if ready_at > until {
                (until, by) = (ready_at, dimension);
            }
        };
        if cost.operations > 0 {
            hold(self.operations.wait(), Dimension::Operations);
        }
        if cost.bytes > 0 {
            hold(self.bytes.wait(), Dimension::Bytes);
        }
        if self.touches_reserves(cost) {
            reserves.settle(now);
            for (wait, dimension) in reserves.waits(cost) {
                hold(wait, dimension);
            }
        }
        self.shut_since = now;
        self.throttled_until = until;
        self.throttled_by = Some(by);
        Some(until).filter(|until| *until < NEVER)
    }

    /// Settles, and closes the account of a limiter that throttles: time until the limits were
    /// ready is the tenant's, later time is the server's. The caller then decides anew whether the
    /// next request may pass.
    pub fn reopen(&mut self, reserves: &mut Reserves, now: Instant) {
        self.settle(now);
        self.close_account(reserves, now);
    }

    /// Closes the account of a settled limiter that throttles; see [`Limiter::reopen`].
    pub fn close_account(&mut self, reserves: &mut Reserves, now: Instant) {
        debug_assert!(self.settled_at == now, "settled at {:?}, {now:?}", self.settled_at);
        if let Some(by) = self.throttled_by.take() {
            let end = now.min(self.throttled_until);
            let exceeded_ns = end.since(self.shut_since).ns;
            match by {
                Dimension::Operations => self.operations_exceeded_ns += exceeded_ns,
                Dimension::Bytes => self.bytes_exceeded_ns += exceeded_ns,
                Dimension::Guard => reserves.guard_exceeded_ns += exceeded_ns,
            }
            self.late_ns += now.since(end).ns;
        }
    }

    /// Returns the account up to `now`, including the present wait.
    pub fn exceeded(&self, reserves: &Reserves, now: Instant) -> Exceeded {
        let mut exceeded = Exceeded {
            operations_ns: self.operations_exceeded_ns,
            bytes_ns: self.bytes_exceeded_ns,
            guard_ns: reserves.guard_exceeded_ns,
            ..Exceeded::default()
        };
        if let Some(by) = self.throttled_by {
            let exceeded_ns = match by {
                Dimension::Operations => &mut exceeded.operations_ns,
                Dimension::Bytes => &mut exceeded.bytes_ns,
                Dimension::Guard => &mut exceeded.guard_ns,
            };
            *exceeded_ns += now.min(self.throttled_until).since(self.shut_since).ns;
        }
        exceeded
    }

    /// Returns the nanoseconds up to `now` for which requests waited although their limits were
    /// ready: the server's own lateness.
    pub fn late_ns(&self, now: Instant) -> u64 {
        let present =
            if self.throttled_by.is_some() { now.since(self.throttled_until).ns } else { 0 };
        self.late_ns + present
    }

    /// Returns the time in which tokens were lost, as of the last settling.
    pub const fn forfeited(&self) -> Forfeited {
        self.forfeited
    }

    /// Returns how long ago the limits were ready for the first request, if it still waits.
    pub fn late_now(&self, now: Instant) -> Duration {
        match self.throttled_by {
            Some(_) => now.since(self.throttled_until),
            None => Duration::ZERO,
        }
    }

    /// Returns the time that a quantum takes of the limit of which it takes most; see
    /// [`Cost::share_ns`].
    pub fn share_ns(&self, cost: &Cost) -> u64 {
        cost.share_ns(self.operations.rate_per_second(), self.bytes.rate_per_second())
    }

    /// Returns whether only a change of the limits lets the first request pass.
    pub fn is_closed(&self) -> bool {
        self.throttled_by.is_some() && self.throttled_until == NEVER
    }

    /// Returns whether a limit in bytes delays the first request.
    pub fn throttled_by_bytes(&self) -> bool {
        self.throttled_by == Some(Dimension::Bytes)
    }

    /// Records that a limit in bytes kept elsewhere delays the first request, until `until`.
    pub fn throttle_for_bytes(&mut self, until: Instant) {
        self.throttled_until = until;
        self.throttled_by = Some(Dimension::Bytes);
    }

    /// Writes the state that determines its future.
    pub fn tell(&self, phase: &mut Phase) {
        // The time since an open limiter was last examined makes no difference. Tokens that one
        // that throttles has lost meanwhile may be caught up.
        let elapsed = match self.throttled_by {
            None => phase.at().since(self.settled_at),
            Some(_) => Duration::ZERO,
        };
        self.operations.tell(elapsed, self.tolerance, phase);
        self.bytes.tell(elapsed, self.tolerance, phase);
        phase.words([u64::from(self.throttled_by.is_some())]);
        if self.throttled_by.is_some() {
            phase.time(self.settled_at);
            phase.time(self.throttled_until);
        }
    }

    /// Returns whether the volume has credits, in its [`Reserves`].
    pub const fn is_burstable(&self) -> bool {
        self.burstable
    }

    /// Returns the number of counted I/Os admitted.
    pub const fn operations_charged(&self) -> u64 {
        self.operations_charged
    }

    /// Applies other limits from the last settling on. Nothing is refilled: saved tokens and
    /// balances are clamped down, debt is kept (see [`super::bucket::Bucket::set_rate`]), and a new
    /// limit starts with nothing saved.
    pub fn set_limits(&mut self, reserves: &mut Reserves, pacing: &Pacing) {
        reserves.settle(self.settled_at);
        self.tolerance = Tolerance::new(pacing.tolerance);
        self.operations.set_rate(pacing.operations.map(|l| l.per_second), self.tolerance);
        self.bytes.set_rate(pacing.bytes.map(|l| l.per_second), self.tolerance);
        reserves.set_limits(pacing);
        self.burstable = is_burstable(pacing);
    }
}

#[cfg(test)]
mod tests {
    use super::super::pacing::{Balances, CountingRule, CreditLimit};
    use super::super::reserves::guard_rate;
    use super::*;

    const OPERATION: Cost = Cost { operations: 1, bytes: 4_096, guard: 0 };
    const FLUSH: Cost = Cost { operations: 0, bytes: 0, guard: 1 };

    fn limit(per_second: u64) -> Option<Limit> {
        Some(Limit { per_second, credit: None })
    }

    fn pacing(operations: Option<Limit>, bytes: Option<Limit>) -> Pacing {
        let tolerance = Duration::from_ms(50);
        Pacing { counting: CountingRule::SSD, tolerance, operations, bytes }
    }

    fn limiter(pacing: &Pacing) -> (Limiter, Reserves) {
        let reserves = Reserves::new(Instant::ZERO, pacing, Balances::default());
        (Limiter::new(Instant::ZERO, pacing), reserves)
    }

    #[test]
    fn the_slowest_limit_decides_and_is_charged_with_the_wait() {
        let (mut limiter, mut reserves) = limiter(&pacing(limit(1_000), limit(4_096)));
        assert!(limiter.admit(&mut reserves, &OPERATION));
        assert!(!limiter.admit(&mut reserves, &OPERATION));
        // 50 ms of 4,096 B/s were saved (204.8), so 3,891.2 bytes are owed.
        let until = limiter.throttle(&mut reserves, &OPERATION);
        assert_eq!(until, Some(Instant::from_ns(950_000_000)));
        let now = Instant::from_ns(950_000_100);
        limiter.reopen(&mut reserves, now);
        assert_eq!(limiter.exceeded(&reserves, now).bytes_ns, 950_000_000);
        assert_eq!(limiter.late_ns(now), 100);
        assert!(limiter.admit(&mut reserves, &OPERATION));
    }

    #[test]
    fn a_refused_request_is_charged_nothing() {
        let (mut limiter, mut reserves) = limiter(&pacing(limit(1), limit(1_000_000)));
        assert!(limiter.admit(&mut reserves, &OPERATION));
        let before = limiter.bytes;
        assert!(!limiter.admit(&mut reserves, &OPERATION));
        assert_eq!(limiter.bytes, before);
    }

    #[test]
    fn a_flush_passes_while_the_io_limit_is_exhausted_but_not_without_bound() {
        let (mut limiter, mut reserves) = limiter(&pacing(limit(100), None));
        while limiter.admit(&mut reserves, &OPERATION) {}
        let mut flushes = 0;
        while limiter.admit(&mut reserves, &FLUSH) {
            flushes += 1;
        }
        assert_eq!(flushes, 6); // 50 ms of 100 a second, and one
        assert_eq!(limiter.throttle(&mut reserves, &FLUSH), Some(Instant::from_ns(10_000_000)));
    }

    #[test]
    fn a_volume_limited_in_bytes_only_is_guarded_too() {
        assert_eq!(guard_rate(&pacing(None, limit(1 << 20))), Some(4));
        assert_eq!(guard_rate(&pacing(limit(100), limit(1 << 20))), Some(100));
        assert_eq!(guard_rate(&Pacing::UNLIMITED), None);
    }

    #[test]
    fn a_tie_is_reported_under_ios() {
        let (mut limiter, mut reserves) = limiter(&pacing(limit(1), limit(4_096)));
        assert!(limiter.admit(&mut reserves, &OPERATION));
        let until = limiter.throttle(&mut reserves, &OPERATION);
        assert_eq!(until, Some(Instant::from_ns(950_000_000)));
        let exceeded = limiter.exceeded(&reserves, Instant::from_ns(u64::MAX));
        assert_eq!((exceeded.operations_ns, exceeded.bytes_ns), (950_000_000, 0));
    }

    #[test]
    fn a_pacer_that_comes_into_being_is_empty() {
        for limits in [pacing(limit(1_000), None), pacing(None, limit(1 << 30))] {
            let (mut limiter, mut reserves) = limiter(&Pacing::UNLIMITED);
            limiter.set_limits(&mut reserves, &limits);
            assert!(limiter.admit(&mut reserves, &OPERATION));
            assert!(!limiter.admit(&mut reserves, &OPERATION));
        }
    }

    #[test]
    fn limits_that_come_into_being_bring_no_gift() {
        let (mut limiter, mut reserves) = limiter(&Pacing::UNLIMITED);
        let credit = Some(CreditLimit { refill_per_second: 100, capacity: 5_400_000 });
        let burstable = Some(Limit { per_second: 3_000, credit });
        limiter.set_limits(&mut reserves, &pacing(burstable, limit(1 << 20)));
        assert_eq!(reserves.balances().operations, Some(0));
        assert!(limiter.admit(&mut reserves, &OPERATION));
        assert!(!limiter.admit(&mut reserves, &OPERATION));
        limiter.set_limits(&mut reserves, &Pacing::UNLIMITED);
        assert!(limiter.admit(&mut reserves, &OPERATION));
        assert_eq!(reserves.balances(), Balances::default());
    }

    #[test]
    fn forfeited_time_is_counted_by_cause() {
        let (mut limiter, mut reserves) = limiter(&pacing(limit(1_000), limit(100 << 20)));
        // Both limits are full from the start: a second without requests is a second lost.
        limiter.settle(Instant::from_ns(1_000_000_000));
        assert_eq!(limiter.forfeited().idle_ns, 1_000_000_000);
        while limiter.admit(&mut reserves, &OPERATION) {}
        let ready_at = limiter.throttle(&mut reserves, &OPERATION).unwrap();
        // 50 ms late loses nothing, because it is saved; of 80 ms, 30 are lost.
        let mut waiting = limiter.clone();
        waiting.reopen(&mut reserves, ready_at + Duration::from_ms(50));
        assert_eq!(waiting.forfeited().late_ns, 0);
        let mut waiting = limiter.clone();
        waiting.reopen(&mut reserves, ready_at + Duration::from_ms(80));
        let lost = Forfeited { idle_ns: 1_000_000_000, instance_ns: 0, late_ns: 30_000_000 };
        assert_eq!(waiting.forfeited(), lost);
        // The same loss while the volume waits for its instance counts for the instance.
        limiter.settle_held(ready_at + Duration::from_ms(80));
        let lost = Forfeited { idle_ns: 1_000_000_000, instance_ns: 30_000_000, late_ns: 0 };
        assert_eq!(limiter.forfeited(), lost);
    }

    #[test]
    fn limiter_without_limits_forfeits_nothing() {
        let (mut limiter, _) = limiter(&Pacing::UNLIMITED);
        limiter.settle(Instant::from_ns(1_000_000_000));
        assert_eq!(limiter.forfeited(), Forfeited::default());
    }
}
