//! State of a migration at both servers: tags of its snapshots and of the new volume. An
//! interrupted run is continued from them.

use crate::Client;
use crate::model::{Attachment, VolumeDescription};
use crate::output::{Exit, Failure};
use crate::snapshots::Snapshot;
use crate::volumes::tag_parameters;

/// Prefix of all tags.
const PREFIX: &str = "evenkeel:migrat";
/// Tag of a snapshot at the target: the volume at the source. Of a snapshot at the source: the
/// target, by its access key's id.
pub const OF: &str = "evenkeel:migrate";
/// Tag of the snapshot with the first copy: see [`Base`].
pub const BASE: &str = "evenkeel:migrate-base";
/// Tag of the snapshot with the later changes: the snapshots at the source that are copied into it
/// one after the other, beginning with that of the first copy.
pub const CHANGES: &str = "evenkeel:migrate-changes";
/// Tag of the new volume: the volume at the source.
pub const FROM: &str = "evenkeel:migrated-from";
/// Maximum number of tags of a volume.
const TAGS_MAX: usize = 50;
/// Text before the volume's id in [`FROM`], until the migration is complete.
const UNFINISHED: &str = "unfinished ";
/// Tag of the first snapshot at the source, with a host's id: the device name of the volume there.
const HOST: &str = "evenkeel:migrate-host-";
/// Tag of the same snapshot: time at which the volume was detached, in milliseconds since 1970.
const DETACHED: &str = "evenkeel:migrate-detached";

/// Progress of the first copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Far {
    /// All units before `next` are copied; `put` of them were not zero.
    Copied { next: u64, put: u64 },
    /// It is complete, and this number of units was compared.
    Compared(u64),
}

/// The snapshot at the target with the first copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Base {
    pub id: String,
    /// The snapshot at the source.
    pub of: String,
    pub far: Far,
}

impl Base {
    /// Returns the value of its tag.
    pub fn tag(&self) -> String {
        match self.far {
            Far::Copied { next, put } => format!("{} {next} {put}", self.of),
            Far::Compared(units) => format!("{} compared {units}", self.of),
        }
    }

    /// Reads the tag of a snapshot; `None` if it is not a first copy.
    pub fn read(snapshot: &Snapshot) -> Option<Self> {
        let words: Vec<&str> = snapshot.tags.get(BASE)?.split(' ').collect();
        let &[of, next, count] = words.as_slice() else { return None };
        let count = count.parse().ok()?;
        let far = match next {
            "compared" => Far::Compared(count),
            next => Far::Copied { next: next.parse().ok()?, put: count },
        };
        Some(Self { id: snapshot.snapshot_id.clone(), of: of.to_owned(), far })
    }
}

/// Returns a new volume's tag [`FROM`].
pub fn from(volume: &str, is_finished: bool) -> (String, String) {
    let before = if is_finished { "" } else { UNFINISHED };
    (FROM.to_owned(), format!("{before}{volume}"))
}

/// Returns the tags that the user has set.
pub fn own_tags(volume: &VolumeDescription) -> Vec<(String, String)> {
    let tags = volume.tags.clone().into_iter();
    tags.filter(|(key, _)| !key.starts_with(PREFIX)).collect()
}

/// Checks that the new volume can have the volume's own tags and [`FROM`].
///
/// # Errors
/// If the volume has as many tags of its own as a volume may have.
pub fn check_tags(volume: &VolumeDescription) -> Result<(), Failure> {
    let own = own_tags(volume).len();
    if own < TAGS_MAX {
        return Ok(());
    }
    let id = &volume.volume_id;
    let message = format!(
        "{id} has {own} tags, and the new volume gets one more, {FROM}; a volume has at most \
         {TAGS_MAX}"
    );
    Err(Failure::new(message).hint("remove a tag of it with DeleteTags, and repeat the command"))
}

/// Hosts of a volume when it was detached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Detached {
    pub hosts: Vec<(String, String)>,
    pub at_ms: Option<u64>,
}

impl Detached {
    /// Reads the tags of the first snapshot.
    pub fn read(snapshot: &Snapshot) -> Self {
        let host = |(key, device): (&String, &String)| {
            Some((key.strip_prefix(HOST)?.to_owned(), device.clone()))
        };
        let hosts = snapshot.tags.iter().filter_map(host).collect();
        let at_ms = snapshot.tags.get(DETACHED).and_then(|text| text.parse().ok());
        Self { hosts, at_ms }
    }

    /// Writes the tags of the first snapshot, in place of earlier ones.
    pub fn note(
        client: &Client,
        snapshot: &Snapshot,
        attachments: &[Attachment],
        at_ms: u64,
    ) -> Result<(), Failure> {
        let id = &snapshot.snapshot_id;
        let known = snapshot.tags.keys().filter(|key| key.starts_with(HOST));
        let known: Vec<(String, String)> =
            (1..).zip(known).map(|(at, key)| (format!("Tag.{at}.Key"), key.clone())).collect();
        if !known.is_empty() {
            call(client, "DeleteTags", id, &known)?;
        }
        let host = |it: &Attachment| (format!("{HOST}{}", it.host_id), it.device.clone());
        let mut tags: Vec<(String, String)> = attachments.iter().map(host).collect();
        tags.push((DETACHED.to_owned(), at_ms.to_string()));
        set_tags(client, id, &tags)
    }
}

fn call(
    client: &Client,
    action: &str,
    id: &str,
    parameters: &[(String, String)],
) -> Result<(), Failure> {
    let mut all = vec![("ResourceId.1", id)];
    all.extend(parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    client.call(action, &all).map(drop)
}

/// Sets tags of a volume or a snapshot.
pub fn set_tags(client: &Client, id: &str, tags: &[(String, String)]) -> Result<(), Failure> {
    call(client, "CreateTags", id, &tag_parameters("Tag", tags))
}

/// Returns the snapshots with this tag.
pub fn snapshots(client: &Client, key: &str, value: &str) -> Result<Vec<Snapshot>, Failure> {
    let filter = format!("tag:{key}");
    let filter = [("Filter.1.Name", filter.as_str()), ("Filter.1.Value.1", value)];
    Ok(Snapshot::set(&client.call("DescribeSnapshots", &filter)?))
}

/// Returns the volumes that were made of this one of the source.
pub fn volumes(
    client: &Client,
    of: &str,
    is_finished: bool,
) -> Result<Vec<VolumeDescription>, Failure> {
    let (key, value) = from(of, is_finished);
    let filter = format!("tag:{key}");
    let filter = [("Filter.1.Name", filter.as_str()), ("Filter.1.Value.1", value.as_str())];
    Ok(VolumeDescription::set(&client.call("DescribeVolumes", &filter)?))
}

/// Deletes a resource of the migration, without keeping it in a recycle bin. Succeeds if it is
/// gone.
pub fn delete(client: &Client, (kind, parameter): Kind, id: &str) -> Result<(), Failure> {
    for action in [format!("Delete{kind}"), format!("Purge{kind}")] {
        match client.call(&action, &[(parameter, id)]) {
            Err(failure) if failure.exit == Exit::NotFound => {}
            answer => drop(answer?),
        }
    }
    Ok(())
}

/// A kind of resource: its name in actions, and the name of its id.
pub type Kind = (&'static str, &'static str);
pub const SNAPSHOT: Kind = ("Snapshot", "SnapshotId");
pub const VOLUME: Kind = ("Volume", "VolumeId");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tag_says_is_read_again() {
        for far in [Far::Copied { next: 0, put: 0 }, Far::Copied { next: 9, put: 7 }] {
            let base = Base { id: "snap-b".to_owned(), of: "snap-a".to_owned(), far };
            let tags = [(BASE.to_owned(), base.tag())].into();
            let snapshot = Snapshot { snapshot_id: "snap-b".into(), tags, ..Snapshot::default() };
            assert_eq!(Base::read(&snapshot), Some(base));
        }
        for text in ["", "snap-a", "snap-a 1", "snap-a x 1", "snap-a 1 x", "snap-a 1 1 1"] {
            let tags = [(BASE.to_owned(), text.to_owned())].into();
            assert_eq!(Base::read(&Snapshot { tags, ..Snapshot::default() }), None, "{text}");
        }
    }

    #[test]
    fn tags_of_an_earlier_migration_are_not_the_users() {
        let tags = [("Name", "log"), (FROM, "vol-1"), ("evenkeel:other", "x")];
        let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let volume = VolumeDescription { tags: tags.into(), ..VolumeDescription::default() };
        let keys: Vec<String> = own_tags(&volume).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["Name", "evenkeel:other"]);
    }

    /// At AWS and here, tags that a migration adds count as others do.
    #[test]
    fn a_volume_without_room_for_the_tag_of_a_migration_is_refused_with_its_name() {
        let tagged = |count: usize| {
            let tags = (0..count).map(|n| (format!("k{n}"), String::new())).collect();
            VolumeDescription { volume_id: "vol-1".into(), tags, ..VolumeDescription::default() }
        };
        assert!(check_tags(&tagged(49)).is_ok());
        let refused = check_tags(&tagged(50)).unwrap_err();
        assert_eq!(
            refused.message,
            "vol-1 has 50 tags, and the new volume gets one more, evenkeel:migrated-from; a \
             volume has at most 50"
        );
        // One of an earlier migration is replaced.
        let mut again = tagged(49);
        again.tags.insert(FROM.to_owned(), "vol-0".to_owned());
        assert!(check_tags(&again).is_ok());
    }
}
