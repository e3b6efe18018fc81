//! Reads the output of `sadf -j FILE -- -d`: sysstat's history of devices in JSON.

use std::io::BufRead;

use serde::Deserialize;

use crate::trace::Clock;

use super::device::{Field, Rates, field};
use super::numbers::{amount, time};
use super::sar::{Output, ZONELESS};
use super::sysstat_json::{self, Device, DeviceKeys, Part};
use super::{Broken, Hints, Read, json};

const FORM: &str = "the JSON of `sadf -j FILE -- -d`";

#[derive(Deserialize)]
struct Statistics {
    timestamp: Option<Timestamp>,
    #[serde(default)]
    disk: Vec<Device<Disk>>,
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

/// Marks devices with the keys of sadf.
struct Disk;

impl DeviceKeys for Disk {
    const NAME: &'static str = "disk-device";
    const FORM: &'static str = "a device of sadf";

    fn quantity(key: &str) -> Option<Field> {
        quantity(key)
    }

    fn check(rates: &Rates) -> Result<(), &'static str> {
        if rates.has_transfers() { Ok(()) } else { Err("tps") }
    }
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
