//! Admission without a ledger: every sum is computed anew, volume by volume, from the definition.

use evenkeel_core::qos::admission::{Costs, DeviceFloor, DomainFloor, LinearCost, Resource};

/// A reservation in plain numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainReservation {
    pub per_second: u32,
    pub io_bytes: u32,
    pub write_ppm: u32,
    pub oversell_ppm: u32,
}

/// A device, its machine, and the share of the floor that is sold.
#[derive(Clone, Debug)]
pub struct World {
    pub share_ppm: u32,
    pub domain: DomainFloor,
    pub device: DeviceFloor,
}

fn request_ns(cost: LinearCost, bytes: u32) -> u128 {
    let picoseconds = u128::from(cost.byte_ps) * u128::from(bytes);
    let part = u128::from(!picoseconds.is_multiple_of(1_000));
    u128::from(cost.base.ns) + picoseconds / 1_000 + part
}

impl PlainReservation {
    fn demand(&self, read: u128, write: u128) -> u128 {
        let writes = u128::from(self.per_second) * u128::from(self.write_ppm);
        let reads = u128::from(self.per_second) * 1_000_000 - writes;
        let millionths = reads * read + writes * write;
        let times_over = u128::from(self.oversell_ppm);
        millionths / times_over + u128::from(!millionths.is_multiple_of(times_over))
    }

    fn time(&self, costs: Costs) -> u128 {
        let read = request_ns(costs.read, self.io_bytes);
        self.demand(read, request_ns(costs.write, self.io_bytes))
    }
}

impl World {
    /// Returns the amount of a resource that may be sold; `None` is unlimited.
    pub fn bound(&self, resource: Resource) -> Option<u64> {
        let floor = match resource {
            Resource::DeviceTime => Some(self.device.time_ns_per_second),
            Resource::NetworkIn => self.domain.network_in_bytes_per_second,
            Resource::NetworkOut => self.domain.network_out_bytes_per_second,
            Resource::Cpu => self.domain.cpu_ns_per_second,
        };
        let share = u128::from(self.share_ppm);
        floor.map(|floor| u64::try_from(u128::from(floor) * share / 1_000_000).unwrap())
    }

    /// Returns the demand of `volume` for a resource.
    pub fn part(&self, volume: &PlainReservation, resource: Resource) -> u128 {
        match resource {
            Resource::DeviceTime => volume.time(self.device.costs),
            Resource::NetworkIn => volume.demand(0, volume.io_bytes.into()),
            Resource::NetworkOut => volume.demand(volume.io_bytes.into(), 0),
            Resource::Cpu => volume.time(self.domain.cpu_costs),
        }
    }

    pub fn sum<'a>(
        &self,
        volumes: impl Iterator<Item = &'a PlainReservation>,
        resource: Resource,
    ) -> u128 {
        volumes.map(|volume| self.part(volume, resource)).sum()
    }

    /// Returns whether `new` may join `others`, in place of `old`: no sum that it raises ends above
    /// its bound.
    pub fn admits(
        &self,
        others: &[&PlainReservation],
        old: Option<&PlainReservation>,
        new: &PlainReservation,
    ) -> bool {
        Resource::ALL.into_iter().all(|resource| {
            let part = self.part(new, resource);
            let had = old.map_or(0, |old| self.part(old, resource));
            let sum = self.sum(others.iter().copied(), resource) + part;
            let bound = self.bound(resource);
            part <= had || bound.is_none_or(|bound| sum <= bound.into())
        })
    }
}
