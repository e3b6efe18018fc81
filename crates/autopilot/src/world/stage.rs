//! The host, the API and the journal of an agent in the world.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use evenkeel_core::random::Random;
use evenkeel_planner::autopilot::observation::{
    Account, Conditions, FileSystem, Flush, Instance, Profile, Running, RunningKind, VolumeState,
};
use evenkeel_planner::autopilot::operation::{Call, Verb};
use evenkeel_planner::autopilot::policy::Policy;

use super::faults::{Faults, Kind as Hazard};
use super::judge::Judge;
use super::space::Space;
use super::state::{UUID, World};
use crate::{Cloud, Fault, Host, Journal, Known, Memory, Orders};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// The window of delayed requests in an observation, in seconds.
const WINDOW_S: u32 = 900;
/// The age of counters in a fault that makes them late, in milliseconds.
const LATE_MS: u64 = 120_000;
/// The stream of random numbers of latencies.
const STREAM: u64 = 6;
/// Milliseconds of a flush at rest, at the 99th percentile.
const FLUSH_MS: u32 = 4;

/// The world with its faults, the checks and the memory of the agent.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) world: World,
    pub(super) faults: Faults,
    pub(super) judge: Judge,
    pub(super) memory: Memory,
    /// The last release by a person, in milliseconds since 1970.
    pub(super) released_ms: u64,
    pub(super) keeps_audit: bool,
    pub(super) audit: Vec<String>,
    pub(super) flush_random: Random,
    /// Calls and verbs that had an effect.
    pub(super) steps: u64,
    /// Volumes without the superblock of the file system, because a move or a removal erased it.
    pub(super) policy: Rc<Policy>,
    /// The counters of volumes when they were last read.
    pub(super) counters: Counters,
}

/// Counters of volumes at a time: delayed seconds, MiB/s and credits.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Counters {
    pub(super) read_ms: u64,
    volumes: BTreeMap<String, (u32, Option<u32>, Option<u32>)>,
}

/// The stage that a host, an API and a journal share.
pub(super) type Shared = Rc<RefCell<Stage>>;

impl Stage {
    pub(super) fn new(world: World, faults: Faults, policy: Policy, seed: u64) -> Self {
        let judge = Judge::new(&world);
        Self {
            world,
            faults,
            judge,
            memory: Memory::default(),
            released_ms: 0,
            keeps_audit: false,
            audit: Vec::new(),
            flush_random: Random::new(seed, STREAM),
            steps: 0,
            policy: Rc::new(policy),
            counters: Counters::default(),
        }
    }

    /// Fails if the agent has ended before this call.
    fn begin(&mut self) -> Result<(), Fault> {
        self.end(Ok(()))
    }

    /// Fails if the agent has ended before it learns a result.
    fn end<T>(&mut self, result: Result<T, Fault>) -> Result<T, Fault> {
        if self.faults.half_step() {
            return Err(Fault::Later("the agent has ended".to_owned()));
        }
        result
    }

    /// Passes time until `to_ms`.
    pub(super) fn advance(&mut self, to_ms: u64) {
        while self.world.now_ms < to_ms {
            let change = self.faults.next_change(self.world.now_ms).unwrap_or(to_ms);
            self.world.advance(to_ms.min(change.max(self.world.now_ms + 1)));
            let now = self.world.now_ms;
            if let Some(policy) = self.faults.rules(now)
                && policy != self.world.ec2.modify_policy()
            {
                self.world.ec2.set_modify_policy(policy);
            }
            self.world.ec2.stuck_until_ms = self
                .faults
                .end_of(Hazard::AttachStuck, now)
                .map(|end| super::state::START_MS + end);
        }
        self.excuse();
    }

    /// Excuses full events that no policy could prevent.
    fn excuse(&mut self) {
        let actuation_ms = u64::from(self.policy.space.actuation_s) * 1_000;
        let takes_volumes = matches!(self.world.space, Space::Btrfs(_));
        for event in self.world.full.iter_mut().rev().take_while(|event| !event.is_judged) {
            event.is_judged = true;
            event.is_excused = self.faults.prevented_growth(event.from_ms, actuation_ms)
                || self.faults.refused_growth(event.from_ms, actuation_ms, takes_volumes);
        }
    }

    fn read_counters(&mut self) {
        let now = self.world.now_ms;
        if self.faults.has(Hazard::MetricsFrozen, now) {
            return;
        }
        let late = if self.faults.has(Hazard::MetricsLate, now) { LATE_MS } else { 0 };
        let ids: Vec<String> = self.world.space.volumes().into_iter().map(str::to_owned).collect();
        let until = now.saturating_sub(late);
        let world = &self.world;
        let volumes = ids.into_iter().map(|id| {
            let delayed = world.delayed_s(&id, WINDOW_S, until);
            let used = world.used_mibps(&id);
            let balance = world.balance_ppm(&id);
            (id, (delayed, used, balance))
        });
        self.counters = Counters { read_ms: until, volumes: volumes.collect() };
    }

    fn file_system(&mut self) -> FileSystem {
        let now = self.world.now_ms;
        let world = &self.world;
        let (data, metadata) = world.space.profiles();
        let devices = world.space.devices();
        let running = world.running.as_ref().map(|running| Running {
            kind: running.kind,
            devid: Some(running.devid),
            done_permille: Some(done(running.done_bytes, running.total_bytes)),
            pace_bytes_per_s: Some(running.pace_bytes_per_s),
        });
        let pace = world.running.as_ref().map(|running| running.pace_bytes_per_s);
        let is_slow = self.faults.has(Hazard::SlowFlushes, now);
        FileSystem {
            uuid: UUID.to_owned(),
            kind: world.space.kind(),
            mount: "/srv".to_owned(),
            size_bytes: world.space.size_bytes(),
            used_bytes: world.space.used(),
            free_bytes: world.space.room(),
            data,
            metadata,
            devices,
            chunk_slack_bytes: world.space.slack_bytes(),
            dirty_limit_bytes: world.load.dirty_limit_bytes,
            largest_jump_bytes: 0,
            peak_used_bytes: 0,
            largest_growth_bytes: 0,
            conditions: Conditions {
                scrub: self.faults.has(Hazard::Scrub, now),
                ..Conditions::default()
            },
            running,
            flush: Some(self.flush(pace, is_slow)),
        }
    }

    /// Returns the latency of durable writes, by the measurements of moves: as at rest up to half
    /// of what the load leaves free, and far above it beyond that.
    fn flush(&mut self, pace: Option<u64>, is_slow: bool) -> Flush {
        let noise = u32::try_from(self.flush_random.below(4)).expect("a small number");
        let mut p99_ms = FLUSH_MS + noise;
        if let Some(pace) = pace {
            let half = self.world.free_bytes_per_s_min() / 2;
            p99_ms += if pace > half + MIB { 100 } else { 4 };
        }
        if is_slow {
            p99_ms += 40;
        }
        Flush { p99_ms, count: 1_000 }
    }
}

fn done(part: u64, whole: u64) -> u32 {
    let permille = u128::from(part) * 1_000 / u128::from(whole.max(1));
    u32::try_from(permille.min(1_000)).expect("invariant: at most 1,000")
}

/// The host of the world.
pub(super) struct WorldHost(pub(super) Shared);

impl Host for WorldHost {
    fn observe(&mut self) -> Result<FileSystem, Fault> {
        let mut stage = self.0.borrow_mut();
        stage.begin()?;
        let seen = stage.file_system();
        stage.end(Ok(seen))
    }

    fn has_superblock(&mut self, volume: &str) -> Result<Option<bool>, Fault> {
        let mut stage = self.0.borrow_mut();
        stage.begin()?;
        let found = stage.world.superblock(volume);
        stage.end(Ok(found))
    }

    fn execute(&mut self, verb: &Verb) -> Result<(), Fault> {
        let mut stage = self.0.borrow_mut();
        stage.begin()?;
        let result = stage.verb(verb);
        stage.end(result)
    }
}

impl Stage {
    fn verb(&mut self, verb: &Verb) -> Result<(), Fault> {
        let before = self.world.clone_for_checks();
        let result = self.try_verb(verb);
        if result.is_ok() {
            self.steps += 1;
            let Self { judge, world, policy, memory, faults, .. } = self;
            judge.verb(verb, &before, world, policy, &memory.state, faults);
        }
        result
    }

    fn try_verb(&mut self, verb: &Verb) -> Result<(), Fault> {
        let now = self.world.now_ms;
        if let Verb::Rescan { volume } = verb {
            return self.rescan(volume);
        }
        if let Verb::Grow { volume } = verb
            && let Space::Plain(plain) = &mut self.world.space
        {
            if plain.volume != *volume {
                return Err(refused(format!("{volume} is not its device")));
            }
            plain.size_bytes = plain.device_bytes;
            return Ok(());
        }
        let running = self.world.running.as_ref().map(|running| running.kind);
        match verb {
            Verb::Pace { bytes_per_s } => {
                let Some(running) = &mut self.world.running else {
                    return Err(refused("no move runs".to_owned()));
                };
                running.pace_bytes_per_s = (*bytes_per_s).max(1);
                return Ok(());
            }
            Verb::Cancel => {
                self.world.cancel();
                return Ok(());
            }
            _ => {}
        }
        if running.is_some() {
            return Err(Fault::Later("an exclusive operation runs".to_owned()));
        }
        if self.faults.has(Hazard::Scrub, now) && matches!(verb, Verb::Remove { .. }) {
            return Err(Fault::Later("a scrub runs".to_owned()));
        }
        let kind = match verb {
            Verb::Compact { .. } => Some(RunningKind::Compact),
            Verb::Remove { .. } => Some(RunningKind::Remove),
            _ => None,
        };
        // A host reports a failure in the background at the next verb of the same kind.
        if kind.is_some() && self.world.failed == kind {
            self.world.failed = None;
            return Err(refused("the last one ended for want of room".to_owned()));
        }
        self.on_btrfs(verb)
    }

    fn rescan(&mut self, volume: &str) -> Result<(), Fault> {
        let spec = self.world.spec(volume);
        let spec = spec.ok_or_else(|| refused(format!("{volume} has no device here")))?;
        let bytes = u64::from(spec.size_gib) * GIB;
        match &mut self.world.space {
            Space::Btrfs(btrfs) => {
                if let Some(devid) = btrfs.of_volume(volume).map(|device| device.devid) {
                    btrfs.rescan(devid, bytes);
                }
            }
            Space::Plain(plain) if plain.volume == volume => plain.device_bytes = bytes,
            Space::Plain(_) => {}
        }
        Ok(())
    }

    fn on_btrfs(&mut self, verb: &Verb) -> Result<(), Fault> {
        let bytes_of = |world: &World, volume: &str| {
            let is_here = world.ec2.is_attached(volume);
            let spec = world.spec(volume).filter(|_| is_here);
            let spec = spec.ok_or_else(|| refused(format!("{volume} has no device here")));
            spec.map(|spec| u64::from(spec.size_gib) * GIB)
        };
        let Space::Btrfs(btrfs) = &mut self.world.space else {
            return Err(refused("the file system is no btrfs".to_owned()));
        };
        let devid_of = |btrfs: &super::btrfs::Btrfs, volume: &str| {
            let device = btrfs.of_volume(volume);
            let devid = device.map(|device| device.devid);
            devid.ok_or_else(|| refused(format!("{volume} is not a device")))
        };
        match verb {
            Verb::Grow { volume } => {
                let devid = devid_of(btrfs, volume)?;
                btrfs.grow(devid);
            }
            Verb::Compact { used_percent_max, chunks_max, bytes_per_s } => {
                self.world.start_compaction(*used_percent_max, *chunks_max, *bytes_per_s);
            }
            Verb::Add { volume } => {
                if btrfs.of_volume(volume).is_some() {
                    return Ok(());
                }
                let devid = btrfs.next_devid();
                let bytes = bytes_of(&self.world, volume)?;
                if let Space::Btrfs(btrfs) = &mut self.world.space {
                    btrfs.add(devid, volume, bytes);
                }
            }
            Verb::Remove { volume, bytes_per_s } => {
                let devid = devid_of(btrfs, volume)?;
                if btrfs.devices.len() < 2 || btrfs.profiles().1 == Profile::Raid1 {
                    return Err(refused("the profile needs this device".to_owned()));
                }
                self.world.start_removal(devid, *bytes_per_s);
            }
            Verb::Rescan { .. } | Verb::Pace { .. } | Verb::Cancel => {}
        }
        Ok(())
    }
}

fn refused(reason: String) -> Fault {
    Fault::Refused(reason)
}

/// The API of the world.
pub(super) struct WorldCloud(pub(super) Shared);

impl Cloud for WorldCloud {
    fn observe(&mut self, uuid: &str, _: &[String]) -> Result<Known, Fault> {
        let mut stage = self.0.borrow_mut();
        stage.begin()?;
        let result = stage.known(uuid);
        stage.end(result)
    }

    fn execute(&mut self, uuid: &str, call: &Call) -> Result<(), Fault> {
        let mut stage = self.0.borrow_mut();
        stage.begin()?;
        let result = stage.call(uuid, call);
        stage.end(result)
    }
}

impl Stage {
    /// Fails if the API does not answer a call.
    fn answer(&mut self) -> Result<(), Fault> {
        let now = self.world.now_ms;
        if self.faults.has(Hazard::ApiAway, now) {
            return Err(Fault::Later("the API does not answer".to_owned()));
        }
        if self.faults.has(Hazard::Throttled, now) && !self.faults.one_in(3) {
            return Err(Fault::Later("RequestLimitExceeded".to_owned()));
        }
        Ok(())
    }

    fn known(&mut self, uuid: &str) -> Result<Known, Fault> {
        self.answer()?;
        self.read_counters();
        let unix_ms = self.world.unix_ms();
        let mut volumes = self.world.ec2.volumes(uuid, unix_ms);
        for volume in &mut volumes {
            if let Some((delayed_s, used, balance)) = self.counters.volumes.get(&volume.id) {
                volume.exceeded_s = Some(*delayed_s);
                volume.used_mibps = *used;
                volume.balance_ppm = *balance;
            }
        }
        let attached = volumes.iter().filter(|volume| {
            !matches!(volume.state, VolumeState::Creating | VolumeState::Available)
        });
        let used_slots = u32::try_from(attached.count()).expect("invariant: few volumes");
        let slots = evenkeel_core::instance::by_name(self.world.ec2.instance_type())
            .map_or(28, |known| known.attachments_max);
        let instance = Instance {
            id: self.world.ec2.host_id(),
            instance_type: self.world.ec2.instance_type().to_owned(),
            free_slots: slots.saturating_sub(used_slots),
            other_iops: 0,
            other_mibps: 0,
            operations: 0,
        };
        let monthly = self.world.ec2.monthly_micro;
        let account = Account {
            fleet_monthly_micro: monthly,
            group_monthly_micro: monthly,
            fleet_volumes: u32::try_from(volumes.len()).expect("invariant: few volumes"),
            fleet_changed_last_hour: 0,
        };
        Ok(Known { volumes, instance: Some(instance), account, unix_ms: Some(unix_ms) })
    }

    fn call(&mut self, uuid: &str, call: &Call) -> Result<(), Fault> {
        self.answer()?;
        let now = self.world.now_ms;
        let refusal = match call {
            Call::Create { .. } => self.faults.has(Hazard::CreateRefused, now),
            Call::Modify { .. } => self.faults.has(Hazard::ModifyRefused, now),
            _ => false,
        };
        if refusal {
            return Err(refused("InsufficientVolumeCapacity".to_owned()));
        }
        let unix_ms = self.world.unix_ms();
        {
            let Self { judge, world, policy, memory, faults, .. } = self;
            judge.call(call, world, policy, &memory.state, faults);
        }
        let result = self.world.ec2.call(uuid, call, unix_ms);
        if let Err(refused) = result {
            let fault = if refused.is_final { Fault::Refused } else { Fault::Later };
            return Err(fault(refused.reason));
        }
        self.steps += 1;
        if self.faults.has(Hazard::LostAnswers, now) && self.faults.one_in(2) {
            return Err(Fault::Later("the answer was lost".to_owned()));
        }
        Ok(())
    }
}

/// The journal of the world: it survives the agent.
pub(super) struct WorldJournal(pub(super) Shared);

impl Journal for WorldJournal {
    fn load(&mut self, _: &str) -> Result<Memory, Fault> {
        let mut stage = self.0.borrow_mut();
        stage.begin()?;
        let memory = stage.memory.clone();
        stage.end(Ok(memory))
    }

    fn store(&mut self, _: &str, memory: &Memory) -> Result<(), Fault> {
        let mut stage = self.0.borrow_mut();
        stage.begin()?;
        stage.memory.clone_from(memory);
        stage.end(Ok(()))
    }

    fn audit(&mut self, _: u64, line: &str) -> Result<(), Fault> {
        let mut stage = self.0.borrow_mut();
        stage.begin()?;
        stage.audit.push(line.to_owned());
        stage.end(Ok(()))
    }

    fn has_audit(&self) -> bool {
        self.0.borrow().keeps_audit
    }

    fn orders(&mut self) -> Result<Orders, Fault> {
        let released_ms = self.0.borrow().released_ms;
        Ok(Orders { released_ms, ..Orders::default() })
    }
}

impl Stage {
    /// The agent has ended: the program of a removal ends with it, or continues.
    pub(super) fn end_agent(&mut self) {
        let running = self.world.running.as_ref().map(|running| running.kind);
        if running == Some(RunningKind::Remove) && self.faults.one_in(2) {
            self.world.cancel();
        }
    }
}
