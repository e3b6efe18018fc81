//! Reads the files with metrics of a fleet, several groups at once.

use crate::cmd::plan::recordings;
use evenkeel_planner::fleet::evidence::{Fleet, Outcome};
use evenkeel_planner::fleet::files::{Group, Metrics};
use evenkeel_planner::read::{Content, FioLog, Hints};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Judges all volumes, `jobs` groups of files at once.
pub fn judge(fleet: &Fleet<'_>, groups: &[Group], jobs: usize, allows_partial: bool) -> Outcome {
    let next = AtomicUsize::new(0);
    let parts = Mutex::new(Vec::new());
    let work = || {
        while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
            let part = fleet.group(group, &|file| read(file, allows_partial));
            parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(part);
        }
    };
    std::thread::scope(|scope| {
        // This thread is one of the jobs.
        for _ in 1..jobs.min(groups.len()) {
            scope.spawn(work);
        }
        work();
    });
    fleet.outcome(parts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn read(file: &Metrics, allows_partial: bool) -> Result<(Hints, Content), String> {
    let queries = file.queries.as_ref().map(|path| {
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    });
    let name = file.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let hints = Hints {
        allows_partial,
        queries: queries.transpose()?,
        fio_log: FioLog::of_file_name(name),
        ..Hints::default()
    };
    let content = recordings::read_file(&file.path, &hints).map_err(|failure| failure.message)?;
    Ok((hints, content))
}
