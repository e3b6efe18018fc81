//! Connections that fronts of other nodes relay to this node's data plane. A refused one is not
//! relayed further, so no request goes in circles.

use crate::front::Shared;
use crate::hello::{Malformed, OPENING_BYTES, PREAMBLE_BYTES, Preamble, Verdict, opened};
use crate::lease::{Grant, probe};
use crate::notices::Notice;
use crate::upstream::{Stream, over, set_up_node};
use crate::{FrontConfig, Inside, Peer};
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::proof::{Meeting, Nonce, PROOF_BYTES, Protocol};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Weak;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// Size of the buffer of each direction.
const COPY_BYTES: usize = 64 << 10;
/// Time between checks whether the storage has answered.
const CONFIRMED_LOOK: Duration = Duration::from_millis(1);
/// Number of sessions above which those that are over are removed.
const SESSIONS_LOOK: usize = 64;

/// Request to a relayed connection to end.
#[derive(Default)]
struct Leave {
    is_told: Cell<bool>,
    told: Notify,
}

impl Leave {
    fn tell(&self) {
        self.is_told.set(true);
        self.told.notify_one();
    }
}

/// A client's connection to this node's data plane.
struct Held {
    peer: Peer,
    /// The lease of the front that relays the client.
    lease: u128,
    /// The request to end of the newest connection.
    leave: Rc<Leave>,
    /// Of each of its connections that may still have requests under way.
    held: Vec<Weak<()>>,
}

/// Sessions of clients that are relayed here.
#[derive(Default)]
pub(crate) struct Sessions {
    by_number: RefCell<BTreeMap<u128, Held>>,
    look_at: Cell<usize>,
}

impl Sessions {
    /// Ends the earlier connection of a session. Returns what the caller must wait for before it
    /// serves the session again.
    fn replace(
        &self,
        session: u128,
        (peer, lease): (Peer, u128),
        leave: &Rc<Leave>,
    ) -> Vec<Weak<()>> {
        let mut sessions = self.by_number.borrow_mut();
        let is_under_way = |held: &Weak<()>| held.strong_count() > 0;
        if sessions.len() >= self.look_at.get().max(SESSIONS_LOOK) {
            sessions.retain(|_, known| known.held.iter().any(is_under_way));
            self.look_at.set(sessions.len() * 2);
        }
        let known = sessions.entry(session).or_insert_with(|| Held {
            peer,
            lease,
            leave: Rc::clone(leave),
            held: Vec::new(),
        });
        known.lease = lease;
        let former = std::mem::replace(&mut known.leave, Rc::clone(leave));
        if !Rc::ptr_eq(&former, leave) {
            former.tell();
        }
        known.held.retain(is_under_way);
        known.held.clone()
    }

    /// Ends the connection of a session whose client has disconnected.
    pub fn end(&self, session: u128) {
        if let Some(known) = self.by_number.borrow().get(&session) {
            known.leave.tell();
        }
    }

    /// Records a connection of a session. Returns `false` if a newer connection has replaced it or
    /// the session is unknown.
    fn keep(&self, session: u128, leave: &Rc<Leave>, held: Weak<()>) -> bool {
        let mut sessions = self.by_number.borrow_mut();
        let Some(known) = sessions.get_mut(&session) else { return false };
        known.held.push(held);
        Rc::ptr_eq(&known.leave, leave)
    }

    /// Returns the leases under which requests of the client's other sessions may be passed on.
    fn leases_beside(&self, (peer, session): (Peer, u128)) -> BTreeSet<u128> {
        let sessions = self.by_number.borrow();
        let others = sessions.iter().filter(|(number, held)| {
            let is_open = Rc::strong_count(&held.leave) > 1 && !held.leave.is_told.get();
            **number != session && held.peer.may_be(peer) && is_open
        });
        others.map(|(_, held)| held.lease).collect()
    }
}

/// Returns when no request is passed on any more from the client's other connections that it has
/// ended by now, as far as the kernels of their fronts know. The client may send the same requests
/// through its next connection, and later ones.
pub(crate) async fn hear_fronts(shared: &Shared, client: (Peer, u128)) {
    for lease in shared.sessions.leases_beside(client) {
        if let Some(grant) = shared.grants.get(lease) {
            grant.prove().await;
        }
    }
    shared.clients.gone().await;
}

/// Returns when the storage has confirmed, after this call began, that this node may serve its
/// volumes. The caller bounds the time.
pub(crate) async fn confirmed(shared: &Shared) {
    let local = &shared.config.local;
    let question = local.ask_storage();
    while !local.is_confirmed(question) {
        sleep(CONFIRMED_LOOK).await;
    }
}

/// Serves a connection to the address for nodes.
pub(crate) async fn receive(shared: Rc<Shared>, tcp: TcpStream, address: SocketAddr) {
    let patience = shared.config.timing.handshake;
    let Some(place) = shared.arrivals.greet(HostAddress::of(address.ip()).into()) else {
        let what = "a node is refused";
        return shared.notices.tell(Notice::Node, what, &address, &Verdict::NoPlace);
    };
    let greeted = tokio::select! {
        greeted = timeout(patience, greet(&shared, tcp)) => greeted.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "it is too slow"))
        }),
        () = place.evicted() => return,
    };
    let (mut stream, preamble) = match greeted {
        Ok(greeted) => greeted,
        Err(why) => {
            let what = "a connection at the address for nodes is closed";
            return shared.notices.tell(Notice::Node, what, &address, &why);
        }
    };
    let Some(session) = preamble.session else {
        // The number of these connections is small, and has its own limit.
        drop(place);
        return lease(&shared, &preamble, stream).await;
    };
    place.settle();
    let leave = Rc::new(Leave::default());
    let entered = enter(&shared, (session, &preamble), &leave).await;
    let (mut local, grant) = match entered {
        Ok(entered) => entered,
        Err(verdict) => {
            let _ = timeout(patience, say(&mut stream, verdict)).await;
            return tracing::debug!(%address, "a relayed client is refused: {verdict}");
        }
    };
    tokio::select! {
        // At the end of either, both connections close.
        _ = async {
            say(&mut stream, Verdict::Welcome).await?;
            relay(&mut stream, &mut local, (&grant, &leave)).await
        } => {}
        () = leave.told.notified() => {}
        () = grant.over() => {}
    }
}

/// Grants a front a lease for as long as it answers.
async fn lease(shared: &Shared, preamble: &Preamble, mut stream: Box<dyn Stream>) {
    let length = shared.config.timing.silence;
    let Some(grant) = shared.grants.open(preamble.lease, length) else {
        let _ = timeout(length, say(&mut stream, Verdict::NoPlace)).await;
        return;
    };
    let error = match timeout(length, say(&mut stream, Verdict::Welcome)).await {
        Ok(Ok(())) => probe(&grant, &shared.sessions, &mut stream, length).await,
        Ok(Err(error)) => error,
        Err(_) => io::ErrorKind::TimedOut.into(),
    };
    shared.grants.close(preamble.lease);
    tracing::debug!(%error, "the lease of another node's front has ended");
}

/// Negotiates TLS, and receives the preamble.
async fn greet(shared: &Shared, tcp: TcpStream) -> io::Result<(Box<dyn Stream>, Preamble)> {
    set_up_node(&tcp)?;
    let mut stream: Box<dyn Stream> = match &shared.acceptor {
        None => Box::new(tcp),
        Some(acceptor) => Box::new(acceptor.accept(tcp).await?),
    };
    let mut bytes = [0; OPENING_BYTES];
    stream.read_exact(&mut bytes).await?;
    let opening = match opened(&bytes) {
        Err(Malformed::Noise) => return Err(stranger("it is no front of a node")),
        Err(Malformed::Version(_)) => {
            say(&mut stream, Verdict::Version).await?;
            return Err(stranger("it speaks another version of the relay's protocol"));
        }
        Ok(opening) => opening,
    };
    prove(shared, &mut stream, opening).await?;
    let mut bytes = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut bytes).await?;
    let verdict = match Preamble::decode(&bytes) {
        Err(Malformed::Noise) => return Err(stranger("it is no front of a node")),
        Err(Malformed::Version(_)) => Verdict::Version,
        Ok(preamble) if preamble.cluster != shared.config.cluster => Verdict::Cluster,
        Ok(preamble) if preamble.node != shared.config.node => Verdict::Node,
        Ok(preamble) => return Ok((stream, preamble)),
    };
    say(&mut stream, verdict).await?;
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("it was refused: {verdict}")))
}

fn stranger(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Proves this node to the front, and checks the front's proof.
async fn prove(shared: &Shared, stream: &mut Box<dyn Stream>, opening: Nonce) -> io::Result<()> {
    let FrontConfig { node, secret, .. } = &shared.config;
    let challenge = evenkeel_link::nonce()?;
    let meeting = Meeting { protocol: Protocol::Relay, node: *node, opening, challenge };
    stream.write_all(&Verdict::Prove.encode()).await?;
    stream.write_all(&secret.challenge(&meeting)).await?;
    stream.flush().await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    if secret.is_connecting(&meeting, &proof) {
        Ok(())
    } else {
        Err(stranger("it does not know the secret of this node's cluster"))
    }
}

/// Opens a connection to this node's data plane when no request of the session's earlier one is
/// under way.
async fn enter(
    shared: &Shared,
    (session, preamble): (u128, &Preamble),
    leave: &Rc<Leave>,
) -> Result<(UnixStream, Rc<Grant>), Verdict> {
    let grant = shared.grants.get(preamble.lease).ok_or(Verdict::NoLease)?;
    let peer = preamble.peer;
    let former = shared.sessions.replace(session, (peer, preamble.lease), leave);
    let patience = shared.config.timing.handshake / 2;
    let alone = async {
        confirmed(shared).await;
        hear_fronts(shared, (peer, session)).await;
        over(&former).await;
    };
    timeout(patience, alone).await.map_err(|_| Verdict::NotNow)?;
    let connected = shared.config.local.connect(peer);
    let Inside { stream, held, .. } = connected.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Verdict::Stranger,
        io::ErrorKind::ResourceBusy => Verdict::NoPlace,
        _ => Verdict::NotNow,
    })?;
    if !shared.sessions.keep(session, leave, held) {
        return Err(Verdict::NotNow);
    }
    stream.set_nonblocking(true).map_err(|_| Verdict::NotNow)?;
    let stream = UnixStream::from_std(stream).map_err(|_| Verdict::NotNow)?;
    Ok((stream, grant))
}

/// Copies in both directions until one of them ends.
async fn relay(
    front: &mut Box<dyn Stream>,
    local: &mut UnixStream,
    (grant, leave): (&Grant, &Leave),
) -> io::Result<()> {
    let mut forth = Copy::new();
    let mut back = Copy::new();
    poll_fn(|cx| {
        let asked = forth.poll(cx, front, local, |front| {
            if grant.holds() && !leave.is_told.get() {
                // The client may have repeated its requests elsewhere since it ended this
                // connection.
                !front.has_ended()
            } else {
                false
            }
        });
        let answered = back.poll(cx, local, front, |_| true);
        match asked {
            Poll::Ready(ended) => Poll::Ready(ended),
            Poll::Pending => answered,
        }
    })
    .await
}

/// One direction of a connection.
struct Copy {
    buffer: Vec<u8>,
    /// The bytes of the buffer that are not written yet.
    left: Range<usize>,
    is_flushed: bool,
}

impl Copy {
    fn new() -> Self {
        Self { buffer: vec![0; COPY_BYTES], left: 0..0, is_flushed: true }
    }

    /// Copies until no more can be copied or either side ends. `may_pass` is called before each
    /// write. If it returns `false`, the connection ends and the rest of the buffer is not written.
    fn poll<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        may_pass: impl Fn(&R) -> bool,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.left.is_empty() {
                let mut buffer = ReadBuf::new(&mut self.buffer);
                match Pin::new(&mut *from).poll_read(cx, &mut buffer)? {
                    Poll::Ready(()) => self.left = 0..buffer.filled().len(),
                    Poll::Pending if self.is_flushed => return Poll::Pending,
                    Poll::Pending => {
                        ready!(Pin::new(&mut *to).poll_flush(cx))?;
                        self.is_flushed = true;
                        return Poll::Pending;
                    }
                }
                if self.left.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            if !may_pass(from) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let bytes = &self.buffer[self.left.clone()];
            let written = ready!(Pin::new(&mut *to).poll_write(cx, bytes))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.left.start += written;
            self.is_flushed = false;
        }
    }
}

async fn say(stream: &mut Box<dyn Stream>, verdict: Verdict) -> io::Result<()> {
    stream.write_all(&verdict.encode()).await?;
    stream.flush().await
}
