//! Disturbances of a machine, a server and its clients while a demonstration runs.

use crate::clock;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Busy loops beside the demonstration.
const LOOPS: usize = 6;

/// Time limit of a busy loop, in seconds.
const LOOP_SECONDS_MAX: &str = "240";

/// MiB that are written and synced at a time beside the demonstration.
const SYNCED_MIB: u32 = 256;

/// Lengths of pauses, and the time between two of them, in milliseconds.
const PAUSE_MS: (u64, u64) = (5, 40);
const BETWEEN_MS: (u64, u64) = (100, 400);

/// Time until the first pause, in which the load begins: earlier pauses would disturb nothing that
/// is judged.
const SETTLE: Duration = Duration::from_secs(1);

/// A disturbance of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disturbance {
    None,
    BusyLoops,
    BusyDisk,
    Pauses { server: bool, client: bool },
}

/// A disturbance under way.
pub struct Disturbed {
    children: Vec<Child>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "nothing",
            Self::BusyLoops => "six busy loops",
            Self::BusyDisk => "files written and synced",
            Self::Pauses { server: true, client: true } => "pauses of server and client",
            Self::Pauses { server: true, client: false } => "pauses of the server",
            Self::Pauses { .. } => "pauses of the client",
        })
    }
}

impl Disturbance {
    /// Returns the word for the name of a file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "quiet",
            Self::BusyLoops => "busy",
            Self::BusyDisk => "disk",
            Self::Pauses { server: true, client: true } => "both",
            Self::Pauses { server: true, client: false } => "server",
            Self::Pauses { .. } => "client",
        }
    }

    /// Begins the disturbance. `wrapper` is the parent process of the demonstration, and `folder`
    /// is on the disk that it uses.
    pub fn begin(self, wrapper: u32, seed: u64, folder: &Path) -> Disturbed {
        let stop = Arc::new(AtomicBool::new(false));
        let mut disturbed =
            Disturbed { children: Vec::new(), stop: Arc::clone(&stop), thread: None };
        match self {
            Self::None => {}
            Self::BusyLoops => {
                disturbed.children = (0..LOOPS).filter_map(|_| busy_loop()).collect();
            }
            Self::BusyDisk => disturbed.children.extend(busy_disk(folder)),
            Self::Pauses { server, client } => {
                let pauses = move || pause_again_and_again(wrapper, (server, client), seed, &stop);
                disturbed.thread = Some(std::thread::spawn(pauses));
            }
        }
        disturbed
    }
}

impl Disturbed {
    /// Ends the disturbance.
    pub fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for child in &mut self.children {
            // The shell is the whole process.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts a shell that does nothing until its time limit.
fn busy_loop() -> Option<Child> {
    let script = format!("ulimit -t {LOOP_SECONDS_MAX}; while :; do :; done");
    Command::new("sh").arg("-c").arg(script).stdin(Stdio::null()).spawn().ok()
}

/// A shell that writes a file in the working folder of the demonstration, syncs it, and begins
/// anew. A write that is under way when the shell ends takes a moment longer.
fn busy_disk(folder: &Path) -> Option<Child> {
    let script = format!(
        "exec 2>/dev/null; for run in $(seq 240); do \
         timeout 30 dd if=/dev/zero of=synced bs=1M count={SYNCED_MIB} conv=fsync; sleep 0.5; done"
    );
    Command::new("sh").arg("-c").arg(script).current_dir(folder).stdin(Stdio::null()).spawn().ok()
}

fn pause_again_and_again(
    wrapper: u32,
    (server, client): (bool, bool),
    seed: u64,
    stop: &AtomicBool,
) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    while !stop.load(Ordering::Relaxed) {
        let Some((demo, fio)) = processes(wrapper) else {
            clock::pause(Duration::from_millis(20));
            continue;
        };
        clock::pause(SETTLE);
        while !stop.load(Ordering::Relaxed) && processes(wrapper) == Some((demo, fio)) {
            clock::pause(random.between(BETWEEN_MS));
            let mut stopped = Vec::new();
            stopped.extend(server.then_some(demo));
            stopped.extend(client.then_some(fio));
            signal("STOP", &stopped);
            clock::pause(random.between(PAUSE_MS));
            signal("CONT", &stopped);
        }
    }
}

/// Returns the demonstration, which contains the server, and the fio that it runs at present.
fn processes(wrapper: u32) -> Option<(u32, u32)> {
    let demo = children(wrapper).into_iter().next()?;
    let is_fio = |process: &u32| {
        fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim() == "fio")
    };
    let fio = children(demo).into_iter().find(is_fio)?;
    Some((demo, fio))
}

fn children(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    let lists: Vec<String> = lists.map(Result::unwrap_or_default).collect();
    lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|id| id.parse().ok()).collect()
}

fn signal(name: &str, processes: &[u32]) {
    let mut kill = Command::new("kill");
    kill.arg(format!("-{name}")).args(processes.iter().map(u32::to_string));
    // A process may have ended meanwhile.
    let _ = kill.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Marsaglia's xorshift: the times of pauses depend on the seed alone.
struct Random(u64);

impl Random {
    fn between(&mut self, (least, most): (u64, u64)) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_millis(least + self.0 % (most - least + 1))
    }
}
