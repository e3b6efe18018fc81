//! Reads the output of `sadf -j FILE -- -d`: sysstat's history of devices in JSON.

use std::fmt;
use std::io::BufRead;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::trace::Clock;

use super::device::{Field, Rates, field};
use super::numbers::{amount, time};
use super::sar::{Output, ZONELESS};
use super::sysstat_json::{self, Part};
use super::{Broken, Hints, Read, json};

const FORM: &str = "the JSON of `sadf -j FILE -- -d`";

#[derive(Deserialize)]
struct Statistics {
    timestamp: Option<Timestamp>,
    #[serde(default)]
    disk: Vec<Disk>,
}

/// The end of an interval, and its length in seconds.
#[derive(Deserialize)]
struct Timestamp {
    date: String,
    time: String,
    #[serde(default)]
    utc: u8,
    interval: f64,
}

struct Disk {
    name: String,
    rates: Rates,
}

/// Returns the quantity of a key: one of sar's columns, or a name of sadf's own.
fn quantity(key: &str) -> Option<Field> {
    field(match key {
        "rkB" => "rkB/s",
        "wkB" => "wkB/s",
        "dkB" => "dkB/s",
        "rd_sec" => "rd_sec/s",
        "wr_sec" => "wr_sec/s",
        "util-percent" => "%util",
        _ => key,
    })
}

impl<'de> Deserialize<'de> for Disk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(DiskVisitor)
    }
}

struct DiskVisitor;

impl<'de> Visitor<'de> for DiskVisitor {
    type Value = Disk;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a device of sadf")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Disk, A::Error> {
        let mut disk = Disk { name: String::new(), rates: Rates::default() };
        let mut has_transfers = false;
        while let Some(key) = map.next_key::<String>()? {
            if key == "disk-device" {
                disk.name = map.next_value()?;
            } else if let Some(field) = quantity(&key) {
                let value: f64 = map.next_value()?;
                if value < 0.0 {
                    return Err(serde::de::Error::custom(format!("{key} is {value}")));
                }
                has_transfers |= field == Field::Transfers;
                disk.rates.set(field, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        match (disk.name.is_empty(), has_transfers) {
            (true, _) => Err(serde::de::Error::missing_field("disk-device")),
            (_, false) => Err(serde::de::Error::missing_field("tps")),
            _ => Ok(disk),
        }
    }
}

/// Reads the output of `sadf -j`. Other statistics, as those of `-A`, are skipped.
///
/// # Errors
/// Returns [`Broken`] if the JSON is invalid, or if there are no values of a wanted device.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let text = json::slurp(input, FORM)?;
    let mut output = Output::new(hints, Clock::Unix);
    let mut is_zoneless = false;
    let mut without_length = 0;
    let flaws = sysstat_json::read::<Statistics>(text, FORM, |part| {
        let Part::Report(Statistics { timestamp: Some(stamp), disk }) = part else {
            return Ok(());
        };
        let words = format!("{} {}", stamp.date, stamp.time);
        let end = time(&words)
            .ok_or_else(|| Broken::whole(&words, "a date and a time as 2026-11-25, 19:09:48"))?;
        is_zoneless |= stamp.utc == 0;
        let from_ms = end.unix_ms.saturating_sub(amount(stamp.interval * 1_000.0));
        for device in disk {
            if from_ms < end.unix_ms {
                output.push(&device.name, &device.rates, from_ms, end.unix_ms)?;
            } else {
                without_length += 1;
            }
        }
        Ok(())
    })?;
    let mut remarks = flaws.remarks();
    if is_zoneless {
        remarks.push(ZONELESS.to_owned());
    }
    if without_length > 0 {
        let remark = format!("rows left out, of intervals of less than a second: {without_length}");
        remarks.push(remark);
    }
    output.finish(&remarks)
}
