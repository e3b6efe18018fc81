//! Traces of one volume that were recorded apart, put together: its metrics, or its days.

use std::collections::BTreeMap;

use crate::trace::{Columns, Interval, Kind, Note, Sizes, Trace};

use super::Broken;
use super::collect::malformed;

/// Merges traces of one volume by time.
///
/// Traces that share a span are taken as parts of the same recording, such as one metric each: an
/// interval stays only if every trace of them that has requests or bytes has it, and what is
/// missing is a gap. Traces one after the other are put in a row.
///
/// # Errors
/// [`Broken`] if they are of different volumes or clocks, or two have the same amount of the same
/// time.
pub fn merge(traces: Vec<Trace>) -> Result<Trace, Broken> {
    let Some(first) = traces.first() else {
        return Err(Broken::whole("no trace", "at least one"));
    };
    let (name, clock) = (first.name.clone(), first.clock);
    if let Some(other) = traces.iter().find(|trace| trace.name != name) {
        let expected = format!("the same volume as {name:?}; merge the traces of one volume only");
        return Err(Broken::whole(&other.name, expected));
    }
    if traces.iter().any(|trace| trace.clock != clock) {
        let expected = "times that are counted from the same beginning, in all traces";
        return Err(Broken::whole(&name, expected));
    }
    let columns = traces.iter().map(|trace| trace.columns).fold(Columns::default(), weakest);
    let source = first.source;
    let (remarks, sizes) = (remarks(&traces), sizes(&traces));
    let intervals = intervals(traces)?;
    let merged = Trace::new(name.as_str(), clock, columns, intervals);
    let mut merged = merged.map_err(|error| malformed(&name, &error))?;
    (merged.source, merged.sizes) = (source, sizes);
    merged.notes.extend(remarks.into_iter().map(Note::Remark));
    let has = |of: fn(&Interval) -> u64| merged.intervals.iter().any(|interval| of(interval) > 0);
    let missing: Vec<&str> = [
        (columns.requests.is_some() && !has(|interval| interval.reads), "reads"),
        (columns.requests.is_some() && !has(|interval| interval.writes), "writes"),
        (columns.bytes.is_some() && !has(|interval| interval.read_bytes), "bytes read"),
        (columns.bytes.is_some() && !has(|interval| interval.write_bytes), "bytes written"),
    ]
    .into_iter()
    .filter_map(|(is_missing, what)| is_missing.then_some(what))
    .collect();
    if !missing.is_empty() {
        let remark = format!("in no interval, or not among the files: {}", missing.join(", "));
        merged.notes.push(Note::Remark(remark));
    }
    Ok(merged)
}

/// The columns of both, by the weaker evidence.
fn weakest(one: Columns, other: Columns) -> Columns {
    let rank = |kind: Kind| match kind {
        Kind::Counter => 0,
        Kind::Sum => 1,
        Kind::Mean => 2,
        Kind::Maximum => 3,
    };
    let weaker = |one: Option<Kind>, other: Option<Kind>| match (one, other) {
        (Some(one), Some(other)) => Some(if rank(one) < rank(other) { other } else { one }),
        (one, other) => one.or(other),
    };
    Columns {
        requests: weaker(one.requests, other.requests),
        bytes: weaker(one.bytes, other.bytes),
        times: weaker(one.times, other.times),
        queue: weaker(one.queue, other.queue),
    }
}

/// What all say, once each.
fn remarks(traces: &[Trace]) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    let notes = traces.iter().flat_map(|trace| &trace.notes);
    notes
        .filter_map(|note| match note {
            Note::Remark(remark) => seen.insert(remark).then(|| remark.clone()),
            Note::Gap { .. } => None,
        })
        .collect()
}

/// Sizes are those of the whole only if every trace with requests has them.
fn sizes(traces: &[Trace]) -> Option<Sizes> {
    let mut all = Sizes::default();
    for trace in traces.iter().filter(|trace| trace.columns.requests.is_some()) {
        let sizes = trace.sizes.as_ref()?;
        for (into, from) in [(&mut all.reads, &sizes.reads), (&mut all.writes, &sizes.writes)] {
            for (size, count) in from {
                let sum: &mut u64 = into.entry(*size).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
    }
    let is_known = !all.reads.is_empty() || !all.writes.is_empty();
    let is_bounded = all.reads.len() + all.writes.len() <= crate::trace::SIZES_MAX;
    (is_known && is_bounded).then_some(all)
}

fn intervals(mut traces: Vec<Trace>) -> Result<Vec<Interval>, Broken> {
    traces.retain(|trace| !trace.intervals.is_empty());
    let start = |trace: &Trace| trace.intervals.first().map_or(0, |interval| interval.start_ms);
    let end = |trace: &Trace| trace.intervals.last().map_or(0, Interval::end_ms);
    traces.sort_by_key(start);
    let mut merged = Vec::new();
    let mut together: Vec<Trace> = Vec::new();
    let mut together_end = 0;
    for trace in traces {
        if start(&trace) >= together_end {
            merged.append(&mut combine(&together)?);
            together.clear();
        }
        together_end = together_end.max(end(&trace));
        together.push(trace);
    }
    merged.append(&mut combine(&together)?);
    Ok(merged)
}

/// The intervals of traces that share a span.
fn combine(traces: &[Trace]) -> Result<Vec<Interval>, Broken> {
    let has_amounts = |trace: &Trace| trace.columns.requests.or(trace.columns.bytes).is_some();
    // Without any amounts, all that there is makes an interval.
    let needed = traces.iter().filter(|trace| has_amounts(trace)).count();
    let mut all: BTreeMap<(u64, u64), (usize, Interval)> = BTreeMap::new();
    for trace in traces {
        for interval in &trace.intervals {
            let key = (interval.start_ms, interval.length_ms);
            let empty = Interval { start_ms: key.0, length_ms: key.1, ..Interval::default() };
            let (count, sum) = all.entry(key).or_insert((0, empty));
            *count += usize::from(has_amounts(trace));
            *sum = add(sum, interval).ok_or_else(|| {
                let found = format!("{}, two values at {} ms", trace.name, key.0);
                let expected = "each metric once: are two files the same, or of two volumes?";
                Broken::whole(&found, expected)
            })?;
        }
    }
    let whole = all.into_values().filter(|(count, _)| *count == needed);
    Ok(whole.map(|(_, interval)| interval).collect())
}

/// Both together; `None` if both say the same thing.
fn add(one: &Interval, other: &Interval) -> Option<Interval> {
    let amount = |one: u64, other: u64| (one == 0 || other == 0).then(|| one.max(other));
    fn option<T>(one: Option<T>, other: Option<T>) -> Option<Option<T>> {
        match (one, other) {
            (Some(_), Some(_)) => None,
            (one, other) => Some(one.or(other)),
        }
    }
    Some(Interval {
        start_ms: one.start_ms,
        length_ms: one.length_ms,
        reads: amount(one.reads, other.reads)?,
        writes: amount(one.writes, other.writes)?,
        read_bytes: amount(one.read_bytes, other.read_bytes)?,
        write_bytes: amount(one.write_bytes, other.write_bytes)?,
        read_ns: option(one.read_ns, other.read_ns)?,
        write_ns: option(one.write_ns, other.write_ns)?,
        idle_ms: option(one.idle_ms, other.idle_ms)?,
        queued_milli: option(one.queued_milli, other.queued_milli)?,
        balance_ppm: option(one.balance_ppm, other.balance_ppm)?,
        used_bytes: option(one.used_bytes, other.used_bytes)?,
        // The two limits have a metric each.
        is_censored: match (one.is_censored, other.is_censored) {
            (Some(one), Some(other)) => Some(one || other),
            (one, other) => one.or(other),
        },
    })
}
