//! A connection that is cut after each number of bytes: a command is executed once or not at all,
//! control gets an error that claims no more than it can know, and repeating the command succeeds.
#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

mod support;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_link::{RemoteAgent, Status};
use evenkeel_wire::agent::proof::PROOF_BYTES;
use evenkeel_wire::agent::session::{
    ANSWER_BYTES, HELLO_BYTES, OPENING_BYTES, PACKET_BYTES, SESSION_CHALLENGE_BYTES,
};
use evenkeel_wire::agent::{Agent, Command, FailedKind, HEAD_BYTES, Reply};
use support::{Fake, LONG, Passage, Relay, connect, failed, serve, until, up};

/// Number of bytes that control sends before its first command.
const FORTH_BYTES: usize = OPENING_BYTES + PROOF_BYTES + HELLO_BYTES;
/// Number of bytes that a node sends before its first reply.
const BACK_BYTES: usize = SESSION_CHALLENGE_BYTES + ANSWER_BYTES;

/// A command that is not idempotent: sending it twice would be noticed.
fn snapshot() -> Command {
    Command::Snapshot(VolumeId::from_bits(1), SnapshotId::from_bits(2))
}

/// Sends one command over a connection that is cut. Returns the outcome after the next one.
fn cut_after(passage: Passage) -> &'static str {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let relay = Relay::to(server.address(), vec![passage.clone()]);
    let remote = connect(relay.address, 1);
    let answer = remote.call(snapshot());
    let executed = fake.begun().len();
    let outcome = match answer {
        // It was sent over the second connection, or the cut came later.
        Reply::Done => {
            assert_eq!(executed, 1, "{passage:?}");
            "done"
        }
        Reply::Failed(failed) if failed.kind == FailedKind::Unanswered => {
            assert!(executed <= 1, "{passage:?}");
            assert!(failed.message.contains("may have been executed"), "{}", failed.message);
            "unknown"
        }
        other => panic!("{other:?} with {passage:?}"),
    };
    // Control repeats it until the former one, if it had begun, has ended.
    let remote = up(remote);
    let mut calls = 2;
    while remote.call(snapshot()) != Reply::Done {
        calls += 1;
        assert_eq!(remote.wait(LONG), Status::Up);
    }
    // The lost command has been executed by now or never will be; the link has repeated nothing.
    let executed = fake.ended().len();
    assert!((1..=calls).contains(&executed), "{executed} of {calls} with {passage:?}");
    outcome
}

#[test]
fn command_cut_after_any_sent_byte_is_done_or_unknown() {
    let frame = HEAD_BYTES + 16 + 16;
    let whole = FORTH_BYTES + PACKET_BYTES + frame;
    assert_eq!(snapshot().encode().unwrap().len(), frame);
    let mut outcomes: Vec<&str> = Vec::new();
    for forth_max in 1..=whole {
        outcomes.push(cut_after(Passage { forth_max, ..Passage::OPEN }));
    }
    // No command is sent before the hello is complete. From then on the outcome is unknown.
    assert!(outcomes[..FORTH_BYTES - 1].iter().all(|outcome| *outcome == "done"), "{outcomes:?}");
    assert!(outcomes[FORTH_BYTES + 1..].contains(&"unknown"), "{outcomes:?}");
}

#[test]
fn command_cut_after_any_received_byte_is_done_or_unknown() {
    let whole = BACK_BYTES + PACKET_BYTES + HEAD_BYTES;
    let mut outcomes: Vec<&str> = Vec::new();
    for back_max in 1..=whole {
        outcomes.push(cut_after(Passage { back_max, ..Passage::OPEN }));
    }
    assert!(outcomes[..BACK_BYTES - 1].iter().all(|outcome| *outcome == "done"));
    assert!(outcomes[BACK_BYTES..whole - 1].iter().all(|outcome| *outcome == "unknown"));
    assert_eq!(outcomes[whole - 1], "done", "the answer was whole");
}

#[test]
fn unsent_command_is_down_unless_an_earlier_one_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let relay = Relay::to(server.address(), Vec::new());
    let mut config = support::client_config(relay.address, 1);
    config.timing.patience = std::time::Duration::from_millis(1);
    let remote = up(RemoteAgent::start(config).unwrap());
    fake.hold(&snapshot());
    let lost = std::thread::scope(|scope| {
        let call = scope.spawn(|| remote.call(snapshot()));
        fake.wait_until_begun(1);
        // The connection is cut before the reply.
        relay.cut();
        call.join().unwrap()
    });
    assert_eq!(failed(lost).kind, FailedKind::Unanswered);
    fake.let_go();
    drop(server);
    until_away(&remote);
    // The volume was in the lost command; another volume, and a question, were not.
    let same = Command::Delete(VolumeId::from_bits(1));
    assert_eq!(failed(remote.call(same)).kind, FailedKind::Unanswered);
    let other = Command::Delete(VolumeId::from_bits(3));
    let down = failed(remote.call(other));
    assert_eq!(down.kind, FailedKind::Down);
    assert!(down.message.starts_with("node 7 is not connected: "), "{}", down.message);
    assert_eq!(failed(remote.call(Command::Report)).kind, FailedKind::Down);
}

fn until_away(remote: &RemoteAgent) {
    until(remote, |status| matches!(status, Status::Away(_)).then_some(()));
}
