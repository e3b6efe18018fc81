//! Several leaders at one node, restarts of either side, and commands that hang.
#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

mod support;

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_link::{AgentServer, RemoteAgent, ServerConfig, Status};
use evenkeel_wire::agent::session::Leader;
use evenkeel_wire::agent::{Agent, Command, FailedKind, Reply};
use std::fs;
use std::sync::Arc;
use std::time::Duration;
use support::{
    Fake, LONG, client_config, connect, failed, kind, leader, serve, server_config, told, until, up,
};

fn delete(volume: u128) -> Command {
    Command::Delete(VolumeId::from_bits(volume))
}

/// Waits until this leader is deposed, and returns the reason.
fn deposed(remote: &RemoteAgent) -> String {
    until(remote, |status| match status {
        Status::Deposed(why) => Some(why.clone()),
        _ => None,
    })
}

#[test]
fn a_node_obeys_the_leader_with_the_highest_generation() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let first = up(connect(server.address(), 1));
    assert_eq!(first.call(delete(1)), Reply::Done);
    let second = up(connect(server.address(), 2));
    assert_eq!(second.call(delete(2)), Reply::Done);
    let why = deposed(&first);
    assert_eq!(why, "this node has heard generation 2 of the leader on node 2, incarnation 200");
    // The command was not executed, and the error does not ask to try again.
    let refused = failed(first.call(delete(3)));
    assert_eq!(refused.kind, FailedKind::Down);
    assert!(refused.message.starts_with("node 7 obeys another leader"), "{}", refused.message);
    // Two processes with the same generation are a fault of the election.
    let mut config = client_config(server.address(), 2);
    config.leader = Leader { incarnation: 5, ..leader(2) };
    let twin = RemoteAgent::start(config).unwrap();
    assert!(matches!(twin.wait(LONG), Status::Deposed(why) if why.contains("another leader")));
    assert_eq!(second.call(delete(4)), Reply::Done);
    assert_eq!(fake.begun(), [delete(1), delete(2), delete(4)]);
}

#[test]
fn highest_generation_survives_restarts_and_a_damaged_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    drop(up(connect(server.address(), 5)));
    drop(server);
    let server = serve(folder.path(), &fake);
    let old = connect(server.address(), 4);
    assert!(matches!(old.wait(LONG), Status::Deposed(_)));
    // The same leader is let in again, and then a later one.
    drop(up(connect(server.address(), 5)));
    drop(up(connect(server.address(), 6)));
    drop(server);
    let file = folder.path().join("agent-generation");
    fs::write(&file, "evenkeel-agent-generation-1 6").unwrap();
    let config = server_config(folder.path());
    let error = told(AgentServer::start(config, Arc::clone(&fake) as Arc<dyn Agent>));
    assert!(error.contains("agent-generation") && error.contains("it is damaged"), "{error}");
}

#[test]
fn leader_is_refused_while_its_generation_cannot_be_stored() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let gone = folder.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let server = serve(&gone, &fake);
    fs::remove_dir(&gone).unwrap();
    let remote = connect(server.address(), 1);
    until(&remote, |status| match status {
        Status::Away(why) if why.contains("cannot be stored") => Some(()),
        Status::Up => panic!("it was let in"),
        _ => None,
    });
    fs::create_dir(&gone).unwrap();
    assert_eq!(up(remote).call(delete(1)), Reply::Done);
}

#[test]
fn conflicting_command_fails_until_that_of_a_former_leader_ends() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let first = up(connect(server.address(), 1));
    fake.hold(&delete(1));
    std::thread::scope(|scope| {
        let hung = scope.spawn(|| first.call(delete(1)));
        fake.wait_until_begun(1);
        let second = up(connect(server.address(), 2));
        assert_eq!(kind(hung.join().unwrap()), FailedKind::Unanswered);
        // Only the same volume waits; other volumes, hosts and questions do not.
        let waits = failed(second.call(delete(1)));
        assert_eq!(waits.kind, FailedKind::Unanswered);
        assert!(waits.message.contains("Volume") && waits.message.contains("not ended yet"));
        assert_eq!(second.call(delete(2)), Reply::Done);
        let host = Command::DeleteHost(InstanceId::from_bits(1));
        assert_eq!(second.call(host.clone()), Reply::Done);
        assert_eq!(second.call(Command::Report), Reply::Done);
        assert_eq!(fake.ended(), [delete(2), host, Command::Report]);
        fake.let_go();
        fake.wait_until_ended(4);
        loop {
            match second.call(delete(1)) {
                Reply::Done => break,
                again => assert_eq!(kind(again), FailedKind::Unanswered),
            }
        }
        assert_eq!(fake.ended().len(), 5);
    });
}

#[test]
fn a_command_that_hangs_is_given_up_and_its_place_stays_taken_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let mut config = client_config(server.address(), 1);
    config.timing.command = Duration::from_millis(50);
    let remote = up(RemoteAgent::start(config).unwrap());
    fake.hold(&delete(1));
    let late = failed(remote.call(delete(1)));
    assert_eq!(late.kind, FailedKind::Unanswered);
    assert!(late.message.contains("has not answered within 0.05 s"), "{}", late.message);
    // The connection lives, and the volume waits.
    assert_eq!(remote.status(), Status::Up);
    assert_eq!(kind(remote.call(delete(1))), FailedKind::Unanswered);
    assert_eq!(fake.begun(), [delete(1)], "begun once");
    fake.let_go();
    fake.wait_until_ended(1);
    while remote.call(delete(1)) != Reply::Done {}
    assert_eq!(remote.status(), Status::Up);
}

#[test]
fn a_node_that_was_restarted_gets_no_command_before_control_knows() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let address = server.address();
    let remote = up(connect(address, 1));
    assert_eq!(remote.call(delete(1)), Reply::Done);
    drop(server);
    let config = ServerConfig { listen: address, incarnation: 2, ..server_config(folder.path()) };
    let _server = AgentServer::start(config, Arc::clone(&fake) as Arc<dyn Agent>).unwrap();
    until(&remote, |status| (*status == Status::Restarted(2)).then_some(()));
    let refused = failed(remote.call(delete(2)));
    assert_eq!(refused.kind, FailedKind::Down);
    assert!(refused.message.contains("was restarted"), "{}", refused.message);
    remote.accept_restart(1);
    assert_eq!(remote.status(), Status::Restarted(2), "that is the former one");
    remote.accept_restart(2);
    assert_eq!(remote.call(delete(3)), Reply::Done);
    assert_eq!(fake.begun(), [delete(1), delete(3)]);
}
