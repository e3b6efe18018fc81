//! A data plane that executes every command at once, and other shared code of the control plane's
//! benches.
#![allow(dead_code)] // each bench uses its own part

pub mod client;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::admission::{Costs, DeviceFloor, DomainFloor, LinearCost};
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::time;
use evenkeel_core::time::UnixMs;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_wire::agent::{
    self, Agent, Answered, Capacity, CreditReport, IoErrors, Measured, Reply, Report, Space,
    StoredSnapshot, VolumeReport, VolumeState,
};

/// The only zone.
pub const ZONE: &str = "local-1a";
/// The hosts to which volumes are attached in rotation.
pub const HOSTS: u64 = 50;

/// A data plane that executes every command at once.
#[derive(Default)]
pub struct Obedient {
    /// A volume that is created slowly, and the time that takes.
    slow: Option<(VolumeId, Duration)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    volumes: BTreeMap<VolumeId, VolumeState>,
    /// Volumes applied since the last request for balances.
    moved: BTreeSet<VolumeId>,
    snapshots: BTreeMap<SnapshotId, StoredSnapshot>,
}

impl Obedient {
    /// Creates a data plane that takes `time` to create one volume.
    pub fn slow(id: VolumeId, time: Duration) -> Self {
        Self { slow: Some((id, time)), ..Self::default() }
    }

    /// Stores snapshots, as an earlier run would have.
    pub fn with_snapshots(snapshots: impl Iterator<Item = StoredSnapshot>) -> Self {
        let snapshots = snapshots.map(|snapshot| (snapshot.id, snapshot)).collect();
        Self { state: Mutex::new(State { snapshots, ..State::default() }), ..Self::default() }
    }
}

impl Agent for Obedient {
    fn call(&self, command: agent::Command) -> Reply {
        use agent::Command as Asked;
        if let (Asked::Create(volume), Some((id, time))) = (&command, self.slow)
            && volume.id == id
        {
            std::thread::sleep(time);
        }
        let mut state = self.state.lock().unwrap();
        match command {
            Asked::Create(volume) | Asked::Apply(volume) | Asked::Grow(volume, _) => {
                state.moved.insert(volume.id);
                state.volumes.insert(volume.id, volume);
            }
            Asked::Delete(id) => _ = state.volumes.remove(&id),
            Asked::Lease(asked) => return Reply::Balances(asked),
            Asked::Balances => {
                let moved = std::mem::take(&mut state.moved);
                let of = |id: VolumeId| Some((id, state.volumes.get(&id)?.balances));
                let volumes = moved.into_iter().filter_map(of).collect();
                return Reply::Balances(CreditReport { volumes, hosts: vec![] });
            }
            Asked::Report => {
                let volumes = state.volumes.values().map(report).collect();
                return Reply::Report(Report { volumes, hosts: vec![] });
            }
            Asked::ReportOf(ids) => {
                let volumes = ids.iter().filter_map(|id| state.volumes.get(id));
                return Reply::Report(Report {
                    volumes: volumes.map(report).collect(),
                    hosts: vec![],
                });
            }
            Asked::Capacity => return Reply::Capacity(capacity()),
            Asked::Space => {
                let room = ByteCount(1 << 60);
                return Reply::Space(Some(Space { total: room, free: room }));
            }
            Asked::Stored => return Reply::Stored(vec![]),
            Asked::Snapshots => {
                return Reply::Snapshots(state.snapshots.values().copied().collect());
            }
            Asked::SnapshotsOf(ids) => {
                let found = ids.iter().filter_map(|id| state.snapshots.get(id));
                return Reply::Snapshots(found.copied().collect());
            }
            Asked::Snapshot(volume, id) => {
                let size = state.volumes.get(&volume).map_or(ByteCount(0), |volume| volume.size);
                state.snapshots.insert(id, stored(id, volume, size));
            }
            Asked::DeleteSnapshot(id) => _ = state.snapshots.remove(&id),
            _ => {}
        }
        Reply::Done
    }
}

/// Returns a snapshot that is complete in the store.
pub fn stored(id: SnapshotId, volume: VolumeId, size: ByteCount) -> StoredSnapshot {
    let volume = Some(volume);
    let data = ByteCount(1 << 20);
    StoredSnapshot { id, volume, size, data, is_complete: true, is_encrypted: false }
}

fn report(volume: &VolumeState) -> VolumeReport {
    VolumeReport {
        id: volume.id,
        balances: volume.balances,
        connections: 0,
        queued: 0,
        in_store: 0,
        operations: 0,
        bytes_read: 0,
        bytes_written: 0,
        flushes: 0,
        answered: Answered::default(),
        exceeded: Exceeded::default(),
        errors: IoErrors::default(),
        contract: Contract::default(),
    }
}

/// Returns a device with room for everything, so that admission computes its sums.
fn capacity() -> Capacity {
    let cost = LinearCost { base: time::Duration::from_ns(1), byte_ps: 1 };
    let costs = Costs { read: cost, write: cost };
    Capacity::Measured(Box::new(Measured {
        calibration: "cal-bench".into(),
        date: "2026-11-21T04:00:00.000Z".into(),
        device: DeviceFloor { time_ns_per_second: u64::MAX, costs },
        domain: DomainFloor::UNLIMITED,
        nodes: Vec::new(),
        strained: Vec::new(),
        left_ppm: 1_000_000,
    }))
}

/// Returns the time.
pub fn now() -> UnixMs {
    let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    UnixMs(u64::try_from(elapsed.as_millis()).unwrap())
}

/// Returns a volume's id by its number.
pub fn volume_id(number: u64) -> VolumeId {
    VolumeId::from_bits(u128::from(number) + 1)
}

/// Returns the id of a host in rotation.
pub fn host_id(number: u64) -> InstanceId {
    InstanceId::from_bits(u128::from(number % HOSTS) + 1)
}

/// Returns a volume's request: gp2 and gp3, of all sizes.
pub fn request(number: u64) -> VolumeRequest {
    let size_gib = 100 + u32::try_from(number % 300).unwrap();
    let throughput_mibps = None;
    let multi_attach = false;
    match number % 3 {
        0 => VolumeRequest {
            volume_type: VolumeType::Gp2,
            size_gib,
            iops: None,
            throughput_mibps,
            multi_attach,
        },
        _ => VolumeRequest {
            volume_type: VolumeType::Gp3,
            size_gib,
            iops: Some(3_000 + u32::try_from(number % 1_000).unwrap()),
            throughput_mibps,
            multi_attach,
        },
    }
}
