//! Maintains etcd: measures it, compacts its history, and clears it when it is full.
//!
//! An etcd whose quota is used up refuses all writes and leases: no node leads, no volume is taken
//! over or detached. Deleting keys does not change that. Three steps make room, and need none
//! themselves: old revisions are compacted, each member's file is defragmented, and the alarm is
//! cleared.
//!
//! Each node of a cluster runs an [`Upkeep`], because without room there may be no leader. The
//! decisions are pure: [`Judge`].

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_os::clock;
use serde_json::{Value, json};
use tracing::{debug, error, info, warn};

use super::client::{Client, EtcdError};
use super::gateway::{AlarmAnswer, StatusAnswer};

/// Time between two measurements.
const LOOK: Duration = Duration::from_secs(5);
/// Maximum time that a member may take to answer a measurement.
const ANSWER_MAX: Duration = Duration::from_millis(1_500);
/// Maximum time that etcd may take to compact its history or to clear an alarm.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum time that a member may take to defragment its file. It answers no other request
/// meanwhile.
const DEFRAGMENT_MAX: Duration = Duration::from_secs(120);
/// Age at which the leader compacts history. Watches that are further behind must load again.
const HISTORY: Duration = Duration::from_secs(300);
/// Time between two attempts to clear a full etcd.
const CLEAR_AGAIN: Duration = Duration::from_secs(60);
/// Minimum time between two defragmentations of an etcd that has room.
const DEFRAGMENT_AGAIN: Duration = Duration::from_secs(3_600);
/// Minimum size of a file that is defragmented, in bytes.
const DEFRAGMENT_BYTES_MIN: u64 = 256 << 20;
/// Part of the quota that may be in use when an alarm is cleared, in percent. With more, etcd would
/// be full again at once.
const CLEARED_PERCENT_MAX: u64 = 90;
/// Maximum number of measurements for which a node leaves a full etcd to nodes with lower numbers.
const TURNS: u32 = 8;

/// The latest measurement of a member of etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberSeen {
    /// Its endpoint.
    pub endpoint: String,
    /// Its answer; `None` if it gave none.
    pub answer: Option<MemberAnswer>,
}

/// A member's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemberAnswer {
    /// Time until the answer.
    pub took: Duration,
    /// Whether the member knows a leader of etcd.
    pub has_leader: bool,
    /// The size of its file in bytes.
    pub bytes: u64,
    /// The bytes of the file that are in use.
    pub in_use: u64,
    /// Its quota; `None` if it does not report it, as 3.4 and 3.5.
    pub quota: Option<u64>,
    /// Whether it refuses writes because its quota is used up.
    pub is_full: bool,
    /// The revision of the store.
    pub revision: u64,
}

impl From<(StatusAnswer, Duration)> for MemberAnswer {
    fn from((status, took): (StatusAnswer, Duration)) -> Self {
        Self {
            took,
            has_leader: status.leader.0 > 0,
            bytes: status.bytes.0,
            in_use: status.in_use.0,
            quota: Some(status.quota.0).filter(|quota| *quota > 0),
            is_full: status.errors.iter().any(|error| error.contains("NOSPACE")),
            revision: status.header.revision.0,
        }
    }
}

/// The action after a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Compact the history up to this revision.
    Compact(u64),
    /// Defragment the members' files.
    Defragment,
    /// Compact the history up to this revision, defragment files, and clear the alarm.
    Clear(u64),
}

/// Decides on the action. Pure.
#[derive(Debug, Default)]
struct Judge {
    /// The revision that is compacted next, and when it was first seen.
    old: Option<(u64, Duration)>,
    /// Number of measurements for which etcd has been full.
    full_looks: u32,
    cleared_at: Option<Duration>,
    defragmented_at: Option<Duration>,
}

impl Judge {
    /// Decides after a measurement. `turn` is the number of measurements for which other nodes may
    /// clear a full etcd first. `acts` is whether no other node leads.
    fn step(&mut self, now: Duration, seen: &[MemberSeen], turn: u32, acts: bool) -> Option<Step> {
        let answers: Vec<MemberAnswer> = seen.iter().filter_map(|member| member.answer).collect();
        let revision = answers.iter().map(|answer| answer.revision).max()?;
        let is_due = |at: Option<Duration>, pause| at.is_none_or(|time| now >= time + pause);
        if !answers.iter().any(|answer| answer.is_full) {
            self.full_looks = 0;
        } else if acts {
            self.full_looks += 1;
            if self.full_looks > turn && is_due(self.cleared_at, CLEAR_AGAIN) {
                self.cleared_at = Some(now);
                return Some(Step::Clear(revision));
            }
        }
        if !acts {
            self.old = None;
            return None;
        }
        let (old, since) = *self.old.get_or_insert((revision, now));
        if now >= since + HISTORY {
            self.old = Some((revision, now));
            return Some(Step::Compact(old));
        }
        let is_sparse =
            |it: &MemberAnswer| it.bytes >= DEFRAGMENT_BYTES_MIN && it.bytes / 2 > it.in_use;
        if answers.iter().any(is_sparse) && is_due(self.defragmented_at, DEFRAGMENT_AGAIN) {
            self.defragmented_at = Some(now);
            return Some(Step::Defragment);
        }
        None
    }
}

/// Returns whether a full etcd has room now. `before` is the measurement when it was full; its
/// sizes stand for the quota of members that do not report it.
fn has_room(before: &[MemberSeen], after: &[MemberSeen]) -> bool {
    before.iter().zip(after).all(|(before, after)| {
        let (Some(before), Some(after)) = (before.answer, after.answer) else { return true };
        let quota = after.quota.unwrap_or(before.bytes);
        after.bytes <= quota / 100 * CLEARED_PERCENT_MAX
    })
}

/// Measures each member.
#[must_use]
pub fn look(client: &Client) -> Vec<MemberSeen> {
    client
        .ask_each("maintenance/status", &json!({}), ANSWER_MAX)
        .into_iter()
        .map(|(endpoint, answer)| MemberSeen { endpoint, answer: answer.ok().map(Into::into) })
        .collect()
}

/// Compacts the history before a revision. Current values stay. Succeeds if it is compacted
/// already.
///
/// # Errors
/// See [`Client::call`].
pub fn compact(client: &Client, revision: u64) -> Result<(), EtcdError> {
    // Physical: the space in the file is free when this returns.
    let request = json!({ "revision": revision.to_string(), "physical": true });
    match client.call_within::<Value>("kv/compaction", &request, PATIENCE, Duration::ZERO) {
        Err(error) if !error.is_compacted() => Err(error),
        _ => Ok(()),
    }
}

/// Defragments the file of each member, one after the other. Returns the reason if one failed.
fn defragment(client: &Client) -> Option<String> {
    let mut failed = None;
    for (endpoint, answer) in
        client.ask_each::<Value>("maintenance/defragment", &json!({}), DEFRAGMENT_MAX)
    {
        match answer {
            Ok((_, took)) => {
                info!(endpoint, ms = took.as_millis(), "a member of etcd is defragmented");
            }
            Err(why) => {
                warn!(endpoint, why, "a member of etcd is not defragmented");
                failed = Some(format!("{endpoint} is not defragmented: {why}"));
            }
        }
    }
    failed
}

/// Makes room in a full etcd, and clears its alarm if there is room then.
///
/// # Errors
/// The text has the refused step, or reports that there is still no room.
pub fn clear(client: &Client, before: &[MemberSeen], revision: u64) -> Result<(), String> {
    compact(client, revision).map_err(|error| error.to_string())?;
    let failed = defragment(client);
    if !has_room(before, &look(client)) {
        let by_hand = "run as etcd's root: etcdctl defrag, and then: etcdctl alarm disarm";
        let larger = "too much is in use; raise its --quota-backend-bytes, restart its members, \
                      and then run: etcdctl alarm disarm";
        return Err(match failed {
            Some(failed) => format!("{failed}; {by_hand}"),
            None => larger.to_owned(),
        });
    }
    let alarm = |request| client.call::<AlarmAnswer>("maintenance/alarm", &request, PATIENCE);
    let raised = alarm(json!({ "action": "GET" })).map_err(|error| error.to_string())?;
    for one in raised.alarms.iter().filter(|one| one.alarm == "NOSPACE") {
        let member = one.member.0.to_string();
        let request = json!({ "action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member });
        alarm(request).map_err(|error| error.to_string())?;
    }
    Ok(())
}

struct Shared {
    client: Client,
    seen: Mutex<Vec<MemberSeen>>,
}

impl Shared {
    fn round(&self, judge: &mut Judge, turn: u32, acts: bool) {
        let seen = look(&self.client);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen.clone();
        match judge.step(clock::since_boot(), &seen, turn, acts) {
            None => {}
            Some(Step::Compact(revision)) => match compact(&self.client, revision) {
                Ok(()) => debug!(revision, "etcd's history is compacted"),
                Err(error) => warn!(%error, "etcd's history is not compacted, so it grows"),
            },
            Some(Step::Defragment) => drop(defragment(&self.client)),
            Some(Step::Clear(revision)) => match clear(&self.client, &seen, revision) {
                Ok(()) => warn!("etcd was full: its history is given up and its alarm is cleared"),
                Err(why) => error!(
                    why,
                    "etcd is full: no node can be elected, and nothing can be changed; volumes \
                     are served as before"
                ),
            },
        }
    }
}

/// The thread that maintains etcd. It ends when this is dropped.
pub struct Upkeep {
    shared: Arc<Shared>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts to measure, as the node with this number. `acts` returns whether no other node leads;
    /// only then anything is changed.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        client: Client,
        node: u32,
        acts: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, EtcdError> {
        let shared = Arc::new(Shared { client, seen: Mutex::default() });
        let (stop, stopped) = sync_channel::<()>(0);
        let of_thread = Arc::clone(&shared);
        // Nodes without a leader must not clear a full etcd all at once.
        let turn = node.saturating_sub(1) % TURNS;
        let run = move || {
            let mut judge = Judge::default();
            of_thread.round(&mut judge, turn, acts());
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                of_thread.round(&mut judge, turn, acts());
            }
        };
        let thread = std::thread::Builder::new()
            .name("etcd-upkeep".to_owned())
            .spawn(run)
            .map_err(|error| EtcdError::Options(format!("no thread to look at etcd: {error}")))?;
        Ok(Self { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the latest measurement of the members; empty before the first one has ended.
    #[must_use]
    pub fn seen(&self) -> Vec<MemberSeen> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread is not joined, since a member answers only after its defragmentation.
        drop(self.thread.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn member(bytes: u64, in_use: u64, is_full: bool, revision: u64) -> MemberSeen {
        let answer = MemberAnswer {
            has_leader: true,
            bytes,
            in_use,
            is_full,
            revision,
            ..MemberAnswer::default()
        };
        MemberSeen { endpoint: "http://a:1".to_owned(), answer: Some(answer) }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_full_etcd_is_cleared_by_the_first_node_in_turn_and_again_after_a_minute() {
        let full = [member(MIB, MIB, true, 7)];
        let mut first = Judge::default();
        let mut third = Judge::default();
        assert_eq!(first.step(at(0), &full, 0, true), Some(Step::Clear(7)));
        assert_eq!(first.step(at(5), &full, 0, true), None);
        assert_eq!(first.step(at(60), &full, 0, true), Some(Step::Clear(7)));
        let steps = [0, 5, 10].map(|now| third.step(at(now), &full, 2, true));
        assert_eq!(steps, [None, None, Some(Step::Clear(7))]);
        // Another node leads, and compacts.
        let mut follower = Judge::default();
        let steps = [0, 5, 100].map(|now| follower.step(at(now), &full, 0, false));
        assert_eq!(steps, [None; 3]);
    }

    #[test]
    fn history_is_given_up_when_it_is_old_and_only_by_a_node_that_acts() {
        let look = |revision| [member(MIB, MIB, false, revision)];
        let mut judge = Judge::default();
        assert_eq!(judge.step(at(0), &look(5), 0, true), None);
        assert_eq!(judge.step(at(299), &look(9), 0, true), None);
        assert_eq!(judge.step(at(300), &look(10), 0, true), Some(Step::Compact(5)));
        assert_eq!(judge.step(at(600), &look(20), 0, true), Some(Step::Compact(10)));
        // The revision from the time before it followed is not used.
        assert_eq!(judge.step(at(700), &look(30), 0, false), None);
        assert_eq!(judge.step(at(1_000), &look(40), 0, true), None);
        assert_eq!(judge.step(at(2_000), &[], 0, true), None, "no member answers");
    }

    #[test]
    fn a_file_that_is_mostly_free_is_made_smaller_once_an_hour() {
        let sparse = [member(600 * MIB, 100 * MIB, false, 1)];
        let mut judge = Judge::default();
        assert_eq!(judge.step(at(0), &sparse, 0, true), Some(Step::Defragment));
        assert_eq!(judge.step(at(10), &sparse, 0, true), None);
        for dense in [member(600 * MIB, 400 * MIB, false, 1), member(MIB, 0, false, 1)] {
            assert_eq!(Judge::default().step(at(0), &[dense], 0, true), None);
        }
    }

    #[test]
    fn an_alarm_is_cleared_only_if_there_is_room() {
        let before = [member(100 * MIB, 90 * MIB, true, 1)];
        assert!(has_room(&before, &[member(50 * MIB, 50 * MIB, true, 1)]));
        assert!(!has_room(&before, &[member(95 * MIB, 95 * MIB, true, 1)]));
        // A raised quota, in versions that report it.
        let mut raised = member(95 * MIB, 95 * MIB, true, 1);
        raised.answer.as_mut().unwrap().quota = Some(200 * MIB);
        assert!(has_room(&before, &[raised]));
    }
}
