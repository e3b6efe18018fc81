//! `evenkeel prove`: what keeps its promise passes, what does not fails and is told why.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use support::process::{Output, run};
use support::rates::{alone, at_least_once_beside_others, reads};
use support::server::{Server, evenkeel};
use support::tools::absent;

/// A proof of something that is not a server's volume.
fn prove(folder: &Path, words: &str) -> Output {
    run(evenkeel(folder).arg("prove").args(words.split(' ')))
}

fn warnings(proof: &Value) -> String {
    proof["report"]["warnings"].to_string()
}

/// Each type of a server's volumes is held to its own promise, and the same volume from outside.
#[test]
fn volumes_keep_their_promise_seen_from_inside_and_outside() {
    if absent(&["fio"]) {
        return;
    }
    let _alone = alone();
    let server = Server::start("--store memory");
    let io2 = server.attached("--type io2 --size 4 --iops 500");
    let gp2 = server.attached("--type gp2 --size 1");
    server.evenkeel(&format!("volume credits {gp2} --set 7000")).ok();
    let files = tempfile::tempdir().unwrap();
    at_least_once_beside_others(|| {
        let [html, junit] = ["proof.html", "proof.xml"].map(|name| files.path().join(name));
        let (shown_html, shown_junit) = (html.display(), junit.display());
        let verb = format!(
            "prove {io2} --time 5s --yes-destroy-data -o json --html {shown_html} --junit \
             {shown_junit}"
        );
        let output = server.evenkeel(&verb);
        let proof: Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!(proof["schema"], "evenkeel.proof/1");
        let loads: Vec<_> = proof["report"]["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|load| &load["name"])
            .collect();
        let page = fs::read_to_string(&html).unwrap();
        let cases = fs::read_to_string(&junit).unwrap();
        assert!(page.contains("<svg") && page.contains(&io2), "no chart");
        assert!(cases.contains("<testcase classname=\"reads\" name=\"first second\""), "{cases}");
        if proof["outcome"] != "kept" {
            println!("{io2}: {} {}", proof["outcome"], warnings(&proof));
            return false;
        }
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(loads, ["reads", "writes", "half-writes"]);
        true
    });
    // 2,900 credits a second are spent in the first seconds: the balance is the server's own.
    at_least_once_beside_others(|| {
        server.evenkeel(&format!("volume credits {gp2} --set 9000")).ok();
        let output = server.evenkeel(&format!("prove {gp2} --time 8s -o json"));
        let proof: Value = serde_json::from_str(&output.stdout).unwrap();
        let phases = proof["report"]["volumes"][0]["verdict"]["summary"]["phases"].clone();
        println!("{gp2}: {} {phases} {}", proof["outcome"], warnings(&proof));
        proof["outcome"] == "kept"
    });
    at_least_once_beside_others(|| {
        let uri = server.tcp_uri(&io2);
        let output =
            prove(files.path(), &format!("{uri} --iops 500 --time 5s --type io2 --size 4"));
        println!("{output}");
        output.status.code() == Some(0) && output.stdout.contains("The promise: kept")
    });
}

/// Without the guarantee a greedy neighbour takes what was sold, and the proof names it.
#[test]
fn without_the_guarantee_a_neighbour_breaks_the_promise_and_is_named() {
    if absent(&["fio"]) {
        return;
    }
    let _alone = alone();
    let device = "faulty:memory,channels=4,read_us=2000";
    let server = Server::start(&format!("--no-guarantee --store {device}"));
    let sold = server.attached("--type io2 --size 4 --iops 1500");
    let greedy = server.attached("--type io2 --size 64 --iops 64000");
    let _load = reads(&server, &server.unix_uri(&greedy), 256, 120);
    let output = server.evenkeel(&format!("prove {sold} --time 5s"));
    println!("{output}");
    assert_eq!(output.status.code(), Some(1), "{output}");
    assert!(output.stdout.contains("why: reads: "), "{output}");
    assert!(output.stdout.contains("The promise: broken"), "{output}");
    assert!(output.stderr.contains("does not keep its promise"), "{output}");
}

/// A plain file is too fast for a volume of 1,000 IOPS, and nothing in it changes.
#[test]
fn a_file_is_read_only_unless_one_says_otherwise() {
    if absent(&["fio"]) {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let bytes: Vec<u8> = (0..8_u32 << 20).map(|i| (i % 251) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    let promise = folder.path().join("promise.toml");
    fs::write(&promise, "type = \"io2\"\nsize = 100\niops = 100\n").unwrap();
    let words = format!("{} --promise {} --time 5s", path.display(), promise.display());
    let output = prove(folder.path(), &words);
    assert_eq!(output.status.code(), Some(1), "{output}");
    assert!(output.stdout.contains("nothing holds it to its limit"), "{output}");
    assert!(fs::read(&path).unwrap() == bytes, "the file was written to");
    let output = prove(folder.path(), &format!("{words} --yes-destroy-data -o csv"));
    assert_eq!(output.status.code(), Some(1), "{output}");
    assert!(output.stdout.lines().any(|line| line.starts_with("writes,4,")), "{output}");
    assert!(fs::read(&path).unwrap() != bytes, "nothing was written");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    fs::write(&path, [0; 4_096]).unwrap();
    let bad = folder.path().join("bad.toml");
    fs::write(&bad, "iops = 5\nsise = 3\n").unwrap();
    let (path, bad) = (path.display(), bad.display());
    for (words, said) in [
        (format!("{path}"), "--type io2 --size 100 --iops 1000"),
        (format!("{path} --iops 9 --time 2s"), "less than 5s prove nothing"),
        (format!("{path} --type gp3 --iops 9"), "iops"),
        (format!("{path} --promise {bad}"), "sise"),
        ("/nowhere --iops 9".to_owned(), "/nowhere"),
        ("http://x --iops 9".to_owned(), "no NBD address"),
    ] {
        let said_instead = prove(folder.path(), &words).fails_with(2);
        assert!(said_instead.contains(said), "{words}: {said_instead}");
    }
}
