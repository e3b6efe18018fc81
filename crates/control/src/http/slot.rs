//! The slot of one API connection: it is notified here when [`super::table`] evicts it, and it
//! records here whether an authentic request is in flight.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Sleep, sleep};

use super::stream::Stream;
use super::table::{Busy, ConnectionTable, Peer};

/// The slots of all connections.
#[derive(Debug, Default)]
pub struct Slots {
    inner: Mutex<Inner>,
    /// Notified when a connection has ended.
    left: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    table: ConnectionTable,
    /// Notifies a connection that it is evicted.
    evictions: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change of the table is a single call, so a poisoned lock is still consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for an accepted connection, and evicts another if none is free. Returns the
    /// slot and a receiver that resolves when this connection is evicted itself. Does not wait for
    /// any client: an evicted connection ends at once.
    pub async fn take(self: &Arc<Self>, address: IpAddr) -> (Arc<Slot>, oneshot::Receiver<()>) {
        let peer = Peer::of(address);
        loop {
            {
                let mut inner = self.lock();
                if !inner.table.is_full() {
                    let id = inner.table.add(peer);
                    let (evict, evicted) = oneshot::channel();
                    inner.evictions.insert(id, evict);
                    let slots = Arc::clone(self);
                    let sending = AtomicBool::new(false);
                    return (Arc::new(Slot { slots, id, address, sending }), evicted);
                }
                if let Some(victim) = inner.table.evict(peer)
                    && let Some(evict) = inner.evictions.remove(&victim)
                {
                    // Fails if the connection is just ending by itself.
                    let _ = evict.send(());
                }
            }
            self.left.notified().await;
        }
    }
}

/// The slot of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    id: u64,
    /// The client's address.
    pub address: IpAddr,
    /// Whether the reply to an authentic request is complete but not yet passed to the kernel.
    sending: AtomicBool,
}

impl Slot {
    /// Begins an authentic request.
    ///
    /// # Errors
    /// See [`Busy`]. The request must not be executed then.
    pub fn begin(self: &Arc<Self>) -> Result<InFlight, Busy> {
        self.slots.lock().table.begin(self.id)?;
        self.sending.store(false, Ordering::Relaxed);
        Ok(InFlight(Arc::clone(self)))
    }

    /// Protects the connection of the running scrape from eviction until the returned guard is
    /// dropped.
    pub fn pin(self: &Arc<Self>) -> Pinned {
        let pinned = self.slots.lock().table.pin(self.id);
        Pinned(pinned.then(|| Arc::clone(self)))
    }

    /// Protects the connection from eviction until the returned guard is dropped. Has no effect
    /// while as many connections as [`Busy`] names are protected.
    #[must_use]
    pub fn hold(self: &Arc<Self>) -> Pinned {
        let held = self.slots.lock().table.begin(self.id).is_ok();
        Pinned(held.then(|| Arc::clone(self)))
    }

    /// Ends the connection, whatever it does.
    pub fn evict(&self) {
        if let Some(evict) = self.slots.lock().evictions.remove(&self.id) {
            // Fails if the connection is just ending by itself.
            let _ = evict.send(());
        }
    }

    /// Records that everything to be sent has been passed to the kernel.
    fn flushed(&self) {
        if self.sending.swap(false, Ordering::Relaxed) {
            self.slots.lock().table.set_idle(self.id);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut inner = self.slots.lock();
        inner.table.remove(self.id);
        inner.evictions.remove(&self.id);
        drop(inner);
        self.slots.left.notify_one();
    }
}

/// A request in flight. Its connection cannot be evicted until this is dropped and everything to
/// be sent by then has been sent.
#[derive(Debug)]
pub struct InFlight(Arc<Slot>);

impl InFlight {
    /// Returns the body of the reply. The connection is kept until the client has all of it.
    pub fn reply(self, content: impl Into<Bytes>) -> Body {
        Body::new(Reply { text: Some(content.into()), _in_flight: self })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.sending.store(true, Ordering::Relaxed);
    }
}

/// See [`Slot::pin`].
#[derive(Debug)]
pub struct Pinned(Option<Arc<Slot>>);

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(slot) = &self.0 {
            slot.slots.lock().table.set_idle(slot.id);
        }
    }
}

/// A body in one piece. It is dropped once all of it is in the connection's buffer.
struct Reply {
    text: Option<Bytes>,
    _in_flight: InFlight,
}

impl HttpBody for Reply {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.text.take().map(|text| Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.text.as_ref().map_or(0, |text| text.len() as u64))
    }
}

/// A connection's stream. It notifies the slot when everything to be sent has been sent, and fails
/// if the client takes too long to read it.
pub struct SlotStream {
    stream: Stream,
    /// The address at which the connection arrived; `None` if it is already closed.
    pub local: Option<IpAddr>,
    slot: Arc<Slot>,
    /// Maximum time that the client may take to read a reply.
    send_max: Duration,
    /// Time by which a reply must have been read that the kernel does not take at once.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl SlotStream {
    pub fn new(stream: Stream, local: Option<IpAddr>, slot: Arc<Slot>, send_max: Duration) -> Self {
        Self { stream, local, slot, send_max, deadline: None }
    }

    pub const fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Returns the result of a write, or an error if it waits and the deadline is over.
    fn in_time(
        &mut self,
        written: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            return written;
        }
        let send_max = self.send_max;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(send_max)));
        ready!(deadline.as_mut().poll(cx));
        let why = format!("the reply was not read within {send_max:?}");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl AsyncRead for SlotStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for SlotStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.in_time(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.in_time(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when the buffers of the layers above are empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.deadline = None;
        self.slot.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
