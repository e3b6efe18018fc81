//! Reads the answer of GetMetricStatistics: one metric, which its `Label` names. It does not name
//! the volume. [`merge`](crate::read::merge()) combines the answers of a volume's metrics.

use std::io::BufRead;

use serde::Deserialize;

use super::{Named, Series, Statistic, Timestamp, assemble, volume_in};
use crate::read::{Broken, Hints, Read, json};

const FORM: &str = "the answer of GetMetricStatistics, with Label and Datapoints";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    label: String,
    datapoints: Vec<Point>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Point {
    timestamp: Timestamp,
    sum: Option<f64>,
    average: Option<f64>,
    maximum: Option<f64>,
    minimum: Option<f64>,
    sample_count: Option<f64>,
}

impl Point {
    /// Returns a value with the meaning of an interval's value.
    fn value(&self, named: Named) -> Option<f64> {
        // A sum is the mean of the samples times their number, whatever a sample is.
        let sum = self.sum.or_else(|| Some(self.average? * self.sample_count?));
        let all = [
            (Statistic::Average, self.average),
            (Statistic::Sum, sum),
            (Statistic::Maximum, self.maximum),
            (Statistic::Minimum, self.minimum),
        ];
        let mut taken = all.into_iter().filter(|(statistic, _)| named.takes(*statistic));
        taken.find_map(|(_, value)| value)
    }
}

/// Reads an answer, or several. [`Hints::name`] is the volume's id.
///
/// # Errors
/// Returns [`Broken`] if an answer is invalid, is not of a volume's metric, or lacks the statistic
/// that an interval needs.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let answers: Vec<Answer> = json::documents(input, FORM)?;
    let series = answers.into_iter().map(series).collect::<Result<Vec<Series>, Broken>>()?;
    assemble(series, None, false, hints)
}

fn series(answer: Answer) -> Result<Series, Broken> {
    let Some(named) = Named::find(&answer.label) else {
        return Err(Broken::whole(&answer.label, "a metric of a volume, as VolumeReadOps"));
    };
    let mut points = Vec::with_capacity(answer.datapoints.len());
    for (index, point) in answer.datapoints.iter().enumerate() {
        let Some(value) = point.value(named) else {
            let place = format!("{}, Datapoints[{index}]", answer.label);
            let expected = format!("the statistic {0}: ask with --statistics {0}", named.wanted());
            return Err(Broken::whole(&place, expected));
        };
        points.push((point.timestamp.0, value));
    }
    let volume = volume_in(&answer.label, named).map(str::to_owned);
    let statistic = Some(Statistic::of(named.wanted()));
    Ok(Series { place: answer.label, volume, named, statistic, points })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::merge;
    use crate::trace::{Note, Trace};

    fn read_text(text: &str) -> Trace {
        let hints = Hints { name: Some("vol-0123".to_owned()), ..Hints::default() };
        read(&mut text.as_bytes(), &hints).unwrap().remove(0)
    }

    fn both() -> (Trace, Trace) {
        (
            read_text(include_str!("../../../samples/cloudwatch_statistics_reads.json")),
            read_text(include_str!("../../../samples/cloudwatch_statistics_writes.json")),
        )
    }

    #[test]
    fn points_are_put_in_order_and_means_of_samples_are_sums() {
        let (reads, writes) = both();
        let amounts: Vec<u64> = reads.intervals.iter().map(|interval| interval.reads).collect();
        assert_eq!(amounts, [600, 601, 602, 603]);
        assert_eq!(writes.intervals[0].writes, 60);
        assert_eq!(writes.name, "vol-0123");
    }

    #[test]
    fn metrics_of_a_volume_are_merged_by_time() {
        let (reads, writes) = both();
        let merged = merge(vec![writes.clone(), reads.clone()]).unwrap();
        let amounts: Vec<(u64, u64)> =
            merged.intervals.iter().map(|interval| (interval.reads, interval.writes)).collect();
        // The writes of one minute are not known, and its reads count.
        assert_eq!(amounts, [(600, 60), (601, 60), (602, 0), (603, 60)]);
        let partial: Vec<u64> = merged.partial().map(|interval| interval.reads).collect();
        assert_eq!(partial, [602]);
        let start = "intervals known in part: 1, 60 s";
        let is_told = |note: &Note| matches!(note, Note::Remark(it) if it.starts_with(start));
        assert!(merged.notes.iter().any(is_told), "{:?}", merged.notes);

        let broken = merge(vec![reads.clone(), reads.clone()]).unwrap_err();
        assert!(broken.found.contains(", two values at 2026-11-"), "{broken}");
        assert!(broken.expected.starts_with("each metric once"), "{broken}");
        let mut other = reads.clone();
        other.name = "vol-4567".to_owned();
        assert!(merge(vec![reads.clone(), other]).is_err());
        assert!(merge(Vec::new()).is_err());

        // Days that follow each other are put in a row.
        let mut later = reads.clone();
        for interval in &mut later.intervals {
            interval.start_ms += 3_600_000;
        }
        assert_eq!(merge(vec![later, reads]).unwrap().intervals.len(), 8);
    }

    #[test]
    fn answers_of_one_file_are_the_metrics_of_one_volume() {
        let reads = include_str!("../../../samples/cloudwatch_statistics_reads.json");
        let writes = include_str!("../../../samples/cloudwatch_statistics_writes.json");
        let together = read_text(&format!("{reads}{writes}"));
        let (one, other) = both();
        assert_eq!(together.intervals, merge(vec![one, other]).unwrap().intervals);
    }
}
