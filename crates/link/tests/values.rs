//! Random commands and replies through a socket, whose bytes arrive in random pieces: unchanged, in
//! their order, each reply with its command; plain and over TLS.
#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

#[path = "../../wire/tests/support/messages.rs"]
mod messages;
mod support;

use evenkeel_link::{AgentServer, ClientConfig, RemoteAgent, ServerConfig};
use evenkeel_wire::agent::{Agent, Command, Reply};
use messages::{command, reply};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use support::{Fake, Passage, Relay, client_config, server_config, tls, up};

fn through(said: Vec<(Command, Reply)>, pieces: Vec<usize>, is_secret: bool) {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let secret = |files| is_secret.then_some(files);
    let config = ServerConfig { tls: secret(tls("node-7", "ca")), ..server_config(folder.path()) };
    let server = AgentServer::start(config, Arc::clone(&fake) as Arc<dyn Agent>).unwrap();
    let relay = Relay::to(server.address(), vec![Passage { pieces, ..Passage::OPEN }]);
    let config =
        ClientConfig { tls: secret(tls("leader", "ca")), ..client_config(relay.address, 1) };
    let remote = up(RemoteAgent::start(config).unwrap());
    let (commands, replies): (Vec<Command>, Vec<Reply>) = said.into_iter().unzip();
    fake.reply_with(replies.clone());
    for (command, expected) in commands.iter().zip(replies) {
        assert_eq!(remote.call(command.clone()), expected);
    }
    assert_eq!(fake.begun(), commands);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(2)))]

    #[test]
    fn values_go_through_unchanged_and_in_order(
        said in vec((command(), reply()), 1..12),
        pieces in vec(1_usize..200, 1..8),
        is_secret in any::<bool>(),
    ) {
        through(said, pieces, is_secret);
    }
}

#[test]
fn answers_find_their_commands_however_many_wait_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = support::serve(folder.path(), &fake);
    let remote = up(support::connect(server.address(), 1));
    // Its replies identify the command, so that replies can be assigned.
    struct Mirror;
    impl Agent for Mirror {
        fn call(&self, command: Command) -> Reply {
            match command {
                Command::Verify(_, at) => Reply::Verified(evenkeel_wire::agent::Verified {
                    next: Some(at),
                    ..Default::default()
                }),
                _ => Reply::Done,
            }
        }
    }
    drop((remote, server));
    let server = support::serve(folder.path(), &Arc::new(Mirror));
    let remote = up(support::connect(server.address(), 1));
    let id = evenkeel_core::ids::VolumeId::from_bits(1);
    // More callers than commands that may be under way.
    std::thread::scope(|scope| {
        for caller in 0..100_u64 {
            let remote = &remote;
            scope.spawn(move || {
                for round in 0..10 {
                    let at = caller * 1_000 + round;
                    let Reply::Verified(verified) = remote.call(Command::Verify(id, at)) else {
                        panic!("another answer");
                    };
                    assert_eq!(verified.next, Some(at));
                }
            });
        }
    });
}
