//! For tests: the closed loop that experiments share. Clients send their next request when one is
//! answered, a device has channels behind one queue, and a server polls its scheduler when the
//! scheduler asks for it.
//!
//! An experiment implements [`ClosedLoop`]: it owns the schedulers and the clients, and determines
//! the service times of the device. The loop has the time, the device's queue and future events, in
//! a [`Timeline`] that the experiment owns. [`run_until`](ClosedLoop::run_until) advances the time:
//!
//! ```text
//! wake ─▶ events that are due (complete, send) ─▶ poll, if the timer has gone off ─┐
//!   ▲        each followed by: poll_output ─▶ device's queue ─▶ service            │
//!   └───────────── the earliest of the next event and the timer ◀──────────────────┘
//! ```
//!
//! Everything is deterministic: events of the same time are handled in the order in which they were
//! created, and before a poll of that time. The loop stops if its scheduler asks for polls at one
//! instant without end.

use crate::world::events::Heap;
use evenkeel_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Maximum number of polls that a scheduler may ask for at one instant.
const POLLS_AT_ONCE_MAX: u32 = 1_024;

/// Time, device and future events: the state of a [`ClosedLoop`] over pieces `P`.
#[derive(Debug)]
pub struct Timeline<P> {
    now: Instant,
    events: Heap<Event<P>>,
    /// Pieces at the device that wait for a channel, in order of arrival.
    queue: VecDeque<P>,
    channels: u32,
    busy_channels: u32,
    timer: Option<Timer>,
}

#[derive(Clone, Copy, Debug)]
enum Event<P> {
    Done(P),
    Send(u32),
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    /// The time that the schedulers asked for.
    wanted: Instant,
    goes_off: Instant,
}

impl<P: Copy> Timeline<P> {
    /// Creates a timeline that begins at `start`, with an idle device that serves `channels` pieces
    /// at once. With [`u32::MAX`] channels no piece waits.
    #[must_use]
    pub const fn new(start: Instant, channels: u32) -> Self {
        Self {
            now: start,
            events: Heap::new(),
            queue: VecDeque::new(),
            channels,
            busy_channels: 0,
            timer: None,
        }
    }

    /// Returns the present time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Advances the time to `at` without handling events; does nothing if `at` is in the past.
    pub fn advance(&mut self, at: Instant) {
        self.now = self.now.max(at);
    }

    /// Schedules a call of [`ClosedLoop::send`] with this number at `at`. For tests and benchmarks.
    pub fn send_at(&mut self, at: Instant, number: u32) {
        self.events.push(at.ns, Event::Send(number));
    }

    fn next_at(&self) -> Option<Instant> {
        let event = self.events.first_at().map(Instant::from_ns);
        event.into_iter().chain(self.timer.map(|timer| timer.goes_off)).min()
    }

    /// Returns the next piece of the queue if a channel is free, and occupies the channel.
    fn take_channel(&mut self) -> Option<P> {
        if self.busy_channels >= self.channels {
            return None;
        }
        let piece = self.queue.pop_front()?;
        self.busy_channels += 1;
        Some(piece)
    }
}

/// An experiment in a closed loop, for tests and benchmarks; see the module's text. The loop calls
/// the required methods. The experiment and its owner call the provided ones from `dispatch` on.
pub trait ClosedLoop {
    /// The unit of the device's work: a request, or a piece of one.
    type Piece: Copy;

    /// Returns the loop's own state.
    fn timeline(&mut self) -> &mut Timeline<Self::Piece>;

    /// Returns the latest time of the next poll; `None` if the schedulers wait for no time.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Polls the schedulers.
    fn poll(&mut self, now: Instant);

    /// Returns the next piece that a scheduler gives to the device, until there is none.
    fn poll_output(&mut self, now: Instant) -> Option<Self::Piece>;

    /// Returns the service time of a piece whose service begins now.
    fn service(&mut self, now: Instant, piece: &Self::Piece) -> Duration;

    /// Handles the completion of a piece. The device has begun the next one of its queue.
    fn complete(&mut self, now: Instant, piece: Self::Piece);

    /// Handles the time of a [`Timeline::send_at`].
    fn send(&mut self, _now: Instant, _number: u32) {}

    /// Returns the time at which a server wakes up that is to wake up at `at`. It handles nothing
    /// before.
    fn wake(&mut self, at: Instant) -> Instant {
        at
    }

    /// Returns the lateness of a timer that is set now. Completions are handled on time all the
    /// same.
    fn timer_lateness(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Gives the device the pieces that the schedulers dispatch. The loop does so after each of its
    /// calls; an experiment must do so after its own calls of a scheduler.
    fn dispatch(&mut self) {
        let now = self.timeline().now;
        while let Some(piece) = self.poll_output(now) {
            self.timeline().queue.push_back(piece);
            self.serve();
        }
    }

    /// Begins the service of pieces while channels are free.
    fn serve(&mut self) {
        while let Some(piece) = self.timeline().take_channel() {
            let now = self.timeline().now;
            let done_at = now + self.service(now, &piece);
            self.timeline().events.push(done_at.ns, Event::Done(piece));
        }
    }

    /// Sets the timer to the time that the schedulers ask for. An unchanged timer keeps its
    /// lateness.
    fn set_timer(&mut self) {
        let wanted = self.poll_timeout();
        if wanted == self.timeline().timer.map(|timer| timer.wanted) {
            return;
        }
        let timer = wanted.map(|wanted| {
            let goes_off = wanted.max(self.timeline().now) + self.timer_lateness();
            Timer { wanted, goes_off }
        });
        self.timeline().timer = timer;
    }

    /// Advances to the next event or timer before `end`, and handles it. Returns `false` if there
    /// is none, or if a scheduler asks for polls at one instant without end.
    fn step(&mut self, end: Instant) -> bool {
        self.set_timer();
        let Some(next) = self.timeline().next_at().filter(|next| *next < end) else { return false };
        let awake = self.wake(next);
        self.timeline().advance(awake);
        let now = self.timeline().now;
        while let Some((_, event)) = self.timeline().events.pop_due(now.ns) {
            match event {
                Event::Done(piece) => {
                    self.timeline().busy_channels -= 1;
                    self.serve();
                    self.complete(now, piece);
                }
                Event::Send(number) => self.send(now, number),
            }
            self.dispatch();
            self.set_timer();
        }
        if self.timeline().timer.is_none_or(|timer| timer.goes_off > now) {
            return true;
        }
        self.timeline().timer = None;
        for _ in 0..POLLS_AT_ONCE_MAX {
            self.poll(now);
            self.dispatch();
            if self.poll_timeout().is_none_or(|time| time > now) {
                return true;
            }
        }
        false
    }

    /// Handles all events before `end`, and advances the time to it.
    fn run_until(&mut self, end: Instant) {
        while self.step(end) {}
        self.timeline().advance(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of 10 ns each, dispatched at time zero.
    struct Pieces {
        timeline: Timeline<u32>,
        waiting: u32,
        /// Whether it asks for a poll at every instant.
        asks_always: bool,
        done: Vec<(u64, u32)>,
    }

    impl ClosedLoop for Pieces {
        type Piece = u32;

        fn timeline(&mut self) -> &mut Timeline<u32> {
            &mut self.timeline
        }

        fn poll_timeout(&self) -> Option<Instant> {
            self.asks_always.then_some(Instant::ZERO)
        }

        fn poll(&mut self, _: Instant) {}

        fn poll_output(&mut self, _: Instant) -> Option<u32> {
            self.waiting = self.waiting.checked_sub(1)?;
            Some(self.waiting)
        }

        fn service(&mut self, _: Instant, _: &u32) -> Duration {
            Duration::from_ns(10)
        }

        fn complete(&mut self, now: Instant, piece: u32) {
            self.done.push((now.ns, piece));
        }

        fn wake(&mut self, at: Instant) -> Instant {
            at + Duration::from_ns(1)
        }
    }

    fn pieces(channels: u32, asks_always: bool) -> Pieces {
        let timeline = Timeline::new(Instant::ZERO, channels);
        let mut pieces = Pieces { timeline, waiting: 3, asks_always, done: Vec::new() };
        pieces.dispatch();
        pieces
    }

    #[test]
    fn channels_serve_in_order_of_arrival_and_a_late_server_completes_late() {
        let mut pieces = pieces(2, false);
        pieces.run_until(Instant::from_ns(100));
        assert_eq!(pieces.done, [(11, 2), (11, 1), (22, 0)]);
        assert_eq!(pieces.timeline.now(), Instant::from_ns(100));
    }

    #[test]
    fn scheduler_that_asks_for_endless_polls_stops_the_loop() {
        let mut pieces = pieces(3, true);
        assert!(!pieces.step(Instant::from_ns(100)));
        assert_eq!((pieces.done.len(), pieces.timeline.now().ns), (0, 1));
    }
}
