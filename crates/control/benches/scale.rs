//! The control plane with 100,000 volumes and 200,000 snapshots, over HTTP: pages of lists, changes
//! per second, the start, memory. The data plane answers at once, so the costs are the control
//! plane's.
//!
//! `cargo bench -p evenkeel-control --bench scale [-- VOLUMES SNAPSHOTS]`
//!
//! The server is a process of its own, held to one processor: HTTP, signatures, the model, and the
//! journal on the disk of the temporary folder, where every commit is synced. Times are the
//! client's, from the first byte that it sends to the last that it receives.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a measurement may panic, and measures

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_control::credentials::{self, Credentials};
use evenkeel_control::journal::Journal;
use evenkeel_control::journal::sqlite::SqliteJournal;
use evenkeel_control::model::{
    Attachment, AttachmentState, Event, Host, HostState, Phase, Snapshot, SnapshotPhase, Tags,
    Volume,
};
use evenkeel_control::{ControlConfig, DATABASE_FILE_NAME, Settings, Timeouts};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::Rules;
use evenkeel_telemetry::events::webhook::Webhooks;
use evenkeel_wire::agent::{HostAddress, StoredSnapshot};
use support::client::{Client, text};
use support::{HOSTS, Obedient, ZONE, host_id, now, request, stored};

/// The default sizes.
const VOLUMES: u64 = 100_000;
const SNAPSHOTS: u64 = 200_000;
/// One in this number of volumes is attached.
const ATTACHED: u64 = 10;
/// Number of values of the tag `team`; volumes or snapshots have them in rotation.
const TEAMS: u64 = 1_000;
/// Odd, so that all ids differ. Their order is like that of random ones.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
/// Number of changes of each kind.
const CHANGES: u64 = 4_000;
/// Number of clients that make changes at once.
const CLIENTS: u64 = 16;
/// Number of times that each list is requested.
const ROUNDS: usize = 3;
/// The argument with which this program is the server.
const SERVE: &str = "serve";

/// Returns a snapshot's id by its number.
fn snapshot_id(number: u64) -> SnapshotId {
    SnapshotId::from_bits(u128::from(number + 1).wrapping_mul(SPREAD))
}

/// Returns a volume's id by its number.
fn volume_id(number: u64) -> VolumeId {
    VolumeId::from_bits(u128::from(number + 1).wrapping_mul(SPREAD))
}

fn tags(what: &str, number: u64) -> Tags {
    let pair = |key: &str, value: String| (key.to_owned(), value);
    [
        pair("Name", format!("{what}-{number}")),
        pair("team", format!("team-{}", number % TEAMS)),
        pair("even", number.is_multiple_of(2).to_string()),
    ]
    .into()
}

fn volume(number: u64) -> Volume {
    let spec = Rules::newest().resolve(&request(number)).unwrap();
    let attached = Attachment {
        instance: host_id(number),
        device: format!("/dev/sd{number}"),
        state: AttachmentState::Attached,
        attached: now(),
        delete_on_termination: false,
    };
    Volume {
        phase: Phase::Ready,
        tags: tags("volume", number),
        attachments: number.is_multiple_of(ATTACHED).then_some(attached).into_iter().collect(),
        ..Volume::new(volume_id(number), ZONE, spec, now())
    }
}

fn snapshot(number: u64, volumes: u64) -> Snapshot {
    let of = number % volumes;
    Snapshot {
        phase: SnapshotPhase::Completed { data: ByteCount(1 << 20), ended: now() },
        description: format!("nightly {number}"),
        tags: tags("snapshot", number),
        ..Snapshot::new(snapshot_id(number), volume_id(of), request(of).size_gib, now())
    }
}

/// Stores all objects, as an earlier run of the server would have.
fn fill(path: &Path, volumes: u64, snapshots: u64) {
    let mut journal = SqliteJournal::open(path).unwrap();
    let mut revision = journal.load().unwrap().revision;
    let hosts = (0..HOSTS).map(|number| {
        let last = u8::try_from(number).unwrap() + 1;
        Event::Host(Host {
            id: host_id(number),
            instance_type: "m5.large".into(),
            address: HostAddress::Remote([10, 0, 0, last].into()),
            registered: now(),
            state: HostState::Running,
            tags: Tags::new(),
            zone: None,
        })
    });
    let volume = (0..volumes).map(|number| Event::Volume(volume(number)));
    let snapshot = (0..snapshots).map(|number| Event::Snapshot(snapshot(number, volumes)));
    let mut all = hosts.chain(volume).chain(snapshot);
    loop {
        let batch: Vec<Event> = all.by_ref().take(10_000).collect();
        if batch.is_empty() {
            return;
        }
        revision = journal.commit(&batch.into(), revision).unwrap();
    }
}

/// Serves a data folder until its input ends; the first line of its output is the address.
fn serve(folder: &Path, volumes: u64, snapshots: u64) {
    let stored = (0..snapshots).map(|number| -> StoredSnapshot {
        let of = number % volumes;
        let size = ByteCount(u64::from(request(of).size_gib) << 30);
        stored(snapshot_id(number), volume_id(of), size)
    });
    let agent = Arc::new(Obedient::with_snapshots(stored));
    let config = ControlConfig {
        data_dir: folder.into(),
        listen: "127.0.0.1:0".parse().unwrap(),
        records: None,
        test: None,
        tls: None,
        endpoints: vec![],
        settings: Settings::default(),
        metrics_space: ByteCount(16 << 20),
        webhooks: Webhooks::default(),
        timeouts: Timeouts::default(),
    };
    let (stop, stopped) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = stop.send(());
    });
    println!("memory {}", resident_bytes(std::process::id()));
    let began = Instant::now();
    let ready = |address: SocketAddr| println!("{address} {}", began.elapsed().as_secs_f64());
    evenkeel_control::run(config, agent, || {}, ready, async { stopped.await.unwrap_or(()) })
        .unwrap();
}

fn resident_bytes(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Returns the processor time of a process, in ticks of 10 ms.
fn cpu_ticks(id: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    after.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

struct Server {
    child: Child,
    address: SocketAddr,
    credentials: Credentials,
    start: Duration,
    /// Processor time of the start, in ticks.
    start_ticks: u64,
    /// Resident memory before the control plane was started, which is the data plane's part.
    resident_before: u64,
}

impl Server {
    fn start(folder: &Path, volumes: u64, snapshots: u64) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new("taskset")
            .args(["-c", "0"])
            .arg(program)
            .args([SERVE.as_ref(), folder.as_os_str()])
            .args([volumes.to_string(), snapshots.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let before = lines.next().unwrap().unwrap();
        let resident_before = before.strip_prefix("memory ").unwrap().parse().unwrap();
        let ticks_before = cpu_ticks(child.id());
        let ready = lines.next().unwrap().unwrap();
        let start_ticks = cpu_ticks(child.id()) - ticks_before;
        let (address, seconds) = ready.split_once(' ').unwrap();
        let start = Duration::from_secs_f64(seconds.parse().unwrap());
        let address = address.parse().unwrap();
        let credentials = credentials::load(folder).unwrap();
        Self { child, address, credentials, start, start_ticks, resident_before }
    }

    fn stop(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }

    fn client(&self) -> Client {
        Client::new(self.address, &self.credentials)
    }
}

/// Times, in milliseconds.
struct Times(Vec<f64>);

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times.into_iter().map(|time| time.as_secs_f64() * 1e3).collect())
    }

    fn part(&self, permille: usize) -> f64 {
        self.0[(self.0.len() * permille / 1_000).min(self.0.len() - 1)]
    }
}

/// Requests all pages of a list, and prints how long they took.
fn pages(client: &mut Client, action: &str, filter: &[(&str, &str)], max: &str) {
    let mut runs: Vec<Vec<Duration>> = Vec::new();
    let mut found = 0;
    for _ in 0..ROUNDS {
        let mut token = None::<String>;
        let mut run = Vec::new();
        found = 0;
        loop {
            let page = [("MaxResults", max)];
            let next = token.as_deref().map(|token| ("NextToken", token));
            let params: Vec<_> = page.into_iter().chain(next).chain(filter.to_vec()).collect();
            let (document, time) = client.call(action, &params);
            run.push(time);
            found += document.matches("<tagSet>").count();
            token = text(&document, "nextToken").map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        runs.push(run);
    }
    let lasts = Times::of(runs.iter().map(|run| run[run.len() - 1]).collect());
    let count = runs[0].len();
    let all = Times::of(runs.into_iter().flatten().collect());
    let shown = filter.iter().map(|(_, value)| *value).collect::<Vec<_>>().join("=");
    println!(
        "{action:<18} {shown:<20} {found:>7} {count:>6} {:>8.1} {:>8.1} {:>8.1} {:>8.1}",
        all.part(500),
        all.part(990),
        all.part(1_000),
        lasts.part(500),
    );
}

/// Makes changes with all clients at once, and prints how many complete per second. Returns the ids
/// that `id` names in the replies.
fn changes(
    server: &Server,
    action: &str,
    id: &str,
    params: &(dyn Fn(u64) -> Vec<(String, String)> + Sync),
) -> Vec<String> {
    let next = AtomicU64::new(0);
    let began = Instant::now();
    let ticks = cpu_ticks(server.child.id());
    let mut times = Vec::new();
    let mut ids = Vec::new();
    std::thread::scope(|scope| {
        let work = || {
            let mut client = server.client();
            let mut done = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= CHANGES {
                    return done;
                }
                let params = params(number);
                let params: Vec<_> = params.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                let (document, time) = client.call(action, &params);
                done.push((text(&document, id).unwrap().to_owned(), time));
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        for client in clients {
            for (id, time) in client.join().unwrap() {
                ids.push(id);
                times.push(time);
            }
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let cpu_ms = (cpu_ticks(server.child.id()) - ticks) as f64 * 10.0;
    let times = Times::of(times);
    println!(
        "{action:<18} {:>8.0} {:>10.2} {:>8.1} {:>8.1} {:>8.1}",
        CHANGES as f64 / seconds,
        cpu_ms / CHANGES as f64,
        times.part(500),
        times.part(990),
        times.part(1_000),
    );
    ids
}

fn list_all(server: &Server) {
    let client = &mut server.client();
    println!(
        "\n{:<18} {:<20} {:>7} {:>6} {:>8} {:>8} {:>8} {:>8}",
        "pages of 500", "filter", "found", "pages", "p50 ms", "p99 ms", "max ms", "last ms"
    );
    let by = |name, value| [("Filter.1.Name", name), ("Filter.1.Value.1", value)];
    for (action, status) in [("DescribeVolumes", "in-use"), ("DescribeSnapshots", "completed")] {
        pages(client, action, &[], "500");
        pages(client, action, &by("tag:team", "team-7"), "500");
        pages(client, action, &by("tag:even", "true"), "500");
        pages(client, action, &by("tag:Name", "*-77777"), "500");
        pages(client, action, &by("status", status), "500");
        pages(client, action, &by("status", "error"), "500");
    }
}

fn change_all(server: &Server) {
    println!(
        "\n{:<18} {:>8} {:>10} {:>8} {:>8} {:>8}",
        format!("{CLIENTS} clients"),
        "a second",
        "cpu ms",
        "p50 ms",
        "p99 ms",
        "max ms"
    );
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let made = changes(server, "CreateVolume", "volumeId", &|number| {
        let token = format!("token-{number}");
        vec![
            pair("AvailabilityZone", ZONE),
            pair("Size", "100"),
            pair("VolumeType", "gp3"),
            pair("ClientToken", &token),
        ]
    });
    let at = |number: u64| made[usize::try_from(number).unwrap()].clone();
    changes(server, "ModifyVolume", "volumeId", &|number| {
        vec![pair("VolumeId", &at(number)), pair("Iops", "4000")]
    });
    changes(server, "CreateSnapshot", "snapshotId", &|number| vec![pair("VolumeId", &at(number))]);
    let distinct: BTreeSet<&String> = made.iter().collect();
    assert_eq!(distinct.len(), made.len());
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let numbers: Vec<u64> = arguments.iter().filter_map(|arg| arg.parse().ok()).collect();
    let volumes = numbers.first().copied().unwrap_or(VOLUMES);
    let snapshots = numbers.get(1).copied().unwrap_or(SNAPSHOTS);
    if arguments.get(1).is_some_and(|first| first == SERVE) {
        return serve(Path::new(&arguments[2]), volumes, snapshots);
    }
    let folder = tempfile::tempdir().unwrap();
    fill(&folder.path().join(DATABASE_FILE_NAME), volumes, snapshots);
    Server::start(folder.path(), volumes, snapshots).stop();
    let mut starts: Vec<Server> = Vec::new();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        starts.drain(..).for_each(Server::stop);
        let server = Server::start(folder.path(), volumes, snapshots);
        times.push(server.start);
        starts.push(server);
    }
    let server = starts.pop().unwrap();
    let id = server.child.id();
    let count = (volumes + snapshots) as f64;
    let resident = resident_bytes(id).saturating_sub(server.resident_before);
    println!("{volumes} volumes, {snapshots} snapshots");
    let busy = server.start_ticks as f64 / 100.0;
    println!("start     {:.2} s, {busy:.2} s of a processor", Times::of(times).part(500) / 1e3);
    let mib = resident as f64 / f64::from(1 << 20);
    let each = resident as f64 / count;
    println!("memory    {mib:.0} MiB resident, {each:.0} bytes for each");
    list_all(&server);
    change_all(&server);
    let resident = resident_bytes(id).saturating_sub(server.resident_before);
    println!("\nmemory    {:.0} MiB resident at the end", resident as f64 / f64::from(1 << 20));
    server.stop();
}
