//! Shared code of the NBD tests: a small engine that answers the server's questions, and a notation
//! for conversations that shows every byte.

#![allow(dead_code)] // each test file uses its part

use evenkeel_wire::nbd::ExportInfo;
use evenkeel_wire::nbd::handshake::{Client, ClientPlan, ClientStep, Listed, Server, ServerStep};

/// The one export of the tests, 1 GiB, also the default export.
pub const EXPORT: &str = "vol-0123456789abcdef0";
pub const DESCRIPTION: &str = "1 GiB gp3";

pub fn export_info() -> ExportInfo {
    let mut export = ExportInfo::new(EXPORT.into(), 1 << 30);
    export.description = DESCRIPTION.into();
    export
}

/// The bytes that a side of a handshake has sent, its questions, and how it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transcript<End> {
    pub sent: Vec<u8>,
    pub asked: Vec<String>,
    pub end: Option<End>,
    /// Bytes of input taken; the rest belongs to the transmission phase.
    pub consumed: usize,
}

impl<End> Default for Transcript<End> {
    fn default() -> Self {
        Self { sent: Vec::new(), asked: Vec::new(), end: None, consumed: 0 }
    }
}

/// Executes the server's steps, and answers its questions.
pub fn poll_server(server: &mut Server, transcript: &mut Transcript<ServerStep>) {
    while let Some(step) = server.poll_output() {
        match step {
            ServerStep::Send(bytes) => transcript.sent.extend(bytes),
            ServerStep::WantExport(name) => {
                let known = name == EXPORT || name.is_empty();
                transcript.asked.push(name);
                server.export(known.then(export_info));
            }
            ServerStep::WantList => {
                transcript.asked.push("*".into());
                server.list(&[
                    Listed { name: EXPORT, description: DESCRIPTION },
                    Listed { name: "vol-0123456789abcdef1", description: "" },
                ]);
            }
            end @ (ServerStep::Ready(_) | ServerStep::Close(_) | ServerStep::StartTls) => {
                transcript.end = Some(end);
            }
        }
    }
}

/// Feeds a piece of input until all is taken or the handshake ends.
pub fn feed_server(server: &mut Server, mut input: &[u8], transcript: &mut Transcript<ServerStep>) {
    poll_server(server, transcript);
    while !input.is_empty() && transcript.end.is_none() {
        let consumed = server.handle(input);
        let polled = (transcript.sent.len(), transcript.asked.len());
        input = &input[consumed..];
        transcript.consumed += consumed;
        poll_server(server, transcript);
        let said = polled != (transcript.sent.len(), transcript.asked.len());
        assert!(consumed > 0 || said || transcript.end.is_some(), "the server hangs");
    }
}

pub fn poll_client(client: &mut Client, transcript: &mut Transcript<ClientStep>) {
    while let Some(step) = client.poll_output() {
        match step {
            ClientStep::Send(bytes) => transcript.sent.extend(bytes),
            end => transcript.end = Some(end),
        }
    }
}

pub fn feed_client(client: &mut Client, mut input: &[u8], transcript: &mut Transcript<ClientStep>) {
    poll_client(client, transcript);
    while !input.is_empty() && transcript.end.is_none() {
        let consumed = client.handle(input);
        let polled = transcript.sent.len();
        input = &input[consumed..];
        transcript.consumed += consumed;
        poll_client(client, transcript);
        let said = polled != transcript.sent.len();
        assert!(consumed > 0 || said || transcript.end.is_some(), "the client hangs");
    }
}

/// Parses bytes: hexadecimal digits, `"text"`, `00*124` for a repeated byte; `;` starts a comment.
pub fn bytes(text: &str) -> Vec<u8> {
    text.lines().flat_map(line_bytes).collect()
}

fn line_bytes(line: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with(';') {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (text, after) = quoted.split_once('"').expect("a closing quote");
            out.extend(text.as_bytes());
            rest = after.trim_start();
            continue;
        }
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after.trim_start();
        let (digits, times) = word.split_once('*').unwrap_or((word, "1"));
        let piece: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits"))
            .collect();
        out.extend(piece.repeat(times.parse().expect("a number of times")));
    }
    out
}

/// Returns the turns of a conversation: lines that start with `C:` or `S:` begin one, others
/// continue it.
pub fn turns(text: &str) -> Vec<(char, Vec<u8>)> {
    let mut turns: Vec<(char, Vec<u8>)> = Vec::new();
    for line in text.lines().map(str::trim) {
        let (who, line) = match line.split_once(':') {
            Some(("C", rest)) => (Some('C'), rest),
            Some(("S", rest)) => (Some('S'), rest),
            _ => (None, line),
        };
        if let Some(who) = who
            && turns.last().is_none_or(|turn| turn.0 != who)
        {
            turns.push((who, Vec::new()));
        }
        match turns.last_mut() {
            Some(turn) => turn.1.extend(line_bytes(line)),
            None => assert!(line_bytes(line).is_empty(), "bytes before the first turn"),
        }
    }
    turns
}

/// Checks that the server sends exactly the bytes of the conversation, however the client's turns
/// are cut.
pub fn play_server(conversation: &[&str]) -> Option<ServerStep> {
    play(Server::new, conversation)
}

/// Plays the client's part to the server that `start` creates.
pub fn play(start: impl Fn() -> Server, conversation: &[&str]) -> Option<ServerStep> {
    let whole = serve_in_pieces(start(), conversation, usize::MAX);
    assert_eq!(serve_in_pieces(start(), conversation, 1), whole);
    whole
}

fn serve_in_pieces(
    mut server: Server,
    conversation: &[&str],
    piece_bytes: usize,
) -> Option<ServerStep> {
    let mut transcript = Transcript::default();
    poll_server(&mut server, &mut transcript);
    for (who, said) in turns(&conversation.concat()) {
        if who == 'C' {
            assert_eq!(transcript.end, None, "the server ended too early");
            said.chunks(piece_bytes)
                .for_each(|piece| feed_server(&mut server, piece, &mut transcript));
        } else {
            let sent = std::mem::take(&mut transcript.sent);
            assert_eq!(Hex(&sent), Hex(&said));
        }
    }
    assert_eq!(Hex(&transcript.sent), Hex(&[]), "the server says more than it should");
    transcript.end
}

/// Checks that the client sends exactly the bytes of the conversation, however the server's turns
/// are cut.
pub fn play_client(plan: &ClientPlan, conversation: &[&str]) -> Option<ClientStep> {
    let play = |piece_bytes: usize| {
        let mut client = Client::new(plan.clone());
        let mut transcript = Transcript::default();
        poll_client(&mut client, &mut transcript);
        for (who, said) in turns(&conversation.concat()) {
            if who == 'S' {
                said.chunks(piece_bytes)
                    .for_each(|piece| feed_client(&mut client, piece, &mut transcript));
            } else {
                let sent = std::mem::take(&mut transcript.sent);
                assert_eq!(Hex(&sent), Hex(&said));
            }
        }
        assert_eq!(Hex(&transcript.sent), Hex(&[]), "the client says more than it should");
        transcript.end
    };
    let whole = play(usize::MAX);
    assert_eq!(play(1), whole);
    whole
}

/// Bytes that a failed comparison shows as digits and text.
#[derive(PartialEq, Eq)]
pub struct Hex<'a>(pub &'a [u8]);

impl std::fmt::Debug for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        write!(f, " {:?}", String::from_utf8_lossy(self.0))
    }
}
