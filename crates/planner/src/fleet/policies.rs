//! The policy of each volume of a fleet, with the prices of its region.

use super::{List, Policy, Volume};
use crate::price_sources::PriceSources;
use crate::prices::ListPrices;
use crate::refusal::{Cause, Refusal};
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
    ///
    /// # Errors
    /// If no region has prices, if prices are those of a price book, or if their currencies differ.
    pub fn of(usual: &Policy, prices: &PriceSources, list: &List) -> Result<Self, Refusal> {
        let usage = |message: String| Refusal::new(message).cause(Cause::Question);
        if prices.has_book() {
            let message = "--prices names a price book, and a fleet is one of EBS";
            return Err(usage(message.to_owned()).hint("name a price list of AWS"));
        }
        let regions: BTreeSet<String> =
            list.volumes.iter().map(|volume| volume.price_region.clone()).collect();
        prices.check_used(&regions)?;
        let mut by_region = BTreeMap::new();
        let mut currencies = BTreeSet::new();
        for region in regions {
            let policy = match prices.list(&region) {
                Ok(prices) => {
                    currencies.insert(prices.list().currency().to_owned());
                    Ok(Policy { prices, ..usual.clone() })
                }
                Err(refusal) => Err(refusal),
            };
            by_region.insert(region, policy);
        }
        if let Some(refusal) = all_failed(&by_region) {
            return Err(refusal);
        }
        if currencies.len() > 1 {
            let names: Vec<String> = currencies.into_iter().collect();
            let message = format!("the price lists are in {}", names.join(" and in "));
            return Err(usage(message).hint("judge the regions of each currency by themselves"));
        }
        let reason = |refusal: Refusal| match refusal.hint {
            Some(hint) => format!("{}: {hint}", refusal.message),
            None => refusal.message,
        };
        let by_region = by_region.into_iter();
        Ok(Self {
            by_region: by_region.map(|(name, policy)| (name, policy.map_err(reason))).collect(),
            usual: usual.clone(),
            currency: currencies.pop_first().unwrap_or_else(|| "USD".to_owned()),
        })
    }

    /// Returns the policy of a volume.
    ///
    /// # Errors
    /// If its region has none: the reason.
    ///
    /// # Panics
    /// If the volume is not of the list.
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
fn all_failed(by_region: &BTreeMap<String, Result<Policy, Refusal>>) -> Option<Refusal> {
    let mut reasons = by_region.values().filter_map(|policy| policy.as_ref().err());
    let first = reasons.next()?;
    let is_all = by_region.values().all(Result::is_err);
    is_all.then(|| {
        let refusal = Refusal::new(first.message.clone()).cause(Cause::Question);
        match &first.hint {
            Some(hint) => refusal.hint(hint.clone()),
            None => refusal,
        }
    })
}
