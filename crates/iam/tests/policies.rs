//! Policies that are refused, each with an error that names the element; policies that are ready.

use evenkeel_iam::managed::{MANAGED, Managed};
use evenkeel_iam::{Context, Decision, Policy, Request, decide};

fn refused(text: &str) -> String {
    Policy::parse(text).expect_err(text).to_string()
}

fn statement(rest: &str) -> String {
    format!(r#"{{"Statement":{{"Effect":"Allow","Action":"*","Resource":"*"{rest}}}}}"#)
}

#[test]
fn an_element_that_is_not_evaluated_is_refused_by_its_name() {
    for (rest, name) in [
        (r#","NotResource":"x""#, "NotResource"),
        (r#","Principal":"*""#, "Principal"),
        (r#","NotPrincipal":"*""#, "NotPrincipal"),
        (r#","NotAction":"*""#, "NotAction"),
        (r#","effect":"Deny""#, "effect"),
        (r#","Effect":"Deny""#, "'Effect' is there twice"),
        (r#","Sid":"a b""#, "alpha-numeric"),
        (r#","Condition":[]"#, "Condition"),
        (r#","Condition":{"StringEquals":1}"#, "Condition"),
        (r#","Condition":{"DateLessThan":{"aws:CurrentTime":"x"}}"#, "'DateLessThan'"),
        (
            r#","Condition":{"ForOneValue:StringLike":{"aws:TagKeys":"x"}}"#,
            "'ForOneValue:StringLike'",
        ),
        (r#","Condition":{"StringEquals":{"aws:PrincipalArn":"x"}}"#, "'aws:PrincipalArn'"),
        (r#","Condition":{"StringEquals":{"aws:ResourceTag/":"x"}}"#, "'aws:ResourceTag/'"),
        (r#","Condition":{"StringEquals":{"ec2:VolumeTypes":"x"}}"#, "'ec2:VolumeTypes'"),
        (r#","Condition":{"StringLike":{"aws:username":"${aws:username}"}}"#, "policy variable"),
        (r#","Condition":{"StringLike":{"aws:TagKeys":"x"}}"#, "ForAllValues:StringLike"),
        (r#","Condition":{"NumericEquals":{"ec2:VolumeType":"1"}}"#, "does not fit"),
        (r#","Condition":{"NumericEquals":{"ec2:VolumeSize":"1.5"}}"#, "'1.5'"),
        (r#","Condition":{"Bool":{"ec2:Encrypted":"yes"}}"#, "'yes'"),
        (r#","Condition":{"StringEquals":{"aws:SourceIp":"192.0.2.1"}}"#, "does not fit"),
        (r#","Condition":{"IpAddress":{"aws:SourceIp":"192.0.2.0/33"}}"#, "'192.0.2.0/33'"),
        (r#","Condition":{"IpAddress":{"aws:SourceIp":"192.0.2.0/+4"}}"#, "'192.0.2.0/+4'"),
        (r#","Condition":{"StringEquals":{"aws:username":[]}}"#, "no values"),
        (r#","Condition":{"StringEquals":{"aws:username":{}}}"#, "an object"),
    ] {
        let error = refused(&statement(rest));
        assert!(error.contains(name), "{rest}: {error}");
    }
    let key = refused(&statement(r#","Condition":{"StringEquals":{"aws:Foo":"x"}}"#));
    assert!(key.contains("aws:SourceIp, ") && key.contains(", ec2:VolumeSize, "), "{key}");
    let operator = refused(&statement(r#","Condition":{"Foo":{"aws:username":"x"}}"#));
    assert!(operator.contains("StringEquals, ") && operator.contains(" Null are"), "{operator}");
    let element = refused(&statement(r#","Principal":"*""#));
    assert!(element.contains("Action, NotAction, Resource, Condition are"), "{element}");
}

#[test]
fn an_error_names_the_statement_by_its_number_and_its_sid() {
    let good = r#"{"Effect":"Allow","Action":"*","Resource":"*"}"#;
    let policy = |bad: &str| refused(&format!(r#"{{"Statement":[{good},{bad}]}}"#));
    let error = policy(r#"{"Sid":"Mine","Effect":"allow","Action":"*","Resource":"*"}"#);
    let expected = "statement 2 (Mine): the element Effect is 'allow'; it must be Allow or Deny";
    assert!(error.contains(expected), "{error}");
    let error = policy(r#"{"Action":"*","Resource":"*"}"#);
    assert!(error.contains("statement 2: the element Effect is missing"), "{error}");
    let error = policy(r#"{"Effect":1,"Action":"*","Resource":"*"}"#);
    assert!(error.contains("statement 2: the element Effect is a number"), "{error}");
}

#[test]
fn a_malformed_policy_is_refused_with_the_reason() {
    for (text, reason) in [
        ("", "Syntax errors in policy"),
        ("[]", "a list"),
        ("{}", "Statement"),
        (r#"{"Statement":[]}"#, "Statement"),
        (r#"{"Statement":["x"]}"#, "a text"),
        (r#"{"Version":"2012-10-18","Statement":[]}"#, "2012-10-17 or 2008-10-17"),
        (r#"{"Statements":[]}"#, "Statements"),
        (r#"{"Id":1,"Statement":[]}"#, "Id"),
        (r#"{"Statement":{"Action":"*","Resource":"*"}}"#, "Effect"),
        (r#"{"Statement":{"Effect":"allow","Action":"*","Resource":"*"}}"#, "Effect"),
        (r#"{"Statement":{"Effect":"Allow","Resource":"*"}}"#, "Action or NotAction"),
        (r#"{"Statement":{"Effect":"Allow","Action":[],"Resource":"*"}}"#, "Action is empty"),
        (r#"{"Statement":{"Effect":"Allow","Action":[1],"Resource":"*"}}"#, "a number"),
        (r#"{"Statement":{"Effect":"Allow","Action":"Describe","Resource":"*"}}"#, "'Describe'"),
        (r#"{"Statement":{"Effect":"Allow","Action":"*"}}"#, "must contain resources"),
        (r#"{"Statement":{"Effect":"Allow","Action":"*","Resource":"vol-1"}}"#, "ARN format"),
        ("{\"Statement\":\"\u{1}\"}", "U+0001"),
        ("{\"Statement\":\"ł\"}", "U+0142"),
        (&"[".repeat(6_000), "Syntax errors"),
    ] {
        let error = refused(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
    let twice = r#"{"Statement":[{"Sid":"A","Effect":"Deny","Action":"*","Resource":"*"},
        {"Sid":"A","Effect":"Deny","Action":"*","Resource":"*"}]}"#;
    assert!(refused(twice).contains("A is there twice"));
}

fn decision(managed: &str, action: &str, resource: &str, facts: &[(&str, &str)]) -> Decision {
    let managed = MANAGED.iter().find(|known| known.name == managed).expect("managed");
    let policy = Policy::parse(managed.document).expect("a policy");
    let mut context = Context::default();
    facts.iter().for_each(|(key, value)| context.add(*key, vec![(*value).to_owned()]));
    let request = Request { action: action.into(), resource: resource.into(), context };
    decide([&policy], &request).decision
}

#[test]
fn managed_policies_allow_their_purpose_and_nothing_else() {
    const VOLUME: &str = "arn:aws:ec2:local-1:000000000000:volume/vol-1";
    const SNAPSHOT: &str = "arn:aws:ec2:local-1::snapshot/snap-1";
    let own = [("ec2:ResourceTag/ebs.csi.aws.com/cluster", "true")];
    let backup = [("aws:ResourceTag/backup", "daily")];
    let creating = [("ec2:CreateAction", "CreateSnapshot")];
    use Decision::{Allowed, ExplicitDeny, ImplicitDeny};
    for (name, action, resource, facts, expected) in [
        ("AdministratorAccess", "iam:CreateUser", "arn:aws:iam::1:user/a", &[][..], Allowed),
        ("EvenkeelOperator", "ec2:CreateVolume", VOLUME, &[], Allowed),
        ("EvenkeelOperator", "evenkeel:MoveVolume", VOLUME, &[], Allowed),
        ("EvenkeelOperator", "ec2:DeleteVolume", VOLUME, &[], ExplicitDeny),
        ("EvenkeelOperator", "evenkeel:PurgeVolumeInRecycleBin", VOLUME, &[], ExplicitDeny),
        ("EvenkeelOperator", "iam:CreateUser", "*", &[], ImplicitDeny),
        ("ReadOnlyAccess", "ec2:DescribeVolumes", "*", &[], Allowed),
        ("ReadOnlyAccess", "ec2:CreateVolume", VOLUME, &[], ImplicitDeny),
        ("ReadOnlyAccess", "ebs:GetSnapshotBlock", SNAPSHOT, &[], ImplicitDeny),
        ("AmazonEBSCSIDriverPolicy", "ec2:AttachVolume", VOLUME, &[], Allowed),
        ("AmazonEBSCSIDriverPolicy", "ec2:DeleteVolume", VOLUME, &[], ImplicitDeny),
        ("AmazonEBSCSIDriverPolicy", "ec2:DeleteVolume", VOLUME, &own, Allowed),
        ("AmazonEBSCSIDriverPolicy", "ec2:CreateTags", VOLUME, &[], ImplicitDeny),
        ("EvenkeelBackup", "ec2:CreateSnapshot", VOLUME, &[], Allowed),
        ("EvenkeelBackup", "ebs:GetSnapshotBlock", SNAPSHOT, &[], Allowed),
        ("EvenkeelBackup", "ec2:DeleteSnapshot", SNAPSHOT, &[], ImplicitDeny),
        ("EvenkeelBackup", "ec2:DeleteSnapshot", SNAPSHOT, &backup, Allowed),
        ("EvenkeelBackup", "ec2:CreateTags", SNAPSHOT, &[], ImplicitDeny),
        ("EvenkeelBackup", "ec2:CreateTags", SNAPSHOT, &creating, Allowed),
        ("EvenkeelBackup", "ec2:DeleteVolume", VOLUME, &[], ImplicitDeny),
    ] {
        assert_eq!(decision(name, action, resource, facts), expected, "{name} {action}");
    }
    for managed in MANAGED {
        assert_eq!(Managed::with_arn(&managed.arn()), Some(&managed).copied().as_ref());
    }
    assert!(MANAGED.is_sorted_by_key(|managed| managed.name));
}

#[test]
fn tags_that_differ_in_case_are_found_and_the_exact_one_first() {
    let mut context = Context::default();
    context.add("aws:ResourceTag/Team", vec!["blue".into()]);
    assert_eq!(context.values("AWS:resourcetag/team"), ["blue"]);
    context.add("aws:ResourceTag/team", vec!["red".into()]);
    assert_eq!(context.values("aws:ResourceTag/team"), ["red"]);
    assert_eq!(context.values("aws:ResourceTag/Team"), ["blue"]);
    assert!(context.values("aws:ResourceTag/other").is_empty());
}
