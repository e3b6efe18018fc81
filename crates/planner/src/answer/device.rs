//! The time of the device beside the waits: the published one of the type, and the measured one of
//! the trace's source.

use crate::case::Case;
use crate::device::{Measured, measured, published_below_us};
use crate::search::Found;
use serde_json::{Value, json};

/// The percentiles of an answer, in thousandths.
const PERMILLE: [(u32, &str); 3] = [(500, "p50"), (990, "p99"), (999, "p99.9")];

/// The known times of a layout's device.
struct Device {
    words: &'static str,
    below_us: Option<u64>,
    measured: Option<Measured>,
    /// Whether the source is of the layout's type.
    is_same: bool,
}

impl Device {
    fn of(case: &Case, found: &Found) -> Self {
        let volume_type = found.layout.each.volume_type;
        let words = case.space.rules.of(volume_type).map_or("", |rules| rules.promise.latency);
        let is_same = case.source.is_some_and(|source| source.each.volume_type == volume_type);
        Self {
            words,
            below_us: published_below_us(words),
            measured: measured(&case.trace),
            is_same,
        }
    }

    /// Returns the microseconds to add, and whether they are a bound. A source of the same type
    /// goes before the published time.
    fn addend(&self) -> Option<(u64, bool)> {
        let measured = self.measured.filter(|measured| self.is_same && measured.is_free);
        let published = self.below_us.map(|us| (us, true));
        measured.map(|measured| (measured.mean_us, false)).or(published)
    }

    fn with(&self, found: &Found, permille: u32) -> Option<String> {
        let (us, is_bound) = self.addend()?;
        let sum = ms(found.delays().permille(permille).saturating_add(us));
        Some(if is_bound { format!("< {sum}") } else { sum })
    }
}

/// Returns microseconds as milliseconds, rounded up to a tenth.
fn ms(us: u64) -> String {
    let tenths = us.div_ceil(100);
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        rest => format!("{}.{rest}", tenths / 10),
    }
}

/// Returns the wait that `permille` of the requests do not exceed, with the device's time, in
/// milliseconds.
pub fn with_device(case: &Case, found: &Found, permille: u32) -> Option<String> {
    Device::of(case, found).with(found, permille)
}

/// Returns the lines about the device of the cheapest layout.
pub fn text(case: &Case, found: &Found) -> String {
    let device = Device::of(case, found);
    let volume_type = found.layout.each.volume_type;
    let mut text = match device.below_us {
        Some(_) => format!("device: published of {volume_type} is \"{}\"", device.words),
        None => format!("device: no latency of {volume_type} is published"),
    };
    let with = PERMILLE
        .map(|(permille, name)| device.with(found, permille).map(|ms| format!("{name} {ms} ms")));
    let with: Vec<String> = with.into_iter().flatten().collect();
    text += &if with.is_empty() {
        "; the waits here are without it\n".to_owned()
    } else {
        format!("; wait + device: {}\n", with.join(", "))
    };
    if let Some(measured) = device.measured {
        let mean = ms(measured.mean_us);
        text += &format!("the source took {mean} ms a request on average");
        text += if measured.is_free {
            " where its limits held nothing back\n"
        } else {
            "; its limits are not known, so waiting may be in that\n"
        };
    }
    text
}

/// Returns the device's times as JSON.
pub fn json(case: &Case, found: &Found) -> Value {
    let device = Device::of(case, found);
    let addend = device.addend();
    let with = |permille| addend.map(|(us, _)| found.delays().permille(permille) + us);
    json!({
        "published": device.words,
        "published_below_us": device.below_us,
        "measured_at_source": device.measured.map(|measured| json!({
            "mean_us": measured.mean_us,
            "requests": measured.requests,
            "without_waiting": measured.is_free,
        })),
        "wait_and_device_us": addend.map(|(_, is_bound)| json!({
            "is_bound": is_bound,
            "p50": with(500),
            "p99": with(990),
            "p999": with(999),
        })),
    })
}
