//! One volume at its limit, in virtual time: the figures that tell limiters apart.
//!
//! A closed loop of so many requests at a time meets a device that serves any number at once, each
//! in a log-normal time. Whatever timer a policy asks for goes off late: exponentially distributed
//! with a mean of 15 us, and one in a thousand 1.5 ms later still, as an event loop that is busy
//! with something else. The loop starts after the volume has been idle; what is sent in its first
//! second is one figure, and after a warm-up the seconds that follow are the others.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use serde::Serialize;

use super::noise::Quantiles;
use crate::figures::histogram::LatencyHistogram;
use crate::world::policy::{Dispatch, Policy, Request};
use evenkeel_core::random::Random;

const SECOND_NS: u64 = 1_000_000_000;
const PEAK_WINDOW_NS: u64 = 10_000_000;

/// Spread of the device's service times.
const SERVICE_SIGMA: f64 = 0.35;
const LATENESS_MEAN_NS: u64 = 15_000;
const STALLS_PPM: u32 = 1_000;
const STALL_NS: u64 = 1_500_000;

/// Polls in a row that a policy may ask for at one instant before time has to pass.
const POLLS_AT_ONCE_MAX: u32 = 1_024;

/// The volume is idle for this long before the load begins.
pub const IDLE: Duration = Duration::from_secs(3);

/// What meets the limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// I/Os per second the volume is limited to, for the figures.
    pub limit: u64,
    /// Requests the client has under way at a time.
    pub depth: u32,
    /// Bytes of each request.
    pub length: u32,
    /// Median of the device's service time.
    pub service: Duration,
    /// When the load begins; the policy was made at time zero.
    pub start: Instant,
    /// Seconds before those that are measured.
    pub warm_up_s: u32,
    /// Seconds that are measured.
    pub measured_s: u32,
}

impl Load {
    /// Reads of 4 KiB at this depth against this limit, on a device of 250 us: 60 seconds after 2,
    /// after [`IDLE`].
    #[must_use]
    pub const fn new(limit: u64, depth: u32) -> Self {
        Self {
            limit,
            depth,
            length: 4_096,
            service: Duration::from_us(250),
            start: Instant::from_ns(IDLE.ns),
            warm_up_s: 2,
            measured_s: 60,
        }
    }
}

/// What a limiter made of the load. Ratios are relative to the limit: 0.01 is one percent too many.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Figures {
    /// All measured seconds together.
    pub mean_error: f64,
    /// Coefficient of variation of the seconds' counts.
    pub cov: f64,
    /// The second furthest from the limit.
    pub worst_second: f64,
    /// The first second after idle.
    pub first_second: f64,
    /// The busiest 10 ms, of those that begin at whole ones, as a multiple of the limit's average.
    pub peak_10_ms: f64,
    /// Median latency in nanoseconds, from submission to completion.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Requests given to the device from the beginning of the load.
    pub dispatched: u64,
}

/// The distributions, which are the same for all runs.
#[derive(Debug)]
pub struct Noise {
    service: Quantiles,
    lateness: Quantiles,
}

impl Noise {
    /// Makes the tables.
    #[must_use]
    pub fn new() -> Self {
        Self { service: Quantiles::log_normal(SERVICE_SIGMA), lateness: Quantiles::exponential() }
    }
}

impl Default for Noise {
    fn default() -> Self {
        Self::new()
    }
}

/// A request of the loop.
#[derive(Clone, Copy, Debug)]
struct Slot {
    submitted: Instant,
    /// Pieces in the device.
    pieces: u32,
    /// Whether the last piece has been given to the device.
    last: bool,
}

struct Bench<'a, P: ?Sized> {
    policy: &'a mut P,
    load: &'a Load,
    noise: &'a Noise,
    random: Random,
    slots: Vec<Slot>,
    /// Requests the policy had no room for.
    refused: VecDeque<u32>,
    in_device: BinaryHeap<Reverse<(Instant, u64)>>,
    dispatches: Vec<Option<(Dispatch, Instant)>>,
    vacant: Vec<usize>,
    timer: Option<(Instant, Instant)>,
    seconds: Vec<u64>,
    windows: Vec<u32>,
    latencies: LatencyHistogram,
    dispatched: u64,
    offset: u64,
}

/// Runs a load on a policy that was made at time zero and carries the one volume 0.
pub fn run<P: Policy + ?Sized>(policy: &mut P, load: &Load, noise: &Noise, seed: u64) -> Figures {
    let slot = Slot { submitted: Instant::ZERO, pieces: 0, last: false };
    let seconds = (load.warm_up_s + load.measured_s) as usize;
    let mut bench = Bench {
        policy,
        load,
        noise,
        random: Random::from_state(seed),
        slots: vec![slot; load.depth as usize],
        refused: VecDeque::new(),
        in_device: BinaryHeap::new(),
        dispatches: Vec::new(),
        vacant: Vec::new(),
        timer: None,
        seconds: vec![0; seconds],
        windows: vec![0; seconds * (SECOND_NS / PEAK_WINDOW_NS) as usize],
        latencies: LatencyHistogram::new(),
        dispatched: 0,
        offset: 0,
    };
    bench.go();
    bench.figures()
}

impl<P: Policy + ?Sized> Bench<'_, P> {
    fn go(&mut self) {
        let end = self.load.start + Duration::from_ns(self.seconds.len() as u64 * SECOND_NS);
        self.set_timer(Instant::ZERO);
        let mut begun = false;
        loop {
            let begin = (!begun).then_some(self.load.start);
            let done = self.in_device.peek().map(|Reverse((at, _))| *at);
            let timer = self.timer.map(|(_, goes_off)| goes_off);
            let now = [begin, done, timer].into_iter().flatten().min();
            let Some(now) = now.filter(|now| *now < end) else { return };
            if done == Some(now) {
                self.complete(now);
            } else if timer == Some(now) {
                self.poll(now);
            } else {
                begun = true;
                for slot in 0..self.load.depth {
                    self.submit(now, slot);
                }
            }
            self.set_timer(now);
        }
    }

    /// Makes the timer what the policy asks for. A timer that stays the same keeps its lateness.
    fn set_timer(&mut self, now: Instant) {
        let wanted = self.policy.poll_timeout();
        if wanted == self.timer.map(|(wanted, _)| wanted) {
            return;
        }
        self.timer = wanted.map(|at| {
            let mut late_ns = self.noise.lateness.draw(&mut self.random, LATENESS_MEAN_NS);
            if self.random.chance_ppm(STALLS_PPM) {
                late_ns += STALL_NS;
            }
            (at, at.max(now) + Duration::from_ns(late_ns))
        });
    }

    fn submit(&mut self, now: Instant, slot: u32) {
        self.slots[slot as usize] = Slot { submitted: now, pieces: 0, last: false };
        self.offer(now, slot);
    }

    fn offer(&mut self, now: Instant, slot: u32) {
        // Far apart, so that nothing is sequential.
        self.offset = (self.offset + (1 << 30)) % (1 << 50);
        let request = Request {
            volume: 0,
            instance: 0,
            operation: Operation::Read,
            offset: self.offset,
            length: self.load.length,
            handle: slot,
        };
        if !self.policy.submit(now, &request) {
            self.refused.push_back(slot);
        }
        self.dispatch(now);
    }

    fn poll(&mut self, now: Instant) {
        self.timer = None;
        for _ in 0..POLLS_AT_ONCE_MAX {
            self.policy.poll(now);
            self.dispatch(now);
            if self.policy.poll_timeout().is_none_or(|at| at > now) {
                return;
            }
        }
    }

    fn dispatch(&mut self, now: Instant) {
        while let Some(dispatch) = self.policy.poll_output() {
            self.dispatched += u64::from(dispatch.last);
            let since_ns = now.since(self.load.start).ns;
            if dispatch.last {
                self.seconds[(since_ns / SECOND_NS) as usize] += 1;
                self.windows[(since_ns / PEAK_WINDOW_NS) as usize] += 1;
            }
            let slot = &mut self.slots[dispatch.handle as usize];
            slot.pieces += 1;
            slot.last |= dispatch.last;
            let service_ns = self.noise.service.draw(&mut self.random, self.load.service.ns);
            let at = self.vacant.pop().unwrap_or_else(|| {
                self.dispatches.push(None);
                self.dispatches.len() - 1
            });
            self.dispatches[at] = Some((dispatch, now));
            let done = now + Duration::from_ns(service_ns);
            self.in_device.push(Reverse((done, at as u64)));
            if let Some(slot) = self.refused.pop_front() {
                self.offer(now, slot);
            }
        }
    }

    fn complete(&mut self, now: Instant) {
        let Some(Reverse((_, at))) = self.in_device.pop() else { return };
        let Some((dispatch, given)) = self.dispatches[at as usize].take() else { return };
        self.vacant.push(at as usize);
        self.policy.complete(now, &dispatch, now.since(given));
        let slot = &mut self.slots[dispatch.handle as usize];
        slot.pieces -= 1;
        if slot.pieces > 0 || !slot.last {
            self.dispatch(now);
            return;
        }
        let submitted = slot.submitted;
        let warm = self.load.start + Duration::from_secs(self.load.warm_up_s.into());
        if submitted >= warm {
            self.latencies.record(now.since(submitted).ns);
        }
        self.submit(now, dispatch.handle);
    }

    fn figures(&self) -> Figures {
        let warm_up = self.load.warm_up_s as usize;
        let limit = self.load.limit as f64;
        let error = |count: u64| count as f64 / limit - 1.0;
        let measured = &self.seconds[warm_up..];
        let count = measured.len().max(1) as f64;
        let mean = measured.iter().sum::<u64>() as f64 / count;
        let squares = measured.iter().map(|n| (*n as f64 - mean) * (*n as f64 - mean)).sum::<f64>();
        let furthest = |one: &f64, other: &f64| one.abs().total_cmp(&other.abs());
        let windows_per_second = SECOND_NS / PEAK_WINDOW_NS;
        let steady = &self.windows[warm_up * windows_per_second as usize..];
        let peak = steady.iter().max().copied().unwrap_or(0);
        let latency = self.latencies.summary();
        Figures {
            mean_error: if measured.is_empty() { 0.0 } else { mean / limit - 1.0 },
            cov: if mean > 0.0 { (squares / count).sqrt() / mean } else { 0.0 },
            worst_second: measured.iter().map(|n| error(*n)).max_by(furthest).unwrap_or(0.0),
            first_second: self.seconds.first().map_or(0.0, |n| error(*n)),
            peak_10_ms: f64::from(peak) * windows_per_second as f64 / limit,
            p50_ns: latency.p50_ns,
            p99_ns: latency.p99_ns,
            dispatched: self.dispatched,
        }
    }
}
