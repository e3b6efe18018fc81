//! Performance of volumes, for DescribeVolumeStatus, from samples of the data plane's counters.
//! Pure.
//!
//! Most volumes are well, and have no entry.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use evenkeel_core::convert::saturating;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::UnixMs;
use evenkeel_wire::agent::VolumeReport;

/// Time after which a volume that has requests and starts none is stalled, in milliseconds.
pub const STALL_MS: u64 = 60_000;
/// Time after which a volume is stalled if the store works on requests and ends none, in
/// milliseconds. Neither the volume's limits nor its neighbours delay requests there.
pub const STORE_STALL_MS: u64 = 5_000;
/// Time for which a second with a missed promise counts, in milliseconds.
pub const WINDOW_MS: u64 = 5 * 60_000;
/// Number of missed seconds in [`WINDOW_MS`] from which a volume is severely degraded: a tenth.
pub const SEVERE_SECONDS: u64 = 30;
/// Length of the buckets in which missed seconds are counted, in milliseconds. They keep the number
/// of entries low.
const BUCKET_MS: u64 = 10_000;

/// How a volume performs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Performance {
    /// It gets its provisioned performance.
    #[default]
    Normal,
    /// It did not, in some of the last seconds.
    Degraded,
    /// It did not, in many of them.
    SeverelyDegraded,
    /// It has requests, and none of them is started or, in the store, completed.
    Stalled,
}

impl Performance {
    /// Returns its name among EC2's status checks.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Degraded => "degraded",
            Self::SeverelyDegraded => "severely-degraded",
            Self::Stalled => "stalled",
        }
    }
}

/// Problems of a volume, each with the time at which it began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ailments {
    /// Its performance, unless that is normal.
    pub performance: Option<(Performance, UnixMs)>,
    /// Acknowledged writes may be lost: a flush failed.
    pub flush_failed: Option<UnixMs>,
    /// Some of its data is damaged.
    pub rotten: Option<UnixMs>,
}

impl Ailments {
    /// Returns whether the volume has requests, and none of them is started.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.performance.is_some_and(|(it, _)| it == Performance::Stalled)
    }
}

/// The time of a sample by both clocks. Durations use the time since the boot, which is never set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// The wall clock.
    pub unix: UnixMs,
    /// Since the machine's boot.
    pub since_boot: Duration,
}

impl Now {
    /// Returns the milliseconds since an earlier sample.
    fn ms_since(self, before: Duration) -> u64 {
        let passed = self.since_boot.saturating_sub(before).as_millis();
        saturating(passed)
    }
}

/// Counters of a volume in a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Progress {
    operations: u64,
    flushes: u64,
    errors: u64,
    queued: u32,
}

#[derive(Debug)]
struct Watched {
    progress: Progress,
    /// Time since which there is no progress.
    stuck: Now,
    /// Missed seconds in the last sample.
    missed: u64,
    /// Missed seconds by the time since the boot of the sample that found them, oldest first.
    misses: VecDeque<(Duration, u64)>,
    ailments: Ailments,
}

/// The health of all volumes.
#[derive(Debug, Default)]
pub struct Health {
    volumes: BTreeMap<VolumeId, Watched>,
    has_looked: bool,
}

impl Health {
    /// Processes the reports of all volumes, every second or every ten. Returns the volumes that
    /// have become stalled (`true`), and those that are no longer (`false`).
    pub fn look(&mut self, now: Now, reports: &[VolumeReport]) -> Vec<(VolumeId, bool)> {
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        let mut changed = Vec::new();
        let mut before = std::mem::take(&mut self.volumes);
        for report in reports {
            let mut watched = before.remove(&report.id);
            if watched.is_none() && is_well(report) {
                // This is the usual case.
                continue;
            }
            let was_stalled = watched.as_ref().is_some_and(|watched| watched.ailments.is_stalled());
            let watched = match &mut watched {
                Some(known) => {
                    known.look(now, report);
                    watched.take()
                }
                // Seconds that were missed before the first sample have an unknown time.
                None => Some(Watched::new(now, report, is_first)),
            };
            let Some(watched) = watched else { continue };
            if watched.ailments.is_stalled() != was_stalled {
                changed.push((report.id, !was_stalled));
            }
            if !is_well(report) || !watched.misses.is_empty() {
                self.volumes.insert(report.id, watched);
            }
        }
        changed
    }

    /// Returns the problems of a volume.
    #[must_use]
    pub fn of(&self, id: VolumeId) -> Ailments {
        self.volumes.get(&id).map(|watched| watched.ailments).unwrap_or_default()
    }
}

fn is_well(report: &VolumeReport) -> bool {
    let errors = &report.errors;
    report.queued == 0 && report.contract.missed == 0 && !errors.flush_failed && !errors.is_rotten
}

impl Progress {
    const fn of(report: &VolumeReport) -> Self {
        let errors = &report.errors;
        Self {
            operations: report.operations,
            flushes: report.flushes,
            errors: errors.device.wrapping_add(errors.no_space),
            queued: report.queued,
        }
    }
}

impl Watched {
    fn new(now: Now, report: &VolumeReport, is_first: bool) -> Self {
        let mut watched = Self {
            progress: Progress::of(report),
            stuck: now,
            missed: if is_first { report.contract.missed } else { 0 },
            misses: VecDeque::new(),
            ailments: Ailments::default(),
        };
        watched.look(now, report);
        watched
    }

    fn look(&mut self, now: Now, report: &VolumeReport) {
        let progress = Progress::of(report);
        if progress != self.progress || report.queued == 0 {
            (self.progress, self.stuck) = (progress, now);
        }
        self.count(now, report.contract.missed);
        let stalled_after_ms = if report.in_store > 0 { STORE_STALL_MS } else { STALL_MS };
        let is_stalled = now.ms_since(self.stuck.since_boot) >= stalled_after_ms;
        let misses: u64 = self.misses.iter().map(|(_, missed)| missed).sum();
        let performance = match misses {
            _ if is_stalled => Performance::Stalled,
            SEVERE_SECONDS.. => Performance::SeverelyDegraded,
            1.. => Performance::Degraded,
            0 => Performance::Normal,
        };
        let ailments = &mut self.ailments;
        let same = ailments.performance.filter(|(before, _)| *before == performance);
        let begun = (performance, if is_stalled { self.stuck.unix } else { now.unix });
        ailments.performance = (performance != Performance::Normal).then(|| same.unwrap_or(begun));
        let since = |is: bool, before: Option<UnixMs>| is.then(|| before.unwrap_or(now.unix));
        ailments.flush_failed = since(report.errors.flush_failed, ailments.flush_failed);
        ailments.rotten = since(report.errors.is_rotten, ailments.rotten);
    }

    /// Counts the seconds that were missed since the last sample, and removes old ones.
    fn count(&mut self, now: Now, missed: u64) {
        // If the counter is lower, the data plane has begun to count the volume again.
        let added = missed.checked_sub(self.missed).unwrap_or(missed);
        self.missed = missed;
        self.misses.retain(|(at, _)| now.ms_since(*at) < WINDOW_MS);
        match self.misses.back_mut() {
            _ if added == 0 => {}
            Some((at, sum)) if now.ms_since(*at) < BUCKET_MS => *sum += added,
            _ => self.misses.push_back((now.since_boot, added)),
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::qos::Exceeded;
    use evenkeel_core::qos::contract::Contract;
    use evenkeel_core::qos::pacing::Balances;
    use evenkeel_wire::agent::{Answered, IoErrors};

    use super::*;

    const T0: u64 = 1_700_000_000_000;

    fn id() -> VolumeId {
        VolumeId::from_bits(7)
    }

    fn report(operations: u64, queued: u32, missed: u64) -> VolumeReport {
        VolumeReport {
            id: id(),
            balances: Balances::default(),
            connections: 1,
            queued,
            in_store: 0,
            operations,
            bytes_read: operations * 512,
            bytes_written: 0,
            flushes: 0,
            answered: Answered::default(),
            exceeded: Exceeded::default(),
            errors: IoErrors::default(),
            contract: Contract { seconds: missed, missed },
        }
    }

    /// Samples `passed_s` seconds after the first sample, while the wall clock shows `wall_s`.
    fn look_at(
        health: &mut Health,
        passed_s: u64,
        wall_s: u64,
        reports: &[VolumeReport],
    ) -> Vec<(VolumeId, bool)> {
        let now = Now {
            unix: UnixMs(T0 + wall_s * 1_000),
            since_boot: Duration::from_secs(9_000 + passed_s),
        };
        health.look(now, reports)
    }

    fn performance(health: &Health) -> Performance {
        health.of(id()).performance.map(|(it, _)| it).unwrap_or_default()
    }

    #[test]
    fn requests_that_the_store_does_not_end_are_a_stall_within_seconds() {
        let mut health = Health::default();
        let mut look = |second: u64, operations, in_store| {
            let report = VolumeReport { in_store, ..report(operations, 3, 0) };
            look_at(&mut health, second, second, &[report]);
            performance(&health)
        };
        for second in 0..5 {
            assert_eq!(look(second, 5, 1), Performance::Normal, "{second}");
        }
        assert_eq!(look(5, 5, 1), Performance::Stalled);
        assert_eq!(look(6, 6, 1), Performance::Normal);
        // Requests outside of the store may wait for the volume's limits.
        for second in 7..60 {
            assert_eq!(look(second, 6, 0), Performance::Normal, "{second}");
        }
    }

    #[test]
    fn requests_that_are_not_started_for_a_minute_are_a_stall() {
        let mut health = Health::default();
        let mut look = |second: u64, operations, queued| {
            let changed = look_at(&mut health, second, second, &[report(operations, queued, 0)]);
            (performance(&health), health.of(id()).performance.map(|(_, at)| at), changed)
        };
        for second in 0..60 {
            assert_eq!(look(second, 5, 3), (Performance::Normal, None, vec![]), "{second}");
        }
        let since = Some(UnixMs(T0));
        assert_eq!(look(60, 5, 3), (Performance::Stalled, since, vec![(id(), true)]));
        assert_eq!(look(61, 5, 3), (Performance::Stalled, since, vec![]));
        assert_eq!(look(62, 6, 3), (Performance::Normal, None, vec![(id(), false)]));
        // No stall: requests that are started, however slowly, or a volume without requests.
        for second in 63..400 {
            assert_eq!(look(second, 6 + second / 59, 1).0, Performance::Normal, "{second}");
            assert_eq!(look(second, 6 + second / 59, 0).0, Performance::Normal, "{second}");
        }
    }

    #[test]
    fn missed_seconds_degrade_a_volume_for_five_minutes() {
        let mut health = Health::default();
        // Seconds that were missed before the first sample have an unknown time.
        let mut look = |second: u64, missed| {
            look_at(&mut health, second, second, &[report(second, 0, missed)]);
            performance(&health)
        };
        assert_eq!(look(0, 100), Performance::Normal);
        assert_eq!(look(1, 101), Performance::Degraded);
        for second in 2..30 {
            assert_eq!(look(second, 100 + second), Performance::Degraded, "{second}");
        }
        assert_eq!(look(30, 130), Performance::SeverelyDegraded);
        assert_eq!(look(300, 130), Performance::SeverelyDegraded);
        // The seconds of the first bucket are counted together, with the time of the first.
        assert_eq!(look(301, 130), Performance::Degraded);
        assert_eq!(look(320, 130), Performance::Degraded);
        assert_eq!(look(321, 130), Performance::Normal);
        // The data plane has begun to count again.
        assert_eq!(look(322, 2), Performance::Degraded);
    }

    #[test]
    fn ailments_have_the_time_of_their_first_report() {
        let mut health = Health::default();
        let mut look = |second: u64, flush_failed, is_rotten| {
            let mut report = report(0, 0, 0);
            (report.errors.flush_failed, report.errors.is_rotten) = (flush_failed, is_rotten);
            look_at(&mut health, second, second, &[report]);
            let Ailments { flush_failed, rotten, .. } = health.of(id());
            [flush_failed, rotten].map(|at| at.map(|at| (at.0 - T0) / 1_000))
        };
        assert_eq!(look(0, false, false), [None, None]);
        assert_eq!(look(1, true, false), [Some(1), None]);
        assert_eq!(look(2, true, true), [Some(1), Some(2)]);
        assert_eq!(look(3, false, true), [None, Some(2)]);
        assert_eq!(look(4, false, false), [None, None]);
        look_at(&mut health, 5, 5, &[]);
        assert!(health.volumes.is_empty());
    }

    #[test]
    fn a_clock_that_is_set_makes_no_stall_and_hides_none() {
        let mut health = Health::default();
        // The wall clock is set ahead by a month, and back by an hour.
        for (passed, wall) in [(0, 5_000), (30, 5_030), (40, 2_592_000), (59, 1_400)] {
            look_at(&mut health, passed, wall, &[report(5, 3, 0)]);
            assert_eq!(performance(&health), Performance::Normal, "{passed}");
        }
        look_at(&mut health, 60, 1_401, &[report(5, 3, 0)]);
        let since = health.of(id()).performance;
        assert_eq!(since, Some((Performance::Stalled, UnixMs(T0 + 5_000_000))));
    }

    #[test]
    fn missed_seconds_count_for_five_minutes_when_the_wall_clock_jumps() {
        let mut health = Health::default();
        let mut look = |passed, wall, missed| {
            look_at(&mut health, passed, wall, &[report(passed, 0, missed)]);
            performance(&health)
        };
        look(0, 5_000, 0);
        for (passed, wall) in [(1, 5_001), (2, 2_592_000), (3, 100), (300, 397)] {
            assert_eq!(look(passed, wall, 1), Performance::Degraded, "{passed}");
        }
        assert_eq!(look(301, 398, 1), Performance::Normal);
    }
}
