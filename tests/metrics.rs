//! What `/metrics` tells of a real server agrees with what its clients did.

mod support;

use std::collections::BTreeMap;
use support::PATIENCE;
use support::clock::Deadline;
use support::metrics::Metrics;
use support::nbd::Client;
use support::server::{FAST, Server};

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
        samples = Metrics::of(&server).samples;
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
