//! Tags: keys and values that users set on volumes, snapshots and hosts.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};

use super::{Decision, Event, Model, Refusal};

/// The tags of one resource, by key.
pub type Tags = BTreeMap<String, String>;

/// Maximum number of tags of one resource.
pub const TAGS_MAX: usize = 50;

/// A resource that can be tagged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tagged {
    /// A volume.
    Volume(VolumeId),
    /// A host.
    Instance(InstanceId),
    /// A snapshot.
    Snapshot(SnapshotId),
}

impl fmt::Display for Tagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(id) => id.fmt(f),
            Self::Instance(id) => id.fmt(f),
            Self::Snapshot(id) => id.fmt(f),
        }
    }
}

impl FromStr for Tagged {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let volume = text.parse().map(Self::Volume).ok();
        let tagged = volume.or_else(|| text.parse().map(Self::Instance).ok());
        let tagged = tagged.or_else(|| text.parse().map(Self::Snapshot).ok());
        tagged.ok_or_else(|| Refusal::NotTaggable(text.into()))
    }
}

impl Model {
    pub(super) fn create_tags(
        &self,
        resources: &[Tagged],
        tags: &Tags,
    ) -> Result<Decision, Refusal> {
        self.retag(resources, |own| own.extend(tags.clone()))
    }

    pub(super) fn delete_tags(
        &self,
        resources: &[Tagged],
        tags: &[(String, Option<String>)],
    ) -> Result<Decision, Refusal> {
        let named = |key: &str, value: &str| {
            tags.iter().any(|(k, v)| k == key && v.as_ref().is_none_or(|v| v == value))
        };
        self.retag(resources, |own| match tags {
            [] => own.retain(|key, _| key.starts_with("aws:")),
            _ => own.retain(|key, value| !named(key, value)),
        })
    }

    fn retag(&self, resources: &[Tagged], change: impl Fn(&mut Tags)) -> Result<Decision, Refusal> {
        let mut events = Vec::with_capacity(resources.len());
        for resource in resources {
            let checked = |own: &Tags| match own.len() {
                ..=TAGS_MAX => Ok(()),
                _ => Err(Refusal::TooManyTags(resource.to_string())),
            };
            match *resource {
                Tagged::Volume(id) => {
                    let mut volume = self.volume(id)?.clone();
                    change(&mut volume.tags);
                    checked(&volume.tags)?;
                    events.push(Event::Volume(volume));
                }
                Tagged::Instance(id) => {
                    let mut host = self.host(id)?.clone();
                    change(&mut host.tags);
                    checked(&host.tags)?;
                    events.push(Event::Host(host));
                }
                Tagged::Snapshot(id) => {
                    let mut snapshot = self.snapshot(id)?.clone();
                    change(&mut snapshot.tags);
                    checked(&snapshot.tags)?;
                    events.push(Event::Snapshot(snapshot));
                }
            }
        }
        Ok(Decision { events, ..Decision::default() })
    }
}
