//! The answer as JSON.

use super::{Answer, Rated, assumed_ms, device, exact_ms, model, sentence};
use crate::advice;
use crate::case::Case;
use crate::commands::commands;
use crate::delays::Delays;
use crate::exact::Exact;
use crate::format::{less_words, limit_words, saved_permille};
use crate::prices::{ListPrices, Prices};
use crate::risk::{self, Risk};
use crate::search::Found;
use crate::timeline::{Step, Timeline};
use crate::trace::{Note, Trace};
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use serde_json::{Value, json};

/// The most points of a curve of credits: two months of hours.
const CURVE_POINTS_MAX: u64 = 1_500;
const HOUR_US: u64 = 3_600_000_000;

/// Returns an answer as JSON.
pub fn json_of(answer: &Answer<'_>) -> Value {
    let Answer { case, asked, rated, present, on_hdd, in_bursts, less, notes, .. } = answer;
    let exact = rated.first().and_then(|rated| rated.found.exact.as_ref());
    let less = less.iter().map(|neighbour| {
        json!({
            "one_less": less_words(neighbour.less),
            "throttled_ms_per_day": neighbour.waits_ms,
            "dry_after_s": neighbour.dry_after_s,
        })
    });
    let less: Vec<Value> = less.collect();
    let layouts: Vec<Value> = rated.iter().map(|rated| layout_json(case, rated)).collect();
    let value = json!({
        "schema": "evenkeel.plan/1",
        "trace": trace_json(&case.trace),
        "asked": {
            "peak_iops": asked.peak_iops,
            "peak_bytes_per_second": asked.peak_bytes_per_second,
            "mean_iops": asked.mean_iops,
            "mean_bytes_per_second": asked.mean_bytes_per_second,
        },
        "notes": notes,
        "source": source_json(case),
        "headroom_percent": case.headroom_percent,
        "advice": sentence::advice(answer),
        "evidence": evidence_json(case),
        "present": present.as_ref().map(|rated| layout_json(case, rated)),
        "layouts": layouts,
        "if_latency_does_not_matter": on_hdd.as_ref().map(|rated| json!({
            "layout": layout_json(case, rated),
            "small_requests_permille": advice::small_permille(&case.trace),
        })),
        "in_bursts": in_bursts.as_ref().map(|bursts| json!({
            "layout": bursts.found.as_ref().map(|found| found.layout.to_string()),
            "monthly_micros": bursts.found.as_ref().map(Found::total),
        })),
        "cheapest_by_scheduler": exact.map(|exact| exact_json(case, exact)),
        "neighbours": less,
    });
    with_basis(case, value)
}

/// Returns whether what was recorded shows that less than the source suffices, and if it does not,
/// why, and the next step.
pub fn evidence_json(case: &Case) -> Value {
    json!({
        "is_enough": case.not_shown.is_none(),
        "why_not": case.not_shown.as_ref().map(|lack| &lack.why),
        "next": case.not_shown.as_ref().map(|lack| &lack.next),
    })
}

/// Adds the rules and the prices of an answer to its JSON.
pub fn with_basis(case: &Case, mut value: Value) -> Value {
    let list = match &case.space.prices {
        Prices::List(prices) => Some(prices),
        Prices::Book(_) => None,
    };
    let day = list.map(|prices| prices.list().date().to_string());
    value["tolerance_ms"] = json!(case.space.tolerance_ms());
    value["rules"] = json!(case.space.rules.date().to_string());
    value["prices"] = json!(day.as_deref().unwrap_or("price book"));
    value["region"] = json!(list.map(|prices| prices.list().region()));
    value["currency"] = json!(case.space.prices.currency());
    value["discounts_percent"] = list.map_or_else(|| json!({}), discounts_json);
    value
}

/// Returns the discounts on list prices, by type, in percent.
pub fn discounts_json(prices: &ListPrices) -> Value {
    let discount = |(volume_type, hundredths): (&VolumeType, &u32)| {
        (volume_type.to_string(), json!(f64::from(*hundredths) / 100.0))
    };
    Value::Object(prices.discounts().iter().map(discount).collect())
}

/// Returns the volume that was recorded and its cost.
fn source_json(case: &Case) -> Option<Value> {
    let source = case.source.as_ref()?;
    Some(json!({ "layout": source.to_string(), "monthly_micros": case.source_monthly }))
}

/// Returns the key of an amount of list prices in millionths, such as `monthly_micro_usd`.
pub fn micro_key(what: &str, currency: &str) -> String {
    format!("{what}_micro_{}", currency.to_lowercase())
}

/// Returns the cost of a layout: a list has other items than a book.
fn monthly_json(case: &Case, found: &Found) -> (String, Value) {
    let monthly = found.monthly;
    match &case.space.prices {
        Prices::List(_) => (
            micro_key("monthly", case.space.prices.currency()),
            json!({
                "storage": monthly.storage,
                "iops": monthly.iops,
                "throughput": monthly.throughput,
                "requests": found.requests,
                "total": found.total(),
            }),
        ),
        Prices::Book(book) => (
            "monthly_micros".to_owned(),
            json!({
                "currency": book.currency(),
                "space": monthly.storage,
                "device_time": monthly.iops,
                "total": found.total(),
            }),
        ),
    }
}

/// Returns the name, the length and the notes of a recording.
pub fn trace_json(trace: &Trace) -> Value {
    let notes = trace.notes.iter().map(|note| match note {
        Note::Gap { start_ms, length_ms } => {
            json!({ "gap": { "start_ms": start_ms, "length_ms": length_ms } })
        }
        Note::Remark(remark) => json!({ "remark": remark }),
    });
    json!({
        "name": trace.name,
        "known_ms": trace.known_ms(),
        "resolution_ms": trace.resolution_ms(),
        "notes": notes.collect::<Vec<_>>(),
    })
}

/// Returns the waits on the scheduler.
pub fn exact_json(case: &Case, exact: &Exact) -> Value {
    json!({
        "requests": exact.requests,
        "sent": exact.sent,
        "throttled_ms_per_day": exact_ms(case, exact),
        "delay_us": delays_json(&exact.delays),
    })
}

fn delays_json(delays: &Delays) -> Value {
    json!({
        "mean": delays.mean_us(),
        "p50": delays.permille(500),
        "p99": delays.permille(990),
        "p999": delays.permille(999),
        "max": delays.most_us(),
    })
}

/// Returns all values of a layout.
pub fn layout_json(case: &Case, rated: &Rated) -> Value {
    let found = &rated.found;
    let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach } =
        found.layout.each;
    let [even, active, worst] = rated.throttled_ms_per_day;
    let used = rated.used_permille.iter().map(|(kind, used)| {
        let headroom = 1_000_i64.saturating_sub_unsigned(*used);
        json!({ "limit": limit_words(*kind), "permille": used, "headroom_permille": headroom })
    });
    let hour = rated.worst_hour.map(|hour| {
        json!({
            "start_s": hour.start_us / 1_000_000,
            "waited_ms": hour.waited_us / 1_000,
            "limit": limit_words(hour.limit),
        })
    });
    let risks = risk::risks(&case.space, &case.trace, &case.demand, rated);
    let risk = |risk: &Risk| json!({ "risk": risk.name(), "words": risk.to_string() });
    let saved = case.source_monthly.map(|before| {
        let micros = i128::from(before) - i128::from(found.total());
        json!({
            "monthly_micros": i64::try_from(micros).ok(),
            "permille": saved_permille(before, found.total()),
        })
    });
    let mut value = json!({
        "layout": found.layout.to_string(),
        "instance": found.layout.instance.map(|instance| instance.name),
        "volumes": found.layout.volumes,
        "volume_type": volume_type.to_string(),
        "size_gib": size_gib,
        "iops": iops,
        "throughput_mibps": throughput_mibps,
        "multi_attach": multi_attach,
        "saved_against_the_source": saved,
        "throttled_ms_per_day": assumed_ms(case, found),
        "throttled_ms_per_day_by_assumption": { "even": even, "idle": active, "worst": worst },
        // If the source's limits held requests back, more was wanted than was recorded.
        "throttled_is_at_least": case.demand.held_back.is_some(),
        "delay_us": delays_json(found.delays()),
        "waits_by": model(found),
        "device": device::json(case, found),
        "used": used.collect::<Vec<_>>(),
        "credits": credits_json(case, rated),
        "dry_after_s": rated.dry_after_s,
        "worst_hour": hour,
        "loss_ppb_per_year": rated.loss_ppb.map(|(best, worst)| json!([best, worst])),
        "risks": risks.iter().map(risk).collect::<Vec<_>>(),
        "commands": case.is_advised().then(|| commands(case, &found.layout).json()),
    });
    let (key, monthly) = monthly_json(case, found);
    value[key] = monthly;
    value
}

/// Returns the credits of each limit that has some, at the end of each hour, or of every n-th hour
/// of a long trace.
fn credits_json(case: &Case, rated: &Rated) -> Vec<Value> {
    let layout = &rated.found.layout;
    let saves = layout.saves_credits(&case.space);
    if !saves.contains(&true) {
        return Vec::new();
    }
    let hours = case.demand.length_us.div_ceil(HOUR_US).div_ceil(CURVE_POINTS_MAX).max(1);
    let timeline = Timeline::of(&case.space, &case.demand, layout, hours * HOUR_US);
    let of_limits = timeline.limits.iter().enumerate().zip(saves).filter(|(_, saves)| *saves);
    let curve = of_limits.map(|((place, kind), _)| {
        let percent = |step: &Step| step.balance_ppm(place).unwrap_or_default() / 10_000;
        json!({
            "limit": limit_words(*kind),
            "step_s": hours * HOUR_US / 1_000_000,
            "percent": timeline.steps.iter().map(percent).collect::<Vec<_>>(),
        })
    });
    curve.collect()
}
