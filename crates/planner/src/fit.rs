//! Placement of volumes on devices: whether they fit, the device of each, the capacity left to
//! sell, and the number of further devices needed.
//!
//! A volume takes of a device the device time of its reservation, by the books of admission, and
//! its whole size. So a server admits every packing.

#[cfg(test)]
mod tests;

use evenkeel_core::convert::saturating;
use std::fmt;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::{
    DeviceFloor, DomainFloor, Ledger, Oversell, Reservation, Resource,
};
use evenkeel_core::volume::{IopsRule, Rules, VolumeRequest, VolumeSpec, VolumeType};

use crate::bisect::{largest, least};
use crate::packing::{Amounts, DIMENSIONS, Packed, Problem, Unpacked};

/// A device and its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Capacity of the device.
    pub floor: DeviceFloor,
    /// Capacity of the server beside the device.
    pub domain: DomainFloor,
    /// The share of both that is sold, in millionths.
    pub sold_share_ppm: u32,
    /// Its space in GiB.
    pub space_gib: u64,
    /// The types of volumes that it carries; `None` is all.
    pub types: Option<Vec<VolumeType>>,
}

/// A placement of volumes on devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fitted {
    /// The device of each volume: first the devices that exist, then further ones.
    pub packed: Packed,
    /// The contents of each device, and the capacity left on it. Further devices are last.
    pub devices: Vec<Filled>,
}

/// The contents of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filled {
    /// Number of volumes.
    pub volumes: usize,
    /// Their size in GiB.
    pub sold_gib: u64,
    /// The device time that they reserve, in thousandths of the sellable time, rounded up.
    pub time_permille: u64,
    /// The capacity left to sell.
    pub left: Left,
}

/// The capacity left to sell on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// Space in GiB.
    pub gib: u64,
    /// IOPS of 16 KiB, half of them writes.
    pub iops: u32,
    /// The largest gp3 volume that fits, with the IOPS and throughput that every size has.
    pub gp3: Option<VolumeSpec>,
    /// The io2 volume with the most IOPS that fits, as small as it can be.
    pub io2: Option<VolumeSpec>,
}

/// Packs volumes onto devices, and onto further ones like `next` if these are not enough.
///
/// # Errors
/// Returns [`Unpacked`] if a volume fits nowhere, or if no packing is found.
pub fn fit(
    rules: &Rules,
    devices: &[Device],
    next: &Device,
    volumes: &[VolumeSpec],
) -> Result<Fitted, Unpacked> {
    let mut kinds: Vec<&Device> = Vec::new();
    let mut kind_of = |device| {
        kinds.iter().position(|kind| *kind == device).unwrap_or_else(|| {
            kinds.push(device);
            kinds.len() - 1
        })
    };
    let bins: Vec<usize> = devices.iter().map(&mut kind_of).collect();
    let next = kind_of(next);
    let takes = |spec: &VolumeSpec| {
        kinds.iter().map(|kind| kind.takes(rules, spec)).collect::<Vec<Amounts>>()
    };
    let problem = Problem {
        kinds: kinds.iter().map(|kind| kind.room()).collect(),
        bins,
        next,
        items: volumes.iter().map(takes).collect(),
    };
    let packed = problem.pack()?;
    let further = std::iter::repeat_n(problem.next, packed.further);
    let bins = problem.bins.iter().copied().chain(further);
    let mut on: Vec<Vec<VolumeSpec>> = vec![vec![]; problem.bins.len() + packed.further];
    for (spec, bin) in volumes.iter().zip(&packed.bin_of) {
        on[*bin].push(*spec);
    }
    let devices = bins.zip(on).map(|(kind, on)| kinds[kind].filled(rules, &on)).collect();
    Ok(Fitted { packed, devices })
}

/// A requirement of a volume that exceeds the capacity of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// The device carries no volumes of this type.
    Type(VolumeType),
    /// Space in GiB: the requirement, and the capacity.
    Space(u64, u64),
    /// A resource of admission: the requirement in thousandths of its sellable amount.
    Resource(Resource, u64),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(volume_type) => write!(f, "carries no {volume_type}"),
            Self::Space(needed, has) => write!(f, "{needed} GiB of space are needed, it has {has}"),
            Self::Resource(resource, permille) => {
                let name = match resource {
                    Resource::DeviceTime => "device time",
                    Resource::NetworkIn => "network into the server",
                    Resource::NetworkOut => "network out of the server",
                    Resource::Cpu => "time of its cores",
                };
                let percent = permille / 10;
                let tenths = permille % 10;
                write!(f, "{percent}.{tenths} % of the {name} that is sold are needed")
            }
        }
    }
}

impl Device {
    /// Returns the requirements of a volume that exceed the capacity of the empty device; empty if
    /// it fits.
    #[must_use]
    pub fn lacks(&self, rules: &Rules, spec: &VolumeSpec) -> Vec<Lack> {
        if !self.carries(spec.volume_type) {
            return vec![Lack::Type(spec.volume_type)];
        }
        let takes = self.takes(rules, spec);
        let room = self.room();
        let permille = |needed: u64, has: u64| {
            let permille = (u128::from(needed) * 1_000).div_ceil(u128::from(has.max(1)));
            saturating::<_, u64>(permille)
        };
        let lacks = Resource::ALL.into_iter().zip(takes.into_iter().zip(room));
        let lacks = lacks.filter(|(_, (needed, has))| needed > has);
        let resources =
            lacks.map(|(resource, (needed, has))| Lack::Resource(resource, permille(needed, has)));
        let gib = u64::from(spec.size_gib);
        let space = (gib > self.space_gib).then_some(Lack::Space(gib, self.space_gib));
        resources.chain(space).collect()
    }

    fn ledger(&self) -> Ledger {
        Ledger::new(self.floor, self.domain, self.sold_share_ppm)
    }

    fn carries(&self, volume_type: VolumeType) -> bool {
        self.types.as_ref().is_none_or(|types| types.contains(&volume_type))
    }

    /// Returns everything that may be sold of it.
    fn room(&self) -> Amounts {
        let ledger = self.ledger();
        // Space is the last dimension. The resources of admission precede it.
        let mut room = [self.space_gib; DIMENSIONS];
        for (room, resource) in room.iter_mut().zip(Resource::ALL) {
            *room = ledger.usage(resource).sellable.unwrap_or(u64::MAX);
        }
        room
    }

    /// Returns the amounts that a volume takes of it; more than there is if the device does not
    /// carry the type.
    fn takes(&self, rules: &Rules, spec: &VolumeSpec) -> Amounts {
        if !self.carries(spec.volume_type) {
            return [u64::MAX; DIMENSIONS];
        }
        let mut ledger = self.ledger();
        // An empty ledger accepts every reservation of a volume.
        let _ = ledger.enter(VolumeId::from_bits(0), reservation(rules, spec));
        let mut takes = [u64::from(spec.size_gib); DIMENSIONS];
        for (takes, resource) in takes.iter_mut().zip(Resource::ALL) {
            *takes = saturating::<_, u64>(ledger.usage(resource).sold);
        }
        takes
    }

    /// Returns the contents of the device with these volumes, by the books of admission.
    fn filled(&self, rules: &Rules, volumes: &[VolumeSpec]) -> Filled {
        let mut ledger = self.ledger();
        for (number, spec) in (0..).zip(volumes) {
            let _ = ledger.enter(VolumeId::from_bits(number), reservation(rules, spec));
        }
        let sold_gib = volumes.iter().map(|spec| u64::from(spec.size_gib)).sum();
        let usage = ledger.usage(Resource::DeviceTime);
        let sellable = u128::from(usage.sellable.unwrap_or(u64::MAX)).max(1);
        let permille = usage.sold.saturating_mul(1_000).div_ceil(sellable);
        let gib = self.space_gib.saturating_sub(sold_gib);
        let iops = ledger.per_second_max(ANOTHER, &Reservation::of_iops(0));
        let room = Room { rules, ledger: &ledger, gib };
        let carried =
            |volume_type, found: Option<VolumeSpec>| found.filter(|_| self.carries(volume_type));
        Filled {
            volumes: volumes.len(),
            sold_gib,
            time_permille: saturating::<_, u64>(permille),
            left: Left {
                gib,
                iops,
                gp3: carried(VolumeType::Gp3, room.largest_gp3()),
                io2: carried(VolumeType::Io2, room.largest_io2()),
            },
        }
    }
}

/// A volume that is on no device.
const ANOTHER: VolumeId = VolumeId::from_bits(u64::MAX as u128);

fn reservation(rules: &Rules, spec: &VolumeSpec) -> Reservation {
    rules.reserved(spec).reservation(Oversell::NONE)
}

/// The capacity left on a device.
struct Room<'a> {
    rules: &'a Rules,
    ledger: &'a Ledger,
    gib: u64,
}

impl Room<'_> {
    /// Returns a volume if the rules allow it and it fits.
    fn fitting(
        &self,
        volume_type: VolumeType,
        size_gib: u32,
        iops: Option<u32>,
    ) -> Option<VolumeSpec> {
        let request = VolumeRequest {
            volume_type,
            size_gib,
            iops,
            throughput_mibps: None,
            multi_attach: false,
        };
        let spec = self.rules.resolve(&request).ok().filter(|_| u64::from(size_gib) <= self.gib)?;
        self.ledger.consult(ANOTHER, &reservation(self.rules, &spec)).ok().map(|()| spec)
    }

    /// Returns the largest gp3 volume that fits. Its reservation does not depend on its size.
    fn largest_gp3(&self) -> Option<VolumeSpec> {
        let most = self.rules.of(VolumeType::Gp3)?.size_gib_max;
        let size_gib = saturating::<_, u32>(self.gib).min(most);
        self.fitting(VolumeType::Gp3, size_gib, None)
    }

    fn largest_io2(&self) -> Option<VolumeSpec> {
        let rules = self.rules.of(VolumeType::Io2)?;
        let IopsRule::Provisioned { min, max, .. } = rules.iops else { return None };
        let found = largest((min, max), |iops| {
            let enough = |size_gib: u32| rules.iops_max(size_gib).filter(|most| *most >= iops);
            let (size_gib, _) = least((rules.size_gib_min, rules.size_gib_max), enough)?;
            self.fitting(VolumeType::Io2, size_gib, Some(iops))
        });
        found.map(|(_, spec)| spec)
    }
}
