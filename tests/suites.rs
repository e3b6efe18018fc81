//! The published experiments in their short live form, what is kept of them, and what a run leaves
//! behind: nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;
use support::clock::Deadline;
use support::process::{Output, Running, run, start};
use support::rates::{Came, alone, at_least_once, at_least_once_or_undecided};
use support::server::evenkeel;
use support::tools::absent;

/// `evenkeel bench` in a folder that is its own: results and temporary files lie in it.
fn bench(folder: &Path, words: &[&str]) -> std::process::Command {
    let mut command = evenkeel(folder);
    command.env("TMPDIR", folder).env("EVENKEEL_RESULTS", folder.join("results"));
    command.arg("bench").args(words);
    command
}

/// Longest run of a suite in this file; a test is given up by then.
const RUN_MAX: Duration = Duration::from_secs(240);

/// Runs what takes longer than other programs may.
fn run_long(mut command: std::process::Command) -> Output {
    let mut running = start(&mut command);
    assert!(Deadline::after(RUN_MAX).comes(|| !running.is_running()), "{command:?}");
    running.finish()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// What the kernel tells of mounts and loop devices below a folder.
fn mounts(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = folder.display().to_string();
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let files = devices
        .filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    let lines = text.lines().map(str::to_owned);
    // Whose file system is gone has no path below any folder.
    let is_meant = |line: &String| line.contains(&below) || line.trim_end() == "/nbd";
    lines.chain(files).filter(is_meant).collect()
}

/// Where the processes of a database work that are in folders below this one.
fn databases(folder: &Path) -> Vec<String> {
    databases_that(folder, |_| true)
}

/// Of those that serve: none that only makes a folder first.
fn serving(folder: &Path) -> Vec<String> {
    databases_that(folder, |words| !words.contains("--boot"))
}

fn databases_that(folder: &Path, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let place = |process: std::fs::DirEntry| {
        let program = std::fs::read_link(process.path().join("exe")).ok()?;
        let place = std::fs::read_link(process.path().join("cwd")).ok()?;
        let is_one = ["postgres", "mariadbd"].iter().any(|name| program.ends_with(name));
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let is_ours = is_one && place.starts_with(folder);
        (is_ours && is_meant(&String::from_utf8_lossy(&words))).then(|| place.display().to_string())
    };
    processes.filter_map(place).collect()
}

#[test]
fn suites_and_results_are_listed_and_what_is_not_there_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let listed = json(&run(&mut bench(folder.path(), &["ls", "-o", "json"])));
    assert_eq!(listed["schema"], "evenkeel.bench/1");
    let names: Vec<&str> = listed["benchmarks"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|b| b["name"].as_str())
        .collect();
    for name in [
        "burst-and-stripe",
        "stripe-consistency",
        "five-minute-job",
        "batch-beside-oltp",
        "desktop-suite",
        "limits",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let text = run(&mut bench(folder.path(), &["run", "burst-and-strip"])).fails_with(3);
    assert!(text.contains("did you mean \"burst-and-stripe\"?"), "{text}");
    let text = run(&mut bench(folder.path(), &["show", "burst-and-stripe"])).fails_with(3);
    assert!(text.contains("hint: `evenkeel bench ls` lists them"), "{text}");
    std::fs::write(folder.path().join("x.json"), "{\"schema\": 1}").unwrap();
    let path = folder.path().join("x.json").display().to_string();
    let text = run(&mut bench(folder.path(), &["show", &path])).fails_with(1);
    assert!(text.contains("not a report of this version"), "{text}");
}

/// A case of `burst-and-stripe` with one gp2 volume.
const ONE_GP2: &str = "gp2 1 x 500 behind";

/// A hundredth of the article's time: the fall at the hour comes after 36 s.
#[test]
fn a_burst_ends_when_the_article_says() {
    if absent(&["fio"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let words = ["run", "burst-and-stripe", "--live", "--only", ONE_GP2, "-o", "json"];
    at_least_once(|| {
        let output = run_long(bench(folder.path(), &words));
        let found = json(&output);
        let rows = found["rows"].as_array().unwrap();
        let counted = rows.iter().find(|row| row["id"] == "4.18").unwrap();
        // Both ends count exactly, however busy the machine is.
        assert_eq!(counted["live"]["value"], 1.0, "{counted}");
        assert_eq!(found["schema"], "evenkeel-result/1");
        let configuration = &found["live"]["configurations"][0];
        let samples = configuration["runs"][0]["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 40, "{configuration}");
        let between = |from: usize, to: usize| {
            let ios: u64 = samples[from..to].iter().filter_map(Value::as_u64).sum();
            ios as f64 / (to - from) as f64
        };
        (between(1, 35) - 3_000.0).abs() < 60.0 && (between(38, 40) - 1_500.0).abs() < 30.0
    });
    let shown = run(&mut bench(folder.path(), &["show", "burst-and-stripe"])).ok();
    assert!(shown.contains("gated figures"), "{shown}");
    let compared = run(&mut bench(
        folder.path(),
        &["compare", "burst-and-stripe", "burst-and-stripe", "-o", "json"],
    ));
    let compared = json(&compared);
    assert_eq!(compared["rows"][0]["ratio"], 1.0, "{compared}");
    let kept = std::fs::read_dir(folder.path().join("results")).unwrap();
    let pages = kept.filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|end| end == "html"))
    });
    assert!(pages.count() >= 1, "a report lies beside the result");
    let charts = folder.path().join("charts");
    let words = ["show", "burst-and-stripe", "--svg", charts.to_str().unwrap()];
    run(&mut bench(folder.path(), &words)).ok();
    let charts = std::fs::read_dir(&charts).unwrap().map(|entry| entry.unwrap().path());
    let charts: Vec<String> = charts.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    assert!(charts.len() >= 2 && charts.iter().all(|chart| chart.starts_with("<svg ")));
}

/// Whether the points of these names were kept for real.
fn are_kept(found: &Value, ids: &[&str]) -> bool {
    let rows = found["rows"].as_array().unwrap();
    let is_kept = |id: &&str| {
        let row = rows.iter().find(|row| row["id"] == **id).unwrap();
        println!("{id}: {}", row["live"]);
        row["live"]["pass"] == Value::Bool(true)
    };
    ids.iter().all(is_kept)
}

/// Twice the link is twice the rate, and both ways at once are more than one: of sysbench itself on
/// an XFS on ten volumes where the machine allows mounts, else of its requests.
#[test]
fn a_stripe_gets_what_its_link_carries() {
    if absent(&["fio", "sysbench"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let words = ["run", "stripe-consistency", "--live", "--only", "m1.large rnd"];
    let words = [&words[..], &["--runs", "1", "-o", "json"]].concat();
    at_least_once(|| {
        let output = run_long(bench(folder.path(), &words));
        let found = json(&output);
        assert_eq!(mounts(folder.path()), Vec::<String>::new());
        let commands = found["live"]["commands"].as_array().unwrap();
        let ran = |program: &str| commands.iter().any(|line| line.to_string().contains(program));
        let is_skipped = output.stderr.contains("skipped: no file systems");
        assert_eq!(ran("sysbench fileio"), !is_skipped, "{output}");
        are_kept(&found, &["0.5", "0.9", "0.16, m1.large"])
    });
}

#[test]
fn a_stripe_without_mounts_is_ten_volumes_side_by_side() {
    if absent(&["fio"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let words = ["run", "stripe-consistency", "--live", "--only", "m1.large rndrd"];
    let words = [&words[..], &["--runs", "1", "--no-mount", "-o", "json"]].concat();
    at_least_once(|| {
        let found = json(&run_long(bench(folder.path(), &words)));
        let command = found["live"]["commands"][0].as_str().unwrap();
        assert_eq!(command.matches("ioengine=nbd").count(), 10, "{command}");
        are_kept(&found, &["0.5", "0.16, m1.large"])
    });
}

/// What fio gets of five volumes through a btrfs is less than they do, and never more.
#[test]
fn a_btrfs_on_five_volumes_does_more_than_fio_asks_for() {
    if absent(&["fio", "mkfs.btrfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let words = ["run", "burst-and-stripe", "--live", "--only", "btrfs 5", "-o", "json"];
    at_least_once(|| {
        let output = run_long(bench(folder.path(), &words));
        let found = json(&output);
        assert_eq!(mounts(folder.path()), Vec::<String>::new());
        if output.stderr.contains("skipped: no file systems") {
            return true;
        }
        let storage = found["live"]["storage"].to_string();
        assert!(storage.contains("mkfs.btrfs -f -K -d raid0 -m raid0"), "{storage}");
        let rows = found["rows"].as_array().unwrap();
        let counted = rows.iter().find(|row| row["id"] == "4.18, btrfs").unwrap();
        println!("{counted}");
        let share = counted["live"]["value"].as_f64().unwrap();
        // Both ends count exactly, however busy the machine is.
        assert!(share <= 1.0, "fio has what no volume did: {counted}");
        let samples = found["live"]["configurations"][0]["runs"][0]["samples"].clone();
        let samples: Vec<u64> =
            samples.as_array().unwrap().iter().filter_map(Value::as_u64).collect();
        let (before, after) = (&samples[1..19], &samples[22..]);
        let rate = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len() as f64;
        println!("{} before the fall, {} after it", rate(before), rate(after));
        assert!(rate(before) <= 1_530.0, "more than five bursts");
        share > 0.5 && rate(before) > 4.0 * rate(after)
    });
}

/// With IOPS that are provisioned, nobody notices the batch.
#[test]
fn a_log_does_not_wait_for_a_batch_on_provisioned_iops() {
    if absent(&["fio"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let words = ["run", "batch-beside-oltp", "--live", "--only", "io1", "-o", "json"];
    at_least_once(|| {
        let found = json(&run_long(bench(folder.path(), &words)));
        let rows = found["rows"].as_array().unwrap();
        let log = rows.iter().find(|row| row["id"] == "2.13, log").unwrap();
        log["live"]["pass"] == Value::Bool(true)
    });
}

/// A folder that everybody may pass: PostgreSQL does not run as root.
fn open_folder() -> tempfile::TempDir {
    let mode = Permissions::from_mode(0o755);
    tempfile::Builder::new().permissions(mode).tempdir().unwrap()
}

/// The databases of the suite.
const DATABASES: [&str; 2] = ["PostgreSQL", "MariaDB"];

/// Whether nothing can be said of a database here, which a run has told.
fn has_no_database(output: &Output) -> bool {
    DATABASES.iter().any(|name| output.stderr.contains(&format!("skipped: no {name}")))
}

/// Without credits a real database gets what its volume gives, and its log waits like all else.
#[test]
fn a_real_postgresql_waits_for_a_batch_once_its_credits_are_gone() {
    waits_for_a_batch("PostgreSQL");
}

#[test]
fn a_real_mariadb_waits_for_a_batch_once_its_credits_are_gone() {
    waits_for_a_batch("MariaDB");
}

fn waits_for_a_batch(name: &str) {
    if absent(&["fio"]) {
        return;
    }
    let folder = open_folder();
    let case = format!("{name} on gp2");
    let words = ["run", "batch-beside-oltp", "--live", "--only", &case, "-o", "json"];
    at_least_once(|| {
        let output = run_long(bench(folder.path(), &words));
        assert_eq!(mounts(folder.path()), Vec::<String>::new());
        assert_eq!(databases(folder.path()), Vec::<String>::new());
        if has_no_database(&output) {
            return true;
        }
        let found = json(&output);
        let configurations = found["live"]["configurations"].as_array().unwrap();
        let run_of = |client: &str| {
            let name = format!("{case} · {client}");
            let known = configurations.iter().find(|of| of["name"] == name.as_str());
            &known.unwrap_or_else(|| panic!("no {name}"))["runs"][0]
        };
        for client in ["oltp", "log", "batch", "transactions"] {
            let run = run_of(client);
            assert!(run["ios"].as_u64().unwrap() > 0, "{client}: {run}");
            // sysbench tells no times of each second.
            if (name, client) != ("MariaDB", "transactions") {
                let latencies = run["mean_latency_ns"].as_array().unwrap();
                assert_eq!(latencies.len(), 52, "{client}: {run}");
            }
        }
        let samples = run_of("volume")["samples"].as_array().unwrap();
        let late: u64 = samples[38..50].iter().filter_map(Value::as_u64).sum();
        // A second of saved credits, and one for a look that came late.
        assert!(late <= 14 * 501, "more than the volume gives without credits: {samples:?}");
        let row = |id: &str| found["rows"].as_array().unwrap().iter().find(|row| row["id"] == id);
        [format!("2.3, {name} IOPS"), format!("2.8, {name}")].iter().all(|id| {
            let live = &row(id).unwrap()["live"];
            println!("{id}: {live}");
            live["pass"] == Value::Bool(true)
        })
    });
}

/// With root and FUSE on an ext4, without them directly: three device writes for each call.
#[test]
fn a_job_s_calls_are_three_device_writes_each_and_nothing_stays_mounted() {
    let folder = tempfile::tempdir().unwrap();
    let _alone = alone();
    at_least_once_or_undecided(|| {
        // Twice: a mean says more than one pass.
        let words = ["run", "five-minute-job", "--live", "--only", "provisioned"];
        let words = [&words[..], &["--runs", "2", "-o", "json"]].concat();
        let found = json(&run_long(bench(folder.path(), &words)));
        let rows = found["rows"].as_array().unwrap();
        let row = |id: &str| rows.iter().find(|row| row["id"] == id).unwrap();
        let counted = &row("1.1, writes")["live"];
        assert_eq!(counted["pass"], true, "{counted}");
        let flushes = &row("1.1, flushes")["live"];
        let programs = found["programs"].to_string();
        // Without a file system nobody flushes, and no program was used.
        assert_eq!(flushes.is_null(), !programs.contains("mkfs.ext4: mke2fs 1."), "{programs}");
        assert!(flushes.is_null() || flushes["pass"] == true, "{flushes}");
        assert_eq!(mounts(folder.path()), Vec::<String>::new());
        let timed = ["1.1, 100", "1.2", "1.4"].map(row);
        for row in timed {
            println!("{}: {} {}", row["id"], row["live"], found["busy"]);
        }
        if timed.iter().all(|row| row["live"]["pass"] == true) {
            return Came::Good;
        }
        // A machine that stands still again and again is no fault of a volume.
        let is_told =
            timed.iter().all(|row| row["live"]["pass"] == true || row["is_unsafe"] == true);
        if is_told { Came::Undecided } else { Came::Short }
    });
}

/// With root and FUSE the programs themselves, without them their requests: IOPS bind the file
/// server, the link binds large blocks.
#[test]
fn desktop_programs_get_what_their_volume_and_its_link_give() {
    if absent(&["fio", "sqlite3", "fs_mark"]) {
        return;
    }
    let folder = open_folder();
    let words = ["run", "desktop-suite", "--live", "--only", "M1", "--runs", "1", "-o", "json"];
    at_least_once(|| {
        let output = run_long(bench(folder.path(), &words));
        let found = json(&output);
        assert_eq!(mounts(folder.path()), Vec::<String>::new());
        assert_eq!(databases(folder.path()), Vec::<String>::new());
        assert_eq!(found["failures"], Value::Null, "{output}");
        let configurations = found["live"]["configurations"].as_array().unwrap();
        let rate = |test: &str| {
            let name = format!("M1 · {test}");
            let known = configurations.iter().find(|of| of["name"] == name.as_str());
            let rate = known.unwrap_or_else(|| panic!("no {name}"))["iops"]["mean"].as_f64();
            println!("{test}: {rate:?}");
            rate.unwrap()
        };
        for test in ["SQLite", "TIO write", "FS-Mark"] {
            assert!(rate(test) > 0.0);
        }
        // A transaction's log is written before the next begins.
        assert!(has_no_database(&output) || (1.0..1_050.0).contains(&rate("pgbench")));
        // 33.75 MB a second are 257 requests of 128 KiB; a saved 50 ms' worth is 3 % of the 2 s.
        let (read, written) = (rate("IOzone read"), rate("IOzone write"));
        assert!(read < 275.0 && written < 275.0, "more than the link carries");
        // A saved 50 ms' worth is 0.7 % of the 7 s.
        let server = rate("fio");
        assert!(server < 1_020.0, "more than the volume is provisioned with");
        read > 225.0 && written > 225.0 && server > 960.0
    });
}

/// Each comes to a rate, none makes more than the link carries, and nothing is left of them.
#[test]
fn desktop_programs_that_take_longer_come_to_their_end() {
    if absent(&["dbench", "tar", "bzip2", "ab"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let words = ["run", "desktop-suite", "--live", "--only", "longer S1", "--runs", "1"];
    let words = [&words[..], &["-o", "json"]].concat();
    let output = run_long(bench(folder.path(), &words));
    if output.stderr.contains("skipped: no file systems") {
        return;
    }
    let found = json(&output);
    assert_eq!(found["failures"], Value::Null, "{output}");
    assert_eq!(mounts(folder.path()), Vec::<String>::new());
    let configurations = found["live"]["configurations"].as_array().unwrap();
    let rate = |test: &str| {
        let name = format!("longer S1 · {test}");
        let known = configurations.iter().find(|of| of["name"] == name.as_str());
        known.unwrap_or_else(|| panic!("no {name}"))["iops"]["mean"].as_f64().unwrap()
    };
    for test in ["Dbench 48", "Trees read", "Unpack", "Apache"] {
        assert!(rate(test) > 0.0, "{test}");
    }
    for test in ["Trees create", "Trees compile"] {
        // 33.75 MB a second, and a saved 50 ms' worth of two seconds.
        assert!((0.1..36.0).contains(&rate(test)), "{test}: {} MB/s", rate(test));
    }
}

/// A program called so that does as the script says, first on the `PATH` of a run.
fn with_program(mut command: std::process::Command, name: &str, script: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", folder.path().display()));
    run_long(command)
}

/// One that fails, and one that has done nothing in its time.
#[test]
fn a_program_that_fails_is_told_and_the_others_go_on() {
    if absent(&["fio", "dbench", "postmark"]) {
        return;
    }
    let words = ["run", "desktop-suite", "--live", "--only", "others S2", "--runs", "1"];
    let words = [&words[..], &["-o", "json"]].concat();
    for (script, why) in [
        ("echo no room >&2; exit 7", "no room"),
        ("echo Throughput 0 MB/sec", "no throughput in Some("),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = with_program(bench(folder.path(), &words), "dbench", script);
        if output.stderr.contains("skipped: no file systems") {
            return;
        }
        assert_eq!(output.status.code(), Some(1), "{output}");
        assert!(output.stderr.contains("2 runs or programs failed."), "{output}");
        let found = json(&output);
        let failures: Vec<&str> =
            found["failures"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let [one, twelve] = failures[..] else { panic!("{failures:?}") };
        assert!(one.starts_with("others S2 (1): Dbench 1: ") && one.contains(why), "{one}");
        assert!(twelve.contains("Dbench 12: ") && twelve.contains(why), "{twelve}");
        assert_eq!(found["pass"], false);
        let configurations = found["live"]["configurations"].as_array().unwrap();
        let rate = |test: &str| {
            let name = format!("others S2 · {test}");
            let known = configurations.iter().find(|of| of["name"] == name.as_str())?;
            known["iops"]["mean"].as_f64()
        };
        assert_eq!(rate("Dbench 12"), None, "what came to nothing has no rate");
        assert!(rate("PostMark").unwrap() > 0.0 && rate("Gzip").unwrap() > 0.0);
        assert_eq!(mounts(folder.path()), Vec::<String>::new());
    }
}

/// A run that takes down what an earlier one has left, and then finds no file system to work on.
const NEXT: &[&str] =
    &["run", "desktop-suite", "--live", "--only", "others S2", "--runs", "1", "--no-mount"];

/// What the kernel tells of the file system of a run.
const MOUNTED: &str = "/mnt ";

/// Runs that mount: nbdfuse's file, a striped one that the program itself serves, and five of it.
const MOUNTING: [&[&str]; 3] = [
    &["run", "five-minute-job", "--live", "--runs", "1"],
    &["run", "stripe-consistency", "--live", "--runs", "1", "--only", "m1.large rndrw"],
    &["run", "burst-and-stripe", "--live", "--only", "btrfs 5"],
];

/// Starts a run and waits until the kernel tells of something that it sets up; none where there is
/// no root or no FUSE, which it must have said.
fn run_with(folder: &Path, words: &[&str], sign: &str) -> Option<Running> {
    let mut running = start(&mut bench(folder, words));
    let mounted = Deadline::after(Duration::from_secs(60))
        .comes(|| !running.is_running() || mounts(folder).iter().any(|line| line.contains(sign)));
    if mounted && running.is_running() {
        return Some(running);
    }
    let output = running.finish();
    assert!(output.stderr.contains("skipped: no file systems"), "{output}");
    None
}

/// Without a file system the stand-in goes on, and the run says what it leaves out.
#[test]
fn a_run_that_may_not_mount_leaves_its_databases_out_aloud() {
    let folder = tempfile::tempdir().unwrap();
    for name in DATABASES {
        let words = ["run", "batch-beside-oltp", "--live", "--no-mount", "--only", name];
        let text = run(&mut bench(folder.path(), &words)).fails_with(2);
        assert!(text.contains(&format!("skipped: no {name}: ")), "{text}");
        assert!(text.contains("what was chosen of batch-beside-oltp has a database"), "{text}");
    }
}

/// Starts a run with a database and waits until its server works; none where it cannot. A
/// PostgreSQL that serves has several processes, a MariaDB has one.
fn database_run(folder: &Path, name: &str) -> Option<Running> {
    let case = format!("{name} on io1");
    let words = ["run", "batch-beside-oltp", "--live", "--only", &case];
    let mut running = start(&mut bench(folder, &words));
    let processes = if name == "PostgreSQL" { 4 } else { 1 };
    let works = Deadline::after(Duration::from_secs(60))
        .comes(|| !running.is_running() || serving(folder).len() >= processes);
    if works && running.is_running() {
        return Some(running);
    }
    let output = running.finish();
    assert!(has_no_database(&output), "{output}");
    None
}

#[test]
fn a_database_is_stopped_when_its_run_is_interrupted() {
    let _alone = alone();
    for name in DATABASES {
        let folder = open_folder();
        let Some(running) = database_run(folder.path(), name) else { continue };
        running.signal(Signal::INT);
        let output = running.finish();
        assert!(!output.status.success(), "{output}");
        assert_eq!(databases(folder.path()), Vec::<String>::new(), "{output}");
        assert_eq!(mounts(folder.path()), Vec::<String>::new(), "{output}");
        assert!(!output.stderr.contains("left behind"), "{output}");
    }
}

/// The server of a run that is killed goes on without a volume. The next run stops it.
#[test]
fn a_database_that_a_killed_run_left_is_stopped_by_the_next() {
    let _alone = alone();
    for name in DATABASES {
        let folder = open_folder();
        let Some(killed) = database_run(folder.path(), name) else { continue };
        killed.kill_9();
        assert!(!mounts(folder.path()).is_empty(), "nobody took it down");
        let output = run_long(bench(folder.path(), NEXT));
        assert!(output.stderr.contains("an earlier run had left"), "{output}");
        assert_eq!(databases(folder.path()), Vec::<String>::new(), "{output}");
        assert_eq!(mounts(folder.path()), Vec::<String>::new(), "{output}");
    }
}

#[test]
fn a_run_that_is_interrupted_unmounts_before_it_ends() {
    if absent(&["nbdfuse", "fusermount3", "sysbench", "mkfs.xfs", "mkfs.btrfs"]) {
        return;
    }
    let _alone = alone();
    // By a program that knows its number, and by Ctrl-C.
    for (words, is_terminal) in MOUNTING.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let folder = tempfile::tempdir().unwrap();
        let Some(running) = run_with(folder.path(), words, MOUNTED) else { return };
        match is_terminal {
            true => running.signal_group(Signal::INT),
            false => running.signal(Signal::INT),
        }
        let output = running.finish();
        assert!(!output.status.success(), "{output}");
        assert_eq!(mounts(folder.path()), Vec::<String>::new(), "{output}");
        assert!(!output.stderr.contains("left behind"), "{output}");
    }
}

/// A run that is killed in the middle leaves a mount on a server that is gone. The next one takes
/// it down.
#[test]
fn what_a_killed_run_left_mounted_is_taken_down_by_the_next() {
    if absent(&["nbdfuse", "fusermount3", "sysbench", "mkfs.xfs", "mkfs.btrfs"]) {
        return;
    }
    let _alone = alone();
    for words in MOUNTING {
        let folder = tempfile::tempdir().unwrap();
        let Some(killed) = run_with(folder.path(), words, MOUNTED) else { return };
        killed.kill_9();
        assert!(!mounts(folder.path()).is_empty(), "nobody took it down");
        let words = ["run", "burst-and-stripe", "--live", "--only", "no such case"];
        let text = run(&mut bench(folder.path(), &words)).fails_with(2);
        assert!(text.contains("there are \"gp2 1 x 500\""), "{text}");
        let output = run_long(bench(folder.path(), NEXT));
        assert!(output.stderr.contains("an earlier run had left"), "{output}");
        assert_eq!(mounts(folder.path()), Vec::<String>::new());
    }
}

/// A thread that waits for a file that its own process serves does not die of a signal: it does
/// when the next run has the kernel answer it.
#[test]
fn a_run_that_is_killed_in_its_own_calls_ends_when_the_next_takes_it_down() {
    if absent(&["nbdfuse", "fusermount3"]) {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let Some(killed) = run_with(folder.path(), MOUNTING[0], MOUNTED) else { return };
    let mounted = mounts(folder.path());
    let mut at =
        mounted.iter().filter_map(|line| line.split(' ').find(|word| word.ends_with("/mnt")));
    let file = Path::new(at.next_back().expect("it is mounted")).join("iomelt");
    let is_written = || std::fs::metadata(&file).is_ok_and(|found| found.len() > 64 << 10);
    assert!(Deadline::after(Duration::from_secs(60)).comes(is_written), "{}", file.display());
    killed.signal(Signal::KILL);
    let output = run_long(bench(folder.path(), NEXT));
    assert!(output.stderr.contains("an earlier run had left"), "{output}");
    assert_eq!(mounts(folder.path()), Vec::<String>::new(), "{output}");
    let ended = killed.finish();
    assert_eq!(ended.status.signal(), Some(Signal::KILL.as_raw()), "{ended}");
}

/// The front end is mounted first, then its file is a loop device, then there is a file system on
/// it: a run that is killed between two of them leaves nothing for good.
#[test]
fn a_run_that_is_killed_while_it_sets_up_is_taken_down_by_the_next() {
    if absent(&["nbdfuse", "fusermount3"]) {
        return;
    }
    let _alone = alone();
    for sign in ["/fuse-0 ", "/fuse-0/nbd"] {
        let folder = tempfile::tempdir().unwrap();
        let Some(killed) = run_with(folder.path(), MOUNTING[0], sign) else { return };
        killed.kill_9();
        let output = run_long(bench(folder.path(), NEXT));
        assert!(output.stderr.contains("an earlier run had left"), "{sign}: {output}");
        assert_eq!(mounts(folder.path()), Vec::<String>::new(), "{sign}: {output}");
    }
}
