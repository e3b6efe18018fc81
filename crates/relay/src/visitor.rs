//! Reports of what becomes of this front's own clients, for the audit of its node.
//!
//! Clients that another node relays here are not reported: their own front does that.

use crate::{Observer, Peer};
use evenkeel_core::ids::VolumeId;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::visit::{Visit, VisitOutcome};
use std::cell::Cell;
use std::net::SocketAddr;

/// A client that this front has accepted.
pub(crate) struct Visitor {
    observer: Observer,
    peer: Peer,
    address: HostAddress,
    /// The volume of the last refusal, if there was one.
    refused: Cell<Option<Option<VolumeId>>>,
}

impl Visitor {
    pub fn new(observer: &Observer, (peer, address): (Peer, SocketAddr)) -> Self {
        let address = HostAddress::of(address.ip());
        Self { observer: Observer::clone(observer), peer, address, refused: Cell::default() }
    }

    /// Reports that the client is refused, and which volume it has named. A client that asks for
    /// the same volume by several options of its handshake is reported once.
    pub fn refused(&self, volume: Option<VolumeId>, why: &str) {
        if self.refused.replace(Some(volume)) == Some(volume) {
            return;
        }
        self.report(VisitOutcome::Refused(why.to_owned()), volume);
    }

    /// Reports that the client is connected to a volume, and its end when the result is dropped.
    pub fn connected(self, volume: VolumeId) -> Connected {
        self.report(VisitOutcome::Connected, Some(volume));
        Connected { visitor: self, volume }
    }

    /// The host of a client without a certificate is known at the home of its volume only.
    fn report(&self, outcome: VisitOutcome, volume: Option<VolumeId>) {
        let host = match self.peer {
            Peer::Proven(host) => Some(host),
            Peer::At(_) => None,
        };
        let Self { observer, address, .. } = self;
        let is_proven = host.is_some();
        observer(Visit { outcome, address: *address, host, is_proven, volume });
    }
}

/// A client that is connected to a volume.
pub(crate) struct Connected {
    visitor: Visitor,
    volume: VolumeId,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.visitor.report(VisitOutcome::Ended, Some(self.volume));
    }
}
