//! Finds the files of a folder with metrics.

use crate::cmd::plan::recordings;
use evenkeel_client::output::Failure;
use evenkeel_planner::fleet::files::{self, Metrics};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The most files of a folder.
const FILES_MAX: usize = 1_000_000;
/// End of the name of a file with queries: `NAME.queries.json` has those of `NAME.json`.
const QUERIES: &str = ".queries.json";

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
    let mut found = Vec::new();
    let mut broken = Vec::new();
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
            Ok(file) => found.push(file),
            Err(error) => broken.push(format!("{}: {error}", path.display())),
        }
    }
    if found.is_empty() && broken.is_empty() {
        return Err(Failure::new(format!("{name} has no file")).hint(
            "--metrics is a folder with exports; docs/reference/traces.md lists their forms",
        ));
    }
    Ok((found, broken))
}

fn metrics(
    path: &Path,
    queries: Option<PathBuf>,
    ids: &BTreeMap<&str, usize>,
) -> std::io::Result<Metrics> {
    let mut bytes = std::fs::metadata(path)?.len();
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let of = files::of_name(&stem, ids);
    let mut has = BTreeSet::new();
    if of.is_none() {
        for path in [Some(path), queries.as_deref()].into_iter().flatten() {
            let searched = files::search(&mut recordings::decompressed(path)?, ids, &mut has)?;
            bytes = bytes.max(searched);
        }
    }
    let has = has.into_iter().collect();
    Ok(Metrics { path: path.to_owned(), queries, bytes, of, has })
}
