//! Admission: reservations against the measured floor of one device and its machine.
//!
//! A volume reserves requests per second. Their channel time, network and CPU follow from the
//! measured costs; the sum over all volumes is limited to a part of the floor, which the device and
//! the machine deliver under any load.
//!
//! A volume that adds to a resource must leave it within the limit; one that adds nothing is never
//! refused. There is no other rule: volumes that shrink or reserve nothing follow from it. Entries
//! stay if a floor sinks ([`Usage::oversold_by`]).
//!
//! Not modelled: several devices, volumes on several of them, and the loss of a machine.

mod answer;
pub mod calibration;
mod figure;
mod model;
mod oversell;
mod reserved;

use crate::convert::saturating;
use alloc::collections::BTreeMap;

pub use answer::{InvalidReservation, Refused, Resource, Shortage, Usage};
pub use figure::{Figure, FigureDisagrees};
pub use model::{
    Costs, DeviceFloor, DomainFloor, LinearCost, Oversell, PPM, REFERENCE_BYTES, Reservation,
    SOLD_SHARE_PPM, STRAINED_SHARE_PPM, Strain, VOLUMES_MAX,
};
pub use oversell::MalformedOversell;
pub use reserved::Reserved;

use crate::ids::VolumeId;

/// Ledgers with at most this many volumes are verified after each change in debug builds; larger
/// ones on average after as many changes as there are volumes.
const CHECKED_VOLUMES_MAX: usize = 64;

/// An amount of each resource, in the order of [`Resource::ALL`].
type Amounts = [u128; 4];

/// The reservations of all volumes. Adding, changing and removing gives the same sums as adding up
/// anew; the cost does not depend on the number of volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ledger {
    sold_share_ppm: u32,
    device: DeviceFloor,
    domain: DomainFloor,
    volumes: BTreeMap<VolumeId, Reservation>,
    sold: Amounts,
}

impl Ledger {
    /// Creates a ledger without entries that sells `sold_share_ppm` of each floor, at most all of
    /// it.
    #[must_use]
    pub fn new(device: DeviceFloor, domain: DomainFloor, sold_share_ppm: u32) -> Self {
        let sold_share_ppm = sold_share_ppm.min(PPM);
        Self { sold_share_ppm, device, domain, volumes: BTreeMap::new(), sold: [0; 4] }
    }

    /// Returns the device's floor and costs.
    #[must_use]
    pub const fn device(&self) -> &DeviceFloor {
        &self.device
    }

    /// Replaces floors and costs: after a new calibration, or drift seen at run time. A floor of 0
    /// sells nothing more. Volumes stay; the sums are computed anew only if a cost changes.
    pub fn set_floors(&mut self, device: DeviceFloor, domain: DomainFloor) {
        let same_costs =
            (self.device.costs, self.domain.cpu_costs) == (device.costs, domain.cpu_costs);
        (self.device, self.domain) = (device, domain);
        if !same_costs {
            self.sold = self.added_up();
        }
    }

    /// Returns the usage of a resource and the amount that may be sold.
    #[must_use]
    pub fn usage(&self, resource: Resource) -> Usage {
        let [device_time, network_in, network_out, cpu] = self.sold;
        let (sold, floor) = match resource {
            Resource::DeviceTime => (device_time, Some(self.device.time_ns_per_second)),
            Resource::NetworkIn => (network_in, self.domain.network_in_bytes_per_second),
            Resource::NetworkOut => (network_out, self.domain.network_out_bytes_per_second),
            Resource::Cpu => (cpu, self.domain.cpu_ns_per_second),
        };
        Usage { sold, sellable: floor.map(|floor| self.sellable(floor)) }
    }

    /// Checks whether `volume` may have `reservation`, instead of its present one. Changes nothing.
    ///
    /// # Errors
    ///
    /// The insufficient resource, or the reason why the ledger cannot take the reservation.
    pub fn consult(&self, volume: VolumeId, reservation: &Reservation) -> Result<(), Refused> {
        self.validate(volume, reservation)?;
        for (resource, needed, had) in self.change(volume, reservation) {
            let usage = self.usage(resource);
            let others = Usage { sold: usage.sold - had, ..usage };
            let Some(available) = others.left() else { continue };
            let short_by = needed.saturating_sub(available.into());
            if short_by > 0 && needed > had {
                let per_second_max = self.per_second_max(volume, reservation);
                let io_bytes = reservation.io_bytes;
                return Err(Refused::Short(Shortage {
                    resource,
                    needed,
                    available,
                    short_by,
                    per_second_max,
                    io_bytes,
                }));
            }
        }
        Ok(())
    }

    /// Enters the reservation of `volume`, instead of its present one, whether it fits or not:
    /// after a restart no volume loses its reservation.
    ///
    /// # Errors
    ///
    /// If the ledger cannot take it; the ledger is unchanged then.
    pub fn enter(
        &mut self,
        volume: VolumeId,
        reservation: Reservation,
    ) -> Result<(), InvalidReservation> {
        self.validate(volume, &reservation)?;
        self.remove(volume);
        self.sold = sums(self.sold, self.amounts(&reservation), |sold, amount| sold + amount);
        self.volumes.insert(volume, reservation);
        self.check(volume);
        Ok(())
    }

    /// Removes `volume`, and returns its reservation, if it had one.
    pub fn remove(&mut self, volume: VolumeId) -> Option<Reservation> {
        let old = self.volumes.remove(&volume)?;
        self.sold = sums(self.sold, self.amounts(&old), |sold, amount| sold - amount);
        self.check(volume);
        Some(old)
    }

    /// Returns the largest reservation with the length and the mix of `like` that `volume` may
    /// have, in requests per second.
    #[must_use]
    pub fn per_second_max(&self, volume: VolumeId, like: &Reservation) -> u32 {
        if self.validate(volume, like).is_err() {
            return 0;
        }
        let fits = |per_second| {
            let asked = Reservation { per_second, ..*like };
            self.change(volume, &asked).all(|(resource, needed, had)| {
                let usage = self.usage(resource);
                let after = Usage { sold: usage.sold - had + needed, ..usage };
                after.oversold_by() == 0 || needed <= had
            })
        };
        // If a rate fits, each lower one does, too: so the largest one is found bit by bit.
        (0..u32::BITS).rev().fold(0, |found, bit| {
            let more = found | (1 << bit);
            if fits(more) { more } else { found }
        })
    }

    /// Asserts that the sums are those over all volumes.
    ///
    /// # Panics
    ///
    /// If they are not.
    pub fn invariants(&self) {
        assert_eq!(self.sold, self.added_up(), "kept, and added up from all volumes");
    }

    /// Calls [`Self::invariants`] in debug builds after a change of `volume`; if there are many
    /// volumes, only sometimes, by the volume's random id.
    fn check(&self, volume: VolumeId) {
        let volumes = self.volumes.len();
        let is_turn = || u128::try_from(volumes).is_ok_and(|n| volume.bits().is_multiple_of(n));
        if cfg!(debug_assertions) && (volumes <= CHECKED_VOLUMES_MAX || is_turn()) {
            self.invariants();
        }
    }

    fn sellable(&self, floor: u64) -> u64 {
        let share = u128::from(floor) * u128::from(self.sold_share_ppm) / u128::from(PPM);
        saturating(share)
    }

    /// Returns the amounts that `reservation` takes of each resource.
    fn amounts(&self, reservation: &Reservation) -> Amounts {
        let length = reservation.io_bytes;
        let time = |costs: Costs| reservation.demand(costs.read.ns(length), costs.write.ns(length));
        [
            time(self.device.costs),
            reservation.demand(0, length.into()),
            reservation.demand(length.into(), 0),
            time(self.domain.cpu_costs),
        ]
    }

    /// Returns each resource with the amount that `reservation` takes of it, and that of the
    /// volume's present one.
    fn change(
        &self,
        volume: VolumeId,
        reservation: &Reservation,
    ) -> impl Iterator<Item = (Resource, u128, u128)> + use<> {
        let needed = self.amounts(reservation);
        let had = self.volumes.get(&volume).map_or([0; 4], |before| self.amounts(before));
        let amounts = needed.into_iter().zip(had);
        Resource::ALL.into_iter().zip(amounts).map(|(of, (needed, had))| (of, needed, had))
    }

    fn validate(
        &self,
        volume: VolumeId,
        reservation: &Reservation,
    ) -> Result<(), InvalidReservation> {
        if reservation.write_ppm > PPM {
            return Err(InvalidReservation::MixTooLarge { write_ppm: reservation.write_ppm });
        }
        if self.volumes.len() >= VOLUMES_MAX && !self.volumes.contains_key(&volume) {
            return Err(InvalidReservation::TooManyVolumes);
        }
        Ok(())
    }

    fn added_up(&self) -> Amounts {
        self.volumes.values().fold([0; 4], |sum, reservation| {
            sums(sum, self.amounts(reservation), |sum, amount| sum + amount)
        })
    }
}

/// Combines the amounts of each resource.
fn sums(mut sold: Amounts, amounts: Amounts, of: impl Fn(u128, u128) -> u128) -> Amounts {
    for (sold, amount) in sold.iter_mut().zip(amounts) {
        *sold = of(*sold, amount);
    }
    sold
}
