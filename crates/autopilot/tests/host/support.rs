//! Loop devices, file systems on them, and hosts of these.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use evenkeel_autopilot::host::{LinuxHost, Volumes};
use evenkeel_autopilot::{Fault, Host};
use evenkeel_lab::child::{find, wait_until};
use evenkeel_planner::autopilot::observation::{Device, FileSystem};
use evenkeel_planner::autopilot::operation::Verb;

/// Longest wait for a move. Generous: it exists to end a hang.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// A mebibyte.
pub const MIB: u64 = 1 << 20;

/// Prints why a test is not run. It bypasses the harness, which hides the output of tests that
/// pass. `cargo x ci` counts these lines.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stdout(), "SKIPPED: {why}");
}

/// Returns whether this machine lacks what the tests need, and prints that.
pub fn is_unable() -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped("file systems on loop devices need root");
        return true;
    }
    if !Path::new("/dev/loop-control").exists() {
        skipped("no loop devices: there is no /dev/loop-control");
        return true;
    }
    let folders = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    for tool in ["btrfs", "mkfs.btrfs", "mkfs.xfs", "mkfs.ext4", "losetup", "blkid", "fsfreeze"] {
        if find(tool, folders.clone()).is_none() {
            skipped(&format!("{tool} is not installed (cargo x setup installs it)"));
            return true;
        }
    }
    false
}

/// Locks the machine's mounts and loop devices, as `tests/support/machine.rs` does.
pub fn mounts() -> File {
    let user = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("evenkeel-tests-{user}"));
    let mut new = fs::DirBuilder::new();
    new.recursive(true).mode(0o700).create(&folder).expect("a folder of our own");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(folder.join("mounts")).expect("a file of our own");
    file.lock().expect("a file of our own");
    file
}

/// Runs a program that must succeed, and returns its output.
pub fn run<W: AsRef<OsStr>>(words: &[W]) -> String {
    let (printed, is_success) = attempt(words);
    let words: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    assert!(is_success, "{}: {printed}", words.join(" "));
    printed
}

/// Runs a program, and returns its output and whether it succeeded.
pub fn attempt<W: AsRef<OsStr>>(words: &[W]) -> (String, bool) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(words[0].as_ref());
    let output = command.args(&words[1..]).env("PATH", path).env("LC_ALL", "C").output();
    let output = output.expect("the program starts");
    let printed = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&printed).into_owned(), output.status.success())
}

/// A folder in memory. It is removed when dropped, and every mount in it before.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// Creates it.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("evenkeel-autopilot-").tempdir_in(root);
        Self { folder: folder.expect("a folder") }
    }

    /// Returns a path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// A loop device of a file, which is a volume. It is detached when dropped.
pub struct Disk {
    /// The id of the volume.
    pub id: String,
    /// The device.
    pub device: PathBuf,
    /// The file.
    pub file: PathBuf,
}

impl Disk {
    /// Makes a device of a new file of zeros.
    pub fn new(folder: &Path, id: &str, bytes: u64) -> Self {
        let file = folder.join(id);
        File::create(&file).and_then(|file| file.set_len(bytes)).expect("a file");
        Self::of(id, file)
    }

    /// Makes a device of a file.
    pub fn of(id: &str, file: PathBuf) -> Self {
        let make = || {
            let words = ["losetup", "--find", "--show"].map(OsStr::new);
            attempt(&[words.as_slice(), &[file.as_os_str()]].concat())
        };
        let mut made = make();
        // Another process may take the device that was found free.
        wait_until("a loop device", Duration::from_secs(60), || {
            if !made.1 {
                made = make();
            }
            made.1
        })
        .expect("a loop device");
        let device = PathBuf::from(made.0.trim());
        Self { id: id.to_owned(), device, file }
    }

    /// Lengthens or shortens the file; the kernel notices at the next rescan.
    pub fn set_len(&self, bytes: u64) {
        let file = OpenOptions::new().write(true).open(&self.file);
        file.and_then(|file| file.set_len(bytes)).expect("a longer file");
    }

    /// Makes the device hold nothing.
    pub fn clear(&self) {
        let bytes = fs::metadata(&self.file).expect("its file").len();
        self.set_len(0);
        self.set_len(bytes);
        run(&["blockdev".as_ref(), "--flushbufs".as_ref(), self.device.as_os_str()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        attempt(&["losetup".as_ref(), "-d".as_ref(), self.device.as_os_str()]);
    }
}

/// A mount. It is unmounted when dropped.
pub struct Mounted {
    /// The folder.
    pub folder: PathBuf,
}

impl Mounted {
    /// Mounts a device.
    pub fn new(device: &Path, folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        run(&["mount".as_ref(), device.as_os_str(), folder.as_os_str()]);
        Self { folder: folder.to_owned() }
    }

    /// Mounts a btrfs that discards nothing: a loop device would pass a discard to a frozen file
    /// system, and block the readers of its file until the end of the freeze.
    pub fn without_discards(device: &Path, folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let words = ["mount", "-o", "nodiscard"].map(OsStr::new);
        run(&[words.as_slice(), &[device.as_os_str(), folder.as_os_str()]].concat());
        Self { folder: folder.to_owned() }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A cancelled move may still end, or the probe's file be open.
        let _ = wait_until("an unmount", PATIENCE, || {
            attempt(&["umount".as_ref(), self.folder.as_os_str()]).1
        });
    }
}

/// Makes a file system on devices.
pub fn make(words: &[&str], disks: &[&Disk]) {
    let words = words.iter().map(OsStr::new);
    let words: Vec<&OsStr> =
        words.chain(disks.iter().map(|disk| disk.device.as_os_str())).collect();
    run(&words);
}

/// Makes a btrfs with metadata once.
pub fn make_btrfs(disks: &[&Disk]) {
    make(&["mkfs.btrfs", "-q", "-f", "-K", "-d", "single", "-m", "single"], disks);
}

/// A mounted btrfs, its devices `vol-1` and so on, and its host. Fields are dropped in this order.
pub struct Stage {
    /// The host.
    pub host: LinuxHost,
    /// The mount.
    pub mounted: Mounted,
    /// All devices; the file system has the first ones.
    pub disks: Vec<Disk>,
    /// The folder with their files.
    pub place: Place,
    _lock: File,
}

impl Stage {
    /// Makes devices of these MiB, and a btrfs on the first `members`; `None` on a machine that
    /// cannot.
    pub fn new(mib: &[u64], members: usize) -> Option<Self> {
        if is_unable() {
            return None;
        }
        let lock = mounts();
        let place = Place::new();
        let folder = place.path("");
        let disk = |(number, mib): (usize, &u64)| {
            Disk::new(&folder, &format!("vol-{}", number + 1), mib * MIB)
        };
        let disks: Vec<Disk> = mib.iter().enumerate().map(disk).collect();
        let all: Vec<&Disk> = disks.iter().collect();
        make_btrfs(&all[..members]);
        let mounted = Mounted::new(&disks[0].device, &place.path("mount"));
        let host = host(&mounted, &all);
        Some(Self { host, mounted, disks, place, _lock: lock })
    }

    /// Returns a path in the file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted.folder.join(name)
    }

    /// Opens another host, as an agent that starts again does.
    pub fn reopen(&mut self) {
        let all: Vec<&Disk> = self.disks.iter().collect();
        self.host = host(&self.mounted, &all);
    }

    /// Writes all that is dirty.
    pub fn sync(&self) {
        run(&["sync".as_ref(), "-f".as_ref(), self.mounted.folder.as_os_str()]);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        forget_lock(&self.host.uuid());
    }
}

/// Removes the lock of a file system's programs, of which none runs.
pub fn forget_lock(uuid: &str) {
    let _ = fs::remove_file(format!("/run/evenkeel-agent/{uuid}.program"));
}

/// Opens the host of a mount whose volumes are these disks.
pub fn host(mounted: &Mounted, disks: &[&Disk]) -> LinuxHost {
    let volumes = disks.iter().map(|disk| (disk.id.clone(), disk.device.clone())).collect();
    LinuxHost::open(&mounted.folder, attached(volumes), Duration::from_secs(300)).expect("a host")
}

/// Returns the function of fixed volumes.
pub fn attached(volumes: Vec<(String, PathBuf)>) -> Volumes {
    Box::new(move || Ok(volumes.clone()))
}

/// Returns the device of a volume.
pub fn device<'a>(seen: &'a FileSystem, volume: &str) -> Option<&'a Device> {
    seen.devices.iter().find(|device| device.volume.as_deref() == Some(volume))
}

/// Executes a verb until the host does not ask to try later.
pub fn execute(host: &mut LinuxHost, verb: &Verb) -> Result<(), Fault> {
    let mut result = host.execute(verb);
    let _ = wait_until("a verb", PATIENCE, || {
        if matches!(result, Err(Fault::Later(_))) {
            result = host.execute(verb);
        }
        !matches!(result, Err(Fault::Later(_)))
    });
    result
}

/// Observes until nothing runs, and returns the last observation.
pub fn settled(host: &mut LinuxHost) -> FileSystem {
    let mut seen = host.observe().expect("an observation");
    wait_until("the end of a move", PATIENCE, || {
        seen = host.observe().expect("an observation");
        seen.running.is_none()
    })
    .expect("a move that ends");
    seen
}

/// Returns the text of a refusal.
pub fn refusal(result: Result<(), Fault>) -> String {
    match result {
        Err(Fault::Refused(text)) => text,
        other => panic!("not refused: {other:?}"),
    }
}

/// Writes a file of bytes that do not compress, durably.
pub fn write_file(path: &Path, bytes: u64, seed: u64) {
    let mut file = File::create(path).expect("a file");
    for block in 0..bytes / MIB {
        file.write_all(&content(seed, block, MIB)).expect("room");
    }
    file.sync_all().expect("a durable file");
}

/// Checks a file of [`write_file`], as the devices have it.
pub fn check_file(path: &Path, bytes: u64, seed: u64) {
    drop_pages(path);
    let read = fs::read(path).expect("the file");
    assert_eq!(read.len() as u64, bytes, "the length of {}", path.display());
    for block in 0..bytes / MIB {
        let start = usize::try_from(block * MIB).expect("a small file");
        let part = &read[start..][..usize::try_from(MIB).expect("a mebibyte")];
        assert!(part == content(seed, block, MIB), "{}: MiB {block} differs", path.display());
    }
}

/// Returns bytes that follow from a seed and a number.
pub fn content(seed: u64, number: u64, bytes: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number.wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| next()).collect()
}

/// Drops the pages of a file that are in memory: they would hide what the devices have.
pub fn drop_pages(path: &Path) {
    let from = format!("if={}", path.display());
    run(&["dd", &from, "iflag=nocache", "count=0", "status=none"]);
}
