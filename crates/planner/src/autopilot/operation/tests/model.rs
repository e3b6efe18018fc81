//! A small model of a btrfs, its volumes and the API, with faults by a seed.
//!
//! It knows what is true, and shows observations. A step is checked against the truth before it is
//! executed: a step that would lose data or break a rule panics.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::random::Random;
use evenkeel_core::units::GIB;
use evenkeel_core::volume::{VolumeSpec, VolumeType};

use crate::autopilot::observation::{
    Account, Ages, Conditions, Device, FileSystem, Instance, Kind, Modification, Observation,
    Profile, Running, RunningKind, Volume, VolumeState,
};
use crate::autopilot::operation::{Call, Step, Verb};

/// The time between two observations.
pub const TICK_MS: u64 = 10_000;
pub const GRACE_MS: u64 = 24 * 3_600_000;
/// How long a probe counts after the volume was detached.
const PROBE_MS: u64 = 3_600_000;
const DIRTY_BYTES: u64 = 64 << 20;

/// Faults that a run has.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Steps that are not executed, or whose answer is lost, of a million.
    pub lost_ppm: u32,
    /// Power cuts, of a million ticks.
    pub cuts_ppm: u32,
    /// Attachments that never complete, of a million.
    pub stuck_ppm: u32,
    /// Volume lists that are older by a tick, of a million.
    pub late_ppm: u32,
    /// Operations of other programs, and scrubs, of a million ticks.
    pub others_ppm: u32,
}

/// A move in the kernel.
#[derive(Clone, PartialEq, Debug)]
enum Move {
    Remove {
        devid: u64,
    },
    Compact {
        left: u32,
    },
    /// A program adds a volume, and the kernel does not show the device yet.
    Add {
        volume: String,
    },
    Foreign {
        left_ticks: u64,
    },
}

#[derive(Clone, Debug)]
struct Disk {
    shown: Volume,
    /// When its state changes next, and to which.
    next: Option<(u64, VolumeState)>,
    pending: Option<(u64, VolumeSpec)>,
    is_deleted: bool,
}

pub struct World {
    pub now_ms: u64,
    pub faults: Faults,
    pub devices: Vec<Device>,
    /// Bytes of each device's chunks that hold data.
    data: BTreeMap<u64, u64>,
    pub slots: u32,
    pub metadata: Profile,
    disks: Vec<Disk>,
    listed: Option<Vec<Volume>>,
    superblocks: BTreeSet<String>,
    probes: BTreeMap<String, (u64, bool)>,
    running: Option<Move>,
    scrub_ticks: u64,
    degraded_ticks: u64,
    unmapped_ticks: u64,
    random: Random,
    devids: u64,
    /// Deletions and detachments that were executed.
    pub deleted: Vec<String>,
}

pub fn gp3(size_gib: u32) -> VolumeSpec {
    VolumeSpec {
        volume_type: VolumeType::Gp3,
        size_gib,
        iops: Some(3_000),
        throughput_mibps: Some(125),
        multi_attach: false,
    }
}

fn volume(id: &str, spec: VolumeSpec, state: VolumeState, now_ms: u64) -> Volume {
    Volume { used_mibps: Some(5), ..Volume::new(id.to_owned(), spec, state, now_ms) }
}

impl World {
    /// Creates a file system on volumes of these sizes, each with this many bytes of chunks.
    pub fn new(seed: u64, faults: Faults, sizes: &[(u32, u64)]) -> Self {
        let mut world = Self {
            now_ms: 1_700_000_000_000,
            faults,
            devices: Vec::new(),
            data: BTreeMap::new(),
            slots: 4,
            metadata: Profile::Dup,
            disks: Vec::new(),
            listed: None,
            superblocks: BTreeSet::new(),
            probes: BTreeMap::new(),
            running: None,
            scrub_ticks: 0,
            degraded_ticks: 0,
            unmapped_ticks: 0,
            random: Random::new(seed, 7),
            devids: 0,
            deleted: Vec::new(),
        };
        for (size_gib, allocated) in sizes {
            let id = format!("vol-{}", world.disks.len());
            let shown = volume(&id, gp3(*size_gib), VolumeState::Attached, world.now_ms);
            world.disks.push(Disk { shown, next: None, pending: None, is_deleted: false });
            world.devids += 1;
            let devid = world.devids;
            world.add_device(devid, &id, u64::from(*size_gib) * GIB, *allocated);
        }
        world
    }

    fn add_device(&mut self, devid: u64, id: &str, bytes: u64, allocated: u64) {
        self.devices.push(Device {
            devid,
            path: format!("/dev/{id}"),
            volume: Some(id.to_owned()),
            device_bytes: bytes,
            size_bytes: bytes,
            allocated_bytes: allocated,
            errors: 0,
        });
        self.data.insert(devid, allocated / 2);
        self.superblocks.insert(id.to_owned());
    }

    fn device(&self, id: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.volume.as_deref() == Some(id))
    }

    fn disk(&mut self, id: &str) -> &mut Disk {
        self.disks
            .iter_mut()
            .find(|disk| disk.shown.id == id && !disk.is_deleted)
            .unwrap_or_else(|| panic!("{id}: a call about a volume that does not exist"))
    }

    /// Returns the state of a volume; `None` if it does not exist.
    pub fn volume(&self, id: &str) -> Option<&Volume> {
        self.disks.iter().find(|disk| disk.shown.id == id && !disk.is_deleted).map(|d| &d.shown)
    }

    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.disks.iter().filter(|disk| !disk.is_deleted).map(|disk| &disk.shown)
    }

    pub fn lists(&self, id: &str) -> bool {
        self.device(id).is_some()
    }

    pub fn is_idle(&self) -> bool {
        matches!(self.running, None | Some(Move::Foreign { .. }))
    }

    /// Lets time pass until the next observation.
    pub fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.scrub_ticks = self.scrub_ticks.saturating_sub(1);
        self.degraded_ticks = self.degraded_ticks.saturating_sub(1);
        self.unmapped_ticks = self.unmapped_ticks.saturating_sub(1);
        let now_ms = self.now_ms;
        for disk in &mut self.disks {
            if let Some((at_ms, state)) = disk.next
                && at_ms <= now_ms
            {
                disk.shown.state = state;
                disk.next = None;
            }
            if let Some((at_ms, spec)) = disk.pending
                && at_ms <= now_ms
            {
                disk.shown.spec = spec;
                disk.shown.modification = Some(Modification::Optimizing);
                disk.pending = None;
            }
        }
        self.move_on();
        if self.random.chance_ppm(self.faults.others_ppm) && self.running.is_none() {
            match self.random.below(2) {
                0 => self.running = Some(Move::Foreign { left_ticks: 3 }),
                _ => self.scrub_ticks = 4,
            }
        }
        if self.random.chance_ppm(self.faults.cuts_ppm) {
            self.cut();
        }
    }

    /// The power fails. Devices come back one after the other.
    fn cut(&mut self) {
        self.running = None;
        match self.random.below(3) {
            0 => self.degraded_ticks = 3,
            1 => self.unmapped_ticks = 3,
            _ => {}
        }
    }

    fn move_on(&mut self) {
        match self.running.clone() {
            None => {}
            Some(Move::Add { volume }) => {
                self.running = None;
                self.list_device(&volume);
            }
            Some(Move::Remove { devid }) => self.move_chunk(devid),
            Some(Move::Compact { left: 0 } | Move::Foreign { left_ticks: 0 }) => {
                self.running = None;
            }
            Some(Move::Foreign { left_ticks }) => {
                self.running = Some(Move::Foreign { left_ticks: left_ticks - 1 });
            }
            Some(Move::Compact { left }) => {
                self.compact_one();
                self.running = Some(Move::Compact { left: left - 1 });
            }
        }
    }

    /// Moves up to 1 GiB of a leaving device to the one with the most room.
    fn move_chunk(&mut self, devid: u64) {
        let index = self.devices.iter().position(|device| device.devid == devid).unwrap();
        let bytes = self.devices[index].allocated_bytes.min(GIB);
        if bytes == 0 {
            let gone = self.devices.remove(index);
            self.data.remove(&devid);
            self.superblocks.remove(&gone.volume.unwrap());
            self.running = None;
            return;
        }
        // Unused bytes of a chunk do not move.
        let data = self.data[&devid].min(bytes);
        let to = self
            .devices
            .iter_mut()
            .filter(|device| device.devid != devid)
            .max_by_key(|device| device.size_bytes - device.allocated_bytes)
            .unwrap();
        to.allocated_bytes += data;
        assert!(to.allocated_bytes <= to.size_bytes, "a removal ran out of room");
        *self.data.get_mut(&to.devid).unwrap() += data;
        *self.data.get_mut(&devid).unwrap() -= data;
        self.devices[index].allocated_bytes -= bytes;
    }

    /// Frees a chunk of the device with the most unused bytes in chunks.
    fn compact_one(&mut self) {
        let unused = |device: &Device| device.allocated_bytes - self.data[&device.devid];
        let index =
            (0..self.devices.len()).max_by_key(|index| unused(&self.devices[*index])).unwrap();
        let freed = unused(&self.devices[index]).min(GIB);
        self.devices[index].allocated_bytes -= freed;
    }

    pub fn observe(&mut self) -> Observation {
        let fresh = self.list();
        let is_late = self.random.chance_ppm(self.faults.late_ppm);
        let volumes = match self.listed.take() {
            Some(before) if is_late => before,
            _ => fresh.clone(),
        };
        self.listed = Some(fresh);
        Observation {
            unix_ms: self.now_ms,
            file_system: self.file_system(),
            volumes,
            instance: Some(Instance {
                id: "i-1".to_owned(),
                instance_type: "m5.large".to_owned(),
                free_slots: self.free_slots(),
                other_iops: 0,
                other_mibps: 0,
                operations: 0,
            }),
            account: Account::default(),
            ages: Ages {
                file_system_ms: Some(0),
                volumes_ms: Some(0),
                counters_ms: Some(0),
                clock_skew_ms: Some(0),
            },
            evidence: None,
            front_end: None,
        }
    }

    fn free_slots(&self) -> u32 {
        let is_attached = |volume: &&Volume| {
            !matches!(volume.state, VolumeState::Available | VolumeState::Creating)
        };
        let attached = u32::try_from(self.volumes().filter(is_attached).count()).unwrap();
        (self.slots + 4).saturating_sub(attached)
    }

    /// Returns the volumes as the API lists them, with the probes of the host.
    fn list(&mut self) -> Vec<Volume> {
        let mut volumes: Vec<Volume> = self.volumes().cloned().collect();
        for volume in &mut volumes {
            let is_shown = self.unmapped_ticks == 0 && self.degraded_ticks == 0;
            let is_device = self.device(&volume.id).is_some() && is_shown;
            let is_here = volume.state == VolumeState::Attached && is_shown;
            if is_here && !is_device {
                let found = self.superblocks.contains(&volume.id);
                self.probes.insert(volume.id.clone(), (self.now_ms, found));
            } else if !matches!(volume.state, VolumeState::Detaching | VolumeState::Available) {
                self.probes.remove(&volume.id);
            }
            let probe = self.probes.get(&volume.id);
            volume.has_superblock =
                probe.filter(|(at_ms, _)| self.now_ms - at_ms <= PROBE_MS).map(|(_, found)| *found);
        }
        volumes
    }

    fn file_system(&self) -> FileSystem {
        let mut devices = self.devices.clone();
        for device in &mut devices {
            // The kernel takes the room of a device that leaves at once.
            if self.running == Some(Move::Remove { devid: device.devid }) {
                device.size_bytes = 0;
            }
        }
        if self.degraded_ticks > 0 || self.unmapped_ticks > 0 {
            for device in &mut devices {
                device.volume = None;
            }
        }
        let size_bytes: u64 = devices.iter().map(|device| device.size_bytes).sum();
        let allocated: u64 = devices.iter().map(|device| device.allocated_bytes).sum();
        let used: u64 = self.data.values().sum();
        let running = self.running.as_ref().map(|running| {
            let (kind, devid) = match running {
                Move::Remove { devid } => (RunningKind::Remove, Some(*devid)),
                Move::Compact { .. } => (RunningKind::Compact, None),
                Move::Add { .. } => (RunningKind::Add, None),
                Move::Foreign { .. } => (RunningKind::Foreign, None),
            };
            Running { kind, devid, done_permille: Some(500), pace_bytes_per_s: None }
        });
        FileSystem {
            uuid: "0badcafe-0000-4000-8000-000000000001".to_owned(),
            kind: Kind::Btrfs,
            mount: "/data".to_owned(),
            size_bytes,
            used_bytes: used,
            free_bytes: size_bytes.saturating_sub(used),
            data: Some(Profile::Single),
            metadata: Some(self.metadata),
            devices,
            chunk_slack_bytes: allocated.saturating_sub(used),
            dirty_limit_bytes: DIRTY_BYTES,
            largest_jump_bytes: 0,
            peak_used_bytes: used,
            largest_growth_bytes: 0,
            conditions: Conditions {
                degraded: self.degraded_ticks > 0,
                scrub: self.scrub_ticks > 0,
                ..Conditions::default()
            },
            running,
            flush: None,
        }
    }

    /// Executes a step, or loses it. Returns whether the caller gets a success.
    pub fn execute(&mut self, step: &Step, seen: &Observation) -> bool {
        let is_lost = self.random.chance_ppm(self.faults.lost_ppm);
        let is_executed = !is_lost || self.random.below(2) == 0;
        let succeeds = match step {
            Step::Call(call) => !is_executed || self.call(call, seen),
            Step::Verb(verb) => !is_executed || self.verb(verb, seen),
            Step::Wait(_) | Step::Done | Step::Failed(_) => panic!("{step:?} is not executed"),
        };
        succeeds && !is_lost
    }

    fn call(&mut self, call: &Call, seen: &Observation) -> bool {
        let now_ms = self.now_ms;
        if let Call::Attach { volume: id }
        | Call::Modify { volume: id, .. }
        | Call::Detach { volume: id }
        | Call::Retire { volume: id }
        | Call::Delete { volume: id } = call
            && self.volume(id).is_none()
        {
            // A list that is late: the API knows no such volume.
            return false;
        }
        match call {
            Call::Create { operation, spec } => self.create(operation, *spec),
            Call::Attach { volume } => self.attach(volume),
            Call::Modify { volume, to } => {
                let disk = self.disk(volume);
                if disk.pending.is_some() || disk.shown.modifiable_from_ms.is_some() {
                    return false;
                }
                disk.shown.modification = Some(Modification::Modifying);
                disk.shown.modified_ms.push(now_ms);
                disk.pending = Some((now_ms + 60_000, *to));
                true
            }
            Call::Detach { volume } => self.detach(volume),
            Call::Retire { volume } => {
                assert!(!self.lists(volume), "{volume} is marked while the file system lists it");
                let is_added = self.running == Some(Move::Add { volume: volume.clone() });
                assert!(!is_added, "{volume} is marked while it is added");
                self.disk(volume).shown.retired_ms.get_or_insert(now_ms);
                true
            }
            Call::Delete { volume } => {
                self.check_deletion(volume, seen);
                let disk = self.disk(volume);
                if disk.shown.state != VolumeState::Available {
                    return false;
                }
                disk.is_deleted = true;
                self.deleted.push(volume.clone());
                true
            }
        }
    }

    fn create(&mut self, operation: &String, spec: VolumeSpec) -> bool {
        // The client token: one volume for an operation.
        if self.disks.iter().any(|disk| disk.shown.made_by.as_ref() == Some(operation)) {
            return true;
        }
        let id = format!("vol-{}", self.disks.len());
        let mut shown = volume(&id, spec, VolumeState::Creating, self.now_ms);
        shown.made_by = Some(operation.clone());
        let next = Some((self.now_ms + 20_000, VolumeState::Available));
        self.disks.push(Disk { shown, next, pending: None, is_deleted: false });
        true
    }

    fn attach(&mut self, volume: &str) -> bool {
        let now_ms = self.now_ms;
        let is_stuck = self.random.chance_ppm(self.faults.stuck_ppm);
        let has_slot = self.free_slots() > 0;
        let disk = self.disk(volume);
        if disk.shown.state != VolumeState::Available || !has_slot {
            return false;
        }
        disk.shown.state = VolumeState::Attaching { since_ms: now_ms };
        disk.next = (!is_stuck).then_some((now_ms + 15_000, VolumeState::Attached));
        true
    }

    fn detach(&mut self, volume: &str) -> bool {
        let now_ms = self.now_ms;
        assert!(!self.lists(volume), "{volume} is detached while the file system lists it");
        assert!(!self.superblocks.contains(volume), "{volume} is detached with its data");
        let is_added = self.running == Some(Move::Add { volume: volume.to_owned() });
        assert!(!is_added, "{volume} is detached while it is added");
        let disk = self.disk(volume);
        if !matches!(disk.shown.state, VolumeState::Attached | VolumeState::Attaching { .. }) {
            return false;
        }
        disk.shown.state = VolumeState::Detaching;
        disk.next = Some((now_ms + 15_000, VolumeState::Available));
        true
    }

    fn check_deletion(&mut self, id: &str, seen: &Observation) {
        let now_ms = self.now_ms;
        assert!(!self.lists(id) && !self.superblocks.contains(id), "{id} is deleted with its data");
        let shown = self.disk(id).shown.clone();
        let retired_ms = shown.retired_ms.expect("a volume without the mark is deleted");
        assert!(now_ms - retired_ms >= GRACE_MS, "{id} is deleted before its grace time ends");
        let probe = seen.volumes.iter().find(|volume| volume.id == id).unwrap().has_superblock;
        assert_eq!(probe, Some(false), "{id} is deleted without a probe");
    }

    fn verb(&mut self, verb: &Verb, seen: &Observation) -> bool {
        let is_move = matches!(
            verb,
            Verb::Grow { .. } | Verb::Add { .. } | Verb::Compact { .. } | Verb::Remove { .. }
        );
        if is_move {
            assert!(seen.file_system.running.is_none(), "{verb:?} beside an exclusive operation");
            assert!(!seen.file_system.conditions.degraded, "{verb:?} on a degraded file system");
            if self.running.is_some() {
                return false;
            }
        }
        match verb {
            Verb::Rescan { volume } => {
                let bytes = u64::from(self.disk(volume).shown.spec.size_gib) * GIB;
                self.named(volume).device_bytes = bytes;
            }
            Verb::Grow { volume } => {
                let device = self.named(volume);
                device.size_bytes = device.device_bytes;
            }
            Verb::Add { volume } => {
                let shown = self.disk(volume).shown.clone();
                if shown.state != VolumeState::Attached || self.lists(volume) {
                    return false;
                }
                if self.random.chance_ppm(self.faults.lost_ppm) {
                    // The agent ends, and its program does not.
                    self.running = Some(Move::Add { volume: volume.clone() });
                    return true;
                }
                self.list_device(volume);
            }
            Verb::Compact { chunks_max, bytes_per_s, .. } => {
                assert!(*bytes_per_s > 0, "a move without a pace");
                self.running = Some(Move::Compact { left: *chunks_max });
            }
            Verb::Pace { .. } => {}
            Verb::Remove { volume, bytes_per_s } => {
                assert!(*bytes_per_s > 0, "a move without a pace");
                self.remove(volume);
            }
            Verb::Cancel => self.cancel(seen),
        }
        true
    }

    fn list_device(&mut self, volume: &str) {
        self.devids += 1;
        let devid = self.devids;
        let bytes = u64::from(self.disk(volume).shown.spec.size_gib) * GIB;
        self.add_device(devid, volume, bytes, 0);
    }

    fn remove(&mut self, volume: &str) {
        assert!(
            matches!(self.metadata, Profile::Single | Profile::Dup),
            "a removal that the kernel refuses"
        );
        let leaving = self.named(volume).clone();
        let others = self.devices.iter().filter(|device| device.devid != leaving.devid);
        let room: u64 = others.map(|device| device.size_bytes - device.allocated_bytes).sum();
        let used = self.data.values().sum::<u64>() + GIB;
        assert!(room >= leaving.allocated_bytes.min(used) + 2 * GIB, "a removal without room");
        self.running = Some(Move::Remove { devid: leaving.devid });
    }

    fn cancel(&mut self, seen: &Observation) {
        let running = seen.file_system.running.as_ref();
        assert!(
            running.is_none_or(|running| running.kind != RunningKind::Foreign),
            "the operation of another program is cancelled"
        );
        if !matches!(self.running, Some(Move::Foreign { .. } | Move::Add { .. })) {
            self.running = None;
        }
    }

    fn named(&mut self, id: &str) -> &mut Device {
        self.devices
            .iter_mut()
            .find(|device| device.volume.as_deref() == Some(id))
            .unwrap_or_else(|| panic!("{id}: a verb about a volume that is no device"))
    }

    /// Checks what holds after every event.
    pub fn check(&self) {
        for device in &self.devices {
            assert!(device.allocated_bytes <= device.size_bytes, "{device:?}");
            assert!(device.size_bytes <= device.device_bytes, "{device:?}");
            let id = device.volume.as_deref().unwrap();
            let volume = self.volume(id).unwrap_or_else(|| panic!("{id} was deleted in use"));
            assert_eq!(volume.state, VolumeState::Attached, "{id} left while it is in use");
            assert_eq!(volume.retired_ms, None, "{id} is marked while it is in use");
        }
    }
}
