//! The metrics of the agent. docs/reference/metrics.md lists them; a test compares both.

use crate::Ticked;
use evenkeel_planner::autopilot::observation::Observation;
use evenkeel_planner::autopilot::policy::Mode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// The beginning of all names.
const PREFIX: &str = "evenkeel_agent";
const MICRO: f64 = 1_000_000.0;
const MS_PER_S: f64 = 1_000.0;

/// The facts of one file system that metrics show.
#[derive(Clone, Debug)]
pub struct MountNow {
    /// Its mount point.
    pub mount: String,
    /// The mode of its group.
    pub mode: Mode,
    /// The last tick.
    pub ticked: Ticked,
    /// Operations that have not ended.
    pub open_operations: usize,
    /// Decisions since the agent started.
    pub decisions: u64,
    /// Steps since then, by result: done, to be tried again, refused.
    pub steps: [u64; 3],
}

/// The results of steps, as labels.
const RESULTS: [&str; 3] = ["done", "later", "refused"];

/// All that the agent's metrics show.
#[derive(Clone, Default, Debug)]
pub struct Snapshot {
    /// The file systems that are observed.
    pub mounts: Vec<MountNow>,
    /// File systems that are named by flags and cannot be observed.
    pub absent: usize,
    /// The end of the last tick, in milliseconds since 1970.
    pub ticked_ms: u64,
}

/// A sample: its labels beside `mount`, and its value.
type Sample = (Vec<(&'static str, String)>, f64);

/// All samples of one name.
struct Family {
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    of: fn(&MountNow) -> Vec<Sample>,
}

const fn gauge(name: &'static str, help: &'static str, of: fn(&MountNow) -> Vec<Sample>) -> Family {
    Family { name, kind: MetricType::Gauge, help, of }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    of: fn(&MountNow) -> Vec<Sample>,
) -> Family {
    Family { name, kind: MetricType::Counter, help, of }
}

const FAMILIES: [Family; 20] = [
    gauge("size_bytes", "Size of the file system.", |now| {
        observed(now, |seen| Some(seen.file_system.size_bytes as f64))
    }),
    gauge("used_bytes", "Bytes in use.", |now| {
        observed(now, |seen| Some(seen.file_system.used_bytes as f64))
    }),
    gauge("free_bytes", "Bytes that an application can still write.", |now| {
        observed(now, |seen| Some(seen.file_system.free_bytes as f64))
    }),
    gauge("wanted_free_bytes", "Bytes that must be free by the policy.", |now| {
        decided(now, |made| Some(made.forecast.wanted_free_bytes as f64))
    }),
    gauge("full_at_line_rate_seconds", "Time until it is full at the volumes' MiB/s.", |now| {
        decided(now, |made| made.forecast.full_in_s_min.map(|seconds| seconds as f64))
    }),
    gauge("full_likely_seconds", "Time until it is full at 1.5 times the largest growth.", |now| {
        decided(now, |made| made.forecast.full_in_s_likely.map(|seconds| seconds as f64))
    }),
    gauge("devices", "Devices of the file system.", |now| {
        observed(now, |seen| Some(seen.file_system.devices.len() as f64))
    }),
    gauge("device_errors", "Errors that the file system has counted on its devices.", |now| {
        observed(now, |seen| {
            let devices = seen.file_system.devices.iter();
            Some(devices.map(|device| device.errors).sum::<u64>() as f64)
        })
    }),
    gauge("volumes", "Volumes with the file system's tag, and those of its devices.", |now| {
        observed(now, |seen| Some(seen.volumes.len() as f64))
    }),
    gauge("retired_volumes", "Volumes of these that wait for their deletion.", |now| {
        observed(now, |seen| {
            let retired = seen.volumes.iter().filter(|volume| volume.retired_ms.is_some());
            Some(retired.count() as f64)
        })
    }),
    gauge("group_monthly_cost", "Monthly price of the group's volumes.", |now| {
        observed(now, |seen| Some(seen.account.group_monthly_micro as f64 / MICRO))
    }),
    gauge("source_age_seconds", "Age of a source of the observation.", |now| {
        let Some(seen) = &now.ticked.observation else { return Vec::new() };
        let ages = [
            ("file-system", seen.ages.file_system_ms),
            ("volumes", seen.ages.volumes_ms),
            ("counters", seen.ages.counters_ms),
        ];
        let known = ages.into_iter().filter_map(|(source, ms)| {
            Some((vec![("source", source.to_owned())], ms? as f64 / MS_PER_S))
        });
        known.collect()
    }),
    gauge(
        "flush_p99_seconds",
        "Latency of durable writes during the move, 99th percentile.",
        |now| {
            observed(now, |seen| {
                seen.file_system.flush.map(|flush| f64::from(flush.p99_ms) / MS_PER_S)
            })
        },
    ),
    gauge("move_pace_bytes", "Bytes a second to which the running move is limited.", |now| {
        observed(now, |seen| {
            let running = seen.file_system.running.as_ref()?;
            running.pace_bytes_per_s.map(|pace| pace as f64)
        })
    }),
    gauge("mode", "1 for the mode of the file system's group.", |now| {
        vec![(vec![("mode", mode(now.mode).to_owned())], 1.0)]
    }),
    gauge("braked", "1 for each brake that prevents a change, by axis and direction.", braked),
    gauge("alarms", "Alarms for a person.", |now| {
        decided(now, |made| Some(made.alarms.len() as f64))
    }),
    gauge("open_operations", "Operations that have not ended.", |now| {
        vec![(Vec::new(), now.open_operations as f64)]
    }),
    counter("decisions", "Decisions since the agent started.", |now| {
        vec![(Vec::new(), now.decisions as f64)]
    }),
    counter("steps", "Calls and verbs since the agent started, by result.", |now| {
        let results = RESULTS.iter().zip(now.steps);
        results.map(|(name, count)| (vec![("result", (*name).to_owned())], count as f64)).collect()
    }),
];

fn observed(now: &MountNow, value: fn(&Observation) -> Option<f64>) -> Vec<Sample> {
    let value = now.ticked.observation.as_ref().and_then(value);
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

fn decided(
    now: &MountNow,
    value: fn(&evenkeel_planner::autopilot::Decision) -> Option<f64>,
) -> Vec<Sample> {
    let value = now.ticked.decision.as_ref().and_then(value);
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

fn braked(now: &MountNow) -> Vec<Sample> {
    let Some(decision) = &now.ticked.decision else { return Vec::new() };
    let label = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut all: Vec<Vec<(&'static str, String)>> = decision
        .brakes
        .iter()
        .map(|braked| {
            let [brake, axis] = [serde_json::json!(braked.brake), serde_json::json!(braked.axis)];
            let direction = if braked.is_up { "up" } else { "down" };
            let direction = direction.to_owned();
            vec![("brake", label(brake)), ("axis", label(axis)), ("direction", direction)]
        })
        .collect();
    // Several changes may be prevented by one brake.
    all.sort();
    all.dedup();
    all.into_iter().map(|labels| (labels, 1.0)).collect()
}

/// Returns the name of a mode.
pub const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Observe => "observe",
        Mode::Advise => "advise",
        Mode::Act => "act",
    }
}

impl Snapshot {
    /// Returns the text in OpenMetrics.
    #[must_use]
    pub fn encoded(self) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        // Writing to a `String` cannot fail; nothing else here can fail.
        let _ = text::encode(&mut page, &registry);
        page
    }
}

/// Returns the name without its unit, and the unit.
fn split(name: &'static str) -> (&'static str, Option<Unit>) {
    let seconds = name.strip_suffix("_seconds").map(|name| (name, Some(Unit::Seconds)));
    let bytes = || name.strip_suffix("_bytes").map(|name| (name, Some(Unit::Bytes)));
    seconds.or_else(bytes).unwrap_or((name, None))
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in &FAMILIES {
            let (name, unit) = split(family.name);
            let mut metric =
                encoder.encode_descriptor(name, family.help, unit.as_ref(), family.kind)?;
            for now in &self.mounts {
                for (more, value) in (family.of)(now) {
                    let mut labels = vec![("mount", now.mount.clone())];
                    labels.extend(more);
                    let mut sample = metric.encode_family(&labels)?;
                    match family.kind {
                        MetricType::Counter => sample
                            .encode_counter::<prometheus_client::encoding::NoLabelSet, _, f64>(
                                &value, None,
                            )?,
                        _ => sample.encode_gauge(&value)?,
                    }
                }
            }
        }
        let whole = [
            ("absent_mounts", "File systems that cannot be observed.", self.absent as f64),
            (
                "ticked_seconds",
                "End of the last tick, since 1970.",
                self.ticked_ms as f64 / MS_PER_S,
            ),
        ];
        for (name, help, value) in whole {
            let (name, unit) = split(name);
            let mut metric =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            metric.encode_gauge(&value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use std::collections::BTreeSet;

    const REFERENCE: &str = include_str!("../../../../docs/reference/agent_metrics.md");
    const RULES: &str = include_str!("../../../../deploy/prometheus/evenkeel-agent.rules.yml");
    const DASHBOARD: &str = include_str!("../../../../deploy/grafana/evenkeel-agent.json");

    fn names(text: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (start, _) in text.match_indices("evenkeel_agent_") {
            let rest = &text[start..];
            let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            names.insert(rest[..end].to_owned());
        }
        names
    }

    fn text() -> String {
        let now = MountNow {
            mount: "/srv \"a\"".to_owned(),
            mode: Mode::Advise,
            ticked: testing::ticked(),
            open_operations: 1,
            decisions: 7,
            steps: [3, 2, 1],
        };
        Snapshot { mounts: vec![now], absent: 2, ticked_ms: 1_500 }.encoded()
    }

    /// Returns the names of all samples.
    fn sampled() -> BTreeSet<String> {
        let text = text();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples: String = samples.map(|line| format!("{line}\n")).collect();
        names(&samples)
    }

    #[test]
    fn text_has_each_value_with_its_labels() {
        let text = text();
        let mount = "mount=\"/srv \\\"a\\\"\"";
        for line in [
            format!("evenkeel_agent_steps_total{{{mount},result=\"refused\"}} 1.0"),
            format!("evenkeel_agent_mode{{{mount},mode=\"advise\"}} 1.0"),
            format!("evenkeel_agent_decisions_total{{{mount}}} 7.0"),
            format!(
                "evenkeel_agent_braked{{{mount},brake=\"mode\",axis=\"space\",\
                 direction=\"up\"}} 1.0"
            ),
            format!("evenkeel_agent_source_age_seconds{{{mount},source=\"volumes\"}} 4.0"),
            "evenkeel_agent_absent_mounts 2.0".to_owned(),
            "evenkeel_agent_ticked_seconds 1.5".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nin\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn reference_lists_the_metrics_that_are_sent() {
        assert_eq!(names(REFERENCE), sampled());
    }

    #[test]
    fn rules_and_dashboard_use_metrics_that_are_sent() {
        let sampled = sampled();
        for text in [RULES, DASHBOARD] {
            let used = names(text);
            assert!(!used.is_empty());
            let unknown: Vec<&String> = used.difference(&sampled).collect();
            assert!(unknown.is_empty(), "{unknown:?}");
        }
    }
}
