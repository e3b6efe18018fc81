//! The note in the folder of a run that has not ended. A run with the same flags reads it, keeps
//! the files that are there, and asks for the others.

use crate::cli::PlanAws;
use evenkeel_client::output::Failure;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The name of the note, in the folder of a run.
pub const NAME: &str = "unfinished.json";
/// Seconds after which a run is not continued: CloudWatch no longer has all of its points.
const AGE_MAX_S: u64 = 86_400;

/// The flags of a run that has not finished, and its time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unfinished {
    /// Time at which the run began, in seconds since 1970: the end of its metrics.
    pub now_s: u64,
    days: u32,
    step_s: Option<u32>,
    volumes: Vec<String>,
    region: Option<String>,
    profile: Option<String>,
    endpoint_url: Option<String>,
}

impl Unfinished {
    /// Returns the note of a run that begins now.
    pub fn of(flags: &PlanAws, region: Option<&str>, now_s: u64) -> Self {
        Self {
            now_s,
            days: flags.days,
            step_s: flags.step,
            volumes: flags.volumes.clone(),
            region: region.map(str::to_owned),
            profile: flags.profile.clone(),
            endpoint_url: flags.endpoint_url.clone(),
        }
    }

    /// Returns the note in a folder, if a run with the flags of this one may continue it.
    pub fn continued(&self, folder: &Path) -> Option<Self> {
        let text = fs::read(folder.join(NAME)).ok()?;
        let begun: Self = serde_json::from_slice(&text).ok()?;
        let age_s = self.now_s.checked_sub(begun.now_s)?;
        let has_same_flags = Self { now_s: begun.now_s, ..self.clone() } == begun;
        (has_same_flags && age_s <= AGE_MAX_S).then_some(begun)
    }

    /// Returns the text of the note.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("invariant: numbers and texts are JSON") + "\n"
    }
}

/// Removes the note of a run that has all its files.
pub fn remove(folder: &Path) -> Result<(), Failure> {
    let path = folder.join(NAME);
    fs::remove_file(&path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(now_s: u64) -> Unfinished {
        Unfinished {
            now_s,
            days: 14,
            step_s: None,
            volumes: vec!["vol-01".to_owned()],
            region: Some("eu-west-1".to_owned()),
            profile: None,
            endpoint_url: None,
        }
    }

    #[test]
    fn a_run_is_continued_with_its_flags_and_within_a_day() {
        let folder = tempfile::tempdir().unwrap();
        let [begun, again] = [note(1_000_000), note(1_000_600)];
        assert_eq!(again.continued(folder.path()), None, "there is no note");
        fs::write(folder.path().join(NAME), begun.text()).unwrap();
        assert_eq!(again.continued(folder.path()), Some(begun));
        let others = [
            note(1_000_000 + AGE_MAX_S + 1),
            note(999_999),
            Unfinished { days: 7, ..again.clone() },
            Unfinished { region: None, ..again.clone() },
            Unfinished { volumes: vec![], ..again.clone() },
        ];
        for other in others {
            assert_eq!(other.continued(folder.path()), None, "{other:?}");
        }
        fs::write(folder.path().join(NAME), "{").unwrap();
        assert_eq!(again.continued(folder.path()), None, "the note is cut");
        remove(folder.path()).unwrap();
        assert!(!folder.path().join(NAME).exists());
    }
}
