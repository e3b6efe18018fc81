//! Whether the machine was too busy for a run to be judged: with the work of others, or standing
//! still itself.

use std::collections::BTreeMap;
use std::fs;

use crate::clock;
use crate::environment::processors;
use crate::stalls::Observed;

/// What marks a thread of the kernel in its flags.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// A run is not judged where others used more of the machine's processors than this share.
const OTHERS_MAX: f64 = 0.10;
/// Nor where it stood still for more of the time than this share.
const STOOD_STILL_MAX: f64 = 0.01;

/// Watches what others do while a run lasts.
pub(super) struct Guard {
    began_ns: u64,
    before: Option<Ticks>,
}

/// Time that was worked, in ticks, since the machine and this program began.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Ticks {
    /// By anybody, and what the machine's own host kept.
    all: u64,
    /// By this program, and by those that it has started and seen end.
    own: u64,
    /// By each of the kernel's threads, which serve our loop devices and file systems; by its
    /// number and when it began, for they come and go.
    kernel: BTreeMap<(u64, u64), u64>,
}

impl Guard {
    /// Begins before anything of the run is started.
    pub fn begin() -> Self {
        Self { began_ns: clock::monotonic_ns(), before: Ticks::read() }
    }

    /// When everything of the run has ended: why broken figures say nothing, each in words.
    pub fn reasons(&self, stalls: &[Observed]) -> Vec<String> {
        let elapsed_s = (clock::monotonic_ns() - self.began_ns) as f64 / 1e9;
        let others = self.before.as_ref().zip(Ticks::read()).map(|(before, after)| {
            after.since(before) / elapsed_s.max(f64::MIN_POSITIVE) / processors() as f64
        });
        let reasons = [others.and_then(beside_others), stood_still(stalls, elapsed_s)];
        reasons.into_iter().flatten().collect()
    }
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
    /// None where the kernel does not tell.
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let stats =
            processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
        let kernel = stats.filter_map(|stat| kernel_work(&stat)).collect();
        Some(Self { all: worked(&stat)?, own: own_work(&own)?, kernel })
    }

    /// Seconds that others have worked since an earlier look. A thread of the kernel that is gone
    /// since then takes what it did with it.
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

/// The first line is `cpu user nice system idle iowait irq softirq steal ...`. Interrupts are
/// nobody's, and what was stolen was kept from us.
fn worked(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _, _, _, _, steal, ..] = ticks[..] else { return None };
    Some(user + nice + system + steal)
}

/// User and system time of a process and of its children that have ended.
fn own_work(stat: &str) -> Option<u64> {
    let [_, user, system, user_children, system_children, _] = fields(stat)?;
    Some(user + system + user_children + system_children)
}

/// A thread of the kernel, by its number and when it began, and the time it worked; none of
/// anything else.
fn kernel_work(stat: &str) -> Option<((u64, u64), u64)> {
    let [flags, user, system, _, _, began] = fields(stat)?;
    let number = stat.split(' ').next()?.parse().ok()?;
    (flags & KERNEL_THREAD != 0).then_some(((number, began), user + system))
}

/// Flags, user and system time, those of children, and when it began: the 9th, the 14th to 17th and
/// the 22nd field, counted from the name's last bracket, for the name may hold anything.
fn fields(stat: &str) -> Option<[u64; 6]> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let words: Vec<&str> = after_name.split_whitespace().collect();
    let field = |place: usize| words.get(place)?.parse().ok();
    Some([field(6)?, field(11)?, field(12)?, field(13)?, field(14)?, field(19)?])
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
        assert_eq!(own_work(own), Some(124));
        assert_eq!((own_work("7 (a) S 1 2"), kernel_work(own)), (None, None));
        let kernel = "2 (k) I 2 0 0 0 -1 69238880 0 0 0 0 5 7 9 9 20 0 1 0 99";
        assert_eq!(kernel_work(kernel), Some(((2, 99), 12)));
        let ticks = Ticks::read().unwrap();
        assert!(ticks.all >= ticks.own);
    }

    /// One of the kernel's threads goes on, one comes, and one is gone that had worked much before.
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
    fn what_is_too_much_is_told_with_its_figures() {
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
