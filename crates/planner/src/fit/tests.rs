//! Admission accepts every packing, and the capacity left is exact.

use evenkeel_core::qos::admission::{Figure, PPM};
use proptest::prelude::*;

use super::*;
use crate::testing::layout;

fn device(iops: u32, space_gib: u64) -> Device {
    Device {
        floor: Figure::new(iops, iops / 4).unwrap().floor(),
        domain: DomainFloor::UNLIMITED,
        sold_share_ppm: PPM,
        space_gib,
        types: None,
    }
}

fn spec(volume_type: VolumeType, size_gib: u32, iops: Option<u32>) -> VolumeSpec {
    layout(1, volume_type, size_gib, iops).each
}

#[test]
fn what_fits_is_placed_and_the_rest_is_told() {
    let devices = [device(10_000, 1_000), device(10_000, 1_000)];
    let volumes =
        [spec(VolumeType::Io2, 100, Some(6_000)), spec(VolumeType::Io2, 900, Some(4_000))];
    let fitted = fit(Rules::newest(), &devices, &devices[0], &volumes).unwrap();
    assert_eq!((fitted.packed.further, fitted.packed.is_exact()), (0, true));
    let [full, empty] = fitted.devices.as_slice() else { panic!("two devices") };
    assert_eq!((full.volumes, full.sold_gib, full.time_permille), (2, 1_000, 1_000));
    assert_eq!(full.left, Left { gib: 0, iops: 0, gp3: None, io2: None });
    assert_eq!((empty.left.gib, empty.left.iops), (1_000, 10_000));
    assert_eq!(empty.left.gp3.unwrap().size_gib, 1_000);
    // 10,000 IOPS need ten GiB of io2, at 1,000 IOPS per GiB.
    let io2 = empty.left.io2.unwrap();
    assert_eq!((io2.iops, io2.size_gib), (Some(10_000), 10));
    // A third volume of 6,000 IOPS fits, and a fourth one needs another device.
    let more = [volumes[0]; 4];
    let fitted = fit(Rules::newest(), &devices, &devices[1], &more).unwrap();
    assert_eq!((fitted.packed.further, fitted.packed.further_min), (2, 2));
    assert_eq!(fitted.devices.len(), 4);
}

#[test]
fn space_runs_out_too_and_types_have_their_devices() {
    let fast = device(10_000, 100);
    let slow = Device { types: Some(vec![VolumeType::St1]), ..device(1_000, 10_000) };
    let disk = spec(VolumeType::St1, 500, None);
    let devices = [fast.clone(), slow];
    let fitted = fit(Rules::newest(), &devices, &fast, &[disk]).unwrap();
    assert_eq!(fitted.packed.bin_of, [1]);
    assert_eq!((fitted.devices[1].left.gp3, fitted.devices[1].left.io2), (None, None));
    let fast = [fast];
    let error = fit(Rules::newest(), &fast, &fast[0], &[disk]);
    assert_eq!(error, Err(Unpacked::TooLarge { item: 0 }));
}

/// A server's cores are counted as admission counts them.
#[test]
fn cores_limit_what_fits() {
    let cpu_costs = device(10_000, 1).floor.costs;
    let mut slow = device(100_000, 1_000);
    slow.domain = DomainFloor { cpu_ns_per_second: Some(u64::MAX), cpu_costs, ..slow.domain };
    let volume = [spec(VolumeType::Io2, 100, Some(6_000)); 2];
    let devices = [slow];
    assert_eq!(fit(Rules::newest(), &devices, &devices[0], &volume).unwrap().packed.further, 0);
    let mut short = devices[0].clone();
    short.domain.cpu_ns_per_second = Some(device(10_000, 1).floor.time_ns_per_second);
    let devices = [short];
    assert_eq!(fit(Rules::newest(), &devices, &devices[0], &volume).unwrap().packed.further, 1);
}

fn volume() -> impl Strategy<Value = VolumeSpec> {
    use VolumeType::{Gp2, Gp3, Io2, Standard};
    prop_oneof![
        (4..400_u32, 100..4_000_u32).prop_map(|(gib, iops)| spec(
            Io2,
            gib,
            Some(iops.min(gib * 1_000))
        )),
        (1..500_u32).prop_map(|gib| spec(Gp3, gib, None)),
        (1..500_u32).prop_map(|gib| spec(Gp2, gib, None)),
        (1..500_u32).prop_map(|gib| spec(Standard, gib, None)),
    ]
}

proptest! {
    /// A server with the same floor admits every volume of a device, one after another, and the
    /// volume that is reported as left, but no larger one.
    #[test]
    fn admission_admits_what_is_packed(
        volumes in proptest::collection::vec(volume(), 0..40),
        iops in 8_000..40_000_u32,
        gib in 500..3_000_u64,
    ) {
        let rules = Rules::newest();
        let devices = [device(iops, gib), device(iops / 2, gib * 2)];
        let fitted = fit(rules, &devices, &devices[0], &volumes).unwrap();
        for (bin, filled) in fitted.devices.iter().enumerate() {
            let device = devices.get(bin).unwrap_or(&devices[0]);
            let mut ledger = device.ledger();
            let here = volumes.iter().zip(&fitted.packed.bin_of).filter(|(_, of)| **of == bin);
            let mut sold_gib = 0;
            for (number, (spec, _)) in (0..).zip(here) {
                let reserved = reservation(rules, spec);
                prop_assert!(ledger.consult(VolumeId::from_bits(number), &reserved).is_ok());
                ledger.enter(VolumeId::from_bits(number), reserved).unwrap();
                sold_gib += u64::from(spec.size_gib);
            }
            prop_assert_eq!(filled.left.gib, device.space_gib - sold_gib);
            let fits = |spec: &VolumeSpec| {
                let is_admitted = ledger.consult(ANOTHER, &reservation(rules, spec)).is_ok();
                is_admitted && u64::from(spec.size_gib) <= filled.left.gib
            };
            for found in [filled.left.gp3, filled.left.io2].into_iter().flatten() {
                prop_assert!(fits(&found), "{found:?}");
            }
            if let Some(io2) = filled.left.io2.filter(|io2| io2.iops < Some(256_000)) {
                let more = io2.iops.unwrap() + 1;
                let size_gib = (more.div_ceil(1_000)).max(4);
                prop_assert!(!fits(&spec(VolumeType::Io2, size_gib, Some(more))));
            }
        }
    }
}

#[test]
fn what_is_lacking_is_named_with_its_figure() {
    let device = Device { types: Some(vec![VolumeType::Io2]), ..device(80_000, 4_000) };
    let lacks = |volume_type, gib, iops| -> Vec<String> {
        let spec = layout(1, volume_type, gib, iops).each;
        device.lacks(Rules::newest(), &spec).iter().map(ToString::to_string).collect()
    };
    let io2 = |gib, iops| lacks(VolumeType::Io2, gib, Some(iops));
    assert!(io2(4_000, 100).is_empty());
    assert_eq!(io2(4_001, 100), ["4001 GiB of space are needed, it has 4000"]);
    assert_eq!(lacks(VolumeType::Gp3, 1, None), ["carries no gp3"]);
    let slow = io2(100, 90_000);
    let [lack] = slow.as_slice() else { panic!("{slow:?}") };
    assert!(lack.ends_with(" % of the device time that is sold are needed"), "{lack}");
    // Twice as many IOPS need twice as much.
    let permille = |iops| match device
        .lacks(Rules::newest(), &layout(1, VolumeType::Io2, 4_000, Some(iops)).each)[..]
    {
        [Lack::Resource(Resource::DeviceTime, permille)] => permille,
        ref other => panic!("{other:?}"),
    };
    assert!(permille(90_000) > 1_000);
    assert!(permille(180_000).abs_diff(2 * permille(90_000)) <= 1);
}
