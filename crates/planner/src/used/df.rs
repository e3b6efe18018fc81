//! Reads the output of `df`: a header, and a line for each file system. Only those on a device
//! count.

use std::io::BufRead;

use super::{Amount, FileSystem, Read, Source};
use crate::read::{Broken, Lines, NAMES_MAX};

const EXPECTED: &str = "the output of `LC_ALL=C df -P -k`, with the columns Filesystem, \
                        1024-blocks, Used, Available, Capacity and Mounted on";

/// Units of the column of blocks, in bytes.
const UNITS: [(&str, u64); 7] = [
    ("1024-blocks", 1 << 10),
    ("1k-blocks", 1 << 10),
    ("512-blocks", 512),
    ("1b-blocks", 1),
    ("1-blocks", 1),
    ("1m-blocks", 1 << 20),
    ("1048576-blocks", 1 << 20),
];

/// The columns that are used.
struct Header {
    unit: u64,
    used: usize,
}

impl Header {
    fn of(number: u64, line: &str) -> Result<Self, Broken> {
        let titles: Vec<String> = line.split_whitespace().map(str::to_ascii_lowercase).collect();
        let unit = titles.iter().find_map(|title| UNITS.iter().find(|(name, _)| name == title));
        let used = titles.iter().position(|title| title == "used");
        match (titles.first().map(String::as_str), unit, used) {
            (Some("filesystem"), Some((_, unit)), Some(used)) => Ok(Self { unit: *unit, used }),
            (Some("filesystem"), None, Some(_)) => {
                let expected = "blocks of one size: rounded sizes, as of `df -h`, are not exact. \
                                Use `LC_ALL=C df -P -k`";
                Err(Broken::at(number, line, expected))
            }
            _ => Err(Broken::at(number, line, EXPECTED)),
        }
    }
}

/// Reads the output of one or several runs.
pub(super) fn read(input: &mut dyn BufRead) -> Result<Read, Broken> {
    let mut lines = Lines::new(input);
    let mut header: Option<Header> = None;
    let mut read = Read::default();
    // A long name stands alone on its line if `-P` is missing.
    let mut name: Option<String> = None;
    while let Some((number, line)) = lines.next()? {
        if line.trim().is_empty() {
            continue;
        }
        let is_header = line.starts_with("Filesystem") || header.is_none();
        if is_header {
            header = Some(Header::of(number, line)?);
            continue;
        }
        let Some(header) = &header else { continue };
        let mut cells: Vec<&str> = line.split_whitespace().collect();
        let before = name.take();
        cells.splice(0..0, before.as_deref());
        if let [alone] = cells.as_slice() {
            name = Some((*alone).to_owned());
            continue;
        }
        let Some(device) = cells.first().filter(|device| device.starts_with("/dev/")) else {
            continue;
        };
        let expected = format!("a number of blocks in the column Used; {EXPECTED}");
        let used = cells.get(header.used).copied().unwrap_or_default();
        let blocks: u64 = used.parse().map_err(|_| Broken::at(number, line, expected))?;
        if read.known.len() >= NAMES_MAX {
            let expected = format!("at most {NAMES_MAX} file systems; split the text");
            return Err(Broken::at(number, line, expected));
        }
        read.known.push(FileSystem {
            volume: super::volume_in(device),
            host: None,
            device: (*device).to_owned(),
            amount: Amount::Bytes(blocks.saturating_mul(header.unit)),
            source: Source::FileSystem,
        });
    }
    if header.is_none() {
        return Err(Broken::whole("no line", EXPECTED));
    }
    Ok(read)
}
