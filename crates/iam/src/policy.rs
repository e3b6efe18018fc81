//! A policy: statements, read from JSON.
//!
//! | element | evaluated |
//! | --- | --- |
//! | `Version` | `2012-10-17`, `2008-10-17` |
//! | `Id` | a name |
//! | `Statement` | one, or a list |
//! | `Sid` | a name |
//! | `Effect` | `Allow`, `Deny` |
//! | `Action`, `NotAction` | one of the two: names with wildcards |
//! | `Resource` | ARNs with wildcards |
//! | `Condition` | the operators of text, number, boolean, address and `Null`; [`KEYS`] |
//!
//! Every other element is an error that names it: `NotResource`, `Principal`, `NotPrincipal`, other
//! operators and keys, policy variables.
//!
//! [`KEYS`]: crate::KEYS

use std::fmt;

use crate::Request;
use crate::condition::Condition;
use crate::json::Json;
use crate::pattern::{ActionPattern, ResourcePattern};

/// Maximum number of bytes of a Sid in an error.
const SID_SHOWN_MAX: usize = 64;
const VERSIONS: [&str; 2] = ["2012-10-17", "2008-10-17"];

/// Why a text is not a policy that can be evaluated. The text names the element.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed(String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

fn malformed(text: impl Into<String>) -> Malformed {
    Malformed(text.into())
}

/// The effect of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// `Allow`
    Allow,
    /// `Deny`
    Deny,
}

/// A statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// Its name; empty if it has none.
    pub sid: String,
    /// Its effect on requests to which it applies.
    pub effect: Effect,
    /// Whether the actions are those to which it does not apply.
    is_not_action: bool,
    actions: Vec<ActionPattern>,
    resources: Vec<ResourcePattern>,
    conditions: Vec<Condition>,
}

impl Statement {
    /// Returns whether action, resource and all conditions match.
    #[must_use]
    pub fn applies(&self, request: &Request) -> bool {
        let is_named = self.actions.iter().any(|pattern| pattern.matches(&request.action));
        is_named != self.is_not_action
            && self.resources.iter().any(|pattern| pattern.matches(&request.resource))
            && self.conditions.iter().all(|condition| condition.holds(&request.context))
    }

    /// Returns the keys that its conditions compare.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.conditions.iter().map(Condition::key)
    }

    /// Returns the number of bytes that a decision compares at most: those of the actions, the
    /// resources and the conditions.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let actions = self.actions.iter().map(ActionPattern::bytes);
        let resources = self.resources.iter().map(ResourcePattern::bytes);
        let conditions = self.conditions.iter().map(Condition::bytes);
        actions.chain(resources).chain(conditions).sum()
    }

    fn parse(value: &Json) -> Result<Self, Malformed> {
        let Json::Object(fields) = value else {
            return Err(malformed(format!(
                "a statement is {}; it must be an object",
                value.kind()
            )));
        };
        let known = ["Sid", "Effect", "Action", "NotAction", "Resource", "Condition"].as_slice();
        check_names(fields, known, "a statement")?;
        let sid = match field(fields, "Sid") {
            None => String::new(),
            Some(Json::Text(sid)) if sid.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                sid.clone()
            }
            Some(_) => {
                return Err(malformed(
                    "Statement IDs (SID) must be alpha-numeric: letters and digits without spaces",
                ));
            }
        };
        let effect = match field(fields, "Effect") {
            Some(Json::Text(text)) if text == "Allow" => Effect::Allow,
            Some(Json::Text(text)) if text == "Deny" => Effect::Deny,
            Some(Json::Text(other)) => {
                return Err(malformed(format!(
                    "the element Effect is '{other}'; it must be Allow or Deny"
                )));
            }
            Some(other) => {
                let kind = other.kind();
                return Err(malformed(format!(
                    "the element Effect is {kind}; it must be Allow or Deny"
                )));
            }
            None => return Err(malformed("the element Effect is missing: add Allow or Deny")),
        };
        let actions = (field(fields, "Action"), field(fields, "NotAction"));
        let (actions, is_not_action) = match actions {
            (Some(actions), None) => (texts("Action", actions)?, false),
            (None, Some(actions)) => (texts("NotAction", actions)?, true),
            _ => return Err(malformed("a statement must have either Action or NotAction")),
        };
        let actions = actions.iter().map(|text| ActionPattern::parse(text));
        let actions = actions.collect::<Result<_, _>>().map_err(malformed)?;
        let resources = field(fields, "Resource")
            .ok_or_else(|| malformed("Policy statement must contain resources: add Resource"))?;
        let resources = texts("Resource", resources)?;
        let resources = resources.iter().map(|text| ResourcePattern::parse(text));
        let resources = resources.collect::<Result<_, _>>().map_err(malformed)?;
        let conditions = field(fields, "Condition").map_or(Ok(Vec::new()), conditions)?;
        Ok(Self { sid, effect, is_not_action, actions, resources, conditions })
    }
}

/// A policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy(Vec<Statement>);

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// The text is not the JSON of a policy, or has an element that is not evaluated. The error
    /// names it.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let is_allowed = |letter: char| {
            matches!(letter, '\t' | '\n' | '\r' | ' '..='\u{ff}') && letter != '\u{7f}'
        };
        if let Some(letter) = text.chars().find(|letter| !is_allowed(*letter)) {
            let code = u32::from(letter);
            return Err(malformed(format!(
                "the character U+{code:04X} is none that a policy may have: write it as \
                 \\u{code:04x}"
            )));
        }
        let value: Json = serde_json::from_str(text)
            .map_err(|error| malformed(format!("Syntax errors in policy: {error}")))?;
        let Json::Object(fields) = &value else {
            return Err(malformed(format!("a policy is {}; it must be an object", value.kind())));
        };
        check_names(fields, &["Version", "Id", "Statement"], "a policy")?;
        match field(fields, "Version") {
            None => {}
            Some(Json::Text(version)) if VERSIONS.contains(&version.as_str()) => {}
            Some(_) => {
                let text = format!("the element Version must be {}", VERSIONS.join(" or "));
                return Err(malformed(text));
            }
        }
        if field(fields, "Id").is_some_and(|id| !matches!(id, Json::Text(_))) {
            return Err(malformed("the element Id must be a text"));
        }
        let statements = match field(fields, "Statement") {
            Some(Json::List(statements)) => statements.iter().collect(),
            Some(statement) => vec![statement],
            None => Vec::new(),
        };
        if statements.is_empty() {
            return Err(malformed("a policy must have the element Statement, with one at least"));
        }
        let statements = statements.into_iter().zip(1..).map(|(value, number)| {
            Statement::parse(value)
                .map_err(|Malformed(why)| malformed(format!("{}: {why}", name_of(value, number))))
        });
        let statements = statements.collect::<Result<Vec<_>, _>>()?;
        for (number, statement) in statements.iter().enumerate() {
            let is_this = |other: &Statement| other.sid == statement.sid;
            if !statement.sid.is_empty() && statements[..number].iter().any(is_this) {
                let text = "Statement IDs (SID) in a single policy must be unique";
                return Err(malformed(format!("{text}: {} is there twice", statement.sid)));
            }
        }
        Ok(Self(statements))
    }

    /// Returns the policy that denies every request.
    #[must_use]
    pub fn deny_all() -> Self {
        Self(vec![Statement {
            sid: String::new(),
            effect: Effect::Deny,
            // No action is named, so this is every one.
            is_not_action: true,
            actions: Vec::new(),
            resources: vec![ResourcePattern::Any],
            conditions: Vec::new(),
        }])
    }

    /// Returns the statements.
    #[must_use]
    pub fn statements(&self) -> &[Statement] {
        &self.0
    }
}

/// Returns the name of a statement for an error: its number, and its Sid if it has a short one.
fn name_of(value: &Json, number: usize) -> String {
    let sid = match value {
        Json::Object(fields) => field(fields, "Sid"),
        _ => None,
    };
    match sid {
        Some(Json::Text(sid)) if (1..=SID_SHOWN_MAX).contains(&sid.len()) => {
            format!("statement {number} ({sid})")
        }
        _ => format!("statement {number}"),
    }
}

fn field<'a>(fields: &'a [(String, Json)], name: &str) -> Option<&'a Json> {
    fields.iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

fn check_names(fields: &[(String, Json)], known: &[&str], what: &str) -> Result<(), Malformed> {
    match fields.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, _)) => {
            let known = known.join(", ");
            let text = format!(
                "the element {name} of {what} is not evaluated; remove it: {known} are evaluated"
            );
            Err(malformed(text))
        }
    }
}

/// Returns one text, or those of a list, of which there must be one at least.
fn texts<'a>(name: &str, value: &'a Json) -> Result<Vec<&'a str>, Malformed> {
    let values = match value {
        Json::List(values) => values.as_slice(),
        value => std::slice::from_ref(value),
    };
    let text = |value: &'a Json| match value {
        Json::Text(text) => Ok(text.as_str()),
        other => {
            let text = format!("the element {name} has {}; it must have texts", other.kind());
            Err(malformed(text))
        }
    };
    if values.is_empty() {
        return Err(malformed(format!("the element {name} is empty")));
    }
    values.iter().map(text).collect()
}

fn conditions(value: &Json) -> Result<Vec<Condition>, Malformed> {
    let object = |value: &Json| match value {
        Json::Object(fields) => Ok(fields.clone()),
        other => {
            let text = format!("the element Condition has {} in place of an object", other.kind());
            Err(malformed(text))
        }
    };
    let mut conditions = Vec::new();
    for (operator, keys) in object(value)? {
        for (key, values) in object(&keys)? {
            conditions.push(Condition::parse(&operator, &key, &values).map_err(malformed)?);
        }
    }
    Ok(conditions)
}
