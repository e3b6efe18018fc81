//! Reads the files of `--used` into the volumes of a list.

use evenkeel_client::output::Failure;
use evenkeel_planner::fleet::List;
use evenkeel_planner::used::{self, Gathered};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Error};
use std::path::{Path, PathBuf};

/// The most files with used space.
const FILES_MAX: usize = 100_000;
/// End of the name of a file with queries: `NAME.queries.json` has those of `NAME.json`.
const QUERIES: &str = ".queries.json";

/// Sets the used space of volumes by files. Returns the parts of the files that are not used, with
/// the reasons.
pub fn fill(paths: &[PathBuf], list: &mut List) -> Result<Vec<String>, Failure> {
    let files = files(paths)?;
    let ids: BTreeMap<&str, usize> =
        list.volumes.iter().map(|volume| volume.id.as_str()).zip(0..).collect();
    let mut gathered = Gathered::new(&list.volumes, &ids);
    let mut left_out = Vec::new();
    for path in &files {
        let text = path.to_string_lossy();
        if text.ends_with(QUERIES) {
            continue;
        }
        let queries = PathBuf::from(format!("{}{QUERIES}", text.trim_end_matches(".json")));
        match read(path, Some(&queries).filter(|queries| files.contains(*queries))) {
            Ok(read) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let strange = gathered.add(&name, read).into_iter();
                left_out.extend(strange.map(|reason| format!("{text}: {reason}")));
            }
            Err(error) => left_out.push(format!("{text}: {error}")),
        }
    }
    let known = gathered.finish();
    for (number, used) in known {
        if let Some(volume) = list.volumes.get_mut(number) {
            volume.used = Some(used);
        }
    }
    Ok(left_out)
}

fn read(path: &Path, queries: Option<&PathBuf>) -> Result<used::Read, String> {
    let queries = queries.map(std::fs::read_to_string).transpose();
    let queries = queries.map_err(|error| format!("its queries: {error}"))?;
    let input = crate::cmd::input(path).map_err(|error| error.to_string())?;
    used::read(&mut BufReader::new(input), queries.as_deref()).map_err(|broken| broken.to_string())
}

/// Returns the files that are named, and those of the folders that are named.
fn files(paths: &[PathBuf]) -> Result<BTreeSet<PathBuf>, Failure> {
    let mut files = BTreeSet::new();
    for path in paths {
        let fail = |error: Error| Failure::new(format!("{}: {error}", path.display()));
        if !std::fs::metadata(path).map_err(fail)?.is_dir() {
            files.insert(path.clone());
            continue;
        }
        for entry in std::fs::read_dir(path).map_err(fail)? {
            let entry = entry.map_err(fail)?.path();
            if entry.is_file() {
                files.insert(entry);
            }
            if files.len() > FILES_MAX {
                let message = format!("{} has more than {FILES_MAX} files", path.display());
                return Err(Failure::new(message).hint("split the folder"));
            }
        }
    }
    Ok(files)
}
