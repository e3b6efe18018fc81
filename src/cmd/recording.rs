//! The answer to DescribeVolumeRecording: what a volume was asked for, second by second.

use evenkeel_client::Client;
use evenkeel_client::model::number;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_planner::trace::Interval;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

const NS_PER_US: u64 = 1_000;
/// A year of seconds, in pages.
const PAGES_MAX: usize = 4_000;

/// The server's recording of a volume since this moment, in milliseconds of Unix time, page by
/// page.
pub fn pages(
    client: &Client,
    volume: &str,
    since_ms: Option<u64>,
    mut each: impl FnMut(Vec<Interval>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let since = since_ms.map(timestamp::extended);
    let mut token: Option<String> = None;
    for _ in 0..PAGES_MAX {
        let mut parameters = vec![("VolumeId", volume)];
        parameters.extend(since.as_deref().map(|since| ("StartTime", since)));
        parameters.extend(token.as_deref().map(|token| ("NextToken", token)));
        let answer = client.call("DescribeVolumeRecording", &parameters)?;
        each(answer.items("intervalSet").iter().filter_map(read).collect())?;
        token = answer.child_text("nextToken").map(str::to_owned);
        if token.is_none() {
            return Ok(());
        }
    }
    Err(Failure::new(format!("DescribeVolumeRecording has more than {PAGES_MAX} pages"))
        .exit(Exit::Failed)
        .hint("ask for a shorter time with --since"))
}

/// One interval; `None` of something else.
fn read(item: &Element) -> Option<Interval> {
    let start_ms = number(item, "startTimeMs")?;
    let length_ms = number(item, "lengthMs")?;
    let of = |kind: &str, name: &str| {
        item.child(kind).and_then(|kind| number(kind, name)).unwrap_or_default()
    };
    let ns = |kind| of(kind, "totalUs").saturating_mul(NS_PER_US);
    let is_idle = item.child_text("idle") == Some("true");
    let limits = ["operations", "bytes", "instance"].map(|limit| of("throttledUs", limit));
    Some(Interval {
        start_ms,
        length_ms,
        reads: of("reads", "count"),
        writes: of("writes", "count"),
        read_bytes: of("reads", "bytes"),
        write_bytes: of("writes", "bytes"),
        read_ns: Some(ns("reads")),
        write_ns: Some(ns("writes")),
        idle_ms: is_idle.then_some(length_ms),
        balance_ppm: number(item, "balancePpm").and_then(|ppm| u32::try_from(ppm).ok()),
        is_censored: Some(limits.iter().any(|us| *us > 0)),
        ..Interval::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_read_and_what_is_not_there_is_zero() {
        let text = "<item><startTimeMs>5000</startTimeMs><lengthMs>1001</lengthMs><reads>\
             <count>12</count><bytes>49152</bytes><totalUs>3600</totalUs></reads><throttledUs>\
             <operations>0</operations><bytes>7</bytes><instance>0</instance><device>9</device>\
             </throttledUs><balancePpm>250000</balancePpm></item>";
        let expected = Interval {
            start_ms: 5_000,
            length_ms: 1_001,
            reads: 12,
            read_bytes: 49_152,
            read_ns: Some(3_600_000),
            write_ns: Some(0),
            balance_ppm: Some(250_000),
            is_censored: Some(true),
            ..Interval::default()
        };
        assert_eq!(read(&Element::parse(text).unwrap()), Some(expected));
        let idle =
            "<item><startTimeMs>1</startTimeMs><lengthMs>9</lengthMs><idle>true</idle></item>";
        let idle = read(&Element::parse(idle).unwrap()).unwrap();
        assert_eq!((idle.idle_ms, idle.is_censored), (Some(9), Some(false)));
        assert_eq!(read(&Element::parse("<item><lengthMs>9</lengthMs></item>").unwrap()), None);
    }
}
