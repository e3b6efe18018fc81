//! The answer as JSON.

use super::text::{action_word, assume_word, unpriced};
use super::{FleetAnswer, Snapshots};
use crate::cmd::plan::json::{discounts_json, micro_key};
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::fleet::totals::Sum;
use evenkeel_planner::fleet::{Action, Finding, Judged, Risk, Volume};
use evenkeel_planner::prices::ListPrices;
use serde_json::{Map, Value, json};

pub fn json_of(told: &FleetAnswer<'_>) -> Value {
    let (policy, currency) = (&told.policies.usual, told.policies.currency.as_str());
    // With several regions, only `price_lists` has them.
    let mut lists = told.policies.lists();
    let list = lists.next().filter(|_| lists.next().is_none()).map(ListPrices::list);
    let by = |sums: &[Sum], word: fn(usize) -> &'static str| -> Value {
        let each =
            sums.iter().enumerate().map(|(at, sum)| (word(at).to_owned(), sum_json(sum, currency)));
        Value::Object(each.collect::<Map<_, _>>())
    };
    let volumes = told.all().map(|(volume, judged)| row(volume, judged, currency));
    let refused = told.list.refused.iter().map(|refused| {
        let reason = refused.reason.to_string();
        json!({ "place": refused.place, "volume_id": refused.id, "reason": reason })
    });
    let missing = told.missing();
    json!({
        "schema": "evenkeel.fleet/1",
        "rules": policy.rules.date().to_string(),
        "prices": list.map(|list| list.date().to_string()),
        "region": list.map(PriceList::region),
        "price_lists": told.policies.lists().map(list_json).collect::<Vec<_>>(),
        "currency": currency,
        "assume": assume_word(policy.assume),
        "headroom_percent": policy.headroom_percent,
        "days_min": policy.days_min,
        "gaps_percent_max": policy.gaps_percent_max,
        "throttled_s_per_day": policy.throttled_s_per_day,
        "totals": sum_json(&told.totals.all, currency),
        "by_finding": by(&told.totals.by_finding, |at| Finding::ALL[at].id()),
        "by_risk": by(&told.totals.by_risk, |at| Risk::ALL[at].word()),
        "missing": { "refused": missing.refused, "without_price": missing.unpriced },
        "deleted_gib": told.totals.deleted_gib,
        "snapshots": told.snapshots().map(|it| snapshots_json(&it, currency)),
        "volumes": volumes.collect::<Vec<_>>(),
        "not_read": refused.collect::<Vec<_>>(),
        "left_out": told.left_out,
    })
}

/// Returns a price list that applies.
fn list_json(prices: &ListPrices) -> Value {
    let list = prices.list();
    json!({
        "region": list.region(),
        "date": list.date().to_string(),
        "no_price_of": unpriced(list),
        "discounts_percent": discounts_json(prices),
    })
}

/// Returns the cost of snapshots of the volumes that are to be deleted.
fn snapshots_json(snapshots: &Snapshots<'_>, currency: &str) -> Value {
    json!({
        micro_key("monthly_at_most", currency): snapshots.most_micros,
        "no_price_of_gib": snapshots.unpriced_gib,
    })
}

fn sum_json(sum: &Sum, currency: &str) -> Value {
    json!({
        "volumes": sum.volumes,
        "changes": sum.changes,
        micro_key("before", currency): sum.before,
        micro_key("after", currency): sum.after,
        micro_key("saving", currency): sum.saving(),
        "provisioned_iops": sum.iops,
        "never_used_iops": sum.never_used_iops,
        "provisioned_mibps": sum.mibps,
        "never_used_mibps": sum.never_used_mibps,
    })
}

fn row(volume: &Volume, judged: &Judged, currency: &str) -> Value {
    let after = match judged.action {
        Action::Modify(to) => spec(&to),
        _ => Value::Null,
    };
    let waits = judged.waits.map(|waits| {
        json!({
            "before": waits.before_ms,
            "after": waits.after_ms,
            "before_at_most": waits.before_at_most_ms,
            "after_at_most": waits.after_at_most_ms,
        })
    });
    let known = judged.known.map(|known| {
        json!({
            "known_ms": known.known_ms,
            "gaps_ms": known.gaps_ms,
            "resolution_ms": known.resolution_ms,
            "at_limit_ms": known.at_limit_ms,
            "peak_iops": known.peak_iops,
            "peak_bytes_per_second": known.peak_bytes_per_second,
        })
    });
    json!({
        "volume_id": volume.id,
        "name": volume.name,
        "attached": volume.attached,
        "attached_to": volume.attached_to,
        "region": volume.region,
        "price_region": volume.price_region,
        "boots": volume.boots,
        "findings": judged.findings.iter().map(|it| it.id()).collect::<Vec<_>>(),
        "action": action_word(&judged.action),
        "present": spec(&judged.present),
        "better": after,
        micro_key("before", currency): judged.before,
        micro_key("after", currency): judged.after,
        micro_key("saving", currency): judged.saving(),
        "risk": judged.risk.word(),
        "waits_ms_per_day": waits,
        "known": known,
        "never_used_iops": judged.never_used_iops,
        "never_used_mibps": judged.never_used_mibps,
        "reasons": judged.reasons,
    })
}

fn spec(spec: &VolumeSpec) -> Value {
    json!({
        "volume_type": spec.volume_type.to_string(),
        "size_gib": spec.size_gib,
        "iops": spec.iops,
        "throughput_mibps": spec.throughput_mibps,
        "multi_attach": spec.multi_attach,
    })
}
