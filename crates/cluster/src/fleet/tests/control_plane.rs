//! The control plane of the tests: the wanted state, the journal's promises, and repeated commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::nodes::Nodes;
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::sharing::InstancePacing;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{
    Agent, Attachment, Command, CreditReport, FailedKind, HostAddress, HostState, Reply,
    VolumeState,
};

use super::super::Fleet;
use super::node;
use super::world::{Seen, World, credits};

/// Credits of a full bucket.
pub const CAPACITY: u64 = 1_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Creating,
    Created,
    Deleting,
}

/// The wanted state of a volume.
pub struct Wanted {
    phase: Phase,
    pub attachments: Vec<Attachment>,
    /// The attachments that the data plane may have, by the answers so far.
    applied: Vec<Attachment>,
    pub rate: u64,
    /// The unleased balance in the journal.
    pub row: u64,
    /// Whether the last command got no answer.
    pub is_pending: bool,
}

impl Wanted {
    fn may_be_attached(&self) -> Vec<Attachment> {
        let is_new = |it: &&Attachment| !self.attachments.contains(it);
        let removed = self.applied.iter().filter(is_new);
        self.attachments.iter().chain(removed).copied().collect()
    }
}

/// A host.
pub struct Host {
    /// Its rate limit, if it has one.
    pub pacing: Option<u64>,
    pub row: u64,
    pub is_pending: bool,
    is_deleting: bool,
}

pub struct ControlPlane {
    pub world: Arc<World>,
    pub fleet: Fleet,
    pub volumes: BTreeMap<VolumeId, Wanted>,
    pub hosts: BTreeMap<InstanceId, Host>,
    pub now: Duration,
    next: u128,
}

fn limit(per_second: u64) -> Option<Limit> {
    let credit = Some(CreditLimit { refill_per_second: 1, capacity: CAPACITY });
    Some(Limit { per_second, credit })
}

/// Creates a fleet with the homes that are stored.
fn fleet(world: &Arc<World>) -> Fleet {
    let homes = world.things().stored_homes.iter().map(|(id, home)| (*id, node(*home))).collect();
    Fleet::new(Arc::new(Seen(Arc::clone(world))), homes)
}

impl ControlPlane {
    pub fn new(nodes: u32) -> Self {
        let world = World::new(nodes);
        let fleet = fleet(&world);
        let (volumes, hosts) = Default::default();
        let mut control = Self { world, fleet, volumes, hosts, now: Duration::ZERO, next: 1 };
        control.new_host(Some(100));
        control.new_host(Some(200));
        control.new_host(None);
        control
    }

    /// Elects another process, which has the journal and the stored homes.
    pub fn elect(&mut self) {
        self.world.things().lose_what_is_exact();
        self.fleet.close();
        self.fleet = fleet(&self.world);
        self.check_nodes();
        let attached = |it: (&VolumeId, &Wanted)| (*it.0, it.1.may_be_attached());
        self.fleet.expect(self.volumes.iter().map(attached).collect());
        let hosts: Vec<InstanceId> = self.hosts.keys().copied().collect();
        for id in hosts {
            let row = credits(self.hosts[&id].row);
            self.send_host(id, row);
        }
        let volumes: Vec<VolumeId> = self.volumes.keys().copied().collect();
        volumes.into_iter().for_each(|id| self.settle(id));
        self.fleet.keep_only(&self.volumes.keys().copied().collect());
    }

    fn number(&mut self) -> u128 {
        self.next += 1;
        self.next
    }

    /// Creates a host, with limits or without.
    pub fn new_host(&mut self, pacing: Option<u64>) -> InstanceId {
        let id = InstanceId::from_bits(self.number());
        let host = Host { pacing, row: CAPACITY / 2, is_pending: false, is_deleting: false };
        self.hosts.insert(id, host);
        self.send_host(id, credits(CAPACITY));
        id
    }

    /// Returns whether a command succeeds. Panics on another failure than a missing answer.
    fn is_done(&self, command: Command) -> bool {
        match self.fleet.call(command.clone()) {
            Reply::Failed(failed) if failed.kind == FailedKind::Unanswered => false,
            Reply::Failed(failed) => panic!("{command:?}: {failed:?}"),
            _ => true,
        }
    }

    fn send_host(&mut self, id: InstanceId, balances: Balances) {
        let host = &self.hosts[&id];
        if host.is_deleting {
            let is_gone = self.is_done(Command::DeleteHost(id));
            if is_gone {
                let before = self.hosts.remove(&id).unwrap();
                self.new_host(before.pacing);
            }
            return;
        }
        let Some(rate) = host.pacing else { return };
        let pacing = InstancePacing {
            tolerance: Pacing::UNLIMITED.tolerance,
            operations: limit(rate),
            bytes: None,
            read_bytes_per_second: None,
            write_bytes_per_second: None,
        };
        let state = HostState { id, pacing, balances, unleased: credits(host.row) };
        let is_done = self.is_done(Command::ApplyHost(state));
        self.hosts.get_mut(&id).unwrap().is_pending = !is_done;
    }

    fn state(&self, id: VolumeId, balances: Balances) -> VolumeState {
        let wanted = &self.volumes[&id];
        let operations = limit(wanted.rate);
        let pacing = Pacing { counting: CountingRule::SSD, operations, ..Pacing::UNLIMITED };
        VolumeState {
            id,
            size: ByteCount::from_gib(1),
            pacing,
            balances,
            // A balance of zero is left out.
            unleased: if wanted.row == 0 { Balances::default() } else { credits(wanted.row) },
            reserved: Default::default(),
            attachments: wanted.attachments.clone(),
            is_encrypted: false,
        }
    }

    pub fn send(&mut self, id: VolumeId, balances: Balances) {
        let state = self.state(id, balances);
        let phase = self.volumes[&id].phase;
        let is_done = self.is_done(match phase {
            Phase::Creating => Command::Create(state),
            Phase::Created => Command::Apply(state),
            Phase::Deleting => Command::Delete(id),
        });
        let wanted = self.volumes.get_mut(&id).unwrap();
        wanted.is_pending = !is_done;
        if is_done {
            wanted.applied.clone_from(&wanted.attachments);
        } else {
            wanted.applied = wanted.may_be_attached();
        }
        if is_done && phase == Phase::Creating {
            wanted.phase = Phase::Created;
        }
        if is_done && phase == Phase::Deleting {
            self.volumes.remove(&id);
        }
    }

    /// Applies the wanted state of a volume.
    pub fn settle(&mut self, id: VolumeId) {
        let row = credits(self.volumes[&id].row);
        self.send(id, row);
    }

    /// Repeats the commands without an answer.
    pub fn repeat(&mut self) {
        let hosts: Vec<_> = self.hosts.iter().filter(|host| host.1.is_pending).collect();
        let hosts: Vec<InstanceId> = hosts.into_iter().map(|host| *host.0).collect();
        for id in hosts {
            let row = credits(self.hosts[&id].row);
            self.send_host(id, row);
        }
        let volumes: Vec<_> = self.volumes.iter().filter(|volume| volume.1.is_pending).collect();
        let volumes: Vec<VolumeId> = volumes.into_iter().map(|volume| *volume.0).collect();
        volumes.into_iter().for_each(|id| self.settle(id));
    }

    /// Returns one of the volumes that can be changed.
    fn volume(&self, which: usize) -> Option<VolumeId> {
        let can = |it: &(&VolumeId, &Wanted)| it.1.phase == Phase::Created;
        let all: Vec<VolumeId> = self.volumes.iter().filter(can).map(|volume| *volume.0).collect();
        (!all.is_empty()).then(|| all[which % all.len()])
    }

    fn host(&self, which: usize) -> InstanceId {
        *self.hosts.keys().nth(which % self.hosts.len()).unwrap()
    }

    pub fn create(&mut self) -> VolumeId {
        let id = VolumeId::from_bits(self.number());
        let attachments = vec![];
        let rate = 100;
        let (phase, row, is_pending) = (Phase::Creating, CAPACITY / 2, false);
        let applied = vec![];
        self.volumes.insert(id, Wanted { phase, attachments, applied, rate, row, is_pending });
        self.send(id, credits(CAPACITY));
        id
    }

    pub fn attach(&mut self, which: usize, host: usize) {
        let host = self.host(host);
        if let Some(id) = self.volume(which) {
            self.attach_to(id, host);
        }
    }

    pub fn attach_to(&mut self, id: VolumeId, host: InstanceId) {
        let attachments = &mut self.volumes.get_mut(&id).unwrap().attachments;
        let is_attached = attachments.iter().any(|attachment| attachment.host == host);
        if !is_attached && !self.hosts[&host].is_deleting {
            attachments.push(Attachment { host, address: HostAddress::Local });
            self.settle(id);
        }
    }

    pub fn detach(&mut self, which: usize, host: usize) {
        let Some(id) = self.volume(which) else { return };
        let attachments = &mut self.volumes.get_mut(&id).unwrap().attachments;
        if !attachments.is_empty() {
            attachments.remove(host % attachments.len());
            self.settle(id);
        }
    }

    pub fn modify(&mut self, which: usize, rate: u64) {
        if let Some(id) = self.volume(which) {
            self.volumes.get_mut(&id).unwrap().rate = rate;
            self.settle(id);
        }
    }

    pub fn delete(&mut self, which: usize) {
        if let Some(id) = self.volume(which)
            && self.volumes[&id].attachments.is_empty()
            && !self.volumes[&id].is_pending
        {
            self.volumes.get_mut(&id).unwrap().phase = Phase::Deleting;
            self.settle(id);
        }
    }

    pub fn apply_host(&mut self, which: usize) {
        let id = self.host(which);
        let host = self.hosts.get_mut(&id).unwrap();
        if let Some(rate) = &mut host.pacing {
            *rate += 1;
            let row = credits(host.row);
            self.send_host(id, row);
        }
    }

    pub fn delete_host(&mut self, which: usize) {
        let id = self.host(which);
        let uses = |it: &Wanted| {
            it.is_pending || it.attachments.iter().any(|attachment| attachment.host == id)
        };
        if self.volumes.values().any(uses) {
            return;
        }
        let host = self.hosts.get_mut(&id).unwrap();
        (host.is_deleting, host.is_pending) = (true, true);
        self.send_host(id, Balances::default());
    }

    /// Sets the unleased part of each reported balance to `part` 255ths. The data plane gets an
    /// increase first, the journal a decrease.
    pub fn lease(&mut self, part: u8) {
        let Reply::Balances(CreditReport { volumes, hosts }) = self.fleet.call(Command::Balances)
        else {
            return;
        };
        let row = |amount: Balances| amount.operations.unwrap() * u64::from(part) / 255;
        let mut less = CreditReport::default();
        let mut more = CreditReport::default();
        for (id, balances) in volumes {
            let Some(wanted) = self.volumes.get_mut(&id) else { continue };
            let after = row(balances);
            if after > wanted.row {
                less.volumes.push((id, credits(after)));
            } else {
                wanted.row = after;
                more.volumes.push((id, credits(after)));
            }
        }
        for (id, balances) in hosts {
            let Some(host) = self.hosts.get_mut(&id) else { continue };
            let after = row(balances);
            if after > host.row {
                less.hosts.push((id, credits(after)));
            } else {
                host.row = after;
                more.hosts.push((id, credits(after)));
            }
        }
        if let Reply::Balances(confirmed) = self.fleet.call(Command::Lease(less)) {
            for (id, amount) in confirmed.volumes {
                self.volumes.get_mut(&id).unwrap().row = amount.operations.unwrap();
            }
            for (id, amount) in confirmed.hosts {
                self.hosts.get_mut(&id).unwrap().row = amount.operations.unwrap();
            }
        }
        self.fleet.call(Command::Lease(more));
    }

    pub fn set_balances(&mut self, which: usize, part: u8) {
        let Some(id) = self.volume(which) else { return };
        let wanted = self.volumes.get_mut(&id).unwrap();
        let balance = CAPACITY * u64::from(part) / 255;
        wanted.row = wanted.row.min(balance);
        if self.is_done(Command::SetBalances(id, credits(balance))) {
            let volumes = vec![(id, credits(self.volumes[&id].row))];
            self.fleet.call(Command::Lease(CreditReport { volumes, hosts: vec![] }));
        }
    }

    pub fn spend(&mut self, which: usize, by: usize, amount: u64) {
        if let Some(id) = self.volume(which) {
            self.world.things().spend(id, by, amount);
        }
    }

    pub fn snapshot_set(&mut self, a: usize, b: usize) {
        let (Some(a), Some(b)) = (self.volume(a), self.volume(b)) else { return };
        let mut set = vec![(a, SnapshotId::from_bits(self.number()))];
        if a != b {
            set.push((b, SnapshotId::from_bits(self.number())));
        }
        if self.is_done(Command::SnapshotSet(set.clone())) {
            self.is_done(Command::DeleteSnapshot(set[0].1));
        }
    }

    pub fn move_to(&self, which: usize, number: u32) {
        if let Some(id) = self.volume(which) {
            // The move may fail.
            let _ = self.fleet.move_to(id, node(number));
        }
    }
}
