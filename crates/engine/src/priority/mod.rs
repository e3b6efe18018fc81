//! The priority of threads for processor time: `SCHED_RR`, a negative nice value, or neither.
//!
//! On a machine where programs compute on every processor, a thread that wakes up waits for its
//! turn: some milliseconds each time, and longer if it needs more than an equal share. A thread
//! with the policy `SCHED_RR` does not wait. An operator asks for a [`Priority`], and [`Granted`]
//! is the one that the kernel allows this process. [`allowance`] limits the time that a core takes
//! at that priority.
//!
//! Children inherit the policy, on purpose: the kernel's io_uring workers are children of the core
//! for which they write to the disk, as are the threads of the driver with plain system calls. A
//! core starts no programs.

pub(crate) mod allowance;
pub(crate) mod raised;

use rustix::process::{Pid, Resource, getpriority_process, getrlimit, setpriority_process};
use std::fmt;
use std::io;

/// The real-time priority of the data plane, and of clients that are measured: the lowest one, so
/// that every real-time thread of the system itself goes first.
pub const REAL_TIME: i32 = 1;

/// The nice value of the data plane where it has no real-time priority. Its weight is 28 times that
/// of a program with nice 0.
pub const NICE: i32 = -15;

/// The priority that is asked for the data plane's threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    /// The first of the next three that is allowed.
    Auto,
    /// The policy `SCHED_RR` at priority [`REAL_TIME`].
    RealTime,
    /// The nice value [`NICE`].
    Nice,
    /// The priority of the process.
    None,
}

/// The priority of the data plane's threads that this process is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granted {
    /// The policy `SCHED_RR` at priority [`REAL_TIME`].
    RealTime,
    /// The nice value [`NICE`].
    Nice,
    /// The priority of the process.
    None,
}

/// A priority that the kernel refuses.
#[derive(Debug)]
pub struct Refused {
    asked: Priority,
    source: io::Error,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = &self.source;
        match self.asked {
            Priority::Nice => write!(
                f,
                "data-plane-priority nice: the kernel refuses the nice value {NICE}: {source} \
                 (RLIMIT_NICE is {}, and {} is needed); grant CAP_SYS_NICE, or set \
                 LimitNICE={NICE} in the systemd unit, or choose data-plane-priority auto",
                shown(Resource::Nice),
                20 - NICE
            ),
            _ => write!(
                f,
                "data-plane-priority real-time: the kernel refuses SCHED_RR at priority \
                 {REAL_TIME}: {source} (RLIMIT_RTPRIO is {}, and {REAL_TIME} is needed); grant \
                 CAP_SYS_NICE, or set LimitRTPRIO={REAL_TIME} in the systemd unit, or choose \
                 data-plane-priority auto",
                shown(Resource::Rtprio)
            ),
        }
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

fn shown(limit: Resource) -> String {
    getrlimit(limit).current.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

impl Priority {
    /// Returns the priority that the process is allowed, after a test in a thread that ends.
    ///
    /// # Errors
    /// If [`Priority::RealTime`] or [`Priority::Nice`] is asked for and refused.
    pub fn granted(self) -> Result<Granted, Refused> {
        let refused = |source| Refused { asked: self, source };
        match self {
            Self::None => Ok(Granted::None),
            Self::RealTime => Granted::RealTime.is_allowed().map_err(refused),
            Self::Nice => Granted::Nice.is_allowed().map_err(refused),
            Self::Auto => {
                let allowed = Granted::RAISED.into_iter().map(Granted::is_allowed);
                Ok(allowed.flatten().next().unwrap_or(Granted::None))
            }
        }
    }
}

impl Granted {
    /// The priorities that the kernel may refuse, the better one first.
    pub const RAISED: [Self; 2] = [Self::RealTime, Self::Nice];

    /// Tests the priority in a thread that ends.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn is_allowed(self) -> io::Result<Self> {
        let attempt = move || Base::of_this_thread()?.raise(self);
        let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(attempt)?;
        let tried = thread.join();
        tried.unwrap_or_else(|_| Err(io::Error::other("the probe panicked"))).map(|()| self)
    }
}

/// The nice value that a thread had at first, to which it returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    nice: i32,
}

impl Base {
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        Ok(Self { nice: getpriority_process(THIS_THREAD)? })
    }

    /// Gives the calling thread a priority.
    pub(crate) fn raise(self, granted: Granted) -> io::Result<()> {
        match granted {
            Granted::RealTime => set_real_time(REAL_TIME),
            Granted::Nice => Ok(setpriority_process(THIS_THREAD, NICE.min(self.nice))?),
            Granted::None => Ok(()),
        }
    }

    /// Takes the priority from the calling thread.
    pub(crate) fn lower(self, granted: Granted) -> io::Result<()> {
        match granted {
            Granted::RealTime => set_normal(),
            Granted::Nice => Ok(setpriority_process(THIS_THREAD, self.nice)?),
            Granted::None => Ok(()),
        }
    }
}

/// The calling thread: on Linux a nice value belongs to a thread.
const THIS_THREAD: Option<Pid> = None;

/// Gives the calling thread the policy `SCHED_RR` at this priority, from 1 (the lowest) to 99. Its
/// children inherit it.
///
/// # Errors
/// If the kernel refuses it: it requires `CAP_SYS_NICE`, or a limit `RLIMIT_RTPRIO` of at least
/// `priority`.
pub fn set_real_time(priority: i32) -> io::Result<()> {
    set_policy(libc::SCHED_RR, priority)
}

/// Gives the calling thread the policy `SCHED_OTHER`, the default of all programs.
///
/// # Errors
/// If the kernel refuses it, as it does if only the policy `SCHED_IDLE` is allowed.
pub fn set_normal() -> io::Result<()> {
    set_policy(libc::SCHED_OTHER, 0)
}

/// Calls `start` with the calling thread at this real-time priority, such as [`REAL_TIME`].
/// Programs and threads that `start` starts inherit it. Then the thread has the default policy
/// again. Also returns whether the priority was allowed; `start` is called in any case.
pub fn starting_real_time<T>(priority: i32, start: impl FnOnce() -> T) -> (T, bool) {
    let is_real_time = set_real_time(priority).is_ok();
    let started = start();
    // A thread may always return to the default policy.
    let is_normal = !is_real_time || set_normal().is_ok();
    debug_assert!(is_normal);
    (started, is_real_time)
}

fn set_policy(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // With some C libraries the structure has more fields, all of which are 0 here.
    // SAFETY: integers and structures of them, for which all zeroes is a value.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = priority;
    let this_thread: libc::pid_t = 0;
    // The function of musl refuses every call, so the system call is made here.
    // SAFETY: the kernel reads the structure during the call and keeps nothing.
    let result = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, this_thread, policy, &raw const parameters)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the policy and the nice value of the calling thread, as the kernel shows them.
    fn shown_here() -> (u32, i32) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        (fields[38].parse().unwrap(), fields[16].parse().unwrap())
    }

    #[test]
    fn a_thread_is_raised_as_granted_and_steps_back() {
        let before = shown_here();
        let base = Base::of_this_thread().unwrap();
        for (granted, want) in [(Granted::RealTime, (2, before.1)), (Granted::Nice, (0, NICE))] {
            if granted.is_allowed().is_err() {
                continue;
            }
            assert_eq!(shown_here(), before, "only tried");
            base.raise(granted).unwrap();
            assert_eq!(shown_here(), want, "{granted:?}");
            assert_eq!(std::thread::spawn(shown_here).join().unwrap(), want, "inherited");
            base.lower(granted).unwrap();
            assert_eq!(shown_here(), before, "{granted:?}");
        }
        assert!(Priority::Auto.granted().is_ok());
        assert_eq!(Priority::None.granted().unwrap(), Granted::None);
    }

    #[test]
    fn a_program_is_started_in_any_case() {
        let before = shown_here();
        let (inside, is_real_time) = starting_real_time(REAL_TIME, shown_here);
        assert_eq!(inside.0 == 2, is_real_time);
        assert_eq!(shown_here(), before);
    }

    #[test]
    fn a_refusal_names_value_limit_and_next_step() {
        let refused = |asked| Refused { asked, source: io::Error::from_raw_os_error(libc::EPERM) };
        let text = refused(Priority::RealTime).to_string();
        for part in ["real-time", "SCHED_RR", "RLIMIT_RTPRIO", "1 is needed", "LimitRTPRIO=1"] {
            assert!(text.contains(part), "{text}");
        }
        let text = refused(Priority::Nice).to_string();
        for part in ["nice value -15", "RLIMIT_NICE", "35 is needed", "LimitNICE=-15"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
