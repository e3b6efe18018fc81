//! Merges traces of one volume that were recorded separately: its metrics, or its days.

use std::collections::BTreeMap;

use crate::trace::{Amounts, Clock, Columns, Interval, Kind, Note, Sizes, Trace, either};

use super::Broken;
use super::collect::malformed;
use super::numbers::show_time;
use evenkeel_sim::text::span as span_words;

/// Merges traces of one volume by time.
///
/// Traces that share a span are parts of the same recording, such as one metric each. An interval
/// is kept if any of these traces has an amount for it. Amounts that others lack count as 0, with a
/// remark. Traces that follow each other are put in a row.
///
/// # Errors
/// Returns [`Broken`] if they are of different volumes or clocks, or if two have the same amount
/// for the same time.
pub fn merge(traces: Vec<Trace>) -> Result<Trace, Broken> {
    let Some(first) = traces.first() else {
        return Err(Broken::whole("no trace", "at least one"));
    };
    let name = first.name.clone();
    let clock = first.clock;
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
    let remarks = remarks(&traces);
    let sizes = sizes(&traces);
    let ends = ends_apart(&traces);
    let intervals = intervals(traces)?;
    let merged = Trace::new(name.as_str(), clock, columns, intervals);
    let mut merged = merged.map_err(|error| malformed(&name, &error))?;
    (merged.source, merged.sizes) = (source, sizes);
    merged.notes.extend(remarks.into_iter().map(Note::Remark));
    merged.notes.extend(ends.into_iter().chain(partial(&merged)).map(Note::Remark));
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

/// Returns the columns of both, with the weaker evidence of each.
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
        idle_is_of_device: one.idle_is_of_device || other.idle_is_of_device,
    }
}

/// Returns the remarks of all traces, each once.
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

/// Returns the sizes of all, if every trace with requests has them.
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

/// Returns the intervals of traces that share a span.
fn combine(traces: &[Trace]) -> Result<Vec<Interval>, Broken> {
    // Without any amounts, every value makes an interval.
    let are_amounts_needed = traces.iter().any(has_amounts);
    let mut all: BTreeMap<(u64, u64), (bool, Interval)> = BTreeMap::new();
    for trace in traces {
        for interval in &trace.intervals {
            let key = (interval.start_ms, interval.length_ms);
            let empty = Interval {
                start_ms: key.0,
                length_ms: key.1,
                unknown: Amounts::ALL,
                ..Interval::default()
            };
            let (is_known, sum) = all.entry(key).or_insert((false, empty));
            *is_known |= has_amounts(trace) || !are_amounts_needed;
            *sum = add(sum, interval).ok_or_else(|| {
                let found = format!("{}, two values at {}", trace.name, shown(trace.clock, key.0));
                let expected = "each metric once: are two files the same, do they overlap, or are \
                                they of two volumes?";
                Broken::whole(&found, expected)
            })?;
        }
    }
    let known = all.into_values().filter(|(is_known, _)| *is_known);
    Ok(known.map(|(_, interval)| interval).collect())
}

/// Returns a time of a trace in words.
fn shown(clock: Clock, ms: u64) -> String {
    match clock {
        Clock::Unix => show_time(ms),
        Clock::Elapsed => format!("{ms} ms"),
    }
}

fn has_amounts(trace: &Trace) -> bool {
    trace.columns.requests.or(trace.columns.bytes).is_some()
}

/// Returns a remark on traces that share a span and have different ends.
fn ends_apart(traces: &[Trace]) -> Option<String> {
    let span = |trace: &Trace| {
        let first = trace.intervals.first()?;
        let last = trace.intervals.last()?;
        Some((first.start_ms, last.end_ms()))
    };
    let mut spans: Vec<(u64, u64)> =
        traces.iter().filter(|trace| has_amounts(trace)).filter_map(span).collect();
    spans.sort();
    let mut apart_ms = 0_u64;
    let mut group = Vec::new();
    let mut add = |group: &[(u64, u64)]| {
        let least = |of: fn(&(u64, u64)) -> u64| group.iter().map(of).min().unwrap_or_default();
        let most = |of: fn(&(u64, u64)) -> u64| group.iter().map(of).max().unwrap_or_default();
        let (start_ms, end_ms) =
            ((least(|it| it.0), most(|it| it.0)), (least(|it| it.1), most(|it| it.1)));
        apart_ms += (start_ms.1 - start_ms.0) + (end_ms.1 - end_ms.0);
    };
    let mut group_end_ms = 0;
    for span in spans {
        if span.0 >= group_end_ms {
            add(&group);
            group.clear();
        }
        group_end_ms = group_end_ms.max(span.1);
        group.push(span);
    }
    add(&group);
    (apart_ms > 0).then(|| {
        format!(
            "the files do not begin and end together: {} are not in all of them, and what a file \
             does not have counts as nothing",
            span_words(apart_ms.div_ceil(1_000))
        )
    })
}

/// Returns a remark on intervals that are partly known.
fn partial(trace: &Trace) -> Option<String> {
    let count = trace.partial().count();
    (count > 0).then(|| {
        let length_ms: u64 = trace.partial().map(|interval| interval.length_ms).sum();
        format!(
            "intervals known in part: {count}, {} in all; what is missing there counts as nothing, \
             so that more may have been asked for",
            span_words(length_ms.div_ceil(1_000))
        )
    })
}

/// Returns both intervals together; `None` if both have the same amount.
fn add(one: &Interval, other: &Interval) -> Option<Interval> {
    let amount = |one: u64, other: u64| (one == 0 || other == 0).then(|| one.max(other));
    fn option<T>(one: Option<T>, other: Option<T>) -> Option<Option<T>> {
        match (one, other) {
            (Some(_), Some(_)) => None,
            (one, other) => Some(one.or(other)),
        }
    }
    let delayed = one.delayed.or(other.delayed);
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
        // Each limit has a metric of its own.
        is_censored: either(one.is_censored, other.is_censored).or(delayed.by_volume()),
        delayed,
        unknown: one.unknown.and(other.unknown),
    })
}
