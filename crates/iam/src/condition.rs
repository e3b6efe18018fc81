//! One condition of a statement: an operator, a key and the values that it is compared with.

use core::net::IpAddr;

use crate::Context;
use crate::json::Json;
use crate::pattern;

/// The kind of a key's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// A text.
    Text,
    /// Any number of texts.
    Texts,
    /// A whole number.
    Number,
    /// `true` or `false`.
    Bool,
    /// An IP address.
    Address,
}

/// The keys that conditions may compare. One that ends with a slash is followed by a tag's key.
pub const KEYS: [(&str, KeyKind); 13] = [
    ("aws:ResourceTag/", KeyKind::Text),
    ("aws:RequestTag/", KeyKind::Text),
    ("aws:TagKeys", KeyKind::Texts),
    ("aws:SourceIp", KeyKind::Address),
    ("aws:RequestedRegion", KeyKind::Text),
    ("aws:username", KeyKind::Text),
    ("ec2:ResourceTag/", KeyKind::Text),
    ("ec2:CreateAction", KeyKind::Text),
    ("ec2:Encrypted", KeyKind::Bool),
    ("ec2:VolumeType", KeyKind::Text),
    ("ec2:VolumeSize", KeyKind::Number),
    ("ec2:VolumeIops", KeyKind::Number),
    ("ec2:VolumeThroughput", KeyKind::Number),
];

/// How one value of a request is compared with one value of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Test {
    Equals,
    EqualsIgnoreCase,
    Like,
    NumericEquals,
    NumericLessThan,
    NumericLessThanEquals,
    NumericGreaterThan,
    NumericGreaterThanEquals,
    Bool,
    IpAddress,
}

/// The operators without prefix and suffix, with their tests and whether they are negated.
const OPERATORS: [(&str, Test, bool); 14] = [
    ("StringEquals", Test::Equals, false),
    ("StringNotEquals", Test::Equals, true),
    ("StringEqualsIgnoreCase", Test::EqualsIgnoreCase, false),
    ("StringNotEqualsIgnoreCase", Test::EqualsIgnoreCase, true),
    ("StringLike", Test::Like, false),
    ("StringNotLike", Test::Like, true),
    ("NumericEquals", Test::NumericEquals, false),
    ("NumericNotEquals", Test::NumericEquals, true),
    ("NumericLessThan", Test::NumericLessThan, false),
    ("NumericLessThanEquals", Test::NumericLessThanEquals, false),
    ("NumericGreaterThan", Test::NumericGreaterThan, false),
    ("NumericGreaterThanEquals", Test::NumericGreaterThanEquals, false),
    ("Bool", Test::Bool, false),
    ("IpAddress", Test::IpAddress, false),
];
/// The negation of `IpAddress` has no prefix in common with the others.
const NOT_IP_ADDRESS: &str = "NotIpAddress";
const NULL: &str = "Null";
const IF_EXISTS: &str = "IfExists";

/// How many of a request's values must match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Quantity {
    /// The only one.
    Single,
    /// `ForAnyValue`.
    Any,
    /// `ForAllValues`.
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    /// Whether the request lacks the key.
    Null,
    Compare {
        test: Test,
        is_negated: bool,
        quantity: Quantity,
        if_exists: bool,
    },
}

impl Operator {
    fn parse(name: &str) -> Option<Self> {
        if name == NULL {
            return Some(Self::Null);
        }
        let split = name.split_once(':');
        let (quantity, rest) = match split {
            None => (Quantity::Single, name),
            Some(("ForAnyValue", rest)) => (Quantity::Any, rest),
            Some(("ForAllValues", rest)) => (Quantity::All, rest),
            Some(_) => return None,
        };
        let plain = rest.strip_suffix(IF_EXISTS);
        let if_exists = plain.is_some();
        let plain = plain.unwrap_or(rest);
        let (test, is_negated) = if plain == NOT_IP_ADDRESS {
            (Test::IpAddress, true)
        } else {
            let found = OPERATORS.iter().find(|(known, ..)| *known == plain)?;
            (found.1, found.2)
        };
        Some(Self::Compare { test, is_negated, quantity, if_exists })
    }
}

/// One condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    operator: Operator,
    key: String,
    /// The values of the policy, in the form that the operator compares.
    values: Vec<String>,
}

/// Returns the kind of a key; `None` if it is not evaluated.
fn kind_of(key: &str) -> Option<KeyKind> {
    let is_this = |known: &str| {
        let begins = key.get(..known.len()).is_some_and(|start| start.eq_ignore_ascii_case(known));
        begins && (key.len() == known.len()) != known.ends_with('/')
    };
    KEYS.iter().find(|(known, _)| is_this(known)).map(|(_, kind)| *kind)
}

impl Condition {
    /// Reads one condition of the operator `name`.
    ///
    /// # Errors
    /// The operator or the key is not evaluated, they do not fit each other, or a value does not
    /// fit. The error has the reason.
    pub fn parse(name: &str, key: &str, values: &Json) -> Result<Self, String> {
        let operator = Operator::parse(name).ok_or_else(|| {
            let known = OPERATORS.map(|(known, ..)| known).join(", ");
            format!(
                "the condition operator '{name}' is not evaluated; {known}, {NOT_IP_ADDRESS} and \
                 {NULL} are, also with ForAllValues:, ForAnyValue: and {IF_EXISTS}"
            )
        })?;
        let kind = kind_of(key).ok_or_else(|| {
            let known = KEYS.map(|(known, _)| known).join(", ");
            format!(
                "the condition key '{key}' is not evaluated; {known} are, with the key of a tag \
                 after the /"
            )
        })?;
        check_fit(name, operator, key, kind)?;
        let values = match values {
            Json::List(values) => values.iter().collect(),
            value => vec![value],
        };
        if values.is_empty() {
            return Err(format!("the condition {name} of {key} has no values"));
        }
        let value = |value| {
            read(operator, value).map_err(|why| format!("the condition {name} of {key}: {why}"))
        };
        let values = values.into_iter().map(value).collect::<Result<_, _>>()?;
        Ok(Self { operator, key: key.to_owned(), values })
    }

    /// Returns the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the number of bytes of the key and of the values.
    pub fn bytes(&self) -> usize {
        self.key.len() + self.values.iter().map(String::len).sum::<usize>()
    }

    /// Returns whether the condition holds of these facts.
    pub fn holds(&self, context: &Context) -> bool {
        let found = context.values(&self.key);
        let Operator::Compare { test, is_negated, quantity, if_exists } = self.operator else {
            let is_absent = if found.is_empty() { "true" } else { "false" };
            return self.values.iter().any(|wanted| wanted == is_absent);
        };
        if found.is_empty() {
            return if_exists
                || match quantity {
                    Quantity::Single => is_negated,
                    Quantity::Any => false,
                    Quantity::All => true,
                };
        }
        let matches = |value: &String| {
            self.values.iter().any(|wanted| passes(test, wanted, value)) != is_negated
        };
        match quantity {
            Quantity::Single | Quantity::Any => found.iter().any(matches),
            Quantity::All => found.iter().all(matches),
        }
    }
}

/// Checks that an operator can compare a key's values.
fn check_fit(name: &str, operator: Operator, key: &str, kind: KeyKind) -> Result<(), String> {
    let Operator::Compare { test, quantity, .. } = operator else { return Ok(()) };
    if kind == KeyKind::Texts && quantity == Quantity::Single {
        return Err(format!(
            "{key} has several values, so its operator must be ForAllValues:{name} or \
             ForAnyValue:{name}"
        ));
    }
    let fits = match test {
        Test::Equals | Test::EqualsIgnoreCase | Test::Like => kind != KeyKind::Address,
        Test::Bool => kind == KeyKind::Bool,
        Test::IpAddress => kind == KeyKind::Address,
        _ => kind == KeyKind::Number,
    };
    if fits { Ok(()) } else { Err(format!("the operator {name} does not fit the key {key}")) }
}

/// Returns a value in the form that the operator compares.
fn read(operator: Operator, value: &Json) -> Result<String, String> {
    let text = match value {
        Json::Text(text) | Json::Number(text) => text.clone(),
        Json::Bool(value) => value.to_string(),
        other => return Err(format!("a value is {}; it must be a text", other.kind())),
    };
    if text.contains("${") {
        return Err(format!("'{text}' has a policy variable, which is not evaluated"));
    }
    let wrong = |what: &str| Err(format!("'{text}' must be {what}"));
    match operator {
        Operator::Null | Operator::Compare { test: Test::Bool, .. } => {
            let lower = text.to_ascii_lowercase();
            if ["true", "false"].contains(&lower.as_str()) {
                return Ok(lower);
            }
            wrong("true or false")
        }
        Operator::Compare { test: Test::IpAddress, .. } if Network::parse(&text).is_none() => {
            wrong("an address or a network, such as 192.0.2.0/24")
        }
        Operator::Compare { test, .. } if is_numeric(test) && text.parse::<i64>().is_err() => {
            wrong("a whole number")
        }
        Operator::Compare { .. } => Ok(text),
    }
}

const fn is_numeric(test: Test) -> bool {
    matches!(
        test,
        Test::NumericEquals
            | Test::NumericLessThan
            | Test::NumericLessThanEquals
            | Test::NumericGreaterThan
            | Test::NumericGreaterThanEquals
    )
}

/// Compares a value of a request with one of a policy.
fn passes(test: Test, wanted: &str, value: &str) -> bool {
    let numbers = |compare: fn(&i64, &i64) -> bool| {
        let both = (value.parse::<i64>(), wanted.parse::<i64>());
        matches!(both, (Ok(value), Ok(wanted)) if compare(&value, &wanted))
    };
    match test {
        Test::Equals => value == wanted,
        Test::EqualsIgnoreCase => value.to_lowercase() == wanted.to_lowercase(),
        Test::Like => pattern::matches(wanted, value),
        Test::NumericEquals => numbers(i64::eq),
        Test::NumericLessThan => numbers(i64::lt),
        Test::NumericLessThanEquals => numbers(i64::le),
        Test::NumericGreaterThan => numbers(i64::gt),
        Test::NumericGreaterThanEquals => numbers(i64::ge),
        Test::Bool => value.eq_ignore_ascii_case(wanted),
        Test::IpAddress => {
            let network = Network::parse(wanted);
            let address = value.parse().ok();
            network.zip(address).is_some_and(|(network, address)| network.contains(address))
        }
    }
}

/// A network of addresses: `192.0.2.0/24`, or one address.
struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            Some(prefix) if prefix.bytes().all(|digit| digit.is_ascii_digit()) => {
                prefix.parse().ok().filter(|count| *count <= bits)?
            }
            Some(_) => return None,
            None => bits,
        };
        Some(Self { address, prefix_bits })
    }

    /// An IPv4 address that arrived at a socket of IPv6 counts as the IPv4 address.
    fn contains(&self, address: IpAddr) -> bool {
        let (own, other, bits) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        // A shift by all 128 bits has no result: every address is in a network of no bits.
        let differ = own ^ other;
        differ.checked_shr(bits - self.prefix_bits).is_none_or(|rest| rest == 0)
    }
}
