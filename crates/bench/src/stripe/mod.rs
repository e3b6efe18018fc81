//! A stripe of NBD exports as one file, for loop devices and the file systems on them. It replaces
//! an LVM stripe where the kernel has no device-mapper.
//!
//! The file is a FUSE mount of its own, served by a thread of this process. Therefore nothing in
//! this process may use the file, or a file system on it: a killed process ends only when none of
//! its threads waits for the disk, and only then does the kernel abort the mount. Programs that use
//! it are processes of their own; when this one ends, in whatever way, they get errors.

mod fuse;
mod layout;
mod server;
mod volume;

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::fs::OFlags;
use rustix::mount::{MountFlags, mount};
use rustix::pipe::{PipeFlags, pipe_with};

use self::layout::Layout;
use self::server::Server;
use self::volume::Volume;
use evenkeel_lab::LabError;
use evenkeel_os::clock;

/// Volumes of a stripe at most.
pub const VOLUMES_MAX: usize = 64;
/// Chunks are multiples of this. It bounds the pieces of a request, and no block is in two pieces.
pub const CHUNK_BYTES_MIN: u32 = 4 << 10;

/// An export of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member<'a> {
    /// The unix socket of its server.
    pub socket: &'a Path,
    /// Its name there.
    pub export: &'a str,
}

/// A mounted striped file. Dropping it ends its service but does not unmount; the caller unmounts
/// before.
#[derive(Debug)]
pub struct Stripe {
    file: PathBuf,
    size_bytes: u64,
    /// Closing it ends the service.
    stop: Option<OwnedFd>,
    service: Option<JoinHandle<()>>,
}

impl Stripe {
    /// Mounts a stripe over `file`, which is created if it does not exist. It has as many whole
    /// chunks of each member as the smallest has.
    ///
    /// # Errors
    /// When a member cannot be reached, or the file cannot be mounted, which needs root.
    pub fn mount(file: &Path, members: &[Member<'_>], chunk_bytes: u32) -> Result<Self, LabError> {
        let is_whole = chunk_bytes > 0 && chunk_bytes.is_multiple_of(CHUNK_BYTES_MIN);
        if members.is_empty() || members.len() > VOLUMES_MAX || !is_whole {
            let what = format!(
                "a stripe of {} volumes with chunks of {chunk_bytes} bytes; use 1 to {VOLUMES_MAX} \
                 volumes and chunks of a multiple of {CHUNK_BYTES_MIN} bytes",
                members.len()
            );
            return Err(LabError::BadWorkload(what));
        }
        let mut volumes = Vec::new();
        let mut least_bytes = u64::MAX;
        for member in members {
            let opened = Volume::open(member.socket, member.export, clock::now());
            let (volume, bytes) =
                opened.map_err(LabError::io("cannot open a volume over", member.socket))?;
            volumes.push(volume);
            least_bytes = least_bytes.min(bytes);
        }
        let layout = Layout::new(members.len(), chunk_bytes);
        let size_bytes = layout.size_bytes(least_bytes);
        fs::write(file, []).map_err(LabError::io("cannot make", file))?;
        let device = Path::new("/dev/fuse");
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).custom_flags(flags).open(device);
        let opened = opened.map_err(LabError::io("cannot open", device))?;
        let data = format!("fd={},rootmode=100600,user_id=0,group_id=0", opened.as_raw_fd());
        let data = CString::new(data).unwrap_or_default();
        mount("evenkeel", file, "fuse", MountFlags::NOSUID | MountFlags::NODEV, &*data)
            .map_err(|error| LabError::io("cannot mount", file)(error.into()))?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(|error| LabError::io("cannot stop", file)(error.into()))?;
        let server = Server::new(opened, volumes, layout, size_bytes);
        let service = std::thread::Builder::new()
            .name("stripe".to_owned())
            .spawn(move || server.run(&stopped))
            .map_err(LabError::io("cannot serve", file))?;
        let stop = Some(stop);
        let service = Some(service);
        Ok(Self { file: file.to_owned(), size_bytes, stop, service })
    }

    /// Returns the file's path.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

impl Drop for Stripe {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(service) = self.service.take() {
            let _ = service.join();
        }
    }
}

#[cfg(test)]
mod tests;
