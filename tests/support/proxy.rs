//! A connection that can be cut without an end: sent bytes do not arrive, and neither side is
//! notified, as when a cable is pulled.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two checks whether it is cut.
const LOOK: Duration = Duration::from_millis(20);

/// Forwards bytes that arrive at its port, until it is cut.
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_cut: AtomicBool,
    is_over: AtomicBool,
}

impl Proxy {
    /// Starts a proxy for a port of this machine.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = listener.local_addr().expect("its address").port();
        let state: Arc<State> = Arc::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.is_over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(server) = TcpStream::connect(at(port)) else { continue };
                let (Ok(to_client), Ok(to_server)) = (client.try_clone(), server.try_clone())
                else {
                    continue;
                };
                pump(client, to_server, Arc::clone(&shared));
                pump(server, to_client, Arc::clone(&shared));
            }
        });
        Self { port: own, state }
    }

    /// Returns its address, for clients of HTTP.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Cuts all present and later connections, or lets them continue.
    pub fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        // Wakes the thread that waits for clients.
        let _ = TcpStream::connect(at(self.port));
    }
}

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Forwards bytes in one direction on a thread of its own, until either end closes.
fn pump(mut from: TcpStream, mut to: TcpStream, state: Arc<State>) {
    std::thread::spawn(move || {
        let _ = from.set_read_timeout(Some(LOOK));
        let mut bytes = vec![0; 1 << 16];
        while !state.is_over.load(Ordering::Acquire) {
            let count = match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(_) => break,
            };
            while state.is_cut.load(Ordering::Acquire) && !state.is_over.load(Ordering::Acquire) {
                super::clock::pass(LOOK);
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
        let _ = from.shutdown(std::net::Shutdown::Both);
    });
}
