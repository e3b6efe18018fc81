//! Commands of the control plane, by whom they concern: the home of a volume, the nodes that know a
//! host, all nodes, or, where every node says the same, this process's own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_control::key_locks::{Key, KeyGuard};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::latency::Latencies;
use evenkeel_wire::agent::{
    Agent, BackgroundReport, Command, CreditReport, Failed, FailedKind, Reply, Report, VolumeState,
};

use super::moves::{done, passing};
use super::state::{Colocation, overlay};
use super::{Fleet, Node, not_yet, over, refused};

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
            return Err(over());
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
            Command::Calibrated(_) | Command::SetBackground(_) => {
                success(self.everywhere(&command))
            }
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

    /// The node of this process, for what every node says the same of; or another one.
    fn any_reachable_node(&self) -> Result<Arc<dyn Node>, Failed> {
        let books = self.books();
        let any = || books.all_up().into_iter().next().map(|(_, node)| node);
        let desk = books.up(self.cluster.here()).or_else(any);
        desk.ok_or_else(|| {
            let message = "no node of the cluster answers".to_owned();
            Failed { kind: FailedKind::Unanswered, message }
        })
    }

    /// The node of this process, for a volume without a home, as soon as every node answers that
    /// may have it open.
    fn desk_of_all(&self, id: VolumeId) -> Result<Arc<dyn Node>, Failed> {
        if let Some(node) = self.books().silent() {
            return Err(not_yet(format!(
                "the node {node} does not answer, and may have {id} open; it is deleted when the \
                 node answers or is fenced"
            )));
        }
        self.any_reachable_node()
    }

    /// Applies a volume at its home, which may become another one.
    fn apply(
        &self,
        state: VolumeState,
        command: impl FnOnce(VolumeState) -> Command,
    ) -> Result<(), Failed> {
        let id = state.id;
        let (_guard, Colocation { place, elsewhere, .. }) = self.hold(|books| {
            let none = || not_yet(format!("no node of the cluster may have {id} now"));
            let place = books.place(id, &state.attachments).ok_or_else(none)?;
            let gathering = books.gathering(id, &state.attachments, place);
            Ok((gathering.keys.clone(), gathering))
        })?;
        let is_first = self.home(id).is_none();
        if !elsewhere.is_empty() {
            let moved = self.rehome(&elsewhere, place);
            for other in elsewhere.iter().filter(|it| moved.is_err() || **it != id) {
                // Those that are not served yet are owed.
                let _ = self.apply_again(*other);
            }
            moved?;
        }
        let mut state = state;
        if let Some((balances, unleased)) = self.books().left(id) {
            overlay(&mut state.balances, &balances);
            overlay(&mut state.unleased, &unleased);
        }
        let applied = self.apply_at(place, state, command);
        if is_first && applied.as_ref().is_err_and(|it| it.kind != FailedKind::Unanswered) {
            self.forget(id);
        }
        applied
    }

    /// A volume is nowhere any more. Should etcd not hear of it, it is told later.
    pub(super) fn forget(&self, id: VolumeId) {
        let noted = self.cluster.note(&[(id, None)]);
        let mut books = self.books();
        match noted {
            Ok(()) => _ = books.unnoted.remove(&id),
            Err(_) => _ = books.unnoted.insert(id),
        }
        books.set_home(id, None);
        books.forget(id);
        books.owed.remove(&id);
    }

    fn delete(&self, id: VolumeId) -> Result<(), Failed> {
        let _guard = self.lock_volume(id)?;
        let node = match self.home(id) {
            Some(home) => {
                let node = self.books().up(home);
                node.ok_or_else(|| self.no_answer(id, home))?
            }
            None => self.desk_of_all(id)?,
        };
        done(node.call(Command::Delete(id)))?;
        self.forget(id);
        Ok(())
    }

    /// A command about one volume, at its home.
    fn at_home(&self, id: VolumeId, command: Command) -> Result<Reply, Failed> {
        if self.books().owed.contains(&id) {
            self.apply_owed_one(id)?;
        }
        let _guard = match command {
            // It only asks.
            Command::Latencies(_) | Command::Verify(..) => None,
            _ => Some(self.lock_volume(id)?),
        };
        if self.books().owed.contains(&id) {
            // Its node was lost meanwhile.
            return Err(not_yet(format!("{id} is being brought up")));
        }
        let Some(home) = self.home(id) else {
            let message = format!("no node of the cluster has {id}");
            return Err(Failed { kind: FailedKind::NotFound, message });
        };
        let node = self.books().up(home);
        let node = node.ok_or_else(|| self.no_answer(id, home))?;
        if let Command::SetBalances(id, balances) = &command {
            let volumes = vec![(*id, *balances)];
            self.books().before_lease(&CreditReport { volumes, hosts: Vec::new() });
        }
        match node.call(command) {
            // An earlier leader had it applied there, and this one has not been able to yet.
            Reply::Failed(Failed { kind: FailedKind::NotFound, .. }) if !self.is_known(id) => {
                Err(not_yet(format!("{id} is being brought up")))
            }
            Reply::Failed(failed) => Err(passing(failed)),
            reply => Ok(reply),
        }
    }

    /// Whether a volume was applied since this process leads.
    fn is_known(&self, id: VolumeId) -> bool {
        self.books().volume(id).is_some()
    }

    /// Snapshots of one moment are made by one node: volumes of others move there first.
    fn snapshots_of_a_moment(&self, set: Vec<(VolumeId, SnapshotId)>) -> Result<Reply, Failed> {
        let Some(&(first, _)) = set.first() else { return Ok(Reply::Done) };
        let homes: Vec<NodeId> = set.iter().filter_map(|(id, _)| self.home(*id)).collect();
        if homes.iter().any(|home| *home != homes[0]) {
            let to = {
                let books = self.books();
                let takers: BTreeSet<NodeId> = books.takers().collect();
                homes.into_iter().find(|home| takers.contains(home)).or(books.least_loaded())
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
            self.apply_owed_one(*id)?;
            if !self.is_known(*id) {
                return Err(not_yet(format!("{id} is being brought up")));
            }
        }
        self.at_home(first, Command::SnapshotSet(set))
    }

    /// A snapshot is deleted where its volume is open.
    fn delete_snapshot(&self, id: SnapshotId) -> Result<Reply, Failed> {
        let desk = self.any_reachable_node()?;
        let of = match desk.call(Command::SnapshotsOf(vec![id])) {
            Reply::Snapshots(found) => found.first().and_then(|found| found.volume),
            Reply::Failed(failed) => return Err(passing(failed)),
            _ => None,
        };
        match of.filter(|of| self.home(*of).is_some()) {
            Some(of) => self.at_home(of, Command::DeleteSnapshot(id)),
            None => Ok(desk.call(Command::DeleteSnapshot(id))),
        }
    }

    /// What each node that executes commands answers.
    pub(super) fn each(&self, command: &Command) -> Vec<(NodeId, Reply)> {
        let all = self.books().all_up();
        all.into_iter().map(|(number, node)| (number, node.call(command.clone()))).collect()
    }

    fn everywhere(&self, command: &Command) -> Result<(), Failed> {
        self.each(command).into_iter().try_for_each(|(_, reply)| done(reply))
    }

    fn lease(&self, unleased: &CreditReport) -> Result<Reply, Failed> {
        let mut parts = BTreeMap::<NodeId, CreditReport>::new();
        let mut guards = BTreeMap::<NodeId, KeyGuard<'_>>::new();
        {
            let books = self.books();
            for (id, amounts) in &unleased.volumes {
                if let Some(home) = books.homes.get(id) {
                    parts.entry(*home).or_default().volumes.push((*id, *amounts));
                }
            }
            let mut hosts = BTreeMap::<NodeId, Vec<Key>>::new();
            for (id, _) in &unleased.hosts {
                let at = books.seats.iter().find(|(_, seat)| seat.hosts.contains(id));
                if let Some((number, _)) = at {
                    hosts.entry(*number).or_default().push(Key::Host(*id));
                }
            }
            for (number, keys) in hosts {
                // One that is being brought to another node keeps its row until the next time.
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
            // What a node that is away does not confirm keeps its row in the journal.
            let Some(node) = self.books().up(number) else { continue };
            self.books().before_lease(&part);
            if let Reply::Balances(part) = node.call(Command::Lease(part)) {
                let mut books = self.books();
                let CreditReport { mut volumes, hosts } = books.of_home(number, part);
                // One that was lost or moved meanwhile has what it was given then.
                volumes.retain(|(id, _)| !books.owed.contains(id));
                let part = CreditReport { volumes, hosts };
                books.leased(&part);
                confirmed.volumes.extend(part.volumes);
                confirmed.hosts.extend(part.hosts);
            }
            drop(guards.remove(&number));
        }
        Ok(Reply::Balances(confirmed))
    }

    fn balances(&self) -> Result<Reply, Failed> {
        let mut all = CreditReport::default();
        for (number, reply) in self.each(&Command::Balances) {
            match reply {
                Reply::Balances(credits) => {
                    let CreditReport { volumes, hosts } = self.books().of_home(number, credits);
                    all.volumes.extend(volumes);
                    all.hosts.extend(hosts);
                }
                // Nobody knows now what had moved there: the next renewal asks for everything.
                Reply::Failed(failed) => return Err(passing(failed)),
                _ => {}
            }
        }
        Ok(Reply::Balances(all))
    }

    fn report(&self) -> Result<Report, Failed> {
        let mut all = Report::default();
        for (number, reply) in self.each(&Command::Report) {
            let Reply::Report(report) = reply else { continue };
            let books = self.books();
            let seat = books.seats.get(&number);
            let Report { volumes, hosts } = report;
            all.volumes
                .extend(volumes.into_iter().filter(|it| books.homes.get(&it.id) == Some(&number)));
            let has = |id: &InstanceId| seat.is_some_and(|seat| seat.hosts.contains(id));
            all.hosts.extend(hosts.into_iter().filter(|it| has(&it.id)));
        }
        all.volumes.sort_by_key(|report| report.id);
        all.hosts.sort_by_key(|report| report.id);
        Ok(all)
    }

    fn report_of(&self, ids: &[VolumeId]) -> Result<Report, Failed> {
        let mut parts = BTreeMap::<NodeId, Vec<VolumeId>>::new();
        let everywhere: Vec<NodeId> = self.books().all_up().iter().map(|(it, _)| *it).collect();
        for id in ids {
            match self.home(*id) {
                Some(home) => parts.entry(home).or_default().push(*id),
                // A node may have it all the same, unknown to this leader.
                None => {
                    for number in &everywhere {
                        parts.entry(*number).or_default().push(*id);
                    }
                }
            }
        }
        let mut all = Report::default();
        for (number, part) in parts {
            let Some(node) = self.books().up(number) else { continue };
            if let Reply::Report(report) = node.call(Command::ReportOf(part)) {
                all.volumes.extend(report.volumes);
            }
        }
        all.volumes.sort_by_key(|report| report.id);
        Ok(all)
    }

    fn latencies(&self) -> Result<Reply, Failed> {
        let mut all: Vec<(VolumeId, Box<Latencies>)> = Vec::new();
        for (number, reply) in self.each(&Command::Latencies(None)) {
            let Reply::Latencies(latencies) = reply else { continue };
            let books = self.books();
            all.extend(
                latencies.into_iter().filter(|(id, _)| books.homes.get(id) == Some(&number)),
            );
        }
        all.sort_by_key(|(id, _)| *id);
        Ok(Reply::Latencies(all))
    }

    fn background(&self) -> Result<Reply, Failed> {
        let mut all = BackgroundReport::default();
        for (_, reply) in self.each(&Command::Background) {
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
