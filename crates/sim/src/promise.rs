//! The promise of a volume, and its limits for one workload.

use std::fmt;

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::{Balances, CountingRule, Limit, Pacing};

use crate::text;
use crate::workload::{Pattern, Workload};

/// A limited dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dimension {
    /// Counted I/Os.
    Operations,
    /// Bytes.
    Bytes,
}

/// A balance that pays for a burst. At the start of the load it is known between two bounds,
/// because some time passes between setting or reading it and the first I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditPlan {
    /// Units earned per second; the rate that remains when the balance is spent.
    pub refill_per_second: u64,
    /// Smallest possible balance at the start of the load.
    pub balance_min: u64,
    /// Largest possible balance at the start of the load.
    pub balance_max: u64,
}

/// One promised rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Units per second: the provisioned rate, or the burst rate of a type with credits.
    pub per_second: u64,
    /// The credits of a type that bursts.
    pub credit: Option<CreditPlan>,
}

/// The promise of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// Rate in counted I/Os; `None` promises no limit.
    pub operations: Option<Rate>,
    /// Rate in bytes; `None` promises no limit.
    pub bytes: Option<Rate>,
    /// Time's worth of tokens that an idle volume may save, in milliseconds.
    pub tolerance_ms: u32,
    /// The rule by which requests are counted.
    pub counting: CountingRule,
}

/// One dimension of a promise under one workload, in exact integers. The units are fractions of a
/// counted I/O or bytes, such that one request of the workload costs the whole number `cost`.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The limited dimension.
    pub dimension: Dimension,
    /// Maximum units per second.
    pub rate: u128,
    /// Units of one request of the workload.
    pub cost: u128,
    /// The credits, if the rate ends when they are spent.
    pub credit: Option<LoadCredit>,
    /// Time's worth of tokens that an idle volume may save, in milliseconds.
    pub tolerance_ms: u32,
    /// The promised rate, for printing.
    per_second: u64,
}

/// A credit plan in the units of its [`Load`].
#[derive(Clone, Copy, Debug)]
pub struct LoadCredit {
    /// Units earned per second.
    pub refill: u128,
    /// Smallest balance at the start of the load.
    pub balance_min: u128,
    /// Largest balance at the start of the load.
    pub balance_max: u128,
}

/// The workload cannot show whether the promise was kept; the text has the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unjudgeable(pub String);

impl fmt::Display for Unjudgeable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no verdict is possible: {}", self.0)
    }
}

impl std::error::Error for Unjudgeable {}

impl Promise {
    /// Returns the promise of a volume's pacing. `balances` are those at the start of the load; a
    /// missing balance is full.
    #[must_use]
    pub fn from_pacing(pacing: &Pacing, balances: Balances) -> Self {
        let rate = |limit: Limit, balance: Option<u64>| Rate {
            per_second: limit.per_second,
            credit: limit.credit.map(|credit| {
                let balance = balance.unwrap_or(credit.capacity).min(credit.capacity);
                CreditPlan {
                    refill_per_second: credit.refill_per_second,
                    balance_min: balance,
                    balance_max: balance,
                }
            }),
        };
        Self {
            operations: pacing.operations.map(|limit| rate(limit, balances.operations)),
            bytes: pacing.bytes.map(|limit| rate(limit, balances.bytes)),
            tolerance_ms: u32::try_from(pacing.tolerance.ns.div_ceil(1_000_000))
                .unwrap_or(u32::MAX),
            counting: pacing.counting,
        }
    }

    /// Returns a steady promise in I/Os, with the counting rule of SSD types and the default
    /// tolerance.
    #[must_use]
    pub fn iops(per_second: u64) -> Self {
        Self {
            operations: Some(Rate { per_second, credit: None }),
            bytes: None,
            tolerance_ms: 50,
            counting: CountingRule::SSD,
        }
    }

    /// Widens the bounds of the balances by the credits that may have been earned since they were
    /// known: in up to `delay_ms`.
    #[must_use]
    pub fn started_within(mut self, delay_ms: u64) -> Self {
        for rate in [&mut self.operations, &mut self.bytes].into_iter().flatten() {
            if let Some(credit) = &mut rate.credit {
                let earned = u128::from(credit.refill_per_second) * u128::from(delay_ms);
                let earned = saturating(earned.div_ceil(1_000));
                credit.balance_max = credit.balance_max.saturating_add(earned);
            }
        }
        self
    }

    /// Sets these balances. A missing one does not change.
    #[must_use]
    pub fn with_balances(mut self, balances: Balances) -> Self {
        let set = |rate: &mut Option<Rate>, balance: Option<u64>| {
            let credit = rate.as_mut().and_then(|rate| rate.credit.as_mut());
            if let (Some(credit), Some(balance)) = (credit, balance) {
                (credit.balance_min, credit.balance_max) = (balance, balance);
            }
        };
        set(&mut self.operations, balances.operations);
        set(&mut self.bytes, balances.bytes);
        self
    }

    /// Returns the limit that a workload reaches first; `None` if it reaches none, or now one and
    /// now another.
    #[must_use]
    pub fn binds(&self, workload: &Workload) -> Option<Dimension> {
        Some(self.loads(workload).ok()?.first()?.dimension)
    }

    /// Returns the requests per second that a workload can make while credits last, and without
    /// them; `None` without a limit.
    #[must_use]
    pub fn rates_of(&self, workload: &Workload) -> Option<(f64, f64)> {
        let loads = self.loads(workload).ok()?;
        let load = loads.first()?;
        Some((load.iops(load.rate), load.iops(load.sustained())))
    }

    /// Returns the limited dimensions for a workload. The one that it reaches first is the first.
    pub fn loads(&self, workload: &Workload) -> Result<Vec<Load>, Unjudgeable> {
        let mut loads = Vec::with_capacity(2);
        if let Some(rate) = &self.operations {
            let unit = u128::from(self.counting.unit_bytes.max(1));
            // Merged sequential requests share a counted I/O, so that one costs a fraction. The
            // units are such fractions.
            let (scale, cost) = if self.merges(workload) {
                (unit, u128::from(workload.block_bytes))
            } else {
                (1, u128::from(workload.block_bytes).div_ceil(unit))
            };
            loads.push(self.load(Dimension::Operations, rate, scale, cost)?);
        }
        if let Some(rate) = &self.bytes {
            loads.push(self.load(Dimension::Bytes, rate, 1, self.bytes_charged(workload))?);
        }
        if let [operations, bytes] = loads[..] {
            let bytes_bind = |rate: fn(&Load) -> u128| {
                rate(&bytes) * operations.cost < rate(&operations) * bytes.cost
            };
            let at_burst = bytes_bind(|load| load.rate);
            if at_burst != bytes_bind(Load::sustained) {
                return Err(Unjudgeable(format!(
                    "with blocks of {} one limit binds during the burst and the other after it; \
                     choose another block size",
                    text::bytes(u64::from(workload.block_bytes))
                )));
            }
            if at_burst {
                loads.reverse();
            }
        }
        Ok(loads)
    }

    /// Returns whether adjacent requests of this workload are counted together.
    fn merges(&self, workload: &Workload) -> bool {
        workload.pattern == Pattern::Sequential
            && workload.block_bytes >= self.counting.merge_bytes_min
            && workload.block_bytes < self.counting.unit_bytes
    }

    /// Returns the bytes that the byte limit is charged for one request.
    fn bytes_charged(&self, workload: &Workload) -> u128 {
        let block = u128::from(workload.block_bytes);
        if !self.counting.charge_whole_units || self.merges(workload) {
            return block;
        }
        let unit = u128::from(self.counting.unit_bytes.max(1));
        block.div_ceil(unit) * unit
    }

    fn load(
        &self,
        dimension: Dimension,
        rate: &Rate,
        scale: u128,
        cost: u128,
    ) -> Result<Load, Unjudgeable> {
        if rate.per_second == 0 {
            return Err(Unjudgeable(format!("the promised rate of {dimension} is zero")));
        }
        let units = |value: u64| u128::from(value) * scale;
        // If credits are refilled at the rate or faster, the balance never falls, and the rate is
        // steady.
        let credit = rate.credit.filter(|credit| credit.refill_per_second < rate.per_second);
        Ok(Load {
            dimension,
            rate: units(rate.per_second),
            cost: cost.max(1),
            credit: credit.map(|credit| LoadCredit {
                refill: units(credit.refill_per_second),
                balance_min: units(credit.balance_min),
                balance_max: units(credit.balance_max.max(credit.balance_min)),
            }),
            tolerance_ms: self.tolerance_ms,
            per_second: rate.per_second,
        })
    }
}

impl Load {
    /// Returns the rate that lasts: the refill rate of credits, or without credits the rate.
    pub fn sustained(&self) -> u128 {
        self.credit.map_or(self.rate, |credit| credit.refill)
    }

    /// Converts a rate in units to requests of the workload per second.
    pub fn iops(&self, rate: u128) -> f64 {
        rate as f64 / self.cost as f64
    }

    /// Returns the promised rate as text.
    pub fn rate_text(&self) -> String {
        self.dimension.rate_text(self.per_second)
    }
}

impl Dimension {
    /// Formats a rate of this dimension with its unit.
    #[must_use]
    pub fn rate_text(self, per_second: u64) -> String {
        match self {
            Self::Operations => format!("{} IOPS", text::thousands(per_second)),
            Self::Bytes => text::byte_rate(per_second),
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operations => "I/Os",
            Self::Bytes => "bytes",
        })
    }
}

impl fmt::Display for Promise {
    /// Formats `3,000 IOPS, 125 MiB/s`; with credits `3,000 IOPS for 27,000 credits, then 300 IOPS;
    /// 128 MiB/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [(Dimension::Operations, self.operations), (Dimension::Bytes, self.bytes)];
        let mut separator = "";
        for (dimension, rate) in rates {
            let Some(rate) = rate else { continue };
            write!(f, "{separator}{}", dimension.rate_text(rate.per_second))?;
            if let Some(credit) = rate.credit {
                let balance = match dimension {
                    Dimension::Operations => {
                        format!("{} credits", text::thousands(credit.balance_min))
                    }
                    Dimension::Bytes => format!("{} of credit", text::bytes(credit.balance_min)),
                };
                let after = dimension.rate_text(credit.refill_per_second);
                write!(f, " for {balance}, then {after}")?;
            }
            separator = if rate.credit.is_some() { "; " } else { ", " };
        }
        if separator.is_empty() { f.write_str("unlimited") } else { Ok(()) }
    }
}
