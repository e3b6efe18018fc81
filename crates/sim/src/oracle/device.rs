//! The device: the work in flight, the cost of the dearest request, and the times at which it had
//! room.

use std::collections::VecDeque;

use super::event::{Direction, Dispatched, Submitted};
use super::system::{DevicePromise, DeviceWork};

/// Maximum number of remembered spans with room. An older span counts as one without room, so that
/// it excuses a wait.
const ROOMS_MAX: usize = 256;

/// Size of the reference request, in which reservations are counted.
pub(super) const REFERENCE_BYTES: u32 = 16 << 10;

const THOUSAND: u64 = 1_000;

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    pub(super) pieces: u64,
    pub(super) cost_ns: u64,
    /// The window in nanoseconds of a channel; `u64::MAX` if no window is known.
    pub(super) window_ns: u64,
    pub(super) work: Option<DeviceWork>,
    /// Measured cost of the dearest request so far. While it fits into the window, every request
    /// does.
    dearest_ns: u64,
    /// Largest ratio of a dispatch's reported cost to its measured cost, in thousandths.
    dearer_per_mille: u64,
    /// The spans in which it had room, in order.
    rooms: VecDeque<(u64, u64)>,
}

impl Device {
    pub(super) fn new(promise: Option<DevicePromise>) -> Self {
        let work = promise.and_then(|device| device.work);
        Self {
            window_ns: promise.map_or(u64::MAX, |device| device.window_ns),
            work,
            // The size of a window is a number of requests of the mean, which begins with the
            // reference.
            dearest_ns: work.map_or(0, |work| work.cost_ns(Direction::Read, REFERENCE_BYTES)),
            dearer_per_mille: THOUSAND,
            ..Self::default()
        }
    }

    /// Returns the largest cost that a request can have, in nanoseconds of a channel.
    pub(super) fn dearest_ns(&self) -> u64 {
        (self.dearest_ns / THOUSAND + 1).saturating_mul(self.dearer_per_mille)
    }

    /// Returns whether every waiting request fits into the window.
    pub(super) fn has_room(&self) -> bool {
        match self.work {
            None => self.cost_ns < self.window_ns,
            Some(work) => {
                // One channel may be kept free for urgent requests.
                let channels = work.channels.min(work.slots_max).saturating_sub(1).max(1);
                self.pieces < channels
                    || self.cost_ns.saturating_add(self.dearest_ns()) <= self.window_ns
            }
        }
    }

    /// Advances the time, which adds a span if the device has room.
    pub(super) fn pass(&mut self, from: u64, to: u64) {
        if self.window_ns == u64::MAX || from == to || !self.has_room() {
            return;
        }
        match self.rooms.back_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => {
                if self.rooms.len() == ROOMS_MAX {
                    self.rooms.pop_front();
                }
                self.rooms.push_back((from, to));
            }
        }
    }

    /// Returns the time between `from` and now in which it had room, in nanoseconds.
    pub(super) fn room_ns(&self, from: u64, now: u64) -> u64 {
        if self.window_ns == u64::MAX {
            return now - from;
        }
        let late = self.rooms.iter().rev().take_while(|(_, to)| *to > from);
        late.map(|&(start, end)| end - start.max(from)).sum()
    }

    pub(super) fn submitted(&mut self, submitted: &Submitted) {
        if let Some(work) = &self.work {
            let cost_ns = work.cost_ns(submitted.direction, submitted.length);
            self.dearest_ns = self.dearest_ns.max(cost_ns);
        }
    }

    pub(super) fn dispatched(&mut self, dispatched: &Dispatched) {
        self.pieces += 1;
        self.cost_ns += dispatched.device_cost_ns;
        if let Some(work) = &self.work {
            let measured_ns = work.cost_ns(dispatched.direction, dispatched.length).max(1);
            let per_mille = (dispatched.device_cost_ns * THOUSAND).div_ceil(measured_ns);
            self.dearer_per_mille = self.dearer_per_mille.max(per_mille);
        }
    }

    pub(super) fn completed(&mut self, cost_ns: u64) {
        self.pieces = self.pieces.saturating_sub(1);
        self.cost_ns = self.cost_ns.saturating_sub(cost_ns);
    }
}
