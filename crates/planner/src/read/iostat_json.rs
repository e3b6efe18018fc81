//! Reads the output of `iostat -x -o JSON`.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Deserialize;

use super::device::{Field, field};
use super::iostat::{EXPECTED_TIME, Reports};
use super::numbers::{ASKS_ORDER, NotTime, Times};
use super::sysstat_json::{self, Device, DeviceKeys, Part};
use super::{Broken, Hints, Read, json};

const FORM: &str = "the JSON of `iostat -xt -o JSON 1`";

#[derive(Deserialize)]
struct Statistics {
    timestamp: Option<String>,
    #[serde(default)]
    disk: Vec<Device<Disk>>,
}

/// Marks devices with the keys of iostat.
struct Disk;

impl DeviceKeys for Disk {
    const NAME: &'static str = "disk_device";
    const FORM: &'static str = "a device of iostat";

    fn quantity(key: &str) -> Option<Field> {
        field(key)
    }
}

/// Reads the output of `iostat -x -o JSON`, of one run or of several.
///
/// # Errors
/// Returns [`Broken`] if the JSON is invalid, if the interval is not known, or if there are no
/// reports of a wanted device.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let text = json::slurp(input, FORM)?;
    let mut reports = Reports::new(hints);
    let mut times = Times { order: hints.dates };
    let mut is_ended = false;
    let flaws = sysstat_json::read::<Statistics>(text, FORM, |part| {
        let statistics = match part {
            Part::End => {
                is_ended = true;
                return Ok(());
            }
            Part::Report(statistics) => statistics,
        };
        if std::mem::take(&mut is_ended) {
            reports.restart();
        }
        let unix_ms = match &statistics.timestamp {
            None => None,
            Some(text) => {
                let time = times.read(text).map_err(|error| {
                    let expected = match error {
                        NotTime::Ambiguous => ASKS_ORDER,
                        NotTime::Unknown => EXPECTED_TIME,
                    };
                    Broken::whole(text, expected)
                })?;
                reports.see_zone(time.has_zone);
                Some(time.unix_ms)
            }
        };
        let is_wanted = |name: &str| hints.name.as_deref().is_none_or(|wanted| wanted == name);
        let disks = statistics.disk.into_iter().filter(|disk| is_wanted(&disk.name));
        let report: BTreeMap<_, _> = disks.map(|disk| (disk.name, disk.rates)).collect();
        reports.take(unix_ms, report)
    })?;
    flaws.remarks().into_iter().for_each(|remark| reports.remark(remark));
    reports.finish()
}
