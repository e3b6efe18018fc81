//! Exports of snapshots: in a folder or at an S3-compatible endpoint, to be imported by any server.
//!
//! An export is a *manifest*, which lists the units that have data with their SHA-256, and *packs*,
//! which hold the units. The manifest is written last and names the packs of earlier exports that
//! it shares, so an incremental export is small and every import needs one manifest only. See
//! docs/operating/snapshots.md for the bytes.
//!
//! | file | what it does |
//! | --- | --- |
//! | `manifest` | the manifest's JSON, read and written. Pure |
//! | `pack` | a pack's bytes. Pure |
//! | `destination` | the folder or the bucket |
//! | `seal` | encrypts the objects of a destination. Pure |
//! | `reader` | reads units of a snapshot through the server |
//! | `write` | exports a snapshot |
//! | `restore` | imports one, verifies one |

pub mod destination;
pub mod manifest;
pub mod pack;
pub mod reader;
pub mod restore;
pub mod seal;
pub mod write;

use crate::output::Failure;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The bytes of a unit: a block of the EBS direct APIs.
pub const UNIT_BYTES: u64 = 512 << 10;

/// Executes `count` pieces of work in `jobs` threads, in order as far as possible, and calls `done`
/// in this thread for each that has ended. The first failure ends the work.
pub fn in_parallel<T: Send>(
    jobs: usize,
    count: usize,
    work: impl Fn(usize) -> Result<T, Failure> + Sync,
    mut done: impl FnMut(usize, T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let ends = AtomicBool::new(false);
    let failure = Mutex::new(None);
    // At most `jobs` results wait, so no thread runs ahead.
    let (send, results) = std::sync::mpsc::sync_channel(jobs);
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(count) {
            let send = send.clone();
            let next = &next;
            let ends = &ends;
            let work = &work;
            let failure = &failure;
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let result = work(number).map_err(|error| {
                        ends.store(true, Ordering::Relaxed);
                        if let Ok(mut first) = failure.lock() {
                            first.get_or_insert(error);
                        }
                    });
                    let Ok(result) = result else { return };
                    if send.send((number, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let ended = results.iter().try_for_each(|(number, result)| done(number, result));
        ends.store(true, Ordering::Relaxed);
        // Threads that wait to send a result stop.
        drop(results);
        ended
    })?;
    match failure.into_inner() {
        Ok(None) => Ok(()),
        Ok(Some(failure)) => Err(failure),
        Err(_) => Err(Failure::new("a thread of this program crashed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_done_once_and_a_failure_ends_it() {
        let mut sum = 0;
        in_parallel(3, 100, Ok, |_, number| {
            sum += number;
            Ok(())
        })
        .unwrap();
        assert_eq!(sum, 4_950);
        let work = |number| match number {
            7 => Err(Failure::new("seven")),
            number => Ok(number),
        };
        let failure = in_parallel(3, 1_000_000, work, |_, _| Ok(())).unwrap_err();
        assert_eq!(failure.message, "seven");
        let failure = in_parallel(3, 1_000_000, Ok, |_, _| Err(Failure::new("full"))).unwrap_err();
        assert_eq!(failure.message, "full");
    }
}
