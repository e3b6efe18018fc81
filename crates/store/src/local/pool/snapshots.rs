//! Snapshots of the pool: making, deleting, reading and comparing them, and making volumes of them.
//!
//! A snapshot is a node with the root of a map; its blocks are in the chunks of its volume. A
//! deleted one whose blocks volumes that were made of it still use stays until these are gone.

use super::{LocalPool, Shared};
use crate::StoreError;
use crate::encryption::crypt::Cipher;
use crate::local::format::{Node, NodeKind, SnapshotRoot, SnapshotSet};
use crate::local::tree::{FANOUT, Missing, Tree, page_from};
use crate::local::volume::{Note, Task};
use crate::local::{BLOCK_BYTES, Pointer, checksum};
use crate::snapshots::{Making, SnapshotInfo, UNIT_BYTES, Units};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Blocks of 4 KiB in the unit in which snapshots are read, compared and filled.
pub const UNIT_BLOCKS: u64 = UNIT_BYTES / BLOCK_BYTES as u64;

impl Shared {
    /// Makes a durable change of nodes that a volume requests. Returns whether that succeeded.
    pub(super) fn note(&self, note: &Note) -> bool {
        let done = match note {
            Note::Made(nodes, root) => self.note_made(nodes, *root),
            Note::Reclaimed(node) => self.note_reclaimed(*node),
            Note::Returned(node, chunks) => self.state().take_back(*node, chunks),
            Note::Held => self.claim.hold(),
        };
        if let Err(error) = &done {
            tracing::error!(%error, pool = %self.device.path().display(), "cannot note {note:?}");
        }
        done.is_ok()
    }

    fn note_made(&self, nodes: &[u32], root: SnapshotRoot) -> io::Result<()> {
        let mut state = self.state();
        let made = |number: &u32| {
            // One with a map is noted a second time after a crash, and keeps its map.
            let node = *state.all.get(number).filter(|node| node.root.checkpoint == 0)?;
            let kind = match node.kind {
                // One of a set is complete when all of the set are made.
                NodeKind::SnapshotPending if node.set.id == 0 => NodeKind::Snapshot,
                kind => kind,
            };
            Some((*number, Node { kind, root, ..node }))
        };
        let made: Vec<_> = nodes.iter().filter_map(made).collect();
        state.write_nodes(made.iter().copied())?;
        for (_, node) in made {
            self.settle_set(&mut state, node.set);
        }
        let volumes: Vec<u32> =
            nodes.iter().filter_map(|node| state.all.get(node)).map(|node| node.parent).collect();
        volumes.into_iter().for_each(|volume| self.want_reclaim(&state, volume));
        Ok(())
    }

    /// Decides a set of snapshots, if possible. If the device fails, the next opening of the pool
    /// decides it.
    pub(super) fn settle_set(&self, state: &mut super::state::State, set: SnapshotSet) {
        match state.settle_set(set) {
            Ok(volumes) => {
                volumes.into_iter().for_each(|volume| self.want_reclaim(state, volume));
            }
            Err(error) => {
                let pool = self.device.path().display();
                tracing::error!(%error, %pool, "a set of snapshots cannot be settled");
            }
        }
    }

    fn note_reclaimed(&self, number: u32) -> io::Result<()> {
        let mut state = self.state();
        let Some(volume) = state.all.get(&number).map(|node| node.parent) else { return Ok(()) };
        state.clear_nodes(&[number])?;
        self.mail().reclaiming.remove(&volume);
        self.want_reclaim(&state, volume);
        Ok(())
    }

    /// Clears the nodes of deleted snapshots that were never begun, so that failures do not fill
    /// the table while their volume is open. A snapshot of a set stays, because its node decides
    /// about the others. If the device fails, the next deletion of a snapshot or the next opening
    /// of the volume clears the nodes.
    fn clear_unmade(&self, state: &mut super::state::State) {
        let is_left = |number: &u32| {
            state.all.get(number).is_some_and(|node| {
                node.kind == NodeKind::SnapshotDeleted
                    && node.root.checkpoint == 0
                    && node.set.id == 0
            })
        };
        let numbers: Vec<u32> = self.mail().unmade.iter().copied().filter(is_left).collect();
        if numbers.is_empty() {
            return;
        }
        match state.clear_nodes(&numbers) {
            Ok(()) => self.mail().unmade.retain(|number| state.all.contains_key(number)),
            Err(error) => {
                let pool = self.device.path().display();
                tracing::warn!(%error, %pool, "the nodes of failed snapshots cannot be cleared");
            }
        }
    }

    /// Replaces the reclaim task of a volume that was opened. The old task may name maps that were
    /// not made yet, or another snapshot than the one whose reclaim has begun.
    pub(super) fn ask_reclaim_anew(&self, state: &super::state::State, volume: u32) {
        let mut mail = self.mail();
        mail.reclaiming.remove(&volume);
        if let Some(tasks) = mail.tasks.get_mut(&volume) {
            tasks.retain(|task| !matches!(task, Task::Reclaim(_)));
        }
        drop(mail);
        self.want_reclaim(state, volume);
    }

    /// Requests that a volume free the blocks of its next deleted snapshot, if there is one.
    pub(super) fn want_reclaim(&self, state: &super::state::State, volume: u32) {
        let mut mail = self.mail();
        // One at a time, since each changes the neighbours of the next.
        if let Some(doomed) = state.doomed_of(volume)
            && mail.reclaiming.insert(volume)
        {
            mail.tasks.entry(volume).or_default().push_back(Task::Reclaim(doomed));
        }
    }
}

impl LocalPool {
    /// Begins a snapshot of a volume. If the volume is open, its store makes it as soon as
    /// [`crate::Store::attend`] is called; otherwise it is made when this returns.
    ///
    /// # Errors
    /// When there is no such volume, the id is taken, or the device fails.
    pub fn snapshot(&self, of: VolumeId, id: SnapshotId) -> Result<Making, StoreError> {
        let (volume, _) = self.find(&self.state(), of)?;
        self.snapshot_of(volume, id)
    }

    /// Begins a snapshot of a volume's node.
    pub(super) fn snapshot_of(&self, volume: u32, id: SnapshotId) -> Result<Making, StoreError> {
        let mut begun = self.begin_snapshots(&[(volume, id)])?;
        begun.pop().ok_or(StoreError::NoSnapshot { id })
    }

    /// Begins snapshots of several volumes, all or none.
    pub(super) fn snapshot_set(
        &self,
        set: &[(VolumeId, SnapshotId)],
    ) -> Result<Vec<Making>, StoreError> {
        let nodes = {
            let state = self.state();
            let node = |(of, id): &(VolumeId, SnapshotId)| Ok((self.find(&state, *of)?.0, *id));
            set.iter().map(node).collect::<Result<Vec<_>, StoreError>>()?
        };
        self.begin_snapshots(&nodes)
    }

    fn begin_snapshots(&self, set: &[(u32, SnapshotId)]) -> Result<Vec<Making>, StoreError> {
        let begun = self.make_pending(set)?;
        let mut makings = Vec::new();
        for &(volume, _) in set {
            if !self.shared.open().contains(&volume)
                && let Err(error) = self.tend_one(volume)
            {
                let numbers: Vec<u32> = begun.iter().map(|(number, _)| *number).collect();
                // If this fails, too, the next opening finds that the set is not complete.
                let _ = self.delete_nodes(&numbers, true);
                return Err(error);
            }
        }
        for (&(volume, _), (_, made)) in set.iter().zip(begun) {
            let is_open = self.shared.open().contains(&volume);
            makings.push(Making { is_open, made });
        }
        Ok(makings)
    }

    /// Creates the nodes of snapshots, and the tasks of their volumes. Returns the number of each,
    /// and the receiver of its result.
    fn make_pending(
        &self,
        set: &[(u32, SnapshotId)],
    ) -> Result<Vec<(u32, Receiver<bool>)>, StoreError> {
        let doing =
            || format!("make {}", set.first().map_or(String::new(), |entry| entry.1.to_string()));
        let mut state = self.state();
        let together = match set.len() {
            0 | 1 => SnapshotSet::default(),
            count => SnapshotSet { id: state.next_session(), count: count as u32 },
        };
        let mut nodes = Vec::new();
        for &(volume, id) in set {
            let Some(node) = state.all.get(&volume).copied() else {
                return Err(StoreError::NoSnapshot { id });
            };
            if state.snapshots.contains_key(&id) {
                return Err(StoreError::Exists { what: id.to_string() });
            }
            let snapshot = Node::new(NodeKind::SnapshotPending, id.bits(), node.size, volume);
            nodes.push((Node { set: together, ..snapshot }, state.key_of(volume).to_vec()));
        }
        let numbers = state.make_nodes(nodes).map_err(self.io(doing()))?;
        let numbers = numbers.ok_or_else(|| self.io(doing())(state.table_is_full()))?;
        // Locked before such a volume can be opened, which would remove snapshots for which no
        // caller waits.
        let mut mail = self.shared.mail();
        let mut begun = Vec::new();
        for (&(volume, _), number) in set.iter().zip(numbers) {
            let (sender, made) = sync_channel(1);
            // Another node may have had this number.
            mail.unmade.remove(&number);
            mail.waiting.insert(number, (volume, sender));
            mail.tasks.entry(volume).or_default().push_back(Task::Snapshot(number));
            begun.push((number, made));
        }
        Ok(begun)
    }

    /// Deletes a snapshot. Succeeds if there is none. Its volume frees the blocks: at once if it is
    /// not open, otherwise when its store attends to the pool.
    ///
    /// # Errors
    /// When the device fails.
    pub fn delete_snapshot(&self, id: SnapshotId) -> Result<(), StoreError> {
        self.delete_snapshots(&[id], false)
    }

    /// Deletes several snapshots, as [`Self::delete_snapshot`]. `is_undone` if they are a set that
    /// cannot be made: after a crash either none of them exists, or all may still be made.
    pub(super) fn delete_snapshots(
        &self,
        ids: &[SnapshotId],
        is_undone: bool,
    ) -> Result<(), StoreError> {
        for &id in ids {
            self.desk.forget(id);
            self.delete_filling(id)?;
        }
        let numbers: Vec<u32> = {
            let state = self.state();
            ids.iter().filter_map(|id| Some(state.snapshot(*id)?.0)).collect()
        };
        self.delete_nodes(&numbers, is_undone)?;
        self.try_again();
        Ok(())
    }

    fn delete_nodes(&self, numbers: &[u32], is_undone: bool) -> Result<(), StoreError> {
        let deleted: Vec<(u32, Node)> = {
            let mut state = self.state();
            let deleted = |number: &u32| {
                let node = *state.all.get(number)?;
                // The others of its set stay, unless the set is undone.
                let set = if is_undone { SnapshotSet::default() } else { node.set };
                Some((*number, Node { kind: NodeKind::SnapshotDeleted, set, ..node }))
            };
            let deleted: Vec<_> = numbers.iter().filter_map(deleted).collect();
            let doing = || {
                let names = deleted.iter().map(|(_, node)| SnapshotId::from_bits(node.id));
                format!("delete {}", Vec::from_iter(names.map(|id| id.to_string())).join(", "))
            };
            let written = state.write_nodes(deleted.iter().copied());
            written.map_err(self.io(doing()))?;
            if is_undone {
                self.shared.mail().take_back(&deleted);
            }
            self.shared.clear_unmade(&mut state);
            for (_, node) in &deleted {
                self.shared.settle_set(&mut state, node.set);
                self.shared.want_reclaim(&state, node.parent);
            }
            deleted
        };
        for (_, node) in deleted {
            // If its blocks cannot be freed now, that is recorded as the volume's trouble.
            self.tend(node.parent);
        }
        Ok(())
    }

    /// All snapshots, in the order of their ids.
    #[must_use]
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let state = self.state();
        let filling = state.filling.iter().filter(|(id, _)| !state.snapshots.contains_key(id));
        let mut numbers: Vec<_> = state.snapshots.iter().chain(filling).collect();
        numbers.sort_unstable();
        numbers
            .into_iter()
            .filter_map(|(id, number)| Some(state.info(*id, state.all.get(number)?)))
            .collect()
    }

    /// Creates a volume with the data of a snapshot, without copying. It is at least as large.
    ///
    /// # Errors
    /// When there is no such snapshot, the size is less than its, there is a volume of this id, or
    /// the device fails.
    pub fn create_from(
        &self,
        id: VolumeId,
        size: ByteCount,
        snapshot: SnapshotId,
    ) -> Result<(), StoreError> {
        let mut state = self.state();
        let (parent, node) = self.complete_snapshot(&state, snapshot)?;
        if size.0 < node.size {
            return Err(StoreError::Size { id, present: ByteCount(node.size), asked: size });
        }
        if state.volumes.contains_key(&id) {
            return Err(StoreError::Exists { what: id.to_string() });
        }
        let key = state.key_of(parent).to_vec();
        self.make_volume(&mut state, id, size, parent, &key)
    }

    pub(super) fn complete_snapshot(
        &self,
        state: &super::state::State,
        id: SnapshotId,
    ) -> Result<(u32, Node), StoreError> {
        match state.snapshot(id) {
            Some((_, node)) if node.kind != NodeKind::Snapshot => {
                Err(StoreError::Unready { what: id.to_string() })
            }
            Some(found) => Ok(found),
            None => Err(StoreError::NoSnapshot { id }),
        }
    }

    /// Opens a snapshot to be read. It is kept until the reader is dropped.
    ///
    /// # Errors
    /// When there is no such snapshot, or it is being made.
    pub fn read_snapshot(&self, id: SnapshotId) -> Result<SnapshotReader, StoreError> {
        let mut state = self.state();
        let (number, node) = self.complete_snapshot(&state, id)?;
        let cipher = self.shared.cipher(&state, number, &node)?;
        *state.readers.entry(number).or_default() += 1;
        drop(state);
        let tree = Tree::new(node.root.height, node.root.map);
        // A desk of its own, since the pool's may keep this reader.
        let pool = Self { desk: Arc::default(), ..self.clone() };
        let size = ByteCount(node.size);
        let cipher = cipher.map(Arc::new);
        Ok(SnapshotReader { pool, number, volume: node.parent, id, tree, size, cipher })
    }
}

/// Reader of a snapshot. It verifies the checksum of every block.
#[derive(Debug)]
pub struct SnapshotReader {
    pool: LocalPool,
    number: u32,
    volume: u32,
    id: SnapshotId,
    tree: Tree,
    size: ByteCount,
    cipher: Option<Arc<Cipher>>,
}

/// Blocks of a snapshot that were located but not read yet.
pub(super) struct Located {
    first: u64,
    pointers: Vec<Pointer>,
    cipher: Option<Arc<Cipher>>,
}

impl LocalPool {
    /// Reads located blocks of a snapshot. Holes are zeroes.
    pub(super) fn read_located(
        &self,
        id: SnapshotId,
        located: &Located,
    ) -> Result<Vec<u8>, StoreError> {
        let pointers = &located.pointers;
        let mut bytes = vec![0; pointers.len() * BLOCK_BYTES];
        let mut from = 0;
        while from < pointers.len() {
            // Contiguous blocks are read with one operation.
            let follows = |(one, next): (&Pointer, &Pointer)| {
                one.block != 0 && one.block.checked_add(1) == Some(next.block)
            };
            let piece = &pointers[from..];
            let count = 1 + piece.iter().zip(&piece[1..]).take_while(|pair| follows(*pair)).count();
            let part = &mut bytes[from * BLOCK_BYTES..(from + count) * BLOCK_BYTES];
            if piece[0].block != 0 {
                self.read_run("data", id, &piece[..count], part)?;
                if let Some(cipher) = &located.cipher {
                    cipher.decrypt(located.first + from as u64, part);
                }
            }
            from += count;
        }
        Ok(bytes)
    }

    /// Reads contiguous blocks, and verifies the checksum of each.
    fn read_run(
        &self,
        what: &str,
        id: SnapshotId,
        pointers: &[Pointer],
        bytes: &mut [u8],
    ) -> Result<(), StoreError> {
        let offset = u64::from(pointers[0].block) * BLOCK_BYTES as u64;
        let read = self.shared.device.read(offset, bytes);
        read.map_err(self.io(format!("read {what} of {id}")))?;
        for (pointer, block) in pointers.iter().zip(bytes.chunks_exact(BLOCK_BYTES)) {
            if checksum(block) != pointer.checksum {
                let place = self.shared.device.path().display();
                let what = format!("{what} of {id}, block {} of {place}", pointer.block);
                return Err(StoreError::Rotten { what });
            }
        }
        Ok(())
    }
}

/// Pages that a reader keeps in memory.
const PAGES_MAX: usize = 64;

impl SnapshotReader {
    /// Bytes of the snapshot.
    #[must_use]
    pub fn size(&self) -> ByteCount {
        self.size
    }

    fn fetch(&self, missing: Missing) -> Result<Arc<crate::local::tree::Page>, StoreError> {
        let mut bytes = [0; BLOCK_BYTES];
        self.pool.read_run("a page", self.id, &[missing.pointer], &mut bytes)?;
        Ok(page_from(&bytes))
    }

    /// Returns the entries of a leaf of the map; `None` if all of it is a hole.
    fn leaf(&mut self, leaf: u64) -> Result<Option<Arc<crate::local::tree::Page>>, StoreError> {
        self.tree.shrink(PAGES_MAX, u64::MAX);
        loop {
            match self.tree.leaf(leaf).map(|page| page.cloned()) {
                Ok(page) => return Ok(page),
                Err(missing) => {
                    let page = self.fetch(missing)?;
                    self.tree.install(missing, page);
                }
            }
        }
    }

    /// Reads a block of 4 KiB; `None` if it is a hole, which reads as zeroes.
    ///
    /// # Errors
    /// When it has rotted, or the device fails.
    pub fn read(&mut self, block: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let located = self.locate(block, 1)?;
        located.map(|located| self.pool.read_located(self.id, &located)).transpose()
    }

    /// Locates blocks, all of one leaf; `None` if all of them are holes.
    pub(super) fn locate(&mut self, first: u64, count: u64) -> Result<Option<Located>, StoreError> {
        let Some(page) = self.leaf(first / FANOUT)? else { return Ok(None) };
        let start = (first % FANOUT) as usize;
        let entries = &page[start..start + count as usize];
        let pointers: Vec<_> = entries.iter().map(|entry| Pointer::from_bits(*entry)).collect();
        let cipher = self.cipher.clone();
        let is_any = pointers.iter().any(|pointer| pointer.block != 0);
        Ok(is_any.then_some(Located { first, pointers, cipher }))
    }

    /// Returns the units of 512 KiB from `first` on in which this snapshot differs from an older
    /// one, or in which it has data if there is no older one: at most `max` of them, and the unit
    /// at which to continue.
    ///
    /// # Errors
    /// When a page has rotted, or the device fails.
    pub fn changed(
        &mut self,
        mut older: Option<&mut Self>,
        first: u64,
        max: usize,
    ) -> Result<Units, StoreError> {
        let units = FANOUT / UNIT_BLOCKS;
        let leaves = self.size.0.div_ceil(FANOUT * BLOCK_BYTES as u64);
        let mut nothing = Tree::new(0, Pointer::default());
        let mut found = Vec::new();
        let mut leaf = first / units;
        while leaf < leaves {
            let other = older.as_mut().map_or(&mut nothing, |older| &mut older.tree);
            match self.tree.same_leaves(other, leaf) {
                Ok(0) => {}
                Ok(same) => {
                    leaf += same;
                    continue;
                }
                Err((missing, is_other)) => {
                    let page = self.fetch(missing)?;
                    let tree = if is_other { other } else { &mut self.tree };
                    tree.install(missing, page);
                    continue;
                }
            }
            let here = self.leaf(leaf)?;
            let there = match &mut older {
                Some(older) => older.leaf(leaf)?,
                None => None,
            };
            for unit in 0..units {
                let range = (unit * UNIT_BLOCKS) as usize..((unit + 1) * UNIT_BLOCKS) as usize;
                let part = |page: &Option<Arc<crate::local::tree::Page>>| {
                    page.as_ref().map_or([0; UNIT_BLOCKS as usize], |page| {
                        let mut part = [0; UNIT_BLOCKS as usize];
                        part.copy_from_slice(&page[range.clone()]);
                        part
                    })
                };
                let number = leaf * units + unit;
                if number < first || part(&here) == part(&there) {
                    continue;
                }
                if found.len() == max {
                    return Ok(Units { units: found, next: Some(number) });
                }
                found.push(number);
            }
            leaf += 1;
        }
        Ok(Units { units: found, next: None })
    }
}

impl Drop for SnapshotReader {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        if let Some(readers) = state.readers.get_mut(&self.number) {
            *readers -= 1;
            if *readers == 0 {
                state.readers.remove(&self.number);
                self.pool.shared.want_reclaim(&state, self.volume);
            }
        }
        let is_wanted = state.doomed_of(self.volume).is_some();
        drop(state);
        if is_wanted {
            self.pool.tend(self.volume);
        }
    }
}
