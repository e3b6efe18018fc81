//! The way back of an operation, executed as printed: by a person, in a copy of the world.
//!
//! The load of the copy stands still. So the file system and its volumes must be afterwards as they
//! were before the operation, and every byte must be there.

use std::fmt;

use evenkeel_core::volume::{VolumeChange, VolumeSpec, VolumeType};
use evenkeel_planner::autopilot::decide::Intent;
use evenkeel_planner::autopilot::observation::{Observation, RunningKind};
use evenkeel_planner::autopilot::operation::Call;

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
/// The longest wait for a call to be in force.
const SETTLED_MS_MAX: u64 = HOUR_MS;
/// The comment of commands that end a running move.
const WHILE_RUNNING: &str = "# while it runs";

/// An operation with the state before it.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) intent: Intent,
    /// Sizes of the devices in bytes, sorted.
    sizes: Vec<u64>,
    /// Volumes of the devices, sorted.
    volumes: Vec<String>,
    /// Whether the way back was executed while the move ran.
    pub(super) was_interrupted: bool,
}

/// The result of a way back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Undone {
    /// All is as before.
    Executed,
    /// The file system has no room to be as small as before; nothing is lost.
    NoRoom,
    /// The way back is an advice: the file system cannot shrink.
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
        Self { intent: intent.clone(), sizes, volumes, was_interrupted: false }
    }

    /// Returns whether its move runs and its way back was not executed in this state.
    pub(super) fn is_interruptible(&self, world: &World) -> bool {
        let running = world.running.as_ref().map(|running| running.kind);
        let is_move = matches!(running, Some(RunningKind::Remove | RunningKind::Replace));
        is_move && !self.was_interrupted && self.intent.undo.iter().any(|line| ends_move(line))
    }

    /// Executes the way back in a copy of the world: while the move runs, only the commands that
    /// end it.
    ///
    /// # Errors
    /// If a command fails, or if something is not as before afterwards.
    pub(super) fn execute(&self, world: &World, is_running: bool) -> Result<Undone, String> {
        let made = world.made_by(&self.intent.id);
        let mut person =
            Person { world: world.at_rest(), new: made.unwrap_or_default(), created: 0 };
        let used = world.space.used();
        for line in &self.intent.undo {
            if is_running && line.starts_with("NEW=") {
                break;
            }
            if line.starts_with('#') {
                return Ok(Undone::Advised);
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
        self.compare(&person.world)?;
        Ok(Undone::Executed)
    }

    fn compare(&self, world: &World) -> Result<(), String> {
        let mut sizes: Vec<u64> =
            world.space.devices().iter().map(|device| device.size_bytes).collect();
        sizes.sort_unstable();
        if sizes != self.sizes {
            return Err(format!("devices of {sizes:?} bytes, and before {:?}", self.sizes));
        }
        let volumes = volumes(world);
        if volumes != self.volumes {
            return Err(format!("volumes {volumes:?}, and before {:?}", self.volumes));
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
fn volumes(world: &World) -> Vec<String> {
    let specs = world.space.volumes().into_iter().filter_map(|id| world.spec(id));
    let mut forms: Vec<String> = specs.map(|spec| format!("{spec:?}")).collect();
    forms.sort_unstable();
    forms
}

/// A person with a shell on the host.
struct Person {
    world: World,
    /// The volume of `$NEW` and of `$DEVICE`.
    new: String,
    created: u32,
}

impl Person {
    /// Runs a command.
    fn run(&mut self, line: &str) -> Result<(), Stop> {
        let command = line.split("  #").next().unwrap_or(line);
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["aws", "ec2", "wait", ..] => self.settle(),
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
            ["btrfs", "device", "add", "-K", _, _] => self.add(),
            ["btrfs", "balance", "start", ..] => {
                self.world.start_compaction(COMPACTED_PERCENT, u32::MAX, PACE);
                self.finish()
            }
            ["btrfs", "device", "remove", "cancel", _] | ["btrfs", "replace", "cancel", _] => {
                self.world.cancel();
                Ok(())
            }
            ["btrfs", "device", "remove", device, _] => self.remove(device),
            ["btrfs", "replace", "start", "-B", "-f", devid, _, _] => self.replace(devid),
            ["btrfs", "filesystem", "resize", size, _] => self.resize(size),
            [first, ..] if first.starts_with("NEW=$(aws") => self.create(&words),
            [first, ..] if first.starts_with("DEVICE=") => Ok(()),
            _ => Err(Stop::Failed("the command is not known".to_owned())),
        }
    }

    fn volume(&self, words: &[&str]) -> Result<String, Stop> {
        let id = flag(words, "--volume-id");
        let id = id.ok_or_else(|| Stop::Failed("no --volume-id".to_owned()))?;
        Ok(if id == "\"$NEW\"" { self.new.clone() } else { id.to_owned() })
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

    fn create(&mut self, words: &[&str]) -> Result<(), Stop> {
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
        self.new = made.ok_or_else(|| Stop::Failed("no volume was made".to_owned()))?;
        Ok(())
    }

    fn new_bytes(&self) -> u64 {
        let spec = self.world.spec(&self.new);
        spec.map_or(0, |spec| u64::from(spec.size_gib) * GIB)
    }

    fn add(&mut self) -> Result<(), Stop> {
        let bytes = self.new_bytes();
        let is_here = self.world.ec2.is_attached(&self.new);
        match &mut self.world.space {
            Space::Btrfs(btrfs) if is_here => {
                let devid = btrfs.next_devid();
                btrfs.add(devid, &self.new, bytes);
                Ok(())
            }
            _ => Err(Stop::Failed(format!("{} cannot be added", self.new))),
        }
    }

    fn remove(&mut self, device: &str) -> Result<(), Stop> {
        let Space::Btrfs(btrfs) = &self.world.space else {
            return Err(Stop::Failed("it is no btrfs".to_owned()));
        };
        let devid = match device.parse() {
            Ok(devid) => Some(devid),
            Err(_) => btrfs.of_volume(&self.new).map(|device| device.devid),
        };
        let devid = devid.ok_or_else(|| Stop::Failed(format!("{device} is no device")))?;
        self.world.start(RunningKind::Remove, devid, None, PACE);
        self.finish()
    }

    fn replace(&mut self, devid: &str) -> Result<(), Stop> {
        let devid = devid.parse().map_err(|_| Stop::Failed(format!("devid {devid}")))?;
        let size = match &self.world.space {
            Space::Btrfs(btrfs) => btrfs.device(devid).map(|device| device.size_bytes),
            Space::Plain(_) => None,
        };
        if size.is_none_or(|size| self.new_bytes() < size) {
            return Err(Stop::Failed(format!("devid {devid} has {size:?} bytes")));
        }
        let new = self.new.clone();
        self.world.start(RunningKind::Replace, devid, Some(&new), PACE);
        self.finish()
    }

    fn resize(&mut self, size: &str) -> Result<(), Stop> {
        let parts = size.split_once(':').and_then(|(devid, size)| {
            let devid: u64 = devid.parse().ok()?;
            let bytes = match (size, size.strip_suffix('G')) {
                ("max", _) => None,
                (_, Some(gib)) => Some(gib.parse::<u64>().ok()? * GIB),
                (bytes, None) => Some(bytes.parse::<u64>().ok()?),
            };
            Some((devid, bytes))
        });
        let (devid, bytes) = parts.ok_or_else(|| Stop::Failed(format!("size {size}")))?;
        let Some(bytes) = bytes else {
            if let Space::Btrfs(btrfs) = &mut self.world.space {
                btrfs.grow(devid);
            }
            return Ok(());
        };
        self.world.start_cut(devid, bytes, PACE).map_err(|_| Stop::NoRoom)?;
        self.finish()
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
