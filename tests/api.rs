//! The EC2 API with the original aws-cli and boto3, and its effects on clients of the data plane.

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use support::bench::run_within;
use support::nbd::{Client, REPLY_UNKNOWN};
use support::process::run;
use support::server::{Server, evenkeel, new_folder};
use support::tools::{absent, in_venv};

/// The server writes its port to its data folder, from which the clients read it, also after its
/// end: an error then names the address at which no server is.
#[test]
fn env_names_the_port_that_the_server_of_the_data_folder_took() {
    let mut server = Server::start("--store memory");
    let printed = |server: &Server| {
        let mut command = evenkeel(server.folder());
        command.arg("env").arg("--data-dir").arg(server.data_dir());
        let text = run(&mut command).ok();
        let line = text.lines().find_map(|line| line.strip_prefix("export AWS_ENDPOINT_URL_EC2="));
        line.unwrap_or_else(|| panic!("{text}")).trim_matches('\'').to_owned()
    };
    assert_eq!(printed(&server), server.endpoint);
    server.kill_9();
    server.restart();
    assert_eq!(printed(&server), server.endpoint);
    server.stop();
    assert_eq!(printed(&server), server.endpoint);
}

#[test]
fn a_folder_with_chosen_credentials_is_taken_and_one_with_malformed_ones_is_left_alone() {
    let aws_cli = "[default]\naws_access_key_id = a\naws_secret_access_key = b\n";
    let ours = "access_key_id = \"CHOSEN\"\nsecret_access_key = \"of our own\"\n";
    let prepared = |text: &str| {
        let (folder, data_dir) = new_folder();
        std::fs::create_dir(&data_dir).expect("made");
        let file = data_dir.join("credentials");
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("set");
        (folder, data_dir)
    };
    let (folder, data_dir) = prepared(aws_cli);
    let mut serve = evenkeel(folder.path());
    serve.args(["serve", "--listen", "127.0.0.1:0", "--nbd-listen", "none", "--data-dir"]);
    let refused = run(serve.arg(&data_dir)).fails_with(1);
    assert!(refused.contains("access_key_id"), "{refused}");
    assert_eq!(std::fs::read_dir(&data_dir).expect("a folder").count(), 1);
    let (folder, data_dir) = prepared(ours);
    let server = Server::start_in(folder, data_dir, "--store memory");
    let mut env = evenkeel(server.folder());
    let printed = run(env.arg("env").arg("--data-dir").arg(server.data_dir())).ok();
    assert!(printed.contains("AWS_ACCESS_KEY_ID='CHOSEN'"), "{printed}");
    server.create("--size 1");
}

/// Runs one check of tests/python/ec2.py on a server of its own.
fn boto3(check: &str) {
    boto3_on("memory", check);
}

fn boto3_on(store: &str, check: &str) {
    let python = in_venv("python");
    if absent(&[&python]) {
        return;
    }
    let server = Server::start(&format!("--store {store}"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/ec2.py");
    run(&mut server.shell(&format!("exec {python} -B {script} {check}"))).ok();
}

#[test]
fn boto3_takes_a_volume_through_its_life() {
    boto3("lifecycle");
}

#[test]
fn boto3_filters_tags_and_turns_pages() {
    boto3("filters");
}

#[test]
fn boto3_sees_the_status_of_volumes() {
    boto3("status");
}

#[test]
fn boto3_looks_around() {
    boto3("world");
}

#[test]
fn boto3_blocks_public_access_to_snapshots() {
    boto3("public_access");
}

#[test]
fn boto3_gets_the_error_codes_of_ec2() {
    boto3("errors");
}

#[test]
fn boto3_takes_snapshots_through_their_life() {
    boto3_on("local", "snapshots");
}

#[test]
fn boto3_sets_attributes() {
    boto3_on("local", "attributes");
}

#[test]
fn boto3_gets_answers_to_the_first_calls_of_tools() {
    boto3("tools");
}

#[test]
fn boto3_runs_stops_and_terminates_instances() {
    boto3_on("local", "instances");
}

#[test]
fn boto3_locks_snapshots_and_restores_deleted_ones() {
    boto3_on("local --recycle-bin-days 1 --zone local-1a,local-1b", "protection");
}

#[test]
fn boto3_may_ask_for_the_same_twice_in_a_second() {
    boto3("twice");
}

#[test]
fn boto3_is_refused_without_the_right_signature() {
    boto3("signatures");
}

/// With `EVENKEEL_WRITE=1` it writes the page. It fails in either case if replies are wrong.
#[test]
fn matrix_of_parameters_agrees_with_the_server() {
    let python = in_venv("python");
    if absent(&[&python]) {
        return;
    }
    let keys = tempfile::tempdir().expect("a folder");
    let key = keys.path().join("key");
    std::fs::write(&key, "7".repeat(64)).expect("written");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("set");
    let server = Server::start(&format!("--store local --key-file {}", key.display()));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/matrix.py");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/api_matrix.md");
    let output = run(&mut server.shell(&format!("exec {python} -B {script} matrix.md")));
    let found = std::fs::read_to_string(server.folder().join("matrix.md")).unwrap_or_default();
    if std::env::var_os("EVENKEEL_WRITE").is_some() && !found.is_empty() {
        std::fs::write(page, &found).expect("written");
    }
    output.ok();
    let committed = std::fs::read_to_string(page).unwrap_or_default();
    let line = found.lines().zip(committed.lines()).find(|(found, committed)| found != committed);
    assert!(
        found == committed,
        "docs/reference/api_matrix.md is not what the server answers: {line:#?}\n\
         EVENKEEL_WRITE=1 cargo test --test api matrix  # writes it again"
    );
}

/// Waits for the end of a minute: no metric of a minute exists before.
#[test]
fn boto3_and_aws_cli_read_metrics_from_cloudwatch() {
    let python = in_venv("python");
    let aws = in_venv("aws");
    if absent(&[&python, &aws]) {
        return;
    }
    let mut server = Server::start("--store local");
    let volume = server.attached("--type io2 --size 64 --iops 10000");
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    let reads = 11;
    let writes = 23;
    (0..writes).for_each(|block| client.write(block << 12, &[7; 4_096]).expect("written"));
    (0..reads).for_each(|block| drop(client.read(block << 12, 4_096).expect("read")));
    let check = |server: &Server, mode: &str| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/cloudwatch.py");
        let script = format!("exec {python} -B {script} {mode} {volume} {reads} {writes}");
        // It waits for the end of a minute, for 90 s at most.
        run_within(&mut server.shell(&script), Duration::from_secs(150)).ok();
    };
    check(&server, "new");
    let script = format!(
        "aws cloudwatch get-metric-statistics --namespace AWS/EBS --metric-name VolumeReadOps \
             --dimensions Name=VolumeId,Value={volume} --statistics Sum --period 86400 \
             --start-time $(date -u -d yesterday +%FT%TZ) --end-time $(date -u +%FT%TZ) \
             --query 'Datapoints[].[Sum, Unit]' --output text | tr '\t' ' '
         aws cloudwatch list-metrics --namespace AWS/EBS --metric-name VolumeReadOps \
             --query 'Metrics[].Dimensions[].Value' --output text"
    );
    let text = run(&mut server.shell(&script)).ok();
    assert_eq!(text.lines().collect::<Vec<_>>(), [format!("{reads}.0 Count"), volume.clone()]);
    server.stop();
    server.restart();
    check(&server, "kept");
}

#[test]
#[ignore = "full: crates/control/tests/plane/aws_clients.rs::aws_cli_works_unmodified stays"]
fn aws_cli_takes_a_volume_through_its_life() {
    let aws = in_venv("aws");
    if absent(&[&aws]) {
        return;
    }
    let server = Server::start("--store memory");
    let script = r#"
        V=$(aws ec2 create-volume --availability-zone local-1a --volume-type io2 --size 10 \
            --iops 1000 --query VolumeId --output text)
        aws ec2 wait volume-available --volume-ids $V
        I=$(aws ec2 describe-instances --query 'Reservations[0].Instances[0].InstanceId' \
            --output text)
        aws ec2 attach-volume --volume-id $V --instance-id $I --device /dev/sdf >/dev/null
        aws ec2 wait volume-in-use --volume-ids $V
        aws ec2 create-tags --resources $V --tags Key=Name,Value=data
        aws ec2 modify-volume --volume-id $V --iops 2000 >/dev/null
        aws ec2 describe-volumes --filters Name=tag:Name,Values=data \
            --query 'Volumes[].[VolumeId, State, Iops]' --output text | tr '\t' ' '
        aws ec2 describe-volumes-modifications --volume-ids $V --output text \
            --query 'VolumesModifications[].[ModificationState, TargetIops]' | tr '\t' ' '
        aws ec2 describe-volume-status --volume-ids $V --output text \
            --filters Name=volume-status.status,Values=ok \
            --query 'VolumeStatuses[].VolumeStatus.[Status, Details[0].Status]' | tr '\t' ' '
        aws ec2 detach-volume --volume-id $V >/dev/null
        aws ec2 delete-volume --volume-id $V
        aws ec2 describe-volumes --query Volumes --output json
        aws ec2 delete-volume --volume-id $V || echo refused
    "#;
    let output = run(&mut server.shell(script));
    let stderr = output.stderr.clone();
    let text = output.ok();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("vol-") && lines[0].ends_with(" in-use 2000"), "{text}");
    assert_eq!(lines[1..], ["completed 2000", "ok passed", "[]", "refused"]);
    assert!(stderr.contains("(InvalidVolume.NotFound)"), "{stderr}");
}

#[test]
fn aws_cli_sees_a_volume_in_error_as_impaired() {
    let aws = in_venv("aws");
    if absent(&[&aws]) {
        return;
    }
    // A restart loses the contents of memory.
    let mut server = Server::start("--store memory");
    let bad = server.create("--size 1");
    server.stop();
    server.restart();
    let good = server.create("--size 1");
    let script = r#"
        for STATUS in ok impaired; do
            aws ec2 describe-volume-status --output text --query 'VolumeStatuses[].VolumeId' \
                --filters Name=volume-status.status,Values=$STATUS
        done
    "#;
    let text = run(&mut server.shell(script)).ok();
    assert_eq!(text.lines().collect::<Vec<_>>(), [good, bad]);
}

#[test]
fn signals_end_the_server_cleanly_or_change_nothing() {
    let mut server = Server::start("--store memory");
    for ignored in [Signal::USR1, Signal::USR2] {
        server.process().signal(ignored);
        server.evenkeel("volume ls").ok();
    }
    for stops in [Signal::QUIT, Signal::HUP, Signal::INT, Signal::TERM] {
        let log = server.stop_by(stops);
        assert!(log.contains("stopped cleanly"), "{stops:?}: {log}");
        server.restart();
    }
}

#[test]
fn a_log_filter_that_is_no_level_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = run(evenkeel(folder.path()).args(["serve", "--log", "warning"])).fails_with(2);
    assert!(refused.contains("\"warning\" is no level; expected error, warn"), "{refused}");
}

#[test]
fn health_needs_no_signature_and_everything_else_does() {
    let server = Server::start("--store memory");
    let ask = |path: &str| server.get(path);
    let health = ask("/healthz");
    assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.contains("ok"), "{health}");
    let ready = ask("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 OK\r\n") && ready.ends_with("ok"), "{ready}");
    let refused = ask("/?Action=DescribeVolumes&Version=2016-11-15");
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    assert!(refused.contains("<Code>MissingAuthenticationToken</Code>"), "{refused}");
}

#[test]
fn a_volume_is_reachable_while_it_is_attached() {
    let server = Server::start("");
    let volume = server.create("--size 1");
    let open = || Client::open(server.nbd, &volume);
    assert!(open().is_err());
    for round in 0_u8..3 {
        server.evenkeel(&format!("volume attach {volume} --wait")).ok();
        let mut first = open().expect("attached");
        let mut second = open().expect("attached");
        first.write(0, &[round; 512]).expect("written");
        assert_eq!(second.read(0, 512).expect("read"), [round; 512]);
        // Requests may be under way when the volume is deleted.
        first.send(support::nbd::READ, 1, 0, 1 << 20).expect("sent");
        server.evenkeel(&format!("volume detach {volume} --wait")).ok();
        assert!(first.is_closed_by_server());
        assert!(second.is_closed_by_server());
        let refusal = open().map(|_| ()).expect_err("detached").to_string();
        assert!(refusal.starts_with(&format!("{REPLY_UNKNOWN:#x}")), "{refusal}");
    }
}

#[test]
fn the_audit_of_a_killed_server_has_every_answered_call() {
    let mut server = Server::start("--store memory");
    let verify = |server: &Server, more: &str| {
        let mut command = evenkeel(server.folder());
        command.args(["audit", "verify", "--data-dir"]).arg(server.data_dir());
        run(command.args(more.split_whitespace()))
    };
    for _ in 0..5 {
        server.create("--size 1");
    }
    server.kill_9();
    let checked = verify(&server, "").ok();
    assert!(checked.contains("are as they were written"), "{checked}");
    let hash = checked.trim_end().rsplit(' ').next().expect("a hash").to_owned();
    let folder = server.data_dir().join("audit");
    let mut files = std::fs::read_dir(&folder).expect("a folder");
    let file = files.find_map(|file| {
        let path = file.expect("a file").path();
        path.extension().is_some_and(|end| end == "jsonl").then_some(path)
    });
    let file = file.expect("a file of records");
    let text = std::fs::read_to_string(&file).expect("text");
    assert_eq!(text.matches("\"eventName\":\"CreateVolume\"").count(), 5, "{text}");
    server.restart();
    let volume = server.create("--size 1");
    verify(&server, &format!("--expect {hash}")).ok();
    let other = verify(&server, &format!("--expect {}", "7".repeat(64))).fails_with(1);
    assert!(other.contains("no line has the hash"), "{other}");
    std::fs::write(&file, text.replacen("CreateVolume", "DeleteVolume", 1)).expect("written");
    let changed = verify(&server, "").fails_with(1);
    assert!(changed.contains("the line before it was changed"), "{changed}");
    // Without the folder changes are refused; a restart begins anew, with a warning.
    std::fs::remove_dir_all(&folder).expect("removed");
    let refused = server.evenkeel("volume create --size 1").fails_with(1);
    assert!(refused.contains("was removed or replaced while the server ran"), "{refused}");
    let refused = server.evenkeel(&format!("volume delete {volume}")).fails_with(1);
    assert!(refused.contains("was removed or replaced"), "{refused}");
    let ready = server.evenkeel("health --ready").fails_with(1);
    assert!(ready.contains("was removed or replaced"), "{ready}");
    let log = server.stop();
    assert!(log.contains("not audited: ") && log.contains("was removed or replaced"), "{log}");
    assert!(!log.contains("the audit begins anew"), "{log}");
    server.restart();
    server.create("--size 1");
    let log = server.stop();
    assert!(log.contains("the audit begins anew"), "{log}");
}

#[test]
fn connections_to_volumes_have_records() {
    let mut server = Server::start("--store memory");
    let volume = server.attached("--size 1");
    drop(Client::open(server.nbd, &volume).expect("attached"));
    let other = "vol-0123456789abcdef0";
    assert!(Client::open(server.nbd, other).is_err());
    server.stop();
    let records = server.audited();
    let of_connections = records.iter().filter(|record| record["eventSource"] == "evenkeel");
    let mut found: Vec<[&str; 4]> = of_connections
        .map(|record| {
            let is_host = |value: &Value| value.as_str().is_some_and(|id| id.starts_with("i-"));
            let parameters = &record["requestParameters"];
            let host = if is_host(&parameters["InstanceId"]) { "a host" } else { "" };
            let [name, volume, address] =
                [&record["eventName"], &parameters["VolumeId"], &record["sourceIPAddress"]]
                    .map(|value| value.as_str().expect("a text"));
            [name, volume, host, address]
        })
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ["ConnectVolume", &volume, "a host", "local"],
            ["DisconnectVolume", &volume, "a host", "local"],
            ["RefuseConnection", other, "", "local"],
        ]
    );
}

#[test]
fn a_user_without_the_right_to_the_capacity_lists_volumes() {
    if absent(&[&in_venv("aws")]) {
        return;
    }
    let server = Server::start("--store memory");
    let volume = server.create("--size 1");
    let script = r#"
        aws iam create-user --user-name ann >/dev/null
        aws iam put-user-policy --user-name ann --policy-name own --policy-document "$(printf %s \
            '{"Version":"2012-10-17","Statement":' \
            '{"Effect":"Allow","Action":"ec2:*","Resource":"*"}}')"
        set -- "$0" $(aws iam create-access-key --user-name ann --output text \
            --query 'AccessKey.[AccessKeyId,SecretAccessKey]')
        export AWS_ACCESS_KEY_ID=$2 AWS_SECRET_ACCESS_KEY=$3
        evenkeel volume ls --endpoint "$1" --data-dir ./of-no-server
        evenkeel volume ls --endpoint "$1" --data-dir ./of-no-server -o json >of-ann.json
        ! evenkeel volume capacity --endpoint "$1" --data-dir ./of-no-server 2>refused
    "#;
    let listed = run(&mut server.shell(script)).ok();
    assert!(listed.contains(&volume), "{listed}");
    let line = "sold: not shown, since this user has no right to evenkeel:DescribeCapacity\n";
    assert!(listed.ends_with(line), "{listed}");
    let json = std::fs::read_to_string(server.folder().join("of-ann.json")).expect("a list");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["volumes"][0]["volume_id"], volume.as_str());
    assert!(json["capacity"].is_null(), "{json}");
    let refused = std::fs::read_to_string(server.folder().join("refused")).expect("a text");
    assert!(refused.contains("UnauthorizedOperation"), "{refused}");
}

/// The server uses its own address, not variables of the caller.
#[test]
fn a_volume_is_shown_where_its_server_listens() {
    let mut server = Server::start("");
    let volume = server.attached("--size 1");
    let shown = |server: &Server, api: &str, format: &str| {
        let mut command = evenkeel(server.folder());
        command.env("EVENKEEL_ENDPOINT", api).env("EVENKEEL_DATA_DIR", server.data_dir());
        command.env("EVENKEEL_NBD_LISTEN", "127.0.0.1:1");
        run(command.args(["volume", "show", &volume, "-o", format])).ok()
    };
    let nbd = |text: &str| serde_json::from_str::<Value>(text).expect("JSON")["nbd"].clone();
    let both = [server.tcp_uri(&volume), server.unix_uri(&volume)];
    assert_eq!(nbd(&shown(&server, &server.endpoint, "json")), serde_json::json!(both));
    let text = shown(&server, &server.endpoint, "text");
    both.iter().for_each(|uri| assert!(text.contains(uri), "{text}"));
    server.stop();
    // A server that listens on all addresses is reached at the address of its API.
    server.option("--nbd-listen 0.0.0.0:0 --insecure nbd-listen");
    server.restart();
    assert!(server.nbd.ip().is_unspecified());
    let uris = nbd(&shown(&server, &server.endpoint, "json"));
    let here: std::net::SocketAddr = ([127, 0, 0, 1], server.nbd.port()).into();
    assert_eq!(uris[0], format!("nbd://{here}/{volume}"));
    Client::open(here, &volume).expect("it is served there");
}

#[test]
fn a_volume_of_another_host_is_not_for_this_one() {
    let server = Server::start("--store memory");
    let volume = server.create("--size 1");
    let hosts = server.list("host register --type m5.large --address 192.0.2.7 --tag Name=far");
    let host = hosts[0]["host_id"].as_str().expect("an id");
    server.evenkeel(&format!("volume attach {volume} --host {host} --wait")).ok();
    assert!(Client::open(server.nbd, &volume).is_err());
    let refused = server.evenkeel(&format!("host rm {host}")).fails_with(1);
    assert!(refused.contains("error: "), "{refused}");
    server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    server.evenkeel(&format!("host rm {host}")).ok();
}

#[test]
fn connections_see_a_volume_grow() {
    let server = Server::start("");
    let volume = server.attached("--size 1");
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    let end = 1_u64 << 30;
    assert!(client.write(end, &[1; 512]).is_err());
    server.evenkeel(&format!("volume modify {volume} --size 2 --wait")).ok();
    client.write(end, &[1; 512]).expect("within the new size");
    assert_eq!(client.read(end, 512).expect("read"), [1; 512]);
}

#[test]
fn exit_codes_are_those_of_the_reference() {
    let server = Server::start("--store memory");
    let absent = "vol-00000000000000000";
    server.evenkeel(&format!("volume show {absent}")).fails_with(3);
    server.evenkeel("volume show nonsense").fails_with(2);
    server.evenkeel("volume create").fails_with(2);
    let message = server.evenkeel("volume create --type gp3 --size 0").fails_with(2);
    assert!(message.contains("InvalidParameterValue"), "{message}");
    let elsewhere = server.evenkeel("volume ls --endpoint http://127.0.0.1:9").fails_with(1);
    assert!(elsewhere.contains("evenkeel serve"), "{elsewhere}");
    let value: Value =
        serde_json::from_str(&server.evenkeel("volume ls -o json").ok()).expect("JSON");
    assert_eq!(value["schema"], "evenkeel.volumes/1");
    assert_eq!(value["volumes"], serde_json::json!([]));
}
