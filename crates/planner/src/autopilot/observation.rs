//! What is known of a file system, its volumes, their host and the account at one moment.
//!
//! A fact that could not be read is `None`, never zero. [`Ages`] has the age of each source.

use evenkeel_core::volume::VolumeSpec;
use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::spec_form;

/// The facts of one file system at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Observation {
    /// The time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The file system.
    pub file_system: FileSystem,
    /// The volumes with the tag of the file system, attached to the host or not, by id.
    pub volumes: Vec<Volume>,
    /// The host; `None` if its type is unknown.
    pub instance: Option<Instance>,
    /// The account.
    pub account: Account,
    /// The ages of the sources.
    pub ages: Ages,
    /// The judgement of the recordings of the volumes; `None` before the first.
    pub evidence: Option<Evidence>,
    /// The front end that makes disks of volumes; `None` if they have devices by themselves, as on
    /// AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front_end: Option<FrontEnd>,
}

/// The commands that make a disk of an attached volume, and remove it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FrontEnd {
    /// The words of the command that makes it, in which `{volume}` and `{uri}` are replaced. It
    /// prints the path of the device as its last line.
    pub attach: Vec<String>,
    /// The words of the command that removes it, in which `{volume}` and `{device}` are replaced.
    pub detach: Vec<String>,
    /// The address of a volume, in which `{volume}` is replaced.
    pub uri: String,
}

/// The kind of a file system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Grows and shrinks, on one volume or several.
    Btrfs,
    /// Grows, on one volume.
    Xfs,
    /// Grows, on one volume.
    Ext4,
}

impl Kind {
    /// Returns how a person gives a file system room if its device keeps its size when its volume
    /// grows; `None` for a btrfs, to which volumes are added.
    #[must_use]
    pub const fn room_by_hand(self) -> Option<&'static str> {
        match self {
            Self::Btrfs => None,
            Self::Xfs => Some(
                "XFS takes no further volume, so a person gives room: `evenkeel volume modify` \
                 makes the volume larger, and after `umount`, a new connection of the device and \
                 `mount`, `xfs_growfs` uses it; or copy its files to a btrfs",
            ),
            Self::Ext4 => Some(
                "ext4 takes no further volume, so a person gives room: `evenkeel volume modify` \
                 makes the volume larger, and after `umount`, a new connection of the device and \
                 `mount`, `resize2fs` uses it; or copy its files to a btrfs",
            ),
        }
    }
}

/// How a btrfs places the chunks of a kind of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// On one device each.
    Single,
    /// Twice on one device.
    Dup,
    /// Striped over all devices.
    Raid0,
    /// On two devices.
    Raid1,
    /// Another one, which the autopilot only observes.
    Other,
}

/// The facts of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FileSystem {
    /// Its UUID.
    pub uuid: String,
    /// Its kind.
    pub kind: Kind,
    /// Its mount point.
    pub mount: String,
    /// Its size in bytes, the sum of its devices.
    pub size_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that an application can still write.
    pub free_bytes: u64,
    /// The profile of file data; `None` unless it is a btrfs.
    pub data: Option<Profile>,
    /// The profile of metadata; `None` unless it is a btrfs.
    pub metadata: Option<Profile>,
    /// Its devices, by device id.
    pub devices: Vec<Device>,
    /// Bytes that are allocated to chunks of file data and not used by files.
    pub chunk_slack_bytes: u64,
    /// Bytes of dirty pages that the host writes back later, at most.
    pub dirty_limit_bytes: u64,
    /// The largest jump of the used bytes between two readings: what `fallocate` takes at once.
    pub largest_jump_bytes: u64,
    /// The most that was used, by the length of the window until now: the peak of shrinking.
    pub peak_used_bytes: u64,
    /// The largest growth within the actuation time of the policy, in any window that is kept.
    pub largest_growth_bytes: u64,
    /// Conditions that forbid moves.
    pub conditions: Conditions,
    /// The exclusive operation that the kernel executes.
    pub running: Option<Running>,
    /// The latency of durable writes; `None` without any in the last window.
    pub flush: Option<Flush>,
}

/// A device of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Device {
    /// Its number in the file system; 1 if it is the only one of an XFS or ext4.
    pub devid: u64,
    /// Its path, `/dev/loop3`.
    pub path: String,
    /// The id of its volume; `None` for a device that is no volume.
    pub volume: Option<String>,
    /// Its size in bytes, as the kernel knows it.
    pub device_bytes: u64,
    /// The bytes of it that the file system uses.
    pub size_bytes: u64,
    /// Bytes of it that are allocated to chunks.
    pub allocated_bytes: u64,
    /// Errors that the file system has counted on it.
    pub errors: u64,
}

/// Conditions that forbid moves.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Conditions {
    /// A device is missing, or the mount is degraded or read-only.
    pub degraded: bool,
    /// A scrub runs.
    pub scrub: bool,
    /// A balance runs or is paused.
    pub balance: bool,
    /// A snapshot of a volume is pending.
    pub snapshot_pending: bool,
    /// A mount, a swap file or another program forbids that a device leaves.
    pub pinned: bool,
}

/// An exclusive operation that the kernel executes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Running {
    /// Its kind.
    pub kind: RunningKind,
    /// The device that leaves.
    pub devid: Option<u64>,
    /// Its progress in thousandths.
    pub done_permille: Option<u32>,
    /// Its pace in bytes a second; `None` without a limit.
    pub pace_bytes_per_s: Option<u64>,
}

/// The kind of an exclusive operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunningKind {
    /// `btrfs device add`.
    Add,
    /// `btrfs device remove`.
    Remove,
    /// `btrfs balance` by the autopilot.
    Compact,
    /// Another program's operation.
    Foreign,
}

/// The latency of durable writes in the last window of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Flush {
    /// Milliseconds that 99 of 100 flushes did not exceed.
    pub p99_ms: u32,
    /// Number of flushes.
    pub count: u64,
}

/// A volume of the file system, or one that is made for it or is to be deleted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Volume {
    /// Its id.
    pub id: String,
    /// Its type, size and limits in force.
    #[serde(with = "spec_form")]
    pub spec: VolumeSpec,
    /// Its state.
    pub state: VolumeState,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// The operation that created it, by its tag.
    pub made_by: Option<String>,
    /// When an operation marked it for deletion, by its tag, in milliseconds since 1970.
    pub retired_ms: Option<u64>,
    /// Whether a superblock of the file system was found on it by a probe within the last hour;
    /// `None` without one.
    pub has_superblock: Option<bool>,
    /// The state of its last modification.
    pub modification: Option<Modification>,
    /// The starts of its modifications in the last 24 hours, in milliseconds since 1970.
    pub modified_ms: Vec<u64>,
    /// When the next modification is permitted by the rules of the service; `None` if it is now.
    pub modifiable_from_ms: Option<u64>,
    /// Credits that are left, in millionths of the maximum; `None` on types without credits.
    pub balance_ppm: Option<u32>,
    /// Seconds of the policy's window in which a limit delayed requests.
    pub exceeded_s: Option<u32>,
    /// MiB/s that it moved in the last minute, rounded up; or more if its requests use a larger
    /// part of their limit than its bytes: that part, as MiB/s.
    pub used_mibps: Option<u32>,
}

impl Volume {
    /// Creates the facts of a volume of which only its state is known.
    #[must_use]
    pub const fn new(id: String, spec: VolumeSpec, state: VolumeState, created_ms: u64) -> Self {
        Self {
            id,
            spec,
            state,
            created_ms,
            made_by: None,
            retired_ms: None,
            has_superblock: None,
            modification: None,
            modified_ms: Vec::new(),
            modifiable_from_ms: None,
            balance_ppm: None,
            exceeded_s: None,
            used_mibps: None,
        }
    }
}

/// The state of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum VolumeState {
    /// It is being created.
    Creating,
    /// No instance has it.
    Available,
    /// It is being attached to the host, since this time.
    Attaching {
        /// In milliseconds since 1970.
        since_ms: u64,
    },
    /// The host has it, and its device is known or not.
    Attached,
    /// It is being detached.
    Detaching,
    /// Another instance has it, or it has failed.
    Elsewhere,
}

/// A modification of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Modification {
    /// It is not in force yet.
    Modifying,
    /// It is in force, and no other one is accepted yet.
    Optimizing,
    /// It is complete.
    Completed,
    /// It was undone.
    Failed,
}

/// The host of the file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Instance {
    /// Its id.
    pub id: String,
    /// Its type, as `m5.large`.
    pub instance_type: String,
    /// Volumes that can still be attached.
    pub free_slots: u32,
    /// IOPS provisioned on its volumes outside this file system.
    pub other_iops: u64,
    /// MiB/s provisioned on its volumes outside this file system.
    pub other_mibps: u64,
    /// Operations of the autopilot that run on this host.
    pub operations: u32,
}

/// The account, as far as the autopilot's tags reach.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Account {
    /// Monthly cost of all volumes of the policy's groups, in millionths of the currency.
    pub fleet_monthly_micro: u64,
    /// Monthly cost of the volumes of this group.
    pub group_monthly_micro: u64,
    /// Volumes of the policy's groups.
    pub fleet_volumes: u32,
    /// Volumes of them that were modified or retired in the last hour. A new volume is no
    /// change of one that is in use.
    pub fleet_changed_last_hour: u32,
}

/// The ages of the sources, in milliseconds; `None` if a source has never answered.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Ages {
    /// The file system.
    pub file_system_ms: Option<u64>,
    /// The volumes.
    pub volumes_ms: Option<u64>,
    /// The counters of requests.
    pub counters_ms: Option<u64>,
    /// How far the host's clock is from the API's.
    pub clock_skew_ms: Option<u64>,
}
