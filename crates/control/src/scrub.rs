//! A scrub: all stored data is read once, at a bounded rate, and compared with its checksums.
//!
//! [`Scrub`] has its progress and its findings. It is stored in a file of the data folder, so that
//! a restarted server continues it. Losing the file loses only the progress.

use std::fmt;
use std::io;
use std::path::Path;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_telemetry::private;
use serde::{Deserialize, Serialize};

/// The file in the data folder.
pub const FILE_NAME: &str = "scrub.json";
/// Default rate, in MiB per second.
pub const RATE_MIBPS: u32 = 50;
/// Maximum rate.
pub const RATE_MIBPS_MAX: u32 = 100_000;
/// Maximum number of damaged places that are stored; further ones are only counted.
pub const ROTTEN_MAX: usize = 100;
/// Name of the store's metadata.
const STORE: &str = "pool";
/// The version of the file.
const VERSION: u32 = 1;

/// The object that is read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    /// The store's metadata: tables, logs, maps. Its places are numbers of the store's.
    Store,
    /// A volume, by bytes.
    Volume(VolumeId),
    /// A snapshot, by units.
    Snapshot(SnapshotId),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store => f.write_str(STORE),
            Self::Volume(id) => id.fmt(f),
            Self::Snapshot(id) => id.fmt(f),
        }
    }
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == STORE {
            return Ok(Self::Store);
        }
        let volume = text.parse().map(Self::Volume);
        volume
            .or_else(|_| text.parse().map(Self::Snapshot))
            .map_err(|_| format!("{text:?} is no id of a volume or a snapshot"))
    }
}

/// A damaged place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rotten {
    /// The volume or the snapshot, or `pool` for the store's metadata.
    pub id: String,
    /// The byte at which it begins; for the pool, a byte of its device.
    pub offset: u64,
}

/// State of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubState {
    /// It runs.
    Running,
    /// It was stopped, and can be resumed.
    Stopped,
    /// All data was read.
    Completed,
}

impl ScrubState {
    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Completed => "completed",
        }
    }
}

/// One scrub.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scrub {
    version: u32,
    /// Whether it runs.
    pub state: ScrubState,
    /// Its rate.
    pub rate_mibps: u32,
    /// When it was begun, in milliseconds since 1970.
    pub started_ms: u64,
    /// When it was completed.
    pub ended_ms: Option<u64>,
    /// The object that is being read: an id; `None` before the first one.
    pub at: Option<String>,
    /// The place in it to read next.
    pub next: u64,
    /// Bytes that were read.
    pub verified_bytes: u64,
    /// Number of damaged places.
    pub rotten_places: u64,
    /// The first of them.
    pub rotten: Vec<Rotten>,
    /// Volumes and snapshots that could not be read to their ends.
    pub unread: u64,
}

impl Scrub {
    /// Creates a scrub.
    #[must_use]
    pub fn new(rate_mibps: u32, now: UnixMs) -> Self {
        Self {
            version: VERSION,
            state: ScrubState::Running,
            rate_mibps,
            started_ms: now.0,
            ended_ms: None,
            at: None,
            next: 0,
            verified_bytes: 0,
            rotten_places: 0,
            rotten: Vec::new(),
            unread: 0,
        }
    }

    /// Returns the object that is being read.
    #[must_use]
    pub fn target(&self) -> Option<Target> {
        self.at.as_ref().and_then(|at| at.parse().ok())
    }

    /// Records damaged places.
    pub fn found(&mut self, target: Target, offsets: &[u64]) {
        self.rotten_places += offsets.len() as u64;
        let room = ROTTEN_MAX.saturating_sub(self.rotten.len());
        let rotten = |&offset| Rotten { id: target.to_string(), offset };
        self.rotten.extend(offsets.iter().take(room).map(rotten));
    }

    /// Reads it from a data folder; returns `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is not one of this version.
    pub fn load(folder: &Path) -> Result<Option<Self>, String> {
        let path = folder.join(FILE_NAME);
        let failed = |reason: String| format!("{}: {reason}", path.display());
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        };
        let scrub: Self =
            serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
        match scrub.version {
            VERSION => Ok(Some(scrub)),
            other => Err(failed(format!("its version is {other}, this program reads {VERSION}"))),
        }
    }

    /// Writes it into a data folder, replacing the one that is there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        private::replace(folder, FILE_NAME, &serde_json::to_vec(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrub_state_is_kept_in_the_folder_and_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Scrub::load(folder.path()), Ok(None));
        let mut scrub = Scrub::new(50, UnixMs(7));
        let target = Target::Snapshot(SnapshotId::from_bits(3));
        scrub.found(target, &[1; ROTTEN_MAX - 1]);
        scrub.found(target, &[2, 3]);
        assert_eq!((scrub.rotten_places, scrub.rotten.len()), (101, ROTTEN_MAX));
        scrub.at = Some(target.to_string());
        for _ in 0..2 {
            scrub.save(folder.path()).unwrap();
            assert_eq!(Scrub::load(folder.path()), Ok(Some(scrub.clone())));
        }
        assert_eq!(scrub.target(), Some(target));
        scrub.version = 2;
        scrub.save(folder.path()).unwrap();
        assert!(Scrub::load(folder.path()).unwrap_err().ends_with("this program reads 1"));
        std::fs::write(folder.path().join(FILE_NAME), "{").unwrap();
        assert!(Scrub::load(folder.path()).unwrap_err().contains(FILE_NAME));
    }

    #[test]
    fn targets_are_read_as_they_are_written() {
        let volume = VolumeId::from_bits(1);
        let snapshot = SnapshotId::from_bits(2);
        for target in [Target::Store, Target::Volume(volume), Target::Snapshot(snapshot)] {
            assert_eq!(target.to_string().parse(), Ok(target));
        }
        assert!("i-00000000000000001".parse::<Target>().is_err());
    }
}
