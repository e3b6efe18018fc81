//! Metrics and recordings of volumes, and events, taken over from the node that runs the control
//! plane while this one does not. Should this node lead next, it has the past.

use super::member::LeaderAddress;
use crate::api::{Client, history};
use crate::clock::{self, Deadline};
use crate::message::Failure;
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
/// Pages of one round; the next one goes on.
const PAGES_MAX: u32 = 10_000;
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

impl Round {
    fn take_over(&self) {
        let mut since = Kind::ALL.map(|kind| (kind, None));
        let mut is_failing = false;
        loop {
            let mut failed = None;
            for (kind, since) in &mut since {
                match self.of_kind(*kind, *since) {
                    Ok(Some(until)) => *since = Some(until),
                    Ok(None) => {}
                    Err(failure) => failed = Some(failure),
                }
            }
            // A leader that is lost is told elsewhere.
            if let Some(failure) = failed.as_ref().filter(|_| !is_failing) {
                let text = "metrics, recordings and events are not taken over at the moment";
                tracing::debug!("{text}: {}", failure.message);
            }
            is_failing = failed.is_some();
            let deadline = Deadline::after(ASK);
            while deadline.pause(LOOK) {
                if lock(&self.copies).is_none() {
                    return;
                }
            }
        }
    }

    /// Takes over what there is since then, or since what this folder has; returns where to begin
    /// the next time. `None` if nobody leads, or that is over.
    fn of_kind(&self, kind: Kind, since: Option<Since>) -> Result<Option<Since>, Failure> {
        let Some(leader) = *self.leader.lock().unwrap_or_else(PoisonError::into_inner) else {
            return Ok(None);
        };
        let now = UnixMs(clock::unix_ms());
        let mut since = match lock(&self.copies).as_ref().filter(|copies| copies.keeps(kind)) {
            Some(copies) => since.unwrap_or_else(|| copies.since(kind, now)),
            None => return Ok(None),
        };
        let Config { settings, data_dir, .. } = &self.config;
        let client = Client::of_server(leader, &settings.region, data_dir)?;
        let (mut token, mut until_ms) = (None::<String>, None);
        for _ in 0..PAGES_MAX {
            let page = history::page(&client, kind, since, token.as_deref())?;
            until_ms.get_or_insert(page.time_ms);
            let now = UnixMs(clock::unix_ms());
            let before = since;
            match &mut *lock(&self.copies) {
                Some(copies) => {
                    copies.take(kind, now, page.items());
                    if kind == Kind::Events {
                        since = copies.since(kind, now);
                    }
                }
                None => return Ok(None),
            }
            token = page.next_token().map(str::to_owned);
            if token.is_none() && since == before {
                break;
            }
            Deadline::after(PAUSE).pause(PAUSE);
        }
        let again = |until_ms: u64| Since::Time(UnixMs(until_ms.saturating_sub(AGAIN_MS)));
        match since {
            // What is not there yet is asked for from the beginning of the pages again.
            Since::Time(_) if token.is_some() => Ok(None),
            Since::Time(_) => Ok(until_ms.map(again)),
            Since::Event(_) => Ok(None),
        }
    }
}
