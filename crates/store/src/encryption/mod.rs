//! Encryption of volumes, the same in every store: how blocks are encrypted, and how the keys are
//! kept.

pub mod crypt;
pub mod keys;

/// Why an encrypted volume cannot be had without a key.
pub(crate) const NO_KEY: &str = "the server has no key: serve with --key-file or --key-command";
