//! The policy of each volume of a fleet, with the prices of its region.

use crate::cli::FleetPolicy;
use crate::cmd::plan::prices::Given;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_planner::fleet::{List, Policy, Volume};
use evenkeel_planner::prices::ListPrices;
use std::collections::{BTreeMap, BTreeSet};

/// The policy of each region.
pub struct Policies {
    by_region: BTreeMap<String, Result<Policy, String>>,
    /// The policy without the prices of a region.
    pub usual: Policy,
    /// The name of the currency of all prices.
    pub currency: String,
}

impl Policies {
    /// Creates the policies of the regions whose prices apply to a list.
    pub fn of(usual: &Policy, arguments: &FleetPolicy, list: &List) -> Result<Self, Failure> {
        let usage = |message: String| Failure::new(message).exit(Exit::Usage);
        let priced = &arguments.priced;
        let given = Given::read(&priced.prices, &priced.discount, arguments.as_of)?;
        if given.has_book() {
            let message = "--prices names a price book, and a fleet is one of EBS";
            return Err(usage(message.to_owned()).hint("name a price list of AWS"));
        }
        let regions: BTreeSet<String> =
            list.volumes.iter().map(|volume| volume.price_region.clone()).collect();
        given.check_used(&regions)?;
        let mut by_region = BTreeMap::new();
        let mut currencies = BTreeSet::new();
        for region in regions {
            let policy = match given.list(&region) {
                Ok(prices) => {
                    currencies.insert(prices.list().currency().to_owned());
                    Ok(Policy { prices, ..usual.clone() })
                }
                Err(failure) => Err(failure),
            };
            by_region.insert(region, policy);
        }
        if let Some(failure) = all_failed(&by_region) {
            return Err(failure);
        }
        if currencies.len() > 1 {
            let names: Vec<String> = currencies.into_iter().collect();
            let message = format!("the price lists are in {}", names.join(" and in "));
            return Err(usage(message).hint("judge the regions of each currency by themselves"));
        }
        let reason = |failure: Failure| match failure.hint {
            Some(hint) => format!("{}: {hint}", failure.message),
            None => failure.message,
        };
        let by_region = by_region.into_iter();
        Ok(Self {
            by_region: by_region.map(|(name, policy)| (name, policy.map_err(reason))).collect(),
            usual: usual.clone(),
            currency: currencies.pop_first().unwrap_or_else(|| "USD".to_owned()),
        })
    }

    /// Returns the policy of a volume, or why its region has none.
    pub fn policy(&self, volume: &Volume) -> Result<&Policy, String> {
        let policy = self.by_region.get(&volume.price_region);
        policy.expect("invariant: each region of the list").as_ref().map_err(String::clone)
    }

    /// Returns the price lists that apply, by region.
    pub fn lists(&self) -> impl Iterator<Item = &ListPrices> {
        self.by_region.values().flatten().map(|policy| &policy.prices)
    }
}

/// Returns the error of the first region if no region has prices.
fn all_failed(by_region: &BTreeMap<String, Result<Policy, Failure>>) -> Option<Failure> {
    let mut reasons = by_region.values().filter_map(|policy| policy.as_ref().err());
    let first = reasons.next()?;
    let is_all = by_region.values().all(Result::is_err);
    is_all.then(|| {
        let failure = Failure::new(first.message.clone()).exit(Exit::Usage);
        match &first.hint {
            Some(hint) => failure.hint(hint.clone()),
            None => failure,
        }
    })
}
