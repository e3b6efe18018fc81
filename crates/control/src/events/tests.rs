//! Tests of the derivation of events with tables, the golden JSON, and bounds.

use std::fs;
use std::path::Path;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeSpec, VolumeType};
use evenkeel_wire::agent::{IoErrors, Space, StoreHealth};
use serde_json::Value;

use super::notice::{BinEvent, SnapshotDone, SnapshotEvent, SnapshotNews, VolumeEvent, VolumeNews};
use super::*;
use crate::model::{
    Attachment, AttachmentState, FastRestore, Modification, ModificationPhase, Phase, Snapshot,
    SnapshotPhase, TierOperation, Tiering, Volume,
};
use crate::scrub::Target;

const NOW: UnixMs = UnixMs(1_700_000_000_123);
const VOLUME: VolumeId = VolumeId::from_bits(0xa);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(0xb);

fn settings() -> Settings {
    Settings { ..Settings::default() }
}

fn spec() -> VolumeSpec {
    let request = VolumeRequest {
        volume_type: VolumeType::Gp3,
        size_gib: 8,
        iops: None,
        throughput_mibps: None,
        multi_attach: false,
    };
    Rules::newest().resolve(&request).unwrap()
}

fn volume(phase: Phase) -> Volume {
    Volume { phase, ..Volume::new(VOLUME, "local-1a", spec(), NOW) }
}

fn snapshot(phase: SnapshotPhase) -> Snapshot {
    Snapshot { phase, ..Snapshot::new(SNAPSHOT, VOLUME, 8, NOW) }
}

fn attached(state: AttachmentState) -> Attachment {
    Attachment {
        instance: InstanceId::from_bits(1),
        device: "/dev/sdf".into(),
        state,
        attached: NOW,
        delete_on_termination: false,
    }
}

/// Returns every phase, by name.
fn phases() -> Vec<(&'static str, Option<Phase>)> {
    let all = [
        Phase::Creating,
        Phase::Ready,
        Phase::Deleting,
        Phase::Error("unplugged".into()),
        Phase::Binned { entered: NOW, until: NOW },
    ];
    let name = |phase: &Phase| match phase {
        Phase::Creating => "creating",
        Phase::Ready => "ready",
        Phase::Deleting => "deleting",
        Phase::Error(_) => "error",
        Phase::Binned { .. } => "binned",
    };
    let named = all.into_iter().map(|phase| (name(&phase), Some(phase)));
    [("nothing", None)].into_iter().chain(named).collect()
}

/// Returns every phase of a snapshot, by name.
fn snapshot_phases() -> Vec<(&'static str, Option<SnapshotPhase>)> {
    let data = ByteCount(1);
    let all = [
        SnapshotPhase::Pending,
        SnapshotPhase::Filling,
        SnapshotPhase::Copying { data },
        SnapshotPhase::Completed { data, ended: NOW },
        SnapshotPhase::Error("lost".into()),
        SnapshotPhase::Deleting { data },
        SnapshotPhase::Binned { data, ended: NOW, entered: NOW, until: NOW },
    ];
    let name = |phase: &SnapshotPhase| match phase {
        SnapshotPhase::Pending => "pending",
        SnapshotPhase::Filling => "filling",
        SnapshotPhase::Copying { .. } => "copying",
        SnapshotPhase::Completed { .. } => "completed",
        SnapshotPhase::Error(_) => "error",
        SnapshotPhase::Deleting { .. } => "deleting",
        SnapshotPhase::Binned { .. } => "binned",
    };
    let named = all.into_iter().map(|phase| (name(&phase), Some(phase)));
    [("nothing", None)].into_iter().chain(named).collect()
}

fn json(what: What) -> Value {
    let notice = Notice { at: NOW, request: "r-1".into(), what };
    serde_json::from_str(&notice.json(&settings(), 7)).unwrap()
}

/// Returns the event and the result of each.
fn told(all: Vec<What>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |what: What| {
        let event = json(what);
        let detail = &event["detail"];
        let texts = [&detail["event"], &detail["result"], &detail["state"], &detail["cause"]];
        let texts = texts.map(text).into_iter().filter(|text| !text.is_empty());
        texts.collect::<Vec<_>>().join(" ")
    };
    all.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

fn model_of(volume: Option<Volume>, snapshot: Option<Snapshot>) -> Model {
    let mut model = Model::default();
    volume.into_iter().for_each(|volume| model.apply(Event::Volume(volume)));
    snapshot.into_iter().for_each(|snapshot| model.apply(Event::Snapshot(snapshot)));
    model
}

fn of_volumes(before: Option<Volume>, after: Option<Volume>) -> Vec<What> {
    let event = after.map_or(Event::VolumeGone(VOLUME), Event::Volume);
    derive::of_event(&model_of(before, None), &event, "taken back")
}

fn of_snapshots(before: Option<Snapshot>, after: Option<Snapshot>) -> Vec<What> {
    let event = after.map_or(Event::SnapshotGone(SNAPSHOT), Event::Snapshot);
    derive::of_event(&model_of(None, before), &event, "taken back")
}

/// Compares a text with a file beside this one; EVENKEEL_WRITE=1 writes it.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/events").join(name);
    if std::env::var_os("EVENKEEL_WRITE").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    assert_eq!(text, expected, "EVENKEEL_WRITE=1 writes {name}");
}

#[test]
fn every_change_of_a_phase_is_the_event_of_the_table() {
    let mut table = String::new();
    let mut row = |of: &str, from: &str, to: &str, all: Vec<What>| {
        let line = format!("{of}: {from} -> {to}: {}", told(all));
        table += line.trim_end();
        table.push('\n');
    };
    for (from, before) in phases() {
        for (to, after) in phases() {
            let before = before.clone().map(volume);
            let after = after.map(volume);
            row("volume", from, to, of_volumes(before, after));
        }
    }
    for (from, before) in snapshot_phases() {
        for (to, after) in snapshot_phases() {
            let before = before.clone().map(snapshot);
            let after = after.map(snapshot);
            row("snapshot", from, to, of_snapshots(before, after));
        }
    }
    golden("derived.txt", &table);
}

#[test]
fn attachments_and_modifications_make_events() {
    let ready = volume(Phase::Ready);
    let with = |state| Volume { attachments: vec![attached(state)], ..ready.clone() };
    let of = |before: &Volume, after: &Volume| {
        told(of_volumes(Some(before.clone()), Some(after.clone())))
    };
    let attaching = with(AttachmentState::Attaching);
    assert_eq!(of(&ready, &attaching), "");
    assert_eq!(of(&attaching, &with(AttachmentState::Attached)), "");
    assert_eq!(of(&with(AttachmentState::Detaching), &ready), "");
    assert_eq!(of(&attaching, &ready), "attachVolume failed taken back");
    let lost = Volume { phase: Phase::Error("gone".into()), ..with(AttachmentState::Attached) };
    let expected = "volumeError error gone, reattachVolume failed gone";
    assert_eq!(of(&with(AttachmentState::Attached), &lost), expected);
    assert_eq!(of(&lost, &with(AttachmentState::Attached)), "volumeRecovered in-use");
    let in_phase = |phase| {
        let original = spec();
        let target = spec();
        let modification = Modification { original, target, started: NOW, phase };
        Volume { modification: Some(modification), ..ready.clone() }
    };
    let modifying = in_phase(ModificationPhase::Modifying);
    assert_eq!(of(&ready, &modifying), "modifyVolume modifying");
    let optimizing = in_phase(ModificationPhase::Optimizing { since: NOW, until: NOW });
    assert_eq!(of(&modifying, &optimizing), "modifyVolume optimizing");
    let completed = in_phase(ModificationPhase::Completed { ended: NOW });
    assert_eq!(of(&modifying, &completed), "modifyVolume completed");
    let failed = in_phase(ModificationPhase::Failed { ended: NOW, reason: "no".into() });
    assert_eq!(of(&modifying, &failed), "modifyVolume failed no");
    assert_eq!(of(&completed, &completed), "");
}

#[test]
fn sharing_and_fast_restore_make_events_and_internal_snapshots_none() {
    let completed = snapshot(SnapshotPhase::Completed { data: ByteCount(1), ended: NOW });
    let of = |before: &Snapshot, after: &Snapshot| {
        told(of_snapshots(Some(before.clone()), Some(after.clone())))
    };
    let shared = |with: &[&str]| Snapshot {
        shared_with: with.iter().map(|it| (*it).to_owned()).collect(),
        ..completed.clone()
    };
    assert_eq!(of(&completed, &shared(&["all"])), "");
    assert_eq!(of(&completed, &shared(&["all", "1"])), "shareSnapshot succeeded");
    assert_eq!(of(&shared(&["1"]), &completed), "");
    let on = FastRestore { since: NOW, credits: 0, counted: NOW };
    let fast_in = |zones: &[&str]| Snapshot {
        fast_restores: zones.iter().map(|zone| ((*zone).to_owned(), on)).collect(),
        ..completed.clone()
    };
    let fast = fast_in(&["a"]);
    assert_eq!(
        (of(&completed, &fast), of(&fast, &completed)),
        ("enabled".into(), "disabled".into())
    );
    assert_eq!(of(&fast, &fast_in(&["a", "b"])), "enabled");
    assert_eq!(of(&fast, &fast_in(&["b"])), "disabled, enabled");
    let gone = Snapshot { phase: SnapshotPhase::Deleting { data: ByteCount(1) }, ..fast.clone() };
    assert_eq!((of(&fast, &gone), of(&fast, &fast)), ("disabled".into(), String::new()));
    let copy_of = Some(SnapshotId::from_bits(3));
    let copying = Snapshot { copy_of, ..snapshot(SnapshotPhase::Copying { data: ByteCount(1) }) };
    assert_eq!(of(&copying, &Snapshot { copy_of, ..completed.clone() }), "copySnapshot succeeded");
    let own = Snapshot { for_volume: Some(VOLUME), ..completed };
    assert_eq!(told(of_snapshots(None, Some(own))), "");
}

#[test]
fn tier_changes_make_events_and_clock_steps_make_none() {
    let completed = snapshot(SnapshotPhase::Completed { data: ByteCount(1), ended: NOW });
    let tiered = |last, began: u64| {
        let tiering = Tiering { last, began: UnixMs(began), archived: UnixMs(1) };
        Snapshot { tiering: Some(tiering), ..completed.clone() }
    };
    let of = |before: &Snapshot, after: &Snapshot| {
        told(of_snapshots(Some(before.clone()), Some(after.clone())))
    };
    let archived = tiered(TierOperation::Archive, 1);
    let until = |ms| TierOperation::TemporaryRestore { until: UnixMs(ms) };
    let restored = tiered(until(9), 2);
    assert_eq!(of(&completed, &archived), "archiveSnapshot succeeded");
    assert_eq!(of(&archived, &restored), "temporaryRestoreSnapshot succeeded");
    assert_eq!(of(&restored, &tiered(until(12), 5)), "temporaryRestoreSnapshot succeeded");
    assert_eq!(of(&restored, &tiered(until(20), 2)), "", "moved with the clock");
    assert_eq!(of(&restored, &tiered(TierOperation::Archive, 9)), "restoreExpiry succeeded");
    let for_good = tiered(TierOperation::PermanentRestore, 7);
    assert_eq!(of(&restored, &for_good), "permanentRestoreSnapshot succeeded");
    assert_eq!(of(&for_good, &tiered(TierOperation::Archive, 8)), "archiveSnapshot succeeded");
    assert_eq!(of(&archived, &archived), "");
}

#[test]
fn snapshot_set_event_follows_the_last_of_its_snapshots() {
    let id = |bits| SnapshotId::from_bits(bits);
    let in_phase = |bits, phase| Snapshot { id: id(bits), ..snapshot(phase) };
    let completed = SnapshotPhase::Completed { data: ByteCount(1), ended: NOW };
    for (second, result) in [
        (Event::Snapshot(in_phase(2, completed.clone())), "succeeded"),
        (Event::SnapshotGone(id(2)), "failed"),
    ] {
        let feed = Feed::default();
        let new = [1, 2].map(|bits| Event::Snapshot(in_phase(bits, SnapshotPhase::Pending)));
        let mut model = Model::default();
        feed.begin(&model, &new);
        let rest = [Event::Snapshot(in_phase(1, completed.clone())), second];
        for event in new.into_iter().chain(rest) {
            feed.note(&model, &event);
            model.apply(event);
        }
        let all: Vec<What> = feed.take().0.into_iter().map(|notice| notice.what).collect();
        assert_eq!(all.len(), 3);
        let set = json(all.into_iter().last().unwrap());
        assert_eq!(
            (&set["detail"]["event"], &set["detail"]["result"]),
            (&"createSnapshots".into(), &result.into())
        );
    }
    // Two separate changes are not a set.
    let feed = Feed::default();
    let model = Model::default();
    for bits in [1, 2] {
        let new = Event::Snapshot(in_phase(bits, SnapshotPhase::Pending));
        feed.begin(&model, std::slice::from_ref(&new));
        feed.note(&model, &new);
        feed.note(&model, &Event::Snapshot(in_phase(bits, completed.clone())));
    }
    assert!(feed.take().0.iter().all(|notice| !matches!(notice.what, What::Set { .. })));
}

/// Returns one event of each kind.
fn kinds() -> Vec<What> {
    let done = |event, failed: Option<&str>| {
        let failed = failed.map(str::to_owned);
        What::Snapshot(SnapshotDone { id: SNAPSHOT, event, failed, started: NOW })
    };
    let volume = |event, result, cause: &str| What::Volume {
        id: VOLUME,
        event,
        result,
        cause: cause.into(),
    };
    let volume_news = |news| What::VolumeNews { id: VOLUME, news };
    let snapshot_news = |news| What::SnapshotNews { id: SNAPSHOT, news };
    let target = Target::Volume(VOLUME);
    let other = Target::Snapshot(SNAPSHOT);
    let set = |is_complete| {
        vec![(SNAPSHOT, VOLUME, true), (SnapshotId::from_bits(0xc), VOLUME, is_complete)]
    };
    vec![
        volume(VolumeEvent::Create, "available", ""),
        volume(VolumeEvent::Create, "failed", "no \"room\"\n"),
        volume(VolumeEvent::Delete, "deleted", ""),
        volume(VolumeEvent::Attach, "failed", "busy"),
        volume(VolumeEvent::Reattach, "failed", "unplugged"),
        volume(VolumeEvent::Modify, "optimizing", ""),
        done(SnapshotEvent::Create(VOLUME), None),
        done(SnapshotEvent::Create(VOLUME), Some("lost")),
        done(SnapshotEvent::Copy(Some(SnapshotId::from_bits(0xc))), None),
        done(SnapshotEvent::Copy(None), Some("the source is gone")),
        done(SnapshotEvent::Archive, None),
        done(SnapshotEvent::RestoreUntil(UnixMs(NOW.0 + 1_000)), None),
        done(SnapshotEvent::RestoreForGood, None),
        done(SnapshotEvent::RestoreEnd, None),
        done(SnapshotEvent::Share, None),
        What::Set { all: set(true), started: NOW },
        What::Set { all: set(false), started: NOW },
        What::FastRestore { id: SNAPSHOT, zone: "local-1a".into(), is_on: true },
        What::FastRestore { id: SNAPSHOT, zone: "local-1a".into(), is_on: false },
        volume_news(VolumeNews::Error("unplugged".into())),
        volume_news(VolumeNews::Recovered("in-use")),
        volume_news(VolumeNews::FlushFailed),
        volume_news(VolumeNews::Stalled),
        volume_news(VolumeNews::Resumed),
        volume_news(VolumeNews::PromiseMissed { missed: 3, judged: 60 }),
        snapshot_news(SnapshotNews::Error("lost".into())),
        snapshot_news(SnapshotNews::Recovered),
        snapshot_news(SnapshotNews::Deleted),
        What::Rotten { target, by: "request", offset: None },
        What::Rotten { target: other, by: "scrub", offset: Some(4_096) },
        What::Bin { target, event: BinEvent::Entered(NOW) },
        What::Bin { target: other, event: BinEvent::Restored },
        What::Bin { target: other, event: BinEvent::Purged },
        What::Server(ServerNews::Space { level: "low", total: 100, free: 9 }),
        What::Server(ServerNews::StoreTrouble { kind: "no_space", troubles: 2 }),
        What::Server(ServerNews::StoreTrouble { kind: "no_space", troubles: 0 }),
        What::Server(ServerNews::CopiesMended { copies: 3 }),
        What::Server(ServerNews::ScrubCompleted { started: NOW, bytes: 1, rotten: 2, unread: 0 }),
        What::Server(ServerNews::Started { previous: "stopped" }),
        What::Server(ServerNews::Stopped),
        What::Server(ServerNews::Gap { lost: 5, cause: "full".into() }),
    ]
}

#[test]
fn every_kind_has_its_json() {
    let mut text = String::new();
    for what in kinds() {
        let notice = Notice { at: NOW, request: "r-1".into(), what };
        let event = notice.json(&settings(), 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        // The program's version is not part of the shape.
        text += &event.replace(env!("CARGO_PKG_VERSION"), "VERSION");
        text.push('\n');
    }
    golden("golden.jsonl", &text);
}

#[test]
fn a_long_cause_is_cut_between_letters() {
    let cause = "\u{e9}".repeat(2_000);
    let news = VolumeNews::Error(format!("x{cause}"));
    let event = json(What::VolumeNews { id: VOLUME, news });
    assert_eq!(event["detail"]["cause"].as_str().unwrap().len(), 1_023);
}

#[test]
fn events_beyond_the_queue_become_a_gap_behind_it() {
    let feed = Feed::default();
    for _ in 0..QUEUE_MAX + 3 {
        feed.tell(What::Server(ServerNews::Stopped));
    }
    let (all, is_last) = feed.take();
    assert_eq!((all.len(), is_last, feed.counts()), (QUEUE_MAX + 1, false, (0, 3)));
    let what = &all.last().unwrap().what;
    assert!(matches!(what, What::Server(ServerNews::Gap { lost: 3, .. })), "{what:?}");
    feed.tell(What::Server(ServerNews::Stopped));
    assert_eq!(feed.take().0.len(), 1);
}

fn report(errors: IoErrors, seconds: u64, missed: u64) -> VolumeReport {
    VolumeReport {
        id: VOLUME,
        balances: Default::default(),
        connections: 0,
        queued: 0,
        in_store: 0,
        operations: 0,
        bytes_read: 0,
        bytes_written: 0,
        flushes: 0,
        answered: Default::default(),
        exceeded: Default::default(),
        errors,
        contract: Contract { seconds, missed },
    }
}

#[test]
fn errors_make_one_event_and_missed_promises_one_every_five_minutes() {
    let mut watcher = Watcher::new(NOW);
    let mut look = |seconds: u64, errors, judged, missed| {
        told(watcher.look(NOW.plus_ms(seconds * 1_000), &[report(errors, judged, missed)]))
    };
    let fine = IoErrors::default();
    assert_eq!(look(0, fine, 10, 0), "");
    assert_eq!(look(1, fine, 11, 1), "promiseMissed missed");
    assert_eq!(look(2, fine, 12, 2), "");
    assert_eq!(look(300, fine, 13, 2), "");
    assert_eq!(look(301, fine, 14, 2), "promiseMissed missed");
    assert_eq!(look(700, fine, 15, 2), "");
    let bad = IoErrors { flush_failed: true, is_rotten: true, ..fine };
    assert_eq!(look(701, bad, 15, 2), "flushFailed failed, rottenDataFound rotten");
    assert_eq!(look(702, bad, 15, 2), "");
    assert_eq!(look(703, fine, 15, 2), "");
    assert_eq!(look(704, bad, 15, 2), "flushFailed failed, rottenDataFound rotten");
    // The counters of the volume began again.
    assert_eq!(look(1_400, bad, 1, 1), "promiseMissed missed");
    assert_eq!(watcher.look(NOW, &[]), []);
}

#[test]
fn disk_space_and_the_end_of_optimizing_make_one_event_each() {
    let mut watcher = Watcher::new(NOW);
    let at = |seconds: u64| NOW.plus_ms(seconds * 1_000);
    assert!(!watcher.is_due(at(9)) && watcher.is_due(at(10)) && watcher.is_due(UnixMs(5)));
    let original = spec();
    let target = spec();
    let phase = ModificationPhase::Optimizing { since: NOW, until: at(15) };
    let modification = Some(Modification { original, target, started: NOW, phase });
    let model = model_of(Some(Volume { modification, ..volume(Phase::Ready) }), None);
    let mut look = |seconds, free| {
        let space = Space { total: ByteCount(1_000), free: ByteCount(free) };
        told(watcher.look_closer(at(seconds), &model, Some(space)))
    };
    assert_eq!(look(10, 500), "");
    assert_eq!(look(20, 50), "modifyVolume completed, diskSpace low");
    assert_eq!(look(30, 50), "");
    assert_eq!(look(40, 1), "diskSpace critical");
    assert_eq!(look(50, 500), "diskSpace enough");
}

#[test]
fn store_trouble_events_come_at_begin_and_end_once_a_minute_at_most() {
    let mut watcher = Watcher::new(NOW);
    let mut look = |seconds: u64, unfinished, without_space, copies_mended| {
        let health =
            StoreHealth { unfinished, without_space, copies_mended, ..StoreHealth::default() };
        watcher.look_at_store(NOW.plus_ms(seconds * 1_000), &health)
    };
    let trouble = |kind, troubles| What::Server(ServerNews::StoreTrouble { kind, troubles });
    let mended = |copies| What::Server(ServerNews::CopiesMended { copies });
    assert_eq!(look(0, 0, 0, 0), []);
    assert_eq!(look(10, 2, 0, 1), [trouble("unfinished", 2), mended(1)]);
    // A larger number of one kind is the same trouble; another kind is another trouble.
    assert_eq!(look(20, 3, 1, 2), [trouble("no_space", 1)]);
    // The trouble ends and begins again within the minute.
    assert_eq!(look(30, 0, 1, 3), []);
    assert_eq!(look(40, 1, 1, 4), []);
    assert_eq!(look(70, 0, 1, 4), [trouble("unfinished", 0), mended(3)]);
    assert_eq!(look(80, 0, 0, 4), [trouble("no_space", 0)]);
    assert_eq!(look(200, 0, 0, 4), []);
    // The data plane was restarted.
    assert_eq!(look(210, 0, 0, 0), []);
    assert_eq!(look(220, 0, 0, 2), [mended(2)]);
}

#[test]
fn unwritable_log_recovers_and_counts_the_lost_events() {
    let folder = tempfile::tempdir().unwrap();
    let (log, appender) = Log::open(folder.path(), Bounds { file_bytes: 1, files: 3 });
    let feed = Arc::new(Feed::default());
    let mut writer = Writer { feed: Arc::clone(&feed), settings: settings(), appender, lost: 0 };
    let stopped = || {
        let what = What::Server(ServerNews::Stopped);
        [Notice { at: NOW, request: String::new(), what }]
    };
    writer.write(&stopped());
    // The folder is missing, so the full file cannot be renamed.
    let aside = folder.path().with_extension("aside");
    fs::rename(folder.path(), &aside).unwrap();
    writer.write(&stopped());
    writer.write(&stopped());
    assert_eq!((log.last(), feed.counts()), (1, (1, 2)));
    fs::rename(&aside, folder.path()).unwrap();
    writer.write(&stopped());
    let page = log.read(1, 10, |_| true).unwrap();
    assert_eq!((page.examined, page.events.len()), (3, 2));
    assert!(page.events[0].event.contains("\"lostEvents\":2"), "{page:?}");
}
