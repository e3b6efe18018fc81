//! The bytes of a client, over TCP or from a listener that has ended its TLS.

use crate::upstream::is_ended;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// See the module's text.
#[derive(Debug)]
pub(crate) enum ClientStream {
    /// The client's own socket.
    Tcp(TcpStream),
    /// Plain bytes of a client over TLS.
    Tls {
        /// The bytes.
        plain: UnixStream,
        /// The client's own socket. Its end shows here before the last bytes have passed TLS.
        socket: OwnedFd,
    },
}

impl ClientStream {
    /// Returns whether the client has ended the connection, even if unread bytes are left.
    pub fn has_ended(&self) -> bool {
        match self {
            Self::Tcp(stream) => is_ended(stream),
            Self::Tls { plain, socket } => is_ended(socket) || is_ended(plain),
        }
    }

    /// Returns whether the data plane can read from the client's own socket.
    pub const fn is_plain(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls { plain, .. } => Pin::new(plain).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls { plain, .. } => Pin::new(plain).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls { plain, .. } => Pin::new(plain).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls { plain, .. } => Pin::new(plain).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls { plain, .. } => Pin::new(plain).poll_shutdown(cx),
        }
    }
}
