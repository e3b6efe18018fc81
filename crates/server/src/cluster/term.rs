//! One term in which this node runs the control plane, on a thread of its own.

use crate::server;
use crate::{Addresses, Config};
use evenkeel_client::output::{Failure, failed};
use evenkeel_cluster::cluster_handle::Around;
use evenkeel_cluster::etcd::EtcdJournal;
use evenkeel_cluster::fleet::Fleet;
use evenkeel_cluster::homes;
use evenkeel_cluster::inbox::{Inbox, Note};
use evenkeel_cluster::membership::Question;
use evenkeel_control::{Leading, Records, run_leading};
use evenkeel_tls::server::ServerTls;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::Notify;

/// Stack size of the thread in bytes: that of the main thread, on which a single server runs its
/// control plane.
const STACK_BYTES: usize = 8 << 20;

/// A control plane that runs.
pub struct Term {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    ends: Notify,
    closes_volumes: AtomicBool,
    fleet: Mutex<Place>,
}

/// Reports the end of a term when it is dropped, even after a panic.
struct EndOfTerm {
    question: Question,
    result: Result<(), String>,
    inbox: Inbox,
}

impl Drop for EndOfTerm {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(()));
        self.inbox.send(Note::TermEnded(self.question, result));
    }
}

/// The fleet, once it exists.
#[derive(Default)]
struct Place {
    fleet: Option<Arc<Fleet>>,
    is_closed: bool,
}

impl Shared {
    fn place(&self) -> MutexGuard<'_, Place> {
        // Each change of it is complete when the lock is released.
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Term {
    /// Begins. The inbox gets [`Note::Ready`] when the API answers and [`Note::TermEnded`] at the
    /// end, also if there is no thread.
    pub fn start(
        question: Question,
        config: Config,
        (addresses, tls): (Addresses, Option<Arc<ServerTls>>),
        (around, records): (Around, Arc<Records>),
        inbox: &Inbox,
    ) -> Option<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let reports = inbox.clone();
        let run = move || {
            let panicked = Err("its thread panicked".to_owned());
            let mut end = EndOfTerm { question, result: panicked, inbox: reports };
            let led = lead(config, (&addresses, tls), (around, records), (&of_thread, &end.inbox));
            end.result = led.map_err(|failure| failure.message);
        };
        let thread = std::thread::Builder::new().name("member-term".to_owned());
        match thread.stack_size(STACK_BYTES).spawn(run) {
            Ok(thread) => Some(Self { shared, thread }),
            Err(error) => {
                let result = Err(format!("no thread for the control plane: {error}"));
                inbox.send(Note::TermEnded(question, result));
                None
            }
        }
    }

    /// Ends the control plane. `closes_volumes` is whether it closes all volumes then.
    pub fn end(&self, closes_volumes: bool) {
        self.shared.closes_volumes.store(closes_volumes, Ordering::Release);
        self.shared.ends.notify_one();
    }

    /// Ends all waits for nodes.
    pub fn close_fleet(&self) {
        let fleet = {
            let mut place = self.shared.place();
            place.is_closed = true;
            place.fleet.clone()
        };
        if let Some(fleet) = fleet {
            fleet.close();
        }
    }

    /// Waits for the thread, which has sent [`Note::TermEnded`].
    pub fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("the thread of the control plane panicked");
        }
    }
}

/// Runs the control plane until it is to end.
fn lead(
    config: Config,
    (addresses, tls): (&Addresses, Option<Arc<ServerTls>>),
    (around, records): (Around, Arc<Records>),
    (shared, inbox): (&Shared, &Inbox),
) -> Result<(), Failure> {
    let kv = around.kv.clone();
    let leadership = around.leadership.clone();
    // What another cluster stores would be unowned bytes to this one.
    around.pool.check_owner().map_err(failed)?;
    let homes = homes::load(&kv).map_err(failed)?;
    let fleet = Arc::new(Fleet::new(Arc::new(around), homes));
    let is_closed = {
        let mut place = shared.place();
        place.fleet = Some(Arc::clone(&fleet));
        place.is_closed
    };
    if is_closed {
        fleet.close();
    }
    let journal = Box::new(EtcdJournal::lead(kv.client, kv.keys, leadership));
    let config = Config { nbd_unix: None, ..config };
    let tls = (tls, addresses.nbd_tls.as_slice());
    let mut control = server::control_config(&config, &addresses.nbd, tls)?;
    control.records = Some(records);
    let leading = Leading { nodes: fleet, journal };
    let greet = |_| inbox.send(Note::Ready);
    let is_last = || shared.closes_volumes.load(Ordering::Acquire);
    run_leading(control, leading, greet, shared.ends.notified(), is_last).map_err(failed)
}
