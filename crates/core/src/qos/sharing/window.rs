//! Limits the requests in flight at a device, and estimates their real cost: from completions
//! alone, so that the simulation runs the deployed code.

use super::model::{DeviceModel, Window};
use crate::time::{Duration, Instant};

/// Interval at which the window adapts.
const PERIOD: Duration = Duration::from_ms(10);

/// Requests up to this length are small; the window is adapted for their latency.
pub(crate) const SMALL_BYTES_MAX: u32 = 16 << 10;

/// Minimum number of small requests in a period for an adaptation.
const SMALL_MIN: u32 = 20;

/// Fractions in which slots are counted.
const PER_SLOT: u64 = 1_024;

/// Fractions of one in the corrections.
const ONE: u64 = 1_024;

/// A new observation has a weight of one part in this number.
const SMOOTHING: u64 = 64;

/// Channel time in flight, and its limit.
#[derive(Debug)]
pub(crate) struct InFlight {
    channels: u64,
    /// This scheduler's part of the device, in 1,024ths.
    part: u64,
    /// Requests that other schedulers of the device have in flight, as last reported.
    others: u32,
    rule: Window,
    /// The window, in 1,024ths of a slot.
    slots: u64,
    /// The narrowest window of the other schedulers, likewise.
    slots_max: u64,
    /// Cost of a slot: the smoothed mean of dispatched requests, in 1,024ths of a nanosecond.
    slot_ns: u64,
    /// Channel time in flight of requests that are not long, and of long ones.
    short_ns: u64,
    long_ns: u64,
    requests: u32,
    /// Number of long requests in flight.
    long: u32,
    period_end: Instant,
    small: u32,
    small_late: u32,
    request_waited: bool,
}

impl InFlight {
    pub fn new(now: Instant, model: &DeviceModel) -> Self {
        let mut in_flight = Self {
            channels: 1,
            part: ONE,
            others: 0,
            rule: model.window,
            slots: 0,
            slots_max: u64::MAX,
            slot_ns: model.reference_ns().saturating_mul(PER_SLOT),
            short_ns: 0,
            long_ns: 0,
            requests: 0,
            long: 0,
            period_end: now + PERIOD,
            small: 0,
            small_late: 0,
            request_waited: false,
        };
        in_flight.set_model(model);
        in_flight
    }

    /// Applies another model. The window starts anew; requests in flight stay.
    pub fn set_model(&mut self, model: &DeviceModel) {
        self.channels = u64::from(model.channels.max(1));
        self.rule = model.window;
        self.slots = PER_SLOT
            * match model.window {
                Window::Slots(slots) => u64::from(slots.max(1)),
                Window::Adaptive { .. } => self.channels + 2,
            };
    }

    /// Returns whether a request of `cost_ns` may be dispatched. If a channel is free, it delays no
    /// request in flight, however long it takes; without this rule, a request larger than the
    /// window would have to wait until nothing else is in flight, and all others until it is done.
    pub fn has_room_for(&self, cost_ns: u64) -> bool {
        let channels = self.own_channels();
        if u64::from(self.requests) < channels {
            return true;
        }
        let window_ns = self.window_ns();
        let channel_ns = window_ns / channels;
        let long_ns = self.long_ns.min(u64::from(self.long).saturating_mul(channel_ns));
        let counted_ns = self.short_ns.saturating_add(long_ns);
        counted_ns.saturating_add(cost_ns.min(channel_ns)) <= window_ns
    }

    /// Returns whether a request takes longer than a channel's part of the window. It counts as
    /// that part and no more, because it occupies one channel only: if it counted in full, a
    /// request longer than the whole window would delay all others until it is done, reserved ones,
    /// too.
    fn is_long(&self, cost_ns: u64) -> bool {
        cost_ns.saturating_mul(self.own_channels()) > self.window_ns()
    }

    /// Returns this scheduler's number of channels, at least one. More than a quarter of a channel
    /// counts as one: if all schedulers rounded down, channels would be left unused, and the
    /// reservations were sold for all of them.
    fn own_channels(&self) -> u64 {
        let channels = self.channels.min(self.bounded_slots() / PER_SLOT);
        ((channels * self.part + ONE - ONE / 4 - 1) / ONE).max(1)
    }

    /// Returns this scheduler's part of the device, in 1,024ths.
    pub const fn part(&self) -> u64 {
        self.part
    }

    /// Returns the window in nanoseconds of channel time.
    pub fn window_ns(&self) -> u64 {
        let whole = (self.bounded_slots() / 32).saturating_mul(self.slot_ns / 32)
            / (PER_SLOT / 32)
            / (PER_SLOT / 32);
        whole / ONE * self.part + whole % ONE * self.part / ONE
    }

    /// Sets this scheduler's part of the device, in thousandths; others have the rest.
    pub fn set_part(&mut self, per_mille: u32) {
        self.part = (u64::from(per_mille.min(1_000)) * ONE).div_ceil(1_000).max(1);
    }

    /// Sets the use of the device by other schedulers: their requests in flight, and the narrowest
    /// of their windows. The device is crowded by all of them, so all keep to that window:
    /// otherwise a scheduler with fast requests would crowd out the others.
    pub fn set_others(&mut self, in_flight: u32, slots_max: Option<u32>) {
        self.others = in_flight;
        self.slots_max = slots_max.map_or(u64::MAX, |slots| u64::from(slots) * PER_SLOT);
    }

    /// Returns how many requests share a channel, in 1,024ths and at least one, with this number of
    /// this scheduler's in flight.
    pub fn crowding(&self, in_flight: u32) -> u64 {
        let requests = u64::from(in_flight.saturating_add(self.others));
        // Usually there are channels enough: then the division is skipped.
        if requests <= self.channels { ONE } else { requests * ONE / self.channels }
    }

    /// Returns the window in whole requests of the present mean cost, by this scheduler's own
    /// estimate.
    pub const fn slots(&self) -> u64 {
        self.slots / PER_SLOT
    }

    fn bounded_slots(&self) -> u64 {
        self.slots.min(self.slots_max)
    }

    pub const fn cost_ns(&self) -> u64 {
        self.short_ns.saturating_add(self.long_ns)
    }

    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// Asserts that the sums are those of the requests in flight, each with its cost and whether it
    /// is a long one.
    ///
    /// # Panics
    /// If they are not.
    pub fn invariants(&self, in_flight: impl Iterator<Item = (u64, bool)>) {
        let mut requests = 0;
        let mut long = 0;
        let mut short_ns = 0_u64;
        let mut long_ns = 0_u64;
        for (cost_ns, is_long) in in_flight {
            requests += 1;
            long += u32::from(is_long);
            let sum = if is_long { &mut long_ns } else { &mut short_ns };
            *sum = sum.saturating_add(cost_ns);
        }
        let kept = (self.requests, self.long, self.short_ns, self.long_ns);
        assert_eq!(kept, (requests, long, short_ns, long_ns), "in flight: kept, and added up");
    }

    /// Records the dispatch of a request. Returns whether it is a long one, which its completion
    /// must state.
    pub fn dispatched(&mut self, cost_ns: u64) -> bool {
        let is_long = self.is_long(cost_ns);
        self.long += u32::from(is_long);
        let sum = if is_long { &mut self.long_ns } else { &mut self.short_ns };
        *sum = sum.saturating_add(cost_ns);
        self.requests += 1;
        let observed = cost_ns.saturating_mul(PER_SLOT) / SMOOTHING;
        self.slot_ns = self.slot_ns - self.slot_ns / SMOOTHING + observed;
        is_long
    }

    /// Records that a request could have been dispatched, had there been room.
    pub const fn wanted(&mut self) {
        self.request_waited = true;
    }

    /// Records the completion of a request with its charged cost, and whether it was a long one;
    /// `small` is the service time of a small one.
    #[inline]
    pub fn completed(
        &mut self,
        now: Instant,
        (cost_ns, is_long): (u64, bool),
        small: Option<Duration>,
    ) {
        debug_assert!(self.requests > 0, "a completion, and nothing is in flight");
        self.long = self.long.saturating_sub(u32::from(is_long));
        let sum = if is_long { &mut self.long_ns } else { &mut self.short_ns };
        *sum = sum.saturating_sub(cost_ns);
        self.requests = self.requests.saturating_sub(1);
        let Window::Adaptive { small_p99 } = self.rule else { return };
        if let Some(service) = small {
            self.small += 1;
            self.small_late += u32::from(service > small_p99);
        }
        if now >= self.period_end {
            self.adapt();
            self.period_end = now + PERIOD;
        }
    }

    fn adapt(&mut self) {
        if self.small >= SMALL_MIN {
            if self.small_late * 100 > self.small {
                self.slots -= self.slots / 10;
            } else if self.request_waited {
                // A size that was never reached is no evidence: the window grows from the size that
                // the others allow.
                self.slots = self.bounded_slots() + PER_SLOT;
            }
            let channels = self.channels * PER_SLOT;
            self.slots = self.slots.clamp(channels, 4 * channels);
            self.small = 0;
            self.small_late = 0;
        }
        self.request_waited = false;
    }
}

/// Real cost of requests of one kind, relative to the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Correction {
    /// Observed by predicted time, in 1,024ths.
    ratio: u64,
}

impl Correction {
    pub const NONE: Self = Self { ratio: ONE };

    /// Updates the ratio with one request: its time by the model, and its service time. `crowding`
    /// is the number of requests that shared a channel, in 1,024ths and at least one.
    pub fn learn(&mut self, predicted_ns: u64, service: Duration, crowding: u64) {
        let expected = predicted_ns.saturating_mul(crowding.max(ONE)) / ONE;
        let observed = (service.ns.saturating_mul(ONE) / expected.max(1)).min(64 * ONE);
        let ratio = self.ratio - self.ratio / SMOOTHING + observed / SMOOTHING;
        self.ratio = ratio.clamp(ONE / 2, 8 * ONE);
    }

    /// Returns the corrected cost.
    pub const fn apply(self, ns: u64) -> u64 {
        ns.saturating_mul(self.ratio) / ONE
    }

    /// Returns observed by predicted time, in thousandths.
    pub const fn per_mille(self) -> u64 {
        self.ratio * 1_000 / ONE
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::OperationCost;
    use super::*;

    fn model(window: Window) -> DeviceModel {
        let cost = OperationCost { base: Duration::from_us(80), byte_ps: 4_000 };
        DeviceModel { channels: 32, read: cost, write: cost, window }
    }

    const ADAPTIVE: Window = Window::Adaptive { small_p99: Duration::from_us(200) };

    #[test]
    fn a_part_of_the_device_is_a_part_of_the_window() {
        let mut window = InFlight::new(Instant::ZERO, &model(Window::Slots(40)));
        let whole = window.window_ns();
        assert_eq!((window.crowding(16), window.crowding(64)), (ONE, 2 * ONE));
        window.set_part(250);
        assert!(window.window_ns().abs_diff(whole / 4) <= 1);
        // An idle device takes any request, with any part.
        window.set_part(0);
        assert!(window.has_room_for(whole));
        window.set_part(1_000);
        assert_eq!(window.window_ns(), whole);
    }

    #[test]
    fn requests_of_others_crowd_the_device_and_their_window_bounds_ours() {
        let mut window = InFlight::new(Instant::ZERO, &model(ADAPTIVE));
        let alone = window.window_ns();
        assert_eq!((window.slots(), window.crowding(16)), (34, ONE));
        window.set_others(48, Some(17));
        assert_eq!(window.crowding(16), 2 * ONE);
        assert!(window.window_ns().abs_diff(alone / 2) <= 1);
        window.set_others(0, None);
        assert_eq!((window.window_ns(), window.crowding(32)), (alone, ONE));
    }

    #[test]
    fn window_of_n_slots_takes_n_requests_of_one_size() {
        for (slots, cost_ns) in [(1, 145_536), (34, 145_536), (34, 1_128_576), (64, 80_000)] {
            let mut window = InFlight::new(Instant::ZERO, &model(Window::Slots(slots)));
            for _ in 0..2_000 {
                // The mean settles first.
                let is_long = window.dispatched(cost_ns);
                window.completed(Instant::ZERO, (cost_ns, is_long), None);
            }
            let mut taken = 0;
            while window.has_room_for(cost_ns) {
                window.dispatched(cost_ns);
                taken += 1;
            }
            // The smoothed mean is rounded down at each step.
            assert!(
                (slots.saturating_sub(1).max(1)..=slots).contains(&taken),
                "{taken} of {slots}"
            );
        }
    }

    #[test]
    fn an_idle_device_takes_any_request() {
        let window = InFlight::new(Instant::ZERO, &model(Window::Slots(1)));
        assert!(window.has_room_for(u64::MAX));
    }

    #[test]
    fn the_window_shrinks_while_small_requests_are_late_and_grows_while_wanted() {
        let mut window = InFlight::new(Instant::ZERO, &model(ADAPTIVE));
        let mut now = Instant::ZERO;
        let mut periods = |window: &mut InFlight, count: u32, service_us| {
            for _ in 0..count {
                now = now + PERIOD;
                for _ in 0..SMALL_MIN {
                    window.dispatched(1);
                    window.wanted();
                    window.completed(now, (1, false), Some(Duration::from_us(service_us)));
                }
            }
            window.slots()
        };
        assert_eq!(periods(&mut window, 0, 0), 34);
        assert_eq!(periods(&mut window, 100, 300), 32, "never below the channels");
        let grown = periods(&mut window, 20, 100);
        assert!((50..=52).contains(&grown), "{grown}");
        assert_eq!(periods(&mut window, 200, 100), 128, "never above four times the channels");
        assert!(periods(&mut window, 3, 300) < 100);
    }

    #[test]
    fn correction_follows_measured_times_within_its_bounds() {
        let mut correction = Correction::NONE;
        for _ in 0..1_000 {
            correction.learn(100_000, Duration::from_us(300), ONE);
        }
        assert!((2_900..=3_050).contains(&correction.per_mille()), "{}", correction.per_mille());
        for _ in 0..1_000 {
            correction.learn(100_000, Duration::from_ms(500), ONE);
        }
        assert_eq!(correction.per_mille(), 8_000);
        for _ in 0..2_000 {
            correction.learn(100_000, Duration::from_us(100), 4 * ONE);
        }
        assert_eq!(correction.apply(1_000), 500);
    }
}
