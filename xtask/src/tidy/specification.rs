//! Checks that each numbered promise in docs/SPECIFICATION.md names the tests that enforce it, or
//! says *pending*. At least one of these tests, and at least one of the black-box tests among them,
//! must run with every change: it is not kept for `cargo x ci --full`.
//!
//! A promise is a line that starts with its number (`1. `, `### 1. ` or a table row `| 1 |`) and
//! all that follows up to the next promise or heading. A test is named as `path/to/file.rs::name`
//! in backticks.
//!
//! The threat model in docs/operating/security.md names its tests in the same form: each row of a
//! table and each item of a list has one, or says *not defended*.

use super::kept_for_full::Ignored;
use super::{Fault, Tree};

const PATH: &str = "docs/SPECIFICATION.md";
const PENDING: &str = "*pending*";
const THREATS: &str = "docs/operating/security.md";
const THREATS_HEADING: &str = "## Threat model";
const NOT_DEFENDED: &str = "*not defended*";

/// Checks the order of the numbers, and that each promise has tests.
pub fn check(tree: &Tree, ignored: &Ignored<'_>) -> Vec<Fault> {
    let Some(text) = tree.get(PATH) else {
        return vec![Fault::new(PATH, 0, "is missing")];
    };
    let promises = promises(text);
    if promises.is_empty() {
        return vec![Fault::new(PATH, 0, "holds no numbered promise")];
    }
    let mut faults = Vec::new();
    for (promise, expected) in promises.iter().zip(1..) {
        let Promise { number, line, text } = promise;
        if *number != expected {
            let message = format!("promise {number} where {expected} comes next");
            faults.push(Fault::new(PATH, *line, message));
        }
        let tests = tests(text);
        if tests.is_empty() && !text.contains(PENDING) {
            let message =
                format!("promise {number} names no test (`file.rs::name`) and is not {PENDING}");
            faults.push(Fault::new(PATH, *line, message));
        }
        let is_run = |(file, name): &(&str, &str)| {
            !ignored.keys().any(|(path, of)| path == file && of == name)
        };
        for (kind, beginning) in [("test", ""), ("black-box test", "tests/")] {
            let mut of_kind =
                tests.iter().filter(|(file, _)| file.starts_with(beginning)).peekable();
            if of_kind.peek().is_some() && !of_kind.any(is_run) {
                let message =
                    format!("promise {number}: every {kind} is kept for cargo x ci --full");
                faults.push(Fault::new(PATH, *line, message));
            }
        }
        for (file, name) in tests.into_iter().filter(|test| !exists(tree, test)) {
            let message = format!("promise {number}: no test {name} in {file}");
            faults.push(Fault::new(PATH, *line, message));
        }
    }
    faults
}

fn exists(tree: &Tree, (file, name): &(&str, &str)) -> bool {
    tree.get(*file).is_some_and(|source| source.contains(&format!("fn {name}(")))
}

/// Checks that each line of the threat model has a test, or says that there is no defence.
pub fn check_threats(tree: &Tree) -> Vec<Fault> {
    let Some(text) = tree.get(THREATS) else {
        return vec![Fault::new(THREATS, 0, "is missing")];
    };
    let lines = threats(text);
    if lines.is_empty() {
        let message = format!("has no row and no item under \"{THREATS_HEADING}\"");
        return vec![Fault::new(THREATS, 0, message)];
    }
    let mut faults = Vec::new();
    for (line, text) in lines {
        let tests = tests(&text);
        if tests.is_empty() && !text.contains(NOT_DEFENDED) {
            let message = format!("names no test (`file.rs::name`) and is not {NOT_DEFENDED}");
            faults.push(Fault::new(THREATS, line, message));
        }
        for (file, name) in tests.into_iter().filter(|test| !exists(tree, test)) {
            faults.push(Fault::new(THREATS, line, format!("no test {name} in {file}")));
        }
    }
    faults
}

/// Returns the rows of tables and the items of lists of the threat model, with the numbers of their
/// lines.
fn threats(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut is_within = false;
    let mut is_item = false;
    let mut lines = text.lines().zip(1..).peekable();
    while let Some((content, line)) = lines.next() {
        if content.starts_with("## ") {
            is_within = content == THREATS_HEADING;
        }
        let is_rule = |content: &str| content.starts_with("| ---");
        let is_head = lines.peek().is_some_and(|(next, _)| is_rule(next));
        let is_row = content.starts_with("| ") && !is_rule(content) && !is_head;
        let continues = is_item && content.starts_with("  ");
        is_item = content.starts_with("- ") || continues;
        match found.last_mut() {
            Some((_, item)) if is_within && continues => item.push_str(content),
            _ if is_within && (is_row || is_item) => found.push((line, content.to_owned())),
            _ => {}
        }
    }
    found
}

struct Promise {
    number: u32,
    line: usize,
    text: String,
}

fn promises(text: &str) -> Vec<Promise> {
    let mut promises: Vec<Promise> = Vec::new();
    let mut within = false;
    for (content, line) in text.lines().zip(1..) {
        if let Some(number) = number(content) {
            promises.push(Promise { number, line, text: String::new() });
            within = true;
        } else if content.starts_with('#') {
            within = false;
        }
        if let Some(promise) = promises.last_mut().filter(|_| within) {
            promise.text.push_str(content);
            promise.text.push('\n');
        }
    }
    promises
}

/// Returns the number that a line starts with, if it starts a promise.
fn number(line: &str) -> Option<u32> {
    let bare = line.trim_start_matches('#').trim_start_matches('|').trim_start_matches([' ', '*']);
    // Nested items of a list belong to the promise that contains them.
    if line.starts_with(' ') {
        return None;
    }
    let digits = bare.len() - bare.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, rest) = bare.split_at(digits);
    let ends = rest.starts_with(". ") || (line.starts_with('|') && rest.starts_with(" |"));
    if ends { number.parse().ok() } else { None }
}

/// Returns the tests that a text names, as file and function.
fn tests(text: &str) -> Vec<(&str, &str)> {
    let spans = text.split('`').skip(1).step_by(2);
    spans
        .filter_map(|span| span.split_once("::").filter(|(file, _)| file.ends_with(".rs")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::kept_for_full::ignored;
    use super::*;

    fn messages(specification: &str) -> Vec<String> {
        let text = "fn ceiling() {}\n#[ignore]\nfn long() {}\n";
        let tree = Tree::from([
            (PATH.to_owned(), specification.to_owned()),
            ("tests/promise.rs".to_owned(), text.to_owned()),
            ("crates/a.rs".to_owned(), "fn exact() {}\n".to_owned()),
        ]);
        check(&tree, &ignored(&tree)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_promise_has_a_test_or_is_pending() {
        let text = "# Promises\n\n1. **Ceiling.** So much.\n   `tests/promise.rs::ceiling`\n\
                    2. **Floor.** *pending*\n";
        assert_eq!(messages(text), [""; 0]);
        let table = "| 1 | Ceiling | `tests/promise.rs::ceiling` |\n| 2 | Floor | *pending* |\n";
        assert_eq!(messages(table), [""; 0]);
        let headings = "## 1. Ceiling\nSo much.\n\n`tests/promise.rs::ceiling`\n";
        assert_eq!(messages(headings), [""; 0]);
    }

    #[test]
    fn a_promise_whose_tests_are_all_kept_for_full_is_a_fault() {
        let long = "`tests/promise.rs::long`";
        assert_eq!(messages(&format!("1. A. {long} `tests/promise.rs::ceiling`\n")), [""; 0]);
        let begin = "docs/SPECIFICATION.md:1: promise 1: every";
        let end = "is kept for cargo x ci --full";
        let [test, live] = ["test", "black-box test"].map(|kind| format!("{begin} {kind} {end}"));
        assert_eq!(messages(&format!("1. A. {long}\n")), [test, live.clone()]);
        assert_eq!(messages(&format!("1. A. {long} `crates/a.rs::exact`\n")), [live]);
    }

    #[test]
    fn a_threat_has_a_test_or_is_not_defended() {
        let faults = |page: &str| -> Vec<String> {
            let tree = Tree::from([
                (THREATS.to_owned(), page.to_owned()),
                ("tests/tls.rs".to_owned(), "fn refused() {}\n".to_owned()),
            ]);
            check_threats(&tree).iter().map(ToString::to_string).collect()
        };
        let page = "- Before.\n## Threat model\nWords.\n\n| who | test |\n| --- | --- |\n\
                    | a | `tests/tls.rs::refused` |\n\n- B: *not\n  defended*.\n- C, and\n  \
                    `tests/tls.rs::refused`.\n\n## TLS\n- After.\n| d |\n";
        let begin = "docs/operating/security.md";
        let none = "names no test (`file.rs::name`) and is not *not defended*";
        assert_eq!(faults(page), [format!("{begin}:9: {none}")], "the mark is on one line");
        let page = page.replace("*not\n  defended*", "*not defended*");
        assert_eq!(faults(&page), [""; 0]);
        let other = page.replace("C, and\n  `tests/tls.rs::refused`", "C, `tests/tls.rs::gone`");
        assert_eq!(faults(&other), [format!("{begin}:10: no test gone in tests/tls.rs")]);
        let bare = page.replace("| a | `tests/tls.rs::refused` |", "| a | |");
        assert_eq!(faults(&bare), [format!("{begin}:7: {none}")]);
        assert_eq!(faults("# Security\n").len(), 1);
    }

    #[test]
    fn promise_without_a_test_is_a_fault() {
        assert_eq!(
            messages("1. Ceiling.\n3. Floor. `tests/promise.rs::floor`\n"),
            [
                "docs/SPECIFICATION.md:1: promise 1 names no test (`file.rs::name`) \
                 and is not *pending*",
                "docs/SPECIFICATION.md:2: promise 3 where 2 comes next",
                "docs/SPECIFICATION.md:2: promise 3: no test floor in tests/promise.rs",
            ]
        );
        assert_eq!(messages("Words.\n"), ["docs/SPECIFICATION.md: holds no numbered promise"]);
        assert_eq!(check(&Tree::new(), &Ignored::new()).len(), 1);
    }
}
