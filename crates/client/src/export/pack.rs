//! A pack: some units, and an index of them at its end. Pure.

use super::UNIT_BYTES;
use evenkeel_wire::aws::checksum::Digest;

/// Maximum number of units of a pack: 16 MiB.
pub const UNITS_PER_PACK: usize = 32;
/// The last bytes of a pack; the number of its entries is before them.
const MAGIC: [u8; 8] = *b"EVKLPCK1";
/// Number, kind, digest.
const ENTRY_BYTES: usize = 8 + 1 + 32;

/// A pack's knowledge of a unit that was read for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The pack has it.
    Held,
    /// All of its bytes are zero.
    Zero,
    /// It equals the unit in the parent's export, which has it.
    Same,
}

/// A unit that was read for a pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The unit's number.
    pub number: u64,
    /// Place of its bytes.
    pub kind: Kind,
    /// Its SHA-256.
    pub digest: Digest,
}

/// Returns the name of a snapshot's pack.
pub fn name(snapshot: &str, number: usize) -> String {
    format!("packs/{snapshot}/{number:08}.pack")
}

/// Returns the bytes behind the units.
pub fn index(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(index_bytes(entries.len()));
    for entry in entries {
        bytes.extend(entry.number.to_le_bytes());
        bytes.push(entry.kind as u8);
        bytes.extend(entry.digest);
    }
    bytes.extend((entries.len() as u64).to_le_bytes());
    bytes.extend(MAGIC);
    bytes
}

/// Returns the length of [`index`].
pub const fn index_bytes(entries: usize) -> usize {
    entries * ENTRY_BYTES + 16
}

/// Reads the entries of a pack of `length` bytes; `None` unless its last bytes are an index of
/// exactly these units.
pub fn read_index(tail: &[u8], length: u64, units: &[u64]) -> Option<Vec<Entry>> {
    let (count, magic) = tail.get(tail.len().checked_sub(16)?..)?.split_at(8);
    let is_known = magic == MAGIC && count == (units.len() as u64).to_le_bytes();
    if !is_known || tail.len() != index_bytes(units.len()) {
        return None;
    }
    let entries: Vec<Entry> = tail
        .chunks_exact(ENTRY_BYTES)
        .zip(units)
        .map(|(bytes, number)| {
            let (found, rest) = bytes.split_first_chunk()?;
            let (kind, digest) = rest.split_first()?;
            let kind = match kind {
                0 => Kind::Held,
                1 => Kind::Zero,
                2 => Kind::Same,
                _ => return None,
            };
            let entry = Entry { number: *number, kind, digest: digest.try_into().ok()? };
            (u64::from_le_bytes(*found) == *number).then_some(entry)
        })
        .collect::<Option<_>>()?;
    let held = entries.iter().filter(|entry| entry.kind == Kind::Held).count() as u64;
    (length == held * UNIT_BYTES + tail.len() as u64).then_some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_for_its_own_units_only() {
        let entry = |number, kind| Entry { number, kind, digest: [number as u8; 32] };
        let entries = [entry(3, Kind::Held), entry(4, Kind::Zero), entry(9, Kind::Same)];
        let bytes = index(&entries);
        let length = UNIT_BYTES + bytes.len() as u64;
        assert_eq!(read_index(&bytes, length, &[3, 4, 9]).unwrap(), entries);
        assert_eq!(read_index(&bytes, length, &[3, 4, 8]), None);
        assert_eq!(read_index(&bytes, length, &[3, 4]), None);
        assert_eq!(read_index(&bytes, length - 1, &[3, 4, 9]), None);
        assert_eq!(read_index(&bytes[1..], length, &[3, 4, 9]), None);
        assert_eq!(read_index(&[], 0, &[]), None);
        let mut damaged = bytes.clone();
        damaged[8] = 3;
        assert_eq!(read_index(&damaged, length, &[3, 4, 9]), None);
    }
}
