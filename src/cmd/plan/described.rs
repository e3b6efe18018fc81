//! Looks for lists of volumes beside recordings.

use super::failure;
use crate::cmd;
use evenkeel_client::output::Failure;
use evenkeel_core::volume::Rules;
use evenkeel_planner::described::{self, Described, VolumeList, is_list};
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

/// Reads a list of volumes.
pub fn read(path: &Path, input: &mut dyn BufRead, rules: &Rules) -> Result<VolumeList, Failure> {
    VolumeList::read(&path.display().to_string(), input, rules).map_err(failure)
}

/// Returns the description of a volume in the lists beside its recordings, and the errors of those
/// that cannot be read.
pub fn beside(
    recordings: &[PathBuf],
    name: &str,
    rules: &Rules,
) -> Result<(Option<Described>, Vec<String>), Failure> {
    let mut broken = Vec::new();
    if !described::is_id(name) {
        return Ok((None, broken));
    }
    // Standard input and a volume of the server have no folder.
    let files = recordings.iter().filter(|recording| recording.is_file());
    let files: BTreeSet<PathBuf> = files.flat_map(|recording| lists_beside(recording)).collect();
    let mut all = Vec::new();
    for path in files {
        let opened = File::open(&path)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
            .and_then(|file| read(&path, &mut BufReader::new(file), rules));
        match opened {
            Ok(list) => all.extend(list.volume(name).map_err(failure)?),
            Err(failure) => broken.push(format!("not read: {}", failure.message)),
        }
    }
    Ok((described::one(all, name).map_err(failure)?, broken))
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
