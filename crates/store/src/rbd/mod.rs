//! Volumes as images of a Ceph cluster (RBD), which keeps them on several machines. librbd and
//! librados are loaded when a pool is opened: the program starts without them.
//!
//! A volume is an image with 4 MiB objects. The `metadata` object has the name of its image and its
//! size. The server of a volume has the exclusive lock of the image; a lock is broken only after
//! its owner was fenced (`fence`). Writes are on the devices when they are acknowledged: there is
//! no cache.

mod cluster;
pub mod examine;
mod fence;
mod image;
mod library;
mod metadata;
mod objects;
mod relock;
mod snapshots;
mod upkeep;
mod volume;
mod watchdog;

pub use cluster::Place;
pub use fence::Seat;

use crate::encryption::NO_KEY;
use crate::encryption::crypt::{Cipher, DataKey};
use crate::encryption::keys::{Keys, from_hex, hex};
use crate::folder::Folder;
use crate::layout::PoolSeen;
use crate::local::BLOCK_BYTES;
use crate::snapshots::Snapshots;
use crate::{Pool, Space, Store, StoreError};
use cluster::{Cluster, errno};
use evenkeel_core::fencing::order::{OpenAnswer, OpenStep, Opening};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use fence::Instance;
use image::{Exactness, Image};
use metadata::{Books, Changes, MakingRecord, SnapshotRecord, VolumeRecord};
use objects::Objects;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use upkeep::Upkeep;
use volume::{Active, RbdStore, Slot};

/// Name of this kind of store in a data folder's marker file.
pub const KIND: &str = "rbd";

/// Maximum time that an opening waits for the closing of the same volume.
const CLOSING_MAX: Duration = Duration::from_secs(60);
/// Key of the cache setting in an image's metadata.
const CACHE: &str = "conf_rbd_cache";
/// Maximum number of images of one volume that have not been removed yet.
const NAMES_MAX: u32 = 1_000;

/// State of a volume that is being opened or is open.
enum State {
    Opening,
    Open(Arc<Slot>),
}

/// State that the pool and its threads share.
struct Shared {
    cluster: Arc<Cluster>,
    books: Books,
    keys: Option<Keys>,
    instance: Instance,
    seat: Seat,
    volumes: Mutex<BTreeMap<VolumeId, State>>,
    /// A volume was closed.
    closed: Condvar,
    /// Images of snapshots that are being filled; each stays open until that ends.
    filling: Mutex<BTreeMap<SnapshotId, Arc<Image>>>,
    /// The snapshots that were read last, with their images.
    read: Mutex<Vec<(SnapshotId, Arc<Image>)>>,
    /// Wakes the thread that removes images.
    wake: Sender<()>,
}

/// A pool of volumes on a Ceph cluster.
pub struct RbdPool {
    shared: Arc<Shared>,
    upkeep: Upkeep,
    // Held until everything above is gone.
    _folder: Folder,
}

fn volume_key(id: VolumeId) -> String {
    format!("v/{id}")
}

fn snapshot_key(id: SnapshotId) -> String {
    format!("s/{id}")
}

fn flush_key(id: VolumeId) -> String {
    format!("u/{id}")
}

fn gone_key(image: &str) -> String {
    format!("g/{image}")
}

fn making_key(image: &str) -> String {
    format!("p/{image}")
}

/// Returns the bytes of an image for a volume or a snapshot of `size`: whole blocks.
const fn image_bytes(size: u64) -> u64 {
    size.next_multiple_of(BLOCK_BYTES as u64)
}

impl RbdPool {
    /// For tests: releases the lock of a volume's open image, as librbd does after it has lost its
    /// watch. Returns whether the image is open.
    ///
    /// # Errors
    /// When the lock cannot be released.
    pub fn release_lock(&self, id: VolumeId) -> Result<bool, StoreError> {
        let slot = match self.shared.volumes().get(&id) {
            Some(State::Open(slot)) => Arc::clone(slot),
            Some(State::Opening) | None => return Ok(false),
        };
        let opened = slot.opened();
        let Some(opened) = opened.as_ref() else { return Ok(false) };
        opened.image.unlock()?;
        Ok(true)
    }

    /// Connects to a cluster and opens the pool of a data folder there; creates it at the first
    /// start. Earlier processes of this folder that ended without leaving are fenced.
    ///
    /// # Errors
    /// When the libraries are missing, the cluster cannot be reached, another data folder has the
    /// namespace, or the data folder is not ours.
    pub fn open(data_dir: &std::path::Path, place: &Place) -> Result<Self, StoreError> {
        Self::open_with(data_dir, place, None)
    }

    /// Opens the pool, as [`Self::open`], with keys for encrypted volumes.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        data_dir: &std::path::Path,
        place: &Place,
        keys: Option<Keys>,
    ) -> Result<Self, StoreError> {
        Self::open_as(data_dir, place, keys, &Seat::Alone)
    }

    /// Opens the pool, as [`Self::open_with`], for the owner that `seat` names.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_as(
        data_dir: &std::path::Path,
        place: &Place,
        keys: Option<Keys>,
        seat: &Seat,
    ) -> Result<Self, StoreError> {
        let folder = Folder::claim(data_dir, KIND)?;
        let cluster = Arc::new(Cluster::connect(place)?);
        let books = Books::new(Arc::clone(&cluster))?;
        let instance = Instance::register(&folder, &cluster, &books, seat)?;
        let (wake, woken) = channel();
        let shared = Arc::new(Shared {
            cluster,
            books,
            keys,
            instance,
            seat: seat.clone(),
            volumes: Mutex::default(),
            closed: Condvar::new(),
            filling: Mutex::default(),
            read: Mutex::default(),
            wake,
        });
        shared.forget_unfinished()?;
        let upkeep = Upkeep::start(&shared, woken)?;
        Ok(Self { shared, upkeep, _folder: folder })
    }
}

impl Shared {
    fn volumes(&self) -> MutexGuard<'_, BTreeMap<VolumeId, State>> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn volume(&self, id: VolumeId) -> Result<Option<VolumeRecord>, StoreError> {
        self.books.get(&volume_key(id))
    }

    fn snapshot(&self, id: SnapshotId) -> Result<Option<SnapshotRecord>, StoreError> {
        self.books.get(&snapshot_key(id))
    }

    fn not_found(&self, id: VolumeId) -> StoreError {
        let path = PathBuf::from(self.cluster.place().name());
        StoreError::NotFound { id, path: Some(path) }
    }

    /// Creates a new wrapped key.
    fn new_key(&self, id: VolumeId) -> Result<String, StoreError> {
        let locked = |why: String| StoreError::Locked { id, why };
        let Some(keys) = &self.keys else { return Err(locked(NO_KEY.to_owned())) };
        let key = DataKey::random().map_err(|error| locked(error.to_string()))?;
        keys.wrap(&key).map(|bytes| hex(&bytes)).map_err(|error| locked(error.to_string()))
    }

    /// Returns the cipher of a wrapped key; none for data that is not encrypted.
    fn cipher(&self, id: VolumeId, key: &str) -> Result<Option<Cipher>, StoreError> {
        if key.is_empty() {
            return Ok(None);
        }
        let locked = |why: String| StoreError::Locked { id, why };
        let Some(keys) = &self.keys else { return Err(locked(NO_KEY.to_owned())) };
        let wrapped = from_hex(key.as_bytes())
            .ok_or_else(|| StoreError::Rotten { what: format!("the wrapped key of {id}") })?;
        let key = keys.unwrap(&wrapped).map_err(|error| locked(error.to_string()))?;
        Ok(Some(Cipher::new(&key)))
    }

    /// Records that an image is being made, so that it is removed if this process ends before a
    /// volume or a snapshot has it. Returns its name: that of its volume, unless an earlier image
    /// of this name has not been removed yet, or another process began one.
    fn begin_image(&self, id: &dyn std::fmt::Display) -> Result<String, StoreError> {
        let ours = self.making();
        for number in 0..NAMES_MAX {
            let name = match number {
                0 => id.to_string(),
                _ => format!("{id}.{number}"),
            };
            let begun = self.books.get::<MakingRecord>(&making_key(&name))?;
            if begun.is_none_or(|begun| begun == ours)
                && self.books.get::<bool>(&gone_key(&name))?.is_none()
            {
                self.books.set(&making_key(&name), &ours)?;
                return Ok(name);
            }
        }
        Err(StoreError::Exists { what: format!("{NAMES_MAX} images of {id}") })
    }

    /// Returns the record of an image that this process makes.
    fn making(&self) -> MakingRecord {
        MakingRecord { maker: self.instance.address().to_owned() }
    }

    /// Returns the changes that end the making of an image. They have no effect if another process
    /// has given it up, since it counts this one as ended.
    fn made(&self, image: &str) -> Result<Changes, StoreError> {
        let key = making_key(image);
        Changes::default().expect(&key, &self.making())?.remove(&key)
    }

    /// Creates an image that no volume or snapshot has yet. An image that an earlier attempt has
    /// left is removed first.
    fn make_image(
        &self,
        name: &str,
        make: &dyn Fn(&str) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match make(name) {
            Err(error) if errno(&error) == Some(libc::EEXIST) => {
                image::remove(&self.cluster, name)?;
                make(name)
            }
            made => made,
        }
    }

    fn make_empty(&self, name: &str, size: u64) -> Result<(), StoreError> {
        self.make_image(name, &|name| image::create(&self.cluster, name, image_bytes(size)))
    }

    fn create(&self, id: VolumeId, size: ByteCount, is_encrypted: bool) -> Result<(), StoreError> {
        if let Some(present) = self.volume(id)? {
            return same_size(id, ByteCount(present.size), size);
        }
        let key = if is_encrypted { self.new_key(id)? } else { String::new() };
        let image = self.begin_image(&id)?;
        self.make_empty(&image, size.0)?;
        let made = self.made(&image)?;
        let record = VolumeRecord { image, size: size.0, origin: None, key };
        self.books.change(&made.set(&volume_key(id), &record)?)
    }

    /// Opens an image with its exclusive lock.
    fn open_locked(&self, id: VolumeId, name: &str) -> Result<Image, StoreError> {
        let mut opening = Opening::default();
        let mut image = None;
        let mut owner = None;
        loop {
            let opened = || image.as_ref().expect("the order opens an image first");
            let answer = match opening.step() {
                OpenStep::WaitForLatestMap => {
                    self.cluster.wait_for_latest_map()?;
                    OpenAnswer::Done
                }
                OpenStep::Open => {
                    image = Some(self.open_without_cache(name)?);
                    OpenAnswer::Done
                }
                OpenStep::FindOwner => {
                    owner = opened().owner()?;
                    owner.as_ref().map_or(OpenAnswer::Unlocked, |_| OpenAnswer::Locked)
                }
                OpenStep::FindFenced => {
                    let (_, address) = owner.as_ref().expect("the order looks for an owner first");
                    if self.instance.is_fenced(&self.books, address)? {
                        OpenAnswer::Fenced
                    } else {
                        OpenAnswer::NotFenced
                    }
                }
                OpenStep::BreakLock => {
                    let (owner, _) = owner.as_ref().expect("the order looks for an owner first");
                    opened().break_lock(owner)?;
                    OpenAnswer::Done
                }
                OpenStep::Lock => match opened().lock() {
                    Ok(()) => OpenAnswer::Done,
                    Err(error) => match errno(&error) {
                        Some(libc::EROFS | libc::EBUSY | libc::EAGAIN) => OpenAnswer::Locked,
                        _ => return Err(error),
                    },
                },
                OpenStep::Done => return Ok(image.expect("the order opens an image first")),
                OpenStep::Refuse => {
                    let address = owner.map(|(_, address)| address).unwrap_or_default();
                    return Err(StoreError::Elsewhere { id, address });
                }
            };
            opening.answered(answer);
        }
    }

    /// Checks that no process which is not fenced has the lock of an image.
    ///
    /// # Errors
    /// [`StoreError::Elsewhere`] if one has it. Only a process whose requests all devices refuse is
    /// harmless.
    fn check_unlocked(&self, id: VolumeId, image: &Image) -> Result<(), StoreError> {
        let Some((_, address)) = image.owner()? else { return Ok(()) };
        if self.instance.is_fenced(&self.books, &address)? {
            Ok(())
        } else {
            Err(StoreError::Elsewhere { id, address })
        }
    }

    /// Opens an image whose metadata disables the cache: settings of the pool take precedence over
    /// those of the client, and those of the image over both.
    fn open_without_cache(&self, name: &str) -> Result<Image, StoreError> {
        let image = Image::open(&self.cluster, name)?;
        if image.setting(CACHE)?.as_deref() == Some("false") {
            return Ok(image);
        }
        image.set(CACHE, "false")?;
        drop(image);
        Image::open(&self.cluster, name)
    }

    /// Opens the image of a volume that is served, and finds its objects that have data.
    fn open_image(&self, id: VolumeId, name: &str) -> Result<(Image, Objects), StoreError> {
        let record = self.volume(id)?.ok_or_else(|| self.not_found(id))?;
        let image = match self.open_locked(id, name) {
            Err(error) if errno(&error) == Some(libc::ENOENT) => return Err(self.not_found(id)),
            image => image?,
        };
        self.cut_off(id, &image, ByteCount(record.size))?;
        let objects = objects_with_data(&image, image_bytes(record.size))?;
        Ok((image, objects))
    }

    /// Removes the space beyond the end that an abandoned growth has left.
    fn cut_off(&self, id: VolumeId, image: &Image, size: ByteCount) -> Result<(), StoreError> {
        let present = image.size()?;
        let expected = image_bytes(size.0);
        let differs =
            |present: u64| StoreError::Differs { id, present: ByteCount(present), expected: size };
        if present < expected {
            return Err(differs(present));
        }
        if present == expected {
            return Ok(());
        }
        let mut is_written = false;
        let behind = (expected, present - expected);
        image.differences(None, behind, Exactness::Bytes, &mut |_, exists| is_written |= exists)?;
        if is_written {
            return Err(differs(present));
        }
        image.resize(expected)
    }

    fn note_size(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        let record = self.volume(id)?.ok_or_else(|| self.not_found(id))?;
        let changed = VolumeRecord { size: size.0, ..record };
        self.books.set(&volume_key(id), &changed)
    }

    fn resize(&self, id: VolumeId, from: ByteCount, to: ByteCount) -> Result<(), StoreError> {
        let record = self.volume(id)?.ok_or_else(|| self.not_found(id))?;
        if to < from {
            return Err(StoreError::Size { id, present: from, asked: to });
        }
        self.with_image(id, &record.image, |image| {
            let present = image.size()?;
            if present < image_bytes(from.0) || present > image_bytes(to.0) {
                let present = ByteCount(present);
                return Err(StoreError::Differs { id, present, expected: from });
            }
            if present < image_bytes(to.0) {
                image.resize(image_bytes(to.0))?;
            }
            // Before another process opens it and removes the space beyond the recorded size.
            self.note_size(id, to)
        })
    }

    /// Calls `act` with the image of a volume that is open, or one that is opened for this call.
    fn with_image<T>(
        &self,
        id: VolumeId,
        name: &str,
        act: impl FnOnce(&Image) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let slot = match self.volumes().get(&id) {
            // A deleted volume with the same id had another image.
            Some(State::Open(slot)) if slot.image == name => Some(Arc::clone(slot)),
            _ => None,
        };
        // The slot is locked meanwhile, since the image can be locked only once, even by one
        // instance.
        let opened = slot.as_ref().map(|slot| slot.opened());
        match opened.as_deref() {
            Some(Some(opened)) => act(&opened.image),
            _ => act(&self.open_locked(id, name)?),
        }
    }

    /// Waits until a volume is not being closed, and prevents others from opening it.
    fn claim(&self, id: VolumeId) -> Result<Claim<'_>, StoreError> {
        let mut volumes = self.volumes();
        while let Some(state) = volumes.get(&id) {
            let is_closing = match state {
                State::Opening => false,
                State::Open(slot) => slot.is_closing.load(Ordering::Acquire),
            };
            if !is_closing {
                return Err(StoreError::Open { id });
            }
            let (next, waited) = self
                .closed
                .wait_timeout(volumes, CLOSING_MAX)
                .unwrap_or_else(PoisonError::into_inner);
            volumes = next;
            if waited.timed_out() {
                return Err(StoreError::Open { id });
            }
        }
        volumes.insert(id, State::Opening);
        Ok(Claim { shared: self, id })
    }

    /// Waits until a volume whose store was dropped is closed.
    fn wait_closed(&self, id: VolumeId) -> Result<(), StoreError> {
        let volumes = self.volumes();
        match volumes.get(&id) {
            Some(State::Open(slot)) if slot.is_closing.load(Ordering::Acquire) => {}
            Some(_) => return Err(StoreError::Open { id }),
            None => return self.may_be_unlocked(id),
        }
        let is_there = |volumes: &mut BTreeMap<VolumeId, State>| volumes.contains_key(&id);
        let (volumes, waited) = self
            .closed
            .wait_timeout_while(volumes, CLOSING_MAX, is_there)
            .unwrap_or_else(PoisonError::into_inner);
        drop(volumes);
        if waited.timed_out() { Err(StoreError::Closing { id }) } else { self.may_be_unlocked(id) }
    }

    /// Returns an error if this process is fenced: the cluster may have refused to release the lock
    /// of a volume that was open, and another process cannot open it before the fence is recorded.
    fn may_be_unlocked(&self, id: VolumeId) -> Result<(), StoreError> {
        if !self.cluster.is_shut_down() {
            return Ok(());
        }
        let why = format!("this process is fenced, and may still hold the lock of {id}");
        Err(StoreError::Cluster { why })
    }

    /// Releases an image's lock. If the cluster refuses it, librbd reports another error (EINVAL in
    /// 16.2) or none, so the owner is read afterwards.
    fn unlock(&self, image: &Image) -> Result<(), StoreError> {
        let unlocked = image.unlock();
        let owner = image.owner();
        if let Err(error) = &owner
            && errno(error) == Some(libc::ESHUTDOWN)
        {
            self.cluster.note_shut_down();
        }
        owner.and(unlocked)
    }

    /// Closes a volume. All of its requests have ended when this returns.
    fn close(&self, slot: &Slot, in_flight: Vec<Option<Active>>) {
        let opened = slot.opened().take();
        // The outcome of an opening is not needed any more.
        drop(slot.take_outcome());
        if let Some(opened) = opened.and_then(Arc::into_inner) {
            if !opened.is_lost.load(Ordering::Acquire)
                && in_flight.iter().all(Option::is_none)
                && let Err(error) = self.unlock(&opened.image)
            {
                tracing::warn!(volume = %slot.id, %error, "a lock was not given back");
            }
            // Waits for requests in flight, which need their memory until then.
            drop(opened);
        }
        drop(in_flight);
        self.volumes().remove(&slot.id);
        self.closed.notify_all();
    }
}

/// Returns the objects of an image that have data.
fn objects_with_data(image: &Image, bytes: u64) -> Result<Objects, StoreError> {
    let mut objects = Objects::default();
    image.differences(None, (0, bytes), Exactness::Objects, &mut |it, exists| {
        if exists {
            objects.note(it.offset, it.length);
        }
    })?;
    Ok(objects)
}

/// Exclusive right to open or delete a volume, until it is dropped.
struct Claim<'a> {
    shared: &'a Shared,
    id: VolumeId,
}

impl Claim<'_> {
    fn keep(self, slot: Arc<Slot>) {
        self.shared.volumes().insert(self.id, State::Open(slot));
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.shared.volumes().remove(&self.id);
        self.shared.closed.notify_all();
    }
}

fn same_size(id: VolumeId, present: ByteCount, asked: ByteCount) -> Result<(), StoreError> {
    if present == asked { Ok(()) } else { Err(StoreError::Size { id, present, asked }) }
}

impl Pool for RbdPool {
    fn describe(&self) -> String {
        let cluster = &self.shared.cluster;
        format!("images of {} in the Ceph cluster {}", cluster.place().name(), cluster.fsid())
    }

    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        self.shared.create(id, size, false)
    }

    fn create_encrypted(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        self.shared.create(id, size, true)
    }

    fn is_encrypted(&self, id: VolumeId) -> bool {
        matches!(self.shared.volume(id), Ok(Some(record)) if !record.key.is_empty())
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let claim = self.shared.claim(id)?;
        let shared = &*self.shared;
        let record = shared.volume(id)?.ok_or_else(|| shared.not_found(id))?;
        let cipher = shared.cipher(id, &record.key)?;
        if record.size != size.0 {
            // A growth that was given up, unless something was written there.
            shared.cut_off(id, &shared.open_locked(id, &record.image)?, size)?;
            shared.note_size(id, size)?;
        }
        let slot = Arc::new(Slot::new(id, record.image));
        claim.keep(Arc::clone(&slot));
        Ok(Box::new(RbdStore::new(slot, size, cipher, self.upkeep.work())))
    }

    fn resize(&self, id: VolumeId, from: ByteCount, to: ByteCount) -> Result<(), StoreError> {
        self.shared.resize(id, from, to)
    }

    fn delete(&self, id: VolumeId) -> Result<(), StoreError> {
        let _claim = self.shared.claim(id)?;
        let Some(record) = self.shared.volume(id)? else { return Ok(()) };
        // Another server may serve it, even if this one's control plane does not know that.
        match Image::open(&self.shared.cluster, &record.image) {
            Err(error) if errno(&error) == Some(libc::ENOENT) => {}
            image => self.shared.check_unlocked(id, &image?)?,
        }
        let changes = Changes::default();
        let changes = changes.remove(&volume_key(id))?.set(&gone_key(&record.image), &true)?;
        self.shared.books.change(&changes)?;
        self.shared.sweep_soon();
        Ok(())
    }

    fn list(&self) -> Result<Vec<(VolumeId, ByteCount)>, StoreError> {
        let all = self.shared.books.all::<VolumeRecord>("v/")?;
        let volume =
            |(id, record): (String, VolumeRecord)| Some((id.parse().ok()?, ByteCount(record.size)));
        let mut volumes: Vec<(VolumeId, ByteCount)> = all.into_iter().filter_map(volume).collect();
        volumes.sort_unstable();
        Ok(volumes)
    }

    fn has(&self, id: VolumeId) -> Result<bool, StoreError> {
        Ok(self.shared.volume(id)?.is_some())
    }

    fn space(&self) -> Result<Option<Space>, StoreError> {
        self.shared.cluster.space().map(Some)
    }

    fn look_around(&self) -> Result<Option<PoolSeen>, StoreError> {
        examine::pool_seen(&self.shared.cluster).map(Some)
    }

    fn recovery(&self) -> Option<String> {
        examine::recovery(&self.shared.cluster)
    }

    fn wait_closed(&self, id: VolumeId) -> Result<(), StoreError> {
        self.shared.wait_closed(id)
    }

    fn note_failed_flush(&self, id: VolumeId) -> Result<(), StoreError> {
        self.shared.books.set(&flush_key(id), &true)
    }

    fn has_failed_flush(&self, id: VolumeId) -> Result<bool, StoreError> {
        Ok(self.shared.books.get::<bool>(&flush_key(id))?.unwrap_or(false))
    }

    fn forget_failed_flush(&self, id: VolumeId) -> Result<(), StoreError> {
        self.shared.books.remove(&flush_key(id))
    }

    fn is_taken_over(&self) -> bool {
        self.shared.cluster.is_shut_down()
    }

    fn when_taken_over(&self, tell: Box<dyn FnOnce() + Send>) {
        self.shared.cluster.when_shut_down(tell);
    }

    fn instance(&self) -> Option<String> {
        Some(self.shared.instance.address().to_owned())
    }

    fn look(&self) -> Result<(), StoreError> {
        let Shared { cluster, books, instance, .. } = &*self.shared;
        if instance.own_entry(books)?.is_fenced() {
            cluster.note_shut_down();
            return Err(StoreError::Cluster { why: "this process is fenced".to_owned() });
        }
        Ok(())
    }

    fn check_owner(&self) -> Result<(), StoreError> {
        fence::check_number(&self.shared.cluster, &self.shared.books, &self.shared.seat)
    }

    fn is_fenced(&self, instance: &str) -> Result<bool, StoreError> {
        self.shared.instance.is_fenced(&self.shared.books, instance)
    }

    fn fence(&self, node: &str) -> Result<(), StoreError> {
        let Shared { cluster, books, instance, .. } = &*self.shared;
        instance.fence(cluster, books, node)?;
        self.shared.forget_unfinished()
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(&*self.shared)
    }
}

impl Drop for RbdPool {
    fn drop(&mut self) {
        // If an image stayed locked, the registration stays, and the next start fences this
        // process.
        self.shared.read.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.shared.filling.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if self.upkeep.stop(&self.shared) {
            self.shared.instance.leave(&self.shared.books);
        }
    }
}
