//! The budgets of modifications, attachments and money.

use super::facts::{Change, Check, Facts, Member, Rule};
use super::{Brake, Braked, words};
use crate::autopilot::observation::Modification;
use crate::autopilot::operation::Operation;
use crate::format;
use crate::trace::Clock;

/// Hours of the month by which prices count.
const HOURS_OF_MONTH: u128 = 720;
/// The least cost whose multiple a raise may cost, in millionths of the currency: a larger multiple
/// of less is little money.
const FACTOR_OF_MICRO_MIN: u64 = 1_000_000;

/// Returns the brakes of a change.
pub fn of(facts: &Facts<'_>, change: &Change) -> Vec<Braked> {
    let checks: [Check; 6] = [modifications, cooldown, slots, money, factor, saving];
    let found = checks.into_iter().filter_map(|check| check(facts, change));
    found.map(|(brake, reason)| Braked::of(brake, change, reason)).collect()
}

/// Returns the volume whose modification a change needs; `None` if it needs none.
fn modified<'a>(facts: &Facts<'a>, change: &Change) -> Option<Member<'a>> {
    match &change.operation {
        Operation::Modify { volume, from, to } if from != to => facts.member(volume),
        _ => None,
    }
}

/// Returns the number of modifications of a volume in the last 24 hours, or in the shorter day of
/// a trial.
pub fn used(facts: &Facts<'_>, member: Member<'_>) -> u32 {
    // The times are those of the API, and the clock of the host may be early.
    let skew_ms = facts.now.ages.clock_skew_ms.unwrap_or(0);
    let day_ms = facts.policy.day_ms().saturating_add(skew_ms);
    let from_ms = facts.now.unix_ms.saturating_sub(day_ms);
    let recent = member.volume.modified_ms.iter().filter(|ms| **ms > from_ms || from_ms == 0);
    u32::try_from(recent.count()).expect("invariant: fewer than the bytes of an observation")
}

/// Returns the number of modifications in 24 hours that a change may reach.
fn allowed(facts: &Facts<'_>, change: &Change) -> u32 {
    let budget = &facts.policy.budget;
    let kept = match (change.rule, change.is_emergency) {
        (Rule::Undo, _) => 0,
        (_, true) => budget.kept_for_undo,
        (_, false) => budget.kept_for_undo.saturating_add(budget.kept_for_emergency),
    };
    budget.modifications_per_day.saturating_sub(kept)
}

fn modifications(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let member = modified(facts, change)?;
    let used = used(facts, member);
    let allowed = allowed(facts, change);
    (used >= allowed).then(|| {
        let most = facts.policy.budget.modifications_per_day;
        let id = &member.volume.id;
        let reason = format!(
            "{id} was modified {used} times in 24 h: {allowed} of {most} are for such a change, \
             the others are kept for an undo and an emergency"
        );
        (Brake::Modifications, reason)
    })
}

fn cooldown(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let volume = modified(facts, change)?.volume;
    if let Some(from_ms) = volume.modifiable_from_ms.filter(|ms| *ms > facts.now.unix_ms) {
        let from = format::at(Clock::Unix, from_ms);
        let reason = format!("{} can be modified from {from} on", volume.id);
        return Some((Brake::Cooldown, reason));
    }
    let state = match volume.modification? {
        Modification::Modifying => "modifying",
        Modification::Optimizing => "optimizing",
        Modification::Completed | Modification::Failed => return None,
    };
    Some((Brake::Cooldown, format!("the last modification of {} is {state}", volume.id)))
}

fn slots(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let instance = facts.now.instance.as_ref()?;
    let is_new = matches!(change.operation, Operation::Add { .. } | Operation::Replace { .. });
    (is_new && instance.free_slots == 0).then(|| {
        let reason =
            format!("no attachment is free on {} ({})", instance.id, instance.instance_type);
        (Brake::Slots, reason)
    })
}

fn money(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    if change.rule == Rule::Delete {
        return None;
    }
    let Some(after) = facts.monthly_after(&change.operation) else {
        let list = facts.policy.plan.prices.list();
        let reason =
            format!("the price list of {} has no price of {}", list.region(), change.words());
        return Some((Brake::Money, reason));
    };
    let before = facts.monthly_before();
    // Less is never refused: the cap is of what is asked for more.
    let more = after.checked_sub(before).filter(|more| *more > 0)?;
    let budget = &facts.policy.budget;
    let account = facts.now.account;
    let caps = [
        ("the file system", budget.monthly_micro_max, before),
        ("the group", budget.group_monthly_micro_max, account.group_monthly_micro.max(before)),
        ("the fleet", budget.fleet_monthly_micro_max, account.fleet_monthly_micro.max(before)),
    ];
    for (name, cap, spent) in caps {
        let Some(cap) = cap else { continue };
        let sum = spent.saturating_add(more);
        if sum > cap {
            let sum = facts.money(sum);
            let cap = facts.money(cap);
            let reason = format!("{name} would cost {sum} a month, more than its cap of {cap}");
            return Some((Brake::Money, reason));
        }
    }
    None
}

/// A limit of a type may be passed only by a type that costs a hundred times as much. A person
/// decides about that, also without caps.
fn factor(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let Operation::Modify { volume, from, to } = &change.operation else { return None };
    if change.rule != Rule::Raise {
        return None;
    }
    let before = facts.monthly(from)?;
    let after = facts.monthly(to)?;
    let times = facts.policy.budget.cost_factor_max;
    let most = before.max(FACTOR_OF_MICRO_MIN).saturating_mul(times.into());
    (after > most).then(|| {
        let reason = format!(
            "{volume} would cost {} a month as {}, and costs {} now: cost_factor_max = {times} \
             allows {}, and no cheaper modification carries it; a stripe with a further volume \
             like it has twice its limits for {} more",
            facts.money(after),
            words::spec(to),
            facts.money(before),
            facts.money(most),
            facts.money(before),
        );
        (Brake::Money, reason)
    })
}

/// Returns whether a change keeps all limits of money.
pub fn is_affordable(facts: &Facts<'_>, change: &Change) -> bool {
    money(facts, change).is_none() && factor(facts, change).is_none()
}

fn saving(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    if !matches!(change.rule, Rule::Shrink | Rule::Lower) {
        return None;
    }
    let before = facts.monthly_before();
    let after = facts.monthly_after(&change.operation)?;
    let saving = before.saturating_sub(after);
    let budget = &facts.policy.budget;
    if saving < budget.saving_micro_min || saving == 0 {
        let saving = facts.money(saving);
        let least = facts.money(budget.saving_micro_min);
        let reason = format!("it saves {saving} a month, and must save {least}");
        return Some((Brake::Saving, reason));
    }
    let cost = move_cost(facts, change);
    let least = cost.saturating_mul(budget.saving_times_min.into());
    (saving < least).then(|| {
        let times = budget.saving_times_min;
        let saving = facts.money(saving);
        let cost = facts.money(cost);
        let reason =
            format!("it saves {saving} a month, less than {times} times its own cost of {cost}");
        (Brake::Saving, reason)
    })
}

/// Returns the cost of a move: the volume that leaves costs as before until its grace time ends.
fn move_cost(facts: &Facts<'_>, change: &Change) -> u64 {
    let (Operation::Remove { volume } | Operation::Replace { volume, .. }) = &change.operation
    else {
        return 0;
    };
    let Some(member) = facts.member(volume) else { return 0 };
    let pace = super::pace_bytes_per_s(facts.policy, facts.now).max(1);
    let move_hours = member.device.allocated_bytes / pace / 3_600 + 1;
    let hours = move_hours.saturating_add(facts.policy.budget.grace_hours.into());
    let monthly = u128::from(facts.monthly(&member.volume.spec).unwrap_or(0));
    let cost = monthly * u128::from(hours) / HOURS_OF_MONTH;
    u64::try_from(cost.min(u64::MAX.into())).expect("invariant: at most u64::MAX")
}
