//! `evenkeel doctor`: checks this machine and prints how to fix the problems found. The exit code
//! is 1 if a check fails.

use super::capacity::MEASURE;
use crate::cli::{Connection, Doctor, LocalStore, NbdListen};
use evenkeel_cli::connect;
use evenkeel_cli::endpoint;
use evenkeel_client::Client;
use evenkeel_client::capacity::{Capacity, StoreHealth};
use evenkeel_client::model::{Unowned, VolumeDescription};
use evenkeel_client::output::{self, Exit, Failure, Item};
use evenkeel_engine::priority::{self, Granted, Priority};
use evenkeel_engine::{Engine, EngineConfig, IoMode, UnixAccess};
use evenkeel_server::calibration::identity::Identity;
use evenkeel_server::calibration::record::{FILE, Record};
use evenkeel_server::store_options::StoreOptions;
use evenkeel_store::layout::PoolSeen;
use evenkeel_store::memory::MemoryPool;
use evenkeel_store::rbd::examine::{Finding, Weight, examine, look_around};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// It works, but not as well as possible.
    Warn,
    /// The server cannot work like this.
    Fail,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Check {
    verdict: Verdict,
    what: &'static str,
    /// The finding.
    found: String,
    /// The remedy; empty if none is needed.
    advice: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

impl Item for Check {
    const SCHEMA: &'static str = "evenkeel.doctor/1";
    const FIELD: &'static str = "checks";
    const COLUMNS: &'static [&'static str] = &["", "CHECK", "FOUND", "WHAT TO DO"];

    fn cells(&self) -> Vec<String> {
        let Self { verdict, what, found, advice } = self;
        vec![verdict.to_string(), (*what).to_owned(), found.clone(), advice.clone()]
    }
}

impl From<Finding> for Check {
    fn from(Finding { what, weight, found, advice }: Finding) -> Self {
        let verdict = match weight {
            Weight::Well => Verdict::Ok,
            Weight::Worse => Verdict::Warn,
            Weight::Unusable => Verdict::Fail,
        };
        Self { verdict, what, found, advice }
    }
}

impl Check {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, what, found: found.into(), advice: String::new() }
    }

    fn warn(what: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { verdict: Verdict::Warn, advice: advice.to_owned(), ..Self::ok(what, found) }
    }

    fn fail(what: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { verdict: Verdict::Fail, advice: advice.to_owned(), ..Self::ok(what, found) }
    }
}

pub fn run(arguments: &Doctor) -> Result<(), Failure> {
    let options = StoreOptions::of(&LocalStore::default(), &arguments.rbd, &arguments.store)?;
    let api = server(arguments);
    let server_runs = api.is_some();
    let mut checks = vec![
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
        port(
            "API port",
            api.unwrap_or(arguments.listen),
            server_runs,
            "choose another with --listen",
        ),
    ];
    checks.extend(NbdListen::addresses(&arguments.nbd_listen).iter().map(|address| {
        port("NBD port", *address, server_runs, "choose another with --nbd-listen")
    }));
    checks.extend(data_folder(&arguments.data_dir));
    checks.push(fio());
    checks.extend(options.place.iter().flat_map(examine).map(Check::from));
    let record = Record::load(&arguments.data_dir.join(FILE));
    checks.extend(options.place.iter().filter_map(|place| match &record {
        Ok(record) => Some(pool_calibration(record.as_ref()?, look_around(place).ok()?)),
        Err(failure) => Some(Check::fail(POOL_CALIBRATION, &failure.message, "see the message")),
    }));
    if let Some(api) = api {
        let client = client(arguments, api);
        let of_server = |ask: fn(&Client) -> Result<Check, Failure>, what| {
            let answer = client.as_ref().map_err(Clone::clone).and_then(ask);
            answer.unwrap_or_else(|error| Check::warn(what, error.message, NAME_THE_SERVER))
        };
        checks.push(of_server(|client| Ok(capacity(&Capacity::get(client)?)), "capacity"));
        checks.push(of_server(pool, POOL));
        checks.push(of_server(volumes, "volumes"));
        checks.push(of_server(unowned, "unowned bytes"));
    }
    output::print(&output::listing(&checks, arguments.output.format, ""))?;
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Fail).count();
    if failed == 0 {
        Ok(())
    } else {
        Err(Failure::new(format!("{failed} of {} checks failed", checks.len())).exit(Exit::Failed))
    }
}

const POOL_CALIBRATION: &str = "Ceph calibration";

/// Whether a record is still of the pool, and covers the states that it may be in.
fn pool_calibration(record: &Record, seen: PoolSeen) -> Check {
    const AGAIN: &str = "calibrate again when nothing uses the pool: docs/operating/calibrate.md";
    let now = Identity { layout: Some(seen.layout), ..record.device.clone() };
    let changes = record.changes(&now);
    let remarks = record.reservations();
    match (changes.is_empty(), remarks.is_empty()) {
        (false, _) => Check::warn(POOL_CALIBRATION, changes.join("; "), AGAIN),
        (true, false) => Check::warn(POOL_CALIBRATION, remarks.join("; "), AGAIN),
        (true, true) => Check::ok(POOL_CALIBRATION, record.id.clone()),
    }
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

/// Whether one of our servers answers there.
fn server(arguments: &Doctor) -> Option<SocketAddr> {
    let noted = endpoint::noted(&arguments.data_dir)
        .and_then(|text| text.strip_prefix("http://")?.parse().ok());
    noted.into_iter().chain([arguments.listen]).find(|address| answers(*address))
}

fn answers(address: SocketAddr) -> bool {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(2)))
        .proxy(None)
        .build();
    config.new_agent().get(format!("http://{address}/healthz")).call().is_ok()
}

fn port(what: &'static str, address: SocketAddr, server_runs: bool, advice: &str) -> Check {
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
fn data_folder(folder: &Path) -> Vec<Check> {
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
    let at = folder.display();
    match (open(OFlags::DIRECT), open(OFlags::empty())) {
        (Ok(_), _) => Check::ok("direct I/O", format!("works at {at}")),
        (Err(_), Ok(_)) => Check::warn("direct I/O", format!("not offered at {at}"), CACHED),
        (Err(_), Err(error)) => {
            let advice = "name a folder that can be written with --data-dir";
            Check::fail("direct I/O", format!("cannot write at {at}: {error}"), advice)
        }
    }
}

const NAME_THE_SERVER: &str = "name the server's --data-dir and --region";

/// Checks the running server.
fn client(arguments: &Doctor, api: SocketAddr) -> Result<Client, Failure> {
    let region = endpoint::noted_region(&arguments.data_dir);
    connect::client(&Connection {
        endpoint: Some(format!("http://{api}")),
        data_dir: arguments.data_dir.clone(),
        region: region.or_else(|| Some(arguments.region.clone())),
    })
}

const POOL: &str = "pool";

/// Checks that the store of the running server has no trouble beside its volumes.
fn pool(client: &Client) -> Result<Check, Failure> {
    Ok(pool_health(Capacity::get(client)?.store_health))
}

fn pool_health(health: Option<StoreHealth>) -> Check {
    const READ_LOG: &str = "the server's log names each volume and the reason; free space if it \
                            is lacking: docs/operating/store.md";
    const LOST: &str = "the disk has lost data: look at it (`smartctl`), copy what is on it, and \
                        see docs/operating/durability.md";
    const SCRUB: &str = "the disk loses data: look at it (`smartctl`), and read all of it with \
                         `evenkeel store scrub`";
    let Some(health) = health else {
        return Check::warn(POOL, "the data plane does not answer", "see the server's log");
    };
    let troubles = health.troubles().join("; ");
    match health {
        StoreHealth { damaged_sectors: 1.., .. } => Check::fail(POOL, troubles, LOST),
        _ if !troubles.is_empty() => Check::warn(POOL, troubles, READ_LOG),
        StoreHealth { copies_mended: copies @ 1.., .. } => {
            let found = format!("{copies} damaged copies were written anew since the start");
            Check::warn(POOL, found, SCRUB)
        }
        _ => Check::ok(POOL, "no trouble"),
    }
}

/// Checks that every volume is served.
fn volumes(client: &Client) -> Result<Check, Failure> {
    let volumes = VolumeDescription::set(&client.call("DescribeVolumes", &[])?);
    Ok(in_error(&volumes))
}

fn in_error(volumes: &[VolumeDescription]) -> Check {
    const WHAT: &str = "volumes";
    const MEND: &str = "remove the cause: each volume comes back by itself a few seconds later; \
                        `evenkeel volume show VOLUME` shows more";
    let mut in_error = volumes.iter().filter(|volume| volume.state == "error");
    let Some(first) = in_error.next() else {
        return Check::ok(WHAT, format!("{}, none in error", volumes.len()));
    };
    let reason = first.error_reason.as_deref().unwrap_or("no reason is known");
    let others = match in_error.count() {
        0 => String::new(),
        others => format!("; {others} more in error"),
    };
    Check::fail(WHAT, format!("{} is in error: {reason}{others}", first.volume_id), MEND)
}

/// Checks whether the store holds bytes that belong to no volume.
fn unowned(client: &Client) -> Result<Check, Failure> {
    const WHAT: &str = "unowned bytes";
    const CHOOSE: &str = "`evenkeel volume unowned` lists them; take them with `volume adopt`, or \
                          delete them with `volume rm --unowned`";
    let unowned = Unowned::set(&client.call("DescribeUnownedVolumes", &[])?);
    Ok(match unowned.len() {
        0 => Check::ok(WHAT, "none"),
        count => Check::warn(WHAT, format!("of {count} volumes that are not known"), CHOOSE),
    })
}

fn capacity(capacity: &Capacity) -> Check {
    const WHAT: &str = "capacity";
    const LESS: &str = "volumes keep what they have and may get less than they were promised: \
                        modify some down, delete some, or move them to another server";
    let found = capacity.summary().join("; ");
    if !capacity.is_known() {
        Check::warn(WHAT, found, MEASURE)
    } else if capacity.is_short() {
        Check::warn(WHAT, found, LESS)
    } else {
        Check::ok(WHAT, found)
    }
}

fn fio() -> Check {
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
    use super::*;
    use evenkeel_client::capacity::Sold;
    use evenkeel_os::clock::Deadline;

    #[test]
    fn each_check_knows_good_from_bad() {
        use Verdict::{Fail, Ok, Warn};
        let well = StoreHealth::default();
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
            (pool_health(Some(well)), Ok),
            (pool_health(Some(StoreHealth { volumes_salvaged: 1, ..well })), Ok),
            (pool_health(Some(StoreHealth { unfinished: 1, ..well })), Warn),
            (pool_health(Some(StoreHealth { no_space: 1, ..well })), Warn),
            (pool_health(Some(StoreHealth { copies_mended: 1, ..well })), Warn),
            (pool_health(Some(StoreHealth { damaged_sectors: 1, copies_mended: 1, ..well })), Fail),
            (pool_health(None), Warn),
        ] {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert_eq!(check.advice.is_empty(), verdict == Ok, "{check:?}");
        }
    }

    #[test]
    fn what_is_sold_is_told_and_more_than_there_is_warned_of() {
        let sold = |sold, short_by| {
            let line = Sold { sold, for_sale: 10, short_by, ..Sold::default() };
            capacity(&Capacity { sold: vec![line], ..Capacity::default() })
        };
        for (check, verdict) in [
            (sold(10, 0), Verdict::Ok),
            (sold(11, 1), Verdict::Warn),
            (capacity(&Capacity::default()), Verdict::Warn),
        ] {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert_eq!(check.advice.is_empty(), verdict == Verdict::Ok, "{check:?}");
        }
        assert!(sold(11, 1).found.ends_with("that is 1 more than there is"));
    }

    #[test]
    fn a_volume_in_error_is_a_failure_with_its_reason() {
        let volume = |id: &str, state: &str, reason: Option<&str>| VolumeDescription {
            volume_id: id.to_owned(),
            state: state.to_owned(),
            error_reason: reason.map(str::to_owned),
            ..VolumeDescription::default()
        };
        let well = volume("vol-1", "in-use", None);
        assert_eq!(in_error(std::slice::from_ref(&well)).found, "1, none in error");
        let ill = volume("vol-2", "error", Some("there is no file"));
        let check = in_error(&[well, ill.clone(), ill]);
        assert_eq!(check.verdict, Verdict::Fail);
        assert_eq!(check.found, "vol-2 is in error: there is no file; 1 more in error");
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
