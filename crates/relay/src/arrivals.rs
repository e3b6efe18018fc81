//! Clients that the fronts of other nodes relay: their bytes go to this node's data plane, or they
//! are refused. Where the volume's home is is not asked again, so nothing goes around in circles.

use crate::front::Shared;
use crate::notices::Notice;
use crate::preamble::{Malformed, OPENING_BYTES, PREAMBLE_BYTES, Preamble, Verdict, opened};
use crate::upstream::{Stream, over, set_up_node};
use crate::{FrontConfig, Inside};
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::proof::{Meeting, Nonce, PROOF_BYTES, Protocol};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Weak;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Bytes of one direction that are on their way through.
const COPY_BYTES: usize = 64 << 10;
/// Sessions that are kept before it is looked which of them are over.
const SESSIONS_LOOK: usize = 64;

/// A client's connection to this node's data plane.
struct Held {
    /// The connection that is open, if it is.
    leave: Rc<Notify>,
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
    fn replace(&self, session: u128, leave: &Rc<Notify>) -> Vec<Weak<()>> {
        let mut sessions = self.by_number.borrow_mut();
        let is_under_way = |held: &Weak<()>| held.strong_count() > 0;
        if sessions.len() >= self.look_at.get().max(SESSIONS_LOOK) {
            sessions.retain(|_, known| known.held.iter().any(is_under_way));
            self.look_at.set(sessions.len() * 2);
        }
        let known = sessions
            .entry(session)
            .or_insert_with(|| Held { leave: Rc::clone(leave), held: Vec::new() });
        let former = std::mem::replace(&mut known.leave, Rc::clone(leave));
        if !Rc::ptr_eq(&former, leave) {
            former.notify_one();
        }
        known.held.retain(is_under_way);
        known.held.clone()
    }

    /// Notes a connection of a session, unless another has come meanwhile.
    fn keep(&self, session: u128, leave: &Rc<Notify>, held: Weak<()>) -> bool {
        let mut sessions = self.by_number.borrow_mut();
        let Some(known) = sessions.get_mut(&session) else { return false };
        known.held.push(held);
        Rc::ptr_eq(&known.leave, leave)
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
    place.settle();
    let leave = Rc::new(Notify::new());
    let mut local = match enter(&shared, &preamble, &leave).await {
        Ok(local) => local,
        Err(verdict) => {
            let _ = timeout(patience, say(&mut stream, verdict)).await;
            return tracing::debug!(%address, "a relayed client is refused: {verdict}");
        }
    };
    tokio::select! {
        // However it ends, both ends close.
        _ = async {
            say(&mut stream, Verdict::Welcome).await?;
            let bytes = COPY_BYTES;
            copy_bidirectional_with_sizes(&mut stream, &mut local, bytes, bytes).await
        } => {}
        () = leave.notified() => {}
    }
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
    preamble: &Preamble,
    leave: &Rc<Notify>,
) -> Result<UnixStream, Verdict> {
    let former = shared.sessions.replace(preamble.session, leave);
    let patience = shared.config.timing.handshake / 2;
    timeout(patience, over(&former)).await.map_err(|_| Verdict::NotNow)?;
    let connected = shared.config.local.connect(preamble.peer);
    let Inside { stream, held, .. } = connected.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Verdict::Stranger,
        io::ErrorKind::ResourceBusy => Verdict::NoPlace,
        _ => Verdict::NotNow,
    })?;
    if !shared.sessions.keep(preamble.session, leave, held) {
        return Err(Verdict::NotNow);
    }
    stream.set_nonblocking(true).map_err(|_| Verdict::NotNow)?;
    UnixStream::from_std(stream).map_err(|_| Verdict::NotNow)
}

async fn say(stream: &mut Box<dyn Stream>, verdict: Verdict) -> io::Result<()> {
    stream.write_all(&verdict.encode()).await?;
    stream.flush().await
}
