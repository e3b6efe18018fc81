//! Threads that carry out disk operations for a driver, because their system calls may block.

use crate::table::VolumeSlot;
use evenkeel_store::disk::{DiskDone, DiskOp};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Worker threads, and the state that they share with their core.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    jobs: Mutex<Jobs>,
    more: Condvar,
    done: Mutex<Vec<(VolumeSlot, DiskDone)>>,
    bell: OwnedFd,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<(VolumeSlot, DiskOp)>,
    closed: bool,
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// If the process has too many open files or threads.
    pub fn start(count: u32) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let jobs = Mutex::default();
        let done = Mutex::default();
        let shared = Arc::new(Shared { jobs, more: Condvar::new(), done, bell });
        let mut workers = Self { shared, threads: Vec::new() };
        for _ in 0..count {
            let shared = Arc::clone(&workers.shared);
            let thread = std::thread::Builder::new().name("disk".to_owned());
            workers.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(workers)
    }

    /// Returns a descriptor that is readable if an operation is complete.
    pub fn bell(&self) -> &OwnedFd {
        &self.shared.bell
    }

    /// Adds an operation of a store to the queue.
    pub fn give(&self, store: VolumeSlot, op: DiskOp) {
        lock(&self.shared.jobs).queue.push_back((store, op));
        self.shared.more.notify_one();
    }

    /// Returns the completions with the numbers of their stores, and clears the bell.
    pub fn take_done(&self) -> Vec<(VolumeSlot, DiskDone)> {
        // It fails if the bell has not been rung.
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
        std::mem::take(&mut *lock(&self.shared.done))
    }
}

impl Drop for Workers {
    /// Waits until the workers have finished the queue.
    fn drop(&mut self) {
        lock(&self.shared.jobs).closed = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            // A worker has no code that panics. If one did, this is not the place to report it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some((store, op)) = self.next_job() {
            let done = op.execute();
            let mut waiting = lock(&self.done);
            waiting.push((store, done));
            let is_first = waiting.len() == 1;
            drop(waiting);
            if is_first {
                let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
            }
        }
    }

    fn next_job(&self) -> Option<(VolumeSlot, DiskOp)> {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.queue.pop_front() {
                return Some(job);
            }
            if jobs.closed {
                return None;
            }
            jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Queues are changed by single pushes and pops, so a panicked holder left them whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
