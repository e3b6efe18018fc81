//! Filters of the Describe actions: the names that each action supports, and values with `*` and
//! `?`.

use std::borrow::Cow;

use super::error::ApiError;
use crate::model::{Property, Tags};

/// Maximum number of filters in one request.
const FILTERS_MAX: usize = 50;
/// Maximum number of values of all filters in one request together: EC2's own limit.
const VALUES_MAX: usize = 200;

/// The conditions for a result: it must match every filter by at least one of the filter's values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filters {
    filters: Vec<(String, Vec<Pattern>)>,
}

/// The values of an object under a filter's name. Most have one, which is not copied: a filter may
/// look at each of 100,000 volumes.
pub enum Values<'a> {
    /// One value; `None` if the object has no such property.
    One(Option<Cow<'a, str>>),
    /// Several values, of which one match is enough.
    Many(Vec<String>),
}

impl<'a> Values<'a> {
    /// Creates one value.
    pub fn of(value: impl Into<Cow<'a, str>>) -> Self {
        Self::One(Some(value.into()))
    }
}

impl From<Vec<String>> for Values<'_> {
    fn from(values: Vec<String>) -> Self {
        Self::Many(values)
    }
}

impl Filters {
    /// Creates filters whose names are all in `known`; `tag:` in `known` stands for `tag:` and any
    /// key.
    ///
    /// # Errors
    /// `InvalidParameterValue` naming the filter, `FilterLimitExceeded`.
    pub fn new(filters: Vec<(String, Vec<String>)>, known: &[&str]) -> Result<Self, ApiError> {
        let values: usize = filters.iter().map(|(_, values)| values.len()).sum();
        if filters.len() > FILTERS_MAX || values > VALUES_MAX {
            let text = format!(
                "The maximum number of filters ({FILTERS_MAX}) or of filter values \
                 ({VALUES_MAX}) is exceeded"
            );
            return Err(ApiError::new("FilterLimitExceeded", text));
        }
        for (name, values) in &filters {
            let wanted = match name.strip_prefix("tag:") {
                Some("") => "",
                Some(_) => "tag:",
                None => name.as_str(),
            };
            if !known.contains(&wanted) {
                return Err(ApiError::unknown_filter(name));
            }
            if values.is_empty() {
                return Err(ApiError::value(format!("The filter '{name}' has no value")));
            }
        }
        let read = |value: String| Pattern::of(&value);
        let filters = filters.into_iter();
        let filters = filters.map(|(name, values)| (name, values.into_iter().map(read).collect()));
        Ok(Self { filters: filters.collect() })
    }

    /// Returns whether there are no filters, so that everything passes.
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Returns whether an object passes all filters. `values_of` returns its values under a
    /// filter's name.
    pub fn pass<'a, V: Into<Values<'a>>>(&self, values_of: impl Fn(&str) -> V) -> bool {
        self.filters.iter().all(|(name, patterns)| {
            let matches = |value: &str| patterns.iter().any(|pattern| pattern.matches(value));
            match values_of(name).into() {
                Values::One(value) => value.is_some_and(|value| matches(&value)),
                Values::Many(values) => values.iter().any(|value| matches(value)),
            }
        })
    }

    /// Returns a property that every result has, by a tag or the filter `status`; `None` if no
    /// filter names whole values of one.
    pub fn property(&self) -> Option<Property<'_>> {
        self.filters.iter().find_map(|(name, patterns)| {
            let values = || patterns.iter().map(Pattern::exact).collect::<Option<Vec<&str>>>();
            match (name.as_str(), name.strip_prefix("tag:")) {
                ("status", _) => Some(Property::State(values()?)),
                (_, Some(key)) => Some(Property::Tag(key, values()?)),
                _ => None,
            }
        })
    }
}

/// Returns values under `tag-key`, `tag-value` and `tag:KEY`.
pub(super) fn tag_values<'a>(name: &str, tags: &'a Tags) -> Values<'a> {
    match name {
        "tag-key" => return Values::Many(tags.keys().cloned().collect()),
        "tag-value" => return Values::Many(tags.values().cloned().collect()),
        _ => {}
    }
    let value = name.strip_prefix("tag:").and_then(|key| tags.get(key));
    Values::One(value.map(|value| value.as_str().into()))
}

/// A value of a filter: `*` stands for any characters, `?` for one, `\` removes the special meaning
/// of the next character.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Pattern {
    /// A text without special characters.
    Exact(String),
    Globs(Vec<Glob>),
}

impl Pattern {
    fn of(value: &str) -> Self {
        if value.contains(['*', '?', '\\']) {
            Self::Globs(parsed(value))
        } else {
            Self::Exact(value.to_owned())
        }
    }

    fn exact(&self) -> Option<&str> {
        match self {
            Self::Exact(value) => Some(value),
            Self::Globs(_) => None,
        }
    }

    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == value,
            Self::Globs(globs) => globs_match(globs, value),
        }
    }
}

fn globs_match(pattern: &[Glob], value: &str) -> bool {
    let value: Vec<char> = value.chars().collect();
    let mut p = 0;
    let mut v = 0;
    // Where to continue if the part after the last star does not match: one character further.
    let mut retry: Option<(usize, usize)> = None;
    while v < value.len() {
        match pattern.get(p) {
            Some(Glob::Any) => {
                retry = Some((p + 1, v + 1));
                p += 1;
            }
            Some(Glob::One) => (p, v) = (p + 1, v + 1),
            Some(Glob::Letter(letter)) if *letter == value[v] => (p, v) = (p + 1, v + 1),
            _ => match retry {
                Some((after_star, next)) => {
                    (p, v) = (after_star, next);
                    retry = Some((after_star, next + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|glob| *glob == Glob::Any)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Glob {
    Any,
    One,
    Letter(char),
}

fn parsed(pattern: &str) -> Vec<Glob> {
    let mut letters = pattern.chars();
    let mut globs = Vec::new();
    while let Some(letter) = letters.next() {
        globs.push(match letter {
            '*' => Glob::Any,
            '?' => Glob::One,
            '\\' => Glob::Letter(letters.next().unwrap_or('\\')),
            other => Glob::Letter(other),
        });
    }
    // Consecutive stars count as one, which keeps the search short.
    globs.dedup_by(|a, b| *a == Glob::Any && *b == Glob::Any);
    globs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns() {
        for (pattern, value, expected) in [
            ("", "", true),
            ("", "a", false),
            ("a", "a", true),
            ("a", "A", false),
            ("*", "", true),
            ("*", "anything", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("*b*", "abc", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXbY", false),
            ("?", "", false),
            ("?", "a", true),
            ("??", "a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("\\", "\\", true),
            ("a\\?c", "a?c", true),
            ("a\\?c", "abc", false),
            ("**", "ab", true),
            ("*a*a*", "aa", true),
            ("\u{e9}?", "\u{e9}\u{e8}", true),
        ] {
            assert_eq!(Pattern::of(pattern).matches(value), expected, "{pattern:?} {value:?}");
        }
    }

    #[test]
    fn unknown_filters_are_named() {
        let filters =
            |name: &str| Filters::new(vec![(name.into(), vec!["x".into()])], &["a", "tag:"]);
        assert!(filters("a").is_ok());
        assert!(filters("tag:x").is_ok());
        for name in ["b", "tag:", "tag", "A"] {
            let error = filters(name).unwrap_err();
            assert_eq!(error.message, format!("The filter '{name}' is invalid"));
        }
        assert!(Filters::new(vec![("a".into(), vec![])], &["a"]).is_err());
        let many = vec![("a".into(), vec!["x".into(); VALUES_MAX + 1])];
        assert_eq!(Filters::new(many, &["a"]).unwrap_err().code, "FilterLimitExceeded");
    }

    /// The simplest possible matcher: exponential, and obviously correct.
    fn oracle(pattern: &[Glob], value: &[char]) -> bool {
        match (pattern.split_first(), value.split_first()) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some((Glob::Any, rest)), _) => {
                oracle(rest, value) || value.split_first().is_some_and(|(_, v)| oracle(pattern, v))
            }
            (Some(_), None) => false,
            (Some((Glob::One, rest)), Some((_, value))) => oracle(rest, value),
            (Some((Glob::Letter(l), rest)), Some((v, value))) => l == v && oracle(rest, value),
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_oracle(pattern in "[ab*?\\\\]{0,8}", value in "[ab*?]{0,8}") {
            let letters: Vec<char> = value.chars().collect();
            let matches = Pattern::of(&pattern).matches(&value);
            prop_assert_eq!(matches, oracle(&parsed(&pattern), &letters));
        }
    }
}
