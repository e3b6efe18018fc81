//! The files of recordings: one for each volume and day (UTC), in a folder for each volume.
//!
//! Blocks are appended. A partial last block after a crash is cut off before the next one is
//! appended. Files are deleted as a whole when they are too old. Nothing is synced: a power failure
//! may lose bytes that the kernel had not written yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use evenkeel_core::ids::VolumeId;
use evenkeel_wire::aws::timestamp;
use tracing::{info, warn};

use super::codec::{self, BLOCK_BYTES_MAX, Interval};
use crate::private;
use crate::retention::first_deleted;
use evenkeel_os::clock;

/// The folder in the data folder.
pub const FOLDER_NAME: &str = "recordings";
/// Maximum size of a file in bytes: more than a day of the worst seconds.
pub const FILE_BYTES_MAX: usize = 11 << 20;
pub const DAY_MS: u64 = 86_400_000;
/// Future days with a larger gap before them than this are deleted first; see [`first_deleted`].
const GAP_DAYS_MAX: u64 = 2;

/// Nothing is written if the disk's free space is below this number of bytes and below one in
/// [`FREE_PART`] of its size.
const FREE_BYTES_MIN: u64 = 1 << 30;
const FREE_PART: u64 = 20;

/// Maximum time from a block's end until it is in its file, in milliseconds.
const CHANGED_MS: u64 = 600_000;

const EXTENSION: &str = ".rec";
const DATE_BYTES: usize = "2026-11-25".len();

/// The recordings of a data folder.
#[derive(Clone, Debug)]
pub struct Files {
    folder: PathBuf,
}

/// Appends to the files. There is one writer.
#[derive(Debug)]
pub struct Writer {
    files: Files,
    /// The day and the length of each volume's file that ends with a complete block.
    whole: BTreeMap<VolumeId, (u64, u64)>,
}

/// Returns the name of the file of a day.
fn name(day: u64) -> String {
    let time = timestamp::extended(day.saturating_mul(DAY_MS));
    format!("{}{EXTENSION}", time.get(..DATE_BYTES).unwrap_or(&time))
}

impl Files {
    pub fn of(data_dir: &Path) -> Self {
        Self { folder: data_dir.join(FOLDER_NAME) }
    }

    fn path(&self, id: VolumeId, day: u64) -> PathBuf {
        self.folder.join(id.to_string()).join(name(day))
    }

    /// Returns whether there is a recording of a volume.
    pub fn has(&self, id: VolumeId) -> bool {
        self.folder.join(id.to_string()).is_dir()
    }

    /// Returns the intervals of a day, as they were written. Damaged blocks are left out and
    /// logged.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, id: VolumeId, day: u64) -> io::Result<Vec<Interval>> {
        let path = self.path(id, day);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at(&path)(error)),
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX as u64).read_to_end(&mut bytes).map_err(at(&path))?;
        let blocks = codec::read(&bytes);
        // The last block may be only partly written.
        if blocks.damaged_bytes > BLOCK_BYTES_MAX {
            let damaged = blocks.damaged_bytes;
            warn!("{}: {damaged} bytes are damaged, the recording has a gap", path.display());
        }
        Ok(blocks.intervals)
    }

    /// Returns the volumes that have a recording.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn volumes(&self) -> io::Result<BTreeSet<VolumeId>> {
        Ok(names(&self.folder)?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Returns the bytes at the end of a day's file with all complete blocks that end after this
    /// moment, and perhaps some before. Empty if there is no such file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn end(&self, id: VolumeId, day: u64, after_ms: u64) -> io::Result<Vec<u8>> {
        let path = self.path(id, day);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at(&path)(error)),
        };
        let metadata = file.metadata().map_err(at(&path))?;
        let changed =
            metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed_ms = changed.map_or(u64::MAX, |changed| changed.as_millis() as u64);
        // Most volumes of a page have no new blocks.
        if changed_ms.saturating_add(CHANGED_MS) < after_ms && after_ms <= clock::unix_ms().0 {
            return Ok(Vec::new());
        }
        let length = metadata.len().min(FILE_BYTES_MAX as u64);
        let mut window = 4 * BLOCK_BYTES_MAX as u64;
        loop {
            window = window.min(length);
            let mut bytes = vec![0; window as usize];
            file.read_exact_at(&mut bytes, length - window).map_err(at(&path))?;
            let is_before =
                codec::whole(&bytes).first().is_some_and(|whole| whole.end_ms <= after_ms);
            if is_before || window == length {
                return Ok(bytes);
            }
            window *= 4;
        }
    }

    /// Returns the days between these two, inclusive, on which a volume was recorded.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn days(&self, id: VolumeId, first: u64, last: u64) -> io::Result<Vec<u64>> {
        let folder = self.folder.join(id.to_string());
        let mut days = Vec::new();
        for name in names(&folder)? {
            days.extend(day_of(&name).filter(|day| (first..=last).contains(day)));
        }
        days.sort_unstable();
        Ok(days)
    }

    /// Deletes the oldest days until at most `days` are left besides today's. The clock may have
    /// been set: see [`first_deleted`].
    ///
    /// # Errors
    /// Returns the first error; other files are deleted anyway.
    pub fn keep(&self, today: u64, days: u64) -> io::Result<()> {
        let volumes = names(&self.folder)?;
        let mut kept = BTreeSet::from([today]);
        for volume in &volumes {
            let files = names(&self.folder.join(volume)).unwrap_or_default();
            kept.extend(files.iter().filter_map(|name| day_of(name)));
        }
        let mut deleted = BTreeSet::new();
        while kept.len() as u64 > days.saturating_add(1) {
            let Some(day) = first_deleted(&kept, today, GAP_DAYS_MAX) else { break };
            kept.remove(&day);
            deleted.insert(day);
        }
        if deleted.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        for volume in volumes {
            let folder = self.folder.join(&volume);
            let files = names(&folder).unwrap_or_default();
            let is_old = |name: &String| day_of(name).is_some_and(|day| deleted.contains(&day));
            for name in files.iter().filter(|name| is_old(name)) {
                result = result.and(fs::remove_file(folder.join(name)).map_err(at(&folder)));
            }
            // Fails if the folder has other files.
            let _ = fs::remove_dir(&folder);
        }
        result
    }

    /// Deletes all recordings.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn delete_all(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&self.folder)(error)),
            _ => Ok(()),
        }
    }
}

/// Returns the names in a folder; none if the folder does not exist.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(folder)(error)),
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    Ok(entries.filter_map(name).collect())
}

/// Returns the day in the name of a recording's file.
fn day_of(name: &str) -> Option<u64> {
    let date = name.strip_suffix(EXTENSION).filter(|date| date.len() == DATE_BYTES)?;
    timestamp::parse_extended(&format!("{date}T00:00:00Z")).map(|ms| ms / DAY_MS)
}

/// Adds the path to an error.
fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Writer {
    pub fn new(files: Files) -> Self {
        Self { files, whole: BTreeMap::new() }
    }

    /// Checks that the disk has room that other data does not need.
    ///
    /// # Errors
    /// There is too little room, or the disk cannot be checked.
    pub fn check_room(&self) -> io::Result<()> {
        let folder = &self.files.folder;
        private_folder(folder).map_err(at(folder))?;
        let disk = rustix::fs::statvfs(folder).map_err(|error| at(folder)(error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let least = (disk.f_blocks.saturating_mul(disk.f_frsize) / FREE_PART).min(FREE_BYTES_MIN);
        if free < least {
            let text = format!("{free} bytes are free on the disk, {least} are left to others");
            return Err(at(folder)(io::Error::new(io::ErrorKind::StorageFull, text)));
        }
        Ok(())
    }

    /// Appends a block to the file of its day. If that fails, the file is unchanged.
    ///
    /// # Errors
    /// The file cannot be written, or is full.
    pub fn append(&mut self, id: VolumeId, day: u64, block: &[u8]) -> io::Result<()> {
        let path = self.files.path(id, day);
        self.try_append(id, day, &path, block).map_err(at(&path))
    }

    fn try_append(&mut self, id: VolumeId, day: u64, path: &Path, block: &[u8]) -> io::Result<()> {
        let file = match open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                path.parent().map_or(Ok(()), private_folder)?;
                open(path)?
            }
            opened => opened?,
        };
        let mut length = file.metadata()?.len();
        if self.whole.remove(&id) != Some((day, length)) {
            length = mend(&file, length, path)?;
        }
        let after = length + block.len() as u64;
        if after > FILE_BYTES_MAX as u64 {
            return Err(io::Error::other(format!("it is full at {FILE_BYTES_MAX} bytes")));
        }
        // In append mode: after the present content.
        if let Err(error) = (&file).write_all(block) {
            let _ = file.set_len(length);
            return Err(error);
        }
        self.whole.insert(id, (day, after));
        Ok(())
    }

    /// Replaces the blocks of a day's file.
    ///
    /// # Errors
    /// The file cannot be written, or would be too long; it is unchanged.
    pub fn replace(&mut self, id: VolumeId, day: u64, blocks: &[u8]) -> io::Result<()> {
        let path = self.files.path(id, day);
        if blocks.len() > FILE_BYTES_MAX {
            let text = format!("it is full at {FILE_BYTES_MAX} bytes");
            return Err(at(&path)(io::Error::other(text)));
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        self.whole.remove(&id);
        private::replace(folder, &name.to_string_lossy(), blocks).map_err(at(&path))
    }

    /// Forgets volumes that are not recorded any more.
    pub fn keep(&mut self, is_known: impl Fn(VolumeId) -> bool) {
        self.whole.retain(|id, _| is_known(*id));
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)
}

/// Creates a folder for the server's own user, if it is missing.
fn private_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Cuts off the bytes after the last complete block. Returns the length.
fn mend(file: &File, length: u64, path: &Path) -> io::Result<u64> {
    // The last complete block is in this window, unless much is damaged. Then the bytes stay, and
    // are skipped.
    let window = length.min(2 * BLOCK_BYTES_MAX as u64);
    let mut end = vec![0; window as usize];
    file.read_exact_at(&mut end, length - window)?;
    let torn = window - codec::read(&end).whole_bytes as u64;
    if torn == 0 || (torn == window && window < length) {
        return Ok(length);
    }
    info!("{}: {torn} bytes of an unfinished block are cut off", path.display());
    file.set_len(length - torn)?;
    Ok(length - torn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::codec::{Block, Requests, Work};

    const ID: VolumeId = VolumeId::from_bits(7);
    const DAY: u64 = 20_782;

    fn block(at: u64, count: u64) -> Vec<u8> {
        let start_ms = DAY * DAY_MS + at * 1_000;
        let mut block = Block::new(start_ms);
        let reads = Requests { count, bytes: count * 512, us: 1 };
        let work = Some(Work { reads, ..Work::default() });
        assert!(block.push(&Interval { start_ms, length_ms: 1_000, work, balance_ppm: None }));
        block.bytes()
    }

    fn counts(files: &Files, day: u64) -> Vec<u64> {
        let found = files.read(ID, day).unwrap();
        found.iter().map(|it| it.work.unwrap().reads.count).collect()
    }

    #[test]
    fn a_torn_block_is_cut_off_and_a_damaged_one_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(folder.path());
        let path = files.path(ID, DAY);
        assert!(path.ends_with("recordings/vol-00000000000000007/2026-11-25.rec"), "{path:?}");
        let mut writer = Writer::new(files.clone());
        for at in 0..3 {
            writer.append(ID, DAY, &block(at, at)).unwrap();
        }
        let whole = fs::read(&path).unwrap();
        for torn in 1..block(9, 9).len() {
            let mut bytes = whole.clone();
            bytes.extend(&block(9, 9)[..torn]);
            fs::write(&path, bytes).unwrap();
            assert_eq!(counts(&files, DAY), [0, 1, 2]);
            Writer::new(files.clone()).append(ID, DAY, &block(3, 3)).unwrap();
            assert_eq!(counts(&files, DAY), [0, 1, 2, 3]);
            assert_eq!(
                fs::metadata(&path).unwrap().len() as usize,
                whole.len() + block(3, 3).len()
            );
        }
        // Another program wrote to the file meanwhile, so it is read again.
        let mut bytes = whole.clone();
        bytes[block(0, 0).len() + 20] ^= 1;
        fs::write(&path, &bytes).unwrap();
        writer.append(ID, DAY, &block(4, 4)).unwrap();
        assert_eq!(counts(&files, DAY), [0, 2, 4]);
        fs::write(&path, vec![b'E'; 100_000]).unwrap();
        writer.append(ID, DAY, &block(5, 5)).unwrap();
        assert_eq!(counts(&files, DAY), [5]);
        fs::write(&path, b"EkR1").unwrap();
        writer.append(ID, DAY, &block(6, 6)).unwrap();
        assert_eq!(counts(&files, DAY), [6]);
        assert_eq!(fs::metadata(&path).unwrap().len() as usize, block(6, 6).len());
    }

    #[test]
    fn a_file_has_a_bound_and_old_ones_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(folder.path());
        let mut writer = Writer::new(files.clone());
        for day in DAY..DAY + 4 {
            writer.append(ID, day, &block(0, day)).unwrap();
        }
        let full = File::options().write(true).open(files.path(ID, DAY + 3)).unwrap();
        full.set_len(FILE_BYTES_MAX as u64 - 1).unwrap();
        let error = writer.append(ID, DAY + 3, &block(1, 1)).unwrap_err().to_string();
        assert!(error.ends_with("2026-11-28.rec: it is full at 11534336 bytes"), "{error}");
        let foreign = folder.path().join(FOLDER_NAME).join(ID.to_string()).join("notes.txt");
        fs::write(&foreign, "mine").unwrap();
        assert_eq!(files.days(ID, DAY + 1, DAY + 2).unwrap(), [DAY + 1, DAY + 2]);
        files.keep(DAY + 3, 1).unwrap();
        assert_eq!(files.days(ID, 0, u64::MAX).unwrap(), [DAY + 2, DAY + 3]);
        files.keep(DAY + 9, 0).unwrap();
        assert!(files.days(ID, 0, u64::MAX).unwrap().is_empty());
        assert!(foreign.exists() && files.has(ID), "what is not ours stays");
        fs::remove_file(foreign).unwrap();
        writer.append(ID, DAY + 5, &block(0, 5)).unwrap();
        files.keep(DAY + 9, 0).unwrap();
        assert!(!files.has(ID));
        files.delete_all().unwrap();
        files.delete_all().unwrap();
        files.keep(DAY, 1).unwrap();
    }

    #[test]
    fn a_write_that_fails_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(folder.path());
        fs::write(folder.path().join(FOLDER_NAME), "in the way").unwrap();
        let mut writer = Writer::new(files.clone());
        assert!(writer.check_room().is_err());
        assert!(writer.append(ID, DAY, &block(0, 0)).is_err());
        fs::remove_file(folder.path().join(FOLDER_NAME)).unwrap();
        writer.append(ID, DAY, &block(0, 8)).unwrap();
        assert_eq!(counts(&files, DAY), [8]);
    }
}
