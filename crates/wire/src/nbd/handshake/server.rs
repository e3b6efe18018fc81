//! The server's side of the handshake. Malformed options get an error reply; violations that the
//! protocol does not allow to answer close the connection.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::message::{
    OPTION_HEADER_BYTES, length_u32, length_usize, put_error, put_info, put_info_block_size,
    put_info_export, put_reply, transmission_flags,
};
use super::options::{self, Refusal, Wanted};
use super::server_outcome::{Choice, CloseReason, Listed, Negotiated, ServerStep, no_such_export};
use crate::nbd::ExportInfo;
use crate::nbd::bytes::{Collector, Cursor};
use crate::nbd::constants::{
    EXPORT_NAME_ZEROES, HANDSHAKE_BYTES_MAX, HANDSHAKE_OPTIONS_MAX, IHAVEOPT, NBDMAGIC,
    OPTION_BYTES_MAX, STRING_BYTES_MAX, base_allocation, handshake_flag, info, option, reply,
};

/// The expected input, or the answer that the caller owes.
#[derive(Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData { option: u32 },
    Skip { option: u32, left: u32, then: Verdict },
    Export(Purpose),
    List,
    Finished,
}

/// The outcome of an option whose data is skipped.
#[derive(Debug)]
enum Verdict {
    UseStructuredReplies,
    StartTls,
    Refuse(Refusal),
    SayGoodbye,
    Close(CloseReason),
}

/// How a session uses TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tls {
    /// "NOTLS mode".
    Unsupported,
    /// "FORCEDTLS mode": no option but STARTTLS and ABORT has an effect.
    Required,
    /// The session is within TLS.
    Active,
}

/// The purpose of an export's lookup.
#[derive(Debug)]
enum Purpose {
    ExportName { name: String },
    Info { option: u32, name: String, wanted: Wanted },
    Contexts { option: u32, name: String, matched: bool },
}

/// The server's side of the handshake: see [the module](super) for how to drive it.
///
/// | State | waits for | then |
/// |---|---|---|
/// | `ClientFlags` | 4 bytes | `OptionHeader`; unknown flags: `Finished` |
/// | `OptionHeader` | 16 bytes | `OptionData`, `Skip`, `List`; over a bound: `Finished` |
/// | `OptionData` | the option's data | `Export`; malformed: error reply, `OptionHeader` |
/// | `Skip` | data to be ignored | its verdict, then `OptionHeader` or `Finished` |
/// | `Export` | [`Server::export`] | replies, then `OptionHeader` or `Finished` |
/// | `List` | [`Server::list`] | replies, then `OptionHeader` |
/// | `Finished` | nothing | consumes nothing more |
///
/// The usual sequence: `ClientFlags`, then `OptionHeader`, `OptionData`, `Export` and back for each
/// option, until GO or EXPORT_NAME leads to `Finished`.
///
/// Memory: at most [`OPTION_BYTES_MAX`] of input, one selected name, and the replies to one option.
#[derive(Debug)]
pub struct Server {
    state: State,
    input: Collector,
    output: Vec<u8>,
    /// The step after `output`: a question, or the end.
    next: Option<ServerStep>,
    no_zeroes: bool,
    tls: Tls,
    structured_replies: bool,
    /// The export for which `base:allocation` was selected last.
    selected: Option<String>,
    options_left: u32,
    bytes_left: u32,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// Creates a session; the greeting is ready to be polled.
    #[must_use]
    pub fn new() -> Self {
        // "Newstyle negotiation": NBDMAGIC, IHAVEOPT, 16 bits handshake flags.
        let mut output = Vec::new();
        output.extend_from_slice(&NBDMAGIC.to_be_bytes());
        output.extend_from_slice(&IHAVEOPT.to_be_bytes());
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        output.extend_from_slice(&flags.to_be_bytes());
        Self {
            state: State::ClientFlags,
            input: Collector::new(4),
            output,
            next: None,
            no_zeroes: false,
            tls: Tls::Unsupported,
            structured_replies: false,
            selected: None,
            options_left: HANDSHAKE_OPTIONS_MAX,
            bytes_left: HANDSHAKE_BYTES_MAX,
        }
    }

    /// Requires TLS: the caller has to serve [`ServerStep::StartTls`].
    #[must_use]
    pub fn with_tls(self) -> Self {
        Self { tls: Tls::Required, ..self }
    }

    /// Marks the session as one whose bytes go through TLS that another part has started.
    #[must_use]
    pub fn within_tls(self) -> Self {
        Self { tls: Tls::Active, ..self }
    }

    /// Returns the flags that the client has sent, once it has.
    #[must_use]
    pub fn client_flags(&self) -> u32 {
        let no_zeroes = if self.no_zeroes { handshake_flag::NO_ZEROES } else { 0 };
        u32::from(handshake_flag::FIXED_NEWSTYLE | no_zeroes)
    }

    /// Consumes bytes from the front of `input` until there is a step to poll. Returns their
    /// number, zero while a question is unanswered and after the end.
    pub fn handle(&mut self, input: &[u8]) -> usize {
        let mut rest = input;
        while self.output.is_empty() && self.next.is_none() && self.advance(&mut rest) {}
        input.len() - rest.len()
    }

    /// Returns the next step, in order; `None` if more input (or an answer) is needed.
    pub fn poll_output(&mut self) -> Option<ServerStep> {
        if self.output.is_empty() {
            return self.next.take();
        }
        Some(ServerStep::Send(core::mem::take(&mut self.output)))
    }

    /// Returns how the export that [`ServerStep::WantExport`] asks for would be used; `None` if the
    /// client asks only for its description.
    #[must_use]
    pub fn choice(&self) -> Option<Choice> {
        let State::Export(purpose) = &self.state else { return None };
        let (name, block_size_requested) = match purpose {
            Purpose::ExportName { name } => (name, false),
            Purpose::Info { option: option::GO, name, wanted } => (name, wanted.block_size),
            _ => return None,
        };
        Some(Choice {
            structured_replies: self.structured_replies,
            base_allocation: self.selected.as_ref() == Some(name),
            block_size_requested,
        })
    }

    /// Answers [`ServerStep::WantExport`]; `None` if the export does not exist for this client.
    /// Does nothing if there is no such question.
    pub fn export(&mut self, export: Option<ExportInfo>) {
        let purpose = match core::mem::replace(&mut self.state, State::OptionHeader) {
            State::Export(purpose) => purpose,
            other => return self.state = other,
        };
        self.next = None; // an answer may come before its question was polled
        self.expect_option();
        match purpose {
            Purpose::ExportName { name } => self.answer_export_name(name, export),
            Purpose::Info { option, name, wanted } => {
                self.answer_info(option, &name, wanted, export);
            }
            Purpose::Contexts { option, name, matched } => {
                self.answer_contexts(option, name, matched, export.is_some());
            }
        }
    }

    /// Answers [`ServerStep::WantExport`] if the export exists but this client may not have it now;
    /// `why` is for its user. Does nothing if there is no such question.
    pub fn deny(&mut self, why: &str) {
        let purpose = match core::mem::replace(&mut self.state, State::OptionHeader) {
            State::Export(purpose) => purpose,
            other => return self.state = other,
        };
        self.next = None;
        self.expect_option();
        match purpose {
            // The option has no error reply.
            Purpose::ExportName { .. } => self.close(CloseReason::Denied(why.to_owned())),
            Purpose::Info { option, .. } | Purpose::Contexts { option, .. } => {
                put_error(&mut self.output, option, reply::ERR_POLICY, why);
            }
        }
    }

    /// Answers [`ServerStep::WantList`]. Names and descriptions too long for the protocol are
    /// omitted. Does nothing if there is no such question.
    pub fn list(&mut self, exports: &[Listed<'_>]) {
        if !matches!(self.state, State::List) {
            return;
        }
        self.next = None;
        self.expect_option();
        // "`NBD_REP_SERVER`": 32 bits name length, name; the rest is for display.
        for export in exports.iter().filter(|export| export.name.len() <= STRING_BYTES_MAX) {
            let name = export.name.as_bytes();
            let fits = export.description.len() <= STRING_BYTES_MAX;
            let description = if fits { export.description.as_bytes() } else { &[] };
            let length = length_u32(name.len()).to_be_bytes();
            let pieces: [&[u8]; 3] = [&length, name, description];
            put_reply(&mut self.output, option::LIST, reply::SERVER, &pieces);
        }
        self.ack(option::LIST);
    }

    /// Returns the number of bytes held, input and output.
    ///
    /// For tests.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.input.len() + self.output.len() + self.selected.as_ref().map_or(0, String::len)
    }

    /// Makes one transition; returns `false` if `rest` is too short for one, or if the caller owes
    /// an answer.
    fn advance(&mut self, rest: &mut &[u8]) -> bool {
        match &mut self.state {
            State::Export(_) | State::List | State::Finished => return false,
            State::Skip { option, left, then } => {
                let skipped = rest.len().min(length_usize(*left));
                *left -= length_u32(skipped);
                *rest = rest.get(skipped..).unwrap_or_default();
                if *left > 0 {
                    return false;
                }
                let option = *option;
                let then = core::mem::replace(then, Verdict::SayGoodbye);
                self.on_skipped(option, then);
                return true;
            }
            State::ClientFlags | State::OptionHeader | State::OptionData { .. } => {}
        }
        let taken = self.input.fill(rest);
        *rest = rest.get(taken..).unwrap_or_default();
        let Some(piece) = self.input.take_whole() else { return false };
        match self.state {
            State::ClientFlags => self.on_client_flags(&piece),
            State::OptionHeader => self.on_option_header(&piece),
            State::OptionData { option } => self.on_option_data(option, &piece),
            State::Skip { .. } | State::Export(_) | State::List | State::Finished => {}
        }
        true
    }

    fn on_client_flags(&mut self, piece: &[u8]) {
        let flags = Cursor::new(piece).u32().unwrap_or_default();
        // "Client flags": the server MUST drop the connection on an unknown flag. A client without
        // C_FIXED_NEWSTYLE is served all the same (Servers MAY choose to honour fixed newstyle).
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        if flags & !u32::from(known) != 0 {
            return self.close(CloseReason::ClientFlags(flags));
        }
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.expect_option();
    }

    fn on_option_header(&mut self, piece: &[u8]) {
        let mut cursor = Cursor::new(piece);
        let magic = cursor.u64().unwrap_or_default();
        let option = cursor.u32().unwrap_or_default();
        let length = cursor.u32().unwrap_or_default();
        if magic != IHAVEOPT {
            return self.close(CloseReason::OptionMagic(magic));
        }
        let (Some(options_left), Some(bytes_left)) =
            (self.options_left.checked_sub(1), self.bytes_left.checked_sub(length))
        else {
            // A denial of service, which allows a hard disconnect.
            return self.close(match self.options_left {
                0 => CloseReason::TooManyOptions,
                _ => CloseReason::TooManyBytes(length),
            });
        };
        self.options_left = options_left;
        self.bytes_left = bytes_left;
        if option == option::SET_META_CONTEXT {
            // Replaces all previously-set metadata contexts, including when this command fails.
            self.selected = None;
        }
        self.state = self.route(option, length);
        match self.state {
            State::List => self.next = Some(ServerStep::WantList),
            State::OptionData { .. } => self.input.expect(length_usize(length)),
            _ => {}
        }
    }

    /// Returns the next state, which depends on an option's header only.
    fn route(&self, option: u32, length: u32) -> State {
        let skip = |then| State::Skip { option, left: length, then };
        let refuse = |reply, message: String| skip(Verdict::Refuse(Refusal { reply, message }));
        match option {
            // "`NBD_OPT_ABORT`": MUST reply with NBD_REP_ACK, SHOULD ignore any data.
            option::ABORT => skip(Verdict::SayGoodbye),
            // "FORCEDTLS mode": MUST terminate the session, since the option has no error reply.
            option::EXPORT_NAME if self.tls == Tls::Required => {
                skip(Verdict::Close(CloseReason::TlsRequired))
            }
            // "FORCEDTLS mode": any other option MUST get NBD_REP_ERR_TLS_REQD.
            _ if self.tls == Tls::Required && option != option::STARTTLS => {
                let text =
                    "this address needs TLS; connect with nbds:// and the host's certificate";
                refuse(reply::ERR_TLS_REQD, text.to_owned())
            }
            option::LIST | option::STARTTLS | option::STRUCTURED_REPLY if length > 0 => {
                refuse(reply::ERR_INVALID, format!("the option takes no data, got {length} B"))
            }
            option::LIST => State::List,
            option::STRUCTURED_REPLY => skip(Verdict::UseStructuredReplies),
            option::STARTTLS => match self.tls {
                Tls::Required => skip(Verdict::StartTls),
                // "`NBD_OPT_STARTTLS`": MUST reply with NBD_REP_ERR_INVALID if TLS is in use.
                Tls::Active => refuse(reply::ERR_INVALID, "TLS is in use already".to_owned()),
                // "NOTLS mode": NBD_REP_ERR_UNSUP, never NBD_REP_ERR_TLS_REQD.
                Tls::Unsupported => {
                    refuse(reply::ERR_UNSUP, "TLS is not supported; connect without it".to_owned())
                }
            },
            option::EXPORT_NAME if length_usize(length) > STRING_BYTES_MAX => {
                let why = format!("an export name of {length} bytes exceeds {STRING_BYTES_MAX}");
                skip(Verdict::Close(CloseReason::BadExportName(why)))
            }
            option::SET_META_CONTEXT | option::LIST_META_CONTEXT if !self.structured_replies => {
                refuse(reply::ERR_INVALID, "negotiate NBD_OPT_STRUCTURED_REPLY first".to_owned())
            }
            option::INFO | option::GO | option::LIST_META_CONTEXT | option::SET_META_CONTEXT
                if length > OPTION_BYTES_MAX =>
            {
                let message = format!("{length} bytes of data exceed {OPTION_BYTES_MAX}");
                refuse(reply::ERR_TOO_BIG, message)
            }
            option::EXPORT_NAME
            | option::INFO
            | option::GO
            | option::LIST_META_CONTEXT
            | option::SET_META_CONTEXT => State::OptionData { option },
            // "Baseline": what is not implemented MUST get NBD_REP_ERR_UNSUP.
            _ => refuse(reply::ERR_UNSUP, format!("option {option} is not supported")),
        }
    }

    fn on_skipped(&mut self, option: u32, then: Verdict) {
        self.expect_option();
        match then {
            Verdict::UseStructuredReplies => {
                // A client SHOULD NOT repeat it; repeating changes nothing.
                self.structured_replies = true;
                self.ack(option);
            }
            Verdict::StartTls => {
                // There is no other state to forget: no other option has had an effect yet.
                self.tls = Tls::Active;
                self.ack(option);
                self.next = Some(ServerStep::StartTls);
            }
            Verdict::Refuse(refusal) => self.refuse(option, &refusal),
            Verdict::SayGoodbye => {
                self.ack(option);
                self.close(CloseReason::Aborted);
            }
            Verdict::Close(reason) => self.close(reason),
        }
    }

    fn on_option_data(&mut self, option: u32, data: &[u8]) {
        let purpose = match option {
            option::EXPORT_NAME => match options::string(data, "the export name") {
                Ok(name) => Ok(Purpose::ExportName { name: name.to_owned() }),
                // The option has no error reply: MUST terminate the session.
                Err(refusal) => return self.close(CloseReason::BadExportName(refusal.message)),
            },
            option::INFO | option::GO => options::info_request(data).map(|request| {
                let wanted = request.wanted;
                Purpose::Info { option, name: request.name.to_owned(), wanted }
            }),
            _ => options::context_request(data).map(|request| {
                // "The `base:` metadata namespace": the wildcard lists and never selects.
                let listing = option == option::LIST_META_CONTEXT;
                let matched =
                    request.base_allocation || listing && (request.wildcard || request.no_query);
                Purpose::Contexts { option, name: request.name.to_owned(), matched }
            }),
        };
        match purpose {
            Ok(purpose) => self.ask(purpose),
            Err(refusal) => {
                self.expect_option();
                self.refuse(option, &refusal);
            }
        }
    }

    fn ask(&mut self, purpose: Purpose) {
        let (Purpose::ExportName { name }
        | Purpose::Info { name, .. }
        | Purpose::Contexts { name, .. }) = &purpose;
        self.next = Some(ServerStep::WantExport(name.clone()));
        self.state = State::Export(purpose);
    }

    /// "`NBD_OPT_EXPORT_NAME`": 64 bits size, 16 bits transmission flags, 124 bytes of zeroes
    /// unless NO_ZEROES was negotiated; the server MUST terminate the session if there is no such
    /// export.
    fn answer_export_name(&mut self, name: String, export: Option<ExportInfo>) {
        let Some(export) = export else {
            return self.close(CloseReason::NoSuchExport(name));
        };
        let flags = transmission_flags(&export, self.structured_replies);
        self.output.extend_from_slice(&export.size_bytes.to_be_bytes());
        self.output.extend_from_slice(&flags.to_be_bytes());
        if !self.no_zeroes {
            self.output.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
        }
        self.finish(&name, export, false);
    }

    /// "`NBD_OPT_INFO` and `NBD_OPT_GO`": any number of NBD_REP_INFO, with NBD_INFO_EXPORT among
    /// them, then NBD_REP_ACK; NBD_REP_ERR_UNKNOWN if there is no such export.
    fn answer_info(&mut self, option: u32, name: &str, wanted: Wanted, export: Option<ExportInfo>) {
        let Some(export) = export else {
            return self.refuse_unknown(option, name);
        };
        let flags = transmission_flags(&export, self.structured_replies);
        put_info_export(&mut self.output, option, &export, flags);
        // "Size constraints": a server with other constraints than the default SHOULD advertise
        // them in response to INFO or GO, whether requested or not. A client that did not request
        // them and enters transmission is not bound by them, and gets the sizes that apply to it.
        let is_held = option == option::INFO || wanted.block_size;
        let block_bytes_min = if is_held { export.block_bytes_min } else { 1 };
        put_info_block_size(&mut self.output, option, &export, block_bytes_min);
        if wanted.name {
            put_info(&mut self.output, option, info::NAME, &[export.name.as_bytes()]);
        }
        if wanted.description && !export.description.is_empty() {
            let description = export.description.as_bytes();
            put_info(&mut self.output, option, info::DESCRIPTION, &[description]);
        }
        self.ack(option);
        if option == option::GO {
            self.finish(name, export, wanted.block_size);
        }
    }

    /// "`NBD_OPT_SET_META_CONTEXT`": one NBD_REP_META_CONTEXT (32 bits id, name) per context, then
    /// NBD_REP_ACK. When listing, the id SHOULD be zero.
    fn answer_contexts(&mut self, option: u32, name: String, matched: bool, exists: bool) {
        if !exists {
            return self.refuse_unknown(option, &name);
        }
        if matched {
            let setting = option == option::SET_META_CONTEXT;
            let id = if setting { base_allocation::CONTEXT_ID } else { 0 }.to_be_bytes();
            let pieces: [&[u8]; 2] = [&id, base_allocation::NAME.as_bytes()];
            put_reply(&mut self.output, option, reply::META_CONTEXT, &pieces);
            if setting {
                self.selected = Some(name);
            }
        }
        self.ack(option);
    }

    fn finish(&mut self, name: &str, export: ExportInfo, block_size_requested: bool) {
        // "`NBD_CMD_BLOCK_STATUS`": the contexts count if they were selected for the same name.
        let base_allocation = self.selected.take().is_some_and(|selected| selected == name);
        let structured_replies = self.structured_replies;
        self.state = State::Finished;
        self.next = Some(ServerStep::Ready(Negotiated {
            export,
            structured_replies,
            base_allocation,
            block_size_requested,
        }));
    }

    fn close(&mut self, reason: CloseReason) {
        self.state = State::Finished;
        self.next = Some(ServerStep::Close(reason));
    }

    fn expect_option(&mut self) {
        self.state = State::OptionHeader;
        self.input.expect(OPTION_HEADER_BYTES);
    }

    fn ack(&mut self, option: u32) {
        put_reply(&mut self.output, option, reply::ACK, &[]);
    }

    fn refuse(&mut self, option: u32, refusal: &Refusal) {
        put_error(&mut self.output, option, refusal.reply, &refusal.message);
    }

    fn refuse_unknown(&mut self, option: u32, name: &str) {
        put_error(&mut self.output, option, reply::ERR_UNKNOWN, &no_such_export(name));
    }
}
