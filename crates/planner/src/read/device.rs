//! The columns of sysstat's reports on devices, by their names in every version.

use crate::trace::{Columns, Interval, Kind};

use super::numbers::{amount, decimal};

/// The quantity in a column.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Field {
    Reads,
    Writes,
    /// Requests of all kinds together.
    Transfers,
    /// Bytes; the number is the bytes in one unit of the column.
    ReadBytes(f64),
    WriteBytes(f64),
    /// Bytes of all kinds together.
    Bytes(f64),
    ReadWaitMs,
    WriteWaitMs,
    /// The mean latency of reads and writes together.
    WaitMs,
    Queue,
    BusyPercent,
    DiscardBytes(f64),
    /// The mean size of a read in KiB, which tells the unit of the bytes.
    ReadKib,
    WriteKib,
    /// Flushes that the device executed. Linux counts them as writes, too.
    Flushes,
}

const KIB: f64 = 1_024.0;
const MIB: f64 = 1_048_576.0;
const SECTOR: f64 = 512.0;

/// Returns the quantity in the column of this name; `None` if it is not used.
pub(crate) fn field(header: &str) -> Option<Field> {
    Some(match header {
        "r/s" => Field::Reads,
        "w/s" => Field::Writes,
        "tps" => Field::Transfers,
        "rkB/s" | "kB_read/s" => Field::ReadBytes(KIB),
        "wkB/s" | "kB_wrtn/s" => Field::WriteBytes(KIB),
        "kB/s" => Field::Bytes(KIB),
        "rMB/s" | "MB_read/s" => Field::ReadBytes(MIB),
        "wMB/s" | "MB_wrtn/s" => Field::WriteBytes(MIB),
        "MB/s" => Field::Bytes(MIB),
        "rsec/s" | "rd_sec/s" | "Blk_read/s" => Field::ReadBytes(SECTOR),
        "wsec/s" | "wr_sec/s" | "Blk_wrtn/s" => Field::WriteBytes(SECTOR),
        "sec/s" => Field::Bytes(SECTOR),
        "r_await" => Field::ReadWaitMs,
        "w_await" => Field::WriteWaitMs,
        "await" => Field::WaitMs,
        "aqu-sz" | "avgqu-sz" => Field::Queue,
        "%util" | "util" => Field::BusyPercent,
        "dkB/s" | "kB_dscd/s" => Field::DiscardBytes(KIB),
        "dMB/s" | "MB_dscd/s" => Field::DiscardBytes(MIB),
        "dsec/s" | "Blk_dscd/s" => Field::DiscardBytes(SECTOR),
        "rareq-sz" => Field::ReadKib,
        "wareq-sz" => Field::WriteKib,
        "f/s" => Field::Flushes,
        _ => return None,
    })
}

/// The remark on flushes.
pub(crate) const FLUSHES: &str = "Linux counts flushes as writes, too: those writes that cannot \
                                  have had bytes are taken off";
/// The least size of most writes: a page, or a block of a file system.
const WRITE_BYTES_MIN: f64 = 4_096.0;

/// Returns how many of Linux's writes had bytes.
///
/// A flush by itself is counted as a write and as a flush (the manual of iostat: "Before being
/// merged, flush operations are counted as writes"). A write that must be durable, as the commit of
/// a journal, is one write, and up to two flushes if the device has no FUA. So flushes are at most
/// `flushes` of the writes; at most half of the writes, since a flush follows a write; and as many
/// as exceed the bytes.
#[must_use]
pub(super) fn without_flushes(writes: f64, flushes: f64, bytes: f64) -> f64 {
    let with_bytes = (bytes / WRITE_BYTES_MIN).ceil().min(writes);
    (writes - flushes).max(with_bytes).max(writes / 2.0)
}

/// The values of a device in a report: rates per second, means and shares.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Rates {
    reads: Option<f64>,
    writes: Option<f64>,
    transfers: Option<f64>,
    read_bytes: Option<f64>,
    write_bytes: Option<f64>,
    bytes: Option<f64>,
    read_wait_ms: Option<f64>,
    write_wait_ms: Option<f64>,
    wait_ms: Option<f64>,
    queue: Option<f64>,
    busy_percent: Option<f64>,
    discard_bytes: f64,
    read_kib: Option<f64>,
    write_kib: Option<f64>,
    flushes: f64,
    /// The bytes of a unit of the columns of bytes, if reads or writes have their own.
    unit: f64,
}

/// The assumptions about a device, for its remarks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Assumed {
    /// Requests were divided into reads and writes as bytes are.
    pub splits_requests: bool,
    /// Neither requests nor bytes are divided by direction; all requests count as reads.
    pub splits_nothing: bool,
    /// One mean latency was used for reads and for writes.
    pub shares_times: bool,
    /// Requests of a report without bytes, such as flushes, were left out.
    pub leaves_out: bool,
    /// There were discards, which are not used.
    pub has_discards: bool,
    /// Flushes were taken off the writes.
    pub takes_flushes_off: bool,
    /// Bytes were given in sectors, under the name of another unit.
    pub has_sectors: bool,
}

impl Rates {
    /// Returns whether the number of requests of both directions is known.
    pub const fn has_transfers(&self) -> bool {
        self.transfers.is_some()
    }

    /// Sets the value of a column.
    pub fn set(&mut self, field: Field, value: f64) {
        match field {
            Field::Reads => self.reads = Some(value),
            Field::Writes => self.writes = Some(value),
            Field::Transfers => self.transfers = Some(value),
            Field::ReadBytes(unit) => {
                self.read_bytes = Some(value * unit);
                self.unit = unit;
            }
            Field::WriteBytes(unit) => {
                self.write_bytes = Some(value * unit);
                self.unit = unit;
            }
            Field::Bytes(unit) => self.bytes = Some(value * unit),
            Field::ReadWaitMs => self.read_wait_ms = Some(value),
            Field::WriteWaitMs => self.write_wait_ms = Some(value),
            Field::WaitMs => self.wait_ms = Some(value),
            Field::Queue => self.queue = Some(value),
            Field::BusyPercent => self.busy_percent = Some(value),
            Field::DiscardBytes(unit) => self.discard_bytes = value * unit,
            Field::ReadKib => self.read_kib = Some(value),
            Field::WriteKib => self.write_kib = Some(value),
            Field::Flushes => self.flushes = value,
        }
    }

    /// Returns whether the columns of bytes are in sectors under the name of another unit, as
    /// sysstat up to 12.3.0 prints them in JSON: the mean sizes of requests, which are in KiB,
    /// show that. `None` if there are too few requests for that.
    pub fn has_sectors(&self) -> Option<bool> {
        let halves = [
            (self.reads, self.read_bytes, self.read_kib),
            (self.writes, self.write_bytes, self.write_kib),
        ];
        for (requests, bytes, kib) in halves {
            let Some(((requests, bytes), kib)) = requests.zip(bytes).zip(kib) else { continue };
            if requests < 1.0 || kib < 0.5 || self.unit <= SECTOR {
                continue;
            }
            let in_sectors = bytes / self.unit * SECTOR / requests / (kib * KIB);
            return Some((0.9..1.1).contains(&in_sectors));
        }
        None
    }

    /// Corrects the bytes of columns that are in sectors under the name of another unit.
    pub fn convert_sectors(&mut self) {
        if self.unit > SECTOR {
            let factor = SECTOR / self.unit;
            self.read_bytes = self.read_bytes.map(|bytes| bytes * factor);
            self.write_bytes = self.write_bytes.map(|bytes| bytes * factor);
            self.discard_bytes *= factor;
            self.unit = SECTOR;
        }
    }

    /// Returns the amounts of an interval of this length, their kinds, and the assumptions.
    pub fn interval(&self, start_ms: u64, length_ms: u64) -> (Interval, Columns, Assumed) {
        let seconds = length_ms as f64 / 1_000.0;
        let mut assumed = Assumed { has_discards: self.discard_bytes > 0.0, ..Assumed::default() };
        let (reads, writes) = self.requests(&mut assumed);
        let (read_bytes, write_bytes) = match self.bytes {
            Some(bytes) => (bytes, 0.0),
            None => (self.read_bytes.unwrap_or(0.0), self.write_bytes.unwrap_or(0.0)),
        };
        let read_wait_ms = self.read_wait_ms.or(self.wait_ms);
        let write_wait_ms = self.write_wait_ms.or(self.wait_ms);
        assumed.shares_times = self.read_wait_ms.is_none() && self.wait_ms.is_some();
        let ns = |wait_ms: f64, rate: f64| amount(wait_ms * 1e6 * rate * seconds);
        let idle = |busy: f64| amount((100.0 - busy.min(100.0)) / 100.0 * length_ms as f64);
        let interval = Interval {
            start_ms,
            length_ms,
            reads: amount(reads * seconds),
            writes: amount(writes * seconds),
            read_bytes: amount(read_bytes * seconds),
            write_bytes: amount(write_bytes * seconds),
            read_ns: read_wait_ms.map(|wait_ms| ns(wait_ms, reads)),
            write_ns: write_wait_ms.map(|wait_ms| ns(wait_ms, writes)),
            idle_ms: self.busy_percent.map(idle),
            queued_milli: self.queue.map(|queue| amount(queue * 1_000.0)),
            ..Interval::default()
        };
        let mean = |is_there: bool| is_there.then_some(Kind::Mean);
        let columns = Columns {
            requests: mean(self.reads.or(self.writes).or(self.transfers).is_some()),
            bytes: mean(self.read_bytes.or(self.write_bytes).or(self.bytes).is_some()),
            times: mean(read_wait_ms.or(write_wait_ms).is_some()),
            queue: mean(self.queue.is_some()),
            // `%util` is the time in which the device had requests.
            idle_is_of_device: true,
        };
        (interval, columns, assumed)
    }

    /// Returns the reads and writes per second. If only their sum is known, they are divided as
    /// bytes are.
    fn requests(&self, assumed: &mut Assumed) -> (f64, f64) {
        let Some(transfers) = self.transfers else {
            let writes = self.writes.unwrap_or(0.0);
            let bytes = self.write_bytes.unwrap_or(0.0);
            let rest = without_flushes(writes, self.flushes, bytes);
            assumed.takes_flushes_off = rest < writes;
            return (self.reads.unwrap_or(0.0), rest);
        };
        let (Some(read), Some(written)) = (self.read_bytes, self.write_bytes) else {
            assumed.splits_nothing = true;
            return (transfers, 0.0);
        };
        assumed.splits_requests = true;
        if read + written > 0.0 {
            let reads = transfers * read / (read + written);
            return (reads, transfers - reads);
        }
        assumed.leaves_out = transfers > 0.0;
        (0.0, 0.0)
    }
}

impl Assumed {
    /// Returns the assumptions of either.
    pub const fn or(self, other: Self) -> Self {
        Self {
            splits_requests: self.splits_requests || other.splits_requests,
            splits_nothing: self.splits_nothing || other.splits_nothing,
            shares_times: self.shares_times || other.shares_times,
            leaves_out: self.leaves_out || other.leaves_out,
            has_discards: self.has_discards || other.has_discards,
            takes_flushes_off: self.takes_flushes_off || other.takes_flushes_off,
            has_sectors: self.has_sectors || other.has_sectors,
        }
    }

    /// Returns a sentence for each assumption.
    pub fn remarks(self) -> Vec<String> {
        let all = [
            (
                self.splits_requests,
                "requests are not told apart; they are divided into reads and writes as the bytes \
                 are",
            ),
            (self.splits_nothing, "reads and writes are not told apart; all count as reads"),
            (self.shares_times, "one mean time stands for reads and for writes"),
            (self.leaves_out, "requests of reports without bytes, as flushes are, are left out"),
            (self.has_discards, "discards are left out"),
            (self.takes_flushes_off, FLUSHES),
            (
                self.has_sectors,
                "the bytes are in sectors under the name of another unit, as sysstat up to 12.3.0 \
                 prints them in JSON: the sizes of the requests say so; they are read as sectors",
            ),
        ];
        let said = all.into_iter().filter(|(is_so, _)| *is_so);
        said.map(|(_, sentence)| sentence.to_owned()).collect()
    }
}

/// Returns a value, and its column with the value's own unit, which it has with `-h` and `--human`.
pub(crate) fn value(field: Field, word: &str) -> Option<(Field, f64)> {
    let (number, unit) = match word.char_indices().next_back()? {
        (_, last) if last.is_ascii_digit() => (word, None),
        (at, last) => (word.get(..at)?, Some(last)),
    };
    let value = decimal(number)?;
    let scale: f64 = match unit {
        None | Some('%') => return Some((field, value)),
        Some('B') => 1.0,
        Some('k') => 1_024.0,
        Some('M') => 1_048_576.0,
        Some('G') => 1_073_741_824.0,
        Some('T') => 1_099_511_627_776.0,
        Some(_) => return None,
    };
    let field = match field {
        Field::ReadBytes(_) => Field::ReadBytes(scale),
        Field::WriteBytes(_) => Field::WriteBytes(scale),
        Field::Bytes(_) => Field::Bytes(scale),
        Field::DiscardBytes(_) => Field::DiscardBytes(scale),
        Field::ReadKib | Field::WriteKib => return Some((field, value * scale / KIB)),
        _ => return None,
    };
    Some((field, value))
}

/// Returns why the requests of a device of this name are also those of another device; `None` if
/// they are not.
pub(crate) fn repeats(name: &str) -> Option<String> {
    let what = if name.starts_with("dm-") {
        "a mapped device repeats the requests of the devices below it"
    } else if name.strip_prefix("md").is_some_and(|rest| rest.starts_with(is_digit)) {
        "an array repeats the requests of its members"
    } else if is_partition(name) {
        "a partition's requests are also those of its disk"
    } else {
        return None;
    };
    Some(format!("{what}: plan for one of them"))
}

const fn is_digit(character: char) -> bool {
    character.is_ascii_digit()
}

fn is_partition(name: &str) -> bool {
    let stem = name.trim_end_matches(is_digit);
    if stem.len() == name.len() {
        return false;
    }
    if name.starts_with("nvme") || name.starts_with("mmcblk") {
        return stem.strip_suffix('p').is_some_and(|disk| disk.ends_with(is_digit));
    }
    let letters = ["xvd", "sd", "vd", "hd"].iter().find_map(|prefix| stem.strip_prefix(prefix));
    letters.is_some_and(|letters| {
        !letters.is_empty() && letters.bytes().all(|letter| letter.is_ascii_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_repeat_others_are_known_by_name() {
        for name in ["sda1", "xvda1", "nvme0n1p3", "mmcblk0p1", "dm-0", "md127"] {
            assert!(repeats(name).is_some(), "{name}");
        }
        for name in ["sda", "vdb", "nvme0n1", "mmcblk0", "loop0", "zram0", "dev8-0", "data1"] {
            assert_eq!(repeats(name), None, "{name}");
        }
    }

    #[test]
    fn a_sum_of_requests_is_divided_as_bytes_are() {
        let mut rates = Rates::default();
        for (header, value) in [("tps", 10.0), ("rd_sec/s", 24.0), ("wr_sec/s", 8.0)] {
            rates.set(field(header).unwrap(), value);
        }
        let (interval, columns, assumed) = rates.interval(0, 2_000);
        assert_eq!((interval.reads, interval.writes), (15, 5));
        assert_eq!((interval.read_bytes, interval.write_bytes), (24_576, 8_192));
        assert_eq!(columns.requests, Some(Kind::Mean));
        assert!(assumed.splits_requests && !assumed.leaves_out);
    }

    #[test]
    fn flushes_are_no_writes() {
        let mut rates = Rates::default();
        for (header, value) in [("w/s", 200.0), ("wkB/s", 400.0), ("f/s", 100.0)] {
            rates.set(field(header).unwrap(), value);
        }
        let (interval, _, assumed) = rates.interval(0, 1_000);
        assert_eq!((interval.writes, interval.write_bytes), (100, 409_600));
        assert_eq!(assumed.remarks(), [FLUSHES]);
    }

    /// The counters of Linux 6.18 for 100 writes of `dd`, on a loop device with a write cache and
    /// without FUA.
    #[test]
    fn writes_with_bytes_are_never_taken_for_flushes() {
        for (what, writes, flushes, sectors, expected) in [
            ("oflag=dsync", 200.0, 100.0, 800.0, 100.0),
            ("oflag=direct,dsync", 200.0, 200.0, 800.0, 100.0),
            ("oflag=dsync, over a file of ext4", 200.0, 100.0, 800.0, 100.0),
            // Its journal has two writes for each of the file.
            ("oflag=dsync, a new file of ext4", 302.0, 200.0, 2_824.0, 302.0),
            ("without flushes", 100.0, 0.0, 100.0, 100.0),
            ("bs=512 oflag=direct,dsync", 200.0, 200.0, 100.0, 100.0),
        ] {
            assert_eq!(without_flushes(writes, flushes, sectors * 512.0), expected, "{what}");
        }
    }

    /// sysstat 12.2 prints 31 writes a second of 4 KiB as 248 MB a second with `-m`.
    #[test]
    fn sectors_under_the_name_of_another_unit_are_noticed() {
        for (name, value, has_sectors) in
            [("wMB/s", 248.0, true), ("wkB/s", 248.0, true), ("wkB/s", 124.0, false)]
        {
            let mut rates = Rates::default();
            for (header, value) in [("w/s", 31.0), (name, value), ("wareq-sz", 4.0)] {
                rates.set(field(header).unwrap(), value);
            }
            assert_eq!(rates.has_sectors(), Some(has_sectors), "{name}");
            if has_sectors {
                rates.convert_sectors();
            }
            assert_eq!(rates.interval(0, 1_000).0.write_bytes, 126_976, "{name}");
        }
        assert_eq!(Rates::default().has_sectors(), None);
    }
}
