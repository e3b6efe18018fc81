//! `evenkeel plan aws`: with the original aws-cli against a server of our own, and with a program
//! in its place that has many volumes, pages, and errors.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use support::bench::run_within;
use support::clock::{Deadline, pass};
use support::nbd::Client;
use support::process::{Output, run};
use support::server::{Server, evenkeel};
use support::tools::{absent, in_venv};
use tempfile::TempDir;

/// The longest wait for the end of a minute, for each minute has one value of a metric.
const MINUTE_MAX: Duration = Duration::from_secs(180);
/// The longest run of the aws-cli on a busy machine.
const CALLS_MAX: Duration = Duration::from_secs(150);
const READS: u64 = 11;
const WRITES: u64 = 23;

/// Returns the sum of a metric's values in a file.
fn sum(file: &Path, metric: &str) -> f64 {
    let Ok(text) = fs::read_to_string(file) else { return 0.0 };
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let series = value["MetricDataResults"].as_array().expect("results").iter();
    let of_metric =
        series.filter(|series| series["Label"].as_str().expect("a label").contains(metric));
    let values = of_metric.flat_map(|series| series["Values"].as_array().expect("values"));
    values.map(|value| value.as_f64().expect("a number")).sum()
}

/// Waits for the end of a minute: no metric of a minute exists before.
#[test]
fn a_server_of_our_own_is_an_account() {
    if absent(&[&in_venv("aws")]) {
        return;
    }
    let server = Server::start("--region us-east-1 --zone us-east-1a");
    let volume = server.attached("--type io2 --size 64 --iops 10000 --region us-east-1");
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    (0..WRITES).for_each(|block| client.write(block << 12, &[7; 4_096]).expect("written"));
    (0..READS).for_each(|block| drop(client.read(block << 12, 4_096).expect("read")));
    let shell = |script: &str| run_within(&mut server.shell(script), CALLS_MAX);
    let plan = "evenkeel plan aws --region us-east-1 --days 1 --days-min 1 --endpoint-url \
                $AWS_ENDPOINT_URL_EC2";
    let deadline = Deadline::after(MINUTE_MAX);
    let mut tries = 0;
    let printed = loop {
        tries += 1;
        let printed = shell(&format!("{plan} --folder run-{tries} -o json")).ok();
        let file = server.folder().join(format!("run-{tries}/metrics/{volume}.json"));
        if sum(&file, "VolumeReadOps") as u64 == READS
            && sum(&file, "VolumeWriteOps") as u64 == WRITES
        {
            assert_eq!(sum(&file, "VolumeWriteBytes") as u64, WRITES * 4_096);
            break printed;
        }
        assert!(!deadline.left().is_zero(), "no metrics of {volume}: {printed}");
        pass(Duration::from_secs(15));
    };
    let value: Value = serde_json::from_str(&printed).expect("JSON");
    let row = &value["volumes"][0];
    assert_eq!((&row["volume_id"], &row["region"]), (&json!(volume), &json!("us-east-1")), "{row}");
    // The files give the plan again.
    let files = format!("run-{tries}/volumes.json --metrics run-{tries}/metrics");
    let again =
        shell(&format!("evenkeel plan fleet {files} --region us-east-1 --days-min 1 -o json")).ok();
    assert_eq!(again, printed);
    let file = format!("run-{tries}/metrics/{volume}.json");
    let plan_of_file = shell(&format!("evenkeel plan {file} --days-min 0 -o json")).ok();
    let answer: Value = serde_json::from_str(&plan_of_file).expect("JSON");
    assert_eq!(answer["source"]["layout"], "io2 64 GiB, 10000 IOPS", "{answer}");
    let notes = answer["trace"]["notes"].to_string();
    assert!(!notes.contains("is assumed") && !notes.contains("inferred"), "{notes}");
    // Other keys are refused, and leave no folder.
    let script = format!("AWS_SECRET_ACCESS_KEY=wrong {plan} --folder refused");
    let error = shell(&script).fails_with(1);
    assert!(error.contains("aws ec2 describe-volumes failed: "), "{error}");
    assert!(!server.folder().join("refused").exists(), "{error}");
}

/// A program in the place of aws-cli. It writes down its words and the queries, and answers with
/// five requests a second in each minute, in two pages.
const PROGRAM: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
if [ -f "$here/fails-$1" ]; then cat "$here/fails-$1" >&2; exit 254; fi
if [ -f "$here/calls-max" ] && [ "$(wc -l <"$here/calls")" -gt "$(cat "$here/calls-max")" ]; then
    echo "An error occurred (Throttling): Rate exceeded" >&2
    exit 254
fi
if [ "$1" = ec2 ]; then exec cat "$here/volumes.json"; fi
last=
for word; do
    case $last in
    --metric-data-queries) queries=${word#file://} ;;
    --start-time) start=$(date -u -d "$word" +%s) ;;
    --end-time) end=$(date -u -d "$word" +%s) ;;
    esac
    last=$word
done
cp "$queries" "$here/queries-$(wc -l <"$here/calls")"
sed 's/},{"Id"/}\n{"Id"/g' "$queries" |
    sed -n 's/.*"Id":"\(m[0-9]*\)","Label":"\([^"]*\)".*"Period":\([0-9]*\).*/\1 \3 \2/p' |
    awk -v start="$start" -v end="$end" '
    function page(id, from, to, step, value, status) {
        printf "%s{\"Id\":\"%s\",\"Label\":\"\",\"StatusCode\":\"%s\"", comma, id, status
        comma = ","
        printf ",\"Timestamps\":["
        for (at = from; at < to; at += step) printf "%s%d", (at == from ? "" : ","), at
        printf "],\"Values\":["
        for (at = from; at < to; at += step) printf "%s%d", (at == from ? "" : ","), value
        print "]}"
    }
    BEGIN { printf "{\"Messages\":[],\"MetricDataResults\":[" }
    {
        value = 0
        if ($4 ~ /Ops$/) value = 5 * $2
        if ($4 ~ /Bytes$/) value = 5 * 16384 * $2
        if ($4 ~ /Balance$/) value = 100
        middle = start + int((end - start) / $2 / 2) * $2
        page($1, start, middle, $2, value, "PartialData")
        page($1, middle, end, $2, value, "Complete")
    }
    END { print "]}" }'
"#;

/// An account with some volumes: a gp3 volume with too much of everything, and others.
struct Account {
    folder: TempDir,
}

impl Account {
    fn new(volumes: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let account = Self { folder };
        let program = account.write("aws", PROGRAM);
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("executable");
        let volume = |number: usize| {
            let (volume_type, iops) =
                if number.is_multiple_of(2) { ("gp3", 8_000) } else { ("gp2", 1_500) };
            json!({
                "Attachments": [{ "InstanceId": "i-1", "State": "attached" }],
                "AvailabilityZone": "eu-west-1b",
                "Iops": iops,
                "Size": 500,
                "State": "in-use",
                "VolumeId": format!("vol-{number:017x}"),
                "VolumeType": volume_type,
            })
        };
        let all: Vec<Value> = (0..volumes).map(volume).collect();
        account.write("volumes.json", &json!({ "Volumes": all }).to_string());
        account
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        path
    }

    /// Runs `evenkeel plan` with the program on the path.
    fn plan(&self, words: &[&str]) -> Output {
        let mut path = self.folder.path().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        self.plan_by(words, &path)
    }

    fn plan_by(&self, words: &[&str], path: &std::ffi::OsStr) -> Output {
        let mut command: Command = evenkeel(self.folder.path());
        run(command.arg("plan").args(words).env("PATH", path))
    }

    /// Returns the words of each call.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn volumes_and_metrics_become_files_and_a_plan() {
    let account = Account::new(3);
    let words = ["aws", "--profile", "audit", "--region", "eu-west-1", "--folder", "got"];
    let output = account.plan(&words);
    let stderr = output.stderr.clone();
    let printed = output.ok();
    assert!(printed.contains("never-used-iops") && printed.contains("vol-00000000000000000"));
    assert!(
        stderr.contains("3 volumes: metrics of 14 days in steps of 60 s, to got\n"),
        "{stderr}"
    );
    let again = "again: evenkeel plan fleet got/volumes.json --metrics got/metrics\n";
    let next = "one volume: evenkeel plan got/metrics/vol-00000000000000000.json\n";
    assert!(stderr.contains(again) && stderr.contains(next), "{stderr}");
    // Each call has the flags. 14 days of minutes of a volume are two pages or more, and a call
    // has four at most.
    let calls = account.calls();
    assert_eq!(calls.len(), 4, "{calls:?}");
    let flags = "--output json --profile audit --region eu-west-1";
    assert!(calls.iter().all(|call| call.ends_with(flags)), "{calls:?}");
    assert_eq!(calls[0], format!("ec2 describe-volumes {flags}"));
    assert!(calls[1].starts_with("cloudwatch get-metric-data --metric-data-queries file:///"));
    // The files give the plan again, for all and for one.
    let again = ["fleet", "got/volumes.json", "--metrics", "got/metrics"];
    assert_eq!(account.plan(&again).ok(), printed);
    let words = ["got/metrics/vol-00000000000000000.json", "-o", "json"];
    let answer: Value = serde_json::from_str(&account.plan(&words).ok()).expect("JSON");
    assert_eq!(answer["source"]["layout"], "gp3 500 GiB, 8000 IOPS, 125 MiB/s", "{answer}");
    assert_eq!(answer["region"], "eu-west-1", "{answer}");
    let days_ms = 14 * 86_400_000_u64;
    assert_eq!(answer["trace"]["known_ms"], days_ms, "no page is lost: {answer}");
    assert_eq!(answer["asked"]["peak_iops"], 10, "{answer}");
    let advice = answer["advice"].as_str().expect("a sentence");
    assert!(advice.starts_with("buy gp3 500 GiB, 3000 IOPS, 125 MiB/s, "), "{advice}");
    let has_balance = |id: &str| {
        let file = account.path("got/metrics").join(format!("{id}.json"));
        fs::read_to_string(file).expect("metrics").contains("BurstBalance")
    };
    assert!(!has_balance("vol-00000000000000000") && has_balance("vol-00000000000000001"));
}

/// CloudWatch keeps minutes for 15 days: what is older is asked for in steps of five minutes.
#[test]
fn older_metrics_have_longer_steps() {
    let account = Account::new(1);
    account.plan(&["aws", "--days", "20", "--folder", "got"]).ok();
    let of_steps = |name: &str| {
        let path = account.path("got/metrics").join(name);
        let text = fs::read_to_string(path).expect("queries");
        let queries: Value = serde_json::from_str(&text).expect("JSON");
        queries[0]["MetricStat"]["Period"].as_u64()
    };
    assert_eq!(of_steps("vol-00000000000000000.queries.json"), Some(60));
    assert_eq!(of_steps("vol-00000000000000000.300s.queries.json"), Some(300));
    let id = "got/metrics/vol-00000000000000000";
    let files = [&format!("{id}.json"), &format!("{id}.300s.json"), "-o", "json"];
    let one: Value = serde_json::from_str(&account.plan(&files).ok()).expect("JSON");
    let days = one["trace"]["known_ms"].as_u64().expect("a time") / 86_400_000;
    assert!((19..=20).contains(&days), "20 days less some minutes: {one}");
    let gaps = one["trace"]["notes"].to_string();
    assert!(!gaps.contains("\"gap\""), "the two parts meet: {gaps}");
}

/// Returns the value of a flag in a call.
fn flag<'a>(call: &'a str, name: &str) -> &'a str {
    call.split(' ').skip_while(|word| *word != name).nth(1).unwrap_or_default()
}

#[test]
fn a_run_that_failed_is_continued_in_its_folder() {
    let account = Account::new(3);
    let words = ["aws", "--region", "eu-west-1", "--folder", "got"];
    // The list, the first volume, and an error.
    account.write("calls-max", "2");
    let error = account.plan(&words).fails_with(4);
    assert!(
        error.contains("the run is continued with --folder got and its other flags"),
        "{error}"
    );
    let first = fs::read(account.path("got/metrics/vol-00000000000000000.json")).expect("metrics");
    fs::remove_file(account.path("calls-max")).expect("removed");
    let printed = account.plan(&words).ok();
    let calls = account.calls();
    assert_eq!(calls.len(), 5, "neither the list nor the first volume again: {calls:?}");
    let ends: BTreeSet<&str> = calls[1..].iter().map(|call| flag(call, "--end-time")).collect();
    assert_eq!(ends.len(), 1, "all metrics end with those of the first run: {ends:?}");
    let kept = fs::read(account.path("got/metrics/vol-00000000000000000.json")).expect("metrics");
    assert_eq!(first, kept);
    assert!(!account.path("got/unfinished.json").exists());
    let again = ["fleet", "got/volumes.json", "--metrics", "got/metrics"];
    assert_eq!(account.plan(&again).ok(), printed);
    // A run that has ended is another one.
    account.plan(&words).fails_with(2);
}

#[test]
fn of_one_volume_there_is_a_plan_too() {
    let account = Account::new(1);
    let words = ["aws", "--days", "20", "--folder", "got"];
    let output = account.plan(&words);
    let id = "got/metrics/vol-00000000000000000";
    let files = [&format!("{id}.300s.json"), &format!("{id}.json")];
    let next = format!("one volume: evenkeel plan {} {}\n", files[0], files[1]);
    assert!(output.stderr.contains(&next), "{output}");
    let printed = output.ok();
    let of_fleet = account.plan(&["fleet", "got/volumes.json", "--metrics", "got/metrics"]).ok();
    let of_plan = account.plan(&[files[0], files[1]]).ok();
    assert_eq!(printed, format!("{of_fleet}\n{of_plan}"));
    assert!(of_plan.contains("\nbuy gp3 500 GiB, 3000 IOPS, 125 MiB/s, "), "{of_plan}");
    // What is too short for a price a month is no error.
    let output = account.plan(&["aws", "--days", "1", "--folder", "short"]);
    assert!(output.stderr.contains("no plan of this volume: "), "{output}");
    output.ok();
    let account = Account::new(1);
    let printed = account.plan(&[&words[..], &["-o", "json"]].concat()).ok();
    let value: Value = serde_json::from_str(&printed).expect("one JSON text");
    assert_eq!(value["schema"], "evenkeel.fleet/1");
}

#[test]
fn no_call_exceeds_the_limits_of_get_metric_data() {
    let account = Account::new(120);
    let output = account.plan(&["aws", "--days", "1", "--days-min", "1", "--folder", "got"]);
    assert!(output.stderr.contains("120 volumes: metrics of 1 days in steps of 300 s"), "{output}");
    output.ok();
    let calls = account.calls();
    let mut seen = BTreeSet::new();
    for number in 2..=calls.len() {
        let queries = fs::read_to_string(account.path(&format!("queries-{number}")));
        let queries: Value = serde_json::from_str(&queries.expect("queries")).expect("JSON");
        let queries = queries.as_array().expect("a list");
        assert!(queries.len() <= 500 && queries.len() as u64 * 288 <= 403_200, "{}", queries.len());
        for query in queries {
            assert!(seen.insert(query["Label"].to_string()), "asked twice: {query}");
        }
    }
    assert_eq!(seen.len(), 60 * 10 + 60 * 11);
    let named = ["aws", "vol-00000000000000003", "--days", "1", "--folder", "one"];
    account.plan(&[&named[..], &["--days-min", "1"]].concat()).ok();
    let call = &account.calls()[calls.len()];
    assert!(call.starts_with("ec2 describe-volumes --volume-ids vol-00000000000000003 "), "{call}");
}

#[test]
fn an_error_of_aws_has_its_words_and_the_next_step() {
    let account = Account::new(2);
    let denied = "An error occurred (UnauthorizedOperation) when calling the DescribeVolumes \
                  operation: You are not authorized";
    let fails = account.write("fails-ec2", denied);
    let error = account.plan(&["aws", "--folder", "got"]).fails_with(4);
    assert!(error.contains(denied) && error.contains("--print-policy"), "{error}");
    assert!(!account.path("got").exists(), "nothing is left");
    fs::write(&fails, "Unable to locate credentials. You can configure them").expect("written");
    let error = account.plan(&["aws"]).fails_with(2);
    assert!(error.contains("aws configure") && error.contains("aws sso login"), "{error}");
    fs::remove_file(fails).expect("removed");
    let fails = account.write("fails-cloudwatch", "An error occurred (Throttling): Rate exceeded");
    let error = account.plan(&["aws", "--folder", "got"]).fails_with(4);
    assert!(error.contains("the files so far are in got") && error.contains("later"), "{error}");
    fs::remove_file(fails).expect("removed");
    // A folder with files of another run is not used.
    let error = account.plan(&["aws", "--folder", "got", "--days", "7"]).fails_with(2);
    assert!(error.contains("--folder got has files already"), "{error}");
    // Answers that are none.
    for (text, code, part) in [
        ("{\"Volumes\": []}", 3, "lists no volume in this region"),
        ("hello", 1, "aws ec2 describe-volumes: "),
        ("", 1, "aws ec2 describe-volumes: "),
    ] {
        account.write("volumes.json", text);
        let error = account.plan(&["aws", "--folder", "new"]).fails_with(code);
        assert!(error.contains(part) && !account.path("new").exists(), "{error}");
    }
    // Without the program.
    let nowhere = account.path("nowhere");
    let error = account.plan_by(&["aws"], nowhere.as_os_str()).fails_with(1);
    assert!(
        error.contains("the AWS CLI is not installed") && error.contains("plan fleet"),
        "{error}"
    );
    for words in [&["aws", "--days", "64"][..], &["aws", "i-1"], &["aws", "--step", "90"]] {
        account.plan(words).fails_with(2);
    }
}

#[test]
fn the_policy_is_json_for_iam() {
    let account = Account::new(1);
    let policy = account.plan(&["aws", "--print-policy"]).ok();
    let policy: Value = serde_json::from_str(&policy).expect("JSON");
    let actions = json!(["ec2:DescribeVolumes", "cloudwatch:GetMetricData"]);
    assert_eq!(policy["Statement"][0]["Action"], actions, "{policy}");
    assert!(account.calls().is_empty(), "nothing is called");
}
