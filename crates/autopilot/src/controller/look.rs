//! The observation of a tick: the facts of the file system and of the API, with their ages.
//!
//! A source that fails leaves its last facts, which become older. Without facts of the API a file
//! system is observed with no volumes, and their age is unknown.

use super::Controller;
use crate::history::Past;
use crate::{Cloud, History, Host, Journal, Known};
use evenkeel_planner::autopilot::observation::{
    Ages, FileSystem, Observation, Volume, VolumeState,
};
use std::collections::BTreeMap;

/// The time for which a probe of a volume counts after the volume was detached, in milliseconds.
const PROBE_MS: u64 = 3_600_000;

/// The last readings of each source, with their times in milliseconds since 1970.
#[derive(Default)]
pub(super) struct Readings {
    file_system: Option<(u64, FileSystem)>,
    known: Option<(u64, Known)>,
    counters_ms: Option<u64>,
    skew_ms: Option<u64>,
    probes: BTreeMap<String, (u64, bool)>,
    /// Why a source could not be read now.
    pub faults: Vec<String>,
}

impl Readings {
    /// Returns the UUID of the file system, if it was ever observed.
    pub fn uuid(&self) -> Option<String> {
        self.file_system.as_ref().map(|(_, file_system)| file_system.uuid.clone())
    }

    /// Takes the facts of the API.
    fn take(&mut self, known: Known, unix_ms: u64) {
        self.skew_ms = known.unix_ms.map(|api_ms| api_ms.abs_diff(unix_ms)).or(self.skew_ms);
        let attached = known.volumes.iter().filter(|volume| volume.state == VolumeState::Attached);
        if attached.clone().all(|volume| volume.used_mibps.is_some()) {
            self.counters_ms = Some(unix_ms);
        }
        self.known = Some((unix_ms, known));
    }
}

impl<H: Host, C: Cloud, J: Journal> Controller<H, C, J> {
    /// Reads each source.
    pub(super) fn look(&mut self, unix_ms: u64) {
        self.readings.faults.clear();
        match self.host.observe() {
            Ok(file_system) => self.readings.file_system = Some((unix_ms, file_system)),
            Err(fault) => self.readings.faults.push(format!("the file system: {fault}")),
        }
        let Some((_, file_system)) = &self.readings.file_system else { return };
        let devices: Vec<String> =
            file_system.devices.iter().filter_map(|device| device.volume.clone()).collect();
        match self.cloud.observe(&file_system.uuid, &devices) {
            Ok(known) => self.readings.take(known, unix_ms),
            Err(fault) => self.readings.faults.push(format!("the API: {fault}")),
        }
        self.probe(unix_ms);
    }

    /// Probes attached volumes that are no devices of the file system, and forgets probes that are
    /// no longer true for certain.
    fn probe(&mut self, unix_ms: u64) {
        let Some((_, file_system)) = &self.readings.file_system else { return };
        let Some((_, known)) = &self.readings.known else { return };
        let probes = &mut self.readings.probes;
        probes.retain(|id, (time_ms, _)| {
            let is_recent = unix_ms >= *time_ms && unix_ms - *time_ms <= PROBE_MS;
            is_recent && known.volumes.iter().any(|volume| volume.id == *id)
        });
        for volume in &known.volumes {
            let is_device =
                file_system.devices.iter().any(|device| device.volume.as_ref() == Some(&volume.id));
            let is_attached = volume.state == VolumeState::Attached;
            let probe = if is_attached && !is_device {
                self.host.has_superblock(&volume.id).ok().flatten()
            } else {
                None
            };
            if let Some(has_superblock) = probe {
                probes.insert(volume.id.clone(), (unix_ms, has_superblock));
            } else if !matches!(volume.state, VolumeState::Detaching | VolumeState::Available) {
                probes.remove(&volume.id);
            }
        }
    }

    /// Returns the observation from the last readings; `None` without one of the file system.
    pub(super) fn observation(&self, unix_ms: u64, history: &mut History) -> Option<Observation> {
        let (time_ms, file_system) = self.readings.file_system.as_ref()?;
        let mut file_system = file_system.clone();
        let space = &self.policy.space;
        let used_bytes = file_system.used_bytes;
        let past = Past {
            window_ms: u64::from(space.actuation_s) * 1_000,
            days: space.peak_days,
            day_ms: self.policy.day_ms(),
        };
        let largest = history.add(*time_ms, used_bytes, &past);
        file_system.largest_jump_bytes = largest.jump_bytes;
        file_system.peak_used_bytes = largest.peak_bytes;
        file_system.largest_growth_bytes = largest.growth_bytes;
        let age = |time_ms: u64| unix_ms.saturating_sub(time_ms);
        let ages = Ages {
            file_system_ms: Some(age(*time_ms)),
            volumes_ms: self.readings.known.as_ref().map(|(time_ms, _)| age(*time_ms)),
            counters_ms: self.readings.counters_ms.map(age),
            clock_skew_ms: self.readings.skew_ms,
        };
        let known = self.readings.known.as_ref().map(|(_, known)| known);
        Some(Observation {
            unix_ms,
            file_system,
            volumes: known.map_or(Vec::new(), |known| self.probed(&known.volumes)),
            instance: known.and_then(|known| known.instance.clone()),
            account: known.map_or_else(Default::default, |known| known.account),
            ages,
            evidence: self.evidence.clone(),
            front_end: self.cloud.front_end(),
        })
    }

    /// Returns volumes with the results of their probes.
    fn probed(&self, volumes: &[Volume]) -> Vec<Volume> {
        let mut volumes = volumes.to_vec();
        for volume in &mut volumes {
            volume.has_superblock = self.readings.probes.get(&volume.id).map(|(_, found)| *found);
        }
        volumes
    }
}
