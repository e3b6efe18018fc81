//! The answer as JSON.

use super::copies::Copies;
use super::text::{action_word, assume_word, unpriced, used};
use super::{FleetAnswer, Snapshots};
use crate::answer::json::{discounts_json, micro_key};
use crate::fleet::hosts::{Host, Rates};
use crate::fleet::totals::{Sum, Totals};
use crate::fleet::{Action, Class, Finding, Judged, OnHdd, Risk, Smaller, Volume};
use crate::prices::ListPrices;
use crate::used::Source;
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::VolumeSpec;
use serde_json::{Map, Value, json};

/// Returns an answer as JSON.
pub fn json_of(answer: &FleetAnswer<'_>) -> Value {
    let policy = &answer.policies.usual;
    let currency = answer.policies.currency.as_str();
    // With several regions, only `price_lists` has them.
    let mut lists = answer.policies.lists();
    let list = lists.next().filter(|_| lists.next().is_none()).map(ListPrices::list);
    let volumes = answer.all().map(|(volume, judged)| row(volume, judged, currency));
    let refused = answer.list.refused.iter().map(|refused| {
        let reason = refused.reason.to_string();
        json!({ "place": refused.place, "volume_id": refused.id, "reason": reason })
    });
    let missing = answer.missing();
    let groups = answer.groups();
    let groups = groups.iter().map(|(name, totals)| ((*name).to_owned(), group(totals, currency)));
    json!({
        "schema": "evenkeel.fleet/1",
        "rules": policy.rules.date().to_string(),
        "prices": list.map(|list| list.date().to_string()),
        "region": list.map(PriceList::region),
        "price_lists": answer.policies.lists().map(list_json).collect::<Vec<_>>(),
        "currency": currency,
        "assume": assume_word(policy.assume),
        "headroom_percent": policy.headroom_percent,
        "days_min": policy.days_min,
        "gaps_percent_max": policy.gaps_percent_max,
        "throttled_s_per_day": policy.throttled_s_per_day,
        "totals": sum_json(&answer.totals.all, currency),
        "by_finding": by(Finding::ALL.map(Finding::id), &answer.totals.by_finding, currency),
        "by_class": by(Class::ALL.map(Class::id), &answer.totals.by_class, currency),
        "script": answer.script.as_ref().map(|script| sum_json(&script.executed, currency)),
        "by_risk": by(Risk::ALL.map(Risk::word), &answer.totals.by_risk, currency),
        "group_by": answer.group_by.map(ToString::to_string),
        "groups": groups.collect::<Map<_, _>>(),
        "after_a_copy": copies_json(&Copies::of(answer), currency),
        "hosts": answer.hosts.iter().map(host_json).collect::<Vec<_>>(),
        "unknown_instance_types": answer.unknown_types,
        "free_percent": policy.free_percent,
        "missing": { "refused": missing.refused, "without_price": missing.unpriced },
        "deleted_gib": answer.totals.deleted_gib,
        "snapshots": answer.snapshots().map(|snapshots| snapshots_json(&snapshots, currency)),
        "volumes": volumes.collect::<Vec<_>>(),
        "not_read": refused.collect::<Vec<_>>(),
        "left_out": answer.left_out,
    })
}

/// Returns sums by their names.
fn by<const N: usize>(names: [&str; N], sums: &[Sum; N], currency: &str) -> Value {
    let each = names.iter().zip(sums);
    let each = each.map(|(name, sum)| ((*name).to_owned(), sum_json(sum, currency)));
    Value::Object(each.collect::<Map<_, _>>())
}

/// Returns the sums of a group.
fn group(totals: &Totals, currency: &str) -> Value {
    let mut sum = sum_json(&totals.all, currency);
    sum["by_class"] = by(Class::ALL.map(Class::id), &totals.by_class, currency);
    sum
}

/// Returns the sum over the volumes that could be copied to smaller ones.
fn copies_json(copies: &Copies, currency: &str) -> Value {
    json!({
        "volumes": copies.volumes,
        micro_key("before", currency): copies.before,
        micro_key("after", currency): copies.after,
        micro_key("saving", currency): copies.before.saturating_sub(copies.after),
    })
}

/// Returns an instance whose limits its volumes exceed.
fn host_json(host: &Host) -> Value {
    let rates = |rates: Rates| json!({ "iops": rates.iops, "bytes_per_second": rates.bytes });
    json!({
        "instance_id": host.id,
        "instance_type": host.instance.name,
        "volumes": host.volumes,
        "peaks": rates(host.asked),
        "limits_before": rates(host.before),
        "limits_after": rates(host.after),
        "sustained": rates(host.sustained()),
        "most": rates(host.most()),
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
    let used = used(volume, judged);
    json!({
        "used_bytes": used.map(|used| used.bytes),
        "used_is_at_most": used.map(|used| used.source == Source::Snapshot),
        "after_a_copy": judged.smaller.map(|smaller| smaller_json(&smaller, currency)),
        "if_latency_does_not_matter": judged.on_hdd.map(|hdd| hdd_json(&hdd, currency)),
        "volume_id": volume.id,
        "name": volume.name,
        "attached": volume.attached,
        "attached_to": volume.attached_to,
        "region": volume.region,
        "group": volume.group,
        "price_region": volume.price_region,
        "boots": volume.boots,
        "findings": judged.findings.iter().map(|finding| finding.id()).collect::<Vec<_>>(),
        "action": action_word(&judged.action),
        "present": spec(&judged.present),
        "better": after,
        micro_key("before", currency): judged.before,
        micro_key("after", currency): judged.after,
        micro_key("saving", currency): judged.saving(),
        micro_key("snapshot_at_most", currency): judged.snapshot_at_most,
        "class": judged.class().map(Class::id),
        "risk": judged.risk.word(),
        "waits_ms_per_day": waits,
        "known": known,
        "never_used_iops": judged.never_used_iops,
        "never_used_mibps": judged.never_used_mibps,
        "reasons": judged.reasons,
    })
}

/// Returns the smaller volume to which a volume could be copied.
fn smaller_json(smaller: &Smaller, currency: &str) -> Value {
    json!({
        "volume": spec(&smaller.spec),
        micro_key("before", currency): smaller.before,
        micro_key("after", currency): smaller.after,
        micro_key("saving", currency): smaller.saving(),
    })
}

/// Returns the volume of an HDD type that would do if latency did not matter.
fn hdd_json(hdd: &OnHdd, currency: &str) -> Value {
    json!({
        "volume": spec(&hdd.spec),
        micro_key("before", currency): hdd.before,
        micro_key("after", currency): hdd.after,
        "small_permille": hdd.small_permille,
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
