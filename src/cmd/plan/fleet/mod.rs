//! `evenkeel plan fleet`: changes of a fleet of volumes.

mod commands;
mod copies;
mod evidence;
mod files;
mod html;
mod json;
mod regions;
mod text;
mod used;

use super::input;
use crate::cli::{FleetPolicy, PlanFleet, PlanFormat, PlanOutput, RiskMax};
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_core::price::PriceList;
use evenkeel_planner::fleet::hosts::Host;
use evenkeel_planner::fleet::totals::{Sum, Totals};
use evenkeel_planner::fleet::{
    Action, Finding, GroupBy, Judged, List, Options, Policy, Reason, Refused, Risk, Volume, hosts,
    list,
};
use regions::Policies;
use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;

/// The hint for volumes whose region is not known.
const GIVE_ZONES: &str = "or give a list with the column AvailabilityZone, as `aws ec2 \
                          describe-volumes` prints it";

pub fn run(arguments: &PlanFleet, region: Option<&str>, format: PlanFormat) -> Result<(), Failure> {
    let policy = policy(&arguments.policy)?;
    let mut list = volumes(arguments, &policy, region)?;
    let mut left_out = used::fill(&arguments.used, &mut list)?;
    let types = arguments.instances.as_deref().map(instance_types).transpose()?;
    let policies = Policies::of(&policy, &arguments.policy, &list)?;
    let ids: BTreeMap<&str, usize> =
        list.volumes.iter().map(|volume| volume.id.as_str()).zip(0..).collect();
    let (files, broken) = match &arguments.metrics {
        Some(folder) => files::find(folder, &ids)?,
        None => (Vec::new(), Vec::new()),
    };
    left_out.extend(broken);
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
    let mut outcome = fleet.judge(&groups, jobs);
    left_out.extend(outcome.left_out);
    let all = list.volumes.iter().zip(&outcome.judged);
    let hosts = hosts::of(&policy, all, &types.unwrap_or_default());
    hosts::warn(&list.volumes, &mut outcome.judged, &hosts);
    let script = arguments.commands.as_ref().map(|path| {
        let most = risk_max(arguments.risk_max);
        let executed = outcome.judged.iter().filter(|judged| judged.is_executed(most));
        Script { path: path.display().to_string(), most, executed: Sum::of(executed) }
    });
    let told = FleetAnswer {
        name: arguments.volumes.display().to_string(),
        script,
        policies: &policies,
        totals: Totals::of(&outcome.judged),
        list: &list,
        judged: &outcome.judged,
        group_by: arguments.group_by.as_ref(),
        hosts: hosts.into_values().filter(Host::is_exceeded).collect(),
        left_out: &left_out,
    };
    if let (Some(path), Some(script)) = (&arguments.commands, &told.script) {
        evenkeel_lab::files::write_whole(path, &commands::script(&told, script))?;
    }
    let top = arguments.top as usize;
    if let Some(path) = &arguments.page.html {
        evenkeel_lab::files::write(path, &html::page(&told, top)?)?;
    }
    match format {
        PlanFormat::Text => output::print(&text::text(&told, top)),
        PlanFormat::Csv => output::print(&text::csv(&told)),
        PlanFormat::Json => output::print(&output::json(&json::json_of(&told))),
        PlanFormat::Html => output::print(&html::page(&told, top)?),
        PlanFormat::Junit | PlanFormat::Markdown => Err(PlanOutput::no_verdict()),
    }
}

/// The parts of an answer.
struct FleetAnswer<'a> {
    /// The file of the list.
    name: String,
    /// The script with the commands, if one is written.
    script: Option<Script>,
    policies: &'a Policies,
    totals: Totals,
    list: &'a List,
    /// The judgements, in the order of the list.
    judged: &'a [Judged],
    /// The property by whose values volumes are added up.
    group_by: Option<&'a GroupBy>,
    /// The instances whose limits their volumes exceed.
    hosts: Vec<Host>,
    /// Parts of the metrics that are not used, with the reasons.
    left_out: &'a [String],
}

/// The script with the commands of all changes.
struct Script {
    /// Its file.
    path: String,
    /// The highest risk of a change whose command is not a comment.
    most: Risk,
    /// The sum over the volumes whose commands are not comments.
    executed: Sum,
}

/// The cost of snapshots of the volumes that are to be deleted.
struct Snapshots<'a> {
    /// The most that they cost a month, in millionths; `None` if none of them has a price.
    most_micros: Option<u64>,
    /// GiB of volumes in regions whose lists have no price of snapshots.
    unpriced_gib: BTreeMap<&'a str, u64>,
}

/// Volumes whose cost is not in the sums.
struct Missing {
    /// Volumes that are refused.
    refused: usize,
    /// Volumes without a price.
    unpriced: usize,
}

impl FleetAnswer<'_> {
    /// Returns the cost of snapshots of the volumes that are to be deleted; `None` without any.
    fn snapshots(&self) -> Option<Snapshots<'_>> {
        let mut all = Snapshots { most_micros: None, unpriced_gib: BTreeMap::new() };
        for (volume, judged) in self.all().filter(|(_, judged)| judged.action == Action::Delete) {
            let gib = u64::from(judged.present.size_gib);
            match judged.snapshot_at_most {
                Some(most) => {
                    let sum = all.most_micros.get_or_insert(0);
                    *sum = sum.saturating_add(most);
                }
                None => *all.unpriced_gib.entry(&volume.price_region).or_insert(0) += gib,
            }
        }
        (all.most_micros.is_some() || !all.unpriced_gib.is_empty()).then_some(all)
    }

    /// Returns the sums of each group, by its name; volumes without a value have the name `-`.
    fn groups(&self) -> BTreeMap<&str, Totals> {
        let mut groups: BTreeMap<&str, Totals> = BTreeMap::new();
        for (volume, judged) in self.all().filter(|_| self.group_by.is_some()) {
            groups.entry(volume.group.as_deref().unwrap_or("-")).or_default().add(judged);
        }
        groups
    }

    /// Counts the volumes whose cost is not in the sums.
    fn missing(&self) -> Missing {
        let is_unpriced =
            |judged: &&Judged| judged.finding() == Finding::NotJudged && judged.before == 0;
        Missing {
            refused: self.list.refused.len(),
            unpriced: self.judged.iter().filter(is_unpriced).count(),
        }
    }

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
        free_percent: arguments.free,
    })
}

/// Reads the types of instances by their ids.
fn instance_types(path: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let name = path.display();
    let input =
        crate::cmd::input(path).map_err(|error| Failure::new(format!("{name}: {error}")))?;
    let types = hosts::read(&mut BufReader::new(input));
    types.map_err(|broken| Failure::new(format!("{name}: {broken}")))
}

/// Reads the list; at least one of its volumes can be judged.
fn volumes(arguments: &PlanFleet, policy: &Policy, region: Option<&str>) -> Result<List, Failure> {
    let path = &arguments.volumes;
    let name = path.display();
    let input =
        crate::cmd::input(path).map_err(|error| Failure::new(format!("{name}: {error}")))?;
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
