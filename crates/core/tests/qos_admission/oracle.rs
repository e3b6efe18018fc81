//! Admission without books: every sum is made anew, volume by volume, from the definition.

use evenkeel_core::qos::admission::{Costs, DeviceFloor, DomainFloor, LinearCost};

/// A reservation in plain numbers; carriers are positions of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    pub per_second: u32,
    pub io_bytes: u32,
    pub write_ppm: u32,
    pub oversell_ppm: u32,
    pub carriers: Vec<usize>,
}

/// Devices with their domains, domains, and the share of the floor that is sold.
#[derive(Clone, Debug)]
pub struct World {
    pub share_ppm: u32,
    pub domains: Vec<DomainFloor>,
    pub devices: Vec<(usize, DeviceFloor)>,
}

/// One sum that must stay within a bound: (lost domain, name of the resource, position).
pub type Line = (Option<usize>, &'static str, usize);

fn request_ns(cost: LinearCost, bytes: u32) -> u128 {
    let picoseconds = u128::from(cost.byte_ps) * u128::from(bytes);
    let part = u128::from(!picoseconds.is_multiple_of(1_000));
    u128::from(cost.base.ns) + picoseconds / 1_000 + part
}

impl Volume {
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
    /// Every sum there is, with its bound.
    pub fn lines(&self) -> Vec<(Line, Option<u64>)> {
        let mut lines = Vec::new();
        let several = self.domains.len() > 1;
        let losses = (0..self.domains.len()).filter(|_| several).map(Some);
        for lost in std::iter::once(None).chain(losses) {
            for (i, (_, floor)) in self.devices.iter().enumerate() {
                lines.push(((lost, "time", i), Some(floor.time_ns_per_second)));
            }
            for (i, floor) in self.domains.iter().enumerate() {
                lines.push(((lost, "in", i), floor.network_in_bytes_per_second));
                lines.push(((lost, "out", i), floor.network_out_bytes_per_second));
                lines.push(((lost, "cpu", i), floor.cpu_ns_per_second));
            }
            if let Some(lost_domain) = lost {
                lines.push(((lost, "standby", lost_domain), Some(0)));
            }
        }
        let share = u128::from(self.share_ppm);
        let sold = |floor: u64| u64::try_from(u128::from(floor) * share / 1_000_000).unwrap();
        lines.into_iter().map(|(line, floor)| (line, floor.map(sold))).collect()
    }

    /// What `volume` adds to `line`.
    pub fn part(&self, volume: &Volume, line: Line) -> u128 {
        let (lost, resource, position) = line;
        let left = |d: &&usize| Some(self.devices[**d].0) != lost;
        let Some(&device) = volume.carriers.iter().find(left) else {
            return if resource == "standby" { volume.demand(1, 1) } else { 0 };
        };
        let (domain, floor) = &self.devices[device];
        match resource {
            "time" if position == device => volume.time(floor.costs),
            "in" if position == *domain => volume.demand(0, volume.io_bytes.into()),
            "out" if position == *domain => volume.demand(volume.io_bytes.into(), 0),
            "cpu" if position == *domain => volume.time(self.domains[*domain].cpu_costs),
            _ => 0,
        }
    }

    pub fn sum<'a>(&self, volumes: impl Iterator<Item = &'a Volume>, line: Line) -> u128 {
        volumes.map(|volume| self.part(volume, line)).sum()
    }

    /// Whether `new` may join `others`, in place of `old`: no sum that it raises ends above its
    /// bound.
    pub fn admits(&self, others: &[&Volume], old: Option<&Volume>, new: &Volume) -> bool {
        self.lines().into_iter().all(|(line, bound)| {
            let part = self.part(new, line);
            let had = old.map_or(0, |old| self.part(old, line));
            let sum = self.sum(others.iter().copied(), line) + part;
            part <= had || bound.is_none_or(|bound| sum <= bound.into())
        })
    }
}
