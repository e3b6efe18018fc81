//! Crashes during bursts, devices that stall or become slower, changes under load, and a wall clock
//! that jumps: promises are kept, and faults are reported.

mod support;

use std::time::Duration;
use support::PATIENCE;
use support::clock::{Deadline, Stopwatch, pass};
use support::machine::beside_others;
use support::metrics::Metrics;
use support::nbd::{self, Client};
use support::process::Running;
use support::rates::{Done, at_least_once, at_least_once_beside_others, reads};
use support::server::{FAST, Server};
use support::tools::{absent, fio_result, start_fio};
use support::wall_clock::WallClock;

/// A balance of credits in a server that runs, and the bounds of its later value.
struct Balance {
    left: f64,
    refill_per_second: f64,
    burst_per_second: f64,
}

impl Balance {
    /// Returns the balance of a volume: I/Os or bytes.
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

    /// Returns the balance of a host of type t3.nano, in I/Os: 250 a second, 11,800 for half an
    /// hour.
    #[track_caller]
    fn of_nano(server: &Server, host: &str) -> Self {
        let capacity = f64::from((11_800 - 250) * 1_800);
        let left = Metrics::of(server).sum("host_burst_balance_ratio", &[host, "iops"]) * capacity;
        Self { left, refill_per_second: 250.0, burst_per_second: 11_800.0 }
    }

    /// Checks a balance after a crash, `seconds` after this one. It is at most this one and the
    /// credits earned since, and at least the rest after spending at the fastest rate and losing a
    /// lease of ten seconds.
    #[track_caller]
    fn check(&self, later: &Self, seconds: f64) {
        let most = self.left + self.refill_per_second * seconds + 1.0;
        assert!(later.left <= most, "{} after {}: at most {most}", later.left, self.left);
        let spent = self.burst_per_second * (seconds + 10.05) + 1.0;
        let least = self.left - spent;
        assert!(later.left >= least, "{} after {}: at least {least}", later.left, self.left);
    }
}

/// Returns the id of a new host of this type, at this machine's address.
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
    let _turn = beside_others();
    let mut server = Server::start("");
    let gp2 = server.attached("--type gp2 --size 10");
    let st1 = server.attached("--type st1 --size 125");
    let nano = host(&server, "t3.nano");
    let fast = server.create(FAST);
    attach(&server, &fast, &nano);
    // Half of the credits, so that an increase can be seen.
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
    // All three are far below their beginning, so that a refill would be seen.
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

/// Returns the I/Os of 16 KiB per second that may be sold, by the calibration.
#[track_caller]
fn for_sale(server: &Server) -> u64 {
    let text = server.evenkeel("volume capacity -o json").ok();
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let lines = value["capacity"]["sold"].as_array().cloned().unwrap_or_default();
    let line = lines.iter().find(|line| line["resource"] == "device time");
    line.map_or(0, |line| line["for_sale"].as_u64().expect("a number"))
}

/// Returns whether the calibration found enough to sell, and prints it if not, as on a busy
/// machine.
#[track_caller]
fn sells(server: &Server, iops: u64) -> bool {
    let for_sale = for_sale(server);
    if for_sale < iops {
        println!("the calibration found {for_sale} IOPS to sell of {iops}");
    }
    for_sale >= iops
}

/// Four devices, each with a fifth of its time in pauses of another length.
#[test]
fn a_device_that_stalls_costs_a_reserved_volume_nothing() {
    const IOPS: u64 = 500;
    if absent(&["fio"]) {
        return;
    }
    at_least_once(|| {
        let run = |stall_ms: u32| {
            let device = format!("channels=16,read_us=8000,stall_ms={stall_ms}");
            let server = Server::start(&format!(
                "--calibrate first-start --store faulty:memory,{device},stall_every_ms={}",
                5 * stall_ms
            ));
            if !sells(&server, IOPS) {
                return false;
            }
            let volume = server.attached(&format!("--type io2 --size 10 --iops {IOPS}"));
            let load = reads(&server, &server.unix_uri(&volume), 128, 4);
            let done = Done::by(load);
            println!("stalls of {stall_ms} ms: {done:?}");
            // Each of its requests was answered exactly once.
            let metrics = Metrics::of(&server).sum("read_ops_total", &[&volume]);
            assert!(
                (done.count as f64..=done.count as f64 + 128.0).contains(&metrics),
                "{metrics}"
            );
            done.reaches_percent(98, IOPS)
        };
        std::thread::scope(|scope| {
            let runs = [1, 5, 20, 100].map(|stall_ms| scope.spawn(move || run(stall_ms)));
            // All runs are waited for, even if the first one fails.
            runs.map(|run| run.join().expect("a run")).iter().all(|reached| *reached)
        })
    });
}

/// The counters of volumes at a moment.
struct Moment {
    /// The time of the answer; the query was sent at `asked`.
    seconds: f64,
    asked: f64,
    metrics: Metrics,
    ios: Vec<f64>,
    held_by_device_s: Vec<f64>,
}

impl Moment {
    #[track_caller]
    fn of(server: &Server, volumes: &[&str], watch: Stopwatch) -> Self {
        let asked = watch.seconds();
        let metrics = Metrics::of(server);
        let of_all = |name: &str| volumes.iter().map(|id| metrics.sum(name, &[id])).collect();
        Self {
            asked,
            seconds: watch.seconds(),
            ios: of_all("counted_ios_total"),
            held_by_device_s: of_all("exceeded_device_seconds_total"),
            metrics,
        }
    }

    /// Returns I/Os, and seconds held up by the device, of one volume since `earlier`, each per
    /// second.
    fn rates_since(&self, earlier: &Self, volume: usize) -> (f64, f64) {
        let seconds = self.seconds - earlier.seconds;
        let rate = |now: &[f64], then: &[f64]| (now[volume] - then[volume]) / seconds;
        (rate(&self.ios, &earlier.ios), rate(&self.held_by_device_s, &earlier.held_by_device_s))
    }

    /// Returns whether one volume did at least this share of `per_second` since `earlier`, and
    /// prints it if not. More is a fault, apart from 50 ms of saved tokens and at most 250 ms of
    /// catch-up after waits for the device.
    #[track_caller]
    fn is_within(&self, earlier: &Self, volume: usize, percent: f64, per_second: f64) -> bool {
        let done = self.ios[volume] - earlier.ios[volume];
        let most = per_second * (self.seconds - earlier.asked + 0.3) + 1.0;
        assert!(done <= most, "{done} I/Os of at most {most} at {per_second} IOPS");
        let due = per_second * (self.asked - earlier.seconds);
        let reached = done >= due * percent / 100.0;
        if !reached {
            println!("{done} I/Os of {due} at {per_second} IOPS");
        }
        reached
    }
}

#[test]
fn slower_device_costs_bursts_first_and_is_reported() {
    // The calibration takes three seconds, and two programs start on a machine that may be busy.
    const SLOWER_AT_S: f64 = 12.0;
    if absent(&["fio"]) {
        return;
    }
    at_least_once(|| {
        // The device's time begins after the test's.
        let watch = Stopwatch::start();
        let device =
            format!("channels=8,read_us=4000,device_percent=130,device_percent_at_s={SLOWER_AT_S}");
        let options = format!("--calibrate first-start --store faulty:memory,{device}");
        let mut server = Server::start(&options);
        if !sells(&server, 1_300) {
            return false;
        }
        let sold_at_first = for_sale(&server);
        let reserved = server.attached("--type io2 --size 10 --iops 1000");
        let bursts = server.attached("--type gp2 --size 10");
        let volumes = [reserved.as_str(), &bursts];
        // Deep enough that both have requests waiting, however many the device accepts.
        let loads =
            [&reserved, &bursts].map(|volume| reads(&server, &server.unix_uri(volume), 128, 300));
        let under_way = || Moment::of(&server, &volumes, watch).ios.iter().all(|ios| *ios > 200.0);
        Deadline::after(PATIENCE).ask("both are under way", under_way);
        let begin = Moment::of(&server, &volumes, watch);
        let left = Duration::from_secs_f64((SLOWER_AT_S - watch.seconds()).max(0.2) - 0.1);
        pass(left);
        let fast = Moment::of(&server, &volumes, watch);
        if watch.seconds() > SLOWER_AT_S || fast.seconds - begin.seconds < 1.0 {
            println!("the machine took until {} s to see the fast device", fast.seconds);
            return false;
        }
        // The slower device is detected and reported, and less is sold.
        let noticed = Deadline::after(Duration::from_secs(15)).comes(|| {
            let logged = server.process().logged();
            logged.contains(" times as long as at its calibration")
                && logged.contains("less may be sold than before")
        });
        if !noticed {
            println!("not noticed: {}", server.process().logged());
            return false;
        }
        let noticed = Moment::of(&server, &volumes, watch);
        pass(Duration::from_secs(2));
        let slow = Moment::of(&server, &volumes, watch);
        let sold_in_the_end = for_sale(&server);
        assert!(sold_in_the_end < sold_at_first, "{sold_in_the_end} of {sold_at_first}");
        let io2 = "volume create --type io2 --size 100 --iops";
        let refused = server.evenkeel(&format!("{io2} {}", sold_at_first - 1_101)).fails_with(4);
        assert!(refused.contains("InsufficientVolumeCapacity"), "{refused}");
        assert!(loads.into_iter().all(|mut load| load.is_running()), "a load has ended");

        let rates = |now: &Moment, then: &Moment| [0, 1].map(|of| now.rates_since(then, of));
        let [reserved_fast, burst_fast] = rates(&fast, &begin);
        let [reserved_slow, burst_slow] = rates(&slow, &noticed);
        println!("I/Os and seconds held by the device, a second: reserved {reserved_fast:?}, then");
        println!("{reserved_slow:?}; bursting {burst_fast:?}, then {burst_slow:?}");
        // The device loses 23 % of its rate: the reserved volume loses nothing, the other one half.
        let kept = reserved_slow.0 >= 0.9 * reserved_fast.0;
        let lost = burst_slow.0 <= 0.75 * burst_fast.0;
        // The bursting volume waits for the device all the time, not for its own limit.
        kept && lost && burst_slow.1 > 0.8 && burst_slow.1 > reserved_slow.1
    });
}

/// The sold rates are served until the device halves its speed. From then on each second counts as
/// missed, but only for the volume that requests all of its rate.
#[test]
fn seconds_below_the_sold_rate_are_counted() {
    const SLOWER_AT_S: f64 = 9.0;
    if absent(&["fio"]) {
        return;
    }
    at_least_once(|| {
        let watch = Stopwatch::start();
        let device =
            format!("channels=8,read_us=4000,device_percent=400,device_percent_at_s={SLOWER_AT_S}");
        let options = format!("--calibrate first-start --store faulty:memory,{device}");
        let server = Server::start(&options);
        if !sells(&server, 1_100) {
            return false;
        }
        let asks = server.attached("--type io2 --size 10 --iops 1000");
        let rests = server.attached("--type io2 --size 10 --iops 100");
        let _load = reads(&server, &server.unix_uri(&asks), 64, 300);
        let _other = reads(&server, &server.unix_uri(&rests), 1, 300);
        let counted = |of: &str| {
            let metrics = Metrics::of(&server);
            let sum = |name: &str| metrics.sum(&format!("contract_{name}seconds_total"), &[of]);
            metrics
                .samples
                .keys()
                .any(|series| series.contains("contract_") && series.contains(of))
                .then(|| (sum(""), sum("missed_")))
        };
        let judged = |of: &str, seconds: f64| counted(of).is_some_and(|(of, _)| of >= seconds);
        Deadline::after(PATIENCE).ask("a second is judged", || judged(&asks, 2.0));
        let (seconds, missed) = counted(&asks).expect("it was judged");
        if watch.seconds() > SLOWER_AT_S || missed > 0.0 {
            println!("{missed} of {seconds} seconds missed after {} s", watch.seconds());
            return false;
        }
        pass(Duration::from_secs_f64((SLOWER_AT_S - watch.seconds()).max(0.0)));
        Deadline::after(PATIENCE)
            .ask("seconds are missed", || counted(&asks).is_some_and(|(_, missed)| missed >= 3.0));
        let ratio = Metrics::of(&server).sum("contract_met_ratio", &[&asks]);
        assert!(ratio < 1.0, "{ratio}");
        let (seconds, missed) = counted(&rests).expect("it was used");
        println!("the other: {missed} of {seconds} seconds");
        missed == 0.0
    });
}

#[test]
fn a_reserved_volume_is_modified_under_load_on_a_busy_device() {
    if absent(&["fio"]) {
        return;
    }
    at_least_once(|| {
        let watch = Stopwatch::start();
        // 4,000 IOPS, of which the neighbour may have 3,000 and requests all.
        let device = "--store faulty:memory,channels=8,read_us=2000";
        let server = Server::start(&format!("--calibrate first-start {device}"));
        if !sells(&server, 1_600) {
            return false;
        }
        let volume = server.attached("--type io2 --size 10 --iops 400");
        let neighbour = server.attached("--type gp2 --size 10");
        let volumes = [volume.as_str(), &neighbour];
        let greedy = reads(&server, &server.unix_uri(&neighbour), 128, 300);
        // All written blocks are read and compared.
        let job =
            "--rw=randwrite --bs=16k --size=64m --iodepth=64 --verify=crc32c --verify_fatal=1";
        let verified = start_fio(&server, &server.unix_uri(&volume), job);
        let under_way = || Moment::of(&server, &volumes, watch).ios.iter().all(|ios| *ios > 20.0);
        Deadline::after(PATIENCE).ask("both are under way", under_way);
        let mut reached = true;
        for iops in [400_u32, 1_000, 200] {
            if iops != 400 {
                server.evenkeel(&format!("volume modify {volume} --iops {iops}")).ok();
            }
            let begin = Moment::of(&server, &volumes, watch);
            pass(Duration::from_millis(1_500));
            let end = Moment::of(&server, &volumes, watch);
            reached &= end.is_within(&begin, 0, 85.0, iops.into());
        }
        server.evenkeel(&format!("volume modify {volume} --iops 1500")).ok();
        let job = fio_result(verified);
        let metrics = Metrics::of(&server);
        for (kind, name) in [("read", "read_ops_total"), ("write", "write_ops_total")] {
            assert_eq!(job[kind]["total_ios"], 4_096, "{kind}: {job}");
            assert_eq!(metrics.sum(name, &[&volume]), 4_096.0, "{name}");
        }
        drop(greedy);
        reached
    });
}

#[test]
fn volumes_come_and_go_under_load_on_hosts_with_limits() {
    const HOST_IOPS: f64 = 3_000.0;
    const IOPS: &str = "--type io2 --size 10 --iops 2000";
    if absent(&["fio"]) {
        return;
    }
    let _turn = beside_others();
    let watch = Stopwatch::start();
    let server = Server::start("--store memory");
    let hosts = [host(&server, "i3.large"), host(&server, "m4.large")];
    let staying = [server.create(IOPS), server.create(IOPS)];
    for volume in &staying {
        attach(&server, volume, &hosts[0]);
    }
    let ids = [staying[0].as_str(), &staying[1]];
    let loads = ids.map(|id| reads(&server, &server.unix_uri(id), 32, 4));
    let under_way = || Moment::of(&server, &ids, watch).ios.iter().all(|ios| *ios > 200.0);
    Deadline::after(PATIENCE).ask("both are under way", under_way);
    let begin = Moment::of(&server, &ids, watch);
    let host_ios = |metrics: &Metrics| metrics.sum("host_ios_total", &[&hosts[0]]);
    let host_begin = host_ios(&Metrics::of(&server));

    let moving = server.create(IOPS);
    for round in 0..24_u8 {
        attach(&server, &moving, &hosts[usize::from(round % 2)]);
        let mut client = Client::open(server.nbd, &moving).expect("attached");
        // Data that was written at the previous host is there.
        assert_eq!(client.read(0, 4_096).expect("read"), [round; 4_096]);
        client.write(0, &[round + 1; 4_096]).expect("written");
        // It is detached while requests are under way.
        for cookie in 0..20 {
            client.send(nbd::READ, cookie, 0, 16_384).expect("sent");
        }
        server.evenkeel(&format!("volume detach {moving} --wait")).ok();
        assert!(client.is_closed_by_server(), "round {round}");
        assert!(Client::open(server.nbd, &moving).is_err(), "round {round}: still reached");
    }
    let host_end = host_ios(&Metrics::of(&server));
    let end = Moment::of(&server, &ids, watch);
    // The host's limit applied to all of them together, with 50 ms of saved tokens.
    let most = HOST_IOPS * (end.seconds - begin.asked + 0.05) + 1.0;
    let did = host_end - host_begin;
    assert!(did <= most, "{did} I/Os, at most {most}");
    let done = loads.map(Done::by);
    println!("{done:?}; the host {did} of {most}");
    let [less, more] = [done[0].count.min(done[1].count), done[0].count.max(done[1].count)];
    assert!(less * 10 >= more * 9, "not shared evenly: {done:?}");
    let metrics = Metrics::of(&server);
    for (volume, done) in ids.iter().zip(&done) {
        let metrics = metrics.sum("read_ops_total", &[volume]);
        assert!(
            (done.count as f64..=done.count as f64 + 32.0).contains(&metrics),
            "{metrics}, {done:?}"
        );
    }
}

/// Returns the credits and the I/Os of a gp2 volume of 100 I/Os per second that bursts to 3,000.
#[track_caller]
fn credits_and_ios(server: &Server, gp2: &str, watch: Stopwatch) -> (f64, Moment) {
    let moment = Moment::of(server, &[gp2], watch);
    let ratio = moment.metrics.sum("burst_balance_ratio", &[gp2]);
    (ratio * 5_400_000.0, moment)
}

#[test]
fn a_wall_clock_that_jumps_changes_no_rate_and_no_balance() {
    const REFILL: f64 = 100.0;
    const BURST: f64 = 3_000.0;
    if absent(&["fio", "faketime"]) {
        return;
    }
    at_least_once_beside_others(|| {
        let watch = Stopwatch::start();
        let mut server = Server::start("");
        let clock = WallClock::of(&mut server);
        let gp2 = server.attached("--type gp2 --size 10");
        server.evenkeel(&format!("volume credits {gp2} --set 1000000")).ok();
        let load = reads(&server, &server.unix_uri(&gp2), 64, 300);
        let under_way = || Moment::of(&server, &[&gp2], watch).ios[0] > 200.0;
        Deadline::after(PATIENCE).ask("it is under way", under_way);
        let mut reached = true;
        for offset in ["+400d", "-400d", "+1d", "+0d"] {
            let (balance_before, before) = credits_and_ios(&server, &gp2, watch);
            clock.jump(offset);
            pass(Duration::from_millis(800));
            // The jump is real: new signatures are far in the past or the future.
            if offset != "+0d" {
                let refused = server.evenkeel("volume ls").fails_with(1);
                assert!(refused.contains("RequestExpired"), "{refused}");
            }
            let (balance, now) = credits_and_ios(&server, &gp2, watch);
            reached &= now.is_within(&before, 0, 85.0, BURST);
            // The I/Os were paid for, and the earned credits are those of the elapsed time. Beside
            // the balance, 50 ms of tokens may be saved, once before and once after.
            let earned = balance - balance_before + now.ios[0] - before.ios[0];
            let least = REFILL * (now.asked - before.seconds) - BURST / 20.0 - 1.0;
            let most = REFILL * (now.seconds - before.asked) + BURST / 20.0 + 1.0;
            assert!((least..=most).contains(&earned), "{offset}: {earned} in {least}..={most}");
        }
        drop(load);
        // The server is stopped while the clock is set back: that earns and costs no credits.
        let (before, moment) = credits_and_ios(&server, &gp2, watch);
        server.stop();
        clock.jump("-400d");
        server.restart();
        let (after, later) = credits_and_ios(&server, &gp2, watch);
        let most = before + REFILL * (later.seconds - moment.asked) + 1.0;
        assert!((before - 64.0..=most).contains(&after), "{after} after {before}, at most {most}");
        reached
    });
}

/// Two hosts with limits, each with volumes of its own, and one volume that both have. It could be
/// attached to either, and after a start to none.
#[test]
fn hosts_with_limits_that_share_a_volume_outlive_restarts() {
    let mut server = Server::start("--cores 2");
    let hosts = ["192.0.2.1", "192.0.2.2"].map(|address| {
        let verb = format!("host register --type m5.large --address {address}");
        server.list(&verb)[0]["host_id"].as_str().expect("an id").to_owned()
    });
    // Each on a core of its own, as the first volumes of hosts are placed.
    for nth in 0..12 {
        attach(&server, &server.create("--size 1"), &hosts[nth % 2]);
    }
    let shared = server.create("--type io2 --size 4 --iops 500 --multi-attach");
    hosts.iter().for_each(|host| attach(&server, &shared, host));
    for _ in 0..3 {
        server.stop();
        server.restart();
        let volumes = server.list("volume ls");
        assert_eq!(volumes.len(), 13);
        assert!(volumes.iter().all(|volume| volume["state"] == "in-use"), "{volumes:?}");
    }
}

/// A deleted volume in the recycle bin and a locked snapshot, with a start 30 days ahead and a
/// correction of the clock while the server runs.
#[test]
fn a_start_with_a_clock_that_is_a_month_ahead_empties_no_bin_and_ends_no_lock() {
    if absent(&["faketime"]) {
        return;
    }
    let mut server = Server::start("--recycle-bin-days 7");
    let clock = WallClock::of(&mut server);
    let [deleted, kept] = ["--size 1", "--size 1"].map(|size| server.create(size));
    let create = format!("snapshot create --wait {kept}");
    let snapshot = server.list(&create)[0]["snapshot_id"].as_str().expect("an id").to_owned();
    server.evenkeel(&format!("snapshot lock {snapshot} --mode compliance --days 7")).ok();
    server.evenkeel(&format!("volume rm {deleted}")).ok();
    server.stop();
    clock.jump("+30d");
    server.restart();
    let metrics = Metrics::of(&server);
    let step_s = metrics.single("clock_step_seconds");
    assert!((step_s - 30.0 * 86_400.0).abs() < 600.0, "{step_s}");
    // Some checks for expired items, of which there is one per second.
    pass(Duration::from_secs(3));
    clock.jump("+0d");
    let is_back = || Metrics::of(&server).single("clock_step_seconds") < 0.0;
    Deadline::after(PATIENCE).ask("the clock is back", is_back);
    let bin = server.evenkeel("volume bin -o csv").ok();
    assert!(bin.contains(&deleted), "{bin}");
    let refused = server.evenkeel(&format!("snapshot rm {snapshot}")).fails_with(1);
    assert!(refused.contains("SnapshotLocked"), "{refused}");
    // Changes are accepted although the server started at a later time.
    server.evenkeel(&format!("volume restore {deleted}")).ok();
    server.create("--size 1");
    let log = server.stop();
    for direction in ["ahead", "back"] {
        assert!(log.contains(&format!("s {direction}, or the machine was off")), "{log}");
    }
}
