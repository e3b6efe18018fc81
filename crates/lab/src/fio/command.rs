//! fio's command line for a set of jobs.

use std::path::PathBuf;

use super::{Detail, Job};
use evenkeel_sim::workload::{Pattern, Workload};

/// Records that fio makes room for at the start, per job: the most it takes, 65 s at 16,000 IOPS.
/// Growing a log stops its job until the queue has drained. Memory is touched as it fills, 40 bytes
/// a record.
const LOG_ENTRIES: u32 = 1 << 20;

/// Returns the whole command line, the program first. Each job's options follow its `--name`.
pub(super) fn arguments(jobs: &[Job], detail: Detail, log_prefixes: &[PathBuf]) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "fio",
        "--output-format=json",
        "--status-interval=1",
        "--eta=never",
        // One process: killing it ends every job.
        "--thread=1",
        "--time_based=1",
        // The same clock as the server's. fio's own, calibrated at start, drifts by milliseconds a
        // minute.
        "--clocksource=clock_gettime",
        // Blocks are drawn with replacement; a map of visited blocks would cost memory and time.
        "--norandommap=1",
        // Separate logs of submission and completion latencies are not used here.
        "--disable_slat=1",
        "--disable_clat=1",
        "--lat_percentiles=1",
        "--percentile_list=50:99:99.9",
    ]
    .map(String::from)
    .to_vec();
    for (job, prefix) in jobs.iter().zip(log_prefixes) {
        job_arguments(job, &mut arguments);
        if detail == Detail::EveryIo {
            arguments.push(format!("--write_lat_log={}", prefix.display()));
            arguments.push(format!("--log_entries={LOG_ENTRIES}"));
        }
    }
    arguments
}

fn job_arguments(job: &Job, arguments: &mut Vec<String>) {
    let Workload { pattern, block_bytes, read_percent, queue_depth, duration_s, .. } = job.workload;
    let Workload { span_mib, rate_iops, start_s, seed, .. } = job.workload;
    let rw = match (pattern, read_percent) {
        (Pattern::Random, 100) => "randread",
        (Pattern::Random, 0) => "randwrite",
        (Pattern::Random, _) => "randrw",
        (Pattern::Sequential, 100) => "read",
        (Pattern::Sequential, 0) => "write",
        (Pattern::Sequential, _) => "rw",
    };
    arguments.push(format!("--name={}", job_name(&job.name)));
    arguments.extend(job.target.fio_options(read_percent < 100));
    arguments.push(format!("--rw={rw}"));
    if !matches!(read_percent, 0 | 100) {
        arguments.push(format!("--rwmixread={read_percent}"));
    }
    arguments.push(format!("--bs={block_bytes}"));
    arguments.push(format!("--iodepth={queue_depth}"));
    arguments.push(format!("--runtime={duration_s}"));
    arguments.extend(start_s.map(|start_s| format!("--startdelay={start_s}")));
    arguments.extend(span_mib.map(|mib| format!("--size={mib}m")));
    if let Some(rate) = rate_iops {
        // fio holds reads and writes each to a rate of its own.
        let reads = rate * u32::from(read_percent) / 100;
        let rates = match read_percent {
            0 | 100 => rate.to_string(),
            _ => format!("{reads},{}", rate - reads),
        };
        arguments.extend([format!("--rate_iops={rates}"), "--rate_process=poisson".to_owned()]);
    }
    arguments.push(format!("--randseed={seed}"));
}

/// Returns a name without characters that have a meaning to fio; it is only a label here.
fn job_name(name: &str) -> String {
    let keep = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    name.chars().map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd_uri::NbdUri;
    use evenkeel_sim::text;
    use std::path::Path;

    fn job(name: &str, workload: Workload) -> Job {
        Job {
            name: name.to_string(),
            target: NbdUri::unix(Path::new("/run/s"), "vol-1").into(),
            workload,
        }
    }

    #[test]
    fn the_command_line_of_two_jobs() {
        let mixed = Workload { read_percent: 70, seed: 9, ..Workload::random_read(16_384, 32, 30) };
        let jobs = [job("log disk", Workload::random_write(4_096, 1, 5)), job("db", mixed)];
        let prefixes = ["/tmp/v0".into(), "/tmp/v1".into()];
        let line = text::command_line(&arguments(&jobs, Detail::EveryIo, &prefixes));
        let (_, jobs_part) = line.split_once("--percentile_list=50:99:99.9 ").unwrap();
        assert_eq!(
            jobs_part,
            "--name=log_disk --ioengine=nbd '--uri=nbd+unix:///vol-1?socket=/run/s' --rw=randwrite --bs=4096 \
             --iodepth=1 --runtime=5 --randseed=1 --write_lat_log=/tmp/v0 --log_entries=1048576 \
             --name=db --ioengine=nbd '--uri=nbd+unix:///vol-1?socket=/run/s' --rw=randrw --rwmixread=70 \
             --bs=16384 --iodepth=32 --runtime=30 --randseed=9 --write_lat_log=/tmp/v1 \
             --log_entries=1048576"
        );
    }

    #[test]
    fn requests_that_come_at_a_rate() {
        let workload = Workload { rate_iops: Some(10), ..Workload::random_read(4_096, 64, 1) };
        let line = |workload| {
            let jobs = [job("x", workload)];
            arguments(&jobs, Detail::Totals, &["/tmp/v0".into()]).join(" ")
        };
        let reads = line(workload);
        assert!(reads.contains("--iodepth=64 --runtime=1 --rate_iops=10 --rate_process=poisson"));
        let late = line(Workload { start_s: Some(9), ..workload });
        assert!(late.contains("--runtime=1 --startdelay=9 "), "{late}");
        let mixed = line(Workload { read_percent: 70, ..workload });
        assert!(mixed.contains("--rate_iops=7,3 "), "{mixed}");
    }

    #[test]
    fn totals_write_no_log() {
        let jobs = [job("x", Workload::random_read(4_096, 1, 1))];
        let line = arguments(&jobs, Detail::Totals, &["/tmp/v0".into()]).join(" ");
        assert!(!line.contains("log"), "{line}");
    }
}
