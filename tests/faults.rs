//! Crashes in the middle of bursts, devices that stall: what was promised is kept.

mod support;

use support::PATIENCE;
use support::clock::{Deadline, Stopwatch};
use support::metrics::Metrics;
use support::nbd::Client;
use support::process::Running;
use support::rates::{Done, at_least_once, reads};
use support::server::{FAST, Server};
use support::tools::{absent, start_fio};

/// A balance of credits in a server that runs, with what it can be worth some time later.
struct Balance {
    left: f64,
    refill_per_second: f64,
    burst_per_second: f64,
}

impl Balance {
    /// Of a volume: I/Os or bytes.
    #[track_caller]
    fn of(server: &Server, volume: &str) -> Self {
        let credits = server.list(&format!("volume credits {volume}")).remove(0);
        let of = |name: &str| credits[name].as_f64().expect("a number");
        Self {
            left: of("balance"),
            refill_per_second: of("refill_per_second"),
            burst_per_second: of("burst_per_second"),
        }
    }

    /// I/Os of a host of type t3.nano: 250 a second, 11,800 for half an hour.
    #[track_caller]
    fn of_nano(server: &Server, host: &str) -> Self {
        let capacity = f64::from((11_800 - 250) * 1_800);
        let left = Metrics::of(server).sum("host_burst_balance_ratio", &[host, "iops"]) * capacity;
        Self { left, refill_per_second: 250.0, burst_per_second: 11_800.0 }
    }

    /// Checks what is left after a crash, `seconds` after this was: at most what was there and what
    /// was earned since; at least what the fastest spending and two unreported seconds leave.
    #[track_caller]
    fn check(&self, later: &Self, seconds: f64) {
        let most = self.left + self.refill_per_second * seconds + 1.0;
        assert!(later.left <= most, "{} after {}: at most {most}", later.left, self.left);
        let spent = self.burst_per_second * (seconds + 2.05) + 1.0;
        let least = self.left - spent;
        assert!(later.left >= least, "{} after {}: at least {least}", later.left, self.left);
    }
}

/// The id of a new host of this type, reached from this machine.
#[track_caller]
fn host(server: &Server, instance_type: &str) -> String {
    let hosts = server.list(&format!("host register --type {instance_type}"));
    hosts[0]["host_id"].as_str().expect("an id").to_owned()
}

#[track_caller]
fn attach(server: &Server, volume: &str, host: &str) {
    server.evenkeel(&format!("volume attach {volume} --host {host} --wait")).ok();
}

#[test]
fn a_crash_in_the_middle_of_bursts_refills_nothing() {
    if absent(&["fio"]) {
        return;
    }
    let mut server = Server::start("");
    let gp2 = server.attached("--type gp2 --size 10");
    let st1 = server.attached("--type st1 --size 125");
    let (nano, fast) = (host(&server, "t3.nano"), server.create(FAST));
    attach(&server, &fast, &nano);
    // 100 GiB of credits would take an hour to spend: half of them are left.
    let full = Balance::of(&server, &st1).left;
    for (volume, half) in [(&gp2, 2_700_000.0), (&st1, (full / 2.0).floor())] {
        server.evenkeel(&format!("volume credits {volume} --set {half}")).ok();
    }
    let now = |server: &Server| {
        [Balance::of(server, &gp2), Balance::of(server, &st1), Balance::of_nano(server, &nano)]
    };
    let begin = now(&server);
    let jobs = ["--rw=randread --bs=4k", "--rw=read --bs=1m", "--rw=randread --bs=4k"];
    let loads: Vec<Running> = [&gp2, &st1, &fast]
        .into_iter()
        .zip(jobs)
        .map(|(volume, job)| {
            let job = format!("{job} --size=1g --time_based --iodepth=16 --runtime=300");
            start_fio(&server, &server.unix_uri(volume), &job)
        })
        .collect();
    // All three are well below where they began: a refill could not be overlooked.
    let spent = [6_000.0, f64::from(40 << 20), 6_000.0];
    Deadline::after(PATIENCE).ask("credits are spent", || {
        let falls = now(&server).into_iter().zip(&begin).map(|(now, then)| then.left - now.left);
        falls.zip(spent).all(|(fell, spent)| fell >= spent)
    });
    let watch = Stopwatch::start();
    let before = now(&server);
    server.kill_9();
    drop(loads);
    server.restart();
    let after = now(&server);
    let seconds = watch.seconds();
    for (before, after) in before.iter().zip(&after) {
        before.check(after, seconds);
    }
    for volume in [&gp2, &st1, &fast] {
        let mut client = Client::open(server.nbd, volume).expect("attached");
        assert_eq!(client.read(0, 512).expect("read"), [0; 512]);
    }
}

/// Four devices, each with a fifth of all time in pauses of another length.
#[test]
fn a_device_that_stalls_costs_a_reserved_volume_nothing() {
    const IOPS: u64 = 1_000;
    if absent(&["fio"]) {
        return;
    }
    at_least_once(|| {
        let run = |stall_ms: u32| {
            let device = format!("channels=16,read_us=4000,stall_ms={stall_ms}");
            let server = Server::start(&format!(
                "--calibrate first-start --store faulty:memory,{device},stall_every_ms={}",
                5 * stall_ms
            ));
            let volume = server.attached(&format!("--type io2 --size 10 --iops {IOPS}"));
            let load = reads(&server, &server.unix_uri(&volume), 128, 5);
            let done = Done::by(load);
            println!("stalls of {stall_ms} ms: {done:?}");
            // Each of its requests was answered, and once.
            let told = Metrics::of(&server).sum("read_ops_total", &[&volume]);
            assert!((done.count as f64..=done.count as f64 + 128.0).contains(&told), "{told}");
            done.reaches_percent(98, IOPS)
        };
        std::thread::scope(|scope| {
            let runs = [1, 5, 20, 100].map(|stall_ms| scope.spawn(move || run(stall_ms)));
            // All are waited for, whatever the first says.
            runs.map(|run| run.join().expect("a run")).iter().all(|reached| *reached)
        })
    });
}
