//! From one node to another: released at the one, noted in etcd, applied at the other. What clients
//! have asked for meanwhile waits at the fronts of the nodes, which send it again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::key_locks::{CHANGES_MAX, Key, KeyGuard, LockError};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_telemetry::clock;
use evenkeel_wire::agent::{
    Command, CreditReport, Failed, FailedKind, HostState, Reply, VolumeState,
};
use tracing::info;

use super::state::{Books, Colocation, overlay};
use super::{Fleet, Node, not_yet, over, refused};

/// How long a change of a volume or a host waits for earlier ones.
const LOCK_MAX: Duration = Duration::from_secs(90);

/// The reply to a command that is answered with success or failure only. That a node is not there
/// is no answer: it comes back, or its volumes are taken over.
pub(super) fn done(reply: Reply) -> Result<(), Failed> {
    match reply {
        Reply::Failed(failed) => Err(passing(failed)),
        _ => Ok(()),
    }
}

/// What a node that is not there says of a command may pass.
pub(super) fn passing(failed: Failed) -> Failed {
    match failed.kind {
        FailedKind::Down => not_yet(failed.message),
        _ => failed,
    }
}

impl Fleet {
    /// Moves a volume to a node. Its clients wait meanwhile.
    ///
    /// # Errors
    /// The node may have no volumes, a node does not answer, or the volume cannot be brought up
    /// there; then it is tried again.
    pub(super) fn move_volume(&self, id: VolumeId, to: NodeId) -> Result<(), Failed> {
        let (_guard, gathering) = self.hold(|books| {
            if !books.takers().any(|taker| taker == to) {
                let text = "may have no volumes now: it is away, draining or removed";
                return Err(refused(format!("the node {} {text}", books.name(to))));
            }
            let gathering = books.gathering(id, books.attachments(id), to);
            Ok((gathering.keys.clone(), gathering))
        })?;
        // All are released before the first one is applied, so that the limits of their hosts are
        // at one node at any time.
        let Colocation { elsewhere, .. } = gathering;
        let moved = self.rehome(&elsewhere, to);
        // Also those of a move that was not done.
        let applied = elsewhere.iter().map(|id| self.apply_again(*id));
        std::iter::once(moved).chain(applied.collect::<Vec<_>>()).collect()
    }

    /// Locks volumes and hosts in the order of arrival, and waits at most [`LOCK_MAX`].
    pub(super) fn lock(&self, keys: &BTreeSet<Key>) -> Result<KeyGuard<'_>, Failed> {
        let locked = self.keys.lock_within(keys.iter().cloned().collect(), LOCK_MAX);
        locked.map_err(|error| match error {
            LockError::Closed => over(),
            LockError::Busy(Key::Volume(id)) => not_yet(format!("{id} is being changed or moved")),
            LockError::Busy(Key::Host(id)) => {
                not_yet(format!("volumes of host {id} are being moved"))
            }
            LockError::Busy(_) | LockError::Full => not_yet(format!(
                "{CHANGES_MAX} commands for volumes and hosts wait or run, which is the most"
            )),
        })
    }

    /// Locks a volume.
    pub(super) fn lock_volume(&self, id: VolumeId) -> Result<KeyGuard<'_>, Failed> {
        self.lock(&BTreeSet::from([Key::Volume(id)]))
    }

    /// Looks at the books, and locks what is needed by what is found. What is returned was found
    /// while it was locked.
    pub(super) fn hold<T>(
        &self,
        look: impl Fn(&Books) -> Result<(BTreeSet<Key>, T), Failed>,
    ) -> Result<(KeyGuard<'_>, T), Failed> {
        if self.is_over() {
            return Err(over());
        }
        let deadline = clock::since_boot() + LOCK_MAX;
        let mut held = BTreeSet::new();
        while clock::since_boot() < deadline {
            let guard = self.lock(&held)?;
            let (needed, found) = look(&self.books())?;
            if needed.is_subset(&held) {
                return Ok((guard, found));
            }
            held.extend(needed);
        }
        Err(not_yet("the volumes of a host change too often".to_owned()))
    }

    /// Makes a node the home of volumes: all or none. Their previous nodes
    /// release them with their balances, and their new home is stored. The caller, which has locked
    /// them, applies them then, also if this fails.
    pub(super) fn rehome(&self, ids: &BTreeSet<VolumeId>, to: NodeId) -> Result<(), Failed> {
        for &id in ids {
            if let Some(from) = self.home(id).filter(|from| *from != to) {
                self.give_up(id, from)?;
            }
        }
        let changes: Vec<_> = ids.iter().map(|id| (*id, Some(to))).collect();
        if let Err(why) = self.cluster.note(&changes) {
            // It may be noted all the same.
            self.books().unnoted.extend(ids);
            return Err(not_yet(why));
        }
        let mut books = self.books();
        for id in ids {
            books.set_home(*id, Some(to));
            books.unnoted.remove(id);
            info!(volume = %id, node = books.name(to), "has its home");
        }
        Ok(())
    }

    /// Has the home of a volume release it.
    fn give_up(&self, id: VolumeId, from: NodeId) -> Result<(), Failed> {
        let node = self.books().up(from);
        let node = node.ok_or_else(|| self.no_answer(id, from))?;
        match release(&*node, id) {
            Ok(balances) => self.books().released(id, balances),
            // It was not.
            Err(failed) if failed.kind == FailedKind::Refused => return Err(failed),
            Err(failed) => {
                // Perhaps it was, and nobody knows with what.
                self.books().lost(id);
                return Err(failed);
            }
        }
        Ok(())
    }

    /// What is said of a volume whose home is away.
    pub(super) fn no_answer(&self, id: VolumeId, home: NodeId) -> Failed {
        let name = self.books().name(home);
        not_yet(format!("{id} is on the node {name}, which does not answer"))
    }

    /// Applies a volume that is owed, and that nothing else is being done to.
    pub(super) fn apply_owed_one(&self, id: VolumeId) -> Result<(), Failed> {
        let look = |books: &Books| Ok((books.keys(id), books.owed.contains(&id)));
        let (_guard, is_owed) = self.hold(look)?;
        if is_owed { self.apply_again(id) } else { Ok(()) }
    }

    /// Notes the home of a volume where that has failed before.
    fn note_home(&self, id: VolumeId, home: NodeId) -> Result<(), Failed> {
        if self.books().unnoted.contains(&id) {
            self.cluster.note(&[(id, Some(home))]).map_err(not_yet)?;
            self.books().unnoted.remove(&id);
        }
        Ok(())
    }

    /// Applies a volume at its home once more. The caller has locked it and its hosts.
    pub(super) fn apply_again(&self, id: VolumeId) -> Result<(), Failed> {
        let (state, home) = {
            let books = self.books();
            let Some(state) = books.volume(id).cloned() else { return Ok(()) };
            (state, books.homes.get(&id).copied())
        };
        let Some(home) = home else { return Err(not_yet(format!("{id} has no home yet"))) };
        self.apply_at(home, state, Command::Apply)
    }

    /// Applies a volume at a node. The caller has locked it and its hosts.
    pub(super) fn apply_at(
        &self,
        home: NodeId,
        state: VolumeState,
        command: impl FnOnce(VolumeState) -> Command,
    ) -> Result<(), Failed> {
        let node = self.books().up(home);
        let node = node.ok_or_else(|| self.no_answer(state.id, home))?;
        self.note_home(state.id, home)?;
        self.settle_hosts(home, &node, &state)?;
        done(node.call(command(state.clone())))?;
        self.books().applied(state);
        Ok(())
    }

    /// Tells a node of the hosts with limits that a volume is attached to.
    fn settle_hosts(
        &self,
        home: NodeId,
        node: &Arc<dyn Node>,
        state: &VolumeState,
    ) -> Result<(), Failed> {
        let hosts = self.books().limited(&state.attachments);
        for host in hosts {
            self.bring_host(host, home)?;
            let (known, is_there) = {
                let mut books = self.books();
                let is_there = books.seats.get(&home).is_some_and(|it| it.hosts.contains(&host));
                if is_there {
                    books.lose_host(host);
                }
                (books.hosts.get(&host).cloned(), is_there)
            };
            let Some(known) = known else { continue };
            if !is_there {
                // It may have one of long ago, with credits that were spent elsewhere since.
                match done(node.call(Command::DeleteHost(host))) {
                    Err(failed) if failed.kind != FailedKind::Refused => return Err(failed),
                    _ => {}
                }
            }
            // Also if it was told before: whether it still has it after a command to delete it that
            // was not answered, nobody knows.
            done(node.call(Command::ApplyHost(known)))?;
            self.books().told_of_host(host, home);
        }
        Ok(())
    }

    /// Takes a host with limits away from the nodes but one.
    fn bring_host(&self, host: InstanceId, to: NodeId) -> Result<(), Failed> {
        loop {
            let (from, node) = {
                let mut books = self.books();
                let Some(from) = books.has_host(host, to) else { return Ok(()) };
                let node = books.up(from);
                if node.is_none() && books.load(from) == 0 {
                    // Nobody spends there.
                    books.forget_host_at(host, from);
                    continue;
                }
                (from, node)
            };
            let node = node.ok_or_else(|| self.host_is_away(host, from))?;
            self.take_host_from(host, from, &*node)?;
        }
    }

    fn host_is_away(&self, host: InstanceId, at: NodeId) -> Failed {
        let name = self.books().name(at);
        not_yet(format!("host {host} is known to the node {name}, which does not answer"))
    }

    /// Takes a host with limits away from a node that has no volume of it any more; its balances
    /// are known then.
    fn take_host_from(
        &self,
        host: InstanceId,
        from: NodeId,
        node: &dyn Node,
    ) -> Result<(), Failed> {
        let Reply::Report(report) = node.call(Command::Report) else {
            return Err(not_yet(format!("the balances of host {host} are not known")));
        };
        let Some(balances) = report.hosts.iter().find(|it| it.id == host).map(|it| it.balances)
        else {
            self.books().forget_host_at(host, from);
            return Ok(());
        };
        match done(node.call(Command::DeleteHost(host))) {
            Ok(()) => {}
            // Another volume of it is there, and moves before this one is served.
            Err(failed) if failed.kind == FailedKind::Refused => {
                return Err(not_yet(failed.message));
            }
            Err(failed) => return Err(failed),
        }
        let mut books = self.books();
        books.forget_host_at(host, from);
        if let Some(known) = books.hosts.get_mut(&host) {
            overlay(&mut known.balances, &balances);
        }
        Ok(())
    }

    /// A host with limits has changed: nodes that know it are told.
    pub(super) fn apply_host(&self, state: HostState) -> Result<(), Failed> {
        let id = state.id;
        let _guard = self.lock(&BTreeSet::from([Key::Host(id)]))?;
        let told = self.books().nodes_of(id);
        let told = told.map_err(|number| self.host_is_away(id, number))?;
        for node in told {
            done(node.call(Command::ApplyHost(state.clone())))?;
        }
        self.books().set_host(state);
        Ok(())
    }

    /// A host is gone.
    pub(super) fn delete_host(&self, id: InstanceId) -> Result<(), Failed> {
        let _guard = self.lock(&BTreeSet::from([Key::Host(id)]))?;
        let all = self.books().all_up();
        for (number, node) in all {
            done(node.call(Command::DeleteHost(id)))?;
            self.books().forget_host_at(id, number);
        }
        self.books().hosts.remove(&id);
        Ok(())
    }
}

/// Has a node give a volume up. Returns its balances, if the node had it.
fn release(node: &dyn Node, id: VolumeId) -> Result<Option<Balances>, Failed> {
    match node.call(Command::Release(id)) {
        Reply::Balances(CreditReport { volumes, .. }) => {
            Ok(volumes.into_iter().find(|(of, _)| *of == id).map(|(_, balances)| balances))
        }
        Reply::Failed(failed) => Err(passing(failed)),
        _ => Err(not_yet(format!("{id} was released with an answer to something else"))),
    }
}
