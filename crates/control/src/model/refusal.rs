//! Why a command is refused, as data. `api/error.rs` converts it to an EC2 error.

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{InvalidSpec, VolumeType};

use super::{OverQuota, PublicAccess, Shortfall, SpaceShort, UnixMs, VolumeState};

/// Why a command is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// These volumes do not exist.
    VolumesNotFound(Vec<VolumeId>),
    /// These hosts do not exist.
    InstancesNotFound(Vec<InstanceId>),
    /// The combination of type, size and limits is illegal.
    Spec(InvalidSpec),
    /// Not enough capacity is left to sell.
    Capacity(Box<Shortfall>),
    /// The zone does not exist.
    UnknownZone(String),
    /// Volume and host are in different zones.
    ZoneMismatch(VolumeId, InstanceId),
    /// The volume cannot be deleted while it is attached.
    VolumeInUse(VolumeId, InstanceId),
    /// The volume is attached and cannot be attached again.
    AlreadyAttached(VolumeId),
    /// The volume's state does not allow this.
    NotAvailable(VolumeId, VolumeState),
    /// Another change of the volume is not confirmed yet.
    Unsettled(VolumeId),
    /// Not a device name.
    DeviceMalformed(String),
    /// The host has another volume under this device name.
    DeviceTaken(String),
    /// The Multi-Attach volume has the maximum of attachments.
    AttachmentLimit(VolumeId),
    /// The volume is attached to a host with the same address: the data plane could not distinguish
    /// the requests of the two hosts.
    AddressShared {
        /// The volume.
        volume: VolumeId,
        /// The host in the request.
        instance: InstanceId,
        /// The host with the same address to which it is attached.
        other: InstanceId,
    },
    /// The volume is not attached at all.
    NotAttached(VolumeId, VolumeState),
    /// The volume is not attached to this host.
    NotAttachedTo(VolumeId, InstanceId),
    /// The volume is attached under another device name.
    NotAttachedAs(VolumeId, InstanceId, String),
    /// The volume is attached several times, so the host must be named.
    InstanceMustBeNamed(VolumeId),
    /// The previous modification is not completed; the text is its state.
    ModificationUnfinished(VolumeId, &'static str),
    /// Too many recent modifications (policy `aws`).
    ModificationRate {
        /// Modifications allowed in the window; 1 for the older rule of a waiting time after each.
        modifications_max: u32,
        /// Length of the window in hours.
        hours: u32,
        /// When the next modification is allowed.
        next: UnixMs,
    },
    /// Multi-Attach cannot be switched while the volume is attached.
    MultiAttachWhileAttached(VolumeId),
    /// The resource cannot be tagged.
    NotTaggable(String),
    /// Too many tags on one resource.
    TooManyTags(String),
    /// The client token was used for another request.
    TokenReused(String),
    /// The maximum number of signatures that were made ahead of the server's clock is stored: this
    /// many.
    TooManySignatures(usize),
    /// The control plane has the maximum number of volumes.
    TooManyVolumes,
    /// The control plane has the maximum number of hosts.
    TooManyHosts,
    /// A new random id exists already: a chance of one in 2^68.
    IdTaken(String),
    /// Not enough space is left for its bytes.
    Space(Box<SpaceShort>),
    /// The store has no such bytes without a volume: they do not exist, or belong to a volume.
    NotUnowned(VolumeId),
    /// Bytes without a volume that a data plane has open.
    UnownedServed(VolumeId),
    /// The instance type does not exist.
    UnknownInstanceType(String),
    /// The host has volumes attached.
    HostBusy(InstanceId, VolumeId),
    /// The local machine cannot be removed.
    HostIsLocal(InstanceId),
    /// These snapshots do not exist.
    SnapshotsNotFound(Vec<SnapshotId>),
    /// No volume can be made of the snapshot in its present state.
    SnapshotUnready(SnapshotId, &'static str),
    /// The volume to be made of a snapshot is smaller than the snapshot.
    BelowSnapshot {
        /// The snapshot.
        id: SnapshotId,
        /// The size that was requested.
        size_gib: u32,
        /// The least size.
        least_gib: u32,
    },
    /// A copy of a volume is smaller than its source.
    BelowSource {
        /// The source.
        id: VolumeId,
        /// The size that was requested.
        size_gib: u32,
        /// The least size.
        least_gib: u32,
    },
    /// Another copy of the volume is in progress.
    BeingCopied {
        /// The source.
        id: VolumeId,
        /// The copy.
        copy: VolumeId,
    },
    /// This number of copies of volumes, the maximum, is in progress.
    TooManyVolumeCopies(usize),
    /// This number of copies of snapshots, the maximum, is in progress.
    TooManySnapshotCopies(usize),
    /// The snapshot is being copied, so it cannot be deleted.
    SnapshotBeingCopied {
        /// The snapshot.
        id: SnapshotId,
        /// The copy, or the volume that begins as one.
        copy: String,
    },
    /// The request or the account demands encryption, and the store has no key.
    NoKey,
    /// The snapshot has a lock in this state.
    SnapshotLocked(SnapshotId, &'static str),
    /// The lock ends at this time, and can only be extended.
    LockedForGood(SnapshotId, Option<UnixMs>),
    /// The snapshot is not locked.
    NotLocked(SnapshotId),
    /// The snapshot is archived, and must be restored first.
    SnapshotArchived(SnapshotId),
    /// The snapshot is restored from the archive until this time, and counts as archived
    /// afterwards.
    SnapshotRestored(SnapshotId, UnixMs),
    /// The snapshot is not archived.
    NotArchived(SnapshotId),
    /// The snapshot has fast restore, so it cannot be archived.
    ArchiveOfFast(SnapshotId),
    /// The volume has as many archived snapshots as the quota allows.
    ArchiveQuota(VolumeId, usize),
    /// The account's setting forbids to share the snapshot with all accounts.
    PublicAccessBlocked(SnapshotId, PublicAccess),
    /// The snapshot is shared with the maximum number of accounts.
    TooManyShares(SnapshotId),
    /// The snapshot has more GiB than this limit of fast restore.
    TooLargeForFastRestore(SnapshotId, u32),
    /// This number of snapshots, the maximum, has fast restore.
    TooManyFast(usize),
    /// The host is terminated.
    HostTerminated(InstanceId),
    /// The number of snapshots has reached this quota.
    SnapshotQuota(usize),
    /// Volumes of a type would have more bytes than the quota allows.
    StorageQuota {
        /// The type.
        volume_type: VolumeType,
        /// GiB of all others of that type.
        gib: u64,
        /// GiB of this one.
        asked: u64,
        /// The quota, in TiB.
        tib: u64,
    },
    /// Volumes of a type would have more provisioned IOPS than the quota allows.
    IopsQuota {
        /// The type.
        volume_type: VolumeType,
        /// Those of all others of that type.
        present: u64,
        /// Those of this one.
        asked: u64,
        /// The quota.
        most: u64,
    },
    /// All volumes of the account would have more than a quota of the operator's allows.
    OverQuota(OverQuota),
    /// The host must be stopped first.
    HostRuns(InstanceId),
    /// The host is of the type of the server's own machine, which has no limits.
    HostHasNoType(InstanceId),
    /// The host has as many volumes as its type allows, or more.
    HostIsFull {
        /// The host.
        instance: InstanceId,
        /// Its type, or the one that was wanted.
        instance_type: String,
        /// Maximum number of volumes of that type.
        most: usize,
    },
    /// The host has no volume under this device name.
    NoDevice(InstanceId, String),
    /// No snapshot can be made of a volume in this state.
    NotForSnapshot(VolumeId, VolumeState),
    /// The volume has the maximum number of pending snapshots.
    TooManyPending(VolumeId),
    /// The control plane has the maximum number of snapshots.
    TooManySnapshots,
    /// The snapshot is in this state, and not being filled.
    NotFilling(SnapshotId, &'static str),
    /// The snapshot has no unit of this number.
    NoUnit {
        /// The snapshot.
        id: SnapshotId,
        /// The number.
        unit: u64,
        /// Its units; the last has the number before this one.
        units: u64,
    },
    /// The control plane has the maximum number of snapshots that are being filled.
    TooManyFilling,
    /// The store has no such bytes without a snapshot: they do not exist, or belong to a snapshot.
    SnapshotNotUnowned(SnapshotId),
    /// No space is left to sell, and a snapshot takes some.
    SpaceForSnapshot {
        /// Bytes that may be sold.
        for_sale: ByteCount,
        /// Bytes that are sold.
        sold: ByteCount,
        /// Bytes that it takes; 1 if that is not known.
        needed: ByteCount,
    },
}
