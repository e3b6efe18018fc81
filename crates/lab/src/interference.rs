//! Decides whether other work or pauses of the machine make a run impossible to judge.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::environment::processors;
use crate::stalls::Observed;
use crate::target::Target;
use evenkeel_os::clock;

/// The kernel's identifier of a FUSE file system.
const FUSE_SUPER_MAGIC: rustix::fs::FsWord = 0x6573_5546;
/// The bit in a process's flags that marks a thread of the kernel.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Share of the machine's processors; a run during which other processes used more is not judged.
const OTHERS_MAX: f64 = 0.10;
/// Share of the run's time; a run during which the machine stood still for longer is not judged.
const STOOD_STILL_MAX: f64 = 0.01;

/// Measures the work of other processes during a run.
pub struct Guard {
    began_ns: u64,
    /// This program, and a server that serves it.
    ours: Vec<u32>,
    before: Option<Ticks>,
}

/// Processor time that was used, in ticks, since the machine and this program began.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Ticks {
    /// By all processes, and stolen by the machine's host.
    all: u64,
    /// By this program and its descendants, including those that have ended.
    own: u64,
    /// By each thread of the kernel, as they serve our loop devices and file systems. The key is
    /// the thread's number and its start time, since threads come and go.
    kernel: BTreeMap<(u64, u64), u64>,
}

impl Guard {
    /// Begins before the run starts any program.
    #[must_use]
    pub fn begin() -> Self {
        Self::beside(None)
    }

    /// Begins for loads on a target with a server of its own. The process that listens at the
    /// target's socket counts as part of the run. Returns `None` if that process is unknown.
    #[must_use]
    pub fn begin_at(target: &Target) -> Option<Self> {
        match target {
            Target::Nbd(uri) if !uri.is_elsewhere() => Some(Self::beside(Some(uri.server()?))),
            Target::Path { path, .. } if is_served(path) => None,
            Target::Nbd(_) | Target::Path { .. } | Target::Files { .. } => Some(Self::begin()),
        }
    }

    fn beside(server: Option<u32>) -> Self {
        let ours: Vec<u32> = [std::process::id()].into_iter().chain(server).collect();
        let before = Ticks::read(&ours);
        Self { began_ns: clock::monotonic().ns, ours, before }
    }

    /// Returns the reasons for which broken figures prove nothing. To be called when all programs
    /// of the run have ended.
    #[must_use]
    pub fn reasons(&self, stalls: &[Observed]) -> Vec<String> {
        let reasons = [self.others(), stood_still(stalls, self.elapsed_s())];
        reasons.into_iter().flatten().collect()
    }

    /// Returns the share of the processors that other processes have used since the begin, as text,
    /// if it is too much.
    #[must_use]
    pub fn others(&self) -> Option<String> {
        let before = self.before.as_ref()?;
        let after = Ticks::read(&self.ours)?;
        let elapsed_s = self.elapsed_s().max(f64::MIN_POSITIVE);
        beside_others(after.since(before) / elapsed_s / processors() as f64)
    }

    fn elapsed_s(&self) -> f64 {
        (clock::monotonic().ns - self.began_ns) as f64 / 1e9
    }
}

/// Returns whether a process may serve a file or device, which the kernel does not name: behind a
/// network block device, a loop device over any file, or a file of FUSE.
fn is_served(path: &Path) -> bool {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let is_of = |kind: &str| real.starts_with("/dev") && name.starts_with(kind);
    ["nbd", "ublk", "loop", "dm-"].into_iter().any(is_of)
        || rustix::fs::statfs(&real).is_ok_and(|of| of.f_type == FUSE_SUPER_MAGIC)
}

fn beside_others(share: f64) -> Option<String> {
    (share > OTHERS_MAX).then(|| {
        format!(
            "others used {:.0} % of the processors during the run, and at most {:.0} % leave a \
             verdict safe",
            share * 100.0,
            OTHERS_MAX * 100.0
        )
    })
}

fn stood_still(stalls: &[Observed], elapsed_s: f64) -> Option<String> {
    let lost_us: u64 = stalls.iter().map(|observed| observed.stalls.total_us()).sum();
    let share = lost_us as f64 / 1e6 / elapsed_s.max(f64::MIN_POSITIVE);
    (share > STOOD_STILL_MAX).then(|| {
        format!(
            "the machine stood still for {} ms of {elapsed_s:.0} s, and at most {:.0} % leave a \
             verdict safe",
            lost_us / 1_000,
            STOOD_STILL_MAX * 100.0
        )
    })
}

impl Ticks {
    /// Returns `None` if the kernel does not report the times.
    fn read(ours: &[u32]) -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let stats =
            processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
        let processes: Vec<Process> = stats.filter_map(|stat| Process::read(&stat)).collect();
        let kernel = processes.iter().filter_map(Process::as_kernel_thread).collect();
        Some(Self { all: worked(&stat)?, own: family_work(&processes, ours), kernel })
    }

    /// Returns the seconds of processor time that other processes have used since `before`. Time of
    /// a kernel thread that has ended in between counts as theirs.
    fn since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let own = self.own.saturating_sub(before.own);
        let by_thread = self.kernel.iter().map(|(thread, ticks)| {
            ticks.saturating_sub(before.kernel.get(thread).copied().unwrap_or(0))
        });
        let ours = own + by_thread.sum::<u64>();
        all.saturating_sub(ours) as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

/// Returns the processor time in the first line, in ticks. The line is
/// `cpu user nice system idle iowait irq softirq steal ...`. Stolen time counts as work of others.
/// Interrupts are not counted, since no process causes them.
fn worked(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _, _, _, _, steal, ..] = ticks[..] else { return None };
    Some(user + nice + system + steal)
}

/// The kernel's record of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Process {
    number: u32,
    parent: u32,
    flags: u64,
    /// User and system time of its own.
    own: u64,
    /// User and system time of its children that have ended and been reaped.
    children: u64,
    began: u64,
}

impl Process {
    /// Parses `/proc/PID/stat`: the number, the name in brackets, which may contain any characters,
    /// then the 3rd field, the state. Of the others the parent is the 4th, flags the 9th, times the
    /// 14th to 17th, and the start time the 22nd.
    fn read(stat: &str) -> Option<Self> {
        let (_, after_name) = stat.rsplit_once(')')?;
        let words: Vec<&str> = after_name.split_whitespace().collect();
        let field = |place: usize| -> Option<u64> { words.get(place)?.parse().ok() };
        Some(Self {
            number: stat.split(' ').next()?.parse().ok()?,
            parent: u32::try_from(field(1)?).ok()?,
            flags: field(6)?,
            own: field(11)? + field(12)?,
            children: field(13)? + field(14)?,
            began: field(19)?,
        })
    }

    /// Returns the number, start time and processor time of a thread of the kernel; `None` for
    /// other processes.
    fn as_kernel_thread(&self) -> Option<((u64, u64), u64)> {
        let number = u64::from(self.number);
        (self.flags & KERNEL_THREAD != 0).then_some(((number, self.began), self.own))
    }
}

/// Returns the processor time of some processes and all their descendants, in ticks.
fn family_work(processes: &[Process], eldest: &[u32]) -> u64 {
    let mut family: BTreeSet<u32> = eldest.iter().copied().collect();
    loop {
        let is_new = |of: &&Process| family.contains(&of.parent) && !family.contains(&of.number);
        let children: Vec<u32> =
            processes.iter().filter(is_new).map(|process| process.number).collect();
        if children.is_empty() {
            break;
        }
        family.extend(children);
    }
    let members = processes.iter().filter(|process| family.contains(&process.number));
    members.map(|member| member.own + member.children).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stalls::{Stall, Stalls};

    #[test]
    fn the_kernel_s_books_are_understood() {
        assert_eq!(worked("cpu  10 2 30 4000 50 6 7 8 0 0\ncpu0 1 1\n"), Some(50));
        assert_eq!(worked("intr 5"), None);
        let own = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 99";
        let process = Process::read(own).unwrap();
        assert_eq!((process.number, process.parent, process.began), (7, 1, 99));
        assert_eq!((process.own, process.children, process.as_kernel_thread()), (120, 4, None));
        assert_eq!(Process::read("7 (a) S 1 2"), None);
        let kernel = "2 (k) I 2 0 0 0 -1 69238880 0 0 0 0 5 7 9 9 20 0 1 0 99";
        let kernel = Process::read(kernel).unwrap();
        assert_eq!(kernel.as_kernel_thread(), Some(((2, 99), 12)));
        let of = |number, parent| Process { number, parent, ..process };
        let family = [of(9, 8), of(8, 7), of(7, 1), of(6, 1)];
        assert_eq!(family_work(&family, &[7]), 3 * 124, "children and theirs, and no sibling");
        assert_eq!(family_work(&family, &[7, 6, 8]), 4 * 124, "each once");
        let ticks = Ticks::read(&[std::process::id()]).unwrap();
        assert!(ticks.all >= ticks.own);
    }

    /// Of the kernel's threads one continues, one begins, and one with much earlier work has ended.
    #[test]
    fn threads_that_come_and_go_are_not_others() {
        let ticks = |all, own, kernel: &[((u64, u64), u64)]| Ticks {
            all,
            own,
            kernel: kernel.iter().copied().collect(),
        };
        let before = ticks(100, 40, &[((2, 9), 10), ((3, 9), 5_000)]);
        let after = ticks(400, 90, &[((2, 9), 30), ((4, 50), 30)]);
        let others = (after.since(&before), rustix::param::clock_ticks_per_second() as f64);
        assert!((others.0 - 200.0 / others.1).abs() < 1e-9, "{others:?}");
    }

    #[test]
    fn excessive_interference_is_reported_with_figures() {
        assert_eq!(beside_others(0.10), None);
        let text = beside_others(0.42).unwrap();
        assert!(text.contains("others used 42 % of the processors"), "{text}");
        let stall = |length_us| {
            let stalls = Stalls::merged(vec![Stall { start_us: 5, length_us }]);
            Observed { stalls, ..Observed::default() }
        };
        assert_eq!(stood_still(&[stall(60_000), stall(40_000)], 10.0), None);
        let text = stood_still(&[stall(60_000), stall(41_000)], 10.0).unwrap();
        assert!(text.contains("stood still for 101 ms of 10 s"), "{text}");
    }
}
