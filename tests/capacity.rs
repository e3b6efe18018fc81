//! Capacity that cannot be guaranteed is not sold: with aws-cli, boto3 and our own command line.

mod support;

use serde_json::Value;
use support::PATIENCE;
use support::clock::Deadline;
use support::metrics::Metrics;
use support::mount::Mount;
use support::nbd::Client;
use support::process::run;
use support::server::Server;
use support::tools::{absent, in_venv};

/// 10,000 IOPS of 16 KiB, or 500 MiB/s.
const SELLS: &str = "--store memory --sell-iops 10000 --sell-throughput 500";
/// `NBD_ENOSPC`.
const ENOSPC: i32 = 28;
const IO2_6000: &str = "--type io2 --size 100 --iops 6000";

fn json(server: &Server, verb: &str) -> Value {
    serde_json::from_str(&server.evenkeel(&format!("{verb} -o json")).ok()).expect("JSON")
}

#[test]
fn refusal_suggests_a_volume_that_fits() {
    let server = Server::start(SELLS);
    server.create(IO2_6000);
    let refused = server.evenkeel(&format!("volume create {IO2_6000}")).fails_with(4);
    assert!(refused.contains("InsufficientVolumeCapacity"), "{refused}");
    assert!(refused.contains("4000 are left, short by 2000"), "{refused}");
    let fits = refused.split("What would fit is an io2 volume of 100 GiB with ").nth(1);
    let iops = fits.and_then(|rest| rest.split(' ').next()).expect("what would fit");
    let second = server.create(&format!("--type io2 --size 100 --iops {iops}"));
    let one_more = server.evenkeel("volume create --type io1 --size 10 --iops 100").fails_with(4);
    assert!(one_more.contains("No io1 volume would fit"), "{one_more}");
    server.evenkeel(&format!("volume modify {second} --iops 4001")).fails_with(4);
    server.evenkeel(&format!("volume modify {second} --iops 3900")).ok();
    server.create("--type io1 --size 10 --iops 100 --attach");
    server.create("--type standard --size 10 --attach");
    server.evenkeel(&format!("volume attach {second} --wait")).ok();
}

#[test]
fn listings_show_the_sold_capacity() {
    let mut server = Server::start(&format!("{SELLS} --oversell io2=2,gp3=1.5"));
    server.create("--type io2 --size 100 --iops 12000");
    let sold = "sold: device time worth 6000 of 10000 I/Os of 16 KiB per second (operator)\n\
                oversold by the operator: gp3 1.5 times over, io2 2 times over\n";
    let list = server.evenkeel("volume ls").ok();
    assert!(list.ends_with(&format!("\n\n{sold}")), "{list}");
    let listed = json(&server, "volume ls");
    assert_eq!(listed["capacity"]["sold"][0]["sold"], 6_000);
    let figure = "operator's figure: 10000 IOPS or 500 MiB/s\n";
    let capacity = server.evenkeel("volume capacity").ok();
    assert!(capacity.ends_with(&format!("\n\n{sold}{figure}")), "{capacity}");
    let value = json(&server, "volume capacity");
    assert_eq!(value["schema"], "evenkeel.capacity/1");
    let of_type = |volume_type: &str| {
        let types = value["capacity"]["types"].as_array().expect("types");
        types.iter().find(|of| of["volume_type"] == volume_type).expect("the type").clone()
    };
    let io2 = of_type("io2");
    assert_eq!((&io2["iops"], &io2["oversell"]), (&12_000.into(), &"2".into()));
    assert_eq!(of_type("st1")["reservation"], "base throughput");
    let csv = server.evenkeel("volume capacity -o csv").ok();
    assert!(csv.contains("\nio2,provisioned,1,12000,188,2\n"), "{csv}");
    // The control plane keeps only the volumes, so a crash changes nothing.
    server.kill_9();
    server.restart();
    assert_eq!(json(&server, "volume ls")["capacity"]["sold"][0]["sold"], 6_000);
}

#[test]
fn quotas_of_the_account_are_held_and_shown() {
    let server = Server::start("--store memory --quotas iops=10000,throughput=150,size=1TiB");
    let volume = server.create(IO2_6000);
    for (wanted, code, text) in [
        (
            "--type io2 --size 100 --iops 4001",
            "MaxIOPSLimitExceeded",
            "a quota of 10000 IOPS. Its other volumes reserve 6000, and this one would reserve \
             4001, where 4000 are left",
        ),
        (
            "--type gp3 --size 100",
            "ResourceLimitExceeded",
            "a quota of 150 MiB/s. Its other volumes reserve 93.75, and this one would reserve \
             125, where 56.25 are left",
        ),
        (
            "--type standard --size 925",
            "VolumeLimitExceeded",
            "a quota of 1024 GiB. Its other volumes have 100, and this one would have 925, where \
             924 are left",
        ),
    ] {
        let refused = server.evenkeel(&format!("volume create {wanted}")).fails_with(4);
        assert!(refused.contains(code) && refused.contains(text), "{wanted}: {refused}");
    }
    let grow = format!("volume modify {volume} --iops 10001");
    assert!(server.evenkeel(&grow).fails_with(4).contains("MaxIOPSLimitExceeded"));
    let capacity = server.evenkeel("volume capacity").ok();
    let lines = "quota: 6000 of 10000 IOPS\nquota: 94 of 150 MiB/s\nquota: 100 of 1024 GiB\n";
    assert!(capacity.contains(lines), "{capacity}");
    let account = json(&server, "volume capacity")["capacity"]["account"].clone();
    assert_eq!((&account[0]["used"], &account[0]["quota"]), (&6_000.into(), &10_000.into()));
    let metrics = Metrics::of(&server);
    assert_eq!(metrics.single("account_iops"), 6_000.0);
    assert_eq!(metrics.single("account_throughput_quota_bytes"), 150.0 * 1_048_576.0);
    assert_eq!(metrics.single("account_size_bytes"), 100.0 * 1_073_741_824.0);
}

#[test]
fn unknown_capacity_is_shown_as_unknown() {
    let server = Server::start("--store memory");
    server.create("--type io2 --size 1000 --iops 256000");
    for verb in ["volume ls", "volume capacity"] {
        let text = server.evenkeel(verb).ok();
        assert!(text.contains("sold: capacity is unknown, so nothing is refused"), "{text}");
    }
    assert_eq!(json(&server, "volume capacity")["capacity"]["state"], "unknown");
}

#[test]
fn doctor_shows_the_sold_capacity() {
    let server = Server::start(SELLS);
    server.create(IO2_6000);
    // It finds the server's addresses by itself.
    let checks = server.list("doctor");
    let found = |what: &str| {
        let check = checks.iter().find(|check| check["what"] == what).expect("a check");
        assert_eq!(check["verdict"], "ok");
        check["found"].as_str().expect("a text")
    };
    let sold = "sold: device time worth 6000 of 10000 I/Os of 16 KiB per second (operator)";
    assert_eq!(found("capacity"), sold);
    let used = format!("{} is used by the server that runs here", server.nbd);
    assert_eq!(found("NBD port"), used);
}

#[test]
fn doctor_fails_on_a_full_pool() {
    let Some((_mount, server)) = small_disk("150m", "--oversell-space 20") else { return };
    let pool_space = || {
        let text = server.evenkeel("doctor -o json").stdout;
        let doctor: Value = serde_json::from_str(&text).expect("JSON");
        let checks = doctor["checks"].as_array().expect("checks");
        checks.iter().find(|check| check["what"] == "pool space").expect("a check").clone()
    };
    assert_eq!(pool_space()["verdict"], "ok");
    let volume = server.attached("--size 1");
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    let full = (0..1_024).find_map(|mib| client.write(mib << 20, &[1; 1 << 20]).err());
    assert_eq!(full.expect("it is full").raw_os_error(), Some(ENOSPC));
    Deadline::after(PATIENCE).ask("a failure", || pool_space()["verdict"] == "fail");
    let check = pool_space();
    assert!(check["found"].as_str().is_some_and(|text| text.contains("ENOSPC")), "{check}");
    assert!(
        check["advice"].as_str().is_some_and(|text| text.contains("delete volumes")),
        "{check}"
    );
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let server = Server::start("--store memory");
    for (flags, words) in [
        ("--sell-iops 1000", "sell-iops: sell-throughput must be set beside it"),
        ("--sell-throughput 100", "sell-throughput: sell-iops must be set beside it"),
        (
            "--sell-iops 10000 --sell-throughput 100",
            "10000 IOPS of 16 KiB and 100 MiB/s do not go together: give 157 to 5000 MiB/s",
        ),
        ("--oversell gp3=2,gp3=3", "oversell: gp3 has two factors"),
        ("--oversell gp3=0.5", "expected a factor from 1 to 1000"),
        ("--oversell gp9=2", "expected standard, st1, sc1, gp2, gp3, io1 or io2"),
        ("--oversell gp3", "expected TYPE=FACTOR"),
        ("--quotas iops", "expected none, ec2, iops=N, throughput=MIB/S or size=GIB"),
        ("--quotas iops=many", "iops is 'many'; it must be a whole number from 0 to 4294967295"),
        ("--quotas none,ec2", "quotas: none stands beside a quota; leave one of them out"),
        ("--quotas iops=1,ec2,iops=2", "quotas: iops has two amounts; give it one"),
    ] {
        let refused = server.evenkeel(&format!("serve --data-dir other {flags}")).fails_with(2);
        assert!(refused.contains(words), "{flags}: {refused}");
    }
}

#[test]
#[ignore = "full: tests/capacity.rs::boto3_is_refused_with_ec2_s_code_and_status stays"]
fn aws_cli_is_refused_with_ec2_s_code() {
    if absent(&[&in_venv("aws")]) {
        return;
    }
    let server = Server::start(SELLS);
    let script = "
        export AWS_MAX_ATTEMPTS=1
        new='aws ec2 create-volume --availability-zone local-1a --volume-type io2 --size 100'
        V=$($new --iops 6000 --query VolumeId --output text)
        $new --iops 4001 || echo refused
        aws ec2 modify-volume --volume-id $V --iops 10001 || echo refused
        aws ec2 modify-volume --volume-id $V --iops 5999 --output text >/dev/null
        $new --iops 4001 --query Iops --output text
    ";
    let output = run(&mut server.shell(script));
    let stderr = output.stderr.clone();
    assert_eq!(output.ok().lines().collect::<Vec<_>>(), ["refused", "refused", "4001"]);
    assert_eq!(stderr.matches("(InsufficientVolumeCapacity)").count(), 2, "{stderr}");
    assert!(stderr.contains("4000 are left, short by 1."), "{stderr}");
}

#[test]
fn boto3_is_refused_with_ec2_s_code_and_status() {
    let python = in_venv("python");
    if absent(&[&python]) {
        return;
    }
    let server = Server::start(SELLS);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/ec2.py");
    run(&mut server.shell(&format!("exec {python} -B {script} capacity"))).ok();
}

/// Mounts `size` bytes of memory as the disk of a server; returns `None` with a message if mounts
/// are not permitted.
fn small_disk(size: &str, options: &str) -> Option<(Mount, Server)> {
    let mount = Mount::tmpfs(&format!("size={size}"))?;
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start_in(folder, mount.path().join("data"), options);
    Some((mount, server))
}

#[test]
fn space_is_sold_once_unless_the_operator_says_otherwise() {
    let Some((_mount, server)) = small_disk("270m", "--oversell-space 1") else { return };
    let refused = server.evenkeel("volume create --type gp3 --size 1024").fails_with(4);
    assert!(refused.contains("InsufficientVolumeCapacity"), "{refused}");
    assert!(refused.contains("it takes 1024.0 GiB more"), "{refused}");
    server.evenkeel("volume create --size 1").fails_with(4);
    assert!(server.list("volume ls").is_empty());
    drop(server);
    let Some((_mount, server)) = small_disk("270m", "--oversell-space 20") else { return };
    let volumes: Vec<String> = (0..4).map(|_| server.attached("--size 1")).collect();
    let refused = server.evenkeel("volume create --size 1").fails_with(4);
    assert!(refused.contains("sold 20 times over"), "{refused}");
    server.evenkeel(&format!("volume modify {} --size 2", volumes[0])).fails_with(4);
    server.evenkeel(&format!("volume modify {} --throughput 200", volumes[0])).ok();
    let listed = server.evenkeel("volume ls").ok();
    assert!(listed.contains("sold: space of 4.0 GiB"), "{listed}");
    assert!(listed.contains("sold 20 times over"), "{listed}");
    let metrics = Metrics::of(&server);
    assert_eq!(metrics.single("store_sold_bytes"), 4.0 * 1_073_741_824.0);
    assert!(metrics.single("store_for_sale_bytes") < 5.0 * 1_073_741_824.0);
    server.evenkeel(&format!("volume detach {} --wait", volumes[1])).ok();
    server.evenkeel(&format!("volume rm {}", volumes[1])).ok();
    server.create("--size 1");
}
