//! One connection's place among all: who gives way when places are short ([`super::table`]) is told
//! so here, and what is under way is known here.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};

use super::table::{Busy, Peer, Table};

/// All places.
#[derive(Debug, Default)]
pub struct Seats {
    inner: Mutex<Inner>,
    /// Somebody has left.
    left: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    table: Table,
    /// What tells a connection to go.
    bells: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No change of it can be left half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection that has been accepted, for which another may have to go; and what
    /// tells it to go itself. Waits for no client: who is told to go does nothing else any more.
    pub async fn take(self: &Arc<Self>, address: IpAddr) -> (Arc<Seat>, oneshot::Receiver<()>) {
        let peer = Peer::of(address);
        loop {
            {
                let mut inner = self.lock();
                if !inner.table.is_full() {
                    let id = inner.table.enter(peer);
                    let (bell, rings) = oneshot::channel();
                    inner.bells.insert(id, bell);
                    let seats = Arc::clone(self);
                    return (Arc::new(Seat { seats, id, sending: AtomicBool::new(false) }), rings);
                }
                if let Some(goes) = inner.table.give_way(peer)
                    && let Some(bell) = inner.bells.remove(&goes)
                {
                    // It may just be ending by itself.
                    let _ = bell.send(());
                }
            }
            self.left.notified().await;
        }
    }
}

/// The place of one connection; free again when it is dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    id: u64,
    /// Whether all of an authentic request's reply is made, and not all of it handed over.
    sending: AtomicBool,
}

impl Seat {
    /// An authentic request begins.
    ///
    /// # Errors
    /// See [`Busy`]; the request must not be carried out then.
    pub fn begin(self: &Arc<Self>) -> Result<UnderWay, Busy> {
        self.seats.lock().table.begin(self.id)?;
        self.sending.store(false, Ordering::Relaxed);
        Ok(UnderWay(Arc::clone(self)))
    }

    /// The scrape that is carried out is not to be cut before its answer is known: as long as what
    /// this gives is there.
    pub fn hold(self: &Arc<Self>) -> Held {
        let holds = self.seats.lock().table.hold(self.id);
        Held(holds.then(|| Arc::clone(self)))
    }

    /// Everything that there was to be sent is the kernel's now.
    fn flushed(&self) {
        if self.sending.swap(false, Ordering::Relaxed) {
            self.seats.lock().table.rest(self.id);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.seats.lock();
        inner.table.leave(self.id);
        inner.bells.remove(&self.id);
        drop(inner);
        self.seats.left.notify_one();
    }
}

/// A request under way: its connection does not give way until this is gone, and everything has
/// been sent that there was to be sent then.
#[derive(Debug)]
pub struct UnderWay(Arc<Seat>);

impl UnderWay {
    /// The body of its reply, which the client is to have whole.
    pub fn reply(self, text: String) -> Body {
        Body::new(Reply { text: Some(text.into()), _under_way: self })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.sending.store(true, Ordering::Relaxed);
    }
}

/// See [`Seat::hold`].
#[derive(Debug)]
pub struct Held(Option<Arc<Seat>>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(seat) = &self.0 {
            seat.seats.lock().table.rest(seat.id);
        }
    }
}

/// A body in one piece. It is dropped when the last of it is in the connection's buffer.
struct Reply {
    text: Option<Bytes>,
    _under_way: UnderWay,
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

/// A connection that tells its seat when all that there was to be sent is sent.
pub struct Watched {
    pub stream: TcpStream,
    pub seat: Arc<Seat>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when nothing is left in the buffers above.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.seat.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
