//! Users, keys and policies over IAM, and their rights in every API.

use evenkeel_control::api::ACTIONS;
use evenkeel_control::credentials::Credentials;
use evenkeel_wire::aws::xml::Element;

use crate::support::{Client, Refused, Server, create, local_instance, text, unix_s};

fn iam(client: &Client, action: &str, params: &[(&str, &str)]) -> Element {
    let answer = client.identity("iam", action, params);
    answer.unwrap_or_else(|refused| panic!("{action} {params:?}: {refused:?}"))
}

fn refused(client: &Client, action: &str, params: &[(&str, &str)]) -> (u16, String) {
    let refused = client.identity("iam", action, params).expect_err(action);
    assert!(!refused.message.is_empty());
    (refused.status, refused.code)
}

/// Adds an access key to a user. Returns a client with it.
fn key(root: &Client, name: &str) -> Client {
    let made = iam(root, "CreateAccessKey", &[("UserName", name)]);
    let made = made.child("AccessKey").unwrap();
    let credentials = Credentials {
        access_key_id: text(made, "AccessKeyId").into(),
        secret_access_key: text(made, "SecretAccessKey").into(),
    };
    Client { credentials, ..root.clone() }
}

pub fn user(root: &Client, name: &str) -> Client {
    iam(root, "CreateUser", &[("UserName", name)]);
    key(root, name)
}

pub fn put(root: &Client, name: &str, statements: &str) {
    let document = format!(r#"{{"Version":"2012-10-17","Statement":{statements}}}"#);
    let params = [("UserName", name), ("PolicyName", "own"), ("PolicyDocument", &document)];
    iam(root, "PutUserPolicy", &params);
}

fn attach(root: &Client, name: &str, policy: &str) {
    let arn = format!("arn:aws:iam::aws:policy/{policy}");
    iam(root, "AttachUserPolicy", &[("UserName", name), ("PolicyArn", &arn)]);
}

/// Creates a volume, and attaches it to this machine's host. Returns the ids of both.
fn attached(root: &Client) -> [String; 2] {
    let host = local_instance(root);
    let volume = create(root, &[]);
    let params = [("VolumeId", volume.as_str()), ("InstanceId", &host), ("Device", "/dev/sdf")];
    root.call("AttachVolume", &params).unwrap();
    [volume, host]
}

const NEW: &[(&str, &str)] =
    &[("AvailabilityZone", "local-1a"), ("Size", "100"), ("VolumeType", "gp3")];

#[test]
fn a_user_has_the_rights_of_its_policies_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let ann = user(&root, "ann");
    assert_eq!(ann.code("DescribeVolumes", &[]), "UnauthorizedOperation");
    put(
        &root,
        "ann",
        r#"[{"Effect":"Allow","Action":["ec2:Describe*","ec2:CreateTags"],"Resource":"*"},
            {"Effect":"Allow","Action":"ec2:CreateVolume","Resource":"arn:aws:ec2:*:*:volume/*",
             "Condition":{"NumericLessThanEquals":{"ec2:VolumeIops":"5000"},
                          "StringEquals":{"aws:RequestTag/team":"blue"}}},
            {"Effect":"Allow","Action":"ec2:ModifyVolume","Resource":"*",
             "Condition":{"NumericLessThanEquals":{"ec2:VolumeIops":"5000"}}}]"#,
    );
    ann.call("DescribeVolumes", &[]).unwrap();
    // By the tags of the request, and by limits that are filled in.
    let tagged = |more: &[(&'static str, &'static str)]| -> Vec<(&str, &str)> {
        let tag = [
            ("TagSpecification.1.ResourceType", "volume"),
            ("TagSpecification.1.Tag.1.Key", "team"),
            ("TagSpecification.1.Tag.1.Value", "blue"),
        ];
        NEW.iter().chain(&tag).chain(more).copied().collect()
    };
    assert_eq!(ann.code("CreateVolume", NEW), "UnauthorizedOperation");
    assert_eq!(ann.code("CreateVolume", &tagged(&[("Iops", "5001")])), "UnauthorizedOperation");
    let made = ann.call("CreateVolume", &tagged(&[("Iops", "5000")])).unwrap();
    let id = text(&made, "volumeId");
    // A change by the volume as it would be, and as it is.
    let change = |volume: &str, iops: &str| {
        let params = [("VolumeId", volume), ("Iops", iops)];
        ann.call("ModifyVolume", &params).map(drop).map_err(|refused| refused.code)
    };
    assert_eq!(change(id, "5001"), Err("UnauthorizedOperation".into()));
    assert_eq!(change(id, "4000"), Ok(()));
    let large = create(&root, &[("Size", "100"), ("VolumeType", "gp3"), ("Iops", "6000")]);
    assert_eq!(change(&large, "4000"), Err("UnauthorizedOperation".into()));
    server.stop().unwrap();
}

#[test]
fn a_deny_is_first_and_every_resource_of_an_action_counts() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let ann = user(&root, "ann");
    put(
        &root,
        "ann",
        r#"[{"Sid":"Keep","Effect":"Deny","Action":"ec2:DeleteVolume","Resource":"*",
             "Condition":{"StringLike":{"aws:ResourceTag/keep":"*"}}}]"#,
    );
    let kept = create(&root, &[]);
    let id = kept.as_str();
    let large = create(&root, &[]);
    // By the tags of the resource; an explicit deny is first.
    iam(
        &root,
        "AttachUserPolicy",
        &[("UserName", "ann"), ("PolicyArn", "arn:aws:iam::aws:policy/AdministratorAccess")],
    );
    root.call("CreateTags", &[("ResourceId.1", id), ("Tag.1.Key", "keep")]).unwrap();
    let dry = [("VolumeId", id), ("DryRun", "true")];
    let denied = ann.call("DeleteVolume", &dry).unwrap_err();
    assert_eq!((denied.status, denied.code.as_str()), (403, "UnauthorizedOperation"));
    assert!(denied.message.contains("with an explicit deny"), "{}", denied.message);
    let other = [("VolumeId", large.as_str()), ("DryRun", "true")];
    assert_eq!(ann.code("DeleteVolume", &other), "DryRunOperation");
    // Every resource of an action counts.
    iam(
        &root,
        "DetachUserPolicy",
        &[("UserName", "ann"), ("PolicyArn", "arn:aws:iam::aws:policy/AdministratorAccess")],
    );
    put(
        &root,
        "ann",
        r#"[{"Effect":"Allow","Action":"ec2:AttachVolume","Resource":"arn:aws:ec2:*:*:volume/*"}]"#,
    );
    let host = local_instance(&root);
    let attachment = [("VolumeId", id), ("InstanceId", &host), ("Device", "/dev/sdf")];
    let denied = ann.call("AttachVolume", &attachment).unwrap_err();
    assert!(denied.message.contains(&format!("instance/{host} because")), "{}", denied.message);
    server.stop().unwrap();
}

#[test]
fn a_refusal_has_a_message_that_only_the_server_opens() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let ann = user(&root, "ann");
    let volume = create(&root, &[]);
    let denied = ann.call("DeleteVolume", &[("VolumeId", &volume)]).unwrap_err();
    let (text_before, encoded) = denied.message.split_once("failure message: ").unwrap();
    assert!(text_before.contains("arn:aws:iam::000000000000:user/ann"), "{text_before}");
    let decode = |client: &Client, message: &str| {
        client.identity("sts", "DecodeAuthorizationMessage", &[("EncodedMessage", message)])
    };
    let decoded = decode(&root, encoded).unwrap();
    let decoded = text(&decoded, "DecodedMessage");
    let resource = format!("arn:aws:ec2:local-1:000000000000:volume/{volume}");
    for part in ["\"allowed\":false", "ec2:DeleteVolume", &resource, "aws:SourceIp", "127.0.0.1"] {
        assert!(decoded.contains(part), "{part}: {decoded}");
    }
    assert!(!decoded.contains(&ann.credentials.secret_access_key));
    assert_eq!(decode(&ann, encoded).unwrap_err().code, "AccessDenied");
    let unknown = decode(&root, "AAAA").unwrap_err();
    assert_eq!(unknown.code, "InvalidAuthorizationMessageException");
    server.stop().unwrap();
}

#[test]
fn keys_are_replaced_without_a_gap_and_revoked_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let old = user(&root, "ann");
    attach(&root, "ann", "ReadOnlyAccess");
    old.call("DescribeVolumes", &[]).unwrap();
    let new = key(&root, "ann");
    for both in [&old, &new] {
        both.call("DescribeVolumes", &[]).unwrap();
    }
    let more = refused(&root, "CreateAccessKey", &[("UserName", "ann")]);
    assert_eq!(more, (409, "LimitExceeded".into()));
    let id = old.credentials.access_key_id.as_str();
    let named = [("UserName", "ann"), ("AccessKeyId", id)];
    let set = |status: &str| {
        let params: Vec<_> = named.iter().copied().chain([("Status", status)]).collect();
        iam(&root, "UpdateAccessKey", &params);
    };
    let revoked = |status: u16| {
        let refused = old.call("DescribeVolumes", &[]).unwrap_err();
        assert_eq!((refused.status, refused.code.as_str()), (status, "AuthFailure"));
        let sts = old.identity("sts", "GetCallerIdentity", &[]).unwrap_err();
        assert_eq!((sts.status, sts.code.as_str()), (403, "InvalidClientTokenId"));
    };
    set("Inactive");
    revoked(401);
    new.call("DescribeVolumes", &[]).unwrap();
    set("Active");
    old.call("DescribeVolumes", &[]).unwrap();
    iam(&root, "DeleteAccessKey", &named);
    revoked(401);
    // The rest is as it was after a restart.
    let listed = |client: &Client| iam(client, "ListAccessKeys", &[("UserName", "ann")]);
    let before = listed(&root);
    server.stop().unwrap();
    let server = Server::start(folder.path());
    let moved = |client: &Client| Client { address: server.address, ..client.clone() };
    assert_eq!(listed(&moved(&root)), before);
    moved(&new).call("DescribeVolumes", &[]).unwrap();
    assert_eq!(moved(&old).code("DescribeVolumes", &[]), "AuthFailure");
    let identity = moved(&new).identity("sts", "GetCallerIdentity", &[]).unwrap();
    assert_eq!(text(&identity, "Arn"), "arn:aws:iam::000000000000:user/ann");
    assert!(text(&identity, "UserId").starts_with("AIDA"));
    let identity = moved(&root).identity("sts", "GetCallerIdentity", &[]).unwrap();
    assert_eq!(text(&identity, "Arn"), "arn:aws:iam::000000000000:root");
    server.stop().unwrap();
}

#[test]
fn iam_refuses_with_its_own_codes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let ann = user(&root, "Ann");
    let document = r#"{"Statement":{"Effect":"Allow","Action":"*","NotResource":"*"}}"#;
    let policy = |document: &'static str| {
        [("UserName", "ann"), ("PolicyName", "p"), ("PolicyDocument", document)].to_vec()
    };
    let arn = |arn: &'static str| [("UserName", "ann"), ("PolicyArn", arn)].to_vec();
    for (action, params, status, code) in [
        ("CreateUser", vec![("UserName", "aNN")], 409, "EntityAlreadyExists"),
        ("CreateUser", vec![("UserName", "a b")], 400, "ValidationError"),
        ("CreateUser", vec![("UserName", "b"), ("Path", "x")], 400, "ValidationError"),
        ("CreateUser", vec![("UserName", "b"), ("Colour", "x")], 400, "UnknownParameter"),
        ("CreateUser", vec![], 400, "MissingParameter"),
        ("GetUser", vec![("UserName", "bob")], 404, "NoSuchEntity"),
        ("DeleteUser", vec![("UserName", "ann")], 409, "DeleteConflict"),
        ("CreateAccessKey", vec![], 400, "ValidationError"),
        (
            "UpdateAccessKey",
            vec![("UserName", "ann"), ("AccessKeyId", "x"), ("Status", "Active")],
            404,
            "NoSuchEntity",
        ),
        (
            "UpdateAccessKey",
            vec![("UserName", "ann"), ("AccessKeyId", "x"), ("Status", "On")],
            400,
            "ValidationError",
        ),
        ("PutUserPolicy", policy(document), 400, "MalformedPolicyDocument"),
        ("PutUserPolicy", policy("{"), 400, "MalformedPolicyDocument"),
        ("GetUserPolicy", vec![("UserName", "ann"), ("PolicyName", "p")], 404, "NoSuchEntity"),
        ("DeleteUserPolicy", vec![("UserName", "ann"), ("PolicyName", "p")], 404, "NoSuchEntity"),
        ("AttachUserPolicy", arn("arn:aws:iam::aws:policy/Other"), 404, "NoSuchEntity"),
        ("DetachUserPolicy", arn("arn:aws:iam::aws:policy/ReadOnlyAccess"), 404, "NoSuchEntity"),
        ("GetPolicy", vec![("PolicyArn", "x")], 404, "NoSuchEntity"),
        ("ListUsers", vec![("MaxItems", "0")], 400, "ValidationError"),
        ("CreateGroup", vec![("GroupName", "g")], 400, "InvalidAction"),
    ] {
        assert_eq!(refused(&root, action, &params), (status, code.into()), "{action} {params:?}");
    }
    let named = root.identity("iam", "PutUserPolicy", &policy(document)).unwrap_err();
    assert!(named.message.contains("NotResource"), "{}", named.message);
    let text = ann.identity("iam", "ListUsers", &[]).unwrap_err();
    assert_eq!((text.status, text.code.as_str()), (403, "AccessDenied"));
    assert!(text.message.contains("user/Ann is not authorized to perform: iam:ListUsers"));
    server.stop().unwrap();
}

#[test]
fn a_simulation_says_what_the_server_decides() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let ann = user(&root, "ann");
    attach(&root, "ann", "EvenkeelOperator");
    put(
        &root,
        "ann",
        r#"{"Effect":"Deny","Action":"ec2:CreateVolume","Resource":"*",
            "Condition":{"StringEquals":{"ec2:VolumeType":"io2"}}}"#,
    );
    let simulate = |kind: &str| {
        let result = iam(
            &root,
            "SimulatePrincipalPolicy",
            &[
                ("PolicySourceArn", "arn:aws:iam::000000000000:user/ann"),
                ("ActionNames.member.1", "ec2:CreateVolume"),
                ("ActionNames.member.2", "ec2:DeleteVolume"),
                ("ActionNames.member.3", "iam:CreateUser"),
                ("ResourceArns.member.1", "arn:aws:ec2:local-1:000000000000:volume/*"),
                ("ContextEntries.member.1.ContextKeyName", "ec2:VolumeType"),
                ("ContextEntries.member.1.ContextKeyType", "string"),
                ("ContextEntries.member.1.ContextKeyValues.member.1", kind),
            ],
        );
        let results = result.items("EvaluationResults").iter();
        results.map(|item| text(item, "EvalDecision").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(simulate("gp3"), ["allowed", "explicitDeny", "implicitDeny"]);
    assert_eq!(simulate("io2"), ["explicitDeny", "explicitDeny", "implicitDeny"]);
    ann.call("CreateVolume", NEW).unwrap();
    let io2 = [("AvailabilityZone", "local-1a"), ("Size", "10"), ("VolumeType", "io2")];
    let io2: Vec<_> = io2.into_iter().chain([("Iops", "100")]).collect();
    assert_eq!(ann.code("CreateVolume", &io2), "UnauthorizedOperation");
    server.stop().unwrap();
}

/// An action reads an empty parameter as an absent one, and so do its rights.
#[test]
fn an_empty_parameter_evades_no_right() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let ann = user(&root, "ann");
    attach(&root, "ann", "AdministratorAccess");
    let [volume, _] = attached(&root);
    put(
        &root,
        "ann",
        r#"[{"Effect":"Deny","Action":["ec2:CreateVolume","ec2:RunInstances"],"Resource":"*",
             "Condition":{"NumericLessThan":{"ec2:VolumeSize":"50"}}},
            {"Effect":"Deny","Action":"ec2:DetachVolume",
             "Resource":"arn:aws:ec2:*:*:instance/*"},
            {"Effect":"Deny","Action":"iam:CreateAccessKey",
             "Resource":"arn:aws:iam::*:user/ann"}]"#,
    );
    let small = [("AvailabilityZone", "local-1a"), ("Size", "10"), ("VolumeType", "")];
    assert_eq!(ann.code("CreateVolume", &small), "UnauthorizedOperation");
    let run = [
        ("MinCount", "1"),
        ("MaxCount", "1"),
        ("BlockDeviceMapping.1.DeviceName", "/dev/sdf"),
        ("BlockDeviceMapping.1.Ebs.VolumeSize", "10"),
        ("BlockDeviceMapping.1.Ebs.VolumeType", ""),
    ];
    assert_eq!(ann.code("RunInstances", &run), "UnauthorizedOperation");
    let detachment = [("VolumeId", volume.as_str()), ("InstanceId", "")];
    assert_eq!(ann.code("DetachVolume", &detachment), "UnauthorizedOperation");
    let own = [("UserName", "")];
    assert_eq!(refused(&ann, "CreateAccessKey", &own), (403, "AccessDenied".into()));
    server.stop().unwrap();
}

#[test]
fn tags_need_the_right_to_them_wherever_they_come_from() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let ann = user(&root, "ann");
    attach(&root, "ann", "AdministratorAccess");
    let [volume, host] = attached(&root);
    let tag = [("ResourceId.1", volume.as_str()), ("Tag.1.Key", "keep"), ("Tag.1.Value", "1")];
    root.call("CreateTags", &tag).unwrap();
    put(
        &root,
        "ann",
        r#"{"Effect":"Deny","Action":["ec2:CreateTags","ec2:DeleteTags"],"Resource":"*",
            "Condition":{"ForAnyValue:StringEquals":{"aws:TagKeys":"keep"}}}"#,
    );
    // Tags that the request names without a specification.
    let new = |key: &'static str| {
        [("InstanceType", "m5.large"), ("Address", "127.0.0.9"), ("Tag.1.Key", key)]
    };
    assert_eq!(ann.code("RegisterHost", &new("keep")), "UnauthorizedOperation");
    ann.call("RegisterHost", &new("other")).unwrap();
    // Tags that are copied.
    let set = [("InstanceSpecification.InstanceId", host.as_str())];
    let copied = [set[0], ("CopyTagsFromSource", "volume")];
    assert_eq!(ann.code("CreateSnapshots", &copied), "UnauthorizedOperation");
    ann.call("CreateSnapshots", &set).unwrap();
    // All tags of a resource.
    let all = [("ResourceId.1", volume.as_str())];
    assert_eq!(ann.code("DeleteTags", &all), "UnauthorizedOperation");
    let other = [all[0], ("Tag.1.Key", "other")];
    ann.call("DeleteTags", &other).unwrap();
    server.stop().unwrap();
}

#[test]
fn a_simulation_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    user(&root, "ann");
    let simulate = |more: &[(&str, &str)]| {
        let basic = [
            ("PolicySourceArn", "arn:aws:iam::000000000000:user/ann"),
            ("ActionNames.member.1", "ec2:CreateVolume"),
        ];
        let params: Vec<_> = basic.into_iter().chain(more.iter().copied()).collect();
        root.identity("iam", "SimulatePrincipalPolicy", &params)
    };
    let policy = |pattern: &str| {
        let resource = format!("arn:aws:ec2:::{pattern}");
        format!(r#"{{"Statement":{{"Effect":"Allow","Action":"*","Resource":"{resource}"}}}}"#)
    };
    let long = "a".repeat(2_049);
    let long_policy = policy(&long);
    let resource = "ResourceArns.member.1";
    let document = "PolicyInputList.member.1";
    let key = "ContextEntries.member.1.ContextKeyName";
    let value = "ContextEntries.member.1.ContextKeyValues.member.1";
    for (more, named, limit) in [
        (vec![(resource, long.as_str())], resource, "2048"),
        (vec![(document, long_policy.as_str())], document, "2048"),
        (vec![("ActionNames.member.2", &long[..129])], "ActionNames.member.2", "128"),
        (vec![(key, &long[..257])], key, "256"),
        (vec![(key, "aws:username"), (value, &long[..257])], value, "256"),
    ] {
        let error = simulate(&more).expect_err(named);
        assert_eq!(error.code, "ValidationError", "{named}");
        assert!(error.message.contains(named), "{}", error.message);
        assert!(error.message.contains(limit), "{}", error.message);
    }
    for action in ["CreateVolume", "ec2:", ":CreateVolume", "ec2:Create*", "*"] {
        let error = simulate(&[("ActionNames.member.2", action)]).expect_err(action);
        assert_eq!(error.code, "InvalidInput");
        assert!(error.message.contains(&format!("'{action}'")), "{}", error.message);
    }
    // Each within its limit, and too much together.
    let policy = policy(&"*a?".repeat(600));
    let names: Vec<String> = (1..=200).map(|n| format!("ResourceArns.member.{n}")).collect();
    let arn = format!("arn:aws:ec2:::{}", &long[..2_000]);
    let mut many: Vec<_> = names.iter().map(|name| (name.as_str(), arn.as_str())).collect();
    many.push((document, &policy));
    let error = simulate(&many).unwrap_err();
    assert_eq!(error.code, "ValidationError");
    assert!(error.message.contains("268435456"), "{}", error.message);
    let few = [many[0], (document, policy.as_str())];
    assert_eq!(simulate(&few).unwrap().items("EvaluationResults").len(), 1);
    server.stop().unwrap();
}

/// CloudTrail and FIS have names of their own for the errors of signatures and rights, and FIS
/// answers in JSON on any path.
#[test]
fn services_with_json_name_their_errors_as_aws_does() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let ann = user(&root, "ann");
    let send = |client: &Client, service: &str, method: &str, path: &str| {
        let host = client.address.to_string();
        let target = "com.amazonaws.cloudtrail.v20131101.CloudTrail_20131101.LookupEvents";
        let all = [("host", host.as_str()), ("x-amz-target", target)];
        let headers = if service == "fis" { &all[..1] } else { &all };
        let body = if method == "GET" { "" } else { "{}" };
        let signed = client.signed_with(service, (method, path), headers, body, unix_s());
        let answer = client.send(method, path, &signed, body.as_bytes());
        (answer.status, answer.body)
    };
    let keys = &ann.credentials;
    let with = |id: &str, secret: &str| Client {
        address: ann.address,
        credentials: Credentials { access_key_id: id.into(), secret_access_key: secret.into() },
    };
    let unknown = with("AKIANOBODY", &keys.secret_access_key);
    let wrong = with(&keys.access_key_id, "no secret");
    for (client, code, text) in [
        (&unknown, "UnrecognizedClientException", "AWS was not able to validate"),
        (&wrong, "InvalidSignatureException", "signature we calculated"),
        (&ann, "AccessDeniedException", "is not authorized to perform: "),
    ] {
        let (status, body) = send(client, "cloudtrail", "POST", "/");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, body["__type"].as_str()), (403, Some(code)));
        // The type of FIS's errors is in a header.
        let (status, body) = send(client, "fis", "GET", "/experiments");
        assert!(status == 403 && body.starts_with("{") && body.contains(text), "{status} {body}");
    }
    for path in ["/actions", "/experiments/", "/tags/x", "/experimentTemplates/x/y"] {
        let (status, body) = send(&root, "fis", "GET", path);
        assert_eq!(status, 404, "{body}");
        assert!(body.starts_with('{') && body.contains("is no operation of FIS"), "{body}");
    }
    server.stop().unwrap();
}

/// Each action without parameters: a refusal for a parameter is no refusal for a right.
#[test]
fn the_right_to_read_is_no_right_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let reader = user(&root, "reader");
    attach(&root, "reader", "ReadOnlyAccess");
    let all = user(&root, "all");
    attach(&root, "all", "AdministratorAccess");
    let none = user(&root, "none");
    let is_refused = |client: &Client, action: &str| {
        let answer = client.call(action, &[("DryRun", "true")]);
        matches!(answer, Err(Refused { status: 403, code, .. }) if code == "UnauthorizedOperation")
    };
    for action in ACTIONS {
        assert!(is_refused(&none, action.name), "{}", action.name);
        assert!(!is_refused(&all, action.name), "{}", action.name);
        assert_eq!(is_refused(&reader, action.name), action.mutates, "{}", action.name);
    }
    server.stop().unwrap();
}

#[test]
fn the_other_apis_check_rights_too() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let root = server.client();
    let ann = user(&root, "ann");
    let eve = user(&root, "eve");
    let send = |client: &Client, service: &str, method: &str, target: &str, body: &str| {
        let headers = client.signed_as(service, method, target, body);
        let answer = client.send(method, target, &headers, body.as_bytes());
        (answer.status, answer.body)
    };
    let start = r#"{"VolumeSize":1,"Tags":[{"Key":"team","Value":"blue"}]}"#;
    let metrics = "Action=ListMetrics&Version=2010-08-01";
    let (status, body) = send(&ann, "ebs", "POST", "/snapshots", start);
    assert!(status == 403 && body.contains("ebs:StartSnapshot"), "{status} {body}");
    let (status, body) = send(&ann, "monitoring", "POST", "/", metrics);
    assert!(status == 403 && body.contains("AccessDenied"), "{status} {body}");
    put(
        &root,
        "ann",
        r#"[{"Effect":"Allow","Action":"cloudwatch:ListMetrics","Resource":"*"},
            {"Effect":"Allow","Action":"ebs:*","Resource":"arn:aws:ec2:*::snapshot/*",
             "Condition":{"StringEquals":{"aws:RequestTag/team":"blue"}}},
            {"Effect":"Allow","Action":"ebs:CompleteSnapshot","Resource":"*",
             "Condition":{"StringEquals":{"aws:ResourceTag/team":"blue"}}},
            {"Effect":"Allow","Action":"ec2:CreateTags","Resource":"*",
             "Condition":{"StringEquals":{"ec2:CreateAction":"StartSnapshot"}}}]"#,
    );
    assert_eq!(send(&ann, "monitoring", "POST", "/", metrics).0, 200);
    let (status, body) = send(&ann, "ebs", "POST", "/snapshots", r#"{"VolumeSize":1}"#);
    assert_eq!(status, 403, "{body}");
    // Tags of a new snapshot need their own right.
    let untagged = r#"{"VolumeSize":3}"#;
    put(&root, "eve", r#"[{"Effect":"Allow","Action":"ebs:*","Resource":"*"}]"#);
    assert_eq!(send(&eve, "ebs", "POST", "/snapshots", untagged).0, 201);
    let (status, body) = send(&eve, "ebs", "POST", "/snapshots", start);
    assert!(status == 403 && body.contains("ec2:CreateTags"), "{status} {body}");
    // Another signature than that of the same request before.
    let start = r#"{"VolumeSize":2,"Tags":[{"Key":"team","Value":"blue"}]}"#;
    let (status, body) = send(&ann, "ebs", "POST", "/snapshots", start);
    assert_eq!(status, 201, "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let blocks = format!("/snapshots/{}/blocks", body["SnapshotId"].as_str().unwrap());
    assert_eq!(send(&ann, "ebs", "GET", &blocks, "").0, 403);
    server.stop().unwrap();
}
