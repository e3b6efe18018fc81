//! Trees of sources, such as a kernel has: made, compiled and read in the manner of Compile Bench
//! 0.6, and an archive of one for tar and bzip2.
//!
//! Compile Bench needs a Python that distributions no longer have, and its lists of names and sizes
//! are those of a kernel. Here they are drawn, and the same in every run. Its three phases are the
//! published ones: ten trees are made one after the other; objects are written beside their
//! sources in no order, as by a `make` of many jobs; everything is read. A phase that writes
//! includes the write-back to the disk in its time. A phase that reads is served from the page
//! cache, which is not dropped before; its figure is the fastest of several passes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_core::random::Random;

use crate::mounts;
use evenkeel_lab::{LabError, cancel};
use evenkeel_os::clock;

/// Trees of a test, as the published run had them.
const TREES: u64 = 10;
/// Sources in a folder.
const FOLDER_SOURCES: u64 = 16;
/// The least bytes of a source, and the mean of an exponentially distributed addition: 12 KiB
/// together.
const SOURCE_BYTES_MIN: u64 = 512;
const SOURCE_BYTES_MORE: u64 = (12 << 10) - SOURCE_BYTES_MIN;
/// One source in this number has an object.
const COMPILED_ONE_IN: u64 = 2;
/// An object's size, in percent of its source's.
const OBJECT_PERCENT: u64 = 150;
/// Duration of the passes that read: one pass from the page cache is too short to measure.
const READ: Duration = Duration::from_secs(2);
/// The least number of these passes.
const PASSES_MIN: usize = 4;
/// Bytes of the pool that files are cut from.
const POOL_BYTES: u64 = 4 << 20;
/// The seed of names, sizes and words.
const SEED: u64 = 2013;

/// A file of a tree that is drawn.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Source {
    /// Path from the tree's root.
    path: PathBuf,
    bytes: u64,
    /// Bytes of its object, if it has one.
    object_bytes: Option<u64>,
}

/// A phase of the test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The trees are made.
    Create,
    /// Objects are written.
    Compile,
    /// Sources and objects are read.
    Read,
}

/// The work of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Done {
    /// Bytes of all files that were written or read.
    pub bytes: u64,
    /// In this time.
    pub took: Duration,
}

/// Runs a phase on ten trees of `sources` files each, in a folder. [`Phase::Create`] has to be the
/// first.
///
/// # Errors
/// When a file cannot be written or read, the phase takes longer than `longest`, or the process is
/// asked to stop.
pub(super) fn run(
    phase: Phase,
    folder: &Path,
    sources: u64,
    longest: Duration,
) -> Result<Done, LabError> {
    let root = folder.join("trees");
    if phase == Phase::Create {
        fs::create_dir(&root).map_err(LabError::io("cannot make", &root))?;
    }
    let trees: Vec<(PathBuf, Vec<Source>)> = (0..TREES)
        .map(|tree| (root.join(tree.to_string()), drawn(sources, &mut Random::new(SEED, tree))))
        .collect();
    let write = match phase {
        Phase::Create => create,
        Phase::Compile => compile,
        Phase::Read => return read_all(&trees, Limit::of(longest)),
    };
    let mut writer = Writer::new();
    let began = clock::now();
    let limit = Limit::of(longest);
    let mut bytes = 0;
    for (tree, files) in &trees {
        bytes += write(tree, files, &mut writer, limit)?;
    }
    mounts::settle(&root)?;
    Ok(Done { bytes, took: clock::now() - began })
}

/// Reads everything in several passes, and returns the fastest. The page cache should serve them. A
/// kernel that is short of memory drops written and read pages, so a pass may be slower.
fn read_all(trees: &[(PathBuf, Vec<Source>)], limit: Limit) -> Result<Done, LabError> {
    let mut buffer = Vec::new();
    let mut passes = Vec::new();
    let began = clock::now();
    loop {
        let pass_began = clock::now();
        let mut bytes = 0;
        for (tree, files) in trees {
            bytes += read(tree, files, &mut buffer, limit)?;
        }
        passes.push((clock::now() - pass_began, bytes));
        if passes.len() >= PASSES_MIN && clock::now() - began >= READ {
            break;
        }
    }
    let (took, bytes) = passes.into_iter().min().unwrap_or_default();
    Ok(Done { bytes, took })
}

/// Makes one tree of `sources` files, whose contents are all different.
///
/// # Errors
/// When it cannot be written, or the process is asked to stop.
pub(super) fn make(root: &Path, sources: u64, longest: Duration) -> Result<(), LabError> {
    let limit = Limit::of(longest);
    let mut random = Random::new(SEED, TREES);
    fs::create_dir(root).map_err(LabError::io("cannot make", root))?;
    for source in drawn(sources, &mut random) {
        limit.go_on()?;
        let path = root.join(&source.path);
        folder_of(&path)?;
        fs::write(&path, words(source.bytes, &mut random))
            .map_err(LabError::io("cannot write", &path))?;
    }
    Ok(())
}

/// The time at which a phase is given up.
#[derive(Clone, Copy)]
struct Limit {
    deadline: Instant,
    longest: Duration,
}

impl Limit {
    fn of(longest: Duration) -> Self {
        Self { deadline: clock::now() + longest, longest }
    }

    fn go_on(self) -> Result<(), LabError> {
        cancel::go_on()?;
        if clock::now() > self.deadline {
            let what = "a phase on trees of sources".to_owned();
            Err(LabError::Deadline { what, after: self.longest })
        } else {
            Ok(())
        }
    }
}

/// Writes files that are cut from a pool of words.
struct Writer {
    pool: Vec<u8>,
    random: Random,
}

impl Writer {
    fn new() -> Self {
        let mut random = Random::new(SEED, TREES + 1);
        Self { pool: words(POOL_BYTES, &mut random), random }
    }

    fn write(&mut self, path: &Path, bytes: u64) -> Result<(), LabError> {
        let bytes = bytes.min(POOL_BYTES);
        let from = self.random.below(POOL_BYTES - bytes + 1);
        let range = usize::try_from(from).unwrap_or(0)..usize::try_from(from + bytes).unwrap_or(0);
        fs::write(path, &self.pool[range]).map_err(LabError::io("cannot write", path))
    }
}

fn create(
    tree: &Path,
    files: &[Source],
    writer: &mut Writer,
    limit: Limit,
) -> Result<u64, LabError> {
    let mut bytes = 0;
    for source in files {
        limit.go_on()?;
        let path = tree.join(&source.path);
        folder_of(&path)?;
        writer.write(&path, source.bytes)?;
        bytes += source.bytes;
    }
    Ok(bytes)
}

fn compile(
    tree: &Path,
    files: &[Source],
    writer: &mut Writer,
    limit: Limit,
) -> Result<u64, LabError> {
    let mut objects: Vec<(PathBuf, u64)> = files
        .iter()
        .filter_map(|source| Some((source.path.with_extension("o"), source.object_bytes?)))
        .collect();
    for last in (1..objects.len()).rev() {
        let other = writer.random.below(last as u64 + 1);
        objects.swap(last, usize::try_from(other).unwrap_or(0));
    }
    let mut bytes = 0;
    for (object, object_bytes) in objects {
        limit.go_on()?;
        writer.write(&tree.join(object), object_bytes)?;
        bytes += object_bytes;
    }
    Ok(bytes)
}

fn read(
    tree: &Path,
    files: &[Source],
    buffer: &mut Vec<u8>,
    limit: Limit,
) -> Result<u64, LabError> {
    let mut bytes = 0;
    for source in files {
        limit.go_on()?;
        let object = source.object_bytes.map(|_| source.path.with_extension("o"));
        for path in [Some(source.path.clone()), object].into_iter().flatten() {
            let path = tree.join(path);
            buffer.clear();
            File::open(&path)
                .and_then(|mut file| std::io::Read::read_to_end(&mut file, buffer))
                .map_err(LabError::io("cannot read", &path))?;
            bytes += buffer.len() as u64;
        }
    }
    Ok(bytes)
}

/// Makes the folder that a file lies in.
fn folder_of(path: &Path) -> Result<(), LabError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(LabError::io("cannot make", folder))
}

/// Returns the files of a tree of `sources` sources, folder by folder.
fn drawn(sources: u64, random: &mut Random) -> Vec<Source> {
    let source = |number: u64| {
        let bytes = SOURCE_BYTES_MIN + random.exponential(SOURCE_BYTES_MORE);
        let bytes = bytes.min(POOL_BYTES * 100 / OBJECT_PERCENT);
        let object_bytes = random.one_in(COMPILED_ONE_IN).then_some(bytes * OBJECT_PERCENT / 100);
        let folder = number / FOLDER_SOURCES;
        let path = format!("{}/{}/source-{number}.c", folder / FOLDER_SOURCES, folder);
        Source { path: path.into(), bytes, object_bytes }
    };
    (0..sources).map(source).collect()
}

/// The words of a source, the more common ones first.
const WORDS: [&str; 24] = [
    "\n",
    "\t",
    " ",
    ";",
    "(",
    ")",
    ", ",
    " = ",
    "->",
    "struct ",
    "int ",
    "if (",
    "return ",
    "0",
    "{\n",
    "}\n",
    "static ",
    "/* ",
    " */",
    "const ",
    "unsigned long ",
    "&",
    "#define ",
    "sizeof(",
];
/// Names that are made up.
const NAMES: u64 = 4_096;

/// Returns this number of bytes of words and names. bzip2 makes the text about five times smaller,
/// as it does sources.
fn words(bytes: u64, random: &mut Random) -> Vec<u8> {
    let wanted = usize::try_from(bytes).unwrap_or(0);
    let mut text = Vec::with_capacity(wanted + 32);
    while text.len() < wanted {
        match random.below(3) {
            // The smallest of several draws, so that some names are much more frequent than others.
            0 => {
                let name = random.below(NAMES).min(random.below(NAMES)).min(random.below(NAMES));
                text.extend_from_slice(format!("dev_{}", name * name).as_bytes());
            }
            _ => {
                let count = WORDS.len() as u64;
                let word = random.below(count).min(random.below(count));
                text.extend_from_slice(WORDS[usize::try_from(word).unwrap_or(0)].as_bytes());
            }
        }
    }
    text.truncate(wanted);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    const LONGEST: Duration = Duration::from_secs(600);

    #[test]
    fn a_tree_is_the_same_in_every_run_and_of_about_its_mean_size() {
        let draw = || drawn(3_000, &mut Random::new(SEED, 0));
        let files = draw();
        assert_eq!(files, draw());
        let mean = files.iter().map(|file| file.bytes).sum::<u64>() / 3_000;
        assert!((11_500..13_000).contains(&mean), "{mean}");
        let compiled = files.iter().filter(|file| file.object_bytes.is_some()).count();
        assert!((1_350..1_650).contains(&compiled), "{compiled}");
        let mut paths: Vec<&Path> = files.iter().map(|file| file.path.as_path()).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), 3_000, "no two of a name");
    }

    /// The bytes that the phases count lie on the disk.
    #[test]
    fn phases_write_and_read_the_bytes_that_they_tell() {
        let folder = tempfile::tempdir().unwrap();
        let phase = |phase| run(phase, folder.path(), 40, LONGEST).unwrap();
        let made = phase(Phase::Create);
        let compiled = phase(Phase::Compile);
        let read = phase(Phase::Read);
        let on_disk = |extension: &str| {
            let mut bytes = 0;
            let mut left = vec![folder.path().join("trees")];
            while let Some(at) = left.pop() {
                for entry in fs::read_dir(at).unwrap().map(Result::unwrap) {
                    if entry.file_type().unwrap().is_dir() {
                        left.push(entry.path());
                    } else if entry.path().extension().is_some_and(|found| found == extension) {
                        bytes += entry.metadata().unwrap().len();
                    }
                }
            }
            bytes
        };
        assert_eq!(made.bytes, on_disk("c"));
        assert_eq!(compiled.bytes, on_disk("o"));
        assert!(compiled.bytes > made.bytes / 2 && made.took > Duration::ZERO);
        assert_eq!(read.bytes, made.bytes + compiled.bytes, "one pass");
        assert!(read.took > Duration::ZERO);
        let again = run(Phase::Create, folder.path(), 40, LONGEST).unwrap_err().to_string();
        assert!(again.contains("cannot make") && again.contains("trees"), "{again}");
    }

    #[test]
    fn phase_without_trees_and_phase_out_of_time_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let error = run(Phase::Compile, folder.path(), 4, LONGEST).unwrap_err().to_string();
        assert!(error.contains("trees/0"), "{error}");
        let error = run(Phase::Create, folder.path(), 4, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("trees of sources"), "{error}");
    }

    /// Enough that an archive costs what one of sources does.
    #[test]
    fn bzip2_makes_a_text_about_five_times_smaller() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        fs::write(&file, words(900_000, &mut Random::new(SEED, 0))).unwrap();
        let mut command = std::process::Command::new("bzip2");
        match evenkeel_lab::child::run_to_end(command.arg(&file), "bzip2") {
            Err(error @ LabError::ToolMissing { .. }) => {
                let _ = writeln!(std::io::stdout(), "SKIPPED: {error}");
                return;
            }
            other => drop(other.unwrap()),
        }
        let small = fs::metadata(folder.path().join("text.bz2")).unwrap().len();
        assert!((110_000..260_000).contains(&small), "{small}");
    }
}
