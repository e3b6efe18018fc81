//! Reads the device of a scenario and the lateness of the host.

use super::ScenarioError;
use super::reader::Reader;
use crate::scenario::setup::{
    Change, ChangeKind, DeviceSetup, GarbageCollection, PollerSetup, ServiceTime, WindowSetup,
    WriteCache,
};
use evenkeel_core::convert::saturating;
use evenkeel_core::units::MIB;

/// Latency of the device if the scenario states none.
const IDEAL_NS: u64 = 100_000;

type Read<T> = Result<T, ScenarioError>;

/// Reads the `[device]` table.
pub(super) fn device(document: &Reader<'_>) -> Read<DeviceSetup> {
    let Some(reader) = document.table("device")? else { return Ok(DeviceSetup::ideal(IDEAL_NS)) };
    reader.has("stalls");
    let mut setup = if let Some(ns) = reader.scaled("ideal_us", 1e3, 0.1..=1e8)? {
        for key in ["channels", "read_us", "write_us", "near_us", "noise_percent", "cache_mib"] {
            if reader.has(key) {
                return Err(reader.fault(key, "an ideal device has none; remove one of them"));
            }
        }
        DeviceSetup::ideal(ns)
    } else {
        real(&reader)?
    };
    setup.collection = collection(&reader)?;
    setup.window = window(&reader, setup.channels)?;
    reader.done()?;
    Ok(setup)
}

fn real(reader: &Reader<'_>) -> Read<DeviceSetup> {
    let channels = reader.small("channels", 1..=65_536)?;
    let read = cost(reader, "read_us", "read_ns_per_byte")?;
    let why = "what any read takes, in microseconds; or ideal_us";
    let read = reader.need("read_us", read, why)?;
    let write = cost(reader, "write_us", "write_ns_per_byte")?.unwrap_or(read);
    let near_ns = reader.scaled("near_us", 1e3, 0.1..=1e8)?;
    let noise_ppm = reader.scaled("noise_percent", 10_000.0, 0.0..=100.0)?.unwrap_or(0);
    let cache = match reader.whole("cache_mib", 1..=1 << 30)? {
        None => None,
        Some(mib) => {
            let mibps = reader.whole("drain_mibps", 1..=1 << 30)?;
            let mibps = reader.need("drain_mibps", mibps, "how fast the cache empties")?;
            Some(WriteCache { bytes: mib * MIB, drain_bytes_per_second: mibps * MIB })
        }
    };
    Ok(DeviceSetup {
        channels: Some(reader.need("channels", channels, "requests it works on at once")?),
        read,
        write,
        near_ns,
        noise_ppm: saturating(noise_ppm),
        cache,
        collection: None,
        window: None,
    })
}

/// Reads the scheduler's bound on the work in flight at the device; by default two requests more
/// than there are channels.
fn window(reader: &Reader<'_>, channels: Option<u32>) -> Read<Option<WindowSetup>> {
    let slots = reader.small("window_slots", 1..=1 << 20)?;
    let small_p99_ns = reader.scaled("window_p99_us", 1e3, 0.1..=1e8)?;
    if !reader.flag("scheduled")? {
        for (key, is_there) in
            [("window_slots", slots.is_some()), ("window_p99_us", small_p99_ns.is_some())]
        {
            if is_there {
                return Err(reader.fault(key, "is the scheduler's; add scheduled = true"));
            }
        }
        return Ok(None);
    }
    Ok(Some(match (slots, small_p99_ns, channels) {
        (Some(_), Some(_), _) => {
            let why = "is either fixed or found; remove window_slots or window_p99_us";
            return Err(reader.fault("window_p99_us", why));
        }
        (Some(slots), None, _) => WindowSetup::Slots(slots),
        (None, Some(ns), _) => WindowSetup::Adaptive(ns),
        (None, None, Some(channels)) => WindowSetup::Slots(channels + 2),
        (None, None, None) => {
            let why = "of a device without channels has no default; add window_slots";
            return Err(reader.fault("scheduled", why));
        }
    }))
}

fn cost(
    reader: &Reader<'_>,
    base: &'static str,
    per_byte: &'static str,
) -> Read<Option<ServiceTime>> {
    let ns_per_kib = reader.scaled(per_byte, 1_024.0, 0.0..=1e6)?.unwrap_or(0);
    let base_ns = reader.scaled(base, 1e3, 0.1..=1e8)?;
    Ok(base_ns.map(|base_ns| ServiceTime { base_ns, ns_per_kib }))
}

fn collection(reader: &Reader<'_>) -> Read<Option<GarbageCollection>> {
    let every = reader.whole("gc_every_mib", 1..=1 << 30)?;
    let pause_ns = reader.scaled("gc_pause_ms", 1e6, 0.001..=1e6)?;
    match (every, pause_ns) {
        (None, None) => Ok(None),
        (Some(mib), Some(pause_ns)) => {
            Ok(Some(GarbageCollection { every_bytes: mib * MIB, pause_ns }))
        }
        (Some(_), None) => Err(reader.fault("gc_every_mib", "needs gc_pause_ms")),
        (None, Some(_)) => Err(reader.fault("gc_pause_ms", "needs gc_every_mib")),
    }
}

/// Returns the pauses that `[device]` lists.
pub(super) fn stalls(document: &Reader<'_>) -> Read<Vec<Change>> {
    let Some(reader) = document.table("device")? else { return Ok(Vec::new()) };
    let stalls = spans(&reader, "stalls")?.into_iter();
    Ok(stalls.map(|(at_ns, ns)| Change { at_ns, kind: ChangeKind::Stall(ns) }).collect())
}

/// Reads the `[poller]` table.
pub(super) fn poller(document: &Reader<'_>) -> Read<PollerSetup> {
    let Some(reader) = document.table("poller")? else { return Ok(PollerSetup::default()) };
    let realistic = reader.choice("lateness", &[("none", false), ("realistic", true)])?;
    let mut setup = match realistic {
        Some(true) => PollerSetup::realistic(),
        Some(false) | None => PollerSetup::default(),
    };
    setup.pauses = spans(&reader, "pauses")?;
    setup.pauses.sort_unstable();
    if setup.pauses.windows(2).any(|two| two[0].0 + two[0].1 > two[1].0) {
        return Err(reader.fault("pauses", "one begins before the one before it has ended"));
    }
    reader.done()?;
    Ok(setup)
}

/// Reads a list of `{ at_s, length_ms }`, in nanoseconds.
fn spans(reader: &Reader<'_>, key: &'static str) -> Read<Vec<(u64, u64)>> {
    let mut spans = Vec::new();
    for span in reader.tables(key)? {
        let at = span.scaled("at_s", 1e9, 0.0..=1e9)?;
        let length = span.scaled("length_ms", 1e6, 0.001..=1e7)?;
        let at = span.need("at_s", at, "when, in seconds after the start")?;
        let length = span.need("length_ms", length, "for how long, in milliseconds")?;
        span.done()?;
        spans.push((at, length));
    }
    Ok(spans)
}
