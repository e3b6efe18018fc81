//! Every action on random policies and on those that are ready, decided by [`check`] and by a plain
//! evaluator of JSON that is written here.

use std::net::Ipv4Addr;
use std::sync::Arc;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_iam::managed::MANAGED;
use evenkeel_wire::agent::StoredVolume;
use evenkeel_wire::aws::query::{self, Params};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use super::table::{Object, ROWS, Row};
use super::{Caller, Identity, Known, Principal, check, needs};
use crate::fis::experiments::Experiments;
use crate::model::{Event, Model, Settings, Snapshot, User, Volume};

const VOLUME: &str = "arn:aws:ec2:local-1:000000000000:volume/vol-00000000000000001";
const SNAPSHOT: &str = "arn:aws:ec2:local-1::snapshot/snap-00000000000000002";
const HOST: &str = "arn:aws:ec2:local-1:000000000000:instance/i-00000000000000003";
const NEW_VOLUME: &str = "arn:aws:ec2:local-1:000000000000:volume/*";
const NEW_SNAPSHOT: &str = "arn:aws:ec2:local-1::snapshot/*";
const NEW_HOST: &str = "arn:aws:ec2:local-1:000000000000:instance/*";
const OTHER_USER: &str = "arn:aws:iam::000000000000:user/bob";

/// The parameters of every request, whatever its action.
const PARAMS: &[u8] = b"VolumeId=vol-00000000000000001&SourceVolumeId=vol-00000000000000001&\
    SnapshotId=snap-00000000000000002&SourceSnapshotId=snap-00000000000000002&\
    FirstSnapshotId=snap-00000000000000002&ParentSnapshotId=snap-00000000000000002&\
    InstanceId=i-00000000000000003&InstanceSpecification.InstanceId=i-00000000000000003&\
    ResourceId.1=snap-00000000000000002&UserName=bob&PolicyArn=p&PolicySourceArn=p&\
    ExperimentTemplateArn=p&ExperimentArn=p&ActionArn.1=p&\
    Size=10&BlockDeviceMapping.1.Ebs.VolumeSize=10&\
    TagSpecification.1.ResourceType=volume&TagSpecification.1.Tag.1.Key=team";

/// Parameters that actions may lack.
const OPTIONAL: &[&str] = &[
    "BlockDeviceMapping.1.Ebs.Iops",
    "BlockDeviceMapping.1.Ebs.SnapshotId",
    "BlockDeviceMapping.1.Ebs.VolumeType",
    "CopyTagsFromSource",
    "Encrypted",
    "InstanceId",
    "Iops",
    "ParentSnapshotId",
    "Path",
    "Size",
    "SnapshotId",
    "Tag.1.Value",
    "Throughput",
    "UserName",
    "VolumeType",
];

/// Returns the rights that the request needs: actions, resources, and whether the resource has the
/// tag `team`.
fn needed(row: &Row) -> Vec<(String, &'static str, bool)> {
    let right = format!("{}:{}", row.service, row.action);
    let resources = row.objects.iter().flat_map(|object| match object {
        Object::Volume(_) | Object::AdoptedVolume(_) => vec![(VOLUME, true)],
        // Iops and the like are not changed, so the volume that it would be is no other one.
        Object::ChangedVolume(_) => vec![(VOLUME, true)],
        Object::Snapshot(_) | Object::Tagged(_) => vec![(SNAPSHOT, true)],
        Object::Instance(_) => vec![(HOST, false)],
        Object::AttachedHosts | Object::VolumesOf(_) => vec![],
        Object::NewVolume | Object::MappedVolumes => vec![(NEW_VOLUME, false)],
        Object::NewSnapshot => vec![(NEW_SNAPSHOT, false)],
        Object::NewInstance => vec![(NEW_HOST, false)],
        Object::User(_) => vec![(OTHER_USER, false)],
        Object::Arn(_) | Object::OfFis(_) => vec![("p", false)],
    });
    let mut all: Vec<_> =
        resources.map(|(resource, is_tagged)| (right.clone(), resource, is_tagged)).collect();
    if all.is_empty() {
        all.push((right, "*", false));
    }
    if row.signed_for == "ec2" && row.action != "CreateTags" {
        all.push(("ec2:CreateTags".into(), NEW_VOLUME, false));
    }
    all
}

fn like(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((begin, rest)) => text.strip_prefix(begin).is_some_and(|text| {
            (0..=text.len()).any(|from| text.get(from..).is_some_and(|text| like(rest, text)))
        }),
    }
}

/// Returns whether the statements allow a right, and none denies it.
fn allows(statements: &[Value], action: &str, resource: &str, is_tagged: bool) -> bool {
    let texts = |value: &Value| -> Vec<String> {
        match value {
            Value::Array(all) => all.iter().map(|text| text.as_str().unwrap().into()).collect(),
            other => vec![other.as_str().unwrap().into()],
        }
    };
    let applies = |statement: &&Value| {
        let named = texts(&statement["Action"]);
        let action = action.to_lowercase();
        let is_named = named.iter().any(|pattern| like(&pattern.to_lowercase(), &action));
        let on = texts(&statement["Resource"]);
        let is_on = on.iter().any(|pattern| pattern == "*" || like(pattern, resource));
        is_named && is_on && (statement.get("Condition").is_none() || is_tagged)
    };
    let effects: Vec<&str> =
        statements.iter().filter(applies).map(|each| each["Effect"].as_str().unwrap()).collect();
    effects.contains(&"Allow") && !effects.contains(&"Deny")
}

fn model() -> Model {
    let mut model = Model::default();
    let spec = VolumeSpec {
        volume_type: VolumeType::Gp2,
        size_gib: 10,
        iops: Some(100),
        throughput_mibps: None,
        multi_attach: false,
    };
    let tags = [("team".to_owned(), "blue".to_owned())];
    let id = VolumeId::from_bits(1);
    let volume = Volume::new(id, "local-1a", spec, UnixMs(1));
    model.apply(Event::Volume(Volume { tags: tags.clone().into(), ..volume }));
    let snapshot = Snapshot::new(SnapshotId::from_bits(2), id, 10, UnixMs(1));
    model.apply(Event::Snapshot(Snapshot { tags: tags.into(), ..snapshot }));
    model
}

/// Compares all actions. Returns the number of those that are allowed.
fn compare(statements: &[Value]) -> usize {
    let (caller, _) = caller(statements);
    let params = Params::decode(PARAMS).unwrap();
    let model = model();
    let settings = Settings::default();
    let experiments = &Experiments::default();
    let known = Known { model: &model, settings: &settings, experiments, stored: None };
    let mut count = 0;
    for row in ROWS {
        let found = check(&caller, (row.signed_for, row.action), &params, &known);
        let expected = needed(row)
            .iter()
            .all(|(action, resource, is_tagged)| allows(statements, action, resource, *is_tagged));
        let action = row.action;
        assert_eq!(found.is_ok(), expected, "{action}: {found:?} by {statements:?}");
        let root = Caller { identity: Identity::Root, ..caller.clone() };
        let asked = (row.signed_for, row.action);
        assert!(check(&root, asked, &params, &known).is_ok());
        count += usize::from(expected);
    }
    count
}

fn statement() -> impl Strategy<Value = Value> {
    const ACTIONS: &[&str] = &[
        "*",
        "ec2:*",
        "ec2:Describe*",
        "ec2:*Snapshot*",
        "ec2:CreateTags",
        "ec2:CreateVolume",
        "ec2:*Tags",
        "ebs:*",
        "ebs:List*",
        "evenkeel:*",
        "evenkeel:Describe*",
        "cloudwatch:*",
        "iam:*",
        "iam:*User*",
        "sts:*",
    ];
    const RESOURCES: &[&str] = &[
        "*",
        "arn:aws:ec2:*:*:volume/*",
        "arn:aws:ec2:*:*:volume/vol-*",
        "arn:aws:ec2:*::snapshot/*",
        "arn:aws:ec2:*:*:instance/*",
        "arn:aws:iam::*:user/*",
    ];
    let actions = subsequence(ACTIONS, 1..4);
    let resources = subsequence(RESOURCES, 1..3);
    let effect = select(&["Allow", "Allow", "Allow", "Deny"][..]);
    (effect, actions, resources, prop::bool::weighted(0.2)).prop_map(
        |(effect, actions, resources, is_of_tagged)| {
            let mut value = json!({ "Effect": effect, "Action": actions, "Resource": resources });
            if is_of_tagged {
                let key = "aws:ResourceTag/team";
                value["Condition"] = json!({ "StringEquals": { key: "blue" } });
            }
            value
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_action_is_decided_as_by_a_plain_evaluator(
        statements in prop::collection::vec(statement(), 1..5),
    ) {
        compare(&statements);
    }
}

/// Returns the user of these tests with its policies, as a caller.
fn caller(statements: &[Value]) -> (Caller, Arc<Principal>) {
    let document = json!({ "Version": "2012-10-17", "Statement": statements }).to_string();
    let user = User {
        name: "ann".into(),
        path: "/".into(),
        id: "AIDA".into(),
        created: UnixMs(1),
        keys: vec![],
        policies: [("own".to_owned(), document)].into(),
        attached: [].into(),
    };
    let principal = Arc::new(Principal::of(&user, "000000000000"));
    let identity = Identity::User(Arc::clone(&principal));
    let address = Ipv4Addr::LOCALHOST.into();
    (Caller { identity, address, access_key_id: String::new() }, principal)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The actions read an empty parameter as an absent one.
    #[test]
    fn an_empty_parameter_needs_the_rights_of_an_absent_one(
        empty in prop::collection::btree_set(select(OPTIONAL), 1..6),
    ) {
        let (caller, principal) = caller(&[]);
        let text = String::from_utf8(PARAMS.to_vec()).unwrap();
        let mut absent: Vec<(&str, &str)> =
            text.split('&').filter_map(|pair| pair.split_once('=')).collect();
        absent.retain(|(name, _)| !empty.contains(name));
        let emptied: Vec<_> =
            absent.iter().copied().chain(empty.iter().map(|name| (*name, ""))).collect();
        let decoded = |pairs: &[(&str, &str)]| {
            Params::decode(query::encode(pairs.iter().copied()).as_bytes()).unwrap()
        };
        let absent = decoded(&absent);
        let emptied = decoded(&emptied);
        let model = model();
        let settings = Settings::default();
        let experiments = &Experiments::default();
let known = Known { model: &model, settings: &settings, experiments, stored: None };
        for row in ROWS {
            let asked = (row.signed_for, row.action);
            let needed =
                |params| needs::of(&caller, &principal, asked, params, &known);
            prop_assert_eq!(needed(&emptied), needed(&absent), "{}", row.action);
        }
    }
}

#[test]
fn managed_policies_are_decided_as_by_a_plain_evaluator() {
    for (name, least, most) in [
        ("AdministratorAccess", ROWS.len(), ROWS.len()),
        ("EvenkeelOperator", 80, ROWS.len() - 20),
        // The request sets tags, and a reader may not.
        ("ReadOnlyAccess", 5, 20),
    ] {
        let managed = MANAGED.iter().find(|managed| managed.name == name).unwrap();
        let document: Value = serde_json::from_str(managed.document).unwrap();
        let count = compare(document["Statement"].as_array().unwrap());
        assert!((least..=most).contains(&count), "{name}: {count}");
    }
}

/// Templates and experiments of FIS that get tags need the right to tag them, and a Deny on a tag
/// of the request holds.
#[test]
fn tags_of_fis_are_facts_and_need_the_right_to_set_them() {
    let model = Model::default();
    let settings = Settings::default();
    let experiments = &Experiments::default();
    let known = Known { model: &model, settings: &settings, experiments, stored: None };
    let of_prod = json!({ "StringEquals": { "aws:RequestTag/env": "prod" } });
    let deny = |action: &str, condition: Option<&Value>| {
        let mut statement = json!({ "Effect": "Deny", "Action": action, "Resource": "*" });
        if let Some(condition) = condition {
            statement["Condition"] = condition.clone();
        }
        statement
    };
    let allow = json!({ "Effect": "Allow", "Action": "*", "Resource": "*" });
    for action in ["CreateExperimentTemplate", "StartExperiment"] {
        let is_allowed = |denied: Value, tags: &str| {
            let (caller, _) = caller(&[allow.clone(), denied]);
            let text = format!("ExperimentTemplateArn=t&ExperimentArn=e&ActionArn.1=a{tags}");
            let params = Params::decode(text.as_bytes()).unwrap();
            check(&caller, ("fis", action), &params, &known).is_ok()
        };
        let prod = "&Tag.1.Key=env&Tag.1.Value=prod";
        let test = "&Tag.1.Key=env&Tag.1.Value=test";
        let right = format!("fis:{action}");
        assert!(!is_allowed(deny(&right, Some(&of_prod)), prod), "{action}");
        assert!(is_allowed(deny(&right, Some(&of_prod)), test), "{action}");
        assert!(!is_allowed(deny("fis:TagResource", None), test), "{action}");
        assert!(!is_allowed(deny("fis:TagResource", Some(&of_prod)), prod), "{action}");
        assert!(is_allowed(deny("fis:TagResource", None), ""), "{action}");
    }
}

/// The size and the encryption of an adopted volume are those of its bytes, and its other facts are
/// those of the request.
#[test]
fn conditions_compare_the_facts_of_an_adopted_volume() {
    let model = Model::default();
    let settings = Settings::default();
    let id = VolumeId::from_bits(0x77);
    let bytes = StoredVolume { id, size: ByteCount::from_gib(500), is_encrypted: true };
    let experiments = &Experiments::default();
    let known = Known { model: &model, settings: &settings, experiments, stored: Some(&bytes) };
    let adopt = |condition: Value, params: &str, known: &Known<'_>| {
        let allow = json!({
            "Effect": "Allow", "Action": "*", "Resource": "*", "Condition": condition,
        });
        let (caller, _) = caller(&[allow]);
        let text = format!("VolumeId={id}&{params}");
        let params = Params::decode(text.as_bytes()).unwrap();
        check(&caller, ("ec2", "AdoptVolume"), &params, known).is_ok()
    };
    let of_type = |name: &str| json!({ "StringEquals": { "ec2:VolumeType": name } });
    let at_most = |key: &str, most: u32| json!({ "NumericLessThanEquals": { key: most } });
    let io2 = "VolumeType=io2&Iops=5000";
    assert!(adopt(of_type("io2"), io2, &known));
    assert!(!adopt(of_type("gp3"), io2, &known));
    assert!(adopt(at_most("ec2:VolumeSize", 500), io2, &known));
    assert!(!adopt(at_most("ec2:VolumeSize", 499), io2, &known));
    assert!(adopt(at_most("ec2:VolumeIops", 5_000), io2, &known));
    assert!(!adopt(at_most("ec2:VolumeIops", 4_999), io2, &known));
    assert!(adopt(json!({ "Bool": { "ec2:Encrypted": "true" } }), io2, &known));
    // gp3 has 3,000 IOPS without a parameter.
    assert!(!adopt(at_most("ec2:VolumeIops", 2_999), "VolumeType=gp3", &known));
    // Without such bytes no comparison allows anything.
    let absent = Known { stored: None, ..known };
    assert!(!adopt(at_most("ec2:VolumeSize", 500), io2, &absent));
}
