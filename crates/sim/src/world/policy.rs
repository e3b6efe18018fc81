//! The simulator's interface to a scheduler: one trait for the product's own, alone, under checkers
//! or recorded.

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
    /// The operation.
    pub operation: Operation,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
    /// The simulator's number of the request, returned with every dispatch.
    pub handle: u32,
}

/// A request, or one piece of it, that is given to the device now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatch {
    /// Number of the volume.
    pub volume: u32,
    /// The request's handle.
    pub handle: u32,
    /// The operation.
    pub operation: Operation,
    /// First byte of this piece.
    pub offset: u64,
    /// Length of this piece in bytes.
    pub length: u32,
    /// Whether this is the last piece of its request.
    pub last: bool,
    /// The policy's own number, returned with the completion.
    pub ticket: u64,
}

/// A scheduler in virtual time. `now` never decreases from call to call. After each of
/// [`submit`](Policy::submit), [`poll`](Policy::poll) and [`complete`](Policy::complete) the caller
/// empties [`poll_output`](Policy::poll_output) and asks [`poll_timeout`](Policy::poll_timeout) for
/// the time of the next poll. That time changes with these calls only, so the caller need not ask
/// for it again without one of them.
pub trait Policy {
    /// Submits a request. Returns `false` if the volume's queue is full; the caller then submits it
    /// again after the volume's next dispatch.
    fn submit(&mut self, now: Instant, request: &Request) -> bool;

    /// Dispatches the requests that are due by now.
    fn poll(&mut self, now: Instant);

    /// Returns the next dispatch.
    fn poll_output(&mut self) -> Option<Dispatch>;

    /// Returns the latest time of the next poll; `None` if no request waits for time to pass.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Reports that the device has completed a dispatch, `service` after it got it.
    fn complete(&mut self, now: Instant, dispatch: &Dispatch, service: Duration);

    /// Returns the credit balances of a volume at `now`; none if the scheduler has no credits.
    fn balances(&mut self, _now: Instant, _volume: u32) -> Balances {
        Balances::default()
    }

    /// Returns the time's worth of tokens that a volume lost to pauses of the host and got back;
    /// zero if the scheduler does not return any.
    fn catch_up(&self, _volume: u32) -> Duration {
        Duration::ZERO
    }

    /// Returns the scheduler's place in its cycle at `now`; `None` if it does not know one.
    fn phase(&mut self, _now: Instant) -> Option<Phase> {
        None
    }

    /// Changes credits as if everything between two phases that are alike happened once more, in no
    /// time. Returns `false` and changes nothing if it would not happen in the same way again.
    fn repeat(&mut self, _before: &Phase, _after: &Phase) -> bool {
        false
    }

    /// Replaces the balances that are given. Returns `false` if the scheduler has no credits.
    fn set_balances(&mut self, _now: Instant, _volume: u32, _balances: Balances) -> bool {
        false
    }

    /// Replaces the limits of a volume. Returns `false` if the scheduler cannot.
    fn set_limits(&mut self, _now: Instant, _volume: u32, _pacing: &Pacing) -> bool {
        false
    }
}
