//! Reads a TOML table key by key, and removes each key that is read: an unknown key, a missing key
//! and a value outside its range are errors that name the file, the key and the value.

use std::fmt::Display;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Value;

use crate::date::Date;

/// The error is a sentence for the editor of the data.
pub type Result<T> = std::result::Result<T, String>;

/// Data key and Rust name of each volume type, in the order of `VolumeType::ALL`.
pub const VOLUME_TYPES: [(&str, &str); 7] = [
    ("standard", "Standard"),
    ("st1", "St1"),
    ("sc1", "Sc1"),
    ("gp2", "Gp2"),
    ("gp3", "Gp3"),
    ("io1", "Io1"),
    ("io2", "Io2"),
];

/// One table of a data file. Values are removed when they are read; [`Section::finish`] returns an
/// error if some are left.
pub struct Section {
    /// File name, for messages.
    file: String,
    /// Dotted path of the table with a trailing dot, empty at the top.
    path: String,
    /// Keys that were not read yet.
    rest: toml::Table,
}

impl Section {
    /// Reads a whole file and checks that it contains the date of its name.
    pub fn open(file: &Path) -> Result<(Self, Date)> {
        let text = read(file)?;
        let name = file.display().to_string();
        let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let date = date(stem)
            .ok_or(format!("{name}: a data file is called by its date, YYYY-MM-DD.toml"))?;
        let mut section = Self::parse(&name, &text)?;
        let said = section.text("date")?;
        if said != stem {
            return Err(section.wrong("date", &said, "the file's name says another date"));
        }
        Ok((section, date))
    }

    /// Parses `text`; `name` is its name in messages.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let rest = text.parse().map_err(|e| format!("{name}: not TOML: {e}").replace('\n', " "))?;
        Ok(Self { file: name.to_owned(), path: String::new(), rest })
    }

    /// Returns an error about `key` and its `value`.
    pub fn wrong(&self, key: &str, value: impl Display, why: impl Display) -> String {
        format!("{}: {}{key} = {value}: {why}", self.file, self.path)
    }

    fn take(&mut self, key: &str) -> Result<Value> {
        let missing = format!("{}: {}{key} is missing", self.file, self.path);
        self.rest.remove(key).ok_or(missing)
    }

    /// Returns whether `key` exists and was not read yet.
    pub fn has(&self, key: &str) -> bool {
        self.rest.contains_key(key)
    }

    /// Returns a table below this one.
    pub fn section(&mut self, key: &str) -> Result<Self> {
        match self.take(key)? {
            Value::Table(rest) => Ok(self.below(key, rest)),
            other => Err(self.wrong(key, other, "expected a table")),
        }
    }

    /// Returns a table below this one, which may be absent.
    pub fn section_if_any(&mut self, key: &str) -> Result<Option<Self>> {
        if self.has(key) { self.section(key).map(Some) } else { Ok(None) }
    }

    /// Returns a list of tables, at least one.
    pub fn list(&mut self, key: &str) -> Result<Vec<Self>> {
        let value = self.take(key)?;
        let shown = value.to_string();
        let tables: Option<Vec<_>> = match value {
            Value::Array(items) => items
                .into_iter()
                .enumerate()
                .map(|(i, item)| match item {
                    Value::Table(rest) => Some(self.below(&format!("{key}[{i}]"), rest)),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        let tables = tables.filter(|t| !t.is_empty());
        tables.ok_or_else(|| self.wrong(key, shown, "expected a list of tables, at least one"))
    }

    fn below(&self, key: &str, rest: toml::Table) -> Self {
        Self { file: self.file.clone(), path: format!("{}{key}.", self.path), rest }
    }

    /// Returns a whole number within `range`.
    pub fn number(&mut self, key: &str, range: RangeInclusive<u64>) -> Result<u64> {
        let value = self.take(key)?;
        let number = value.as_integer().and_then(|n| u64::try_from(n).ok());
        number.filter(|n| range.contains(n)).ok_or_else(|| {
            let why = format!("expected a whole number, {} to {}", range.start(), range.end());
            self.wrong(key, value, why)
        })
    }

    /// Returns a whole number within `range`, which may be absent.
    pub fn number_if_any(&mut self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        if self.has(key) { self.number(key, range).map(Some) } else { Ok(None) }
    }

    /// Returns `true` or `false`.
    pub fn flag(&mut self, key: &str) -> Result<bool> {
        let value = self.take(key)?;
        value.as_bool().ok_or_else(|| self.wrong(key, value, "expected true or false"))
    }

    /// Returns a text that is not empty.
    pub fn text(&mut self, key: &str) -> Result<String> {
        let value = self.take(key)?;
        let text = value.as_str().filter(|t| !t.trim().is_empty()).map(str::to_owned);
        text.ok_or_else(|| self.wrong(key, value, "expected a text"))
    }

    /// Reads one of the given words, and returns the value beside it.
    pub fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Result<T> {
        let text = self.text(key)?;
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(key, text, format!("expected one of: {}", words.join(", ")))
        })
    }

    /// Returns a ratio in text form, `"1/4"`; both parts 1 to 10,000.
    pub fn ratio(&mut self, key: &str) -> Result<(u64, u64)> {
        let text = self.text(key)?;
        let part = |t: &str| t.parse().ok().filter(|n| (1..=10_000).contains(n));
        let ratio = text.split_once('/').and_then(|(n, d)| Some((part(n)?, part(d)?)));
        ratio.ok_or_else(|| self.wrong(key, text, "expected a ratio such as \"1/4\""))
    }

    /// Returns an error if a key was not read: it is most likely a typing error.
    pub fn finish(self) -> Result<()> {
        match self.rest.iter().next() {
            None => Ok(()),
            Some((key, value)) => Err(self.wrong(key, value, "unknown key")),
        }
    }
}

/// Returns the text of a file.
pub fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).map_err(|e| format!("{}: cannot read: {e}", file.display()))
}

/// Returns the files of a folder, oldest first. A file without the extension is an error.
pub fn dated_files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let failed = |e| format!("{}: cannot list: {e}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|e| e != extension) {
            return Err(format!("{}: only <date>.{extension} files belong here", path.display()));
        }
        files.push(path);
    }
    // Names are zero-padded dates, so their order is the order of time.
    files.sort();
    if files.is_empty() {
        return Err(format!("{}: no data files", folder.display()));
    }
    Ok(files)
}

/// Parses `YYYY-MM-DD`.
pub fn date(text: &str) -> Option<Date> {
    // `Date` parses a month alone as its last day; a file's name has a day.
    text.parse().ok().filter(|date: &Date| date.to_string() == text)
}

/// Returns the Rust expression of a date.
pub fn expression(date: Date) -> String {
    let Date { year, month, day } = date;
    format!("Date {{ year: {year}, month: {month}, day: {day} }}")
}
