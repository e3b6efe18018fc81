//! Figures as tables: for people, and as values for programs.

use std::fmt::Write as _;

use serde::Serialize;

/// A few tables that belong together.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Table {
    /// Seed of the noise; the same seed gives the same figures.
    pub seed: u64,
    /// In the order they are printed.
    pub sections: Vec<Section>,
}

/// One table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Section {
    /// What was measured.
    pub title: String,
    /// Column headings; the first column holds names, the others figures.
    pub columns: Vec<String>,
    /// As many cells each as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// One cell.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cell {
    /// As it is printed.
    pub text: String,
    /// The figure, where it is one: ratios, nanoseconds, counts or bytes a second.
    pub value: Option<f64>,
}

impl Cell {
    /// Words.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), value: None }
    }

    /// A figure and how it reads.
    #[must_use]
    pub fn figure(value: f64, text: String) -> Self {
        Self { text, value: Some(value) }
    }

    /// Nothing was measured.
    #[must_use]
    pub fn none() -> Self {
        Self::text("-")
    }
}

impl Table {
    /// For a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for section in &self.sections {
            let _ = writeln!(out, "{}", section.title);
            section.write(&mut out);
            out.push('\n');
        }
        let _ = writeln!(out, "seed {}", self.seed);
        out
    }

    /// One line a figure: section, row, column, value. Names are quoted where they need it.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut out = String::from("section,row,column,value\n");
        for section in &self.sections {
            for row in &section.rows {
                for (column, cell) in section.columns.iter().zip(row).skip(1) {
                    let value = cell.value.map_or_else(String::new, |value| value.to_string());
                    let names = [section.title.as_str(), row[0].text.as_str(), column];
                    let [section, row, column] = names.map(quoted);
                    let _ = writeln!(out, "{section},{row},{column},{value}");
                }
            }
        }
        out
    }
}

fn quoted(name: &str) -> String {
    if name.contains([',', '"']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.to_string()
    }
}

impl Section {
    fn write(&self, out: &mut String) {
        let lines: Vec<Vec<&str>> =
            std::iter::once(self.columns.iter().map(String::as_str).collect())
                .chain(
                    self.rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect()),
                )
                .collect();
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|c| c.chars().count()).max()
        };
        let widths: Vec<usize> =
            (0..self.columns.len()).map(|column| width(column).unwrap_or(0)).collect();
        for (number, line) in lines.iter().enumerate() {
            let mut text = String::new();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(text, "{cell:<width$}  "),
                    _ => write!(text, "{cell:>width$}  "),
                };
            }
            let _ = writeln!(out, "{}", text.trim_end());
            if number == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                let _ = writeln!(out, "{}", rule.join("  "));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_as_text_and_as_csv() {
        let row = |name: &str, value: f64| {
            vec![Cell::text(name), Cell::figure(value, format!("{value:+.1} %"))]
        };
        let section = Section {
            title: "Errors".to_string(),
            columns: vec!["scheme".to_string(), "mean".to_string()],
            rows: vec![row("a, b", -4.5), row("c", 0.0), vec![Cell::text("d"), Cell::none()]],
        };
        let table = Table { seed: 7, sections: vec![section] };
        let text = "Errors\nscheme    mean\n------  ------\na, b    -4.5 %\n\
                    c       +0.0 %\nd            -\n\nseed 7\n";
        assert_eq!(table.to_text(), text);
        let csv = "section,row,column,value\nErrors,\"a, b\",mean,-4.5\nErrors,c,mean,0\n\
                   Errors,d,mean,\n";
        assert_eq!(table.to_csv(), csv);
    }
}
