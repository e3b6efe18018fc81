//! `evenkeel-bench instance`: ten volumes of an instance whose limit is less than the sum of
//! theirs, beside a volume of another instance.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Bench, Outcome};
use crate::server_process::io2;
use evenkeel_client::hosts;
use evenkeel_lab::LabError;
use evenkeel_lab::checker::Outcome as Verdict;
use evenkeel_lab::fio::{Job, Measurement};
use evenkeel_lab::nbd_uri::Export;
use evenkeel_lab::stalls::Server;
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;

/// An instance type with a baseline of 500 Mbit/s that is also its maximum, so it saves no credits.
const INSTANCE_TYPE: &str = "c4.large";
const CAP_BYTES_PER_SECOND: f64 = 500e6 / 8.0;
const VOLUMES: u32 = 10;
const IOPS: u32 = 1_000;
const BLOCK_BYTES: u32 = 16 << 10;
const DEPTH: u32 = 32;
/// IOPS of the volume of another instance, to which the limit does not apply.
const WITNESS_IOPS: u32 = 4_000;

/// Tolerances: of the sum to the limit, of the smallest share to the largest, and of the witness.
const SUM_WITHIN: f64 = 0.01;
const EVEN_WITHIN: f64 = 0.01;
const WITNESS_WITHIN: f64 = 0.005;

#[derive(Serialize)]
struct Found {
    schema: &'static str,
    instance_type: &'static str,
    cap_bytes_per_second: f64,
    bytes_per_second: f64,
    /// I/Os per second of each volume.
    iops: Vec<f64>,
    /// Ratio of the smallest to the largest.
    evenness: f64,
    witness_iops: f64,
    /// The share of the time in which the machine, the server or the clients did not run.
    lost: f64,
    verdict: Verdict,
    pass: bool,
}

/// Drives the volumes of the instance and the witness, all at once.
///
/// # Errors
/// If the server does not start, or fio cannot be run or has I/O errors.
pub fn measure(mut bench: Bench<'_>) -> Result<Outcome, LabError> {
    let server = bench.serve("data", "memory", &["--calibrate", "never"])?;
    let host = hosts::register(&server.api, &[("InstanceType", INSTANCE_TYPE)])?.host_id;
    let seconds = bench.seconds;
    let job = |name: String, export: &Export, seed: u32| {
        let workload =
            Workload { seed: seed.into(), ..Workload::random_read(BLOCK_BYTES, DEPTH, seconds) };
        Job { name, target: export.uri().into(), workload }
    };
    let mut jobs = Vec::new();
    for number in 1..=VOLUMES {
        jobs.push(job(format!("v{number}"), &server.volume_of(&host, &io2(IOPS))?, number));
    }
    let witness = server.volume(&io2(WITNESS_IOPS))?;
    jobs.push(job("witness".to_owned(), &witness, VOLUMES + 1));
    let process = witness.uri().server().map_or(Server::Unknown, Server::Process);
    let (measurements, observed) = bench.totals(&jobs, process)?;
    server.stop();
    let lost = observed.lost().and(&observed.steal).total_us() as f64 / 1e6 / f64::from(seconds);
    let found = judge(&measurements, lost)?;
    let why = "the instance's limit was not met exactly";
    Outcome::judged(&found, shown(&found), found.verdict, why)
}

/// Judges by the rates and by the share of the time that was lost. A deviation of at most three
/// times that share may be the machine's fault, as in [`Stalls::doubtful`].
///
/// [`Stalls::doubtful`]: evenkeel_lab::stalls::Stalls::doubtful
fn judge(measurements: &[Measurement], lost: f64) -> Result<Found, LabError> {
    for measurement in measurements {
        if let Some(error) = &measurement.error {
            return Err(LabError::failed(format!("fio on {}: {error}", measurement.name)));
        }
    }
    let rate = |m: &Measurement| m.ios_total as f64 * 1_000.0 / m.runtime_ms.max(1) as f64;
    let mut iops: Vec<f64> = measurements.iter().map(rate).collect();
    let witness_iops = iops.pop().unwrap_or_default();
    let bytes_per_second = iops.iter().sum::<f64>() * f64::from(BLOCK_BYTES);
    let least = iops.iter().copied().fold(f64::MAX, f64::min);
    let most = iops.iter().copied().fold(0.0, f64::max);
    let evenness = if most > 0.0 { least / most } else { 0.0 };
    let off = |value: f64, of: f64| (value / of - 1.0).abs();
    let meets = |excused: f64| {
        off(bytes_per_second, CAP_BYTES_PER_SECOND) <= SUM_WITHIN + excused
            && evenness >= 1.0 - EVEN_WITHIN - excused
            && off(witness_iops, WITNESS_IOPS.into()) <= WITNESS_WITHIN + excused
    };
    let verdict = match (meets(0.0), meets(3.0 * lost)) {
        (true, _) => Verdict::Kept,
        (false, true) => Verdict::Undecided,
        (false, false) => Verdict::Broken,
    };
    Ok(Found {
        schema: "evenkeel.instance/1",
        instance_type: INSTANCE_TYPE,
        cap_bytes_per_second: CAP_BYTES_PER_SECOND,
        bytes_per_second,
        iops,
        evenness,
        witness_iops,
        lost,
        verdict,
        pass: verdict == Verdict::Kept,
    })
}

fn shown(found: &Found) -> String {
    let mut out = String::new();
    let least = found.iops.iter().copied().fold(f64::MAX, f64::min);
    let most = found.iops.iter().copied().fold(0.0, f64::max);
    let percent = |value: f64, of: f64| (value / of - 1.0) * 100.0;
    let _ = writeln!(
        out,
        "{INSTANCE_TYPE}: {VOLUMES} volumes of {IOPS} IOPS, {} random reads",
        text::bytes(BLOCK_BYTES.into())
    );
    let _ = writeln!(
        out,
        "  together   {:.2} MB/s of {:.2} MB/s ({:+.2} %)",
        found.bytes_per_second / 1e6,
        CAP_BYTES_PER_SECOND / 1e6,
        percent(found.bytes_per_second, CAP_BYTES_PER_SECOND)
    );
    let _ = writeln!(
        out,
        "  each       {least:.1} to {most:.1} IOPS, the least to the most {:.4}",
        found.evenness
    );
    let _ = writeln!(
        out,
        "  elsewhere  {:.1} of {WITNESS_IOPS} IOPS ({:+.2} %)",
        found.witness_iops,
        percent(found.witness_iops, WITNESS_IOPS.into())
    );
    let _ = writeln!(out, "  lost       {:.1} % of the time", found.lost * 100.0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_sim::figures::histogram::LatencySummary;
    use evenkeel_sim::figures::series::Series;

    /// Returns the verdict on ten volumes of the instance and the witness, with these I/Os in one
    /// second.
    fn judged(each: u64, witness: u64, lost: f64) -> Verdict {
        let measurement = |ios_total| Measurement {
            name: "v".to_owned(),
            workload: Workload::random_read(BLOCK_BYTES, DEPTH, 10),
            ios_total,
            runtime_ms: 1_000,
            started_unix_ms: None,
            series: Series::new(1),
            latency: LatencySummary::default(),
            latency_per_second: Vec::new(),
            error: None,
            gone_after_ms: None,
        };
        let mut all = vec![measurement(each); 10];
        all.push(measurement(witness));
        judge(&all, lost).unwrap().verdict
    }

    #[test]
    fn an_instance_that_misses_by_lost_time_is_undecided() {
        // 62.5 MB/s are 381.5 I/Os of 16 KiB a second for each of ten.
        assert_eq!(judged(381, 4_000, 0.0), Verdict::Kept);
        assert_eq!(judged(381, 4_000, 0.04), Verdict::Kept);
        assert_eq!(judged(381, 3_900, 0.0), Verdict::Broken);
        assert_eq!(judged(381, 3_900, 0.01), Verdict::Undecided);
        assert_eq!(judged(381, 3_600, 0.01), Verdict::Broken);
        assert_eq!(judged(390, 4_000, 0.0), Verdict::Broken);
    }
}
