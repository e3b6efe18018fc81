//! Overview of a pool for people: reads the superblock, both tables and the volumes' anchors, and
//! writes nothing. While a server has the pool open, it shows the present contents of the device.

use super::BLOCK_BYTES;
use super::device::{Device, read_readable};
use super::discovery::read_superblock;
use super::format::{Anchor, Identity, Node, NodeKind, OWNERS, Owner};
use super::pool::CHUNK_BYTES;
use super::table::Image;
use crate::StoreError;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use std::collections::BTreeMap;

/// Overview of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// The pool's identity.
    pub identity: u128,
    /// Number of openings.
    pub session: u32,
    /// Size in bytes, including its own tables.
    pub size: ByteCount,
    /// Maximum size in bytes.
    pub size_max: ByteCount,
    /// Bytes of chunks without an owner.
    pub free: ByteCount,
    /// Number of sectors of its tables of which neither copy is valid.
    pub damaged: usize,
    /// Volumes and snapshots, in the order of their nodes.
    pub items: Vec<Inspected>,
}

/// A volume, a snapshot, or the rest of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspected {
    /// The number of its node.
    pub node: u32,
    /// Its id.
    pub id: String,
    /// Its kind, for people.
    pub kind: &'static str,
    /// Size in bytes for its user.
    pub size: ByteCount,
    /// Bytes of the pool that it owns; 0 for a snapshot, whose blocks are in those of its volume.
    pub owned: ByteCount,
    /// Bytes of data, as of its last checkpoint; `None` if that cannot be read.
    pub data: Option<ByteCount>,
    /// Whether its data is encrypted.
    pub is_encrypted: bool,
    /// The id of the volume that a snapshot was made of, or of the snapshot that a volume was made
    /// of.
    pub parent: Option<String>,
}

fn id_of(node: &Node) -> String {
    if node.has_space() {
        VolumeId::from_bits(node.id).to_string()
    } else {
        SnapshotId::from_bits(node.id).to_string()
    }
}

const fn kind_of(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Volume => "volume",
        NodeKind::Deleting => "volume being deleted",
        NodeKind::Snapshot => "snapshot",
        NodeKind::SnapshotPending => "snapshot being made",
        NodeKind::SnapshotDeleted => "deleted snapshot",
        NodeKind::Husk => "deleted volume with snapshots",
        NodeKind::Filling => "snapshot being filled",
    }
}

/// Reads the overview of a pool.
///
/// # Errors
/// When the device holds no pool that this version reads, or fails.
pub fn inspect(device: &dyn Device) -> Result<Inspection, StoreError> {
    let superblock = read_superblock(device)?;
    let failed = |error| StoreError::io(format!("read {}", device.path().display()), error);
    let read = |table| Image::read(device, table).map_err(failed);
    let nodes = read(superblock.node_table())?;
    let owners = read(superblock.owner_table())?;
    let mut all = BTreeMap::new();
    for number in 1..superblock.node_sectors {
        let Some(payload) = nodes.get(number as usize) else { break };
        if let Ok(Some(node)) = Node::decode(payload) {
            all.insert(number, node);
        }
    }
    let mut owned = BTreeMap::<u32, u64>::new();
    let mut free = 0;
    for chunk in superblock.first_chunk..superblock.chunks {
        let owner = owners.get(chunk as usize / OWNERS);
        let owner = owner.map_or(0, |payload| Owner::decode(chunk as usize, payload).node);
        let is_unknown = nodes.damaged.iter().any(|damage| damage.sector == owner as usize);
        match all.contains_key(&owner) {
            false if is_unknown && owner != 0 => {}
            true => *owned.entry(owner).or_default() += CHUNK_BYTES,
            false => free += CHUNK_BYTES,
        }
    }
    let mut items = Vec::new();
    for (number, node) in &all {
        items.push(Inspected {
            node: *number,
            id: id_of(node),
            kind: kind_of(node.kind),
            size: ByteCount(node.size),
            owned: ByteCount(owned.get(number).copied().unwrap_or(0)),
            data: data_of(device, *number, node).map_err(failed)?,
            is_encrypted: node.is_encrypted,
            parent: all.get(&node.parent).map(id_of),
        });
    }
    let bytes = |chunks: u64| ByteCount(chunks * CHUNK_BYTES);
    Ok(Inspection {
        identity: superblock.identity,
        session: superblock.session,
        size: bytes(superblock.chunks.into()),
        size_max: bytes(u64::from(superblock.owner_sectors) * OWNERS as u64),
        free: ByteCount(free),
        damaged: nodes.damaged.len() + owners.damaged.len(),
        items,
    })
}

/// Returns the bytes of data according to the anchor of a volume, or the root of a snapshot.
fn data_of(device: &dyn Device, number: u32, node: &Node) -> std::io::Result<Option<ByteCount>> {
    let bytes = |blocks: u64| ByteCount(blocks.saturating_mul(BLOCK_BYTES as u64));
    if !node.has_space() {
        return Ok(Some(bytes(node.root.data_blocks)));
    }
    if node.home == 0 {
        return Ok(Some(ByteCount(0)));
    }
    let mut copies = vec![0; 2 * BLOCK_BYTES];
    // One copy suffices.
    read_readable(device, u64::from(node.home) * CHUNK_BYTES, &mut copies)?;
    let identity = Identity { node: number, generation: node.generation };
    Ok(Anchor::newest(&copies, identity).map(|anchor| bytes(anchor.data_blocks)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use crate::local::device::FileDevice;
    use crate::local::discovery::FILE;
    use crate::local::pool::LocalPool;

    #[test]
    fn inspect_shows_the_contents_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let pool = LocalPool::in_folder(folder.path(), None).unwrap();
        let volume = VolumeId::from_bits(1);
        let size = ByteCount(8 << 20);
        let snapshot = SnapshotId::from_bits(2);
        let clone = VolumeId::from_bits(3);
        pool.create(volume, size).unwrap();
        assert!(pool.snapshot(volume, snapshot).unwrap().made.recv().unwrap());
        pool.create_from(clone, size, snapshot).unwrap();
        let path = folder.path().join(FILE);
        let before = std::fs::read(&path).unwrap();
        let found = inspect(&FileDevice::open_to_read(&path).unwrap()).unwrap();
        assert_eq!((found.session, found.damaged), (1, 0));
        let shown: Vec<_> = found
            .items
            .iter()
            .map(|item| (item.id.clone(), item.kind, item.parent.clone()))
            .collect();
        let volume = volume.to_string();
        let snapshot = snapshot.to_string();
        let clone = clone.to_string();
        assert_eq!(
            shown,
            [
                (volume.clone(), "volume", None),
                (snapshot.clone(), "snapshot", Some(volume)),
                (clone, "volume", Some(snapshot)),
            ]
        );
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}
