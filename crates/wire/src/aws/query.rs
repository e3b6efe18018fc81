//! Parameters of the EC2 query protocol: `application/x-www-form-urlencoded` pairs. Dots and
//! numbers in the names express lists and structures (`Filter.1.Value.2`).
//!
//! A server *takes* the parameters that it supports out of [`Params`]; the rest is unknown. So no
//! parameter can be ignored by mistake.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::percent;

/// The largest body or query string that is decoded, in bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum number of parameters of one request: EC2's longest lists (1,000 ids), which the EBS CSI
/// driver sends, and other parameters beside them.
pub const PARAMETERS_MAX: usize = 1_100;
/// The longest parameter name, in bytes, after decoding.
pub const NAME_BYTES_MAX: usize = 256;

/// Why a body cannot be decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueryError {
    /// More than [`BODY_BYTES_MAX`] bytes.
    TooLong {
        /// The number of bytes.
        bytes: usize,
    },
    /// More than [`PARAMETERS_MAX`] parameters.
    TooManyParameters,
    /// A `%` is not followed by two hexadecimal digits.
    BrokenEscape {
        /// Number of the parameter, from 1.
        parameter: usize,
    },
    /// A name or value is not UTF-8 after decoding.
    NotUtf8 {
        /// Number of the parameter, from 1.
        parameter: usize,
    },
    /// A name is longer than [`NAME_BYTES_MAX`].
    NameTooLong {
        /// Number of the parameter, from 1.
        parameter: usize,
    },
    /// A parameter is given twice.
    Duplicate {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "the parameters take {bytes} bytes; the limit is {BODY_BYTES_MAX}")
            }
            Self::TooManyParameters => {
                write!(f, "there are more than {PARAMETERS_MAX} parameters; split the request")
            }
            Self::BrokenEscape { parameter } => write!(
                f,
                "parameter number {parameter} has a '%' without two hexadecimal digits after it"
            ),
            Self::NotUtf8 { parameter } => {
                write!(f, "parameter number {parameter} is not UTF-8 once decoded")
            }
            Self::NameTooLong { parameter } => write!(
                f,
                "the name of parameter number {parameter} is longer than {NAME_BYTES_MAX} bytes"
            ),
            Self::Duplicate { name } => write!(f, "the parameter {name} is given twice"),
        }
    }
}

/// The parameters of one request, in the order sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Params {
    pairs: Vec<(String, String)>,
}

impl Params {
    /// Decodes a body or a query string. Empty pieces (`a=1&&b=2`) are skipped; a piece without `=`
    /// has an empty value.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn decode(encoded: &[u8]) -> Result<Self, QueryError> {
        if encoded.len() > BODY_BYTES_MAX {
            return Err(QueryError::TooLong { bytes: encoded.len() });
        }
        let mut pairs = Vec::new();
        let pieces = encoded.split(|&byte| byte == b'&').filter(|piece| !piece.is_empty());
        for (piece, parameter) in pieces.zip(1..) {
            if parameter > PARAMETERS_MAX {
                return Err(QueryError::TooManyParameters);
            }
            let split = piece.iter().position(|&byte| byte == b'=');
            let (name, value) = match split {
                Some(at) => (&piece[..at], &piece[at + 1..]),
                None => (piece, &piece[..0]),
            };
            let text = |bytes: &[u8]| {
                let decoded =
                    percent::decode(bytes).map_err(|_| QueryError::BrokenEscape { parameter })?;
                String::from_utf8(decoded).map_err(|_| QueryError::NotUtf8 { parameter })
            };
            let name = text(name)?;
            if name.len() > NAME_BYTES_MAX {
                return Err(QueryError::NameTooLong { parameter });
            }
            pairs.push((name, text(value)?));
        }
        Self::without_duplicates(pairs)
    }

    /// All parameters of `self`, then those of `other`: a query string and a body make one request.
    ///
    /// # Errors
    /// [`QueryError::Duplicate`] and [`QueryError::TooManyParameters`], as when decoding.
    pub fn and(mut self, other: Self) -> Result<Self, QueryError> {
        self.pairs.extend(other.pairs);
        if self.pairs.len() > PARAMETERS_MAX {
            return Err(QueryError::TooManyParameters);
        }
        Self::without_duplicates(self.pairs)
    }

    fn without_duplicates(pairs: Vec<(String, String)>) -> Result<Self, QueryError> {
        let mut names = BTreeSet::new();
        if let Some((name, _)) = pairs.iter().find(|(name, _)| !names.insert(name.as_str())) {
            return Err(QueryError::Duplicate { name: name.clone() });
        }
        Ok(Self { pairs })
    }

    /// The value of the parameter with exactly this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Takes the parameter with exactly this name.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let index = self.pairs.iter().position(|(n, _)| n == name)?;
        Some(self.pairs.remove(index).1)
    }

    /// Takes the list `name.1`, `name.2`, ... in the order of the numbers; gaps are allowed.
    pub fn take_list(&mut self, name: &str) -> Vec<String> {
        let mut list = Vec::new();
        self.pairs.retain_mut(|(n, value)| match numbered(n, name) {
            Some((number, "")) => {
                list.push((number, core::mem::take(value)));
                false
            }
            _ => true,
        });
        list.sort_by_key(|(number, _)| *number);
        list.into_iter().map(|(_, value)| value).collect()
    }

    /// Takes the fields `name.Field` of a structure, named without the prefix.
    #[must_use]
    pub fn take_structure(&mut self, name: &str) -> Self {
        let mut structure = Self::default();
        self.pairs.retain_mut(|(n, value)| {
            let field = n.strip_prefix(name).and_then(|field| field.strip_prefix('.'));
            let Some(field) = field.filter(|field| !field.is_empty()) else { return true };
            structure.pairs.push((field.to_string(), core::mem::take(value)));
            false
        });
        structure
    }

    /// Takes the list of structures `name.1.Field`, `name.2.Field`, ...: for each its number and
    /// its fields, named without the prefix.
    pub fn take_structures(&mut self, name: &str) -> Vec<(u32, Self)> {
        let mut structures: BTreeMap<u32, Self> = BTreeMap::new();
        self.pairs.retain_mut(|(n, value)| {
            let Some((number, field)) = numbered(n, name) else { return true };
            let Some(field) = field.strip_prefix('.').filter(|field| !field.is_empty()) else {
                return true;
            };
            let pair = (field.to_string(), core::mem::take(value));
            structures.entry(number).or_default().pairs.push(pair);
            false
        });
        structures.into_iter().collect()
    }

    /// All pairs, in the order sent.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The name of the first parameter that was not taken.
    #[must_use]
    pub fn first_name(&self) -> Option<&str> {
        self.pairs.first().map(|(name, _)| name.as_str())
    }

    /// Keeps only the parameters whose name passes `keep`.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.pairs.retain(|(name, _)| keep(name));
    }
}

/// Splits `name.7rest` after the number; `None` if `full` is not `name`, a dot and digits.
fn numbered<'a>(full: &'a str, name: &str) -> Option<(u32, &'a str)> {
    let rest = full.strip_prefix(name)?.strip_prefix('.')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at(digits);
    Some((number.parse().ok()?, rest))
}

/// Encodes parameters in the form that [`Params::decode`] reads.
#[must_use]
pub fn encode<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::new();
    for (name, value) in pairs {
        if !out.is_empty() {
            out.push('&');
        }
        percent::encode_into(&mut out, name.as_bytes());
        out.push('=');
        percent::encode_into(&mut out, value.as_bytes());
    }
    out
}

/// Returns `text` as it stands in a URL (RFC 3986).
#[must_use]
pub fn url_encoded(text: &str) -> String {
    percent::encode(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;
    use proptest::prelude::*;

    fn params(text: &str) -> Params {
        Params::decode(text.as_bytes()).unwrap()
    }

    #[test]
    fn lists_and_structures_are_taken_by_number() {
        let mut p = params(
            "Action=X&VolumeId.2=b&VolumeId.10=c&VolumeId.1=a&Filter.1.Name=n\
             &Filter.1.Value.2=y&Filter.1.Value.1=x&VolumeId.x=no&Filter.2=odd&VolumeIdx=z",
        );
        assert_eq!(p.take("Action").as_deref(), Some("X"));
        assert_eq!(p.take_list("VolumeId"), ["a", "b", "c"]);
        let mut filters = p.take_structures("Filter");
        assert_eq!(filters.len(), 1);
        let (number, filter) = &mut filters[0];
        assert_eq!(*number, 1);
        assert_eq!(filter.take("Name").as_deref(), Some("n"));
        assert_eq!(filter.take_list("Value"), ["x", "y"]);
        assert_eq!(filter.first_name(), None);
        let left: Vec<_> = p.iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["VolumeId.x", "Filter.2", "VolumeIdx"]);
    }

    #[test]
    fn every_bound_holds() {
        let many = vec!["a"; PARAMETERS_MAX + 1].join("&");
        let long = vec![b'a'; BODY_BYTES_MAX + 1];
        let name = "n".repeat(NAME_BYTES_MAX + 1);
        for (body, error) in [
            (long.as_slice(), QueryError::TooLong { bytes: BODY_BYTES_MAX + 1 }),
            (many.as_bytes(), QueryError::TooManyParameters),
            (name.as_bytes(), QueryError::NameTooLong { parameter: 1 }),
            (b"a=%zz", QueryError::BrokenEscape { parameter: 1 }),
            (b"b&a=%ff", QueryError::NotUtf8 { parameter: 2 }),
            (b"a=1&a=2", QueryError::Duplicate { name: "a".into() }),
        ] {
            assert_eq!(Params::decode(body), Err(error));
        }
        assert_eq!(params("a=1&&b&c="), params("a=1&b=&c="));
        let twice = params("a=1").and(params("a=2"));
        assert_eq!(twice, Err(QueryError::Duplicate { name: "a".into() }));
    }

    #[test]
    fn numbers_that_are_none_stay_behind() {
        for name in ["L", "L.", "L.x", "L.-1", "L.+1", "L.99999999999", "L.1.", "LL.1"] {
            let mut p = params(&encode([(name, "v")]));
            assert_eq!(p.take_list("L"), Vec::<String>::new(), "{name}");
            assert!(p.take_structures("L").is_empty(), "{name}");
            assert_eq!(p.first_name(), Some(name));
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            let _ = Params::decode(&bytes);
        }

        #[test]
        fn encoded_parameters_decode_to_themselves(
            map in proptest::collection::btree_map("\\PC{1,20}", "(?s).{0,20}", 0..20)
        ) {
            let text = encode(map.iter().map(|(n, v)| (n.as_str(), v.as_str())));
            let read = Params::decode(text.as_bytes()).unwrap();
            let pairs: BTreeMap<_, _> =
                read.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            prop_assert_eq!(pairs, map);
        }

        #[test]
        fn taking_loses_nothing(numbers in proptest::collection::btree_set(0_u32..2_000, 0..40)) {
            let text: Vec<String> = numbers.iter().rev().map(|n| format!("L.{n}={n}")).collect();
            let mut p = params(&text.join("&"));
            let expected: Vec<String> = numbers.iter().map(u32::to_string).collect();
            prop_assert_eq!(p.take_list("L"), expected);
            prop_assert_eq!(p.first_name(), None);
        }
    }
}
