//! A replay step by step: demand, service, queue, and the credits that are left.
//!
//! It is the [fluid](crate::fluid) replay, in pieces of at most a second. The amount served between
//! two readings counts as evenly distributed.

use crate::demand::Demand;
use crate::fluid::{Fluid, Part, binding};
use crate::layout::{Layout, LimitKind};
use crate::search::{Space, buckets};
use crate::spread::Spread;
use crate::trace::Trace;
use evenkeel_core::convert::saturating;

/// Maximum number of steps of a timeline.
pub const STEPS_MAX: u64 = 300_000;
/// Maximum number of limits of a layout.
const LIMITS_MAX: usize = 4;
const SECOND_US: u64 = 1_000_000;
/// Maximum number of readings of the replay, beside those at the ends of steps and of intervals.
const LOOKS_MAX: u64 = 2_700_000;
/// Maximum time between two waiting times that count as one, in microseconds.
const TOGETHER_US: u64 = SECOND_US;

/// Counted I/Os and bytes, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    /// Millionths of counted I/Os.
    pub operations: u128,
    /// Millionths of bytes.
    pub bytes: u128,
}

impl Amount {
    const fn plus(self, other: Self) -> Self {
        Self { operations: self.operations + other.operations, bytes: self.bytes + other.bytes }
    }

    /// Returns the part `of` / `whole` of the amount.
    fn share(self, of: u64, whole: u64) -> Self {
        let share = |amount: u128| amount * u128::from(of) / u128::from(whole.max(1));
        Self { operations: share(self.operations), bytes: share(self.bytes) }
    }

    const fn minus(self, other: Self) -> Self {
        Self {
            operations: self.operations.saturating_sub(other.operations),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    /// Returns the rate per second, in the limit's unit, of an amount that arrived within
    /// `length_us`, to the nearest whole number: the amounts served in a step are rounded down by
    /// millionths.
    #[must_use]
    pub fn per_second(&self, counts_bytes: bool, length_us: u64) -> u64 {
        let amount = if counts_bytes { self.bytes } else { self.operations };
        let length_us = u128::from(length_us.max(1));
        saturating::<_, u64>((amount + length_us / 2) / length_us)
    }
}

/// A step of a timeline. Amounts are those of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Step {
    /// Its start, in microseconds since the trace's start, without gaps.
    pub start_us: u64,
    /// Its length in microseconds.
    pub length_us: u64,
    /// Amount that arrived in it.
    pub asked: Amount,
    /// Amount that was served in it.
    pub served: Amount,
    /// Amount that waited at its end.
    pub queue: Amount,
    /// Time in which requests waited in it, in microseconds, by the limit's index.
    waited_us: [u64; LIMITS_MAX],
    /// Longest delay of a request that arrived in it, in microseconds.
    pub delay_us: u64,
    /// Credits at its end by the limit's index, in millionths of the maximum.
    balances_ppm: [Option<u32>; LIMITS_MAX],
}

impl Step {
    /// Returns the time in which requests waited, in microseconds.
    #[must_use]
    pub fn waited_us(&self) -> u64 {
        self.waited_us.iter().sum()
    }

    /// Returns the credits of a limit at its end, in millionths of the maximum.
    #[must_use]
    pub fn balance_ppm(&self, place: usize) -> Option<u32> {
        self.balances_ppm.get(place).copied().flatten()
    }

    /// Returns the lowest credits at its end.
    #[must_use]
    pub fn least_balance_ppm(&self) -> Option<u32> {
        self.balances_ppm.iter().flatten().min().copied()
    }

    /// Returns the index of the limit for which requests waited the longest.
    #[must_use]
    pub fn binding(&self) -> Option<usize> {
        binding(&self.waited_us)
    }
}

/// A continuous time in which requests waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Episode {
    /// Its start, in microseconds since the trace's start, without gaps.
    pub start_us: u64,
    /// Its end, in microseconds.
    pub end_us: u64,
    /// The limit for which requests waited at first.
    pub limit: LimitKind,
}

impl Episode {
    /// Returns its length in microseconds.
    #[must_use]
    pub const fn length_us(&self) -> u64 {
        self.end_us.saturating_sub(self.start_us)
    }
}

/// The complete replay on a layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// The limits of one volume, in the order of their indices.
    pub limits: Vec<LimitKind>,
    /// Number of volumes with the same course: all of a stripe, or only the one with the largest
    /// share.
    pub volumes: u32,
    /// The steps, until the trace ends.
    pub steps: Vec<Step>,
    /// Time at which everything is served, in microseconds since the trace's start.
    pub end_us: u64,
    /// The first waiting time.
    pub first: Option<Episode>,
    /// The longest waiting time.
    pub longest: Option<Episode>,
    /// Number of waiting times.
    pub episodes: u64,
}

/// Returns the least step of whole seconds with which a demand has at most [`STEPS_MAX`] steps.
#[must_use]
pub const fn least_step_us(demand: &Demand) -> u64 {
    demand.length_us.div_ceil(STEPS_MAX).next_multiple_of(SECOND_US)
}

impl Timeline {
    /// Replays a demand on a layout in steps. They are made longer if there would be more than
    /// [`STEPS_MAX`].
    #[must_use]
    pub fn of(space: &Space, demand: &Demand, layout: &Layout, step_us: u64) -> Self {
        Self::within(space, demand, layout, step_us, (0, demand.length_us))
    }

    /// Replays a demand as [`Self::of`] does, and returns only the steps of a time. Everything is
    /// replayed.
    #[must_use]
    pub fn within(
        space: &Space,
        demand: &Demand,
        layout: &Layout,
        step_us: u64,
        (from_us, to_us): (u64, u64),
    ) -> Self {
        let to_us = to_us.min(demand.length_us).max(from_us.saturating_add(1));
        let step_us = step_us.max(1).max((to_us - from_us).div_ceil(STEPS_MAX));
        let counting = space.rules.pacing(&layout.each).counting;
        let (limits, buckets) = buckets(space, layout);
        let mut run = Run::new(Fluid::new(buckets, 0), limits, step_us, (from_us, to_us));
        let look_us = SECOND_US.max(demand.length_us / LOOKS_MAX);
        for mut part in demand.parts(counting, layout.share(space)) {
            while part.length_us > 0 {
                let length_us = run.next(part.start_us) - part.start_us;
                let piece = part.cut(length_us.min(look_us));
                run.take(piece);
            }
        }
        let volumes = match space.spread {
            Spread::Striped { .. } => layout.volumes,
            Spread::Hot { .. } => 1,
        };
        run.end(volumes, demand.length_us)
    }
}

/// A replay with its readings.
struct Run {
    fluid: Fluid,
    limits: Vec<LimitKind>,
    step_us: u64,
    /// Start of the first step.
    from_us: u64,
    /// End of the last step.
    end_us: u64,
    steps: Vec<Step>,
    /// Amount that waits at the start of the first step.
    queue: Amount,
    /// Credits at the start of the first step.
    balances_ppm: [Option<u32>; LIMITS_MAX],
    waited_us: Vec<u64>,
    open: Option<Episode>,
    first: Option<Episode>,
    longest: Option<Episode>,
    episodes: u64,
}

impl Run {
    fn new(
        fluid: Fluid,
        limits: Vec<LimitKind>,
        step_us: u64,
        (from_us, end_us): (u64, u64),
    ) -> Self {
        let count = (end_us - from_us).div_ceil(step_us);
        let step = |at: u64| {
            let start_us = from_us + at * step_us;
            Step { start_us, length_us: step_us.min(end_us - start_us), ..Step::default() }
        };
        let waited_us = fluid.throttled_us().to_vec();
        let mut run = Self {
            fluid,
            limits,
            step_us,
            from_us,
            end_us,
            steps: (0..count).map(step).collect(),
            queue: Amount::default(),
            balances_ppm: [None; LIMITS_MAX],
            waited_us,
            open: None,
            first: None,
            longest: None,
            episodes: 0,
        };
        run.balances_ppm = run.balances();
        run
    }

    fn balances(&self) -> [Option<u32>; LIMITS_MAX] {
        let mut balances = [None; LIMITS_MAX];
        balances.iter_mut().zip(self.fluid.balances_ppm()).for_each(|(to, now)| *to = now);
        balances
    }

    /// Returns the step at a time; `None` before the first and after the last one.
    fn at(&mut self, us: u64) -> Option<&mut Step> {
        let place = usize::try_from(us.checked_sub(self.from_us)? / self.step_us).ok()?;
        self.steps.get_mut(place).filter(|_| us < self.end_us)
    }

    /// Returns the end of the step that contains a time.
    const fn next(&self, us: u64) -> u64 {
        if us < self.from_us {
            return self.from_us;
        }
        if us >= self.end_us {
            return u64::MAX;
        }
        let next = us - (us - self.from_us) % self.step_us + self.step_us;
        if next > self.end_us { self.end_us } else { next }
    }

    /// Serves the arrivals of a part of a step.
    fn take(&mut self, piece: Part) {
        self.idle_until(piece.start_us);
        let from_us = self.fluid.free_us().max(piece.start_us);
        let late_us = from_us - piece.start_us;
        self.fluid.take(piece);
        let to_us = self.fluid.free_us();
        let amount = Amount { operations: piece.operations, bytes: piece.bytes };
        let after_us = to_us.saturating_sub(piece.start_us + piece.length_us);
        if let Some(step) = self.at(piece.start_us) {
            step.asked = step.asked.plus(amount);
            step.delay_us = step.delay_us.max(late_us).max(after_us);
        } else if piece.start_us < self.from_us {
            self.queue = self.queue.plus(amount);
        }
        let mut added = [0; LIMITS_MAX];
        let now = self.fluid.throttled_us().iter().zip(&mut self.waited_us);
        for (added, (now, before)) in added.iter_mut().zip(now) {
            *added = now - *before;
            *before = *now;
        }
        self.spread(from_us, to_us, amount, &added);
        self.note_waiting(from_us, to_us, late_us > 0, &added);
        self.look(to_us);
    }

    /// Earns credits while nothing arrives, and reads them at the end of each step.
    fn idle_until(&mut self, us: u64) {
        while self.fluid.free_us() < us {
            let from_us = self.fluid.free_us();
            let to_us = us.min(self.next(from_us));
            self.fluid.rest(to_us);
            self.look(to_us);
        }
    }

    /// Records the credits at a time in the step that ends then or contains it.
    fn look(&mut self, us: u64) {
        let balances = self.balances();
        if us <= self.from_us {
            self.balances_ppm = balances;
        } else if let Some(step) = self.at(us - 1) {
            step.balances_ppm = balances;
        }
    }

    /// Distributes the amount served between two times over the steps between them.
    fn spread(&mut self, from: u64, to: u64, amount: Amount, waited_us: &[u64; LIMITS_MAX]) {
        let length = to.saturating_sub(from);
        let (mut at, mut done, mut waited) = (from, Amount::default(), [0; LIMITS_MAX]);
        while at < to.min(self.end_us) {
            let next = to.min(self.next(at));
            let share = amount.share(next - from, length);
            let until = waited_us.map(|us| {
                let until = u128::from(us) * u128::from(next - from) / u128::from(length);
                saturating::<_, u64>(until)
            });
            if let Some(step) = self.at(at) {
                step.served = step.served.plus(share.minus(done));
                for (place, us) in step.waited_us.iter_mut().enumerate() {
                    *us += until[place] - waited[place];
                }
            } else {
                self.queue = self.queue.minus(share.minus(done));
            }
            (at, done, waited) = (next, share, until);
        }
    }

    fn note_waiting(&mut self, from: u64, to: u64, was_late: bool, added: &[u64; LIMITS_MAX]) {
        let all: u64 = added.iter().sum();
        let binding = added.iter().enumerate().max_by_key(|(_, us)| **us);
        let Some(&limit) = binding.and_then(|(place, _)| self.limits.get(place)) else { return };
        // A microsecond is a rounding error.
        if all <= 1 {
            return;
        }
        // If requests waited at the start, the queue has ended since; otherwise it has begun.
        let (start_us, end_us) =
            if was_late { (from, from + all) } else { (to.saturating_sub(all), to) };
        match &mut self.open {
            Some(open) if start_us <= open.end_us.saturating_add(TOGETHER_US) => {
                open.end_us = end_us;
            }
            _ => {
                self.close();
                self.open = Some(Episode { start_us, end_us, limit });
            }
        }
    }

    fn close(&mut self) {
        let Some(episode) = self.open.take() else { return };
        self.episodes += 1;
        self.first.get_or_insert(episode);
        if self.longest.is_none_or(|longest| episode.length_us() > longest.length_us()) {
            self.longest = Some(episode);
        }
    }

    fn end(mut self, volumes: u32, length_us: u64) -> Timeline {
        self.idle_until(length_us);
        self.close();
        let mut queue = self.queue;
        let mut balances = self.balances_ppm;
        for step in &mut self.steps {
            queue = queue.plus(step.asked).minus(step.served);
            step.queue = queue;
            // Credits are not read while earlier requests wait.
            for (balance, before) in step.balances_ppm.iter_mut().zip(&mut balances) {
                *balance = balance.or(*before);
                *before = *balance;
            }
        }
        Timeline {
            limits: self.limits,
            volumes,
            steps: self.steps,
            end_us: self.fluid.free_us(),
            first: self.first,
            longest: self.longest,
            episodes: self.episodes,
        }
    }
}

/// Converts times of a demand, which has no gaps, to those of the trace's clock, and back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Times {
    /// Start of each stretch without gaps: in microseconds of the demand, and in milliseconds of
    /// the trace.
    stretches: Vec<(u64, u64)>,
}

impl Times {
    /// Creates the conversion for a trace.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let (mut stretches, mut at_us, mut end_ms) = (Vec::new(), 0_u64, None);
        for interval in &trace.intervals {
            if end_ms != Some(interval.start_ms) {
                stretches.push((at_us, interval.start_ms));
            }
            at_us = at_us.saturating_add(interval.length_ms.saturating_mul(1_000));
            end_ms = Some(interval.end_ms());
        }
        Self { stretches }
    }

    /// Returns the trace's time in milliseconds.
    #[must_use]
    pub fn ms(&self, at_us: u64) -> u64 {
        let after = self.stretches.partition_point(|(start_us, _)| *start_us <= at_us);
        let stretch = after.checked_sub(1).and_then(|place| self.stretches.get(place));
        stretch
            .map_or(at_us / 1_000, |(start_us, ms)| ms.saturating_add((at_us - start_us) / 1_000))
    }

    /// Returns the demand's time in microseconds. All times in a gap become the time after it.
    #[must_use]
    pub fn us(&self, at_ms: u64) -> u64 {
        let after = self.stretches.partition_point(|(_, ms)| *ms <= at_ms);
        let Some(place) = after.checked_sub(1) else { return 0 };
        let Some((start_us, ms)) = self.stretches.get(place) else { return 0 };
        let us = start_us.saturating_add(at_ms.saturating_sub(*ms).saturating_mul(1_000));
        self.stretches.get(after).map_or(us, |(next_us, _)| us.min(*next_us))
    }
}

#[cfg(test)]
mod tests;
