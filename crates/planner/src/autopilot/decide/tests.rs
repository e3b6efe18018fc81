//! Tests of decisions: each rule and each brake by an example, with its figures.

mod brakes;
mod money;
mod moves;
mod properties;
mod rates;
mod space;

use evenkeel_core::units::GIB;
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeSpec, VolumeType};

use super::*;
use crate::autopilot::evidence::{Evidence, Judged, Proposal};
use crate::autopilot::observation::{
    Account, Ages, Conditions, Device, FileSystem, Flush, FrontEnd, Instance, Kind, Profile,
    Running, RunningKind, Volume, VolumeState,
};
use crate::autopilot::operation::Open;
use crate::autopilot::policy::Keep;
use crate::autopilot::state::{Past, Reading};
use crate::fleet;

pub const MIB: u64 = 1 << 20;
pub const DAY_MS: u64 = 86_400_000;
/// Wednesday, 2026-07-01 12:00 UTC.
pub const NOW_MS: u64 = 1_782_907_200_000;

/// Returns a policy in mode `act`.
pub fn policy() -> Policy {
    Policy { mode: Mode::Act, ..Policy::usual("a", fleet::Policy::usual()) }
}

pub fn spec(t: VolumeType, gib: u32, iops: Option<u32>, mibps: Option<u32>) -> VolumeSpec {
    let request = VolumeRequest {
        volume_type: t,
        size_gib: gib,
        iops,
        throughput_mibps: mibps,
        multi_attach: false,
    };
    Rules::newest().resolve(&request).expect("a volume")
}

pub fn gp3(gib: u32) -> VolumeSpec {
    spec(VolumeType::Gp3, gib, None, None)
}

pub fn volume(id: &str, spec: VolumeSpec) -> Volume {
    Volume {
        exceeded_s: Some(0),
        used_mibps: Some(0),
        ..Volume::new(id.to_owned(), spec, VolumeState::Attached, 1)
    }
}

/// Returns a btrfs on volumes of these specifications, of which `used_gib` are used.
pub fn btrfs(specs: &[VolumeSpec], used_gib: u64) -> Observation {
    let volumes: Vec<Volume> = (1..)
        .zip(specs)
        .map(|(number, spec): (u32, _)| volume(&format!("vol-{number}"), *spec))
        .collect();
    let size: u64 = specs.iter().map(|spec| u64::from(spec.size_gib) * GIB).sum();
    let device = |(number, volume): (u64, &Volume)| {
        let bytes = u64::from(volume.spec.size_gib) * GIB;
        let allocated_bytes = u128::from(bytes) * u128::from(used_gib * GIB) / u128::from(size);
        Device {
            devid: number,
            path: format!("/dev/nvme{number}n1"),
            volume: Some(volume.id.clone()),
            device_bytes: bytes,
            size_bytes: bytes,
            allocated_bytes: u64::try_from(allocated_bytes).unwrap(),
            errors: 0,
        }
    };
    Observation {
        unix_ms: NOW_MS,
        file_system: FileSystem {
            uuid: "0a1b2c3d-0000-4000-8000-000000000001".to_owned(),
            kind: Kind::Btrfs,
            mount: "/data".to_owned(),
            size_bytes: size,
            used_bytes: used_gib * GIB,
            free_bytes: size - used_gib * GIB,
            data: Some(Profile::Single),
            metadata: Some(Profile::Dup),
            devices: (1..).zip(&volumes).map(device).collect(),
            chunk_slack_bytes: 0,
            dirty_limit_bytes: 0,
            largest_jump_bytes: 0,
            peak_used_bytes: used_gib * GIB,
            largest_growth_bytes: 0,
            conditions: Conditions::default(),
            running: None,
            flush: None,
        },
        volumes,
        instance: Some(Instance {
            id: "i-0123456789abcdef0".to_owned(),
            instance_type: "m5.8xlarge".to_owned(),
            free_slots: 10,
            other_iops: 0,
            other_mibps: 0,
            operations: 0,
        }),
        account: Account { fleet_volumes: 1_000, ..Account::default() },
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

/// Returns the observation with another kind of file system.
pub fn of_kind(kind: Kind, mut now: Observation) -> Observation {
    now.file_system.kind = kind;
    now.file_system.data = None;
    now.file_system.metadata = None;
    now
}

/// Returns the decision without earlier ones.
pub fn first(policy: &Policy, now: &Observation) -> Decision {
    decide(policy, now, &State::default()).0
}

/// Returns the state after a reading of the same used bytes, half a minute before.
pub fn steady(now: &Observation) -> State {
    let used_bytes = now.file_system.used_bytes;
    let reading = Reading { unix_ms: now.unix_ms - 30_000, used_bytes };
    State { reading: Some(reading), ..State::default() }
}

/// Returns the state after a reading of a MiB less, half a minute before.
pub fn growing(now: &Observation) -> State {
    let used_bytes = now.file_system.used_bytes - MIB;
    let reading = Reading { unix_ms: now.unix_ms - 30_000, used_bytes };
    State { reading: Some(reading), ..State::default() }
}

/// Returns the only intent of a decision.
pub fn only(decision: &Decision) -> &Intent {
    let [intent] = decision.intents.as_slice() else { panic!("one intent: {decision:#?}") };
    intent
}

/// Returns the reason of a brake; panics if there is none.
pub fn reason(decision: &Decision, brake: Brake) -> &str {
    let found = decision.brakes.iter().find(|braked| braked.brake == brake);
    let found = found.unwrap_or_else(|| panic!("{brake:?}: {decision:#?}"));
    &found.reason
}

/// Returns the brakes of a decision, without their figures.
pub fn names(decision: &Decision) -> Vec<Brake> {
    decision.brakes.iter().map(|braked| braked.brake).collect()
}

/// Returns the sizes of the only intent, which is a modification.
pub fn resized(decision: &Decision) -> (String, u32, u32) {
    match &only(decision).operation {
        Operation::Modify { volume, from, to } => (volume.clone(), from.size_gib, to.size_gib),
        other => panic!("{other:?}"),
    }
}

/// Returns a change that ended this long ago.
pub fn past(axis: Axis, is_up: bool, ago_ms: u64) -> Past {
    let ended_ms = NOW_MS - ago_ms;
    Past { decided_ms: ended_ms, ended_ms, axis, is_up, is_emergency: false, is_done: true }
}

pub fn open(id: &str, operation: Operation, since_ms: u64) -> Open {
    Open {
        id: id.to_owned(),
        operation,
        since_ms,
        cancelled: false,
        is_emergency: false,
        is_scheduled: false,
        exceeded_s_per_day_max: None,
    }
}

/// Returns the judgement of a volume without proposals.
pub fn judged(id: &str) -> Judged {
    Judged {
        volume: id.to_owned(),
        up: None,
        down: None,
        credits_empty_s: None,
        peak_iops: Some(100),
        peak_bytes_per_s: Some(MIB),
        reasons: Vec::new(),
    }
}

pub fn proposal(spec: VolumeSpec) -> Option<Proposal> {
    Some(Proposal { spec, exceeded_s_per_day_max: 7, monthly_micro: 1 })
}

pub fn evidence(volumes: Vec<Judged>, made_ms: u64) -> Option<Evidence> {
    Some(Evidence { made_ms, digest: "00".to_owned(), volumes })
}
