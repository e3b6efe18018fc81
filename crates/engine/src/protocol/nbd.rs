//! NBD on one connection, as far as the engine needs it.
//!
//! A client shakes hands, chooses an export, which is a volume, and then sends requests for that
//! volume. The payload of a write follows its head; the payload of a refused write is skipped.

use super::{Binding, Command, Lobby, Negotiation, Next, Outcome, Tag, Violation};
use crate::output::Output;
use crate::table::{RequestId, VolumeSlot};
use crate::transport::Stretch;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::REQUEST_BYTES_MAX;
use evenkeel_core::request::{Operation, Request};
use evenkeel_store::Extent;
use evenkeel_store::buffer::Buffer;
use evenkeel_wire::nbd::ExportInfo;
use evenkeel_wire::nbd::constants::base_allocation;
use evenkeel_wire::nbd::handshake::{Listed, Server, ServerStep};
pub use evenkeel_wire::nbd::transmission::BadMagic;
use evenkeel_wire::nbd::transmission::{
    self, ErrorCode, REQUEST_BYTES, RequestHeader, Terms, reply,
};

/// Length of the request by which a client ends its connection, in bytes.
pub const FAREWELL_BYTES: usize = REQUEST_BYTES;

/// [`Tag::note`] of a block status that wants one extent.
const ONE_EXTENT: u8 = 1;

/// State of a connection.
pub enum Nbd {
    /// The client has not chosen an export yet.
    Handshake {
        /// The server's side of the handshake.
        server: Box<Server>,
        /// Whether an option was answered in this turn.
        answered: bool,
    },
    /// An export is chosen; the volume is not bound yet.
    Agreed(Terms),
    /// Requests and replies.
    Serving(Serving),
}

/// Requests and replies for one volume.
pub struct Serving {
    /// The volume.
    binding: Binding,
    /// Terms by which requests are validated; the size is updated for each.
    terms: Terms,
    ahead: Ahead,
    /// The answer to the head at the front of the input, if it is refused.
    refusal: Option<Refusal>,
}

/// Next part of the stream.
enum Ahead {
    Head,
    /// The payload of an accepted write.
    Payload(Stretch),
    /// This number of payload bytes of a refused write.
    Rest(u32),
}

/// A request that is not carried out.
#[derive(Clone, Copy)]
struct Refusal {
    cookie: u64,
    code: ErrorCode,
    /// Payload bytes that follow it.
    payload: u32,
}

impl Nbd {
    /// Creates the state of a connection that was just accepted. `is_within_tls`: another part
    /// carries its bytes in TLS.
    pub fn new(is_within_tls: bool) -> Self {
        let server = Server::new();
        let server = if is_within_tls { server.within_tls() } else { server };
        Self::Handshake { server: Box::new(server), answered: false }
    }

    pub fn negotiate(
        &mut self,
        input: &[u8],
        output: &mut Output,
        lobby: &Lobby<'_>,
    ) -> Negotiation {
        let Self::Handshake { server, answered } = self else { return Negotiation::Incomplete };
        match server.poll_output() {
            Some(ServerStep::Send(bytes)) => {
                output.head(&bytes);
                *answered = true;
                Negotiation::Answered
            }
            Some(ServerStep::WantExport(name)) => answer_export(server, &name, lobby),
            Some(ServerStep::WantList) => {
                let names = lobby.directory.names(lobby.peer);
                let listed = |name| Listed { name, description: "" };
                server.list(&names.iter().map(|name| listed(name)).collect::<Vec<_>>());
                Negotiation::Answered
            }
            Some(ServerStep::Ready(negotiated)) => {
                *self = Self::Agreed(negotiated.terms());
                // Exports have no other names than those of volumes.
                negotiated.export.name.parse().map_or(Negotiation::End, Negotiation::Chosen)
            }
            Some(ServerStep::Close(reason)) => {
                tracing::debug!(%reason, "a handshake ended");
                Negotiation::End
            }
            // Not offered here.
            Some(ServerStep::StartTls) => Negotiation::End,
            // Options that arrive together are not all answered at once: a list of many exports
            // takes time.
            None if std::mem::take(answered) && !input.is_empty() => Negotiation::Yield,
            None => match server.handle(input) {
                0 => Negotiation::Incomplete,
                consumed => Negotiation::Consumed(consumed),
            },
        }
    }

    pub fn bind(&mut self, binding: Binding) {
        match self {
            Self::Handshake { .. } => debug_assert!(false, "nothing was agreed on"),
            Self::Agreed(terms) => {
                let terms = *terms;
                let ahead = Ahead::Head;
                let refusal = None;
                *self = Self::Serving(Serving { binding, terms, ahead, refusal });
            }
            Self::Serving(_) => debug_assert!(false, "a connection has one volume"),
        }
    }

    #[inline]
    pub fn bindings(&self) -> &[Binding] {
        match self {
            Self::Serving(serving) => std::slice::from_ref(&serving.binding),
            _ => &[],
        }
    }

    pub fn bindings_mut(&mut self) -> &mut [Binding] {
        match self {
            Self::Serving(serving) => std::slice::from_mut(&mut serving.binding),
            _ => &mut [],
        }
    }

    #[inline]
    pub fn next(&mut self, input: &[u8], size_of: impl Fn(VolumeSlot) -> u64) -> Next {
        let Self::Serving(serving) = self else { return Next::Incomplete };
        match &mut serving.ahead {
            Ahead::Head => serving.next_head(input, size_of),
            &mut Ahead::Payload(stretch) => {
                serving.ahead = Ahead::Head;
                Next::Payload(stretch)
            }
            Ahead::Rest(left) => {
                let count = (*left as usize).min(input.len());
                *left -= count as u32;
                if *left == 0 {
                    serving.ahead = Ahead::Head;
                }
                if count > 0 { Next::Skip(count) } else { Next::Incomplete }
            }
        }
    }

    #[inline]
    pub fn accepted(&mut self, handle: RequestId, command: &Command) {
        if let Self::Serving(serving) = self
            && matches!(command.request.operation, Operation::Write { .. })
        {
            let total = command.request.length;
            serving.ahead = Ahead::Payload(Stretch { handle, received: 0, total });
        }
    }

    pub fn ask_again(&self, tag: Tag, request: &Request) -> Vec<u8> {
        RequestHeader::new(tag.id, request, tag.note == ONE_EXTENT).encode().to_vec()
    }

    pub fn unskipped(&self) -> u32 {
        match self {
            Self::Serving(Serving { ahead: Ahead::Rest(left), .. }) => *left,
            _ => 0,
        }
    }

    pub fn answer(&mut self, output: &mut Output) -> usize {
        let Self::Serving(serving) = self else { return 0 };
        let Some(Refusal { cookie, code, payload }) = serving.refusal.take() else { return 0 };
        output.head(serving.terms.failure(cookie, code).as_bytes());
        serving.ahead = if payload > 0 { Ahead::Rest(payload) } else { Ahead::Head };
        REQUEST_BYTES
    }

    #[inline]
    pub fn reply(
        &self,
        outcome: &Outcome<'_>,
        buffers: &mut Vec<Option<Buffer>>,
        output: &mut Output,
    ) {
        let Self::Serving(Serving { terms, .. }) = self else { return };
        let &Outcome { tag, volume, request, result, extents } = outcome;
        match (result, request.operation) {
            (Err(failure), _) => {
                output.head(terms.failure(tag.id, failure.into()).as_bytes());
            }
            (Ok(()), Operation::Read) => {
                output.head(terms.read_head(tag.id, request.offset, request.length).as_bytes());
                output.payloads(volume, buffers, request.length);
            }
            (Ok(()), Operation::BlockStatus) => {
                let count = if tag.note == ONE_EXTENT { 1 } else { extents.len() };
                output.head(terms.block_status_head(tag.id, count as u32).as_bytes());
                for extent in &extents[..count] {
                    let flags = extent_flags(extent);
                    output.head(&reply::extent(extent.length, flags));
                }
            }
            (Ok(()), _) => output.head(terms.success(tag.id).as_bytes()),
        }
    }

    /// Returns whether the last bytes are a disconnect request. Its client may still wait for
    /// replies, and its requests are carried out in any case: "the server MUST handle all
    /// outstanding requests" (`NBD_CMD_DISC`).
    pub fn is_farewell(&self, tail: &[u8; FAREWELL_BYTES]) -> bool {
        let Self::Serving(Serving { terms, .. }) = self else { return false };
        let header = RequestHeader::decode(tail);
        header.is_ok_and(|h| h.validate(terms) == Ok(transmission::Command::Disconnect))
    }
}

fn extent_flags(extent: &Extent) -> u32 {
    let hole = if extent.hole { base_allocation::STATE_HOLE } else { 0 };
    let zero = if extent.zero { base_allocation::STATE_ZERO } else { 0 };
    hole | zero
}

impl Serving {
    #[inline]
    fn next_head(&mut self, input: &[u8], size_of: impl Fn(VolumeSlot) -> u64) -> Next {
        let Some(head) = input.first_chunk::<REQUEST_BYTES>() else { return Next::Incomplete };
        let volume = self.binding.volume;
        self.terms.size_bytes = size_of(volume);
        let header = match RequestHeader::decode(head) {
            Ok(header) => header,
            Err(error) => return Next::Broken(Violation::OutOfStep(error)),
        };
        let Ok(payload) = header.payload_bytes(&self.terms) else {
            return Next::Broken(Violation::TooLarge(header.length));
        };
        match header.validate(&self.terms) {
            Ok(transmission::Command::Io { request, one_extent }) => {
                let note = if one_extent { ONE_EXTENT } else { 0 };
                let tag = Tag { id: header.cookie, note };
                Next::Request(Command { tag, volume, request, head_bytes: REQUEST_BYTES })
            }
            Ok(transmission::Command::Disconnect) => Next::End,
            Err(code) => {
                self.refusal = Some(Refusal { cookie: header.cookie, code, payload });
                Next::Answer
            }
        }
    }
}

/// Answers a client's request for an export, if the volume exists for it and a slot is free.
fn answer_export(server: &mut Server, name: &str, lobby: &Lobby<'_>) -> Negotiation {
    let volume = name.parse::<VolumeId>().ok();
    let found = volume.and_then(|id| Some((id, lobby.directory.find(id, lobby.peer)?)));
    let Some((volume, (geometry, _))) = found else {
        lobby.slot.report_refused(volume, "no such volume is attached to it");
        server.export(None);
        return Negotiation::Answered;
    };
    if let Err(why) = lobby.slot.may_join(volume) {
        let text = why.to_string();
        lobby.slot.report_refused(Some(volume), &text);
        server.deny(&text);
        return Negotiation::Denied(why);
    }
    let mut export = ExportInfo::new(name.to_owned(), geometry.size.0);
    export.block_bytes_min = geometry.block_bytes_min;
    export.block_bytes_preferred = geometry.block_bytes_preferred;
    export.payload_bytes_max = REQUEST_BYTES_MAX;
    server.export(Some(export));
    Negotiation::Answered
}

/// Parts of a client for unit tests of the engine.
#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use evenkeel_core::request::Request;
    use evenkeel_wire::nbd::constants::command;

    /// Returns the terms of a client that wants blocks of 512 bytes and simple replies.
    pub fn terms() -> Terms {
        Terms {
            size_bytes: 1 << 30,
            block_bytes_min: 512,
            payload_bytes_max: 32 << 20,
            read_only: false,
            structured_replies: false,
            base_allocation: false,
        }
    }

    /// Returns the head of a request.
    pub fn head(cookie: u64, request: &Request) -> RequestHeader {
        RequestHeader::new(cookie, request, false)
    }

    /// Returns the request that ends the connection.
    pub fn farewell() -> RequestHeader {
        let flags = 0;
        let command = command::DISC;
        let cookie = 2;
        let offset = 0;
        let length = 0;
        RequestHeader { flags, command, cookie, offset, length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::request::{Failure, Request};

    const SIZE: u64 = 1 << 20;
    const BLOCK: u32 = 4_096;
    const VOLUME: VolumeSlot = VolumeSlot::for_test(3);

    fn serving() -> Nbd {
        let mut nbd = Nbd::Agreed(testing::terms());
        assert!(nbd.bindings().is_empty());
        assert!(matches!(nbd.next(&[0; 64], |_| SIZE), Next::Incomplete), "nothing is bound");
        nbd.bind(Binding { id: VolumeId::from_bits(1), volume: VOLUME, line: None });
        nbd
    }

    fn write(cookie: u64, offset: u64) -> [u8; REQUEST_BYTES] {
        let operation = Operation::Write { fua: false };
        testing::head(cookie, &Request { operation, offset, length: BLOCK }).encode()
    }

    /// Returns the size of the connection's volume.
    fn size_of(volume: VolumeSlot) -> u64 {
        assert_eq!(volume, VOLUME);
        SIZE
    }

    #[test]
    fn a_write_stays_in_front_until_it_is_accepted_and_its_payload_follows() {
        let mut nbd = serving();
        let head = write(7, 0);
        assert!(matches!(nbd.next(&head[1..], size_of), Next::Incomplete));
        for _ in 0..2 {
            let Next::Request(command) = nbd.next(&head, size_of) else { panic!("no request") };
            assert_eq!(
                (command.tag.id, command.volume, command.head_bytes),
                (7, VOLUME, REQUEST_BYTES)
            );
        }
        let Next::Request(command) = nbd.next(&head, size_of) else { panic!("no request") };
        let handle = RequestId::for_test(5);
        nbd.accepted(handle, &command);
        let Next::Payload(stretch) = nbd.next(&[], size_of) else { panic!("no payload") };
        assert_eq!(stretch, Stretch { handle, received: 0, total: BLOCK });
        assert!(matches!(nbd.next(&write(8, 0), size_of), Next::Request(_)));
    }

    #[test]
    fn the_payload_of_a_refused_write_is_thrown_away_as_it_comes() {
        let mut nbd = serving();
        let mut output = Output::default();
        assert!(matches!(nbd.next(&write(7, SIZE), size_of), Next::Answer));
        // The volume has grown while the connection had no room for the answer.
        assert!(matches!(nbd.next(&write(7, SIZE), |_| 2 * SIZE), Next::Request(_)));
        assert!(matches!(nbd.next(&write(7, SIZE), size_of), Next::Answer));
        assert_eq!((nbd.answer(&mut output), output.bytes()), (REQUEST_BYTES, 16));
        assert!(matches!(nbd.next(&[], size_of), Next::Incomplete));
        assert!(matches!(nbd.next(&[0; 96], size_of), Next::Skip(96)));
        assert!(matches!(nbd.next(&[0; 8_192], size_of), Next::Skip(4_000)));
        assert!(matches!(nbd.next(&write(8, 0), size_of), Next::Request(_)));
        assert_eq!(nbd.answer(&mut output), 0, "it was answered");
    }

    #[test]
    fn disconnect_and_violations_are_distinguished() {
        let mut nbd = serving();
        let farewell = testing::farewell().encode();
        assert!(matches!(nbd.next(&farewell, size_of), Next::End));
        assert!(nbd.is_farewell(&farewell) && !nbd.is_farewell(&write(1, 0)));
        let noise = [0; REQUEST_BYTES];
        assert!(!nbd.is_farewell(&noise));
        let next = nbd.next(&noise, size_of);
        assert!(matches!(next, Next::Broken(Violation::OutOfStep(BadMagic(0)))));
        let mut large = RequestHeader::decode(&write(1, 0)).unwrap();
        large.length = u32::MAX;
        let next = nbd.next(&large.encode(), size_of);
        assert!(matches!(next, Next::Broken(Violation::TooLarge(u32::MAX))));
    }

    #[test]
    fn a_read_that_failed_keeps_its_memory_and_one_that_was_done_sends_it() {
        let nbd = serving();
        let tag = Tag { id: 9, note: 0 };
        let request = Request { operation: Operation::Read, offset: 0, length: BLOCK };
        let mut buffers = vec![Some(Buffer::new(BLOCK as usize))];
        for (result, bytes, left) in [(Err(Failure::Io), 16, 1), (Ok(()), 16 + 4_096, 0)] {
            let mut output = Output::default();
            nbd.reply(
                &Outcome { tag, volume: VOLUME, request, result, extents: &[] },
                &mut buffers,
                &mut output,
            );
            assert_eq!((output.bytes(), buffers.len()), (bytes, left));
        }
    }
}
