//! The known state of nodes, volumes and hosts, and the choice of a volume's home.
//!
//! It sends no commands. It holds connections, and only reads their state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::key_locks::Key;
use evenkeel_control::nodes::{Counts, NodeView, ProcessView, State};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_wire::agent::{Attachment, CreditReport, HostState, VolumeState};

use super::super::nodes::{Inst, Member};
use super::{Node, Standing};

/// The state of a node.
pub(super) struct NodeState {
    pub(super) member: Member,
    /// The process to which there is a connection. The end of its lease does not change it.
    pub(super) process: Option<String>,
    /// The connection to its present process, after the first one was made.
    pub(super) node: Option<Arc<dyn Node>>,
    /// Time since the start of the machine at which the node went away, or was first found without
    /// a connection and a lease.
    pub(super) away_since: Option<Duration>,
    /// Whether its present process has executed commands.
    pub(super) was_up: bool,
    /// The process to which the last attempt to connect failed.
    pub(super) refused: Option<String>,
    /// The process that was fenced.
    pub(super) fenced: Option<String>,
    /// Hosts with limits that were applied at it.
    pub(super) hosts: BTreeSet<InstanceId>,
}

impl NodeState {
    pub(super) fn new(member: Member) -> Self {
        let (process, node, away_since, was_up, refused, fenced, hosts) = Default::default();
        Self { member, process, node, away_since, was_up, refused, fenced, hosts }
    }

    /// Returns whether its volumes must move to other nodes.
    pub(super) fn is_to_be_empty(&self) -> bool {
        let is_leaving = self.member.inst.as_ref().is_some_and(|inst| inst.is_leaving);
        self.member.state != State::Up || is_leaving
    }

    /// Returns its status, which is `serving`, `leaving`, `starting`, `away` or `stopped`, and the
    /// reason if it is `away`.
    fn status(&self) -> (&'static str, Option<String>) {
        let standing = self.node.as_ref().map(|node| node.standing());
        match (&self.member.inst, standing) {
            (Some(inst), Some(Standing::Up)) if inst.is_leaving => ("leaving", None),
            (_, Some(Standing::Up)) => ("serving", None),
            (_, Some(Standing::New(_))) => ("starting", None),
            (_, Some(Standing::Away(why) | Standing::Deposed(why))) => ("away", Some(why)),
            (Some(_), None) => ("starting", None),
            (None, None) => ("stopped", None),
        }
    }

    /// Returns its data plane, if that executes commands.
    pub(super) fn up(&self) -> Option<&Arc<dyn Node>> {
        self.node.as_ref().filter(|node| node.standing() == Standing::Up)
    }
}

/// Returns the view of a node's process, with its settings that differ from those of the leader's
/// process.
fn process_view(inst: &Inst, leader: Option<&Inst>) -> ProcessView {
    ProcessView {
        api: inst.api,
        nbd: inst.nbd.clone(),
        version: inst.version.clone(),
        settings_unlike: leader.map(|leader| inst.settings_unlike(leader)).unwrap_or_default(),
    }
}

/// The other volumes that must be at the same node as a volume, and the hosts with limits that
/// require it.
#[derive(Default)]
pub(super) struct Group {
    pub(super) volumes: BTreeSet<VolumeId>,
    pub(super) hosts: BTreeSet<InstanceId>,
}

/// Returns the id of a node's key, which it publishes with its settings.
fn key_of(node_state: &NodeState) -> Option<&str> {
    node_state.member.inst.as_ref()?.settings.get("key").map(String::as_str)
}

/// Volumes that are served, by their homes.
pub(super) type ServedHomes = BTreeMap<NodeId, BTreeSet<VolumeId>>;

/// A plan that brings a volume and its group to one node.
pub(super) struct Colocation {
    /// The node.
    pub(super) place: NodeId,
    /// The volumes that are not at `place`.
    pub(super) elsewhere: BTreeSet<VolumeId>,
    /// The keys that the move must lock.
    pub(super) keys: BTreeSet<Key>,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct FleetState {
    pub(super) nodes: BTreeMap<NodeId, NodeState>,
    pub(super) homes: BTreeMap<VolumeId, NodeId>,
    /// The last applied state of each volume, with its present unleased balance.
    volumes: BTreeMap<VolumeId, VolumeState>,
    /// The balances of volumes that were released, but were not applied by this leader before.
    found: BTreeMap<VolumeId, Balances>,
    /// The attachments of volumes that earlier leaders have applied, and this leader has not.
    expected: BTreeMap<VolumeId, Vec<Attachment>>,
    /// The volumes that are attached to each host.
    by_host: BTreeMap<InstanceId, BTreeSet<VolumeId>>,
    /// The last applied state of each host with limits.
    pub(super) hosts: BTreeMap<InstanceId, HostState>,
    /// Volumes that must be applied at their homes before they are served.
    pub(super) unapplied: BTreeSet<VolumeId>,
    /// Volumes with the nodes whose present process cannot open them, for example without their
    /// key.
    pub(super) unopened: BTreeSet<(VolumeId, NodeId)>,
    /// Why volumes are not served, as was logged last.
    pub(super) unserved: BTreeMap<VolumeId, String>,
    /// Volumes whose homes may not be in etcd yet.
    pub(super) unstored: BTreeSet<VolumeId>,
    /// Number of volumes whose home each node is.
    loads: BTreeMap<NodeId, usize>,
    pub(super) counts: Counts,
}

impl FleetState {
    pub(super) fn new(homes: BTreeMap<VolumeId, NodeId>) -> Self {
        let mut loads = BTreeMap::new();
        homes.values().for_each(|home| *loads.entry(*home).or_default() += 1);
        Self { homes, loads, ..Self::default() }
    }

    pub(super) fn views(&self, leader: NodeId) -> Vec<NodeView> {
        let lead = self.nodes.get(&leader).and_then(|node_state| node_state.member.inst.as_ref());
        let mut views = Vec::new();
        for (number, node_state) in &self.nodes {
            let (status, reason) = node_state.status();
            views.push(NodeView {
                name: node_state.member.name.clone(),
                number: node_state.member.number,
                state: node_state.member.state,
                process: node_state.member.inst.as_ref().map(|inst| process_view(inst, lead)),
                status,
                reason,
                volumes: self.load(*number),
                leads: *number == leader,
            });
        }
        views
    }

    /// Returns the number of volumes whose home a node is.
    pub(super) fn load(&self, number: NodeId) -> usize {
        self.loads.get(&number).copied().unwrap_or(0)
    }

    /// Returns the nodes that may get volumes.
    pub(super) fn eligible_nodes(&self) -> impl Iterator<Item = NodeId> {
        let is_eligible = |node_state: &&NodeState| {
            node_state.member.takes_volumes() && node_state.up().is_some()
        };
        self.nodes.values().filter(is_eligible).map(|node_state| node_state.member.number)
    }

    /// Returns whether a node keeps its volumes. A node without a lease keeps them while it
    /// answers, since leases also end when etcd is away.
    fn keeps(&self, number: NodeId) -> bool {
        self.nodes
            .get(&number)
            .is_some_and(|node_state| node_state.up().is_some() && !node_state.is_to_be_empty())
    }

    /// Returns the node with the fewest volumes among those that may get volumes.
    pub(super) fn least_loaded(&self) -> Option<NodeId> {
        self.eligible_nodes().min_by_key(|number| (self.load(*number), *number))
    }

    /// Returns the id of the key of encrypted volumes: that of most nodes. `None` if no node has
    /// published one.
    fn key(&self) -> Option<&str> {
        let keys: Vec<&str> = self.nodes.values().filter_map(key_of).collect();
        let count = |key: &str| keys.iter().filter(|other| **other == key).count();
        // Of two with equal counts, that of the first node.
        keys.iter().rev().max_by_key(|key| count(key)).copied()
    }

    /// Returns whether a node has another key than the encrypted volumes, or none.
    fn lacks_key(&self, at: NodeId) -> bool {
        let key = self.key();
        key.is_some() && self.nodes.get(&at).and_then(key_of) != key
    }

    /// Returns whether a volume is applied at a node.
    fn is_served_at(&self, id: VolumeId, at: NodeId) -> bool {
        let is_applied = self.volumes.contains_key(&id) && !self.unapplied.contains(&id);
        is_applied && self.homes.get(&id) == Some(&at)
    }

    /// Returns whether a node can probably open a volume.
    fn can_open(&self, at: NodeId, id: VolumeId, is_encrypted: bool) -> bool {
        if self.is_served_at(id, at) {
            return true;
        }
        let is_refused = self.unopened.contains(&(id, at));
        !is_refused && (!is_encrypted || !self.lacks_key(at))
    }

    /// Returns whether a volume is encrypted, as far as this leader knows.
    fn is_encrypted(&self, id: VolumeId) -> bool {
        self.volumes.get(&id).is_some_and(|state| state.is_encrypted)
    }

    /// Returns whether a node can probably open all of these volumes.
    pub(super) fn can_open_all(&self, at: NodeId, mut ids: impl Iterator<Item = VolumeId>) -> bool {
        ids.all(|id| self.can_open(at, id, self.is_encrypted(id)))
    }

    /// Returns the node with the fewest volumes among those that may get a volume and its group,
    /// and can open them.
    fn target(&self, id: VolumeId, attachments: &[Attachment], encrypted: bool) -> Option<NodeId> {
        let group = self.group(id, attachments).volumes;
        let opens = |at: &NodeId| {
            self.can_open(*at, id, encrypted) && self.can_open_all(*at, group.iter().copied())
        };
        self.eligible_nodes().filter(opens).min_by_key(|number| (self.load(*number), *number))
    }

    /// Returns the node that gets a volume whose home must have none.
    pub(super) fn target_of(&self, id: VolumeId) -> Option<NodeId> {
        self.target(id, self.attachments(id), self.is_encrypted(id))
    }

    /// Returns whether the home of a volume that could not be opened is another node now, or may
    /// be: another node can probably open it.
    pub(super) fn has_other_place(&self, state: &VolumeState) -> bool {
        let place = self.place(state.id, &state.attachments, state.is_encrypted);
        let opens = |at: &NodeId| self.can_open(*at, state.id, state.is_encrypted);
        self.homes.contains_key(&state.id) && place.is_some_and(|place| opens(&place))
    }

    /// Records that the present process of a node cannot open a volume.
    pub(super) fn mark_unopened(&mut self, id: VolumeId, at: NodeId) {
        self.unopened.insert((id, at));
    }

    /// Forgets which volumes the former process of a node could not open.
    pub(super) fn forget_unopened_at(&mut self, at: NodeId) {
        self.unopened.retain(|(_, node)| *node != at);
    }

    /// Returns the data plane of a node, if it executes commands.
    pub(super) fn up(&self, number: NodeId) -> Option<Arc<dyn Node>> {
        self.nodes.get(&number)?.up().cloned()
    }

    /// Returns all nodes that execute commands.
    pub(super) fn all_up(&self) -> Vec<(NodeId, Arc<dyn Node>)> {
        let up = |(number, node_state): (&NodeId, &NodeState)| {
            Some((*number, Arc::clone(node_state.up()?)))
        };
        self.nodes.iter().filter_map(up).collect()
    }

    /// Returns the name of a node that has a lease and can be reached according to etcd, but
    /// executes no commands. A node that is starting is left out: it has no volume open yet.
    pub(super) fn silent(&self) -> Option<String> {
        let is_silent = |node_state: &&NodeState| {
            node_state.member.reachable().is_some() && node_state.up().is_none()
        };
        self.nodes.values().find(is_silent).map(|node_state| node_state.member.name.clone())
    }

    /// Returns the name of a node for messages.
    pub(super) fn name(&self, number: NodeId) -> String {
        match self.nodes.get(&number) {
            Some(node_state) => node_state.member.name.clone(),
            None => format!("node {}", number.0),
        }
    }

    /// Sets or removes the home of a volume, and counts moves and takeovers.
    pub(super) fn set_home(&mut self, id: VolumeId, home: Option<NodeId>) {
        let before = match home {
            Some(home) => self.homes.insert(id, home),
            None => self.homes.remove(&id),
        };
        if let (Some(before), Some(home)) = (before, home)
            && before != home
        {
            let is_there =
                self.nodes.get(&before).is_some_and(|node_state| node_state.node.is_some());
            let counts = &mut self.counts;
            *(if is_there { &mut counts.moves } else { &mut counts.takeovers }) += 1;
        }
        if let Some(load) = before.and_then(|before| self.loads.get_mut(&before)) {
            *load = load.saturating_sub(1);
        }
        if let Some(home) = home {
            *self.loads.entry(home).or_default() += 1;
        }
    }

    /// Returns the volumes whose home a node is.
    pub(super) fn at(&self, number: NodeId) -> Vec<VolumeId> {
        let is_there = |(id, home): (&VolumeId, &NodeId)| (*home == number).then_some(*id);
        self.homes.iter().filter_map(is_there).collect()
    }

    /// Returns the last applied state of a volume.
    pub(super) fn volume(&self, id: VolumeId) -> Option<&VolumeState> {
        self.volumes.get(&id)
    }

    /// Records that a volume was applied, so that it spends credits. If its node is lost, it begins
    /// with its unleased balance.
    pub(super) fn mark_applied(&mut self, mut state: VolumeState, home: NodeId) {
        self.unopened.remove(&(state.id, home));
        self.unserved.remove(&state.id);
        if let Some(before) = self.volumes.get(&state.id) {
            // A data plane that already holds the volume keeps its own amount, which may be less.
            state.unleased = least(&state.unleased, &before.unleased);
        }
        state.balances = unspent(&state.pacing, &state.unleased);
        self.forget(state.id);
        for attachment in &state.attachments {
            self.by_host.entry(attachment.host).or_default().insert(state.id);
        }
        self.unapplied.remove(&state.id);
        self.volumes.insert(state.id, state);
    }

    /// Returns the balances with which a volume must be applied again, and its unleased part;
    /// `None` if its home has it already.
    pub(super) fn remaining_balances(&self, id: VolumeId) -> Option<(Balances, Balances)> {
        if let Some(found) = self.found.get(&id) {
            return Some((*found, Balances::default()));
        }
        let state = self.volumes.get(&id).filter(|_| self.unapplied.contains(&id))?;
        Some((state.balances, state.unleased))
    }

    /// Returns the part of a node's report about the volumes and hosts that are at this node.
    pub(super) fn only_at_home(&self, number: NodeId, credits: CreditReport) -> CreditReport {
        let CreditReport { mut volumes, mut hosts } = credits;
        volumes.retain(|(id, _)| self.homes.get(id) == Some(&number));
        let node_state = self.nodes.get(&number);
        hosts.retain(|(id, _)| node_state.is_some_and(|node_state| node_state.hosts.contains(id)));
        CreditReport { volumes, hosts }
    }

    /// Records that the node that served a volume is gone. The volume must be applied at its home
    /// with its unleased balance.
    pub(super) fn mark_lost(&mut self, id: VolumeId) {
        // The gone node may have applied the volume without an answer, and spent credits since.
        self.found.remove(&id);
        if let Some(state) = self.volumes.get_mut(&id) {
            state.balances = unspent(&state.pacing, &state.unleased);
            self.unapplied.insert(id);
        }
    }

    /// Removes all hosts of a node that has lost them. Each begins elsewhere with its unleased
    /// balance.
    pub(super) fn forget_hosts_at(&mut self, number: NodeId) {
        let Some(node_state) = self.nodes.get_mut(&number) else { return };
        for host in std::mem::take(&mut node_state.hosts) {
            self.reset_host_balances(host);
        }
    }

    /// Removes a host from a node. The host begins elsewhere with its unleased balance, unless the
    /// caller sets a known one.
    pub(super) fn forget_host_at(&mut self, host: InstanceId, at: NodeId) {
        if let Some(node_state) = self.nodes.get_mut(&at) {
            node_state.hosts.remove(&host);
        }
        self.reset_host_balances(host);
    }

    /// Sets the balances of a host to its unleased ones, for the next node that gets the host.
    pub(super) fn reset_host_balances(&mut self, host: InstanceId) {
        if let Some(known) = self.hosts.get_mut(&host) {
            known.balances = unspent(&known.pacing.as_volume(), &known.unleased);
        }
    }

    /// Records that a host was applied at a node, and spends credits there from now on.
    pub(super) fn mark_host_applied(&mut self, host: InstanceId, number: NodeId) {
        if let Some(node_state) = self.nodes.get_mut(&number) {
            node_state.hosts.insert(host);
        }
        self.reset_host_balances(host);
    }

    /// Sets the state of a host. The known balances stay, since they may be newer.
    pub(super) fn set_host(&mut self, mut state: HostState) {
        if let Some(known) = self.hosts.get(&state.id) {
            overlay(&mut state.balances, &known.balances);
            state.unleased = least(&state.unleased, &known.unleased);
        }
        self.hosts.insert(state.id, state);
    }

    /// Records that a node has released a volume with these balances; `None` if the node did not
    /// have the volume.
    pub(super) fn mark_released(&mut self, id: VolumeId, balances: Option<Balances>) {
        let is_unapplied = self.unapplied.contains(&id);
        if let Some(state) = self.volumes.get_mut(&id) {
            match balances {
                Some(balances) => state.balances = balances,
                // The node was to get the volume and did not: the known balances still hold.
                None if is_unapplied => {}
                None => state.balances = unspent(&state.pacing, &state.unleased),
            }
            // No node serves the volume now.
            self.unapplied.insert(id);
        } else if let Some(balances) = balances {
            self.found.insert(id, balances);
        }
    }

    /// Returns which of these volumes are served, by their homes that answer.
    pub(super) fn served_homes(&self, ids: &BTreeSet<VolumeId>) -> ServedHomes {
        let mut served = ServedHomes::new();
        for id in ids.iter().filter(|id| !self.unapplied.contains(id)) {
            if let Some(home) = self.homes.get(id).filter(|home| self.up(**home).is_some()) {
                served.entry(*home).or_default().insert(*id);
            }
        }
        served
    }

    /// Removes a volume, except its home.
    pub(super) fn forget(&mut self, id: VolumeId) {
        self.found.remove(&id);
        let attachments = self.volumes.remove(&id).map(|before| before.attachments);
        let expected = self.expected.remove(&id);
        for Attachment { host, .. } in attachments.or(expected).unwrap_or_default() {
            if let Some(volumes) = self.by_host.get_mut(&host) {
                volumes.remove(&id);
                if volumes.is_empty() {
                    self.by_host.remove(&host);
                }
            }
        }
    }

    /// Reduces the unleased balances before more credits are leased. If the answer is lost, the
    /// data plane may spend these credits.
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

    /// Records the unleased balances that a node has confirmed.
    pub(super) fn mark_leased(&mut self, unleased: &CreditReport) {
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

    /// Returns the hosts with limits among these attachments.
    pub(super) fn limited(&self, attachments: &[Attachment]) -> Vec<InstanceId> {
        let hosts = attachments.iter().map(|attachment| attachment.host);
        hosts.filter(|host| self.hosts.contains_key(host)).collect()
    }

    /// Returns the group of a volume with these attachments: the volumes of its hosts with limits,
    /// the volumes of their hosts with limits, and so on.
    pub(super) fn group(&self, id: VolumeId, attachments: &[Attachment]) -> Group {
        let mut volumes = BTreeSet::from([id]);
        let mut hosts = BTreeSet::new();
        let mut next = self.limited(attachments);
        while let Some(host) = next.pop() {
            if !hosts.insert(host) {
                continue;
            }
            for volume in self.by_host.get(&host).into_iter().flatten() {
                if volumes.insert(*volume) {
                    next.extend(self.limited(self.attachments(*volume)));
                }
            }
        }
        volumes.remove(&id);
        Group { volumes, hosts }
    }

    /// Plans to bring a volume with these attachments and its group to a node.
    pub(super) fn colocation(
        &self,
        id: VolumeId,
        attachments: &[Attachment],
        place: NodeId,
    ) -> Colocation {
        let Group { volumes, hosts } = self.group(id, attachments);
        let all = volumes.into_iter().chain([id]);
        let elsewhere: BTreeSet<_> = all.filter(|it| self.homes.get(it) != Some(&place)).collect();
        let keys = elsewhere.iter().chain([&id]).copied().map(Key::Volume);
        let keys = keys.chain(hosts.into_iter().map(Key::Host)).collect();
        Colocation { place, elsewhere, keys }
    }

    /// Returns the known attachments of a volume.
    pub(super) fn attachments(&self, id: VolumeId) -> &[Attachment] {
        match self.volumes.get(&id) {
            Some(state) => &state.attachments,
            None => self.expected.get(&id).map_or(&[], Vec::as_slice),
        }
    }

    /// Records that an earlier leader may have applied a volume with these attachments.
    pub(super) fn expect(&mut self, id: VolumeId, attachments: Vec<Attachment>) {
        for attachment in &attachments {
            self.by_host.entry(attachment.host).or_default().insert(id);
        }
        self.expected.insert(id, attachments);
    }

    /// Returns the keys to lock before a volume is applied at its home.
    pub(super) fn keys(&self, id: VolumeId) -> BTreeSet<Key> {
        let hosts = self.limited(self.attachments(id)).into_iter().map(Key::Host);
        hosts.chain([Key::Volume(id)]).collect()
    }

    /// Chooses the home of a volume with these attachments: the node with most of its group, else
    /// its present home, else the node with the fewest volumes, among those that can open it. If
    /// there is none, its present home.
    pub(super) fn place(
        &self,
        id: VolumeId,
        attachments: &[Attachment],
        is_encrypted: bool,
    ) -> Option<NodeId> {
        let mut at = BTreeMap::<NodeId, usize>::new();
        for volume in self.group(id, attachments).volumes {
            if let Some(home) = self.homes.get(&volume) {
                *at.entry(*home).or_default() += 1;
            }
        }
        let home = self.homes.get(&id).copied();
        let serves = |home: NodeId| self.keeps(home) && self.can_open(home, id, is_encrypted);
        let most = at.iter().filter(|(home, _)| serves(**home));
        // Of two nodes with equal counts, the present home.
        let most = most.max_by_key(|(at, count)| (**count, Some(**at) == home));
        match (most, home) {
            (Some((most, _)), _) => Some(*most),
            (None, Some(home)) if serves(home) => Some(home),
            _ => self.target(id, attachments, is_encrypted).or(home),
        }
    }

    /// Returns the home of a volume of a lost node: as [`Self::place`], and if no node can open it,
    /// one that may get volumes.
    pub(super) fn place_of_lost(&self, id: VolumeId, attachments: &[Attachment]) -> Option<NodeId> {
        let is_eligible = |at: &NodeId| self.eligible_nodes().any(|eligible| eligible == *at);
        let place = self.place(id, attachments, self.is_encrypted(id)).filter(is_eligible);
        place.or_else(|| self.least_loaded())
    }

    /// Returns the node to which an unapplied volume must move, to join its group or since its home
    /// cannot open it; `None` if it stays.
    pub(super) fn target_of_unapplied(&self, id: VolumeId) -> Option<NodeId> {
        let state = self.volumes.get(&id)?;
        let home = self.homes.get(&id);
        if home.is_some_and(|home| !self.can_open(*home, id, state.is_encrypted)) {
            let target = self.target_of(id);
            if target.is_some() {
                return target;
            }
        }
        let is_elsewhere = |other: &VolumeId| self.homes.get(other) != home;
        let is_split = self.group(id, &state.attachments).volumes.iter().any(is_elsewhere);
        if is_split { self.place(id, &state.attachments, state.is_encrypted) } else { None }
    }

    /// Returns the nodes at which a host was applied; `Err` with a node that is away and has
    /// volumes.
    pub(super) fn nodes_of(&mut self, host: InstanceId) -> Result<Vec<Arc<dyn Node>>, NodeId> {
        let knows = |(number, node_state): (&NodeId, &NodeState)| {
            node_state.hosts.contains(&host).then(|| (*number, node_state.up().cloned()))
        };
        let all: Vec<_> = self.nodes.iter().filter_map(knows).collect();
        let mut nodes = Vec::new();
        for (number, node) in all {
            match node {
                Some(node) => nodes.push(node),
                // Without a volume, no credits of the host are spent there.
                None if self.load(number) == 0 => self.forget_host_at(host, number),
                None => return Err(number),
            }
        }
        Ok(nodes)
    }

    /// Returns a node other than `but` at which a host was applied.
    pub(super) fn other_node_of(&self, host: InstanceId, but: NodeId) -> Option<NodeId> {
        let has = |node_state: &&NodeState| {
            node_state.member.number != but && node_state.hosts.contains(&host)
        };
        self.nodes.values().find(has).map(|node_state| node_state.member.number)
    }
}

impl FleetState {
    /// Asserts the invariants of the state.
    ///
    /// # Panics
    /// If one does not hold.
    pub(super) fn invariants(&self) {
        for (number, node_state) in &self.nodes {
            assert_eq!(*number, node_state.member.number, "a node under another number");
        }
        let mut loads = BTreeMap::<NodeId, usize>::new();
        for home in self.homes.values() {
            *loads.entry(*home).or_default() += 1;
        }
        for number in self.loads.keys().chain(self.nodes.keys()) {
            let counted = loads.get(number).copied().unwrap_or(0);
            assert_eq!(self.load(*number), counted, "the volumes of node {}", number.0);
        }
        self.check_volumes();
        self.check_hosts();
    }

    fn check_volumes(&self) {
        for (id, state) in &self.volumes {
            assert_eq!(*id, state.id, "a volume under another id");
            assert!(self.homes.contains_key(id), "{id} was applied, and has no home");
            assert!(!self.found.contains_key(id), "{id} has two balances");
            assert!(!self.expected.contains_key(id), "{id} was applied, and is still expected");
        }
        for id in &self.unapplied {
            assert!(self.volumes.contains_key(id), "{id} must be applied, and is unknown");
        }
        let known = self.volumes.keys().chain(self.expected.keys());
        let mut by_host = BTreeMap::<InstanceId, BTreeSet<VolumeId>>::new();
        for id in known {
            for attachment in self.attachments(*id) {
                by_host.entry(attachment.host).or_default().insert(*id);
            }
        }
        assert_eq!(self.by_host, by_host, "the volumes by host");
    }

    /// Asserts that each host is at one node at most.
    fn check_hosts(&self) {
        let mut nodes = BTreeMap::<InstanceId, NodeId>::new();
        for (number, node_state) in &self.nodes {
            for host in &node_state.hosts {
                let other = nodes.insert(*host, *number);
                assert_eq!(other, None, "{host} is at node {}, too", number.0);
            }
        }
        for (id, state) in &self.hosts {
            assert_eq!(*id, state.id, "a host under another id");
        }
    }
}

/// Returns the balances of a volume or a host of which only the unleased amounts are known. An
/// unknown amount becomes zero, since a missing balance would mean a full bucket.
fn unspent(pacing: &Pacing, unleased: &Balances) -> Balances {
    let mut balances = Balances::empty(pacing);
    overlay(&mut balances, unleased);
    balances
}

/// Returns the amounts, each limited to the other amount if there is one.
fn least(amounts: &Balances, others: &Balances) -> Balances {
    let least = |amount: Option<u64>, other: Option<u64>| {
        amount.map(|amount| other.map_or(amount, |other| amount.min(other)))
    };
    Balances {
        operations: least(amounts.operations, others.operations),
        bytes: least(amounts.bytes, others.bytes),
    }
}

/// Replaces each amount in `before` that is present in `amounts`.
pub(super) fn overlay(before: &mut Balances, amounts: &Balances) {
    before.operations = amounts.operations.or(before.operations);
    before.bytes = amounts.bytes.or(before.bytes);
}
