//! The content of events, and their JSON in the envelope of EventBridge.
//!
//! Events that EC2 has, too, are shaped as EBS documents them and have the source `aws.ec2`; all
//! others have the source `evenkeel`.

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::timestamp;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::model::Settings;
use crate::scrub::Target;

/// Maximum of bytes of a cause. A reason of the data plane may be a long list.
const CAUSE_BYTES_MAX: usize = 1_024;
/// The message of a state that a client has requested.
const LIFECYCLE: &str = "Client.UserInitiated - Lifecycle state transition";

/// A notice of something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// When it happened.
    pub at: UnixMs,
    /// The request that caused it; empty if the server acted by itself.
    pub request: String,
    /// The event.
    pub what: What,
}

/// An event, by detail type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// `EBS Volume Notification`.
    Volume {
        /// The volume.
        id: VolumeId,
        /// The operation.
        event: VolumeEvent,
        /// EC2's word for the outcome.
        result: &'static str,
        /// The reason of a failure.
        cause: String,
    },
    /// `EBS Snapshot Notification`.
    Snapshot(SnapshotDone),
    /// `EBS Multi-Volume Snapshots Completion Status`.
    Set {
        /// The snapshots, with their volumes and whether each is complete.
        all: Vec<(SnapshotId, VolumeId, bool)>,
        /// When they were requested.
        started: UnixMs,
    },
    /// `EBS Fast Snapshot Restore State-change Notification`.
    FastRestore {
        /// The snapshot.
        id: SnapshotId,
        /// The zone.
        zone: String,
        /// Whether it is on.
        is_on: bool,
    },
    /// `Evenkeel Volume Notification`.
    VolumeNews {
        /// The volume.
        id: VolumeId,
        /// The change.
        news: VolumeNews,
    },
    /// `Evenkeel Snapshot Notification`.
    SnapshotNews {
        /// The snapshot.
        id: SnapshotId,
        /// The change.
        news: SnapshotNews,
    },
    /// `Evenkeel Data Notification`: stored data differs from the data written.
    Rotten {
        /// The volume, the snapshot, or the store's metadata.
        target: Target,
        /// Where the damage was found: `scrub` or `request`.
        by: &'static str,
        /// The first byte of a volume, a snapshot, or the store's device, if it is known.
        offset: Option<u64>,
    },
    /// `Evenkeel Recycle Bin Notification`.
    Bin {
        /// The volume or the snapshot.
        target: Target,
        /// The operation.
        event: BinEvent,
    },
    /// `Evenkeel Server Notification`.
    Server(ServerNews),
}

/// Events of a volume that EC2 does not have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumeNews {
    /// It is not served any more; the text has the reason.
    Error(String),
    /// It was in error and is served again; its state, as the EC2 API names it.
    Recovered(&'static str),
    /// A flush has failed.
    FlushFailed,
    /// It has requests, and for a minute none of them was started, or for seconds the store
    /// completed none.
    Stalled,
    /// It was stalled, and continues.
    Resumed,
    /// It did not get its provisioned performance.
    PromiseMissed {
        /// Seconds in which it did not, since the last event of this kind.
        missed: u64,
        /// Seconds that were judged since then.
        judged: u64,
    },
}

/// Events of a snapshot that EC2 does not have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotNews {
    /// Its bytes are missing; the text has the reason.
    Error(String),
    /// Its bytes are there again.
    Recovered,
    /// It is deleted.
    Deleted,
}

/// Events of the server as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerNews {
    /// The level of free space on the disk of the volumes has changed.
    Space {
        /// `enough`, `low` or `critical`.
        level: &'static str,
        /// Bytes that volumes could fill together.
        total: u64,
        /// Those of them that are free.
        free: u64,
    },
    /// The store cannot do or read something, or it can again.
    StoreTrouble {
        /// `unfinished`, `no_space` or `damaged_sector`, as the metric `store_troubles` has it.
        kind: &'static str,
        /// Volumes or sectors of this kind; zero when the trouble has ended.
        troubles: u64,
    },
    /// Damaged copies of data that the store has twice were rewritten.
    CopiesMended {
        /// Copies since the last event of this kind.
        copies: u64,
    },
    /// A scrub of all stored data has ended.
    ScrubCompleted {
        /// When the scrub began.
        started: UnixMs,
        /// Bytes that were read.
        bytes: u64,
        /// Places with damaged data.
        rotten: u64,
        /// Volumes and snapshots that could not be read to their ends.
        unread: u64,
    },
    /// The server answers requests.
    Started {
        /// How the last server on this folder ended: `none`, `stopped` or `killed`.
        previous: &'static str,
    },
    /// The server has answered its last request.
    Stopped,
    /// Events were lost.
    Gap {
        /// How many.
        lost: u64,
        /// Why.
        cause: String,
    },
}

/// An operation on a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeEvent {
    /// `createVolume`
    Create,
    /// `deleteVolume`
    Delete,
    /// `attachVolume`
    Attach,
    /// `reattachVolume`
    Reattach,
    /// `modifyVolume`
    Modify,
}

impl VolumeEvent {
    const fn name(self) -> &'static str {
        match self {
            Self::Create => "createVolume",
            Self::Delete => "deleteVolume",
            Self::Attach => "attachVolume",
            Self::Reattach => "reattachVolume",
            Self::Modify => "modifyVolume",
        }
    }
}

/// A snapshot that was made, copied or shared, or that could not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotDone {
    /// The snapshot.
    pub id: SnapshotId,
    /// The operation.
    pub event: SnapshotEvent,
    /// The reason, if it failed.
    pub failed: Option<String>,
    /// When it was begun.
    pub started: UnixMs,
}

/// An operation on a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotEvent {
    /// `createSnapshot` of this volume.
    Create(VolumeId),
    /// `copySnapshot` of this snapshot, if it is known.
    Copy(Option<SnapshotId>),
    /// `shareSnapshot`
    Share,
    /// `archiveSnapshot`
    Archive,
    /// `permanentRestoreSnapshot`
    RestoreForGood,
    /// `temporaryRestoreSnapshot`, until this time.
    RestoreUntil(UnixMs),
    /// `restoreExpiry`: a temporary restore has ended.
    RestoreEnd,
}

/// An operation on a volume or a snapshot of the recycle bin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BinEvent {
    /// It was deleted, and stays in the bin until this time.
    Entered(UnixMs),
    /// It was taken out.
    Restored,
    /// It was deleted permanently, by a client or because its time in the bin had ended.
    Purged,
}

/// A JSON object whose fields keep their order.
struct Fields(Vec<(&'static str, Value)>);

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Envelope {
    version: &'static str,
    id: String,
    detail_type: &'static str,
    source: &'static str,
    account: String,
    time: String,
    region: String,
    resources: Vec<String>,
    detail: Fields,
}

/// Content of an event beside its envelope.
struct Said {
    detail_type: &'static str,
    resources: Vec<String>,
    detail: Vec<(&'static str, Value)>,
}

/// Returns a point in time as EventBridge writes it: whole seconds.
pub(super) fn time(at: UnixMs) -> String {
    let text = timestamp::extended(at.0);
    format!("{}Z", text.split('.').next().unwrap_or_default())
}

/// Returns random bits as a UUID of version 4.
fn uuid(bits: u128) -> String {
    let bits = bits & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let hex = format!("{bits:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().to_owned();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

fn cut(cause: &str) -> &str {
    let end = (0..=CAUSE_BYTES_MAX.min(cause.len())).rev().find(|at| cause.is_char_boundary(*at));
    cause.get(..end.unwrap_or_default()).unwrap_or_default()
}

impl Notice {
    /// Returns its JSON, on one line. `bits` are random.
    #[must_use]
    pub fn json(&self, settings: &Settings, bits: u128) -> String {
        let Said { detail_type, resources, detail } = self.said(settings);
        let envelope = Envelope {
            version: "0",
            id: uuid(bits),
            detail_type,
            source: if detail_type.starts_with("EBS ") { "aws.ec2" } else { "evenkeel" },
            account: settings.account.clone(),
            time: time(self.at),
            region: settings.region.clone(),
            resources,
            detail: Fields(detail),
        };
        // Texts and numbers can always be written.
        serde_json::to_string(&envelope).unwrap_or_default()
    }

    fn said(&self, settings: &Settings) -> Said {
        match &self.what {
            What::Volume { id, event, result, cause } => Said {
                detail_type: "EBS Volume Notification",
                resources: vec![volume_arn(settings, *id)],
                detail: vec![
                    ("result", json!(result)),
                    ("cause", json!(cut(cause))),
                    ("event", json!(event.name())),
                    ("request-id", json!(self.request)),
                ],
            },
            What::Snapshot(done) => self.snapshot(settings, done),
            What::Set { all, started } => self.set(settings, all, *started),
            What::FastRestore { id, zone, is_on } => Said {
                detail_type: "EBS Fast Snapshot Restore State-change Notification",
                resources: vec![snapshot_arn(settings, *id)],
                detail: vec![
                    ("snapshot-id", json!(id.to_string())),
                    ("state", json!(if *is_on { "enabled" } else { "disabled" })),
                    ("zone", json!(zone)),
                    ("message", json!(LIFECYCLE)),
                ],
            },
            What::VolumeNews { id, news } => {
                let detail_type = "Evenkeel Volume Notification";
                self.own(settings, detail_type, Some(Target::Volume(*id)), news.parts())
            }
            What::SnapshotNews { id, news } => {
                let detail_type = "Evenkeel Snapshot Notification";
                self.own(settings, detail_type, Some(Target::Snapshot(*id)), news.parts())
            }
            What::Rotten { target, by, offset } => {
                let offset = offset.map(|offset| ("offset", json!(offset)));
                let more = [("foundBy", json!(by))].into_iter().chain(offset).collect();
                let parts = ("rottenDataFound", "rotten", more);
                self.own(settings, "Evenkeel Data Notification", Some(*target), parts)
            }
            What::Bin { target, event } => {
                let detail_type = "Evenkeel Recycle Bin Notification";
                self.own(settings, detail_type, Some(*target), event.parts())
            }
            What::Server(news) => {
                self.own(settings, "Evenkeel Server Notification", None, news.parts())
            }
        }
    }

    fn snapshot(&self, settings: &Settings, done: &SnapshotDone) -> Said {
        let arn = snapshot_arn(settings, done.id);
        let (event, source) = match done.event {
            SnapshotEvent::Create(volume) => ("createSnapshot", source_arn(settings, volume)),
            SnapshotEvent::Copy(of) => {
                let of = of.map(|of| snapshot_arn(settings, of));
                ("copySnapshot", of.unwrap_or_default())
            }
            SnapshotEvent::Share => ("shareSnapshot", settings.account.clone()),
            SnapshotEvent::Archive
            | SnapshotEvent::RestoreForGood
            | SnapshotEvent::RestoreUntil(_)
            | SnapshotEvent::RestoreEnd => return self.tier(settings, done),
        };
        let result = if done.failed.is_some() { "failed" } else { "succeeded" };
        Said {
            detail_type: "EBS Snapshot Notification",
            resources: vec![arn.clone()],
            detail: vec![
                ("event", json!(event)),
                ("result", json!(result)),
                ("cause", json!(cut(done.failed.as_deref().unwrap_or_default()))),
                ("request-id", json!(self.request)),
                ("snapshot_id", json!(arn)),
                ("source", json!(source)),
                ("startTime", json!(time(done.started))),
                ("endTime", json!(time(self.at))),
            ],
        }
    }

    /// Returns the content of an event of a storage tier.
    fn tier(&self, settings: &Settings, done: &SnapshotDone) -> Said {
        let arn = snapshot_arn(settings, done.id);
        let (event, until) = match done.event {
            SnapshotEvent::RestoreForGood => ("permanentRestoreSnapshot", None),
            SnapshotEvent::RestoreUntil(until) => ("temporaryRestoreSnapshot", Some(until)),
            SnapshotEvent::RestoreEnd => ("restoreExpiry", None),
            _ => ("archiveSnapshot", None),
        };
        let mut detail = vec![
            ("event", json!(event)),
            ("result", json!("succeeded")),
            ("cause", json!("")),
            ("request-id", json!(self.request)),
            ("snapshot_id", json!(arn)),
            ("startTime", json!(time(done.started))),
            ("endTime", json!(time(self.at))),
        ];
        detail.extend(until.map(|until| ("restoreExpiryTime", json!(time(until)))));
        Said { detail_type: "EBS Snapshot Notification", resources: vec![arn], detail }
    }

    fn set(
        &self,
        settings: &Settings,
        all: &[(SnapshotId, VolumeId, bool)],
        started: UnixMs,
    ) -> Said {
        let failed = all.iter().find(|(.., is_complete)| !is_complete);
        let cause = failed.map(|(id, ..)| format!("Snapshot {id} is in status error"));
        let each = all.iter().map(|(id, volume, is_complete)| {
            json!({
                "snapshot_id": snapshot_arn(settings, *id),
                "source": source_arn(settings, *volume),
                "status": if *is_complete { "completed" } else { "error" },
            })
        });
        Said {
            detail_type: "EBS Multi-Volume Snapshots Completion Status",
            resources: all.iter().map(|(id, ..)| snapshot_arn(settings, *id)).collect(),
            detail: vec![
                ("event", json!("createSnapshots")),
                ("result", json!(if failed.is_some() { "failed" } else { "succeeded" })),
                ("cause", json!(cause.unwrap_or_default())),
                ("request-id", json!(self.request)),
                ("startTime", json!(time(started))),
                ("endTime", json!(time(self.at))),
                ("snapshots", each.collect()),
            ],
        }
    }

    /// Returns the content of an event that EC2 does not have.
    fn own(
        &self,
        settings: &Settings,
        detail_type: &'static str,
        target: Option<Target>,
        (event, result, more): Parts,
    ) -> Said {
        let mut detail = vec![("event", json!(event)), ("result", json!(result))];
        let has_cause = more.iter().any(|(name, _)| *name == "cause");
        detail.extend((!has_cause).then(|| ("cause", json!(""))));
        detail.extend(more);
        detail.push(("request-id", json!(self.request)));
        let resource = target.and_then(|target| match target {
            Target::Store => None,
            Target::Volume(id) => Some(volume_arn(settings, id)),
            Target::Snapshot(id) => Some(snapshot_arn(settings, id)),
        });
        Said { detail_type, resources: resource.into_iter().collect(), detail }
    }
}

/// Event, result and further fields.
type Parts = (&'static str, &'static str, Vec<(&'static str, Value)>);

fn because(cause: &str) -> (&'static str, Value) {
    ("cause", json!(cut(cause)))
}

impl VolumeNews {
    fn parts(&self) -> Parts {
        match self {
            Self::Error(cause) => ("volumeError", "error", vec![because(cause)]),
            Self::Recovered(state) => ("volumeRecovered", state, vec![]),
            Self::FlushFailed => ("flushFailed", "failed", vec![]),
            Self::Stalled => ("ioStalled", "stalled", vec![]),
            Self::Resumed => ("ioResumed", "succeeded", vec![]),
            Self::PromiseMissed { missed, judged } => {
                let more = [("missedSeconds", json!(missed)), ("judgedSeconds", json!(judged))];
                ("promiseMissed", "missed", more.into())
            }
        }
    }
}

impl SnapshotNews {
    fn parts(&self) -> Parts {
        match self {
            Self::Error(cause) => ("snapshotError", "error", vec![because(cause)]),
            Self::Recovered => ("snapshotRecovered", "completed", vec![]),
            Self::Deleted => ("deleteSnapshot", "deleted", vec![]),
        }
    }
}

impl BinEvent {
    fn parts(self) -> Parts {
        match self {
            Self::Entered(until) => {
                let until = ("recycleBinExitTime", json!(time(until)));
                ("recycleBinEntered", "succeeded", vec![until])
            }
            Self::Restored => ("recycleBinRestored", "succeeded", vec![]),
            Self::Purged => ("recycleBinPurged", "succeeded", vec![]),
        }
    }
}

impl ServerNews {
    fn parts(&self) -> Parts {
        match self {
            Self::Space { level, total, free } => {
                let more = [("totalBytes", json!(total)), ("freeBytes", json!(free))];
                ("diskSpace", level, more.into())
            }
            Self::StoreTrouble { kind, troubles } => {
                let result = if *troubles > 0 { "began" } else { "ended" };
                ("storeTrouble", result, vec![("kind", json!(kind)), ("troubles", json!(troubles))])
            }
            Self::CopiesMended { copies } => {
                ("storeCopiesMended", "succeeded", vec![("copies", json!(copies))])
            }
            Self::ScrubCompleted { started, bytes, rotten, unread } => {
                let result = if rotten + unread == 0 { "succeeded" } else { "failed" };
                let more = [
                    ("startTime", json!(time(*started))),
                    ("verifiedBytes", json!(bytes)),
                    ("rottenPlaces", json!(rotten)),
                    ("unreadResources", json!(unread)),
                ];
                ("scrubCompleted", result, more.into())
            }
            Self::Started { previous } => {
                let version = json!(env!("CARGO_PKG_VERSION"));
                let more = [("version", version), ("previousServer", json!(previous))];
                ("serverStarted", "started", more.into())
            }
            Self::Stopped => ("serverStopped", "stopped", vec![]),
            Self::Gap { lost, cause } => {
                ("gap", "lost", vec![because(cause), ("lostEvents", json!(lost))])
            }
        }
    }
}

fn volume_arn(settings: &Settings, id: VolumeId) -> String {
    format!("arn:aws:ec2:{}:{}:volume/{id}", settings.region, settings.account)
}

/// Returns the ARN of the volume that a snapshot was made of: EC2 names no account there.
fn source_arn(settings: &Settings, id: VolumeId) -> String {
    format!("arn:aws:ec2:{}::volume/{id}", settings.region)
}

fn snapshot_arn(settings: &Settings, id: SnapshotId) -> String {
    format!("arn:aws:ec2:{}::snapshot/{id}", settings.region)
}
