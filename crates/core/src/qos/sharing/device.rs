//! Order of requests at a device: reservations that are due first, in the order of their tags; then
//! the others by weight; and never more in flight than the window.
//!
//! A *tag* is the time at which a volume's next reserved request is due. It advances by the
//! request's device time divided by the reserved device time per second, and only if the request
//! was served as a reserved one: device time that a volume gets by its weight does not reduce its
//! reservation (mClock, OSDI 2010). It never lags behind by more than [`HOARD`], so an idle volume
//! saves nothing.

use super::heap::Heap;
use super::model::{Claim, DeviceModel, DeviceOthers};
use super::spare::Spare;
use super::window::{Correction, InFlight, SMALL_BYTES_MAX};
use crate::convert::saturating;
use crate::qos::slots::{DeviceSlot, FlowSlot, ShareSlot};
use crate::request::Operation;
use crate::time::{Duration, Instant};

/// Maximum lag of a reservation tag, which is the time's worth of tokens that it saves.
const HOARD: Duration = Duration::from_ms(5);

/// Delay after its tag from which a reserved request is served late.
const LATE: Duration = Duration::from_ms(1);

/// Time after an urgent request in which the next one is expected.
pub const URGENT_RECENT: Duration = Duration::from_ms(100);

/// A request is large if it takes more than this many times the reference request's time.
const LARGE: u64 = 4;

const NS_PER_S: u64 = 1_000_000_000;

/// Virtual time of one nanosecond of device time at weight 1.
const VIRTUAL_PER_NS: u64 = 1 << 16;

/// Virtual times are lowered before they come near the end of their type.
const REBASE_AT: u64 = 1 << 60;

/// A volume's place among those that share a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Time at which its next reserved request is due.
    pub tag: Instant,
    /// Its virtual time: the lowest is served first from the device time that reservations leave.
    pub virtual_time: u64,
    /// Reserved reference requests per second; 0 is none.
    reserved_per_s: u32,
    weight: u32,
}

impl Place {
    /// A place without a claim.
    pub const fn new(now: Instant) -> Self {
        Self { tag: now, virtual_time: 0, reserved_per_s: 0, weight: 1 }
    }

    /// Applies another claim. Requests that were reserved under the old one are neither lost nor
    /// gained.
    pub fn set_claim(&mut self, claim: &Claim, least: u32) {
        self.reserved_per_s = claim.reservation_per_second.max(least);
        self.set_weight(claim.weight);
    }

    /// Sets its weight; 0 counts as 1.
    pub const fn set_weight(&mut self, weight: u32) {
        self.weight = if weight == 0 { 1 } else { weight };
    }

    /// Returns its weight for the device time that reservations leave.
    pub const fn weight(&self) -> u32 {
        self.weight
    }

    const fn has_reservation(&self) -> bool {
        self.reserved_per_s > 0
    }

    /// Returns its reserved device time per second, in nanoseconds.
    fn reserved_ns_per_s(&self, reference_ns: u64) -> u64 {
        u64::from(self.reserved_per_s).saturating_mul(reference_ns)
    }
}

/// Counters of a device.
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
    /// The longest such delay.
    pub late_max: Duration,
    /// Maximum number of requests in flight on the whole device once a large one is added, while
    /// urgent ones arrive.
    pub beside_urgent: u32,
    /// Real time of reads relative to the model, in thousandths.
    pub read_drift_per_mille: u64,
    /// Real time of writes relative to the model, in thousandths.
    pub write_drift_per_mille: u64,
}

/// Reason for the dispatch of a quantum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DispatchReason {
    /// Its volume's reservation was due: base.
    Reserved,
    /// Its volume's weight, from the device time that reservations left: burst.
    Weight,
}

/// A device, with the flows that wait for it.
#[derive(Debug)]
pub(crate) struct Device {
    model: DeviceModel,
    /// Channel time of the request that reservations are counted in.
    reference_ns: u64,
    pub window: InFlight,
    /// Flows by the time at which their reservation is due; only those with a reservation.
    by_tag: Heap<FlowSlot>,
    /// All waiting flows, by virtual time.
    by_virtual_time: Heap<FlowSlot>,
    /// Flows whose first request is urgent, by arrival.
    urgent: Heap<FlowSlot>,
    /// Time at which an urgent request was last served.
    urgent_at: Option<Instant>,
    spare: Spare,
    /// The virtual time of the last quantum that was served by weight.
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

    /// Applies another model, for instance after a calibration.
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

    /// Returns the channel time of a quantum with the present correction, in nanoseconds.
    pub fn cost_ns(&self, operation: Operation, length: u32) -> u64 {
        let nominal_ns = self.nominal_ns(operation, length);
        match operation {
            Operation::Read | Operation::Cache | Operation::BlockStatus => nominal_ns,
            _ => self.write.apply(nominal_ns),
        }
    }

    /// Returns the channel time of a quantum by the model, by which reservations are sold.
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

    /// Returns whether a flow is in line.
    pub fn is_in_line(&self, flow: FlowSlot) -> bool {
        self.by_virtual_time.contains(flow)
    }

    /// Returns the number of flows in line.
    pub const fn in_line(&self) -> usize {
        self.by_virtual_time.len()
    }

    /// Asserts that flows that are due or urgent are in line, and that the requests in flight add
    /// up to `works_on`.
    ///
    /// # Panics
    /// If one of these does not hold.
    pub fn invariants<'a>(&self, works_on: impl Iterator<Item = &'a InService>) {
        let Self { by_tag, by_virtual_time, urgent, .. } = self;
        [by_tag, by_virtual_time, urgent].into_iter().for_each(Heap::invariants);
        for (_, flow) in by_tag.iter().chain(urgent.iter()) {
            assert!(self.is_in_line(flow), "attachment {flow:?} is due or urgent, and not in line");
        }
        self.window.invariants(works_on.map(|quantum| (quantum.cost_ns, quantum.is_long)));
    }

    /// Lets a flow wait for its turn. Its request waits since `since`, here or for its instance: a
    /// flow that comes back from its instance keeps its place among those that are due. Otherwise
    /// others that share the instance could take each time what it lets pass before it.
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
        if urgent { self.urgent.set(flow, since.ns) } else { self.urgent.remove(flow) }
    }

    /// Removes a flow from the line.
    #[inline]
    pub fn forget(&mut self, flow: FlowSlot) {
        if !self.is_wanted() {
            return;
        }
        self.by_tag.remove(flow);
        self.by_virtual_time.remove(flow);
        self.urgent.remove(flow);
    }

    /// Returns whether there is room for a quantum.
    ///
    /// While urgent requests arrive, a channel is kept free of large ones, so that an urgent one
    /// need not wait for the end of one of many that take long. If all of them take equally long,
    /// that is a whole request's time, not a channel's part of it.
    pub fn has_room_for(&self, cost_ns: u64, urgent: bool, now: Instant) -> bool {
        let expects_urgent = || self.urgent_at.is_some_and(|time| now.since(time) < URGENT_RECENT);
        let is_large = || cost_ns > LARGE * self.reference_ns;
        let room = self.window.has_room_for(cost_ns);
        let leaves_room = || self.spare.is_left(self.window.requests(), self.window.part());
        room && (urgent || !is_large() || leaves_room() || !expects_urgent())
    }

    /// Returns the first flow to arrive of those whose first request is urgent.
    pub fn first_urgent(&self) -> Option<FlowSlot> {
        self.urgent.first().map(|(_, flow)| flow)
    }

    /// Returns whether a flow waits for its turn among them.
    pub fn is_urgent(&self, flow: FlowSlot) -> bool {
        self.urgent.contains(flow)
    }

    /// Returns when an urgent request was last served, here or at another scheduler of this device.
    pub const fn urgent_at(&self) -> Option<Instant> {
        self.urgent_at
    }

    /// Applies the reports of other schedulers of this device.
    pub fn hear(&mut self, others: &DeviceOthers) {
        self.window.set_part(others.part_per_mille);
        self.window.set_others(others.in_flight, others.window_slots);
        self.spare.set_others(others.beside_urgent);
        self.urgent_at = self.urgent_at.max(others.urgent_at);
    }

    /// Returns the flow to be served now, with the reason.
    pub fn next(&self, now: Instant) -> Option<(FlowSlot, DispatchReason)> {
        if let Some((_, flow)) = self.by_tag.first().filter(|(due, _)| *due <= now.ns) {
            return Some((flow, DispatchReason::Reserved));
        }
        self.by_virtual_time.first().map(|(_, flow)| (flow, DispatchReason::Weight))
    }

    /// Returns when a waiting flow's reservation is due, as it entered the line; `None` if it is
    /// not the first.
    fn due(&self, flow: FlowSlot) -> Option<Instant> {
        self.by_tag
            .first()
            .filter(|(_, first)| *first == flow)
            .map(|(due, _)| Instant::from_ns(due))
    }

    /// Records that a flow of this place is served now, whether it waited or not. Returns the
    /// reason: a flow that has not waited is served as reserved if that is due.
    ///
    /// A reservation is used up by the model's cost of its requests. If it were by their observed
    /// cost, volumes would get fewer of the I/Os that they bought as soon as writes take longer, or
    /// seem to; instead, burst has to make room for them.
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

    /// Records the completion of a quantum.
    #[inline]
    pub fn completed(&mut self, now: Instant, done: &InService) {
        let service = now.since(done.dispatched_at);
        let charged = (done.cost_ns, done.is_long);
        let (correction, cost) = match done.operation {
            Operation::Read => (&mut self.read, &self.model.read),
            Operation::Write { .. } => (&mut self.write, &self.model.write),
            // Other operations are no evidence for the cost of bytes; a flush takes as long as its
            // data.
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

    /// Returns the amount by which all virtual times are to be lowered now, if at all. The caller
    /// lowers those of the places.
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

/// A quantum for the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantum {
    pub operation: Operation,
    pub length: u32,
    /// Its channel time with the present correction.
    pub cost_ns: u64,
}

/// A quantum in service at the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InService {
    pub device: DeviceSlot,
    /// The volume, if it still exists.
    pub share: ShareSlot,
    pub share_generation: u32,
    pub dispatched_at: Instant,
    /// Cost that was charged to the window, and whether as a long request.
    pub cost_ns: u64,
    pub is_long: bool,
    pub length: u32,
    /// Requests in flight at its dispatch, itself included.
    pub in_flight: u32,
    pub operation: Operation,
    pub is_urgent: bool,
}

/// Returns `a * b / c`, rounded down; saturates. `c` is not 0.
fn scale(a: u64, b: u64, c: u64) -> u64 {
    debug_assert!(c > 0, "{a} * {b} / 0");
    match a.checked_mul(b) {
        Some(product) => product / c, // always, if a request takes less than 18 s
        None => saturating(u128::from(a) * u128::from(b) / u128::from(c)),
    }
}

/// Returns the earliest time that a tag may have.
fn hoarded(now: Instant) -> Instant {
    Instant::from_ns(now.ns.saturating_sub(HOARD.ns))
}
