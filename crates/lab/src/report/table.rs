//! The report for a terminal: one line for each volume, then every broken promise in words.

use std::fmt::Write as _;

use super::{Report, VolumeReport};
use crate::checker::{Outcome, PhaseSummary};
use crate::stalls::{Observed, whole_ms};
use evenkeel_sim::text;

const HEADINGS: [&str; 9] =
    ["volume", "type", "promised", "measured", "worst second", "CoV", "p50", "p99", "verdict"];

/// Whether a column is aligned to the left: columns of text are, columns of numbers are not.
const LEFT: [bool; 9] = [true, true, false, false, false, false, false, false, true];

pub(super) fn text(report: &Report) -> String {
    let mut out = figures_and_faults(report);
    for warning in &report.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    let _ = writeln!(out, "{}", headline(report));
    out
}

/// Returns the table, every broken promise, and sentences on the machine's pauses.
pub(super) fn figures_and_faults(report: &Report) -> String {
    let mut lines = vec![HEADINGS.map(String::from).to_vec()];
    for volume in &report.volumes {
        lines.extend(volume_lines(volume).into_iter().map(Vec::from));
    }
    let mut out = text::columns(&lines, &LEFT);
    for volume in &report.volumes {
        for check in volume.verdict.checks.iter().filter(|check| !check.pass) {
            let _ = writeln!(
                out,
                "{}: {}: {}: expected {}, measured {}",
                Outcome::of_check(check).word(),
                volume.name,
                check.name,
                check.expected,
                check.measured
            );
        }
    }
    for sentence in report.sentences() {
        let _ = writeln!(out, "{sentence}");
    }
    out
}

/// Returns the result in one sentence.
pub(super) fn headline(report: &Report) -> String {
    let judged = report.volumes.len();
    let count = |outcome: Outcome| {
        report.volumes.iter().filter(|volume| volume.verdict.outcome == outcome).count()
    };
    match report.outcome {
        Outcome::Broken => {
            format!("{} of {judged} volumes broke their promise.", count(Outcome::Broken))
        }
        Outcome::ServerGone => match report.volumes.iter().find_map(|volume| volume.gone_after_s) {
            Some(after_s) => format!(
                "The server closed the connection after {after_s:.1} s; until then nothing that \
                 was judged was broken."
            ),
            None => "The server closed the connection before anything was judged.".to_string(),
        },
        Outcome::Undecided if judged + report.unjudged == 0 => "Nothing was measured.".to_string(),
        Outcome::Undecided => {
            let undecided = count(Outcome::Undecided) + report.unjudged;
            format!(
                "Undecided: {undecided} of {} could not be judged{}. Run it again beside less \
                 work, or for longer.",
                judged + report.unjudged,
                lost(report),
            )
        }
        Outcome::Kept if judged == 1 => "The promise was kept.".to_string(),
        Outcome::Kept => "Every promise was kept.".to_string(),
    }
}

/// Returns a clause with the most time of any run in which the machine, the server or its clients
/// did not run; empty if there is none.
fn lost(report: &Report) -> String {
    let of_run = |observed: &Observed| observed.lost().and(&observed.steal).total_us();
    let lost_us = report.stalls.iter().map(of_run).max();
    match lost_us.map(whole_ms) {
        None | Some(0) => String::new(),
        Some(ms) => format!(
            ", because the machine, the server or its clients did not run for {} ms in all",
            text::thousands(ms)
        ),
    }
}

/// Returns the figures of each phase, which the HTML page uses, too: promised, measured, worst
/// second, CoV.
pub(super) fn figures(volume: &VolumeReport) -> Vec<[String; 4]> {
    let cells = |phase: &PhaseSummary| {
        let worst = phase.worst_second.map_or_else(dash, |worst| {
            format!("{} ({:+.2} %)", text::thousands(worst.ios), worst.deviation * 100.0)
        });
        let unlimited = || "unlimited".to_string();
        [
            phase.promised_iops.map_or_else(unlimited, text::rate),
            text::rate(phase.measured_iops),
            worst,
            text::percent(phase.cov),
        ]
    };
    volume.verdict.summary.phases.iter().map(cells).collect()
}

/// Returns the introduction of the second phase of a volume: `after 10.0 s`.
pub(super) fn later(volume: &VolumeReport) -> String {
    let end_s = volume.verdict.summary.burst_end_s;
    end_s.map_or_else(String::new, |end_s| format!("after {end_s:.1} s"))
}

/// Returns the lines of a volume: two if its credits ended, as it has two rates then.
fn volume_lines(volume: &VolumeReport) -> Vec<[String; 9]> {
    let line = |(index, figures): (usize, [String; 4])| {
        let [promised, measured, worst, cov] = figures;
        let outcome = volume.verdict.outcome;
        let word = outcome.word().to_string();
        let verdict = if outcome == Outcome::Broken { word.to_uppercase() } else { word };
        let [name, kind, p50, p99, verdict] = match index {
            0 => [
                volume.name.clone(),
                volume.volume_type.clone(),
                text::latency(volume.latency.p50_ns),
                text::latency(volume.latency.p99_ns),
                verdict,
            ],
            _ => [
                format!("  {}", later(volume)),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ],
        };
        [name, kind, promised, measured, worst, cov, p50, p99, verdict]
    };
    figures(volume).into_iter().enumerate().map(line).collect()
}

fn dash() -> String {
    "-".to_string()
}

#[cfg(test)]
mod tests {
    use super::super::samples;

    #[test]
    fn the_table_of_four_volumes() {
        let text = samples::report().to_text();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        assert_eq!(lines[0], "volume type promised measured worst second CoV p50 p99 verdict");
        assert!(
            lines[2].starts_with("database io2 1,000 1,000 1,000 (+0.00 %) 0.000 % "),
            "{text}"
        );
        assert!(lines[2].ends_with(" kept"), "{text}");
        assert!(lines[4].starts_with("boot gp2 3,000 3,000 3,000 (+0.00 %)"), "{text}");
        assert!(lines[5].starts_with("after 10.0 s 300 300 300 (+0.00 %)"), "{text}");
        assert!(lines[6].ends_with("BROKEN"), "{text}");
        assert!(text.contains("broken: greedy neighbour: every second: expected"), "{text}");
        assert!(text.contains("warning: the machine was busy"), "{text}");
        assert!(text.contains("\nThe machine itself stood still once for 61 ms"), "{text}");
        assert!(text.ends_with("1 of 4 volumes broke their promise.\n"), "{text}");
    }
}
