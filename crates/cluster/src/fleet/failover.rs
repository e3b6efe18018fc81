//! Checks the nodes: connects to new ones, takes over from lost ones, moves volumes off drained
//! ones, and applies volumes again whose process has ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_control::key_locks::Key;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;
use evenkeel_os::clock;
use tracing::{error, info, warn};

use super::state::NodeState;
use super::{Fleet, Node, Standing};
use crate::nodes::Member;

/// Minimum time for which a node without a lease must be disconnected before it is lost. A lease
/// may end before or after its connection breaks.
const AWAY_MIN: Duration = Duration::from_millis(300);
/// Minimum time for a process that has executed no commands of this leader: its connection may
/// still be starting. After etcd was away, all leases have ended, while all nodes live.
const UNMET_MIN: Duration = Duration::from_millis(1_000);
/// Minimum time for a process without a connection and without a fence.
const UNKNOWN_MIN: Duration = Duration::from_millis(3_000);
/// Maximum number of volumes that one call of [`Fleet::drain_nodes`] moves.
const MOVES_MAX: usize = 10;

impl Fleet {
    /// Checks all nodes once: connects to new ones, and takes over from lost ones. The next check
    /// repeats a step that fails.
    pub fn check_nodes(&self) {
        self.check_nodes_at(clock::since_boot());
    }

    /// Checks all nodes as [`Self::check_nodes`] does. `now` is the time since the start of the
    /// machine.
    pub(crate) fn check_nodes_at(&self, now: Duration) {
        for member in &self.cluster.members() {
            self.connect_to(member);
        }
        let numbers = self.numbers();
        numbers.iter().for_each(|number| self.update_connection(*number, now));
        numbers.iter().for_each(|number| self.take_over_from(*number, now));
        if cfg!(debug_assertions) {
            self.state().invariants();
        }
    }

    /// Moves up to [`MOVES_MAX`] volumes off nodes that must have none.
    pub fn drain_nodes(&self) {
        let numbers = self.numbers();
        let mut left = MOVES_MAX;
        for number in numbers {
            left -= self.drain(number, left);
        }
    }

    /// Logs each setting of a node that differs from the leader's.
    fn warn_of_settings(&self, member: &Member) {
        let all = self.cluster.members();
        let leader = all.iter().find(|other| other.number == self.cluster.here());
        let leader = leader.and_then(|leader| leader.inst.as_ref());
        let Some(leader) = leader else { return };
        let unlike = member.inst.as_ref().map(|inst| inst.settings_unlike(leader));
        for setting in unlike.unwrap_or_default() {
            warn!(
                node = member.name,
                setting,
                "the setting differs from the leader's; if this node is elected, its own applies"
            );
        }
    }

    /// Connects to a node, if its process has changed since the last connection.
    pub(super) fn connect_to(&self, member: &Member) {
        if self.is_over() {
            return;
        }
        let process = {
            let mut fleet_state = self.state();
            // A node whose lease has ended is connected to before its volumes go to others.
            let has_volumes = fleet_state.load(member.number) > 0;
            let inst = member.reachable().or(member.last.as_ref().filter(|_| has_volumes));
            let process = inst.map(|inst| inst.incarnation.clone());
            let node_state = fleet_state.nodes.entry(member.number);
            let node_state = node_state.or_insert_with(|| NodeState::new(member.clone()));
            node_state.member = member.clone();
            if process.is_none() || process == node_state.process || process == node_state.fenced {
                return;
            }
            process
        };
        match self.cluster.connect(member) {
            Ok(node) => {
                info!(node = member.name, "connecting to the node's agent");
                self.warn_of_settings(member);
                let mut fleet_state = self.state();
                let before =
                    fleet_state.nodes.get_mut(&member.number).and_then(|it| it.node.take());
                // A new process has no hosts. Commands to the previous process do not count.
                fleet_state.forget_hosts_at(member.number);
                fleet_state.forget_unopened_at(member.number);
                fleet_state.at(member.number).into_iter().for_each(|id| fleet_state.mark_lost(id));
                if let Some(node_state) = fleet_state.nodes.get_mut(&member.number) {
                    (node_state.node, node_state.process) = (Some(node), process);
                    (node_state.away_since, node_state.was_up, node_state.fenced) =
                        (None, false, None);
                }
                drop(fleet_state);
                if self.is_over() {
                    self.close();
                }
                drop_in_background(before);
            }
            Err(why) => {
                let mut fleet_state = self.state();
                let Some(node_state) = fleet_state.nodes.get_mut(&member.number) else { return };
                if node_state.refused != process {
                    warn!(node = member.name, why, "cannot be connected to");
                    node_state.refused = process;
                }
            }
        }
    }

    /// Updates a node's state after its connection's state.
    fn update_connection(&self, number: NodeId, now: Duration) {
        let node = {
            let mut fleet_state = self.state();
            let Some(node_state) = fleet_state.nodes.get_mut(&number) else { return };
            let Some(node) = node_state.node.clone() else {
                match node_state.member.inst {
                    Some(_) => node_state.away_since = None,
                    None => _ = node_state.away_since.get_or_insert(now),
                }
                return;
            };
            node
        };
        let standing = node.standing();
        let mut fleet_state = self.state();
        // Only in this rare case, since it iterates over all volumes.
        let at = match standing {
            Standing::New(_) => fleet_state.at(number),
            _ => Vec::new(),
        };
        let Some(node_state) = fleet_state.nodes.get_mut(&number) else { return };
        match standing {
            Standing::Up => (node_state.away_since, node_state.was_up) = (None, true),
            Standing::New(incarnation) => {
                node.accept(incarnation);
                node_state.away_since = None;
                fleet_state.forget_hosts_at(number);
                at.into_iter().for_each(|id| fleet_state.mark_lost(id));
            }
            Standing::Away(_) | Standing::Deposed(_) => {
                node_state.away_since.get_or_insert(now);
            }
        }
    }

    /// Returns whether a node has no lease, and has been disconnected for long enough to be lost.
    fn is_lost(&self, number: NodeId, now: Duration) -> bool {
        let lives = self
            .cluster
            .members()
            .iter()
            .any(|member| member.number == number && member.inst.is_some());
        let fleet_state = self.state();
        let Some(node_state) = fleet_state.nodes.get(&number) else { return false };
        let long = match (&node_state.node, node_state.was_up, &node_state.fenced) {
            (None, _, Some(_)) => Duration::ZERO,
            (None, _, None) => UNKNOWN_MIN,
            (Some(_), true, _) => AWAY_MIN,
            (Some(_), false, _) => UNMET_MIN,
        };
        !lives && node_state.away_since.is_some_and(|since| now.saturating_sub(since) >= long)
    }

    /// Fences a node if it is lost, and gives its volumes to others.
    fn take_over_from(&self, number: NodeId, now: Duration) {
        if number == self.cluster.here() || !self.is_lost(number, now) {
            return;
        }
        let (name, volumes) = {
            let fleet_state = self.state();
            if fleet_state.eligible_nodes().next().is_none() {
                return;
            }
            (fleet_state.name(number), fleet_state.at(number))
        };
        if volumes.is_empty() {
            return;
        }
        // A volume that is locked now is left for the next check: it may be moving.
        let keys = volumes.into_iter().map(Key::Volume).collect();
        let Ok((_guard, free)) = self.keys.lock_free(keys) else { return };
        let volume = |key: &Key| match key {
            Key::Volume(id) => Some(*id),
            _ => None,
        };
        let volumes: BTreeSet<VolumeId> = free.iter().filter_map(volume).collect();
        if volumes.is_empty() {
            return;
        }
        warn!(node = name, volumes = volumes.len(), "the node is lost: other nodes take over");
        if let Err(why) = self.cluster.fence(&name) {
            error!(node = name, why, "cannot be fenced, so no node takes over its volumes yet");
            return;
        }
        let before = {
            let mut fleet_state = self.state();
            fleet_state.counts.fences += 1;
            fleet_state.forget_hosts_at(number);
            fleet_state.nodes.get_mut(&number).and_then(|node_state| {
                // The node may be fenced already, if its volumes did not all get a home then.
                node_state.fenced = node_state.process.take().or(node_state.fenced.take());
                node_state.node.take()
            })
        };
        drop_in_background(before);
        self.assign_new_homes(number, volumes);
    }

    /// Gives volumes of a fenced node to others, those of a host with limits to one.
    fn assign_new_homes(&self, lost: NodeId, volumes: BTreeSet<VolumeId>) {
        let mut left = volumes;
        let mut changes = Vec::new();
        {
            let mut fleet_state = self.state();
            left.retain(|id| fleet_state.homes.get(id) == Some(&lost));
            while let Some(&first) = left.first() {
                let attachments = fleet_state.attachments(first).to_vec();
                let mut group = fleet_state.group(first, &attachments).volumes;
                group.insert(first);
                group.retain(|id| left.remove(id));
                // Other volumes of the group may be at another node already.
                let to = fleet_state.place_of_lost(first, &attachments);
                // The next check takes over the volumes that are left.
                let Some(to) = to else { break };
                for id in group {
                    fleet_state.set_home(id, Some(to));
                    fleet_state.mark_lost(id);
                    changes.push((id, Some(to)));
                }
            }
        }
        // If this fails, this process no longer leads, or etcd is away. The volumes stay unapplied,
        // and their homes are stored before they are applied.
        if let Err(why) = self.cluster.store_homes(&changes) {
            warn!(why, "the new homes are not stored in etcd yet");
            let mut fleet_state = self.state();
            fleet_state.unstored.extend(changes.iter().map(|(id, _)| *id));
        }
    }

    /// Applies every unapplied volume at its home.
    pub fn apply_unapplied(&self) {
        if !self.store_pending_homes() {
            return;
        }
        let unapplied: Vec<VolumeId> = self.state().unapplied.iter().copied().collect();
        for id in unapplied {
            match self.serve_unapplied(id) {
                Ok(()) => info!(volume = %id, "is served again"),
                Err(failed) => {
                    // Once for each reason, since each check tries again.
                    let last = self.state().unserved.insert(id, failed.message.clone());
                    if last.as_ref() != Some(&failed.message) {
                        warn!(volume = %id, why = failed.message, "not served yet");
                    }
                }
            }
        }
    }

    /// Stores the homes that could not be stored before. Returns whether all are stored.
    fn store_pending_homes(&self) -> bool {
        let changes: Vec<_> = {
            let fleet_state = self.state();
            fleet_state
                .unstored
                .iter()
                .map(|id| (*id, fleet_state.homes.get(id).copied()))
                .collect()
        };
        if changes.is_empty() {
            return true;
        }
        if self.cluster.store_homes(&changes).is_err() {
            return false;
        }
        let mut fleet_state = self.state();
        for (id, home) in &changes {
            // The home may have changed meanwhile.
            if fleet_state.homes.get(id) == home.as_ref() {
                fleet_state.unstored.remove(id);
            }
        }
        true
    }

    /// Moves at most `at_most` volumes off a node that must have none. Returns the number of
    /// attempts.
    fn drain(&self, number: NodeId, at_most: usize) -> usize {
        let volumes: Vec<VolumeId> = {
            let fleet_state = self.state();
            let Some(node_state) = fleet_state.nodes.get(&number) else { return 0 };
            if !node_state.is_to_be_empty() || node_state.up().is_none() {
                return 0;
            }
            let has_target = |id: &VolumeId| fleet_state.target_of(*id).is_some();
            fleet_state.at(number).into_iter().filter(has_target).take(at_most).collect()
        };
        for &id in &volumes {
            // The volume may have moved with another volume of its host.
            if self.home(id) != Some(number) {
                continue;
            }
            let to = self.state().target_of(id);
            let Some(to) = to else { continue };
            if let Err(failed) = self.move_volume(id, to) {
                warn!(volume = %id, why = failed.message, "not moved yet");
            }
        }
        volumes.len()
    }
}

/// Drops a connection to a node in a thread of its own. The drop waits for an attempt to connect
/// that is in progress, which takes seconds if the machine is off.
fn drop_in_background(node: Option<Arc<dyn Node>>) {
    let Some(node) = node else { return };
    let thread = std::thread::Builder::new().name("fleet-drop".to_owned());
    if let Err(error) = thread.spawn(move || drop(node)) {
        warn!(%error, "a connection to a node was dropped without a thread");
    }
}

/// Interval of the checks. A takeover waits for up to two of them.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time that a new leader waits for its connections to the nodes.
const FIRST_CONNECT_MAX: Duration = Duration::from_secs(3);

/// The work that a thread repeats.
type Work = fn(&Fleet);

/// The threads of a fleet. Dropping them closes the fleet.
pub struct FleetThreads {
    fleet: Arc<Fleet>,
    threads: Vec<JoinHandle<()>>,
}

impl FleetThreads {
    /// Connects to the nodes that live, and starts the threads. Checks, applications and moves have
    /// a thread each, so that a node that hangs in one of them does not delay the others.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(fleet: &Arc<Fleet>) -> std::io::Result<Self> {
        let deadline = clock::since_boot() + FIRST_CONNECT_MAX;
        loop {
            fleet.check_nodes();
            if fleet.are_all_connected() || fleet.is_over() || clock::since_boot() >= deadline {
                break;
            }
            clock::pause(CHECK_INTERVAL);
        }
        let mut threads = Self { fleet: Arc::clone(fleet), threads: Vec::new() };
        threads.repeat("fleet-check", Fleet::check_nodes)?;
        threads.repeat("fleet-apply", Fleet::apply_unapplied)?;
        threads.repeat("fleet-drain", Fleet::drain_nodes)?;
        threads.threads.push(super::sharing::start(fleet)?);
        Ok(threads)
    }

    fn repeat(&mut self, name: &str, look: Work) -> std::io::Result<()> {
        let fleet = Arc::clone(&self.fleet);
        let work = move || {
            while !fleet.is_over() {
                look(&fleet);
                clock::pause(CHECK_INTERVAL);
            }
        };
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }
}

impl Drop for FleetThreads {
    fn drop(&mut self) {
        self.fleet.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                error!("a thread of the fleet panicked");
            }
        }
    }
}

impl Fleet {
    /// Returns whether every node that lives executes commands.
    fn are_all_connected(&self) -> bool {
        let fleet_state = self.state();
        let lives = |node_state: &&NodeState| node_state.member.reachable().is_some();
        fleet_state.nodes.values().filter(lives).all(|node_state| node_state.up().is_some())
    }
}
