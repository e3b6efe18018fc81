//! The keys of a cluster in etcd. Pure; `docs/internals/journal.md` lists them.

use evenkeel_control::journal::Subject;
use evenkeel_core::ids::InstanceId;

/// Maximum number of characters of a name that is part of a key.
pub const NAME_MAX: usize = 63;

/// Checks a name that is part of a key. `what` names the thing that has the name.
///
/// # Errors
/// The name cannot be part of a key; the text has the reason.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_plain) {
        Ok(())
    } else {
        Err(format!(
            "the {what}'s name '{name}': name it with 1 to {NAME_MAX} letters, digits, '-', '_' \
             and '.'"
        ))
    }
}

/// The names of a cluster's keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keys(String);

/// The thing that a key stores.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Thing {
    /// The last event of an object.
    Event(Subject),
    /// A device of a host, whose value is the volume.
    Device(InstanceId, String),
    /// A part of the balances.
    Credits(usize),
    /// The mark of a clean stop.
    Stop,
    /// The server's time.
    Clock,
    /// The last commit.
    Revision,
}

impl Keys {
    /// Creates the names for a cluster of this name.
    ///
    /// # Errors
    /// The name is invalid; the text has the reason.
    pub fn of(cluster: &str) -> Result<Self, String> {
        check_name("cluster", cluster)?;
        Ok(Self(format!("/evenkeel/{cluster}/")))
    }

    /// Returns the prefix of all keys.
    pub fn prefix(&self) -> Vec<u8> {
        self.0.clone().into_bytes()
    }

    /// Returns the prefix of one kind.
    pub fn kind(&self, kind: char) -> Vec<u8> {
        format!("{}{kind}/", self.0).into_bytes()
    }

    /// Returns the key of the format's version.
    pub fn meta(&self) -> Vec<u8> {
        format!("{}meta", self.0).into_bytes()
    }

    /// Returns the key of the leader.
    pub fn leader(&self) -> Vec<u8> {
        format!("{}leader", self.0).into_bytes()
    }

    /// Returns the key of the cluster's number. The first node writes it, and it never changes.
    pub fn number(&self) -> Vec<u8> {
        format!("{}id", self.0).into_bytes()
    }

    /// Returns the key of a thing.
    pub fn key(&self, thing: &Thing) -> Vec<u8> {
        let rest = match thing {
            Thing::Event(Subject::Volume(id)) => format!("v/{id}"),
            Thing::Event(Subject::Host(id)) => format!("h/{id}"),
            Thing::Event(Subject::Snapshot(id)) => format!("s/{id}"),
            Thing::Event(Subject::Token(name)) => format!("t/{name}"),
            Thing::Event(Subject::Account) => "account".to_owned(),
            Thing::Event(Subject::User(key)) => format!("u/{key}"),
            Thing::Device(host, device) => format!("a/{host}/{device}"),
            Thing::Credits(part) => format!("c/{part:02}"),
            Thing::Stop => "stop".to_owned(),
            Thing::Clock => "clock".to_owned(),
            Thing::Revision => "revision".to_owned(),
        };
        format!("{}{rest}", self.0).into_bytes()
    }

    /// Returns the thing that a key stores; `None` if the key is not one of the journal's.
    pub fn thing(&self, key: &[u8]) -> Option<Thing> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(self.0.as_str())?;
        match rest.split_once('/') {
            None => match rest {
                "account" => Some(Thing::Event(Subject::Account)),
                "stop" => Some(Thing::Stop),
                "clock" => Some(Thing::Clock),
                "revision" => Some(Thing::Revision),
                _ => None,
            },
            Some(("v", id)) => id.parse().ok().map(Subject::Volume).map(Thing::Event),
            Some(("h", id)) => id.parse().ok().map(Subject::Host).map(Thing::Event),
            Some(("s", id)) => id.parse().ok().map(Subject::Snapshot).map(Thing::Event),
            Some(("u", key)) => Some(Thing::Event(Subject::User(key.to_owned()))),
            Some(("t", name)) => Some(Thing::Event(Subject::Token(name.to_owned()))),
            Some(("c", part)) => part.parse().ok().map(Thing::Credits),
            Some(("a", rest)) => {
                let (host, device) = rest.split_once('/')?;
                Some(Thing::Device(host.parse().ok()?, device.to_owned()))
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::ids::{SnapshotId, VolumeId};

    #[test]
    fn every_key_parses_back_to_its_thing() {
        let keys = Keys::of("c1").unwrap();
        let host = InstanceId::from_bits(2);
        for thing in [
            Thing::Event(Subject::Volume(VolumeId::from_bits(1))),
            Thing::Event(Subject::Host(host)),
            Thing::Event(Subject::Snapshot(SnapshotId::from_bits(3))),
            Thing::Event(Subject::Token("a/b ü".into())),
            Thing::Event(Subject::Account),
            Thing::Event(Subject::User("a@b".into())),
            Thing::Device(host, "/dev/sdf".into()),
            Thing::Credits(7),
            Thing::Stop,
            Thing::Clock,
            Thing::Revision,
        ] {
            assert_eq!(keys.thing(&keys.key(&thing)), Some(thing));
        }
        for other in [keys.meta(), keys.leader(), b"/evenkeel/c1/n/x/inst".to_vec()] {
            assert_eq!(keys.thing(&other), None);
        }
        assert_eq!(keys.thing(b"/evenkeel/c2/v/vol-00000000000000001"), None);
    }

    #[test]
    fn a_name_that_would_reach_into_another_cluster_is_refused() {
        for name in ["", "a/b", "a b", "ü", &"x".repeat(NAME_MAX + 1)] {
            assert!(Keys::of(name).unwrap_err().contains("1 to 63 letters"), "{name}");
        }
    }
}
