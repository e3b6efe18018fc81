//! Replays a demand request by request on the product's own scheduler, in virtual time.
//!
//! One volume represents a layout: the one with the largest share of the requests. Requests are
//! sent at their times, whether earlier ones are served or not, to places that do not follow each
//! other. There is no device below: the replay measures the time for which limits hold requests up.
//!
//! Requests that arrive more slowly than every limit allows do not wait, and the credits that they
//! use are known. So only stretches in which a [fluid](crate::fluid) waits, or nearly waits, are
//! sent. Their credits at the start are those of the fluid.

use evenkeel_core::convert::saturating;
use std::collections::VecDeque;

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{Io, Scheduler, SubmitError, VolumeIndex};
use evenkeel_core::qos::sharing::Claim;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;

use crate::delays::Delays;
use crate::demand::{Demand, Span};
use crate::fluid::{Fluid, MICRO};
use crate::layout::{Layout, LimitKind};
use crate::search::{Space, Wanted, buckets, may_wait};

const NS_PER_US: u64 = 1_000;
const NS_PER_S: u64 = 1_000_000_000;
/// Distance between two places, in bytes: so large that no request follows another one.
const STRIDE: u64 = 16 << 20;
/// Number of places.
const PLACES: u64 = 1 << 16;
/// Bytes of which a request has a whole number.
const BLOCK: u64 = 512;
/// Maximum length of a request, in bytes. Larger ones are sent in pieces.
const LENGTH_MAX: u64 = 1 << 20;
/// Thresholds in thousandths of a limit, above which requests are sent. The first one with few
/// enough requests is used.
const NEAR_PERMILLE: [u32; 3] = [900, 990, 1_000];
/// Maximum number of requests with which those that are only near a limit are sent, too, when a
/// layout is judged.
const NEAR_REQUESTS_MAX: u64 = 500_000;
/// Maximum gap between the end of a stretch and a request that continues it, in microseconds. After
/// a longer one a pacer has all its tokens again.
const AFTER_US: u64 = 1_000_000;

/// The result of a replay.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Exact {
    /// Number of requests of one volume.
    pub requests: u64,
    /// Number of requests that were sent. The others arrive too slowly to wait.
    pub sent: u64,
    /// Time in which requests waited, in microseconds.
    pub waited_us: u64,
    /// Time at which the last sent request was served, in microseconds.
    pub end_us: u64,
    /// Delays of the requests.
    pub delays: Delays,
    /// Time for which each limit held the volume up, in nanoseconds.
    pub held_ns: Vec<(LimitKind, u64)>,
}

/// Sends the requests of a demand that may wait to a layout. Returns `None` if there are more than
/// `requests_max` of them for a volume, or if the scheduler rejects the layout.
#[must_use]
pub fn replay(space: &Space, demand: &Demand, layout: &Layout, requests_max: u64) -> Option<Exact> {
    let stretches = NEAR_PERMILLE.into_iter().find_map(|near| {
        let stretches = stretches(space, demand, layout, near);
        (requests(&stretches) <= requests_max).then_some(stretches)
    })?;
    send(space, demand, layout, &stretches)
}

impl Exact {
    /// Returns whether the result is as wanted. A microsecond of waiting is more than none.
    #[must_use]
    pub fn does(&self, demand: &Demand, wanted: &Wanted) -> bool {
        may_wait(self.waited_us, self.end_us, demand, wanted)
            && wanted.delays.iter().all(|(permille, us)| self.delays.permille(*permille) <= *us)
    }

    /// Sets the number of all requests of a volume. Those that were not sent did not wait.
    fn counting(mut self, requests: u64) -> Self {
        self.requests = requests;
        let quiet = u128::from(requests.saturating_sub(self.sent));
        self.delays.add(0, 0, quiet * MICRO);
        self
    }
}

/// The verdict on a layout.
pub(crate) enum Judged {
    /// It meets the requirements.
    Does(Exact),
    /// It does not meet them.
    DoesNot,
    /// It is unknown: more requests would have to be sent.
    TooMany,
}

/// The part of a demand that may wait at limits no lower than those of a layout.
pub(crate) struct Busy {
    demand: Demand,
    /// Number of all requests of a volume.
    requests: u64,
}

impl Busy {
    /// Returns the part that may wait on a layout, and on all layouts of its type and number with
    /// higher limits.
    pub(crate) fn of(space: &Space, demand: &Demand, layout: &Layout) -> Self {
        let near = NEAR_PERMILLE.into_iter().min().unwrap_or_default();
        let counting = space.rules.pacing(&layout.each).counting;
        let start_us = demand.spans.first().map_or(0, |span| span.start_us);
        let mut fluid = Fluid::new(buckets(space, layout).1, start_us).without_delays();
        let parts = demand.parts(counting, layout.share(space));
        // The spans that are sent, and those that reduce the credits of later ones.
        let mut kept: Vec<bool> = parts.map(|part| !fluid.take(part)).collect();
        for stretch in stretches(space, demand, layout, near) {
            let sent = kept.get_mut(stretch.spans.0..=stretch.spans.1).unwrap_or_default();
            sent.fill(true);
        }
        let spans = demand.spans.iter().zip(&kept).filter(|(_, kept)| **kept);
        let spans = spans.map(|(span, _)| *span).collect();
        let requests = all_requests(space, demand, layout);
        Self { demand: Demand { spans, ..demand.clone_without_spans() }, requests }
    }

    /// Judges whether a layout meets the requirements, with at most `requests_max` requests sent.
    /// Returns the verdict and the number of requests that were sent. It stops after the first
    /// stretch that decides.
    pub(crate) fn judge(
        &self,
        space: &Space,
        layout: &Layout,
        wanted: &Wanted,
        requests_max: u64,
    ) -> (Judged, u64) {
        let demand = &self.demand;
        // The choice of requests depends on the layout only, not on `requests_max`.
        let mut all = Vec::new();
        for near in NEAR_PERMILLE {
            all = stretches(space, demand, layout, near);
            if requests(&all) <= NEAR_REQUESTS_MAX {
                break;
            }
        }
        let pacing = space.rules.pacing(&layout.each);
        let mut exact = Exact::default();
        for stretch in &all {
            if exact.sent.saturating_add(stretch.requests) > requests_max {
                return (Judged::TooMany, exact.sent);
            }
            if send_one(space, demand, layout, &pacing, stretch, &mut exact).is_none() {
                return (Judged::DoesNot, exact.sent);
            }
            if !may_wait(exact.waited_us, exact.end_us, demand, wanted) {
                return (Judged::DoesNot, exact.sent);
            }
        }
        let exact = exact.counting(self.requests);
        let sent = exact.sent;
        if exact.does(demand, wanted) {
            (Judged::Does(exact), sent)
        } else {
            (Judged::DoesNot, sent)
        }
    }
}

/// Consecutive spans in which requests wait or nearly wait.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stretch {
    /// Indices of the first and the last span.
    spans: (usize, usize),
    requests: u64,
    start_us: u64,
    /// Credits at its start.
    credits: Vec<(LimitKind, u64)>,
    /// Time at which all its requests are served, in microseconds.
    end_us: u64,
}

impl Stretch {
    /// Returns the times of its requests in nanoseconds, and their lengths in bytes.
    fn sent(
        &self,
        space: &Space,
        demand: &Demand,
        layout: &Layout,
    ) -> impl Iterator<Item = (u64, u32)> {
        let (first, last) = self.spans;
        let spans = demand.spans.get(first..=last).unwrap_or_default();
        spans.iter().flat_map(move |span| {
            let span = Sent::of(span, space, layout);
            (0..span.count).map(move |number| (span.at_ns(number), span.length(number)))
        })
    }
}

/// Returns the number of requests to send.
fn requests(stretches: &[Stretch]) -> u64 {
    stretches.iter().fold(0, |all, it| all.saturating_add(it.requests))
}

/// Returns the stretches to send.
fn stretches(space: &Space, demand: &Demand, layout: &Layout, near: u32) -> Vec<Stretch> {
    let counting = space.rules.pacing(&layout.each).counting;
    let (limits, buckets) = buckets(space, layout);
    let start_us = demand.spans.first().map_or(0, |span| span.start_us);
    let mut fluid = Fluid::new(buckets, start_us).without_delays();
    let mut all: Vec<Stretch> = Vec::new();
    let parts = demand.parts(counting, layout.share(space));
    for (at, (span, part)) in demand.spans.iter().zip(parts).enumerate() {
        let waited_us = fluid.waited_us();
        let is_behind = fluid.free_us() > part.start_us;
        fluid.rest(part.start_us);
        let is_near = is_behind || fluid.is_near(&part, near);
        let mut credits = [0; 4];
        credits.iter_mut().zip(fluid.credits()).for_each(|(kept, now)| *kept = now);
        fluid.take(part);
        // If credits run out within a part, it waits, however small the need for them seemed.
        let is_near = is_near || fluid.waited_us() > waited_us;
        let requests = Sent::of(span, space, layout).count;
        let end_us = fluid.free_us().max(part.start_us + part.length_us);
        match all.last_mut() {
            Some(last) if part.start_us <= last.end_us.saturating_add(AFTER_US) => {
                last.spans.1 = at;
                last.requests = last.requests.saturating_add(requests);
                if is_near {
                    last.end_us = end_us;
                }
            }
            _ if is_near => all.push(Stretch {
                spans: (at, at),
                start_us: part.start_us,
                requests,
                credits: limits.iter().copied().zip(credits).collect(),
                end_us,
            }),
            _ => {}
        }
    }
    all
}

/// Returns the nanoseconds of each second, from the demand's start on, for which each limit holds a
/// volume up. Sends all requests. Returns `None` if there are more than `requests_max` of them for
/// a volume, or if the scheduler rejects the layout.
#[must_use]
pub fn held_each_second(
    space: &Space,
    demand: &Demand,
    layout: &Layout,
    requests_max: u64,
) -> Option<Vec<Vec<(LimitKind, u64)>>> {
    let all = stretches(space, demand, layout, 0);
    if requests(&all) > requests_max {
        return None;
    }
    let pacing = space.rules.pacing(&layout.each);
    let mut seconds: Vec<Vec<(LimitKind, u64)>> = Vec::new();
    for stretch in &all {
        let mut run = Run::new(space, layout, &pacing, stretch)?;
        let mut before = run.held_ns();
        let mut look = |run: &mut Run, end_ns: u64| {
            run.until(end_ns);
            let now = run.held_ns();
            let at = saturating::<_, usize>((end_ns - 1) / NS_PER_S);
            seconds.resize(seconds.len().max(at.saturating_add(1)), Vec::new());
            let grown = now.iter().zip(&before);
            let grown = grown.map(|((kind, ns), (_, before))| (*kind, ns - before));
            if let Some(second) = seconds.get_mut(at) {
                second.extend(grown);
            }
            before = now;
        };
        let mut end_ns = (stretch.start_us * NS_PER_US / NS_PER_S + 1) * NS_PER_S;
        for (at_ns, length) in stretch.sent(space, demand, layout) {
            while at_ns >= end_ns {
                look(&mut run, end_ns);
                end_ns += NS_PER_S;
            }
            run.send(at_ns, length);
        }
        while run.scheduler.poll_timeout().is_some() {
            look(&mut run, end_ns);
            end_ns += NS_PER_S;
        }
    }
    Some(seconds)
}

fn send(space: &Space, demand: &Demand, layout: &Layout, stretches: &[Stretch]) -> Option<Exact> {
    let pacing = space.rules.pacing(&layout.each);
    let mut exact = Exact::default();
    for stretch in stretches {
        send_one(space, demand, layout, &pacing, stretch, &mut exact)?;
    }
    Some(exact.counting(all_requests(space, demand, layout)))
}

/// Sends a stretch, and adds its results.
fn send_one(
    space: &Space,
    demand: &Demand,
    layout: &Layout,
    pacing: &Pacing,
    stretch: &Stretch,
    exact: &mut Exact,
) -> Option<()> {
    let mut run = Run::new(space, layout, pacing, stretch)?;
    for (at_ns, length) in stretch.sent(space, demand, layout) {
        run.send(at_ns, length);
    }
    run.drain();
    run.end(exact);
    Some(())
}

/// Returns the number of a demand's requests that one volume gets.
fn all_requests(space: &Space, demand: &Demand, layout: &Layout) -> u64 {
    let counts = demand.spans.iter().map(|span| Sent::of(span, space, layout).count);
    counts.fold(0, u64::saturating_add)
}

/// The requests of a span that one volume gets.
struct Sent {
    start_ns: u64,
    length_ns: u64,
    count: u64,
    /// Bytes of all of them, in blocks of [`BLOCK`].
    blocks: u64,
}

impl Sent {
    fn of(span: &Span, space: &Space, layout: &Layout) -> Self {
        let share = layout.share(space);
        let mean = span.mean_bytes().max(BLOCK);
        let pieces = share.pieces(mean);
        let count = share.of_requests(span.requests.saturating_mul(pieces));
        // A piece that is too large for one request is sent as several.
        let parts = mean.div_ceil(pieces).div_ceil(LENGTH_MAX);
        let count = count.saturating_mul(parts);
        let bytes = share.of_requests(span.bytes);
        Self {
            start_ns: span.start_us.saturating_mul(NS_PER_US),
            length_ns: span.length_us.saturating_mul(NS_PER_US),
            count,
            blocks: bytes.div_ceil(BLOCK).max(count),
        }
    }

    /// Returns the length of a request in bytes. Lengths are whole blocks, and differ by at most
    /// one, so that all of them together have the bytes of the span.
    fn length(&self, number: u64) -> u32 {
        let before = |number: u64| {
            u128::from(self.blocks) * u128::from(number) / u128::from(self.count.max(1))
        };
        let bytes = (before(number + 1) - before(number)) * u128::from(BLOCK);
        u32::try_from(bytes.min(LENGTH_MAX.into())).expect("invariant: at most a MiB")
    }

    /// Returns the time of a request in nanoseconds. Requests are evenly distributed.
    fn at_ns(&self, number: u64) -> u64 {
        let offset = u128::from(self.length_ns) * (2 * u128::from(number) + 1);
        let offset = offset / (2 * u128::from(self.count.max(1)));
        self.start_ns.saturating_add(saturating::<_, u64>(offset))
    }
}

/// A scheduler with one volume, and the requests that wait.
struct Run {
    scheduler: Scheduler,
    volume: VolumeIndex,
    instance: bool,
    /// Arrival times of the requests in the scheduler, in order.
    with_it: VecDeque<u64>,
    /// Arrival times and lengths of the requests that found the scheduler's queue full.
    outside: VecDeque<(u64, u32)>,
    sent: u64,
    /// Time up to which waiting was counted.
    counted_ns: u64,
    waited_ns: u64,
    /// Time at which the last request was served.
    served_ns: u64,
    delays: Delays,
}

impl Run {
    /// Creates a scheduler at the start of a stretch.
    fn new(space: &Space, layout: &Layout, pacing: &Pacing, stretch: &Stretch) -> Option<Self> {
        let now = Instant::from_ns(stretch.start_us.saturating_mul(NS_PER_US));
        let of =
            |kind| stretch.credits.iter().find(|(it, _)| *it == kind).map(|(_, credits)| *credits);
        let has = |full: Balances, operations, bytes| Balances {
            operations: full.operations.and(of(operations)),
            bytes: full.bytes.and(of(bytes)),
        };
        let mut scheduler = Scheduler::new(now);
        let full = Balances::full(pacing);
        let balances = has(full, LimitKind::VolumeIops, LimitKind::VolumeBytes);
        let volume = scheduler.add(now, pacing, balances).ok()?;
        let instance = layout.instance_share(space);
        if let Some(shared) = &instance {
            let full = Balances::full(&shared.as_volume());
            let balances = has(full, LimitKind::InstanceIops, LimitKind::InstanceBytes);
            let added = scheduler.add_instance(now, shared, balances).ok()?;
            let claim = Claim::best_effort(pacing);
            scheduler.share(now, volume, pacing, (None, Some(added)), &claim).ok()?;
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
            served_ns: 0,
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

    /// Submits a request. Returns `false` if the queue is full.
    fn submit(&mut self, now_ns: u64, came_ns: u64, length: u32) -> bool {
        // An odd factor reaches every place.
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

    /// Advances the time to `end_ns`.
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

    /// Serves the requests that are due, and submits those that wait outside.
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
        self.served_ns = now_ns;
    }

    fn drain(&mut self) {
        self.until(u64::MAX);
    }

    /// Returns the nanoseconds so far for which each limit held the volume up.
    fn held_ns(&self) -> Vec<(LimitKind, u64)> {
        let exceeded = self.scheduler.exceeded(self.volume);
        let mut held_ns = vec![
            (LimitKind::VolumeIops, exceeded.operations_ns),
            (LimitKind::VolumeBytes, exceeded.bytes_ns),
        ];
        if self.instance {
            held_ns.push((LimitKind::InstanceIops, exceeded.instance_operations_ns));
            held_ns.push((LimitKind::InstanceBytes, exceeded.instance_bytes_ns));
        }
        held_ns
    }

    /// Adds the results to `exact`.
    fn end(self, exact: &mut Exact) {
        let held_ns = self.held_ns();
        exact.sent += self.sent;
        exact.end_us = exact.end_us.max(self.served_ns.div_ceil(NS_PER_US));
        exact.waited_us += self.waited_ns / NS_PER_US;
        exact.delays.merge(&self.delays);
        for (kind, ns) in held_ns {
            match exact.held_ns.iter_mut().find(|(it, _)| *it == kind) {
                Some((_, sum)) => *sum += ns,
                None => exact.held_ns.push((kind, ns)),
            }
        }
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
        assert_eq!((fits.requests, fits.sent, fits.waited_us), (14_500, 14_500, 0));
        let slow = run(&seconds(&[(1_900, 4); 5]));
        assert_eq!((slow.requests, slow.sent, slow.delays.total()), (9_500, 0, 9_500 * MICRO));
        let late = run(&seconds(&[(6_000, 4)]));
        assert_eq!(late.requests, 6_000);
        // The 6,000 of a second take two; 50 ms of tokens are saved at the start.
        assert!((1_850_000..=2_000_000).contains(&late.waited_us), "{}", late.waited_us);
        let held = |kind| late.held_ns.iter().find(|(it, _)| *it == kind).map(|(_, ns)| *ns);
        assert!(held(LimitKind::VolumeIops) > held(LimitKind::VolumeBytes));
        assert_eq!(replay(&space(&[], 1), &seconds(&[(6_000, 4)]), &gp3, 5_999), None);
        // Five volumes of 3,000 reach 15,000; an instance of 3,600 does not.
        let five = layout(5, VolumeType::Gp3, 100, None);
        let minute = seconds(&[(14_000, 4); 3]);
        let free = replay(&space(&[], 1), &minute, &five, 1_000_000).expect("few");
        assert_eq!((free.requests, free.waited_us), (8_400, 0));
        let five = Layout { instance: instance::by_name("m5.large"), ..five };
        let held = replay(&space(&[], 1), &minute, &five, 1_000_000).expect("few");
        let at_instance = held.held_ns.iter().find(|(it, _)| *it == LimitKind::InstanceIops);
        assert_eq!(at_instance.map(|(_, ns)| *ns), Some(0), "it bursts to 18,750");
    }

    /// A third of 256 KiB is no whole number of blocks.
    #[test]
    fn pieces_have_the_bytes_of_the_requests() {
        let space = space(&[], 6);
        for volumes in [1, 2, 3, 6] {
            let layout = layout(volumes, VolumeType::Gp3, 100, None);
            for (requests, bytes) in [(90, 90 << 18), (7, 7 * 100_000), (3, 3 << 21), (5, 0)] {
                let span = Span { length_us: 1_000_000, requests, bytes, ..Span::default() };
                let sent = Sent::of(&span, &space, &layout);
                let all: u64 = (0..sent.count).map(|number| u64::from(sent.length(number))).sum();
                let share = bytes.div_ceil(u64::from(volumes)).max(sent.count * BLOCK);
                assert_eq!(all, share.next_multiple_of(BLOCK), "{volumes} {requests} {bytes}");
                assert!((0..sent.count).all(|number| sent.length(number) >= 512));
            }
        }
    }

    #[test]
    fn each_second_is_held_up_by_what_binds_in_it() {
        // A second of 6,000, which takes two, and later a second of 200 MiB at 125 MiB/s.
        let demand = seconds(&[(6_000, 4), (0, 4), (0, 4), (0, 4), (0, 4), (1_600, 128)]);
        let space = space(&[], 1);
        let gp3 = layout(1, VolumeType::Gp3, 100, None);
        let held = held_each_second(&space, &demand, &gp3, 1_000_000).expect("few");
        let most = |second: usize| {
            let most = held[second].iter().max_by_key(|(_, ns)| *ns).expect("limits");
            (most.0, most.1 / 1_000_000)
        };
        assert!(most(0).1 > 900 && most(1).1 > 900, "{held:?}");
        assert_eq!((most(0).0, most(1).0), (LimitKind::VolumeIops, LimitKind::VolumeIops));
        assert_eq!((held[3].len(), most(5).0), (0, LimitKind::VolumeBytes), "{held:?}");
        let sum: u64 = held.iter().flatten().map(|(_, ns)| ns).sum();
        let exact = replay(&space, &demand, &gp3, 1_000_000).expect("few");
        assert_eq!(sum, exact.held_ns.iter().map(|(_, ns)| ns).sum::<u64>());
        assert_eq!(held_each_second(&space, &demand, &gp3, 1_000), None);
    }

    #[test]
    fn credits_are_known_where_nothing_is_sent() {
        // gp2 of 100 GiB: 300 IOPS. 1,000 IOPS use up 5.4 million credits in 7,714 s. Requests of
        // the remaining 286 s wait, until 200,000 are served.
        let gp2 = layout(1, VolumeType::Gp2, 100, None);
        let demand = seconds(&[(1_000, 4); 8_000]);
        let space = space(&[], 1);
        let exact = replay(&space, &demand, &gp2, 1_000_000).expect("few");
        assert_eq!(exact.requests, 8_000_000);
        assert!((286_000..400_000).contains(&exact.sent), "{}", exact.sent);
        let (_, fluid) = search::replay(&space, &demand, &gp2);
        assert!((950_000_000..956_000_000).contains(&fluid.waited_us()), "{}", fluid.waited_us());
        assert!(exact.waited_us.abs_diff(fluid.waited_us()) < 1_000_000, "{}", exact.waited_us);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(2)))]

        /// Compared with a replay that sends every request.
        #[test]
        fn what_is_not_sent_does_not_wait(
            all in proptest::collection::vec(
                prop_oneof![Just((0, 4)), (0..2_900_u64, 1..40_u64), (0..9_000_u64, 1..200_u64)],
                1..16,
            ),
            kind in 0..4_usize,
            volumes in 1..4_u32,
        ) {
            let layout = match kind {
                0 => layout(volumes, VolumeType::Gp3, 100, Some(4_000)),
                1 => layout(volumes, VolumeType::Gp2, 20, None),
                2 => layout(volumes, VolumeType::St1, 125, None),
                _ => layout(volumes, VolumeType::Io1, 100, Some(1_500)),
            };
            let space = space(&[], 1);
            let instance = instance::by_name("m5.large").filter(|_| kind == 3);
            let layout = Layout { instance, ..layout };
            let demand = seconds(&all);
            let few = replay(&space, &demand, &layout, 10_000_000).expect("few");
            let stretches = stretches(&space, &demand, &layout, 0);
            let whole = send(&space, &demand, &layout, &stretches).expect("few");
            prop_assert_eq!(whole.sent, whole.requests);
            prop_assert_eq!(few.requests, whole.requests);
            prop_assert_eq!(few.delays.total(), whole.delays.total());
            // One credit more or less at the start of a stretch, or one token.
            let slack = 2_000 * all.len() as u64;
            prop_assert!(
                few.waited_us.abs_diff(whole.waited_us) <= slack + whole.waited_us / 200,
                "{} {}", few.waited_us, whole.waited_us
            );
            let one = few.delays.most_us();
            let other = whole.delays.most_us();
            prop_assert!(one.abs_diff(other) <= 2_000 + other / 200, "{} {}", one, other);
        }

        /// The search uses the fluid. It differs from the scheduler by the tokens that a pacer
        /// saves, and by single requests.
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
            let demand = seconds(&all);
            let space = space(&[], 1);
            let exact = replay(&space, &demand, &layout, 1_000_000).expect("few");
            let (_, fluid) = search::replay(&space, &demand, &layout);
            // Saved tokens spare waiting: 50 ms of it whenever another limit holds.
            let saved = 60_000 * all.len() as u64;
            let slack = 1_000 * all.len() as u64 + fluid.waited_us() / 50;
            prop_assert!(
                exact.waited_us <= fluid.waited_us() + slack,
                "{} {}", exact.waited_us, fluid.waited_us()
            );
            let one = exact.delays.mean_us();
            let other = fluid.delays.mean_us();
            prop_assert!(one <= other + 2_000 && other <= one + saved, "{one} {other}");
            let one = exact.delays.most_us();
            let other = fluid.delays.most_us();
            prop_assert!(one.abs_diff(other) <= saved + other / 50, "{one} {other}");
        }
    }
}
