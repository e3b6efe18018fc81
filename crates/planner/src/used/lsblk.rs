//! Reads the JSON of `lsblk`. The serial number of an NVMe device of EBS is the id of its volume.

use serde::Deserialize;
use serde_json::Value;

use super::{Amount, FileSystem, Read, Source, volume_in};
use crate::read::{Broken, NAMES_MAX, json_broken};

const FORM: &str = "the output of `lsblk -J -b -o NAME,SERIAL,FSTYPE,FSUSED`";
/// The deepest nesting of devices: a disk, a partition, a mapped device and a few more.
const DEPTH_MAX: u32 = 16;
/// The type of a partition with swap space, which needs no copy.
const SWAP: &str = "swap";

#[derive(Deserialize)]
struct Answer {
    blockdevices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    #[serde(default)]
    name: String,
    serial: Option<String>,
    fstype: Option<String>,
    fsused: Option<Value>,
    #[serde(default)]
    children: Vec<Device>,
}

/// The used space of a device and of the devices on it.
#[derive(Default)]
struct Sum {
    bytes: u64,
    mounted: u32,
    /// A device with a file system that is not mounted.
    unknown: Option<String>,
}

pub(super) fn read(text: &[u8]) -> Result<Read, Broken> {
    let answer: Answer = serde_json::from_slice(text).map_err(|error| json_broken(&error, FORM))?;
    if answer.blockdevices.len() > NAMES_MAX {
        return Err(Broken::whole("blockdevices", format!("at most {NAMES_MAX} devices")));
    }
    let mut read = Read::default();
    for device in &answer.blockdevices {
        let mut sum = Sum::default();
        device.add(&mut sum, DEPTH_MAX)?;
        let name = format!("/dev/{}", device.name.trim_start_matches("/dev/"));
        if let Some(unknown) = sum.unknown {
            let reason = format!("{name}: {unknown} has a file system that is not mounted");
            read.left_out.push(reason);
        } else if sum.mounted > 0 {
            read.known.push(FileSystem {
                volume: device.serial.as_deref().and_then(volume_in),
                host: None,
                device: name,
                amount: Amount::Bytes(sum.bytes),
                source: Source::FileSystem,
            });
        }
    }
    Ok(read)
}

impl Device {
    fn add(&self, sum: &mut Sum, depth: u32) -> Result<(), Broken> {
        if depth == 0 {
            return Err(Broken::whole(&self.name, format!("at most {DEPTH_MAX} devices nested")));
        }
        match (&self.fsused, &self.fstype) {
            (Some(used), _) if !used.is_null() => {
                sum.bytes = sum.bytes.saturating_add(self.number(used)?);
                sum.mounted += 1;
            }
            (_, Some(kind)) if self.children.is_empty() && kind != SWAP => {
                sum.unknown = Some(self.name.clone());
            }
            _ => {}
        }
        self.children.iter().try_for_each(|child| child.add(sum, depth - 1))
    }

    /// Returns a number of bytes. Older versions write it as a text.
    fn number(&self, value: &Value) -> Result<u64, Broken> {
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        let found = format!("{}: fsused {value}", self.name);
        number.ok_or_else(|| Broken::whole(&found, format!("bytes, by the flag -b; {FORM}")))
    }
}
