//! The access keys of users, by their ids. A signature finds its key here, without a look at the
//! other users and without a wait for the model.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::Principal;
use crate::model::users::Secret;
use crate::model::{Event, Model, User};

#[derive(Clone, Debug)]
struct Entry {
    secret: Secret,
    principal: Arc<Principal>,
}

/// See the module's text. It has the active keys only.
#[derive(Debug, Default)]
pub struct Keyring(RwLock<BTreeMap<String, Entry>>);

impl Keyring {
    /// Returns the keys of all users of a model.
    #[must_use]
    pub fn of(model: &Model, account: &str) -> Self {
        let mut entries = BTreeMap::new();
        model.users.values().for_each(|user| add(&mut entries, user, account));
        Self(RwLock::new(entries))
    }

    /// Returns the secret of an active key, and its user.
    pub fn find(&self, access_key_id: &str) -> Option<(String, Arc<Principal>)> {
        // Nothing that changes the map can panic halfway.
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Entry { secret, principal } = entries.get(access_key_id)?;
        Some((secret.0.clone(), Arc::clone(principal)))
    }

    /// Returns whether a key is active.
    pub fn has(&self, access_key_id: &str) -> bool {
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        entries.contains_key(access_key_id)
    }

    /// Takes over a change of a user; `before` is the model before it.
    pub fn note(&self, before: &Model, event: &Event, account: &str) {
        let key = match event {
            Event::User(user) => User::key_of(&user.name),
            Event::UserGone(key) => key.clone(),
            _ => return,
        };
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for former in before.users.get(&key).iter().flat_map(|user| &user.keys) {
            entries.remove(&former.id);
        }
        if let Event::User(user) = event {
            add(&mut entries, user, account);
        }
    }
}

fn add(entries: &mut BTreeMap<String, Entry>, user: &User, account: &str) {
    let principal = Arc::new(Principal::of(user, account));
    for key in user.keys.iter().filter(|key| key.is_active) {
        let entry = Entry { secret: key.secret.clone(), principal: Arc::clone(&principal) };
        entries.insert(key.id.clone(), entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::users::UserChange;
    use evenkeel_core::time::UnixMs;

    #[test]
    fn the_keyring_follows_the_model() {
        let mut model = Model::default();
        let keyring = Keyring::default();
        let mut change = |name: &str, change: UserChange| {
            for event in model.change_user(name, &change, UnixMs(1)).unwrap() {
                keyring.note(&model, &event, "000000000000");
                model.apply(event);
            }
            let known = Keyring::of(&model, "000000000000");
            let ids = |ring: &Keyring| ring.0.read().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!(ids(&keyring), ids(&known));
            ids(&keyring).join(" ")
        };
        let add = |id: &str| UserChange::AddKey { id: id.into(), secret: Secret("s".into()) };
        let set = |id: &str, is_active| UserChange::SetKey { id: id.into(), is_active };
        let create = |id: &str| UserChange::Create { path: "/".into(), id: id.into() };
        change("Ann", create("A"));
        change("Bob", create("B"));
        change("ann", add("K1"));
        assert_eq!(change("bob", add("K3")), "K1 K3");
        assert_eq!(change("ann", add("K2")), "K1 K2 K3");
        assert_eq!(change("ann", set("K1", false)), "K2 K3");
        assert_eq!(change("ann", set("K1", true)), "K1 K2 K3");
        assert_eq!(change("ann", UserChange::RemoveKey { id: "K2".into() }), "K1 K3");
        change("ann", UserChange::RemoveKey { id: "K1".into() });
        assert_eq!(change("ann", UserChange::Delete), "K3");
        let attach = UserChange::Attach { arn: "arn:aws:iam::aws:policy/ReadOnlyAccess".into() };
        change("bob", attach);
        let (secret, principal) = keyring.find("K3").unwrap();
        assert_eq!((secret.as_str(), principal.name.as_str()), ("s", "Bob"));
        assert_eq!(principal.arn, "arn:aws:iam::000000000000:user/Bob");
        assert_eq!(principal.policies[0].name, "ReadOnlyAccess");
        assert!(keyring.has("K3") && !keyring.has("K1"));
    }
}
