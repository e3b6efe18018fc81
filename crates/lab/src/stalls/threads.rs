//! The times at which the threads of a server and of its clients had work, but did not run.
//!
//! The kernel counts for how long each thread waited for a processor (`run_delay`, the second
//! number of `/proc/<pid>/task/<tid>/schedstat`). It also reports which processes are stopped and
//! which threads are blocked by a disk. A thread that sleeps until an event has no work. The
//! watcher reads the counters every [`PERIOD_NS`], and places a wait at the end of the period in
//! which its counter rose.
//!
//! A thread that wakes up for every request waits a little each time. The sum may be long, but no
//! request is delayed by more than one such wait. So only long waits count: the third number is how
//! often the thread ran, which gives their mean.
//!
//! A thread changes its state only while it runs, and each run changes its counters. So a thread
//! that was asleep is asleep as long as its counters are equal, and its state, which costs far more
//! than its counters, is read once for each sleep.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Stall, Stalls};

/// Time between two polls.
pub(super) const PERIOD_NS: u64 = 2_000_000;

/// Polls between two searches for new threads.
const LOOKS_PER_SEARCH: u32 = 25;

/// If the mean of the waits between two polls is shorter than this, they are left out.
const WAIT_NS_MIN: u64 = 300_000;

/// Maximum number of spans that are kept of each side. More of them are seconds of waiting in each
/// minute, and such a run is not judged by them.
const SPANS_MAX: usize = 1 << 16;

/// Maximum number of threads that are followed.
const THREADS_MAX: usize = 512;

/// The prefix of the names of a data plane's threads.
const DATA_THREADS: &str = "core-";

/// The process that serves the watched load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// It is unknown, or on another machine.
    Unknown,
    /// This process has the data plane.
    Here,
    /// A process of this machine.
    Process(u32),
}

/// One thread that is followed.
#[derive(Debug)]
struct Thread {
    schedstat: File,
    process: u32,
    counted: Counted,
    /// Whether it was asleep after `counted` was read.
    is_asleep: bool,
}

impl Thread {
    /// Takes new counters, and returns whether the thread is blocked since the last ones. `state`
    /// returns its present state.
    fn is_blocked_at(&mut self, counted: Counted, state: impl FnOnce() -> Option<char>) -> bool {
        if counted != self.counted {
            self.is_asleep = false;
            self.counted = counted;
            return false;
        }
        if self.is_asleep {
            return false;
        }
        let state = state();
        self.is_asleep = state == Some('S');
        state == Some('D')
    }
}

/// The kernel's counters of a thread since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counted {
    ran_ns: u64,
    waited_ns: u64,
    /// The number of times that it ran; before each it waited.
    runs: u64,
}

impl Counted {
    /// Returns the nanoseconds waited since `before`, if the mean wait was long.
    fn waited_since(&self, before: &Self) -> Option<u64> {
        let waited_ns = self.waited_ns.saturating_sub(before.waited_ns);
        let runs = self.runs.saturating_sub(before.runs).max(1);
        (waited_ns / runs >= WAIT_NS_MIN).then_some(waited_ns)
    }
}

/// Follows the threads of the server, and of all programs that this process has started: those are
/// the clients.
#[derive(Debug)]
pub(super) struct Follower {
    server: Server,
    threads: BTreeMap<u32, Thread>,
    looks: u32,
    looked_us: u64,
    of_server: Vec<Stall>,
    of_clients: Vec<Stall>,
}

impl Follower {
    pub(super) fn new(server: Server, now_us: u64) -> Self {
        let of_server = Vec::new();
        let of_clients = Vec::new();
        let threads = BTreeMap::new();
        Self { server, threads, looks: 0, looked_us: now_us, of_server, of_clients }
    }

    /// Polls every thread once. `now_us` is the present time, in microseconds since 1970.
    pub(super) fn look(&mut self, now_us: u64) {
        if self.looks.is_multiple_of(LOOKS_PER_SEARCH) {
            self.search();
        }
        self.looks = self.looks.wrapping_add(1);
        // Whether a thread of a process has run since the last poll, or is asleep: no thread of a
        // stopped process is.
        let mut is_active: BTreeMap<u32, bool> = BTreeMap::new();
        let mut waits = Vec::new();
        let mut ended = Vec::new();
        let since =
            Stall { start_us: self.looked_us, length_us: now_us.saturating_sub(self.looked_us) };
        for (&number, thread) in &mut self.threads {
            let Some(counted) = read(&thread.schedstat) else {
                ended.push(number);
                continue;
            };
            let before = thread.counted;
            let process = thread.process;
            if thread.is_blocked_at(counted, || thread_state(process, number)) {
                waits.push((process, since));
            }
            *is_active.entry(process).or_default() |= counted != before || thread.is_asleep;
            if let Some(waited_ns) = counted.waited_since(&before) {
                let length_us = waited_ns / 1_000;
                let start_us = now_us.saturating_sub(length_us);
                waits.push((process, Stall { start_us, length_us }));
            }
        }
        for number in ended {
            self.threads.remove(&number);
        }
        let stopped =
            is_active.into_iter().filter(|(process, is_active)| !is_active && is_stopped(*process));
        waits.extend(stopped.map(|(process, _)| (process, since)));
        for (process, stall) in waits {
            let spans =
                if self.serves(process) { &mut self.of_server } else { &mut self.of_clients };
            if spans.len() < SPANS_MAX {
                spans.push(stall);
            }
        }
        self.looked_us = now_us;
    }

    /// Returns the lost time of the server's threads, and that of the clients'.
    pub(super) fn finish(self) -> (Stalls, Stalls) {
        (Stalls::merged(self.of_server), Stalls::merged(self.of_clients))
    }

    fn serves(&self, process: u32) -> bool {
        match self.server {
            Server::Unknown => false,
            Server::Here => process == std::process::id(),
            Server::Process(server) => process == server,
        }
    }

    /// Finds new threads.
    fn search(&mut self) {
        let here = std::process::id();
        for client in children(here) {
            self.follow(client, |_| true);
        }
        match self.server {
            Server::Unknown => {}
            Server::Here => self.follow(here, is_of_data_plane),
            // A server of another make has other thread names: all of its threads count.
            Server::Process(server) => {
                let is_ours = threads(server).any(|thread| is_of_data_plane(&name(server, thread)));
                self.follow(server, |name| !is_ours || is_of_data_plane(name));
            }
        }
    }

    fn follow(&mut self, process: u32, is_wanted: impl Fn(&str) -> bool) {
        for number in threads(process) {
            let is_known = self.threads.contains_key(&number);
            if is_known || self.threads.len() >= THREADS_MAX || !is_wanted(&name(process, number)) {
                continue;
            }
            let path = format!("/proc/{process}/task/{number}/schedstat");
            let Ok(schedstat) = File::open(path) else { continue };
            let Some(counted) = read(&schedstat) else { continue };
            let thread = Thread { schedstat, process, counted, is_asleep: false };
            self.threads.insert(number, thread);
        }
    }
}

fn is_of_data_plane(name: &str) -> bool {
    name.starts_with(DATA_THREADS)
}

/// Returns the threads of a process.
fn threads(process: u32) -> impl Iterator<Item = u32> {
    let folder = fs::read_dir(format!("/proc/{process}/task"));
    let entries = folder.into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name(process: u32, thread: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/task/{thread}/comm")).unwrap_or_default()
}

/// Returns the child processes of all threads of a process.
fn children(process: u32) -> Vec<u32> {
    let of_thread = |thread: u32| {
        let list = Path::new("/proc").join(format!("{process}/task/{thread}/children"));
        fs::read_to_string(list).unwrap_or_default()
    };
    let lists: Vec<String> = threads(process).map(of_thread).collect();
    lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|id| id.parse().ok()).collect()
}

/// Returns whether a signal or a debugger has stopped a process.
fn is_stopped(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state(&stat).is_some_and(|state| matches!(state, 'T' | 't'))
}

/// Returns the state of a thread: `S` if it sleeps until an event, `D` if it is blocked in the
/// kernel, as by a disk.
fn thread_state(process: u32, thread: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat"));
    state(&stat.unwrap_or_default())
}

/// Returns the third field of `/proc/<pid>/stat`, which follows the name in brackets.
fn state(stat: &str) -> Option<char> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.trim_start().chars().next()
}

/// Reads `schedstat`; `None` once the thread has ended.
fn read(schedstat: &File) -> Option<Counted> {
    let mut line = [0_u8; 96];
    let length = schedstat.read_at(&mut line, 0).ok()?;
    parse(&String::from_utf8_lossy(&line[..length]))
}

fn parse(line: &str) -> Option<Counted> {
    let mut numbers = line.split_whitespace().map(str::parse);
    let ran_ns = numbers.next()?.ok()?;
    let waited_ns = numbers.next()?.ok()?;
    let runs = numbers.next()?.ok()?;
    Some(Counted { ran_ns, waited_ns, runs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_os::clock;
    use rustix::process::{Pid, Signal, kill_process};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn the_kernel_s_lines_are_understood() {
        let counted = Counted { ran_ns: 88_886, waited_ns: 2_885_209, runs: 2 };
        assert_eq!(parse("88886 2885209 2\n"), Some(counted));
        assert_eq!(parse(""), None);
        assert_eq!(parse("1 x 2"), None);
        assert_eq!(counted.waited_since(&Counted::default()), Some(2_885_209));
        // The sum of ten short waits delays no request.
        let often = Counted { runs: 10, ..counted };
        assert_eq!(often.waited_since(&Counted::default()), None);
        assert_eq!(state("7 (a) b) T 1 7"), Some('T'));
        assert_eq!(state("7 (a"), None);
    }

    #[test]
    fn state_of_a_sleeping_thread_is_read_once_until_its_counters_change() {
        let schedstat = File::open("/dev/null").unwrap();
        let first = Counted { ran_ns: 1, waited_ns: 0, runs: 1 };
        let mut thread = Thread { schedstat, process: 1, counted: first, is_asleep: false };
        // It runs: a running thread has equal counters until the next tick.
        assert!(!thread.is_blocked_at(first, || Some('R')));
        assert!(thread.is_blocked_at(first, || Some('D')));
        assert!(thread.is_blocked_at(first, || Some('D')));
        assert!(!thread.is_blocked_at(first, || Some('S')));
        assert!(!thread.is_blocked_at(first, || panic!("its state is known")));
        let second = Counted { runs: 2, ..first };
        assert!(!thread.is_blocked_at(second, || panic!("it ran")));
        assert!(thread.is_blocked_at(second, || Some('D')));
    }

    /// A client that is stopped for a quarter of a second has lost about that time.
    #[test]
    fn a_client_that_is_stopped_is_seen() {
        let mut sleeper = Command::new("sleep");
        let mut child = sleeper.arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let mut follower = Follower::new(Server::Here, clock::unix_us());
        let look_for = |follower: &mut Follower, looks: u32| {
            for _ in 0..looks {
                clock::pause(Duration::from_millis(2));
                follower.look(clock::unix_us());
            }
        };
        look_for(&mut follower, 50);
        let before_us = clock::unix_us();
        kill_process(pid, Signal::STOP).unwrap();
        look_for(&mut follower, 100);
        kill_process(pid, Signal::CONT).unwrap();
        let stopped_us = clock::unix_us() - before_us;
        look_for(&mut follower, 50);
        let _ = child.kill();
        let _ = child.wait();
        look_for(&mut follower, 2);
        let (_, clients) = follower.finish();
        let seen_us = clients.lost_us(before_us..before_us + stopped_us);
        // The first poll may come late, and the last one before the signal.
        assert!(seen_us > stopped_us / 2, "{seen_us} of {stopped_us}: {clients:?}");
    }
}
