//! Imports an export into a server, or only verifies it: every unit is compared with its SHA-256.

use super::destination::Place;
use super::manifest::{Manifest, Unit};
use super::{UNIT_BYTES, in_parallel};
use crate::Client;
use crate::direct::NewSnapshot;
use crate::output::Failure;
use crate::pace::Pace;
use crate::progress::Progress;
use evenkeel_wire::aws::checksum;
use evenkeel_wire::aws::sigv4;
use serde::Serialize;

/// Maximum interruption of an import, in minutes: a day.
const TIMEOUT_MIN: u32 = 1_440;
/// Maximum number of imports that end in the state `error` before the import fails.
const TRIES_MAX: u32 = 100;
/// The next step if a server does not make an encrypted snapshot.
const NEEDS_KEY: &str = "the export is encrypted, and so is its import: start the server with a \
                         key, or import it with --unencrypted";
/// Number of units that are read from a pack at once.
const UNITS_AT_ONCE: usize = 4;

/// Result of an import, for people.
#[derive(Serialize, Debug)]
pub struct Restored {
    /// The snapshot that was exported.
    pub exported: String,
    /// The new one; `None` if the export was only verified.
    pub snapshot: Option<String>,
    pub units: u64,
    /// Bytes of units that this run has read and compared.
    pub bytes: u64,
}

/// Options of an import.
#[derive(Clone, Copy, Debug)]
pub struct NewImport<'a> {
    /// The description; `None` is that of the exported snapshot.
    pub description: Option<&'a str>,
    /// The tags; if empty, those of the exported snapshot.
    pub tags: &'a [(String, String)],
    /// Whether the new snapshot is encrypted in any case; otherwise the account's default applies.
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
            let present = checksum::text(&digest);
            let expected = checksum::text(&unit.digest);
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

/// Makes a snapshot of an export. An interrupted import continues with its snapshot, and puts all
/// units again: only a complete snapshot shows which units it has.
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
    let mut started = None;
    let mut tries = 0;
    while started.is_none() && tries < TRIES_MAX {
        let mut what = format!("{snapshot}\n{description}\n{tags:?}\n{linear:?}\n{tries}");
        if is_encrypted {
            // An unencrypted import is another snapshot.
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
        let new =
            new.map_err(|failure| if is_encrypted { failure.hint(NEEDS_KEY) } else { failure })?;
        // A failed snapshot cannot be filled any more.
        started = Some(new).filter(|new| new.status != "error");
        tries += 1;
    }
    let started = started.ok_or_else(|| {
        Failure::new(format!("{TRIES_MAX} imports of {snapshot} are in the state error"))
            .hint("`evenkeel snapshot rm` deletes them")
    })?;
    let units = manifest.units.len() as u64;
    let exported = snapshot.to_owned();
    let id = started.id;
    if started.status == "completed" {
        return Ok(Restored { exported, snapshot: Some(id), units, bytes: 0 });
    }
    let put = |unit: &Unit, data: Vec<u8>| client.put_block(&id, unit.number, &data, &unit.digest);
    let bytes = read_all(place, &manifest, pace, jobs, put)?;
    client.complete_snapshot(&id, units, Some(&linear))?;
    Ok(Restored { exported, snapshot: Some(id), units, bytes })
}
