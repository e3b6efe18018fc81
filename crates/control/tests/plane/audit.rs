//! The record of all calls.

use std::path::Path;

use evenkeel_telemetry::audit::{FOLDER, verify};
use serde_json::Value;

use crate::support::{Server, create};

/// Returns the records of a data folder, oldest first.
fn records(folder: &Path) -> Vec<Value> {
    let entries = folder.join(FOLDER).read_dir().unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    names.sort();
    let text: String = names.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let line = |line: &str| serde_json::from_str::<Value>(line).unwrap()["record"].take();
    text.lines().map(line).collect()
}

#[test]
fn every_call_that_is_allowed_or_refused_has_a_record() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let volume = create(&root, &[]);
    let dry = root.code("DeleteVolume", &[("VolumeId", &volume), ("DryRun", "true")]);
    assert_eq!(dry, "DryRunOperation");
    root.identity("iam", "CreateUser", &[("UserName", "ann")]).unwrap();
    let made = root.identity("iam", "CreateAccessKey", &[("UserName", "ann")]).unwrap();
    let made = made.child("AccessKey").unwrap().clone();
    let secret = made.child_text("SecretAccessKey").unwrap();
    let mut ann = root.clone();
    ann.credentials.access_key_id = made.child_text("AccessKeyId").unwrap().into();
    ann.credentials.secret_access_key = secret.into();
    ann.code("DeleteVolume", &[("VolumeId", &volume)]);
    let block = format!("/snapshots/{}/blocks", "snap-00000000000000007");
    let headers = root.signed_as("ebs", "GET", &block, "");
    assert_eq!(root.send("GET", &block, &headers, b"").status, 404);
    let user_data = [("MinCount", "1"), ("MaxCount", "1"), ("UserData", "cGFzc3dvcmQ=")];
    root.call("RunInstances", &user_data).unwrap();
    let all = records(folder.path());
    let found: Vec<(&str, &str, &str, bool)> = all
        .iter()
        .map(|record| {
            let text = |field: &str| record[field].as_str().unwrap_or_default();
            let is_read_only = record["readOnly"].as_bool().unwrap();
            (text("eventSource"), text("eventName"), text("errorCode"), is_read_only)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("ec2.amazonaws.com", "CreateVolume", "", false),
            ("ec2.amazonaws.com", "DeleteVolume", "DryRunOperation", false),
            ("iam.amazonaws.com", "CreateUser", "", false),
            ("iam.amazonaws.com", "CreateAccessKey", "", false),
            ("ec2.amazonaws.com", "DeleteVolume", "UnauthorizedOperation", false),
            ("ebs.amazonaws.com", "ListSnapshotBlocks", "ResourceNotFoundException", true),
            ("ec2.amazonaws.com", "RunInstances", "", false),
        ]
    );
    let by_ann = &all[4];
    assert_eq!(by_ann["userIdentity"]["type"], "IAMUser");
    assert_eq!(by_ann["userIdentity"]["userName"], "ann");
    assert_eq!(by_ann["sourceIPAddress"], "127.0.0.1");
    assert_eq!(by_ann["requestParameters"]["VolumeId"], volume.as_str());
    assert!(all[0]["userIdentity"]["arn"].as_str().unwrap().ends_with(":root"));
    let text = format!("{all:?}");
    for hidden in [secret, &root.credentials.secret_access_key, "cGFzc3dvcmQ="] {
        assert!(!text.contains(hidden), "{hidden}");
    }
    assert_eq!(verify(folder.path(), |_| ()).unwrap().lines, 7);
    // The chain continues after a restart.
    server.stop().unwrap();
    let server = Server::start(folder.path());
    server.client().call("DescribeVolumes", &[]).unwrap();
    assert_eq!(verify(folder.path(), |_| ()).unwrap().last, 8);
    server.stop().unwrap();
}

#[test]
fn without_room_for_records_changes_are_refused_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    // A file in place of the folder: no record can be written.
    let place = folder.path().join(FOLDER);
    std::fs::write(&place, "").unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let new = [("AvailabilityZone", "local-1a"), ("Size", "10")];
    let refused = client.call("CreateVolume", &new).unwrap_err();
    assert_eq!((refused.status, refused.code.as_str()), (503, "Unavailable"));
    assert!(refused.message.contains("the audit cannot be written"), "{}", refused.message);
    let user = client.identity("iam", "CreateUser", &[("UserName", "ann")]).unwrap_err();
    assert_eq!(user.code, "Unavailable");
    client.call("DescribeVolumes", &[]).unwrap();
    let host = [("host".to_owned(), "localhost".to_owned())];
    let get = |path: &str| client.send("GET", path, &host, b"");
    let ready = get("/readyz");
    assert_eq!(ready.status, 503, "{}", ready.body);
    assert!(ready.body.contains("the audit cannot be written"), "{}", ready.body);
    assert_eq!(get("/healthz").status, 200);
    let metrics = get("/metrics").body;
    assert!(metrics.contains("\nevenkeel_audit_failing 1\n"), "{metrics}");
    assert!(metrics.contains("\nevenkeel_audit_lost_records_total 3\n"), "{metrics}");
    std::fs::remove_file(&place).unwrap();
    create(&client, &[]);
    assert_eq!(get("/readyz").status, 200);
    let found = verify(folder.path(), |_| ()).unwrap();
    assert_eq!((found.first, found.last), (1, 1));
    let all = records(folder.path());
    // Two changes that were refused, and a call that reads.
    assert_eq!(all[0]["lostRecords"], 3);
    assert_eq!(all[0]["then"]["eventName"], "CreateVolume");
    server.stop().unwrap();
}

#[test]
fn refused_calls_of_a_user_have_short_records_within_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    root.identity("iam", "CreateUser", &[("UserName", "ann")]).unwrap();
    let made = root.identity("iam", "CreateAccessKey", &[("UserName", "ann")]).unwrap();
    let made = made.child("AccessKey").unwrap().clone();
    let mut ann = root.clone();
    ann.credentials.access_key_id = made.child_text("AccessKeyId").unwrap().into();
    ann.credentials.secret_access_key = made.child_text("SecretAccessKey").unwrap().into();
    let document = "x".repeat(100_000);
    let policy = [("UserName", "ann"), ("PolicyName", "p"), ("PolicyDocument", &document)];
    for _ in 0..120 {
        let refused = ann.identity("iam", "PutUserPolicy", &policy).unwrap_err();
        assert_eq!(refused.code, "AccessDenied");
    }
    // It needs no right.
    for _ in 0..30 {
        ann.identity("sts", "GetCallerIdentity", &[]).unwrap();
    }
    server.stop().unwrap();
    let all = records(folder.path());
    let refused = all.iter().filter(|record| record["eventName"] == "PutUserPolicy");
    let written = refused.clone().count();
    assert!((100..120).contains(&written), "{written}");
    for record in refused {
        assert!(record.to_string().len() < 4_096, "{record}");
        let document = record["requestParameters"]["PolicyDocument"].as_str().unwrap();
        assert!(document.ends_with("(99744 characters left out)"), "{document}");
    }
    let left_out = |record: &Value| record["additionalEventData"]["recordsLeftOut"].as_u64();
    let left_out: u64 = all.iter().filter_map(left_out).sum();
    let free = all.iter().filter(|record| record["eventName"] == "GetCallerIdentity").count();
    assert!(free < 30, "{free}");
    assert_eq!(left_out + (written + free) as u64, 150);
    let last = all.last().unwrap();
    assert_eq!(last["eventName"], "LeaveOutCalls");
    assert_eq!(last["userIdentity"]["userName"], "ann");
    verify(folder.path(), |_| ()).unwrap();
}

#[test]
fn refused_signatures_have_records_within_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let mut stranger = server.client();
    stranger.credentials.secret_access_key = "wrong".into();
    for _ in 0..150 {
        assert_eq!(stranger.code("DescribeVolumes", &[]), "SignatureDoesNotMatch");
    }
    server.stop().unwrap();
    let all = records(folder.path());
    let refused = all.iter().filter(|record| record["eventName"] == "RefuseSignature");
    let written = refused.clone().count();
    assert!((100..150).contains(&written), "{written}");
    for record in refused {
        assert_eq!(record["errorCode"], "SignatureDoesNotMatch");
        assert_eq!(record["sourceIPAddress"], "127.0.0.1");
    }
    let left_out = |record: &Value| record["additionalEventData"]["recordsLeftOut"].as_u64();
    let left_out: u64 = all.iter().filter_map(left_out).sum();
    assert_eq!(left_out + written as u64, 150);
    verify(folder.path(), |_| ()).unwrap();
}
