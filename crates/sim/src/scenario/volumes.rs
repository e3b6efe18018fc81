//! Reads the volumes, instances and stripes of a scenario, and the changes during the run.

use super::reader::Reader;
use super::{ScenarioError, matching, nothing_called};
use crate::scenario::setup::{
    Change, ChangeKind, InstanceSetup, Setup, ShareSetup, StripeSetup, VolumeSetup,
};
use crate::text::{nearest, thousands};
use evenkeel_core::convert::{exact, index};
use evenkeel_core::instance;
use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::time::Duration;
use evenkeel_core::units::{ByteCount, GIB, MIB};
use evenkeel_core::volume::{Date, Rules, VolumeChange, VolumeRequest, VolumeSpec, VolumeType};

const IOPS_MAX: u64 = 100_000_000;
const MIBPS_MAX: u32 = 1_000_000;
const SIZE_GIB_MAX: u32 = 65_536;
const COPIES_MAX: u32 = 4_096;
const CREDITS_MAX: u64 = 1 << 50;
/// Maximum number of changes of a run.
const CHANGES_MAX: usize = 100_000;
/// Size of a volume of raw limits if it states none, in GiB.
const RAW_SIZE_GIB: u32 = 100;
/// The last day for which `core::instance::history` has bandwidths; later days have the present
/// ones.
const HISTORY_ENDS: Date = Date { year: 2014, month: 12, day: 31 };

type Read<T> = Result<T, ScenarioError>;

/// Reads the `[[instance]]` tables.
pub(super) fn instances(document: &Reader<'_>, as_of: Date) -> Read<Vec<InstanceSetup>> {
    let mut instances: Vec<InstanceSetup> = Vec::new();
    for reader in document.tables("instance")? {
        let instance = instance(reader, as_of)?;
        if instances.iter().any(|other| other.name == instance.name) {
            let message = format!("two instances are called \"{}\"", instance.name);
            return Err(document.fault("instance", message));
        }
        instances.push(instance);
    }
    Ok(instances)
}

fn instance(reader: Reader<'_>, as_of: Date) -> Read<InstanceSetup> {
    let name = reader.need("name", reader.text("name")?, "what volumes call it")?.to_owned();
    let mut setup = match reader.text("type")? {
        Some(wanted) => typed_instance(&reader, wanted, as_of)?,
        None => raw_instance(&reader)?,
    };
    setup.name = name;
    setup.per_direction = reader.flag("per_direction")?;
    let efficiency = reader.scaled("efficiency_percent", 10_000.0, 1.0..=100.0)?;
    setup.efficiency_ppm = efficiency.map_or(1_000_000, |ppm| exact(ppm, "at most 100 percent"));
    reader.done()?;
    Ok(setup)
}

fn typed_instance(reader: &Reader<'_>, wanted: &str, as_of: Date) -> Read<InstanceSetup> {
    let Some(found) = instance::by_name(wanted) else {
        let fault = reader.fault("type", "no instance type of that name has EBS limits");
        return Err(match nearest(wanted, instance::all().iter().map(|known| known.name)) {
            Some(near) => fault.hint(format!("did you mean \"{near}\"?")),
            None => fault,
        });
    };
    for key in ["iops", "mbps", "burst_iops", "burst_mbps"] {
        if reader.has(key) {
            return Err(reader.fault(key, "is given by the type; remove one of them"));
        }
    }
    let of_then = instance::history()
        .iter()
        .filter(|then| as_of <= HISTORY_ENDS && then.name == wanted && then.date <= as_of);
    let of_then = of_then.max_by_key(|then| then.date).map(|then| u64::from(then.mbps) * 125_000);
    Ok(InstanceSetup {
        name: String::new(),
        kind: wanted.to_owned(),
        baseline_iops: found.baseline_iops.into(),
        iops_max: found.iops_max.into(),
        baseline_bytes_per_second: of_then.unwrap_or(found.baseline_bytes_per_second()),
        bytes_per_second_max: of_then.unwrap_or(found.bytes_per_second_max()),
        per_direction: false,
        efficiency_ppm: 0,
    })
}

fn raw_instance(reader: &Reader<'_>) -> Read<InstanceSetup> {
    let iops = reader.whole("iops", 1..=IOPS_MAX)?;
    let mbps = reader.whole("mbps", 1..=10_000_000)?;
    if iops.is_none() && mbps.is_none() {
        return Err(reader.fault("type", "is missing: a type, or iops, or mbps"));
    }
    let iops_kept = iops.unwrap_or(u64::MAX);
    let mbps_kept = mbps.unwrap_or(u64::MAX / 125_000);
    let burst_iops = reader.whole("burst_iops", iops_kept.min(IOPS_MAX)..=IOPS_MAX)?;
    let burst_mbps = reader.whole("burst_mbps", mbps_kept.min(10_000_000)..=10_000_000)?;
    let words = [iops.map(|iops| format!("{} IOPS", thousands(iops)))];
    let words = words.into_iter().chain([mbps.map(|mbps| format!("{} Mbit/s", thousands(mbps)))]);
    Ok(InstanceSetup {
        name: String::new(),
        kind: words.flatten().collect::<Vec<_>>().join(", "),
        baseline_iops: iops_kept,
        iops_max: burst_iops.unwrap_or(iops_kept),
        baseline_bytes_per_second: mbps_kept * 125_000,
        bytes_per_second_max: burst_mbps.unwrap_or(mbps_kept) * 125_000,
        per_direction: false,
        efficiency_ppm: 0,
    })
}

/// Reads the `[[volume]]` tables, each as often as its `count` states.
pub(super) fn volumes(
    document: &Reader<'_>,
    rules: &Rules,
    instances: &[InstanceSetup],
) -> Read<Vec<VolumeSetup>> {
    let mut volumes: Vec<VolumeSetup> = Vec::new();
    for reader in document.tables("volume")? {
        let copies = reader.small("count", 1..=COPIES_MAX)?;
        let volume = volume(reader, rules, instances)?;
        for copy in 1..=copies.unwrap_or(1) {
            let mut volume = volume.clone();
            if copies.is_some() {
                volume.name = format!("{}-{copy}", volume.name);
            }
            if volumes.iter().any(|other| other.name == volume.name) {
                let message = format!("two volumes are called \"{}\"", volume.name);
                return Err(document.fault("volume", message));
            }
            volumes.push(volume);
        }
    }
    Ok(volumes)
}

fn volume(reader: Reader<'_>, rules: &Rules, instances: &[InstanceSetup]) -> Read<VolumeSetup> {
    reader.has("count");
    let name = reader.need("name", reader.text("name")?, "what the volume is called")?.to_owned();
    let (spec, mut pacing) = limits(&reader, rules)?;
    if let Some(ns) = reader.scaled("tolerance_ms", 1e6, 0.001..=1_000.0)? {
        pacing.tolerance = Duration::from_ns(ns);
    }
    let size_gib = spec.map_or(reader.small("size_gib", 1..=SIZE_GIB_MAX)?, |s| Some(s.size_gib));
    let size_bytes = u64::from(size_gib.unwrap_or(RAW_SIZE_GIB)) * GIB;
    let instance = match reader.text("instance")? {
        None => None,
        Some(wanted) => {
            let names = || instances.iter().map(|instance| instance.name.as_str());
            let found = names().zip(0_u32..).find(|(name, _)| *name == wanted);
            let unknown = || nothing_called(&reader, "instance", "instance", wanted, names());
            Some(found.ok_or_else(unknown)?.1)
        }
    };
    let share = share(&reader)?;
    let setup = VolumeSetup {
        name,
        kind: kind(spec.as_ref(), size_bytes),
        size_bytes,
        balances: balances(&reader, &pacing)?,
        pacing,
        spec,
        instance,
        share,
    };
    reader.done()?;
    Ok(setup)
}

/// Reads volumes that are only described and not run, each as often as its `count` states.
pub(super) fn described(readers: Vec<Reader<'_>>, as_of: Date) -> Read<Vec<VolumeSpec>> {
    let mut volumes = Vec::new();
    for reader in readers {
        let rules = Rules::as_of(as_of).map_err(|error| reader.fault("type", error.to_string()))?;
        let copies = reader.small("count", 1..=COPIES_MAX)?.unwrap_or(1);
        let (spec, _) = limits(&reader, rules)?;
        let spec = reader.need("type", spec, "raw limits have no price")?;
        reader.done()?;
        volumes.extend((0..copies).map(|_| spec));
    }
    Ok(volumes)
}

fn kind(spec: Option<&VolumeSpec>, size_bytes: u64) -> String {
    let size = ByteCount(size_bytes);
    match spec {
        None => "raw".to_owned(),
        Some(spec) => format!("{} {size}", spec.volume_type),
    }
}

fn share(reader: &Reader<'_>) -> Read<Option<ShareSetup>> {
    let reservation = reader.whole("reservation", 0..=IOPS_MAX)?;
    let weight = reader.small("weight", 1..=10_000)?;
    if reservation.is_none() && weight.is_none() {
        return Ok(None);
    }
    Ok(Some(ShareSetup { reservation_per_second: reservation.unwrap_or(0), weight }))
}

/// Reads the limits of a volume: those of its type, or raw ones.
fn limits(reader: &Reader<'_>, rules: &Rules) -> Read<(Option<VolumeSpec>, Pacing)> {
    let Some(volume_type) = volume_type(reader)? else {
        return Ok((None, raw_limits(reader)?));
    };
    for key in ["burst_iops", "burst_credits"] {
        if reader.has(key) {
            return Err(reader.fault(key, "is given by the type; remove one of them"));
        }
    }
    let size_gib = reader.small("size_gib", 1..=SIZE_GIB_MAX)?;
    let request = VolumeRequest {
        volume_type,
        size_gib: reader.need("size_gib", size_gib, "the size of the volume in GiB")?,
        iops: reader.small("iops", 1..=u32::MAX)?,
        throughput_mibps: reader.small("throughput_mibps", 1..=MIBPS_MAX)?,
        multi_attach: false,
    };
    let spec = rules.resolve(&request).map_err(|error| refused(reader, rules, &error))?;
    Ok((Some(spec), rules.pacing(&spec)))
}

fn volume_type(reader: &Reader<'_>) -> Read<Option<VolumeType>> {
    let words = VolumeType::ALL.map(|known| (known.name(), known));
    reader.choice("type", &words)
}

fn refused(reader: &Reader<'_>, rules: &Rules, error: &impl ToString) -> ScenarioError {
    let message = format!("by the rules of {}: {}", rules.date(), error.to_string());
    reader.fault("type", message)
}

fn raw_limits(reader: &Reader<'_>) -> Read<Pacing> {
    let iops = reader.whole("iops", 1..=IOPS_MAX)?;
    let burst_iops = reader.whole("burst_iops", iops.unwrap_or(1)..=IOPS_MAX)?;
    let credits = reader.whole("burst_credits", 1..=CREDITS_MAX)?;
    let operations = match (iops, burst_iops) {
        (None, Some(_)) => {
            return Err(reader.fault("burst_iops", "needs iops, the rate without credits"));
        }
        (iops, None) => {
            if credits.is_some() {
                return Err(reader.fault("burst_credits", "needs burst_iops, the rate with them"));
            }
            iops.map(|per_second| Limit { per_second, credit: None })
        }
        (Some(refill_per_second), Some(per_second)) => {
            let why = "the I/O credits that pay for burst_iops";
            let capacity = reader.need("burst_credits", credits, why)?;
            let credit = Some(CreditLimit { refill_per_second, capacity });
            Some(Limit { per_second, credit })
        }
    };
    let mibps = reader.small("throughput_mibps", 1..=MIBPS_MAX)?;
    let bytes = mibps.map(|mibps| Limit { per_second: u64::from(mibps) * MIB, credit: None });
    Ok(Pacing { counting: CountingRule::SSD, operations, bytes, ..Pacing::UNLIMITED })
}

/// Reads the balances that are stated. Returns an error if the volume has no such credits.
fn balances(reader: &Reader<'_>, pacing: &Pacing) -> Read<Balances> {
    let mut balances = Balances::default();
    if let Some(credits) = reader.whole("credits", 0..=CREDITS_MAX)? {
        if pacing.operations.is_none_or(|limit| limit.credit.is_none()) {
            return Err(reader.fault("credits", "the volume has no I/O credits: it does not burst"));
        }
        balances.operations = Some(credits);
    }
    if let Some(bytes) = reader.scaled("credits_gib", GIB as f64, 0.0..=1e6)? {
        if pacing.bytes.is_none_or(|limit| limit.credit.is_none()) {
            let message = "the volume has no byte credits: it does not burst";
            return Err(reader.fault("credits_gib", message));
        }
        balances.bytes = Some(bytes);
    }
    Ok(balances)
}

/// Reads the `[[stripe]]` tables.
pub(super) fn stripes(document: &Reader<'_>, volumes: &[VolumeSetup]) -> Read<Vec<StripeSetup>> {
    let mut stripes = Vec::new();
    for reader in document.tables("stripe")? {
        let name = reader.need("name", reader.text("name")?, "what clients call it")?.to_owned();
        let names = || volumes.iter().map(|volume| volume.name.as_str());
        if names().any(|volume| volume == name) {
            return Err(reader.fault("name", "is the name of a volume"));
        }
        let wanted = reader.texts("volumes")?;
        let mut members = Vec::new();
        for pattern in reader.need("volumes", wanted, "the volumes that it lies on")? {
            let found = matching(pattern, names());
            if found.is_empty() {
                return Err(nothing_called(&reader, "volumes", "volume", pattern, names()));
            }
            members.extend(found);
        }
        let chunk_kib = reader.small("chunk_kib", 4..=32_768)?.unwrap_or(64);
        reader.done()?;
        stripes.push(StripeSetup { name, volumes: members, chunk_bytes: chunk_kib << 10 });
    }
    Ok(stripes)
}

/// Reads the `[[change]]` tables in order of time. Each change applies to the volume as the
/// previous one left it.
pub(super) fn changes(document: &Reader<'_>, rules: &Rules, setup: &Setup) -> Read<Vec<Change>> {
    let readers = document.tables("change")?;
    let mut times = Vec::new();
    for (table, reader) in readers.iter().enumerate() {
        times.extend(times_of(reader, setup)?.into_iter().map(|at_ns| (at_ns, table)));
    }
    if times.len() > CHANGES_MAX {
        let message = format!("{} changes; at most {CHANGES_MAX}", times.len());
        return Err(document.fault("change", message));
    }
    times.sort_unstable();
    let mut volumes = setup.volumes.clone();
    let mut changes = Vec::new();
    for (at_ns, table) in times {
        let reader = &readers[table];
        if let Some(kind) = device_change(reader, setup)? {
            changes.push(Change { at_ns, kind });
            continue;
        }
        let names = || setup.volumes.iter().map(|volume| volume.name.as_str());
        let why = "whose, or a stall_ms, device_percent or device_channels";
        let pattern = reader.need("volume", reader.text("volume")?, why)?;
        let found = matching(pattern, names());
        if found.is_empty() {
            return Err(nothing_called(reader, "volume", "volume", pattern, names()));
        }
        for number in found {
            let volume = &mut volumes[number as usize];
            let kinds = change_of(reader, rules, number, volume)?;
            changes.extend(kinds.into_iter().map(|kind| Change { at_ns, kind }));
        }
    }
    readers.into_iter().try_for_each(Reader::done)?;
    Ok(changes)
}

/// Returns the times of a change: one, or several at equal distances.
fn times_of(reader: &Reader<'_>, setup: &Setup) -> Read<Vec<u64>> {
    let end_s = setup.duration_ns as f64 / 1e9;
    let at_ns = reader.scaled("at_s", 1e9, 0.0..=end_s)?;
    let at_ns = reader.need("at_s", at_ns, "when, in seconds after the start")?;
    let every_ns = reader.scaled("every_ms", 1e6, 0.001..=1e9)?;
    let until_ns = reader.scaled("until_s", 1e9, 0.0..=end_s)?;
    let Some(every_ns) = every_ns else {
        return match until_ns {
            None => Ok(vec![at_ns]),
            Some(_) => Err(reader.fault("until_s", "needs every_ms")),
        };
    };
    let step = index(every_ns).max(1);
    let times = (at_ns..until_ns.unwrap_or(setup.duration_ns)).step_by(step);
    Ok(times.take(CHANGES_MAX + 1).collect())
}

/// Reads a change of the device, if the table has one.
fn device_change(reader: &Reader<'_>, setup: &Setup) -> Read<Option<ChangeKind>> {
    if let Some(ns) = reader.scaled("stall_ms", 1e6, 0.001..=1e7)? {
        return Ok(Some(ChangeKind::Stall(ns)));
    }
    let of_channels = "of an ideal device cannot change; give [device] channels and read_us";
    let change = match reader.small("device_percent", 1..=10_000)? {
        Some(percent) => ("device_percent", ChangeKind::DevicePercent(percent)),
        None => match reader.small("device_channels", 1..=65_536)? {
            Some(count) => ("device_channels", ChangeKind::DeviceChannels(count)),
            None => return Ok(None),
        },
    };
    match (setup.device.channels, change) {
        (None, (key, _)) => Err(reader.fault(key, of_channels)),
        (Some(_), (_, kind)) => Ok(Some(kind)),
    }
}

fn change_of(
    reader: &Reader<'_>,
    rules: &Rules,
    number: u32,
    volume: &mut VolumeSetup,
) -> Read<Vec<ChangeKind>> {
    let modifies = ["type", "size_gib", "iops", "throughput_mibps", "burst_iops", "burst_credits"]
        .into_iter()
        .filter(|key| reader.has(key))
        .count()
        > 0;
    let mut kinds = Vec::new();
    if modifies {
        let tolerance = volume.pacing.tolerance;
        match volume.spec {
            None => volume.pacing = raw_limits(reader)?,
            Some(spec) => {
                let change = VolumeChange {
                    volume_type: volume_type(reader)?,
                    size_gib: reader.small("size_gib", 1..=SIZE_GIB_MAX)?,
                    iops: reader.small("iops", 1..=u32::MAX)?,
                    throughput_mibps: reader.small("throughput_mibps", 1..=MIBPS_MAX)?,
                    multi_attach: None,
                };
                let spec = rules.modify(&spec, &change);
                let spec = spec.map_err(|error| refused(reader, rules, &error))?;
                volume.pacing = rules.pacing(&spec);
                volume.spec = Some(spec);
            }
        }
        volume.pacing.tolerance = tolerance;
        kinds.push(ChangeKind::SetLimits(number, Box::new(volume.pacing)));
    }
    let balances = balances(reader, &volume.pacing)?;
    if balances != Balances::default() {
        kinds.push(ChangeKind::SetBalances(number, balances));
    }
    if kinds.is_empty() {
        return Err(reader.fault("volume", "nothing is changed: name iops, size_gib, credits, ..."));
    }
    Ok(kinds)
}
