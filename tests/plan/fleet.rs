//! `evenkeel plan fleet` through the command line: a list of volumes and a folder of metrics of
//! several forms, and messages on errors.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{compress, ended, ended_with_input, plan_in};

const DAY_POINTS: usize = 288;

/// Returns an answer of GetMetricData for volumes: id, days, and requests a second, of 16 KiB, in
/// points of five minutes. With an empty id, the labels have none.
fn answer(volumes: &[(&str, usize, u64)]) -> Value {
    let mut results = Vec::new();
    for (id, days, rate) in volumes {
        let points = 0..days * DAY_POINTS;
        let time = |point: usize| {
            let day = 1 + point / DAY_POINTS;
            let minute = point % DAY_POINTS * 5;
            format!("2026-11-{day:02}T{:02}:{:02}:00+00:00", minute / 60, minute % 60)
        };
        let times: Vec<String> = points.clone().rev().map(time).collect();
        let amounts = [
            ("VolumeReadOps", rate * 200),
            ("VolumeWriteOps", rate * 100),
            ("VolumeReadBytes", rate * 200 * 16_384),
            ("VolumeWriteBytes", rate * 100 * 16_384),
        ];
        for (metric, amount) in amounts {
            results.push(json!({
                "Id": format!("m{}", results.len()),
                "Label": format!("{id} {metric} Sum"),
                "Timestamps": times,
                "Values": vec![amount as f64; times.len()],
                "StatusCode": "Complete",
            }));
        }
    }
    json!({ "MetricDataResults": results, "Messages": [] })
}

/// Creates a fleet: volumes with files of their own, two with a shared one, one in two parts, one
/// of another form, and one without.
fn fleet() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let metrics = folder.path().join("metrics");
    fs::create_dir(&metrics).expect("a folder");
    let write = |name: &str, text: &str| fs::write(metrics.join(name), text).expect("a file");
    fs::write(
        folder.path().join("volumes.csv"),
        "VolumeId,VolumeType,Size,Iops,Throughput,State,AttachedTo,Name\n\
         vol-0001,gp3,500,8000,500,in-use,i-1,oversized\n\
         vol-0002,io2,500,8000,,in-use,i-1,durable\n\
         vol-0003,gp2,100,300,,in-use,i-2,\"old, small\"\n\
         vol-0004,gp3,500,3000,125,available,,left\n\
         vol-0005,gp3,100,3000,125,in-use,i-3,busy\n\
         vol-0006,io1,500,4000,,in-use,i-3,short\n\
         vol-0007,gp3,100,3000,125,in-use,i-4,silent\n\
         vol-0008,gp3,100,3000,125,in-use,i-4,broken\n\
         vol-0009,gp9,100,,,in-use,i-4,unknown\n",
    )
    .expect("a file");
    // The file is named after its volume, and does not contain its id.
    write("vol-0001.json", &answer(&[("", 14, 900)]).to_string());
    write("page-1.json", &answer(&[("vol-0002", 14, 900), ("vol-0005", 14, 2_950)]).to_string());
    write("vol-0006.json", &answer(&[("vol-0006", 3, 100), ("vol-0abc", 3, 100)]).to_string());
    let mut lines = String::new();
    for hour in 0..8 * 24 {
        let _ = writeln!(
            lines,
            "{{\"volume\":\"vol-0007\",\"start_ms\":{},\"length_ms\":3600000,\"reads\":0,\
             \"writes\":0,\"read_bytes\":0,\"write_bytes\":0}}",
            1_795_633_200_000_u64 + hour * 3_600_000
        );
    }
    write("recorded-vol-0007.jsonl", &lines);
    write("vol-0008.json", "{\"MetricDataResults\": [{\"Id\": ");
    write("notes.txt", "nothing\n");
    folder
}

/// Runs `plan fleet` in a folder, with this exit code, for lists without a region.
#[track_caller]
fn run(folder: &Path, more: &[&str], code: i32) -> (String, String) {
    run_anywhere(folder, &[more, &["--region", "us-east-1"]].concat(), code)
}

#[track_caller]
fn run_anywhere(folder: &Path, more: &[&str], code: i32) -> (String, String) {
    ended(&mut plan_in(folder, &[&["fleet"], more].concat()), code)
}

#[track_caller]
fn told(folder: &Path, more: &[&str]) -> String {
    run(folder, more, 0).0
}

#[track_caller]
fn refused(folder: &Path, more: &[&str], code: i32) -> String {
    run(folder, more, code).1
}

const ALL: [&str; 3] = ["volumes.csv", "--metrics", "metrics"];

fn json_of(folder: &Path, more: &[&str]) -> Value {
    let text = told(folder, &[&ALL, more, &["-o", "json"]].concat());
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["schema"], "evenkeel.fleet/1");
    value
}

#[test]
fn each_volume_is_judged_by_what_there_is_of_it() {
    let folder = fleet();
    let value = json_of(folder.path(), &[]);
    let all = value["volumes"].as_array().expect("volumes");
    let of = |row: &Value| -> String {
        let better = &row["better"];
        let word = |value: &Value| value.to_string().replace(['"', '\\'], "");
        [&row["volume_id"], &row["findings"][0], &row["action"], &better["volume_type"]]
            .map(word)
            .into_iter()
            .chain([word(&better["iops"]), word(&better["throughput_mibps"])])
            .collect::<Vec<_>>()
            .join(" ")
    };
    let found: Vec<String> = all.iter().map(of).collect();
    assert_eq!(
        found,
        [
            "vol-0001 never-used-iops modify gp3 3000 125",
            "vol-0002 never-used-iops modify io2 1080 null",
            "vol-0003 gp2-to-gp3 modify gp3 3000 128",
            "vol-0004 unattached snapshot-and-delete null null null",
            "vol-0005 throttled modify gp3 3600 125",
            "vol-0006 type-change modify gp3 4000 500",
            "vol-0007 idle keep null null null",
            "vol-0008 not-judged keep null null null",
        ]
    );
    assert_eq!(
        all[5]["reasons"][0],
        "3 days of metrics, of 7 days that are needed: no limit is lowered"
    );
    assert_eq!(value["not_read"][0]["place"], "line 10");
    let left_out: Vec<&str> =
        value["left_out"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    for part in [
        "notes.txt: no volume of the list is named in it",
        "vol-0006.json: vol-0abc: the file is named after vol-0006",
        "vol-0008.json: line 1: \"EOF while parsing",
    ] {
        assert!(left_out.iter().any(|line| line.contains(part)), "{part}: {left_out:?}");
    }
    assert_eq!(value["totals"]["never_used_iops"], 5_000 + 6_920);
    // 80 + 582.50 + 10 + 40 + 8 + 322.50 + 8 + 8 dollars by the list.
    assert_eq!(value["totals"]["before_micro_usd"], 1_059_000_000);
    // More jobs do not change the result.
    let jobs =
        |jobs: &str| told(folder.path(), &[&ALL[..], &["-o", "csv", "--jobs", jobs]].concat());
    assert_eq!(jobs("1"), jobs("7"));
}

/// A compressed file is searched for volumes as its text is, and has the queries of that.
#[test]
fn metrics_may_be_compressed() {
    let folder = fleet();
    let metrics = folder.path().join("metrics");
    let plain = json_of(folder.path(), &[]);
    let compressed = metrics.join("page-1.json.gz");
    let page = fs::read_to_string(metrics.join("page-1.json")).expect("an answer");
    fs::remove_file(metrics.join("page-1.json")).expect("removed");
    compress(&compressed, page.as_bytes());
    assert_eq!(json_of(folder.path(), &[])["volumes"], plain["volumes"]);
    // With the ids in the queries alone.
    let mut answer: Value = serde_json::from_str(&page).expect("JSON");
    let mut queries = Vec::new();
    for result in answer["MetricDataResults"].as_array_mut().expect("results") {
        let label = result["Label"].take();
        let words: Vec<&str> = label.as_str().expect("a label").split(' ').collect();
        queries.push(json!({ "Id": result["Id"], "MetricStat": { "Period": 300, "Stat": words[2],
            "Metric": { "MetricName": words[1], "Dimensions": [
                { "Name": "VolumeId", "Value": words[0] }] } } }));
        result["Label"] = json!("");
    }
    compress(&compressed, answer.to_string().as_bytes());
    fs::write(metrics.join("page-1.queries.json"), json!(queries).to_string()).expect("written");
    assert_eq!(json_of(folder.path(), &[])["volumes"], plain["volumes"]);
}

/// Pages of GetMetricData end between volumes, or within a series.
#[test]
fn pages_of_metrics_may_be_files() {
    let folder = fleet();
    let page = |name: &str| folder.path().join("metrics").join(name);
    let whole = json_of(folder.path(), &[]);
    let text = fs::read_to_string(page("page-1.json")).expect("an answer");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    let results = answer["MetricDataResults"].as_array().expect("results");
    let mut parts = [results[..4].to_vec(), results[4..].to_vec(), results[4..].to_vec()];
    let half = 7 * DAY_POINTS;
    for (part, is_first) in [(1, true), (2, false)] {
        for result in &mut parts[part] {
            for key in ["Timestamps", "Values"] {
                let points = result[key].as_array().expect("points");
                let points = if is_first { &points[..half] } else { &points[half..] };
                result[key] = json!(points.to_vec());
            }
            result["StatusCode"] = json!(if is_first { "PartialData" } else { "Complete" });
        }
    }
    let [first, second, last] = parts;
    let write = |name: &str, page_of: &Value| {
        fs::write(page(name), page_of.to_string()).expect("written");
    };
    write("page-1.json", &json!({ "MetricDataResults": first, "NextToken": "a" }));
    write("page-9.json", &json!({ "MetricDataResults": second, "NextToken": "b" }));
    // In the order of names the last page is not the last file.
    write("page-10.json", &json!({ "MetricDataResults": last }));
    assert_eq!(json_of(folder.path(), &[])["volumes"], whole["volumes"]);
    fs::remove_file(page("page-10.json")).expect("removed");
    let parted = json_of(folder.path(), &[]);
    assert_eq!(parted["volumes"][4]["findings"][0], "not-judged", "{parted}");
    assert!(parted["left_out"].to_string().contains("VolumeReadOps Sum: PartialData"), "{parted}");
}

/// Returns an amount in dollars as millionths.
fn micro(text: &str) -> i64 {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, part) = text.split_once('.').expect("cents");
    let part: i64 = format!("{part:0<6}").parse().expect("digits");
    sign * (whole.parse::<i64>().expect("dollars") * 1_000_000 + part)
}

#[test]
fn rows_add_up_to_the_totals_in_every_form() {
    let folder = fleet();
    let value = json_of(folder.path(), &[]);
    let csv = told(folder.path(), &[&ALL[..], &["-o", "csv"]].concat());
    let mut lines = csv.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    for (column, total) in [
        ("before_usd_month", "before_micro_usd"),
        ("after_usd_month", "after_micro_usd"),
        ("saving_usd_month", "saving_micro_usd"),
    ] {
        let index = header.iter().position(|name| *name == column).expect("a column");
        // Only the name, which comes before, has a comma in quotes.
        let cell = |line: &str| {
            micro(line.replace("\"old, small\"", "").split(',').nth(index).expect("a cell"))
        };
        let sum: i64 = lines.clone().map(cell).sum();
        assert_eq!(value["totals"][total], sum, "{column}");
        for by in ["by_finding", "by_risk"] {
            let rows = value[by].as_object().expect("sums").values();
            let sum: i64 = rows.filter_map(|row| row[total].as_i64()).sum();
            let untouched =
                if by == "by_risk" && total != "saving_micro_usd" { 16_000_000 } else { 0 };
            assert_eq!(value["totals"][total], sum + untouched, "{by} {total}");
        }
    }
    let text = told(folder.path(), &[&ALL[..], &["--top", "2"]].concat());
    let all = |title: &str| -> Vec<i64> {
        let line = text.lines().find(|line| line.starts_with(title)).expect(title);
        line.split_whitespace().filter(|word| word.contains('.')).map(micro).collect()
    };
    let changes = all("all changes");
    let listed = changes[2];
    let totals = all("all  ")[2];
    assert_eq!(
        (listed, totals),
        (totals, value["totals"]["saving_micro_usd"].as_i64().expect("an amount"))
    );
    let rows = ["vol-0002 ", "vol-0006 ", "4 more "].map(|title| all(title)[2]);
    assert_eq!(rows.iter().sum::<i64>(), listed, "{text}");
    assert!(text.contains("not judged (2):") && text.contains("left out of the metrics (3):"));
}

#[test]
fn commands_have_their_way_back_and_delete_nothing() {
    let folder = fleet();
    told(folder.path(), &[&ALL[..], &["--commands", "change.sh"]].concat());
    let script = fs::read_to_string(folder.path().join("change.sh")).expect("a script");
    for line in [
        "aws ec2 modify-volume --volume-id vol-0003 --volume-type gp3 --iops 3000 --throughput 128",
        "# undo: aws ec2 modify-volume --volume-id vol-0003 --volume-type gp2",
        // Risky commands are commented out, so that a person decides.
        "# aws ec2 modify-volume --volume-id vol-0002 --volume-type io2 --iops 1080",
        "# aws ec2 delete-volume --volume-id vol-0004",
    ] {
        // The list has no region; the flag names it, and each command has it.
        let line = format!("{line} --region us-east-1");
        assert!(script.lines().any(|found| found == line), "{line}: {script}");
    }
    let runs = script.lines().filter(|line| line.starts_with("aws"));
    assert!(runs.clone().all(|line| line.starts_with("aws ec2 modify-volume ")), "{script}");
    assert_eq!(runs.count(), 3, "{script}");
    let high = [&ALL[..], &["--commands", "change.sh", "--risk-max", "high"]].concat();
    told(folder.path(), &high);
    let script = fs::read_to_string(folder.path().join("change.sh")).expect("a script");
    assert_eq!(script.lines().filter(|line| line.starts_with("aws")).count(), 5, "{script}");
}

/// In 2019 only io1 has such a rate all the time, for twenty times the price.
#[test]
fn what_is_much_dearer_is_for_people_to_decide() {
    let folder = tempfile::tempdir().expect("a folder");
    let metrics = folder.path().join("metrics");
    fs::create_dir(&metrics).expect("a folder");
    let list = "VolumeId,VolumeType,Size,State,AttachedTo\nvol-0abc,gp2,100,in-use,i-1\n";
    fs::write(folder.path().join("volumes.csv"), list).expect("a file");
    let text = answer(&[("vol-0abc", 14, 2_990)]).to_string();
    fs::write(metrics.join("vol-0abc.json"), text).expect("a file");
    let more = ["--as-of", "2019-01", "--risk-max", "high", "--commands", "change.sh"];
    told(folder.path(), &[&ALL[..], &more].concat());
    let script = fs::read_to_string(folder.path().join("change.sh")).expect("a script");
    let line = "# aws ec2 modify-volume --volume-id vol-0abc --volume-type io1";
    assert!(script.lines().any(|found| found.starts_with(line)), "{script}");
    assert!(!script.lines().any(|found| found.starts_with("aws")), "{script}");
}

#[test]
fn a_list_of_a_server_or_of_aws_will_do_without_metrics() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write(
        "aws.json",
        r#"{"Volumes": [{"VolumeId": "vol-0a", "VolumeType": "gp2", "Size": 100,
        "Iops": 300, "State": "in-use", "Attachments": [{"InstanceId": "i-1"}]}]}"#,
    );
    write(
        "ls.csv",
        "volume,type,gib,iops,mib_s,state,attached_to,name\nvol-0a,gp2,100,300,,in-use,i-1,\n",
    );
    for name in ["aws.json", "ls.csv"] {
        let csv = told(folder.path(), &[name, "-o", "csv"]);
        assert!(
            csv.contains(
                "vol-0a,,gp2-to-gp3,,modify,gp2,100,300,,gp3,3000,128,10.00,8.12,1.88,none"
            ),
            "{csv}"
        );
    }
    let text = told(folder.path(), &["ls.csv", "--types", "gp2,sc1"]);
    assert!(text.contains("keep") && !text.contains("all changes"), "{text}");
}

#[test]
fn mistakes_are_named_with_the_next_step() {
    let folder = fleet();
    let text = refused(folder.path(), &["nothing.csv"], 3);
    assert!(text.contains("nothing.csv: No such file"), "{text}");
    assert!(text.contains("`aws ec2 describe-volumes > volumes.json` writes one"), "{text}");
    let text = refused(folder.path(), &["volumes.csv", "--metrics", "nothing"], 3);
    assert!(text.contains("nothing: No such file"), "{text}");
    fs::create_dir(folder.path().join("empty")).expect("a folder");
    let text = refused(folder.path(), &["volumes.csv", "--metrics", "empty"], 3);
    assert!(text.contains("empty has no file") && text.contains("traces.md"), "{text}");
    let text = refused(folder.path(), &["volumes.csv", "--as-of", "2016-12-01"], 2);
    assert!(text.contains("no volume can be changed in place"), "{text}");
    let text = refused(folder.path(), &["metrics/page-1.json"], 3);
    assert!(text.contains("volumes as DescribeVolumes or"), "{text}");
    fs::write(
        folder.path().join("page.json"),
        "{\"Volumes\": [{\"VolumeId\": \"vol-0a\", \
        \"VolumeType\": \"gp3\", \"Size\": 8}], \"NextToken\": \"x\"}",
    )
    .expect("a file");
    let text = refused(folder.path(), &["page.json"], 3);
    assert!(text.contains("--starting-token"), "{text}");
    told(folder.path(), &["page.json", "--allow-partial"]);
    // Without an argument the error names the list of volumes that is missing.
    let text = refused(folder.path(), &[], 2);
    assert!(text.contains("<VOLUMES>"), "{text}");
}

/// A list as `aws ec2 describe-volumes` prints it, of two regions.
const REGIONS: &str = r#"{"Volumes": [
    {"VolumeId": "vol-0a", "VolumeType": "gp3", "Size": 500, "Iops": 4000, "Throughput": 250,
     "State": "available", "AvailabilityZone": "ap-northeast-1a"},
    {"VolumeId": "vol-0b", "VolumeType": "gp2", "Size": 100, "Iops": 300, "State": "in-use",
     "AvailabilityZone": "eu-west-1b", "Attachments": [{"InstanceId": "i-1"}]},
    {"VolumeId": "vol-0c", "VolumeType": "gp2", "Size": 100, "Iops": 300, "State": "in-use",
     "AvailabilityZone": "moon-1a", "Attachments": [{"InstanceId": "i-1"}]}]}"#;

/// Returns the output of `aws pricing get-products` for gp2 in a region.
fn get_products(region: &str, usd: &str) -> String {
    let product = json!({
        "product": {
            "productFamily": "Storage",
            "sku": "A",
            "attributes": { "regionCode": region, "usagetype": "MOO1-EBS:VolumeUsage.gp2" },
        },
        "terms": { "OnDemand": { "A.T": {
            "effectiveDate": "2026-09-01T00:00:00Z",
            "priceDimensions": { "A.T.D": {
                "unit": "GB-Mo", "beginRange": "0", "pricePerUnit": { "USD": usd },
            } },
        } } },
    });
    json!({ "FormatVersion": "aws_v1", "PriceList": [product.to_string()] }).to_string()
}

#[test]
fn volumes_are_priced_by_their_region_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write("aws.json", REGIONS);
    let json = |more: &[&str]| -> Value {
        let more = [&["aws.json", "-o", "json"], more].concat();
        serde_json::from_str(&told_with(&folder, &more)).expect("JSON")
    };
    let of = |value: &Value, at: usize| {
        let row = &value["volumes"][at];
        let amount = |key: &str| row[key].as_u64().expect("an amount");
        (row["findings"][0].clone(), amount("before_micro_usd"), amount("after_micro_usd"))
    };
    let value = json(&[]);
    // 500 GiB, 1,000 IOPS and 125 MiB/s of Tokyo; 100 GiB of Ireland, and 3 MiB/s more as gp3.
    assert_eq!(of(&value, 0), (json!("unattached"), 48_000_000 + 6_000_000 + 6_000_000, 0));
    assert_eq!(of(&value, 1), (json!("gp2-to-gp3"), 11_000_000, 8_800_000 + 132_000));
    assert_eq!(of(&value, 2), (json!("not-judged"), 0, 0));
    let reason = value["volumes"][2]["reasons"][0].as_str().expect("a reason");
    assert!(reason.contains("no prices of the region \"moon-1\" are known"), "{reason}");
    assert!(reason.contains("--prices FILE"), "{reason}");
    let lists = [("ap-northeast-1", "2026-10-15"), ("eu-west-1", "2026-10-15")];
    let lists = lists.map(|(region, date)| {
        json!({
            "region": region,
            "date": date,
            "no_price_of": [],
            "discounts_percent": {},
        })
    });
    assert_eq!(value["price_lists"], json!(lists));
    // A flag does not move volumes whose zone is known: those of other regions are refused.
    let value_of_flag = json(&["--region", "eu-west-1"]);
    assert_eq!(of(&value_of_flag, 0), of(&value, 1));
    let reason = value_of_flag["not_read"][0]["reason"].as_str().expect("a reason");
    assert_eq!(
        reason,
        "its zone ap-northeast-1a is not in eu-west-1, which --region names: leave --region out, \
         or name ap-northeast-1"
    );
    let stderr = refused(folder.path(), &["aws.json"], 3);
    assert!(stderr.contains("no volume can be read; Volumes[0]: its zone"), "{stderr}");
    let value = json(&["--discount", "gp2=10,gp3=12.5"]);
    assert_eq!(of(&value, 1), (json!("gp2-to-gp3"), 9_900_000, 7_700_000 + 115_500));
    // A price list of the region, and a type without a price in it.
    write("moon.json", &get_products("moon-1", "0.2"));
    let value = json(&["--prices", "moon.json"]);
    assert_eq!(of(&value, 2), (json!("keep"), 20_000_000, 20_000_000));
    let text = told_with(&folder, &["aws.json", "--prices", "moon.json"]);
    assert!(text.contains("moon-1 (no price of gp3, io1, io2, st1, sc1)"), "{text}");
    // A type with two discounts, a list of regions without a volume, an empty file.
    write("mars.json", &get_products("mars-1", "0.2"));
    write("empty.json", "");
    for (more, why, code) in [
        (["--discount", "gp3=12,gp3=20"], "--discount names gp3 twice", 2),
        (["--prices", "mars.json"], "--prices has prices of mars-1, and ", 2),
        (["--prices", "empty.json"], "empty.json: the price list is empty", 3),
    ] {
        let (_, error) = run_anywhere(folder.path(), &[&["aws.json"][..], &more].concat(), code);
        assert!(error.contains(why), "{error}");
    }
    told_with(&folder, &["aws.json", "--commands", "change.sh"]);
    let script = fs::read_to_string(folder.path().join("change.sh")).expect("a script");
    assert!(script.contains("--throughput 128 --region eu-west-1\n"), "{script}");
    assert!(script.contains("--availability-zone ap-northeast-1a --volume-type gp3"), "{script}");
}

#[track_caller]
fn told_with(folder: &TempDir, more: &[&str]) -> String {
    run_anywhere(folder.path(), more, 0).0
}

#[test]
fn a_region_is_asked_for_and_never_guessed() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = "VolumeId,VolumeType,Size,State\nvol-0a,gp2,100,in-use\n";
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    let refused = |more: &[&str]| run_anywhere(folder.path(), &[&["list.csv"], more].concat(), 2).1;
    let text = refused(&[]);
    assert!(text.contains("line 2: the list does not say in which region it is"), "{text}");
    assert!(text.contains("name it with --region\n hint: or give a list"), "{text}");
    let text = refused(&["--region", "moon-1"]);
    assert!(text.contains("\"moon-1\"") && text.contains("--prices FILE"), "{text}");
    let text = refused(&["--region", "eu-west-1", "--as-of", "2021-06"]);
    assert!(text.contains("the oldest are those of 2026-10-15"), "{text}");
    let csv = told_with(&folder, &["list.csv", "--region", "eu-west-1", "-o", "csv"]);
    assert!(csv.contains(",11.00,8.932,2.068,none,"), "{csv}");
    for discount in ["gp3", "gp3=101", "gp9=5"] {
        refused(&["--region", "eu-west-1", "--discount", discount]);
    }
    let path = folder.path().join("yuan.json");
    fs::write(path, get_products("eu-west-1", "1").replace("USD", "CNY")).expect("a file");
    let more = ["list.csv", "--region", "eu-west-1", "--prices", "yuan.json"];
    let text = told_with(&folder, &more);
    assert!(text.contains("BEFORE CNY/MONTH") && text.contains("100.00"), "{text}");
    assert!(!text.contains("USD"), "{text}");
}

/// An answer without bytes of reads where there were no reads, as of a Xen instance, and with
/// nights of 6,000 writes per second.
#[test]
fn nights_without_a_point_of_bytes_read_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let metrics = folder.path().join("metrics");
    fs::create_dir(&metrics).expect("a folder");
    let list = "VolumeId,VolumeType,Size,Iops,Throughput,State\n\
        vol-0abc,gp3,500,8000,500,in-use\n";
    fs::write(folder.path().join("volumes.csv"), list).expect("a file");
    let mut value = answer(&[("vol-0abc", 14, 100)]);
    let is_night = |time: &str| ("01".."03").contains(&time.get(11..13).expect("an hour"));
    for result in value["MetricDataResults"].as_array_mut().expect("results") {
        let label = result["Label"].as_str().expect("a label").to_owned();
        let times: Vec<String> =
            serde_json::from_value(result["Timestamps"].clone()).expect("times");
        let mut values: Vec<f64> =
            serde_json::from_value(result["Values"].clone()).expect("values");
        for (time, value) in times.iter().zip(&mut values) {
            match label.split(' ').nth(1).expect("a metric") {
                "VolumeReadOps" if is_night(time) => *value = 0.0,
                "VolumeWriteOps" if is_night(time) => *value = 6_000.0 * 300.0,
                "VolumeWriteBytes" if is_night(time) => *value = 6_000.0 * 300.0 * 4_096.0,
                _ => {}
            }
        }
        result["Values"] = json!(values);
        if label.contains("VolumeReadBytes") {
            let kept = times.iter().zip(&values).filter(|(time, _)| !is_night(time));
            let kept: Vec<(&String, &f64)> = kept.collect();
            result["Timestamps"] = kept.iter().map(|(time, _)| time.as_str()).collect();
            result["Values"] = kept.iter().map(|(_, value)| **value).collect();
        }
    }
    fs::write(metrics.join("vol-0abc.json"), value.to_string()).expect("a file");
    let value = json_of(folder.path(), &[]);
    let row = &value["volumes"][0];
    assert_eq!(row["known"]["peak_iops"], 6_000, "{row}");
    assert_eq!(row["better"]["iops"], 7_200, "{row}");
    // Averages of the metrics are not sums.
    let text = answer(&[("vol-0abc", 14, 100)]).to_string();
    let text = text.replace(" Sum", "").replace("20000.0", "66.67");
    fs::write(metrics.join("vol-0abc.json"), text).expect("a file");
    let row = json_of(folder.path(), &[])["volumes"][0].clone();
    assert_eq!(row["findings"][0], "not-judged");
    assert!(row["reasons"][0].as_str().expect("a reason").contains("--statistics Sum"), "{row}");
}

#[test]
fn a_size_is_read_with_its_unit_or_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = "VolumeId,VolumeType,Size,State\nvol-0a,gp2,2 TiB,in-use\nvol-0b,gp2,8 potatoes,\n";
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    let text = told(folder.path(), &["list.csv"]);
    assert!(text.contains("204.80"), "2,048 GiB: {text}");
    let line = "list.csv, line 3, vol-0b: column Size: \"8 potatoes\": expected a size in GiB";
    assert!(text.contains(line), "{text}");
}

/// Of six volumes, one has no region, one is in another one than its zone, and one is in a Local
/// Zone without a price list: the others have prices.
#[test]
fn a_volume_without_a_region_is_refused_and_the_others_are_priced() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = "VolumeId,VolumeType,Size,State,Region,AvailabilityZone\n\
        vol-0a,gp2,100,in-use,us-east-1,us-east-1a\n\
        vol-0b,gp2,100,in-use,,\n\
        vol-0c,gp2,100,in-use,us-east-1,eu-west-1a\n\
        vol-0d,gp2,100,in-use,us-east-1,us-east-1-bos-1a\n\
        vol-0e,gp3,40,available,eu-west-1,\n\
        vol-0f,gp3,500,available,us-east-1,us-east-1a\n";
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    let text = told_with(&folder, &["list.csv"]);
    for part in [
        "list.csv, line 3, vol-0b: the list does not say in which region it is",
        "list.csv, line 4, vol-0c: its zone eu-west-1a is not in its region us-east-1",
        "vol-0d: no prices of the region \"us-east-1-bos-1\" are known",
        "not in these sums: 2 that are refused, 1 without a price (see not judged)",
        // 500 GiB of us-east-1; the list of Ireland has no price of snapshots.
        "snapshots of what is to be deleted cost at most 25.00 USD a month; no price of snapshots \
         is known in eu-west-1 (40 GiB)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let more = ["list.csv", "-o", "json"];
    let value: Value = serde_json::from_str(&told_with(&folder, &more)).expect("JSON");
    assert_eq!(value["missing"], json!({ "refused": 2, "without_price": 1 }));
    let snapshots =
        json!({ "monthly_at_most_micro_usd": 25_000_000, "no_price_of_gib": { "eu-west-1": 40 } });
    assert_eq!(value["snapshots"], snapshots);
    let local = &value["volumes"][1];
    let of = (&local["volume_id"], &local["region"], &local["price_region"]);
    assert_eq!(of, (&json!("vol-0d"), &json!("us-east-1"), &json!("us-east-1-bos-1")));
    // With the prices of the Local Zone it is judged by them, and commands go to the region.
    fs::write(folder.path().join("bos.json"), get_products("us-east-1-bos-1", "0.12"))
        .expect("a file");
    let more = ["list.csv", "-o", "json", "--prices", "bos.json", "--types", "gp2"];
    let value: Value = serde_json::from_str(&told_with(&folder, &more)).expect("JSON");
    assert_eq!(value["volumes"][1]["before_micro_usd"], 12_000_000);
    assert_eq!(value["missing"]["without_price"], 0);
}

/// A price list may come from a pipe: it is read once.
#[test]
fn a_price_list_may_come_from_a_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = "VolumeId,VolumeType,Size,State,Region\nvol-0a,gp2,100,in-use,moon-1\n";
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    let mut command = plan_in(folder.path(), &["fleet", "list.csv", "--prices", "/dev/stdin"]);
    let prices = get_products("moon-1", "0.2");
    let (text, _) = ended_with_input(&mut command, prices.as_bytes(), 0);
    assert!(text.contains("20.00"));
}

/// One file leads to one volume in `plan` and in `plan fleet`.
#[test]
fn a_plan_gives_the_advice_of_a_fleet() {
    let folder = fleet();
    let metrics = folder.path().join("metrics");
    let fleet = json_of(folder.path(), &[]);
    for (at, id, file, source, gib) in [
        (0, "", "vol-0001.json", "gp3 500, 8000 IOPS, 500 MiB/s", "500"),
        (1, "vol-0002", "page-1.json", "io2 500, 8000 IOPS", "500"),
    ] {
        let words = [file, "--source", source, "--capacity", gib, "-o", "json"];
        let mut command = plan_in(&metrics, &words);
        if !id.is_empty() {
            command.args(["--volume", id]);
        }
        let plan: Value = serde_json::from_str(&ended(&mut command, 0).0).expect("JSON");
        let better = &fleet["volumes"][at]["better"];
        let first = &plan["layouts"][0];
        for key in ["volume_type", "size_gib", "iops", "throughput_mibps"] {
            assert_eq!(better[key], first[key], "{id} {key}: {first}");
        }
        assert_eq!(fleet["volumes"][at]["after_micro_usd"], first["monthly_micro_usd"]["total"]);
    }
}

/// A fleet without metrics and without a region: unattached volumes and gp2 volumes have advice,
/// and the script saves what it says.
#[test]
fn without_metrics_there_is_advice_and_the_script_saves_what_it_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = "VolumeId,VolumeType,Size,Iops,State,AttachedTo,AvailabilityZone\n\
        vol-0a,gp2,100,300,in-use,i-1,us-east-1a\n\
        vol-0b,gp3,500,3000,available,,us-east-1c\n\
        vol-0c,io1,500,4000,in-use,i-1,us-east-1b\n\
        vol-0d,sc1,500,,available,,\n\
        vol-0e,gp3,500,3000,in-use,i-1,us-east-1a\n";
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    let more = ["list.csv", "-o", "json", "--commands", "change.sh"];
    let value: Value = serde_json::from_str(&told(folder.path(), &more)).expect("JSON");
    let rows = value["volumes"].as_array().expect("volumes");
    let classes: Vec<&Value> = rows.iter().map(|row| &row["class"]).collect();
    let expected = ["safe-now", "unattached", "safe-now", "unattached"].map(|class| json!(class));
    let expected: Vec<&Value> = expected.iter().chain([&Value::Null]).collect();
    assert_eq!(classes, expected, "{value}");
    let saving = |sum: &Value| sum["saving_micro_usd"].as_i64().expect("an amount");
    let of_class =
        |class: &str| -> i64 { rows.iter().filter(|row| row["class"] == class).map(saving).sum() };
    for class in ["safe-now", "after-a-look", "not-advised", "unattached"] {
        assert_eq!(saving(&value["by_class"][class]), of_class(class), "{class}");
    }
    // 500 GiB of gp3 for 40 dollars have a snapshot of 25 at most; sc1 is cheaper than that.
    assert_eq!(of_class("unattached"), 40_000_000 - 25_000_000 + 7_500_000 - 25_000_000);
    assert_eq!(rows[3]["snapshot_at_most_micro_usd"], 25_000_000);
    let script = fs::read_to_string(folder.path().join("change.sh")).expect("a script");
    let run: Vec<&str> = script.lines().filter(|line| line.starts_with("aws")).collect();
    let is_run = |row: &&Value| {
        let id = row["volume_id"].as_str().expect("an id");
        run.iter().any(|line| line.contains(&format!("--volume-id {id} ")))
    };
    let executed: i64 = rows.iter().filter(is_run).map(saving).sum();
    assert_eq!((run.len(), saving(&value["script"])), (2, executed), "{script}");
    let dollars = format!("save {}.{:02}", executed / 1_000_000, executed / 10_000 % 100);
    assert!(script.contains(&dollars) && script.contains("change 2 of 4 volumes"), "{script}");
    let text = told(folder.path(), &["list.csv", "--commands", "change.sh"]);
    assert!(text.contains("in the script change.sh the commands that are not comments"), "{text}");
    // The way back has the zone of each volume; if the list lacks it, it is read first.
    assert!(script.contains("--availability-zone us-east-1c --volume-type gp3"), "{script}");
    let look = "# ZONE=$(aws ec2 describe-volumes --volume-ids vol-0d --query";
    assert!(script.contains(look) && script.contains("--availability-zone \"$ZONE\""), "{script}");
}

#[test]
fn volumes_are_added_up_by_tag_account_and_zone() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = "VolumeId,VolumeType,Size,State,AvailabilityZone,tag:Team,Account\n\
        vol-0a,gp2,100,in-use,us-east-1a,orders,111122223333\n\
        vol-0b,gp2,100,in-use,us-east-1b,orders,111122223333\n\
        vol-0c,gp2,100,in-use,us-east-1a,,444455556666\n";
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    for (by, groups) in [
        ("tag:Team", vec![("-", 1), ("orders", 2)]),
        ("account", vec![("111122223333", 2), ("444455556666", 1)]),
        ("zone", vec![("us-east-1a", 2), ("us-east-1b", 1)]),
    ] {
        let text = told_with(&folder, &["list.csv", "--group-by", by, "-o", "json"]);
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["group_by"], by);
        let found = value["groups"].as_object().expect("groups");
        let expected: Vec<(String, u64)> =
            groups.into_iter().map(|(name, volumes)| (name.to_owned(), volumes)).collect();
        let counts: Vec<(String, u64)> = found
            .iter()
            .map(|(name, sum)| (name.clone(), sum["volumes"].as_u64().expect("a number")))
            .collect();
        assert_eq!(counts, expected, "{by}");
        for (_, sum) in found {
            // 10 dollars of gp2 become 8.12 of gp3 with 128 MiB/s.
            let volumes = sum["volumes"].as_u64().expect("a number");
            assert_eq!(sum["saving_micro_usd"], 1_880_000 * volumes);
            assert_eq!(sum["by_class"]["safe-now"]["volumes"], volumes);
        }
    }
    let text = told_with(&folder, &["list.csv", "--group-by", "tag:Team", "--top", "1"]);
    for part in ["TAG:TEAM", "orders", "1 more"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, error) = run_anywhere(folder.path(), &["list.csv", "--group-by", "team"], 2);
    assert!(error.contains("expected tag:NAME, account or zone"));
}

/// Used space of two forms: what a smaller copy saves stands by itself, and the script has its
/// commands as comments.
#[test]
fn used_space_says_what_a_smaller_copy_would_save() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write(
        "list.csv",
        "VolumeId,VolumeType,Size,Iops,Throughput,State,AttachedTo,Device,AvailabilityZone\n\
         vol-0123456789abcdef0,gp3,500,4000,250,in-use,i-0123456789abcdef1,/dev/sdf,us-east-1a\n\
         vol-0aaaaaaaaaaaaaaa0,gp3,500,3000,125,in-use,i-0123456789abcdef1,/dev/sdg,us-east-1a\n\
         vol-0bbbbbbbbbbbbbbb0,gp3,500,3000,125,in-use,i-0123456789abcdef1,/dev/xvda,us-east-1a\n",
    );
    fs::create_dir(folder.path().join("used")).expect("a folder");
    write(
        "used/i-0123456789abcdef1.txt",
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
         /dev/xvda1 524032000 1048576 523000000 1% /\n\
         /dev/xvdf 524032000 73400320 450631680 15% /data\n\
         /dev/nvme9n1 1024 512 512 50% /other\n",
    );
    write(
        "used/snapshots.json",
        r#"{"Snapshots": [{"SnapshotId": "snap-1", "VolumeId": "vol-0aaaaaaaaaaaaaaa0",
        "State": "completed", "StartTime": "2026-11-20T02:00:00.000Z", "VolumeSize": 500,
        "FullSnapshotSizeInBytes": 150323855360}]}"#,
    );
    let all = ["list.csv", "--used", "used", "--commands", "change.sh"];
    let value: Value =
        serde_json::from_str(&told_with(&folder, &[&all[..], &["-o", "json"]].concat()))
            .expect("JSON");
    let copy = |at: usize| {
        let smaller = &value["volumes"][at]["after_a_copy"];
        (smaller["volume"]["size_gib"].clone(), smaller["saving_micro_usd"].clone())
    };
    // 70 GiB are 70 % of 100, 140 GiB of 200; an instance boots from the third volume.
    assert_eq!(copy(0), (json!(100), json!(32_000_000)));
    assert_eq!(copy(1), (json!(200), json!(24_000_000)));
    assert_eq!(value["volumes"][2]["after_a_copy"], Value::Null);
    assert_eq!(value["volumes"][2]["used_bytes"], 1_u64 << 30);
    assert_eq!(value["volumes"][1]["used_is_at_most"], true);
    assert_eq!(value["after_a_copy"]["saving_micro_usd"], 56_000_000);
    assert_eq!(value["totals"]["saving_micro_usd"], 0, "no sum has the copies");
    assert!(value["left_out"][0].as_str().expect("a reason").contains("/dev/nvme9n1"), "{value}");
    let script = fs::read_to_string(folder.path().join("change.sh")).expect("a script");
    for line in [
        "# NEW=$(aws ec2 create-volume --availability-zone us-east-1a --volume-type gp3 --iops \
         4000 --throughput 250 --size 100 --query VolumeId --output text --region us-east-1)",
        "# aws ec2 attach-volume --volume-id \"$NEW\" --instance-id i-0123456789abcdef1 --device \
         FREE_DEVICE --region us-east-1",
        "#   rsync -aHAXS --numeric-ids --one-file-system OLD/ /mnt/new/",
        "# Keep vol-0123456789abcdef0 until the copy is checked. undo: attach it again as \
         /dev/sdf, and mount it",
    ] {
        assert!(script.lines().any(|found| found == line), "{line}: {script}");
    }
    assert!(!script.lines().any(|line| line.starts_with("aws")), "{script}");
    let text = told_with(&folder, &all);
    assert!(text.contains("have room for the file systems of 2 of the volumes"), "{text}");
    assert!(text.contains("56.00 USD a month more, which is not in the sums above"), "{text}");
    assert!(text.contains("at most 140"), "{text}");
    // Half of it free: 140 and 280 GiB.
    let more = ["list.csv", "--used", "used", "--free", "50", "-o", "csv"];
    let csv = told_with(&folder, &more);
    assert!(csv.contains(",70,gp3,140,") && csv.contains(",140,gp3,280,"), "{csv}");
    let missing = refused(folder.path(), &["list.csv", "--used", "none.txt"], 3);
    assert!(missing.contains("none.txt: No such file"), "{missing}");
}

/// The plan of a recording with used space has a line about a smaller layout.
#[test]
fn a_plan_says_what_a_smaller_copy_would_cost() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lines = String::new();
    for hour in 0..8 * 24 {
        let _ = writeln!(
            lines,
            "{{\"volume\":\"sdb\",\"start_ms\":{},\"length_ms\":3600000,\"reads\":3600,\
             \"writes\":0,\"read_bytes\":3600000,\"write_bytes\":0,\
             \"used_bytes\":75161927680}}",
            1_795_633_200_000_u64 + hour * 3_600_000
        );
    }
    fs::write(folder.path().join("disk.jsonl"), lines).expect("a file");
    let words = ["disk.jsonl", "--capacity", "500"];
    let (text, _) = ended(&mut plan_in(folder.path(), &words), 0);
    let line = "after a copy: the file systems use 70 GiB, and with 30 % free gp3 100 GiB, 3000 \
                IOPS, 125 MiB/s has room for them, for 8.00 USD a month, 32.00 less";
    assert!(text.replace('\n', " ").contains(line), "{text}");
    // Without a size, the plan is for a volume of which 30 % is free.
    let (text, _) = ended(&mut plan_in(folder.path(), &["disk.jsonl"]), 0);
    assert!(text.contains("gp3 100 GiB, 3000 IOPS, 125 MiB/s"), "{text}");
}

/// Three volumes on one m5.large, which sustains 3,600 IOPS for all of them (EC2 user guide,
/// EBS-optimized instances): one stands at its limit, and more of it is not safe.
#[test]
fn volumes_of_an_instance_are_compared_with_its_limits() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    fs::create_dir(folder.path().join("metrics")).expect("a folder");
    write(
        "list.csv",
        "VolumeId,VolumeType,Size,Iops,Throughput,State,AttachedTo\n\
         vol-0001,gp3,500,3000,125,in-use,i-0123456789abcdef1\n\
         vol-0002,gp3,500,3000,125,in-use,i-0123456789abcdef1\n\
         vol-0003,gp3,500,16000,125,in-use,i-0123456789abcdef1\n",
    );
    write(
        "hosts.json",
        r#"{"Reservations": [{"Instances": [{"InstanceId": "i-0123456789abcdef1",
        "InstanceType": "m5.large", "State": {"Code": 16, "Name": "running"}}]}]}"#,
    );
    let metrics = answer(&[("vol-0001", 14, 2_950), ("vol-0002", 14, 500)]).to_string();
    write("metrics/page.json", &metrics);
    let all = ["list.csv", "--metrics", "metrics", "--instances", "hosts.json"];
    let value: Value =
        serde_json::from_str(&told(folder.path(), &[&all[..], &["-o", "json"]].concat()))
            .expect("JSON");
    let host = &value["hosts"][0];
    assert_eq!(host["peaks"]["iops"], 2_950 + 500);
    assert_eq!(host["limits_after"]["iops"], 3_600 + 3_000 + 16_000);
    assert_eq!(
        (&host["sustained"]["iops"], &host["most"]["iops"]),
        (&json!(3_600), &json!(18_750))
    );
    let first = &value["volumes"][0];
    assert_eq!(first["findings"][0], "throttled");
    assert_eq!((&first["class"], &first["risk"]), (&json!("after-a-look"), &json!("medium")));
    let reasons = first["reasons"].to_string();
    assert!(reasons.contains("the instance may be what holds it back"), "{reasons}");
    let text = told(folder.path(), &all);
    let line =
        "instances with less than their volumes ask for, or are provisioned with, together: 1";
    assert!(text.contains(line), "{text}");
    // Without the types the raise is safe.
    let more = ["list.csv", "--metrics", "metrics", "-o", "json"];
    let value: Value = serde_json::from_str(&told(folder.path(), &more)).expect("JSON");
    assert_eq!(value["volumes"][0]["class"], "safe-now");
    let refused = refused(folder.path(), &["list.csv", "--instances", "list.csv"], 3);
    assert!(refused.contains("aws ec2 describe-instances"), "{refused}");
}

#[test]
fn types_of_instances_that_are_not_known_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut list = "VolumeId,VolumeType,Size,AttachedTo,InstanceType\n".to_owned();
    for number in 0..30 {
        list += &format!("vol-a{number},gp3,100,i-{number:08},x{}.huge\n", number % 12);
    }
    list += "vol-b,gp3,100,i-00000099,m5.large\nvol-c,gp3,100,,y1.huge\n";
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    let text = told(folder.path(), &["list.csv"]);
    let title = "types of instances without published limits, which are not compared (12):\n  \
                 x0.huge: 3 volumes\n";
    assert!(text.contains(title) && text.contains("  2 more: -o json has all\n"), "{text}");
    let value: Value =
        serde_json::from_str(&told(folder.path(), &["list.csv", "-o", "json"])).expect("JSON");
    let types = value["unknown_instance_types"].as_object().expect("types");
    assert_eq!((types.len(), &types["x0.huge"]), (12, &json!(3)), "{types:?}");
}

#[test]
fn a_name_is_no_formula_of_a_spreadsheet() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["=1+2", "+1", "-1", "@SUM(1)"];
    let row = |(number, name)| format!("vol-a{number},gp3,100,{name},{name}\n");
    let rows: String = (0..).zip(names).map(row).collect();
    let list = format!("VolumeId,VolumeType,Size,Name,tag:Team\n{rows}vol-b,gp3,100,plain,plain\n");
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    let csv = told(folder.path(), &["list.csv", "--group-by", "tag:Team", "-o", "csv"]);
    for name in names {
        assert!(!csv.contains(&format!(",{name}")), "{csv}");
    }
    for cell in [",'=1+2,", ",'+1,", ",'-1,", ",'@SUM(1),", ",plain,"] {
        assert_eq!(csv.matches(cell).count(), 2, "{cell} {csv}");
    }
}

#[test]
fn help_of_a_fleet_offers_no_price_book() {
    let help = ended(&mut plan_in(Path::new("."), &["fleet", "--help"]), 0).0;
    assert!(help.contains("A price list of AWS") && !help.contains("price book"), "{help}");
    let refused = refused(fleet().path(), &["volumes.csv", "--prices", super::BOOK], 2);
    assert!(refused.contains("a fleet is one of EBS"), "{refused}");
}

/// A large volume with few requests: an HDD type is named in a line of its own, and proposed for
/// none.
#[test]
fn an_hdd_type_is_named_apart_if_latency_does_not_matter() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("metrics")).expect("a folder");
    let list = "VolumeId,VolumeType,Size,Iops,Throughput,State,AttachedTo,Device\n\
        vol-0abc,gp3,1000,3000,125,in-use,i-1,/dev/sdf\n\
        vol-0abd,gp3,1000,3000,125,in-use,i-1,/dev/xvda\n";
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    let text = answer(&[("vol-0abc", 14, 1), ("vol-0abd", 14, 1)]).to_string();
    fs::write(folder.path().join("metrics/page.json"), text).expect("a file");
    let all = ["list.csv", "--metrics", "metrics"];
    let value: Value =
        serde_json::from_str(&told(folder.path(), &[&all[..], &["-o", "json"]].concat()))
            .expect("JSON");
    let hdd = &value["volumes"][0]["if_latency_does_not_matter"];
    // 1,000 GiB of sc1 at 0.015 dollars, of gp3 at 0.08.
    assert_eq!(hdd["volume"]["volume_type"], "sc1");
    assert_eq!(
        (&hdd["before_micro_usd"], &hdd["after_micro_usd"]),
        (&json!(80_000_000), &json!(15_000_000))
    );
    assert_eq!(hdd["small_permille"], 1_000);
    assert_eq!(value["volumes"][1]["if_latency_does_not_matter"], Value::Null, "it boots");
    assert_eq!(value["totals"]["saving_micro_usd"], 0);
    let text = told(folder.path(), &all);
    let line = "if latency does not matter: st1 or sc1 carries the requests of 1 of the volumes, \
                for 65.00 USD a month less";
    assert!(text.contains(line) && text.contains("100.0 to 100.0 % of the requests"), "{text}");
    let named = told(folder.path(), &[&all[..], &["--types", "gp3"]].concat());
    assert!(!named.contains("latency does not matter"), "{named}");
}

/// Half a cent is rounded up in both verbs.
#[test]
fn a_plan_and_a_fleet_round_cents_alike() {
    let folder = tempfile::tempdir().expect("a folder");
    // 31 GiB of Ireland's gp2 cost 3.41 dollars; 12.5 % less are 2.98375.
    let list = "VolumeId,VolumeType,Size,State,Region\nvol-0a,gp2,31,in-use,eu-west-1\n";
    fs::write(folder.path().join("list.csv"), list).expect("a file");
    let more = ["list.csv", "--types", "gp2", "--discount", "gp2=12.5"];
    assert!(told_with(&folder, &more).contains(" 2.98 "));
    let day = "name = \"a\"\nrepeat = 7\n[[phase]]\nname = \"day\"\nfor = \"24h\"\n\
        rate_iops = 1\nsize_kib = 4\nread_percent = 50\n";
    fs::write(folder.path().join("day.toml"), day).expect("a file");
    let mut command = plan_in(folder.path(), &["day.toml", "--capacity", "31"]);
    command.args(["--types", "gp2", "--discount", "gp2=12.5", "--region", "eu-west-1"]);
    let (text, _) = ended(&mut command, 0);
    assert!(text.contains(" 2.98 ") && !text.contains("2.99"), "{text}");
}

#[test]
fn the_page_has_the_sums_and_the_changes_of_the_text() {
    let folder = fleet();
    let text = told(folder.path(), &[&ALL[..], &["--html", "page.html", "--top", "3"]].concat());
    let page = fs::read_to_string(folder.path().join("page.html")).expect("a page");
    let printed = told(folder.path(), &[&ALL[..], &["-o", "html", "--top", "3"]].concat());
    assert!(page == printed && page.ends_with("</html>\n"), "the file has what -o html prints");
    let mut words = String::new();
    for part in page.split('<') {
        words += part.split_once('>').map_or(part, |(_, text)| text);
        words.push(' ');
    }
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    // The sums by finding and by risk, and the changes, whose rest has one row.
    let sums = text.lines().filter(|line| line.starts_with("all  "));
    for row in sums.clone() {
        let row = row.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&row), "{row}: {words}");
    }
    assert_eq!(sums.count(), 2);
    assert!(words.contains("3 more"), "{words}");
    let command = "aws ec2 modify-volume --volume-id vol-0002 --volume-type io2 --iops 1080";
    assert!(words.contains(command) && words.contains("# undo: aws ec2 modify-volume"), "{words}");
    assert!(words.contains("vol-0008: ") && words.contains("vol-0abc"), "{words}");
    for needle in ["<script", "<link", "@import", "url(", "src=", "https://"] {
        assert!(!page.contains(needle), "{needle}");
    }
    // Each table has few columns, and each value its heading.
    for table in page.split("<table ").skip(1) {
        let table = table.split("</table>").next().expect("a table");
        assert!(table.matches("<th scope=\"col\"").count() <= 6, "{table}");
        let more = table.matches("<tr class=\"more\"").count();
        let cells = table.matches("<td ").count() - more;
        assert_eq!(table.matches("data-label=\"").count(), cells, "{table}");
    }
    assert_eq!(page.matches("<div class=\"narrow\"><svg ").count(), 1);
}
