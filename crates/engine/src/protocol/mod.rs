//! The protocols that clients speak. The rest of the engine knows none of them: it feeds a
//! connection's bytes to a [`Protocol`], gets requests on volumes, and has the replies encoded.
//!
//! A protocol has no socket, no payload and no clock. It serves one connection, in this order:
//!
//! | call | what happens |
//! |---|---|
//! | [`Protocol::negotiate`] | until the client has chosen a volume |
//! | [`Protocol::bind`] | on the volume's home core: its requests may come from here on |
//! | [`Protocol::next`] | what the front of the input is: a request stays there until accepted |
//! | [`Protocol::accepted`] | the request has its memory and its place; its payload may come |
//! | [`Protocol::reply`] | a request has ended; in any order |
//!
//! Each [`Command`] names its volume, and the reactor asks for nothing else: only NBD says that a
//! connection has one. A protocol with several volumes on a connection keeps a [`Binding`] for each
//! of them. One whose client sends a payload only when it is asked to asks in `accepted`, and
//! returns the [`Stretch`]es from `next` as they arrive, other requests between them.

mod nbd;
#[cfg(test)]
pub(crate) mod testing;

use crate::connection_limits::{NoPlace, Slot};
use crate::directory::Directory;
use crate::output::Output;
use crate::transport::Stretch;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::scheduler::AttachmentIndex;
use evenkeel_core::request::{Failure, Request};
use evenkeel_store::Extent;
use evenkeel_store::buffer::Buffer;
use evenkeel_wire::agent::HostAddress;
use nbd::Nbd;

/// Bytes at the end of what a client has sent that [`Protocol::is_farewell`] looks at.
pub const FAREWELL_BYTES: usize = nbd::FAREWELL_BYTES;

/// What a connection speaks.
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
    pub volume: u32,
    /// By which of the volume's attachments the requests come; `None` is the first.
    pub line: Option<AttachmentIndex>,
}

/// What a protocol needs to know to reply to a request: it is returned as it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The client's number for the request.
    pub id: u64,
    /// What the protocol remembers of it.
    pub note: u8,
}

/// A request that is valid and stands at the front of the input.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// For the reply.
    pub tag: Tag,
    /// The slot of the volume that it is for.
    pub volume: u32,
    /// What is asked.
    pub request: Request,
    /// Bytes of input to consume once it is accepted.
    pub head_bytes: usize,
}

/// What the front of the input is.
#[derive(Debug)]
pub enum Next {
    /// Not all of it has arrived.
    Incomplete,
    /// So many bytes that nobody needs.
    Skip(usize),
    /// A request. It is returned again until it is accepted.
    Request(Command),
    /// Payload of a request that was accepted.
    Payload(Stretch),
    /// Something that the protocol replies to by itself: [`Protocol::answer`] does, once there is
    /// room for the reply.
    Answer,
    /// The client's last word: what it has asked before is still done and replied to.
    End,
    /// Nothing that can be understood: the connection has to be closed.
    Broken(Violation),
}

/// Why a connection has to be closed.
#[derive(Debug)]
pub enum Violation {
    /// The stream is out of step.
    OutOfStep(nbd::BadMagic),
    /// A write announces so many bytes of payload.
    TooLarge(u32),
}

/// How one step of the negotiation went.
#[derive(Debug)]
pub enum Negotiation {
    /// More bytes have to arrive.
    Incomplete,
    /// So many bytes were consumed.
    Consumed(usize),
    /// A question of the client was answered.
    Answered,
    /// More has arrived, but the client has had its turn.
    Yield,
    /// The client was refused because there is no place for it; it may go on asking.
    Denied(NoPlace),
    /// The client has chosen this volume.
    Chosen(VolumeId),
    /// It is over without a choice: the connection ends once all replies have left.
    End,
}

/// What a negotiation may look up.
pub struct Lobby<'a> {
    /// The volumes.
    pub directory: &'a Directory,
    /// The client's place among all connections.
    pub slot: &'a Slot,
    /// Who is at the other end.
    pub peer: HostAddress,
}

/// How a request ended.
pub struct Outcome<'a> {
    /// As it came with the request.
    pub tag: Tag,
    /// The slot of its volume.
    pub volume: u32,
    /// What was asked.
    pub request: Request,
    /// Whether it was done.
    pub result: Result<(), Failure>,
    /// What a block status found.
    pub extents: &'a [Extent],
}

impl Protocol {
    /// A new connection of an NBD client.
    #[must_use]
    pub fn nbd() -> Self {
        Self::Nbd(Nbd::new())
    }

    /// One step of the negotiation. `input` is what has arrived and is not consumed; replies are
    /// appended to `output`.
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

    /// Lets requests come for the volume whose choice was returned by [`Protocol::negotiate`].
    pub fn bind(&mut self, binding: Binding) {
        match self {
            Self::Nbd(nbd) => nbd.bind(binding),
        }
    }

    /// The volumes to which requests may go; none before the first is bound.
    #[inline]
    #[must_use]
    pub fn bindings(&self) -> &[Binding] {
        match self {
            Self::Nbd(nbd) => nbd.bindings(),
        }
    }

    /// The same, to change their slots and lines.
    pub fn bindings_mut(&mut self) -> &mut [Binding] {
        match self {
            Self::Nbd(nbd) => nbd.bindings_mut(),
        }
    }

    /// Whether the negotiation is over and requests may come.
    #[inline]
    #[must_use]
    pub fn is_bound(&self) -> bool {
        !self.bindings().is_empty()
    }

    /// Whether requests may go to the volume in this slot.
    #[inline]
    #[must_use]
    pub fn is_bound_to(&self, volume: u32) -> bool {
        self.bindings().iter().any(|binding| binding.volume == volume)
    }

    /// By which of its volume's attachments a request for the volume in this slot comes.
    #[inline]
    #[must_use]
    pub fn line_to(&self, volume: u32) -> Option<AttachmentIndex> {
        self.bindings().iter().find(|binding| binding.volume == volume)?.line
    }

    /// What the front of `input` is. `size_of` tells a volume's size in bytes as it is now, by its
    /// slot.
    #[inline]
    pub fn next(&mut self, input: &[u8], size_of: impl Fn(u32) -> u64) -> Next {
        match self {
            Self::Nbd(nbd) => nbd.next(input, size_of),
        }
    }

    /// Takes note that the request returned last was accepted under this handle: if it is a write,
    /// all its memory is there, and its payload comes as [`Next::Payload`].
    #[inline]
    pub fn accepted(&mut self, handle: u32, command: &Command) {
        match self {
            Self::Nbd(nbd) => nbd.accepted(handle, command),
        }
    }

    /// A request that was accepted, as a client asks for it, without its payload.
    #[must_use]
    pub fn ask_again(&self, tag: Tag, request: &Request) -> Vec<u8> {
        match self {
            Self::Nbd(nbd) => nbd.ask_again(tag, request),
        }
    }

    /// Payload of a request that was refused which is still to be thrown away.
    #[must_use]
    pub fn unskipped(&self) -> u32 {
        match self {
            Self::Nbd(nbd) => nbd.unskipped(),
        }
    }

    /// Replies to what was returned as [`Next::Answer`]; the bytes of input to consume.
    pub fn answer(&mut self, output: &mut Output) -> usize {
        match self {
            Self::Nbd(nbd) => nbd.answer(output),
        }
    }

    /// Appends the reply to a request to `output`. A read that was done gives up its `buffers`.
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

    /// Whether a client whose last bytes are these has ended the connection in the protocol's own
    /// way, so that what it has asked for is done even if it sends nothing more.
    #[must_use]
    pub fn is_farewell(&self, tail: &[u8; FAREWELL_BYTES]) -> bool {
        match self {
            Self::Nbd(nbd) => nbd.is_farewell(tail),
        }
    }
}
