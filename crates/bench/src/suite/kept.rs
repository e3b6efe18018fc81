//! A folder of kept results: they are listed, found by name, read and written.
//!
//! A result is a JSON file, named by its suite and the second in which it was measured. Its report
//! lies beside it. If a file cannot be read or written, the error has its path.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::result::SuiteResult;
use evenkeel_lab::LabError;
use evenkeel_lab::files::write_whole;

/// The ending of a result's file; its report lies beside it.
const ENDING: &str = ".json";
/// Maximum number of results of one second, which get different names.
const SAME_NAME_MAX: u32 = 100;
/// Digits of the time of day in the name of a result.
const TIME_DIGITS: usize = 6;

/// A folder of results. It is created when the first one is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    folder: PathBuf,
}

impl Kept {
    /// Creates a value for this folder.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the user's own folder; `None` if the environment names none.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        let absolute = |name: &str| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let data =
            absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")))?;
        Some(Self::new(data.join("evenkeel").join("results")))
    }

    /// Returns the files of the results, the oldest first; empty if there is no such folder.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub fn paths(&self) -> Result<Vec<PathBuf>, LabError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(LabError::path(&self.folder)(error)),
        };
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let mut paths: Vec<PathBuf> =
            paths.filter(|path| path.to_string_lossy().ends_with(ENDING)).collect();
        // The first result of a second has no number.
        paths.sort_by_cached_key(|path| {
            let name = name_of(path);
            let (moment, nth) = match name.rsplit_once('-') {
                Some((before, last)) if last.len() < TIME_DIGITS => (before, last.parse().ok()),
                _ => (name.as_str(), Some(1)),
            };
            (moment.to_owned(), nth.unwrap_or(SAME_NAME_MAX), name.clone())
        });
        Ok(paths)
    }

    /// Returns the file of a result by its path, its name, or the name of a suite, which means its
    /// newest result.
    ///
    /// # Errors
    /// [`LabError::NotFound`] if there is none of this name.
    pub fn find(&self, wanted: &str) -> Result<PathBuf, LabError> {
        if wanted.contains(['.', '/']) {
            return Ok(PathBuf::from(wanted));
        }
        let paths = self.paths()?;
        let named = |path: &&PathBuf| name_of(path) == wanted;
        let newest = |path: &&PathBuf| {
            let name = name_of(path);
            let rest = name.strip_prefix(wanted).and_then(|rest| rest.strip_prefix('-'));
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let found = paths.iter().find(named).or_else(|| paths.iter().rev().find(newest));
        found.cloned().ok_or_else(|| {
            LabError::NotFound(format!("no result \"{wanted}\" in {}", self.folder.display()))
        })
    }

    /// Writes a result and its report; returns their paths.
    ///
    /// # Errors
    /// If the folder or a file cannot be written, or too many results are of one second.
    pub fn keep(&self, result: &SuiteResult) -> Result<[PathBuf; 2], LabError> {
        let folder = &self.folder;
        fs::create_dir_all(folder).map_err(LabError::path(folder))?;
        let moment: String = result.measured_at.chars().filter(char::is_ascii_digit).collect();
        let (day, time) = moment.split_at(moment.len().min(8));
        let name = format!("{}-{day}-{time}", result.suite);
        let names = (1..=SAME_NAME_MAX).map(|nth| match nth {
            1 => name.clone(),
            nth => format!("{name}-{nth}"),
        });
        let mut paths = names.map(|name| folder.join(format!("{name}{ENDING}")));
        let [json, html] = paths.find_map(|json| take(json).transpose()).ok_or_else(|| {
            let folder = folder.display();
            LabError::failed(format!("{folder}: {SAME_NAME_MAX} results are called {name}"))
        })??;
        write_whole(&json, &result.to_json()?)?;
        write_whole(&html, &result.to_html()?)?;
        Ok([json, html])
    }
}

/// Returns the name of a result: that of its file without the ending.
#[must_use]
pub fn name_of(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Reads a result.
///
/// # Errors
/// [`LabError::NotFound`] if the file cannot be read; another error if it is no result.
pub fn read(path: &Path) -> Result<SuiteResult, LabError> {
    let text = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let json = fs::read_to_string(path).map_err(|error| LabError::NotFound(text(&error)))?;
    SuiteResult::from_json(&json).map_err(|error| LabError::failed(text(&error)))
}

/// Returns a free name and that of its report; `None` if it is taken. The report is created, so
/// that no other process takes the name.
fn take(json: PathBuf) -> Result<Option<[PathBuf; 2]>, LabError> {
    if json.exists() {
        return Ok(None);
    }
    let html = json.with_extension("html");
    match File::create_new(&html) {
        Ok(_) => Ok(Some([json, html])),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(LabError::path(&html)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["a.json", "b.json"].map(|name| folder.path().join(name));
        std::fs::write(&first, "").unwrap();
        assert_eq!(take(first).unwrap(), None, "a result is there");
        assert!(!folder.path().join("a.html").exists());
        let html = folder.path().join("b.html");
        assert_eq!(take(second.clone()).unwrap(), Some([second.clone(), html]));
        assert_eq!(take(second).unwrap(), None, "another process is about to write it");
        assert!(take(folder.path().join("none/c.json")).is_err());
    }

    #[test]
    fn the_newest_is_the_last_of_its_second() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "five-minute-job-20261123-080014-10.json",
            "five-minute-job-20261123-080014-2.json",
            "five-minute-job-20261123-080013.json",
            "five-minute-job-20261123-080014.json",
            "five-minute-job-20261123-080014.json.new",
            "batch-beside-oltp-20261124-080014.json",
        ];
        for name in names {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let kept = Kept::new(folder.path().to_owned());
        let stems: Vec<String> = kept.paths().unwrap().iter().map(|path| name_of(path)).collect();
        let sorted = [5, 2, 3, 1, 0].map(|nth: usize| names[nth].trim_end_matches(".json"));
        assert_eq!(stems, sorted);
        let newest = kept.find("five-minute-job").unwrap();
        assert_eq!(name_of(&newest), "five-minute-job-20261123-080014-10");
    }
}
