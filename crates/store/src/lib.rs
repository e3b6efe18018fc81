//! Storage of volumes. A [`Pool`] creates, grows, opens and deletes volumes (rare, may block); a
//! [`Store`] is one open volume (every I/O, never blocks). The data plane accesses disks only
//! through these two traits.
//!
//! # Obligations of a store
//!
//! - Each submission is completed exactly once, with its buffer, whatever happens.
//! - A write is complete when a later read returns its data. It is *durable* only if it carried
//!   `fua`, or after the end of a flush that was submitted after the write's completion.
//! - A flush that fails with [`Failure::NoSpace`] has lost nothing, unless [`Store::must_reopen`]
//!   returns true: the store keeps the changes, and a later flush makes them durable.
//! - After a failed write the range has the old bytes, the new bytes, or a mixture in whole blocks,
//!   and the completion is an error. Data that cannot be read back as it was written is an error,
//!   and is never returned.
//! - Requests in flight together may take effect in any order. The caller enforces an order if it
//!   needs one.
//! - `submit` never blocks on the device: operations go to the [`Disk`] in its arguments, and their
//!   results come back through `disk_done`. A store with its own threads or timers submits a wait
//!   for an eventfd or a timerfd to the disk ([`disk::DiskAction::Readable`]), and is woken by its
//!   end.
//! - A store that owes no completion may still have operations on the disk, for itself. They end
//!   without further calls. The store is dropped, or moved to another disk, when [`Store::is_idle`]
//!   returns true.
//! - Bytes that were never written, or were discarded or zeroed, read as zeroes.
//!
//! [`conformance`] checks all of this; every store's tests call it.
#![deny(missing_docs)]

pub mod buffer;
pub mod conformance;
pub mod disk;
pub mod encryption;
pub mod faulty;
mod flush_marks;
pub mod folder;
pub mod forwarding;
mod held;
pub mod injected;
pub mod layout;
pub mod local;
pub mod memory;
pub mod rbd;
pub mod snapshots;
pub mod timer;
pub mod unaligned;

use buffer::Buffer;
use disk::{Disk, DiskDone};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use layout::PoolSeen;
use snapshots::Snapshots;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of extents in a reply. Finding each may take one or two system calls, and other
/// requests wait meanwhile.
pub const EXTENTS_MAX: usize = 64;

/// One request to a store. The caller has checked range and alignment against [`Geometry`].
#[derive(Debug)]
pub struct Submission {
    /// The caller's own number, returned in the completion.
    pub ticket: u64,
    /// The operation, with its flags.
    pub operation: Operation,
    /// First byte.
    pub offset: u64,
    /// Bytes concerned.
    pub length: u32,
    /// Payload of a write, room for a read (at least `length` long); `None` otherwise.
    pub buffer: Option<Buffer>,
}

/// The end of one request.
#[derive(Debug)]
pub struct Completion {
    /// As submitted.
    pub ticket: u64,
    /// Success, or the reason of the failure.
    pub result: Result<(), Failure>,
    /// The buffer that was submitted.
    pub buffer: Option<Buffer>,
    /// For [`Operation::BlockStatus`]: the extents of the range from its beginning, in order and
    /// without gaps; from one to [`EXTENTS_MAX`]. They may end before the range does; the client
    /// then asks again.
    pub extents: Vec<Extent>,
}

/// A contiguous part of a volume with one status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length in bytes.
    pub length: u32,
    /// Nothing is stored for it.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
}

/// Size and block sizes of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Size in bytes; a multiple of `block_bytes_min`.
    pub size: ByteCount,
    /// Offsets and lengths must be multiples of this.
    pub block_bytes_min: u32,
    /// The unit that costs the store the least.
    pub block_bytes_preferred: u32,
}

/// One open volume. See the module's obligations.
pub trait Store: Send {
    /// Size and block sizes at present.
    fn geometry(&self) -> Geometry;

    /// Begins a request. Completions appear in [`Store::poll`], at once or after `disk_done`.
    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk);

    /// Takes the result of a [`disk::DiskOp`] this store submitted.
    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk);

    /// The next finished request. Drain after `submit` and `disk_done`.
    fn poll(&mut self) -> Option<Completion>;

    /// Returns whether the store carries out a discard or a write of zeroes by writing bytes,
    /// instead of recording once that the range is empty. Such a request costs as much as a write.
    fn writes_zeroes(&self, operation: Operation) -> bool;

    /// Records that [`Pool::resize`] has grown the volume to `size`.
    fn resized(&mut self, size: ByteCount);

    /// Returns whether the store has no operation on the disk, neither for a request nor for
    /// itself.
    fn is_idle(&self) -> bool {
        true
    }

    /// Begins to close the volume, so that its next opening has less to do. All requests are
    /// complete, and no other one is submitted. The volume is closed when [`Self::is_idle`] returns
    /// true.
    fn close(&mut self, _: &mut dyn Disk) {}

    /// Begins the tasks that the pool has queued for this volume, such as a snapshot, or freeing
    /// the blocks of a deleted one.
    fn attend(&mut self, _: &mut dyn Disk) {}

    /// Does the work that waits for a pause: no request was submitted for a second.
    fn rest(&mut self, _: &mut dyn Disk) {}

    /// Returns whether the store refuses changes until it is reopened, because it could not make
    /// something durable.
    fn must_reopen(&self) -> bool {
        false
    }
}

/// Bytes of metadata that one call of [`Pool::look_at`] reads, approximately.
pub const LOOKED_BYTES: u64 = 256 << 10;

/// Result of reading a part of a store's metadata.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Looked {
    /// Place of the next part; `None` after the last.
    pub next: Option<u64>,
    /// Bytes that were read.
    pub bytes: u64,
    /// Byte offsets in the device at which data does not match its checksum.
    pub rotten: Vec<u64>,
}

/// Damage that a salvaged volume has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Salvaged {
    /// Blocks of its log that cannot be read. The changes in them are lost: blocks of the volume
    /// hold what they held before, or cannot be read if that was overwritten.
    pub log_blocks: u64,
    /// Pages of its map that cannot be read. Each has 512 blocks of the volume, or pages below it.
    pub map_pages: u64,
    /// Blocks of the volume that a later change named, below a page that cannot be read.
    pub unreachable_blocks: u64,
    /// Blocks of the volume whose old data was overwritten with data that other blocks have now:
    /// reading them is an error until they are written.
    pub lost_blocks: u64,
}

/// State of a pool itself, apart from its volumes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolHealth {
    /// Copies of duplicated metadata that were damaged or unreadable and were rewritten: when the
    /// pool or a volume was opened, or by a scrub.
    pub copies_mended: u64,
    /// Volumes that were salvaged and lost something, since the pool was opened.
    pub volumes_salvaged: u64,
    /// Volumes that are not open, most of them deleted, whose remaining work fails.
    pub unfinished: u64,
    /// Volumes that are not open, whose remaining work needs space that the pool does not have.
    pub without_space: u64,
    /// Sectors of the pool's tables that are damaged in both copies.
    pub damaged_sectors: u64,
}

/// Creates and opens volumes. Calls may block; the data plane makes them outside its reactors.
///
/// The caller knows which volumes exist, and their sizes. A pool does not replace what is missing:
/// only [`Pool::create`] creates bytes, only [`Pool::resize`] adds some.
pub trait Pool: Send + Sync {
    /// Returns a description of the store for people, with its kind.
    fn describe(&self) -> String;

    /// Creates an empty volume. Succeeds if it exists with this size, and fails if it has another
    /// one.
    ///
    /// # Errors
    /// When there is no room, or the store below fails.
    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError>;

    /// Creates an empty volume, as [`Self::create`], whose data is encrypted.
    ///
    /// # Errors Those of [`Self::create`], and [`StoreError::Locked`] if there is no key.
    fn create_encrypted(&self, id: VolumeId, _: ByteCount) -> Result<(), StoreError> {
        let why = format!("the store ({}) does not encrypt", self.describe());
        Err(StoreError::Locked { id, why })
    }

    /// Returns whether a volume is encrypted; false if there is no such volume.
    fn is_encrypted(&self, _: VolumeId) -> bool {
        false
    }

    /// Opens a volume that has `size`. At most one store of a volume is open at a time. Space
    /// beyond the end that an abandoned growth left, and that no client has written to, is removed.
    ///
    /// # Errors
    /// When there is none ([`StoreError::NotFound`]), its bytes are fewer or more than `size`
    /// ([`StoreError::Differs`]), it is open already, or the store below fails.
    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError>;

    /// Makes a damaged volume that cannot be opened openable, with the data that can be read.
    /// Returns what it has lost; nothing if it can be opened already.
    ///
    /// # Errors
    /// When the store cannot do that, the volume is open, or what must be read is damaged, too.
    fn salvage(&self, id: VolumeId) -> Result<Salvaged, StoreError> {
        let doing = format!("salvage {id} in the store ({})", self.describe());
        Err(StoreError::io(doing, io::ErrorKind::Unsupported))
    }

    /// Grows a volume of `from` bytes to `to`, open or not. The new bytes read as zeroes. Done if
    /// it has `to` already; then what is there stays.
    ///
    /// # Errors
    /// When `to` is less than `from` ([`StoreError::Size`]), there is no such volume, it has fewer
    /// bytes than `from` or more than `to` ([`StoreError::Differs`]), or the store below fails.
    fn resize(&self, id: VolumeId, from: ByteCount, to: ByteCount) -> Result<(), StoreError>;

    /// Deletes a volume that is not open. Done, and durably so, if there is none.
    ///
    /// # Errors
    /// When it is open or the store below fails. [`StoreError::Unfinished`] if its bytes may be
    /// gone, but not durably: it is never opened again, and deleted once more.
    fn delete(&self, id: VolumeId) -> Result<(), StoreError>;

    /// All volumes with their sizes, in the order of their ids.
    ///
    /// # Errors
    /// When the store below fails.
    fn list(&self) -> Result<Vec<(VolumeId, ByteCount)>, StoreError>;

    /// Returns how much data a volume has, in whole blocks, as a snapshot of it would have. `None`
    /// if there is no such volume, or its data is not counted.
    fn filled(&self, _: VolumeId) -> Option<ByteCount> {
        None
    }

    /// Reads a part of the store's metadata, about [`LOOKED_BYTES`], and verifies its checksums.
    /// The first part is at place 0; each part returns the place of the next. Damaged metadata that
    /// is still in memory is rewritten, at once or when the store of its volume attends to the
    /// pool.
    ///
    /// # Errors
    /// When the store below fails.
    fn look_at(&self, _: u64) -> Result<Looked, StoreError> {
        Ok(Looked::default())
    }

    /// Whether there are bytes of a volume, whatever their size.
    ///
    /// # Errors
    /// When the store below fails.
    fn has(&self, id: VolumeId) -> Result<bool, StoreError> {
        Ok(self.list()?.iter().any(|(listed, _)| *listed == id))
    }

    /// Returns the space for stored bytes; `None` if it is not known.
    ///
    /// # Errors
    /// When the store below fails.
    fn space(&self) -> Result<Option<Space>, StoreError>;

    /// Returns the state of the pool itself, from memory.
    fn health(&self) -> PoolHealth {
        PoolHealth::default()
    }

    /// Returns the pool's layout and state; `None` if it is on one machine. Does not ask servers
    /// that may be down while the store serves, so [`Layout::recovery`](layout::Layout::recovery)
    /// is left out.
    ///
    /// # Errors
    /// When the store below fails.
    fn look_around(&self) -> Result<Option<PoolSeen>, StoreError> {
        Ok(None)
    }

    /// Returns which mechanism decides between clients and recovery, if that is known. May block
    /// without a bound, so a server does not call it.
    fn recovery(&self) -> Option<String> {
        None
    }

    /// Waits until a volume whose store was dropped is closed completely, so that another process
    /// can open it. Returns at once if the store closes as it is dropped, or was not open.
    ///
    /// # Errors
    /// [`StoreError::Open`] if it is open; [`StoreError::Closing`] if the storage below does not
    /// answer in time; another call continues to wait. [`StoreError::Cluster`] if this process is
    /// fenced: the volume may still be locked.
    fn wait_closed(&self, _: VolumeId) -> Result<(), StoreError> {
        Ok(())
    }

    /// Notes durably that a flush of a volume has failed, for the next process that opens it. A
    /// store whose bytes end with the process notes nothing.
    ///
    /// # Errors
    /// When the store below fails. It may be noted all the same.
    fn note_failed_flush(&self, _: VolumeId) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns whether a failed flush of the volume is noted and has not been forgotten since.
    ///
    /// # Errors
    /// When the store below fails.
    fn has_failed_flush(&self, _: VolumeId) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Removes the note of a failed flush. Succeeds if there is none.
    ///
    /// # Errors
    /// When the store below fails.
    fn forget_failed_flush(&self, _: VolumeId) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns whether another process serves the bytes, so that this one may not use them again.
    /// The server then ends.
    fn is_taken_over(&self) -> bool {
        false
    }

    /// Calls `tell` once this process is [taken over](Self::is_taken_over) by another node of its
    /// cluster, at once if it is already. It replaces what an earlier call has passed. Stores that
    /// nodes do not share never call it. `tell` runs on a thread of the data plane: it must not
    /// block.
    fn when_taken_over(&self, tell: Box<dyn FnOnce() + Send>) {
        drop(tell);
    }

    /// Returns the name of this process at the store, if the store distinguishes processes by
    /// names.
    fn instance(&self) -> Option<String> {
        None
    }

    /// Asks the store whether this process was [taken over](Self::is_taken_over) while it made no
    /// request. Waits for as long as the store does.
    ///
    /// # Errors If it was taken over, or the store does not confirm that it was not.
    fn look(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Checks that the bytes belong to the cluster that this process is a node of, and not to
    /// another one with its name. A node calls it before it decides anything for the cluster.
    ///
    /// # Errors
    /// [`StoreError::Cluster`] if they are another's; or when the store below fails.
    fn check_owner(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether a process was fenced.
    ///
    /// # Errors
    /// When the store below fails.
    fn is_fenced(&self, _instance: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Fences a node of the same cluster: it can change no volume after this call, whatever it
    /// still has under way, so another node may serve its volumes. This cannot be undone. A process
    /// of that node that still runs is [taken over](Self::is_taken_over).
    ///
    /// # Errors
    /// When the cluster does not answer; or there is none.
    fn fence(&self, node: &str) -> Result<(), StoreError> {
        let why = format!("the store has no other nodes, so {node} cannot be fenced");
        Err(StoreError::Cluster { why })
    }

    /// Its snapshots, if it can make any.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }
}

/// Room for bytes at rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes that all volumes can fill together: those in use, and those that are free.
    pub total: ByteCount,
    /// Bytes that are free.
    pub free: ByteCount,
}

/// Reason for which an operation of a pool failed.
#[derive(Debug)]
pub enum StoreError {
    /// The folder holds something that is not ours.
    NotOurs {
        /// The folder.
        path: PathBuf,
        /// The first thing found in it.
        found: String,
    },
    /// A device or file that must be empty is not.
    NotEmpty {
        /// The device or file.
        path: PathBuf,
        /// Description of the contents that were found.
        found: String,
    },
    /// The folder was written by a format this version does not read.
    Format {
        /// The marker file.
        path: PathBuf,
        /// The format that it names.
        found: String,
    },
    /// Another process serves this folder.
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Another program holds the device or the file of a pool.
    Held {
        /// The device or file.
        path: PathBuf,
    },
    /// The folder's volumes are in a store of another kind.
    OtherKind {
        /// The marker file.
        path: PathBuf,
        /// The kind of store that holds them.
        present: String,
        /// The kind that was asked for.
        asked: &'static str,
    },
    /// No such volume.
    NotFound {
        /// The volume.
        id: VolumeId,
        /// The device, file or pool of a Ceph cluster that should hold its bytes; `None` if that
        /// was memory.
        path: Option<PathBuf>,
    },
    /// The bytes at rest are fewer or more than the volume has.
    Differs {
        /// The volume.
        id: VolumeId,
        /// Bytes of the volume in the store.
        present: ByteCount,
        /// Bytes that the volume should have.
        expected: ByteCount,
    },
    /// A deletion has begun and is not durable yet.
    Unfinished {
        /// The volume.
        id: VolumeId,
        /// The operation and its object.
        doing: String,
        /// The error.
        source: io::Error,
    },
    /// An object with this id exists already.
    Exists {
        /// The object.
        what: String,
    },
    /// The object is still being created.
    Unready {
        /// The object.
        what: String,
    },
    /// No such snapshot.
    NoSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// A unit of a snapshot that it does not have, or bytes that are not as many as the unit has.
    Unit {
        /// The snapshot.
        id: SnapshotId,
        /// The error, with the unit and sizes concerned.
        why: String,
    },
    /// The volume is encrypted, and its key cannot be had.
    Locked {
        /// The volume or the snapshot.
        id: VolumeId,
        /// The reason, with advice for the operator.
        why: String,
    },
    /// The Ceph cluster, or what is needed to use it, cannot be had.
    Cluster {
        /// The error, with advice for the operator.
        why: String,
    },
    /// Another server has the volume.
    Elsewhere {
        /// The volume.
        id: VolumeId,
        /// The address of its connection to the cluster.
        address: String,
    },
    /// The volume is open.
    Open {
        /// The volume.
        id: VolumeId,
    },
    /// The volume is being closed, and that takes long.
    Closing {
        /// The volume.
        id: VolumeId,
    },
    /// The volume has another size than asked, or would shrink.
    Size {
        /// The volume.
        id: VolumeId,
        /// The volume's size.
        present: ByteCount,
        /// The size that was requested.
        asked: ByteCount,
    },
    /// The device has no pool that this version reads.
    NotPool {
        /// The device or file.
        path: PathBuf,
        /// Description of the contents that were found, with advice for the operator.
        why: String,
    },
    /// Data on the device does not match its checksum.
    Rotten {
        /// The damaged object and where it is.
        what: String,
    },
    /// A system call failed.
    Io {
        /// The operation and its object.
        doing: String,
        /// The error.
        source: io::Error,
    },
}

impl StoreError {
    /// Returns whether the cause is a lack of space.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    }

    /// Returns whether the volume's bytes are missing, or are not those of the volume.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. }
                | Self::Differs { .. }
                | Self::Rotten { .. }
                | Self::Locked { .. }
        )
    }

    /// Converts the failure of a request that the store's own code made.
    pub(crate) fn of_request(doing: String, failure: Failure) -> Self {
        let kind = match failure {
            Failure::NoSpace => io::ErrorKind::StorageFull,
            _ => io::ErrorKind::Other,
        };
        Self::io(doing, io::Error::new(kind, format!("{failure:?}")))
    }

    pub(crate) fn io(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { doing: doing.into(), source: source.into() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs { path, found } => not_ours(f, path, found),
            Self::NotEmpty { path, found } => {
                write!(f, "{} is not empty ({found}); name an empty device or file", path.display())
            }
            Self::Format { path, found } => write!(
                f,
                "{} says {found:?}; this version reads {:?}; use the version that wrote the folder",
                path.display(),
                folder::FORMAT
            ),
            Self::OtherKind { path, present, asked } => other_kind(f, path, present, asked),
            Self::InUse { path } => write!(
                f,
                "{} is in use by another evenkeel process; stop it, or name another folder",
                path.display()
            ),
            Self::Held { path } => held(f, path),
            Self::NotFound { id, path: Some(path) } => write!(
                f,
                "the bytes of volume {id} are missing: they are not in {}; put back the pool that \
                 belongs to this control.db, or delete the volume",
                path.display()
            ),
            Self::NotFound { id, path: None } => write!(
                f,
                "the store holds no volume {id}: its data were in memory and are lost with the \
                 process that served it; delete the volume"
            ),
            Self::Differs { id, present, expected } => differs(f, *id, *present, *expected),
            Self::Unfinished { id, doing, source } => write!(
                f,
                "volume {id} is being deleted, but that is not durable yet: failed to {doing}: \
                 {source}; it is tried again"
            ),
            Self::Exists { what } => write!(f, "there is {what} already; choose another id"),
            Self::Unready { what } => write!(f, "{what} is still being made; try again"),
            Self::NoSnapshot { id } => write!(f, "the store holds no snapshot {id}"),
            Self::Unit { id, why } => write!(f, "{id}: {why}"),
            Self::Locked { id, why } => {
                write!(f, "volume {id} is encrypted, and its key cannot be had: {why}")
            }
            Self::Cluster { why } => f.write_str(why),
            Self::Elsewhere { id, address } => elsewhere(f, *id, address),
            Self::Closing { id } => closing(f, *id),
            Self::Open { id } => write!(f, "volume {id} is open; close it first"),
            Self::Size { id, present, asked } => {
                write!(f, "volume {id} has {present} and cannot become {asked}; volumes only grow")
            }
            Self::NotPool { path, why } => write!(f, "{} {why}", path.display()),
            Self::Rotten { what } => rotten(f, what),
            Self::Io { doing, source } => write!(f, "failed to {doing}: {source}"),
        }
    }
}

/// Writes the message for a folder that is not an Evenkeel data folder.
fn not_ours(f: &mut fmt::Formatter<'_>, path: &Path, found: &str) -> fmt::Result {
    write!(
        f,
        "{} is not empty and not an Evenkeel data folder (it holds {found:?}); name an empty or a \
         new folder",
        path.display()
    )
}

/// Writes the message for a folder whose volumes are in a store of another kind.
fn other_kind(f: &mut fmt::Formatter<'_>, path: &Path, present: &str, asked: &str) -> fmt::Result {
    let path = path.display();
    write!(f, "{path} says that its volumes are in the store \"{present}\", ")?;
    if folder::KINDS.contains(&present) {
        return write!(
            f,
            "and \"{asked}\" would find none of them; serve with --store {present}, or name \
             another folder"
        );
    }
    f.write_str(
        "which this version does not have; use the version that wrote the folder, or name another \
         folder",
    )
}

/// Writes the message for a volume with another size in the store.
fn differs(
    f: &mut fmt::Formatter<'_>,
    id: VolumeId,
    present: ByteCount,
    expected: ByteCount,
) -> fmt::Result {
    write!(
        f,
        "volume {id} has {expected}, but the store holds {present} of it: control.db and the pool \
         do not belong together; put back the one that belongs to the other. Without it, `volume \
         adopt` keeps the data: stop the server, move control.db* away, start it, and see `volume \
         unowned` and docs/operating/store.md. A deletion of the volume deletes its data"
    )
}

/// Writes the message for a volume that another server has.
fn elsewhere(f: &mut fmt::Formatter<'_>, id: VolumeId, address: &str) -> fmt::Result {
    write!(
        f,
        "volume {id} is served by another server, whose connection to the Ceph cluster is \
         {address}; stop that one first"
    )
}

/// Writes the message for a volume whose closing takes long.
fn closing(f: &mut fmt::Formatter<'_>, id: VolumeId) -> fmt::Result {
    write!(f, "volume {id} is not closed yet: the store does not answer; try again")
}

/// Writes the message for a device or file that another program holds.
fn held(f: &mut fmt::Formatter<'_>, path: &Path) -> fmt::Result {
    let path = path.display();
    write!(
        f,
        "{path} is held by another program: a server that serves this pool, perhaps for a copy of \
         the data folder, or a file system that is mounted; stop it (`fuser -v {path}` names it)"
    )
}

fn rotten(f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
    write!(
        f,
        "{what} is not as it was written: the device has changed it; restore the volume from a \
         copy, or delete it"
    )
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::Unfinished { source, .. } => Some(source),
            _ => None,
        }
    }
}
