//! What `/metrics` tells of a real server agrees with what its clients did.

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use support::PATIENCE;
use support::clock::Deadline;
use support::nbd::Client;
use support::server::{FAST, Server};

/// The samples of one scrape, by name and labels as written.
fn scrape(api: SocketAddr) -> BTreeMap<String, f64> {
    let mut stream = TcpStream::connect_timeout(&api, PATIENCE).expect("the API's port");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {api}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let samples = body.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        (series.to_owned(), value.parse().expect("a number"))
    });
    samples.collect()
}

#[test]
fn metrics_agree_with_what_clients_did() {
    const READS: u32 = 12;
    const WRITES: u32 = 5;
    // On a disk: memory takes no time that could be told.
    let server = Server::start("--store local");
    let used = server.attached(FAST);
    let idle = server.create("--type gp2 --size 100");
    let mut client = Client::open(server.nbd, &used).expect("attached");
    for _ in 0..WRITES {
        client.write(4_096, &[7; 8_192]).expect("written");
    }
    for _ in 0..READS {
        client.read(0, 16_384).expect("read");
    }
    let mut samples = BTreeMap::new();
    let of = |samples: &BTreeMap<String, f64>, name: &str, volume: &str, more: &str| {
        let kind = if volume == used { "io2" } else { "gp2" };
        let series =
            format!("evenkeel_{name}{{volume_id=\"{volume}\",volume_type=\"{kind}\"{more}}}");
        *samples.get(&series).unwrap_or_else(|| panic!("no {series} in {samples:#?}"))
    };
    // A request is counted once its reply is on its way, which may be a moment after it came.
    Deadline::after(PATIENCE).ask("the last read in the metrics", || {
        samples = scrape(server.api);
        of(&samples, "read_ops_total", &used, "") >= f64::from(READS)
    });
    for (name, more, value) in [
        ("read_ops_total", "", READS),
        ("write_ops_total", "", WRITES),
        ("counted_ios_total", "", READS + WRITES),
        ("read_bytes_total", "", READS * 16_384),
        ("write_bytes_total", "", WRITES * 8_192),
        ("io_latency_seconds_count", ",op=\"read\",stage=\"total\"", READS),
        ("io_latency_seconds_count", ",op=\"write\",stage=\"total\"", WRITES),
        ("connections", "", 1),
        ("queue_length", "", 0),
        ("provisioned_iops", "", 64_000),
    ] {
        assert_eq!(of(&samples, name, &used, more), f64::from(value), "{name}{more}");
    }
    let read_s = of(&samples, "read_seconds_total", &used, "");
    let sum_s = of(&samples, "io_latency_seconds_sum", &used, ",op=\"read\",stage=\"total\"");
    assert!(read_s > 0.0 && read_s == sum_s, "{read_s} {sum_s}");
    for (name, value) in [
        ("read_ops_total", 0),
        ("provisioned_iops", 300),
        ("burst_iops", 3_000),
        ("burst_balance_ratio", 1),
    ] {
        assert_eq!(of(&samples, name, &idle, ""), f64::from(value), "{name}");
    }
    assert_eq!(samples["evenkeel_volumes{state=\"in-use\"}"], 1.0);
    assert_eq!(samples["evenkeel_volumes{state=\"available\"}"], 1.0);
}
