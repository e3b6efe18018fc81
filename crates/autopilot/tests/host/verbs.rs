//! Each verb on each kind of file system, and refusals.

use std::ffi::OsStr;
use std::path::Path;

use super::support::{
    Disk, MIB, Mounted, PATIENCE, Place, Stage, attempt, check_file, device, execute, host,
    is_unable, make, make_btrfs, mounts, refusal, run, settled, skipped, write_file,
};
use evenkeel_autopilot::host::LinuxHost;
use evenkeel_autopilot::{Fault, Host};
use evenkeel_lab::child::wait_until;
use evenkeel_planner::autopilot::observation::{FileSystem, Kind, Profile, Running, RunningKind};
use evenkeel_planner::autopilot::operation::Verb;

fn verb(name: &str, volume: &str) -> Verb {
    let volume = volume.to_owned();
    match name {
        "rescan" => Verb::Rescan { volume },
        "grow" => Verb::Grow { volume },
        "add" => Verb::Add { volume },
        "remove" => Verb::Remove { volume, bytes_per_s: 400 * MIB },
        _ => panic!("{name}"),
    }
}

/// Executes a move at 20 MiB/s, and checks that it has this pace from its first byte on, and
/// another one that is set.
fn begun(host: &mut LinuxHost, verb: &Verb, kind: RunningKind) -> Running {
    execute(host, verb).expect("a move");
    let mut running = None;
    wait_until("the begin of the move", PATIENCE, || {
        running = host.observe().expect("an observation").running;
        // Until the kernel has begun it, it is a program of which nothing else is known.
        running.as_ref().is_none_or(|running| running.kind != RunningKind::Foreign)
    })
    .expect("its begin");
    let running = running.expect("the move takes seconds at 20 MiB/s");
    assert_eq!((running.kind, running.pace_bytes_per_s), (kind, Some(20 * MIB)));
    host.execute(&Verb::Pace { bytes_per_s: 30 * MIB }).expect("a pace");
    let running = host.observe().expect("an observation").running;
    let running = running.expect("the move takes seconds at 30 MiB/s");
    assert_eq!((running.kind, running.pace_bytes_per_s), (kind, Some(30 * MIB)));
    running
}

#[test]
fn plain_file_systems_grow_and_refuse_what_only_btrfs_can() {
    if is_unable() {
        return;
    }
    let _lock = mounts();
    let place = Place::new();
    for (kind, words) in [
        (Kind::Xfs, ["mkfs.xfs", "-q", "-f"].as_slice()),
        (Kind::Ext4, ["mkfs.ext4", "-q", "-F"].as_slice()),
    ] {
        let disk = Disk::new(&place.path(""), "vol-1", 400 * MIB);
        let other = Disk::new(&place.path(""), "vol-2", 400 * MIB);
        make(words, &[&disk]);
        let mounted = Mounted::new(&disk.device, &place.path("mount"));
        let mut host = host(&mounted, &[&disk, &other]);
        write_file(&mounted.folder.join("data"), 40 * MIB, 1);
        let before = host.observe().unwrap();
        assert_eq!((before.kind, before.uuid == host.uuid()), (kind, true));
        assert_eq!((before.size_bytes, before.running.clone()), (400 * MIB, None));
        assert!(before.used_bytes >= 40 * MIB && before.free_bytes < 360 * MIB, "{before:?}");
        assert!(before.dirty_limit_bytes > 0);
        assert_eq!(before.devices.len(), 1);
        assert_eq!(before.devices[0].volume.as_deref(), Some("vol-1"));

        disk.set_len(600 * MIB);
        execute(&mut host, &verb("rescan", "vol-1")).unwrap();
        let wider = host.observe().unwrap();
        assert_eq!((wider.devices[0].device_bytes, wider.size_bytes), (600 * MIB, 400 * MIB));
        match execute(&mut host, &verb("grow", "vol-1")) {
            Err(Fault::Refused(text)) if text.contains("CAP_SYS_RESOURCE") => {
                skipped("ext4 grows only for a process with CAP_SYS_RESOURCE");
            }
            grown => {
                grown.unwrap();
                let grown = host.observe().unwrap();
                assert_eq!(grown.size_bytes, 600 * MIB);
                assert!(grown.free_bytes > before.free_bytes + 150 * MIB, "{grown:?}");
            }
        }
        check_file(&mounted.folder.join("data"), 40 * MIB, 1);

        let text = refusal(host.execute(&verb("add", "vol-2")));
        assert!(text.contains("add needs btrfs") && text.contains("only grows"), "{text}");
        assert_eq!(host.has_superblock("vol-1"), Ok(Some(true)));
        assert_eq!(host.has_superblock("vol-2"), Ok(Some(false)));
        assert_eq!(host.has_superblock("vol-3"), Ok(None));
    }
}

/// Until the kernel commits, its own figures do not have what was written.
#[test]
fn what_is_written_is_not_free_before_the_next_commit() {
    let Some(mut stage) = Stage::new(&[400], 1) else { return };
    let before = stage.host.observe().unwrap();
    let data = stage.mounted.folder.join("data");
    std::fs::write(&data, vec![7; 100 << 20]).unwrap();
    let after = stage.host.observe().unwrap();
    assert!(after.free_bytes <= before.free_bytes - 100 * MIB, "{before:?} {after:?}");
    assert!(after.used_bytes >= before.used_bytes + 100 * MIB, "{before:?} {after:?}");
    // Written out, and not committed.
    let file = std::fs::File::open(&data).unwrap();
    file.sync_data().unwrap();
    let synced = stage.host.observe().unwrap();
    assert!(synced.free_bytes <= before.free_bytes - 100 * MIB, "{before:?} {synced:?}");
}

#[test]
fn btrfs_grows_by_a_longer_device_and_by_another_one() {
    let Some(mut stage) = Stage::new(&[300, 300], 1) else { return };
    let host = &mut stage.host;
    let before = host.observe().unwrap();
    assert_eq!((before.size_bytes, before.data), (300 * MIB, Some(Profile::Single)));
    assert_eq!(before.metadata, Some(Profile::Single));
    stage.disks[0].set_len(400 * MIB);
    execute(host, &verb("rescan", "vol-1")).unwrap();
    execute(host, &verb("grow", "vol-1")).unwrap();
    // A verb that is repeated after a lost answer has no further effect.
    execute(host, &verb("grow", "vol-1")).unwrap();
    assert_eq!(host.observe().unwrap().size_bytes, 400 * MIB);
    assert_eq!(host.has_superblock("vol-2"), Ok(Some(false)));
    execute(host, &verb("add", "vol-2")).unwrap();
    execute(host, &verb("add", "vol-2")).unwrap();
    let grown = host.observe().unwrap();
    assert_eq!(grown.size_bytes, 700 * MIB);
    let added = device(&grown, "vol-2").unwrap();
    assert_eq!((added.devid, added.size_bytes), (2, 300 * MIB));
    assert_eq!(added.allocated_bytes, 0);
    run(&["sync"]);
    assert_eq!(host.has_superblock("vol-2"), Ok(Some(true)));
}

/// Asserts that the file system may have few dirty pages, or as many as before a move.
fn assert_bursts_are_short(stage: &mut Stage, is_moving: bool) {
    let uuid = stage.host.uuid();
    let bound = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/fs/btrfs/{uuid}/bdi/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let Some(max_bytes) = bound("max_bytes") else {
        return skipped("no strict bound of dirty pages in bytes: Linux 6.2 has one");
    };
    assert_eq!(bound("strict_limit"), Some(u64::from(is_moving)));
    if is_moving {
        assert!(max_bytes <= 5 * MIB, "{max_bytes}");
    } else {
        assert_eq!(bound("max_ratio_fine"), Some(1_000_000));
    }
}

#[test]
fn data_leaves_a_removed_device_at_the_set_pace() {
    let Some(mut stage) = Stage::new(&[400, 700, 300], 1) else { return };
    write_file(&stage.path("data"), 150 * MIB, 2);
    execute(&mut stage.host, &verb("add", "vol-2")).unwrap();
    let slow = Verb::Remove { volume: "vol-1".to_owned(), bytes_per_s: 20 * MIB };
    let running = begun(&mut stage.host, &slow, RunningKind::Remove);
    assert_eq!(running.devid, Some(1));
    assert!(running.done_permille.is_some());
    let dirty_limit = stage.host.observe().unwrap().dirty_limit_bytes;
    assert_bursts_are_short(&mut stage, true);
    let later = stage.host.execute(&verb("grow", "vol-2"));
    assert_eq!(later, Ok(()), "it has its full size, so nothing is due");
    let later = stage.host.execute(&verb("add", "vol-3"));
    assert!(matches!(&later, Err(Fault::Later(text)) if text.contains("device remove runs")));
    // Another agent finds the move, and its end.
    stage.reopen();
    let host = &mut stage.host;
    let running = host.observe().unwrap().running.expect("it continues");
    assert_eq!((running.kind, running.devid), (RunningKind::Remove, Some(1)));
    assert_bursts_are_short(&mut stage, true);
    let host = &mut stage.host;
    host.execute(&Verb::Remove { volume: "vol-1".to_owned(), bytes_per_s: 1_000 * MIB }).unwrap();
    let seen = settled(host);
    assert!(seen.dirty_limit_bytes.abs_diff(dirty_limit) < dirty_limit / 10);
    assert_bursts_are_short(&mut stage, false);
    let host = &mut stage.host;
    assert_eq!(seen.devices.len(), 1);
    assert_eq!(seen.devices[0].volume.as_deref(), Some("vol-2"));
    assert_eq!(host.has_superblock("vol-1"), Ok(Some(false)));
    check_file(&stage.mounted.folder.join("data"), 150 * MIB, 2);
    // Repeated, it has no further effect, and the last device stays.
    host.execute(&verb("remove", "vol-1")).unwrap();
    let text = refusal(host.execute(&verb("remove", "vol-2")));
    assert!(text.contains("0 of its devices would be left"), "{text}");
}

#[test]
fn chunks_are_compacted_and_a_removal_is_cancelled() {
    let Some(mut stage) = Stage::new(&[900, 1_000], 1) else { return };
    // Files that leave chunks behind that are partly used.
    for number in 0..16 {
        write_file(&stage.path(&format!("{number}")), 30 * MIB, number);
    }
    for number in (0..16).filter(|number| number % 4 != 3) {
        std::fs::remove_file(stage.path(&format!("{number}"))).unwrap();
    }
    stage.sync();
    let host = &mut stage.host;
    execute(host, &verb("add", "vol-2")).unwrap();
    let allocated = |seen: &FileSystem| {
        let devices = seen.devices.iter();
        devices.map(|device| device.allocated_bytes).sum::<u64>()
    };
    let before = allocated(&host.observe().unwrap());
    let compact = Verb::Compact { used_percent_max: 70, chunks_max: 20, bytes_per_s: 20 * MIB };
    begun(host, &compact, RunningKind::Compact);
    host.execute(&Verb::Pace { bytes_per_s: 1_000 * MIB }).unwrap();
    let seen = settled(host);
    assert!(allocated(&seen) < before, "{seen:?}");

    let slow = Verb::Remove { volume: "vol-1".to_owned(), bytes_per_s: 20 * MIB };
    let running = begun(host, &slow, RunningKind::Remove);
    assert_eq!(running.devid, Some(1));
    // Linux 6.18 cancels the removal, and its program fails (`findings/btrfs_remove_cancel.sh`).
    assert_eq!(host.execute(&Verb::Cancel), Ok(()));
    let seen = settled(host);
    assert_eq!((seen.devices.len(), seen.size_bytes), (2, 1_900 * MIB));
    assert_eq!(host.has_superblock("vol-1"), Ok(Some(true)));
    for number in (0..16).filter(|number| number % 4 == 3) {
        check_file(&stage.mounted.folder.join(format!("{number}")), 30 * MIB, number);
    }
}

/// A person's replacement is waited for, and its target is no volume that can leave.
#[test]
fn replacement_by_a_person_is_waited_for() {
    let Some(mut stage) = Stage::new(&[300, 300, 300], 2) else { return };
    for number in 0..2 {
        write_file(&stage.path(&format!("{number}")), 100 * MIB, number);
    }
    let uuid = stage.host.uuid();
    let limit = format!("/sys/fs/btrfs/{uuid}/devinfo/1/scrub_speed_max");
    std::fs::write(&limit, (10 * MIB).to_string()).unwrap();
    let mut words: Vec<&OsStr> = ["btrfs", "replace", "start", "-K", "1"].map(OsStr::new).into();
    let target = stage.disks[2].device.clone();
    words.extend([target.as_os_str(), stage.mounted.folder.as_os_str()]);
    run(&words);
    let host = &mut stage.host;
    let mut seen = host.observe().unwrap();
    // The program returns before the kernel has begun.
    wait_until("the begin of the replacement", PATIENCE, || {
        seen = host.observe().expect("an observation");
        seen.running.is_some()
    })
    .unwrap();
    let running = seen.running.clone().expect("10 MiB/s take seconds");
    assert_eq!((running.kind, seen.size_bytes), (RunningKind::Foreign, 600 * MIB));
    assert!(!seen.conditions.scrub, "{seen:?}");
    assert_eq!(device(&seen, "vol-3").map(|target| target.devid), Some(0));
    let text = refusal(host.execute(&Verb::Cancel));
    assert!(text.contains("device replace was not started by the agent"), "{text}");
    let text = refusal(host.execute(&Verb::Pace { bytes_per_s: MIB }));
    assert!(text.contains("has no pace"), "{text}");
    assert!(matches!(host.execute(&verb("remove", "vol-2")), Err(Fault::Later(_))));
    std::fs::write(&limit, "0").unwrap();
    let seen = settled(host);
    assert_eq!(device(&seen, "vol-3").map(|device| device.devid), Some(1));
    assert_eq!(device(&seen, "vol-1"), None);
}

#[test]
fn devices_with_content_or_in_use_are_refused() {
    let Some(mut stage) = Stage::new(&[300; 6], 1) else { return };
    let disks = &stage.disks;
    make(&["mkfs.ext4", "-q", "-F"], &[&disks[1]]);
    make_btrfs(&[&disks[2]]);
    let other = Mounted::new(&disks[2].device, &stage.place.path("other"));
    make(&["mkswap", "-q"], &[&disks[3]]);
    disks[4].set_len(200 * MIB);
    let host = &mut stage.host;
    host.execute(&verb("rescan", "vol-5")).unwrap();
    let before = host.observe().unwrap();
    for (volume, part) in [
        ("vol-2", "has content: ext4 with UUID"),
        ("vol-3", "is in use, by a mount"),
        ("vol-4", "has content: swap"),
        ("vol-5", "at least 268435456: attach a larger volume"),
        ("vol-7", "volume vol-7 has no device on this host: attach it"),
    ] {
        let text = refusal(host.execute(&verb("add", volume)));
        assert!(text.contains(part), "{volume}: {text}");
    }
    execute(host, &verb("add", "vol-6")).unwrap();
    let before_moves = host.observe().unwrap();
    let text = refusal(host.execute(&verb("grow", "vol-2")));
    assert!(text.contains("volume vol-2 is no device of it"), "{text}");
    assert_eq!(host.has_superblock("vol-3"), Ok(Some(false)), "of another btrfs");
    assert_eq!(before_moves.devices[0], before.devices[0]);
    assert_eq!(host.observe().unwrap().devices, before_moves.devices);
    drop(other);
    let mounted_text = run(&["blkid".as_ref(), "-p".as_ref(), disks[1].device.as_os_str()]);
    assert!(mounted_text.contains("ext4"), "{mounted_text}");
}

/// A clone of the device has the UUID of the file system, and data that nothing else may have.
#[test]
fn clone_of_a_device_is_refused_and_a_leftover_of_add_is_not() {
    let Some(mut stage) = Stage::new(&[300, 300], 1) else { return };
    write_file(&stage.path("data"), 50 * MIB, 3);
    run(&["sync"]);
    let copy = |from: &Path, to: &Path| {
        let from = format!("if={}", from.display());
        let to = format!("of={}", to.display());
        run(&["dd", &from, &to, "bs=1M", "conv=notrunc", "status=none"]);
    };
    let second = &stage.disks[1];
    copy(&stage.disks[0].file, &second.file);
    let host = &mut stage.host;
    assert_eq!(host.has_superblock("vol-2"), Ok(Some(true)));
    let text = refusal(host.execute(&verb("add", "vol-2")));
    assert!(text.contains("has content: btrfs with UUID"), "{text}");

    // What an add leaves that is interrupted between its superblock and the other device's.
    second.clear();
    host.execute(&verb("add", "vol-2")).unwrap();
    run(&["sync"]);
    let kept = stage.place.path("kept");
    std::fs::copy(&second.file, &kept).unwrap();
    execute(host, &verb("remove", "vol-2")).unwrap();
    settled(host);
    copy(&kept, &second.file);
    assert_eq!(host.has_superblock("vol-2"), Ok(Some(true)));
    execute(host, &verb("add", "vol-2")).unwrap();
    assert_eq!(host.observe().unwrap().devices.len(), 2);
    check_file(&stage.mounted.folder.join("data"), 50 * MIB, 3);
}

#[test]
fn move_without_room_or_with_a_pin_is_refused_before_it_begins() {
    let Some(mut stage) = Stage::new(&[600, 300], 2) else { return };
    write_file(&stage.path("data"), 450 * MIB, 4);
    let text = refusal(stage.host.execute(&verb("remove", "vol-1")));
    assert!(
        text.contains("bytes that are not allocated") && text.contains("add a volume"),
        "{text}"
    );

    std::fs::remove_file(stage.path("data")).unwrap();
    let swap = stage.path("swap file");
    std::fs::File::create(&swap).unwrap();
    run(&["chattr".as_ref(), "+C".as_ref(), swap.as_os_str()]);
    let zeros = format!("of={}", swap.display());
    run(&["dd", "if=/dev/zero", &zeros, "bs=1M", "count=20", "status=none"]);
    run(&["chmod".as_ref(), "600".as_ref(), swap.as_os_str()]);
    run(&["mkswap".as_ref(), "-q".as_ref(), swap.as_os_str()]);
    let words: [&OsStr; 2] = ["swapon".as_ref(), swap.as_os_str()];
    if !attempt(&words).1 {
        // btrfs has swap files on one device only.
        return;
    }
    let seen = stage.host.observe();
    let result = stage.host.execute(&verb("remove", "vol-2"));
    run(&["swapoff".as_ref(), swap.as_os_str()]);
    assert!(seen.unwrap().conditions.pinned);
    let text = refusal(result);
    assert!(text.contains("the swap file") && text.contains("run swapoff"), "{text}");
}

#[test]
fn degraded_or_changed_file_systems_are_noticed() {
    if is_unable() {
        return;
    }
    let _lock = mounts();
    let place = Place::new();
    let folder = place.path("");
    let first = Disk::new(&folder, "vol-1", 300 * MIB);
    let second = Disk::new(&folder, "vol-2", 300 * MIB);
    let third = Disk::new(&folder, "vol-3", 300 * MIB);
    make(&["mkfs.btrfs", "-q", "-f", "-K", "-d", "single", "-m", "raid1"], &[&first, &second]);
    let mounted = Mounted::new(&first.device, &place.path("mount"));
    let mut host = host(&mounted, &[&first, &second, &third]);
    let text = refusal(host.execute(&verb("remove", "vol-2")));
    assert!(text.contains("its profiles need 2"), "{text}");
    run(&["mount".as_ref(), "-o".as_ref(), "remount,ro".as_ref(), mounted.folder.as_os_str()]);
    assert!(host.observe().unwrap().conditions.degraded);
    let text = refusal(host.execute(&verb("add", "vol-3")));
    assert!(text.contains("degraded or read-only"), "{text}");
    run(&["mount".as_ref(), "-o".as_ref(), "remount,rw".as_ref(), mounted.folder.as_os_str()]);

    let hidden = mounted.folder.clone();
    make_btrfs(&[&third]);
    let above = Mounted::new(&third.device, &hidden);
    let fault = host.observe().unwrap_err();
    assert!(matches!(&fault, Fault::Refused(text) if text.contains("is mounted there, not")));
    assert!(host.execute(&verb("grow", "vol-1")).is_err());
    drop(above);
    host.observe().unwrap();
    let uuid = host.uuid();
    drop(mounted);
    let fault = host.observe().unwrap_err();
    assert!(matches!(&fault, Fault::Refused(text) if text.contains("no file system is mounted")));
    assert_eq!(uuid.len(), 36);
}
