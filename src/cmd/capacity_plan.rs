//! `evenkeel capacity plan`: calculates whether volumes fit on devices, what is left, and what
//! further devices are needed.

use crate::cli::{Capacity, CapacityPlan, CapacityVerb};
use crate::price_book;
use evenkeel_client::output::{self, Exit, Failure, Format, or_dash};
use evenkeel_core::price;
use evenkeel_core::qos::admission::{DomainFloor, SOLD_SHARE_PPM};
use evenkeel_core::units::{GIB, MIB};
use evenkeel_core::volume::{Rules, VolumeSpec, VolumeType};
use evenkeel_planner::fit::{self, Device, Filled, Fitted};
use evenkeel_planner::packing::{EXACT_ITEMS_MAX, Packed, Unpacked};
use evenkeel_planner::price_book::PriceBook;
use evenkeel_planner::volumes::{self, Listed};
use evenkeel_server::calibration::record::Record;
use serde_json::{Value, json};
use std::io::BufReader;
use std::path::Path;

/// Maximum number of devices, counting each of a price book.
const DEVICES_MAX: usize = 10_000;
/// Maximum number of kinds of devices whose shortages an error describes.
const KINDS_SHOWN: usize = 4;

/// A device by name, and its monthly cost.
struct Named {
    name: String,
    device: Device,
    /// Amount in millionths, and the currency.
    monthly: Option<(u64, String)>,
}

/// Describes what an empty device lacks for a volume.
fn lacks(named: &Named, spec: &VolumeSpec) -> String {
    let all = named.device.lacks(Rules::newest(), spec);
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    format!("{}: {}", named.name, all.join(" and "))
}

/// The volumes and devices of a plan.
struct Plan {
    volumes: Vec<Listed>,
    devices: Vec<Named>,
    next: Named,
}

pub fn run(arguments: &Capacity) -> Result<(), Failure> {
    let CapacityVerb::Plan(flags) = &arguments.verb;
    let plan = Plan::of(flags)?;
    let specs: Vec<VolumeSpec> = plan.volumes.iter().map(|listed| listed.spec).collect();
    let devices: Vec<Device> = plan.devices.iter().map(|named| named.device.clone()).collect();
    let fitted = fit::fit(Rules::newest(), &devices, &plan.next.device, &specs);
    let fitted = fitted.map_err(|unpacked| plan.unpacked(unpacked))?;
    output::print(&match arguments.output.format {
        Format::Text => plan.text(&fitted),
        Format::Csv => output::csv(&["VOLUME", "TYPE", "GIB", "DEVICE"], &plan.places(&fitted)),
        Format::Json => output::json(&plan.json(&fitted)),
    })?;
    plan.verdict(&fitted.packed)
}

impl Plan {
    fn of(flags: &CapacityPlan) -> Result<Self, Failure> {
        let volumes = list(&flags.volumes)?;
        if volumes.is_empty() {
            let message = format!("{}: there is no volume in this list", flags.volumes.display());
            return Err(Failure::new(message).exit(Exit::Usage));
        }
        let mut kinds = match &flags.prices {
            None => calibrated(flags)?,
            Some(book) => of_book(&price_book::load(book)?, flags)?,
        };
        let chosen = match &flags.next {
            None => 0,
            Some(next) => chosen(&kinds, next)?,
        };
        let (next, _) = &kinds[chosen];
        let next = Named {
            name: next.name.clone(),
            device: next.device.clone(),
            monthly: next.monthly.clone(),
        };
        let mut devices = Vec::new();
        for (kind, number) in &mut kinds {
            for place in 1..=*number {
                let name = match *number {
                    1 => kind.name.clone(),
                    _ => format!("{} {place}", kind.name),
                };
                let monthly = kind.monthly.clone();
                devices.push(Named { name, device: kind.device.clone(), monthly });
            }
        }
        Ok(Self { volumes, devices, next })
    }

    fn unpacked(&self, unpacked: Unpacked) -> Failure {
        let (Unpacked::TooLarge { item } | Unpacked::NotFound { item }) = unpacked;
        let listed = &self.volumes[item];
        let (name, what) = (&listed.name, words(&listed.spec));
        match unpacked {
            Unpacked::TooLarge { .. } => {
                let lacks = self.lacks(&listed.spec);
                let message =
                    format!("{name}, {what}: no device is large enough, even empty: {lacks}");
                Failure::new(message).exit(Exit::Refused).hint(
                    "make it smaller, split it into a stripe, or name a larger device with \
                     --calibration",
                )
            }
            Unpacked::NotFound { .. } => {
                let message = format!(
                    "{name}, {what}: found no place for it, and a further {} cannot carry it: {}",
                    self.next.name,
                    lacks(&self.next, &listed.spec)
                );
                Failure::new(message)
                    .exit(Exit::Refused)
                    .hint("--next names the device of which more are to be had")
            }
        }
    }

    /// Describes what each kind of device lacks for a volume.
    fn lacks(&self, spec: &VolumeSpec) -> String {
        let mut kinds: Vec<&Named> = Vec::new();
        for named in std::iter::once(&self.next).chain(&self.devices) {
            if kinds.len() < KINDS_SHOWN && kinds.iter().all(|kind| kind.device != named.device) {
                kinds.push(named);
            }
        }
        let all: Vec<String> = kinds.iter().map(|named| lacks(named, spec)).collect();
        all.join("; ")
    }

    /// Returns the result as an exit code for scripts.
    fn verdict(&self, packed: &Packed) -> Result<(), Failure> {
        match (packed.further_min, packed.further) {
            (_, 0) => Ok(()),
            (0, _) => Err(Failure::new(
                "whether the volumes fit is not decided: no packing was found, and none is ruled \
                 out",
            )
            .exit(Exit::Undecided)),
            (..) => Err(Failure::new("the volumes do not fit on the devices that there are")
                .exit(Exit::Refused)),
        }
    }

    fn text(&self, fitted: &Fitted) -> String {
        let gib: u64 = self.volumes.iter().map(|listed| u64::from(listed.spec.size_gib)).sum();
        let mut text = format!(
            "{} volumes, {gib} GiB, on {} devices: {}\n\n",
            self.volumes.len(),
            self.devices.len(),
            self.answer(&fitted.packed)
        );
        let columns = [
            "DEVICE",
            "VOLUMES",
            "TIME PCT",
            "GIB",
            "IOPS LEFT",
            "GIB LEFT",
            "LARGEST GP3",
            "MOST IO2",
        ];
        let rows: Vec<Vec<String>> =
            self.names(fitted).into_iter().zip(&fitted.devices).map(row).collect();
        text.push_str(&output::table(&columns, &rows));
        text
    }

    /// Returns the names of all devices, existing and further ones.
    fn names(&self, fitted: &Fitted) -> Vec<String> {
        let exist = self.devices.iter().map(|named| named.name.clone());
        let further = (1..=fitted.packed.further).map(|n| format!("further {n}"));
        exist.chain(further).collect()
    }

    fn answer(&self, packed: &Packed) -> String {
        let Packed { further, further_min, .. } = packed;
        if *further == 0 {
            return "all fit".to_owned();
        }
        let bins = self.devices.len() + further;
        let proof = match further - further_min {
            0 => "no packing needs fewer".to_owned(),
            gap => format!(
                "at least {further_min} are needed; the gap is {gap} of {bins} devices, as more \
                 than {EXACT_ITEMS_MAX} volumes are not searched to the end"
            ),
        };
        let cost = self.next.monthly.as_ref().map_or_else(String::new, |(micros, currency)| {
            let all = micros.saturating_mul(*further as u64);
            format!(", for {} {currency} a month", price::rounded(all))
        });
        format!("{further} more like {} are needed{cost} ({proof})", self.next.name)
    }

    /// Returns each volume with its device.
    fn places(&self, fitted: &Fitted) -> Vec<Vec<String>> {
        let names = self.names(fitted);
        let place = |(listed, bin): (&Listed, &usize)| {
            let VolumeSpec { volume_type, size_gib, .. } = listed.spec;
            let (volume_type, gib) = (volume_type.to_string(), size_gib.to_string());
            vec![listed.name.clone(), volume_type, gib, names[*bin].clone()]
        };
        self.volumes.iter().zip(&fitted.packed.bin_of).map(place).collect()
    }

    fn json(&self, fitted: &Fitted) -> Value {
        let Packed { further, further_min, bin_of } = &fitted.packed;
        let names = self.names(fitted);
        let place = |(listed, bin): (&Listed, &usize)| {
            let (volume, device) = (&listed.name, &names[*bin]);
            json!({ "volume": volume, "device": device })
        };
        let devices = names.iter().zip(&fitted.devices);
        let devices = devices.map(|(name, filled)| device_json(name, filled));
        json!({
            "schema": "evenkeel.capacity-plan/1",
            "fits": *further == 0,
            "next": {
                "device": self.next.name,
                "needed": further,
                "needed_min": further_min,
                "each_monthly_micros": self.next.monthly.as_ref().map(|(micros, _)| micros),
                "currency": self.next.monthly.as_ref().map(|(_, currency)| currency),
            },
            "devices": devices.collect::<Vec<_>>(),
            "placement": self.volumes.iter().zip(bin_of).map(place).collect::<Vec<_>>(),
        })
    }
}

/// Returns a device with its volumes and what is left on it, as JSON.
fn device_json(name: &str, filled: &Filled) -> Value {
    let left = &filled.left;
    json!({
        "name": name,
        "volumes": filled.volumes,
        "sold_gib": filled.sold_gib,
        "device_time_permille": filled.time_permille,
        "left": {
            "gib": left.gib,
            "iops": left.iops,
            "largest_gp3": left.gp3.map(spec_json),
            "most_io2": left.io2.map(spec_json),
        },
    })
}

fn spec_json(spec: VolumeSpec) -> Value {
    json!({
        "size_gib": spec.size_gib,
        "iops": spec.iops,
        "throughput_mibps": spec.throughput_mibps,
    })
}

fn row((name, filled): (String, &Filled)) -> Vec<String> {
    let left = &filled.left;
    let gp3 = left.gp3.map(|spec| format!("{} GiB", spec.size_gib));
    let io2 = left.io2.and_then(|spec| Some(format!("{} IOPS", spec.iops?)));
    let permille = filled.time_permille;
    vec![
        name,
        filled.volumes.to_string(),
        format!("{}.{}", permille / 10, permille % 10),
        filled.sold_gib.to_string(),
        left.iops.to_string(),
        left.gib.to_string(),
        or_dash(gp3),
        or_dash(io2),
    ]
}

/// Describes a volume.
fn words(spec: &VolumeSpec) -> String {
    let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, .. } = spec;
    let iops = iops.map_or_else(String::new, |iops| format!(" with {iops} IOPS"));
    let mibps = throughput_mibps.map_or_else(String::new, |mibps| format!(" and {mibps} MiB/s"));
    format!("{volume_type} of {size_gib} GiB{iops}{mibps}")
}

/// Reads the volumes of a file.
fn list(path: &Path) -> Result<Vec<Listed>, Failure> {
    let failed = |why: String| Failure::new(format!("{}: {why}", path.display()));
    let input = super::input(path).map_err(|error| failed(error.to_string()))?;
    volumes::read(&mut BufReader::new(input), Rules::newest())
        .map_err(|broken| failed(broken.to_string()).exit(Exit::Usage))
}

/// Returns a server's limits, with the bandwidth of its network.
fn network(flags: &CapacityPlan, domain: DomainFloor) -> DomainFloor {
    let bytes = flags.network.map(|mibps| u64::from(mibps) * MIB);
    DomainFloor {
        network_in_bytes_per_second: bytes,
        network_out_bytes_per_second: bytes,
        ..domain
    }
}

/// Returns the devices of calibration records, one of each.
fn calibrated(flags: &CapacityPlan) -> Result<Vec<(Named, u32)>, Failure> {
    flags.calibration.iter().map(|path| Ok((calibrated_device(flags, path)?, 1))).collect()
}

/// Returns the device of a calibration record.
fn calibrated_device(flags: &CapacityPlan, path: &Path) -> Result<Named, Failure> {
    let name = path.display().to_string();
    let record = Record::load(path)?.ok_or_else(|| {
        Failure::new(format!("{name}: there is no such calibration record"))
            .exit(Exit::NotFound)
            .hint("`evenkeel calibrate` writes calibration.json into the data folder")
    })?;
    let of_record = record.device.bytes.map(|bytes| bytes / GIB);
    let space_gib = flags.space.or(of_record).ok_or_else(|| {
        let message = format!("{name}: the record does not say how large its device is");
        Failure::new(message).exit(Exit::Usage).hint("name it with --space GIB")
    })?;
    let calibration = record.calibration();
    let domain = match flags.cores {
        Some(cores) => calibration.domain_floor(cores),
        None => DomainFloor::UNLIMITED,
    };
    let device = Device {
        floor: record.sold_floor(),
        domain: network(flags, domain),
        sold_share_ppm: SOLD_SHARE_PPM,
        space_gib,
        types: None,
    };
    Ok(Named { name, device, monthly: None })
}

/// Returns the devices of a price book, and the number of each.
fn of_book(book: &PriceBook, flags: &CapacityPlan) -> Result<Vec<(Named, u32)>, Failure> {
    let devices: u64 = book.kinds().iter().map(|kind| u64::from(kind.number)).sum();
    if devices > DEVICES_MAX as u64 {
        let message = format!("{devices} devices in the price book: at most {DEVICES_MAX} can be");
        return Err(Failure::new(message).exit(Exit::Usage));
    }
    let kinds = book.kinds().iter().map(|kind| {
        let carries = |it: &VolumeType| book.carrier(*it).is_ok_and(|carrier| carrier == kind);
        let device = Device {
            floor: kind.floor,
            domain: network(flags, DomainFloor::UNLIMITED),
            sold_share_ppm: kind.sold_share_ppm,
            space_gib: kind.capacity_gib,
            types: Some(VolumeType::ALL.into_iter().filter(carries).collect()),
        };
        let monthly = kind.monthly / u64::from(kind.number.max(1));
        let monthly = Some((monthly, book.currency().to_owned()));
        (Named { name: kind.name.clone(), device, monthly }, kind.number)
    });
    Ok(kinds.collect())
}

/// Finds a device by its position or its name.
fn chosen(kinds: &[(Named, u32)], next: &str) -> Result<usize, Failure> {
    let by_place = next.parse::<usize>().ok().and_then(|place| place.checked_sub(1));
    let by_name = || kinds.iter().position(|(kind, _)| kind.name == next);
    by_place.filter(|place| *place < kinds.len()).or_else(by_name).ok_or_else(|| {
        let names: Vec<&str> = kinds.iter().map(|(kind, _)| kind.name.as_str()).take(8).collect();
        let message = format!("--next {next}: there is no such device");
        Failure::new(message).exit(Exit::Usage).hint(format!(
            "1 to {}, or one of {}",
            kinds.len(),
            names.join(", ")
        ))
    })
}
