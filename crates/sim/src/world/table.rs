//! Results as text for people, and as JSON and CSV for programs. Equal results are equal bytes.

use super::run::{CaseResults, Results, SubjectResults};
use crate::check::Check;
use crate::text::{self, columns, thousands};
use std::fmt::Write as _;

/// Maximum number of stretches of a run that are shown for a volume.
const STRETCHES_MAX: usize = 4;

impl Results {
    /// Returns tables for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("{}: {}\n", self.scenario, self.title);
        for paragraph in [&self.about, &self.source] {
            if !paragraph.is_empty() {
                let _ = writeln!(out, "{paragraph}");
            }
        }
        let _ = writeln!(out, "Volume rules of {}, seed {}.\n", self.as_of, self.seed);
        out.push_str(&self.subjects_text());
        if self.checks().next().is_some() {
            let _ = write!(out, "\n{}", self.checks_text());
        }
        let _ = writeln!(out, "\n{}", self.headline());
        out
    }

    /// Returns a line of CSV for each second of each volume and client.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut out = String::from(
            "case,name,second,dispatched,completed,completed_bytes,peak_10ms,credits,\
             credits_bytes\n",
        );
        for case in &self.cases {
            for subject in case.volumes.iter().chain(&case.clients) {
                let prefix = text::csv_line(&[&case.label, &subject.name]);
                subject.csv_lines(&mut out, &prefix, case.sample_s);
            }
        }
        out
    }

    /// Returns all results as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Plain numbers and texts always have a JSON form.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Returns the result in one sentence.
    #[must_use]
    pub fn headline(&self) -> String {
        let failed = self.checks().filter(|(_, check)| !check.pass).count();
        let all = self.checks().count();
        match (all, failed) {
            (0, _) => "Nothing was expected.".to_owned(),
            (1, 0) => "It came as expected.".to_owned(),
            (1, _) => "It did not come as expected.".to_owned(),
            (all, 0) => format!("All {all} expectations were met."),
            (all, failed) => format!("{failed} of {all} expectations were not met."),
        }
    }

    /// Returns every expectation and the name of its run. Comparisons between runs are the last.
    pub fn checks(&self) -> impl Iterator<Item = (&str, &Check)> {
        let of_cases =
            self.cases.iter().flat_map(|case| case.checks.iter().map(|c| (case.label.as_str(), c)));
        let between = if self.cases.len() > 1 { "compared" } else { "" };
        of_cases.chain(self.comparisons.iter().map(move |check| (between, check)))
    }

    fn subjects_text(&self) -> String {
        let labelled = self.cases.iter().any(|case| !case.label.is_empty());
        let mut lines = vec![words(&["run", "volume", "type", "limits", "I/Os"])];
        lines[0].extend(words(&["IOPS over time", "p50", "p99"]));
        for case in &self.cases {
            for subject in case.volumes.iter().chain(&case.clients) {
                lines.push(subject.line(case));
            }
        }
        let left = [true, true, true, true, false, true, false, false];
        columns(&without_first(lines, labelled), &left[usize::from(!labelled)..])
    }

    fn checks_text(&self) -> String {
        let labelled = self.cases.iter().any(|case| !case.label.is_empty());
        let mut lines = vec![words(&["run", "expectation", "expected", "measured", "verdict"])];
        lines.extend(self.checks().map(|(label, check)| check_line(label, check)));
        columns(
            &without_first(lines, labelled),
            &[true, true, false, false, true][usize::from(!labelled)..],
        )
    }
}

fn check_line(label: &str, check: &Check) -> Vec<String> {
    let verdict = if check.pass { "met" } else { "NOT MET" };
    words(&[label, &check.name, &check.expected, &check.measured, verdict])
}

impl SubjectResults {
    fn line(&self, case: &CaseResults) -> Vec<String> {
        let limits = if self.dropped > 0 {
            format!("{} requests were too many", thousands(self.dropped))
        } else {
            self.limits.clone()
        };
        let latency = |ns| match self.latency.count {
            0 => "-".to_owned(),
            _ => text::latency(ns),
        };
        vec![
            case.label.clone(),
            self.name.clone(),
            self.kind.clone(),
            limits,
            thousands(self.ios),
            self.course(case.sample_s),
            latency(self.latency.p50_ns),
            latency(self.latency.p99_ns),
        ]
    }

    /// Returns the rate over time in words: `3,000 for 2,000 s, then 300 for 400 s`.
    fn course(&self, sample_s: u64) -> String {
        let mut stretches = stretches(&self.completed);
        let mut lengths: Vec<usize> = stretches.iter().map(|stretch| stretch.samples).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let worth = lengths.get(STRETCHES_MAX - 1).copied().unwrap_or(0);
        // A stretch shorter than a hundredth of the run is left out.
        let worth = worth.max(self.completed.len() / 100);
        stretches.retain(|stretch| stretch.samples >= worth);
        stretches.dedup_by(|later, earlier| {
            let same = earlier.is_like(later.mean());
            if same {
                earlier.samples += later.samples;
                earlier.ios += later.ios;
            }
            same
        });
        let shown = stretches.iter().take(STRETCHES_MAX).map(|stretch| {
            let seconds = stretch.samples as u64 * sample_s;
            let rate = stretch.ios as f64 / seconds.max(1) as f64;
            format!("{} for {} s", text::rate(rate), thousands(seconds))
        });
        shown.collect::<Vec<_>>().join(", then ")
    }

    fn csv_lines(&self, out: &mut String, prefix: &str, sample_s: u64) {
        for at in 0..self.completed.len() {
            let second = (at as u64 + 1) * sample_s;
            let optional = |values: &[u64]| values.get(at).map_or(String::new(), u64::to_string);
            let _ = writeln!(
                out,
                "{prefix},{second},{},{},{},{},{},{}",
                self.dispatched[at],
                self.completed[at],
                self.completed_bytes[at],
                self.peak_10ms[at],
                optional(&self.credits),
                optional(&self.credits_bytes),
            );
        }
    }
}

/// A stretch of the run in which the rate hardly changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stretch {
    samples: usize,
    ios: u64,
}

impl Stretch {
    fn mean(&self) -> f64 {
        self.ios as f64 / self.samples as f64
    }

    /// Returns whether a rate differs by no more than a twentieth, or than the random variation of
    /// counts.
    fn is_like(&self, count: f64) -> bool {
        let mean = self.mean();
        (count - mean).abs() <= (mean * 0.05).max(3.0 * mean.sqrt()).max(3.0)
    }
}

fn stretches(counts: &[u64]) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for &count in counts {
        if let Some(last) = stretches.last_mut()
            && last.is_like(count as f64)
        {
            last.samples += 1;
            last.ios += count;
            continue;
        }
        stretches.push(Stretch { samples: 1, ios: count });
    }
    stretches
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn without_first(lines: Vec<Vec<String>>, keep: bool) -> Vec<Vec<String>> {
    let skip = usize::from(!keep);
    lines.into_iter().map(|line| line.into_iter().skip(skip).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{self, Source};
    use crate::world::run;

    #[test]
    fn course_of_a_run_is_described_briefly() {
        let counts = [[3_000; 200].as_slice(), &[1_200], &[301; 100]].concat();
        let subject = SubjectResults { completed: counts, ..SubjectResults::default() };
        assert_eq!(subject.course(1), "3,000 for 200 s, then 301 for 100 s");
        assert_eq!(SubjectResults::default().course(1), "");
        let noisy: Vec<u64> = (0..1_000).map(|i| if i % 2 == 0 { 10 } else { 1_000 }).collect();
        let subject = SubjectResults { completed: noisy, ..SubjectResults::default() };
        assert!(subject.course(1).len() < 100);
    }

    const NOISY: &str = "title = \"Noise\"\nduration_s = 3\n\
        [[volume]]\nname = \"v\"\niops = 900\nburst_iops = 1_000\nburst_credits = 100_000\n\
        [device]\nchannels = 4\nread_us = 200\nnoise_percent = 20\n\
        [poller]\nlateness = \"realistic\"\n\
        [[client]]\non = \"v\"\nname = \"c\"\niops = 800\n\
        [[expect]]\nmetric = \"mean_iops\"\nof = \"c\"\nequals = 800\nwithin_percent = 20\n\
        [[expect]]\nmetric = \"p50_ms\"\nof = \"c\"\nat_most = 0.1\n";

    fn results(seed: u64) -> Results {
        let source = Source::new("noise.toml", NOISY);
        run::run(&scenario::read(&source).unwrap(), seed, run::Method::Stepwise, &mut |_| {})
            .unwrap()
    }

    #[test]
    fn the_same_seed_is_the_same_bytes() {
        let forms = |seed| {
            let results = results(seed);
            [results.to_text(), results.to_csv(), results.to_json()]
        };
        let first = forms(1);
        let again = forms(1);
        let other = forms(2);
        for form in 0..first.len() {
            assert!(first[form] == again[form], "form {form} differs");
            assert!(first[form] != other[form], "form {form} knows no chance");
        }
    }

    #[test]
    fn every_output_form_has_the_results() {
        let results = results(1);
        assert!(!results.pass);
        let text = results.to_text();
        assert!(text.starts_with("noise: Noise\n"), "{text}");
        assert!(text.contains("c: IOPS on average, 0 to 3 s"), "{text}");
        assert!(text.contains("  NOT MET\n"), "{text}");
        assert!(text.ends_with("\n1 of 2 expectations were not met.\n"), "{text}");
        let csv = results.to_csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + 3);
        let columns = lines[0].split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == columns), "{csv}");
        let json: serde_json::Value = serde_json::from_str(&results.to_json()).unwrap();
        assert_eq!(json["schema"], "evenkeel.sim/1");
        assert_eq!(json["cases"][0]["volumes"][0]["credits"].as_array().unwrap().len(), 3);
    }
}
