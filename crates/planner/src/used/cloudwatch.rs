//! Reads metrics of the CloudWatch agent from an answer of GetMetricData: `disk_used` in bytes, or
//! `disk_used_percent`, with the volume's id in a dimension or in the label.

use serde::Deserialize;

use super::{Amount, FileSystem, Read, Source, host_in, volume_in};
use crate::read::cloudwatch::data::{self, Queried};
use crate::read::{Broken, NAMES_MAX, json_broken};

const FORM: &str = "the answer of GetMetricData, with disk_used or disk_used_percent of the \
                    CloudWatch agent";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    metric_data_results: Vec<Answered>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answered {
    #[serde(default)]
    id: String,
    #[serde(default)]
    label: String,
    #[serde(default)]
    values: Vec<f64>,
}

/// The identity of a series: its metric, and the texts that name its file system.
struct Identity {
    is_percent: bool,
    volume: Option<String>,
    host: Option<String>,
    device: String,
}

pub(super) fn read(text: &[u8], queries: Option<&str>) -> Result<Read, Broken> {
    let answer: Answer = serde_json::from_slice(text).map_err(|error| json_broken(&error, FORM))?;
    let queries = queries.map(data::queries).transpose()?.unwrap_or_default();
    if answer.metric_data_results.len() > NAMES_MAX {
        return Err(Broken::whole("MetricDataResults", format!("at most {NAMES_MAX} series")));
    }
    let mut known: Vec<FileSystem> = Vec::new();
    for answered in &answer.metric_data_results {
        let identity = match queries.get(&answered.id) {
            Some(query) => Identity::of_query(&query.metric),
            None => Identity::of_label(&answered.label),
        };
        let Some(identity) = identity else { continue };
        let values = answered.values.iter().copied();
        let Some(most) = values.filter(|value| value.is_finite()).reduce(f64::max) else {
            continue;
        };
        let amount = identity.amount(most, &answered.label)?;
        // Bytes are more exact than percent of the same file system.
        let other = known
            .iter()
            .position(|other| other.device == identity.device && other.volume == identity.volume);
        let found = FileSystem {
            volume: identity.volume,
            host: identity.host,
            device: identity.device,
            amount,
            source: Source::FileSystem,
        };
        match other.and_then(|place| known.get_mut(place)) {
            Some(_) if identity.is_percent => {}
            Some(other) => *other = found,
            None => known.push(found),
        }
    }
    if known.is_empty() {
        return Err(Broken::whole("no series of disk_used or disk_used_percent", FORM));
    }
    Ok(Read { known, left_out: Vec::new() })
}

/// Returns whether a metric is in percent; `None` if it is none of used space.
fn is_percent(metric: &str) -> Option<bool> {
    // The shorter name is a part of the longer one.
    let is_percent = metric.contains("disk_used_percent");
    (is_percent || metric.contains("disk_used")).then_some(is_percent)
}

impl Identity {
    fn of_query(named: &Queried) -> Option<Self> {
        let value = |name: &str| {
            let dimension = named.dimensions.iter().find(|dimension| dimension.name == name);
            dimension.map(|dimension| dimension.value.clone())
        };
        Some(Self {
            is_percent: is_percent(&named.metric_name)?,
            volume: value("VolumeId"),
            host: value("InstanceId"),
            device: value("device").or_else(|| value("path")).unwrap_or_default(),
        })
    }

    fn of_label(label: &str) -> Option<Self> {
        let is_percent = is_percent(label)?;
        let words = label.split_whitespace();
        let is_name = |word: &&str| {
            let is_metric = word.contains("disk_used");
            let is_statistic = ["average", "maximum", "avg", "max"]
                .iter()
                .any(|statistic| word.eq_ignore_ascii_case(statistic));
            !is_metric && !is_statistic
        };
        Some(Self {
            is_percent,
            volume: volume_in(label),
            host: host_in(label),
            device: words.filter(is_name).collect::<Vec<_>>().join(" "),
        })
    }

    fn amount(&self, most: f64, label: &str) -> Result<Amount, Broken> {
        let is_legal = if self.is_percent { (0.0..=100.0).contains(&most) } else { most >= 0.0 };
        if !is_legal {
            let expected = "values of disk_used in bytes, and of disk_used_percent up to 100";
            return Err(Broken::whole(&format!("{label}: {most}"), expected));
        }
        Ok(if self.is_percent {
            Amount::Ppm((most * 10_000.0).ceil() as u32)
        } else {
            Amount::Bytes(most as u64)
        })
    }
}
