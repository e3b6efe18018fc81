//! The audit: one line for each call of the API, in files of a day. Each line has the hash of the
//! previous line, so [`verify`] finds a line that is changed or removed later.
//!
//! A line is `{"sequence":N,"previous":"HASH","record":{...}}`: HASH is the SHA-256 of the whole
//! line before, in hexadecimal, also if that is in an earlier file; of the first line it is zeros.
//! Files are `audit/YYYY-MM-DD.NNNN.jsonl`, by UTC; a day has several if it has many calls. They
//! are only appended to. Each line is passed to the kernel before its call is answered, so it
//! survives `kill -9`. A part of a line that a crash of the machine left at the end is cut off.
//!
//! Room for further lines is reserved on the disk in advance. If none can be reserved,
//! [`Audit::check_room`] fails, and the server refuses changes. Lines that do not fit are counted,
//! and the next line that fits reports their number. The file `lost` has the number, and was
//! written before, so it needs no room, and survives `kill -9`.
//!
//! Before each line the server checks that its file is still at its path. If the file was removed
//! or replaced, no line is written and changes are refused: lines in a removed file are lost, and a
//! new chain would hide that.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::Date;
use evenkeel_wire::aws::sigv4::sha256_hex;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tracing::{error, warn};

use crate::metrics::AuditNow;
use crate::private;

/// The folder of the files, in the data folder.
pub const FOLDER: &str = "audit";
/// Size at which a file is full, in bytes.
const FILE_BYTES: u64 = 16 << 20;
/// Maximum of bytes of all files; beyond it the oldest is deleted.
const BYTES_MAX: u64 = 4 << 30;
/// Age from which the deletion of a file is expected, in days: LookupEvents finds no older records.
const FOUND_DAYS: u64 = 90;
/// Bytes that are reserved at a time, and the number of reserved bytes below which more are
/// reserved. On a full disk these remain, for calls that read or free space.
const RESERVED_BYTES: u64 = 2 << 20;
const RESERVED_MIN: u64 = 512 << 10;
/// Maximum of bytes that one search reads.
const READ_BYTES_MAX: u64 = 64 << 20;
/// The file with the number of lost lines, and the number of the line that is to report them: two
/// numbers of 20 digits.
const LOST_FILE: &str = "lost";
const LOST_DIGITS: usize = 20;
const DAY_MS: u64 = 24 * 3_600_000;
/// The hash before the first line.
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const BEFORE: &str = "{\"sequence\":";
const PREVIOUS: &str = ",\"previous\":\"";
const RECORD: &str = "\",\"record\":";
/// The beginning of a record that reports lost lines, before their number.
const GAP: &str = "{\"eventType\":\"Gap\",\"lostRecords\":";

/// A line, taken apart.
struct Line<'a> {
    sequence: u64,
    previous: &'a str,
    record: &'a str,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (sequence, rest) = text.strip_prefix(BEFORE)?.split_once(PREVIOUS)?;
        let (previous, rest) = rest.split_once(RECORD)?;
        let record = rest.strip_suffix('}')?;
        Some(Self { sequence: sequence.parse().ok()?, previous, record })
    }

    /// Returns the number of lines that were lost before it.
    fn lost(&self) -> u64 {
        let number = self.record.strip_prefix(GAP).and_then(|rest| rest.split_once(','));
        number.and_then(|(number, _)| number.parse().ok()).unwrap_or_default()
    }
}

/// The place at which the next line is appended.
#[derive(Debug, Default)]
struct End {
    file: Option<File>,
    name: String,
    /// The file's device and inode; `None` before the first file.
    place: Option<(u64, u64)>,
    /// Bytes of the file, and those that are reserved for it.
    bytes: u64,
    reserved: u64,
    /// The number of the next line.
    next: u64,
    /// The hash of the last line.
    hash: String,
    /// Number of lines that could not be written since the last written line.
    lost: u64,
    /// The file that has this number, too.
    lost_file: Option<File>,
    problem: Option<String>,
}

/// The audit of a server.
#[derive(Debug)]
pub struct Audit {
    folder: PathBuf,
    end: Mutex<End>,
    /// Number of lines that could not be written since the start.
    lost: AtomicU64,
    /// Number of files that were deleted for the size before their age since the start.
    removed: AtomicU64,
}

/// A record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The number of its line.
    pub sequence: u64,
    /// Its JSON.
    pub record: String,
}

/// Records, newest first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Page {
    /// The records.
    pub records: Vec<Found>,
    /// The next call continues below this number; `None` if there are no more.
    pub below: Option<u64>,
}

/// Returns the names of the files of a folder, oldest first.
fn names(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if name.ends_with(".jsonl") {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Returns the beginning of the names of the files of a day.
fn day_of(now: UnixMs) -> String {
    Date::of_unix_day(now.0 / DAY_MS).to_string()
}

impl Audit {
    /// Opens the audit of a data folder. If a file cannot be read or written, changes are refused
    /// until it can.
    #[must_use]
    pub fn open(data_dir: &Path) -> Self {
        let folder = data_dir.join(FOLDER);
        let end = Self::last(&folder).unwrap_or_else(|error| {
            let problem = format!("{}: {error}", folder.display());
            error!("no call is audited, and changes are refused: {problem}");
            End { problem: Some(problem), ..End::default() }
        });
        Self { folder, end: Mutex::new(end), lost: AtomicU64::new(0), removed: AtomicU64::new(0) }
    }

    /// Returns whether it has no line yet.
    pub fn is_new(&self) -> bool {
        self.end().next == 1
    }

    /// Returns the facts for metrics.
    pub fn facts(&self, now: UnixMs) -> AuditNow {
        AuditNow {
            is_failing: self.check_room(now).is_err(),
            lost: self.lost.load(Ordering::Relaxed),
            removed_files: self.removed.load(Ordering::Relaxed),
        }
    }

    fn last(folder: &Path) -> io::Result<End> {
        create(folder)?;
        let mut end = End { next: 1, hash: NO_HASH.into(), ..End::default() };
        // The last file may have no whole line.
        for name in names(folder)?.into_iter().rev() {
            let path = folder.join(&name);
            private::mend(&path);
            let mut whole = 0;
            let mut text = String::new();
            let mut lines = BufReader::new(File::open(&path)?);
            let no_text = |error: io::Error| {
                let file = path.display();
                io::Error::new(error.kind(), format!("{file}: {error}; move the file away"))
            };
            while lines.read_line(&mut text).map_err(no_text)? > 0 && text.ends_with('\n') {
                let line = text.trim_end_matches('\n');
                if let Some(parsed) = Line::parse(line) {
                    end.next = parsed.sequence.checked_add(1).ok_or_else(|| {
                        let file = path.display();
                        io::Error::other(format!(
                            "{file}: the line at byte {whole} has no valid number; move the \
                             file away"
                        ))
                    })?;
                    end.hash = sha256_hex(line.as_bytes());
                }
                whole += text.len() as u64;
                text.clear();
            }
            if !text.is_empty() {
                let file = private::open(&path)?;
                file.set_len(whole)?;
                warn!("{}: a part of a line at its end was cut off", path.display());
            }
            if end.name.is_empty() {
                end.bytes = whole;
                end.place = Some(place(&path.metadata()?));
                end.name = name;
            }
            if end.next > 1 {
                break;
            }
        }
        end.open_lost(folder);
        Ok(end)
    }

    fn end(&self) -> MutexGuard<'_, End> {
        // Nothing between two related changes panics.
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the line of a change will find room, in a file at its path.
    ///
    /// # Errors
    /// It might not; the text has the reason. The first one is also in the log.
    pub fn check_room(&self, now: UnixMs) -> Result<(), String> {
        let mut end = self.end();
        let prepared = self.prepare(&mut end, now).and_then(|()| end.reserve());
        prepared.map_err(|error| self.refused(&mut end, &error))
    }

    /// Checks that the last file is still at its path, whether or not there is room for a line.
    ///
    /// # Errors
    /// It was removed or replaced; the text says so. The first one is also in the log.
    pub fn check_file(&self) -> Result<(), String> {
        let mut end = self.end();
        self.check_place(&end).map_err(|error| self.refused(&mut end, &error))
    }

    /// Returns the text for a refused change. The first one is logged.
    fn refused(&self, end: &mut End, error: &io::Error) -> String {
        let path = self.folder.display();
        let is_full = error.kind() == io::ErrorKind::StorageFull;
        let remedy = if is_full { "; free space on its disk" } else { "" };
        let text = format!("the audit cannot be written: {path}: {error}{remedy}");
        if end.problem.is_none() {
            error!("changes are refused: {text}");
            end.problem = Some(text.clone());
        }
        text
    }

    /// Checks that the last file is still the one at its path.
    fn check_place(&self, end: &End) -> io::Result<()> {
        let Some(wanted) = end.place else { return Ok(()) };
        let found = match fs::metadata(self.folder.join(&end.name)) {
            Ok(metadata) => Some(place(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if found == Some(wanted) {
            return Ok(());
        }
        let name = &end.name;
        Err(io::Error::other(format!(
            "{name} was removed or replaced while the server ran; move it back, or restart the \
             server, which continues the files that are there or begins anew"
        )))
    }

    /// Appends a record, JSON on one line. It is with the kernel when this returns.
    pub fn append(&self, now: UnixMs, record: &str) {
        let mut end = self.end();
        let appended = self.prepare(&mut end, now).and_then(|()| end.append(record));
        match appended {
            Ok(()) => end.problem = None,
            Err(error) => {
                if end.problem.is_none() {
                    error!("calls are not audited: {}: {error}", self.folder.display());
                }
                end.problem = Some(error.to_string());
                self.lose(&mut end);
                // The file may have a part of the line.
                end.file = None;
            }
        }
    }

    /// Counts the record of a change that was refused because it might find no room.
    pub fn lose_refused(&self) {
        self.lose(&mut self.end());
    }

    /// Counts a line that is not written.
    fn lose(&self, end: &mut End) {
        end.lost = end.lost.saturating_add(1);
        self.lost.fetch_add(1, Ordering::Relaxed);
        end.write_lost();
    }

    /// Opens the file for the next line.
    fn prepare(&self, end: &mut End, now: UnixMs) -> io::Result<()> {
        if end.next == 0 {
            let last = Self::last(&self.folder)?;
            *end = End { lost: end.lost.saturating_add(last.lost), ..last };
        }
        self.check_place(end)?;
        let day = day_of(now);
        // A clock that is set back appends to the last day.
        let is_of_day = end.name.get(..day.len()).is_some_and(|begin| begin >= day.as_str());
        if is_of_day && end.bytes < FILE_BYTES && end.file.is_some() {
            return Ok(());
        }
        let (name, bytes) = if !is_of_day {
            (format!("{day}.0001.jsonl"), 0)
        } else if end.bytes >= FILE_BYTES {
            let (day, rest) = end.name.split_once('.').unwrap_or((&day, "0"));
            let number: u32 = rest.get(..4).and_then(|number| number.parse().ok()).unwrap_or(0);
            (format!("{day}.{:04}.jsonl", number + 1), 0)
        } else {
            (end.name.clone(), end.bytes)
        };
        if end.place.is_none() {
            create(&self.folder)?;
        }
        let path = self.folder.join(&name);
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).mode(0o600).open(&path)?;
        let metadata = file.metadata()?;
        // Of a failed write a part may be there. A cut would also free the reserved room.
        if metadata.len() != bytes {
            file.set_len(bytes)?;
        }
        end.place = Some(place(&metadata));
        (end.name, end.bytes, end.reserved) = (name, bytes, bytes);
        end.file = Some(file);
        self.delete_oldest(&end.name, now)
    }

    /// Deletes the oldest files while all have too many bytes. A warning names one that is deleted
    /// although LookupEvents would still find its records.
    fn delete_oldest(&self, current: &str, now: UnixMs) -> io::Result<()> {
        let names = names(&self.folder)?;
        let size =
            |name: &String| fs::metadata(self.folder.join(name)).map_or(0, |found| found.len());
        let oldest = day_of(UnixMs(now.0.saturating_sub(FOUND_DAYS * DAY_MS)));
        let mut total: u64 = names.iter().map(size).sum();
        for name in names.iter().filter(|name| *name != current) {
            if total <= BYTES_MAX {
                break;
            }
            total = total.saturating_sub(size(name));
            let path = self.folder.join(name);
            fs::remove_file(&path)?;
            if name.as_str() >= oldest.as_str() {
                self.removed.fetch_add(1, Ordering::Relaxed);
                warn!(
                    "{}: was deleted before it was {FOUND_DAYS} days old, because all files of \
                     the audit may have {} GiB together; copy them elsewhere in time, and see \
                     which client makes most calls",
                    path.display(),
                    BYTES_MAX >> 30
                );
            }
        }
        Ok(())
    }

    /// Returns at most `max` records whose lines have numbers below `below` and that are `wanted`,
    /// newest first. Reads a bounded number of bytes, so it may return fewer although more follow.
    /// Ends when `is_over` is true of a record. Leaves out lines that are no text; a warning names
    /// their file.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn find(
        &self,
        below: u64,
        max: usize,
        mut wanted: impl FnMut(&str) -> bool,
        is_over: impl Fn(&str) -> bool,
    ) -> io::Result<Page> {
        let mut page = Page::default();
        let mut left = READ_BYTES_MAX;
        let last = self.end().next;
        for name in names(&self.folder)?.iter().rev() {
            let bytes = fs::read(self.folder.join(name))?;
            left = left.saturating_sub(bytes.len() as u64);
            let mut has_no_text = false;
            let lines = bytes.rsplit(|byte| *byte == b'\n').filter_map(|line| {
                let line = std::str::from_utf8(line);
                has_no_text |= line.is_err();
                Line::parse(line.ok()?)
            });
            for line in lines {
                let sequence = line.sequence;
                // A line that is just being written is not shown.
                if sequence >= below.min(last) {
                    continue;
                }
                if is_over(line.record) {
                    return Ok(page);
                }
                if page.records.len() == max {
                    page.below = Some(sequence + 1);
                    return Ok(page);
                }
                if wanted(line.record) {
                    page.records.push(Found { sequence, record: line.record.to_owned() });
                }
                if left == 0 && sequence > 1 {
                    page.below = Some(sequence);
                }
            }
            if has_no_text {
                let file = self.folder.join(name);
                warn!("{}: lines that are no text are left out of a search", file.display());
            }
            if left == 0 {
                return Ok(page);
            }
        }
        page.below = None;
        Ok(page)
    }
}

impl End {
    fn reserve(&mut self) -> io::Result<()> {
        if self.bytes + RESERVED_MIN <= self.reserved {
            return Ok(());
        }
        let Some(file) = &self.file else { return Ok(()) };
        match fallocate(file, FallocateFlags::KEEP_SIZE, self.bytes, RESERVED_BYTES) {
            // File systems without this call: a write that fails is the first sign.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.reserved = self.bytes + RESERVED_BYTES;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn append(&mut self, record: &str) -> io::Result<()> {
        let Self { next, hash, lost, .. } = self;
        let line = if *lost == 0 {
            format!("{BEFORE}{next}{PREVIOUS}{hash}{RECORD}{record}}}\n")
        } else {
            let gap = format!("{GAP}{lost},\"then\":{record}}}");
            format!("{BEFORE}{next}{PREVIOUS}{hash}{RECORD}{gap}}}\n")
        };
        let Some(file) = &mut self.file else { return Err(io::Error::other("no file is open")) };
        if let Err(error) = file.write_all(line.as_bytes()) {
            // A part of the line may be there. If the cut fails, the next `prepare` repeats it.
            return Err(file.set_len(self.bytes).err().unwrap_or(error));
        }
        self.bytes += line.len() as u64;
        self.hash = sha256_hex(line.trim_end_matches('\n').as_bytes());
        self.next += 1;
        // What the file has is of an earlier line now.
        self.lost = 0;
        Ok(())
    }

    /// Opens the file with the number of lost lines, and reads it if the next line is the one that
    /// is to report them.
    fn open_lost(&mut self, folder: &Path) {
        let path = folder.join(LOST_FILE);
        match open_lost(&path) {
            Ok((file, text)) => {
                let (lost, next) = lost_numbers(&text).unwrap_or_default();
                if next == self.next {
                    self.lost = lost;
                }
                self.lost_file = Some(file);
            }
            Err(error) => {
                let path = path.display();
                warn!("a crash may forget the number of calls without a record: {path}: {error}");
            }
        }
    }

    /// Writes the number of lost lines to its file.
    fn write_lost(&self) {
        let Some(file) = &self.lost_file else { return };
        let Self { lost, next, .. } = self;
        if let Err(error) = file.write_all_at(format!("{lost:020}{next:020}").as_bytes(), 0) {
            warn!("a crash may forget the number of calls without a record: {error}");
        }
    }
}

/// Creates the folder if it is missing.
fn create(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Returns the device and the inode of a file.
fn place(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Opens the file with the number of lost lines, and returns its content. A new one takes its room
/// on the disk now.
fn open_lost(path: &Path) -> io::Result<(File, [u8; 2 * LOST_DIGITS])> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let file = options.open(path)?;
    let mut text = [b'0'; 2 * LOST_DIGITS];
    if file.metadata()?.len() == text.len() as u64 {
        file.read_exact_at(&mut text, 0)?;
    } else {
        file.write_all_at(&text, 0)?;
    }
    Ok((file, text))
}

/// An audit whose lines are all as they were written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// Number of files, and of lines.
    pub files: usize,
    /// Number of lines.
    pub lines: u64,
    /// The numbers of the first line and the last.
    pub first: u64,
    /// The number of the last line; 0 without any.
    pub last: u64,
    /// Number of lines that could not be written: those that lines report, and those that the file
    /// `lost` has for the next line.
    pub lost: u64,
    /// The hash of the last line. Kept elsewhere, it proves later that no line was cut off.
    pub hash: String,
}

/// Why an audit is not as it was written.
#[derive(Debug)]
pub enum Fault {
    /// A file cannot be read.
    Io(PathBuf, io::Error),
    /// A line is not as it was written: file, number of the line in it, and the reason.
    Line(PathBuf, u64, String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Line(path, line, why) => write!(f, "{}: line {line}: {why}", path.display()),
        }
    }
}

impl std::error::Error for Fault {}

/// Checks that the lines of an audit follow each other and have the hashes of those before. Passes
/// the hash of each line to `seen`.
///
/// # Errors
/// See [`Fault`]; the first one.
pub fn verify(data_dir: &Path, mut seen: impl FnMut(&str)) -> Result<Verified, Fault> {
    let folder = data_dir.join(FOLDER);
    let io_at = |path: &Path| {
        let path = path.to_owned();
        move |error| Fault::Io(path, error)
    };
    let names = names(&folder).map_err(io_at(&folder))?;
    let files = names.len();
    let mut found = Verified { files, lines: 0, first: 0, last: 0, lost: 0, hash: NO_HASH.into() };
    for name in &names {
        let path = folder.join(name);
        let mut file = BufReader::new(File::open(&path).map_err(io_at(&path))?);
        let mut bytes = Vec::new();
        for number in 1.. {
            bytes.clear();
            if file.read_until(b'\n', &mut bytes).map_err(io_at(&path))? == 0 {
                break;
            }
            let hash = found.check(&bytes).map_err(|why| Fault::Line(path.clone(), number, why))?;
            seen(hash);
        }
    }
    found.lost = found.lost.saturating_add(pending(&folder.join(LOST_FILE), found.last));
    Ok(found)
}

impl Verified {
    /// Checks the next line, and returns its hash.
    ///
    /// # Errors
    /// The reason for which it is not as it was written.
    fn check(&mut self, bytes: &[u8]) -> Result<&str, String> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|error| {
            format!("it was changed: its byte {} is no text", error.valid_up_to() + 1)
        })?;
        let line = Line::parse(text).ok_or("it is no record")?;
        // Earlier files may have been deleted because of their size.
        let is_first = self.lines == 0;
        if is_first && line.sequence > 1 {
            self.hash = line.previous.to_owned();
            self.last = line.sequence.saturating_sub(1);
        }
        if self.last.checked_add(1) != Some(line.sequence) {
            let wanted = u128::from(self.last) + 1;
            let text = format!("its number is {}, not {wanted}", line.sequence);
            return Err(format!("{text}: lines are missing or in another order"));
        }
        if line.previous != self.hash {
            return Err("the line before it was changed".into());
        }
        if is_first {
            self.first = line.sequence;
        }
        self.lines += 1;
        self.last = line.sequence;
        self.lost = self.lost.saturating_add(line.lost());
        self.hash = sha256_hex(bytes);
        Ok(&self.hash)
    }
}

/// Returns the number of lost lines that the line after `last` is to report. Without the file, or
/// if it is of an earlier line, there are none.
fn pending(path: &Path, last: u64) -> u64 {
    let text = fs::read(path).unwrap_or_default();
    let (lost, next) = lost_numbers(&text).unwrap_or_default();
    if last.checked_add(1) == Some(next) { lost } else { 0 }
}

/// Reads the two numbers of the file of lost lines.
fn lost_numbers(text: &[u8]) -> Option<(u64, u64)> {
    let (lost, next) = std::str::from_utf8(text).ok()?.split_at_checked(LOST_DIGITS)?;
    Some((lost.parse().ok()?, next.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: UnixMs = UnixMs(1_795_996_800_000);

    fn verified(folder: &tempfile::TempDir) -> Result<Verified, Fault> {
        verify(folder.path(), |_| ())
    }

    fn record(number: u64) -> String {
        format!("{{\"number\":{number}}}")
    }

    fn numbers(page: &Page) -> Vec<String> {
        page.records.iter().map(|found| found.record.clone()).collect()
    }

    #[test]
    fn lines_are_chained_over_days_and_restarts_and_found_newest_first() {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=6 {
            // Each line by a new process, two on each day.
            let audit = Audit::open(folder.path());
            let now = DAY.plus_ms((number - 1) / 2 * DAY_MS);
            audit.check_room(now).unwrap();
            audit.append(now, &record(number));
        }
        let found = verified(&folder).unwrap();
        assert_eq!((found.files, found.lines, found.first, found.last), (3, 6, 1, 6));
        let audit = Audit::open(folder.path());
        let page = audit.find(u64::MAX, 4, |_| true, |_| false).unwrap();
        assert_eq!(numbers(&page), [6, 5, 4, 3].map(record));
        let rest = audit.find(page.below.unwrap(), 4, |_| true, |_| false).unwrap();
        assert_eq!((numbers(&rest), rest.below), ([2, 1].map(record).to_vec(), None));
        let some = audit.find(u64::MAX, 9, |text| text != record(6), |text| text == record(2));
        assert_eq!(numbers(&some.unwrap()), [5, 4, 3].map(record));
    }

    #[test]
    fn every_change_of_a_line_but_at_the_end_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path());
        (1..=5).for_each(|number| audit.append(DAY, &record(number)));
        let path = folder.path().join(FOLDER).join("2026-11-30.0001.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let broken = |lines: &[&str]| {
            fs::write(&path, lines.join("\n") + "\n").unwrap();
            verified(&folder).map_err(|fault| fault.to_string())
        };
        assert!(broken(&lines).is_ok());
        let changed = lines[1].replace("\"number\":2", "\"number\":7");
        let error = broken(&[lines[0], &changed, lines[2], lines[3], lines[4]]).unwrap_err();
        assert!(error.contains("line 3: the line before it was changed"), "{error}");
        let error = broken(&[lines[0], lines[2], lines[3], lines[4]]).unwrap_err();
        assert!(error.contains("line 2: its number is 3, not 2"), "{error}");
        let error = broken(&[lines[0], lines[2], lines[1]]).unwrap_err();
        assert!(error.contains("line 2"), "{error}");
        assert!(broken(&[lines[0], "x"]).unwrap_err().contains("it is no record"));
        // Lines that are cut off at the end leave another hash, and the old files a beginning.
        let short = broken(&lines[..4]).unwrap();
        assert_eq!((short.first, short.last), (1, 4));
        let late = broken(&lines[2..]).unwrap();
        assert_eq!((late.first, late.last), (3, 5));
    }

    #[test]
    fn a_line_that_is_no_text_is_named_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path());
        (1..=3).for_each(|number| audit.append(DAY, &record(number)));
        let path = folder.path().join(FOLDER).join("2026-11-30.0001.jsonl");
        let mut bytes = fs::read(&path).unwrap();
        let second = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        bytes[second] = 0xff;
        fs::write(&path, bytes).unwrap();
        let fault = verified(&folder).unwrap_err();
        assert!(matches!(fault, Fault::Line(_, 2, _)), "{fault}");
        let text = fault.to_string();
        assert!(text.contains("line 2: it was changed: its byte 1 is no text"), "{text}");
    }

    #[test]
    fn a_removed_file_or_folder_stops_changes_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(FOLDER);
        let elsewhere = folder.path().join("elsewhere");
        let audit = Audit::open(folder.path());
        assert!(audit.is_new());
        // Before the first line it is created again.
        fs::remove_dir_all(&place).unwrap();
        audit.check_room(DAY).unwrap();
        audit.append(DAY, &record(1));
        fs::rename(&place, &elsewhere).unwrap();
        let refused = |now: UnixMs| {
            let why = audit.check_room(now).unwrap_err();
            assert!(why.contains(&place.display().to_string()), "{why}");
            assert!(why.contains("2026-11-30.0001.jsonl was removed or replaced"), "{why}");
            assert!(why.contains("move it back, or restart the server"), "{why}");
            assert_eq!(audit.check_file(), Err(why));
        };
        refused(DAY);
        // Neither a new folder nor a new day begins another chain.
        fs::create_dir(&place).unwrap();
        let tomorrow = DAY.plus_ms(DAY_MS);
        refused(tomorrow);
        audit.append(tomorrow, &record(2));
        assert_eq!(names(&place).unwrap().len(), 0);
        let facts = AuditNow { is_failing: true, lost: 1, removed_files: 0 };
        assert_eq!(audit.facts(DAY), facts);
        fs::write(place.join("2026-11-30.0001.jsonl"), "").unwrap();
        refused(DAY);
        // Another server, without the folder, begins anew.
        fs::remove_dir_all(&place).unwrap();
        assert!(Audit::open(folder.path()).is_new());
        fs::remove_dir_all(&place).unwrap();
        fs::rename(&elsewhere, &place).unwrap();
        audit.check_file().unwrap();
        audit.check_room(DAY).unwrap();
        audit.append(DAY, &record(3));
        assert_eq!(audit.facts(DAY), AuditNow { is_failing: false, ..facts });
        let found = verified(&folder).unwrap();
        assert_eq!((found.first, found.last, found.lost), (1, 2, 1));
        assert!(!Audit::open(folder.path()).is_new());
    }

    #[test]
    fn a_file_that_is_deleted_for_the_size_before_its_age_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(FOLDER);
        let audit = Audit::open(folder.path());
        audit.append(DAY, &record(1));
        // Files without blocks: the first may be deleted for its age, the second may not.
        for name in ["2026-08-31.0001.jsonl", "2026-09-03.0001.jsonl"] {
            File::create(place.join(name)).unwrap().set_len(BYTES_MAX).unwrap();
        }
        audit.append(DAY.plus_ms(DAY_MS), &record(2));
        assert_eq!(audit.facts(DAY).removed_files, 1);
        let left: Vec<_> = names(&place).unwrap().into_iter().collect();
        assert_eq!(left, ["2026-11-30.0001.jsonl", "2026-12-01.0001.jsonl"]);
    }

    #[test]
    fn a_part_of_a_line_is_cut_off_and_the_chain_continues() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path());
        audit.append(DAY, &record(1));
        let path = folder.path().join(FOLDER).join("2026-11-30.0001.jsonl");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"sequence\":2,\"prev").unwrap();
        Audit::open(folder.path()).append(DAY, &record(2));
        assert_eq!(verified(&folder).unwrap().last, 2);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_part_of_a_line_that_a_failed_write_left_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path());
        audit.append(DAY, &record(1));
        let path = folder.path().join(FOLDER).join("2026-11-30.0001.jsonl");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"sequence\":2,\"prev").unwrap();
        // As after a write that failed and could not be cut off.
        audit.end().file = None;
        audit.append(DAY, &record(2));
        assert_eq!(verified(&folder).unwrap().last, 2);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    }

    #[test]
    fn the_number_of_lost_lines_survives_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path());
        audit.append(DAY, &record(1));
        // A folder in place of the file of the next day: nothing can be written.
        let next = folder.path().join(FOLDER).join("2026-12-01.0001.jsonl");
        fs::create_dir(&next).unwrap();
        let tomorrow = DAY.plus_ms(DAY_MS);
        (0..3).for_each(|_| audit.append(tomorrow, &record(0)));
        // Another process begins, without an end of this one.
        fs::remove_dir(&next).unwrap();
        assert_eq!(verified(&folder).unwrap().lost, 3);
        let audit = Audit::open(folder.path());
        audit.append(tomorrow, &record(2));
        let page = audit.find(u64::MAX, 1, |_| true, |_| false).unwrap();
        let gap = "\"lostRecords\":3,\"then\":{\"number\":2}";
        assert!(page.records[0].record.contains(gap), "{page:?}");
        // They are reported once.
        let audit = Audit::open(folder.path());
        audit.append(tomorrow, &record(3));
        let page = audit.find(u64::MAX, 9, |_| true, |_| false).unwrap();
        assert_eq!(numbers(&page)[0], record(3));
        let found = verified(&folder).unwrap();
        assert_eq!((found.last, found.lost), (3, 3));
    }

    #[test]
    fn a_search_leaves_out_lines_that_are_no_text_and_finds_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path());
        for number in 1..=3 {
            audit.append(DAY.plus_ms((number - 1) * DAY_MS), &record(number));
        }
        let path = folder.path().join(FOLDER).join("2026-12-01.0001.jsonl");
        let mut bytes = b"\xff\xfe\n".to_vec();
        bytes.extend(fs::read(&path).unwrap());
        fs::write(&path, bytes).unwrap();
        let page = audit.find(u64::MAX, 9, |_| true, |_| false).unwrap();
        assert_eq!(numbers(&page), [3, 2, 1].map(record));
        let fault = verified(&folder).unwrap_err().to_string();
        assert!(fault.contains("2026-12-01.0001.jsonl"), "{fault}");
    }

    #[test]
    fn a_full_file_is_followed_by_another_of_the_day() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path());
        let long = format!("\"{}\"", "x".repeat(128 << 10));
        for _ in 0..=FILE_BYTES >> 17 {
            audit.append(DAY, &long);
        }
        let names: Vec<_> = names(&folder.path().join(FOLDER)).unwrap().into_iter().collect();
        assert_eq!(names, ["2026-11-30.0001.jsonl", "2026-11-30.0002.jsonl"]);
        assert!(verified(&folder).is_ok());
    }

    #[test]
    fn lost_lines_are_counted_in_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        // A file in place of the folder.
        fs::write(folder.path().join(FOLDER), "").unwrap();
        let audit = Audit::open(folder.path());
        assert!(audit.check_room(DAY).unwrap_err().contains("the audit cannot be written"));
        audit.append(DAY, &record(1));
        audit.append(DAY, &record(2));
        fs::remove_file(folder.path().join(FOLDER)).unwrap();
        audit.check_room(DAY).unwrap();
        audit.append(DAY, &record(3));
        let page = audit.find(u64::MAX, 1, |_| true, |_| false).unwrap();
        assert!(page.records[0].record.contains("\"lostRecords\":2,\"then\":{\"number\":3}"));
        assert!(verified(&folder).is_ok());
    }

    #[test]
    fn a_line_with_the_last_number_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(FOLDER)).unwrap();
        let path = folder.path().join(FOLDER).join("2026-11-30.0001.jsonl");
        let line = format!("{BEFORE}{}{PREVIOUS}{NO_HASH}{RECORD}{{}}}}\n", u64::MAX);
        fs::write(&path, line.repeat(2)).unwrap();
        let refused = Audit::open(folder.path()).check_room(DAY).unwrap_err();
        assert!(refused.contains("2026-11-30.0001.jsonl: the line at byte 0"), "{refused}");
        assert!(verified(&folder).unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn a_file_that_is_no_text_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(FOLDER)).unwrap();
        let path = folder.path().join(FOLDER).join("2026-11-30.0001.jsonl");
        fs::write(&path, b"\xff\xfe\n").unwrap();
        let audit = Audit::open(folder.path());
        let refused = audit.check_room(DAY).unwrap_err();
        assert!(refused.contains("2026-11-30.0001.jsonl: "), "{refused}");
        assert!(refused.ends_with("move the file away"), "{refused}");
        fs::remove_file(&path).unwrap();
        audit.check_room(DAY).unwrap();
    }
}
