//! Results that are kept in a folder: listed, shown and compared.

use super::{failed, print};
use crate::cli::{BenchCompare, BenchLs, BenchShow, Results};
use crate::files::{write, write_whole};
use crate::message::{self, Exit, Failure, Item};
use evenkeel_lab::report::standalone::{self, Chart};
use evenkeel_lab::suite::{self, SUITES, compare as comparison, result::SuiteResult};
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A result's file in the folder; its report lies beside it.
const ENDING: &str = ".json";
/// Results of one second that are told apart.
const SAME_NAME_MAX: u32 = 100;
/// Of the time of day in the name of a result.
const TIME_DIGITS: usize = 6;

/// What `bench ls` lists.
#[derive(Serialize)]
struct Listed {
    kind: &'static str,
    name: String,
    what: String,
}

impl Item for Listed {
    const SCHEMA: &'static str = "evenkeel.bench/1";
    const FIELD: &'static str = "benchmarks";
    const COLUMNS: &'static [&'static str] = &["KIND", "NAME", "WHAT"];

    fn cells(&self) -> Vec<String> {
        vec![self.kind.to_owned(), self.name.clone(), self.what.clone()]
    }
}

/// The benchmarks that are no published experiment: verbs of their own.
const OTHERS: [(&str, &str); 8] = [
    ("nbd", "An unlimited volume beside nbdkit and qemu-storage-daemon"),
    ("limits", "One volume after another at its limit"),
    ("isolation", "A log writer beside large neighbours"),
    ("reservation", "A device sold as far as it may be, and greedy neighbours"),
    ("prove", "`evenkeel prove`, put to the proof"),
    ("instance", "Ten volumes of an instance that can carry less"),
    ("idle", "What attached volumes cost that nobody uses"),
    ("replay", "A live load once more in virtual time"),
];

pub fn ls(arguments: &BenchLs) -> Result<(), Failure> {
    let mut items = Vec::new();
    for (name, _) in SUITES {
        let suite = suite::find(name).map_err(failed)?;
        let what = format!("{} ({} published figures)", suite.title, suite.points());
        items.push(Listed { kind: "suite", name: (*name).to_owned(), what });
    }
    for (name, what) in OTHERS {
        items.push(Listed { kind: "bench", name: name.to_owned(), what: what.to_owned() });
    }
    for path in kept(&folder(&arguments.results)?)? {
        let name = stem(&path);
        let what = match read(&path) {
            Ok(result) => format!("{}: {}", result.measured_at, result.headline()),
            Err(failure) => failure.message,
        };
        items.push(Listed { kind: "result", name, what });
    }
    message::print(&message::listing(&items, arguments.output.format, "nothing"))
}

pub fn show(arguments: &BenchShow) -> Result<(), Failure> {
    let result = read(&find(&arguments.results, &arguments.result)?)?;
    if let Some(path) = &arguments.html {
        write(path, &result.to_html().map_err(failed)?)?;
        eprintln!("report: {}", path.display());
    }
    if let Some(folder) = &arguments.svg {
        write_charts(folder, &standalone::charts(&result.to_html().map_err(failed)?))?;
    }
    print(&arguments.output, &result, SuiteResult::to_text)
}

pub fn compare(arguments: &BenchCompare) -> Result<(), Failure> {
    let [a, b] = [&arguments.a, &arguments.b].map(|name| find(&arguments.results, name));
    let found = comparison::compare(&read(&a?)?, &read(&b?)?).map_err(failed)?;
    print(&arguments.output, &found, comparison::Comparison::to_text)
}

/// Keeps a result and its report; where they lie.
pub fn keep(results: &Results, result: &SuiteResult) -> Result<[PathBuf; 2], Failure> {
    let folder = folder(results)?;
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    let moment: String = result.measured_at.chars().filter(char::is_ascii_digit).collect();
    let (day, time) = moment.split_at(moment.len().min(8));
    let name = format!("{}-{day}-{time}", result.suite);
    let names = (1..=SAME_NAME_MAX).map(|nth| match nth {
        1 => name.clone(),
        nth => format!("{name}-{nth}"),
    });
    let mut paths = names.map(|name| folder.join(format!("{name}{ENDING}")));
    let [json, html] = paths.find_map(|json| reserve(json).transpose()).ok_or_else(|| {
        let folder = folder.display();
        Failure::new(format!("{folder}: {SAME_NAME_MAX} results are called {name}"))
    })??;
    write_whole(&json, &result.to_json().map_err(failed)?)?;
    write_whole(&html, &result.to_html().map_err(failed)?)?;
    Ok([json, html])
}

/// A free name and that of its report, which is made so that nobody else takes the name; `None` if
/// it is taken.
fn reserve(json: PathBuf) -> Result<Option<[PathBuf; 2]>, Failure> {
    if json.exists() {
        return Ok(None);
    }
    let html = json.with_extension("html");
    match File::create_new(&html) {
        Ok(_) => Ok(Some([json, html])),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(Failure::new(format!("{}: {error}", html.display()))),
    }
}

fn write_charts(folder: &Path, charts: &[Chart]) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    for (nth, chart) in (1..).zip(charts) {
        write(&folder.join(chart.file_name(nth)), &chart.svg)?;
    }
    eprintln!("charts: {} in {}", charts.len(), folder.display());
    Ok(())
}

/// The folder in which results are kept: the one that was named, or the user's own.
fn folder(results: &Results) -> Result<PathBuf, Failure> {
    if let Some(folder) = &results.results {
        return Ok(folder.clone());
    }
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
    let data = data.ok_or_else(|| {
        let failure = Failure::new("neither XDG_DATA_HOME nor HOME names a folder for results");
        failure.exit(Exit::Usage).hint("name one with --results DIR")
    })?;
    Ok(data.join("evenkeel").join("results"))
}

/// The results in a folder, the oldest first; none if there is no such folder.
fn kept(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::new(format!("{}: {error}", folder.display()))),
    };
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.to_string_lossy().ends_with(ENDING)).collect();
    // Of one second the first has no number.
    paths.sort_by_cached_key(|path| {
        let name = stem(path);
        let (moment, nth) = match name.rsplit_once('-') {
            Some((before, last)) if last.len() < TIME_DIGITS => (before, last.parse().ok()),
            _ => (name.as_str(), Some(1)),
        };
        (moment.to_owned(), nth.unwrap_or(SAME_NAME_MAX), name.clone())
    });
    Ok(paths)
}

/// The file of a result by its path, its name, or the name of a suite for its newest.
fn find(results: &Results, wanted: &str) -> Result<PathBuf, Failure> {
    if wanted.contains(['.', '/']) {
        return Ok(PathBuf::from(wanted));
    }
    let folder = folder(results)?;
    let kept = kept(&folder)?;
    let named = |path: &&PathBuf| stem(path) == wanted;
    let newest = |path: &&PathBuf| {
        let name = stem(path);
        let rest = name.strip_prefix(wanted).and_then(|rest| rest.strip_prefix('-'));
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let found = kept.iter().find(named).or_else(|| kept.iter().rev().find(newest));
    found.cloned().ok_or_else(|| {
        let message = format!("no result \"{wanted}\" in {}", folder.display());
        let hint = "`evenkeel bench ls` lists them; a file is named by its path";
        Failure::new(message).exit(Exit::NotFound).hint(hint)
    })
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn read(path: &Path) -> Result<SuiteResult, Failure> {
    let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(told(&error)).exit(Exit::NotFound))?;
    SuiteResult::from_json(&text).map_err(|error| Failure::new(told(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["a.json", "b.json"].map(|name| folder.path().join(name));
        std::fs::write(&first, "").unwrap();
        assert_eq!(reserve(first).unwrap(), None, "a result is there");
        assert!(!folder.path().join("a.html").exists());
        let html = folder.path().join("b.html");
        assert_eq!(reserve(second.clone()).unwrap(), Some([second.clone(), html]));
        assert_eq!(reserve(second).unwrap(), None, "somebody else is about to write it");
        assert!(reserve(folder.path().join("none/c.json")).is_err());
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
        let paths = kept(folder.path()).unwrap();
        let stems: Vec<String> = paths.iter().map(|path| stem(path)).collect();
        let sorted = [5, 2, 3, 1, 0].map(|nth: usize| names[nth].trim_end_matches(".json"));
        assert_eq!(stems, sorted);
        let results = Results { results: Some(folder.path().to_owned()) };
        let newest = find(&results, "five-minute-job").unwrap();
        assert_eq!(stem(&newest), "five-minute-job-20261123-080014-10");
    }
}
