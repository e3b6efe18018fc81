//! Reads one table of a scenario: checks every value against its bounds. For an unknown key it
//! returns an error that names the most similar key.

use super::ScenarioError;
use super::tree::{Node, Table, Value};
use crate::text::nearest;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// One table, and the set of its keys that were read.
pub(super) struct Reader<'a> {
    file: &'a str,
    /// Name of the table in errors: `[[volume]]`.
    what: String,
    line: usize,
    table: &'a Table,
    known: RefCell<BTreeSet<&'static str>>,
}

type Read<T> = Result<T, ScenarioError>;

impl<'a> Reader<'a> {
    pub fn new(file: &'a str, what: &str, line: usize, table: &'a Table) -> Self {
        Self { file, what: what.to_owned(), line, table, known: RefCell::default() }
    }

    /// The file's name.
    pub fn file(&self) -> &'a str {
        self.file
    }

    /// The line in which the table begins.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns all entries of the table.
    pub fn entries(&self) -> &'a Table {
        self.table
    }

    fn get(&self, key: &'static str) -> Option<&'a Node> {
        self.known.borrow_mut().insert(key);
        self.table.get(key)
    }

    /// Returns whether the key exists. Counts as reading it.
    pub fn has(&self, key: &'static str) -> bool {
        self.get(key).is_some()
    }

    /// Creates an error about a key, at its line.
    pub fn fault(&self, key: &str, message: impl AsRef<str>) -> ScenarioError {
        let message = message.as_ref();
        match self.table.get(key) {
            Some(node) => {
                let shown = node.value.shown();
                let message = format!("{}{key} = {shown}: {message}", self.prefix());
                ScenarioError::new(self.file, node.line, message)
            }
            None => {
                let message = format!("{}{key} {message}", self.prefix());
                ScenarioError::new(self.file, self.line, message)
            }
        }
    }

    fn prefix(&self) -> String {
        if self.what.is_empty() { String::new() } else { format!("{} ", self.what) }
    }

    /// Returns the value of a mandatory key, or an error; `why` describes the value.
    pub fn need<T>(&self, key: &'static str, value: Option<T>, why: &str) -> Read<T> {
        value.ok_or_else(|| self.fault(key, format!("is missing: {why}")))
    }

    /// Reads a whole number within bounds.
    pub fn whole(&self, key: &'static str, range: RangeInclusive<u64>) -> Read<Option<u64>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let Value::Whole(number) = node.value else {
            return Err(self.fault(key, "must be a whole number"));
        };
        match u64::try_from(number).ok().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.fault(key, out_of(range.start(), range.end()))),
        }
    }

    /// Reads a whole number of 32 bits within bounds.
    pub fn small(&self, key: &'static str, range: RangeInclusive<u32>) -> Read<Option<u32>> {
        let wide = u64::from(*range.start())..=u64::from(*range.end());
        Ok(self.whole(key, wide)?.and_then(|number| u32::try_from(number).ok()))
    }

    /// Reads a number within bounds.
    pub fn number(&self, key: &'static str, range: RangeInclusive<f64>) -> Read<Option<f64>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let number = match node.value {
            Value::Whole(number) => number as f64,
            Value::Number(number) => number,
            _ => return Err(self.fault(key, "must be a number")),
        };
        if range.contains(&number) {
            return Ok(Some(number));
        }
        Err(self.fault(key, out_of(range.start(), range.end())))
    }

    /// Reads a number and converts it to smaller whole units, for example from seconds to
    /// nanoseconds.
    pub fn scaled(
        &self,
        key: &'static str,
        fine_per_unit: f64,
        range: RangeInclusive<f64>,
    ) -> Read<Option<u64>> {
        Ok(self.number(key, range)?.map(|number| (number * fine_per_unit).round() as u64))
    }

    /// Reads a text.
    pub fn text(&self, key: &'static str) -> Read<Option<&'a str>> {
        match self.get(key).map(|node| &node.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.fault(key, "must be a text in quotes")),
        }
    }

    /// Reads one or several texts.
    pub fn texts(&self, key: &'static str) -> Read<Option<Vec<&'a str>>> {
        match self.get(key).map(|node| &node.value) {
            Some(Value::List(items)) => {
                let texts = items.iter().map(|item| match &item.value {
                    Value::Text(text) => Ok(text.as_str()),
                    _ => Err(self.fault(key, "must be a list of texts in quotes")),
                });
                texts.collect::<Result<Vec<_>, _>>().map(Some)
            }
            _ => Ok(self.text(key)?.map(|text| vec![text])),
        }
    }

    /// Reads a boolean; false if the key is missing.
    pub fn flag(&self, key: &'static str) -> Read<bool> {
        match self.get(key).map(|node| &node.value) {
            None => Ok(false),
            Some(Value::Flag(flag)) => Ok(*flag),
            Some(_) => Err(self.fault(key, "must be true or false")),
        }
    }

    /// Reads one of several words.
    pub fn choice<T: Clone>(&self, key: &'static str, words: &[(&str, T)]) -> Read<Option<T>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        if let Some((_, chosen)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(Some(chosen.clone()));
        }
        let known = words.iter().map(|(word, _)| *word);
        let all = known.clone().collect::<Vec<_>>().join(", ");
        let fault = self.fault(key, format!("must be one of {all}"));
        Err(match nearest(text, known) {
            Some(near) => fault.hint(format!("did you mean \"{near}\"?")),
            None => fault,
        })
    }

    /// Reads the table of that name.
    pub fn table(&self, key: &'static str) -> Read<Option<Self>> {
        match self.get(key) {
            None => Ok(None),
            Some(Node { line, value: Value::Table(table) }) => {
                Ok(Some(Self::new(self.file, &format!("[{key}]"), *line, table)))
            }
            Some(_) => Err(self.fault(key, format!("must be a table: [{key}]"))),
        }
    }

    /// Reads the tables of that name; returns an empty list if there are none.
    pub fn tables(&self, key: &'static str) -> Read<Vec<Self>> {
        let shape = || self.fault(key, format!("must be written as [[{key}]] tables"));
        let Some(node) = self.get(key) else { return Ok(Vec::new()) };
        let Value::List(items) = &node.value else { return Err(shape()) };
        let readers = items.iter().map(|item| match &item.value {
            Value::Table(table) => {
                Ok(Self::new(self.file, &format!("[[{key}]]"), item.line, table))
            }
            _ => Err(shape()),
        });
        readers.collect()
    }

    /// Returns an error if the table has a key that was not read.
    pub fn done(self) -> Read<()> {
        let known = self.known.borrow();
        let Some((key, node)) = self.table.iter().find(|(key, _)| !known.contains(key.as_str()))
        else {
            return Ok(());
        };
        let message = format!("{}has no key \"{key}\"", self.prefix());
        let message = if self.what.is_empty() { format!("unknown key \"{key}\"") } else { message };
        let fault = ScenarioError::new(self.file, node.line, message);
        Err(match nearest(key, known.iter().copied()) {
            Some(near) => fault.hint(format!("did you mean \"{near}\"?")),
            None => fault.hint("the keys are in docs/reference/scenarios.md"),
        })
    }
}

fn out_of<T: std::fmt::Display>(from: T, to: T) -> String {
    format!("must be from {from} to {to}")
}
