//! First contact with `evenkeel plan`: a recording without a flag, the description of its volume
//! beside it, and the advice in one sentence.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{SAMPLES, compress, ended, plan_in};

/// The volume of the sample of CloudWatch.
const ID: &str = "vol-0123456789abcdef0";

/// Returns standard output and standard error of a call in a folder with this exit code. The
/// samples are shorter than a week.
#[track_caller]
fn told(folder: &Path, words: &[&str], code: i32) -> (String, String) {
    ended(plan_in(folder, words).args(["--days-min", "0"]), code)
}

#[track_caller]
fn json_of(folder: &Path, words: &[&str]) -> Value {
    let (stdout, _) = told(folder, &[words, &["-o", "json"]].concat(), 0);
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

/// Returns a folder with the sample of CloudWatch, `answer.json`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let answer = folder.path().join("answer.json");
    fs::copy(format!("{SAMPLES}/cloudwatch_data.json"), answer).expect("copied");
    folder
}

/// Returns an answer of DescribeVolumes with a gp2 volume of this size, and another volume.
fn described(gib: u32, zone: &str) -> String {
    let volume = |id: &str, gib: u32| {
        json!({
            "Attachments": [{ "Device": "/dev/sdf", "InstanceId": "i-1", "State": "attached" }],
            "AvailabilityZone": zone,
            "Iops": gib.saturating_mul(3).max(100),
            "Size": gib,
            "State": "in-use",
            "VolumeId": id,
            "VolumeType": "gp2",
        })
    };
    let volumes = [volume("vol-0fedcba9876543210", 8), volume(ID, gib)];
    format!("{:#}", json!({ "Volumes": volumes }))
}

fn write(folder: &TempDir, name: &str, text: &str) {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("written");
}

#[test]
fn a_plan_without_a_size_names_the_cost_of_iops_and_of_a_gib() {
    let folder = folder();
    let (text, _) = told(folder.path(), &["answer.json"], 0);
    for part in [
        "\ngp3, 3000 IOPS, 125 MiB/s: 0.00 USD a month and 0.08 for each GiB, from 1 GiB on\n",
        "VOLUMES",
        "FROM GIB",
        "USD/MONTH WITHOUT GIB",
        "USD/MONTH PER GIB",
        "next: the files do not say how large the volume is: add --capacity GIB",
        "prices of 2025-10-14, us-east-1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let value = json_of(folder.path(), &["answer.json"]);
    assert_eq!(value["schema"], "evenkeel.plan.without_size/1");
    // With a size, each layout costs both parts: its IOPS and MiB/s are the same.
    let sized = json_of(folder.path(), &["answer.json", "--capacity", "500"]);
    let sized = sized["layouts"].as_array().expect("layouts");
    let mut compared = 0;
    for row in value["layouts"].as_array().expect("layouts") {
        let volume_type = &row["volume_type"];
        let with_size = sized.iter().find(|layout| layout["volume_type"] == *volume_type);
        let with_size = with_size.unwrap_or_else(|| panic!("{volume_type}"));
        let gib = row["monthly_per_gib_micro_usd"].as_u64().expect("a price");
        let beside = row["monthly_without_gib_micro_usd"].as_u64().expect("a cost");
        let total = with_size["monthly_micro_usd"]["total"].as_u64();
        assert_eq!(Some(beside + 500 * gib), total, "{row} {with_size}");
        assert!(row["least_gib"].as_u64() <= Some(500), "{row}");
        compared += 1;
    }
    assert_eq!(compared, 4);
    let (csv, _) = told(folder.path(), &["answer.json", "-o", "csv", "--top", "2"], 0);
    assert!(csv.starts_with("volumes,from_gib,usd_month_without_gib,usd_month_per_gib,"), "{csv}");
    assert_eq!(csv.lines().count(), 3, "{csv}");
}

#[test]
fn a_page_or_a_maximum_without_a_size_asks_for_it() {
    let folder = folder();
    for more in [["-o", "html"], ["--html", "page.html"], ["--max-monthly", "9"]] {
        let words = [&["answer.json"][..], &more].concat();
        let (_, error) = told(folder.path(), &words, 2);
        assert!(error.contains("do not say how large the volume is"), "{error}");
        assert!(error.contains("add --capacity GIB, or the output of `aws ec2"), "{error}");
    }
    told(folder.path(), &["explain", "answer.json"], 2);
}

/// The list is known by its content, and its zone says the region of the prices.
#[test]
fn a_list_beside_the_recording_describes_its_volume() {
    let folder = folder();
    write(&folder, "all of them.json", &described(100, "eu-west-1b"));
    let value = json_of(folder.path(), &["answer.json"]);
    assert_eq!(value["region"], "eu-west-1", "{value}");
    assert_eq!(value["source"]["layout"], "gp2 100 GiB, 300 IOPS", "{value}");
    assert_eq!(value["present"]["layout"], Value::Null, "gp2 is among the layouts");
    let note = &value["trace"]["notes"][0]["remark"];
    assert_eq!(*note, "the volume is gp2 100 GiB, 300 IOPS, by all of them.json", "{value}");
    let modify = format!(
        "aws ec2 modify-volume --volume-id {ID} --volume-type gp3 --size 100 --iops 3000 \
         --throughput 125 --region eu-west-1"
    );
    assert_eq!(value["layouts"][0]["commands"]["aws"][0], modify, "{value}");
    let (text, _) = told(folder.path(), &["answer.json"], 0);
    let aws = text.find(&modify).expect("the command");
    let ours = text.find("evenkeel volume modify").expect("ours, too");
    assert!(aws < ours, "{text}");
    // A stripe is made of new volumes in its zone.
    let words = ["answer.json", "--stripes", "2", "--types", "gp3", "--top", "2"];
    let value = json_of(folder.path(), &words);
    let stripe = &value["layouts"][1]["commands"]["aws"][0];
    let create = "aws ec2 create-volume --availability-zone eu-west-1b --volume-type gp3";
    assert!(stripe.as_str().expect("a command").contains(create), "{stripe}");
    // A layout that is checked has the prices of the region, too.
    let words = ["check", "answer.json", "--layout", "gp3 100"];
    let output = plan_in(folder.path(), &words).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(", eu-west-1\n"), "{text}");
}

#[test]
fn a_list_may_be_given_after_the_recording() {
    let folder = folder();
    write(&folder, "elsewhere/volumes.json", &described(200, "us-east-1a"));
    let value = json_of(folder.path(), &["answer.json", "elsewhere/volumes.json"]);
    assert_eq!(value["source"]["layout"], "gp2 200 GiB, 600 IOPS", "{value}");
    // Also before it, and instead of one beside it that says something else.
    write(&folder, "volumes.json", &described(100, "us-east-1a"));
    let value = json_of(folder.path(), &["elsewhere/volumes.json", "answer.json"]);
    assert_eq!(value["source"]["layout"], "gp2 200 GiB, 600 IOPS", "{value}");
    let other = described(100, "us-east-1a").replace(ID, "vol-0aaaaaaaaaaaaaaaa");
    write(&folder, "elsewhere/others.json", &other);
    let (_, error) = told(folder.path(), &["answer.json", "elsewhere/others.json"], 3);
    assert!(error.contains(&format!("others.json: the list does not have {ID}")), "{error}");
    // A flag goes before a list.
    let value = json_of(folder.path(), &["answer.json", "--source", "gp2 300"]);
    assert_eq!(value["source"]["layout"], "gp2 300 GiB, 900 IOPS", "{value}");
    // Standard input has no folder.
    let mut command = plan_in(folder.path(), &["-", "--days-min", "0", "-o", "json"]);
    let answer = fs::File::open(folder.path().join("answer.json")).expect("opened");
    let (text, _) = ended(command.stdin(answer), 0);
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["schema"], "evenkeel.plan.without_size/1", "{value}");
    let (_, error) = told(folder.path(), &["elsewhere/volumes.json"], 3);
    assert!(error.contains("there is no trace in these files"), "{error}");
}

/// The recording of a disk has the kernel's name, and the only volume of a list is meant.
#[test]
fn the_only_volume_of_a_list_is_that_of_a_disk() {
    let folder = folder();
    let disk = fs::read_to_string(format!("{SAMPLES}/recorder.jsonl")).expect("a sample");
    let lines: Vec<&str> = disk.lines().filter(|line| line.contains(ID)).collect();
    write(&folder, "disk.jsonl", &lines.join("\n").replace(ID, "nvme1n1"));
    let two: Value = serde_json::from_str(&described(100, "us-east-1a")).expect("JSON");
    let only = json!({ "Volumes": [two["Volumes"][1]] }).to_string();
    write(&folder, "lists/one.json", &only);
    write(&folder, "lists/two.json", &described(100, "us-east-1a"));
    let value = json_of(folder.path(), &["disk.jsonl", "lists/one.json"]);
    assert_eq!(value["source"]["layout"], "gp2 100 GiB, 300 IOPS", "{value}");
    let (_, error) = told(folder.path(), &["disk.jsonl", "lists/two.json"], 3);
    assert!(error.contains("two.json: the list does not have nvme1n1"), "{error}");
}

#[test]
fn lists_that_differ_or_cannot_be_read_are_named() {
    let folder = folder();
    write(&folder, "a.json", &described(100, "us-east-1a"));
    write(&folder, "b.json", &described(100, "us-east-1a"));
    json_of(folder.path(), &["answer.json"]);
    write(&folder, "b.json", &described(200, "us-east-1a"));
    let (_, error) = told(folder.path(), &["answer.json"], 2);
    assert!(error.contains("a.json and b.json describe vol-"), "{error}");
    json_of(folder.path(), &["answer.json", "a.json"]);
    // A file that is cut is a note; the other one describes the volume.
    write(&folder, "b.json", &described(100, "us-east-1a")[..200]);
    let (text, _) = told(folder.path(), &["answer.json"], 0);
    assert!(text.contains("note: not read: b.json: "), "{text}");
    assert!(text.contains("note: the volume is gp2 100 GiB, 300 IOPS, by a.json\n"), "{text}");
    let (_, error) = told(folder.path(), &["answer.json", "b.json"], 3);
    assert!(error.contains("b.json: "), "{error}");
    // The volume itself cannot be.
    write(&folder, "b.json", &described(99_999, "us-east-1a"));
    let (_, error) = told(folder.path(), &["answer.json"], 3);
    assert!(error.contains(&format!("b.json: Volumes[1]: {ID}: ")), "{error}");
}

#[test]
fn a_region_that_the_zone_contradicts_is_refused() {
    let folder = folder();
    write(&folder, "volumes.json", &described(100, "eu-west-1b"));
    let (_, error) = told(folder.path(), &["answer.json", "--region", "us-east-1"], 2);
    let expected = format!("{ID} is in eu-west-1 by volumes.json, and --region says us-east-1");
    assert!(error.contains(&expected) && error.contains("leave --region out"), "{error}");
    json_of(folder.path(), &["answer.json", "--region", "eu-west-1"]);
    // A region without a price is refused, and never guessed.
    write(&folder, "volumes.json", &described(100, "xx-moon-1a"));
    let (_, error) = told(folder.path(), &["answer.json"], 2);
    assert!(error.contains("xx-moon-1") && error.contains("--prices FILE"), "{error}");
    // A volume of an Evenkeel server is in no region of AWS.
    write(&folder, "volumes.json", &described(100, "local-1a"));
    let value = json_of(folder.path(), &["answer.json"]);
    assert_eq!(value["region"], "us-east-1", "{value}");
    let (text, _) = told(folder.path(), &["answer.json"], 0);
    let aws = text.find("  aws ec2 modify-volume").expect("the command");
    assert!(text.find("  evenkeel volume modify").expect("ours") < aws, "{text}");
    let value = json_of(folder.path(), &["answer.json", "--region", "eu-west-1"]);
    assert_eq!(value["region"], "eu-west-1", "{value}");
}

#[test]
fn the_queries_of_an_answer_lie_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = |sample: &str, name: &str| {
        fs::copy(format!("{SAMPLES}/{sample}"), folder.path().join(name)).expect("copied");
    };
    copy("cloudwatch_data_ids.json", "answer.json");
    // An answer without its queries does not say its volume.
    let (_, error) = told(folder.path(), &["answer.json", "--capacity", "9"], 3);
    assert!(error.starts_with("error: volume: the trace has no bytes"), "{error}");
    copy("cloudwatch_queries.json", "answer.queries.json");
    let (_, error) = told(folder.path(), &["answer.json", "--capacity", "9"], 3);
    let of_volume = format!("error: {ID}: the trace has no bytes");
    assert!(error.starts_with(&of_volume), "{error}");
    // They are those of the compressed answer, too.
    let text = fs::read(folder.path().join("answer.json")).expect("an answer");
    compress(&folder.path().join("answer.json.gz"), &text);
    let (_, error) = told(folder.path(), &["answer.json.gz", "--capacity", "9"], 3);
    assert!(error.starts_with(&of_volume), "{error}");
}

/// A page of an answer is a file if each call's output is saved.
#[test]
fn pages_of_an_answer_may_be_files() {
    let folder = folder();
    write(&folder, "volume.json", &described(100, "eu-west-1a"));
    let whole = json_of(folder.path(), &["answer.json", "volume.json"]);
    let text = fs::read_to_string(folder.path().join("answer.json")).expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    // Points are in any order there.
    for name in ["page-1.json", "page-2.json", "page-10.json"] {
        let mut page = answer.clone();
        for result in page["MetricDataResults"].as_array_mut().expect("results") {
            let length = result["Values"].as_array().expect("values").len();
            let bounds = match name {
                "page-1.json" => 0..length / 3,
                "page-2.json" => length / 3..length / 2,
                _ => length / 2..length,
            };
            for key in ["Timestamps", "Values"] {
                result[key] = json!(result[key].as_array().expect("a list")[bounds.clone()]);
            }
            let is_last = name == "page-10.json";
            result["StatusCode"] = json!(if is_last { "Complete" } else { "PartialData" });
        }
        if name != "page-10.json" {
            page["NextToken"] = json!("more");
        }
        write(&folder, &format!("pages/{name}"), &page.to_string());
    }
    let pages = ["pages/page-2.json", "pages/page-10.json", "pages/page-1.json"];
    let files = [&pages[..], &["volume.json"]].concat();
    for words in [files, vec!["pages", "volume.json"]] {
        let joined = json_of(folder.path(), &words);
        assert_eq!(joined["layouts"], whole["layouts"], "{words:?}");
        assert_eq!(joined["trace"]["known_ms"], whole["trace"]["known_ms"], "{words:?}");
    }
    let (_, error) = told(folder.path(), &["pages/page-1.json", "pages/page-2.json"], 3);
    assert!(error.contains("pages/page-1.json, pages/page-2.json: \"NextToken\""), "{error}");
    // What `--query MetricDataResults` prints.
    write(&folder, "bare.json", &answer["MetricDataResults"].to_string());
    let bare = json_of(folder.path(), &["bare.json", "volume.json"]);
    assert_eq!(bare["layouts"], whole["layouts"]);
}

/// Returns all texts of lists with these names, at any depth.
fn lists<'a>(value: &'a Value, names: &[&str], found: &mut Vec<&'a str>) {
    match value {
        Value::Array(all) => all.iter().for_each(|value| lists(value, names, found)),
        Value::Object(all) => {
            for (name, value) in all {
                match value.as_array().filter(|_| names.contains(&name.as_str())) {
                    Some(texts) => found.extend(texts.iter().filter_map(Value::as_str)),
                    None => lists(value, names, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn commands_are_those_of_a_shell_with_the_region_in_each() {
    let folder = folder();
    write(&folder, "volume.json", &described(100, "eu-west-1a"));
    let value = json_of(folder.path(), &["answer.json", "volume.json", "--stripes", "3"]);
    let mut commands = Vec::new();
    lists(&value, &["aws", "evenkeel", "stripe"], &mut commands);
    assert!(commands.iter().any(|command| command.starts_with("for v in")), "{commands:?}");
    for command in commands {
        let parsed = Command::new("sh").args(["-n", "-c", command]).output().expect("sh starts");
        assert!(parsed.status.success(), "{command}: {parsed:?}");
        let is_aws = command.contains("aws ec2 ");
        assert_eq!(is_aws, command.contains(" --region eu-west-1"), "{command}");
    }
}

#[test]
fn one_of_several_devices_is_named_with_the_most_requests() {
    let folder = folder();
    let line = |second: u32, name: &str, writes: u32| {
        format!(
            "{{\"volume\":\"{name}\",\"start_ms\":{},\"length_ms\":1000,\"reads\":0,\
             \"writes\":{writes},\"read_bytes\":0,\"write_bytes\":{}}}\n",
            second * 1_000,
            writes * 4_096
        )
    };
    let lines: Vec<String> = (1..5)
        .flat_map(|second| {
            [("loop0", 0), ("sda", 7), ("sdb", 2)].map(|(name, writes)| line(second, name, writes))
        })
        .collect();
    write(&folder, "disks.jsonl", &lines.concat());
    let (_, error) = told(folder.path(), &["disks.jsonl"], 3);
    assert!(error.contains("there are 3 traces") && error.contains("as --volume sda,"), "{error}");
    write(&folder, "empty.json", " \n");
    let (_, error) = told(folder.path(), &["empty.json"], 3);
    assert!(error.contains("empty.json: the file is empty"), "{error}");
}

/// The source is a row, a curve of the charts, and the measure of the advice.
#[test]
fn the_present_volume_is_a_row_and_a_curve() {
    let folder = folder();
    let trace = ["answer.json", "--source", "io1 100, 1000 IOPS"];
    let words = [&trace[..], &["--types", "gp3,gp2"]].concat();
    let value = json_of(folder.path(), &words);
    let present = &value["present"];
    assert_eq!(present["layout"], "io1 100 GiB, 1000 IOPS", "{value}");
    assert_eq!(present["saved_against_the_source"]["monthly_micros"], 0, "{present}");
    assert!(present["throttled_ms_per_day"].is_u64(), "{present}");
    let (text, _) = told(folder.path(), &words, 0);
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("LAYOUT")).collect();
    assert!(rows[0].starts_with("LAYOUT") && rows[0].contains("  NOW  USD/MONTH  "), "{text}");
    assert!(rows[1].starts_with("io1 100 GiB, 1000 IOPS") && rows[1].contains(" now "), "{text}");
    assert!(rows[2].starts_with("gp3 100 GiB") && rows[2].contains(" -  "), "{text}");
    let advice = value["advice"].as_str().expect("a sentence");
    assert!(text.contains(&format!("\n{advice}\n\nLAYOUT")), "{text}");
    assert!(advice.starts_with("buy gp3 100 GiB, 3000 IOPS, 125 MiB/s, 8.00 USD a month: saves "));
    let because = "because it is the cheapest of gp2 and gp3 that carries 20 % more than was \
                   recorded without waiting; risk: ";
    assert!(advice.contains(because), "{advice}");
    let (page, _) = told(folder.path(), &[&words[..], &["-o", "html"]].concat(), 0);
    assert!(page.contains("C io1"), "a curve of the source");
    // With more layouts than colours, the source has one.
    let all = ["--types", "gp3,gp2,io2,st1,standard", "--stripes", "3", "--throttled", "86400"];
    let words = [&trace[..], &all, &["-o", "html"]].concat();
    let (page, _) = told(folder.path(), &words, 0);
    assert!(page.contains("E io1"), "a curve of the source");
    // A source that is the cheapest is kept, and stands once.
    let words = ["answer.json", "--source", "gp3 100"];
    let value = json_of(folder.path(), &words);
    assert_eq!(value["present"], Value::Null, "{value}");
    let advice = value["advice"].as_str().expect("a sentence");
    let keep =
        "keep gp3 100 GiB, 3000 IOPS, 125 MiB/s, because no layout that carries the workload";
    assert!(advice.starts_with(keep), "{advice}");
    let (text, _) = told(folder.path(), &words, 0);
    assert_eq!(text.matches(" now ").count(), 1, "{text}");
    assert!(text.contains("nothing to do: this is the present layout"), "{text}");
}

/// A source that is too slow costs less, and that is why the dearer one is proposed.
#[test]
fn a_source_that_waits_is_the_reason() {
    let folder = folder();
    let text = "name = \"busy\"\nrepeat = 1\n[[phase]]\nname = \"p\"\nfor = \"600s\"\n\
                rate_iops = 5000\nsize_kib = 4\nread_percent = 50\ndepth = 1\n";
    write(&folder, "busy.toml", text);
    let words = ["busy.toml", "--source", "gp3 100", "--types", "gp3"];
    let value = json_of(folder.path(), &words);
    let advice = value["advice"].as_str().expect("a sentence");
    assert!(advice.contains(" more than the source, gp3 100 GiB"), "{advice}");
    assert!(advice.contains("s a day on the source, and 0.0 s on this; "), "{advice}");
    let waits = value["present"]["throttled_ms_per_day"].as_u64();
    assert!(waits > Some(0), "{value}");
}
