//! Connections that fronts of other nodes relay to this node's data plane. A refused one is not
//! relayed further, so no request goes in circles.

use crate::front::Shared;
use crate::hello::{Malformed, OPENING_BYTES, PREAMBLE_BYTES, Preamble, Verdict, opened};
use crate::lease::{Grant, probe};
use crate::notices::Notice;
use crate::upstream::{Stream, over, set_up_node};
use crate::{FrontConfig, Inside};
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

/// Bytes of one direction that are on their way through.
const COPY_BYTES: usize = 64 << 10;
/// How often it is looked whether the storage has answered.
const CONFIRMED_LOOK: Duration = Duration::from_millis(1);
/// Sessions that are kept before it is looked which of them are over.
const SESSIONS_LOOK: usize = 64;

/// Has a relayed connection end.
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
    peer: HostAddress,
    /// Of the front that relays it.
    lease: u128,
    /// The connection that is open, if it is.
    leave: Rc<Leave>,
    /// Of each of its connections that may not be over.
    held: Vec<Weak<()>>,
}

/// Sessions of clients that are relayed here.
#[derive(Default)]
pub(crate) struct Sessions {
    by_number: RefCell<BTreeMap<u128, Held>>,
    look_at: Cell<usize>,
}

impl Sessions {
    /// Ends what there is of a session, and returns what is to be waited for.
    fn replace(
        &self,
        session: u128,
        (peer, lease): (HostAddress, u128),
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

    /// Ends what there is of a session: its client has gone.
    pub fn end(&self, session: u128) {
        if let Some(known) = self.by_number.borrow().get(&session) {
            known.leave.tell();
        }
    }

    /// Notes a connection of a session, unless another has come meanwhile.
    fn keep(&self, session: u128, leave: &Rc<Leave>, held: Weak<()>) -> bool {
        let mut sessions = self.by_number.borrow_mut();
        let Some(known) = sessions.get_mut(&session) else { return false };
        known.held.push(held);
        Rc::ptr_eq(&known.leave, leave)
    }

    /// By which leases requests of other sessions of a client may be passed on.
    fn leases_beside(&self, (peer, session): (HostAddress, u128)) -> BTreeSet<u128> {
        let sessions = self.by_number.borrow();
        let others = sessions.iter().filter(|(number, held)| {
            let is_open = Rc::strong_count(&held.leave) > 1 && !held.leave.is_told.get();
            **number != session && held.peer == peer && is_open
        });
        others.map(|(_, held)| held.lease).collect()
    }
}

/// Returns when nothing is passed on any more of other connections of a client that it has ended by
/// now, as far as their fronts' kernels have heard of it. The client may have sent the same through
/// the next connection, and more.
pub(crate) async fn hear_fronts(shared: &Shared, client: (HostAddress, u128)) {
    for lease in shared.sessions.leases_beside(client) {
        if let Some(grant) = shared.grants.get(lease) {
            grant.prove().await;
        }
    }
    shared.clients.gone().await;
}

/// Returns when the storage has confirmed after this call that this node may serve its volumes. The
/// caller bounds the time.
pub(crate) async fn confirmed(shared: &Shared) {
    let local = &shared.config.local;
    let question = local.ask_storage();
    while !local.is_confirmed(question) {
        sleep(CONFIRMED_LOOK).await;
    }
}

/// Serves who connects to the address for nodes.
pub(crate) async fn receive(shared: Rc<Shared>, tcp: TcpStream, address: SocketAddr) {
    let patience = shared.config.timing.handshake;
    let Some(place) = shared.arrivals.greet(HostAddress::of(address.ip())) else {
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
        // There are few of these, and their number has a bound of its own.
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
        // However it ends, both ends close.
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

/// TLS and the preamble.
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
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("it was told: {verdict}")))
}

fn stranger(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Proves this node, and lets the other side prove itself.
async fn prove(shared: &Shared, stream: &mut Box<dyn Stream>, opening: Nonce) -> io::Result<()> {
    let FrontConfig { node, secret, .. } = &shared.config;
    let challenge = evenkeel_link::nonce()?;
    let meeting = Meeting { protocol: Protocol::Relay, node: *node, opening, challenge };
    stream.write_all(&Verdict::Prove.encode()).await?;
    stream.write_all(&secret.challenge(&meeting)).await?;
    stream.flush().await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    match secret.is_connecting(&meeting, &proof) {
        true => Ok(()),
        false => Err(stranger("it does not know the secret of this node's cluster")),
    }
}

/// A connection to this node's data plane, when no earlier one of the session is under way.
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
    let (mut forth, mut back) = (Copy::new(), Copy::new());
    poll_fn(|cx| {
        let asked =
            forth.poll(cx, front, local, |front| match grant.holds() && !leave.is_told.get() {
                // What it has sent before it ended may have been sent elsewhere since.
                true => !front.has_ended(),
                false => false,
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
    /// What of the buffer is not written.
    left: Range<usize>,
    is_flushed: bool,
}

impl Copy {
    fn new() -> Self {
        Self { buffer: vec![0; COPY_BYTES], left: 0..0, is_flushed: true }
    }

    /// Copies what there is, until the end of either. `may_pass` is asked before each write; where
    /// it refuses, the connection ends, and what is left is not written.
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
