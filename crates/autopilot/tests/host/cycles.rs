//! Random cycles of adding, removing, replacing and growing under durable writes, with kills of the
//! program that moves, kills of the agent, and power cuts.
//!
//! A power cut freezes the file system that has the devices' files, copies the files, and continues
//! with the copies. `EVENKEEL_FUZZ_CASES=<n>` runs `n` cycles, `EVENKEEL_SEED=<n>` begins with
//! another seed. A failure prints the cycle.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::agent::{End, Goal, Task};
use super::load::{self, Load, Versions};
use super::support::{
    Disk, MIB, Mounted, PATIENCE, Place, attempt, check_file, content, forget_lock, host,
    is_unable, make, make_btrfs, mounts, run, settled, write_file,
};
use evenkeel_autopilot::host::LinuxHost;
use evenkeel_autopilot::{Fault, Host};
use evenkeel_lab::child::wait_until;
use evenkeel_os::clock;
use evenkeel_planner::autopilot::observation::FileSystem;
use evenkeel_planner::autopilot::operation::Verb;
use rustix::process::{Pid, Signal, kill_process};

/// Cycles with every change, and what a longer run begins with.
const CYCLES: u64 = 5;
/// Devices, a part of which the file system has.
const DISKS: usize = 4;
/// Files beside those of the load, and their bytes.
const FILES: u64 = 4;
const FILE_BYTES: u64 = 30 * MIB;

/// The disturbance of a cycle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Trouble {
    Nothing,
    KillAgent,
    KillMover,
    KillBoth,
    Cancel,
    PowerCut,
}

/// Random numbers.
struct Dice {
    seed: u64,
    count: u64,
}

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.count += 1;
        let bytes = content(self.seed, self.count, 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes")) % limit
    }
}

/// The machine: devices, their file system, and its load. Fields are dropped in this order.
struct World {
    load: Option<Load>,
    mounted: Option<Mounted>,
    disks: Vec<Disk>,
    /// The seeds of the files beside the load's.
    files: Vec<u64>,
    below: Mounted,
    _below_disk: Disk,
    place: Place,
    uuid: String,
    latencies: Vec<Duration>,
    cuts: u64,
    /// Cuts after which a device that had left was missing.
    degraded: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let place = Place::new();
        let below_disk = Disk::new(&place.path(""), "below", 16 << 30);
        make(&["mkfs.xfs", "-q", "-f", "-K"], &[&below_disk]);
        let folder = place.path("files");
        fs::create_dir_all(&folder).expect("a folder");
        let words: [&OsStr; 5] = [
            "mount".as_ref(),
            "-o".as_ref(),
            "noatime,discard".as_ref(),
            below_disk.device.as_os_str(),
            folder.as_os_str(),
        ];
        run(&words);
        let below = Mounted { folder };
        let disks: Vec<Disk> = (0..DISKS)
            .map(|number| Disk::new(&below.folder, &format!("vol-{number}"), 400 * MIB))
            .collect();
        make_btrfs(&[&disks[0], &disks[1]]);
        let mounted = Mounted::without_discards(&disks[0].device, &place.path("mount"));
        let versions = load::prepare(&mounted.folder);
        let files: Vec<u64> = (0..FILES).map(|number| seed * 1_000 + number).collect();
        for (number, seed) in files.iter().enumerate() {
            write_file(&mounted.folder.join(format!("file-{number}")), FILE_BYTES, *seed);
        }
        let uuid = host(&mounted, &[]).uuid();
        let load = Some(Load::start(&mounted.folder, versions, seed));
        Self {
            load,
            mounted: Some(mounted),
            disks,
            files,
            below,
            _below_disk: below_disk,
            place,
            uuid,
            latencies: Vec::new(),
            cuts: 0,
            degraded: 0,
        }
    }

    fn mount(&self) -> PathBuf {
        self.mounted.as_ref().expect("it is mounted").folder.clone()
    }

    fn host(&self) -> LinuxHost {
        let disks: Vec<&Disk> = self.disks.iter().collect();
        host(self.mounted.as_ref().expect("it is mounted"), &disks)
    }

    fn disk(&self, volume: &str) -> &Disk {
        self.disks.iter().find(|disk| disk.id == volume).expect("a disk")
    }

    fn task(&self, goal: Goal, bytes_per_s: u64) -> Task {
        let volumes = self.disks.iter().map(|disk| (disk.id.clone(), disk.device.clone()));
        Task { mount: self.mount(), volumes: volumes.collect(), goal, bytes_per_s }
    }

    /// Chooses a goal that the present devices allow.
    fn goal(&mut self, seen: &FileSystem, dice: &mut Dice) -> Goal {
        let members: Vec<String> =
            seen.devices.iter().filter_map(|device| device.volume.clone()).collect();
        let spares: Vec<String> = self
            .disks
            .iter()
            .map(|disk| disk.id.clone())
            .filter(|id| !members.contains(id))
            .collect();
        let pick = |list: &[String], dice: &mut Dice| {
            let index = dice.below(list.len() as u64);
            list[usize::try_from(index).expect("a small number")].clone()
        };
        let volume = pick(&members, dice);
        let device = super::support::device(seen, &volume).expect("a member");
        match dice.below(6) {
            0 if device.device_bytes < 700 * MIB => {
                let bytes = device.device_bytes + (1 + dice.below(128)) * MIB;
                self.disk(&volume).set_len(bytes);
                Goal::Grow { volume }
            }
            1 | 2 if members.len() < DISKS - 1 => {
                let volume = self.spare(&spares, dice);
                Goal::Enlist { volume }
            }
            1 | 2 => Goal::Evict { volume },
            // After a swap that was refused for lack of room, all may be members.
            3 | 4 if spares.is_empty() => Goal::Evict { volume },
            3 | 4 => {
                let with = self.spare(&spares, dice);
                Goal::Swap { volume, with }
            }
            _ => Goal::Compact,
        }
    }

    /// Makes a spare device an empty one of a random size.
    fn spare(&self, spares: &[String], dice: &mut Dice) -> String {
        let index = dice.below(spares.len() as u64);
        let disk = self.disk(&spares[usize::try_from(index).expect("a small number")]);
        disk.clear();
        disk.set_len((300 + dice.below(300)) * MIB);
        run(&["losetup".as_ref(), "-c".as_ref(), disk.device.as_os_str()]);
        disk.id.clone()
    }

    /// Kills the program that moves data, if there is one.
    fn kill_mover(&self) {
        let mover = |folder: &Path| {
            let line = fs::read(folder.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.starts_with("btrfs ") && line.contains(&*self.mount().to_string_lossy())
        };
        for process in evenkeel_lab::child::processes(mover) {
            kill(process);
        }
    }

    /// Cuts the power: continues with copies of the devices of one instant.
    fn cut_power(&mut self, agent: Pid) {
        self.cuts += 1;
        let load = self.load.take().expect("it runs");
        // What is durable now must be on the copies, which are made later.
        let durable = load.versions().durable;
        let copies = self.place.path("copies");
        fs::create_dir_all(&copies).expect("a folder");
        let freeze = |flag: &str| {
            run(&["fsfreeze".as_ref(), flag.as_ref(), self.below.folder.as_os_str()]);
        };
        freeze("-f");
        for disk in &self.disks {
            let copy = copies.join(&disk.id);
            attempt(&[
                "cp".as_ref(),
                "--sparse=always".as_ref(),
                disk.file.as_os_str(),
                copy.as_os_str(),
            ]);
        }
        freeze("-u");
        let begun = load.versions().begun;
        kill(agent);
        self.kill_mover();
        self.latencies.extend(load.stop(true).1);
        self.unmount();
        for disk in &self.disks {
            // The kernel would take it for a device of the file system that the copies have.
            let words = ["btrfs", "device", "scan", "--forget"].map(OsStr::new);
            attempt(&[words.as_slice(), &[disk.device.as_os_str()]].concat());
        }
        let disks: Vec<(String, PathBuf)> =
            self.disks.drain(..).map(|disk| (disk.id.clone(), disk.file.clone())).collect();
        for (id, file) in disks {
            let copy = copies.join(&id);
            let words = ["cp".as_ref(), "--sparse=always".as_ref(), copy.as_os_str()];
            fs::remove_file(&file).expect("the file");
            run(&[words.as_slice(), &[file.as_os_str()]].concat());
            fs::remove_file(&copy).expect("the copy");
            self.disks.push(Disk::of(&id, file));
        }
        let device = self.scan();
        check_structure(&device, &self.disks, true);
        self.mounted = Some(self.mounted_again(&device));
        let versions = load::check(&self.mount(), &durable, &begun);
        self.start(versions);
    }

    /// Unmounts the file system, and waits until the kernel has no mount of it: a namespace of
    /// mounts that another process made since has one, too.
    fn unmount(&mut self) {
        self.mounted = None;
        let folder = Path::new("/sys/fs/btrfs").join(&self.uuid);
        wait_until("the end of the last mount", PATIENCE, || !folder.exists()).expect("its end");
    }

    /// Mounts a device after a power cut.
    ///
    /// In the commit that ends a removal, the device that leaves has no superblock any more and is
    /// still listed (`findings/btrfs_remove_power_cut.sh`). It is empty, and a person removes it.
    fn mounted_again(&mut self, device: &Path) -> Mounted {
        let folder = self.place.path("mount");
        let words = ["mount", "-o", "nodiscard"].map(OsStr::new);
        let paths = [device.as_os_str(), folder.as_os_str()];
        let (printed, is_mounted) = attempt(&[words.as_slice(), &paths].concat());
        if is_mounted {
            return Mounted { folder };
        }
        assert!(printed.contains("No such file or directory"), "{printed}");
        self.degraded += 1;
        let words = ["mount", "-o", "nodiscard,degraded"].map(OsStr::new);
        run(&[words.as_slice(), &paths].concat());
        let mounted = Mounted { folder: folder.clone() };
        let words = ["btrfs", "device", "remove", "missing"].map(OsStr::new);
        run(&[words.as_slice(), &[folder.as_os_str()]].concat());
        drop(mounted);
        Mounted::without_discards(device, &folder)
    }

    /// Lets btrfs find the devices, and returns one with the file system.
    fn scan(&self) -> PathBuf {
        let mut found = None;
        for disk in &self.disks {
            attempt(&[
                "btrfs".as_ref(),
                "device".as_ref(),
                "scan".as_ref(),
                disk.device.as_os_str(),
            ]);
            let words = ["blkid", "-p", "-o", "value", "-s", "UUID"].map(OsStr::new);
            let printed = attempt(&[words.as_slice(), &[disk.device.as_os_str()]].concat()).0;
            if printed.trim() == self.uuid {
                found = Some(disk.device.clone());
            }
        }
        found.expect("a device with the file system")
    }

    fn start(&mut self, versions: Versions) {
        let seed = self.cuts * 77 + self.files[0];
        self.load = Some(Load::start(&self.mount(), versions, seed));
    }

    /// Checks all data as the devices have it.
    fn check(&mut self) {
        let load = self.load.take().expect("it runs");
        let ended = load.stop(false);
        self.latencies.extend(ended.1);
        let versions = load::check(&self.mount(), &ended.0.durable, &ended.0.begun);
        for (number, seed) in self.files.iter().enumerate() {
            check_file(&self.mount().join(format!("file-{number}")), FILE_BYTES, *seed);
        }
        self.start(versions);
    }

    fn scrub(&self) {
        let words: [&OsStr; 5] = ["btrfs", "scrub", "start", "-B", "-R"].map(OsStr::new);
        let printed = run(&[words.as_slice(), &[self.mount().as_os_str()]].concat());
        for line in printed.lines().filter(|line| line.contains("errors")) {
            assert!(line.trim().ends_with(": 0"), "{printed}");
        }
    }

    /// Unmounts, and checks the whole file system.
    fn finish(mut self) -> Vec<Duration> {
        self.scrub();
        let load = self.load.take().expect("it runs");
        self.latencies.extend(load.stop(false).1);
        self.unmount();
        check_structure(&self.scan(), &self.disks, false);
        forget_lock(&self.uuid);
        std::mem::take(&mut self.latencies)
    }
}

/// Checks all trees of a file system that is not mounted. Without the cache of libblkid, which can
/// hide a device that had other content before (`findings/btrfs_check_blkid_cache.sh`). After a
/// power cut, a device that was not added yet may count (`findings/btrfs_add_power_cut.sh`).
fn check_structure(device: &Path, disks: &[Disk], is_after_cut: bool) {
    let words = ["env", "BLKID_FILE=/dev/null", "btrfs", "check", "--readonly"].map(OsStr::new);
    let (printed, is_clean) = attempt(&[words.as_slice(), &[device.as_os_str()]].concat());
    let errors: Vec<&str> = printed.lines().filter(|line| line.starts_with("ERROR")).collect();
    let is_of_size = matches!(errors[..], [size, _, fix] if size.contains("super total bytes")
        && fix.contains("fix-device-size"));
    if is_clean || is_after_cut && is_of_size {
        return;
    }
    let words = ["btrfs", "inspect-internal", "dump-super"].map(OsStr::new);
    let disks = disks.iter().map(|disk| {
        let superblock = attempt(&[words.as_slice(), &[disk.device.as_os_str()]].concat()).0;
        format!("{}: {superblock}", disk.id)
    });
    panic!("btrfs check: {printed}\n{}", disks.collect::<Vec<_>>().join("\n"));
}

fn trouble(dice: &mut Dice) -> Trouble {
    match dice.below(8) {
        0 | 1 => Trouble::Nothing,
        2 => Trouble::KillAgent,
        3 => Trouble::KillMover,
        4 => Trouble::KillBoth,
        5 => Trouble::Cancel,
        _ => Trouble::PowerCut,
    }
}

/// Runs one cycle, and returns how it ended.
fn cycle(world: &mut World, dice: &mut Dice, name: &str) -> End {
    let mut host = world.host();
    let seen = settled(&mut host);
    drop(host);
    let goal = world.goal(&seen, dice);
    let trouble = trouble(dice);
    let pace = (20 + dice.below(200)) * MIB;
    let wait = Duration::from_millis(dice.below(2_500));
    println!("{name}: {goal:?} at {} MiB/s, {trouble:?} after {wait:?}", pace / MIB);
    let task = world.task(goal.clone(), pace);
    let agent = task.start();
    let pid = Pid::from_child(&agent);
    if trouble != Trouble::Nothing {
        clock::pause(wait);
    }
    match trouble {
        Trouble::Nothing => {}
        Trouble::KillAgent => kill(pid),
        Trouble::KillMover => world.kill_mover(),
        Trouble::KillBoth => {
            kill(pid);
            world.kill_mover();
        }
        Trouble::Cancel => {
            kill(pid);
            let mut host = world.host();
            host.observe().expect("an observation");
            // What is not a move of the agent's is refused, or waited for.
            let cancelled = host.execute(&Verb::Cancel);
            if let Err(Fault::Later(text) | Fault::Refused(text)) = cancelled {
                assert!(!text.contains("ended with"), "{text}");
            }
        }
        Trouble::PowerCut => world.cut_power(pid),
    }
    let first = Task::end(agent);
    let end = match first {
        Some(end) if trouble != Trouble::PowerCut => end,
        // Another agent looks, and continues.
        _ => Task::end(world.task(goal.clone(), pace).start()).expect("it is not killed"),
    };
    let mut host = world.host();
    let seen = settled(&mut host);
    judge(world, &goal, &end, &seen);
    for disk in &world.disks {
        let is_member = super::support::device(&seen, &disk.id).is_some();
        if !is_member {
            let probed = host.has_superblock(&disk.id).expect("a probe");
            assert_eq!(probed, Some(false), "{}: a device that has left", disk.id);
        }
    }
    drop(host);
    world.check();
    if dice.below(4) == 0 {
        world.scrub();
    }
    churn(world, dice);
    end
}

/// Checks that a goal that was reached is visible.
fn judge(world: &World, goal: &Goal, end: &End, seen: &FileSystem) {
    let device = |volume: &str| super::support::device(seen, volume);
    if let End::Refused(text) = end {
        // A device that is full, or whose chunks find no place, is no fault of the host's.
        let is_room = ["not allocated", "No space", "compact first"].iter();
        assert!(is_room.clone().any(|part| text.contains(part)), "{goal:?}: {text}");
        return;
    }
    match goal {
        Goal::Grow { volume } => {
            let bytes = fs::metadata(&world.disk(volume).file).expect("its file").len();
            let size = device(volume).expect("a member").size_bytes;
            assert!(size + 8_192 > bytes, "{size} of {bytes}");
        }
        Goal::Enlist { volume } => assert!(device(volume).is_some()),
        Goal::Evict { volume } => assert!(device(volume).is_none()),
        Goal::Swap { volume, with } => {
            assert!(device(volume).is_none() && device(with).is_some());
        }
        Goal::Compact => {}
    }
}

/// Writes a file again at times, so that chunks change.
fn churn(world: &mut World, dice: &mut Dice) {
    if dice.below(3) != 0 {
        return;
    }
    let index = usize::try_from(dice.below(FILES)).expect("a small number");
    let path = world.mount().join(format!("file-{index}"));
    world.files[index] += FILES;
    fs::remove_file(&path).expect("the file");
    write_file(&path, FILE_BYTES, world.files[index]);
}

/// Kills a process, which may have ended.
fn kill(process: Pid) {
    let _ = kill_process(process, Signal::KILL);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn cycles_of_random_moves_with_kills_and_power_cuts_keep_durable_writes() {
    if is_unable() {
        return;
    }
    let _lock = mounts();
    let cycles = number("EVENKEEL_FUZZ_CASES").unwrap_or(CYCLES);
    let seed = number("EVENKEEL_SEED").unwrap_or(1);
    let mut dice = Dice { seed, count: 0 };
    let mut world = World::new(seed);
    let mut refused = 0;
    for count in 1..=cycles {
        let name = format!("cycle {count} of seed {seed}");
        if matches!(cycle(&mut world, &mut dice, &name), End::Refused(_)) {
            refused += 1;
        }
    }
    let cuts = world.cuts;
    let degraded = world.degraded;
    let mut latencies = world.finish();
    println!(
        "{cycles} cycles, {refused} refused for lack of room, {cuts} power cuts, {degraded} of \
         them at the end of a removal, {} durable writes, p99 {:?}, longest {:?}",
        latencies.len(),
        load::permille(&mut latencies, 990),
        load::permille(&mut latencies, 1_000),
    );
}
