//! Memory that outlives the process, but not the machine: pages of files in the data folder, which
//! the kernel keeps when the process is killed.

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// The folder of the files in the data folder.
pub const FOLDER: &str = "answered";
const OPEN: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Where the kernel names its present run.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Who gives volumes memory that outlives the process.
pub trait Lasting: Send + Sync + fmt::Debug {
    /// What an earlier process has left of a node, if anything.
    ///
    /// # Errors
    /// When there is something that cannot be read.
    fn find(&self, node: u32) -> io::Result<Option<Region>>;

    /// Memory of so many bytes for a node of which nothing was found.
    ///
    /// # Errors
    /// When there is no space for it.
    fn make(&self, node: u32, bytes: usize) -> io::Result<Region>;

    /// Forgets a node's memory.
    fn forget(&self, node: u32);

    /// Names the run of the machine, and the pool: what was noted under another name may be older
    /// than what is on the device.
    fn run(&self) -> u128;
}

/// Memory that is mapped from a file. Nobody else has it mapped.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, like that of a box.
unsafe impl Send for Region {}

impl Region {
    /// Maps the first `bytes` of a file, which is made that long, with space for all of it.
    ///
    /// # Errors
    /// When there is no space, or the file cannot be mapped.
    pub fn of(file: &File, bytes: usize) -> io::Result<Self> {
        // A page without space would end the process when it is first written to.
        match fallocate(file, FallocateFlags::empty(), 0, bytes as u64) {
            Err(Errno::OPNOTSUPP) => file.write_all_at(&vec![0; bytes], 0)?,
            allocated => allocated?,
        }
        Self::mapped(file, bytes)
    }

    /// Maps a file as it is.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn found(file: &File) -> io::Result<Self> {
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        Self::mapped(file, bytes)
    }

    fn mapped(file: &File, bytes: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses where; nothing is mapped there.
        let start = unsafe {
            mmap(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(io::Error::other("memory was mapped at 0"));
        };
        // What is locked need not be read from the disk again. It may not be allowed.
        // SAFETY: it was mapped just now.
        let _ = unsafe { mlock(start.as_ptr().cast(), bytes) };
        Ok(Self { start, bytes })
    }

    /// What it holds.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped as long as this lives, and changed by its owner only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The same, to change it.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Changes eight bytes at once, after everything that was changed before, and before everything
    /// that is changed later: so it is found when the process was killed at any moment.
    ///
    /// # Panics
    /// If they are not in the memory, or not aligned.
    pub fn publish(&mut self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "{at} is no place for a number");
        // SAFETY: the place is mapped and aligned, since the start of a mapping is.
        let place = unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) };
        // The kernel sees what the processor has done in the order of the program.
        compiler_fence(Ordering::SeqCst);
        place.store(value.to_le(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Files in a data folder, one for each node.
#[derive(Debug)]
pub struct LastingFiles {
    folder: PathBuf,
    run: u128,
}

impl LastingFiles {
    /// The files of a data folder, for the pool of this identity.
    ///
    /// # Errors
    /// When the folder cannot be made, or the kernel does not name its run.
    pub fn in_folder(path: &Path, pool: u128) -> io::Result<Self> {
        let folder = path.join(FOLDER);
        std::fs::create_dir_all(&folder)?;
        let boot = std::fs::read_to_string(BOOT)?;
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
        Ok(Self { folder, run: boot ^ pool })
    }

    fn path(&self, node: u32) -> PathBuf {
        self.folder.join(node.to_string())
    }
}

impl Lasting for LastingFiles {
    fn find(&self, node: u32) -> io::Result<Option<Region>> {
        match rustix::fs::open(self.path(node), OPEN, Mode::empty()) {
            // An empty one was being made.
            Ok(file) => match File::from(file) {
                file if file.metadata()?.len() == 0 => Ok(None),
                file => Region::found(&file).map(Some),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn make(&self, node: u32, bytes: usize) -> io::Result<Region> {
        let flags = OPEN | OFlags::CREATE | OFlags::TRUNC;
        let file = rustix::fs::open(self.path(node), flags, Mode::from_bits_truncate(0o600))?;
        Region::of(&File::from(file), bytes)
    }

    fn forget(&self, node: u32) {
        if let Err(error) = std::fs::remove_file(self.path(node))
            && error.kind() != io::ErrorKind::NotFound
        {
            // It is nobody's: whoever has this number next tells that from its own.
            tracing::debug!(%error, node, "a file of answered writes stays that nobody needs");
        }
    }

    fn run(&self) -> u128 {
        self.run
    }
}
