//! How much may be in flight at a device, and what its requests really cost: learnt from
//! completions alone, so that it is simulated as it is deployed.

use super::model::{DeviceModel, Window};
use crate::time::{Duration, Instant};

/// How often the window is looked at.
const PERIOD: Duration = Duration::from_ms(10);

/// Requests up to this length are the small ones whose latency the window is for.
pub(crate) const SMALL_BYTES_MAX: u32 = 16 << 10;

/// Fewer small requests in a period than this say nothing.
const SMALL_MIN: u32 = 20;

/// Fractions of a slot that are counted.
const PER_SLOT: u64 = 1_024;

/// Fractions of one in the corrections.
const ONE: u64 = 1_024;

/// A new observation counts one part in so many.
const SMOOTHING: u64 = 64;

/// Channel time that is in flight, and how much of it may be.
#[derive(Debug)]
pub(crate) struct InFlight {
    channels: u64,
    /// The part of the device that is this scheduler's, in 1,024ths.
    part: u64,
    /// Requests that other schedulers of the device have in flight, as far as is known.
    others: u32,
    rule: Window,
    /// In 1,024ths of a slot.
    slots: u64,
    /// The narrowest window of the other schedulers, likewise.
    slots_max: u64,
    /// Cost of a slot: the smoothed mean of what is dispatched, in 1,024ths of a nanosecond.
    slot_ns: u64,
    /// Channel time of those in flight that are not long, and of those that are.
    short_ns: u64,
    long_ns: u64,
    requests: u32,
    /// How many of them are long.
    long: u32,
    period_end: Instant,
    small: u32,
    small_late: u32,
    somebody_waited: bool,
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
            somebody_waited: false,
        };
        in_flight.set_model(model);
        in_flight
    }

    /// Puts another model in force. The window starts anew; what is in flight stays.
    pub fn set_model(&mut self, model: &DeviceModel) {
        self.channels = u64::from(model.channels.max(1));
        self.rule = model.window;
        self.slots = PER_SLOT
            * match model.window {
                Window::Slots(slots) => u64::from(slots.max(1)),
                Window::Adaptive { .. } => self.channels + 2,
            };
    }

    /// Whether a request of `cost_ns` may go. One that finds a channel free keeps nobody waiting
    /// who is there, however long it takes; without that a request larger than the window would
    /// have to wait until nothing else is in flight, and all others until it is done.
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

    /// Whether a request takes longer than a channel's part of the window. It counts as much as
    /// that and no more, because it takes one channel only, for however long: if it counted in
    /// full, one that takes longer than the whole window would hold up everybody until it is done,
    /// reservations, too.
    fn is_long(&self, cost_ns: u64) -> bool {
        cost_ns.saturating_mul(self.own_channels()) > self.window_ns()
    }

    /// Channels that are this scheduler's, at least one. More than a quarter of one counts as one:
    /// schedulers that all keep to less than their part would leave channels to nobody, and the
    /// reservations were sold for all of them.
    fn own_channels(&self) -> u64 {
        let channels = self.channels.min(self.bounded_slots() / PER_SLOT);
        ((channels * self.part + ONE - ONE / 4 - 1) / ONE).max(1)
    }

    /// This scheduler's part of the device, in 1,024ths.
    pub const fn part(&self) -> u64 {
        self.part
    }

    /// The window in nanoseconds of channel time.
    pub fn window_ns(&self) -> u64 {
        let whole = (self.bounded_slots() / 32).saturating_mul(self.slot_ns / 32)
            / (PER_SLOT / 32)
            / (PER_SLOT / 32);
        whole / ONE * self.part + whole % ONE * self.part / ONE
    }

    /// Gives this scheduler a part of the device, in thousandths; others have the rest.
    pub fn set_part(&mut self, per_mille: u32) {
        self.part = (u64::from(per_mille.min(1_000)) * ONE).div_ceil(1_000).max(1);
    }

    /// Notes what the other schedulers of the device do: their requests in flight, and the
    /// narrowest of their windows. A core that finds the device crowded finds it so because of all,
    /// so all keep to that window: or one whose own requests are quick would crowd out the others.
    pub fn set_others(&mut self, in_flight: u32, slots_max: Option<u32>) {
        self.others = in_flight;
        self.slots_max = slots_max.map_or(u64::MAX, |slots| u64::from(slots) * PER_SLOT);
    }

    /// How many requests share a channel, in 1,024ths and at least one, with so many of this
    /// scheduler's in flight.
    pub fn crowding(&self, in_flight: u32) -> u64 {
        let requests = u64::from(in_flight.saturating_add(self.others));
        // Most of the time there are channels enough: then without the division.
        if requests <= self.channels { ONE } else { requests * ONE / self.channels }
    }

    /// The window in whole requests of the present mean cost, as this scheduler found it.
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

    /// Asserts that the sums are those of what is in flight, each with its cost and whether it is a
    /// long one.
    ///
    /// # Panics
    /// If they are not.
    pub fn invariants(&self, in_flight: impl Iterator<Item = (u64, bool)>) {
        let (mut requests, mut long, mut short_ns, mut long_ns) = (0, 0, 0_u64, 0_u64);
        for (cost_ns, is_long) in in_flight {
            requests += 1;
            long += u32::from(is_long);
            let sum = if is_long { &mut long_ns } else { &mut short_ns };
            *sum = sum.saturating_add(cost_ns);
        }
        let kept = (self.requests, self.long, self.short_ns, self.long_ns);
        assert_eq!(kept, (requests, long, short_ns, long_ns), "in flight: kept, and added up");
    }

    /// A request goes. Returns whether it is a long one, which its completion must say.
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

    /// Notes that somebody could have gone, had there been room.
    pub const fn wanted(&mut self) {
        self.somebody_waited = true;
    }

    /// A request is done, which was charged so much, as a long one or not; `small` is how long a
    /// small one took.
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
            } else if self.somebody_waited {
                // What was never tried says nothing: not far beyond what the others allow.
                self.slots = self.bounded_slots() + PER_SLOT;
            }
            let channels = self.channels * PER_SLOT;
            self.slots = self.slots.clamp(channels, 4 * channels);
            self.small = 0;
            self.small_late = 0;
        }
        self.somebody_waited = false;
    }
}

/// What requests of one kind really take, beside what the model says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Correction {
    /// Observed by predicted, in 1,024ths.
    ratio: u64,
}

impl Correction {
    pub const NONE: Self = Self { ratio: ONE };

    /// Learns from one request: what the model predicted and what it took. `crowding` is how many
    /// requests shared a channel, in 1,024ths and at least one.
    pub fn learn(&mut self, predicted_ns: u64, service: Duration, crowding: u64) {
        let expected = predicted_ns.saturating_mul(crowding.max(ONE)) / ONE;
        let observed = (service.ns.saturating_mul(ONE) / expected.max(1)).min(64 * ONE);
        let ratio = self.ratio - self.ratio / SMOOTHING + observed / SMOOTHING;
        self.ratio = ratio.clamp(ONE / 2, 8 * ONE);
    }

    /// The corrected cost.
    pub const fn apply(self, ns: u64) -> u64 {
        ns.saturating_mul(self.ratio) / ONE
    }

    /// Observed by predicted, in thousandths.
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
        // However small the part, an idle device takes any request.
        window.set_part(0);
        assert!(window.has_room_for(whole));
        window.set_part(1_000);
        assert_eq!(window.window_ns(), whole);
    }

    #[test]
    fn what_others_have_in_flight_crowds_the_device_and_their_window_bounds_ours() {
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
    fn a_window_of_so_many_slots_takes_so_many_requests_of_one_size() {
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
    fn a_correction_follows_what_is_seen_within_its_bounds() {
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
