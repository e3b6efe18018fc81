//! mClock (Gulati, Merchant and Varman, OSDI 2010) as Ceph's `dmclock` library has it: reservation
//! tags first, then weights, with the library's clock of seconds in a double.
//!
//! The request at the head of a volume has three tags, each one cost later than the last request's
//! and never before it arrived: for the reservation, the limit and the weight. Served first is the
//! smallest reservation tag that is due; else, of the volumes whose limit tag is due, the smallest
//! weight tag, and then the reservation tag is pulled back so that what a volume gets by weight
//! does not count against its reservation. Nothing is pulled back the other way: what goes by
//! reservation advances the weight tag, so a volume gets the larger of its reservation and its
//! share, not both. A volume that was idle joins with the weight tags of the busy ones.
//!
//! Tags are doubles of seconds since 1970: near 1.7 billion two doubles are 238 ns apart, so a
//! period of 3,906.25 ns (256,000 a second) is 3,814.7 ns, 2.4 % too fast.
//!
//! Costs are relative to a reference request, so that a reservation is in requests of that size.
//! Left out: several servers (`delta` and `rho`, that is the "d" of dmClock), limits that let
//! through or refuse instead of waiting, and the scan over all clients when one comes back from
//! idle, which costs time and changes nothing.

use evenkeel_core::time::Instant;

use super::windowed::{DeviceCost, Head, Order, Share};

/// Seconds from 1970 to a day in 2023: where the simulation's clock starts.
const EPOCH_S: f64 = 1_700_000_000.0;

#[derive(Clone, Copy, Debug)]
struct Tags {
    reservation: f64,
    limit: f64,
    weight: f64,
}

#[derive(Clone, Debug)]
struct TaggedVolume {
    /// Seconds that a request of the reference cost takes by each measure; infinite for none.
    reservation_period: f64,
    limit_period: f64,
    weight_period: f64,
    tags: Tags,
    backlogged: bool,
}

/// The order of mClock.
#[derive(Clone, Debug)]
pub struct MClock {
    cost: DeviceCost,
    reference_ns: f64,
    volumes: Vec<TaggedVolume>,
    /// Whether the request that [`Order::next`] named goes by its reservation.
    by_reservation: bool,
    /// Whether what goes by reservation advances the weight's tag too.
    reserved_counts: bool,
}

impl MClock {
    /// With these shares; their rates are in requests of `reference_length` bytes.
    #[must_use]
    pub fn new(cost: DeviceCost, reference_length: u32, shares: &[Share]) -> Self {
        let period = |rate: u64, none: f64| if rate == 0 { none } else { 1.0 / rate as f64 };
        let volume = |share: &Share| TaggedVolume {
            reservation_period: period(share.reservation, f64::INFINITY),
            limit_period: period(share.limit, 0.0),
            weight_period: 1.0 / f64::from(share.weight.max(1)),
            tags: Tags { reservation: 0.0, limit: 0.0, weight: 0.0 },
            backlogged: false,
        };
        Self {
            cost,
            reference_ns: cost.of(reference_length) as f64,
            volumes: shares.iter().map(volume).collect(),
            by_reservation: false,
            reserved_counts: true,
        }
    }

    /// Shares what is beside the reservations by weight alone: what a volume gets by reservation no
    /// longer counts against its weight. Then it gets both, instead of the larger of the two.
    #[must_use]
    pub fn weights_beside_reservations(mut self) -> Self {
        self.reserved_counts = false;
        self
    }

    /// Gives the head of a volume its tags, from those of the request before.
    fn tag(&mut self, volume: u32, head: Head) {
        let cost = self.relative_cost(head.length);
        let arrived = seconds(head.arrived);
        let volume = &mut self.volumes[volume as usize];
        let tags = &mut volume.tags;
        tags.reservation = arrived.max(tags.reservation + volume.reservation_period * cost);
        tags.limit = arrived.max(tags.limit + volume.limit_period * cost);
        tags.weight += volume.weight_period * cost;
    }

    fn relative_cost(&self, length: u32) -> f64 {
        self.cost.of(length) as f64 / self.reference_ns
    }

    /// The backlogged volume with the smallest of some tag, the first of equals.
    fn smallest(&self, tag: impl Fn(&TaggedVolume) -> Option<f64>) -> Option<(f64, u32)> {
        let mut smallest: Option<(f64, u32)> = None;
        for (number, volume) in self.volumes.iter().enumerate().filter(|(_, v)| v.backlogged) {
            if let Some(tag) = tag(volume)
                && smallest.is_none_or(|(least, _)| tag < least)
            {
                smallest = Some((tag, number as u32));
            }
        }
        smallest
    }
}

impl Order for MClock {
    fn arrive(&mut self, volume: u32, head: Option<Head>) {
        let Some(head) = head else { return };
        let present = self.smallest(|other| Some(other.tags.weight));
        let entry = &mut self.volumes[volume as usize];
        if let Some((present, _)) = present {
            entry.tags.weight = entry.tags.weight.max(present - entry.weight_period);
        }
        entry.backlogged = true;
        self.tag(volume, head);
    }

    fn next(&mut self, now: Instant) -> Option<u32> {
        let now = seconds(now);
        let due = |volume: &TaggedVolume| Some(volume.tags.reservation).filter(|tag| *tag <= now);
        if let Some((_, volume)) = self.smallest(due) {
            self.by_reservation = true;
            return Some(volume);
        }
        self.by_reservation = false;
        let ready =
            |volume: &TaggedVolume| Some(volume.tags.weight).filter(|_| volume.tags.limit <= now);
        self.smallest(ready).map(|(_, volume)| volume)
    }

    fn served(&mut self, volume: u32, length: u32, following: Option<Head>) {
        let cost = self.relative_cost(length);
        let entry = &mut self.volumes[volume as usize];
        if !self.by_reservation && entry.reservation_period.is_finite() {
            entry.tags.reservation -= entry.reservation_period * cost;
        }
        if self.by_reservation && !self.reserved_counts {
            entry.tags.weight -= entry.weight_period * cost;
        }
        match following {
            Some(following) => self.tag(volume, following),
            None => entry.backlogged = false,
        }
    }

    fn timer(&self) -> Option<Instant> {
        let soonest = |volume: &TaggedVolume| Some(volume.tags.reservation.min(volume.tags.limit));
        self.smallest(soonest).filter(|(at, _)| at.is_finite()).map(|(at, _)| instant(at))
    }
}

fn seconds(now: Instant) -> f64 {
    EPOCH_S + now.ns as f64 / 1_000_000_000.0
}

/// The first nanosecond at which a tag is due.
fn instant(tag: f64) -> Instant {
    let mut at = Instant::from_ns(((tag - EPOCH_S) * 1_000_000_000.0).max(0.0) as u64);
    while seconds(at) < tag {
        at.ns += 1;
    }
    at
}
