//! Locking an open image again. librbd loses its watch of an image while the cluster is silent for
//! more than 30 s, also to a process that was stopped. Then it releases the image's lock and takes
//! it again by itself. Until it has the lock it fails writes with EROFS, which also means that
//! another instance has the lock.
//!
//! librbd waits for its own writes before it releases a lock, and writes nothing without one.
//! Another node locks an image only after this process has released the volume or is fenced. So if
//! this process is not fenced and has the lock again, no other node has written to the image.

use super::Shared;
use super::cluster::errno;
use super::image::Image;
use super::objects_with_data;
use super::volume::Relock;
use crate::StoreError;

impl Shared {
    /// Locks an open image again, unless this instance is fenced or another one has the lock.
    pub(super) fn relock(&self, image: &Image) -> Result<Relock, StoreError> {
        self.cluster.wait_for_latest_map()?;
        if let Some(lost) = self.find_loss(image)? {
            return Ok(lost);
        }
        match image.lock() {
            Ok(()) => {}
            Err(error) => match errno(&error) {
                Some(libc::EROFS | libc::EBUSY | libc::EAGAIN) => return Ok(Relock::Undecided),
                _ => return Err(error),
            },
        }
        let Some((_, address)) = image.owner()? else { return Ok(Relock::Undecided) };
        if address != self.instance.address() {
            return Ok(Relock::Lost(has_lock(&address)));
        }
        let objects = objects_with_data(image, image.size()?)?;
        // A fence that was made meanwhile precedes the lock of its node.
        Ok(self.find_loss(image)?.unwrap_or(Relock::Held(objects)))
    }

    /// Returns why this instance may not use an image, if it is fenced or another one has the lock.
    fn find_loss(&self, image: &Image) -> Result<Option<Relock>, StoreError> {
        if self.instance.own_entry(&self.books)?.is_fenced() {
            return Ok(Some(Relock::Lost("this server is fenced".to_owned())));
        }
        match image.owner()? {
            Some((_, address)) if address != self.instance.address() => {
                Ok(Some(Relock::Lost(has_lock(&address))))
            }
            _ => Ok(None),
        }
    }
}

fn has_lock(address: &str) -> String {
    format!("{address} has the lock of its image")
}
