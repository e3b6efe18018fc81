//! Policies of IAM: their JSON, and the decision whether they allow a request.
//!
//! Pure: no clock, no files, no sockets. [`Policy::parse`] reads a policy and refuses every element
//! that [`decide`] would not evaluate. [`decide`] gets the policies of a user and a [`Request`],
//! and returns a [`Verdict`].
//!
//! The rules are those of the IAM documentation:
//!
//! - A request is denied unless a statement allows it, and denied if any statement denies it
//!   (`IAM/latest/UserGuide/reference_policies_evaluation-logic_policy-eval-denyallow.html`).
//! - A statement applies if its action, its resource and all of its conditions match
//!   (`reference_policies_elements.html`).
//! - A key that the request does not have makes a condition false, that of a negated operator true,
//!   that of an operator with `IfExists` true
//!   (`reference_policies_elements_condition_operators.html`).
//! - `ForAllValues` is true and `ForAnyValue` false without values
//!   (`reference_policies_condition-single-vs-multi-valued-context-keys.html`).
//!
//! | module | contents |
//! | --- | --- |
//! | [`policy`] | a policy, its statements, and how its JSON is read |
//! | `condition` | one condition: operator, key and values |
//! | `pattern` | names of actions and resources with wildcards |
//! | `json` | JSON in which an object names each of its fields once |
//! | [`managed`] | the policies that are ready to be attached |
#![deny(missing_docs)]

mod condition;
mod json;
pub mod managed;
mod pattern;
pub mod policy;

pub use condition::{KEYS, KeyKind};
pub use policy::{Effect, Malformed, Policy, Statement};

/// The facts of a request that conditions compare: keys with their values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Context(Vec<(String, Vec<String>)>);

impl Context {
    /// Adds a key with its values.
    pub fn add(&mut self, key: impl Into<String>, values: Vec<String>) {
        self.0.push((key.into(), values));
    }

    /// Returns the values of a key; none if the request does not have it. Names of keys have no
    /// case. If two tags differ only in case, the exact name counts.
    #[must_use]
    pub fn values(&self, key: &str) -> &[String] {
        let exactly = self.0.iter().find(|(name, _)| name == key);
        let found =
            exactly.or_else(|| self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)));
        found.map_or(&[], |(_, values)| values)
    }

    /// Returns all keys with their values, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.0.iter().map(|(key, values)| (key.as_str(), values.as_slice()))
    }
}

/// The question whether an action may be executed on a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The action, with its service: `ec2:AttachVolume`.
    pub action: String,
    /// The name (ARN) of the resource, or `*` of an action without one.
    pub resource: String,
    /// The facts that conditions compare.
    pub context: Context,
}

/// A decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// A statement allows the request, and none denies it.
    Allowed,
    /// A statement denies the request.
    ExplicitDeny,
    /// No statement allows the request.
    ImplicitDeny,
}

/// A decision with the statements that led to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict<'a> {
    /// The decision.
    pub decision: Decision,
    /// The statements that deny, of an explicit deny, or that allow, of an allowed request. Each
    /// with the index of its policy.
    pub statements: Vec<(usize, &'a Statement)>,
}

/// Decides a request by all policies of a user.
#[must_use]
pub fn decide<'a>(
    policies: impl IntoIterator<Item = &'a Policy>,
    request: &Request,
) -> Verdict<'a> {
    let mut allowing = Vec::new();
    let mut denying = Vec::new();
    for (number, policy) in policies.into_iter().enumerate() {
        for statement in policy.statements().iter().filter(|each| each.applies(request)) {
            match statement.effect {
                Effect::Allow => allowing.push((number, statement)),
                Effect::Deny => denying.push((number, statement)),
            }
        }
    }
    if !denying.is_empty() {
        Verdict { decision: Decision::ExplicitDeny, statements: denying }
    } else if allowing.is_empty() {
        Verdict { decision: Decision::ImplicitDeny, statements: Vec::new() }
    } else {
        Verdict { decision: Decision::Allowed, statements: allowing }
    }
}
