//! The starts of modifications in the last days. AWS shows only the last one of a volume, so all
//! that were seen are kept in a file.

use super::form::Modified;
use evenkeel_core::volume::ModifyPolicy;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The time for which a start is kept: longer than the window of any rule.
const KEPT_MS: u64 = 48 * HOUR_MS;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// The starts of modifications, by volume.
#[derive(Debug)]
pub struct Changes {
    path: PathBuf,
    starts: Starts,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct Starts(BTreeMap<String, Vec<u64>>);

impl Changes {
    /// Reads those of a file. Without a readable file there are none: then the API refuses a
    /// modification that is too early.
    pub fn of(path: &Path) -> Self {
        let text = fs::read(path).unwrap_or_default();
        Self { path: path.to_owned(), starts: serde_json::from_slice(&text).unwrap_or_default() }
    }

    /// Adds the starts of the last modifications, and forgets old ones.
    pub fn add(&mut self, modifications: &[Modified], now_ms: u64) {
        let before = self.starts.clone();
        for modified in modifications {
            let starts = self.starts.0.entry(modified.volume.clone()).or_default();
            if !starts.contains(&modified.started_ms) {
                starts.push(modified.started_ms);
                starts.sort_unstable();
            }
        }
        for starts in self.starts.0.values_mut() {
            starts.retain(|start_ms| start_ms.saturating_add(KEPT_MS) > now_ms);
        }
        self.starts.0.retain(|_, starts| !starts.is_empty());
        if self.starts != before {
            self.write();
        }
    }

    /// Writes the file. A failure is not reported: the file only spares refused calls.
    fn write(&self) {
        let text = serde_json::to_vec(&self.starts).expect("invariant: texts and numbers");
        let _ = evenkeel_os::files::write_whole(&self.path, &text);
    }

    fn since(&self, volume: &str, from_ms: u64) -> Vec<u64> {
        let starts = self.starts.0.get(volume).map(Vec::as_slice).unwrap_or_default();
        starts.iter().copied().filter(|start_ms| *start_ms > from_ms).collect()
    }

    /// Returns the starts of a volume's modifications in the last 24 hours, in order.
    pub fn last_day(&self, volume: &str, now_ms: u64) -> Vec<u64> {
        self.since(volume, now_ms.saturating_sub(DAY_MS))
    }

    /// Returns when the rules permit the next modification; `None` if they do now. An hour has
    /// `hour_ms` milliseconds: fewer in a trial.
    pub fn modifiable_from_ms(
        &self,
        volume: &str,
        policy: ModifyPolicy,
        hour_ms: u64,
        now_ms: u64,
    ) -> Option<u64> {
        let (hours, most) = match policy {
            ModifyPolicy::Cooldown { hours } => (hours, 1),
            ModifyPolicy::Rolling { modifications_max, hours } => {
                (hours, modifications_max as usize)
            }
        };
        let window_ms = u64::from(hours).saturating_mul(hour_ms);
        let starts = self.since(volume, now_ms.saturating_sub(window_ms));
        let first = starts.len().checked_sub(most).and_then(|place| starts.get(place))?;
        Some(first.saturating_add(window_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_planner::autopilot::observation::Modification;

    const NOW: u64 = 100 * DAY_MS;

    fn modified(hours_ago: u64) -> Modified {
        let started_ms = NOW - hours_ago * HOUR_MS;
        Modified { volume: "vol-1".to_owned(), state: Modification::Completed, started_ms }
    }

    #[test]
    fn starts_survive_the_process_and_old_ones_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("modifications.json");
        let mut changes = Changes::of(&path);
        for hours_ago in [60, 20, 10, 10, 1] {
            changes.add(&[modified(hours_ago)], NOW);
        }
        let again = Changes::of(&path);
        let expected: Vec<u64> = [20, 10, 1].map(|hours| NOW - hours * HOUR_MS).into();
        assert_eq!(again.last_day("vol-1", NOW), expected);
        assert_eq!(again.last_day("vol-2", NOW), [0; 0]);
        assert_eq!(again.last_day("vol-1", NOW + 5 * HOUR_MS), expected[1..]);
        std::fs::write(&path, "{\"vol").unwrap();
        assert_eq!(Changes::of(&path).last_day("vol-1", NOW), [0; 0]);
    }

    #[test]
    fn next_modification_is_permitted_by_either_rule() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("modifications.json");
        let mut changes = Changes::of(&path);
        changes.add(&[modified(20)], NOW);
        changes.add(&[modified(5)], NOW);
        let from = |policy| changes.modifiable_from_ms("vol-1", policy, HOUR_MS, NOW);
        let six = ModifyPolicy::Cooldown { hours: 6 };
        assert_eq!(from(six), Some(NOW + HOUR_MS));
        assert_eq!(from(ModifyPolicy::Cooldown { hours: 5 }), None);
        let rolling = |modifications_max| ModifyPolicy::Rolling { modifications_max, hours: 24 };
        assert_eq!(from(rolling(2)), Some(NOW + 4 * HOUR_MS));
        assert_eq!(from(rolling(3)), None);
        assert_eq!(changes.modifiable_from_ms("vol-2", six, HOUR_MS, NOW), None);
        // A day of a trial has 24 s.
        assert_eq!(changes.modifiable_from_ms("vol-1", six, 1_000, NOW), None);
    }
}
