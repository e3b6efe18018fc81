//! A test that is kept for `cargo x ci --full` must name a test of the same rule that every change
//! runs: `#[ignore = "full: path/to/file.rs::name stays"]`. No test is ignored for another reason.

use super::rust_text::RustText;
use super::{Fault, Tree};
use std::collections::BTreeMap;

const ATTRIBUTE: &str = "#[ignore";

/// A test that is ignored, by its file and name.
pub type Ignored<'a> = BTreeMap<(&'a str, String), Reason>;

/// The reason, and its place.
pub struct Reason {
    line: usize,
    text: String,
}

/// Returns every ignored test of the tree.
pub fn ignored(tree: &Tree) -> Ignored<'_> {
    let mut found = Ignored::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        // The attribute is found in code; its reason is a string, which is blank there.
        let code = RustText::new(text).code;
        let columns: Vec<char> = text.chars().collect();
        let code_columns: Vec<char> = code.chars().collect();
        for (at, _) in code.match_indices(ATTRIBUTE) {
            let at = code[..at].chars().count();
            let end = code_columns[at..].iter().position(|c| *c == ']').map_or(at, |n| at + n);
            let attribute: String = columns[at..end].iter().collect();
            let rest: String = code_columns[end..].iter().collect();
            let line = columns[..at].iter().filter(|c| **c == '\n').count() + 1;
            let name = rest.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
            let name = name.map_or("", |(name, _)| name).to_owned();
            let text = attribute.split('"').nth(1).map_or_else(String::new, unbroken);
            found.insert((path.as_str(), name), Reason { line, text });
        }
    }
    found
}

/// Returns a string's text without its line breaks.
fn unbroken(text: &str) -> String {
    text.split("\\\n").map(str::trim_start).collect()
}

/// Checks the reason of each ignored test.
pub fn check(tree: &Tree, ignored: &Ignored<'_>) -> Vec<Fault> {
    let fault = |((path, name), reason): (&(&str, String), &Reason)| {
        let message = wrong(tree, ignored, &reason.text)?;
        Some(Fault::new(path, reason.line, format!("test {name} is ignored: {message}")))
    };
    ignored.iter().filter_map(fault).collect()
}

/// Returns the fault of a reason; `None` if there is none.
fn wrong(tree: &Tree, ignored: &Ignored<'_>, reason: &str) -> Option<String> {
    let stays = reason.strip_prefix("full: ").and_then(|rest| rest.strip_suffix(" stays"));
    let Some((file, name)) = stays.and_then(|stays| stays.split_once("::")) else {
        return Some("its reason must be \"full: path/to/file.rs::name stays\"".to_owned());
    };
    let is_there = tree.get(file).is_some_and(|text| text.contains(&format!("fn {name}(")));
    if !is_there {
        return Some(format!("there is no test {name} in {file}"));
    }
    let is_kept = ignored.keys().any(|(path, of)| *path == file && of == name);
    is_kept.then(|| format!("{name} in {file} is ignored, too"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(reason: &str) -> Vec<String> {
        let text = format!(
            "//! A.\n// #[ignore]\n#[test]\nfn short() {{}}\n\n#[test]\n#[ignore{reason}]\nfn \
             long() {{}}\n"
        );
        let tree = Tree::from([("tests/a.rs".to_owned(), text)]);
        check(&tree, &ignored(&tree)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ignored_test_must_name_the_test_that_stays() {
        assert_eq!(messages(" = \"full: tests/a.rs::short stays\""), [""; 0]);
        assert_eq!(messages(" = \"full: tests/a.rs::\\\n    short stays\""), [""; 0]);
        for reason in ["", " = \"slow\"", " = \"full: tests/a.rs stays\""] {
            assert_eq!(
                messages(reason),
                ["tests/a.rs:7: test long is ignored: its reason must be \
                  \"full: path/to/file.rs::name stays\""]
            );
        }
        let gone = messages(" = \"full: tests/a.rs::gone stays\"");
        assert_eq!(
            gone,
            ["tests/a.rs:7: test long is ignored: there is no test gone in tests/a.rs"]
        );
        let itself = messages(" = \"full: tests/a.rs::long stays\"");
        assert!(itself[0].ends_with("long in tests/a.rs is ignored, too"), "{itself:?}");
    }
}
