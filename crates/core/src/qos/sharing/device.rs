//! Who goes next at a device: reservations that are due first, in the order of their tags; what is
//! left by weight; and never more in flight than the window.
//!
//! A *tag* is the time at which a volume's next reserved request is due. It moves on by the
//! request's device time over the reserved device time per second, and only when the request was
//! served as a reserved one: what a volume gets by its weight does not cost it its reservation
//! (mClock, OSDI 2010). It never lags behind by more than [`HOARD`], so an idle volume saves
//! nothing.

use super::heap::Heap;
use super::model::{Claim, DeviceModel, DeviceOthers};
use super::spare::Spare;
use super::window::{Correction, InFlight, SMALL_BYTES_MAX};
use crate::qos::slots::{DeviceSlot, FlowSlot, ShareSlot};
use crate::request::Operation;
use crate::time::{Duration, Instant};

/// How far a reservation tag may lag behind: tokens, in effect, for so long.
const HOARD: Duration = Duration::from_ms(5);

/// A reserved request served later than this after its tag is a reservation served late.
const LATE: Duration = Duration::from_ms(1);

/// So long after an urgent request the next one is expected.
pub const URGENT_RECENT: Duration = Duration::from_ms(100);

/// A request is large that takes more than so many times what the reference request takes.
const LARGE: u64 = 4;

const NS_PER_S: u64 = 1_000_000_000;

/// Virtual time of one nanosecond of device time at weight 1.
const VIRTUAL_PER_NS: u64 = 1 << 16;

/// Virtual times are lowered before they come near the end of their type.
const REBASE_AT: u64 = 1 << 60;

/// A volume's place among those who share a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// When its next reserved request is due.
    pub tag: Instant,
    /// Its virtual time: who is least is served first from what reservations leave.
    pub virtual_time: u64,
    /// Reference requests a second it has reserved; 0 is none.
    reserved_per_s: u32,
    weight: u32,
}

impl Place {
    /// A place without a claim.
    pub const fn new(now: Instant) -> Self {
        Self { tag: now, virtual_time: 0, reserved_per_s: 0, weight: 1 }
    }

    /// Puts another claim in force; what was reserved under the old one is neither lost nor gained.
    pub fn set_claim(&mut self, claim: &Claim, least: u32) {
        self.reserved_per_s = claim.reservation_per_second.max(least);
        self.set_weight(claim.weight);
    }

    /// Changes its part of what is left; 0 counts as 1.
    pub const fn set_weight(&mut self, weight: u32) {
        self.weight = if weight == 0 { 1 } else { weight };
    }

    /// Its part of what is left, beside the others'.
    pub const fn weight(&self) -> u32 {
        self.weight
    }

    const fn has_reservation(&self) -> bool {
        self.reserved_per_s > 0
    }

    /// Device time a second it has reserved, in nanoseconds.
    fn reserved_ns_per_s(&self, reference_ns: u64) -> u64 {
        u64::from(self.reserved_per_s).saturating_mul(reference_ns)
    }
}

/// What a device has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounters {
    /// Requests in flight.
    pub in_flight: u32,
    /// Their device time, in nanoseconds.
    pub in_flight_ns: u64,
    /// Device time that may be in flight, in nanoseconds.
    pub window_ns: u64,
    /// The window in requests of the present mean cost.
    pub window_slots: u64,
    /// Quanta served because their reservation was due.
    pub reserved: u64,
    /// Quanta served by weight.
    pub by_weight: u64,
    /// Reserved quanta that were served more than a millisecond after they were due.
    pub late_reservations: u64,
    /// The latest of them.
    pub late_max: Duration,
    /// Requests that may be in flight on the whole device once a large one is added, while urgent
    /// ones come.
    pub beside_urgent: u32,
    /// What reads really take beside the model, in thousandths.
    pub read_drift_per_mille: u64,
    /// What writes really take beside the model, in thousandths.
    pub write_drift_per_mille: u64,
}

/// On what reason a quantum went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DispatchReason {
    /// Its volume's reservation was due: base.
    Reserved,
    /// By its volume's weight, from what reservations left: burst.
    Weight,
}

/// One device and those who wait for it.
#[derive(Debug)]
pub(crate) struct Device {
    model: DeviceModel,
    /// Channel time of the request that reservations are counted in.
    reference_ns: u64,
    pub window: InFlight,
    /// Flows by the time their reservation is due; only those that have one.
    by_tag: Heap<FlowSlot>,
    /// All flows that wait, by virtual time.
    by_virtual_time: Heap<FlowSlot>,
    /// Those whose first request is urgent, by when they came.
    urgent: Heap<FlowSlot>,
    /// When an urgent request was served last.
    urgent_at: Option<Instant>,
    spare: Spare,
    /// The virtual time of what was served last by weight.
    virtual_now: u64,
    read: Correction,
    write: Correction,
    counters: DeviceCounters,
}

impl Device {
    pub fn new(now: Instant, model: &DeviceModel) -> Self {
        Self {
            model: *model,
            reference_ns: model.reference_ns(),
            window: InFlight::new(now, model),
            by_tag: Heap::default(),
            by_virtual_time: Heap::default(),
            urgent: Heap::default(),
            urgent_at: None,
            spare: Spare::new(model.channels),
            virtual_now: 0,
            read: Correction::NONE,
            write: Correction::NONE,
            counters: DeviceCounters::default(),
        }
    }

    /// Puts another model in force, for instance after a calibration.
    pub fn set_model(&mut self, model: &DeviceModel) {
        self.model = *model;
        self.reference_ns = model.reference_ns();
        self.window.set_model(model);
        self.spare = Spare::new(model.channels);
        self.read = Correction::NONE;
        self.write = Correction::NONE;
    }

    pub fn grow(&mut self, flows: usize) {
        self.by_tag.grow(flows);
        self.by_virtual_time.grow(flows);
        self.urgent.grow(flows);
    }

    /// Channel time of a quantum as far as is known, in nanoseconds.
    pub fn cost_ns(&self, operation: Operation, length: u32) -> u64 {
        let nominal_ns = self.nominal_ns(operation, length);
        match operation {
            Operation::Read | Operation::Cache | Operation::BlockStatus => nominal_ns,
            _ => self.write.apply(nominal_ns),
        }
    }

    /// Channel time of a quantum by the model: what reservations are sold by.
    fn nominal_ns(&self, operation: Operation, length: u32) -> u64 {
        match operation {
            Operation::Read | Operation::Cache => self.model.read.ns(length),
            Operation::BlockStatus => self.model.read.ns(0),
            Operation::Write { .. } => self.model.write.ns(length),
            Operation::Discard { .. } | Operation::WriteZeroes { .. } | Operation::Flush => {
                self.model.write.ns(0)
            }
        }
    }

    pub const fn is_wanted(&self) -> bool {
        !self.by_virtual_time.is_empty()
    }

    /// Whether a flow is in line.
    pub fn is_in_line(&self, flow: FlowSlot) -> bool {
        self.by_virtual_time.contains(flow)
    }

    /// Flows in line.
    pub const fn in_line(&self) -> usize {
        self.by_virtual_time.len()
    }

    /// Asserts that what is due or urgent is in line, and that what is in flight adds up to what
    /// the device works on.
    ///
    /// # Panics
    /// If it is not so.
    pub fn invariants<'a>(&self, works_on: impl Iterator<Item = &'a InService>) {
        let Self { by_tag, by_virtual_time, urgent, .. } = self;
        [by_tag, by_virtual_time, urgent].into_iter().for_each(Heap::invariants);
        for (_, flow) in by_tag.iter().chain(urgent.iter()) {
            assert!(self.is_in_line(flow), "attachment {flow:?} is due or urgent, and not in line");
        }
        self.window.invariants(works_on.map(|quantum| (quantum.cost_ns, quantum.is_long)));
    }

    /// Lets a flow wait for its turn. Its request waits since the first of the times, here or for
    /// its instance: one that comes back from there keeps its place among those that are due, or
    /// others that share the instance could take what it lets pass before it every time.
    pub fn wait(
        &mut self,
        flow: FlowSlot,
        place: &mut Place,
        urgent: bool,
        (since, now): (Instant, Instant),
    ) {
        self.window.wanted();
        place.virtual_time = place.virtual_time.max(self.virtual_now);
        if place.has_reservation() {
            let due = place.tag.max(hoarded(since));
            let due = if urgent { due.min(now) } else { due };
            self.by_tag.set(flow, due.ns);
        }
        self.by_virtual_time.set(flow, place.virtual_time);
        match urgent {
            true => self.urgent.set(flow, since.ns),
            false => self.urgent.remove(flow),
        }
    }

    /// Takes a flow out of the line.
    #[inline]
    pub fn forget(&mut self, flow: FlowSlot) {
        if !self.is_wanted() {
            return;
        }
        self.by_tag.remove(flow);
        self.by_virtual_time.remove(flow);
        self.urgent.remove(flow);
    }

    /// Whether there is room for a quantum.
    ///
    /// As long as urgent requests come, a channel is kept free of large ones: so that an urgent one
    /// need not wait until one of many that take long is done. Where all of them take equally long,
    /// that is as long as each of them takes, not a channel's part of it.
    pub fn has_room_for(&self, cost_ns: u64, urgent: bool, now: Instant) -> bool {
        let expects_urgent = || self.urgent_at.is_some_and(|at| now.since(at) < URGENT_RECENT);
        let is_large = || cost_ns > LARGE * self.reference_ns;
        let room = self.window.has_room_for(cost_ns);
        let leaves_room = || self.spare.is_left(self.window.requests(), self.window.part());
        room && (urgent || !is_large() || leaves_room() || !expects_urgent())
    }

    /// Of those whose first request is urgent, who came first.
    pub fn first_urgent(&self) -> Option<FlowSlot> {
        self.urgent.first().map(|(_, flow)| flow)
    }

    /// Whether a flow waits for its turn among them.
    pub fn is_urgent(&self, flow: FlowSlot) -> bool {
        self.urgent.contains(flow)
    }

    /// When an urgent request was served last, here or at another scheduler of this device.
    pub const fn urgent_at(&self) -> Option<Instant> {
        self.urgent_at
    }

    /// Notes what other schedulers of this device say.
    pub fn hear(&mut self, others: &DeviceOthers) {
        self.window.set_part(others.part_per_mille);
        self.window.set_others(others.in_flight, others.window_slots);
        self.spare.set_others(others.beside_urgent);
        self.urgent_at = self.urgent_at.max(others.urgent_at);
    }

    /// Who would be served now, and on what reason.
    pub fn next(&self, now: Instant) -> Option<(FlowSlot, DispatchReason)> {
        if let Some((_, flow)) = self.by_tag.first().filter(|(due, _)| *due <= now.ns) {
            return Some((flow, DispatchReason::Reserved));
        }
        self.by_virtual_time.first().map(|(_, flow)| (flow, DispatchReason::Weight))
    }

    /// When a waiting flow's reservation is due, as it entered the line.
    fn due(&self, flow: FlowSlot) -> Option<Instant> {
        self.by_tag
            .first()
            .filter(|(_, first)| *first == flow)
            .map(|(due, _)| Instant::from_ns(due))
    }

    /// Notes that a flow of this place is served now, whether it waited or not, and on what reason:
    /// one that does not wait is served as reserved if that is due.
    ///
    /// A reservation is used up by what its requests cost by the model: were it by what they are
    /// found to cost, volumes would get fewer I/Os of what they bought as soon as writes take
    /// longer, or seem to, instead of burst making room for them.
    #[inline(always)]
    pub fn serve(
        &mut self,
        flow: FlowSlot,
        place: &mut Place,
        quantum: &Quantum,
        urgent: bool,
        now: Instant,
    ) -> DispatchReason {
        let due = self.due(flow).unwrap_or_else(|| place.tag.max(hoarded(now)));
        debug_assert!(self.has_room_for(quantum.cost_ns, urgent, now), "no room for {quantum:?}");
        let reason = if place.has_reservation() && (due <= now || urgent) {
            let late = now.since(due);
            if late > LATE {
                self.counters.late_reservations += 1;
                self.counters.late_max = self.counters.late_max.max(late);
            }
            let nominal_ns = self.nominal_ns(quantum.operation, quantum.length);
            let step = scale(nominal_ns, NS_PER_S, place.reserved_ns_per_s(self.reference_ns));
            let step = Duration::from_ns(step);
            place.tag = place.tag.max(hoarded(now)) + step;
            self.counters.reserved += 1;
            DispatchReason::Reserved
        } else {
            let virtual_time = place.virtual_time.max(self.virtual_now);
            self.virtual_now = virtual_time;
            let step = quantum.cost_ns.saturating_mul(VIRTUAL_PER_NS) / u64::from(place.weight);
            place.virtual_time = virtual_time.saturating_add(step);
            self.counters.by_weight += 1;
            DispatchReason::Weight
        };
        if urgent {
            self.urgent_at = Some(now);
        }
        self.forget(flow);
        reason
    }

    /// A quantum is done.
    #[inline]
    pub fn completed(&mut self, now: Instant, done: &InService) {
        let service = now.since(done.dispatched_at);
        let charged = (done.cost_ns, done.is_long);
        let (correction, cost) = match done.operation {
            Operation::Read => (&mut self.read, &self.model.read),
            Operation::Write { .. } => (&mut self.write, &self.model.write),
            // The others say nothing about what bytes cost; a flush takes as long as there is to
            // flush.
            _ => return self.window.completed(now, charged, None),
        };
        let crowding = self.window.crowding(done.in_flight);
        correction.learn(cost.ns(done.length), service, crowding);
        if done.is_urgent {
            self.spare.learn(service, self.model.write.ns(done.length));
        }
        let small = done.length <= SMALL_BYTES_MAX;
        self.window.completed(now, charged, small.then_some(service));
    }

    /// By how much all virtual times are to be lowered now, if at all: the caller lowers those of
    /// the places.
    pub fn rebase(&mut self) -> Option<u64> {
        let amount = self.virtual_now;
        if amount < REBASE_AT {
            return None;
        }
        self.by_virtual_time.rebase(amount);
        self.virtual_now = 0;
        Some(amount)
    }

    pub fn counters(&self) -> DeviceCounters {
        DeviceCounters {
            in_flight: self.window.requests(),
            in_flight_ns: self.window.cost_ns(),
            window_ns: self.window.window_ns(),
            window_slots: self.window.slots(),
            beside_urgent: self.spare.most(),
            read_drift_per_mille: self.read.per_mille(),
            write_drift_per_mille: self.write.per_mille(),
            ..self.counters
        }
    }
}

/// A quantum that goes to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantum {
    pub operation: Operation,
    pub length: u32,
    /// Its channel time as far as is known.
    pub cost_ns: u64,
}

/// A quantum that the device works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InService {
    pub device: DeviceSlot,
    /// Of which volume, if that is still there.
    pub share: ShareSlot,
    pub share_generation: u32,
    pub dispatched_at: Instant,
    /// What was charged to the window, and whether as a long one.
    pub cost_ns: u64,
    pub is_long: bool,
    pub length: u32,
    /// Requests in flight when it was dispatched, itself included.
    pub in_flight: u32,
    pub operation: Operation,
    pub is_urgent: bool,
}

/// `a * b / c`, rounded down; saturates. `c` is not 0.
fn scale(a: u64, b: u64, c: u64) -> u64 {
    debug_assert!(c > 0, "{a} * {b} / 0");
    match a.checked_mul(b) {
        Some(product) => product / c, // always, where a request takes less than 18 s
        None => u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX),
    }
}

/// The earliest a tag may be.
fn hoarded(now: Instant) -> Instant {
    Instant::from_ns(now.ns.saturating_sub(HOARD.ns))
}
