//! The ledger against the oracle, over random worlds and histories.

use std::collections::BTreeMap;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::{
    Account, Costs, DeviceFloor, DeviceIndex, DomainFloor, DomainIndex, Ledger, LinearCost,
    Oversell, Place, Refused, Reservation, Resource,
};
use evenkeel_core::time::Duration;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::oracle::{Line, Volume, World};

/// Small numbers often, so that floors are met exactly; and the ends of the range.
fn number(small: u64) -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..=small, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn cost() -> impl Strategy<Value = LinearCost> {
    let base = prop_oneof![8 => 0..200_000u64, 1 => number(200_000)];
    let byte_ps = prop_oneof![8 => 0..10_000u32, 1 => Just(u32::MAX)];
    (base, byte_ps).prop_map(|(ns, byte_ps)| LinearCost { base: Duration::from_ns(ns), byte_ps })
}

fn costs() -> impl Strategy<Value = Costs> {
    (cost(), cost()).prop_map(|(read, write)| Costs { read, write })
}

fn device_floor() -> impl Strategy<Value = DeviceFloor> {
    let floor = number(8_000_000_000);
    (floor, costs())
        .prop_map(|(time_ns_per_second, costs)| DeviceFloor { time_ns_per_second, costs })
}

fn domain_floor() -> impl Strategy<Value = DomainFloor> {
    let limit = || prop::option::of(number(2_000_000_000));
    (limit(), limit(), limit(), costs()).prop_map(|(read, write, cpu, cpu_costs)| DomainFloor {
        network_in_bytes_per_second: write,
        network_out_bytes_per_second: read,
        cpu_ns_per_second: cpu,
        cpu_costs,
    })
}

#[derive(Clone, Debug)]
struct Asked {
    per_second: u32,
    io_bytes: u32,
    write_ppm: u32,
    oversell_ppm: u32,
    carriers: Vec<Index>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let per_second = prop_oneof![8 => 0..20_000u32, 1 => Just(u32::MAX), 1 => Just(0)];
    let io_bytes = prop_oneof![8 => Just(16u32 << 10), 1 => Just(1 << 20), 1 => any::<u32>()];
    let write_ppm = prop_oneof![Just(0), Just(1_000_000), 0..=1_000_000u32];
    let oversell = prop_oneof![4 => Just(1_000_000), 1 => 1_000_000..=u32::MAX];
    let carriers = prop::collection::vec(any::<Index>(), 1..4);
    (per_second, io_bytes, write_ppm, oversell, carriers).prop_map(
        |(per_second, io_bytes, write_ppm, oversell_ppm, carriers)| Asked {
            per_second,
            io_bytes,
            write_ppm,
            oversell_ppm,
            carriers,
        },
    )
}

/// One thing that happens to the books.
#[derive(Clone, Debug)]
enum Step {
    Admit(u8, Asked),
    /// The volume's present reservation at another rate.
    Resize(u8, u32),
    Restore(u8, Asked),
    Remove(u8),
    AddDomain(DomainFloor),
    AddDevice(Index, DeviceFloor),
    SetDevice(Index, DeviceFloor),
    /// The device delivers this many in a thousand of what it did.
    Drift(Index, u16),
    SetDomain(Index, DomainFloor),
}

fn step() -> impl Strategy<Value = Step> {
    let volume = || 0..6u8;
    prop_oneof![
        12 => (volume(), asked()).prop_map(|(v, a)| Step::Admit(v, a)),
        6 => (volume(), 0..20_000u32).prop_map(|(v, r)| Step::Resize(v, r)),
        2 => (volume(), asked()).prop_map(|(v, a)| Step::Restore(v, a)),
        4 => volume().prop_map(Step::Remove),
        1 => domain_floor().prop_map(Step::AddDomain),
        2 => (any::<Index>(), device_floor()).prop_map(|(i, f)| Step::AddDevice(i, f)),
        1 => (any::<Index>(), device_floor()).prop_map(|(i, f)| Step::SetDevice(i, f)),
        2 => (any::<Index>(), 0..1_200u16).prop_map(|(i, d)| Step::Drift(i, d)),
        1 => (any::<Index>(), domain_floor()).prop_map(|(i, f)| Step::SetDomain(i, f)),
    ]
}

/// The ledger and the oracle's world, driven together.
struct Pair {
    ledger: Ledger,
    domains: Vec<DomainIndex>,
    devices: Vec<DeviceIndex>,
    world: World,
    volumes: BTreeMap<u8, Volume>,
}

fn id(volume: u8) -> VolumeId {
    VolumeId::from_bits(volume.into())
}

impl Pair {
    fn new(share_ppm: u32, floors: &[(DomainFloor, Vec<DeviceFloor>)]) -> Self {
        let world = World { share_ppm, domains: vec![], devices: vec![] };
        let (domains, devices, volumes) = (vec![], vec![], BTreeMap::new());
        let ledger = Ledger::new(share_ppm);
        let mut pair = Self { ledger, domains, devices, world, volumes };
        for (domain, devices) in floors {
            pair.domains.push(pair.ledger.add_domain(*domain).unwrap());
            pair.world.domains.push(*domain);
            for device in devices {
                pair.add_device(pair.domains.len() - 1, *device);
            }
        }
        pair
    }

    fn add_device(&mut self, domain: usize, floor: DeviceFloor) {
        let added = self.ledger.add_device(self.domains[domain], floor).unwrap();
        self.devices.push(added.unwrap());
        self.world.devices.push((domain, floor));
    }

    fn volume(&self, asked: &Asked) -> Volume {
        let mut carriers = Vec::new();
        for carrier in asked.carriers.iter().map(|c| c.index(self.devices.len())) {
            if !carriers.contains(&carrier) {
                carriers.push(carrier);
            }
        }
        let Asked { per_second, io_bytes, write_ppm, oversell_ppm, .. } = *asked;
        Volume { per_second, io_bytes, write_ppm, oversell_ppm, carriers }
    }

    fn reservation(&self, volume: &Volume) -> Reservation {
        Reservation {
            per_second: volume.per_second,
            io_bytes: volume.io_bytes,
            write_ppm: volume.write_ppm,
            oversell: Oversell::from_ppm(volume.oversell_ppm).unwrap(),
            carriers: volume.carriers.iter().map(|&c| self.devices[c]).collect(),
        }
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Admit(v, asked) => self.admit(*v, self.volume(asked))?,
            Step::Resize(v, per_second) => {
                if let Some(present) = self.volumes.get(v).cloned() {
                    self.admit(*v, Volume { per_second: *per_second, ..present })?;
                }
            }
            Step::Restore(v, asked) => {
                let volume = self.volume(asked);
                let reservation = self.reservation(&volume);
                prop_assert_eq!(self.ledger.restore(id(*v), reservation), Ok(()));
                self.volumes.insert(*v, volume);
            }
            Step::Remove(v) => {
                let removed = self.ledger.remove(id(*v)).is_some();
                prop_assert_eq!(removed, self.volumes.remove(v).is_some());
            }
            Step::AddDomain(floor) => {
                self.domains.push(self.ledger.add_domain(*floor).unwrap());
                self.world.domains.push(*floor);
            }
            Step::AddDevice(at, floor) => self.add_device(at.index(self.domains.len()), *floor),
            Step::SetDevice(at, floor) => self.set_device(at.index(self.devices.len()), *floor),
            Step::Drift(at, thousandths) => {
                let at = at.index(self.devices.len());
                let mut floor = self.world.devices[at].1;
                let drifted = u128::from(floor.time_ns_per_second) * u128::from(*thousandths);
                floor.time_ns_per_second = u64::try_from(drifted / 1_000).unwrap_or(u64::MAX);
                self.set_device(at, floor);
            }
            Step::SetDomain(at, floor) => {
                let at = at.index(self.domains.len());
                self.ledger.set_domain_floor(self.domains[at], *floor);
                self.world.domains[at] = *floor;
            }
        }
        Ok(())
    }

    fn set_device(&mut self, at: usize, floor: DeviceFloor) {
        self.ledger.set_device_floor(self.devices[at], floor);
        self.world.devices[at].1 = floor;
    }

    /// Asks both, compares, and on a refusal checks that it tells the largest that fits.
    fn admit(&mut self, v: u8, new: Volume) -> Result<(), TestCaseError> {
        let others: Vec<_> = self.volumes.iter().filter(|(k, _)| **k != v).map(|o| o.1).collect();
        let old = self.volumes.get(&v);
        let admits = self.world.admits(&others, old, &new);
        let shrinks = old.is_some_and(|old| {
            new.per_second <= old.per_second
                && Volume { per_second: 0, ..new.clone() }
                    == Volume { per_second: 0, ..old.clone() }
        });
        let answer = self.ledger.admit(id(v), self.reservation(&new));
        prop_assert_eq!(answer.is_ok(), admits, "{:?}", answer);
        prop_assert!(admits || !shrinks, "a volume that shrinks was refused: {answer:?}");
        if let Err(Refused::Short(short)) = answer {
            let at = |per_second| {
                let volume = Volume { per_second, ..new.clone() };
                self.world.admits(&others, old, &volume)
            };
            prop_assert!(at(short.per_second_max));
            prop_assert!(!at(short.per_second_max + 1));
            prop_assert!(short.per_second_max < new.per_second);
            prop_assert_eq!(short.short_by, short.needed - u128::from(short.available));
            let line = line_of(short.account);
            prop_assert_eq!(short.needed, self.world.part(&new, line));
            let bound = self.world.lines().into_iter().find(|l| l.0 == line).unwrap().1.unwrap();
            let left =
                u128::from(bound).saturating_sub(self.world.sum(others.iter().copied(), line));
            prop_assert_eq!(u128::from(short.available), left);
        }
        if let Ok(admitted) = answer {
            self.volumes.insert(v, new.clone());
            let headroom = admitted.headroom;
            let least = |resource| self.least_left(&new, resource);
            prop_assert_eq!(headroom.device_ns_per_second, least("time"));
            prop_assert_eq!(headroom.network_in_bytes_per_second, least("in"));
            prop_assert_eq!(headroom.network_out_bytes_per_second, least("out"));
            prop_assert_eq!(headroom.cpu_ns_per_second, least("cpu"));
        }
        Ok(())
    }

    /// The least that is left of a resource at any place that `volume` is on or may go to.
    fn least_left(&self, volume: &Volume, resource: &str) -> Option<u64> {
        let lines = self.world.lines();
        let of_volume = lines.into_iter().filter(|((lost, name, position), _)| {
            let left = |d: &&usize| Some(self.world.devices[**d].0) != *lost;
            *name == resource
                && volume.carriers.iter().find(left).is_some_and(|&device| {
                    let domain = self.world.devices[device].0;
                    *position == if resource == "time" { device } else { domain }
                })
        });
        let left = |(line, bound): (Line, Option<u64>)| {
            let sum = self.world.sum(self.volumes.values(), line);
            bound.map(|b| b.saturating_sub(u64::try_from(sum).unwrap_or(u64::MAX)))
        };
        of_volume.filter_map(left).min()
    }

    /// Every sum of the books is what adding up anew gives; what is oversold is told, and no more.
    fn compare(&self) -> Result<(), TestCaseError> {
        let mut oversold = BTreeMap::new();
        for (line, bound) in self.world.lines() {
            let (lost, resource, position) = line;
            let account = self.account(lost, resource, position);
            let usage = self.ledger.usage(account).unwrap();
            let sum = self.world.sum(self.volumes.values(), line);
            prop_assert_eq!(usage.sold, sum, "{:?}", line);
            prop_assert_eq!(usage.sellable, bound, "{:?}", line);
            let by = bound.map_or(0, |bound| sum.saturating_sub(bound.into()));
            if by > 0 {
                let worst = oversold.entry((account.place, account.resource)).or_insert(0);
                *worst = by.max(*worst);
            }
        }
        let told: BTreeMap<_, _> = self
            .ledger
            .oversold()
            .into_iter()
            .map(|o| ((o.account.place, o.account.resource), o.by))
            .collect();
        prop_assert_eq!(told, oversold);
        Ok(())
    }

    fn account(&self, lost: Option<usize>, resource: &str, position: usize) -> Account {
        let lost = lost.map(|lost| self.domains[lost]);
        let domain = |resource| (Place::Domain(self.domains[position]), resource);
        let (place, resource) = match resource {
            "time" => (Place::Device(self.devices[position]), Resource::DeviceTime),
            "in" => domain(Resource::NetworkIn),
            "out" => domain(Resource::NetworkOut),
            "cpu" => domain(Resource::Cpu),
            _ => domain(Resource::Standby),
        };
        Account { lost, place, resource }
    }
}

fn line_of(account: Account) -> Line {
    let lost = account.lost.map(DomainIndex::position);
    let position = match account.place {
        Place::Device(device) => device.position(),
        Place::Domain(domain) => domain.position(),
    };
    let resource = match account.resource {
        Resource::DeviceTime => "time",
        Resource::NetworkIn => "in",
        Resource::NetworkOut => "out",
        Resource::Cpu => "cpu",
        Resource::Standby => "standby",
    };
    (lost, resource, position)
}

proptest! {
    #[test]
    fn the_books_are_what_adding_up_anew_gives_and_answer_as_the_definition(
        share_ppm in prop_oneof![Just(800_000), Just(1_000_000), 0..=1_000_000u32],
        floors in prop::collection::vec(
            (domain_floor(), prop::collection::vec(device_floor(), 1..4)), 1..4,
        ),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut pair = Pair::new(share_ppm, &floors);
        for step in steps {
            pair.apply(&step)?;
            pair.compare()?;
        }
    }
}
