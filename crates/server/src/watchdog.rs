//! Reports to the service manager's watchdog while the data plane and the API answer.
//!
//! The report comes from a thread that asks each core of the data plane for the state of its
//! volumes, and sends the API a request. A core that hangs, or a control plane that does, ends the
//! reports, and the manager restarts the server. A refused change, such as on a full disk, does not
//! end them: a restart would not help.

use evenkeel_cli::service;
use evenkeel_client::output::Failure;
use evenkeel_wire::agent::{Agent, Command, Reply};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Reports in the time that the manager allows: one that is late does not end the server.
const REPORTS: u32 = 4;
/// The longest time between two reports.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest wait for the API.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// A request that needs no signature.
const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// The parts of a server that must answer.
#[derive(Clone, Default)]
pub struct Parts {
    /// The data plane; `None` while a node of a cluster has none.
    pub data_plane: Option<Arc<dyn Agent>>,
    /// The address of the API; `None` on a node of a cluster, which closes it at each election.
    pub api: Option<SocketAddr>,
}

/// See the module's text. Dropping it ends the reports.
pub struct Watchdog {
    /// `None` before the server is ready: the manager expects no report yet.
    watched: Arc<Mutex<Option<Parts>>>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the reports if the service manager expects them.
    pub fn start() -> Result<Self, Failure> {
        let watched = Arc::<Mutex<Option<Parts>>>::default();
        let Some(longest) = service::watchdog() else {
            return Ok(Self { watched, stop: None, thread: None });
        };
        let pause = (longest / REPORTS).min(PAUSE_MAX);
        let (stop, stopped) = sync_channel::<()>(0);
        let looked_at = Arc::clone(&watched);
        let work = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                let parts = looked_at.lock().unwrap_or_else(PoisonError::into_inner).clone();
                match parts.map(|parts| parts.check()) {
                    None => {}
                    Some(Ok(())) => service::alive(),
                    Some(Err(why)) => tracing::error!("no report to the watchdog: {why}"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Failure::new(format!("a thread: {error}")))?;
        Ok(Self { watched, stop: Some(stop), thread: Some(thread) })
    }

    /// Sets the parts that must answer.
    pub fn watch(&self, parts: Parts) {
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = Some(parts);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Parts {
    /// Waits for an answer of each part.
    fn check(&self) -> Result<(), String> {
        if let Some(agent) = &self.data_plane
            && let Reply::Failed(failure) = agent.call(Command::Report)
        {
            return Err(format!("the data plane: {}", failure.message));
        }
        match self.api.map(ask) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(format!("the API: {error}")),
        }
    }
}

/// Waits until the API answers a request or closes its connection. Both show that it runs: a full
/// table of connections is no reason for a restart.
fn ask(api: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&api, ANSWER_MAX)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    stream.write_all(REQUEST)?;
    match stream.read(&mut [0; 64]) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_wire::agent::{Failed, FailedKind};
    use std::net::TcpListener;

    /// A data plane that answers, or does not.
    struct Plane(Reply);

    impl Agent for Plane {
        fn call(&self, _: Command) -> Reply {
            self.0.clone()
        }
    }

    #[test]
    fn a_data_plane_that_fails_is_not_alive() {
        let with = |reply| Parts { data_plane: Some(Arc::new(Plane(reply))), api: None };
        assert_eq!(with(Reply::Done).check(), Ok(()));
        let message = "core 1 does not answer".to_owned();
        let failure = Failed { kind: FailedKind::NoSpace, message };
        let why = with(Reply::Failed(failure)).check().unwrap_err();
        assert_eq!(why, "the data plane: core 1 does not answer");
    }

    #[test]
    fn an_api_is_alive_if_it_answers_or_closes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let closes = std::thread::spawn(move || drop(listener.accept()));
        assert_eq!(Parts { data_plane: None, api: Some(address) }.check(), Ok(()));
        closes.join().unwrap();
        let why = Parts { data_plane: None, api: Some(address) }.check().unwrap_err();
        assert!(why.starts_with("the API: "), "{why}");
        assert_eq!(Parts::default().check(), Ok(()));
    }
}
