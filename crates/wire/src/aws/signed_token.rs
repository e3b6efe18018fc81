//! Texts with a keyed signature: they can be read without the secret, but not created.

use alloc::string::String;
use alloc::vec::Vec;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Bytes of the proof behind the content.
const PROOF_BYTES: usize = 16;

/// Seals some bytes; `purpose` keeps texts of one use from being taken for those of another.
#[must_use]
pub fn seal(secret: &str, purpose: &str, content: &[u8]) -> String {
    let mut bytes = content.to_vec();
    bytes.extend(proof(secret, purpose, content));
    STANDARD.encode(bytes)
}

/// The bytes in a sealed text; `None` if it was not sealed with this secret for this purpose.
#[must_use]
pub fn open(secret: &str, purpose: &str, text: &str) -> Option<Vec<u8>> {
    let mut bytes = STANDARD.decode(text).ok()?;
    let offset = bytes.len().checked_sub(PROOF_BYTES)?;
    let proof_found = bytes.split_off(offset);
    // The comparison takes constant time.
    bool::from(proof(secret, purpose, &bytes).ct_eq(proof_found.as_slice())).then_some(bytes)
}

fn proof(secret: &str, purpose: &str, content: &[u8]) -> [u8; PROOF_BYTES] {
    let mut short = [0; PROOF_BYTES];
    // A key of any length is one.
    if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) {
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        mac.update(content);
        short.copy_from_slice(&mac.finalize().into_bytes()[..PROOF_BYTES]);
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_token_opens_with_its_secret_and_purpose_only() {
        let text = seal("secret", "block", b"content");
        assert_eq!(open("secret", "block", &text).as_deref(), Some(&b"content"[..]));
        assert_eq!(open("secreT", "block", &text), None);
        assert_eq!(open("secret", "page", &text), None);
        let mut bytes = STANDARD.decode(&text).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(open("secret", "block", &STANDARD.encode(&bytes)), None, "byte {at}");
            bytes[at] ^= 1;
        }
        for wrong in ["", "AAAA", "%", &text[1..]] {
            assert_eq!(open("secret", "block", wrong), None, "{wrong}");
        }
    }
}
