//! The API of a node that does not run the control plane. It relays connections byte by byte to the
//! node that does, so signatures stay valid. A client may use any node's address.
//!
//! With TLS, each node shows its clients its own certificate, and connects to the leader over TLS,
//! too: the authority of the nodes has signed the leader's certificate, for the leader's address.

use crate::health::Health;
use evenkeel_client::output::Failure;
use evenkeel_control::api::error::ApiError;
use evenkeel_control::{Pinned, Slot, Slots, Stream, Timeouts, accept_stream};
use evenkeel_tls::server::ServerTls;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Maximum time until the leader accepts a connection, and until its TLS handshake ends.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Maximum time in which clients that wait for an answer get one when the relay stops.
const STOP_MAX: Duration = Duration::from_secs(1);
/// Time between two looks at who leads while a client waits for an answer.
const LOOK: Duration = Duration::from_millis(200);
/// Maximum number of bytes that are relayed at once. Each connection has two such buffers.
const PART_BYTES: usize = 8 << 10;
/// The first bytes of a request for the liveness of this node.
const ALIVE: &[u8] = b"GET /healthz ";
/// The first bytes of a request for readiness. A ready node relays it to the leader.
const READY: &[u8] = b"GET /readyz ";
/// Answer to a request for liveness by a healthy node.
const WELL: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\n\
                    content-length: 2\r\nconnection: close\r\n\r\nok";

/// Request id of an answer that the leader has not seen.
const NO_REQUEST: &str = "00000000-0000-0000-0000-000000000000";

/// A function that returns the address of the leader.
pub type WhoLeads = dyn Fn() -> Option<SocketAddr> + Send + Sync;

/// The relay's view of its node.
#[derive(Clone)]
pub struct Node {
    /// Returns the address of the leader.
    pub leader: Arc<WhoLeads>,
    /// Answers requests for its health.
    pub health: Arc<Health>,
    /// TLS of the API, if the nodes have it.
    pub tls: Option<Arc<ServerTls>>,
}

/// A connection to the leader.
trait Leader: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Leader for T {}

/// See the module's text. Dropping it frees the address and closes all connections. Clients that
/// wait for an answer get one by which they repeat their requests.
pub struct ApiRelay {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl ApiRelay {
    /// Starts the relay. It listens when this returns.
    ///
    /// # Errors
    /// The address or a thread cannot be had.
    pub fn start(listen: SocketAddr, node: Node, timeouts: Timeouts) -> Result<Self, Failure> {
        let failed = |error| Failure::new(format!("the API cannot listen on {listen}: {error}"));
        let listener = std::net::TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        let work = move || {
            runtime.block_on(async {
                // Each connection holds a sender, so the end of the channel is that of all.
                let (open, mut ended) = mpsc::channel::<()>(1);
                let mut is_stopped = stopped.clone();
                tokio::select! {
                    () = accept(listener, node, timeouts, (stopped, open)) => {}
                    _ = is_stopped.wait_for(|is_stopped| *is_stopped) => {}
                }
                let _ = timeout(STOP_MAX, ended.recv()).await;
            });
            // This closes the connections.
            drop(runtime);
        };
        let thread = std::thread::Builder::new().name("api-relay".to_owned()).spawn(work);
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { stop, thread })
    }
}

impl Drop for ApiRelay {
    fn drop(&mut self) {
        // If the thread has ended, nothing receives it.
        let _ = self.stop.send(true);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that relays the API panicked");
        }
    }
}

async fn accept(
    listener: std::net::TcpListener,
    node: Node,
    timeouts: Timeouts,
    (stopped, open): (watch::Receiver<bool>, mpsc::Sender<()>),
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the API is not relayed"),
    };
    let slots: Arc<Slots> = Arc::default();
    loop {
        match listener.accept().await {
            Ok((client, peer)) => {
                // As at the leader, a silent connection is evicted for a new one.
                let (slot, evicted) = slots.take(peer.ip()).await;
                let node = node.clone();
                let mut stopped = stopped.clone();
                let open = open.clone();
                tokio::spawn(async move {
                    let relayed = relay(client, &slot, &node, timeouts, &mut stopped);
                    // If the connection breaks, its client makes another one.
                    tokio::select! {
                        Ok(()) = evicted => {}
                        _ = timeout(timeouts.connection, relayed) => {}
                    }
                    drop(open);
                });
                // Gives the task a turn, so that a request that has arrived is seen before its
                // connection may be evicted.
                tokio::task::yield_now().await;
            }
            // For example, the process has no descriptors left; other connections close.
            Err(error) => {
                tracing::debug!(%error, "a connection to the API was not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn relay(
    client: TcpStream,
    slot: &Arc<Slot>,
    node: &Node,
    timeouts: Timeouts,
    stopped: &mut watch::Receiver<bool>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let accepted = accept_stream(client, node.tls.as_ref());
    let mut client = timeout(timeouts.handshake, accepted).await??;
    let mut begin = [0; ALIVE.len()];
    let mut read = 0;
    let first = async {
        while read < begin.len() {
            match client.read(&mut begin[read..]).await? {
                0 => break,
                bytes => read += bytes,
            }
        }
        std::io::Result::Ok(())
    };
    tokio::select! {
        first = timeout(timeouts.head, first) => match first {
            Ok(first) => first?,
            Err(_) => return Ok(()),
        },
        _ = stopped.wait_for(|is_stopped| *is_stopped) => return Ok(()),
    }
    let health = match &begin {
        begin if *begin == ALIVE => Some(node.health.check_alive()),
        // A ready node relays the request to the leader.
        begin if begin.starts_with(READY) => node.health.check_ready().err().map(Err),
        _ => None,
    };
    match health {
        Some(Ok(())) => return answer(client, WELL, timeouts).await,
        Some(Err(why)) => return answer(client, &unwell(&why), timeouts).await,
        None => {}
    }
    let connected = match (node.leader)() {
        Some(address) => match connect(address, node.tls.as_deref()).await {
            Ok(server) => Ok((server, address)),
            Err(error) => Err(format!("the leader at {address} does not answer: {error}")),
        },
        None => Err("no node leads the cluster at the moment".to_owned()),
    };
    let why = match connected {
        Ok((mut server, address)) => {
            server.write_all(&begin[..read]).await?;
            server.flush().await?;
            let is_deposed = || (node.leader)().is_some_and(|present| present != address);
            if !pass_on(&mut client, &mut server, slot, timeouts, &is_deposed, stopped).await? {
                return Ok(());
            }
            let ended = if *stopped.borrow() || is_deposed() {
                "does not lead any more, and has not answered"
            } else {
                "ended before it answered"
            };
            let unknown = "it is not known whether the request was executed";
            format!("the leader at {address} {ended}, so {unknown}")
        }
        Err(why) => why,
    };
    answer(client, &unavailable(&why), timeouts).await
}

/// Connects to the leader. Its certificate must be for its address.
async fn connect(address: SocketAddr, tls: Option<&ServerTls>) -> std::io::Result<Box<dyn Leader>> {
    let server = timeout(CONNECT_MAX, TcpStream::connect(address)).await??;
    server.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(server)) };
    let config = tls.nodes().ok_or_else(|| std::io::Error::other("there is no tls-ca"))?;
    let connector = TlsConnector::from(config);
    let secured = connector.connect(ServerName::from(address.ip().to_canonical()), server);
    Ok(Box::new(timeout(CONNECT_MAX, secured).await??))
}

/// Relays the bytes of either side until the server ends, the relay stops, or another node leads
/// while the client waits for an answer: a leader that hangs gives none. Returns whether the client
/// waits for an answer then: a leader that steps down may leave a request unanswered.
async fn pass_on(
    client: &mut Stream,
    server: &mut Box<dyn Leader>,
    slot: &Arc<Slot>,
    timeouts: Timeouts,
    is_deposed: &(dyn Fn() -> bool + Sync),
    stopped: &mut watch::Receiver<bool>,
) -> std::io::Result<bool> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    // The beginning of a request was sent, so the client waits for an answer.
    let owes = AtomicBool::new(true);
    // The connection is not evicted while its client waits for an answer.
    let held: Mutex<Option<Pinned>> = Mutex::new(Some(slot.hold()));
    let held_now = || held.lock().unwrap_or_else(PoisonError::into_inner);
    let requests = async {
        let mut bytes = [0; PART_BYTES];
        loop {
            match from_client.read(&mut bytes).await {
                Ok(read @ 1..) => {
                    owes.store(true, Ordering::Relaxed);
                    held_now().get_or_insert_with(|| slot.hold());
                    let sent = send(&mut to_server, &bytes[..read]);
                    if !timeout(timeouts.body, sent).await.is_ok_and(|sent| sent.is_ok()) {
                        break;
                    }
                }
                // The client may still wait for an answer.
                Ok(0) => break,
                Err(_) => {
                    owes.store(false, Ordering::Relaxed);
                    break;
                }
            }
        }
        let _ = to_server.shutdown().await;
        std::future::pending::<()>().await;
    };
    let answers = async {
        let mut bytes = [0; PART_BYTES];
        while let Ok(read @ 1..) = from_server.read(&mut bytes).await {
            owes.store(false, Ordering::Relaxed);
            timeout(timeouts.send, send(&mut to_client, &bytes[..read])).await??;
            drop(held_now().take());
        }
        std::io::Result::Ok(())
    };
    let deposed = async {
        loop {
            tokio::time::sleep(LOOK).await;
            if owes.load(Ordering::Relaxed) && is_deposed() {
                break;
            }
        }
    };
    tokio::select! {
        ended = answers => ended?,
        () = requests => {}
        () = deposed => {}
        _ = stopped.wait_for(|is_stopped| *is_stopped) => {}
    }
    let owes = owes.load(Ordering::Relaxed);
    if !owes {
        // With TLS this tells the client that the answer is complete.
        timeout(timeouts.send, to_client.shutdown()).await??;
    }
    Ok(owes)
}

/// Sends bytes, also those that TLS has kept.
async fn send(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// Sends an answer and closes the connection.
async fn answer(mut client: Stream, text: &str, timeouts: Timeouts) -> std::io::Result<()> {
    timeout(timeouts.send, send(&mut client, text.as_bytes())).await??;
    client.shutdown().await?;
    // If the connection is closed with unread bytes, it is reset before the client has read the
    // answer.
    let mut rest = [0; 4_096];
    let drained = async { while client.read(&mut rest).await.is_ok_and(|read| read > 0) {} };
    let _ = timeout(timeouts.close, drained).await;
    Ok(())
}

/// Returns the answer of a node that is not healthy, as the leader's.
fn unwell(why: &str) -> String {
    let length = why.len() + 1;
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{why}\n"
    )
}

/// Returns an answer after which EC2's clients repeat the request.
fn unavailable(why: &str) -> String {
    let error = ApiError::unavailable(format!("{why}; try again in a few seconds"));
    let body = error.document(NO_REQUEST);
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/xml;charset=UTF-8\r\n\
         retry-after: 1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_control::CONNECTIONS_MAX;
    use evenkeel_os::files::write_whole_with_mode;
    use evenkeel_tls::authority::{Authority, Made, Validity};
    use evenkeel_tls::server::ServerFiles;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    fn free() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn times(head: Duration) -> Timeouts {
        Timeouts { head, close: Duration::from_millis(200), ..Timeouts::default() }
    }

    fn node(leader: Arc<WhoLeads>) -> Node {
        Node { leader, health: Arc::default(), tls: None }
    }

    fn asked(at: SocketAddr, request: &str) -> String {
        let mut client = TcpStream::connect(at).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn relay_evicts_silent_connections_for_new_ones() {
        let address = free();
        let who: Arc<WhoLeads> = Arc::new(|| None);
        // Longer than the test may take, so no connection ends by a timeout.
        let relay = ApiRelay::start(address, node(who), times(Duration::from_secs(600))).unwrap();
        let silent: Vec<TcpStream> =
            (0..CONNECTIONS_MAX + 50).map(|_| TcpStream::connect(address).unwrap()).collect();
        let well = asked(address, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
        assert!(well.ends_with("\r\n\r\nok"), "{well}");
        let refused = asked(address, "POST / HTTP/1.1\r\nhost: x\r\n\r\n");
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        drop((silent, relay));
    }

    #[test]
    fn relay_passes_a_connection_unchanged_to_the_present_leader() {
        let leader = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = free();
        let address = leader.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = leader.accept().unwrap();
            for _ in 0..2 {
                let mut request = [0; 31];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(&request).unwrap();
            }
        });
        let who: Arc<WhoLeads> = Arc::new(move || Some(address));
        let relay = ApiRelay::start(at, node(who), times(Duration::from_secs(30))).unwrap();
        let mut client = TcpStream::connect(at).unwrap();
        for number in 0..2 {
            let request = format!("POST / HTTP/1.1\r\nhost: x:{number:05}\r");
            client.write_all(request.as_bytes()).unwrap();
            let mut reply = [0; 31];
            client.read_exact(&mut reply).unwrap();
            assert_eq!(reply, request.as_bytes());
        }
        served.join().unwrap();
        drop(relay);
        TcpListener::bind(at).expect("the address is free again");
    }

    /// Makes TLS for these names by an authority.
    fn tls_for(folder: &std::path::Path, authority: (&Authority, &Made), name: &str) -> ServerTls {
        let (authority, made) = authority;
        let validity = Validity { now: evenkeel_os::clock::since_1970(), days: 1 };
        let server = authority.server(&[name.to_owned()], validity).unwrap();
        let path = |file: &str| folder.join(format!("{name}-{file}"));
        std::fs::write(path("cert"), &server.certificate).unwrap();
        std::fs::write(path("ca"), &made.certificate).unwrap();
        write_whole_with_mode(&path("key"), server.key.as_bytes(), 0o600).unwrap();
        let authority = Some(path("ca"));
        let files = ServerFiles { certificate: path("cert"), key: path("key"), authority };
        ServerTls::open(files).unwrap()
    }

    /// A leader over TLS that answers each of `requests` connections with the request itself.
    fn leader_over_tls(tls: Arc<ServerTls>, requests: u32) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            for _ in 0..requests {
                let (tcp, _) = listener.accept().await.unwrap();
                // A relay that refuses the certificate ends the handshake.
                let Ok(mut stream) = accept_stream(tcp, Some(&tls)).await else { continue };
                let mut request = [0; "POST / HTTP/1.1\r\n\r\n".len()];
                stream.read_exact(&mut request).await.unwrap();
                send(&mut stream, &request).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        };
        (address, std::thread::spawn(move || runtime.block_on(serve)))
    }

    #[test]
    fn relay_keeps_to_tls_and_checks_the_leaders_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let validity = Validity { now: evenkeel_os::clock::since_1970(), days: 1 };
        let (authority, made) = Authority::create(validity).unwrap();
        let certified = |name| Arc::new(tls_for(folder.path(), (&authority, &made), name));
        let own = certified("localhost");
        for (leaders, answer) in [
            (certified("127.0.0.1"), "POST / HTTP/1.1\r\n\r\n"),
            (certified("127.0.0.2"), "HTTP/1.1 503 Service Unavailable"),
        ] {
            let (address, served) = leader_over_tls(leaders, 1);
            let who: Arc<WhoLeads> = Arc::new(move || Some(address));
            let node = Node { tls: Some(Arc::clone(&own)), ..node(who) };
            let listen = free();
            let relay = ApiRelay::start(listen, node, times(Duration::from_secs(30))).unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let client = rustls::ClientConnection::new(own.nodes().unwrap(), name).unwrap();
            let mut client = rustls::StreamOwned::new(client, TcpStream::connect(listen).unwrap());
            client.write_all(b"POST / HTTP/1.1\r\n\r\n").unwrap();
            let mut reply = String::new();
            client.read_to_string(&mut reply).unwrap();
            assert!(reply.starts_with(answer), "{reply}");
            served.join().unwrap();
            let plain = asked(listen, "GET /healthz HTTP/1.1\r\n\r\n");
            assert!(plain.starts_with("HTTP/1.1 400 ") && plain.contains("https://"), "{plain}");
            drop(relay);
        }
    }

    #[test]
    fn relay_answers_unavailable_if_the_leader_ends_without_an_answer() {
        let leader = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = free();
        let address = leader.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            for reply in ["", "HTTP/1.1 200 OK\r\n\r\n"] {
                let (mut stream, _) = leader.accept().unwrap();
                let mut request = [0; 18];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(reply.as_bytes()).unwrap();
            }
        });
        let who: Arc<WhoLeads> = Arc::new(move || Some(address));
        let _relay = ApiRelay::start(at, node(who), times(Duration::from_secs(30))).unwrap();
        let reply = asked(at, "POST / HTTP/1.1\r\n\r\n");
        assert!(reply.starts_with("HTTP/1.1 503 "), "{reply}");
        let text = format!("the leader at {address} ended before it answered");
        assert!(reply.contains(&text), "{reply}");
        // A request that was answered is not answered again.
        assert_eq!(asked(at, "POST / HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK\r\n\r\n");
        served.join().unwrap();
    }

    /// A leader that hangs is replaced, and answers nothing.
    #[test]
    fn relay_answers_the_clients_that_wait_once_another_node_leads() {
        let hung = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free();
        let other = free();
        let address = hung.local_addr().unwrap();
        let leads = Arc::new(Mutex::new(Some(address)));
        let present = leads.clone();
        let (looks, looked) = std::sync::mpsc::channel();
        let looks = Mutex::new(looks);
        let who: Arc<WhoLeads> = Arc::new(move || {
            let present = *present.lock().unwrap();
            let _ = looks.lock().unwrap().send(present);
            present
        });
        let _relay = ApiRelay::start(listen, node(who), times(Duration::from_secs(600))).unwrap();
        let waiting = std::thread::spawn(move || asked(listen, "POST / HTTP/1.1\r\n\r\n"));
        let (mut stream, _) = hung.accept().unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        // It is not known who leads while etcd does not answer.
        *leads.lock().unwrap() = None;
        for _ in 0..2 {
            while looked.recv_timeout(Duration::from_secs(60)).unwrap().is_some() {}
        }
        assert!(!waiting.is_finished());
        *leads.lock().unwrap() = Some(other);
        let reply = waiting.join().unwrap();
        assert!(reply.starts_with("HTTP/1.1 503 "), "{reply}");
        let text = format!("the leader at {address} does not lead any more, and has not answered");
        assert!(reply.contains(&text), "{reply}");
    }

    #[test]
    fn relay_that_stops_answers_the_clients_that_wait() {
        let leader = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free();
        let address = leader.local_addr().unwrap();
        let who: Arc<WhoLeads> = Arc::new(move || Some(address));
        let relay = ApiRelay::start(listen, node(who), times(Duration::from_secs(600))).unwrap();
        let silent = TcpStream::connect(listen).unwrap();
        let waiting = std::thread::spawn(move || asked(listen, "POST / HTTP/1.1\r\n\r\n"));
        let (mut stream, _) = leader.accept().unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        drop(relay);
        TcpListener::bind(listen).expect("the address is free again");
        let reply = waiting.join().unwrap();
        assert!(reply.starts_with("HTTP/1.1 503 "), "{reply}");
        assert!(reply.contains("does not lead any more, and has not answered, so it"), "{reply}");
        drop((silent, stream));
    }

    #[test]
    fn relay_without_a_leader_answers_unavailable_and_the_node_is_healthy() {
        let address = free();
        let gone = free();
        let leader = Arc::new(Mutex::new(None));
        let of_relay = Arc::clone(&leader);
        let who: Arc<WhoLeads> = Arc::new(move || *of_relay.lock().unwrap());
        let _relay = ApiRelay::start(address, node(who), times(Duration::from_secs(30))).unwrap();
        let reply = asked(address, "POST / HTTP/1.1\r\n\r\n");
        assert!(reply.starts_with("HTTP/1.1 503 ") && reply.contains("no node leads"), "{reply}");
        *leader.lock().unwrap() = Some(gone);
        let reply = asked(address, "POST / HTTP/1.1\r\n\r\n");
        assert!(reply.contains("<Code>Unavailable</Code>") && reply.contains("does not answer"));
        let reply = asked(address, "GET /healthz HTTP/1.1\r\n\r\n");
        assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("\r\n\r\nok"), "{reply}");
    }

    #[test]
    fn relay_closes_the_connection_of_a_silent_client() {
        let address = free();
        let who: Arc<WhoLeads> = Arc::new(|| None);
        let _relay = ApiRelay::start(address, node(who), times(Duration::from_millis(50))).unwrap();
        assert_eq!(asked(address, "POST"), "");
    }

    #[test]
    fn liveness_is_the_nodes_own_and_readiness_also_the_leaders() {
        let leader = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = free();
        let address = leader.local_addr().unwrap();
        let node = node(Arc::new(move || Some(address)));
        let health = Arc::clone(&node.health);
        let _relay = ApiRelay::start(at, node, times(Duration::from_secs(30))).unwrap();
        let ask = |path: &str| asked(at, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
        health.etcd.note(Err("no connection".to_owned()));
        let ready = ask("/readyz");
        assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
        assert!(ready.ends_with("\r\n\r\netcd: no connection\n"), "{ready}");
        assert!(ask("/healthz").starts_with("HTTP/1.1 200 "));
        health.etcd.note(Ok(()));
        health.data_plane.note(Err("its thread has ended".to_owned()));
        for path in ["/healthz", "/readyz"] {
            let reply = ask(path);
            assert!(reply.starts_with("HTTP/1.1 503 "), "{reply}");
            assert!(reply.ends_with("\r\n\r\nthe data plane: its thread has ended\n"), "{reply}");
        }
        health.data_plane.note(Ok(()));
        let served = std::thread::spawn(move || {
            let (mut stream, _) = leader.accept().unwrap();
            stream.read_exact(&mut [0; 12]).unwrap();
            stream.write_all(b"HTTP/1.1 503 Of The Leader\r\n\r\n").unwrap();
        });
        let ready = ask("/readyz");
        served.join().unwrap();
        assert!(ready.starts_with("HTTP/1.1 503 Of The Leader"), "{ready}");
    }
}
