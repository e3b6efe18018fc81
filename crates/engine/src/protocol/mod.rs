//! The protocols of clients. The rest of the engine knows none of them: it passes a connection's
//! bytes to a [`Protocol`], gets requests for volumes, and has their replies encoded.
//!
//! A protocol has no socket, no payload and no clock. It serves one connection, in this order:
//!
//! | call | what happens |
//! |---|---|
//! | [`Protocol::negotiate`] | repeated until the client has chosen a volume |
//! | [`Protocol::bind`] | on the volume's home core: requests may follow |
//! | [`Protocol::next`] | returns the front of the input: a request stays there until accepted |
//! | [`Protocol::accepted`] | the request has its memory and its slot; its payload may follow |
//! | [`Protocol::reply`] | encodes the reply to a request that has ended; in any order |
//!
//! Each [`Command`] names its volume, and the reactor relies on nothing else: that a connection has
//! one volume is a rule of NBD only. A protocol with several volumes on a connection keeps a
//! [`Binding`] for each of them. If its clients send a payload only on request, it requests it in
//! `accepted`, and returns the [`Stretch`]es from `next` as they arrive, with other requests
//! between them.

mod nbd;
#[cfg(test)]
pub(crate) mod testing;

use crate::connection_limits::Slot;
use crate::directory::Directory;
use crate::output::Output;
use crate::peer::Peer;
use crate::table::{RequestId, VolumeSlot};
use crate::transport::Stretch;
use evenkeel_core::connection_limits::NoPlace;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::scheduler::AttachmentIndex;
use evenkeel_core::request::{Failure, Request};
use evenkeel_store::Extent;
use evenkeel_store::buffer::Buffer;
use nbd::Nbd;

/// Number of the last bytes of a client that [`Protocol::is_farewell`] needs.
pub const FAREWELL_BYTES: usize = nbd::FAREWELL_BYTES;

/// The protocol of a connection, with its state.
pub enum Protocol {
    /// Network block device, fixed newstyle.
    Nbd(Nbd),
}

/// A volume to which a connection's requests may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The volume.
    pub id: VolumeId,
    /// Its slot in the reactor.
    pub volume: VolumeSlot,
    /// The volume's attachment by which the requests enter the scheduler; `None` is the first.
    pub line: Option<AttachmentIndex>,
}

/// Data that a protocol needs for the reply to a request. It is returned unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The client's number for the request.
    pub id: u64,
    /// The protocol's own data.
    pub note: u8,
}

/// A request that is valid and stands at the front of the input.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Data for the reply.
    pub tag: Tag,
    /// The slot of the request's volume.
    pub volume: VolumeSlot,
    /// The operation, and its range.
    pub request: Request,
    /// Bytes of input to consume once it is accepted.
    pub head_bytes: usize,
}

/// The front of the input.
#[derive(Debug)]
pub enum Next {
    /// Not all of it has arrived.
    Incomplete,
    /// This number of bytes is to be skipped.
    Skip(usize),
    /// A request. It is returned again until it is accepted.
    Request(Command),
    /// Payload of a request that was accepted.
    Payload(Stretch),
    /// A message that the protocol answers itself, by [`Protocol::answer`] once there is room for
    /// the reply.
    Answer,
    /// The client ends the connection: its earlier requests are still carried out and answered.
    End,
    /// Invalid bytes: the connection has to be closed.
    Broken(Violation),
}

/// Reason why a connection has to be closed.
#[derive(Debug)]
pub enum Violation {
    /// The bytes are no request.
    OutOfStep(nbd::BadMagic),
    /// A write announces this number of payload bytes, too many.
    TooLarge(u32),
}

/// Result of one step of the negotiation.
#[derive(Debug)]
pub enum Negotiation {
    /// More bytes have to arrive.
    Incomplete,
    /// This number of bytes was consumed.
    Consumed(usize),
    /// An option of the client was answered.
    Answered,
    /// More bytes have arrived, but the client has had its turn.
    Yield,
    /// The client was refused because a limit on connections is reached; it may ask again.
    Denied(NoPlace),
    /// The client has chosen this volume.
    Chosen(VolumeId),
    /// The negotiation is over without a choice: the connection ends once all replies have left.
    End,
}

/// State that a negotiation needs.
pub struct Lobby<'a> {
    /// The volumes.
    pub directory: &'a Directory,
    /// The client's slot among all connections.
    pub slot: &'a Slot,
    /// The client.
    pub peer: Peer,
}

/// Result of a request.
pub struct Outcome<'a> {
    /// The request's own tag.
    pub tag: Tag,
    /// The slot of its volume.
    pub volume: VolumeSlot,
    /// The request.
    pub request: Request,
    /// The failure, if it failed.
    pub result: Result<(), Failure>,
    /// Extents that a block status has found.
    pub extents: &'a [Extent],
}

impl Protocol {
    /// Creates the state of a new connection of an NBD client.
    #[must_use]
    pub fn nbd(is_within_tls: bool) -> Self {
        Self::Nbd(Nbd::new(is_within_tls))
    }

    /// Takes one step of the negotiation. `input` has the bytes that have arrived and are not
    /// consumed; replies are appended to `output`.
    pub fn negotiate(
        &mut self,
        input: &[u8],
        output: &mut Output,
        lobby: &Lobby<'_>,
    ) -> Negotiation {
        match self {
            Self::Nbd(nbd) => nbd.negotiate(input, output, lobby),
        }
    }

    /// Binds the connection to the volume that [`Protocol::negotiate`] has returned as chosen.
    /// Requests may follow.
    pub fn bind(&mut self, binding: Binding) {
        match self {
            Self::Nbd(nbd) => nbd.bind(binding),
        }
    }

    /// Returns the bound volumes; none before the first is bound.
    #[inline]
    #[must_use]
    pub fn bindings(&self) -> &[Binding] {
        match self {
            Self::Nbd(nbd) => nbd.bindings(),
        }
    }

    /// Returns the bound volumes, to change their slots and lines.
    pub fn bindings_mut(&mut self) -> &mut [Binding] {
        match self {
            Self::Nbd(nbd) => nbd.bindings_mut(),
        }
    }

    /// Returns whether the negotiation is over and requests may follow.
    #[inline]
    #[must_use]
    pub fn is_bound(&self) -> bool {
        !self.bindings().is_empty()
    }

    /// Returns whether the connection is bound to the volume in this slot.
    #[inline]
    #[must_use]
    pub fn is_bound_to(&self, volume: VolumeSlot) -> bool {
        self.bindings().iter().any(|binding| binding.volume == volume)
    }

    /// Returns the attachment by which requests for the volume in this slot enter the scheduler.
    #[inline]
    #[must_use]
    pub fn line_to(&self, volume: VolumeSlot) -> Option<AttachmentIndex> {
        self.bindings().iter().find(|binding| binding.volume == volume)?.line
    }

    /// Returns the front of `input`. `size_of` returns the present size of the volume in a slot, in
    /// bytes.
    #[inline]
    pub fn next(&mut self, input: &[u8], size_of: impl Fn(VolumeSlot) -> u64) -> Next {
        match self {
            Self::Nbd(nbd) => nbd.next(input, size_of),
        }
    }

    /// Records that the last request was accepted under this handle. If it is a write, its memory
    /// is there, and its payload follows as [`Next::Payload`].
    #[inline]
    pub fn accepted(&mut self, handle: RequestId, command: &Command) {
        match self {
            Self::Nbd(nbd) => nbd.accepted(handle, command),
        }
    }

    /// Encodes an accepted request as its client has sent it, without its payload.
    #[must_use]
    pub fn ask_again(&self, tag: Tag, request: &Request) -> Vec<u8> {
        match self {
            Self::Nbd(nbd) => nbd.ask_again(tag, request),
        }
    }

    /// Returns the payload bytes of a refused request that are still to be skipped.
    #[must_use]
    pub fn unskipped(&self) -> u32 {
        match self {
            Self::Nbd(nbd) => nbd.unskipped(),
        }
    }

    /// Replies to the message that was returned as [`Next::Answer`]. Returns the bytes of input to
    /// consume.
    pub fn answer(&mut self, output: &mut Output) -> usize {
        match self {
            Self::Nbd(nbd) => nbd.answer(output),
        }
    }

    /// Appends the reply to a request to `output`. The `buffers` of a successful read are moved to
    /// it.
    #[inline]
    pub fn reply(
        &self,
        outcome: &Outcome<'_>,
        buffers: &mut Vec<Option<Buffer>>,
        output: &mut Output,
    ) {
        match self {
            Self::Nbd(nbd) => nbd.reply(outcome, buffers, output),
        }
    }

    /// Returns whether these last bytes of a client end the connection in the protocol's own way,
    /// so that its requests are carried out even if it sends nothing more.
    #[must_use]
    pub fn is_farewell(&self, tail: &[u8; FAREWELL_BYTES]) -> bool {
        match self {
            Self::Nbd(nbd) => nbd.is_farewell(tail),
        }
    }
}
