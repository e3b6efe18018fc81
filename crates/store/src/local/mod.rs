//! The local store: volumes in one pool, a block device or a file. Every block of 4 KiB has a
//! checksum that is verified when it is read. A write goes to a free block, and a log makes the
//! changed pointers and checksums durable. docs/internals/disk_format.md describes the bytes, and
//! explains the order of writes.
//!
//! ```text
//!   format           the bytes of superblock, nodes, owners, anchors and log blocks
//!   table            arrays of sectors, kept twice: the nodes, and the owners of chunks
//!   tree             pages of pointers in memory, and their changes for a checkpoint
//!   bits             one for each block of a chunk
//!   space            the free blocks of a volume's chunks
//!   volume           one open volume: requests, commits, checkpoints, recovery
//!   pool             makes, opens and deletes volumes, and gives them chunks
//!   discovery        the device or file that is the pool of a data folder
//!   check            checks all references and counts of a pool that is not open
//!   inspect          shows the contents of a pool
//!   ack_log          changes that were answered and are not in the log yet
//!   page_cache_file  files that outlive the process
//!   device           the device or file of a pool
//!   simulated, packed  disks in memory, for tests
//! ```

pub mod ack_log;
pub mod bits;
pub mod check;
pub mod device;
pub mod discovery;
pub mod format;
pub mod inspect;
pub mod packed;
pub mod page_cache_file;
pub mod pool;
pub mod simulated;
pub mod space;
pub mod table;
pub mod tree;
pub mod volume;

#[cfg(test)]
mod tests;

/// Bytes of a block: the unit of checksums and of atomic writes.
pub const BLOCK_BYTES: usize = 4_096;
/// Blocks of a chunk, the unit in which volumes own the pool: 1 MiB.
pub const CHUNK_BLOCKS: u32 = 256;

/// The place of a block, and its checksum. Block 0 is the superblock's; as a pointer it is a hole,
/// and reads as zeroes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Pointer {
    /// The block of the pool.
    pub block: u32,
    /// CRC-32C of its bytes.
    pub checksum: u32,
}

impl Pointer {
    /// Encodes it as an entry of a page.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.checksum as u64) << 32 | self.block as u64
    }

    /// Decodes an entry of a page.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { block: bits as u32, checksum: (bits >> 32) as u32 }
    }
}

/// Returns the CRC-32C of `bytes`, computed with the processor's instruction if it has one.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
