//! What is recorded each second.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::place::Place;
use crate::databases::Second;
use evenkeel_client::model::VolumeDescription;
use evenkeel_client::volume_samples::{self, Sample};
use evenkeel_core::units::MIB;
use evenkeel_lab::{LabError, cancel};
use evenkeel_os::clock;

/// Time between two lines of progress, in seconds.
const PROGRESS_S: u32 = 10;

/// A second of the run.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Moment {
    /// Seconds since the first one.
    pub second: u64,
    /// The second since 1970.
    pub unix_s: u64,
    /// The phase.
    pub phase: &'static str,
    /// The volumes, retired ones included.
    pub volumes: usize,
    /// Their sizes together.
    pub provisioned_gib: u64,
    /// Their IOPS together.
    pub provisioned_iops: u64,
    /// Their MiB/s together.
    pub provisioned_mibps: u64,
    /// Their cost, in millionths of a dollar a month.
    pub monthly_micro_usd: u64,
    /// Size of the file system in bytes.
    pub size_bytes: u64,
    /// Its used bytes.
    pub used_bytes: u64,
    /// Bytes that an application can still write.
    pub free_bytes: u64,
    /// I/Os of all volumes in the second.
    pub iops: u64,
    /// I/Os of the busiest volume in the second.
    pub iops_busiest: u64,
    /// Bytes of all volumes in the second.
    pub bytes_per_s: u64,
    /// Transactions that ended in the second.
    pub transactions: u64,
    /// Their mean time in microseconds, from when they were due.
    pub transaction_us: u64,
}

/// All seconds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Moments(pub Vec<Moment>);

/// Records seconds.
pub struct Recorder {
    mount: PathBuf,
    moments: Vec<Moment>,
    last: Option<(u64, Sample)>,
    transactions: BTreeMap<u64, Second>,
}

impl Recorder {
    pub fn new(place: &Place) -> Self {
        Self {
            mount: place.mount().to_owned(),
            moments: Vec::new(),
            last: None,
            transactions: BTreeMap::new(),
        }
    }

    /// Records the seconds of a phase, and reports the lines of the agent.
    pub fn record(
        &mut self,
        place: &mut Place,
        phase: &'static str,
        seconds: u32,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), LabError> {
        for second in 0..seconds {
            let passed = clock::unix_us() % 1_000_000;
            clock::pause(Duration::from_micros(1_000_000 - passed));
            cancel::go_on()?;
            let moment = self.moment(place, phase)?;
            if second % PROGRESS_S == 0 {
                progress(&line(&moment));
            }
            self.moments.push(moment);
            for line in place.look_at_agent()? {
                progress(&format!("  {line}"));
            }
        }
        Ok(())
    }

    fn moment(&mut self, place: &Place, phase: &'static str) -> Result<Moment, LabError> {
        let unix_s = clock::unix_us() / 1_000_000;
        let volumes = place.volumes()?;
        let sample = volume_samples::take(place.api())?;
        let space = rustix::fs::statvfs(&self.mount)
            .map_err(|error| LabError::path(&self.mount)(error.into()))?;
        let blocks = |count: u64| count.saturating_mul(space.f_frsize);
        let sum = |value: fn(&VolumeDescription) -> Option<u64>| {
            volumes.iter().filter_map(value).sum::<u64>()
        };
        let limits = volumes.iter().filter_map(|volume| sample.get(&volume.volume_id));
        let limits = limits.filter_map(|sample| sample.bytes);
        let first_s = self.moments.first().map_or(unix_s, |first| first.unix_s);
        let mut moment = Moment {
            second: unix_s.saturating_sub(first_s),
            unix_s,
            phase,
            volumes: volumes.len(),
            provisioned_gib: sum(|volume| Some(volume.size_gib)),
            provisioned_iops: sum(|volume| volume.iops),
            provisioned_mibps: limits.map(|limit| limit.per_second / MIB).sum(),
            monthly_micro_usd: sum(|volume| volume.monthly_micro_usd),
            size_bytes: blocks(space.f_blocks),
            used_bytes: blocks(space.f_blocks.saturating_sub(space.f_bfree)),
            free_bytes: blocks(space.f_bavail),
            ..Moment::default()
        };
        let time_us = clock::unix_us();
        if let Some((before_us, before)) = self.last.replace((time_us, sample.clone())) {
            let passed_us = time_us.saturating_sub(before_us).max(1);
            let rates = rates(&before, &sample, passed_us);
            moment.iops = rates.iter().map(|rate| rate.0).sum();
            moment.iops_busiest = rates.iter().map(|rate| rate.0).max().unwrap_or(0);
            moment.bytes_per_s = rates.iter().map(|rate| rate.1).sum();
        }
        Ok(moment)
    }

    /// Adds the log of transactions that have ended.
    pub fn transactions(&mut self, log: Vec<Second>) {
        self.transactions.extend(log.into_iter().map(|second| (second.unix_s, second)));
    }
}

/// Returns the I/Os and the bytes a second of each volume.
fn rates(before: &Sample, after: &Sample, passed_us: u64) -> Vec<(u64, u64)> {
    let rate = |(id, now): (&String, &volume_samples::VolumeSample)| {
        let before = before.get(id).cloned().unwrap_or_default();
        let a_second = |count: u64| count.saturating_mul(1_000_000) / passed_us;
        let bytes = |of: &volume_samples::VolumeSample| of.read_bytes + of.write_bytes;
        let ios = now.counted_ios.saturating_sub(before.counted_ios);
        (a_second(ios), a_second(bytes(now).saturating_sub(bytes(&before))))
    };
    after.iter().map(rate).collect()
}

fn line(moment: &Moment) -> String {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    format!(
        "{:>4} s  {} volumes  {} GiB  {} IOPS  ${:.2}  used {:.2} GiB  free {:.2} GiB  {} I/Os/s",
        moment.second,
        moment.volumes,
        moment.provisioned_gib,
        moment.provisioned_iops,
        moment.monthly_micro_usd as f64 / 1e6,
        gib(moment.used_bytes),
        gib(moment.free_bytes),
        moment.iops,
    )
}

impl Moments {
    /// Returns the seconds with their transactions.
    pub fn finish(recorder: Recorder) -> Self {
        let Recorder { mut moments, transactions, .. } = recorder;
        for moment in &mut moments {
            // The figures of the other columns are those of the second before.
            if let Some(second) = transactions.get(&moment.unix_s.saturating_sub(1)) {
                moment.transactions = second.count;
                moment.transaction_us = second.sum_us.checked_div(second.count).unwrap_or(0);
            }
        }
        Self(moments)
    }

    /// Returns the largest value of a second.
    pub fn most(&self, value: impl Fn(&Moment) -> u64) -> u64 {
        self.0.iter().map(value).max().unwrap_or(0)
    }

    /// Returns the least value of a second.
    pub fn least(&self, value: impl Fn(&Moment) -> u64) -> u64 {
        self.0.iter().map(value).min().unwrap_or(0)
    }

    /// Returns the mean value of a second.
    pub fn mean(&self, value: impl Fn(&Moment) -> u64) -> u64 {
        let sum: u64 = self.0.iter().map(value).sum();
        sum.checked_div(self.0.len() as u64).unwrap_or(0)
    }
}
