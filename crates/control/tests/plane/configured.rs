//! Settings of the API by the operator: account, region, rate.

use std::sync::Arc;

use crate::support;
use crate::support::{Server, config_with, create, text};
use evenkeel_control::Settings;
use evenkeel_wire::aws::query;

const ACCOUNT: &str = "123456789012";

fn with(settings: Settings) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_with(config_with(folder.path(), settings), Arc::default()).unwrap();
    (folder, server)
}

#[test]
fn everything_belongs_to_the_account_that_was_named() {
    let (_folder, server) = with(Settings { account: ACCOUNT.into(), ..Settings::default() });
    let client = server.client();
    let volume = create(&client, &[]);
    let made = client.call("CreateSnapshot", &[("VolumeId", &volume)]).unwrap();
    assert_eq!(text(&made, "ownerId"), ACCOUNT);
    let count = |owner: &str| {
        let found = client.call("DescribeSnapshots", &[("Owner.1", owner)]).unwrap();
        found.items("snapshotSet").len()
    };
    assert_eq!((count(ACCOUNT), count("self"), count("000000000000")), (1, 1, 0));
    let filter = [("Filter.1.Name", "owner-id"), ("Filter.1.Value.1", ACCOUNT)];
    let found = client.call("DescribeInstances", &filter).unwrap();
    assert_eq!(text(&found.items("reservationSet")[0], "ownerId"), ACCOUNT);
}

#[test]
fn zone_ids_abbreviate_the_region_as_ec2_does() {
    for (region, zone_id) in [
        ("us-east-1", "use1-az1"),
        ("ap-southeast-2", "apse2-az1"),
        ("ca-central-1", "cac1-az1"),
        ("us-gov-west-1", "usgw1-az1"),
        ("local-1", "local1-az1"),
    ] {
        let settings = Settings { region: region.into(), any_region: true, ..Settings::default() };
        let (_folder, server) = with(settings);
        let client = server.client();
        let by_id = [("ZoneId.1", zone_id)];
        let zones = client.call("DescribeAvailabilityZones", &by_id).unwrap();
        let zone = &zones.items("availabilityZoneInfo")[0];
        assert_eq!((text(zone, "zoneId"), text(zone, "groupLongName")), (zone_id, region));
        let of_zone = [("AvailabilityZoneId", zone_id), ("Size", "1")];
        let made = client.call("CreateVolume", &of_zone).unwrap();
        assert_eq!(text(&made, "availabilityZoneId"), zone_id);
    }
}

#[test]
fn any_region_may_be_signed_for_if_the_operator_says_so() {
    // Clients sign for local-1.
    let elsewhere = || Settings { region: "eu-west-9".into(), ..Settings::default() };
    let (_folder, server) = with(elsewhere());
    let refused = server.client().call("DescribeRegions", &[]).unwrap_err();
    assert_eq!((refused.status, refused.code.as_str()), (403, "SignatureDoesNotMatch"));
    let (_folder, server) = with(Settings { any_region: true, ..elsewhere() });
    let mut client = server.client();
    let regions = client.call("DescribeRegions", &[]).unwrap();
    assert_eq!(text(&regions.items("regionInfo")[0], "regionName"), "eu-west-9");
    client.credentials.secret_access_key.push('x');
    let refused = client.call("DescribeRegions", &[]).unwrap_err();
    assert_eq!(refused.code, "SignatureDoesNotMatch");
}

#[test]
fn requests_for_another_host_are_refused() {
    let with_names = |names: &[&str]| {
        let api_hosts = names.iter().map(|name| (*name).to_owned()).collect();
        with(Settings { api_hosts, ..Settings::default() })
    };
    let status = |server: &Server, host: &str, target: &str| {
        let headers = [("host".to_owned(), host.to_owned())];
        server.client().send("GET", target, &headers, b"").status
    };
    let (_folder, server) = with_names(&[]);
    // Refused before the signature is checked, so without one.
    let targets = ["/metrics", "/?Action=X", "/snapshots/snap-1/blocks", "/service/x"];
    for target in targets {
        assert_eq!(status(&server, "evil.example", target), 421, "{target}");
        assert_ne!(status(&server, "localhost:1", target), 421, "{target}");
    }
    assert_eq!(status(&server, "evil.example", "/healthz"), 200);
    // A request signed for another server is valid for that one only.
    let client = server.client();
    let body = query::encode([("Action", "DescribeRegions"), ("Version", "2016-11-15")]);
    let send = |server: &Server, host: &str| {
        let mut headers = client.signed_for(host, &body);
        headers.retain(|(name, _)| name != "content-length");
        let mut to = server.client();
        to.address = server.address;
        to.send("POST", "/", &headers, body.as_bytes())
    };
    assert_eq!(send(&server, &client.address.to_string()).status, 200);
    let refused = send(&server, "other.example:8650");
    assert_eq!(refused.status, 421);
    assert!(refused.body.contains("InvalidHost") && refused.body.contains("--api-host"));
    let (_folder, server) = with_names(&["Other.example"]);
    assert_eq!(status(&server, "other.example:8650", "/metrics"), 200);
    assert_eq!(status(&server, "127.0.0.1", "/metrics"), 200);
    assert_eq!(status(&server, "third.example", "/metrics"), 421);
}

#[test]
fn the_rate_counts_requests_of_every_api() {
    let (_folder, server) = with(Settings { api_rate: Some(1), ..Settings::default() });
    let client = server.client();
    let cloudwatch = query::encode([("Action", "ListMetrics"), ("Version", "2010-08-01")]);
    let snapshot = "/snapshots/snap-00000000000000007/blocks";
    let sts = query::encode([("Action", "GetCallerIdentity"), ("Version", "2011-06-15")]);
    let cases: [(&str, &str, &str, &str); 3] = [
        ("monitoring", "POST", "/", &cloudwatch),
        ("ebs", "GET", snapshot, ""),
        ("sts", "POST", "/", &sts),
    ];
    for (service, method, target, body) in cases {
        let send = || {
            let headers = client.signed_as(service, method, target, body);
            client.send(method, target, &headers, body.as_bytes())
        };
        // The bucket holds two, and a slow machine lets a few more through.
        let refused = (0..300).map(|_| send()).find(|answer| answer.body.contains("--api-rate"));
        assert!(refused.is_some(), "{service}");
    }
}

#[test]
fn more_requests_than_the_rate_are_refused_and_the_others_are_answered() {
    let (_folder, server) = with(Settings { api_rate: Some(5), ..Settings::default() });
    let client = server.client();
    let body = query::encode([("Action", "DescribeRegions"), ("Version", "2016-11-15")]);
    let send = || {
        let headers = client.signed_headers(&body, support::unix_s());
        client.send("POST", "/", &headers, body.as_bytes())
    };
    let answers: Vec<_> = (0..200).map(|_| send()).collect();
    let answered = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(answered >= 10, "the bucket holds two seconds of requests: {answered}");
    let refused = answers.iter().find(|answer| answer.status == 503).unwrap();
    assert!(refused.body.contains("RequestLimitExceeded"), "{}", refused.body);
    assert!(refused.body.contains("--api-rate"), "{}", refused.body);
    // A request that is not authentic takes no token, and gets its own error.
    let stranger = client.send("POST", "/", &[], body.as_bytes());
    assert_eq!(stranger.status, 403);
}
