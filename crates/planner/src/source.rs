//! The limits of a trace's source, in its own counting: a limit in I/Os is not one in requests.

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::{CountingRule, Limit, Pacing};

use crate::demand::counted;
use crate::spread::Share;
use crate::trace::{Counting, SourceLimits};

impl SourceLimits {
    /// Sets limits that are not known yet: those of equal volumes of which the one with the largest
    /// share gets `share`. Together they never serve more than what makes this volume reach its
    /// limits.
    pub fn fill(&mut self, pacing: &Pacing, share: Share) {
        let all = |per_second: u64| saturating::<_, u64>(share.all_of(per_second.into()));
        let most = |known: Option<u64>, limit: Option<Limit>| {
            known.or(limit.map(|limit| all(limit.per_second)))
        };
        let earned = |known: Option<u64>, most: Option<u64>, limit: Option<Limit>| {
            let credit = limit.and_then(|limit| limit.credit);
            // If it equals the maximum, no credits are needed.
            let earned = credit.map(|credit| all(credit.refill_per_second));
            known.or(earned.filter(|earned| most.is_none_or(|most| *earned < most)))
        };
        self.iops = most(self.iops, pacing.operations);
        self.bytes_per_second = most(self.bytes_per_second, pacing.bytes);
        self.earned_iops = earned(self.earned_iops, self.iops, pacing.operations);
        self.earned_bytes_per_second =
            earned(self.earned_bytes_per_second, self.bytes_per_second, pacing.bytes);
        let counting = Counting { rule: pacing.counting, share };
        self.counting = self.counting.or(Some(counting));
    }

    /// Returns the I/Os and bytes that count for its limits, if each request has the mean size. If
    /// its counting rule is not known, that of SSD types applies.
    #[must_use]
    pub fn counted(&self, requests: u64, bytes: u64) -> [u128; 2] {
        let counting = Counting { rule: CountingRule::SSD, share: Share::ALL };
        let Counting { rule, share } = self.counting.unwrap_or(counting);
        let (operations, bytes) = counted((requests, bytes), rule, share);
        [operations, bytes]
    }

    /// Returns the maximum I/Os and bytes per second.
    #[must_use]
    pub const fn most(&self) -> [Option<u64>; 2] {
        [self.iops, self.bytes_per_second]
    }

    /// Returns the I/Os and bytes per second without credits, if it has credits.
    #[must_use]
    pub const fn earned(&self) -> [Option<u64>; 2] {
        [self.earned_iops, self.earned_bytes_per_second]
    }
}

#[cfg(test)]
mod tests;
