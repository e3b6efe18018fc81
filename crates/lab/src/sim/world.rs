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

use super::client::{BACKLOG_MAX, BatchRecord, Client, NO_THREAD, Step, Wanted};
use super::device::{Device, Done};
use super::events::Heap;
use super::policy::{Dispatch, Policy, Request};
use super::record::{Record, Recorder, Span};
use super::setup::{ChangeKind, PollerSetup, Setup, StripeSetup, Target};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_store::random::Random;
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
struct Volume {
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
    volumes: Vec<Volume>,
    stripes: Vec<StripeSetup>,
    clients: Vec<Client>,
    changes: Vec<ChangeKind>,
    requests: Slab<UnderWay>,
    groups: Slab<Group>,
    submitted: u64,
    completed: u64,
}

/// When the policy is polled.
#[derive(Debug)]
struct Poller {
    setup: PollerSetup,
    random: Random,
    next_pause: usize,
    /// What the policy asked for, and when it is woken for that; the end of time for never.
    asked: u64,
    at: u64,
}

impl<P: Policy> World<P> {
    /// A world before its first nanosecond.
    #[must_use]
    pub fn new(setup: &Setup, seed: u64, policy: P) -> Self {
        let samples = setup.duration_ns / setup.sample_ns.max(1);
        let stretched = setup.volumes.len() + setup.clients.len() <= STRETCHED_RECORDS_MAX;
        let recorder = || Recorder::new(samples, stretched);
        let volumes = setup.volumes.iter().map(|volume| Volume {
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
            events.push(client.start_ns, Event::Start(number));
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
        }
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
        }
        // Only what it is told makes a policy ask for another time.
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
            for (volume, number) in self.volumes.iter_mut().zip(0..) {
                let balances = match volume.has_credits {
                    true => self.policy.balances(Instant::from_ns(at), number),
                    false => Balances::default(),
                };
                volume.recorder.close_sample(at, balances);
            }
            for recorder in self.clients.iter_mut().filter_map(|client| client.recorder.as_mut()) {
                recorder.close_sample(at, Balances::default());
            }
            self.next_sample += self.sample_ns;
        }
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
                if thread == NO_THREAD && step != Step::Rest {
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
            ChangeKind::Repace(volume, pacing) => {
                self.policy.repace(now, *volume, pacing);
            }
            ChangeKind::SetBalances(volume, balances) => {
                self.policy.set_balances(now, *volume, *balances);
            }
            ChangeKind::Stall(length_ns) => self.device.pause(self.now, *length_ns),
            ChangeKind::DevicePercent(percent) => self.device.set_percent(*percent),
        }
        self.dispatch();
    }

    fn carry_out(&mut self, client: u32, step: Step) {
        match step {
            Step::Send(requests) => {
                for nth in 0..requests {
                    let thread = self.clients[client as usize].thread(nth);
                    self.send_next(client, thread);
                }
            }
            Step::SendAs(thread) => self.send_next(client, thread),
            Step::SendThis(wanted) => self.send(client, 0, wanted),
            Step::Wait(until, thread) => self.events.push(until, Event::Wake(client, thread)),
            Step::Rest => {}
        }
    }

    #[inline(always)]
    fn send_next(&mut self, client: u32, thread: u16) {
        let wanted = self.clients[client as usize].next_request(thread);
        self.send(client, thread, wanted);
    }

    /// Sends a client's request.
    #[inline(always)]
    fn send(&mut self, number: u32, thread: u16, wanted: Wanted) {
        let client = &mut self.clients[number as usize];
        if client.under_way >= BACKLOG_MAX {
            client.dropped += 1;
            return;
        }
        client.under_way += 1;
        match client.setup.target {
            Target::Volume(volume) => self.submit(volume, number, thread, NO_GROUP, wanted),
            Target::Stripe(stripe) => self.send_striped(stripe as usize, number, thread, wanted),
        }
    }

    /// Sends a request to a stripe, in as many parts as it has chunks there.
    fn send_striped(&mut self, stripe: usize, number: u32, thread: u16, wanted: Wanted) {
        let mut rest = wanted;
        let Some((volume, part)) = self.stripes[stripe].first_part(&mut rest) else { return };
        if rest.length == 0 {
            self.submit(volume, number, thread, NO_GROUP, part);
            return;
        }
        let parts = 1 + self.stripes[stripe].parts(&rest).count();
        let parts = u32::try_from(parts).unwrap_or(u32::MAX);
        let whole = Group { submitted_at: self.now, length: wanted.length, parts };
        let group = number_of(self.groups.insert(whole));
        self.submit(volume, number, thread, group, part);
        while let Some((volume, part)) = self.stripes[stripe].first_part(&mut rest) {
            self.submit(volume, number, thread, group, part);
        }
    }

    #[inline(always)]
    fn submit(&mut self, volume: u32, client: u32, thread: u16, group: u32, wanted: Wanted) {
        let Wanted { operation, offset, length } = wanted;
        let submitted_at = self.now;
        let handle = number_of(self.requests.insert(UnderWay {
            submitted_at,
            client,
            length,
            group,
            thread,
            pieces: 0,
            whole: false,
        }));
        self.submitted += 1;
        let Volume { blocked, instance, .. } = &mut self.volumes[volume as usize];
        let instance = *instance;
        let request = Request { volume, instance, operation, offset, length, handle };
        // Whoever waits already goes first.
        if !blocked.is_empty() || !self.policy.submit(Instant::from_ns(self.now), &request) {
            blocked.push_back(request);
            return;
        }
        self.dispatch();
    }

    /// Gives the device what the policy lets go: mostly nothing.
    #[inline(always)]
    fn dispatch(&mut self) {
        while let Some(dispatch) = self.policy.poll_output() {
            self.give(dispatch);
        }
    }

    #[inline(always)]
    fn give(&mut self, dispatch: Dispatch) {
        let volume = &mut self.volumes[dispatch.volume as usize];
        let request = &mut self.requests[dispatch.handle as usize];
        request.pieces += 1;
        if dispatch.last {
            request.whole = true;
            volume.recorder.dispatched(self.now);
        }
        self.device.give(self.now, dispatch);
        while let Some(request) = volume.blocked.front() {
            if !self.policy.submit(Instant::from_ns(self.now), request) {
                break;
            }
            volume.blocked.pop_front();
        }
    }

    #[inline(always)]
    fn complete(&mut self, done: &Done) {
        let now = self.now;
        let service = Duration::from_ns(now - done.given_at);
        self.policy.complete(Instant::from_ns(now), &done.dispatch, service);
        self.dispatch();
        let handle = done.dispatch.handle as usize;
        let request = &mut self.requests[handle];
        request.pieces -= 1;
        if request.pieces > 0 || !request.whole {
            return;
        }
        let UnderWay { submitted_at, client, length, group, thread, .. } =
            self.requests.remove(handle);
        self.completed += 1;
        let recorder = &mut self.volumes[done.dispatch.volume as usize].recorder;
        recorder.completed(now, now - submitted_at, length);
        if group == NO_GROUP {
            self.answer(client, thread, submitted_at, length);
            return;
        }
        let whole = &mut self.groups[group as usize];
        whole.parts -= 1;
        if whole.parts == 0 {
            let Group { submitted_at, length, .. } = self.groups.remove(group as usize);
            self.answer(client, thread, submitted_at, length);
        }
    }

    #[inline(always)]
    fn answer(&mut self, number: u32, thread: u16, submitted_at: u64, length: u32) {
        let client = &mut self.clients[number as usize];
        if let Some(recorder) = &mut client.recorder {
            recorder.dispatched(submitted_at);
            recorder.completed(self.now, self.now - submitted_at, length);
        }
        match client.answered(self.now, thread) {
            // What nearly every closed loop does, without a call.
            Step::SendAs(thread) => self.send_next(number, thread),
            step => self.carry_out(number, step),
        }
    }
}

impl Poller {
    fn new(setup: &PollerSetup, random: Random) -> Self {
        Self { setup: setup.clone(), random, next_pause: 0, asked: u64::MAX, at: u64::MAX }
    }

    /// When the program that is woken at `at` runs.
    fn wake(&mut self, at: u64) -> u64 {
        let mut awake = at;
        if at == self.at && self.setup.pause_ppm > 0 && self.random.chance_ppm(self.setup.pause_ppm)
        {
            awake = awake.saturating_add(self.setup.pause_ns);
        }
        while let Some(&(begin, length)) = self.setup.pauses.get(self.next_pause) {
            if awake < begin {
                break;
            }
            awake = awake.max(begin.saturating_add(length));
            self.next_pause += 1;
        }
        awake
    }

    /// Sets the timer for what the policy asks for.
    fn arm(&mut self, now: u64, asked: u64) {
        if asked <= now {
            self.at = now;
        } else if asked != self.asked {
            let late = match self.setup.late_mean_ns {
                0 => 0,
                mean_ns => self.random.exponential(mean_ns),
            };
            self.at = asked.saturating_add(late);
        }
        self.asked = asked;
    }
}

impl StripeSetup {
    /// The first part of a request and its volume; `rest` becomes what follows.
    pub fn first_part(&self, rest: &mut Wanted) -> Option<(u32, Wanted)> {
        if rest.length == 0 {
            return None;
        }
        let chunk = u64::from(self.chunk_bytes);
        let volumes = self.volumes.len() as u64;
        let (chunk_number, within) = (rest.offset / chunk, rest.offset % chunk);
        let length = u32::try_from(chunk - within).unwrap_or(u32::MAX).min(rest.length);
        let offset = chunk_number / volumes * chunk + within;
        let part = Wanted { operation: rest.operation, offset, length };
        rest.offset += u64::from(length);
        rest.length -= length;
        Some((self.volumes[(chunk_number % volumes) as usize], part))
    }

    /// All parts of a request.
    pub fn parts(&self, wanted: &Wanted) -> impl Iterator<Item = (u32, Wanted)> {
        let mut rest = *wanted;
        std::iter::from_fn(move || self.first_part(&mut rest))
    }
}

impl Setup {
    /// Whether only one client uses a volume, and no stripe does.
    #[must_use]
    pub fn is_sole(&self, target: Target) -> bool {
        let Target::Volume(volume) = target else { return false };
        let clients = self.clients.iter().filter(|client| client.target == target).count();
        clients == 1 && !self.stripes.iter().any(|stripe| stripe.volumes.contains(&volume))
    }
}

fn number_of(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
