//! Every format has a sample that is read, and broken samples whose error has a remedy. No mutation
//! of either does harm.

use evenkeel_planner::read::fio_log::FioLog;
use evenkeel_planner::read::{Broken, Format, Hints, Read, detect, read};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples")
}

/// Returns the recordings in a folder: their names and texts.
fn texts_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(folder).expect("samples").flatten().map(|entry| entry.path());
    let mut texts: Vec<(String, Vec<u8>)> = files
        .filter(|path| {
            let is_other = ["cloudwatch_queries.json", "messages.golden"];
            path.is_file() && !is_other.iter().any(|name| path.ends_with(name))
        })
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, std::fs::read(path).expect("a sample"))
        })
        .collect();
    texts.sort();
    texts
}

/// Returns the information about a sample that its text lacks.
fn hints_of(name: &str) -> Hints {
    Hints {
        fio_log: FioLog::of_file_name(name),
        are_rates: name == "prometheus_rates.json",
        interval_ms: matches!(name, "iostat_human.txt" | "iostat_12.1.txt" | "nvme_stats.json")
            .then_some(1_000),
        ..Hints::default()
    }
}

/// Each sample: its format, the number of its traces, and the number of intervals of the first one.
const READABLE: &[(&str, Format, usize, usize)] = &[
    ("blkparse.txt", Format::Blkparse, 1, 4),
    ("btrfs.toml", Format::Declared, 1, 4_000),
    ("cloudwatch_console.csv", Format::CloudWatchConsole, 1, 5),
    ("cloudwatch_data.json", Format::CloudWatchData, 1, 10),
    ("cloudwatch_data_ids.json", Format::CloudWatchData, 1, 6),
    ("cloudwatch_pages.json", Format::CloudWatchData, 1, 4),
    ("cloudwatch_rds.json", Format::CloudWatchData, 1, 3),
    ("cloudwatch_statistics_reads.json", Format::CloudWatchStatistics, 1, 4),
    ("cloudwatch_statistics_writes.json", Format::CloudWatchStatistics, 1, 3),
    ("declared.toml", Format::Declared, 1, 10_800),
    ("fio_avg_bw.log", Format::FioLog, 1, 5),
    ("fio_avg_iops.log", Format::FioLog, 1, 5),
    ("fio_each_bw.log", Format::FioLog, 1, 3),
    ("fio_each_lat.log", Format::FioLog, 1, 3),
    ("fio_iolog_v2.txt", Format::FioIolog, 1, 3),
    ("fio_iolog_v3.txt", Format::FioIolog, 1, 3),
    ("fio_jobs_iops.1.log", Format::FioLog, 1, 5),
    ("fio_jobs_iops.2.log", Format::FioLog, 1, 2),
    ("fio_prio_lat.log", Format::FioLog, 1, 2),
    ("iostat.json", Format::IostatJson, 2, 2),
    ("iostat_10.txt", Format::Iostat, 1, 1),
    ("iostat_12.0.txt", Format::Iostat, 1, 2),
    ("iostat_12.1.txt", Format::Iostat, 1, 1),
    ("iostat_12.2_m.json", Format::IostatJson, 1, 1),
    ("iostat_9.0.txt", Format::Iostat, 2, 1),
    ("iostat_colour.txt", Format::Iostat, 1, 1),
    ("iostat_comma.json", Format::IostatJson, 1, 2),
    ("iostat_comma.txt", Format::Iostat, 1, 2),
    ("iostat_cut.json", Format::IostatJson, 1, 2),
    ("iostat_epoch.txt", Format::Iostat, 1, 1),
    ("iostat_human.txt", Format::Iostat, 1, 1),
    ("iostat_iso.txt", Format::Iostat, 1, 1),
    ("iostat_nvme.txt", Format::Iostat, 1, 60),
    ("iostat_pretty.txt", Format::Iostat, 1, 1),
    ("iostat_same_second.txt", Format::Iostat, 1, 3),
    ("iostat_short.txt", Format::Iostat, 1, 1),
    ("iostat_x.txt", Format::Iostat, 1, 2),
    ("nvme_stats.json", Format::NvmeStats, 1, 1),
    ("nvme_stats.txt", Format::NvmeStats, 1, 2),
    ("prometheus.json", Format::Prometheus, 2, 9),
    ("prometheus_ebs_csi.json", Format::Prometheus, 1, 2),
    ("prometheus_rates.json", Format::Prometheus, 1, 2),
    ("recorder.jsonl", Format::Recorder, 2, 3),
    ("sadf.json", Format::SadfJson, 1, 3),
    ("sadf_all.txt", Format::Sadf, 1, 3),
    ("sadf_comment.txt", Format::Sadf, 1, 3),
    ("sadf_d.txt", Format::Sadf, 2, 3),
    ("sadf_d_10.txt", Format::Sadf, 1, 3),
    ("sar_all.txt", Format::Sar, 1, 3),
    ("sar_comment.txt", Format::Sar, 1, 3),
    ("sar_d.txt", Format::Sar, 2, 3),
    ("sar_d_10.txt", Format::Sar, 1, 3),
    ("sar_fr.txt", Format::Sar, 1, 3),
    ("sar_human.txt", Format::Sar, 1, 3),
    ("sar_pretty.txt", Format::Sar, 1, 3),
];

#[test]
fn every_sample_is_known_and_read() {
    let texts = texts_of(&samples());
    let names: Vec<&str> = texts.iter().map(|(name, _)| name.as_str()).collect();
    let listed: Vec<&str> = READABLE.iter().map(|row| row.0).collect();
    assert_eq!(names, listed);
    for ((name, text), (_, format, traces, intervals)) in texts.iter().zip(READABLE) {
        assert_eq!(detect(text), Some(*format), "{name}");
        let all = read(*format, &mut text.as_slice(), &hints_of(name));
        let all = all.unwrap_or_else(|broken| panic!("{name}: {broken}"));
        assert_eq!((all.len(), all[0].intervals.len()), (*traces, *intervals), "{name}");
    }
    for format in Format::ALL {
        assert!(READABLE.iter().any(|row| row.1 == format), "{format} has no sample");
    }
}

#[test]
fn every_broken_sample_has_its_message() {
    let mut messages = String::new();
    for (name, text) in texts_of(&samples().join("broken")) {
        let format = detect(&text).unwrap_or_else(|| panic!("{name} has no form"));
        let broken = read(format, &mut text.as_slice(), &hints_of(&name));
        messages.push_str(&format!("{name}\n    {}\n", broken.unwrap_err()));
    }
    let path = samples().join("broken/messages.golden");
    if std::env::var_os("EVENKEEL_WRITE").is_some() {
        std::fs::write(&path, &messages).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    assert_eq!(messages, golden, "EVENKEEL_WRITE=1 writes it");
}

#[test]
fn a_long_line_is_refused_whatever_the_form_has_lines() {
    let text = vec![b'8'; 1 << 20];
    for format in Format::ALL {
        let hints = Hints { fio_log: Some(FioLog::Iops), ..Hints::default() };
        let broken = read(format, &mut text.as_slice(), &hints).unwrap_err();
        assert!(broken.found.chars().count() <= 81, "{format}: {broken}");
    }
}

/// A mutation of a text.
#[derive(Clone, Debug)]
enum Mutation {
    Cut(prop::sample::Index),
    RemoveByte(prop::sample::Index),
    SetByte(prop::sample::Index, u8),
    DuplicateLine(prop::sample::Index),
    SwapLines(prop::sample::Index, prop::sample::Index),
    SetNumber(prop::sample::Index, String),
    SwapNumbers(prop::sample::Index, prop::sample::Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<prop::sample::Index>;
    let number = prop_oneof![
        Just("0".to_owned()),
        Just("-1".to_owned()),
        Just("1e308".to_owned()),
        Just("9223372036854775807".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("99999999999999999999999".to_owned()),
        Just("nan".to_owned()),
        any::<u32>().prop_map(|number| number.to_string()),
        any::<u64>().prop_map(|number| number.to_string()),
    ];
    prop_oneof![
        at().prop_map(Mutation::Cut),
        at().prop_map(Mutation::RemoveByte),
        (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::SetByte(at, byte)),
        at().prop_map(Mutation::DuplicateLine),
        (at(), at()).prop_map(|(one, other)| Mutation::SwapLines(one, other)),
        (at(), number).prop_map(|(at, number)| Mutation::SetNumber(at, number)),
        (at(), at()).prop_map(|(one, other)| Mutation::SwapNumbers(one, other)),
    ]
}

/// Returns the start and the end of each number in a text.
fn numbers(text: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut begin = None;
    for (at, byte) in text.iter().chain(b" ").enumerate() {
        match (byte.is_ascii_digit(), begin) {
            (true, None) => begin = Some(at),
            (false, Some(from)) => {
                found.push((from, at));
                begin = None;
            }
            _ => {}
        }
    }
    found
}

fn mutate(text: &[u8], mutation: &Mutation) -> Vec<u8> {
    let mut bytes = text.to_vec();
    if bytes.is_empty() {
        return bytes;
    }
    let mut lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let numbers = numbers(text);
    match mutation {
        Mutation::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Mutation::RemoveByte(at) => drop(bytes.remove(at.index(bytes.len()))),
        Mutation::SetByte(at, byte) => {
            let offset = at.index(bytes.len());
            bytes[offset] = *byte;
        }
        Mutation::DuplicateLine(at) => {
            let offset = at.index(lines.len());
            lines.insert(offset, lines[offset]);
            bytes = lines.concat();
        }
        Mutation::SwapLines(one, other) => {
            let count = lines.len();
            lines.swap(one.index(count), other.index(count));
            bytes = lines.concat();
        }
        Mutation::SetNumber(at, number) if !numbers.is_empty() => {
            let (from, to) = numbers[at.index(numbers.len())];
            bytes.splice(from..to, number.bytes());
        }
        Mutation::SwapNumbers(one, other) if !numbers.is_empty() => {
            let one = one.index(numbers.len());
            let other = other.index(numbers.len());
            let ((a, b), (c, d)) = (numbers[one.min(other)], numbers[one.max(other)]);
            if b <= c {
                let swapped = [&text[c..d], &text[b..c], &text[a..b]].concat();
                bytes.splice(a..d, swapped);
            }
        }
        Mutation::SetNumber(..) | Mutation::SwapNumbers(..) => {}
    }
    bytes
}

/// Asserts the properties of the result of any text.
fn check(result: Read, what: &str) {
    match result {
        Ok(traces) => {
            assert!(!traces.is_empty(), "{what}: no trace, and no error");
            for trace in traces {
                assert!(!trace.intervals.is_empty(), "{what}: {} is empty", trace.name);
                for pair in trace.intervals.windows(2) {
                    assert!(pair[0].end_ms() <= pair[1].start_ms, "{what}: overlap");
                    assert!(pair[0].length_ms > 0, "{what}: no length");
                }
            }
        }
        Err(Broken { line, found, expected }) => {
            assert!(!expected.is_empty(), "{what}: nothing expected");
            // Without a line, the error names the part of the text.
            assert!(line.is_some_and(|line| line > 0) || !found.is_empty(), "{what}: {expected}");
        }
    }
}

proptest! {
    #[test]
    fn no_mutation_of_a_sample_does_harm(
        which in any::<prop::sample::Index>(),
        mutations in prop::collection::vec(mutation(), 1..6),
        as_other in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        allows_partial in any::<bool>(),
        keeps_first in any::<bool>(),
        interval_ms in prop::option::of(any::<u64>()),
    ) {
        let mut texts = texts_of(&samples());
        texts.extend(texts_of(&samples().join("broken")));
        let (name, original) = &texts[which.index(texts.len())];
        let Some(mut format) = detect(original) else { return Ok(()) };
        if let Some(other) = as_other {
            format = *other.get(&Format::ALL);
        }
        let text = mutations.iter().fold(original.clone(), |text, one| mutate(&text, one));
        let _ = detect(&text);
        let hints = Hints { allows_partial, keeps_first, interval_ms, ..hints_of(name) };
        let what = format!("{name} as {format}");
        check(read(format, &mut text.as_slice(), &hints), &what);
        check(read(format, &mut text.as_slice(), &hints_of(name)), &what);
    }
}
