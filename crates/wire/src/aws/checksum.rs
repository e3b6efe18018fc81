//! Checksums of the EBS direct APIs: SHA-256 of a block, and of the checksums of several blocks in
//! their order (`LINEAR`), in base64.

use alloc::string::String;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

/// A SHA-256.
pub type Digest = [u8; 32];

/// The only algorithm.
pub const ALGORITHM: &str = "SHA256";
/// The only way to aggregate checksums.
pub const METHOD: &str = "LINEAR";

/// The checksum of some bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

/// A checksum in its text form.
#[must_use]
pub fn text(digest: &Digest) -> String {
    STANDARD.encode(digest)
}

/// A checksum from its text form; `None` if it is not 32 bytes in base64.
#[must_use]
pub fn parse(text: &str) -> Option<Digest> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

/// The checksum of checksums: of their bytes, not of their text forms.
#[derive(Clone, Default, Debug)]
pub struct Linear(Sha256);

impl Linear {
    /// Adds the checksum of the next block.
    pub fn add(&mut self, digest: &Digest) {
        self.0.update(digest);
    }

    /// The checksum of those that were added.
    #[must_use]
    pub fn digest(self) -> Digest {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_have_a_text_form_and_only_that() {
        let empty = digest(b"");
        assert_eq!(text(&empty), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert_eq!(parse(&text(&empty)), Some(empty));
        for wrong in ["", "47DEQpj8", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU", "%"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_aggregate_is_over_the_bytes_of_the_checksums() {
        let one = digest(b"1");
        let two = digest(b"2");
        let mut all = Linear::default();
        all.add(&one);
        all.add(&two);
        assert_eq!(all.digest(), digest(&[one, two].concat()));
        assert_eq!(Linear::default().digest(), digest(b""));
    }
}
