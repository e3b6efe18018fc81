//! Files in the data folder that are never flushed: they outlive the process, but not the machine.
//!
//! The kernel keeps their pages when the process is killed.

use evenkeel_os::clock::{BOOT_ID, boot_id};
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
    ///
    /// # Errors
    /// When the kernel does not name its run.
    fn run(&self) -> io::Result<u128>;
}

/// Files in a data folder, one for each node. Their folder is made with the first of them.
#[derive(Debug)]
pub struct LastingFiles {
    folder: PathBuf,
    pool: u128,
}

impl LastingFiles {
    /// Returns the files of a data folder, for the pool of this identity.
    #[must_use]
    pub fn in_folder(path: &Path, pool: u128) -> Self {
        Self { folder: path.join(FOLDER), pool }
    }

    fn path(&self, node: u32) -> PathBuf {
        self.folder.join(node.to_string())
    }
}

impl Lasting for LastingFiles {
    fn find(&self, node: u32) -> io::Result<Option<File>> {
        match rustix::fs::open(self.path(node), OPEN, Mode::empty()) {
            Ok(file) => Ok(Some(File::from(file))),
            // With a file in the place of the folder there are none, too.
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(at("open", &self.path(node), error.into())),
        }
    }

    fn make(&self, node: u32, bytes: u64) -> io::Result<File> {
        let flags = OPEN | OFlags::CREATE | OFlags::TRUNC;
        let path = self.path(node);
        std::fs::create_dir_all(&self.folder).map_err(|e| at("make", &self.folder, e))?;
        let file = rustix::fs::open(&path, flags, Mode::from_bits_truncate(0o600))
            .map_err(|error| at("make", &path, error.into()))?;
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            // File systems without this call: a write may find no room later.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(File::from(file)),
            Err(error) => {
                self.forget(node);
                Err(at("make room for", &path, error.into()))
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

    fn run(&self) -> io::Result<u128> {
        let named = |error| at("read", Path::new(BOOT_ID), error);
        let boot = boot_id().map_err(named)?;
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).map_err(io::Error::other).map_err(named)?;
        Ok(boot ^ self.pool)
    }
}

/// Adds what was done, and the path, to an error.
fn at(doing: &str, path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing} {}: {error}", path.display()))
}
