//! What an answer says of what it leaves out: types without a price, instances.

use super::input::Case;
use evenkeel_core::volume::VolumeType;
use evenkeel_planner::answer::Rated;
use evenkeel_planner::prices::Prices;
use evenkeel_planner::search::{self, Space, Wanted};

/// The notes of an answer.
pub fn of(case: &Case, wanted: &Wanted, rated: &[Rated]) -> Vec<String> {
    let (space, mut notes) = (&case.space, Vec::new());
    let without = space.unpriced(wanted);
    if !without.is_empty() {
        notes.push(unpriced(space, &without));
    }
    if space.instances.len() > 1 {
        notes.push("instances have no price here: costs are those of the volumes".to_owned());
        notes.extend(unfit(case, wanted, rated));
    }
    notes
}

/// That types have no price.
pub fn unpriced(space: &Space, types: &[VolumeType]) -> String {
    let names: Vec<String> = types.iter().map(ToString::to_string).collect();
    let (names, are) = (
        names.join(", "),
        if types.len() == 1 { "it is no candidate" } else { "they are no candidates" },
    );
    match &space.prices {
        Prices::List(prices) => {
            let (region, date) = (prices.list().region(), prices.list().date());
            format!("no price of {names} in {region} is known for {date}: {are}")
        }
        Prices::Book(_) => format!("no device of the price book carries {names}: {are}"),
    }
}

/// The instances on which no layout does what is wanted. Those that are merely behind all that is
/// listed are not.
fn unfit(case: &Case, wanted: &Wanted, rated: &[Rated]) -> Option<String> {
    let is_listed = |name: &str| {
        rated.iter().any(|it| it.found.layout.instance.is_some_and(|it| it.name == name))
    };
    let unlisted = case.space.instances.iter().filter(|it| !is_listed(it.name));
    let unfit = unlisted.filter(|instance| {
        let alone = Space { instances: vec![*instance], ..case.space.clone() };
        search::cheapest_few(&alone, &case.demand, wanted, 1).is_empty()
    });
    let names: Vec<&str> = unfit.map(|it| it.name).collect();
    (!names.is_empty()).then(|| format!("no layout does what is wanted on {}", names.join(", ")))
}
