//! Metrics of volumes over the last days, in the form of CloudWatch.
//!
//! Each sample of the data plane's reports goes through a [`Sampler`]. The records that end are
//! stored ([`CloudWatch::keep`]): steps of ten seconds of the last hour in memory, and minutes of
//! 15 days in a file ([`store`]). docs/reference/metrics.md lists the supported features.
//!
//! | module | contents |
//! | --- | --- |
//! | [`record`] | work of a volume in one span of time, and its bytes |
//! | [`sampler`] | records from the counters of the data plane; pure |
//! | [`store`] | minutes, in a file of bounded size |
//! | [`metrics`] | name, unit and value of each metric; pure |
//! | [`query`] | statistics over periods; pure |
//! | [`math`] | expressions over metrics: parsed, checked, evaluated; pure |
//!
//! [`Sampler`]: sampler::Sampler

pub mod math;
pub mod metrics;
pub mod query;
pub mod record;
pub mod sampler;
pub mod store;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;

use self::record::{Block, Record};
use self::sampler::Ended;
use self::store::{Listed, Store};

/// Default of the maximum space for metrics of volumes on disk.
pub const METRICS_SPACE: ByteCount = ByteCount(256 << 20);

/// Seconds of a minute.
pub const MINUTE_S: u64 = 60;
/// Seconds of an hour.
pub const HOUR_S: u64 = 3_600;
const MINUTE_MS: u64 = MINUTE_S * 1_000;
/// The length of a step, in milliseconds.
pub const STEP_MS: u64 = 10_000;
/// Maximum number of volumes of which steps are kept. With more, a sample every second would take a
/// core's time for too long, so there is one for each step.
pub const FINE_VOLUMES_MAX: usize = 1_024;
/// Number of minutes of which steps are kept.
const FINE_MINUTES: usize = 60;

/// The steps of one volume: blocks of a minute, by its number since 1970.
type Steps = VecDeque<(u64, Block)>;

/// The metrics of all volumes.
#[derive(Debug)]
pub struct CloudWatch {
    store: Mutex<Store>,
    steps: Mutex<BTreeMap<VolumeId, Steps>>,
}

impl CloudWatch {
    /// Opens the metrics of a data folder; `space` is their maximum there.
    ///
    /// # Errors
    /// There is no memory for a database. A file that cannot be used is no error: it is logged.
    pub fn open(folder: &Path, space: ByteCount) -> rusqlite::Result<Self> {
        Ok(Self { store: Mutex::new(Store::open(folder, space)?), steps: Mutex::default() })
    }

    /// Returns the volumes that have minutes.
    #[must_use]
    pub fn volumes(&self) -> Vec<(VolumeId, Listed)> {
        self.store().volumes().collect()
    }

    /// Returns the minutes of a volume that begin at or after `from_s` and before `until_s`.
    #[must_use]
    pub fn minutes(&self, id: VolumeId, from_s: u64, until_s: u64) -> Vec<(u64, Record)> {
        self.store().read(id, from_s, until_s)
    }

    /// Returns the steps of ten seconds of a volume that begin at or after `from_s` and before
    /// `until_s`.
    #[must_use]
    pub fn steps(&self, id: VolumeId, from_s: u64, until_s: u64) -> Vec<(u64, Record)> {
        let steps = self.steps_kept();
        let Some(blocks) = steps.get(&id) else { return Vec::new() };
        let of_block = |(minute, block): &(u64, Block)| {
            let start = minute * MINUTE_S;
            let at = |place: u8| start + u64::from(place) * STEP_MS / 1_000;
            block.records().map(|(place, record)| (at(place), record)).collect::<Vec<_>>()
        };
        let mut records: Vec<_> = blocks.iter().flat_map(of_block).collect();
        records.retain(|(start, _)| (from_s..until_s).contains(start));
        records.sort_by_key(|(start, _)| *start);
        records
    }

    /// Stores steps and minutes that have ended.
    pub fn keep(&self, ended: &Ended) {
        let mut steps = self.steps_kept();
        for (start_s, id, record) in &ended.steps {
            if steps.len() >= FINE_VOLUMES_MAX && !steps.contains_key(id) {
                continue;
            }
            let minute = start_s / MINUTE_S;
            let place = start_s % MINUTE_S * 1_000 / STEP_MS;
            let blocks = steps.entry(*id).or_default();
            // The clock was set back: steps with a time in the future are removed.
            while blocks.back().is_some_and(|(last, _)| *last > minute) {
                blocks.pop_back();
            }
            if blocks.back().is_none_or(|(last, _)| *last != minute) {
                blocks.push_back((minute, Block::default()));
            }
            if let Some((_, block)) = blocks.back_mut() {
                block.set(u8::try_from(place).unwrap_or_default(), record);
            }
            if blocks.len() > FINE_MINUTES {
                blocks.pop_front();
            }
        }
        if let Some((start_s, ..)) = ended.steps.first() {
            // Steps of volumes that are no longer attached make room for others.
            let oldest = (start_s / MINUTE_S).saturating_sub(FINE_MINUTES as u64);
            steps.retain(|_, blocks| {
                blocks.retain(|(minute, _)| *minute > oldest);
                !blocks.is_empty()
            });
        }
        drop(steps);
        for minute in ended.minutes.chunk_by(|(one, ..), (other, ..)| one == other) {
            let with_mask = |(_, id, record): &_| (*id, *record, metrics::mask(record));
            let records: Vec<_> = minute.iter().map(with_mask).collect();
            if let Some((start_s, ..)) = minute.first() {
                self.store().write(*start_s, &records);
            }
        }
    }

    /// Returns the stored minutes.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        // Every change of it is a transaction, so a poisoned lock is still consistent.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steps_kept(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Steps>> {
        // Each block is complete or missing, so the value is consistent.
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A whole minute, in seconds.
    const T0: u64 = 1_700_000_040;

    fn id(bits: u128) -> VolumeId {
        VolumeId::from_bits(bits)
    }

    fn step(at_s: u64, bits: u128) -> Ended {
        Ended { steps: vec![(at_s, id(bits), Record::example(at_s))], minutes: Vec::new() }
    }

    fn kept(cloudwatch: &CloudWatch, bits: u128) -> Vec<u64> {
        let steps = cloudwatch.steps(id(bits), 0, u64::MAX);
        assert!(steps.iter().all(|(at, found)| *found == Record::example(*at)));
        steps.iter().map(|(at, _)| *at).collect()
    }

    #[test]
    fn steps_of_the_last_hour_are_kept_and_a_clock_that_is_set_back_takes_some_along() {
        let folder = tempfile::tempdir().unwrap();
        let cloudwatch = CloudWatch::open(folder.path(), METRICS_SPACE).unwrap();
        cloudwatch.keep(&step(T0, 2));
        for at in (0..2 * HOUR_S).step_by(10) {
            cloudwatch.keep(&step(T0 + at, 1));
        }
        let last = T0 + 2 * HOUR_S - 10;
        let found = kept(&cloudwatch, 1);
        assert_eq!((found.len(), found[0], found[359]), (360, T0 + HOUR_S, last));
        assert_eq!(cloudwatch.steps(id(1), last - 10, last).len(), 1);
        assert!(kept(&cloudwatch, 2).is_empty(), "not attached for an hour");
        assert_eq!(cloudwatch.steps_kept().len(), 1);
        cloudwatch.keep(&step(last - 120, 1));
        let found = kept(&cloudwatch, 1);
        assert_eq!(found.last(), Some(&(last - 120)));
        assert!(found.windows(2).all(|two| two[0] < two[1]));
    }

    #[test]
    fn steps_are_kept_up_to_a_volume_limit_and_minutes_of_all_volumes() {
        let folder = tempfile::tempdir().unwrap();
        let cloudwatch = CloudWatch::open(folder.path(), METRICS_SPACE).unwrap();
        let all = 1..=FINE_VOLUMES_MAX as u128 + 1;
        let of =
            |start: u64| all.clone().map(move |bits| (start, id(bits), Record::example(start)));
        let minutes = of(T0).chain(of(T0 + MINUTE_S)).collect();
        cloudwatch.keep(&Ended { steps: of(T0).collect(), minutes });
        let last = FINE_VOLUMES_MAX as u128 + 1;
        assert_eq!((kept(&cloudwatch, 1).len(), kept(&cloudwatch, last).len()), (1, 0));
        assert_eq!(cloudwatch.minutes(id(last), 0, u64::MAX).len(), 2);
    }
}
