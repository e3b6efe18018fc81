//! The scheduler in a closed loop: volumes that may share instances and a device, clients that keep
//! a number of requests in flight, a device that may pause, and a server that may wake up late.

use std::collections::BTreeMap;
use std::ops::Range;

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{
    DeviceIndex, Dispatch, InstanceIndex, Io, Scheduler, SubmitError, VolumeIndex,
};
use evenkeel_core::qos::sharing::{
    Claim, DeviceModel, DispatchReason, InstancePacing, OperationCost, Window,
};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_sim::closed_loop::{ClosedLoop, Timeline};

use crate::support::Rng;
pub use crate::support::{KIB, NS_PER_S, at, limit, pacing};

/// Number of events after which the invariants of the scheduler are checked.
const EVENTS_BETWEEN_CHECKS: u32 = 1_024;

pub const READ: Operation = Operation::Read;
/// A write that is not urgent.
pub const WRITE: Operation = Operation::Write { fua: false };
pub const LOG_WRITE: Operation = Operation::Write { fua: true };

/// Returns the device of the paper's tables: 32 channels, 80 us and 4 ns per byte.
pub fn device(window: Window) -> DeviceModel {
    let cost = OperationCost { base: Duration::from_us(80), byte_ps: 4_000 };
    DeviceModel { channels: 32, read: cost, write: cost, window }
}

/// Lateness of a server's wake-ups.
#[derive(Clone, Copy)]
pub enum Lateness {
    /// Never: every poll is on time.
    None,
    /// Exponential with a mean of 15 us, and one wake-up in a thousand stalls for 1.5 ms.
    Realistic,
}

impl Lateness {
    fn ns(self, rng: &mut Rng) -> u64 {
        match self {
            Self::None => 0,
            Self::Realistic if rng.below(1_000) == 0 => 1_500_000 + rng.exponential(15_000),
            Self::Realistic => rng.exponential(15_000),
        }
    }
}

/// Returns the service time of a request that the device begins at a time, in nanoseconds.
type Service = Box<dyn FnMut(&mut Rng, u64, &Dispatch) -> u64>;

/// One client of one volume.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub pacing: Pacing,
    pub claim: Claim,
    /// Number of its instance.
    pub instance: Option<usize>,
    pub operation: Operation,
    /// Whether half of its requests are writes instead.
    pub writes_too: bool,
    /// Number of its requests after which every second one is a plain write instead.
    pub alternates_after: Option<u32>,
    pub depth: u32,
    pub length: u32,
}

impl Client {
    /// Creates a client with random reads of `length` bytes, without limit or reservation.
    pub fn greedy(depth: u32, length: u32) -> Self {
        let claim = Claim { reservation_per_second: 0, weight: 1_000 };
        let pacing = Pacing::UNLIMITED;
        Self {
            pacing,
            claim,
            instance: None,
            operation: READ,
            writes_too: false,
            alternates_after: None,
            depth,
            length,
        }
    }

    pub fn limited(mut self, per_second: u64) -> Self {
        self.pacing = pacing(limit(per_second), None);
        self.claim.weight = u32::try_from(per_second).unwrap();
        self
    }

    pub fn reserved(mut self, per_second: u32) -> Self {
        self.claim.reservation_per_second = per_second;
        self
    }

    pub fn on(mut self, instance: usize) -> Self {
        self.instance = Some(instance);
        self
    }
}

/// A dispatch and its time.
#[derive(Clone, Copy, Debug)]
pub struct Going {
    pub at: u64,
    pub volume: usize,
    pub handle: u32,
    pub length: u32,
    pub reason: DispatchReason,
}

pub struct World {
    pub scheduler: Scheduler,
    pub device: Option<DeviceIndex>,
    pub volumes: Vec<VolumeIndex>,
    pub instances: Vec<InstanceIndex>,
    pub going: Vec<Going>,
    /// Number of dispatches of each volume in each second.
    pub per_second: Vec<Vec<u64>>,
    /// Latencies of each volume's requests, in nanoseconds.
    pub latencies: Vec<Vec<u64>>,
    /// Spans in which the device does nothing.
    pub stalls: Vec<Range<u64>>,
    /// Spans in which the server does nothing: no poll, no completion.
    pub pauses: Vec<Range<u64>>,
    /// Number of polls that the scheduler did not ask for, between any two events.
    pub extra_polls: u32,
    /// Number of polls that the scheduler asked for.
    pub polls: u64,
    pub lateness_max_ns: u64,
    /// By second: the time by which a wake-up that was due before its start was late for it, in
    /// nanoseconds.
    pub late_over_second_ns: BTreeMap<usize, u64>,
    pub clients: Vec<Client>,
    pub rng: Rng,
    service: Service,
    lateness: Lateness,
    /// Number of requests of each client.
    sent: Vec<u32>,
    /// Number of requests of each client that found the queue full and wait for room, as in a
    /// socket that is not read; `None` if no queue may be full.
    held_back: Option<Vec<u32>>,
    names: BTreeMap<VolumeIndex, usize>,
    next_handle: u32,
    submitted: BTreeMap<u32, (usize, u64)>,
    timeline: Timeline<Dispatch>,
}

impl World {
    pub fn new(
        model: Option<DeviceModel>,
        instances: &[InstancePacing],
        clients: &[Client],
    ) -> Self {
        let order: Vec<usize> = (0..clients.len()).collect();
        Self::in_order(model, instances, clients, &order)
    }

    /// Creates a world as [`Self::new`] does, with clients that send their first requests in this
    /// order.
    pub fn in_order(
        model: Option<DeviceModel>,
        instances: &[InstancePacing],
        clients: &[Client],
        order: &[usize],
    ) -> Self {
        let mut world = Self::idle(model, instances, clients);
        order.iter().for_each(|number| world.start(*number));
        world
    }

    /// Creates volumes that share nothing, on a device that takes 60 to 140 us, and a server with
    /// this lateness. The seed is that of the environment.
    pub fn late(lateness: Lateness, clients: &[Client]) -> Self {
        let mut world = Self::idle(None, &[], clients);
        world.rng = Rng::from_environment();
        world.lateness = lateness;
        world.held_back = Some(vec![0; clients.len()]);
        world.set_service(|rng, _, _| 60_000 + rng.below(80_000));
        (0..clients.len()).for_each(|number| world.start(number));
        world
    }

    /// Creates a world as [`Self::new`] does, before the first request. Without a model no request
    /// waits at the device, and each takes 100 us; with one each takes the modelled time, plus or
    /// minus a fifth.
    pub fn idle(
        model: Option<DeviceModel>,
        instances: &[InstancePacing],
        clients: &[Client],
    ) -> Self {
        let mut scheduler = Scheduler::new(Instant::ZERO);
        let device = model.map(|model| scheduler.add_device(at(0), &model).unwrap());
        let instances: Vec<InstanceIndex> = instances
            .iter()
            .map(|pacing| scheduler.add_instance(at(0), pacing, Balances::default()).unwrap())
            .collect();
        let mut volumes = Vec::new();
        let mut names = BTreeMap::new();
        for (number, client) in clients.iter().enumerate() {
            let volume = scheduler.add(at(0), &client.pacing, Balances::default()).unwrap();
            let instance = client.instance.map(|instance| instances[instance]);
            scheduler
                .share(at(0), volume, &client.pacing, (device, instance), &client.claim)
                .unwrap();
            names.insert(volume, number);
            volumes.push(volume);
        }
        let service: Service = match model {
            None => Box::new(|_, _, _| 100_000),
            Some(model) => Box::new(move |rng, _, dispatch| {
                model.read.ns(dispatch.length) * (80 + rng.below(41)) / 100
            }),
        };
        Self {
            scheduler,
            device,
            volumes,
            instances,
            going: Vec::new(),
            per_second: vec![Vec::new(); clients.len()],
            latencies: vec![Vec::new(); clients.len()],
            stalls: Vec::new(),
            pauses: Vec::new(),
            extra_polls: 0,
            polls: 0,
            lateness_max_ns: 0,
            late_over_second_ns: BTreeMap::new(),
            clients: clients.to_vec(),
            rng: Rng::new(20_261_121),
            service,
            lateness: Lateness::None,
            sent: vec![0; clients.len()],
            held_back: None,
            names,
            next_handle: 0,
            submitted: BTreeMap::new(),
            timeline: Timeline::new(at(0), model.map_or(u32::MAX, |model| model.channels)),
        }
    }

    /// Sets the service times of the device from now on.
    pub fn set_service(&mut self, service: impl FnMut(&mut Rng, u64, &Dispatch) -> u64 + 'static) {
        self.service = Box::new(service);
    }

    /// Replaces the volume of a client, by the name that its volume has at another place.
    pub fn replace(&mut self, number: usize, volume: VolumeIndex) {
        self.volumes[number] = volume;
        self.names.insert(volume, number);
    }

    /// Sends the first requests of a client.
    pub fn start(&mut self, number: usize) {
        (0..self.clients[number].depth).for_each(|_| self.submit(number));
    }

    /// Sets the seed of the random numbers from now on.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.rng = Rng::new(seed);
        self
    }

    /// Submits one more request of a client.
    pub fn submit(&mut self, number: usize) {
        self.send_one(number);
        self.dispatch();
    }

    fn send_one(&mut self, number: usize) {
        let Client { operation, writes_too, alternates_after, length, .. } = self.clients[number];
        let offset = self.rng.below(1 << 26) << 14;
        let handle = self.next_handle;
        let nth = self.sent[number];
        self.sent[number] += 1;
        let alternates =
            alternates_after.is_some_and(|after| nth > after && (nth - after) % 2 == 1);
        let operation = match (alternates, writes_too && self.rng.below(2) == 1) {
            (true, _) => WRITE,
            (_, true) => LOG_WRITE,
            _ => operation,
        };
        let io = Io { operation, offset, length, handle };
        match (
            self.scheduler.submit(self.timeline.now(), self.volumes[number], io),
            &mut self.held_back,
        ) {
            (Err(SubmitError::QueueFull), Some(held_back)) => held_back[number] += 1,
            (result, _) => {
                result.unwrap();
                self.next_handle += 1;
                self.submitted.insert(handle, (number, self.now()));
            }
        }
    }

    /// Returns the number of requests submitted so far.
    pub const fn submissions(&self) -> u32 {
        self.next_handle
    }

    /// Stops the requests of one client.
    pub fn stop_sending_of(&mut self, number: usize) {
        self.clients[number].depth = 0;
    }

    /// Stops the requests of all clients.
    pub fn stop_sending(&mut self) {
        for client in &mut self.clients {
            client.depth = 0;
        }
    }

    /// Returns the present time in nanoseconds.
    pub fn now(&self) -> u64 {
        self.timeline.now().ns
    }

    /// Advances the time up to `end` inclusively.
    pub fn run_until(&mut self, end: u64) {
        let mut events = 0_u32;
        while self.step(at(end + 1)) {
            events += 1;
            if events.is_multiple_of(EVENTS_BETWEEN_CHECKS) {
                self.scheduler.invariants();
            }
        }
        self.scheduler.invariants();
        self.timeline.advance(at(end));
    }

    /// Returns the number of a volume's requests that were dispatched in a span.
    pub fn count(&self, volume: usize, span: Range<u64>) -> u64 {
        let going = self.going.iter().filter(|going| going.volume == volume);
        going.filter(|going| span.contains(&going.at)).count() as u64
    }

    /// Returns the bytes of a volume that were dispatched in a span.
    pub fn bytes(&self, volume: usize, span: Range<u64>) -> u64 {
        let going = self.going.iter().filter(|going| going.volume == volume);
        going.filter(|going| span.contains(&going.at)).map(|going| u64::from(going.length)).sum()
    }

    /// Returns the largest number of a volume's dispatches in any span of this length after the
    /// first second.
    pub fn busiest(&self, volume: usize, span_ns: u64) -> u64 {
        let times = self.going.iter().filter(|going| going.volume == volume);
        let times: Vec<u64> =
            times.map(|going| going.at).filter(|time| *time >= NS_PER_S).collect();
        let mut first = 0;
        let mut most = 0;
        for (last, at) in times.iter().enumerate() {
            while times[first] + span_ns <= *at {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        most as u64
    }

    /// Returns the latency that `per_mille` thousandths of a volume's requests do not exceed.
    pub fn percentile(&self, volume: usize, per_mille: usize) -> u64 {
        let mut sorted = self.latencies[volume].clone();
        sorted.sort_unstable();
        sorted[(sorted.len() * per_mille / 1_000).min(sorted.len() - 1)]
    }
}

impl ClosedLoop for World {
    type Piece = Dispatch;

    fn timeline(&mut self) -> &mut Timeline<Dispatch> {
        &mut self.timeline
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.scheduler.poll_timeout()
    }

    fn poll(&mut self, now: Instant) {
        self.polls += 1;
        self.scheduler.poll(now);
    }

    fn poll_output(&mut self, now: Instant) -> Option<Dispatch> {
        let dispatch = self.scheduler.poll_output()?;
        let number = self.names[&dispatch.volume];
        let Dispatch { handle, length, reason, .. } = dispatch;
        self.going.push(Going { at: now.ns, volume: number, handle, length, reason });
        let second = usize::try_from(now.ns / NS_PER_S).unwrap();
        let counts = &mut self.per_second[number];
        counts.resize(counts.len().max(second + 1), 0);
        counts[second] += 1;
        if let Some(held_back) = self.held_back.as_mut().filter(|waiting| waiting[number] > 0) {
            held_back[number] -= 1;
            self.send_one(number);
        }
        Some(dispatch)
    }

    fn service(&mut self, now: Instant, dispatch: &Dispatch) -> Duration {
        let service = (self.service)(&mut self.rng, now.ns, dispatch);
        let mut end = now.ns.saturating_add(service);
        for stall in &self.stalls {
            if stall.contains(&now.ns) || stall.contains(&end) {
                end = end.max(stall.end) + service;
            }
        }
        at(end).since(now)
    }

    fn complete(&mut self, now: Instant, dispatch: Dispatch) {
        self.scheduler.complete(now, dispatch.ticket);
        self.dispatch();
        if dispatch.last {
            let (number, since) = self.submitted.remove(&dispatch.handle).unwrap();
            self.latencies[number].push(now.ns - since);
            if self.clients[number].depth > 0 {
                self.submit(number);
            }
        }
    }

    fn wake(&mut self, next: Instant) -> Instant {
        let now = self.now();
        let extra_polls = if next.ns > now { u64::from(self.extra_polls) } else { 0 };
        for extra in 0..extra_polls {
            self.scheduler.poll(at(now + (next.ns - now) * extra / 7));
            assert!(self.scheduler.poll_output().is_none(), "dispatched before its time");
        }
        let awake = next.ns + self.lateness.ns(&mut self.rng);
        self.lateness_max_ns = self.lateness_max_ns.max(awake - next.ns);
        let second = awake / NS_PER_S;
        if next.ns / NS_PER_S < second {
            let late_ns = second * NS_PER_S - next.ns;
            self.late_over_second_ns.insert(usize::try_from(second).unwrap(), late_ns);
        }
        let awake = awake.max(now);
        at(self.pauses.iter().find(|pause| pause.contains(&awake)).map_or(awake, |pause| pause.end))
    }
}
