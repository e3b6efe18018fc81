//! `evenkeel plan fleet`: what to change in a fleet of volumes.

mod commands;
mod evidence;
mod files;
mod json;
mod regions;
mod text;

use super::input;
use crate::cli::{FleetPolicy, PlanFleet, RiskMax};
pub use commands::endpoint_region;
use evenkeel_client::output::{self, Exit, Failure, Format};
use evenkeel_core::price::PriceList;
use evenkeel_planner::fleet::totals::Totals;
use evenkeel_planner::fleet::{Judged, List, Policy, Risk, Volume, list};
use regions::Policies;
use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;

pub fn run(arguments: &PlanFleet, region: Option<&str>, format: Format) -> Result<(), Failure> {
    let policy = policy(&arguments.policy)?;
    let mut list = volumes(&arguments.volumes, &policy, arguments.allow_partial)?;
    if let Some(region) = region {
        set_region(&mut list, region);
    }
    let policies = Policies::of(&policy, &arguments.policy, region, &list)?;
    let ids: BTreeMap<&str, usize> =
        list.volumes.iter().map(|volume| volume.id.as_str()).zip(0..).collect();
    let (files, mut left_out) = match &arguments.metrics {
        Some(folder) => files::find(folder, &ids)?,
        None => (Vec::new(), Vec::new()),
    };
    let groups = files::groups(&files, list.volumes.len());
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.map_or_else(available, usize::from);
    let fleet = evidence::Fleet {
        policies: &policies,
        volumes: &list.volumes,
        ids: &ids,
        files: &files,
        allows_partial: arguments.allow_partial,
    };
    let outcome = fleet.judge(&groups, jobs);
    left_out.extend(outcome.left_out);
    let told = FleetAnswer {
        name: arguments.volumes.display().to_string(),
        policies: &policies,
        totals: Totals::of(&outcome.judged),
        list: &list,
        judged: &outcome.judged,
        left_out: &left_out,
    };
    if let Some(path) = &arguments.commands {
        evenkeel_lab::files::write_whole(
            path,
            &commands::script(&told, risk_max(arguments.risk_max)),
        )?;
    }
    match format {
        Format::Text => output::print(&text::text(&told, arguments.top as usize)),
        Format::Csv => output::print(&text::csv(&told)),
        Format::Json => output::print(&output::json(&json::json_of(&told))),
    }
}

/// Sets the region of volumes without one, except those of a server of ours: commands for it name
/// its own region.
fn set_region(list: &mut List, region: &str) {
    for volume in &mut list.volumes {
        if volume.region.is_none() && volume.zone.is_none() {
            volume.region = Some(region.to_owned());
        }
    }
}

/// What an answer is made of.
struct FleetAnswer<'a> {
    /// The file of the list.
    name: String,
    policies: &'a Policies,
    totals: Totals,
    list: &'a List,
    /// In the order of the list.
    judged: &'a [Judged],
    /// What was left out of the metrics.
    left_out: &'a [String],
}

impl FleetAnswer<'_> {
    fn all(&self) -> impl Iterator<Item = (&Volume, &Judged)> {
        self.list.volumes.iter().zip(self.judged)
    }
}

const fn risk_max(most: RiskMax) -> Risk {
    match most {
        RiskMax::None => Risk::None,
        RiskMax::Low => Risk::Low,
        RiskMax::Medium => Risk::Medium,
        RiskMax::High => Risk::High,
    }
}

fn policy(arguments: &FleetPolicy) -> Result<Policy, Failure> {
    let rules = input::rules_of(arguments.as_of)?;
    if rules.modify_rules().is_none() {
        let message = format!("by the rules of {} no volume can be changed in place", rules.date());
        return Err(Failure::new(message)
            .exit(Exit::Usage)
            .hint("volumes can be changed since 2017-02: choose a later --as-of"));
    }
    Ok(Policy {
        rules,
        prices: PriceList::newest().into(),
        types: arguments.types.clone(),
        less_durable: arguments.less_durable,
        assume: input::assume(arguments.assume),
        headroom_percent: arguments.headroom,
        days_min: arguments.days_min,
        gaps_percent_max: arguments.gaps_max,
        throttled_s_per_day: arguments.throttled,
    })
}

fn volumes(path: &Path, policy: &Policy, allows_partial: bool) -> Result<List, Failure> {
    let name = path.display();
    let input =
        crate::cmd::input(path).map_err(|error| Failure::new(format!("{name}: {error}")))?;
    list::read(&mut BufReader::new(input), policy.rules, allows_partial)
        .map_err(|broken| Failure::new(format!("{name}: {broken}")))
}
