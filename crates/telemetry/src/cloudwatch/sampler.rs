//! Records of steps and of minutes, from the differences between samples. Pure.
//!
//! Work between two samples belongs to the step in which most of that time lies.

use std::collections::BTreeMap;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::Exceeded;
use evenkeel_wire::agent::VolumeReport;

use super::record::{Kind, Record};
use super::{MINUTE_MS, STEP_MS};
use crate::counters::{Counters, Looks, Sample};
use evenkeel_core::time::UnixMs;

/// Maximum time between two samples that are compared, in milliseconds. After a longer time the
/// server was stopped, the data plane did not answer, or the clock was set.
const GAP_MS: u64 = MINUTE_MS;
/// Maximum time between two samples that show for how long a volume was idle, in milliseconds.
const IDLE_LOOK_MS_MAX: u64 = 2_500;
/// The unit of stored balances: parts of the maximum.
const WHOLE_PPM: u128 = 1_000_000;

/// The control plane's properties of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its kind.
    pub kind: Kind,
    /// When it was created.
    pub created: UnixMs,
    /// Whether it is attached, so that it has metrics.
    pub is_attached: bool,
    /// Provisioned I/Os per second; zero for types without.
    pub provisioned_iops: u64,
    /// Maximum of its credits; `None` without credits.
    pub capacity: Option<u64>,
}

/// The open step and the open minute of a volume.
#[derive(Default, Debug)]
struct Open {
    step: Option<Record>,
    minute: Option<Record>,
}

/// Records that end at a sample, by the beginning of their span, in seconds of Unix time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ended {
    /// Steps of ten seconds.
    pub steps: Vec<(u64, VolumeId, Record)>,
    /// Minutes.
    pub minutes: Vec<(u64, VolumeId, Record)>,
}

/// Samples the data plane repeatedly.
#[derive(Debug)]
pub struct Sampler {
    looks: Looks,
    /// Number of the open step since 1970.
    step: u64,
    open: BTreeMap<VolumeId, Open>,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { looks: Looks::new(GAP_MS), step: 0, open: BTreeMap::new() }
    }
}

impl Sampler {
    /// Processes a sample: the data plane's reports, and the properties of these volumes.
    pub fn look(
        &mut self,
        now: UnixMs,
        reports: &[VolumeReport],
        known: &BTreeMap<VolumeId, Known>,
    ) -> Ended {
        let mut ended = Ended::default();
        self.open.retain(|id, _| known.contains_key(id));
        match self.looks.begin(now) {
            // The time between the two samples belongs to the step in which most of it lies.
            Some(before) => {
                let step = before.plus_ms(now.ms_since(before) / 2).0 / STEP_MS;
                if step > self.step {
                    self.close(step, &mut ended);
                }
            }
            // Work before this sample is unknown.
            None => {
                self.step = now.0 / STEP_MS;
                self.open.clear();
            }
        }
        for report in reports {
            if let Some(known) = known.get(&report.id) {
                self.note(report, known);
            }
        }
        let next = now.0 / STEP_MS;
        if next > self.step {
            self.close(next, &mut ended);
        }
        ended
    }

    /// Processes a sample after the clock was moved ahead by `ms` milliseconds, to `now`. Work
    /// since the last sample belongs to the time before the move. No work follows until `now`.
    pub fn look_moved(
        &mut self,
        (now, ms): (UnixMs, u64),
        reports: &[VolumeReport],
        known: &BTreeMap<VolumeId, Known>,
    ) -> Ended {
        let before = UnixMs(now.0.saturating_sub(ms));
        let mut ended = self.look(before, reports, known);
        let next = now.0 / STEP_MS;
        if next > self.step {
            self.close(next, &mut ended);
        }
        self.looks.move_ahead(ms);
        ended
    }

    /// Adds a volume's work since the last sample to the open step.
    fn note(&mut self, report: &VolumeReport, known: &Known) {
        let Some(found) = self.looks.difference(&sample(report, known)) else { return };
        if !known.is_attached {
            return;
        }
        let Counters { operations, read_bytes, write_bytes, answered, exceeded } = found.added;
        // The delay of a flush by the device is not counted, since a flush is no I/O.
        let Exceeded { operations_ns, bytes_ns, .. } = exceeded;
        let of_limits = Exceeded { operations_ns, bytes_ns, ..Exceeded::default() };
        let moved = Counters { exceeded: of_limits, ..found.added };
        let has_moved = moved != Counters::default() || found.has_queued;
        let is_known = found.length_ms <= IDLE_LOOK_MS_MAX;
        let record = Record {
            span_ms: found.length_ms,
            reads: answered.reads,
            writes: answered.writes,
            read_ns: answered.read_ns,
            write_ns: answered.write_ns,
            read_bytes,
            write_bytes,
            operations,
            iops_exceeded_ns: operations_ns,
            bytes_exceeded_ns: bytes_ns,
            provisioned_iops: known.provisioned_iops,
            looks: 1,
            queued: report.queued.into(),
            busy_looks: (report.queued > 0).into(),
            idle_ms: is_known.then_some(if has_moved { 0 } else { found.length_ms }),
            balance_ppm: known.capacity.and_then(|capacity| balance_ppm(report, capacity)),
            ..Record::empty(known.kind)
        };
        add(&mut self.open.entry(report.id).or_default().step, &record);
    }

    /// Ends the open step, and its minute if the next step is in another one.
    fn close(&mut self, next: u64, ended: &mut Ended) {
        const STEPS: u64 = MINUTE_MS / STEP_MS;
        let step_start = self.step * STEP_MS / 1_000;
        let minute = self.step / STEPS;
        for (id, open) in &mut self.open {
            if let Some(record) = open.step.take() {
                add(&mut open.minute, &record);
                ended.steps.push((step_start, *id, record));
            }
            if next / STEPS > minute
                && let Some(record) = open.minute.take()
            {
                ended.minutes.push((minute * MINUTE_MS / 1_000, *id, record));
            }
        }
        self.step = next;
    }
}

/// Returns a volume's counters in a sample.
pub fn sample(report: &VolumeReport, known: &Known) -> Sample {
    let Known { created, .. } = *known;
    Sample { id: report.id, total: report.into(), queued: report.queued, created }
}

/// Returns a volume's credits, in millionths of their maximum; `None` without credits.
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

    /// Returns the requests answered for these bytes: one for each 512 bytes, of 1 us.
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
    fn a_clock_that_is_moved_ahead_ends_steps_and_minutes_and_loses_no_work() {
        let mut sampler = Sampler::default();
        let known = known(true);
        let mut ended = vec![sampler.look(UnixMs(T0), &[report(0, 0)], &known)];
        ended.push(sampler.look(UnixMs(T0 + 3_000), &[report(512, 0)], &known));
        // Six hours at four seconds: the work of the fourth second is before the move.
        let hours = 6 * 3_600_000;
        let now = UnixMs(T0 + 4_000 + hours);
        ended.push(sampler.look_moved((now, hours), &[report(1_024, 0)], &known));
        let steps: Vec<_> = ended.iter().flat_map(|ended| &ended.steps).collect();
        let minutes: Vec<_> = ended.iter().flat_map(|ended| &ended.minutes).collect();
        let found = |(at, _, r): &(u64, VolumeId, Record)| (*at, r.read_bytes, r.span_ms);
        let expected = [(T0 / 1_000, 1_024, 4_000)];
        assert_eq!(steps.into_iter().map(found).collect::<Vec<_>>(), expected);
        assert_eq!(minutes.into_iter().map(found).collect::<Vec<_>>(), expected);
        // The next sample is a second later, and not hours.
        let later = now.plus_ms(6_000);
        let next = sampler.look(later, &[report(1_536, 0)], &known);
        assert_eq!(
            next.steps.iter().map(found).collect::<Vec<_>>(),
            [(now.0 / 1_000 - 4, 512, 6_000)]
        );
        // A stopped clock that is moved: no time has passed for this work.
        let now = later.plus_ms(60_000);
        let ended = sampler.look_moved((now, 60_000), &[report(2_048, 0)], &known);
        assert_eq!(ended.minutes[0].2.read_bytes, 1_024);
    }

    #[test]
    fn a_volume_has_metrics_while_it_is_attached() {
        let mut sampler = Sampler::default();
        let mut minutes = Vec::new();
        for second in 0..=180_u64 {
            let now = UnixMs(T0 + second * 1_000);
            let bytes = second * 512;
            // Attached from within the first minute until within the second.
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
    fn first_report_counts_only_for_a_volume_created_recently() {
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
        /// The oracle keeps every event. Samples come at whole seconds, so it knows the step of
        /// each.
        #[test]
        fn steps_and_minutes_are_the_sums_of_their_events(
            events in proptest::collection::btree_map(1..150_000_u64, 1..100_u64, 0..80),
            skipped in proptest::collection::btree_set(1..150_u64, 0..30),
        ) {
            let mut sampler = Sampler::default();
            let mut steps = BTreeMap::new();
            let mut minutes = BTreeMap::new();
            let mut missed = false;
            for second in 0..=180_u64 {
                // A sample at the end of a step is never skipped: its work would count in the next
                // step.
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
