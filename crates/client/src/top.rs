//! Rows of the live table of volumes: their activity between two samples.

use crate::output::{Item, or_dash};
use crate::volume_samples::{Limit, Sample, VolumeSample};
use evenkeel_core::latency::Stage;
use evenkeel_core::price;
use evenkeel_sim::text::span;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// The number of stages in a row: those with most of the time.
const STAGES_SHOWN: usize = 3;

/// The order of the volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Sort {
    /// Most I/Os per second first.
    Iops,
    /// Most bytes per second first.
    Throughput,
    /// Longest 99th percentile first.
    P99,
    /// Longest queue first.
    Queue,
    /// Credits that run out soonest first, then the lowest balance.
    Credits,
    /// Largest share of device time first.
    Device,
    /// Highest list price first.
    Cost,
    /// By id.
    Volume,
}

/// One volume. Rates are `None` until there are two samples of the same run of the server.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Row {
    pub volume_id: String,
    pub volume_type: String,
    /// The node of a cluster that serves it; `None` for a server that serves alone.
    pub node: Option<String>,
    pub connections: u64,
    pub queue_length: u64,
    /// I/Os per second as the limit counts them.
    pub iops: Option<f64>,
    pub reads_per_second: Option<f64>,
    pub writes_per_second: Option<f64>,
    pub bytes_per_second: Option<f64>,
    /// The present limit: the burst rate while credits last, otherwise the steady rate.
    pub iops_limit: Option<u64>,
    pub bytes_per_second_limit: Option<u64>,
    /// Credits as a share of the maximum balance.
    pub credit_ratio: Option<f64>,
    /// Seconds until the credits run out, if they decrease.
    pub credits_empty_in_s: Option<u64>,
    /// Latencies of reads and writes together, from arrival to reply, in microseconds.
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    /// The share of its requests' time in each stage.
    pub time_shares: BTreeMap<String, f64>,
    /// Its share of the time that requests of all volumes spent in the device.
    pub device_share: Option<f64>,
    /// List price of a month, in millionths of a dollar.
    pub monthly_micro_usd: Option<u64>,
}

/// Returns one row for each volume of `later`, by id.
pub fn between(earlier: &Sample, later: &Sample) -> Vec<Row> {
    let pairs = later.iter().map(|(id, now)| {
        let before = earlier.get(id).filter(|before| is_comparable(before, now));
        (id, before, now)
    });
    let pairs: Vec<_> = pairs.collect();
    let device_ns = |before: Option<&VolumeSample>, now: &VolumeSample| {
        before.map_or(0, |before| {
            stages_since(before, now).get(Stage::Device.name()).copied().unwrap_or_default()
        })
    };
    let all_ns: u64 = pairs.iter().map(|(_, before, now)| device_ns(*before, now)).sum();
    let row = |(id, before, now): (&String, Option<&VolumeSample>, &VolumeSample)| {
        let mut row = present(id, now);
        if let Some(before) = before {
            row.add_rates(before, now);
            let own_ns = device_ns(Some(before), now);
            row.device_share = (all_ns > 0).then(|| thousandths(real(own_ns) / real(all_ns)));
        }
        row
    };
    pairs.into_iter().map(row).collect()
}

/// Whether no counter was reset in between: counters only grow while the server runs.
fn is_comparable(before: &VolumeSample, now: &VolumeSample) -> bool {
    now.time_ms > before.time_ms
        && now.counted_ios >= before.counted_ios
        && now.reads.count >= before.reads.count
        && now.writes.count >= before.writes.count
        && now.read_bytes >= before.read_bytes
        && now.write_bytes >= before.write_bytes
}

/// The values that need only one sample.
fn present(id: &str, now: &VolumeSample) -> Row {
    let limits = [now.operations, now.bytes];
    let credit = limits.into_iter().flatten().find_map(|limit| limit.credit);
    let filled = credit.filter(|credit| credit.capacity > 0);
    Row {
        volume_id: id.to_owned(),
        volume_type: now.volume_type.clone(),
        node: now.node.clone(),
        connections: now.connections,
        queue_length: now.queue_length,
        iops_limit: now.operations.map(allowed),
        bytes_per_second_limit: now.bytes.map(allowed),
        monthly_micro_usd: now.monthly_micro_usd,
        credit_ratio: filled.map(|c| thousandths(real(c.balance) / real(c.capacity))),
        ..Row::default()
    }
}

fn allowed(limit: Limit) -> u64 {
    match limit.credit {
        Some(credit) if credit.balance == 0 => credit.refill_per_second.min(limit.per_second),
        _ => limit.per_second,
    }
}

impl Row {
    fn add_rates(&mut self, before: &VolumeSample, now: &VolumeSample) {
        let elapsed_s = real(now.time_ms - before.time_ms) / 1_000.0;
        let rate = |before: u64, now: u64| Some(thousandths(real(now - before) / elapsed_s));
        self.iops = rate(before.counted_ios, now.counted_ios);
        self.reads_per_second = rate(before.reads.count, now.reads.count);
        self.writes_per_second = rate(before.writes.count, now.writes.count);
        let bytes = |volume: &VolumeSample| volume.read_bytes.saturating_add(volume.write_bytes);
        self.bytes_per_second = rate(bytes(before), bytes(now));
        self.credits_empty_in_s = credits_empty_in_s(before, now);
        let mut latencies = now.reads.latencies().since(&before.reads.latencies());
        latencies.add(&now.writes.latencies().since(&before.writes.latencies()));
        if latencies.count() > 0 {
            let quantile = |per_mille| latencies.quantile(per_mille).ns.div_ceil(1_000);
            (self.p50_us, self.p99_us) = (Some(quantile(500)), Some(quantile(990)));
        }
        let stages = stages_since(before, now);
        let all_ns: u64 = stages.values().sum();
        let shares = stages.into_iter().filter(|(_, ns)| *ns > 0);
        self.time_shares =
            shares.map(|(stage, ns)| (stage, thousandths(real(ns) / real(all_ns)))).collect();
    }

    /// The stages with most of its requests' time, in words.
    fn time_goes_to(&self) -> String {
        let mut shares: Vec<(&String, u64)> = self
            .time_shares
            .iter()
            .map(|(stage, share)| (stage, whole(share * 100.0)))
            .filter(|(_, percent)| *percent > 0)
            .collect();
        shares.sort_by_key(|(_, percent)| std::cmp::Reverse(*percent));
        let shown = shares.iter().take(STAGES_SHOWN);
        let texts: Vec<String> =
            shown.map(|(stage, percent)| format!("{stage} {percent}%")).collect();
        if texts.is_empty() { "-".to_owned() } else { texts.join(" ") }
    }
}

/// Time spent in each stage between two samples, in nanoseconds.
fn stages_since(before: &VolumeSample, now: &VolumeSample) -> BTreeMap<String, u64> {
    let mut since = BTreeMap::new();
    for (before, now) in [(&before.reads, &now.reads), (&before.writes, &now.writes)] {
        for (stage, ns) in &now.stages {
            let before_ns = before.stages.get(stage).copied().unwrap_or_default();
            *since.entry(stage.clone()).or_default() += ns.saturating_sub(before_ns);
        }
    }
    since
}

fn credits_empty_in_s(before: &VolumeSample, now: &VolumeSample) -> Option<u64> {
    let limits = [(before.operations, now.operations), (before.bytes, now.bytes)];
    let pair =
        |(before, now): (Option<Limit>, Option<Limit>)| Some((before?.credit?, now?.credit?));
    let (before_credit, credit) = limits.into_iter().find_map(pair)?;
    let spent = before_credit.balance.checked_sub(credit.balance).filter(|spent| *spent > 0)?;
    let elapsed_ms = u128::from(now.time_ms - before.time_ms);
    let left_s = u128::from(credit.balance) * elapsed_ms / (u128::from(spent) * 1_000);
    u64::try_from(left_s).ok()
}

/// Exact up to 2^53.
fn real(count: u64) -> f64 {
    count as f64
}

/// Enough digits for a rate or a ratio.
fn thousandths(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// The nearest whole number.
fn whole(value: f64) -> u64 {
    value.round() as u64
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

/// Sorts by `by`, and equal rows by id.
pub fn sort(rows: &mut [Row], by: Sort) {
    let highest = |value: fn(&Row) -> Option<f64>| {
        move |a: &Row, b: &Row| value(b).unwrap_or(-1.0).total_cmp(&value(a).unwrap_or(-1.0))
    };
    let order = |a: &Row, b: &Row| match by {
        Sort::Iops => highest(|row| row.iops)(a, b),
        Sort::Throughput => highest(|row| row.bytes_per_second)(a, b),
        Sort::P99 => b.p99_us.cmp(&a.p99_us),
        Sort::Queue => b.queue_length.cmp(&a.queue_length),
        Sort::Credits => {
            let key = |row: &Row| row.credits_empty_in_s.unwrap_or(u64::MAX);
            let ratio = |row: &Row| row.credit_ratio.unwrap_or(2.0);
            key(a).cmp(&key(b)).then(ratio(a).total_cmp(&ratio(b)))
        }
        Sort::Device => highest(|row| row.device_share)(a, b),
        Sort::Cost => b.monthly_micro_usd.cmp(&a.monthly_micro_usd),
        Sort::Volume => Ordering::Equal,
    };
    rows.sort_by(|a, b| order(a, b).then_with(|| a.volume_id.cmp(&b.volume_id)));
}

impl Item for Row {
    const SCHEMA: &'static str = "evenkeel.top/1";
    const FIELD: &'static str = "volumes";
    const COLUMNS: &'static [&'static str] = &[
        "VOLUME",
        "TYPE",
        "IOPS",
        "IOPS LIMIT",
        "MIB/S",
        "MIB/S LIMIT",
        "P50 US",
        "P99 US",
        "QUEUE",
        "CREDITS PCT",
        "EMPTY IN",
        "DEVICE PCT",
        "USD/MONTH",
        "NODE",
        "TIME GOES TO",
    ];

    fn cells(&self) -> Vec<String> {
        let percent = |ratio: Option<f64>| or_dash(ratio.map(|ratio| whole(ratio * 100.0)));
        vec![
            self.volume_id.clone(),
            self.volume_type.clone(),
            or_dash(self.iops.map(whole)),
            or_dash(self.iops_limit),
            or_dash(self.bytes_per_second.map(mib)),
            or_dash(self.bytes_per_second_limit.map(|bytes| mib(real(bytes)))),
            or_dash(self.p50_us),
            or_dash(self.p99_us),
            self.queue_length.to_string(),
            percent(self.credit_ratio),
            or_dash(self.credits_empty_in_s.map(span)),
            percent(self.device_share),
            or_dash(self.monthly_micro_usd.map(price::rounded)),
            or_dash(self.node.clone()),
            self.time_goes_to(),
        ]
    }
}
