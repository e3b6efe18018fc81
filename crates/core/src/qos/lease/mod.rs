//! One limit that several cores or nodes spend from, without sharing memory and without ever
//! spending more than one bucket would give.
//!
//! The bucket lives at its [`Home`]. Each place that spends has a [`Holder`] with a few tokens on
//! *lease* (the home's own core has a holder too, its messages take no time):
//!
//! ```text
//!           Request: want, and what is left of earlier leases
//!  Holder ───────────────────────────────────────────────────▶ Home: bucket, leases, turns
//!  leases ◀─────────────────────────────────────────────────── at once while the level allows,
//!           Grant: amount, valid until, fair share             by turns when it does not
//!         ───────────────────────────────────────────────────▶
//!           Return: what is left, when idle
//! ```
//!
//! Rules, and what each is for:
//!
//! * A holder asks for the cost of the request that waits and a *float* (250 us of its fair share),
//!   and before one waits again for the float, at least one request's cost, when half of that is
//!   used: the round trip is hidden.
//! * Nobody waits for a whole grant: what covers the first request is used. Nor does what covers
//!   nothing lie about: it goes back, and is asked for anew with the rest.
//! * When the level is below zero, turns are taken in proportion to cost, not to the number of
//!   requests, so small requests are not worth less than large ones.
//! * A lease ends after 10 ms, an unused one is given back after 1 ms. Until the home has a
//!   report of a lease, its tokens stay in the bucket and nobody else's: *level + tokens on
//!   lease* never exceeds the depth. So what all holders spend together, in any window, is within
//!   the bound of the one bucket: depth, rate x time, and one grant. A lease that ends without a
//!   report counts as spent.
//! * A message that comes twice, late or never makes no token: grants are numbered and taken once
//!   and in order, reports are totals, and a holder that was restarted has a higher incarnation.
//! * A holder that gets no answers falls silent and, once its silence must have been noticed, lives
//!   on the fair share that it was last given. The home keeps the shares of all who are silent out
//!   of what it grants, and never gives shares that add up to more than the cap. A holder that has
//!   given its lease back has no share: it is idle, and starts again by asking.
//!
//! Nothing in the server uses this module yet: a volume's and a host's limits are counted on one
//! core. It is kept, with its tests, for limits that span the nodes of a cluster.
//!
//! Clocks: all read one monotonic clock, or clocks that differ by at most [`Timing::clock_error`]
//! and do not drift apart. Within a machine that is `CLOCK_MONOTONIC` and 0.
//!
//! | part | what it knows |
//! | --- | --- |
//! | [`Cap`], [`Timing`] | the limit and the spans of time |
//! | [`Request`], [`Grant`], [`Return`] | the messages; how they travel is the caller's matter |
//! | [`Home`] | the bucket, what is on lease, whose turn it is |
//! | [`Holder`] | what it may spend, when to ask, what to do alone |

mod holder;
mod home;
mod message;

use crate::qos::bucket::{Bucket, Depth, LEVEL_PER_TOKEN};
use crate::time::Duration;

pub use holder::Holder;
pub use home::Home;
pub use message::{Grant, HolderIndex, Report, Request, Return, ToHome};

/// Holders one home serves at most.
pub const HOLDERS_MAX: usize = 64;

/// Leases a holder has at most at a time; in the steady state there are two.
pub const LEASES_MAX: usize = 8;

/// The longest pause between two attempts to reach a home that does not answer.
pub const RETRY_MAX: Duration = Duration::from_secs(1);

/// The spans of time that home and holders agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// A holder's fair share of so much time is leased in advance.
    pub float: Duration,
    /// How long a lease is valid.
    pub lease: Duration,
    /// After so long without use a lease is given back.
    pub idle: Duration,
    /// After so long without an answer a message is sent again.
    pub retry: Duration,
    /// A holder that is not idle sends the home a message this often.
    pub contact: Duration,
    /// After so long without an answer a holder falls silent, and after so long a silence it lives
    /// on its share. The home takes it for silent after the same time; `contact` must be well
    /// below.
    pub silence: Duration,
    /// By how much any two clocks differ at most.
    pub clock_error: Duration,
}

impl Timing {
    /// Between the cores of a machine: messages take microseconds, the clock is the same.
    pub const CORES: Self = Self {
        float: Duration::from_us(250),
        lease: Duration::from_ms(10),
        idle: Duration::from_ms(1),
        retry: Duration::from_ms(1),
        contact: Duration::from_ms(3),
        silence: Duration::from_ms(10),
        clock_error: Duration::ZERO,
    };

    /// Between the nodes of a cluster with synchronised clocks.
    pub const NODES: Self = Self {
        float: Duration::from_ms(2),
        lease: Duration::from_ms(50),
        idle: Duration::from_ms(5),
        retry: Duration::from_ms(5),
        contact: Duration::from_ms(15),
        silence: Duration::from_ms(50),
        clock_error: Duration::from_ms(5),
    };
}

/// A limit that is spent from in several places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cap {
    /// Tokens per second of all holders together. 0 is closed.
    pub rate_per_second: u64,
    /// What may be saved while nobody spends.
    pub depth: Depth,
    /// The largest cost of one request, in tokens.
    pub charge_max: u64,
    /// The spans of time.
    pub timing: Timing,
}

impl Cap {
    /// The most tokens of one grant: the largest request and a float.
    #[must_use]
    pub fn grant_max(&self) -> u64 {
        self.charge_max.saturating_add(self.float(1))
    }

    /// The float of each of `active` holders. Of a small cap it is 0: then tokens are rarer than
    /// round trips are long.
    fn float(&self, active: usize) -> u64 {
        let inflow = u128::from(self.rate_per_second) * u128::from(self.timing.float.ns);
        let active = u128::try_from(active).unwrap_or(u128::MAX).max(1);
        let tokens = inflow / u128::from(LEVEL_PER_TOKEN) / active;
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// The most that each of `active` holders may have without a request for it.
    fn advance_max(&self, active: usize) -> u64 {
        let saved = self.full_level().max(0).unsigned_abs() / u128::from(LEVEL_PER_TOKEN);
        let active = u128::try_from(active).unwrap_or(u128::MAX).max(1);
        u64::try_from(saved / 2 / active).unwrap_or(u64::MAX)
    }

    /// The level of the full bucket.
    fn full_level(&self) -> i128 {
        Bucket::full(self.rate_per_second, self.depth).level()
    }
}
