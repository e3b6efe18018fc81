//! Faults of the I/O of volumes that a server for tests injects, by the names of AWS FIS. Pure.
//!
//! The control plane decides which faults there are, and the store in front of the others
//! executes them. Each fault has its own end, so no message is needed when one is over.

use alloc::vec::Vec;

use crate::ids::VolumeId;
use crate::random::Random;
use crate::request::Operation;
use crate::time::{Duration, Instant};

/// The share of reads, or of writes, that a fault concerns, and the time that it adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// How many of a million requests are concerned.
    pub ppm: u32,
    /// The time that is added to each of them.
    pub added: Duration,
}

/// The effect of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoFaultKind {
    /// No request is answered (`aws:ebs:pause-volume-io`).
    Pause,
    /// Requests take longer (`aws:ebs:volume-io-latency`).
    Latency {
        /// Reads.
        reads: Share,
        /// Writes, discards, writes of zeroes and flushes.
        writes: Share,
    },
    /// Requests fail with an I/O error. Flushes do not: EBS answers a write when it is durable, so
    /// its flushes have nothing to do.
    Error {
        /// How many of a million reads fail.
        reads_ppm: u32,
        /// How many of a million writes, discards and writes of zeroes fail.
        writes_ppm: u32,
    },
}

/// A fault that is in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IoFault {
    /// Its number, which no other fault of the server has.
    pub number: u64,
    /// Its effect.
    pub kind: IoFaultKind,
    /// The volumes that it concerns; empty for all.
    pub volumes: Vec<VolumeId>,
    /// The seed of its random choices. Those of each volume depend only on it and on the requests.
    pub seed: u64,
    /// Its end, on the machine's monotonic clock.
    pub until: Instant,
}

/// The effect of a fault on one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// None.
    Nothing,
    /// It is not answered while the fault is in force.
    Waits,
    /// Its answer comes later.
    Delayed(Duration),
    /// It fails.
    Fails,
}

impl IoFault {
    /// Returns whether the fault is in force for a volume.
    #[must_use]
    pub fn concerns(&self, id: VolumeId, now: Instant) -> bool {
        now < self.until && (self.volumes.is_empty() || self.volumes.contains(&id))
    }

    /// Returns the generator of its choices for a volume.
    #[must_use]
    pub fn choices(&self, id: VolumeId) -> Random {
        Random::of_volume(self.seed, id)
    }

    /// Decides about one request of a volume that the fault concerns.
    pub fn decide(&self, choices: &mut Random, operation: Operation) -> Effect {
        let is_read = operation == Operation::Read;
        // Questions about the volume are not I/O.
        if matches!(operation, Operation::BlockStatus | Operation::Cache) {
            let pauses = self.kind == IoFaultKind::Pause;
            return if pauses { Effect::Waits } else { Effect::Nothing };
        }
        match self.kind {
            IoFaultKind::Pause => Effect::Waits,
            IoFaultKind::Latency { reads, writes } => {
                let share = if is_read { reads } else { writes };
                if choices.chance_ppm(share.ppm) {
                    Effect::Delayed(share.added)
                } else {
                    Effect::Nothing
                }
            }
            IoFaultKind::Error { .. } if operation == Operation::Flush => Effect::Nothing,
            IoFaultKind::Error { reads_ppm, writes_ppm } => {
                let ppm = if is_read { reads_ppm } else { writes_ppm };
                if choices.chance_ppm(ppm) { Effect::Fails } else { Effect::Nothing }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const ID: VolumeId = VolumeId::from_bits(7);

    fn fault(kind: IoFaultKind) -> IoFault {
        IoFault { number: 1, kind, volumes: vec![ID], seed: 3, until: Instant::from_ns(1_000) }
    }

    #[test]
    fn faults_concern_their_volumes_until_their_end() {
        let some = fault(IoFaultKind::Pause);
        assert!(some.concerns(ID, Instant::from_ns(999)));
        assert!(!some.concerns(ID, Instant::from_ns(1_000)));
        assert!(!some.concerns(VolumeId::from_bits(8), Instant::ZERO));
        let all = IoFault { volumes: vec![], ..some };
        assert!(all.concerns(VolumeId::from_bits(8), Instant::ZERO));
    }

    #[test]
    fn choices_follow_the_seed_and_the_share() {
        let added = Duration::from_ms(100);
        let reads = Share { ppm: 250_000, added };
        let writes = Share { ppm: 1_000_000, added: Duration::from_ms(7) };
        let latency = fault(IoFaultKind::Latency { reads, writes });
        let run = |fault: &IoFault| {
            let mut choices = fault.choices(ID);
            (0..4_000).map(|_| fault.decide(&mut choices, Operation::Read)).collect::<vec::Vec<_>>()
        };
        let first = run(&latency);
        assert_eq!(first, run(&latency));
        assert_ne!(first, run(&IoFault { seed: 4, ..latency.clone() }));
        let delayed = first.iter().filter(|effect| **effect == Effect::Delayed(added)).count();
        assert!((900..1_100).contains(&delayed), "{delayed} of 4000 for a quarter");
        let mut choices = latency.choices(ID);
        let written = latency.decide(&mut choices, Operation::Write { fua: false });
        assert_eq!(written, Effect::Delayed(Duration::from_ms(7)));
        let errors = fault(IoFaultKind::Error { reads_ppm: 0, writes_ppm: 1_000_000 });
        let write = Operation::Write { fua: true };
        assert_eq!(errors.decide(&mut errors.choices(ID), write), Effect::Fails);
        assert_eq!(errors.decide(&mut errors.choices(ID), Operation::Flush), Effect::Nothing);
        assert_eq!(errors.decide(&mut errors.choices(ID), Operation::Read), Effect::Nothing);
        assert_eq!(errors.decide(&mut errors.choices(ID), Operation::BlockStatus), Effect::Nothing);
    }
}
