//! Sends each command of the control plane to the nodes concerned: the home of a volume, the nodes
//! that have a host, or all nodes. A command that every node answers alike goes to one node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_control::key_locks::{Key, KeyGuard};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::latency::Latencies;
use evenkeel_wire::agent::{
    Agent, BackgroundReport, Command, CreditReport, Failed, FailedKind, Reply, Report, VolumeState,
};

use super::moves::{done, is_refusal, retryable};
use super::state::{Colocation, ServedHomes, overlay};
use super::{Fleet, Node, not_leading, not_yet, refused};

impl Agent for Fleet {
    fn call(&self, command: Command) -> Reply {
        self.route(command).unwrap_or_else(Reply::Failed)
    }
}

fn success(done: Result<(), Failed>) -> Result<Reply, Failed> {
    done.map(|()| Reply::Done)
}

impl Fleet {
    fn route(&self, command: Command) -> Result<Reply, Failed> {
        if self.is_over() {
            return Err(not_leading());
        }
        match command {
            Command::Create(state) => success(self.apply(state, Command::Create)),
            Command::CreateFrom(state, of) => {
                success(self.apply(state, |state| Command::CreateFrom(state, of)))
            }
            Command::Apply(state) => success(self.apply(state, Command::Apply)),
            Command::Grow(state, from) => {
                success(self.apply(state, |state| Command::Grow(state, from)))
            }
            Command::Delete(id) => success(self.delete(id)),
            Command::Release(id) => self.at_home(id, Command::Release(id)),
            Command::ApplyHost(state) => success(self.apply_host(state)),
            Command::DeleteHost(id) => success(self.delete_host(id)),
            Command::SetBalances(id, _) | Command::Verify(id, _) => self.at_home(id, command),
            Command::Snapshot(of, _) => self.at_home(of, command),
            Command::SnapshotSet(set) => self.snapshots_of_a_moment(set),
            Command::DeleteSnapshot(id) => self.delete_snapshot(id),
            Command::Lease(unleased) => self.lease(&unleased),
            Command::Report => self.report().map(Reply::Report),
            Command::ReportOf(ids) => self.report_of(&ids).map(Reply::Report),
            Command::Balances => self.balances(),
            Command::Latencies(Some(id)) => self.at_home(id, Command::Latencies(Some(id))),
            Command::Latencies(None) => self.latencies(),
            Command::Capacity => self.capacity(),
            Command::Background => self.background(),
            Command::Calibrated(_) | Command::SetBackground(_) => success(self.call_all(&command)),
            Command::Divide(_) => Err(refused("each node has a part of its own".to_owned())),
            Command::Stored
            | Command::Space
            | Command::Snapshots
            | Command::SnapshotsOf(_)
            | Command::SnapshotUnits(_)
            | Command::ReadSnapshot(..)
            | Command::StartSnapshot(_)
            | Command::PutSnapshot(..)
            | Command::CompleteSnapshot(_)
            | Command::VerifySnapshot(..)
            | Command::VerifyStore(_)
            | Command::Salvage(_)
            | Command::StoreHealth
            | Command::Filled(_) => Ok(self.any_reachable_node()?.call(command)),
        }
    }

    /// Returns the node of this process, or another one if it executes no commands. For commands
    /// that every node answers alike.
    fn any_reachable_node(&self) -> Result<Arc<dyn Node>, Failed> {
        let fleet_state = self.state();
        let any = || fleet_state.all_up().into_iter().next().map(|(_, node)| node);
        let node = fleet_state.up(self.cluster.here()).or_else(any);
        node.ok_or_else(|| {
            let message = "no node of the cluster answers".to_owned();
            Failed { kind: FailedKind::Unanswered, message }
        })
    }

    /// Returns a node for a command about a volume without a home.
    ///
    /// # Errors
    /// If a node that may have the volume open does not answer.
    fn node_without_home(&self, id: VolumeId) -> Result<Arc<dyn Node>, Failed> {
        if let Some(node) = self.state().silent() {
            return Err(not_yet(format!(
                "the node {node} does not answer, and may have {id} open; it is deleted when the \
                 node answers or is fenced"
            )));
        }
        self.any_reachable_node()
    }

    /// Applies a volume at its home, after moving its group to one node if necessary. If its home
    /// cannot open it, another node becomes its home.
    fn apply(
        &self,
        state: VolumeState,
        command: impl Fn(VolumeState) -> Command,
    ) -> Result<(), Failed> {
        let nodes = self.state().nodes.len();
        for _ in 1..nodes {
            let applied = self.apply_once(state.clone(), &command);
            let is_damaged =
                applied.as_ref().is_err_and(|failed| failed.kind == FailedKind::Damaged);
            if !is_damaged || !self.state().has_other_place(&state) {
                return applied;
            }
        }
        self.apply_once(state, &command)
    }

    fn apply_once(
        &self,
        state: VolumeState,
        command: impl Fn(VolumeState) -> Command,
    ) -> Result<(), Failed> {
        let id = state.id;
        let (_guard, Colocation { place, elsewhere, .. }) = self.lock_found(|fleet_state| {
            let none = || not_yet(format!("no node of the cluster may have {id} now"));
            let place = fleet_state.place(id, &state.attachments, state.is_encrypted);
            let place = place.ok_or_else(none)?;
            let colocation = fleet_state.colocation(id, &state.attachments, place);
            Ok((colocation.keys.clone(), colocation))
        })?;
        let is_first = self.home(id).is_none();
        let former = if elsewhere.is_empty() {
            ServedHomes::new()
        } else {
            self.colocate(&elsewhere, place, Some(id))?.former
        };
        let mut state = state;
        if let Some((balances, unleased)) = self.state().remaining_balances(id) {
            overlay(&mut state.balances, &balances);
            overlay(&mut state.unleased, &unleased);
        }
        let applied = self.apply_at(place, state, command);
        match applied {
            Err(refused) if is_refusal(&refused) && is_first => {
                self.forget(id);
                Err(refused)
            }
            // Only a volume that has moved here is taken back.
            Err(refused) if is_refusal(&refused) && elsewhere.contains(&id) => {
                Err(self.take_back(&former, &refused))
            }
            applied => applied,
        }
    }

    /// Removes a volume and its home. If etcd does not answer, its home is removed there later.
    pub(super) fn forget(&self, id: VolumeId) {
        let noted = self.cluster.store_homes(&[(id, None)]);
        let mut fleet_state = self.state();
        match noted {
            Ok(()) => _ = fleet_state.unstored.remove(&id),
            Err(_) => _ = fleet_state.unstored.insert(id),
        }
        fleet_state.set_home(id, None);
        fleet_state.forget(id);
        fleet_state.unapplied.remove(&id);
        fleet_state.unopened.retain(|(unopened, _)| *unopened != id);
        fleet_state.unserved.remove(&id);
    }

    fn delete(&self, id: VolumeId) -> Result<(), Failed> {
        let _guard = self.lock_volume(id)?;
        let node = match self.home(id) {
            Some(home) => {
                let node = self.state().up(home);
                node.ok_or_else(|| self.no_answer(id, home))?
            }
            None => self.node_without_home(id)?,
        };
        done(node.call(Command::Delete(id)))?;
        self.forget(id);
        Ok(())
    }

    /// Executes a command about one volume at its home.
    fn at_home(&self, id: VolumeId, command: Command) -> Result<Reply, Failed> {
        if self.state().unapplied.contains(&id) {
            self.serve_unapplied(id)?;
        }
        let _guard = match command {
            // These commands change nothing.
            Command::Latencies(_) | Command::Verify(..) => None,
            _ => Some(self.lock_volume(id)?),
        };
        if self.state().unapplied.contains(&id) {
            // The volume's node was lost while this waited for the lock.
            return Err(not_yet(format!("{id} is being brought up")));
        }
        let Some(home) = self.home(id) else {
            let message = format!("no node of the cluster has {id}");
            return Err(Failed { kind: FailedKind::NotFound, message });
        };
        let node = self.state().up(home);
        let node = node.ok_or_else(|| self.no_answer(id, home))?;
        if let Command::SetBalances(id, balances) = &command {
            let volumes = vec![(*id, *balances)];
            self.state().before_lease(&CreditReport { volumes, hosts: Vec::new() });
        }
        match node.call(command) {
            // An earlier leader has recorded this home, and this one has not applied the volume
            // yet.
            Reply::Failed(Failed { kind: FailedKind::NotFound, .. }) if !self.is_known(id) => {
                Err(not_yet(format!("{id} is being brought up")))
            }
            Reply::Failed(failed) => Err(retryable(failed)),
            reply => Ok(reply),
        }
    }

    /// Returns whether a volume was applied in this term.
    fn is_known(&self, id: VolumeId) -> bool {
        self.state().volume(id).is_some()
    }

    /// Makes snapshots of several volumes at one moment. Moves the volumes to one node first.
    fn snapshots_of_a_moment(&self, set: Vec<(VolumeId, SnapshotId)>) -> Result<Reply, Failed> {
        let Some(&(first, _)) = set.first() else { return Ok(Reply::Done) };
        let homes: Vec<NodeId> = set.iter().filter_map(|(id, _)| self.home(*id)).collect();
        if homes.iter().any(|home| *home != homes[0]) {
            let to = {
                let fleet_state = self.state();
                let eligible: BTreeSet<NodeId> = fleet_state.eligible_nodes().collect();
                let opens_all =
                    |home: &NodeId| fleet_state.can_open_all(*home, set.iter().map(|(id, _)| *id));
                homes
                    .into_iter()
                    .find(|home| eligible.contains(home) && opens_all(home))
                    .or(fleet_state.least_loaded())
            };
            let none = || not_yet("no node may have the volumes of these snapshots now".to_owned());
            let to = to.ok_or_else(none)?;
            for (id, _) in &set {
                if self.home(*id).is_some_and(|home| home != to) {
                    self.move_volume(*id, to)?;
                }
            }
        }
        for (id, _) in &set {
            self.serve_unapplied(*id)?;
            if !self.is_known(*id) {
                return Err(not_yet(format!("{id} is being brought up")));
            }
        }
        self.at_home(first, Command::SnapshotSet(set))
    }

    /// Deletes a snapshot at the home of its volume, or at any node if the volume has none.
    fn delete_snapshot(&self, id: SnapshotId) -> Result<Reply, Failed> {
        let node = self.any_reachable_node()?;
        let of = match node.call(Command::SnapshotsOf(vec![id])) {
            Reply::Snapshots(found) => found.first().and_then(|found| found.volume),
            Reply::Failed(failed) => return Err(retryable(failed)),
            _ => None,
        };
        match of.filter(|of| self.home(*of).is_some()) {
            Some(of) => self.at_home(of, Command::DeleteSnapshot(id)),
            None => Ok(node.call(Command::DeleteSnapshot(id))),
        }
    }

    /// Returns the reply of each node that executes commands.
    pub(super) fn call_each(&self, command: &Command) -> Vec<(NodeId, Reply)> {
        let all = self.state().all_up();
        all.into_iter().map(|(number, node)| (number, node.call(command.clone()))).collect()
    }

    fn call_all(&self, command: &Command) -> Result<(), Failed> {
        self.call_each(command).into_iter().try_for_each(|(_, reply)| done(reply))
    }

    fn lease(&self, unleased: &CreditReport) -> Result<Reply, Failed> {
        let mut parts = BTreeMap::<NodeId, CreditReport>::new();
        let mut guards = BTreeMap::<NodeId, KeyGuard<'_>>::new();
        {
            let fleet_state = self.state();
            for (id, amounts) in &unleased.volumes {
                if let Some(home) = fleet_state.homes.get(id) {
                    parts.entry(*home).or_default().volumes.push((*id, *amounts));
                }
            }
            let mut hosts = BTreeMap::<NodeId, Vec<Key>>::new();
            for (id, _) in &unleased.hosts {
                let at =
                    fleet_state.nodes.iter().find(|(_, node_state)| node_state.hosts.contains(id));
                if let Some((number, _)) = at {
                    hosts.entry(*number).or_default().push(Key::Host(*id));
                }
            }
            for (number, keys) in hosts {
                // A host that is moving keeps its row in the journal until the next lease.
                let Ok((guard, free)) = self.keys.lock_free(keys) else { continue };
                let free: BTreeSet<Key> = free.into_iter().collect();
                let is_free = |id: InstanceId| free.contains(&Key::Host(id));
                let amounts = unleased.hosts.iter().filter(|(id, _)| is_free(*id));
                parts.entry(number).or_default().hosts.extend(amounts.copied());
                guards.insert(number, guard);
            }
        }
        let mut confirmed = CreditReport::default();
        for (number, part) in parts {
            // The volumes and hosts of a node that is away keep their rows in the journal.
            let Some(node) = self.state().up(number) else { continue };
            self.state().before_lease(&part);
            if let Reply::Balances(part) = node.call(Command::Lease(part)) {
                let mut fleet_state = self.state();
                let CreditReport { mut volumes, hosts } = fleet_state.only_at_home(number, part);
                // A volume that was lost or released meanwhile has other balances now.
                volumes.retain(|(id, _)| !fleet_state.unapplied.contains(id));
                let part = CreditReport { volumes, hosts };
                fleet_state.mark_leased(&part);
                confirmed.volumes.extend(part.volumes);
                confirmed.hosts.extend(part.hosts);
            }
            drop(guards.remove(&number));
        }
        Ok(Reply::Balances(confirmed))
    }

    fn balances(&self) -> Result<Reply, Failed> {
        let mut all = CreditReport::default();
        for (number, reply) in self.call_each(&Command::Balances) {
            match reply {
                Reply::Balances(credits) => {
                    let CreditReport { volumes, hosts } =
                        self.state().only_at_home(number, credits);
                    all.volumes.extend(volumes);
                    all.hosts.extend(hosts);
                }
                // Balances of volumes that moved there are unknown; the next renewal asks for all.
                Reply::Failed(failed) => return Err(retryable(failed)),
                _ => {}
            }
        }
        Ok(Reply::Balances(all))
    }

    fn report(&self) -> Result<Report, Failed> {
        let mut all = Report::default();
        for (number, reply) in self.call_each(&Command::Report) {
            let Reply::Report(report) = reply else { continue };
            let fleet_state = self.state();
            let node_state = fleet_state.nodes.get(&number);
            let Report { volumes, hosts } = report;
            all.volumes.extend(
                volumes
                    .into_iter()
                    .filter(|volume| fleet_state.homes.get(&volume.id) == Some(&number)),
            );
            let has = |id: &InstanceId| {
                node_state.is_some_and(|node_state| node_state.hosts.contains(id))
            };
            all.hosts.extend(hosts.into_iter().filter(|host| has(&host.id)));
        }
        all.volumes.sort_by_key(|report| report.id);
        all.hosts.sort_by_key(|report| report.id);
        Ok(all)
    }

    fn report_of(&self, ids: &[VolumeId]) -> Result<Report, Failed> {
        let mut parts = BTreeMap::<NodeId, Vec<VolumeId>>::new();
        let everywhere: Vec<NodeId> = self.state().all_up().iter().map(|(it, _)| *it).collect();
        for id in ids {
            match self.home(*id) {
                Some(home) => parts.entry(home).or_default().push(*id),
                // A node may have the volume open without this leader knowing it.
                None => {
                    for number in &everywhere {
                        parts.entry(*number).or_default().push(*id);
                    }
                }
            }
        }
        let mut all = Report::default();
        for (number, part) in parts {
            let Some(node) = self.state().up(number) else { continue };
            if let Reply::Report(report) = node.call(Command::ReportOf(part)) {
                all.volumes.extend(report.volumes);
            }
        }
        all.volumes.sort_by_key(|report| report.id);
        Ok(all)
    }

    fn latencies(&self) -> Result<Reply, Failed> {
        let mut all: Vec<(VolumeId, Box<Latencies>)> = Vec::new();
        for (number, reply) in self.call_each(&Command::Latencies(None)) {
            let Reply::Latencies(latencies) = reply else { continue };
            let fleet_state = self.state();
            all.extend(
                latencies.into_iter().filter(|(id, _)| fleet_state.homes.get(id) == Some(&number)),
            );
        }
        all.sort_by_key(|(id, _)| *id);
        Ok(Reply::Latencies(all))
    }

    fn background(&self) -> Result<Reply, Failed> {
        let mut all = BackgroundReport::default();
        for (_, reply) in self.call_each(&Command::Background) {
            let Reply::Background(one) = reply else { continue };
            all.bytes_per_second.0 += one.bytes_per_second.0;
            all.waiting += one.waiting;
            all.verified.0 += one.verified.0;
            all.read.0 += one.read.0;
            all.filled.0 += one.filled.0;
        }
        Ok(Reply::Background(all))
    }
}
