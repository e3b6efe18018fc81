//! What is known of nodes, volumes and hosts, and where a volume is to be.
//!
//! It sends no command. Of the connections that it holds it asks only how they stand.

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

/// A node.
pub(super) struct NodeState {
    pub(super) member: Member,
    /// The process that it is connected to: the end of its lease alone means nothing.
    pub(super) process: Option<String>,
    /// The connection, once there was one to its present process.
    pub(super) node: Option<Arc<dyn Node>>,
    /// Since when it has been away, or never been connected to, after the start of the machine.
    pub(super) away_since: Option<Duration>,
    /// Whether its present process has executed commands.
    pub(super) was_up: bool,
    /// The process that could not be connected to.
    pub(super) refused: Option<String>,
    /// The process that was fenced.
    pub(super) fenced: Option<String>,
    /// Hosts that it was told of.
    pub(super) hosts: BTreeSet<InstanceId>,
}

impl NodeState {
    pub(super) fn new(member: Member) -> Self {
        let (process, node, away_since, was_up, refused, fenced, hosts) = Default::default();
        Self { member, process, node, away_since, was_up, refused, fenced, hosts }
    }

    /// Whether its volumes are to move to others.
    pub(super) fn is_to_be_empty(&self) -> bool {
        let is_leaving = self.member.inst.as_ref().is_some_and(|inst| inst.is_leaving);
        self.member.state != State::Up || is_leaving
    }

    /// Returns what it does: `serving`, `leaving`, `starting`, `away` or `stopped`; and the reason
    /// for which it is away.
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

    /// Its data plane, if that executes commands.
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

/// The other volumes that must be where one is, and the hosts with limits because of which.
#[derive(Default)]
pub(super) struct Bound {
    pub(super) volumes: BTreeSet<VolumeId>,
    pub(super) hosts: BTreeSet<InstanceId>,
}

/// What has to be done so that a volume and those that it is bound to are at one node.
pub(super) struct Colocation {
    /// The node.
    pub(super) place: NodeId,
    /// Those that are not there.
    pub(super) elsewhere: BTreeSet<VolumeId>,
    /// What is locked for that.
    pub(super) keys: BTreeSet<Key>,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Books {
    pub(super) seats: BTreeMap<NodeId, NodeState>,
    pub(super) homes: BTreeMap<VolumeId, NodeId>,
    /// Volumes as they were applied last, with the unleased amounts that they have now.
    volumes: BTreeMap<VolumeId, VolumeState>,
    /// What volumes were released with that were never applied: earlier leaders did that.
    found: BTreeMap<VolumeId, Balances>,
    /// The attachments of volumes that are served, but were not applied by this leader yet.
    expected: BTreeMap<VolumeId, Vec<Attachment>>,
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
    pub(super) counts: Counts,
}

impl Books {
    pub(super) fn new(homes: BTreeMap<VolumeId, NodeId>) -> Self {
        let mut loads = BTreeMap::new();
        homes.values().for_each(|home| *loads.entry(*home).or_default() += 1);
        Self { homes, loads, ..Self::default() }
    }

    pub(super) fn views(&self, leader: NodeId) -> Vec<NodeView> {
        let lead = self.seats.get(&leader).and_then(|seat| seat.member.inst.as_ref());
        let mut views = Vec::new();
        for (number, seat) in &self.seats {
            let (status, reason) = seat.status();
            views.push(NodeView {
                name: seat.member.name.clone(),
                number: seat.member.number,
                state: seat.member.state,
                process: seat.member.inst.as_ref().map(|inst| process_view(inst, lead)),
                status,
                reason,
                volumes: self.load(*number),
                leads: *number == leader,
            });
        }
        views
    }

    /// Volumes a node is the home of.
    pub(super) fn load(&self, number: NodeId) -> usize {
        self.loads.get(&number).copied().unwrap_or(0)
    }

    /// The nodes that may get volumes.
    pub(super) fn takers(&self) -> impl Iterator<Item = NodeId> {
        let takes = |seat: &&NodeState| seat.member.takes_volumes() && seat.up().is_some();
        self.seats.values().filter(takes).map(|seat| seat.member.number)
    }

    /// Whether a node keeps the volumes that it has. One without a lease does for as long as it
    /// answers: etcd may have been away.
    fn keeps(&self, number: NodeId) -> bool {
        self.seats.get(&number).is_some_and(|seat| seat.up().is_some() && !seat.is_to_be_empty())
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
        let up = |(number, seat): (&NodeId, &NodeState)| Some((*number, Arc::clone(seat.up()?)));
        self.seats.iter().filter_map(up).collect()
    }

    /// The name of a node whose process lives and serves as far as etcd knows, and executes no
    /// commands. One that is starting has no volume open yet.
    pub(super) fn silent(&self) -> Option<String> {
        let is_silent =
            |seat: &&NodeState| seat.member.reachable().is_some() && seat.up().is_none();
        self.seats.values().find(is_silent).map(|seat| seat.member.name.clone())
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
        if let (Some(before), Some(home)) = (before, home)
            && before != home
        {
            let is_there = self.seats.get(&before).is_some_and(|seat| seat.node.is_some());
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
        if let Some(found) = self.found.get(&id) {
            return Some((*found, Balances::default()));
        }
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
        // It may have been applied there, without an answer, and have spent since.
        self.found.remove(&id);
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
        } else if let Some(balances) = balances {
            self.found.insert(id, balances);
        }
    }

    /// A volume is gone.
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

    /// What must be where this volume is, as it is to be attached: the volumes of its hosts with
    /// limits, those of their hosts, and so on.
    pub(super) fn bound(&self, id: VolumeId, attachments: &[Attachment]) -> Bound {
        let (mut volumes, mut hosts) = (BTreeSet::from([id]), BTreeSet::new());
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
        Bound { volumes, hosts }
    }

    /// How a volume gets to a node, with all that is bound to it.
    pub(super) fn gathering(
        &self,
        id: VolumeId,
        attachments: &[Attachment],
        place: NodeId,
    ) -> Colocation {
        let Bound { volumes, hosts } = self.bound(id, attachments);
        let all = volumes.into_iter().chain([id]);
        let elsewhere: BTreeSet<_> = all.filter(|it| self.homes.get(it) != Some(&place)).collect();
        let keys = elsewhere.iter().chain([&id]).copied().map(Key::Volume);
        let keys = keys.chain(hosts.into_iter().map(Key::Host)).collect();
        Colocation { place, elsewhere, keys }
    }

    /// What a volume is attached to as it was applied last, as far as is known.
    pub(super) fn attachments(&self, id: VolumeId) -> &[Attachment] {
        match self.volumes.get(&id) {
            Some(state) => &state.attachments,
            None => self.expected.get(&id).map_or(&[], Vec::as_slice),
        }
    }

    /// An earlier leader may have applied a volume like this.
    pub(super) fn expect(&mut self, id: VolumeId, attachments: Vec<Attachment>) {
        for attachment in &attachments {
            self.by_host.entry(attachment.host).or_default().insert(id);
        }
        self.expected.insert(id, attachments);
    }

    /// What is locked to apply a volume where it is.
    pub(super) fn keys(&self, id: VolumeId) -> BTreeSet<Key> {
        let hosts = self.limited(self.attachments(id)).into_iter().map(Key::Host);
        hosts.chain([Key::Volume(id)]).collect()
    }

    /// Where a volume is to be, as it is to be attached: where most of its group are, else where it
    /// is, else at the node with the fewest volumes. If no node may get it, it stays where it is.
    pub(super) fn place(&self, id: VolumeId, attachments: &[Attachment]) -> Option<NodeId> {
        let mut at = BTreeMap::<NodeId, usize>::new();
        for volume in self.bound(id, attachments).volumes {
            if let Some(home) = self.homes.get(&volume) {
                *at.entry(*home).or_default() += 1;
            }
        }
        let home = self.homes.get(&id).copied();
        let most = at.iter().filter(|(home, _)| self.keeps(**home));
        // Of two with as many, the one where it is.
        let most = most.max_by_key(|(at, count)| (**count, Some(**at) == home));
        match (most, home) {
            (Some((most, _)), _) => Some(*most),
            (None, Some(home)) if self.keeps(home) => Some(home),
            _ => self.least_loaded().or(home),
        }
    }

    /// Where a volume that is owed is to be, if not all of its group are at its home.
    pub(super) fn reunion(&self, id: VolumeId) -> Option<NodeId> {
        let attachments = &self.volumes.get(&id)?.attachments;
        let home = self.homes.get(&id);
        let is_elsewhere = |other: &VolumeId| self.homes.get(other) != home;
        let is_split = self.bound(id, attachments).volumes.iter().any(is_elsewhere);
        if is_split { self.place(id, attachments) } else { None }
    }

    /// The nodes that know a host; `Err` with one that is away.
    pub(super) fn nodes_of(&mut self, host: InstanceId) -> Result<Vec<Arc<dyn Node>>, NodeId> {
        let knows = |(number, seat): (&NodeId, &NodeState)| {
            seat.hosts.contains(&host).then(|| (*number, seat.up().cloned()))
        };
        let all: Vec<_> = self.seats.iter().filter_map(knows).collect();
        let mut nodes = Vec::new();
        for (number, node) in all {
            match node {
                Some(node) => nodes.push(node),
                // Nobody spends there.
                None if self.load(number) == 0 => self.forget_host_at(host, number),
                None => return Err(number),
            }
        }
        Ok(nodes)
    }

    /// The other node that has a host with limits.
    pub(super) fn has_host(&self, host: InstanceId, but: NodeId) -> Option<NodeId> {
        let has = |seat: &&NodeState| seat.member.number != but && seat.hosts.contains(&host);
        self.seats.values().find(has).map(|seat| seat.member.number)
    }
}

impl Books {
    /// Asserts what holds between any two changes of the state.
    ///
    /// # Panics
    /// If it does not hold.
    pub(super) fn invariants(&self) {
        for (number, seat) in &self.seats {
            assert_eq!(*number, seat.member.number, "a node under another number");
        }
        let mut loads = BTreeMap::<NodeId, usize>::new();
        for home in self.homes.values() {
            *loads.entry(*home).or_default() += 1;
        }
        for number in self.loads.keys().chain(self.seats.keys()) {
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
        for id in &self.owed {
            assert!(self.volumes.contains_key(id), "{id} is to be applied, and is not known");
        }
        let known = self.volumes.keys().chain(self.expected.keys());
        let mut by_host = BTreeMap::<InstanceId, BTreeSet<VolumeId>>::new();
        for id in known {
            for attachment in self.attachments(*id) {
                by_host.entry(attachment.host).or_default().insert(*id);
            }
        }
        assert_eq!(self.by_host, by_host, "the volumes of hosts, kept and counted");
    }

    /// A host spends its credits at one node.
    fn check_hosts(&self) {
        let mut nodes = BTreeMap::<InstanceId, NodeId>::new();
        for (number, seat) in &self.seats {
            for host in &seat.hosts {
                let other = nodes.insert(*host, *number);
                assert_eq!(other, None, "{host} is at node {}, too", number.0);
            }
        }
        for (id, state) in &self.hosts {
            assert_eq!(*id, state.id, "a host under another id");
        }
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
