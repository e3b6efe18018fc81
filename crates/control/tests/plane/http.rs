//! The HTTP port: signatures, malformed input, sizes, slow clients.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::{Client, FakeAgent, REGION, Server, config, create, raw, raw_and_end, unix_s};
use evenkeel_control::{CONNECTIONS_MAX, ControlConfig, ControlError, Timeouts};
use evenkeel_wire::agent::FailedKind;
use evenkeel_wire::aws::sigv4::{self, Scope};
use evenkeel_wire::aws::xml::Element;

const DESCRIBE: &str = "Action=DescribeVolumes&Version=2016-11-15";

fn started() -> (tempfile::TempDir, Server, Client) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    (folder, server, client)
}

fn code(body: &str) -> String {
    let root = Element::parse(body).unwrap();
    root.items("Errors")[0].child_text("Code").unwrap().into()
}

#[test]
fn health_needs_no_signature() {
    let (_folder, _server, client) = started();
    for path in ["/healthz", "/readyz"] {
        let answer = client.send("GET", path, &[("host".into(), "localhost".into())], b"");
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
    }
    let answer = client.send("GET", "/nowhere", &[("host".into(), "localhost".into())], b"");
    assert_eq!((answer.status, code(&answer.body).as_str()), (404, "InvalidAction"));
    let answer = client.send("PUT", "/", &[("host".into(), "localhost".into())], b"");
    assert_eq!((answer.status, code(&answer.body).as_str()), (405, "InvalidAction"));
}

#[test]
fn metrics_need_no_signature_and_say_when_there_are_none() {
    let (_folder, server, client) = started();
    let volume = create(&client, &[("VolumeType", "gp3")]);
    let scrape = || client.send("GET", "/metrics", &[("host".into(), "localhost".into())], b"");
    let answer = scrape();
    assert_eq!(answer.status, 200);
    let labels = format!("{{volume_id=\"{volume}\",volume_type=\"gp3\"}}");
    let sample = format!("\nevenkeel_provisioned_iops{labels} 3000\n");
    assert!(answer.body.contains(&sample), "{}", answer.body);
    assert!(answer.body.contains("# TYPE evenkeel_build_info gauge\n"), "{}", answer.body);
    let open = [("host", "localhost"), ("accept", "application/openmetrics-text; version=1.0.0")];
    let open = open.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let open = client.send("GET", "/metrics", &open, b"");
    assert!(open.body.contains(&sample), "{}", open.body);
    assert!(open.body.contains("# TYPE evenkeel_build info\n"), "{}", open.body);
    assert!(open.body.ends_with("\n# EOF\n"), "{}", open.body);
    server.agent.with(|state| state.fail_always = Some(FailedKind::Down));
    let answer = scrape();
    let problem = "the data plane: simulated failure: Down\n";
    assert_eq!((answer.status, answer.body.as_str()), (503, problem));
    server.agent.with(|state| state.fail_always = None);
    assert_eq!(scrape().status, 200);
}

#[test]
fn scrapes_of_a_slow_data_plane_delay_no_other_request() {
    let (_folder, server, client) = started();
    let scrapes: Vec<_> = server.agent.with(|_| {
        // While this closure runs, the data plane sends no replies.
        let scrape = |_| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            stream.write_all(request).unwrap();
            stream
        };
        let scrapes = (0..20).map(scrape).collect();
        for _ in 0..3 {
            let health =
                client.send("GET", "/healthz", &[("host".into(), "localhost".into())], b"");
            assert_eq!(health.status, 200);
            client.call("DescribeVolumes", &[]).unwrap();
        }
        scrapes
    });
    for mut stream in scrapes {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        // If this machine stopped for a while, the reply reports that the scrape waited for too
        // long.
        if answer.starts_with("HTTP/1.1 503 ") {
            assert!(answer.ends_with("the data plane did not answer within 10s\n"), "{answer}");
            continue;
        }
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let kind = "content-type: text/plain; version=0.0.4; charset=utf-8\r\n";
        assert!(answer.contains(kind), "{answer}");
    }
}

#[test]
fn each_broken_signature_has_its_error() {
    let (_folder, _server, client) = started();
    let now = unix_s();
    let good = client.signed_headers(DESCRIBE, now);
    assert_eq!(client.send("POST", "/", &good, DESCRIBE.as_bytes()).status, 200);
    let refused = |headers: &[(String, String)], body: &str| {
        let answer = client.send("POST", "/", headers, body.as_bytes());
        (answer.status, code(&answer.body))
    };
    let expect = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(refused(&good[..2], DESCRIBE), expect(403, "MissingAuthenticationToken"));
    let other = DESCRIBE.replace("Volumes", "Tags");
    assert_eq!(refused(&good, &other), expect(403, "SignatureDoesNotMatch"));
    let old = client.signed_headers(DESCRIBE, now - 400);
    assert_eq!(refused(&old, DESCRIBE), expect(400, "RequestExpired"));
    let mut garbled = good.clone();
    garbled[3].1 = "AWS4-HMAC-SHA256 what".into();
    assert_eq!(refused(&garbled, DESCRIBE), expect(400, "IncompleteSignature"));
    let mut region = good.clone();
    region[3].1 = region[3].1.replace(REGION, "us-east-1");
    assert_eq!(refused(&region, DESCRIBE), expect(403, "SignatureDoesNotMatch"));

    let mut stranger = client.clone();
    stranger.credentials.access_key_id = "AKIDEXAMPLE".into();
    let answer = stranger.post(DESCRIBE, now);
    assert_eq!((answer.status, code(&answer.body)), expect(401, "AuthFailure"));
    stranger = client.clone();
    stranger.credentials.secret_access_key.push('x');
    let answer = stranger.post(DESCRIBE, now);
    assert_eq!((answer.status, code(&answer.body)), expect(403, "SignatureDoesNotMatch"));
}

#[test]
fn presigned_urls_work() {
    let (_folder, _server, client) = started();
    let host = client.address.to_string();
    let headers = [("host", host.as_str())];
    let request =
        sigv4::Request { method: "GET", path: "/", query: DESCRIBE, headers: &headers, body: b"" };
    let keys = sigv4::Credentials {
        access_key_id: &client.credentials.access_key_id,
        secret_access_key: &client.credentials.secret_access_key,
    };
    let scope = Scope { region: REGION, service: "ec2" };
    let url = sigv4::presign(&request, keys, scope, unix_s(), 60);
    let headers = [("host".to_owned(), host.clone())];
    let answer = client.send("GET", &format!("/?{url}"), &headers, b"");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = client.send("GET", &format!("/?{url}&MaxResults=5"), &headers, b"");
    assert_eq!(code(&answer.body), "SignatureDoesNotMatch");
}

const TAG: &str = "Action=CreateTags&Version=2016-11-15&Tag.1.Key=k&ResourceId.1=";

/// The error code that makes every SDK sign and send the request again.
const TOO_EARLY: &str = "RequestLimitExceeded";

/// An attacker can repeat a recorded request, but without effect.
#[test]
fn a_change_is_made_once_however_often_its_request_is_sent() {
    let (_folder, server, client) = started();
    let create = "Action=CreateVolume&Version=2016-11-15&AvailabilityZone=local-1a&Size=1";
    let count = || server.agent.with(|state| state.volumes.len());
    let sent = |headers: &[(String, String)], body: &str| {
        client.send("POST", "/", headers, body.as_bytes())
    };
    // Until the last second in which the signature is valid.
    for signed_at in [unix_s(), unix_s() - 200] {
        let before = count();
        let headers = client.signed_headers(create, signed_at);
        assert_eq!(sent(&headers, create).status, 200);
        for _ in 0..2 {
            let again = sent(&headers, create);
            assert_eq!((again.status, code(&again.body).as_str()), (503, TOO_EARLY));
        }
        assert_eq!(count(), before + 1);
    }
    // The signature of a refused request counts as used, since the request might be accepted later.
    // Dry runs are exempt, since they never change anything, and so are requests with a client
    // token, which return the same volume again.
    let absent = "Action=DeleteVolume&Version=2016-11-15&VolumeId=vol-00000000000000000";
    let headers = client.signed_headers(absent, unix_s());
    assert_eq!(code(&sent(&headers, absent).body), "InvalidVolume.NotFound");
    assert_eq!(code(&sent(&headers, absent).body), TOO_EARLY);
    let dry = format!("{create}&DryRun=true");
    let headers = client.signed_headers(&dry, unix_s());
    (0..2).for_each(|_| assert_eq!(code(&sent(&headers, &dry).body), "DryRunOperation"));
    let before = count();
    let token = format!("{create}&ClientToken=one");
    let headers = client.signed_headers(&token, unix_s());
    (0..3).for_each(|_| assert_eq!(sent(&headers, &token).status, 200));
    assert_eq!(count(), before + 1);
    // Reading requests are not limited.
    let headers = client.signed_headers(DESCRIBE, unix_s());
    (0..3).for_each(|_| assert_eq!(sent(&headers, DESCRIBE).status, 200));
}

#[test]
fn replay_with_other_unsigned_parts_is_recognised() {
    let (_folder, _server, client) = started();
    let body = format!("{TAG}{}", create(&client, &[]));
    let host = client.address.to_string();
    let headers = [("host", host.as_str())];
    let keys = sigv4::Credentials {
        access_key_id: &client.credentials.access_key_id,
        secret_access_key: &client.credentials.secret_access_key,
    };
    let scope = Scope { region: REGION, service: "ec2" };
    let request =
        sigv4::Request { method: "GET", path: "/", query: &body, headers: &headers, body: b"" };
    let url = sigv4::presign(&request, keys, scope, unix_s(), 3_600);
    let get = |url: &str, headers: &[(String, String)]| {
        client.send("GET", &format!("/?{url}"), headers, b"")
    };
    let mut headers = vec![("host".to_owned(), host.clone())];
    assert_eq!(get(&url, &headers).status, 200);
    // In another order, with another spelling, with one more header.
    let (first, rest) = url.split_once('&').unwrap();
    headers.push(("accept".into(), "text/xml".into()));
    for url in [url.clone(), format!("{rest}&{first}"), url.replace("CreateTags", "Create%54ags")] {
        let again = get(&url, &headers);
        assert_eq!((again.status, code(&again.body).as_str()), (503, TOO_EARLY), "{url}");
    }
}

#[test]
fn no_restart_makes_a_signature_good_again() {
    let (folder, server, client) = started();
    let body = format!("{TAG}{}", create(&client, &[]));
    let now = unix_s();
    let agent = Arc::clone(&server.agent);
    let early = [now, now - 100].map(|at| client.signed_headers(&body, at));
    assert_eq!(client.send("POST", "/", &early[0], body.as_bytes()).status, 200);
    server.stop().unwrap();
    let server = Server::start_with(config(folder.path()), agent).unwrap();
    // The attacker sends requests that were signed for this address; the port is not signed.
    let mut client = server.client();
    for headers in &early {
        client.address = server.address;
        let again = client.send("POST", "/", headers, body.as_bytes());
        assert_eq!((again.status, code(&again.body).as_str()), (503, TOO_EARLY), "{again:?}");
    }
    // A client with a new signature is served.
    let tag = [("ResourceId.1", body.rsplit('=').next().unwrap()), ("Tag.1.Key", "k")];
    client.call("CreateTags", &tag).unwrap();
}

/// The client's clock is ahead, by less than the tolerance.
#[test]
fn no_restart_makes_a_signature_of_the_future_good_again() {
    let (folder, server, client) = started();
    let create = "Action=CreateVolume&Version=2016-11-15&AvailabilityZone=local-1a&Size=1";
    let agent = Arc::clone(&server.agent);
    let count = || agent.with(|state| state.volumes.len());
    let early = client.signed_headers(create, unix_s() + 250);
    assert_eq!(client.send("POST", "/", &early, create.as_bytes()).status, 200);
    assert_eq!(count(), 1);
    let mut server = server;
    for _ in 0..2 {
        server.stop().unwrap();
        server = Server::start_with(config(folder.path()), Arc::clone(&agent)).unwrap();
        let again = server.client().send("POST", "/", &early, create.as_bytes());
        assert_eq!((again.status, code(&again.body).as_str()), (503, TOO_EARLY), "{again:?}");
        assert_eq!(count(), 1);
    }
    // Clients whose clocks are ahead or right make other changes.
    let mut client = server.client();
    client.address = server.address;
    let fresh = client.signed_headers(create, unix_s() + 251);
    assert_eq!(client.send("POST", "/", &fresh, create.as_bytes()).status, 200);
    support::create(&client, &[]);
    assert_eq!(count(), 3);
}

#[test]
fn garbage_is_refused() {
    let (_folder, _server, client) = started();
    let long_header =
        format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(100_000));
    let many_headers = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1_000));
    let long_target = format!("GET /?{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(100_000));
    for bytes in [
        b"\0\0\0\0".as_slice(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"NBDMAGICIHAVEOPT",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        long_header.as_bytes(),
        many_headers.as_bytes(),
        long_target.as_bytes(),
    ] {
        let answer = raw_and_end(client.address, bytes);
        assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    }
    // A signed body that has no valid parameters.
    for (body, expected) in [
        ("", "MissingAction"),
        ("%zz", "MalformedQueryString"),
        ("a=1&a=2", "MalformedQueryString"),
        ("Action=DescribeVolumes", "MissingParameter"),
        ("Action=DescribeVolumes&Version=2010-01-01", "NoSuchVersion"),
    ] {
        let answer = client.post(body, unix_s());
        assert_eq!((answer.status, code(&answer.body).as_str()), (400, expected), "{body}");
    }
    assert_eq!(client.post(DESCRIBE, unix_s()).status, 200);
}

#[test]
fn bodies_are_bounded() {
    // The connection ends soon after its last reply.
    let head = Duration::from_secs(1);
    let (_folder, server) = started_with(Timeouts { head, ..PATIENT });
    let client = server.client();
    let large = "a".repeat((1 << 20) + 1);
    let answer = raw(client.address, &signed_request(&client, &large));
    // The reply may be lost with the connection, but no other reply may come.
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert_eq!(client.post(DESCRIBE, unix_s()).status, 200);
}

/// Clients that connect and send nothing, or half of a request, must not block others.
#[test]
fn slow_clients_do_not_block_others() {
    let (_folder, _server, client) = started();
    let mut dawdlers = Vec::new();
    for number in 0..100 {
        let mut stream = TcpStream::connect(client.address).unwrap();
        if number % 2 == 0 {
            stream
                .write_all(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nabc")
                .unwrap();
        }
        dawdlers.push(stream);
    }
    assert_eq!(client.post(DESCRIBE, unix_s()).status, 200);
}

/// Long enough for any step but the tested one.
const LONG: Duration = Duration::from_secs(3_600);
/// Long enough that a byte or a request arrives within it.
const SHORT: Duration = Duration::from_millis(100);
const PATIENT: Timeouts = Timeouts {
    handshake: LONG,
    head: LONG,
    body: LONG,
    connection: LONG,
    close: LONG,
    send: LONG,
    stop: LONG,
};

fn started_with(timeouts: Timeouts) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let config = ControlConfig { timeouts, ..config(folder.path()) };
    let server = Server::start_with(config, Arc::default()).unwrap();
    (folder, server)
}

/// Sends `start`, and then a byte repeatedly, so that it is never silent for long, until the server
/// ends the connection. Returns the server's answer.
fn trickle(server: &Server, start: &str) -> String {
    const BYTES_MAX: u32 = 3_000;
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(start.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut said = Vec::new();
    for _ in 0..BYTES_MAX {
        // Writing fails once the server has closed; earlier bytes may still be read.
        let _ = stream.write_all(b"a");
        let mut bytes = [0; 1_024];
        match stream.read(&mut bytes) {
            Ok(0) => return String::from_utf8(said).unwrap(),
            Ok(count) => said.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return String::from_utf8(said).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the server still listens after {BYTES_MAX} bytes");
}

const HALF_A_HEAD: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ";

/// Returns the answer to a request with a valid head and only a part of its body.
fn half_a_body(server: &Server) -> String {
    let signed = server.client().signed_headers(DESCRIBE, unix_s());
    let header = |(name, value): &(String, String)| format!("{name}: {value}\r\n");
    let headers: String = signed.iter().map(header).collect();
    format!("POST / HTTP/1.1\r\n{headers}content-length: 100000\r\n\r\n")
}

#[test]
fn a_head_that_trickles_in_is_not_waited_for() {
    let (_folder, server) = started_with(Timeouts { head: SHORT, ..PATIENT });
    let said = trickle(&server, HALF_A_HEAD);
    assert!(!said.starts_with("HTTP/1.1 2"), "{said}");
}

#[test]
fn a_body_that_trickles_in_is_not_waited_for() {
    let (_folder, server) = started_with(Timeouts { body: SHORT, ..PATIENT });
    let said = trickle(&server, &half_a_body(&server));
    assert!(said.starts_with("HTTP/1.1 408") && said.contains("RequestTimeout"), "{said}");
    assert!(said.contains("within 100ms"), "{said}");
}

#[test]
fn a_client_that_falls_silent_is_not_waited_for() {
    let (_folder, server) = started_with(Timeouts { head: SHORT, ..PATIENT });
    assert_eq!(raw(server.address, b""), "");
    // Each connection ends because the server closes it. One that was closed before its answer is
    // repeated.
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let said = (0..50).map(|_| raw(server.address, request)).find(|said| !said.is_empty());
    let said = said.expect("an answer");
    assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("\r\n\r\nok"), "{said}");
}

#[test]
fn connection_is_closed_after_its_maximum_time() {
    // These requests would take more than a minute if all were answered.
    const REQUESTS: u32 = 1_000_000;
    let (_folder, server) = started_with(Timeouts { connection: SHORT, ..PATIENT });
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for _ in 0..REQUESTS {
        // Writing fails once the server has closed; the read then reports it.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
        match stream.read(&mut [0; 1_024]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the connection is still served");
}

#[test]
fn a_connection_that_is_being_closed_is_cut_in_the_end() {
    let timeouts = Timeouts { connection: SHORT, close: SHORT, ..PATIENT };
    let (_folder, server) = started_with(timeouts);
    assert_eq!(trickle(&server, &half_a_body(&server)), "");
}

#[test]
fn stopping_server_waits_for_connections_for_a_limited_time() {
    let (_folder, server) = started_with(Timeouts { stop: SHORT, ..PATIENT });
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(half_a_body(&server).as_bytes()).unwrap();
    // It is served, since connections are accepted in order.
    let health = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert!(raw(server.address, health).ends_with("ok"));
    server.stop().unwrap();
    // Cut without an answer: the socket is closed or reset.
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, b"");
}

#[test]
fn a_reply_that_is_not_read_is_not_kept() {
    let (_folder, server) = started_with(Timeouts { send: SHORT, ..PATIENT });
    let mut stream = TcpStream::connect(server.address).unwrap();
    // While a reply is not read, the server reads no further requests: writing blocks, and fails
    // when the connection is cut.
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1_000);
    let end = (0..10_000).find_map(|_| stream.write_all(&request).err()).unwrap();
    assert!(![ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&end.kind()), "{end}");
}

#[test]
fn a_body_without_a_signature_is_not_kept_and_its_sender_is_counted() {
    let (_folder, server, client) = started();
    let big = "x".repeat(1 << 20);
    let headers = [("host".to_owned(), "localhost".to_owned())];
    for path in ["/", "/service/GraniteServiceVersion20100801/operation/ListMetrics", "/snapshots"]
    {
        let answer = client.send("POST", path, &headers, big.as_bytes());
        assert!((400..=403).contains(&answer.status), "{path}: {}", answer.body);
        assert!(answer.body.contains("missing Authentication Token"), "{path}: {}", answer.body);
    }
    // The server does not wait that long for a body that was announced and does not come.
    let start = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n";
    assert!(trickle(&server, start).starts_with("HTTP/1.1 403 "));
    let metrics = client.send("GET", "/metrics", &headers, b"").body;
    for (code, count) in
        [("MissingAuthenticationToken", 3), ("MissingAuthenticationTokenException", 1)]
    {
        let line = format!("evenkeel_api_refused_signatures_total{{code=\"{code}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

/// Returns the head of a request of a service, signed with a key that the server does not have. It
/// announces a body.
fn head_of_a_stranger(server: &Server, service: &str) -> String {
    let mut client = server.client();
    client.credentials.access_key_id = "AKIDSTRANGER".into();
    let signed = client.signed_as(service, "POST", "/", "");
    let header = |(name, value): &(String, String)| format!("{name}: {value}\r\n");
    let headers: String = signed.iter().map(header).collect();
    format!("POST / HTTP/1.1\r\n{headers}content-length: 100000\r\n\r\n")
}

#[test]
fn a_body_of_a_stranger_is_not_kept_whatever_the_service() {
    let (_folder, server, client) = started();
    for service in ["ec2", "monitoring", "sts"] {
        let answer = trickle(&server, &head_of_a_stranger(&server, service));
        let is_refused =
            ["HTTP/1.1 401 ", "HTTP/1.1 403 "].map(|status| answer.starts_with(status));
        assert!(is_refused.contains(&true), "{service}: {answer}");
    }
    // With the right key and another body than the signed one.
    for service in ["ec2", "monitoring", "sts"] {
        let headers = client.signed_as(service, "POST", "/", "a=1");
        assert_eq!(client.send("POST", "/", &headers, b"a=2").status, 403, "{service}");
    }
    let headers = [("host".to_owned(), "localhost".to_owned())];
    let metrics = client.send("GET", "/metrics", &headers, b"").body;
    for code in ["AuthFailure", "SignatureDoesNotMatch"] {
        let line = format!("evenkeel_api_refused_signatures_total{{code=\"{code}\"}} 3\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

/// Returns the end of an answer's head, and the announced length of its body.
fn body_bytes(answer: &[u8]) -> Option<(usize, usize)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&answer[..end]).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    Some((end, length.parse().unwrap()))
}

/// Reads one complete answer and leaves the connection open; empty if the server has closed it.
fn read_answer(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut said = Vec::new();
    let mut bytes = [0; 4_096];
    let mut whole = None;
    loop {
        whole = whole.or_else(|| body_bytes(&said).map(|(end, length)| end + length));
        if whole.is_some_and(|whole| said.len() >= whole) {
            return String::from_utf8(said).unwrap();
        }
        match stream.read(&mut bytes) {
            Ok(0) => return String::new(),
            Ok(count) => said.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return String::new(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn connected(server: &Server) -> TcpStream {
    TcpStream::connect(server.address).unwrap()
}

/// A connection that stays open after a complete request, and its answer.
fn kept_alive(server: &Server, request: &[u8]) -> TcpStream {
    let mut stream = connected(server);
    stream.write_all(request).unwrap();
    let answer = read_answer(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    stream
}

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Returns a signed request for a connection that is kept alive.
fn signed_request(client: &Client, body: &str) -> Vec<u8> {
    let mut request = "POST / HTTP/1.1\r\n".to_owned();
    for (name, value) in client.signed_headers(body, unix_s()) {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    request.into_bytes()
}

/// Returns whether the server has closed the connection, without waiting.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 1_024]) {
        Ok(0) => true,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
        Ok(_) => false,
    }
}

/// No deadline of the server ends any of these connections: with deadlines alone, other clients
/// would not be served.
#[test]
fn good_calls_and_health_are_answered_beside_many_slow_senders() {
    let (_folder, server) = started_with(PATIENT);
    let client = server.client();
    let half_a_body = half_a_body(&server);
    let mut dribblers = Vec::new();
    for number in 0..600 {
        let mut stream = connected(&server);
        let start = if number % 2 == 0 { HALF_A_HEAD } else { half_a_body.as_str() };
        // The longest idle connection has been evicted.
        let _ = stream.write_all(start.as_bytes());
        dribblers.push(stream);
        if number % 100 == 99 {
            for stream in &mut dribblers {
                let _ = stream.write_all(b"a");
            }
            assert_eq!(client.post(DESCRIBE, unix_s()).status, 200);
            for path in ["/healthz", "/metrics"] {
                let answer = client.send("GET", path, &[("host".into(), "localhost".into())], b"");
                assert_eq!(answer.status, 200, "{path}");
            }
        }
    }
    let open = dribblers.iter_mut().filter_map(|stream| (!is_closed(stream)).then_some(())).count();
    assert!(open < CONNECTIONS_MAX, "{open} are open");
}

#[test]
fn full_table_closes_the_longest_idle_connection_for_a_new_one() {
    let (_folder, server) = started_with(PATIENT);
    let client = server.client();
    let request = signed_request(&client, DESCRIBE);
    let mut kept: Vec<TcpStream> =
        (0..CONNECTIONS_MAX).map(|_| kept_alive(&server, &request)).collect();
    assert!(!kept.iter_mut().any(is_closed));
    // The first one has just sent another request, so it is not evicted.
    kept[0].set_nonblocking(false).unwrap();
    kept[0].write_all(&request).unwrap();
    assert!(read_answer(&mut kept[0]).starts_with("HTTP/1.1 200 OK\r\n"));
    let mut next = [kept_alive(&server, &request), kept_alive(&server, HEALTH)];
    kept[1].set_nonblocking(false).unwrap();
    assert_eq!(read_answer(&mut kept[1]), "");
    kept[2].set_nonblocking(false).unwrap();
    assert_eq!(read_answer(&mut kept[2]), "");
    assert!(!is_closed(&mut kept[0]));
    assert!(!kept[3..].iter_mut().chain(&mut next).any(is_closed));
}

#[test]
fn a_request_under_way_is_never_cut() {
    let (_folder, server) = started_with(PATIENT);
    let client = server.client();
    let body = "Action=CreateVolume&Version=2016-11-15&AvailabilityZone=local-1a&Size=1";
    let mut under_way = server.agent.with(|_| {
        // While this closure runs, the data plane sends no replies, so the volume does not exist
        // yet.
        let mut under_way = connected(&server);
        under_way.write_all(&signed_request(&client, body)).unwrap();
        let strangers: Vec<TcpStream> =
            (0..2 * CONNECTIONS_MAX).map(|_| kept_alive(&server, HEALTH)).collect();
        drop(strangers);
        assert!(!is_closed(&mut under_way));
        under_way
    });
    under_way.set_nonblocking(false).unwrap();
    let answer = read_answer(&mut under_way);
    assert!(answer.contains("<status>available</status>"), "{answer}");
    // It has its answer, so it is now a connection like the others.
    let _others: Vec<TcpStream> =
        (0..CONNECTIONS_MAX).map(|_| kept_alive(&server, HEALTH)).collect();
    assert_eq!(read_answer(&mut under_way), "");
}

#[test]
fn a_reply_that_is_not_read_is_kept_for_its_client() {
    let (_folder, server) = started_with(PATIENT);
    let client = server.client();
    // Some 15 MB in one reply: more than the kernel buffers for a client that does not read.
    const VOLUMES: usize = 140;
    // A quotation mark has six bytes in a reply, and three in a request.
    let key = "\"".repeat(120);
    let value = "\"".repeat(256);
    let mut tags = vec![("TagSpecification.1.ResourceType".to_owned(), "volume".to_owned())];
    for number in 1..=50 {
        let name = |part: &str| format!("TagSpecification.1.Tag.{number}.{part}");
        tags.push((name("Key"), format!("{key}{number}")));
        tags.push((name("Value"), value.clone()));
    }
    let tags: Vec<(&str, &str)> = tags.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    (0..VOLUMES).for_each(|_| drop(create(&client, &tags)));
    let mut slow = connected(&server);
    slow.write_all(&signed_request(&client, DESCRIBE)).unwrap();
    // Its reply is being sent.
    assert_eq!(slow.peek(&mut [0]).unwrap(), 1);
    let _others: Vec<TcpStream> =
        (0..2 * CONNECTIONS_MAX).map(|_| kept_alive(&server, HEALTH)).collect();
    let answer = read_answer(&mut slow);
    assert!(answer.len() > 15_000_000, "{}", answer.len());
    assert!(answer.ends_with("</DescribeVolumesResponse>"));
}

#[test]
fn connection_may_send_many_requests() {
    let (_folder, _server, client) = started();
    let mut stream = TcpStream::connect(client.address).unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
    }
}

#[test]
fn many_clients_are_served_at_once() {
    let (_folder, server, client) = started();
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let client = client.clone();
            std::thread::spawn(move || {
                for _ in 0..5 {
                    let id = support::create(&client, &[("Size", &format!("{}", number + 1))]);
                    client.call("DescribeVolumes", &[("VolumeId.1", &id)]).unwrap();
                    client.call("DeleteVolume", &[("VolumeId", &id)]).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(server.agent.with(|state| state.volumes.is_empty()));
}

#[test]
fn an_address_or_a_folder_in_use_is_an_error_that_says_so() {
    let (folder, server, _client) = started();
    let again = Server::start_with(config(folder.path()), Arc::new(FakeAgent::default()));
    assert!(matches!(again, Err(ControlError::InUse(_))));
    let other = tempfile::tempdir().unwrap();
    let mut taken = config(other.path());
    taken.listen = server.address;
    let again = Server::start_with(taken, Arc::new(FakeAgent::default())).err().unwrap();
    assert!(again.to_string().contains("choose another address"), "{again}");
}
