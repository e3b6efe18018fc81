//! Runs sysbench's file test as it was published, and parses its output.
//!
//! It prints bandwidths each second, and separate reports of the first second and of the rest:
//! credits that were saved before the run are spent in the first.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_lab::LabError;
use evenkeel_lab::child::{self, Guarded};
use evenkeel_sim::figures::histogram::{LatencyHistogram, LatencySummary};
use evenkeel_sim::text;

/// The package that holds it.
const PACKAGE: &str = "sysbench";
/// Time beyond the test's own to lay out files, begin and end. Generous: it exists to end a hang.
const GRACE: Duration = Duration::from_secs(120);
/// Bytes of output that are read at most: a line each second, and a thousand of a histogram.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// Bytes of each request, as in the published test.
pub const BLOCK_BYTES: u32 = 16 << 10;

const MIB: f64 = 1_048_576.0;

/// The parameters of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Test {
    /// Files it works on.
    pub files: u64,
    /// Bytes of all of them.
    pub total_mib: u64,
    /// Threads, each with one request under way.
    pub threads: u16,
    /// Whether requests go from the begin to the end of all files, repeatedly; otherwise to random
    /// positions.
    pub sequential: bool,
    /// Share of reads in percent.
    pub read_percent: u8,
    /// Length in seconds; at least 2.
    pub duration_s: u64,
    /// The seed of the positions.
    pub seed: u64,
}

/// The results of a test.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Told {
    /// The exact command line.
    pub command: String,
    /// The report of the first second.
    pub first: Report,
    /// The report of the time after it.
    pub rest: Report,
    /// Requests in each second, beginning with second 0.
    pub per_second: Vec<u64>,
    /// Latencies of all requests, in steps of 2 %.
    pub latency: LatencySummary,
    /// The latencies as quantiles: see
    /// [`SHARES_PPM`](evenkeel_sim::figures::histogram::SHARES_PPM).
    pub quantiles_ns: Vec<u64>,
}

/// A report of a part of the run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Report {
    /// Requests answered.
    pub events: u64,
    /// The sum of their latencies.
    pub waited_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// Returns why sysbench cannot run; `None` if it can.
#[must_use]
pub fn lacks() -> Option<String> {
    finish(&["env", "sysbench", "--version"].map(str::to_owned), GRACE)
        .err()
        .map(|error| error.to_string())
}

impl Test {
    /// Returns the mode's name. Shares of reads between none and all are a mixed test.
    #[must_use]
    pub const fn mode(&self) -> &'static str {
        match (self.sequential, self.read_percent) {
            (true, 100) => "seqrd",
            (true, _) => "seqwr",
            (false, 100) => "rndrd",
            (false, 0) => "rndwr",
            (false, _) => "rndrw",
        }
    }

    fn words(&self, folder: &Path, what: &[String]) -> Vec<String> {
        // `env` changes to the folder by itself. This process must not: a program that is killed
        // before its exec would keep the folder in use.
        let path = folder.to_string_lossy().into_owned();
        let mut words = ["env", "-C", &path, "sysbench", "fileio"].map(str::to_owned).to_vec();
        words.push(format!("--file-num={}", self.files));
        words.push(format!("--file-total-size={}M", self.total_mib));
        words.push(format!("--file-block-size={BLOCK_BYTES}"));
        words.extend(what.iter().cloned());
        words
    }

    /// Lays out the files, in a folder of a mounted file system.
    ///
    /// # Errors
    /// When sysbench is missing, fails or hangs, or the process is asked to stop.
    pub fn prepare(&self, folder: &Path) -> Result<(), LabError> {
        let words = self.words(folder, &["prepare".to_owned()]);
        finish(&words, GRACE).map(|_| ())
    }

    /// Runs the test on files that are laid out.
    ///
    /// # Errors
    /// As [`Self::prepare`], or when it prints what we do not understand.
    pub fn run(&self, folder: &Path) -> Result<Told, LabError> {
        let mut what = vec![format!("--file-test-mode={}", self.mode())];
        if self.mode() == "rndrw" {
            let reads = f64::from(self.read_percent);
            what.push(format!("--file-rw-ratio={:.4}", reads / (100.0 - reads)));
        }
        let fixed = [
            "--file-extra-flags=direct",
            "--file-fsync-freq=0",
            "--file-fsync-end=off",
            "--events=0",
            "--report-interval=1",
            "--report-checkpoints=1",
            "--histogram=on",
        ];
        what.extend(fixed.map(str::to_owned));
        what.push(format!("--threads={}", self.threads));
        what.push(format!("--time={}", self.duration_s));
        // A seed of 0 means the time of day.
        what.push(format!("--rand-seed={}", self.seed % 1_000_000_000 + 1));
        what.push("run".to_owned());
        let words = self.words(folder, &what);
        let printed = finish(&words, Duration::from_secs(self.duration_s) + GRACE)?;
        let mut told = parse(&printed).map_err(|what| LabError::BadOutput {
            tool: "sysbench",
            what: format!("{what} in:\n{printed}"),
        })?;
        told.command = text::command_line(&words);
        Ok(told)
    }
}

impl Told {
    /// Returns the latencies of all but the first second. Mean, count and longest are exact, the
    /// others as exact as the histogram of the whole run.
    #[must_use]
    pub fn latency_of_rest(&self) -> LatencySummary {
        let ns = |ms: f64| (ms * 1e6).round() as u64;
        LatencySummary {
            count: self.rest.events,
            mean_ns: ns(self.rest.waited_ms / self.rest.events.max(1) as f64),
            max_ns: ns(self.rest.max_ms),
            ..self.latency
        }
    }
}

/// Runs sysbench to its end, unless the process is asked to stop before. Returns its output.
fn finish(words: &[String], longest: Duration) -> Result<String, LabError> {
    let mut command = Command::new(&words[0]);
    let mut child = Guarded::spawn(command.args(&words[1..]).stdout(Stdio::piped()), PACKAGE)?;
    let printed = child.take_stdout().map(|pipe| {
        child::apart(move || {
            let mut printed = String::new();
            // Output that is no text or too long lacks the figures, and is refused later.
            let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_string(&mut printed);
            printed
        })
    });
    let status = child.wait_to_end(longest, || words.join(" "))?;
    let printed = printed.map(|printed| child::result_of(&printed)).unwrap_or_default();
    match status.code() {
        Some(0) => Ok(printed),
        // The exit status of `env`, which is always installed.
        Some(127) => Err(LabError::ToolMissing { tool: "sysbench".to_owned(), package: PACKAGE }),
        // sysbench prints its errors to standard output.
        _ => Err(LabError::ToolFailed {
            tool: "sysbench".to_owned(),
            how: status.to_string(),
            said: [child.stderr(), child::tail(printed.as_bytes())].join("\n"),
            command: text::command_line(words),
        }),
    }
}

/// Parses the output of a run. Returns what is missing if it is incomplete.
fn parse(printed: &str) -> Result<Told, String> {
    let lack = |what: &str| format!("no {what}");
    let (first, after) = printed
        .split_once("Checkpoint report:")
        .and_then(|(_, after)| after.split_once("Threads fairness"))
        .ok_or_else(|| lack("report of the first second"))?;
    let (between, last) = after.split_once("Latency histogram").ok_or_else(|| lack("histogram"))?;
    let (histogram, rest) = last.split_once("File operations").ok_or_else(|| lack("report"))?;
    let report = |text: &str| {
        let figure = |name: &str| -> Result<f64, String> {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).ok_or_else(|| lack(name))
        };
        Ok::<_, String>(Report {
            events: figure("total number of events:")?.round() as u64,
            waited_ms: figure("sum:")?,
            p95_ms: figure("95th percentile:")?,
            max_ms: figure("max:")?,
        })
    };
    let first = report(first)?;
    let rest = report(rest)?;
    let histogram = latencies(histogram);
    Ok(Told {
        command: String::new(),
        per_second: per_second(between, first.events, rest.events),
        latency: latency(&histogram, &[first, rest]),
        quantiles_ns: histogram.quantiles(),
        first,
        rest,
    })
}

/// Returns the requests in each second. The line of the first second may come before its own report
/// or after it, and that of the last may be missing.
fn per_second(lines: &str, first: u64, rest: u64) -> Vec<u64> {
    let mut seconds = vec![first];
    for line in lines.lines() {
        let mut words = line.split_whitespace();
        let mut after = |name: &str| words.find(|word| *word == name).and_then(|_| words.next());
        let told = [after("["), after("reads:"), after("writes:")];
        let [Some(number), Some(reads), Some(writes)] = told else { continue };
        let mibps = [reads, writes].map(|word| word.parse::<f64>().ok());
        if let (false, [Some(reads), Some(writes)]) = (number == "1s", mibps) {
            seconds.push(((reads + writes) * MIB / f64::from(BLOCK_BYTES)).round() as u64);
        }
    }
    let told: u64 = seconds[1..].iter().sum();
    seconds.push(rest.saturating_sub(told));
    seconds
}

/// Parses the histogram's lines: milliseconds, a bar, a count.
fn latencies(lines: &str) -> LatencyHistogram {
    let mut histogram = LatencyHistogram::new();
    for line in lines.lines() {
        let mut words = line.split_whitespace();
        let value: Option<f64> = words.next().and_then(|word| word.parse().ok());
        let count: Option<u64> = words.last().and_then(|word| word.parse().ok());
        if let (Some(ms), Some(count)) = (value, count) {
            histogram.record_all((ms * 1e6).round() as u64, count);
        }
    }
    histogram
}

/// Returns the latencies of several reports. Count, mean and longest are those reported, the others
/// come from the histogram.
fn latency(histogram: &LatencyHistogram, parts: &[Report]) -> LatencySummary {
    let ms = |of: f64| (of * 1e6).round() as u64;
    let events: u64 = parts.iter().map(|part| part.events).sum();
    let waited: f64 = parts.iter().map(|part| part.waited_ms).sum();
    let longest = parts.iter().map(|part| part.max_ms).fold(0.0, f64::max);
    LatencySummary {
        count: events,
        mean_ns: ms(waited / events.max(1) as f64),
        max_ns: ms(longest),
        ..histogram.summary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
Threads started!

[ 1s ] Checkpoint report:

File operations:
    reads/s:                      281.00
    writes/s:                     187.82
    fsyncs/s:                     0.00

General statistics:
    total time:                          1.0008s
    total number of events:              470

Latency (ms):
         min:                                    0.01
         avg:                                    0.02
         max:                                    0.27
         95th percentile:                        0.03
         sum:                                   10.29

Threads fairness:
    events (avg/stddev):           117.5000/2.60

[ 1s ] reads: 0.00 MiB/s writes: 0.02 MiB/s fsyncs: 0.00/s latency (ms,95%): 0.034
[ 2s ] reads: 5.00 MiB/s writes: 3.40 MiB/s fsyncs: 0.00/s latency (ms,95%): 0.336
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       0.500 |********************                     500
       1.000 |****************************************  990
      45.793 |                                         3

File operations:
    reads/s:                      0.00

General statistics:
    total time:                          3.0271s
    total number of events:              1023

Latency (ms):
         min:                                    0.00
         avg:                                    1.66
         max:                                   45.90
         95th percentile:                        2.81
         sum:                                 1693.73
";

    #[test]
    fn first_second_is_reported_apart_from_the_rest() {
        let told = parse(PRINTED).unwrap();
        assert_eq!((told.first.events, told.rest.events), (470, 1_023));
        // 8.4 MiB are 537.6 requests; the third second has the rest.
        assert_eq!(told.per_second, [470, 538, 485]);
        let early = PRINTED.replace("[ 1s ] reads", "[ 1s ] r").replace(
            "[ 1s ] C",
            "[ 1s ] reads: \
            7.34 MiB/s writes: 0.00 MiB/s fsyncs: 0.00/s latency (ms,95%): 0.03\n[ 1s ] C",
        );
        assert_eq!(parse(&early).unwrap().per_second, [470, 538, 485]);
        assert_eq!(told.latency.count, 1_493);
        assert_eq!(told.latency.mean_ns, 1_141_340, "(10.29 + 1693.73) / 1493");
        assert!((990_000..1_010_000).contains(&told.latency.p50_ns), "{:?}", told.latency);
        let rest = told.latency_of_rest();
        assert_eq!((rest.count, rest.mean_ns, rest.max_ns), (1_023, 1_655_650, 45_900_000));
        assert!((told.rest.p95_ms - 2.81).abs() < 1e-9);
    }

    #[test]
    fn missing_part_of_the_output_is_named() {
        for (cut, lacks) in [
            ("Checkpoint report:", "report of the first second"),
            ("Latency histogram", "histogram"),
            ("sum:", "sum:"),
            ("95th percentile:", "95th percentile:"),
        ] {
            let error = parse(&PRINTED.replace(cut, "")).unwrap_err();
            assert!(error.contains(lacks), "{error}");
        }
    }

    #[test]
    fn modes_are_the_published_ones() {
        let test = Test {
            files: 16,
            total_mib: 256,
            threads: 16,
            sequential: false,
            read_percent: 60,
            duration_s: 7,
            seed: 1,
        };
        assert_eq!(test.mode(), "rndrw");
        assert_eq!(Test { read_percent: 0, ..test }.mode(), "rndwr");
        assert_eq!(Test { read_percent: 100, sequential: true, ..test }.mode(), "seqrd");
    }
}
