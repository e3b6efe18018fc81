//! The manifest of an export. Pure.

use super::UNIT_BYTES;
use super::pack::UNITS_PER_PACK;
use evenkeel_wire::aws::checksum::{self, Digest, Linear};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the form that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// Maximum size of a manifest in bytes: of some 8 TiB of data.
pub const BYTES_MAX: u64 = 1 << 30;
/// Maximum size of a snapshot, in GiB.
const SIZE_GIB_MAX: u64 = 65_536;

/// The whole file. The checksum is of the manifest in this program's form, without spaces, so any
/// change of its contents is found.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    sha256: String,
    manifest: Form,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    version: u32,
    snapshot: String,
    size_gib: u64,
    unit_bytes: u64,
    parent: Option<String>,
    started: String,
    description: String,
    tags: BTreeMap<String, String>,
    /// The packs; `units` has their numbers.
    packs: Vec<String>,
    /// Number, pack, place in it, SHA-256.
    units: Vec<(u64, u32, u32, String)>,
}

/// A unit with its place and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// Its number: unit 0 begins at byte 0 of the snapshot.
    pub number: u64,
    /// The number of its pack in [`Manifest::packs`].
    pub pack: u32,
    /// Its place in the pack: units before it.
    pub place: u32,
    /// Its SHA-256.
    pub digest: Digest,
}

/// A manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// The snapshot's id at the server that it was exported from.
    pub snapshot: String,
    /// The snapshot's size.
    pub size_gib: u64,
    /// The snapshot whose export this one shares packs with.
    pub parent: Option<String>,
    /// Time at which the snapshot was made.
    pub started: String,
    /// Its description.
    pub description: String,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// The packs, relative to the place of the export.
    pub packs: Vec<String>,
    /// Its units that are not zero, in ascending order.
    pub units: Vec<Unit>,
}

impl Manifest {
    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// The text is the reason.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        let form = self.form();
        let sha256 = sum(&form)?;
        let mut bytes =
            serde_json::to_vec(&Whole { sha256, manifest: form }).map_err(|e| e.to_string())?;
        bytes.push(b'\n');
        if bytes.len() as u64 > BYTES_MAX {
            Err(format!("it has {} bytes; the most is {BYTES_MAX}", bytes.len()))
        } else {
            Ok(bytes)
        }
    }

    fn form(&self) -> Form {
        let unit = |unit: &Unit| (unit.number, unit.pack, unit.place, checksum::text(&unit.digest));
        Form {
            version: VERSION,
            snapshot: self.snapshot.clone(),
            size_gib: self.size_gib,
            unit_bytes: UNIT_BYTES,
            parent: self.parent.clone(),
            started: self.started.clone(),
            description: self.description.clone(),
            tags: self.tags.clone(),
            packs: self.packs.clone(),
            units: self.units.iter().map(unit).collect(),
        }
    }

    /// Decodes the bytes of the file.
    ///
    /// # Errors
    /// The text describes the error.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Versioned {
            manifest: Version,
        }
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        if bytes.len() as u64 > BYTES_MAX {
            return Err(format!("it has {} bytes; the most is {BYTES_MAX}", bytes.len()));
        }
        let no_manifest = |error: serde_json::Error| format!("it is no manifest: {error}");
        let Versioned { manifest } = serde_json::from_slice(bytes).map_err(no_manifest)?;
        if manifest.version != VERSION {
            return Err(format!(
                "it has the form {}, and this program reads form {VERSION}; use the one that \
                 wrote it",
                manifest.version
            ));
        }
        let Whole { sha256, manifest } = serde_json::from_slice(bytes).map_err(no_manifest)?;
        let present = sum(&manifest)?;
        if present != sha256 {
            return Err(format!("its SHA-256 is {present}, and it says {sha256}: it is damaged"));
        }
        Self::of(manifest)
    }

    fn of(form: Form) -> Result<Self, String> {
        if form.unit_bytes != UNIT_BYTES {
            return Err(format!("its units have {} bytes, not {UNIT_BYTES}", form.unit_bytes));
        }
        if !(1..=SIZE_GIB_MAX).contains(&form.size_gib) {
            return Err(format!(
                "its snapshot has {} GiB; from 1 to {SIZE_GIB_MAX} are possible",
                form.size_gib
            ));
        }
        if let Some(pack) = form.packs.iter().find(|pack| !is_pack(pack)) {
            return Err(format!("'{pack}' is no name of a pack"));
        }
        let all = (form.size_gib << 30) / UNIT_BYTES;
        let mut units: Vec<Unit> = Vec::with_capacity(form.units.len());
        for (number, pack, place, digest) in form.units {
            let wrong = |what: &str| format!("unit {number}: {what}");
            if number >= all {
                return Err(wrong(&format!("the snapshot has {all} units, from 0 on")));
            }
            if units.last().is_some_and(|last| last.number >= number) {
                return Err(wrong("the units do not ascend"));
            }
            if pack as usize >= form.packs.len() || place as usize >= UNITS_PER_PACK {
                return Err(wrong(&format!("there is no place {place} of pack {pack}")));
            }
            let digest = checksum::parse(&digest).ok_or_else(|| wrong("its SHA-256 is none"))?;
            units.push(Unit { number, pack, place, digest });
        }
        Ok(Self {
            snapshot: form.snapshot,
            size_gib: form.size_gib,
            parent: form.parent,
            started: form.started,
            description: form.description,
            tags: form.tags,
            packs: form.packs,
            units,
        })
    }

    /// Returns the checksum of the units' checksums.
    pub fn linear(&self) -> Digest {
        let mut all = Linear::default();
        self.units.iter().for_each(|unit| all.add(&unit.digest));
        all.digest()
    }

    /// Returns its units by pack, each with the pack's number, in the order of the packs' first
    /// units.
    pub fn by_pack(&self) -> Vec<Vec<Unit>> {
        let mut all: BTreeMap<u32, Vec<Unit>> = BTreeMap::new();
        for unit in &self.units {
            all.entry(unit.pack).or_default().push(*unit);
        }
        let mut all: Vec<Vec<Unit>> = all.into_values().collect();
        all.sort_by_key(|units| units.first().map(|unit| unit.number));
        all
    }
}

/// Returns whether a name is one that [`super::pack::name`] returns: a manifest must not name files
/// outside of its place.
fn is_pack(name: &str) -> bool {
    let plain = |part: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
        !part.is_empty() && part.len() <= 64 && part.bytes().all(plain) && !part.contains("..")
    };
    matches!(name.split('/').collect::<Vec<_>>()[..],
        ["packs", snapshot, file] if plain(snapshot) && plain(file))
}

fn sum(form: &Form) -> Result<String, String> {
    let bytes = serde_json::to_vec(form).map_err(|error| error.to_string())?;
    Ok(checksum::text(&checksum::digest(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let unit = |number, place| {
            let digest = checksum::digest(&[number as u8]);
            Unit { number, pack: 0, place, digest }
        };
        Manifest {
            snapshot: "snap-0".into(),
            size_gib: 1,
            parent: Some("snap-1".into()),
            started: "2026".into(),
            description: "\"d\"".into(),
            tags: [("a".to_owned(), "b".to_owned())].into(),
            packs: vec![super::super::pack::name("snap-0", 0)],
            units: vec![unit(0, 1), unit(2_047, 0)],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = manifest().encode().unwrap();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest());
    }

    #[test]
    fn damage_is_found_wherever_it_is_and_never_panics() {
        let bytes = manifest().encode().unwrap();
        for at in 0..bytes.len() - 1 {
            for bit in [1, 4, 32] {
                let mut damaged = bytes.clone();
                damaged[at] ^= bit;
                let read = Manifest::decode(&damaged);
                assert!(read.is_err(), "byte {at} is changed by {bit}, and that is not found");
            }
            assert!(Manifest::decode(&bytes[..at]).is_err(), "cut at byte {at}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let error = |change: &dyn Fn(&mut Manifest)| {
            let mut wrong = manifest();
            change(&mut wrong);
            Manifest::decode(&wrong.encode().unwrap()).unwrap_err()
        };
        for (expected, found) in [
            ("do not ascend", error(&|m| m.units.swap(0, 1))),
            ("has 2048 units", error(&|m| m.units[1].number = 2_048)),
            ("no place 0 of pack 1", error(&|m| m.units[1].pack = 1)),
            ("no place 32 of pack 0", error(&|m| m.units[1].place = 32)),
            ("no name of a pack", error(&|m| m.packs[0] = "packs/../x".into())),
            ("no name of a pack", error(&|m| m.packs[0] = "/etc/passwd".into())),
            ("0 GiB", error(&|m| m.size_gib = 0)),
        ] {
            assert!(found.contains(expected), "{found}");
        }
        let other = r#"{"sha256":"","manifest":{"version":2}}"#;
        let error = Manifest::decode(other.as_bytes()).unwrap_err();
        assert!(error.contains("form 2"), "{error}");
    }
}
