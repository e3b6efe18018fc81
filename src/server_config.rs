//! The configuration of a server that the flags of `evenkeel serve` describe.

use crate::cli::{self, FEEL_SEED, Feel, Quota, Serve};
use evenkeel_cli::tls::NbdListen;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_control::model::zones::ZONES_MAX;
use evenkeel_control::{AccountQuotas, ModifyPolicy, Settings};
use evenkeel_core::qos::admission::{Figure, Oversell};
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{Rules, VolumeType};
use evenkeel_engine::UnixAccess;
use evenkeel_server::cluster::Cluster;
use evenkeel_server::store_options::StoreOptions;
use evenkeel_server::transport::Transport;
use evenkeel_server::{Config, accounts, events};
use std::collections::BTreeMap;

/// Returns the configuration that the flags describe.
pub fn of(arguments: &Serve) -> Result<Config, Failure> {
    let data_dir = std::path::absolute(&arguments.data_dir)
        .map_err(|error| Failure::new(format!("{}: {error}", arguments.data_dir.display())))?;
    let cluster = Cluster::of(&arguments.etcd, &arguments.store)?;
    let store_options = StoreOptions::of(&arguments.local, &arguments.rbd, &arguments.store)?;
    test_server(arguments)?;
    let nbd_unix = arguments.nbd_unix.clone().unwrap_or_else(|| data_dir.join("nbd.sock"));
    Ok(Config {
        data_dir,
        listen: arguments.listen,
        nbd_listen: NbdListen::only_addresses("nbd-listen", &arguments.nbd_listen)?,
        transport: Transport::of(&arguments.tls, cluster.is_some())?,
        nbd_unix: Some(nbd_unix),
        unix_access: unix_access(arguments)?,
        settings: settings(arguments)?,
        background_mibps: arguments.background_rate,
        metrics_space: ByteCount(u64::from(arguments.metrics_space) << 20),
        webhooks: events::webhooks(
            &arguments.events_webhook,
            arguments.events_webhook_secret_file.as_deref(),
        )?,
        store: arguments.store,
        store_options,
        cluster,
        calibrate: arguments.calibrate,
        guarantee: !arguments.no_guarantee,
        io: arguments.io,
        priority: arguments.data_plane_priority,
        cores: arguments.cores.unwrap_or_else(evenkeel_server::cores),
        recorder: None,
        is_test: arguments.test.test_server,
        feel_seed: arguments.test.feel.map(|Feel::Ebs| arguments.test.feel_seed),
    })
}

/// Checks that a server for tests serves this machine only, and alone. Everyone with the keys can
/// change its time, and nodes of a cluster must agree about the time.
fn test_server(arguments: &Serve) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::new(text).exit(Exit::Usage));
    if arguments.test.feel.is_none() && arguments.test.feel_seed != FEEL_SEED {
        return refused(
            "feel-seed: without feel there are no latencies to choose; set feel to ebs beside it, \
             or leave feel-seed out"
                .to_owned(),
        );
    }
    if !arguments.test.test_server {
        return match arguments.test.feel {
            None => Ok(()),
            Some(Feel::Ebs) => refused(
                "feel: only a server for tests delays its answers; set test-server beside it, or \
                 leave feel out"
                    .to_owned(),
            ),
        };
    }
    if !arguments.etcd.etcd.is_empty() {
        return refused(
            "test-server: a server for tests is no node of a cluster; leave test-server or etcd \
             out"
            .to_owned(),
        );
    }
    let nbd = NbdListen::addresses(&arguments.nbd_listen).into_iter();
    let encrypted = NbdListen::addresses(&arguments.tls.nbd_tls_listen).into_iter();
    let named = nbd
        .map(|address| ("nbd-listen", address))
        .chain(encrypted.map(|address| ("nbd-tls-listen", address)))
        .chain([("listen", arguments.listen)]);
    let mut outside = named.filter(|(_, address)| !address.ip().to_canonical().is_loopback());
    match outside.next() {
        Some((name, address)) => refused(format!(
            "test-server: {name} is {address}, which other machines can reach, and a server for \
             tests serves this one only; choose an address of 127.0.0.0/8 or ::1, or leave \
             test-server out"
        )),
        None => Ok(()),
    }
}

/// Returns the zones, if each is named once and there are not too many.
fn zones(names: &[String]) -> Result<Vec<String>, Failure> {
    let refused = |text: String| Err(Failure::new(text).exit(Exit::Usage));
    if names.len() > ZONES_MAX {
        let count = names.len();
        return refused(format!(
            "--zone names {count} zones, and a server has {ZONES_MAX} at most"
        ));
    }
    if names.is_empty() {
        return refused("--zone names no zone; name one at least, such as local-1a".to_owned());
    }
    let is_twice = |(at, name): &(usize, &String)| names[..*at].contains(name);
    match names.iter().enumerate().find(is_twice) {
        Some((_, name)) => refused(format!("--zone names '{name}' twice; name each zone once")),
        None => Ok(names.to_vec()),
    }
}

/// Returns the settings of the control plane.
fn settings(arguments: &Serve) -> Result<Settings, Failure> {
    let rules = match arguments.as_of {
        None => Rules::newest(),
        Some(date) => {
            Rules::as_of(date).map_err(|error| Failure::new(error.to_string()).exit(Exit::Usage))?
        }
    };
    Ok(Settings {
        region: arguments.region.clone(),
        zones: zones(&arguments.zone)?,
        account: arguments.account.clone(),
        any_region: arguments.any_region,
        api_hosts: arguments.api_host.clone(),
        api_rate: arguments.api_rate,
        key: None,
        recycle_bin_days: arguments.recycle_bin_days,
        record_days: arguments.record_days,
        rules,
        modify_policy: match arguments.modify_policy {
            cli::ModifyPolicy::Immediate => ModifyPolicy::Immediate,
            cli::ModifyPolicy::Aws => ModifyPolicy::Aws,
            cli::ModifyPolicy::Aws2026 => ModifyPolicy::Aws2026,
            cli::ModifyPolicy::AwsClassic => ModifyPolicy::AwsClassic,
        },
        quotas: arguments.quotas.contains(&Quota::Ec2).then_some(&evenkeel_core::quota::EC2),
        account_quotas: account_quotas(&arguments.quotas)?,
        figure: figure(arguments)?,
        oversell: oversell(arguments)?,
        space_oversell: arguments.oversell_space,
    })
}

/// Returns the quotas of the account, if each is given once.
fn account_quotas(listed: &[Quota]) -> Result<AccountQuotas, Failure> {
    let refused = |text: &str| Err(Failure::new(text).exit(Exit::Usage));
    let mut quotas = AccountQuotas::default();
    for quota in listed {
        let (name, place, amount) = match quota {
            Quota::None if listed.len() > 1 => {
                return refused("quotas: none stands beside a quota; leave one of them out");
            }
            Quota::None | Quota::Ec2 => continue,
            Quota::Iops(iops) => ("iops", &mut quotas.iops, iops),
            Quota::Throughput(mibps) => ("throughput", &mut quotas.mibps, mibps),
            Quota::Size(gib) => ("size", &mut quotas.gib, gib),
        };
        if place.replace(u64::from(*amount)).is_some() {
            return refused(&format!("quotas: {name} has two amounts; give it one"));
        }
    }
    Ok(quotas)
}

/// Returns the users that may use the unix socket.
fn unix_access(arguments: &Serve) -> Result<UnixAccess, Failure> {
    let user = |text: &String| accounts::user("nbd-unix-users", text);
    let group = |text: &String| accounts::group("nbd-unix-group", text);
    Ok(UnixAccess {
        users: arguments.nbd_unix_users.iter().map(user).collect::<Result<_, _>>()?,
        group: arguments.nbd_unix_group.as_ref().map(group).transpose()?,
    })
}

/// Returns the figure of the two flags together.
fn figure(arguments: &Serve) -> Result<Option<Figure>, Failure> {
    let usage = |message: String| Failure::new(message).exit(Exit::Usage);
    let (iops, mibps) = match (arguments.sell_iops, arguments.sell_throughput) {
        (None, None) => return Ok(None),
        (Some(iops), Some(mibps)) => (iops, mibps),
        (Some(_), None) => {
            return Err(usage("sell-iops: sell-throughput must be set beside it".to_owned()));
        }
        (None, Some(_)) => {
            return Err(usage("sell-throughput: sell-iops must be set beside it".to_owned()));
        }
    };
    let figure = Figure::new(iops, mibps);
    figure.map(Some).map_err(|error| usage(format!("sell-iops and sell-throughput: {error}")))
}

fn oversell(arguments: &Serve) -> Result<BTreeMap<VolumeType, Oversell>, Failure> {
    let mut factors = BTreeMap::new();
    for (volume_type, factor) in &arguments.oversell {
        if factors.insert(*volume_type, *factor).is_some() {
            let twice = format!("oversell: {volume_type} has two factors: give it one");
            return Err(Failure::new(twice).exit(Exit::Usage));
        }
    }
    Ok(factors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use std::net::TcpListener;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn zones_are_one_to_sixteen_different_names() {
        let names =
            |all: &[&str]| zones(&all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["b", "a"]).unwrap(), ["b", "a"]);
        let many: Vec<String> = (0..=ZONES_MAX).map(|number| number.to_string()).collect();
        assert!(zones(&many[1..]).is_ok());
        for (refused, reason) in [
            (zones(&many), "--zone names 17 zones, and a server has 16 at most"),
            (names(&["a", "b", "a"]), "--zone names 'a' twice; name each zone once"),
            (names(&[]), "--zone names no zone; name one at least, such as local-1a"),
        ] {
            assert!(refused.unwrap_err().to_string().contains(reason), "{reason}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_found_before_anything_is_measured() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        for options in [
            format!("--listen {address} --nbd-listen 127.0.0.1:0"),
            format!("--listen 127.0.0.1:0 --nbd-listen {address}"),
        ] {
            let data_dir = folder.path().join("data");
            let line = format!("evenkeel serve {options} --data-dir {}", data_dir.display());
            let cli = crate::cli::Cli::parse_from(line.split(' '));
            let cli::Verb::Serve(arguments) = cli.verb else { panic!("not serve") };
            let config = of(&arguments).unwrap();
            let is_stopped = AtomicBool::new(false);
            let refused = evenkeel_server::run(
                &config,
                &is_stopped,
                |_| panic!("it serves"),
                std::future::ready(()),
            );
            let message = refused.unwrap_err().message;
            assert!(message.contains(&format!("cannot listen on {address}")), "{message}");
            assert!(!data_dir.join("calibration.json").exists());
        }
    }

    #[test]
    fn a_server_for_tests_is_on_loopback_and_alone() {
        let checked = |line: &str| {
            let cli = cli::Cli::parse_from(line.split(' '));
            let cli::Verb::Serve(arguments) = cli.verb else { panic!("not serve") };
            test_server(&arguments)
        };
        for line in ["", " --listen [::1]:1", " --listen 127.5.5.5:0 --nbd-listen none"] {
            assert_eq!(checked(&format!("evenkeel serve --test-server{line}")), Ok(()), "{line}");
        }
        assert_eq!(checked("evenkeel serve --listen 0.0.0.0:1"), Ok(()));
        let usual = checked("evenkeel serve --feel ebs").unwrap_err();
        assert_eq!(usual.exit, Exit::Usage);
        assert!(usual.message.contains("set test-server beside it"), "{usual}");
        assert_eq!(checked("evenkeel serve --test-server --feel ebs --feel-seed 7"), Ok(()));
        let alone = checked("evenkeel serve --test-server --feel-seed 7").unwrap_err();
        assert!(alone.message.contains("set feel to ebs beside it"), "{alone}");
        for (line, reason) in [
            ("--listen 0.0.0.0:1", "listen is 0.0.0.0:1, which other machines can reach"),
            ("--nbd-listen 127.0.0.1:0,10.0.0.1:9", "nbd-listen is 10.0.0.1:9, which"),
            ("--nbd-tls-listen 10.0.0.1:9", "nbd-tls-listen is 10.0.0.1:9, which"),
            ("--store rbd --etcd http://127.0.0.1:2379", "is no node of a cluster"),
        ] {
            let refused = checked(&format!("evenkeel serve --test-server {line}")).unwrap_err();
            assert_eq!(refused.exit, Exit::Usage);
            assert!(refused.message.contains(reason), "{refused}");
        }
    }

    #[test]
    fn no_tcp_is_said_by_one_word_or_an_empty_list() {
        let listen = |line: &str| {
            let cli = cli::Cli::parse_from(line.split(' '));
            let cli::Verb::Serve(arguments) = cli.verb else { panic!("not serve") };
            NbdListen::only_addresses("nbd-listen", &arguments.nbd_listen)
        };
        assert_eq!(listen("evenkeel serve --nbd-listen none"), Ok(vec![]));
        assert_eq!(listen("evenkeel serve").unwrap().len(), 1);
        let both = listen("evenkeel serve --nbd-listen 127.0.0.1:1,none").unwrap_err();
        assert_eq!(both.exit, Exit::Usage);
    }
}
