//! Requests of one connection that are not answered yet, and their replies as far as received: no
//! sockets, no clock.
//!
//! A request gets a number, in order of arrival, which is its cookie on the way to the data plane;
//! so replies can be assigned even if a client uses a cookie twice. It is kept until its whole
//! reply has arrived. When the connection to the data plane is lost, partial replies are discarded,
//! and every request is sent again in the same order.
//!
//! A reply is passed on whole or not at all. One that says that the server is shutting down is not
//! passed on: the request was not carried out, and the next home will carry it out.

use std::collections::BTreeMap;
use std::fmt;
use std::io::IoSlice;

use evenkeel_core::convert::index;
use evenkeel_core::limits::{CONNECTION_BYTES_MAX, CONNECTION_REQUESTS_MAX, REQUEST_BYTES_MAX};
use evenkeel_wire::nbd::constants::command;
use evenkeel_wire::nbd::transmission::{
    ErrorCode, Event, REQUEST_BYTES, ReplyReader, ReplyViolation, RequestHeader, reply,
};

use crate::send_queue::Outbox;

/// Bytes that are charged for a request beside its payload and its data.
const OVERHEAD_BYTES: u64 = 256;
/// Bytes that are charged for the reply to a block status: thousands of extents.
const BLOCK_STATUS_BYTES: u64 = 32 << 10;
/// Maximum of a reply's bytes that are no data: heads of chunks, messages of errors.
const HEADS_BYTES_MAX: usize = 128 << 10;
/// Position of the cookie, in a simple reply and in a chunk.
const COOKIE: std::ops::Range<usize> = 8..16;

/// Why the connection to the data plane cannot be used any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It has sent bytes that are no reply.
    Violation(ReplyViolation),
    /// It replies to a request that it was not sent, or that it has answered.
    Unknown(u64),
    /// The reply does not fit its request.
    Unfit(u64),
    /// It carries out no more requests.
    ShuttingDown,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => write!(f, "{violation}"),
            Self::Unknown(number) => write!(f, "a reply to request {number}, which it has not"),
            Self::Unfit(number) => write!(f, "a reply that does not fit request {number}"),
            Self::ShuttingDown => write!(f, "it is shutting down"),
        }
    }
}

/// A request, and the part of its reply that has arrived.
#[derive(Debug)]
struct Request {
    head: [u8; REQUEST_BYTES],
    payload: Vec<u8>,
    header: RequestHeader,
    reply: Vec<u8>,
    /// Bytes of data in the reply, holes included.
    data_bytes: u64,
    /// Bytes of the reply that are no data.
    heads_bytes: usize,
    failed: bool,
}

impl Request {
    fn bytes(&self) -> usize {
        REQUEST_BYTES + self.payload.len()
    }

    fn is_read(&self) -> bool {
        self.header.command == command::READ
    }

    fn forget_reply(&mut self) {
        self.reply = Vec::new();
        (self.data_bytes, self.heads_bytes, self.failed) = (0, 0, false);
    }

    /// Counts a part of the reply. Returns an error if it does not fit the request.
    fn fits(&mut self, event: &Event) -> Result<Then, Fault> {
        let RequestHeader { command, offset: begin, length, .. } = self.header;
        let length = u64::from(length);
        let (is_fit, then) = match *event {
            Event::Simple { error: Some(ErrorCode::ShuttingDown), .. }
            | Event::Error { error: ErrorCode::ShuttingDown, .. } => {
                return Err(Fault::ShuttingDown);
            }
            Event::Simple { error: None, .. } if self.is_read() && length > 0 => {
                let bytes = index(length);
                (length <= REQUEST_BYTES_MAX.into(), Then::Data { bytes, last: true })
            }
            Event::Simple { .. } => (true, Then::End),
            Event::Data { offset, bytes, last, .. } => {
                let is_fit = self.covers(offset, bytes, last);
                (is_fit, Then::Data { bytes: bytes as usize, last })
            }
            Event::Hole { offset, bytes, last, .. } => {
                (self.covers(offset, bytes, last), Then::after(last))
            }
            Event::Extent { bytes, last, .. } => {
                self.data_bytes += u64::from(bytes);
                (command == command::BLOCK_STATUS, Then::after(last))
            }
            Event::Error { offset, last, .. } => {
                self.failed = true;
                (offset.is_none_or(|offset| offset >= begin), Then::after(last))
            }
            Event::Done { .. } => {
                let is_whole = match command {
                    command::READ => self.data_bytes == length,
                    command::BLOCK_STATUS => self.data_bytes > 0,
                    _ => true,
                };
                (is_whole || self.failed, Then::End)
            }
        };
        if is_fit { Ok(then) } else { Err(Fault::Unfit(event.cookie())) }
    }

    /// Counts data or a hole. Returns whether the request asks for it.
    fn covers(&mut self, offset: u64, bytes: u32, last: bool) -> bool {
        let length = u64::from(self.header.length);
        self.data_bytes += u64::from(bytes);
        let end = offset.checked_sub(self.header.offset).map(|from| from + u64::from(bytes));
        self.is_read()
            && end.is_some_and(|end| end <= length)
            && self.data_bytes <= length
            && (!last || self.failed || self.data_bytes == length)
    }

    /// Returns the bytes of the request from offset `from` on.
    fn slices(&self, from: usize) -> [&[u8]; 2] {
        match from.checked_sub(REQUEST_BYTES) {
            None => [self.head.get(from..).unwrap_or_default(), &self.payload],
            Some(from) => [&[], self.payload.get(from..).unwrap_or_default()],
        }
    }
}

/// The part of a reply that comes next.
enum Then {
    /// This number of bytes of data.
    Data { bytes: usize, last: bool },
    /// Another part.
    More,
    /// Nothing: it is whole.
    End,
}

impl Then {
    fn after(last: bool) -> Self {
        if last { Self::End } else { Self::More }
    }
}

/// Data of a reply that is still to come.
#[derive(Clone, Copy, Debug)]
struct Data {
    number: u64,
    left: usize,
    last: bool,
}

/// Returns the maximum of memory that a request and its reply take, in bytes.
#[must_use]
pub fn charge(header: &RequestHeader) -> u64 {
    OVERHEAD_BYTES
        + match header.command {
            command::READ | command::WRITE => u64::from(header.length.min(REQUEST_BYTES_MAX)),
            command::BLOCK_STATUS => BLOCK_STATUS_BYTES,
            _ => 0,
        }
}

/// See the module's text.
#[derive(Debug)]
pub struct PendingRequests {
    structured_replies: bool,
    requests: BTreeMap<u64, Request>,
    /// The next request's number.
    next: u64,
    /// The first request that is not completely sent.
    unsent: u64,
    /// Bytes of it that are sent.
    sent_bytes: usize,
    /// A request that was answered before all of it was sent, and the number of its bytes sent.
    rest: Option<(Request, usize)>,
    reader: ReplyReader,
    /// Bytes that the reader has taken of the chunk that it reads.
    raw: Vec<u8>,
    data: Option<Data>,
    /// Charges of the requests.
    held_bytes: u64,
    /// Whole replies on their way to the client.
    pub outbox: Outbox,
}

impl PendingRequests {
    /// Creates the empty queue of a connection whose handshake has just ended.
    #[must_use]
    pub fn new(structured_replies: bool) -> Self {
        Self {
            structured_replies,
            requests: BTreeMap::new(),
            next: 0,
            unsent: 0,
            sent_bytes: 0,
            rest: None,
            reader: ReplyReader::new(REQUEST_BYTES_MAX),
            raw: Vec::new(),
            data: None,
            held_bytes: 0,
            outbox: Outbox::default(),
        }
    }

    /// Returns whether there is room for one more request. The first request always has room.
    #[must_use]
    pub fn has_room(&self, header: &RequestHeader) -> bool {
        let held_bytes = self.held_bytes + self.outbox.charges();
        held_bytes == 0
            || self.requests.len() < CONNECTION_REQUESTS_MAX
                && held_bytes + charge(header) <= u64::from(CONNECTION_BYTES_MAX)
    }

    /// Adds a request.
    pub fn add(&mut self, header: &RequestHeader, payload: Vec<u8>) {
        let number = self.next;
        self.next += 1;
        self.held_bytes += charge(header);
        let head = RequestHeader { cookie: number, ..*header }.encode();
        let request = Request {
            head,
            payload,
            header: *header,
            reply: Vec::new(),
            data_bytes: 0,
            heads_bytes: 0,
            failed: false,
        };
        self.requests.insert(number, request);
        self.check();
    }

    /// Returns the number of unanswered requests.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether there are bytes to send to the data plane.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.rest.is_some() || self.requests.range(self.unsent..).next().is_some()
    }

    /// Fills `slices` with the next bytes for the data plane. Returns the number of slices filled.
    pub fn to_send<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        let rest = self.rest.iter().map(|(request, sent)| (request, *sent));
        let unsent = self.requests.range(self.unsent..).map(|(number, request)| {
            (request, if *number == self.unsent { self.sent_bytes } else { 0 })
        });
        for (request, sent) in rest.chain(unsent) {
            for bytes in request.slices(sent).into_iter().filter(|bytes| !bytes.is_empty()) {
                let Some(slice) = slices.get_mut(count) else { return count };
                *slice = IoSlice::new(bytes);
                count += 1;
            }
        }
        count
    }

    /// Records that the first `bytes` of [`Self::to_send`] were sent.
    pub fn sent(&mut self, mut bytes: usize) {
        if let Some((request, sent)) = &mut self.rest {
            let taken = bytes.min(request.bytes() - *sent);
            *sent += taken;
            bytes -= taken;
            if *sent < request.bytes() {
                return self.check();
            }
            self.rest = None;
        }
        while bytes > 0
            && let Some((&number, request)) = self.requests.range(self.unsent..).next()
        {
            if number != self.unsent {
                (self.unsent, self.sent_bytes) = (number, 0);
            }
            let taken = bytes.min(request.bytes() - self.sent_bytes);
            self.sent_bytes += taken;
            bytes -= taken;
            if self.sent_bytes == request.bytes() {
                (self.unsent, self.sent_bytes) = (number + 1, 0);
            }
        }
        self.check();
    }

    /// Records that the connection to the data plane is lost: all requests must be sent again.
    pub fn lost(&mut self) {
        self.requests.values_mut().for_each(Request::forget_reply);
        let first = self.requests.keys().next();
        (self.unsent, self.sent_bytes) = (first.copied().unwrap_or(self.next), 0);
        (self.rest, self.data) = (None, None);
        self.raw.clear();
        self.reader = ReplyReader::new(REQUEST_BYTES_MAX);
        self.check();
    }

    /// Processes bytes from the data plane. Replies that are then whole are in the outbox.
    ///
    /// # Errors
    /// The connection cannot be used any more. The caller must call [`Self::lost`].
    pub fn receive(&mut self, mut input: &[u8]) -> Result<(), Fault> {
        loop {
            if let Some(data) = self.data.take() {
                input = self.take_data(data, input)?;
                if self.data.is_some() {
                    self.check();
                    return Ok(());
                }
            }
            let (taken, event) = self.reader.handle(input).map_err(Fault::Violation)?;
            let (front, back) = input.split_at(taken);
            self.raw.extend_from_slice(front);
            input = back;
            match event {
                None => {
                    self.check();
                    return Ok(());
                }
                Some(event) => self.on(event)?,
            }
        }
    }

    fn take_data<'a>(&mut self, data: Data, input: &'a [u8]) -> Result<&'a [u8], Fault> {
        let Data { number, left, last } = data;
        let (front, back) = input.split_at(left.min(input.len()));
        let request = self.requests.get_mut(&number).ok_or(Fault::Unknown(number))?;
        if last && front.len() == left && request.reply.is_empty() {
            // The whole reply is here in one piece, so nothing has to be kept.
            let reply = [&self.raw[..], front];
            self.outbox.push(&reply, charge(&request.header));
            self.raw.clear();
            self.forget(number);
            return Ok(back);
        }
        request.reply.reserve(self.raw.len() + left);
        request.reply.append(&mut self.raw);
        request.reply.extend_from_slice(front);
        let left = left - front.len();
        if left > 0 {
            self.data = Some(Data { left, ..data });
        } else if last {
            self.finish(number);
        }
        Ok(back)
    }

    fn on(&mut self, event: Event) -> Result<(), Fault> {
        let number = event.cookie();
        // A reply is an error if the head of its request has not been sent.
        if number > self.unsent || number == self.unsent && self.sent_bytes < REQUEST_BYTES {
            return Err(Fault::Unknown(number));
        }
        let request = self.requests.get_mut(&number).ok_or(Fault::Unknown(number))?;
        let heads_bytes = request.heads_bytes + self.raw.len();
        let unfit = Err(Fault::Unfit(number));
        if heads_bytes > HEADS_BYTES_MAX {
            return unfit;
        }
        request.heads_bytes = heads_bytes;
        // The later extents of a chunk have no head.
        if self.raw.len() >= reply::SIMPLE_BYTES {
            self.raw[COOKIE].copy_from_slice(&request.header.cookie.to_be_bytes());
        }
        let is_simple = matches!(event, Event::Simple { .. });
        if !self.structured_replies && !is_simple
            || self.structured_replies && is_simple && request.is_read()
        {
            return unfit;
        }
        match request.fits(&event)? {
            Then::Data { bytes, last } => {
                self.data = Some(Data { number, left: bytes, last });
            }
            Then::More => request.reply.append(&mut self.raw),
            Then::End => {
                request.reply.append(&mut self.raw);
                self.finish(number);
            }
        }
        Ok(())
    }

    /// Moves a whole reply to the outbox.
    fn finish(&mut self, number: u64) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let reply = std::mem::take(&mut request.reply);
        self.outbox.push_whole(reply, charge(&request.header));
        self.forget(number);
    }

    fn forget(&mut self, number: u64) {
        let Some(request) = self.requests.remove(&number) else { return };
        self.held_bytes -= charge(&request.header);
        if number == self.unsent && self.sent_bytes > 0 {
            self.rest = Some((request, self.sent_bytes));
            (self.unsent, self.sent_bytes) = (number + 1, 0);
        }
    }
}

impl PendingRequests {
    /// Asserts what holds between any two calls.
    ///
    /// # Panics
    /// If it does not hold.
    fn invariants(&self) {
        let charges: u64 = self.requests.values().map(|request| charge(&request.header)).sum();
        assert_eq!(self.held_bytes, charges, "charges of the requests");
        if let Some((&last, _)) = self.requests.last_key_value() {
            assert!(last < self.next, "request {last} beside the next number, {}", self.next);
        }
        assert!(self.unsent <= self.next, "{} is not sent, of {}", self.unsent, self.next);
        if self.sent_bytes > 0 {
            let bytes = self.requests.get(&self.unsent).map(Request::bytes);
            let is_part = bytes.is_some_and(|bytes| self.sent_bytes < bytes);
            assert!(is_part, "{} bytes of {bytes:?} are sent", self.sent_bytes);
        }
        if let Some((request, sent)) = &self.rest {
            assert!((1..request.bytes()).contains(sent), "{sent} of {} bytes", request.bytes());
            assert_eq!(self.sent_bytes, 0, "bytes sent before the rest of an earlier request");
        }
        if let Some(Data { number, left, .. }) = self.data {
            assert!(left > 0 && self.requests.contains_key(&number), "data of request {number}");
        }
        for (number, request) in self.requests.range(self.unsent..) {
            let is_begun = *number == self.unsent && self.sent_bytes >= REQUEST_BYTES;
            let is_empty = request.reply.is_empty() && request.data_bytes == 0;
            assert!(is_begun || is_empty, "a reply to request {number}, which is not sent");
        }
    }

    /// Calls [`Self::invariants`] in debug builds; if many requests wait, only sometimes, so that
    /// its time does not grow with them.
    fn check(&self) {
        let every = (self.requests.len() as u64 / 16).max(1);
        if cfg!(debug_assertions) && self.next.is_multiple_of(every) {
            self.invariants();
        }
    }
}

#[cfg(test)]
#[path = "pending_requests_tests.rs"]
mod tests;
