//! The metrics and labels that an expression of PromQL names. promtool checks its grammar.

use std::collections::BTreeSet;

/// Operators that stand between two metrics.
const OPERATORS: [&str; 6] = ["Inf", "and", "bool", "offset", "or", "unless"];
/// Words before a list of labels.
const LISTS: [&str; 6] = ["by", "group_left", "group_right", "ignoring", "on", "without"];
/// Functions whose result has the labels of `by` and no others.
const AGGREGATIONS: [&str; 6] = ["avg", "count", "max", "min", "sum", "topk"];

/// A metric that an expression selects.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selector {
    pub name: String,
    /// Label and value; a regular expression has several values with `|` between them.
    pub matchers: Vec<(String, String)>,
    /// The function that gets it as its first argument.
    pub function: Option<String>,
}

/// The metrics and labels that an expression names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    pub selectors: Vec<Selector>,
    /// Labels by which metrics are matched or grouped.
    pub listed: BTreeSet<String>,
    /// Labels of the result, if it is grouped.
    pub grouped: Option<BTreeSet<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token<'a> {
    Word(&'a str),
    Text(&'a str),
    Mark(char),
}

/// Returns words, quoted texts and marks, without numbers and ranges.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_in_word = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
        let length = match first {
            '"' => {
                let mut is_escaped = false;
                let is_end = |c: char| {
                    let is_end = c == '"' && !is_escaped;
                    is_escaped = c == '\\' && !is_escaped;
                    is_end
                };
                rest[1..].find(is_end).expect("a text ends") + 2
            }
            '[' => rest.find(']').expect("a range ends") + 1,
            _ if is_in_word(first) => rest.find(|c| !is_in_word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        match first {
            '"' => tokens.push(Token::Text(&token[1..length - 1])),
            '[' | '0'..='9' => {}
            _ if is_in_word(first) => tokens.push(Token::Word(token)),
            _ => tokens.push(Token::Mark(first)),
        }
        rest = after.trim_start();
    }
    tokens
}

/// Returns the metrics and labels that an expression names.
pub fn names(text: &str) -> Names {
    let tokens = tokens(text);
    let mut names = Names::default();
    let mut label = None;
    let mut list = None;
    let mut is_aggregated = false;
    for (index, token) in tokens.iter().enumerate() {
        let before = &tokens[..index];
        let next = tokens.get(index + 1);
        match *token {
            Token::Mark('{') => label = Some(""),
            Token::Mark('}') => label = None,
            Token::Mark(')') => list = None,
            Token::Mark(_) => {}
            Token::Word(word) if label.is_some() => label = Some(word),
            Token::Text(value) => {
                let selector = names.selectors.last_mut().expect("a name before the matchers");
                let label = label.expect("a text in braces");
                selector.matchers.push((label.to_owned(), value.to_owned()));
            }
            Token::Word(word) if LISTS.contains(&word) => {
                list = Some(word);
                if word == "by" {
                    names.grouped.get_or_insert_default();
                }
            }
            Token::Word(word) if list.is_some() => {
                names.listed.insert(word.to_owned());
                if list == Some("by") {
                    names.grouped.get_or_insert_default().insert(word.to_owned());
                }
            }
            Token::Word(word) if OPERATORS.contains(&word) => {}
            Token::Word(word) if is_function(next) => {
                is_aggregated |= AGGREGATIONS.contains(&word);
            }
            Token::Word(word) => {
                let function = match before {
                    [.., Token::Word(function), Token::Mark('(')] => Some((*function).to_owned()),
                    _ => None,
                };
                let name = word.to_owned();
                names.selectors.push(Selector { name, function, ..Selector::default() });
            }
        }
    }
    if is_aggregated {
        names.grouped.get_or_insert_default();
    }
    names
}

/// Returns whether the word before is a function: its arguments or its labels follow.
fn is_function(next: Option<&Token<'_>>) -> bool {
    match next {
        Some(Token::Mark('(')) => true,
        Some(Token::Word(word)) => LISTS.contains(word),
        _ => false,
    }
}

#[test]
fn names_and_labels_are_found() {
    let text = "sum by (le, a) (rate(x_bucket{op=\"read\",v=~\"$v\"}[5m])) > 0.5\nunless on (a) y";
    let found = names(text);
    let pair = |label: &str, value: &str| (label.to_owned(), value.to_owned());
    let rate = Selector {
        name: "x_bucket".into(),
        matchers: vec![pair("op", "read"), pair("v", "$v")],
        function: Some("rate".into()),
    };
    assert_eq!(found.selectors, [rate, Selector { name: "y".into(), ..Selector::default() }]);
    assert_eq!(found.listed, BTreeSet::from(["a".to_owned(), "le".to_owned()]));
    assert_eq!(found.grouped, Some(found.listed.clone()));
    assert_eq!(names("x{a!=\"1\"} / y").grouped, None);
    let selectors = names("predict_linear(a:b[6h], 86400) < 0 or vector(0)").selectors;
    let function = Some("predict_linear".to_owned());
    assert_eq!(selectors, [Selector { name: "a:b".into(), function, ..Selector::default() }]);
    assert_eq!(names("count(x == 0) or vector(0)").grouped, Some(BTreeSet::new()));
}
