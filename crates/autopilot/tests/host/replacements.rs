//! Replacements of a device of a btrfs under durable writes, by a controller in a process that is
//! killed again and again, with cancels in between.
//!
//! The API is a file with volumes, which the process and this one read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::load::{self, Load};
use super::support::{MIB, PATIENCE, Stage, check_file, device, run, settled, write_file};
use evenkeel_autopilot::host::{LinuxHost, Volumes};
use evenkeel_autopilot::journal::{Bounds, Folder};
use evenkeel_autopilot::{Cloud, Controller, Fault, Host, Journal, Known, Memory};
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_os::clock;
use evenkeel_planner::autopilot::observation::{Account, FileSystem, Volume, VolumeState};
use evenkeel_planner::autopilot::operation::{Call, Open, Operation, Verb};
use evenkeel_planner::autopilot::policy::{Keep, Mode, Policy};
use evenkeel_planner::fleet;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// The variable with the task of a controller, as JSON.
const TASK: &str = "EVENKEEL_TEST_CONTROLLER";
/// Time between two ticks.
const TICK: Duration = Duration::from_millis(50);
/// GiB of each device, sparse, and MiB of the file that moves.
const GIB: u32 = 6;
const FILE_BYTES: u64 = 200 * MIB;

/// The API: volumes in a file, and the devices that they get, in the order of their creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Api {
    file: PathBuf,
    devices: Vec<PathBuf>,
}

impl Api {
    fn volumes(&self) -> Vec<Volume> {
        serde_json::from_slice(&fs::read(&self.file).expect("the file")).expect("volumes")
    }

    fn write(&self, volumes: &[Volume]) {
        let new = self.file.with_extension("new");
        fs::write(&new, serde_json::to_vec(volumes).expect("JSON")).expect("a file");
        fs::rename(new, &self.file).expect("the file");
    }

    /// Returns the devices of attached volumes.
    fn attached(&self) -> Vec<(String, PathBuf)> {
        let volumes = self.volumes().into_iter().zip(&self.devices);
        let attached = volumes.filter(|(volume, _)| volume.state == VolumeState::Attached);
        attached.map(|(volume, device)| (volume.id, device.clone())).collect()
    }

    fn host(&self, mount: &Path) -> LinuxHost {
        let api = self.clone();
        let volumes: Volumes = Box::new(move || Ok(api.attached()));
        LinuxHost::open(mount, volumes, Duration::from_secs(300)).expect("a host")
    }
}

impl Cloud for Api {
    fn observe(&mut self, _: &str, _: &[String]) -> Result<Known, Fault> {
        let volumes = self.volumes();
        let account = Account::default();
        let unix_ms = Some(clock::unix_ms().0);
        Ok(Known { volumes, instance: None, account, unix_ms })
    }

    fn execute(&mut self, _: &str, call: &Call) -> Result<(), Fault> {
        let mut volumes = self.volumes();
        let named = |id: &str, volumes: &mut Vec<Volume>, change: &dyn Fn(&mut Volume)| {
            change(volumes.iter_mut().find(|volume| volume.id == id).expect("a volume"));
        };
        match call {
            Call::Create { operation, spec } => {
                if !volumes.iter().any(|volume| volume.made_by.as_ref() == Some(operation)) {
                    let id = format!("vol-{}", volumes.len() + 1);
                    let made_by = Some(operation.clone());
                    let new = volume(id, *spec, VolumeState::Available);
                    volumes.push(Volume { made_by, ..new });
                }
            }
            Call::Attach { volume } => {
                named(volume, &mut volumes, &|found| found.state = VolumeState::Attached);
            }
            Call::Detach { volume } => {
                named(volume, &mut volumes, &|found| found.state = VolumeState::Available);
            }
            Call::Retire { volume } => {
                let now_ms = clock::unix_ms().0;
                named(volume, &mut volumes, &|found| found.retired_ms = Some(now_ms));
            }
            Call::Modify { .. } | Call::Delete { .. } => panic!("{call:?} is not due"),
        }
        self.write(&volumes);
        Ok(())
    }
}

fn spec() -> VolumeSpec {
    VolumeSpec {
        volume_type: VolumeType::Gp3,
        size_gib: GIB,
        iops: Some(3_000),
        throughput_mibps: Some(125),
        multi_attach: false,
    }
}

fn volume(id: String, spec: VolumeSpec, state: VolumeState) -> Volume {
    Volume { used_mibps: Some(0), ..Volume::new(id, spec, state, clock::unix_ms().0) }
}

/// The task of a controller: to end the operations of its journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    mount: PathBuf,
    api: Api,
    journal: PathBuf,
}

impl Task {
    fn start(&self) -> Child {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([
            "--exact",
            "replacements::controller_process",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env(TASK, serde_json::to_string(self).expect("JSON"));
        command.stdout(Stdio::null()).spawn().expect("this program starts")
    }

    /// Ticks until no operation is open.
    fn pursue(&self) {
        let mut policy = Policy::usual("test", fleet::Policy::usual());
        policy.mode = Mode::Act;
        policy.space.is_managed = false;
        policy.space.keep = Keep::Likely;
        policy.space.reserve_bytes_min = MIB;
        policy.rate.is_managed = false;
        let folder = Folder::claim(&self.journal, Bounds::default()).expect("the journal");
        let host = Quick(self.api.host(&self.mount));
        let mut controller = Controller::new(host, self.api.clone(), folder.journal(), policy);
        // On a busy machine the data moves at the least pace.
        let deadline = clock::now() + 3 * PATIENCE;
        loop {
            let ticked = controller.tick(clock::unix_ms().0).expect("a journal");
            if ticked.observation.is_some() && controller.open_operations() == 0 {
                return;
            }
            assert!(clock::now() < deadline, "it has not ended; the last tick: {ticked:#?}");
            clock::pause(TICK);
        }
    }

    fn memory(&self, change: impl FnOnce(&mut Memory)) {
        let folder = Folder::claim(&self.journal, Bounds::default()).expect("the journal");
        let mut journal = folder.journal();
        let uuid = self.api.host(&self.mount).uuid();
        let mut memory = journal.load(&uuid).expect("the memory");
        change(&mut memory);
        journal.store(&uuid, &memory).expect("the memory");
    }
}

/// A host without dirty pages: a part of this machine's memory would be larger than the volumes.
struct Quick(LinuxHost);

impl Host for Quick {
    fn observe(&mut self) -> Result<FileSystem, Fault> {
        let mut seen = self.0.observe()?;
        seen.dirty_limit_bytes = 0;
        Ok(seen)
    }

    fn has_superblock(&mut self, volume: &str) -> Result<Option<bool>, Fault> {
        self.0.has_superblock(volume)
    }

    fn execute(&mut self, verb: &Verb) -> Result<(), Fault> {
        self.0.execute(verb)
    }
}

/// The process of [`Task::start`]; without a task, a test that passes.
#[test]
fn controller_process() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).expect("a task");
    task.pursue();
}

/// Kills a process, and the program that moves data with every second one.
fn kill(mut controller: Child, mount: &Path, with_mover: bool) {
    let _ = controller.kill();
    controller.wait().expect("its end");
    let mover = |folder: &Path| {
        let line = fs::read(folder.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.starts_with("btrfs device remove ") && line.contains(&*mount.to_string_lossy())
    };
    if with_mover {
        for process in evenkeel_lab::child::processes(mover) {
            let process: Pid = process;
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

fn open(id: String, volume: String) -> Open {
    Open {
        id,
        operation: Operation::Replace { volume, with: spec() },
        since_ms: clock::unix_ms().0,
        cancelled: false,
        is_emergency: false,
        is_scheduled: false,
        exceeded_s_per_day_max: None,
    }
}

/// Replaces the device with the most chunks, with kills. `cancel_after` is the number of kills
/// after which the operation is cancelled.
fn replaced(stage: &mut Stage, task: &Task, number: usize, cancel_after: Option<usize>) {
    let mut host = task.api.host(&task.mount);
    let devices = settled(&mut host).devices;
    let fullest = devices.iter().max_by_key(|device| device.allocated_bytes).expect("a device");
    let before = fullest.volume.clone().expect("a volume");
    drop(host);
    let id = format!("op-{number}");
    let operation = open(id.clone(), before.clone());
    task.memory(|memory| memory.state.open = vec![operation]);
    let mut kills = 0;
    let ended = loop {
        let mut controller = task.start();
        clock::pause(Duration::from_millis(150 + 130 * (kills as u64 % 5)));
        if let Some(ended) = controller.try_wait().expect("its state") {
            break ended;
        }
        if kills > 12 {
            break controller.wait().expect("its end");
        }
        kill(controller, &task.mount, kills % 2 == 1);
        kills += 1;
        if cancel_after == Some(kills) {
            task.memory(|memory| memory.state.open.iter_mut().for_each(|o| o.cancelled = true));
        }
    };
    assert!(ended.success(), "{id}: {ended}");
    let mut host = task.api.host(&task.mount);
    let seen = settled(&mut host);
    let volumes = task.api.volumes();
    let made = volumes.iter().find(|volume| volume.made_by.as_ref() == Some(&id));
    println!("{id}: {kills} kills, cancelled after {cancel_after:?}: {:?}", seen.devices);
    assert_eq!(seen.devices.len(), devices.len(), "{seen:?}");
    let stays = device(&seen, &before).is_some();
    assert!(!stays || cancel_after.is_some(), "{seen:?}");
    assert_eq!(seen.size_bytes, devices.iter().map(|device| device.size_bytes).sum::<u64>());
    let left = volumes.iter().filter(|volume| device(&seen, &volume.id).is_none());
    for volume in left {
        assert!(volume.retired_ms.is_some(), "{volume:?}");
        assert_eq!(volume.state, VolumeState::Available, "{volume:?}");
    }
    assert!(stays || made.is_some_and(|made| device(&seen, &made.id).is_some()));
    check_file(&stage.path("data"), FILE_BYTES, 7);
}

#[test]
fn device_is_replaced_or_kept_whole_whatever_is_killed() {
    replaced_under_load(1, &[None, Some(3)]);
    replaced_under_load(2, &[None, Some(4)]);
}

#[test]
#[ignore = "full: crates/autopilot/tests/host/replacements.rs::\
            device_is_replaced_or_kept_whole_whatever_is_killed stays"]
fn device_is_kept_whole_whenever_its_replacement_is_cancelled() {
    replaced_under_load(1, &[Some(1), Some(5), Some(7)]);
    replaced_under_load(2, &[Some(1), Some(3), Some(6)]);
}

/// Replaces a device of a file system in use that has this number of them, each time with kills,
/// and cancelled after this many of them.
fn replaced_under_load(members: usize, cancels_after: &[Option<usize>]) {
    let Some(mut stage) = Stage::new(&[u64::from(GIB) << 10; 7], members) else { return };
    let versions = load::prepare(&stage.mounted.folder);
    write_file(&stage.path("data"), FILE_BYTES, 7);
    let file = stage.place.path("volumes");
    let devices = stage.disks.iter().map(|disk| disk.device.clone()).collect();
    let api = Api { file, devices };
    let member = |number| volume(format!("vol-{number}"), spec(), VolumeState::Attached);
    api.write(&(1..=members).map(member).collect::<Vec<_>>());
    let mount = stage.mounted.folder.clone();
    let task = Task { mount, api, journal: stage.place.path("journal") };
    let load = Load::start(&stage.mounted.folder, versions, 11);
    for (number, cancel_after) in cancels_after.iter().enumerate() {
        replaced(&mut stage, &task, number, *cancel_after);
    }
    let ended = load.stop(false).0;
    load::check(&stage.mounted.folder, &ended.durable, &ended.begun);
    let words = ["btrfs", "scrub", "start", "-B"].map(std::ffi::OsStr::new);
    run(&[words.as_slice(), &[stage.mounted.folder.as_os_str()]].concat());
}
