//! Differences of the data plane's counters, look by look: records of steps and of minutes. Pure.
//!
//! What happened between two looks belongs to the step in which most of that time lies.

use std::collections::BTreeMap;

use evenkeel_core::ids::VolumeId;
use evenkeel_wire::agent::VolumeReport;

use super::record::{Kind, Record};
use super::{MINUTE_MS, STEP_MS};
use crate::model::UnixMs;

/// Looks that are further apart than this, in milliseconds, are not compared: the server was
/// stopped, the data plane did not answer, or the clock was set.
const GAP_MS: u64 = MINUTE_MS;
/// Looks that are further apart than this, in milliseconds, do not say for how long a volume was
/// idle.
const IDLE_LOOK_MS_MAX: u64 = 2_500;
/// Parts of a whole, in which balances are kept.
const WHOLE_PPM: u128 = 1_000_000;

/// What the control plane knows of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// What it is.
    pub kind: Kind,
    /// When it was created.
    pub created: UnixMs,
    /// Whether it is attached, so that it has metrics.
    pub is_attached: bool,
    /// I/Os a second that are provisioned; zero of types without.
    pub provisioned_iops: u64,
    /// Credits that it may save; `None` without credits.
    pub capacity: Option<u64>,
}

/// Requests started, delayed and answered since the server's start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Counters {
    operations: u64,
    read_bytes: u64,
    write_bytes: u64,
    iops_exceeded_ns: u64,
    bytes_exceeded_ns: u64,
    reads: u64,
    writes: u64,
    read_ns: u64,
    write_ns: u64,
}

impl From<&VolumeReport> for Counters {
    fn from(report: &VolumeReport) -> Self {
        Self {
            operations: report.operations,
            read_bytes: report.bytes_read,
            write_bytes: report.bytes_written,
            iops_exceeded_ns: report.exceeded.operations_ns,
            bytes_exceeded_ns: report.exceeded.bytes_ns,
            reads: report.answered.reads,
            writes: report.answered.writes,
            read_ns: report.answered.read_ns,
            write_ns: report.answered.write_ns,
        }
    }
}

impl Counters {
    /// What was added since `before`; `None` if a counter went back.
    fn since(&self, before: &Self) -> Option<Self> {
        Some(Self {
            operations: self.operations.checked_sub(before.operations)?,
            read_bytes: self.read_bytes.checked_sub(before.read_bytes)?,
            write_bytes: self.write_bytes.checked_sub(before.write_bytes)?,
            iops_exceeded_ns: self.iops_exceeded_ns.checked_sub(before.iops_exceeded_ns)?,
            bytes_exceeded_ns: self.bytes_exceeded_ns.checked_sub(before.bytes_exceeded_ns)?,
            reads: self.reads.checked_sub(before.reads)?,
            writes: self.writes.checked_sub(before.writes)?,
            read_ns: self.read_ns.checked_sub(before.read_ns)?,
            write_ns: self.write_ns.checked_sub(before.write_ns)?,
        })
    }
}

/// A volume, as it was at the last look.
#[derive(Default, Debug)]
struct Seen {
    counters: Counters,
    queued: u32,
    /// The step that is open, and the minute that is.
    step: Option<Record>,
    minute: Option<Record>,
}

/// What came to its end at a look: records by the beginning of their span, in seconds of Unix time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ended {
    /// Steps of ten seconds.
    pub steps: Vec<(u64, VolumeId, Record)>,
    /// Minutes.
    pub minutes: Vec<(u64, VolumeId, Record)>,
}

/// Looks at the data plane from time to time.
#[derive(Debug, Default)]
pub struct Sampler {
    looked: Option<UnixMs>,
    /// Number of the open step since 1970.
    open: u64,
    seen: BTreeMap<VolumeId, Seen>,
}

impl Sampler {
    /// Takes a look: what the data plane reports, and what is known of these volumes.
    pub fn look(
        &mut self,
        now: UnixMs,
        reports: &[VolumeReport],
        known: &BTreeMap<VolumeId, Known>,
    ) -> Ended {
        let mut ended = Ended::default();
        let before = self.looked.replace(now);
        let is_gap = |before: UnixMs| now < before || now.ms_since(before) > GAP_MS;
        let Some(before) = before.filter(|before| !is_gap(*before)) else {
            self.begin(now, reports);
            return ended;
        };
        self.seen.retain(|id, _| known.contains_key(id));
        let elapsed_ms = now.ms_since(before);
        let step = before.plus_ms(elapsed_ms / 2).0 / STEP_MS;
        if step > self.open {
            self.close(step, &mut ended);
        }
        for report in reports {
            let Some(known) = known.get(&report.id) else { continue };
            self.note(report, known, (before, elapsed_ms));
        }
        let next = now.0 / STEP_MS;
        if next > self.open {
            self.close(next, &mut ended);
        }
        ended
    }

    /// Begins anew: nothing before this look counts.
    fn begin(&mut self, now: UnixMs, reports: &[VolumeReport]) {
        self.open = now.0 / STEP_MS;
        let seen = |report: &VolumeReport| (report.id, Seen::first(report));
        self.seen = reports.iter().map(seen).collect();
    }

    /// Adds what a volume did since the last look to the open step.
    fn note(&mut self, report: &VolumeReport, known: &Known, (before, elapsed_ms): (UnixMs, u64)) {
        let counters = Counters::from(report);
        // It may have been on its way to the data plane at the last look.
        let is_new = known.created.plus_ms(GAP_MS) >= before;
        let seen = self.seen.entry(report.id).or_insert_with(|| match is_new {
            // All its counters have begun at zero since.
            true => Seen::default(),
            false => Seen::first(report),
        });
        let Some(added) = counters.since(&seen.counters) else {
            // The data plane began anew.
            let (step, minute) = (seen.step, seen.minute);
            *seen = Seen { step, minute, ..Seen::first(report) };
            return;
        };
        let has_moved = added != Counters::default() || report.queued > 0 || seen.queued > 0;
        (seen.counters, seen.queued) = (counters, report.queued);
        if !known.is_attached {
            return;
        }
        let is_known = elapsed_ms <= IDLE_LOOK_MS_MAX;
        let record = Record {
            span_ms: elapsed_ms,
            reads: added.reads,
            writes: added.writes,
            read_ns: added.read_ns,
            write_ns: added.write_ns,
            read_bytes: added.read_bytes,
            write_bytes: added.write_bytes,
            operations: added.operations,
            iops_exceeded_ns: added.iops_exceeded_ns,
            bytes_exceeded_ns: added.bytes_exceeded_ns,
            provisioned_iops: known.provisioned_iops,
            looks: 1,
            queued: report.queued.into(),
            busy_looks: (report.queued > 0).into(),
            idle_ms: is_known.then_some(if has_moved { 0 } else { elapsed_ms }),
            balance_ppm: known.capacity.and_then(|capacity| balance_ppm(report, capacity)),
            ..Record::empty(known.kind)
        };
        add(&mut seen.step, &record);
    }

    /// Ends the open step, and its minute if the next step is in another one.
    fn close(&mut self, next: u64, ended: &mut Ended) {
        const STEPS: u64 = MINUTE_MS / STEP_MS;
        let (step_start, minute) = (self.open * STEP_MS / 1_000, self.open / STEPS);
        for (id, seen) in &mut self.seen {
            if let Some(record) = seen.step.take() {
                add(&mut seen.minute, &record);
                ended.steps.push((step_start, *id, record));
            }
            if next / STEPS > minute
                && let Some(record) = seen.minute.take()
            {
                ended.minutes.push((minute * MINUTE_MS / 1_000, *id, record));
            }
        }
        self.open = next;
    }
}

impl Seen {
    /// A volume of which nothing before this report counts.
    fn first(report: &VolumeReport) -> Self {
        Self { counters: report.into(), queued: report.queued, step: None, minute: None }
    }
}

/// What a volume has saved of what it may save, in millionths; `None` without credits.
pub fn balance_ppm(report: &VolumeReport, capacity: u64) -> Option<u64> {
    let balance = report.balances.operations.or(report.balances.bytes)?;
    let part = u128::from(balance) * WHOLE_PPM / u128::from(capacity.max(1));
    u64::try_from(part.min(WHOLE_PPM)).ok()
}

fn add(sum: &mut Option<Record>, record: &Record) {
    match sum {
        Some(sum) => sum.merge(record),
        None => *sum = Some(*record),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::qos::Exceeded;
    use evenkeel_core::qos::contract::Contract;
    use evenkeel_core::qos::pacing::Balances;
    use evenkeel_core::volume::VolumeType;
    use evenkeel_wire::agent::{Answered, IoErrors};
    use proptest::prelude::*;

    const ID: VolumeId = VolumeId::from_bits(7);
    /// A whole minute.
    const T0: u64 = 1_700_000_040_000;

    fn report(read_bytes: u64, queued: u32) -> VolumeReport {
        VolumeReport {
            id: ID,
            balances: Balances { operations: Some(250), bytes: None },
            connections: 1,
            queued,
            in_store: 0,
            operations: read_bytes / 512,
            bytes_read: read_bytes,
            bytes_written: 0,
            flushes: 0,
            answered: reads(read_bytes),
            exceeded: Exceeded { operations_ns: read_bytes * 10, ..Exceeded::default() },
            errors: IoErrors::default(),
            contract: Contract::default(),
        }
    }

    fn known(is_attached: bool) -> BTreeMap<VolumeId, Known> {
        let kind = Kind { volume_type: VolumeType::Gp2, multi_attach: false };
        let created = UnixMs(0);
        let capacity = Some(1_000);
        [(ID, Known { kind, created, is_attached, provisioned_iops: 0, capacity })].into()
    }

    /// What was answered when so much was read: a request for each 512 bytes, of 1 us.
    fn reads(read_bytes: u64) -> Answered {
        Answered {
            reads: read_bytes / 512,
            read_ns: read_bytes / 512 * 1_000,
            ..Answered::default()
        }
    }

    #[test]
    fn a_counter_that_goes_back_is_a_new_start() {
        let mut sampler = Sampler::default();
        let mut sum = 0;
        let looks = [5_000_000, 5_001_024, 5_002_048, 512, 1_024, 1_536];
        for (second, bytes) in (0..).zip(looks) {
            let now = UnixMs(T0 + second * 10_000);
            let ended = sampler.look(now, &[report(bytes, 0)], &known(true));
            for (_, _, record) in ended.steps {
                assert!(record.read_bytes <= 1_024 && record.reads <= 2, "{record:?}");
                sum += record.read_bytes;
            }
        }
        assert_eq!(sum, 2 * 1_024 + 2 * 512);
    }

    #[test]
    fn a_gap_and_a_clock_that_is_set_are_no_time_at_all() {
        let mut sampler = Sampler::default();
        let mut steps = Vec::new();
        for (ms, bytes) in [
            (0, 0),
            (10_000, 512),
            (80_001, 1_024), // more than a minute later
            (90_001, 1_536),
            (50_000, 2_048), // set back
            (60_000, 2_560),
        ] {
            let ended = sampler.look(UnixMs(T0 + ms), &[report(bytes, 0)], &known(true));
            steps.extend(ended.steps.iter().map(|(at, _, r)| (at * 1_000 - T0, r.read_bytes)));
        }
        assert_eq!(steps, [(0, 512), (80_000, 512), (50_000, 512)]);
    }

    #[test]
    fn a_volume_has_metrics_while_it_is_attached() {
        let mut sampler = Sampler::default();
        let mut minutes = Vec::new();
        for second in 0..=180_u64 {
            let (now, bytes) = (UnixMs(T0 + second * 1_000), second * 512);
            // From within the first minute until within the second.
            let is_attached = (31..=90).contains(&second);
            let ended = sampler.look(now, &[report(bytes, 1)], &known(is_attached));
            minutes.extend(ended.minutes);
        }
        let found = minutes.iter().map(|(at, _, r)| (at - T0 / 1_000, r.span_ms, r.read_bytes));
        let half = 30 * 512;
        assert_eq!(found.collect::<Vec<_>>(), [(0, 30_000, half), (60, 30_000, half)]);
        assert_eq!(minutes[0].2.balance_ppm, Some(250_000));
        assert_eq!(minutes[0].2.idle_ms, Some(0));
        assert_eq!((minutes[0].2.queued, minutes[0].2.busy_looks), (30, 30));
    }

    #[test]
    fn of_a_new_volume_nothing_is_lost_and_of_an_unknown_one_nothing_is_made_up() {
        let look = |created: u64| {
            let mut sampler = Sampler::default();
            let mut known = known(true);
            known.values_mut().for_each(|known| known.created = UnixMs(created));
            sampler.look(UnixMs(T0), &[], &known);
            sampler.look(UnixMs(T0 + 1_000), &[report(512, 0)], &known);
            let ended = sampler.look(UnixMs(T0 + 10_000), &[report(512, 0)], &known);
            let [(_, _, record)] = ended.steps.as_slice() else { panic!("{ended:?}") };
            (record.read_bytes, record.reads)
        };
        assert_eq!(look(T0 - 500), (512, 1));
        assert_eq!(look(T0 - GAP_MS - 500), (0, 0));
    }

    #[test]
    fn looks_that_are_far_apart_do_not_say_how_long_a_volume_was_idle() {
        let mut sampler = Sampler::default();
        let looks = [0, 1_000, 2_000, 9_000, 10_000];
        let ended = looks.map(|ms| sampler.look(UnixMs(T0 + ms), &[report(0, 0)], &known(true)));
        assert_eq!(ended[4].steps[0].2.idle_ms, None);
        assert_eq!(ended[4].steps[0].2.looks, 4);
    }

    proptest! {
        /// The oracle keeps every event. Looks come at whole seconds, so it knows the step of each.
        #[test]
        fn steps_and_minutes_are_the_sums_of_their_events(
            events in proptest::collection::btree_map(1..150_000_u64, 1..100_u64, 0..80),
            skipped in proptest::collection::btree_set(1..150_u64, 0..30),
        ) {
            let mut sampler = Sampler::default();
            let (mut steps, mut minutes) = (BTreeMap::new(), BTreeMap::new());
            let mut missed = false;
            for second in 0..=180_u64 {
                // What comes at an end of a step is not skipped: it would count in the next one.
                if skipped.contains(&second) && second % 10 > 0 {
                    missed = true;
                    continue;
                }
                let until = second * 1_000;
                let bytes: u64 = events.range(..until).map(|(_, units)| units * 512).sum();
                let now = UnixMs(T0 + until);
                let ended = sampler.look(now, &[report(bytes, 0)], &known(true));
                steps.extend(ended.steps.into_iter().map(|(at, _, r)| (at * 1_000 - T0, r)));
                minutes.extend(ended.minutes.into_iter().map(|(at, _, r)| (at * 1_000 - T0, r)));
            }
            prop_assert_eq!(steps.len(), 18);
            prop_assert_eq!(minutes.len(), 3);
            for (found, length) in [(&steps, STEP_MS), (&minutes, MINUTE_MS)] {
                for (&start, record) in found {
                    let within = events.range(start..start + length);
                    let units: u64 = within.map(|(_, units)| units).sum();
                    prop_assert_eq!(record.span_ms, length);
                    prop_assert_eq!(record.read_bytes, units * 512);
                    prop_assert_eq!(record.operations, units);
                    prop_assert_eq!((record.reads, record.read_ns), (units, units * 1_000));
                    let seconds = (start / 1_000..(start + length) / 1_000).filter(|second| {
                        events.range(second * 1_000..(second + 1) * 1_000).next().is_none()
                    });
                    if !missed {
                        prop_assert_eq!(record.idle_ms, Some(seconds.count() as u64 * 1_000));
                    }
                }
            }
        }
    }
}
