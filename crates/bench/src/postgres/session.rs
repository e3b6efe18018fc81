//! A session of a PostgreSQL over its unix socket, for statements and their rows as text. It is a
//! small part of version 3 of the protocol, for a server that requires no password.

use evenkeel_core::convert::saturating;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use evenkeel_lab::{LabError, cancel};
use evenkeel_os::clock;

/// Version 3.0 of the protocol, as the first message has it.
const VERSION: u32 = 3 << 16;
/// Bytes of a message at most: rows of figures are short.
const MESSAGE_MAX: usize = 1 << 20;
/// Longest wait for a statement. Generous: it exists to end a hang.
const STATEMENT_MAX: Duration = Duration::from_secs(120);
/// Time between two checks whether the process is asked to stop.
const STOP_LOOK: Duration = Duration::from_millis(200);

/// A row, column by column; a null is empty.
pub type Row = Vec<String>;

/// An open session.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
}

impl Session {
    /// Opens a session of a database, as the superuser of the cluster.
    ///
    /// # Errors
    /// When no server listens, or it refuses the session; the error has the server's message.
    pub fn open(socket: &Path, user: &str, database: &str) -> Result<Self, LabError> {
        let stream = UnixStream::connect(socket).and_then(|stream| {
            stream.set_read_timeout(Some(STOP_LOOK))?;
            stream.set_write_timeout(Some(STATEMENT_MAX))?;
            Ok(stream)
        });
        let mut session = Self { stream: stream.map_err(LabError::io("cannot reach", socket))? };
        let mut body = VERSION.to_be_bytes().to_vec();
        for word in ["user", user, "database", database, ""] {
            body.extend_from_slice(word.as_bytes());
            body.push(0);
        }
        session.send(&[], &body)?;
        session.answer(&format!("a session of {database}"))?;
        Ok(session)
    }

    /// Runs a statement; returns its rows.
    ///
    /// # Errors
    /// When the server refuses it, with the server's message, or does not answer in time.
    pub fn rows(&mut self, statement: &str) -> Result<Vec<Row>, LabError> {
        let mut body = statement.as_bytes().to_vec();
        body.push(0);
        self.send(b"Q", &body)?;
        self.answer(statement)
    }

    fn send(&mut self, kind: &[u8], body: &[u8]) -> Result<(), LabError> {
        let length = saturating::<_, u32>(body.len() + 4);
        let message = [kind, &length.to_be_bytes(), body].concat();
        self.stream.write_all(&message).map_err(LabError::io("cannot write to", "PostgreSQL"))
    }

    /// Reads messages until the server is ready for the next statement.
    fn answer(&mut self, asked: &str) -> Result<Vec<Row>, LabError> {
        let mut rows = Vec::new();
        let mut refused = None;
        loop {
            let (kind, body) = self.message(asked)?;
            match kind {
                b'Z' => return refused.map_or(Ok(rows), Err),
                b'D' => rows.push(row(&body).ok_or_else(|| odd("a row that is cut short"))?),
                b'E' => refused = Some(refusal(asked, &body)),
                // 0 means that no password is required.
                b'R' if body[..] != [0; 4] => return Err(odd("it wants a password")),
                _ => {}
            }
            // After refusing a session, the server closes it.
            if kind == b'E' && body.starts_with(b"SFATAL") {
                return refused.map_or(Ok(rows), Err);
            }
        }
    }

    fn message(&mut self, asked: &str) -> Result<(u8, Vec<u8>), LabError> {
        let mut head = [0; 5];
        self.fill(&mut head, asked)?;
        let [kind, length @ ..] = head;
        let length = saturating::<_, usize>(u32::from_be_bytes(length));
        let bytes = length.checked_sub(4).filter(|bytes| *bytes <= MESSAGE_MAX);
        let mut body = vec![0; bytes.ok_or_else(|| odd("a message without a length"))?];
        self.fill(&mut body, asked)?;
        Ok((kind, body))
    }

    /// Fills `buffer`, in at most [`STATEMENT_MAX`], unless the process is asked to stop before.
    fn fill(&mut self, mut buffer: &mut [u8], asked: &str) -> Result<(), LabError> {
        let deadline = clock::now() + STATEMENT_MAX;
        while !buffer.is_empty() {
            match self.stream.read(buffer) {
                Ok(0) => return Err(odd("it has ended the session")),
                Ok(count) => buffer = &mut buffer[count..],
                Err(error) if is_early(&error) => {
                    cancel::go_on()?;
                    if clock::now() > deadline {
                        return Err(LabError::Deadline {
                            what: asked.to_owned(),
                            after: STATEMENT_MAX,
                        });
                    }
                }
                Err(error) => return Err(LabError::io("cannot read from", "PostgreSQL")(error)),
            }
        }
        Ok(())
    }
}

fn is_early(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

fn odd(what: &str) -> LabError {
    LabError::BadOutput { tool: "PostgreSQL", what: what.to_owned() }
}

/// Parses the columns of a row message; returns `None` if it is cut short.
fn row(body: &[u8]) -> Option<Row> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut row = Row::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        // A null has a length of -1, and no bytes.
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        let (value, after) = after.split_at_checked(length)?;
        row.push(String::from_utf8_lossy(value).into_owned());
        rest = after;
    }
    Some(row)
}

/// Converts the server's error message. It consists of fields, each a letter and a text up to a
/// zero byte; `M` is the reason.
fn refusal(asked: &str, body: &[u8]) -> LabError {
    let fields = body.split(|byte| *byte == 0);
    let why = fields.filter_map(|field| field.strip_prefix(b"M")).next().unwrap_or_default();
    LabError::ToolFailed {
        tool: "PostgreSQL".to_owned(),
        how: "a statement was refused".to_owned(),
        said: String::from_utf8_lossy(why).into_owned(),
        command: asked.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[kind][..], &length.to_be_bytes(), body].concat()
    }

    /// Runs a statement on a server that answers the start of a session and then this statement.
    fn answers(second: Vec<u8>) -> Result<Vec<Row>, LabError> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 1_024];
            let first = stream.read(&mut asked).unwrap();
            assert!(asked[..first].ends_with(b"user\0u\0database\0d\0\0"));
            let ready = message(b'Z', b"I");
            stream.write_all(&[message(b'R', &[0; 4]), ready].concat()).unwrap();
            let count = stream.read(&mut asked).unwrap();
            assert_eq!(asked[..count], message(b'Q', b"SELECT 1\0"));
            stream.write_all(&second).unwrap();
        });
        let rows = Session::open(&socket, "u", "d").unwrap().rows("SELECT 1");
        served.join().unwrap();
        rows
    }

    #[test]
    fn rows_come_as_text_and_refusals_in_the_server_s_words() {
        let body = [&[0, 2][..], &[0, 0, 0, 2], b"42", &[0xff; 4]].concat();
        let ready = message(b'Z', b"I");
        let rows = answers([message(b'D', &body), ready.clone()].concat()).unwrap();
        assert_eq!(rows, [["42", ""]]);
        let refused = [message(b'E', b"SERROR\0Mno such table\0\0"), ready.clone()].concat();
        let text = answers(refused).unwrap_err().to_string();
        assert!(text.contains("no such table") && text.contains("SELECT 1"), "{text}");
        let short = [message(b'D', &body[..7]), ready].concat();
        assert!(answers(short).unwrap_err().to_string().contains("cut short"));
    }

    #[test]
    fn a_server_that_goes_and_one_that_talks_nonsense_are_errors() {
        assert!(answers(Vec::new()).unwrap_err().to_string().contains("ended the session"));
        let text = answers(vec![b'D', 0xff, 0xff, 0xff, 0xff]).unwrap_err().to_string();
        assert!(text.contains("without a length"), "{text}");
        let text = answers(message(b'E', b"SFATAL\0Mgoing down\0\0")).unwrap_err().to_string();
        assert!(text.contains("going down"), "{text}");
    }
}
