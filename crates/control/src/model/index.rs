//! An index over all volumes, tokens and snapshots, so that no decision must read all of them:
//! attachments by host, unsettled volumes, the oldest tokens, sold bytes, tags, states.
//!
//! It receives each volume, token and snapshot before and after a change. Its answers equal a
//! recomputation over all of them. No function here can fail.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter::Peekable;
use std::ops::Bound;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::units::GIB;

use super::space::taken;
use super::{Model, Phase, Snapshot, SnapshotPhase, Tags, TierOperation, Token, UnixMs, Volume};

/// The index; see the module documentation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Index {
    /// Bytes of all volumes and snapshots; the sum cannot overflow.
    bytes_sold: u128,
    /// GiB of all volumes.
    volume_gib: u64,
    /// Hosts and the volumes attached to them.
    attached: BTreeSet<(InstanceId, VolumeId)>,
    /// The volume behind each device name in use on a host.
    devices: BTreeSet<(InstanceId, String, VolumeId)>,
    /// Unsettled volumes, without those in error.
    unsettled: BTreeSet<VolumeId>,
    in_error: BTreeSet<VolumeId>,
    /// Names of tokens by the time of use.
    token_ages: BTreeSet<(UnixMs, String)>,
    /// Names of tokens by the volume that they created.
    token_volumes: BTreeSet<(VolumeId, String)>,
    unsettled_snapshots: BTreeSet<SnapshotId>,
    /// Pending snapshots by their volume.
    pending_snapshots: BTreeSet<(VolumeId, SnapshotId)>,
    /// Snapshots that are being copied.
    copying: BTreeSet<SnapshotId>,
    /// Snapshots that were made only for a volume, by that volume.
    own_snapshots: BTreeSet<(VolumeId, SnapshotId)>,
    /// Copies of volumes in progress, by their source.
    volume_copies: BTreeSet<(VolumeId, VolumeId)>,
    /// The volumes and the snapshots in the recycle bin.
    binned: (BTreeSet<VolumeId>, BTreeSet<SnapshotId>),
    /// Snapshots with fast restore that are shown.
    fast: BTreeSet<SnapshotId>,
    /// Snapshots that are restored from the archive for some days.
    restored: BTreeSet<SnapshotId>,
    /// Client tokens of snapshots that are shown.
    snapshot_tokens: BTreeMap<String, SnapshotId>,
    /// Volumes by the hashes of their tags and of their state. A hash takes less memory than the
    /// text, and may have several; the caller compares the tags and the states themselves.
    found: BTreeSet<(u64, VolumeId)>,
    /// Snapshots by the hashes of their tags and of their state.
    found_snapshots: BTreeSet<(u64, SnapshotId)>,
}

impl Index {
    /// Computes the index of a model's volumes, tokens and snapshots.
    pub fn of(model: &Model) -> Self {
        let mut index = Self::default();
        for volume in model.volumes.values() {
            index.volume_but_found(None, Some(volume));
        }
        for (name, token) in &model.tokens {
            index.token(name, None, Some(token));
        }
        for snapshot in model.snapshots.values() {
            index.snapshot_but_found(None, Some(snapshot));
        }
        // Inserted together: they are sorted first, which takes a fraction of the time and the
        // memory.
        index.found = model.volumes.values().flat_map(hashes_of_volume).collect();
        index.found_snapshots = model.snapshots.values().flat_map(hashes_of_snapshot).collect();
        index
    }

    /// Updates the index for a volume that was `before` and is `after`; `None` means no volume.
    pub fn volume(&mut self, before: Option<&Volume>, after: Option<&Volume>) {
        change(&mut self.found, before.map(hashes_of_volume), after.map(hashes_of_volume));
        self.volume_but_found(before, after);
    }

    fn volume_but_found(&mut self, before: Option<&Volume>, after: Option<&Volume>) {
        if let Some(before) = before {
            self.bytes_sold -= u128::from(taken(before));
            self.volume_gib -= taken(before) / GIB;
            self.unsettled.remove(&before.id);
            self.in_error.remove(&before.id);
            self.binned.0.remove(&before.id);
            if let Some(source) = before.source {
                self.volume_copies.remove(&(source, before.id));
            }
            for attachment in &before.attachments {
                self.attached.remove(&(attachment.instance, before.id));
                let device = attachment.device.clone();
                self.devices.remove(&(attachment.instance, device, before.id));
            }
        }
        let Some(after) = after else { return };
        self.bytes_sold += u128::from(taken(after));
        self.volume_gib += taken(after) / GIB;
        match after.phase {
            Phase::Error(_) => _ = self.in_error.insert(after.id),
            _ if !after.is_settled() => _ = self.unsettled.insert(after.id),
            _ => {}
        }
        if matches!(after.phase, Phase::Binned { .. }) {
            self.binned.0.insert(after.id);
        }
        if let (Some(source), Phase::Creating) = (after.source, &after.phase) {
            self.volume_copies.insert((source, after.id));
        }
        for attachment in &after.attachments {
            self.attached.insert((attachment.instance, after.id));
            let device = attachment.device.clone();
            self.devices.insert((attachment.instance, device, after.id));
        }
    }

    /// Updates the index for the token of this name that was `before` and is `after`; `None` means
    /// no token.
    pub fn token(&mut self, name: &str, before: Option<&Token>, after: Option<&Token>) {
        if let Some(before) = before {
            self.token_ages.remove(&(before.used, name.into()));
            self.token_volumes.remove(&(before.volume, name.into()));
        }
        if let Some(after) = after {
            self.token_ages.insert((after.used, name.into()));
            self.token_volumes.insert((after.volume, name.into()));
        }
    }

    /// Updates the index for a snapshot that was `before` and is `after`; `None` means no snapshot.
    pub fn snapshot(&mut self, before: Option<&Snapshot>, after: Option<&Snapshot>) {
        let [old, new] = [before, after].map(|snapshot| snapshot.map(hashes_of_snapshot));
        change(&mut self.found_snapshots, old, new);
        self.snapshot_but_found(before, after);
    }

    fn snapshot_but_found(&mut self, before: Option<&Snapshot>, after: Option<&Snapshot>) {
        if let Some(before) = before {
            self.bytes_sold -= u128::from(before.taken());
            self.unsettled_snapshots.remove(&before.id);
            self.pending_snapshots.remove(&(before.volume, before.id));
            self.copying.remove(&before.id);
            self.binned.1.remove(&before.id);
            self.fast.remove(&before.id);
            self.restored.remove(&before.id);
            if let Some(volume) = before.for_volume {
                self.own_snapshots.remove(&(volume, before.id));
            }
            if let Some(token) = token_of(before) {
                self.snapshot_tokens.remove(token);
            }
        }
        let Some(after) = after else { return };
        self.bytes_sold += u128::from(after.taken());
        if after.is_unsettled() {
            self.unsettled_snapshots.insert(after.id);
        }
        if after.is_pending() {
            self.pending_snapshots.insert((after.volume, after.id));
        }
        match after.phase {
            SnapshotPhase::Copying { .. } => _ = self.copying.insert(after.id),
            SnapshotPhase::Binned { .. } => _ = self.binned.1.insert(after.id),
            _ => {}
        }
        if !after.fast_restores.is_empty() && after.is_shown() {
            self.fast.insert(after.id);
        }
        let tier = after.tiering.map(|tiering| tiering.last);
        if let Some(TierOperation::TemporaryRestore { .. }) = tier {
            self.restored.insert(after.id);
        }
        if let Some(volume) = after.for_volume {
            self.own_snapshots.insert((volume, after.id));
        }
        if let Some(token) = token_of(after) {
            self.snapshot_tokens.insert(token.clone(), after.id);
        }
    }

    /// Returns volumes that may have one of these values of a property, by id, after an id.
    pub fn found(
        &self,
        property: &Property<'_>,
        after: Option<VolumeId>,
    ) -> impl Iterator<Item = VolumeId> + use<'_> {
        let begin = after.map_or(Bound::Included(VolumeId::from_bits(0)), Bound::Excluded);
        let found = &self.found;
        merged(property.hashes().map(|hash| of_hash(found, hash, begin).peekable()).collect())
    }

    /// Returns snapshots that may have one of these values of a property, by id, after an id.
    pub fn found_snapshots(
        &self,
        property: &Property<'_>,
        after: Option<SnapshotId>,
    ) -> impl Iterator<Item = SnapshotId> + use<'_> {
        let begin = after.map_or(Bound::Included(SnapshotId::from_bits(0)), Bound::Excluded);
        let found = &self.found_snapshots;
        merged(property.hashes().map(|hash| of_hash(found, hash, begin).peekable()).collect())
    }

    /// Returns snapshots that are pending or being deleted, by id.
    pub const fn unsettled_snapshots(&self) -> &BTreeSet<SnapshotId> {
        &self.unsettled_snapshots
    }

    /// Returns the number of pending snapshots of a volume.
    pub fn pending_snapshots_of(&self, volume: VolumeId) -> usize {
        self.pending_of(volume).count()
    }

    /// Returns the pending snapshots of a volume, by id.
    pub fn pending_of(&self, volume: VolumeId) -> impl Iterator<Item = SnapshotId> {
        let all = self.pending_snapshots.range((volume, SnapshotId::from_bits(0))..);
        all.take_while(move |(of, _)| *of == volume).map(|(_, id)| *id)
    }

    /// Returns snapshots that are being copied, by id.
    pub const fn copying(&self) -> &BTreeSet<SnapshotId> {
        &self.copying
    }

    /// Returns snapshots that were made only for a volume, by id.
    pub fn made_for(&self, volume: VolumeId) -> impl Iterator<Item = SnapshotId> {
        let all = self.own_snapshots.range((volume, SnapshotId::from_bits(0))..);
        all.take_while(move |(of, _)| *of == volume).map(|(_, id)| *id)
    }

    /// Returns the copies of a volume that are in progress, by id.
    pub fn copies_of(&self, source: VolumeId) -> impl Iterator<Item = VolumeId> {
        let all = self.volume_copies.range((source, VolumeId::from_bits(0))..);
        all.take_while(move |(of, _)| *of == source).map(|(_, id)| *id)
    }

    /// Returns the number of copies of volumes that are in progress.
    pub fn volume_copies(&self) -> usize {
        self.volume_copies.len()
    }

    /// Returns the volumes and the snapshots in the recycle bin, by id.
    pub const fn binned(&self) -> &(BTreeSet<VolumeId>, BTreeSet<SnapshotId>) {
        &self.binned
    }

    /// Returns snapshots with fast restore, by id.
    pub const fn fast(&self) -> &BTreeSet<SnapshotId> {
        &self.fast
    }

    /// Returns snapshots that are restored from the archive for some days, by id.
    pub const fn restored(&self) -> &BTreeSet<SnapshotId> {
        &self.restored
    }

    /// Returns the snapshot that was started with a client token.
    pub fn filled_with(&self, token: &str) -> Option<SnapshotId> {
        self.snapshot_tokens.get(token).copied()
    }

    /// Returns the bytes of all volumes and snapshots.
    pub const fn bytes_sold(&self) -> u128 {
        self.bytes_sold
    }

    /// Returns the GiB of all volumes.
    pub const fn volume_gib(&self) -> u64 {
        self.volume_gib
    }

    /// Returns the volumes attached to a host, by id.
    pub fn attached_to(&self, host: InstanceId) -> impl Iterator<Item = VolumeId> {
        let all = self.attached.range((host, VolumeId::from_bits(0))..);
        all.take_while(move |(of, _)| *of == host).map(|(_, id)| *id)
    }

    /// Returns whether a host has a volume under this device name.
    pub fn has_device(&self, host: InstanceId, device: &str) -> bool {
        let first = (host, device.to_owned(), VolumeId::from_bits(0));
        self.devices
            .range(first..)
            .next()
            .is_some_and(|(of, name, _)| *of == host && name == device)
    }

    /// Returns unsettled volumes without those in error, by id.
    pub const fn unsettled(&self) -> &BTreeSet<VolumeId> {
        &self.unsettled
    }

    /// Returns volumes in error, by id.
    pub const fn in_error(&self) -> &BTreeSet<VolumeId> {
        &self.in_error
    }

    /// Returns names of tokens with their time of use, oldest first.
    pub fn tokens_by_age(&self) -> impl Iterator<Item = (UnixMs, &String)> {
        self.token_ages.iter().map(|(used, name)| (*used, name))
    }

    /// Returns names of the tokens that created this volume.
    pub fn tokens_of(&self, volume: VolumeId) -> impl Iterator<Item = &String> {
        let all = self.token_volumes.range((volume, String::new())..);
        all.take_while(move |(of, _)| *of == volume).map(|(_, name)| name)
    }
}

/// Returns the client token with which a shown snapshot was started.
fn token_of(snapshot: &Snapshot) -> Option<&String> {
    let filled = snapshot.filled.as_ref().filter(|_| snapshot.is_shown())?;
    filled.token.as_ref().map(|(name, _)| name)
}

/// A property by which volumes and snapshots are found without reading all of them.
pub enum Property<'a> {
    /// A tag of this key with one of these values.
    Tag(&'a str, Vec<&'a str>),
    /// One of these states, as EC2 names them.
    State(Vec<&'a str>),
}

impl Property<'_> {
    fn hashes(&self) -> impl Iterator<Item = u64> {
        let (key, values) = match self {
            Self::Tag(key, values) => (Some(*key), values),
            Self::State(values) => (None, values),
        };
        values.iter().map(move |value| hash_of(key, value))
    }
}

/// Returns the hash of a tag, or of a state, which has no key. It is equal in every index.
fn hash_of(key: Option<&str>, value: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, value).hash(&mut hasher);
    hasher.finish()
}

/// Returns the hashes of an object's tags and state, with its id.
fn hashes<K: Copy>(id: K, tags: &Tags, state: &str) -> Vec<(u64, K)> {
    let of_tags = tags.iter().map(|(key, value)| hash_of(Some(key), value));
    of_tags.chain([hash_of(None, state)]).map(|hash| (hash, id)).collect()
}

fn hashes_of_volume(volume: &Volume) -> Vec<(u64, VolumeId)> {
    hashes(volume.id, &volume.tags, volume.state().name())
}

fn hashes_of_snapshot(snapshot: &Snapshot) -> Vec<(u64, SnapshotId)> {
    hashes(snapshot.id, &snapshot.tags, snapshot.state())
}

fn change<K: Ord + Copy>(
    found: &mut BTreeSet<(u64, K)>,
    before: Option<Vec<(u64, K)>>,
    after: Option<Vec<(u64, K)>>,
) {
    if before != after {
        before.into_iter().flatten().for_each(|entry| _ = found.remove(&entry));
        found.extend(after.into_iter().flatten());
    }
}

/// Returns the ids with this hash, in order.
fn of_hash<'a, K: Ord + Copy>(
    found: &'a BTreeSet<(u64, K)>,
    hash: u64,
    begin: Bound<K>,
) -> impl Iterator<Item = K> + use<'a, K> {
    let begin = begin.map(|id| (hash, id));
    found.range((begin, Bound::Unbounded)).map_while(move |(of, id)| (*of == hash).then_some(*id))
}

/// Merges sorted iterators into one that has each of their items once.
fn merged<K: Ord + Copy, I: Iterator<Item = K>>(
    mut all: Vec<Peekable<I>>,
) -> impl Iterator<Item = K> {
    std::iter::from_fn(move || {
        let least = all.iter_mut().filter_map(|each| each.peek().copied()).min()?;
        all.iter_mut().for_each(|each| _ = each.next_if_eq(&least));
        Some(least)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Event;
    use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};
    use proptest::prelude::*;

    const STATES: [Phase; 3] = [Phase::Creating, Phase::Ready, Phase::Deleting];

    fn volume_of(id: VolumeId) -> Volume {
        let request = VolumeRequest {
            volume_type: VolumeType::Gp3,
            size_gib: 1,
            iops: None,
            throughput_mibps: None,
            multi_attach: false,
        };
        let spec = Rules::newest().resolve(&request).unwrap();
        Volume::new(id, "local-1a", spec, UnixMs(0))
    }

    proptest! {
        /// The volumes found by a property, in pages, are those that a scan of all volumes finds.
        #[test]
        fn indexed_search_agrees_with_a_scan_of_all_volumes(
            changes in prop::collection::vec((0..8_u8, 0..4_u8, 0..4_u8, 0..4_usize), 1..60),
            after in prop::option::of(0..8_u8),
        ) {
            let mut model = Model::default();
            for (number, a, b, phase) in changes {
                let id = VolumeId::from_bits(number.into());
                let Some(phase) = STATES.get(phase) else {
                    model.apply(Event::VolumeGone(id));
                    continue;
                };
                let tags = [("a".to_owned(), a.to_string()), ("b".to_owned(), b.to_string())];
                let volume = Volume { phase: phase.clone(), tags: tags.into(), ..volume_of(id) };
                model.apply(Event::Volume(volume));
            }
            model.invariants();
            let after = after.map(|after| VolumeId::from_bits(after.into()));
            let look = |is: &dyn Fn(&Volume) -> bool| -> Vec<VolumeId> {
                let later = model.volumes.values().filter(|volume| Some(volume.id) > after);
                later.filter(|volume| is(volume)).map(|volume| volume.id).collect()
            };
            let find = |property: &Property<'_>| -> Vec<VolumeId> {
                model.volumes_with(property, after).map(|volume| volume.id).collect()
            };
            let two = |volume: &Volume| ["0", "3"].contains(&volume.tags["b"].as_str());
            prop_assert_eq!(find(&Property::Tag("b", vec!["3", "0", "3"])), look(&two));
            let ready = |volume: &Volume| volume.phase == Phase::Ready;
            prop_assert_eq!(find(&Property::State(vec!["available"])), look(&ready));
            prop_assert_eq!(find(&Property::Tag("c", vec!["3"])), vec![]);
            prop_assert_eq!(find(&Property::State(vec![])), vec![]);
        }
    }
}
