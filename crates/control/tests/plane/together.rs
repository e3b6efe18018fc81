//! Confirmations of the data plane that wait while another thread commits are stored together, and
//! none is lost with a commit that fails.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::support::{FakeAgent, creation};
use evenkeel_control::journal::memory::MemoryJournal;
use evenkeel_control::journal::{Change, Journal, JournalError, Loaded, Revision, Watch};
use evenkeel_control::model::{Command as Order, Event, Phase, Settings, StoreKey};
use evenkeel_control::plane::{Plane, PlaneError};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::volume::VolumeType;
use evenkeel_wire::agent::{Agent, Command};

/// Volumes that are created at once.
const VOLUMES: usize = 6;
/// Attempts to have them wait for a commit at once: whether they do depends on the threads' order.
const ROUNDS: u64 = 200;
/// How long each attempt gives them.
const WAIT: Duration = Duration::from_millis(2);

/// A door that threads pass once it is open.
#[derive(Default)]
struct Door {
    is_open: Mutex<bool>,
    opens: Condvar,
}

impl Door {
    fn pass(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opens.wait_while(is_open, |is_open| !*is_open).unwrap());
    }

    fn set(&self, is_open: bool) {
        *self.is_open.lock().unwrap() = is_open;
        self.opens.notify_all();
    }
}

/// A journal in memory. A change of the account stops at a door, or is refused.
struct Gated {
    inner: MemoryJournal,
    /// The number of confirmed volumes in each change, and whether it was refused.
    changes: Sender<(usize, bool)>,
    /// Receives when a change of the account is there.
    account: Sender<()>,
    door: Arc<Door>,
    refuses: Arc<Mutex<bool>>,
}

impl Journal for Gated {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        self.inner.load()
    }

    fn commit(&mut self, change: &Change, expected: Revision) -> Result<Revision, JournalError> {
        let is_confirmed =
            |event: &&Event| matches!(event, Event::Volume(v) if v.phase == Phase::Ready);
        let confirmed = change.events.iter().filter(is_confirmed).count();
        let is_of_account = change.events.iter().any(|event| matches!(event, Event::Account(_)));
        let is_refused = is_of_account && *self.refuses.lock().unwrap();
        self.changes.send((confirmed, is_refused)).unwrap();
        if is_refused {
            return Err(JournalError::Failed("refused by the test".to_owned()));
        }
        if is_of_account {
            self.account.send(()).unwrap();
            self.door.pass();
        }
        self.inner.commit(change, expected)
    }

    fn watch(&mut self, after: Revision) -> Result<Watch, JournalError> {
        self.inner.watch(after)
    }
}

struct World {
    plane: Plane,
    journal: MemoryJournal,
    changes: Receiver<(usize, bool)>,
    /// Receives when a change of the account holds the writer lock.
    account: Receiver<()>,
    /// Where that change waits.
    commit: Arc<Door>,
    refuses: Arc<Mutex<bool>>,
    /// Receives when the data plane is to create a volume.
    asked: Receiver<()>,
    /// Where the data plane waits before it creates one.
    create: Arc<Door>,
}

impl World {
    fn new() -> Self {
        let journal = MemoryJournal::default();
        let (sent, changes) = channel();
        let (begun, account) = channel();
        let (ask, asked) = channel();
        let ask = Mutex::new(ask);
        let create = Arc::<Door>::default();
        let door = Arc::clone(&create);
        let agent = FakeAgent::scripted(move |agent, command| {
            if matches!(command, Command::Create(_)) {
                ask.lock().unwrap().send(()).unwrap();
                door.pass();
            }
            agent.execute(command)
        });
        let commit = Arc::<Door>::default();
        let refuses = Arc::<Mutex<bool>>::default();
        let gated = Gated {
            inner: journal.clone(),
            changes: sent,
            account: begun,
            door: Arc::clone(&commit),
            refuses: Arc::clone(&refuses),
        };
        let settings = Settings { key: Some(StoreKey { id: "k".into() }), ..Settings::default() };
        let agent: Arc<dyn Agent> = agent;
        let plane = Plane::start(Box::new(gated), settings, agent, || {}).unwrap();
        Self { plane, journal, changes, account, commit, refuses, asked, create }
    }

    /// Creates volumes that are confirmed while a change of the account is committed. With
    /// `refused` another change of the account waits then, and its commit fails. Returns the
    /// changes that follow.
    fn round(&self, number: u64, refused: bool) -> Vec<(usize, bool)> {
        self.commit.set(false);
        self.create.set(false);
        *self.refuses.lock().unwrap() = false;
        let plane = &self.plane;
        let set_account =
            |encrypts| plane.execute(&Order::SetEncryptByDefault(encrypts), false).map(drop);
        std::thread::scope(|scope| {
            for volume in 0..VOLUMES as u64 {
                let id = VolumeId::from_bits(u128::from(1 + number * 100 + volume));
                scope.spawn(move || plane.execute(&create(id), false).unwrap());
            }
            for _ in 0..VOLUMES {
                self.asked.recv().unwrap();
            }
            let first = scope.spawn(|| set_account(true));
            self.account.recv().unwrap();
            *self.refuses.lock().unwrap() = refused;
            let second = refused.then(|| scope.spawn(|| set_account(false)));
            self.create.set(true);
            // For the others to be at the writer lock first. If one is not, another round follows.
            evenkeel_os::clock::pause(WAIT);
            while self.changes.try_recv().is_ok() {}
            self.commit.set(true);
            first.join().unwrap().unwrap();
            if let Some(second) = second {
                assert!(matches!(second.join().unwrap(), Err(PlaneError::Journal(_))));
            }
        });
        *self.refuses.lock().unwrap() = false;
        set_account(false).unwrap();
        self.account.recv().unwrap();
        let model = self.plane.model().clone();
        assert_eq!(model.volumes.len(), (number as usize + 1) * VOLUMES);
        assert!(model.volumes.values().all(|volume| volume.phase == Phase::Ready));
        assert_eq!(self.journal.clone().load().unwrap().model, model);
        self.plane.invariants();
        self.changes.try_iter().collect()
    }

    /// Runs rounds until a change that follows is as expected.
    fn comes(&self, refused: bool, is_expected: impl Fn(&(usize, bool)) -> bool) {
        let found = (0..ROUNDS).any(|number| self.round(number, refused).iter().any(&is_expected));
        assert!(found, "in {ROUNDS} rounds");
    }
}

fn create(id: VolumeId) -> Order {
    creation(id, VolumeType::Gp2, 1, None)
}

#[test]
fn confirmations_that_wait_are_one_commit() {
    World::new().comes(false, |(confirmed, _)| *confirmed > 1);
}

#[test]
fn a_decision_that_is_not_stored_loses_no_confirmation() {
    World::new().comes(true, |(confirmed, is_refused)| *is_refused && *confirmed > 0);
}
