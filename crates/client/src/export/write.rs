//! Exports a snapshot: packs first, several at a time, and the manifest last.
//!
//! The contents of a pack depend only on the snapshot and its parent, so an interrupted export
//! continues with the packs that exist.

use super::destination::Place;
use super::manifest::{Manifest, Unit};
use super::pack::{self, Entry, Kind, UNITS_PER_PACK};
use super::reader::Reader;
use super::{UNIT_BYTES, in_parallel};
use crate::Client;
use crate::output::Failure;
use crate::pace::Pace;
use crate::progress::Progress;
use crate::snapshots::Snapshot;
use serde::Serialize;
use std::collections::BTreeSet;

/// Result of an export, for people.
#[derive(Serialize, Debug, Default)]
pub struct Written {
    pub snapshot: String,
    pub parent: Option<String>,
    /// Units with data, in all packs.
    pub units: u64,
    /// Bytes of units that this run has read from the server.
    pub bytes_read: u64,
    /// Bytes of units in packs that existed already.
    pub bytes_found: u64,
    /// Bytes of units in packs that this run has written.
    pub bytes_written: u64,
}

struct Export<'a> {
    client: &'a Client,
    place: &'a Place,
    pace: &'a Pace,
    snapshot: &'a str,
    /// The snapshot with which the server compares this one.
    older: Option<&'a str>,
    parent: Option<&'a Manifest>,
}

/// Exports a snapshot, unless it is exported already.
pub fn export(
    client: &Client,
    place: &Place,
    snapshot: &Snapshot,
    parent: Option<&str>,
    pace: &Pace,
    jobs: usize,
) -> Result<Written, Failure> {
    let id = snapshot.snapshot_id.as_str();
    if let Some(found) = place.manifest(id)? {
        let units = found.units.len() as u64;
        let snapshot = id.to_owned();
        let bytes_found = units * UNIT_BYTES;
        return Ok(Written {
            snapshot,
            units,
            parent: found.parent,
            bytes_found,
            ..Written::default()
        });
    }
    let manifest = parent.map(|parent| place.known(parent)).transpose()?;
    // If the server does not have the parent any more, the units are compared by their checksums.
    let older = parent.filter(|parent| client.has_snapshot(parent));
    let export = Export { client, place, pace, snapshot: id, older, parent: manifest.as_ref() };
    let (to_read, changed) = export.to_read()?;
    let chunks: Vec<&[u64]> = to_read.chunks(UNITS_PER_PACK).collect();
    let progress = Progress::of_steps(to_read.len() as u64);
    let mut done = 0;
    let mut written = Written {
        snapshot: id.to_owned(),
        parent: parent.map(str::to_owned),
        ..Written::default()
    };
    let mut looked_at: Vec<Vec<Entry>> = vec![vec![]; chunks.len()];
    in_parallel(
        jobs,
        chunks.len(),
        |number| export.pack(number, chunks[number]),
        |number, (entries, is_found)| {
            let held = entries.iter().filter(|entry| entry.kind == Kind::Held).count() as u64;
            match is_found {
                true => written.bytes_found += held * UNIT_BYTES,
                false => {
                    written.bytes_read += entries.len() as u64 * UNIT_BYTES;
                    written.bytes_written += held * UNIT_BYTES;
                }
            }
            done += entries.len() as u64;
            progress.at(done, &format!("{id}: {} MiB read", written.bytes_read >> 20));
            looked_at[number] = entries;
            Ok(())
        },
    )?;
    progress.done();
    let manifest = export.manifest(snapshot, looked_at, &changed);
    written.units = manifest.units.len() as u64;
    place.write_manifest(&manifest)?;
    Ok(written)
}

impl Export<'_> {
    /// Returns the units to read, and all that may differ from the parent's.
    fn to_read(&self) -> Result<(Vec<u64>, BTreeSet<u64>), Failure> {
        let mut to_read = vec![];
        let mut changed = BTreeSet::new();
        self.client.each_page(self.snapshot, self.older, 0, 10_000, |blocks| {
            if self.older.is_some() {
                changed.extend(blocks.iter().map(|(number, _)| *number));
            }
            let has_data = blocks.iter().filter(|(_, token)| token.is_some());
            to_read.extend(has_data.map(|(number, _)| *number));
            Ok(())
        })?;
        Ok((to_read, changed))
    }

    /// Reads the units of one pack, and writes it unless it exists. Returns its entries, and
    /// whether it existed.
    fn pack(&self, number: usize, units: &[u64]) -> Result<(Vec<Entry>, bool), Failure> {
        let name = pack::name(self.snapshot, number);
        if let Some(found) = self.found(&name, units)? {
            return Ok((found, true));
        }
        let mut entries = Vec::with_capacity(units.len());
        let mut bytes = Vec::new();
        let mut reader = Reader::new(self.client, self.snapshot, self.older);
        for unit in units {
            self.pace.take(UNIT_BYTES);
            let Some((data, digest)) = reader.read(*unit)? else {
                let message = format!("{}: the server lists unit {unit} no more", self.snapshot);
                return Err(Failure::new(message));
            };
            let kind = match (self.of_parent(*unit), data.iter().all(|byte| *byte == 0)) {
                (_, true) => Kind::Zero,
                (Some(known), _) if known.digest == digest => Kind::Same,
                _ => Kind::Held,
            };
            if kind == Kind::Held {
                bytes.extend(data);
            }
            entries.push(Entry { number: *unit, kind, digest });
        }
        if !bytes.is_empty() {
            bytes.extend(pack::index(&entries));
            self.place.put(&name, bytes)?;
        }
        Ok((entries, false))
    }

    fn found(&self, name: &str, units: &[u64]) -> Result<Option<Vec<Entry>>, Failure> {
        let Some(length) = self.place.length(name)? else { return Ok(None) };
        let index = pack::index_bytes(units.len()) as u64;
        let Some(from) = length.checked_sub(index) else { return Ok(None) };
        let tail = self.place.range(name, from..length)?;
        let entries = pack::read_index(&tail, length, units);
        // The parent may have changed since the pack was written.
        let is_still = |entry: &Entry| {
            let known = self.of_parent(entry.number).map(|known| known.digest);
            (entry.kind == Kind::Same) <= (known == Some(entry.digest))
        };
        Ok(entries.filter(|entries| entries.iter().all(is_still)))
    }

    fn of_parent(&self, number: u64) -> Option<&Unit> {
        let units = &self.parent?.units;
        units.binary_search_by_key(&number, |unit| unit.number).ok().map(|index| &units[index])
    }

    fn manifest(
        &self,
        snapshot: &Snapshot,
        looked_at: Vec<Vec<Entry>>,
        changed: &BTreeSet<u64>,
    ) -> Manifest {
        let mut packs: Vec<String> =
            self.parent.map(|parent| parent.packs.clone()).unwrap_or_default();
        let mut units = Vec::new();
        // Without a comparison by the server, all units were read.
        if self.older.is_some() {
            let kept = self.parent.iter().flat_map(|parent| &parent.units);
            units.extend(kept.filter(|unit| !changed.contains(&unit.number)).copied());
        }
        for (number, entries) in looked_at.iter().enumerate() {
            let pack = packs.len() as u32;
            let mut place = 0;
            for entry in entries {
                match entry.kind {
                    Kind::Zero => {}
                    Kind::Same => units.extend(self.of_parent(entry.number).copied()),
                    Kind::Held => {
                        let Entry { number, digest, .. } = *entry;
                        units.push(Unit { number, pack, place, digest });
                        place += 1;
                    }
                }
            }
            if place > 0 {
                packs.push(pack::name(self.snapshot, number));
            }
        }
        units.sort_unstable_by_key(|unit| unit.number);
        let (packs, units) = used_only(&packs, units);
        Manifest {
            snapshot: self.snapshot.to_owned(),
            size_gib: snapshot.size_gib,
            parent: self.parent.map(|parent| parent.snapshot.clone()),
            started: snapshot.start_time.clone(),
            description: snapshot.description.clone(),
            tags: snapshot.tags.clone(),
            packs,
            units,
        }
    }
}

/// Returns the packs that the units are in, and the units with their new pack numbers.
fn used_only(packs: &[String], mut units: Vec<Unit>) -> (Vec<String>, Vec<Unit>) {
    let used: BTreeSet<u32> = units.iter().map(|unit| unit.pack).collect();
    let used: Vec<u32> = used.into_iter().collect();
    for unit in &mut units {
        unit.pack = used.binary_search(&unit.pack).unwrap_or_default() as u32;
    }
    let names = used.iter().filter_map(|number| packs.get(*number as usize).cloned());
    (names.collect(), units)
}
