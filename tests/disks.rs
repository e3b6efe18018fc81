//! Pools on block devices, and disks that fail during use.

mod support;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use support::PATIENCE;
use support::clock::Deadline;
use support::loop_device::LoopDevice;
use support::metrics::Metrics;
use support::nbd::Client;
use support::patterns::{BLOCK, fill, pattern, read};
use support::process::{Running, run, start};
use support::server::{SERVE, Server, evenkeel, new_folder};
use support::tools::{absent, tool};

/// `NBD_EIO`.
const EIO: i32 = 5;

/// The first command of the documentation, on a device. A device with contents is refused by their
/// name. The whole device can be sold, and its extension, too.
#[test]
#[ignore = "full: crates/store/src/local/tests/devices.rs::a_disk_is_used_to_its_end stays"]
fn a_block_device_is_a_pool() {
    let (folder, data_dir) = new_folder();
    let image = folder.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(2 << 30)).expect("a file");
    let Some(device) = LoopDevice::of(&image) else { return };
    let options = format!("--pool {}", device.path());
    for (program, name) in [("mkfs.ext4", "ext4 file system"), ("mkfs.xfs", "XFS file system")] {
        let force = if program == "mkfs.xfs" { "-q -f" } else { "-q -F" };
        run(tool(program, force).arg(device.path())).ok();
        let other = folder.path().join("other");
        let mut command = evenkeel(folder.path());
        command.args(SERVE.split(' ')).args(options.split(' ')).arg("--data-dir").arg(&other);
        let refused = run(&mut command).fails_with(1);
        assert!(refused.contains(name), "{refused}");
    }
    let mut command = evenkeel(folder.path());
    command.args("store init --force".split(' ')).args(options.split(' '));
    run(command.arg("--data-dir").arg(&data_dir)).ok();
    let mut server = Server::start_in(folder, data_dir, &options);
    let total = |server: &Server| Metrics::of(server).single("store_total_bytes");
    let small = total(&server);
    assert!(small > 1.7 * f64::from(1 << 30), "{small} bytes are for sale");
    let volume = server.attached("--size 1");
    fill(&server, &volume, 1, 1_000);
    let refused = server.evenkeel(&format!("{SERVE} --data-dir x {options}")).fails_with(1);
    assert!(refused.contains("is held by another program"), "{refused}");
    server.kill_9();
    let file = OpenOptions::new().write(true).open(&image).expect("the image");
    file.set_len(3 << 30).expect("grown");
    run(tool("losetup", "-c").arg(device.path())).ok();
    server.restart();
    let large = total(&server);
    assert!(large > small + 0.8 * f64::from(1 << 30), "{large} bytes are for sale");
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    for block in 0..1_000 {
        assert_eq!(read(&mut client, block), Ok(pattern(1, block)));
    }
    drop(client);
    let shown = server.evenkeel("store inspect").ok();
    assert!(shown.contains(&volume), "{shown}");
    server.stop();
    let found = server.evenkeel("store check --data").ok();
    assert!(found.contains("no problems"), "{found}");
}

/// A disk whose reads, writes or both fail while a file exists: nbdkit's error filter, presented as
/// a file by nbdfuse and as a device by a loop device.
struct FailingDisk {
    folder: PathBuf,
    device: Option<LoopDevice>,
    processes: Vec<Running>,
}

impl FailingDisk {
    fn new(folder: &Path) -> Option<Self> {
        if absent(&["nbdkit", "nbdfuse", "fusermount3", "losetup"]) {
            return None;
        }
        let image = folder.join("disk.img");
        let socket = folder.join("disk.sock");
        File::create(&image).and_then(|file| file.set_len(2 << 30)).expect("a file");
        let trigger = |name: &str| folder.join(name).display().to_string();
        let words = format!(
            "--foreground --exit-with-parent --filter=error --unix {} file {} error-pread=EIO \
             error-pread-rate=100% error-pread-file={} error-pwrite=EIO error-pwrite-rate=100% \
             error-pwrite-file={}",
            socket.display(),
            image.display(),
            trigger("reads-fail"),
            trigger("writes-fail")
        );
        let mut processes = vec![start(&mut tool("nbdkit", &words))];
        Deadline::after(PATIENCE).ask("nbdkit's socket", || socket.exists());
        std::fs::create_dir(folder.join("fuse")).expect("a folder");
        let file = folder.join("fuse/disk");
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        processes.push(start(tool("nbdfuse", "-C 4").arg(&file).arg(uri)));
        Deadline::after(PATIENCE).ask("nbdfuse's file", || file.exists());
        let device = Some(LoopDevice::of(&file)?);
        Some(Self { folder: folder.to_owned(), device, processes })
    }

    fn device(&self) -> &str {
        self.device.as_ref().expect("until the end").path()
    }

    /// Makes these operations fail or succeed from now on.
    fn fails(&self, names: &[&str], fails: bool) {
        for name in names {
            let trigger = self.folder.join(format!("{name}-fail"));
            if fails {
                _ = File::create(trigger).expect("a file")
            } else {
                std::fs::remove_file(trigger).expect("it is there")
            }
        }
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        self.device = None;
        let fuse = self.folder.join("fuse");
        let is_gone = || run(tool("fusermount3", "-u").arg(&fuse)).status.success();
        Deadline::after(PATIENCE).comes(is_gone);
        self.processes.clear();
    }
}

/// A failed read or write is an error of that request only. When the disk is back, all flushed data
/// is there.
#[test]
#[ignore = "full: tests/store.rs::data_changed_on_the_disk_is_an_error_and_never_returned stays"]
fn a_disk_that_fails_and_comes_back_has_lost_nothing_that_was_flushed() {
    const BLOCKS: u64 = 200;
    let (folder, data_dir) = new_folder();
    let Some(disk) = FailingDisk::new(folder.path()) else { return };
    let mut server = Server::start_in(folder, data_dir, &format!("--pool {}", disk.device()));
    let volume = server.attached("--size 1");
    fill(&server, &volume, 1, BLOCKS);
    let is_whole = |server: &Server| {
        let mut client = Client::open(server.nbd, &volume).expect("attached");
        (0..BLOCKS).for_each(|it| assert_eq!(read(&mut client, it), Ok(pattern(1, it)), "{it}"));
    };
    is_whole(&server);

    disk.fails(&["reads"], true);
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    assert_eq!(read(&mut client, 3), Err(Some(EIO)));
    assert_eq!(server.list("volume ls").len(), 1);
    disk.fails(&["reads"], false);
    is_whole(&server);

    disk.fails(&["writes"], true);
    let behind = 7 * BLOCKS * BLOCK as u64;
    let written = client.write(behind, &pattern(2, 0)).and_then(|()| client.flush());
    assert_eq!(written.expect_err("the disk fails").raw_os_error(), Some(EIO));
    disk.fails(&["writes"], false);
    server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    server.evenkeel(&format!("volume attach {volume} --wait")).ok();
    is_whole(&server);
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    client.write(behind, &pattern(3, 0)).expect("written");
    client.flush().expect("flushed");

    // The whole disk fails, and the server is killed meanwhile.
    disk.fails(&["reads", "writes"], true);
    assert_eq!(read(&mut client, 3), Err(Some(EIO)));
    client.write(0, &pattern(4, 0)).and_then(|()| client.flush()).expect_err("the disk is gone");
    assert_eq!(server.list("volume ls").len(), 1);
    server.kill_9();
    let refused = server.launch().finish();
    assert!(refused.stderr.contains(disk.device()), "{refused}");
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    disk.fails(&["reads", "writes"], false);
    server.restart();
    is_whole(&server);
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    assert_eq!(client.read(behind, BLOCK as u32).expect("read"), pattern(3, 0));
    server.stop();
    let found = server.evenkeel("store check --data").ok();
    assert!(found.contains("no problems"), "{found}");
}
