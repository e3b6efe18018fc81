//! Metrics and recordings of volumes, and events, taken over from the node that runs the control
//! plane while this one does not. Should this node lead next, it has the past.

use super::member::LeaderAddress;
use crate::api::{Client, history};
use crate::clock::{self, Deadline};
use crate::output::{Failure, failed};
use crate::server::Config;
use evenkeel_control::UnixMs;
use evenkeel_control::history::{Copies, Keeps, Kind, Since};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time between two questions.
const ASK: Duration = Duration::from_secs(15);
/// Time between two looks whether that is over.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two pages, so that who leads has others to serve.
const PAUSE: Duration = Duration::from_millis(50);
/// So many rounds must fail before the log says so.
const FAILURES_MAX: u32 = 4;
/// Pages of one kind at a time: then the other kinds have their turn.
const PAGES_MAX: u32 = 100;
/// What is asked for again each time, in milliseconds: something may be written a bit later than
/// it happened.
const AGAIN_MS: u64 = 120_000;

/// Takes over what was recorded, until it is dropped: from then on the data folder is another's.
pub struct TakingOver(Arc<Mutex<Option<Copies>>>);

impl TakingOver {
    /// Begins. Without a thread or memory for it nothing is taken over, and the log says so.
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
        // Nobody waits for the thread: it may wait for a leader that does not answer.
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

/// What the thread has.
struct Round {
    config: Config,
    leader: LeaderAddress,
    copies: Arc<Mutex<Option<Copies>>>,
}

/// How far it is with one kind.
struct Turn {
    kind: Kind,
    /// Where to begin; `None` if that is to be looked up.
    since: Option<Since>,
    /// The page that comes next, and when the first one was given out.
    goes_on: Option<(String, u64)>,
}

/// What came of a turn.
enum Came {
    /// There is all that the leader has.
    All,
    /// There is more.
    More,
    /// Nobody leads, or that is over.
    Nobody,
}

impl Round {
    fn take_over(&self) {
        let mut turns = Kind::ALL.map(|kind| Turn { kind, since: None, goes_on: None });
        let mut failures = 0;
        loop {
            let (mut failed, mut is_behind, mut is_done) = (None, false, false);
            for turn in &mut turns {
                match self.turn(turn) {
                    Ok(Came::All) => is_done = true,
                    Ok(Came::More) => is_behind = true,
                    Ok(Came::Nobody) => {}
                    Err(failure) => {
                        // What is there is looked up again.
                        (turn.since, turn.goes_on) = (None, None);
                        failed = Some(failure);
                    }
                }
            }
            match &failed {
                Some(failure) => {
                    failures += 1;
                    // A leader that is lost is told elsewhere.
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

    /// Takes over some pages.
    fn turn(&self, turn: &mut Turn) -> Result<Came, Failure> {
        let Some(leader) = *self.leader.lock().unwrap_or_else(PoisonError::into_inner) else {
            return Ok(Came::Nobody);
        };
        let kind = turn.kind;
        let now = UnixMs(clock::unix_ms());
        let mut since = match lock(&self.copies).as_ref() {
            Some(copies) if copies.keeps(kind) => {
                turn.since.unwrap_or_else(|| copies.since(kind, now))
            }
            Some(_) => return Ok(Came::All),
            None => return Ok(Came::Nobody),
        };
        let Config { settings, data_dir, .. } = &self.config;
        let client = Client::of_server(leader, &settings.region, data_dir)?;
        for _ in 0..PAGES_MAX {
            let token = turn.goes_on.as_ref().map(|(token, _)| token.as_str());
            let page = history::page(&client, kind, since, token)?;
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
            Deadline::after(PAUSE).pause(PAUSE);
        }
        Ok(Came::More)
    }
}
