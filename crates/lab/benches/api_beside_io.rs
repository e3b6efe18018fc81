//! Measures the effect of 200 requests per second to the API on a client of a volume of the same
//! server: the 99th percentile of its reads, with the API idle and busy in turn.
//!
//! `cargo bench -p evenkeel-lab --bench api_beside_io`: five minutes, with fio. The server is put
//! together as by `evenkeel serve`, with the store `local` in the folder of temporary files.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a bench measures")]

#[path = "../../control/benches/support/client.rs"]
mod client;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use client::{Client, text};
use evenkeel_control::credentials::{self, Credentials};
use evenkeel_control::{ControlConfig, Settings, SpaceOversell, Timeouts};
use evenkeel_core::units::ByteCount;
use evenkeel_engine::priority::Priority;
use evenkeel_engine::{Engine, EngineConfig, IoMode, UnixAccess};
use evenkeel_lab::fio::{self, Detail, Job, Standing};
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_sim::figures::stats;
use evenkeel_sim::workload::Workload;
use evenkeel_store::local::pool::LocalPool;
use evenkeel_telemetry::events::webhook::Webhooks;

/// Pairs of runs; the medians are printed.
const PAIRS: u32 = 11;
/// Seconds of a run.
const SECONDS: u32 = 6;
/// Requests to the API per second, by all of its clients together.
const RATE: u32 = 200;
const CLIENTS: u32 = 4;
/// Volumes in the answers of the API.
const VOLUMES: u64 = 1_000;
const ZONE: &str = "local-1a";

fn control(data_dir: &Path) -> ControlConfig {
    ControlConfig {
        data_dir: data_dir.into(),
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        endpoints: vec![],
        settings: Settings { space_oversell: SpaceOversell::Unlimited, ..Settings::default() },
        metrics_space: ByteCount(16 << 20),
        webhooks: Webhooks::default(),
        timeouts: Timeouts::default(),
        records: None,
        test: None,
    }
}

/// Returns the nanoseconds that the cores of the data plane have run, and have waited for a
/// processor.
fn core_ns() -> [u64; 2] {
    let mut all = [0, 0];
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.starts_with("core-") {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap();
            for (sum, ns) in all.iter_mut().zip(text.split(' ')) {
                *sum += ns.parse::<u64>().unwrap();
            }
        }
    }
    all
}

/// Calls the API, in turn: six lists, two creations of volumes, two changes. Returns the answer.
fn ask(client: &mut Client, number: u64, made: &str) -> Option<String> {
    let page = [("MaxResults", "100")];
    let one = [("VolumeId.1", made)];
    let tag = [("Filter.1.Name", "tag:team"), ("Filter.1.Value.1", "a"), page[0]];
    match number % 10 {
        0 => client.call("DescribeVolumes", &page),
        1 => client.call("DescribeVolumes", &one),
        2 => client.call("DescribeVolumes", &tag),
        3 => client.call("DescribeSnapshots", &page),
        4 => client.call("DescribeVolumeStatus", &page),
        5 => client.call("DescribeVolumesModifications", &page),
        6 | 7 => {
            let params = [("AvailabilityZone", ZONE), ("VolumeType", "gp3"), ("Size", "10")];
            let (answer, _) = client.call("CreateVolume", &params);
            return text(&answer, "volumeId").map(str::to_owned);
        }
        _ => {
            let iops = (3_001 + number % 1_000).to_string();
            client.call("ModifyVolume", &[("VolumeId", made), ("Iops", &iops)])
        }
    };
    None
}

/// Calls the API at a steady rate until it is asked to stop.
fn keep_asking(address: SocketAddr, keys: &Credentials, stop: &AtomicBool, asked: &AtomicU64) {
    let mut client = Client::new(address, keys);
    let pause = Duration::from_secs(1) * CLIENTS / RATE;
    let mut made = volume(&mut client, 1);
    let mut next = Instant::now();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        made = ask(&mut client, number, &made).unwrap_or(made);
        (number, next) = (number + 1, next + pause);
        asked.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Creates a volume; returns its id.
fn volume(client: &mut Client, size_gib: u32) -> String {
    let size = size_gib.to_string();
    let tag = "TagSpecification.1";
    let kind = format!("{tag}.ResourceType");
    let key = format!("{tag}.Tag.1.Key");
    let value = format!("{tag}.Tag.1.Value");
    let params = [
        ("AvailabilityZone", ZONE),
        ("VolumeType", "gp3"),
        ("Size", &size),
        (&kind, "volume"),
        (&key, "team"),
        (&value, "a"),
    ];
    let (answer, _) = client.call("CreateVolume", &params);
    text(&answer, "volumeId").unwrap().to_owned()
}

/// The results of one run.
struct Run {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    /// Microseconds of a processor that the data plane used for each request.
    busy_us: f64,
    /// Milliseconds that its cores waited for a processor, in each second.
    waited_ms: f64,
    /// Requests to the API in each second.
    asked: f64,
}

struct Bench {
    socket: PathBuf,
    folder: PathBuf,
    address: SocketAddr,
    keys: Credentials,
}

impl Bench {
    fn run(&self, export: &str, is_busy: bool) -> Run {
        let workload =
            Workload { span_mib: Some(64), ..Workload::random_read(16 << 10, 32, SECONDS) };
        let target = NbdUri::unix(&self.socket, export).into();
        let job = Job { name: "reads".to_owned(), target, workload };
        let stop = AtomicBool::new(false);
        let asked = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in (0..CLIENTS).filter(|_| is_busy) {
                scope.spawn(|| keep_asking(self.address, &self.keys, &stop, &asked));
            }
            let before = core_ns();
            let began = Instant::now();
            let output =
                fio::run(&[job], Detail::Totals, Standing::Same, &self.folder, &mut |_| {})
                    .unwrap();
            let seconds = began.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            let after = core_ns();
            let found = &output.measurements[0];
            assert_eq!(found.error, None);
            Run {
                iops: found.ios_total as f64 * 1e3 / found.runtime_ms as f64,
                p50_us: found.latency.p50_ns as f64 / 1e3,
                p99_us: found.latency.p99_ns as f64 / 1e3,
                busy_us: (after[0] - before[0]) as f64 / 1e3 / found.ios_total as f64,
                waited_ms: (after[1] - before[1]) as f64 / 1e6 / seconds,
                asked: asked.load(Ordering::Relaxed) as f64 / seconds,
            }
        })
    }
}

fn median(runs: &[Run], of: impl Fn(&Run) -> f64) -> f64 {
    stats::median(&runs.iter().map(of).collect::<Vec<_>>()).unwrap()
}

fn measure(bench: &Bench) {
    let mut client = Client::new(bench.address, &bench.keys);
    for _ in 0..VOLUMES {
        volume(&mut client, 1);
    }
    let export = volume(&mut client, 100);
    let (hosts, _) = client.call("DescribeInstances", &[]);
    let host = text(&hosts, "instanceId").unwrap().to_owned();
    let attach = [("VolumeId", export.as_str()), ("InstanceId", &host), ("Device", "/dev/sdf")];
    client.call("AttachVolume", &attach);
    let _warm = bench.run(&export, true);
    let mut quiet = Vec::new();
    let mut busy = Vec::new();
    for pair in 0..PAIRS {
        // Each comes first in every second pair.
        for is_busy in [pair % 2 == 0, pair % 2 == 1] {
            let runs = if is_busy { &mut busy } else { &mut quiet };
            runs.push(bench.run(&export, is_busy));
        }
    }
    println!("{PAIRS} pairs of {SECONDS} s; medians");
    println!("API      asked/s    IOPS  p50 us  p99 us  cpu us/IO  waited ms/s");
    for (name, runs) in [("idle", &quiet), ("busy", &busy)] {
        println!(
            "{name:<8} {:>7.0} {:>7.0} {:>7.0} {:>7.0} {:>10.2} {:>12.2}",
            median(runs, |run| run.asked),
            median(runs, |run| run.iops),
            median(runs, |run| run.p50_us),
            median(runs, |run| run.p99_us),
            median(runs, |run| run.busy_us),
            median(runs, |run| run.waited_ms),
        );
    }
    let ratio = |(busy, quiet): (&Run, &Run)| busy.p99_us / quiet.p99_us;
    let mut ratios: Vec<f64> = busy.iter().zip(&quiet).map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let shown: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
    let middle = stats::median(&ratios).unwrap();
    println!("p99, busy of idle: median {middle:.3} of {}", shown.join(" "));
}

fn main() {
    let folder = tempfile::Builder::new().prefix("evenkeel-api-").tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let socket = data.join("nbd.sock");
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    let engine = Engine::start_closed(EngineConfig {
        cores: u16::try_from(cores).unwrap(),
        io: IoMode::Auto,
        priority: Priority::None,
        tcp: vec![],
        unix: Some(socket.clone()),
        unix_access: UnixAccess::default(),
        pool: Arc::new(LocalPool::in_folder(&data, None).unwrap()),
    })
    .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (ready, address) = mpsc::channel();
    let agent = engine.agent();
    let config = control(&data);
    let server = std::thread::spawn(move || {
        let ready = move |address| ready.send(address).unwrap();
        evenkeel_control::run(config, agent, || {}, ready, async { stopped.await.unwrap_or(()) })
    });
    let address = address.recv().unwrap();
    engine.open_doors();
    let keys = credentials::load(&data).unwrap();
    measure(&Bench { socket, folder: folder.path().into(), address, keys });
    stop.send(()).unwrap();
    server.join().unwrap().unwrap();
    engine.shutdown();
}
