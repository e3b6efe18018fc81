//! The server's recording of volumes through the API: the intervals that it returns, in pages, and
//! the error if there is no recording.

use std::path::Path;
use std::sync::Arc;

use crate::support::{Client, Server, config_with, text};
use evenkeel_control::Settings;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::Exceeded;
use evenkeel_core::time::UnixMs;
use evenkeel_telemetry::counters::{self, Counters};
use evenkeel_telemetry::recording::{Look, Recorder, Sample};
use evenkeel_wire::agent::Answered;

const ID: VolumeId = VolumeId::from_bits(7);
/// 2100-01-01T00:00:00Z: no file with this time is too old.
const T0: u64 = 4_102_444_800_000;
const UNTIL: (&str, &str) = ("EndTime", "2100-01-02T00:00:00Z");

/// Records a second at rest, a busy one and a throttled one.
fn record(folder: &Path) {
    let recorder = Recorder::start(folder, 15);
    let inbox = recorder.inbox().unwrap();
    for (second, count, operations_us) in [(0, 0, 0), (1, 0, 0), (2, 12, 0), (3, 15, 400_000)] {
        let answered = Answered { reads: count, read_ns: count * 300_000, ..Answered::default() };
        let exceeded = Exceeded { operations_ns: operations_us * 1_000, ..Exceeded::default() };
        let read_bytes = count * 4_096;
        let total = Counters { read_bytes, answered, exceeded, ..Counters::default() };
        let volume = counters::Sample { id: ID, total, queued: 0, created: UnixMs(0) };
        let sample = Sample { volume, balance_ppm: Some(1_000_000) };
        inbox.offer(Look { now: UnixMs(T0 + second * 1_000), samples: vec![sample] });
    }
}

fn server(folder: &Path, record_days: u32) -> (Server, Client) {
    let settings = Settings { record_days, ..Settings::default() };
    let server = Server::start_with(config_with(folder, settings), Arc::default()).unwrap();
    let client = server.client();
    (server, client)
}

#[test]
fn a_recording_is_returned_in_pages_and_outlives_its_volume() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let (_server, client) = server(folder.path(), 15);
    let id = ID.to_string();
    let mut items = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let mut params = vec![("VolumeId", id.as_str()), UNTIL, ("MaxResults", "1")];
        params.extend(token.as_deref().map(|token| ("NextToken", token)));
        let page = client.call("DescribeVolumeRecording", &params).unwrap();
        assert_eq!(text(&page, "volumeId"), id);
        items.extend(page.items("intervalSet").to_vec());
        token = page.child_text("nextToken").map(str::to_owned);
        if token.is_none() {
            break;
        }
    }
    let [rest, busy, throttled] = items.as_slice() else { panic!("{items:?}") };
    assert_eq!((text(rest, "startTimeMs"), text(rest, "idle")), ("4102444800000", "true"));
    assert_eq!((text(rest, "lengthMs"), text(rest, "balancePpm")), ("1000", "1000000"));
    let reads = busy.child("reads").unwrap();
    let shown = ["count", "bytes", "totalUs"].map(|name| text(reads, name));
    assert_eq!(shown, ["12", "49152", "3600"]);
    assert!(busy.child("writes").is_none() && busy.child("throttledUs").is_none());
    let limits = throttled.child("throttledUs").unwrap();
    assert_eq!((text(limits, "operations"), text(limits, "device")), ("400000", "0"));
    let from = [("VolumeId", id.as_str()), UNTIL, ("StartTime", "2100-01-01T00:00:01Z")];
    let part = client.call("DescribeVolumeRecording", &from).unwrap();
    assert_eq!(part.items("intervalSet"), &items[1..]);
}

#[test]
fn invalid_recording_requests_are_refused_with_a_code() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let (running, client) = server(folder.path(), 0);
    let of = |more: &[(&'static str, &'static str)]| {
        [&[("VolumeId", "vol-00000000000000fff")], more].concat()
    };
    assert_eq!(client.code("DescribeVolumeRecording", &of(&[])), "UnsupportedOperation");
    drop(running);
    assert!(!folder.path().join("recordings").exists(), "no day is kept");
    let (_running, client) = server(folder.path(), 1);
    for (more, code) in [
        (vec![], "InvalidVolume.NotFound"),
        (vec![("StartTime", "2100-01-01T00:00:00Z")], "InvalidParameterValue"),
        (vec![("EndTime", "tomorrow")], "InvalidParameterValue"),
        (vec![("MaxResults", "0")], "InvalidParameterValue"),
        (vec![("NextToken", "zz")], "InvalidPaginationToken"),
        (vec![("Bogus", "1")], "UnknownParameter"),
    ] {
        assert_eq!(client.code("DescribeVolumeRecording", &of(&more)), code, "{more:?}");
    }
}
