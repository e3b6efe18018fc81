//! The limits of a volume that only some volumes or requests touch: credits, and the guard.

use alloc::boxed::Box;

use super::cost::Cost;
use super::credit::Credit;
use super::pacer::{Pacer, Tolerance};
use super::pacing::{Balances, CreditLimit, Limit, Pacing};
use super::phase::Phase;
use crate::time::{Duration, Instant};

/// The kind of limit that delays a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Dimension {
    /// Counted I/Os per second, or I/O credits.
    Operations,
    /// Bytes per second, or byte credits.
    Bytes,
    /// The limit on requests that cost no byte (flush, discard, block status).
    Guard,
}

/// The limits that only some volumes or requests touch. They are settled when they are touched.
#[derive(Debug)]
pub(crate) struct Reserves {
    guard: Pacer,
    /// Elsewhere, because most volumes have none.
    credits: Option<Box<Credits>>,
    settled_at: Instant,
    /// Time for which the guard delayed a request.
    pub guard_exceeded_ns: u64,
    tolerance: Tolerance,
}

#[derive(Debug)]
struct Credits {
    operations: Option<Credit>,
    bytes: Option<Credit>,
}

impl Credits {
    const NONE: Self = Self { operations: None, bytes: None };

    fn are_ready(&self, cost: &Cost) -> bool {
        let ready = |credit: &Option<Credit>| credit.as_ref().is_none_or(Credit::is_ready);
        (cost.operations == 0 || ready(&self.operations)) && (cost.bytes == 0 || ready(&self.bytes))
    }
}

impl Reserves {
    /// Creates the reserves of a new volume: guard full, credits as given or full.
    pub fn new(now: Instant, pacing: &Pacing, balances: Balances) -> Self {
        let tolerance = Tolerance::new(pacing.tolerance);
        let full = |limit| credit_limit(limit).map(Credit::full);
        let credits = is_burstable(pacing).then(|| {
            Box::new(Credits { operations: full(pacing.operations), bytes: full(pacing.bytes) })
        });
        let mut reserves = Self {
            guard: Pacer::full(guard_rate(pacing), tolerance),
            credits,
            settled_at: now,
            guard_exceeded_ns: 0,
            tolerance,
        };
        reserves.set_balances(balances);
        reserves
    }

    /// Settles all of them at `now`.
    pub fn settle(&mut self, now: Instant) {
        let elapsed = now.since(self.settled_at);
        if elapsed == Duration::ZERO {
            return; // several requests at the same time are usual
        }
        self.settled_at = now;
        self.guard.settle(elapsed, self.tolerance);
        if let Some(Credits { operations, bytes }) = self.credits.as_deref_mut() {
            for credit in [operations, bytes].into_iter().flatten() {
                credit.settle(elapsed);
            }
        }
    }

    /// Returns how long each limit here that `cost` touches delays it from the last settling on;
    /// `None` is without end.
    pub fn waits(&self, cost: &Cost) -> impl Iterator<Item = (Option<Duration>, Dimension)> {
        let Credits { operations, bytes } = self.credits.as_deref().unwrap_or(&Credits::NONE);
        let credits = [
            operations.as_ref().filter(|_| cost.operations > 0),
            bytes.as_ref().filter(|_| cost.bytes > 0),
        ];
        let guard = (cost.guard > 0).then(|| (self.guard.wait(), Dimension::Guard));
        let credits = credits.into_iter().zip([Dimension::Operations, Dimension::Bytes]);
        credits.filter_map(|(credit, by)| Some((credit?.wait(), by))).chain(guard)
    }

    /// Applies other limits from the last settling on; see [`super::limiter::Limiter::set_limits`].
    pub fn set_limits(&mut self, pacing: &Pacing) {
        self.tolerance = Tolerance::new(pacing.tolerance);
        self.guard.set_rate(guard_rate(pacing), self.tolerance);
        if !is_burstable(pacing) {
            self.credits = None;
            return;
        }
        let credits = self.credits.get_or_insert_with(|| Box::new(Credits::NONE));
        set_credit_limit(&mut credits.operations, credit_limit(pacing.operations));
        set_credit_limit(&mut credits.bytes, credit_limit(pacing.bytes));
    }

    /// Reads the credits without any effect, to load them into the cache.
    pub fn warm_up(&self) -> bool {
        self.are_ready(&Cost { operations: 1, bytes: 1, guard: 0 })
    }

    /// Returns whether each limit here that `cost` touches is ready at `now`.
    #[inline(never)] // few requests come here, and the others need not carry it along
    pub fn allow(&mut self, now: Instant, cost: Cost) -> bool {
        self.settle(now);
        self.are_ready(&cost)
    }

    /// Returns whether each limit here that `cost` touches is ready as of the last settling.
    fn are_ready(&self, cost: &Cost) -> bool {
        self.credits.as_ref().is_none_or(|credits| credits.are_ready(cost))
            && (cost.guard == 0 || self.guard.is_ready())
    }

    /// Charges `cost`, which was allowed.
    #[inline(never)] // as above
    pub fn charge(&mut self, cost: Cost) {
        debug_assert!(self.are_ready(&cost), "{cost:?} may not go");
        self.guard.charge(cost.guard.into());
        let Some(Credits { operations, bytes }) = self.credits.as_deref_mut() else { return };
        if let Some(credit) = operations {
            credit.charge(cost.operations.into());
        }
        if let Some(credit) = bytes {
            credit.charge(cost.bytes);
        }
    }

    /// Writes the state that determines their future.
    pub fn tell(&self, phase: &mut Phase) {
        let elapsed = phase.at().since(self.settled_at);
        self.guard.tell(elapsed, self.tolerance, phase);
        for credit in self.credits() {
            let mut credit = *credit;
            credit.settle(elapsed);
            phase.credit(credit);
        }
    }

    /// Returns the credits as of the last settling.
    pub fn credits(&self) -> impl Iterator<Item = &Credit> {
        let Credits { operations, bytes } = self.credits.as_deref().unwrap_or(&Credits::NONE);
        operations.iter().chain(bytes)
    }

    /// Returns the credits, to be replaced.
    pub fn credits_mut(&mut self) -> impl Iterator<Item = &mut Credit> {
        let credits = self.credits.as_deref_mut().into_iter();
        credits.flat_map(|Credits { operations, bytes }| operations.iter_mut().chain(bytes))
    }

    /// Returns the balances as of the last settling.
    pub fn balances(&self) -> Balances {
        let Some(Credits { operations, bytes }) = self.credits.as_deref() else {
            return Balances::default();
        };
        Balances {
            operations: operations.as_ref().map(Credit::balance),
            bytes: bytes.as_ref().map(Credit::balance),
        }
    }

    /// Replaces the balances that are given, as of the last settling; ignores those that the volume
    /// does not have.
    pub fn set_balances(&mut self, balances: Balances) {
        let Some(Credits { operations, bytes }) = self.credits.as_deref_mut() else { return };
        for (credit, balance) in [(operations, balances.operations), (bytes, balances.bytes)] {
            if let (Some(credit), Some(balance)) = (credit, balance) {
                credit.set_balance(balance);
            }
        }
    }

    /// Leases all but `unleased` of the balances as of the last settling; a dimension that is
    /// `None` stays as it is. Returns the unleased parts of those that were given and exist.
    pub fn lease(&mut self, unleased: Balances) -> Balances {
        let Some(Credits { operations, bytes }) = self.credits.as_deref_mut() else {
            return Balances::default();
        };
        let lease = |credit: &mut Option<Credit>, unleased: Option<u64>| {
            Some(credit.as_mut()?.set_unleased(unleased?))
        };
        Balances {
            operations: lease(operations, unleased.operations),
            bytes: lease(bytes, unleased.bytes),
        }
    }
}

fn credit_limit(limit: Option<Limit>) -> Option<CreditLimit> {
    limit.and_then(|limit| limit.credit)
}

pub(super) fn is_burstable(pacing: &Pacing) -> bool {
    credit_limit(pacing.operations).is_some() || credit_limit(pacing.bytes).is_some()
}

/// Maximum rate of requests that cost no byte: that of the volume's I/Os, enough for any reasonable
/// client, and too few to overload the store. A volume with a limit in bytes only may send one per
/// counted unit; one without any limit has no guard either.
pub(super) fn guard_rate(pacing: &Pacing) -> Option<u64> {
    let unit = u64::from(pacing.counting.unit_bytes.max(1));
    let by_bytes = || pacing.bytes.map(|limit| limit.per_second.div_ceil(unit));
    pacing.operations.map(|limit| limit.per_second).or_else(by_bytes)
}

fn set_credit_limit(credit: &mut Option<Credit>, limit: Option<CreditLimit>) {
    match (credit.as_mut(), limit) {
        (Some(credit), Some(limit)) => credit.set_limit(limit),
        (None, Some(limit)) => *credit = Some(Credit::empty(limit)),
        (_, None) => *credit = None,
    }
}
