//! Which hosts have limits, and on which core they are: all volumes of such a host are at home on
//! one core, so its limits are exact.

use evenkeel_core::ids::InstanceId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_wire::agent::{Attachment, Failed, FailedKind, HostState};
use std::collections::BTreeMap;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    hosts: BTreeMap<InstanceId, Host>,
}

#[derive(Debug)]
struct Host {
    state: HostState,
    /// `None` until a volume is attached.
    home: Option<u16>,
}

impl Homes {
    /// The core on which a volume with these attachments has to be; `None` where any will do.
    ///
    /// # Errors
    /// When its hosts are on different cores already.
    pub fn of(&self, attachments: &[Attachment]) -> Result<Option<u16>, Failed> {
        let mut found = None::<(InstanceId, u16)>;
        for host in attachments.iter().map(|attachment| attachment.host) {
            let Some(home) = self.home(host) else { continue };
            match found {
                Some((first, other)) if other != home => {
                    return Err(Failed {
                        kind: FailedKind::Refused,
                        message: format!(
                            "hosts {first} and {host} both have limits and volumes, on cores \
                             {other} and {home}, and no volume can be on both: detach the other \
                             volumes of one of them, or serve with one core"
                        ),
                    });
                }
                _ => found = Some((host, home)),
            }
        }
        Ok(found.map(|(_, home)| home))
    }

    /// Where a host is.
    pub fn home(&self, host: InstanceId) -> Option<u16> {
        self.hosts.get(&host)?.home
    }

    /// The hosts with limits among these that are on no core yet.
    pub fn unsettled(&self, attachments: &[Attachment]) -> Vec<HostState> {
        let hosts = attachments.iter().filter_map(|attachment| self.hosts.get(&attachment.host));
        hosts.filter(|host| host.home.is_none()).map(|host| host.state.clone()).collect()
    }

    /// Notes where a host is.
    pub fn settle(&mut self, id: InstanceId, home: u16) {
        if let Some(host) = self.hosts.get_mut(&id) {
            host.home = Some(home);
        }
    }

    /// Notes that a host is on no core any more, and what it had saved when it left.
    pub fn unsettle(&mut self, id: InstanceId, balances: Option<Balances>) {
        if let Some(host) = self.hosts.get_mut(&id) {
            host.home = None;
            host.state.balances = balances.unwrap_or(host.state.balances);
        }
    }

    /// Notes a host's desired state.
    pub fn insert(&mut self, state: HostState) {
        match self.hosts.get_mut(&state.id) {
            Some(host) => {
                // What it has saved is known here, not to whoever says what it should be.
                let HostState { balances, unleased, .. } = host.state;
                host.state = HostState { balances, unleased, ..state };
            }
            None => _ = self.hosts.insert(state.id, Host { state, home: None }),
        }
    }

    /// Notes what of a host's balances is unleased. What is unleased of one that is on no core;
    /// what it has then rests.
    pub fn lease(&mut self, id: InstanceId, unleased: Balances) -> Option<Balances> {
        let host = self.hosts.get_mut(&id)?;
        let known = host.state.balances;
        let least = |unleased: Option<u64>, known: Option<u64>| {
            Some(unleased?.min(known.unwrap_or(u64::MAX)))
        };
        let state = &mut host.state.unleased;
        state.operations = least(unleased.operations, known.operations).or(state.operations);
        state.bytes = least(unleased.bytes, known.bytes).or(state.bytes);
        host.home.is_none().then_some(*state)
    }

    /// Forgets a host.
    pub fn remove(&mut self, id: InstanceId) {
        self.hosts.remove(&id);
    }
}
