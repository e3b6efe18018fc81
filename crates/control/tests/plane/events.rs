//! Events over the API: failures, pages, and delivery to webhooks over restarts.
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::support;
use crate::support::{Client, Server, local_instance, text, until};
use evenkeel_control::ControlConfig;
use evenkeel_telemetry::events::webhook::{Post, Secret, Webhooks};
use evenkeel_wire::agent::FailedKind;
use evenkeel_wire::aws::xml::Element;

/// Maximum time of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Posts that webhooks have accepted, by URL, and the number of next posts that each refuses.
#[derive(Default)]
struct Receivers {
    accepted: BTreeMap<String, Vec<(u64, String)>>,
    refused: BTreeMap<String, u32>,
}

static RECEIVERS: (Mutex<Option<Receivers>>, Condvar) = (Mutex::new(None), Condvar::new());

/// Changes the receivers, and wakes the threads that wait for them.
fn receivers<T>(work: impl FnOnce(&mut Receivers) -> T) -> T {
    let mut all = RECEIVERS.0.lock().unwrap_or_else(PoisonError::into_inner);
    let result = work(all.get_or_insert_default());
    RECEIVERS.1.notify_all();
    result
}

/// Waits until the posts to a webhook are as wanted, and returns them.
fn accepted(url: &str, wanted: impl Fn(&[(u64, String)]) -> bool) -> Vec<(u64, String)> {
    let all = RECEIVERS.0.lock().unwrap_or_else(PoisonError::into_inner);
    let got = |all: &Option<Receivers>| {
        let its = all.as_ref().and_then(|all| all.accepted.get(url));
        its.cloned().unwrap_or_default()
    };
    let (all, waited) =
        RECEIVERS.1.wait_timeout_while(all, PATIENCE, |all| !wanted(&got(all))).unwrap();
    let got = got(&all);
    // The assertion must not poison the lock of other tests.
    drop(all);
    assert!(!waited.timed_out(), "{got:?}");
    got
}

struct Fake(String);

impl Post for Fake {
    fn post(&mut self, sequence: u64, event: &str) -> Result<(), String> {
        receivers(|all| {
            let left = all.refused.entry(self.0.clone()).or_default();
            if *left > 0 {
                *left -= 1;
                return Err("not now".into());
            }
            all.accepted.entry(self.0.clone()).or_default().push((sequence, event.into()));
            Ok(())
        })
    }
}

fn connect(url: &str, _secret: Option<&Secret>) -> Result<Box<dyn Post>, String> {
    Ok(Box::new(Fake(url.to_owned())))
}

fn webhooks(urls: &[&str]) -> Webhooks {
    let urls = urls.iter().map(|url| (*url).to_owned()).collect();
    Webhooks { urls, connect: Some(connect), secret: None }
}

fn page(client: &Client, params: &[(&str, &str)]) -> (Vec<(u64, String)>, Element) {
    let reply = client.call("DescribeEvents", params).unwrap();
    let event =
        |item: &Element| (text(item, "sequence").parse().unwrap(), text(item, "event").to_owned());
    (reply.items("eventSet").iter().map(event).collect(), reply)
}

/// Waits until an event has these parts, and returns it.
fn wait_for(client: &Client, parts: &[&str]) -> String {
    let found = until(|| {
        let all = page(client, &[("MaxResults", "1000")]).0;
        let found = all.into_iter().find(|(_, it)| parts.iter().all(|part| it.contains(part)));
        found.map(|(_, event)| event)
    });
    found.unwrap_or_else(|| panic!("there is no event with {parts:?}: {:?}", page(client, &[]).0))
}

#[test]
fn failure_events_have_their_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let fail = |kind| server.agent.with(|state| state.fail_next = Some(kind));
    fail(FailedKind::NoSpace);
    let zone = [("AvailabilityZone", "local-1a"), ("Size", "10")];
    client.call("CreateVolume", &zone).unwrap_err();
    let cause = "\"cause\":\"simulated failure: NoSpace\"";
    let event = wait_for(&client, &["createVolume", "\"result\":\"failed\"", cause]);
    assert!(!event.contains("\"request-id\":\"\""), "{event}");
    let id = support::create(&client, &[]);
    let local = local_instance(&client);
    let attach = [("VolumeId", id.as_str()), ("InstanceId", local.as_str()), ("Device", "sdf")];
    fail(FailedKind::Refused);
    client.call("AttachVolume", &attach).unwrap_err();
    let cause = "\"cause\":\"simulated failure: Refused\"";
    wait_for(&client, &["attachVolume", "\"result\":\"failed\"", cause, &id]);
    client.call("AttachVolume", &attach).unwrap();
    fail(FailedKind::NoSpace);
    client.call("ModifyVolume", &[("VolumeId", &id), ("Size", "20")]).unwrap_err();
    wait_for(&client, &["modifyVolume", "\"result\":\"failed\"", "NoSpace", &id]);
    fail(FailedKind::Refused);
    client.call("CreateSnapshot", &[("VolumeId", &id)]).unwrap_err();
    wait_for(&client, &["createSnapshot", "\"result\":\"failed\"", cause, &id]);
    let set = client.call("CreateSnapshots", &[("InstanceSpecification.InstanceId", &local)]);
    set.unwrap();
    wait_for(&client, &["createSnapshot", "\"result\":\"succeeded\"", &id]);
    let all = page(&client, &[("Filter.1.Name", "event"), ("Filter.1.Value.1", "attachVolume")]).0;
    assert_eq!(all.len(), 1, "a successful attachment is no event: {all:?}");
}

#[test]
fn a_set_of_snapshots_has_an_event_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let local = local_instance(&client);
    for device in ["/dev/sdf", "/dev/sdg"] {
        let id = support::create(&client, &[]);
        let attach = [("VolumeId", id.as_str()), ("InstanceId", &local), ("Device", device)];
        client.call("AttachVolume", &attach).unwrap();
    }
    client.call("CreateSnapshots", &[("InstanceSpecification.InstanceId", &local)]).unwrap();
    let event = wait_for(&client, &["EBS Multi-Volume Snapshots Completion Status"]);
    assert_eq!(event.matches("\"status\":\"completed\"").count(), 2, "{event}");
}

#[test]
fn event_pages_continue_where_the_last_one_ended() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let ids: Vec<String> = (0..5).map(|_| support::create(&client, &[])).collect();
    wait_for(&client, &["createVolume", ids.last().unwrap()]);
    let mut after = "0".to_owned();
    let mut all = Vec::new();
    loop {
        let (events, reply) = page(&client, &[("AfterSequence", &after), ("MaxResults", "2")]);
        assert_eq!((text(&reply, "lastSequence"), text(&reply, "oldestSequence")), ("6", "1"));
        if events.is_empty() {
            break;
        }
        after = text(&reply, "examinedSequence").to_owned();
        all.extend(events);
    }
    assert_eq!(all.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    let of = [("Filter.1.Name", "resource"), ("Filter.1.Value.1", ids[1].as_str())];
    assert_eq!(page(&client, &of).0, all[2..3]);
    for max in ["0", "1001"] {
        let refused = client.call("DescribeEvents", &[("MaxResults", max)]).unwrap_err();
        assert_eq!(refused.code, "InvalidParameterValue");
        assert!(refused.message.ends_with("Choose 1 to 1000."), "{}", refused.message);
    }
}

#[test]
fn webhooks_resume_after_a_restart_and_a_new_one_begins_then() {
    let folder = tempfile::tempdir().unwrap();
    let start = |urls: &[&str]| {
        let config = ControlConfig { webhooks: webhooks(urls), ..support::config(folder.path()) };
        Server::start_with(config, Arc::default()).unwrap()
    };
    let first = "test://first";
    let second = "test://second";
    receivers(|all| _ = all.refused.insert(first.into(), 2));
    let server = start(&[first]);
    support::create(&server.client(), &[]);
    accepted(first, |got| got.len() == 2);
    // From now on it refuses all posts, and the test does not wait for it.
    receivers(|all| _ = all.refused.insert(first.into(), u32::MAX));
    support::create(&server.client(), &[]);
    server.stop().unwrap();
    receivers(|all| _ = all.refused.insert(first.into(), 1));
    let server = start(&[first, second]);
    let got = accepted(first, |got| got.len() == 5);
    assert_eq!(got.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert!(got[3].1.contains("serverStopped") && got[4].1.contains("serverStarted"));
    assert_eq!(accepted(second, |got| !got.is_empty()), got[4..]);
    // A receiver has an event a moment before the server counts it as accepted.
    let expected = "evenkeel_events_webhook_lag{webhook=\"1 test://first\"} 0\n";
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let scrape = || support::raw(server.address, request);
    assert!(until(|| scrape().contains(expected).then_some(())).is_some(), "{}", scrape());
    server.stop().unwrap();
    accepted(second, |got| got.last().is_some_and(|(_, it)| it.contains("serverStopped")));
}
