//! The fio runner against a real NBD server. Skipped with a message if fio or nbdkit is not
//! installed.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evenkeel_bench::compare::{
    CompareConfig, PeerSize, Transport, compare, nbdkit_file, nbdkit_memory,
};
use evenkeel_lab::LabError;
use evenkeel_lab::fio::{self, Detail, Job, Standing};
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_sim::workload::{Pattern, Workload};
use rustix::process::{Pid, Signal, kill_process};

/// nbdkit on a unix socket, killed when dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn installed() -> bool {
    let runs = |tool: &str| {
        let version = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    let missing: Vec<&str> = ["fio", "nbdkit"].into_iter().filter(|tool| !runs(tool)).collect();
    if !missing.is_empty() {
        let _ = writeln!(
            std::io::stdout(),
            "SKIPPED: {} not installed (apt-get install fio nbdkit)",
            missing.join(" and ")
        );
    }
    missing.is_empty()
}

fn nbdkit(folder: &Path, name: &str, arguments: &[&str]) -> Server {
    let socket = folder.join(name);
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix"]).arg(&socket).args(arguments);
    let child = command.stderr(Stdio::null()).spawn().expect("nbdkit is installed");
    let mut server = Server { child, socket };
    while UnixStream::connect(&server.socket).is_err() {
        assert!(matches!(server.child.try_wait(), Ok(None)), "nbdkit ended: {arguments:?}");
        std::thread::yield_now();
    }
    server
}

fn job(name: &str, server: &Server, workload: Workload) -> Job {
    Job { name: name.to_string(), target: NbdUri::unix(&server.socket, "").into(), workload }
}

#[test]
fn two_volumes_are_measured_at_once_and_every_io_is_counted() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let slow = ["--filter=delay", "memory", "size=64M", "rdelay=5ms", "wdelay=5ms"];
    let fast = nbdkit(folder.path(), "fast", &["memory", "size=64M"]);
    let slow = nbdkit(folder.path(), "slow", &slow);
    let mixed = Workload { read_percent: 70, ..Workload::random_read(16 << 10, 4, 3) };
    let sequential =
        Workload { pattern: Pattern::Sequential, ..Workload::random_write(64 << 10, 2, 2) };
    let jobs = [job("fast one", &fast, mixed), job("slow/1", &slow, sequential)];
    let mut seen = Vec::new();
    let mut progress = |volumes: &[fio::VolumeProgress]| seen.push(volumes.to_vec());
    let run =
        fio::run(&jobs, Detail::EveryIo, Standing::Same, folder.path(), &mut progress).unwrap();

    assert!(run.version.starts_with("fio-"), "{}", run.version);
    assert!(run.command.contains("--ioengine=nbd") && run.command.contains("--rwmixread=70"));
    assert!(!seen.is_empty());
    assert!(seen.iter().all(|volumes| volumes.len() == 2 && volumes[0].name == "fast one"));
    for (measurement, job) in run.measurements.iter().zip(&jobs) {
        assert_eq!((&measurement.name, measurement.workload), (&job.name, job.workload));
        assert_eq!(measurement.error, None);
        let counted = measurement.series.total() + measurement.series.late();
        assert_eq!(counted, measurement.ios_total);
        assert_eq!(measurement.latency.count, measurement.ios_total);
        assert_eq!(measurement.latency_per_second.len(), job.workload.duration_s as usize);
        assert!(measurement.series.per_second().iter().all(|&ios| ios > 0));
    }
    // Two under way of 5 ms each: never more than 400 per second, and a latency that shows the
    // delay.
    let slow = &run.measurements[1];
    assert!(
        slow.series.per_second().iter().all(|&ios| ios <= 402),
        "{:?}",
        slow.series.per_second()
    );
    assert!(slow.latency.p50_ns >= 5_000_000, "{:?}", slow.latency);
    let left = std::fs::read_dir(folder.path()).unwrap().flatten();
    let logs = left.filter(|entry| entry.file_name().to_string_lossy().ends_with(".log"));
    assert_eq!(logs.count(), 0, "the logs are removed");
}

#[test]
fn totals_over_tcp() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = CompareConfig {
        peers: vec![nbdkit_memory(), nbdkit_file()],
        rows: vec![Workload::random_read(4 << 10, 8, 1)],
        transports: vec![Transport::Unix, Transport::Tcp],
        rounds: 1,
        size: PeerSize { mib: 16 },
        folder: folder.path().to_path_buf(),
        memory_folder: folder.path().to_path_buf(),
        deadline: Duration::from_secs(300),
    };
    let mut steps = Vec::new();
    let comparison = compare(&config, &mut |step| steps.push(step.to_string())).unwrap();
    assert_eq!(comparison.cells.len(), 4);
    for cell in &comparison.cells {
        let median = cell.median();
        assert!(median.iops > 0.0 && median.p50_ns > 0, "{cell:?}");
        assert!(median.cpu_s_per_million > 0.0, "{cell:?}");
    }
    let text = comparison.to_string();
    assert!(text.contains("nbdkit file") && text.contains("tcp: median of 1 rounds"), "{text}");
    assert!(steps.iter().any(|step| step.starts_with("round 1")), "{steps:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn failing_volume_is_distinguished_from_its_neighbour() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let broken = ["--filter=error", "memory", "size=16M", "error-pread=EIO", "error-pread-rate=1%"];
    let good = nbdkit(folder.path(), "good", &["memory", "size=16M"]);
    let bad = nbdkit(folder.path(), "bad", &broken);
    let workload = Workload::random_read(4 << 10, 4, 1);
    let jobs = [job("good", &good, workload), job("bad", &bad, workload)];
    let run = fio::run(&jobs, Detail::EveryIo, Standing::Same, folder.path(), &mut |_| {}).unwrap();
    assert_eq!(run.measurements[0].error, None);
    assert!(run.measurements[1].error.is_some());
}

/// The I/Os until then would otherwise count as all that the volume gave.
#[test]
fn terminated_load_gives_no_figure() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = nbdkit(folder.path(), "server", &["memory", "size=16M"]);
    let jobs = [job("ended", &server, Workload::random_read(4 << 10, 1, 20))];
    let logs = format!("{}/v0", folder.path().display());
    let mut told = 0;
    let mut end = |_: &[fio::VolumeProgress]| {
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let words = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            let pid = process.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            if let (true, Some(pid)) = (words.starts_with("fio") && words.contains(&logs), pid) {
                told += u32::from(kill_process(pid, Signal::TERM).is_ok());
            }
        }
    };
    let error =
        fio::run(&jobs, Detail::EveryIo, Standing::Same, folder.path(), &mut end).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LabError::ToolFailed { .. }) && text.contains("128"), "{text}");
    assert!(told > 0);
}

#[test]
fn load_without_a_server_is_an_error_that_says_so() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let workload = Workload::random_read(4 << 10, 1, 1);
    let jobs =
        [Job { name: "gone".to_string(), target: NbdUri::tcp(address, "x").into(), workload }];
    let error =
        fio::run(&jobs, Detail::EveryIo, Standing::Same, folder.path(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, LabError::ToolFailed { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("onnect") && text.contains("try it by hand: fio"), "{text}");
}
