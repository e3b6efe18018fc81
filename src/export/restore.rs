//! Imports an export into a server, or only verifies it: every unit is compared with its SHA-256.

use super::destination::Place;
use super::manifest::{Manifest, Unit};
use super::{UNIT_BYTES, in_parallel};
use crate::api::Client;
use crate::api::direct::NewSnapshot;
use crate::clock::Pace;
use crate::cmd::progress::Progress;
use crate::output::Failure;
use evenkeel_wire::aws::checksum;
use evenkeel_wire::aws::sigv4;
use serde::Serialize;

/// Minutes that an import may be interrupted for: a day.
const TIMEOUT_MIN: u32 = 1_440;
/// The most imports that end in the state `error` before a further one is made.
const TRIES_MAX: u32 = 100;
/// The next step where a server does not make an encrypted snapshot.
const NEEDS_KEY: &str = "the export is encrypted, and so is its import: start the server with a \
                         key, or import it with --unencrypted";
/// Units that are read from a pack at once.
const UNITS_AT_ONCE: usize = 4;

/// What an import was, for the reader.
#[derive(Serialize, Debug)]
pub struct Restored {
    /// The snapshot that was exported.
    pub exported: String,
    /// The new one; `None` if the export was only verified.
    pub snapshot: Option<String>,
    pub units: u64,
    /// Bytes of units that were read and compared now.
    pub bytes: u64,
}

/// What is asked of an import.
#[derive(Clone, Copy, Debug)]
pub struct NewImport<'a> {
    /// `None` is the description of the exported snapshot.
    pub description: Option<&'a str>,
    /// None at all are the tags of the exported snapshot.
    pub tags: &'a [(String, String)],
    /// Whether the new snapshot is encrypted in any case; otherwise as the account's default says.
    pub is_encrypted: bool,
}

/// Reads all units of an export, compares each with its SHA-256, and passes it on.
fn read_all(
    place: &Place,
    manifest: &Manifest,
    pace: &Pace,
    jobs: usize,
    pass: impl Fn(&Unit, Vec<u8>) -> Result<(), Failure> + Sync,
) -> Result<u64, Failure> {
    let packs = manifest.by_pack();
    let progress = Progress::of_steps(manifest.units.len() as u64);
    let mut done = 0;
    in_parallel(
        jobs,
        packs.len(),
        |number| {
            for units in packs[number].chunks(UNITS_AT_ONCE) {
                pace.take(units.len() as u64 * UNIT_BYTES);
                read(place, manifest, units, &pass)?;
            }
            Ok(packs[number].len() as u64)
        },
        |_, units| {
            done += units;
            let mib = (done * UNIT_BYTES) >> 20;
            progress.at(done, &format!("{}: {mib} MiB verified", manifest.snapshot));
            Ok(())
        },
    )?;
    progress.done();
    Ok(done * UNIT_BYTES)
}

fn read(
    place: &Place,
    manifest: &Manifest,
    units: &[Unit],
    pass: impl Fn(&Unit, Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(first) = units.first() else { return Ok(()) };
    let name = &manifest.packs[first.pack as usize];
    let range = |unit: &Unit| {
        let at = u64::from(unit.place) * UNIT_BYTES;
        at..at + UNIT_BYTES
    };
    let ranges: Vec<_> = units.iter().map(range).collect();
    for (unit, data) in units.iter().zip(place.ranges(name, &ranges)?) {
        let digest = checksum::digest(&data);
        if digest != unit.digest {
            let (present, expected) = (checksum::text(&digest), checksum::text(&unit.digest));
            let message = format!(
                "{place}: {name}: the unit at byte {} is damaged: its SHA-256 is {present}, and \
                 that of unit {} of {} is {expected}",
                range(unit).start,
                unit.number,
                manifest.snapshot
            );
            let hint = "restore the file from a copy, or remove the export and make it anew";
            return Err(Failure::new(message).hint(hint));
        }
        pass(unit, data)?;
    }
    Ok(())
}

/// Reads an export and compares it with its checksums.
pub fn verify(
    place: &Place,
    snapshot: &str,
    pace: &Pace,
    jobs: usize,
) -> Result<Restored, Failure> {
    let manifest = place.known(snapshot)?;
    let bytes = read_all(place, &manifest, pace, jobs, |_, _| Ok(()))?;
    let units = manifest.units.len() as u64;
    Ok(Restored { exported: snapshot.to_owned(), snapshot: None, units, bytes })
}

/// Makes a snapshot of an export. An import that was interrupted goes on with its snapshot, and
/// puts all units again: which ones the server has is known only when it is complete.
pub fn import(
    client: &Client,
    place: &Place,
    snapshot: &str,
    new: &NewImport<'_>,
    pace: &Pace,
    jobs: usize,
) -> Result<Restored, Failure> {
    let manifest = place.known(snapshot)?;
    let linear = manifest.linear();
    let is_encrypted = new.is_encrypted;
    let description = new.description.unwrap_or(&manifest.description);
    let tags: Vec<(String, String)> = match new.tags {
        [] => manifest.tags.clone().into_iter().collect(),
        tags => tags.to_vec(),
    };
    let (mut started, mut tries) = (None, 0);
    while started.is_none() && tries < TRIES_MAX {
        let mut what = format!("{snapshot}\n{description}\n{tags:?}\n{linear:?}\n{tries}");
        if is_encrypted {
            // One that is not encrypted is another snapshot.
            what.push_str("\nencrypted");
        }
        let token = format!("import-{}", &sigv4::sha256_hex(what.as_bytes())[..32]);
        let new = client.start_snapshot(&NewSnapshot {
            size_gib: manifest.size_gib,
            parent: None,
            is_encrypted,
            description,
            tags: &tags,
            token: &token,
            timeout_min: TIMEOUT_MIN,
        });
        let new = new.map_err(|failure| match is_encrypted {
            true => failure.hint(NEEDS_KEY),
            false => failure,
        })?;
        // One that failed is not filled any more.
        started = Some(new).filter(|new| new.status != "error");
        tries += 1;
    }
    let started = started.ok_or_else(|| {
        Failure::new(format!("{TRIES_MAX} imports of {snapshot} are in the state error"))
            .hint("`evenkeel snapshot rm` deletes them")
    })?;
    let units = manifest.units.len() as u64;
    let (exported, id) = (snapshot.to_owned(), started.id);
    if started.status == "completed" {
        return Ok(Restored { exported, snapshot: Some(id), units, bytes: 0 });
    }
    let put = |unit: &Unit, data: Vec<u8>| client.put_block(&id, unit.number, &data, &unit.digest);
    let bytes = read_all(place, &manifest, pace, jobs, put)?;
    client.complete_snapshot(&id, units, Some(&linear))?;
    Ok(Restored { exported, snapshot: Some(id), units, bytes })
}
