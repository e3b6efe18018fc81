//! Protection against replays: the signature of a mutating request is valid once. Pure.
//!
//! An attacker who records a signed request can send it again while the signature is valid. So used
//! signatures are stored until they expire. A signature has a resolution of one second: a client
//! that makes the same change twice in a second produces the same signature, and so does an SDK
//! that lost a reply and retries. Neither can be distinguished from a replay, so the second request
//! is refused as too early. The error code makes every SDK sign again and retry. The refusal is
//! sent only when the client's clock shows another second, so that the retry has a new signature.
//!
//! Signatures that were used before the server's start are unknown, except those that were made
//! ahead of the server's clock, which the journal keeps ([`crate::model::signatures`]). So nothing
//! that was signed until the start can change anything. If the server before was another node,
//! whose clock was ahead of this one's, that holds until the time that it has stored last: see
//! [`began`].
//!
//! A wall clock that is set back makes expired signatures valid again. So the range of the dropped
//! signatures is kept, and refused. The others are still known, so a signature made by the
//! corrected clock is accepted at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::sigv4::{SKEW_MAX_S, Verified};
use evenkeel_wire::aws::timestamp;

use super::error::ApiError;
use crate::model::signatures::UsedSignature;

/// Maximum number of stored signatures, of some 100 bytes each: 870 changes a second for the five
/// minutes in which a signature is valid. At the maximum, changes are refused, and no signature is
/// dropped.
pub const SIGNATURES_MAX: usize = 1 << 18;
/// Maximum number of stored failures, which are returned to clients that repeat a request at once.
const FAILURES_MAX: usize = 1_024;
/// Maximum number of expired signatures that are removed at a time: more than are added, but never
/// all at once.
const FORGOTTEN_MAX: usize = 1_024;
/// Maximum number of ranges of dropped signatures; beyond it, the two oldest are merged.
const RANGES_MAX: usize = 16;
/// Time after which a client's clock shows another second, in milliseconds, whatever the offset
/// between the clocks.
const SECOND_MS: u64 = 1_010;

/// A refused request.
#[derive(Debug)]
pub struct Denied {
    /// The error for the client.
    pub error: ApiError,
    /// Time to wait before sending it: an earlier retry would have the same signature.
    pub wait: Duration,
}

/// The used signatures.
#[derive(Debug, Default)]
pub struct Replays {
    /// Time until which an earlier server may have used signatures; `None` if there was none.
    began: Option<UnixMs>,
    /// The time of use of each signature.
    used: BTreeMap<u128, UnixMs>,
    /// The last second in which each signature is valid.
    ends: BTreeSet<(u64, u128)>,
    /// The first and the last second in which dropped signatures ended, for each time since the
    /// start in which the wall clock was not set back; oldest first.
    dropped: VecDeque<Option<(u64, u64)>>,
    /// The latest time of the wall clock since it was set back.
    latest: UnixMs,
    /// The server's failures within the last second.
    failures: VecDeque<(UnixMs, u128, ApiError)>,
}

/// Returns the time until which an earlier server may have used signatures: the start of this one
/// by its own clock, or the time that the earlier one has stored last, whichever is later.
///
/// A time that is more than [`SKEW_MAX_S`] ahead does not count. Such a clock was wrong, and the
/// server would refuse every change until it has that time itself.
pub fn began(start: UnixMs, stored: Option<UnixMs>) -> UnixMs {
    let latest = start.plus_ms(SKEW_MAX_S * 1_000);
    stored.filter(|stored| *stored <= latest).map_or(start, |stored| stored.max(start))
}

impl Replays {
    /// Creates the signatures of a server's start. Signatures made before the start, or before the
    /// time that an earlier server has `stored`, may have been used: see [`began`]. `known` ones
    /// were used. `start` is `None` if there was no earlier server.
    pub fn new(
        start: Option<UnixMs>,
        stored: Option<UnixMs>,
        known: impl IntoIterator<Item = UsedSignature>,
    ) -> Self {
        let began = start.map(|start| began(start, stored));
        let mut replays = Self { began, latest: start.unwrap_or_default(), ..Self::default() };
        for UsedSignature { good_until_unix_s, signature, .. } in known {
            let key = key(&signature);
            // Long ago, so it is not taken for a client's retry.
            replays.used.insert(key, UnixMs::default());
            replays.ends.insert((good_until_unix_s, key));
        }
        replays
    }

    /// Marks a signature as used.
    ///
    /// # Errors
    /// The signature was used before, or may have been, or too many others are stored.
    pub fn take(&mut self, verified: &Verified, now: UnixMs) -> Result<(), Denied> {
        self.follow(now);
        self.forget(now);
        let key = key(&verified.signature);
        if let Some(first) = self.used.get(&key) {
            return Err(self.repeated(key, *first, now));
        }
        if self.may_be_forgotten(verified) {
            return Err(unknown(verified, self.began, now));
        }
        if self.used.len() >= SIGNATURES_MAX {
            let error = ApiError::throttled(format!(
                "{SIGNATURES_MAX} changes were signed that could still be repeated, which is as \
                 many as are remembered; try again in some minutes"
            ));
            return Err(Denied { error, wait: Duration::ZERO });
        }
        self.used.insert(key, now);
        self.ends.insert((verified.good_until_unix_s, key));
        Ok(())
    }

    /// Records that the server failed to execute the request of a signature. SDKs retry by
    /// themselves, within the same second with the same signature. They must get the failure again,
    /// not the error of a replay.
    pub fn failed(&mut self, verified: &Verified, error: &ApiError, now: UnixMs) {
        let is_old = |(at, ..): &mut (UnixMs, _, _)| now.ms_since(*at) > SECOND_MS;
        while self.failures.pop_front_if(is_old).is_some() {}
        if self.failures.len() < FAILURES_MAX {
            self.failures.push_back((now, key(&verified.signature), error.clone()));
        }
    }

    fn repeated(&self, key: u128, first: UnixMs, now: UnixMs) -> Denied {
        let since_ms = now.ms_since(first);
        let failure = self.failures.iter().find(|(_, failed, _)| *failed == key);
        if let Some((.., error)) = failure.filter(|_| since_ms <= SECOND_MS) {
            return Denied { error: error.clone(), wait: Duration::ZERO };
        }
        let error = ApiError::throttled(
            "This signature was used before, and one of a request that changes something is good \
             for one use; sign the request again in a later second",
        );
        Denied { error, wait: Duration::from_millis(SECOND_MS.saturating_sub(since_ms)) }
    }

    fn may_be_forgotten(&self, verified: &Verified) -> bool {
        let is_older = |began: UnixMs| verified.signed_at_unix_s.saturating_mul(1_000) <= began.0;
        let end_s = verified.good_until_unix_s;
        // The latter happens only if the clock was set back.
        let was_dropped = |range: &(u64, u64)| (range.0..=range.1).contains(&end_s);
        self.began.is_some_and(is_older) || self.dropped.iter().flatten().any(was_dropped)
    }

    /// Begins a new range if the wall clock was set back.
    fn follow(&mut self, now: UnixMs) {
        // Requests of the same moment may arrive in another order.
        if now.plus_ms(SECOND_MS) >= self.latest {
            self.latest = self.latest.max(now);
            return;
        }
        // Otherwise no change would be accepted until the clock has reached that time again.
        self.began = self.began.map(|began| began.min(now));
        self.dropped.push_back(None);
        if self.dropped.len() > RANGES_MAX {
            let merged = [self.dropped.pop_front(), self.dropped.pop_front()];
            let merged = merged.into_iter().flatten().flatten();
            let merged = merged.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
            self.dropped.push_front(merged);
        }
        self.latest = now;
    }

    fn forget(&mut self, now: UnixMs) {
        let now_s = now.0 / 1_000;
        for _ in 0..FORGOTTEN_MAX {
            match self.ends.first() {
                Some((end_s, _)) if *end_s < now_s => {}
                _ => break,
            }
            if let Some((end_s, key)) = self.ends.pop_first() {
                self.used.remove(&key);
                self.drop_until(end_s);
            }
        }
    }

    fn drop_until(&mut self, end_s: u64) {
        if self.dropped.is_empty() {
            self.dropped.push_back(None);
        }
        if let Some(range) = self.dropped.back_mut() {
            let (first, last) = range.unwrap_or((end_s, end_s));
            *range = Some((first.min(end_s), last.max(end_s)));
        }
    }
}

fn unknown(verified: &Verified, began: Option<UnixMs>, now: UnixMs) -> Denied {
    let signed = timestamp::basic(verified.signed_at_unix_s);
    let error = ApiError::throttled(format!(
        "Signed at {signed}, and the server does not know which signatures were used until then: \
         it was started or its clock was set back since, it is {} now; sign the request again, \
         and compare the clocks of client and server if that does not help",
        timestamp::basic(now.0 / 1_000)
    ));
    let since_ms = began.map_or(SECOND_MS, |began| now.ms_since(began));
    Denied { error, wait: Duration::from_millis(SECOND_MS.saturating_sub(since_ms)) }
}

/// Returns the signature as a later server must store it; `None` if that server can tell by the
/// time of signing that it may have been used.
pub fn ahead(verified: &Verified, now: UnixMs) -> Option<UsedSignature> {
    let Verified { signed_at_unix_s, good_until_unix_s, ref signature, .. } = *verified;
    let is_ahead = signed_at_unix_s.saturating_mul(1_000) > now.0;
    let signature = signature.clone();
    is_ahead.then_some(UsedSignature { signed_at_unix_s, good_until_unix_s, signature })
}

/// Returns half of a signature. Two signatures with equal halves cannot be made without the secret.
fn key(signature: &str) -> u128 {
    let half = signature.get(..32).unwrap_or_default();
    // A verified signature is hexadecimal.
    u128::from_str_radix(half, 16).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_700_000_000;

    fn signed(number: u128, at_s: u64) -> Verified {
        Verified {
            access_key_id: "EVKL".into(),
            presigned: false,
            signed_at_unix_s: at_s,
            good_until_unix_s: at_s + SKEW_MAX_S,
            signature: format!("{number:032x}{:032x}", 0),
        }
    }

    fn at(ms: u64) -> UnixMs {
        UnixMs(SECOND * 1_000 + ms)
    }

    #[track_caller]
    fn refused(result: Result<(), Denied>) -> (u16, &'static str, u64) {
        let Denied { error, wait } = result.unwrap_err();
        (error.status, error.code, wait.as_millis() as u64)
    }

    #[test]
    fn a_signature_is_good_for_one_use_for_as_long_as_it_is_good() {
        let mut replays = Replays::new(None, None, []);
        let one = signed(1, SECOND);
        replays.take(&one, at(300)).unwrap();
        replays.take(&signed(2, SECOND), at(300)).unwrap();
        // Until the clock of a client that signed on arrival shows another second.
        assert_eq!(refused(replays.take(&one, at(400))), (503, "RequestLimitExceeded", 910));
        for later in [1_310, 60_000, SKEW_MAX_S * 1_000] {
            assert_eq!(refused(replays.take(&one, at(later))).2, 0);
        }
        assert_eq!(replays.used.len(), 2);
        replays.take(&signed(3, SECOND + 301), at((SKEW_MAX_S + 1) * 1_000)).unwrap();
        assert_eq!((replays.used.len(), replays.ends.len()), (1, 1), "what has ended is forgotten");
        // The clock is set back: the signature would be valid again, and its use is forgotten.
        let (_, code, _) = refused(replays.take(&one, at(500)));
        assert_eq!(code, "RequestLimitExceeded");
    }

    #[test]
    fn signature_from_before_the_start_is_refused() {
        let mut replays = Replays::new(Some(at(250)), None, []);
        for early in [signed(1, SECOND - 200), signed(2, SECOND)] {
            assert_eq!(refused(replays.take(&early, at(260))).2, 1_000);
            assert_eq!(refused(replays.take(&early, at(9_000))).2, 0);
        }
        replays.take(&signed(3, SECOND + 1), at(1_000)).unwrap();
    }

    #[test]
    fn signature_possibly_used_on_a_node_with_a_clock_ahead_is_refused() {
        // The clock is two minutes behind that of the node that led before.
        let start = at(0);
        let stored = at(120_000);
        let mut replays = Replays::new(Some(start), Some(stored), []);
        for now in [at(500), at(125_000)] {
            for second in [0, 1, 60, 120] {
                let used = signed(u128::from(second), SECOND + second);
                assert_eq!(refused(replays.take(&used, now)).0, 503, "{second}");
            }
        }
        replays.take(&signed(200, SECOND + 121), at(125_000)).unwrap();
        // A node whose clock is right, or ahead, refuses only signatures made before its start.
        let mut replays = Replays::new(Some(stored), Some(start), []);
        assert!(replays.take(&signed(1, SECOND + 120), at(121_000)).is_err());
        replays.take(&signed(2, SECOND + 121), at(121_000)).unwrap();
    }

    #[test]
    fn a_start_after_the_clock_was_corrected_back_accepts_changes() {
        let month = at(30 * 86_400_000);
        let mut replays = Replays::new(Some(at(0)), Some(month), []);
        assert!(replays.take(&signed(1, SECOND), at(1_000)).is_err());
        replays.take(&signed(2, SECOND + 1), at(1_000)).unwrap();
        let bound = at(SKEW_MAX_S * 1_000);
        assert_eq!(began(at(0), Some(bound)), bound);
        assert_eq!(began(at(0), Some(bound.plus_ms(1))), at(0));
        assert_eq!(began(at(7), None), at(7));
    }

    #[test]
    fn a_clock_that_is_corrected_back_lets_new_signatures_change_something_at_once() {
        const AHEAD_S: u64 = 30 * 86_400;
        let ahead = at(AHEAD_S * 1_000);
        // The server has started with the wrong clock, and was used for ten minutes.
        let mut replays = Replays::new(Some(ahead), None, []);
        for second in [1, 600] {
            let signed = signed(u128::from(second), SECOND + AHEAD_S + second);
            replays.take(&signed, ahead.plus_ms(second * 1_000)).unwrap();
        }
        let corrected = at(601_000);
        replays.take(&signed(3, SECOND + 602), corrected).unwrap();
        // Signatures made until then may have been used before the start.
        assert!(replays.take(&signed(4, SECOND + 601), corrected).is_err());
        // Signatures that were used while the clock was wrong stay used when their time comes.
        for second in [1, 600] {
            let again = signed(u128::from(second), SECOND + AHEAD_S + second);
            assert!(replays.take(&again, ahead.plus_ms(second * 1_000)).is_err(), "{second}");
        }
        replays.take(&signed(5, SECOND + AHEAD_S + 2), ahead.plus_ms(3_000)).unwrap();
    }

    #[test]
    fn ranges_of_dropped_signatures_are_bounded_and_none_is_lost() {
        let mut replays = Replays::new(None, None, []);
        let hours: Vec<u64> = (0..40).rev().collect();
        let first = |hour: u64| (signed(hour.into(), SECOND + hour * 3_600), hour * 3_600_000);
        for hour in hours {
            let (signed_then, ms) = first(hour);
            replays.take(&signed_then, at(ms)).unwrap();
            replays.forget(at(ms + 400_000));
        }
        assert_eq!(replays.dropped.len(), RANGES_MAX);
        for hour in 0..40 {
            let (signed_then, ms) = first(hour);
            assert!(replays.take(&signed_then, at(ms)).is_err(), "{hour}");
        }
    }

    #[test]
    fn a_signature_ahead_of_the_clock_is_known_to_the_next_server() {
        let early = signed(1, SECOND + 200);
        assert_eq!(ahead(&early, at(200_000)), None);
        let known = ahead(&early, at(199_999)).unwrap();
        let mut replays = Replays::new(Some(at(5_000)), None, [known]);
        for now in [5_000, 200_000, (200 + SKEW_MAX_S) * 1_000] {
            assert_eq!(refused(replays.take(&early, at(now))), (503, "RequestLimitExceeded", 0));
        }
        replays.take(&signed(2, SECOND + 200), at(5_000)).unwrap();
    }

    #[test]
    fn full_list_of_signatures_refuses_new_ones_and_forgets_none() {
        let mut replays = Replays::new(None, None, []);
        for number in 0..SIGNATURES_MAX as u128 {
            replays.take(&signed(number, SECOND), at(0)).unwrap();
        }
        let next = signed(u128::MAX, SECOND + 1);
        let Denied { error, .. } = replays.take(&next, at(1_000)).unwrap_err();
        assert!(error.message.starts_with("262144 changes were signed"), "{error:?}");
        assert!(replays.take(&signed(0, SECOND), at(1_000)).is_err());
        // They are removed gradually, and none becomes valid again in the meantime.
        let later = signed(u128::MAX, SECOND + SKEW_MAX_S + 1);
        replays.take(&later, at((SKEW_MAX_S + 1) * 1_000)).unwrap();
        assert_eq!(replays.used.len(), SIGNATURES_MAX - FORGOTTEN_MAX + 1);
    }

    #[test]
    fn server_failure_is_returned_again_within_the_second() {
        let mut replays = Replays::new(None, None, []);
        let one = signed(1, SECOND);
        replays.take(&one, at(0)).unwrap();
        replays.failed(&one, &ApiError::no_capacity("too little"), at(20));
        let answer = refused(replays.take(&one, at(40)));
        assert_eq!(answer, (500, "InsufficientVolumeCapacity", 0));
        assert_eq!(refused(replays.take(&one, at(1_011))).1, "RequestLimitExceeded");
        for number in 2..FAILURES_MAX as u128 + 10 {
            replays.failed(&signed(number, SECOND), &ApiError::internal("x"), at(30));
        }
        assert_eq!(replays.failures.len(), FAILURES_MAX);
        replays.failed(&one, &ApiError::no_capacity("too little"), at(2_000));
        assert_eq!(replays.failures.len(), 1);
    }
}
