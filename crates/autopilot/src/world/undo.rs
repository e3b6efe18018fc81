//! The way back of an operation, executed as printed: by a person, in a copy of the world.
//!
//! The load of the copy stands still. So the file system and its volumes must be afterwards as they
//! were before the operation, and every byte must be there.

use std::fmt;

use evenkeel_core::volume::{VolumeChange, VolumeRequest, VolumeSpec, VolumeType};
use evenkeel_planner::autopilot::decide::Intent;
use evenkeel_planner::autopilot::observation::{Observation, RunningKind};
use evenkeel_planner::autopilot::operation::{Call, Operation};

use super::btrfs::NoRoom;
use super::load::{DAY_MS, HOUR_MS, MINUTE_MS};
use super::space::Space;
use super::state::{UUID, World};

const GIB: u64 = 1 << 30;
/// Bytes a second of a move that is started by hand.
const PACE: u64 = 125 << 20;
/// The use of chunks up to which a balance by hand moves them, in percent.
const COMPACTED_PERCENT: u32 = 80;
/// The longest wait for a move.
const MOVE_MS_MAX: u64 = 60 * DAY_MS;
/// The longest wait for the API to accept a call.
const CALL_MS_MAX: u64 = 2 * DAY_MS;
/// The longest wait for a call to be in force: more than the time for which faults hold back an
/// attachment. A wait of the AWS CLI ends before, and a person repeats it.
const SETTLED_MS_MAX: u64 = 3 * HOUR_MS;
/// The comment of commands that end a running move.
const WHILE_RUNNING: &str = "# while it runs";

/// An operation with the state before it.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) intent: Intent,
    /// Sizes of the devices in bytes, sorted.
    sizes: Vec<u64>,
    /// Volumes of the devices, sorted.
    volumes: Vec<VolumeSpec>,
    /// Whether the way back was executed while the move ran.
    pub(super) was_interrupted: bool,
    /// Whether another operation was open at the same time. Then the way back is compared with the
    /// state when it began, with this operation's own change taken back.
    pub(super) has_other: bool,
}

/// The result of a way back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Undone {
    /// All is as before.
    Executed,
    /// The file system has no room to be as small as before; nothing is lost.
    NoRoom,
    /// The way back of the size is an advice, since the file system cannot shrink. All else is as
    /// before.
    Advised,
}

/// Why a command did not do its work.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stop {
    NoRoom,
    Failed(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom => f.write_str("there is no room"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

impl Before {
    /// Creates it from the observation and the world at the decision. No call of it is in force
    /// yet.
    pub(super) fn new(intent: &Intent, seen: &Observation, world: &World) -> Self {
        let devices = seen.file_system.devices.iter().filter(|device| device.devid != 0);
        let mut sizes: Vec<u64> = devices.map(|device| device.size_bytes).collect();
        sizes.sort_unstable();
        let volumes = volumes(world);
        Self { intent: intent.clone(), sizes, volumes, was_interrupted: false, has_other: false }
    }

    /// Returns the sizes and the volumes that the way back from a state must give.
    fn expected(&self, begun: &World) -> (Vec<u64>, Vec<VolumeSpec>) {
        let made = begun.made_by(&self.intent.id);
        let change = match &self.intent.operation {
            Operation::Modify { volume, from, to } if from != to => Some((volume, Some(*from))),
            Operation::Add { .. } => made.as_ref().map(|made| (made, None)),
            _ => None,
        };
        let Some((own, before)) = change.filter(|_| self.has_other) else {
            return (self.sizes.clone(), self.volumes.clone());
        };
        let devices = begun.space.devices();
        let others = devices.iter().filter(|device| device.volume.as_ref() != Some(own));
        let mut sizes: Vec<u64> = others.clone().map(|device| device.size_bytes).collect();
        let ids = others.filter_map(|device| device.volume.as_ref());
        // A modification that is not in force yet will be when the way back ends.
        let known = ids.filter_map(|id| begun.ec2.volume(id));
        let mut specs: Vec<VolumeSpec> = known.map(|volume| volume.spec).collect();
        sizes.extend(before.map(|spec| u64::from(spec.size_gib) * GIB));
        specs.extend(before);
        sizes.sort_unstable();
        sort(&mut specs);
        (sizes, specs)
    }

    /// Returns whether its move runs and its way back was not executed in this state.
    pub(super) fn is_interruptible(&self, world: &World) -> bool {
        let running = world.running.as_ref().map(|running| running.kind);
        let is_move = running == Some(RunningKind::Remove);
        is_move && !self.was_interrupted && self.intent.undo.iter().any(|line| ends_move(line))
    }

    /// Executes the way back in a copy of the world: while the move runs, only the commands that
    /// end it.
    ///
    /// # Errors
    /// If a command fails, or if something is not as before afterwards.
    pub(super) fn execute(&self, world: &World, is_running: bool) -> Result<Undone, String> {
        let made = world.made_by(&self.intent.id);
        let mut person = Person {
            world: world.at_rest(),
            new: made.unwrap_or_default(),
            old: String::new(),
            created: 0,
        };
        let used = world.space.used();
        let mut is_advice = false;
        for line in &self.intent.undo {
            if is_running && line.starts_with("OLD=") {
                break;
            }
            if line.starts_with('#') {
                is_advice = true;
                continue;
            }
            if !is_running && ends_move(line) {
                continue;
            }
            match person.run(line) {
                Ok(()) => {}
                Err(Stop::NoRoom) => return kept(&person.world, used).map(|()| Undone::NoRoom),
                Err(stop) => return Err(format!("{line:?}: {stop}")),
            }
        }
        kept(&person.world, used)?;
        if is_advice {
            self.compare_rates(&person.world, world)?;
            return Ok(Undone::Advised);
        }
        self.compare(&person.world, world)?;
        Ok(Undone::Executed)
    }

    /// Compares all but the size, which stays as it was when the way back began: only a file system
    /// that cannot shrink has an advice.
    fn compare_rates(&self, world: &World, begun: &World) -> Result<(), String> {
        if matches!(world.space, Space::Btrfs(_)) {
            return Err("an advice, and a btrfs shrinks".to_owned());
        }
        let size = world.space.size_bytes();
        let size_before = begun.space.size_bytes();
        if size != size_before {
            return Err(format!("{size} bytes, and {size_before} when the way back began"));
        }
        let rates = |spec: &VolumeSpec| VolumeRequest { size_gib: 1, ..spec.request() };
        let now: Vec<VolumeRequest> = volumes(world).iter().map(rates).collect();
        let before: Vec<VolumeRequest> = self.volumes.iter().map(rates).collect();
        (now == before)
            .then_some(())
            .ok_or_else(|| format!("limits {now:?}, and before {before:?}"))
    }

    fn compare(&self, world: &World, begun: &World) -> Result<(), String> {
        let (sizes_before, volumes_before) = self.expected(begun);
        let mut sizes: Vec<u64> =
            world.space.devices().iter().map(|device| device.size_bytes).collect();
        sizes.sort_unstable();
        if sizes != sizes_before {
            return Err(format!("devices of {sizes:?} bytes, and before {sizes_before:?}"));
        }
        let volumes = volumes(world);
        if volumes != volumes_before {
            return Err(format!("volumes {volumes:?}, and before {volumes_before:?}"));
        }
        Ok(())
    }
}

fn ends_move(line: &str) -> bool {
    line.ends_with(WHILE_RUNNING)
}

fn kept(world: &World, used: u64) -> Result<(), String> {
    world.space.invariants();
    let now = world.space.used();
    (now == used).then_some(()).ok_or_else(|| format!("{now} bytes of files, and before {used}"))
}

/// Returns the volumes of the devices, sorted.
fn volumes(world: &World) -> Vec<VolumeSpec> {
    let specs = world.space.volumes().into_iter().filter_map(|id| world.spec(id));
    let mut specs: Vec<VolumeSpec> = specs.collect();
    sort(&mut specs);
    specs
}

fn sort(specs: &mut [VolumeSpec]) {
    specs.sort_unstable_by_key(|spec| format!("{spec:?}"));
}

/// A person with a shell on the host.
struct Person {
    world: World,
    /// The volume of `$NEW` and of `$DEVICE`.
    new: String,
    /// The volume of `$OLD` and of `$OLD_DEVICE`.
    old: String,
    created: u32,
}

impl Person {
    /// Runs a command.
    fn run(&mut self, line: &str) -> Result<(), Stop> {
        let command = line.split("  #").next().unwrap_or(line);
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["aws", "ec2", "wait", ..] | ["timeout", ..] => self.settle(),
            ["aws", "ec2", "modify-volume", ..] => self.modify(&words),
            ["aws", "ec2", "attach-volume", ..] => {
                let volume = self.volume(&words)?;
                self.call(&Call::Attach { volume })
            }
            ["aws", "ec2", "detach-volume", ..] => {
                let volume = self.volume(&words)?;
                self.call(&Call::Detach { volume })
            }
            ["aws", "ec2", "delete-volume", ..] => {
                self.settle()?;
                let volume = self.volume(&words)?;
                self.call(&Call::Delete { volume })
            }
            ["btrfs", "device", "add", "-K", device, _] => self.add(device),
            ["btrfs", "balance", "start", ..] => {
                self.world.start_compaction(COMPACTED_PERCENT, u32::MAX, PACE);
                self.finish()
            }
            ["btrfs", "device", "remove", "cancel", _] => {
                self.world.cancel();
                Ok(())
            }
            ["btrfs", "device", "remove", device, _] => self.remove(device),
            ["btrfs", "filesystem", "resize", size, _] => self.resize(size),
            [first, ..] if first.starts_with("NEW=$(aws") => {
                self.new = self.create(&words)?;
                Ok(())
            }
            [first, ..] if first.starts_with("OLD=$(aws") => {
                self.old = self.create(&words)?;
                Ok(())
            }
            [first, ..] if first.starts_with("DEVICE=") || first.starts_with("OLD_DEVICE=") => {
                Ok(())
            }
            _ => Err(Stop::Failed("the command is not known".to_owned())),
        }
    }

    fn volume(&self, words: &[&str]) -> Result<String, Stop> {
        let id = flag(words, "--volume-id");
        let id = id.ok_or_else(|| Stop::Failed("no --volume-id".to_owned()))?;
        Ok(self.named(id).to_owned())
    }

    /// Returns the volume of a word of the shell.
    fn named<'a>(&'a self, word: &'a str) -> &'a str {
        match word {
            "\"$NEW\"" | "\"$DEVICE\"" => &self.new,
            "\"$OLD\"" | "\"$OLD_DEVICE\"" => &self.old,
            other => other,
        }
    }

    /// Makes a call, again and again until the API accepts it.
    fn call(&mut self, call: &Call) -> Result<(), Stop> {
        let until = self.world.now_ms + CALL_MS_MAX;
        loop {
            let unix_ms = self.world.unix_ms();
            let refused = match self.world.ec2.call(UUID, call, unix_ms) {
                Ok(()) => break,
                Err(refused) => refused,
            };
            if refused.is_final || self.world.now_ms > until {
                return Err(Stop::Failed(refused.reason));
            }
            let later = self.world.now_ms + 10 * MINUTE_MS;
            self.world.advance(later);
        }
        self.settle()
    }

    /// Waits until no call is under way.
    fn settle(&mut self) -> Result<(), Stop> {
        let until = self.world.now_ms + SETTLED_MS_MAX;
        while self.world.ec2.next_due().is_some() {
            if self.world.now_ms > until {
                return Err(Stop::Failed("a call is not in force after an hour".to_owned()));
            }
            let later = self.world.now_ms + MINUTE_MS;
            self.world.advance(later);
        }
        Ok(())
    }

    fn modify(&mut self, words: &[&str]) -> Result<(), Stop> {
        let volume = self.volume(words)?;
        let from = self.world.ec2.volume(&volume).map(|volume| volume.spec);
        let from = from.ok_or_else(|| Stop::Failed(format!("{volume} does not exist")))?;
        let change = VolumeChange {
            volume_type: type_of(words),
            size_gib: number(words, "--size"),
            iops: number(words, "--iops"),
            throughput_mibps: number(words, "--throughput"),
            multi_attach: None,
        };
        let to = self.world.ec2.rules().modify(&from, &change);
        let to = to.map_err(|invalid| Stop::Failed(invalid.to_string()))?;
        self.call(&Call::Modify { volume, to })
    }

    /// Returns the volume that it makes.
    fn create(&mut self, words: &[&str]) -> Result<String, Stop> {
        let invalid = || Stop::Failed("a flag of create-volume is absent".to_owned());
        let spec = VolumeSpec {
            volume_type: type_of(words).ok_or_else(invalid)?,
            size_gib: number(words, "--size").ok_or_else(invalid)?,
            iops: number(words, "--iops"),
            throughput_mibps: number(words, "--throughput"),
            multi_attach: false,
        };
        self.created += 1;
        let operation = format!("by-hand-{}", self.created);
        self.call(&Call::Create { operation: operation.clone(), spec })?;
        let made = self.world.made_by(&operation);
        made.ok_or_else(|| Stop::Failed("no volume was made".to_owned()))
    }

    fn add(&mut self, device: &str) -> Result<(), Stop> {
        let volume = self.named(device).to_owned();
        let spec = self.world.spec(&volume);
        let bytes = spec.map_or(0, |spec| u64::from(spec.size_gib) * GIB);
        let is_here = self.world.ec2.is_attached(&volume);
        match &mut self.world.space {
            Space::Btrfs(btrfs) if is_here => {
                let devid = btrfs.next_devid();
                btrfs.add(devid, &volume, bytes);
                Ok(())
            }
            _ => Err(Stop::Failed(format!("{volume} cannot be added"))),
        }
    }

    fn remove(&mut self, device: &str) -> Result<(), Stop> {
        let Space::Btrfs(btrfs) = &self.world.space else {
            return Err(Stop::Failed("it is no btrfs".to_owned()));
        };
        let devid = match device.parse() {
            Ok(devid) => Some(devid),
            Err(_) => btrfs.of_volume(self.named(device)).map(|device| device.devid),
        };
        let devid = devid.ok_or_else(|| Stop::Failed(format!("{device} is no device")))?;
        self.world.start_removal(devid, PACE);
        self.finish()
    }

    /// Shrinks the file system on a device to a number of bytes.
    fn resize(&mut self, size: &str) -> Result<(), Stop> {
        let parts = size.split_once(':').and_then(|(devid, bytes)| {
            Some((devid.parse::<u64>().ok()?, bytes.parse::<u64>().ok()?))
        });
        let (devid, bytes) = parts.ok_or_else(|| Stop::Failed(format!("size {size}")))?;
        let Space::Btrfs(btrfs) = &mut self.world.space else {
            return Err(Stop::Failed("it is no btrfs".to_owned()));
        };
        btrfs.cut(devid, bytes).map_err(|NoRoom| Stop::NoRoom)
    }

    /// Waits for the end of a move.
    fn finish(&mut self) -> Result<(), Stop> {
        let until = self.world.now_ms + MOVE_MS_MAX;
        while self.world.running.is_some() {
            if self.world.now_ms > until {
                return Err(Stop::Failed("the move does not end".to_owned()));
            }
            let later = self.world.now_ms + HOUR_MS;
            self.world.advance(later);
        }
        if self.world.failed.take().is_some() { Err(Stop::NoRoom) } else { Ok(()) }
    }
}

/// Returns the value after a flag.
fn flag<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let place = words.iter().position(|word| *word == name)?;
    words.get(place + 1).copied()
}

fn number(words: &[&str], name: &str) -> Option<u32> {
    flag(words, name)?.parse().ok()
}

fn type_of(words: &[&str]) -> Option<VolumeType> {
    flag(words, "--volume-type")?.parse().ok()
}
