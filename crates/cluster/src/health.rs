//! Liveness and readiness of a node that does not lead: the state behind the answers of its
//! `/healthz` and `/readyz`.
//!
//! Each part that the node needs is checked at an interval, by the node's loop or a thread, and the
//! outcome is kept here. An answer to a client uses the kept outcomes, so a part that hangs delays
//! no answer: it counts as failed after [`SILENT_MAX`].

use evenkeel_os::clock::{self, Deadline};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time for which a part may give no answer, as at the leader.
pub const SILENT_MAX: Duration = Duration::from_secs(30);
/// Time between two questions to the data plane.
const ASK_PLANE: Duration = Duration::from_secs(1);
/// Time between two writes to the data folder.
const ASK_FOLDER: Duration = Duration::from_secs(10);
/// Time between two checks whether a thread must end.
const LOOK: Duration = Duration::from_millis(100);
/// Name of the file that is written to check the data folder.
const PROBE_FILE: &str = "health-probe";

/// The last outcome of a part.
#[derive(Debug)]
struct Heard {
    since: Instant,
    /// The error; `None` if it succeeded.
    error: Option<String>,
}

/// One part that a node needs.
#[derive(Debug)]
pub struct Part {
    name: &'static str,
    heard: Mutex<Heard>,
}

impl Part {
    fn new(name: &'static str) -> Self {
        let heard = Heard { since: clock::now(), error: None };
        Self { name, heard: Mutex::new(heard) }
    }

    /// Records the outcome of a check.
    pub fn note(&self, outcome: Result<(), String>) {
        let heard = Heard { since: clock::now(), error: outcome.err() };
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = heard;
    }

    fn check(&self) -> Result<(), String> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        judge(self.name, heard.since.elapsed(), heard.error.as_deref())
    }
}

/// Checks a part by the time since its last outcome, and by the error in that outcome.
fn judge(name: &str, silent: Duration, error: Option<&str>) -> Result<(), String> {
    match error {
        _ if silent > SILENT_MAX => {
            Err(format!("{name} has not answered for {} s", silent.as_secs()))
        }
        Some(error) => Err(format!("{name}: {error}")),
        None => Ok(()),
    }
}

/// The parts of a node.
#[derive(Debug)]
pub struct Health {
    /// The loop that follows the leader.
    pub following: Part,
    /// etcd, which has the name of the leader.
    pub etcd: Part,
    /// The threads that serve volumes.
    pub data_plane: Part,
    /// The disk of the data folder.
    pub data_folder: Part,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            following: Part::new("the loop that follows the leader"),
            etcd: Part::new("etcd"),
            data_plane: Part::new("the data plane"),
            data_folder: Part::new("the data folder"),
        }
    }
}

impl Health {
    /// Checks that the node can continue without a restart.
    ///
    /// # Errors
    /// The text is the reason for which it cannot.
    pub fn check_alive(&self) -> Result<(), String> {
        self.following.check()?;
        self.data_plane.check()
    }

    /// Checks that the node can take part in changes: it is alive, reaches etcd, and can write to
    /// its data folder.
    ///
    /// # Errors
    /// The text is the reason.
    pub fn check_ready(&self) -> Result<(), String> {
        self.check_alive()?;
        self.etcd.check()?;
        self.data_folder.check()
    }
}

/// Starts a thread that calls `ask` at an interval until `is_over`. No other thread waits for it,
/// so a call that hangs affects only this part.
fn ask_often(
    name: &str,
    every: Duration,
    is_over: &Arc<AtomicBool>,
    ask: impl Fn() + Send + 'static,
) -> io::Result<()> {
    let is_over = Arc::clone(is_over);
    let work = move || {
        while !is_over.load(Ordering::Acquire) {
            ask();
            let deadline = Deadline::after(every);
            while !is_over.load(Ordering::Acquire) && deadline.pause(LOOK) {}
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Starts the checks of the data plane and the data folder, until `is_over`. `ask_plane` asks every
/// core.
///
/// # Errors
/// A thread cannot be started.
pub fn watch(
    health: &Arc<Health>,
    folder: &Path,
    is_over: &Arc<AtomicBool>,
    ask_plane: impl Fn() -> Result<(), String> + Send + 'static,
) -> io::Result<()> {
    let of_plane = Arc::clone(health);
    ask_often("health-plane", ASK_PLANE, is_over, move || of_plane.data_plane.note(ask_plane()))?;
    let of_folder = Arc::clone(health);
    let path = folder.join(PROBE_FILE);
    let ask = move || {
        let written = probe(&path).map_err(|error| format!("{}: {error}", path.display()));
        of_folder.data_folder.note(written);
    };
    ask_often("health-folder", ASK_FOLDER, is_over, ask)
}

/// Writes a file durably and removes it.
fn probe(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(b"can be written\n")?;
    file.sync_all()?;
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_os::clock::Deadline;

    #[test]
    fn judge_names_a_part_that_fails_or_is_silent_and_the_reason() {
        assert_eq!(judge("etcd", SILENT_MAX, None), Ok(()));
        assert_eq!(judge("etcd", SILENT_MAX, Some("no route")), Err("etcd: no route".to_owned()));
        let silent = Err("etcd has not answered for 31 s".to_owned());
        assert_eq!(judge("etcd", SILENT_MAX + Duration::from_secs(1), Some("no route")), silent);
    }

    #[test]
    fn liveness_depends_on_parts_of_the_process_alone() {
        let health = Health::default();
        assert_eq!((health.check_alive(), health.check_ready()), (Ok(()), Ok(())));
        for outside in [&health.etcd, &health.data_folder] {
            outside.note(Err("down".to_owned()));
            assert_eq!(health.check_alive(), Ok(()));
            assert!(health.check_ready().is_err_and(|why| why.ends_with(": down")));
            outside.note(Ok(()));
            assert_eq!(health.check_ready(), Ok(()));
        }
        for inside in [&health.following, &health.data_plane] {
            inside.note(Err("ended".to_owned()));
            assert!(health.check_alive().is_err_and(|why| why.ends_with(": ended")));
            assert!(health.check_ready().is_err());
            inside.note(Ok(()));
        }
    }

    #[test]
    fn watch_finds_an_unwritable_folder_and_an_ended_data_plane() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let health = Arc::<Health>::default();
        let is_over = Arc::<AtomicBool>::default();
        watch(&health, &missing, &is_over, || Err("it has ended".to_owned())).unwrap();
        let deadline = Deadline::after(Duration::from_secs(60));
        let are_told = || health.data_folder.check().is_err() && health.data_plane.check().is_err();
        while !are_told() && deadline.pause(LOOK) {}
        is_over.store(true, Ordering::Release);
        let told = health.data_folder.check().unwrap_err();
        assert!(told.contains("missing/health-probe"), "{told}");
        assert_eq!(health.data_plane.check().unwrap_err(), "the data plane: it has ended");
        assert_eq!(probe(&folder.path().join(PROBE_FILE)).map_err(|error| error.kind()), Ok(()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }
}
