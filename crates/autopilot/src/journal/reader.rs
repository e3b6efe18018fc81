//! The folder of an agent, read by other programs, also while the agent runs.

use super::{
    AUDIT, FORMAT, LOCK, ORDERS, PAGES, POLICIES, STATE, load, log, orders, page_name, read,
};
use crate::audit::Done;
use crate::{Memory, Orders};
use evenkeel_planner::autopilot::Evidence;
use evenkeel_telemetry::private;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The longest line of an audit that is read, in bytes. A longer one is skipped.
const LINE_BYTES_MAX: usize = 8 << 20;
/// The most results of a decision that are read.
const RESULTS_MAX: usize = 10_000;
/// Bytes of the newest files that are searched for the last decision.
const TAIL_BYTES: u64 = 32 << 20;

/// The folder of an agent, to read and to leave orders in.
#[derive(Clone, Debug)]
pub struct Reader {
    path: PathBuf,
}

/// A decision in an audit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its line.
    pub line: String,
    /// The steps that were executed after it and those of its operations, in the order of time.
    pub results: Vec<Done>,
}

impl Reader {
    /// Opens the folder of an agent.
    ///
    /// # Errors
    /// If it is none.
    pub fn open(path: &Path) -> Result<Self, String> {
        let marker = path.join(LOCK);
        let Some(text) = read(&marker)? else {
            return Err(format!(
                "{}: no agent has used this folder; name the one that `evenkeel agent` runs with \
                 by --agent-folder",
                path.display()
            ));
        };
        if text.trim_end() != FORMAT {
            return Err(format!(
                "{} does not begin with {FORMAT:?}; use the version that wrote the folder",
                marker.display()
            ));
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Returns whether an agent runs with the folder.
    ///
    /// # Errors
    /// If the lock cannot be opened.
    pub fn is_running(&self) -> Result<bool, String> {
        let path = self.path.join(LOCK);
        let file = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Returns the memory of each file system, by UUID.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn memories(&self) -> Result<Vec<(String, Memory)>, String> {
        let folder = self.path.join(STATE);
        let failed = |error: io::Error| format!("{}: {error}", folder.display());
        let mut uuids = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if let Some(uuid) = name.strip_suffix(".json") {
                uuids.push(uuid.to_owned());
            }
        }
        uuids.sort();
        let read = |uuid: String| {
            let memory = load(&folder.join(format!("{uuid}.json")), &uuid)?;
            Ok((uuid, memory))
        };
        uuids.into_iter().map(read).collect()
    }

    /// Returns the copy of a policy's text.
    ///
    /// # Errors
    /// If there is none.
    pub fn policy(&self, digest: &str) -> Result<String, String> {
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let path = self.path.join(POLICIES).join(format!("{digest}.toml"));
        let text = if is_digest { read(&path)? } else { None };
        text.ok_or_else(|| format!("{}: the policy is not kept", path.display()))
    }

    /// Returns the page of evidence; `None` if it is not kept.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn page(&self, evidence: &Evidence) -> Result<Option<String>, String> {
        read(&self.path.join(PAGES).join(page_name(evidence)?))
    }

    /// Returns the line of the last decision about a file system; `None` if the newest
    /// 32 MiB of the audit have none.
    ///
    /// # Errors
    /// If the audit cannot be read.
    pub fn last_decision(&self, uuid: &str) -> Result<Option<String>, String> {
        let short: String = uuid.chars().take(8).collect();
        let begin = format!("{{\"form\":1,\"id\":\"{short}-");
        let mut left = TAIL_BYTES;
        for name in self.audit_names()?.iter().rev() {
            if left == 0 {
                break;
            }
            let (file, bytes) = self.tail(name, left)?;
            left -= bytes.min(left);
            let mut last = None;
            each_line(file, |line| {
                if line.starts_with(&begin) {
                    last = Some(line.to_owned());
                }
            })
            .map_err(|error| format!("{name}: {error}"))?;
            if last.is_some() {
                return Ok(last);
            }
        }
        Ok(None)
    }

    /// Opens a file of the audit so that at most `bytes` are left to read; returns their number.
    fn tail(&self, name: &str, bytes: u64) -> Result<(File, u64), String> {
        let path = self.path.join(AUDIT).join(name);
        let open = || -> io::Result<(File, u64)> {
            let mut file = File::open(&path)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
            Ok((file, length.min(bytes)))
        };
        open().map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns a decision with its results; `None` if the audit has none of this id.
    ///
    /// # Errors
    /// If the audit cannot be read.
    pub fn find(&self, id: &str) -> Result<Option<Found>, String> {
        let begin = format!("{{\"form\":1,\"id\":\"{id}\",");
        let mut found: Option<Found> = None;
        for name in self.audit_names()? {
            let path = self.path.join(AUDIT).join(&name);
            let failed = |error: io::Error| format!("{}: {error}", path.display());
            let file = File::open(&path).map_err(failed)?;
            each_line(file, |line| {
                if line.starts_with(&begin) {
                    found = Some(Found { line: line.to_owned(), results: Vec::new() });
                } else if let Some(found) = &mut found
                    && line.starts_with("{\"form\":1,\"after\":")
                    && found.results.len() < RESULTS_MAX
                {
                    found.results.extend(result(line, id));
                }
            })
            .map_err(failed)?;
        }
        Ok(found)
    }

    fn audit_names(&self) -> Result<Vec<String>, String> {
        let folder = self.path.join(AUDIT);
        log::names(&folder).map_err(|error| format!("{}: {error}", folder.display()))
    }

    /// Returns the orders that are in force.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn orders(&self) -> Result<Orders, String> {
        orders(&self.path)
    }

    /// Replaces the orders. The agent reads them before its next decision.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn order(&self, orders: &Orders) -> Result<(), String> {
        let failed = |error: String| format!("{}/{ORDERS}: {error}", self.path.display());
        let text = serde_json::to_string(orders).map_err(|error| failed(error.to_string()))?;
        private::replace(&self.path, ORDERS, text.as_bytes())
            .map_err(|error| failed(error.to_string()))
    }
}

/// Returns the steps of a line that belong to a decision: those after it, and those of operations
/// that it opened.
fn result(line: &str, id: &str) -> Option<Done> {
    let mut done: Done = serde_json::from_str(line).ok()?;
    if done.after != id {
        let is_own = |operation: &str| {
            operation
                .strip_prefix(id)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
        };
        done.steps.retain(|step| is_own(&step.operation));
    }
    (!done.steps.is_empty()).then_some(done)
}

/// Calls a function with each line that has an end and is not too long.
fn each_line(file: File, mut visit: impl FnMut(&str)) -> io::Result<()> {
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = LINE_BYTES_MAX as u64;
        reader.by_ref().take(limit).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            // The end of the file within a line, or a line that is too long.
            continue;
        }
        line.pop();
        if let Ok(text) = std::str::from_utf8(&line) {
            visit(text);
        }
    }
}
