//! Moves of volumes and hosts between nodes: the old home releases a volume, etcd stores the new
//! home, and the new home applies the volume. Requests of clients wait meanwhile at the fronts of
//! the nodes, which send them again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::key_locks::{CHANGES_MAX, Key, KeyGuard, LockError};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_os::clock;
use evenkeel_wire::agent::{
    Command, CreditReport, Failed, FailedKind, HostState, Reply, VolumeState,
};
use tracing::{info, warn};

use super::state::{Colocation, FleetState, ServedHomes, overlay};
use super::{Fleet, Node, not_leading, not_yet, refused};

/// Maximum time that a change of a volume or a host waits for earlier ones.
const LOCK_MAX: Duration = Duration::from_secs(90);

/// Returns the result of a command without data in its reply. See [`retryable`].
pub(super) fn done(reply: Reply) -> Result<(), Failed> {
    match reply {
        Reply::Failed(failed) => Err(retryable(failed)),
        _ => Ok(()),
    }
}

/// Makes the failure of a node that is down one that the caller repeats: the node comes back, or
/// its volumes are taken over.
pub(super) fn retryable(failed: Failed) -> Failed {
    match failed.kind {
        FailedKind::Down => not_yet(failed.message),
        _ => failed,
    }
}

/// Returns whether a node has answered a command, and does not execute it.
pub(super) fn is_refusal(failed: &Failed) -> bool {
    failed.kind != FailedKind::Unanswered
}

/// Result of [`Fleet::colocate`].
pub(super) struct Moved {
    /// The volumes that were served, by their former homes.
    pub(super) former: ServedHomes,
    /// The failure to apply one of the volumes, which stays unapplied.
    failed: Option<Failed>,
}

impl Fleet {
    /// Moves a volume and its group to a node. Their clients wait meanwhile.
    ///
    /// # Errors
    /// If the node may have no volumes, a node does not answer, or a volume cannot be applied. See
    /// [`Fleet::colocate`].
    pub(super) fn move_volume(&self, id: VolumeId, to: NodeId) -> Result<(), Failed> {
        let (_guard, colocation) = self.lock_found(|fleet_state| {
            if !fleet_state.eligible_nodes().any(|eligible| eligible == to) {
                let text = "may have no volumes now: it is away, draining or removed";
                return Err(refused(format!("the node {} {text}", fleet_state.name(to))));
            }
            let colocation = fleet_state.colocation(id, fleet_state.attachments(id), to);
            Ok((colocation.keys.clone(), colocation))
        })?;
        let moved = self.colocate(&colocation.elsewhere, to, None)?;
        if let Some(failed) = moved.failed {
            return Err(failed);
        }
        // It may have been there before, and not be served.
        if self.state().unapplied.contains(&id) { self.apply_again(id) } else { Ok(()) }
    }

    /// Applies a volume if it is unapplied, after moving its group to one node, or to a node that
    /// can open it, if necessary.
    pub(super) fn serve_unapplied(&self, id: VolumeId) -> Result<(), Failed> {
        let (_guard, (is_unapplied, colocation)) = self.lock_found(|fleet_state| {
            let is_unapplied = fleet_state.unapplied.contains(&id);
            let target = fleet_state.target_of_unapplied(id).filter(|_| is_unapplied);
            let attachments = fleet_state.attachments(id);
            let colocation = target.map(|to| fleet_state.colocation(id, attachments, to));
            let keys = match &colocation {
                Some(colocation) => colocation.keys.clone(),
                None => fleet_state.keys(id),
            };
            Ok((keys, (is_unapplied, colocation)))
        })?;
        if let Some(Colocation { place, elsewhere, .. }) = colocation {
            let moved = self.colocate(&elsewhere, place, None)?;
            return moved.failed.map_or(Ok(()), Err);
        }
        if is_unapplied { self.apply_again(id) } else { Ok(()) }
    }

    /// Makes a node the home of volumes, and applies them there except one, which the caller
    /// applies. All are released before the first one is applied, so that the limits of their hosts
    /// are at one node at any time. A volume whose application fails stays unapplied, and is
    /// applied again later. The caller must have locked the volumes and their hosts.
    ///
    /// # Errors
    /// If a node does not answer, or the new home refuses a volume that was served. Then the former
    /// homes get all of them back.
    pub(super) fn colocate(
        &self,
        ids: &BTreeSet<VolumeId>,
        to: NodeId,
        except: Option<VolumeId>,
    ) -> Result<Moved, Failed> {
        let former = self.state().served_homes(ids);
        let moved = self.rehome(ids, to);
        let mut failed = None;
        let mut refused = None;
        for id in ids {
            // Each also if the move failed, since some of the volumes may have been released.
            if moved.is_ok() && except == Some(*id) {
                continue;
            }
            let Err(why) = self.apply_again(*id) else { continue };
            if is_refusal(&why) && former.values().any(|served| served.contains(id)) {
                refused = Some(why);
            } else {
                failed = Some(why);
            }
        }
        moved?;
        match refused {
            Some(refused) => Err(self.take_back(&former, &refused)),
            None => Ok(Moved { former, failed }),
        }
    }

    /// Gives volumes back to their former homes, since their new one has refused one of them: it
    /// may not have the key. Returns the failure of the move.
    pub(super) fn take_back(&self, former: &ServedHomes, refused: &Failed) -> Failed {
        let mut message = refused.message.clone();
        for (home, ids) in former {
            let name = self.state().name(*home);
            let mut result = self.rehome(ids, *home);
            for id in ids {
                // Each also if the move failed, since some of the volumes may have been released.
                result = result.and(self.apply_again(*id));
            }
            message += &match result {
                Ok(()) => format!("; the node {name} serves what it had before"),
                Err(why) => format!("; the node {name} gets back what it had: {}", why.message),
            };
        }
        warn!(why = message, "a move is refused");
        // The volumes are as they were.
        Failed { kind: FailedKind::Refused, message }
    }

    /// Locks volumes and hosts in the order of arrival, and waits at most [`LOCK_MAX`].
    pub(super) fn lock(&self, keys: &BTreeSet<Key>) -> Result<KeyGuard<'_>, Failed> {
        let locked = self.keys.lock_within(keys.iter().cloned().collect(), LOCK_MAX);
        locked.map_err(|error| match error {
            LockError::Closed => not_leading(),
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

    /// Calls `look`, and locks the keys that it returns. The returned value was found while these
    /// keys were locked.
    pub(super) fn lock_found<T>(
        &self,
        look: impl Fn(&FleetState) -> Result<(BTreeSet<Key>, T), Failed>,
    ) -> Result<(KeyGuard<'_>, T), Failed> {
        if self.is_over() {
            return Err(not_leading());
        }
        let deadline = clock::since_boot() + LOCK_MAX;
        let mut held = BTreeSet::new();
        while clock::since_boot() < deadline {
            let guard = self.lock(&held)?;
            let (needed, found) = look(&self.state())?;
            if needed.is_subset(&held) {
                return Ok((guard, found));
            }
            held.extend(needed);
        }
        Err(not_yet("the volumes of a host change too often".to_owned()))
    }

    /// Makes a node the home of all these volumes, or of none. Their previous nodes release them
    /// with their balances, and etcd stores the new home. The caller must have locked them, and
    /// must apply them afterwards, even if this fails.
    pub(super) fn rehome(&self, ids: &BTreeSet<VolumeId>, to: NodeId) -> Result<(), Failed> {
        for &id in ids {
            if let Some(from) = self.home(id).filter(|from| *from != to) {
                self.release_from(id, from)?;
            }
        }
        let changes: Vec<_> = ids.iter().map(|id| (*id, Some(to))).collect();
        if let Err(why) = self.cluster.store_homes(&changes) {
            // etcd may have stored the new home without an answer.
            self.state().unstored.extend(ids);
            return Err(not_yet(why));
        }
        let mut fleet_state = self.state();
        for id in ids {
            fleet_state.set_home(*id, Some(to));
            fleet_state.unstored.remove(id);
            info!(volume = %id, node = fleet_state.name(to), "has its home");
        }
        Ok(())
    }

    /// Releases a volume at its home, and records its balances.
    fn release_from(&self, id: VolumeId, from: NodeId) -> Result<(), Failed> {
        let node = self.state().up(from);
        let node = node.ok_or_else(|| self.no_answer(id, from))?;
        match release(&*node, id) {
            Ok(balances) => self.state().mark_released(id, balances),
            // The node still has the volume.
            Err(failed) if failed.kind == FailedKind::Refused => return Err(failed),
            Err(failed) => {
                // The node may have released the volume; its exact balances are lost.
                self.state().mark_lost(id);
                return Err(failed);
            }
        }
        Ok(())
    }

    /// Returns the failure of a command for a volume whose home does not answer.
    pub(super) fn no_answer(&self, id: VolumeId, home: NodeId) -> Failed {
        let name = self.state().name(home);
        not_yet(format!("{id} is on the node {name}, which does not answer"))
    }

    /// Stores the home of a volume in etcd, if an earlier attempt has failed.
    fn store_home(&self, id: VolumeId, home: NodeId) -> Result<(), Failed> {
        if self.state().unstored.contains(&id) {
            self.cluster.store_homes(&[(id, Some(home))]).map_err(not_yet)?;
            self.state().unstored.remove(&id);
        }
        Ok(())
    }

    /// Applies the last state of a volume at its home. The caller must have locked the volume and
    /// its hosts.
    pub(super) fn apply_again(&self, id: VolumeId) -> Result<(), Failed> {
        let (state, home) = {
            let fleet_state = self.state();
            let Some(state) = fleet_state.volume(id).cloned() else { return Ok(()) };
            (state, fleet_state.homes.get(&id).copied())
        };
        let Some(home) = home else { return Err(not_yet(format!("{id} has no home yet"))) };
        self.apply_at(home, state, Command::Apply)
    }

    /// Applies a volume at a node. The caller must have locked the volume and its hosts.
    pub(super) fn apply_at(
        &self,
        home: NodeId,
        state: VolumeState,
        command: impl FnOnce(VolumeState) -> Command,
    ) -> Result<(), Failed> {
        let node = self.state().up(home);
        let node = node.ok_or_else(|| self.no_answer(state.id, home))?;
        self.store_home(state.id, home)?;
        self.apply_hosts_of(home, &node, &state)?;
        match done(node.call(command(state.clone()))) {
            Ok(()) => {
                self.state().mark_applied(state, home);
                Ok(())
            }
            Err(Failed { kind: FailedKind::Damaged, message }) => {
                let mut fleet_state = self.state();
                fleet_state.mark_unopened(state.id, home);
                let message = format!("the node {}: {message}", fleet_state.name(home));
                Err(Failed { kind: FailedKind::Damaged, message })
            }
            Err(failed) => Err(failed),
        }
    }

    /// Applies at a node the hosts with limits to which a volume is attached.
    fn apply_hosts_of(
        &self,
        home: NodeId,
        node: &Arc<dyn Node>,
        state: &VolumeState,
    ) -> Result<(), Failed> {
        let hosts = self.state().limited(&state.attachments);
        for host in hosts {
            self.remove_host_elsewhere(host, home)?;
            let (known, is_there) = {
                let mut fleet_state = self.state();
                let is_there =
                    fleet_state.nodes.get(&home).is_some_and(|node| node.hosts.contains(&host));
                if is_there {
                    fleet_state.reset_host_balances(host);
                }
                (fleet_state.hosts.get(&host).cloned(), is_there)
            };
            let Some(known) = known else { continue };
            if !is_there {
                // The node may have an old state of the host, with credits that were spent since.
                match done(node.call(Command::DeleteHost(host))) {
                    Err(failed) if failed.kind != FailedKind::Refused => return Err(failed),
                    _ => {}
                }
            }
            // Also if the host was applied here before: an unanswered command may have deleted it.
            done(node.call(Command::ApplyHost(known)))?;
            self.state().mark_host_applied(host, home);
        }
        Ok(())
    }

    /// Removes a host with limits from all nodes but `to`.
    fn remove_host_elsewhere(&self, host: InstanceId, to: NodeId) -> Result<(), Failed> {
        loop {
            let (from, node) = {
                let mut fleet_state = self.state();
                let Some(from) = fleet_state.other_node_of(host, to) else { return Ok(()) };
                let node = fleet_state.up(from);
                if node.is_none() && fleet_state.load(from) == 0 {
                    // Without a volume, no credits of the host are spent there.
                    fleet_state.forget_host_at(host, from);
                    continue;
                }
                (from, node)
            };
            let node = node.ok_or_else(|| self.host_is_away(host, from))?;
            self.remove_host_from(host, from, &*node)?;
        }
    }

    fn host_is_away(&self, host: InstanceId, at: NodeId) -> Failed {
        let name = self.state().name(at);
        not_yet(format!("host {host} is known to the node {name}, which does not answer"))
    }

    /// Removes a host with limits from a node that has no volume of the host any more, and records
    /// its balances.
    fn remove_host_from(
        &self,
        host: InstanceId,
        from: NodeId,
        node: &dyn Node,
    ) -> Result<(), Failed> {
        let Reply::Report(report) = node.call(Command::Report) else {
            return Err(not_yet(format!("the balances of host {host} are not known")));
        };
        let Some(balances) = report.hosts.iter().find(|it| it.id == host).map(|host| host.balances)
        else {
            self.state().forget_host_at(host, from);
            return Ok(());
        };
        match done(node.call(Command::DeleteHost(host))) {
            Ok(()) => {}
            // Another volume of the host is there, and must move first.
            Err(failed) if failed.kind == FailedKind::Refused => {
                return Err(not_yet(failed.message));
            }
            Err(failed) => return Err(failed),
        }
        let mut fleet_state = self.state();
        fleet_state.forget_host_at(host, from);
        if let Some(known) = fleet_state.hosts.get_mut(&host) {
            overlay(&mut known.balances, &balances);
        }
        Ok(())
    }

    /// Applies a changed host at the nodes that have it.
    pub(super) fn apply_host(&self, state: HostState) -> Result<(), Failed> {
        let id = state.id;
        let _guard = self.lock(&BTreeSet::from([Key::Host(id)]))?;
        let told = self.state().nodes_of(id);
        let told = told.map_err(|number| self.host_is_away(id, number))?;
        for node in told {
            done(node.call(Command::ApplyHost(state.clone())))?;
        }
        self.state().set_host(state);
        Ok(())
    }

    /// Deletes a host at all nodes.
    pub(super) fn delete_host(&self, id: InstanceId) -> Result<(), Failed> {
        let _guard = self.lock(&BTreeSet::from([Key::Host(id)]))?;
        let all = self.state().all_up();
        for (number, node) in all {
            done(node.call(Command::DeleteHost(id)))?;
            self.state().forget_host_at(id, number);
        }
        self.state().hosts.remove(&id);
        Ok(())
    }
}

/// Releases a volume at a node. Returns its balances, if the node had the volume.
fn release(node: &dyn Node, id: VolumeId) -> Result<Option<Balances>, Failed> {
    match node.call(Command::Release(id)) {
        Reply::Balances(CreditReport { volumes, .. }) => {
            Ok(volumes.into_iter().find(|(of, _)| *of == id).map(|(_, balances)| balances))
        }
        Reply::Failed(failed) => Err(retryable(failed)),
        _ => Err(not_yet(format!("{id} was released with an answer to something else"))),
    }
}
