//! What a scheduler is to the simulator: the product's own, alone, watched or recorded, behind one
//! trait, driven in the same way.

use evenkeel_core::qos::Phase;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};

/// A request as a client of a simulated volume sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Number of the volume in the scenario.
    pub volume: u32,
    /// Number of the instance (client host) it comes from.
    pub instance: u32,
    /// What to do.
    pub operation: Operation,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
    /// The simulator's own name for it, returned with every dispatch.
    pub handle: u32,
}

/// A request, or one piece of it, that goes to the device now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatch {
    /// Number of the volume.
    pub volume: u32,
    /// The request's handle.
    pub handle: u32,
    /// What to do.
    pub operation: Operation,
    /// First byte of this piece.
    pub offset: u64,
    /// Length of this piece in bytes.
    pub length: u32,
    /// Whether this is the last piece of its request.
    pub last: bool,
    /// The policy's own note, returned with the completion.
    pub ticket: u64,
}

/// A scheduler in virtual time. Calls come with a `now` that never steps back; after each of
/// [`submit`](Policy::submit), [`poll`](Policy::poll) and [`complete`](Policy::complete) the caller
/// empties [`poll_output`](Policy::poll_output) and asks [`poll_timeout`](Policy::poll_timeout)
/// when to poll at the latest. The answer changes with these calls only, never by itself: a caller
/// that has made none of them since need not ask again.
pub trait Policy {
    /// Takes a request; `false` if the volume's queue is full, and the caller tries again after the
    /// volume's next dispatch.
    fn submit(&mut self, now: Instant, request: &Request) -> bool;

    /// Lets go what may go by now.
    fn poll(&mut self, now: Instant);

    /// The next dispatch.
    fn poll_output(&mut self) -> Option<Dispatch>;

    /// When to poll at the latest; `None` while nothing waits for time to pass.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The device is done with a dispatch, `service` after it was given to it.
    fn complete(&mut self, now: Instant, dispatch: &Dispatch, service: Duration);

    /// The credit balances of a volume as of `now`; none for a scheduler that knows no credits.
    fn balances(&mut self, _now: Instant, _volume: u32) -> Balances {
        Balances::default()
    }

    /// Time's worth of tokens that a volume lost to pauses of the host and was paid back; none for
    /// a scheduler that does not do so.
    fn catch_up(&self, _volume: u32) -> Duration {
        Duration::ZERO
    }

    /// Where in its cycle it is at `now`; none for a scheduler that does not know.
    fn phase(&mut self, _now: Instant) -> Option<Phase> {
        None
    }

    /// Lets credits be as if all that happened from one phase to a later one that is like it had
    /// happened once more, in no time; `false`, and nothing has changed, if it would not come the
    /// same way again.
    fn repeat(&mut self, _before: &Phase, _after: &Phase) -> bool {
        false
    }

    /// Replaces the balances that are given; `false` from a scheduler that knows no credits.
    fn set_balances(&mut self, _now: Instant, _volume: u32, _balances: Balances) -> bool {
        false
    }

    /// Puts other limits in force; `false` from a scheduler that cannot.
    fn set_limits(&mut self, _now: Instant, _volume: u32, _pacing: &Pacing) -> bool {
        false
    }
}
