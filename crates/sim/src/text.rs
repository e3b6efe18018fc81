//! Formats numbers for people. Every table and chart of the laboratory prints with these functions.

use std::fmt::{Display, Write as _};

use evenkeel_core::units::ByteCount;

/// Formats `16000` as `16,000`.
#[must_use]
pub fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a rate with at most one decimal: `1,000`, `999.9`. Rates from 10,000 on have no decimal.
#[must_use]
pub fn rate(value: f64) -> String {
    let tenths = (value.max(0.0) * 10.0).round() as u64;
    if tenths.is_multiple_of(10) || tenths >= 100_000 {
        thousands((value.max(0.0)).round() as u64)
    } else {
        format!("{}.{}", thousands(tenths / 10), tenths % 10)
    }
}

/// Formats a ratio as a percentage with two or, if it is small, three decimals: `0.05` as `5.00 %`.
#[must_use]
pub fn percent(ratio: f64) -> String {
    let percent = ratio * 100.0;
    if percent.abs() < 1.0 { format!("{percent:.3} %") } else { format!("{percent:.2} %") }
}

/// Formats a latency with three significant digits and its unit: `28.1 us`, `10.7 ms`, `1.20 s`.
#[must_use]
pub fn latency(ns: u64) -> String {
    let (scale, unit) = match ns {
        0..1_000_000 => (1_000.0, "us"),
        1_000_000..1_000_000_000 => (1_000_000.0, "ms"),
        _ => (1_000_000_000.0, "s"),
    };
    let value = ns as f64 / scale;
    match value {
        v if v < 10.0 => format!("{v:.2} {unit}"),
        v if v < 100.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

/// Formats values as a line of blocks. Each step up is twice as much, beginning with the least
/// value; 0 is a space.
#[must_use]
pub fn blocks(values: &[u64]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let least = values.iter().copied().filter(|value| *value > 0).min().unwrap_or(1);
    let block = |value: &u64| match (value / least).checked_ilog2() {
        None => ' ',
        Some(doublings) => BLOCKS[(doublings as usize).min(BLOCKS.len() - 1)],
    };
    values.iter().map(block).collect()
}

/// Formats bytes in the largest binary unit that divides them: `256 KiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    ByteCount(count).to_string()
}

/// Formats a byte rate in MiB/s: `125 MiB/s`, `46.9 MiB/s`.
#[must_use]
pub fn byte_rate(bytes_per_second: u64) -> String {
    format!("{} MiB/s", rate(bytes_per_second as f64 / 1_048_576.0))
}

/// Formats a command line that a shell reads back as the same arguments.
#[must_use]
pub fn command_line<S: AsRef<str>>(arguments: &[S]) -> String {
    let quoted: Vec<String> = arguments.iter().map(|argument| quote(argument.as_ref())).collect();
    quoted.join(" ")
}

/// Quotes an argument only if it needs quotes, so that command lines stay readable.
fn quote(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:@%+,".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_string();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

/// Formats lines in columns as wide as their widest cell. Columns with `left` are aligned left.
pub fn aligned(lines: &[Vec<String>], left: &[bool]) -> String {
    let widths = widths(lines, left.len());
    let mut out = String::new();
    for line in lines {
        let mut row = String::new();
        for ((cell, &width), &left) in line.iter().zip(&widths).zip(left) {
            let cell = if left { format!("{cell:<width$}  ") } else { format!("{cell:>width$}  ") };
            row.push_str(&cell);
        }
        let _ = writeln!(out, "{}", row.trim_end());
    }
    out
}

/// Aligns the columns of `lines` under the first line, which is underlined.
pub fn columns(lines: &[Vec<String>], left: &[bool]) -> String {
    let rule = widths(lines, left.len()).into_iter().map(|width| "-".repeat(width));
    let rule = rule.collect::<Vec<_>>().join("  ");
    let text = aligned(lines, left);
    match text.split_once('\n') {
        Some((headline, rest)) => format!("{headline}\n{rule}\n{rest}"),
        None => text,
    }
}

fn widths(lines: &[Vec<String>], columns: usize) -> Vec<usize> {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    (0..columns).map(|column| width(column).unwrap_or(0)).collect()
}

/// Formats a line of CSV by RFC 4180, without its end. Cells are quoted if they need it.
pub fn csv_line<S: AsRef<str>>(cells: &[S]) -> String {
    let quoted = |cell: &S| {
        let cell = cell.as_ref();
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.to_owned()
        }
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",")
}

/// Renders columns as wide as their widest cell; columns of numbers are aligned to the right.
pub fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let titles = columns.iter().map(|title| (*title).to_owned()).collect();
    let mut lines = vec![titles];
    lines.extend(rows.iter().cloned());
    for line in &mut lines {
        line.resize(columns.len(), String::new());
    }
    // A number, with or without a unit; but not an address.
    let is_number = |text: &str| {
        let number = text.split(' ').next().unwrap_or_default();
        let starts_so = number.starts_with(|c: char| c.is_ascii_digit());
        text == "-" || (starts_so && number.parse::<f64>().is_ok())
    };
    let has_words = |column: usize| lines[1..].iter().any(|line| !is_number(&line[column]));
    let left: Vec<bool> = (0..columns.len()).map(has_words).collect();
    aligned(&lines, &left)
}

/// Renders CSV by RFC 4180 with plain newlines; a column's name is its title in lower case.
pub fn csv(columns: &[&str], rows: &[Vec<String>]) -> String {
    let titles = columns.iter().map(|title| title.to_lowercase().replace([' ', '/'], "_"));
    let mut text = csv_line(&titles.collect::<Vec<_>>()) + "\n";
    for row in rows {
        // A dash for "none" is for text only.
        let cells = row.iter().map(|cell| if cell == "-" { "" } else { cell.as_str() });
        text.push_str(&(csv_line(&cells.collect::<Vec<_>>()) + "\n"));
    }
    text
}

/// Formats seconds, rounded to the nearest of the smaller of two units: `90 s`, `12 min`, `1 h 6
/// min`, `2 days 3 h`.
#[must_use]
pub fn span(seconds: u64) -> String {
    let two = |number: u64, of: u64, name: &str, small: &str| match (number / of, number % of) {
        (whole, 0) => format!("{whole} {name}"),
        (whole, rest) => format!("{whole} {name} {rest} {small}"),
    };
    let minutes = seconds.saturating_add(30) / 60;
    let hours = seconds.saturating_add(1_800) / 3_600;
    match seconds {
        0..120 => format!("{seconds} s"),
        _ if minutes < 60 => format!("{minutes} min"),
        _ if minutes < 48 * 60 => two(minutes, 60, "h", "min"),
        _ => two(hours, 24, "days", "h"),
    }
}

/// Returns a number, or a dash for none.
pub fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Returns the line of a byte offset in a text, counted from 1.
#[must_use]
pub fn line_of(text: impl AsRef<[u8]>, at: usize) -> usize {
    text.as_ref().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

/// Returns the known word that is most similar to `word`; `None` if all differ too much.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong, and always one.
    let distance_max = (word.chars().count() / 3).max(1);
    known
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= distance_max)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the number of letters to insert, remove or replace to turn one word into the other
/// (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.replace('_', "-").chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.replace('_', "-").chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_and_not_cut_off() {
        let all = [0, 119, 120, 150, 3_569, 3_570, 3_960, 7_200, 172_769, 172_770, 2_592_000];
        let shown = [
            "0 s",
            "119 s",
            "2 min",
            "3 min",
            "59 min",
            "1 h",
            "1 h 6 min",
            "2 h",
            "47 h 59 min",
            "2 days",
            "30 days",
        ];
        assert_eq!(all.map(span), shown);
        assert_eq!((span(183_600).as_str(), span(u64::MAX).is_empty()), ("2 days 3 h", false));
    }

    #[test]
    fn each_block_is_twice_as_much() {
        assert_eq!(blocks(&[3, 5, 6, 12, 24, 0, 400, 90_000, 3]), "▁▁▂▃▄ ██▁");
        assert_eq!((blocks(&[]), blocks(&[0, 0])), (String::new(), "  ".to_owned()));
        assert_eq!(blocks(&[u64::MAX, 1]), "█▁");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(rate(999.94), "999.9");
        assert_eq!(rate(999.99), "1,000");
        assert_eq!(rate(2_999.96), "3,000");
        assert_eq!(rate(15_999.6), "16,000");
        assert_eq!(rate(-1.0), "0");
        assert_eq!(percent(0.000_42), "0.042 %");
        assert_eq!(percent(-0.051), "-5.10 %");
        assert_eq!(latency(28_140), "28.1 us");
        assert_eq!(latency(10_700_000), "10.7 ms");
        assert_eq!(latency(1_200_000_000), "1.20 s");
        assert_eq!(byte_rate(125 << 20), "125 MiB/s");
    }

    #[test]
    fn tables_and_lines_of_csv() {
        let lines = [["fruit", "n", ""], ["\u{df}loe", "12", ""]]
            .map(|line| line.map(String::from).to_vec());
        let left = [true, false, true];
        assert_eq!(aligned(&lines, &left), "fruit   n\n\u{df}loe   12\n");
        assert_eq!(columns(&lines, &left), "fruit   n\n-----  --  \n\u{df}loe   12\n");
        assert_eq!(columns(&[], &left), "");
        assert_eq!(csv_line(&["fig", "plum, blue", "3\"", ""]), "fig,\"plum, blue\",\"3\"\"\",");
    }

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let near = |word| nearest(word, ["listen", "nbd-listen", "region"].into_iter());
        assert_eq!(near("lisen"), Some("listen"));
        assert_eq!(near("nbd_listen"), Some("nbd-listen"));
        assert_eq!(near("regoin"), Some("region"));
        assert_eq!(near("zone"), None);
        assert_eq!(near(""), None);
    }

    #[test]
    fn commands_can_be_pasted() {
        assert_eq!(
            command_line(&["fio", "--uri=nbd+unix:///?socket=/tmp/a b", "it's"]),
            r"fio '--uri=nbd+unix:///?socket=/tmp/a b' 'it'\''s'"
        );
    }
}
