//! Moves requests and replies between one client's socket and a data plane, polled from one task
//! without blocking.

use crate::client_stream::ClientStream;
use crate::clients::Socket;
use crate::front::Scratch;
use crate::lease::Lease;
use crate::lending::{Lender, Returned};
use crate::memory::Share;
use crate::pending_requests::{PendingRequests, charge};
use crate::pulse::Watch;
use crate::request_reader::{Intake, Taken};
use crate::upstream::{Stream, Upstream};
use evenkeel_core::limits::LENT_UNREAD_BYTES_MAX;
use evenkeel_wire::nbd::constants::command;
use evenkeel_wire::nbd::transmission::{REQUEST_BYTES, RequestHeader, Terms};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::either::Either;

/// Bytes of replies that wait for the client, above which no more replies are read.
const OUTBOX_BYTES_MAX: usize = 256 << 10;
/// Maximum of slices that are sent with one system call.
const SLICES: usize = 64;
/// Maximum time to send a request to disconnect to a data plane.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// Reason why traffic stops.
#[derive(Debug)]
pub(crate) enum End {
    /// The client has ended the connection as the protocol requires, and all requests are answered.
    Done,
    /// The client has disconnected, or the front must close its connection.
    Client(String),
    /// The connection to the data plane is lost.
    Upstream(String),
    /// The client can be lent: it has no requests or replies under way.
    Idle,
}

/// A client that can be lent.
pub(crate) struct Ready {
    pub client: TcpStream,
    /// Bytes that the client has sent and that the front has not processed.
    pub unread: Vec<u8>,
    pub lender: Arc<dyn Lender>,
    /// The connection whose place the client takes when this is dropped.
    pub upstream: Box<dyn Stream>,
}

type Step = Result<bool, End>;

/// Why a client is dropped after a gap.
pub(crate) const HAS_GAP: &str = "this node did not run for some time, and its client may have \
                                  repeated its requests at another node";

/// Why a client that has gone is dropped while its requests wait for room.
const LEFT_TOO_MUCH: &str = "it has gone, and left more than there is room for";

/// State that all clients of a front share.
pub(crate) struct Common {
    pub share: Share,
    pub scratch: Scratch,
    /// Gaps since the client was accepted.
    pub watch: Watch,
}

/// See the module's text.
pub(crate) struct Traffic {
    client: Rc<Socket>,
    upstream: Option<Box<dyn Stream>>,
    /// The lease under which the home takes the requests, if it is another node.
    lease: Option<Rc<Lease>>,
    /// The data plane to lend the client to as soon as it is idle.
    lender: Option<Arc<dyn Lender>>,
    unflushed: bool,
    requests: PendingRequests,
    intake: Intake,
    share: Share,
    /// Bytes that were received and for which there was no room.
    pending: Vec<u8>,
    /// Bytes of a refused request's payload that the client sends next; the front discards them.
    skipped: usize,
    scratch: Scratch,
    watch: Watch,
    /// The client has ended its connection, as the system reports. The unread bytes show how.
    has_ended: bool,
    /// The client accepts no more replies.
    deaf: bool,
    /// Bytes came from the client or went to it since the last check.
    moved: bool,
    stalled: Duration,
}

impl Traffic {
    pub fn new(client: Rc<Socket>, terms: Terms, common: Common, pending: Vec<u8>) -> Self {
        let Common { share, scratch, watch } = common;
        Self {
            client,
            upstream: None,
            lease: None,
            lender: None,
            unflushed: false,
            requests: PendingRequests::new(terms.structured_replies),
            intake: Intake::new(terms),
            share,
            pending,
            skipped: 0,
            scratch,
            watch,
            has_ended: false,
            deaf: false,
            moved: false,
            stalled: Duration::ZERO,
        }
    }

    /// Continues over this connection to a data plane.
    pub fn connect(&mut self, Upstream { stream, lender, lease }: Upstream) {
        (self.upstream, self.unflushed) = (Some(stream), false);
        // Only a client's own socket can be lent.
        (self.lender, self.lease) = (lender.filter(|_| self.client.is_plain()), lease);
    }

    /// Returns the lease under which the data plane takes requests, if it is another node's.
    pub fn lease(&self) -> Option<Rc<Lease>> {
        self.lease.clone()
    }

    /// Returns the watch of gaps since the client was accepted.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Disconnects from the data plane. Unanswered requests will be sent to the next one.
    pub fn disconnect(&mut self) {
        (self.upstream, self.lender, self.lease) = (None, None, None);
        self.requests.lost();
    }

    /// Takes the client out after [`End::Idle`].
    pub fn lend(&mut self) -> Option<Ready> {
        let mut unread = self.intake.beginning()?;
        let lender = self.lender.take()?;
        let upstream = self.upstream.take()?;
        let Either::Left(client) = self.client.stream().take()?.bytes else { return None };
        self.intake.reset();
        unread.append(&mut self.pending);
        Some(Ready { client, unread, lender, upstream })
    }

    /// Resumes a client that was lent.
    ///
    /// # Errors
    /// The system refuses the socket.
    pub fn take_back(&mut self, returned: Returned) -> io::Result<()> {
        let Returned { client, unsent, unread, skipped } = returned;
        let client = std::net::TcpStream::from(client);
        client.set_nonblocking(true)?;
        *self.client.stream() = Some(ClientStream::tcp(TcpStream::from_std(client)?));
        (self.pending, self.skipped) = (unread, skipped as usize);
        // These replies are in memory already, so they are charged to no client. There are at most
        // as many of them as a connection may have.
        if !unsent.is_empty() {
            self.requests.outbox.push_whole(unsent, 0);
        }
        Ok(())
    }

    /// Returns whether a client that is to be lent leaves nothing to read or process, apart from
    /// `pending` bytes.
    fn rests(&self, pending: usize) -> bool {
        self.lender.is_some()
            && !self.has_ended
            && self.skipped == 0
            && pending <= LENT_UNREAD_BYTES_MAX - REQUEST_BYTES
            && self.intake.is_before_payload()
    }

    fn is_idle(&self) -> bool {
        self.rests(self.pending.len())
            && !self.client.is_leaving()
            && self.requests.unanswered() == 0
            && self.requests.outbox.bytes() == 0
            && !self.requests.has_unsent()
    }

    /// Returns the number of unanswered requests.
    pub fn unanswered(&self) -> usize {
        self.requests.unanswered()
    }

    /// Returns whether the client has a request to complete or replies to fetch, and no byte has
    /// moved for longer than `patience`. `since` is the time since the last call.
    pub fn is_stalled(&mut self, since: Duration, patience: Duration) -> bool {
        let is_owed = self.requests.outbox.bytes() > 0 || self.intake.is_owed();
        let moved = std::mem::take(&mut self.moved);
        self.stalled = if is_owed && !moved { self.stalled + since } else { Duration::ZERO };
        self.stalled > patience
    }

    /// Moves requests and replies until none can be moved. Returns `Ready` if traffic stops.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        match self.advance(cx) {
            Ok(()) => {
                self.client.wake(cx);
                Poll::Pending
            }
            Err(end) => Poll::Ready(end),
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        let mut goes_on = true;
        while goes_on {
            goes_on = self.hear_client(cx)?;
            goes_on |= self.tell_upstream(cx)?;
            goes_on |= self.hear_upstream(cx)?;
            goes_on |= self.tell_client(cx)?;
            if self.client.is_leaving()
                && self.requests.unanswered() == 0
                && self.requests.outbox.bytes() == 0
            {
                return Err(End::Done);
            }
            if self.is_idle() {
                return Err(End::Idle);
            }
        }
        Ok(())
    }

    fn hear_client(&mut self, cx: &mut Context<'_>) -> Step {
        if self.client.is_leaving() {
            return Ok(false);
        }
        if self.rests(self.pending.len()) {
            self.has_ended = self.client.has_gone();
            return Ok(self.has_ended);
        }
        if !self.pending.is_empty() {
            let pending = std::mem::take(&mut self.pending);
            let mut rest = &pending[..];
            self.take(&mut rest)?;
            let taken = pending.len() - rest.len();
            self.pending = pending;
            self.pending.drain(..taken);
            if taken == 0 && self.client.has_gone() {
                return Err(End::Client(LEFT_TOO_MUCH.to_owned()));
            }
            if !self.pending.is_empty() {
                // Memory may become free before an answer arrives.
                self.share.wait(cx.waker());
            }
            return Ok(taken > 0);
        }
        let scratch = Rc::clone(&self.scratch);
        let mut scratch = scratch.borrow_mut();
        let mut buffer = ReadBuf::new(&mut scratch);
        let read = match &mut *self.client.stream() {
            Some(client) => Pin::new(&mut client.bytes).poll_read(cx, &mut buffer),
            None => return Ok(false),
        };
        match read {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(error)) => return Err(End::Client(error.to_string())),
            Poll::Ready(Ok(())) => {}
        }
        let mut rest = buffer.filled();
        if rest.is_empty() {
            return Err(End::Client("it has gone".to_owned()));
        }
        self.moved = true;
        let skipped = self.skipped.min(rest.len());
        self.skipped -= skipped;
        rest = &rest[skipped..];
        self.take(&mut rest)?;
        if !self.client.is_leaving() {
            self.pending.extend_from_slice(rest);
        }
        Ok(true)
    }

    /// Takes requests from the start of `input`, as long as there is room for them.
    fn take(&mut self, input: &mut &[u8]) -> Result<(), End> {
        loop {
            if self.rests(input.len()) {
                return Ok(());
            }
            let Self { requests, intake, share, .. } = self;
            let admit =
                |header: &RequestHeader| requests.has_room(header) && share.take(charge(header));
            match intake.take(input, admit) {
                Err(noise) => return Err(End::Client(format!("what arrived: {noise}"))),
                Ok(Taken::Nothing | Taken::Full) => return Ok(()),
                Ok(Taken::Request(header, _)) if header.command == command::DISC => {
                    share.give_back(charge(&header));
                    self.client.leave();
                    return Ok(());
                }
                Ok(Taken::Request(header, payload)) => requests.add(&header, payload),
            }
        }
    }

    fn tell_upstream(&mut self, cx: &mut Context<'_>) -> Step {
        let Some(upstream) = &mut self.upstream else { return Ok(false) };
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = self.requests.to_send(&mut slices);
        if count == 0 {
            if self.unflushed
                && let Poll::Ready(flushed) = Pin::new(upstream).poll_flush(cx)
            {
                flushed.map_err(|error| End::Upstream(error.to_string()))?;
                self.unflushed = false;
            }
            return Ok(false);
        }
        if self.watch.has_gap() {
            return Err(End::Client(HAS_GAP.to_owned()));
        }
        if !self.client.is_leaving() {
            if self.has_ended && !self.pending.is_empty() {
                return Err(End::Client(LEFT_TOO_MUCH.to_owned()));
            }
            // Reads how the client has ended before anything is answered.
            let found = !self.has_ended && self.client.has_gone();
            self.has_ended |= found;
            if self.has_ended {
                return Ok(found);
            }
        }
        let sent = Pin::new(upstream).poll_write_vectored(cx, &slices[..count]);
        match sent {
            Poll::Pending => Ok(false),
            Poll::Ready(sent) => {
                let sent = whole(sent).map_err(End::Upstream)?;
                self.requests.sent(sent);
                self.unflushed = true;
                Ok(true)
            }
        }
    }

    fn hear_upstream(&mut self, cx: &mut Context<'_>) -> Step {
        let Some(upstream) = &mut self.upstream else { return Ok(false) };
        if self.requests.outbox.bytes() >= OUTBOX_BYTES_MAX {
            return Ok(false);
        }
        let mut scratch = self.scratch.borrow_mut();
        let mut buffer = ReadBuf::new(&mut scratch);
        match Pin::new(upstream).poll_read(cx, &mut buffer) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(error)) => return Err(End::Upstream(error.to_string())),
            Poll::Ready(Ok(())) => {}
        }
        if buffer.filled().is_empty() {
            return Err(End::Upstream("it has closed the connection".to_owned()));
        }
        let received = self.requests.receive(buffer.filled());
        received.map_err(|fault| End::Upstream(fault.to_string()))?;
        if self.deaf {
            self.share.give_back(self.requests.outbox.clear());
        }
        Ok(true)
    }

    fn tell_client(&mut self, cx: &mut Context<'_>) -> Step {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = self.requests.outbox.to_send(&mut slices);
        if count == 0 {
            return Ok(false);
        }
        let sent = match &mut *self.client.stream() {
            Some(client) => Pin::new(&mut client.bytes).poll_write_vectored(cx, &slices[..count]),
            None => return Ok(false),
        };
        match sent.map(whole) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(sent)) => {
                self.moved = true;
                self.share.give_back(self.requests.outbox.sent(sent));
            }
            // The client has sent its request to disconnect, so it needs no more replies.
            Poll::Ready(Err(_)) if self.client.is_leaving() => {
                self.deaf = true;
                self.share.give_back(self.requests.outbox.clear());
            }
            Poll::Ready(Err(error)) => return Err(End::Client(error)),
        }
        Ok(true)
    }

    /// Ends both connections after [`End::Done`].
    pub async fn take_leave(mut self) {
        let Some(upstream) = &mut self.upstream else { return };
        let flags = 0;
        let command = command::DISC;
        let cookie = 0;
        let offset = 0;
        let length = 0;
        let farewell = RequestHeader { flags, command, cookie, offset, length }.encode();
        // The data plane closes also a connection that ends without a request to disconnect.
        let _ = timeout(FAREWELL_MAX, async {
            upstream.write_all(&farewell).await?;
            upstream.shutdown().await
        })
        .await;
    }
}

/// Converts a write of zero bytes to an error.
fn whole(sent: io::Result<usize>) -> Result<usize, String> {
    match sent {
        Ok(0) => Err("nothing can be sent any more".to_owned()),
        Ok(sent) => Ok(sent),
        Err(error) => Err(error.to_string()),
    }
}
