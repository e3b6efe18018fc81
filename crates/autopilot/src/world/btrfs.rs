//! A model of the space of a btrfs: chunks on devices.
//!
//! File data is in chunks of at most 1 GiB, metadata in chunks of 256 MiB. A new chunk is allocated
//! on the device with the most unallocated bytes, or striped over all of them. A chunk without
//! used bytes is returned. So the file system can be out of room although its devices have unused
//! bytes, and a device that leaves needs unallocated bytes on the others.
//!
//! The model has no time: its caller moves bytes at its own pace.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::convert::{count, index};
use evenkeel_planner::autopilot::observation::Profile;

#[cfg(test)]
mod tests;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// The largest stripe of a chunk of file data.
const DATA_STRIPE_MAX: u64 = GIB;
/// The size of a chunk of metadata.
const METADATA_STRIPE: u64 = 256 * MIB;
/// A chunk has at most this share of the file system: a tenth.
const CHUNK_SHARE: u64 = 10;
/// Bytes of file data for each byte of metadata.
const DATA_PER_METADATA: u64 = 256;
/// Metadata that the file system keeps free for its own operations.
const METADATA_RESERVE: u64 = 64 * MIB;
/// The first byte of a device that chunks can use.
const FIRST_BYTE: u64 = MIB;
/// The smallest stripe that is worth a chunk.
const STRIPE_MIN: u64 = 16 * MIB;

/// A part of a chunk on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stripe {
    devid: u64,
    start: u64,
}

/// A chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Chunk {
    is_data: bool,
    stripes: Vec<Stripe>,
    /// Bytes of each stripe.
    stripe_bytes: u64,
    /// Bytes that files can use.
    bytes: u64,
    used: u64,
}

/// A device of the file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Device {
    pub(super) devid: u64,
    /// The id of its volume.
    pub(super) volume: String,
    /// Bytes of the device, as the kernel knows them.
    pub(super) device_bytes: u64,
    /// Bytes that the file system uses of it.
    pub(super) size_bytes: u64,
    /// Stripes by their start: their length and chunk.
    stripes: BTreeMap<u64, (u64, u64)>,
    /// The end of the stripes that follow each other from the first byte: no gap is below it.
    packed_end: u64,
    pub(super) allocated_bytes: u64,
    /// No chunk is allocated above this; it is less than the size during a cut.
    limit_bytes: u64,
    /// Whether chunks leave it, so that none is allocated on it.
    is_leaving: bool,
}

impl Device {
    fn unallocated(&self) -> u64 {
        let mut allocated = self.allocated_bytes;
        if self.limit_bytes < self.size_bytes {
            let above = self.stripes.iter().rev().map(|(start, (bytes, _))| (*start, *bytes));
            let above = above.take_while(|(start, bytes)| start + bytes > self.limit_bytes);
            allocated -= above.map(|(_, bytes)| bytes).sum::<u64>();
        }
        self.limit_bytes.saturating_sub(FIRST_BYTE).saturating_sub(allocated)
    }

    /// Returns the end of the last chunk.
    fn last_chunk_end(&self) -> u64 {
        self.stripes.last_key_value().map_or(FIRST_BYTE, |(start, (bytes, _))| start + bytes)
    }

    /// Returns the start and the length of the first gap with this length, or of the largest gap.
    fn gap(&self, wanted: u64) -> (u64, u64) {
        let end = self.last_chunk_end();
        let tail = self.limit_bytes.saturating_sub(end);
        let inner = self.unallocated().saturating_sub(tail);
        if inner < STRIPE_MIN {
            return (end, tail);
        }
        let mut best = (end, tail);
        let mut from = self.packed_end;
        for (start, (bytes, _)) in self.stripes.range(from..) {
            let gap = (*start).min(self.limit_bytes).saturating_sub(from);
            if gap >= wanted {
                return (from, gap);
            }
            if gap > best.1 {
                best = (from, gap);
            }
            from = start + bytes;
        }
        best
    }

    /// Puts a stripe of a chunk at a gap.
    fn put(&mut self, start: u64, bytes: u64, chunk: u64) {
        self.stripes.insert(start, (bytes, chunk));
        self.allocated_bytes += bytes;
        while let Some((bytes, _)) = self.stripes.get(&self.packed_end) {
            self.packed_end += bytes;
        }
    }

    /// Removes a stripe.
    fn remove(&mut self, start: u64, bytes: u64) {
        self.stripes.remove(&start);
        self.allocated_bytes -= bytes;
        self.packed_end = self.packed_end.min(start);
    }
}

/// There is no room for a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoRoom;

/// The order in which deleted bytes leave chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// The bytes that were written first.
    Oldest,
    /// The bytes that were written last.
    Newest,
    /// An equal share of every chunk.
    Scattered,
}

/// The space of a btrfs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Btrfs {
    data: Profile,
    metadata: Profile,
    pub(super) devices: Vec<Device>,
    chunks: BTreeMap<u64, Chunk>,
    /// Chunks of file data with unused bytes.
    slack: BTreeSet<u64>,
    next_chunk: u64,
    pub(super) used: u64,
    /// Bytes of data chunks.
    data_bytes: u64,
    /// Bytes of metadata chunks, each counted once.
    metadata_bytes: u64,
}

impl Btrfs {
    /// Creates an empty file system without devices.
    pub(super) fn new(data: Profile, metadata: Profile) -> Self {
        Self {
            data,
            metadata,
            devices: Vec::new(),
            chunks: BTreeMap::new(),
            slack: BTreeSet::new(),
            next_chunk: 1,
            used: 0,
            data_bytes: 0,
            metadata_bytes: 0,
        }
    }

    pub(super) const fn profiles(&self) -> (Profile, Profile) {
        (self.data, self.metadata)
    }

    pub(super) fn device(&self, devid: u64) -> Option<&Device> {
        self.devices.iter().find(|device| device.devid == devid)
    }

    pub(super) fn of_volume(&self, volume: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.volume == volume)
    }

    fn device_mut(&mut self, devid: u64) -> Option<&mut Device> {
        self.devices.iter_mut().find(|device| device.devid == devid)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.size_bytes).sum()
    }

    /// Returns bytes of data chunks that files do not use.
    pub(super) fn slack_bytes(&self) -> u64 {
        self.data_bytes.saturating_sub(self.used)
    }

    fn metadata_used(&self) -> u64 {
        self.used / DATA_PER_METADATA + METADATA_RESERVE
    }

    const fn metadata_copies(&self) -> u64 {
        match self.metadata {
            Profile::Dup | Profile::Raid1 => 2,
            Profile::Single | Profile::Raid0 | Profile::Other => 1,
        }
    }

    /// Returns the bytes that files can still use.
    pub(super) fn room(&self) -> u64 {
        let usable = self.devices.iter().filter(|device| !device.is_leaving);
        let unallocated: u64 = usable
            .map(|device| {
                let bytes = device.unallocated();
                if bytes < STRIPE_MIN { 0 } else { bytes }
            })
            .sum();
        let all = self.slack_bytes() + unallocated;
        // The metadata of the bytes that are still to be written needs room too.
        let wanted = (self.used + all) / DATA_PER_METADATA + METADATA_RESERVE;
        let missing = wanted.saturating_sub(self.metadata_bytes) * self.metadata_copies();
        let unallocated = unallocated.saturating_sub(missing);
        self.slack_bytes() + unallocated
    }

    /// Adds a device with this number, which must be free.
    pub(super) fn add(&mut self, devid: u64, volume: &str, bytes: u64) {
        assert!(self.device(devid).is_none(), "devid {devid} is taken");
        self.devices.push(Device {
            devid,
            volume: volume.to_owned(),
            device_bytes: bytes,
            size_bytes: bytes,
            stripes: BTreeMap::new(),
            packed_end: FIRST_BYTE,
            allocated_bytes: 0,
            limit_bytes: bytes,
            is_leaving: false,
        });
        self.devices.sort_by_key(|device| device.devid);
    }

    pub(super) fn next_devid(&self) -> u64 {
        self.devices.iter().map(|device| device.devid).max().map_or(1, |last| last + 1)
    }

    /// Uses `bytes` more of file data; returns those for which there was room.
    pub(super) fn write(&mut self, bytes: u64) -> u64 {
        let mut left = bytes;
        while left > 0 {
            if self.metadata_used() > self.metadata_bytes && self.allocate(false).is_err() {
                break;
            }
            // Up to the byte that needs more metadata, so that a write in two parts equals one.
            let data = self.metadata_bytes.saturating_sub(METADATA_RESERVE) + 1;
            let until = (data * DATA_PER_METADATA).saturating_sub(self.used).max(1);
            let open = self.slack.first().copied();
            let Some(open) = open.or_else(|| self.allocate(true).ok()) else { break };
            let chunk = self.chunks.get_mut(&open).expect("invariant: a chunk with slack exists");
            let taken = left.min(chunk.bytes - chunk.used).min(until);
            chunk.used += taken;
            if chunk.used == chunk.bytes {
                self.slack.remove(&open);
            }
            self.used += taken;
            left -= taken;
        }
        bytes - left
    }

    /// Uses `bytes` less of file data.
    pub(super) fn free(&mut self, bytes: u64, order: Order) {
        let mut left = bytes.min(self.used);
        if order == Order::Scattered && left > 0 {
            let total = self.used;
            let share = |used: u64| {
                let part = u128::from(used) * u128::from(bytes.min(total)) / u128::from(total);
                u64::try_from(part).expect("invariant: a share is at most the whole")
            };
            let parts: Vec<(u64, u64)> =
                self.data_chunks().map(|(id, chunk)| (id, share(chunk.used))).collect();
            for (id, part) in parts {
                let part = part.min(left);
                self.take(id, part);
                left -= part;
            }
        }
        while left > 0 {
            let Some((id, of_chunk)) = self.end_of_data(order) else { break };
            let part = of_chunk.min(left);
            self.take(id, part);
            left -= part;
        }
    }

    /// Returns the first or the last chunk with used bytes, and these.
    fn end_of_data(&self, order: Order) -> Option<(u64, u64)> {
        let mut used = self.data_chunks().filter(|(_, chunk)| chunk.used > 0);
        let next = if order == Order::Newest { used.next_back() } else { used.next() };
        next.map(|(id, chunk)| (id, chunk.used))
    }

    fn data_chunks(&self) -> impl DoubleEndedIterator<Item = (u64, &Chunk)> {
        self.chunks.iter().filter(|(_, chunk)| chunk.is_data).map(|(id, chunk)| (*id, chunk))
    }

    /// Uses `bytes` less of a chunk, and returns it if it is empty.
    fn take(&mut self, id: u64, bytes: u64) {
        let chunk = self.chunks.get_mut(&id).expect("invariant: the chunk exists");
        chunk.used -= bytes;
        self.used -= bytes;
        if chunk.used == 0 {
            self.give_back(id);
        } else if bytes > 0 {
            self.slack.insert(id);
        }
    }

    fn give_back(&mut self, id: u64) {
        let Some(chunk) = self.chunks.remove(&id) else { return };
        self.slack.remove(&id);
        if chunk.is_data {
            self.data_bytes -= chunk.bytes;
        } else {
            self.metadata_bytes -= chunk.bytes;
        }
        for stripe in chunk.stripes {
            let device = self.device_mut(stripe.devid).expect("invariant: stripes have devices");
            device.remove(stripe.start, chunk.stripe_bytes);
        }
    }

    /// Allocates a chunk, and returns its number.
    fn allocate(&mut self, is_data: bool) -> Result<u64, NoRoom> {
        let profile = if is_data { self.data } else { self.metadata };
        let share = self.size_bytes() / CHUNK_SHARE;
        let max = if is_data { DATA_STRIPE_MAX } else { METADATA_STRIPE };
        let max = max.min(share.max(STRIPE_MIN));
        let mut free: Vec<(u64, u64)> = self
            .devices
            .iter()
            .filter(|device| !device.is_leaving)
            .map(|device| (device.unallocated(), device.devid))
            .filter(|(bytes, _)| *bytes >= STRIPE_MIN)
            .collect();
        // The most unallocated first; of two, the one with the lower number.
        free.sort_by_key(|(bytes, devid)| (std::cmp::Reverse(*bytes), *devid));
        let chosen: Vec<u64> = match profile {
            Profile::Single | Profile::Other => free.iter().take(1).map(|(_, id)| *id).collect(),
            Profile::Dup => free.iter().take(1).flat_map(|(_, id)| [*id, *id]).collect(),
            Profile::Raid0 => free.iter().map(|(_, id)| *id).collect(),
            Profile::Raid1 => {
                if free.len() < 2 {
                    return Err(NoRoom);
                }
                free.iter().take(2).map(|(_, id)| *id).collect()
            }
        };
        let smallest = chosen.iter().filter_map(|id| self.device(*id)).map(|d| d.gap(max).1);
        let stripe_bytes = smallest.min().ok_or(NoRoom)?.min(max);
        if stripe_bytes < STRIPE_MIN {
            return Err(NoRoom);
        }
        let id = self.next_chunk;
        let stripes = self.place(id, &chosen, stripe_bytes)?;
        let times = match profile {
            Profile::Raid0 => count(stripes.len()),
            Profile::Single | Profile::Other | Profile::Dup | Profile::Raid1 => 1,
        };
        self.next_chunk += 1;
        let bytes = stripe_bytes * times;
        if is_data {
            self.data_bytes += bytes;
            self.slack.insert(id);
        } else {
            self.metadata_bytes += bytes;
        }
        self.chunks.insert(id, Chunk { is_data, stripes, stripe_bytes, bytes, used: 0 });
        Ok(id)
    }

    /// Places stripes of a chunk on devices, all of them or none.
    fn place(&mut self, id: u64, devids: &[u64], bytes: u64) -> Result<Vec<Stripe>, NoRoom> {
        let mut stripes = Vec::new();
        for devid in devids {
            let device = self.device_mut(*devid).expect("invariant: the device was chosen");
            let (start, gap) = device.gap(bytes);
            if gap < bytes {
                for Stripe { devid, start } in stripes {
                    let device = self.device_mut(devid).expect("invariant: it was placed there");
                    device.remove(start, bytes);
                }
                return Err(NoRoom);
            }
            device.put(start, bytes, id);
            stripes.push(Stripe { devid: *devid, start });
        }
        Ok(stripes)
    }

    /// The kernel reads the size of a device again.
    pub(super) fn rescan(&mut self, devid: u64, device_bytes: u64) {
        if let Some(device) = self.device_mut(devid) {
            device.device_bytes = device_bytes;
        }
    }

    /// Grows the file system to the end of a device.
    pub(super) fn grow(&mut self, devid: u64) {
        if let Some(device) = self.device_mut(devid) {
            device.size_bytes = device.size_bytes.max(device.device_bytes);
            device.limit_bytes = device.size_bytes;
        }
    }

    /// Shrinks the file system on a device: no chunk is allocated above the cut any more, and those
    /// above it move.
    pub(super) fn cut(&mut self, devid: u64, to_bytes: u64) -> Result<(), NoRoom> {
        let above = |device: &Device| {
            let above = device.stripes.iter().map(|(start, (bytes, _))| (start + bytes, *bytes));
            above.filter(|(end, _)| *end > to_bytes).map(|(_, bytes)| bytes).sum::<u64>()
        };
        let moved = self.device(devid).map(above);
        if moved.is_none_or(|moved| moved > self.room_for_cut(devid, to_bytes)) {
            return Err(NoRoom);
        }
        self.set_limit(devid, to_bytes);
        while let Some(chunk) = self.next_above(devid) {
            if self.relocate(chunk).is_err() {
                self.set_limit(devid, u64::MAX);
                return Err(NoRoom);
            }
        }
        if let Some(device) = self.device_mut(devid) {
            device.size_bytes = device.limit_bytes;
        }
        Ok(())
    }

    /// Forbids chunks of a device above a place, or above the end of the file system.
    fn set_limit(&mut self, devid: u64, bytes: u64) {
        if let Some(device) = self.device_mut(devid) {
            device.limit_bytes = bytes.min(device.size_bytes);
        }
    }

    /// Returns the last chunk of a device, if it is above its limit.
    fn next_above(&self, devid: u64) -> Option<u64> {
        let device = self.device(devid)?;
        let (start, (bytes, chunk)) = device.stripes.last_key_value()?;
        (start + bytes > device.limit_bytes).then_some(*chunk)
    }

    /// Returns the bytes that must be moved to empty a chunk.
    fn cost_of(&self, id: u64) -> u64 {
        self.chunks.get(&id).map_or(0, |chunk| if chunk.is_data { chunk.used } else { chunk.bytes })
    }

    fn room_for_cut(&self, devid: u64, to_bytes: u64) -> u64 {
        let others = self.devices.iter().filter(|device| device.devid != devid);
        let others: u64 = others.map(Device::unallocated).sum();
        let Some(device) = self.device(devid) else { return others };
        let below = device.stripes.iter().filter(|(start, (bytes, _))| *start + bytes <= to_bytes);
        let below: u64 = below.map(|(_, (bytes, _))| *bytes).sum();
        others + to_bytes.saturating_sub(FIRST_BYTE).saturating_sub(below)
    }

    /// Moves the bytes of a chunk into other chunks.
    pub(super) fn relocate(&mut self, id: u64) -> Result<(), NoRoom> {
        let Some(chunk) = self.chunks.get(&id).cloned() else { return Ok(()) };
        self.slack.remove(&id);
        if !chunk.is_data {
            let new = self.allocate(false)?;
            let short = chunk.bytes > self.chunks[&new].bytes;
            self.give_back(id);
            if short && self.metadata_used() > self.metadata_bytes {
                self.allocate(false)?;
            }
            return Ok(());
        }
        // The bytes are counted once: the old chunk is emptied while the new ones are filled.
        let used = chunk.used;
        self.chunks.get_mut(&id).expect("invariant: it was found above").used = 0;
        self.used -= used;
        self.data_bytes -= chunk.bytes;
        let written = self.write(used);
        self.data_bytes += chunk.bytes;
        if written < used {
            // What found room stays where it is now, and the rest in the old chunk.
            let rest = used - written;
            self.chunks.get_mut(&id).expect("invariant: it was found above").used = rest;
            self.used += rest;
            return Err(NoRoom);
        }
        self.give_back(id);
        Ok(())
    }

    /// Marks a device as leaving, or as staying.
    pub(super) fn set_leaving(&mut self, devid: u64, is_leaving: bool) {
        if let Some(device) = self.device_mut(devid) {
            device.is_leaving = is_leaving;
        }
        let returned: Vec<u64> = self
            .data_chunks()
            .filter(|(_, chunk)| chunk.used < chunk.bytes)
            .map(|(id, _)| id)
            .collect();
        self.slack.clear();
        for id in returned {
            let stripes = &self.chunks[&id].stripes;
            let leaves = |stripe: &Stripe| self.device(stripe.devid).is_some_and(|d| d.is_leaving);
            if !stripes.iter().any(leaves) {
                self.slack.insert(id);
            }
        }
    }

    /// Returns the next chunk that leaves a device, and the bytes that this takes; `None` if there
    /// is none.
    pub(super) fn next_leaving(&self, devid: u64) -> Option<(u64, u64)> {
        let (_, (_, chunk)) = self.device(devid)?.stripes.first_key_value()?;
        Some((*chunk, self.cost_of(*chunk)))
    }

    /// Removes an empty device.
    pub(super) fn remove(&mut self, devid: u64) {
        let is_empty = self.device(devid).is_some_and(|device| device.stripes.is_empty());
        assert!(is_empty, "devid {devid} has chunks");
        self.devices.retain(|device| device.devid != devid);
    }

    /// Returns the chunks that are used at most this much, at most `chunks_max`, the one with the
    /// least used bytes first.
    pub(super) fn thin(&self, used_percent_max: u32, chunks_max: u32) -> Vec<u64> {
        let limit = u64::from(used_percent_max);
        let thin = self.data_chunks().filter(|(_, chunk)| chunk.used * 100 <= chunk.bytes * limit);
        let mut thin: Vec<(u64, u64)> = thin.map(|(id, chunk)| (chunk.used, id)).collect();
        thin.sort_unstable();
        thin.into_iter().take(index(chunks_max)).map(|(_, id)| id).collect()
    }

    /// Returns the used bytes of chunks.
    pub(super) fn bytes_in(&self, ids: &[u64]) -> u64 {
        ids.iter().map(|id| self.cost_of(*id)).sum()
    }

    /// Returns the first of these chunks that still exists, and the bytes that emptying it takes.
    pub(super) fn next_thin(&self, ids: &[u64]) -> Option<(u64, u64)> {
        let id = ids.iter().find(|id| self.chunks.contains_key(*id))?;
        Some((*id, self.cost_of(*id)))
    }

    /// Asserts that the sums equal what their parts add up to.
    pub(super) fn invariants(&self) {
        let data: u64 = self.data_chunks().map(|(_, chunk)| chunk.bytes).sum();
        let used: u64 = self.data_chunks().map(|(_, chunk)| chunk.used).sum();
        assert_eq!((self.data_bytes, self.used), (data, used), "sums of data chunks");
        for device in &self.devices {
            let allocated: u64 = device.stripes.values().map(|(bytes, _)| bytes).sum();
            assert_eq!(device.allocated_bytes, allocated, "devid {}", device.devid);
            let mut end = FIRST_BYTE;
            let mut packed_end = FIRST_BYTE;
            for (start, (bytes, chunk)) in &device.stripes {
                assert!(*start >= end, "chunks of devid {} overlap at {start}", device.devid);
                assert!(self.chunks.contains_key(chunk), "chunk {chunk} does not exist");
                end = start + bytes;
                if *start == packed_end {
                    packed_end = end;
                }
            }
            assert_eq!(device.packed_end, packed_end, "devid {}", device.devid);
            assert!(end <= device.size_bytes || device.stripes.is_empty(), "chunk above the end");
        }
    }
}
