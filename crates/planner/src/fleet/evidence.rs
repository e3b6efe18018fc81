//! Judges volumes a group of files at a time, so that few traces are in memory.

use super::files::{Group, Metrics, TOGETHER_BYTES_MAX};
use super::policies::Policies;
use super::{Evidence, Judged, Volume, judge, not_judged};
use crate::format::listed;
use crate::read::cloudwatch::data::{Answers, LastPage};
use crate::read::cloudwatch::pages::{Together, together, traces_of};
use crate::read::{self, Broken, Content, Hints};
use crate::trace::Trace;
use std::collections::{BTreeMap, BTreeSet};

/// The rules and the metrics by which volumes are judged.
pub struct Fleet<'a> {
    /// The rules, with the prices of each region.
    pub policies: &'a Policies,
    /// The volumes.
    pub volumes: &'a [Volume],
    /// The place of each volume, by its id.
    pub ids: &'a BTreeMap<&'a str, usize>,
    /// The files with metrics.
    pub files: &'a [Metrics],
}

/// Opens and reads a file. Returns its content, with what its text lacks, or the error.
pub type ReadFile<'a> = dyn Fn(&Metrics) -> Result<(Hints, Content), String> + 'a;

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
pub struct Part {
    judged: Vec<(usize, Judged)>,
    left_out: BTreeSet<String>,
}

impl Fleet<'_> {
    /// Returns the judgements of all volumes, from the results of all groups.
    #[must_use]
    pub fn outcome(&self, parts: Vec<Part>) -> Outcome {
        let mut by_number: BTreeMap<usize, Judged> = BTreeMap::new();
        let mut left_out = BTreeSet::new();
        for part in parts {
            by_number.extend(part.judged);
            left_out.extend(part.left_out);
        }
        let judged = |(number, volume): (usize, &Volume)| {
            let found = by_number.remove(&number);
            found.unwrap_or_else(|| self.judge_one(volume, Evidence::Absent))
        };
        Outcome { judged: self.volumes.iter().enumerate().map(judged).collect(), left_out }
    }

    /// Judges a volume by the prices of its region.
    fn judge_one(&self, volume: &Volume, evidence: Evidence) -> Judged {
        match self.policies.policy(volume) {
            Ok(policy) => judge(policy, volume, evidence),
            Err(reason) => not_judged(volume, reason),
        }
    }

    /// Judges the volumes of a group, in parts if its files are too large for all at once.
    #[must_use]
    pub fn group(&self, group: &Group, read: &ReadFile<'_>) -> Part {
        let mut part = Part::default();
        let is_one = group.files.len() <= 1;
        let rounds = if is_one { 1 } else { group.bytes.div_ceil(TOGETHER_BYTES_MAX).max(1) };
        let each = (group.volumes.len() as u64).div_ceil(rounds) as usize;
        for volumes in group.volumes.chunks(each.max(1)) {
            self.volumes_of((group, read), volumes, &mut part);
        }
        part
    }

    fn volumes_of(
        &self,
        (group, read): (&Group, &ReadFile<'_>),
        volumes: &[usize],
        part: &mut Part,
    ) {
        let mut found: Found = volumes.iter().map(|volume| (*volume, Ok(Vec::new()))).collect();
        let mut pages = Vec::new();
        for file in group.files.iter().filter_map(|file| self.files.get(*file)) {
            match self.read(file, read, &found) {
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
                Ok(Ok(trace)) => {
                    trace.map_or(Evidence::Absent, |trace| Evidence::Trace(Box::new(trace)))
                }
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
        for Together { files, hints, answers } in together(pages) {
            match traces_of(answers, LastPage::Anywhere, &hints) {
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
    fn read(
        &self,
        file: &Metrics,
        read: &ReadFile<'_>,
        found: &Found,
    ) -> Result<(Hints, Content), String> {
        let (hints, mut content) = read(file)?;
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
    listed(&paths)
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
