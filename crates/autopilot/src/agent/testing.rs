//! For tests: a tick.

use crate::Ticked;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_planner::autopilot::Brake;
use evenkeel_planner::autopilot::decide::{Braked, Decision, Forecast, Intent};
use evenkeel_planner::autopilot::observation::{
    Account, Ages, Conditions, FileSystem, Flush, Kind, Observation, Profile, Running, RunningKind,
};
use evenkeel_planner::autopilot::operation::{Call, Operation, Step, Verb};
use evenkeel_planner::autopilot::state::Axis;

/// Returns a tick in which all facts are known, with an intent, a brake, an alarm and two steps.
pub fn ticked() -> Ticked {
    Ticked {
        observation: Some(observation()),
        decision: Some(decision()),
        steps: vec![
            ("0b8e-7.0".to_owned(), Step::Call(Call::Attach { volume: "vol-1".to_owned() }), None),
            (
                "0b8e-7.0".to_owned(),
                Step::Verb(Verb::Add { volume: "vol-1".to_owned() }),
                Some(crate::Fault::Later("no device yet".to_owned())),
            ),
        ],
        faults: vec!["the API: no server at 127.0.0.1:1".to_owned()],
    }
}

fn decision() -> Decision {
    let spec = VolumeSpec {
        volume_type: VolumeType::Gp3,
        size_gib: 8,
        iops: Some(3_000),
        throughput_mibps: Some(125),
        multi_attach: false,
    };
    Decision {
        id: "0b8e-7".to_owned(),
        unix_ms: 1_795_633_200_000,
        forecast: Forecast {
            wanted_free_bytes: 5,
            full_in_s_min: Some(6),
            full_in_s_likely: Some(7),
        },
        intents: vec![Intent {
            id: "0b8e-7.0".to_owned(),
            operation: Operation::Add { spec },
            axis: Axis::Space,
            is_up: true,
            is_emergency: false,
            is_scheduled: false,
            exceeded_s_per_day_max: None,
            reason: "4 GiB are free".to_owned(),
            commands: vec!["do it".to_owned()],
            undo: vec!["undo it".to_owned()],
            monthly_before_micro: 800_000,
            monthly_after_micro: 1_440_000,
        }],
        brakes: vec![Braked {
            brake: Brake::Mode,
            axis: Axis::Space,
            is_up: true,
            reason: "the mode is advise".to_owned(),
        }],
        cancels: Vec::new(),
        pace_bytes_per_s: None,
        alarms: vec!["a volume is larger than its file system".to_owned()],
        is_stopped: false,
    }
}

fn observation() -> Observation {
    Observation {
        unix_ms: 1_795_633_200_000,
        file_system: FileSystem {
            uuid: "0b8e5e3c-6b5d-4a3c-9d0e-000000000001".to_owned(),
            kind: Kind::Btrfs,
            mount: "/srv".to_owned(),
            size_bytes: 10,
            used_bytes: 6,
            free_bytes: 4,
            data: Some(Profile::Single),
            metadata: Some(Profile::Dup),
            devices: Vec::new(),
            chunk_slack_bytes: 0,
            dirty_limit_bytes: 0,
            largest_jump_bytes: 0,
            peak_used_bytes: 6,
            largest_growth_bytes: 0,
            conditions: Conditions::default(),
            running: Some(Running {
                kind: RunningKind::Remove,
                devid: Some(2),
                done_permille: None,
                pace_bytes_per_s: Some(9),
            }),
            flush: Some(Flush { p99_ms: 3, count: 10 }),
        },
        volumes: Vec::new(),
        instance: None,
        account: Account::default(),
        ages: Ages {
            file_system_ms: Some(0),
            volumes_ms: Some(4_000),
            counters_ms: Some(1_000),
            clock_skew_ms: None,
        },
        evidence: None,
        front_end: None,
    }
}
