//! Schedules the requests of many volumes, each held exactly to its limits: requests are submitted,
//! and dispatches are returned when the limits allow them.
//!
//! ```text
//!  submit ─▶ queue of the volume ─▶ limiter: all ready? ─yes─▶ charge all ─▶ output ─▶ poll_output
//!                                │no            ▲
//!                                ▼              │ due, in order
//!                              wheel ──── poll ─┘
//! ```
//!
//! A volume with a [`Claim`](super::sharing::Claim) passes two more limiters before it is charged.
//! Requests that these hold wait at them, and not in the wheel:
//!
//! ```text
//!  volume's limiter ─▶ instance's limiter ─▶ device's window ─▶ charge all ─▶ output
//!        │no                  │no                   │no                         │
//!        ▼                    ▼                     ▼                           ▼
//!      wheel             ring of flows         queue of flows ◀── complete ── store
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `mod.rs` | volumes: add, submit, poll, remove; the turns of volumes without a claim |
//! | `control.rs` | devices, instances, claims and attachments: add, change, remove |
//! | `limiters.rs` | passing all limiters, and charging them |
//! | `round_robin.rs` | the turns at volumes with a claim, at instances and at devices |
//! | `share.rs` | the state of claims, instances and devices; tickets |
//! | `export.rs` | moves of volumes and instances to another scheduler |
//! | `types.rs` | the types that callers pass and get: names, requests, dispatches, errors |
//! | `phase.rs` | the state after which a scheduler repeats itself |
//! | `invariants.rs` | conditions that always hold; checked in debug builds |
//!
//! The order of calls: [`Scheduler::submit`] or [`Scheduler::poll`], then
//! [`Scheduler::poll_output`] until it is empty, then [`Scheduler::poll_timeout`] for the latest
//! time of the next poll. Polling late or more often changes no rate. A volume is *idle* (no queue,
//! in no list), *waiting* (a limit delays its first request; one entry in the wheel, or none if the
//! limit is closed) or *due* (its limits allow it to continue, but its turn or the poll was over).
//!
//! Fairness: requests of one volume leave in order of arrival. Volumes that are due take turns of
//! at most [`TURN_DISPATCHES_MAX`] dispatches in the order in which they became due; a volume that
//! has not finished goes to the end. So no volume waits longer than one turn of each other volume,
//! and no poll is longer than [`OUTPUT_DISPATCHES_MAX`] dispatches.

mod control;
mod export;
mod invariants;
mod limiters;
mod phase;
mod round_robin;
mod share;
mod types;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

pub use export::{ExportError, Exported, ExportedInstance};
pub use round_robin::CATCH_UP_MAX;
pub use share::Ticket;
pub use types::{
    AttachmentIndex, Counters, DeviceIndex, Dispatch, InstanceIndex, Io, NoSuch, Room, SubmitError,
    TooManyVolumes, VolumeIndex,
};

use self::invariants::NextCheck;
use self::share::Sharing;
use super::cost::Counting;
use super::limiter::{Exceeded, Limiter};
use super::pacing::{Balances, Pacing};
use super::queue::{Cancelled, Nodes, Queue};
use super::reserves::Reserves;
use super::sharing::device::DispatchReason;
use super::slots::{ShareSlot, Table, VolumeSlot};
use super::wheel::{LINK_BYTES, WheelOf};
use crate::limits::VOLUMES_PER_CORE_MAX;
use crate::request::Operation;
use crate::time::Instant;

/// Maximum number of dispatches in the output queue, and so of one poll or submission: about a
/// hundred microseconds of work.
pub const OUTPUT_DISPATCHES_MAX: usize = 1_024;

/// Maximum number of dispatches in a volume's turn: the quanta of a 16 MiB request.
pub const TURN_DISPATCHES_MAX: u32 = 64;

/// Volumes whose memory a poll prefetches before their turns: as many as a core has cache misses in
/// flight.
const WARM_UP_VOLUMES: usize = 8;

/// Maximum number of wheel entries that a poll moves; each takes a few nanoseconds.
const POLL_MOVES_MAX: u32 = 4_096;

/// State of a volume that each of its requests touches: three cache lines.
#[derive(Debug)]
#[repr(align(64))]
struct Volume {
    limiter: Limiter,
    counting: Counting,
    queue: Queue,
    requests: u64,
    bytes_read: u64,
    bytes_written: u64,
    /// Its share, or none if it has no claim.
    share: ShareSlot,
}

// An idle volume is to be at most 256 bytes: this, its generation, and its link in the wheel.
const _: () = assert!(size_of::<Volume>() + size_of::<Reserves>() + 4 + LINK_BYTES <= 256);
const _: () = assert!(size_of::<Volume>() == 192);

/// The scheduler of one core; see the module's text.
#[derive(Debug)]
pub struct Scheduler {
    now: Instant,
    clock_steps_back: u64,
    volumes: Table<VolumeSlot, Volume>,
    /// For each volume: limits that few requests touch.
    reserves: Table<VolumeSlot, Reserves>,
    /// For each volume: odd while its slot is taken.
    generations: Table<VolumeSlot, u32>,
    vacant: Vec<VolumeSlot>,
    sharing: Sharing,
    nodes: Nodes,
    wheel: WheelOf<VolumeSlot>,
    output: VecDeque<Dispatch>,
    next_check: NextCheck,
}

impl Scheduler {
    /// Creates a scheduler without volumes.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            now,
            clock_steps_back: 0,
            volumes: Table::new(),
            reserves: Table::new(),
            generations: Table::new(),
            vacant: Vec::new(),
            sharing: Sharing::default(),
            nodes: Nodes::new(),
            wheel: WheelOf::new(now),
            output: VecDeque::with_capacity(OUTPUT_DISPATCHES_MAX),
            next_check: NextCheck::default(),
        }
    }

    /// Starts to schedule a volume: pacers full, credit balances as given or full.
    ///
    /// # Errors
    /// If the scheduler has the maximum number of volumes.
    pub fn add(
        &mut self,
        now: Instant,
        pacing: &Pacing,
        balances: Balances,
    ) -> Result<VolumeIndex, TooManyVolumes> {
        self.set_now(now);
        let volume = Volume::new(self.now, pacing);
        let reserves = Reserves::new(self.now, pacing, balances);
        if let Some(slot) = self.vacant.pop() {
            self.volumes[slot] = volume;
            self.reserves[slot] = reserves;
            self.generations[slot] = self.generations[slot].wrapping_add(1);
            return Ok(VolumeIndex { slot, generation: self.generations[slot] });
        }
        if self.volumes.len() >= VOLUMES_PER_CORE_MAX {
            return Err(TooManyVolumes);
        }
        let slot = self.volumes.push(volume);
        self.reserves.push(reserves);
        self.generations.push(1);
        self.wheel.grow(self.volumes.len());
        Ok(VolumeIndex { slot, generation: 1 })
    }

    /// Stops scheduling a volume and returns the handles of its waiting requests; see [`Cancelled`]
    /// for requests that were dispatched in part. Dispatches already in the output queue stay
    /// there. Returns none if the volume was removed before.
    pub fn remove(&mut self, now: Instant, volume: VolumeIndex) -> Cancelled<'_> {
        self.set_now(now);
        let mut queue = Queue::new();
        if let Some(slot) = self.live(volume) {
            self.wheel.remove(slot);
            core::mem::swap(&mut self.volumes[slot].queue, &mut queue);
            let shared = self.remove_share(slot);
            queue.append_all(&mut self.nodes, &shared);
            let generation = &mut self.generations[slot];
            *generation = generation.wrapping_add(1);
            self.vacant.push(slot);
        }
        Cancelled { nodes: &mut self.nodes, queue }
    }

    /// Removes the waiting requests whose handle matches from a volume's queue, and returns their
    /// handles. Quanta of them that were not dispatched are not charged. Requests behind them may
    /// be dispatched at once.
    pub fn cancel_queued(
        &mut self,
        now: Instant,
        volume: VolumeIndex,
        matches: impl FnMut(u32) -> bool,
    ) -> Cancelled<'_> {
        self.set_now(now);
        let mut queue = Queue::new();
        if let Some(slot) = self.live(volume) {
            queue = match self.volumes[slot].share {
                ShareSlot::NONE => self.volumes[slot].queue.extract(&mut self.nodes, matches),
                share => self.extract_shared(share, matches),
            };
            self.look_again(slot);
        }
        Cancelled { nodes: &mut self.nodes, queue }
    }

    /// Applies other limits from `now` on. Nothing is refilled (saved tokens and balances are only
    /// ever clamped down, debt is kept up to a second's worth). Waiting requests are examined at
    /// once.
    pub fn set_limits(&mut self, now: Instant, volume: VolumeIndex, pacing: &Pacing) {
        self.set_now(now);
        let Some(slot) = self.live(volume) else { return };
        let Volume { limiter, counting, .. } = &mut self.volumes[slot];
        let reserves = &mut self.reserves[slot];
        limiter.reopen(reserves, self.now);
        limiter.set_limits(reserves, pacing);
        counting.set_rule(pacing.counting);
        let share = self.volumes[slot].share;
        if !share.is_none() {
            self.repace_share(share, pacing);
        }
        self.look_again(slot);
    }

    /// Submits a request. It is dispatched at once if no request of the volume waits and its limits
    /// allow it.
    ///
    /// # Errors
    /// If the volume's queue is full or the volume was removed.
    pub fn submit(&mut self, now: Instant, volume: VolumeIndex, io: Io) -> Result<(), SubmitError> {
        self.set_now(now);
        let slot = self.live(volume).ok_or(SubmitError::NoSuchVolume)?;
        let share = self.volumes[slot].share;
        if !share.is_none() {
            return self.submit_to_flow(slot, share, share.flow(), io);
        }
        let queue = &mut self.volumes[slot].queue;
        let idle = queue.is_empty();
        if !queue.push(&mut self.nodes, io) {
            return Err(SubmitError::QueueFull);
        }
        if idle {
            self.serve(slot);
            self.check_touched(slot);
        }
        Ok(())
    }

    /// Moves requests that are due to the output queue, as far as that has room. If more are left,
    /// [`Scheduler::poll_timeout`] is `now`.
    pub fn poll(&mut self, now: Instant) {
        self.set_now(now);
        self.wheel.advance(self.now, POLL_MOVES_MAX);
        while self.output.len() < OUTPUT_DISPATCHES_MAX {
            if self.wheel.has_many_due() {
                self.warm_up();
            }
            for _ in 0..WARM_UP_VOLUMES {
                let Some(slot) = self.wheel.pop_due() else {
                    self.poll_sharing(POLL_MOVES_MAX);
                    return;
                };
                self.serve(slot);
                self.check_touched(slot);
            }
        }
    }

    /// Records that the device has completed a dispatch, with success or not. Requests that waited
    /// for room may be dispatched at once. An unknown ticket, or one that was completed before,
    /// changes nothing.
    pub fn complete(&mut self, now: Instant, ticket: Ticket) {
        self.set_now(now);
        if ticket != Ticket::NONE {
            self.complete_ticket(ticket);
        }
    }

    /// Returns the next dispatch. Call it until it returns `None` after each call that may
    /// dispatch.
    pub fn poll_output(&mut self) -> Option<Dispatch> {
        self.output.pop_front()
    }

    /// Returns when to call [`Scheduler::poll`] at the latest; `None` while no request waits for
    /// time to pass.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = match (self.wheel.next_deadline(), self.sharing.next_deadline()) {
            (Some(own), Some(shared)) => own.min(shared),
            (own, shared) => own.or(shared)?,
        };
        Some(deadline.max(self.now))
    }

    /// Returns a volume's credit balances at `now`; none if it was removed.
    pub fn balances(&mut self, now: Instant, volume: VolumeIndex) -> Balances {
        self.set_now(now);
        let Some(slot) = self.live(volume) else { return Balances::default() };
        let reserves = &mut self.reserves[slot];
        reserves.settle(self.now);
        reserves.balances()
    }

    /// Replaces the balances that are given, limited to their capacity. Waiting requests are
    /// examined at once.
    pub fn set_balances(&mut self, now: Instant, volume: VolumeIndex, balances: Balances) {
        self.set_now(now);
        let Some(slot) = self.live(volume) else { return };
        let reserves = &mut self.reserves[slot];
        reserves.settle(self.now);
        reserves.set_balances(balances);
        self.look_again(slot);
    }

    /// Leases all but `unleased` of a volume's balances; the rest may not be spent. A dimension
    /// that is `None` stays as it is. Returns the balances that are unleased now, at most those
    /// that exist. Waiting requests are examined at once.
    pub fn lease(&mut self, now: Instant, volume: VolumeIndex, unleased: Balances) -> Balances {
        self.set_now(now);
        let Some(slot) = self.live(volume) else { return Balances::default() };
        let reserves = &mut self.reserves[slot];
        reserves.settle(self.now);
        let unleased = reserves.lease(unleased);
        self.look_again(slot);
        unleased
    }

    /// Returns a volume's counters; all zero if it was removed.
    #[must_use]
    pub fn counters(&self, volume: VolumeIndex) -> Counters {
        let Some(slot) = self.live(volume) else { return Counters::default() };
        let volume = &self.volumes[slot];
        let counters = Counters {
            operations: volume.limiter.operations_charged(),
            requests: volume.requests,
            bytes_read: volume.bytes_read,
            bytes_written: volume.bytes_written,
            queued_requests: volume.queue.requests(),
            queued_bytes: volume.queue.bytes(),
            exceeded: self.exceeded_of(slot),
            late_ns: volume.limiter.late_ns(self.now),
            forfeited: volume.limiter.forfeited(),
            ..Counters::default()
        };
        self.with_share(slot, counters)
    }

    /// Returns the time in which the first request of a volume was delayed, by reason, from its
    /// addition until the scheduler's last `now`. The growth of it during a request's wait is the
    /// time for which that request waited, whether it was the first or behind it.
    #[must_use]
    pub fn exceeded(&self, volume: VolumeIndex) -> Exceeded {
        self.live(volume).map_or_else(Exceeded::default, |slot| self.exceeded_of(slot))
    }

    /// Returns how often a caller's `now` was before an earlier one. Such a time counts as the
    /// earlier one: a clock that steps back earns nothing and undoes nothing.
    #[must_use]
    pub const fn clock_steps_back(&self) -> u64 {
        self.clock_steps_back
    }

    fn set_now(&mut self, now: Instant) {
        self.check_now_and_then();
        if now < self.now {
            self.clock_steps_back += 1;
        } else {
            self.now = now;
        }
    }

    fn live(&self, volume: VolumeIndex) -> Option<VolumeSlot> {
        let generation = self.generations.get(volume.slot)?;
        (*generation == volume.generation).then_some(volume.slot)
    }

    /// Serves a volume out of turn because its limits or its queue have changed.
    fn look_again(&mut self, slot: VolumeSlot) {
        self.wheel.remove(slot);
        self.serve(slot);
        self.check_touched(slot);
    }

    /// Reads a word of all memory that the next few volumes' turns will touch, without any effect.
    /// The reads do not depend on each other, so their cache misses overlap; in the turns
    /// themselves each read waits for the previous one. At 10,000 saturated volumes this saves a
    /// fifth of the time per I/O.
    fn warm_up(&mut self) {
        let mut warm = 0;
        for slot in self.wheel.due().take(WARM_UP_VOLUMES) {
            let volume = &self.volumes[slot];
            warm ^= volume.limiter.late_ns(self.now)
                ^ volume.limiter.operations_charged()
                ^ volume.requests;
            if let Some(flow) = self.sharing.flows.get(volume.share.flow()) {
                warm ^= u64::from(flow.turn_at ^ flow.in_flight);
            }
        }
        for slot in self.wheel.due().take(WARM_UP_VOLUMES) {
            let volume = &self.volumes[slot];
            warm ^= u64::from(match self.sharing.flows.get(volume.share.flow()) {
                Some(flow) => flow.warm_up(&self.nodes),
                None => volume.queue.class.warm_up(&self.nodes),
            });
            if volume.limiter.is_burstable() {
                warm ^= u64::from(self.reserves[slot].warm_up());
            }
        }
        core::hint::black_box(warm);
    }

    /// Takes one turn of a volume that is in no list: dispatches while its limits allow it, then
    /// puts the volume into its list.
    fn serve(&mut self, slot: VolumeSlot) {
        let name = VolumeIndex { slot, generation: self.generations[slot] };
        let volume = &mut self.volumes[slot];
        if !volume.share.is_none() {
            let share = volume.share;
            self.serve_shared(slot, share);
            return;
        }
        let reserves = &mut self.reserves[slot];
        volume.limiter.reopen(reserves, self.now);
        for _ in 0..TURN_DISPATCHES_MAX {
            let Some(head) = volume.queue.head(&self.nodes) else { return };
            if self.output.len() >= OUTPUT_DISPATCHES_MAX {
                break;
            }
            let (cost, run) = volume.counting.weigh(&head.portion);
            if !volume.limiter.admit(reserves, &cost) {
                if let Some(deadline) = volume.limiter.throttle(reserves, &cost) {
                    self.wheel.insert(slot, deadline, self.now);
                }
                return;
            }
            let length = head.portion.quantum_bytes();
            let last = length == head.portion.length;
            volume.counting.proceed(run);
            volume.queue.consume(&mut self.nodes, length);
            volume.count(head.portion.operation, length, last);
            self.output.push_back(Dispatch {
                volume: name,
                handle: head.handle,
                offset: head.portion.offset,
                length,
                last,
                ticket: Ticket::NONE,
                reason: DispatchReason::Weight,
                device_ns: 0,
                urgent: false,
            });
        }
        if !volume.queue.is_empty() {
            self.wheel.push_due(slot);
        }
    }
}

impl Volume {
    fn new(now: Instant, pacing: &Pacing) -> Self {
        Self {
            limiter: Limiter::new(now, pacing),
            counting: Counting::new(pacing.counting),
            queue: Queue::new(),
            requests: 0,
            bytes_read: 0,
            bytes_written: 0,
            share: ShareSlot::NONE,
        }
    }

    fn count(&mut self, operation: Operation, length: u32, last: bool) {
        self.requests += u64::from(last);
        match operation {
            Operation::Read => self.bytes_read += u64::from(length),
            Operation::Write { .. } => self.bytes_written += u64::from(length),
            _ => {}
        }
    }
}
