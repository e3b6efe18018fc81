//! The flags of `evenkeel audit`.

use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct AuditArgs {
    #[command(subcommand)]
    pub verb: AuditVerb,
}

#[derive(Subcommand, Debug)]
pub enum AuditVerb {
    /// Check that no line of the audit was changed, removed or put elsewhere.
    ///
    /// Reads the files of a data folder, also while its server runs. Lines that were cut off at the
    /// end are not found by this alone: keep the printed hash elsewhere, and give it to --expect
    /// later.
    Verify(AuditVerify),
}

#[derive(Args, Debug)]
pub struct AuditVerify {
    /// Data folder of the server.
    #[arg(long, env = "EVENKEEL_DATA_DIR", default_value = "./evenkeel-data", value_name = "DIR")]
    #[arg(value_hint = ValueHint::DirPath)]
    pub data_dir: PathBuf,

    /// The hash that an earlier check has printed; a line must have it.
    #[arg(long, value_name = "HASH", value_parser = hash)]
    pub expect: Option<String>,
}

/// Number of hexadecimal digits of a hash.
const HASH_DIGITS: usize = 64;

/// Reads a hash of a line.
fn hash(text: &str) -> Result<String, String> {
    let is_hash = text.len() == HASH_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_hash {
        return Ok(text.to_ascii_lowercase());
    }
    Err(format!(
        "a hash has {HASH_DIGITS} hexadecimal digits, as `evenkeel audit verify` prints it in its \
         last line"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_has_64_hexadecimal_digits() {
        assert_eq!(hash(&"A7".repeat(32)), Ok("a7".repeat(32)));
        for text in ["abc", "", &"g".repeat(64), &"7".repeat(63), &"7".repeat(65)] {
            assert!(hash(text).unwrap_err().contains("64 hexadecimal digits"), "{text}");
        }
    }
}
