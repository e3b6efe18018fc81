//! The threads of a pool: some open and close images, one removes images that nothing needs, and
//! one checks for overdue requests.

use super::cluster::errno;
use super::metadata::{
    Changes, InstanceRecord, MakingRecord, SnapshotRecord, SnapshotState, VolumeRecord,
};
use super::volume::Work;
use super::watchdog::TICK;
use super::{Shared, State, gone_key, image, making_key};
use crate::StoreError;
use evenkeel_os::clock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of threads that open and close images; they mostly wait for the cluster.
const WORKERS: usize = 8;
/// Time between two attempts to remove images that could not be removed before.
const SWEEP: Duration = Duration::from_secs(30);
/// Maximum time that the end of the pool waits for its threads, so that a cluster that does not
/// answer does not block the end of the process.
const STOP_MAX: Duration = Duration::from_secs(20);

/// The threads.
pub(super) struct Upkeep {
    work: Option<Sender<Work>>,
    is_ending: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    ended: Mutex<Receiver<()>>,
}

impl Upkeep {
    pub(super) fn start(shared: &Arc<Shared>, woken: Receiver<()>) -> Result<Self, StoreError> {
        let (work, works) = channel();
        let (ends, ended) = channel();
        let is_ending = Arc::new(AtomicBool::new(false));
        let works = Arc::new(Mutex::new(works));
        let mut threads = Vec::new();
        for _ in 0..WORKERS {
            let shared = Arc::clone(shared);
            let works = Arc::clone(&works);
            let ends = ends.clone();
            threads.push(start("evenkeel-rbd-work", move || {
                work_off(&shared, &works);
                drop(ends);
            })?);
        }
        let watched = Arc::clone(shared);
        let ending = Arc::clone(&is_ending);
        let ends_too = ends.clone();
        threads.push(start("evenkeel-rbd-watch", move || {
            watch(&watched, &ending);
            drop(ends_too);
        })?);
        let looked = Arc::clone(shared);
        let ending = Arc::clone(&is_ending);
        threads.push(start("evenkeel-rbd-upkeep", move || {
            look_after(&looked, &woken, &ending);
            drop(ends);
        })?);
        Ok(Self { work: Some(work), is_ending, threads, ended: Mutex::new(ended) })
    }

    /// Returns the queue of volumes that are to be opened or closed.
    pub(super) fn work(&self) -> Sender<Work> {
        match &self.work {
            Some(work) => work.clone(),
            None => unreachable!("a volume is opened while the pool ends"),
        }
    }

    /// Ends the threads. Returns whether they have ended, so that no image is open.
    pub(super) fn stop(&mut self, shared: &Shared) -> bool {
        self.is_ending.store(true, Ordering::Release);
        self.work = None;
        shared.sweep_soon();
        // No thread ever sends: the channel disconnects when the last one has ended.
        match self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(STOP_MAX) {
            Err(RecvTimeoutError::Disconnected) | Ok(()) => {
                self.threads.drain(..).for_each(|thread| drop(thread.join()));
                true
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!(
                    "an image was not closed or removed in time; the next start fences this one"
                );
                false
            }
        }
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).map_err(|error| StoreError::io("start a thread of the pool", error))
}

fn work_off(shared: &Shared, works: &Mutex<Receiver<Work>>) {
    loop {
        let next = works.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(Work::Open(slot)) => {
                // While the cluster does not answer, the watchdog requests its newest map.
                let begun = slot.overdue.begun();
                slot.open(|| shared.open_image(slot.id, &slot.image));
                slot.overdue.ended(begun);
            }
            Ok(Work::Relock(slot, pause)) => {
                clock::pause(pause);
                let begun = slot.overdue.begun();
                slot.relock(|image| shared.relock(image));
                slot.overdue.ended(begun);
            }
            Ok(Work::Close(slot, in_flight)) => shared.close(&slot, in_flight),
            Err(_) => return,
        }
    }
}

/// Requests the newest map of the cluster while requests are overdue.
fn watch(shared: &Shared, is_ending: &AtomicBool) {
    while !is_ending.load(Ordering::Acquire) {
        clock::pause(TICK);
        shared.ask_for_overdue();
    }
}

/// Removes images that nothing needs, when [`Shared::sweep_soon`] is called, and periodically.
fn look_after(shared: &Shared, woken: &Receiver<()>, is_ending: &AtomicBool) {
    while !is_ending.load(Ordering::Acquire) {
        if let Err(error) = shared.sweep(is_ending) {
            tracing::warn!(%error, "images that nothing needs were not removed; tried again");
        }
        let _ = woken.recv_timeout(SWEEP);
        while woken.try_recv().is_ok() {}
    }
}

impl Shared {
    /// Requests the newest map if a request is overdue.
    fn ask_for_overdue(&self) {
        let is_overdue = self
            .volumes()
            .values()
            .filter_map(|state| match state {
                State::Open(slot) => Some(slot),
                _ => None,
            })
            .fold(false, |any, slot| slot.overdue.tick() | any);
        if is_overdue && let Err(error) = self.cluster.wait_for_latest_map() {
            tracing::warn!(%error, "requests are overdue");
        }
    }

    /// Wakes the thread that removes images that nothing needs.
    pub(super) fn sweep_soon(&self) {
        let _ = self.wake.send(());
    }

    /// Removes the images that nothing needs.
    fn sweep(&self, is_ending: &AtomicBool) -> Result<(), StoreError> {
        self.give_up_unmade()?;
        let gone = self.books.all::<bool>("g/")?;
        if gone.is_empty() {
            return Ok(());
        }
        let snapshots = self.books.all::<SnapshotRecord>("s/")?;
        let volumes = self.books.all::<VolumeRecord>("v/")?;
        let needed: BTreeSet<&str> = snapshots
            .values()
            .map(|record| record.image.as_str())
            .chain(volumes.values().map(|record| record.image.as_str()))
            .collect();
        for name in gone.keys().filter(|name| !needed.contains(name.as_str())) {
            if is_ending.load(Ordering::Acquire) {
                return Ok(());
            }
            // Another process may have removed it, and a new one may have its name.
            if self.books.get::<bool>(&gone_key(name))?.is_none() {
                continue;
            }
            match image::remove(&self.cluster, name) {
                Ok(()) => {}
                Err(error) => match errno(&error) {
                    Some(libc::ENOENT) => {}
                    // A volume that was made of one of its snapshots still reads it.
                    Some(libc::EBUSY | libc::ENOTEMPTY) => continue,
                    _ => return Err(error),
                },
            }
            self.books.remove(&gone_key(name))?;
        }
        Ok(())
    }

    /// Removes snapshots whose making process has ended before they were complete.
    pub(super) fn forget_unfinished(&self) -> Result<(), StoreError> {
        for (id, record) in self.books.all::<SnapshotRecord>("s/")? {
            if record.state != SnapshotState::Making || self.may_be_making(&record.maker)? {
                continue;
            }
            self.remove_unlocked(&record.image, &id)?;
            self.books.remove(&format!("s/{id}"))?;
        }
        Ok(())
    }

    /// Gives up images whose making process has ended before a volume or a snapshot had them. They
    /// are removed like those of deleted volumes.
    fn give_up_unmade(&self) -> Result<(), StoreError> {
        for (image, record) in self.books.all::<MakingRecord>("p/")? {
            if self.may_be_making(&record.maker)? {
                continue;
            }
            let key = making_key(&image);
            let given_up = Changes::default().expect(&key, &record)?.remove(&key)?;
            match self.books.change(&given_up.set(&gone_key(&image), &true)?) {
                Ok(()) => {
                    let MakingRecord { maker } = record;
                    tracing::warn!(
                        image,
                        maker,
                        "an image is removed: its server has ended while it made it, and no \
                         volume or snapshot has it"
                    );
                }
                // Another process was first.
                Err(error) if errno(&error) == Some(libc::ECANCELED) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether the process with this address may still run.
    fn may_be_making(&self, maker: &str) -> Result<bool, StoreError> {
        Ok(!maker.is_empty() && self.books.get::<InstanceRecord>(&format!("i/{maker}"))?.is_some())
    }
}
