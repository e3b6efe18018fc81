//! Properties that hold for any input, under the rules of any date.

use super::*;
use crate::qos::pacing::{Limit, Pacing};
use proptest::prelude::*;
use std::string::ToString;

fn any_rules() -> impl Strategy<Value = &'static Rules> {
    (0..Rules::all().len()).prop_map(|i| &Rules::all()[i])
}

fn any_type() -> impl Strategy<Value = VolumeType> {
    proptest::sample::select(&VolumeType::ALL)
}

/// Returns any number, most often near the limits.
fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => 1..200_u32,
        3 => 100..20_000_u32,
        2 => 3_000..300_000_u32,
        1 => any::<u32>(),
        1 => proptest::sample::select(&[0, u32::MAX, 0x7fff_ffff, 16_384, 65_536]),
    ]
}

prop_compose! {
    fn any_request()(
        volume_type in any_type(),
        size_gib in any_number(),
        iops in proptest::option::of(any_number()),
        throughput_mibps in proptest::option::weighted(0.3, any_number()),
        multi_attach in proptest::bool::weighted(0.2),
    ) -> VolumeRequest {
        VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach }
    }
}

prop_compose! {
    fn any_change()(
        volume_type in proptest::option::of(any_type()),
        size_gib in proptest::option::of(any_number()),
        iops in proptest::option::of(any_number()),
        throughput_mibps in proptest::option::weighted(0.3, any_number()),
        multi_attach in proptest::option::weighted(0.2, any::<bool>()),
    ) -> VolumeChange {
        VolumeChange { volume_type, size_gib, iops, throughput_mibps, multi_attach }
    }
}

/// Returns a volume that is valid under `rules`: the result of a request that is nearly always
/// accepted.
fn legal() -> impl Strategy<Value = (&'static Rules, VolumeSpec)> {
    let parts = (any_rules(), any_type(), any::<u32>(), any::<u32>(), any::<u32>(), any::<bool>());
    parts.prop_filter_map("not offered", |(rules, volume_type, size, iops, mibps, shared)| {
        let type_rules = rules.of(volume_type)?;
        let within = |seed: u32, min: u32, max: u32| min + seed % (max - min + 1);
        let size_gib = within(size, type_rules.size_gib_min, type_rules.size_gib_max);
        let iops = match type_rules.iops {
            IopsRule::Provisioned { min, .. } => {
                Some(within(iops, min, type_rules.iops_max(size_gib)?.max(min)))
            }
            _ => None,
        };
        let throughput_mibps = match type_rules.throughput {
            ThroughputRule::Provisioned { min_mibps, max_mibps, .. } => {
                Some(within(mibps, min_mibps, max_mibps.min(iops? / 4)))
            }
            _ => None,
        };
        let multi_attach = shared && type_rules.multi_attach != MultiAttach::No;
        let request = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
        Some((rules, rules.resolve(&request).ok()?))
    })
}

/// Returns the sustained rate of a limit, with empty buckets.
fn sustained(limit: Limit) -> u64 {
    limit.credit.map_or(limit.per_second, |c| c.refill_per_second)
}

/// Returns the numbers of a pacing that may only grow with the volume; unlimited is above all.
fn sizes(pacing: &Pacing) -> [u64; 4] {
    let peak = |l: Option<Limit>| l.map_or(u64::MAX, |l| l.per_second);
    let lasting = |l: Option<Limit>| l.map_or(u64::MAX, sustained);
    [peak(pacing.operations), lasting(pacing.operations), peak(pacing.bytes), lasting(pacing.bytes)]
}

fn check_pacing(pacing: &Pacing) -> Result<(), TestCaseError> {
    for limit in [pacing.operations, pacing.bytes].into_iter().flatten() {
        prop_assert!(limit.per_second > 0);
        if let Some(credit) = limit.credit {
            prop_assert!(
                credit.refill_per_second > 0 && credit.refill_per_second < limit.per_second
            );
            prop_assert!(credit.capacity > 0);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_request_is_answered(rules in any_rules(), request in any_request()) {
        match rules.resolve(&request) {
            Ok(spec) => {
                prop_assert_eq!(spec.size_gib, request.size_gib);
                prop_assert_eq!(request.iops.is_none_or(|n| spec.iops == Some(n)), true);
                check_pacing(&rules.pacing(&spec))?;
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty() && !error.code().is_empty());
            }
        }
    }

    #[test]
    fn specification_legal_by_construction_is_accepted((rules, spec) in legal()) {
        check_pacing(&rules.pacing(&spec))?;
        prop_assert_eq!(rules.resolve(&spec.request()), Ok(spec));
    }

    #[test]
    fn a_modification_ends_in_a_legal_volume((rules, spec) in legal(), change in any_change()) {
        if let Ok(after) = rules.modify(&spec, &change) {
            prop_assert_eq!(rules.resolve(&after.request()), Ok(after));
            prop_assert!(after.size_gib >= spec.size_gib);
            prop_assert_eq!(after.volume_type, change.volume_type.unwrap_or(spec.volume_type));
            prop_assert!(change.iops.is_none_or(|n| after.iops == Some(n)));
            prop_assert!(change.throughput_mibps.is_none_or(|n| after.throughput_mibps == Some(n)));
            // A request for its present state changes nothing.
            let all = VolumeChange {
                volume_type: Some(after.volume_type),
                size_gib: Some(after.size_gib),
                iops: after.request().iops,
                throughput_mibps: after.throughput_mibps,
                multi_attach: Some(after.multi_attach),
            };
            prop_assert_eq!(rules.modify(&after, &all), Ok(after));
        }
    }

    #[test]
    fn limits_grow_with_size((rules, spec) in legal()) {
        let type_rules = rules.of(spec.volume_type).unwrap();
        let grown = VolumeRequest { size_gib: spec.size_gib + 1, ..spec.request() };
        if spec.size_gib < type_rules.size_gib_max {
            let grown = rules.resolve(&grown).unwrap();
            let small = sizes(&rules.pacing(&spec));
            let large = sizes(&rules.pacing(&grown));
            prop_assert!(small.iter().zip(&large).all(|(a, b)| a <= b), "{:?} {:?}", small, large);
            prop_assert!(type_rules.iops_max(spec.size_gib) <= type_rules.iops_max(grown.size_gib));
        }
    }

    #[test]
    fn limits_grow_with_iops((rules, spec) in legal()) {
        let more = VolumeRequest { iops: spec.iops.map(|n| n + 1), ..spec.request() };
        if let Ok(more) = rules.resolve(&more) {
            let few = sizes(&rules.pacing(&spec));
            let many = sizes(&rules.pacing(&more));
            prop_assert!(few.iter().zip(&many).all(|(a, b)| a <= b), "{:?} {:?}", few, many);
        }
    }

    #[test]
    fn pacing_answers_for_any_volume(rules in any_rules(), request in any_request()) {
        // Most of these volumes are invalid under any rules: pacing must neither panic nor
        // overflow.
        let VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach } = request;
        let spec = VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach };
        prop_assert_eq!(rules.pacing(&spec), rules.pacing(&spec));
    }

    #[test]
    fn any_text_is_a_date_or_is_not(text in "[0-9-]{0,12}|\\PC{0,12}") {
        if let Ok(date) = text.parse::<Date>() {
            prop_assert_eq!(date.to_string().parse(), Ok(date));
            prop_assert!(date.to_string().starts_with(&text));
        }
    }
}
