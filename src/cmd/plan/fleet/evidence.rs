//! Judges volumes a group of files at a time, so that few traces are in memory.

use super::files::{Group, Metrics, TOGETHER_BYTES_MAX};
use crate::cmd::plan::recordings::{self, Content, Together};
use evenkeel_planner::fleet::policies::Policies;
use evenkeel_planner::fleet::{Evidence, Judged, Volume, judge, not_judged};
use evenkeel_planner::read::cloudwatch::data::{Answers, LastPage};
use evenkeel_planner::read::{self, Broken, FioLog, Hints};
use evenkeel_planner::trace::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The rules and the metrics by which volumes are judged.
pub struct Fleet<'a> {
    pub policies: &'a Policies,
    pub volumes: &'a [Volume],
    pub ids: &'a BTreeMap<&'a str, usize>,
    pub files: &'a [Metrics],
    pub allows_partial: bool,
}

/// The result of judging.
pub struct Outcome {
    /// The judgement of each volume, in the order of the list.
    pub judged: Vec<Judged>,
    /// Parts of the metrics that are not used, in the order of the files.
    pub left_out: BTreeSet<String>,
}

/// The traces of some volumes, or why they are not known.
type Found = BTreeMap<usize, Result<Vec<Trace>, String>>;

/// The result of a group of files.
#[derive(Default)]
struct Part {
    judged: Vec<(usize, Judged)>,
    left_out: BTreeSet<String>,
}

impl Fleet<'_> {
    /// Judges all volumes, `jobs` groups of files at once.
    pub fn judge(&self, groups: &[Group], jobs: usize) -> Outcome {
        let (next, parts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                let part = self.group(group);
                parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(part);
            }
        };
        std::thread::scope(|scope| {
            // This thread is one of the jobs.
            for _ in 1..jobs.min(groups.len()) {
                scope.spawn(work);
            }
            work();
        });
        let parts = parts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut by_number: BTreeMap<usize, Judged> = BTreeMap::new();
        let mut left_out = BTreeSet::new();
        for part in parts {
            by_number.extend(part.judged);
            left_out.extend(part.left_out);
        }
        let of = |(number, volume): (usize, &Volume)| {
            let found = by_number.remove(&number);
            found.unwrap_or_else(|| self.judge_one(volume, Evidence::Absent))
        };
        Outcome { judged: self.volumes.iter().enumerate().map(of).collect(), left_out }
    }

    /// Judges a volume by the prices of its region.
    fn judge_one(&self, volume: &Volume, evidence: Evidence) -> Judged {
        match self.policies.policy(volume) {
            Ok(policy) => judge(policy, volume, evidence),
            Err(reason) => not_judged(volume, reason),
        }
    }

    /// Judges the volumes of a group, in parts if its files are too large for all at once.
    fn group(&self, group: &Group) -> Part {
        let mut part = Part::default();
        let is_one = group.files.len() <= 1;
        let rounds = if is_one { 1 } else { group.bytes.div_ceil(TOGETHER_BYTES_MAX).max(1) };
        let each = group.volumes.len().div_ceil(usize::try_from(rounds).unwrap_or(usize::MAX));
        for volumes in group.volumes.chunks(each.max(1)) {
            self.volumes_of(group, volumes, &mut part);
        }
        part
    }

    fn volumes_of(&self, group: &Group, volumes: &[usize], part: &mut Part) {
        let mut found: Found = volumes.iter().map(|volume| (*volume, Ok(Vec::new()))).collect();
        let mut pages = Vec::new();
        for file in group.files.iter().filter_map(|file| self.files.get(*file)) {
            match self.read(file, &found) {
                Ok((_, Content::Traces(traces))) => {
                    self.add(&[file], traces, &mut found, &mut part.left_out);
                }
                Ok((hints, Content::Answers(answers))) => pages.push((file, answers, hints)),
                Err(error) => leave_out(&[file], error, &mut found, &mut part.left_out),
            }
        }
        self.pages(pages, &mut found, &mut part.left_out);
        for (number, traces) in found {
            let Some(volume) = self.volumes.get(number) else { continue };
            let evidence = match traces.map(|all| merged(&volume.id, all)) {
                Err(error) | Ok(Err(error)) => Evidence::Broken(error),
                Ok(Ok(trace)) => trace.map_or(Evidence::Absent, |it| Evidence::Trace(Box::new(it))),
            };
            part.judged.push((number, self.judge_one(volume, evidence)));
        }
    }

    /// Adds the traces of answers of GetMetricData, some of which may be pages of one answer.
    fn pages(
        &self,
        pages: Vec<(&Metrics, Answers, Hints)>,
        found: &mut Found,
        left_out: &mut BTreeSet<String>,
    ) {
        for Together { files, hints, answers } in recordings::together(pages) {
            match recordings::traces_of(answers, LastPage::Anywhere, &hints) {
                Ok(traces) => self.add(&files, traces, found, left_out),
                Err(broken) => leave_out(&files, named(&files, &broken), found, left_out),
            }
        }
    }

    /// Adds the traces that files have of the volumes of this round.
    fn add(
        &self,
        files: &[&Metrics],
        read: Vec<Trace>,
        found: &mut Found,
        left_out: &mut BTreeSet<String>,
    ) {
        // Pages of one answer may be named after its volume, each of them.
        let first = files.first().and_then(|file| file.of);
        let named = first.filter(|volume| files.iter().all(|file| file.of == Some(*volume)));
        let is_only = read.len() == 1;
        let mut strange = Vec::new();
        for mut trace in read {
            let by_name = self.ids.get(trace.name.as_str()).copied();
            let Some(number) = by_name.or(named.filter(|_| is_only)) else {
                strange.push(trace.name);
                continue;
            };
            if named.is_some_and(|volume| volume != number) {
                strange.push(trace.name);
                continue;
            }
            if let (Some(Ok(found)), Some(volume)) =
                (found.get_mut(&number), self.volumes.get(number))
            {
                trace.name.clone_from(&volume.id);
                found.push(trace);
            }
        }
        if let Some(first) = strange.first() {
            let more = match strange.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let why = match named.and_then(|volume| self.volumes.get(volume)) {
                Some(volume) => format!("the file is named after {}", volume.id),
                None => "no such volume is in the list".to_owned(),
            };
            left_out.insert(format!("{}: {first}{more}: {why}", names(files)));
        }
    }

    /// Reads a file; of answers of GetMetricData, the series of volumes of other rounds are left
    /// out, so that few points are in memory.
    fn read(&self, file: &Metrics, found: &Found) -> Result<(Hints, Content), String> {
        let hints = self.hints(file)?;
        let content = recordings::read_file(&file.path, &hints);
        let mut content = content.map_err(|failure| failure.message)?;
        if let Content::Answers(answers) = &mut content {
            let is_wanted =
                |id: &str| self.ids.get(id).is_none_or(|number| found.contains_key(number));
            let has_series = answers.retain(&hints, is_wanted);
            if !has_series.map_err(|broken| named(&[file], &broken))? {
                content = Content::Traces(Vec::new());
            }
        }
        Ok((hints, content))
    }

    fn hints(&self, file: &Metrics) -> Result<Hints, String> {
        let queries = file.queries.as_ref().map(|path| {
            std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        });
        let name = file.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Ok(Hints {
            allows_partial: self.allows_partial,
            queries: queries.transpose()?,
            fio_log: FioLog::of_file_name(name),
            ..Hints::default()
        })
    }
}

/// Notes that files are not used, and that the volumes in them are not judged.
fn leave_out(
    files: &[&Metrics],
    error: String,
    found: &mut Found,
    left_out: &mut BTreeSet<String>,
) {
    for volume in files.iter().flat_map(|file| file.of.iter().chain(&file.has)) {
        if let Some(found) = found.get_mut(volume) {
            *found = Err(error.clone());
        }
    }
    left_out.insert(error);
}

/// Returns an error of files.
fn named(files: &[&Metrics], broken: &Broken) -> String {
    format!("{}: {broken}", names(files))
}

fn names(files: &[&Metrics]) -> String {
    let paths: Vec<String> = files.iter().map(|file| file.path.display().to_string()).collect();
    recordings::listed(&paths)
}

/// Merges all traces of a volume.
fn merged(id: &str, mut all: Vec<Trace>) -> Result<Option<Trace>, String> {
    match all.len() {
        0 => Ok(None),
        1 => Ok(all.pop()),
        files => read::merge(all)
            .map(Some)
            .map_err(|error| format!("its {files} files do not go together: {error}"))
            .map_err(|error| error.replace(id, "it")),
    }
}
