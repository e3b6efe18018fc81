//! The ledger against the oracle, over random worlds and histories.

use std::collections::BTreeMap;

use evenkeel_core::convert::saturating;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::{
    Costs, DeviceFloor, DomainFloor, Ledger, LinearCost, Oversell, Refused, Reservation, Resource,
};
use evenkeel_core::time::Duration;
use proptest::prelude::*;

use crate::oracle::{PlainReservation, World};

/// Mostly small numbers, so that floors are met exactly, and sometimes the ends of the range.
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

fn volume() -> impl Strategy<Value = PlainReservation> {
    let per_second = prop_oneof![8 => 0..20_000u32, 1 => Just(u32::MAX), 1 => Just(0)];
    let io_bytes = prop_oneof![8 => Just(16u32 << 10), 1 => Just(1 << 20), 1 => any::<u32>()];
    let write_ppm = prop_oneof![Just(0), Just(1_000_000), 0..=1_000_000u32];
    let oversell = prop_oneof![4 => Just(1_000_000), 1 => 1_000_000..=u32::MAX];
    (per_second, io_bytes, write_ppm, oversell).prop_map(
        |(per_second, io_bytes, write_ppm, oversell_ppm)| PlainReservation {
            per_second,
            io_bytes,
            write_ppm,
            oversell_ppm,
        },
    )
}

/// One change of the ledger.
#[derive(Clone, Debug)]
enum BooksCall {
    /// Consults the ledger, and enters an admitted reservation.
    Admit(u8, PlainReservation),
    /// Consults for the volume's present reservation at another rate.
    Resize(u8, u32),
    Enter(u8, PlainReservation),
    Remove(u8),
    SetDevice(DeviceFloor),
    /// Sets the device's time to this many thousandths of the present one.
    Drift(u16),
    SetDomain(DomainFloor),
}

fn call() -> impl Strategy<Value = BooksCall> {
    let number = || 0..6u8;
    prop_oneof![
        12 => (number(), volume()).prop_map(|(v, a)| BooksCall::Admit(v, a)),
        6 => (number(), 0..20_000u32).prop_map(|(v, r)| BooksCall::Resize(v, r)),
        2 => (number(), volume()).prop_map(|(v, a)| BooksCall::Enter(v, a)),
        4 => number().prop_map(BooksCall::Remove),
        1 => device_floor().prop_map(BooksCall::SetDevice),
        2 => (0..1_200u16).prop_map(BooksCall::Drift),
        1 => domain_floor().prop_map(BooksCall::SetDomain),
    ]
}

/// The ledger and the oracle's world, which receive the same calls.
struct Pair {
    ledger: Ledger,
    world: World,
    volumes: BTreeMap<u8, PlainReservation>,
}

fn id(volume: u8) -> VolumeId {
    VolumeId::from_bits(volume.into())
}

fn reservation(volume: &PlainReservation) -> Reservation {
    Reservation {
        per_second: volume.per_second,
        io_bytes: volume.io_bytes,
        write_ppm: volume.write_ppm,
        oversell: Oversell::from_ppm(volume.oversell_ppm).unwrap(),
    }
}

impl Pair {
    fn new(share_ppm: u32, domain: DomainFloor, device: DeviceFloor) -> Self {
        let world = World { share_ppm, domain, device };
        Self { ledger: Ledger::new(device, domain, share_ppm), world, volumes: BTreeMap::new() }
    }

    fn apply(&mut self, call: &BooksCall) -> Result<(), TestCaseError> {
        match call {
            BooksCall::Admit(v, volume) => self.admit(*v, volume.clone())?,
            BooksCall::Resize(v, per_second) => {
                if let Some(present) = self.volumes.get(v).cloned() {
                    self.admit(*v, PlainReservation { per_second: *per_second, ..present })?;
                }
            }
            BooksCall::Enter(v, volume) => {
                prop_assert_eq!(self.ledger.enter(id(*v), reservation(volume)), Ok(()));
                self.volumes.insert(*v, volume.clone());
            }
            BooksCall::Remove(v) => {
                let removed = self.ledger.remove(id(*v));
                let expected = self.volumes.remove(v);
                prop_assert_eq!(removed, expected.as_ref().map(reservation));
            }
            BooksCall::SetDevice(floor) => self.world.device = *floor,
            BooksCall::Drift(thousandths) => {
                let time = &mut self.world.device.time_ns_per_second;
                let drifted = u128::from(*time) * u128::from(*thousandths) / 1_000;
                *time = saturating(drifted);
            }
            BooksCall::SetDomain(floor) => self.world.domain = *floor,
        }
        self.ledger.set_floors(self.world.device, self.world.domain);
        Ok(())
    }

    /// Consults both and compares the answers; a refusal must name the largest rate that fits.
    fn admit(&mut self, v: u8, new: PlainReservation) -> Result<(), TestCaseError> {
        let others: Vec<_> = self.volumes.iter().filter(|(k, _)| **k != v).map(|o| o.1).collect();
        let old = self.volumes.get(&v);
        let admits = self.world.admits(&others, old, &new);
        let shrinks = old.is_some_and(|old| {
            new.per_second <= old.per_second
                && PlainReservation { per_second: 0, ..new.clone() }
                    == PlainReservation { per_second: 0, ..old.clone() }
        });
        let before = self.ledger.clone();
        let answer = self.ledger.consult(id(v), &reservation(&new));
        prop_assert_eq!(&self.ledger, &before, "a question changes nothing");
        prop_assert_eq!(answer.is_ok(), admits, "{:?}", answer);
        prop_assert!(admits || !shrinks, "a volume that shrinks was refused: {answer:?}");
        let admits = |per_second| {
            let volume = PlainReservation { per_second, ..new.clone() };
            self.world.admits(&others, old, &volume)
        };
        let most = self.ledger.per_second_max(id(v), &reservation(&new));
        prop_assert!(admits(most) && (most == u32::MAX || !admits(most + 1)), "{}", most);
        if let Err(Refused::Short(short)) = answer {
            prop_assert_eq!(short.per_second_max, most);
            prop_assert!(short.per_second_max < new.per_second);
            prop_assert_eq!(short.short_by, short.needed - u128::from(short.available));
            prop_assert_eq!(short.needed, self.world.part(&new, short.resource));
            let bound = u128::from(self.world.bound(short.resource).unwrap());
            let sum = self.world.sum(others.iter().copied(), short.resource);
            prop_assert_eq!(u128::from(short.available), bound.saturating_sub(sum));
        }
        if answer.is_ok() {
            prop_assert_eq!(self.ledger.enter(id(v), reservation(&new)), Ok(()));
            self.volumes.insert(v, new);
        }
        Ok(())
    }

    /// Compares every sum of the ledger with the oracle's, to the last unit.
    fn compare(&self) -> Result<(), TestCaseError> {
        for resource in Resource::ALL {
            let usage = self.ledger.usage(resource);
            let sum = self.world.sum(self.volumes.values(), resource);
            let bound = self.world.bound(resource);
            prop_assert_eq!(usage.sold, sum, "{}", resource);
            prop_assert_eq!(usage.sellable, bound, "{}", resource);
            let by = bound.map_or(0, |bound| sum.saturating_sub(bound.into()));
            prop_assert_eq!(usage.oversold_by(), by, "{}", resource);
        }
        self.ledger.invariants();
        Ok(())
    }
}

proptest! {
    #[test]
    fn ledger_agrees_with_a_recount_and_with_the_definition(
        share_ppm in prop_oneof![Just(800_000), Just(1_000_000), 0..=1_000_000u32],
        domain in domain_floor(),
        device in device_floor(),
        calls in prop::collection::vec(call(), 1..40),
    ) {
        let mut pair = Pair::new(share_ppm, domain, device);
        for call in calls {
            pair.apply(&call)?;
            pair.compare()?;
        }
    }
}
