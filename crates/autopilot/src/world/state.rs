//! The state of the world, and how it passes time.
//!
//! All rates are constant between two events, and every sum is exact, so that the state at an
//! instant does not depend on the instants at which it was read before.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_control::ModifyPolicy;
use evenkeel_core::convert::saturating;
use evenkeel_core::price::PriceList;
use evenkeel_core::random::Random;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::autopilot::observation::{Profile, RunningKind};

use super::btrfs::{Btrfs, Order};
use super::ec2::Ec2;
use super::load::{DAY_MS, Load, Segment};
use super::space::{Plain, Space};

/// The UUID of the file system of every world.
pub(super) const UUID: &str = "5e7e1d00-0000-4000-8000-0000000000aa";
/// The start of every world: Monday, 2026-02-02, in milliseconds since 1970.
pub(super) const START_MS: u64 = 1_769_990_400_000;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// A move advances in steps of this length from its start.
const MOVE_STEP_MS: u64 = 15_000;
/// Room from which the application is not out of it any more.
const RELIEF_BYTES: u64 = 64 * MIB;
/// Time for which delayed requests are kept for observations.
const DELAYED_KEPT_MS: u64 = DAY_MS / 4;
/// Milliseconds of a month of 30 days, by which volumes are charged.
const MONTH_MS: u128 = 30 * 86_400_000;
/// The stream of random numbers of worlds.
const STREAM: u64 = 3;

/// An exclusive operation that the kernel executes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub(super) kind: RunningKind,
    pub(super) devid: u64,
    /// Chunks that are emptied.
    thin: Vec<u64>,
    pub(super) pace_bytes_per_s: u64,
    pub(super) total_bytes: u64,
    pub(super) done_bytes: u64,
    /// Bytes that were moved beyond whole chunks, in bytes times milliseconds.
    pub(super) credit: u64,
    /// When its next step is due.
    pub(super) next_ms: u64,
}

/// A time without room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FullEvent {
    /// Its start, in milliseconds since the start of the world.
    pub from_ms: u64,
    /// Whether the agent or the API was away at some instant of the actuation time before it, or
    /// the service refused every request that gives room at each instant of that.
    pub is_excused: bool,
    /// Whether that has been found out.
    pub(super) is_judged: bool,
}

/// Credits of a volume, in I/Os times milliseconds.
type Credits = BTreeMap<String, u64>;

/// Facts before a verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Glance {
    pub(super) runs: bool,
    pub(super) used: u64,
}

/// The world.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// Milliseconds since its start.
    pub(super) now_ms: u64,
    pub(super) load: std::rc::Rc<Load>,
    next_segment: usize,
    pub(super) segment: Segment,
    /// Bytes that an import has still to write.
    pub(super) backlog: u64,
    /// Parts of bytes, in bytes times milliseconds.
    import_part: u64,
    net_part: u64,
    pub(super) space: Space,
    pub(super) ec2: Ec2,
    pub(super) running: Option<Move>,
    /// Moves that ended for want of room.
    pub(super) failed_moves: u32,
    /// The kind of the last move, if it ended for want of room.
    pub(super) failed: Option<RunningKind>,
    credits: Credits,
    /// Times in which a limit delayed requests, by volume.
    delayed: BTreeMap<String, VecDeque<(u64, u64)>>,
    /// Whether the application lacks room.
    pub(super) is_lacking: bool,
    pub(super) full: Vec<FullEvent>,
    /// The first time at which the free bytes were below what the policy wanted, without a
    /// decision since.
    pub(super) cost_micro_ms: u128,
    /// The most bytes in use in each hour, and the last request rate, for judges.
    pub(super) peak_by_day: Vec<u64>,
}

impl World {
    /// Creates the world of a seed.
    pub(super) fn new(load: Load, seed: u64, setup: &Setup) -> Self {
        let policy = setup.modify_policy;
        let mut ec2 = Ec2::new(seed, policy, setup.instance_type, price, START_MS);
        let mut space = match setup.kind {
            evenkeel_planner::autopilot::observation::Kind::Btrfs => {
                Space::Btrfs(Btrfs::new(setup.data, Profile::Single))
            }
            kind => Space::Plain(Plain {
                kind,
                volume: String::new(),
                device_bytes: 0,
                size_bytes: 0,
                used: 0,
            }),
        };
        for (devid, spec) in (1..).zip(&setup.volumes) {
            let id = ec2.furnish(UUID, spec, START_MS);
            let bytes = u64::from(spec.size_gib) * GIB;
            match &mut space {
                Space::Btrfs(btrfs) => btrfs.add(devid, &id, bytes),
                Space::Plain(plain) => {
                    plain.volume = id;
                    plain.device_bytes = bytes;
                    plain.size_bytes = bytes;
                }
            }
        }
        let written = space.write(load.first_bytes);
        assert_eq!(written, load.first_bytes, "the first bytes fit");
        let segment = load.segments[0];
        Self {
            now_ms: 0,
            load: std::rc::Rc::new(load),
            next_segment: 1,
            segment,
            backlog: 0,
            import_part: 0,
            net_part: 0,
            space,
            ec2,
            running: None,
            failed_moves: 0,
            failed: None,
            credits: BTreeMap::new(),
            delayed: BTreeMap::new(),
            is_lacking: false,
            full: Vec::new(),
            cost_micro_ms: 0,
            peak_by_day: Vec::new(),
        }
    }

    /// Returns a copy whose load stands still.
    pub(super) fn at_rest(&self) -> Self {
        let segment = Segment { net_bytes_per_s: 0, iops: 0, mibps: 0, ..self.segment };
        let next_segment = self.load.segments.len();
        Self { segment, next_segment, backlog: 0, import_part: 0, ..self.clone() }
    }

    /// Returns the volume that an operation has made.
    pub(super) fn made_by(&self, operation: &str) -> Option<String> {
        let volumes = self.ec2.volumes(UUID, self.unix_ms());
        let made = volumes.into_iter().find(|volume| volume.made_by.as_deref() == Some(operation));
        made.map(|volume| volume.id)
    }

    /// Returns the time in milliseconds since 1970.
    pub(super) const fn unix_ms(&self) -> u64 {
        START_MS + self.now_ms
    }

    /// Returns the cost until now, in millionths of the currency.
    pub(super) fn cost_micro(&self) -> u64 {
        u64::try_from(self.cost_micro_ms / MONTH_MS).expect("invariant: a cost is below 2^64")
    }

    /// Returns the bytes a second that the volumes of the file system can write together.
    pub(super) fn line_bytes_per_s(&self) -> u64 {
        let volumes = self.space.volumes();
        volumes.iter().filter_map(|id| self.spec(id)).map(|spec| self.line_of(&spec)).sum()
    }

    fn line_of(&self, spec: &VolumeSpec) -> u64 {
        self.ec2.rules().pacing(spec).bytes.map_or(u64::MAX >> 20, |limit| limit.per_second)
    }

    /// Returns the specification of a volume that is in force.
    pub(super) fn spec(&self, id: &str) -> Option<VolumeSpec> {
        let volume = self.ec2.volume(id)?;
        match &volume.modification {
            Some(modification) if volume.is_being_modified() => Some(modification.original),
            _ => Some(volume.spec),
        }
    }

    /// Returns the dirty bytes that the host has accepted.
    fn dirty(&self) -> u64 {
        self.backlog.min(self.load.dirty_limit_bytes)
    }

    /// Returns the bytes a second that are written in the present stretch.
    fn rates(&self) -> (u64, u64) {
        let line = self.line_bytes_per_s();
        let import = if self.backlog > 0 { line } else { 0 };
        let net: u64 = saturating(self.segment.net_bytes_per_s);
        (import, net.min(line))
    }

    /// Passes time until `to_ms`. A change of the API's model that is due is in force first.
    pub(super) fn advance(&mut self, to_ms: u64) {
        while self.now_ms < to_ms {
            let until = self.next_change(to_ms);
            self.pass(until);
            self.enter(until);
        }
        self.note_peak();
    }

    /// Returns the end of the present stretch of constant rates, at most `to_ms`.
    fn next_change(&self, to_ms: u64) -> u64 {
        let mut until = to_ms;
        if let Some(next) = self.load.segments.get(self.next_segment) {
            until = until.min(next.from_ms.max(self.now_ms + 1));
        }
        if let Some(due) = self.ec2.next_due() {
            until = until.min(due.saturating_sub(START_MS).max(self.now_ms + 1));
        }
        if let Some(running) = &self.running {
            until = until.min(running.next_ms.max(self.now_ms + 1));
        }
        let midnight = (self.now_ms / DAY_MS + 1) * DAY_MS;
        until = until.min(midnight);
        if let Some(empty) = self.credits_change() {
            until = until.min(self.now_ms + empty.max(1));
        }
        let (import, net) = self.rates();
        if import > 0 {
            let left = (u128::from(self.backlog) * 1_000)
                .saturating_sub(u128::from(self.import_part))
                .div_ceil(u128::from(import));
            let left: u64 = saturating(left);
            until = until.min(self.now_ms.saturating_add(left.max(1)));
        }
        if import + net > 0 && !self.is_lacking {
            let spare = self.space.room().saturating_sub(self.dirty());
            let ms = u128::from(spare) * 1_000 / u128::from(import + net);
            let ms: u64 = saturating(ms);
            until = until.min(self.now_ms.saturating_add(ms.max(1)));
        }
        until
    }

    /// Passes time within a stretch.
    fn pass(&mut self, until: u64) {
        let ms = until - self.now_ms;
        self.cost_micro_ms += u128::from(self.ec2.monthly_micro) * u128::from(ms);
        self.pass_requests(ms);
        let (import, net) = self.rates();
        if import > 0 {
            let part = u128::from(import) * u128::from(ms) + u128::from(self.import_part);
            let bytes = u64::try_from(part / 1_000).expect("invariant: bytes of a stretch");
            let bytes = bytes.min(self.backlog);
            let written = self.space.write(bytes);
            self.backlog -= written;
            self.import_part = u64::try_from(part % 1_000).expect("invariant: below 1,000");
            if self.backlog == 0 {
                self.import_part = 0;
            }
            if written < bytes {
                self.lack();
            }
        }
        let rate = self.segment.net_bytes_per_s;
        let part = if rate < 0 { rate.unsigned_abs() } else { net } * ms + self.net_part;
        self.net_part = part % 1_000;
        if rate < 0 {
            self.space.free(part / 1_000, Order::Oldest);
        } else if self.space.write(part / 1_000) < part / 1_000 {
            // The application repeats the write later.
            self.lack();
        }
        self.now_ms = until;
        if self.space.room() < self.dirty() {
            self.lack();
        } else if self.space.room() >= self.dirty() + RELIEF_BYTES {
            self.is_lacking = false;
        }
    }

    fn lack(&mut self) {
        if !self.is_lacking {
            self.is_lacking = true;
            let from_ms = self.now_ms;
            self.full.push(FullEvent { from_ms, is_excused: false, is_judged: false });
        }
    }

    /// Enters the stretch that begins at `now`: changes that are due.
    fn enter(&mut self, now: u64) {
        self.ec2.advance(START_MS + now);
        if self.running.as_ref().is_some_and(|running| running.next_ms <= now) {
            self.step_move();
        }
        while let Some(segment) = self.load.segments.get(self.next_segment).copied() {
            if segment.from_ms > now {
                break;
            }
            self.next_segment += 1;
            self.begin(segment);
        }
    }

    fn begin(&mut self, segment: Segment) {
        self.note_peak();
        self.segment = segment;
        self.net_part = 0;
        if let Some(purge) = segment.purge {
            // What was not imported yet is dropped with it.
            let dropped = self.backlog.min(purge.bytes);
            self.backlog -= dropped;
            let share = u128::from(self.space.used()) * u128::from(purge.permille) / 1_000;
            let share = u64::try_from(share).expect("invariant: a share of the used bytes");
            self.space.free((purge.bytes - dropped).min(share), purge.order);
        }
        if segment.jump_bytes > 0 {
            let room = self.space.room().saturating_sub(self.dirty());
            if room < segment.jump_bytes {
                self.lack();
                // The application repeats it in parts.
                self.backlog += segment.jump_bytes;
            } else {
                self.space.write(segment.jump_bytes);
            }
        }
        self.backlog += segment.import_bytes;
        if self.space.room() < self.dirty() {
            self.lack();
        }
        self.note_peak();
    }

    fn note_peak(&mut self) {
        let day = evenkeel_core::convert::index(self.now_ms / DAY_MS);
        if self.peak_by_day.len() <= day {
            self.peak_by_day.resize(day + 1, 0);
        }
        let used = self.space.used() + self.dirty();
        self.peak_by_day[day] = self.peak_by_day[day].max(used);
    }

    /// Executes the step of a move that is due.
    fn step_move(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        running.next_ms += MOVE_STEP_MS;
        running.credit += running.pace_bytes_per_s * MOVE_STEP_MS / 1_000;
        let Space::Btrfs(btrfs) = &mut self.space else { return };
        while let Some((chunk, bytes)) = next_chunk(btrfs, &running) {
            if bytes > running.credit {
                self.running = Some(running);
                return;
            }
            if btrfs.relocate(chunk).is_err() {
                end_move(btrfs, &running);
                self.failed_moves += 1;
                self.failed = Some(running.kind);
                return;
            }
            running.credit -= bytes;
            running.done_bytes += bytes;
        }
        if running.kind == RunningKind::Remove {
            btrfs.remove(running.devid);
        } else {
            end_move(btrfs, &running);
        }
    }

    /// Starts to remove a device.
    pub(super) fn start_removal(&mut self, devid: u64, pace: u64) {
        let Space::Btrfs(btrfs) = &mut self.space else { return };
        btrfs.set_leaving(devid, true);
        let total_bytes = btrfs.device(devid).map_or(0, |device| device.allocated_bytes);
        self.run_move(RunningKind::Remove, devid, total_bytes, pace);
    }

    /// Starts to empty chunks that are used at most this much.
    pub(super) fn start_compaction(&mut self, used_percent_max: u32, chunks_max: u32, pace: u64) {
        let Space::Btrfs(btrfs) = &mut self.space else { return };
        let thin = btrfs.thin(used_percent_max, chunks_max);
        let total_bytes = btrfs.bytes_in(&thin);
        self.run_move(RunningKind::Compact, 0, total_bytes, pace);
        if let Some(running) = &mut self.running {
            running.thin = thin;
        }
    }

    fn run_move(&mut self, kind: RunningKind, devid: u64, total_bytes: u64, pace: u64) {
        self.failed = None;
        self.running = Some(Move {
            kind,
            devid,
            thin: Vec::new(),
            pace_bytes_per_s: pace,
            total_bytes,
            done_bytes: 0,
            credit: 0,
            next_ms: self.now_ms + MOVE_STEP_MS,
        });
    }

    /// Ends the running move without its goal.
    pub(super) fn cancel(&mut self) {
        if let Some(running) = self.running.take()
            && let Space::Btrfs(btrfs) = &mut self.space
        {
            end_move(btrfs, &running);
        }
    }

    /// Returns the request rate of a volume: its share by size.
    fn share(&self, rate: u64, spec: &VolumeSpec) -> u64 {
        let volumes = self.space.volumes();
        let sizes = volumes.iter().filter_map(|id| self.spec(id)).map(|s| u64::from(s.size_gib));
        let all: u64 = sizes.sum();
        rate * u64::from(spec.size_gib) / all.max(1)
    }

    /// Returns the milliseconds until credits of a volume become empty or full; `None` if none
    /// does.
    fn credits_change(&self) -> Option<u64> {
        let volumes = self.space.volumes();
        let changes = volumes.iter().filter_map(|id| {
            let spec = self.spec(id)?;
            let limit = self.ec2.rules().pacing(&spec).operations?;
            let credit = limit.credit?;
            let demand = self.share(self.segment.iops.into(), &spec).min(limit.per_second);
            let capacity = credit.capacity * 1_000;
            let left = self.credits.get(*id).copied().unwrap_or(capacity);
            if demand > credit.refill_per_second {
                let ms = left / (demand - credit.refill_per_second);
                (left > 0).then_some(ms.max(1))
            } else {
                None
            }
        });
        changes.min()
    }

    /// Returns the thousandths of its credits that a volume has; `None` without credits.
    pub(super) fn balance_ppm(&self, id: &str) -> Option<u32> {
        let credit = self.ec2.rules().pacing(&self.spec(id)?).operations?.credit?;
        let capacity = credit.capacity * 1_000;
        let left = self.credits.get(id).copied().unwrap_or(capacity).min(capacity);
        let ppm = u128::from(left) * 1_000_000 / u128::from(capacity.max(1));
        Some(u32::try_from(ppm).expect("invariant: at most a million"))
    }

    fn pass_requests(&mut self, ms: u64) {
        let ids: Vec<String> = self.space.volumes().into_iter().map(str::to_owned).collect();
        for id in ids {
            let Some(spec) = self.spec(&id) else { continue };
            let pacing = self.ec2.rules().pacing(&spec);
            let mut is_delayed = false;
            if let Some(limit) = pacing.operations {
                let demand = self.share(self.segment.iops.into(), &spec);
                let mut most = limit.per_second;
                if let Some(credit) = limit.credit {
                    let capacity = credit.capacity * 1_000;
                    let left = self.credits.get(&id).copied().unwrap_or(capacity);
                    let spent = demand.min(limit.per_second) * ms;
                    let earned = credit.refill_per_second * ms;
                    if left == 0 && demand > credit.refill_per_second {
                        most = credit.refill_per_second;
                    } else {
                        let after = (left + earned).saturating_sub(spent).min(capacity);
                        self.credits.insert(id.clone(), after);
                    }
                }
                is_delayed |= demand > most;
            }
            if let Some(limit) = pacing.bytes {
                let demand = self.share(u64::from(self.segment.mibps) * MIB, &spec);
                is_delayed |= demand > limit.per_second;
            }
            if is_delayed {
                self.note_delay(&id, ms);
            }
        }
    }

    fn note_delay(&mut self, id: &str, ms: u64) {
        let until = self.now_ms + ms;
        let times = self.delayed.entry(id.to_owned()).or_default();
        match times.back_mut() {
            Some(last) if last.1 == self.now_ms => last.1 = until,
            _ => times.push_back((self.now_ms, until)),
        }
        while times.front().is_some_and(|first| first.1 + DELAYED_KEPT_MS < until) {
            times.pop_front();
        }
    }

    /// Returns the seconds of the last `window_s` in which a limit delayed requests of a volume,
    /// until `now_ms`.
    pub(super) fn delayed_s(&self, id: &str, window_s: u32, now_ms: u64) -> u32 {
        let from = now_ms.saturating_sub(u64::from(window_s) * 1_000);
        let times = self.delayed.get(id).into_iter().flatten();
        let ms: u64 =
            times.map(|(start, end)| (*end).min(now_ms).saturating_sub((*start).max(from))).sum();
        u32::try_from(ms.div_ceil(1_000)).expect("invariant: at most the window")
    }

    /// Returns the MiB/s that a volume moves, rounded up.
    pub(super) fn used_mibps(&self, id: &str) -> Option<u32> {
        let spec = self.spec(id)?;
        let rate = u64::from(self.segment.mibps) * MIB + self.written_now();
        let own = self.running.as_ref().map_or(0, |running| running.pace_bytes_per_s);
        let share = (self.share(rate, &spec) + own).min(self.line_of(&spec));
        Some(u32::try_from(share.div_ceil(MIB)).expect("invariant: at most the limit"))
    }

    /// Returns whether a volume is a device of the file system.
    pub(super) fn is_device(&self, volume: &str) -> bool {
        self.space.has_volume(volume)
    }

    /// Returns whether the device of a volume has a superblock of the file system; `None` if the
    /// host does not have it.
    pub(super) fn superblock(&self, volume: &str) -> Option<bool> {
        self.ec2.is_attached(volume).then(|| self.is_device(volume))
    }

    /// Returns the least bytes a second that the load leaves free of a volume.
    pub(super) fn free_bytes_per_s_min(&self) -> u64 {
        let volumes = self.space.volumes();
        let specs = volumes.iter().filter_map(|id| self.spec(id));
        let free = specs.map(|spec| {
            let limit = self.ec2.rules().pacing(&spec).bytes;
            let limit = limit.map_or(u64::MAX, |limit| limit.sustained_per_second());
            let rate = u64::from(self.segment.mibps) * MIB + self.written_now();
            limit.saturating_sub(self.share(rate, &spec))
        });
        free.min().unwrap_or(0)
    }

    /// Returns the bytes a second that are written from now on.
    pub(super) fn written_now(&self) -> u64 {
        let (import, net) = self.rates();
        import + net
    }

    /// Returns what checks compare after a verb.
    pub(super) fn clone_for_checks(&self) -> Glance {
        Glance { runs: self.running.is_some(), used: self.space.used() }
    }

    /// Returns whether a limit delays requests now.
    pub(super) fn delays(&self) -> bool {
        self.delayed.values().any(|times| times.back().is_some_and(|last| last.1 == self.now_ms))
    }

    /// Returns whether credits of a volume become fewer.
    pub(super) fn drains(&self) -> bool {
        self.credits_change().is_some()
    }

    /// Returns when the load changes next.
    pub(super) fn next_segment_ms(&self) -> Option<u64> {
        self.load.segments.get(self.next_segment).map(|segment| segment.from_ms)
    }
}

/// Returns the chunk that a move moves next, and the bytes that this takes; `None` at its end.
fn next_chunk(btrfs: &Btrfs, running: &Move) -> Option<(u64, u64)> {
    match running.kind {
        RunningKind::Remove => btrfs.next_leaving(running.devid),
        RunningKind::Compact => btrfs.next_thin(&running.thin),
        RunningKind::Add | RunningKind::Foreign => None,
    }
}

/// Ends a move in the file system: chunks may be allocated everywhere again.
fn end_move(btrfs: &mut Btrfs, running: &Move) {
    if running.kind == RunningKind::Remove {
        btrfs.set_leaving(running.devid, false);
    }
}

/// The volumes, the file system and the rules at the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Setup {
    pub(super) kind: evenkeel_planner::autopilot::observation::Kind,
    pub(super) data: Profile,
    pub(super) volumes: Vec<VolumeSpec>,
    pub(super) modify_policy: ModifyPolicy,
    pub(super) instance_type: &'static str,
}

impl Setup {
    /// Creates the setup of a seed: one to three gp3 volumes, or now and then gp2, with `gib`
    /// together.
    pub(super) fn new(seed: u64, gib: u32) -> Self {
        use evenkeel_core::volume::VolumeType;
        use evenkeel_planner::autopilot::observation::Kind;
        let mut random = Random::new(seed, STREAM);
        let kind = random.among(&[Kind::Btrfs, Kind::Btrfs, Kind::Btrfs, Kind::Xfs, Kind::Ext4]);
        // Several volumes only if there is much to put on them.
        let most = if kind == Kind::Btrfs { (gib / 250).clamp(1, 3) } else { 1 };
        let number = 1 + random.below(most.into());
        let data = if random.one_in(6) { Profile::Raid0 } else { Profile::Single };
        let volume_type = if random.one_in(6) { VolumeType::Gp2 } else { VolumeType::Gp3 };
        let number = u32::try_from(number).expect("a small number");
        let each = gib.div_ceil(number).max(1);
        let spec = VolumeSpec {
            volume_type,
            size_gib: each,
            iops: Some(match volume_type {
                VolumeType::Gp2 => (each * 3).clamp(100, 16_000),
                _ => 3_000,
            }),
            throughput_mibps: (volume_type == VolumeType::Gp3).then_some(125),
            multi_attach: false,
        };
        let modify_policy = random.among(&[
            ModifyPolicy::Aws2026,
            ModifyPolicy::Aws2026,
            ModifyPolicy::AwsClassic,
            ModifyPolicy::Immediate,
        ]);
        let volumes = (0..number).map(|_| spec).collect();
        Self { kind, data, volumes, modify_policy, instance_type: "m5.4xlarge" }
    }
}

/// Returns the monthly cost of a volume by the newest prices, in millionths of the currency.
pub(super) fn price(spec: &VolumeSpec) -> u64 {
    PriceList::newest().monthly_micro_usd(spec).unwrap_or(0)
}

/// Returns the monthly price of one GiB of gp3, in millionths of the currency.
pub(super) fn price_of_gib() -> u64 {
    price(&gp3(2, 3_000)) - price(&gp3(1, 3_000))
}

/// Returns the monthly price of one of the IOPS of gp3 above those that cost nothing.
pub(super) fn price_of_iops() -> u64 {
    price(&gp3(100, 3_001)) - price(&gp3(100, 3_000))
}

fn gp3(size_gib: u32, iops: u32) -> VolumeSpec {
    VolumeSpec {
        volume_type: evenkeel_core::volume::VolumeType::Gp3,
        size_gib,
        iops: Some(iops),
        throughput_mibps: Some(125),
        multi_attach: false,
    }
}
