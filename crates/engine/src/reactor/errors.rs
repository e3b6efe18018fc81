//! Failures of a volume's requests: counted, and remembered if acknowledged data may be lost.
//!
//! A kernel reports a failed fsync once, and may drop the data that it could not write. The next
//! fsync succeeds although that data is lost. So the first failure counts for every connection
//! until the volume is detached from all its hosts and attached again: its users have seen the
//! failure then, and begin with the data on the disk. Until then flushes and all changes of the
//! volume fail: no change could become durable, and writes behind a gap make the damage larger.
//! Reads succeed. A mark in the pool tells the next process (`flush_marks.rs`). A file system ends
//! at the first such error, and a database stops.
//!
//! A flush for which a store has no space is no such failure: the store keeps the acknowledged
//! data, and a later flush makes it durable.

use crate::flush_marks::FlushMarks;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::{Failure, Operation, Request};
use evenkeel_wire::agent::IoErrors;

/// Failures of one volume; see the module's text.
#[derive(Clone, Copy, Default)]
pub(super) struct Errors(IoErrors);

impl Errors {
    /// Creates the state of a volume that is opened. A flush may have failed before, in this
    /// process or another one.
    pub(super) fn of(id: VolumeId, marks: &FlushMarks) -> Self {
        Self(IoErrors { flush_failed: marks.has(id), ..IoErrors::default() })
    }

    /// Returns whether an operation fails without being begun, because a flush has failed.
    pub(super) fn refuses(&self, operation: Operation) -> bool {
        self.0.flush_failed && (operation.is_write() || operation.is_durable())
    }

    /// Returns the result of a part of a request for its client. `must_reopen` is the state of the
    /// store.
    pub(super) fn seen(
        &mut self,
        (id, marks): (VolumeId, &FlushMarks),
        operation: Operation,
        result: Result<(), Failure>,
        must_reopen: bool,
    ) -> Result<(), Failure> {
        match (operation, result) {
            // The store has failed to make acknowledged data durable.
            (_, Err(Failure::Io)) if must_reopen => self.flush_failed((id, marks), result),
            (Operation::Flush, Ok(())) if self.0.flush_failed => Err(Failure::Io),
            // Another server has the volume and the acknowledged data: nothing is lost.
            (Operation::Flush, Err(Failure::ShuttingDown)) => result,
            // The store keeps the acknowledged data, and a later flush makes it durable.
            (Operation::Flush, Err(Failure::NoSpace)) if !must_reopen => result,
            (Operation::Flush, Err(_)) => self.flush_failed((id, marks), result),
            // It is made durable by the same means as a flush.
            (operation, Err(Failure::Io | Failure::Rotten)) if operation.is_durable() => {
                self.flush_failed((id, marks), result)
            }
            _ => result,
        }
    }

    fn flush_failed(
        &mut self,
        (id, marks): (VolumeId, &FlushMarks),
        result: Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.0.flush_failed, true) {
            marks.note(id);
            tracing::error!(
                volume = %id,
                "a flush failed: what was acknowledged since the last one may be lost; flushes \
                 and writes fail until the volume is detached from all hosts and attached again"
            );
        }
        result
    }

    /// Counts a request that was answered with a failure.
    pub(super) fn count(&mut self, id: VolumeId, request: &Request, failure: Failure) {
        match failure {
            Failure::Io => self.0.device += 1,
            Failure::NoSpace => self.0.no_space += 1,
            Failure::Rotten => {
                self.0.rotten += 1;
                self.0.is_rotten = true;
                // A client that repeats the request does not flood the log.
                if self.0.rotten.is_power_of_two() {
                    tracing::error!(
                        volume = %id,
                        offset = request.offset,
                        length = request.length,
                        requests = self.0.rotten,
                        "data is not as it was written: the device has changed it, and reading it \
                         is an error until it is written anew"
                    );
                }
            }
            _ => {}
        }
    }

    /// Clears the failures when the volume is attached anew: its new users have read no data of it
    /// yet.
    pub(super) fn begin_anew(&mut self, id: VolumeId, marks: &FlushMarks) {
        marks.begin_anew(id);
        self.0.flush_failed = false;
        self.0.is_rotten = false;
    }

    pub(super) fn report(self) -> IoErrors {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_flush_stands_until_the_volume_is_attached_anew() {
        let id = VolumeId::from_bits(1);
        let flush = Operation::Flush;
        let write = Operation::Write { fua: false };
        for (failing, failure) in [
            (flush, Failure::Io),
            (flush, Failure::Rotten),
            (Operation::Write { fua: true }, Failure::Io),
            (Operation::Discard { fua: true }, Failure::Io),
        ] {
            let mut errors = Errors::default();
            let marks = FlushMarks::default();
            let mut seen = |operation, result| errors.seen((id, &marks), operation, result, false);
            assert_eq!(seen(write, Err(Failure::Io)), Err(Failure::Io));
            assert_eq!(seen(flush, Ok(())), Ok(()), "a failed write is no failed flush");
            let elsewhere = Err(Failure::ShuttingDown);
            assert_eq!(seen(failing, elsewhere), elsewhere);
            assert_eq!(seen(flush, Ok(())), Ok(()), "it is served elsewhere");
            assert!(!marks.has(id));
            assert_eq!(seen(failing, Err(failure)), Err(failure));
            assert!(marks.has(id));
            for _ in 0..3 {
                assert_eq!(seen(flush, Ok(())), Err(Failure::Io));
                assert_eq!(seen(write, Ok(())), Ok(()), "it was under way");
            }
            refuses_changes(&errors);
            refuses_changes(&Errors::of(id, &marks));
            errors.begin_anew(id, &marks);
            assert!(!marks.has(id));
            assert_eq!(errors.seen((id, &marks), flush, Ok(()), false), Ok(()));
            assert!(!errors.refuses(write) && !errors.refuses(flush));
        }
    }

    fn refuses_changes(errors: &Errors) {
        let fua = false;
        let keep_allocated = false;
        let only_if_fast = false;
        let zeroes = Operation::WriteZeroes { fua, keep_allocated, only_if_fast };
        for operation in
            [Operation::Write { fua }, Operation::Discard { fua }, zeroes, Operation::Flush]
        {
            assert!(errors.refuses(operation), "{operation:?}");
        }
        for operation in [Operation::Read, Operation::BlockStatus, Operation::Cache] {
            assert!(!errors.refuses(operation), "{operation:?}");
        }
    }

    /// A store that has no space for a flush keeps what was acknowledged.
    #[test]
    fn a_flush_without_space_can_be_repeated() {
        let id = VolumeId::from_bits(1);
        let flush = Operation::Flush;
        let mut errors = Errors::default();
        let marks = FlushMarks::default();
        let no_space = Err(Failure::NoSpace);
        for must_reopen in [false, true] {
            let mut seen = |result| errors.seen((id, &marks), flush, result, must_reopen);
            assert_eq!(seen(no_space), no_space);
            if !must_reopen {
                assert_eq!(seen(Ok(())), Ok(()), "there is space again");
                assert!(!errors.refuses(flush) && !marks.has(id));
            }
        }
        assert!(errors.refuses(flush) && marks.has(id), "the store must be opened again");
    }

    #[test]
    fn a_store_that_must_be_opened_anew_counts_as_a_failed_flush() {
        let id = VolumeId::from_bits(1);
        let write = Operation::Write { fua: false };
        let mut errors = Errors::default();
        let marks = FlushMarks::default();
        let mut seen = |result| errors.seen((id, &marks), write, result, true);
        assert_eq!(seen(Err(Failure::NoSpace)), Err(Failure::NoSpace));
        assert!(!marks.has(id));
        assert_eq!(seen(Err(Failure::Io)), Err(Failure::Io));
        assert!(errors.report().flush_failed);
        refuses_changes(&errors);
    }
}
