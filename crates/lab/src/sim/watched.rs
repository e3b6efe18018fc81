//! The product under the checkers: everything that happens to it is told to them.

use super::policy::{Dispatch, Policy, Request};
use super::product::{NotSimulated, Product, device_model, instance_pacing};
use super::setup::{ChangeKind, Setup, VolumeSetup};
use crate::checker::stream::{
    Cause, Checkers, Completed, Counter, Direction, Dispatched, Event, Floor, InstancePromise,
    Piece, Report, Rule, Sample, Submitted, System, VolumePromise,
};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Nothing that its volume's own limits let pass waits longer than this.
const WAIT_MAX_NS: u64 = 2_000_000_000;

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
    /// What is promised for each volume, and how its requests count.
    volumes: Vec<(VolumePromise, Counter)>,
    instances: u32,
    /// What went, told already: it went all at once, whenever it is asked for.
    output: VecDeque<Dispatch>,
    /// By handle.
    open: Vec<Open>,
    /// When nothing is done, and by whom, in order; told just before.
    stalls: Vec<(u64, u64, Cause)>,
    next_stall: usize,
}

impl Watched {
    /// The product with everything in a setup, and what that promises.
    ///
    /// # Errors
    /// When the product does not take the setup.
    pub(super) fn new(setup: &Setup) -> Result<Self, NotSimulated> {
        let product = Product::new(setup)?;
        let reference_ns = device_model(&setup.device).map(|model| model.reference_ns());
        let promises: Vec<VolumePromise> =
            setup.volumes.iter().map(|volume| promise(volume, reference_ns)).collect();
        let unseen_room = setup.device.window.is_some();
        let mut system = System { volumes: promises.clone(), unseen_room, ..System::default() };
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
        Ok(Self {
            product,
            checkers: Checkers::only(system, &rules(setup)),
            volumes,
            instances: u32::try_from(setup.instances.len()).unwrap_or(u32::MAX),
            output: VecDeque::new(),
            open: Vec::new(),
            stalls: stalls(setup),
            next_stall: 0,
        })
    }

    /// What the checkers found.
    pub(super) fn finish(self) -> Report {
        self.checkers.finish()
    }

    fn tell(&mut self, now: Instant, event: &Event) {
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
        while let Some((dispatch, told)) = self.product.poll_dispatch() {
            self.dispatched(now, &dispatch, told.device_ns, told.urgent);
            self.output.push_back(dispatch);
        }
    }

    fn dispatched(&mut self, now: Instant, dispatch: &Dispatch, device_ns: u64, urgent: bool) {
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
            device_cost_ns: device_ns,
            tier: None,
            urgent,
            last: dispatch.last,
        });
        self.tell(now, &event);
    }
}

/// The rules that judge a setup. Where the scheduler is told of a device, volumes wait for its
/// room, which the checkers do not see: what says that a volume goes evenly, at once or as much as
/// its equals is not asked then.
fn rules(setup: &Setup) -> Vec<Rule> {
    let of_room = [Rule::Peak10Ms, Rule::Modify, Rule::Fairness, Rule::SteadySecond];
    let scheduled = setup.device.window.is_some();
    Rule::ALL.into_iter().filter(|rule| !scheduled || !of_room.contains(rule)).collect()
}

/// When nothing is done: pauses of the server, and of the device.
fn stalls(setup: &Setup) -> Vec<(u64, u64, Cause)> {
    let ours = setup.poller.pauses.iter().map(|(from, length)| (*from, from + length, Cause::Ours));
    // A pause that comes while the device stands still begins when that one ends.
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

/// What a volume is promised: its limits; and on a device that others use, its reservation.
fn promise(volume: &VolumeSetup, reference_ns: Option<u64>) -> VolumePromise {
    let promise = VolumePromise::from_pacing(&volume.pacing, volume.balances);
    let reserved = volume.share.map_or(0, |share| share.reservation_per_second);
    let floor = match reference_ns {
        None => Floor::Limit,
        Some(_) if reserved == 0 => Floor::None,
        Some(reference_cost_ns) => Floor::Reserved { per_second: reserved, reference_cost_ns },
    };
    VolumePromise { instance: volume.instance, floor, ..promise }
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
        // A number of no instance has no limits.
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
        self.tell(now, &event);
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
            device_cost_ns: 0,
            last,
        });
        self.tell(now, &event);
        self.product.complete(now, dispatch, service);
        self.collect(now);
    }

    fn balances(&mut self, now: Instant, volume: u32) -> Balances {
        let balances = self.product.balances(now, volume);
        let units = [balances.operations, balances.bytes];
        let sample = Sample::VolumeBalances { volume, units };
        self.tell(now, &Event::Sampled { at: now.ns, sample });
        balances
    }

    fn set_balances(&mut self, now: Instant, volume: u32, balances: Balances) -> bool {
        let units = [balances.operations, balances.bytes];
        self.tell(now, &Event::Credited { at: now.ns, volume, units });
        let is_there = self.product.set_balances(now, volume, balances);
        self.collect(now);
        is_there
    }

    fn repace(&mut self, now: Instant, volume: u32, pacing: &Pacing) -> bool {
        let (promise, counter) = &mut self.volumes[volume as usize];
        let new = VolumePromise::from_pacing(pacing, promise.balances);
        *promise = VolumePromise { instance: promise.instance, floor: promise.floor, ..new };
        counter.set_rule(pacing.counting);
        let promise = Box::new(*promise);
        self.tell(now, &Event::Modified { at: now.ns, volume, promise });
        let is_there = self.product.repace(now, volume, pacing);
        self.collect(now);
        is_there
    }
}
