//! Assigns files of a folder to volumes, so that each volume is judged with all its metrics, and
//! few of them are in memory at once.
//!
//! A file whose name has a volume's id is of this volume. Others are searched for ids once, as
//! bytes: that costs little, and no file stays in memory.

use crate::cmd::plan::recordings;
use evenkeel_client::output::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The most files of a folder.
const FILES_MAX: usize = 1_000_000;
/// End of the name of a file with queries: `NAME.queries.json` has those of `NAME.json`.
const QUERIES: &str = ".queries.json";
/// Bytes that are searched at once.
const CHUNK_BYTES: usize = 256 << 10;
/// The most characters of an id of EBS.
const ID_BYTES_MAX: usize = 64;
/// The bytes of the files of a group beyond which only some of its volumes are read at once.
pub const TOGETHER_BYTES_MAX: u64 = 256 << 20;

/// A file with metrics.
pub struct Metrics {
    pub path: PathBuf,
    /// The file with the queries that it answers.
    pub queries: Option<PathBuf>,
    pub bytes: u64,
    /// The volume whose id its name has.
    pub of: Option<usize>,
    /// The volumes whose ids are in it; unknown if its name has one.
    pub has: Vec<usize>,
}

/// Files and their volumes. No file of a group has metrics of a volume of another group.
#[derive(Default)]
pub struct Group {
    pub files: Vec<usize>,
    pub volumes: Vec<usize>,
    pub bytes: u64,
}

/// Returns the files of a folder, in the order of their names, and errors of those that cannot be
/// read.
pub fn find(
    folder: &Path,
    ids: &BTreeMap<&str, usize>,
) -> Result<(Vec<Metrics>, Vec<String>), Failure> {
    let name = folder.display();
    let fail = |error: std::io::Error| Failure::new(format!("{name}: {error}"));
    let mut paths = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if entry.path().is_file() {
            paths.insert(entry.path());
        }
        if paths.len() > FILES_MAX {
            return Err(Failure::new(format!("{name} has more than {FILES_MAX} files"))
                .hint("put metrics of several volumes into one file"));
        }
    }
    let (mut files, mut broken) = (Vec::new(), Vec::new());
    for path in &paths {
        let text = path.to_string_lossy();
        if text.ends_with(QUERIES) {
            continue;
        }
        let name = text.strip_suffix(".gz").unwrap_or(&text).trim_end_matches(".json");
        let queries = PathBuf::from(format!("{name}{QUERIES}"));
        let queries = paths.contains(&queries).then_some(queries);
        match metrics(path, queries, ids) {
            Ok(file) if file.of.is_none() && file.has.is_empty() => broken.push(format!(
                "{}: no volume of the list is named in it; name it after one, as vol-0123.json",
                path.display()
            )),
            Ok(file) => files.push(file),
            Err(error) => broken.push(format!("{}: {error}", path.display())),
        }
    }
    if files.is_empty() && broken.is_empty() {
        return Err(Failure::new(format!("{name} has no file")).hint(
            "--metrics is a folder with exports; docs/reference/traces.md lists their forms",
        ));
    }
    Ok((files, broken))
}

fn metrics(
    path: &Path,
    queries: Option<PathBuf>,
    ids: &BTreeMap<&str, usize>,
) -> std::io::Result<Metrics> {
    let mut bytes = std::fs::metadata(path)?.len();
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let of = of_name(&stem, ids);
    let mut has = BTreeSet::new();
    if of.is_none() {
        for path in [Some(path), queries.as_deref()].into_iter().flatten() {
            let searched = search(&mut recordings::decompressed(path)?, ids, &mut has)?;
            bytes = bytes.max(searched);
        }
    }
    let has = has.into_iter().collect();
    Ok(Metrics { path: path.to_owned(), queries, bytes, of, has })
}

/// Returns the volume whose id a name is, or has: as `vol-0123.json` or
/// `2026-11-vol-0123-reads.json`.
fn of_name(stem: &str, ids: &BTreeMap<&str, usize>) -> Option<usize> {
    if let Some(of) = ids.get(stem) {
        return Some(*of);
    }
    let mut found = BTreeSet::new();
    each_id(stem.as_bytes(), ids, &mut found);
    // A file with several ids in its name is searched.
    (found.len() == 1).then(|| found.first().copied()).flatten()
}

/// Adds the volumes whose ids are in a text. Returns its bytes.
fn search(
    from: &mut dyn Read,
    ids: &BTreeMap<&str, usize>,
    found: &mut BTreeSet<usize>,
) -> std::io::Result<u64> {
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
    let mut at = 0;
    // `v` is the rarest of the four bytes: it is once in a label, and never in numbers or times.
    while let Some(next) = text[at..].iter().position(|byte| *byte == b'v') {
        at += next;
        if text[at..].starts_with(b"vol-") {
            let digits = text[at + 4..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
            let id = std::str::from_utf8(&text[at..at + 4 + digits]).unwrap_or_default();
            found.extend(ids.get(id));
            at += 4 + digits;
        } else {
            at += 1;
        }
    }
}

/// Groups files that share volumes.
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
            let (one, other) = (least(&mut root, number), least(&mut root, other));
            root[one.max(other)] = one.min(other);
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
        let all: Vec<_> = groups.iter().map(|it| (it.files.clone(), it.volumes.clone())).collect();
        let expected = [
            (vec![0, 4], vec![3]),
            (vec![1, 3], vec![0, 1, 2]),
            (vec![2], vec![4]),
            (vec![5], vec![]),
        ];
        assert_eq!(all, expected);
    }
}
