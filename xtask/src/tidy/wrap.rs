//! `cargo x tidy --fix`: breaks comment lines that are too wide. rustfmt leaves comments alone.

use super::Tree;
use super::source::COLUMNS_MAX;
use std::path::Path;

/// Writes every Rust file below `folders` (everywhere if none is named) that has comment lines to
/// break.
pub fn fix(root: &Path, tree: &Tree, folders: &[&str]) -> Result<(), String> {
    let is_below = |path: &str| folders.is_empty() || folders.iter().any(|f| path.starts_with(f));
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs") && is_below(path)) {
        let wrapped = wrap(text);
        if wrapped != *text {
            let file = root.join(path);
            std::fs::write(&file, wrapped)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            println!("wrapped {path}");
        }
    }
    Ok(())
}

/// A line taken apart: indentation and comment mark, then the rest.
fn comment(line: &str) -> Option<(&str, &str)> {
    let indent = line.len() - line.trim_start().len();
    let marks = ["//!", "///", "//"];
    let mark = marks.iter().find(|mark| line[indent..].starts_with(*mark))?;
    Some(line.split_at(indent + mark.len()))
}

/// What is too wide moves down: to the front of the paragraph's next line, or to a new one.
fn wrap(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines: std::collections::VecDeque<String> = text.lines().map(str::to_owned).collect();
    let mut fenced = false;
    while let Some(line) = lines.pop_front() {
        let parts = comment(&line);
        fenced ^= parts.is_some_and(|(_, words)| words.trim_start().starts_with("```"));
        match parts.filter(|_| !fenced).and_then(|(mark, words)| broken(mark, words)) {
            None => out.push_str(&line),
            Some((kept, moved)) => {
                out.push_str(&kept);
                let mark = parts.map_or("", |(mark, _)| mark);
                let next = lines.front().and_then(|next| comment(next));
                match next.filter(|(next, words)| *next == mark && continues(words)) {
                    Some((_, words)) => {
                        let indent = words.len() - words.trim_start().len();
                        let (indent, words) = words.split_at(indent);
                        let joined = format!("{mark}{indent}{moved} {words}");
                        lines.pop_front();
                        lines.push_front(joined);
                    }
                    None => {
                        let indent = continuation_indent(parts.map_or("", |(_, words)| words));
                        lines.push_front(format!("{mark}{indent}{moved}"));
                    }
                }
            }
        }
        out.push('\n');
    }
    out
}

/// The part of a comment line that fits, and the words that do not. None if all fits, or nothing
/// can be broken: tables, addresses, words without an end.
fn broken(mark: &str, words: &str) -> Option<(String, String)> {
    let is_fixed = words.trim_start().starts_with('|') || words.contains("://");
    if is_fixed || mark.chars().count() + words.chars().count() <= COLUMNS_MAX {
        return None;
    }
    let columns_left = COLUMNS_MAX - mark.chars().count();
    let starts = words.len() - words.trim_start().len();
    let fits = words.char_indices().nth(columns_left).map_or(words.len(), |(at, _)| at);
    let at = words[..=fits].rfind(' ').filter(|at| *at > starts)?;
    let (kept, moved) = words.split_at(at);
    Some((format!("{mark}{}", kept.trim_end()), moved.trim().to_owned()))
}

/// Whether a comment line goes on with the sentence of the one before.
fn continues(words: &str) -> bool {
    let words = words.trim_start();
    let is_numbered = words.split_once(". ").is_some_and(|(n, _)| n.parse::<u32>().is_ok());
    let starts_anew = ["- ", "* ", "#", "|", "```", ">", "["];
    !words.is_empty() && !is_numbered && !starts_anew.iter().any(|start| words.starts_with(start))
}

/// The blanks before a new line of the same paragraph: below the text of a list's item.
fn continuation_indent(words: &str) -> String {
    let blanks = words.len() - words.trim_start().len();
    let is_item = ["- ", "* "].iter().any(|mark| words.trim_start().starts_with(mark));
    " ".repeat(blanks + if is_item { 2 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` words of ten columns with their blank.
    fn words(count: usize) -> String {
        vec!["123456789"; count].join(" ")
    }

    #[test]
    fn what_fits_stays() {
        let text = format!("//! {}\nfn f() {{}} // {}\n", words(9), words(12));
        assert_eq!(wrap(&text), text);
    }

    #[test]
    fn what_does_not_moves_to_the_next_line() {
        let text = format!("    /// {} tail\n    /// end.\n    fn f() {{}}\n", words(9));
        let wrapped = format!("    /// {}\n    /// tail end.\n    fn f() {{}}\n", words(9));
        assert_eq!(wrap(&text), wrapped);
        assert_eq!(wrap(&wrapped), wrapped);
    }

    #[test]
    fn paragraphs_lists_tables_and_fences_keep_their_shape() {
        let text = format!("/// {} tail\n///\n/// - {}\n/// - b\n", words(10), words(10));
        let wrapped = format!(
            "/// {}\n/// 123456789 tail\n///\n/// - {}\n///   123456789\n/// - b\n",
            words(9),
            words(9)
        );
        assert_eq!(wrap(&text), wrapped);
        let text = format!("/// | {} |\n/// ```\n/// {}\n/// ```\n", words(11), words(11));
        assert_eq!(wrap(&text), text);
        let text = format!("// {}\n", "x".repeat(120));
        assert_eq!(wrap(&text), text);
    }

    #[test]
    fn many_lines_too_wide_are_broken_in_turn() {
        let text = format!("/// {}\n/// {}\n", words(12), words(12));
        let lines: Vec<usize> = wrap(&text).lines().map(|l| l.split(' ').count() - 1).collect();
        assert_eq!(lines, [9, 9, 6]);
    }
}
