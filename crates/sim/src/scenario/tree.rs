//! A scenario file as a tree of values with their lines, and the cases for which it is run.

use super::ScenarioError;
use crate::text::line_of;
use std::collections::{BTreeMap, BTreeSet};
use toml::de::{DeTable, DeValue};

/// Maximum number of runs of a scenario.
const CASES_MAX: usize = 1_024;

/// A value and its line.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Node {
    pub line: usize,
    pub value: Value,
}

/// A value in a scenario.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Text(String),
    Whole(i64),
    Number(f64),
    Flag(bool),
    List(Vec<Node>),
    Table(Table),
}

pub(super) type Table = BTreeMap<String, Node>;

/// One run of a scenario: its name, and the values of its `$names`.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Binding {
    /// The case.
    pub case: String,
    /// The run: the case, and the number of the repetition.
    pub label: String,
    pub values: Table,
}

impl Binding {
    fn new(case: String, values: Table) -> Self {
        Self { label: case.clone(), case, values }
    }
}

impl Value {
    /// Formats the value as TOML has it.
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) => format!("\"{text}\""),
            Self::Whole(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Flag(flag) => flag.to_string(),
            Self::List(_) => "a list".to_owned(),
            Self::Table(_) => "a table".to_owned(),
        }
    }
}

/// Reads TOML.
pub(super) fn parse(name: &str, text: &str) -> Result<Table, ScenarioError> {
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        ScenarioError::new(name, line, error.message())
    })?;
    table(name, document.get_ref(), text)
}

fn table(name: &str, table: &DeTable<'_>, text: &str) -> Result<Table, ScenarioError> {
    let mut nodes = Table::new();
    for (key, value) in table {
        let line = line_of(text, key.span().start);
        nodes.insert(key.get_ref().to_string(), node(name, value.get_ref(), line, text)?);
    }
    Ok(nodes)
}

fn node(name: &str, value: &DeValue<'_>, line: usize, text: &str) -> Result<Node, ScenarioError> {
    let fault = |message: String| ScenarioError::new(name, line, message);
    let value = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => {
            let whole = i64::from_str_radix(&number.as_str().replace('_', ""), number.radix());
            Value::Whole(whole.map_err(|_| fault(format!("{number} is too large a number")))?)
        }
        DeValue::Float(number) => {
            let parsed = number.as_str().replace('_', "").parse::<f64>().ok();
            let finite = parsed.filter(|number| number.is_finite());
            Value::Number(finite.ok_or_else(|| fault(format!("{number} is not a finite number")))?)
        }
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(date) => Value::Text(date.to_string()),
        DeValue::Array(items) => {
            let items = items.iter().map(|item| {
                let line = line_of(text, item.span().start);
                node(name, item.get_ref(), line, text)
            });
            Value::List(items.collect::<Result<_, _>>()?)
        }
        DeValue::Table(inner) => Value::Table(table(name, inner, text)?),
    };
    Ok(Node { line, value })
}

/// Removes `[[case]]`, `[matrix]` and `repeat` from a document, and returns the runs that they
/// describe.
pub(super) fn take_cases(name: &str, document: &mut Table) -> Result<Vec<Binding>, ScenarioError> {
    let cases = document.remove("case");
    let matrix = document.remove("matrix");
    let bindings = match (cases, matrix) {
        (None, None) => vec![Binding::new(String::new(), Table::new())],
        (Some(cases), None) => listed(name, cases)?,
        (None, Some(matrix)) => combined(name, matrix)?,
        (Some(case), Some(_)) => {
            let message = "has [[case]] and [matrix]";
            return Err(ScenarioError::new(name, case.line, message)
                .hint("write each combination as a case"));
        }
    };
    check_only_in(name, document, &bindings)?;
    match document.remove("repeat") {
        None => Ok(bindings),
        Some(repeat) => repeated(name, &repeat, &bindings),
    }
}

/// Repeats every case. The runs have different seeds.
fn repeated(
    name: &str,
    repeat: &Node,
    bindings: &[Binding],
) -> Result<Vec<Binding>, ScenarioError> {
    let times = match repeat.value {
        Value::Whole(times @ 1..=100) => times,
        _ => {
            let message = format!("repeat = {}: must be from 1 to 100", repeat.value.shown());
            return Err(ScenarioError::new(name, repeat.line, message));
        }
    };
    let runs = bindings.iter().flat_map(|binding| {
        (1..=times).map(move |time| {
            let label = format!("{} ({time})", binding.case);
            Binding { label: label.trim_start().to_owned(), ..binding.clone() }
        })
    });
    bounded(name, repeat.line, runs.collect())
}

/// The key of a table that exists in some cases only.
const ONLY_IN: &str = "only_in";

/// Returns an error if an `only_in` names a case that does not exist.
fn check_only_in(name: &str, document: &Table, bindings: &[Binding]) -> Result<(), ScenarioError> {
    for node in document.values() {
        let items = match &node.value {
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        for item in items {
            let Value::Table(table) = &item.value else { continue };
            let Some(only_in) = table.get(ONLY_IN) else { continue };
            for pattern in patterns(name, only_in)? {
                if !bindings.iter().any(|binding| matches(pattern, &binding.case)) {
                    return Err(no_such_case(name, only_in.line, pattern, bindings));
                }
            }
        }
    }
    Ok(())
}

fn no_such_case(name: &str, line: usize, pattern: &str, bindings: &[Binding]) -> ScenarioError {
    let message = format!("only_in: no case is called \"{pattern}\"");
    let fault = ScenarioError::new(name, line, message);
    match crate::text::nearest(pattern, bindings.iter().map(|binding| binding.case.as_str())) {
        Some(near) => fault.hint(format!("did you mean \"{near}\"?")),
        None => fault,
    }
}

fn patterns<'n>(name: &str, node: &'n Node) -> Result<Vec<&'n str>, ScenarioError> {
    let text = |node: &'n Node| match &node.value {
        Value::Text(text) => Ok(text.as_str()),
        _ => {
            let message = "only_in must be the name of a case in quotes, or a list of such";
            Err(ScenarioError::new(name, node.line, message))
        }
    };
    match &node.value {
        Value::List(items) => items.iter().map(text).collect(),
        _ => Ok(vec![text(node)?]),
    }
}

/// Returns whether a name matches: `db` is that name, `db-*` any that begins with `db-`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

fn listed(name: &str, cases: Node) -> Result<Vec<Binding>, ScenarioError> {
    let shape = || ScenarioError::new(name, cases.line, "case must be written as [[case]] tables");
    let Value::List(items) = cases.value.clone() else { return Err(shape()) };
    let mut bindings = Vec::new();
    for item in items {
        let Value::Table(mut values) = item.value else { return Err(shape()) };
        let label = match values.remove("name") {
            Some(Node { value: Value::Text(label), .. }) => label,
            _ => {
                let message = "[[case]] needs a name: what the run is called in the results";
                return Err(ScenarioError::new(name, item.line, message));
            }
        };
        bindings.push(Binding::new(label, values));
    }
    bounded(name, cases.line, bindings)
}

fn combined(name: &str, matrix: Node) -> Result<Vec<Binding>, ScenarioError> {
    let Value::Table(axes) = matrix.value else {
        return Err(ScenarioError::new(name, matrix.line, "matrix must be a table of lists"));
    };
    let mut bindings = vec![Binding::new(String::new(), Table::new())];
    for (key, axis) in axes {
        let Value::List(values) = axis.value else {
            let message = format!("matrix: {key} = {}: must be a list", axis.value.shown());
            return Err(ScenarioError::new(name, axis.line, message));
        };
        let mut longer = Vec::new();
        for binding in &bindings {
            for value in &values {
                let mut binding = binding.clone();
                let space = if binding.case.is_empty() { "" } else { " " };
                let shown = value.value.shown().replace('"', "");
                binding.case.push_str(&format!("{space}{key}={shown}"));
                binding.label.clone_from(&binding.case);
                binding.values.insert(key.clone(), value.clone());
                longer.push(binding);
            }
        }
        bindings = bounded(name, axis.line, longer)?;
    }
    Ok(bindings)
}

fn bounded(name: &str, line: usize, bindings: Vec<Binding>) -> Result<Vec<Binding>, ScenarioError> {
    match bindings.len() {
        1..=CASES_MAX => Ok(bindings),
        count => {
            let message = format!("{count} runs; from 1 to {CASES_MAX} may be asked for");
            Err(ScenarioError::new(name, line, message))
        }
    }
}

/// Replaces every text `$key` by its value in a case, and removes the tables that are of other
/// cases only.
pub(super) fn bind(
    name: &str,
    document: &Table,
    binding: &Binding,
) -> Result<Table, ScenarioError> {
    let mut used = BTreeSet::new();
    let bound = bind_table(name, document, binding, &mut used)?;
    match binding.values.iter().find(|(key, _)| !used.contains(*key)) {
        None => Ok(bound),
        Some((key, node)) => {
            let message = format!("nothing in the scenario refers to \"${key}\"");
            Err(ScenarioError::new(name, node.line, message)
                .hint(format!("write \"${key}\" where the value belongs, or remove it")))
        }
    }
}

fn bind_table(
    name: &str,
    table: &Table,
    binding: &Binding,
    used: &mut BTreeSet<String>,
) -> Result<Table, ScenarioError> {
    let mut bound = Table::new();
    for (key, node) in table {
        if is_in(name, node, binding)? {
            bound.insert(key.clone(), bind_node(name, node, binding, used)?);
        }
    }
    Ok(bound)
}

fn bind_node(
    name: &str,
    node: &Node,
    binding: &Binding,
    used: &mut BTreeSet<String>,
) -> Result<Node, ScenarioError> {
    let line = node.line;
    let value = match &node.value {
        Value::Text(text) => match text.strip_prefix('$') {
            None => node.value.clone(),
            Some(key) => {
                used.insert(key.to_owned());
                let bound = binding.values.get(key).ok_or_else(|| {
                    let fault = ScenarioError::new(name, line, format!("{text} is not defined"));
                    match crate::text::nearest(key, binding.values.keys().map(String::as_str)) {
                        Some(near) => fault.hint(format!("did you mean \"${near}\"?")),
                        None => fault.hint(format!("give \"{key}\" a value in each case")),
                    }
                })?;
                bound.value.clone()
            }
        },
        Value::List(items) => {
            let mut bound = Vec::with_capacity(items.len());
            for item in items {
                if is_in(name, item, binding)? {
                    bound.push(bind_node(name, item, binding, used)?);
                }
            }
            Value::List(bound)
        }
        Value::Table(table) => {
            let mut bound = bind_table(name, table, binding, used)?;
            bound.remove(ONLY_IN);
            Value::Table(bound)
        }
        Value::Whole(_) | Value::Number(_) | Value::Flag(_) => node.value.clone(),
    };
    Ok(Node { line, value })
}

/// Returns whether a table exists in a case.
fn is_in(name: &str, item: &Node, binding: &Binding) -> Result<bool, ScenarioError> {
    let Value::Table(table) = &item.value else { return Ok(true) };
    let Some(only_in) = table.get(ONLY_IN) else { return Ok(true) };
    Ok(patterns(name, only_in)?.iter().any(|pattern| matches(pattern, &binding.case)))
}
