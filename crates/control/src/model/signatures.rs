//! Signatures of changes that were made ahead of the server's clock.
//!
//! A server refuses changes that were signed before it started, because an earlier server may have
//! executed them. That does not cover a client whose clock is ahead: its signature for a later
//! second may be used before the start as well. So such signatures are stored in the journal before
//! the change is executed, and every later server knows them. They are stored as client tokens,
//! which a journal accepts once, under names that are too long for a token of a client.

use super::{Event, Model, Refusal, Token, UnixMs};
use evenkeel_core::ids::VolumeId;

/// The first part of their names. The rest is the second of signing in twelve digits, which puts
/// them in order, and the signature.
const PREFIX: &str = "signature/";
/// Number of digits of a second in a name.
const SECOND_DIGITS: usize = 12;
/// Maximum number that is stored at once, each for some minutes.
const KEPT_MAX: usize = 4_096;
/// Maximum number that is removed with one change.
const DROPPED_MAX: usize = 256;
/// Time for which a signature is stored after its second, in seconds: the clocks of two servers of
/// a cluster may differ by this much.
const AFTER_S: u64 = 300;

/// A signature that was used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsedSignature {
    /// The second of signing, in Unix time.
    pub signed_at_unix_s: u64,
    /// The last second in which it is valid, in Unix time.
    pub good_until_unix_s: u64,
    /// Its 64 hexadecimal digits.
    pub signature: String,
}

impl UsedSignature {
    fn name(&self) -> String {
        let Self { signed_at_unix_s, signature, .. } = self;
        format!("{PREFIX}{signed_at_unix_s:0SECOND_DIGITS$}/{signature}")
    }

    fn of(name: &str, token: &Token) -> Option<Self> {
        let (second, signature) = name.strip_prefix(PREFIX)?.split_once('/')?;
        Some(Self {
            signed_at_unix_s: second.parse().ok()?,
            good_until_unix_s: token.fingerprint.parse().ok()?,
            signature: signature.to_owned(),
        })
    }
}

impl Model {
    /// Returns the stored signatures, in the order in which they were signed.
    pub fn used_signatures(&self) -> impl Iterator<Item = UsedSignature> {
        self.signature_tokens().filter_map(|(name, token)| UsedSignature::of(name, token))
    }

    /// Returns the tokens that store signatures, without a parse of each: every change counts them.
    fn signature_tokens(&self) -> impl Iterator<Item = (&String, &Token)> {
        let all = self.tokens.range(PREFIX.to_owned()..);
        all.take_while(|(name, _)| name.starts_with(PREFIX))
    }

    /// Returns the events that store a signature; none if it is stored already.
    ///
    /// # Errors
    /// [`Refusal::TooManySignatures`].
    pub fn keep_signature(&self, used: &UsedSignature, now: UnixMs) -> Result<Vec<Event>, Refusal> {
        let name = used.name();
        if self.tokens.contains_key(&name) {
            return Ok(Vec::new());
        }
        let now_s = now.0 / 1_000;
        let is_over = |used: &UsedSignature| used.signed_at_unix_s + AFTER_S < now_s;
        let over: Vec<Event> = self
            .used_signatures()
            .take_while(is_over)
            .take(DROPPED_MAX)
            .map(|used| Event::TokenGone(used.name()))
            .collect();
        if self.signature_tokens().take(KEPT_MAX).count() - over.len() >= KEPT_MAX {
            return Err(Refusal::TooManySignatures(KEPT_MAX));
        }
        let fingerprint = used.good_until_unix_s.to_string();
        let token = Token { fingerprint, volume: VolumeId::from_bits(0), used: now };
        Ok(over.into_iter().chain([Event::Token(name, token)]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(number: u64, signed_at_unix_s: u64) -> UsedSignature {
        let good_until_unix_s = signed_at_unix_s + 300;
        UsedSignature { signed_at_unix_s, good_until_unix_s, signature: format!("{number:064x}") }
    }

    fn keep(model: &mut Model, used: &UsedSignature, now_s: u64) -> Result<usize, Refusal> {
        let events = model.keep_signature(used, UnixMs(now_s * 1_000))?;
        let count = events.len();
        events.into_iter().for_each(|event| model.apply(event));
        Ok(count)
    }

    #[test]
    fn signatures_are_stored_once_and_dropped_minutes_after_their_second() {
        let mut model = Model::default();
        let one = used(1, 1_700_000_100);
        let two = used(2, 1_700_000_050);
        assert_eq!(keep(&mut model, &one, 1_700_000_000), Ok(1));
        assert_eq!(keep(&mut model, &one, 1_700_000_000), Ok(0));
        assert_eq!(keep(&mut model, &two, 1_700_000_000), Ok(1));
        assert_eq!(model.used_signatures().collect::<Vec<_>>(), [two.clone(), one.clone()]);
        let three = used(3, 1_700_000_500);
        assert_eq!(keep(&mut model, &three, 1_700_000_351), Ok(2));
        assert_eq!(model.used_signatures().collect::<Vec<_>>(), [one, three]);
        // No client can use such a token.
        assert!(two.name().len() > 64);
    }

    #[test]
    fn signatures_are_bounded_and_none_is_dropped_early() {
        let mut model = Model::default();
        for number in 0..KEPT_MAX as u64 {
            let events = Model::default().keep_signature(&used(number, 1_700_000_100), UnixMs(0));
            events.unwrap().into_iter().for_each(|event| model.apply(event));
        }
        let one_more = used(u64::MAX, 1_700_000_100);
        let refused = keep(&mut model, &one_more, 1_700_000_400);
        assert_eq!(refused, Err(Refusal::TooManySignatures(KEPT_MAX)));
        assert_eq!(keep(&mut model, &one_more, 1_700_000_401), Ok(DROPPED_MAX + 1));
    }
}
