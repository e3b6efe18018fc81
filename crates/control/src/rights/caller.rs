//! The signer of a request: the account's root user, or a user with policies.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_iam::Policy;
use evenkeel_iam::managed::Managed;
use tracing::error;

use crate::model::User;

/// The signer of a request, and the place of which it came.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The signer.
    pub identity: Identity,
    /// The address of the connection. In a cluster it may be that of a node that relayed it.
    pub address: IpAddr,
    /// The access key that signed.
    pub access_key_id: String,
}

/// A signer.
#[derive(Clone, Debug)]
pub enum Identity {
    /// The account's root user, which has every right.
    Root,
    /// A user.
    User(Arc<Principal>),
}

impl Identity {
    /// Returns the signer's ARN.
    #[must_use]
    pub fn arn(&self, account: &str) -> String {
        match self {
            Self::Root => format!("arn:aws:iam::{account}:root"),
            Self::User(principal) => principal.arn.clone(),
        }
    }

    /// Returns the signer's id: of the root user the account's number.
    #[must_use]
    pub fn id<'a>(&'a self, account: &'a str) -> &'a str {
        match self {
            Self::Root => account,
            Self::User(principal) => &principal.id,
        }
    }
}

/// The kind of a policy, as SimulatePrincipalPolicy names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A policy of the user's own.
    Own,
    /// A managed policy that is attached to the user.
    Managed,
    /// A policy that a simulation adds.
    Given,
}

/// A policy with its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPolicy {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub origin: Origin,
    /// The policy.
    pub policy: Policy,
}

/// A user with its policies, ready to be evaluated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    /// The user's name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Its ARN.
    pub arn: String,
    /// All of its policies.
    pub policies: Vec<NamedPolicy>,
}

impl Principal {
    /// Returns a user of an account with its policies. A policy that cannot be read denies
    /// everything; none was ever written.
    #[must_use]
    pub fn of(user: &User, account: &str) -> Self {
        let read = |name: &str, origin, document: &str| {
            let policy = Policy::parse(document).unwrap_or_else(|why| {
                error!(user = user.name, policy = name, %why, "a policy denies everything");
                Policy::deny_all()
            });
            NamedPolicy { name: name.to_owned(), origin, policy }
        };
        let own = user.policies.iter().map(|(name, document)| read(name, Origin::Own, document));
        let attached = user.attached.iter().filter_map(|arn| Managed::with_arn(arn));
        let attached =
            attached.map(|managed| read(managed.name, Origin::Managed, managed.document));
        Self {
            name: user.name.clone(),
            id: user.id.clone(),
            arn: user.arn(account),
            policies: own.chain(attached).collect(),
        }
    }
}
