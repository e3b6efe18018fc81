//! One scheduler, its volumes with a client each, a device with service times, and the checkers.

use std::collections::BTreeMap;

use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::scheduler::{
    self, DeviceIndex, InstanceIndex, Io, Scheduler, SubmitError, Ticket, VolumeIndex,
};
use evenkeel_core::qos::sharing::{
    Claim, DeviceModel, DispatchReason, InstancePacing, OperationCost, Window,
};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_sim::closed_loop::{ClosedLoop, Timeline};
use evenkeel_sim::oracle::{
    Cause, Checkers, Completed, Counter, DevicePromise, DeviceWork, Direction, Dispatched, Event,
    Floor, InstancePromise, Piece, Report, Sample, Submitted, System, Tier, VolumePromise,
};

const NS_PER_MS: u64 = 1_000_000;
pub const NS_PER_S: u64 = 1_000_000_000;
/// A poll that is later than this is reported as a stall of the server.
const LATE_REPORTED_NS: u64 = 500_000;

/// An intended fault, which a rule must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    None,
    /// A dispatch is given to the device twice.
    DispatchTwice,
    /// A completion is lost.
    LoseCompletion,
    /// The scheduler has a rate that is a thousandth higher than promised.
    FasterRate,
    /// A modification replaces the volume by a new one, with everything saved that it may save.
    RefillAtModify,
    /// Polls are late by 20 ms without a report.
    SecretlyLate,
}

/// One volume with its client, which keeps a number of requests in flight.
struct ClientVolume {
    index: VolumeIndex,
    pacing: Pacing,
    claim: Claim,
    instance: Option<InstanceIndex>,
    counter: Counter,
    /// Number of counted I/Os so far.
    operations: u64,
    lengths: [u32; 2],
    sequential: bool,
    next_offset: u64,
    next_handle: u32,
    /// Requests that are not answered, by handle.
    open: BTreeMap<u32, Open>,
    /// Number of requests that wait because the queue was full.
    held_back: u32,
    /// Whether its last request was refused; its client then waits for a dispatch.
    full: bool,
}

#[derive(Clone, Copy)]
struct Open {
    operation: Operation,
    length: u32,
    started: bool,
    gone: bool,
    cancelled: bool,
    on_device: u32,
}

/// The world: one scheduler, its volumes, a device that takes its time, and the checkers.
pub struct World {
    rng: Random,
    scheduler: Scheduler,
    checkers: Checkers,
    timeline: Timeline<OnDevice>,
    /// The volumes by the checkers' number.
    volumes: BTreeMap<u32, ClientVolume>,
    numbers: BTreeMap<VolumeIndex, u32>,
    next_number: u32,
    sabotage: Sabotage,
    /// The dispatch that is repeated as a fault.
    twice: Option<scheduler::Dispatch>,
    /// The device and the client host that volumes share; `None` in half of the worlds.
    shared: Option<(DeviceIndex, InstanceIndex)>,
    window_ns: Option<u64>,
}

/// A piece on the device.
#[derive(Clone, Copy)]
pub struct OnDevice {
    number: u32,
    handle: u32,
    length: u32,
    ticket: Ticket,
    cost_ns: u64,
}

/// Number of channels of the shared device, and modelled time of each request on one.
const CHANNELS: u32 = 64;
const REQUEST_NS: u64 = 60_000;
const BYTE_PS: u32 = 100;

/// Limit of the shared client host, in I/Os per second.
const HOST_IOPS: u64 = 6_000;

/// Minimum reservation, in I/Os per second, of a volume whose limits allow as much.
const RESERVED_MIN: u64 = 20;

impl World {
    /// Creates the world of a seed. Even seeds have a shared device and a shared client host.
    pub fn new(seed: u64, sabotage: Sabotage) -> Self {
        let mut system = System::default();
        system.bounds.answer_ns = Some(NS_PER_S);
        system.bounds.base_slack_ns = NS_PER_MS;
        let mut scheduler = Scheduler::new(Instant::ZERO);
        let shared = seed.is_multiple_of(2).then(|| share(&mut scheduler, &mut system));
        let mut world = Self {
            rng: Random::from_state(seed),
            scheduler,
            checkers: Checkers::new(system),
            timeline: Timeline::new(Instant::ZERO, u32::MAX),
            volumes: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_number: 0,
            sabotage,
            twice: None,
            shared,
            window_ns: None,
        };
        world.report_window();
        world
    }

    pub fn run(mut self, length_ns: u64) -> Report {
        for _ in 0..3 + self.rng.below(4) {
            self.add();
        }
        while self.step(Instant::from_ns(length_ns)) {
            if self.rng.one_in(500) {
                // The clock steps back, after the scheduler got the present time.
                self.scheduler.poll(self.timeline.now());
                let back = self.rng.below(self.timeline.now().ns.min(NS_PER_S) + 1);
                self.scheduler.poll(Instant::from_ns(self.timeline.now().ns - back));
                self.dispatch();
            }
            if self.rng.one_in(400) {
                self.mishap();
                self.scheduler.invariants();
            }
        }
        self.dispatch();
        self.scheduler.invariants();
        self.checkers.finish()
    }

    fn report(&mut self, event: Event) {
        self.checkers.observe(&event);
    }

    fn add(&mut self) {
        let (pacing, balances) = self.pacing();
        let mut given = pacing;
        if self.sabotage == Sabotage::FasterRate
            && let Some(limit) = &mut given.operations
        {
            limit.per_second += (limit.per_second / 1_000).max(1);
        }
        let index = self.scheduler.add(self.timeline.now(), &given, balances).unwrap();
        let number = self.next_number;
        self.next_number += 1;
        let (claim, instance) = self.claim(index, &given);
        let promise = self.promise(&pacing, balances, &claim, instance);
        self.report(Event::Added { at: self.timeline.now().ns, volume: number, promise });
        let depth = self.rng.among(&[1, 4, 32, 200, 1_500]);
        let block = self.rng.among(&[512, 4 << 10, 16 << 10, 64 << 10]);
        let other = self.rng.among(&[block, 300 << 10, 1 << 20]);
        let volume = ClientVolume {
            index,
            pacing,
            claim,
            instance,
            counter: Counter::new(pacing.counting),
            operations: 0,
            lengths: [block, if depth > 32 { block } else { other }],
            sequential: self.rng.one_in(3),
            next_offset: 0,
            next_handle: 0,
            open: BTreeMap::new(),
            held_back: depth,
            full: false,
        };
        self.volumes.insert(number, volume);
        self.numbers.insert(index, number);
        self.dispatch();
    }

    /// Gives a volume its claim on the shared device, and maybe on the shared host.
    fn claim(&mut self, index: VolumeIndex, pacing: &Pacing) -> (Claim, Option<InstanceIndex>) {
        let Some((device, instance)) = self.shared else { return (Claim::NONE, None) };
        let rate = pacing.operations.map_or(0, |limit| limit.per_second);
        let claim = Claim {
            reservation_per_second: u32::try_from(self.rng.below(rate / 4 + 1)).unwrap(),
            weight: u32::try_from(1 + self.rng.below(1_000)).unwrap(),
        };
        let instance = self.rng.one_in(2).then_some(instance);
        let now = self.timeline.now();
        self.scheduler.share(now, index, pacing, (Some(device), instance), &claim).unwrap();
        (claim, instance)
    }

    fn promise(
        &self,
        pacing: &Pacing,
        balances: Balances,
        claim: &Claim,
        instance: Option<InstanceIndex>,
    ) -> Box<VolumePromise> {
        let mut promise = VolumePromise::from_pacing(pacing, balances);
        if self.shared.is_some() {
            let rate = pacing.operations.map_or(RESERVED_MIN, |limit| limit.per_second);
            let least = (rate / 100).max(RESERVED_MIN).min(rate);
            promise.instance = instance.map(|_| 0);
            promise.floor = Floor::Reserved {
                per_second: least.max(claim.reservation_per_second.into()),
                reference_cost_ns: model().reference_ns(),
            };
            promise.weight = claim.weight;
        }
        Box::new(promise)
    }

    /// Reports the window of the shared device if it has changed.
    fn report_window(&mut self) {
        let Some((device, _)) = self.shared else { return };
        let cost_ns = self.scheduler.device_counters(device).window_ns;
        if self.window_ns != Some(cost_ns) {
            self.window_ns = Some(cost_ns);
            self.report(Event::Sampled {
                at: self.timeline.now().ns,
                sample: Sample::Window { cost_ns },
            });
        }
    }

    fn pacing(&mut self) -> (Pacing, Balances) {
        let rate = self.rng.among(&[100, 333, 1_000, 3_000, 16_000]);
        let credit = self.rng.one_in(3).then(|| CreditLimit {
            refill_per_second: 1 + self.rng.below(rate),
            capacity: 1 + self.rng.below(5_000),
        });
        let operations = Some(Limit { per_second: rate, credit });
        let bytes_rate = self.rng.among(&[4 << 20, 60 << 20, 250 << 20]);
        let bytes = self.rng.one_in(2).then_some(Limit { per_second: bytes_rate, credit: None });
        let tolerance = Duration::from_ms(self.rng.among(&[5, 50, 50, 200]));
        let pacing = Pacing { counting: CountingRule::SSD, tolerance, operations, bytes };
        let balance = credit.filter(|_| self.rng.one_in(2)).map(|credit| credit.capacity / 2);
        (pacing, Balances { operations: balance, bytes: None })
    }

    fn submit(&mut self, number: u32) {
        let kind = self.rng.below(50);
        let write = self.rng.one_in(2);
        let random = self.rng.below(1 << 20);
        let which = self.rng.below(2);
        let Some(volume) = self.volumes.get_mut(&number) else { return };
        let handle = volume.next_handle;
        let length = volume.lengths[usize::try_from(which).unwrap()];
        let operation = match kind {
            0 => Operation::Flush,
            1 => Operation::Discard { fua: false },
            _ if write && !volume.sequential => Operation::Write { fua: false },
            _ => Operation::Read,
        };
        let length = if operation == Operation::Flush { 0 } else { length };
        let offset = if volume.sequential { volume.next_offset } else { random << 21 };
        let io = Io { operation, offset, length, handle };
        let event = Submitted {
            at: self.timeline.now().ns,
            volume: number,
            instance: host(volume.instance),
            handle: handle.into(),
            direction: direction(operation),
            offset,
            length,
        };
        match self.scheduler.submit(self.timeline.now(), volume.index, io) {
            Ok(()) => {
                volume.next_handle += 1;
                volume.next_offset = (offset + u64::from(length)) % (1 << 40);
                let open = Open {
                    operation,
                    length,
                    started: false,
                    gone: false,
                    cancelled: false,
                    on_device: 0,
                };
                volume.open.insert(handle, open);
                self.report(Event::Submitted(event));
            }
            Err(SubmitError::QueueFull) => {
                volume.held_back += 1;
                volume.full = true;
                let length = if event.direction == Direction::None { 0 } else { length };
                self.report(Event::Refused { at: self.timeline.now().ns, volume: number, length });
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn dispatched(&mut self, dispatch: &scheduler::Dispatch) -> Option<OnDevice> {
        let number = self.numbers[&dispatch.volume];
        let volume = self.volumes.get_mut(&number)?;
        let open = volume.open.get_mut(&dispatch.handle)?;
        volume.full = false;
        let direction = direction(open.operation);
        let (operations, bytes, guard) = match open.operation {
            Operation::Read | Operation::Write { .. } => {
                let (operations, bytes) = volume.counter.count(&Piece {
                    direction,
                    offset: dispatch.offset,
                    length: dispatch.length,
                    whole_length: open.length,
                    first: !open.started,
                    last: dispatch.last,
                });
                (operations, bytes, 0)
            }
            operation => {
                volume.counter.interrupt();
                (u32::from(operation != Operation::Flush), 0, 1)
            }
        };
        volume.operations += u64::from(operations);
        open.started = true;
        open.gone = dispatch.last;
        open.on_device += 1;
        let event = Dispatched {
            at: self.timeline.now().ns,
            volume: number,
            instance: host(volume.instance),
            handle: dispatch.handle.into(),
            direction,
            length: dispatch.length,
            operations,
            bytes,
            guard,
            device_cost_ns: dispatch.device_ns,
            tier: (dispatch.device_ns > 0).then_some(match dispatch.reason {
                DispatchReason::Reserved => Tier::Base,
                DispatchReason::Weight => Tier::Burst,
            }),
            urgent: dispatch.urgent,
            last: dispatch.last,
        };
        self.report(Event::Dispatched(event));
        Some(OnDevice {
            number,
            handle: dispatch.handle,
            length: dispatch.length,
            ticket: dispatch.ticket,
            cost_ns: dispatch.device_ns,
        })
    }

    /// An occasional event of a server.
    fn mishap(&mut self) {
        let numbers: Vec<u32> = self.volumes.keys().copied().collect();
        let Some(number) = (!numbers.is_empty()).then(|| self.rng.among(&numbers)) else { return };
        match self.rng.below(12) {
            0 if numbers.len() > 2 => self.remove(number),
            1 if numbers.len() < 8 => self.add(),
            2..=4 => self.modify(number),
            5 => self.cancel(number),
            6 => self.credit(number),
            7 => self.moved(number),
            _ => self.sample(number),
        }
        self.dispatch();
    }

    fn modify(&mut self, number: u32) {
        let (pacing, _) = self.pacing();
        let now = self.timeline.now();
        let volume = self.volumes.get_mut(&number).unwrap();
        volume.pacing = pacing;
        volume.counter.set_rule(pacing.counting);
        let index = volume.index;
        let claim = volume.claim;
        let instance = volume.instance;
        let promise = self.promise(&pacing, Balances::default(), &claim, instance);
        self.report(Event::Modified { at: self.timeline.now().ns, volume: number, promise });
        if self.sabotage == Sabotage::RefillAtModify {
            self.scheduler.set_limits(
                now,
                index,
                &Pacing { operations: None, bytes: None, ..pacing },
            );
        }
        self.scheduler.set_limits(now, index, &pacing);
        self.dispatch();
    }

    fn cancel(&mut self, number: u32) {
        let odd = |handle: u32| handle % 2 == 1;
        let volume = &self.volumes[&number];
        let now = self.timeline.now();
        let handles: Vec<u32> = self.scheduler.cancel_queued(now, volume.index, odd).collect();
        self.cancelled(number, &handles);
    }

    fn cancelled(&mut self, number: u32, handles: &[u32]) {
        for handle in handles {
            let volume = self.volumes.get_mut(&number).unwrap();
            let open = volume.open.get_mut(handle).unwrap();
            open.cancelled = true;
            if open.on_device == 0 {
                volume.open.remove(handle);
            }
            volume.held_back += 1;
            volume.full = false;
            let handle = u64::from(*handle);
            self.report(Event::Cancelled { at: self.timeline.now().ns, volume: number, handle });
        }
    }

    /// Exports a volume and imports it again. Only its waiting requests may be affected.
    fn moved(&mut self, number: u32) {
        let index = self.volumes[&number].index;
        let instance = self.volumes[&number].instance;
        let pacing = self.volumes[&number].pacing;
        let now = self.timeline.now();
        let handles: Vec<u32> = self.scheduler.cancel_queued(now, index, |_| true).collect();
        self.cancelled(number, &handles);
        let at = (self.shared.map(|(device, _)| device), instance);
        let exported = self.scheduler.export(now, index).unwrap();
        let index_now = self.scheduler.import(now, exported, &pacing, at).unwrap();
        self.numbers.remove(&index);
        self.numbers.insert(index_now, number);
        self.volumes.get_mut(&number).unwrap().index = index_now;
    }

    fn remove(&mut self, number: u32) {
        let index = self.volumes[&number].index;
        let handles: Vec<u32> = self.scheduler.remove(self.timeline.now(), index).collect();
        self.cancelled(number, &handles);
        self.report(Event::Removed { at: self.timeline.now().ns, volume: number });
        self.volumes.remove(&number);
        self.numbers.remove(&index);
    }

    fn credit(&mut self, number: u32) {
        let units = self.rng.below(2_000);
        let operations = Some(units);
        let index = self.volumes[&number].index;
        let balances = Balances { operations, bytes: None };
        self.report(Event::Credited {
            at: self.timeline.now().ns,
            volume: number,
            units: [operations, None],
        });
        self.scheduler.set_balances(self.timeline.now(), index, balances);
    }

    /// Reports the scheduler's queue and balances of a volume, and checks its count of I/Os.
    fn sample(&mut self, number: u32) {
        let index = self.volumes[&number].index;
        let counters = self.scheduler.counters(index);
        // Counted by two independent statements of the rule.
        if self.sabotage == Sabotage::None {
            assert_eq!(counters.operations, self.volumes[&number].operations, "volume {number}");
        }
        let balances = self.scheduler.balances(self.timeline.now(), index);
        let queued = Sample::Queued {
            volume: number,
            requests: counters.queued_requests.into(),
            bytes: Some(counters.queued_bytes.into()),
        };
        let units = [balances.operations, balances.bytes];
        let balances = Sample::VolumeBalances { volume: number, units };
        for sample in [queued, balances] {
            self.report(Event::Sampled { at: self.timeline.now().ns, sample });
        }
    }
}

impl ClosedLoop for World {
    type Piece = OnDevice;

    fn timeline(&mut self) -> &mut Timeline<OnDevice> {
        &mut self.timeline
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.scheduler.poll_timeout()
    }

    fn poll(&mut self, now: Instant) {
        self.scheduler.poll(now);
    }

    /// Returns the next dispatch. After the last one, clients send the requests that they held
    /// back.
    fn poll_output(&mut self, _: Instant) -> Option<OnDevice> {
        loop {
            if let Some(dispatch) = self.twice.take().or_else(|| self.scheduler.poll_output()) {
                let piece = self.dispatched(&dispatch);
                if self.sabotage == Sabotage::DispatchTwice && self.rng.one_in(1_000) {
                    self.twice = Some(dispatch);
                }
                if piece.is_some() {
                    return piece;
                }
                continue;
            }
            self.report_window();
            let (number, volume) =
                self.volumes.iter_mut().find(|(_, volume)| volume.held_back > 0 && !volume.full)?;
            volume.held_back -= 1;
            let number = *number;
            self.submit(number);
        }
    }

    fn service(&mut self, _: Instant, _: &OnDevice) -> Duration {
        Duration::from_ns(60_000 + self.rng.below(80_000))
    }

    fn complete(&mut self, now: Instant, piece: OnDevice) {
        let OnDevice { number, handle, length, ticket, cost_ns } = piece;
        let lost = self.sabotage == Sabotage::LoseCompletion && self.rng.one_in(1_000);
        let mut last = false;
        // The volume may be removed already. The device completes the piece all the same.
        if let Some(volume) = self.volumes.get_mut(&number)
            && let Some(open) = volume.open.get_mut(&handle)
        {
            open.on_device -= 1;
            let back = open.on_device == 0;
            let cancelled = open.cancelled;
            last = open.gone && back && !cancelled;
            if last || (cancelled && back) {
                volume.open.remove(&handle);
            }
            volume.held_back += u32::from(last && !lost);
        }
        if !lost {
            self.report(Event::Completed(Completed {
                at: now.ns,
                volume: number,
                handle: handle.into(),
                length,
                device_cost_ns: cost_ns,
                last,
            }));
        }
        self.scheduler.complete(now, ticket);
    }

    /// Wakes up on time, slightly late, or very late, which is reported.
    fn wake(&mut self, at: Instant) -> Instant {
        let late_ns = match self.rng.below(3_000) {
            0 => NS_PER_MS + self.rng.below(60 * NS_PER_MS),
            1..=30 => self.rng.below(LATE_REPORTED_NS),
            _ => self.rng.below(20_000),
        };
        if self.sabotage == Sabotage::SecretlyLate {
            return at + Duration::from_ns(20 * NS_PER_MS);
        }
        if late_ns > LATE_REPORTED_NS {
            self.report(Event::Stalled { from: at.ns, to: at.ns + late_ns, cause: Cause::Ours });
        }
        at + Duration::from_ns(late_ns)
    }
}

/// Returns the scheduler's model of the shared device.
fn model() -> DeviceModel {
    let cost = OperationCost { base: Duration::from_ns(REQUEST_NS), byte_ps: BYTE_PS };
    DeviceModel { channels: CHANNELS, read: cost, write: cost, window: Window::Slots(CHANNELS + 2) }
}

/// Adds a device and a client host, and their promises.
fn share(scheduler: &mut Scheduler, system: &mut System) -> (DeviceIndex, InstanceIndex) {
    let device = scheduler.add_device(Instant::ZERO, &model()).unwrap();
    let operations = Some(Limit { per_second: HOST_IOPS, credit: None });
    let pacing = InstancePacing { operations, ..InstancePacing::UNLIMITED };
    let host = scheduler.add_instance(Instant::ZERO, &pacing, Balances::default()).unwrap();
    let tolerance_ns = pacing.tolerance.ns;
    system.instances =
        vec![InstancePromise { operations, tolerance_ns, ..InstancePromise::UNLIMITED }];
    let kind = (REQUEST_NS, BYTE_PS.into());
    let channels = CHANNELS.into();
    let slots_max = u64::from(CHANNELS) + 2;
    let work = Some(DeviceWork { channels, slots_max, read: kind, write: kind });
    system.device = Some(DevicePromise { window_ns: 0, work });
    (device, host)
}

/// Returns the checkers' number of a client host, or a number without limits.
fn host(instance: Option<InstanceIndex>) -> u32 {
    if instance.is_some() { 0 } else { u32::MAX }
}

fn direction(operation: Operation) -> Direction {
    match operation {
        Operation::Read => Direction::Read,
        Operation::Write { .. } => Direction::Write,
        _ => Direction::None,
    }
}
