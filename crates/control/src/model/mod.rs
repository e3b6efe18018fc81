//! The model: volumes, snapshots, hosts, attachments, tags and modifications, and the rules for
//! changing them.
//!
//! Pure: ids and the time are arguments; nothing here uses SQL, HTTP or the data plane.
//! [`Model::decide`] is given a [`Command`] and returns [`Event`]s, or a [`Refusal`]. Each event
//! has the complete new state of one object. The caller stores the events and then *applies* them
//! ([`Model::apply`]), so memory and disk have the same state.
//!
//! A change that involves the data plane takes two steps, so that it can be repeated after a crash
//! in between. A decision leaves the volume *unsettled* (creating, attaching, detaching, modifying,
//! deleting). When the data plane has answered, [`Model::settle`] completes the change or rolls it
//! back:
//!
//! ```text
//!              decide             settle: done            settle: failed
//! create     - -> creating        available               gone
//! attach     available -> attaching   attached (in-use)   available
//! detach     attached -> detaching    available           attached
//! modify     completed -> modifying   completed, or       the old limits again,
//!                                     optimizing for a    modification "failed"
//!                                     while (policy aws)
//! delete     available -> deleting    gone                available
//! ```
//!
//! Snapshots have steps of their own: see [`snapshots`].

mod account;
mod admission;
mod attachments;
mod bin;
mod copies;
mod fast_restore;
mod hosts;
mod index;
pub mod locks;
mod modify;
mod outcome;
mod quotas;
mod refusal;
pub mod signatures;
pub mod snapshots;
mod space;
mod tags;
pub mod tiers;
pub mod users;
mod volumes;
pub mod zones;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod sequence_tests;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::qos::admission::{Figure, Oversell};
use evenkeel_core::quota::Quotas;
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::{Rules, VolumeChange, VolumeRequest, VolumeSpec, VolumeType};
use evenkeel_telemetry::recording::RECORD_DAYS;
use evenkeel_wire::agent::{Capacity, HostAddress};

pub use account::{Account, PublicAccess, StoreKey};
use admission::KeptBooks;
pub use admission::{Books, Line, Row, Shortfall, Source, TypeSold};
use attachments::NewAttachment;
pub use copies::Begins;
use copies::NewCopy;
pub use fast_restore::{FastRestore, MICRO};
use hosts::NewHost;
pub use hosts::{HostState, LOCAL_TYPE, TERMINATED_SHOWN_MS};
use index::Index;
pub use index::Property;
pub use locks::{Lock, LockMode};
pub use modify::ModifyPolicy;
pub use outcome::Settled;
pub use quotas::{AccountQuotas, AccountResource, Amounts, OverQuota};
pub use refusal::Refusal;
pub use snapshots::{
    EVERYONE, FILLING_MAX, Filled, NO_VOLUME, SNAPSHOTS_MAX, Snapshot, SnapshotOfSet, SnapshotPhase,
};
use snapshots::{NewFilled, NewSnapshot};
pub use space::{Room, SpaceOversell, SpaceShort, ToBeKept};
pub use tags::{TAGS_MAX, Tagged, Tags};
pub use tiers::{TierOperation, Tiering};
pub use users::User;
use volumes::NewVolume;

/// Maximum number of volumes of one control plane: as many as the schedulers of two cores. 100,000
/// are measured (`cargo bench -p evenkeel-control --bench mutations`); this leaves room.
pub const VOLUMES_MAX: usize = 2 * evenkeel_core::limits::VOLUMES_PER_CORE_MAX;
const _: () = assert!(VOLUMES_MAX <= evenkeel_core::qos::admission::VOLUMES_MAX);
/// Maximum number of hosts of one control plane. A host is a row and a name; this only bounds
/// memory.
pub const HOSTS_MAX: usize = 4_096;
/// Maximum number of instances to which a Multi-Attach volume may be attached.
pub const ATTACHMENTS_MAX: usize = 16;
/// Maximum number of client tokens that are stored; beyond it the oldest is removed, whatever its
/// age.
const TOKENS_MAX: usize = 100_000;
/// Time for which a client token is stored, in milliseconds: a day.
pub(crate) const TOKEN_LIFETIME_MS: u64 = 24 * 3_600_000;

/// The phase of a volume's life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Its bytes are being created.
    Creating,
    /// It can be used.
    Ready,
    /// Its bytes are being deleted.
    Deleting,
    /// The data plane could not open it; the text has the reason. The server retries every few
    /// seconds.
    Error(String),
    /// It was deleted, and can be restored.
    Binned {
        /// When it was deleted.
        entered: UnixMs,
        /// When its bytes are deleted.
        until: UnixMs,
    },
}

/// A volume's state, as the EC2 API names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum VolumeState {
    /// `creating`
    Creating,
    /// `available`
    Available,
    /// `in-use`
    InUse,
    /// `deleting`
    Deleting,
    /// `error`
    Error,
}

impl VolumeState {
    /// Returns the name in the EC2 API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Available => "available",
            Self::InUse => "in-use",
            Self::Deleting => "deleting",
            Self::Error => "error",
        }
    }
}

/// The state of an attachment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachmentState {
    /// `attaching`: the data plane does not admit the host yet.
    Attaching,
    /// `attached`
    Attached,
    /// `detaching`: the data plane may still admit the host.
    Detaching,
}

impl AttachmentState {
    /// Returns the name in the EC2 API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Detaching => "detaching",
        }
    }
}

/// A volume's attachment to a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// The host.
    pub instance: InstanceId,
    /// The device name that the client chose; a label, as on EC2.
    pub device: String,
    /// Its state.
    pub state: AttachmentState,
    /// When it was attached.
    pub attached: UnixMs,
    /// Whether the volume is deleted when the host is terminated.
    pub delete_on_termination: bool,
}

/// The phase of a modification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModificationPhase {
    /// The data plane has not confirmed it yet.
    Modifying,
    /// In force; counts as unfinished for as long as AWS would take.
    Optimizing {
        /// When the new limits came into force.
        since: UnixMs,
        /// When it counts as completed.
        until: UnixMs,
    },
    /// Completed.
    Completed {
        /// When it ended.
        ended: UnixMs,
    },
    /// Rolled back.
    Failed {
        /// When it ended.
        ended: UnixMs,
        /// The reason.
        reason: String,
    },
}

/// The latest modification of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Modification {
    /// The volume before the modification.
    pub original: VolumeSpec,
    /// The volume as requested.
    pub target: VolumeSpec,
    /// When it was accepted.
    pub started: UnixMs,
    /// Its phase.
    pub phase: ModificationPhase,
}

/// A volume with all its properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Its id, also its export name.
    pub id: VolumeId,
    /// The availability zone.
    pub zone: String,
    /// When it was created.
    pub created: UnixMs,
    /// The snapshot from which it was created; the snapshot may have been deleted.
    pub snapshot: Option<SnapshotId>,
    /// The volume of which it is a copy; that volume may have been deleted.
    pub source: Option<VolumeId>,
    /// While it is created: the snapshot that was made only for it, with which it begins.
    pub through: Option<SnapshotId>,
    /// While it is created: whether it is made of stored bytes that belonged to no volume. If it
    /// cannot be created, they stay.
    pub is_adopted: bool,
    /// Whether its bytes are encrypted.
    pub is_encrypted: bool,
    /// Whether a credit of its snapshot's fast restore was taken for it.
    pub is_fast_restored: bool,
    /// A label of EC2's: whether I/O continues automatically after a possible inconsistency.
    pub auto_enable_io: bool,
    /// Type, size and limits; already the target's while a modification is in progress.
    pub spec: VolumeSpec,
    /// Its phase.
    pub phase: Phase,
    /// Its attachments, in the order of attaching.
    pub attachments: Vec<Attachment>,
    /// Its tags.
    pub tags: Tags,
    /// The latest modification, if there was one.
    pub modification: Option<Modification>,
    /// When the modifications of the last days were accepted, oldest first; failed ones are not
    /// counted.
    pub modification_starts: Vec<UnixMs>,
}

impl Volume {
    /// Creates a volume in phase `Creating`: empty, in a zone, without attachments.
    #[must_use]
    pub fn new(id: VolumeId, zone: impl Into<String>, spec: VolumeSpec, now: UnixMs) -> Self {
        Self {
            id,
            zone: zone.into(),
            created: now,
            snapshot: None,
            source: None,
            through: None,
            is_adopted: false,
            is_encrypted: false,
            is_fast_restored: false,
            auto_enable_io: false,
            spec,
            phase: Phase::Creating,
            attachments: vec![],
            tags: Tags::new(),
            modification: None,
            modification_starts: vec![],
        }
    }

    /// Returns its state, as the EC2 API names it.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        match self.phase {
            Phase::Creating => VolumeState::Creating,
            Phase::Deleting | Phase::Binned { .. } => VolumeState::Deleting,
            Phase::Error(_) => VolumeState::Error,
            Phase::Ready if self.attachments.is_empty() => VolumeState::Available,
            Phase::Ready => VolumeState::InUse,
        }
    }

    /// Returns whether it is shown to clients.
    #[must_use]
    pub const fn is_shown(&self) -> bool {
        !matches!(self.phase, Phase::Binned { .. })
    }

    /// Returns whether the data plane must still confirm new limits.
    #[must_use]
    pub fn is_being_modified(&self) -> bool {
        self.modification.as_ref().is_some_and(|m| m.phase == ModificationPhase::Modifying)
    }

    /// Returns whether the data plane has confirmed everything.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let attached = |a: &Attachment| a.state == AttachmentState::Attached;
        !self.is_being_modified()
            && !matches!(self.phase, Phase::Creating | Phase::Deleting)
            && self.attachments.iter().all(attached)
    }
}

/// A client host ("instance").
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its id.
    pub id: InstanceId,
    /// Its EC2 type, or [`LOCAL_TYPE`].
    pub instance_type: String,
    /// The address from which it may access its volumes.
    pub address: HostAddress,
    /// When it was registered.
    pub registered: UnixMs,
    /// Its state, which is only a label: its volumes are served in all states but the last.
    pub state: HostState,
    /// Its tags.
    pub tags: Tags,
    /// Its availability zone; `None` for the first of the server.
    pub zone: Option<String>,
}

/// A client token that was used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// A fingerprint of its request; equal for equal requests.
    pub fingerprint: String,
    /// The volume that the request created.
    pub volume: VolumeId,
    /// When it was used.
    pub used: UnixMs,
}

/// A request that changes something. The caller assigns the ids of new objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Create a volume.
    CreateVolume {
        /// Id of the new volume.
        id: VolumeId,
        /// Type, size and limits.
        request: VolumeRequest,
        /// Its origin, and whether it is encrypted.
        begins: Begins,
        /// The availability zone.
        zone: String,
        /// Its initial tags.
        tags: Tags,
        /// Client token and fingerprint of the request.
        token: Option<(String, String)>,
    },
    /// Create a volume from stored bytes that belong to no volume; it takes their id and size.
    AdoptVolume {
        /// The id of the bytes.
        id: VolumeId,
        /// Whether they are encrypted.
        is_encrypted: bool,
        /// Type, size and limits.
        request: VolumeRequest,
        /// The availability zone.
        zone: String,
        /// Its initial tags.
        tags: Tags,
    },
    /// Delete a volume and its bytes, or put it into the recycle bin if there is one.
    DeleteVolume {
        /// The volume.
        id: VolumeId,
    },
    /// Release a volume from a host that is terminated. If it is marked for deletion with that
    /// host, and no other host has it, delete it as [`Self::DeleteVolume`] does; else detach it.
    /// This is one step, so that the volume does not stay when the server ends in between.
    DeleteWithHost {
        /// The volume.
        id: VolumeId,
        /// The host.
        host: InstanceId,
    },
    /// Take a volume out of the recycle bin.
    RestoreVolume {
        /// The volume.
        id: VolumeId,
        /// The error with which its bytes cannot be opened: it comes back in this state.
        error: Option<String>,
    },
    /// Set the attribute `autoEnableIO`.
    SetAutoEnableIo {
        /// The volume.
        id: VolumeId,
        /// Its new value.
        is_on: bool,
    },
    /// Set whether volumes are deleted when the host is terminated that has attached them.
    SetDeleteOnTermination {
        /// The host.
        instance: InstanceId,
        /// Device names of volumes, and the new values.
        devices: Vec<(String, bool)>,
    },
    /// Attach a volume to a host.
    AttachVolume {
        /// The volume.
        id: VolumeId,
        /// The host.
        instance: InstanceId,
        /// The device name.
        device: String,
    },
    /// Detach a volume from a host.
    DetachVolume {
        /// The volume.
        id: VolumeId,
        /// The host; may be omitted if the volume is attached once.
        instance: Option<InstanceId>,
        /// The device name, if it must match.
        device: Option<String>,
    },
    /// Change type, size or limits.
    ModifyVolume {
        /// The volume.
        id: VolumeId,
        /// The change.
        change: VolumeChange,
    },
    /// Make a snapshot of a volume.
    CreateSnapshot {
        /// Id of the new snapshot.
        id: SnapshotId,
        /// The volume.
        volume: VolumeId,
        /// The client's description of it.
        description: String,
        /// Its initial tags.
        tags: Tags,
    },
    /// Make snapshots of volumes of one host, all of the same moment.
    CreateSnapshots {
        /// The host that has attached the volumes.
        instance: InstanceId,
        /// The snapshots.
        set: Vec<SnapshotOfSet>,
        /// The client's description of them.
        description: String,
    },
    /// Begin a snapshot that is filled by a client.
    StartSnapshot {
        /// Id of the new snapshot.
        id: SnapshotId,
        /// The least size of volumes that are made of it, in GiB.
        size_gib: u32,
        /// Its parent, and how long it may be idle.
        filled: Filled,
        /// Whether encryption was requested; `None` leaves it to its parent and the account.
        is_encrypted: Option<bool>,
        /// The client's description of it.
        description: String,
        /// Its initial tags.
        tags: Tags,
    },
    /// Copy a snapshot.
    CopySnapshot {
        /// Id of the new snapshot.
        id: SnapshotId,
        /// The snapshot that is copied.
        of: SnapshotId,
        /// Whether encryption was requested; `None` leaves it to the source and the account.
        is_encrypted: Option<bool>,
        /// The client's description of it.
        description: String,
        /// Its initial tags.
        tags: Tags,
    },
    /// Delete a snapshot, or put it into the recycle bin if there is one.
    DeleteSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Take a snapshot out of the recycle bin.
    RestoreSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Delete a snapshot that is in the recycle bin.
    PurgeSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Lock a snapshot against deletion, or change its lock.
    LockSnapshot {
        /// The snapshot.
        id: SnapshotId,
        /// The new lock.
        lock: Lock,
    },
    /// Unlock a snapshot.
    UnlockSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Archive a snapshot.
    ArchiveSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Restore a snapshot from the archive.
    RestoreTier {
        /// The snapshot.
        id: SnapshotId,
        /// For how many days; `None` permanently.
        days: Option<u32>,
    },
    /// Change the accounts that a snapshot is shared with.
    ShareSnapshot {
        /// The snapshot.
        id: SnapshotId,
        /// Accounts that are added.
        add: BTreeSet<String>,
        /// Accounts that are removed; `None` removes all.
        remove: Option<BTreeSet<String>>,
    },
    /// Turn fast restore of snapshots on or off.
    SetFastRestore {
        /// The snapshots.
        ids: Vec<SnapshotId>,
        /// The zones, each once.
        zones: Vec<String>,
        /// Whether it is turned on.
        is_on: bool,
    },
    /// Set whether new volumes and copies of snapshots are encrypted unless asked otherwise.
    SetEncryptByDefault(bool),
    /// Set whether snapshots can be shared with all accounts.
    SetPublicAccess(PublicAccess),
    /// Set tags.
    CreateTags {
        /// The tagged resources.
        resources: Vec<Tagged>,
        /// The tags.
        tags: Tags,
    },
    /// Remove tags.
    DeleteTags {
        /// The tagged resources.
        resources: Vec<Tagged>,
        /// Keys, each with the value that the tag must have to be removed; an empty list removes
        /// all.
        tags: Vec<(String, Option<String>)>,
    },
    /// Register a client host.
    RegisterHost {
        /// Id of the new host.
        id: InstanceId,
        /// Its availability zone; `None` for the first of the server.
        zone: Option<String>,
        /// Its EC2 type, or [`LOCAL_TYPE`].
        instance_type: String,
        /// The address from which it may access its volumes.
        address: HostAddress,
        /// Its initial tags.
        tags: Tags,
    },
    /// Remove a client host.
    DeregisterHost {
        /// The host.
        id: InstanceId,
    },
    /// Change the type of a stopped host.
    SetHostType {
        /// The host.
        id: InstanceId,
        /// The new type.
        instance_type: String,
    },
    /// Change the state of hosts.
    SetHostState {
        /// The hosts.
        ids: Vec<InstanceId>,
        /// The new state.
        state: HostState,
    },
}

/// A change of the model. Each event has the complete state of its object, so applying one twice
/// has no further effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The volume has this state.
    Volume(Volume),
    /// The volume no longer exists.
    VolumeGone(VolumeId),
    /// The host has this state.
    Host(Host),
    /// The host no longer exists.
    HostGone(InstanceId),
    /// This client token was used.
    Token(String, Token),
    /// This client token was dropped.
    TokenGone(String),
    /// The snapshot has this state.
    Snapshot(Snapshot),
    /// The snapshot no longer exists.
    SnapshotGone(SnapshotId),
    /// The account has these settings.
    Account(Account),
    /// The user has this state.
    User(User),
    /// The user no longer exists: the key of its name.
    UserGone(String),
}

/// The result of deciding a command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// The events to store and apply.
    pub events: Vec<Event>,
    /// The calls of the data plane after they are stored.
    pub calls: Calls,
}

/// The calls of the data plane after a decision, beside those for hosts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Calls {
    /// None.
    #[default]
    Nothing,
    /// Apply a volume, unless it is settled.
    Volume(VolumeId),
    /// Apply a volume even if it is settled, since the data plane may not hold it.
    Reopened(VolumeId),
    /// Make or delete a snapshot.
    Snapshot(SnapshotId),
    /// Make snapshots of one moment, each with its volume.
    Set(Vec<(VolumeId, SnapshotId)>),
}

/// Settings that are fixed while the server runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The region, for example `local-1`.
    pub region: String,
    /// The availability zones; requests that name none use the first.
    pub zones: Vec<String>,
    /// The account that owns everything: twelve digits.
    pub account: String,
    /// Whether requests may be signed for any region.
    pub any_region: bool,
    /// Names of this server that clients send in `Host`, beside its addresses. Empty: any name,
    /// except on loopback, where only names of this machine are accepted.
    pub api_hosts: Vec<String>,
    /// Maximum rate of requests to the API in the long run, per second; `None` without a limit.
    pub api_rate: Option<u32>,
    /// The key of the store, with which volumes can be encrypted; `None` if the store has none.
    pub key: Option<StoreKey>,
    /// How many days deleted volumes and snapshots stay in the recycle bin; 0 if there is none.
    pub recycle_bin_days: u32,
    /// How many days volumes are recorded for; 0 if they are not.
    pub record_days: u32,
    /// The volume rules in force.
    pub rules: &'static Rules,
    /// How often a volume may be modified.
    pub modify_policy: ModifyPolicy,
    /// EC2's quotas; `None` if they are not in force.
    pub quotas: Option<&'static Quotas>,
    /// Quotas of the account that the operator sets.
    pub account_quotas: AccountQuotas,
    /// The operator's figure of the capacity that may be sold; never more than was measured.
    pub figure: Option<Figure>,
    /// Types that the operator sells more than once, and how many times over.
    pub oversell: BTreeMap<VolumeType, Oversell>,
    /// How many times over space for bytes at rest is sold.
    pub space_oversell: SpaceOversell,
}

impl Default for Settings {
    /// Returns the settings of a server without options, with the newest rules.
    fn default() -> Self {
        Self {
            region: "local-1".into(),
            zones: vec!["local-1a".into()],
            account: "000000000000".into(),
            any_region: false,
            api_hosts: Vec::new(),
            api_rate: None,
            key: None,
            recycle_bin_days: 0,
            record_days: RECORD_DAYS,
            rules: Rules::newest(),
            modify_policy: ModifyPolicy::Immediate,
            quotas: None,
            account_quotas: AccountQuotas::default(),
            figure: None,
            oversell: BTreeMap::new(),
            space_oversell: SpaceOversell::default(),
        }
    }
}

/// All volumes, hosts, client tokens and snapshots. Two models are equal if these are equal.
///
/// Only [`Model::apply`] changes a model. It also updates the index that decisions use. Code that
/// fills the maps directly must call [`Model::reindex`] before any other method.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// All volumes.
    pub volumes: BTreeMap<VolumeId, Volume>,
    /// All hosts.
    pub hosts: BTreeMap<InstanceId, Host>,
    /// Client tokens of the last day.
    pub tokens: BTreeMap<String, Token>,
    /// All snapshots, also those that are being deleted.
    pub snapshots: BTreeMap<SnapshotId, Snapshot>,
    /// The account's settings.
    pub account: Account,
    /// All users but the root user, by the key of their name.
    pub users: BTreeMap<String, User>,
    index: Index,
    /// The sold amounts; `None` until [`Self::keep_books`] is called.
    books: Option<KeptBooks>,
    /// The number of events applied since the last check of the whole model.
    events: usize,
}

impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        (&self.volumes, &self.hosts, &self.tokens, &self.snapshots, &self.account, &self.users)
            == (
                &other.volumes,
                &other.hosts,
                &other.tokens,
                &other.snapshots,
                &other.account,
                &other.users,
            )
    }
}

impl Eq for Model {}

impl Model {
    /// Decides `command`, given the capacity that may be sold. Changes nothing.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn decide(
        &self,
        settings: &Settings,
        capacity: &Capacity,
        command: &Command,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let decision = self.decide_without_capacity(settings, command, now)?;
        self.check_quotas(settings.quotas, &decision.events)?;
        self.check_account(settings, &decision.events)?;
        // Last, so that an invalid request gets its own error whatever capacity is left.
        self.admit(settings, capacity, &decision.events)?;
        Ok(decision)
    }

    fn decide_without_capacity(
        &self,
        settings: &Settings,
        command: &Command,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        match command {
            Command::CreateVolume { id, request, begins, zone, tags, token } => {
                let new = NewVolume { id: *id, request, begins, zone, tags, token: token.as_ref() };
                self.create_volume(settings, &new, now)
            }
            Command::AdoptVolume { id, is_encrypted, request, zone, tags } => {
                let begins = &Begins { is_encrypted: Some(*is_encrypted), ..Begins::default() };
                let new = NewVolume { id: *id, request, begins, zone, tags, token: None };
                self.adopt_volume(settings, &new, now)
            }
            Command::DeleteVolume { id } => self.delete_volume(settings, *id, now),
            Command::DeleteWithHost { id, host } => self.delete_with(settings, *id, *host, now),
            Command::RestoreVolume { id, error } => self.restore_volume(*id, error.as_ref(), now),
            Command::SetAutoEnableIo { id, is_on } => self.set_auto_enable_io(*id, *is_on),
            Command::SetDeleteOnTermination { instance, devices } => {
                self.set_delete_on_termination(*instance, devices)
            }
            Command::AttachVolume { id, instance, device } => {
                let new = NewAttachment { id: *id, instance: *instance, device };
                self.attach(settings, &new, now)
            }
            Command::DetachVolume { id, instance, device } => self.detach(*id, *instance, device),
            Command::ModifyVolume { id, change } => self.modify(settings, *id, change, now),
            Command::CreateSnapshot { id, volume, description, tags } => {
                let new = NewSnapshot { id: *id, volume: *volume, description, tags };
                self.create_snapshot(&new, now)
            }
            Command::CreateSnapshots { instance, set, description } => {
                self.create_snapshots(*instance, set, description, now)
            }
            Command::StartSnapshot { id, size_gib, filled, is_encrypted, description, tags } => {
                let size_gib = *size_gib;
                let is_encrypted = *is_encrypted;
                #[rustfmt::skip]
                let new = NewFilled { id: *id, size_gib, filled, is_encrypted, description, tags };
                self.start_snapshot(settings, &new, now)
            }
            Command::CopySnapshot { id, of, is_encrypted, description, tags } => {
                let new =
                    NewCopy { id: *id, of: *of, is_encrypted: *is_encrypted, description, tags };
                self.copy_snapshot(settings, &new, now)
            }
            Command::DeleteSnapshot { id } => self.delete_snapshot(settings, *id, now),
            Command::RestoreSnapshot { id } => self.restore_snapshot(*id, now),
            Command::PurgeSnapshot { id } => self.purge_snapshot(*id),
            Command::LockSnapshot { id, lock } => self.lock_snapshot(*id, lock, now),
            Command::UnlockSnapshot { id } => self.unlock_snapshot(*id, now),
            Command::ArchiveSnapshot { id } => self.archive_snapshot(*id, now),
            Command::RestoreTier { id, days } => self.restore_tier(*id, *days, now),
            Command::ShareSnapshot { id, add, remove } => self.share(*id, add, remove, now),
            Command::SetFastRestore { ids, zones, is_on } => self.set_fast(ids, zones, *is_on, now),
            Command::SetEncryptByDefault(is_on) => self.encrypt_by_default(settings, *is_on),
            Command::SetPublicAccess(access) => Ok(self.set_public_access(*access)),
            Command::CreateTags { resources, tags } => self.create_tags(resources, tags),
            Command::DeleteTags { resources, tags } => self.delete_tags(resources, tags),
            Command::RegisterHost { id, zone, instance_type, address, tags } => {
                let new = NewHost { id: *id, zone, instance_type, address: *address, tags };
                self.register_host(settings, &new, now)
            }
            Command::DeregisterHost { id } => self.deregister_host(*id),
            Command::SetHostState { ids, state } => self.set_host_state(ids, *state),
            Command::SetHostType { id, instance_type } => self.set_host_type(*id, instance_type),
        }
    }

    /// Applies one event. The cost does not depend on the number of volumes.
    pub fn apply(&mut self, event: Event) {
        self.apply_unchecked(event);
        self.events = self.events.saturating_add(1);
        // A check of the whole model runs only once in as many events as it has entries, so that a
        // debug build stays usable with many of them.
        let entries = self.volumes.len() + self.tokens.len() + self.snapshots.len();
        if cfg!(debug_assertions) && self.events >= entries {
            self.events = 0;
            self.invariants();
        }
    }

    fn apply_unchecked(&mut self, event: Event) {
        match event {
            Event::Volume(volume) => {
                let before = self.volumes.get(&volume.id);
                self.index.volume(before, Some(&volume));
                if let Some(books) = &mut self.books {
                    books.replace(before, Some(&volume));
                }
                self.volumes.insert(volume.id, volume);
            }
            Event::VolumeGone(id) => {
                let gone = self.volumes.remove(&id);
                self.index.volume(gone.as_ref(), None);
                if let Some(books) = &mut self.books {
                    books.replace(gone.as_ref(), None);
                }
            }
            Event::Host(host) => {
                self.hosts.insert(host.id, host);
            }
            Event::HostGone(id) => {
                self.hosts.remove(&id);
            }
            Event::Token(name, token) => {
                self.index.token(&name, self.tokens.get(&name), Some(&token));
                self.tokens.insert(name, token);
            }
            Event::TokenGone(name) => {
                let gone = self.tokens.remove(&name);
                self.index.token(&name, gone.as_ref(), None);
            }
            Event::Snapshot(snapshot) => {
                self.index.snapshot(self.snapshots.get(&snapshot.id), Some(&snapshot));
                self.snapshots.insert(snapshot.id, snapshot);
            }
            Event::SnapshotGone(id) => {
                let gone = self.snapshots.remove(&id);
                self.index.snapshot(gone.as_ref(), None);
            }
            Event::Account(account) => self.account = account,
            Event::User(user) => _ = self.users.insert(User::key_of(&user.name), user),
            Event::UserGone(key) => _ = self.users.remove(&key),
        }
    }

    /// Rebuilds the index after the maps were filled directly. Books are no longer kept.
    pub fn reindex(&mut self) {
        self.index = Index::of(self);
        self.books = None;
    }

    /// Asserts that the index and the books equal a full recomputation.
    ///
    /// # Panics
    /// If they differ.
    pub fn invariants(&self) {
        let added_up = Index::of(self);
        assert!(self.index == added_up, "kept: {:?}, added up: {added_up:?}", self.index);
        if let Some(books) = &self.books {
            books.invariants(self);
        }
    }

    /// Returns the volume. Returns a refusal if it does not exist or is in the recycle bin.
    ///
    /// # Errors
    /// [`Refusal::VolumesNotFound`].
    pub fn volume(&self, id: VolumeId) -> Result<&Volume, Refusal> {
        let found = self.volumes.get(&id).filter(|volume| volume.is_shown());
        found.ok_or_else(|| Refusal::VolumesNotFound(vec![id]))
    }

    /// Checks that all these volumes exist.
    ///
    /// # Errors
    /// [`Refusal::VolumesNotFound`] with those that do not.
    pub fn check_volumes(&self, ids: &[VolumeId]) -> Result<(), Refusal> {
        let absent: Vec<_> = ids.iter().copied().filter(|id| self.volume(*id).is_err()).collect();
        if absent.is_empty() { Ok(()) } else { Err(Refusal::VolumesNotFound(absent)) }
    }

    /// Checks that all these hosts are shown at this time.
    ///
    /// # Errors
    /// [`Refusal::InstancesNotFound`] with those that are not.
    pub fn check_hosts(&self, ids: &[InstanceId], now: UnixMs) -> Result<(), Refusal> {
        let is_shown = |id: &InstanceId| self.hosts.get(id).is_some_and(|host| host.is_shown(now));
        let absent: Vec<_> = ids.iter().copied().filter(|id| !is_shown(id)).collect();
        if absent.is_empty() { Ok(()) } else { Err(Refusal::InstancesNotFound(absent)) }
    }

    /// Returns the host, or the refusal that it does not exist.
    ///
    /// # Errors
    /// [`Refusal::InstancesNotFound`].
    pub fn host(&self, id: InstanceId) -> Result<&Host, Refusal> {
        self.hosts.get(&id).ok_or_else(|| Refusal::InstancesNotFound(vec![id]))
    }

    /// Returns all attachments of one host with their volumes, by volume id.
    pub fn attachments_of(
        &self,
        instance: InstanceId,
    ) -> impl Iterator<Item = (&Volume, &Attachment)> {
        let volumes = self.index.attached_to(instance).filter_map(|id| self.volumes.get(&id));
        let all = volumes.flat_map(|v| v.attachments.iter().map(move |a| (v, a)));
        all.filter(move |(_, attachment)| attachment.instance == instance)
    }

    /// Returns volumes that may have a property, by id, after an id. Some may not have it, so the
    /// caller must compare.
    pub fn volumes_with(
        &self,
        property: &Property<'_>,
        after: Option<VolumeId>,
    ) -> impl Iterator<Item = &Volume> + use<'_> {
        self.index.found(property, after).filter_map(|id| self.volumes.get(&id))
    }

    /// Returns snapshots that may have a property, by id, after an id. Some may not have it, so the
    /// caller must compare.
    pub fn snapshots_with(
        &self,
        property: &Property<'_>,
        after: Option<SnapshotId>,
    ) -> impl Iterator<Item = &Snapshot> + use<'_> {
        self.index.found_snapshots(property, after).filter_map(|id| self.snapshots.get(&id))
    }

    /// Returns volumes for which the data plane must still be called, without those
    /// [`Self::in_error`], by id.
    pub fn unsettled(&self) -> impl Iterator<Item = VolumeId> {
        self.index.unsettled().iter().copied()
    }

    /// Returns volumes in error, by id.
    pub fn in_error(&self) -> impl Iterator<Item = VolumeId> {
        self.index.in_error().iter().copied()
    }
}

impl Decision {
    /// Returns a decision that sets the state of one snapshot, and calls the data plane for it.
    fn changing_snapshot(snapshot: Snapshot) -> Self {
        let calls = Calls::Snapshot(snapshot.id);
        Self { events: vec![Event::Snapshot(snapshot)], calls }
    }

    /// Returns a decision that sets the state of one volume, and calls the data plane for it.
    fn changing(volume: Volume) -> Self {
        let calls = Calls::Volume(volume.id);
        Self { events: vec![Event::Volume(volume)], calls }
    }

    /// Returns a decision that sets the state of one volume, and calls the data plane for it even
    /// if it is settled.
    fn reopening(volume: Volume) -> Self {
        let calls = Calls::Reopened(volume.id);
        Self { events: vec![Event::Volume(volume)], calls }
    }

    /// Returns the volume with which the data plane is called.
    #[must_use]
    pub const fn volume(&self) -> Option<VolumeId> {
        match self.calls {
            Calls::Volume(id) | Calls::Reopened(id) => Some(id),
            Calls::Nothing | Calls::Snapshot(_) | Calls::Set(_) => None,
        }
    }
}
