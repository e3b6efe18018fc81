//! Several volumes on one device, in virtual time: the figures that tell schedulers apart.
//!
//! The device has channels and, before them, a queue of its own that is served in order of arrival;
//! what a policy has given it cannot be taken back. Clients keep so many requests under way and may
//! pause between the answer to one and the next. The policy's timers go off on time: what is shown
//! here is order, not lateness.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use serde::Serialize;

use super::noise::Quantiles;
use super::windowed::DeviceCost;
use crate::figures::histogram::{LatencyHistogram, LatencySummary};
use crate::world::policy::{Dispatch, Policy, Request};
use evenkeel_core::random::Random;

const SECOND_NS: u64 = 1_000_000_000;

/// Polls in a row that a policy may ask for at one instant before time has to pass.
const POLLS_AT_ONCE_MAX: u32 = 1_024;

/// A device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Device {
    /// Requests served at a time.
    pub channels: u32,
    /// Median of what a request takes.
    pub cost: DeviceCost,
    /// Spread of the log-normal service times.
    pub sigma: f64,
}

impl Device {
    /// 32 channels, 80 us and 4 ns a byte: 220,000 I/Os of 16 KiB or 7.4 GB/s of 256 KiB a second.
    pub const NVME: Self =
        Self { channels: 32, cost: DeviceCost { request_ns: 80_000, byte_ns: 4 }, sigma: 0.2 };
}

/// The one client of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client {
    /// Requests under way at a time.
    pub depth: u32,
    /// Bytes of each request.
    pub length: u32,
    /// From the answer to a request to the next one.
    pub pause: Duration,
    /// What the requests do.
    pub operation: Operation,
}

/// What a volume got, after the warm-up.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Got {
    /// Requests done per second, on average.
    pub per_second: f64,
    /// Requests done in the worst second.
    pub worst_second: u64,
    /// Bytes per second, on average.
    pub bytes_per_second: f64,
    /// From submission to the last piece's completion.
    pub latency: LatencySummary,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Done { at: usize },
    Send { slot: usize },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    volume: u32,
    submitted: Instant,
    pieces: u32,
    last: bool,
}

#[derive(Debug)]
struct Volume {
    client: Client,
    seconds: Vec<u64>,
    latencies: LatencyHistogram,
    offset: u64,
    refused: VecDeque<usize>,
}

struct Bench<'a, P: ?Sized> {
    policy: &'a mut P,
    device: &'a Device,
    service: Quantiles,
    random: Random,
    slots: Vec<Slot>,
    volumes: Vec<Volume>,
    /// Events by time, then in the order they were made.
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    made: u64,
    dispatches: Vec<Option<(Dispatch, Instant)>>,
    vacant: Vec<usize>,
    /// What the device has been given and does not serve yet.
    device_queue: VecDeque<usize>,
    channels_busy: u32,
    warm_up_s: u32,
}

/// Runs clients, one a volume and numbered as they are, for `seconds` seconds after `warm_up_s`.
pub fn run<P: Policy + ?Sized>(
    policy: &mut P,
    device: &Device,
    clients: &[Client],
    warm_up_s: u32,
    seconds: u32,
    seed: u64,
) -> Vec<Got> {
    let total = (warm_up_s + seconds) as usize;
    let volume = |client: &Client| Volume {
        client: *client,
        seconds: vec![0; total],
        latencies: LatencyHistogram::new(),
        offset: 0,
        refused: VecDeque::new(),
    };
    let mut bench = Bench {
        policy,
        device,
        service: Quantiles::log_normal(device.sigma),
        random: Random::from_state(seed),
        slots: Vec::new(),
        volumes: clients.iter().map(volume).collect(),
        events: BinaryHeap::new(),
        made: 0,
        dispatches: Vec::new(),
        vacant: Vec::new(),
        device_queue: VecDeque::new(),
        channels_busy: 0,
        warm_up_s,
    };
    bench.begin();
    bench.go(Instant::from_ns(total as u64 * SECOND_NS));
    bench.got()
}

impl<P: Policy + ?Sized> Bench<'_, P> {
    /// One request of each client after the other, so that none has the device's queue to itself.
    fn begin(&mut self) {
        let deepest = self.volumes.iter().map(|volume| volume.client.depth).max().unwrap_or(0);
        for round in 0..deepest {
            for volume in 0..self.volumes.len() {
                if round < self.volumes[volume].client.depth {
                    let slot = Slot {
                        volume: volume as u32,
                        submitted: Instant::ZERO,
                        pieces: 0,
                        last: false,
                    };
                    self.slots.push(slot);
                    self.enter(Instant::ZERO, Event::Send { slot: self.slots.len() - 1 });
                }
            }
        }
    }

    fn enter(&mut self, at: Instant, event: Event) {
        self.made += 1;
        self.events.push(Reverse((at, self.made, event)));
    }

    fn go(&mut self, end: Instant) {
        loop {
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            let timer = self.policy.poll_timeout();
            let Some(now) = [event, timer].into_iter().flatten().min() else { return };
            if now >= end {
                return;
            }
            if event == Some(now) {
                let Some(Reverse((_, _, event))) = self.events.pop() else { return };
                match event {
                    Event::Send { slot } => self.send(now, slot),
                    Event::Done { at } => self.done(now, at),
                }
            } else if !self.poll(now) {
                return;
            }
        }
    }

    /// Whether the policy lets time go on.
    fn poll(&mut self, now: Instant) -> bool {
        for _ in 0..POLLS_AT_ONCE_MAX {
            self.policy.poll(now);
            self.dispatch(now);
            if self.policy.poll_timeout().is_none_or(|at| at > now) {
                return true;
            }
        }
        false
    }

    fn send(&mut self, now: Instant, slot: usize) {
        self.slots[slot].submitted = now;
        self.slots[slot].pieces = 0;
        self.slots[slot].last = false;
        self.offer(now, slot);
    }

    fn offer(&mut self, now: Instant, slot: usize) {
        let number = self.slots[slot].volume;
        let volume = &mut self.volumes[number as usize];
        volume.offset = (volume.offset + (1 << 30)) % (1 << 50);
        let request = Request {
            volume: number,
            instance: number,
            operation: volume.client.operation,
            offset: volume.offset,
            length: volume.client.length,
            handle: slot as u32,
        };
        if !self.policy.submit(now, &request) {
            volume.refused.push_back(slot);
        }
        self.dispatch(now);
    }

    fn dispatch(&mut self, now: Instant) {
        while let Some(dispatch) = self.policy.poll_output() {
            let slot = &mut self.slots[dispatch.handle as usize];
            slot.pieces += 1;
            slot.last |= dispatch.last;
            let at = self.vacant.pop().unwrap_or_else(|| {
                self.dispatches.push(None);
                self.dispatches.len() - 1
            });
            self.dispatches[at] = Some((dispatch, now));
            self.device_queue.push_back(at);
            if let Some(slot) = self.volumes[dispatch.volume as usize].refused.pop_front() {
                self.offer(now, slot);
            }
        }
        self.serve(now);
    }

    fn serve(&mut self, now: Instant) {
        while self.channels_busy < self.device.channels {
            let Some(at) = self.device_queue.pop_front() else { return };
            let Some((dispatch, _)) = self.dispatches[at] else { return };
            let service_ns =
                self.service.draw(&mut self.random, self.device.cost.of(dispatch.length));
            self.channels_busy += 1;
            self.enter(now + Duration::from_ns(service_ns), Event::Done { at });
        }
    }

    fn done(&mut self, now: Instant, at: usize) {
        let Some((dispatch, given)) = self.dispatches[at].take() else { return };
        self.vacant.push(at);
        self.channels_busy -= 1;
        // The device goes on by itself before anyone hears that it is done with this one.
        self.serve(now);
        self.policy.complete(now, &dispatch, now.since(given));
        let slot = &mut self.slots[dispatch.handle as usize];
        slot.pieces -= 1;
        if slot.pieces == 0 && slot.last {
            let submitted = slot.submitted;
            let volume = &mut self.volumes[dispatch.volume as usize];
            volume.seconds[(now.ns / SECOND_NS) as usize] += 1;
            if submitted.ns >= u64::from(self.warm_up_s) * SECOND_NS {
                volume.latencies.record(now.since(submitted).ns);
            }
            let next = now + volume.client.pause;
            self.enter(next, Event::Send { slot: dispatch.handle as usize });
        }
        self.dispatch(now);
    }

    fn got(&self) -> Vec<Got> {
        let got = |volume: &Volume| {
            let measured = &volume.seconds[self.warm_up_s as usize..];
            let seconds = measured.len().max(1) as f64;
            let per_second = measured.iter().sum::<u64>() as f64 / seconds;
            Got {
                per_second,
                worst_second: measured.iter().min().copied().unwrap_or(0),
                bytes_per_second: per_second * f64::from(volume.client.length),
                latency: volume.latencies.summary(),
            }
        };
        self.volumes.iter().map(got).collect()
    }
}
