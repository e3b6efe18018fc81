//! The page of a suite: the published figures beside ours, then charts of every configuration with
//! their numbers.

use std::fmt::Write as _;

use super::html::{
    close_table, end_page, escape, figure, note, number_column, open_page, open_table, text_column,
};
use super::plots::{self, Bar};
use super::suite_charts::section;
use crate::LabError;
use crate::stalls;
use crate::suite::result::{BROKEN, Configuration, Found, KEPT, Part, Row, SuiteResult, UNDECIDED};

/// A bar is seen beside one that is so many times as high.
const SEEN: f64 = 100.0;

impl SuiteResult {
    /// One HTML page with its charts inside; it loads nothing from anywhere.
    ///
    /// # Errors
    /// When a chart cannot be drawn.
    pub fn to_html(&self) -> Result<String, LabError> {
        let mut page = open_page(&self.title);
        self.head(&mut page);
        self.question(&mut page);
        self.points(&mut page);
        self.side_by_side(&mut page)?;
        for (title, part) in [("For real", &self.live), ("In virtual time", &self.simulated)] {
            if let Some(part) = part {
                section(&mut page, title, part)?;
            }
        }
        self.provenance(&mut page);
        end_page(&mut page);
        Ok(page)
    }

    fn head(&self, page: &mut String) {
        let (class, mark) = match self.pass {
            true => ("kept", "✓"),
            false if self.is_undecided() => ("broken", "?"),
            false => ("broken", "✗"),
        };
        let _ = writeln!(
            page,
            "<header>\n<p class=\"brand\">Evenkeel · {}</p>\n<h1>{}</h1>\n<p \
             class=\"note\">{}</p>\n<p class=\"note\">{} · {} · {}</p>\n<p class=\"banner \
             {class}\"><span aria-hidden=\"true\">{mark}</span> {}</p>",
            escape(&self.suite),
            escape(&self.title),
            escape(&self.article),
            escape(&self.measured_at),
            escape(&self.environment.kernel),
            escape(&self.environment.fio),
            escape(&self.headline()),
        );
        for warning in &self.warnings {
            let _ = writeln!(page, "<p class=\"warning\">Warning: {}</p>", escape(warning));
        }
        for failure in &self.failures {
            let _ = writeln!(page, "<p class=\"warning\">Failed: {}</p>", escape(failure));
        }
        page.push_str("</header>\n");
    }

    /// What was asked, and how: results of before do not say.
    fn question(&self, page: &mut String) {
        let told = [
            ("What was asked", &self.asked),
            ("How it was measured, there and here", &self.method),
            ("What is shortened, and why that is safe", &self.scaled),
        ];
        let told: Vec<_> = told.into_iter().filter(|(_, text)| !text.is_empty()).collect();
        if told.is_empty() {
            return;
        }
        page.push_str("<section>\n");
        for (heading, text) in told {
            let _ = writeln!(page, "<h2>{heading}</h2>\n<p>{}</p>", escape(text));
        }
        page.push_str("</section>\n");
    }

    fn points(&self, page: &mut String) {
        page.push_str("<section>\n<h2>Published and ours</h2>\n");
        let columns = [
            text_column("point"),
            text_column("what"),
            text_column("published"),
            text_column("must be"),
            number_column("for real"),
            number_column("in virtual time"),
            text_column("verdict"),
        ];
        open_table(page, "points", &columns);
        for row in &self.rows {
            let _ = writeln!(
                page,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td \
                 class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
                escape(&row.id),
                what(row),
                escape(&row.published),
                escape(&row.expected),
                shown(&row.live),
                shown(&row.simulated),
                pill(row),
            );
        }
        close_table(page);
        note(
            page,
            "“Must be” is what ours are held to; where the article is wrong or says no number, it \
             is what follows from its other figures. “Shown” rows fail nothing.",
        );
        page.push_str("</section>\n");
    }

    /// The mean rate of every configuration, for real and in virtual time.
    fn side_by_side(&self, page: &mut String) -> Result<(), LabError> {
        let parts: Vec<(&str, &Part)> = [("for real", &self.live), ("virtual", &self.simulated)]
            .into_iter()
            .filter_map(|(name, part)| Some((name, part.as_ref()?)))
            .collect();
        let Some((_, first)) = parts.iter().max_by_key(|(_, part)| part.configurations.len())
        else {
            return Ok(());
        };
        let bar = |configuration: &Configuration| {
            let of_part = |(_, part): &(&str, &Part)| {
                let known = |known: &&Configuration| known.name == configuration.name;
                let found = part.configurations.iter().find(known)?;
                Some((found.iops.mean, found.iops.se))
            };
            Bar { name: configuration.name.clone(), bars: parts.iter().map(of_part).collect() }
        };
        let mut bars: Vec<Bar> = first.configurations.iter().map(bar).collect();
        let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
        page.push_str("<section>\n<h2>Side by side</h2>\n");
        let caption = match &names[..] {
            [one] => format!("Mean I/Os per second, {one}."),
            _ => "Mean I/Os per second: filled for real, outlined in virtual time.".to_owned(),
        };
        let mut caption = format!(
            "{caption} Lines: standard error of the runs. The numbers are in the tables below."
        );
        let height = |bar: &Bar| bar.bars.iter().flatten().map(|(top, _)| *top).fold(0.0, f64::max);
        while !bars.is_empty() {
            let top = bars.iter().map(height).fold(0.0, f64::max);
            let (shown, low): (Vec<Bar>, Vec<Bar>) =
                bars.into_iter().partition(|bar| height(bar) * SEEN >= top);
            let svg = plots::bars("Mean rate of every configuration", "IOPS", &names, &shown)?;
            figure(page, &svg, &caption);
            "Those that could not be seen beside the ones above.".clone_into(&mut caption);
            bars = low;
        }
        page.push_str("</section>\n");
        Ok(())
    }

    fn provenance(&self, page: &mut String) {
        let environment = &self.environment;
        let load = |load: Option<u64>| {
            load.map_or_else(|| "unknown".to_owned(), |load| format!("{:.2}", load as f64 / 100.0))
        };
        page.push_str("<section>\n<h2>How this was measured</h2>\n<dl>\n");
        let memory = format!("{:.1} GiB", environment.memory_bytes as f64 / f64::from(1 << 30));
        let mut terms = vec![
            ("Run again with", self.command.clone()),
            ("Date", self.measured_at.clone()),
            ("Evenkeel", environment.evenkeel.clone()),
            ("Load generator", environment.fio.clone()),
            ("Programs", self.programs.join("; ")),
            ("Kernel", environment.kernel.clone()),
            ("Processor", format!("{} × {}", environment.processors, environment.processor)),
            ("Memory", memory),
            ("Load before", load(self.load_before_hundredths)),
            ("Load after", load(self.load_after_hundredths)),
            ("Data format", self.schema.clone()),
        ];
        for part in self.live.iter().chain(&self.simulated) {
            // Where seconds are not told to stand for more, it is said above what is shortened.
            let times = match part.times {
                1 => String::new(),
                times => format!(", 1 s for {times} of the article's"),
            };
            let scenario = format!(
                "{}, volume rules of {}, seed {}{times}",
                part.scenario, part.as_of, part.seed
            );
            terms.push(("Scenario", scenario));
            terms.extend(part.storage.iter().map(|storage| ("Storage", storage.clone())));
            let pauses = stalls::sentences_of_runs(&part.stalls, self.pass);
            terms.extend(pauses.into_iter().map(|pause| ("Pauses", pause)));
        }
        for (term, value) in terms.into_iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(page, "<dt>{term}</dt><dd>{}</dd>", escape(&value));
        }
        page.push_str("</dl>\n<details>\n<summary>The exact command lines</summary>\n");
        for command in self.live.iter().chain(&self.simulated).flat_map(|part| &part.commands) {
            let _ = writeln!(page, "<pre><code>{}</code></pre>", escape(command));
        }
        page.push_str("</details>\n</section>\n");
    }
}

fn what(row: &Row) -> String {
    if row.note.is_empty() {
        return escape(&row.what);
    }
    format!("{}<br><span class=\"note\">{}</span>", escape(&row.what), escape(&row.note))
}

fn shown(found: &Option<Found>) -> String {
    found.as_ref().map_or_else(|| "–".to_owned(), |found| escape(&found.shown))
}

fn pill(row: &Row) -> String {
    let (class, mark) = match row.verdict() {
        KEPT => ("kept", "✓ kept"),
        BROKEN => ("broken", "✗ broken"),
        UNDECIDED => ("broken", "? undecided"),
        other => return escape(other),
    };
    format!("<span class=\"pill {class}\">{mark}</span>")
}
