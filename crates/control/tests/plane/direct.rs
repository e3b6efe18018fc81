//! The EBS direct APIs: the effects of each operation, and each error with its type, reason and
//! status.
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support;
use crate::support::{Client, REGION, Server, unix_s};
use evenkeel_control::model::{Command as Change, Filled, Tags};
use evenkeel_core::ids::SnapshotId;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{FailedKind, Space, UNIT_BYTES};
use evenkeel_wire::aws::checksum::{self, Linear};
use evenkeel_wire::aws::sigv4::{self, Scope};
use serde_json::{Value, json};

/// An answer: status, headers in lower case, body.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns status, type and reason of an error.
    #[track_caller]
    fn error(&self) -> (u16, &str, String) {
        let body = self.json();
        assert!(body["Message"].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
        assert!(self.header("x-amzn-requestid").is_some(), "{self:?}");
        let reason = body["Reason"].as_str().unwrap_or_default().to_owned();
        (self.status, self.header("x-amzn-errortype").unwrap(), reason)
    }
}

fn exchange(client: &Client, request: Vec<u8>) -> Answer {
    let mut stream = TcpStream::connect(client.address).unwrap();
    let _ = stream.write_all(&request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let body = answer.split_off(end + 4);
    let head = String::from_utf8(answer).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body }
}

/// Sends a request with these headers, signed for a service.
fn call_as(
    service: &str,
    client: &Client,
    (method, target): (&str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let host = client.address.to_string();
    let mut all = vec![("host", host.as_str())];
    all.extend(headers);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request = sigv4::Request { method, path, query, headers: &all, body };
    let keys = sigv4::Credentials {
        access_key_id: &client.credentials.access_key_id,
        secret_access_key: &client.credentials.secret_access_key,
    };
    let unsigned = headers.contains(&("x-amz-content-sha256", "UNSIGNED-PAYLOAD"));
    let hash = if unsigned { "UNSIGNED-PAYLOAD".to_owned() } else { sigv4::sha256_hex(body) };
    let scope = Scope { region: REGION, service };
    let signed = sigv4::sign_hashed(&request, &hash, keys, scope, unix_s());
    let mut text = format!("{method} {target} HTTP/1.1\r\nconnection: close\r\n");
    for (name, value) in all {
        text += &format!("{name}: {value}\r\n");
    }
    for (name, value) in signed {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("content-length: {}\r\n\r\n", body.len());
    let mut bytes = text.into_bytes();
    bytes.extend(body);
    exchange(client, bytes)
}

fn call(client: &Client, to: (&str, &str), headers: &[(&str, &str)], body: &[u8]) -> Answer {
    call_as("ebs", client, to, headers, body)
}

fn get(client: &Client, target: &str) -> Answer {
    call(client, ("GET", target), &[], b"")
}

fn start(client: &Client, body: &Value) -> Answer {
    call(client, ("POST", "/snapshots"), &[], body.to_string().as_bytes())
}

/// Starts a snapshot of 1 GiB. Returns its id.
#[track_caller]
fn started(client: &Client, token: &str) -> String {
    let answer = start(client, &json!({ "VolumeSize": 1, "ClientToken": token }));
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["SnapshotId"].as_str().unwrap().to_owned()
}

fn unit(fill: u8) -> Vec<u8> {
    vec![fill; UNIT_BYTES as usize]
}

fn put(client: &Client, id: &str, block: u64, data: &[u8]) -> Answer {
    let sum = checksum::text(&checksum::digest(data));
    let length = data.len().to_string();
    let headers = [
        ("x-amz-data-length", length.as_str()),
        ("x-amz-checksum", &sum),
        ("x-amz-checksum-algorithm", "SHA256"),
    ];
    call(client, ("PUT", &format!("/snapshots/{id}/blocks/{block}")), &headers, data)
}

fn complete(client: &Client, id: &str, count: u64, sum: Option<&str>) -> Answer {
    let count = count.to_string();
    let mut headers = vec![("x-amz-changedblockscount", count.as_str())];
    if let Some(sum) = sum {
        headers.extend([
            ("x-amz-checksum", sum),
            ("x-amz-checksum-algorithm", "SHA256"),
            ("x-amz-checksum-aggregation-method", "LINEAR"),
        ]);
    }
    call(client, ("POST", &format!("/snapshots/completion/{id}")), &headers, b"")
}

fn linear(units: &[&[u8]]) -> String {
    let mut all = Linear::default();
    units.iter().for_each(|unit| all.add(&checksum::digest(unit)));
    checksum::text(&all.digest())
}

fn state(client: &Client, id: &str) -> String {
    let found = client.call("DescribeSnapshots", &[("SnapshotId.1", id)]).unwrap();
    support::text(&found.items("snapshotSet")[0], "status").to_owned()
}

#[test]
fn start_snapshot_accepts_the_same_tags_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let with =
        |tags: Value| start(&client, &json!({ "VolumeSize": 1, "Tags": tags, "ClientToken": "t" }));
    let [a, b] = [json!({ "Key": "a", "Value": "1" }), json!({ "Key": "b", "Value": "2" })];
    let first = with(json!([a, b]));
    assert_eq!(first.status, 201, "{first:?}");
    let again = with(json!([b, a]));
    assert_eq!(again.status, 201, "{again:?}");
    assert_eq!(again.json()["SnapshotId"], first.json()["SnapshotId"]);
    let other = with(json!([b]));
    assert_eq!(other.status, 409, "{other:?}");
}

#[test]
fn a_snapshot_is_filled_listed_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let tags = json!([{ "Key": "a", "Value": "b" }]);
    let request = json!({ "VolumeSize": 1, "Description": "d", "Tags": tags, "ClientToken": "t" });
    let answer = start(&client, &request);
    assert_eq!(answer.status, 201, "{answer:?}");
    let new = answer.json();
    assert_eq!((&new["Status"], &new["VolumeSize"]), (&json!("pending"), &json!(1)));
    assert_eq!((&new["BlockSize"], &new["Tags"]), (&json!(524_288), &tags));
    assert!(new["StartTime"].as_f64().is_some_and(|time| time > 1.7e9), "{new}");
    let id = new["SnapshotId"].as_str().unwrap();
    assert_eq!(start(&client, &request).json()["SnapshotId"], id, "the token is known");
    let one = unit(1);
    let two = unit(2);
    for (block, data) in [(7, &two), (7, &two), (3, &one)] {
        let answer = put(&client, id, block, data);
        assert_eq!(answer.status, 201, "{answer:?}");
        let sum = checksum::text(&checksum::digest(data));
        assert_eq!(answer.header("x-amz-checksum"), Some(sum.as_str()));
        assert_eq!(answer.header("x-amz-checksum-algorithm"), Some("SHA256"));
    }
    assert_eq!(state(&client, id), "pending");
    let found = client.call("DescribeSnapshots", &[("SnapshotId.1", id)]).unwrap();
    let volume = support::text(&found.items("snapshotSet")[0], "volumeId").to_owned();
    assert_eq!(volume, "vol-fffffffffffffffff");
    let answer = complete(&client, id, 2, Some(&linear(&[&one, &two])));
    assert_eq!((answer.status, answer.json()), (202, json!({ "Status": "completed" })));
    assert_eq!(complete(&client, id, 2, None).status, 202, "again");
    assert_eq!(state(&client, id), "completed");

    let list = get(&client, &format!("/snapshots/{id}/blocks")).json();
    assert_eq!((&list["VolumeSize"], &list["BlockSize"]), (&json!(1), &json!(524_288)));
    assert!(list["NextToken"].is_null() && list["ExpiryTime"].as_f64().is_some(), "{list}");
    let blocks = list["Blocks"].as_array().unwrap();
    let indexes: Vec<&Value> = blocks.iter().map(|block| &block["BlockIndex"]).collect();
    assert_eq!(indexes, [&json!(3), &json!(7)]);
    let token = sigv4_encoded(blocks[1]["BlockToken"].as_str().unwrap());
    let answer = get(&client, &format!("/snapshots/{id}/blocks/7?blockToken={token}"));
    assert_eq!((answer.status, answer.body == two), (200, true));
    assert_eq!(answer.header("x-amz-data-length"), Some("524288"));
    let sum = checksum::text(&checksum::digest(&two));
    assert_eq!(answer.header("x-amz-checksum"), Some(sum.as_str()));
    // A token is of one block of one snapshot.
    let answer = get(&client, &format!("/snapshots/{id}/blocks/3?blockToken={token}"));
    let wrong = (400, "ValidationException", "INVALID_BLOCK_TOKEN".to_owned());
    assert_eq!(answer.error(), wrong);
}

fn sigv4_encoded(text: &str) -> String {
    evenkeel_wire::aws::query::encode([("", text)])[1..].to_owned()
}

#[test]
fn changed_blocks_have_the_tokens_of_the_snapshots_that_have_them() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let first = started(&client, "1");
    put(&client, &first, 0, &unit(1));
    put(&client, &first, 1, &unit(1));
    assert_eq!(complete(&client, &first, 2, None).status, 202);
    let answer = start(&client, &json!({ "VolumeSize": 1, "ParentSnapshotId": first }));
    let second = answer.json()["SnapshotId"].as_str().unwrap().to_owned();
    assert_eq!(answer.json()["ParentSnapshotId"], first);
    put(&client, &second, 1, &unit(2));
    put(&client, &second, 5, &unit(2));
    assert_eq!(complete(&client, &second, 2, None).status, 202);
    let target = format!("/snapshots/{second}/changedblocks?firstSnapshotId={first}");
    let list = get(&client, &target).json();
    let has = |block: &Value, name: &str| block[name].is_string();
    let blocks = list["ChangedBlocks"].as_array().unwrap().iter().map(|block| {
        let index = block["BlockIndex"].as_u64().unwrap();
        (index, has(block, "FirstBlockToken"), has(block, "SecondBlockToken"))
    });
    assert_eq!(blocks.collect::<Vec<_>>(), [(1, true, true), (5, false, true)]);
    // In the other direction, a block that is missing in the second has only the token of the
    // first.
    let target = format!("/snapshots/{first}/changedblocks?firstSnapshotId={second}");
    let list = get(&client, &target).json();
    assert!(!has(&list["ChangedBlocks"][1], "SecondBlockToken"), "{list}");
}

#[test]
fn pages_follow_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let id = started(&client, "1");
    let key: SnapshotId = id.parse().unwrap();
    // Put into the store directly, since this number of requests would take too long.
    server.agent.with(|state| {
        let units = state.units.entry(key).or_default();
        units.extend((0..250).map(|unit| (unit * 2, vec![])));
        state.snapshots.get_mut(&key).unwrap().is_complete = true;
    });
    for block in [498, 496] {
        server.agent.with(|state| state.snapshots.get_mut(&key).unwrap().is_complete = false);
        assert_eq!(put(&client, &id, block, &unit(1)).status, 201);
    }
    assert_eq!(complete(&client, &id, 2, None).status, 202);
    let mut all = vec![];
    let mut target = format!("/snapshots/{id}/blocks?maxResults=100");
    let mut pages = 0;
    loop {
        let list = get(&client, &target).json();
        let blocks = list["Blocks"].as_array().unwrap();
        all.extend(blocks.iter().map(|block| block["BlockIndex"].as_u64().unwrap()));
        pages += 1;
        let Some(token) = list["NextToken"].as_str() else { break };
        let token = sigv4_encoded(token);
        // The token overrides the parameter.
        let query = format!("maxResults=100&pageToken={token}&startingBlockIndex=499");
        target = format!("/snapshots/{id}/blocks?{query}");
    }
    assert_eq!((pages, all), (3, (0..250).map(|unit| unit * 2).collect()));
    let list = get(&client, &format!("/snapshots/{id}/blocks?startingBlockIndex=495")).json();
    assert_eq!(list["Blocks"].as_array().unwrap().len(), 2);
    let error = |query: &str| get(&client, &format!("/snapshots/{id}/blocks?{query}")).error().2;
    assert_eq!(error("maxResults=99"), "INVALID_PARAMETER_VALUE");
    assert_eq!(error("maxResults=10001"), "INVALID_PARAMETER_VALUE");
    assert_eq!(error("what=1"), "INVALID_PARAMETER_VALUE");
    assert_eq!(error("pageToken=AAAA"), "INVALID_PAGE_TOKEN");
}

/// A repeated request would fail again, so it is no error of the server.
#[test]
fn a_snapshot_without_its_key_is_refused_as_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let id = started(&client, "t");
    let refused = (400, "ValidationException", "INVALID_SNAPSHOT_ID".to_owned());
    server.agent.with(|state| state.fail_always = Some(FailedKind::Damaged));
    assert_eq!(put(&client, &id, 0, &unit(9)).error(), refused);
    server.agent.with(|state| state.fail_always = None);
    assert_eq!(put(&client, &id, 0, &unit(9)).status, 201);
    assert_eq!(complete(&client, &id, 1, None).status, 202);
    server.agent.with(|state| state.fail_always = Some(FailedKind::Damaged));
    assert_eq!(get(&client, &format!("/snapshots/{id}/blocks")).error(), refused);
    server.agent.with(|state| state.fail_always = None);
}

#[test]
fn errors_have_their_type_reason_and_status() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let id = started(&client, "t");
    let data = unit(9);
    assert_eq!(put(&client, &id, 0, &data).status, 201);
    let absent = "snap-00000000000000001";
    let invalid = |reason: &str| (400, "ValidationException", reason.to_owned());
    let missing = (404, "ResourceNotFoundException", "SNAPSHOT_NOT_FOUND".to_owned());
    assert_eq!(put(&client, absent, 0, &data).error(), missing);
    assert_eq!(put(&client, "snap-1", 0, &data).error(), invalid("INVALID_SNAPSHOT_ID"));
    assert_eq!(put(&client, &id, 2_048, &data).error(), invalid("INVALID_BLOCK"));
    assert_eq!(put(&client, &id, 0, &data[1..]).error(), invalid("INVALID_BLOCK"));
    let longer = vec![9; UNIT_BYTES as usize + 1];
    assert_eq!(put(&client, &id, 0, &longer).error(), invalid("INVALID_BLOCK"));
    let to = format!("/snapshots/{id}/blocks/1");
    let sum = checksum::text(&checksum::digest(&data));
    let good = [
        ("x-amz-data-length", "524288"),
        ("x-amz-checksum", sum.as_str()),
        ("x-amz-checksum-algorithm", "SHA256"),
    ];
    for (at, value, reason) in [
        (0, "524287", "INVALID_BLOCK"),
        (0, "-1", "INVALID_PARAMETER_VALUE"),
        (1, "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "INVALID_BLOCK"),
        (2, "MD5", "INVALID_PARAMETER_VALUE"),
    ] {
        let mut headers = good;
        headers[at].1 = value;
        let answer = call(&client, ("PUT", &to), &headers, &data);
        assert_eq!(answer.error(), invalid(reason), "{headers:?}");
        let mut headers = good.to_vec();
        headers.remove(at);
        let answer = call(&client, ("PUT", &to), &headers, &data);
        assert_eq!(answer.error(), invalid("INVALID_PARAMETER_VALUE"), "{headers:?}");
    }
    // The checksum is signed, so the body need not be.
    let mut headers = good.to_vec();
    headers.push(("x-amz-content-sha256", "UNSIGNED-PAYLOAD"));
    assert_eq!(call(&client, ("PUT", &to), &headers, &data).status, 201);
    assert_eq!(call(&client, ("PUT", &to), &headers, &unit(8)).error(), invalid("INVALID_BLOCK"));
}

#[test]
fn completion_with_a_wrong_count_or_checksum_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let id = started(&client, "t");
    let data = unit(9);
    assert_eq!(put(&client, &id, 0, &data).status, 201);
    assert_eq!(put(&client, &id, 1, &data).status, 201);
    let absent = "snap-00000000000000001";
    let invalid = |reason: &str| (400, "ValidationException", reason.to_owned());
    let missing = (404, "ResourceNotFoundException", "SNAPSHOT_NOT_FOUND".to_owned());
    // Incomplete, and completed with other blocks than were put.
    let listed = get(&client, &format!("/snapshots/{id}/blocks"));
    assert_eq!(listed.error(), invalid("INVALID_SNAPSHOT_ID"));
    let differs = complete(&client, &id, 3, None);
    assert_eq!(differs.error(), invalid("INVALID_PARAMETER_VALUE"));
    assert!(differs.json()["Message"].as_str().unwrap().contains("2 different blocks"));
    let wrong = linear(&[&data]);
    assert_eq!(complete(&client, &id, 2, Some(&wrong)).error(), invalid("INVALID_PARAMETER_VALUE"));
    assert_eq!(state(&client, &id), "pending");
    assert_eq!(complete(&client, &id, 2, Some(&linear(&[&data, &data]))).status, 202);
    assert_eq!(put(&client, &id, 0, &data).error(), invalid("INVALID_SNAPSHOT_ID"));
    assert_eq!(complete(&client, absent, 0, None).error(), missing);
}

#[test]
fn a_start_that_is_refused_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    started(&client, "t");
    let absent = "snap-00000000000000001";
    let invalid = |reason: &str| (400, "ValidationException", reason.to_owned());
    let missing = (404, "ResourceNotFoundException", "SNAPSHOT_NOT_FOUND".to_owned());
    for (body, expected) in [
        (json!({ "VolumeSize": 0 }), invalid("INVALID_VOLUME_SIZE")),
        (json!({ "VolumeSize": 65_537 }), invalid("INVALID_VOLUME_SIZE")),
        (json!({}), invalid("INVALID_PARAMETER_VALUE")),
        (json!({ "VolumeSize": 1, "What": 1 }), invalid("INVALID_PARAMETER_VALUE")),
        (json!({ "VolumeSize": 1, "Timeout": 9 }), invalid("INVALID_PARAMETER_VALUE")),
        (json!({ "VolumeSize": 1, "Encrypted": true }), invalid("INVALID_PARAMETER_VALUE")),
        (json!({ "VolumeSize": 1, "KmsKeyArn": "k" }), invalid("INVALID_PARAMETER_VALUE")),
        (
            json!({ "VolumeSize": 1, "Tags": [{ "Key": "aws:x", "Value": "" }] }),
            invalid("INVALID_TAG"),
        ),
        (json!({ "VolumeSize": 1, "ParentSnapshotId": absent }), missing.clone()),
        (json!({ "VolumeSize": 2, "ClientToken": "t" }), (409, "ConflictException", String::new())),
    ] {
        assert_eq!(start(&client, &body).error(), expected, "{body}");
    }
    let answer = call(&client, ("POST", "/snapshots"), &[], b"no json");
    assert_eq!(answer.error(), invalid("INVALID_PARAMETER_VALUE"));
}

#[test]
fn unsigned_foreign_and_unknown_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let id = started(&client, "t");
    let to = format!("/snapshots/{id}/blocks/1");
    let none = (404, "UnknownOperationException", String::new());
    assert_eq!(get(&client, "/snapshots").error(), none);
    let of_ec2 = call_as("ec2", &client, ("GET", &to), &[], b"");
    assert_eq!(of_ec2.error(), (403, "InvalidSignatureException", String::new()));
    let unsigned = format!("GET {to} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let answer = exchange(&client, unsigned.into_bytes());
    assert_eq!(answer.error(), (403, "MissingAuthenticationTokenException", String::new()));

    assert_eq!(complete(&client, &id, 0, None).status, 202);
    server.agent.with(|state| state.fail_always = Some(FailedKind::Internal));
    let failed = get(&client, &format!("/snapshots/{id}/blocks"));
    assert_eq!(failed.error(), (500, "InternalServerException", String::new()));
    server.agent.with(|state| state.fail_always = None);
}

#[test]
fn filling_is_bounded_by_the_free_space() {
    let folder = tempfile::tempdir().unwrap();
    let agent = std::sync::Arc::<support::FakeAgent>::default();
    let bytes = ByteCount(3 * UNIT_BYTES);
    agent.with(|state| state.space = Some(Space { total: bytes, free: bytes }));
    let server = Server::start_with(support::config(folder.path()), agent).unwrap();
    let client = server.client();
    let id = started(&client, "1");
    for block in 0..3 {
        assert_eq!(put(&client, &id, block, &unit(1)).status, 201);
    }
    let full = (402, "ServiceQuotaExceededException", "DEPENDENCY_SERVICE_QUOTA_EXCEEDED".into());
    assert_eq!(put(&client, &id, 3, &unit(1)).error(), full);
    client.call("DeleteSnapshot", &[("SnapshotId", &id)]).unwrap();
    assert!(server.agent.with(|state| state.snapshots.is_empty()), "its space is free");
    let id = started(&client, "2");
    assert_eq!(put(&client, &id, 0, &unit(1)).status, 201);
}

#[test]
fn snapshots_being_filled_are_limited_to_100() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    (0..100).for_each(|number| drop(started(&client, &format!("t{number}"))));
    let answer = start(&client, &json!({ "VolumeSize": 1, "ClientToken": "more" }));
    assert_eq!(answer.error(), (400, "ConcurrentLimitExceededException", String::new()));
}

#[test]
fn filling_continues_after_a_restart_with_the_blocks_in_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let agent = std::sync::Arc::clone(&server.agent);
    let client = server.client();
    let id = started(&client, "1");
    let other = started(&client, "2");
    let one = unit(1);
    let two = unit(2);
    assert_eq!(put(&client, &id, 0, &one).status, 201);
    assert_eq!(put(&client, &other, 0, &one).status, 201);
    server.stop().unwrap();
    let server = Server::start_with(support::config(folder.path()), agent).unwrap();
    let client = server.client();
    assert_eq!((state(&client, &id), state(&client, &other)), ("pending".into(), "pending".into()));
    assert_eq!(started(&client, "1"), id, "the token is known");
    assert_eq!(put(&client, &id, 1, &two).status, 201);
    assert_eq!(complete(&client, &id, 2, Some(&linear(&[&one, &two]))).status, 202);
    assert_eq!(state(&client, &id), "completed");
    // A snapshot whose client has a wrong checksum stays in error: it is complete in the store.
    let differs = complete(&client, &other, 1, Some(&linear(&[&two])));
    assert_eq!(differs.error().1, "ValidationException");
    assert_eq!(state(&client, &other), "error");
    assert_eq!(complete(&client, &other, 1, None).error().2, "INVALID_SNAPSHOT_ID");
    client.call("DeleteSnapshot", &[("SnapshotId", &other)]).unwrap();
}

#[test]
fn filled_snapshot_missing_in_the_store_is_in_error() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let agent = std::sync::Arc::clone(&server.agent);
    let client = server.client();
    let id = started(&client, "1");
    server.stop().unwrap();
    agent.with(|state| state.snapshots.clear());
    let server = Server::start_with(support::config(folder.path()), agent).unwrap();
    assert_eq!(state(&server.client(), &id), "error");
}

#[test]
fn filled_snapshot_idle_for_too_long_is_in_error_and_frees_its_space() {
    let folder = tempfile::tempdir().unwrap();
    let agent = std::sync::Arc::<support::FakeAgent>::default();
    let plane = support::plane(folder.path(), &agent);
    let begin = |number: u128, timeout_min| {
        let id = SnapshotId::from_bits(number);
        let filled = Filled { parent: None, timeout_min, token: None };
        let size_gib = 1;
        let description = String::new();
        let tags = Tags::new();
        let command =
            Change::StartSnapshot { id, size_gib, filled, is_encrypted: None, description, tags };
        plane.execute(&command, false).unwrap();
        id
    };
    let idle = begin(1, 0);
    let busy = begin(2, 10);
    let state = |id| plane.model().snapshot(id).unwrap().state();
    // Its time of zero minutes ends in the next millisecond.
    (0..100_000).take_while(|_| state(idle) == "pending").for_each(|_| plane.tick());
    assert_eq!((state(idle), state(busy)), ("error", "pending"));
    let stored = agent.with(|state| state.snapshots.keys().copied().collect::<Vec<_>>());
    assert_eq!(stored, [busy]);
    plane.execute(&Change::DeleteSnapshot { id: idle }, false).unwrap();
    assert!(plane.model().snapshot(idle).is_err());
}

#[test]
fn an_archived_snapshot_is_neither_listed_nor_read_nor_a_parent() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let id = started(&client, "archived");
    assert_eq!(complete(&client, &id, 0, None).status, 202);
    let list = format!("/snapshots/{id}/blocks");
    assert_eq!(get(&client, &list).status, 200);
    client.call("ModifySnapshotTier", &[("SnapshotId", &id)]).unwrap();
    let refused = (400, "ValidationException", "INVALID_SNAPSHOT_ID".to_owned());
    assert_eq!(get(&client, &list).error(), refused);
    assert_eq!(get(&client, &format!("/snapshots/{id}/changedblocks")).error(), refused);
    let child = json!({ "VolumeSize": 1, "ParentSnapshotId": id });
    assert_eq!(start(&client, &child).error(), refused);
    let restore = [("SnapshotId", id.as_str()), ("TemporaryRestoreDays", "1")];
    client.call("RestoreSnapshotTier", &restore).unwrap();
    assert_eq!(get(&client, &list).status, 200);
}
