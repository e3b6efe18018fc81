//! The journal in a folder.
//!
//! | file | content |
//! |---|---|
//! | `agent.lock` | the form of the folder; locked while an agent runs |
//! | `state/UUID.json` | the memory of a file system, replaced as a whole |
//! | `audit/DATE-NUMBER.jsonl` | the audit of a day ([`log`]) |
//! | `policies/DIGEST.toml` | the policies by which decisions were made, for their replay |
//! | `pages/DIGEST.txt` | the answers of `evenkeel plan` on which decisions rest |
//! | `orders.json` | the orders of a person |
//!
//! An agent holds the lock of its folder ([`Folder`]); programs that only read need none
//! ([`Reader`]).

mod log;
mod reader;

use crate::audit::digest;
use crate::{Fault, Journal, Memory, Orders};
use evenkeel_planner::autopilot::Evidence;
use evenkeel_telemetry::private;
use log::Log;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use log::Bounds;
pub use reader::{Found, Reader};

/// The first line of `agent.lock`.
const FORMAT: &str = "evenkeel agent folder, format 1";
const LOCK: &str = "agent.lock";
const STATE: &str = "state";
const AUDIT: &str = "audit";
const POLICIES: &str = "policies";
const PAGES: &str = "pages";
const ORDERS: &str = "orders.json";
/// The number of the form of a state file.
const STATE_FORM: u32 = 1;
/// The largest file that is read as a whole, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The most copies of policies that are kept; the oldest is deleted.
const POLICIES_MAX: usize = 256;
/// The most pages that are kept; the oldest is deleted.
const PAGES_MAX: usize = 1_024;

/// The folder of an agent; locked until it and its journals are dropped.
#[derive(Clone, Debug)]
pub struct Folder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    log: Mutex<Log>,
    _lock: File,
}

impl Folder {
    /// Locks the folder of an agent, which is created if there is none.
    ///
    /// # Errors
    /// If another agent has it, it has files of something else, or it cannot be written.
    pub fn claim(path: &Path, bounds: Bounds) -> Result<Self, String> {
        let failed = |error: io::Error| {
            format!(
                "the agent's folder {}: {error}; name a folder that can be written with \
                 --agent-folder",
                path.display()
            )
        };
        fs::create_dir_all(path).map_err(failed)?;
        let marker = path.join(LOCK);
        if !marker.exists() && fs::read_dir(path).map_err(failed)?.any(|entry| is_foreign(&entry)) {
            return Err(format!(
                "{} has other files and no {LOCK}; name an empty folder for the agent",
                path.display()
            ));
        }
        let lock = private::open(&marker).map_err(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(format!(
                "{}: another agent runs with this folder; stop it, or name another folder",
                path.display()
            ));
        }
        mark(&marker, &lock, failed)?;
        for name in [STATE, AUDIT, POLICIES, PAGES] {
            fs::create_dir_all(path.join(name)).map_err(failed)?;
        }
        let log = Log::open(path.join(AUDIT), bounds).map_err(failed)?;
        let shared = Shared { path: path.to_owned(), log: Mutex::new(log), _lock: lock };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns a journal in it, for one controller.
    #[must_use]
    pub fn journal(&self) -> FolderJournal {
        FolderJournal { folder: self.clone() }
    }

    /// Keeps a copy of a policy's text for replays, and returns its digest.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_policy(&self, text: &str) -> Result<String, String> {
        let digest = digest(text);
        self.keep(POLICIES, &format!("{digest}.toml"), text, POLICIES_MAX)?;
        Ok(digest)
    }

    /// Keeps the page of evidence for `explain`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_page(&self, evidence: &Evidence, text: &str) -> Result<(), String> {
        self.keep(PAGES, &page_name(evidence)?, text, PAGES_MAX)
    }

    /// Writes a file of a folder with at most `count_max` files, unless it exists.
    fn keep(&self, folder: &str, name: &str, text: &str, count_max: usize) -> Result<(), String> {
        let folder = self.shared.path.join(folder);
        let failed = |error: io::Error| format!("{}/{name}: {error}", folder.display());
        if !folder.join(name).exists() {
            prune(&folder, count_max).map_err(failed)?;
            private::replace(&folder, name, text.as_bytes()).map_err(failed)?;
        }
        Ok(())
    }
}

/// Returns the name of the page of evidence: its digest.
fn page_name(evidence: &Evidence) -> Result<String, String> {
    let text = serde_json::to_string(evidence).map_err(|error| format!("a page: {error}"))?;
    Ok(format!("{}.txt", digest(&text)))
}

fn is_foreign(entry: &io::Result<fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| entry.file_name() != ORDERS)
}

/// Writes the form of the folder into its marker, or compares it.
fn mark(path: &Path, mut file: &File, failed: impl Fn(io::Error) -> String) -> Result<(), String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(1_024).read_to_string(&mut text));
    read.map_err(&failed)?;
    if text.is_empty() {
        file.write_all(format!("{FORMAT}\n").as_bytes()).map_err(&failed)?;
        return file.sync_all().map_err(failed);
    }
    if text.trim_end() != FORMAT {
        let found = text.trim_end();
        return Err(format!(
            "{} begins with {found:?}, and this version reads {FORMAT:?}; use the version that \
             wrote the folder, or name another folder",
            path.display()
        ));
    }
    Ok(())
}

/// Deletes the oldest files of a folder, so that another one has a place among `count_max`.
fn prune(folder: &Path, count_max: usize) -> io::Result<()> {
    let mut copies = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        copies.push((entry.metadata()?.modified()?, entry.path()));
    }
    copies.sort();
    let surplus = (copies.len() + 1).saturating_sub(count_max);
    for (_, path) in copies.into_iter().take(surplus) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// A journal in the folder of an agent.
#[derive(Clone, Debug)]
pub struct FolderJournal {
    folder: Folder,
}

impl Journal for FolderJournal {
    fn load(&mut self, uuid: &str) -> Result<Memory, Fault> {
        let path = state_path(&self.folder.shared.path, uuid).map_err(Fault::Refused)?;
        load(&path, uuid).map_err(Fault::Refused)
    }

    fn store(&mut self, uuid: &str, memory: &Memory) -> Result<(), Fault> {
        let path = state_path(&self.folder.shared.path, uuid).map_err(Fault::Refused)?;
        let failed = |error: String| Fault::Later(format!("{}: {error}", path.display()));
        let file = StateFile { form: STATE_FORM, uuid: uuid.to_owned(), memory: memory.clone() };
        let text = serde_json::to_string(&file).map_err(|error| failed(error.to_string()))?;
        let folder = self.folder.shared.path.join(STATE);
        private::replace(&folder, &format!("{uuid}.json"), text.as_bytes())
            .map_err(|error| failed(error.to_string()))
    }

    fn audit(&mut self, unix_ms: u64, line: &str) -> Result<(), Fault> {
        let mut log = self.folder.shared.log.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.folder.shared.path.join(AUDIT);
        log.append(unix_ms, line)
            .map_err(|error| Fault::Later(format!("{}: {error}", path.display())))
    }

    fn orders(&mut self) -> Result<Orders, Fault> {
        orders(&self.folder.shared.path).map_err(Fault::Refused)
    }
}

/// The file of a file system's memory.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct StateFile {
    form: u32,
    uuid: String,
    memory: Memory,
}

/// The form of a file, before its content is read.
#[derive(Deserialize)]
struct FormOf {
    form: u32,
}

/// Returns the path of a state file. A UUID that could leave the folder is refused.
fn state_path(folder: &Path, uuid: &str) -> Result<PathBuf, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if uuid.is_empty() || uuid.len() > 64 || !uuid.bytes().all(is_plain) {
        return Err(format!(
            "{uuid:?} is no UUID of a file system: 1 to 64 letters, digits, - and _"
        ));
    }
    Ok(folder.join(STATE).join(format!("{uuid}.json")))
}

/// Reads a state file; the default memory if there is none.
fn load(path: &Path, uuid: &str) -> Result<Memory, String> {
    let Some(text) = read(path)? else { return Ok(Memory::default()) };
    let damaged = |reason: String| {
        format!(
            "{}: {reason}; move the file away to begin with an empty state: operations that are \
             open are then found by the tags of their volumes, and marked for deletion",
            path.display()
        )
    };
    let form: FormOf =
        serde_json::from_str(&text).map_err(|error| damaged(format!("it is damaged: {error}")))?;
    if form.form != STATE_FORM {
        return Err(format!(
            "{}: it has the form {}, and this version reads {STATE_FORM}; use the version that \
             wrote it",
            path.display(),
            form.form
        ));
    }
    let file: StateFile =
        serde_json::from_str(&text).map_err(|error| damaged(format!("it is damaged: {error}")))?;
    if file.uuid != uuid {
        return Err(damaged(format!("it is the state of {}", file.uuid)));
    }
    Ok(file.memory)
}

/// Reads a file as a whole; `None` if there is none.
fn read(path: &Path) -> Result<Option<String>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    let length = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(format!(
            "{}: it has more than {FILE_BYTES_MAX} bytes, the maximum; move it away",
            path.display()
        ));
    }
    Ok(Some(text))
}

/// Reads the orders of a folder; none if there is no file.
fn orders(folder: &Path) -> Result<Orders, String> {
    let path = folder.join(ORDERS);
    let Some(text) = read(&path)? else { return Ok(Orders::default()) };
    serde_json::from_str(&text).map_err(|error| {
        format!(
            "{}: {error}; nothing is changed before `evenkeel autopilot release` writes it anew",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests;
