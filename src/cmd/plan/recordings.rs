//! Opens recordings: files in any form, compressed by gzip or not, and folders of them. The logs of
//! the jobs of fio belong together, as do the pages of an answer of CloudWatch.

use super::{described, unopened};
use crate::cmd;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_core::volume::Rules;
use evenkeel_planner::described::{VolumeList, is_list};
use evenkeel_planner::format::listed;
use evenkeel_planner::read::cloudwatch::data::{Answers, LastPage};
use evenkeel_planner::read::cloudwatch::pages::{Together, together, traces_of};
use evenkeel_planner::read::{self, Broken, Content, FioLog, FioRun, Format, Hints};
use evenkeel_planner::trace::{Note, Trace};
use flate2::read::MultiGzDecoder;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

/// The bytes of a file by which its form is detected.
const HEAD_BYTES: u64 = 64 << 10;
/// The first bytes of a file that gzip has compressed.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The most bytes of a file after it is decompressed.
const DECOMPRESSED_BYTES_MAX: u64 = 16 << 30;
/// The hint for a recording that does not exist.
const NO_RECORDING: &str = "name a recording, a folder of recordings, or the id of a volume of the \
                            server, vol-...; docs/reference/traces.md shows how to record";
/// The most files of a folder.
const FILES_MAX: usize = 10_000;
/// The most bytes of queries that lie beside an answer: those of some 10,000 metrics.
const QUERIES_BYTES_MAX: u64 = 4 << 20;
/// End of the name of a file with queries: `NAME.queries.json` has those of `NAME.json`.
const QUERIES: &str = "queries.json";

/// A file with a recording.
struct File {
    path: PathBuf,
    /// Whether it was found in a folder: then it may be no recording.
    is_found: bool,
}

/// The content of files and folders.
pub struct Recordings {
    pub traces: Vec<Trace>,
    /// Lists of volumes.
    pub lists: Vec<VolumeList>,
    /// Whether all recordings are answers or exports of CloudWatch.
    pub is_from_cloudwatch: bool,
}

/// Reads files and folders: recordings, and answers of `aws ec2 describe-volumes`.
///
/// `form` is that of all recordings; without it, each file's form is detected.
pub fn read_all(
    paths: &[PathBuf],
    form: Option<Format>,
    hints: &Hints,
    rules: &Rules,
) -> Result<Recordings, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(of_folder(path)?);
        } else {
            files.push(File { path: path.clone(), is_found: false });
        }
    }
    let mut traces: Vec<Trace> = Vec::new();
    let mut lists = Vec::new();
    let mut is_from_cloudwatch = true;
    let mut left_out = Vec::new();
    let mut run = FioRun::new(hints);
    let mut logs: Vec<&Path> = Vec::new();
    let mut pages = Vec::new();
    for file in &files {
        let mut opened = open(&file.path)?;
        if opened.is_list {
            lists.push(described::read(&file.path, &mut opened.input, rules)?);
            continue;
        }
        let Some(format) = form.or(opened.format) else {
            if file.is_found {
                left_out.push(name_of(&file.path).to_owned());
                continue;
            }
            return Err(unknown(&file.path, &opened));
        };
        is_from_cloudwatch &= matches!(
            format,
            Format::CloudWatchData | Format::CloudWatchStatistics | Format::CloudWatchConsole
        );
        let mut input = opened.input;
        let log = FioLog::of_file_name(name_of(&file.path)).filter(|_| format == Format::FioLog);
        if let Some(log) = log {
            run.add(log, &mut input).map_err(|broken| refused(&file.path, &broken, hints))?;
            logs.push(&file.path);
            continue;
        }
        let hints = hints_of(file, hints)?;
        let refused = |broken: Broken| refused(&file.path, &broken, &hints);
        if format == Format::CloudWatchData {
            pages.push((file.path.as_path(), Answers::read(&mut input).map_err(refused)?, hints));
            continue;
        }
        traces.extend(read::read(format, &mut input, &hints).map_err(refused)?);
    }
    for answer in together(pages) {
        traces.extend(of_answer(answer)?);
    }
    if let Some(first) = logs.first() {
        traces.extend(run.finish().map_err(|broken| refused(first, &broken, hints))?);
    }
    if traces.is_empty() && !left_out.is_empty() {
        let message = format!("the form of no file is known: {}", listed(&left_out));
        return Err(Failure::new(message).hint(known_forms()));
    }
    if !left_out.is_empty() {
        let remark = format!("files that are no recordings were left out: {}", listed(&left_out));
        let note = Note::Remark(remark);
        traces.iter_mut().for_each(|trace| trace.notes.push(note.clone()));
    }
    Ok(Recordings { traces, lists, is_from_cloudwatch })
}

/// Returns the traces of an answer, all of whose pages are given.
fn of_answer(answer: Together<&Path>) -> Result<Vec<Trace>, Failure> {
    let Together { files, hints, answers } = answer;
    traces_of(answers, LastPage::Given, &hints).map_err(|broken| {
        let paths: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        refused_in(&listed(&paths), &broken, &hints)
    })
}

/// Reads a file in any form.
pub fn read_file(path: &Path, hints: &Hints) -> Result<Content, Failure> {
    let mut opened = open(path)?;
    let Some(format) = opened.format else { return Err(unknown(path, &opened)) };
    let content = match format {
        Format::CloudWatchData => Answers::read(&mut opened.input).map(Content::Answers),
        _ => read::read(format, &mut opened.input, hints).map(Content::Traces),
    };
    content.map_err(|broken| refused(path, &broken, hints))
}

/// Returns the files of a folder, in the order of their names.
fn of_folder(folder: &Path) -> Result<Vec<File>, Failure> {
    let name = folder.display();
    let fail = |error: io::Error| Failure::new(format!("{name}: {error}"));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let is_hidden = name_of(&path).starts_with('.');
        if path.is_file() && !is_hidden && !name_of(&path).ends_with(QUERIES) {
            files.push(File { path, is_found: true });
        }
        if files.len() > FILES_MAX {
            let message = format!("{name} has more than {FILES_MAX} files");
            return Err(Failure::new(message).hint("name the files of one volume"));
        }
    }
    if files.is_empty() {
        return Err(Failure::new(format!("{name} has no file")).hint(known_forms()));
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

/// Returns the information that the text of a file lacks: its queries, if they are beside it.
fn hints_of(file: &File, hints: &Hints) -> Result<Hints, Failure> {
    let mut own = Hints { fio_log: FioLog::of_file_name(name_of(&file.path)), ..hints.clone() };
    let is_compressed = file.path.extension().is_some_and(|extension| extension == "gz");
    let text = if is_compressed { file.path.with_extension("") } else { file.path.clone() };
    let queries = text.with_extension(QUERIES);
    if own.queries.is_none() && queries.is_file() {
        let length = queries.metadata().map_or(0, |metadata| metadata.len());
        if length > QUERIES_BYTES_MAX {
            let most = QUERIES_BYTES_MAX >> 20;
            let message = format!("{}: more than {most} MiB of queries", queries.display());
            return Err(Failure::new(message).hint("name those of one volume with --queries"));
        }
        let text = std::fs::read_to_string(&queries)
            .map_err(|error| Failure::new(format!("{}: {error}", queries.display())))?;
        own.queries = Some(text);
    }
    Ok(own)
}

/// A file that is open, and its form.
struct Opened {
    input: Box<dyn BufRead>,
    /// `None` if it is not known.
    format: Option<Format>,
    /// Whether it is a list of volumes.
    is_list: bool,
    /// The name of a form that is known and not read.
    foreign: Option<&'static str>,
    /// Whether it has nothing but white space.
    is_empty: bool,
}

fn open(path: &Path) -> Result<Opened, Failure> {
    let fail = |error: io::Error| unopened(path, &error, NO_RECORDING);
    let (head, rest) = decompressed(path).and_then(with_head).map_err(fail)?;
    let mut input: Box<dyn BufRead> =
        Box::new(Cursor::new(head.clone()).chain(BufReader::new(rest)));
    let foreign = read::foreign(&head);
    if foreign.is_none() {
        read::skip_mark(&mut input)
            .map_err(|broken| Failure::new(format!("{}: {broken}", path.display())))?;
    }
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head);
    let format = if foreign.is_none() { read::detect(text) } else { None };
    let is_list = is_list(text);
    // The head of a longer file is not all of it.
    let is_empty = (head.len() as u64) < HEAD_BYTES && text.trim_ascii().is_empty();
    Ok(Opened { input, format, is_list, foreign, is_empty })
}

/// Opens a file, decompressed if gzip has compressed it.
pub fn decompressed(path: &Path) -> io::Result<Box<dyn Read>> {
    let (head, rest) = with_head(cmd::input(path)?)?;
    let is_compressed = head.starts_with(&GZIP);
    let whole = Cursor::new(head).chain(BufReader::new(rest));
    if is_compressed {
        let inner = MultiGzDecoder::new(whole);
        return Ok(Box::new(Bounded { inner, left: DECOMPRESSED_BYTES_MAX }));
    }
    Ok(Box::new(whole))
}

/// Returns the first bytes of a file, and the rest of it.
fn with_head<R: Read>(mut input: R) -> io::Result<(Vec<u8>, R)> {
    let mut head = Vec::new();
    input.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok((head, input))
}

/// Reads up to a number of bytes; more are an error.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            let gib = DECOMPRESSED_BYTES_MAX >> 30;
            io::Error::other(format!("it has more than {gib} GiB when it is decompressed"))
        })?;
        Ok(count)
    }
}

/// Returns the error of a file whose form is not known, or not read.
fn unknown(path: &Path, opened: &Opened) -> Failure {
    let name = path.display();
    match opened.foreign {
        Some(foreign) => Failure::new(format!("{name}: this is {foreign}")).hint(
            "record on the machine with `evenkeel record` or `iostat -xt 1`; \
             docs/reference/traces.md lists what can be read",
        ),
        None if opened.is_empty => Failure::new(format!("{name}: the file is empty"))
            .hint("record again; docs/reference/traces.md shows how"),
        None => {
            let message = format!("{name}: the form of this file is not known");
            Failure::new(message).hint(known_forms())
        }
    }
}

fn known_forms() -> String {
    let words = Format::ALL.map(Format::word).join(", ");
    format!(
        "docs/reference/traces.md lists what can be read, and how to record it; if it is one of \
         these forms, name it with --form: {words}"
    )
}

/// Returns the error of a file that its reader refuses.
fn refused(path: &Path, broken: &Broken, hints: &Hints) -> Failure {
    refused_in(&path.display().to_string(), broken, hints)
}

/// Returns the error of files that their reader refuses.
fn refused_in(names: &str, broken: &Broken, hints: &Hints) -> Failure {
    let is_name = broken.line.is_none()
        && hints.name.as_deref().is_some_and(|name| name.trim() == broken.found);
    let exit = if is_name { Exit::NotFound } else { Exit::Failed };
    Failure::new(format!("{names}: {broken}")).exit(exit)
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decompressed_file_is_bounded() {
        let mut bounded = Bounded { inner: io::repeat(b'x'), left: 10 };
        let mut text = Vec::new();
        let error = bounded.by_ref().take(100).read_to_end(&mut text).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 16 GiB when it is decompressed");
    }
}
