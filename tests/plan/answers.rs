//! The verbs of `evenkeel plan` from outside: named layouts that are checked, compared and
//! explained; commands that lead to one and back; and the rules by which layouts are proposed.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::{BOOK, SAMPLES, ended, ended_with_input};

/// Returns `plan` with these arguments; `@name` is a sample.
fn plan(words: &[&str]) -> Command {
    let word = |word: &&str| match word.strip_prefix('@') {
        Some(sample) => format!("{SAMPLES}/{sample}"),
        None => (*word).to_owned(),
    };
    let mut command = super::plan();
    command.args(words.iter().map(word));
    command
}

/// Returns standard output and standard error of a call with this exit code.
#[track_caller]
fn told(words: &[&str], code: i32) -> (String, String) {
    ended(&mut plan(words), code)
}

#[track_caller]
fn json_of(words: &[&str], code: i32) -> Value {
    let (stdout, _) = told(&[words, &["-o", "json"]].concat(), code);
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

/// Writes a declared workload: seconds with these numbers of requests of 4 KiB.
fn recorded(name: &str, seconds: &[u64]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.toml");
    let mut text = format!("name = {}\nrepeat = 1\n", json!(name));
    for requests in seconds {
        text += &format!(
            "[[phase]]\nname = \"p\"\nfor = \"1s\"\nrate_iops = {requests}\nsize_kib = 4\n\
             read_percent = 50\ndepth = 1\n"
        );
    }
    std::fs::write(&path, text).expect("written");
    (folder, path)
}

#[test]
fn a_workload_is_checked_on_a_layout() {
    let words = ["check", "@declared.toml", "--layout"];
    let with = |more: &[&'static str]| [&words[..], more].concat();
    let (text, _) = told(&with(&["gp3 100, 5000 IOPS, 500 MiB/s"]), 0);
    assert!(text.contains("carries orders") && text.contains("ok"), "{text}");
    // 625 MiB/s are requested in two of ten minutes, and 125 are served.
    let (text, error) = told(&with(&["gp3 100"]), 1);
    assert!(text.contains("does not carry orders"), "{text}");
    assert!(
        error.contains(
            "throttled a day: 14400 s, allowed are 0.0; requests wait first from 1:00:00 \
                        on for 5 min, at the limit of MiB/s"
        ),
        "{error}"
    );
    assert!(error.contains("names the cheapest that does"), "{error}");
    told(&with(&["gp3 100", "--throttled", "14400"]), 0);
    told(&with(&["gp3 100", "--throttled", "14395"]), 1);
    told(&with(&["gp3 100", "--p99", "190000"]), 0);
    let value = json_of(&with(&["gp3 100", "--p99", "100", "--capacity", "200"]), 1);
    let verdicts: Vec<&Value> =
        value["checks"].as_array().expect("checks").iter().map(|it| &it["pass"]).collect();
    // A bound on delays replaces the default one on throttled time; 200 GiB are more than 100.
    assert_eq!(verdicts, [true, false, false], "{value}");
    assert_eq!(value["waiting"]["times"], 6, "{value}");
    assert_eq!(value["waiting"]["first"]["start_ms"], 3_600_000, "{value}");
    assert_eq!(value["layout"]["layout"], "gp3 100 GiB, 3000 IOPS, 125 MiB/s");
    let (csv, _) = told(&with(&["gp3 100", "-o", "csv"]), 1);
    assert_eq!(csv, "check,allowed,found,verdict\nthrottled a day s,0.0,14400,failed\n");
}

/// The layouts of a plan pass the check, which reads their words.
#[test]
fn what_a_plan_names_passes_the_check() {
    let plan = json_of(&["@declared.toml", "--capacity", "100", "--stripes", "3"], 0);
    let layouts = plan["layouts"].as_array().expect("layouts");
    assert!(layouts.len() > 5);
    for layout in layouts {
        let words = layout["layout"].as_str().expect("words");
        let value = json_of(&["check", "@declared.toml", "--layout", words], 0);
        assert_eq!(&value["layout"], layout, "{words}");
    }
}

#[test]
fn layouts_are_compared_side_by_side() {
    let words = ["compare", "@declared.toml", "--layout", "5 x gp3 20", "--layout", "gp2 500 GiB"];
    let (text, _) = told(&words, 0);
    for part in [
        "A: 5 x gp3 20 GiB, 3000 IOPS, 125 MiB/s\nB: gp2 500 GiB, 1500 IOPS\n",
        "all USD/month         8.00           50.00\n",
        "all USD/year          96.00          600.00\n",
        "IOPS used             33 %           166 %\n",
        "B against A: +42.00 USD a month, +504.00 a year; requests wait",
        "a day longer; more durable",
        "risk of A: a file system that does not stripe keeps a hot set on one of the 5 volumes",
        "risk of B: lives on credits of IOPS",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let value = json_of(&words, 0);
    let total = |at: usize| value["layouts"][at]["monthly_micro_usd"]["total"].as_i64();
    let more = value["against_the_first"][0]["monthly_micro_usd"].as_i64();
    assert_eq!(total(1).zip(total(0)).map(|(one, other)| one - other), more, "{value}");
    let (csv, _) = told(&[&words[..], &["-o", "csv"]].concat(), 0);
    let layouts = "layout,\"5 x gp3 20 GiB, 3000 IOPS, 125 MiB/s\",\"gp2 500 GiB, 1500 IOPS\"\n";
    let rows = format!("what,a,b\n{layouts}possible,yes,yes\nstorage USD/month,8.00,");
    assert!(csv.starts_with(&rows), "{csv}");
    let (_, error) = told(&words[..4], 2);
    assert!(error.contains("1 layouts: 2 to 6 are compared"), "{error}");
}

#[test]
fn what_happens_is_explained_step_by_step() {
    // 7,500 requests in a second take two and a half.
    let (_folder, path) = recorded("burst", &[1_000, 7_500, 1, 1_000, 1, 1]);
    let path = path.to_str().expect("UTF-8");
    let words = ["explain", path, "--layout", "gp3 100", "--step", "1"];
    let value = json_of(&words, 0);
    let lines = value["lines"].as_array().expect("lines");
    let of = |key: &str| lines.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("asked_iops"), [1_000, 7_500, 1, 1_000, 1], "{value}");
    assert_eq!(of("state"), ["quiet", "waits", "waits", "waits", "quiet"], "{value}");
    // A full second serves as much as the limit allows.
    assert_eq!(of("served_iops")[..3], [1_000, 3_000, 3_000], "{value}");
    let queues: Vec<u64> = of("queue").iter().filter_map(Value::as_u64).collect();
    assert!(queues[1].abs_diff(4_500) < 5 && queues[2].abs_diff(1_501) < 5, "{value}");
    // The last two seconds are one line; with one line less, those with the shortest waits share
    // one.
    assert_eq!(of("steps"), [1, 1, 1, 1, 2], "{value}");
    let few = json_of(&[&words[..], &["--top", "3"]].concat(), 0);
    let steps: Vec<&Value> =
        few["lines"].as_array().expect("lines").iter().map(|it| &it["steps"]).collect();
    assert_eq!(steps, [1, 1, 4], "{few}");
    // If nothing waits but credits change, the time is divided evenly.
    let (_other, quiet) = recorded("quiet", &[2_000, 1].repeat(10));
    let quiet = quiet.to_str().expect("UTF-8");
    let even = json_of(&["explain", quiet, "--layout", "gp2 1", "--step", "1", "--top", "5"], 0);
    let steps: Vec<&Value> =
        even["lines"].as_array().expect("lines").iter().map(|it| &it["steps"]).collect();
    assert_eq!(steps, [5, 5, 5, 5], "{even}");
    let waited = |value: &Value| {
        value["lines"]
            .as_array()
            .expect("lines")
            .iter()
            .map(|it| it["waited_ms"].as_u64())
            .sum::<Option<u64>>()
    };
    assert!(waited(&few).unwrap().abs_diff(waited(&value).unwrap()) <= 3, "{few}");
    let (text, _) = told(&[&words[..], &["--from", "1s", "--to", "3s"]].concat(), 0);
    assert!(text.contains("0:00:01") && !text.contains("0:00:03  "), "{text}");
    let (_, error) = told(&[&words[..], &["--from", "1h"]].concat(), 2);
    assert!(error.contains("it goes from 0:00:00 to 0:00:06"), "{error}");
    let (_, error) = told(&[&words[..], &["--from", "2026-01-01T00:00:00Z"]].concat(), 2);
    assert!(error.contains("does not say at what time of day"), "{error}");
    // The default layout is the cheapest one: 7,500 requests come in a second.
    let words = ["explain", path, "--capacity", "1", "--types", "gp3"];
    let value = json_of(&words, 0);
    assert_eq!(value["layout"]["layout"], "gp3 15 GiB, 7500 IOPS, 125 MiB/s", "{value}");
    // A volume of our own earns and saves 1.05 seconds' worth of tokens.
    let value = json_of(&[&words[..], &["--prices", BOOK]].concat(), 0);
    assert_eq!(value["layout"]["iops"], 7_143, "{value}");
}

/// AWS documents no tolerance, and a volume of Evenkeel has one of 50 ms.
#[test]
fn bursts_above_a_limit_are_counted_on_for_our_own_volumes_alone() {
    let (_folder, path) = recorded("burst", &[6_300, 0, 0]);
    let path = path.to_str().expect("UTF-8");
    let words = [path, "--capacity", "20", "--types", "gp3"];
    let ours = [&words[..], &["--prices", BOOK]].concat();
    let [ebs, own] = [&words[..], &ours].map(|words| json_of(words, 0));
    assert_eq!((&ebs["tolerance_ms"], &own["tolerance_ms"]), (&json!(0), &json!(50)));
    let first = |value: &Value, key: &str| value["layouts"][0][key].clone();
    assert_eq!((first(&ebs, "iops"), first(&ebs, "waits_by")), (json!(6_300), json!("fluid")));
    assert_eq!((first(&own, "iops"), first(&own, "waits_by")), (json!(6_000), json!("scheduler")));
    assert_eq!(ebs["cheapest_by_scheduler"], Value::Null);
    assert_eq!(own["cheapest_by_scheduler"]["throttled_ms_per_day"], 0, "{own}");
    let (text, _) = told(&words, 0);
    assert!(text.contains("\nlimits of EBS as documented: no burst above them"), "{text}");
    assert!(text.contains("the cheapest, by its limits alone: 0.0 s of waiting"), "{text}");
    let (text, _) = told(&ours, 0);
    assert!(text.contains("\nlimits of volumes of Evenkeel: bursts of 50 ms above"), "{text}");
    assert!(text.contains("request by request on the scheduler: 0.0 s of waiting"), "{text}");
    let (page, _) = told(&[&words[..], &["-o", "html"]].concat(), 0);
    assert!(page.contains("of EBS as documented"), "the page says so, too");
    // Checks go by it, too, and so do their percentiles.
    let check = ["check", path, "--layout", "gp3 20, 6000 IOPS"];
    let (_, error) = told(&check, 1);
    assert!(error.contains("at the limit of IOPS"), "{error}");
    let (text, _) = told(&[&check[..], &["--prices", BOOK]].concat(), 0);
    assert!(text.contains("limits of volumes of Evenkeel"), "{text}");
    let p99 = |more: &[&str]| {
        let words = ["check", path, "--layout", "gp3 400", "--p99", "5000"];
        json_of(&[&words[..], more].concat(), 0)["layout"]["delay_us"]["p99"].as_u64()
    };
    let [ebs, own] = [p99(&[]), p99(&["--prices", BOOK])];
    assert!(own < ebs, "{own:?} {ebs:?}");
}

#[test]
fn words_that_are_no_layout_are_named() {
    for (layout, part) in [
        ("gp9 100", "--layout \"gp9 100\": \"gp9\": expected standard, st1"),
        ("gp3 100 GiB, 1 IOPS", "Volume iops of 1 is too low; minimum is 3000"),
        ("io1 100", "The parameter iops must be specified for io1 volumes."),
    ] {
        let (_, error) = told(&["check", "@declared.toml", "--layout", layout], 2);
        assert!(error.contains(part) && error.contains("as in the column LAYOUT"), "{error}");
    }
    let (_, error) =
        told(&["check", "@declared.toml", "--layout", "gp3 100", "--as-of", "2014-07"], 2);
    assert!(error.contains("Unsupported volume type 'gp3'"), "{error}");
    let (_, error) = told(&["check", "@declared.toml"], 2);
    assert!(error.contains("--layout"), "{error}");
    let (_, error) = told(&["explain", "@declared.toml", "--layout", "gp3 9", "-o", "html"], 2);
    assert!(error.contains("`evenkeel plan explain` makes no page"), "{error}");
}

/// The volume of this export is modified, and modified back, or copied if it cannot shrink.
#[test]
fn commands_lead_to_a_layout_and_back() {
    let commands = |more: &[&str]| {
        let trace = ["@cloudwatch_data.json", "--days-min", "0", "--types", "gp3"];
        let words = [&trace[..], more].concat();
        json_of(&words, 0)["layouts"][0]["commands"].clone()
    };
    let id = "vol-0123456789abcdef0";
    let there = commands(&["--source", "gp2 100"]);
    let gp3 = format!(
        "aws ec2 modify-volume --volume-id {id} --volume-type gp3 --size 100 --iops \
                       3000 --throughput 125"
    );
    let gp2 = format!("aws ec2 modify-volume --volume-id {id} --volume-type gp2 --size 100");
    assert_eq!((&there["aws"], &there["back"]["aws"]), (&json!([gp3]), &json!([gp2])), "{there}");
    let gp2 = format!("evenkeel volume modify {id} --type gp2 --size 100");
    assert_eq!(there["back"]["evenkeel"], json!([gp2]));
    assert_eq!(there["back"]["notes"][0], "a volume is modified at most 4 times in 24 h");
    let terraform = there["terraform"].as_str().expect("a block");
    assert!(terraform.contains(&format!("terraform import aws_ebs_volume.plan {id}")));
    // A volume cannot shrink, neither to the layout nor back.
    let shrinks = commands(&["--source", "gp2 500", "--capacity", "100"]);
    let words = shrinks["notes"][0].as_str().expect("a note");
    assert!(words.contains("cannot be modified: New size cannot be smaller"), "{words}");
    assert_eq!(shrinks["back"]["aws"], json!(["aws ec2 delete-volume --volume-id VOLUME"]));
    let elsewhere = commands(&["--source", "gp2 100", "--region", "eu-west-1"]);
    let aws = [&elsewhere["aws"][0], &elsewhere["back"]["aws"][0]];
    for command in aws.map(|command| command.as_str().expect("a command")) {
        assert!(command.ends_with(" --region eu-west-1"), "{command}");
    }
    let grows = commands(&["--source", "gp2 50", "--capacity", "100"]);
    assert!(grows["aws"][0].as_str().is_some_and(|it| it.contains("modify-volume")), "{grows}");
    assert_eq!(grows["back"]["aws"], json!([]));
    let words = grows["back"]["notes"][0].as_str().expect("a note");
    assert!(words.contains("Make a volume of what it was, gp2 50 GiB, 150 IOPS"), "{words}");
    // Before volumes could be modified, their data was copied.
    let before = json_of(
        &[
            "@cloudwatch_data.json",
            "--types",
            "gp2",
            "--source",
            "standard 100",
            "--as-of",
            "2016-06",
            "--days-min",
            "0",
        ],
        0,
    );
    let words = before["layouts"][0]["commands"]["notes"][0].as_str().expect("a note");
    assert!(words.contains("ModifyVolume is not part of the rules"), "{words}");
    // A stripe consists of new volumes.
    let words =
        ["@declared.toml", "--capacity", "100", "--stripes", "2", "--types", "gp3", "--top", "1"];
    let stripe = json_of(&words, 0)["layouts"][0]["commands"].clone();
    let loops = stripe["evenkeel"][0].as_str().expect("a command");
    assert!(
        loops.starts_with("for n in $(seq 2); do evenkeel volume create --type gp3"),
        "{loops}"
    );
    let raid = stripe["stripe"][0].as_str().expect("a command");
    assert!(raid.starts_with("mdadm --create /dev/md0 --level=0 --chunk=64K --raid-devices=2"));
    assert!(stripe["terraform"].as_str().is_some_and(|it| it.contains("count = 2")));
}

#[test]
fn credits_and_headroom_are_told() {
    let value =
        json_of(&["compare", "@declared.toml", "--layout", "gp2 500", "--layout", "gp3 100"], 0);
    let [gp2, gp3] = [0, 1].map(|index| &value["layouts"][index]);
    let curve = gp2["credits"][0]["percent"].as_array().expect("a curve");
    assert_eq!((curve.len(), &gp2["credits"][0]["limit"]), (3, &json!("IOPS")), "{gp2}");
    assert!(curve[0].as_u64() < Some(40) && curve[2] == 0, "{gp2}");
    assert_eq!(gp3["credits"], json!([]));
    for used in gp3["used"].as_array().expect("limits") {
        let sum = used["permille"].as_i64().zip(used["headroom_permille"].as_i64());
        assert_eq!(sum.map(|(used, free)| used + free), Some(1_000), "{used}");
    }
    let risks = gp2["risks"].as_array().expect("risks").iter().map(|it| it["risk"].as_str());
    let names = ["waits", "runs_dry", "lives_on_credits", "over_limit", "over_limit"].map(Some);
    assert_eq!(risks.collect::<Vec<_>>(), names, "{gp2}");
}

/// Splits a command line into its words, some of which are quoted.
fn split(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    let words = parts.flat_map(|(place, part)| match place % 2 {
        1 => vec![part.to_owned()],
        _ => part.split_whitespace().map(str::to_owned).collect(),
    });
    words.collect()
}

/// The examples of the page are printed by the program, line by line; `...` leaves some out.
#[test]
fn the_examples_of_the_documentation_are_what_is_printed() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/plan.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let blocks: Vec<&str> = page.split("```console\n$ evenkeel plan ").skip(1).collect();
    assert!(blocks.len() >= 4, "{}", blocks.len());
    for block in blocks {
        let block = block.split("```").next().expect("an end");
        let (command, shown) = block.split_once('\n').expect("a command");
        let words = split(&command.replace("cloudwatch.json", "@cloudwatch_data.json"));
        let words: Vec<String> =
            words.iter().map(|word| word.replace("declared.toml", "@declared.toml")).collect();
        let mut command_of_page = plan(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let output = command_of_page.output().expect("the program starts");
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8(printed).expect("UTF-8");
        let mut rest = printed.lines();
        for line in shown.lines().filter(|line| !line.is_empty() && *line != "...") {
            assert!(rest.any(|printed| printed == line), "{command}: {line}\n{printed}");
        }
    }
}

/// Returns the text of a page without its elements.
fn words_of(page: &str) -> String {
    let mut words = String::new();
    for part in page.split('<') {
        words.push_str(part.split_once('>').map_or(part, |(_, text)| text));
        words.push(' ');
    }
    let plain = words.replace("&#39;", "'").replace("&quot;", "\"").replace("&gt;", ">");
    plain.replace("&lt;", "<").replace("&amp;", "&")
}

#[test]
fn the_page_has_what_the_json_has_and_nothing_from_elsewhere() {
    let words = ["@declared.toml", "--capacity", "100", "--throttled", "20000"];
    let value = json_of(&words, 0);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("page.html");
    let (text, _) = told(&[&words[..], &["--html", path.to_str().expect("UTF-8")]].concat(), 0);
    assert!(text.starts_with("orders: "), "the answer is printed, too");
    let page = std::fs::read_to_string(&path).expect("a page");
    let (printed, _) = told(&[&words[..], &["-o", "html"]].concat(), 0);
    assert!(page == printed, "the file has what -o html prints");
    let plain = page.replace("http://www.w3.org/2000/svg", "");
    for needle in ["<script", "<link", "@import", "url(", "src=", "http://", "https://"] {
        assert!(!plain.contains(needle), "{needle}");
    }
    assert!(page.len() < 300_000, "{}", page.len());
    assert_fits(&page);
    let shown = words_of(&page);
    for layout in value["layouts"].as_array().expect("layouts") {
        let words = layout["layout"].as_str().expect("words");
        let micro_usd = layout["monthly_micro_usd"]["total"].as_u64().expect("a cost");
        let cents = (micro_usd + 5_000) / 10_000;
        let seconds = layout["throttled_ms_per_day"].as_u64().expect("ms") / 1_000;
        let row = shown.split(&format!("{words}  ")).nth(1).unwrap_or_else(|| panic!("{words}"));
        let cells: Vec<&str> = row.split_whitespace().take(3).collect();
        let cost = format!("{}.{:02}", cents / 100, cents % 100);
        assert_eq!(cells[0], cost, "{words}");
        assert!(cells[1].parse::<f64>().expect("a year") > 11.9 * cents as f64 / 100.0, "{words}");
        assert_eq!(cells[2].split('.').next(), Some(seconds.to_string().as_str()), "{words}");
    }
    let first = &value["layouts"][0];
    for risk in first["risks"].as_array().expect("risks") {
        assert!(shown.contains(risk["words"].as_str().expect("words")), "{risk}");
    }
    let command = first["commands"]["aws"][0].as_str().expect("a command");
    assert!(shown.contains(command), "{command}");
    // Limits, the worst minute and its waits, credits, cost against waiting, each in two sizes.
    assert_eq!(page.matches("<svg ").count(), 12);
    assert_eq!(page.matches("<desc>").count(), 12);
    assert!(shown.contains("none cheaper waits less"));
    // Where each second is known, there is a picture of seconds, and no band.
    assert!(shown.contains("Second by second") && !page.contains("\nat most\n"), "{shown}");
}

/// Checks that a page is whole, and fits a narrow window: each chart is drawn for one, tables have
/// few columns, and each value has its heading beside it.
#[track_caller]
fn assert_fits(page: &str) {
    assert!(page.ends_with("</html>\n"));
    for tag in
        ["section", "table", "tr", "td", "th", "div", "figure", "svg", "details", "dl", "pre"]
    {
        let open =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    let narrow = page.matches("<div class=\"narrow\"><svg ").count();
    assert_eq!(page.matches("<svg ").count(), 2 * narrow);
    assert_eq!(page.matches("width=\"340\"").count(), narrow);
    let tables: Vec<&str> = page.split("<table ").skip(1).collect();
    assert!(!tables.is_empty());
    for table in tables {
        let table = table.split("</table>").next().expect("a table");
        assert!(table.starts_with("class=\"cards "), "{table}");
        let columns = table.matches("<th scope=\"col\"").count();
        assert!((2..=7).contains(&columns), "{columns} columns: {table}");
        let body = table.split("<tbody").nth(1).expect("a body");
        for row in body.split("<tr ").skip(1) {
            if let Some(more) = row.strip_prefix("class=\"more\"") {
                assert!(more.contains(&format!("colspan=\"{columns}\"")), "{more}");
                assert!(more.contains("<details><summary>More"), "{more}");
                continue;
            }
            assert_eq!(row.matches("<th scope=\"row\"").count(), 1, "{row}");
            let cells = row.matches("<td ").count();
            assert_eq!(
                (cells, row.matches("data-label=\"").count()),
                (columns - 1, cells),
                "{row}"
            );
        }
    }
}

/// Writes a recording of steps of five minutes with these requests of 4 KiB, as the recorder does.
/// A step without a number is a gap.
fn recorded_in_steps(requests: &[Option<u64>]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl");
    let mut text = String::new();
    for (step, reads) in requests.iter().enumerate() {
        let Some(reads) = reads else { continue };
        // 13:37, 25 November 2026.
        let start_ms = 1_795_613_820_000 + step as u64 * 300_000;
        let line = json!({
            "volume": "vol-0abc", "start_ms": start_ms, "length_ms": 300_000, "reads": reads,
            "writes": 0, "read_bytes": reads * 4_096, "write_bytes": 0,
        });
        text += &format!("{line}\n");
    }
    std::fs::write(&path, text).expect("written");
    (folder, path)
}

#[test]
fn a_page_of_long_steps_has_bands_and_no_picture_of_seconds() {
    let mut requests = vec![Some(30_000); 3 * 288];
    requests[400] = Some(600_000);
    requests[390..398].fill(None);
    let (_folder, path) = recorded_in_steps(&requests);
    let path = path.to_str().expect("UTF-8");
    let words = [path, "--days-min", "0", "-o", "html", "--source"];
    // The source allowed 3,000 a second, which the layout has, too: nothing can wait.
    let (page, _) = told(&[&words[..], &["gp3 100"]].concat(), 0);
    assert_fits(&page);
    let shown = words_of(&page);
    assert!(!shown.contains("Second by second"), "{shown}");
    assert!(shown.contains("The busiest 5 min of") && page.contains("\nat most\n"), "{shown}");
    assert!(shown.contains("from AT LEAST, evenly in each step, to AT MOST"), "{shown}");
    assert!(page.contains("<p class=\"banner kept\"><span aria-hidden=\"true\">\u{2713}"));
    // The picture of the busiest step begins after the gap: its labels are true.
    let numbers = page.split("The busiest 5 min of").last().expect("a section");
    let first = numbers.split("<th scope=\"row\"").nth(1).expect("a row");
    assert!(first.contains(">2026-11-26T22:47:00"), "{first}");
    // It allowed 16,000: requests wait if they came that fast, so there is no tick.
    let (page, _) = told(&[&words[..], &["gp2 5334"]].concat(), 0);
    assert_fits(&page);
    let shown = words_of(&page);
    assert!(page.contains("<p class=\"banner undecided\"") && !page.contains('\u{2713}'));
    assert!(shown.contains("requests wait 0.0 s a day, as assumed; at most"), "{shown}");
    assert!(shown.contains("Waiting in that time"), "{shown}");
    // The label of a tick is true at the tick: full hours, and midnight where there is a date.
    let chart = page.split("<svg ").nth(1).expect("a chart");
    assert!(chart.contains("\n11-26 00:00\n") && !chart.contains(":37"), "{chart}");
}

#[test]
fn check_and_compare_make_pages_of_what_they_answer() {
    let check = ["check", "@declared.toml", "--layout", "gp3 100", "-o", "html"];
    let (page, error) = told(&check, 1);
    assert_fits(&page);
    let shown = words_of(&page);
    assert!(error.contains("does not carry orders"), "{error}");
    assert!(page.contains("<p class=\"banner broken\"") && !page.contains('\u{2713}'));
    for part in ["does not carry orders", "\u{2717} failed", "requests wait first from 1:00:00 on"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("page.html");
    let path = path.to_str().expect("UTF-8");
    let layout = "gp3 100, 5000 IOPS, 500 MiB/s";
    let (text, _) = told(&["check", "@declared.toml", "--layout", layout, "--html", path], 0);
    assert!(text.contains("carries orders"), "the answer is printed, too");
    let page = std::fs::read_to_string(path).expect("a page");
    assert!(page.contains("<p class=\"banner kept\"") && page.contains("\u{2713} ok"));
    // A tick of a check is true wherever the requests lie in a step.
    let (_folder, trace) = recorded_in_steps(&[Some(30_000); 288]);
    let trace = trace.to_str().expect("UTF-8");
    let words = ["check", trace, "--layout", "gp3 5334", "-o", "html", "--p99", "100", "--source"];
    let (page, _) = told(&[&words[..], &["gp2 5334"]].concat(), 0);
    assert!(page.contains("? ok as assumed") && page.contains("banner undecided"));
    let (page, _) = told(&[&words[..], &["gp3 100"]].concat(), 0);
    assert!(page.contains("\u{2713} ok") && page.contains("banner kept"));

    let compare = ["compare", "@declared.toml", "--html", path, "--layout"];
    let layouts = ["gp3 100", "--layout", "gp2 500", "--layout", "io2 100, 5000 IOPS"];
    let (text, _) = told(&[&compare[..], &layouts].concat(), 0);
    let page = std::fs::read_to_string(path).expect("a page");
    assert_fits(&page);
    let shown = words_of(&page);
    for line in text.lines().filter(|line| line.contains(" against A: ")) {
        assert!(shown.contains(line), "{line}");
    }
    let rows = text.lines().filter(|line| line.starts_with("all USD/"));
    for row in rows.clone() {
        let spaced = row.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(&spaced), "{spaced}: {shown}");
    }
    assert_eq!(rows.count(), 2);
}

/// The picture in the README is a chart of such a page, with the page's colours in it.
#[test]
fn the_picture_of_the_readme_is_what_comes_out() {
    const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/charts/plan.svg");
    let words = ["@declared.toml", "--capacity", "100", "--stripes", "2", "-o", "html"];
    let (page, _) = told(&words, 0);
    let between = |from: &str, to: &str| {
        let rest = page.split_once(from).expect(from).1;
        rest.split_once(to).expect(to).0.to_owned()
    };
    let style = between("<style>", "</style>");
    let chart = between("<svg", "</svg>");
    let (head, rest) = chart.split_once('>').expect("a tag");
    let picture = format!("<svg{head}>\n<style>{style}</style>{rest}</svg>\n");
    if std::env::var_os("EVENKEEL_WRITE").is_some() {
        std::fs::write(PICTURE, &picture).expect("written");
    }
    let kept = std::fs::read_to_string(PICTURE).unwrap_or_default();
    assert!(
        kept == picture,
        "the picture differs; EVENKEEL_WRITE=1 cargo test --test plan_answers picture writes it"
    );
}

#[test]
fn a_page_is_bounded_and_its_names_cannot_break_it() {
    // The demand of each second is different.
    let noise: Vec<u64> = (0..900_u64).map(|number| 1 + number * 7_919 % 4_001).collect();
    let (_folder, path) = recorded("<script>\u{1b}'\"&amp;</title>", &noise);
    let path = path.to_str().expect("UTF-8");
    let words = [path, "--capacity", "10", "--stripes", "4", "--throttled", "80000", "-o", "html"];
    let (page, _) = told(&words, 0);
    assert!(page.len() < 300_000, "{}", page.len());
    assert!(!page.contains("<script") && !page.contains('\u{1b}'));
    assert!(page.contains("<h1>&lt;script&gt;\\u{1b}&#39;&quot;&amp;amp;&lt;/title&gt;</h1>"));
    assert_fits(&page);
    // The recipe that makes one device of several volumes stands once.
    let words = ["@declared.toml", "--capacity", "100", "--stripes", "2", "--types", "gp2"];
    let (page, _) = told(&[&words[..], &["--throttled", "20000", "-o", "html"]].concat(), 0);
    assert_eq!(page.matches("mdadm --create").count(), 1);
    assert!(!page.contains("lvcreate"));
    // A workload without requests has a page, too.
    let (_folder, path) = recorded("idle", &[0, 0]);
    let (page, _) = told(&[path.to_str().expect("UTF-8"), "--capacity", "1", "-o", "html"], 0);
    assert!(page.ends_with("</html>\n"));
}

#[test]
fn odd_names_types_and_traces_are_taken_for_what_they_are() {
    let (_folder, path) = recorded("a\u{1b}[31m\u{202e}b", &[10, 10]);
    let path = path.to_str().expect("UTF-8");
    let (text, _) = told(&[path, "--capacity", "1"], 0);
    assert!(text.starts_with("a\\u{1b}[31m\\u{202e}b: 2 s, in steps of 1 s"), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{202e}']));
    let value = json_of(&[path, "--capacity", "1", "--types", "gp3,gp3,gp3"], 0);
    assert_eq!(value["layouts"].as_array().map(Vec::len), Some(1));
    let (_, error) = told(&["@cloudwatch_data.json", "--capacity", "1", "--volume", "nosuch"], 3);
    assert!(error.contains("nosuch"), "{error}");
    let (_, error) = told(&["@declared.toml", "--capacity", "1", "--volume", "nosuch"], 3);
    assert!(error.contains("\"orders\""), "{error}");
    let (_, error) = told(&["@iostat_x.txt", "--capacity", "1", "--volume", "nosuch"], 3);
    assert!(error.contains("nosuch"), "{error}");
    let (_, error) = told(&[path, "--capacity", "900000"], 1);
    assert!(error.contains("no layout holds 900000 GiB"), "{error}");
    assert!(!error.contains("busiest"), "{error}");
    let (_, error) = told(&[path, "--capacity", "9", "--types", "st1", "--boots"], 1);
    assert!(error.contains("none of these types comes into question"), "{error}");
}

/// A recording of constant hours: requests a second, of 4 KiB each.
fn hours_recorded(hours: u64, per_second: u64) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vol-0123456789abcdef0.jsonl");
    let mut text = String::new();
    for step in 0..hours * 12 {
        let start_ms = 1_795_633_200_000 + step * 300_000;
        let reads = per_second * 300;
        text += &json!({
            "volume": "vol-0123456789abcdef0",
            "start_ms": start_ms,
            "length_ms": 300_000,
            "reads": reads,
            "writes": 0,
            "read_bytes": reads * 4_096,
            "write_bytes": 0,
        })
        .to_string();
        text.push('\n');
    }
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("UTF-8").to_owned();
    (folder, path)
}

/// 5,000 requests a second become 6,000 IOPS; a declared workload is what is wanted.
#[test]
fn layouts_carry_the_headroom_over_what_was_recorded() {
    let (_folder, path) = hours_recorded(8 * 24, 5_000);
    let words = [path.as_str(), "--capacity", "100", "--types", "gp3"];
    let first = |more: &[&str]| json_of(&[&words[..], more].concat(), 0);
    let value = first(&[]);
    assert_eq!(value["layouts"][0]["iops"], 6_000, "{value}");
    assert_eq!(value["headroom_percent"], 20, "{value}");
    // Waiting and how full limits are is that of what was recorded.
    assert_eq!(value["asked"]["peak_iops"], 5_000, "{value}");
    assert_eq!(value["layouts"][0]["used"][0]["permille"], 833, "{value}");
    assert_eq!(first(&["--headroom", "0"])["layouts"][0]["iops"], 5_000);
    assert_eq!(first(&["--headroom", "50"])["layouts"][0]["iops"], 7_500);
    let (text, _) = told(&words, 0);
    assert!(text.contains("\nlayouts carry 20 % more than that\n"), "{text}");
    let declared = ["@declared.toml", "--capacity", "100", "--types", "gp3"];
    assert_eq!(json_of(&declared, 0)["headroom_percent"], 0);
    let more = [&declared[..], &["--headroom", "20"]].concat();
    assert_eq!(json_of(&more, 0)["layouts"][0]["iops"], 6_000);
}

/// A client that waits for each answer uses a fast device for a quarter of a second: it asked for
/// 5,073 requests, and not for four times as many.
#[test]
fn seconds_of_a_fast_device_are_what_was_asked_for() {
    let words = ["@iostat_nvme.txt", "--capacity", "100", "--days-min", "0"];
    let value = json_of(&words, 0);
    assert_eq!(value["asked"]["peak_iops"], 5_073, "{value}");
    let first = &value["layouts"][0];
    // 3,088 IOPS above the 3,000 of gp3, with the headroom of 20 %.
    assert_eq!(first["layout"], "gp3 100 GiB, 6088 IOPS, 125 MiB/s", "{value}");
    assert_eq!(first["monthly_micro_usd"]["total"], 23_440_000);
    // The burst is the upper bound, and what it costs is said.
    let waits = &first["throttled_ms_per_day_by_assumption"];
    assert_eq!((&waits["even"], &waits["idle"]), (&0.into(), &0.into()), "{value}");
    assert!(waits["worst"].as_u64() > Some(0), "{value}");
    let bursts = &value["in_bursts"];
    assert_eq!(bursts["layout"], "gp3 100 GiB, 22058 IOPS, 183 MiB/s", "{value}");
    assert_eq!(bursts["monthly_micros"], 105_610_000, "{value}");
    let (text, _) = told(&words, 0);
    for part in [
        "note: within its steps of 1 s the trace has no times",
        "gp3 100 GiB, 22058 IOPS, 183 MiB/s carries that for 105.61 USD a month; a trace of each",
        "s a day; a trace of each request tells which",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let value = json_of(&[&words[..], &["--assume", "worst"]].concat(), 0);
    assert_eq!(value["layouts"][0]["layout"], "gp3 100 GiB, 22058 IOPS, 183 MiB/s", "{value}");
}

/// Three days are no week, and a declared workload needs no evidence.
#[test]
fn too_little_evidence_names_no_price() {
    let (_folder, path) = hours_recorded(3 * 24, 100);
    let verbs: [&[&str]; 2] = [&[], &["explain"]];
    for verb in verbs {
        let words = [verb, &[path.as_str(), "--capacity", "100"]].concat();
        let (text, error) = told(&words, 6);
        assert_eq!(text, "");
        let missing = "3 days of metrics, of 7 days that are needed: no price a month is named";
        assert!(error.contains(missing) && error.contains("--days-min 0 plans"), "{error}");
        told(&[&words[..], &["--days-min", "3"]].concat(), 0);
        told(&[&words[..], &["--days-min", "4"]].concat(), 6);
    }
    // A layout that is named has its price.
    told(&["check", &path, "--layout", "gp3 100"], 0);
    let (_folder, path) = recorded("declared", &[100]);
    told(&[path.to_str().expect("UTF-8"), "--capacity", "100"], 0);
}

/// HDD types are a line of their own, and rows only if they are named, or are the source.
#[test]
fn ssd_types_are_offered_and_hdd_types_in_a_line() {
    let types = |value: &Value| -> Vec<String> {
        let layouts = value["layouts"].as_array().expect("layouts").iter();
        let mut types: Vec<String> = layouts
            .map(|layout| layout["volume_type"].as_str().expect("a type").to_owned())
            .collect();
        types.sort_unstable();
        types
    };
    // sc1 takes each as 1 MiB, and 500 GiB earn 5.9 MiB a second.
    let (_folder, path) = hours_recorded(8 * 24, 4);
    let words = [path.as_str(), "--capacity", "500"];
    let with = |more: &[&'static str]| json_of(&[&words[..], more].concat(), 0);
    let value = with(&[]);
    assert_eq!(types(&value), ["gp2", "gp3", "io1", "io2"], "{value}");
    let on_hdd = &value["if_latency_does_not_matter"];
    assert_eq!(on_hdd["layout"]["layout"], "sc1 500 GiB", "{value}");
    assert_eq!(on_hdd["layout"]["monthly_micro_usd"]["total"], 7_500_000);
    assert_eq!(on_hdd["small_requests_permille"], 1_000);
    let (text, _) = told(&words, 0);
    let line = "if latency does not matter: sc1 500 GiB, for 7.50 USD a month, 32.50 less; 100.0 %";
    assert!(text.contains(line), "{text}");
    let (page, _) = told(&[&words[..], &["-o", "html"]].concat(), 0);
    assert!(page.contains("if latency does not matter: sc1 500 GiB"));
    // Named types, and those beside an HDD source.
    assert_eq!(types(&with(&["--types", "sc1,gp3"])), ["gp3", "sc1"]);
    assert_eq!(with(&["--types", "gp3"])["if_latency_does_not_matter"], Value::Null);
    let value = with(&["--source", "st1 500"]);
    assert_eq!(types(&value), ["gp2", "gp3", "io1", "io2", "sc1", "st1"]);
    assert_eq!(value["if_latency_does_not_matter"], Value::Null);
    // io2 stays io2, unless less durable types are asked for.
    assert_eq!(types(&with(&["--source", "io2 500, 1000 IOPS"])), ["io2"]);
    let less = ["--source", "io2 500, 1000 IOPS", "--less-durable"];
    assert_eq!(types(&with(&less)), ["gp2", "gp3", "io1", "io2"]);
}

/// Every answer says by which prices it goes, in one line and in JSON.
#[test]
fn every_answer_names_its_prices() {
    let prices = ["--region", "eu-west-1", "--discount", "gp3=12.5,io2=7"];
    let line = "prices of 2026-10-15, eu-west-1, less 12.5 % of gp3 and 7 % of io2\n";
    let all: [&[&str]; 4] = [
        &["@declared.toml", "--capacity", "100", "--types", "gp3"],
        &["check", "@declared.toml", "--layout", "gp3 100", "--throttled", "86400"],
        &["compare", "@declared.toml", "--layout", "gp3 100", "--layout", "gp3 200"],
        &["explain", "@declared.toml", "--layout", "gp3 100"],
    ];
    for words in all {
        let words = [words, &prices].concat();
        let (text, _) = told(&words, 0);
        assert_eq!(text.matches(line).count(), 1, "{text}");
        let value = json_of(&words, 0);
        let of = ["prices", "region", "currency"].map(|key| value[key].as_str().expect("a word"));
        assert_eq!(of, ["2026-10-15", "eu-west-1", "USD"], "{value}");
        assert_eq!(value["discounts_percent"], json!({ "gp3": 12.5, "io2": 7.0 }));
        assert!(value["rules"].is_string(), "{value}");
    }
}

/// 66.67 % of 8.00 are 5.3336.
#[test]
fn amounts_are_rounded_to_the_nearest_cent() {
    let discount = ["--discount", "gp3=33.33"];
    let layouts = ["--layout", "gp3 100", "--layout", "gp3 200"];
    let words = [&["compare", "@declared.toml"][..], &layouts, &discount].concat();
    let (text, _) = told(&words, 0);
    assert!(text.contains("all USD/month         5.33           10.67\n"), "{text}");
    assert!(text.contains("B against A: +5.34 USD a month, +64.01 a year"), "{text}");
    // What the cents do not show decides, and is shown then.
    let words = ["check", "@declared.toml", "--layout", "gp3 100", "--throttled", "86400"];
    let words = [&words[..], &discount, &["--max-monthly"]].concat();
    let (_, error) = told(&[&words[..], &["5.33"]].concat(), 1);
    assert!(error.contains("cost a month: 5.3336 USD, allowed are 5.33"), "{error}");
    told(&[&words[..], &["5.34"]].concat(), 0);
}

/// In Ireland the price of more than 32,000 IOPS of io2 is not known, and that of others is.
#[test]
fn the_price_that_is_missing_is_named() {
    let region = ["--region", "eu-west-1"];
    let lacks = "no price of IOPS of io2 above 32000 in eu-west-1 is known for 2026-10-15";
    let check = ["check", "@declared.toml", "--layout", "io2 1000, 40000 IOPS"];
    let (_, error) = told(&[&check[..], &region].concat(), 2);
    assert!(error.contains(lacks), "{error}");
    let check = ["check", "@declared.toml", "--layout", "io2 1000, 32000 IOPS"];
    told(&[&check[..], &region].concat(), 0);
    let (_folder, path) = recorded("busy", &[40_000, 40_000]);
    let path = path.to_str().expect("UTF-8");
    let words = [&[path, "--capacity", "1000", "--types"][..], &["io2"], &region].concat();
    let (_, error) = told(&words, 1);
    assert!(error.contains(&format!("{lacks}: they are no candidates")), "{error}");
    let words = [&[path, "--capacity", "1000", "--types"][..], &["gp3,io2"], &region].concat();
    let (text, _) = told(&words, 0);
    assert!(text.contains(&format!("note: {lacks}: they are no candidates")), "{text}");
    let (_folder, path) = recorded("slow", &[4_000, 4_000]);
    let words = [path.to_str().expect("UTF-8"), "--capacity", "1000", "--region", "eu-west-1"];
    let (text, _) = told(&words, 0);
    assert!(!text.contains("above 32000"), "{text}");
}

#[test]
fn a_region_in_upper_case_or_a_zone_is_asked_about() {
    let words = ["check", "@declared.toml", "--layout", "gp3 100", "--region"];
    for region in ["EU-WEST-1", "eu-west-1a", "EU-West-1B"] {
        let (_, error) = told(&[&words[..], &[region]].concat(), 2);
        assert!(error.contains(" hint: did you mean eu-west-1? A region is in lower"), "{error}");
    }
    let (_, error) = told(&[&words[..], &["moon-1"]].concat(), 2);
    assert!(error.contains("--prices FILE") && !error.contains("did you mean"), "{error}");
}

/// A file is read once, so that it may be a pipe.
#[test]
fn a_price_book_may_come_from_a_pipe() {
    for name in ["/dev/stdin", "-"] {
        let words = ["check", "@declared.toml", "--layout", "gp3 400", "--throttled", "86400"];
        let mut command = plan(&[&words[..], &["--prices", name]].concat());
        let book = std::fs::read(BOOK).expect("the book");
        let (text, _) = ended_with_input(&mut command, &book, 0);
        assert!(text.contains("prices of the price book, in EUR\n"), "{text}");
    }
}

/// 1 is the verdict, 2 a mistake in the command, 3 a file that cannot be read.
#[test]
fn the_exit_code_of_a_check_tells_a_verdict_from_a_mistake() {
    let check = |words: &[&str], code| told(&[&["check"][..], words].concat(), code).1;
    check(&["@declared.toml", "--layout", "gp3 100, 5000 IOPS, 500 MiB/s"], 0);
    check(&["@declared.toml", "--layout", "gp3 100"], 1);
    check(&["@declared.toml", "--layout", "gp9 100"], 2);
    check(&["@declared.toml", "--layout", "gp3 100", "--region", "moon-1"], 2);
    for trace in ["@nothing.json", "@broken/declared.toml", "@broken/iostat.json"] {
        let error = check(&[trace, "--layout", "gp3 100"], 3);
        assert!(error.contains(&trace[1..]), "{error}");
    }
    let error = check(&["@declared.toml", "--layout", "gp3 100", "--prices", "nothing.json"], 3);
    assert!(error.contains("nothing.json: No such file"), "{error}");
    let words = ["@declared.toml", "--layout", "gp3 100"];
    // A declared workload is no price book.
    let no_book = format!("{SAMPLES}/declared.toml");
    check(&[&words[..], &["--prices", &no_book]].concat(), 3);
    let error = check(&[&words[..], &["--html", "/nonexistent/x.html"]].concat(), 3);
    assert!(error.contains("/nonexistent/x.html: No such file"), "{error}");
}

/// A fast device of the price book costs 63.96 EUR per month and has 4,000 GiB and 80,000 IOPS of
/// 16 KiB.
#[test]
fn costs_come_from_the_price_book() {
    let (_folder, trace) = recorded("orders", &[8_000, 8_000]);
    let trace = trace.to_str().expect("UTF-8");
    let words = [trace, "--capacity", "400", "--types", "io2,st1,gp3", "--prices", BOOK];
    let value = json_of(&words, 0);
    assert_eq!((&value["currency"], &value["prices"]), (&"EUR".into(), &"price book".into()));
    let first = &value["layouts"][0];
    assert_eq!(first["monthly_micros"]["total"], 6_396_000, "a tenth of a device: {first}");
    assert_eq!(first["monthly_micro_usd"], Value::Null);
    let (text, _) = told(&words, 0);
    assert!(text.contains("EUR/MONTH") && text.contains(" 6.40 "), "{text}");
    let (page, _) = told(&[&words[..], &["-o", "html"]].concat(), 0);
    assert!(page.contains("6.40 EUR a month") && page.contains("of the price book, in EUR"));
    assert!(!page.contains("USD"), "a cost is in another currency");
    // A type that no device allows is not considered.
    let folder = tempfile::tempdir().expect("a folder");
    let book = folder.path().join("book.toml");
    let text = std::fs::read_to_string(BOOK)
        .expect("the book")
        .replace("sells_throughput = 2500", "types = [\"gp3\"]\nsells_throughput = 2500");
    std::fs::write(&book, text).expect("written");
    let with = |types: &'static str| {
        [trace, "--capacity", "400", "--prices", book.to_str().expect("UTF-8"), "--types", types]
            .map(str::to_owned)
    };
    let words = with("io2,gp3");
    let (text, _) = told(&words.each_ref().map(String::as_str), 0);
    assert!(text.contains("no device of the price book carries io2: it is no candidate"), "{text}");
    let words = with("io1,io2");
    let (_, error) = told(&words.each_ref().map(String::as_str), 2);
    assert!(error.contains("no candidate is left: no device of the price book carries io1, io2"));
    // Checks of a cost, and of layouts without a price or a device that they fit on.
    let book = ["--prices", BOOK];
    let check = |layout, more: &[&'static str], code| {
        told(&[&["check", trace, "--layout", layout][..], &book, more].concat(), code)
    };
    let (text, _) = check("gp3 400, 8000 IOPS", &["--max-monthly", "7"], 0);
    assert!(text.contains("cost a month EUR      7.00   6.40  ok"), "{text}");
    let (_, error) = check("gp3 400, 8000 IOPS", &["--max-monthly", "6"], 1);
    assert!(error.contains("cost a month: 6.40 EUR, allowed are 6.00"), "{error}");
    let (_, error) = check("gp3 4001, 8000 IOPS", &[], 2);
    assert!(error.contains("no device of the price book carries gp3 4001 GiB"), "{error}");
    let words = ["compare", trace, "--layout", "gp3 400", "--layout", "gp3 800"];
    let (text, _) = told(&[&words[..], &book].concat(), 0);
    assert!(text.contains("space EUR/month") && !text.contains("USD"), "{text}");
}

#[test]
fn instances_are_candidates() {
    let words = ["@declared.toml", "--capacity", "100", "--types", "gp3", "--instance"];
    let with = |types: &'static str| [&words[..], &[types]].concat();
    let value = json_of(&with("m5.large,t3.nano,m5.large"), 0);
    let layouts = value["layouts"].as_array().expect("a list");
    assert_eq!((layouts.len(), &layouts[0]["instance"]), (1, &"m5.large".into()), "{value}");
    let (text, _) = told(&with("m5.large,t3.nano"), 0);
    for part in ["INSTANCE", "instances have no price", "no layout does what is wanted on t3.nano"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_folder, trace) = recorded("orders", &[3_590, 3_590]);
    let trace = trace.to_str().expect("UTF-8");
    // The instance's 4,000 IOPS are lower than the volume's 8,000.
    let layout = ["compare", trace, "--instance", "m1.large", "--layout", "gp3 100, 8000 IOPS"];
    let value = json_of(&[&layout[..], &["--layout", "gp3 100"]].concat(), 0);
    let used = value["layouts"][0]["used"].as_array().expect("a list");
    let of = |limit: &str| used.iter().find(|it| it["limit"] == limit).expect("a limit");
    assert_eq!(of("instance IOPS")["permille"], 897, "{used:?}");
    assert_eq!(of("IOPS")["permille"], 448, "{used:?}");
    let (text, _) =
        told(&[trace, "--capacity", "9", "--types", "gp2", "--instance", "m1.large"], 0);
    assert!(text.contains("on m1.large, the volumes bind first"), "{text}");
    let (_, error) =
        told(&[&layout[..], &["--layout", "gp3 9", "--instance", "m5.large"]].concat(), 2);
    assert!(error.contains("--instance names 2 types"), "{error}");
}

/// Five volumes have 3,000 IOPS each, and 60 % of 15,000 requests are 9,000.
#[test]
fn a_hot_volume_has_what_its_share_needs() {
    let (_folder, trace) = recorded("orders", &[15_000, 15_000]);
    let trace = trace.to_str().expect("UTF-8");
    let hot = |layout| ["check", trace, "--layout", layout, "--hot-share", "60"];
    told(&["check", trace, "--layout", "5 x gp3 100"], 0);
    let (_, error) = told(&hot("5 x gp3 100"), 1);
    assert!(error.contains("at the limit of IOPS"), "{error}");
    told(&hot("5 x gp3 100, 9000 IOPS"), 0);
    let value = json_of(&hot("5 x gp3 100, 9000 IOPS"), 0);
    let risks = value["layout"]["risks"].to_string();
    assert!(risks.contains("60 % of the requests go to one of the 5 volumes"), "{risks}");
    assert!(!value["layout"]["commands"].to_string().contains("mdadm"), "{value}");
    let both = [&hot("gp3 100")[..], &["--stripe-size", "64"]].concat();
    let (_, error) = told(&both, 2);
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn what_is_saved_against_the_source_is_told() {
    let trace = ["@cloudwatch_data.json", "--days-min", "0", "--capacity", "100", "--source"];
    let words = [&trace[..], &["gp2 100"]].concat();
    let value = json_of(&words, 0);
    assert_eq!(value["source"]["monthly_micros"], 10_000_000, "{value}");
    let saved = &value["layouts"][0]["saved_against_the_source"];
    assert_eq!(saved, &json!({ "monthly_micros": 2_000_000, "permille": 200 }), "{value}");
    let all = "saves 2.00 USD a month (20.0 %) against the source, gp2 100 GiB, 300 IOPS";
    let (text, _) = told(&words, 0);
    assert!(text.contains(all) && text.contains("SAVED USD"), "{text}");
    let (page, _) = told(&[&words[..], &["-o", "html"]].concat(), 0);
    assert!(page.contains(all), "the page says it, too");
    let (csv, _) = told(&[&words[..], &["-o", "csv"]].concat(), 0);
    assert!(csv.starts_with("layout,now,usd_month,saved_usd,"), "{csv}");
    let (text, _) = told(&[&trace[..], &["gp2 50"]].concat(), 0);
    assert!(text.contains("costs 3.00 USD a month (60.0 %) more than the source"), "{text}");
}
