//! What the models of limiters share: a queue a volume, a limiter at its head, timers.
//!
//! A [`Limiter`] decides about the request at the head of its volume's queue; [`Limited`] makes a
//! [`Policy`] of it. Requests of a volume leave in the order they came. Where the original has a
//! queue elsewhere (a virtqueue, a list of coroutines) or none at all, the model's docs say so.

use std::collections::{BTreeSet, VecDeque};

use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};

use crate::world::policy::{Dispatch, Policy, Request};

/// Requests a volume's queue holds in every model; one more is refused.
pub const QUEUE_REQUESTS_MAX: usize = 1_024;

/// The limits a model is configured with, at least 1 each where they are given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rates {
    /// I/Os per second; `None` is unlimited.
    pub operations: Option<u64>,
    /// Bytes per second; `None` is unlimited.
    pub bytes: Option<u64>,
}

impl Rates {
    /// A limit in I/Os per second only.
    #[must_use]
    pub const fn operations(per_second: u64) -> Self {
        Self { operations: Some(per_second), bytes: None }
    }

    /// A limit in bytes per second only.
    #[must_use]
    pub const fn bytes(per_second: u64) -> Self {
        Self { operations: None, bytes: Some(per_second) }
    }
}

/// One volume's limiter, as some project built it.
pub trait Limiter {
    /// A limiter as it is right after it was configured.
    fn new(now: Instant, rates: &Rates) -> Self;

    /// Whether the request at the head of the queue may go now. If so it is charged; if not, the
    /// limiter may arm its timer.
    fn take(&mut self, now: Instant, request: &Request) -> bool;

    /// When the limiter's timer goes off; `None` while it is not armed.
    fn timer(&self) -> Option<Instant>;

    /// The timer went off; `now` is when it was noticed.
    fn fire(&mut self, now: Instant);

    /// Puts other limits in force, the way the original does while requests flow.
    fn reconfigure(&mut self, now: Instant, rates: &Rates);
}

/// Payload bytes of a request: those of reads and writes; other operations move none.
#[must_use]
pub const fn payload(request: &Request) -> u64 {
    match request.operation {
        Operation::Read | Operation::Write { .. } => request.length as u64,
        _ => 0,
    }
}

/// The whole request as one dispatch.
#[must_use]
pub const fn whole(request: &Request) -> Dispatch {
    Dispatch {
        volume: request.volume,
        handle: request.handle,
        operation: request.operation,
        offset: request.offset,
        length: request.length,
        last: true,
        ticket: 0,
    }
}

#[derive(Debug)]
struct LimitedVolume<L> {
    limiter: L,
    queue: VecDeque<Request>,
    /// The timer as it is entered in the set of all timers.
    timer: Option<Instant>,
}

/// Volumes, each behind its own limiter. Volumes are numbered from 0.
#[derive(Debug)]
pub struct Limited<L> {
    volumes: Vec<LimitedVolume<L>>,
    timers: BTreeSet<(Instant, u32)>,
    output: VecDeque<Dispatch>,
}

impl<L: Limiter> Limited<L> {
    /// As many volumes as there are limits given.
    #[must_use]
    pub fn new(now: Instant, rates: &[Rates]) -> Self {
        let volume = |rates| LimitedVolume {
            limiter: L::new(now, rates),
            queue: VecDeque::new(),
            timer: None,
        };
        let volumes = rates.iter().map(volume).collect();
        let mut limited = Self { volumes, timers: BTreeSet::new(), output: VecDeque::new() };
        for volume in 0..rates.len() {
            limited.enter_timer(volume);
        }
        limited
    }

    /// Puts other limits in force for a volume; a volume that does not exist is ignored.
    pub fn reconfigure(&mut self, now: Instant, volume: u32, rates: &Rates) {
        let at = volume as usize;
        let Some(entry) = self.volumes.get_mut(at) else { return };
        entry.limiter.reconfigure(now, rates);
        self.serve(now, at);
    }

    fn serve(&mut self, now: Instant, at: usize) {
        let LimitedVolume { limiter, queue, .. } = &mut self.volumes[at];
        while let Some(head) = queue.front() {
            if !limiter.take(now, head) {
                break;
            }
            self.output.push_back(whole(head));
            queue.pop_front();
        }
        self.enter_timer(at);
    }

    fn enter_timer(&mut self, at: usize) {
        let volume = &mut self.volumes[at];
        let timer = volume.limiter.timer();
        if timer == volume.timer {
            return;
        }
        let name = at as u32;
        if let Some(old) = volume.timer {
            self.timers.remove(&(old, name));
        }
        if let Some(new) = timer {
            self.timers.insert((new, name));
        }
        volume.timer = timer;
    }
}

impl<L: Limiter> Policy for Limited<L> {
    fn submit(&mut self, now: Instant, request: &Request) -> bool {
        let at = request.volume as usize;
        let Some(volume) = self.volumes.get_mut(at) else { return false };
        if volume.queue.len() >= QUEUE_REQUESTS_MAX {
            return false;
        }
        volume.queue.push_back(*request);
        self.serve(now, at);
        true
    }

    fn poll(&mut self, now: Instant) {
        // Each volume once, even if its limiter arms a timer that is due already.
        let due: Vec<u32> =
            self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, name)| *name).collect();
        for name in due {
            let at = name as usize;
            self.volumes[at].limiter.fire(now);
            self.serve(now, at);
        }
    }

    fn poll_output(&mut self) -> Option<Dispatch> {
        self.output.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn complete(&mut self, _: Instant, _: &Dispatch, _: Duration) {}
}
