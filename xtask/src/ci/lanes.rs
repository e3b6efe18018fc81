//! Runs binaries of tests, several at once, each with its output in a file until it has ended.

use super::binaries::{Binary, Needs};
use super::tally::Tally;
use crate::clock::Stopwatch;
use crate::run;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// The part of each binary's tests to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// All tests except those that are kept for `cargo x ci --full`.
    Change,
    /// All tests.
    Full,
}

impl Extent {
    /// Returns the time limit of a binary, in seconds, so that one that hangs does not prevent the
    /// report.
    const fn seconds_max(self) -> u32 {
        match self {
            Self::Change => 15 * 60,
            Self::Full => 35 * 60,
        }
    }
}

/// Binaries at once for each core, of those that need a share of the machine, time or a turn.
const LANES_A_CORE: usize = 3;

/// Binaries at once that only need processor time. Two, as some have a single long test, and the
/// other cores would be idle while it runs at the end.
const PROCESSOR_LANES: usize = 2;

/// Binaries at once whose tests wait for time to pass.
const WAITING_LANES: usize = 2;

/// Tests that run at once in a binary whose tests wait for time to pass.
const WAITING_TESTS: usize = 4;

/// Tests that run at once in a binary whose tests judge low rates: each has less than a tenth of a
/// core.
const QUIET_TESTS: usize = 3;

/// Cases of a property test, for a change; slow ones take a part of it. proptest's default is 256,
/// and `cargo x fuzz` runs thousands.
const PROPERTY_CASES: &str = "100";

/// The seed of their cases: a test that passes for a commit passes again, and a failure repeats.
/// `cargo x fuzz` and `cargo x ci --full` search others. With this one the searches of the planner
/// take a third of the usual time.
const PROPERTY_SEED: &str = "5";

/// Maximum number of binaries at once that need a share, on any number of cores.
const LANES_MAX: usize = 8;

/// The file with the last duration of each binary.
const TIMES_FILE: &str = "times";

/// The least duration in the table of times.
const SHOWN_MIN: Duration = Duration::from_millis(500);

/// The result of one binary.
pub struct Ran {
    /// Its source.
    pub source: String,
    pub took: Duration,
    pub tally: Tally,
    /// Its output, below its name.
    pub said: String,
    pub is_success: bool,
}

/// Runs all binaries: those that need a share of the machine together with some of those that wait
/// for time to pass, one of those that need a turn, and, at low priority, those that only need
/// processor time; then those that need all of the machine, one after the other. A lane whose own
/// binaries are done takes those that need a share. `see` is called after each binary, by one
/// thread at a time.
pub fn run(
    root: &Path,
    binaries: &[Binary],
    extent: Extent,
    see: impl FnMut(&Ran) + Send,
) -> Result<(), String> {
    let logs = root.join("target/ci");
    fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let before = times(&fs::read_to_string(logs.join(TIMES_FILE)).unwrap_or_default());
    let seen = Mutex::new((before.clone(), see));
    let see = |ran: Ran| {
        if let Ok(mut seen) = seen.lock() {
            seen.0.insert(ran.source.clone(), ran.took.as_millis());
            (seen.1)(&ran);
        }
    };
    let queue = |needs: Needs| {
        let mut group: Vec<&Binary> =
            binaries.iter().filter(|binary| binary.needs() == needs).collect();
        // The slowest begin first, so that none is left for the end.
        group.sort_by_key(|binary| Reverse(before.get(&binary.source).copied()));
        Mutex::new(group.into_iter())
    };
    let work = |binary| see(run_one(&logs, binary, extent));
    let processor = queue(Needs::Processor);
    let share = queue(Needs::Share);
    let time = queue(Needs::Time);
    let turn = queue(Needs::Turn);
    let shares = (cores * LANES_A_CORE).saturating_sub(WAITING_LANES + 1).clamp(1, LANES_MAX);
    let lanes: [(usize, &[_]); 4] = [
        (PROCESSOR_LANES, &[&processor]),
        (WAITING_LANES, &[&time, &share]),
        (1, &[&turn, &share]),
        (shares, &[&share]),
    ];
    std::thread::scope(|scope| {
        for (count, queues) in lanes {
            for _ in 0..count {
                scope.spawn(move || lane(queues, work));
            }
        }
    });
    lane(&[&queue(Needs::Quiet), &queue(Needs::Everything)], work);
    let took = seen.into_inner().map_or(before, |(took, _)| took);
    let lines: String = took.iter().map(|(source, ms)| format!("{ms} {source}\n")).collect();
    // Without the file, the next run begins in another order.
    let _ = fs::write(logs.join(TIMES_FILE), lines);
    Ok(())
}

/// Parses the durations of binaries in milliseconds, by their sources.
fn times(text: &str) -> BTreeMap<String, u128> {
    let line = |line: &str| {
        let (ms, source) = line.split_once(' ')?;
        Some((source.to_owned(), ms.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Items that several threads take.
type Queue<T> = Mutex<std::vec::IntoIter<T>>;

/// Works on the items of the queues until all are empty, those of the first queue first.
fn lane<T>(queues: &[&Queue<T>], work: impl Fn(T)) {
    for queue in queues {
        // Each guard is dropped before the work begins.
        let next = || queue.lock().ok().and_then(|mut items| items.next());
        while let Some(item) = next() {
            work(item);
        }
    }
}

fn run_one(logs: &Path, binary: &Binary, extent: Extent) -> Ran {
    let watch = Stopwatch::start();
    let log = logs.join(format!("{}.log", binary.source.replace('/', "-")));
    let ended = File::create(&log)
        .and_then(|file| Ok((file.try_clone()?, file)))
        .map_err(|error| format!("{}: {error}", log.display()))
        .and_then(|(stdout, stderr)| {
            let mut command = command(binary, extent);
            command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
            run::status(&mut command)
        });
    let took = watch.elapsed();
    // Lossy, as a test may print bytes that are no text.
    let text = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.unwrap_or_default();
    let tally = Tally::of_binary(&text, ended.is_ok());
    let mut said = format!("== {} ({:.1} s)\n{text}", binary.source, took.as_secs_f64());
    if let Err(error) = &ended {
        said.push_str(&format!("{error}\nto run it again: cargo test {}\n", binary.selection));
    }
    let source = binary.source.clone();
    let is_success = ended.is_ok();
    Ran { source, took, tally, said, is_success }
}

fn command(binary: &Binary, extent: Extent) -> Command {
    let mut command = match binary.needs() {
        // The other binaries measure times, so they have priority.
        Needs::Processor => {
            let mut last = Command::new("nice");
            last.arg("-n19").arg(&binary.executable);
            last
        }
        Needs::Share | Needs::Time | Needs::Turn | Needs::Quiet | Needs::Everything => {
            Command::new(&binary.executable)
        }
    };
    command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
    // Tests run their default number of seeds, whatever the environment sets; separate steps run
    // more.
    command.env_remove("EVENKEEL_FUZZ_CASES");
    match extent {
        Extent::Change => {
            command.env("PROPTEST_CASES", PROPERTY_CASES).env("PROPTEST_RNG_SEED", PROPERTY_SEED);
        }
        Extent::Full => {
            command.env_remove("PROPTEST_CASES").env_remove("PROPTEST_RNG_SEED");
            command.arg("--include-ignored");
        }
    }
    let tests_at_once = match (binary.needs(), extent) {
        // They use all cores, at low priority.
        (Needs::Processor, _) => None,
        (Needs::Time, Extent::Change) => Some(WAITING_TESTS),
        (Needs::Quiet, _) => Some(QUIET_TESTS),
        // Some of the long tests that wait for time measure it, too.
        (Needs::Time, Extent::Full) | (Needs::Share | Needs::Turn | Needs::Everything, _) => {
            Some(1)
        }
    };
    if let Some(count) = tests_at_once {
        command.arg(format!("--test-threads={count}"));
    }
    // At a terminal Ctrl-C ends the run, but `timeout` would keep it from the binary.
    if std::io::stdin().is_terminal() {
        return command;
    }
    run::bounded(&command, extent.seconds_max())
}

/// Returns a table of durations, the longest first.
pub fn table(mut times: Vec<(String, Duration)>) -> String {
    times.retain(|(_, took)| *took >= SHOWN_MIN);
    times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    let line =
        |(name, took): &(String, Duration)| format!("{:7.1} s  {name}\n", took.as_secs_f64());
    times.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_work_on_every_item_once_and_on_their_own_queue_first() {
        let queue = |items: std::ops::Range<u32>| Mutex::new(items.collect::<Vec<_>>().into_iter());
        let [own, shared] = [queue(0..10), queue(10..100)];
        let done = Mutex::new(Vec::new());
        let work = |item: u32| done.lock().unwrap().push(item);
        lane(&[&own], work);
        assert_eq!(*done.lock().unwrap(), (0..10).collect::<Vec<_>>());
        std::thread::scope(|scope| {
            scope.spawn(|| lane(&[&own, &shared], work));
            scope.spawn(|| lane(&[&shared], work));
        });
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn output_and_end_of_a_binary_are_reported() {
        let logs = std::env::temp_dir().join(format!("evenkeel-lanes-{}", std::process::id()));
        fs::create_dir_all(&logs).unwrap();
        let binary = |executable: &str| Binary {
            source: "tests/x.rs".to_owned(),
            selection: "-p evenkeel --test x".to_owned(),
            executable: executable.into(),
            folder: logs.clone(),
        };
        let good = run_one(&logs, &binary("true"), Extent::Change);
        assert!(good.is_success && good.said.starts_with("== tests/x.rs ("), "{}", good.said);
        let bad = run_one(&logs, &binary("false"), Extent::Full);
        assert!(!bad.is_success && bad.tally.failed == 1);
        assert!(bad.said.ends_with("again: cargo test -p evenkeel --test x\n"), "{}", bad.said);
        fs::remove_dir_all(&logs).unwrap();
    }

    #[test]
    fn written_times_are_read_back() {
        let known = times("1500 tests/a.rs\n7 crates/b/src/lib.rs\nnonsense\n");
        let expected = [("crates/b/src/lib.rs".to_owned(), 7), ("tests/a.rs".to_owned(), 1_500)];
        assert_eq!(known.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_longest_is_shown_first_and_the_shortest_not() {
        let of = |name: &str, ms| (name.to_owned(), Duration::from_millis(ms));
        let shown = table(vec![of("a", 1_000), of("b", 61_240), of("c", 499)]);
        assert_eq!(shown, "   61.2 s  b\n    1.0 s  a\n");
    }
}
