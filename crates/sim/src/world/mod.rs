//! The loop of the reactor in virtual time: wait, handle what ended, dispatch what is due.
//!
//! ```text
//!  clients ─ submit ─▶ policy ─ poll_output ─▶ device ─ complete ─▶ clients
//!     ▲                                                               │
//!     └──────────── now = the earliest of what comes next ◀───────────┘
//! ```
//!
//! Nothing here knows what the policy does: the product's scheduler and models of others run in the
//! same world.
//!
//! Billions of requests pass here, and a tenth of their time would be calls: whatever happens to
//! each of them is inlined into the turn by force, here, in the client, the device and the record.

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

/// Latencies are kept over time only where they do not take more memory than this many records.
const STRETCHED_RECORDS_MAX: usize = 64;

/// What a volume's request needs until it is answered.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    submitted_at: u64,
    client: u32,
    length: u32,
    /// The whole that this is a part of, or [`NO_GROUP`].
    group: u32,
    thread: u16,
    /// Pieces at the device.
    pieces: u16,
    /// Whether the last piece went to the device.
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

/// What wakes the world.
#[derive(Clone, Copy, Debug)]
enum Event {
    Start(u32),
    Wake(u32, u16),
    Change(u32),
}

/// One volume while the world runs.
#[derive(Debug)]
struct RunningVolume {
    recorder: Recorder,
    /// Requests that found the policy's queue full, in the order they came.
    blocked: VecDeque<Request>,
    instance: u32,
    has_credits: bool,
}

/// Where all requests are. `submitted` is the sum of the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Requests to volumes made so far.
    pub submitted: u64,
    /// Answered.
    pub completed: u64,
    /// Refused by the policy's full queue, to be submitted again.
    pub blocked: u64,
    /// With the policy, or at the device.
    pub under_way: u64,
    /// Pieces at the device.
    pub pieces_at_device: u64,
}

/// What became of a run.
#[derive(Debug)]
pub struct Outcome<P> {
    /// Of each volume.
    pub volumes: Vec<Record>,
    /// Of each client.
    pub clients: Vec<ClientOutcome>,
    /// Where the requests were at the end.
    pub census: Census,
    /// The policy at the end.
    pub policy: P,
}

/// What became of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientOutcome {
    /// Its own record; `None` if it is its volume's.
    pub record: Option<Record>,
    /// Batches that ended.
    pub batches: Vec<BatchRecord>,
    /// Requests that were not sent because too many were under way.
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
    /// Whether what repeats itself is leapt over; see `steady.rs`.
    may_leap: bool,
    /// The state at the end of the last sample, if it is known.
    snapshot: Option<Snapshot>,
}

impl<P: Policy> World<P> {
    /// A world before its first nanosecond.
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

    /// Does not simulate again what repeats itself exactly, where that is possible at all: the
    /// records and the census are the same, to the bit. What the policy counts by itself is not,
    /// and of what is under way the places, and whether it reads, are those of earlier requests.
    /// `setup` must be the one it was made of.
    #[must_use]
    pub fn leaping(mut self, setup: &Setup) -> Self {
        self.may_leap = steady::may_repeat(setup);
        self
    }

    /// Also keeps the latencies of a part of the run: of a volume, or of a client's own record.
    pub fn watch_volume(&mut self, volume: u32, span: Span) {
        if let Some(volume) = self.volumes.get_mut(volume as usize) {
            volume.recorder.watch(span);
        }
    }

    /// The same of a client that has a record of its own.
    pub fn watch_client(&mut self, client: u32, span: Span) {
        let client = self.clients.get_mut(client as usize);
        if let Some(recorder) = client.and_then(|client| client.recorder.as_mut()) {
            recorder.watch(span);
        }
    }

    /// Runs to the end.
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

    /// One turn of the loop; `false` when the run is over.
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
        // Only a call makes a policy ask for another time.
        let mut asked = Some(self.poller.asked);
        while let Some(done) = self.device.poll(now) {
            self.complete(&done);
            asked = None;
        }
        while self.events.first_at().is_some_and(|at| at <= now) {
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

    /// Where all requests are.
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

    /// The policy.
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    fn next_at(&self) -> u64 {
        let event = self.events.first_at().unwrap_or(u64::MAX);
        self.device.next_at().min(event).min(self.poller.at).min(self.next_sample)
    }

    /// When the policy wants to be polled; the end of time for never.
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
