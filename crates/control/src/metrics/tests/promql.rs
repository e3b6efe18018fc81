//! As much of PromQL as tells which metrics and labels an expression names. What it does not know
//! is an error, so that nothing is skipped.

use std::collections::BTreeSet;

const AGGREGATIONS: [&str; 5] = ["count", "max", "min", "sum", "topk"];
/// Functions of a counter over a range.
const OF_COUNTERS: [&str; 3] = ["increase", "rate", "resets"];
/// Functions of anything else over a range.
const OF_GAUGES: [&str; 4] = ["changes", "min_over_time", "predict_linear", "sum_over_time"];
const FUNCTIONS: [&str; 3] = ["absent", "histogram_quantile", "vector"];
const OPERATORS: [&str; 4] = ["Inf", "and", "or", "unless"];
/// Words before a list of labels.
const LISTS: [&str; 6] = ["by", "group_left", "group_right", "ignoring", "on", "without"];

/// A metric that an expression asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selector {
    pub name: String,
    /// Label and value, which is several with `|` between them if they are a regular expression.
    pub matchers: Vec<(String, String)>,
    /// The function over a range that gets it.
    pub function: Option<String>,
}

/// What an expression names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Query {
    pub selectors: Vec<Selector>,
    /// Labels by which something is matched or grouped.
    pub listed: BTreeSet<String>,
    /// Labels of the result, if it is grouped.
    pub grouped: Option<BTreeSet<String>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    Word(String),
    Number(String),
    Text(String),
    Range(String),
    Mark(char),
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let while_in = |is_in: fn(char) -> bool| rest.find(|c| !is_in(c)).unwrap_or(rest.len());
        let (token, length) = match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                let end = while_in(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
                (Token::Word(rest[..end].to_owned()), end)
            }
            '0'..='9' => {
                let end = while_in(|c| c.is_ascii_digit() || c == '.');
                (Token::Number(rest[..end].to_owned()), end)
            }
            '[' => {
                let end = rest.find(']').ok_or_else(|| format!("no ] after {rest}"))?;
                (Token::Range(rest[1..end].to_owned()), end + 1)
            }
            '"' => {
                let mut escaped = false;
                let is_end = |c: char| {
                    let is_end = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    is_end
                };
                let end = rest[1..].find(is_end).ok_or_else(|| format!("no end of {rest}"))?;
                (Token::Text(rest[1..=end].to_owned()), end + 2)
            }
            '(' | ')' | '{' | '}' | ',' | '=' | '!' | '~' | '<' | '>' | '+' | '-' | '*' | '/' => {
                (Token::Mark(first), 1)
            }
            other => return Err(format!("{other:?} in {text}")),
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Reads an expression.
pub fn parse(text: &str) -> Result<Query, String> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, open: 0, query: Query::default() };
    let mut is_aggregated = false;
    while let Some(token) = parser.next() {
        match token {
            Token::Mark('(') => parser.open += 1,
            Token::Mark(')') => {
                parser.open = parser.open.checked_sub(1).ok_or_else(|| format!(") in {text}"))?;
            }
            Token::Range(range) => return Err(format!("[{range}] without a function over ranges")),
            Token::Mark(mark @ ('{' | '}' | '~')) => return Err(format!("{mark} in {text}")),
            Token::Word(word) => {
                is_aggregated |= AGGREGATIONS.contains(&word.as_str());
                parser.word(word)?;
            }
            Token::Mark(_) | Token::Number(_) | Token::Text(_) => {}
        }
    }
    if parser.open != 0 {
        return Err(format!("{} ( are not closed in {text}", parser.open));
    }
    if is_aggregated {
        parser.query.grouped.get_or_insert_default();
    }
    Ok(parser.query)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    /// Parentheses that are not closed.
    open: u32,
    query: Query,
}

impl Parser {
    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn next_is(&self, mark: char) -> bool {
        self.tokens.get(self.at) == Some(&Token::Mark(mark))
    }

    fn expect(&mut self, mark: char) -> Result<(), String> {
        match self.next() {
            Some(Token::Mark(found)) if found == mark => Ok(()),
            other => Err(format!("{other:?} instead of {mark}")),
        }
    }

    fn word(&mut self, word: String) -> Result<(), String> {
        let is_in = |words: &[&str]| words.contains(&word.as_str());
        if is_in(&LISTS) {
            let labels = self.labels()?;
            if word == "by" {
                self.query.grouped.get_or_insert_with(|| labels.clone());
            }
            self.query.listed.extend(labels);
            return Ok(());
        }
        if is_in(&OPERATORS) || is_in(&AGGREGATIONS) || is_in(&FUNCTIONS) {
            return Ok(());
        }
        if is_in(&OF_COUNTERS) || is_in(&OF_GAUGES) {
            self.expect('(')?;
            self.open += 1;
            let Some(Token::Word(name)) = self.next() else {
                return Err(format!("{word} of something else than a metric"));
            };
            let mut selector = self.selector(name)?;
            match self.next() {
                Some(Token::Range(range)) if is_range(&range) => {}
                other => return Err(format!("{word}({}: {other:?} is no range", selector.name)),
            }
            selector.function = Some(word);
            self.query.selectors.push(selector);
            return Ok(());
        }
        if self.next_is('(') {
            return Err(format!("no function {word}"));
        }
        let selector = self.selector(word)?;
        self.query.selectors.push(selector);
        Ok(())
    }

    fn labels(&mut self) -> Result<BTreeSet<String>, String> {
        self.expect('(')?;
        let mut labels = BTreeSet::new();
        loop {
            match self.next() {
                Some(Token::Word(label)) => _ = labels.insert(label),
                Some(Token::Mark(',')) => {}
                Some(Token::Mark(')')) => return Ok(labels),
                other => return Err(format!("{other:?} in a list of labels")),
            }
        }
    }

    /// A name and, if there are any, its matchers.
    fn selector(&mut self, name: String) -> Result<Selector, String> {
        let mut selector = Selector { name, ..Selector::default() };
        if !self.next_is('{') {
            return Ok(selector);
        }
        self.expect('{')?;
        loop {
            let label = match self.next() {
                Some(Token::Mark('}')) => return Ok(selector),
                Some(Token::Mark(',')) if !selector.matchers.is_empty() => continue,
                Some(Token::Word(label)) => label,
                other => return Err(format!("{other:?} instead of a label")),
            };
            let marks = [self.next(), self.next()];
            let value = match marks {
                [Some(Token::Mark('=')), Some(Token::Text(value))] => Some(Token::Text(value)),
                [Some(Token::Mark('=' | '!')), Some(Token::Mark('=' | '~'))] => self.next(),
                other => return Err(format!("{label}{other:?}")),
            };
            let Some(Token::Text(value)) = value else { return Err(format!("{label}: {value:?}")) };
            selector.matchers.push((label, value));
        }
    }
}

/// A duration as Prometheus reads it, or a variable of Grafana that is one.
pub fn is_range(text: &str) -> bool {
    let is_duration = || {
        let number = text.strip_suffix(['s', 'm', 'h', 'd'])?;
        number.parse::<u32>().ok()
    };
    ["$__rate_interval", "$__range"].contains(&text) || is_duration().is_some()
}

/// Whether a function asks for counters.
pub fn wants_counter(function: &str) -> bool {
    OF_COUNTERS.contains(&function)
}

#[test]
fn names_and_labels_are_found() {
    let text = "sum by (le, a) (rate(x_bucket{op=\"read\",v=~\"$v\"}[5m])) > 0.5\nunless on (a) y";
    let query = parse(text).unwrap();
    let pair = |label: &str, value: &str| (label.to_owned(), value.to_owned());
    let rate = Selector {
        name: "x_bucket".into(),
        matchers: vec![pair("op", "read"), pair("v", "$v")],
        function: Some("rate".into()),
    };
    assert_eq!(query.selectors, [rate, Selector { name: "y".into(), ..Selector::default() }]);
    assert_eq!(query.listed, BTreeSet::from(["a".to_owned(), "le".to_owned()]));
    assert_eq!(query.grouped, Some(query.listed.clone()));
    assert_eq!(parse("x{a!=\"1\"} / y").unwrap().grouped, None);
    assert_eq!(parse("count(x == 0) or vector(0)").unwrap().grouped, Some(BTreeSet::new()));
}

#[test]
fn what_is_no_expression_is_an_error() {
    for (text, message) in [
        ("rates(x[5m])", "no function rates"),
        ("rate(x)", "rate(x: Some(Mark(')')) is no range"),
        ("rate(x[5 min])", "rate(x: Some(Range(\"5 min\")) is no range"),
        ("x[5m]", "[5m] without a function over ranges"),
        ("(x", "1 ( are not closed in (x"),
        ("rate(x[5m]))", ") in rate(x[5m]))"),
        ("rate(x[5m]", "1 ( are not closed in rate(x[5m]"),
        ("x{a}", "a[Some(Mark('}')), None]"),
        ("x{a=1}", "a[Some(Mark('=')), Some(Number(\"1\"))]"),
        ("x{a=\"1}", "no end of \"1}"),
        ("x # y", "'#' in x # y"),
    ] {
        assert_eq!(parse(text).unwrap_err(), message, "{text}");
    }
}
