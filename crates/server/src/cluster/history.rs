//! Copies of volumes' metrics and recordings, and of events, from the node that runs the control
//! plane. If this node leads next, it has the history.

use super::member::LeaderAddress;
use crate::Config;
use evenkeel_cli::connect;
use evenkeel_client::output::{Failure, failed};
use evenkeel_cluster::history_page;
use evenkeel_core::time::UnixMs;
use evenkeel_os::clock::{self, Deadline};
use evenkeel_telemetry::history::{Copies, Keeps, Kind, Since};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time between two rounds of requests.
const ASK: Duration = Duration::from_secs(15);
/// Time between two checks whether the copying is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two pages, so that the leader can serve other clients.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of failed rounds in a row after which the log says so.
const FAILURES_MAX: u32 = 4;
/// Maximum number of pages of one kind before the other kinds have their turn.
const PAGES_MAX: u32 = 100;
/// Time before the last request that each request covers again, in milliseconds, since an entry may
/// be written a bit later than it happened.
const AGAIN_MS: u64 = 120_000;

/// Copies the recordings until it is dropped: then another part of the process owns the data
/// folder.
pub struct TakingOver(Arc<Mutex<Option<Copies>>>);

impl TakingOver {
    /// Starts the copying. If there is no thread or memory for it, nothing is copied, and the log
    /// says so.
    pub fn start(config: &Config, leader: LeaderAddress) -> Self {
        let keeps = Keeps {
            metrics_space: config.metrics_space,
            record_days: config.settings.record_days,
            webhooks: config.webhooks.urls.clone(),
        };
        let copies = Copies::open(&config.data_dir, keeps);
        let copies = copies.inspect_err(|error| {
            tracing::warn!(%error, "metrics, recordings and events are not taken over");
        });
        let copies = Arc::new(Mutex::new(copies.ok()));
        let round = Round { config: config.clone(), leader, copies: Arc::clone(&copies) };
        let thread = std::thread::Builder::new().name("member-history".to_owned());
        // The thread is not joined: it may wait for a leader that does not answer.
        if let Err(error) = thread.spawn(move || round.take_over()) {
            tracing::warn!(%error, "metrics, recordings and events are not taken over");
        }
        Self(copies)
    }
}

impl Drop for TakingOver {
    fn drop(&mut self) {
        *lock(&self.0) = None;
    }
}

fn lock(copies: &Mutex<Option<Copies>>) -> MutexGuard<'_, Option<Copies>> {
    copies.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the copying thread.
struct Round {
    config: Config,
    leader: LeaderAddress,
    copies: Arc<Mutex<Option<Copies>>>,
}

/// Progress with one kind.
struct Turn {
    kind: Kind,
    /// Where to begin; `None` if the copies must be read for that.
    since: Option<Since>,
    /// Token of the next page, and the time at which the first one was made.
    goes_on: Option<(String, u64)>,
}

/// Result of a turn.
enum Came {
    /// All that the leader has is copied.
    All,
    /// The leader has more.
    More,
    /// No node leads, or the copying is to end.
    Nobody,
}

impl Round {
    fn take_over(&self) {
        let mut turns = Kind::ALL.map(|kind| Turn { kind, since: None, goes_on: None });
        let mut failures = 0;
        loop {
            let mut failed = None;
            let mut is_behind = false;
            let mut is_done = false;
            for turn in &mut turns {
                match self.turn(turn) {
                    Ok(Came::All) => is_done = true,
                    Ok(Came::More) => is_behind = true,
                    Ok(Came::Nobody) => {}
                    Err(failure) => {
                        // The next turn reads the copies to find where to begin.
                        (turn.since, turn.goes_on) = (None, None);
                        failed = Some(failure);
                    }
                }
            }
            match &failed {
                Some(failure) => {
                    failures += 1;
                    // The loss of a leader is logged elsewhere.
                    if failures == FAILURES_MAX {
                        let text = "metrics, recordings and events are not taken over";
                        tracing::warn!("{text}: {}", failure.message);
                    }
                }
                None if is_done => {
                    if failures >= FAILURES_MAX {
                        tracing::info!("metrics, recordings and events are taken over again");
                    }
                    failures = 0;
                }
                None => {}
            }
            let deadline = Deadline::after(if is_behind { LOOK } else { ASK });
            loop {
                let goes_on = deadline.pause(LOOK);
                if lock(&self.copies).is_none() {
                    return;
                }
                if !goes_on {
                    break;
                }
            }
        }
    }

    /// Copies some pages.
    fn turn(&self, turn: &mut Turn) -> Result<Came, Failure> {
        let Some(leader) = *self.leader.lock().unwrap_or_else(PoisonError::into_inner) else {
            return Ok(Came::Nobody);
        };
        let kind = turn.kind;
        let now = clock::unix_ms();
        let mut since = match lock(&self.copies).as_ref() {
            Some(copies) if copies.keeps(kind) => {
                turn.since.unwrap_or_else(|| copies.since(kind, now))
            }
            Some(_) => return Ok(Came::All),
            None => return Ok(Came::Nobody),
        };
        let Config { settings, data_dir, transport, .. } = &self.config;
        let scheme = transport.scheme();
        let client = connect::client_of_server(leader, scheme, &settings.region, data_dir)?;
        for _ in 0..PAGES_MAX {
            let token = turn.goes_on.as_ref().map(|(token, _)| token.as_str());
            let page = history_page::page(&client, kind, since, token)?;
            let before = since;
            let first_ms = turn.goes_on.as_ref().map_or(page.time_ms, |(_, first_ms)| *first_ms);
            {
                let mut copies = lock(&self.copies);
                let Some(copies) = &mut *copies else { return Ok(Came::Nobody) };
                copies.take(kind, UnixMs(page.time_ms), page.items()).map_err(Failure::new)?;
                if kind == Kind::Events {
                    since = copies.since(kind, now);
                }
                turn.goes_on = page.next_token().map(|token| (token.to_owned(), first_ms));
                turn.since = Some(since);
                if turn.goes_on.is_none() && since == before {
                    if let Since::Time(_) = since {
                        let until = UnixMs(first_ms.saturating_sub(AGAIN_MS));
                        turn.since = Some(Since::Time(until));
                        copies.completed(kind, until).map_err(failed)?;
                    }
                    return Ok(Came::All);
                }
            }
            clock::pause(PAUSE);
        }
        Ok(Came::More)
    }
}
