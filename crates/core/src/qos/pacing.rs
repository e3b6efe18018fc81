//! The limits of one volume as the scheduler takes them: plain numbers, no volume types.

use crate::time::Duration;

/// A credit bucket: a balance that fills at a baseline rate up to a capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditLimit {
    /// Units earned (and sustained once the balance is gone) per second.
    pub refill_per_second: u64,
    /// The largest balance, in units. A new volume starts with it.
    pub capacity: u64,
}

/// One limited dimension: the rate that is never exceeded, and for types that burst, the credits
/// that pay for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Maximum units per second: the provisioned rate, or the burst rate of a type with credits.
    pub per_second: u64,
    /// Present on burstable types only.
    pub credit: Option<CreditLimit>,
}

impl Limit {
    /// Returns the units per second that it allows without end: without its credits.
    #[must_use]
    pub fn sustained_per_second(&self) -> u64 {
        self.credit.map_or(self.per_second, |credit| credit.refill_per_second)
    }
}

/// How requests are counted (one "I/O" of the bill).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountingRule {
    /// The largest counted I/O in bytes: 256 KiB on SSD types, 1 MiB on HDD types. Larger requests
    /// are split.
    pub unit_bytes: u32,
    /// Sequential requests of at least this many bytes share one unit; smaller ones count one each.
    pub merge_bytes_min: u32,
    /// HDD types: the byte limit is charged whole units, so a small random request costs
    /// `unit_bytes`.
    pub charge_whole_units: bool,
}

/// The limits of one volume for the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pacing {
    /// How requests are counted.
    pub counting: CountingRule,
    /// Time's worth of tokens that a pacer may save while the volume is idle; it also hides timer
    /// lateness.
    pub tolerance: Duration,
    /// Limit in counted I/Os; `None` is unlimited.
    pub operations: Option<Limit>,
    /// Limit in bytes; `None` is unlimited.
    pub bytes: Option<Limit>,
}

impl CountingRule {
    /// The counting rule of SSD types (gp2, gp3, io1, io2).
    pub const SSD: Self =
        Self { unit_bytes: 256 << 10, merge_bytes_min: 32 << 10, charge_whole_units: false };
}

impl Pacing {
    /// No limit at all: for benchmarks of the data path.
    pub const UNLIMITED: Self = Self {
        counting: CountingRule::SSD,
        tolerance: Duration::from_ms(50),
        operations: None,
        bytes: None,
    };
}

/// The present credit balances of a volume, in units; `None` if the type has no such credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Balances {
    /// I/O credits (gp2).
    pub operations: Option<u64>,
    /// Byte credits (st1, sc1).
    pub bytes: Option<u64>,
}

impl Balances {
    /// Returns the balances of a volume that has rested long enough: each bucket at its capacity.
    #[must_use]
    pub fn full(pacing: &Pacing) -> Self {
        let capacity = |limit: Option<Limit>| limit?.credit.map(|credit| credit.capacity);
        Self { operations: capacity(pacing.operations), bytes: capacity(pacing.bytes) }
    }

    /// Returns the balances of a volume that has saved nothing: 0 in each dimension with credits.
    #[must_use]
    pub fn empty(pacing: &Pacing) -> Self {
        let none = |limit: Option<Limit>| limit?.credit.map(|_| 0);
        Self { operations: none(pacing.operations), bytes: none(pacing.bytes) }
    }
}
