//! Reads the answer of GetMetricData, as `aws cloudwatch get-metric-data` prints it.
//!
//! It has neither statistic nor period. With the text of the queries both are known, and a series
//! is identified by its `Id`. Without it, a series is identified by its `Label`.

mod plain;

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use serde::Deserialize;

use super::{Named, Series, Statistic, Timestamp, assemble, volume_in};
use crate::read::{Broken, Hints, Read, json};
use crate::trace::Note;

const FORM: &str = "the answer of GetMetricData, with MetricDataResults";
/// The status of a result that another page continues.
const PARTIAL: &str = "PartialData";

/// An answer, or a result of one, as `--query MetricDataResults` prints them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    metric_data_results: Option<Vec<Answered>>,
    next_token: Option<String>,
    #[serde(default)]
    label: String,
    id: Option<String>,
    #[serde(default)]
    timestamps: Vec<Timestamp>,
    #[serde(default)]
    values: Vec<f64>,
    status_code: Option<String>,
}

/// A page of an answer.
#[derive(Debug)]
struct Answer {
    results: Vec<Answered>,
    is_continued: bool,
}

#[derive(Deserialize, Debug)]
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
pub(crate) struct MetricStat {
    pub metric: Queried,
    period: u64,
    stat: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Queried {
    pub metric_name: String,
    #[serde(default)]
    pub dimensions: Vec<Dimension>,
}

impl Queried {
    /// Returns the volume, or the instance of RDS, whose metric it is.
    fn volume(&self) -> Option<&str> {
        let is_volume = |name: &str| matches!(name, "VolumeId" | "DBInstanceIdentifier");
        let volume = self.dimensions.iter().find(|dimension| is_volume(&dimension.name));
        volume.map(|volume| volume.value.as_str())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Dimension {
    pub name: String,
    pub value: String,
}

/// Reads an answer, or several: pages, of volumes one after the other. [`Hints::queries`] is the
/// text of the queries, if it is available.
///
/// # Errors
/// Returns [`Broken`] if an answer is invalid, incomplete, or has no metric of a volume.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    Answers::read(input)?.traces(hints)
}

/// The answers of a text. They may be pages of an answer whose other pages are other texts.
pub struct Answers(Vec<Answer>);

/// The place of the last page of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LastPage {
    /// It is among the texts.
    Given,
    /// It may be in another text, with metrics of other volumes alone.
    Anywhere,
}

impl Answers {
    /// Reads the answers of a text.
    ///
    /// # Errors
    /// Returns [`Broken`] if the text is invalid.
    pub fn read(input: &mut dyn BufRead) -> Result<Self, Broken> {
        let text = json::slurp(input, FORM)?;
        match plain::answers(&text) {
            Some(answers) => Ok(Self(answers)),
            None => answers(json::documents_of(&text, FORM)?).map(Self),
        }
    }

    /// Returns whether the next page of the last answer is in another text.
    pub fn is_continued(&self) -> bool {
        self.0.last().is_some_and(|answer| answer.is_continued)
    }

    /// Removes the series of other volumes than the wanted ones. Returns whether some are left,
    /// or there was none.
    ///
    /// # Errors
    /// Returns [`Broken`] if the text of the queries is invalid.
    pub fn retain(
        &mut self,
        hints: &Hints,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<bool, Broken> {
        let queries = queries_of(hints)?;
        let mut is_empty = true;
        let mut has_removed = false;
        for answer in &mut self.0 {
            let count = answer.results.len();
            answer.results.retain(|answered| {
                answered.volume(&queries).is_none_or(|volume| is_wanted(&volume))
            });
            is_empty &= answer.results.is_empty();
            has_removed |= answer.results.len() < count;
        }
        Ok(!is_empty || !has_removed)
    }

    /// Returns the traces of a text that has all pages of its answers, in their order.
    ///
    /// # Errors
    /// Returns [`Broken`] if an answer is incomplete, or has no metric of a volume.
    pub fn traces(self, hints: &Hints) -> Read {
        let queries = queries_of(hints)?;
        // A page with a token is continued by the next one.
        let has_rest = self.is_continued();
        if has_rest && !hints.allows_partial {
            return Err(no_last_page());
        }
        let mut is_partial = has_rest;
        let mut all = Vec::new();
        let mut pages = Vec::new();
        for answer in self.0 {
            let is_continued = answer.is_continued;
            pages.extend(answer.results);
            if is_continued {
                continue;
            }
            let pages = std::mem::take(&mut pages);
            is_partial |= take(pages, Order::OfPages, &queries, hints, &mut all)?;
        }
        is_partial |= take(pages, Order::OfPages, &queries, hints, &mut all)?;
        traces_of(all, is_partial, &queries, hints)
    }

    /// Returns the traces of several texts that are pages of answers, in any order. No text says
    /// which one continues it: a series is whole if a page at either end of its time says so, and
    /// a page that is missing between others is a gap.
    ///
    /// # Errors
    /// Returns [`Broken`] if an answer is incomplete, or has no metric of a volume.
    pub fn joined(texts: Vec<Self>, last_page: LastPage, hints: &Hints) -> Read {
        let queries = queries_of(hints)?;
        let mut has_rest = last_page == LastPage::Given;
        let mut pages = Vec::new();
        for answer in texts.into_iter().flat_map(|text| text.0) {
            has_rest &= answer.is_continued;
            pages.extend(answer.results);
        }
        if has_rest && !hints.allows_partial {
            return Err(no_last_page());
        }
        let mut all = Vec::new();
        let is_partial = take(pages, Order::Unknown, &queries, hints, &mut all)? || has_rest;
        traces_of(all, is_partial, &queries, hints)
    }
}

fn no_last_page() -> Broken {
    Broken::whole(
        "NextToken",
        "an answer with all pages; give all of them, ask on with --starting-token, or allow a part",
    )
}

/// Returns the answers of documents. Results without an answer around them are one answer.
fn answers(documents: Vec<Document>) -> Result<Vec<Answer>, Broken> {
    let mut answers = Vec::new();
    let mut bare = Vec::new();
    for document in documents {
        let Document { label, timestamps, values, status_code, .. } = document;
        match (document.metric_data_results, document.id) {
            (Some(results), _) => {
                let is_continued = document.next_token.is_some_and(|token| !token.is_empty());
                answers.push(Answer { results, is_continued });
            }
            (None, Some(id)) => bare.push(Answered { id, label, timestamps, values, status_code }),
            (None, None) => return Err(Broken::whole("no MetricDataResults", FORM)),
        }
    }
    if !bare.is_empty() {
        answers.push(Answer { results: bare, is_continued: false });
    }
    Ok(answers)
}

/// Returns the queries by their `Id`; none without their text.
fn queries_of(hints: &Hints) -> Result<BTreeMap<String, MetricStat>, Broken> {
    hints.queries.as_deref().map_or_else(|| Ok(BTreeMap::new()), queries)
}

fn traces_of(
    all: Vec<Series>,
    is_partial: bool,
    queries: &BTreeMap<String, MetricStat>,
    hints: &Hints,
) -> Read {
    let period_ms = queries.values().map(|query| query.period.saturating_mul(1_000)).min();
    let mut traces = assemble(all, period_ms, true, hints)?;
    if is_partial {
        for trace in &mut traces {
            trace.notes.push(Note::Remark("the answer is a part of what was asked for".to_owned()));
        }
    }
    Ok(traces)
}

/// The order of the pages of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// As they were answered.
    OfPages,
    /// Any, as that of files.
    Unknown,
}

/// Adds the series of all pages of an answer. Returns whether some are partial.
fn take(
    pages: Vec<Answered>,
    order: Order,
    queries: &BTreeMap<String, MetricStat>,
    hints: &Hints,
    all: &mut Vec<Series>,
) -> Result<bool, Broken> {
    let mut of_query: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (index, answered) in pages.iter().enumerate() {
        of_query.entry((&answered.id, &answered.label)).or_default().push(index);
    }
    let last = of_query.into_values().filter_map(|mut of_query| {
        if order == Order::Unknown {
            by_time(&pages, &mut of_query);
        }
        of_query.last().copied()
    });
    let last: BTreeSet<usize> = last.collect();
    let mut is_partial = false;
    for (index, answered) in pages.into_iter().enumerate() {
        let place = format!("MetricDataResults[{index}], {} {}", answered.id, answered.label);
        let is_last = last.contains(&index);
        answered.refuse_incomplete(&place, is_last, hints)?;
        is_partial |= is_last && answered.status_code.as_deref() == Some(PARTIAL);
        all.extend(answered.series(place, queries)?);
    }
    Ok(is_partial)
}

/// Sorts the results of a query as its pages were answered: by time, in the direction in which a
/// whole one is last. One without points has no time, and is last if it is whole.
fn by_time(pages: &[Answered], of_query: &mut [usize]) {
    let is_part = |index: &usize| {
        pages.get(*index).is_some_and(|page| page.status_code.as_deref() == Some(PARTIAL))
    };
    let time = |index: &usize| {
        let first = pages.get(*index).and_then(|page| page.timestamps.first());
        (first.is_none() && !is_part(index), first.map_or(0, |time| time.0))
    };
    of_query.sort_by_key(time);
    if of_query.last().is_some_and(is_part) {
        of_query.reverse();
    }
}

/// Reads the text of the queries: their metrics by `Id`.
///
/// # Errors
/// Returns [`Broken`] if it is no such text.
pub(crate) fn queries(text: &str) -> Result<BTreeMap<String, MetricStat>, Broken> {
    let queries: Queries = serde_json::from_str(text).map_err(|error| {
        // The line that the error has is one of this text, and not of the recording.
        let found = format!("the text of the queries: {error}");
        Broken::whole(&found, "the queries of GetMetricData, with Id and MetricStat")
    })?;
    let (Queries::List(list) | Queries::Request { metric_data_queries: list }) = queries;
    let with_metric = list.into_iter().filter_map(|query| Some((query.id, query.metric_stat?)));
    Ok(with_metric.collect())
}

impl Answered {
    /// Returns an error if it is a part, and the last page of its query.
    fn refuse_incomplete(&self, place: &str, is_last: bool, hints: &Hints) -> Result<(), Broken> {
        let Some(code) = self.status_code.as_deref().filter(|code| *code != "Complete") else {
            return Ok(());
        };
        if code == PARTIAL && (hints.allows_partial || !is_last) {
            return Ok(());
        }
        let found = format!("{place}: {code}");
        let expected = match code {
            PARTIAL => "StatusCode Complete; ask again for the rest, or allow a part",
            _ => "StatusCode Complete; ask again, with permission for this metric",
        };
        Err(Broken::whole(&found, expected))
    }

    /// Returns the volume that its query or its label names.
    fn volume(&self, queries: &BTreeMap<String, MetricStat>) -> Option<String> {
        match queries.get(&self.id) {
            Some(query) => query.metric.volume().map(str::to_owned),
            None => volume_in(&self.label, Named::find(&self.label)?).map(str::to_owned),
        }
    }

    fn series(
        self,
        place: String,
        queries: &BTreeMap<String, MetricStat>,
    ) -> Result<Option<Series>, Broken> {
        if self.timestamps.len() != self.values.len() {
            let times = self.timestamps.len();
            let values = self.values.len();
            let expected = format!("as many Values ({values}) as Timestamps ({times})");
            return Err(Broken::whole(&place, expected));
        }
        let times = self.timestamps.into_iter().map(|time| time.0);
        let points = times.zip(self.values).collect();
        let series = if let Some(query) = queries.get(&self.id) {
            let Some(named) = Named::find(&query.metric.metric_name) else { return Ok(None) };
            Series {
                place,
                volume: query.metric.volume().map(str::to_owned),
                named,
                statistic: Some(Statistic::of(&query.stat)),
                points,
            }
        } else {
            let Some(named) = Named::find(&self.label) else {
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
                volume: volume_in(&self.label, named).map(str::to_owned),
                named,
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
        let lengths: Vec<u64> =
            trace.intervals.iter().map(|interval| interval.length_ms / 1_000).collect();
        assert_eq!(lengths, [300, 300, 300, 300, 60, 60, 60, 60, 60, 60]);
        let first = trace.intervals[0];
        assert_eq!((first.reads, first.write_bytes), (30_000, 122_880_000));
        assert_eq!((first.read_ns, first.idle_ms), (Some(30_000_000_000), Some(75_000)));
        assert_eq!((first.queued_milli, first.balance_ppm), (Some(150), None));
        assert_eq!(first.is_censored, None);
        let censored: Vec<_> =
            trace.intervals.iter().skip(4).map(|interval| interval.is_censored).collect();
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
        assert!(broken.expected.contains("Ask with \"Stat\": \"Sum\" in the queries"), "{broken}");
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

    /// Each series has points every five minutes, from another minute on.
    #[test]
    fn metrics_that_begin_at_offsets_have_their_own_period() {
        let result = |metric: &str, minutes: [u32; 4]| {
            let times = minutes.map(|minute| format!("\"2026-11-25T19:{minute:02}:00Z\""));
            let times = times.join(",");
            format!(
                r#"{{"Id": "m", "Label": "vol-0123 {metric}", "StatusCode": "Complete",
                "Timestamps": [{times}], "Values": {minutes:?}}}"#
            )
        };
        let results = [
            result("VolumeReadOps", [10, 15, 20, 30]),
            result("VolumeWriteOps", [11, 16, 21, 26]),
            result("VolumeQueueLength", [9, 14, 19, 24]),
        ];
        let text = format!(r#"{{"MetricDataResults": [{}]}}"#, results.join(","));
        let traces = read_with(&text, &Hints::default()).unwrap();
        let found = traces[0].intervals.iter().map(|interval| {
            let minute = interval.start_ms / 60_000 % 60;
            let queued = interval.queued_milli.map(|queued| queued / 1_000);
            (minute, interval.length_ms / 60_000, interval.reads, interval.writes, queued)
        });
        let found: Vec<_> = found.collect();
        let expected = [
            (10, 5, 10, 11, Some(9)),
            (15, 5, 15, 16, Some(14)),
            (20, 5, 20, 21, Some(19)),
            (25, 5, 0, 26, Some(24)),
            (30, 5, 30, 0, None),
        ];
        assert_eq!(found, expected);
        let remark = "VolumeWriteOps, VolumeQueueLength with periods that begin at other times \
                      than those of VolumeReadOps: ";
        let is_there = |note: &Note| matches!(note, Note::Remark(it) if it.starts_with(remark));
        assert!(traces[0].notes.iter().any(is_there), "{:?}", traces[0].notes);
    }

    /// Returns a page with points of some minutes of both directions.
    fn page_of(minutes: &[u32], status: &str, token: &str) -> Answers {
        let times: Vec<String> =
            minutes.iter().map(|minute| format!("\"2026-11-25T19:{minute:02}:00Z\"")).collect();
        let [times, values] = [times.join(","), format!("{minutes:?}")];
        let result = |id: &str, metric: &str| {
            format!(
                r#"{{"Id": "{id}", "Label": "vol-0123 {metric}", "StatusCode": "{status}",
                "Timestamps": [{times}], "Values": {values}}}"#
            )
        };
        let results = [result("r", "VolumeReadOps"), result("w", "VolumeWriteOps")].join(",");
        let text = format!(r#"{{"MetricDataResults": [{results}], "NextToken": "{token}"}}"#);
        Answers::read(&mut text.as_bytes()).unwrap()
    }

    /// Returns the reads of pages in texts of their own.
    fn joined(texts: Vec<Answers>, last_page: LastPage) -> Result<Vec<u64>, Broken> {
        let traces = Answers::joined(texts, last_page, &Hints::default())?;
        let [trace] = traces.as_slice() else { panic!("one volume") };
        Ok(trace.intervals.iter().map(|interval| interval.reads).collect())
    }

    #[test]
    fn pages_in_texts_of_their_own_are_one_answer_in_any_order() {
        let forward = || {
            [
                page_of(&[1, 2], "PartialData", "a"),
                page_of(&[3, 4], "PartialData", "b"),
                page_of(&[5], "Complete", ""),
            ]
        };
        let backward = || {
            [
                page_of(&[5, 4], "PartialData", "a"),
                page_of(&[3, 2], "PartialData", "b"),
                page_of(&[1], "Complete", ""),
            ]
        };
        for pages in [forward, backward] {
            for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                let mut pages = pages().map(Some);
                let texts = order.map(|page| pages[page].take().unwrap()).into();
                assert_eq!(joined(texts, LastPage::Given), Ok(vec![1, 2, 3, 4, 5]), "{order:?}");
            }
            // Without the last page, with tokens or by its status.
            let [first, second, _] = pages();
            let broken = joined(vec![first, second], LastPage::Given).unwrap_err();
            assert_eq!(broken.found, "NextToken");
            let [first, second, _] = pages();
            let broken = joined(vec![first, second], LastPage::Anywhere).unwrap_err();
            assert!(broken.found.ends_with("PartialData"), "{broken}");
        }
        // Two answers of different days, one of which lacks its last page.
        let mut texts: Vec<Answers> = forward().into();
        texts.push(page_of(&[11, 12], "PartialData", "c"));
        assert!(joined(texts, LastPage::Given).unwrap_err().found.ends_with("PartialData"));
        // A page between two others that is missing is a gap.
        let [first, _, last] = forward();
        assert_eq!(joined(vec![first, last], LastPage::Given), Ok(vec![1, 2, 5]));
        // The next page has other metrics, and is in the file of another volume.
        let other = || vec![page_of(&[1, 2], "Complete", "a")];
        assert_eq!(joined(other(), LastPage::Anywhere), Ok(vec![1, 2]));
        assert_eq!(joined(other(), LastPage::Given).unwrap_err().found, "NextToken");
    }

    #[test]
    fn series_of_other_volumes_are_removed_before_they_are_read() {
        let hints = Hints::default();
        let mut answers = page_of(&[1, 2], "Complete", "");
        assert_eq!(answers.retain(&hints, |volume| volume == "vol-0123"), Ok(true));
        assert_eq!(answers.0[0].results.len(), 2);
        assert_eq!(answers.retain(&hints, |_| false), Ok(false));
        assert_eq!(answers.0[0].results.len(), 0);
        let none = r#"{"MetricDataResults": []}"#;
        let mut none = Answers::read(&mut none.as_bytes()).unwrap();
        assert_eq!(none.retain(&hints, |_| false), Ok(true), "its reader refuses it");
    }

    #[test]
    fn results_without_an_answer_around_them_are_read() {
        let pages = |statuses: [&str; 2]| {
            let [first, second] = statuses;
            let text = format!(
                r#"[{{"Id": "r", "Label": "vol-0123 VolumeReadOps", "StatusCode": "{first}",
                    "Timestamps": ["2026-11-25T19:01:00Z"], "Values": [1]}},
                    {{"Id": "r", "Label": "vol-0123 VolumeReadOps", "StatusCode": "{second}",
                    "Timestamps": ["2026-11-25T19:02:00Z"], "Values": [2]}}]"#
            );
            read_with(&text, &Hints::default())
        };
        assert_eq!(pages(["PartialData", "Complete"]).unwrap()[0].intervals.len(), 2);
        assert!(pages(["Complete", "PartialData"]).is_err());
        let broken = read_with(r#"{"Messages": []}"#, &Hints::default()).unwrap_err();
        assert_eq!(broken.found, "no MetricDataResults");
    }

    #[test]
    fn an_error_of_the_queries_says_that_it_is_theirs() {
        let hints = Hints { queries: Some("[\n1".to_owned()), ..Hints::default() };
        let broken = read_with(SAMPLE, &hints).unwrap_err();
        assert!(broken.found.starts_with("the text of the queries: EOF while"), "{broken}");
        assert!(broken.found.contains("line 2"), "{broken}");
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
        let writes: Vec<u64> = trace.intervals.iter().map(|interval| interval.writes).collect();
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
        let partial: Vec<u64> = trace.partial().map(|partial| partial.reads).collect();
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
        let reads: Vec<u64> = traces[0].intervals.iter().map(|interval| interval.reads).collect();
        assert_eq!(reads, [600, 3]);
        let broken = read_with(&answer(&[averages]), &Hints::default()).unwrap_err();
        assert!(broken.expected.starts_with("the statistic Sum of VolumeReadOps"), "{broken}");
        assert!(broken.expected.contains("Ask with \"Stat\": \"Sum\" in the queries"), "{broken}");
    }

    /// aws-cli joins the pages of an answer: all results of a query but the last are PartialData.
    #[test]
    fn a_result_is_partial_only_if_the_last_page_of_its_query_is() {
        let text = include_str!("../../../samples/cloudwatch_pages.json");
        let trace = read_with(text, &Hints::default()).unwrap().remove(0);
        assert_eq!(trace.intervals.len(), 4);
        let is_partial = |note: &Note| matches!(note, Note::Remark(it) if it.contains("a part of"));
        assert!(!trace.notes.iter().any(is_partial), "{:?}", trace.notes);
        let broken = read_with(&text.replace("Complete", "PartialData"), &Hints::default());
        assert!(broken.unwrap_err().expected.starts_with("StatusCode Complete"));
        let forbidden = text.replacen("PartialData", "Forbidden", 1);
        assert!(read_with(&forbidden, &Hints::default()).is_err());
    }

    #[test]
    fn answers_that_follow_each_other_are_pages_or_of_other_volumes() {
        let page = |minute: u32, status: &str, token: &str| {
            format!(
                r#"{{"MetricDataResults": [{{"Id": "a", "Label": "vol-0123 VolumeReadOps Sum",
                "StatusCode": "{status}", "Timestamps": ["2026-11-25T19:{minute:02}:00Z",
                "2026-11-25T19:{:02}:00Z"], "Values": [1, 2]}}]{token}}}"#,
                minute + 1
            )
        };
        let token = r#", "NextToken": "x""#;
        let pages = format!("{}\n{}", page(0, "PartialData", token), page(2, "Complete", ""));
        assert_eq!(read_with(&pages, &Hints::default()).unwrap()[0].intervals.len(), 4);
        let pages = format!("[{}, {}]", page(0, "Complete", ""), page(2, "PartialData", token));
        assert_eq!(read_with(&pages, &Hints::default()).unwrap_err().found, "NextToken");
        let other = page(0, "Complete", "").replace("vol-0123", "vol-4567");
        let both = format!("{}{other}", page(0, "Complete", ""));
        assert_eq!(read_with(&both, &Hints::default()).unwrap().len(), 2);
    }

    #[test]
    fn metrics_of_rds_are_rates() {
        let trace =
            read_with(include_str!("../../../samples/cloudwatch_rds.json"), &Hints::default());
        let trace = trace.unwrap().remove(0);
        assert_eq!((trace.name.as_str(), trace.columns.requests), ("orders-db", Some(Kind::Mean)));
        let first = trace.intervals[0];
        assert_eq!((first.reads, first.writes), (6_015, 1_200));
        assert_eq!((first.read_bytes, first.write_bytes), (98_549_760, 9_830_400));
        // 0.5 ms a read.
        assert_eq!((first.read_ns, first.queued_milli), (Some(3_007_500_000), Some(50)));
        let text = include_str!("../../../samples/cloudwatch_rds.json").replace("Average", "Sum");
        let broken = read_with(&text, &Hints::default()).unwrap_err();
        assert!(broken.expected.starts_with("the statistic Average of ReadIOPS"), "{broken}");
        let unsaid = text.replace(" Sum", "");
        assert_eq!(read_with(&unsaid, &Hints::default()).unwrap()[0].intervals, trace.intervals);
    }

    #[test]
    fn counters_of_the_agent_are_amounts_with_times_in_microseconds() {
        let prefix = "diskio_ebs";
        let text = answer(&[
            (&format!("{prefix}_total_read_ops Sum"), &[600.0, 1_200.0]),
            (&format!("{prefix}_total_read_bytes Sum"), &[2_457_600.0, 4_915_200.0]),
            (&format!("{prefix}_total_read_time Sum"), &[300_000.0, 900_000.0]),
            (&format!("{prefix}_volume_performance_exceeded_iops Sum"), &[0.0, 0.0]),
            (&format!("{prefix}_ec2_instance_performance_exceeded_iops Sum"), &[0.0, 40.0]),
        ]);
        let trace = read_with(&text, &Hints::default()).unwrap().remove(0);
        let last = trace.intervals[1];
        assert_eq!((last.reads, last.read_ns), (1_200, Some(900_000_000)));
        let delayed: Vec<_> = trace
            .intervals
            .iter()
            .map(|interval| {
                (interval.is_censored, interval.delayed.iops, interval.delayed.instance)
            })
            .collect();
        let no = Some(false);
        // The counter of throughput is missing.
        assert_eq!(delayed, [(None, no, no), (None, no, Some(true))]);
        let node = text.replace("diskio_ebs", "node_diskio_ebs");
        assert_eq!(read_with(&node, &Hints::default()).unwrap()[0].intervals, trace.intervals);
    }
}
