//! The subject of an event, for journals that store the last event of each object under a key.

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};

use crate::model::{Event, User};

/// The object that an event is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// A volume.
    Volume(VolumeId),
    /// A host.
    Host(InstanceId),
    /// A snapshot.
    Snapshot(SnapshotId),
    /// A client token.
    Token(String),
    /// The account.
    Account,
    /// A user, by the key of its name.
    User(String),
}

impl Subject {
    /// Returns an event's subject, and whether the object exists after the event.
    #[must_use]
    pub fn of(event: &Event) -> (Self, bool) {
        match event {
            Event::Volume(volume) => (Self::Volume(volume.id), true),
            Event::VolumeGone(id) => (Self::Volume(*id), false),
            Event::Host(host) => (Self::Host(host.id), true),
            Event::HostGone(id) => (Self::Host(*id), false),
            Event::Token(name, _) => (Self::Token(name.clone()), true),
            Event::TokenGone(name) => (Self::Token(name.clone()), false),
            Event::Snapshot(snapshot) => (Self::Snapshot(snapshot.id), true),
            Event::SnapshotGone(id) => (Self::Snapshot(*id), false),
            Event::Account(_) => (Self::Account, true),
            Event::User(user) => (Self::User(User::key_of(&user.name)), true),
            Event::UserGone(key) => (Self::User(key.clone()), false),
        }
    }

    /// Returns the kind of object, which names SQLite's records, and the object's id among those of
    /// its kind.
    #[must_use]
    pub fn kind_and_id(&self) -> (&'static str, String) {
        match self {
            Self::Volume(id) => ("volume", id.to_string()),
            Self::Host(id) => ("host", id.to_string()),
            Self::Snapshot(id) => ("snapshot", id.to_string()),
            Self::Token(name) => ("token", name.clone()),
            Self::Account => ("account", String::new()),
            Self::User(key) => ("user", key.clone()),
        }
    }

    /// Returns the event of the object's removal, if there is one.
    #[must_use]
    pub fn gone(&self) -> Option<Event> {
        match self {
            Self::Volume(id) => Some(Event::VolumeGone(*id)),
            Self::Host(id) => Some(Event::HostGone(*id)),
            Self::Snapshot(id) => Some(Event::SnapshotGone(*id)),
            Self::Token(name) => Some(Event::TokenGone(name.clone())),
            Self::Account => None,
            Self::User(key) => Some(Event::UserGone(key.clone())),
        }
    }
}
