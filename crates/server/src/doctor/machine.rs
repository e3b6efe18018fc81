//! Checks of the machine and of the folder for the data.

use super::Check;
use evenkeel_engine::priority::{self, Granted, Priority};
use evenkeel_engine::{Engine, EngineConfig, IoMode, UnixAccess};
use evenkeel_store::memory::MemoryPool;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Checks the kernel, its limits and the processors.
pub fn system() -> Vec<Check> {
    vec![
        kernel(&rustix::system::uname().release().to_string_lossy()),
        io_uring(),
        open_files(getrlimit(Resource::Nofile).maximum),
        locked_memory(getrlimit(Resource::Memlock).current),
        data_plane_priority(
            Granted::RAISED.map(|granted| granted.is_allowed().is_ok()),
            fs::read_to_string(RT_RUNTIME).ok().as_deref().map(str::trim),
        ),
        processors(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)),
        clock_source(fs::read_to_string(CLOCK_SOURCE).ok().as_deref().map(str::trim)),
    ]
}

/// The oldest tested kernel: Debian 12's.
const KERNEL_MIN: (u32, u32) = (6, 1);

fn kernel(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let found = format!("Linux {release}");
    if version >= KERNEL_MIN {
        Check::ok("kernel", found)
    } else {
        let advice = "6.1 or newer is tested; try `evenkeel serve --io pread` if there is trouble";
        Check::warn("kernel", found, advice)
    }
}

const IO_URING_DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// Starts a data plane without listeners: sysctl, seccomp and container runtimes may all forbid
/// io_uring.
fn io_uring() -> Check {
    const USE_PREAD: &str = "run `evenkeel serve --io pread`, or allow io_uring: sysctl \
                             kernel.io_uring_disabled=0, and the container's seccomp profile";
    let config = EngineConfig {
        cores: 1,
        io: IoMode::Uring,
        priority: Priority::None,
        tcp: Vec::new(),
        unix: None,
        unix_access: UnixAccess::default(),
        pool: Arc::new(MemoryPool::new()),
    };
    match Engine::start(config) {
        Ok(engine) => {
            engine.shutdown();
            Check::ok("io_uring", "usable")
        }
        Err(error) => {
            let sysctl = fs::read_to_string(IO_URING_DISABLED).unwrap_or_default();
            let found = match sysctl.trim() {
                "" | "0" => format!("refused: {error}"),
                level => format!("refused: {error}; kernel.io_uring_disabled is {level}"),
            };
            Check::warn("io_uring", found, USE_PREAD)
        }
    }
}

/// The descriptors of a server with every connection of one core: connections may use half of them.
const OPEN_FILES_WANTED: u64 = 16_384;
/// With fewer, even a few clients cannot be served.
const OPEN_FILES_MIN: u64 = 256;

fn open_files(limit: Option<u64>) -> Check {
    const RAISE: &str = "raise it: `ulimit -Hn 65536`, or LimitNOFILE=65536 in the systemd unit";
    let found = shown_limit(limit, "");
    match limit {
        Some(count) if count < OPEN_FILES_MIN => Check::fail("open files", found, RAISE),
        Some(count) if count < OPEN_FILES_WANTED => Check::warn("open files", found, RAISE),
        _ => Check::ok("open files", found),
    }
}

/// The memory that a ring and its registered buffers lock, on kernels that count it per user.
const LOCKED_KIB_WANTED: u64 = 8 << 10;

fn locked_memory(limit_bytes: Option<u64>) -> Check {
    let limit_kib = limit_bytes.map(|bytes| bytes >> 10);
    let found = shown_limit(limit_kib, " KiB");
    match limit_kib {
        Some(kib) if kib < LOCKED_KIB_WANTED => Check::warn(
            "locked memory",
            found,
            "raise it: `ulimit -l unlimited`, or LimitMEMLOCK=infinity in the systemd unit",
        ),
        _ => Check::ok("locked memory", found),
    }
}

fn shown_limit(limit: Option<u64>, unit: &str) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| format!("at most {limit}{unit}"))
}

/// The part of a second, in microseconds, that real-time threads may take of a processor; -1: all
/// of it.
const RT_RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// Which priorities the data plane may have: real-time, a negative nice value.
fn data_plane_priority([real_time, nice]: [bool; 2], rt_runtime: Option<&str>) -> Check {
    const WHAT: &str = "priority";
    const ALLOW: &str = "other programs can delay the data plane: allow real-time priority with \
                         CAP_SYS_NICE, or LimitRTPRIO=1 in the systemd unit";
    const BOUND: &str = "the kernel keeps no time for other threads: sysctl \
                         kernel.sched_rt_runtime_us=950000, or --data-plane-priority nice";
    match (real_time, nice, rt_runtime) {
        (true, _, Some("-1")) => Check::warn(WHAT, "real-time, without a bound", BOUND),
        (true, ..) => Check::ok(WHAT, "real-time is allowed"),
        (false, true, _) => {
            Check::warn(WHAT, format!("the nice value {} is allowed", priority::NICE), ALLOW)
        }
        (false, false, _) => Check::warn(WHAT, "neither real-time nor nice is allowed", ALLOW),
    }
}

fn processors(count: usize) -> Check {
    match count {
        1 => Check::warn(
            "processors",
            "1",
            "server and clients share it: expect promises to break under full load",
        ),
        count => Check::ok("processors", count.to_string()),
    }
}

const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Checks for a clock source that is read without a system call; others cost microseconds for every
/// I/O.
fn clock_source(name: Option<&str>) -> Check {
    const FAST: [&str; 4] = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"];
    match name {
        None => {
            Check::warn("clock source", "unknown", "the kernel does not report it; nothing to do")
        }
        Some(name) if FAST.contains(&name) => Check::ok("clock source", name),
        Some(name) => Check::warn(
            "clock source",
            name,
            "slow to read; `tsc` is better: clocksource=tsc on the kernel command line",
        ),
    }
}

/// Checks that an address is free, or used by the server if that runs.
pub fn port(what: &'static str, address: SocketAddr, server_runs: bool, advice: &str) -> Check {
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(what, format!("{address} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && server_runs => {
            Check::ok(what, format!("{address} is used by the server that runs here"))
        }
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Check::fail(what, format!("{address} is used by another program"), advice)
        }
        Err(error) => Check::fail(what, format!("{address}: {error}"), advice),
    }
}

/// Below the first amount of free space the server is not worth starting; below the second it soon
/// will not be.
const FREE_MIB_MIN: u64 = 64;
const FREE_MIB_WANTED: u64 = 10 << 10;

/// Checks the folder, or the nearest existing one above it; creates nothing.
pub fn data_folder(folder: &Path) -> Vec<Check> {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let existing = absolute.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    vec![free_space(existing), direct_io(existing)]
}

fn free_space(folder: &Path) -> Check {
    const MORE: &str = "make room, or name a folder on another disk with --data-dir";
    match rustix::fs::statvfs(folder) {
        Ok(filesystem) => {
            let free_mib = filesystem.f_bavail.saturating_mul(filesystem.f_frsize) >> 20;
            let found = format!("{free_mib} MiB at {}", folder.display());
            match free_mib {
                free if free < FREE_MIB_MIN => Check::fail("free space", found, MORE),
                free if free < FREE_MIB_WANTED => Check::warn("free space", found, MORE),
                _ => Check::ok("free space", found),
            }
        }
        Err(error) => Check::fail("free space", format!("{}: {error}", folder.display()), MORE),
    }
}

/// Opens an unnamed file with O_DIRECT, which leaves no trace.
fn direct_io(folder: &Path) -> Check {
    const CACHED: &str = "data passes the page cache: correct, but the cache can hide a slow disk";
    let open = |extra| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | extra;
        rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)
    };
    let shown = folder.display();
    match (open(OFlags::DIRECT), open(OFlags::empty())) {
        (Ok(_), _) => Check::ok("direct I/O", format!("works at {shown}")),
        (Err(_), Ok(_)) => Check::warn("direct I/O", format!("not offered at {shown}"), CACHED),
        (Err(_), Err(error)) => {
            let advice = "name a folder that can be written with --data-dir";
            Check::fail("direct I/O", format!("cannot write at {shown}: {error}"), advice)
        }
    }
}

/// Checks that fio is installed, for the verbs that use it.
pub fn fio() -> Check {
    const INSTALL: &str = "needed by `demo` and `bench` only: `apt-get install fio`";
    match Command::new("fio").arg("--version").output() {
        Ok(output) if output.status.success() => {
            Check::ok("fio", String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Ok(output) => Check::warn("fio", format!("does not run: {}", output.status), INSTALL),
        Err(_) => Check::warn("fio", "not found", INSTALL),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use evenkeel_os::clock::Deadline;
    use std::time::Duration;

    #[test]
    fn each_check_knows_good_from_bad() {
        use Verdict::{Fail, Ok, Warn};
        for (check, verdict) in [
            (kernel("6.1.0-13-amd64"), Ok),
            (kernel("7.0"), Ok),
            (kernel("5.15.0"), Warn),
            (kernel("odd"), Warn),
            (open_files(None), Ok),
            (open_files(Some(16_384)), Ok),
            (open_files(Some(1_024)), Warn),
            (open_files(Some(100)), Fail),
            (locked_memory(Some(8 << 20)), Ok),
            (locked_memory(Some(64 << 10)), Warn),
            (data_plane_priority([true, true], Some("950000")), Ok),
            (data_plane_priority([true, false], None), Ok),
            (data_plane_priority([true, true], Some("-1")), Warn),
            (data_plane_priority([false, true], Some("950000")), Warn),
            (data_plane_priority([false, false], Some("-1")), Warn),
            (processors(1), Warn),
            (processors(2), Ok),
            (clock_source(Some("kvm-clock")), Ok),
            (clock_source(Some("hpet")), Warn),
            (clock_source(None), Warn),
        ] {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert_eq!(check.advice.is_empty(), verdict == Ok, "{check:?}");
        }
    }

    #[test]
    fn a_used_port_is_a_failure_unless_the_server_has_it() {
        // An address that no other test binds, so the port stays free.
        let listener = TcpListener::bind("127.0.0.12:0").unwrap();
        let address = listener.local_addr().unwrap();
        let check = port("API port", address, false, "choose another with --listen");
        assert_eq!(check.verdict, Verdict::Fail);
        assert_eq!(check.found, format!("{address} is used by another program"));
        assert_eq!(port("API port", address, true, "").verdict, Verdict::Ok);
        drop(listener);
        // A program that another test starts holds this process's open files until it executes.
        let deadline = Deadline::after(Duration::from_secs(10));
        let mut check = port("API port", address, false, "");
        while check.verdict != Verdict::Ok && deadline.pause(Duration::from_millis(1)) {
            check = port("API port", address, false, "");
        }
        assert_eq!(check.verdict, Verdict::Ok);
    }

    #[test]
    fn a_folder_that_does_not_exist_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("a/b");
        let checks = data_folder(&missing);
        assert!(checks.iter().all(|check| check.verdict != Verdict::Fail), "{checks:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
