//! The state behind `/healthz` and `/readyz`: whether the journal takes changes, whether the data
//! plane answers, and whether a lock is unusable. Nothing here waits for a lock that is held long.

use evenkeel_core::convert::saturating;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenkeel_telemetry::metrics::{EtcdMemberNow, JournalNow};

use super::Plane;
use crate::journal::JournalError;
use evenkeel_os::clock;

/// Time without an answer of the data plane after which the server is not ready. The data plane is
/// called once a second.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// The state of the journal and of the data plane, as the last calls found it.
#[derive(Debug, Default)]
pub(super) struct Vitals {
    commits: AtomicU64,
    failures: AtomicU64,
    /// Why the last commit failed; `None` if it succeeded.
    error: Mutex<Option<String>>,
    /// Whether another server has committed. If so, this one can commit nothing any more.
    is_lost: AtomicBool,
    /// Time of the data plane's last answer, in milliseconds since the boot.
    answered_ms: AtomicU64,
}

impl Vitals {
    /// Records the result of a commit.
    pub(super) fn committed<T>(&self, result: &Result<T, JournalError>) {
        let error = match result {
            Ok(_) => None,
            // This is an error of the client.
            Err(JournalError::TokenTaken(_)) => return,
            Err(error) => Some(error),
        };
        let counter = if error.is_some() { &self.failures } else { &self.commits };
        counter.fetch_add(1, Ordering::Relaxed);
        if matches!(error, Some(JournalError::Conflict { .. })) {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error.map(ToString::to_string);
    }

    /// Records an answer of the data plane.
    pub(super) fn answered(&self) {
        self.answered_ms.store(since_boot_ms(), Ordering::Relaxed);
    }

    fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Checks that a member of etcd answers and knows a leader of etcd. Before the first look at the
/// members nothing is known.
fn check_etcd(members: &[EtcdMemberNow]) -> Result<(), String> {
    let is_led = |member: &EtcdMemberNow| member.answer.is_some_and(|answer| answer.has_leader);
    if members.is_empty() || members.iter().any(is_led) {
        return Ok(());
    }
    let endpoints: Vec<&str> = members.iter().map(|member| member.endpoint.as_str()).collect();
    Err(format!(
        "etcd has no leader that its members know ({}); see that a majority of them runs",
        endpoints.join(", ")
    ))
}

fn since_boot_ms() -> u64 {
    saturating(clock::since_boot().as_millis())
}

impl Plane {
    /// Checks that the server can continue without a restart.
    ///
    /// # Errors
    /// The text has the reason.
    pub fn check_alive(&self) -> Result<(), String> {
        if self.writer.is_poisoned() || self.leases.is_poisoned() {
            return Err("a change panicked, and nothing can be changed any more: restart the \
                        server and report what the log says"
                .into());
        }
        if self.vitals.is_lost.load(Ordering::Relaxed) {
            Err("another server has written to the journal: stop that one and restart \
                         this one"
                .into())
        } else {
            Ok(())
        }
    }

    /// Checks that changes can be made: the journal takes them, in a cluster etcd has a leader, and
    /// the data plane answers.
    ///
    /// # Errors
    /// The text has the reason.
    pub fn check_ready(&self) -> Result<(), String> {
        self.check_alive()?;
        if let Some(error) = self.vitals.error() {
            return Err(format!("the journal takes no changes: {error}"));
        }
        if let Some(nodes) = self.nodes() {
            check_etcd(&nodes.etcd())?;
        }
        let answered_ms = self.vitals.answered_ms.load(Ordering::Relaxed);
        let silent_ms = since_boot_ms().saturating_sub(answered_ms);
        if u128::from(silent_ms) > SILENT_MAX.as_millis() {
            Err(format!("the data plane has not answered for {} s", silent_ms / 1_000))
        } else {
            Ok(())
        }
    }

    /// Returns the journal's counts for metrics.
    #[must_use]
    pub fn journal_now(&self) -> JournalNow {
        JournalNow {
            commits: self.vitals.commits.load(Ordering::Relaxed),
            failures: self.vitals.failures.load(Ordering::Relaxed),
            is_failing: self.vitals.error().is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Revision;
    use evenkeel_telemetry::metrics::EtcdAnswerNow;

    #[test]
    fn etcd_has_a_leader_if_a_member_knows_one() {
        let member = |has_leader: Option<bool>| EtcdMemberNow {
            endpoint: "http://a".into(),
            answer: has_leader
                .map(|has_leader| EtcdAnswerNow { has_leader, ..EtcdAnswerNow::default() }),
        };
        assert_eq!(check_etcd(&[]), Ok(()));
        assert_eq!(check_etcd(&[member(None), member(Some(true))]), Ok(()));
        let why = check_etcd(&[member(None), member(Some(false))]).unwrap_err();
        assert!(why.contains("http://a, http://a"), "{why}");
    }

    #[test]
    fn the_last_commit_that_reached_the_journal_counts() {
        let vitals = Vitals::default();
        vitals.committed(&Ok(()));
        vitals.committed::<()>(&Err(JournalError::Failed("read-only".into())));
        assert_eq!(vitals.error().as_deref(), Some("read-only"));
        vitals.committed::<()>(&Err(JournalError::TokenTaken("t".into())));
        assert_eq!(vitals.error().as_deref(), Some("read-only"));
        vitals.committed(&Ok(()));
        assert_eq!(vitals.error(), None);
        let expected = Revision(1);
        let found = Revision(2);
        assert!(!vitals.is_lost.load(Ordering::Relaxed));
        vitals.committed::<()>(&Err(JournalError::Conflict { expected, found }));
        assert!(vitals.is_lost.load(Ordering::Relaxed));
        assert_eq!(vitals.commits.load(Ordering::Relaxed), 2);
        assert_eq!(vitals.failures.load(Ordering::Relaxed), 2);
    }
}
