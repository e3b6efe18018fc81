//! Users of the account: their access keys, their policies, and the rules for changing them.
//!
//! The account's root user is not among them: its key is in the data folder
//! ([`crate::credentials`]), and it has every right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Event, Model, UnixMs};
use evenkeel_iam::managed::Managed;

/// Maximum number of users.
pub const USERS_MAX: usize = 1_000;
/// Maximum number of access keys of a user, as at AWS: a second one while the first is replaced.
pub const KEYS_MAX: usize = 2;
/// Maximum number of managed policies that are attached to a user, as at AWS.
pub const ATTACHED_MAX: usize = 10;
/// Maximum number of characters of all policies that a user has of its own, without white space, as
/// at AWS.
pub const OWN_POLICIES_MAX: usize = 2_048;

/// A secret access key. It is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// An access key of a user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessKey {
    /// The public half.
    pub id: String,
    /// The secret half.
    pub secret: Secret,
    /// Whether requests may be signed with it.
    pub is_active: bool,
    /// When it was created.
    pub created: UnixMs,
}

/// A user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Its name. No other user has it in another case.
    pub name: String,
    /// Its path, which begins and ends with a slash.
    pub path: String,
    /// An id that no other user ever has.
    pub id: String,
    /// When it was created.
    pub created: UnixMs,
    /// Its access keys, oldest first.
    pub keys: Vec<AccessKey>,
    /// The JSON of its own policies, by name.
    pub policies: BTreeMap<String, String>,
    /// The ARNs of the managed policies that are attached to it.
    pub attached: BTreeSet<String>,
}

impl User {
    /// Returns the key of a user of this name in [`Model::users`]: names have no case.
    #[must_use]
    pub fn key_of(name: &str) -> String {
        name.to_lowercase()
    }

    /// Returns its name among all resources.
    #[must_use]
    pub fn arn(&self, account: &str) -> String {
        let Self { path, name, .. } = self;
        format!("arn:aws:iam::{account}:user{path}{name}")
    }
}

/// A change of a user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UserChange {
    /// Create a user.
    Create {
        /// Its path.
        path: String,
        /// Its new id.
        id: String,
    },
    /// Delete a user without keys and policies.
    Delete,
    /// Add an access key.
    AddKey {
        /// Its public half.
        id: String,
        /// Its secret half.
        secret: Secret,
    },
    /// Activate or deactivate an access key.
    SetKey {
        /// Its public half.
        id: String,
        /// Whether it may be used.
        is_active: bool,
    },
    /// Delete an access key.
    RemoveKey {
        /// Its public half.
        id: String,
    },
    /// Write a policy of the user's own. The caller has checked its JSON.
    PutPolicy {
        /// Its name.
        policy: String,
        /// Its JSON.
        document: String,
    },
    /// Delete a policy of the user's own.
    RemovePolicy {
        /// Its name.
        policy: String,
    },
    /// Attach a managed policy.
    Attach {
        /// Its ARN.
        arn: String,
    },
    /// Detach a managed policy.
    Detach {
        /// Its ARN.
        arn: String,
    },
}

/// Why a change of a user is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UserRefusal {
    /// No user has this name.
    NoUser(String),
    /// A user has this name already.
    UserExists(String),
    /// The account has the maximum number of users.
    TooManyUsers,
    /// The user has the maximum number of access keys.
    TooManyKeys,
    /// The user has no access key of this id.
    NoKey(String),
    /// The user has no policy of its own of this name.
    NoPolicy(String),
    /// There is no managed policy of this ARN, or it is not attached.
    NoManagedPolicy(String),
    /// The user has the maximum number of attached policies.
    TooManyAttached,
    /// The user's own policies would have more characters than the maximum.
    PoliciesTooLong {
        /// Number of their characters without white space.
        characters: usize,
    },
    /// The user cannot be deleted before these are.
    Has(&'static str),
}

/// Returns the number of characters of a policy that count.
fn characters(document: &str) -> usize {
    document.chars().filter(|letter| !letter.is_whitespace()).count()
}

impl Model {
    /// Returns a user.
    ///
    /// # Errors
    /// [`UserRefusal::NoUser`].
    pub fn user(&self, name: &str) -> Result<&User, UserRefusal> {
        let found = self.users.get(&User::key_of(name));
        found.ok_or_else(|| UserRefusal::NoUser(name.to_owned()))
    }

    /// Returns the events of a change of a user; none if nothing changes.
    ///
    /// # Errors
    /// See [`UserRefusal`].
    pub fn change_user(
        &self,
        name: &str,
        change: &UserChange,
        now: UnixMs,
    ) -> Result<Vec<Event>, UserRefusal> {
        if let UserChange::Create { path, id } = change {
            return self.create_user(name, path, id, now);
        }
        let before = self.user(name)?;
        let mut user = before.clone();
        match change {
            UserChange::Create { .. } => {}
            UserChange::Delete => return delete_user(before),
            UserChange::AddKey { id, secret } => {
                if user.keys.len() >= KEYS_MAX {
                    return Err(UserRefusal::TooManyKeys);
                }
                let secret = secret.clone();
                let key = AccessKey { id: id.clone(), secret, is_active: true, created: now };
                user.keys.push(key);
            }
            UserChange::SetKey { id, is_active } => {
                let key = user.keys.iter_mut().find(|key| key.id == *id);
                let key = key.ok_or_else(|| UserRefusal::NoKey(id.clone()))?;
                key.is_active = *is_active;
            }
            UserChange::RemoveKey { id } => {
                user.keys.retain(|key| key.id != *id);
                if user.keys.len() == before.keys.len() {
                    return Err(UserRefusal::NoKey(id.clone()));
                }
            }
            UserChange::PutPolicy { policy, document } => {
                user.policies.insert(policy.clone(), document.clone());
                let characters = user.policies.values().map(|own| characters(own)).sum();
                if characters > OWN_POLICIES_MAX {
                    return Err(UserRefusal::PoliciesTooLong { characters });
                }
            }
            UserChange::RemovePolicy { policy } => {
                if user.policies.remove(policy).is_none() {
                    return Err(UserRefusal::NoPolicy(policy.clone()));
                }
            }
            UserChange::Attach { arn } => {
                if Managed::with_arn(arn).is_none() {
                    return Err(UserRefusal::NoManagedPolicy(arn.clone()));
                }
                user.attached.insert(arn.clone());
                if user.attached.len() > ATTACHED_MAX {
                    return Err(UserRefusal::TooManyAttached);
                }
            }
            UserChange::Detach { arn } => {
                if !user.attached.remove(arn) {
                    return Err(UserRefusal::NoManagedPolicy(arn.clone()));
                }
            }
        }
        Ok(if user == *before { Vec::new() } else { vec![Event::User(user)] })
    }

    fn create_user(
        &self,
        name: &str,
        path: &str,
        id: &str,
        now: UnixMs,
    ) -> Result<Vec<Event>, UserRefusal> {
        if self.user(name).is_ok() {
            return Err(UserRefusal::UserExists(name.to_owned()));
        }
        if self.users.len() >= USERS_MAX {
            return Err(UserRefusal::TooManyUsers);
        }
        Ok(vec![Event::User(User {
            name: name.to_owned(),
            path: path.to_owned(),
            id: id.to_owned(),
            created: now,
            keys: Vec::new(),
            policies: BTreeMap::new(),
            attached: BTreeSet::new(),
        })])
    }
}

fn delete_user(user: &User) -> Result<Vec<Event>, UserRefusal> {
    if !user.keys.is_empty() {
        return Err(UserRefusal::Has("access keys"));
    }
    if !user.policies.is_empty() {
        return Err(UserRefusal::Has("policies"));
    }
    if !user.attached.is_empty() {
        return Err(UserRefusal::Has("attached policies"));
    }
    Ok(vec![Event::UserGone(User::key_of(&user.name))])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(model: &mut Model, name: &str, change: &UserChange) -> Result<usize, UserRefusal> {
        let events = model.change_user(name, change, UnixMs(5))?;
        let count = events.len();
        events.into_iter().for_each(|event| model.apply(event));
        Ok(count)
    }

    fn create(model: &mut Model, name: &str) -> Result<usize, UserRefusal> {
        let id = format!("AIDA{name}");
        change(model, name, &UserChange::Create { path: "/".into(), id })
    }

    fn key(number: usize) -> UserChange {
        UserChange::AddKey { id: format!("K{number}"), secret: Secret("s3cret".into()) }
    }

    #[test]
    fn a_user_goes_through_its_life() {
        let mut model = Model::default();
        assert_eq!(create(&mut model, "Ann"), Ok(1));
        assert_eq!(create(&mut model, "aNN"), Err(UserRefusal::UserExists("aNN".into())));
        for number in 0..KEYS_MAX {
            assert_eq!(change(&mut model, "ann", &key(number)), Ok(1));
        }
        assert_eq!(change(&mut model, "ann", &key(9)), Err(UserRefusal::TooManyKeys));
        let off = UserChange::SetKey { id: "K0".into(), is_active: false };
        assert_eq!(change(&mut model, "ann", &off), Ok(1));
        assert_eq!(change(&mut model, "ann", &off), Ok(0));
        assert!(!model.user("ann").unwrap().keys[0].is_active);
        assert!(!format!("{:?}", model.user("ann").unwrap()).contains("s3cret"));
        let conflict = |what| Err(UserRefusal::Has(what));
        assert_eq!(change(&mut model, "ann", &UserChange::Delete), conflict("access keys"));
        for id in ["K0", "K1"] {
            assert_eq!(change(&mut model, "ann", &UserChange::RemoveKey { id: id.into() }), Ok(1));
        }
        let gone = UserChange::RemoveKey { id: "K0".into() };
        assert_eq!(change(&mut model, "ann", &gone), Err(UserRefusal::NoKey("K0".into())));
        let arn = "arn:aws:iam::aws:policy/ReadOnlyAccess".to_owned();
        assert_eq!(change(&mut model, "ann", &UserChange::Attach { arn: arn.clone() }), Ok(1));
        let conflicting = change(&mut model, "ann", &UserChange::Delete);
        assert_eq!(conflicting, conflict("attached policies"));
        assert_eq!(change(&mut model, "ann", &UserChange::Detach { arn: arn.clone() }), Ok(1));
        let twice = change(&mut model, "ann", &UserChange::Detach { arn: arn.clone() });
        assert_eq!(twice, Err(UserRefusal::NoManagedPolicy(arn)));
        assert_eq!(change(&mut model, "ann", &UserChange::Delete), Ok(1));
        assert!(model.users.is_empty());
        let absent = change(&mut model, "ann", &UserChange::Delete);
        assert_eq!(absent, Err(UserRefusal::NoUser("ann".into())));
    }

    #[test]
    fn policies_and_users_are_bounded() {
        let mut model = Model::default();
        create(&mut model, "ann").unwrap();
        let put = |name: &str, characters: usize| UserChange::PutPolicy {
            policy: name.into(),
            document: "x \n".repeat(characters),
        };
        assert_eq!(change(&mut model, "ann", &put("a", 1_000)), Ok(1));
        assert_eq!(change(&mut model, "ann", &put("b", 1_048)), Ok(1));
        let more = change(&mut model, "ann", &put("c", 1));
        assert_eq!(more, Err(UserRefusal::PoliciesTooLong { characters: 2_049 }));
        assert_eq!(change(&mut model, "ann", &put("a", 1)), Ok(1));
        let conflict = change(&mut model, "ann", &UserChange::Delete);
        assert_eq!(conflict, Err(UserRefusal::Has("policies")));
        for number in 1..USERS_MAX {
            create(&mut model, &format!("u{number}")).unwrap();
        }
        assert_eq!(create(&mut model, "more"), Err(UserRefusal::TooManyUsers));
    }
}
