//! The device below the volumes: channels, service times, a write cache, pauses.
//!
//! Completion times are in the device's own time, which stops during a pause. So a pause delays
//! everything in flight at once. If all requests take the same time and none waits for a channel,
//! they complete in order, and a queue replaces the heap.

use super::events::Heap;
use super::policy::Dispatch;
use crate::scenario::setup::{DeviceSetup, ServiceTime};
use evenkeel_core::convert::exact;
use evenkeel_core::device::Cache;
use evenkeel_core::device::Head;
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use slab::Slab;
use std::collections::VecDeque;

/// Completed work of the device.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The dispatch.
    pub dispatch: Dispatch,
    /// Simulated time at which the device got it.
    pub given_at: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Device {
    setup: DeviceSetup,
    random: Random,
    /// Sum of the lengths of all pauses so far, in nanoseconds.
    paused_ns: u64,
    /// The device's own time during the last pause.
    still_at: u64,
    work: Work,
    /// The next completion in the device's own time; `u64::MAX` without one.
    next_own: u64,
    cache: Cache,
    /// The head of each volume that the device has served.
    heads: Vec<Head>,
    written_since_pause: u64,
    /// Service times, in percent of those of the setup.
    percent: u64,
}

#[derive(Debug)]
enum Work {
    /// Work of a device on which everything takes the same time.
    Fifo(VecDeque<(u64, Done)>),
    Channels {
        all: u32,
        free: u32,
        waiting: VecDeque<u32>,
        ends: Heap<u32>,
        under_way: Slab<Done>,
    },
}

impl Device {
    /// Creates an idle device at the start of time.
    #[must_use]
    pub fn new(setup: &DeviceSetup, random: Random) -> Self {
        let work = if always_takes_as_long(setup) {
            Work::Fifo(VecDeque::new())
        } else {
            Work::Channels {
                all: setup.channels.unwrap_or(u32::MAX),
                free: setup.channels.unwrap_or(u32::MAX),
                waiting: VecDeque::new(),
                ends: Heap::new(),
                under_way: Slab::new(),
            }
        };
        Self {
            setup: setup.clone(),
            random,
            paused_ns: 0,
            still_at: 0,
            work,
            next_own: u64::MAX,
            cache: Cache::new(setup.cache),
            heads: Vec::new(),
            written_since_pause: 0,
            percent: 100,
        }
    }

    /// Returns whether a device has neither queues nor variation, and the scheduler does not know
    /// of it.
    #[must_use]
    pub const fn is_ideal(setup: &DeviceSetup) -> bool {
        always_takes_as_long(setup) && setup.collection.is_none() && setup.window.is_none()
    }

    /// Appends to `words` the state that determines its future, with times relative to `now`, and
    /// to `handles` the requests in flight. Returns `None` if requests may take different times.
    pub fn write_state(
        &self,
        now: u64,
        words: &mut Vec<u64>,
        handles: &mut Vec<u32>,
    ) -> Option<()> {
        let Work::Fifo(queue) = &self.work else { return None };
        let own_now = self.own_time(now);
        let goes_on_at = self.still_at.saturating_add(self.paused_ns);
        words.push(goes_on_at.saturating_sub(now));
        for (ends_at, Done { dispatch, given_at }) in queue {
            words.extend([ends_at.wrapping_sub(own_now), now - given_at]);
            words.extend([u64::from(dispatch.length), u64::from(dispatch.last)]);
            handles.push(dispatch.handle);
        }
        Some(())
    }

    /// Returns the number of dispatches that it has got and not completed.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.work {
            Work::Fifo(queue) => queue.len(),
            Work::Channels { under_way, .. } => under_way.len(),
        }
    }

    /// Returns whether it has no work.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a dispatch to its work.
    #[inline(always)]
    pub fn give(&mut self, now: u64, dispatch: Dispatch) {
        self.collect_garbage(now, &dispatch);
        let own_now = self.own_time(now);
        let done = Done { dispatch, given_at: now };
        match &mut self.work {
            Work::Fifo(queue) => queue.push_back((own_now + self.setup.read.base_ns, done)),
            Work::Channels { free, waiting, under_way, .. } => {
                let slot = exact(under_way.insert(done), "fewer requests than 2^32 are under way");
                if *free == 0 {
                    waiting.push_back(slot);
                } else {
                    *free -= 1;
                    self.begin(own_now, slot);
                }
            }
        }
        self.look_ahead();
    }

    /// Returns the simulated time of the next completion; `u64::MAX` without one.
    #[must_use]
    pub fn next_at(&self) -> u64 {
        self.next_own.saturating_add(self.paused_ns)
    }

    /// Returns the next dispatch that is completed by `now`.
    #[inline(always)]
    pub fn poll(&mut self, now: u64) -> Option<Done> {
        let own_now = self.own_time(now);
        if own_now < self.next_own {
            return None;
        }
        let Work::Fifo(queue) = &mut self.work else { return self.finish(own_now) };
        let (_, done) = queue.pop_front()?;
        self.next_own = queue.front().map_or(u64::MAX, |(at, _)| *at);
        Some(done)
    }

    /// Completes the earliest dispatch of its channels that ends by `own_now`.
    fn finish(&mut self, own_now: u64) -> Option<Done> {
        let Work::Channels { free, waiting, ends, under_way, .. } = &mut self.work else {
            return None;
        };
        let (ended_at, slot) = ends.pop_due(own_now)?;
        let done = under_way.remove(slot as usize);
        match waiting.pop_front() {
            // The channel began the next one when it was free, not at the time of this call.
            Some(next) => self.begin(ended_at, next),
            None => *free += 1,
        }
        self.look_ahead();
        Some(done)
    }

    /// Pauses the device from now on for `length_ns`, or after its present pause.
    pub fn pause(&mut self, now: u64, length_ns: u64) {
        self.still_at = self.own_time(now);
        self.paused_ns = self.paused_ns.saturating_add(length_ns);
    }

    /// Sets the service times of further requests, in percent of those of the setup. Those that a
    /// channel serves already are not affected.
    pub fn set_percent(&mut self, percent: u32) {
        self.percent = percent.into();
    }

    /// Sets the number of channels: a part of the device is lost, or is back. The same part of the
    /// requests in service is lost, too; they begin again before all that wait. Does nothing if no
    /// request ever waits for a channel.
    pub fn set_channels(&mut self, now: u64, channels: u32) {
        let own_now = self.own_time(now);
        let Work::Channels { all, free, waiting, ends, .. } = &mut self.work else { return };
        let busy = *all - *free;
        let lost = u64::from(busy) * u64::from(all.saturating_sub(channels));
        let lost: u32 = exact(lost.div_ceil(u64::from(*all).max(1)), "at most the busy ones");
        let begun_again = ends.take_last(lost as usize);
        for slot in begun_again.into_iter().rev() {
            waiting.push_front(slot);
        }
        (*all, *free) = (channels, channels.saturating_sub(busy - lost));
        while let Work::Channels { free, waiting, .. } = &mut self.work
            && *free > 0
            && let Some(next) = waiting.pop_front()
        {
            *free -= 1;
            self.begin(own_now, next);
        }
        self.look_ahead();
    }

    /// Updates `next_own`, which each turn of the world reads several times.
    fn look_ahead(&mut self) {
        let own = match &self.work {
            Work::Fifo(queue) => queue.front().map(|(at, _)| *at),
            Work::Channels { ends, .. } => ends.first_at(),
        };
        self.next_own = own.unwrap_or(u64::MAX);
    }

    fn own_time(&self, now: u64) -> u64 {
        now.saturating_sub(self.paused_ns).max(self.still_at)
    }

    fn begin(&mut self, own_now: u64, slot: u32) {
        let Work::Channels { under_way, .. } = &self.work else { return };
        let Some(&Done { dispatch, .. }) = under_way.get(slot as usize) else { return };
        let service_ns = self.service_ns(own_now, &dispatch);
        if let Work::Channels { ends, .. } = &mut self.work {
            ends.push(own_now.saturating_add(service_ns), slot);
        }
    }

    /// Returns the service time of a dispatch on a channel, in nanoseconds.
    fn service_ns(&mut self, own_now: u64, dispatch: &Dispatch) -> u64 {
        let Dispatch { operation, length, .. } = *dispatch;
        let (time, moved) = match operation {
            Operation::Read => (self.time(self.setup.read, dispatch), length),
            Operation::Write { .. } => (self.time(self.setup.write, dispatch), length),
            _ => (self.setup.write, 0),
        };
        let mean_ns = time.ns(moved);
        let noisy_ns = self.random.around(mean_ns * self.percent / 100, self.setup.noise_ppm);
        match operation {
            Operation::Write { fua } => noisy_ns + self.cache.wait_ns(own_now, moved, fua),
            _ => noisy_ns,
        }
    }

    /// Returns the service time that fits the distance of a dispatch from the last one of its
    /// volume.
    fn time(&mut self, time: ServiceTime, dispatch: &Dispatch) -> ServiceTime {
        let Some(near_ns) = self.setup.near_ns else { return time };
        let volume = dispatch.volume as usize;
        if self.heads.len() <= volume {
            self.heads.resize(volume + 1, Head::default());
        }
        self.heads[volume].time(Some(near_ns), time, (dispatch.offset, dispatch.length))
    }

    fn collect_garbage(&mut self, now: u64, dispatch: &Dispatch) {
        let Some(collection) = self.setup.collection else { return };
        if let Operation::Write { .. } = dispatch.operation {
            self.written_since_pause += u64::from(dispatch.length);
            if self.written_since_pause >= collection.every_bytes {
                self.written_since_pause -= collection.every_bytes;
                self.pause(now, collection.pause_ns);
            }
        }
    }
}

/// Returns whether all requests take the same time, and none waits.
const fn always_takes_as_long(setup: &DeviceSetup) -> bool {
    let DeviceSetup { read, write, .. } = setup;
    setup.channels.is_none()
        && read.base_ns == write.base_ns
        && read.ns_per_kib == 0
        && write.ns_per_kib == 0
        && setup.near_ns.is_none()
        && setup.noise_ppm == 0
        && setup.cache.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::setup::{GarbageCollection, WriteCache};

    const WRITE: Operation = Operation::Write { fua: false };

    fn dispatch(handle: u32, operation: Operation, length: u32) -> Dispatch {
        Dispatch { volume: 0, handle, operation, offset: 0, length, last: true, ticket: 0 }
    }

    fn device(setup: &DeviceSetup) -> Device {
        Device::new(setup, Random::new(1, 0))
    }

    /// Returns the completion time and the handle of each dispatch.
    fn ends(device: &mut Device) -> Vec<(u64, u32)> {
        let mut ends = Vec::new();
        while !device.is_empty() {
            let at = device.next_at();
            assert!(device.poll(at - 1).is_none(), "done before its time");
            let done = device.poll(at).expect("due");
            ends.push((at, done.dispatch.handle));
        }
        assert!(device.is_empty());
        ends
    }

    #[test]
    fn an_ideal_device_always_takes_as_long() {
        let mut device = device(&DeviceSetup::ideal(100));
        for handle in 0..3 {
            device.give(u64::from(handle) * 10, dispatch(handle, WRITE, 1 << 20));
        }
        assert_eq!(ends(&mut device), [(100, 0), (110, 1), (120, 2)]);
    }

    #[test]
    fn channels_are_waited_for_in_turn() {
        let read = ServiceTime { base_ns: 100, ns_per_kib: 10 };
        let setup = DeviceSetup { channels: Some(2), read, ..DeviceSetup::ideal(300) };
        let mut device = device(&setup);
        device.give(0, dispatch(0, Operation::Read, 10 << 10));
        device.give(0, dispatch(1, WRITE, 1 << 20));
        device.give(50, dispatch(2, Operation::Read, 0));
        device.give(60, dispatch(3, Operation::Read, 0));
        assert_eq!(ends(&mut device), [(200, 0), (300, 1), (300, 2), (400, 3)]);
    }

    #[test]
    fn pause_delays_requests_under_way_and_new_ones() {
        for setup in
            [DeviceSetup::ideal(100), DeviceSetup { channels: Some(8), ..DeviceSetup::ideal(100) }]
        {
            let mut device = device(&setup);
            device.give(0, dispatch(0, WRITE, 1));
            device.pause(50, 1_000);
            device.give(500, dispatch(1, WRITE, 1));
            device.pause(600, 100);
            device.give(2_000, dispatch(2, WRITE, 1));
            assert_eq!(ends(&mut device), [(1_200, 0), (1_250, 1), (2_100, 2)]);
        }
    }

    #[test]
    fn writes_are_fast_until_the_cache_is_full() {
        let cache = Some(WriteCache { bytes: 2_000, drain_bytes_per_second: 1_000_000_000 });
        let mut device = device(&DeviceSetup { cache, ..DeviceSetup::ideal(100) });
        for handle in 0..3 {
            device.give(0, dispatch(handle, WRITE, 1_000));
        }
        device.give(0, dispatch(3, Operation::Read, 1_000));
        assert_eq!(ends(&mut device), [(100, 0), (100, 1), (100, 3), (1_100, 2)]);
        device.give(10_000, dispatch(4, Operation::Write { fua: true }, 500));
        device.give(10_000, dispatch(5, WRITE, 1_000));
        assert_eq!(ends(&mut device), [(10_100, 5), (10_600, 4)]);
    }

    #[test]
    fn slower_device_takes_longer_for_requests_that_it_begins() {
        let mut device = device(&DeviceSetup { channels: Some(1), ..DeviceSetup::ideal(100) });
        device.give(0, dispatch(0, WRITE, 1));
        device.set_percent(130);
        device.give(0, dispatch(1, WRITE, 1));
        device.set_percent(200);
        assert_eq!(ends(&mut device), [(100, 0), (300, 1)]);
    }

    #[test]
    fn requests_on_lost_channels_restart_and_the_others_continue() {
        let mut device = device(&DeviceSetup { channels: Some(4), ..DeviceSetup::ideal(100) });
        for handle in 0..6 {
            device.give(u64::from(handle), dispatch(handle, WRITE, 1));
        }
        // Half of the device is lost. The requests that began last begin again after the others.
        device.set_channels(50, 2);
        assert_eq!(device.next_at(), 100);
        let first = [100, 101].map(|at| device.poll(at).map(|done| done.dispatch.handle));
        assert_eq!((first, device.len()), ([Some(0), Some(1)], 4));
        device.set_channels(150, 4);
        assert_eq!(ends(&mut device), [(200, 2), (201, 3), (250, 4), (250, 5)]);
    }

    #[test]
    fn a_device_without_channels_has_none_to_lose() {
        let mut device = device(&DeviceSetup::ideal(100));
        device.give(0, dispatch(0, WRITE, 1));
        device.set_channels(10, 1);
        assert_eq!(ends(&mut device), [(100, 0)]);
    }

    #[test]
    fn garbage_collection_pauses_after_its_bytes_are_written() {
        let collection = Some(GarbageCollection { every_bytes: 2_000, pause_ns: 5_000 });
        let mut device = device(&DeviceSetup { collection, ..DeviceSetup::ideal(100) });
        device.give(0, dispatch(0, WRITE, 1_500));
        device.give(10, dispatch(1, Operation::Read, 1_500));
        device.give(20, dispatch(2, WRITE, 1_500));
        assert_eq!(ends(&mut device), [(5_100, 0), (5_110, 1), (5_120, 2)]);
    }
}
