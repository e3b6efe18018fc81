//! What may be sold: reservations against the measured floor of one device and its machine.
//!
//! A volume reserves requests per second. What they cost in channel time, network and CPU follows
//! from the measured costs; the sum of all may be at most a share of what was measured to be there
//! whatever happens.
//!
//! A volume that adds to a resource must leave it within what may be sold; one that adds nothing is
//! never refused. That is all the rule there is: a volume that shrinks and one that reserves
//! nothing follow from it. What is on the books stays when a floor sinks ([`Usage::oversold_by`]).
//!
//! What is not modelled: several devices, volumes on several of them, and the loss of a machine.

mod answer;
pub mod calibration;
mod figure;
mod model;
mod oversell;
mod reserved;

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

/// Books with at most so many volumes are added up after every change in debug builds; larger ones
/// after as many changes as there are volumes, on average.
const CHECKED_VOLUMES_MAX: usize = 64;

/// An amount of each resource, in the order of [`Resource::ALL`].
type Amounts = [u128; 4];

/// Who has reserved what. Adding, changing and removing gives the same books as adding up anew; the
/// cost does not depend on how many volumes there are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ledger {
    sold_share_ppm: u32,
    device: DeviceFloor,
    domain: DomainFloor,
    volumes: BTreeMap<VolumeId, Reservation>,
    sold: Amounts,
}

impl Ledger {
    /// Books without an entry that sell `sold_share_ppm` of every floor, at most all of it.
    #[must_use]
    pub fn new(device: DeviceFloor, domain: DomainFloor, sold_share_ppm: u32) -> Self {
        let sold_share_ppm = sold_share_ppm.min(PPM);
        Self { sold_share_ppm, device, domain, volumes: BTreeMap::new(), sold: [0; 4] }
    }

    /// What the device delivers and takes.
    #[must_use]
    pub const fn device(&self) -> &DeviceFloor {
        &self.device
    }

    /// Replaces what is delivered and taken: a new calibration, or drift seen at run time. A floor
    /// of 0 sells nothing more. Volumes stay; all are added up only if a cost changes.
    pub fn set_floors(&mut self, device: DeviceFloor, domain: DomainFloor) {
        let same_costs =
            (self.device.costs, self.domain.cpu_costs) == (device.costs, domain.cpu_costs);
        (self.device, self.domain) = (device, domain);
        if !same_costs {
            self.sold = self.added_up();
        }
    }

    /// What is sold of a resource and what may be.
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

    /// Whether `volume` may have `reservation`, in place of the one it has. Changes nothing.
    ///
    /// # Errors
    ///
    /// What is short and by how much, or why the ledger cannot take the reservation.
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

    /// Enters what is sold to `volume`, in place of the reservation it has, whether it fits or not:
    /// after a restart no volume loses what it has.
    ///
    /// # Errors
    ///
    /// If the ledger cannot take it; the books are unchanged then.
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

    /// Takes `volume` off the books; its reservation, if it had one.
    pub fn remove(&mut self, volume: VolumeId) -> Option<Reservation> {
        let old = self.volumes.remove(&volume)?;
        self.sold = sums(self.sold, self.amounts(&old), |sold, amount| sold - amount);
        self.check(volume);
        Some(old)
    }

    /// The largest reservation of the kind of `like` that `volume` may have, in requests per
    /// second.
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
        // Whatever fits, less of it does too: so the answer is found bit by bit.
        (0..u32::BITS).rev().fold(0, |found, bit| {
            let more = found | (1 << bit);
            if fits(more) { more } else { found }
        })
    }

    /// Asserts that the sums are what adding up all volumes gives.
    ///
    /// # Panics
    ///
    /// If they are not.
    pub fn invariants(&self) {
        assert_eq!(self.sold, self.added_up(), "kept, and added up from all volumes");
    }

    /// Calls [`Self::invariants`] in debug builds after a change of `volume`, of many
    /// volumes only now and then: ids are random.
    fn check(&self, volume: VolumeId) {
        let volumes = self.volumes.len();
        let is_turn = || u128::try_from(volumes).is_ok_and(|n| volume.bits().is_multiple_of(n));
        if cfg!(debug_assertions) && (volumes <= CHECKED_VOLUMES_MAX || is_turn()) {
            self.invariants();
        }
    }

    fn sellable(&self, floor: u64) -> u64 {
        let share = u128::from(floor) * u128::from(self.sold_share_ppm) / u128::from(PPM);
        u64::try_from(share).unwrap_or(floor)
    }

    /// What `reservation` takes of each resource.
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

    /// Each resource, what `reservation` takes of it, and what the one that `volume` has takes.
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

/// The amounts of each resource, put together one by one.
fn sums(mut sold: Amounts, amounts: Amounts, of: impl Fn(u128, u128) -> u128) -> Amounts {
    for (sold, amount) in sold.iter_mut().zip(amounts) {
        *sold = of(*sold, amount);
    }
    sold
}
