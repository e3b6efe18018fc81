//! The session around frames where both ends are not in one process: proofs, a hello and its
//! answer, then packets.
//!
//! ```text
//!  control                                data plane
//!  Opening: versions, a nonce        ──▶
//!                                    ◀──  Challenge: a nonce, a proof
//!  its proof
//!  Hello: versions, cluster, node,   ──▶
//!         leader, generation
//!                                    ◀──  Answer: welcome, or why not
//!  Packet(command, 1), a frame       ──▶
//!  Packet(command, 2), a frame       ──▶
//!                                    ◀──  Packet(reply, 2), a frame
//!  Packet(heartbeat)                 ──▶
//!                                    ◀──  Packet(heartbeat)
//! ```
//!
//! The opening, the challenge, the hello and the head of its answer keep their first eight bytes in
//! every version. So two sides of different versions can report that: the node sends an answer in
//! place of a challenge, without information about the cluster. A message has exactly one form. The
//! proofs are those of [`proof`](super::proof).

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use evenkeel_core::fencing::NodeId;

use super::bytes::{Malformed, Problem, Reader, SESSION_VERSION, Wire, Writer};
use super::proof::{CHALLENGE_BYTES, Nonce};

/// The length of an opening in bytes.
pub const OPENING_BYTES: usize = 48;
/// The length of a challenge in bytes.
pub const SESSION_CHALLENGE_BYTES: usize = 8 + CHALLENGE_BYTES;
/// The length of the common beginning of a challenge and an answer.
pub const BEGINNING_BYTES: usize = 8;
/// The length of a hello in bytes.
pub const HELLO_BYTES: usize = 48;
/// The length of an answer in bytes, without the text behind it.
pub const ANSWER_BYTES: usize = 48;
/// The most bytes of the text behind an answer.
pub const ANSWER_TEXT_BYTES_MAX: usize = 1_024;
/// The length of a packet's head in bytes.
pub const PACKET_BYTES: usize = 12;

const HELLO_MAGIC: [u8; 4] = *b"EVKH";
const CHALLENGE_MAGIC: [u8; 4] = *b"EVKC";
const ANSWER_MAGIC: [u8; 4] = *b"EVKW";

/// Number of a leader: a later leader has a higher one. A node that has received one refuses lower
/// ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LeaderGeneration(pub u64);

impl fmt::Display for LeaderGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {}", self.0)
    }
}

/// One process of control on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leader {
    /// Its node.
    pub node: NodeId,
    /// Identifies the process; another process has another number.
    pub incarnation: u64,
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}, incarnation {:x}", self.node.0, self.incarnation)
    }
}

/// The first message of control. It has no information about the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// The version of the frames that it writes and reads.
    pub agent_version: u16,
    /// Its nonce.
    pub nonce: Nonce,
}

/// A node's answer to an opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Challenge {
    /// The version of the frames that it writes and reads.
    pub agent_version: u16,
    /// Its nonce and its proof.
    pub challenge: [u8; CHALLENGE_BYTES],
}

/// The message that control sends after its proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The version of the frames that it writes and reads.
    pub agent_version: u16,
    /// The cluster that both belong to.
    pub cluster: u128,
    /// The expected node.
    pub node: NodeId,
    /// The process that sends it.
    pub leader: Leader,
    /// Its generation.
    pub generation: LeaderGeneration,
}

/// Decides whether a node that has received a leader's hello lets another leader in. Returns
/// whether the other one's generation is new to the node.
///
/// # Errors
/// [`Verdict::LowerGeneration`] or [`Verdict::OtherLeader`].
pub fn admit(
    heard: Option<(LeaderGeneration, Leader)>,
    (generation, leader): (LeaderGeneration, Leader),
) -> Result<bool, Verdict> {
    match heard {
        Some((heard, _)) if generation < heard => Err(Verdict::LowerGeneration),
        Some((heard, by)) if generation == heard && leader != by => Err(Verdict::OtherLeader),
        heard => Ok(heard.is_none_or(|(heard, _)| heard < generation)),
    }
}

/// A node's decision about a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Commands may be sent.
    Welcome,
    /// The versions differ: one side must be updated.
    Version,
    /// The node belongs to another cluster.
    Cluster,
    /// It is not the expected node.
    Node,
    /// The node has received a higher generation.
    LowerGeneration,
    /// The node has received the hello of another leader with the same generation.
    OtherLeader,
    /// The node cannot take the session now. A later attempt may succeed.
    Busy,
    /// The certificate of control is not that of the leader's node.
    Certificate,
}

/// A node's answer to a hello, or to an opening of another version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Whether commands may be sent.
    pub verdict: Verdict,
    /// The version of the frames that it writes and reads.
    pub agent_version: u16,
    /// The highest generation that the node has received, including this hello's if it is welcome.
    pub generation: LeaderGeneration,
    /// Identifies the node's process. If it has changed, the state that control sent to the former
    /// process is lost, and control must send it again.
    pub incarnation: u128,
    /// Maximum number of commands without a reply.
    pub commands_max: u32,
    /// Milliseconds without a byte from the other side after which a side closes the connection.
    /// Each side sends at least three times as often.
    pub silence_ms: u32,
    /// The reason of a refusal; cut to [`ANSWER_TEXT_BYTES_MAX`].
    pub text: String,
}

/// Meaning of a packet, and the content after its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketKind {
    /// A command's frame follows.
    Command,
    /// A reply's frame follows; the number is the command's.
    Reply,
    /// Nothing follows: the sender is alive. The number is 0.
    Heartbeat,
    /// Nothing follows: control no longer waits for the command of this number. The node replies
    /// anyway.
    Abandon,
}

/// The head of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The packet's kind.
    pub kind: PacketKind,
    /// The command's number: 1, 2, 3 and so on within a session.
    pub number: u64,
}

impl Packet {
    /// A heartbeat.
    pub const HEARTBEAT: Self = Self { kind: PacketKind::Heartbeat, number: 0 };
}

impl Wire for Verdict {
    fn write(&self, to: &mut Writer) {
        let code: u16 = match self {
            Self::Welcome => 0,
            Self::Version => 1,
            Self::Cluster => 2,
            Self::Node => 3,
            Self::LowerGeneration => 4,
            Self::OtherLeader => 5,
            Self::Busy => 6,
            Self::Certificate => 7,
        };
        code.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match u16::read(from)? {
            0 => Self::Welcome,
            1 => Self::Version,
            2 => Self::Cluster,
            3 => Self::Node,
            4 => Self::LowerGeneration,
            5 => Self::OtherLeader,
            6 => Self::Busy,
            7 => Self::Certificate,
            _ => return Err(from.malformed(2, Problem::OutOfRange)),
        })
    }
}

impl Wire for PacketKind {
    fn write(&self, to: &mut Writer) {
        let code: u8 = match self {
            Self::Command => 1,
            Self::Reply => 2,
            Self::Heartbeat => 3,
            Self::Abandon => 4,
        };
        code.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match u8::read(from)? {
            1 => Self::Command,
            2 => Self::Reply,
            3 => Self::Heartbeat,
            4 => Self::Abandon,
            other => return Err(from.malformed(1, Problem::UnknownKind(other))),
        })
    }
}

/// Encodes a message that is far below the limit of a frame.
fn short(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut to = Writer::new();
    write(&mut to);
    to.finish().unwrap_or_default()
}

fn read_beginning(from: &mut Reader<'_>, magic: [u8; 4]) -> Result<(), Malformed> {
    from.in_field("magic", |from| match from.array()? {
        bytes if bytes == magic => Ok(()),
        _ => Err(from.malformed(magic.len(), Problem::NotAFrame)),
    })?;
    from.in_field("session_version", |from| match u16::read(from)? {
        SESSION_VERSION => Ok(()),
        other => Err(from.malformed(2, Problem::UnknownSession(other))),
    })
}

impl Opening {
    /// Encodes it in [`OPENING_BYTES`] bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        short(|to| {
            to.put(&HELLO_MAGIC);
            SESSION_VERSION.write(to);
            self.agent_version.write(to);
            to.put(&self.nonce);
            0_u64.write(to);
        })
    }

    /// # Errors
    /// If it is no opening of this version.
    pub fn decode(bytes: &[u8; OPENING_BYTES]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        read_beginning(&mut from, HELLO_MAGIC)?;
        let opening = Self { agent_version: from.field("agent_version")?, nonce: from.array()? };
        from.in_field("reserved", |from| match u64::read(from)? {
            0 => Ok(()),
            _ => Err(from.malformed(8, Problem::OutOfRange)),
        })?;
        from.finish()?;
        Ok(opening)
    }
}

impl Challenge {
    /// Encodes it in [`SESSION_CHALLENGE_BYTES`] bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        short(|to| {
            to.put(&CHALLENGE_MAGIC);
            SESSION_VERSION.write(to);
            self.agent_version.write(to);
            to.put(&self.challenge);
        })
    }

    /// Returns whether a message with this beginning is an [`Answer`] in place of a challenge.
    #[must_use]
    pub fn is_answer(beginning: &[u8; BEGINNING_BYTES]) -> bool {
        beginning.starts_with(&ANSWER_MAGIC)
    }

    /// # Errors
    /// If it is no challenge of this version.
    pub fn decode(bytes: &[u8; SESSION_CHALLENGE_BYTES]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        read_beginning(&mut from, CHALLENGE_MAGIC)?;
        let challenge =
            Self { agent_version: from.field("agent_version")?, challenge: from.array()? };
        from.finish()?;
        Ok(challenge)
    }
}

impl Hello {
    /// Encodes it in [`HELLO_BYTES`] bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        short(|to| {
            to.put(&HELLO_MAGIC);
            SESSION_VERSION.write(to);
            self.agent_version.write(to);
            self.cluster.write(to);
            self.node.0.write(to);
            self.leader.node.0.write(to);
            self.leader.incarnation.write(to);
            self.generation.0.write(to);
        })
    }

    /// # Errors
    /// If it is no hello of this version.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        read_beginning(&mut from, HELLO_MAGIC)?;
        let hello = Self {
            agent_version: from.field("agent_version")?,
            cluster: from.field("cluster")?,
            node: NodeId(from.field("node")?),
            leader: Leader {
                node: NodeId(from.field("leader.node")?),
                incarnation: from.field("leader.incarnation")?,
            },
            generation: LeaderGeneration(from.field("generation")?),
        };
        from.finish()?;
        Ok(hello)
    }
}

impl Answer {
    /// Encodes it in [`ANSWER_BYTES`] bytes and those of its text.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let text = cut(&self.text);
        short(|to| {
            to.put(&ANSWER_MAGIC);
            SESSION_VERSION.write(to);
            self.agent_version.write(to);
            self.generation.0.write(to);
            self.incarnation.write(to);
            self.commands_max.write(to);
            self.silence_ms.write(to);
            self.verdict.write(to);
            0_u32.write(to);
            u16::try_from(text.len()).unwrap_or_default().write(to);
            to.put(text.as_bytes());
        })
    }

    /// Returns the number of bytes of the text after this head.
    ///
    /// # Errors
    /// If it is no answer of this version.
    pub fn text_bytes(head: &[u8; ANSWER_BYTES]) -> Result<usize, Malformed> {
        let (_, length) = Self::read_head(&mut Reader::new(head))?;
        Ok(length)
    }

    fn read_head(from: &mut Reader<'_>) -> Result<(Self, usize), Malformed> {
        read_beginning(from, ANSWER_MAGIC)?;
        let mut head = Self {
            verdict: Verdict::Busy,
            agent_version: from.field("agent_version")?,
            generation: LeaderGeneration(from.field("generation")?),
            incarnation: from.field("incarnation")?,
            commands_max: from.field("commands_max")?,
            silence_ms: from.field("silence_ms")?,
            text: String::new(),
        };
        head.verdict = from.field("verdict")?;
        from.in_field("reserved", |from| match u32::read(from)? {
            0 => Ok(()),
            _ => Err(from.malformed(4, Problem::OutOfRange)),
        })?;
        let length = from.in_field("text", |from| {
            let length = u16::read(from)?;
            match usize::from(length) {
                whole if whole <= ANSWER_TEXT_BYTES_MAX => Ok(whole),
                _ => Err(from.malformed(2, Problem::TooLong { length: length.into() })),
            }
        })?;
        Ok((head, length))
    }

    /// Decodes an answer with its text.
    ///
    /// # Errors
    /// If it is no answer of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let (head, length) = Self::read_head(&mut from)?;
        let text = from.in_field("text", |from| {
            let text = from.text(length)?;
            from.finish()?;
            Ok(text)
        })?;
        Ok(Self { text, ..head })
    }
}

/// Returns the beginning of `text` that fits into an answer.
fn cut(text: &str) -> &str {
    let end = (0..=ANSWER_TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default().min(text.len())).unwrap_or(text)
}

impl Packet {
    /// Encodes the head in [`PACKET_BYTES`] bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        short(|to| {
            self.kind.write(to);
            [0_u8; 3].iter().for_each(|byte| byte.write(to));
            self.number.write(to);
        })
    }

    /// # Errors
    /// If it is no packet of this version.
    pub fn decode(head: &[u8; PACKET_BYTES]) -> Result<Self, Malformed> {
        let mut from = Reader::new(head);
        let kind = from.field("packet.kind")?;
        from.in_field("packet.reserved", |from| match from.array()? {
            [0_u8, 0, 0] => Ok(()),
            _ => Err(from.malformed(3, Problem::OutOfRange)),
        })?;
        let number = from.in_field("packet.number", |from| {
            let number = u64::read(from)?;
            // The number of a heartbeat is 0, and that of any other packet is not.
            if (number == 0) == (kind == PacketKind::Heartbeat) {
                Ok(number)
            } else {
                Err(from.malformed(8, Problem::OutOfRange))
            }
        })?;
        from.finish()?;
        Ok(Self { kind, number })
    }
}
