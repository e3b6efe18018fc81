//! Habits of this code that a stranger stumbles over, counted in each room. The counts stand in a
//! list and may only fall; `docs/STYLE.md` says what to write instead.

use super::rust_text::RustText;
use super::{Fault, Tree};
use std::collections::BTreeMap;

/// The list: `room habit count` a row, sorted.
pub const ALLOWED_PATH: &str = "xtask/src/tidy/dialect.txt";

/// Names that say nothing about a value.
const EMPTY_NAMES: [&str; 6] = ["at", "has", "it", "of", "one", "told"];

/// How a first line of a doc comment does not begin: it leans on another one, or names nothing.
const FIRST_WORDS: [&str; 3] = ["The same", "What", "Who"];

/// Words that comments do without: a thing has a name, and a number a meaning.
const WORDS: [&str; 10] = [
    "goes on", "going on", "is told", "nobody", "so many", "so much", "somebody", "someone",
    "who has", "whoever",
];

/// Counts a habit in one file.
type Count = fn(&RustText) -> usize;

/// The habits by their names in the list.
const HABITS: [(&str, Count); 6] = [
    ("bool-match", bool_matches),
    ("doc-first-words", doc_first_words),
    ("empty-name", empty_names),
    ("swallowed-conversion", swallowed_conversions),
    ("tuple-let", tuple_lets),
    ("word", words),
];

/// Counts the habits of every Rust file, and compares them with the list.
pub fn check(tree: &Tree, allowed: &str) -> Vec<Fault> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let text = RustText::new(text);
        for (habit, count) in HABITS {
            *counts.entry((room(path), habit)).or_default() += count(&text);
        }
    }
    let mut limits: BTreeMap<(&str, &str), usize> = allowed.lines().filter_map(row).collect();
    let mut faults = Vec::new();
    for ((room, habit), count) in counts {
        let limit = limits.remove(&(room, habit)).unwrap_or(0);
        let message = if count > limit {
            format!("{room}: {habit}: {count} times; at most {limit}: see docs/STYLE.md")
        } else if count < limit {
            format!("{room}: {habit} is listed with {limit}: now {count}")
        } else {
            continue;
        };
        faults.push(Fault::new(ALLOWED_PATH, 0, message));
    }
    for (room, habit) in limits.into_keys() {
        let message = format!("{room}: {habit}: no such room or habit: remove the row");
        faults.push(Fault::new(ALLOWED_PATH, 0, message));
    }
    faults
}

fn row(line: &str) -> Option<((&str, &str), usize)> {
    let mut words = line.split_whitespace();
    let room = words.next()?;
    let habit = words.next()?;
    let count = words.next()?.parse().ok()?;
    Some(((room, habit), count))
}

/// The crate of a file, or its folder at the top.
fn room(path: &str) -> &str {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    let end = path.match_indices('/').nth(depth - 1).map_or(path.len(), |(end, _)| end);
    &path[..end]
}

/// `let (a, b) = (x, y);`: two lines are plainer.
fn tuple_lets(text: &RustText) -> usize {
    let is_tuple = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("let (") && line.contains(") = (")
    };
    text.code.lines().filter(is_tuple).count()
}

/// `match x { true => .., false => .. }`: `if` is plainer.
fn bool_matches(text: &RustText) -> usize {
    let is_arm = |line: &&str| line.trim_start().starts_with("true =>");
    text.code.lines().filter(is_arm).count()
}

/// A local or a closure's parameter with an empty name.
fn empty_names(text: &RustText) -> usize {
    let names = EMPTY_NAMES.iter();
    let forms = names
        .flat_map(|name| [format!("let {name} "), format!("let mut {name} "), format!("|{name}|")]);
    forms.map(|form| text.code.matches(&form).count()).sum()
}

/// A conversion that cannot fail, or must not, whose failure becomes a number.
fn swallowed_conversions(text: &RustText) -> usize {
    let is_swallowed = |line: &&str| line.contains("try_from(") && line.contains(".unwrap_or(");
    text.code.lines().filter(is_swallowed).count()
}

/// Doc comments whose first line does not stand alone.
fn doc_first_words(text: &RustText) -> usize {
    let mut is_first = true;
    let mut count = 0;
    for line in text.comments.lines() {
        let doc = line.trim_start().strip_prefix("/// ");
        let begins = |doc: &str| {
            FIRST_WORDS.iter().any(|words| {
                doc.strip_prefix(words).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            })
        };
        count += usize::from(is_first && doc.is_some_and(begins));
        is_first = !line.trim_start().starts_with("///");
    }
    count
}

/// Words in comments, also where a line ends within them.
fn words(text: &RustText) -> usize {
    let marks: &[char] = &['/', '!', ' ', '\n'];
    let plain: Vec<&str> = text.comments.split(marks).filter(|word| !word.is_empty()).collect();
    let plain = format!(" {} ", plain.join(" ").to_lowercase());
    let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let count = |words: &str| {
        let sought = format!(" {words}");
        let found = plain.match_indices(&sought);
        found.filter(|(at, found)| is_end(&plain[at + found.len()..])).count()
    };
    WORDS.iter().map(|words| count(words)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
//! A.
/// What it is.
/// What follows is fine.
fn f() {
    let (a, b) = (1, 2);
    let (c, d) = pair();
    let text = \"let (a, b) = (1, 2);\";
    match a > b {
        true => 1,
        false => 2,
    }
    // So many of them, as somebody said so
    // many times.
    let it = list.map(|at| u8::try_from(at).unwrap_or(0));
}
";

    #[test]
    fn habits_are_counted_in_code_and_comments() {
        let text = RustText::new(TEXT);
        let counts = HABITS.map(|(habit, count)| (habit, count(&text)));
        let expected = [
            ("bool-match", 1),
            ("doc-first-words", 1),
            ("empty-name", 2),
            ("swallowed-conversion", 1),
            ("tuple-let", 1),
            ("word", 3),
        ];
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_listed_count_may_only_fall() {
        let tree = Tree::from([("crates/a/src/lib.rs".to_owned(), TEXT.to_owned())]);
        let list = "crates/a bool-match 1\ncrates/a doc-first-words 1\ncrates/a empty-name 2\n\
            crates/a swallowed-conversion 1\n";
        let messages = |rest: &str| -> Vec<String> {
            let faults = check(&tree, &format!("{list}{rest}"));
            faults.iter().map(|fault| fault.message.clone()).collect()
        };
        assert_eq!(messages("crates/a tuple-let 1\ncrates/a word 3\n"), [""; 0]);
        let found = messages("crates/a tuple-let 2\ncrates/a word 2\ncrates/b word 1\n");
        assert_eq!(
            found,
            [
                "crates/a: tuple-let is listed with 2: now 1",
                "crates/a: word: 3 times; at most 2: see docs/STYLE.md",
                "crates/b: word: no such room or habit: remove the row",
            ]
        );
    }

    #[test]
    fn rooms_are_crates_and_folders() {
        let rooms = ["crates/store/src/local/mod.rs", "src/cmd/plan/mod.rs", "tests/docs.rs"];
        assert_eq!(rooms.map(room), ["crates/store", "src", "tests"]);
    }
}
