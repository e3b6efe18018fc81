//! The product under the checkers, which get a report of every event.

use super::policy::{Dispatch, Policy, Request};
use super::product::{NotSimulated, Product, instance_pacing};
use crate::oracle::{
    Alone, Cause, Checkers, Completed, Counter, DevicePromise, DeviceWork, Direction, Dispatched,
    Event, Floor, InstancePromise, Piece, Report, Sample, Submitted, System, Tier, VolumePromise,
};
use crate::scenario::setup::{
    ChangeKind, DeviceSetup, ServiceTime, Setup, VolumeSetup, WindowSetup,
};
use evenkeel_core::convert::{exact, saturating};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler;
use evenkeel_core::qos::sharing::DispatchReason;
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Maximum wait of a request that its volume's own limits let pass.
const WAIT_MAX_NS: u64 = 2_000_000_000;

/// Size of the requests in which reservations are counted.
const REFERENCE_BYTES: u32 = 16 << 10;

/// Maximum time by which the dispatches that a reservation covers may be early or late. Tags are
/// whole nanoseconds and timers have a time of their own. A promise that is kept is far closer; the
/// error of a broken one grows.
const BASE_SLACK_NS: u64 = 1_000_000;

/// A request that is not answered.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    instance: u32,
    whole_length: u32,
    pieces: u32,
    started: bool,
    dispatched: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Watched {
    product: Product,
    checkers: Checkers,
    /// Each volume's promise, and the counter of its requests.
    volumes: Vec<(VolumePromise, Counter)>,
    instances: u32,
    /// The reservation that each volume asked for.
    reserved: Vec<u64>,
    /// Dispatches that are reported and not collected yet. All were dispatched at once.
    output: VecDeque<Dispatch>,
    /// Requests that are not answered, by handle.
    open: Vec<Open>,
    /// Pauses: start, end and cause, in order. Each is reported just before the next event.
    stalls: Vec<(u64, u64, Cause)>,
    next_stall: usize,
    /// Device time of the pieces at the device, by ticket.
    on_device: BTreeMap<u64, u64>,
    /// The window that was reported last, in nanoseconds.
    window_ns: Option<u64>,
}

impl Watched {
    /// Creates the product with everything in a setup and its promises, and the records of volumes
    /// that ran alone.
    ///
    /// # Errors
    /// Returns an error if the product rejects the setup.
    pub(super) fn new(setup: &Setup, alone: &[Alone]) -> Result<Self, NotSimulated> {
        let product = Product::new(setup)?;
        let work = work(&setup.device);
        let promises: Vec<VolumePromise> =
            setup.volumes.iter().map(|volume| promise(volume, work.as_ref())).collect();
        let mut system = System { volumes: promises.clone(), ..System::default() };
        system.device = work.map(|work| DevicePromise { window_ns: 0, work: Some(work) });
        system.alone = alone.to_vec();
        system.bounds.base_slack_ns = BASE_SLACK_NS;
        for instance in &setup.instances {
            let pacing = instance_pacing(instance)?;
            system.instances.push(InstancePromise {
                operations: pacing.operations,
                bytes: pacing.bytes,
                link: pacing.read_bytes_per_second,
                tolerance_ns: pacing.tolerance.ns,
                balances: Balances::default(),
            });
        }
        system.bounds.wait_ns = Some(WAIT_MAX_NS);
        let counters = setup.volumes.iter().map(|volume| Counter::new(volume.pacing.counting));
        let volumes = promises.into_iter().zip(counters).collect();
        let mut watched = Self {
            product,
            checkers: Checkers::new(system),
            volumes,
            instances: exact(setup.instances.len(), "instances have numbers of 32 bits"),
            reserved: setup.volumes.iter().map(reserved).collect(),
            output: VecDeque::new(),
            open: Vec::new(),
            stalls: stalls(setup),
            next_stall: 0,
            on_device: BTreeMap::new(),
            window_ns: None,
        };
        watched.report_window(Instant::ZERO);
        Ok(watched)
    }

    /// Returns the findings of the checkers.
    pub(super) fn finish(self) -> Report {
        self.checkers.finish()
    }

    fn report(&mut self, now: Instant, event: &Event) {
        while let Some(&(from, to, cause)) = self.stalls.get(self.next_stall) {
            if from > now.ns {
                break;
            }
            self.next_stall += 1;
            self.checkers.observe(&Event::Stalled { from, to, cause });
        }
        self.checkers.observe(event);
    }

    fn collect(&mut self, now: Instant) {
        while let Some((dispatch, quantum)) = self.product.poll_dispatch() {
            self.dispatched(now, &dispatch, &quantum);
            self.output.push_back(dispatch);
        }
        self.report_window(now);
    }

    /// Reports the window if it has changed.
    fn report_window(&mut self, now: Instant) {
        let present = self.product.device_counters().map(|device| device.window_ns);
        if let Some(cost_ns) = present.filter(|_| present != self.window_ns) {
            self.window_ns = present;
            let sample = Sample::Window { cost_ns };
            self.report(now, &Event::Sampled { at: now.ns, sample });
        }
    }

    fn dispatched(&mut self, now: Instant, dispatch: &Dispatch, quantum: &scheduler::Dispatch) {
        if quantum.device_ns > 0 {
            self.on_device.insert(dispatch.ticket, quantum.device_ns);
        }
        let direction = direction(dispatch.operation);
        let open = &mut self.open[dispatch.handle as usize];
        let piece = Piece {
            direction,
            offset: dispatch.offset,
            length: dispatch.length,
            whole_length: open.whole_length,
            first: !open.started,
            last: dispatch.last,
        };
        open.started = true;
        open.pieces += 1;
        open.dispatched = dispatch.last;
        let instance = open.instance;
        let counter = &mut self.volumes[dispatch.volume as usize].1;
        let (operations, bytes, guard) = match direction {
            Direction::None => {
                counter.interrupt();
                (0, 0, 1)
            }
            _ => {
                let (operations, bytes) = counter.count(&piece);
                (operations, bytes, 0)
            }
        };
        let event = Event::Dispatched(Dispatched {
            at: now.ns,
            volume: dispatch.volume,
            instance,
            handle: dispatch.handle.into(),
            direction,
            length: dispatch.length,
            operations,
            bytes,
            guard,
            device_cost_ns: quantum.device_ns,
            tier: (quantum.device_ns > 0).then_some(match quantum.reason {
                DispatchReason::Reserved => Tier::Base,
                DispatchReason::Weight => Tier::Burst,
            }),
            urgent: quantum.urgent,
            last: dispatch.last,
        });
        self.report(now, &event);
    }
}

/// Returns the pauses of the server and of the device, in order.
fn stalls(setup: &Setup) -> Vec<(u64, u64, Cause)> {
    let ours = setup.poller.pauses.iter().map(|(from, length)| (*from, from + length, Cause::Ours));
    // A pause that begins during another one of the device starts when that one ends.
    let mut end = 0;
    let of_device = setup.changes.iter().filter_map(|change| match change.kind {
        ChangeKind::Stall(length) => {
            let from = change.at_ns.max(end);
            end = from + length;
            Some((from, end, Cause::Device))
        }
        _ => None,
    });
    let mut stalls: Vec<(u64, u64, Cause)> = ours.chain(of_device).collect();
    stalls.sort_by_key(|(from, ..)| *from);
    stalls
}

/// Returns the work of the device, if the scheduler knows of it.
fn work(device: &DeviceSetup) -> Option<DeviceWork> {
    let window = device.window?;
    let channels = u64::from(device.channels.unwrap_or(u32::MAX));
    let kind = |cost: ServiceTime| (cost.base_ns, cost.ns_per_kib * 1_000 / 1_024);
    let slots_max = match window {
        WindowSetup::Slots(slots) => slots.into(),
        WindowSetup::Adaptive(_) => channels.saturating_mul(4),
    };
    Some(DeviceWork { channels, slots_max, read: kind(device.read), write: kind(device.write) })
}

/// Returns the promise of a volume: its limits, and on a shared device its reservation.
fn promise(volume: &VolumeSetup, work: Option<&DeviceWork>) -> VolumePromise {
    let promise = VolumePromise::from_pacing(&volume.pacing, volume.balances);
    let rate = volume.pacing.operations.map(|limit| limit.per_second);
    let by_rate = rate.map_or(u32::MAX, saturating);
    let weight = volume.share.and_then(|share| share.weight).unwrap_or(by_rate);
    let floor = work.map_or(Floor::Limit, |work| Floor::Reserved {
        per_second: reserved(volume).max(least(&volume.pacing)),
        reference_cost_ns: work.read.0 + u64::from(REFERENCE_BYTES) * work.read.1 / 1_000,
    });
    VolumePromise { instance: volume.instance, floor, weight, ..promise }
}

fn reserved(volume: &VolumeSetup) -> u64 {
    volume.share.map_or(0, |share| share.reservation_per_second)
}

/// Returns the rate of a volume without a reservation: a hundredth of its limit and at least 20
/// I/Os per second, but no more than its limit.
fn least(pacing: &Pacing) -> u64 {
    let rate = pacing.operations.map(|limit| limit.per_second);
    (rate.unwrap_or(0) / 100).max(20).min(rate.unwrap_or(u64::MAX))
}

const fn direction(operation: Operation) -> Direction {
    match operation {
        Operation::Read => Direction::Read,
        Operation::Write { .. } => Direction::Write,
        _ => Direction::None,
    }
}

impl Policy for Watched {
    fn submit(&mut self, now: Instant, request: &Request) -> bool {
        let Request { volume, operation, offset, length, handle, .. } = *request;
        // A number without an instance has no limits.
        let instance = self.volumes[volume as usize].0.instance.unwrap_or(self.instances);
        let direction = direction(operation);
        let place = handle as usize;
        if self.open.len() <= place {
            self.open.resize(place + 1, Open::default());
        }
        let taken = self.product.submit(now, request);
        let event = if taken {
            self.open[place] = Open { instance, whole_length: length, ..Open::default() };
            let handle = handle.into();
            let at = now.ns;
            Event::Submitted(Submitted { at, volume, instance, handle, direction, offset, length })
        } else {
            let length = if direction == Direction::None { 0 } else { length };
            Event::Refused { at: now.ns, volume, length }
        };
        self.report(now, &event);
        self.collect(now);
        taken
    }

    fn poll(&mut self, now: Instant) {
        self.product.poll(now);
        self.collect(now);
    }

    fn poll_output(&mut self) -> Option<Dispatch> {
        self.output.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.product.poll_timeout()
    }

    fn complete(&mut self, now: Instant, dispatch: &Dispatch, service: Duration) {
        let open = &mut self.open[dispatch.handle as usize];
        open.pieces -= 1;
        let last = open.pieces == 0 && open.dispatched;
        let event = Event::Completed(Completed {
            at: now.ns,
            volume: dispatch.volume,
            handle: dispatch.handle.into(),
            length: dispatch.length,
            device_cost_ns: self.on_device.remove(&dispatch.ticket).unwrap_or(0),
            last,
        });
        self.report(now, &event);
        self.product.complete(now, dispatch, service);
        self.collect(now);
    }

    fn balances(&mut self, now: Instant, volume: u32) -> Balances {
        let balances = self.product.balances(now, volume);
        let units = [balances.operations, balances.bytes];
        let sample = Sample::VolumeBalances { volume, units };
        self.report(now, &Event::Sampled { at: now.ns, sample });
        balances
    }

    fn set_balances(&mut self, now: Instant, volume: u32, balances: Balances) -> bool {
        let units = [balances.operations, balances.bytes];
        self.report(now, &Event::Credited { at: now.ns, volume, units });
        let is_there = self.product.set_balances(now, volume, balances);
        self.collect(now);
        is_there
    }

    fn set_limits(&mut self, now: Instant, volume: u32, pacing: &Pacing) -> bool {
        let (promise, counter) = &mut self.volumes[volume as usize];
        let new = VolumePromise::from_pacing(pacing, promise.balances);
        let VolumePromise { instance, floor, weight, .. } = *promise;
        *promise = VolumePromise { instance, floor, weight, ..new };
        if let Floor::Reserved { per_second, .. } = &mut promise.floor {
            *per_second = self.reserved[volume as usize].max(least(pacing));
        }
        counter.set_rule(pacing.counting);
        let promise = Box::new(*promise);
        self.report(now, &Event::Modified { at: now.ns, volume, promise });
        let is_there = self.product.set_limits(now, volume, pacing);
        self.collect(now);
        is_there
    }
}
