//! Agent messages over random values: each is decoded from its bytes; arbitrary and damaged bytes
//! are refused without a panic, and accepted bytes have no other form.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

#[path = "support/messages.rs"]
mod messages;

use evenkeel_wire::agent::{Command, HEAD_BYTES, Malformed, Problem, Reply};
use messages::{command, reply};
use proptest::collection::vec;
use proptest::prelude::*;

/// Checks that accepted bytes are the only form of their message, and that an error names a field
/// and a place in the frame.
fn judge(frame: &[u8]) {
    let judge = |error: Malformed| {
        assert!(!error.field.is_empty() && error.offset <= frame.len(), "{error}");
    };
    match Command::decode(frame) {
        Ok(command) => assert_eq!(command.encode().as_deref(), Ok(frame)),
        Err(error) => judge(error),
    }
    match Reply::decode(frame) {
        Ok(reply) => assert_eq!(reply.encode().as_deref(), Ok(frame)),
        Err(error) => judge(error),
    }
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        command().prop_map(|command| command.encode().unwrap()),
        reply().prop_map(|reply| reply.encode().unwrap()),
    ]
}

proptest! {
    #[test]
    fn a_command_comes_back_from_its_bytes(command in command()) {
        let frame = command.encode().unwrap();
        prop_assert_eq!(Command::decode(&frame), Ok(command));
        let is_unknown = matches!(
            Reply::decode(&frame),
            Err(Malformed { problem: Problem::UnknownKind(_), offset: 6, .. })
        );
        prop_assert!(is_unknown, "a command is no reply");
    }

    #[test]
    fn a_reply_comes_back_from_its_bytes(reply in reply()) {
        let frame = reply.encode().unwrap();
        prop_assert_eq!(Reply::decode(&frame), Ok(reply));
        let is_unknown = matches!(
            Command::decode(&frame),
            Err(Malformed { problem: Problem::UnknownKind(_), offset: 6, .. })
        );
        prop_assert!(is_unknown, "a reply is no command");
    }

    /// Cut anywhere, in the frame or with a length that agrees.
    #[test]
    fn a_frame_that_is_cut_or_followed_is_refused(frame in frame(), part in 0.0..1.0_f64) {
        let at = (frame.len() as f64 * part) as usize;
        let is_truncated = |frame: &[u8]| {
            let errors = [Command::decode(frame).err(), Reply::decode(frame).err()];
            errors.into_iter().flatten().any(|error| {
                matches!(error.problem, Problem::Truncated { .. })
            })
        };
        prop_assert!(is_truncated(&frame[..at]), "{at}");
        if let Some(body) = at.checked_sub(HEAD_BYTES) {
            let mut cut = frame[..at].to_vec();
            cut[8..HEAD_BYTES].copy_from_slice(&u32::try_from(body).unwrap().to_be_bytes());
            prop_assert!(is_truncated(&cut), "{at}");
            judge(&cut);
        }
        let mut followed = [&frame[..], &[0]].concat();
        let body = u32::try_from(frame.len() + 1 - HEAD_BYTES).unwrap();
        for length in [body - 1, body] {
            followed[8..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
            let errors = [Command::decode(&followed).err(), Reply::decode(&followed).err()];
            let is_trailing = |error: Malformed| error.problem == Problem::Trailing { bytes: 1 };
            prop_assert!(errors.into_iter().flatten().any(is_trailing));
        }
    }

    #[test]
    fn damaged_frames_never_panic(
        frame in frame(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut frame = frame;
        for (at, byte) in changes {
            let offset = at.index(frame.len());
            frame[offset] = byte;
        }
        judge(&frame);
    }

    /// Any body after a valid head: counts and lengths are arbitrary.
    #[test]
    fn arbitrary_bytes_never_panic(
        kind in any::<u8>(), body in vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..300),
    ) {
        judge(&body);
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let frame = [b"EVKA\0\x01", &[kind, 0][..], &length, &body].concat();
        judge(&frame);
    }
}
