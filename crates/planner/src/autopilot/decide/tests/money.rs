//! Money, and the instance's limits.

use super::*;
use crate::autopilot::decide::facts::Facts;
use crate::autopilot::decide::instance;

#[test]
fn decide_grows_to_the_largest_size_that_the_caps_allow() {
    // 100 GiB of gp3 cost 8.00; each GiB more costs 0.08.
    let now = of_kind(Kind::Xfs, btrfs(&[gp3(100)], 95));
    let with_cap = |cap: u64| {
        let mut policy = policy();
        policy.budget.monthly_micro_max = Some(cap);
        decide(&policy, &now, &steady(&now)).0
    };
    assert_eq!(resized(&with_cap(8_400_000)).2, 105);
    let reason_of_less = only(&with_cap(8_400_000)).reason.clone();
    assert!(reason_of_less.contains("the step is 5 GiB instead of 53 GiB"), "{reason_of_less}");
    let decision = with_cap(8_000_000);
    assert!(decision.intents.is_empty());
    assert!(
        reason(&decision, Brake::Money).starts_with("the file system would cost "),
        "{decision:#?}"
    );
    assert!(decision.alarms[0].contains("more than its cap of 8.00 USD"), "{decision:#?}");
    // A cap that is already exceeded stops growth, and nothing else.
    assert!(with_cap(1).intents.is_empty());
    let saved = first(
        &{
            let mut policy = policy();
            policy.budget.monthly_micro_max = Some(1);
            policy
        },
        &btrfs(&[gp3(400)], 100),
    );
    assert!(matches!(only(&saved).operation, Operation::Replace { .. }));
}

#[test]
fn decide_respects_the_caps_of_the_group_and_of_the_fleet() {
    let mut now = of_kind(Kind::Xfs, btrfs(&[gp3(100)], 95));
    now.account.group_monthly_micro = 500_000_000;
    now.account.fleet_monthly_micro = 900_000_000;
    let mut policy = policy();
    policy.budget.group_monthly_micro_max = Some(500_500_000);
    assert_eq!(resized(&decide(&policy, &now, &steady(&now)).0).2, 106);
    policy.budget.group_monthly_micro_max = None;
    policy.budget.fleet_monthly_micro_max = Some(900_000_000);
    let decision = decide(&policy, &now, &steady(&now)).0;
    assert!(reason(&decision, Brake::Money).starts_with("the fleet would cost "));
}

#[test]
fn decide_shrinks_only_for_a_saving() {
    // 25 % of 400 GiB save 8.00; the old volume costs 32.00 a month, so 25 h of it 1.11.
    let now = btrfs(&[gp3(400)], 100);
    let mut policy = policy();
    assert_eq!(first(&policy, &now).intents.len(), 1);
    policy.budget.saving_micro_min = 8_000_001;
    let decision = first(&policy, &now);
    assert_eq!(
        reason(&decision, Brake::Saving),
        "it saves 8.00 USD a month, and must save 8.00 USD"
    );
    policy.budget.saving_micro_min = 1;
    policy.budget.saving_times_min = 8;
    let decision = first(&policy, &now);
    assert_eq!(
        reason(&decision, Brake::Saving),
        "it saves 8.00 USD a month, less than 8 times its own cost of 1.11 USD"
    );
    policy.budget.saving_times_min = 7;
    assert_eq!(first(&policy, &now).intents.len(), 1);
}

/// An m5.large carries 18,750 IOPS and 593 MB/s.
#[test]
fn decide_buys_no_more_than_the_instance_carries() {
    let mut now = btrfs(&[gp3(500)], 400);
    now.instance.as_mut().unwrap().instance_type = "m5.large".to_owned();
    now.instance.as_mut().unwrap().other_iops = 10_000;
    now.volumes[0].exceeded_s = Some(61);
    let up = |iops: u32, mibps: u32| spec(VolumeType::Gp3, 500, Some(iops), Some(mibps));
    let with = |now: &mut Observation, to: VolumeSpec| {
        let judged = Judged { up: proposal(to), ..judged("vol-1") };
        now.evidence = evidence(vec![judged], NOW_MS - 1);
        first(&policy(), now)
    };
    let decision = with(&mut now, up(12_000, 250));
    let Operation::Modify { to, .. } = &only(&decision).operation else { panic!() };
    assert_eq!(*to, up(8_750, 250), "the rest of 18,750");
    assert_eq!(
        reason(&decision, Brake::Instance),
        "vol-1: the volumes of i-0123456789abcdef0 (m5.large) would have 22000 IOPS and 250 MiB/s \
         together, and it carries 18750 IOPS and 566 MiB/s at most: m5.8xlarge is the smallest of \
         its family that carries it"
    );
    // Nothing is left.
    now.instance.as_mut().unwrap().other_iops = 15_750;
    let decision = with(&mut now, up(12_000, 125));
    assert!(decision.intents.is_empty(), "{decision:#?}");
    // What it carries only in a burst is bought, with a remark.
    now.instance.as_mut().unwrap().other_iops = 0;
    let decision = with(&mut now, up(12_000, 125));
    let reason = &only(&decision).reason;
    assert!(reason.contains("(m5.large) sustains 3600 IOPS"), "{reason}");
    assert!(reason.ends_with("; m5.2xlarge does"), "{reason}");
}

/// An r4.16xlarge is not built on the Nitro System, and carries 75,000 IOPS of all its volumes.
#[test]
fn an_instance_without_nitro_carries_no_more_iops_of_a_volume_than_it_achieves() {
    let io1 = |iops: u32| spec(VolumeType::Io1, 1_000, Some(iops), None);
    let policy = policy();
    let state = State::default();
    let carried = |host: &str, from: u32| {
        let mut now = btrfs(&[io1(from)], 200);
        now.instance.as_mut().unwrap().instance_type = host.to_owned();
        let facts = Facts::new(&policy, &now, &state, None);
        let is_carried_beside = instance::carries_beside(&facts, &io1(40_000));
        let carried = instance::carried(&facts, "vol-1", &io1(from), io1(40_000));
        (carried.spec, carried.reason, is_carried_beside)
    };
    assert_eq!(carried("r5.24xlarge", 30_000), (io1(40_000), None, true));
    let words = "r4.16xlarge is not built on the Nitro System, and achieves at most 32000 IOPS on \
                 a volume of io1";
    for from in [30_000, 32_000] {
        let reason = Some(words.to_owned());
        assert_eq!(carried("r4.16xlarge", from), (io1(32_000), reason, false));
    }
}

#[test]
fn decide_refuses_volumes_without_a_price() {
    let mut policy = policy();
    let list = evenkeel_core::price::PriceList::newest();
    let empty = evenkeel_core::price::PriceList::new(
        list.date(),
        "moon".to_owned(),
        "USD".to_owned(),
        Vec::new(),
    );
    policy.plan.prices = (&empty).into();
    let decision = first(&policy, &btrfs(&[gp3(100)], 95));
    assert!(decision.intents.is_empty());
    let reason = reason(&decision, Brake::Money);
    assert!(reason.starts_with("the price list of moon has no price of "), "{reason}");
}
