//! `evenkeel plan` through the command line: from a file of another tool to the cheapest volumes,
//! and messages on errors.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{BOOK, SAMPLES, compress, ended};

/// A plan for a sample, which is shorter than a week.
fn plan(sample: &str, more: &[&str]) -> Command {
    let mut command = super::plan();
    command.arg(format!("{SAMPLES}/{sample}")).args(more).args(["--days-min", "0"]);
    command
}

#[track_caller]
fn answer(sample: &str, more: &[&str]) -> String {
    ended(&mut plan(sample, more), 0).0
}

#[track_caller]
fn refused(sample: &str, more: &[&str], code: i32) -> String {
    ended(&mut plan(sample, more), code).1
}

fn layouts(sample: &str, more: &[&str]) -> Value {
    let text = answer(sample, &[more, &["-o", "json"]].concat());
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["schema"], "evenkeel.plan/1");
    value
}

/// Runs a plan for files that are named, with the least information.
fn plan_of(files: &[&Path], more: &[&str]) -> (Option<i32>, String) {
    let mut command = super::plan();
    let command = command.args(files).args(["--capacity", "100", "--days-min", "0"]);
    let output = command.args(more).output().expect("the program starts");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).expect("UTF-8"))
}

/// Returns the requests that a plan was made for.
fn asked(told: &str) -> Value {
    let value: Value = serde_json::from_str(told).unwrap_or_else(|_| panic!("{told}"));
    value["asked"].clone()
}

#[test]
fn a_compressed_file_and_a_folder_are_read_as_their_files() {
    let sample = Path::new(SAMPLES).join("iostat_x.txt");
    let (code, plain) = plan_of(&[&sample], &["-o", "json", "--volume", "vda"]);
    assert_eq!(code, Some(0), "{plain}");
    let folder = tempfile::tempdir().expect("a folder");
    let text = std::fs::read(&sample).expect("a sample");
    let compressed = folder.path().join("one.gz");
    // Two members, as of two files that were joined, with the cut in a line.
    compress(&compressed, &text[..1_000]);
    let rest = folder.path().join("rest");
    compress(&rest, &text[1_000..]);
    let joined = [std::fs::read(&compressed), std::fs::read(&rest)].map(Result::unwrap).concat();
    std::fs::write(&compressed, joined).expect("a file");
    std::fs::remove_file(rest).expect("a file");
    let (code, told) = plan_of(&[&compressed], &["-o", "json", "--volume", "vda"]);
    assert_eq!((code, asked(&told)), (Some(0), asked(&plain)));

    // A folder, with a later recording, a file that is none, and a hidden one.
    let later = String::from_utf8(text).expect("UTF-8").replace("19:09:", "19:12:");
    std::fs::write(folder.path().join("two.txt"), later).expect("a file");
    std::fs::write(folder.path().join("README"), "of a run\n").expect("a file");
    std::fs::write(folder.path().join(".hidden"), "of a run\n").expect("a file");
    let (code, told) = plan_of(&[folder.path()], &["-o", "json", "--volume", "vda"]);
    assert_eq!(code, Some(0), "{told}");
    // Both recordings have one course, with a gap between them.
    assert_eq!(asked(&told), asked(&plain));
    assert!(told.contains("gap"), "{told}");
    assert!(told.contains("files that are no recordings were left out: README"), "{told}");

    let cut = std::fs::read(&compressed).expect("a file");
    std::fs::write(&compressed, &cut[..cut.len() - 20]).expect("a file");
    let (code, told) = plan_of(&[&compressed], &["--volume", "vda"]);
    assert_eq!(code, Some(3), "{told}");
    let empty = tempfile::tempdir().expect("a folder");
    let (code, told) = plan_of(&[empty.path()], &[]);
    assert!(code == Some(3) && told.contains("has no file"), "{told}");
}

#[test]
fn logs_of_several_jobs_of_fio_are_added_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = |name: &str, value: u32| {
        let line = |second: u32| format!("{}, {value}, 0, 0, 0\n", second * 1_000);
        let text: String = (1..=10).map(line).collect();
        std::fs::write(folder.path().join(name), text).expect("a file");
    };
    log("db_iops.1.log", 100);
    log("db_iops.2.log", 300);
    log("db_bw.1.log", 400);
    log("db_bw.2.log", 1_200);
    log("db_clat.1.log", 250_000);
    let (code, told) = plan_of(&[folder.path()], &["-o", "json"]);
    assert_eq!(code, Some(0), "{told}");
    let means = ["mean_iops", "mean_bytes_per_second"].map(|key| asked(&told)[key].as_u64());
    assert_eq!(means, [Some(400), Some(1_638_400)]);
    assert!(told.contains("the logs of 2 jobs were added up"), "{told}");
    assert!(told.contains("mean latencies are left out"), "{told}");
}

#[test]
fn a_form_that_is_named_is_read_and_others_are_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("notes.txt");
    let sample = Path::new(SAMPLES).join("iostat_x.txt");
    let sample = std::fs::read_to_string(sample).expect("a sample");
    // More than the beginning by which forms are detected.
    let before = "\n".repeat(70_000);
    std::fs::write(&file, before + &sample.replace("11/25/26", "05/11/26")).expect("a file");
    let (code, told) = plan_of(&[&file], &[]);
    assert!(code == Some(3) && told.contains("name it with --form: cloudwatch-data, "), "{told}");
    let (code, told) = plan_of(&[&file], &["--form", "iosta"]);
    assert!(code == Some(2) && told.contains("the forms are cloudwatch-data, "), "{told}");
    let (code, told) = plan_of(&[&file], &["--form", "iostat", "--volume", "vda"]);
    assert!(code == Some(3) && told.contains("--dates day-first"), "{told}");
    let named = ["--form", "iostat", "--volume", "vda", "--dates", "day-first"];
    let (code, told) = plan_of(&[&file], &named);
    assert_eq!(code, Some(0), "{told}");
    std::fs::write(&file, r#"{"namespace": "Microsoft.Compute/disks"}"#).expect("a file");
    let (code, told) = plan_of(&[&file], &[]);
    assert!(code == Some(3) && told.contains("this is an answer of Azure Monitor"), "{told}");
}

#[test]
fn an_export_of_cloudwatch_becomes_a_ranking() {
    let text = answer("cloudwatch_data.json", &["--capacity", "100"]);
    for part in [
        "gp3 100 GiB, 3000 IOPS, 125 MiB/s       8.00",
        "note: intervals known in part: 1, 60 s in all",
        "prices of 2025-10-14, us-east-1",
        // A limit throttled requests within a minute.
        ">= 0.0           >= 0.0    not known",
        "evenkeel volume create --type gp3 --size 100 --iops 3000 --throughput 125",
        "a trace of seconds tells which",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The answer has the time of the source's device. No latency of standard is published.
    assert!(text.contains("\ndevice: published of gp3 is \"single-digit milliseconds\""), "{text}");
    let device = |at: usize| {
        // A standard volume has 200 IOPS, and no headroom over the trace.
        let words = ["--capacity", "100", "--types", "gp3,gp2,standard", "--headroom", "0"];
        let value = layouts("cloudwatch_data.json", &words);
        value["layouts"][at]["device"].clone()
    };
    let gp3 = device(0);
    let standard = device(2);
    assert_eq!(gp3["wait_and_device_us"]["p99"], 10_000, "{gp3}");
    assert_eq!(gp3["wait_and_device_us"]["is_bound"], true, "{gp3}");
    assert!(gp3["measured_at_source"]["requests"].as_u64() > Some(0), "{gp3}");
    assert_eq!(standard["published"], "not stated");
    assert_eq!(standard["wait_and_device_us"], Value::Null, "{standard}");
    let csv = answer("cloudwatch_data.json", &["--capacity", "100", "-o", "csv", "--top", "2"]);
    assert_eq!(csv.lines().count(), 3, "{csv}");
}

/// The storage of a database instance is no volume of EBS.
#[test]
fn a_recording_of_rds_gets_no_price_and_no_command_of_ebs() {
    let layout = ["--layout", "gp3 100"];
    for more in [&[][..], &["--capacity", "100"]] {
        let (shown, error) = ended(&mut plan("cloudwatch_rds.json", more), 6);
        assert!(shown.is_empty(), "{shown}");
        for part in [
            "orders-db: asked for: at most 140 requests and 3 MiB a second",
            "and with 20 % more 168 requests and 3 MiB a second at most",
            "No price and no command is named: it is the storage of a database instance of RDS",
            "aws rds describe-valid-db-instance-modifications --db-instance-identifier orders-db`",
            "`aws rds modify-db-instance` with --allocated-storage, --iops",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(!error.contains("aws ec2") && !error.contains("USD"), "{error}");
    }
    let mut check = super::plan();
    check.arg("check").arg(format!("{SAMPLES}/cloudwatch_rds.json")).args(layout);
    ended(&mut check, 6);
    let text = answer("cloudwatch_rds.json", &["--capacity", "100", "--prices", BOOK]);
    assert!(text.contains("note: metrics of RDS: rates a second"), "{text}");
}

/// The least size that lasts for a month carries one run with a GiB less, too.
#[test]
fn one_gib_less_than_lasts_a_month_runs_dry() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log.toml");
    let phase = |rate: u32| {
        format!(
            "[[phase]]\nfor = \"12h\"\nrate_iops = {rate}\nsize_kib = 1024\nread_percent = 50\n"
        )
    };
    let text =
        format!("name = \"log\"\nrepeat = 7\ninterval = \"phase\"\n{}{}", phase(60), phase(1));
    std::fs::write(&path, text).expect("written");
    let (code, told) = plan_of(&[&path], &["--types", "sc1", "-o", "json"]);
    assert_eq!(code, Some(0), "{told}");
    let value: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(value["layouts"][0]["dry_after_s"], Value::Null, "{told}");
    let less = &value["neighbours"][0];
    assert_eq!((&less["one_less"], &less["throttled_ms_per_day"]), (&"GiB".into(), &0.into()));
    assert!(less["dry_after_s"].as_u64() > Some(7 * 86_400), "{less}");
    let (_, told) = plan_of(&[&path], &["--types", "sc1"]);
    assert!(told.contains("the same with one GiB less: 0.0 s, dry after "), "{told}");
}

#[test]
fn a_declared_workload_is_met_by_the_cheapest_and_by_the_scheduler() {
    let value = layouts("declared.toml", &["--capacity", "100", "--types", "gp3"]);
    let first = &value["layouts"][0];
    assert_eq!((&first["volume_type"], &first["iops"]), (&"gp3".into(), &5_000.into()));
    assert_eq!(first["throttled_ms_per_day"], 0);
    assert_eq!(first["waits_by"], "fluid");
    let less = value["neighbours"].as_array().expect("a list");
    let mibps = less.iter().find(|it| it["one_less"] == "MiB/s").expect("MiB/s are sold");
    // 312.5 MiB/s are requested in these minutes.
    assert!(mibps["throttled_ms_per_day"].as_u64() > Some(1_000_000), "{value}");
    // Millions of requests, of which only those of the fast layouts have to be sent one by one.
    let own = layouts("declared.toml", &["--capacity", "100", "--types", "gp3", "--prices", BOOK]);
    let exact = &own["cheapest_by_scheduler"];
    assert_eq!(
        (&exact["throttled_ms_per_day"], &exact["requests"]),
        (&0.into(), &21_600_000.into())
    );
    let few = layouts("cloudwatch_data.json", &["--capacity", "100", "--prices", BOOK]);
    assert_eq!(few["cheapest_by_scheduler"]["throttled_ms_per_day"], 0, "{few}");
    assert_eq!(few["cheapest_by_scheduler"]["requests"], 231_000, "{few}");
    let total = |value: &Value| value["layouts"][0]["monthly_micro_usd"]["total"].as_u64();
    // Each volume of a stripe has 3,000 IOPS; waiting is cheaper still.
    let stripes = layouts("declared.toml", &["--capacity", "100", "--stripes", "4"]);
    assert_eq!(stripes["layouts"][0]["volumes"], 4, "{stripes}");
    let waits = layouts("declared.toml", &["--capacity", "100", "--throttled", "86400"]);
    assert!(total(&waits) <= total(&stripes) && total(&stripes) < total(&value));
    // Before gp3 there was io1, and before that only standard.
    let before = layouts(
        "declared.toml",
        &[
            "--capacity",
            "500",
            "--as-of",
            "2014-01-01",
            "--throttled",
            "86400",
            "--types",
            "standard,st1,sc1,gp2,gp3,io1,io2",
        ],
    );
    let types = before["layouts"].as_array().expect("layouts").iter();
    let mut types: Vec<&str> = types.filter_map(|it| it["volume_type"].as_str()).collect();
    types.sort_unstable();
    assert_eq!(types, ["io1", "standard"]);
}

#[test]
fn mistakes_are_named_with_the_next_step() {
    let text = refused("cloudwatch_data.json", &["-o", "html"], 2);
    assert!(text.contains("add --capacity GIB"), "{text}");
    let text = refused("declared.toml", &["--capacity", "100", "--max-monthly", "1"], 1);
    assert!(text.contains("no layout does this") && text.contains("--stripes"), "{text}");
    let text = refused("iostat_12.1.txt", &["--capacity", "100"], 3);
    assert!(text.contains("`iostat -xt`"), "{text}");
    // Only bytes, or only requests, are half a workload. The name of fio's log says which it has.
    let text = refused("fio_each_bw.log", &["--capacity", "100", "--types", "nothing"], 2);
    assert!(text.contains("nothing"), "{text}");
    let text = refused("cloudwatch_statistics_reads.json", &["--capacity", "100"], 3);
    assert!(text.contains("the trace has no bytes") && text.contains("beside this one"), "{text}");
    let value = layouts("fio_each_bw.log", &["--capacity", "100"]);
    assert!(value["asked"]["peak_iops"].as_u64() > Some(0), "{value}");
    let text = refused("nothing.json", &["--capacity", "100"], 3);
    assert!(text.contains("nothing.json: No such file"), "{text}");
    assert!(text.contains("name a recording, a folder of recordings, or the id"), "{text}");
    let text = refused("declared.toml", &["--capacity", "100", "--instance", "m9.huge"], 2);
    assert!(text.contains("no instance type with published EBS limits"), "{text}");
}
