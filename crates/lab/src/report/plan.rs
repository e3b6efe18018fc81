//! The page of a plan: layouts with their costs and rates, and charts of one workload against their
//! limits. The caller provides the figures; this module draws them.

mod charts;

use std::fmt::Write as _;

use super::html::{
    close_table, end_page, escape, figure, note, number_column, open_page, open_table, text_column,
};
use crate::LabError;

pub use charts::{Axis, Curve, Dot, Frontier, Over, Shape};

/// The content of the page.
pub struct PlanPage {
    /// The name of the recorded volume.
    pub title: String,
    /// The recording's length and resolution, and its demand.
    pub about: Vec<String>,
    /// The answer in a sentence.
    pub headline: String,
    /// Whether it delays no request.
    pub is_good: bool,
    /// Warnings that limit what the plan proves.
    pub warnings: Vec<String>,
    /// The layouts.
    pub layouts: Table,
    /// Charts, each with its numbers.
    pub charts: Vec<Section>,
    /// Commands, each after a description.
    pub commands: Vec<(String, String)>,
    /// The assumptions, by their names.
    pub assumptions: Vec<(&'static str, String)>,
}

/// A table: its columns and its rows.
#[derive(Default)]
pub struct Table {
    /// Headings.
    pub columns: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
    /// Columns of text; the others are of numbers.
    pub words: Vec<usize>,
}

/// A chart with its heading and its numbers.
pub struct Section {
    /// Its heading.
    pub title: String,
    /// A sentence that describes it.
    pub caption: String,
    /// The chart.
    pub chart: Chart,
    /// Its numbers, as an alternative to the picture.
    pub numbers: Table,
    /// Whether the numbers are visible, and not folded.
    pub shows_numbers: bool,
}

/// A kind of chart.
pub enum Chart {
    /// Curves over time.
    Over(Over),
    /// Cost against waiting.
    Frontier(Frontier),
}

impl PlanPage {
    /// Returns one HTML page that contains its charts and loads no other files.
    ///
    /// # Errors
    /// When a chart cannot be drawn.
    pub fn to_html(&self) -> Result<String, LabError> {
        let mut page = open_page(&self.title);
        self.head(&mut page);
        page.push_str("<section>\n<h2>Layouts</h2>\n");
        table(&mut page, "summary", &self.layouts);
        note(&mut page, LAYOUTS_NOTE);
        page.push_str("</section>\n");
        for section in &self.charts {
            section.write(&mut page)?;
        }
        self.commands(&mut page);
        self.assumptions(&mut page);
        end_page(&mut page);
        Ok(page)
    }

    fn head(&self, page: &mut String) {
        let (class, mark) = if self.is_good { ("kept", "✓") } else { ("broken", "!") };
        let _ = writeln!(
            page,
            "<header>\n<p class=\"brand\">Evenkeel plan</p>\n<h1>{}</h1>",
            escape(&self.title)
        );
        for about in &self.about {
            let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(about));
        }
        let _ = writeln!(
            page,
            "<p class=\"banner {class}\"><span aria-hidden=\"true\">{mark}</span> {}</p>",
            escape(&self.headline)
        );
        for warning in &self.warnings {
            let _ = writeln!(page, "<p class=\"warning\">Risk: {}</p>", escape(warning));
        }
        page.push_str("</header>\n");
    }

    fn commands(&self, page: &mut String) {
        page.push_str("<section>\n<h2>There and back</h2>\n");
        for (heading, lines) in &self.commands {
            let heading = escape(heading);
            let lines = escape(lines);
            let _ = writeln!(page, "<h3>{heading}</h3>\n<pre><code>{lines}</code></pre>");
        }
        page.push_str("</section>\n");
    }

    fn assumptions(&self, page: &mut String) {
        page.push_str("<section>\n<h2>What was assumed</h2>\n<dl>\n");
        for (term, value) in &self.assumptions {
            let _ = writeln!(page, "<dt>{term}</dt><dd>{}</dd>", escape(value));
        }
        page.push_str("</dl>\n</section>\n");
    }
}

const LAYOUTS_NOTE: &str = "Costs are list prices of a month of 30 days. Throttled: seconds a day \
                            in which requests wait for a limit, as assumed, and at least and at \
                            most, since a trace does not say what happens within its intervals. \
                            Lost: how many of a hundred such layouts lose data within a year, as \
                            published of the type.";

impl Section {
    fn write(&self, page: &mut String) -> Result<(), LabError> {
        let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(&self.title));
        let svg = match &self.chart {
            Chart::Over(over) => over.draw(&self.title)?,
            Chart::Frontier(frontier) => frontier.draw(&self.title)?,
        };
        let caption = escape(&self.caption);
        figure(page, &described(&svg, &escape(&self.title), &caption), &caption);
        if self.shows_numbers {
            table(page, "checks", &self.numbers);
        } else {
            page.push_str("<details>\n<summary>The numbers behind this chart</summary>\n");
            table(page, "numbers", &self.numbers);
            page.push_str("</details>\n");
        }
        page.push_str("</section>\n");
        Ok(())
    }
}

/// Returns a chart with a title and a description, for readers who cannot see it.
fn described(svg: &str, title: &str, description: &str) -> String {
    match svg.split_once('>') {
        Some((open, rest)) => {
            format!("{open}>\n<title>{title}</title>\n<desc>{description}</desc>{rest}")
        }
        None => svg.to_owned(),
    }
}

fn table(page: &mut String, class: &str, table: &Table) {
    let is_words = |place: usize| table.words.contains(&place);
    let headings: Vec<String> = table.columns.iter().map(|heading| escape(heading)).collect();
    let columns: Vec<(&str, &str)> = headings
        .iter()
        .enumerate()
        .map(
            |(place, heading)| {
                if is_words(place) { text_column(heading) } else { number_column(heading) }
            },
        )
        .collect();
    open_table(page, class, &columns);
    for row in &table.rows {
        page.push_str("<tr>");
        for (place, cell) in row.iter().enumerate() {
            let class = if is_words(place) { "" } else { " class=\"number\"" };
            let cell = escape(cell);
            let _ = match place {
                0 => write!(page, "<th scope=\"row\"{class}>{cell}</th>"),
                _ => write!(page, "<td{class}>{cell}</td>"),
            };
        }
        page.push_str("</tr>\n");
    }
    close_table(page);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> PlanPage {
        let curve = |name: &str, shape, values| Curve { name: name.to_owned(), shape, values };
        let over = Over {
            axis: Axis { from_s: 0.0, to_s: 600.0, words: Box::new(|s| format!("{s:.0}")) },
            unit: "IOPS",
            curves: vec![
                curve("demand", Shape::Area, vec![Some(100.0), None, Some(3_000.0), Some(5.0)]),
                curve("A <b>", Shape::Line, vec![Some(3_000.0); 4]),
            ],
            gaps: vec![(150.0, 300.0)],
            top: None,
        };
        let dot = |number, cost, throttled_s, is_best| Dot { number, cost, throttled_s, is_best };
        let dots =
            vec![dot(1, 8.0, 100.0, true), dot(2, 9.0, 200.0, false), dot(3, 20.0, 0.0, true)];
        let numbers = || Table {
            columns: vec!["time".into(), "<i>".into()],
            rows: vec![vec!["0".into(), "7 & 8".into()]],
            words: vec![0],
        };
        let section = |title: &str, chart| Section {
            title: title.to_owned(),
            caption: "Shaded: \"unknown\".".to_owned(),
            chart,
            numbers: numbers(),
            shows_numbers: false,
        };
        PlanPage {
            title: "vol <script>alert(1)</script>".into(),
            about: vec!["5 min & more".into()],
            headline: "gp3 100 GiB: 8.00 USD".into(),
            is_good: true,
            warnings: vec!["none of <it>".into()],
            layouts: numbers(),
            charts: vec![
                section("Over time", Chart::Over(over)),
                section("Cost", Chart::Frontier(Frontier { currency: "USD".into(), dots })),
            ],
            commands: vec![("aws".into(), "aws ec2 <x>".into())],
            assumptions: vec![("Prices", "of <today>".into())],
        }
    }

    #[test]
    fn the_page_is_whole_loads_nothing_and_cannot_be_broken() {
        let page = page().to_html().unwrap();
        let plain = page.replace("http://www.w3.org/2000/svg", "");
        for needle in [
            "<script", "<link", "@import", "url(", "src=", "http://", "https://", "<b>", "<i>",
            "<it>",
        ] {
            assert!(!plain.contains(needle), "{needle}");
        }
        assert!(page.contains("vol &lt;script&gt;") && page.ends_with("</html>\n"));
        for tag in [
            "section", "table", "tr", "td", "th", "div", "figure", "details", "p", "dl", "svg",
            "title", "desc", "pre", "h2", "h3",
        ] {
            let open = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        assert_eq!(page.matches("<svg ").count(), 2);
        assert_eq!(page.matches("<desc>Shaded: &quot;unknown&quot;.</desc>").count(), 2);
    }

    #[test]
    fn gaps_are_shaded_and_curves_end_at_them() {
        let page = page().to_html().unwrap();
        let chart = page.split("<svg ").nth(1).unwrap();
        assert!(chart.contains("fill=\"var(--stall)\""), "the gap");
        // One line before the gap, and one after it.
        assert!(chart.matches("<polyline").count() >= 3, "{chart}");
    }

    #[test]
    fn empty_plots_of_a_plan_can_be_drawn() {
        let axis = Axis { from_s: 0.0, to_s: 0.0, words: Box::new(|_| String::new()) };
        let over = Over { axis, unit: "", curves: vec![], gaps: vec![], top: None };
        assert!(over.draw("x").unwrap().ends_with("</svg>\n"));
        let empty = Frontier { currency: "USD".into(), dots: vec![] };
        assert!(empty.draw("x").unwrap().ends_with("</svg>\n"));
    }
}
