//! `evenkeel plan fleet`: changes of a fleet of volumes.

mod evidence;
mod files;
mod used;

use super::{failure, input, of_file, prices, unopened, write_page};
use crate::cli::{FleetPolicy, PlanFleet, PlanFormat, PlanOutput, RiskMax};
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_core::price::PriceList;
use evenkeel_planner::case::rules_of;
use evenkeel_planner::fleet::answer::{FleetAnswer, Script, script};
use evenkeel_planner::fleet::evidence::Fleet;
use evenkeel_planner::fleet::files::groups;
use evenkeel_planner::fleet::hosts::Host;
use evenkeel_planner::fleet::policies::Policies;
use evenkeel_planner::fleet::totals::{Sum, Totals};
use evenkeel_planner::fleet::{List, Options, Policy, Reason, Refused, Risk, hosts, list};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;

/// The hint for volumes whose region is not known.
const GIVE_ZONES: &str = "or give a list with the column AvailabilityZone, as `aws ec2 \
                          describe-volumes` prints it";

pub fn run(arguments: &PlanFleet, region: Option<&str>, format: PlanFormat) -> Result<(), Failure> {
    let policy = policy(&arguments.policy)?;
    let mut list = volumes(arguments, &policy, region).map_err(of_file)?;
    let mut left_out = used::fill(&arguments.used, &mut list).map_err(of_file)?;
    let types = arguments.instances.as_deref().map(instance_types).transpose().map_err(of_file)?;
    let types = types.unwrap_or_default();
    hosts::name_types(&mut list.volumes, &types);
    let prices = prices::read(&arguments.policy.priced, arguments.policy.as_of)?;
    let policies = Policies::of(&policy, &prices, &list).map_err(failure)?;
    let ids: BTreeMap<&str, usize> =
        list.volumes.iter().map(|volume| volume.id.as_str()).zip(0..).collect();
    let (files, broken) = match &arguments.metrics {
        Some(folder) => files::find(folder, &ids).map_err(of_file)?,
        None => (Vec::new(), Vec::new()),
    };
    left_out.extend(broken);
    let groups = groups(&files, list.volumes.len());
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.map_or_else(available, usize::from);
    let fleet = Fleet { policies: &policies, volumes: &list.volumes, ids: &ids, files: &files };
    let mut outcome = evidence::judge(&fleet, &groups, jobs, arguments.allow_partial);
    left_out.extend(outcome.left_out);
    let all = list.volumes.iter().zip(&outcome.judged);
    let hosts = hosts::of(&policy, all, &types);
    hosts::warn(&list.volumes, &mut outcome.judged, &hosts);
    let script = arguments.commands.as_ref().map(|path| {
        let most = risk_max(arguments.risk_max);
        let executed = outcome.judged.iter().filter(|judged| judged.is_executed(most));
        Script { path: path.display().to_string(), most, executed: Sum::of(executed) }
    });
    let answer = FleetAnswer {
        name: arguments.volumes.display().to_string(),
        script,
        policies: &policies,
        totals: Totals::of(&outcome.judged),
        list: &list,
        judged: &outcome.judged,
        group_by: arguments.group_by.as_ref(),
        hosts: hosts.into_values().filter(Host::is_exceeded).collect(),
        unknown_types: hosts::unknown(&list.volumes, &types),
        left_out: &left_out,
    };
    if let (Some(path), Some(written)) = (&arguments.commands, &answer.script) {
        let wrote = evenkeel_lab::files::write_whole(path, &script::script(&answer, written));
        wrote.map_err(|error| of_file(error.into()))?;
    }
    let top = arguments.top as usize;
    if let Some(path) = &arguments.page.html {
        write_page(path, &answer.html(top).map_err(failure)?)?;
    }
    match format {
        PlanFormat::Text => output::print(&answer.text(top)),
        PlanFormat::Csv => output::print(&answer.csv()),
        PlanFormat::Json => output::print(&output::json(&answer.json())),
        PlanFormat::Html => output::print(&answer.html(top).map_err(failure)?),
        PlanFormat::Junit | PlanFormat::Markdown => Err(PlanOutput::no_verdict()),
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
    let rules = rules_of(arguments.as_of).map_err(failure)?;
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
        free_percent: arguments.free,
    })
}

/// Reads the types of instances by their ids.
fn instance_types(path: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let name = path.display();
    let hint = "`aws ec2 describe-instances > instances.json` writes one";
    let input = crate::cmd::input(path).map_err(|error| unopened(path, &error, hint))?;
    let types = hosts::read(&mut BufReader::new(input));
    types.map_err(|broken| Failure::new(format!("{name}: {broken}")))
}

/// Reads the list; at least one of its volumes can be judged.
fn volumes(arguments: &PlanFleet, policy: &Policy, region: Option<&str>) -> Result<List, Failure> {
    let path = &arguments.volumes;
    let name = path.display();
    let hint = "`aws ec2 describe-volumes > volumes.json` writes one";
    let input = crate::cmd::input(path).map_err(|error| unopened(path, &error, hint))?;
    let options = Options {
        region,
        group_by: arguments.group_by.as_ref(),
        allows_partial: arguments.allow_partial,
    };
    let list = list::read(&mut BufReader::new(input), policy.rules, options);
    let list = list.map_err(|broken| Failure::new(format!("{name}: {broken}")))?;
    match list.refused.first().filter(|_| list.volumes.is_empty()) {
        Some(first) => Err(none_is_read(&name.to_string(), first)),
        None => Ok(list),
    }
}

/// The error of a list of which each volume is refused.
fn none_is_read(name: &str, first: &Refused) -> Failure {
    let Refused { place, reason, .. } = first;
    let failure = Failure::new(format!("{name}: no volume can be read; {place}: {reason}"));
    match reason {
        Reason::NoRegion(_) => failure.exit(Exit::Usage).hint(GIVE_ZONES),
        Reason::Other(_) => failure,
    }
}
