//! How long to watch for the next event before going to sleep. To sleep and be woken costs tens of
//! microseconds on a virtual machine, as much as a whole request; a client that works with one
//! request at a time pays it for each. So for as long as the events come soon after one another,
//! they are watched for; where they do not, nothing is spent. The rule is the one by which KVM
//! waits for halted processors (Documentation/virt/kvm/halt-polling.rst).

use evenkeel_core::time::Duration;

/// The first step from none.
const START: Duration = Duration { ns: 10_000 };

/// How long to watch, learnt from how long the last waits took.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    budget: Duration,
}

impl Patience {
    /// The longest watch: what sleeping and waking cost at worst.
    pub const MAX: Duration = Duration { ns: 50_000 };

    /// None at first.
    #[must_use]
    pub const fn new() -> Self {
        Self { budget: Duration { ns: 0 } }
    }

    /// How long to watch now.
    #[must_use]
    pub const fn budget(self) -> Duration {
        self.budget
    }

    /// Takes note of how long a wait took in all, watching and sleeping.
    pub fn learn(&mut self, waited: Duration) {
        if waited <= self.budget {
            return;
        }
        let ns = if waited.ns > 2 * Self::MAX.ns {
            // It would not have paid.
            self.budget.ns / 2
        } else {
            (self.budget.ns * 2).clamp(START.ns, Self::MAX.ns)
        };
        self.budget.ns = if ns < START.ns { 0 } else { ns };
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(waits_us: impl IntoIterator<Item = u64>) -> u64 {
        let mut patience = Patience::new();
        for us in waits_us {
            patience.learn(Duration { ns: us * 1_000 });
        }
        patience.budget().ns / 1_000
    }

    #[test]
    fn grows_while_waits_are_short_and_goes_while_they_are_long() {
        assert_eq!(after([]), 0);
        assert_eq!(after([5_000, 1_000_000]), 0, "an idle server never watches");
        assert_eq!(after([40]), 10);
        assert_eq!(after([45, 45, 45, 45]), 50, "no more than the most");
        assert_eq!(after([45, 45, 45, 45, 30, 30]), 50);
        assert_eq!(after([45, 45, 45, 45, 5_000]), 25);
        assert_eq!(after([45, 45, 45, 45, 5_000, 5_000, 5_000]), 0);
    }
}
