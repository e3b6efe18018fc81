//! An agent with one goal, in a process of its own that may be killed at any instant.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::support::{PATIENCE, attached, device};
use evenkeel_autopilot::host::LinuxHost;
use evenkeel_autopilot::{Fault, Host};
use evenkeel_os::clock;
use evenkeel_planner::autopilot::observation::{FileSystem, RunningKind};
use evenkeel_planner::autopilot::operation::Verb;
use serde::{Deserialize, Serialize};

/// The variable with the task of an agent, as JSON.
const TASK: &str = "EVENKEEL_TEST_AGENT";
/// Time between two observations.
const TICK: Duration = Duration::from_millis(50);

/// The goal of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Goal {
    /// The file system uses the whole device.
    Grow { volume: String },
    /// The volume is a device of it.
    Enlist { volume: String },
    /// The volume is no device of it.
    Evict { volume: String },
    /// The second volume takes the place of the first: it is added, and the first is removed.
    Swap { volume: String, with: String },
    /// One step of compaction has ended.
    Compact,
}

/// A goal, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The mount.
    pub mount: PathBuf,
    /// The volumes.
    pub volumes: Vec<(String, PathBuf)>,
    /// The goal.
    pub goal: Goal,
    /// The pace of moves.
    pub bytes_per_s: u64,
}

/// The end of an agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The goal is reached.
    Reached,
    /// It was refused, for this reason.
    Refused(String),
}

enum Next {
    Done,
    Wait,
    Verb(Verb),
}

impl Goal {
    /// Compares the goal with an observation, as the controller does.
    fn next(&self, seen: &FileSystem, bytes_per_s: u64, has_begun: bool) -> Next {
        if let Some(running) = &seen.running {
            // An agent that was killed may have had another pace.
            let is_ours = !matches!(running.kind, RunningKind::Add | RunningKind::Foreign);
            let is_paced = running.pace_bytes_per_s == Some(bytes_per_s);
            let is_wrong = is_ours && !is_paced;
            return if is_wrong { Next::Verb(Verb::Pace { bytes_per_s }) } else { Next::Wait };
        }
        match self {
            Self::Grow { volume } => match device(seen, volume) {
                Some(found) if found.size_bytes + 8_192 > found.device_bytes && has_begun => {
                    Next::Done
                }
                _ if has_begun => Next::Verb(Verb::Grow { volume: volume.clone() }),
                _ => Next::Verb(Verb::Rescan { volume: volume.clone() }),
            },
            Self::Enlist { volume } => match device(seen, volume) {
                Some(_) => Next::Done,
                None => Next::Verb(Verb::Add { volume: volume.clone() }),
            },
            Self::Evict { volume } => match device(seen, volume) {
                None => Next::Done,
                Some(_) => Next::Verb(Verb::Remove { volume: volume.clone(), bytes_per_s }),
            },
            Self::Swap { volume, with } => match (device(seen, volume), device(seen, with)) {
                (None, _) => Next::Done,
                (Some(_), None) => Next::Verb(Verb::Add { volume: with.clone() }),
                (Some(_), Some(_)) => {
                    Next::Verb(Verb::Remove { volume: volume.clone(), bytes_per_s })
                }
            },
            Self::Compact if has_begun => Next::Done,
            Self::Compact => {
                Next::Verb(Verb::Compact { used_percent_max: 60, chunks_max: 2, bytes_per_s })
            }
        }
    }
}

impl Task {
    /// Pursues the goal to its end in this process.
    fn pursue(&self) -> End {
        let window = Duration::from_secs(300);
        let open = LinuxHost::open(&self.mount, attached(self.volumes.clone()), window);
        let mut host = open.expect("a host");
        let mut has_begun = false;
        let deadline = clock::now() + PATIENCE;
        let mut last = String::new();
        while clock::now() < deadline {
            let verb = match host.observe() {
                Ok(seen) => match self.goal.next(&seen, self.bytes_per_s, has_begun) {
                    Next::Done => return End::Reached,
                    Next::Wait => None,
                    Next::Verb(verb) => Some(verb),
                },
                Err(fault) => {
                    last = format!("{fault:?}");
                    None
                }
            };
            match verb.map(|verb| (host.execute(&verb), verb)) {
                Some((Err(Fault::Refused(text)), _)) => return End::Refused(text),
                Some((Err(Fault::Later(text)), _)) => last = text,
                Some((Ok(()), Verb::Pace { .. })) | None => {}
                Some((Ok(()), _)) => has_begun = true,
            }
            clock::pause(TICK);
        }
        panic!("{:?} is not reached within {PATIENCE:?}; last: {last}", self.goal);
    }

    /// Starts a process that pursues the goal.
    pub fn start(&self) -> Child {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "agent::agent_process", "--nocapture", "--test-threads=1"]);
        command.env(TASK, serde_json::to_string(self).expect("JSON"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("this program starts")
    }

    /// Waits for the process's end; `None` if it was killed.
    pub fn end(process: Child) -> Option<End> {
        let output = process.wait_with_output().expect("its output");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = printed.lines().find_map(|line| line.split_once("END: ").map(|(_, end)| end));
        if line.is_none() && output.status.code().is_some() {
            panic!("{printed}\n{}", String::from_utf8_lossy(&output.stderr));
        }
        line.map(|line| match line.strip_prefix("refused ") {
            Some(text) => End::Refused(text.to_owned()),
            None => End::Reached,
        })
    }
}

/// The process of [`Task::start`]; without a task, a test that passes.
#[test]
fn agent_process() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).expect("a task");
    match task.pursue() {
        End::Reached => println!("END: reached"),
        End::Refused(text) => println!("END: refused {text}"),
    }
}
