//! Connections to volumes and refused signatures, on their way to the audit, and the bound on
//! records of calls without rights.
//!
//! The data plane reports each connection that begins, ends or is refused, and the API each refused
//! signature. A report never waits: it enters a queue, and a thread writes the records. Clients
//! without any right cause some of them, so the number of records is bounded: [`REFUSED`] for
//! refusals, [`SERVED`] for connections that begin and end. Reports beyond that are counted, and
//! the next record of the kind has their number. The calls of each user that end with an error or
//! need no right have the bound of [`REFUSED`], too, so that a key without rights cannot fill the
//! audit.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_core::time::UnixMs;
use evenkeel_os::clock;
use evenkeel_wire::agent::visit::{Visit, VisitOutcome};

use crate::model::Settings;
use crate::open_audit;
use crate::rate::Rate;
use crate::rights::Principal;
use crate::trail::Trail;

/// Records of refusals: a minute in the long run, and at once. A record of a connection or a
/// signature has at most 2 KiB, so they are less than 30 MiB a day; that of a user's call has
/// about 3 KiB.
const REFUSED: (u64, u64) = (10, 100);
/// Records of connections that begin or end: a minute in the long run, and at once. A record has
/// less than 1 KiB, so they are less than 30 MiB a day.
const SERVED: (u64, u64) = (20, 4_096);
/// Maximum number of reports that wait for the thread.
const QUEUED_MAX: usize = 8_192;
/// Interval at which the number of left out records is written, if no other record has it.
const LEFT_OUT_EVERY: Duration = Duration::from_secs(60);

/// The reported connection or refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Report {
    /// A connection.
    Visit(Visit),
    /// A request whose signature is refused: its address, the code and the text of the error.
    Signature(IpAddr, &'static str, String),
    /// Nothing but the number of records that were left out.
    LeftOut(Kind),
    /// Nothing but the number of a user's calls whose records were left out.
    LeftOutOf(Arc<Principal>),
}

/// The kinds of records, each with its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Connections that begin and end.
    Served,
    /// Refused connections and signatures.
    Refused,
}

/// A report with its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) at: UnixMs,
    pub(crate) report: Report,
    /// Number of records of the kind that were left out before it.
    pub(crate) left_out: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Visits {
    queue: Mutex<Queue>,
    /// Signalled when an entry is queued, and at the end.
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    entries: VecDeque<Entry>,
    served: Bound,
    refused: Bound,
    /// Users with calls that have a bound, by their ids.
    users: BTreeMap<String, (Arc<Principal>, Bound)>,
    /// When the numbers of left out records were last reported, since the machine's boot.
    reported: Duration,
    is_over: bool,
}

#[derive(Debug)]
struct Bound {
    rate: Rate,
    left_out: u64,
}

impl Bound {
    fn new((per_minute, burst): (u64, u64)) -> Self {
        Self { rate: Rate::of_minute(per_minute, burst, clock::since_boot()), left_out: 0 }
    }

    /// Returns the number of records that were left out before this one; `None` if it is left out,
    /// too.
    fn admit(&mut self, has_room: bool, now: Duration) -> Option<u64> {
        if has_room && self.rate.take(now) {
            return Some(std::mem::take(&mut self.left_out));
        }
        self.left_out = self.left_out.saturating_add(1);
        None
    }
}

impl Queue {
    fn bound(&mut self, kind: Kind) -> &mut Bound {
        match kind {
            Kind::Served => &mut self.served,
            Kind::Refused => &mut self.refused,
        }
    }

    /// Queues the numbers of records that were left out and not reported yet, and forgets users
    /// without such calls for a time.
    fn report_left_out(&mut self, now: Duration) {
        self.reported = now;
        for kind in [Kind::Served, Kind::Refused] {
            let left_out = std::mem::take(&mut self.bound(kind).left_out);
            if left_out > 0 {
                let report = Report::LeftOut(kind);
                self.entries.push_back(Entry { at: clock::unix_ms(), report, left_out });
            }
        }
        self.users.retain(|_, (user, bound)| {
            let left_out = std::mem::take(&mut bound.left_out);
            if left_out > 0 {
                let report = Report::LeftOutOf(Arc::clone(user));
                self.entries.push_back(Entry { at: clock::unix_ms(), report, left_out });
            }
            left_out > 0 || !bound.rate.is_full(now)
        });
    }
}

impl Default for Visits {
    fn default() -> Self {
        let queue = Queue {
            entries: VecDeque::new(),
            served: Bound::new(SERVED),
            refused: Bound::new(REFUSED),
            users: BTreeMap::new(),
            reported: clock::since_boot(),
            is_over: false,
        };
        Self { queue: Mutex::new(queue), changed: Condvar::new() }
    }
}

impl Visits {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing between two related changes panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports what becomes of a connection. Does not wait for the disk.
    pub fn note(&self, visit: Visit) {
        let kind = match visit.outcome {
            VisitOutcome::Connected | VisitOutcome::Ended => Kind::Served,
            VisitOutcome::Refused(_) => Kind::Refused,
        };
        self.push(kind, clock::since_boot(), Report::Visit(visit));
    }

    /// Reports a refused signature. Does not wait for the disk.
    pub(crate) fn note_signature(&self, address: IpAddr, code: &'static str, text: &str) {
        let report = Report::Signature(address, code, text.to_owned());
        self.push(Kind::Refused, clock::since_boot(), report);
    }

    fn push(&self, kind: Kind, now: Duration, report: Report) {
        let mut queue = self.queue();
        let has_room = queue.entries.len() < QUEUED_MAX;
        let Some(left_out) = queue.bound(kind).admit(has_room, now) else { return };
        queue.entries.push_back(Entry { at: clock::unix_ms(), report, left_out });
        self.changed.notify_one();
    }

    /// Returns the number of records of this user's calls that were left out before this one, which
    /// ended with an error or needs no right; `None` if it is left out, too.
    pub(crate) fn admit(&self, user: &Arc<Principal>) -> Option<u64> {
        self.admit_at(user, clock::since_boot())
    }

    fn admit_at(&self, user: &Arc<Principal>, now: Duration) -> Option<u64> {
        let mut queue = self.queue();
        let new = || (Arc::clone(user), Bound::new(REFUSED));
        let (_, bound) = queue.users.entry(user.id.clone()).or_insert_with(new);
        bound.admit(true, now)
    }

    /// Returns the next entry, and waits for it; `None` at the end.
    fn next(&self) -> Option<Entry> {
        let mut queue = self.queue();
        loop {
            let now = clock::since_boot();
            let is_last = queue.is_over && queue.entries.is_empty();
            let since = now.saturating_sub(queue.reported);
            if is_last || since >= LEFT_OUT_EVERY {
                queue.report_left_out(now);
            }
            if let Some(entry) = queue.entries.pop_front() {
                return Some(entry);
            }
            if queue.is_over {
                return None;
            }
            let wait = LEFT_OUT_EVERY.saturating_sub(now.saturating_sub(queue.reported));
            let waited = self.changed.wait_timeout_while(queue, wait, |queue| {
                queue.entries.is_empty() && !queue.is_over
            });
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the thread, after it has written the records of everything that was reported.
    fn finish(&self) {
        self.queue().is_over = true;
        self.changed.notify_all();
    }
}

/// The audit of a data folder, and the thread that writes the records of connections and of refused
/// signatures. There must be one only for each data folder, since records are a chain. Dropping it
/// writes the last records, so the parts of the server that report must have ended.
#[derive(Debug)]
pub struct Records {
    pub(crate) trail: Arc<Trail>,
    visits: Arc<Visits>,
    thread: Option<JoinHandle<()>>,
}

impl Records {
    /// Opens the audit of a data folder that belongs to this process. If a file cannot be read or
    /// written, changes are refused until it can.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn open(data_dir: &Path, settings: &Settings) -> io::Result<Arc<Self>> {
        let trail = Arc::new(Trail::new(open_audit(data_dir), settings));
        let visits = Arc::<Visits>::default();
        let of_thread = Arc::clone(&trail);
        let entries = Arc::clone(&visits);
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || {
            while let Some(entry) = entries.next() {
                of_thread.report(&entry);
            }
        })?;
        Ok(Arc::new(Self { trail, visits, thread: Some(thread) }))
    }

    /// Returns the queue for reports of connections.
    #[must_use]
    pub fn visits(&self) -> Arc<Visits> {
        Arc::clone(&self.visits)
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.visits.finish();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that writes records of connections panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A_DAY_S: u64 = 24 * 3_600;

    #[test]
    fn a_flood_of_refused_signatures_leaves_a_bounded_number_of_records_and_their_count() {
        let visits = Visits::default();
        let began = clock::since_boot();
        let mut written = 0;
        let mut counted = 0;
        let mut drain = |visits: &Visits| {
            let mut queue = visits.queue();
            for entry in queue.entries.drain(..) {
                written += u64::from(!matches!(entry.report, Report::LeftOut(_)));
                counted += entry.left_out;
            }
        };
        // Ten each second for a day.
        let address = IpAddr::from([10, 0, 0, 1]);
        for second in 0..A_DAY_S {
            for _ in 0..10 {
                let report = Report::Signature(address, "AuthFailure", String::new());
                visits.push(Kind::Refused, began + Duration::from_secs(second), report);
            }
            drain(&visits);
        }
        visits.queue().report_left_out(began + Duration::from_secs(A_DAY_S));
        drain(&visits);
        assert!((14_400..=14_500).contains(&written), "{written}");
        assert_eq!(written + counted, 10 * A_DAY_S);
    }

    #[test]
    fn refused_calls_of_each_user_have_a_bound_of_their_own() {
        let visits = Visits::default();
        let began = clock::since_boot();
        let user = |id: &str| {
            let id = id.to_owned();
            Arc::new(Principal { name: id.clone(), arn: id.clone(), id, policies: Vec::new() })
        };
        let [loud, quiet] = [user("loud"), user("quiet")];
        let mut written = 0;
        let mut counted = 0;
        for second in 0..3_600 {
            let now = began + Duration::from_secs(second);
            for _ in 0..100 {
                if let Some(left_out) = visits.admit_at(&loud, now) {
                    written += 1;
                    counted += left_out;
                }
            }
        }
        assert!((690..=700).contains(&written), "{written}");
        let hour = began + Duration::from_secs(3_600);
        assert_eq!(visits.admit_at(&quiet, hour), Some(0));
        visits.queue().report_left_out(hour);
        let entries: Vec<Entry> = visits.queue().entries.drain(..).collect();
        let [entry] = entries.as_slice() else { panic!("{entries:?}") };
        assert_eq!(entry.report, Report::LeftOutOf(Arc::clone(&loud)));
        assert_eq!(written + counted + entry.left_out, 360_000);
        // After a quiet time both are forgotten.
        visits.queue().report_left_out(hour + Duration::from_secs(1_200));
        assert!(visits.queue().users.is_empty());
    }

    #[test]
    fn a_queue_that_is_not_written_is_bounded_and_refusals_leave_connections_their_records() {
        let visits = Visits::default();
        let now = clock::since_boot();
        let address = IpAddr::from([10, 0, 0, 1]);
        let visit = Visit {
            outcome: VisitOutcome::Connected,
            address: evenkeel_wire::agent::HostAddress::Local,
            host: None,
            is_proven: false,
            volume: None,
        };
        for _ in 0..100_000 {
            let report = Report::Signature(address, "AuthFailure", String::new());
            visits.push(Kind::Refused, now, report);
        }
        assert_eq!(visits.queue().entries.len(), 100);
        for _ in 0..100_000 {
            visits.push(Kind::Served, now, Report::Visit(visit.clone()));
        }
        assert_eq!(visits.queue().entries.len(), 100 + 4_096);
        visits.finish();
        while visits.next().is_some() {}
        assert_eq!(visits.queue().entries.len(), 0);
    }
}
