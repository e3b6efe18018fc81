//! The bytes of a client, over TCP or from a listener that has ended its TLS.

use crate::upstream::is_ended;
use std::os::fd::OwnedFd;
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct ClientStream {
    /// The client's own socket, or plain bytes of a client over TLS.
    pub bytes: Either<TcpStream, UnixStream>,
    /// The client's own socket, if it speaks TLS. Its end shows here before the last bytes have
    /// passed TLS.
    outer: Option<OwnedFd>,
}

impl ClientStream {
    /// Returns the bytes of a client without TLS.
    pub const fn tcp(stream: TcpStream) -> Self {
        Self { bytes: Either::Left(stream), outer: None }
    }

    /// Returns the plain bytes of a client over TLS, which has this socket.
    pub const fn tls(plain: UnixStream, socket: OwnedFd) -> Self {
        Self { bytes: Either::Right(plain), outer: Some(socket) }
    }

    /// Returns whether the client has ended the connection, even if unread bytes are left.
    pub fn has_ended(&self) -> bool {
        let has_ended = match &self.bytes {
            Either::Left(stream) => is_ended(stream),
            Either::Right(plain) => is_ended(plain),
        };
        has_ended || self.outer.as_ref().is_some_and(is_ended)
    }

    /// Returns whether the data plane can read from the client's own socket.
    pub const fn is_plain(&self) -> bool {
        matches!(self.bytes, Either::Left(_))
    }
}
