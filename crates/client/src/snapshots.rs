//! Snapshots, parsed from the API's XML.

use crate::Client;
use crate::model::{number, optional, tags, text};
use crate::output::{Exit, Failure, Item, or_dash};
use crate::progress::Progress;
use evenkeel_wire::aws::xml::Element;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Reads the present state of a snapshot.
pub fn get(client: &Client, id: &str) -> Result<Snapshot, Failure> {
    let answer = client.call("DescribeSnapshots", &[("SnapshotId.1", id)])?;
    Snapshot::set(&answer).into_iter().next().ok_or_else(|| {
        Failure::new(format!("the server returns nothing for {id}")).exit(Exit::NotFound)
    })
}

/// Waits until a snapshot is completed.
pub fn completed(client: &Client, id: &str, timeout: Duration) -> Result<Snapshot, Failure> {
    let progress = Progress::of_steps(100);
    let completed = client.wait(&format!("{id} to be completed"), timeout, |client| {
        let snapshot = get(client, id)?;
        match snapshot.state.as_str() {
            "completed" => Ok(Some(snapshot)),
            "error" => {
                let reason = snapshot.error_reason.unwrap_or_default();
                Err(Failure::new(format!("{id} is in state error: {reason}")))
            }
            state => {
                let percent = snapshot.progress.trim_end_matches('%').parse().unwrap_or(0);
                progress.at(percent, &format!("{id} is {state}"));
                Ok(None)
            }
        }
    });
    progress.done();
    completed
}

/// A snapshot as DescribeSnapshots returns it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Snapshot {
    pub snapshot_id: String,
    pub volume_id: String,
    /// Size of the volume when it was made.
    pub size_gib: u64,
    /// pending, completed, error.
    pub state: String,
    pub progress: String,
    pub description: String,
    pub start_time: String,
    pub completion_time: Option<String>,
    /// Bytes of data in it; `None` until it is completed.
    pub data_bytes: Option<u64>,
    pub encrypted: bool,
    pub tags: BTreeMap<String, String>,
    /// The reason of the state `error`.
    pub error_reason: Option<String>,
    /// standard, archive.
    pub storage_tier: String,
    /// When it counts as archived again, if it is restored for some days.
    pub restore_expiry_time: Option<String>,
}

impl Snapshot {
    /// All snapshots of an answer to DescribeSnapshots or CreateSnapshots.
    pub fn set(answer: &Element) -> Vec<Self> {
        answer.items("snapshotSet").iter().map(Self::read).collect()
    }

    /// One snapshot: an item of DescribeSnapshots, or CreateSnapshot's whole answer.
    pub fn read(item: &Element) -> Self {
        Self {
            snapshot_id: text(item, "snapshotId"),
            volume_id: text(item, "volumeId"),
            size_gib: number(item, "volumeSize").unwrap_or_default(),
            // CreateSnapshots names it otherwise.
            state: item.child_text("status").map_or_else(|| text(item, "state"), str::to_owned),
            progress: text(item, "progress"),
            description: text(item, "description"),
            start_time: text(item, "startTime"),
            completion_time: optional(item, "completionTime"),
            data_bytes: number(item, "fullSnapshotSizeInBytes"),
            encrypted: item.child_text("encrypted") == Some("true"),
            tags: tags(item),
            error_reason: optional(item, "statusMessage"),
            // CreateSnapshots does not name it.
            storage_tier: optional(item, "storageTier").unwrap_or_else(|| "standard".to_owned()),
            restore_expiry_time: optional(item, "restoreExpiryTime"),
        }
    }
}

impl Item for Snapshot {
    const SCHEMA: &'static str = "evenkeel.snapshots/1";
    const FIELD: &'static str = "snapshots";
    const COLUMNS: &'static [&'static str] =
        &["SNAPSHOT", "VOLUME", "GIB", "STATE", "DATA BYTES", "STARTED", "DESCRIPTION"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.snapshot_id.clone(),
            self.volume_id.clone(),
            self.size_gib.to_string(),
            self.state.clone(),
            or_dash(self.data_bytes),
            self.start_time.clone(),
            self.description.clone(),
        ]
    }
}

/// The lock of a snapshot, as DescribeLockedSnapshots returns it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SnapshotLock {
    pub snapshot_id: String,
    /// governance, compliance, compliance-cooloff, expired.
    pub state: String,
    pub days: u64,
    /// Until when a lock in compliance mode can be changed.
    pub cools_off: Option<String>,
    /// When it expires; `None` before the snapshot is completed.
    pub expires: Option<String>,
}

impl SnapshotLock {
    /// All items of an answer to DescribeLockedSnapshots.
    pub fn set(answer: &Element) -> Vec<Self> {
        answer.items("snapshotSet").iter().map(Self::read).collect()
    }

    /// One lock: an item of DescribeLockedSnapshots, or LockSnapshot's whole answer.
    pub fn read(item: &Element) -> Self {
        Self {
            snapshot_id: text(item, "snapshotId"),
            state: text(item, "lockState"),
            days: number(item, "lockDuration").unwrap_or_default(),
            cools_off: optional(item, "coolOffPeriodExpiresOn"),
            expires: optional(item, "lockExpiresOn"),
        }
    }
}

impl Item for SnapshotLock {
    const SCHEMA: &'static str = "evenkeel.snapshot-locks/1";
    const FIELD: &'static str = "locks";
    const COLUMNS: &'static [&'static str] = &["SNAPSHOT", "LOCK", "DAYS", "COOLS OFF", "EXPIRES"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.snapshot_id.clone(),
            self.state.clone(),
            self.days.to_string(),
            or_dash(self.cools_off.as_ref()),
            or_dash(self.expires.as_ref()),
        ]
    }
}

/// A stored snapshot that the database does not know.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct UnownedSnapshot {
    pub snapshot_id: String,
    /// The volume that it was made of, if its bytes are there.
    pub volume_id: Option<String>,
    pub bytes: u64,
}

impl UnownedSnapshot {
    /// All items of an answer to DescribeUnownedSnapshots.
    pub fn set(answer: &Element) -> Vec<Self> {
        let read = |item: &Element| Self {
            snapshot_id: text(item, "snapshotId"),
            volume_id: item.child_text("volumeId").map(str::to_owned),
            bytes: number(item, "bytes").unwrap_or_default(),
        };
        answer.items("unownedSnapshotSet").iter().map(read).collect()
    }
}

impl Item for UnownedSnapshot {
    const SCHEMA: &'static str = "evenkeel.unowned_snapshots/1";
    const FIELD: &'static str = "unowned_snapshots";
    const COLUMNS: &'static [&'static str] = &["SNAPSHOT", "VOLUME", "BYTES"];

    fn cells(&self) -> Vec<String> {
        vec![self.snapshot_id.clone(), or_dash(self.volume_id.as_ref()), self.bytes.to_string()]
    }
}
