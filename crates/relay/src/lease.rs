//! Leases of fronts: a home passes the requests of relayed clients on only while their front has
//! answered lately that it runs and that it still has them.
//!
//! A front opens one more connection to each home that it relays to. It grants the front a lease:
//!
//! ```text
//! home to front, 8 bytes:   number u64                 a probe, eight in the lease's length
//! front to home, 17 bytes:  kind u8 0, number u128     the answer to a probe
//!                           kind u8 1, session u128    this client has gone
//! ```
//!
//! The lease begins when the home has sent the newest probe that is answered. So its length is
//! measured by the home's clock alone, and includes the network's delay. A front that is stopped,
//! cut off or slow loses its lease, and with it all connections that it relays to this home.
//!
//! A front sends that a client has gone before its next answer, even if the client's task has not
//! noticed it yet. So once a lease's length has passed after a client has gone, none of its
//! requests is passed on any more, even if some are still on the network or wait for room at the
//! home. When a front answers a probe, the home knows all clients that had gone when the probe was
//! sent.

use crate::clients::Clients;
use crate::inbound::Sessions;
use crate::pulse::Watch;
use crate::upstream::Stream;
use evenkeel_core::fencing::NodeId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, Notify};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Leases that a home grants at once: one for each front of the cluster, and some that end.
const GRANTS_MAX: usize = 1_024;
/// Probes in the length of a lease.
const PROBES: u32 = 8;
/// Time between checks whether a probe is answered.
const PROOF_LOOK: Duration = Duration::from_millis(1);
const PROBE_BYTES: usize = 8;
const MESSAGE_BYTES: usize = 17;
const ANSWER: u8 = 0;
const GONE: u8 = 1;

fn message(kind: u8, value: u128) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [kind; MESSAGE_BYTES];
    bytes[1..].copy_from_slice(&value.to_be_bytes());
    bytes
}

/// Whether a lease has ended, and the tasks that wait for its end.
#[derive(Debug, Default)]
struct Ending {
    is_over: Cell<bool>,
    over: Notify,
}

impl Ending {
    fn end(&self) {
        self.is_over.set(true);
        self.over.notify_waiters();
    }

    async fn over(&self) {
        let over = self.over.notified();
        if !self.is_over.get() {
            over.await;
        }
    }
}

/// A lease, as its front has it.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Its number, which no other lease has in the whole cluster.
    pub number: u128,
    ending: Ending,
    /// Clients of which the home may have requests.
    pub clients: Clients,
    /// Sessions of clients that have gone, and that the home has not received yet.
    gone: RefCell<Vec<u128>>,
    news: Notify,
}

impl Lease {
    pub fn new(number: u128) -> Rc<Self> {
        let (ending, clients, gone, news) = Default::default();
        Rc::new(Self { number, ending, clients, gone, news })
    }

    /// Ends the lease: the home does not know it any more, or does not answer.
    pub fn end(&self) {
        self.ending.end();
    }

    /// Returns whether it has not ended, as far as its front knows.
    pub fn is_held(&self) -> bool {
        !self.ending.is_over.get()
    }

    /// Returns when the lease has ended.
    pub async fn over(&self) {
        self.ending.over().await;
    }

    /// Reports to the home that a client has gone; the home then drops the client's requests.
    pub fn client_gone(&self, session: u128) {
        self.clients.remove(session);
        if self.is_held() {
            self.gone.borrow_mut().push(session);
            self.news.notify_one();
        }
    }

    /// Answers the home's probes until the connection ends or this thread has not run for too long.
    pub async fn renew(self: Rc<Self>, stream: Box<dyn Stream>, watch: Watch, patience: Duration) {
        let why = self.answer(stream, &watch, patience).await;
        if let Err(error) = why {
            tracing::debug!(%error, "a lease has ended");
        }
        self.end();
    }

    async fn answer(
        &self,
        mut stream: Box<dyn Stream>,
        watch: &Watch,
        patience: Duration,
    ) -> io::Result<()> {
        let mut probe = [0; PROBE_BYTES];
        let mut length = 0;
        loop {
            tokio::select! {
                read = stream.read(&mut probe[length..]) => match read? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    read => length += read,
                },
                () = self.news.notified() => {}
            }
            // Clients that have gone are reported before the probe is answered.
            let mut unnoticed = Vec::new();
            if length == PROBE_BYTES {
                unnoticed = self.clients.gone().await;
            }
            let gone = std::mem::take(&mut *self.gone.borrow_mut());
            let mut bytes: Vec<u8> = gone
                .into_iter()
                .chain(unnoticed)
                .flat_map(|session| message(GONE, session))
                .collect();
            if length == PROBE_BYTES {
                bytes.extend(message(ANSWER, u64::from_be_bytes(probe).into()));
                length = 0;
            }
            if watch.has_gap() {
                return Err(io::Error::other("this node did not run for some time"));
            }
            send(&mut stream, &bytes, patience).await?;
        }
    }
}

async fn send(stream: &mut Box<dyn Stream>, bytes: &[u8], patience: Duration) -> io::Result<()> {
    let sent = timeout(patience, async {
        stream.write_all(bytes).await?;
        stream.flush().await
    });
    sent.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// The lease at one home; locked while it is being opened.
type Place = Rc<Mutex<Option<Rc<Lease>>>>;

/// The leases of a front, by home.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_home: RefCell<BTreeMap<(NodeId, SocketAddr), Place>>,
}

impl Leases {
    /// Returns the place for the lease at a home.
    pub fn at(&self, home: (NodeId, SocketAddr)) -> Place {
        let mut by_home = self.by_home.borrow_mut();
        if let Some(place) = by_home.get(&home) {
            return Rc::clone(place);
        }
        // A node has another address after each start, so places without a lease are removed.
        by_home.retain(|_, place| match place.try_lock() {
            Ok(held) => held.as_ref().is_some_and(|lease| lease.is_held()),
            Err(_) => true,
        });
        Rc::clone(by_home.entry(home).or_default())
    }
}

/// A lease, as its home grants it.
#[derive(Debug)]
pub(crate) struct Grant {
    ending: Ending,
    /// Time at which the newest answered probe was sent, since the boot.
    proven: Cell<Duration>,
    length: Duration,
    /// Notified to send a probe at once.
    ask: Notify,
}

impl Grant {
    /// Returns whether requests of its clients may be passed on now.
    pub fn holds(&self) -> bool {
        let age = evenkeel_os::clock::since_boot().saturating_sub(self.proven.get());
        !self.ending.is_over.get() && age <= self.length
    }

    /// Returns when it has ended.
    pub async fn over(&self) {
        self.ending.over().await;
    }

    /// Returns when the front has answered a probe that was sent after this call began, or the
    /// lease does not hold any more. That takes at most a lease's length.
    pub async fn prove(&self) {
        let begin = evenkeel_os::clock::since_boot();
        self.ask.notify_one();
        while self.proven.get() <= begin && self.holds() {
            sleep(PROOF_LOOK).await;
        }
    }
}

/// The leases that a home grants, by number.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    by_number: RefCell<BTreeMap<u128, Rc<Grant>>>,
}

impl Grants {
    /// Returns a lease that holds.
    pub fn get(&self, number: u128) -> Option<Rc<Grant>> {
        let grant = self.by_number.borrow().get(&number).cloned();
        grant.filter(|grant| grant.holds())
    }

    /// Grants a lease. Returns `None` if the maximum is granted already, or one has this number.
    pub fn open(&self, number: u128, length: Duration) -> Option<Rc<Grant>> {
        let mut by_number = self.by_number.borrow_mut();
        if by_number.len() >= GRANTS_MAX || by_number.contains_key(&number) {
            return None;
        }
        let proven = Cell::new(evenkeel_os::clock::since_boot());
        let (ending, ask) = Default::default();
        let grant = Rc::new(Grant { ending, proven, length, ask });
        by_number.insert(number, Rc::clone(&grant));
        Some(grant)
    }

    /// Ends a lease, and with it the connections of its clients.
    pub fn close(&self, number: u128) {
        if let Some(grant) = self.by_number.borrow_mut().remove(&number) {
            grant.ending.end();
        }
    }
}

/// Probes the front until it does not answer in time. Returns the reason of the end.
pub(crate) async fn probe(
    grant: &Grant,
    sessions: &Sessions,
    stream: &mut Box<dyn Stream>,
    length: Duration,
) -> io::Error {
    let mut tick = interval((length / PROBES).max(Duration::from_millis(1)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked = VecDeque::new();
    let mut number = 0_u64;
    let mut bytes = [0; MESSAGE_BYTES];
    let mut received = 0;
    loop {
        tokio::select! {
            () = async {
                tokio::select! {
                    _ = tick.tick() => {}
                    () = grant.ask.notified() => {}
                }
            } => {
                if !grant.holds() {
                    return io::ErrorKind::TimedOut.into();
                }
                number += 1;
                asked.push_back((number, evenkeel_os::clock::since_boot()));
                if let Err(error) = send(stream, &number.to_be_bytes(), length).await {
                    return error;
                }
            }
            read = stream.read(&mut bytes[received..]) => match read {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(read) => received += read,
                Err(error) => return error,
            }
        }
        if received == MESSAGE_BYTES {
            received = 0;
            let [kind, value @ ..] = bytes;
            let value = u128::from_be_bytes(value);
            match kind {
                GONE => sessions.end(value),
                ANSWER if value <= number.into() => grant.answered(&mut asked, value),
                _ => return io::Error::new(io::ErrorKind::InvalidData, "no message of a lease"),
            }
        }
    }
}

impl Grant {
    /// Records the answer to a probe, and thereby to those before it.
    fn answered(&self, asked: &mut VecDeque<(u64, Duration)>, number: u128) {
        while asked.front().is_some_and(|(asked, _)| u128::from(*asked) <= number) {
            if let Some((_, at)) = asked.pop_front() {
                self.proven.set(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_stream::ClientStream;
    use crate::clients::Socket;
    use crate::pulse::Pulse;
    use tokio::net::{TcpListener, TcpStream, UnixStream};
    use tokio::task::{LocalSet, spawn_local};

    /// Connects a client whose end no task notices.
    async fn client(lease: &Lease, session: u128) -> io::Result<(TcpStream, Rc<Socket>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (near, far) =
            tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
        let socket = Socket::new(ClientStream::tcp(far?.0));
        lease.clients.add(session, Rc::downgrade(&socket));
        Ok((near?, socket))
    }

    #[tokio::test]
    async fn an_answer_comes_after_word_of_clients_that_have_gone() {
        let all = LocalSet::new();
        all.run_until(async {
            let lease = Lease::new(1);
            let stays = client(&lease, 2).await.unwrap();
            let leaves = client(&lease, 3).await.unwrap();
            leaves.1.leave();
            drop(leaves.0);
            let goes = client(&lease, 4).await.unwrap();
            drop(goes.0);
            let (mut home, front) = UnixStream::pair().unwrap();
            let patience = Duration::from_secs(60);
            let watch = Watch::new(&Rc::new(Pulse::new(patience)));
            let renewed = spawn_local(Rc::clone(&lease).renew(Box::new(front), watch, patience));
            home.write_all(&7_u64.to_be_bytes()).await.unwrap();
            for expected in [message(GONE, 4), message(ANSWER, 7)] {
                let mut told = [0; MESSAGE_BYTES];
                home.read_exact(&mut told).await.unwrap();
                assert_eq!(told, expected);
            }
            drop(home);
            renewed.await.unwrap();
            drop(stays);
        })
        .await;
    }
}
