//! A fleet of generated volumes, each with 14 days of CloudWatch's points of five minutes: read and
//! judged one at a time, once and without a clock. Measure it from outside:
//!
//! `cargo bench -p evenkeel-planner --bench fleet -- judge 10000` in `/usr/bin/time -v`
//!
//! `write DIR 10000` writes the same fleet as files, for `evenkeel plan fleet DIR/volumes.csv
//! --metrics DIR/metrics`. Volumes repeat after 64, and their files are links then.

use evenkeel_core::random::Random;
use evenkeel_planner::fleet::totals::Totals;
use evenkeel_planner::fleet::{Evidence, Options, Policy, judge, list};
use evenkeel_planner::read::{Format, Hints, read};
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

const DISTINCT: usize = 64;
/// Points of five minutes in 14 days.
const POINTS: u64 = 14 * 288;
const METRICS: [&str; 7] = [
    "VolumeReadOps",
    "VolumeWriteOps",
    "VolumeReadBytes",
    "VolumeWriteBytes",
    "VolumeIdleTime",
    "VolumeIOPSExceededCheck",
    "VolumeThroughputExceededCheck",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().map_err(|error| format!("{text}: {error}"));
    let done = match words.as_slice() {
        ["judge", volumes] => number(volumes).map_err(Into::into).and_then(judged),
        ["write", folder, volumes] => number(volumes)
            .map_err(Into::into)
            .and_then(|number| written(Path::new(folder), number)),
        _ => {
            println!("fleet: nothing to do; say `judge VOLUMES` or `write DIR VOLUMES`");
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet: {error}");
            ExitCode::from(2)
        }
    }
}

fn judged(volumes: usize) -> Result<(), Box<dyn Error>> {
    let policy = Policy::usual();
    let table = table(volumes);
    let options = Options { region: Some("us-east-1"), ..Options::default() };
    let list = list::read(&mut table.as_bytes(), policy.rules, options)?;
    let texts: Vec<String> = (0..DISTINCT.min(volumes)).map(answer).collect();
    let mut all = Vec::with_capacity(volumes);
    for (number, volume) in list.volumes.iter().enumerate() {
        let text = &texts[number % DISTINCT];
        let hints = Hints { name: Some(volume.id.clone()), ..Hints::default() };
        let trace = read(Format::CloudWatchData, &mut text.as_bytes(), &hints)?.remove(0);
        all.push(judge(&policy, volume, Evidence::Trace(Box::new(trace))));
    }
    let totals = Totals::of(&all).all;
    let changes = totals.changes;
    let saving = totals.saving() / 10_000;
    println!("{} volumes, {changes} changes save {saving} cents of a month", totals.volumes);
    Ok(())
}

fn written(folder: &Path, volumes: usize) -> Result<(), Box<dyn Error>> {
    let metrics = folder.join("metrics");
    std::fs::create_dir_all(&metrics)?;
    std::fs::write(folder.join("volumes.csv"), table(volumes))?;
    let path = |number: usize| metrics.join(format!("{}.json", id(number)));
    for number in 0..volumes {
        if number < DISTINCT {
            std::fs::write(path(number), answer(number))?
        } else {
            std::fs::hard_link(path(number % DISTINCT), path(number))?
        }
    }
    Ok(())
}

fn id(number: usize) -> String {
    format!("vol-{number:017x}")
}

/// The list of the volumes.
fn table(volumes: usize) -> String {
    let mut table = "VolumeId,VolumeType,Size,Iops,Throughput,State\n".to_owned();
    let mut random = Random::new(1, 0);
    for number in 0..volumes {
        let gib = [50, 100, 200, 500, 1_000, 2_000][random.below(6) as usize];
        let (volume_type, iops, mibps) = match number % 8 {
            0 | 3 => ("gp2", String::new(), ""),
            1 | 2 | 4 => ("gp3", (3_000 + 1_000 * random.below(10)).to_string(), "250"),
            5 => ("io1", (500 + 500 * random.below(4)).to_string(), ""),
            6 => ("io2", (1_000 + 1_000 * random.below(10)).to_string(), ""),
            _ => ("st1", String::new(), ""),
        };
        let gib = if volume_type == "st1" { 500 } else { gib };
        let state = if number % 13 == 12 { "available" } else { "in-use" };
        let _ = writeln!(table, "{},{volume_type},{gib},{iops},{mibps},{state}", id(number));
    }
    table
}

/// The answer of GetMetricData for a volume: a wave by the day, and for some a batch at night.
fn answer(number: usize) -> String {
    let mut random = Random::new(number as u64, 1);
    let base = [1, 5, 20, 60, 150, 400][random.below(6) as usize];
    let kib = [4, 8, 16, 32, 64][random.below(5) as usize];
    let mut series = [const { Vec::new() }; METRICS.len()];
    for point in 0..POINTS {
        let hour = point / 12 % 24;
        let rate = match hour {
            2 if number.is_multiple_of(4) => 1_500 + random.below(1_000),
            8..18 => base * 3 + random.below(base * 2),
            _ => base / 2 + random.below(base),
        };
        let ops = if number % 16 == 3 { 0 } else { rate * 300 };
        let reads = ops * 2 / 3;
        let writes = ops - ops * 2 / 3;
        let idle = 300_u64.saturating_sub(ops / 20);
        let exceeded = u64::from(number % 16 == 5 && hour == 2);
        let values = [reads, writes, reads * kib * 1_024, writes * kib * 1_024, idle, exceeded, 0];
        series.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
    }
    let times: Vec<String> = (0..POINTS).rev().map(time).collect();
    let mut text = "{\"MetricDataResults\": [".to_owned();
    for (index, (name, values)) in METRICS.iter().zip(&series).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let values: Vec<String> = values.iter().rev().map(|it| format!("{it}.0")).collect();
        let _ = write!(
            text,
            "{comma}{{\"Id\": \"m{index}\", \"Label\": \"{name}\", \"Timestamps\": [{}], \
             \"Values\": [{}], \"StatusCode\": \"Complete\"}}",
            times.join(", "),
            values.join(", "),
        );
    }
    text + "], \"Messages\": []}"
}

/// A point of November 2026.
fn time(point: u64) -> String {
    let (day, hour, minute) = (1 + point / 288, point / 12 % 24, point % 12 * 5);
    format!("\"2026-11-{day:02}T{hour:02}:{minute:02}:00+00:00\"")
}
