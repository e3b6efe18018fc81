//! Disks of other servers that have a limiter of their own, to be held to the same promise.

use std::path::Path;

use super::compare::{Peer, PeerSize, Place, Running, Transport, nbdkit_limited, qemu_limited};
use super::{NbdUri, durable};
use crate::LabError;

/// A server with one disk. Dropping it stops it and removes the disk.
pub struct LimitedDisk {
    server: Running,
}

impl LimitedDisk {
    /// nbdkit's disk in memory, held to so many bytes per second by its `rate` filter: it knows no
    /// limit in IOPS.
    ///
    /// # Errors
    /// When nbdkit is not installed or does not start.
    pub fn nbdkit(folder: &Path, mib: u32, bytes_per_second: u64) -> Result<Self, LabError> {
        Self::start(&nbdkit_limited(bytes_per_second), folder, mib)
    }

    /// qemu-storage-daemon's disk in a file of `folder`, held to so many I/Os of up to 256 KiB per
    /// second by a throttle group. All of it is written: reads of what never was pass the limiter.
    ///
    /// # Errors
    /// When qemu-storage-daemon is not installed, does not start, or refuses the writes.
    pub fn qemu(folder: &Path, mib: u32, iops: u32) -> Result<Self, LabError> {
        let peer = qemu_limited(iops);
        let disk = Self::start(&peer, folder, mib)?;
        durable::fill(&disk.server.socket, &peer.export, PeerSize { mib }.bytes())?;
        Ok(disk)
    }

    fn start(peer: &Peer, folder: &Path, mib: u32) -> Result<Self, LabError> {
        let place = Place { folder, files: folder, size: PeerSize { mib } };
        Ok(Self { server: peer.start(Transport::Unix, 0, place)? })
    }

    /// Where it is.
    #[must_use]
    pub const fn uri(&self) -> &NbdUri {
        &self.server.uri
    }
}
