//! Reads the expectations of a scenario.

use super::reader::Reader;
use super::{ScenarioError, matching, nothing_called};
use crate::scenario::expect::{Bounds, Expectation, Metric, Subject};
use crate::scenario::known::Known;
use crate::scenario::setup::{Load, Setup};
use crate::world::record::Span;

/// Limit on every figure.
const VALUE_MAX: f64 = 1e18;

type Read<T> = Result<T, ScenarioError>;

/// Reads the `[[expect]]` tables. A table with `each` becomes one expectation for each subject.
pub(super) fn expectations(document: &Reader<'_>, setup: &Setup) -> Read<Vec<Expectation>> {
    let mut expectations = Vec::new();
    for reader in document.tables("expect")? {
        expectations.extend(of_table(&reader, setup)?);
        reader.done()?;
    }
    Ok(expectations)
}

fn of_table(reader: &Reader<'_>, setup: &Setup) -> Read<Vec<Expectation>> {
    let measured = measure(reader, setup)?;
    let bounds = bounds(reader, &|value| measured.metric.shown(value))?;
    let expected = Expectation { bounds, ..measured };
    let each = reader.texts("each")?;
    if each.is_some() && reader.has("of") {
        return Err(reader.fault("each", "does not go with of; remove one of them"));
    }
    if let Some(patterns) = each {
        let subjects = subjects(reader, "each", &patterns, setup)?.into_iter();
        let of_one = |(of, of_name)| Expectation { of: vec![of], of_name, ..expected.clone() };
        return Ok(subjects.map(of_one).collect());
    }
    let patterns = reader.need("of", reader.texts("of")?, "of what, or each")?;
    Ok(vec![of_all(reader, &patterns, setup, expected)?])
}

/// Reads the metric and the span. Leaves the subjects and the bounds empty.
pub(super) fn measure(reader: &Reader<'_>, setup: &Setup) -> Read<Expectation> {
    let word = reader.text("metric")?;
    if Known::WORDS.iter().any(|(known, _)| word == Some(*known)) {
        return Err(reader.fault("metric", "is known without a run: it stands in [[compare]]"));
    }
    let metric = reader.choice("metric", &Metric::WORDS)?;
    let metric = reader.need("metric", metric, "what is measured")?;
    let metric = match metric {
        Metric::FallsBelow(_) => {
            let iops = reader.whole("iops", 1..=1 << 40)?;
            Metric::FallsBelow(reader.need("iops", iops, "the rate that is fallen below")?)
        }
        Metric::CreditsSpent { .. } => {
            let below = reader.whole("iops", 1..=1 << 40)?;
            let below = reader.need("iops", below, "the rate that is fallen below")?;
            let baseline = reader.whole("baseline", 0..=below)?;
            let why = "the rate that needs no credits";
            Metric::CreditsSpent { below, baseline: reader.need("baseline", baseline, why)? }
        }
        metric => metric,
    };
    let counted = reader.choice("counted", &[("completion", false), ("dispatch", true)])?;
    Ok(Expectation {
        metric,
        of: Vec::new(),
        of_name: String::new(),
        span: span(reader, metric, setup)?,
        at_dispatch: counted.unwrap_or(false),
        bounds: Bounds::none(),
    })
}

/// Adds the named volumes or clients to a measurement, all together.
pub(super) fn of_all(
    reader: &Reader<'_>,
    patterns: &[&str],
    setup: &Setup,
    measured: Expectation,
) -> Read<Expectation> {
    let metric = measured.metric;
    let subjects = subjects(reader, "of", patterns, setup)?;
    let one_only = matches!(metric, Metric::Latency(_) | Metric::Credits | Metric::CreditsGib);
    if one_only && subjects.len() > 1 {
        return Err(reader.fault("of", "this metric is of one volume or client: use each"));
    }
    check_jobs(reader, metric, &subjects, setup)?;
    let of = subjects.into_iter().map(|(of, _)| of).collect();
    Ok(Expectation { of, of_name: patterns.join(" + "), ..measured })
}

/// Returns the named volumes and clients.
fn subjects(
    reader: &Reader<'_>,
    key: &'static str,
    patterns: &[&str],
    setup: &Setup,
) -> Read<Vec<(Subject, String)>> {
    let volumes = || setup.volumes.iter().map(|volume| volume.name.as_str());
    let clients = || setup.clients.iter().map(|client| client.name.as_str());
    let mut subjects = Vec::new();
    for pattern in patterns {
        let of_volume = matching(pattern, volumes()).into_iter().map(Subject::Volume);
        let mut found: Vec<Subject> = of_volume.collect();
        if found.is_empty() {
            found.extend(matching(pattern, clients()).into_iter().map(Subject::Client));
        }
        if found.is_empty() {
            let names = volumes().chain(clients());
            return Err(nothing_called(reader, key, "volume or client", pattern, names));
        }
        subjects.extend(found.into_iter().map(|subject| {
            let name = match subject {
                Subject::Volume(volume) => &setup.volumes[volume as usize].name,
                Subject::Client(client) => &setup.clients[client as usize].name,
            };
            (subject, name.clone())
        }));
    }
    Ok(subjects)
}

/// Returns an error if a metric of jobs names a client without jobs.
fn check_jobs(
    reader: &Reader<'_>,
    metric: Metric,
    subjects: &[(Subject, String)],
    setup: &Setup,
) -> Read<()> {
    use Metric::{JobCovPercent, JobMeanCalls, JobMeanIops, JobSeconds};
    if !matches!(metric, JobMeanIops | JobMeanCalls | JobCovPercent | JobSeconds) {
        return Ok(());
    }
    let has_jobs = |subject: &Subject| match subject {
        Subject::Client(client) => {
            matches!(setup.clients[*client as usize].load, Load::Job { .. })
        }
        Subject::Volume(_) => false,
    };
    match subjects.iter().find(|(subject, _)| !has_jobs(subject)) {
        None => Ok(()),
        Some((_, name)) => Err(reader.fault("of", format!("\"{name}\" is no client with job_ios"))),
    }
}

fn span(reader: &Reader<'_>, metric: Metric, setup: &Setup) -> Read<Span> {
    let end_s = setup.duration_ns as f64 / 1e9;
    if matches!(metric, Metric::Credits | Metric::CreditsGib) {
        let at_ns = reader.scaled("at_s", 1e9, 1.0..=end_s)?;
        let to_ns = reader.need("at_s", at_ns, "when, in seconds after the start")?;
        whole_samples(reader, "at_s", to_ns, setup)?;
        return Ok(Span { from_ns: 0, to_ns });
    }
    let from_ns = reader.scaled("from_s", 1e9, 0.0..=end_s)?.unwrap_or(0);
    let to_ns = reader.scaled("to_s", 1e9, 0.0..=end_s)?.unwrap_or(setup.duration_ns);
    if !metric.is_exact() {
        whole_samples(reader, "from_s", from_ns, setup)?;
        whole_samples(reader, "to_s", to_ns, setup)?;
    }
    if to_ns <= from_ns {
        return Err(reader.fault("to_s", "must be later than from_s"));
    }
    Ok(Span { from_ns, to_ns })
}

fn whole_samples(reader: &Reader<'_>, key: &str, ns: u64, setup: &Setup) -> Read<()> {
    if ns.is_multiple_of(setup.sample_ns) || ns == setup.duration_ns {
        return Ok(());
    }
    let sample_s = setup.sample_ns / 1_000_000_000;
    Err(reader.fault(key, format!("must be a multiple of sample_s, {sample_s} s")))
}

/// `equals`, or `at_least` and `at_most`, widened by `within_percent` or `within`, whichever is
/// more.
pub(super) fn bounds(reader: &Reader<'_>, shown: &dyn Fn(f64) -> String) -> Read<Bounds> {
    let value = |key| reader.number(key, 0.0..=VALUE_MAX);
    let equals = value("equals")?;
    let least = value("at_least")?;
    let most = value("at_most")?;
    let percent = reader.number("within_percent", 0.0..=1_000.0)?;
    let absolute = value("within")?;
    if equals.is_some() && (least.is_some() || most.is_some()) {
        return Err(reader.fault("equals", "does not go with at_least and at_most"));
    }
    if equals.is_none() && least.is_none() && most.is_none() {
        return Err(reader.fault("equals", "is missing: equals, at_least or at_most"));
    }
    let slack = |value: f64| {
        let relative = value * percent.unwrap_or(0.0) / 100.0;
        relative.max(absolute.unwrap_or(0.0))
    };
    let low = equals.or(least).map_or(f64::NEG_INFINITY, |low| low - slack(low));
    let high = equals.or(most).map_or(f64::INFINITY, |high| high + slack(high));
    let mut words = match (equals, least, most) {
        (Some(value), ..) => shown(value),
        (_, Some(least), Some(most)) => format!("{} to {}", shown(least), shown(most)),
        (_, Some(least), None) => format!("at least {}", shown(least)),
        (_, None, most) => format!("at most {}", shown(most.unwrap_or(0.0))),
    };
    let percent = percent.map(|percent| format!("{} %", percent));
    let absolute = absolute.map(shown);
    let within: Vec<String> = percent.into_iter().chain(absolute).collect();
    if !within.is_empty() {
        words.push_str(&format!(" within {}", within.join(" or ")));
    }
    Ok(Bounds { low, high, words })
}
