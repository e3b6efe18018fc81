//! The bytes of a session's hello, answer and packets: as they are written down, and nothing else
//! is taken for them.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

use evenkeel_core::fencing::NodeId;
use evenkeel_wire::agent::session::{
    ANSWER_BYTES, ANSWER_TEXT_BYTES_MAX, Answer, Challenge, HELLO_BYTES, Hello, Leader,
    LeaderGeneration, OPENING_BYTES, Opening, PACKET_BYTES, Packet, PacketKind,
    SESSION_CHALLENGE_BYTES, Verdict, admit,
};
use proptest::collection::vec;
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
    let opening = Opening { agent_version: 8, nonce: [0xab; 32] }.encode();
    let nonce = "ab".repeat(32);
    assert_eq!(hex(&opening), format!("45564b4800010008{nonce}0000000000000000"));
    let challenge = Challenge { agent_version: 8, challenge: [0xab; 64] }.encode();
    assert_eq!(hex(&challenge), format!("45564b4300010008{nonce}{nonce}"));
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
    fn accepted_session_messages_encode_to_the_same_bytes(
        mut opening in any::<[u8; OPENING_BYTES]>(),
        mut challenge in vec(any::<u8>(), SESSION_CHALLENGE_BYTES),
        mut hello in any::<[u8; HELLO_BYTES]>(),
        mut packet in any::<[u8; PACKET_BYTES]>(),
        mut reply in vec(any::<u8>(), ANSWER_BYTES..80),
        magic in any::<bool>(),
    ) {
        if magic {
            hello[..6].copy_from_slice(b"EVKH\0\x01");
            opening[..6].copy_from_slice(b"EVKH\0\x01");
            challenge[..6].copy_from_slice(b"EVKC\0\x01");
            let reserved = opening.len() - 8;
            opening[reserved..].fill(0);
            reply[..6].copy_from_slice(b"EVKW\0\x01");
            let verdict = reply[41] % 9;
            reply[40..46].copy_from_slice(&[0, verdict, 0, 0, 0, 0]);
            let text = reply.len() - ANSWER_BYTES;
            reply[46..48].copy_from_slice(&u16::try_from(text).unwrap().to_be_bytes());
            let kind = packet[0] % 6;
            packet[..4].copy_from_slice(&[kind, 0, 0, 0]);
        }
        if let Ok(read) = Opening::decode(&opening) {
            prop_assert_eq!(read.encode(), opening);
        }
        let challenge: [u8; SESSION_CHALLENGE_BYTES] = challenge.try_into().unwrap();
        if let Ok(read) = Challenge::decode(&challenge) {
            prop_assert_eq!(read.encode(), challenge);
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

#[test]
fn a_node_obeys_no_lower_generation_and_one_leader_of_each() {
    let leader = |node| Leader { node: NodeId(node), incarnation: 1 };
    let said = |generation, node| (LeaderGeneration(generation), leader(node));
    assert_eq!(admit(None, said(5, 1)), Ok(true));
    let heard = Some(said(5, 1));
    assert_eq!(admit(heard, said(5, 1)), Ok(false));
    assert_eq!(admit(heard, said(6, 2)), Ok(true));
    assert_eq!(admit(heard, said(4, 1)), Err(Verdict::LowerGeneration));
    assert_eq!(admit(heard, said(5, 2)), Err(Verdict::OtherLeader));
}
