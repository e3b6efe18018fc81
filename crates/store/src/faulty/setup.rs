//! Setup of a faulty pool as numbers, and its text form. Names and meanings are those of the
//! `[device]` table of a scenario (docs/reference/scenarios.md).

use std::fmt;
use std::str::FromStr;

use evenkeel_core::convert::exact;
use evenkeel_core::device::{ServiceTime, WriteCache};

/// Maximum number of channels: each is an entry in memory.
pub const CHANNELS_MAX: u32 = 65_536;

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Requests that are in service at the same time; the others wait. At least one.
    pub channels: u32,
    /// Service time of a read.
    pub read: ServiceTime,
    /// Service time of a write. Requests without payload take a write's base.
    pub write: ServiceTime,
    /// Base service time of a read or a write that begins near the end of the last one of its
    /// volume, in nanoseconds; `None` if that makes no difference. See
    /// [`Head`](evenkeel_core::device::Head).
    pub near_ns: Option<u64>,
    /// Relative standard deviation of the service time, in millionths.
    pub noise_ppm: u32,
    /// A cache in which writes are fast until it is full.
    pub cache: Option<WriteCache>,
    /// Pauses in which no request is served.
    pub stalls: Option<Stalls>,
    /// Change of the service times from a certain time on.
    pub slowdown: Option<Slowdown>,
    /// Part of the operations that fail with an I/O error after their time, in millionths.
    pub fail_ppm: u32,
    /// Number of the only flush of each volume that fails, counted from 1; 0 is none.
    pub fail_flush: u32,
    /// Seed for failures and noise. Each volume has its own stream.
    pub seed: u64,
}

/// Periodic pauses. The first begins one period after the pool was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stalls {
    /// Time from the beginning of one to that of the next, in nanoseconds.
    pub every_ns: u64,
    /// Length of each, in nanoseconds; shorter than the period.
    pub length_ns: u64,
}

/// A change of service times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slowdown {
    /// Time of the change after the pool was created, in nanoseconds.
    pub at_ns: u64,
    /// Service time of requests that begin after that, in percent of the original one.
    pub percent: u32,
}

impl Setup {
    /// Creates a device without noise, stalls or failures, on which writes take as long as reads.
    #[must_use]
    pub const fn new(channels: u32, time: ServiceTime) -> Self {
        Self {
            channels,
            read: time,
            write: time,
            near_ns: None,
            noise_ppm: 0,
            cache: None,
            stalls: None,
            slowdown: None,
            fail_ppm: 0,
            fail_flush: 0,
            seed: 1,
        }
    }
}

/// Error of a text that should be a [`Setup`]; its `Display` is the whole message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetupError(String);

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SetupError {}

/// A key: its number must be between two limits, and is then multiplied by a factor.
struct Key {
    name: &'static str,
    scale: f64,
    least: f64,
    most: f64,
}

const fn key(name: &'static str, scale: f64, least: f64, most: f64) -> Key {
    Key { name, scale, least, most }
}

const KEYS: [Key; 16] = [
    key("channels", 1.0, 1.0, CHANNELS_MAX as f64),
    key("read_us", 1e3, 0.1, 1e7),
    key("read_ns_per_byte", 1_024.0, 0.0, 1e5),
    key("write_us", 1e3, 0.1, 1e7),
    key("write_ns_per_byte", 1_024.0, 0.0, 1e5),
    key("near_us", 1e3, 0.1, 1e7),
    key("noise_percent", 1e4, 0.0, 100.0),
    key("cache_mib", 1_048_576.0, 1.0, 1e9),
    key("drain_mibps", 1_048_576.0, 1.0, 1e9),
    key("stall_ms", 1e6, 0.001, 60_000.0),
    key("stall_every_ms", 1e6, 0.002, 86_400_000.0),
    key("device_percent", 1.0, 1.0, 10_000.0),
    key("device_percent_at_s", 1e9, 0.0, 1e9),
    key("fail_percent", 1e4, 0.0, 100.0),
    key("fail_flush", 1.0, 1.0, 1e9),
    key("seed", 1.0, 0.0, 4_294_967_295.0),
];

/// The numbers of a text, in the order of [`KEYS`].
struct Values([Option<u64>; KEYS.len()]);

impl Values {
    fn read(text: &str) -> Result<Self, SetupError> {
        let mut values = Self([None; KEYS.len()]);
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, number) = pair
                .split_once('=')
                .ok_or_else(|| SetupError(format!("\"{pair}\": expected KEY=NUMBER")))?;
            let Some(index) = KEYS.iter().position(|key| key.name == name) else {
                let known = KEYS.each_ref().map(|key| key.name).join(", ");
                return Err(SetupError(format!("no key \"{name}\"; the keys are {known}")));
            };
            let Key { scale, least, most, .. } = KEYS[index];
            let value = number.parse::<f64>().ok().filter(|v| (least..=most).contains(v));
            let value = value.ok_or_else(|| {
                SetupError(format!("{name}={number}: expected a number from {least} to {most}"))
            })?;
            // The value is limited above, so it fits.
            if values.0[index].replace((value * scale).round() as u64).is_some() {
                return Err(SetupError(format!("{name} is there twice")));
            }
        }
        Ok(values)
    }

    fn get(&self, name: &str) -> Option<u64> {
        KEYS.iter().position(|key| key.name == name).and_then(|index| self.0[index])
    }

    fn small(&self, name: &str) -> u32 {
        self.get(name).map_or(0, |value| exact(value, "KEYS limits it"))
    }

    fn need(&self, name: &str, what: &str) -> Result<u64, SetupError> {
        self.get(name).ok_or_else(|| SetupError(format!("{name} is missing: {what}")))
    }

    /// Returns the values of two keys that must be given together.
    fn both(&self, one: &str, other: &str) -> Result<Option<(u64, u64)>, SetupError> {
        match (self.get(one), self.get(other)) {
            (None, None) => Ok(None),
            (Some(one), Some(other)) => Ok(Some((one, other))),
            (Some(_), None) => Err(SetupError(format!("{one} needs {other}"))),
            (None, Some(_)) => Err(SetupError(format!("{other} needs {one}"))),
        }
    }

    fn time(&self, base: &str, per_byte: &str) -> Result<Option<ServiceTime>, SetupError> {
        match (self.get(base), self.get(per_byte)) {
            (None, Some(_)) => Err(SetupError(format!("{per_byte} needs {base}"))),
            (base, per_byte) => Ok(base
                .map(|base_ns| ServiceTime { base_ns, ns_per_kib: per_byte.unwrap_or_default() })),
        }
    }
}

/// Reads `channels=8,read_us=80,read_ns_per_byte=4`.
impl FromStr for Setup {
    type Err = SetupError;

    fn from_str(text: &str) -> Result<Self, SetupError> {
        let values = Values::read(text)?;
        values.need("channels", "requests that the device works on at once")?;
        values.need("read_us", "what a read takes, in microseconds")?;
        let zero = ServiceTime { base_ns: 0, ns_per_kib: 0 };
        let read = values.time("read_us", "read_ns_per_byte")?.unwrap_or(zero);
        let stalls = values.both("stall_ms", "stall_every_ms")?;
        if let Some((length_ns, every_ns)) = stalls.filter(|(length, every)| length >= every) {
            let [length, every] = [length_ns, every_ns].map(|ns| ns as f64 / 1e6);
            return Err(SetupError(format!(
                "stall_ms={length} must be less than stall_every_ms={every}: \
                 nothing would ever be done"
            )));
        }
        Ok(Self {
            write: values.time("write_us", "write_ns_per_byte")?.unwrap_or(read),
            near_ns: values.get("near_us"),
            noise_ppm: values.small("noise_percent"),
            cache: values
                .both("cache_mib", "drain_mibps")?
                .map(|(bytes, drain)| WriteCache { bytes, drain_bytes_per_second: drain }),
            stalls: stalls.map(|(length_ns, every_ns)| Stalls { every_ns, length_ns }),
            slowdown: values.both("device_percent", "device_percent_at_s")?.map(
                |(percent, at_ns)| Slowdown { at_ns, percent: exact(percent, "KEYS limits it") },
            ),
            fail_ppm: values.small("fail_percent"),
            fail_flush: values.small("fail_flush"),
            seed: values.get("seed").unwrap_or(1),
            ..Self::new(values.small("channels"), read)
        })
    }
}

/// Writes the text that [`Setup::from_str`] reads.
impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |name: &'static str, value: Option<u64>| (name, value);
        let some = |value: u32| (value > 0).then_some(u64::from(value));
        let slower = |time: ServiceTime| (time.ns_per_kib > 0).then_some(time.ns_per_kib);
        let write = (self.write != self.read).then_some(self.write);
        let values = [
            named("channels", Some(self.channels.into())),
            named("read_us", Some(self.read.base_ns)),
            named("read_ns_per_byte", slower(self.read)),
            named("write_us", write.map(|time| time.base_ns)),
            named("write_ns_per_byte", write.and_then(slower)),
            named("near_us", self.near_ns),
            named("noise_percent", some(self.noise_ppm)),
            named("cache_mib", self.cache.map(|cache| cache.bytes)),
            named("drain_mibps", self.cache.map(|cache| cache.drain_bytes_per_second)),
            named("stall_ms", self.stalls.map(|stalls| stalls.length_ns)),
            named("stall_every_ms", self.stalls.map(|stalls| stalls.every_ns)),
            named("device_percent", self.slowdown.map(|slow| slow.percent.into())),
            named("device_percent_at_s", self.slowdown.map(|slow| slow.at_ns)),
            named("fail_percent", some(self.fail_ppm)),
            named("fail_flush", some(self.fail_flush)),
            named("seed", (self.seed != 1).then_some(self.seed)),
        ];
        let mut comma = "";
        for (key, (name, value)) in KEYS.iter().zip(values) {
            debug_assert_eq!(key.name, name);
            if let Some(value) = value {
                write!(f, "{comma}{name}={}", value as f64 / key.scale)?;
                comma = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        text.parse::<Setup>().unwrap_err().to_string()
    }

    #[test]
    fn device_text_is_parsed_into_a_setup() {
        let read = ServiceTime { base_ns: 80_000, ns_per_kib: 4_096 };
        let setup: Setup = "channels=8,read_us=80,read_ns_per_byte=4".parse().unwrap();
        assert_eq!(setup, Setup::new(8, read));
        let text = "channels=2,read_us=80.5,read_ns_per_byte=0.5,write_us=20,near_us=0.5,\
                    noise_percent=5,cache_mib=64,drain_mibps=100,stall_ms=20,\
                    stall_every_ms=1000,device_percent=130,device_percent_at_s=1.5,\
                    fail_percent=0.01,fail_flush=3,seed=7";
        let setup: Setup = text.parse().unwrap();
        assert_eq!(setup.read, ServiceTime { base_ns: 80_500, ns_per_kib: 512 });
        assert_eq!(setup.write, ServiceTime { base_ns: 20_000, ns_per_kib: 0 });
        assert_eq!(setup.near_ns, Some(500));
        assert_eq!((setup.noise_ppm, setup.fail_ppm, setup.seed), (50_000, 100, 7));
        assert_eq!(setup.fail_flush, 3);
        assert_eq!(setup.cache.unwrap().bytes, 64 << 20);
        assert_eq!(setup.stalls, Some(Stalls { every_ns: 1_000_000_000, length_ns: 20_000_000 }));
        assert_eq!(setup.slowdown, Some(Slowdown { at_ns: 1_500_000_000, percent: 130 }));
        assert_eq!(setup.to_string(), text);
    }

    #[test]
    fn mistake_in_a_device_text_is_named() {
        assert_eq!(wrong(""), "channels is missing: requests that the device works on at once");
        assert_eq!(wrong("channels=8"), "read_us is missing: what a read takes, in microseconds");
        assert_eq!(wrong("channels=0,read_us=1"), "channels=0: expected a number from 1 to 65536");
        assert_eq!(
            wrong("channels=8,read_us=NaN"),
            "read_us=NaN: expected a number from 0.1 to 10000000"
        );
        assert_eq!(wrong("channels"), "\"channels\": expected KEY=NUMBER");
        assert!(
            wrong("chanels=8").starts_with("no key \"chanels\"; the keys are channels, read_us")
        );
        assert_eq!(wrong("seed=1,seed=2"), "seed is there twice");
        let more = |text: &str| wrong(&format!("channels=8,read_us=1,{text}"));
        assert_eq!(more("cache_mib=1"), "cache_mib needs drain_mibps");
        assert_eq!(more("write_ns_per_byte=1"), "write_ns_per_byte needs write_us");
        assert_eq!(
            more("stall_ms=20,stall_every_ms=20"),
            "stall_ms=20 must be less than stall_every_ms=20: nothing would ever be done"
        );
    }
}
