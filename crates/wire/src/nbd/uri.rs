//! Addresses of exports, as fio, qemu and libnbd take them.
//!
//! The form is that of <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>.

use alloc::format;
use alloc::string::String;

/// Returns the address of an export behind a unix socket. The socket's path should be absolute.
#[must_use]
pub fn unix(socket: &str, export: &str) -> String {
    format!("nbd+unix:///{}?socket={}", escape(export), escape(socket))
}

/// Returns the address of an export behind a TCP port; `address` is `HOST:PORT`.
#[must_use]
pub fn tcp(address: &str, export: &str) -> String {
    format!("nbd://{address}/{}", escape(export))
}

/// Percent-encodes characters with a meaning in a URI, so that any path and any export name can be
/// used.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_escaped() {
        let socket = unix("/tmp/a b/s?1", "vol-0a");
        assert_eq!(socket, "nbd+unix:///vol-0a?socket=/tmp/a%20b/s%3F1");
        assert_eq!(tcp("127.0.0.1:10809", "vol-0a"), "nbd://127.0.0.1:10809/vol-0a");
        assert_eq!(tcp("[::1]:10809", ""), "nbd://[::1]:10809/");
    }
}
