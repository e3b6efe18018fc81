//! Reading etcd's watch, in spans of a few seconds.
//!
//! Each span begins with a read that needs a majority, so a member that is cut off from the others
//! is left for another one.

use std::io::{BufRead, Read as _};
use std::time::Duration;

use super::client::{Client, LINE_BYTES_MAX};
use super::gateway::{self, RangeAnswer, Streamed, WatchAnswer};

/// Time for which one stream is read.
const SPAN: Duration = Duration::from_secs(5);
/// Maximum time that etcd may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum of bytes of an unreadable message that the error shows.
const TOLD_BYTES: usize = 300;

/// Why a span ended early.
pub enum Ended<E> {
    /// The member cannot be used now; the text has the reason.
    Failed(String),
    /// The function that takes the messages has returned this error.
    Stopped(E),
}

/// Reads the events of keys below a prefix from a revision on, until the span or the stream ends.
/// Returns whether there was a message.
///
/// # Errors
/// See [`Ended`].
pub fn span<E>(
    client: &Client,
    prefix: &[u8],
    from: u64,
    mut take: impl FnMut(&WatchAnswer) -> Result<(), E>,
) -> Result<bool, Ended<E>> {
    let failed = |error: &dyn std::fmt::Display| Ended::Failed(error.to_string());
    let any = client.call::<RangeAnswer>("kv/range", &gateway::get(prefix), PATIENCE);
    any.map_err(|error| failed(&error))?;
    let request = gateway::watch(prefix, from);
    let stream = client.stream("watch", &request, SPAN, PATIENCE);
    let mut stream = stream.map_err(|error| failed(&error))?;
    let mut has_begun = false;
    loop {
        let mut line = Vec::new();
        let read = (&mut stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if !read.is_ok_and(|bytes| bytes > 0) || line.last() != Some(&b'\n') {
            return Ok(has_begun);
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let Ok(Streamed { result: Some(answer), .. }) =
            serde_json::from_slice::<Streamed<WatchAnswer>>(&line)
        else {
            let line = String::from_utf8_lossy(&line[..line.len().min(TOLD_BYTES)]).into_owned();
            return Err(Ended::Failed(format!("its watch says something unexpected: {line}")));
        };
        has_begun = true;
        take(&answer).map_err(Ended::Stopped)?;
    }
}
