//! The page of a suite: the published figures beside ours, then charts of every configuration with
//! their numbers.

use std::fmt::Write as _;

use super::plots::{self, Bar};
use super::suite_charts::section;
use crate::suite::configuration::IOS;
use crate::suite::result::{BROKEN, Configuration, Found, KEPT, Part, Row, SuiteResult, UNDECIDED};
use evenkeel_lab::{LabError, stalls};
use evenkeel_pages::html::{
    close_table, end_page, escape, figure, note, number_column, open_page, open_table, text_column,
};

/// Ratio of heights up to which the smaller bar is visible beside the larger one.
const SEEN: f64 = 100.0;

const POINTS: &str = "Published and ours";
const SIDE_BY_SIDE: &str = "Side by side";
const LIVE: &str = "Live";
const IN_VIRTUAL_TIME: &str = "In virtual time";
const PROVENANCE: &str = "How this was measured";

impl SuiteResult {
    /// Returns one HTML page that contains its charts and loads no other files.
    ///
    /// # Errors
    /// When a chart cannot be drawn.
    pub fn to_html(&self) -> Result<String, LabError> {
        let mut page = open_page(&self.title);
        self.head(&mut page);
        self.contents(&mut page);
        self.question(&mut page);
        self.points(&mut page);
        self.side_by_side(&mut page)?;
        for (title, part) in [(LIVE, &self.live), (IN_VIRTUAL_TIME, &self.simulated)] {
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

    /// Appends a table of contents, as a page of charts is long.
    fn contents(&self, page: &mut String) {
        page.push_str("<nav><p class=\"note\">\n");
        let parts = [(LIVE, self.live.is_some()), (IN_VIRTUAL_TIME, self.simulated.is_some())];
        let parts = parts.into_iter().filter_map(|(part, is_there)| is_there.then_some(part));
        let sections = if self.live.is_some() || self.simulated.is_some() {
            &[POINTS, SIDE_BY_SIDE][..]
        } else {
            &[POINTS]
        };
        let sections = sections.iter().copied().chain(parts).chain([PROVENANCE]);
        let links = sections.map(|title| format!("<a href=\"#{}\">{title}</a>", anchor(title)));
        page.push_str(&links.collect::<Vec<_>>().join(" · "));
        page.push_str("</p></nav>\n");
    }

    /// Appends the question and the method; older results do not have them.
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
        open_section(page, POINTS);
        let columns = [
            text_column("point"),
            text_column("what"),
            text_column("published"),
            text_column("must be"),
            number_column("live"),
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

    /// Appends a chart of the mean rate of every configuration, live and in virtual time.
    fn side_by_side(&self, page: &mut String) -> Result<(), LabError> {
        let parts: Vec<(&str, &Part)> = [("live", &self.live), ("virtual", &self.simulated)]
            .into_iter()
            .filter_map(|(name, part)| Some((name, part.as_ref()?)))
            .collect();
        if parts.is_empty() {
            return Ok(());
        }
        // A configuration that was only run one way has one bar.
        let mut shown: Vec<&Configuration> = Vec::new();
        for (_, part) in &parts {
            let is_new = |of: &&Configuration| shown.iter().all(|known| known.name != of.name);
            let known =
                part.configurations.iter().filter(|configuration| !configuration.is_unknown());
            let new: Vec<&Configuration> = known.filter(is_new).collect();
            shown.extend(new);
        }
        let mut units: Vec<&str> = Vec::new();
        for unit in shown.iter().map(|of| of.unit()) {
            if !units.contains(&unit) {
                units.push(unit);
            }
        }
        let bar = |configuration: &&Configuration| {
            let of_part = |(_, part): &(&str, &Part)| {
                let is_it = |of: &&Configuration| of.name == configuration.name && !of.is_unknown();
                let found = part.configurations.iter().find(is_it)?;
                Some((found.iops.mean, found.iops.se))
            };
            Bar { name: configuration.name.clone(), bars: parts.iter().map(of_part).collect() }
        };
        let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
        open_section(page, SIDE_BY_SIDE);
        let height = |bar: &Bar| bar.bars.iter().flatten().map(|(top, _)| *top).fold(0.0, f64::max);
        for unit in units {
            let of_unit = shown.iter().filter(|of| of.unit() == unit);
            let mut bars: Vec<Bar> = of_unit.map(bar).collect();
            let caption = match &names[..] {
                [one] => format!("Mean {unit} per second, {one}."),
                _ => format!("Mean {unit} per second: filled live, outlined in virtual time."),
            };
            let mut caption = format!(
                "{caption} Lines: standard error of the runs. The numbers are in the tables below."
            );
            while !bars.is_empty() {
                let top = bars.iter().map(height).fold(0.0, f64::max);
                let (high, low): (Vec<Bar>, Vec<Bar>) =
                    bars.into_iter().partition(|bar| height(bar) * SEEN >= top);
                let label = format!("Mean {unit} per second");
                let axis = per_second(unit);
                let svg = plots::bars(&label, &axis, &names, &high)?;
                figure(page, &svg, &caption);
                "Those that could not be seen beside the ones above.".clone_into(&mut caption);
                bars = low;
            }
        }
        page.push_str("</section>\n");
        Ok(())
    }

    fn provenance(&self, page: &mut String) {
        let environment = &self.environment;
        let load = |load: Option<u64>| {
            load.map_or_else(|| "unknown".to_owned(), |load| format!("{:.2}", load as f64 / 100.0))
        };
        open_section(page, PROVENANCE);
        page.push_str("<dl>\n");
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
            // If times are not scaled, the text above describes what is shortened.
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

/// Begins a section that is in the table of contents.
pub(super) fn open_section(page: &mut String, title: &str) {
    let _ = writeln!(page, "<section id=\"{}\">\n<h2>{title}</h2>", anchor(title));
}

/// Returns the unit of a rate, for an axis.
pub(super) fn per_second(unit: &str) -> String {
    if unit == IOS { "IOPS".to_owned() } else { format!("{unit}/s") }
}

/// Returns the anchor of a section in an address.
fn anchor(title: &str) -> String {
    title.to_lowercase().replace(' ', "-")
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
