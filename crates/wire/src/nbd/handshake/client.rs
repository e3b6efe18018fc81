//! The client's side of the handshake, for our own load generator and tests.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use super::client_outcome::{
    ClientClose, ClientGoal, ClientPlan, ClientStep, ClientViolation, RemoteBlockSizes,
    RemoteExport, RemoteName,
};
use super::message::{REPLY_HEADER_BYTES, length_u32, length_usize, put_option};
use crate::nbd::bytes::{Collector, Cursor};
use crate::nbd::constants::{
    EXPORT_NAME_ZEROES, IHAVEOPT, NBDMAGIC, OPTION_BYTES_MAX, REPLY_MAGIC, base_allocation,
    handshake_flag, info, option, reply,
};

/// Bytes of the server's greeting.
const GREETING_BYTES: usize = 18;
/// Bytes of the answer to `NBD_OPT_EXPORT_NAME`, without its zeroes.
const OLD_ANSWER_BYTES: usize = 10;
/// Our bound on all replies of one handshake: a list of 65,536 exports fits several times over.
const REPLIES_BYTES_MAX: u32 = 16 << 20;

/// The expected input.
#[derive(Debug)]
enum State {
    Greeting,
    ReplyHeader { option: u32 },
    ReplyData { option: u32, kind: u32 },
    OldAnswer,
    Finished,
}

/// The client's side of the handshake: see [the module](super) for how to drive it.
///
/// | State | waits for | then |
/// |---|---|---|
/// | `Greeting` | 18 bytes | flags and the first option, `ReplyHeader` |
/// | `ReplyHeader` | 20 bytes | `ReplyData` |
/// | `ReplyData` | the reply's data | more replies, or the next option, or `Finished` |
/// | `OldAnswer` | 10 or 134 bytes, and no header | `Finished` |
/// | `Finished` | nothing | consumes nothing more |
///
/// Options are sent one after the other, each after the final reply to the previous one:
/// `STRUCTURED_REPLY`, `SET_META_CONTEXT` (both as planned, both may be refused), then the goal's
/// option.
#[derive(Debug)]
pub struct Client {
    plan: ClientPlan,
    state: State,
    input: Collector,
    output: Vec<u8>,
    /// The step after `output`.
    next: Option<ClientStep>,
    no_zeroes: bool,
    bytes_left: u32,
    export: RemoteExport,
    export_described: bool,
    listed: Vec<RemoteName>,
}

type Outcome = Result<(), ClientClose>;

fn violation(violation: ClientViolation) -> ClientClose {
    ClientClose::Violation(violation)
}

impl Client {
    /// A new connection; the server speaks first.
    #[must_use]
    pub fn new(plan: ClientPlan) -> Self {
        Self {
            plan,
            state: State::Greeting,
            input: Collector::new(GREETING_BYTES),
            output: Vec::new(),
            next: None,
            no_zeroes: false,
            bytes_left: REPLIES_BYTES_MAX,
            export: RemoteExport::default(),
            export_described: false,
            listed: Vec::new(),
        }
    }

    /// Consumes bytes from the front of `input` until there is a step to poll. Returns their
    /// number, zero after the end.
    pub fn handle(&mut self, input: &[u8]) -> usize {
        let mut rest = input;
        while self.output.is_empty() && self.next.is_none() && self.advance(&mut rest) {}
        input.len() - rest.len()
    }

    /// Returns the next step, in order; `None` if more input is needed.
    pub fn poll_output(&mut self) -> Option<ClientStep> {
        if self.output.is_empty() {
            return self.next.take();
        }
        Some(ClientStep::Send(core::mem::take(&mut self.output)))
    }

    /// The number of bytes held: input, output and the list so far.
    ///
    /// For tests.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        let listed = |name: &RemoteName| name.name.len() + name.description.len();
        self.input.len() + self.output.len() + self.listed.iter().map(listed).sum::<usize>()
    }

    /// Makes one transition; returns `false` if `rest` is too short for one.
    fn advance(&mut self, rest: &mut &[u8]) -> bool {
        if matches!(self.state, State::Finished) {
            return false;
        }
        let taken = self.input.fill(rest);
        *rest = rest.get(taken..).unwrap_or_default();
        let Some(piece) = self.input.take_whole() else { return false };
        let outcome = match self.state {
            State::Greeting => self.on_greeting(&piece),
            State::ReplyHeader { option } => self.on_reply_header(option, &piece),
            State::ReplyData { option, kind } => self.on_reply(option, kind, &piece),
            State::OldAnswer => self.on_old_answer(&piece),
            State::Finished => Ok(()),
        };
        if let Err(close) = outcome {
            // "If the client receives NBD_REP_ERR_SHUTDOWN it MUST initiate a soft disconnect"; any
            // refusal ends that way. A violation allows a hard one.
            self.finish(matches!(close, ClientClose::Refused { .. }), ClientStep::Close(close));
        }
        true
    }

    fn on_greeting(&mut self, piece: &[u8]) -> Outcome {
        let mut cursor = Cursor::new(piece);
        if (cursor.u64(), cursor.u64()) != (Some(NBDMAGIC), Some(IHAVEOPT)) {
            return Err(violation(ClientViolation::Greeting));
        }
        // "Client flags": MUST NOT be set if the server did not set the matching one; the client
        // SHOULD ignore any handshake flags it does not recognize.
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        let flags = cursor.u16().unwrap_or_default() & known;
        self.no_zeroes = flags & handshake_flag::NO_ZEROES != 0;
        self.output.extend_from_slice(&u32::from(flags).to_be_bytes());
        if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            // NBD_OPT_EXPORT_NAME is the only valid option in nonfixed newstyle negotiation.
            return match self.plan.goal {
                ClientGoal::Transmit | ClientGoal::TransmitAnySize | ClientGoal::TransmitOldWay => {
                    self.send_export_name();
                    Ok(())
                }
                ClientGoal::Describe | ClientGoal::List => {
                    self.output.clear();
                    Err(violation(ClientViolation::NotFixedNewstyle))
                }
            };
        }
        if self.plan.structured_replies && self.plan.goal != ClientGoal::List {
            self.send(option::STRUCTURED_REPLY, &[]);
        } else {
            self.send_goal();
        }
        Ok(())
    }

    fn on_reply_header(&mut self, option: u32, piece: &[u8]) -> Outcome {
        let mut cursor = Cursor::new(piece);
        let magic = cursor.u64().unwrap_or_default();
        let replied_to = cursor.u32().unwrap_or_default();
        let kind = cursor.u32().unwrap_or_default();
        let length = cursor.u32().unwrap_or_default();
        if magic != REPLY_MAGIC {
            return Err(violation(ClientViolation::ReplyMagic(magic)));
        }
        if replied_to != option {
            return Err(violation(ClientViolation::WrongOption(replied_to)));
        }
        let whole = length.saturating_add(length_u32(REPLY_HEADER_BYTES));
        let Some(left) = self.bytes_left.checked_sub(whole).filter(|_| length <= OPTION_BYTES_MAX)
        else {
            return Err(violation(ClientViolation::TooBig(length)));
        };
        self.bytes_left = left;
        self.input.expect(length_usize(length));
        self.state = State::ReplyData { option, kind };
        Ok(())
    }

    fn on_reply(&mut self, option: u32, kind: u32, data: &[u8]) -> Outcome {
        let malformed = || violation(ClientViolation::Malformed(kind));
        if kind & reply::ERROR_BIT != 0 {
            return self.on_refusal(option, kind, data);
        }
        match (option, kind) {
            (_, reply::ACK) if data.is_empty() => return self.on_ack(option),
            (_, reply::ACK) => return Err(malformed()),
            (option::LIST, reply::SERVER) => {
                self.listed.push(parse_server(data).ok_or_else(malformed)?);
            }
            (option::SET_META_CONTEXT, reply::META_CONTEXT) => {
                let mut cursor = Cursor::new(data);
                let id = cursor.u32().ok_or_else(malformed)?;
                if cursor.rest() == base_allocation::NAME.as_bytes() {
                    self.export.base_allocation = Some(id);
                }
            }
            (option::INFO | option::GO, reply::INFO) => {
                self.on_info(data).ok_or_else(malformed)?;
                self.check_block_sizes()?;
            }
            _ => return Err(violation(ClientViolation::UnexpectedReply(kind))),
        }
        self.expect_reply(option);
        Ok(())
    }

    /// Handles `NBD_REP_ACK`: the option is done, and the next one follows.
    fn on_ack(&mut self, option: u32) -> Outcome {
        match option {
            option::STRUCTURED_REPLY => {
                self.export.structured_replies = true;
                if self.plan.base_allocation {
                    self.send_set_meta_context();
                } else {
                    self.send_goal();
                }
            }
            option::SET_META_CONTEXT => self.send_goal(),
            option::LIST => {
                let listed = core::mem::take(&mut self.listed);
                self.finish(true, ClientStep::Listed(listed));
            }
            // In response to INFO and GO, the server MUST send at least NBD_INFO_EXPORT.
            _ if !self.export_described => return Err(violation(ClientViolation::NoExportInfo)),
            option::GO => {
                let export = core::mem::take(&mut self.export);
                self.finish(false, ClientStep::Ready(export));
            }
            _ => {
                let export = core::mem::take(&mut self.export);
                self.finish(true, ClientStep::Described(export));
            }
        }
        Ok(())
    }

    fn on_refusal(&mut self, option: u32, reply: u32, data: &[u8]) -> Outcome {
        let fatal = reply == reply::ERR_SHUTDOWN;
        match option {
            option::STRUCTURED_REPLY if !fatal => self.send_goal(),
            option::SET_META_CONTEXT if !fatal => {
                // If an error is returned, the client MUST disregard the contexts it got.
                self.export.base_allocation = None;
                self.send_goal();
            }
            // "For backwards compatibility": fall back to NBD_OPT_EXPORT_NAME.
            option::GO if reply == reply::ERR_UNSUP => self.send_export_name(),
            _ => {
                let message = String::from_utf8_lossy(data).into_owned();
                return Err(ClientClose::Refused { option, reply, message });
            }
        }
        Ok(())
    }

    fn on_info(&mut self, data: &[u8]) -> Option<()> {
        let mut cursor = Cursor::new(data);
        let kind = cursor.u16()?;
        match kind {
            info::EXPORT => {
                self.export.size_bytes = cursor.u64()?;
                self.export.transmission_flags = cursor.u16()?;
                self.export_described = true;
            }
            info::BLOCK_SIZE => {
                self.export.block_sizes = Some(RemoteBlockSizes {
                    bytes_min: cursor.u32()?,
                    bytes_preferred: cursor.u32()?,
                    payload_bytes_max: cursor.u32()?,
                });
            }
            info::NAME => {
                self.export.name = Some(core::str::from_utf8(cursor.rest()).ok()?.to_owned());
                return Some(());
            }
            info::DESCRIPTION => {
                let text = core::str::from_utf8(cursor.rest()).ok()?;
                self.export.description = Some(text.to_owned());
                return Some(());
            }
            // The client MUST ignore information replies it does not understand.
            _ => return Some(()),
        }
        cursor.rest().is_empty().then_some(())
    }

    /// "Size constraints": powers of two, the minimum at most 2^16, the preferred at least that and
    /// 512, the payload at least the preferred.
    fn check_block_sizes(&self) -> Outcome {
        let Some(sizes) = self.export.block_sizes else { return Ok(()) };
        let RemoteBlockSizes { bytes_min, bytes_preferred, payload_bytes_max } = sizes;
        let sound = bytes_min.is_power_of_two()
            && bytes_min <= 1 << 16
            && bytes_preferred.is_power_of_two()
            && bytes_preferred >= bytes_min.max(512)
            && payload_bytes_max >= bytes_preferred;
        if sound { Ok(()) } else { Err(violation(ClientViolation::BlockSizes(sizes))) }
    }

    /// Handles the answer to `NBD_OPT_EXPORT_NAME`; its zeroes are not checked.
    fn on_old_answer(&mut self, piece: &[u8]) -> Outcome {
        let mut cursor = Cursor::new(piece);
        // Information from a GO that turned out to be unsupported does not count.
        self.export.block_sizes = None;
        self.export.size_bytes = cursor.u64().unwrap_or_default();
        self.export.transmission_flags = cursor.u16().unwrap_or_default();
        let export = core::mem::take(&mut self.export);
        self.finish(false, ClientStep::Ready(export));
        Ok(())
    }

    fn send_goal(&mut self) {
        match self.plan.goal {
            ClientGoal::Transmit | ClientGoal::TransmitAnySize => self.send_info(option::GO),
            ClientGoal::TransmitOldWay => self.send_export_name(),
            ClientGoal::Describe => self.send_info(option::INFO),
            ClientGoal::List => self.send(option::LIST, &[]),
        }
    }

    fn send_info(&mut self, option: u32) {
        let mut data = counted(&self.plan.export);
        let wanted: &[u16] = match self.plan.goal {
            ClientGoal::TransmitAnySize => &[info::NAME, info::DESCRIPTION],
            _ => &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE],
        };
        // Two or three.
        let count = u16::try_from(wanted.len()).unwrap_or_default();
        data.extend_from_slice(&count.to_be_bytes());
        wanted.iter().for_each(|item| data.extend_from_slice(&item.to_be_bytes()));
        self.send(option, &data);
    }

    fn send_set_meta_context(&mut self) {
        let mut data = counted(&self.plan.export);
        data.extend_from_slice(&1_u32.to_be_bytes());
        data.extend_from_slice(&counted(base_allocation::NAME));
        self.send(option::SET_META_CONTEXT, &data);
    }

    fn send_export_name(&mut self) {
        put_option(&mut self.output, option::EXPORT_NAME, &[self.plan.export.as_bytes()]);
        let zeroes = if self.no_zeroes { 0 } else { EXPORT_NAME_ZEROES };
        self.input.expect(OLD_ANSWER_BYTES + zeroes);
        self.state = State::OldAnswer;
    }

    fn send(&mut self, option: u32, data: &[u8]) {
        put_option(&mut self.output, option, &[data]);
        self.expect_reply(option);
    }

    fn expect_reply(&mut self, option: u32) {
        self.input.expect(REPLY_HEADER_BYTES);
        self.state = State::ReplyHeader { option };
    }

    /// Ends the handshake, if `politely` with `NBD_OPT_ABORT` ("soft disconnect"). Does not wait
    /// for the reply: servers SHOULD handle a client that closes without.
    fn finish(&mut self, politely: bool, last: ClientStep) {
        if politely {
            put_option(&mut self.output, option::ABORT, &[]);
        }
        self.state = State::Finished;
        self.next = Some(last);
    }
}

fn counted(text: &str) -> Vec<u8> {
    let mut data = length_u32(text.len()).to_be_bytes().to_vec();
    data.extend_from_slice(text.as_bytes());
    data
}

/// "`NBD_REP_SERVER`": 32 bits name length, name, description.
fn parse_server(data: &[u8]) -> Option<RemoteName> {
    let mut cursor = Cursor::new(data);
    let length = cursor.u32()?;
    let name = core::str::from_utf8(cursor.take(length)?).ok()?.to_owned();
    let description = core::str::from_utf8(cursor.rest()).ok()?.to_owned();
    Some(RemoteName { name, description })
}
