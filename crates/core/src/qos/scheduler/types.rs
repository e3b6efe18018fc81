//! Arguments and results of the scheduler: names, requests, dispatches, counters and errors.

use core::fmt;

use super::share::Ticket;
use crate::limits::{DEVICES_PER_CORE_MAX, INSTANCES_PER_CORE_MAX, VOLUMES_PER_CORE_MAX};
use crate::qos::limiter::{Exceeded, Forfeited};
use crate::qos::sharing::device::DispatchReason;
use crate::qos::slots::{DeviceSlot, FlowSlot, InstanceSlot, VolumeSlot};
use crate::request::Operation;
use crate::time::Duration;

/// A volume's name within its scheduler. It stays invalid after the volume is removed, even if
/// another one takes its slot (for the first 2^31 of them).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeIndex {
    pub(super) slot: VolumeSlot,
    pub(super) generation: u32,
}

/// One request of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// The operation.
    pub operation: Operation,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
    /// The caller's own name for it, returned with each dispatch or, once, when it is cancelled.
    pub handle: u32,
}

impl Io {
    /// Returns the number of its payload bytes.
    #[must_use]
    pub const fn payload_bytes(&self) -> u32 {
        self.operation.payload_bytes(self.length)
    }
}

/// A request, or one quantum of it, that is dispatched and has been charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatch {
    /// The request's volume.
    pub volume: VolumeIndex,
    /// The handle of the request.
    pub handle: u32,
    /// First byte of this quantum.
    pub offset: u64,
    /// Length of this quantum in bytes.
    pub length: u32,
    /// Whether this is the last quantum of the request.
    pub last: bool,
    /// The ticket for [`complete`](super::Scheduler::complete), if its volume is on a device.
    pub ticket: Ticket,
    /// Reason why its device served it; by weight if there is no device.
    pub reason: DispatchReason,
    /// Its device time, in nanoseconds; 0 if there is no device.
    pub device_ns: u64,
    /// Whether it was in the urgent class.
    pub urgent: bool,
}

/// Reason why a request was not taken. Nothing was charged or kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// The maximum number of requests or bytes waits. Try again once a request of this volume was
    /// dispatched or cancelled, and read nothing more from its clients until then.
    QueueFull,
    /// The volume was removed.
    NoSuchVolume,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "the volume's queue is full: submit again after its next dispatch",
            Self::NoSuchVolume => "the volume is no longer scheduled here: it was removed",
        })
    }
}

impl core::error::Error for SubmitError {}

/// The scheduler carries [`VOLUMES_PER_CORE_MAX`] volumes already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyVolumes;

impl fmt::Display for TooManyVolumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this core carries {VOLUMES_PER_CORE_MAX} volumes, the most it may: \
             detach one, or serve with more cores"
        )
    }
}

impl core::error::Error for TooManyVolumes {}

/// A volume's counters, from its addition on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Counted I/Os charged, after splitting and merging: the unit of the limit in IOPS.
    pub operations: u64,
    /// Requests dispatched to their last quantum.
    pub requests: u64,
    /// Payload bytes of reads dispatched.
    pub bytes_read: u64,
    /// Payload bytes of writes dispatched.
    pub bytes_written: u64,
    /// Requests that wait at present.
    pub queued_requests: u32,
    /// Payload bytes that wait at present.
    pub queued_bytes: u32,
    /// Time for which the volume was delayed, by the limit that delayed it longest; up to the
    /// scheduler's last `now`.
    pub exceeded: Exceeded,
    /// Nanoseconds for which requests waited although their limits were ready: the rounding to a
    /// tick and the scheduler's own lateness. Tokens saved meanwhile make up for it while each wait
    /// is below the tolerance.
    pub late_ns: u64,
    /// Time in which tokens were lost because no more could be saved, as of the last request.
    pub forfeited: Forfeited,
    /// Time's worth of tokens that was lost to delays of the scheduler and paid back since.
    pub catch_up: Duration,
    /// Quanta in service at the device.
    pub in_flight: u32,
}

/// A device's name within its scheduler. Devices are never removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceIndex(pub(super) DeviceSlot);

/// An instance's name within its scheduler. It stays invalid after the instance is removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceIndex {
    pub(super) slot: InstanceSlot,
    pub(super) generation: u32,
}

/// The name of one attachment of a volume within its scheduler. It stays invalid after the
/// attachment or its volume is removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AttachmentIndex {
    pub(super) flow: FlowSlot,
    pub(super) generation: u32,
}

/// Number of further entries that a scheduler takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Volumes.
    pub volumes: usize,
    /// Instances.
    pub instances: usize,
    /// Attachments: the first of each volume with a claim, and each further one.
    pub attachments: usize,
}

/// A named entry does not exist, or the maximum number of entries is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSuch {
    /// The volume was removed.
    Volume,
    /// The instance was removed.
    Instance,
    /// There is no such device.
    Device,
    /// No more volumes fit.
    RoomForVolumes,
    /// No more instances fit.
    RoomForInstances,
    /// No more devices fit.
    RoomForDevices,
    /// No more attachments fit.
    RoomForAttachments,
}

impl fmt::Display for NoSuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume => f.write_str("the volume is no longer scheduled here: it was removed"),
            Self::Instance => f.write_str("the instance is no longer known here: it was removed"),
            Self::Device => f.write_str("this core has no such device: add it first"),
            Self::RoomForVolumes => {
                write!(f, "this core carries {VOLUMES_PER_CORE_MAX} volumes, the most it may")
            }
            Self::RoomForInstances => {
                write!(f, "this core knows {INSTANCES_PER_CORE_MAX} instances, the most it may")
            }
            Self::RoomForDevices => {
                write!(f, "this core has {DEVICES_PER_CORE_MAX} devices, the most it may")
            }
            Self::RoomForAttachments => {
                write!(f, "this core has {VOLUMES_PER_CORE_MAX} attachments, the most it may")
            }
        }
    }
}

impl core::error::Error for NoSuch {}
