//! Work of one volume in one span of time, and its compact bytes.
//!
//! A [`Record`] holds differences of the data plane's counters, so records of consecutive spans can
//! be added ([`Record::merge`]). Its bytes are a byte for its kind, a mask of the fields that are
//! not zero, and these fields in groups of seven bits: some ten bytes for an idle volume, some
//! forty for a busy one.

use evenkeel_core::volume::VolumeType;

use crate::varint;

/// Number of the fields of a record, each with its bit in the mask.
const FIELDS: usize = 16;
/// Maximum of bytes of a record: its kind, the mask, and ten bytes for each number.
pub const RECORD_BYTES_MAX: usize = 3 + varint::BYTES_MAX * FIELDS;

const MULTI_ATTACH: u8 = 1 << 3;
const IDLE_IS_KNOWN: u8 = 1 << 4;
const HAS_BALANCE: u8 = 1 << 5;

/// Properties of a volume that determine its metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// Its type.
    pub volume_type: VolumeType,
    /// Whether several hosts may attach it at once.
    pub multi_attach: bool,
}

/// Work of a volume in one span of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its properties at the end.
    pub kind: Kind,
    /// The time that was observed, in milliseconds: less than the whole span if the server started
    /// within it, or if the volume was attached within it.
    pub span_ms: u64,
    /// Read requests answered.
    pub reads: u64,
    /// Write requests answered.
    pub writes: u64,
    /// Bytes of read requests started.
    pub read_bytes: u64,
    /// Bytes of write requests started.
    pub write_bytes: u64,
    /// Nanoseconds from arrival to reply, of all answered read requests together.
    pub read_ns: u64,
    /// Nanoseconds from arrival to reply, of all answered write requests together.
    pub write_ns: u64,
    /// I/Os as the limit in IOPS counts them.
    pub operations: u64,
    /// Nanoseconds in which the volume's limit in IOPS delayed it.
    pub iops_exceeded_ns: u64,
    /// Nanoseconds in which its limit in throughput delayed it.
    pub bytes_exceeded_ns: u64,
    /// Provisioned I/Os per second at the end; zero for types without.
    pub provisioned_iops: u64,
    /// Number of samples.
    pub looks: u64,
    /// Requests that waited or were being executed, summed over the samples.
    pub queued: u64,
    /// Number of samples with such requests.
    pub busy_looks: u64,
    /// Milliseconds between samples in which no I/O was started and no request was left; `None` if
    /// the samples were too far apart.
    pub idle_ms: Option<u64>,
    /// Credits at the end, in millionths of the maximum; `None` without credits.
    pub balance_ppm: Option<u64>,
}

impl Record {
    /// Creates a record of an empty span.
    #[must_use]
    pub const fn empty(kind: Kind) -> Self {
        Self {
            kind,
            span_ms: 0,
            reads: 0,
            writes: 0,
            read_bytes: 0,
            write_bytes: 0,
            read_ns: 0,
            write_ns: 0,
            operations: 0,
            iops_exceeded_ns: 0,
            bytes_exceeded_ns: 0,
            provisioned_iops: 0,
            looks: 0,
            queued: 0,
            busy_looks: 0,
            idle_ms: Some(0),
            balance_ppm: None,
        }
    }

    /// Returns a record with other numbers for each seed. For tests.
    #[must_use]
    pub fn example(seed: u64) -> Self {
        let number = |at: u64| (seed.wrapping_mul(2_654_435_761).wrapping_add(at)) % 100_000;
        let volume_type = VolumeType::ALL[(seed % 7) as usize];
        Self {
            span_ms: 60_000,
            reads: number(1),
            writes: number(2),
            read_bytes: number(3) * 4_096,
            write_bytes: number(4) * 4_096,
            read_ns: number(5) * 1_000,
            write_ns: number(6) * 1_000,
            operations: number(7),
            looks: 60,
            queued: number(8),
            busy_looks: number(9) % 61,
            idle_ms: Some(number(10) % 60_001),
            balance_ppm: (seed % 7 == 3).then_some(number(11) * 10),
            ..Self::empty(Kind { volume_type, multi_attach: seed.is_multiple_of(5) })
        }
    }

    /// Adds the record of a later span.
    pub fn merge(&mut self, later: &Self) {
        let sum = |a: u64, b: u64| a.saturating_add(b);
        *self = Self {
            kind: later.kind,
            span_ms: sum(self.span_ms, later.span_ms),
            reads: sum(self.reads, later.reads),
            writes: sum(self.writes, later.writes),
            read_bytes: sum(self.read_bytes, later.read_bytes),
            write_bytes: sum(self.write_bytes, later.write_bytes),
            read_ns: sum(self.read_ns, later.read_ns),
            write_ns: sum(self.write_ns, later.write_ns),
            operations: sum(self.operations, later.operations),
            iops_exceeded_ns: sum(self.iops_exceeded_ns, later.iops_exceeded_ns),
            bytes_exceeded_ns: sum(self.bytes_exceeded_ns, later.bytes_exceeded_ns),
            provisioned_iops: later.provisioned_iops,
            looks: sum(self.looks, later.looks),
            queued: sum(self.queued, later.queued),
            busy_looks: sum(self.busy_looks, later.busy_looks),
            idle_ms: self.idle_ms.zip(later.idle_ms).map(|(a, b)| sum(a, b)),
            balance_ppm: later.balance_ppm,
        };
    }

    const fn fields(&self) -> [u64; FIELDS] {
        let idle = match self.idle_ms {
            Some(ms) => ms,
            None => 0,
        };
        let balance = match self.balance_ppm {
            Some(ppm) => ppm,
            None => 0,
        };
        [
            self.span_ms,
            self.reads,
            self.writes,
            self.read_bytes,
            self.write_bytes,
            self.read_ns,
            self.write_ns,
            self.operations,
            self.iops_exceeded_ns,
            self.bytes_exceeded_ns,
            self.provisioned_iops,
            self.looks,
            self.queued,
            self.busy_looks,
            idle,
            balance,
        ]
    }

    /// Appends the record's bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let number = VolumeType::ALL.iter().position(|t| *t == self.kind.volume_type);
        let mut flags = u8::try_from(number.unwrap_or_default()).unwrap_or_default();
        for (is_set, flag) in [
            (self.kind.multi_attach, MULTI_ATTACH),
            (self.idle_ms.is_some(), IDLE_IS_KNOWN),
            (self.balance_ppm.is_some(), HAS_BALANCE),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let fields = self.fields();
        let set = fields.iter().enumerate().filter(|(_, value)| **value > 0);
        let mask = set.fold(0_u16, |mask, (at, _)| mask | 1 << at);
        bytes.push(flags);
        bytes.extend(mask.to_le_bytes());
        for value in fields.into_iter().filter(|value| *value > 0) {
            varint::put(bytes, value);
        }
    }

    /// Decodes a record, which must take all bytes; returns `None` if they are none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[flags, low, high], mut rest) = bytes.split_first_chunk()?;
        let volume_type = *VolumeType::ALL.get(usize::from(flags & 0x07))?;
        let multi_attach = flags & MULTI_ATTACH != 0;
        let mask = u16::from_le_bytes([low, high]);
        let mut fields = [0; FIELDS];
        for (at, field) in fields.iter_mut().enumerate() {
            if mask & 1 << at != 0 {
                *field = varint::take(&mut rest)?;
            }
        }
        if !rest.is_empty() {
            return None;
        }
        let [
            span_ms,
            reads,
            writes,
            read_bytes,
            write_bytes,
            read_ns,
            write_ns,
            operations,
            iops_exceeded_ns,
            bytes_exceeded_ns,
            provisioned_iops,
            looks,
            queued,
            busy_looks,
            idle,
            balance,
        ] = fields;
        Some(Self {
            kind: Kind { volume_type, multi_attach },
            span_ms,
            reads,
            writes,
            read_bytes,
            write_bytes,
            read_ns,
            write_ns,
            operations,
            iops_exceeded_ns,
            bytes_exceeded_ns,
            provisioned_iops,
            looks,
            queued,
            busy_looks,
            idle_ms: (flags & IDLE_IS_KNOWN != 0).then_some(idle),
            balance_ppm: (flags & HAS_BALANCE != 0).then_some(balance),
        })
    }
}

/// The records of one volume in a span: the minutes of an hour, or the steps of a minute. Each
/// entry is its place in the span, the number of its bytes, and these bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Block(pub Vec<u8>);

impl Block {
    /// Sets the record of a place. Replaces an existing one: the clock was set back, and the later
    /// record is right. So a block has at most one entry for each place.
    pub fn set(&mut self, place: u8, record: &Record) {
        let mut kept = Vec::with_capacity(self.0.len() + RECORD_BYTES_MAX + 2);
        for (found, bytes) in self.entries().filter(|(found, _)| *found != place) {
            append(&mut kept, found, bytes);
        }
        let mut bytes = Vec::with_capacity(RECORD_BYTES_MAX);
        record.encode(&mut bytes);
        append(&mut kept, place, &bytes);
        self.0 = kept;
    }

    /// Returns places and records, in the order in which they were set. A malformed entry ends
    /// them.
    pub fn records(&self) -> impl Iterator<Item = (u8, Record)> {
        self.entries().map_while(|(place, bytes)| Some((place, Record::decode(bytes)?)))
    }

    fn entries(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let (&[place, length], after) = rest.split_first_chunk()?;
            let (bytes, after) = after.split_at_checked(usize::from(length))?;
            rest = after;
            Some((place, bytes))
        })
    }
}

fn append(block: &mut Vec<u8>, place: u8, bytes: &[u8]) {
    const { assert!(RECORD_BYTES_MAX <= u8::MAX as usize) };
    block.push(place);
    block.push(u8::try_from(bytes.len()).unwrap_or_default());
    block.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_idle_minute_takes_a_few_bytes_and_a_busy_one_some_fifty() {
        let kind = Kind { volume_type: VolumeType::Gp3, multi_attach: false };
        let idle =
            Record { span_ms: 60_000, looks: 60, idle_ms: Some(60_000), ..Record::empty(kind) };
        let mut bytes = Vec::new();
        idle.encode(&mut bytes);
        assert_eq!(bytes.len(), 10);
        let busy = Record {
            span_ms: 60_003,
            reads: 180_000,
            writes: 180_000,
            read_bytes: 180_000 * 16_384,
            write_bytes: 180_000 * 16_384,
            read_ns: 300_000_000_000,
            write_ns: 300_000_000_000,
            operations: 360_000,
            iops_exceeded_ns: 50_000_000_000,
            looks: 60,
            queued: 600,
            busy_looks: 60,
            idle_ms: Some(0),
            ..Record::empty(kind)
        };
        bytes.clear();
        busy.encode(&mut bytes);
        assert_eq!(bytes.len(), 47);
    }

    #[test]
    fn a_block_keeps_one_record_for_each_place() {
        let mut block = Block::default();
        for (place, seed) in [(0, 1), (2, 2), (1, 3), (2, 4)] {
            block.set(place, &Record::example(seed));
        }
        let expected = [(0, Record::example(1)), (1, Record::example(3)), (2, Record::example(4))];
        assert_eq!(block.records().collect::<Vec<_>>(), expected);
        block.0.truncate(block.0.len() - 1);
        assert_eq!(block.records().collect::<Vec<_>>(), expected[..2]);
    }

    proptest! {
        #[test]
        fn encoded_record_decodes_to_itself(
            numbers: [u64; FIELDS], volume_type in 0..7_usize, flags: [bool; 3],
        ) {
            let [span_ms, reads, writes, read_bytes, write_bytes, read_ns, write_ns, operations,
                iops_exceeded_ns, bytes_exceeded_ns, provisioned_iops, looks, queued, busy_looks,
                idle, balance] = numbers;
            let kind =
                Kind { volume_type: VolumeType::ALL[volume_type], multi_attach: flags[0] };
            let record = Record {
                kind, span_ms, reads, writes, read_bytes, write_bytes, read_ns, write_ns,
                operations, iops_exceeded_ns, bytes_exceeded_ns, provisioned_iops, looks, queued,
                busy_looks,
                idle_ms: flags[1].then_some(idle),
                balance_ppm: flags[2].then_some(balance),
            };
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            prop_assert!(bytes.len() <= RECORD_BYTES_MAX);
            prop_assert_eq!(Record::decode(&bytes), Some(record));
            bytes.push(0);
            prop_assert_eq!(Record::decode(&bytes), None);
        }

        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            let _ = Record::decode(&bytes);
            let _ = Block(bytes).records().count();
        }
    }
}
