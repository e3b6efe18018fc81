//! `evenkeel agent`: the autopilot on a host with file systems.

mod identity;

use super::plan::prices::named_region;
use crate::cli;
use evenkeel_autopilot::Fault;
use evenkeel_autopilot::agent::{Addresses, Agent, Commands, Config, Connector, Moment, Uri};
use evenkeel_autopilot::aws_cli::Aws;
use evenkeel_autopilot::cloud::Api;
use evenkeel_autopilot::cloud::aws::{Amazon, RIGHTS};
use evenkeel_autopilot::cloud::evenkeel::Evenkeel;
use evenkeel_cli::flags::Connection;
use evenkeel_cli::{connect, service, signals};
use evenkeel_client::endpoints::Endpoints;
use evenkeel_client::hosts;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::Rules;
use evenkeel_os::clock;
use evenkeel_planner::autopilot::PolicyFile;
use evenkeel_planner::fleet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// The longest time of a call of the AWS CLI.
const CALL_MAX: Duration = Duration::from_secs(60);
/// Time between two ticks at a server, and at AWS.
const EVERY: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(30)];

pub fn run(arguments: &cli::Agent) -> Result<(), Failure> {
    if arguments.print_policy {
        if arguments.aws {
            return output::print(PolicyFile::usual_text());
        }
        return output::print(&PolicyFile::server_text());
    }
    if arguments.print_rights {
        return output::print(RIGHTS);
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("evenkeel agent needs root: it changes mounted file systems")
            .exit(Exit::Usage)
            .hint("start it with sudo, or as a service of the system"));
    }
    let mut agent = Agent::open(config(arguments)?)?;
    if arguments.once {
        return agent.once();
    }
    let (told, stops) = sync_channel(1);
    signals::when_signalled(move |_| {
        service::stopping();
        told.send(()).is_ok()
    })?;
    agent.run(&stops)
}

/// Notifies the service manager.
fn notify(moment: Moment) {
    match moment {
        Moment::Ready | Moment::Reloaded => service::ready(),
        Moment::Reloading => service::reloading(),
        Moment::Alive => service::alive(),
    }
}

fn config(arguments: &cli::Agent) -> Result<Config, Failure> {
    let region = named_region(&arguments.connection);
    let aws = arguments.aws.then(|| Aws {
        profile: arguments.profile.clone(),
        region: region.map(str::to_owned),
        endpoint_url: arguments.endpoint_url.clone(),
        call_max: CALL_MAX,
    });
    let instance = match (&arguments.instance_id, &aws) {
        (Some(id), _) => id.clone(),
        (None, Some(_)) => identity::of_metadata()?,
        (None, None) => {
            hosts::local(&connect::client(&arguments.connection)?)
                .map_err(|failure| match failure.exit {
                    Exit::NotFound => failure.hint("name this host with --instance-id"),
                    _ => failure,
                })?
                .host_id
        }
    };
    let [own, amazon] = EVERY;
    let usual = if aws.is_some() { amazon } else { own };
    Ok(Config {
        notify: Box::new(notify),
        policy: arguments.policy.clone().unwrap_or_default(),
        plan: plan(region),
        mounts: mounts(arguments)?,
        folder: arguments.folder.clone(),
        instance,
        devices: devices(arguments)?,
        commands: Commands {
            attach: words(arguments.attach_command.as_deref()),
            detach: words(arguments.detach_command.as_deref()),
        },
        every: arguments.every.unwrap_or(usual),
        metrics: arguments.metrics_listen,
        addresses: addresses(aws.is_some(), &arguments.connection),
        connector: connector(aws, &arguments.connection),
    })
}

/// Returns the rules and prices by which recordings are judged. A group of the policy file may set
/// other types and another headroom.
fn plan(region: Option<&str>) -> fleet::Policy {
    let prices = region.and_then(|region| PriceList::in_region(region, None).ok());
    fleet::Policy::by(Rules::newest(), prices.unwrap_or(PriceList::newest()))
}

/// Returns the mount points, each of which is named once.
fn mounts(arguments: &cli::Agent) -> Result<Vec<std::path::PathBuf>, Failure> {
    let mut mounts = Vec::new();
    for mount in &arguments.mounts {
        if mounts.contains(mount) {
            let message = format!("--mount names {} twice: name it once", mount.display());
            return Err(Failure::new(message).exit(Exit::Usage));
        }
        mounts.push(mount.clone());
    }
    Ok(mounts)
}

fn devices(arguments: &cli::Agent) -> Result<BTreeMap<String, std::path::PathBuf>, Failure> {
    let mut devices = BTreeMap::new();
    for (device, volume) in &arguments.devices {
        if let Some(other) = devices.insert(volume.clone(), device.clone()) {
            let message = format!(
                "--device names two devices of {volume}: {} and {}",
                other.display(),
                device.display()
            );
            return Err(Failure::new(message).exit(Exit::Usage));
        }
    }
    Ok(devices)
}

fn words(command: Option<&str>) -> Vec<String> {
    command.into_iter().flat_map(str::split_whitespace).map(str::to_owned).collect()
}

fn connector(aws: Option<Aws>, connection: &Connection) -> Connector {
    let connection = connection.clone();
    Arc::new(move || {
        let api: Box<dyn Api + Send> = match &aws {
            Some(aws) => Box::new(Amazon::new(aws.clone(), || clock::unix_ms().0)),
            None => Box::new(Evenkeel::new(connect::client(&connection)?)),
        };
        Ok(api)
    })
}

/// Returns the addresses for the attach command. Volumes of AWS have none.
fn addresses(is_aws: bool, connection: &Connection) -> Addresses {
    let connection = connection.clone();
    Arc::new(move || {
        if is_aws {
            let none: Uri = Box::new(|_| Ok(String::new()));
            return Ok(none);
        }
        let client = connect::client(&connection)?;
        let uri: Uri = Box::new(move |volume| {
            let endpoints = Endpoints::of(&client);
            let endpoints = endpoints.map_err(|failure| Fault::Later(failure.message))?;
            endpoints
                .nearest(volume)
                .ok_or_else(|| Fault::Refused("the server has no address for NBD".to_owned()))
        });
        Ok(uri)
    })
}
