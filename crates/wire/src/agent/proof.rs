//! Proofs by which two nodes of a cluster show each other that they know its secret, before
//! anything else is sent over a connection.
//!
//! ```text
//!  connecting side                         listening side
//!  opening: a nonce                  ──▶
//!                                    ◀──  challenge: a nonce, a proof
//!  a proof                           ──▶
//! ```
//!
//! A proof is HMAC-SHA-256 with the secret over the side, the protocol, the expected node and both
//! nonces. So it is valid on one connection only, and neither side can send the other's proof back.
//! A side without the secret learns nothing about the cluster.
//!
//! The bytes after the proofs are not authenticated. Where others can change them, TLS protects
//! them.

use core::fmt;

use evenkeel_core::fencing::NodeId;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The length of a secret in bytes.
pub const SECRET_BYTES: usize = 32;
/// The length of a nonce in bytes.
pub const NONCE_BYTES: usize = 32;
/// The length of a proof in bytes.
pub const PROOF_BYTES: usize = 32;
/// The length of a challenge in bytes.
pub const CHALLENGE_BYTES: usize = NONCE_BYTES + PROOF_BYTES;

/// A number that is used once, from the system's random numbers.
pub type Nonce = [u8; NONCE_BYTES];
/// A proof that its sender knows the secret.
pub type Proof = [u8; PROOF_BYTES];

/// The secret that all nodes of a cluster know, and no other machine. It is never sent.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret([u8; SECRET_BYTES]);

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret")
    }
}

/// The protocol that follows the proofs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Commands of the leader.
    Agent,
    /// Clients that another node relays.
    Relay,
}

/// The side that proves something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Connects,
    Listens,
}

/// One connection: the values that both proofs cover.
#[derive(Clone, Copy, Debug)]
pub struct Meeting {
    /// The protocol that follows.
    pub protocol: Protocol,
    /// The node that listens.
    pub node: NodeId,
    /// The nonce of the side that connects.
    pub opening: Nonce,
    /// The nonce of the side that listens.
    pub challenge: Nonce,
}

impl ClusterSecret {
    /// Creates a secret from bytes, which must come from the system's random numbers.
    #[must_use]
    pub const fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the proof of the side that connects.
    #[must_use]
    pub fn proof_of_connecting(&self, meeting: &Meeting) -> Proof {
        self.mac(Side::Connects, meeting).finalize().into_bytes().into()
    }

    /// Returns whether a proof is that of the side that connects. Takes constant time.
    #[must_use]
    pub fn is_connecting(&self, meeting: &Meeting, proof: &Proof) -> bool {
        self.mac(Side::Connects, meeting).verify_slice(proof).is_ok()
    }

    /// Returns the listening side's answer to an opening: its nonce and its proof.
    #[must_use]
    pub fn challenge(&self, meeting: &Meeting) -> [u8; CHALLENGE_BYTES] {
        let proof: Proof = self.mac(Side::Listens, meeting).finalize().into_bytes().into();
        let mut bytes = [0; CHALLENGE_BYTES];
        let (nonce, rest) = bytes.split_at_mut(NONCE_BYTES);
        nonce.copy_from_slice(&meeting.challenge);
        rest.copy_from_slice(&proof);
        bytes
    }

    /// Returns the meeting that a challenge belongs to, with `meeting.challenge` filled in. Returns
    /// `None` if the proof is not that of the expected node.
    #[must_use]
    pub fn answered(&self, meeting: &Meeting, bytes: &[u8; CHALLENGE_BYTES]) -> Option<Meeting> {
        let (challenge, proof) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let meeting = Meeting { challenge: *challenge, ..*meeting };
        let is_proven = self.mac(Side::Listens, &meeting).verify_slice(proof).is_ok();
        is_proven.then_some(meeting)
    }

    fn mac(&self, side: Side, meeting: &Meeting) -> Hmac<Sha256> {
        let Meeting { protocol, node, opening, challenge } = meeting;
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0)
            .expect("HMAC is defined for keys of every length");
        let side: &[u8] = match side {
            Side::Connects => b"evenkeel connects",
            Side::Listens => b"evenkeel listens\0",
        };
        mac.update(side);
        mac.update(match protocol {
            Protocol::Agent => b"agent",
            Protocol::Relay => b"relay",
        });
        mac.update(&node.0.to_be_bytes());
        mac.update(opening);
        mac.update(challenge);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: ClusterSecret = ClusterSecret::new([7; SECRET_BYTES]);
    const MEETING: Meeting = Meeting {
        protocol: Protocol::Agent,
        node: NodeId(3),
        opening: [1; NONCE_BYTES],
        challenge: [2; NONCE_BYTES],
    };

    /// Returns meetings that each differ in one field.
    fn others() -> [Meeting; 4] {
        [
            Meeting { protocol: Protocol::Relay, ..MEETING },
            Meeting { node: NodeId(4), ..MEETING },
            Meeting { opening: [9; NONCE_BYTES], ..MEETING },
            Meeting { challenge: [9; NONCE_BYTES], ..MEETING },
        ]
    }

    #[test]
    fn a_proof_is_of_one_secret_and_one_meeting() {
        let proof = SECRET.proof_of_connecting(&MEETING);
        assert!(SECRET.is_connecting(&MEETING, &proof));
        assert!(!ClusterSecret::new([8; SECRET_BYTES]).is_connecting(&MEETING, &proof));
        for other in others() {
            assert!(!SECRET.is_connecting(&other, &proof), "{other:?}");
        }
        for at in 0..PROOF_BYTES {
            let mut wrong = proof;
            wrong[at] ^= 1;
            assert!(!SECRET.is_connecting(&MEETING, &wrong), "byte {at}");
        }
    }

    #[test]
    fn a_challenge_is_of_the_node_that_is_meant_and_is_no_proof_of_the_other_side() {
        let challenge = SECRET.challenge(&MEETING);
        let opened = Meeting { challenge: [0; NONCE_BYTES], ..MEETING };
        let answered = SECRET.answered(&opened, &challenge).expect("a proof");
        assert_eq!(answered.challenge, MEETING.challenge);
        let other = ClusterSecret::new([8; SECRET_BYTES]);
        assert!(other.answered(&opened, &challenge).is_none());
        for other in &others()[..3] {
            assert!(SECRET.answered(other, &challenge).is_none(), "{other:?}");
        }
        let sent_back: Proof = challenge[NONCE_BYTES..].try_into().unwrap();
        assert!(!SECRET.is_connecting(&MEETING, &sent_back));
    }

    #[test]
    fn a_secret_is_not_shown() {
        extern crate std;
        assert_eq!(std::format!("{SECRET:?}"), "ClusterSecret");
    }
}
