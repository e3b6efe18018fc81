//! An open image. Its calls block, except those that begin an I/O.

use super::cluster::{Cluster, check, errno, plain, text, until_zero};
use super::library::{
    EVENT_TYPE_EVENTFD, Handle, ImageSpec, LOCK_EXCLUSIVE, OPTION_CLONE_FORMAT, OPTION_FEATURES,
    OPTION_ORDER,
};
use crate::StoreError;
use evenkeel_core::convert::saturating;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

/// Bytes of an object.
pub(super) const OBJECT_BYTES: u64 = 1 << OBJECT_ORDER;
const OBJECT_ORDER: u64 = 22;
/// layering, exclusive-lock, object-map, fast-diff and deep-flatten.
const FEATURES: u64 = 1 | 4 | 8 | 16 | 32;
/// Format of clones whose snapshot needs no protection and may be deleted before them.
const CLONE_FORMAT: u64 = 2;

/// Options of a new image; released when dropped.
struct Options<'a> {
    cluster: &'a Cluster,
    handle: Handle,
}

impl<'a> Options<'a> {
    fn new(cluster: &'a Cluster, values: &[(c_int, u64)]) -> Result<Self, StoreError> {
        let mut handle = ptr::null_mut();
        // SAFETY: there is room for the handle.
        unsafe { (cluster.library.rbd_image_options_create)(&raw mut handle) };
        let options = Self { cluster, handle };
        for (name, value) in values {
            // SAFETY: the options are open.
            let code =
                unsafe { (cluster.library.rbd_image_options_set_uint64)(handle, *name, *value) };
            check(code, || format!("set option {name} of a new image"))?;
        }
        Ok(options)
    }
}

impl Drop for Options<'_> {
    fn drop(&mut self) {
        // SAFETY: they were made once and are not used any more.
        unsafe { (self.cluster.library.rbd_image_options_destroy)(self.handle) };
    }
}

/// Creates an empty image.
pub(super) fn create(cluster: &Cluster, name: &str, size: u64) -> Result<(), StoreError> {
    let options =
        Options::new(cluster, &[(OPTION_FEATURES, FEATURES), (OPTION_ORDER, OBJECT_ORDER)])?;
    let image = text(name)?;
    // SAFETY: the name ends with a zero byte, and the options are open.
    let code =
        unsafe { (cluster.library.rbd_create4)(cluster.io, image.as_ptr(), size, options.handle) };
    check(code, || format!("make the image {}", shown(cluster, name))).map(drop)
}

/// Creates an image with the data of another one's snapshot.
pub(super) fn clone(
    cluster: &Cluster,
    (parent, snapshot): (&str, &str),
    name: &str,
) -> Result<(), StoreError> {
    let values = [(OPTION_FEATURES, FEATURES), (OPTION_CLONE_FORMAT, CLONE_FORMAT)];
    let options = Options::new(cluster, &values)?;
    let parent_name = text(parent)?;
    let snapshot_name = text(snapshot)?;
    let image = text(name)?;
    // SAFETY: the names end with zero bytes, and the options are open.
    let code = unsafe {
        (cluster.library.rbd_clone3)(
            cluster.io,
            parent_name.as_ptr(),
            snapshot_name.as_ptr(),
            cluster.io,
            image.as_ptr(),
            options.handle,
        )
    };
    check(code, || {
        format!("make the image {} of {}@{snapshot}", shown(cluster, name), shown(cluster, parent))
    })
    .map(drop)
}

/// Removes an image with all its objects.
pub(super) fn remove(cluster: &Cluster, name: &str) -> Result<(), StoreError> {
    let image = text(name)?;
    // SAFETY: the name ends with a zero byte.
    let code = unsafe { (cluster.library.rbd_remove)(cluster.io, image.as_ptr()) };
    check(code, || format!("remove the image {}", shown(cluster, name))).map(drop)
}

/// Maximum number of images of a namespace that are listed.
const LISTED_MAX: usize = 1 << 20;

/// Returns the names of all images of the namespace.
pub(super) fn list(cluster: &Cluster) -> Result<Vec<String>, StoreError> {
    let mut room = 1_024;
    loop {
        let mut images = vec![ImageSpec { id: ptr::null_mut(), name: ptr::null_mut() }; room];
        let mut count = images.len();
        // SAFETY: there is room for this number of images.
        let code =
            unsafe { (cluster.library.rbd_list2)(cluster.io, images.as_mut_ptr(), &raw mut count) };
        if code == -libc::ERANGE && room < LISTED_MAX {
            // More may be made meanwhile.
            room = LISTED_MAX.min(count.max(room) * 2);
            continue;
        }
        check(code, || format!("list the images of {}", cluster.place().name()))?;
        let names = images.iter().take(count).map(|image| {
            // SAFETY: the library has put a text there, which is released below.
            unsafe { CStr::from_ptr(image.name) }.to_string_lossy().into_owned()
        });
        let names = names.collect();
        // SAFETY: these are the images that the library has put there; they are released once.
        unsafe { (cluster.library.rbd_image_spec_list_cleanup)(images.as_mut_ptr(), count) };
        return Ok(names);
    }
}

fn shown(cluster: &Cluster, name: &str) -> String {
    format!("{}/{name}", cluster.place().name())
}

/// A range in which two states of an image differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Difference {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Precision of differences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exactness {
    /// Whole objects, from the object map: takes a millisecond.
    Objects,
    /// Written ranges: half a millisecond for each object, which is asked.
    Bytes,
}

/// An open image. Dropping it waits for requests in flight, and closes it.
pub(super) struct Image {
    pub(super) cluster: Arc<Cluster>,
    pub(super) handle: Handle,
    name: String,
}

// SAFETY: librbd may be called from any thread; the handle does not change.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    /// Opens an image.
    pub(super) fn open(cluster: &Arc<Cluster>, name: &str) -> Result<Self, StoreError> {
        Self::open_with(cluster, name, None)
    }

    /// Opens a snapshot of an image for reading.
    pub(super) fn open_at(
        cluster: &Arc<Cluster>,
        name: &str,
        snapshot: &str,
    ) -> Result<Self, StoreError> {
        Self::open_with(cluster, name, Some(snapshot))
    }

    fn open_with(
        cluster: &Arc<Cluster>,
        name: &str,
        snapshot: Option<&str>,
    ) -> Result<Self, StoreError> {
        let image = text(name)?;
        let snapshot_name = snapshot.map(text).transpose()?;
        let mut handle = ptr::null_mut();
        let library = cluster.library;
        let io = cluster.io;
        // SAFETY: the names end with zero bytes, and there is room for the handle.
        let code = unsafe {
            match &snapshot_name {
                None => (library.rbd_open)(io, image.as_ptr(), &raw mut handle, ptr::null()),
                Some(snapshot_name) => {
                    let image = image.as_ptr();
                    let snapshot_name = snapshot_name.as_ptr();
                    (library.rbd_open_read_only)(io, image, &raw mut handle, snapshot_name)
                }
            }
        };
        check(code, || format!("open the image {}", shown(cluster, name)))?;
        Ok(Self { cluster: Arc::clone(cluster), handle, name: name.to_owned() })
    }

    fn check(&self, code: c_int, doing: &str) -> Result<c_int, StoreError> {
        check(code, || format!("{doing} the image {}", shown(&self.cluster, &self.name)))
    }

    /// Returns its size in bytes.
    pub(super) fn size(&self) -> Result<u64, StoreError> {
        let mut size = 0;
        // SAFETY: the image is open, and there is room for the size.
        let code = unsafe { (self.cluster.library.rbd_get_size)(self.handle, &raw mut size) };
        self.check(code, "find the size of")?;
        Ok(size)
    }

    /// Returns an entry of its metadata; none if it is absent, or longer than any that this program
    /// sets.
    pub(super) fn setting(&self, key: &str) -> Result<Option<String>, StoreError> {
        let name = text(key)?;
        let mut value = [0_u8; 64];
        let mut length = 64_usize;
        let room = value.as_mut_ptr().cast::<c_char>();
        // SAFETY: the image is open, and the room is as long as is said.
        let code = unsafe {
            let length = &raw mut length;
            (self.cluster.library.rbd_metadata_get)(self.handle, name.as_ptr(), room, length)
        };
        if code == -libc::ENOENT || code == -libc::ERANGE {
            return Ok(None);
        }
        self.check(code, &format!("read {key} of"))?;
        Ok(Some(until_zero(&value)))
    }

    /// Sets an entry of its metadata.
    pub(super) fn set(&self, key: &str, value: &str) -> Result<(), StoreError> {
        let name = text(key)?;
        let text = text(value)?;
        // SAFETY: the image is open, and both texts end with a zero byte.
        let code = unsafe {
            (self.cluster.library.rbd_metadata_set)(self.handle, name.as_ptr(), text.as_ptr())
        };
        self.check(code, &format!("set {key} of")).map(drop)
    }

    /// Changes its size.
    pub(super) fn resize(&self, size: u64) -> Result<(), StoreError> {
        // SAFETY: the image is open.
        let code = unsafe { (self.cluster.library.rbd_resize)(self.handle, size) };
        self.check(code, "resize").map(drop)
    }

    /// Makes a snapshot. Writes wait until the monitors have given it a number.
    pub(super) fn snapshot(&self, name: &str) -> Result<(), StoreError> {
        let snapshot = text(name)?;
        // SAFETY: the image is open, and the name ends with a zero byte.
        let code =
            unsafe { (self.cluster.library.rbd_snap_create)(self.handle, snapshot.as_ptr()) };
        self.check(code, &format!("make the snapshot {name} of")).map(drop)
    }

    /// Removes a snapshot. Succeeds if there is none.
    pub(super) fn remove_snapshot(&self, name: &str) -> Result<(), StoreError> {
        let snapshot = text(name)?;
        // SAFETY: as above.
        let code =
            unsafe { (self.cluster.library.rbd_snap_remove)(self.handle, snapshot.as_ptr()) };
        if code == -libc::ENOENT {
            return Ok(());
        }
        self.check(code, &format!("remove the snapshot {name} of")).map(drop)
    }

    /// Takes the exclusive lock, until the image is closed or another instance breaks the lock.
    /// Returns an error with EROFS if another instance has it.
    pub(super) fn lock(&self) -> Result<(), StoreError> {
        // SAFETY: the image is open.
        let code = unsafe { (self.cluster.library.rbd_lock_acquire)(self.handle, LOCK_EXCLUSIVE) };
        self.check(code, "lock").map(drop)
    }

    /// Releases the lock.
    pub(super) fn unlock(&self) -> Result<(), StoreError> {
        // SAFETY: the image is open.
        let code = unsafe { (self.cluster.library.rbd_lock_release)(self.handle) };
        self.check(code, "unlock").map(drop)
    }

    /// Returns the owner of the lock: the libraries' text, and the address in it.
    pub(super) fn owner(&self) -> Result<Option<(String, String)>, StoreError> {
        let mut mode = LOCK_EXCLUSIVE;
        let mut count = 1_usize;
        let mut owner: *mut c_char = ptr::null_mut();
        let owners = &raw mut owner;
        // SAFETY: there is room for one owner, and an exclusive lock has no more.
        let code = unsafe {
            (self.cluster.library.rbd_lock_get_owners)(
                self.handle,
                &raw mut mode,
                owners,
                &raw mut count,
            )
        };
        if code == -libc::ENOENT {
            return Ok(None);
        }
        self.check(code, "find the lock of")?;
        if count == 0 || owner.is_null() {
            return Ok(None);
        }
        // SAFETY: the library has put a text there, which is released once.
        let text = unsafe { CStr::from_ptr(owner) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        unsafe { (self.cluster.library.rbd_lock_get_owners_cleanup)(owners, count) };
        let address = plain(&text);
        Ok(Some((text, address)))
    }

    /// Takes the lock from an owner that was fenced.
    pub(super) fn break_lock(&self, owner: &str) -> Result<(), StoreError> {
        let name = text(owner)?;
        // SAFETY: the image is open, and the text is the library's own.
        let code = unsafe {
            (self.cluster.library.rbd_lock_break)(self.handle, LOCK_EXCLUSIVE, name.as_ptr())
        };
        // The lock may have been released meanwhile.
        if code == -libc::ENOENT {
            return Ok(());
        }
        self.check(code, &format!("take the lock of {owner} from")).map(drop)
    }

    /// Reports the ranges in which the image differs from an older snapshot of it; without one,
    /// those that have data, also in its parents.
    pub(super) fn differences(
        &self,
        older: Option<&str>,
        (offset, length): (u64, u64),
        exactness: Exactness,
        found: &mut dyn FnMut(Difference, bool),
    ) -> Result<(), StoreError> {
        type Found<'a> = &'a mut dyn FnMut(Difference, bool);
        extern "C" fn on(offset: u64, length: usize, exists: c_int, to: *mut c_void) -> c_int {
            // SAFETY: the argument is the closure below, borrowed for the whole call.
            let found = unsafe { &mut *to.cast::<Found<'_>>() };
            found(Difference { offset, length: length as u64 }, exists != 0);
            0
        }
        let older = older.map(text).transpose()?;
        let from = older.as_ref().map_or(ptr::null(), |older| older.as_ptr());
        let mut found: Found<'_> = found;
        // SAFETY: the callback gets its own argument, which lives until the call returns.
        let code = unsafe {
            (self.cluster.library.rbd_diff_iterate2)(
                self.handle,
                from,
                offset,
                length,
                1,
                u8::from(exactness == Exactness::Objects),
                on,
                (&raw mut found).cast(),
            )
        };
        self.check(code, "compare").map(drop)
    }

    /// Returns whether this snapshot was made after another one of the same image.
    pub(super) fn is_later_than(&self, other: &str) -> Result<bool, StoreError> {
        let mut found = |_: Difference, _: bool| {};
        // The range is empty, so nothing is compared; the library only checks the order of the
        // snapshots. Not with the object map: librbd 16.2.15 aborts for a range without objects.
        match self.differences(Some(other), (0, 0), Exactness::Bytes, &mut found) {
            Ok(()) => Ok(true),
            Err(error) if errno(&error) == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads a range.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        let to = bytes.as_mut_ptr().cast::<c_char>();
        // SAFETY: the memory is as long as is asked for.
        let code = unsafe { (self.cluster.library.rbd_read)(self.handle, offset, bytes.len(), to) };
        self.check(saturating(code), "read").map(drop)
    }

    /// Writes a range. It is on the devices when this returns.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let from = bytes.as_ptr().cast::<c_char>();
        // SAFETY: the memory is as long as is said.
        let code =
            unsafe { (self.cluster.library.rbd_write)(self.handle, offset, bytes.len(), from) };
        self.check(saturating(code), "write").map(drop)
    }

    /// Makes an eventfd readable whenever an I/O ends.
    pub(super) fn notify(&self, event: BorrowedFd<'_>) -> Result<(), StoreError> {
        // SAFETY: both are open, and the caller keeps the eventfd as long as the image.
        let code = unsafe {
            (self.cluster.library.rbd_set_image_notification)(
                self.handle,
                event.as_raw_fd(),
                EVENT_TYPE_EVENTFD,
            )
        };
        self.check(code, "watch").map(drop)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: it was opened once. Requests in flight end before this returns.
        let code = unsafe { (self.cluster.library.rbd_close)(self.handle) };
        if code < 0 {
            tracing::warn!(image = %self.name, code, "an image could not be closed in order");
        }
    }
}
