//! The bytes of an API connection, within TLS or not.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_tls::server::ServerTls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// First byte of a client that starts TLS: a record of a handshake.
const TLS_HANDSHAKE: u8 = 0x16;
/// Maximum time for a client without TLS to read why it is refused.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
/// Bytes of such a client that are read before the connection is closed.
const REFUSED_BYTES_MAX: usize = 64 << 10;
/// The answer to a client that speaks HTTP where TLS is needed.
const NEEDS_TLS: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
                         content-length: 55\r\nconnection: close\r\n\r\n\
                         This address speaks TLS: send the request to https://.\n";

/// A connection, without TLS or within it.
pub type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Returns the connection of a client that was accepted, after the TLS handshake if there is TLS.
/// The caller limits the time.
///
/// # Errors
/// The client starts no TLS, or refuses the server's certificate.
pub async fn accept_stream(tcp: TcpStream, tls: Option<&Arc<ServerTls>>) -> io::Result<Stream> {
    let Some(tls) = tls else { return Ok(Stream::Left(tcp)) };
    let mut first = [0];
    if tcp.peek(&mut first).await? == 1 && first[0] != TLS_HANDSHAKE {
        refuse(tcp).await;
        return Err(io::Error::other("the client speaks without TLS"));
    }
    let accepted = TlsAcceptor::from(tls.api()).accept(tcp).await?;
    Ok(Stream::Right(Box::new(accepted)))
}

/// Answers a client without TLS. If unread bytes were left, it would get a reset instead.
async fn refuse(mut tcp: TcpStream) {
    let answered = async {
        tcp.write_all(NEEDS_TLS.as_bytes()).await?;
        tcp.shutdown().await?;
        let mut rest = tcp.take(REFUSED_BYTES_MAX as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    // The connection is closed in any case.
    let _ = timeout(REFUSAL_MAX, answered).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_without_tls_is_as_long_as_it_says() {
        let (head, body) = NEEDS_TLS.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }
}
