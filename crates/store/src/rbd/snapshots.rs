//! Snapshots of volumes, as RBD snapshots that are named by their ids. A volume made of one is a
//! clone. A snapshot that is filled is a snapshot of its own image.

use super::cluster::errno;
use super::image::{self, Exactness, Image, OBJECT_BYTES};
use super::metadata::{Changes, SnapshotRecord, SnapshotState, VolumeRecord};
use super::volume::decrypt;
use super::{Shared, State, gone_key, image_bytes, same_size, snapshot_key, volume_key};
use crate::StoreError;
use crate::local::BLOCK_BYTES;
use crate::snapshots::{Making, SnapshotInfo, Snapshots, UNIT_BYTES, Units};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};

/// Maximum number of snapshots of a set that are made at the same time: each waits for the
/// monitors.
const AT_ONCE: usize = 16;
/// Maximum number of snapshots that stay open for reading.
const READ_MAX: usize = 8;
/// Bytes that one call compares.
const COMPARED_BYTES: u64 = 16 * OBJECT_BYTES;
/// Maximum number of such calls before the caller gets the result.
const PIECES_MAX: u64 = 128;

/// An image, and its snapshot that it is compared with; without one, all of its data is reported.
type Source = (Arc<Image>, Option<String>);

/// An id for messages about snapshots that belong to no volume.
const NOBODY: VolumeId = VolumeId::from_bits(0);

/// Returns the volume that a snapshot was made of.
fn volume_of(record: &SnapshotRecord) -> Option<VolumeId> {
    record.volume.as_ref().and_then(|volume| volume.parse().ok())
}

fn info(id: SnapshotId, record: &SnapshotRecord) -> SnapshotInfo {
    SnapshotInfo {
        id,
        volume: volume_of(record),
        size: ByteCount(record.size),
        is_complete: record.state == SnapshotState::Complete,
        data: ByteCount(record.data),
        is_encrypted: !record.key.is_empty(),
    }
}

impl Shared {
    fn named(&self, id: SnapshotId) -> Result<SnapshotRecord, StoreError> {
        self.snapshot(id)?.ok_or(StoreError::NoSnapshot { id })
    }

    fn complete_one(&self, id: SnapshotId) -> Result<SnapshotRecord, StoreError> {
        let record = self.named(id)?;
        match record.state {
            SnapshotState::Complete => Ok(record),
            _ => Err(StoreError::Unready { what: id.to_string() }),
        }
    }

    /// Records that snapshots are being made, all or none.
    fn note_begun(
        &self,
        set: &[(VolumeId, SnapshotId)],
    ) -> Result<Vec<SnapshotRecord>, StoreError> {
        let mut begun = Vec::new();
        let mut changes = Changes::default();
        for &(of, id) in set {
            if self.snapshot(id)?.is_some() {
                return Err(StoreError::Exists { what: id.to_string() });
            }
            let volume = self.volume(of)?.ok_or_else(|| self.not_found(of))?;
            let record = SnapshotRecord {
                image: volume.image,
                volume: Some(of.to_string()),
                size: volume.size,
                data: 0,
                state: SnapshotState::Making,
                maker: self.instance.address().to_owned(),
                key: volume.key,
            };
            changes = changes.set(&snapshot_key(id), &record)?;
            begun.push(record);
        }
        self.books.change(&changes)?;
        Ok(begun)
    }

    /// Makes a snapshot that was begun.
    fn make(
        &self,
        (of, id): (VolumeId, SnapshotId),
        record: SnapshotRecord,
    ) -> Result<(), StoreError> {
        let name = id.to_string();
        self.with_image(of, &record.image, |image| image.snapshot(&name))?;
        self.note_complete(id, record)
    }

    fn note_complete(&self, id: SnapshotId, record: SnapshotRecord) -> Result<(), StoreError> {
        let image = Image::open_at(&self.cluster, &record.image, &id.to_string())?;
        let mut data = 0;
        let whole = (0, image_bytes(record.size));
        image.differences(None, whole, Exactness::Objects, &mut |it, exists| {
            data += if exists { it.length } else { 0 };
        })?;
        let record =
            SnapshotRecord { data, state: SnapshotState::Complete, maker: String::new(), ..record };
        self.books.set(&snapshot_key(id), &record)
    }

    fn is_open(&self, id: VolumeId) -> bool {
        matches!(self.volumes().get(&id), Some(State::Open(_)))
    }

    /// Returns a snapshot opened for reading; some stay open.
    fn opened(&self, id: SnapshotId, record: &SnapshotRecord) -> Result<Arc<Image>, StoreError> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = read.iter().position(|(open, _)| *open == id) {
            let found = read.remove(at);
            let image = Arc::clone(&found.1);
            read.push(found);
            return Ok(image);
        }
        let image = Arc::new(Image::open_at(&self.cluster, &record.image, &id.to_string())?);
        if read.len() == READ_MAX {
            read.remove(0);
        }
        read.push((id, Arc::clone(&image)));
        Ok(image)
    }

    fn close_read(&self, id: SnapshotId) {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).retain(|(open, _)| *open != id);
    }

    /// Removes a snapshot of an image that no server has locked. Succeeds if there is no such
    /// image.
    pub(super) fn remove_unlocked(&self, image: &str, name: &str) -> Result<(), StoreError> {
        match Image::open(&self.cluster, image) {
            Ok(image) => image.remove_snapshot(name),
            Err(error) if errno(&error) == Some(libc::ENOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn clone_image(
        &self,
        parent: &str,
        at: &str,
        name: &str,
        (has, wanted): (u64, u64),
    ) -> Result<(), StoreError> {
        self.make_image(name, &|name| image::clone(&self.cluster, (parent, at), name))?;
        if image_bytes(wanted) > image_bytes(has) {
            Image::open(&self.cluster, name)?.resize(image_bytes(wanted))
        } else {
            Ok(())
        }
    }

    /// Returns the images whose differences show where a snapshot differs from an older one; for
    /// each, the snapshot of it that it is compared with.
    fn sources(
        &self,
        id: SnapshotId,
        record: &SnapshotRecord,
        older: Option<SnapshotId>,
    ) -> Result<Vec<Source>, StoreError> {
        let image = self.opened(id, record)?;
        let Some(older) = older else { return Ok(vec![(image, None)]) };
        if older == id {
            return Ok(Vec::new());
        }
        let older_record = self.complete_one(older)?;
        let other = self.opened(older, &older_record)?;
        if older_record.image != record.image {
            // Of two different images, the data of both is reported.
            return Ok(vec![(image, None), (other, None)]);
        }
        // The cluster compares two states of one image; the image is opened at the later one.
        Ok(if image.is_later_than(&older.to_string())? {
            vec![(image, Some(older.to_string()))]
        } else {
            vec![(other, Some(id.to_string()))]
        })
    }

    fn filled(&self, id: SnapshotId, record: &SnapshotRecord) -> Result<Arc<Image>, StoreError> {
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = filling.get(&id) {
            return Ok(Arc::clone(image));
        }
        let image = Arc::new(self.open_locked(volume_of(record).unwrap_or(NOBODY), &record.image)?);
        filling.insert(id, Arc::clone(&image));
        Ok(image)
    }
}

impl Snapshots for Shared {
    fn begin(&self, of: VolumeId, id: SnapshotId) -> Result<Making, StoreError> {
        let mut made = self.begin_set(&[(of, id)])?;
        made.pop().ok_or(StoreError::NoSnapshot { id })
    }

    fn begin_set(&self, set: &[(VolumeId, SnapshotId)]) -> Result<Vec<Making>, StoreError> {
        let begun: Vec<_> = set.iter().copied().zip(self.note_begun(set)?).collect();
        let mut makings = Vec::new();
        for chunk in begun.chunks(AT_ONCE) {
            std::thread::scope(|scope| {
                let made: Vec<_> = chunk
                    .iter()
                    .map(|(ids, record)| {
                        let record = record.clone();
                        (ids, scope.spawn(move || self.make(*ids, record)))
                    })
                    .collect();
                for ((of, id), thread) in made {
                    let (sends, made) = channel();
                    let result = thread.join().unwrap_or(Err(StoreError::NoSnapshot { id: *id }));
                    if let Err(error) = &result {
                        tracing::error!(volume = %of, snapshot = %id, %error, "not made");
                    }
                    let _ = sends.send(result.is_ok());
                    makings.push(Making { is_open: self.is_open(*of), made });
                }
            });
        }
        Ok(makings)
    }

    fn delete(&self, id: SnapshotId) -> Result<(), StoreError> {
        let Some(record) = self.snapshot(id)? else { return Ok(()) };
        self.close_read(id);
        self.filling.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let changes = Changes::default().remove(&snapshot_key(id))?;
        if record.volume.is_none() {
            // Its image is its own.
            self.remove_unlocked(&record.image, &id.to_string())?;
            self.books.change(&changes.set(&gone_key(&record.image), &true)?)?;
            self.sweep_soon();
            return Ok(());
        }
        let volume = volume_of(&record).unwrap_or(NOBODY);
        match self.with_image(volume, &record.image, |image| image.remove_snapshot(&id.to_string()))
        {
            Err(error) if errno(&error) == Some(libc::ENOENT) => {}
            removed => removed?,
        }
        self.books.change(&changes)?;
        self.sweep_soon();
        Ok(())
    }

    fn list(&self) -> Vec<SnapshotInfo> {
        match self.books.all::<SnapshotRecord>("s/") {
            Ok(all) => {
                let known = |(id, record): (String, SnapshotRecord)| {
                    id.parse().ok().map(|id| info(id, &record))
                };
                let mut infos: Vec<SnapshotInfo> = all.into_iter().filter_map(known).collect();
                infos.sort_unstable_by_key(|info| info.id);
                infos
            }
            Err(error) => {
                let pool = self.cluster.place().name();
                tracing::error!(%pool, %error, "snapshots cannot be listed");
                Vec::new()
            }
        }
    }

    fn find(&self, id: SnapshotId) -> Option<SnapshotInfo> {
        self.snapshot(id).ok().flatten().map(|record| info(id, &record))
    }

    fn volume_of(&self, id: SnapshotId) -> Option<VolumeId> {
        let volume = self.find(id)?.volume?;
        self.volume(volume).ok().flatten().map(|_| volume)
    }

    fn create_volume(
        &self,
        id: VolumeId,
        size: ByteCount,
        of: SnapshotId,
    ) -> Result<(), StoreError> {
        let snapshot = self.complete_one(of)?;
        if let Some(present) = self.volume(id)? {
            if present.origin.as_deref() != Some(&of.to_string()) {
                return Err(StoreError::Exists { what: id.to_string() });
            }
            return same_size(id, ByteCount(present.size), size);
        }
        if size.0 < snapshot.size {
            let present = ByteCount(snapshot.size);
            return Err(StoreError::Size { id, present, asked: size });
        }
        let image = self.begin_image(&id)?;
        let name = of.to_string();
        self.clone_image(&snapshot.image, &name, &image, (snapshot.size, size.0))?;
        let made = self.made(&image)?;
        let origin = Some(name);
        let key = snapshot.key;
        let record = VolumeRecord { image, size: size.0, origin, key };
        self.books.change(&made.set(&volume_key(id), &record)?)
    }

    fn waiting(&self) -> Vec<VolumeId> {
        Vec::new()
    }

    fn units(
        &self,
        id: SnapshotId,
        older: Option<SnapshotId>,
        first: u64,
        max: usize,
    ) -> Result<Units, StoreError> {
        let record = self.complete_one(id)?;
        let sources = self.sources(id, &record, older)?;
        let sizes: Vec<u64> =
            sources.iter().map(|(image, _)| image.size()).collect::<Result<_, _>>()?;
        let end = image_bytes(record.size);
        let mut found = BTreeSet::new();
        let mut start = first.saturating_mul(UNIT_BYTES);
        let stop = end.min(start.saturating_add(COMPARED_BYTES * PIECES_MAX));
        while start < stop && found.len() <= max {
            let length = COMPARED_BYTES.min(end - start);
            for ((image, from), size) in sources.iter().zip(&sizes) {
                let range = (start, length.min(size.saturating_sub(start)));
                let is_compared = from.is_some();
                if range.1 == 0 {
                    continue;
                }
                image.differences(
                    from.as_deref(),
                    range,
                    Exactness::Bytes,
                    &mut |it, exists| {
                        if exists || is_compared {
                            let last = (it.offset + it.length - 1) / UNIT_BYTES;
                            found.extend((it.offset / UNIT_BYTES).max(first)..=last);
                        }
                    },
                )?;
            }
            start += length;
        }
        let next = if found.len() > max {
            found.iter().nth(max).copied()
        } else {
            (start < end).then(|| start.div_ceil(UNIT_BYTES))
        };
        Ok(Units { units: found.into_iter().take(max).collect(), next })
    }

    fn read(&self, id: SnapshotId, unit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let record = self.complete_one(id)?;
        let image = self.opened(id, &record)?;
        let end = image_bytes(record.size);
        let offset = unit.saturating_mul(UNIT_BYTES);
        let length = UNIT_BYTES.min(end.saturating_sub(offset));
        if length == 0 {
            return Ok(None);
        }
        let mut has_data = false;
        let range = (offset, length);
        image.differences(None, range, Exactness::Bytes, &mut |_, exists| has_data |= exists)?;
        if !has_data {
            return Ok(None);
        }
        let mut bytes = vec![0; UNIT_BYTES as usize];
        let read = &mut bytes[..length as usize];
        image.read(offset, read)?;
        if let Some(cipher) = self.cipher(volume_of(&record).unwrap_or(NOBODY), &record.key)? {
            decrypt(&cipher, offset, read);
        }
        Ok(Some(bytes))
    }

    fn start(
        &self,
        id: SnapshotId,
        size: ByteCount,
        parent: Option<SnapshotId>,
        is_encrypted: bool,
    ) -> Result<(), StoreError> {
        if let Some(present) = self.snapshot(id)? {
            return if present.state == SnapshotState::Filling && present.size == size.0 {
                Ok(())
            } else {
                Err(StoreError::Exists { what: id.to_string() })
            };
        }
        let parent = parent.map(|parent| Ok((parent, self.complete_one(parent)?))).transpose()?;
        if let Some((_, parent_record)) = &parent
            && size.0 < parent_record.size
        {
            let present = ByteCount(parent_record.size);
            return Err(StoreError::Size { id: NOBODY, present, asked: size });
        }
        let image = self.begin_image(&format!("fill-{id}"))?;
        let key = match parent {
            Some((parent, parent_record)) => {
                self.clone_image(
                    &parent_record.image,
                    &parent.to_string(),
                    &image,
                    (parent_record.size, size.0),
                )?;
                parent_record.key
            }
            None => {
                let key = if is_encrypted { self.new_key(NOBODY)? } else { String::new() };
                self.make_empty(&image, size.0)?;
                key
            }
        };
        let made = self.made(&image)?;
        let state = SnapshotState::Filling;
        let volume = None;
        let maker = String::new();
        let record = SnapshotRecord { image, volume, size: size.0, data: 0, state, maker, key };
        self.books.change(&made.set(&snapshot_key(id), &record)?)
    }

    fn put(&self, id: SnapshotId, unit: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let record = self.snapshot(id)?.filter(|record| record.state == SnapshotState::Filling);
        let record = record.ok_or(StoreError::NoSnapshot { id })?;
        let offset = unit.saturating_mul(UNIT_BYTES);
        let length = UNIT_BYTES.min(record.size.saturating_sub(offset));
        if bytes.len() as u64 != length || length == 0 {
            let why = format!(
                "unit {unit} has {length} bytes of its {}, and {} were put",
                record.size,
                bytes.len()
            );
            return Err(StoreError::Unit { id, why });
        }
        let image = self.filled(id, &record)?;
        let Some(cipher) = self.cipher(volume_of(&record).unwrap_or(NOBODY), &record.key)? else {
            return image.write(offset, bytes);
        };
        let mut blocks = bytes.to_vec();
        blocks.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        cipher.encrypt(offset / BLOCK_BYTES as u64, &mut blocks);
        image.write(offset, &blocks)
    }

    fn complete(&self, id: SnapshotId) -> Result<(), StoreError> {
        let record = self.named(id)?;
        match record.state {
            SnapshotState::Complete => return Ok(()),
            SnapshotState::Making => return Err(StoreError::Unready { what: id.to_string() }),
            SnapshotState::Filling => {}
        }
        let image = self.filled(id, &record)?;
        let name = id.to_string();
        match image.snapshot(&name) {
            // Made by an earlier attempt, after which more units may have been put.
            Err(error) if errno(&error) == Some(libc::EEXIST) => {
                image.remove_snapshot(&name)?;
                image.snapshot(&name)?;
            }
            made => made?,
        }
        drop(image);
        self.filling.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.note_complete(id, record)
    }
}
