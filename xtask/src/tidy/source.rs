//! Rules on single lines: the description at the top of each Rust file, the width, and no leftover
//! notes.

use super::Fault;
use super::rust_text::RustText;

/// The widest line, in characters.
pub const COLUMNS_MAX: usize = 100;

/// Notes of unfinished work, which belong in an issue.
const NOTES: [&str; 3] = ["FIXME", "TODO", "XXX"];

/// Calls for debugging. Clippy refuses them, too, but not in code that is configured out.
const DEBUGGING: [&str; 3] = ["dbg!", "todo!", "unimplemented!"];

/// Checks one file of the tree.
pub fn check(path: &str, text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let is_rust = path.ends_with(".rs");
    if is_rust && !text.starts_with("//!") {
        let message = "starts without a `//!` sentence that says what the file is for";
        faults.push(Fault::new(path, 1, message));
    }
    let is_script = path.ends_with(".py") || path.ends_with(".sh") || path == ".ci/run";
    if is_rust || is_script {
        faults.extend(wide_lines(path, text));
    }
    if is_rust {
        let split = RustText::new(text);
        faults.extend(words(path, &split.comments, &NOTES, "file an issue instead"));
        faults.extend(words(path, &split.code, &DEBUGGING, "remove it"));
    } else if is_script || path.ends_with(".toml") || path == "Makefile" {
        faults.extend(words(path, text, &NOTES, "file an issue instead"));
    }
    faults
}

fn wide_lines(path: &str, text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let columns = line.chars().count();
        // An address cannot be wrapped.
        if columns > COLUMNS_MAX && !line.contains("://") {
            let message = format!("{columns} columns; at most {COLUMNS_MAX}");
            faults.push(Fault::new(path, number, message));
        }
    }
    faults
}

fn words(path: &str, text: &str, words: &[&str], remedy: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        for word in words.iter().filter(|word| has_word(line, word)) {
            faults.push(Fault::new(path, number, format!("{word}: {remedy}")));
        }
    }
    faults
}

/// Returns whether `word` is in `line` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(path, text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_rust_file_says_what_it_is_for() {
        assert_eq!(messages("a.rs", "//! Sums.\n\nfn f() {}\n"), [""; 0]);
        let fault = "a.rs:1: starts without a `//!` sentence that says what the file is for";
        assert_eq!(messages("a.rs", "fn f() {}\n"), [fault]);
    }

    #[test]
    fn lines_are_at_most_100_columns() {
        let exact = format!("//! {}\n", "é".repeat(96));
        assert_eq!(messages("a.rs", &exact), [""; 0]);
        let wide = format!("//! {}\n", "e".repeat(97));
        assert_eq!(messages("a.rs", &wide), ["a.rs:1: 101 columns; at most 100"]);
        let address = format!("//! https://example.org/{}\n", "e".repeat(97));
        assert_eq!(messages("a.rs", &address), [""; 0]);
        assert_eq!(messages("a.md", &wide), [""; 0], "prose is not broken by hand");
    }

    #[test]
    fn no_note_to_self_is_left_behind() {
        let fault = "a.rs:2: TODO: file an issue instead";
        assert_eq!(messages("a.rs", "//! A.\n// TODO: b\n"), [fault]);
        assert_eq!(messages("a.rs", "//! A.\nconst A: &str = \"TODO\";\n"), [""; 0]);
        assert_eq!(messages("a.rs", "//! A.\n// METODOS\n"), [""; 0]);
        assert_eq!(messages("Makefile", "# FIXME\n"), ["Makefile:1: FIXME: file an issue instead"]);
    }

    #[test]
    fn no_debugging_is_left_behind() {
        assert_eq!(messages("a.rs", "//! A.\nfn f() { dbg!(1); }\n"), ["a.rs:2: dbg!: remove it"]);
        assert_eq!(messages("a.rs", "//! Not dbg!(1).\n"), [""; 0]);
    }
}
