//! Assigns files to volumes, so that each volume is judged with all its metrics, and
//! few of them are in memory at once.
//!
//! A file whose name has a volume's id is of this volume. Others are searched for ids once, as
//! bytes: that costs little, and no file stays in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;

/// Bytes that are searched at once.
const CHUNK_BYTES: usize = 256 << 10;
/// The most characters of an id of EBS.
const ID_BYTES_MAX: usize = 64;
/// The bytes of the files of a group beyond which only some of its volumes are read at once.
pub(super) const TOGETHER_BYTES_MAX: u64 = 256 << 20;

/// A file with metrics.
pub struct Metrics {
    /// Its path.
    pub path: PathBuf,
    /// The file with the queries that it answers.
    pub queries: Option<PathBuf>,
    /// Its bytes, decompressed if it was searched.
    pub bytes: u64,
    /// The volume whose id its name has.
    pub of: Option<usize>,
    /// The volumes whose ids are in it; unknown if its name has one.
    pub has: Vec<usize>,
}

/// Files and their volumes. No file of a group has metrics of a volume of another group.
#[derive(Default)]
pub struct Group {
    /// The files, by their place in the list of all files.
    pub files: Vec<usize>,
    /// The volumes, by their place in the list of all volumes.
    pub volumes: Vec<usize>,
    /// The bytes of the files.
    pub bytes: u64,
}

/// Returns the volume whose id a name is, or has: as `vol-0123.json` or
/// `2026-11-vol-0123-reads.json`.
#[must_use]
pub fn of_name(stem: &str, ids: &BTreeMap<&str, usize>) -> Option<usize> {
    if let Some(of) = ids.get(stem) {
        return Some(*of);
    }
    let mut found = BTreeSet::new();
    each_id(stem.as_bytes(), ids, &mut found);
    // A file with several ids in its name is searched.
    (found.len() == 1).then(|| found.first().copied()).flatten()
}

/// Adds the volumes whose ids are in a text. Returns its bytes.
///
/// # Errors
/// If the text cannot be read.
pub fn search(
    from: &mut dyn Read,
    ids: &BTreeMap<&str, usize>,
    found: &mut BTreeSet<usize>,
) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut kept = 0;
    let mut bytes = 0;
    loop {
        let length = match from.read(&mut buffer[kept..]) {
            Ok(0) => break,
            Ok(length) => {
                bytes += length as u64;
                kept + length
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        // An id may end in the next chunk.
        let whole = length.saturating_sub(ID_BYTES_MAX);
        each_id(&buffer[..length], ids, found);
        buffer.copy_within(whole..length, 0);
        kept = length - whole;
    }
    Ok(bytes)
}

/// Adds the volumes of all `vol-...` in a text.
fn each_id(text: &[u8], ids: &BTreeMap<&str, usize>, found: &mut BTreeSet<usize>) {
    let mut start = 0;
    // `v` is the rarest of the four bytes: it is once in a label, and never in numbers or times.
    while let Some(next) = text[start..].iter().position(|byte| *byte == b'v') {
        start += next;
        if text[start..].starts_with(b"vol-") {
            let digits =
                text[start + 4..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
            let id = std::str::from_utf8(&text[start..start + 4 + digits]).unwrap_or_default();
            found.extend(ids.get(id));
            start += 4 + digits;
        } else {
            start += 1;
        }
    }
}

/// Groups files that share volumes.
#[must_use]
pub fn groups(files: &[Metrics], volumes: usize) -> Vec<Group> {
    // Union-find: `root` leads to the least file of a group, `first` is a volume's first file.
    let mut root: Vec<usize> = (0..files.len()).collect();
    let mut first: Vec<Option<usize>> = vec![None; volumes];
    fn least(root: &mut [usize], mut file: usize) -> usize {
        while root[file] != file {
            root[file] = root[root[file]];
            file = root[file];
        }
        file
    }
    for (number, file) in files.iter().enumerate() {
        for &volume in file.of.iter().chain(&file.has) {
            let other = *first[volume].get_or_insert(number);
            let own = least(&mut root, number);
            let other = least(&mut root, other);
            root[own.max(other)] = own.min(other);
        }
    }
    let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
    for (number, file) in files.iter().enumerate() {
        let group = groups.entry(least(&mut root, number)).or_default();
        group.files.push(number);
        group.bytes = group.bytes.saturating_add(file.bytes);
    }
    for (volume, file) in first.iter().enumerate() {
        if let Some(file) = file {
            let group = groups.entry(least(&mut root, *file)).or_default();
            group.volumes.push(volume);
        }
    }
    groups.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids<'a>(all: &[&'a str]) -> BTreeMap<&'a str, usize> {
        all.iter().copied().zip(0..).collect()
    }

    #[test]
    fn ids_are_found_wherever_a_chunk_ends() {
        let ids = ids(&["vol-0a", "vol-0b", "vol-0c0c"]);
        for before in CHUNK_BYTES - 12..CHUNK_BYTES + 4 {
            let text = format!("{}vol-0c0c VolumeReadOps vol-0x", " ".repeat(before));
            let mut found = BTreeSet::new();
            search(&mut text.as_bytes(), &ids, &mut found).unwrap();
            assert_eq!(found.into_iter().collect::<Vec<_>>(), [2], "{before}");
        }
        assert_eq!(of_name("reads-vol-0b-2026", &ids), Some(1));
        assert_eq!(of_name("vol-0a_vol-0b", &ids), None, "of both");
        assert_eq!(of_name("vol-0d", &ids), None);
    }

    #[test]
    fn files_that_share_a_volume_are_a_group() {
        let file = |of: Option<usize>, has: &[usize]| Metrics {
            path: PathBuf::new(),
            queries: None,
            bytes: 1,
            of,
            has: has.to_vec(),
        };
        let files = [
            file(Some(3), &[]),
            file(None, &[0, 1]),
            file(None, &[4]),
            file(None, &[1, 2]),
            file(Some(3), &[]),
            file(None, &[]),
        ];
        let groups = groups(&files, 6);
        let pair = |group: &Group| (group.files.clone(), group.volumes.clone());
        let all: Vec<_> = groups.iter().map(pair).collect();
        let expected = [
            (vec![0, 4], vec![3]),
            (vec![1, 3], vec![0, 1, 2]),
            (vec![2], vec![4]),
            (vec![5], vec![]),
        ];
        assert_eq!(all, expected);
    }
}
