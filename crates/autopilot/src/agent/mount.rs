//! One file system of the agent: its group, its controller, its ticks.

use super::claim::Claim;
use super::devices::keeps_its_size;
use super::front::Front;
use super::judge::Judge;
use super::lines::{self, Printed};
use super::metrics::MountNow;
use super::turns::{Report, Turn, Turns};
use super::{MODIFICATIONS, Shared, result, watched};
use crate::cloud::{Ec2, Setting, Untagged};
use crate::controller::Controller;
use crate::host::LinuxHost;
use crate::journal::FolderJournal;
use crate::{Fault, Host, Journal, Ticked};
use evenkeel_client::output::Failure;
use evenkeel_os::clock;
use evenkeel_planner::autopilot::observation::{FileSystem, Kind};
use evenkeel_planner::autopilot::operation::Verb;
use evenkeel_planner::autopilot::policy::{Mode, Policy};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The beginnings of faults of a source of the observation.
const SOURCES: [&str; 2] = ["the file system: ", "the API: "];

/// A file system that is named by a flag.
pub struct Mount {
    path: PathBuf,
    running: Option<Running>,
    /// Why it does not run, or its journal failed.
    absence: Option<String>,
    last: Option<Ticked>,
    printed: Printed,
    judge: Judge,
    decisions: u64,
    steps: [u64; 3],
}

/// A host that moves no data of volumes without the tag of the file system.
struct Tagged {
    host: LinuxHost,
    untagged: Untagged,
}

impl Host for Tagged {
    fn observe(&mut self) -> Result<FileSystem, Fault> {
        self.host.observe()
    }

    fn has_superblock(&mut self, volume: &str) -> Result<Option<bool>, Fault> {
        self.host.has_superblock(volume)
    }

    fn execute(&mut self, verb: &Verb) -> Result<(), Fault> {
        if let Verb::Remove { volume, .. } = verb
            && self.untagged.has(volume)
        {
            return Err(Fault::Later(format!("{volume} does not have the file system's tag yet")));
        }
        self.host.execute(verb)
    }
}

/// A file system with its controller.
struct Running {
    controller: Controller<Tagged, Front, FolderJournal>,
    /// The tags that all its volumes have.
    tags: BTreeMap<String, String>,
    /// The text of its policies.
    digest: String,
    /// A device that keeps its size when its volume grows.
    fixed: Option<String>,
    /// The kind of the file system.
    kind: Kind,
    _claim: Claim,
}

impl Mount {
    /// Starts the thread of a mount point.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn start(path: PathBuf) -> Result<Turns, Failure> {
        let mut mount = Self::new(path.clone());
        Turns::start(path, move |turn: &Turn| {
            let lines = mount.tick(&turn.shared, turn.unix_ms);
            Report {
                lines,
                absence: mount.absence(),
                now: mount.now(),
                watched: mount.last.as_ref().map(watched).unwrap_or_default(),
                open_operations: mount.open_operations(),
            }
        })
    }

    fn new(path: PathBuf) -> Self {
        Self {
            path,
            running: None,
            absence: None,
            last: None,
            printed: Printed::default(),
            judge: Judge::default(),
            decisions: 0,
            steps: [0; 3],
        }
    }

    /// Returns why it was not observed at the last tick; `None` if it was.
    fn absence(&self) -> Option<String> {
        let is_observed = self.last.as_ref().is_some_and(|last| last.observation.is_some());
        let faults = || self.last.as_ref().map(|last| last.faults.join("; "));
        self.absence.clone().or_else(|| faults().filter(|_| !is_observed))
    }

    /// Returns whether it, the API or the journal could not be read or written at the last tick.
    fn lacks_a_source(&self) -> bool {
        let mut faults = self.last.iter().flat_map(|last| &last.faults);
        let is_of_source = |fault: &String| SOURCES.iter().any(|source| fault.starts_with(source));
        self.absence().is_some() || faults.any(is_of_source)
    }

    /// Returns the number of its operations that have not ended.
    fn open_operations(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.controller.open_operations())
    }

    /// Returns what the metrics have of it; `None` if it was not observed.
    fn now(&self) -> Option<MountNow> {
        if self.absence.is_some() {
            return None;
        }
        let running = self.running.as_ref()?;
        let ticked = self.last.clone().filter(|last| last.observation.is_some())?;
        Some(MountNow {
            mount: self.path.display().to_string(),
            mode: running.controller.policy.mode,
            ticked,
            open_operations: self.open_operations(),
            decisions: self.decisions,
            steps: self.steps,
        })
    }

    /// Observes, decides and acts. Returns the lines to print.
    fn tick(&mut self, shared: &Shared, unix_ms: u64) -> Vec<String> {
        let mut lines = Vec::new();
        let shown = self.path.display().to_string();
        let lacked_a_source = self.lacks_a_source();
        let before = self.absence.take();
        if let Err(reason) = self.prepare(shared, &shown, unix_ms, &mut lines) {
            self.running = None;
            self.last = None;
            if before.as_ref() != Some(&reason) {
                let time = evenkeel_wire::aws::timestamp::extended(unix_ms);
                lines.push(format!("{time} {shown} is not observed: {reason}\n"));
            }
            self.absence = Some(reason);
            return lines;
        }
        let running = self.running.as_mut().expect("invariant: it is prepared");
        let controller = &mut running.controller;
        controller.cloud.ec2.other_operations = shared.other_operations;
        let adopted = adopt(controller, unix_ms);
        match controller.tick(unix_ms) {
            Ok(mut ticked) => {
                ticked.faults.append(&mut controller.cloud.faults);
                ticked.faults.extend(adopted.err().map(|fault| format!("the tags: {fault}")));
                let mode = controller.policy.mode;
                lines.extend(self.printed.lines(&shown, mode, &ticked, unix_ms));
                if let Some(seen) = &ticked.observation {
                    let policy = &controller.policy;
                    let changed_ms = controller.last_change_ms();
                    let folder = &shared.folder;
                    let made = self.judge.look(policy, &shared.counters, folder, seen, changed_ms);
                    controller.evidence = made.or(controller.evidence.take());
                }
                self.decisions += u64::from(ticked.decision.is_some());
                for (_, _, fault) in &ticked.steps {
                    self.steps[result(fault.as_ref())] += 1;
                }
                self.last = Some(ticked);
                if lacked_a_source && !self.lacks_a_source() {
                    let time = evenkeel_wire::aws::timestamp::extended(unix_ms);
                    lines.push(format!("{time} {shown} is observed again\n"));
                }
            }
            Err(fault) => {
                let reason = format!("the journal: {fault}");
                if before.as_ref() != Some(&reason) {
                    let time = evenkeel_wire::aws::timestamp::extended(unix_ms);
                    lines.push(format!("{time} {shown} {reason}; nothing is executed\n"));
                }
                self.absence = Some(reason);
            }
        }
        lines
    }

    /// Opens the file system if it is not open, and gives it the policies that are in force.
    fn prepare(
        &mut self,
        shared: &Shared,
        shown: &str,
        unix_ms: u64,
        lines: &mut Vec<String>,
    ) -> Result<(), String> {
        if self.running.is_none() {
            let running = open(&self.path, shared)?;
            let policy = &running.controller.policy;
            let pacing = running.controller.host.host.pacing();
            lines.push(lines::start(shown, &policy.name, policy.mode, &pacing, unix_ms));
            self.running = Some(running);
        }
        let Some(running) = &mut self.running else { return Ok(()) };
        if running.digest != shared.policies.digest {
            let policy = group(shared, &running.tags)?;
            check_growth(policy, running.fixed.as_deref(), running.kind)?;
            running.controller.cloud.ec2.set_policy(policy, &shared.policies.file);
            running.controller.policy = policy.clone();
            running.controller.policy_digest.clone_from(&shared.policies.digest);
            running.digest.clone_from(&shared.policies.digest);
            let pacing = running.controller.host.host.pacing();
            lines.push(lines::start(shown, &policy.name, policy.mode, &pacing, unix_ms));
        }
        Ok(())
    }
}

/// Returns the policy of the group with these tags.
fn group<'a>(shared: &'a Shared, tags: &BTreeMap<String, String>) -> Result<&'a Policy, String> {
    shared.policies.file.group(tags).ok_or_else(|| {
        let tags: Vec<String> = tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let tags = if tags.is_empty() { "no tag".to_owned() } else { tags.join(", ") };
        format!(
            "no group of {} has the tags of all its volumes ({tags}): tag them, or add a group \
             without tags",
            shared.common.policy.display()
        )
    })
}

/// Checks that volumes grow only if devices do: the file system would wait for the room forever.
fn check_growth(policy: &Policy, fixed: Option<&str>, kind: Kind) -> Result<(), String> {
    let then = match kind.room_by_hand() {
        None => "so that volumes are added",
        Some(by_hand) => by_hand,
    };
    match fixed.filter(|_| policy.space.is_managed && policy.space.grows_volumes) {
        None => Ok(()),
        Some(device) => Err(format!(
            "its device {device} keeps its size when its volume grows, as all do over NBD: set \
             `grow_volumes = false` in [group.space] of the group {:?}, {then}",
            policy.name
        )),
    }
}

/// Opens a file system: finds its volumes, and by their tags its group.
fn open(path: &Path, shared: &Shared) -> Result<Running, String> {
    let said = |fault: Fault| fault.to_string();
    let message = |failure: Failure| match failure.hint {
        Some(hint) => format!("{}; {hint}", failure.message),
        None => failure.message,
    };
    let first = &shared.policies.file.groups[0];
    let mut host = host(path, shared, first).map_err(said)?;
    let seen = host.observe().map_err(said)?;
    let claim = Claim::take(&seen.uuid)?;
    let mut paths = seen.devices.iter().map(|device| &device.path);
    let fixed = paths.find(|path| keeps_its_size(path)).cloned();
    let mut volumes = Vec::new();
    for device in &seen.devices {
        let volume = device.volume.clone().ok_or_else(|| {
            format!(
                "its device {} is no volume of this host: name it with --device {}=vol-...",
                device.path, device.path
            )
        })?;
        volumes.push(volume);
    }
    let setting = Setting {
        instance: shared.common.instance.clone(),
        policy: first.clone(),
        groups: Vec::new(),
        changes: shared.common.folder.join(MODIFICATIONS).join(format!("{}.json", seen.uuid)),
        counters: Some(shared.counters.clone()),
        clock: || clock::unix_ms().0,
    };
    let api = (shared.common.connector)().map_err(message)?;
    let mut ec2 = Ec2::new(api, setting);
    let tags = common(ec2.tags(&seen.uuid, &volumes).map_err(said)?);
    let policy = group(shared, &tags)?;
    check_growth(policy, fixed.as_deref(), seen.kind)?;
    ec2.set_policy(policy, &shared.policies.file);
    if policy.brakes.window_s != first.brakes.window_s {
        host = self::host(path, shared, policy).map_err(said)?;
    }
    let uri = (shared.common.addresses)().map_err(message)?;
    let front = Front::new(ec2, shared.devices.clone(), shared.common.commands.clone(), uri);
    let journal = shared.folder.journal();
    let host = Tagged { host, untagged: front.ec2.untagged() };
    let mut controller = Controller::new(host, front, journal, policy.clone());
    controller.policy_digest.clone_from(&shared.policies.digest);
    let digest = shared.policies.digest.clone();
    let kind = seen.kind;
    Ok(Running { controller, tags, digest, fixed, kind, _claim: claim })
}

/// Gives the file system's volumes its tag in mode `act`, unless a person has stopped it.
fn adopt(
    controller: &mut Controller<Tagged, Front, FolderJournal>,
    unix_ms: u64,
) -> Result<(), Fault> {
    let policy = &controller.policy;
    if policy.mode != Mode::Act || policy.is_paused {
        return Ok(());
    }
    let orders = controller.journal.orders()?;
    let is_held = orders.hold.is_some_and(|held| held.until_ms > unix_ms);
    if is_held || orders.pause.is_some() {
        return Ok(());
    }
    let uuid = controller.host.host.uuid();
    controller.cloud.ec2.adopt(&uuid)
}

fn host(path: &Path, shared: &Shared, policy: &Policy) -> Result<LinuxHost, Fault> {
    let devices = shared.devices.clone();
    let window = Duration::from_secs(policy.brakes.window_s.into());
    LinuxHost::open(path, Box::new(move || Ok(devices.all())), window)
}

/// Returns the tags that all volumes have.
fn common(all: Vec<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let mut all = all.into_iter();
    let mut tags = all.next().unwrap_or_default();
    for other in all {
        tags.retain(|key, value| other.get(key) == Some(value));
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_planner::fleet;

    #[test]
    fn refusal_of_a_device_that_keeps_its_size_says_how_its_file_system_gets_room() {
        let mut policy = Policy::usual("files", fleet::Policy::usual());
        let refused = |kind| check_growth(&policy, Some("/dev/nbd0"), kind).expect_err("refused");
        assert!(refused(Kind::Btrfs).ends_with(", so that volumes are added"));
        assert!(refused(Kind::Xfs).contains("XFS takes no further volume, so a person gives room"));
        assert!(refused(Kind::Ext4).contains("`resize2fs` uses it"));
        assert_eq!(check_growth(&policy, None, Kind::Xfs), Ok(()));
        policy.space.grows_volumes = false;
        assert_eq!(check_growth(&policy, Some("/dev/nbd0"), Kind::Xfs), Ok(()));
    }
}
