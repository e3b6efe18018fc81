//! The nodes of a cluster: their numbers, their states and their processes.
//!
//! A node that joins gets the lowest number that no node has had, and keeps it under its name.
//! While its process lives, a key with a lease has its addresses. The lease's end is only a hint
//! that the process is gone: the fleet fences a node before it takes its volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_control::nodes::State;
use evenkeel_core::fencing::NodeId;
use evenkeel_os::clock;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::kv::{Kv, PATIENCE};
use super::watch_cache::Mirror;
use crate::etcd::client::EtcdError;
use crate::etcd::election::{LEASE_TTL_S, grant, keep_alive, revoke};
use crate::etcd::gateway::{Compare, Operation, Transaction};
use crate::etcd::{keys, number};

/// Prefix of the keys.
pub const PREFIX: &str = "n/";
/// Time between two renewals of a lease.
const RENEWAL: Duration = Duration::from_millis(1_000);
/// Maximum time that a node waits for the end of an earlier process of its name.
const SAME_NAME_MAX: Duration = Duration::from_secs(15);
/// Time between two attempts to take the node's name.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum number of nodes that join a cluster in its life, removed ones included.
const NODES_MAX: u32 = 1_000;

/// The durable state of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Its number.
    pub number: u32,
    /// Whether it is in service, and so may have volumes.
    pub state: State,
}

/// The process of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inst {
    /// A number that no other process has, in hexadecimal digits.
    pub incarnation: String,
    /// Its name at the store.
    pub store: String,
    /// Address of its agent; port 0 if the process is not reachable yet.
    pub agent: SocketAddr,
    /// Address to which other nodes relay clients.
    pub relay: SocketAddr,
    /// Address of its API.
    pub api: SocketAddr,
    /// Addresses at which it accepts NBD clients.
    pub nbd: Vec<SocketAddr>,
    /// Whether it is about to stop, so that its volumes must move to others.
    pub is_leaving: bool,
    /// The version of its program.
    pub version: String,
    /// Settings that must be equal on all nodes, by name. Empty in the entries of programs that
    /// do not write them.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

impl Inst {
    /// Returns the settings whose values differ from the leader's, as `zones a,b (leader: a)`.
    /// Empty if this process or the leader has published none.
    #[must_use]
    pub fn settings_unlike(&self, leader: &Inst) -> Vec<String> {
        if self.settings.is_empty() || leader.settings.is_empty() {
            return Vec::new();
        }
        let names: BTreeSet<&String> = self.settings.keys().chain(leader.settings.keys()).collect();
        let mut unlike = Vec::new();
        for name in names {
            let own = self.settings.get(name);
            let wanted = leader.settings.get(name);
            if own != wanted {
                let own = own.map_or("not set", String::as_str);
                let wanted = wanted.map_or("not set", String::as_str);
                unlike.push(format!("{name} {own} (leader: {wanted})"));
            }
        }
        unlike
    }

    /// Returns whether it has published its addresses.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.agent.port() != 0
    }
}

/// A node, as etcd has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its number.
    pub number: NodeId,
    /// Whether it is in service, and so may have volumes.
    pub state: State,
    /// Its process, if its lease holds.
    pub inst: Option<Inst>,
    /// The node's last process that could be reached.
    pub last: Option<Inst>,
}

impl Member {
    /// Returns its process, if that has a lease and can be reached.
    #[must_use]
    pub fn reachable(&self) -> Option<&Inst> {
        self.inst.as_ref().filter(|inst| inst.is_reachable())
    }

    /// Returns whether it may get volumes.
    #[must_use]
    pub fn takes_volumes(&self) -> bool {
        self.state == State::Up && self.inst.as_ref().is_some_and(|inst| !inst.is_leaving)
    }
}

/// One key of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// `n/NAME/spec`.
    Spec(Spec),
    /// `n/NAME/inst`.
    Inst(Box<Inst>),
    /// `n/NAME/last`.
    Last(Box<Inst>),
}

/// Parses a key of a node and its value; returns `None` if it is another key.
#[must_use]
pub fn read(key: &str, value: &[u8]) -> Option<Entry> {
    match key.rsplit_once('/')?.1 {
        "spec" => serde_json::from_slice(value).ok().map(Entry::Spec),
        "inst" => serde_json::from_slice(value).ok().map(Entry::Inst),
        "last" => serde_json::from_slice(value).ok().map(Entry::Last),
        _ => None,
    }
}

/// Returns the nodes with these keys, by number.
#[must_use]
pub fn members(entries: &BTreeMap<String, Entry>) -> Vec<Member> {
    let mut all = Vec::new();
    for (key, entry) in entries {
        let (Some((name, "spec")), Entry::Spec(spec)) = (key.rsplit_once('/'), entry) else {
            continue;
        };
        let inst = match entries.get(&format!("{name}/inst")) {
            Some(Entry::Inst(inst)) => Some((**inst).clone()),
            _ => None,
        };
        let last = match entries.get(&format!("{name}/last")) {
            Some(Entry::Last(inst)) => Some((**inst).clone()),
            _ => None,
        };
        let name = name.to_owned();
        let number = NodeId(spec.number);
        all.push(Member { name, number, state: spec.state, inst, last });
    }
    all.sort_by_key(|member| member.number);
    all
}

/// The nodes of a cluster, kept up to date.
pub type Nodes = Mirror<Entry>;

/// Checks a node's name.
///
/// # Errors
/// If the name is invalid; the text has the reason.
pub fn check_name(name: &str) -> Result<(), String> {
    keys::check_name("node", name)
}

fn spec_key(name: &str) -> String {
    format!("{PREFIX}{name}/spec")
}

fn inst_key(name: &str) -> String {
    format!("{PREFIX}{name}/inst")
}

fn last_key(name: &str) -> String {
    format!("{PREFIX}{name}/last")
}

fn unusable(key: &str, why: &dyn std::fmt::Display) -> EtcdError {
    EtcdError::Options(format!("etcd's key {key} cannot be read: {why}"))
}

fn bytes_of(value: &impl Serialize) -> Result<Vec<u8>, EtcdError> {
    serde_json::to_vec(value).map_err(|error| EtcdError::Options(error.to_string()))
}

fn spec_of(kv: &Kv, name: &str) -> Result<Option<Spec>, EtcdError> {
    let key = spec_key(name);
    let Some(bytes) = kv.get(&key)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| unusable(&key, &error))
}

/// Returns the durable state of a node. Gives the node a number if it has none.
///
/// # Errors
/// If etcd does not answer, the node was removed, or the cluster has had [`NODES_MAX`] nodes.
pub fn join(kv: &Kv, name: &str) -> Result<Spec, EtcdError> {
    check_name(name).map_err(EtcdError::Options)?;
    for number in 1..=NODES_MAX {
        if let Some(spec) = spec_of(kv, name)? {
            if spec.state == State::Removed {
                return Err(EtcdError::Options(format!(
                    "the node {name} was removed from the cluster; start it under another \
                     --node, or take it back with `evenkeel node join {name}`"
                )));
            }
            return Ok(spec);
        }
        let spec = Spec { number, state: State::Up };
        let own = kv.name(&spec_key(name));
        let taken = kv.name(&format!("m/{number}"));
        let transaction = Transaction {
            when: vec![Compare::CreatedBy(own.clone(), 0), Compare::CreatedBy(taken.clone(), 0)],
            then: vec![
                Operation::Put(own, bytes_of(&spec)?, 0),
                Operation::Put(taken, name.as_bytes().to_vec(), 0),
            ],
            otherwise: vec![],
        };
        if kv.transact(&transaction)?.succeeded {
            info!(node = name, number, "joined the cluster");
            return Ok(spec);
        }
    }
    Err(EtcdError::Options(format!(
        "{NODES_MAX} nodes have joined the cluster, which is the maximum"
    )))
}

/// Sets whether a node is in service. Returns whether the node exists.
///
/// # Errors
/// If etcd does not answer.
pub fn set_state(kv: &Kv, name: &str, state: State) -> Result<bool, EtcdError> {
    let Some(spec) = spec_of(kv, name)? else { return Ok(false) };
    kv.put(&spec_key(name), &bytes_of(&Spec { state, ..spec })?, 0)?;
    Ok(true)
}

/// The key with a lease that shows that a process of a node lives. Dropping it removes the key.
pub struct Presence {
    shared: Arc<Shared>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The content of the key.
struct Published {
    inst: Inst,
    lease: u64,
    /// Whether etcd has this content.
    is_written: bool,
}

struct Shared {
    kv: Kv,
    /// The cluster's number.
    number: u128,
    name: String,
    /// Locked during requests to etcd, so that the last content is written last.
    published: Mutex<Published>,
}

impl Shared {
    fn published(&self) -> MutexGuard<'_, Published> {
        // Each field is changed after etcd has answered, so a panic leaves no half change.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the key with the lease, unless another process has it.
    fn write(&self, published: &mut Published) -> Result<bool, EtcdError> {
        let key = self.kv.name(&inst_key(&self.name));
        let value = bytes_of(&published.inst)?;
        let keys = &self.kv.keys;
        let mut then = vec![Operation::Put(key.clone(), value.clone(), published.lease)];
        if published.inst.is_reachable() {
            then.push(Operation::Put(self.kv.name(&last_key(&self.name)), value, 0));
        }
        let transaction = Transaction {
            when: vec![Compare::CreatedBy(key.clone(), 0), number::is_of(keys, self.number)],
            then: then.clone(),
            otherwise: vec![Operation::Get(key.clone()), number::look(keys)],
        };
        let answer = self.kv.transact(&transaction)?;
        if !answer.succeeded {
            number::check(keys, self.number, answer.of(&keys.number()))?;
            // If no key was found, it was removed meanwhile; the next attempt writes it.
            let Some(found) = answer.of(&key) else { return Ok(false) };
            let there = serde_json::from_slice::<Inst>(&found.value.0).ok();
            if there.is_none_or(|there| there.incarnation != published.inst.incarnation) {
                return Ok(false);
            }
            let when = vec![Compare::WrittenBy(key, found.mod_revision.0)];
            let again = Transaction { when, then, otherwise: vec![] };
            if !self.kv.transact(&again)?.succeeded {
                return Ok(false);
            }
        }
        published.is_written = true;
        Ok(true)
    }

    /// Renews the lease, or takes a new one if it is gone.
    fn renew(&self) -> Result<(), EtcdError> {
        let mut published = self.published();
        let ttl = Duration::from_secs(LEASE_TTL_S);
        let answer = keep_alive(&self.kv.client, published.lease, ttl)?;
        let is_held = answer.result.is_some_and(|answer| answer.ttl_s.0 > 0);
        if is_held && published.is_written {
            return Ok(());
        }
        if !is_held {
            published.is_written = false;
            published.lease = grant(&self.kv.client, LEASE_TTL_S, ttl)?;
        }
        match self.write(&mut published)? {
            true => Ok(()),
            false => Err(EtcdError::Options(format!(
                "another process has the name of the node {}; give it another --node",
                self.name
            ))),
        }
    }
}

impl Presence {
    /// Publishes a process in the etcd of the cluster with this number, and starts to renew its
    /// lease. Waits for the end of an earlier process of this name.
    ///
    /// # Errors
    /// If etcd does not answer or is of another cluster, or another process has this name.
    pub fn start(kv: Kv, number: u128, name: &str, inst: Inst) -> Result<Self, EtcdError> {
        let lease = grant(&kv.client, LEASE_TTL_S, PATIENCE)?;
        let published = Mutex::new(Published { inst, lease, is_written: false });
        let shared = Arc::new(Shared { kv, number, name: name.to_owned(), published });
        let deadline = clock::since_boot() + SAME_NAME_MAX;
        while !shared.write(&mut shared.published())? {
            if clock::since_boot() >= deadline {
                return Err(EtcdError::Options(format!(
                    "another process is the node {name} and lives; name this one with --node, or \
                     stop that one"
                )));
            }
            clock::pause(LOOK);
            // The lease may have ended during the wait.
            shared.published().lease = grant(&shared.kv.client, LEASE_TTL_S, PATIENCE)?;
        }
        let (stop, stopped) = sync_channel::<()>(0);
        let shared_with_thread = Arc::clone(&shared);
        let renew = move || {
            let mut was_well = true;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(RENEWAL) {
                let renewed = shared_with_thread.renew();
                if let (Err(error), true) = (&renewed, was_well) {
                    warn!(%error, "this node's lease is not renewed");
                }
                was_well = renewed.is_ok();
            }
        };
        let thread = std::thread::Builder::new()
            .name("etcd-presence".to_owned())
            .spawn(renew)
            .map_err(|error| EtcdError::Options(format!("no thread for a lease: {error}")))?;
        Ok(Self { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Publishes that the process is about to stop.
    ///
    /// # Errors
    /// See [`Self::update`].
    pub fn leave(&self) -> Result<(), EtcdError> {
        self.change(|inst| inst.is_leaving = true)
    }

    /// Publishes new data of the process.
    ///
    /// # Errors
    /// If etcd does not answer; the next renewal publishes the data.
    pub fn update(&self, inst: Inst) -> Result<(), EtcdError> {
        self.change(|published| *published = inst)
    }

    fn change(&self, change: impl FnOnce(&mut Inst)) -> Result<(), EtcdError> {
        let mut published = self.shared.published();
        change(&mut published.inst);
        published.is_written = false;
        self.shared.write(&mut published).map(drop)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // If the request is lost, the lease ends by itself.
        let _ = revoke(&self.shared.kv.client, self.shared.published().lease, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_from_keys_in_order_of_their_numbers() {
        let mut entries = BTreeMap::new();
        let mut put = |key: &str, value: &str| {
            entries.insert(key.to_owned(), read(key, value.as_bytes()).unwrap());
        };
        put("b/spec", r#"{"number":1,"state":"draining"}"#);
        put("a/spec", r#"{"number":2,"state":"up"}"#);
        put(
            "a/last",
            r#"{"incarnation":"fe","store":"","agent":"127.0.0.1:9","relay":"127.0.0.1:2",
                "api":"127.0.0.1:3","nbd":[],"is_leaving":true,"version":"1"}"#,
        );
        put(
            "a/inst",
            r#"{"incarnation":"ff","store":"","agent":"127.0.0.1:1","relay":"127.0.0.1:2",
                "api":"127.0.0.1:3","nbd":[],"is_leaving":false,"version":"1"}"#,
        );
        let all = members(&entries);
        let names: Vec<&str> = all.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        assert!(!all[0].takes_volumes() && all[0].inst.is_none());
        assert!(all[1].takes_volumes());
        assert_eq!(all[1].last.as_ref().unwrap().incarnation, "fe");
        assert_eq!(all[0].last, None);
        assert_eq!(read("a/other", b"{}"), None);
        assert_eq!(read("a/spec", b"nonsense"), None);
    }

    #[test]
    fn settings_unlike_the_leaders_are_named_with_both_values() {
        let inst = |settings: &[(&str, &str)]| {
            let text = r#"{"incarnation":"ff","store":"","agent":"127.0.0.1:1",
                "relay":"127.0.0.1:2","api":"127.0.0.1:3","nbd":[],"is_leaving":false,
                "version":"1"}"#;
            let mut inst: Inst = serde_json::from_str(text).unwrap();
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            inst.settings = settings.iter().map(owned).collect();
            inst
        };
        let leader = inst(&[("region", "local-1"), ("zones", "a,b")]);
        assert_eq!(leader.settings_unlike(&leader), [""; 0]);
        let other = inst(&[("region", "local-1"), ("zones", "a"), ("quotas", "ec2")]);
        let unlike = other.settings_unlike(&leader);
        assert_eq!(unlike, ["quotas ec2 (leader: not set)", "zones a (leader: a,b)"]);
        assert_eq!(inst(&[]).settings_unlike(&leader), [""; 0]);
        assert_eq!(other.settings_unlike(&inst(&[])), [""; 0]);
    }

    #[test]
    fn name_that_would_be_part_of_another_key_is_refused() {
        for name in ["", "a/b", "ü", &"x".repeat(keys::NAME_MAX + 1)] {
            assert!(check_name(name).unwrap_err().contains("1 to 63 letters"), "{name}");
        }
        assert_eq!(check_name("node-1.example"), Ok(()));
    }
}
