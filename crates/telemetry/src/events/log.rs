//! The events on disk: files of lines. The oldest file is deleted when there are too many.
//!
//! Lines are appended to `events.jsonl`. When it is full it is renamed to its first sequence
//! number. A line is `{"sequence":N,"event":{...}}`; sequence numbers ascend strictly, over all
//! files. Readers see a line once it is durable, so no line disappears again. A partial last line
//! after a crash is cut off at the next start.
//!
//! One thread writes ([`Appender`]), any number read ([`Log`]). No reader waits for the disk of the
//! writer.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::IgnoredAny;
use tracing::warn;

use crate::private;

/// The file that is appended to, in the data folder.
pub const FILE_NAME: &str = "events.jsonl";
/// Size at which the file that is appended to is full, in bytes.
pub const FILE_BYTES: u64 = 8 << 20;
/// Maximum number of files.
pub const FILES_MAX: usize = 8;
/// Maximum of bytes that one call reads.
const READ_BYTES_MAX: u64 = 8 << 20;
/// Maximum number of events that [`Log::some_after`] returns.
const SOME: usize = 1_000;
/// Bytes between two remembered places of a file.
const MARK_BYTES: u64 = 64 << 10;
const BEFORE: &str = "{\"sequence\":";
const BETWEEN: &str = ",\"event\":";

/// Bounds of a log.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of a full file; a single batch of lines may be longer.
    pub file_bytes: u64,
    /// Number of files.
    pub files: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { file_bytes: FILE_BYTES, files: FILES_MAX }
    }
}

/// The durable lines of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Segment {
    name: String,
    /// The sequence number of its first line; that of the next line if it has none.
    first: u64,
    /// The sequence number after its last line.
    next: u64,
    bytes: u64,
    /// Sequence numbers of some lines, with the bytes at which the lines begin.
    marks: Vec<(u64, u64)>,
}

impl Segment {
    fn empty(next: u64) -> Self {
        Self { name: FILE_NAME.into(), first: next, next, ..Self::default() }
    }

    /// Records a line that was appended.
    fn add(&mut self, sequence: u64, bytes: u64) {
        if self.marks.last().is_none_or(|(_, at)| self.bytes >= at + MARK_BYTES) {
            self.marks.push((sequence, self.bytes));
        }
        if self.bytes == 0 {
            self.first = sequence;
        }
        self.next = sequence + 1;
        self.bytes += bytes;
    }

    /// Returns the byte from which to look for the line after this sequence number.
    fn place_after(&self, sequence: u64) -> u64 {
        let index = self.marks.partition_point(|(first, _)| *first <= sequence);
        index.checked_sub(1).and_then(|index| self.marks.get(index)).map_or(0, |(_, byte)| *byte)
    }
}

#[derive(Debug)]
struct State {
    /// Full files, oldest first.
    older: VecDeque<Segment>,
    current: Segment,
    is_stopping: bool,
    /// Whether another process owns the folder now.
    is_left: bool,
}

/// The durable events.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    bounds: Bounds,
    state: Mutex<State>,
    changed: Condvar,
}

/// A stored event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Its number.
    pub sequence: u64,
    /// Its JSON, on one line.
    pub event: String,
}

/// Some events.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Page {
    /// The events that match.
    pub events: Vec<Kept>,
    /// The number of the last event that was read; the next call begins after it.
    pub examined: u64,
}

impl Log {
    /// Opens the log of a data folder. Returns it with its appender. A file that cannot be read is
    /// left as it is, with a warning.
    #[must_use]
    pub fn open(folder: &Path, bounds: Bounds) -> (Arc<Self>, Appender) {
        let mut older: VecDeque<Segment> = VecDeque::new();
        let mut next = 1;
        for name in full_files(folder) {
            private::mend(&folder.join(&name));
            match scan(folder, &name, next) {
                Ok(segment) => {
                    next = segment.next;
                    older.push_back(segment);
                }
                Err(error) => warn!("{}: {error}", folder.join(&name).display()),
            }
        }
        let path = folder.join(FILE_NAME);
        private::mend(&path);
        let (current, file) = match scan(folder, FILE_NAME, next) {
            Ok(current) => {
                let file = private::open(&path).and_then(|file| cut(file, current.bytes));
                (current, file)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (Segment::empty(next), private::open(&path))
            }
            // A file that cannot be read is not overwritten.
            Err(error) => (Segment::empty(next), Err(error)),
        };
        let file = file.inspect_err(|error| warn!("{}: {error}", path.display())).ok();
        let state = Mutex::new(State { older, current, is_stopping: false, is_left: false });
        let log = Self { folder: folder.into(), bounds, state, changed: Condvar::new() };
        let log = Arc::new(log);
        log.delete_oldest(&mut log.state());
        (Arc::clone(&log), Appender { log, first: 1, file })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code between two related changes may panic, so the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the last event; 0 if there was none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.state().current.next - 1
    }

    /// Returns some events after a sequence number, oldest first.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn some_after(&self, after: u64) -> io::Result<Vec<Kept>> {
        self.read(after, SOME, |_| true).map(|page| page.events)
    }

    /// Returns the number of the oldest stored event; that of the next event if none is stored.
    #[must_use]
    pub fn oldest(&self) -> u64 {
        let state = self.state();
        state.older.front().unwrap_or(&state.current).first
    }

    /// Returns the last event.
    #[must_use]
    pub fn newest(&self) -> Option<Kept> {
        let last = self.last().checked_sub(1)?;
        self.read(last, 1, |_| true).ok()?.events.pop()
    }

    /// Returns at most `max` events after a sequence number that are `wanted`, oldest first. Reads
    /// a bounded number of bytes, so it may return fewer, or none, although more follow.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(
        &self,
        after: u64,
        max: usize,
        mut wanted: impl FnMut(&str) -> bool,
    ) -> io::Result<Page> {
        let mut page = Page { events: Vec::new(), examined: after };
        let mut left = READ_BYTES_MAX;
        while page.events.len() < max && left > 0 {
            let Some((mut lines, next)) = self.lines_after(page.examined)? else { break };
            let mut line = String::new();
            while page.events.len() < max && left > 0 {
                line.clear();
                let bytes = lines.read_line(&mut line)?;
                if bytes == 0 {
                    // Skips also lines that are missing at the file's end because another program
                    // cut it.
                    page.examined = page.examined.max(next - 1);
                    break;
                }
                left = left.saturating_sub(bytes as u64);
                let Some((sequence, event)) = parsed(&line) else { continue };
                if sequence <= page.examined {
                    continue;
                }
                page.examined = sequence;
                if wanted(event) {
                    page.events.push(Kept { sequence, event: event.to_owned() });
                }
            }
        }
        Ok(page)
    }

    /// Returns the lines of the first file that has a line after a sequence number, and the number
    /// after its last line.
    fn lines_after(&self, after: u64) -> io::Result<Option<(impl BufRead, u64)>> {
        let state = self.state();
        let is_it = |it: &&Segment| it.next > after.saturating_add(1) && it.bytes > 0;
        let segment = state.older.iter().find(is_it);
        let Some(segment) = segment.or_else(|| Some(&state.current).filter(is_it)) else {
            return Ok(None);
        };
        // The file is opened under the lock, so it is not renamed meanwhile.
        let mut file = File::open(self.folder.join(&segment.name))?;
        let place = segment.place_after(after);
        let bytes = segment.bytes - place;
        let next = segment.next;
        drop(state);
        file.seek(SeekFrom::Start(place))?;
        Ok(Some((BufReader::new(file.take(bytes)), next)))
    }

    /// Waits until there is an event after a sequence number or the server stops, for at most
    /// `longest`. Returns whether the server stops.
    pub fn wait(&self, after: u64, longest: Duration) -> bool {
        let nothing =
            |state: &mut State| !state.is_stopping && state.current.next <= after.saturating_add(1);
        let state = self.changed.wait_timeout_while(self.state(), longest, nothing);
        state.unwrap_or_else(PoisonError::into_inner).0.is_stopping
    }

    /// Waits for `longest`, or until the server stops. Returns whether it stops.
    pub fn pause(&self, longest: Duration) -> bool {
        let goes_on = |state: &mut State| !state.is_stopping;
        let state = self.changed.wait_timeout_while(self.state(), longest, goes_on);
        state.unwrap_or_else(PoisonError::into_inner).0.is_stopping
    }

    /// Ends all waits.
    pub fn stop(&self) {
        self.state().is_stopping = true;
        self.changed.notify_all();
    }

    /// Leaves the folder to the next process: webhook threads that still post write nothing there.
    pub fn leave(&self) {
        self.state().is_left = true;
    }

    /// Returns whether another process owns the folder now.
    pub(super) fn is_left(&self) -> bool {
        self.state().is_left
    }

    fn delete_oldest(&self, state: &mut State) {
        while state.older.len() + 1 > self.bounds.files {
            let Some(oldest) = state.older.pop_front() else { return };
            if let Err(error) = fs::remove_file(self.folder.join(&oldest.name)) {
                warn!("{}: {error}", self.folder.join(&oldest.name).display());
            }
        }
    }
}

/// Appends to a log.
#[derive(Debug)]
pub struct Appender {
    log: Arc<Log>,
    /// The least number of an event of this server.
    first: u64,
    /// `None` while no file is open.
    file: Option<File>,
}

impl Appender {
    /// Appends events, all or none of them. They are durable and visible when this returns.
    ///
    /// # Errors
    /// They could not be written. A later call may succeed.
    pub fn append(&mut self, events: &[String]) -> io::Result<()> {
        let next = self.log.state().current.next.max(self.first);
        self.write((next..).zip(events.iter().map(String::as_str)))
    }

    /// Appends events with the numbers that another server gave them. Those up to the last one here
    /// are skipped.
    ///
    /// # Errors
    /// See [`Self::append`].
    pub fn append_kept(&mut self, kept: &[Kept]) -> io::Result<()> {
        let mut last = self.log.last();
        let mut is_new = |it: &&Kept| {
            let is_new = it.sequence > last && it.sequence < u64::MAX;
            last = last.max(it.sequence);
            is_new
        };
        let new: Vec<&Kept> = kept.iter().filter(&mut is_new).collect();
        self.write(new.iter().map(|it| (it.sequence, it.event.as_str())))
    }

    /// Sets the least number of the events of this server.
    pub const fn begin_with(&mut self, first: u64) {
        self.first = first;
    }

    /// Appends lines, whose numbers ascend and are not below the next one.
    fn write<'a>(
        &mut self,
        events: impl Iterator<Item = (u64, &'a str)> + Clone,
    ) -> io::Result<()> {
        if events.clone().next().is_none() {
            return Ok(());
        }
        let (mut current, is_full) = {
            let state = self.log.state();
            let bytes: u64 = events.clone().map(|(_, event)| event.len() as u64 + 40).sum();
            let is_full = state.current.bytes + bytes > self.log.bounds.file_bytes;
            (state.current.clone(), is_full && state.current.bytes > 0)
        };
        if is_full {
            current = self.rotate()?;
        }
        let file = match self.file.take() {
            Some(file) => file,
            None => cut(private::open(&self.log.folder.join(FILE_NAME))?, current.bytes)?,
        };
        let mut text = String::new();
        let place = current.bytes;
        for (sequence, event) in events {
            let from = text.len();
            text.push_str(&format!("{BEFORE}{sequence}{BETWEEN}{event}}}\n"));
            current.add(sequence, (text.len() - from) as u64);
        }
        // The rest of a failed write is after the visible lines, and the next call overwrites it.
        let written = file.write_all_at(text.as_bytes(), place).and_then(|()| file.sync_data());
        if let Err(error) = written {
            self.file = cut(file, place).ok();
            return Err(error);
        }
        self.file = Some(file);
        self.log.state().current = current;
        self.log.changed.notify_all();
        Ok(())
    }

    /// Begins a new file.
    fn rotate(&mut self) -> io::Result<Segment> {
        let folder = &self.log.folder;
        let mut state = self.log.state();
        let name = format!("events.{:020}.jsonl", state.current.first);
        fs::rename(folder.join(FILE_NAME), folder.join(&name))?;
        self.file = None;
        let new = Segment::empty(state.current.next);
        let full = std::mem::replace(&mut state.current, new.clone());
        state.older.push_back(Segment { name, ..full });
        self.log.delete_oldest(&mut state);
        drop(state);
        // The names are durable before a line is in the new file.
        File::open(folder)?.sync_all()?;
        Ok(new)
    }
}

/// Returns the names of full files, oldest first.
fn full_files(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    let is_full = |name: &String| {
        let number = name.strip_prefix("events.").and_then(|rest| rest.strip_suffix(".jsonl"));
        number.is_some_and(|number| {
            number.len() == 20 && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(is_full).collect();
    names.sort();
    names
}

/// Returns the complete lines at the beginning of a file that continue the ones before `next`.
fn scan(folder: &Path, name: &str, next: u64) -> io::Result<Segment> {
    let mut lines = BufReader::new(File::open(folder.join(name))?);
    let mut segment = Segment { name: name.into(), ..Segment::empty(next) };
    let mut line = Vec::new();
    loop {
        line.clear();
        // A longer line was not written by this program.
        let bytes = (&mut lines).take(2 * FILE_BYTES).read_until(b'\n', &mut line)?;
        let text = std::str::from_utf8(&line).ok();
        let Some((sequence, event)) = text.and_then(parsed) else { break };
        let is_json = serde_json::from_str::<IgnoredAny>(event).is_ok();
        if !is_json || sequence < segment.next {
            break;
        }
        segment.add(sequence, bytes as u64);
    }
    Ok(segment)
}

/// Cuts off the bytes after the last complete line.
fn cut(file: File, bytes: u64) -> io::Result<File> {
    if file.metadata()?.len() > bytes {
        file.set_len(bytes)?;
    }
    Ok(file)
}

/// Returns the sequence number and the event of a complete line.
fn parsed(line: &str) -> Option<(u64, &str)> {
    let rest = line.strip_prefix(BEFORE)?.strip_suffix("}\n")?;
    let (sequence, event) = rest.split_once(BETWEEN)?;
    let is_plain = sequence.bytes().all(|byte| byte.is_ascii_digit());
    let sequence = sequence.parse().ok().filter(|sequence| is_plain && *sequence < u64::MAX)?;
    Some((sequence, event))
}

#[cfg(test)]
mod tests;
