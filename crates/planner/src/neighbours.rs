//! The layouts that have one unit less than another one. Their replay on the scheduler shows how
//! tight a plan is.

use evenkeel_core::convert::saturating;
use evenkeel_core::volume::{IopsRule, VolumeRequest, VolumeSpec};

use crate::layout::Layout;
use crate::search::{Space, Wanted};

/// The unit of which a layout has one less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Less {
    /// A volume; the others become as large as they must.
    Volumes,
    /// A GiB of each volume.
    Gib,
    /// An IOPS of each volume.
    Iops,
    /// A MiB/s of each volume.
    Mibps,
}

/// Returns the layouts with one unit less that are large enough, allowed by the rules, and no
/// dearer.
#[must_use]
pub fn one_less(space: &Space, wanted: &Wanted, layout: &Layout) -> Vec<(Less, Layout)> {
    let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach } = layout.each;
    let sells_iops = space
        .rules
        .of(volume_type)
        .is_some_and(|rules| matches!(rules.iops, IopsRule::Provisioned { .. }));
    let request = VolumeRequest {
        volume_type,
        size_gib,
        iops: iops.filter(|_| sells_iops),
        throughput_mibps,
        multi_attach,
    };
    let less = |number: Option<u32>| number.and_then(|number| number.checked_sub(1));
    let fewer = layout.volumes.saturating_sub(1);
    let fewer_gib = wanted.capacity_gib.checked_div(fewer.into()).map(|_| {
        let each = wanted.capacity_gib.div_ceil(fewer.into());
        saturating::<_, u32>(each).max(size_gib)
    });
    let all = [
        (Less::Volumes, fewer, fewer_gib.map(|size_gib| VolumeRequest { size_gib, ..request })),
        (
            Less::Gib,
            layout.volumes,
            less(Some(size_gib)).map(|size_gib| VolumeRequest { size_gib, ..request }),
        ),
        (
            Less::Iops,
            layout.volumes,
            less(request.iops).map(|iops| VolumeRequest { iops: Some(iops), ..request }),
        ),
        (
            Less::Mibps,
            layout.volumes,
            less(throughput_mibps)
                .map(|mibps| VolumeRequest { throughput_mibps: Some(mibps), ..request }),
        ),
    ];
    let cost = space.monthly(layout).map(|cost| cost.total());
    let legal = all.into_iter().filter_map(|(less, volumes, request)| {
        let each = space.rules.resolve(&request?).ok()?;
        Some((less, Layout { volumes, each, ..*layout }))
    });
    legal
        .filter(|(_, it)| {
            u64::from(it.volumes) * u64::from(it.each.size_gib) >= wanted.capacity_gib
                && space.monthly(it).map(|cost| cost.total()) <= cost
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::VolumeType;
    use proptest::prelude::*;

    use super::*;
    use crate::search::{cheapest, does, replay};
    use crate::testing::{layout, seconds, space, wanted};

    #[test]
    fn each_number_that_may_be_less_is_one_less() {
        let space = space(&[], 8);
        let all = |layout: &Layout, gib| -> Vec<(Less, u32, u32, Option<u32>)> {
            let all = one_less(&space, &wanted(gib, 0), layout);
            all.iter()
                .map(|(less, it)| (*less, it.volumes, it.each.size_gib, it.each.iops))
                .collect()
        };
        // The free part of gp3 cannot be less, and neither can the required capacity.
        let gp3 = layout(1, VolumeType::Gp3, 100, Some(5_000));
        assert_eq!(all(&gp3, 100), [(Less::Iops, 1, 100, Some(4_999))]);
        assert_eq!(all(&layout(1, VolumeType::Gp3, 100, None), 100), []);
        // 3,000 IOPS of io1 need 60 GiB.
        let io1 = layout(2, VolumeType::Io1, 60, Some(3_000));
        assert_eq!(
            all(&io1, 60),
            [(Less::Volumes, 1, 60, Some(3_000)), (Less::Iops, 2, 60, Some(2_999)),]
        );
        let gp2 = layout(2, VolumeType::Gp2, 50, None);
        assert_eq!(
            all(&gp2, 40)[..2],
            [(Less::Volumes, 1, 50, Some(150)), (Less::Gib, 2, 49, Some(147)),]
        );
    }

    proptest! {
        #[test]
        fn none_of_the_cheapest_does_with_one_less(
            all in proptest::collection::vec((1..20_000_u64, 1..300_u64), 1..8),
            gib in 1..3_000_u64,
            throttled in prop_oneof![Just(0), 0..40_000_u64],
        ) {
            let space = space(&VolumeType::ALL, 1);
            let demand = seconds(&all);
            let wanted = wanted(gib, throttled);
            for found in cheapest(&space, &demand, &wanted) {
                let cost = found.monthly.total();
                for (less, layout) in one_less(&space, &wanted, &found.layout) {
                    let is_cheaper = space.monthly(&layout).unwrap().total() < cost;
                    let does = does(&replay(&space, &demand, &layout).1, &demand, &wanted);
                    prop_assert!(!(does && is_cheaper), "{less:?} {layout:?}");
                }
            }
        }
    }
}
