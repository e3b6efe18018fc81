//! Tokens of blocks and of pages: their content and the time until which they are valid, sealed
//! with the server's secret. They survive a restart of the server.

use evenkeel_core::ids::SnapshotId;
use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::signed_token;

use super::DirectError;
use crate::api::Api;

/// Time for which a block's token is valid, in milliseconds: a week.
pub const BLOCK_LIFETIME_MS: u64 = 7 * 24 * 3_600_000;
/// Time for which a page's token is valid, in milliseconds: an hour.
const PAGE_LIFETIME_MS: u64 = 3_600_000;

/// Purposes of tokens.
const BLOCK: &str = "evenkeel-ebs-block";
const PAGE: &str = "evenkeel-ebs-page";

/// The list to which a page belongs: the snapshot, and the one that it is compared with.
type Of = (SnapshotId, Option<SnapshotId>);

impl Api {
    fn secret(&self) -> &str {
        &self.credentials.secret_access_key
    }

    /// Returns the token of a block, valid until this time.
    pub(super) fn block_token(&self, id: SnapshotId, block: u64, until: UnixMs) -> String {
        signed_token::seal(self.secret(), BLOCK, &content((id, None), block, until))
    }

    pub(super) fn check_block(
        &self,
        token: &str,
        id: SnapshotId,
        block: u64,
    ) -> Result<(), DirectError> {
        let invalid = |text: String| DirectError::invalid("INVALID_BLOCK_TOKEN", text);
        let opened = signed_token::open(self.secret(), BLOCK, token);
        match opened.as_deref().and_then(read) {
            Some((of, found, until)) if of == (id, None) && found == block => {
                if until >= self.plane().clock().unix_ms() {
                    Ok(())
                } else {
                    Err(invalid("the blockToken is expired; list the blocks anew".into()))
                }
            }
            _ => Err(invalid(format!("the blockToken is not that of block {block} of {id}"))),
        }
    }

    pub(super) fn page_token(&self, of: Of, next: u64, now: UnixMs) -> String {
        signed_token::seal(self.secret(), PAGE, &content(of, next, now.plus_ms(PAGE_LIFETIME_MS)))
    }

    pub(super) fn page_of(&self, token: &str, of: Of) -> Result<u64, DirectError> {
        let invalid = |text: &str| DirectError::invalid("INVALID_PAGE_TOKEN", text);
        let opened = signed_token::open(self.secret(), PAGE, token);
        match opened.as_deref().and_then(read) {
            Some((found, next, until)) if found == of => {
                if until >= self.plane().clock().unix_ms() {
                    Ok(next)
                } else {
                    Err(invalid("the pageToken is expired; begin the list anew"))
                }
            }
            _ => Err(invalid("the pageToken is not of this list; begin the list anew")),
        }
    }
}

fn content((id, other): Of, number: u64, until: UnixMs) -> Vec<u8> {
    let mut bytes = id.bits().to_le_bytes().to_vec();
    // No id has all of these bits.
    bytes.extend(other.map_or(u128::MAX, SnapshotId::bits).to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(until.0.to_le_bytes());
    bytes
}

fn read(bytes: &[u8]) -> Option<(Of, u64, UnixMs)> {
    let (id, rest) = bytes.split_first_chunk()?;
    let (other, rest) = rest.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let until = u64::from_le_bytes(rest.try_into().ok()?);
    let id = SnapshotId::from_bits(u128::from_le_bytes(*id));
    let other = match u128::from_le_bytes(*other) {
        u128::MAX => None,
        bits => Some(SnapshotId::from_bits(bits)),
    };
    Some(((id, other), u64::from_le_bytes(*number), UnixMs(until)))
}
