//! Clients of a front, and which of them have ended their connections.
//!
//! A client's own task notices its end, but may read the client's earlier bytes first. Other parts
//! of the front check here before they report that all clients that have gone are known.

use crate::client_stream::ClientStream;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::time::sleep;

/// Time between checks whether tasks have noticed the end of their clients, and the number of
/// checks.
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: u32 = 50;

/// A client's connection, shared by its task and others.
#[derive(Debug)]
pub(crate) struct Socket {
    /// The stream; `None` while it is lent.
    stream: RefCell<Option<ClientStream>>,
    /// The client has asked to disconnect, so it sends nothing more.
    is_leaving: Cell<bool>,
    /// Wakes its task.
    waker: RefCell<Option<Waker>>,
}

impl Socket {
    pub fn new(stream: ClientStream) -> Rc<Self> {
        let stream = RefCell::new(Some(stream));
        Rc::new(Self { stream, is_leaving: Cell::default(), waker: RefCell::default() })
    }

    /// Returns the stream; `None` while it is lent. The caller must not hold it while it waits.
    pub fn stream(&self) -> RefMut<'_, Option<ClientStream>> {
        self.stream.borrow_mut()
    }

    /// Returns whether the data plane can read from the client's own socket.
    pub fn is_plain(&self) -> bool {
        self.stream.borrow().as_ref().is_some_and(ClientStream::is_plain)
    }

    /// Records that the client has asked to disconnect. Its earlier requests are served.
    pub fn leave(&self) {
        self.is_leaving.set(true);
    }

    /// Returns whether the client has asked to disconnect.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving.get()
    }

    /// Returns whether the client has ended the connection, even if unread bytes are left, without
    /// a known request to disconnect.
    pub fn has_gone(&self) -> bool {
        !self.is_leaving() && self.stream.borrow().as_ref().is_some_and(ClientStream::has_ended)
    }

    /// Registers the client's task to be woken if others see that the client has gone.
    pub fn wake(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }
}

/// Clients by the numbers of their sessions.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    by_session: RefCell<BTreeMap<u128, Weak<Socket>>>,
}

impl Clients {
    pub fn add(&self, session: u128, socket: Weak<Socket>) {
        self.by_session.borrow_mut().insert(session, socket);
    }

    pub fn remove(&self, session: u128) {
        self.by_session.borrow_mut().remove(&session);
    }

    /// Returns when the task of each client that has gone by now has noticed it, or after a tenth
    /// of a second. Returns the clients that have gone and whose tasks have not noticed it.
    pub async fn gone(&self) -> Vec<u128> {
        let mut gone = self.look();
        for _ in 0..LOOKS {
            if gone.is_empty() {
                break;
            }
            sleep(LOOK).await;
            let now = self.look();
            gone.retain(|session| now.contains(session));
        }
        gone
    }

    /// Returns the clients that have gone, and wakes their tasks.
    fn look(&self) -> Vec<u128> {
        let clients = self.by_session.borrow();
        let sockets = clients.iter().filter_map(|(session, at)| Some((*session, at.upgrade()?)));
        let gone = sockets.filter(|(_, socket)| socket.has_gone());
        let woken = gone.inspect(|(_, socket)| {
            if let Some(waker) = &*socket.waker.borrow() {
                waker.wake_by_ref();
            }
        });
        woken.map(|(session, _)| session).collect()
    }
}
