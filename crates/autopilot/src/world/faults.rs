//! Faults by seed: times in which calls fail, answers are lost, metrics stand still, clocks differ,
//! rules change and agents end.

use evenkeel_control::ModifyPolicy;
use evenkeel_core::random::Random;

use super::load::{DAY_MS, HOUR_MS, MINUTE_MS};

/// The stream of random numbers of faults.
const STREAM: u64 = 4;
/// The stream of random numbers of single calls.
const STREAM_OF_CALLS: u64 = 5;
/// Faults in a year.
const FAULTS_PER_YEAR: u64 = 60;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Seven of ten calls are throttled.
    Throttled,
    /// Half of the calls have an effect and no answer.
    LostAnswers,
    /// CreateVolume is refused: no capacity.
    CreateRefused,
    /// ModifyVolume is refused.
    ModifyRefused,
    /// No call of the API is answered.
    ApiAway,
    /// Attachments that begin are in force at the end.
    AttachStuck,
    /// Counters keep their values and become old.
    MetricsFrozen,
    /// Counters are two minutes old.
    MetricsLate,
    /// The clock of the host differs.
    Clock {
        /// Milliseconds that it is late or early.
        offset_ms: i64,
    },
    /// Volumes may be modified by another rule from now on.
    Rules {
        /// The rule.
        policy: ModifyPolicy,
    },
    /// The agent ends at a random call of many ticks.
    Kills,
    /// The agent does not run.
    AgentAway,
    /// A scrub runs, or a snapshot is pending.
    Scrub,
    /// Durable writes are slow.
    SlowFlushes,
}

impl Kind {
    /// Returns whether no policy can grow in this time.
    pub(super) const fn prevents_growth(self) -> bool {
        matches!(self, Self::ApiAway | Self::AgentAway)
    }
}

/// A time with a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
}

/// The faults of a world, and what they do to the present call.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    /// By start.
    all: Vec<Fault>,
    random: Random,
    /// Half steps of the agent until it ends: before a call and after it count one each.
    until_kill: Option<u64>,
    /// Whether the agent has ended within its tick.
    pub(super) is_dead: bool,
}

impl Faults {
    /// Creates a world without faults.
    pub(super) fn none() -> Self {
        let random = Random::new(0, STREAM_OF_CALLS);
        Self { all: Vec::new(), random, until_kill: None, is_dead: false }
    }

    /// Creates the faults of a seed.
    pub(super) fn new(seed: u64, end_ms: u64) -> Self {
        let mut random = Random::new(seed, STREAM);
        let mut all = Vec::new();
        let number = FAULTS_PER_YEAR * end_ms / (365 * DAY_MS);
        for _ in 0..number {
            let from_ms = DAY_MS + random.below(end_ms.saturating_sub(2 * DAY_MS).max(1));
            let (kind, least_ms, spread_ms) = draw(&mut random);
            let to_ms = from_ms + least_ms + random.below(spread_ms);
            all.push(Fault { kind, from_ms, to_ms });
        }
        all.sort_by_key(|fault| fault.from_ms);
        let random = Random::new(seed, STREAM_OF_CALLS);
        Self { all, random, until_kill: None, is_dead: false }
    }

    /// Returns the faults at a time.
    pub(super) fn at(&self, now_ms: u64) -> impl Iterator<Item = &Fault> {
        let begun = self.all.iter().take_while(move |fault| fault.from_ms <= now_ms);
        begun.filter(move |fault| now_ms < fault.to_ms)
    }

    pub(super) fn has(&self, kind: Kind, now_ms: u64) -> bool {
        self.at(now_ms).any(|fault| fault.kind == kind)
    }

    /// Returns the end of the last fault of a kind at a time; `None` without one.
    pub(super) fn end_of(&self, kind: Kind, now_ms: u64) -> Option<u64> {
        self.at(now_ms).filter(|fault| fault.kind == kind).map(|fault| fault.to_ms).max()
    }

    /// Returns the milliseconds by which the host's clock is early.
    pub(super) fn clock_offset_ms(&self, now_ms: u64) -> i64 {
        let mut offsets = self.at(now_ms).filter_map(|fault| match fault.kind {
            Kind::Clock { offset_ms } => Some(offset_ms),
            _ => None,
        });
        offsets.next().unwrap_or(0)
    }

    /// Returns the rule of modifications that the last change before a time has set.
    pub(super) fn rules(&self, now_ms: u64) -> Option<ModifyPolicy> {
        let begun = self.all.iter().take_while(|fault| fault.from_ms <= now_ms);
        let rules = begun.filter_map(|fault| match fault.kind {
            Kind::Rules { policy } => Some(policy),
            _ => None,
        });
        rules.last()
    }

    /// Returns the next start or end of a fault after a time.
    pub(super) fn next_change(&self, now_ms: u64) -> Option<u64> {
        let ends = self.at(now_ms).map(|fault| fault.to_ms).min();
        let start = self.all.iter().map(|fault| fault.from_ms).find(|from| *from > now_ms);
        match (ends, start) {
            (Some(end), Some(start)) => Some(end.min(start)),
            (end, start) => end.or(start),
        }
    }

    /// Returns whether growth was impossible at some instant of the `ms` before a time.
    pub(super) fn prevented_growth(&self, now_ms: u64, ms: u64) -> bool {
        let from = now_ms.saturating_sub(ms);
        let begun = self.all.iter().take_while(|fault| fault.from_ms <= now_ms);
        begun.filter(|fault| fault.kind.prevents_growth()).any(|fault| fault.to_ms > from)
    }

    /// Returns whether the service refused for want of capacity, at each instant of the `ms` before
    /// a time, every request that gives room: larger volumes and, if the file system takes them,
    /// further ones. The rules of modifications are none of that: a policy knows them.
    pub(super) fn refused_growth(&self, now_ms: u64, ms: u64, takes_volumes: bool) -> bool {
        let from_ms = now_ms.saturating_sub(ms);
        self.lasts(Kind::ModifyRefused, from_ms, now_ms)
            && (!takes_volumes || self.lasts(Kind::CreateRefused, from_ms, now_ms))
    }

    /// Returns whether a kind of fault is there at each instant of a time.
    fn lasts(&self, kind: Kind, from_ms: u64, to_ms: u64) -> bool {
        let mut now_ms = from_ms;
        while let Some(end_ms) = self.end_of(kind, now_ms) {
            if end_ms > to_ms {
                return true;
            }
            now_ms = end_ms;
        }
        false
    }

    /// Begins a tick of the agent: some end at a random half step of it.
    pub(super) fn begin_tick(&mut self, now_ms: u64) {
        self.is_dead = false;
        self.until_kill = None;
        if self.has(Kind::Kills, now_ms) && self.random.one_in(3) {
            self.until_kill = Some(self.random.below(24));
        }
    }

    /// Counts a half step of the agent; returns whether it has ended.
    pub(super) fn half_step(&mut self) -> bool {
        if let Some(left) = &mut self.until_kill {
            if *left == 0 {
                self.is_dead = true;
            } else {
                *left -= 1;
            }
        }
        self.is_dead
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.random.one_in(count)
    }
}

/// Draws a kind, its least length and the spread of that.
fn draw(random: &mut Random) -> (Kind, u64, u64) {
    match random.below(14) {
        0 => (Kind::Throttled, 10 * MINUTE_MS, 6 * HOUR_MS),
        1 => (Kind::LostAnswers, 10 * MINUTE_MS, 6 * HOUR_MS),
        2 => (Kind::CreateRefused, HOUR_MS, 10 * HOUR_MS),
        3 => (Kind::ModifyRefused, HOUR_MS, 10 * HOUR_MS),
        4 => (Kind::ApiAway, MINUTE_MS, 3 * HOUR_MS),
        5 => (Kind::AttachStuck, 5 * MINUTE_MS, 2 * HOUR_MS),
        6 => (Kind::MetricsFrozen, 10 * MINUTE_MS, 12 * HOUR_MS),
        7 => (Kind::MetricsLate, 10 * MINUTE_MS, 12 * HOUR_MS),
        8 => {
            let far = random.among(&[30_000, 90_000, 3_600_000, 86_400_000]);
            let offset_ms = if random.one_in(2) { far } else { -far };
            (Kind::Clock { offset_ms }, 10 * MINUTE_MS, 24 * HOUR_MS)
        }
        9 => {
            let policy = random.among(&[
                ModifyPolicy::Aws2026,
                ModifyPolicy::AwsClassic,
                ModifyPolicy::Immediate,
            ]);
            (Kind::Rules { policy }, 1, 1)
        }
        10 => (Kind::Kills, HOUR_MS, 12 * HOUR_MS),
        11 => (Kind::AgentAway, MINUTE_MS, 8 * HOUR_MS),
        12 => (Kind::Scrub, 30 * MINUTE_MS, 12 * HOUR_MS),
        _ => (Kind::SlowFlushes, 10 * MINUTE_MS, 3 * HOUR_MS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(times: &[(Kind, u64, u64)]) -> Faults {
        let mut all: Vec<Fault> = times
            .iter()
            .map(|(kind, from_ms, to_ms)| Fault { kind: *kind, from_ms: *from_ms, to_ms: *to_ms })
            .collect();
        all.sort_by_key(|fault| fault.from_ms);
        Faults { all, ..Faults::none() }
    }

    #[test]
    fn growth_is_refused_only_if_every_way_is_at_each_instant() {
        use Kind::{CreateRefused, ModifyRefused};
        let modify = faults(&[(ModifyRefused, 100, 200)]);
        assert!(modify.refused_growth(199, 99, false));
        assert!(!modify.refused_growth(200, 50, false), "it was accepted at 200");
        assert!(!modify.refused_growth(150, 51, false), "it was accepted at 99");
        assert!(!modify.refused_growth(150, 50, true), "a further volume was not refused");
        let create = faults(&[(CreateRefused, 100, 200)]);
        assert!(!create.refused_growth(150, 10, true));
        let both = faults(&[(ModifyRefused, 100, 200), (CreateRefused, 120, 300)]);
        assert!(both.refused_growth(180, 60, true));
        assert!(!both.refused_growth(180, 61, true));
        let rows = faults(&[
            (ModifyRefused, 100, 200),
            (ModifyRefused, 150, 250),
            (ModifyRefused, 250, 400),
        ]);
        assert!(rows.refused_growth(399, 299, false));
        assert!(!Faults::none().refused_growth(100, 10, false));
    }
}
