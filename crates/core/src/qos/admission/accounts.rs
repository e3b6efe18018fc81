//! Where an account stands in the books, and what a reservation takes of it.

use super::answer::{Account, Place, Resource, Usage};
use super::model::{Costs, DeviceIndex, DomainIndex, PPM, Reservation};
use super::{Device, Ledger};

impl Ledger {
    /// What is sold of `account` and what may be; `None` if there is no such account.
    #[must_use]
    pub fn usage(&self, account: Account) -> Option<Usage> {
        let row = self.rows.get(account.lost.map_or(0, |lost| lost.0 + 1))?;
        let (sold, floor) = match (account.place, account.resource) {
            (Place::Device(device), Resource::DeviceTime) => {
                let floor = self.devices.get(device.0)?.floor.time_ns_per_second;
                (*row.devices.get(device.0)?, Some(floor))
            }
            (Place::Domain(domain), Resource::Standby) if account.lost == Some(domain) => {
                (row.standby, Some(0))
            }
            (Place::Domain(domain), resource) => {
                let (sold, floor) = (row.domains.get(domain.0)?, self.domains.get(domain.0)?);
                match resource {
                    Resource::NetworkIn => (sold.network_in, floor.network_in_bytes_per_second),
                    Resource::NetworkOut => (sold.network_out, floor.network_out_bytes_per_second),
                    Resource::Cpu => (sold.cpu, floor.cpu_ns_per_second),
                    Resource::DeviceTime | Resource::Standby => return None,
                }
            }
            (Place::Device(_), _) => return None,
        };
        Some(Usage { sold, sellable: floor.map(|floor| self.sellable(floor)) })
    }

    fn sellable(&self, floor: u64) -> u64 {
        let share = u128::from(floor) * u128::from(self.sold_share_ppm) / u128::from(PPM);
        u64::try_from(share).unwrap_or(floor)
    }

    /// The present, and the loss of each domain where there are several.
    pub(super) fn losses(&self) -> impl Iterator<Item = Option<DomainIndex>> + use<> {
        let domains = if self.domains.len() < 2 { 0 } else { self.domains.len() };
        core::iter::once(None).chain((0..domains).map(|domain| Some(DomainIndex(domain))))
    }

    /// Where a volume runs when `lost` is lost: its first device that is left.
    pub(super) fn carrier(
        &self,
        reservation: &Reservation,
        lost: Option<DomainIndex>,
    ) -> Option<(DeviceIndex, &Device)> {
        reservation.carriers.iter().find_map(|&index| {
            let device = self.devices.get(index.0)?;
            (Some(device.domain) != lost).then_some((index, device))
        })
    }

    /// All that `reservation` takes, account by account: the present first.
    pub(super) fn entries(
        &self,
        reservation: &Reservation,
    ) -> impl Iterator<Item = (Account, u128)> {
        self.losses().flat_map(move |lost| {
            let accounts = match self.carrier(reservation, lost) {
                Some((index, device)) => {
                    let domain = Place::Domain(device.domain);
                    [
                        Some((Place::Device(index), Resource::DeviceTime)),
                        Some((domain, Resource::NetworkIn)),
                        Some((domain, Resource::NetworkOut)),
                        Some((domain, Resource::Cpu)),
                    ]
                }
                None => {
                    let standby = lost.map(|lost| (Place::Domain(lost), Resource::Standby));
                    [standby, None, None, None]
                }
            };
            accounts.into_iter().flatten().map(move |(place, resource)| {
                let account = Account { lost, place, resource };
                (account, self.entry(reservation, account))
            })
        })
    }

    /// What `reservation` takes of `account`.
    pub(super) fn entry(&self, reservation: &Reservation, account: Account) -> u128 {
        let Some((index, device)) = self.carrier(reservation, account.lost) else {
            let stranded = account.resource == Resource::Standby;
            return if stranded { reservation.demand(1, 1) } else { 0 };
        };
        let length = reservation.io_bytes;
        let demand =
            |costs: Costs| reservation.demand(costs.read.ns(length), costs.write.ns(length));
        match (account.place, account.resource) {
            (Place::Device(place), Resource::DeviceTime) if place == index => {
                demand(device.floor.costs)
            }
            (Place::Domain(place), resource) if place == device.domain => match resource {
                Resource::NetworkIn => reservation.demand(0, length.into()),
                Resource::NetworkOut => reservation.demand(length.into(), 0),
                Resource::Cpu => self.domains.get(place.0).map_or(0, |d| demand(d.cpu_costs)),
                Resource::DeviceTime | Resource::Standby => 0,
            },
            _ => 0,
        }
    }

    pub(super) fn sold_mut(&mut self, account: Account) -> Option<&mut u128> {
        let row = self.rows.get_mut(account.lost.map_or(0, |lost| lost.0 + 1))?;
        match (account.place, account.resource) {
            (Place::Device(device), _) => row.devices.get_mut(device.0),
            (Place::Domain(_), Resource::Standby) => Some(&mut row.standby),
            (Place::Domain(domain), resource) => {
                let sold = row.domains.get_mut(domain.0)?;
                match resource {
                    Resource::NetworkIn => Some(&mut sold.network_in),
                    Resource::NetworkOut => Some(&mut sold.network_out),
                    Resource::Cpu => Some(&mut sold.cpu),
                    Resource::DeviceTime | Resource::Standby => None,
                }
            }
        }
    }
}
