//! The audit: files of JSON lines, by day.
//!
//! A file is `2026-11-29-0000.jsonl`; a full one is followed by the next number. The oldest files
//! are deleted when they are older than the days that are kept, or when all together are too
//! large. A partial last line after a crash is ended, so that the next one begins a line.

use evenkeel_core::volume::Date;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const DAY_MS: u64 = 86_400_000;
/// The ending of a file's name.
pub(super) const ENDING: &str = ".jsonl";
/// The highest number of a file of one day.
const NUMBER_MAX: u32 = 9_999;

/// The bounds of an audit.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Days that are kept.
    pub days: u32,
    /// The size from which a file is full, in bytes. One line may be longer.
    pub file_bytes: u64,
    /// The most bytes of all files together. The newest file is always kept.
    pub bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { days: 90, file_bytes: 32 << 20, bytes: 2 << 30 }
    }
}

/// The audit of a folder, to append to.
#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    bounds: Bounds,
    open: Option<Open>,
}

/// The file to which lines are appended.
#[derive(Debug)]
struct Open {
    day: u64,
    bytes: u64,
    file: File,
}

impl Log {
    /// Opens the audit in a folder, which exists.
    pub fn open(folder: PathBuf, bounds: Bounds) -> io::Result<Self> {
        names(&folder)?;
        Ok(Self { folder, bounds, open: None })
    }

    /// Appends a line durably.
    pub fn append(&mut self, unix_ms: u64, line: &str) -> io::Result<()> {
        let mut open = match self.open.take() {
            Some(open) if open.day == unix_ms / DAY_MS && open.bytes < self.bounds.file_bytes => {
                open
            }
            _ => self.next(unix_ms / DAY_MS)?,
        };
        // After an error, the next line opens the file again and ends a partial one.
        open.file.write_all(format!("{line}\n").as_bytes())?;
        open.file.sync_data()?;
        open.bytes += line.len() as u64 + 1;
        self.open = Some(open);
        Ok(())
    }

    /// Opens the last file of a day, or the next one if that is full.
    fn next(&self, day: u64) -> io::Result<Open> {
        let date = Date::of_unix_day(day).to_string();
        let names = names(&self.folder)?;
        let numbers = names.iter().filter_map(|name| number(name, &date));
        let last = numbers.max();
        let mut number = last.unwrap_or(0);
        if let Some(last) = last {
            let bytes = fs::metadata(path(&self.folder, &date, last))?.len();
            if bytes >= self.bounds.file_bytes && last < NUMBER_MAX {
                number = last + 1;
            }
        }
        let path = path(&self.folder, &date, number);
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(&path)?;
        end_line(&mut file)?;
        if is_new {
            File::open(&self.folder)?.sync_all()?;
            self.prune(&date)?;
        }
        let bytes = file.metadata()?.len();
        Ok(Open { day, bytes, file })
    }

    /// Deletes files that are too old or too many bytes. `today` is the newest date that counts.
    fn prune(&self, today: &str) -> io::Result<()> {
        let names = names(&self.folder)?;
        let today: Option<u64> = today.parse().ok().and_then(Date::unix_day);
        let oldest = today.unwrap_or(0).saturating_sub(self.bounds.days.into());
        let mut bytes = 0_u64;
        for (index, name) in names.iter().rev().enumerate() {
            let path = self.folder.join(name);
            bytes = bytes.saturating_add(fs::metadata(&path)?.len());
            let day: Option<u64> =
                name.get(..10).and_then(|date| date.parse().ok()).and_then(Date::unix_day);
            let is_old = day.is_some_and(|day| day < oldest);
            if index > 0 && (is_old || bytes > self.bounds.bytes) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// Returns the names of an audit's files, oldest first.
pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if is_file(&name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns whether a name is one of the audit: a date, a number of four digits, the ending.
fn is_file(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(ENDING) else { return false };
    let Some((date, number)) = stem.split_at_checked(10) else { return false };
    let number = number.strip_prefix('-').unwrap_or_default();
    date.parse::<Date>().is_ok()
        && number.len() == 4
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn number(name: &str, date: &str) -> Option<u32> {
    name.strip_prefix(date)?.strip_prefix('-')?.strip_suffix(ENDING)?.parse().ok()
}

fn path(folder: &Path, date: &str, number: u32) -> PathBuf {
    folder.join(format!("{date}-{number:04}{ENDING}"))
}

/// Ends a partial last line.
fn end_line(file: &mut File) -> io::Result<()> {
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    if last != *b"\n" {
        file.write_all(b"\n")?;
    }
    Ok(())
}
