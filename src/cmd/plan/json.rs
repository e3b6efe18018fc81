//! The answer as JSON.

use super::commands::commands;
use super::words::{less_words, limit_words};
use super::{Told, assumed_ms, exact_ms};
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::answer::Rated;
use evenkeel_planner::delays::Delays;
use evenkeel_planner::trace::Note;
use serde_json::{Value, json};

pub fn json_of(told: &Told<'_>) -> Value {
    let Told { trace, asked, space, rated, exact, .. } = told;
    let cheapest = exact.as_ref().map(|exact| {
        json!({
            "requests": exact.requests,
            "sent": exact.sent,
            "throttled_ms_per_day": exact_ms(told, exact),
            "delay_us": delays_json(&exact.delays),
        })
    });
    let less: Vec<Value> = told
        .less
        .iter()
        .map(|(less, exact)| {
            let ms = exact.as_ref().map(|exact| exact_ms(told, exact));
            json!({ "one_less": less_words(*less), "throttled_ms_per_day": ms })
        })
        .collect();
    let layouts: Vec<Value> = rated.iter().map(|rated| layout_json(told, rated)).collect();
    let notes = trace.notes.iter().map(|note| match note {
        Note::Gap { start_ms, length_ms } => {
            json!({ "gap": { "start_ms": start_ms, "length_ms": length_ms } })
        }
        Note::Remark(remark) => json!({ "remark": remark }),
    });
    json!({
        "schema": "evenkeel.plan/1",
        "trace": {
            "name": trace.name,
            "known_ms": trace.known_ms(),
            "resolution_ms": trace.resolution_ms(),
            "notes": notes.collect::<Vec<_>>(),
        },
        "asked": {
            "peak_iops": asked.peak_iops,
            "peak_bytes_per_second": asked.peak_bytes_per_second,
            "mean_iops": asked.mean_iops,
            "mean_bytes_per_second": asked.mean_bytes_per_second,
        },
        "rules": space.rules.date().to_string(),
        "prices": space.prices.date().to_string(),
        "layouts": layouts,
        "cheapest_by_scheduler": cheapest,
        "neighbours_by_scheduler": less,
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

fn layout_json(told: &Told<'_>, rated: &Rated) -> Value {
    let found = &rated.found;
    let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach } =
        found.layout.each;
    let [even, active, worst] = rated.throttled_ms_per_day;
    let used = rated.used_permille.iter();
    let used = used.map(|(kind, used)| json!({ "limit": limit_words(*kind), "permille": used }));
    let hour = rated.worst_hour.map(|hour| {
        json!({
            "start_s": hour.start_us / 1_000_000,
            "waited_ms": hour.waited_us / 1_000,
            "limit": limit_words(hour.limit),
        })
    });
    json!({
        "volumes": found.layout.volumes,
        "volume_type": volume_type.to_string(),
        "size_gib": size_gib,
        "iops": iops,
        "throughput_mibps": throughput_mibps,
        "multi_attach": multi_attach,
        "monthly_micro_usd": {
            "storage": found.monthly.storage,
            "iops": found.monthly.iops,
            "throughput": found.monthly.throughput,
            "requests": found.requests,
            "total": found.total(),
        },
        "throttled_ms_per_day": assumed_ms(told, rated),
        "throttled_ms_per_day_by_assumption": { "even": even, "idle": active, "worst": worst },
        "delay_us": delays_json(&found.outcome.delays),
        "used": used.collect::<Vec<_>>(),
        "worst_hour": hour,
        "loss_ppb_per_year": rated.loss_ppb.map(|(best, worst)| json!([best, worst])),
        "commands": commands(told.space, &found.layout),
    })
}
