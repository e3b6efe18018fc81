//! The distribution of requests over the volumes of a layout.

use evenkeel_core::convert::saturating;

/// A distribution of requests over volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Evenly, with each request in pieces: RAID 0.
    Striped {
        /// Bytes of a request on one volume before the next one follows.
        stripe_bytes: u32,
    },
    /// Each request on one volume. One volume gets more of them than any other.
    Hot {
        /// The percentage of all requests that this volume gets. It is never less than an even
        /// share.
        percent: u32,
    },
}

impl Spread {
    /// Pieces of 64 KiB.
    pub const STRIPED: Self = Self::Striped { stripe_bytes: 64 << 10 };

    /// Returns the share of the volume with the largest one. The limits of a layout are those of
    /// this volume.
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

/// A volume's share of all requests, and of limits that all volumes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    part: u64,
    whole: u64,
    stripe_bytes: u64,
    /// Maximum number of pieces of a request.
    pieces_max: u64,
}

impl Share {
    /// The share of a single volume: everything.
    pub const ALL: Self = Self { part: 1, whole: 1, stripe_bytes: 1, pieces_max: 1 };

    /// Returns its part of a total amount, rounded up.
    #[must_use]
    pub fn of_most(&self, amount: u128) -> u128 {
        // Most products fit into 64 bits, whose division is far faster.
        match u64::try_from(amount).ok().and_then(|amount| amount.checked_mul(self.part)) {
            Some(product) => product.div_ceil(self.whole).into(),
            None => (amount * u128::from(self.part)).div_ceil(self.whole.into()),
        }
    }

    /// Returns its part of a shared limit, rounded down.
    #[must_use]
    pub fn of_limit(&self, limit: u64) -> u64 {
        let share = u128::from(limit) * u128::from(self.part) / u128::from(self.whole);
        saturating::<_, u64>(share)
    }

    /// Returns its part of a number of requests, rounded up.
    #[must_use]
    pub fn of_requests(&self, requests: u64) -> u64 {
        saturating::<_, u64>(self.of_most(requests.into()))
    }

    /// Returns the total amount of which this is its part.
    #[must_use]
    pub fn all_of(&self, part: u128) -> u128 {
        part.saturating_mul(self.whole.into()) / u128::from(self.part.max(1))
    }

    /// Returns the number of pieces of a request: at most one for each volume of a stripe, because
    /// consecutive pieces of one volume are merged.
    #[must_use]
    pub fn pieces(&self, request_bytes: u64) -> u64 {
        request_bytes.div_ceil(self.stripe_bytes).clamp(1, self.pieces_max)
    }

    /// Returns the largest size up to which a request is one piece.
    pub(crate) const fn whole_bytes(&self) -> u64 {
        if self.pieces_max > 1 { self.stripe_bytes } else { u64::MAX }
    }

    /// Returns the ratio of the total to its part, as a fraction.
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
        // The volume with the largest share never gets less than an even share.
        assert_eq!(Spread::Hot { percent: 10 }.of(5).of_limit(10), 2);
        assert_eq!(Spread::Hot { percent: 1 }.of(1).of_limit(10), 10);
    }
}
