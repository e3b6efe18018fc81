//! What is known of nodes, volumes and hosts, and where a volume is to be. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_wire::agent::{Attachment, CreditReport, HostState, VolumeState};

use super::super::nodes::{Member, State};
use super::{Node, NodeView, Standing};

/// A node.
pub(super) struct Seat {
    pub(super) member: Member,
    /// The process that it is connected to: the end of its lease alone means nothing.
    pub(super) process: Option<String>,
    /// The connection, once there was one to its present process.
    pub(super) node: Option<Arc<dyn Node>>,
    /// Since when it has been away, after the start of the machine.
    pub(super) away_since: Option<Duration>,
    /// The process that could not be connected to.
    pub(super) refused: Option<String>,
    /// The process that was fenced.
    pub(super) fenced: Option<String>,
    /// Hosts that it was told of.
    pub(super) hosts: BTreeSet<InstanceId>,
}

impl Seat {
    pub(super) fn new(member: Member) -> Self {
        let (process, node, away_since, refused, fenced, hosts) = Default::default();
        Self { member, process, node, away_since, refused, fenced, hosts }
    }

    /// Whether its volumes are to move to others.
    pub(super) fn is_to_be_empty(&self) -> bool {
        let is_leaving = self.member.inst.as_ref().is_some_and(|inst| inst.is_leaving);
        self.member.state != State::Up || is_leaving
    }

    /// Its data plane, if that executes commands.
    pub(super) fn up(&self) -> Option<&Arc<dyn Node>> {
        self.node.as_ref().filter(|node| node.standing() == Standing::Up)
    }
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Books {
    pub(super) seats: BTreeMap<NodeId, Seat>,
    pub(super) homes: BTreeMap<VolumeId, NodeId>,
    /// Volumes as they were applied last, with the unleased amounts that they have now.
    volumes: BTreeMap<VolumeId, VolumeState>,
    /// Volumes by the hosts that they are attached to.
    by_host: BTreeMap<InstanceId, BTreeSet<VolumeId>>,
    /// Hosts with limits, likewise.
    pub(super) hosts: BTreeMap<InstanceId, HostState>,
    /// Volumes that are to be applied at their homes.
    pub(super) owed: BTreeSet<VolumeId>,
    /// Volumes whose homes etcd does not know yet.
    pub(super) unnoted: BTreeSet<VolumeId>,
    /// Volumes a node is the home of.
    loads: BTreeMap<NodeId, usize>,
}

impl Books {
    pub(super) fn new(homes: BTreeMap<VolumeId, NodeId>) -> Self {
        let mut loads = BTreeMap::new();
        homes.values().for_each(|home| *loads.entry(*home).or_default() += 1);
        Self { homes, loads, ..Self::default() }
    }

    pub(super) fn views(&self, leader: NodeId) -> Vec<NodeView> {
        let view = |(number, seat): (&NodeId, &Seat)| NodeView {
            member: seat.member.clone(),
            standing: seat.node.as_ref().map(|node| node.standing()),
            volumes: self.load(*number),
            leads: *number == leader,
        };
        self.seats.iter().map(view).collect()
    }

    /// Volumes a node is the home of.
    pub(super) fn load(&self, number: NodeId) -> usize {
        self.loads.get(&number).copied().unwrap_or(0)
    }

    /// The nodes that may get volumes.
    pub(super) fn takers(&self) -> impl Iterator<Item = NodeId> {
        let takes = |seat: &&Seat| seat.member.takes_volumes() && seat.up().is_some();
        self.seats.values().filter(takes).map(|seat| seat.member.number)
    }

    /// The node with the fewest volumes of those that may get some.
    pub(super) fn least_loaded(&self) -> Option<NodeId> {
        self.takers().min_by_key(|number| (self.load(*number), *number))
    }

    /// The data plane of a node, if it executes commands.
    pub(super) fn up(&self, number: NodeId) -> Option<Arc<dyn Node>> {
        self.seats.get(&number)?.up().cloned()
    }

    /// All nodes that execute commands.
    pub(super) fn all_up(&self) -> Vec<(NodeId, Arc<dyn Node>)> {
        let up = |(number, seat): (&NodeId, &Seat)| Some((*number, Arc::clone(seat.up()?)));
        self.seats.iter().filter_map(up).collect()
    }

    /// A node by words for messages.
    pub(super) fn name(&self, number: NodeId) -> String {
        match self.seats.get(&number) {
            Some(seat) => seat.member.name.clone(),
            None => format!("node {}", number.0),
        }
    }

    /// Makes a node a volume's home, or none.
    pub(super) fn set_home(&mut self, id: VolumeId, home: Option<NodeId>) {
        let before = match home {
            Some(home) => self.homes.insert(id, home),
            None => self.homes.remove(&id),
        };
        if let Some(load) = before.and_then(|before| self.loads.get_mut(&before)) {
            *load = load.saturating_sub(1);
        }
        if let Some(home) = home {
            *self.loads.entry(home).or_default() += 1;
        }
    }

    /// The volumes whose home a node is.
    pub(super) fn at(&self, number: NodeId) -> Vec<VolumeId> {
        let is_there = |(id, home): (&VolumeId, &NodeId)| (*home == number).then_some(*id);
        self.homes.iter().filter_map(is_there).collect()
    }

    /// A volume as it was applied last.
    pub(super) fn volume(&self, id: VolumeId) -> Option<&VolumeState> {
        self.volumes.get(&id)
    }

    /// A volume was applied. From now on it spends: what it begins with should its node be lost is
    /// what must not have been spent.
    pub(super) fn applied(&mut self, mut state: VolumeState) {
        if let Some(before) = self.volumes.get(&state.id) {
            // A data plane that held it keeps its own amount, which may be less by now.
            state.unleased = least(&state.unleased, &before.unleased);
        }
        state.balances = unspent(&state.pacing, &state.unleased);
        self.forget(state.id);
        for attachment in &state.attachments {
            self.by_host.entry(attachment.host).or_default().insert(state.id);
        }
        self.owed.remove(&state.id);
        self.volumes.insert(state.id, state);
    }

    /// What a volume begins with that is to be applied again, and its unleased part.
    pub(super) fn left(&self, id: VolumeId) -> Option<(Balances, Balances)> {
        let state = self.volumes.get(&id).filter(|_| self.owed.contains(&id))?;
        Some((state.balances, state.unleased))
    }

    /// Keeps of what a node reports what it is the home of.
    pub(super) fn of_home(&self, number: NodeId, credits: CreditReport) -> CreditReport {
        let CreditReport { mut volumes, mut hosts } = credits;
        volumes.retain(|(id, _)| self.homes.get(id) == Some(&number));
        let seat = self.seats.get(&number);
        hosts.retain(|(id, _)| seat.is_some_and(|seat| seat.hosts.contains(id)));
        CreditReport { volumes, hosts }
    }

    /// The node that had it is gone: it is to be applied at its home, with what must not have been
    /// spent.
    pub(super) fn lost(&mut self, id: VolumeId) {
        if let Some(state) = self.volumes.get_mut(&id) {
            state.balances = unspent(&state.pacing, &state.unleased);
            self.owed.insert(id);
        }
    }

    /// A node forgets its hosts, or is gone: each begins elsewhere with what must not have been
    /// spent.
    pub(super) fn lose_hosts(&mut self, number: NodeId) {
        let Some(seat) = self.seats.get_mut(&number) else { return };
        for host in std::mem::take(&mut seat.hosts) {
            self.lose_host(host);
        }
    }

    /// A node does not have a host any more: it begins elsewhere with what must not have been
    /// spent, unless more is known.
    pub(super) fn forget_host_at(&mut self, host: InstanceId, at: NodeId) {
        if let Some(seat) = self.seats.get_mut(&at) {
            seat.hosts.remove(&host);
        }
        self.lose_host(host);
    }

    /// Whoever does not have it yet begins with what must not have been spent.
    pub(super) fn lose_host(&mut self, host: InstanceId) {
        if let Some(known) = self.hosts.get_mut(&host) {
            known.balances = unspent(&known.pacing.as_volume(), &known.unleased);
        }
    }

    /// A node was told of a host, which spends from now on.
    pub(super) fn told_of_host(&mut self, host: InstanceId, number: NodeId) {
        if let Some(seat) = self.seats.get_mut(&number) {
            seat.hosts.insert(host);
        }
        self.lose_host(host);
    }

    /// What a host is to be like. What is known of its credits stays: it may be newer.
    pub(super) fn set_host(&mut self, mut state: HostState) {
        if let Some(known) = self.hosts.get(&state.id) {
            overlay(&mut state.balances, &known.balances);
            state.unleased = least(&state.unleased, &known.unleased);
        }
        self.hosts.insert(state.id, state);
    }

    /// The node that had it has given it up, with these balances; with none if it did not have it.
    pub(super) fn released(&mut self, id: VolumeId, balances: Option<Balances>) {
        let is_owed = self.owed.contains(&id);
        if let Some(state) = self.volumes.get_mut(&id) {
            match balances {
                Some(balances) => state.balances = balances,
                // It was to be applied there, with what was known of it, and was not.
                None if is_owed => {}
                None => state.balances = unspent(&state.pacing, &state.unleased),
            }
            // Whatever happens next, it is nowhere now.
            self.owed.insert(id);
        }
    }

    /// A volume is gone.
    pub(super) fn forget(&mut self, id: VolumeId) {
        let Some(before) = self.volumes.remove(&id) else { return };
        for Attachment { host, .. } in before.attachments {
            if let Some(volumes) = self.by_host.get_mut(&host) {
                volumes.remove(&id);
                if volumes.is_empty() {
                    self.by_host.remove(&host);
                }
            }
        }
    }

    /// More credits are about to be leased: should the answer be lost, they may be spent.
    pub(super) fn before_lease(&mut self, unleased: &CreditReport) {
        for (id, amounts) in &unleased.volumes {
            if let Some(state) = self.volumes.get_mut(id) {
                state.unleased = least(&state.unleased, amounts);
            }
        }
        for (id, amounts) in &unleased.hosts {
            if let Some(state) = self.hosts.get_mut(id) {
                state.unleased = least(&state.unleased, amounts);
            }
        }
    }

    /// Credits were leased: what is unleased has changed.
    pub(super) fn leased(&mut self, unleased: &CreditReport) {
        for (id, amounts) in &unleased.volumes {
            if let Some(state) = self.volumes.get_mut(id) {
                overlay(&mut state.unleased, amounts);
            }
        }
        for (id, amounts) in &unleased.hosts {
            if let Some(state) = self.hosts.get_mut(id) {
                overlay(&mut state.unleased, amounts);
            }
        }
    }

    /// The hosts with limits among those that a volume is attached to.
    pub(super) fn limited(&self, attachments: &[Attachment]) -> Vec<InstanceId> {
        let hosts = attachments.iter().map(|attachment| attachment.host);
        hosts.filter(|host| self.hosts.contains_key(host)).collect()
    }

    /// The other volumes that must be where this one is, as it is to be attached: those of its
    /// hosts with limits, those of their hosts, and so on.
    pub(super) fn group(&self, id: VolumeId, attachments: &[Attachment]) -> BTreeSet<VolumeId> {
        let mut group = BTreeSet::from([id]);
        let (mut seen, mut next) = (BTreeSet::new(), self.limited(attachments));
        while let Some(host) = next.pop() {
            if !seen.insert(host) {
                continue;
            }
            for volume in self.by_host.get(&host).into_iter().flatten() {
                if group.insert(*volume)
                    && let Some(state) = self.volumes.get(volume)
                {
                    next.extend(self.limited(&state.attachments));
                }
            }
        }
        group.remove(&id);
        group
    }

    /// Where a volume is to be, as it is to be attached: where most of its group are, else where it
    /// is, else at the node with the fewest volumes. If no node may get it, it stays where it is.
    pub(super) fn place(&self, id: VolumeId, attachments: &[Attachment]) -> Option<NodeId> {
        let takers: BTreeSet<NodeId> = self.takers().collect();
        let mut at = BTreeMap::<NodeId, usize>::new();
        for volume in self.group(id, attachments) {
            if let Some(home) = self.homes.get(&volume) {
                *at.entry(*home).or_default() += 1;
            }
        }
        let home = self.homes.get(&id).copied();
        let most = at.iter().filter(|(home, _)| takers.contains(home));
        // Of two with as many, the one where it is.
        let most = most.max_by_key(|(at, count)| (**count, Some(**at) == home));
        match (most, home) {
            (Some((most, _)), _) => Some(*most),
            (None, Some(home)) if takers.contains(&home) => Some(home),
            _ => self.least_loaded().or(home),
        }
    }

    /// Where a volume that is owed is to be, if not all of its group are at its home.
    pub(super) fn reunion(&self, id: VolumeId) -> Option<NodeId> {
        let attachments = &self.volumes.get(&id)?.attachments;
        let home = self.homes.get(&id);
        let is_elsewhere = |other: &VolumeId| self.homes.get(other) != home;
        let is_split = self.group(id, attachments).iter().any(is_elsewhere);
        if is_split { self.place(id, attachments) } else { None }
    }

    /// The other node that has a host with limits.
    pub(super) fn has_host(&self, host: InstanceId, but: NodeId) -> Option<NodeId> {
        let has = |seat: &&Seat| seat.member.number != but && seat.hosts.contains(&host);
        self.seats.values().find(has).map(|seat| seat.member.number)
    }
}

/// What a volume or a host begins with of which no more is known than what must not have been
/// spent: nothing, where that is not said. Nothing said of its balance would be a full bucket.
fn unspent(pacing: &Pacing, unleased: &Balances) -> Balances {
    let mut balances = Balances::empty(pacing);
    overlay(&mut balances, unleased);
    balances
}

/// The amounts, but no more than the others that are there.
fn least(amounts: &Balances, others: &Balances) -> Balances {
    let least = |amount: Option<u64>, other: Option<u64>| {
        amount.map(|amount| other.map_or(amount, |other| amount.min(other)))
    };
    Balances {
        operations: least(amounts.operations, others.operations),
        bytes: least(amounts.bytes, others.bytes),
    }
}

/// The amounts that are there replace those before.
pub(super) fn overlay(before: &mut Balances, amounts: &Balances) {
    before.operations = amounts.operations.or(before.operations);
    before.bytes = amounts.bytes.or(before.bytes);
}
