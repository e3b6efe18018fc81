//! Settings of the account: encryption, public access to snapshots.

use std::fmt;
use std::str::FromStr;

use super::{Decision, Event, Model, Refusal, Settings};

/// EC2's alias of the key that encrypts volumes unless a request names another.
const ALIAS: &str = "alias/aws/ebs";

/// Settings that clients make for all volumes and snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Whether new volumes and copies of snapshots are encrypted unless a request asks otherwise.
    /// `None` until a client sets it; then they are encrypted if the store has a key.
    pub encrypt_by_default: Option<bool>,
    /// Whether snapshots can be shared with all accounts.
    pub public_access: PublicAccess,
}

/// Whether snapshots can be shared with all accounts. Its text is that of EC2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PublicAccess {
    /// They can.
    #[default]
    Unblocked,
    /// No more of them can.
    BlockNewSharing,
    /// None can. Those that are shared stay so in their attribute, and count as private.
    BlockAllSharing,
}

impl PublicAccess {
    const ALL: [Self; 3] = [Self::Unblocked, Self::BlockNewSharing, Self::BlockAllSharing];

    const fn name(self) -> &'static str {
        match self {
            Self::Unblocked => "unblocked",
            Self::BlockNewSharing => "block-new-sharing",
            Self::BlockAllSharing => "block-all-sharing",
        }
    }
}

impl fmt::Display for PublicAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text is none of [`PublicAccess`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownPublicAccess;

impl fmt::Display for UnknownPublicAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be unblocked, block-new-sharing or block-all-sharing")
    }
}

impl std::error::Error for UnknownPublicAccess {}

impl FromStr for PublicAccess {
    type Err = UnknownPublicAccess;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|it| it.name() == text).ok_or(UnknownPublicAccess)
    }
}

/// The key of the store, which wraps the data keys of volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreKey {
    /// Its id, of the form of a UUID. The same key has the same id.
    pub id: String,
}

impl StoreKey {
    /// Returns its name in the form of AWS's resource names.
    #[must_use]
    pub fn arn(&self, settings: &Settings) -> String {
        let Settings { region, account, .. } = settings;
        format!("arn:aws:kms:{region}:{account}:key/{}", self.id)
    }

    /// Returns whether `name` is this key's: its id, its ARN, or the alias of EBS's own key.
    #[must_use]
    pub fn is_named(&self, name: &str, settings: &Settings) -> bool {
        let Settings { region, account, .. } = settings;
        let alias = format!("arn:aws:kms:{region}:{account}:{ALIAS}");
        [&self.id, &self.arn(settings), ALIAS, &alias].contains(&name)
    }
}

impl Settings {
    /// Returns the region that requests must be signed for; empty if any is accepted.
    #[must_use]
    pub fn signed_region(&self) -> &str {
        if self.any_region { "" } else { &self.region }
    }

    /// Returns whether new volumes and copies of snapshots are encrypted unless a request asks
    /// otherwise.
    #[must_use]
    pub fn encrypts_by_default(&self, account: Account) -> bool {
        account.encrypt_by_default.unwrap_or(self.key.is_some())
    }
}

impl Model {
    /// Returns whether a new volume or snapshot is encrypted. `origin` is whether its origin is,
    /// and `asked` is the request's wish. As on EC2, a copy of encrypted bytes is encrypted, and
    /// the account's default overrides a request for no encryption.
    ///
    /// # Errors
    /// [`Refusal::NoKey`].
    pub(super) fn encryption(
        &self,
        settings: &Settings,
        origin: bool,
        asked: Option<bool>,
    ) -> Result<bool, Refusal> {
        let wanted = asked == Some(true) || settings.encrypts_by_default(self.account);
        match origin || wanted {
            true if settings.key.is_none() => Err(Refusal::NoKey),
            is_encrypted => Ok(is_encrypted),
        }
    }

    pub(super) fn encrypt_by_default(
        &self,
        settings: &Settings,
        is_on: bool,
    ) -> Result<Decision, Refusal> {
        if is_on && settings.key.is_none() {
            return Err(Refusal::NoKey);
        }
        let account = Account { encrypt_by_default: Some(is_on), ..self.account };
        Ok(Decision { events: vec![Event::Account(account)], ..Decision::default() })
    }

    pub(super) fn set_public_access(&self, public_access: PublicAccess) -> Decision {
        let account = Account { public_access, ..self.account };
        Decision { events: vec![Event::Account(account)], ..Decision::default() }
    }
}
