//! Percent-encoding as SigV4 requires it: all characters but the unreserved ones of RFC 3986.

use alloc::string::String;
use alloc::vec::Vec;

const UPPER_HEX: [char; 16] =
    ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Appends `bytes` to `out`, encoded.
pub(super) fn encode_into(out: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        if is_unreserved(byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(UPPER_HEX[usize::from(byte >> 4)]);
            out.push(UPPER_HEX[usize::from(byte & 15)]);
        }
    }
}

/// The encoded form of `text`.
pub(super) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    encode_into(&mut out, text.as_bytes());
    out
}

/// Decodes `%XX`, and `+` as a space. The error is the offset of the malformed escape.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut offset = 0;
    while let Some(&byte) = bytes.get(offset) {
        if byte != b'%' {
            out.push(if byte == b'+' { b' ' } else { byte });
            offset += 1;
            continue;
        }
        let digit = |at: usize| bytes.get(at).copied().and_then(hex_digit).ok_or(offset);
        out.push(digit(offset + 1)? << 4 | digit(offset + 2)?);
        offset += 3;
    }
    Ok(out)
}

const fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn broken_escapes_name_their_offset() {
        assert_eq!(decode(b"a%2"), Err(1));
        assert_eq!(decode(b"ab%zz"), Err(2));
        assert_eq!(decode(b"%"), Err(0));
        assert_eq!(decode(b"a+b%2B%2b"), Ok(b"a b++".to_vec()));
    }

    proptest! {
        #[test]
        fn encoded_bytes_decode_to_themselves(bytes: Vec<u8>) {
            let mut text = String::new();
            encode_into(&mut text, &bytes);
            prop_assert!(text.bytes().all(|b| is_unreserved(b) || b == b'%'));
            prop_assert_eq!(decode(text.as_bytes()), Ok(bytes));
        }

        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
