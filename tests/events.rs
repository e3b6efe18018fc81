//! Events of a real server: the verb that prints them, and webhooks, with crashes of the server and
//! failures of the receiver.

mod support;

use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::PATIENCE;
use support::clock::Deadline;
use support::metrics::Metrics;
use support::process::{run, start};
use support::server::{Server, evenkeel};
use support::tools::absent;

/// Returns the stored events, oldest first.
fn kept(server: &Server, flags: &str) -> Vec<Value> {
    let text = server.evenkeel(&format!("events -o json {flags}")).ok();
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

/// Returns the name and the result of each event.
fn names(events: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let name = |event: &Value| {
        let detail = &event["detail"];
        format!("{} {}", text(&detail["event"]), text(&detail["result"]))
    };
    events.iter().map(name).collect()
}

/// Waits until an event of this name and result is stored.
fn wait_for(server: &Server, name: &str) {
    Deadline::after(PATIENCE)
        .ask(name, || names(&kept(server, "")).iter().any(|found| found == name));
}

#[test]
fn events_of_a_volume_and_its_snapshot_come_in_order() {
    let mut server = Server::start("--store local --recycle-bin-days 1");
    let volume = server.create("--size 1");
    let made = server.list(&format!("snapshot create {volume} --wait"));
    let snapshot = made[0]["snapshot_id"].as_str().expect("an id").to_owned();
    server.evenkeel(&format!("volume modify {volume} --size 2")).ok();
    server.evenkeel(&format!("snapshot rm {snapshot}")).ok();
    server.evenkeel(&format!("volume rm {volume}")).ok();
    server.evenkeel(&format!("volume restore {volume}")).ok();
    wait_for(&server, "recycleBinRestored succeeded");
    let expected = [
        "serverStarted started",
        "createVolume available",
        "createSnapshot succeeded",
        "modifyVolume modifying",
        "modifyVolume completed",
        "recycleBinEntered succeeded",
        "recycleBinEntered succeeded",
        "recycleBinRestored succeeded",
    ];
    let all = kept(&server, "");
    assert_eq!(names(&all), expected);
    let created = &all[1];
    assert_eq!(created["source"], "aws.ec2");
    let arn = format!("arn:aws:ec2:local-1:000000000000:volume/{volume}");
    assert_eq!(created["resources"], serde_json::json!([arn]));
    assert_eq!(created["detail"]["request-id"].as_str().map(str::len), Some(36), "{created}");

    let of_snapshot = kept(&server, &format!("--resource {snapshot}"));
    assert_eq!(names(&of_snapshot), ["createSnapshot succeeded", "recycleBinEntered succeeded"]);
    assert_eq!(kept(&server, &format!("--resource {arn} --type createVolume")).len(), 1);
    assert_eq!(kept(&server, "--type modifyVolume --type EBS?Snapshot*").len(), 3);
    assert_eq!(kept(&server, "--after 6"), all[6..]);
    let table = server.evenkeel("events --type createVolume").ok();
    let row = table.lines().nth(1).expect("a row");
    assert!(table.starts_with("SEQUENCE  TIME"), "{table}");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!((cells[0], &cells[2..]), ("2", &["createVolume", "available", &*volume, "-"][..]));
    let csv = server.evenkeel("events --after 7 -o csv").ok();
    assert!(csv.starts_with("sequence,time,event,") && csv.lines().count() == 2, "{csv}");
    assert_eq!(server.evenkeel("events --type nothing").ok(), "no such events\n");
    server.stop();
    server.restart();
    let mut after = Vec::new();
    // The server accepts requests before it has stored the event of its start.
    Deadline::after(PATIENCE).ask("the start", || {
        after = kept(&server, "--after 8");
        after.len() >= 2
    });
    assert_eq!(names(&after), ["serverStopped stopped", "serverStarted started"]);
    assert_eq!(after[1]["detail"]["previousServer"], "stopped");
}

/// A deletion from the bin has its event, by PurgeVolume and after the days of the bin.
#[test]
fn a_volume_that_is_deleted_from_the_bin_is_purged() {
    let server = Server::start("--store memory --recycle-bin-days 1 --test-server");
    let [purged, expired] = [0, 1].map(|_| server.create("--size 1"));
    for volume in [&purged, &expired] {
        server.evenkeel(&format!("volume rm {volume}")).ok();
    }
    server.evenkeel(&format!("volume rm --bin {purged}")).ok();
    server.evenkeel("clock advance 2d").ok();
    for volume in [purged, expired] {
        let mut found = Vec::new();
        Deadline::after(PATIENCE).ask("the deletion", || {
            found = names(&kept(&server, &format!("--resource {volume}")));
            found.len() >= 4
        });
        let expected = [
            "createVolume available",
            "recycleBinEntered succeeded",
            "recycleBinPurged succeeded",
            "deleteVolume deleted",
        ];
        assert_eq!(found, expected);
    }
}

#[test]
fn events_are_printed_as_they_happen() {
    let server = Server::start("--store memory");
    let mut command = evenkeel(server.folder());
    command.env("EVENKEEL_ENDPOINT", &server.endpoint).env("EVENKEEL_DATA_DIR", server.data_dir());
    let mut follower = start(command.args(["events", "--follow", "--type", "createVolume"]));
    follower.wait_for_line("SEQUENCE");
    for _ in 0..2 {
        let volume = server.create("--size 1");
        follower.wait_for_line(&volume);
    }
    follower.kill_9();
}

/// An HTTP server that refuses some requests, and records the others.
struct Receiver {
    address: SocketAddr,
    refused: Arc<AtomicU32>,
    accepted: Arc<Mutex<Vec<(u64, String)>>>,
}

impl Receiver {
    /// Starts one that refuses the first `refused` requests. It ends with the test.
    fn start(refused: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let refused = Arc::new(AtomicU32::new(refused));
        let accepted = Arc::default();
        let receiver = Self { address, refused, accepted };
        let refused = Arc::clone(&receiver.refused);
        let accepted = Arc::clone(&receiver.accepted);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let refused = Arc::clone(&refused);
                let accepted = Arc::clone(&accepted);
                std::thread::spawn(move || serve(stream, &refused, &accepted));
            }
        });
        receiver
    }

    fn refuse(&self, requests: u32) {
        self.refused.store(requests, Ordering::SeqCst);
    }

    fn accepted(&self) -> Vec<(u64, String)> {
        self.accepted.lock().expect("a list").clone()
    }
}

/// Answers the requests of one connection.
fn serve(
    stream: TcpStream,
    refused: &AtomicU32,
    accepted: &Mutex<Vec<(u64, String)>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut length = 0;
        let mut sequence = 0;
        let mut is_json = false;
        let mut line = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let header = line.trim_end().to_lowercase();
            if header.is_empty() {
                break;
            }
            let value = |name: &str| header.strip_prefix(name).map(str::trim);
            length = value("content-length:").map_or(length, |value| value.parse().expect("bytes"));
            sequence = value("x-evenkeel-sequence:")
                .map_or(sequence, |value| value.parse().expect("a number"));
            is_json |= value("content-type:") == Some("application/json");
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let less = |left: u32| left.checked_sub(1);
        let is_refused = refused.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        let status = if is_refused { "503 Not Now" } else { "204 No Content" };
        if !is_refused {
            assert!(is_json);
            let body = String::from_utf8(body).expect("a text");
            accepted.lock().expect("a list").push((sequence, body));
        }
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        writer.write_all(answer.as_bytes()).ok()?;
    }
}

#[test]
fn a_webhook_gets_every_event_in_order_over_a_kill_and_its_own_failures() {
    let receiver = Receiver::start(2);
    // The second receiver does not exist, which must not affect the first.
    let nobody = TcpListener::bind("127.0.0.12:0").expect("a port").local_addr().expect("one");
    let mut server = Server::start(&format!(
        "--events-webhook http://{}/secret/hook?token=secret \
         --events-webhook http://{nobody}",
        receiver.address
    ));
    server.create("--size 1");
    wait_for(&server, "createVolume available");
    Deadline::after(PATIENCE).ask("an event after two refusals", || {
        receiver.accepted().iter().any(|(sequence, _)| *sequence == 1)
    });
    receiver.refuse(u32::MAX);
    let late = server.create("--size 1");
    Deadline::after(PATIENCE).ask("the second volume's event", || {
        !kept(&server, &format!("--resource {late}")).is_empty()
    });
    server.kill_9();
    // A line that a crash has left incomplete is removed.
    let path = server.data_dir().join("events.jsonl");
    let mut file = OpenOptions::new().append(true).open(path).expect("the log");
    file.write_all(b"{\"sequence\":9,\"event\":{\"vers").expect("written");
    drop(file);
    receiver.refuse(1);
    server.restart();
    server.create("--size 1");
    Deadline::after(PATIENCE).ask("the third volume's event", || {
        names(&kept(&server, "")).iter().filter(|name| *name == "createVolume available").count()
            == 3
    });
    let all = server.evenkeel("events -o json").ok();
    let lines: Vec<(u64, String)> = (1..).zip(all.lines().map(str::to_owned)).collect();
    let restarted = "serverStarted started".to_owned();
    let started = names(&kept(&server, "")).iter().filter(|name| **name == restarted).count();
    assert_eq!(started, 2, "{all}");
    assert!(all.contains("\"previousServer\":\"killed\""), "{all}");
    Deadline::after(PATIENCE).ask("the last event", || {
        receiver.accepted().last().is_some_and(|(sequence, _)| *sequence == lines.len() as u64)
    });
    let mut first: Vec<(u64, String)> = Vec::new();
    for (sequence, body) in receiver.accepted() {
        // An event may arrive twice, with the same content.
        match first.iter().find(|(known, _)| *known == sequence) {
            Some((_, known)) => assert_eq!(*known, body),
            None => first.push((sequence, body)),
        }
    }
    assert_eq!(first, lines);
    let log = server.stop();
    assert!(log.contains(&receiver.address.to_string()), "{log}");
    assert!(!log.contains("/hook") && !log.contains("token="), "{log}");
    let read_by_all = "every user of this machine can read the URL of --events-webhook";
    assert!(log.contains(read_by_all), "{log}");
    Deadline::after(PATIENCE).ask("the stop", || {
        receiver.accepted().last().is_some_and(|(_, body)| body.contains("serverStopped"))
    });
}

/// A receiver that accepts an event, but whose answer does not end.
#[test]
fn webhook_with_an_endless_answer_takes_no_memory() {
    const SENT_MAX: u64 = 64 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (done, sent) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            let part = vec![b'x'; 1 << 20];
            let mut sent = 0_u64;
            while sent < 64 * SENT_MAX && stream.write_all(&part).is_ok() {
                sent += part.len() as u64;
            }
            let _ = done.send(sent);
        }
    });
    let server = Server::start(&format!("--store memory --events-webhook http://{address}"));
    server.create("--size 1");
    // The start of the server, and the volume: both were accepted, or the first would be repeated.
    for _ in 0..2 {
        let sent = sent.recv_timeout(PATIENCE).expect("the server has closed the connection");
        assert!(sent < SENT_MAX, "{sent} bytes were read");
    }
    let lag = || Metrics::of(&server).sum("events_webhook_lag", &[]);
    Deadline::after(PATIENCE).ask("both are accepted", || lag() == 0.0);
    assert_eq!(Metrics::of(&server).sum("events_webhook_failures_total", &[]), 0.0);
    let resident = server.resident_bytes();
    assert!(resident < 512 << 20, "{resident}");
}

/// A receiver whose answer never ends, a byte at a time.
#[test]
fn webhook_with_a_slow_endless_answer_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let head = b"HTTP/1.1 200 OK\r\nx-slow: ".iter().chain(std::iter::repeat(&b'a'));
            for &byte in head {
                if stream.write_all(&[byte]).is_err() {
                    break;
                }
                support::clock::pass(Duration::from_millis(50));
            }
        }
    });
    let server = Server::start(&format!("--store memory --events-webhook http://{address}"));
    let before = server.resident_bytes();
    let failures = || Metrics::of(&server).sum("events_webhook_failures_total", &[]);
    // The server waits for 12 s.
    Deadline::after(Duration::from_secs(20)).ask("the end of the post", || failures() > 0.0);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 128 << 20, "{grown}");
}

/// Returns the head and the body of a request, and accepts it.
fn accepted_request(listener: &TcpListener) -> (String, String) {
    let (stream, _) = listener.accept().expect("a client");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).expect("a line") > 0, "{head}");
    }
    let mut body = vec![0; header(&head, "content-length").parse().expect("bytes")];
    reader.read_exact(&mut body).expect("a body");
    (&stream).write_all(b"HTTP/1.1 204 Fine\r\ncontent-length: 0\r\n\r\n").expect("a client");
    (head, String::from_utf8(body).expect("a text"))
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
}

#[test]
fn a_post_is_signed_with_the_secret_of_the_file() {
    const SECRET: &str = "correct horse battery staple";
    if absent(&["openssl"]) {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (folder, data_dir) = support::server::new_folder();
    let file = folder.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).expect("a file");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("ours");
    let options = format!(
        "--store memory --events-webhook http://{} --events-webhook-secret-file {}",
        listener.local_addr().expect("a port"),
        file.display()
    );
    let _server = Server::start_in(folder, data_dir, &options);
    let (head, body) = accepted_request(&listener);
    let mut openssl = Command::new("openssl");
    openssl.args(["dgst", "-sha256", "-hmac", SECRET]).stdin(Stdio::piped());
    let mut openssl = openssl.stdout(Stdio::piped()).spawn().expect("it is there");
    let message = format!("{}.{body}", header(&head, "x-evenkeel-sequence"));
    openssl.stdin.take().expect("piped").write_all(message.as_bytes()).expect("it reads");
    let output = openssl.wait_with_output().expect("our child");
    let digits = String::from_utf8(output.stdout).expect("digits");
    let digits = digits.rsplit(' ').next().expect("one word").trim();
    assert_eq!(header(&head, "x-evenkeel-signature"), format!("v1={digits}"), "{head}");
}

#[test]
fn a_webhook_that_cannot_be_is_refused_before_anything_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused =
        run(evenkeel(folder.path()).args(["serve", "--events-webhook", "ftp://example.org"]));
    let text = refused.fails_with(2);
    assert!(text.contains("expected http://HOST[:PORT][/PATH], or https://"), "{text}");
}
