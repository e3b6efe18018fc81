//! Reads file systems of node_exporter: `node_filesystem_size_bytes`, `_avail_bytes` or
//! `_free_bytes`, and `node_disk_info`, whose label `serial` has the id of a volume.
//!
//! An answer of a range query has the used space of each time; its maximum counts.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Amount, FileSystem, Read, Source, host_in, volume_in};
use crate::read::{Broken, NAMES_MAX, json_broken};

const FORM: &str = "the answer of a query for node_filesystem_size_bytes, \
                    node_filesystem_avail_bytes and node_disk_info";

#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(default)]
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    /// The points of a range.
    #[serde(default)]
    values: Vec<(f64, String)>,
    /// The point of an instant.
    value: Option<(f64, String)>,
}

/// The series of a file system: values in bytes, by the bits of their time.
#[derive(Default)]
struct Points {
    size: BTreeMap<u64, f64>,
    /// Free bytes; those of the system administrator are among them.
    free: BTreeMap<u64, f64>,
    /// Bytes that are available to users, and so fewer.
    available: BTreeMap<u64, f64>,
    volume: Option<String>,
}

/// A machine and a device of it.
type Place = (String, String);

pub(super) fn read(text: &[u8]) -> Result<Read, Broken> {
    let answer: Answer = serde_json::from_slice(text).map_err(|error| json_broken(&error, FORM))?;
    let Some(data) = answer.data.filter(|_| answer.status == "success") else {
        let found = format!("status {}, {}", answer.status, answer.error);
        return Err(Broken::whole(&found, "status success: correct the query and ask again"));
    };
    let mut all: BTreeMap<(Place, String), Points> = BTreeMap::new();
    let mut serials: BTreeMap<Place, String> = BTreeMap::new();
    for series in data.result {
        let label = |name: &str| series.metric.get(name).cloned().unwrap_or_default();
        let place = (label("instance"), label("device"));
        let metric = label("__name__");
        if metric == "node_disk_info" {
            serials.extend(volume_in(&label("serial")).map(|volume| (place, volume)));
            continue;
        }
        let Some(kind) = metric.strip_prefix("node_filesystem_") else { continue };
        if !["size_bytes", "free_bytes", "avail_bytes"].contains(&kind) {
            continue;
        }
        if all.len() >= NAMES_MAX {
            return Err(Broken::whole(&place.1, format!("at most {NAMES_MAX} file systems")));
        }
        let volume = series.metric.values().find_map(|value| volume_in(value));
        let points = all.entry((place, label("mountpoint"))).or_default();
        points.volume = points.volume.take().or(volume);
        let into = match kind {
            "size_bytes" => &mut points.size,
            "free_bytes" => &mut points.free,
            _ => &mut points.available,
        };
        for (seconds, value) in series.values.into_iter().chain(series.value) {
            let bytes: Option<f64> = value.parse().ok();
            if let Some(bytes) = bytes.filter(|bytes| bytes.is_finite()) {
                into.insert(seconds.to_bits(), bytes);
            }
        }
    }
    let mut read = Read::default();
    for (((instance, device), _), points) in all {
        let Some(bytes) = points.used_max() else { continue };
        // Network file systems and those in memory have no device.
        if !device.starts_with("/dev/") {
            continue;
        }
        let volume = points.volume.or_else(|| serial_of(&serials, &instance, &device));
        let amount = Amount::Bytes(bytes);
        let host = host_in(&instance);
        let source = Source::FileSystem;
        let device = if instance.is_empty() { device } else { format!("{device}@{instance}") };
        read.known.push(FileSystem { volume, host, device, amount, source });
    }
    if read.known.is_empty() {
        return Err(Broken::whole("no file system on a device", FORM));
    }
    Ok(read)
}

/// Returns the volume of a device or of one of its partitions.
fn serial_of(serials: &BTreeMap<Place, String>, instance: &str, device: &str) -> Option<String> {
    let name = device.trim_start_matches("/dev/");
    let of_machine = serials.iter().filter(|((other, _), _)| other == instance);
    let is_on = |disk: &str| {
        let rest = name.strip_prefix(disk)?;
        let number = rest.strip_prefix('p').unwrap_or(rest);
        number.bytes().all(|byte| byte.is_ascii_digit()).then_some(disk.len())
    };
    // The longest name: nvme1n10 is no partition of nvme1n1.
    let found = of_machine.filter_map(|((_, disk), volume)| Some((is_on(disk)?, volume)));
    found.max_by_key(|(length, _)| *length).map(|(_, volume)| volume.clone())
}

impl Points {
    /// Returns the most used bytes at any time that has a size and free bytes.
    fn used_max(&self) -> Option<u64> {
        let free = if self.free.is_empty() { &self.available } else { &self.free };
        let used = self.size.iter().filter_map(|(time, size)| Some(size - free.get(time)?));
        used.reduce(f64::max).map(|bytes| bytes.max(0.0) as u64)
    }
}
