//! The model: hosts, volumes, and the contents of their blocks.

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::admission::Reserved;
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::qos::sharing::InstancePacing;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{Attachment, HostAddress, VolumeState};
use std::collections::BTreeSet;

pub const BLOCK_BYTES: u32 = 4_096;
/// The stamp of a block that was never written.
pub const ZEROES: u64 = 0;

/// A host that volumes can be attached to.
#[derive(Clone, Debug)]
pub struct Host {
    pub id: InstanceId,
    pub address: HostAddress,
    /// Limit in I/Os per second, if it has one.
    pub iops: Option<u64>,
}

impl Host {
    pub fn pacing(&self) -> Option<InstancePacing> {
        let operations = Some(Limit { per_second: self.iops?, credit: None });
        Some(InstancePacing { operations, ..InstancePacing::UNLIMITED })
    }

    pub fn attachment(&self) -> Attachment {
        Attachment { host: self.id, address: self.address }
    }
}

/// Possible contents of a block: one stamp, or several if writes may have been done or not.
pub type Stamps = BTreeSet<u64>;

/// A volume and its contents.
#[derive(Debug)]
pub struct Volume {
    pub id: VolumeId,
    pub iops: Option<u64>,
    pub attachments: Vec<Attachment>,
    pub blocks: Vec<Stamps>,
    /// Blocks with a request in flight: no other request is sent to them.
    pub busy: BTreeSet<u32>,
    /// Blocks with a write of a connection that is closed: it may still be done.
    pub ghosts: BTreeSet<u32>,
}

impl Volume {
    pub fn new(id: VolumeId, blocks: u32) -> Self {
        let mut volume = Self {
            id,
            iops: None,
            attachments: Vec::new(),
            blocks: Vec::new(),
            busy: BTreeSet::new(),
            ghosts: BTreeSet::new(),
        };
        volume.grow(blocks);
        volume
    }

    pub fn grow(&mut self, blocks: u32) {
        self.blocks.resize(blocks as usize, Stamps::from([ZEROES]));
    }

    pub fn size(&self) -> ByteCount {
        ByteCount(self.blocks.len() as u64 * u64::from(BLOCK_BYTES))
    }

    pub fn state(&self) -> VolumeState {
        let operations = self.iops.map(|per_second| Limit { per_second, credit: None });
        VolumeState {
            id: self.id,
            size: self.size(),
            pacing: Pacing { operations, ..Pacing::UNLIMITED },
            balances: Balances::default(),
            unleased: Balances::default(),
            reserved: Reserved::NOTHING,
            attachments: self.attachments.clone(),
            is_encrypted: false,
        }
    }

    /// Returns whether the volume can be reached from `peer`.
    pub fn allows(&self, peer: HostAddress) -> bool {
        self.attachments.iter().any(|attachment| attachment.address == peer)
    }

    /// Returns a block without requests; `None` if there is none.
    pub fn idle(&self, nth: u64) -> Option<u32> {
        let is_idle = |block: &u32| !self.busy.contains(block) && !self.ghosts.contains(block);
        let idle: Vec<u32> = (0..self.blocks.len() as u32).filter(is_idle).collect();
        idle.get(nth as usize % idle.len().max(1)).copied()
    }
}

/// Returns the bytes of a block with this stamp. They identify volume, block and stamp.
pub fn bytes(volume: VolumeId, block: u32, stamp: u64) -> Vec<u8> {
    if stamp == ZEROES {
        return vec![0; BLOCK_BYTES as usize];
    }
    let words = [stamp, volume.bits() as u64, block.into(), !stamp];
    let unit: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    unit.repeat(BLOCK_BYTES as usize / unit.len())
}

/// Returns the stamp of bytes that were read, which must be valid.
pub fn stamp(volume: VolumeId, block: u32, read: &[u8]) -> u64 {
    let stamp = u64::from_le_bytes(read[..8].try_into().unwrap());
    assert!(
        read == bytes(volume, block, stamp),
        "block {block} of {volume} is not as anybody wrote it: {:?}...",
        &read[..32]
    );
    stamp
}
