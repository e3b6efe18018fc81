//! Filters of the Describe actions: the names that each action supports, and values with `*` and
//! `?`.

use super::error::ApiError;
use crate::model::Tags;

/// The most filters of one request.
const FILTERS_MAX: usize = 50;
/// The most values of all filters of one request together: EC2's own limit.
const VALUES_MAX: usize = 200;

/// The conditions for a result: it must match every filter by at least one of the filter's values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filters {
    filters: Vec<(String, Vec<String>)>,
}

impl Filters {
    /// Filters whose names are all in `known`; `tag:` in `known` stands for `tag:` and any key.
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
        Ok(Self { filters })
    }

    /// Whether an object passes all filters. `values_of` returns its values under a filter's name:
    /// several for a list (one match is enough), none if the object has no such property.
    pub fn pass(&self, values_of: impl Fn(&str) -> Vec<String>) -> bool {
        self.filters.iter().all(|(name, patterns)| {
            let values = values_of(name);
            patterns.iter().any(|pattern| values.iter().any(|value| matches(pattern, value)))
        })
    }
}

/// Values under `tag-key` and `tag:KEY`.
pub(super) fn tag_values(name: &str, tags: &Tags) -> Vec<String> {
    if name == "tag-key" {
        return tags.keys().cloned().collect();
    }
    let value = name.strip_prefix("tag:").and_then(|key| tags.get(key));
    value.into_iter().cloned().collect()
}

/// Whether `value` matches `pattern`: `*` stands for any characters, `?` for one, `\` removes the
/// special meaning of the next character.
fn matches(pattern: &str, value: &str) -> bool {
    let pattern = parsed(pattern);
    let value: Vec<char> = value.chars().collect();
    let (mut p, mut v) = (0, 0);
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
            assert_eq!(matches(pattern, value), expected, "{pattern:?} {value:?}");
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
            prop_assert_eq!(matches(&pattern, &value), oracle(&parsed(&pattern), &letters));
        }
    }
}
