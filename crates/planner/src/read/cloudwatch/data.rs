//! Reads the answer of GetMetricData, as `aws cloudwatch get-metric-data` prints it.
//!
//! It has neither statistic nor period. With the text of the queries both are known, and a series
//! is identified by its `Id`. Without it, a series is identified by its `Label`.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Deserialize;

use super::{Metric, Series, Statistic, Timestamp, assemble, volume_in};
use crate::read::{Broken, Hints, Read, json};
use crate::trace::Note;

const FORM: &str = "the answer of GetMetricData, with MetricDataResults";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    metric_data_results: Vec<Answered>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answered {
    #[serde(default)]
    id: String,
    #[serde(default)]
    label: String,
    #[serde(default)]
    timestamps: Vec<Timestamp>,
    #[serde(default)]
    values: Vec<f64>,
    status_code: Option<String>,
}

/// The queries: the file of `--metric-data-queries`, or that of `--cli-input-json`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Queries {
    List(Vec<Query>),
    #[serde(rename_all = "PascalCase")]
    Request {
        metric_data_queries: Vec<Query>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Query {
    id: String,
    metric_stat: Option<MetricStat>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct MetricStat {
    metric: Named,
    period: u64,
    stat: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Named {
    metric_name: String,
    #[serde(default)]
    dimensions: Vec<Dimension>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Dimension {
    name: String,
    value: String,
}

/// Reads an answer. [`Hints::queries`] is the text of the queries, if it is available.
///
/// # Errors
/// Returns [`Broken`] if the answer is invalid, incomplete, or has no metric of a volume.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let text = json::slurp(input, FORM)?;
    let answer: Answer =
        serde_json::from_slice(&text).map_err(|error| json::broken(&error, FORM))?;
    drop(text);
    if answer.next_token.is_some() && !hints.allows_partial {
        return Err(Broken::whole(
            "NextToken",
            "an answer with all pages; ask on with --starting-token, or allow a part",
        ));
    }
    let queries = match &hints.queries {
        Some(text) => queries(text)?,
        None => BTreeMap::new(),
    };
    let mut is_partial = answer.next_token.is_some();
    let mut all = Vec::new();
    for (index, answered) in answer.metric_data_results.into_iter().enumerate() {
        let place = format!("MetricDataResults[{index}], {} {}", answered.id, answered.label);
        answered.refuse_incomplete(&place, hints)?;
        is_partial |= answered.status_code.as_deref() == Some("PartialData");
        all.extend(answered.series(place, &queries)?);
    }
    let period_ms = queries.values().map(|query| query.period.saturating_mul(1_000)).min();
    let mut traces = assemble(all, period_ms, true, hints)?;
    if is_partial {
        for trace in &mut traces {
            trace.notes.push(Note::Remark("the answer is a part of what was asked for".to_owned()));
        }
    }
    Ok(traces)
}

fn queries(text: &str) -> Result<BTreeMap<String, MetricStat>, Broken> {
    let queries: Queries = serde_json::from_str(text).map_err(|error| {
        json::broken(&error, "the queries of GetMetricData, with Id and MetricStat")
    })?;
    let (Queries::List(list) | Queries::Request { metric_data_queries: list }) = queries;
    let with_metric = list.into_iter().filter_map(|query| Some((query.id, query.metric_stat?)));
    Ok(with_metric.collect())
}

impl Answered {
    fn refuse_incomplete(&self, place: &str, hints: &Hints) -> Result<(), Broken> {
        let Some(code) = self.status_code.as_deref().filter(|code| *code != "Complete") else {
            return Ok(());
        };
        if code == "PartialData" && hints.allows_partial {
            return Ok(());
        }
        let found = format!("{place}: {code}");
        let expected = match code {
            "PartialData" => "StatusCode Complete; ask again for the rest, or allow a part",
            _ => "StatusCode Complete; ask again, with permission for this metric",
        };
        Err(Broken::whole(&found, expected))
    }

    fn series(
        self,
        place: String,
        queries: &BTreeMap<String, MetricStat>,
    ) -> Result<Option<Series>, Broken> {
        if self.timestamps.len() != self.values.len() {
            let (times, values) = (self.timestamps.len(), self.values.len());
            let expected = format!("as many Values ({values}) as Timestamps ({times})");
            return Err(Broken::whole(&place, expected));
        }
        let times = self.timestamps.into_iter().map(|time| time.0);
        let points = times.zip(self.values).collect();
        let series = if let Some(query) = queries.get(&self.id) {
            let Some(metric) = Metric::find(&query.metric.metric_name) else { return Ok(None) };
            let dimensions = &query.metric.dimensions;
            let volume = dimensions.iter().find(|dimension| dimension.name == "VolumeId");
            Series {
                place,
                volume: volume.map(|volume| volume.value.clone()),
                metric,
                statistic: Some(Statistic::of(&query.stat)),
                points,
            }
        } else {
            let Some(metric) = Metric::find(&self.label) else {
                if self.label.contains("Volume") {
                    // A metric that is known not to be needed.
                    return Ok(None);
                }
                return Err(Broken::whole(
                    &place,
                    "a metric of a volume in the Label, as in vol-0123456789abcdef0 \
                     VolumeReadOps; or give the text of the queries",
                ));
            };
            Series {
                place,
                volume: volume_in(&self.label).map(str::to_owned),
                metric,
                statistic: Statistic::find(&self.label),
                points,
            }
        };
        Ok(Some(series))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Clock, Kind};

    const SAMPLE: &str = include_str!("../../../samples/cloudwatch_data.json");

    fn read_with(text: &str, hints: &Hints) -> Read {
        read(&mut text.as_bytes(), hints)
    }

    #[test]
    fn stretches_are_told_apart_and_absence_is_unknown() {
        let traces = read_with(SAMPLE, &Hints::default()).unwrap();
        let [trace] = traces.as_slice() else { panic!("one volume") };
        assert_eq!((trace.name.as_str(), trace.clock), ("vol-0123456789abcdef0", Clock::Unix));
        assert_eq!(trace.columns.requests, Some(Kind::Sum));
        assert_eq!(trace.columns.queue, Some(Kind::Mean));
        let lengths: Vec<u64> = trace.intervals.iter().map(|at| at.length_ms / 1_000).collect();
        assert_eq!(lengths, [300, 300, 300, 300, 60, 60, 60, 60, 60, 60]);
        let first = trace.intervals[0];
        assert_eq!((first.reads, first.write_bytes), (30_000, 122_880_000));
        assert_eq!((first.read_ns, first.idle_ms), (Some(30_000_000_000), Some(75_000)));
        assert_eq!((first.queued_milli, first.balance_ppm), (Some(150), None));
        assert_eq!(first.is_censored, None);
        let censored: Vec<_> = trace.intervals.iter().skip(4).map(|at| at.is_censored).collect();
        let not = Some(false);
        assert_eq!(censored, [not, Some(true), not, not, not, not]);
        assert_eq!(trace.intervals[4].balance_ppm, Some(995_000));
        assert_eq!(
            trace.notes,
            [
                Note::Remark(
                    "periods inferred from the least spacing: 300 s from 2026-11-25T18:40:00Z, \
                     60 s from 2026-11-25T19:00:00Z"
                        .to_owned()
                ),
                Note::Remark(
                    "the statistic is not said; Sum is assumed, and Average of VolumeQueueLength \
                     and BurstBalance"
                        .to_owned()
                ),
            ]
        );
    }

    #[test]
    fn the_queries_say_volume_statistic_and_period() {
        let text = include_str!("../../../samples/cloudwatch_data_ids.json");
        let queries = include_str!("../../../samples/cloudwatch_queries.json");
        let hints = Hints { queries: Some(queries.to_owned()), ..Hints::default() };
        let traces = read_with(text, &hints).unwrap();
        assert_eq!(traces[0].name, "vol-0123456789abcdef0");
        let missing = "not in the answer, and so unknown: VolumeReadBytes, VolumeWriteBytes";
        assert_eq!(traces[0].notes, [Note::Remark(missing.to_owned())]);

        let hints = Hints { queries: Some(queries.replace("Sum", "Average")), ..Hints::default() };
        let broken = read_with(text, &hints).unwrap_err();
        assert!(broken.expected.starts_with("the statistic Sum of VolumeReadOps"), "{broken}");
    }

    #[test]
    fn a_part_of_an_answer_is_taken_if_it_is_allowed() {
        let text = include_str!("../../../samples/broken/cloudwatch_data.json");
        assert!(read_with(text, &Hints::default()).is_err());
        let hints = Hints { allows_partial: true, ..Hints::default() };
        let traces = read_with(text, &hints).unwrap();
        let remark = Note::Remark("the answer is a part of what was asked for".to_owned());
        assert!(traces[0].notes.contains(&remark));
    }

    #[test]
    fn pages_are_put_together_and_contradictions_are_refused() {
        let page = |values: &str| {
            format!(
                r#"{{"Id": "a", "Label": "vol-0123 VolumeReadOps Sum", "StatusCode": "Complete",
                "Timestamps": ["2026-11-25T19:01:00Z", "2026-11-25T19:00:00Z"],
                "Values": {values}}}"#
            )
        };
        let answer = |pages: [String; 2]| {
            read_with(
                &format!(r#"{{"MetricDataResults": [{}]}}"#, pages.join(",")),
                &Hints::default(),
            )
        };
        let traces = answer([page("[2, 1]"), page("[2, 1]")]).unwrap();
        assert_eq!(traces[0].intervals.len(), 2);
        let broken = answer([page("[2, 1]"), page("[2, 7]")]).unwrap_err();
        assert!(broken.expected.starts_with("one value of VolumeReadOps at 2026-11-25T19:00:00Z"));
    }

    /// Returns an answer with a series for each metric, of minutes from 19:00 on; `-1` is no point.
    fn answer(series: &[(&str, &[f64])]) -> String {
        let result = |(label, values): &(&str, &[f64])| {
            let known = || (0..).zip(*values).filter(|(_, value)| **value >= 0.0);
            let time = |(minute, _)| format!("\"2026-11-25T19:{minute:02}:00Z\"");
            let times: Vec<String> = known().map(time).collect();
            let values: Vec<String> = known().map(|(_, value)| value.to_string()).collect();
            format!(
                r#"{{"Id": "a", "Label": "vol-0123 {label}", "StatusCode": "Complete",
                "Timestamps": [{}], "Values": [{}]}}"#,
                times.join(","),
                values.join(",")
            )
        };
        let all: Vec<String> = series.iter().map(result).collect();
        format!(r#"{{"MetricDataResults": [{}]}}"#, all.join(","))
    }

    /// On Xen instances there is no point of VolumeReadBytes if nothing was read.
    #[test]
    fn bytes_are_none_where_operations_are_none() {
        let text = answer(&[
            ("VolumeReadOps Sum", &[600.0, 0.0, 0.0, 0.0]),
            ("VolumeReadBytes Sum", &[2_457_600.0, -1.0, -1.0, -1.0]),
            ("VolumeWriteOps Sum", &[60.0, 360_000.0, 360_000.0, 60.0]),
            ("VolumeWriteBytes Sum", &[245_760.0, 1.4e9, 1.4e9, 245_760.0]),
        ]);
        let traces = read_with(&text, &Hints::default()).unwrap();
        let [trace] = traces.as_slice() else { panic!("one volume") };
        let writes: Vec<u64> = trace.intervals.iter().map(|at| at.writes).collect();
        assert_eq!(writes, [60, 360_000, 360_000, 60]);
        assert_eq!(trace.partial().count(), 0);
    }

    #[test]
    fn a_period_that_is_known_in_part_still_shows_use() {
        let text = answer(&[
            ("VolumeReadOps Sum", &[600.0, -1.0, 600.0]),
            ("VolumeReadBytes Sum", &[2_457_600.0, -1.0, -1.0]),
            ("VolumeWriteOps Sum", &[60.0, 360_000.0, 60.0]),
            ("VolumeWriteBytes Sum", &[245_760.0, 1.4e9, 245_760.0]),
        ]);
        let trace = read_with(&text, &Hints::default()).unwrap().remove(0);
        assert_eq!(trace.intervals[1].writes, 360_000);
        let partial: Vec<u64> = trace.partial().map(|at| at.reads).collect();
        assert_eq!(partial, [0, 600]);
        let merged = crate::read::merge(vec![trace]).unwrap();
        let remark = "intervals known in part: 2, 2 min in all; what is missing there counts as \
            nothing, so that more may have been asked for";
        assert!(merged.notes.contains(&Note::Remark(remark.to_owned())), "{:?}", merged.notes);
    }

    #[test]
    fn fractions_of_operations_are_no_sum() {
        let ops: &[f64] = &[600.5, 300.25];
        for label in ["VolumeReadOps", "VolumeWriteOps", "VolumeReadBytes", "VolumeWriteBytes"] {
            let broken = read_with(&answer(&[(label, ops)]), &Hints::default()).unwrap_err();
            let start = format!("the Sum of {label} of vol-0123, which is whole: 600.5 is of");
            assert!(broken.expected.starts_with(&start), "{broken}");
            assert!(broken.expected.contains("\"Stat\": \"Sum\""), "{broken}");
        }
        // Numbers of seconds have fractions.
        let whole: &[f64] = &[600.0, 300.0];
        let text = answer(&[("VolumeReadOps", whole), ("VolumeIdleTime", ops)]);
        assert!(read_with(&text, &Hints::default()).is_ok());
    }

    #[test]
    fn averages_with_their_numbers_of_samples_are_sums() {
        let averages = ("VolumeReadOps Average", [0.5, 0.1].as_slice());
        let counts = ("VolumeReadOps SampleCount", [1_200.0, 30.0].as_slice());
        let traces = read_with(&answer(&[averages, counts]), &Hints::default()).unwrap();
        let reads: Vec<u64> = traces[0].intervals.iter().map(|at| at.reads).collect();
        assert_eq!(reads, [600, 3]);
        let broken = read_with(&answer(&[averages]), &Hints::default()).unwrap_err();
        assert!(broken.expected.starts_with("the statistic Sum of VolumeReadOps"), "{broken}");
    }
}
