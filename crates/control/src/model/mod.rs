//! Volumes, hosts, attachments, tags and modifications: what exists, what may be done with it.
//!
//! Pure: ids and the time are arguments, nothing here knows SQL, HTTP or the data plane. A
//! [`Command`] is *decided* into [`Event`]s, each of which states one thing whole ("this volume
//! looks like this"). The caller stores the events, then *applies* them; so what is in memory is
//! what is on disk.
//!
//! What the data plane must do takes two steps, so that a crash between them is repaired by saying
//! it again. A decision leaves the volume *unsettled* (creating, attaching, detaching, modifying,
//! deleting); once the data plane answered, [`Model::settle`] makes it final, or takes it back:
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

mod admission;
mod attachments;
mod hosts;
mod index;
mod modify;
mod refusal;
mod settle;
mod space;
mod tags;
mod volumes;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::admission::{Figure, Oversell};
use evenkeel_core::volume::{Rules, VolumeChange, VolumeRequest, VolumeSpec, VolumeType};
use evenkeel_wire::agent::{Capacity, HostAddress};

use admission::KeptBooks;
pub use admission::{Books, Line, Shortfall, Source, TypeSold};
use attachments::NewAttachment;
pub use hosts::LOCAL_TYPE;
use hosts::NewHost;
use index::Index;
pub use modify::ModifyPolicy;
pub use refusal::Refusal;
pub use settle::Settled;
pub use space::{Room, SpaceOversell, SpaceShort};
pub use tags::{TAGS_MAX, Tagged, Tags};
use volumes::NewVolume;

/// Volumes one control plane carries at most: as many as the schedulers of two cores. 100,000 are
/// measured (`cargo bench -p evenkeel-control --bench mutations`); this leaves room.
pub const VOLUMES_MAX: usize = 2 * evenkeel_core::limits::VOLUMES_PER_CORE_MAX;
const _: () = assert!(VOLUMES_MAX <= evenkeel_core::qos::admission::VOLUMES_MAX);
/// Hosts one control plane carries at most. A host is a row and a name; this only bounds memory.
pub const HOSTS_MAX: usize = 4_096;
/// Instances a Multi-Attach volume may be attached to.
pub const ATTACHMENTS_MAX: usize = 16;
/// Client tokens that are remembered; after that the oldest goes, however young it is.
const TOKENS_MAX: usize = 100_000;
/// How long a client token is remembered, in milliseconds: a day.
const TOKEN_LIFETIME_MS: u64 = 24 * 3_600_000;

/// A point in time: milliseconds of Unix time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// `ms` milliseconds later; saturates.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`; zero if that is later (a wall clock may be set back).
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where a volume is in its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Its bytes are being made.
    Creating,
    /// It can be used.
    Ready,
    /// Its bytes are being deleted.
    Deleting,
    /// The data plane could not open it; the text says why. It is tried again every few seconds.
    Error(String),
}

/// A volume's state in EC2's words.
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
    /// The word on the wire.
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

/// Where an attachment is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachmentState {
    /// `attaching`: the data plane has not let the host in yet.
    Attaching,
    /// `attached`
    Attached,
    /// `detaching`: the data plane has not shut the host out yet.
    Detaching,
}

impl AttachmentState {
    /// The word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Detaching => "detaching",
        }
    }
}

/// A volume given to a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// The host.
    pub instance: InstanceId,
    /// The device name the client chose; a label, as on EC2.
    pub device: String,
    /// Where the attachment is in its life.
    pub state: AttachmentState,
    /// Since when.
    pub attached: UnixMs,
}

/// Where a modification is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModificationPhase {
    /// The data plane has not confirmed it yet.
    Modifying,
    /// In force; counted as unfinished for as long as AWS would take.
    Optimizing {
        /// When the new limits came into force.
        since: UnixMs,
        /// When it counts as completed.
        until: UnixMs,
    },
    /// Done.
    Completed {
        /// When.
        ended: UnixMs,
    },
    /// Taken back.
    Failed {
        /// When.
        ended: UnixMs,
        /// Why.
        reason: String,
    },
}

/// The latest modification of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Modification {
    /// The volume before.
    pub original: VolumeSpec,
    /// The volume as asked for.
    pub target: VolumeSpec,
    /// When it was accepted.
    pub started: UnixMs,
    /// How far it is.
    pub phase: ModificationPhase,
}

/// A volume, whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Its id, also its export name.
    pub id: VolumeId,
    /// The availability zone.
    pub zone: String,
    /// When it was created.
    pub created: UnixMs,
    /// Type, size and limits; the target already while a modification is being made.
    pub spec: VolumeSpec,
    /// Where it is in its life.
    pub phase: Phase,
    /// To whom it is attached, in the order of attaching.
    pub attachments: Vec<Attachment>,
    /// Its tags.
    pub tags: Tags,
    /// The latest modification, if there ever was one.
    pub modification: Option<Modification>,
    /// When the modifications of the last days were accepted, oldest first; failed ones do not
    /// count.
    pub modification_starts: Vec<UnixMs>,
}

impl Volume {
    /// Its state in EC2's words.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        match self.phase {
            Phase::Creating => VolumeState::Creating,
            Phase::Deleting => VolumeState::Deleting,
            Phase::Error(_) => VolumeState::Error,
            Phase::Ready if self.attachments.is_empty() => VolumeState::Available,
            Phase::Ready => VolumeState::InUse,
        }
    }

    /// Whether the data plane still has to confirm new limits.
    #[must_use]
    pub fn is_being_modified(&self) -> bool {
        self.modification.as_ref().is_some_and(|m| m.phase == ModificationPhase::Modifying)
    }

    /// Whether the data plane has confirmed everything.
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
    /// From where it may reach its volumes.
    pub address: HostAddress,
    /// Since when it is known.
    pub registered: UnixMs,
    /// Its tags.
    pub tags: Tags,
}

/// A client token that was used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// The request it came with, in a form that is equal when the requests are.
    pub fingerprint: String,
    /// What that request made.
    pub volume: VolumeId,
    /// When.
    pub used: UnixMs,
}

/// What clients ask for. Ids of new things are given by the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Make a volume.
    CreateVolume {
        /// Id of the new volume.
        id: VolumeId,
        /// Type, size and limits.
        request: VolumeRequest,
        /// Where.
        zone: String,
        /// Tags it starts with.
        tags: Tags,
        /// Client token and fingerprint of the request.
        token: Option<(String, String)>,
    },
    /// Make a volume of bytes at rest that no volume has, whose id and size it takes.
    AdoptVolume {
        /// Whose bytes.
        id: VolumeId,
        /// Type, size and limits.
        request: VolumeRequest,
        /// Where.
        zone: String,
        /// Tags it starts with.
        tags: Tags,
    },
    /// Delete a volume and its bytes.
    DeleteVolume {
        /// Which.
        id: VolumeId,
    },
    /// Give a volume to a host.
    AttachVolume {
        /// Which.
        id: VolumeId,
        /// To whom.
        instance: InstanceId,
        /// The device name.
        device: String,
    },
    /// Take a volume from a host.
    DetachVolume {
        /// Which.
        id: VolumeId,
        /// From whom; may be left out if the volume is attached once.
        instance: Option<InstanceId>,
        /// The device name, if it is to be compared.
        device: Option<String>,
    },
    /// Change type, size or limits.
    ModifyVolume {
        /// Which.
        id: VolumeId,
        /// What.
        change: VolumeChange,
    },
    /// Set tags.
    CreateTags {
        /// Of what.
        resources: Vec<Tagged>,
        /// Which.
        tags: Tags,
    },
    /// Remove tags.
    DeleteTags {
        /// Of what.
        resources: Vec<Tagged>,
        /// Keys, each with the value it must have to be removed; empty removes all.
        tags: Vec<(String, Option<String>)>,
    },
    /// Make a client host known.
    RegisterHost {
        /// Id of the new host.
        id: InstanceId,
        /// Its EC2 type, or [`LOCAL_TYPE`].
        instance_type: String,
        /// From where it may reach its volumes.
        address: HostAddress,
        /// Tags it starts with.
        tags: Tags,
    },
    /// Forget a client host.
    DeregisterHost {
        /// Which.
        id: InstanceId,
    },
}

/// A change of the model. Each states its thing whole, so applying one twice does no harm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The volume looks like this.
    Volume(Volume),
    /// There is no such volume any more.
    VolumeGone(VolumeId),
    /// The host looks like this.
    Host(Host),
    /// There is no such host any more.
    HostGone(InstanceId),
    /// This client token was used.
    Token(String, Token),
    /// This client token is forgotten.
    TokenGone(String),
}

/// What a command comes to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// To be stored and applied.
    pub events: Vec<Event>,
    /// The volume the command was about.
    pub volume: Option<VolumeId>,
}

/// What is fixed while the server runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The region, for example `local-1`.
    pub region: String,
    /// The only availability zone.
    pub zone: String,
    /// The rulebook in force.
    pub rules: &'static Rules,
    /// How modifications are rationed.
    pub modify_policy: ModifyPolicy,
    /// What the operator says may be sold, whatever was measured; never more than that.
    pub figure: Option<Figure>,
    /// Types that the operator sells more than once, and how many times over.
    pub oversell: BTreeMap<VolumeType, Oversell>,
    /// How many times over space for bytes at rest is sold.
    pub space_oversell: SpaceOversell,
}

/// Everything that exists. Two models are equal if the same exists in both.
///
/// Changed by [`Model::apply`] only, which also keeps up to date what decisions read off all
/// volumes; whoever fills the maps directly calls [`Model::reindex`] before anything is asked.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// All volumes.
    pub volumes: BTreeMap<VolumeId, Volume>,
    /// All hosts.
    pub hosts: BTreeMap<InstanceId, Host>,
    /// Client tokens of the last day.
    pub tokens: BTreeMap<String, Token>,
    index: Index,
    /// What is sold; `None` until it is to be kept.
    books: Option<KeptBooks>,
    /// Events that were applied.
    events: usize,
}

impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        (&self.volumes, &self.hosts, &self.tokens) == (&other.volumes, &other.hosts, &other.tokens)
    }
}

impl Eq for Model {}

impl Model {
    /// What `command` comes to where so much may be sold, or why it is refused. Changes nothing.
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
        let decision = self.consider(settings, command, now)?;
        // Last: who asks for what is not legal is to hear that, whatever is left.
        self.admit(settings, capacity, &decision.events)?;
        Ok(decision)
    }

    fn consider(
        &self,
        settings: &Settings,
        command: &Command,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        match command {
            Command::CreateVolume { id, request, zone, tags, token } => {
                let token = token.as_ref();
                self.create_volume(
                    settings,
                    &NewVolume { id: *id, request, zone, tags, token },
                    now,
                )
            }
            Command::AdoptVolume { id, request, zone, tags } => {
                let new = NewVolume { id: *id, request, zone, tags, token: None };
                self.create_volume(settings, &new, now)
            }
            Command::DeleteVolume { id } => self.delete_volume(*id),
            Command::AttachVolume { id, instance, device } => {
                let new = NewAttachment { id: *id, instance: *instance, device };
                self.attach(settings, &new, now)
            }
            Command::DetachVolume { id, instance, device } => {
                self.detach(*id, *instance, device.as_deref())
            }
            Command::ModifyVolume { id, change } => self.modify(settings, *id, change, now),
            Command::CreateTags { resources, tags } => self.create_tags(resources, tags),
            Command::DeleteTags { resources, tags } => self.delete_tags(resources, tags),
            Command::RegisterHost { id, instance_type, address, tags } => {
                let new = NewHost { id: *id, instance_type, address: *address, tags };
                self.register_host(&new, now)
            }
            Command::DeregisterHost { id } => self.deregister_host(*id),
        }
    }

    /// Makes one event true. The cost does not depend on how many volumes there are.
    pub fn apply(&mut self, event: Event) {
        self.make_true(event);
        self.events = self.events.wrapping_add(1);
        // All volumes are looked at only every so many events, so that a debug build stays usable
        // with many of them.
        if cfg!(debug_assertions) && self.events.is_multiple_of(self.volumes.len().max(1)) {
            self.invariants();
        }
    }

    fn make_true(&mut self, event: Event) {
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
        }
    }

    /// Looks at everything again: after the maps were filled directly. Books are no longer kept.
    pub fn reindex(&mut self) {
        self.index = Index::of(&self.volumes, &self.tokens);
        self.books = None;
    }

    /// Asserts that what is kept up to date is what adding up everything gives.
    ///
    /// # Panics
    /// If it is not.
    pub fn invariants(&self) {
        let added_up = Index::of(&self.volumes, &self.tokens);
        assert!(self.index == added_up, "kept: {:?}, added up: {added_up:?}", self.index);
        if let Some(books) = &self.books {
            books.invariants(self);
        }
    }

    /// The volume, or the refusal that there is none.
    ///
    /// # Errors
    /// [`Refusal::VolumesNotFound`].
    pub fn volume(&self, id: VolumeId) -> Result<&Volume, Refusal> {
        self.volumes.get(&id).ok_or_else(|| Refusal::VolumesNotFound(vec![id]))
    }

    /// The host, or the refusal that there is none.
    ///
    /// # Errors
    /// [`Refusal::InstancesNotFound`].
    pub fn host(&self, id: InstanceId) -> Result<&Host, Refusal> {
        self.hosts.get(&id).ok_or_else(|| Refusal::InstancesNotFound(vec![id]))
    }

    /// All attachments of one host, with their volumes, in the order of volume ids.
    pub fn attachments_of(
        &self,
        instance: InstanceId,
    ) -> impl Iterator<Item = (&Volume, &Attachment)> {
        let volumes = self.index.attached_to(instance).filter_map(|id| self.volumes.get(&id));
        let all = volumes.flat_map(|v| v.attachments.iter().map(move |a| (v, a)));
        all.filter(move |(_, attachment)| attachment.instance == instance)
    }

    /// Volumes about which the data plane must still be told something, those [`Self::in_error`]
    /// apart; in the order of their ids.
    pub fn unsettled(&self) -> impl Iterator<Item = VolumeId> {
        self.index.unsettled().iter().copied()
    }

    /// Volumes in error, in the order of their ids.
    pub fn in_error(&self) -> impl Iterator<Item = VolumeId> {
        self.index.in_error().iter().copied()
    }
}

impl Decision {
    /// One volume becomes `volume`.
    fn changing(volume: Volume) -> Self {
        Self { volume: Some(volume.id), events: vec![Event::Volume(volume)] }
    }
}
