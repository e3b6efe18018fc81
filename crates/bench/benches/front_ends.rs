//! Compares the costs of a file that is an NBD export: nbdfuse's beside that of this crate's
//! stripe, in turn, with the same server below and the same file system and program above.
//!
//! `cargo bench -p evenkeel-bench --bench front_ends`, as root: two minutes, on a machine without
//! other load.
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use evenkeel_bench::mounts::{self, FileSystem, Frontend, MountStack};
use evenkeel_bench::stripe::Member;
use evenkeel_bench::sysbench::Test;
use evenkeel_lab::child::Guarded;
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_sim::figures::stats;

/// Runs of each; their median is printed.
const PAIRS: u64 = 5;

/// Returns the nanoseconds that threads of this name have spent on a processor, in all processes.
fn busy_ns(name: &str) -> u64 {
    let below = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let tasks = below(Path::new("/proc")).flat_map(|process| below(&process.path().join("task")));
    let of_name = tasks.map(|task| task.path()).filter(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    let ns = |task: &Path| {
        let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
    };
    of_name.map(|task| ns(&task)).sum()
}

/// Returns IOPS, mean latency in ms, 95th percentile in ms, and the frontend's processor time for
/// each request in microseconds.
fn measure(folder: &Path, front: Frontend<'_>, thread: &str, test: &Test) -> [f64; 4] {
    fs::create_dir_all(folder).unwrap();
    let stack = MountStack::open(folder, &[front], FileSystem::Xfs).unwrap();
    test.prepare(stack.path()).unwrap();
    let before = busy_ns(thread);
    let output = test.run(stack.path()).unwrap();
    let busy_us = (busy_ns(thread) - before) as f64 / 1e3;
    let seconds = (test.duration_s - 1) as f64;
    let latency = output.latency_of_rest();
    let all = output.latency.count as f64;
    let iops = output.rest.events as f64 / seconds;
    [iops, latency.mean_ns as f64 / 1e6, output.rest.p95_ms, busy_us / all]
}

fn main() {
    if let Some(why) = mounts::probe() {
        println!("front_ends: nothing is measured: {why}");
        return;
    }
    let folder = tempfile::Builder::new().prefix("evenkeel-front-").tempdir().unwrap();
    let socket = folder.path().join("s");
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix"]).arg(&socket).args(["memory", "1G"]);
    let _server = Guarded::spawn(command.stdout(Stdio::null()), "nbdkit").unwrap();
    while UnixStream::connect(&socket).is_err() {
        std::thread::yield_now();
    }
    let uri = NbdUri::unix(&socket, "");
    let members = [Member { socket: &socket, export: "" }];
    let fronts = [
        ("nbdfuse", Frontend::Nbdfuse(&uri), "nbdfuse"),
        ("our own", Frontend::Stripe { members: &members, chunk_bytes: 64 << 10 }, "stripe"),
    ];
    for read_percent in [100, 0, 60] {
        let mut rows: [Vec<[f64; 4]>; 2] = [Vec::new(), Vec::new()];
        let test = |seed| Test {
            files: 16,
            total_mib: 256,
            threads: 16,
            sequential: false,
            read_percent,
            duration_s: 4,
            seed,
        };
        for pair in 0..PAIRS {
            for (nth, (name, front, thread)) in fronts.iter().enumerate() {
                let below = folder.path().join(format!("{name}-{read_percent}-{pair}"));
                rows[nth].push(measure(&below, *front, thread, &test(pair)));
            }
        }
        for ((name, ..), rows) in fronts.iter().zip(&rows) {
            let of = |figure: usize| {
                let values: Vec<f64> = rows.iter().map(|row| row[figure]).collect();
                stats::median(&values).unwrap_or_default()
            };
            let iops = of(0);
            let mean_ms = of(1);
            let p95_ms = of(2);
            let busy_us = of(3);
            println!(
                "{} {name}: {iops:.0} IOPS, {mean_ms:.2} ms, 95 % within {p95_ms:.2} ms, \
                 {busy_us:.1} us of a processor for each",
                test(0).mode()
            );
        }
        let ratios: Vec<f64> =
            rows[1].iter().zip(&rows[0]).map(|(own, other)| own[0] / other[0]).collect();
        println!(
            "{}: our own / nbdfuse {:.2} IOPS (median of pairs)",
            test(0).mode(),
            stats::median(&ratios).unwrap_or_default()
        );
    }
}
