//! The hello that a front sends to the front of a volume's home before any NBD bytes, and its
//! answers.
//!
//! ```text
//! opening, 63 bytes:  "evkrelay", version u16, nonce of 32 bytes, 21 zeros      ──▶
//! verdict, 4 bytes:   version u16, code u16; with Prove: nonce and proof       ◀──
//! its proof, and
//! preamble, 80 bytes: "evkrelay", version u16, cluster u128, node u32, lease u128,
//!                     kind u8 (0: opens the lease, 1: a client), session u128,
//!                     family u8 (0: that machine, 4, 6), address of 16 bytes   ──▶
//!                     version 2: family 1 (a host), its id of 16 bytes
//! verdict                                                                      ◀──
//! ```
//!
//! The proofs are those of [`evenkeel_wire::agent::proof`]: a front cannot relay a client without
//! the cluster's secret. Numbers are big-endian.
//!
//! The session identifies the client's connection. If two relayed connections have the same
//! session, the later one is served when no request of the earlier one is under way. A client is
//! served as long as the lease of its front holds; another connection opens that lease.

use crate::Peer;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::InstanceId;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::proof::{NONCE_BYTES, Nonce};
use std::fmt;
use std::net::IpAddr;

/// Length of a preamble.
pub const PREAMBLE_BYTES: usize = 80;
/// Length of an opening.
pub const OPENING_BYTES: usize = 63;
/// Length of a verdict.
pub const VERDICT_BYTES: usize = 4;
/// After the first release, any change of the bytes needs a new version: docs/internals/journal.md.
pub const VERSION: u16 = 1;
/// The version of a preamble for a client that has proven its host. A node that does not know it
/// refuses such clients only.
const VERSION_OF_HOSTS: u16 = 2;
/// The families of a preamble.
const FAMILY_LOCAL: u8 = 0;
const FAMILY_HOST: u8 = 1;
const FAMILY_V4: u8 = 4;
const FAMILY_V6: u8 = 6;
const MAGIC: &[u8; 8] = b"evkrelay";

/// The client that is relayed, and the node that is to serve it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preamble {
    /// The cluster of both nodes.
    pub cluster: u128,
    /// The node for which the connection is meant.
    pub node: NodeId,
    /// The lease of the front that relays.
    pub lease: u128,
    /// The client's connection; `None` on the connection that opens the lease.
    pub session: Option<u128>,
    /// The client.
    pub peer: Peer,
}

/// The home's answer to an opening or a preamble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// NBD follows.
    Welcome,
    /// The other side speaks another version.
    Version,
    /// The other side belongs to another cluster.
    Cluster,
    /// The connection is meant for another node.
    Node,
    /// No volume is attached to the client's address there.
    Stranger,
    /// The home has its maximum of connections.
    NoPlace,
    /// The home is starting or stopping, or the client's earlier connection has not ended.
    NotNow,
    /// The front's lease has ended.
    NoLease,
    /// The home's nonce and proof follow; the front must prove itself.
    Prove,
}

const CODES: [Verdict; 9] = [
    Verdict::Welcome,
    Verdict::Version,
    Verdict::Cluster,
    Verdict::Node,
    Verdict::Stranger,
    Verdict::NoPlace,
    Verdict::NotNow,
    Verdict::NoLease,
    Verdict::Prove,
];

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Welcome => "it lets the client in",
            Self::Version => "it speaks another version of the relay's protocol; update both nodes",
            Self::Cluster => "it belongs to another cluster; check the nodes' addresses",
            Self::Node => "it is another node; check the nodes' addresses",
            Self::Stranger => "no volume is attached to the client's address there",
            Self::NoPlace => "it has as many connections as it may",
            Self::NotNow => "it lets no client in at the moment",
            Self::NoLease => "the lease of this node there has ended",
            Self::Prove => "it asks for a proof",
        })
    }
}

/// Why bytes are no opening or preamble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// They are neither; they get no answer.
    Noise,
    /// They are of another version.
    Version(u16),
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Encodes an opening.
#[must_use]
pub fn opening(nonce: &Nonce) -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
    bytes[10..10 + NONCE_BYTES].copy_from_slice(nonce);
    bytes
}

/// Decodes an opening and returns its nonce.
///
/// # Errors
/// The bytes are no opening, or one of another version.
pub fn opened(bytes: &[u8; OPENING_BYTES]) -> Result<Nonce, Malformed> {
    check_beginning(bytes, VERSION)?;
    let is_over = bytes[10 + NONCE_BYTES..].iter().all(|byte| *byte == 0);
    array(bytes, 10).filter(|_| is_over).ok_or(Malformed::Noise)
}

/// Checks the magic and the version of an opening or a preamble, which is at most `newest`. Returns
/// the version.
fn check_beginning(bytes: &[u8], newest: u16) -> Result<u16, Malformed> {
    if bytes.first_chunk() != Some(MAGIC) {
        return Err(Malformed::Noise);
    }
    let version = array(bytes, 8).map(u16::from_be_bytes).unwrap_or_default();
    if (VERSION..=newest).contains(&version) {
        Ok(version)
    } else {
        Err(Malformed::Version(version))
    }
}

impl Preamble {
    /// Encodes the preamble.
    #[must_use]
    pub fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let (family, address) = match self.peer {
            Peer::Proven(host) => (FAMILY_HOST, host.bits().to_be_bytes()),
            Peer::At(HostAddress::Local) => (FAMILY_LOCAL, [0; 16]),
            Peer::At(HostAddress::Remote(IpAddr::V6(address))) => (FAMILY_V6, address.octets()),
            Peer::At(HostAddress::Remote(IpAddr::V4(address))) => {
                let mut octets = [0; 16];
                octets[..4].copy_from_slice(&address.octets());
                (FAMILY_V4, octets)
            }
        };
        let version = if family == FAMILY_HOST { VERSION_OF_HOSTS } else { VERSION };
        let mut bytes = [0; PREAMBLE_BYTES];
        let session = self.session.unwrap_or_default();
        let fields: [&[u8]; 9] = [
            MAGIC,
            &version.to_be_bytes(),
            &self.cluster.to_be_bytes(),
            &self.node.0.to_be_bytes(),
            &self.lease.to_be_bytes(),
            &[u8::from(self.session.is_some())],
            &session.to_be_bytes(),
            &[family],
            &address,
        ];
        let mut offset = 0;
        for field in fields {
            bytes[offset..offset + field.len()].copy_from_slice(field);
            offset += field.len();
        }
        bytes
    }

    /// Decodes a preamble.
    ///
    /// # Errors
    /// The bytes are no preamble, or one of another version.
    pub fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Self, Malformed> {
        let version = check_beginning(bytes, VERSION_OF_HOSTS)?;
        let field = || {
            let address: [u8; 16] = array(bytes, 64)?;
            let peer = match (version, *bytes.get(63)?) {
                (VERSION, FAMILY_LOCAL) => Peer::At(HostAddress::Local),
                (VERSION, FAMILY_V4) => {
                    Peer::At(HostAddress::of(IpAddr::from(array::<4>(&address, 0)?)))
                }
                (VERSION, FAMILY_V6) => Peer::At(HostAddress::of(IpAddr::from(address))),
                (VERSION_OF_HOSTS, FAMILY_HOST) => {
                    let bits = u128::from_be_bytes(address);
                    let host = InstanceId::from_bits(bits);
                    if host.bits() != bits {
                        return None;
                    }
                    Peer::Proven(host)
                }
                _ => return None,
            };
            let session = u128::from_be_bytes(array(bytes, 47)?);
            let session = match bytes.get(46)? {
                0 => None,
                1 => Some(session),
                _ => return None,
            };
            Some(Self {
                cluster: u128::from_be_bytes(array(bytes, 10)?),
                node: NodeId(u32::from_be_bytes(array(bytes, 26)?)),
                lease: u128::from_be_bytes(array(bytes, 30)?),
                session,
                peer,
            })
        };
        field().ok_or(Malformed::Noise)
    }
}

impl Verdict {
    /// Encodes the verdict.
    #[must_use]
    pub fn encode(self) -> [u8; VERDICT_BYTES] {
        let code = CODES.iter().position(|verdict| *verdict == self).unwrap_or_default() as u16;
        let version = VERSION.to_be_bytes();
        let code = code.to_be_bytes();
        [version[0], version[1], code[0], code[1]]
    }

    /// Decodes a verdict. An unknown one is taken as [`Self::Version`].
    #[must_use]
    pub fn decode(bytes: [u8; VERDICT_BYTES]) -> Self {
        let [v0, v1, c0, c1] = bytes;
        if u16::from_be_bytes([v0, v1]) != VERSION {
            return Self::Version;
        }
        let code = usize::from(u16::from_be_bytes([c0, c1]));
        CODES.get(code).copied().unwrap_or(Self::Version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn preamble_decodes_to_itself(
            (cluster, node, lease, session) in any::<(u128, u32, u128, Option<u128>)>(),
            address in any::<Option<IpAddr>>(),
            host in any::<Option<u128>>(),
        ) {
            let address = address.map_or(HostAddress::Local, HostAddress::of);
            let peer = host.map_or(Peer::At(address), |bits| {
                Peer::Proven(InstanceId::from_bits(bits))
            });
            let preamble = Preamble { cluster, node: NodeId(node), lease, session, peer };
            prop_assert_eq!(Preamble::decode(&preamble.encode()), Ok(preamble));
            for at in 0..10 {
                let mut bytes = preamble.encode();
                bytes[at] ^= 1;
                prop_assert!(Preamble::decode(&bytes).is_err());
            }
        }

        #[test]
        fn noise_is_no_preamble_and_does_not_panic(bytes in any::<[u8; PREAMBLE_BYTES - 8]>()) {
            let mut noise = [0; PREAMBLE_BYTES];
            noise[8..].copy_from_slice(&bytes);
            prop_assert_eq!(Preamble::decode(&noise), Err(Malformed::Noise));
            noise[..8].copy_from_slice(MAGIC);
            noise[8..10].copy_from_slice(&VERSION.to_be_bytes());
            let decoded = Preamble::decode(&noise);
            let is_session = [0, 1].contains(&noise[46]);
            prop_assert_eq!(decoded.is_ok(), is_session && [0, 4, 6].contains(&noise[63]));
            noise[8..10].copy_from_slice(&VERSION_OF_HOSTS.to_be_bytes());
            let is_id = noise[64..71].iter().all(|byte| *byte == 0) && noise[71] < 16;
            let decoded = Preamble::decode(&noise);
            prop_assert_eq!(decoded.is_ok(), is_session && noise[63] == 1 && is_id);
        }
    }

    #[test]
    fn verdicts_survive_and_unknown_ones_are_of_another_version() {
        for verdict in CODES {
            assert_eq!(Verdict::decode(verdict.encode()), verdict);
        }
        let version = VERSION as u8;
        assert_eq!(Verdict::decode([0, version, 0, 77]), Verdict::Version);
        assert_eq!(Verdict::decode([0, version + 1, 0, 0]), Verdict::Version);
    }

    #[test]
    fn an_opening_has_a_nonce_and_its_version() {
        let nonce = [0xab; NONCE_BYTES];
        let bytes = opening(&nonce);
        assert_eq!(opened(&bytes), Ok(nonce));
        let mut longer = bytes;
        longer[OPENING_BYTES - 1] = 1;
        assert_eq!(opened(&longer), Err(Malformed::Noise));
        let mut other = bytes;
        other[9] = 2;
        assert_eq!(opened(&other), Err(Malformed::Version(2)));
    }
}
