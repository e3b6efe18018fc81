//! Tables that fit a narrow window, too: there, each row is a card, in which each value has its
//! heading. What is not in a column of a row unfolds below it.

use std::fmt::Write as _;

use crate::html::escape;

/// A table: its columns and its rows.
#[derive(Default)]
pub struct Table {
    /// Headings.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Row>,
    /// Columns of text; the others are of numbers.
    pub words: Vec<usize>,
}

/// A row of a table.
#[derive(Default)]
pub struct Row {
    /// The number of the row's colour in charts.
    pub colour: Option<usize>,
    /// Its cells.
    pub cells: Vec<String>,
    /// Further values, each after its name, which unfold.
    pub more: Vec<(String, String)>,
    /// Lines of commands, which unfold, too.
    pub commands: String,
}

impl From<Vec<String>> for Row {
    fn from(cells: Vec<String>) -> Self {
        Self { cells, ..Self::default() }
    }
}

impl Table {
    /// Appends the table to a page.
    pub(super) fn write(&self, page: &mut String, class: &str) {
        let class_of = |place: usize| {
            if self.words.contains(&place) { " class=\"wordy\"" } else { " class=\"number\"" }
        };
        let _ = write!(
            page,
            "<div class=\"scroll\"><table class=\"cards {class}\" role=\"table\">\n<thead \
             role=\"rowgroup\"><tr role=\"row\">"
        );
        for (place, heading) in self.columns.iter().enumerate() {
            let class = class_of(place);
            let heading = escape(heading);
            let _ = write!(page, "<th scope=\"col\" role=\"columnheader\"{class}>{heading}</th>");
        }
        page.push_str("</tr></thead>\n<tbody role=\"rowgroup\">\n");
        for row in &self.rows {
            page.push_str("<tr role=\"row\">");
            for (place, cell) in row.cells.iter().enumerate() {
                let class = class_of(place);
                let cell = escape(cell);
                let _ = match place {
                    0 => {
                        let swatch = row.colour.map_or_else(String::new, swatch);
                        write!(
                            page,
                            "<th scope=\"row\" role=\"rowheader\"{class}>{swatch}{cell}</th>"
                        )
                    }
                    _ => {
                        let heading = self.columns.get(place).map_or("", String::as_str);
                        let heading = escape(heading);
                        write!(
                            page,
                            "<td role=\"cell\" data-label=\"{heading}\"{class}>{cell}</td>"
                        )
                    }
                };
            }
            page.push_str("</tr>\n");
            row.write_more(page, self.columns.len());
        }
        page.push_str("</tbody>\n</table></div>\n");
    }
}

impl Row {
    /// Appends what unfolds below the row.
    fn write_more(&self, page: &mut String, columns: usize) {
        if self.more.is_empty() && self.commands.is_empty() {
            return;
        }
        let _ = write!(
            page,
            "<tr class=\"more\" role=\"row\"><td role=\"cell\" colspan=\"{columns}\"><details>\
             <summary>More<span class=\"unseen\"> about {}</span></summary>",
            escape(self.cells.first().map_or("", String::as_str))
        );
        terms(page, &self.more);
        if !self.commands.is_empty() {
            let _ = write!(page, "<pre><code>{}</code></pre>", escape(&self.commands));
        }
        page.push_str("</details></td></tr>\n");
    }
}

/// Appends values, each after its name.
pub(super) fn terms(page: &mut String, terms: &[(String, String)]) {
    if terms.is_empty() {
        return;
    }
    page.push_str("<dl>\n");
    for (term, value) in terms {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(term), escape(value));
    }
    page.push_str("</dl>\n");
}

fn swatch(colour: usize) -> String {
    format!("<span class=\"swatch\" style=\"background:var(--series-{colour})\"></span>")
}
