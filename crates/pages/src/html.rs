//! The frame and the elements of every page: no scripts, no other files, and readable when printed.

use std::fmt::Write as _;

/// The page's style, with the colours that the charts refer to.
pub const STYLE: &str = include_str!("style.css");

/// Returns the part of a page before its first section.
#[must_use]
pub fn open_page(title: &str) -> String {
    let mut page = String::with_capacity(1 << 20);
    let title = escape(title);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title} · Evenkeel</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    );
    page
}

/// Appends the part of a page after its last section.
pub fn end_page(page: &mut String) {
    page.push_str("</main>\n</body>\n</html>\n");
}

/// Returns a column of text: its heading, and the class of its cells.
#[must_use]
pub fn text_column(heading: &str) -> (&str, &'static str) {
    (heading, "")
}

/// Returns a column of numbers, which are aligned to the right.
#[must_use]
pub fn number_column(heading: &str) -> (&str, &'static str) {
    (heading, " class=\"number\"")
}

/// Appends the beginning of a table, with its headings.
pub fn open_table(page: &mut String, class: &str, columns: &[(&str, &'static str)]) {
    let _ = write!(page, "<div class=\"scroll\"><table class=\"{class}\">\n<thead><tr>");
    for (heading, class) in columns {
        let _ = write!(page, "<th scope=\"col\"{class}>{heading}</th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
}

/// Appends the end of a table.
pub fn close_table(page: &mut String) {
    page.push_str("</tbody>\n</table></div>\n");
}

/// Maximum rows of the numbers behind a chart.
const NUMBERS_MAX: usize = 600;

/// Appends a table with the values of a chart: a column for each series, and named rows.
pub fn numbers_behind<T>(
    page: &mut String,
    (of, row_name): (&str, &dyn Fn(usize) -> String),
    columns: &[(&str, &[T])],
    cell: impl Fn(&T) -> String,
) {
    page.push_str("<details>\n<summary>The numbers behind this chart</summary>\n");
    let names: Vec<String> = columns.iter().map(|(name, _)| escape(name)).collect();
    let mut headings = vec![number_column(of)];
    headings.extend(names.iter().map(|name| number_column(name)));
    open_table(page, "numbers", &headings);
    let longest = columns.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    for row in 0..longest.min(NUMBERS_MAX) {
        let name = row_name(row);
        let _ = write!(page, "<tr><th scope=\"row\" class=\"number\">{name}</th>");
        for (_, values) in columns {
            let shown = values.get(row).map_or_else(dash, &cell);
            let _ = write!(page, "<td class=\"number\">{shown}</td>");
        }
        page.push_str("</tr>\n");
    }
    close_table(page);
    if longest > NUMBERS_MAX {
        note(page, &format!("The first {NUMBERS_MAX} of {longest}; all are in the JSON."));
    }
    page.push_str("</details>\n");
}

/// Appends a chart with its caption.
pub fn figure(page: &mut String, svg: &str, caption: &str) {
    let _ = writeln!(page, "<figure>{svg}<figcaption>{caption}</figcaption></figure>");
}

/// Appends a paragraph in small letters.
pub fn note(page: &mut String, text: &str) {
    let _ = writeln!(page, "<p class=\"note\">{text}</p>");
}

/// Returns the sign of a value that is not known.
#[must_use]
pub fn dash() -> String {
    "–".to_string()
}

/// Escapes any text for HTML content and attribute values.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}
