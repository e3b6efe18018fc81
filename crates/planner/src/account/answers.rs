//! Answers of GetMetricData: joined by query over their pages, checked, and divided by volume.

use super::queries::Asked;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The one status of a result that has all its points.
const COMPLETE: &str = "Complete";

/// An answer with all its pages, as the AWS CLI joins them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    metric_data_results: Vec<Series>,
    next_token: Option<String>,
}

/// The points of a query.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Series {
    id: String,
    #[serde(default)]
    label: String,
    #[serde(default)]
    timestamps: Vec<Value>,
    #[serde(default)]
    values: Vec<f64>,
    #[serde(default)]
    status_code: String,
}

/// A file with the metrics of one volume.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct OfVolume<'a> {
    metric_data_results: Vec<&'a Series>,
}

/// The series of an answer, by the id of their query.
#[derive(Debug)]
pub struct Answered(BTreeMap<String, Series>);

impl Answered {
    /// Reads the answer to these queries.
    ///
    /// # Errors
    /// If it is no such answer, or lacks points of a query.
    pub fn read(text: &[u8], asked: &[Asked<'_>]) -> Result<Self, Refusal> {
        let answer: Answer = serde_json::from_slice(text).map_err(|error| {
            Refusal::new(format!("aws cloudwatch get-metric-data printed no answer: {error}"))
                .hint("look whether an alias or a setting of the AWS CLI changes its output")
        })?;
        if answer.next_token.is_some_and(|token| !token.is_empty()) {
            let message = "aws cloudwatch get-metric-data printed one page of several";
            return Err(Refusal::new(message)
                .hint("look whether a setting of the AWS CLI turns off its pagination"));
        }
        let mut all: BTreeMap<String, Series> = BTreeMap::new();
        for page in answer.metric_data_results {
            let series = all.entry(page.id.clone()).or_default();
            series.timestamps.extend(page.timestamps);
            series.values.extend(page.values);
            // Of several pages the last one has the status of the whole.
            series.status_code = page.status_code;
            series.id = page.id;
        }
        for one in asked {
            let series = all.get_mut(&one.id);
            let status = series.as_ref().map_or("no result", |series| series.status_code.as_str());
            if status != COMPLETE {
                let message = format!("CloudWatch has no whole answer for {}", one.label());
                return Err(Refusal::new(format!("{message}: {status}")).hint(
                    "try again; if it is Forbidden, the credentials need \
                     cloudwatch:GetMetricData",
                ));
            }
            let series = series.expect("invariant: it has a status");
            if series.timestamps.len() != series.values.len() {
                let [times, values] = [series.timestamps.len(), series.values.len()];
                let message = format!("{}: {times} times and {values} values", one.label());
                return Err(Refusal::new(message));
            }
            series.label = one.label();
        }
        Ok(Self(all))
    }

    /// Returns the text of a file with these metrics of one volume, without those that have no
    /// point; `None` if none has one.
    #[must_use]
    pub fn of_volume(&self, asked: &[&Asked<'_>]) -> Option<String> {
        let series = asked.iter().filter_map(|metric| self.0.get(&metric.id));
        let metric_data_results: Vec<&Series> =
            series.filter(|series| !series.values.is_empty()).collect();
        if metric_data_results.is_empty() {
            return None;
        }
        let text = serde_json::to_string(&OfVolume { metric_data_results });
        Some(text.expect("invariant: numbers and texts are JSON") + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(id: &str) -> Asked<'static> {
        let metric = "VolumeReadOps";
        Asked { id: id.to_owned(), volume: "vol-0123456789abcdef0", metric, statistic: "Sum" }
    }

    fn page(id: &str, minutes: &[u32], status: &str) -> Value {
        let times = minutes.iter().map(|minute| format!("2026-11-25T19:{minute:02}:00+00:00"));
        json!({
            "Id": id,
            "Label": "what the server says",
            "Timestamps": times.collect::<Vec<_>>(),
            "Values": minutes,
            "StatusCode": status,
        })
    }

    fn read(pages: &[Value], ids: &[&str]) -> Result<Answered, Refusal> {
        let text = json!({ "MetricDataResults": pages, "Messages": [] }).to_string();
        let asked: Vec<Asked<'_>> = ids.iter().map(|id| asked(id)).collect();
        Answered::read(text.as_bytes(), &asked)
    }

    #[test]
    fn pages_are_joined_and_the_last_one_has_the_status() {
        let pages = [
            page("m0", &[1, 2], "PartialData"),
            page("m1", &[], "Complete"),
            page("m0", &[3], "Complete"),
        ];
        let answered = read(&pages, &["m0", "m1"]).unwrap();
        let [m0, m1] = [asked("m0"), asked("m1")];
        let text = answered.of_volume(&[&m0, &m1]).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let results = value["MetricDataResults"].as_array().unwrap();
        assert_eq!(results.len(), 1, "one without points is left out: {value}");
        assert_eq!(results[0]["Values"], json!([1.0, 2.0, 3.0]));
        assert_eq!(results[0]["Label"], "vol-0123456789abcdef0 VolumeReadOps Sum");
        assert_eq!(answered.of_volume(&[&m1]), None);
    }

    #[test]
    fn an_answer_that_lacks_something_is_refused() {
        let complete = page("m0", &[1], "Complete");
        for (pages, part) in [
            (vec![page("m0", &[1], "PartialData")], "VolumeReadOps Sum: PartialData"),
            (vec![page("m0", &[1], "Forbidden")], "VolumeReadOps Sum: Forbidden"),
            (vec![complete.clone(), page("m0", &[2], "PartialData")], "PartialData"),
            (vec![page("m7", &[1], "Complete")], "VolumeReadOps Sum: no result"),
        ] {
            let message = read(&pages, &["m0"]).unwrap_err().message;
            assert!(message.contains(part), "{message}");
        }
        let mut uneven = complete.clone();
        uneven["Values"] = json!([1, 2]);
        let message = read(&[uneven], &["m0"]).unwrap_err().message;
        assert!(message.contains("1 times and 2 values"), "{message}");
        let paged = json!({ "MetricDataResults": [complete], "NextToken": "more" }).to_string();
        let message = Answered::read(paged.as_bytes(), &[asked("m0")]).unwrap_err().message;
        assert!(message.contains("one page of several"), "{message}");
        for text in ["", "{}", "[1]", "{\"MetricDataResults\": [{}]}", "hello"] {
            let refusal = Answered::read(text.as_bytes(), &[]).unwrap_err();
            assert!(refusal.message.contains("printed no answer"), "{text}");
        }
    }
}
