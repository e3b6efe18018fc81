//! Files in the data folder that are never flushed: they outlive the process, but not the machine.
//!
//! The kernel keeps their pages when the process is killed.

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of the files in the data folder.
pub const FOLDER: &str = "answered";
const OPEN: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Directory of files that outlive the process, one for each node.
pub trait Lasting: Send + Sync + fmt::Debug {
    /// Opens the file of a node that an earlier process has left; `None` if there is none.
    ///
    /// # Errors
    /// When there is a file that cannot be opened.
    fn find(&self, node: u32) -> io::Result<Option<File>>;

    /// Creates an empty file for a node, with room for this number of bytes.
    ///
    /// # Errors
    /// When it cannot be created, or there is no such room.
    fn make(&self, node: u32, bytes: u64) -> io::Result<File>;

    /// Removes a node's file.
    fn forget(&self, node: u32);

    /// Returns a number that names the run of the machine and the pool. Notes of another run may be
    /// older than the device.
    fn run(&self) -> u128;
}

/// Files in a data folder, one for each node.
#[derive(Debug)]
pub struct LastingFiles {
    folder: PathBuf,
    run: u128,
}

impl LastingFiles {
    /// Returns the files of a data folder, for the pool of this identity.
    ///
    /// # Errors
    /// When the folder cannot be made, or the kernel does not name its run.
    pub fn in_folder(path: &Path, pool: u128) -> io::Result<Self> {
        let folder = path.join(FOLDER);
        std::fs::create_dir_all(&folder)?;
        let boot = evenkeel_os::clock::boot_id()?;
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
        Ok(Self { folder, run: boot ^ pool })
    }

    fn path(&self, node: u32) -> PathBuf {
        self.folder.join(node.to_string())
    }
}

impl Lasting for LastingFiles {
    fn find(&self, node: u32) -> io::Result<Option<File>> {
        match rustix::fs::open(self.path(node), OPEN, Mode::empty()) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn make(&self, node: u32, bytes: u64) -> io::Result<File> {
        let flags = OPEN | OFlags::CREATE | OFlags::TRUNC;
        let file = rustix::fs::open(self.path(node), flags, Mode::from_bits_truncate(0o600))?;
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            // File systems without this call: a write may find no room later.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(File::from(file)),
            Err(error) => {
                self.forget(node);
                Err(error.into())
            }
        }
    }

    fn forget(&self, node: u32) {
        if let Err(error) = std::fs::remove_file(self.path(node))
            && error.kind() != io::ErrorKind::NotFound
        {
            // A later node with this number distinguishes the file from its own by the header.
            tracing::debug!(%error, node, "an unused file of answered writes is not removed");
        }
    }

    fn run(&self) -> u128 {
        self.run
    }
}
