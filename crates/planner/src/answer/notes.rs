//! Notes of an answer: candidates that are left out, for want of a price or by an instance, and the
//! smaller layout that has room for the used space.

use super::{InBursts, Rated, asked};
use crate::case::Case;
use crate::fleet::{FREE_PERCENT, gib_with_free};
use crate::format::{currency, layout_words, money, money_more, no_price};
use crate::instances;
use crate::prices::{Prices, Unpriced};
use crate::search::{self, Space, Wanted, attachments_max};
use evenkeel_core::instance::InstanceType;
use evenkeel_core::units::GIB;
use evenkeel_core::volume::{IopsRule, TypeRules, VolumeType};

/// Returns the notes of an answer.
pub fn of(
    case: &Case,
    wanted: &Wanted,
    rated: &[Rated],
    in_bursts: Option<&InBursts>,
) -> Vec<String> {
    let space = &case.space;
    let mut notes = Vec::new();
    notes.extend(in_bursts.map(|bursts| bursts_words(case, bursts)));
    let without = space.unpriced(wanted);
    if !without.is_empty() {
        notes.push(unpriced(space, &without));
    }
    notes.extend(capped(case, wanted));
    notes.extend(without_nitro(case, wanted));
    notes.extend(attached(space, wanted));
    notes.extend(smaller(case, wanted, rated));
    if space.instances.len() > 1 {
        notes.push("instances have no price here: costs are those of the volumes".to_owned());
        notes.extend(unfit(case, wanted, rated));
    }
    notes
}

/// Returns the note about instances that take fewer volumes than are allowed.
fn attached(space: &Space, wanted: &Wanted) -> Option<String> {
    let beside = if wanted.boots { "" } else { " beside its root volume" };
    let words = space.instances.iter().filter_map(|instance| {
        let most = attachments_max(Some(*instance), wanted.boots);
        (most < space.volumes_max)
            .then(|| format!("{} takes at most {most} volumes{beside}", instance.name))
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Returns the note that a smaller layout has room for what the file systems use, if the trace says
/// what they use and it costs less than the cheapest one.
fn smaller(case: &Case, wanted: &Wanted, rated: &[Rated]) -> Option<String> {
    let used = case.trace.used_bytes_max()?;
    let capacity_gib = gib_with_free(used, FREE_PERCENT)?.max(1);
    if capacity_gib >= wanted.capacity_gib {
        return None;
    }
    let total = rated.first()?.found.total();
    let wanted =
        Wanted { capacity_gib, monthly_max: Some(total.checked_sub(1)?), ..wanted.clone() };
    let found = search::cheapest_few(&case.space, case.wanted_demand(), &wanted, 1).pop()?;
    Some(format!(
        "after a copy: the file systems use {} GiB, and with {FREE_PERCENT} % free {} has room for \
         them, for {} {} a month, {} less; no volume shrinks, so the files are copied",
        used.div_ceil(GIB),
        found.layout,
        money(found.total()),
        currency(case),
        money_more(total, found.total()).trim_start_matches('+'),
    ))
}

/// Returns the note about bursts within the steps of a trace: what they would cost, and which
/// recording shows them.
fn bursts_words(case: &Case, bursts: &InBursts) -> String {
    let carried = match &bursts.found {
        Some(found) => format!(
            "{} carries that for {} {} a month",
            layout_words(case, &found.layout),
            money(found.total()),
            currency(case)
        ),
        None => "no layout carries that".to_owned(),
    };
    let step = evenkeel_sim::text::span(case.trace.usual_step_ms().div_ceil(1_000));
    format!(
        "within its steps of {step} the trace has no times, and requests are taken to come evenly; \
         AT MOST takes them to come as fast as the device served them, and {carried}; a trace of \
         each request (blktrace, logs of fio) tells which"
    )
}

/// Returns the note that types have no price.
pub fn unpriced(space: &Space, types: &[VolumeType]) -> String {
    let names: Vec<String> = types.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    let are = if types.len() == 1 { "it is no candidate" } else { "they are no candidates" };
    match &space.prices {
        Prices::List(prices) => format!("{}: {are}", no_price(prices.list(), &names)),
        Prices::Book(_) => format!("no device of the price book carries {names}: {are}"),
    }
}

/// Returns a note for each type that has no price of as many IOPS as the busiest interval asks for.
pub fn capped(case: &Case, wanted: &Wanted) -> Vec<String> {
    let space = &case.space;
    let Prices::List(prices) = &space.prices else { return Vec::new() };
    let peak_iops = asked(case.wanted_demand()).peak_iops;
    let note = |rules: &TypeRules| {
        let IopsRule::Provisioned { max, .. } = rules.iops else { return None };
        let last = space.prices.iops_max(rules.volume_type);
        let matters =
            space.prices.has(rules.volume_type) && last < max && peak_iops > u64::from(last);
        let lacks = Unpriced::Iops(rules.volume_type, last).to_string();
        matters.then(|| format!("{}: they are no candidates", no_price(prices.list(), &lacks)))
    };
    space.suitable(wanted).filter_map(note).collect()
}

/// Returns a note for each instance that is not built on the Nitro System, if the busiest interval
/// asks for more IOPS than it achieves on a volume of a type.
pub fn without_nitro(case: &Case, wanted: &Wanted) -> Vec<String> {
    let peak_iops = asked(case.wanted_demand()).peak_iops;
    let note = |instance: &&InstanceType| {
        let limits = case.space.suitable(wanted).filter_map(|rules| {
            let most = instances::iops_max(Some(instance), rules.volume_type)?;
            (peak_iops > most.into())
                .then(|| format!("{most} on a volume of {}", rules.volume_type))
        });
        let limits: Vec<String> = limits.collect();
        let name = instance.name;
        (!limits.is_empty()).then(|| {
            let limits = limits.join(" and ");
            format!("{name} is not built on the Nitro System: IOPS are at most {limits}")
        })
    };
    case.space.instances.iter().filter_map(note).collect()
}

/// Returns the instances on which no layout does what is wanted. One that is only dearer than all
/// that are listed is not among them.
fn unfit(case: &Case, wanted: &Wanted, rated: &[Rated]) -> Option<String> {
    let is_listed = |name: &str| {
        let mut instances = rated.iter().filter_map(|rated| rated.found.layout.instance);
        instances.any(|instance| instance.name == name)
    };
    let all = case.space.instances.iter();
    let unlisted = all.filter(|instance| !is_listed(instance.name));
    let unfit = unlisted.filter(|instance| {
        let alone = Space { instances: vec![*instance], ..case.space.clone() };
        search::cheapest_few(&alone, case.wanted_demand(), wanted, 1).is_empty()
    });
    let names: Vec<&str> = unfit.map(|instance| instance.name).collect();
    (!names.is_empty()).then(|| format!("no layout does what is wanted on {}", names.join(", ")))
}
