//! Each verb on each kind of file system, and refusals.

use std::ffi::OsStr;
use std::path::Path;

use super::support::{
    Disk, MIB, Mounted, Place, attempt, check_file, device, execute, host, is_unable, make,
    make_btrfs, mounts, refusal, run, settled, skipped, write_file,
};
use evenkeel_autopilot::{Fault, Host};
use evenkeel_planner::autopilot::observation::{Kind, Profile, RunningKind};
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
        let cut = Verb::Cut { volume: "vol-1".to_owned(), to_bytes: 300 * MIB };
        assert!(refusal(host.execute(&cut)).contains("cut needs btrfs"));
        assert_eq!(host.has_superblock("vol-1"), Ok(Some(true)));
        assert_eq!(host.has_superblock("vol-2"), Ok(Some(false)));
        assert_eq!(host.has_superblock("vol-3"), Ok(None));
    }
}

#[test]
fn btrfs_grows_by_a_longer_device_and_by_another_one() {
    if is_unable() {
        return;
    }
    let _lock = mounts();
    let place = Place::new();
    let first = Disk::new(&place.path(""), "vol-1", 300 * MIB);
    let second = Disk::new(&place.path(""), "vol-2", 300 * MIB);
    make_btrfs(&[&first]);
    let mounted = Mounted::new(&first.device, &place.path("mount"));
    let mut host = host(&mounted, &[&first, &second]);
    let before = host.observe().unwrap();
    assert_eq!((before.size_bytes, before.data), (300 * MIB, Some(Profile::Single)));
    assert_eq!(before.metadata, Some(Profile::Single));
    first.set_len(400 * MIB);
    execute(&mut host, &verb("rescan", "vol-1")).unwrap();
    execute(&mut host, &verb("grow", "vol-1")).unwrap();
    // A verb that is repeated after a lost answer has no further effect.
    execute(&mut host, &verb("grow", "vol-1")).unwrap();
    assert_eq!(host.observe().unwrap().size_bytes, 400 * MIB);
    assert_eq!(host.has_superblock("vol-2"), Ok(Some(false)));
    execute(&mut host, &verb("add", "vol-2")).unwrap();
    execute(&mut host, &verb("add", "vol-2")).unwrap();
    let grown = host.observe().unwrap();
    assert_eq!(grown.size_bytes, 700 * MIB);
    let added = device(&grown, "vol-2").unwrap();
    assert_eq!((added.devid, added.size_bytes), (2, 300 * MIB));
    assert_eq!((added.allocated_bytes, added.last_chunk_end_bytes), (0, Some(0)));
    let used = device(&grown, "vol-1").unwrap();
    assert!(used.last_chunk_end_bytes >= Some(used.allocated_bytes), "{used:?}");
    run(&["sync"]);
    assert_eq!(host.has_superblock("vol-2"), Ok(Some(true)));
}

#[test]
fn data_leaves_a_removed_device_at_the_set_pace() {
    if is_unable() {
        return;
    }
    let _lock = mounts();
    let place = Place::new();
    let first = Disk::new(&place.path(""), "vol-1", 400 * MIB);
    let second = Disk::new(&place.path(""), "vol-2", 700 * MIB);
    make_btrfs(&[&first]);
    let mounted = Mounted::new(&first.device, &place.path("mount"));
    let mut host = host(&mounted, &[&first, &second]);
    write_file(&mounted.folder.join("data"), 150 * MIB, 2);
    execute(&mut host, &verb("add", "vol-2")).unwrap();
    let slow = Verb::Remove { volume: "vol-1".to_owned(), bytes_per_s: 20 * MIB };
    host.execute(&slow).unwrap();
    let seen = host.observe().unwrap();
    let running = seen.running.expect("150 MiB take seconds at 20 MiB/s");
    assert_eq!((running.kind, running.devid), (RunningKind::Remove, Some(1)));
    assert_eq!(running.pace_bytes_per_s, Some(20 * MIB));
    assert!(running.done_permille.is_some());
    let later = host.execute(&Verb::Grow { volume: "vol-2".to_owned() });
    assert_eq!(later, Ok(()), "it has its full size, so nothing is due");
    let cut = Verb::Cut { volume: "vol-2".to_owned(), to_bytes: 600 * MIB };
    let later = host.execute(&cut);
    assert!(matches!(&later, Err(Fault::Later(text)) if text.contains("device remove runs")));
    host.execute(&Verb::Pace { bytes_per_s: 30 * MIB }).unwrap();
    let seen = host.observe().unwrap();
    assert_eq!(seen.running.unwrap().pace_bytes_per_s, Some(30 * MIB));
    // Another agent finds the move, and its end.
    drop(host);
    let mut host = super::support::host(&mounted, &[&first, &second]);
    let running = host.observe().unwrap().running.expect("it continues");
    assert_eq!((running.kind, running.devid), (RunningKind::Remove, Some(1)));
    host.execute(&Verb::Remove { volume: "vol-1".to_owned(), bytes_per_s: 1_000 * MIB }).unwrap();
    let seen = settled(&mut host);
    assert_eq!(seen.devices.len(), 1);
    assert_eq!(seen.devices[0].volume.as_deref(), Some("vol-2"));
    assert_eq!(host.has_superblock("vol-1"), Ok(Some(false)));
    check_file(&mounted.folder.join("data"), 150 * MIB, 2);
    // Repeated, it has no further effect, and the last device stays.
    host.execute(&verb("remove", "vol-1")).unwrap();
    let text = refusal(host.execute(&verb("remove", "vol-2")));
    assert!(text.contains("0 of its devices would be left"), "{text}");
}

#[test]
fn device_is_cut_and_replaced_by_a_smaller_one() {
    if is_unable() {
        return;
    }
    let _lock = mounts();
    let place = Place::new();
    let first = Disk::new(&place.path(""), "vol-1", 900 * MIB);
    let second = Disk::new(&place.path(""), "vol-2", 500 * MIB);
    let third = Disk::new(&place.path(""), "vol-3", 300 * MIB);
    make_btrfs(&[&first]);
    let mounted = Mounted::new(&first.device, &place.path("mount"));
    let mut host = host(&mounted, &[&first, &second, &third]);
    // Files that leave chunks behind, the last one at the end.
    for number in 0..16 {
        write_file(&mounted.folder.join(format!("{number}")), 30 * MIB, number);
    }
    for number in (0..16).filter(|number| number % 4 != 3) {
        std::fs::remove_file(mounted.folder.join(format!("{number}"))).unwrap();
    }
    run(&["sync".as_ref(), "-f".as_ref(), mounted.folder.as_os_str()]);
    let replace = Verb::Replace {
        volume: "vol-1".to_owned(),
        with: "vol-2".to_owned(),
        bytes_per_s: 20 * MIB,
    };
    let text = refusal(host.execute(&replace));
    assert!(text.contains("its only device") && text.contains("then remove vol-1"), "{text}");
    execute(&mut host, &verb("add", "vol-3")).unwrap();
    let text = refusal(host.execute(&replace));
    assert!(text.contains("cut that to 524288000 first"), "{text}");
    let compact = Verb::Compact { used_percent_max: 70, chunks_max: 20 };
    execute(&mut host, &compact).unwrap();
    execute(&mut host, &Verb::Pace { bytes_per_s: 1_000 * MIB }).unwrap();
    settled(&mut host);
    let cut = Verb::Cut { volume: "vol-1".to_owned(), to_bytes: 500 * MIB };
    execute(&mut host, &cut).unwrap();
    let _ = host.execute(&Verb::Pace { bytes_per_s: 1_000 * MIB });
    let seen = settled(&mut host);
    assert_eq!(device(&seen, "vol-1").unwrap().size_bytes, 500 * MIB);
    assert!(device(&seen, "vol-1").unwrap().last_chunk_end_bytes <= Some(500 * MIB));
    execute(&mut host, &cut).unwrap();

    execute(&mut host, &replace).unwrap();
    let running = host.observe().unwrap().running.expect("120 MiB take seconds at 20 MiB/s");
    assert_eq!((running.kind, running.devid), (RunningKind::Replace, Some(1)));
    assert_eq!(running.pace_bytes_per_s, Some(20 * MIB));
    host.execute(&Verb::Cancel).unwrap();
    let seen = settled(&mut host);
    assert_eq!(device(&seen, "vol-1").unwrap().devid, 1);
    assert_eq!(host.has_superblock("vol-2"), Ok(Some(false)));
    execute(&mut host, &replace).unwrap();
    host.execute(&Verb::Pace { bytes_per_s: 1_000 * MIB }).unwrap();
    let seen = settled(&mut host);
    assert_eq!(device(&seen, "vol-1"), None);
    assert_eq!(device(&seen, "vol-2").unwrap().devid, 1);
    assert_eq!(host.has_superblock("vol-1"), Ok(Some(false)));
    execute(&mut host, &replace).unwrap();
    for number in (0..16).filter(|number| number % 4 == 3) {
        check_file(&mounted.folder.join(format!("{number}")), 30 * MIB, number);
    }
}

#[test]
fn devices_with_content_or_in_use_are_refused() {
    if is_unable() {
        return;
    }
    let _lock = mounts();
    let place = Place::new();
    let folder = place.path("");
    let disks: Vec<Disk> =
        (1..=6).map(|n| Disk::new(&folder, &format!("vol-{n}"), 300 * MIB)).collect();
    make_btrfs(&[&disks[0]]);
    let mounted = Mounted::new(&disks[0].device, &place.path("mount"));
    make(&["mkfs.ext4", "-q", "-F"], &[&disks[1]]);
    make_btrfs(&[&disks[2]]);
    let other = Mounted::new(&disks[2].device, &place.path("other"));
    make(&["mkswap", "-q"], &[&disks[3]]);
    disks[4].set_len(200 * MIB);
    let all: Vec<&Disk> = disks.iter().collect();
    let mut host = host(&mounted, &all);
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
    execute(&mut host, &verb("add", "vol-6")).unwrap();
    let before_moves = host.observe().unwrap();
    for (volume, part) in [
        ("vol-2", "has content: ext4"),
        ("vol-3", "is in use"),
        ("vol-1", "vol-1 is already a device"),
        ("vol-5", "fewer than the"),
    ] {
        let with = volume.to_owned();
        let volume = "vol-1".to_owned();
        let text = refusal(host.execute(&Verb::Replace { volume, with, bytes_per_s: MIB }));
        assert!(text.contains(part), "{text}");
    }
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
    if is_unable() {
        return;
    }
    let _lock = mounts();
    let place = Place::new();
    let folder = place.path("");
    let first = Disk::new(&folder, "vol-1", 300 * MIB);
    let second = Disk::new(&folder, "vol-2", 300 * MIB);
    make_btrfs(&[&first]);
    let mounted = Mounted::new(&first.device, &place.path("mount"));
    write_file(&mounted.folder.join("data"), 50 * MIB, 3);
    run(&["sync"]);
    let copy = |from: &Path, to: &Path| {
        let from = format!("if={}", from.display());
        let to = format!("of={}", to.display());
        run(&["dd", &from, &to, "bs=1M", "conv=notrunc", "status=none"]);
    };
    copy(&first.file, &second.file);
    let mut host = host(&mounted, &[&first, &second]);
    assert_eq!(host.has_superblock("vol-2"), Ok(Some(true)));
    let text = refusal(host.execute(&verb("add", "vol-2")));
    assert!(text.contains("has content: btrfs with UUID"), "{text}");

    // What an add leaves that is interrupted between its superblock and the other device's.
    second.clear();
    host.execute(&verb("add", "vol-2")).unwrap();
    run(&["sync"]);
    let kept = place.path("kept");
    std::fs::copy(&second.file, &kept).unwrap();
    execute(&mut host, &verb("remove", "vol-2")).unwrap();
    settled(&mut host);
    copy(&kept, &second.file);
    assert_eq!(host.has_superblock("vol-2"), Ok(Some(true)));
    execute(&mut host, &verb("add", "vol-2")).unwrap();
    assert_eq!(host.observe().unwrap().devices.len(), 2);
    check_file(&mounted.folder.join("data"), 50 * MIB, 3);
}

#[test]
fn move_without_room_or_with_a_pin_is_refused_before_it_begins() {
    if is_unable() {
        return;
    }
    let _lock = mounts();
    let place = Place::new();
    let folder = place.path("");
    let first = Disk::new(&folder, "vol-1", 600 * MIB);
    let second = Disk::new(&folder, "vol-2", 300 * MIB);
    make_btrfs(&[&first, &second]);
    let mounted = Mounted::new(&first.device, &place.path("mount"));
    write_file(&mounted.folder.join("data"), 450 * MIB, 4);
    let mut host = host(&mounted, &[&first, &second]);
    let text = refusal(host.execute(&verb("remove", "vol-1")));
    assert!(
        text.contains("bytes that are not allocated") && text.contains("add a volume"),
        "{text}"
    );
    let cut = Verb::Cut { volume: "vol-1".to_owned(), to_bytes: 100 * MIB };
    let text = refusal(host.execute(&cut));
    assert!(text.contains("below the 268435456"), "{text}");

    std::fs::remove_file(mounted.folder.join("data")).unwrap();
    let swap = mounted.folder.join("swap file");
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
    let seen = host.observe();
    let result = host.execute(&verb("remove", "vol-2"));
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
