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

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::Date;
use evenkeel_wire::aws::sigv4::sha256_hex;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tracing::{error, warn};

use crate::private;

/// The folder of the files, in the data folder.
pub const FOLDER: &str = "audit";
/// Size at which a file is full, in bytes.
const FILE_BYTES: u64 = 16 << 20;
/// Maximum of bytes of all files; beyond it the oldest is deleted.
const BYTES_MAX: u64 = 4 << 30;
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
}

/// The place at which the next line is appended.
#[derive(Debug, Default)]
struct End {
    file: Option<File>,
    name: String,
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
        Self { folder, end: Mutex::new(end) }
    }

    fn last(folder: &Path) -> io::Result<End> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
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

    /// Checks that the line of a change will find room.
    ///
    /// # Errors
    /// It might not; the text has the reason.
    pub fn check_room(&self, now: UnixMs) -> Result<(), String> {
        let mut end = self.end();
        if end.problem.is_none() && end.file.is_some() && end.bytes + RESERVED_MIN <= end.reserved {
            return Ok(());
        }
        let prepared = self.prepare(&mut end, now).and_then(|()| end.reserve());
        prepared.map_err(|error| {
            let path = self.folder.display();
            let is_full = error.kind() == io::ErrorKind::StorageFull;
            let remedy = if is_full { "; free space on its disk" } else { "" };
            format!("the audit cannot be written: {path}: {error}{remedy}")
        })
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
                end.lost = end.lost.saturating_add(1);
                end.write_lost();
                // The file may have a part of the line.
                end.file = None;
            }
        }
    }

    /// Opens the file for the next line.
    fn prepare(&self, end: &mut End, now: UnixMs) -> io::Result<()> {
        if end.next == 0 {
            let last = Self::last(&self.folder)?;
            *end = End { lost: end.lost.saturating_add(last.lost), ..last };
        }
        let day = day_of(now);
        // A clock that is set back appends to the last day.
        let is_of_day = end.name.get(..day.len()).is_some_and(|begin| begin >= day.as_str());
        if is_of_day && end.bytes < FILE_BYTES && end.file.is_some() {
            return Ok(());
        }
        if !is_of_day {
            end.name = format!("{day}.0001.jsonl");
            end.bytes = 0;
        } else if end.bytes >= FILE_BYTES {
            let (day, rest) = end.name.split_once('.').unwrap_or((&day, "0"));
            let number: u32 = rest.get(..4).and_then(|number| number.parse().ok()).unwrap_or(0);
            end.name = format!("{day}.{:04}.jsonl", number + 1);
            end.bytes = 0;
        }
        let path = self.folder.join(&end.name);
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).mode(0o600).open(&path)?;
        // Of a failed write a part may be there. A cut would also free the reserved room.
        if file.metadata()?.len() != end.bytes {
            file.set_len(end.bytes)?;
        }
        end.reserved = end.bytes;
        end.file = Some(file);
        self.delete_oldest(&end.name)
    }

    /// Deletes the oldest files while all have too many bytes.
    fn delete_oldest(&self, current: &str) -> io::Result<()> {
        let names = names(&self.folder)?;
        let size =
            |name: &String| fs::metadata(self.folder.join(name)).map_or(0, |found| found.len());
        let mut total: u64 = names.iter().map(size).sum();
        for name in names.iter().filter(|name| *name != current) {
            if total <= BYTES_MAX {
                break;
            }
            total = total.saturating_sub(size(name));
            fs::remove_file(self.folder.join(name))?;
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
            let gap = format!("{{\"eventType\":\"Gap\",\"lostRecords\":{lost},\"then\":{record}}}");
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
                let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<u64>().ok();
                let (lost, next) = text.split_at(LOST_DIGITS);
                if number(next) == Some(self.next) {
                    self.lost = number(lost).unwrap_or_default();
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
    let mut found = Verified { files, lines: 0, first: 0, last: 0, hash: NO_HASH.into() };
    for name in &names {
        let path = folder.join(name);
        let lines = BufReader::new(File::open(&path).map_err(io_at(&path))?).lines();
        for (line, number) in lines.zip(1..) {
            let line = line.map_err(io_at(&path))?;
            let fault = |why: String| Fault::Line(path.clone(), number, why);
            let parsed = Line::parse(&line).ok_or_else(|| fault("it is no record".into()))?;
            let is_first = found.lines == 0;
            // Earlier files may have been deleted because of their age.
            if is_first && parsed.sequence > 1 {
                found.hash = parsed.previous.to_owned();
                found.last = parsed.sequence.saturating_sub(1);
            }
            if found.last.checked_add(1) != Some(parsed.sequence) {
                let wanted = u128::from(found.last) + 1;
                let text = format!("its number is {}, not {wanted}", parsed.sequence);
                return Err(fault(format!("{text}: lines are missing or in another order")));
            }
            if parsed.previous != found.hash {
                return Err(fault("the line before it was changed".into()));
            }
            if is_first {
                found.first = parsed.sequence;
            }
            found.lines += 1;
            found.last = parsed.sequence;
            found.hash = sha256_hex(line.as_bytes());
            seen(&found.hash);
        }
    }
    Ok(found)
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
        assert_eq!(verified(&folder).unwrap().last, 3);
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
