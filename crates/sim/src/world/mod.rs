//! The loop of the reactor in virtual time: wait, handle completions, dispatch.
//!
//! ```text
//!  clients ─ submit ─▶ policy ─ poll_output ─▶ device ─ complete ─▶ clients
//!     ▲                                                               │
//!     └──────────── now = the time of the earliest event ─◀───────────┘
//! ```
//!
//! This module is independent of the policy: the product's scheduler and models of others run in
//! the same world.
//!
//! Billions of requests pass through this code, and calls would take a tenth of its time. So the
//! functions that handle each request are inlined, here and in the client, the device and the
//! record.

pub mod client;
pub mod device;
pub mod events;
pub mod live;
pub mod policy;
mod poller;
pub mod product;
pub mod record;
mod requests;
pub mod run;
mod steady;
mod stripe;
pub mod swarm;
mod table;
#[cfg(test)]
mod tests;
mod watched;

use self::client::{BatchRecord, Client, NO_THREAD, NextSend};
use self::device::Device;
use self::events::Heap;
use self::policy::{Policy, Request};
use self::poller::Poller;
use self::record::{Record, Recorder, Span};
use self::requests::number_of;
use self::steady::Snapshot;
use crate::scenario::setup::{ChangeKind, Setup, StripeSetup};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::random::Random;
use evenkeel_core::time::Instant;
use slab::Slab;
use std::collections::VecDeque;

/// Maximum number of records for which latencies are kept over time. It bounds memory.
const STRETCHED_RECORDS_MAX: usize = 64;

/// State of a volume's request until it is answered.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    submitted_at: u64,
    client: u32,
    length: u32,
    /// The client's request that this is a part of, or [`NO_GROUP`].
    group: u32,
    thread: u16,
    /// Number of its pieces at the device.
    pieces: u16,
    /// Whether the last piece was given to the device.
    whole: bool,
}

const NO_GROUP: u32 = u32::MAX;

/// A client's request that a stripe has split.
#[derive(Clone, Copy, Debug)]
struct Group {
    submitted_at: u64,
    length: u32,
    parts: u32,
}

/// An event that ends a wait of the world.
#[derive(Clone, Copy, Debug)]
enum Event {
    Start(u32),
    Wake(u32, u16),
    Change(u32),
}

/// State of one volume.
#[derive(Debug)]
struct RunningVolume {
    recorder: Recorder,
    /// Requests that the policy's full queue refused, in the order of arrival.
    blocked: VecDeque<Request>,
    instance: u32,
    has_credits: bool,
}

/// Number of requests in each place. `submitted` is the sum of `completed`, `blocked` and
/// `under_way`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Requests to volumes so far.
    pub submitted: u64,
    /// Answered.
    pub completed: u64,
    /// Refused by the policy's full queue; they are submitted again.
    pub blocked: u64,
    /// With the policy, or at the device.
    pub under_way: u64,
    /// Pieces at the device.
    pub pieces_at_device: u64,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome<P> {
    /// The record of each volume.
    pub volumes: Vec<Record>,
    /// The outcome of each client.
    pub clients: Vec<ClientOutcome>,
    /// Number of requests in each place at the end.
    pub census: Census,
    /// The policy at the end.
    pub policy: P,
}

/// The outcome of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientOutcome {
    /// Its own record; `None` if it equals its volume's.
    pub record: Option<Record>,
    /// Batches that have ended.
    pub batches: Vec<BatchRecord>,
    /// Requests that were not sent because too many were in flight.
    pub dropped: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct World<P> {
    policy: P,
    now: u64,
    end: u64,
    sample_ns: u64,
    next_sample: u64,
    events: Heap<Event>,
    device: Device,
    poller: Poller,
    volumes: Vec<RunningVolume>,
    stripes: Vec<StripeSetup>,
    clients: Vec<Client>,
    changes: Vec<ChangeKind>,
    requests: Slab<UnderWay>,
    groups: Slab<Group>,
    submitted: u64,
    completed: u64,
    /// Whether repeated stretches are skipped; see `steady.rs`.
    may_leap: bool,
    /// The state at the end of the last sample, if it is known.
    snapshot: Option<Snapshot>,
}

impl<P: Policy> World<P> {
    /// Creates a world at time 0.
    #[must_use]
    pub fn new(setup: &Setup, seed: u64, policy: P) -> Self {
        let samples = setup.duration_ns / setup.sample_ns.max(1);
        let stretched = setup.volumes.len() + setup.clients.len() <= STRETCHED_RECORDS_MAX;
        let recorder = || Recorder::new(samples, stretched);
        let volumes = setup.volumes.iter().map(|volume| RunningVolume {
            recorder: recorder(),
            blocked: VecDeque::new(),
            instance: volume.instance.unwrap_or(0),
            has_credits: [volume.pacing.operations, volume.pacing.bytes]
                .iter()
                .flatten()
                .any(|limit| limit.credit.is_some()),
        });
        let mut events = Heap::new();
        for (change, number) in setup.changes.iter().zip(0..) {
            events.push(change.at_ns, Event::Change(number));
        }
        let mut clients = Vec::with_capacity(setup.clients.len());
        for (client, number) in setup.clients.iter().zip(0_u32..) {
            if !client.is_live_only() {
                events.push(client.start_ns, Event::Start(number));
            }
            let random = Random::new(seed, u64::from(number) + 2);
            let own = (!setup.is_sole(client.target)).then(recorder);
            clients.push(Client::new(client, random, own));
        }
        Self {
            policy,
            now: 0,
            end: setup.duration_ns,
            sample_ns: setup.sample_ns.max(1),
            next_sample: setup.sample_ns.max(1),
            events,
            device: Device::new(&setup.device, Random::new(seed, 0)),
            poller: Poller::new(&setup.poller, Random::new(seed, 1)),
            volumes: volumes.collect(),
            stripes: setup.stripes.clone(),
            clients,
            changes: setup.changes.iter().map(|change| change.kind.clone()).collect(),
            requests: Slab::new(),
            groups: Slab::new(),
            submitted: 0,
            completed: 0,
            may_leap: false,
            snapshot: None,
        }
    }

    /// Skips stretches that repeat the previous one exactly, if the setup allows it at all. The
    /// records and the census are identical to those of a complete simulation. The policy's own
    /// counters are not, and of requests in flight the places and directions are those of earlier
    /// requests. `setup` must be the one that the world was created with.
    #[must_use]
    pub fn leaping(mut self, setup: &Setup) -> Self {
        self.may_leap = steady::may_repeat(setup);
        self
    }

    /// Also records the latencies of a volume in a span, for its own record.
    pub fn watch_volume(&mut self, volume: u32, span: Span) {
        if let Some(volume) = self.volumes.get_mut(volume as usize) {
            volume.recorder.watch(span);
        }
    }

    /// Also records the latencies of a client in a span, if it has a record of its own.
    pub fn watch_client(&mut self, client: u32, span: Span) {
        let client = self.clients.get_mut(client as usize);
        if let Some(recorder) = client.and_then(|client| client.recorder.as_mut()) {
            recorder.watch(span);
        }
    }

    /// Runs until the end of the setup's duration.
    #[must_use]
    pub fn run(mut self) -> Outcome<P> {
        while self.turn() {}
        self.close_samples(self.end);
        let census = self.census();
        let clients = self.clients.into_iter().map(|client| ClientOutcome {
            record: client.recorder.map(Recorder::finish),
            batches: client.batches,
            dropped: client.dropped,
        });
        Outcome {
            volumes: self.volumes.into_iter().map(|volume| volume.recorder.finish()).collect(),
            clients: clients.collect(),
            census,
            policy: self.policy,
        }
    }

    /// Executes one turn of the loop. Returns `false` if the run is over.
    pub fn turn(&mut self) -> bool {
        let next = self.next_at();
        if next >= self.end {
            return false;
        }
        self.now = self.poller.wake(next).min(self.end - 1);
        let now = self.now;
        if self.next_sample <= now {
            self.close_samples(now);
            self.leap_if_steady();
            if self.end <= now {
                return false;
            }
        }
        // Only calls change the policy's timeout.
        let mut asked = Some(self.poller.asked);
        while let Some(done) = self.device.poll(now) {
            self.complete(&done);
            asked = None;
        }
        while self.events.first_at().is_some_and(|time| time <= now) {
            self.handle_next();
            asked = None;
        }
        let mut asked = asked.unwrap_or_else(|| self.ask());
        if asked <= now {
            self.policy.poll(Instant::from_ns(now));
            self.dispatch();
            asked = self.ask();
        }
        self.poller.arm(now, asked);
        true
    }

    /// Returns the number of requests in each place.
    #[must_use]
    pub fn census(&self) -> Census {
        let blocked = self.volumes.iter().map(|volume| volume.blocked.len() as u64).sum();
        Census {
            submitted: self.submitted,
            completed: self.completed,
            blocked,
            under_way: self.requests.len() as u64 - blocked,
            pieces_at_device: self.device.len() as u64,
        }
    }

    /// Returns the policy.
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    fn next_at(&self) -> u64 {
        let event = self.events.first_at().unwrap_or(u64::MAX);
        self.device.next_at().min(event).min(self.poller.at).min(self.next_sample)
    }

    /// Returns the time at which the policy wants to be polled; `u64::MAX` without one.
    fn ask(&self) -> u64 {
        self.policy.poll_timeout().map_or(u64::MAX, |timeout| timeout.ns)
    }

    fn close_samples(&mut self, now: u64) {
        while self.next_sample <= now {
            let at = self.next_sample;
            for number in 0..self.volumes.len() {
                let balances = self.balances_of(number, at);
                self.volumes[number].recorder.close_sample(at, balances);
            }
            for recorder in self.clients.iter_mut().filter_map(|client| client.recorder.as_mut()) {
                recorder.close_sample(at, Balances::default());
            }
            self.next_sample += self.sample_ns;
        }
    }

    fn balances_of(&mut self, volume: usize, at: u64) -> Balances {
        if !self.volumes[volume].has_credits {
            return Balances::default();
        }
        self.policy.balances(Instant::from_ns(at), number_of(volume))
    }

    fn handle_next(&mut self) {
        let Some((_, event)) = self.events.pop_due(self.now) else { return };
        match event {
            Event::Start(client) => {
                let step = self.clients[client as usize].start(self.now);
                self.carry_out(client, step);
            }
            Event::Wake(client, thread) => {
                let step = self.clients[client as usize].wake(self.now, thread);
                self.carry_out(client, step);
                if thread == NO_THREAD && step != NextSend::Rest {
                    let step = self.clients[client as usize].after_arrival(self.now);
                    self.carry_out(client, step);
                }
            }
            Event::Change(number) => self.change(number),
        }
    }

    fn change(&mut self, number: u32) {
        let now = Instant::from_ns(self.now);
        match &self.changes[number as usize] {
            ChangeKind::SetLimits(volume, pacing) => {
                self.policy.set_limits(now, *volume, pacing);
            }
            ChangeKind::SetBalances(volume, balances) => {
                self.policy.set_balances(now, *volume, *balances);
            }
            ChangeKind::Stall(length_ns) => self.device.pause(self.now, *length_ns),
            ChangeKind::DevicePercent(percent) => self.device.set_percent(*percent),
            ChangeKind::DeviceChannels(count) => self.device.set_channels(self.now, *count),
        }
        self.dispatch();
    }
}
