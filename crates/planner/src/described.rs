//! The description of a recorded volume in lists of volumes.

use crate::fleet::list::{self, List, Options};
use crate::fleet::{Reason, Volume};
use crate::format::plain;
use crate::read::JSON_BYTES_MAX;
use crate::refusal::{Cause, Refusal};
use crate::regions::DEFAULT_REGION;
use evenkeel_core::volume::{Rules, VolumeSpec};
use std::collections::BTreeSet;
use std::io::{BufRead, Read};

/// The volume that was recorded, as a list describes it.
#[derive(Clone, Debug)]
pub struct Described {
    /// Its type and size.
    pub spec: VolumeSpec,
    /// Whether an instance boots from it.
    pub boots: bool,
    /// The region whose prices apply; `None` for a volume of an Evenkeel server, or if the list
    /// does not say.
    pub region: Option<String>,
    /// Its zone, if the list has it.
    pub zone: Option<String>,
    /// The file of the list.
    pub file: String,
}

/// A list of volumes.
pub struct VolumeList {
    file: String,
    list: List,
    /// Volumes of which the list does not say the region.
    without_region: Vec<Volume>,
}

/// Returns whether a text that begins like this is a list of volumes in JSON: an answer of
/// DescribeVolumes, the volumes of one, or the output of `evenkeel volume ls -o json`.
#[must_use]
pub fn is_list(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let keys = |names: [&str; 2], value: &str| names.iter().any(|name| has_key(text, name, value));
    match text.as_bytes().first() {
        Some(b'{') => keys(["\"Volumes\"", "\"volumes\""], "["),
        Some(b'[') => keys(["\"VolumeId\"", "\"volume_id\""], "\""),
        _ => false,
    }
}

/// Returns whether a text has a key with a value that begins like this.
fn has_key(text: &str, name: &str, value: &str) -> bool {
    text.match_indices(name).any(|(start, _)| {
        let rest = text[start + name.len()..].trim_start();
        rest.strip_prefix(':').is_some_and(|rest| rest.trim_start().starts_with(value))
    })
}

impl VolumeList {
    /// Reads a list from a file of this name.
    ///
    /// # Errors
    /// If it cannot be read, or is no list.
    pub fn read(name: &str, input: &mut dyn BufRead, rules: &Rules) -> Result<Self, Refusal> {
        let fail = |why: String| Refusal::new(format!("{name}: {why}"));
        let mut text = Vec::new();
        let most = JSON_BYTES_MAX + 1;
        let read = Read::take(&mut *input, most).read_to_end(&mut text);
        read.map_err(|error| fail(error.to_string()))?;
        let read = |region: Option<&str>| {
            let list = list::read(
                &mut &text[..],
                rules,
                Options { region, group_by: None, allows_partial: true },
            );
            list.map_err(|broken| fail(broken.to_string()))
        };
        let list = read(None)?;
        let no_region =
            list.refused.iter().filter(|refused| matches!(refused.reason, Reason::NoRegion(_)));
        let no_region: BTreeSet<&str> =
            no_region.filter_map(|refused| refused.id.as_deref()).collect();
        let mut without_region = Vec::new();
        if !no_region.is_empty() {
            without_region = read(Some(DEFAULT_REGION))?.volumes;
            without_region.retain(|volume| no_region.contains(volume.id.as_str()));
        }
        Ok(Self { file: name.to_owned(), list, without_region })
    }

    /// Returns the volume of this name. A recording of another name, such as that of a disk, is of
    /// the only volume of a list that has one.
    ///
    /// # Errors
    /// If the list has the volume and does not describe it.
    pub fn volume(&self, name: &str) -> Result<Option<Described>, Refusal> {
        let known = self.list.volumes.iter().map(|volume| self.described(volume, true));
        let others = self.without_region.iter().map(|volume| self.described(volume, false));
        let mut all: Vec<(&str, Described)> = known.chain(others).collect();
        if all.len() == 1 && !is_id(name) {
            return Ok(all.pop().map(|(_, described)| described));
        }
        if let Some((_, described)) = all.into_iter().find(|(id, _)| *id == name) {
            return Ok(Some(described));
        }
        match self.list.refused.iter().find(|refused| refused.id.as_deref() == Some(name)) {
            Some(refused) => {
                let file = &self.file;
                let place = &refused.place;
                let reason = &refused.reason;
                Err(Refusal::new(format!("{file}: {place}: {name}: {reason}")))
            }
            None => Ok(None),
        }
    }

    fn described<'a>(&self, volume: &'a Volume, has_region: bool) -> (&'a str, Described) {
        let described = Described {
            spec: volume.spec,
            boots: volume.boots,
            region: has_region.then(|| volume.price_region.clone()),
            zone: volume.zone.clone(),
            file: self.file.clone(),
        };
        (&volume.id, described)
    }
}

/// Returns whether a name is the id of a volume.
#[must_use]
pub fn is_id(name: &str) -> bool {
    name.starts_with("vol-")
}

/// Returns the description of a volume in lists that are given.
///
/// # Errors
/// If none of them has it, or if they differ.
pub fn in_given(lists: &[VolumeList], name: &str) -> Result<Option<Described>, Refusal> {
    let mut all = Vec::new();
    for given in lists {
        all.extend(given.volume(name)?);
    }
    let Some(first) = lists.first().filter(|_| all.is_empty()) else {
        return one(all, name);
    };
    let file = &first.file;
    let message = format!("{file}: the list does not have {}", plain(name));
    Err(Refusal::new(message)
        .cause(Cause::NotFound)
        .hint("describe the volume with --source, or give a list that has it"))
}

/// Returns the one description of a volume.
///
/// # Errors
/// If two descriptions differ.
pub fn one(mut all: Vec<Described>, name: &str) -> Result<Option<Described>, Refusal> {
    let differs = |other: &&Described| all.first().is_some_and(|first| first.spec != other.spec);
    if let Some((first, other)) = all.first().zip(all.iter().find(differs)) {
        let [first, other] = [first, other].map(|described| &described.file);
        let message = format!("{first} and {other} describe {} differently", plain(name));
        return Err(Refusal::new(message)
            .cause(Cause::Question)
            .hint("name the right one after the recording, or describe the volume with --source"));
    }
    all.truncate(1);
    Ok(all.pop())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_known_by_its_keys() {
        for text in [
            "{\"Volumes\": [",
            "\u{feff}\n{ \"NextToken\": \"x\", \"Volumes\" : []}",
            "{\"schema\": \"evenkeel.volumes/1\", \"volumes\": [{",
            "[{\"Attachments\": [], \"VolumeId\": \"vol-01\"",
        ] {
            assert!(is_list(text.as_bytes()), "{text}");
        }
        for text in [
            "",
            "{}",
            "Volumes",
            "{\"MetricDataResults\": [{\"Label\": \"\\\"Volumes\\\"\"}]}",
            "[{\"Id\": \"m0\", \"Dimensions\": [{\"Name\": \"VolumeId\", \"Value\": \"vol-01\"}]",
            "{\"volumes\": 3}",
        ] {
            assert!(!is_list(text.as_bytes()), "{text}");
        }
    }
}
