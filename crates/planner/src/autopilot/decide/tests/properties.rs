//! The invariants of decisions over random policies, observations and states, each against figures
//! that are computed here from the observation alone.

use evenkeel_core::random::Random;
use evenkeel_core::volume::ThroughputRule;
use proptest::prelude::*;

use super::*;
use crate::autopilot::observation::Modification;
use crate::autopilot::policy::{Schedule, Window};
use crate::autopilot::state::{Candidate, Hold, Scheduled, Watch};

const HOUR_MS: u64 = 3_600_000;

/// A source of random facts. About one number in ten is extreme.
struct Dice {
    random: Random,
    /// Whether numbers are extreme at times.
    is_wild: bool,
}

impl Dice {
    fn new(seed: u64, is_wild: bool) -> Self {
        Self { random: Random::new(seed, 0), is_wild }
    }

    fn below(&mut self, bound: u64) -> u64 {
        if self.is_wild && self.random.one_in(10) {
            return self.random.among(&[0, 1, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32]);
        }
        self.random.below(bound)
    }

    fn small(&mut self, bound: u32) -> u32 {
        if self.is_wild && self.random.one_in(10) {
            return self.random.among(&[0, 1, u32::MAX, u32::MAX - 1, 1 << 31]);
        }
        u32::try_from(self.random.below(bound.into())).unwrap()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    fn maybe<T>(&mut self, percent: u64, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.chance(percent).then(|| make(self))
    }

    fn ago(&mut self, most_ms: u64) -> u64 {
        NOW_MS.saturating_sub(self.below(most_ms))
    }

    fn spec(&mut self) -> VolumeSpec {
        let t = self.random.among(&[
            VolumeType::Gp3,
            VolumeType::Gp3,
            VolumeType::Gp2,
            VolumeType::Io2,
        ]);
        let gib = 20 + u32::try_from(self.random.below(480)).unwrap();
        let extra = u32::try_from(self.random.below(5)).unwrap();
        match t {
            VolumeType::Gp3 => spec(t, gib, Some(3_000 + extra * 1_000), Some(125 + extra * 50)),
            VolumeType::Io2 => spec(t, gib, Some(1_000 + extra * 500), None),
            _ => spec(t, gib, None, None),
        }
    }

    fn policy(&mut self) -> Policy {
        let mut policy = policy();
        policy.mode = self.random.among(&[Mode::Act, Mode::Act, Mode::Observe, Mode::Advise]);
        policy.is_paused = self.chance(5);
        policy.space.keep = self.random.among(&[Keep::Hard, Keep::Likely]);
        policy.space.actuation_s = 30 + self.small(300).min(86_370);
        policy.space.gib_max = self.random.among(&[300, 2_000, 16_384]);
        policy.space.quiet_days = self.random.among(&[0, 7]);
        policy.rate.exceeded_s_max = self.random.among(&[0, 60]);
        policy.rate.confirm_s = self.random.among(&[0, 86_400]);
        policy.budget.monthly_micro_max = self.maybe(30, |dice| dice.below(200_000_000));
        policy.budget.group_monthly_micro_max = self.maybe(20, |dice| dice.below(400_000_000));
        policy.budget.fleet_monthly_micro_max = self.maybe(20, |dice| dice.below(900_000_000));
        policy.budget.saving_micro_min = self.random.among(&[0, 1, 1_000_000]);
        policy.budget.saving_times_min = self.random.among(&[0, 3]);
        if self.chance(20) {
            policy.windows = vec![self.window()];
        }
        if self.chance(20) {
            let window = self.window();
            policy.schedules = vec![Schedule {
                window,
                iops_min: self.maybe(50, |dice| dice.small(20_000)),
                mibps_min: self.maybe(50, |dice| dice.small(1_000)),
                gib_min: self.maybe(50, |dice| dice.small(1_000)),
            }];
        }
        policy
    }

    fn window(&mut self) -> Window {
        Window {
            days: u8::try_from(self.random.below(128)).unwrap(),
            from_minute: u16::try_from(self.random.below(1_440)).unwrap(),
            minutes: 1 + u16::try_from(self.random.below(1_440)).unwrap(),
        }
    }

    fn observation(&mut self) -> Observation {
        let count = 1 + self.random.below(3);
        let specs: Vec<VolumeSpec> = (0..count).map(|_| self.spec()).collect();
        let size: u64 = specs.iter().map(|spec| u64::from(spec.size_gib)).sum();
        let used = self.random.below(size);
        let mut now = btrfs(&specs, used);
        if count == 1 && self.chance(30) {
            let kind = self.random.among(&[Kind::Xfs, Kind::Ext4]);
            now = of_kind(kind, now);
        }
        self.file_system(&mut now.file_system);
        for volume in &mut now.volumes {
            self.volume(volume);
        }
        if self.chance(30) {
            now.volumes.push(self.retired());
        }
        if self.chance(10) {
            // A retired volume that the file system lists.
            now.volumes[0].retired_ms = Some(self.ago(40 * HOUR_MS));
            now.volumes[0].state = VolumeState::Available;
        }
        let types = ["m5.large", "m5.8xlarge", "unknown"];
        now.instance = self.maybe(90, |dice| Instance {
            id: "i-1".to_owned(),
            instance_type: dice.random.among(&types).to_owned(),
            free_slots: dice.small(3),
            other_iops: dice.below(10_000),
            other_mibps: dice.below(300),
            operations: dice.small(3),
        });
        now.account = Account {
            fleet_monthly_micro: self.below(900_000_000),
            group_monthly_micro: self.below(400_000_000),
            fleet_volumes: self.small(1_000),
            fleet_changed_last_hour: self.random.among(&[0, 1, 30]),
        };
        let age = |dice: &mut Self| dice.maybe(95, |dice| dice.below(190_000));
        now.ages = Ages {
            file_system_ms: age(self),
            volumes_ms: age(self),
            counters_ms: age(self),
            clock_skew_ms: self.maybe(90, |dice| dice.below(61_000)),
        };
        now.evidence = self.maybe(80, |dice| dice.evidence(&now));
        now
    }

    fn file_system(&mut self, file_system: &mut FileSystem) {
        if self.chance(40) {
            file_system.free_bytes = self.below(60 * GIB);
        }
        file_system.peak_used_bytes += self.below(50 * GIB) / 8;
        file_system.largest_growth_bytes = self.below(20 * GIB);
        file_system.largest_jump_bytes = self.below(4 * GIB);
        file_system.dirty_limit_bytes = self.below(4 * GIB);
        file_system.chunk_slack_bytes = self.below(20 * GIB);
        if self.is_wild && self.chance(30) {
            file_system.used_bytes = self.below(100 * GIB);
            file_system.size_bytes = self.below(100 * GIB);
            for device in &mut file_system.devices {
                device.size_bytes = self.below(100 * GIB);
                device.allocated_bytes = self.below(100 * GIB);
            }
        }
        file_system.conditions.scrub = self.chance(5);
        file_system.conditions.degraded = self.chance(3);
        file_system.running = self.maybe(10, |dice| Running {
            kind: dice.random.among(&[RunningKind::Remove, RunningKind::Foreign]),
            devid: Some(1),
            done_permille: None,
            pace_bytes_per_s: dice.maybe(80, |dice| dice.below(200 * MIB)),
        });
        file_system.flush =
            self.maybe(50, |dice| Flush { p99_ms: dice.small(40), count: dice.below(9) });
        if self.chance(10) {
            file_system.data = Some(Profile::Raid1);
        }
    }

    fn volume(&mut self, volume: &mut Volume) {
        volume.modified_ms = (0..self.random.below(6)).map(|_| self.ago(30 * HOUR_MS)).collect();
        volume.modifiable_from_ms = self.maybe(10, |dice| NOW_MS + dice.random.below(9));
        volume.modification = self.maybe(20, |dice| {
            dice.random.among(&[Modification::Optimizing, Modification::Completed])
        });
        volume.exceeded_s = self.maybe(90, |dice| dice.small(120));
        volume.used_mibps = self.maybe(90, |dice| dice.small(150));
    }

    fn retired(&mut self) -> Volume {
        Volume {
            state: self.random.among(&[VolumeState::Available, VolumeState::Attached]),
            retired_ms: self.maybe(80, |dice| dice.ago(40 * HOUR_MS)),
            has_superblock: self.random.among(&[Some(true), Some(false), None]),
            made_by: self.maybe(50, |_| "d-0.0".to_owned()),
            ..volume("vol-9", gp3(50))
        }
    }

    fn evidence(&mut self, now: &Observation) -> Evidence {
        let volumes = now.volumes.iter().map(|volume| {
            let other = |dice: &mut Self, up: bool| {
                let gib = volume.spec.size_gib;
                let iops = if up { 9_000 } else { 3_000 };
                let to = spec(VolumeType::Gp3, gib, Some(iops + dice.small(99) % 99), None);
                Proposal {
                    spec: to,
                    exceeded_s_per_day_max: dice.small(60),
                    monthly_micro: dice.below(9_000_000),
                }
            };
            Judged {
                volume: volume.id.clone(),
                up: self.maybe(40, |dice| other(dice, true)),
                down: self.maybe(40, |dice| other(dice, false)),
                credits_empty_s: self.maybe(20, |dice| (dice.below(4_000), dice.below(9_000))),
                peak_iops: self.maybe(80, |dice| dice.below(4_000)),
                peak_bytes_per_s: self.maybe(80, |dice| dice.below(100 * MIB)),
                reasons: if self.chance(20) { vec!["it is short".to_owned()] } else { vec![] },
            }
        });
        let volumes = volumes.collect();
        Evidence { made_ms: self.ago(3 * DAY_MS), digest: "00".to_owned(), volumes }
    }

    fn state(&mut self, now: &Observation) -> State {
        let mut state = State { decisions: self.below(9), ..State::default() };
        for _ in 0..self.random.below(3) {
            let change = Past {
                decided_ms: 0,
                ended_ms: self.ago(30 * DAY_MS),
                axis: self.random.among(&[Axis::Space, Axis::Rate]),
                is_up: self.chance(50),
                is_emergency: self.chance(30),
                is_done: self.chance(80),
            };
            state.past.push(change);
        }
        let first = &now.volumes[0];
        let operation = match self.random.below(3) {
            0 => Operation::Remove { volume: first.id.clone() },
            1 => Operation::Delete { volume: "vol-9".to_owned() },
            _ => Operation::Modify { volume: first.id.clone(), from: first.spec, to: gp3(500) },
        };
        if self.chance(25) {
            let since_ms = self.ago(2 * HOUR_MS);
            state.open.push(open("d-1.0", operation, since_ms));
        }
        if self.chance(60) {
            let low = spec(VolumeType::Gp3, first.spec.size_gib, None, None);
            let since_ms = self.ago(4 * DAY_MS);
            let until_ms = self.ago(2 * DAY_MS).max(since_ms);
            let volume = first.id.clone();
            state.candidates.push(Candidate { volume, spec: low, since_ms, until_ms });
        }
        state.watch = self.maybe(15, |dice| Watch {
            undo: Operation::Modify {
                volume: first.id.clone(),
                from: first.spec,
                to: spec(VolumeType::Gp3, first.spec.size_gib, Some(8_000), None),
            },
            until_ms: NOW_MS + dice.random.below(9) * HOUR_MS,
            exceeded_s_per_day_max: dice.small(60),
            exceeded_s: dice.small(60),
            counted_ms: dice.ago(HOUR_MS),
            slow_windows: dice.small(4),
        });
        state.hold = self.maybe(10, |dice| Hold {
            until_ms: NOW_MS + dice.random.below(2),
            reason: "a reason".to_owned(),
            allows_growth: dice.chance(50),
        });
        if self.chance(10) {
            state.scheduled.push(Scheduled { volume: first.id.clone(), before: gp3(20) });
        }
        state.failures = self.random.among(&[0, 0, 0, 1, 3]);
        state.slow_windows = self.small(4);
        state.slow_month_ms = self.random.among(&[0, 0, 1_860_000]);
        state.slow_month = 56 * 12 + 6;
        state.window_end_ms = self.random.among(&[0, NOW_MS - 300_000]);
        state.pace_bytes_per_s = self.maybe(20, |dice| dice.below(100 * MIB));
        state.reading = self.maybe(50, |dice| Reading {
            unix_ms: NOW_MS - 20_000,
            used_bytes: dice.below(400 * GIB),
        });
        state
    }
}

struct World {
    policy: Policy,
    now: Observation,
    before: State,
    decision: Decision,
    after: State,
}

fn world(seed: u64, is_wild: bool) -> World {
    let mut dice = Dice::new(seed, is_wild);
    let policy = dice.policy();
    let now = dice.observation();
    let before = dice.state(&now);
    let (decision, after) = decide(&policy, &now, &before);
    World { policy, now, before, decision, after }
}

impl World {
    fn spec_of(&self, id: &str) -> VolumeSpec {
        let volume = self.now.volumes.iter().find(|volume| volume.id == id);
        volume.unwrap_or_else(|| panic!("{id}: {:#?}", self.decision)).spec
    }

    fn operations(&self) -> impl Iterator<Item = &Intent> {
        let is_other = |intent: &&Intent| !matches!(intent.operation, Operation::Delete { .. });
        self.decision.intents.iter().filter(is_other)
    }

    fn cost(&self, spec: &VolumeSpec) -> u64 {
        self.policy.plan.prices.monthly(spec).expect("a price").total()
    }

    /// Returns the monthly cost of the devices of the file system.
    fn cost_before(&self) -> u64 {
        let devices = self.now.file_system.devices.iter();
        devices.map(|device| self.cost(&self.spec_of(device.volume.as_ref().unwrap()))).sum()
    }

    fn cost_after(&self, operation: &Operation) -> u64 {
        let before = self.cost_before();
        match operation {
            Operation::Modify { volume, to, .. } => {
                before - self.cost(&self.spec_of(volume)) + self.cost(to)
            }
            Operation::Add { spec } => before + self.cost(spec),
            Operation::Remove { volume } => before - self.cost(&self.spec_of(volume)),
            Operation::Replace { volume, with } => {
                before - self.cost(&self.spec_of(volume)) + self.cost(with)
            }
            Operation::Delete { .. } => before,
        }
    }

    /// Returns the room that the policy wants, by the paper's formula.
    fn wanted(&self) -> u128 {
        let file_system = &self.now.file_system;
        let mut line = 0_u128;
        for device in &file_system.devices {
            let running = file_system.running.as_ref();
            let is_leaving = running.is_some_and(|running| {
                running.kind == RunningKind::Remove && running.devid == Some(device.devid)
            });
            if is_leaving {
                continue;
            }
            let spec = self.spec_of(device.volume.as_ref().unwrap());
            let bytes = self.policy.plan.rules.pacing(&spec).bytes.expect("a limit");
            line += u128::from(bytes.per_second);
        }
        let host = self.now.instance.as_ref().map(|instance| instance.instance_type.as_str());
        match host {
            Some("m5.large") => line = line.min(4_750 * 125_000),
            Some("m5.8xlarge") => line = line.min(6_800 * 125_000),
            _ => {}
        }
        let stale_ms = u128::from(self.policy.brakes.stale_s) * 1_000;
        let age_ms = self.now.ages.file_system_ms.map_or(stale_ms, u128::from).min(stale_ms);
        let keep = match self.policy.space.keep {
            Keep::Hard => {
                line * (u128::from(self.policy.space.actuation_s) + age_ms.div_ceil(1_000))
            }
            Keep::Likely => u128::from(file_system.largest_growth_bytes) * 3 / 2,
        };
        let size = u128::from(file_system.size_bytes);
        let chunks = match file_system.kind {
            Kind::Btrfs => 2 * u128::from(GIB).min(size / 10),
            Kind::Xfs | Kind::Ext4 => 0,
        };
        let reserve = (size * 2 / 100).max(u128::from(GIB)).max(chunks);
        keep + reserve
            + u128::from(file_system.dirty_limit_bytes)
            + u128::from(file_system.largest_jump_bytes)
    }
}

proptest! {
    /// Any observation has a decision, the same one each time, to the byte.
    #[test]
    fn decide_is_total_and_deterministic(seed: u64) {
        let world = world(seed, true);
        let text = |decision: &Decision, state: &State| {
            (serde_json::to_string(decision).unwrap(), serde_json::to_string(state).unwrap())
        };
        let once = text(&world.decision, &world.after);
        let now: Observation =
            serde_json::from_str(&serde_json::to_string(&world.now).unwrap()).unwrap();
        let before: State =
            serde_json::from_str(&serde_json::to_string(&world.before).unwrap()).unwrap();
        let (decision, state) = decide(&world.policy, &now, &before);
        prop_assert_eq!(&once, &text(&decision, &state));
        let read: Decision = serde_json::from_str(&once.0).unwrap();
        prop_assert_eq!(read, decision);
    }

    /// Without room, the file system grows, or a brake says why not.
    #[test]
    fn decide_gives_room_or_the_reason(seed: u64) {
        let world = world(seed, false);
        let file_system = &world.now.file_system;
        let is_member = |device: &Device| {
            let id = device.volume.as_ref().unwrap();
            let volume = world.now.volumes.iter().find(|volume| volume.id == *id).unwrap();
            volume.state == VolumeState::Attached && volume.retired_ms.is_none()
        };
        let is_managed = file_system.devices.iter().all(is_member);
        prop_assume!(is_managed);
        let is_moving = file_system.running.as_ref().is_some_and(|running| {
            matches!(running.kind, RunningKind::Remove | RunningKind::Compact)
        });
        let emptied = if is_moving { (file_system.size_bytes / 10).min(GIB) } else { 0 };
        let is_short = u128::from(file_system.free_bytes + emptied) < world.wanted();
        let more = |axis: Axis, is_up: bool| axis == Axis::Space && is_up;
        let grows = world.decision.intents.iter().find(|intent| more(intent.axis, intent.is_up));
        let braked = world.decision.brakes.iter().any(|braked| more(braked.axis, braked.is_up));
        if is_short {
            prop_assert!(grows.is_some() || braked, "{:#?}", world.decision);
        } else {
            let mut schedules = world.policy.schedules.iter();
            let schedule = schedules.any(|schedule| schedule.gib_min.is_some());
            prop_assert!(grows.is_none() || schedule, "{:#?}", world.decision);
        }
        if let Some(grows) = grows {
            prop_assert!(
                world.operations().count() == 1 && !world.decision.intents.is_empty(),
                "{:#?}", grows
            );
        }
    }

    /// At most one operation, and none beside another one but growth in an emergency.
    #[test]
    fn decide_starts_one_operation_at_most(seed: u64) {
        let world = world(seed, true);
        prop_assert!(world.operations().count() <= 1);
        let is_other = |open: &&Open| !matches!(open.operation, Operation::Delete { .. });
        if world.before.open.iter().any(|open| is_other(&open)) {
            for intent in world.operations() {
                prop_assert!(intent.is_emergency && intent.is_up && intent.axis == Axis::Space);
            }
        }
        if world.now.file_system.running.is_some() {
            for intent in world.operations() {
                let is_modify = matches!(intent.operation, Operation::Modify { .. });
                prop_assert!(intent.is_up || is_modify);
            }
        }
    }

    /// Nothing is deleted without its mark and its grace time, or while it is in use.
    #[test]
    fn decide_deletes_only_what_nothing_uses(seed: u64) {
        let world = world(seed, true);
        for intent in &world.decision.intents {
            let Operation::Delete { volume: id } = &intent.operation else { continue };
            let volume = world.now.volumes.iter().find(|volume| volume.id == *id).unwrap();
            let retired_ms = volume.retired_ms.expect("a mark");
            prop_assert!(NOW_MS - retired_ms >= 24 * HOUR_MS);
            prop_assert!(volume.state == VolumeState::Available);
            prop_assert!(volume.has_superblock != Some(true));
            let devices = &world.now.file_system.devices;
            prop_assert!(devices.iter().all(|device| device.volume.as_ref() != Some(id)));
        }
    }

    /// No modification beyond the policy: of 4, one is kept for an undo, one for an emergency.
    #[test]
    fn decide_keeps_modifications(seed: u64) {
        let world = world(seed, true);
        for intent in world.operations() {
            let Operation::Modify { volume, from, to } = &intent.operation else { continue };
            prop_assert_eq!(from, &world.spec_of(volume));
            if from == to {
                continue;
            }
            let volume = world.now.volumes.iter().find(|known| known.id == *volume).unwrap();
            let day = NOW_MS - DAY_MS;
            let used = volume.modified_ms.iter().filter(|ms| **ms > day).count();
            let is_undo = intent.axis == Axis::Rate && intent.is_emergency
                && world.before.watch.is_some();
            let most = if is_undo { 4 } else if intent.is_emergency { 3 } else { 2 };
            prop_assert!(used < most, "{used} of {most}: {intent:#?}");
            prop_assert!(volume.modifiable_from_ms.is_none_or(|ms| ms <= NOW_MS));
            prop_assert!(volume.modification != Some(Modification::Optimizing));
        }
    }

    /// No change costs more than a cap.
    #[test]
    fn decide_keeps_the_caps_of_money(seed: u64) {
        let world = world(seed, true);
        for intent in world.operations() {
            let before = world.cost_before();
            let after = world.cost_after(&intent.operation);
            prop_assert_eq!(intent.monthly_before_micro, before);
            prop_assert_eq!(intent.monthly_after_micro, after);
            if after <= before {
                continue;
            }
            let more = after - before;
            let account = world.now.account;
            let budget = &world.policy.budget;
            for (cap, spent) in [
                (budget.monthly_micro_max, before),
                (budget.group_monthly_micro_max, account.group_monthly_micro),
                (budget.fleet_monthly_micro_max, account.fleet_monthly_micro),
            ] {
                prop_assert!(cap.is_none_or(|cap| spent.saturating_add(more) <= cap));
            }
        }
    }

    /// Limits become less only by a proposal of fresh evidence, confirmed twice; or at the end of a
    /// schedule.
    #[test]
    fn decide_lowers_only_by_evidence(seed: u64) {
        let world = world(seed, false);
        for intent in world.operations() {
            let Operation::Modify { volume, from, to } = &intent.operation else { continue };
            let less = |before: Option<u32>, after: Option<u32>| {
                before.zip(after).is_some_and(|(before, after)| after < before)
            };
            let is_less = less(from.request().iops, to.request().iops)
                || less(from.throughput_mibps, to.throughput_mibps);
            // An undo gives back what there was before.
            let may_undo = world.before.watch.is_some() && intent.is_emergency;
            if !is_less || intent.is_scheduled || may_undo {
                continue;
            }
            let evidence = world.now.evidence.as_ref().expect("evidence");
            let mut judged = evidence.volumes.iter();
            let judged = judged.find(|judged| judged.volume == *volume).unwrap();
            if judged.up.is_some() && to.volume_type != from.volume_type {
                // Another type may have less of one limit.
                continue;
            }
            prop_assert!(NOW_MS - evidence.made_ms <= 2 * DAY_MS);
            prop_assert!(judged.reasons.is_empty(), "{:#?}", intent);
            let down = judged.down.as_ref().expect("a proposal");
            prop_assert!(to.iops >= down.spec.iops);
            let mut candidates = world.after.candidates.iter();
            let candidate = candidates.find(|known| known.volume == *volume).unwrap();
            let waited = candidate.until_ms - candidate.since_ms;
            prop_assert!(waited >= u64::from(world.policy.rate.confirm_s) * 1_000);
        }
    }

    /// No two opposite changes within 7 days, and 28 after an emergency; more in an emergency, and
    /// schedules, are excepted.
    #[test]
    fn decide_does_not_go_to_and_fro(seed: u64) {
        let world = world(seed, false);
        for intent in world.operations() {
            if intent.is_scheduled || intent.is_emergency && intent.is_up {
                continue;
            }
            for past in &world.before.past {
                if !past.is_done || past.axis != intent.axis || past.is_up == intent.is_up {
                    continue;
                }
                let days = if past.is_emergency && past.is_up { 28 } else { 7 };
                prop_assert!(NOW_MS - past.ended_ms >= days * DAY_MS, "{past:?} {intent:#?}");
            }
        }
    }

    /// A move is never faster than half of what the volumes leave free, or than the least pace.
    #[test]
    fn decide_paces_moves(seed: u64) {
        let world = world(seed, false);
        let Some(pace) = world.decision.pace_bytes_per_s else { return Ok(()) };
        let least = 4 * MIB;
        let own = world.now.file_system.running.as_ref().unwrap().pace_bytes_per_s.unwrap_or(0);
        for device in &world.now.file_system.devices {
            let id = device.volume.as_ref().unwrap();
            let volume = world.now.volumes.iter().find(|volume| volume.id == *id).unwrap();
            if volume.state != VolumeState::Attached {
                continue;
            }
            let limit = world.policy.plan.rules.pacing(&volume.spec).bytes.unwrap().per_second;
            let used = volume.used_mibps.map_or(u64::MAX, |mibps| {
                (u64::from(mibps) * MIB).saturating_sub(own)
            });
            let free = limit.saturating_sub(used);
            prop_assert!(pace <= (free / 2).max(least), "{pace} of {free}");
        }
    }

    /// Steps down are 25 % at most and leave the room; steps up stay below the largest size.
    #[test]
    fn decide_takes_bounded_steps(seed: u64) {
        let world = world(seed, false);
        let file_system = &world.now.file_system;
        let size_gib = file_system.size_bytes / GIB;
        for intent in world.operations() {
            match &intent.operation {
                Operation::Modify { from, to, .. } => {
                    prop_assert!(to.size_gib >= from.size_gib);
                    let step = u64::from(to.size_gib - from.size_gib);
                    prop_assert!(step == 0 || size_gib + step <= world.policy.space.gib_max.into());
                }
                Operation::Add { .. } => prop_assert!(file_system.kind == Kind::Btrfs),
                Operation::Remove { volume } | Operation::Replace { volume, .. } => {
                    let left = match &intent.operation {
                        Operation::Replace { with, .. } => with.size_gib,
                        _ => 0,
                    };
                    let step = u64::from(self_gib(&world, volume) - left);
                    prop_assert!(step * 4 <= size_gib, "{step} of {size_gib}");
                    let free = u128::from(file_system.free_bytes - step * GIB);
                    let back = file_system.peak_used_bytes.saturating_sub(file_system.used_bytes);
                    prop_assert!(free >= world.wanted() + u128::from(back), "{:#?}", intent);
                    prop_assert!(!file_system.conditions.scrub);
                }
                Operation::Delete { .. } => unreachable!(),
            }
        }
    }

    /// Each intent has commands and a way back, and a hold or a pause allows none.
    #[test]
    fn decide_prints_commands_and_obeys_holds(seed: u64) {
        let world = world(seed, true);
        for intent in &world.decision.intents {
            prop_assert!(!intent.commands.is_empty() && !intent.undo.is_empty(), "{:#?}", intent);
            let id = format!("0a1b2c3d-{}.", world.before.decisions.saturating_add(1));
            prop_assert!(intent.id.starts_with(&id));
        }
        let hold = world.before.hold.as_ref().filter(|hold| hold.until_ms > NOW_MS);
        let is_held = hold.is_some_and(|hold| !hold.allows_growth);
        prop_assert_eq!(world.decision.is_stopped, world.policy.is_paused || is_held);
        if world.decision.is_stopped {
            prop_assert!(world.decision.intents.is_empty());
            prop_assert!(world.decision.cancels.is_empty());
        }
        if hold.is_some() {
            let growth = |intent: &Intent| intent.is_up && intent.axis == Axis::Space;
            prop_assert!(world.decision.intents.iter().all(growth));
        }
        if world.policy.mode != Mode::Act && !world.decision.intents.is_empty() {
            prop_assert!(names(&world.decision).contains(&Brake::Mode));
        }
    }

    /// IOPS and MiB/s that an instance cannot carry are not bought.
    #[test]
    fn decide_buys_within_the_instance(seed: u64) {
        let world = world(seed, false);
        let Some(host) = &world.now.instance else { return Ok(()) };
        let most: (u64, u64) = match host.instance_type.as_str() {
            "m5.large" => (18_750, 4_750 * 125_000),
            "m5.8xlarge" => (30_000, 6_800 * 125_000),
            _ => return Ok(()),
        };
        for intent in world.operations() {
            let Operation::Modify { volume, from, to } = &intent.operation else { continue };
            let may_undo = intent.is_emergency && world.before.watch.is_some();
            if may_undo || !intent.is_up {
                // An undo, and the end of a schedule, give back what there was before.
                continue;
            }
            let rules = world.policy.plan.rules;
            let rates = |spec: &VolumeSpec| {
                let pacing = rules.pacing(spec);
                (pacing.operations.unwrap().per_second, pacing.bytes.unwrap().per_second)
            };
            let mut sum = rates(to);
            sum.0 += host.other_iops;
            sum.1 += host.other_mibps * MIB;
            for device in &world.now.file_system.devices {
                let id = device.volume.as_ref().unwrap();
                if id != volume {
                    let other = rates(&world.spec_of(id));
                    sum = (sum.0 + other.0, sum.1 + other.1);
                }
            }
            let sells = |spec: &VolumeSpec| {
                let rules = rules.of(spec.volume_type).unwrap();
                matches!(rules.throughput, ThroughputRule::Provisioned { .. })
            };
            prop_assert!(sum.0 <= most.0 || to.iops <= from.iops || !sells(to), "{:#?}", intent);
            let is_more = to.throughput_mibps > from.throughput_mibps && sells(from);
            prop_assert!(sum.1 <= most.1 || !is_more, "{:#?}", intent);
        }
    }
}

fn self_gib(world: &World, volume: &str) -> u32 {
    world.spec_of(volume).size_gib
}
