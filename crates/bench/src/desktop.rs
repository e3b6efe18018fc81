//! The programs of a desktop benchmark on a mounted file system: the published ones if the
//! distribution has them, otherwise fio with the same pattern of requests.
//!
//! Of a program only its amount of work and its time are used. The volume's server counts the
//! requests that reach the volume.

use evenkeel_core::convert::saturating;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::apache::{self, Apache};
use crate::mounts;
use crate::trees::{self, Phase};
use evenkeel_lab::target::Target;
use evenkeel_lab::{LabError, child};
use evenkeel_os::clock;
use evenkeel_sim::scenario::program::{Program, ProgramSetup};
use evenkeel_sim::scenario::setup::Shape;
use evenkeel_sim::text;

/// Threads and files of the Threaded I/O Tester.
const TESTER_THREADS: &str = "--numjobs=32";
const TESTER_THREADS_COUNT: u64 = 32;
/// Duration of reads from the page cache. A fixed number of calls would end, thread by thread,
/// before all threads have begun.
const TESTER_CACHED_S: &str = "--runtime=2";
/// Shares of the block sizes of the file server, as fio's own example job has them.
const FILE_SERVER_BLOCKS: &str = "--bssplit=512/10:1k/5:2k/5:4k/60:8k/2:16k/4:32k/4:64k/10";

/// The recording that dbench's clients replay, as Debian installs it.
const DBENCH_CLIENT: &str = "/usr/share/dbench/client.txt";
/// Repetitions of a program that is too short for one measurement.
const SHORT_TIMES: usize = 5;
/// Megabytes for which the time is reported, of programs that print bytes per second.
const MEGABYTES: f64 = 100.0;

/// Returns the approximate time of a program that its client limits as much as its volume, in
/// seconds, on a machine with two processors of 2026. Passes in the manner of IOMelt that read are
/// served by the page cache at once, and take none.
#[must_use]
pub const fn about_s(setup: ProgramSetup) -> u64 {
    let ProgramSetup { program, calls, seconds } = setup;
    // As measured for docs/experiments/desktop-suite.md: calls a second, and how often they are
    // done.
    let (per_second, times) = match program {
        Program::AioStress => (3_500, 1),
        Program::Postmark => (2_800, 1),
        Program::Gzip => (210, 1),
        // Of ten trees each, 12 KiB for a source, behind a link of 33.7 MB/s.
        Program::TreesCreate => (207, 1),
        Program::TreesCompile => (290, 1),
        Program::TreesRead => (9_000, 4),
        Program::Unpack => (2_300, SHORT_TIMES as u64),
        Program::Apache => (11_000, SHORT_TIMES as u64),
        _ => (u64::MAX, 1),
    };
    seconds + calls.saturating_mul(times) / per_second
}

/// The folders and the time limit of programs.
#[derive(Clone, Copy, Debug)]
pub struct Workdir<'a> {
    /// A folder on the file system that is tested.
    pub folder: &'a Path,
    /// A folder elsewhere, for the programs' input and output.
    pub scratch: &'a Path,
    /// The longest time of a program; longer is a hang.
    pub longest: Duration,
}

/// A program that was run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Score {
    /// The time that it took by the rules of its test.
    pub took_ns: u64,
    /// The exact command line.
    pub command: String,
}

impl Workdir<'_> {
    /// Writes all dirty data of the programs before to the disk, so that it does not disturb the
    /// next one.
    ///
    /// # Errors
    /// When the write fails.
    pub fn settle(&self) -> Result<(), LabError> {
        mounts::settle(self.folder)
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// When it is missing, fails, hangs, or prints what we do not understand.
    pub fn run(&self, setup: ProgramSetup) -> Result<Score, LabError> {
        let ProgramSetup { program, calls, seconds } = setup;
        match program {
            Program::Sqlite => self.sqlite(calls),
            Program::FsMark => self.fs_mark(calls),
            Program::Dbench => self.dbench(calls, seconds),
            Program::Postmark => self.postmark(calls),
            Program::Gzip => self.gzip(calls),
            Program::TreesCreate => self.trees(Phase::Create, calls),
            Program::TreesCompile => self.trees(Phase::Compile, calls),
            Program::TreesRead => self.trees(Phase::Read, calls),
            Program::Unpack => self.unpack(calls),
            Program::Apache => self.apache(calls),
            // They need the file of the passes before: see `crate::iomelt`.
            program if program.is_of_iomelt() => {
                let what = format!("{} it is a pass of a batch, and no test", program.manner());
                Err(LabError::Unjudgeable(what))
            }
            Program::ThreadedCached => {
                self.fio(&fio_options(program, calls), Some(calls * TESTER_THREADS_COUNT))
            }
            _ => self.fio(&fio_options(program, calls), None),
        }
    }

    /// Runs fio with options of a test, on files in the folder, and returns its own time of the
    /// job. It passes no seed, so that each run draws the same blocks and sizes; their total would
    /// vary by 3 % otherwise. Of a test with a fixed duration it returns the time for `calls` at
    /// the measured rate.
    fn fio(&self, options: &[String], calls: Option<u64>) -> Result<Score, LabError> {
        let mut words = vec!["fio".to_owned(), "--eta=never".to_owned()];
        words.push(format!("--directory={}", self.folder.display()));
        words.extend(options.iter().cloned());
        self.fio_score(words, calls)
    }

    /// Runs fio; returns the longest time of its jobs, as it reports them.
    fn fio_score(&self, mut words: Vec<String>, calls: Option<u64>) -> Result<Score, LabError> {
        let output = self.scratch.join("fio.json");
        words.push("--output-format=json".to_owned());
        words.push(format!("--output={}", output.display()));
        self.finish(&words, "fio")?;
        let told = fs::read_to_string(&output).map_err(LabError::io("cannot read", &output))?;
        let (runtime_ns, ios) = fio_runtime(&told).ok_or_else(|| LabError::BadOutput {
            tool: "fio",
            what: "no time of a job without errors in its JSON".to_owned(),
        })?;
        let at_rate = |calls: u64| {
            let took_ns = u128::from(runtime_ns) * u128::from(calls) / u128::from(ios.max(1));
            saturating::<_, u64>(took_ns).max(1)
        };
        let took_ns = calls.map_or(runtime_ns, at_rate);
        Ok(Score { took_ns, command: text::command_line(&words) })
    }

    /// Fills a table of four columns, each row in a transaction of its own.
    fn sqlite(&self, rows: u64) -> Result<Score, LabError> {
        let statements = self.scratch.join("rows.sql");
        let mut sql =
            "CREATE TABLE desk (one INTEGER, two INTEGER, three TEXT, four TEXT);\n".to_owned();
        for row in 0..rows {
            let _ = writeln!(sql, "INSERT INTO desk VALUES ({row}, {}, 'row', '{row}');", row * 7);
        }
        fs::write(&statements, sql).map_err(LabError::io("cannot write", &statements))?;
        let base = self.folder.join("desk.sqlite");
        let read = format!(".read '{}'", statements.display());
        self.timed(&["sqlite3", "-bail", &base.to_string_lossy(), &read], "sqlite3")
    }

    /// Runs clients that replay a recording; returns the time for a hundred megabytes.
    fn dbench(&self, clients: u64, seconds: u64) -> Result<Score, LabError> {
        let seconds = seconds.to_string();
        let words = ["dbench", "-D", &self.folder.to_string_lossy(), "-t", &seconds, "-c"];
        let mut words = words.map(str::to_owned).to_vec();
        words.extend([DBENCH_CLIENT.to_owned(), clients.to_string()]);
        let told = self.finish(&words, "dbench");
        // The unfinished files of its clients would still be written. After a failure its clients
        // may still be running.
        let clients = self.folder.join("clients");
        let has_clients = clients.exists();
        let removed = if has_clients { fs::remove_dir_all(&clients) } else { Ok(()) };
        let told = told?;
        removed.map_err(LabError::io("cannot remove", &clients))?;
        let rate = dbench_rate(&told).ok_or_else(|| LabError::BadOutput {
            tool: "dbench",
            what: format!("no throughput in {:?}", told.lines().last()),
        })?;
        let took_ns = (MEGABYTES * 1e9 / rate).round() as u64;
        Ok(Score { took_ns, command: text::command_line(&words) })
    }

    /// Runs PostMark with the published sizes. Files are made and removed within its time.
    fn postmark(&self, transactions: u64) -> Result<Score, LabError> {
        let told = self.scratch.join("postmark");
        let words = format!(
            "set location {}\nset number 500\nset size 5120 524288\nset transactions \
             {transactions}\nrun\nquit\n",
            self.folder.display()
        );
        fs::write(&told, words).map_err(LabError::io("cannot write", &told))?;
        self.timed(&["postmark", &told.to_string_lossy()], "postmark")
    }

    /// Compresses a file of zeros. The output is removed before it reaches the volume.
    fn gzip(&self, mib: u64) -> Result<Score, LabError> {
        let zeros = self.folder.join("zeros");
        let made = fs::File::create(&zeros).and_then(|mut file| {
            let block = vec![0; 1 << 20];
            (0..mib).try_for_each(|_| std::io::Write::write_all(&mut file, &block))
        });
        made.map_err(LabError::io("cannot write", &zeros))?;
        let score = self.timed(&["gzip", "-c", &zeros.to_string_lossy()], "gzip");
        fs::remove_file(&zeros).map_err(LabError::io("cannot remove", &zeros))?;
        score
    }

    /// Runs a phase on trees of sources; returns the time for a hundred megabytes.
    fn trees(&self, phase: Phase, sources: u64) -> Result<Score, LabError> {
        let done = trees::run(phase, self.folder, sources, self.longest)?;
        let took_s = done.took.as_secs_f64() * MEGABYTES * 1e6 / done.bytes.max(1) as f64;
        let command = format!("{phase:?} {} bytes of files", done.bytes).to_lowercase();
        Ok(Score { took_ns: (took_s * 1e9).round() as u64, command })
    }

    /// Unpacks an archive that is made elsewhere before. The unpacked files stay.
    fn unpack(&self, sources: u64) -> Result<Score, LabError> {
        let tree = self.scratch.join("tree");
        let archive = self.scratch.join("tree.tar.bz2");
        let above = self.scratch.to_string_lossy();
        let archive = archive.to_string_lossy();
        let pack = ["tar", "-C", &above, "-cjf", &archive, "tree"].map(str::to_owned);
        let packed = trees::make(&tree, sources, self.longest)
            .and_then(|()| self.finish(&pack, "bzip2").map(drop));
        // The next case makes a tree of the same name.
        let removed = fs::remove_dir_all(&tree);
        packed?;
        removed.map_err(LabError::io("cannot remove", &tree))?;
        self.fastest(|time| {
            let folder = self.folder.join(format!("unpacked-{time}"));
            fs::create_dir(&folder).map_err(LabError::io("cannot make", &folder))?;
            self.timed(&["tar", "-C", &folder.to_string_lossy(), "-xjf", &archive], "bzip2")
        })
    }

    /// Runs ab: a hundred clients that request one page as often as they can.
    fn apache(&self, requests: u64) -> Result<Score, LabError> {
        let server = Apache::start(self.folder, self.scratch)?;
        let connections = apache::CONNECTIONS;
        let wanted = requests.to_string();
        let words = ["ab", "-q", "-n", &wanted, "-c", connections, &server.url].map(str::to_owned);
        self.fastest(|_| {
            let told = self.finish(&words, "apache2-utils")?;
            let rate = apache::rate(&told, requests).ok_or_else(|| LabError::BadOutput {
                tool: "ab",
                what: "no rate of requests that were all answered with the page".to_owned(),
            })?;
            let took_ns = (requests as f64 * 1e9 / rate).round() as u64;
            Ok(Score { took_ns, command: text::command_line(&words) })
        })
    }

    /// Returns the fastest of several runs of a short program that the processor limits: other
    /// programs may slow down some of them. Each run begins without dirty data.
    fn fastest(
        &self,
        mut one: impl FnMut(usize) -> Result<Score, LabError>,
    ) -> Result<Score, LabError> {
        let mut scores = Vec::with_capacity(SHORT_TIMES);
        for time in 0..SHORT_TIMES {
            self.settle()?;
            scores.push(one(time)?);
        }
        scores.sort_unstable_by_key(|score| score.took_ns);
        Ok(scores.swap_remove(0))
    }

    /// Runs a program, and returns its time from begin to end.
    fn timed(&self, words: &[&str], package: &'static str) -> Result<Score, LabError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let began = clock::now();
        self.finish(&words, package)?;
        let took_ns = saturating::<_, u64>((clock::now() - began).as_nanos());
        Ok(Score { took_ns, command: text::command_line(&words) })
    }

    fn finish(&self, words: &[String], package: &'static str) -> Result<String, LabError> {
        let mut command = Command::new(&words[0]);
        child::run_within(self.longest, command.args(&words[1..]).current_dir(self.folder), package)
    }

    /// Runs `fs_mark` with files of 1 MiB, one after the other. Returns the time by its own count
    /// of files per second.
    fn fs_mark(&self, files: u64) -> Result<Score, LabError> {
        let log = self.scratch.join("fs-mark.log");
        // fs_mark refuses a path of 40 bytes or more.
        let words = ["fs_mark", "-d", "fs-mark", "-s", "1048576", "-n"];
        let mut words = words.map(str::to_owned).to_vec();
        let rest = [&files.to_string(), "-L", "1", "-l", &log.to_string_lossy()];
        words.extend(rest.map(str::to_owned));
        self.finish(&words, "fsmark")?;
        let told = fs::read_to_string(&log).map_err(LabError::io("cannot read", &log))?;
        let per_second = fs_mark_rate(&told).ok_or_else(|| LabError::BadOutput {
            tool: "fs_mark",
            what: format!("no line of figures in {told:?}"),
        })?;
        // The next run appends to the log if it exists.
        fs::remove_file(&log).map_err(LabError::io("cannot remove", &log))?;
        let took_ns = (files as f64 * 1e9 / per_second).round() as u64;
        Ok(Score { took_ns, command: text::command_line(&words) })
    }
}

/// Returns the folder on the file system in which a program's server works, if it has one.
pub(super) fn server_folder(program: Program) -> Option<&'static str> {
    (program == Program::Apache).then_some(apache::FOLDER)
}

/// Makes requests directly at an export, as they would reach the volume of a program.
///
/// # Errors
/// When fio is missing, fails, or prints what we do not understand.
pub(super) fn batch(
    target: &Target,
    shape: &Shape,
    (ios, depth): (u64, u16),
    workdir: &Workdir<'_>,
    seed: u64,
) -> Result<Score, LabError> {
    let mut words = vec!["fio".to_owned(), "--eta=never".to_owned(), "--name=batch".to_owned()];
    words.extend(target.fio_options(shape.read_percent < 100));
    let way = match (shape.sequential, shape.read_percent) {
        (true, 100) => "read",
        (true, 0) => "write",
        (true, _) => "rw",
        (false, 100) => "randread",
        (false, 0) => "randwrite",
        (false, _) => "randrw",
    };
    words.push(format!("--rw={way}"));
    if !matches!(shape.read_percent, 0 | 100) {
        words.push(format!("--rwmixread={}", shape.read_percent));
    }
    words.push(format!("--bs={}", shape.block_bytes));
    words.push(format!("--iodepth={depth}"));
    words.push(format!("--size={}", shape.span_bytes));
    words.push(format!("--io_size={}", ios * u64::from(shape.block_bytes)));
    words.extend(["--norandommap".to_owned(), format!("--randseed={seed}")]);
    workdir.fio_score(words, None)
}

/// Returns the options of fio that make a test.
fn fio_options(program: Program, calls: u64) -> Vec<String> {
    let size = format!("--size={calls}m");
    let fixed: &[&str] = match program {
        Program::IozoneWrite => &["--name=iozone", "--rw=write", "--bs=4k", "--end_fsync=1", &size],
        // IOzone's file is larger than any memory. This one is smaller, so its pages are dropped
        // before it is read.
        Program::IozoneRead => &["--name=iozone", "--rw=read", "--bs=4k", "--invalidate=1", &size],
        Program::FileServerLayout => {
            &["--name=server", "--rw=write", "--bs=64k", "--end_fsync=1", &size]
        }
        Program::AioStress => &[
            "--name=aio",
            "--rw=randwrite",
            "--bs=64k",
            "--ioengine=libaio",
            "--iodepth=64",
            "--unlink=1",
            &size,
        ],
        Program::FileServer => &[
            "--name=server",
            "--rw=randrw",
            "--rwmixread=80",
            FILE_SERVER_BLOCKS,
            "--ioengine=libaio",
            "--iodepth=64",
            "--direct=1",
            &size,
        ],
        _ => return tester_options(program, calls),
    };
    fixed.iter().map(|option| (*option).to_owned()).collect()
}

/// Returns the options of the Threaded I/O Tester: its calls visit a sixteenth of the blocks of a
/// file, with replacement, as 1,000 of 16,384 do in the published test.
fn tester_options(program: Program, calls: u64) -> Vec<String> {
    let mut options = ["--name=tester", TESTER_THREADS, "--thread", "--group_reporting"]
        .map(str::to_owned)
        .to_vec();
    let fixed: &[&str] = match program {
        Program::ThreadedLayout => {
            options.push(format!("--size={calls}k"));
            &["--rw=write", "--bs=64k", "--end_fsync=1"]
        }
        Program::ThreadedWrite => &["--rw=randwrite", "--end_fsync=1"],
        // Written pages are in the cache; the others are read before the clock starts.
        Program::ThreadedCached => &["--rw=randread", "--pre_read=1", "--invalidate=0"],
        _ => &["--rw=randread", "--direct=1"],
    };
    options.extend(fixed.iter().map(|option| (*option).to_owned()));
    if program == Program::ThreadedCached {
        // As many blocks of each file as there are calls; a block may be drawn again.
        options.extend(["--bs=4k", "--norandommap"].map(str::to_owned));
        options.push(format!("--size={}k", calls * TESTER_BLOCK_KIB));
        options.extend(["--time_based", TESTER_CACHED_S].map(str::to_owned));
    } else if program != Program::ThreadedLayout {
        options.extend(["--bs=4k", "--norandommap"].map(str::to_owned));
        options.push(format!("--number_ios={calls}"));
        options.push(format!("--size={}k", calls * TESTER_FILE_KIB_PER_CALL));
    }
    options
}

/// Size of a call's block.
const TESTER_BLOCK_KIB: u64 = 4;
/// KiB of each file for each call on it: 64 MiB for 1,000.
const TESTER_FILE_KIB_PER_CALL: u64 = 64;

/// Returns the longest time that any job read or wrote, in nanoseconds, and the I/Os of all.
/// Returns `None` if there is no job, or one failed.
fn fio_runtime(told: &str) -> Option<(u64, u64)> {
    // Warnings may come before the JSON.
    let json: Value = serde_json::from_str(told.get(told.find('{')?..)?).ok()?;
    let jobs = json.get("jobs")?.as_array()?;
    if jobs.iter().any(|job| job.get("error").and_then(Value::as_i64) != Some(0)) {
        return None;
    }
    let of_way = |job: &Value, way: &str| {
        let figure = |name: &str| job.get(way)?.get(name)?.as_u64();
        let ios = figure("total_ios").filter(|ios| *ios > 0)?;
        // A time below a millisecond is printed as 0.
        Some((figure("runtime")?.max(1), ios))
    };
    let each = || {
        let ways = jobs.iter().flat_map(|job| ["read", "write"].map(|way| of_way(job, way)));
        ways.flatten()
    };
    let longest_ms = each().map(|(ms, _)| ms).max()?;
    Some((longest_ms.saturating_mul(1_000_000), each().map(|(_, ios)| ios).sum()))
}

/// Returns the files per second in the table of `fs_mark`.
fn fs_mark_rate(told: &str) -> Option<f64> {
    let (_, rows) = told.split_once("Files/sec")?;
    let figures = rows.lines().nth(1)?.split_whitespace().nth(3)?;
    figures.parse().ok().filter(|rate: &f64| *rate > 0.0)
}

/// Returns the megabytes per second in the last line of dbench.
fn dbench_rate(told: &str) -> Option<f64> {
    let (_, figures) = told.rsplit_once("Throughput ")?;
    figures.split_whitespace().next()?.parse().ok().filter(|rate: &f64| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn times_are_the_longest_of_a_run_without_errors() {
        let told = |error: u32, ios: u32, ms: u32| {
            let way = |ms: u32| serde_json::json!({"total_ios": ios, "runtime": ms});
            let first = serde_json::json!({"error": error, "read": way(ms)});
            let second = serde_json::json!({"error": 0, "write": way(7)});
            format!("fio: a warning\n{}", serde_json::json!({"jobs": [first, second]}))
        };
        assert_eq!(fio_runtime(&told(0, 9, 30)), Some((30_000_000, 18)));
        assert_eq!(fio_runtime(&told(0, 9, 0)), Some((7_000_000, 18)));
        assert_eq!(fio_runtime(&told(0, 0, 30)), None, "it did nothing");
        assert_eq!(fio_runtime(&told(5, 9, 30)), None, "it failed");
        for nothing in ["", "{}", "{\"jobs\": []}"] {
            assert_eq!(fio_runtime(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn files_per_second_stand_in_the_fourth_column() {
        let text = "#  fs_mark  -d x\n\nFSUse%        Count         Size    Files/sec     App \
                    Overhead\n    11           48      1048576         60.5             1122\n";
        assert_eq!(fs_mark_rate(text), Some(60.5));
        for nothing in ["", "Files/sec", "Files/sec x\n1 2 3\n", "Files/sec\n1 2 3 0.0 5\n"] {
            assert_eq!(fs_mark_rate(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn megabytes_per_second_stand_behind_a_word() {
        let text = "   4  12  Throughput 9 MB/sec\n\nThroughput 229.954 MB/sec  12 clients\n";
        assert_eq!(dbench_rate(text), Some(229.954));
        for nothing in ["", "Throughput ", "Throughput x", "Throughput 0 MB/sec"] {
            assert_eq!(dbench_rate(nothing), None, "{nothing}");
        }
    }

    /// Runs every program on an ordinary folder; other tests measure their effect on a volume.
    #[test]
    fn programs_that_are_there_end_with_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let longest = Duration::from_secs(600);
        let workdir = Workdir { folder: folder.path(), scratch: scratch.path(), longest };
        for (name, program) in Program::WORDS {
            let calls = match program {
                // Its duration is fixed, and on a busy machine it may complete nothing.
                Program::Dbench => continue,
                // It needs a server, and a file system for it.
                program if program.engine().is_some() => continue,
                program if program.is_of_iomelt() => {
                    let error =
                        workdir.run(ProgramSetup { program, calls: 16, seconds: 0 }).unwrap_err();
                    assert!(error.to_string().contains("no test"), "{name}: {error}");
                    continue;
                }
                Program::ThreadedLayout => 16 * TESTER_FILE_KIB_PER_CALL,
                // ab refuses less than one request for each connection.
                Program::Apache => 128,
                // PostMark divides by a tenth of the number.
                _ => 16,
            };
            match workdir.run(ProgramSetup { program, calls, seconds: 0 }) {
                Ok(score) => assert!(score.took_ns > 0 && !score.command.is_empty(), "{name}"),
                Err(error @ LabError::ToolMissing { .. }) => {
                    let _ = writeln!(std::io::stdout(), "SKIPPED: {name}: {error}");
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }

    #[test]
    fn failed_program_is_an_error_with_its_message() {
        let root = Path::new("/");
        let workdir = Workdir { folder: root, scratch: root, longest: Duration::from_secs(60) };
        let words = ["sh", "-c", "echo why >&2; exit 3"].map(str::to_owned);
        let error = workdir.finish(&words, "dash").unwrap_err().to_string();
        assert!(error.contains("why") && error.contains("sh -c"), "{error}");
        let words = ["no-such-program-here".to_owned()];
        let error = workdir.finish(&words, "fsmark").unwrap_err().to_string();
        assert!(error.contains("apt-get install fsmark"), "{error}");
        let hasty = Workdir { longest: Duration::from_millis(100), ..workdir };
        let error = hasty.finish(&["sleep", "60"].map(str::to_owned), "coreutils").unwrap_err();
        assert!(matches!(error, LabError::Deadline { .. }), "{error}");
    }
}
