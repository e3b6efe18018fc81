//! Readers of used space: the bytes that file systems use on a volume, and the bytes that a
//! snapshot of it has.
//!
//! [`read`] converts a text of `df`, `lsblk`, Prometheus, the CloudWatch agent or DescribeSnapshots
//! to [`FileSystem`]s. [`Gathered`] assigns them to the volumes of a fleet and adds them up.

mod cloudwatch;
mod df;
mod lsblk;
mod prometheus;
mod snapshots;

use std::collections::BTreeMap;
use std::io::BufRead;

use crate::fleet::Volume;
use crate::read::{Broken, first_byte, skip_mark, slurp};

const FORM: &str = "used space: the output of `df -P -k` or `lsblk -J -b -o \
                    NAME,SERIAL,FSTYPE,FSUSED`, an answer of Prometheus with node_filesystem_* \
                    series, of GetMetricData with disk_used, or of DescribeSnapshots";
const PPM: u128 = 1_000_000;

/// Where used space is known from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// File systems, or a list.
    FileSystem,
    /// The newest snapshot: the blocks that were ever written, and so at most the used space.
    Snapshot,
}

/// The used space of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// Bytes.
    pub bytes: u64,
    /// Where they are known from.
    pub source: Source,
}

/// An amount of used space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// Bytes.
    Bytes(u64),
    /// Millionths of the volume.
    Ppm(u32),
}

/// The used space of a file system or of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSystem {
    /// The id of its volume, if the text has it.
    pub volume: Option<String>,
    /// The id of the instance that mounts it, if the text has it.
    pub host: Option<String>,
    /// Its device, as `/dev/nvme1n1p1`, or another name that tells it from others.
    pub device: String,
    /// Its used space; the maximum if the text has several times.
    pub amount: Amount,
    /// Where it is known from.
    pub source: Source,
}

/// The file systems of a text.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Read {
    /// Those whose used space is known.
    pub known: Vec<FileSystem>,
    /// Devices whose used space is not known, with the reasons.
    pub left_out: Vec<String>,
}

/// Reads a text. `queries` is the text of the queries of GetMetricData, if it is available.
///
/// # Errors
/// Returns [`Broken`] if the text has none of the forms, or is invalid.
pub fn read(input: &mut dyn BufRead, queries: Option<&str>) -> Result<Read, Broken> {
    skip_mark(input)?;
    if !matches!(first_byte(input)?, Some(b'{' | b'[')) {
        return df::read(input);
    }
    let text = slurp(input, FORM)?;
    // Only the names of fields tell the forms apart. Each name is of one form alone.
    let names = |name: &str| text.windows(name.len()).any(|window| window == name.as_bytes());
    if names("\"blockdevices\"") {
        return lsblk::read(&text);
    }
    if names("\"MetricDataResults\"") {
        return cloudwatch::read(&text, queries);
    }
    if names("\"Snapshots\"") || names("\"SnapshotId\"") {
        return snapshots::read(&text);
    }
    if names("\"resultType\"") {
        return prometheus::read(&text);
    }
    let found = String::from_utf8_lossy(text.get(..200).unwrap_or(&text)).into_owned();
    Err(Broken::whole(&found, FORM))
}

/// Returns the id of a volume in a text: `vol-0123`, or the serial number `vol0123` of its NVMe
/// device.
fn volume_in(text: &str) -> Option<String> {
    id_in(text, "vol", false)
}

/// Returns the id of an instance in a text: `i-0123`.
#[must_use]
pub fn host_in(text: &str) -> Option<String> {
    id_in(text, "i", true)
}

/// Returns an id with this prefix and at least eight hexadecimal digits; `needs_dash` is whether a
/// dash must be between them.
fn id_in(text: &str, prefix: &str, needs_dash: bool) -> Option<String> {
    text.match_indices(prefix).find_map(|(start, _)| {
        let before = text[..start].chars().next_back();
        if before.is_some_and(|before| before.is_ascii_alphanumeric()) {
            return None;
        }
        let rest = &text[start + prefix.len()..];
        let after_dash = rest.strip_prefix('-');
        let rest = after_dash.or(Some(rest).filter(|_| !needs_dash))?;
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        (digits >= ID_DIGITS_MIN).then(|| format!("{prefix}-{}", &rest[..digits]))
    })
}

/// The fewest digits of an id of EC2.
const ID_DIGITS_MIN: usize = 8;

/// Returns the letters of a device of Xen, `f` for `/dev/sdf`, `/dev/xvdf` and the partition
/// `/dev/xvdf1`; `None` for another device. The system renames `sdf` to `xvdf`.
fn letters_of(device: &str) -> Option<&str> {
    let name = device.trim().trim_start_matches("/dev/");
    let rest = name.strip_prefix("xvd").or_else(|| name.strip_prefix("sd"))?;
    let letters = rest.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_plain = letters.bytes().all(|byte| byte.is_ascii_lowercase());
    (is_plain && (1..=2).contains(&letters.len())).then_some(letters)
}

/// The used space of the volumes of a fleet.
pub struct Gathered<'a> {
    volumes: &'a [Volume],
    ids: &'a BTreeMap<&'a str, usize>,
    /// Volumes by their instance and the letters of their device there.
    by_device: BTreeMap<(String, String), usize>,
    /// The amounts of each volume, by device, so that a device that is mounted twice counts once.
    amounts: BTreeMap<usize, BTreeMap<(Source, String), Amount>>,
}

impl<'a> Gathered<'a> {
    /// Creates the used space of volumes, of which nothing is known yet.
    #[must_use]
    pub fn new(volumes: &'a [Volume], ids: &'a BTreeMap<&'a str, usize>) -> Self {
        let mut by_device = BTreeMap::new();
        for (number, volume) in volumes.iter().enumerate() {
            let devices = volume.device.as_deref().unwrap_or_default().split_whitespace();
            let hosts = volume.attached_to.as_deref().unwrap_or_default();
            for (host, device) in hosts.split_whitespace().filter_map(host_in).zip(devices) {
                if let Some(letters) = letters_of(device) {
                    by_device.insert((host, letters.to_owned()), number);
                }
            }
        }
        Self { volumes, ids, by_device, amounts: BTreeMap::new() }
    }

    /// Adds the file systems of a file whose name is `name`: it may have the id of the volume or of
    /// the instance. Returns the devices that are of no volume of the fleet.
    pub fn add(&mut self, name: &str, read: Read) -> Vec<String> {
        let named = volume_in(name);
        let host = host_in(name);
        let mut left_out = read.left_out;
        for found in read.known {
            match self.volume(&found, named.as_deref(), host.as_deref()) {
                Some(number) => {
                    let amounts = self.amounts.entry(number).or_default();
                    amounts.insert((found.source, found.device), found.amount);
                }
                None if found.source == Source::Snapshot => {}
                None => left_out.push(format!(
                    "{}: its volume is not known: `lsblk -J -b -o NAME,SERIAL,FSTYPE,FSUSED` names \
                     it, and so does the file's name if it is vol-0123.txt",
                    found.device
                )),
            }
        }
        left_out
    }

    fn volume(&self, found: &FileSystem, named: Option<&str>, host: Option<&str>) -> Option<usize> {
        if let Some(volume) = &found.volume {
            return self.ids.get(volume.as_str()).copied();
        }
        let host = found.host.as_deref().or(host);
        let by_device = host.zip(letters_of(&found.device)).and_then(|(host, letters)| {
            self.by_device.get(&(host.to_owned(), letters.to_owned())).copied()
        });
        by_device.or_else(|| self.ids.get(named?).copied())
    }

    /// Returns the used space of each volume of which it is known. File systems are added up; a
    /// snapshot counts without them.
    #[must_use]
    pub fn finish(&self) -> BTreeMap<usize, Used> {
        let mut all = BTreeMap::new();
        for (number, amounts) in &self.amounts {
            let Some(volume) = self.volumes.get(*number) else { continue };
            let size = u128::from(volume.spec.size_gib) << 30;
            let bytes = |source: Source| -> Option<Used> {
                let amounts = amounts.iter().filter(|((from, _), _)| *from == source);
                let amounts: Vec<u64> = amounts.map(|(_, amount)| amount.bytes(size)).collect();
                let sum = amounts.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
                (!amounts.is_empty()).then_some(Used { bytes: sum, source })
            };
            let used = bytes(Source::FileSystem).or_else(|| bytes(Source::Snapshot));
            all.extend(used.map(|used| (*number, used)));
        }
        all
    }
}

impl Amount {
    /// Returns the bytes of a volume of this size.
    fn bytes(self, size: u128) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Ppm(ppm) => {
                let bytes = (u128::from(ppm) * size).div_ceil(PPM);
                u64::try_from(bytes).expect("invariant: a size in GiB has 32 bits")
            }
        }
    }
}

#[cfg(test)]
mod tests;
