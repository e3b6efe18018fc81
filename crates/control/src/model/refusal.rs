//! Why a command is refused, as data. `api/error.rs` puts it into EC2's words.

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::volume::InvalidSpec;

use super::{Shortfall, SpaceShort, UnixMs, VolumeState};

/// Why a command is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There are no such volumes.
    VolumesNotFound(Vec<VolumeId>),
    /// There are no such hosts.
    InstancesNotFound(Vec<InstanceId>),
    /// Type, size and limits do not go together.
    Spec(InvalidSpec),
    /// There is not enough left to sell.
    Capacity(Box<Shortfall>),
    /// There is no such zone.
    UnknownZone(String),
    /// Volume and host are in different zones.
    ZoneMismatch(VolumeId, InstanceId),
    /// The volume cannot be deleted while it is attached.
    VolumeInUse(VolumeId, InstanceId),
    /// The volume is attached and cannot be attached again.
    AlreadyAttached(VolumeId),
    /// The volume is in a state in which this cannot be done.
    NotAvailable(VolumeId, VolumeState),
    /// Something is being done to the volume and has not been confirmed yet.
    Unsettled(VolumeId),
    /// Not a device name.
    DeviceMalformed(String),
    /// The host has another volume there.
    DeviceTaken(String),
    /// A Multi-Attach volume has all the attachments it may have.
    AttachmentLimit(VolumeId),
    /// The volume is attached to a host with the same address: the data plane could not tell whose
    /// requests come from there.
    AddressShared {
        /// The volume.
        volume: VolumeId,
        /// The host it was to be attached to, too.
        instance: InstanceId,
        /// The one it is attached to.
        other: InstanceId,
    },
    /// The volume is not attached at all.
    NotAttached(VolumeId, VolumeState),
    /// The volume is not attached to this host.
    NotAttachedTo(VolumeId, InstanceId),
    /// The volume is attached under another device name.
    NotAttachedAs(VolumeId, InstanceId, String),
    /// A volume attached several times: the host must be named.
    InstanceMustBeNamed(VolumeId),
    /// The modification before is not completed; the text is its state.
    ModificationUnfinished(VolumeId, &'static str),
    /// Too many modifications lately (policy `aws`).
    ModificationRate {
        /// Modifications allowed in the window; 1 for the older rule of waiting after each.
        modifications_max: u32,
        /// Length of the window in hours.
        hours: u32,
        /// When the next one is allowed.
        next: UnixMs,
    },
    /// Multi-Attach cannot be switched while the volume is attached.
    MultiAttachWhileAttached(VolumeId),
    /// Not a resource that can be tagged.
    NotTaggable(String),
    /// Too many tags on one resource.
    TooManyTags(String),
    /// The client token was used for another request.
    TokenReused(String),
    /// No more volumes fit.
    TooManyVolumes,
    /// No more hosts fit.
    TooManyHosts,
    /// A new id is taken already: one in 2^68.
    IdTaken(String),
    /// There is not enough space for its bytes.
    Space(Box<SpaceShort>),
    /// No volume lacks these bytes: there are none, or a volume has them.
    NotUnowned(VolumeId),
    /// There is no such instance type.
    UnknownInstanceType(String),
    /// The host has volumes attached.
    HostBusy(InstanceId, VolumeId),
    /// The local machine is always there.
    HostIsLocal(InstanceId),
}
