//! A result as a table for a terminal.

use std::fmt::Write as _;

use super::result::{
    BROKEN, Found, KEPT, KEPT_VIRTUALLY, NOT_RUN, Part, Row, SuiteResult, UNDECIDED,
};
use super::statistics;
use evenkeel_sim::text::columns;

impl SuiteResult {
    /// Returns the published figures beside ours, followed by warnings.
    #[must_use]
    pub fn to_text(&self) -> String {
        let head = ["point", "what", "published", "must be", "live", "simulated", "verdict"];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        let (run, not_run): (Vec<&Row>, Vec<&Row>) =
            self.rows.iter().partition(|row| row.verdict() != NOT_RUN);
        lines.extend(run.into_iter().map(line));
        let mut out = format!("{}: {}\n{}\n\n", self.suite, self.title, self.article);
        if !self.command.is_empty() {
            let _ = writeln!(out, "{}\n", self.command);
        }
        out.push_str(&columns(&lines, &[true, true, true, true, false, false, true]));
        if !not_run.is_empty() {
            let ids: Vec<&str> = not_run.iter().map(|row| row.id.as_str()).collect();
            let _ = writeln!(out, "not run: {}", ids.join("; "));
        }
        for (title, part) in [("live", &self.live), ("in virtual time", &self.simulated)] {
            if let Some(part) = part {
                let _ = write!(out, "\n{}", configurations(title, part));
            }
        }
        if !self.programs.is_empty() {
            let _ = writeln!(out, "\nprograms: {}", self.programs.join("; "));
        }
        for warning in &self.warnings {
            let _ = writeln!(out, "warning: {warning}");
        }
        for failure in &self.failures {
            let _ = writeln!(out, "failed: {failure}");
        }
        let _ = writeln!(out, "\n{}", self.headline());
        out
    }

    /// Returns the result in one sentence.
    #[must_use]
    pub fn headline(&self) -> String {
        let broken = self.rows.iter().filter(|row| row.verdict() == BROKEN).count();
        let undecided = self.rows.iter().filter(|row| row.verdict() == UNDECIDED).count();
        let is_judged =
            |row: &&Row| [KEPT, KEPT_VIRTUALLY, UNDECIDED, BROKEN].contains(&row.verdict());
        let gates = self.rows.iter().filter(is_judged).count();
        let mut judged = match (gates, broken) {
            (0, _) => "Nothing was judged.".to_owned(),
            (gates, 0) if undecided == 0 => {
                let virtually = self.rows.iter().filter(|row| row.verdict() == KEPT_VIRTUALLY);
                let only = match virtually.count() {
                    0 => String::new(),
                    few => format!(", {few} of them in virtual time only"),
                };
                format!("All {gates} gated figures are what they must be{only}.")
            }
            (_, 0) => "No gated figure is broken for sure.".to_owned(),
            (gates, broken) => {
                format!("{broken} of {gates} gated figures are not what they must be.")
            }
        };
        if undecided > 0 {
            let _ = write!(
                judged,
                " {undecided} of {gates} are undecided, since the machine was busy ({}): run it \
                 again when it is quiet.",
                self.busy.join("; ")
            );
        }
        match self.failures.len() {
            0 => judged,
            1 => format!("{judged} A run or a program failed."),
            failures => format!("{judged} {failures} runs or programs failed."),
        }
    }
}

/// Returns the statistics of every configuration of a part.
fn configurations(title: &str, part: &Part) -> String {
    let mut head = vec![format!("{title}:")];
    head.extend(statistics::COLUMNS.map(|(heading, _)| heading.to_owned()));
    let mut left = vec![false; head.len()];
    left[0] = true;
    let mut lines = vec![head];
    lines.extend(part.configurations.iter().map(|configuration| {
        let mut line = vec![configuration.name.clone()];
        line.extend(statistics::cells(configuration));
        line
    }));
    columns(&lines, &left)
}

fn line(row: &Row) -> Vec<String> {
    let shown = |found: &Option<Found>| {
        found.as_ref().map_or_else(|| "-".to_owned(), |found| found.shown.clone())
    };
    vec![
        row.id.clone(),
        row.what.clone(),
        row.published.clone(),
        row.expected.clone(),
        shown(&row.live),
        shown(&row.simulated),
        row.verdict().to_owned(),
    ]
}
