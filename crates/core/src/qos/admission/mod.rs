//! What may be sold: reservations against the measured floor, now and after the loss of a domain.
//!
//! A volume reserves requests per second. What they cost in channel time, network and CPU follows
//! from the measured costs of the device that carries it; the sum of all may be at most a share of
//! what was measured to be there whatever happens. With several failure domains the sum must fit
//! after the loss of any one of them too: each volume names, in order, the devices that may carry
//! it, and runs on the first that is left. So for each domain that may be lost there is a row of
//! accounts beside the present one:
//!
//! ```text
//!             device 0   device 1   device 2   domain 0 (in, out, cpu)   domain 1   standby
//! present     sold       sold       sold       sold                      sold
//! without 0              sold       sold                                 sold       0
//! without 1   sold                             sold                                 0
//! ```
//!
//! Whoever adds to an account must leave it within what may be sold; who adds nothing is never
//! refused. That is all the rule there is: a volume that shrinks, one that reserves nothing and one
//! that moves away from an oversold device follow from it. What is on the books stays when a floor
//! sinks, and is told by [`Ledger::oversold`].
//!
//! What is not modelled: a volume that is on several devices at once (stripes, replicas), and the
//! loss of two domains.

mod accounts;
mod answer;
pub mod calibration;
mod figure;
mod model;
mod oversell;
mod reserved;

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

pub use answer::{
    Account, Admitted, Headroom, InvalidReservation, LedgerFull, Oversold, Place, Refused,
    Resource, Shortage, Usage,
};
pub use figure::{Figure, FigureDisagrees};
pub use model::{
    CARRIERS_MAX, Costs, DEVICES_MAX, DOMAINS_MAX, DeviceFloor, DeviceIndex, DomainFloor,
    DomainIndex, LinearCost, Oversell, PPM, REFERENCE_BYTES, Reservation, SOLD_SHARE_PPM,
    VOLUMES_MAX,
};
pub use oversell::MalformedOversell;
pub use reserved::Reserved;

use crate::ids::VolumeId;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Device {
    domain: DomainIndex,
    floor: DeviceFloor,
}

/// What is sold of a domain's own resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct DomainSold {
    network_in: u128,
    network_out: u128,
    cpu: u128,
}

/// One row of accounts: the present, or after the loss of one domain.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    devices: Vec<u128>,
    domains: Vec<DomainSold>,
    /// Of volumes that have nowhere to go.
    standby: u128,
}

/// Who has reserved what. Adding, changing and removing gives the same books as writing them anew.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ledger {
    sold_share_ppm: u32,
    domains: Vec<DomainFloor>,
    devices: Vec<Device>,
    volumes: BTreeMap<VolumeId, Reservation>,
    /// The present, then the loss of each domain.
    rows: Vec<Row>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new(SOLD_SHARE_PPM)
    }
}

impl Ledger {
    /// Books without an entry that sell `sold_share_ppm` of every floor, at most all of it.
    #[must_use]
    pub fn new(sold_share_ppm: u32) -> Self {
        Self {
            sold_share_ppm: sold_share_ppm.min(PPM),
            domains: Vec::new(),
            devices: Vec::new(),
            volumes: BTreeMap::new(),
            rows: Vec::new(),
        }
    }

    /// Adds a failure domain. From the second on, volumes need a device outside each of them.
    ///
    /// # Errors
    ///
    /// If there are [`DOMAINS_MAX`] already.
    pub fn add_domain(&mut self, floor: DomainFloor) -> Result<DomainIndex, LedgerFull> {
        if self.domains.len() >= DOMAINS_MAX {
            return Err(LedgerFull::Domains);
        }
        self.domains.push(floor);
        self.write_anew();
        Ok(DomainIndex(self.domains.len() - 1))
    }

    /// Adds a device to a domain; `None` if the domain is another ledger's.
    ///
    /// # Errors
    ///
    /// If there are [`DEVICES_MAX`] already.
    pub fn add_device(
        &mut self,
        domain: DomainIndex,
        floor: DeviceFloor,
    ) -> Result<Option<DeviceIndex>, LedgerFull> {
        if self.domains.get(domain.0).is_none() {
            return Ok(None);
        }
        if self.devices.len() >= DEVICES_MAX {
            return Err(LedgerFull::Devices);
        }
        self.devices.push(Device { domain, floor });
        for row in &mut self.rows {
            row.devices.push(0);
        }
        Ok(Some(DeviceIndex(self.devices.len() - 1)))
    }

    /// Replaces what a device delivers and takes: a new calibration, or drift seen at run time. A
    /// floor of 0 sells nothing more. Who is on it stays; see [`Ledger::oversold`].
    pub fn set_device_floor(&mut self, device: DeviceIndex, floor: DeviceFloor) {
        if let Some(device) = self.devices.get_mut(device.0) {
            let same_costs = device.floor.costs == floor.costs;
            device.floor = floor;
            if !same_costs {
                self.write_anew();
            }
        }
    }

    /// Replaces what a domain delivers. Who is in it stays; see [`Ledger::oversold`].
    pub fn set_domain_floor(&mut self, domain: DomainIndex, floor: DomainFloor) {
        if let Some(present) = self.domains.get_mut(domain.0) {
            let same_costs = present.cpu_costs == floor.cpu_costs;
            *present = floor;
            if !same_costs {
                self.write_anew();
            }
        }
    }

    /// Whether `volume` may have `reservation`, in place of the one it has. Changes nothing.
    ///
    /// # Errors
    ///
    /// What is short and by how much, or why the reservation makes no sense.
    pub fn consult(
        &self,
        volume: VolumeId,
        reservation: &Reservation,
    ) -> Result<Admitted, Refused> {
        self.validate(volume, reservation)?;
        let before = self.volumes.get(&volume);
        let mut headroom = Headroom::default();
        for (account, needed) in self.entries(reservation) {
            let had = before.map_or(0, |before| self.entry(before, account));
            let Some(usage) = self.usage(account) else { continue };
            let others = Usage { sold: usage.sold - had, ..usage };
            let Some(available) = others.left() else { continue };
            let short_by = needed.saturating_sub(available.into());
            if short_by > 0 && needed > had {
                let per_second_max = self.per_second_max(volume, reservation);
                let io_bytes = reservation.io_bytes;
                return Err(Refused::Short(Shortage {
                    account,
                    needed,
                    available,
                    short_by,
                    per_second_max,
                    io_bytes,
                }));
            }
            let left = Usage { sold: others.sold + needed, ..usage }.left();
            headroom.narrow(account.resource, left.unwrap_or(u64::MAX));
        }
        Ok(Admitted { headroom })
    }

    /// Sells `reservation` to `volume`, in place of the one it has, if it fits.
    ///
    /// # Errors
    ///
    /// As [`Ledger::consult`]; the books are unchanged then.
    pub fn admit(
        &mut self,
        volume: VolumeId,
        reservation: Reservation,
    ) -> Result<Admitted, Refused> {
        let admitted = self.consult(volume, &reservation)?;
        self.replace(volume, Some(reservation));
        Ok(admitted)
    }

    /// Enters what was sold earlier, whether it fits or not: after a restart nobody is thrown out.
    ///
    /// # Errors
    ///
    /// If the reservation makes no sense.
    pub fn restore(
        &mut self,
        volume: VolumeId,
        reservation: Reservation,
    ) -> Result<(), InvalidReservation> {
        self.validate(volume, &reservation)?;
        self.replace(volume, Some(reservation));
        Ok(())
    }

    /// Takes `volume` off the books; its reservation, if it had one.
    pub fn remove(&mut self, volume: VolumeId) -> Option<Reservation> {
        self.replace(volume, None)
    }

    /// What `volume` has reserved.
    #[must_use]
    pub fn reservation(&self, volume: VolumeId) -> Option<&Reservation> {
        self.volumes.get(&volume)
    }

    /// The largest reservation of the kind of `like` that `volume` may have, in requests per
    /// second.
    #[must_use]
    pub fn per_second_max(&self, volume: VolumeId, like: &Reservation) -> u32 {
        if self.validate(volume, like).is_err() {
            return 0;
        }
        let before = self.volumes.get(&volume);
        let mut asked = like.clone();
        let mut fits = |per_second| {
            asked.per_second = per_second;
            self.entries(&asked).all(|(account, needed)| {
                let had = before.map_or(0, |before| self.entry(before, account));
                let after = |usage: Usage| Usage { sold: usage.sold - had + needed, ..usage };
                let oversold = self.usage(account).map_or(0, |usage| after(usage).oversold_by());
                oversold == 0 || needed <= had
            })
        };
        // Whatever fits, less of it does too: so the answer is found bit by bit.
        (0..u32::BITS).rev().fold(0, |found, bit| {
            let more = found | (1 << bit);
            if fits(more) { more } else { found }
        })
    }

    /// Every account of which more is sold than may be, each at its worst loss: devices first.
    #[must_use]
    pub fn oversold(&self) -> Vec<Oversold> {
        let mut found = Vec::new();
        for device in 0..self.devices.len() {
            found.extend(self.worst(Place::Device(DeviceIndex(device)), Resource::DeviceTime));
        }
        let resources =
            [Resource::NetworkIn, Resource::NetworkOut, Resource::Cpu, Resource::Standby];
        for domain in 0..self.domains.len() {
            let place = Place::Domain(DomainIndex(domain));
            found.extend(resources.iter().filter_map(|&resource| self.worst(place, resource)));
        }
        found
    }

    fn worst(&self, place: Place, resource: Resource) -> Option<Oversold> {
        let mut worst: Option<Oversold> = None;
        for lost in self.losses() {
            let account = Account { lost, place, resource };
            let Some(usage) = self.usage(account) else { continue };
            let (by, sellable) = (usage.oversold_by(), usage.sellable.unwrap_or(u64::MAX));
            if by > worst.map_or(0, |worst| worst.by) {
                worst = Some(Oversold { account, sold: usage.sold, sellable, by });
            }
        }
        worst
    }

    fn validate(
        &self,
        volume: VolumeId,
        reservation: &Reservation,
    ) -> Result<(), InvalidReservation> {
        let carriers = &reservation.carriers;
        if carriers.is_empty() {
            return Err(InvalidReservation::NoCarrier);
        }
        if carriers.len() > CARRIERS_MAX {
            return Err(InvalidReservation::TooManyCarriers { named: carriers.len() });
        }
        for (position, &device) in carriers.iter().enumerate() {
            if self.devices.get(device.0).is_none() {
                return Err(InvalidReservation::NoSuchDevice { device });
            }
            if carriers.iter().skip(position + 1).any(|&other| other == device) {
                return Err(InvalidReservation::CarrierTwice { device });
            }
        }
        if reservation.write_ppm > PPM {
            return Err(InvalidReservation::MixTooLarge { write_ppm: reservation.write_ppm });
        }
        if self.volumes.len() >= VOLUMES_MAX && !self.volumes.contains_key(&volume) {
            return Err(InvalidReservation::TooManyVolumes);
        }
        Ok(())
    }

    /// Books what `volume` has out, and what it is to have in.
    fn replace(&mut self, volume: VolumeId, new: Option<Reservation>) -> Option<Reservation> {
        let old = self.volumes.remove(&volume);
        if let Some(old) = &old {
            self.book(old, |sold, amount| *sold -= amount);
        }
        if let Some(new) = new {
            self.book(&new, |sold, amount| *sold += amount);
            self.volumes.insert(volume, new);
        }
        old
    }

    fn book(&mut self, reservation: &Reservation, entered: impl Fn(&mut u128, u128)) {
        let entries: Vec<_> = self.entries(reservation).collect();
        for (account, amount) in entries {
            if let Some(sold) = self.sold_mut(account) {
                entered(sold, amount);
            }
        }
    }

    /// Writes the books from the reservations: when costs or domains have changed.
    fn write_anew(&mut self) {
        let empty = || Row {
            devices: vec![0; self.devices.len()],
            domains: vec![DomainSold::default(); self.domains.len()],
            standby: 0,
        };
        self.rows = self.losses().map(|_| empty()).collect();
        let volumes = core::mem::take(&mut self.volumes);
        for reservation in volumes.values() {
            self.book(reservation, |sold, amount| *sold += amount);
        }
        self.volumes = volumes;
    }
}
