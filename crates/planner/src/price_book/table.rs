//! Reads a table of a price book or of a policy, key by key. Every error names the line, the key,
//! the value and the expected one. Numbers are read from their digits: no amount passes through
//! floating point.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use evenkeel_sim::text::{line_of, nearest};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::BookError;

/// Millionths of one.
pub const MICROS: u64 = 1_000_000;
const DECIMALS_MAX: usize = 6;
/// Maximum number of characters of a value that an error shows.
const SHOWN_CHARS_MAX: usize = 40;

/// A table whose keys are taken one by one. Keys that are left at the end are unknown.
pub struct Table<'a> {
    text: &'a str,
    name: &'static str,
    line: usize,
    entries: BTreeMap<&'a str, &'a Spanned<DeValue<'a>>>,
    /// The keys that were taken or looked up, for the error that lists them.
    known: Vec<&'static str>,
}

impl<'a> Table<'a> {
    pub fn new(text: &'a str, name: &'static str, line: usize, table: &'a DeTable<'a>) -> Self {
        let entries = table.iter().map(|(key, value)| (key.get_ref().as_ref(), value));
        Self { text, name, line, entries: entries.collect(), known: vec![] }
    }

    /// Returns the line in which it begins.
    pub const fn line(&self) -> usize {
        self.line
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(key);
        self.entries.remove(key)
    }

    fn at(&self, value: &Spanned<DeValue<'_>>, message: String) -> BookError {
        BookError { line: Some(line_of(self.text, value.span().start)), message }
    }

    fn wrong(&self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str) -> BookError {
        let written = self.text.get(value.span()).unwrap_or_default();
        let first = written.lines().next().unwrap_or_default();
        let shown: String = first.chars().take(SHOWN_CHARS_MAX).collect();
        self.at(value, format!("{key} = {shown} in {}: expected {expected}", self.name))
    }

    /// Returns the error for a missing key; `meaning` describes its value.
    pub fn missing(&self, key: &str, meaning: &str) -> BookError {
        let message = format!("{} has no {key}: add {meaning}", self.name);
        BookError { line: Some(self.line), message }
    }

    /// Reads an amount in millionths. The range is in whole units.
    pub fn amount(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, BookError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let digits = match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str()),
            DeValue::Float(number) => Some(number.as_str()),
            _ => None,
        };
        let micros = digits.and_then(micros);
        let least = range.start() * MICROS;
        let most = range.end() * MICROS;
        micros.filter(|micros| (least..=most).contains(micros)).map(Some).ok_or_else(|| {
            let least = range.start();
            let most = range.end();
            let expected = format!(
                "a number from {least} to {most} with at most {DECIMALS_MAX} decimals, such as 1.5"
            );
            self.wrong(key, value, &expected)
        })
    }

    /// Reads a whole number.
    pub fn whole(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, BookError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => {
                number.as_str().replace('_', "").parse().ok()
            }
            _ => None,
        };
        number.filter(|number| range.contains(number)).map(Some).ok_or_else(|| {
            let expected = format!("a whole number from {} to {}", range.start(), range.end());
            self.wrong(key, value, &expected)
        })
    }

    /// Reads a text of at least one character.
    pub fn words(&mut self, key: &'static str) -> Result<Option<&'a str>, BookError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let words = value.get_ref().as_str().filter(|words| !words.trim().is_empty());
        words.map(Some).ok_or_else(|| self.wrong(key, value, "a text in quotes"))
    }

    /// Reads `true` or `false`.
    pub fn flag(&mut self, key: &'static str) -> Result<Option<bool>, BookError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Boolean(flag) => Ok(Some(*flag)),
            _ => Err(self.wrong(key, value, "true or false")),
        }
    }

    /// Reads a text that `read` must know.
    pub fn word<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, BookError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let word = value.get_ref().as_str().and_then(read);
        word.map(Some).ok_or_else(|| self.wrong(key, value, expected))
    }

    /// Reads a table of texts, at most `most` of them.
    pub fn texts(
        &mut self,
        key: &'static str,
        most: usize,
    ) -> Result<BTreeMap<String, String>, BookError> {
        let Some(value) = self.take(key) else { return Ok(BTreeMap::new()) };
        let wrong = || {
            let expected = format!("at most {most} texts, such as {{ Name = \"data\" }}");
            self.wrong(key, value, &expected)
        };
        let DeValue::Table(table) = value.get_ref() else { return Err(wrong()) };
        let text = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let key: &std::borrow::Cow<'_, str> = key.get_ref();
            Some((key.to_string(), value.get_ref().as_str()?.to_owned()))
        };
        let texts: Option<BTreeMap<_, _>> = table.iter().map(text).collect();
        texts.filter(|texts| texts.len() <= most).ok_or_else(wrong)
    }

    /// Reads a list of texts, each of which `read` must know.
    pub fn list<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, BookError> {
        let Some(value) = self.take(key) else { return Ok(vec![]) };
        let items = value.get_ref().as_array().filter(|items| !items.is_empty());
        let items = items.and_then(|items| {
            items.iter().map(|item| item.get_ref().as_str().and_then(&read)).collect()
        });
        items.ok_or_else(|| self.wrong(key, value, expected))
    }

    /// Reads a table in this one.
    pub fn table(
        &mut self,
        key: &'static str,
        name: &'static str,
    ) -> Result<Option<Self>, BookError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Table(table) => Ok(Some(self.inner(name, value, table))),
            _ => Err(self.wrong(key, value, &format!("a table {name}"))),
        }
    }

    /// Reads the tables of a list in this one.
    pub fn tables(
        &mut self,
        key: &'static str,
        name: &'static str,
    ) -> Result<Vec<Self>, BookError> {
        let Some(value) = self.take(key) else { return Ok(vec![]) };
        let wrong = || self.wrong(key, value, &format!("tables {name}"));
        let items = value.get_ref().as_array().ok_or_else(wrong)?;
        let table = |item: &'a Spanned<DeValue<'a>>| match item.get_ref() {
            DeValue::Table(table) => Ok(self.inner(name, item, table)),
            _ => Err(wrong()),
        };
        items.iter().map(table).collect()
    }

    fn inner(
        &self,
        name: &'static str,
        value: &Spanned<DeValue<'_>>,
        table: &'a DeTable<'a>,
    ) -> Self {
        Self::new(self.text, name, line_of(self.text, value.span().start), table)
    }

    /// Returns an error if there are keys that were not taken.
    pub fn done(&self) -> Result<(), BookError> {
        let Some((key, value)) = self.entries.iter().next() else { return Ok(()) };
        let near = nearest(key, self.known.iter().copied());
        let near = near.map_or_else(String::new, |near| format!(": did you mean {near}?"));
        let keys = self.known.join(", ");
        let message = format!("unknown key {key:?} in {}{near}; the keys are {keys}", self.name);
        Err(self.at(value, message))
    }
}

/// Converts digits with a decimal point to millionths; `None` for anything else.
fn micros(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    let text = text.strip_prefix('+').unwrap_or(&text);
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty()
        || !is_number(whole)
        || !is_number(decimals)
        || decimals.len() > DECIMALS_MAX
    {
        return None;
    }
    let padded = format!("{decimals:0<DECIMALS_MAX$}");
    whole.parse::<u64>().ok()?.checked_mul(MICROS)?.checked_add(padded.parse().ok()?)
}
