//! The bytes of a session's hello, answer and packets: as they are written down, and nothing else
//! is taken for them.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

use evenkeel_core::fencing::NodeId;
use evenkeel_wire::agent::session::{
    ANSWER_BYTES, ANSWER_TEXT_BYTES_MAX, Answer, HELLO_BYTES, Hello, Leader, LeaderGeneration,
    PACKET_BYTES, Packet, PacketKind, Verdict,
};
use proptest::prelude::*;

fn answer(text: String) -> Answer {
    Answer {
        verdict: Verdict::OtherLeader,
        agent_version: 8,
        generation: LeaderGeneration(3),
        incarnation: 4,
        commands_max: 5,
        silence_ms: 6,
        text,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_bytes_are_those_of_the_page() {
    let leader = Leader { node: NodeId(2), incarnation: 0xabc };
    let generation = LeaderGeneration(9);
    let hello = Hello { agent_version: 8, cluster: 0xc1, node: NodeId(7), leader, generation };
    assert_eq!(
        hex(&hello.encode()),
        "45564b4800010008000000000000000000000000000000c1\
         00000007000000020000000000000abc0000000000000009"
    );
    assert_eq!(
        hex(&answer("no".into()).encode()),
        "45564b570001000800000000000000030000000000000000000000000000000400000005000000060005\
         0000000000026e6f"
    );
    let packet = Packet { kind: PacketKind::Abandon, number: 258 };
    assert_eq!(hex(&packet.encode()), "040000000000000000000102");
}

#[test]
fn a_long_text_is_cut_between_two_characters() {
    let bytes = answer("é".repeat(2_000)).encode();
    assert_eq!(bytes.len(), ANSWER_BYTES + ANSWER_TEXT_BYTES_MAX);
    assert_eq!(Answer::decode(&bytes).unwrap().text, "é".repeat(512));
}

proptest! {
    #[test]
    fn what_is_accepted_has_these_bytes_and_no_others(
        mut hello in any::<[u8; HELLO_BYTES]>(),
        mut packet in any::<[u8; PACKET_BYTES]>(),
        mut reply in proptest::collection::vec(any::<u8>(), ANSWER_BYTES..80),
        magic in any::<bool>(),
    ) {
        if magic {
            hello[..6].copy_from_slice(b"EVKH\0\x01");
            reply[..6].copy_from_slice(b"EVKW\0\x01");
            let verdict = reply[41] % 8;
            reply[40..46].copy_from_slice(&[0, verdict, 0, 0, 0, 0]);
            let text = reply.len() - ANSWER_BYTES;
            reply[46..48].copy_from_slice(&u16::try_from(text).unwrap().to_be_bytes());
            let kind = packet[0] % 6;
            packet[..4].copy_from_slice(&[kind, 0, 0, 0]);
        }
        if let Ok(read) = Hello::decode(&hello) {
            prop_assert_eq!(read.encode(), hello);
        }
        if let Ok(read) = Packet::decode(&packet) {
            prop_assert_eq!(read.encode(), packet);
        }
        if let Ok(read) = Answer::decode(&reply) {
            prop_assert_eq!(read.encode(), reply);
        }
    }
}
