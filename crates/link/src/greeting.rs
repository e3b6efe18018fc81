//! The proofs that both sides give before a hello: see [`evenkeel_wire::agent::proof`].

use std::fmt;
use std::io;
use std::net::SocketAddr;

use evenkeel_core::fencing::NodeId;
use evenkeel_wire::agent::VERSION;
use evenkeel_wire::agent::proof::{
    ClusterSecret, Meeting, NONCE_BYTES, Nonce, PROOF_BYTES, Protocol,
};
use evenkeel_wire::agent::session::{
    ANSWER_BYTES, Answer, BEGINNING_BYTES, Challenge, LeaderGeneration, OPENING_BYTES, Opening,
    SESSION_CHALLENGE_BYTES, Verdict,
};

use crate::channel::{Channel, Incoming};
use evenkeel_os::clock::Deadline;

/// Returns a nonce from the system's random numbers.
///
/// # Errors
/// The system returns an error.
pub fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut nonce).map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(nonce)
}

/// Why the node at the other end has not proven itself.
pub(crate) enum Unproven {
    /// The connection failed.
    Io(io::Error),
    /// It speaks another version, or is no node of this cluster; the text has the reason.
    Refused(String),
}

impl From<io::Error> for Unproven {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs the connecting side: checks the node's proof, then proves this side.
pub(crate) fn prove_to(
    (address, node): (SocketAddr, NodeId),
    secret: &ClusterSecret,
    (channel, incoming): (&Channel, &mut Incoming),
    deadline: Deadline,
) -> Result<(), Unproven> {
    let malformed =
        |error: &dyn fmt::Display| Unproven::Refused(format!("the answer of {address}: {error}"));
    let opening = nonce()?;
    let first = Opening { agent_version: VERSION, nonce: opening };
    channel.send_until(&first.encode(), deadline)?;
    let mut beginning = [0; BEGINNING_BYTES];
    incoming.fill(&mut beginning, deadline)?;
    if Challenge::is_answer(&beginning) {
        let mut bytes = vec![0; ANSWER_BYTES];
        bytes[..BEGINNING_BYTES].copy_from_slice(&beginning);
        incoming.fill(&mut bytes[BEGINNING_BYTES..], deadline)?;
        let answer = read_answer(bytes, incoming, deadline)?;
        return Err(Unproven::Refused(answer.map_err(|error| malformed(&error))?.text));
    }
    let mut bytes = [0; SESSION_CHALLENGE_BYTES];
    bytes[..BEGINNING_BYTES].copy_from_slice(&beginning);
    incoming.fill(&mut bytes[BEGINNING_BYTES..], deadline)?;
    let challenge = Challenge::decode(&bytes).map_err(|error| malformed(&error))?;
    let opened = Meeting { protocol: Protocol::Agent, node, opening, challenge: [0; NONCE_BYTES] };
    let meeting = secret.answered(&opened, &challenge.challenge).ok_or_else(|| {
        Unproven::Refused(format!(
            "{address} has not proven that it is node {} of this cluster; see which program \
             listens there",
            node.0
        ))
    })?;
    Ok(channel.send_until(&secret.proof_of_connecting(&meeting), deadline)?)
}

/// Reads the text that follows an answer's head.
pub(crate) fn read_answer(
    mut bytes: Vec<u8>,
    incoming: &mut Incoming,
    deadline: Deadline,
) -> io::Result<Result<Answer, evenkeel_wire::agent::Malformed>> {
    let mut head = [0; ANSWER_BYTES];
    head.copy_from_slice(&bytes);
    let text = match Answer::text_bytes(&head) {
        Ok(text) => text,
        Err(error) => return Ok(Err(error)),
    };
    bytes.resize(ANSWER_BYTES + text, 0);
    incoming.fill(&mut bytes[ANSWER_BYTES..], deadline)?;
    Ok(Answer::decode(&bytes))
}

/// Runs the listening side: proves this node, then checks the other side's proof. The error is for
/// the log; a side that has proven nothing receives no information about the cluster.
pub(crate) fn prove_from(
    node: NodeId,
    secret: &ClusterSecret,
    (channel, incoming): (&Channel, &mut Incoming),
    deadline: Deadline,
) -> Result<(), String> {
    let mut bytes = [0; OPENING_BYTES];
    let silent = |error: io::Error| format!("it has not identified itself: {error}");
    incoming.fill(&mut bytes, deadline).map_err(silent)?;
    let opening = match opened(&bytes) {
        Ok(opening) => opening,
        Err(text) => {
            let answer = Answer {
                verdict: Verdict::Version,
                agent_version: VERSION,
                generation: LeaderGeneration(0),
                incarnation: 0,
                commands_max: 0,
                silence_ms: 0,
                text: text.clone(),
            };
            // If the answer cannot be sent, the connection is closed anyway.
            let _ = channel.send_until(&answer.encode(), deadline);
            return Err(text);
        }
    };
    let challenge = nonce().map_err(|error| error.to_string())?;
    let meeting = Meeting { protocol: Protocol::Agent, node, opening, challenge };
    let challenge =
        Challenge { agent_version: VERSION, challenge: secret.challenge(&meeting) }.encode();
    channel.send_until(&challenge, deadline).map_err(|error| error.to_string())?;
    let mut proof = [0; PROOF_BYTES];
    incoming.fill(&mut proof, deadline).map_err(silent)?;
    if secret.is_connecting(&meeting, &proof) {
        Ok(())
    } else {
        Err("it does not know the secret of this node's cluster".to_owned())
    }
}

fn opened(bytes: &[u8; OPENING_BYTES]) -> Result<Nonce, String> {
    let opening = Opening::decode(bytes).map_err(|error| error.to_string())?;
    if opening.agent_version != VERSION {
        return Err(format!(
            "control speaks version {} of the agent protocol, this node speaks {VERSION}; update \
             one side",
            opening.agent_version
        ));
    }
    Ok(opening.nonce)
}
