//! Tests the answers with a parser that is as strict as the standard.

use super::*;
use evenkeel_core::latency::Stage;
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::qos::pacing::CreditLimit;
use evenkeel_core::time::Duration;
use evenkeel_wire::agent::{Answered, IoErrors};
use std::collections::BTreeSet;

mod deploy;
mod names;

const REFERENCE: &str = include_str!("../../../../docs/reference/metrics.md");

/// Returns the gp2 volume of the tests: 300 IOPS, and 3,000 while it has credits.
fn volume(bits: u128, balance: u64) -> VolumeNow {
    let id = VolumeId::from_bits(bits);
    let credit = Some(CreditLimit { refill_per_second: 300, capacity: 1_000 });
    let operations = Some(Limit { per_second: 3_000, credit });
    let bytes = Some(Limit { per_second: 128 << 20, credit: None });
    VolumeNow {
        name: id.to_string(),
        volume_type: "gp2".into(),
        monthly_micro_usd: Some(10_025_000),
        pacing: Pacing { operations, bytes, ..Pacing::UNLIMITED },
        floor_iops: 300,
        is_stalled: false,
        node: Some("left".into()),
        report: VolumeReport {
            id,
            balances: Balances { operations: Some(balance), bytes: None },
            connections: 2,
            queued: 7,
            in_store: 0,
            operations: 40,
            bytes_read: 4_096,
            bytes_written: 8_192,
            flushes: 11,
            answered: Answered::default(),
            exceeded: Exceeded { operations_ns: 1_500_000_000, ..Exceeded::default() },
            errors: IoErrors {
                device: 3,
                no_space: 5,
                rotten: 2,
                is_rotten: true,
                flush_failed: true,
            },
            contract: Contract::default(),
        },
        latencies: None,
        drain_per_second: None,
    }
}

fn cluster() -> ClusterNow {
    let left = NodeNow {
        name: "left".into(),
        status: "serving",
        volumes: 3,
        leads: true,
        part_ppm: Some(750_000),
    };
    let right = NodeNow {
        name: "right".into(),
        status: "stopped",
        volumes: 0,
        leads: false,
        part_ppm: None,
    };
    let answer = EtcdAnswerNow {
        took: std::time::Duration::from_millis(250),
        has_leader: true,
        bytes: 400,
        in_use: 300,
        quota: Some(1_000),
        is_full: true,
    };
    let member = |endpoint: &str, answer| EtcdMemberNow { endpoint: endpoint.to_owned(), answer };
    ClusterNow {
        nodes: vec![left, right],
        moves: 5,
        takeovers: 2,
        fences: 1,
        etcd: vec![member("http://a:1", Some(answer)), member("http://b:1", None)],
    }
}

const HEALTH: StoreHealth = StoreHealth {
    copies_mended: 2,
    volumes_salvaged: 1,
    unfinished: 3,
    without_space: 4,
    damaged_sectors: 5,
};

const ACCOUNT: AccountNow = AccountNow {
    iops: AccountUse { used: 6_000, quota: Some(20_000) },
    throughput: AccountUse { used: 98_304_000, quota: Some(1 << 30) },
    bytes: AccountUse { used: 1 << 31, quota: Some(1 << 40) },
};

fn snapshot() -> Snapshot {
    let mut used = volume(1, 250);
    let mut latencies = Latencies::default();
    for us in [100, 900, 900, 5_000_000] {
        latencies.reads.total.record(Duration::from_us(us));
    }
    latencies.reads.spend(Stage::VolumeOperations, Duration::from_ms(1_250));
    used.latencies = Some(Box::new(latencies));
    used.drain_per_second = Some(100.0);
    used.report.contract = Contract { seconds: 8, missed: 2 };
    let host = HostNow {
        name: "i-0000000000000000b".into(),
        instance_type: "m5.large".into(),
        pacing: used.pacing,
        balances: used.report.balances,
        counters: InstanceCounters {
            operations: 9,
            exceeded: Exceeded { bytes_ns: 250_000_000, ..Exceeded::default() },
            ..InstanceCounters::default()
        },
    };
    let attachment = AttachmentNow {
        volume: used.name.clone(),
        instance: host.name.clone(),
        device: "/dev/\"sd\\f\n".into(),
        state: "attached",
    };
    // Its credits are for throughput.
    let mut st1 = volume(3, 0);
    st1.volume_type = "st1".into();
    (st1.pacing.operations, st1.pacing.bytes) = (None, st1.pacing.operations);
    st1.report.balances = Balances { operations: None, bytes: Some(500) };
    Snapshot {
        volumes: vec![used, volume(2, 1_000), st1],
        hosts: vec![host],
        attachments: vec![attachment],
        states: [("in-use", 1), ("available", 1)].into(),
        volume_snapshots: [("completed", 2)].into(),
        volume_snapshot_bytes: 8_192,
        space: Some(SpaceNow {
            total: ByteCount(1 << 30),
            free: ByteCount(1 << 20),
            sold: ByteCount(1 << 31),
            for_sale: Some(ByteCount(1 << 30)),
        }),
        account: ACCOUNT,
        store_health: HEALTH,
        background: Some(BackgroundReport { verified: ByteCount(7), ..Default::default() }),
        scrub: Some(ScrubNow { is_running: true, verified_bytes: 0, rotten_places: 0 }),
        clock_step_ms: -7_500,
        certificates: [("api", 1_900_000_000), ("ca", 2_000_000_000), ("nbd", 1_900_000_000)]
            .into(),
        journal: JournalNow { commits: 9, failures: 1, is_failing: true },
        audit: Some(AuditNow { is_failing: true, lost: 2, removed_files: 1 }),
        refused: [("AuthFailure", 3)].into(),
        recording: Some(RecordingNow { written_bytes: 4_096, lost: 2 }),
        cluster: Some(cluster()),
        events: Some(EventsNow {
            written: 8,
            lost: 1,
            webhooks: vec![WebhookNow {
                name: "1 http://a/b".into(),
                lag: 3,
                failures: 2,
                given_up: 0,
            }],
        }),
    }
}

/// Samples by name and labels as written.
struct Read {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

impl Read {
    /// Parses a text. Panics at anything that the standard does not allow.
    fn of(text: &str) -> Self {
        let text = text.strip_suffix("# EOF\n").expect("ends with EOF");
        let mut kinds = BTreeMap::new();
        let mut samples = BTreeMap::new();
        let mut family = String::new();
        let mut kind = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let mut word = || words.next().expect("three words").to_owned();
                let what = word();
                let name = word();
                let value = word();
                match what.as_str() {
                    "HELP" => assert!(!value.contains('\\'), "{line}"),
                    "TYPE" => {
                        (family, kind) = (name.clone(), value.clone());
                        assert_eq!(kinds.insert(name, value), None, "twice: {line}");
                    }
                    "UNIT" => assert!(name.ends_with(&format!("_{value}")), "{line}"),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().unwrap();
            let suffixes: &[&str] = match kind.as_str() {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_count", "_sum"],
                other => panic!("{other}"),
            };
            assert!(suffixes.iter().any(|s| name == format!("{family}{s}")), "{family}: {line}");
            labels(series.strip_prefix(name).unwrap());
            let value: f64 = value.parse().expect("a number");
            assert!(kind != "counter" || value >= 0.0, "{line}");
            assert_eq!(samples.insert(series.to_owned(), value), None, "twice: {line}");
        }
        Self { kinds, samples }
    }

    fn get(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("no {series}: {:?}", self.samples))
    }
}

/// Returns the labels' names. Checks that quotes, backslashes and line ends in values are escaped.
fn labels(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let Some(mut rest) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) else {
        assert_eq!(text, "");
        return names;
    };
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").expect("a label");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{text}");
        assert!(names.insert(name.to_owned()), "twice: {text}");
        let mut end = None;
        let mut escaped = false;
        for (at, c) in value.char_indices() {
            match (escaped, c) {
                (true, c) => {
                    assert!(['\\', '"', 'n'].contains(&c), "{text}");
                    escaped = false;
                }
                (false, '\\') => escaped = true,
                (false, '"') => {
                    end = Some(at);
                    break;
                }
                (false, _) => {}
            }
        }
        let after = &value[end.expect("a closing quote") + 1..];
        rest = after.strip_prefix(',').unwrap_or(after);
        assert!(after.is_empty() || after.len() > rest.len(), "{text}");
    }
    names
}

const FIRST: &str = "volume_id=\"vol-00000000000000001\",volume_type=\"gp2\"";
const SECOND: &str = "volume_id=\"vol-00000000000000002\",volume_type=\"gp2\"";
const THIRD: &str = "volume_id=\"vol-00000000000000003\",volume_type=\"st1\"";

const HOST: &str = "instance_id=\"i-0000000000000000b\",instance_type=\"m5.large\"";

#[test]
fn metrics_are_in_base_units() {
    let read = Read::of(&snapshot().encoded());
    for (name, labels, value) in [
        ("read_ops_total", FIRST, 4.0),
        ("read_ops_total", SECOND, 0.0),
        ("counted_ios_total", FIRST, 40.0),
        ("write_bytes_total", FIRST, 8_192.0),
        ("read_seconds_total", FIRST, 5.0019),
        ("queue_length", FIRST, 7.0),
        ("provisioned_iops", FIRST, 300.0),
        ("floor_iops", FIRST, 300.0),
        ("burst_iops", FIRST, 3_000.0),
        ("provisioned_throughput_bytes", FIRST, 134_217_728.0),
        ("burst_balance_ratio", FIRST, 0.25),
        ("burst_balance_ratio", SECOND, 1.0),
        ("burst_balance_ratio", THIRD, 0.5),
        ("provisioned_throughput_bytes", THIRD, 300.0),
        ("burst_throughput_bytes", THIRD, 3_000.0),
        ("burst_empty_eta_seconds", FIRST, 2.5),
        ("monthly_list_price_usd", FIRST, 10.025),
        ("exceeded_iops_seconds_total", FIRST, 1.5),
        ("contract_seconds_total", FIRST, 8.0),
        ("contract_missed_seconds_total", FIRST, 2.0),
        ("contract_met_ratio", FIRST, 0.75),
        ("volumes", "state=\"in-use\"", 1.0),
        ("host_ios_total", HOST, 9.0),
        ("host_exceeded_tp_seconds_total", HOST, 0.25),
    ] {
        assert_eq!(read.get(&format!("evenkeel_{name}{{{labels}}}")), value, "{name}");
    }
    let wait = format!("{FIRST},op=\"read\",limit=\"volume_iops\"");
    assert_eq!(read.get(&format!("evenkeel_token_wait_seconds_total{{{wait}}}")), 1.25);
    let absent = format!("evenkeel_burst_empty_eta_seconds{{{SECOND}}}");
    assert!(!read.samples.contains_key(&absent), "no rate yet");
    let absent = format!("evenkeel_contract_met_ratio{{{SECOND}}}");
    assert!(!read.samples.contains_key(&absent), "never judged");
    assert_eq!(read.kinds["evenkeel_attachment"], "info");
}

#[test]
fn buckets_are_cumulative_and_end_with_all() {
    let read = Read::of(&snapshot().encoded());
    let labels = format!("{FIRST},op=\"read\",stage=\"total\"");
    let bucket = |le: &str| {
        let labels = format!("le=\"{le}\",{labels}");
        read.get(&format!("evenkeel_io_latency_seconds_bucket{{{labels}}}"))
    };
    assert_eq!(bucket("0.000131072"), 1.0);
    assert_eq!(bucket("0.000524288"), 1.0);
    assert_eq!(bucket("0.001048576"), 3.0);
    assert_eq!(bucket("1.073741824"), 3.0);
    assert_eq!(bucket("+Inf"), 4.0);
    assert_eq!(read.get(&format!("evenkeel_io_latency_seconds_count{{{labels}}}")), 4.0);
    let buckets = read.samples.keys().filter(|name| name.contains("_bucket{")).count();
    assert_eq!(buckets, 9, "what counted nothing is left out");
}

#[test]
fn the_rate_of_a_balance_is_that_between_two_looks() {
    let at = |balance| vec![volume(1, balance).report];
    let drain = |trend: &Trend| trend.drain(VolumeId::from_bits(1));
    let mut trend = Trend::default();
    trend.follow(UnixMs(10_000), &at(900));
    assert_eq!(drain(&trend), None);
    trend.follow(UnixMs(12_000), &at(500));
    assert_eq!(drain(&trend), Some(200.0));
    trend.follow(UnixMs(12_999), &at(0));
    assert_eq!(drain(&trend), Some(200.0), "too near");
    trend.follow(UnixMs(13_000), &at(800));
    assert_eq!(drain(&trend), Some(-300.0), "it grows");
    trend.follow(UnixMs(1_000), &at(700));
    assert_eq!(drain(&trend), None, "the clock was set back");
    trend.follow(UnixMs(2_000), &[]);
    assert!(trend.drain_per_second.is_empty(), "gone");
}

#[test]
fn a_balance_that_does_not_fall_never_ends() {
    let mut snapshot = snapshot();
    snapshot.volumes[0].drain_per_second = Some(-1.0);
    let read = Read::of(&snapshot.encoded());
    let eta = format!("evenkeel_burst_empty_eta_seconds{{{FIRST}}}");
    assert_eq!(read.get(&eta), f64::INFINITY);
}

/// Returns the kind of each metric, and the labels of its samples, by the reference's tables.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let rows = REFERENCE.lines().filter(|line| line.starts_with("| `evenkeel_"));
    let cells = rows.map(|row| row.split('|').map(|c| c.trim().replace('`', "")).collect());
    let metric = |cells: Vec<String>| {
        let labels = cells[3].split(", ").filter(|label| !label.is_empty()).map(str::to_owned);
        (cells[1].clone(), (cells[2].clone(), labels.collect()))
    };
    cells.map(metric).collect()
}

#[test]
fn reference_page_lists_exactly_the_reported_metrics() {
    let read = Read::of(&snapshot().encoded());
    let mut reported: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    for (family, kind) in &read.kinds {
        let suffix = match kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let name = format!("{family}{suffix}");
        let of_family = |series: &&String| {
            let series = series.split('{').next().unwrap();
            series == name || (kind == "histogram" && series == format!("{name}_count"))
        };
        let series = read.samples.keys().find(of_family).unwrap_or_else(|| panic!("no {name}"));
        let labels = labels(&series[series.find('{').unwrap_or(series.len())..]);
        reported.insert(name, (kind.clone(), labels));
    }
    assert_eq!(documented(), reported);
}

#[test]
fn node_metrics_exist_only_in_a_cluster() {
    let read = Read::of(&snapshot().encoded());
    for (series, value) in [
        ("evenkeel_node_up{node=\"left\",status=\"serving\"}", 1.0),
        ("evenkeel_node_up{node=\"right\",status=\"stopped\"}", 0.0),
        ("evenkeel_node_leads{node=\"left\"}", 1.0),
        ("evenkeel_node_volumes{node=\"left\"}", 3.0),
        ("evenkeel_node_device_part_ratio{node=\"left\"}", 0.75),
        ("evenkeel_cluster_moves_total", 5.0),
        ("evenkeel_cluster_takeovers_total", 2.0),
        ("evenkeel_cluster_fences_total", 1.0),
        ("evenkeel_etcd_up{endpoint=\"http://a:1\"}", 1.0),
        ("evenkeel_etcd_up{endpoint=\"http://b:1\"}", 0.0),
        ("evenkeel_etcd_has_leader{endpoint=\"http://a:1\"}", 1.0),
        ("evenkeel_etcd_answer_seconds{endpoint=\"http://a:1\"}", 0.25),
        ("evenkeel_etcd_file_bytes{endpoint=\"http://a:1\"}", 400.0),
        ("evenkeel_etcd_in_use_bytes{endpoint=\"http://a:1\"}", 300.0),
        ("evenkeel_etcd_quota_bytes{endpoint=\"http://a:1\"}", 1_000.0),
        ("evenkeel_etcd_is_full{endpoint=\"http://a:1\"}", 1.0),
    ] {
        assert_eq!(read.get(series), value, "{series}");
    }
    let mut snapshot = snapshot();
    snapshot.cluster = None;
    snapshot.volumes.iter_mut().for_each(|volume| volume.node = None);
    let alone = snapshot.encoded();
    let is_of_cluster = |line: &&str| {
        let parts = ["_node_", "_cluster_", "_etcd_"];
        !line.starts_with('#') && parts.iter().any(|part| line.contains(part))
    };
    assert_eq!(alone.lines().find(is_of_cluster), None);
}
