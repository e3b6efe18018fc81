//! A layout: equal volumes that share a workload, with their cost and their limits.

use evenkeel_core::convert::saturating;
use evenkeel_core::instance::InstanceType;
use evenkeel_core::price::Cost;
use evenkeel_core::qos::pacing::{CreditLimit, Limit};
use evenkeel_core::qos::sharing::InstancePacing;
use evenkeel_core::volume::{Rules, VolumeSpec};

use crate::fluid::{Bucket, Counts};
use crate::prices::ListPrices;
use crate::search::Space;
use crate::spread::Share;

/// A limit that a layout has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LimitKind {
    /// I/Os per second of each volume.
    VolumeIops,
    /// Bytes per second of each volume.
    VolumeBytes,
    /// I/Os per second of the instance.
    InstanceIops,
    /// Bytes per second of the instance.
    InstanceBytes,
}

impl LimitKind {
    /// Returns whether it counts bytes; otherwise it counts I/Os.
    #[must_use]
    pub const fn counts_bytes(self) -> bool {
        matches!(self, Self::VolumeBytes | Self::InstanceBytes)
    }
}

/// Equal volumes that share a workload, and the instance that they are attached to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Number of volumes.
    pub volumes: u32,
    /// Type and size of each volume.
    pub each: VolumeSpec,
    /// The type of the instance; `None` without an instance's limits.
    pub instance: Option<&'static InstanceType>,
}

impl Layout {
    /// Creates a single volume, without an instance's limits.
    #[must_use]
    pub const fn one(each: VolumeSpec) -> Self {
        Self { volumes: 1, each, instance: None }
    }

    /// Returns whether the volumes are equal, whatever the instance.
    #[must_use]
    pub fn is_same_volumes(&self, other: &Self) -> bool {
        (self.volumes, &self.each) == (other.volumes, &other.each)
    }

    /// Returns the monthly cost by item; `None` if the list has no price of the type.
    #[must_use]
    pub fn monthly(&self, prices: &ListPrices) -> Option<Cost> {
        let one = prices.monthly(&self.each)?;
        let all = |micro_usd: u64| micro_usd.saturating_mul(self.volumes.into());
        Some(Cost {
            storage: all(one.storage),
            iops: all(one.iops),
            throughput: all(one.throughput),
        })
    }

    /// Returns the layouts of a billion that lose data within a year, at best and at worst by the
    /// published range of the type; `None` if nothing is published. One lost volume is a lost
    /// layout.
    #[must_use]
    pub fn loss_ppb(&self, rules: &Rules) -> Option<(u64, u64)> {
        let durability = rules.of(self.each.volume_type)?.promise.durability?;
        let loss = |whole_ppm: u32| {
            // 1 - d^n, in billionths of billionths, which preserves small numbers.
            let one = 1_000_000_000_000_000_000_u128;
            let each = u128::from(whole_ppm.min(1_000_000)) * (one / 1_000_000);
            let whole = (0..self.volumes)
                .fold(one, |all, _| all * (each / 1_000_000_000) / (one / 1_000_000_000));
            saturating::<_, u64>((one - whole).div_ceil(1_000_000_000))
        };
        Some((loss(durability.max_ppm), loss(durability.min_ppm)))
    }

    /// Returns the limits of the volume with the largest share, full of credits, and its share of
    /// the instance's limits.
    #[must_use]
    pub fn buckets(&self, space: &Space) -> Vec<(LimitKind, Bucket)> {
        let full = |(kind, limit): (LimitKind, Limit)| {
            let counts = if kind.counts_bytes() { Counts::Bytes } else { Counts::Operations };
            (kind, Bucket::new(counts, limit, 1_000_000))
        };
        self.all(space).map(full).collect()
    }

    /// Returns these limits with the tokens that their pacers save beside credits.
    pub(crate) fn saving_buckets(&self, space: &Space) -> Vec<Bucket> {
        let saved_us = space.rules.pacing(&self.each).tolerance.ns / 1_000;
        let full = |(kind, limit): (LimitKind, Limit)| {
            let counts = if kind.counts_bytes() { Counts::Bytes } else { Counts::Operations };
            Bucket::saving(counts, limit, saved_us)
        };
        self.all(space).flat_map(full).collect()
    }

    /// Returns the maximum rate per second of each limit of the volume with the largest share, and
    /// of its share of the instance's limits.
    #[must_use]
    pub fn limits(&self, space: &Space) -> Vec<(LimitKind, u64)> {
        self.all(space).map(|(kind, limit)| (kind, limit.per_second)).collect()
    }

    /// Returns whether each limit, in the order of [`Self::limits`], saves credits.
    #[must_use]
    pub fn saves_credits(&self, space: &Space) -> Vec<bool> {
        self.all(space).map(|(_, limit)| limit.credit.is_some()).collect()
    }

    /// Returns the rate of each limit, in the order of [`Self::limits`], when its credits are
    /// spent.
    #[must_use]
    pub fn refills(&self, space: &Space) -> Vec<u64> {
        let refill =
            |limit: Limit| limit.credit.map_or(limit.per_second, |credit| credit.refill_per_second);
        self.all(space).map(|(_, limit)| refill(limit)).collect()
    }

    /// Returns the limits themselves.
    pub(crate) fn all(&self, space: &Space) -> impl Iterator<Item = (LimitKind, Limit)> {
        let pacing = space.rules.pacing(&self.each);
        let of_instance = self.instance_share(space);
        let operations = of_instance.and_then(|pacing| pacing.operations);
        let bytes = of_instance.and_then(|pacing| pacing.bytes);
        let all = [
            (LimitKind::VolumeIops, pacing.operations),
            (LimitKind::VolumeBytes, pacing.bytes),
            (LimitKind::InstanceIops, operations),
            (LimitKind::InstanceBytes, bytes),
        ];
        all.into_iter().filter_map(|(kind, limit)| Some((kind, limit?)))
    }

    /// Returns the share of the instance's limits of the volume with the largest share: as large as
    /// its share of the requests. Returns `None` without an instance.
    #[must_use]
    pub fn instance_share(&self, space: &Space) -> Option<InstancePacing> {
        let pacing = self.instance?.pacing();
        let share = self.share(space);
        let of = |limit: Limit| Limit {
            per_second: share.of_limit(limit.per_second),
            credit: limit.credit.map(|credit| CreditLimit {
                refill_per_second: share.of_limit(credit.refill_per_second),
                capacity: share.of_limit(credit.capacity),
            }),
        };
        Some(InstancePacing {
            operations: pacing.operations.map(of),
            bytes: pacing.bytes.map(of),
            ..pacing
        })
    }

    /// Returns the largest share of the requests that one of the volumes gets.
    #[must_use]
    pub const fn share(&self, space: &Space) -> Share {
        space.spread.of(self.volumes)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::VolumeType;

    use super::*;
    use crate::testing::layout;
    use evenkeel_core::price::PriceList;

    #[test]
    fn a_layout_costs_what_its_volumes_cost() {
        let prices = &ListPrices::from(PriceList::newest());
        let one = layout(1, VolumeType::Gp3, 100, None).monthly(prices).expect("prices");
        let five = layout(5, VolumeType::Gp3, 100, None).monthly(prices).expect("prices");
        assert_eq!((one.total() * 5, five.total()), (five.total(), 40_000_000));
    }

    #[test]
    fn more_volumes_lose_data_more_often() {
        let rules = Rules::newest();
        let loss =
            |volumes| layout(volumes, VolumeType::Gp3, 100, None).loss_ppb(rules).expect("known");
        // 99.8 to 99.9 % of the volumes lose no data in a year.
        assert_eq!(loss(1), (1_000_000, 2_000_000));
        assert_eq!(loss(5), (4_990_010, 9_960_080));
    }
}
