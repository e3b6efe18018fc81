//! Random requests over HTTP, signed after they were damaged: the EBS direct APIs, CloudWatch in
//! its three protocols, and invalid heads of requests. Every reply is well formed, every refusal
//! has a type and a text, none is a failure of the server, and the server keeps serving. Each case
//! has a seed; see `support/random.rs`.

#![allow(clippy::unwrap_used)] // the helpers of tests may panic too

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use evenkeel_wire::agent::UNIT_BYTES;
use evenkeel_wire::aws::checksum;
use evenkeel_wire::aws::query;
use evenkeel_wire::aws::sigv4::{self, Scope};
use evenkeel_wire::aws::xml::Element;
use serde_json::{Value, json};
use support::random::{Random, seeds};
use support::{Client, REGION, Server, raw_and_end, unix_s};

/// Number of histories of a plain run.
const CASES: u64 = 4;
/// Number of requests in each, for each service.
const REQUESTS: u32 = 150;

struct Request {
    method: &'static str,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn json(&self, why: &str) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{why}: {error}"))
    }
}

/// A connection that is kept alive, as SDKs do.
struct Line {
    client: Client,
    stream: Option<BufReader<TcpStream>>,
}

impl Line {
    fn signed(&self, service: &str, request: &Request) -> Vec<u8> {
        let host = self.client.address.to_string();
        let Request { method, path, query, headers, body } = request;
        let mut all = vec![("host", host.as_str())];
        all.extend(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let bare = sigv4::Request { method, path, query, headers: &all, body };
        let keys = sigv4::Credentials {
            access_key_id: &self.client.credentials.access_key_id,
            secret_access_key: &self.client.credentials.secret_access_key,
        };
        let added = sigv4::sign(&bare, keys, Scope { region: REGION, service }, unix_s());
        let target = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
        let mut text = format!("{method} {target} HTTP/1.1\r\n");
        let added = added.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in all.into_iter().chain(added) {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("content-length: {}\r\n\r\n", body.len());
        [text.as_bytes(), body].concat()
    }

    /// Sends a request. Returns the reply; `None` if the server has closed the connection instead.
    fn exchange(&mut self, bytes: &[u8]) -> Option<Reply> {
        let address = self.client.address;
        let stream = self.stream.get_or_insert_with(|| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            BufReader::new(stream)
        });
        let _ = stream.get_mut().write_all(bytes);
        let reply = read_reply(stream);
        if reply.as_ref().is_none_or(|reply| reply.header("connection") == Some("close")) {
            self.stream = None;
        }
        reply
    }

    fn ask(&mut self, service: &str, request: &Request) -> Reply {
        let bytes = self.signed(service, request);
        let reply = self.exchange(&bytes).or_else(|| self.exchange(&bytes));
        reply.unwrap_or_else(|| panic!("no reply: {}", String::from_utf8_lossy(&bytes)))
    }
}

fn read_reply(stream: &mut BufReader<TcpStream>) -> Option<Reply> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            text => lines.push(text.to_owned()),
        }
    }
    let status = lines.first()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &String| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_owned(), value.to_owned()))
    };
    let headers: Vec<_> = lines.iter().skip(1).filter_map(header).collect();
    let mut reply = Reply { status, headers, body: Vec::new() };
    let length = reply.header("content-length").map_or(0, |text| text.parse().unwrap());
    reply.body.resize(length, 0);
    stream.read_exact(&mut reply.body).ok()?;
    Some(reply)
}

fn junk(random: &mut Random) -> String {
    const JUNK: [&str; 16] = [
        "",
        "0",
        "-1",
        "+7",
        "99999999999999999999",
        "1e3",
        "snap-",
        "snap-fffffffffffffffff",
        "%00",
        "%zz",
        "..",
        "%2F",
        "\u{e9}\u{1F6A2}",
        "null",
        "true",
        "SHA256",
    ];
    match random.below(JUNK.len() + 1) {
        0 => "x".repeat(1 << random.below(13)),
        at => JUNK[at - 1].to_owned(),
    }
}

/// Returns a text, which is `usual` most often.
fn text(random: &mut Random, usual: impl Into<String>) -> String {
    if random.one_in(12) { junk(random) } else { usual.into() }
}

/// Returns such a text, encoded for a path or a query.
fn encoded(random: &mut Random, usual: impl Into<String>) -> String {
    let text = text(random, usual);
    query::encode([(text.as_str(), "")]).trim_end_matches('=').to_owned()
}

/// Replaces, removes or repeats some of the bytes.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let offset = random.below(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(offset),
            1 => bytes.insert(offset.min(bytes.len()), random.bits() as u8),
            2 if !bytes.is_empty() => _ = bytes.remove(offset),
            3 => bytes.extend_from_within(offset.min(bytes.len())..),
            _ if !bytes.is_empty() => bytes[offset] = random.bits() as u8,
            _ => {}
        }
    }
}

/// Objects of the server that requests can name.
#[derive(Default)]
struct Known {
    ids: Vec<String>,
    tokens: Vec<String>,
    started: u32,
}

fn direct_request(random: &mut Random, known: &mut Known) -> Request {
    // Takes the newest most often: one of them is being filled.
    let newest = &known.ids[known.ids.len().saturating_sub(2)..];
    let among = if random.one_in(6) { &known.ids } else { newest };
    let id = random.of(among).cloned().unwrap_or_else(|| "snap-00000000000000abc".into());
    let id = encoded(random, id);
    let block = random.below(4).to_string();
    let block = encoded(random, block);
    let token = random.of(&known.tokens).cloned().unwrap_or_default();
    let token = encoded(random, token);
    let mut headers = Vec::new();
    let mut query = String::new();
    let mut body = Vec::new();
    let (method, mut path) = match random.below(12) {
        0 => {
            known.started += 1;
            body = start_body(random, known);
            ("POST", "/snapshots".to_owned())
        }
        1..=4 => {
            body = if random.one_in(4) { vec![random.bits() as u8; 99] } else { unit(random) };
            let sum = checksum::text(&checksum::digest(&body));
            for (name, usual) in [
                ("x-amz-data-length", UNIT_BYTES.to_string()),
                ("x-amz-checksum", sum),
                ("x-amz-checksum-algorithm", "SHA256".into()),
                ("x-amz-progress", "7".into()),
            ] {
                add_header(random, &mut headers, name, usual);
            }
            ("PUT", format!("/snapshots/{id}/blocks/{block}"))
        }
        5 | 6 => {
            let count = random.below(4).to_string();
            add_header(random, &mut headers, "x-amz-changedblockscount", count);
            ("POST", format!("/snapshots/completion/{id}"))
        }
        7 | 8 => {
            query = format!("maxResults={}&pageToken={token}", encoded(random, "100"));
            ("GET", format!("/snapshots/{id}/blocks"))
        }
        9 => {
            let first = random.of(&known.ids).cloned().unwrap_or_default();
            query = format!("firstSnapshotId={}", encoded(random, first));
            ("GET", format!("/snapshots/{id}/changedblocks"))
        }
        _ => {
            query = format!("blockToken={token}");
            ("GET", format!("/snapshots/{id}/blocks/{block}"))
        }
    };
    if random.one_in(20) {
        path += "/";
    }
    Request { method, path, query, headers, body }
}

fn unit(random: &mut Random) -> Vec<u8> {
    vec![random.below(4) as u8; UNIT_BYTES as usize]
}

fn add_header(random: &mut Random, headers: &mut Vec<(String, String)>, name: &str, usual: String) {
    if !random.one_in(15) {
        let value = text(random, usual);
        // A header is one line.
        headers.push((name.to_owned(), value.replace(|c: char| c.is_ascii_control(), "")));
    }
}

fn start_body(random: &mut Random, known: &Known) -> Vec<u8> {
    let mut body = json!({ "VolumeSize": 1, "ClientToken": format!("t{}", known.started) });
    if random.one_in(3) {
        body["Description"] = text(random, "d").into();
        body["Tags"] = json!([{ "Key": text(random, "k"), "Value": text(random, "v") }]);
    }
    if random.one_in(4) {
        let parent = random.of(&known.ids).cloned().unwrap_or_default();
        body["ParentSnapshotId"] = text(random, parent).into();
    }
    if random.one_in(6) {
        body["VolumeSize"] = json!([0, -1, 1e30, "1", null, 70_000])[random.below(6)].clone();
    }
    if random.one_in(6) {
        let name = text(random, "Timeout");
        body[name] = json!([10, 9, -1, "x"])[random.below(4)].clone();
    }
    let mut bytes = body.to_string().into_bytes();
    if random.one_in(8) {
        damage(random, &mut bytes);
    }
    bytes
}

fn check_direct(request: &Request, reply: &Reply, known: &mut Known) {
    let why = format!("{} {}?{} {reply:?}", request.method, request.path, request.query);
    let status = reply.status;
    if status < 400 {
        assert!([200, 201, 202].contains(&status), "{why}");
        if reply.header("content-type") == Some("application/json") {
            let body = reply.json(&why);
            if let Some(id) = body["SnapshotId"].as_str() {
                known.ids.push(id.to_owned());
            }
            for list in ["Blocks", "ChangedBlocks"] {
                for block in body[list].as_array().into_iter().flatten() {
                    let tokens = ["BlockToken", "FirstBlockToken", "SecondBlockToken"];
                    let tokens = tokens.into_iter().filter_map(|name| block[name].as_str());
                    known.tokens.extend(tokens.map(str::to_owned));
                }
            }
        }
        return;
    }
    assert!(status < 500, "{why}");
    let body = reply.json(&why);
    assert!(body["Message"].as_str().is_some_and(|text| !text.is_empty()), "{why}");
    assert!(reply.header("x-amzn-errortype").is_some_and(|kind| kind.ends_with("Exception")));
}

#[test]
fn the_direct_apis_answer_every_request_well() {
    let mut reached = (0, 0);
    seeds(CASES, |seed| {
        let mut random = Random::new(seed);
        let mut known = Known::default();
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path());
        let mut line = Line { client: server.client(), stream: None };
        for _ in 0..REQUESTS {
            let request = direct_request(&mut random, &mut known);
            let reply = line.ask("ebs", &request);
            check_direct(&request, &reply, &mut known);
        }
        reached = (reached.0 + known.ids.len(), reached.1 + known.tokens.len());
        check_serves(&server);
    });
    assert!(reached.0 > 0 && reached.1 > 0, "nothing was reached: {reached:?}");
}

fn check_serves(server: &Server) {
    server.client().call("DescribeVolumes", &[]).unwrap();
    let health = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert!(support::raw(server.address, health).ends_with("ok"));
}

/// Returns an action of CloudWatch with valid parameters.
fn metric_request(random: &mut Random) -> (&'static str, Value) {
    let dimensions = json!([{ "Name": "VolumeId", "Value": "vol-00000000000000abc" }]);
    let metric = json!({
        "Namespace": "AWS/EBS", "MetricName": "VolumeReadOps", "Dimensions": dimensions,
    });
    match random.below(3) {
        0 => ("ListMetrics", json!({ "Namespace": "AWS/EBS", "Dimensions": dimensions })),
        1 => {
            let stat = json!({ "Metric": metric, "Period": 60, "Stat": "Sum" });
            let text = "FILL(METRICS('a'), 0) * RATE(a) / (AVG(a) + 1)";
            let queries = json!([
                { "Id": "a", "MetricStat": stat, "ReturnData": true },
                { "Id": "b", "Expression": text, "Period": 60 },
            ]);
            let times = json!({ "StartTime": 1_700_000_000, "EndTime": 1_700_000_600 });
            ("GetMetricData", merged(json!({ "MetricDataQueries": queries }), times))
        }
        _ => {
            let times = json!({ "StartTime": 1_700_000_000, "EndTime": 1_700_000_600 });
            let more = json!({ "Period": 60, "Statistics": ["Sum", "Average"] });
            ("GetMetricStatistics", merged(merged(metric, times), more))
        }
    }
}

fn merged(mut one: Value, other: Value) -> Value {
    for (name, value) in other.as_object().into_iter().flatten() {
        one[name] = value.clone();
    }
    one
}

/// Replaces a part of the value.
fn spoil(random: &mut Random, value: &mut Value) {
    let inner = match value {
        Value::Array(items) if !random.one_in(4) => {
            let offset = random.below(items.len());
            items.get_mut(offset)
        }
        Value::Object(fields) if !random.one_in(6) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            random.of(&names).cloned().and_then(|name| fields.get_mut(&name))
        }
        _ => None,
    };
    if let Some(inner) = inner {
        return spoil(random, inner);
    }
    *value = match random.below(8) {
        0 => Value::Null,
        1 => json!(random.bits()),
        2 => json!(-1.5e300),
        3 => json!({ junk(random): junk(random) }),
        4 => json!([[[[[[junk(random)]]]]]]),
        5 => json!(false),
        _ => junk(random).into(),
    };
}

fn cbor(out: &mut Vec<u8>, value: &Value) {
    let mut head = |major: u8, length: usize| {
        out.push(major << 5 | 26);
        out.extend((length as u32).to_be_bytes());
    };
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(value) => out.push(0xf4 + u8::from(*value)),
        Value::Number(number) => {
            out.push(0xfb);
            out.extend(number.as_f64().unwrap_or_default().to_be_bytes());
        }
        Value::String(text) => {
            head(3, text.len());
            out.extend(text.bytes());
        }
        Value::Array(items) => {
            head(4, items.len());
            items.iter().for_each(|item| cbor(out, item));
        }
        Value::Object(fields) => {
            head(5, fields.len());
            for (name, value) in fields {
                cbor(out, &Value::from(name.as_str()));
                cbor(out, value);
            }
        }
    }
}

fn flat(out: &mut Vec<(String, String)>, name: &str, value: &Value) {
    let inner =
        |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    match value {
        Value::Array(items) => {
            for (number, item) in (1..).zip(items) {
                flat(out, &inner(&format!("member.{number}")), item);
            }
        }
        Value::Object(fields) => fields.iter().for_each(|(part, it)| flat(out, &inner(part), it)),
        Value::String(text) => out.push((name.to_owned(), text.clone())),
        other => out.push((name.to_owned(), other.to_string())),
    }
}

#[test]
fn cloudwatch_answers_every_request_well_in_each_protocol() {
    seeds(CASES, |seed| {
        let mut random = Random::new(seed);
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path());
        let mut line = Line { client: server.client(), stream: None };
        let mut answered = [0; 3];
        for _ in 0..REQUESTS {
            let (action, mut value) = metric_request(&mut random);
            for _ in 0..random.below(3) {
                spoil(&mut random, &mut value);
            }
            let form = random.below(3);
            let mut request = in_form(form, action, &value);
            if random.one_in(5) {
                damage(&mut random, &mut request.body);
            }
            let reply = line.ask("monitoring", &request);
            check_metrics(form, &request, &reply);
            answered[form] += u32::from(reply.status == 200);
        }
        assert!(answered.iter().all(|count| *count > 0), "{answered:?}: nothing was reached");
        check_serves(&server);
    });
}

fn in_form(form: usize, action: &str, value: &Value) -> Request {
    const TARGET: &str = "GraniteServiceVersion20100801";
    let header = |name: &str, value: String| (name.to_owned(), value);
    let mut path = "/".to_owned();
    let mut headers = Vec::new();
    let mut body = Vec::new();
    match form {
        0 => {
            headers.push(header("x-amz-target", format!("{TARGET}.{action}")));
            body = value.to_string().into_bytes();
        }
        1 => {
            path = format!("/service/{TARGET}/operation/{action}");
            headers.push(header("smithy-protocol", "rpc-v2-cbor".into()));
            cbor(&mut body, value);
        }
        _ => {
            let mut pairs = vec![
                ("Action".to_owned(), action.to_owned()),
                ("Version".to_owned(), "2010-08-01".to_owned()),
            ];
            flat(&mut pairs, "", value);
            let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            body = query::encode(pairs).into_bytes();
        }
    }
    Request { method: "POST", path, query: String::new(), headers, body }
}

fn check_metrics(form: usize, request: &Request, reply: &Reply) {
    let why = format!("{} {}", request.path, String::from_utf8_lossy(&request.body));
    assert!(reply.status == 200 || (400..500).contains(&reply.status), "{why}: {reply:?}");
    let is_error = reply.status != 200;
    if is_error {
        assert!(reply.header("x-amzn-query-error").is_some(), "{why}: {reply:?}");
    }
    match form {
        0 => {
            let body = reply.json(&why);
            let kind = body["__type"].as_str().unwrap_or_default();
            assert_eq!(is_error, !kind.is_empty(), "{why}: {body}");
        }
        1 => assert_eq!(reply.body.first().map(|head| head >> 5), Some(5), "{why}: no map"),
        _ => {
            let text = String::from_utf8(reply.body.clone()).unwrap();
            let root = Element::parse(&text).unwrap_or_else(|e| panic!("{why}: {e}: {text}"));
            assert_eq!(is_error, root.name == "ErrorResponse", "{why}: {text}");
        }
    }
}

/// A damaged head is refused, or it is a valid request and answered.
#[test]
fn damaged_heads_are_refused_or_answered() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    seeds(CASES, |seed| {
        let mut random = Random::new(seed);
        let line = Line { client: server.client(), stream: None };
        for _ in 0..REQUESTS {
            let body = b"Action=DescribeVolumes&Version=2016-11-15".to_vec();
            let path = "/".to_owned();
            let query = String::new();
            let request = Request { method: "POST", path, query, headers: Vec::new(), body };
            let mut bytes = line.signed("ec2", &request);
            damage(&mut random, &mut bytes);
            let answer = raw_and_end(server.address, &bytes);
            let status = answer.split(' ').nth(1).unwrap_or_default();
            let is_refusal = answer.is_empty() || status.starts_with('4') || status == "503";
            let text = String::from_utf8_lossy(&bytes);
            assert!(is_refusal || status == "200", "{text}\n{answer}");
        }
        check_serves(&server);
    });
}
