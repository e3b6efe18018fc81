//! A policy under load in a closed loop: clients, one a volume, that keep so many requests under
//! way, and a device with channels. What happens is counted by volume; [`bench`](super::bench) and
//! [`device_bench`](super::device_bench) make their figures of that.

use std::collections::VecDeque;

use evenkeel_core::random::Random;
use evenkeel_core::time::{Duration, Instant};

use super::device_bench::{Client, Device};
use super::noise::Quantiles;
use crate::closed_loop::{ClosedLoop, Timeline};
use crate::figures::histogram::LatencyHistogram;
use crate::world::policy::{Dispatch, Policy, Request};

pub(super) const SECOND_NS: u64 = 1_000_000_000;
/// Dispatches are counted in windows of this length.
pub(super) const WINDOW_NS: u64 = 10_000_000;

const LATENESS_MEAN_NS: u64 = 15_000;
const STALLS_PPM: u32 = 1_000;
const STALL_NS: u64 = 1_500_000;

/// What a policy meets that was made at time zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub(super) device: &'a Device,
    /// Of the volumes 0, 1, 2, ...
    pub(super) clients: &'a [Client],
    /// Of a request of the device's cost.
    pub(super) service: &'a Quantiles,
    /// Of timers; `None` if they go off on time.
    pub(super) lateness: Option<&'a Quantiles>,
    /// When the clients begin.
    pub(super) start: Instant,
    /// Seconds before those that are measured.
    pub(super) warm_up_s: u32,
    /// Seconds that are measured.
    pub(super) measured_s: u32,
}

impl Setting<'_> {
    const fn seconds(&self) -> usize {
        (self.warm_up_s + self.measured_s) as usize
    }
}

/// What was counted of a volume, from the start of its client.
#[derive(Debug)]
pub(super) struct Tally {
    /// Requests of which the last piece went to the device, in windows of [`WINDOW_NS`].
    pub(super) dispatched: Vec<u32>,
    /// Requests answered, by second.
    pub(super) answered: Vec<u64>,
    /// Latencies of requests that were sent after the warm-up.
    pub(super) latencies: LatencyHistogram,
}

/// A request that a client keeps under way.
#[derive(Clone, Copy, Debug)]
struct Slot {
    volume: u32,
    submitted: Instant,
    /// Pieces at the device.
    pieces: u32,
    /// Whether the last piece was given to the device.
    last: bool,
}

#[derive(Debug)]
struct LoadedVolume {
    client: Client,
    tally: Tally,
    offset: u64,
    /// Slots that the policy had no room for.
    refused: VecDeque<u32>,
}

struct Loaded<'a, P: ?Sized> {
    policy: &'a mut P,
    setting: &'a Setting<'a>,
    random: Random,
    slots: Vec<Slot>,
    volumes: Vec<LoadedVolume>,
    /// Of dispatches, and when each was given to the device.
    timeline: Timeline<(Dispatch, Instant)>,
}

/// Runs a load on a policy.
pub(super) fn run<P: Policy + ?Sized>(
    policy: &mut P,
    setting: &Setting<'_>,
    seed: u64,
) -> Vec<Tally> {
    let windows = setting.seconds() * (SECOND_NS / WINDOW_NS) as usize;
    let volume = |client: &Client| LoadedVolume {
        client: *client,
        tally: Tally {
            dispatched: vec![0; windows],
            answered: vec![0; setting.seconds()],
            latencies: LatencyHistogram::new(),
        },
        offset: 0,
        refused: VecDeque::new(),
    };
    let mut loaded = Loaded {
        policy,
        setting,
        random: Random::from_state(seed),
        slots: slots(setting.clients),
        volumes: setting.clients.iter().map(volume).collect(),
        timeline: Timeline::new(Instant::ZERO, setting.device.channels),
    };
    loaded.timeline.send_at(setting.start, BEGIN);
    loaded.run_until(setting.start + Duration::from_secs(setting.seconds() as u64));
    loaded.volumes.into_iter().map(|volume| volume.tally).collect()
}

/// For [`ClosedLoop::send`]: all clients send all they keep under way.
const BEGIN: u32 = u32::MAX;

/// One request of each client after the other, so that none has the device's queue to itself.
fn slots(clients: &[Client]) -> Vec<Slot> {
    let deepest = clients.iter().map(|client| client.depth).max().unwrap_or(0);
    let round = |round| {
        let volumes = (0..).zip(clients).filter(move |(_, client)| round < client.depth);
        volumes.map(|(volume, _)| Slot { volume, submitted: Instant::ZERO, pieces: 0, last: false })
    };
    (0..deepest).flat_map(round).collect()
}

impl<P: Policy + ?Sized> Loaded<'_, P> {
    fn offer(&mut self, now: Instant, handle: u32) {
        let number = self.slots[handle as usize].volume;
        let volume = &mut self.volumes[number as usize];
        // Far apart, so that nothing is sequential.
        volume.offset = (volume.offset + (1 << 30)) % (1 << 50);
        let request = Request {
            volume: number,
            instance: number,
            operation: volume.client.operation,
            offset: volume.offset,
            length: volume.client.length,
            handle,
        };
        if !self.policy.submit(now, &request) {
            volume.refused.push_back(handle);
        }
    }
}

impl<P: Policy + ?Sized> ClosedLoop for Loaded<'_, P> {
    type Piece = (Dispatch, Instant);

    fn timeline(&mut self) -> &mut Timeline<Self::Piece> {
        &mut self.timeline
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.policy.poll_timeout()
    }

    fn poll(&mut self, now: Instant) {
        self.policy.poll(now);
    }

    fn poll_output(&mut self, now: Instant) -> Option<Self::Piece> {
        let dispatch = self.policy.poll_output()?;
        let slot = &mut self.slots[dispatch.handle as usize];
        slot.pieces += 1;
        slot.last |= dispatch.last;
        let volume = &mut self.volumes[dispatch.volume as usize];
        let window = now.since(self.setting.start).ns / WINDOW_NS;
        volume.tally.dispatched[window as usize] += u32::from(dispatch.last);
        if let Some(handle) = volume.refused.pop_front() {
            self.offer(now, handle);
        }
        Some((dispatch, now))
    }

    fn service(&mut self, _: Instant, (dispatch, _): &Self::Piece) -> Duration {
        let cost_ns = self.setting.device.cost.of(dispatch.length);
        Duration::from_ns(self.setting.service.draw(&mut self.random, cost_ns))
    }

    fn complete(&mut self, now: Instant, (dispatch, given): Self::Piece) {
        self.policy.complete(now, &dispatch, now.since(given));
        let slot = &mut self.slots[dispatch.handle as usize];
        slot.pieces -= 1;
        if slot.pieces > 0 || !slot.last {
            return;
        }
        let (start, warm_up_s) = (self.setting.start, self.setting.warm_up_s);
        let volume = &mut self.volumes[dispatch.volume as usize];
        volume.tally.answered[(now.since(start).ns / SECOND_NS) as usize] += 1;
        if slot.submitted >= start + Duration::from_secs(warm_up_s.into()) {
            volume.tally.latencies.record(now.since(slot.submitted).ns);
        }
        self.timeline.send_at(now + volume.client.pause, dispatch.handle);
    }

    fn send(&mut self, now: Instant, number: u32) {
        let all = 0..self.slots.len() as u32;
        for handle in if number == BEGIN { all } else { number..number + 1 } {
            let slot = &mut self.slots[handle as usize];
            *slot = Slot { submitted: now, pieces: 0, last: false, ..*slot };
            self.offer(now, handle);
            self.dispatch();
        }
    }

    /// As of an event loop that is busy with something else now and then.
    fn timer_lateness(&mut self) -> Duration {
        let Some(lateness) = self.setting.lateness else { return Duration::ZERO };
        let late_ns = lateness.draw(&mut self.random, LATENESS_MEAN_NS);
        let is_stalled = self.random.chance_ppm(STALLS_PPM);
        Duration::from_ns(late_ns + if is_stalled { STALL_NS } else { 0 })
    }
}
