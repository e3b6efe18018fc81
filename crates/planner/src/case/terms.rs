//! The terms of a question: the rules of a day, prices of a region, instances, number of volumes.

use crate::price_sources::PriceSources;
use crate::prices::Prices;
use crate::refusal::{Cause, Refusal};
use crate::search::{Space, Tolerance};
use crate::spread::Spread;
use evenkeel_core::instance::{self, InstanceType};
use evenkeel_core::volume::{Date, Rules, VolumeType};

/// Instance types of one plan: each is a search.
const INSTANCES_MAX: usize = 16;

/// The terms of a question, before the region of its prices is known.
pub struct Terms {
    /// The rules of the day.
    pub rules: &'static Rules,
    prices: PriceSources,
    spread: Spread,
    instances: Vec<&'static InstanceType>,
}

/// Returns the rules of a day, or the newest.
///
/// # Errors
/// If there were none on that day.
pub fn rules_of(day: Option<Date>) -> Result<&'static Rules, Refusal> {
    let Some(day) = day else { return Ok(Rules::newest()) };
    Rules::as_of(day).map_err(|error| Refusal::new(error.to_string()).cause(Cause::Question))
}

impl Terms {
    /// Creates terms of the rules of a day, or the newest. `names` are those of instance types.
    ///
    /// # Errors
    /// If there are no such rules or instance types.
    pub fn new(
        day: Option<Date>,
        prices: PriceSources,
        spread: Spread,
        names: &[String],
    ) -> Result<Self, Refusal> {
        Ok(Self { rules: rules_of(day)?, prices, spread, instances: instances(names)? })
    }

    /// Checks that at most one instance is named.
    ///
    /// # Errors
    /// If there are several.
    pub fn check_one_instance(&self) -> Result<(), Refusal> {
        match self.instances.len() {
            0 | 1 => Ok(()),
            count => {
                let message = format!("--instance names {count} types: a named layout is on one");
                Err(Refusal::new(message)
                    .cause(Cause::Question)
                    .hint("name one type, or let `evenkeel plan` choose among several"))
            }
        }
    }

    /// Returns the space of layouts at the prices of a region.
    ///
    /// # Errors
    /// If no prices of the region are known.
    pub fn space(
        self,
        region: &str,
        types: &[VolumeType],
        volumes_max: u32,
    ) -> Result<Space, Refusal> {
        // A type that is named twice is one type.
        let types = VolumeType::ALL.into_iter().filter(|named| types.contains(named)).collect();
        let prices = self.prices.of(region)?;
        // A price book is one of volumes of our own.
        let tolerance = match &prices {
            Prices::List(_) => Tolerance::None,
            Prices::Book(_) => Tolerance::Evenkeel,
        };
        Ok(Space {
            rules: self.rules,
            prices,
            tolerance,
            types,
            volumes_max,
            spread: self.spread,
            instances: self.instances,
        })
    }
}

/// Returns the instance types, each once, the weakest first: it is preferred at the same cost.
fn instances(names: &[String]) -> Result<Vec<&'static InstanceType>, Refusal> {
    let fail = |error: String| Refusal::new(error).cause(Cause::Question);
    if names.len() > INSTANCES_MAX {
        let message = format!("--instance names {} types: at most {INSTANCES_MAX}", names.len());
        return Err(fail(message));
    }
    let named = |name: &String| {
        instance::by_name(name).ok_or_else(|| {
            fail(format!("--instance {name:?} is no instance type with published EBS limits"))
        })
    };
    let mut all = names.iter().map(named).collect::<Result<Vec<_>, _>>()?;
    all.sort_by_key(|instance| {
        let InstanceType { baseline_mbps, baseline_iops, mbps_max, iops_max, name, .. } = *instance;
        (baseline_mbps, baseline_iops, mbps_max, iops_max, name)
    });
    all.dedup_by_key(|instance| instance.name);
    Ok(all)
}
