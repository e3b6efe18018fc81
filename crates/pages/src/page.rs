//! Pages of sections: tables, charts, sentences and commands. The caller provides the words and the
//! figures; this module draws them.

mod axis;
mod charts;
mod table;

use std::fmt::Write as _;

use crate::DrawError;
use crate::html::{end_page, escape, figure, note, open_page};

pub use axis::{Axis, Steps};
pub use charts::{Band, Curve, Dot, Frontier, Keeps, Over, Shape};
pub use table::{Row, Table};

/// The content of a page.
pub struct Page {
    /// The verb that answers.
    pub verb: &'static str,
    /// The name of what the answer is about.
    pub title: String,
    /// The recording's length and resolution, its demand, and the like.
    pub about: Vec<String>,
    /// The answer in a sentence.
    pub headline: String,
    /// The mark of the answer.
    pub mark: Mark,
    /// Warnings that limit what the answer proves.
    pub warnings: Vec<String>,
    /// The sections, in their order.
    pub parts: Vec<Part>,
}

/// The mark of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// It is good, whatever the recording does not say.
    Good,
    /// It is good as is assumed, and may not be.
    Unknown,
    /// It is not good.
    Bad,
    /// It is neither.
    Plain,
}

/// A section of a page.
pub enum Part {
    /// A table.
    Table {
        /// The heading.
        title: String,
        /// The table.
        table: Table,
        /// A sentence below it.
        note: String,
    },
    /// A chart.
    Chart(Box<Section>),
    /// Sentences.
    Lines {
        /// The heading.
        title: String,
        /// The sentences.
        lines: Vec<String>,
    },
    /// Commands.
    Commands {
        /// The heading.
        title: String,
        /// Commands, each after a description.
        commands: Vec<(String, String)>,
    },
    /// Values, each after its name.
    Terms {
        /// The heading.
        title: String,
        /// The names and values.
        terms: Vec<(String, String)>,
    },
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
    /// Curves over time or over a count.
    Over(Over),
    /// Cost against waiting.
    Frontier(Frontier),
}

impl Mark {
    /// Returns the class of the style sheet, and the sign.
    const fn shown(self) -> (&'static str, &'static str) {
        match self {
            Self::Good => ("kept", "✓"),
            Self::Unknown => ("undecided", "?"),
            Self::Bad => ("broken", "✗"),
            Self::Plain => ("plain", ""),
        }
    }
}

impl Page {
    /// Returns one HTML page that contains its charts and loads no other files.
    ///
    /// # Errors
    /// When a chart cannot be drawn.
    pub fn to_html(&self) -> Result<String, DrawError> {
        let mut page = open_page(&self.title);
        self.head(&mut page);
        for part in &self.parts {
            part.write(&mut page)?;
        }
        end_page(&mut page);
        Ok(page)
    }

    fn head(&self, page: &mut String) {
        let (class, sign) = self.mark.shown();
        let title = escape(&self.title);
        let _ = writeln!(
            page,
            "<header>\n<p class=\"brand\">Evenkeel {}</p>\n<h1>{title}</h1>",
            self.verb
        );
        for about in &self.about {
            let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(about));
        }
        let _ = writeln!(
            page,
            "<p class=\"banner {class}\"><span aria-hidden=\"true\">{sign}</span> {}</p>",
            escape(&self.headline)
        );
        for warning in &self.warnings {
            let _ = writeln!(page, "<p class=\"warning\">{}</p>", escape(warning));
        }
        page.push_str("</header>\n");
    }
}

impl Part {
    fn title(&self) -> &str {
        match self {
            Self::Chart(section) => &section.title,
            Self::Table { title, .. }
            | Self::Lines { title, .. }
            | Self::Commands { title, .. }
            | Self::Terms { title, .. } => title,
        }
    }

    fn write(&self, page: &mut String) -> Result<(), DrawError> {
        let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(self.title()));
        match self {
            Self::Table { table, note: below, .. } => {
                table.write(page, "rows");
                if !below.is_empty() {
                    note(page, &escape(below));
                }
            }
            Self::Chart(section) => section.write(page)?,
            Self::Lines { lines, .. } => {
                page.push_str("<ul>\n");
                for line in lines {
                    let _ = writeln!(page, "<li>{}</li>", escape(line));
                }
                page.push_str("</ul>\n");
            }
            Self::Commands { commands, .. } => {
                for (heading, lines) in commands {
                    let heading = escape(heading);
                    let lines = escape(lines);
                    let _ = writeln!(page, "<h3>{heading}</h3>\n<pre><code>{lines}</code></pre>");
                }
            }
            Self::Terms { terms, .. } => table::terms(page, terms),
        }
        page.push_str("</section>\n");
        Ok(())
    }
}

impl Section {
    fn write(&self, page: &mut String) -> Result<(), DrawError> {
        let svg = match &self.chart {
            Chart::Over(over) => over.draw(&self.title)?,
            Chart::Frontier(frontier) => frontier.draw(&self.title)?,
        };
        let caption = escape(&self.caption);
        figure(page, &described(&svg, &escape(&self.title), &caption), &caption);
        if self.shows_numbers {
            self.numbers.write(page, "rows");
        } else {
            page.push_str("<details>\n<summary>The numbers behind this chart</summary>\n");
            self.numbers.write(page, "numbers");
            page.push_str("</details>\n");
        }
        Ok(())
    }
}

/// Returns charts with a title and a description each, for readers who cannot see them.
fn described(svg: &str, title: &str, description: &str) -> String {
    let mut charts = svg.split("<svg ");
    let mut all = charts.next().unwrap_or_default().to_owned();
    for chart in charts {
        let (open, rest) = chart.split_once('>').unwrap_or((chart, ""));
        let _ =
            write!(all, "<svg {open}>\n<title>{title}</title>\n<desc>{description}</desc>{rest}");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(name: &str, shape: Shape, values: Vec<Option<f64>>) -> Curve {
        Curve { name: name.to_owned(), shape, keeps: Keeps::Most, values }
    }

    fn axis(to: f64) -> Axis {
        let words = Box::new(|at: f64, _| format!("{at:.0}"));
        Axis { from: 0.0, to, steps: Steps::Time, words }
    }

    fn page() -> Page {
        let values = vec![Some(100.0), None, Some(3_000.0), Some(5.0)];
        let most = values.iter().map(|value| value.map(|value| value * 2.0)).collect();
        let over = Over {
            axis: axis(600.0),
            unit: "IOPS".to_owned(),
            band: Some(Band {
                least: curve("at least", Shape::Line, values.clone()),
                most: curve("at most", Shape::Line, most),
            }),
            curves: vec![
                curve("demand", Shape::Area, values),
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
            rows: vec![vec!["0".into(), "7 & 8".into()].into()],
            words: vec![0],
        };
        let section = |title: &str, chart| {
            let caption = "Shaded: \"unknown\".".to_owned();
            let title = title.to_owned();
            let numbers = numbers();
            Box::new(Section { title, caption, chart, numbers, shows_numbers: false })
        };
        let mut layouts = numbers();
        layouts.rows.push(Row {
            colour: Some(1),
            cells: vec!["A".into(), "9".into()],
            more: vec![("<u>".into(), "1 < 2".into())],
            commands: "aws <y>".into(),
        });
        let title = |title: &str| title.to_owned();
        let frontier = Frontier { currency: "USD".into(), dots };
        Page {
            verb: "plan",
            title: "vol <script>alert(1)</script>".into(),
            about: vec!["5 min & more".into()],
            headline: "gp3 100 GiB: 8.00 USD".into(),
            mark: Mark::Unknown,
            warnings: vec!["none of <it>".into()],
            parts: vec![
                Part::Table { title: title("Layouts"), table: layouts, note: "a < b".into() },
                Part::Chart(section("Over time", Chart::Over(over))),
                Part::Chart(section("Cost", Chart::Frontier(frontier))),
                Part::Lines { title: title("Risks"), lines: vec!["<p>".into()] },
                Part::Commands {
                    title: title("There"),
                    commands: vec![("aws".into(), "aws ec2 <x>".into())],
                },
                Part::Terms {
                    title: title("Assumed"),
                    terms: vec![("Prices".into(), "of <today>".into())],
                },
            ],
        }
    }

    #[test]
    fn the_page_is_whole_loads_nothing_and_cannot_be_broken() {
        let page = page().to_html().unwrap();
        let plain = page.replace("http://www.w3.org/2000/svg", "");
        for needle in [
            "<script", "<link", "@import", "url(", "src=", "http://", "https://", "<b>", "<i>",
            "<it>", "<u>", "<y>", "<x>",
        ] {
            assert!(!plain.contains(needle), "{needle}");
        }
        assert!(page.contains("vol &lt;script&gt;") && page.ends_with("</html>\n"));
        for tag in [
            "section", "table", "tr", "td", "th", "div", "figure", "details", "p", "dl", "svg",
            "title", "desc", "pre", "h2", "h3", "ul", "li", "span",
        ] {
            let open = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        // Each of two charts, for a wide and for a narrow window.
        assert_eq!(page.matches("<svg ").count(), 4);
        assert_eq!(page.matches("<desc>Shaded: &quot;unknown&quot;.</desc>").count(), 4);
        assert_eq!(page.matches("<div class=\"narrow\"><svg ").count(), 2);
    }

    #[test]
    fn every_value_of_a_table_has_its_heading_and_rows_unfold() {
        let page = page().to_html().unwrap();
        let cells = page.matches("<td ").count();
        let folded = page.matches("<tr class=\"more\"").count();
        assert_eq!(page.matches("<td role=\"cell\" data-label=\"&lt;i&gt;\"").count(), 4);
        assert_eq!((cells, folded), (5, 1));
        let more = page.split("<tr class=\"more\"").nth(1).unwrap();
        assert!(more.contains("colspan=\"2\"") && more.contains("1 &lt; 2"), "{more}");
        assert!(page.contains("background:var(--series-1)"));
    }

    #[test]
    fn gaps_are_shaded_and_curves_end_at_them() {
        let page = page().to_html().unwrap();
        let chart = page.split("<svg ").nth(1).unwrap();
        assert!(chart.contains("fill=\"var(--stall)\""), "the gap");
        // One line before the gap, and one after it; and a band in two parts.
        assert!(chart.matches("<polyline").count() >= 3, "{chart}");
        assert!(chart.matches("<polygon").count() >= 4, "{chart}");
    }

    #[test]
    fn charts_for_narrow_windows_have_fewer_values_and_keep_the_extremes() {
        let values: Vec<Option<f64>> = (0..400).map(|place| Some(f64::from(place % 7))).collect();
        let draw = |keeps, shown| {
            let curve = Curve { keeps, ..curve("a", Shape::Line, shown) };
            let over = Over {
                axis: axis(400.0),
                unit: "IOPS".to_owned(),
                curves: vec![curve],
                band: None,
                gaps: vec![],
                top: None,
            };
            over.draw("x").unwrap()
        };
        let both = draw(Keeps::Most, values.clone());
        let (wide, narrow) = both.split_once("<div class=\"narrow\">").unwrap();
        assert!(narrow.len() * 2 < wide.len(), "{} {}", narrow.len(), wide.len());
        assert_eq!(Keeps::Most.of(&values[..4]), Some(3.0));
        assert_eq!(Keeps::Least.of(&values[3..7]), Some(3.0));
        assert_eq!(Keeps::Least.of(&[None]), None);
    }

    #[test]
    fn empty_plots_of_a_plan_can_be_drawn() {
        let axis =
            Axis { from: 0.0, to: 0.0, steps: Steps::Time, words: Box::new(|_, _| String::new()) };
        let over =
            Over { axis, unit: String::new(), curves: vec![], band: None, gaps: vec![], top: None };
        assert!(over.draw("x").unwrap().ends_with("</svg>\n</div>"));
        let empty = Frontier { currency: "USD".into(), dots: vec![] };
        assert!(empty.draw("x").unwrap().ends_with("</svg>\n</div>"));
    }
}
