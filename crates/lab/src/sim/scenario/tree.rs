//! A scenario file as a tree of values with their lines, and the cases it is run for.

use super::ScenarioError;
use std::collections::{BTreeMap, BTreeSet};
use toml::de::{DeTable, DeValue};

/// Cases of one scenario at most.
const CASES_MAX: usize = 1_024;

/// A value and the line it stands in.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Node {
    pub line: usize,
    pub value: Value,
}

/// What may stand in a scenario.
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

/// One run of a scenario: what it is called, and what its `$names` stand for.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Binding {
    pub label: String,
    pub values: Table,
}

impl Value {
    /// As it would be written.
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
    let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(span.start));
        ScenarioError::new(name, line, error.message())
    })?;
    table(name, document.get_ref(), &line_of)
}

fn table(
    name: &str,
    table: &DeTable<'_>,
    line_of: &impl Fn(usize) -> usize,
) -> Result<Table, ScenarioError> {
    let mut nodes = Table::new();
    for (key, value) in table {
        let line = line_of(key.span().start);
        nodes.insert(key.get_ref().to_string(), node(name, value.get_ref(), line, line_of)?);
    }
    Ok(nodes)
}

fn node(
    name: &str,
    value: &DeValue<'_>,
    line: usize,
    line_of: &impl Fn(usize) -> usize,
) -> Result<Node, ScenarioError> {
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
                let line = line_of(item.span().start);
                node(name, item.get_ref(), line, line_of)
            });
            Value::List(items.collect::<Result<_, _>>()?)
        }
        DeValue::Table(inner) => Value::Table(table(name, inner, line_of)?),
    };
    Ok(Node { line, value })
}

/// Takes `[[case]]` and `[matrix]` out of a document: what the rest is run for.
pub(super) fn take_cases(name: &str, document: &mut Table) -> Result<Vec<Binding>, ScenarioError> {
    let (cases, matrix) = (document.remove("case"), document.remove("matrix"));
    match (cases, matrix) {
        (None, None) => Ok(vec![Binding { label: String::new(), values: Table::new() }]),
        (Some(cases), None) => listed(name, cases),
        (None, Some(matrix)) => combined(name, matrix),
        (Some(case), Some(_)) => {
            let message = "has [[case]] and [matrix]";
            Err(ScenarioError::new(name, case.line, message)
                .hint("write each combination as a case"))
        }
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
        bindings.push(Binding { label, values });
    }
    bounded(name, cases.line, bindings)
}

fn combined(name: &str, matrix: Node) -> Result<Vec<Binding>, ScenarioError> {
    let Value::Table(axes) = matrix.value else {
        return Err(ScenarioError::new(name, matrix.line, "matrix must be a table of lists"));
    };
    let mut bindings = vec![Binding { label: String::new(), values: Table::new() }];
    for (key, axis) in axes {
        let Value::List(values) = axis.value else {
            let message = format!("matrix: {key} = {}: must be a list", axis.value.shown());
            return Err(ScenarioError::new(name, axis.line, message));
        };
        let mut longer = Vec::new();
        for binding in &bindings {
            for value in &values {
                let mut binding = binding.clone();
                let space = if binding.label.is_empty() { "" } else { " " };
                let shown = value.value.shown().replace('"', "");
                binding.label.push_str(&format!("{space}{key}={shown}"));
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

/// The document with every text `$key` replaced by what it stands for in a case.
pub(super) fn bind(
    name: &str,
    document: &Table,
    binding: &Binding,
) -> Result<Table, ScenarioError> {
    let mut used = BTreeSet::new();
    let bound = bind_table(name, document, &binding.values, &mut used)?;
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
    values: &Table,
    used: &mut BTreeSet<String>,
) -> Result<Table, ScenarioError> {
    let bound = table.iter().map(|(key, node)| {
        let node = bind_node(name, node, values, used)?;
        Ok((key.clone(), node))
    });
    bound.collect()
}

fn bind_node(
    name: &str,
    node: &Node,
    values: &Table,
    used: &mut BTreeSet<String>,
) -> Result<Node, ScenarioError> {
    let line = node.line;
    let value = match &node.value {
        Value::Text(text) => match text.strip_prefix('$') {
            None => node.value.clone(),
            Some(key) => {
                used.insert(key.to_owned());
                let bound = values.get(key).ok_or_else(|| {
                    let fault = ScenarioError::new(name, line, format!("{text} is not defined"));
                    match crate::text::nearest(key, values.keys().map(String::as_str)) {
                        Some(near) => fault.hint(format!("did you mean \"${near}\"?")),
                        None => fault.hint(format!("give \"{key}\" a value in each case")),
                    }
                })?;
                bound.value.clone()
            }
        },
        Value::List(items) => {
            let items = items.iter().map(|item| bind_node(name, item, values, used));
            Value::List(items.collect::<Result<_, _>>()?)
        }
        Value::Table(table) => Value::Table(bind_table(name, table, values, used)?),
        Value::Whole(_) | Value::Number(_) | Value::Flag(_) => node.value.clone(),
    };
    Ok(Node { line, value })
}
