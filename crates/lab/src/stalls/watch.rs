//! The watcher: a thread on every processor that only has to wake in time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use evenkeel_engine::priority;
use rustix::param::clock_ticks_per_second;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::steal::{self, Steal};
use super::threads::{self, Follower};
use super::{Observed, Server, Stall, Stalls};
use evenkeel_os::clock;

/// Time between two readings of the clock.
const PERIOD_NS: u64 = 1_000_000;

/// The shortest stall that is recorded. A shorter one is within the bands of every verdict, and a
/// kernel that is busy with interrupts may cause it.
const STALL_NS_MIN: u64 = 5_000_000;

/// Maximum number of stalls that are kept for each processor. More than these are more than five
/// minutes in all. A run of at most an hour cannot be judged then, whatever is dropped.
const STALLS_MAX: usize = 1 << 16;

/// The kernel's counters of the calling thread: time on a processor, time in the run queue, turns.
const BOOKS: &str = "/proc/thread-self/schedstat";

/// The kernel's counters of each processor; steal is one of them.
const STAT: &str = "/proc/stat";

/// The watch's real-time priority, above that of servers and clients, so that it never waits. Time
/// in the run queue is subtracted, and may hide a stall. So on a busy machine a watch without this
/// privilege misses some stalls, and excuses too little rather than too much.
const PRIORITY: i32 = priority::REAL_TIME + 1;

/// Threads that watch every processor of this process, and the threads of a server and its
/// clients, until they are stopped or dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Vec<Stall>, String>>>,
    follower: Option<JoinHandle<(Follower, Steal)>>,
    real_time: bool,
    failed: Option<String>,
}

impl Watch {
    /// Starts to watch. Clients are the programs that this process starts. It never fails:
    /// [`Self::finish`] reports problems.
    #[must_use]
    pub fn start(server: Server) -> Self {
        let (mut watch, real_time) =
            priority::starting_real_time(PRIORITY, || Self::start_threads(server));
        watch.real_time = real_time;
        watch
    }

    /// Starts the threads, which inherit the priority of this one.
    fn start_threads(server: Server) -> Self {
        let mut watch = Self {
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
            follower: None,
            real_time: false,
            failed: None,
        };
        let allowed = match sched_getaffinity(None) {
            Ok(allowed) => allowed,
            Err(error) => {
                watch.failed = Some(format!("the processors are not known: {error}"));
                return watch;
            }
        };
        let mut processors = Vec::new();
        for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)) {
            processors.extend(u32::try_from(cpu));
            let stop = Arc::clone(&watch.stop);
            let thread = thread::Builder::new().name(format!("stalls-{cpu}"));
            match thread.spawn(move || watch_processor(cpu, &stop)) {
                Ok(thread) => watch.threads.push(thread),
                Err(error) => watch.failed = Some(format!("no thread for it: {error}")),
            }
        }
        let stop = Arc::clone(&watch.stop);
        let thread = thread::Builder::new().name("stalls-threads".to_owned());
        match thread.spawn(move || follow(server, &processors, &stop)) {
            Ok(follower) => watch.follower = Some(follower),
            Err(error) => watch.failed = Some(format!("no thread for it: {error}")),
        }
        watch
    }

    /// Ends the watch and returns its observations, in microseconds since 1970. If a processor was
    /// not watched, the result is [`Observed::unwatched`], since half a list would look like a
    /// whole one.
    #[must_use]
    pub fn finish(mut self) -> Observed {
        self.stop.store(true, Ordering::Relaxed);
        let mut failed = self.failed.take();
        let mut stalls = Vec::new();
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(seen)) => stalls.extend(seen),
                Ok(Err(why)) => failed = Some(why),
                Err(_) => failed = Some("its thread panicked".to_string()),
            }
        }
        let followed = self.follower.take().map(JoinHandle::join);
        let Some(Ok((follower, steal))) = followed else {
            return Observed::unwatched(failed.unwrap_or("no thread was followed".to_owned()));
        };
        if let Some(why) = failed {
            return Observed::unwatched(why);
        }
        let (server, client) = follower.finish();
        let stalls = Stalls::merged(stalls);
        let (taken, steal) = steal.beyond(&stalls.and(&server).and(&client));
        let stalls = stalls.and(&taken);
        let real_time = self.real_time;
        Observed { stalls, server, client, steal, unwatched: None, real_time }
    }
}

impl Drop for Watch {
    /// Asks the threads to stop. They end within a period, without a wait.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Polls the threads of the server and its clients, and the steal of these processors, until it is
/// stopped.
fn follow(server: Server, processors: &[u32], stop: &AtomicBool) -> (Follower, Steal) {
    // Without the file steal is unknown, and excuses nothing.
    let stat = || std::fs::read_to_string(STAT).unwrap_or_default();
    let now_us = clock::unix_us();
    let mut follower = Follower::new(server, now_us);
    let mut steal = Steal::new(&stat(), processors, clock_ticks_per_second(), now_us);
    let mut looks = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        clock::sleep_until_ns(clock::monotonic().ns + threads::PERIOD_NS);
        let now_us = clock::unix_us();
        follower.look(now_us);
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(steal::LOOKS_PER_READING) {
            steal.read(&stat(), now_us);
        }
    }
    (follower, steal)
}

fn watch_processor(cpu: usize, stop: &AtomicBool) -> Result<Vec<Stall>, String> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)
        .map_err(|error| format!("cannot stay on processor {cpu}: {error}"))?;
    let books = File::open(BOOKS).map_err(|error| format!("{BOOKS}: {error}"))?;
    let mut stalls = Vec::new();
    let mut waited_ns = waited_ns(&books)?;
    let mut woke_ns = clock::monotonic().ns;
    while !stop.load(Ordering::Relaxed) {
        clock::sleep_until_ns((woke_ns / PERIOD_NS + 1) * PERIOD_NS);
        let waited_before_ns = waited_ns;
        waited_ns = self::waited_ns(&books)?;
        let now_ns = clock::monotonic().ns;
        let gap_ns = now_ns.saturating_sub(woke_ns);
        woke_ns = now_ns;
        if gap_ns < PERIOD_NS + STALL_NS_MIN {
            continue;
        }
        // The counter is read again: between its first reading and that of the clock the thread may
        // have returned to the run queue, and that time must not count as a stall.
        let in_line_ns = self::waited_ns(&books)?.saturating_sub(waited_before_ns);
        if let Some(length_ns) = stall_ns(gap_ns, in_line_ns)
            && stalls.len() < STALLS_MAX
        {
            // It stood still first, and waited in the run queue afterwards, behind other late
            // threads.
            let since_ns = clock::monotonic().ns.saturating_sub(now_ns) + in_line_ns + length_ns;
            let start_us = clock::unix_us().saturating_sub(since_ns / 1_000);
            stalls.push(Stall { start_us, length_us: length_ns / 1_000 });
        }
    }
    Ok(stalls)
}

/// Returns the stall between two wake-ups. Neither the requested sleep nor the time in the run
/// queue is the machine's fault. Of the rest, short delays do not count.
fn stall_ns(gap_ns: u64, in_line_ns: u64) -> Option<u64> {
    let unexplained_ns = gap_ns.saturating_sub(in_line_ns).saturating_sub(PERIOD_NS);
    (unexplained_ns >= STALL_NS_MIN).then_some(unexplained_ns)
}

/// Returns the time that the thread has waited in its processor's run queue since its start.
fn waited_ns(books: &File) -> Result<u64, String> {
    let mut line = [0_u8; 96];
    let length = books.read_at(&mut line, 0).map_err(|error| format!("{BOOKS}: {error}"))?;
    let line = String::from_utf8_lossy(&line[..length]);
    parse_waited_ns(&line).ok_or_else(|| format!("{BOOKS} holds {line:?}"))
}

fn parse_waited_ns(line: &str) -> Option<u64> {
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn gap_is_a_stall_only_beyond_its_time_in_the_run_queue() {
        for (gap_ms, in_line_ms, stall_ms) in [
            (1, 0, None),
            (5, 0, None),
            (6, 0, Some(5)),
            (61, 0, Some(60)),
            // An overloaded processor: late, but in the run queue all the time.
            (61, 60, None),
            (500, 499, None),
            // Halted for 50 ms, then 10 ms in the run queue.
            (61, 10, Some(50)),
            // In the run queue before this gap began: a longer wait than the gap explains only the
            // gap.
            (61, 90, None),
        ] {
            let want = stall_ms.map(|ms: u64| ms * MS);
            assert_eq!(stall_ns(gap_ms * MS, in_line_ms * MS), want, "{gap_ms} {in_line_ms}");
        }
    }

    #[test]
    fn the_books_are_understood() {
        assert_eq!(parse_waited_ns("88886 2885209 2\n"), Some(2_885_209));
        for line in ["", "1", "1 x 2", "\n"] {
            assert_eq!(parse_waited_ns(line), None, "{line:?}");
        }
    }

    #[test]
    fn watch_ends_and_returns_its_observations() {
        let begun_us = clock::unix_us();
        let observed = Watch::start(Server::Here).finish();
        if let Some(why) = &observed.unwatched {
            eprintln!("this machine cannot be watched: {why}");
            assert!(observed.stalls.is_empty());
        }
        // All its observations lie in this span.
        let now_us = clock::unix_us();
        for stall in observed.stalls.as_slice() {
            assert!(stall.end_us() <= now_us && stall.end_us() > begun_us, "{stall:?}");
        }
        drop(Watch::start(Server::Unknown));
    }

    proptest! {
        #[test]
        fn time_in_line_never_adds_to_a_stall(gap in 0_u64..1 << 40, in_line in 0_u64..1 << 40) {
            let stall = stall_ns(gap, in_line);
            prop_assert!(stall <= stall_ns(gap, 0));
            if let Some(length) = stall {
                prop_assert!(length >= STALL_NS_MIN && length + in_line + PERIOD_NS == gap);
            }
        }
    }
}
