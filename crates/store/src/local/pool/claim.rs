//! Check whether a pool still belongs to the server that opened it. The lock on its device excludes
//! servers on the same machine. On storage that several machines share, the superblock names the
//! last session that opened the pool.

use crate::local::BLOCK_BYTES;
use crate::local::device::{Device, read_readable};
use crate::local::format::Superblock;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Claim {
    device: Arc<dyn Device>,
    identity: u128,
    session: u32,
    is_lost: AtomicBool,
}

impl Claim {
    /// Creates the claim of the session that has written this superblock.
    pub fn new(device: Arc<dyn Device>, superblock: &Superblock) -> Self {
        let Superblock { identity, session, .. } = *superblock;
        Self { device, identity, session, is_lost: AtomicBool::new(false) }
    }

    /// Returns whether another server was found to have the pool.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Reads the superblock to check whether the pool is still this session's. Called before the
    /// tables or an anchor are written.
    ///
    /// # Errors
    /// If it is not; nothing may be written to the pool after that.
    pub fn hold(&self) -> io::Result<()> {
        let mut blocks = vec![0; 2 * BLOCK_BYTES];
        // An unreadable superblock is no evidence of another server.
        let is_readable = read_readable(self.device.as_ref(), 0, &mut blocks).is_ok();
        if is_readable && !self.is_lost() && !self.is_held(&blocks) {
            tracing::error!(
                pool = %self.device.path().display(),
                "another server has opened or overwritten this pool: this one writes nothing to it \
                 any more; stop one of the two, and then look at the pool with: evenkeel store \
                 check --data"
            );
            self.is_lost.store(true, Ordering::Release);
        }
        if self.is_lost() {
            Err(io::Error::other("another server has opened or overwritten the pool"))
        } else {
            Ok(())
        }
    }

    fn is_held(&self, blocks: &[u8]) -> bool {
        let copies: Vec<_> = blocks.chunks(BLOCK_BYTES).map(Superblock::decode).collect();
        let valid = || copies.iter().flatten();
        let is_ours = |it: &&Superblock| it.identity == self.identity;
        if valid().any(|copy| !is_ours(&copy) || copy.session > self.session) {
            return false;
        }
        // A copy that could not be written is an older one of this session's. If neither is valid,
        // either the device has failed, or another program is overwriting the pool.
        valid().next().is_some() || self.device.read(0, &mut vec![0; 2 * BLOCK_BYTES]).is_err()
    }
}
