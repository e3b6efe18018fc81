//! A network that can keep bytes, and pass them on later.

use crate::cluster::pause;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct State {
    /// The connections whose bytes are kept; the first one has number 0.
    kept: Mutex<Range<usize>>,
    connections: AtomicUsize,
    /// Number of kept bytes on their way to the target.
    kept_bytes: AtomicUsize,
    /// Number of the kept bytes that have been passed on since.
    passed_bytes: AtomicUsize,
    keeps_ends: AtomicBool,
    resets: AtomicUsize,
    ended: AtomicUsize,
}

/// See the module's text.
pub struct Late {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Late {
    /// Starts a network to this target. It passes all bytes on at first.
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let of_thread = Arc::clone(&state);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                let number = of_thread.connections.fetch_add(1, Ordering::SeqCst);
                let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
                let forth = Arc::clone(&of_thread);
                let other = Arc::clone(&of_thread);
                std::thread::spawn(move || pass(&forth, number, (near, far), true));
                std::thread::spawn(move || pass(&other, number, back, false));
            }
        });
        Self { address, state }
    }

    /// Keeps the bytes of connections with these numbers from now on, in both directions, and
    /// passes on the kept bytes of others.
    pub fn keep(&self, numbers: Range<usize>) {
        *self.state.kept.lock().unwrap() = numbers;
    }

    /// Keeps the ends of connections with kept bytes until [`Self::let_go`].
    pub fn keep_ends(&self) {
        self.state.keeps_ends.store(true, Ordering::SeqCst);
    }

    /// Passes on the kept bytes, and all later ones.
    pub fn let_go(&self) {
        self.state.keeps_ends.store(false, Ordering::SeqCst);
        self.keep(0..0);
    }

    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    pub fn kept_bytes(&self) -> usize {
        self.state.kept_bytes.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes to the target that were kept and then passed on.
    pub fn passed_bytes(&self) -> usize {
        self.state.passed_bytes.load(Ordering::SeqCst)
    }

    /// Returns the number of connections with kept bytes that their client has reset.
    pub fn resets(&self) -> usize {
        self.state.resets.load(Ordering::SeqCst)
    }

    /// Returns the number of connections to the target that have ended after all their kept bytes.
    pub fn ended(&self) -> usize {
        self.state.ended.load(Ordering::SeqCst)
    }
}

fn pass(state: &State, number: usize, (mut from, mut to): (TcpStream, TcpStream), forth: bool) {
    let is_kept = || state.kept.lock().unwrap().contains(&number);
    let mut buffer = vec![0; 64 << 10];
    let mut was_kept = false;
    let mut is_taken = true;
    loop {
        let read = from.read(&mut buffer);
        if let Ok(bytes) = read
            && forth
            && is_kept()
        {
            state.kept_bytes.fetch_add(bytes, Ordering::SeqCst);
            was_kept = true;
        }
        if let Err(error) = &read
            && was_kept
            && error.kind() == ErrorKind::ConnectionReset
        {
            state.resets.fetch_add(1, Ordering::SeqCst);
        }
        while is_kept() {
            pause();
        }
        let Ok(bytes @ 1..) = read else { break };
        // Reads on to see the connection's end, even if the target has ended it before.
        is_taken = is_taken && to.write_all(&buffer[..bytes]).is_ok();
        if forth && was_kept {
            state.passed_bytes.fetch_add(bytes, Ordering::SeqCst);
        }
    }
    while was_kept && state.keeps_ends.load(Ordering::SeqCst) {
        pause();
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
    if forth {
        state.ended.fetch_add(1, Ordering::SeqCst);
    }
}
