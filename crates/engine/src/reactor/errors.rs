//! What went wrong with a volume's requests: counted, and remembered where acknowledged data may be
//! gone.
//!
//! A kernel tells of a failed fsync once, and may drop what it could not write: the next one
//! succeeds, and what it is taken to make durable is not there. So the first failure stands, for
//! every connection, until the volume is detached from all its hosts and attached again: whoever
//! uses it then has seen the failure, and begins with what is at rest.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::{Failure, Operation, Request};
use evenkeel_wire::agent::IoErrors;

/// See the module's text.
#[derive(Clone, Copy, Default)]
pub(super) struct Errors(IoErrors);

impl Errors {
    /// How a part of a request ended, as its client is to see it.
    pub(super) fn seen(
        &mut self,
        id: VolumeId,
        operation: Operation,
        result: Result<(), Failure>,
    ) -> Result<(), Failure> {
        match (operation, result) {
            (Operation::Flush, Ok(())) if self.0.flush_failed => Err(Failure::Io),
            // Another server has the volume, and what was acknowledged: nothing is lost.
            (Operation::Flush, Err(Failure::ShuttingDown)) => result,
            (Operation::Flush, Err(_)) => self.flush_failed(id, result),
            // It is made durable by the same means as a flush.
            (operation, Err(Failure::Io | Failure::Rotten)) if operation.is_durable() => {
                self.flush_failed(id, result)
            }
            _ => result,
        }
    }

    fn flush_failed(&mut self, id: VolumeId, result: Result<(), Failure>) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.0.flush_failed, true) {
            tracing::error!(
                volume = %id,
                "a flush failed: what was acknowledged since the last one may be lost; every \
                 flush fails until the volume is detached from all hosts and attached again"
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
                // A client that tries again and again fills no log.
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

    /// The volume is attached anew: who uses it from now on has read nothing of it yet.
    pub(super) fn begin_anew(&mut self) {
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
        let (flush, write) = (Operation::Flush, Operation::Write { fua: false });
        for (failing, failure) in [
            (flush, Failure::Io),
            (flush, Failure::NoSpace),
            (Operation::Write { fua: true }, Failure::Io),
            (Operation::Discard { fua: true }, Failure::Io),
        ] {
            let mut errors = Errors::default();
            assert_eq!(errors.seen(id, write, Err(Failure::Io)), Err(Failure::Io));
            assert_eq!(errors.seen(id, flush, Ok(())), Ok(()), "a failed write is no failed flush");
            let elsewhere = Err(Failure::ShuttingDown);
            assert_eq!(errors.seen(id, failing, elsewhere), elsewhere);
            assert_eq!(errors.seen(id, flush, Ok(())), Ok(()), "it is served elsewhere");
            assert_eq!(errors.seen(id, failing, Err(failure)), Err(failure));
            for _ in 0..3 {
                assert_eq!(errors.seen(id, flush, Ok(())), Err(Failure::Io));
                assert_eq!(errors.seen(id, write, Ok(())), Ok(()));
            }
            errors.begin_anew();
            assert_eq!(errors.seen(id, flush, Ok(())), Ok(()));
        }
    }
}
