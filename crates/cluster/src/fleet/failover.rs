//! Looks after the nodes: connects to those that come, takes over from those that are lost, empties
//! those that are drained, and says again what was told to a process that is no more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_control::key_locks::Key;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;
use evenkeel_telemetry::clock;
use tracing::{error, info, warn};

use super::state::NodeState;
use super::{Fleet, Node, Standing};
use crate::nodes::Member;

/// How long a node whose lease has ended must have been away before it is lost: the end of a lease
/// and a broken connection may come in either order.
const AWAY_MIN: Duration = Duration::from_millis(300);
/// The same for a process that has not executed anything for this leader: it may be about to be
/// connected to. After etcd was away, all leases have ended, and all nodes live.
const UNMET_MIN: Duration = Duration::from_millis(1_000);
/// The same for a process that nobody can be asked about.
const UNKNOWN_MIN: Duration = Duration::from_millis(3_000);
/// The most volumes that a look moves off nodes that are drained.
const MOVES_MAX: usize = 10;

impl Fleet {
    /// One look at the nodes: who has come, who is lost. What fails is tried again at the next one.
    pub fn look(&self) {
        self.look_at(clock::since_boot());
    }

    /// The same at this time after the start of the machine.
    pub(crate) fn look_at(&self, now: Duration) {
        for member in &self.cluster.members() {
            self.meet(member);
        }
        let numbers = self.numbers();
        numbers.iter().for_each(|number| self.listen_to(*number, now));
        numbers.iter().for_each(|number| self.take_over_from(*number, now));
        if cfg!(debug_assertions) {
            self.books().invariants();
        }
    }

    /// Moves some volumes off nodes that are not to have any.
    pub fn move_on(&self) {
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

    /// Connects to a node whose process is another one than before.
    pub(super) fn meet(&self, member: &Member) {
        if self.is_over() {
            return;
        }
        let process = {
            let mut books = self.books();
            // One whose lease has ended is asked before its volumes are given to others.
            let has_volumes = books.load(member.number) > 0;
            let inst = member.reachable().or(member.last.as_ref().filter(|_| has_volumes));
            let process = inst.map(|inst| inst.incarnation.clone());
            let seat = books.seats.entry(member.number);
            let seat = seat.or_insert_with(|| NodeState::new(member.clone()));
            seat.member = member.clone();
            if process.is_none() || process == seat.process || process == seat.fenced {
                return;
            }
            process
        };
        match self.cluster.connect(member) {
            Ok(node) => {
                info!(node = member.name, "is a node of this cluster");
                self.warn_of_settings(member);
                let mut books = self.books();
                let before = books.seats.get_mut(&member.number).and_then(|it| it.node.take());
                // A new incarnation knows no hosts: commands to the previous one do not count.
                books.lose_hosts(member.number);
                books.at(member.number).into_iter().for_each(|id| books.lost(id));
                if let Some(seat) = books.seats.get_mut(&member.number) {
                    (seat.node, seat.process) = (Some(node), process);
                    (seat.away_since, seat.was_up, seat.fenced) = (None, false, None);
                }
                drop(books);
                if self.is_over() {
                    self.close();
                }
                let_go(before);
            }
            Err(why) => {
                let mut books = self.books();
                let Some(seat) = books.seats.get_mut(&member.number) else { return };
                if seat.refused != process {
                    warn!(node = member.name, why, "cannot be connected to");
                    seat.refused = process;
                }
            }
        }
    }

    /// Takes in how a node's connection is.
    fn listen_to(&self, number: NodeId, now: Duration) {
        let node = {
            let mut books = self.books();
            let Some(seat) = books.seats.get_mut(&number) else { return };
            let Some(node) = seat.node.clone() else {
                match seat.member.inst {
                    Some(_) => seat.away_since = None,
                    None => _ = seat.away_since.get_or_insert(now),
                }
                return;
            };
            node
        };
        let standing = node.standing();
        let mut books = self.books();
        // Asked for seldom: it looks at all volumes.
        let at = match standing {
            Standing::New(_) => books.at(number),
            _ => Vec::new(),
        };
        let Some(seat) = books.seats.get_mut(&number) else { return };
        match standing {
            Standing::Up => (seat.away_since, seat.was_up) = (None, true),
            Standing::New(incarnation) => {
                node.accept(incarnation);
                seat.away_since = None;
                books.lose_hosts(number);
                at.into_iter().for_each(|id| books.lost(id));
            }
            Standing::Away(_) | Standing::Deposed(_) => {
                seat.away_since.get_or_insert(now);
            }
        }
    }

    /// Whether a node's process is gone, as far as anybody can tell.
    fn is_lost(&self, number: NodeId, now: Duration) -> bool {
        let lives = self
            .cluster
            .members()
            .iter()
            .any(|member| member.number == number && member.inst.is_some());
        let books = self.books();
        let Some(seat) = books.seats.get(&number) else { return false };
        let long = match (&seat.node, seat.was_up, &seat.fenced) {
            (None, _, Some(_)) => Duration::ZERO,
            (None, _, None) => UNKNOWN_MIN,
            (Some(_), true, _) => AWAY_MIN,
            (Some(_), false, _) => UNMET_MIN,
        };
        !lives && seat.away_since.is_some_and(|since| now.saturating_sub(since) >= long)
    }

    /// Fences a node that is lost, and gives its volumes to others.
    fn take_over_from(&self, number: NodeId, now: Duration) {
        if number == self.cluster.here() || !self.is_lost(number, now) {
            return;
        }
        let (name, volumes) = {
            let books = self.books();
            if books.takers().next().is_none() {
                return;
            }
            (books.name(number), books.at(number))
        };
        if volumes.is_empty() {
            return;
        }
        // What is being done to a volume ends first: it may have moved by then.
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
        warn!(node = name, volumes = volumes.len(), "does not live: other nodes take over");
        if let Err(why) = self.cluster.fence(&name) {
            error!(node = name, why, "cannot be fenced, so no node takes over its volumes yet");
            return;
        }
        let before = {
            let mut books = self.books();
            books.counts.fences += 1;
            books.lose_hosts(number);
            books.seats.get_mut(&number).and_then(|seat| {
                // It may be the second time, after nobody could take all of its volumes.
                seat.fenced = seat.process.take().or(seat.fenced.take());
                seat.node.take()
            })
        };
        let_go(before);
        self.spread(number, volumes);
    }

    /// Gives volumes of a fenced node to others, those of a host with limits to one.
    fn spread(&self, lost: NodeId, volumes: BTreeSet<VolumeId>) {
        let mut left = volumes;
        let mut changes = Vec::new();
        {
            let mut books = self.books();
            left.retain(|id| books.homes.get(id) == Some(&lost));
            while let Some(&first) = left.first() {
                let attachments = books.attachments(first).to_vec();
                let mut group = books.bound(first, &attachments).volumes;
                group.insert(first);
                group.retain(|id| left.remove(id));
                // Others of the group may be elsewhere already.
                let to = books.place(first, &attachments);
                let to = to.filter(|to| books.takers().any(|taker| taker == *to));
                // Those that are left are taken over at the next look.
                let Some(to) = to else { break };
                for id in group {
                    books.set_home(id, Some(to));
                    books.lost(id);
                    changes.push((id, Some(to)));
                }
            }
        }
        // Should this fail, this process leads no more, or etcd is away: the volumes are owed, and
        // their homes are noted when they are applied.
        if let Err(why) = self.cluster.note(&changes) {
            warn!(why, "new homes are not noted yet");
            let mut books = self.books();
            books.unnoted.extend(changes.iter().map(|(id, _)| *id));
        }
    }

    /// Applies what is not in force at its home.
    pub fn apply_owed(&self) {
        if !self.note_homes() {
            return;
        }
        let owed: Vec<VolumeId> = self.books().owed.iter().copied().collect();
        for id in owed {
            let reunion = self.books().reunion(id);
            let served = match reunion {
                Some(to) => self.move_volume(id, to),
                None => self.apply_owed_one(id),
            };
            match served {
                Ok(()) => info!(volume = %id, "is served again"),
                Err(failed) => warn!(volume = %id, why = failed.message, "not served yet"),
            }
        }
    }

    /// Notes the homes that could not be noted. Returns whether all are.
    fn note_homes(&self) -> bool {
        let changes: Vec<_> = {
            let books = self.books();
            books.unnoted.iter().map(|id| (*id, books.homes.get(id).copied())).collect()
        };
        if changes.is_empty() {
            return true;
        }
        if self.cluster.note(&changes).is_err() {
            return false;
        }
        let mut books = self.books();
        for (id, home) in &changes {
            // Another one may have come meanwhile.
            if books.homes.get(id) == home.as_ref() {
                books.unnoted.remove(id);
            }
        }
        true
    }

    /// Moves some volumes off a node that is not to have any. Returns how many were tried.
    fn drain(&self, number: NodeId, at_most: usize) -> usize {
        let volumes: Vec<VolumeId> = {
            let books = self.books();
            let Some(seat) = books.seats.get(&number) else { return 0 };
            if !seat.is_to_be_empty() || seat.up().is_none() {
                return 0;
            }
            books.at(number).into_iter().take(at_most).collect()
        };
        for &id in &volumes {
            // It may have gone with another one of its host.
            if self.home(id) != Some(number) {
                continue;
            }
            let to = self.books().least_loaded();
            let Some(to) = to else { return 0 };
            if let Err(failed) = self.move_volume(id, to) {
                warn!(volume = %id, why = failed.message, "not moved yet");
            }
        }
        volumes.len()
    }
}

/// Lets a connection to a node go. That waits for an attempt to connect that is under way, for
/// seconds if the machine is off, so nobody waits for it.
fn let_go(node: Option<Arc<dyn Node>>) {
    let Some(node) = node else { return };
    let thread = std::thread::Builder::new().name("fleet-farewell".to_owned());
    if let Err(error) = thread.spawn(move || drop(node)) {
        warn!(%error, "a connection to a node was let go without a thread");
    }
}

/// Time between two looks: what a volume waits for whose node is lost, twice.
const LOOK: Duration = Duration::from_millis(50);
/// How long a leader that starts waits for the nodes that live.
const GREETING_MAX: Duration = Duration::from_secs(3);

/// What one thread does now and then.
type Look = fn(&Fleet);

/// Looks after a fleet, and closes it when it is dropped.
pub struct Keeping {
    fleet: Arc<Fleet>,
    threads: Vec<JoinHandle<()>>,
}

impl Keeping {
    /// Meets the nodes that live, and looks after all from then on. A node that hangs holds up
    /// neither the taking over from others nor their draining, so each has a thread.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(fleet: &Arc<Fleet>) -> std::io::Result<Self> {
        let deadline = clock::since_boot() + GREETING_MAX;
        loop {
            fleet.look();
            if fleet.has_met_all() || fleet.is_over() || clock::since_boot() >= deadline {
                break;
            }
            clock::pause(LOOK);
        }
        let mut keeping = Self { fleet: Arc::clone(fleet), threads: Vec::new() };
        keeping.repeat("fleet-look", Fleet::look)?;
        keeping.repeat("fleet-apply", Fleet::apply_owed)?;
        keeping.repeat("fleet-move", Fleet::move_on)?;
        keeping.threads.push(super::sharing::start(fleet)?);
        Ok(keeping)
    }

    fn repeat(&mut self, name: &str, look: Look) -> std::io::Result<()> {
        let fleet = Arc::clone(&self.fleet);
        let work = move || {
            while !fleet.is_over() {
                look(&fleet);
                clock::pause(LOOK);
            }
        };
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.fleet.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                error!("a thread that looks after the nodes panicked");
            }
        }
    }
}

impl Fleet {
    /// Whether every node that lives takes commands.
    fn has_met_all(&self) -> bool {
        let books = self.books();
        let lives = |seat: &&NodeState| seat.member.reachable().is_some();
        books.seats.values().filter(lives).all(|seat| seat.up().is_some())
    }
}
