//! Whether volumes fit on devices, what is left, and what further devices are needed.

use crate::fit::{self, Device, Filled, Fitted};
use crate::packing::{EXACT_ITEMS_MAX, Packed, Unpacked};
use crate::price_book::PriceBook;
use crate::refusal::{Cause, Refusal};
use crate::volumes::Listed;
use evenkeel_core::price;
use evenkeel_core::qos::admission::DomainFloor;
use evenkeel_core::volume::{Rules, VolumeSpec, VolumeType};
use evenkeel_sim::text::{self, or_dash};
use serde_json::{Value, json};

/// Maximum number of devices, counting each of a price book.
const DEVICES_MAX: usize = 10_000;
/// Maximum number of kinds of devices whose shortages an error describes.
const KINDS_SHOWN: usize = 4;

/// A device by name, and its monthly cost.
#[derive(Clone)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its limits and its space.
    pub device: Device,
    /// Amount in millionths, and the currency.
    pub monthly: Option<(u64, String)>,
}

/// Describes what an empty device lacks for a volume.
fn lacks(named: &Named, spec: &VolumeSpec) -> String {
    let all = named.device.lacks(Rules::newest(), spec);
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    format!("{}: {}", named.name, all.join(" and "))
}

/// The question: the volumes, the present devices, and the kind of further devices.
pub struct Capacity {
    volumes: Vec<Listed>,
    devices: Vec<Named>,
    next: Named,
}

/// The answer: the device of each volume, and what is left.
pub struct Packing<'a> {
    question: &'a Capacity,
    fitted: Fitted,
}

impl Capacity {
    /// Creates the question of volumes and of kinds of devices, each with its number. `next` is the
    /// position or the name of a kind; the first without it.
    ///
    /// # Errors
    /// If there is no such kind.
    pub fn new(
        volumes: Vec<Listed>,
        kinds: &[(Named, u32)],
        next: Option<&str>,
    ) -> Result<Self, Refusal> {
        let place = next.map_or(Ok(0), |next| chosen(kinds, next))?;
        let Some((next, _)) = kinds.get(place) else {
            return Err(Refusal::new("there is no device").cause(Cause::Question));
        };
        let mut devices = Vec::new();
        for (kind, number) in kinds {
            for place in 1..=*number {
                let name = match *number {
                    1 => kind.name.clone(),
                    _ => format!("{} {place}", kind.name),
                };
                devices.push(Named { name, ..kind.clone() });
            }
        }
        Ok(Self { volumes, devices, next: next.clone() })
    }

    /// Packs the volumes on the devices, and on further ones if they do not fit.
    ///
    /// # Errors
    /// If a volume does not fit on a further device.
    pub fn answer(&self) -> Result<Packing<'_>, Refusal> {
        let specs: Vec<VolumeSpec> = self.volumes.iter().map(|listed| listed.spec).collect();
        let devices: Vec<Device> = self.devices.iter().map(|named| named.device.clone()).collect();
        let fitted = fit::fit(Rules::newest(), &devices, &self.next.device, &specs);
        let fitted = fitted.map_err(|unpacked| self.unpacked(unpacked))?;
        Ok(Packing { question: self, fitted })
    }

    fn unpacked(&self, unpacked: Unpacked) -> Refusal {
        let (Unpacked::TooLarge { item } | Unpacked::NotFound { item }) = unpacked;
        let listed = &self.volumes[item];
        let name = &listed.name;
        let what = words(&listed.spec);
        match unpacked {
            Unpacked::TooLarge { .. } => {
                let lacks = self.lacks(&listed.spec);
                let message =
                    format!("{name}, {what}: no device is large enough, even empty: {lacks}");
                Refusal::new(message).cause(Cause::DoesNotFit).hint(
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
                Refusal::new(message)
                    .cause(Cause::DoesNotFit)
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
}

impl Packing<'_> {
    /// Returns whether all volumes fit.
    ///
    /// # Errors
    /// If they do not, or if that is not decided.
    pub fn verdict(&self) -> Result<(), Refusal> {
        let packed = &self.fitted.packed;
        match (packed.further_min, packed.further) {
            (_, 0) => Ok(()),
            (0, _) => Err(Refusal::new(
                "whether the volumes fit is not decided: no packing was found, and none is ruled \
                 out",
            )
            .cause(Cause::Undecided)),
            (..) => Err(Refusal::new("the volumes do not fit on the devices that there are")
                .cause(Cause::DoesNotFit)),
        }
    }

    /// Returns the answer in lines.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { question, fitted } = self;
        let gib: u64 = question.volumes.iter().map(|listed| u64::from(listed.spec.size_gib)).sum();
        let mut text = format!(
            "{} volumes, {gib} GiB, on {} devices: {}\n\n",
            question.volumes.len(),
            question.devices.len(),
            self.sentence()
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
            self.names().into_iter().zip(&fitted.devices).map(row).collect();
        text.push_str(&text::table(&columns, &rows));
        text
    }

    /// Returns the names of all devices, existing and further ones.
    fn names(&self) -> Vec<String> {
        let exist = self.question.devices.iter().map(|named| named.name.clone());
        let further = (1..=self.fitted.packed.further).map(|n| format!("further {n}"));
        exist.chain(further).collect()
    }

    fn sentence(&self) -> String {
        let Packed { further, further_min, .. } = &self.fitted.packed;
        let Capacity { devices, next, .. } = self.question;
        if *further == 0 {
            return "all fit".to_owned();
        }
        let bins = devices.len() + further;
        let proof = match further - further_min {
            0 => "no packing needs fewer".to_owned(),
            gap => format!(
                "at least {further_min} are needed; the gap is {gap} of {bins} devices, as more \
                 than {EXACT_ITEMS_MAX} volumes are not searched to the end"
            ),
        };
        let cost = next.monthly.as_ref().map_or_else(String::new, |(micros, currency)| {
            let all = micros.saturating_mul(*further as u64);
            format!(", for {} {currency} a month", price::rounded(all))
        });
        format!("{further} more like {} are needed{cost} ({proof})", next.name)
    }

    /// Returns each volume with its device, as CSV.
    #[must_use]
    pub fn csv(&self) -> String {
        let names = self.names();
        let place = |(listed, bin): (&Listed, &usize)| {
            let VolumeSpec { volume_type, size_gib, .. } = listed.spec;
            vec![
                listed.name.clone(),
                volume_type.to_string(),
                size_gib.to_string(),
                names[*bin].clone(),
            ]
        };
        let volumes = self.question.volumes.iter();
        let rows: Vec<Vec<String>> = volumes.zip(&self.fitted.packed.bin_of).map(place).collect();
        text::csv(&["VOLUME", "TYPE", "GIB", "DEVICE"], &rows)
    }

    /// Returns the answer as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let Self { question, fitted } = self;
        let next = &question.next;
        let Packed { further, further_min, bin_of } = &fitted.packed;
        let names = self.names();
        let place = |(listed, bin): (&Listed, &usize)| {
            let device = &names[*bin];
            json!({ "volume": listed.name, "device": device })
        };
        let devices = names.iter().zip(&fitted.devices);
        let devices = devices.map(|(name, filled)| device_json(name, filled));
        json!({
            "schema": "evenkeel.capacity-plan/1",
            "fits": *further == 0,
            "next": {
                "device": next.name,
                "needed": further,
                "needed_min": further_min,
                "each_monthly_micros": next.monthly.as_ref().map(|(micros, _)| micros),
                "currency": next.monthly.as_ref().map(|(_, currency)| currency),
            },
            "devices": devices.collect::<Vec<_>>(),
            "placement": question.volumes.iter().zip(bin_of).map(place).collect::<Vec<_>>(),
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

/// Returns a server's limits, with the bandwidth of its network in each direction.
#[must_use]
pub fn with_network(bytes_per_second: Option<u64>, domain: DomainFloor) -> DomainFloor {
    DomainFloor {
        network_in_bytes_per_second: bytes_per_second,
        network_out_bytes_per_second: bytes_per_second,
        ..domain
    }
}

/// Returns the devices of a price book, and the number of each.
///
/// # Errors
/// If there are too many.
pub fn of_book(
    book: &PriceBook,
    network_bytes_per_second: Option<u64>,
) -> Result<Vec<(Named, u32)>, Refusal> {
    let devices: u64 = book.kinds().iter().map(|kind| u64::from(kind.number)).sum();
    if devices > DEVICES_MAX as u64 {
        let message = format!("{devices} devices in the price book: at most {DEVICES_MAX} can be");
        return Err(Refusal::new(message).cause(Cause::Question));
    }
    let kinds = book.kinds().iter().map(|kind| {
        let carries = |it: &VolumeType| book.carrier(*it).is_ok_and(|carrier| carrier == kind);
        let device = Device {
            floor: kind.floor,
            domain: with_network(network_bytes_per_second, DomainFloor::UNLIMITED),
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
fn chosen(kinds: &[(Named, u32)], next: &str) -> Result<usize, Refusal> {
    let by_place = next.parse::<usize>().ok().and_then(|place| place.checked_sub(1));
    let by_name = || kinds.iter().position(|(kind, _)| kind.name == next);
    by_place.filter(|place| *place < kinds.len()).or_else(by_name).ok_or_else(|| {
        let names: Vec<&str> = kinds.iter().map(|(kind, _)| kind.name.as_str()).take(8).collect();
        let message = format!("--next {next}: there is no such device");
        Refusal::new(message).cause(Cause::Question).hint(format!(
            "1 to {}, or one of {}",
            kinds.len(),
            names.join(", ")
        ))
    })
}
