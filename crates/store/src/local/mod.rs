//! The local store: volumes in one pool, a block device or a file. Every block of 4 KiB has a
//! checksum that is verified when it is read; a write goes to a free block, and a log makes the
//! changed pointers and checksums durable. docs/internals/disk_format.md has the bytes and argues
//! the orders of writes.
//!
//! ```text
//!   format   the bytes of superblock, nodes, owners, anchors and log blocks
//!   table    arrays of sectors, kept twice: which volumes there are, who owns which chunk
//!   tree     pages of pointers in memory, and what a checkpoint writes of them
//!   bits     one for each block of a chunk
//!   space    which blocks of a volume's chunks are free
//!   volume   one open volume: requests, commits, checkpoints, recovery
//!   pool     makes, opens and deletes volumes, gives them chunks
//!   place    which device or file is the pool of a data folder
//!   crypt    encryption of data
//!   keys     how the keys of volumes are kept
//!   check    proves all references and counts of a pool that nobody has open
//!   inspect  shows what is in a pool
//!   answered changes that were answered and are not in the log yet
//!   lasting  files that outlive the process
//!   device   where it all is
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

/// Bytes of a block: what has a checksum, and what is written as a whole or not at all.
pub const BLOCK_BYTES: usize = 4_096;
/// Blocks of a chunk, the unit in which volumes own the pool: 1 MiB.
pub const CHUNK_BLOCKS: u32 = 256;

/// Where something is, and the checksum of what is there. Block 0 is the superblock's: it stands
/// for nowhere, and reads as zeroes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Pointer {
    /// The block of the pool.
    pub block: u32,
    /// CRC-32C of its bytes.
    pub checksum: u32,
}

impl Pointer {
    /// An entry of a page.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.checksum as u64) << 32 | self.block as u64
    }

    /// From an entry of a page.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { block: bits as u32, checksum: (bits >> 32) as u32 }
    }
}

/// CRC-32C, by the processor's own instruction where it has one.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
