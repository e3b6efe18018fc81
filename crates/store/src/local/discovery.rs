//! Creates a data folder's pool at the first start, and finds it at every later one.
//!
//! The folder records the identity of its pool, and the number of its openings. So a pool that is
//! missing, too short, outdated or another one is recognised, and is never replaced by an empty
//! one.

use super::BLOCK_BYTES;
use super::device::{Device, FileDevice, read_readable};
use super::format::{SESSIONS_MAX, Superblock, SuperblockError, is_anchor};
use super::page_cache_file::LastingFiles;
use super::pool::{CHUNK_BYTES, Layout, LocalPool};
use super::table::{SECTOR_BYTES, is_written};
use super::volume::Bounds;
use crate::StoreError;
use crate::folder::Folder;
use evenkeel_core::units::ByteCount;
use evenkeel_os::files::write_whole;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of this kind of store in a data folder's marker file.
pub const KIND: &str = "local";
/// The pool's file in the data folder, unless it is elsewhere.
pub const FILE: &str = "pool";
/// Name of the file in which a folder notes its pool.
pub const NOTE: &str = "POOL";
/// The first line of the note.
const NOTE_FORMAT: &str = "evenkeel pool, format 1";
/// Maximum size of a pool, as a multiple of the space of the device that it is made on. File
/// systems and block devices may grow.
const GROWTH_TIMES: u64 = 2;
/// Maximum number of chunks that are searched for remains of a pool: its tables, and the first of
/// its volumes.
const REMAINS_CHUNKS: u64 = 2_048;
/// Byte offset of the mark that a device may be overwritten, whatever else it has.
pub const WIPED_AT: usize = 2 * BLOCK_BYTES;
/// The mark at [`WIPED_AT`].
pub const WIPED: &[u8; 16] = b"EVENKEEL WIPED\x1a\n";

/// A folder's record of its pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The pool's identity.
    pub identity: u128,
    /// Number of its openings that the folder knows; 0 until the pool is made.
    pub session: u32,
    /// Its path; relative to the folder if it is in there.
    pub device: PathBuf,
}

impl Note {
    fn text(&self) -> String {
        let Self { identity, session, device } = self;
        let device = device.display();
        format!("{NOTE_FORMAT}\nidentity {identity:032x}\nsession {session}\ndevice {device}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_prefix(NOTE_FORMAT)?.strip_prefix('\n')?.lines();
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let identity = u128::from_str_radix(value("identity")?, 16).ok()?;
        let session = value("session")?.parse().ok()?;
        Some(Self { identity, session, device: PathBuf::from(value("device")?) })
    }

    /// Reads the note of a folder; `None` if it has none.
    ///
    /// # Errors
    /// If it cannot be read, or has another format.
    pub fn read(folder: &Path) -> Result<Option<Self>, StoreError> {
        let path = folder.join(NOTE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io(format!("read {}", path.display()), error)),
        };
        match Self::parse(&text) {
            Some(note) => Ok(Some(note)),
            None => {
                let found = text.lines().next().unwrap_or_default().to_owned();
                let why = format!(
                    "says {found:?}, and not which pool is the folder's; put back the file as it \
                     was, or use the version of evenkeel that wrote it"
                );
                Err(StoreError::NotPool { path, why })
            }
        }
    }

    fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let path = folder.join(NOTE);
        write_whole(&path, self.text().as_bytes())
            .map_err(|error| StoreError::io(format!("write {}", path.display()), error))
    }
}

/// Reads the superblock of a device from its two copies.
///
/// # Errors
/// When the device fails, or holds no pool that this version reads.
pub fn read_superblock(device: &dyn Device) -> Result<Superblock, StoreError> {
    find_superblock(device).map(|(superblock, _)| superblock)
}

/// Reads the superblock, as [`read_superblock`]. Also returns the number of copies that are damaged
/// or cannot be read.
///
/// # Errors Those of [`read_superblock`].
pub fn find_superblock(device: &dyn Device) -> Result<(Superblock, usize), StoreError> {
    let path = device.path().to_owned();
    let failed = |error| StoreError::io(format!("read {}", path.display()), error);
    let mut blocks = vec![0; 2 * BLOCK_BYTES];
    read_readable(device, 0, &mut blocks).map_err(failed)?;
    let (first, second) = blocks.split_at(BLOCK_BYTES);
    let found = match (Superblock::decode(first), Superblock::decode(second)) {
        // A change writes one copy after the other; the newer one counts.
        (Ok(a), Ok(b)) if b.identity == a.identity && b.age() > a.age() => (b, 0),
        (Ok(superblock), Ok(_)) => (superblock, 0),
        (Ok(superblock), Err(_)) | (Err(_), Ok(superblock)) => (superblock, 1),
        (Err(a), Err(b)) => {
            // A copy that cannot be read would look like foreign data, so the device's error is
            // returned.
            device.read(0, &mut blocks).map_err(failed)?;
            // The more specific error is reported.
            let says_less = a == SuperblockError::Empty
                || a == SuperblockError::Foreign && b != SuperblockError::Empty;
            let error = match if says_less { b } else { a } {
                SuperblockError::Empty if remains(device).map_err(failed)?.is_some() => {
                    SuperblockError::Lost
                }
                error => error,
            };
            return Err(StoreError::NotPool { path, why: error.to_string() });
        }
    };
    let needed = ByteCount(u64::from(found.0.first_chunk) * CHUNK_BYTES);
    let size = ByteCount(device.size().map_err(failed)?);
    if size < needed {
        return Err(StoreError::NotPool { path, why: too_short(size, needed) });
    }
    if found.0.session > SESSIONS_MAX {
        let why = "was opened more often than can be counted; copy its volumes to a new pool";
        return Err(StoreError::NotPool { path, why: why.to_owned() });
    }
    Ok(found)
}

fn too_short(size: ByteCount, needed: ByteCount) -> String {
    format!("is too short: it has {size}, and the pool needs {needed}; put the whole of it back")
}

/// Returns a description of the remains in the first chunks of a device of a pool whose superblock
/// is gone; `None` if there are none.
///
/// # Errors
/// When the device fails.
pub fn remains(device: &dyn Device) -> io::Result<Option<String>> {
    let chunks = (device.size()? / CHUNK_BYTES).min(REMAINS_CHUNKS);
    let mut block = vec![0; BLOCK_BYTES];
    for at in (1..chunks).map(|chunk| chunk * CHUNK_BYTES) {
        read_readable(device, at, &mut block)?;
        let mut sectors = (0..).zip(block.as_chunks::<SECTOR_BYTES>().0);
        if is_anchor(&block) {
            return Ok(Some(format!("the volume of a pool begins at byte {at}")));
        }
        if sectors.any(|(number, sector)| is_written(number, sector)) {
            return Ok(Some(format!("a table of a pool begins at byte {at}")));
        }
    }
    Ok(None)
}

/// Bytes at the end of a device that must be zeroes in a new pool. Linux RAID keeps its superblock
/// there, and a GPT its second copy, so a device is in use even if its beginning is overwritten.
const END_BYTES: u64 = 128 << 10;

/// Returns a description of the content at the end of a device; `None` if there is none.
///
/// # Errors
/// When the device fails.
pub fn content_at_end(device: &dyn Device) -> io::Result<Option<String>> {
    let size = device.size()?;
    // Whole blocks are read; what is behind the end reads as zeroes.
    let end = size.next_multiple_of(BLOCK_BYTES as u64);
    let start = end.saturating_sub(END_BYTES);
    let mut bytes = vec![0; (end - start) as usize];
    device.read(start, &mut bytes)?;
    let Some(first) = bytes.iter().position(|&byte| byte != 0) else { return Ok(None) };
    let mut last_sectors =
        [512, 4_096].into_iter().filter_map(|sector| (size - start).checked_sub(sector));
    let is_gpt = last_sectors.any(|offset| bytes[offset as usize..].starts_with(b"EFI PART"));
    Ok(Some(if is_gpt {
        "the second copy of a GPT partition table, in its last sector".to_owned()
    } else {
        format!("byte {} is {:#04x}", start + first as u64, bytes[first])
    }))
}

/// Returns the maximum size in bytes of a pool on this device.
fn bytes_max(device: &dyn Device) -> io::Result<u64> {
    Ok(device.size()?.saturating_add(device.room()?).saturating_mul(GROWTH_TIMES))
}

fn random_identity() -> Result<u128, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::io("get random bytes", io::Error::other(error)))?;
    Ok(u128::from_le_bytes(bytes))
}

/// Error text for a pool that is gone.
const MISSING: &str = "is missing: it is the pool with the bytes of all volumes of this data \
                       folder; put it back, or say with --pool where it is";
/// Error text for a missing place of a new pool. Nothing is created there, since the disk may not
/// be mounted, or the name of a device may be mistyped.
const MISSING_NEW: &str = "is missing: name a block device, or make an empty file for the pool \
                           with `touch` first; the pool grows in it";

impl LocalPool {
    /// Opens the pool of the data folder `path`, which is claimed (see [`Folder::claim`]). The
    /// first start makes it: in `device`, a block device or an empty file, or else in the file
    /// [`FILE`] of the folder. Later, `device` is its new place, if it was moved.
    ///
    /// # Errors
    /// When the folder cannot be claimed, the device has other contents, or the pool is missing,
    /// too short, another one, or older than the folder's note of it.
    pub fn in_folder(path: &Path, device: Option<&Path>) -> Result<Self, StoreError> {
        let folder = Folder::claim(path, KIND)?;
        Ok(Self::in_claimed_folder(path, device)?.holding(folder))
    }

    /// Opens the pool, as [`Self::in_folder`], of a folder that is claimed already and stays so
    /// while the pool is open.
    ///
    /// # Errors
    /// As [`Self::in_folder`].
    pub fn in_claimed_folder(path: &Path, device: Option<&Path>) -> Result<Self, StoreError> {
        let noted = Note::read(path)?;
        let is_noted = noted.is_some();
        let mut note = match noted {
            Some(note) => note,
            None => Note { identity: random_identity()?, session: 0, device: FILE.into() },
        };
        if let Some(device) = device {
            note.device = device.to_owned();
        }
        let place = path.join(&note.device);
        let is_own = note.device == Path::new(FILE);
        let is_new = note.session == 0;
        let missing = if is_new { MISSING_NEW } else { MISSING };
        let device = open_device(&place, is_own && is_new, missing)?;
        if !is_noted {
            note.write(path)?;
        }
        if is_new {
            make(&device, note.identity)?;
        }
        let superblock = read_superblock(&device)?;
        note.accepts(&device)?;
        let lasting = Arc::new(LastingFiles::in_folder(path, note.identity));
        let pool = Self::open_noting(Arc::new(device), Bounds::default(), Some(lasting))?;
        let pool = pool.with_clerk()?;
        note.session = superblock.session + 1;
        match note.write(path) {
            // On a full disk the note misses one opening; it still detects an older copy.
            Err(error) if error.is_no_space() && !is_new => {
                tracing::warn!(%error, "the data folder cannot note that its pool was opened");
            }
            written => written?,
        }
        Ok(pool)
    }
}

impl Note {
    /// Checks that a device has the folder's pool completely.
    ///
    /// # Errors
    /// When it is not, or the device fails.
    pub fn accepts(&self, device: &dyn Device) -> Result<(), StoreError> {
        let place = device.path();
        let superblock = read_superblock(device)?;
        let size = ByteCount(device.size().map_err(failed("look at", place))?);
        let refuse = |why: String| Err(StoreError::NotPool { path: place.to_owned(), why });
        let Superblock { identity, session, chunks, .. } = superblock;
        if identity != self.identity {
            return refuse(format!(
                "is another pool (identity {identity:032x}) than that of this data folder \
                 ({:032x}); put back the folder's own pool, or name it with --pool",
                self.identity
            ));
        }
        if session < self.session {
            return refuse(format!(
                "is an older copy of this folder's pool: it was opened {session} times, and the \
                 folder knows of {}; put back the newest copy, or restore pool and data folder \
                 together",
                self.session
            ));
        }
        let needed = ByteCount(u64::from(chunks) * CHUNK_BYTES);
        if size < needed {
            return refuse(too_short(size, needed));
        }
        Ok(())
    }
}

/// Overwrites the beginning and the end of a device, where other programs find a file system, a
/// partition table or a pool. The beginning then has the mark that the rest may be overwritten,
/// too.
///
/// # Errors
/// When it cannot be opened or written.
pub fn wipe(place: &Path) -> Result<(), StoreError> {
    let device = open_device(place, false, MISSING_NEW)?;
    let zeroes = vec![0; CHUNK_BYTES as usize];
    let mut first = zeroes.clone();
    first[WIPED_AT..][..WIPED.len()].copy_from_slice(WIPED);
    let size = device.size().map_err(failed("look at", place))? / BLOCK_BYTES as u64;
    let last = (size * BLOCK_BYTES as u64).saturating_sub(CHUNK_BYTES);
    let wiped = match size {
        0 => Ok(()),
        // On a device of one chunk, end and beginning are the same.
        _ => device.write(last, &zeroes).and_then(|()| device.write(0, &first)),
    };
    wiped.and_then(|()| device.sync()).map_err(failed("wipe", place))
}

fn failed<'a>(doing: &'a str, place: &'a Path) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |error| StoreError::io(format!("{doing} {}", place.display()), error)
}

/// Opens a device; `missing` is the error text if there is none.
fn open_device(place: &Path, may_create: bool, missing: &str) -> Result<FileDevice, StoreError> {
    match FileDevice::open(place, may_create) {
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err(StoreError::NotPool { path: place.to_owned(), why: missing.to_owned() })
        }
        opened => opened,
    }
}

/// Makes the pool, unless a start that crashed has made it already.
fn make(device: &FileDevice, identity: u128) -> Result<(), StoreError> {
    let mut block = vec![0; BLOCK_BYTES];
    device.read(0, &mut block).map_err(failed("read", device.path()))?;
    let present = read_superblock(device);
    if present.as_ref().is_ok_and(|superblock| superblock.identity == identity) {
        return Ok(());
    }
    let bytes = bytes_max(device).map_err(failed("look at the space for", device.path()))?;
    match LocalPool::init(device, &Layout::for_bytes(identity, bytes)) {
        Err(StoreError::NotEmpty { path, found }) => {
            let is_other = matches!(
                Superblock::decode(&block),
                Err(SuperblockError::Version(_) | SuperblockError::Features(_))
            );
            let why = if present.is_ok() || is_other {
                "holds the pool of another data folder; name that folder, or put its file POOL \
                 into this one"
                    .to_owned()
            } else if found.contains("of a pool") {
                format!("{} ({found})", SuperblockError::Lost)
            } else {
                let found = kind_of(device).map_err(failed("read", &path))?.unwrap_or(found);
                format!(
                    "is not empty ({found}); name an empty device or file, or overwrite it with: \
                     evenkeel store init --force"
                )
            };
            Err(StoreError::NotPool { path, why })
        }
        made => made,
    }
}

/// Returns the kind of a device's contents, if it is a known one.
fn kind_of(device: &dyn Device) -> io::Result<Option<String>> {
    let mut bytes = vec![0; CHUNK_BYTES as usize];
    device.read(0, &mut bytes)?;
    let found = SIGNS.iter().find(|(_, at, sign)| bytes[*at..].starts_with(sign));
    Ok(found.map(|(name, ..)| (*name).to_owned()))
}

/// Known contents of disks: name, byte offset, and signature. A protective MBR has the signature of
/// a partition table, and so has a FAT at the same offset; the more specific one comes first.
const SIGNS: [(&str, usize, &[u8]); 14] = [
    ("an XFS file system", 0, b"XFSB"),
    ("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xef]),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("a LUKS container", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 0x200, b"LABELONE"),
    ("swap space", 0xff6, b"SWAPSPACE2"),
    ("a member of a Linux RAID", 0x1000, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("an NTFS file system", 3, b"NTFS"),
    ("a FAT file system", 0x52, b"FAT32"),
    ("a bcachefs or bcache device", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("a GPT partition table", 0x200, b"EFI PART"),
    ("a GPT partition table", 0x1000, b"EFI PART"),
    ("a partition table", 0x1fe, &[0x55, 0xaa]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use evenkeel_core::ids::VolumeId;

    const ID: VolumeId = VolumeId::from_bits(5);
    const SIZE: ByteCount = ByteCount(8 << 20);

    fn refused(path: &Path, device: Option<&Path>) -> String {
        LocalPool::in_folder(path, device).unwrap_err().to_string()
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let note = Note { identity: 0xfeed, session: 3, device: PathBuf::from("/dev/a b") };
        assert_eq!(Note::parse(&note.text()), Some(note));
        assert_eq!(Note::parse("evenkeel pool, format 2\n"), None);
    }

    #[test]
    fn a_folder_finds_its_pool_again() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let pool = LocalPool::in_folder(&path, None).unwrap();
        pool.create(ID, SIZE).unwrap();
        let taken = LocalPool::in_folder(&path, None).unwrap_err();
        assert!(matches!(taken, StoreError::InUse { .. }), "{taken}");
        drop(pool);
        let pool = LocalPool::in_folder(&path, None).unwrap();
        assert_eq!(pool.list().unwrap(), [(ID, SIZE)]);
        assert_eq!(Note::read(&path).unwrap().unwrap().session, 2);
    }

    #[test]
    fn a_start_that_was_cut_short_is_finished_by_the_next() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        drop(Folder::claim(&path, KIND).unwrap());
        let note = Note { identity: 7, session: 0, device: PathBuf::from(FILE) };
        note.write(&path).unwrap();
        // Once with a crash before the pool was made, once after it.
        drop(LocalPool::in_folder(&path, None).unwrap());
        note.write(&path).unwrap();
        drop(LocalPool::in_folder(&path, None).unwrap());
        assert_eq!(Note::read(&path).unwrap().unwrap(), Note { session: 2, ..note });
    }

    #[test]
    fn a_new_pool_in_a_named_file_needs_an_empty_file() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let place = parent.path().join("new");
        let error = refused(&path, Some(&place));
        assert!(error.contains("make an empty file") && error.contains("touch"), "{error}");
        assert!(!error.contains("bytes of all volumes") && !place.exists(), "{error}");
        fs::write(&place, "").unwrap();
        drop(LocalPool::in_folder(&path, Some(&place)).unwrap());
        fs::remove_file(&place).unwrap();
        assert!(refused(&path, Some(&place)).contains("bytes of all volumes"));
    }

    #[test]
    fn a_missing_place_of_a_new_pool_is_not_remembered() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        refused(&path, Some(&parent.path().join("mistyped")));
        assert_eq!(Note::read(&path).unwrap(), None);
        drop(LocalPool::in_folder(&path, None).unwrap());
        assert_eq!(Note::read(&path).unwrap().unwrap().device, Path::new(FILE));
    }

    #[test]
    fn a_pool_that_is_not_the_folders_is_named_and_the_right_one_is_found_again() {
        let parent = tempfile::tempdir().unwrap();
        let path = |name: &str| parent.path().join(name);
        let ours = path("ours");
        let pool = path("ours").join(FILE);
        drop(LocalPool::in_folder(&ours, None).unwrap());
        fs::copy(&pool, path("old")).unwrap();
        drop(LocalPool::in_folder(&ours, None).unwrap());
        fs::rename(&pool, path("aside")).unwrap();

        assert!(refused(&ours, None).contains("is missing"), "{}", refused(&ours, None));
        assert!(!pool.exists(), "opening never makes a pool");
        fs::copy(path("old"), &pool).unwrap();
        assert!(refused(&ours, None).contains("is an older copy"), "{}", refused(&ours, None));
        drop(LocalPool::in_folder(&path("theirs"), None).unwrap());
        fs::copy(path("theirs").join(FILE), &pool).unwrap();
        assert!(refused(&ours, None).contains("is another pool"), "{}", refused(&ours, None));
        fs::copy(path("aside"), &pool).unwrap();
        fs::OpenOptions::new().write(true).open(&pool).unwrap().set_len(1 << 20).unwrap();
        assert!(refused(&ours, None).contains("is too short"), "{}", refused(&ours, None));
        fs::write(&pool, "").unwrap();
        assert!(refused(&ours, None).contains("is empty"), "{}", refused(&ours, None));

        fs::remove_file(&pool).unwrap();
        drop(LocalPool::in_folder(&ours, Some(&path("aside"))).unwrap());
        // The folder has noted it as present by now.
        drop(LocalPool::in_folder(&ours, None).unwrap());
    }

    #[test]
    fn device_with_data_is_refused_until_it_is_wiped() {
        let parent = tempfile::tempdir().unwrap();
        let device = parent.path().join("disk");
        fs::write(&device, vec![0x53; 4_096]).unwrap();
        let data = parent.path().join("data");
        assert!(refused(&data, Some(&device)).contains("is not empty (byte 0 is 0x53)"));
        let mut ext4 = vec![0; 4_096];
        ext4[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
        fs::write(&device, ext4).unwrap();
        let found = refused(&data, Some(&device));
        assert!(found.contains("(an ext2, ext3 or ext4 file system)"), "{found}");
        drop(LocalPool::in_folder(&parent.path().join("other"), None).unwrap());
        let theirs = parent.path().join("other").join(FILE);
        assert!(refused(&data, Some(&theirs)).contains("of another data folder"));
        wipe(&device).unwrap();
        drop(LocalPool::in_folder(&data, Some(&device)).unwrap());
    }
}
