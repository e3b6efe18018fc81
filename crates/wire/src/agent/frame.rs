//! Frames: one message each. A head of twelve bytes, then the message's fields.
//!
//! ```text
//! byte   0       4         6      7          8        12
//!        "EVKA"  version   kind   reserved   length   body
//!        4       2         1      1 (zero)   4        length bytes
//! ```
//!
//! A message has exactly one encoding. Bytes that are not a message of this version are refused
//! with the field and its offset; nothing is skipped or guessed.

use alloc::vec::Vec;
use core::fmt;

use evenkeel_core::convert::exact;
use evenkeel_core::limits::AGENT_FRAME_BYTES_MAX;

use super::bytes::{Malformed, Problem, Reader, Wire, Writer};
use super::{Command, Reply, VERSION};

/// The length of the head in bytes.
pub const HEAD_BYTES: usize = 12;

/// The first bytes of a frame.
const MAGIC: [u8; 4] = *b"EVKA";

/// The error for a message that does not fit into a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong {
    /// The length that its frame would have, in bytes.
    pub length: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.length;
        write!(
            f,
            "the agent message has {length} bytes, the limit is {AGENT_FRAME_BYTES_MAX}; ask for \
             less at once"
        )
    }
}

impl core::error::Error for TooLong {}

/// The length of the frame that begins with this head, in bytes. A stream reader reads up to there.
///
/// # Errors
/// If it is not a frame of this version, or longer than a frame may be.
pub fn frame_bytes(head: &[u8; HEAD_BYTES]) -> Result<usize, Malformed> {
    let (_, length) = read_head(&mut Reader::new(head))?;
    Ok(HEAD_BYTES + length)
}

/// The kind of message, and the length of its body.
fn read_head(from: &mut Reader<'_>) -> Result<(u8, usize), Malformed> {
    from.in_field("magic", |from| match from.array()? {
        MAGIC => Ok(()),
        _ => Err(from.malformed(MAGIC.len(), Problem::NotAFrame)),
    })?;
    from.in_field("version", |from| match u16::read(from)? {
        VERSION => Ok(()),
        other => Err(from.malformed(2, Problem::UnknownVersion(other))),
    })?;
    let kind = from.field("kind")?;
    from.in_field("reserved", |from| match u8::read(from)? {
        0 => Ok(()),
        _ => Err(from.malformed(1, Problem::OutOfRange)),
    })?;
    let length = from.in_field("length", |from| {
        let length = u32::read(from)?;
        let whole = usize::try_from(length).ok().filter(|whole| {
            let frame = u32::try_from(whole.saturating_add(HEAD_BYTES));
            frame.is_ok_and(|frame| frame <= AGENT_FRAME_BYTES_MAX)
        });
        whole.ok_or_else(|| from.malformed(4, Problem::TooLong { length }))
    })?;
    Ok((kind, length))
}

/// Decodes one complete frame. `read` decodes the body, or returns an error for an unknown kind.
fn decode<T>(
    frame: &[u8],
    read: impl FnOnce(u8, &mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let mut from = Reader::new(frame);
    let (kind, length) = read_head(&mut from)?;
    from.in_field("body", |from| match from.left() {
        left if left < length => {
            Err(from.malformed(0, Problem::Truncated { needed: length, left }))
        }
        left if left > length => Err(from.malformed(0, Problem::Trailing { bytes: left - length })),
        _ => Ok(()),
    })?;
    let message = read(kind, &mut from)?;
    from.in_field("body", |from| from.finish())?;
    Ok(message)
}

fn encode(kind: u8, body: impl FnOnce(&mut Writer)) -> Result<Vec<u8>, TooLong> {
    let mut to = Writer::new();
    to.put(&MAGIC);
    VERSION.write(&mut to);
    kind.write(&mut to);
    [0_u8; 5].iter().for_each(|byte| byte.write(&mut to));
    body(&mut to);
    let mut frame = to.finish().map_err(|length| TooLong { length })?;
    let length: u32 = exact(frame.len().saturating_sub(HEAD_BYTES), "a frame is short");
    if let Some(field) = frame.get_mut(HEAD_BYTES - 4..HEAD_BYTES) {
        field.copy_from_slice(&length.to_be_bytes());
    }
    Ok(frame)
}

impl Command {
    const fn kind(&self) -> u8 {
        match self {
            Self::Create(_) => 0x01,
            Self::Apply(_) => 0x02,
            Self::Grow(..) => 0x03,
            Self::Delete(_) => 0x04,
            Self::ApplyHost(_) => 0x05,
            Self::DeleteHost(_) => 0x06,
            Self::Calibrated(_) => 0x07,
            Self::SetBalances(..) => 0x08,
            Self::Lease(_) => 0x09,
            Self::Report => 0x0a,
            Self::Balances => 0x0b,
            Self::Latencies(_) => 0x0c,
            Self::Stored => 0x0d,
            Self::Space => 0x0e,
            Self::Capacity => 0x0f,
            Self::CreateFrom(..) => 0x10,
            Self::Snapshot(..) => 0x11,
            Self::DeleteSnapshot(_) => 0x12,
            Self::Snapshots => 0x13,
            Self::SnapshotSet(_) => 0x14,
            Self::SnapshotUnits(_) => 0x15,
            Self::ReadSnapshot(..) => 0x16,
            Self::StartSnapshot(..) => 0x17,
            Self::PutSnapshot(..) => 0x18,
            Self::CompleteSnapshot(_) => 0x19,
            Self::SetBackground(_) => 0x1a,
            Self::Background => 0x1b,
            Self::Verify(..) => 0x1c,
            Self::VerifySnapshot(..) => 0x1d,
            Self::SnapshotsOf(_) => 0x1e,
            Self::ReportOf(_) => 0x1f,
            Self::Release(_) => 0x20,
            Self::Divide(_) => 0x21,
            Self::VerifyStore(_) => 0x22,
            Self::Filled(_) => 0x23,
            Self::Salvage(_) => 0x24,
            Self::StoreHealth => 0x25,
        }
    }

    /// Encodes the command as a frame.
    ///
    /// # Errors
    /// If it is longer than a frame may be.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        encode(self.kind(), |to| match self {
            Self::Create(state) | Self::Apply(state) => state.write(to),
            Self::Grow(state, from) => {
                state.write(to);
                from.write(to);
            }
            Self::Delete(id) | Self::Release(id) | Self::Salvage(id) => id.write(to),
            Self::ApplyHost(state) => state.write(to),
            Self::DeleteHost(id) => id.write(to),
            Self::Calibrated(model) => model.write(to),
            Self::Divide(part) => part.write(to),
            Self::SetBalances(id, balances) => {
                id.write(to);
                balances.write(to);
            }
            Self::Lease(unleased) => unleased.write(to),
            Self::Latencies(of) => of.write(to),
            Self::CreateFrom(state, snapshot) => {
                state.write(to);
                snapshot.write(to);
            }
            Self::Snapshot(volume, snapshot) => {
                volume.write(to);
                snapshot.write(to);
            }
            Self::DeleteSnapshot(id) | Self::CompleteSnapshot(id) => id.write(to),
            Self::SnapshotSet(set) => set.write(to),
            Self::SnapshotUnits(wanted) => wanted.write(to),
            Self::ReadSnapshot(id, unit) => {
                id.write(to);
                unit.write(to);
            }
            Self::StartSnapshot(new) => new.write(to),
            Self::PutSnapshot(id, unit, bytes) => {
                id.write(to);
                unit.write(to);
                bytes.write(to);
            }
            Self::Report | Self::Balances | Self::Stored | Self::Space => {}
            Self::Capacity | Self::Snapshots | Self::Background | Self::StoreHealth => {}
            Self::SnapshotsOf(ids) => ids.write(to),
            Self::ReportOf(ids) => ids.write(to),
            Self::SetBackground(limit) => limit.write(to),
            Self::Verify(id, offset) => {
                id.write(to);
                offset.write(to);
            }
            Self::VerifySnapshot(id, unit) => {
                id.write(to);
                unit.write(to);
            }
            Self::VerifyStore(place) => place.write(to),
            Self::Filled(ids) => ids.write(to),
        })
    }

    /// Decodes the command in a frame, which must be complete and have nothing after it.
    ///
    /// # Errors
    /// The wrong field and its offset.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        decode(frame, |kind, from| {
            Ok(match kind {
                0x01 => Self::Create(from.field("volume")?),
                0x02 => Self::Apply(from.field("volume")?),
                0x03 => Self::Grow(from.field("volume")?, from.field("grows_from")?),
                0x04 => Self::Delete(from.field("volume")?),
                0x05 => Self::ApplyHost(from.field("host")?),
                0x06 => Self::DeleteHost(from.field("host")?),
                0x07 => Self::Calibrated(from.field("device")?),
                0x08 => Self::SetBalances(from.field("volume")?, from.field("balances")?),
                0x09 => Self::Lease(from.field("unleased")?),
                0x0a => Self::Report,
                0x0b => Self::Balances,
                0x0c => Self::Latencies(from.field("volume")?),
                0x0d => Self::Stored,
                0x0e => Self::Space,
                0x0f => Self::Capacity,
                0x10 => Self::CreateFrom(from.field("volume")?, from.field("snapshot")?),
                0x11 => Self::Snapshot(from.field("volume")?, from.field("snapshot")?),
                0x12 => Self::DeleteSnapshot(from.field("snapshot")?),
                0x13 => Self::Snapshots,
                0x14 => Self::SnapshotSet(from.field("set")?),
                0x15 => Self::SnapshotUnits(from.field("wanted")?),
                0x16 => Self::ReadSnapshot(from.field("snapshot")?, from.field("unit")?),
                0x17 => Self::StartSnapshot(from.field("new")?),
                0x18 => Self::PutSnapshot(
                    from.field("snapshot")?,
                    from.field("unit")?,
                    from.field("bytes")?,
                ),
                0x19 => Self::CompleteSnapshot(from.field("snapshot")?),
                0x1a => Self::SetBackground(from.field("limit")?),
                0x1b => Self::Background,
                0x1c => Self::Verify(from.field("volume")?, from.field("offset")?),
                0x1d => Self::VerifySnapshot(from.field("snapshot")?, from.field("unit")?),
                0x1e => Self::SnapshotsOf(from.field("snapshots")?),
                0x1f => Self::ReportOf(from.field("volumes")?),
                0x20 => Self::Release(from.field("volume")?),
                0x21 => Self::Divide(from.field("part")?),
                0x22 => Self::VerifyStore(from.field("place")?),
                0x23 => Self::Filled(from.field("volumes")?),
                0x24 => Self::Salvage(from.field("volume")?),
                0x25 => Self::StoreHealth,
                kind => return unknown_message(kind),
            })
        })
    }
}

impl Reply {
    const fn kind(&self) -> u8 {
        match self {
            Self::Done => 0x81,
            Self::Report(_) => 0x82,
            Self::Balances(_) => 0x83,
            Self::Latencies(_) => 0x84,
            Self::Stored(_) => 0x85,
            Self::Space(_) => 0x86,
            Self::Capacity(_) => 0x87,
            Self::Failed(_) => 0x88,
            Self::Snapshots(_) => 0x89,
            Self::Units(_) => 0x8a,
            Self::Unit(_) => 0x8b,
            Self::Background(_) => 0x8c,
            Self::Verified(_) => 0x8d,
            Self::Use(_) => 0x8e,
            Self::Filled(_) => 0x8f,
            Self::StoreHealth(_) => 0x90,
        }
    }

    /// Encodes the reply as a frame.
    ///
    /// # Errors
    /// If it is longer than a frame may be, for example latencies of very many volumes.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        encode(self.kind(), |to| match self {
            Self::Done => {}
            Self::Report(report) => report.write(to),
            Self::Balances(balances) => balances.write(to),
            Self::Latencies(latencies) => latencies.write(to),
            Self::Stored(stored) => stored.write(to),
            Self::Space(space) => space.write(to),
            Self::Capacity(capacity) => capacity.write(to),
            Self::Failed(failed) => failed.write(to),
            Self::Snapshots(snapshots) => snapshots.write(to),
            Self::Units(units) => units.write(to),
            Self::Unit(unit) => unit.write(to),
            Self::Background(report) => report.write(to),
            Self::Verified(verified) => verified.write(to),
            Self::Use(said) => said.write(to),
            Self::Filled(filled) => filled.write(to),
            Self::StoreHealth(health) => health.write(to),
        })
    }

    /// Decodes the reply in a frame, which must be complete and have nothing after it.
    ///
    /// # Errors
    /// The wrong field and its offset.
    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        decode(frame, |kind, from| {
            Ok(match kind {
                0x81 => Self::Done,
                0x82 => Self::Report(from.field("report")?),
                0x83 => Self::Balances(from.field("balances")?),
                0x84 => Self::Latencies(from.field("latencies")?),
                0x85 => Self::Stored(from.field("stored")?),
                0x86 => Self::Space(from.field("space")?),
                0x87 => Self::Capacity(from.field("capacity")?),
                0x88 => Self::Failed(from.field("failed")?),
                0x89 => Self::Snapshots(from.field("snapshots")?),
                0x8a => Self::Units(from.field("units")?),
                0x8b => Self::Unit(from.field("unit")?),
                0x8c => Self::Background(from.field("background")?),
                0x8d => Self::Verified(from.field("verified")?),
                0x8e => Self::Use(from.field("use")?),
                0x8f => Self::Filled(from.field("filled")?),
                0x90 => Self::StoreHealth(from.field("health")?),
                kind => return unknown_message(kind),
            })
        })
    }
}

/// The kind is in the head, before the fields.
fn unknown_message<T>(kind: u8) -> Result<T, Malformed> {
    const OFFSET: usize = 6;
    let problem = Problem::UnknownKind(kind);
    Err(Malformed { field: "kind".into(), offset: OFFSET, problem })
}
