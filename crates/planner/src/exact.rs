//! The product's own scheduler under a demand, in virtual time: every request by itself.
//!
//! One volume stands for all of a layout, because they are equal and share all requests evenly.
//! Requests are sent when they come, whether earlier ones were served or not, to places that do not
//! follow each other. Nothing lies below: what is measured is how long limits hold requests up.

use std::collections::VecDeque;

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{Io, Scheduler, SubmitError, VolumeIndex};
use evenkeel_core::qos::sharing::Claim;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;

use crate::delays::Delays;
use crate::demand::{Demand, Span};
use crate::fluid::MICRO;
use crate::layout::{Layout, LimitKind};
use crate::search::Space;

const NS_PER_US: u64 = 1_000;
/// Distance of two places, in bytes: far enough that no request follows another.
const STRIDE: u64 = 16 << 20;
/// Places.
const PLACES: u64 = 1 << 16;
/// The largest request, in bytes: what is larger is sent in pieces.
const LENGTH_MAX: u64 = 1 << 20;

/// What the scheduler did.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Exact {
    /// Requests of one volume.
    pub requests: u64,
    /// Microseconds in which requests waited.
    pub waited_us: u64,
    /// How long requests waited.
    pub delays: Delays,
    /// Nanoseconds for which each limit held the volume up.
    pub held_ns: Vec<(LimitKind, u64)>,
}

/// Sends the requests of a demand to a layout, at most so many to a volume; `None` if they are
/// more, or if the scheduler does not take the layout.
#[must_use]
pub fn replay(space: &Space, demand: &Demand, layout: &Layout, requests_max: u64) -> Option<Exact> {
    let pacing = space.rules.pacing(&layout.each);
    let spans: Vec<Sent> = demand.spans.iter().map(|it| Sent::of(it, space, layout)).collect();
    if spans.iter().map(|span| span.count).sum::<u64>() > requests_max {
        return None;
    }
    let mut run = Run::new(space, layout, &pacing)?;
    for span in spans {
        for number in 0..span.count {
            run.send(span.at_ns(number), span.length);
        }
    }
    run.drain();
    Some(run.end())
}

/// The requests of a span that one volume gets.
struct Sent {
    start_ns: u64,
    length_ns: u64,
    count: u64,
    length: u32,
}

impl Sent {
    fn of(span: &Span, space: &Space, layout: &Layout) -> Self {
        let volumes = u64::from(layout.volumes.max(1));
        let mean = span.mean_bytes().max(512);
        let pieces = span.pieces(layout.volumes, space.stripe_bytes);
        let count = span.requests.saturating_mul(pieces).div_ceil(volumes);
        // A piece that is too large for one request becomes several.
        let parts = mean.div_ceil(pieces).div_ceil(LENGTH_MAX);
        let length = mean.div_ceil(pieces * parts).next_multiple_of(512).min(LENGTH_MAX);
        Self {
            start_ns: span.start_us.saturating_mul(NS_PER_US),
            length_ns: span.length_us.saturating_mul(NS_PER_US),
            count: count.saturating_mul(parts),
            length: u32::try_from(length).unwrap_or(u32::MAX),
        }
    }

    /// When a request of it comes: they are spread evenly.
    fn at_ns(&self, number: u64) -> u64 {
        let offset = u128::from(self.length_ns) * (2 * u128::from(number) + 1);
        let offset = offset / (2 * u128::from(self.count.max(1)));
        self.start_ns.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    }
}

/// A scheduler with one volume, and what waits.
struct Run {
    scheduler: Scheduler,
    volume: VolumeIndex,
    instance: bool,
    /// When the requests came that the scheduler has, in order.
    with_it: VecDeque<u64>,
    /// When those came that found its queue full, and their lengths.
    outside: VecDeque<(u64, u32)>,
    sent: u64,
    /// Until when waiting was counted.
    counted_ns: u64,
    waited_ns: u64,
    delays: Delays,
}

impl Run {
    fn new(space: &Space, layout: &Layout, pacing: &Pacing) -> Option<Self> {
        let mut scheduler = Scheduler::new(Instant::ZERO);
        let volume = scheduler.add(Instant::ZERO, pacing, Balances::full(pacing)).ok()?;
        let instance = space.instance.map(|instance| layout.instance_share(instance));
        if let Some(shared) = &instance {
            let full = Balances::full(&shared.as_volume());
            let added = scheduler.add_instance(Instant::ZERO, shared, full).ok()?;
            let claim = Claim::best_effort(pacing);
            scheduler.share(Instant::ZERO, volume, pacing, (None, Some(added)), &claim).ok()?;
        }
        Some(Self {
            scheduler,
            volume,
            instance: instance.is_some(),
            with_it: VecDeque::new(),
            outside: VecDeque::new(),
            sent: 0,
            counted_ns: 0,
            waited_ns: 0,
            delays: Delays::default(),
        })
    }

    fn send(&mut self, at_ns: u64, length: u32) {
        self.until(at_ns);
        if self.outside.is_empty() && self.submit(at_ns, at_ns, length) {
            self.take_output(at_ns);
        } else {
            self.outside.push_back((at_ns, length));
        }
    }

    /// Hands a request over; `false` if there is no room.
    fn submit(&mut self, now_ns: u64, came_ns: u64, length: u32) -> bool {
        // An odd factor visits every place.
        let place = self.sent.wrapping_mul(40_503) % PLACES;
        let io = Io { operation: Operation::Read, offset: place * STRIDE, length, handle: 0 };
        match self.scheduler.submit(Instant::from_ns(now_ns), self.volume, io) {
            Ok(()) => {
                self.sent += 1;
                self.with_it.push_back(came_ns);
                true
            }
            Err(SubmitError::QueueFull | SubmitError::NoSuchVolume) => false,
        }
    }

    /// Lets time pass until a moment.
    fn until(&mut self, end_ns: u64) {
        while let Some(next) = self.scheduler.poll_timeout() {
            let now_ns = next.ns;
            if now_ns > end_ns {
                return;
            }
            self.scheduler.poll(next);
            self.take_output(now_ns);
        }
    }

    /// Serves what may go now, and hands over what waits outside.
    fn take_output(&mut self, now_ns: u64) {
        loop {
            while let Some(dispatch) = self.scheduler.poll_output() {
                self.scheduler.complete(Instant::from_ns(now_ns), dispatch.ticket);
                if dispatch.last
                    && let Some(came_ns) = self.with_it.pop_front()
                {
                    self.count(came_ns, now_ns);
                }
            }
            let Some((came_ns, length)) = self.outside.front().copied() else { return };
            if !self.submit(now_ns, came_ns, length) {
                return;
            }
            self.outside.pop_front();
        }
    }

    fn count(&mut self, came_ns: u64, now_ns: u64) {
        let delay_us = now_ns.saturating_sub(came_ns) / NS_PER_US;
        self.delays.add(delay_us, delay_us, MICRO);
        self.waited_ns += now_ns.saturating_sub(came_ns.max(self.counted_ns));
        self.counted_ns = self.counted_ns.max(now_ns);
    }

    fn drain(&mut self) {
        self.until(u64::MAX);
    }

    fn end(self) -> Exact {
        let exceeded = self.scheduler.exceeded(self.volume);
        let mut held_ns = vec![
            (LimitKind::VolumeIops, exceeded.operations_ns),
            (LimitKind::VolumeBytes, exceeded.bytes_ns),
        ];
        if self.instance {
            held_ns.push((LimitKind::InstanceIops, exceeded.instance_operations_ns));
            held_ns.push((LimitKind::InstanceBytes, exceeded.instance_bytes_ns));
        }
        let waited_us = self.waited_ns / NS_PER_US;
        Exact { requests: self.sent, waited_us, delays: self.delays, held_ns }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::instance;
    use evenkeel_core::volume::VolumeType;
    use proptest::prelude::*;

    use super::*;
    use crate::search;
    use crate::testing::{layout, seconds, space};

    #[test]
    fn every_request_is_served_and_waits_for_what_binds() {
        let gp3 = layout(1, VolumeType::Gp3, 100, None);
        let run = |demand: &Demand| replay(&space(&[], 1), demand, &gp3, 1_000_000).expect("few");
        let fits = run(&seconds(&[(2_900, 4); 5]));
        assert_eq!((fits.requests, fits.waited_us), (14_500, 0));
        let late = run(&seconds(&[(6_000, 4)]));
        assert_eq!(late.requests, 6_000);
        // A second's 6,000 take two; 50 ms of tokens are saved at the start.
        assert!((1_850_000..=2_000_000).contains(&late.waited_us), "{}", late.waited_us);
        let held = |kind| late.held_ns.iter().find(|(it, _)| *it == kind).map(|(_, ns)| *ns);
        assert!(held(LimitKind::VolumeIops) > held(LimitKind::VolumeBytes));
        assert_eq!(replay(&space(&[], 1), &seconds(&[(6_000, 4)]), &gp3, 5_999), None);
        // Five volumes of 3,000 take 15,000; an instance of 3,600 does not.
        let five = layout(5, VolumeType::Gp3, 100, None);
        let minute = seconds(&[(14_000, 4); 3]);
        let free = replay(&space(&[], 1), &minute, &five, 1_000_000).expect("few");
        assert_eq!((free.requests, free.waited_us), (8_400, 0));
        let held = replay(
            &Space { instance: instance::by_name("m5.large"), ..space(&[], 1) },
            &minute,
            &five,
            1_000_000,
        )
        .expect("few");
        let at_instance = held.held_ns.iter().find(|(it, _)| *it == LimitKind::InstanceIops);
        assert_eq!(at_instance.map(|(_, ns)| *ns), Some(0), "it bursts to 18,750");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// The fluid is what the search goes by. It differs by the tokens that a pacer saves, and
        /// by single requests.
        #[test]
        fn the_scheduler_does_what_the_fluid_says(
            all in proptest::collection::vec((0..9_000_u64, 1..200_u64), 1..8),
            kind in 0..3_usize,
            volumes in 1..4_u32,
        ) {
            let layout = match kind {
                0 => layout(volumes, VolumeType::Gp3, 100, Some(4_000)),
                1 => layout(volumes, VolumeType::Gp2, 20, None),
                _ => layout(volumes, VolumeType::Io1, 100, Some(1_500)),
            };
            let (demand, space) = (seconds(&all), space(&[], 1));
            let exact = replay(&space, &demand, &layout, 1_000_000).expect("few");
            let (_, fluid) = search::replay(&space, &demand, &layout);
            // The tokens that are saved spare waiting: 50 ms of it whenever another limit binds.
            let saved = 60_000 * all.len() as u64;
            let slack = 1_000 * all.len() as u64 + fluid.waited_us() / 50;
            prop_assert!(
                exact.waited_us <= fluid.waited_us() + slack,
                "{} {}", exact.waited_us, fluid.waited_us()
            );
            let (one, other) = (exact.delays.mean_us(), fluid.delays.mean_us());
            prop_assert!(one <= other + 2_000 && other <= one + saved, "{one} {other}");
            let (one, other) = (exact.delays.most_us(), fluid.delays.most_us());
            prop_assert!(one.abs_diff(other) <= saved + other / 50, "{one} {other}");
        }
    }
}
