//! How the volumes of a layout share its requests.

/// How requests are spread over volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Evenly, each request in pieces: RAID 0.
    Striped {
        /// How much of a request goes to one volume before the next.
        stripe_bytes: u32,
    },
    /// Each request to one volume; one volume gets more of them than any other.
    Hot {
        /// The part of all requests that this volume gets, in hundredths. It is never less than an
        /// even share.
        percent: u32,
    },
}

impl Spread {
    /// Pieces of 64 KiB.
    pub const STRIPED: Self = Self::Striped { stripe_bytes: 64 << 10 };

    /// What the volume gets that gets the most of several: all limits of a layout are its.
    #[must_use]
    pub const fn of(self, volumes: u32) -> Share {
        let volumes = if volumes > 1 { volumes as u64 } else { 1 };
        match self {
            Self::Striped { stripe_bytes } => {
                let stripe_bytes = if stripe_bytes > 0 { stripe_bytes as u64 } else { 1 };
                Share { part: 1, whole: volumes, stripe_bytes, pieces_max: volumes }
            }
            Self::Hot { percent } => {
                let is_above_even = percent as u64 * volumes > 100;
                let percent = if percent < 100 { percent as u64 } else { 100 };
                let (part, whole) = if is_above_even { (percent, 100) } else { (1, volumes) };
                Share { part, whole, stripe_bytes: 1, pieces_max: 1 }
            }
        }
    }
}

/// What one volume gets of the requests of all, and of what all share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    part: u64,
    whole: u64,
    stripe_bytes: u64,
    /// The most pieces of a request.
    pieces_max: u64,
}

impl Share {
    /// All of it: that of a single volume.
    pub const ALL: Self = Self { part: 1, whole: 1, stripe_bytes: 1, pieces_max: 1 };

    /// Its part of what all ask for, rounded up.
    #[must_use]
    pub fn of_most(&self, amount: u128) -> u128 {
        (amount * u128::from(self.part)).div_ceil(self.whole.into())
    }

    /// Its part of a limit that all share, rounded down.
    #[must_use]
    pub fn of_limit(&self, limit: u64) -> u64 {
        let share = u128::from(limit) * u128::from(self.part) / u128::from(self.whole);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Its part of a number of requests, rounded up.
    #[must_use]
    pub fn of_requests(&self, requests: u64) -> u64 {
        u64::try_from(self.of_most(requests.into())).unwrap_or(u64::MAX)
    }

    /// What all ask for, if its part is this.
    #[must_use]
    pub fn all_of(&self, part: u128) -> u128 {
        part.saturating_mul(self.whole.into()) / u128::from(self.part.max(1))
    }

    /// Pieces of a request: at most one for each volume of a stripe, because those of one volume
    /// that follow each other merge before it.
    #[must_use]
    pub fn pieces(&self, request_bytes: u64) -> u64 {
        request_bytes.div_ceil(self.stripe_bytes).clamp(1, self.pieces_max)
    }

    /// How many times as much all have as it has, as a number with a fraction.
    #[must_use]
    pub fn times(&self) -> f64 {
        self.whole as f64 / self.part.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_even_or_hot() {
        let striped = Spread::STRIPED.of(5);
        assert_eq!((striped.of_requests(11), striped.of_limit(11)), (3, 2));
        assert_eq!((striped.pieces(4_096), striped.pieces(1 << 20)), (1, 5));
        assert_eq!(striped.all_of(3), 15);
        let hot = Spread::Hot { percent: 60 }.of(5);
        assert_eq!((hot.of_requests(10), hot.of_limit(10), hot.pieces(1 << 20)), (6, 6, 1));
        assert_eq!((hot.all_of(6), Share::ALL.of_limit(7)), (10, 7));
        // No volume that gets the most gets less than an even share.
        assert_eq!(Spread::Hot { percent: 10 }.of(5).of_limit(10), 2);
        assert_eq!(Spread::Hot { percent: 1 }.of(1).of_limit(10), 10);
    }
}
