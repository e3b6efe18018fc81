//! The verbs, one file each.

use crate::cli::{self, Cli, DemoVerb, Verb};
use evenkeel_cli::man::completions;
use evenkeel_client::output::Failure;
use std::path::Path;

mod agent;
mod audit;
mod autopilot;
mod calibrate;
mod capacity;
mod capacity_plan;
mod clock;
mod demo;
mod demo_ceph;
mod demo_cluster;
mod doctor;
mod env;
mod events;
mod export;
mod fault;
mod health;
mod host;
mod man;
mod migrate;
mod node;
mod plan;
mod prove;
mod record;
mod recording;
mod report;
pub mod serve;
mod sim;
pub mod snapshot;
mod store;
mod tls;
mod top;
pub mod volume;

/// Executes the verb of the command line.
pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.verb {
        Verb::Serve(arguments) => serve::run(&arguments),
        Verb::Demo(arguments) => match &arguments.verb {
            None => demo::run(&arguments),
            Some(DemoVerb::Ceph(ceph)) => demo_ceph::run(ceph),
            Some(DemoVerb::Cluster(cluster)) => demo_cluster::run(cluster),
        },
        Verb::Env(arguments) => env::run(&arguments),
        Verb::Volume(arguments) => volume::run(&arguments),
        Verb::Snapshot(arguments) => snapshot::run(&arguments),
        Verb::Host(arguments) => host::run(&arguments),
        Verb::Node(arguments) => node::run(&arguments),
        Verb::Clock(arguments) => clock::run(&arguments),
        Verb::Fault(arguments) => fault::run(&arguments),
        Verb::Calibrate(arguments) => calibrate::run(&arguments),
        Verb::Tls(arguments) => tls::run(&arguments),
        Verb::Store(arguments) => store::run(&arguments),
        Verb::Top(arguments) => top::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Events(arguments) => events::run(&arguments),
        Verb::Audit(arguments) => audit::run(&arguments),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Health(arguments) => health::run(&arguments),
        Verb::Sim(arguments) => sim::run(&arguments),
        Verb::Plan(arguments) => plan::run(&arguments),
        Verb::Capacity(arguments) => capacity_plan::run(&arguments),
        Verb::Record(arguments) => record::run(&arguments),
        Verb::Autopilot(arguments) => autopilot::run(&arguments),
        Verb::Agent(arguments) => agent::run(&arguments),
        Verb::Prove(arguments) => prove::run(&arguments),
        Verb::Completions(arguments) => completions(cli::command(), &arguments),
        Verb::Man(arguments) => man::run(&arguments),
    }
}

/// Opens a path, or standard input for `-`.
fn input(path: &Path) -> std::io::Result<Box<dyn std::io::Read>> {
    Ok(match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path)?),
    })
}
