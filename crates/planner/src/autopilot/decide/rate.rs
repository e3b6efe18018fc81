//! The rules of IOPS, MiB/s and the type: to the planner's answer, up at once, down after a second
//! confirmation and under watch.

use evenkeel_core::units::GIB;
use evenkeel_core::volume::VolumeSpec;

use super::brakes::is_within;
use super::facts::{Change, Facts, Member, Rule, percent};
use super::words;
use super::{Brake, Braked, Decision, budget, instance};
use crate::autopilot::evidence::{JUDGEMENTS_A_DAY_MAX, NOT_RECORDED, Proposal, throttled_s};
use crate::autopilot::observation::{Observation, Volume};
use crate::autopilot::operation::Operation;
use crate::autopilot::policy::{Policy, Schedule};
use crate::autopilot::state::{Axis, Candidate, State, same_rates};
use crate::fleet::alternatives;
use crate::format;
use crate::trace::Clock;

/// Maximum number of candidates.
const CANDIDATES_MAX: usize = 256;

/// Counts the seconds of a watch in which requests waited, and ends it after its time.
pub fn count(policy: &Policy, now: &Observation, state: &mut State) {
    let Some(watch) = &mut state.watch else { return };
    let window_ms = u64::from(policy.rate.window_s.max(1)) * 1_000;
    if now.unix_ms.saturating_sub(watch.counted_ms) >= window_ms {
        watch.counted_ms = now.unix_ms;
        if let Operation::Modify { volume, .. } = &watch.undo {
            let volume = now.volumes.iter().find(|known| known.id == *volume);
            let exceeded_s = volume.and_then(|volume| volume.exceeded_s).unwrap_or(0);
            watch.exceeded_s = watch.exceeded_s.saturating_add(exceeded_s);
        }
        let flush = now.file_system.flush.filter(|flush| flush.count > 0);
        let is_slow = flush.is_some_and(|flush| flush.p99_ms > policy.brakes.flush_p99_ms)
            && now.file_system.running.is_none();
        watch.slow_windows = if is_slow { watch.slow_windows.saturating_add(1) } else { 0 };
    }
    if watch.until_ms <= now.unix_ms {
        state.watch = None;
    }
}

/// Remembers the lower limits that the evidence proposes, and forgets those that it does not
/// propose any more.
pub fn propose(policy: &Policy, now: &Observation, state: &mut State) {
    let Some(evidence) = &now.evidence else { return };
    let mut candidates = Vec::new();
    for judged in evidence.volumes.iter().take(CANDIDATES_MAX) {
        let known = state.candidates.iter().find(|candidate| candidate.volume == judged.volume);
        let volume = now.volumes.iter().find(|volume| volume.id == judged.volume);
        let proposal = judged.down.as_ref().filter(|_| policy.rate.is_managed);
        let Some((proposal, volume)) = proposal.zip(volume) else { continue };
        let spec = VolumeSpec { size_gib: volume.spec.size_gib, ..proposal.spec };
        // Limits that are not worth a modification wait for no confirmation: lower ones begin.
        let known = known.filter(|known| {
            known.spec.volume_type != volume.spec.volume_type
                || is_enough(policy, &volume.spec, &known.spec)
        });
        candidates.push(match known.filter(|known| known.spec.volume_type == spec.volume_type) {
            Some(known) => Candidate {
                spec: VolumeSpec {
                    iops: known.spec.iops.max(spec.iops),
                    throughput_mibps: known.spec.throughput_mibps.max(spec.throughput_mibps),
                    ..spec
                },
                until_ms: known.until_ms.max(evidence.made_ms),
                ..known.clone()
            },
            None => Candidate {
                volume: judged.volume.clone(),
                spec,
                since_ms: evidence.made_ms,
                until_ms: evidence.made_ms,
            },
        });
    }
    state.candidates = candidates;
}

/// Returns the change back if a watched change makes requests wait longer than the replay said.
pub fn undo(facts: &Facts<'_>) -> Option<Change> {
    let watch = facts.state.watch.as_ref()?;
    let Operation::Modify { volume, to, .. } = &watch.undo else { return None };
    let member = facts.member(volume)?;
    // Fewer seconds than those that raise a limit are no harm.
    let most = watch.exceeded_s_per_day_max.max(facts.policy.rate.exceeded_s_max);
    // The present window may overlap the last one that was counted, so they are not added.
    let waited = watch.exceeded_s.max(since_change(facts, watch.counted_ms, member.volume));
    let brakes = &facts.policy.brakes;
    let reason = if waited > most {
        format!(
            "undo: requests waited for {waited} s since the limits of {volume} were lowered, more \
             than the {most} s of the replay and the policy"
        )
    } else if brakes.cancel_after > 0 && watch.slow_windows >= brakes.cancel_after {
        format!(
            "undo: flushes were above {} ms in {} windows in a row since the limits of {volume} \
             were lowered",
            brakes.flush_p99_ms, watch.slow_windows
        )
    } else {
        return None;
    };
    let spec = member.volume.spec;
    let back = with_rates(facts, &spec, to)?;
    let operation = Operation::Modify { volume: volume.clone(), from: spec, to: back };
    Some(Change { is_emergency: true, ..Change::new(Rule::Undo, operation, reason) })
}

/// Returns the seconds of the present window in which requests waited, if all of it is after a
/// time.
fn since_change(facts: &Facts<'_>, counted_ms: u64, volume: &Volume) -> u32 {
    let passed_s = facts.now.unix_ms.saturating_sub(counted_ms) / 1_000;
    let exceeded_s = volume.exceeded_s.unwrap_or(0);
    // Seconds before the change are not counted.
    u64::from(exceeded_s).min(passed_s).try_into().expect("invariant: at most a u32")
}

/// Returns a volume with the type and limits of another, if a modification makes exactly it.
fn with_rates(facts: &Facts<'_>, from: &VolumeSpec, rates: &VolumeSpec) -> Option<VolumeSpec> {
    no_smaller(facts, from, &VolumeSpec { size_gib: from.size_gib, ..*rates })
}

/// Returns a volume with the type and limits of another, and as large as the larger of both, if a
/// modification makes exactly it.
fn no_smaller(facts: &Facts<'_>, from: &VolumeSpec, wanted: &VolumeSpec) -> Option<VolumeSpec> {
    let size_gib = from.size_gib.max(wanted.size_gib);
    let wanted = VolumeSpec { size_gib, multi_attach: from.multi_attach, ..*wanted };
    let rules = facts.policy.plan.rules;
    let to = rules.resolve(&wanted.request()).ok()?;
    (to != *from && alternatives::modified(&facts.policy.plan, from, &to).is_some()).then_some(to)
}

/// Returns the changes to more of volumes whose requests wait, or whose credits end.
pub fn raise(facts: &Facts<'_>, decision: &mut Decision) -> Vec<Change> {
    if !facts.policy.rate.is_managed {
        return Vec::new();
    }
    let mut changes = Vec::new();
    for member in &facts.members {
        let Some(reason) = trigger(facts, member) else { continue };
        match raised(facts, member, reason, decision) {
            Ok(change) => changes.push(change),
            Err((brake, reason)) => decision.brakes.push(up(brake, reason)),
        }
    }
    changes
}

fn up(brake: Brake, reason: String) -> Braked {
    Braked { brake, axis: Axis::Rate, is_up: true, reason }
}

/// Returns why a volume needs more.
fn trigger(facts: &Facts<'_>, member: &Member<'_>) -> Option<String> {
    let rate = &facts.policy.rate;
    let id = &member.volume.id;
    let exceeded_s = member.volume.exceeded_s.filter(|_| !is_window_older(facts, member));
    if let Some(exceeded_s) = exceeded_s.filter(|s| *s > rate.exceeded_s_max) {
        let window_s = rate.window_s;
        let most = rate.exceeded_s_max;
        return Some(format!(
            "a limit of {id} delayed requests in {exceeded_s} of {window_s} s, of at most {most}"
        ));
    }
    let judged = facts.judged(id).ok()?;
    let (near_s, far_s) = judged.credits_empty_s?;
    (near_s < rate.credits_s_min.into()).then(|| {
        let most = rate.credits_s_min;
        format!("the credits of {id} are empty in {near_s} to {far_s} s, and must last {most} s")
    })
}

/// Returns whether the window in which delayed requests are counted began before the last
/// modification of a volume: then it counts those that waited for other limits.
fn is_window_older(facts: &Facts<'_>, member: &Member<'_>) -> bool {
    let window_ms = u64::from(facts.policy.rate.window_s) * 1_000;
    let from_ms = facts.now.unix_ms.saturating_sub(window_ms);
    member.volume.modified_ms.iter().any(|modified_ms| *modified_ms > from_ms)
}

fn raised(
    facts: &Facts<'_>,
    member: &Member<'_>,
    trigger: String,
    decision: &mut Decision,
) -> Result<Change, (Brake, String)> {
    let judged = facts.judged(&member.volume.id);
    let waits = |reason: &str| {
        let next = next_judgement(facts);
        (Brake::Evidence, format!("{trigger}; {reason}; {next}"))
    };
    let judged = judged.map_err(|reason| waits(&reason))?;
    let Some(proposal) = &judged.up else {
        // The other reasons are about lower limits.
        let is_recorded = !judged.reasons.iter().any(|reason| reason == NOT_RECORDED);
        let carried = "the present limits carry what was judged of its last 24 h";
        return Err(waits(if is_recorded { carried } else { NOT_RECORDED }));
    };
    let spec = member.volume.spec;
    let invalid = || {
        let wanted = words::spec(&proposal.spec);
        (Brake::Evidence, format!("{trigger}; it cannot be modified to {wanted}"))
    };
    let wanted = no_less(&spec, proposal.spec);
    let to = no_smaller(facts, &spec, &wanted).ok_or_else(invalid)?;
    if !has_more(&spec, &to) {
        return Err(invalid());
    }
    let twice = stepped(facts, member, &to);
    let to = twice.unwrap_or(to);
    let carried = instance::carried(facts, &member.volume.id, &spec, to);
    let mut reason =
        format!("{trigger}; the planner's answer for its last 24 h is {}", words::spec(&wanted));
    if let Some(twice) = twice {
        let twice = words::spec(&twice);
        reason += &format!("; it was modified in the last 24 h, so the step is doubled: {twice}");
    }
    if let Some(words) = carried.reason {
        let id = &member.volume.id;
        decision.brakes.push(up(Brake::Instance, format!("{id}: {words}")));
        if !has_more(&spec, &carried.spec) {
            let reason = format!("{reason}, which the instance does not carry");
            return Err((Brake::Instance, reason));
        }
    }
    if let Some(note) = carried.note {
        reason += &format!("; {note}");
    }
    reason += &growth_words(facts, &spec, &carried.spec)
        .map_err(|words| (Brake::Limit, format!("{reason}{words}")))?;
    let mut change = Change::new(Rule::Raise, modification(member, carried.spec), reason);
    // Requests wait now: more is given back although less was taken lately, and less waits longer.
    change.is_emergency = super::brakes::opposed(facts, &change).is_some();
    Ok(change)
}

/// Returns when recordings are judged next while requests wait, and what a raise needs.
fn next_judgement(facts: &Facts<'_>) -> String {
    let policy = facts.policy;
    let made_ms = facts.now.evidence.as_ref().map(|evidence| evidence.made_ms);
    let next_ms = made_ms.map(|ms| ms.saturating_add(policy.day_ms() / JUDGEMENTS_A_DAY_MAX));
    let next = match next_ms {
        Some(next_ms) if next_ms > facts.now.unix_ms => {
            format!("the next judgement is at {}", format::at(Clock::Unix, next_ms))
        }
        Some(_) => "the next judgement is due".to_owned(),
        None => "the first judgement is due".to_owned(),
    };
    let least = throttled_s(policy);
    format!("{next}: a raise needs more than {least} s at a limit in the recording of 24 h")
}

/// Returns the words about the growth of a volume that has higher limits only if it is larger; none
/// if it keeps its size. It is an error if the file system would grow beyond its largest size.
fn growth_words(facts: &Facts<'_>, from: &VolumeSpec, to: &VolumeSpec) -> Result<String, String> {
    let more_gib = to.size_gib.saturating_sub(from.size_gib);
    if more_gib == 0 {
        return Ok(String::new());
    }
    let words = format!(
        "; the cheapest way is more than its {} GiB, since larger volumes of {} have more IOPS",
        from.size_gib, to.volume_type
    );
    let space = &facts.policy.space;
    if !space.grows_file_systems() {
        let kept = "the volume grows, the file system need not, and neither shrinks again";
        return Ok(format!("{words}: {kept}"));
    }
    let most = u64::from(space.gib_max).saturating_mul(GIB);
    let size = facts.now.file_system.size_bytes;
    let grown = size.saturating_add(u64::from(more_gib).saturating_mul(GIB));
    if grown > most {
        let grown = words::bytes(grown);
        let most = words::bytes(most);
        return Err(format!(
            "{words}: the file system would have {grown}, of at most {most} by gib_max"
        ));
    }
    Ok(format!("{words}: the volume and its file system grow"))
}

/// Returns a proposal with no less of a limit than a volume of its type has.
fn no_less(from: &VolumeSpec, to: VolumeSpec) -> VolumeSpec {
    if from.volume_type != to.volume_type {
        return to;
    }
    VolumeSpec {
        iops: to.iops.max(from.iops),
        throughput_mibps: to.throughput_mibps.max(from.throughput_mibps),
        ..to
    }
}

/// Returns limits that are above a volume's by twice the step if it was modified in the last 24
/// hours, as far as the type, the instance and the caps of money allow. A limit hides how much is
/// wanted, and a volume takes few modifications.
fn stepped(facts: &Facts<'_>, member: &Member<'_>, to: &VolumeSpec) -> Option<VolumeSpec> {
    let from = member.volume.spec;
    if from.volume_type != to.volume_type || budget::used(facts, *member) == 0 {
        return None;
    }
    let wanted = VolumeSpec {
        iops: twice_above(from.iops, to.iops),
        throughput_mibps: twice_above(from.throughput_mibps, to.throughput_mibps),
        ..*to
    };
    let twice = no_smaller(facts, &from, &wanted)?;
    let change = Change::new(Rule::Raise, modification(member, twice), String::new());
    let is_carried = instance::carried(facts, &member.volume.id, &from, twice).spec == twice;
    (is_carried && budget::is_affordable(facts, &change)).then_some(twice)
}

/// Returns a limit that is twice as far above another one.
fn twice_above(from: Option<u32>, to: Option<u32>) -> Option<u32> {
    let to = to?;
    Some(to.saturating_add(to.saturating_sub(from.unwrap_or(to))))
}

/// Returns whether a change has more of a limit.
fn has_more(from: &VolumeSpec, to: &VolumeSpec) -> bool {
    let more = |before: Option<u32>, after: Option<u32>| after > before;
    more(from.iops, to.iops)
        || more(from.throughput_mibps, to.throughput_mibps)
        || from.volume_type != to.volume_type
}

/// Returns the changes to less that are confirmed, and brakes those that are not.
pub fn lower(facts: &Facts<'_>, decision: &mut Decision) -> Vec<Change> {
    let mut changes = Vec::new();
    for candidate in &facts.state.candidates {
        let Some(member) = facts.member(&candidate.volume) else { continue };
        match lowered(facts, candidate, &member) {
            Ok(change) if is_enough(facts.policy, &member.volume.spec, &candidate.spec) => {
                changes.push(change);
            }
            Ok(change) => {
                let reason = format!("{}: a type changes only with another change", change.words());
                decision.brakes.push(Braked::of(Brake::Confirmation, &change, reason));
            }
            Err(Some((brake, reason))) => {
                decision.brakes.push(Braked { brake, axis: Axis::Rate, is_up: false, reason });
            }
            Err(None) => {}
        }
    }
    changes
}

/// Returns whether lower limits are low enough to be worth a modification.
fn is_enough(policy: &Policy, from: &VolumeSpec, to: &VolumeSpec) -> bool {
    let most = policy.rate.down_percent_max;
    let before = alternatives::Limits::of(&policy.plan, from);
    let after = alternatives::Limits::of(&policy.plan, to);
    let is_low = |before: Option<u64>, after: Option<u64>| {
        before.zip(after).is_some_and(|(before, after)| after <= percent(before, most))
    };
    is_low(before.iops, after.iops) || is_low(before.bytes, after.bytes)
}

/// Returns the change to a candidate, or why it waits; without a reason if there is nothing to
/// change.
fn lowered(
    facts: &Facts<'_>,
    candidate: &Candidate,
    member: &Member<'_>,
) -> Result<Change, Option<(Brake, String)>> {
    let id = &candidate.volume;
    let judged = facts.judged(id).map_err(|reason| Some((Brake::Evidence, reason)))?;
    if let Some(reason) = judged.reasons.first() {
        return Err(Some((Brake::Evidence, format!("{id}: {reason}"))));
    }
    let proposal = judged.down.as_ref().ok_or(None)?;
    let spec = member.volume.spec;
    let to = with_rates(facts, &spec, &candidate.spec).ok_or(None)?;
    if trigger(facts, member).is_some() || judged.up.is_some() {
        let reason = format!("{id}: requests wait, or the last 24 h need more");
        return Err(Some((Brake::Evidence, reason)));
    }
    if floor(facts, member, &to) {
        let reason = format!("{id}: a schedule wants more now");
        return Err(Some((Brake::Evidence, reason)));
    }
    if let Some(watch) = &facts.state.watch {
        let until = format::at(Clock::Unix, watch.until_ms);
        let reason = format!("{id}: the last lower limits are watched until {until}");
        return Err(Some((Brake::Confirmation, reason)));
    }
    let is_same_type = candidate.spec.volume_type == spec.volume_type;
    if is_same_type && !is_enough(facts.policy, &spec, &candidate.spec) {
        let most = facts.policy.rate.down_percent_max;
        let reason = format!(
            "{} carries its recording, and is not at most {most} % of {}",
            words::spec(&candidate.spec),
            words::spec(&spec)
        );
        return Err(Some((Brake::Saving, reason)));
    }
    let confirm_ms = u64::from(facts.policy.rate.confirm_s) * 1_000;
    let waited_ms = candidate.until_ms.saturating_sub(candidate.since_ms);
    if waited_ms < confirm_ms {
        let waited = evenkeel_sim::text::span(waited_ms / 1_000);
        let confirm = evenkeel_sim::text::span(confirm_ms / 1_000);
        let reason = format!(
            "{id}: {} waits for its second confirmation: {waited} of {confirm} have passed",
            words::spec(&to)
        );
        return Err(Some((Brake::Confirmation, reason)));
    }
    Ok(change_to_less(member, to, proposal))
}

fn change_to_less(member: &Member<'_>, to: VolumeSpec, proposal: &Proposal) -> Change {
    let id = &member.volume.id;
    let seconds = proposal.exceeded_s_per_day_max;
    let reason = format!(
        "{} carries the recording of {id}, taken pessimistically and with the headroom, with at \
         most {seconds} s a day in which requests wait; it was confirmed twice",
        words::spec(&to)
    );
    let change = Change::new(Rule::Lower, modification(member, to), reason);
    Change { exceeded_s_per_day_max: Some(seconds), ..change }
}

/// Returns the modification of a member's volume.
fn modification(member: &Member<'_>, to: VolumeSpec) -> Operation {
    Operation::Modify { volume: member.volume.id.clone(), from: member.volume.spec, to }
}

/// Returns whether lower limits of a volume are below what a schedule asks for now.
fn floor(facts: &Facts<'_>, member: &Member<'_>, to: &VolumeSpec) -> bool {
    let due = facts.policy.schedules.iter().filter(|schedule| is_due(facts, schedule));
    let floors: Vec<&Schedule> = due.collect();
    if floors.is_empty() {
        return false;
    }
    let sum = |of: fn(&VolumeSpec) -> Option<u32>| {
        facts.members.iter().fold(0_u64, |sum, other| {
            let spec =
                if other.device.devid == member.device.devid { to } else { &other.volume.spec };
            sum.saturating_add(of(spec).unwrap_or(0).into())
        })
    };
    let iops = sum(|spec| spec.iops);
    let mibps = sum(|spec| spec.throughput_mibps);
    floors.iter().any(|schedule| {
        schedule.iops_min.is_some_and(|least| iops < least.into())
            || schedule.mibps_min.is_some_and(|least| mibps < least.into())
    })
}

/// Returns whether the time of a schedule is now, or within the time that a change takes.
fn is_due(facts: &Facts<'_>, schedule: &Schedule) -> bool {
    let now_ms = facts.now.unix_ms;
    let soon_ms = now_ms.saturating_add(u64::from(facts.policy.space.actuation_s) * 1_000);
    is_within(&schedule.window, now_ms) || is_within(&schedule.window, soon_ms)
}

/// Returns the changes that schedules ask for, and those back after their time.
pub fn schedules(facts: &Facts<'_>, decision: &mut Decision) -> Vec<Change> {
    let due: Vec<&Schedule> =
        facts.policy.schedules.iter().filter(|schedule| is_due(facts, schedule)).collect();
    let least = |of: fn(&Schedule) -> Option<u32>| {
        due.iter().filter_map(|schedule| of(schedule)).max().unwrap_or(0)
    };
    let iops_min = least(|schedule| schedule.iops_min);
    let mibps_min = least(|schedule| schedule.mibps_min);
    if iops_min == 0 && mibps_min == 0 {
        let ended = facts.state.scheduled.iter();
        return ended.filter_map(|scheduled| restored(facts, scheduled)).collect();
    }
    let sum = |of: fn(&VolumeSpec) -> Option<u32>| {
        let all =
            facts.members.iter().map(|member| u64::from(of(&member.volume.spec).unwrap_or(0)));
        all.fold(0_u64, u64::saturating_add)
    };
    let short = |least: u32, sum: u64| super::facts::narrow(u64::from(least).saturating_sub(sum));
    let iops = short(iops_min, sum(|spec| spec.iops));
    let mibps = short(mibps_min, sum(|spec| spec.throughput_mibps));
    if iops == 0 && mibps == 0 {
        return Vec::new();
    }
    let raised = facts.members.iter().filter_map(|member| {
        let spec = member.volume.spec;
        let wanted = VolumeSpec {
            iops: spec.iops.map(|now| now.saturating_add(iops)),
            throughput_mibps: spec.throughput_mibps.map(|now| now.saturating_add(mibps)),
            ..spec
        };
        Some((member, with_rates(facts, &spec, &wanted)?))
    });
    let Some((member, to)) = raised.into_iter().next() else {
        let reason = format!("no volume can have {iops} IOPS and {mibps} MiB/s more by a schedule");
        decision.brakes.push(up(Brake::Limit, reason));
        return Vec::new();
    };
    let spec = member.volume.spec;
    let carried = instance::carried(facts, &member.volume.id, &spec, to);
    if let Some(reason) = carried.reason {
        decision.brakes.push(up(Brake::Instance, format!("{}: {reason}", member.volume.id)));
    }
    if carried.spec == spec {
        return Vec::new();
    }
    let reason = format!("a schedule wants {iops_min} IOPS and {mibps_min} MiB/s now");
    vec![Change::new(Rule::Scheduled, modification(member, carried.spec), reason)]
}

/// Returns the change back after the time of a schedule.
fn restored(facts: &Facts<'_>, scheduled: &crate::autopilot::state::Scheduled) -> Option<Change> {
    let member = facts.member(&scheduled.volume)?;
    let spec = member.volume.spec;
    let to = with_rates(facts, &spec, &scheduled.before)?;
    let reason = format!("the time of a schedule is over: {} was there before", words::spec(&to));
    Some(Change::new(Rule::Ended, modification(&member, to), reason))
}

/// Returns a change with all that the rules ask for of the same volume in one call. The changes
/// that it takes up are removed from `rest`.
pub fn merged(facts: &Facts<'_>, chosen: Change, rest: &mut Vec<Change>) -> Change {
    let Operation::Modify { volume, from, to } = &chosen.operation else { return chosen };
    if chosen.rule != Rule::Grow || from == to {
        return chosen;
    }
    let mut to = *to;
    let mut merged = chosen.clone();
    // The changes of a schedule are remembered by themselves, to be taken back.
    let is_same = |change: &Change| match &change.operation {
        Operation::Modify { volume: other, .. } => {
            other == volume && !matches!(change.rule, Rule::Scheduled | Rule::Ended)
        }
        _ => false,
    };
    let mut taken: Vec<Change> = Vec::new();
    rest.retain(|change| {
        let is_taken = is_same(change) && taken.is_empty();
        if is_taken {
            taken.push(change.clone());
        }
        !is_taken
    });
    if taken.is_empty() {
        taken.extend(with_type(facts, volume));
    }
    for change in taken {
        let Operation::Modify { to: rates, .. } = &change.operation else { continue };
        let wanted = VolumeSpec { size_gib: to.size_gib.max(rates.size_gib), ..*rates };
        let Ok(both) = facts.policy.plan.rules.resolve(&wanted.request()) else {
            rest.push(change);
            continue;
        };
        to = both;
        merged.is_emergency |= change.is_emergency;
        merged.exceeded_s_per_day_max = change.exceeded_s_per_day_max;
        merged.reason += &format!("; in the same call: {}", change.reason);
    }
    merged.operation = Operation::Modify { volume: volume.clone(), from: *from, to };
    if super::budget::is_affordable(facts, &merged) { merged } else { chosen }
}

/// Returns the change of the type of a volume that waits for another one.
fn with_type(facts: &Facts<'_>, volume: &str) -> Option<Change> {
    let candidate = facts.state.candidates.iter().find(|candidate| candidate.volume == volume)?;
    let member = facts.member(volume)?;
    let change = lowered(facts, candidate, &member).ok()?;
    let is_type = candidate.spec.volume_type != member.volume.spec.volume_type;
    let mut braked = super::brakes::of(facts, &change);
    braked.retain(|braked| braked.brake != Brake::Busy);
    (is_type && !same_rates(&member.volume.spec, &candidate.spec) && braked.is_empty())
        .then_some(change)
}
