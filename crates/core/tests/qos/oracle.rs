//! A bucket in mixed numbers: whole tokens and a remainder in billionths, carried by hand.
//! Deadlines are found by bisection. Slow, obvious, and sharing nothing with the implementation but
//! the definition.

const NS_PER_S: u64 = 1_000_000_000;

/// A number of tokens: `whole + billionths / 10^9`, the remainder never negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tokens {
    whole: i128,
    billionths: u64,
}

impl Tokens {
    pub const fn whole(whole: i128) -> Self {
        Self { whole, billionths: 0 }
    }

    /// Returns the tokens that `rate` tokens a second bring in `ns` nanoseconds: whole seconds
    /// first, then the rest.
    pub fn inflow(rate: u64, ns: u64) -> Self {
        let seconds = ns / NS_PER_S;
        let rest = ns % NS_PER_S;
        let part = u128::from(rate) * u128::from(rest);
        let whole = i128::from(rate) * i128::from(seconds)
            + i128::try_from(part / u128::from(NS_PER_S)).unwrap();
        Self { whole, billionths: u64::try_from(part % u128::from(NS_PER_S)).unwrap() }
    }

    pub fn plus(self, other: Self) -> Self {
        let billionths = self.billionths + other.billionths;
        let carry = i128::from(billionths >= NS_PER_S);
        Self { whole: self.whole + other.whole + carry, billionths: billionths % NS_PER_S }
    }

    /// Whole tokens, rounded down.
    pub const fn floor(self) -> i128 {
        self.whole
    }

    /// In billionths of a token, for comparison with the implementation's level.
    pub fn in_billionths(self) -> i128 {
        self.whole * i128::from(NS_PER_S) + i128::from(self.billionths)
    }
}

/// A bucket, as in the definition.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub level: Tokens,
    pub rate: u64,
    pub depth: Tokens,
}

impl Bucket {
    pub fn pacer(rate: u64, tolerance_ns: u64) -> Self {
        let depth = Tokens::inflow(rate, tolerance_ns);
        Self { level: depth, rate, depth }
    }

    pub fn credit(rate: u64, capacity: u64) -> Self {
        let depth = Tokens::whole(capacity.into());
        Self { level: depth, rate, depth }
    }

    pub fn after(&self, ns: u64) -> Tokens {
        self.level.plus(Tokens::inflow(self.rate, ns)).min(self.depth)
    }

    pub fn settle(&mut self, ns: u64) {
        self.level = self.after(ns);
    }

    pub fn is_ready(&self) -> bool {
        self.rate > 0 && self.level >= Tokens::whole(0)
    }

    pub fn charge(&mut self, tokens: u64) {
        self.level = self.level.plus(Tokens::whole(-i128::from(tokens)));
    }

    /// The first nanosecond from now at which the bucket is ready, by bisection.
    pub fn wait(&self) -> Option<u64> {
        let ready = |ns| self.level.plus(Tokens::inflow(self.rate, ns)) >= Tokens::whole(0);
        if self.rate == 0 || !ready(u64::MAX) {
            return None;
        }
        let mut low = 0;
        let mut high = u64::MAX;
        while low < high {
            let middle = low + (high - low) / 2;
            if ready(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(low)
    }
}
