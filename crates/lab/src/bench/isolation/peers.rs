//! Other servers on files of the same disk.

use std::path::Path;

use super::Subject;
use crate::LabError;
use crate::bench::Export;
use crate::bench::compare::{Peer, PeerSize, Place, Running, Transport, nbdkit_file, qemu_limited};

/// IOPS of each of the three volumes, where a server can limit them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of the log.
    pub log_iops: u32,
    /// Of each neighbour.
    pub neighbour_iops: u32,
}

/// A server beside ours, with three disks. Dropping it stops it and removes them.
pub struct Disks {
    servers: Vec<Running>,
    name: &'static str,
    export: String,
}

impl Disks {
    /// Starts nbdkit on three files in `folder`, which no limit holds.
    ///
    /// # Errors
    /// When nbdkit is not installed or does not start.
    pub fn nbdkit(folder: &Path, span_mib: u32) -> Result<Self, LabError> {
        let peer = nbdkit_file();
        Self::start("nbdkit", &[peer.clone(), peer.clone(), peer], folder, span_mib)
    }

    /// Starts qemu-storage-daemon on three files in `folder`, each in a throttle group.
    ///
    /// # Errors
    /// When qemu-storage-daemon is not installed or does not start.
    pub fn qemu(folder: &Path, span_mib: u32, limits: Limits) -> Result<Self, LabError> {
        let [log, neighbour] = [limits.log_iops, limits.neighbour_iops].map(qemu_limited);
        Self::start("qemu throttle", &[log, neighbour.clone(), neighbour], folder, span_mib)
    }

    fn start(
        name: &'static str,
        peers: &[Peer],
        folder: &Path,
        span_mib: u32,
    ) -> Result<Self, LabError> {
        let place = Place { folder, files: folder, size: PeerSize { mib: span_mib } };
        let export = peers.first().map(|peer| peer.export.clone()).unwrap_or_default();
        let start = |(index, peer): (usize, &Peer)| peer.start(Transport::Unix, index, place);
        let servers = peers.iter().enumerate().map(start).collect::<Result<_, _>>()?;
        Ok(Self { servers, name, export })
    }

    /// The three as one server of the experiment.
    #[must_use]
    pub fn subject(&self) -> Subject {
        let [log, reads, writes] = [0, 1, 2].map(|index: usize| Export {
            socket: self.servers.get(index).map(|one| one.socket.clone()).unwrap_or_default(),
            name: self.export.clone(),
        });
        Subject { name: self.name.to_owned(), log, reads, writes }
    }
}
