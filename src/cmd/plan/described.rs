//! The description of a recorded volume: in a list of volumes that is given as a file, or that lies
//! beside the recording.

use super::format::plain;
use super::prices::DEFAULT_REGION;
use crate::cmd;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_core::volume::{Rules, VolumeSpec};
use evenkeel_planner::fleet::list::{self, List, Options};
use evenkeel_planner::fleet::{Reason, Volume};
use evenkeel_planner::read::JSON_BYTES_MAX;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The bytes of a file by which it is known as a list.
const HEAD_BYTES: u64 = 4 << 10;
/// Entries of a folder beyond which no list is looked for in it.
const ENTRIES_MAX: usize = 10_000;
/// The folder of metrics whose list is beside it, and not in it, as `plan aws` writes them.
const METRICS: &str = super::aws::METRICS;

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
    /// The list.
    pub file: PathBuf,
}

/// A list that is given as a file.
pub struct Given {
    file: PathBuf,
    list: List,
    /// Volumes of which the list does not say the region.
    without_region: Vec<Volume>,
}

/// Returns whether a text that begins like this is a list of volumes in JSON: an answer of
/// DescribeVolumes, the volumes of one, or the output of `evenkeel volume ls -o json`.
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

impl Given {
    /// Reads a list.
    pub fn read(path: &Path, input: &mut dyn BufRead, rules: &Rules) -> Result<Self, Failure> {
        let fail = |why: String| Failure::new(format!("{}: {why}", path.display()));
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
        Ok(Self { file: path.to_owned(), list, without_region })
    }

    /// Returns the volume of this name. A recording of another name, such as that of a disk, is of
    /// the only volume of a list that has one.
    fn volume(&self, name: &str) -> Result<Option<Described>, Failure> {
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
                let file = self.file.display();
                let place = &refused.place;
                let reason = &refused.reason;
                Err(Failure::new(format!("{file}: {place}: {name}: {reason}")))
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

fn is_id(name: &str) -> bool {
    name.starts_with("vol-")
}

/// Returns the description of a volume in lists that are given.
///
/// # Errors
/// If none of them has it, or if they differ.
pub fn in_given(lists: &[Given], name: &str) -> Result<Option<Described>, Failure> {
    let mut all = Vec::new();
    for given in lists {
        all.extend(given.volume(name)?);
    }
    let Some(first) = lists.first().filter(|_| all.is_empty()) else {
        return same(all, name);
    };
    let file = first.file.display();
    let message = format!("{file}: the list does not have {}", plain(name));
    Err(Failure::new(message)
        .exit(Exit::NotFound)
        .hint("describe the volume with --source, or give a list that has it"))
}

/// Returns the description of a volume in the lists beside its recordings, and the errors of those
/// that cannot be read.
pub fn beside(
    recordings: &[PathBuf],
    name: &str,
    rules: &Rules,
) -> Result<(Option<Described>, Vec<String>), Failure> {
    let mut broken = Vec::new();
    if !is_id(name) {
        return Ok((None, broken));
    }
    // Standard input and a volume of the server have no folder.
    let files = recordings.iter().filter(|recording| recording.is_file());
    let files: BTreeSet<PathBuf> = files.flat_map(|recording| lists_beside(recording)).collect();
    let mut all = Vec::new();
    for path in files {
        let read = File::open(&path)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
            .and_then(|file| Given::read(&path, &mut BufReader::new(file), rules));
        match read {
            Ok(given) => all.extend(given.volume(name)?),
            Err(failure) => broken.push(format!("not read: {}", failure.message)),
        }
    }
    Ok((same(all, name)?, broken))
}

/// Returns the one description of a volume.
fn same(mut all: Vec<Described>, name: &str) -> Result<Option<Described>, Failure> {
    let differs = |other: &&Described| all.first().is_some_and(|first| first.spec != other.spec);
    if let Some((first, other)) = all.first().zip(all.iter().find(differs)) {
        let [first, other] = [first, other].map(|described| described.file.display());
        let message = format!("{first} and {other} describe {} differently", plain(name));
        return Err(Failure::new(message)
            .exit(Exit::Usage)
            .hint("name the right one after the recording, or describe the volume with --source"));
    }
    all.truncate(1);
    Ok(all.pop())
}

/// Returns the files in the folder of a recording that are lists of volumes. A folder with too many
/// entries is not searched.
fn lists_beside(recording: &Path) -> Vec<PathBuf> {
    let parent = recording.parent().filter(|parent| *parent != Path::new(""));
    let folder = parent.unwrap_or(Path::new("."));
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX + 1);
    let mut count = 0;
    for entry in entries {
        count += 1;
        let name = PathBuf::from(entry.file_name());
        let path = parent.map_or_else(|| name.clone(), |parent| parent.join(&name));
        if path.extension().is_some_and(|extension| extension == "json") && begins_a_list(&path) {
            found.push(path);
        }
    }
    if count > ENTRIES_MAX {
        found.clear();
    }
    if folder.file_name().is_some_and(|name| name == METRICS) {
        let above = folder.with_file_name("volumes.json");
        found.extend(Some(above).filter(|path| begins_a_list(path)));
    }
    found
}

fn begins_a_list(path: &Path) -> bool {
    // Reading a pipe would take its bytes from another reader.
    if !path.is_file() {
        return false;
    }
    let mut head = Vec::new();
    let read = cmd::input(path).and_then(|input| input.take(HEAD_BYTES).read_to_end(&mut head));
    read.is_ok() && is_list(&head)
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
