//! `evenkeel-bench ls`, `show` and `compare`: results that are kept in a folder.

use super::print;
use crate::cli::{BenchCompare, BenchLs, BenchShow, Results};
use evenkeel_bench::report::standalone::{self, Chart};
use evenkeel_bench::suite::kept::{self, Kept};
use evenkeel_bench::suite::{self, SUITES, compare as comparison, result::SuiteResult};
use evenkeel_client::output::{self, Exit, Failure, Item};
use evenkeel_lab::LabError;
use evenkeel_lab::files::write;
use serde::Serialize;
use std::path::Path;

/// An entry in the list of `ls`.
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

/// The benchmarks that are not published experiments; each is a verb.
const OTHERS: [(&str, &str); 11] = [
    ("nbd", "An unlimited volume beside nbdkit and qemu-storage-daemon"),
    ("limits", "One volume after another at its limit"),
    ("isolation", "A log writer beside large neighbours"),
    ("reservation", "A device sold as far as it may be, and greedy neighbours"),
    ("prove", "`evenkeel prove`, put to the proof"),
    ("instance", "Ten volumes of an instance that can carry less"),
    ("idle", "Cost of attached volumes that are idle"),
    ("replay", "A live load once more in virtual time"),
    ("follow", "A PostgreSQL that the autopilot follows: `run follow-the-load`"),
    ("plan", "Plans from what was recorded, put to the proof"),
    ("cluster", "Three nodes: takeover, moves, throughput beside librbd, many volumes"),
];

pub fn ls(arguments: &BenchLs) -> Result<(), Failure> {
    let mut items = Vec::new();
    for (name, _) in SUITES {
        let suite = suite::find(name)?;
        let what = format!("{} ({} published figures)", suite.title, suite.points());
        items.push(Listed { kind: "suite", name: (*name).to_owned(), what });
    }
    for (name, what) in OTHERS {
        items.push(Listed { kind: "bench", name: name.to_owned(), what: what.to_owned() });
    }
    for path in folder(&arguments.results)?.paths()? {
        let what = match kept::read(&path) {
            Ok(result) => format!("{}: {}", result.measured_at, result.headline()),
            Err(error) => error.to_string(),
        };
        items.push(Listed { kind: "result", name: kept::name_of(&path), what });
    }
    output::print(&output::listing(&items, arguments.output.format, "nothing"))
}

pub fn show(arguments: &BenchShow) -> Result<(), Failure> {
    let result = read(&arguments.results, &arguments.result)?;
    if let Some(path) = &arguments.html {
        write(path, &result.to_html()?)?;
        eprintln!("report: {}", path.display());
    }
    if let Some(folder) = &arguments.svg {
        write_charts(folder, &standalone::charts(&result.to_html()?))?;
    }
    print(&arguments.output, &result, SuiteResult::to_text)
}

pub fn compare(arguments: &BenchCompare) -> Result<(), Failure> {
    let [a, b] = [&arguments.a, &arguments.b].map(|name| read(&arguments.results, name));
    let found = comparison::compare(&a?, &b?)?;
    print(&arguments.output, &found, comparison::Comparison::to_text)
}

/// Returns the folder that was named, or else the user's.
pub fn folder(results: &Results) -> Result<Kept, Failure> {
    let named = results.results.clone().map(Kept::new);
    named.or_else(Kept::of_user).ok_or_else(|| {
        let failure = Failure::new("neither XDG_DATA_HOME nor HOME names a folder for results");
        failure.exit(Exit::Usage).hint("name one with --results DIR")
    })
}

fn read(results: &Results, wanted: &str) -> Result<SuiteResult, Failure> {
    let found = folder(results)?.find(wanted);
    let path = found.map_err(|error| {
        let is_unknown = matches!(error, LabError::NotFound(_));
        let failure = Failure::from(error);
        let hint = "`evenkeel-bench ls` lists them; a file is named by its path";
        if is_unknown { failure.hint(hint) } else { failure }
    })?;
    Ok(kept::read(&path)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Verbs that list, show and remove results, the one that runs suites, and those of help.
    const NO_BENCHMARKS: [&str; 8] =
        ["ls", "run", "show", "compare", "clean", "completions", "man", "help"];

    #[test]
    fn every_benchmark_is_listed() {
        let command = crate::cli::command();
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let verbs = shown.map(clap::Command::get_name);
        let mut measured: Vec<&str> = verbs.filter(|verb| !NO_BENCHMARKS.contains(verb)).collect();
        let mut listed = OTHERS.map(|(name, _)| name);
        measured.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed[..], measured[..]);
    }
}
