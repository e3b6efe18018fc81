//! The election of the leader, the only server that may commit.
//!
//! A candidate takes a lease of etcd and creates the key `leader` with it, if the key does not
//! exist. A thread renews the lease. When it ends, because its holder died, hangs or cannot reach
//! etcd, etcd removes the key, and another candidate may create it.
//!
//! A candidate also compares the cluster's number: see [`number`].
//!
//! A lease is a hint, not a lock: its holder may sleep past its end. A former leader cannot commit
//! because every commit compares the revision that created the key.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_os::clock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::client::{Client, EtcdError};
use super::gateway::{Compare, LeaseAnswer, Operation, Streamed, Transaction, TransactionAnswer};
use super::keys::Keys;
use super::listener::Listener;
use super::number;

/// Seconds of a leader's lease, and of a node's. During its own elections etcd may extend a lease,
/// but never shortens one.
/// Tests of this crate must not lose a lease because other programs use the processors.
pub const LEASE_TTL_S: u64 = if cfg!(test) { 30 } else { 3 };
/// Time between two renewals.
const RENEWAL: Duration = Duration::from_millis(1_000);
/// Time between two attempts of a candidate.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum time that etcd may take to answer a candidate.
const PATIENCE: Duration = Duration::from_secs(5);

/// Value of the leader's key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leader {
    /// The name of its node.
    pub node: String,
    /// A text that no other process has.
    pub incarnation: String,
    /// Address of its API.
    pub address: String,
}

/// Result of a campaign.
#[derive(Debug)]
pub enum Standing {
    /// This candidate leads.
    Leads(Leadership),
    /// Another one leads.
    Follows(Leader),
}

/// A candidate for the leadership of a cluster.
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    keys: Keys,
    /// The cluster's number.
    number: u128,
    candidate: Leader,
}

/// Minimum time until which a lease holds, by its holder's clock. Pure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    until: Duration,
    is_lost: bool,
}

impl Held {
    /// Creates it for a lease that was granted or renewed by a request sent at `sent`.
    fn since(sent: Duration, ttl_s: u64) -> Self {
        Self { until: sent + Duration::from_secs(ttl_s), is_lost: ttl_s == 0 }
    }

    /// Updates it after another answer. A lost lease stays lost.
    fn renewed(self, sent: Duration, ttl_s: u64) -> Self {
        let new = Self::since(sent, ttl_s);
        Self { until: self.until.max(new.until), is_lost: self.is_lost || new.is_lost }
    }

    fn holds(self, now: Duration) -> bool {
        !self.is_lost && now < self.until
    }
}

/// The leadership of this process. Clones share it. When the last one is dropped, the lease is no
/// longer renewed; [`Self::resign`] ends it at once.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<Inner>);

/// A lease's state, shared with the thread that renews it.
#[derive(Debug)]
struct Watched {
    held: Mutex<Held>,
    changed: Listener,
}

impl Watched {
    fn held(&self) -> MutexGuard<'_, Held> {
        // Each change of the state is one assignment.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Inner {
    client: Client,
    lease: u64,
    created: u64,
    watched: Arc<Watched>,
    /// Whether the leader must read etcd again before it decides anything.
    must_reload: AtomicBool,
    /// Wakes the thread that renews the lease when this is dropped.
    _stop: SyncSender<()>,
}

impl Leadership {
    /// Returns the revision that created the leader's key, which every commit compares.
    #[must_use]
    pub fn created(&self) -> u64 {
        self.0.created
    }

    /// Returns whether the lease holds, by this server's clock. For replies that need not be exact;
    /// commits do not depend on it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let held = *self.0.watched.held();
        held.holds(clock::since_boot())
    }

    /// Returns the minimum time for which the lease still holds, by this server's clock.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.0.watched.held().until.saturating_sub(clock::since_boot())
    }

    /// Calls `tell` now, and each time when [`Self::left`], [`Self::is_lost`] or
    /// [`Self::must_reload`] has changed. It must not block. Replaces the function of an earlier
    /// call.
    pub fn when_changed(&self, tell: impl Fn() + Send + 'static) {
        self.0.watched.changed.set(Box::new(tell));
    }

    /// Returns whether etcd has answered that the lease has ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.watched.held().is_lost
    }

    /// Returns whether etcd may have other data than this leader knows. If so, no commit of this
    /// term succeeds: the process must resign, and the next leader, which may be the same process,
    /// reads everything again.
    #[must_use]
    pub fn must_reload(&self) -> bool {
        self.0.must_reload.load(Ordering::Acquire)
    }

    /// Sets [`Self::must_reload`].
    pub(super) fn require_reload(&self) {
        self.0.must_reload.store(true, Ordering::Release);
        self.0.watched.changed.call();
    }

    /// Returns the lease in the form of `etcdctl lease`.
    #[must_use]
    pub fn lease(&self) -> String {
        format!("{:x}", self.0.lease)
    }

    /// Resigns, so that another candidate need not wait for the lease's end.
    ///
    /// # Errors
    /// etcd does not answer; then the lease ends by itself.
    pub fn resign(&self) -> Result<(), EtcdError> {
        self.0.watched.held().is_lost = true;
        revoke(&self.0.client, self.0.lease, PATIENCE)
    }
}

/// Ends a lease, unless it has ended.
///
/// # Errors
/// See [`Client::call`].
pub(crate) fn revoke(client: &Client, lease: u64, patience: Duration) -> Result<(), EtcdError> {
    let request = json!({ "ID": lease.to_string() });
    match client.call::<Value>("lease/revoke", &request, patience) {
        Err(error) if !error.is_no_lease() => Err(error),
        _ => Ok(()),
    }
}

/// Takes a lease.
///
/// # Errors
/// See [`Client::call`].
pub(crate) fn grant(client: &Client, ttl_s: u64, patience: Duration) -> Result<u64, EtcdError> {
    let request = json!({ "TTL": ttl_s.to_string() });
    let answer: LeaseAnswer = client.call("lease/grant", &request, patience)?;
    Ok(answer.id.0)
}

impl Election {
    /// Creates a candidate for the cluster with this number.
    #[must_use]
    pub fn new(client: Client, keys: Keys, number: u128, candidate: Leader) -> Self {
        Self { client, keys, number, candidate }
    }

    /// Returns the leader; `None` if the cluster has none.
    ///
    /// # Errors
    /// See [`Client::call`]; [`EtcdError::OtherCluster`].
    pub fn leader(&self) -> Result<Option<Leader>, EtcdError> {
        let key = self.keys.leader();
        // Both are read at one revision.
        let looked = vec![Operation::Get(key.clone()), number::look(&self.keys)];
        let transaction = Transaction { then: looked, ..Transaction::default() };
        let answer: TransactionAnswer =
            self.client.call("kv/txn", &transaction.json(), PATIENCE)?;
        self.check_number(&answer)?;
        answer.of(&key).map(|found| self.read(&found.value.0)).transpose()
    }

    fn check_number(&self, answer: &TransactionAnswer) -> Result<(), EtcdError> {
        number::check(&self.keys, self.number, answer.of(&self.keys.number()))
    }

    fn read(&self, value: &[u8]) -> Result<Leader, EtcdError> {
        serde_json::from_slice(value).map_err(|error| {
            let key = String::from_utf8_lossy(&self.keys.leader()).into_owned();
            EtcdError::Options(format!("etcd's key {key} names no leader: {error}; remove it"))
        })
    }

    /// Tries once to become the leader.
    ///
    /// # Errors
    /// See [`Client::call`]; [`EtcdError::OtherCluster`].
    pub fn campaign(&self) -> Result<Standing, EtcdError> {
        if let Some(leader) = self.leader()? {
            return Ok(Standing::Follows(leader));
        }
        let sent = clock::since_boot();
        let lease = grant(&self.client, LEASE_TTL_S, PATIENCE)?;
        let stands = self.stand(lease, sent);
        if !matches!(stands, Ok(Some(Standing::Leads(_)))) {
            let _ = revoke(&self.client, lease, PATIENCE);
        }
        match stands? {
            Some(standing) => Ok(standing),
            // The other leader's key has been removed meanwhile.
            None => self.campaign_again(),
        }
    }

    fn campaign_again(&self) -> Result<Standing, EtcdError> {
        match self.leader()? {
            Some(leader) => Ok(Standing::Follows(leader)),
            None => Err(EtcdError::Unavailable {
                text: "leaders of this cluster come and go; try again".into(),
                may_be_done: false,
            }),
        }
    }

    fn stand(&self, lease: u64, sent: Duration) -> Result<Option<Standing>, EtcdError> {
        let key = self.keys.leader();
        let value = serde_json::to_vec(&self.candidate)
            .map_err(|error| EtcdError::Options(error.to_string()))?;
        let transaction = Transaction {
            when: vec![Compare::CreatedBy(key.clone(), 0), number::is_of(&self.keys, self.number)],
            then: vec![Operation::Put(key.clone(), value, lease)],
            otherwise: vec![Operation::Get(key.clone()), number::look(&self.keys)],
        };
        let answer: TransactionAnswer =
            self.client.call("kv/txn", &transaction.json(), PATIENCE)?;
        if !answer.succeeded {
            self.check_number(&answer)?;
        }
        let created = match answer.of(&key) {
            _ if answer.succeeded => answer.header.revision.0,
            // The answer to an earlier attempt was lost.
            Some(found) if found.lease.0 == lease => found.create_revision.0,
            Some(found) => return Ok(Some(Standing::Follows(self.read(&found.value.0)?))),
            None => return Ok(None),
        };
        info!(node = self.candidate.node, revision = created, "leads the cluster");
        Ok(Some(Standing::Leads(self.lead(lease, created, Held::since(sent, LEASE_TTL_S))?)))
    }

    fn lead(&self, lease: u64, created: u64, held: Held) -> Result<Leadership, EtcdError> {
        let watched = Watched { held: Mutex::new(held), changed: Listener::default() };
        let watched = Arc::new(watched);
        let (stop, stopped) = sync_channel::<()>(0);
        let client = self.client.clone();
        let shared = Arc::clone(&watched);
        let renew = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(RENEWAL) {
                let is_left = renew(&client, lease, &shared.held);
                shared.changed.call();
                if !is_left {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("etcd-lease".into()).spawn(renew).map_err(|error| {
            EtcdError::Options(format!("cannot start the thread that renews the lease: {error}"))
        })?;
        let client = self.client.clone();
        let must_reload = AtomicBool::new(false);
        let inner = Inner { client, lease, created, watched, must_reload, _stop: stop };
        Ok(Leadership(Arc::new(inner)))
    }

    /// Waits for the leadership, for at most `patience`. Returns `None` if another candidate leads
    /// all that time.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn wait(&self, patience: Duration) -> Result<Option<Leadership>, EtcdError> {
        let deadline = clock::since_boot() + patience;
        loop {
            if let Standing::Leads(leadership) = self.campaign()? {
                return Ok(Some(leadership));
            }
            if clock::since_boot() >= deadline {
                return Ok(None);
            }
            clock::pause(LOOK);
        }
    }
}

/// Requests a lease's renewal.
///
/// # Errors
/// See [`Client::call`].
pub(crate) fn keep_alive(
    client: &Client,
    lease: u64,
    patience: Duration,
) -> Result<Streamed<LeaseAnswer>, EtcdError> {
    client.call("lease/keepalive", &json!({ "ID": lease.to_string() }), patience)
}

/// Renews a lease once. Returns whether it may be renewed again.
fn renew(client: &Client, lease: u64, held: &Mutex<Held>) -> bool {
    let sent = clock::since_boot();
    let answer = keep_alive(client, lease, Duration::from_secs(LEASE_TTL_S));
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    match answer {
        Ok(Streamed { result: Some(answer), .. }) => *held = held.renewed(sent, answer.ttl_s.0),
        Ok(Streamed { error: Some(error), .. }) if EtcdError::is_no_lease_of(&error) => {
            held.is_lost = true;
        }
        Ok(Streamed { error, .. }) => warn!(?error, "the leader's lease is not renewed"),
        Err(error) if error.is_no_lease() => held.is_lost = true,
        Err(error) => warn!(%error, "the leader's lease is not renewed"),
    }
    if held.is_lost {
        warn!("the leader's lease is gone: this server commits nothing more");
    }
    !held.is_lost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_holds_from_when_it_was_asked_for_and_is_lost_for_good() {
        let at = Duration::from_secs;
        let held = Held::since(at(10), 3);
        assert!(held.holds(at(12)) && !held.holds(at(13)));
        let renewed = held.renewed(at(11), 3);
        assert!(renewed.holds(at(13)) && !renewed.holds(at(14)));
        // An answer with a shorter time does not revoke what was granted.
        assert!(renewed.renewed(at(11), 1).holds(at(13)));
        let lost = renewed.renewed(at(12), 0);
        assert!(lost.is_lost && !lost.holds(at(12)));
        assert!(!lost.renewed(at(12), 3).holds(at(12)));
    }

    #[test]
    fn a_leader_is_written_as_it_is_read() {
        let leader = Leader { node: "n1".into(), incarnation: "x".into(), address: "a:1".into() };
        let text = serde_json::to_string(&leader).unwrap();
        assert_eq!(text, r#"{"node":"n1","incarnation":"x","address":"a:1"}"#);
        assert_eq!(serde_json::from_str::<Leader>(&text).unwrap(), leader);
    }
}
