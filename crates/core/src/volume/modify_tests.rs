//! ModifyVolume: what is kept, what falls to a default, what is refused.

use super::*;
use std::string::{String, ToString};

use VolumeType::{Gp2, Gp3, Io1, Io2, St1, Standard};

/// An existing volume.
fn volume(t: VolumeType, size_gib: u32, iops: Option<u32>, multi_attach: bool) -> VolumeSpec {
    let request =
        VolumeRequest { volume_type: t, size_gib, iops, throughput_mibps: None, multi_attach };
    Rules::newest().resolve(&request).unwrap()
}

fn to_type(t: VolumeType) -> VolumeChange {
    VolumeChange { volume_type: Some(t), ..VolumeChange::default() }
}

fn to_size(size_gib: u32) -> VolumeChange {
    VolumeChange { size_gib: Some(size_gib), ..VolumeChange::default() }
}

fn to_iops(iops: u32) -> VolumeChange {
    VolumeChange { iops: Some(iops), ..VolumeChange::default() }
}

fn to_multi_attach(on: bool) -> VolumeChange {
    VolumeChange { multi_attach: Some(on), ..VolumeChange::default() }
}

fn modified(current: &VolumeSpec, change: VolumeChange) -> VolumeSpec {
    Rules::newest().modify(current, &change).unwrap()
}

fn refused(current: &VolumeSpec, change: VolumeChange) -> (&'static str, String) {
    let error = Rules::newest().modify(current, &change).unwrap_err();
    (error.code(), error.to_string())
}

#[test]
fn modification_keeps_unnamed_properties() {
    let fast = VolumeSpec { throughput_mibps: Some(500), ..volume(Gp3, 100, Some(9_000), false) };
    assert_eq!(modified(&fast, to_size(200)), VolumeSpec { size_gib: 200, ..fast });
    assert_eq!(modified(&fast, to_iops(4_000)), VolumeSpec { iops: Some(4_000), ..fast });
    let io1 = volume(Io1, 100, Some(5_000), false);
    assert_eq!(modified(&io1, to_size(200)), VolumeSpec { size_gib: 200, ..io1 });
}

#[test]
fn a_new_type_brings_its_defaults() {
    let gp2 = volume(Gp2, 100, None, false);
    let gp3 = modified(&gp2, to_type(Gp3));
    assert_eq!((gp3.iops, gp3.throughput_mibps), (Some(3_000), Some(125)));
    let io1 = modified(&gp2, to_type(Io1));
    assert_eq!((io1.iops, io1.throughput_mibps), (Some(3_000), None));
    // What was provisioned before is not carried over to another type.
    assert_eq!(modified(&volume(Io1, 100, Some(5_000), false), to_type(Io2)).iops, Some(3_000));
    let fast = VolumeSpec { throughput_mibps: Some(500), ..volume(Gp3, 500, Some(9_000), false) };
    assert_eq!(modified(&fast, to_type(Gp2)), volume(Gp2, 500, None, false));
    assert_eq!(modified(&fast, to_type(St1)), volume(St1, 500, None, false));
}

#[test]
fn a_gp2_baseline_follows_the_size() {
    let gp2 = volume(Gp2, 100, None, false);
    assert_eq!(modified(&gp2, to_size(500)), volume(Gp2, 500, None, false));
    assert_eq!(modified(&gp2, to_size(500)).iops, Some(1_500));
}

#[test]
fn the_sample_of_the_user_guide_works() {
    let change = VolumeChange { size_gib: Some(200), iops: Some(10_000), ..to_type(Io1) };
    let expected = volume(Io1, 200, Some(10_000), false);
    assert_eq!(modified(&volume(Gp2, 100, None, false), change), expected);
}

#[test]
fn volumes_never_shrink() {
    let text = "New size cannot be smaller than existing size".to_string();
    assert_eq!(
        refused(&volume(Gp3, 100, None, false), to_size(99)),
        ("InvalidParameterValue", text)
    );
    assert!(Rules::newest().modify(&volume(Gp3, 100, None, false), &to_size(100)).is_ok());
}

#[test]
fn the_target_must_be_legal() {
    let small = volume(Gp3, 10, None, false);
    // The 3,000 IOPS a new io1 volume gets are 300 for each of 10 GiB.
    let text = "Iops to volume size ratio of 300 is too high; maximum is 50".to_string();
    assert_eq!(refused(&small, to_type(Io1)), ("InvalidParameterValue", text));
    let text = "The volume size is invalid for st1 volumes: 10 GiB. st1 volumes must be at least \
                125 GiB in size. Please specify a volume size above the minimum limit.";
    assert_eq!(refused(&small, to_type(St1)), ("InvalidParameterValue", text.to_string()));
    let text = "The parameter iops is not supported for gp2 volumes".to_string();
    assert_eq!(
        refused(&small, VolumeChange { iops: Some(3_000), ..to_type(Gp2) }),
        ("InvalidParameterCombination", text)
    );
    // Lowering the IOPS of a volume does not lower its throughput by itself.
    let fast = VolumeSpec { throughput_mibps: Some(1_000), ..volume(Gp3, 100, Some(4_000), false) };
    let text = "Throughput (MiBps) to iops ratio of 0.333333 is too high; maximum is 0.250000 \
                MiBps per iops";
    assert_eq!(refused(&fast, to_iops(3_000)), ("InvalidParameterValue", text.to_string()));
}

#[test]
fn a_modification_names_something() {
    let text = "The request must contain the parameter size, volumeType, iops, throughput or \
                multiAttachEnabled";
    let none = VolumeChange::default();
    assert_eq!(refused(&volume(Gp3, 1, None, false), none), ("MissingParameter", text.to_string()));
}

#[test]
fn multi_attach_freezes_an_io1_volume() {
    let io1 = volume(Io1, 100, Some(1_000), true);
    for (change, what) in [(to_type(Io2), "type"), (to_size(200), "size"), (to_iops(2_000), "iops")]
    {
        let text = std::format!(
            "The {what} of io1 volumes cannot be modified while Multi-Attach is enabled."
        );
        assert_eq!(refused(&io1, change), ("UnsupportedOperation", text));
    }
    let fixed = "Multi-Attach of io1 volumes is chosen at their creation, for good.";
    assert_eq!(refused(&io1, to_multi_attach(false)), ("UnsupportedOperation", fixed.to_string()));
    let single = volume(Io1, 100, Some(1_000), false);
    assert_eq!(
        refused(&single, to_multi_attach(true)),
        ("UnsupportedOperation", fixed.to_string())
    );
    // To name what it is anyway changes nothing.
    assert_eq!(modified(&io1, to_multi_attach(true)), io1);
}

#[test]
fn multi_attach_keeps_the_type_of_an_io2_volume() {
    let io2 = volume(Io2, 100, Some(1_000), true);
    let text =
        "The type of io2 volumes cannot be modified while Multi-Attach is enabled.".to_string();
    assert_eq!(refused(&io2, to_type(Gp3)), ("UnsupportedOperation", text));
    assert_eq!(modified(&io2, to_size(200)).size_gib, 200);
    assert_eq!(modified(&io2, to_iops(2_000)).iops, Some(2_000));
    assert!(!modified(&io2, to_multi_attach(false)).multi_attach);
    assert!(modified(&volume(Io2, 100, Some(1_000), false), to_multi_attach(true)).multi_attach);
    let text = "The parameter multi-attach-enabled is not supported for gp3 volumes.".to_string();
    assert_eq!(
        refused(&volume(Gp3, 1, None, false), to_multi_attach(true)),
        ("InvalidParameterCombination", text)
    );
}

#[test]
fn modifications_follow_their_date() {
    let rules_at = |date: &str| Rules::as_of(date.parse().unwrap()).unwrap();
    let gp2 = volume(Gp2, 100, None, false);
    let error = rules_at("2016-12").modify(&gp2, &to_size(200)).unwrap_err();
    assert_eq!(error.code(), "UnsupportedOperation");
    assert_eq!(
        error.to_string(),
        "ModifyVolume is not part of the rules of 2016-12-01; serve newer rules."
    );
    assert!(rules_at("2017-03").modify(&gp2, &to_size(200)).is_ok());
    let standard = volume(Standard, 100, None, false);
    for (current, target) in [(gp2, Standard), (standard, Gp2)] {
        let error = rules_at("2018-02").modify(&current, &to_type(target)).unwrap_err();
        assert_eq!(error, InvalidSpec::StandardNotConvertible);
        assert!(rules_at("2018-12").modify(&current, &to_type(target)).is_ok());
    }
    assert!(rules_at("2018-02").modify(&standard, &to_size(200)).is_ok());
    let error = rules_at("2018-02").modify(&gp2, &to_type(Gp3)).unwrap_err();
    assert_eq!(error, InvalidSpec::TypeNotOffered { volume_type: Gp3 });
    let policy = |date: &str| rules_at(date).modify_rules().map(|m| m.policy);
    assert_eq!(policy("2016-12"), None);
    assert_eq!(policy("2017-02"), Some(ModifyPolicy::Cooldown { hours: 6 }));
    assert_eq!(policy("2025-12"), Some(ModifyPolicy::Cooldown { hours: 6 }));
    assert_eq!(policy("2026-01"), Some(ModifyPolicy::Rolling { modifications_max: 4, hours: 24 }));
}
