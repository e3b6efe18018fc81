//! The queries of GetMetricData: which metrics of a volume, in which steps, how many in a call.

use crate::fleet::Volume;
use crate::read::cloudwatch;
use evenkeel_core::volume::VolumeType;
use serde_json::{Value, json};

/// The most metrics of a call, by AWS's documentation of GetMetricData.
const METRICS_MAX: usize = 500;
/// The most points of a page of an answer, by the same documentation.
const PAGE_POINTS_MAX: u64 = 100_800;
/// The most points of a call, whose pages the AWS CLI joins.
const CALL_POINTS_MAX: u64 = 4 * PAGE_POINTS_MAX;
const MINUTE_S: u64 = 60;
const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 86_400;
/// CloudWatch keeps points of a minute for 15 days.
const MINUTES_KEPT_S: u64 = 15 * DAY_S;
/// CloudWatch keeps points of five minutes for 63 days.
const FIVE_MINUTES_KEPT_S: u64 = 63 * DAY_S;
/// The most volumes whose metrics are asked for in steps of a minute, unless a flag says it: a
/// volume has 200,000 points in 14 days of minutes.
const SHORT_STEPS_MAX: usize = 100;
/// Seconds of the longer steps.
const LONG_STEP_S: u64 = 300;
/// The part of a file's name that tells it from that of shorter steps.
pub const LONG_SUFFIX: &str = ".300s";

/// Returns the seconds of a step of an account with this number of volumes.
#[must_use]
pub const fn usual_step_s(volumes: usize) -> u64 {
    if volumes <= SHORT_STEPS_MAX { MINUTE_S } else { LONG_STEP_S }
}

/// A time that is asked for in steps of one length. All are in seconds; its ends are multiples of
/// the step since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The length of a step.
    pub step_s: u64,
    /// Its start.
    pub start_s: u64,
    /// Its end.
    pub end_s: u64,
}

impl Span {
    const fn points(self) -> u64 {
        (self.end_s - self.start_s) / self.step_s
    }

    /// Returns the part of a file's name that tells it from that of another span.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        if self.step_s == LONG_STEP_S { LONG_SUFFIX } else { "" }
    }
}

/// Returns the spans of the last `days` days before `now_s`, the oldest first: in steps of `step_s`
/// for as long as CloudWatch keeps such points, and in steps of five minutes before. An hour before
/// the end of that time is left out, because it passes while the calls run.
#[must_use]
pub fn spans(now_s: u64, days: u64, step_s: u64) -> Vec<Span> {
    let end_s = now_s - now_s % step_s;
    let start_s = end_s.saturating_sub(days * DAY_S);
    let kept = |kept_s: u64| {
        let from_s = now_s.saturating_sub(kept_s).saturating_add(HOUR_S);
        from_s.next_multiple_of(HOUR_S)
    };
    let coarse_start_s = start_s.max(kept(FIVE_MINUTES_KEPT_S)).next_multiple_of(LONG_STEP_S);
    if step_s == LONG_STEP_S {
        return vec![Span { step_s, start_s: coarse_start_s, end_s }];
    }
    let fine_start_s = start_s.max(kept(MINUTES_KEPT_S)).next_multiple_of(MINUTE_S);
    let fine = Span { step_s, start_s: fine_start_s, end_s };
    let coarse = Span { step_s: LONG_STEP_S, start_s: coarse_start_s, end_s: fine_start_s };
    let has_coarse = coarse_start_s < fine_start_s && start_s < fine_start_s;
    if has_coarse { vec![coarse, fine] } else { vec![fine] }
}

/// A metric of a volume, as it is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked<'a> {
    /// The name in the query and in the answer.
    pub id: String,
    /// The id of the volume.
    pub volume: &'a str,
    /// The name of the metric.
    pub metric: &'static str,
    /// The statistic that has the meaning of a step's value.
    pub statistic: &'static str,
}

impl Asked<'_> {
    /// Returns the name of its series.
    pub(super) fn label(&self) -> String {
        format!("{} {} {}", self.volume, self.metric, self.statistic)
    }

    /// Returns its query.
    fn query(&self, step_s: u64) -> Value {
        json!({
            "Id": self.id,
            "Label": self.label(),
            "MetricStat": {
                "Metric": {
                    "Namespace": "AWS/EBS",
                    "MetricName": self.metric,
                    "Dimensions": [{ "Name": "VolumeId", "Value": self.volume }],
                },
                "Period": step_s,
                "Stat": self.statistic,
            },
        })
    }
}

/// Returns the text of a file with the queries of these metrics.
pub fn text<'a>(asked: impl Iterator<Item = &'a Asked<'a>>, span: Span) -> String {
    Value::Array(asked.map(|metric| metric.query(span.step_s)).collect()).to_string()
}

/// Returns the metrics of some volumes. Only types with credits have a balance.
#[must_use]
pub fn asked<'a>(volumes: &[&'a Volume]) -> Vec<Asked<'a>> {
    let mut all = Vec::new();
    for volume in volumes {
        let saves =
            matches!(volume.spec.volume_type, VolumeType::Gp2 | VolumeType::St1 | VolumeType::Sc1);
        for (metric, statistic) in cloudwatch::wanted() {
            if metric == cloudwatch::BALANCE && !saves {
                continue;
            }
            all.push(Asked {
                id: format!("m{}", all.len()),
                volume: &volume.id,
                metric,
                statistic,
            });
        }
    }
    all
}

/// Divides volumes into calls of GetMetricData, each within the limits of AWS and of memory. A call
/// has at least one volume.
#[must_use]
pub fn calls<'a>(volumes: &[&'a Volume], span: Span) -> Vec<Vec<&'a Volume>> {
    let mut calls: Vec<Vec<&Volume>> = Vec::new();
    let mut metrics = 0;
    for volume in volumes {
        let more = asked(&[*volume]).len();
        let points = (metrics + more) as u64 * span.points();
        let is_full = metrics + more > METRICS_MAX || points > CALL_POINTS_MAX;
        match calls.last_mut().filter(|_| !is_full) {
            Some(call) => {
                call.push(*volume);
                metrics += more;
            }
            None => {
                calls.push(vec![*volume]);
                metrics = more;
            }
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::list::{self, Options};
    use evenkeel_core::volume::Rules;
    use std::collections::BTreeSet;

    fn volumes(count: usize) -> Vec<Volume> {
        let mut text = "VolumeId,VolumeType,Size\n".to_owned();
        for number in 0..count {
            let volume_type = if number.is_multiple_of(2) { "gp2" } else { "gp3" };
            text += &format!("vol-{number:08x},{volume_type},100\n");
        }
        let options = Options { region: Some("us-east-1"), group_by: None, allows_partial: false };
        let read = list::read(&mut text.as_bytes(), Rules::newest(), options);
        read.unwrap().volumes
    }

    /// AWS keeps minutes for 15 days and five minutes for 63.
    #[test]
    fn the_step_is_what_cloudwatch_keeps_at_that_age() {
        let now_s = 1_795_633_217;
        let fourteen = spans(now_s, 14, 60);
        let [span] = fourteen.as_slice() else { panic!("one: {fourteen:?}") };
        assert_eq!((span.step_s, span.end_s, span.points()), (60, 1_795_633_200, 14 * 1_440));
        for days in 1..=63 {
            let all = spans(now_s, days, 60);
            let age = |span: &Span| now_s - span.start_s;
            let pairs = all.windows(2).all(|pair| pair[0].end_s == pair[1].start_s);
            assert!(pairs && all.len() <= 2, "{all:?}");
            for span in &all {
                let kept_s = if span.step_s == 60 { MINUTES_KEPT_S } else { FIVE_MINUTES_KEPT_S };
                assert!(age(span) <= kept_s, "{days}: {span:?}");
                assert!(span.start_s < span.end_s, "{days}: {span:?}");
                assert!(span.start_s.is_multiple_of(span.step_s), "{days}: {span:?}");
                assert!(span.end_s.is_multiple_of(span.step_s), "{days}: {span:?}");
            }
            let known_s = all.last().unwrap().end_s - all[0].start_s;
            assert!(known_s <= days * DAY_S, "{days}");
            assert!(known_s + 2 * HOUR_S + LONG_STEP_S >= days * DAY_S, "{days}: {known_s}");
        }
        assert_eq!(spans(now_s, 20, 60).len(), 2);
        assert_eq!(spans(now_s, 63, 300).len(), 1);
    }

    #[test]
    fn amounts_are_sums_and_the_balance_is_asked_of_types_that_have_one() {
        let all = volumes(2);
        let all: Vec<&Volume> = all.iter().collect();
        let asked = asked(&all);
        let count = |volume: &str| asked.iter().filter(|metric| metric.volume == volume).count();
        assert_eq!((count("vol-00000000"), count("vol-00000001")), (11, 10));
        for one in &asked {
            let statistic = match one.metric {
                "VolumeQueueLength" | "BurstBalance" => "Average",
                "VolumeIOPSExceededCheck" | "VolumeThroughputExceededCheck" => "Maximum",
                _ => "Sum",
            };
            assert_eq!(one.statistic, statistic, "{}", one.metric);
        }
        let ids: BTreeSet<&str> = asked.iter().map(|metric| metric.id.as_str()).collect();
        assert_eq!(ids.len(), asked.len());
    }

    #[test]
    fn each_volume_is_in_one_call_and_no_call_exceeds_a_limit() {
        let all = volumes(1_000);
        let all: Vec<&Volume> = all.iter().collect();
        for (days, step_s) in [(1, 60), (14, 60), (14, 300), (63, 60), (63, 300)] {
            for span in spans(1_795_633_217, days, step_s) {
                let calls = calls(&all, span);
                let flat: Vec<&str> =
                    calls.iter().flatten().map(|volume| volume.id.as_str()).collect();
                let expected: Vec<&str> = all.iter().map(|volume| volume.id.as_str()).collect();
                assert_eq!(flat, expected);
                for call in &calls {
                    let metrics = asked(call).len();
                    assert!(metrics <= METRICS_MAX, "{metrics}");
                    assert!(metrics as u64 * span.points() <= CALL_POINTS_MAX, "{span:?}");
                }
            }
        }
        assert!(calls(&[], spans(1_795_633_217, 14, 60)[0]).is_empty());
    }
}
