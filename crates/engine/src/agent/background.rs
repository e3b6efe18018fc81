//! Background work in the caller's thread: stored data is read and verified against its checksums,
//! snapshots are copied. Each piece has a permit from the core that schedules all such work.

use super::{EngineAgent, failed};
use crate::reactor::{Message, Probe, Wanted};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::limits::{BACKGROUND_BYTES_PER_SECOND, QUANTUM_BYTES_MAX};
use evenkeel_core::qos::scheduler::Ticket;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use evenkeel_store::buffer::Buffer;
use evenkeel_store::snapshots::UNIT_BYTES;
use evenkeel_store::{Completion, Extent, LOOKED_BYTES, StoreError};
use evenkeel_wire::agent::{BackgroundReport, Failed, FailedKind, Verified};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

/// The core that schedules background work.
const CORE: u16 = 0;
/// Limits of one call: bytes that it reads, and extents that it examines.
const VERIFIED_BYTES_MAX: u64 = 16 << 20;
const PLACES_MAX: usize = 64;
/// Maximum number of damaged places that one call returns.
const ROTTEN_MAX: usize = 64;
/// Bytes with a checksum of their own.
const BLOCK_BYTES: u64 = 4_096;
/// Maximum length of one query for holes. The store's answer ends earlier where the rest would cost
/// it much work.
const ASKED_BYTES_MAX: u64 = u32::MAX as u64 - (BLOCK_BYTES - 1);
/// Attempts to reach a volume that moves between cores.
const TRIES: u32 = 3;

/// Purpose of background work; its bytes are counted by it.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Verify,
    Read,
    Fill,
}

/// Limit of all background work, and counters of its bytes.
pub(super) struct Background {
    bytes_per_second: AtomicU64,
    waiting: AtomicU32,
    verified: AtomicU64,
    read: AtomicU64,
    filled: AtomicU64,
}

impl Default for Background {
    fn default() -> Self {
        Self {
            bytes_per_second: BACKGROUND_BYTES_PER_SECOND.into(),
            waiting: AtomicU32::default(),
            verified: AtomicU64::default(),
            read: AtomicU64::default(),
            filled: AtomicU64::default(),
        }
    }
}

/// Permission to read or write a number of bytes. It ends when this is dropped.
pub(super) struct Permit<'a> {
    agent: &'a EngineAgent,
    ticket: Ticket,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.agent.inboxes[usize::from(CORE)].post(Message::PermitEnds(self.ticket));
    }
}

/// Result of verifying the beginning of an extent; each variant has its length in bytes.
enum Place {
    /// The bytes are without data.
    Hole(u64),
    /// The bytes were read and match their checksums.
    Sound(u64),
    /// The bytes were read; the blocks at these offsets do not have the data that was written.
    Rotten(u64, Vec<u64>),
}

impl Place {
    fn length(&self) -> u64 {
        match self {
            Self::Hole(length) | Self::Sound(length) | Self::Rotten(length, _) => *length,
        }
    }
}

impl EngineAgent {
    pub(super) fn set_background(&self, bytes_per_second: ByteCount) {
        self.background.bytes_per_second.store(bytes_per_second.0.max(1), Ordering::Relaxed);
    }

    pub(super) fn background_report(&self) -> BackgroundReport {
        let Background { bytes_per_second, waiting, verified, read, filled } = &self.background;
        let bytes = |of: &AtomicU64| ByteCount(of.load(Ordering::Relaxed));
        BackgroundReport {
            bytes_per_second: bytes(bytes_per_second),
            waiting: waiting.load(Ordering::Relaxed),
            verified: bytes(verified),
            read: bytes(read),
            filled: bytes(filled),
        }
    }

    /// Waits until the device has time for `bytes`, limited to one quantum, and counts them as
    /// done.
    pub(super) fn permit(&self, work: Work, bytes: u64) -> Result<Permit<'_>, Failed> {
        let bytes = bytes.min(QUANTUM_BYTES_MAX.into());
        let permit = self.turn(bytes, matches!(work, Work::Fill))?;
        let done = match work {
            Work::Verify => &self.background.verified,
            Work::Read => &self.background.read,
            Work::Fill => &self.background.filled,
        };
        done.fetch_add(bytes, Ordering::Relaxed);
        Ok(permit)
    }

    /// Waits until the device has time for `bytes`.
    fn turn(&self, bytes: u64, is_write: bool) -> Result<Permit<'_>, Failed> {
        let bytes_per_second = self.background.bytes_per_second.load(Ordering::Relaxed);
        let (ack, answer) = sync_channel(1);
        let wanted = Wanted { bytes: bytes as u32, is_write, bytes_per_second, ack };
        self.background.waiting.fetch_add(1, Ordering::Relaxed);
        self.inboxes[usize::from(CORE)].post(Message::Permit(wanted));
        let answer = answer.recv_timeout(self.answer_max);
        self.background.waiting.fetch_sub(1, Ordering::Relaxed);
        let ticket = answer.map_err(|error| Failed {
            kind: FailedKind::Unanswered,
            message: match error {
                RecvTimeoutError::Timeout => format!(
                    "volumes have used the device to its limits for {} s: background work gets \
                     what they leave; try again later",
                    self.answer_max.as_secs()
                ),
                RecvTimeoutError::Disconnected => {
                    "there is too much background work at once; try again".to_owned()
                }
            },
        })?;
        Ok(Permit { agent: self, ticket })
    }

    /// Waits for permits for all quanta of a snapshot's unit, which is read or written as a whole.
    /// Returns the last permit. The others end at once, so the device may have more of the unit in
    /// flight than one quantum.
    pub(super) fn permit_unit(&self, work: Work) -> Result<Permit<'_>, Failed> {
        let quantum = u64::from(QUANTUM_BYTES_MAX);
        let mut permit = self.permit(work, quantum)?;
        for _ in 1..UNIT_BYTES / quantum {
            permit = self.permit(work, quantum)?;
        }
        Ok(permit)
    }

    /// Verifies a volume from `offset` on. Returns the damaged places, and where to continue.
    pub(super) fn verify(&self, id: VolumeId, offset: u64) -> Result<Verified, Failed> {
        let entry = self.directory.get(id).ok_or_else(|| not_served(id))?;
        let size = entry.geometry.size.0;
        let mut start = offset / BLOCK_BYTES * BLOCK_BYTES;
        let mut bytes = 0;
        let mut rotten = Vec::new();
        // Extents of the last block status that are not verified yet, from `at` on.
        let mut ahead = VecDeque::new();
        for _ in 0..PLACES_MAX {
            if start >= size || bytes >= VERIFIED_BYTES_MAX || rotten.len() >= ROTTEN_MAX {
                break;
            }
            if ahead.is_empty() {
                ahead = self.look_ahead(id, start, size - start)?;
            }
            let Some(extent) = ahead.pop_front() else { break };
            let place = self.verify_place(id, start, extent)?;
            let rest = u64::from(extent.length).saturating_sub(place.length()) as u32;
            if rest > 0 {
                ahead.push_front(Extent { length: rest, ..extent });
            }
            start += match place {
                Place::Hole(length) => length,
                Place::Sound(length) => {
                    bytes += length;
                    length
                }
                Place::Rotten(length, mut places) => {
                    bytes += length;
                    rotten.append(&mut places);
                    length
                }
            };
        }
        Ok(Verified { next: (start < size).then_some(start), bytes: ByteCount(bytes), rotten })
    }

    /// Asks the store for the extents from `at` on. The query is charged like the read of one
    /// block.
    fn look_ahead(&self, id: VolumeId, at: u64, left: u64) -> Result<VecDeque<Extent>, Failed> {
        let _permit = self.turn(BLOCK_BYTES, false)?;
        let asked = left.min(ASKED_BYTES_MAX);
        let status = self.probe(id, Operation::BlockStatus, at, asked)?;
        match status.result {
            Ok(()) => Ok(status.extents.into()),
            // If the store cannot tell, the read finds the damaged blocks.
            Err(Failure::Rotten | Failure::Io) => {
                let length = left.min(QUANTUM_BYTES_MAX.into()) as u32;
                Ok(VecDeque::from([Extent { length, hole: false, zero: false }]))
            }
            Err(failure) => Err(unreadable(id, at, failure)),
        }
    }

    /// Reads the beginning of an extent, at most a quantum; skips a hole.
    fn verify_place(&self, id: VolumeId, at: u64, extent: Extent) -> Result<Place, Failed> {
        if extent.hole {
            return Ok(Place::Hole(extent.length.into()));
        }
        let length = u64::from(extent.length).min(QUANTUM_BYTES_MAX.into());
        let read = {
            let _permit = self.permit(Work::Verify, length)?;
            self.probe(id, Operation::Read, at, length)?
        };
        match read.result {
            Ok(()) => return Ok(Place::Sound(length)),
            Err(Failure::Rotten | Failure::Io) => {}
            Err(failure) => return Err(unreadable(id, at, failure)),
        }
        let mut rotten = Vec::new();
        for block in (at..at + length).step_by(BLOCK_BYTES as usize) {
            let _permit = self.permit(Work::Verify, BLOCK_BYTES)?;
            let length = BLOCK_BYTES.min(at + length - block);
            match self.probe(id, Operation::Read, block, length)?.result {
                Ok(()) => {}
                Err(Failure::Rotten | Failure::Io) => rotten.push(block),
                Err(failure) => return Err(unreadable(id, block, failure)),
            }
        }
        Ok(Place::Rotten(length, rotten))
    }

    /// Reads from a volume, or asks for its extents, through its home core.
    fn probe(
        &self,
        id: VolumeId,
        operation: Operation,
        offset: u64,
        length: u64,
    ) -> Result<Completion, Failed> {
        for _ in 0..TRIES {
            let Some(entry) = self.directory.get(id) else { break };
            let is_read = operation == Operation::Read;
            let buffer = is_read.then(|| Buffer::new(length as usize));
            let (ack, answer) = sync_channel(1);
            let probe = Probe { operation, offset, length: length as u32, buffer, ack };
            self.inboxes[usize::from(entry.home)].post(Message::Probe(id, probe));
            match answer.recv_timeout(self.answer_max) {
                Ok(completion) => return Ok(completion),
                Err(RecvTimeoutError::Timeout) => return Err(self.no_answer()),
                // The volume moves to another core, or is being closed.
                Err(RecvTimeoutError::Disconnected) => {
                    drop(self.placement());
                }
            }
        }
        Err(not_served(id))
    }

    /// Verifies the store's own data (tables, logs, maps) from `place` on.
    pub(super) fn verify_store(&self, place: u64) -> Result<Verified, Failed> {
        let mut next = Some(place);
        let mut bytes = 0;
        let mut rotten = Vec::new();
        for _ in 0..PLACES_MAX {
            let Some(place) = next else { break };
            if bytes >= VERIFIED_BYTES_MAX || rotten.len() >= ROTTEN_MAX {
                break;
            }
            let _permit = self.permit(Work::Verify, LOOKED_BYTES)?;
            let looked = self.pool.look_at(place).map_err(failed)?;
            (next, bytes) = (looked.next, bytes + looked.bytes);
            rotten.extend(looked.rotten);
        }
        // Damaged data of which the store still has a copy in memory is rewritten.
        self.attend_all();
        Ok(Verified { next, bytes: ByteCount(bytes), rotten })
    }

    /// Verifies a snapshot from the unit `first` on. Returns the first bytes of its damaged units.
    pub(super) fn verify_snapshot(&self, id: SnapshotId, first: u64) -> Result<Verified, Failed> {
        let snapshots = self.snapshots()?;
        let mut bytes = 0;
        let mut rotten = Vec::new();
        let units = (VERIFIED_BYTES_MAX / UNIT_BYTES) as usize;
        let found = snapshots.units(id, None, first, units).map_err(failed)?;
        for unit in found.units {
            let _permit = self.permit_unit(Work::Verify)?;
            match snapshots.read(id, unit) {
                Ok(_) => {}
                Err(StoreError::Rotten { .. } | StoreError::Io { .. }) => {
                    rotten.push(unit * UNIT_BYTES);
                }
                Err(error) => return Err(failed(error)),
            }
            bytes += UNIT_BYTES;
        }
        Ok(Verified { next: found.next, bytes: ByteCount(bytes), rotten })
    }
}

fn not_served(id: VolumeId) -> Failed {
    Failed { kind: FailedKind::NotFound, message: format!("volume {id} is not served") }
}

fn unreadable(id: VolumeId, at: u64, failure: Failure) -> Failed {
    let message = format!("volume {id} cannot be read at byte {at}: {failure:?}");
    Failed { kind: FailedKind::Internal, message }
}
