//! The control plane's commands: what may block (files made, grown, deleted) is done in the
//! caller's thread, the rest by the volume's home reactor.

use crate::directory::{Directory, Entry};
use crate::reactor::{Mail, Mailbox};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_store::{Pool, Store, StoreError};
use evenkeel_wire::agent::{Agent, Command, Failed, FailedKind, Reply, VolumeReport, VolumeState};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a reactor may take to answer: longer than any disk takes for what is in flight.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// See the module's text.
pub(crate) struct EngineAgent {
    pool: Arc<dyn Pool>,
    mailboxes: Arc<[Mailbox]>,
    directory: Arc<Directory>,
    /// Held while a volume is made, changed or deleted: one at a time.
    changing: Mutex<()>,
}

impl EngineAgent {
    pub(crate) fn new(
        pool: Arc<dyn Pool>,
        mailboxes: Arc<[Mailbox]>,
        directory: Arc<Directory>,
    ) -> Self {
        Self { pool, mailboxes, directory, changing: Mutex::new(()) }
    }

    fn apply(&self, state: VolumeState) -> Result<(), Failed> {
        let _guard = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.directory.get(state.id) {
            Some(entry) => self.change(entry, state),
            None => self.open(state),
        }
    }

    /// Makes the bytes if there are none, grows them if they are too few, and opens them.
    fn open(&self, state: VolumeState) -> Result<(), Failed> {
        let id = state.id;
        match self.pool.create(id, state.size) {
            Ok(()) => {}
            Err(StoreError::Size { present, .. }) if present < state.size => {
                self.pool.resize(id, state.size).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        let store = self.pool.open(id).map_err(failed)?;
        let home = self.directory.least_loaded(self.mailboxes.len() as u16);
        let (geometry, hosts) = (store.geometry(), state.hosts.clone());
        self.tell(home, state, Some(store))?;
        self.directory.insert(id, Entry { home, geometry, hosts });
        Ok(())
    }

    fn change(&self, mut entry: Entry, state: VolumeState) -> Result<(), Failed> {
        let present = entry.geometry.size;
        if present != state.size {
            // Refuses to shrink.
            self.pool.resize(state.id, state.size).map_err(failed)?;
        }
        // First of all, so that no host that is being detached slips in meanwhile. A client that
        // already sees the new size can only be told that the range is not there yet.
        entry.geometry.size = state.size;
        entry.hosts.clone_from(&state.hosts);
        let home = entry.home;
        self.directory.insert(state.id, entry);
        self.tell(home, state, None)
    }

    fn tell(
        &self,
        home: u16,
        state: VolumeState,
        store: Option<Box<dyn Store>>,
    ) -> Result<(), Failed> {
        let answer = self.ask(home, |ack| Mail::Apply(Box::new(state), store, ack))?;
        answer.map_err(|message| Failed { kind: FailedKind::Refused, message })
    }

    fn delete(&self, id: VolumeId) -> Result<(), Failed> {
        let _guard = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut entry) = self.directory.get(id) {
            entry.hosts.clear();
            let home = entry.home;
            self.directory.insert(id, entry);
            self.ask(home, |ack| Mail::Remove(id, ack))?;
            self.directory.remove(id);
        }
        self.pool.delete(id).map_err(failed)
    }

    fn set_balances(&self, id: VolumeId, balances: Balances) -> Result<(), Failed> {
        let unknown = || Failed {
            kind: FailedKind::NotFound,
            message: format!("the data plane holds no volume {id}; it is made when it is applied"),
        };
        let home = self.directory.get(id).ok_or_else(unknown)?.home;
        let found = self.ask(home, |ack| Mail::SetBalances(id, balances, ack))?;
        found.then_some(()).ok_or_else(unknown)
    }

    fn report(&self) -> Result<Vec<VolumeReport>, Failed> {
        // Asked together, answered side by side.
        let answers: Vec<Receiver<Vec<VolumeReport>>> =
            (0..self.mailboxes.len()).map(|core| self.post(core as u16, Mail::Report)).collect();
        let mut reports = Vec::new();
        for answer in &answers {
            reports.append(&mut wait(answer)?);
        }
        reports.sort_by_key(|report| report.id);
        Ok(reports)
    }

    fn ask<T>(&self, core: u16, letter: impl FnOnce(SyncSender<T>) -> Mail) -> Result<T, Failed> {
        wait(&self.post(core, letter))
    }

    fn post<T>(&self, core: u16, letter: impl FnOnce(SyncSender<T>) -> Mail) -> Receiver<T> {
        let (ack, answer) = sync_channel(1);
        self.mailboxes[usize::from(core)].post(letter(ack));
        answer
    }
}

fn wait<T>(answer: &Receiver<T>) -> Result<T, Failed> {
    answer.recv_timeout(ANSWER_MAX).map_err(|error| match error {
        RecvTimeoutError::Disconnected => Failed {
            kind: FailedKind::Down,
            message: "the data plane is not running; restart the server".to_owned(),
        },
        RecvTimeoutError::Timeout => Failed {
            kind: FailedKind::Internal,
            message: format!(
                "the data plane did not answer within {} s: its disk hangs; see the kernel's log",
                ANSWER_MAX.as_secs()
            ),
        },
    })
}

fn failed(error: StoreError) -> Failed {
    let kind = match &error {
        error if error.is_no_space() => FailedKind::NoSpace,
        StoreError::Size { .. } => FailedKind::Refused,
        StoreError::NotFound { .. } => FailedKind::NotFound,
        _ => FailedKind::Internal,
    };
    Failed { kind, message: error.to_string() }
}

impl Agent for EngineAgent {
    fn call(&self, command: Command) -> Reply {
        let result = match command {
            Command::Apply(state) => self.apply(state),
            Command::Delete(id) => self.delete(id),
            Command::SetBalances(id, balances) => self.set_balances(id, balances),
            Command::Report => match self.report() {
                Ok(reports) => return Reply::Report(reports),
                Err(failed) => Err(failed),
            },
        };
        result.map_or_else(Reply::Failed, |()| Reply::Done)
    }
}
