//! Reads the answer of DescribeSnapshots: the full size of a volume's newest snapshot.
//!
//! `FullSnapshotSizeInBytes` "represents the size of all the blocks that were written to the source
//! volume at the time the snapshot was created" (EC2 API reference, Snapshot). Blocks of deleted
//! files are among them, so the file systems use at most this size.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Amount, FileSystem, Read, Source};
use crate::read::{Broken, json_broken};

const FORM: &str = "the answer of `aws ec2 describe-snapshots --owner-ids self`";

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    #[serde(rename_all = "PascalCase")]
    Whole { snapshots: Vec<Snapshot> },
    /// The output of `--query Snapshots`.
    List(Vec<Snapshot>),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Snapshot {
    #[serde(default)]
    volume_id: String,
    #[serde(default)]
    start_time: String,
    #[serde(default)]
    state: String,
    full_snapshot_size_in_bytes: Option<u64>,
}

pub(super) fn read(text: &[u8]) -> Result<Read, Broken> {
    let answer: Answer = serde_json::from_slice(text).map_err(|error| json_broken(&error, FORM))?;
    let (Answer::Whole { snapshots } | Answer::List(snapshots)) = answer;
    let mut newest: BTreeMap<String, (String, u64)> = BTreeMap::new();
    let mut without_size = 0_u32;
    for snapshot in snapshots {
        if snapshot.state != "completed" && !snapshot.state.is_empty() {
            continue;
        }
        let Some(bytes) = snapshot.full_snapshot_size_in_bytes else {
            without_size += 1;
            continue;
        };
        // Times are in ISO 8601 and in UTC, so their texts have the order of time.
        let of_volume = newest.entry(snapshot.volume_id).or_default();
        if snapshot.start_time >= of_volume.0 {
            *of_volume = (snapshot.start_time, bytes);
        }
    }
    let known = newest.into_iter().map(|(volume, (_, bytes))| FileSystem {
        device: format!("the snapshot of {volume}"),
        volume: Some(volume),
        host: None,
        amount: Amount::Bytes(bytes),
        source: Source::Snapshot,
    });
    let left_out = (without_size > 0).then(|| {
        format!(
            "{without_size} snapshots without FullSnapshotSizeInBytes: ask with a newer aws-cli"
        )
    });
    Ok(Read { known: known.collect(), left_out: left_out.into_iter().collect() })
}
