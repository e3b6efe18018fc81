//! Encryption of volumes, the same for every store: the cipher of blocks, and the storage of keys.

pub mod crypt;
pub mod keys;

/// Reason for which an encrypted volume cannot be used without a key.
pub(crate) const NO_KEY: &str = "the server has no key: serve with --key-file or --key-command";
