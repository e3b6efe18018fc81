//! Moments at which the machine itself stood still.
//!
//! A virtual machine can be halted by its host, all processors at once, for tens of milliseconds.
//! Nothing inside it runs then: no server, no client, and no clock interrupt that would count the
//! time as stolen. To a client it looks as if the server had been late. The promise holds as long
//! as the hardware below delivers, so the laboratory watches the machine while it measures
//! ([`Watch`]), and the checker judges by the time that the machine ran.
//!
//! The idea is Gil Tene's jHiccup: a thread that only sleeps for a millisecond at a time has no
//! reason of its own to wake late, so every program on its processor was delayed by the same time.
//! jHiccup counts every delay, but a thread is also late on a machine with more work than
//! processors. That would excuse a server that needs too much CPU time. So the time that the thread
//! waited in its processor's run queue, which the kernel counts, is subtracted. The rest of the
//! delay is the machine's.
//!
//! A client's log is also late when the client or the server waited for a processor that other
//! programs had, or was stopped. A verdict about a limiter has to know of these times as well, so
//! the watch follows the threads of both sides (`threads`). Time that the host took in pieces which
//! neither shows is in the kernel's counter of steal (`steal`).

mod steal;
mod threads;
mod watch;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use threads::Server;
pub use watch::Watch;

/// A moment at which a processor ran nothing at all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Stall {
    /// Its beginning, in microseconds: since 1970 as observed, since the start of the load in a
    /// report.
    pub start_us: u64,
    /// Its length in microseconds.
    pub length_us: u64,
}

impl Stall {
    /// Returns the first microsecond after it.
    #[must_use]
    pub fn end_us(&self) -> u64 {
        self.start_us.saturating_add(self.length_us)
    }
}

const SECOND_US: u64 = 1_000_000;
const TENTH_US: u64 = SECOND_US / 10;

/// Stalls in the order of time, without overlap.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Stall>", into = "Vec<Stall>")]
pub struct Stalls(Vec<Stall>);

/// The observations of the machine during a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Observed {
    /// The stalls. Empty when the machine was not watched.
    pub stalls: Stalls,
    /// Times at which threads of the server had work and did not run. Empty if the server is
    /// unknown.
    #[serde(default)]
    pub server: Stalls,
    /// Times at which threads of the clients had work and did not run.
    #[serde(default)]
    pub client: Stalls,
    /// Steal time of a virtual machine beyond all of these. The kernel does not count from which
    /// thread it was taken. It may explain a shortfall, which is then undecided.
    #[serde(default)]
    pub steal: Stalls,
    /// The reason for which the machine was not watched; `None` if it was.
    pub unwatched: Option<String>,
    /// Whether the watch had real-time priority. Without it, stalls are missed on a busy machine.
    #[serde(default)]
    pub real_time: bool,
}

impl From<Vec<Stall>> for Stalls {
    fn from(stalls: Vec<Stall>) -> Self {
        Self::merged(stalls)
    }
}

impl From<Stalls> for Vec<Stall> {
    fn from(stalls: Stalls) -> Self {
        stalls.0
    }
}

impl Stalls {
    /// No stalls.
    pub const NONE: Self = Self(Vec::new());

    /// Returns the union of stalls in any order, of one or several processors: a halted processor
    /// stops all threads on it.
    #[must_use]
    pub fn merged(mut stalls: Vec<Stall>) -> Self {
        stalls.sort_unstable();
        let mut union: Vec<Stall> = Vec::with_capacity(stalls.len());
        for stall in stalls.into_iter().filter(|stall| stall.length_us > 0) {
            match union.last_mut() {
                Some(last) if stall.start_us <= last.end_us() => {
                    let end_us = last.end_us().max(stall.end_us());
                    last.length_us = end_us - last.start_us;
                }
                _ => union.push(stall),
            }
        }
        Self(union)
    }

    /// Returns the stalls as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[Stall] {
        &self.0
    }

    /// Returns whether there are no stalls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the parts of the stalls in the span that begins at `origin_us` and is `length_us`
    /// long, counted from `origin_us`.
    #[must_use]
    pub fn during(&self, origin_us: u64, length_us: u64) -> Self {
        let end_us = origin_us.saturating_add(length_us);
        let cut = |stall: &Stall| {
            let from = stall.start_us.max(origin_us);
            let to = stall.end_us().min(end_us);
            Stall { start_us: from - origin_us, length_us: to - from }
        };
        Self(self.touching(origin_us..end_us).iter().map(cut).collect())
    }

    /// Returns the stalls that overlap a span of time.
    #[must_use]
    pub fn touching(&self, span_us: Range<u64>) -> &[Stall] {
        let from = self.0.partition_point(|stall| stall.end_us() <= span_us.start);
        let to = self.0.partition_point(|stall| stall.start_us < span_us.end);
        if span_us.is_empty() { &[] } else { &self.0[from..to.max(from)] }
    }

    /// Returns the time for which the machine stood still within a span of time, in microseconds.
    #[must_use]
    pub fn lost_us(&self, span_us: Range<u64>) -> u64 {
        let within = |stall: &Stall| {
            stall.end_us().min(span_us.end).saturating_sub(stall.start_us.max(span_us.start))
        };
        self.touching(span_us.clone()).iter().map(within).sum()
    }

    /// Returns the sum of all stalls, in microseconds.
    #[must_use]
    pub fn total_us(&self) -> u64 {
        self.0.iter().map(|stall| stall.length_us).sum()
    }

    /// Returns the union with others.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        Self::merged(self.0.iter().chain(&others.0).copied().collect())
    }

    /// Returns the stalls, each `us` earlier. The part before time 0 is cut off.
    #[must_use]
    pub fn earlier(&self, us: u64) -> Self {
        let moved = |stall: &Stall| {
            let start_us = stall.start_us.saturating_sub(us);
            Stall { start_us, length_us: stall.end_us().saturating_sub(us) - start_us }
        };
        Self::merged(self.0.iter().map(moved).collect())
    }

    /// Returns the time that may have been lost as well: each stall with its own length before and
    /// after it, and every second of which more than a fifth was lost. The watch may have missed a
    /// part of a stall, and work that has piled up delays threads after it.
    #[must_use]
    pub fn doubtful(&self) -> Self {
        let wider = |stall: &Stall| Stall {
            start_us: stall.start_us.saturating_sub(stall.length_us),
            length_us: stall.length_us.saturating_mul(3),
        };
        let mut all: Vec<Stall> = self.0.iter().map(wider).collect();
        // Seconds that begin at each tenth of one, as far as a stall lies in them.
        let mut next_us = 0;
        for stall in &self.0 {
            let first_us = stall.start_us.saturating_sub(SECOND_US) / TENTH_US * TENTH_US;
            let mut start_us = first_us.max(next_us);
            while start_us < stall.end_us() {
                if self.lost_us(start_us..start_us + SECOND_US) > SECOND_US / 5 {
                    all.push(Stall { start_us, length_us: SECOND_US });
                }
                start_us += TENTH_US;
            }
            next_us = start_us;
        }
        Self::merged(all)
    }

    /// Returns the longest stall; among equals the first.
    #[must_use]
    pub fn longest(&self) -> Option<Stall> {
        self.0.iter().rev().max_by_key(|stall| stall.length_us).copied()
    }
}

impl Observed {
    /// Returns every span in which the machine, the server or the client did not run although it
    /// had work.
    #[must_use]
    pub fn lost(&self) -> Stalls {
        let all = [&self.stalls, &self.server, &self.client];
        Stalls::merged(all.into_iter().flat_map(|stalls| stalls.as_slice()).copied().collect())
    }

    /// Returns every span in which the machine or the server did not run although it had work.
    #[must_use]
    pub fn lost_by_server(&self) -> Stalls {
        let all = [&self.stalls, &self.server];
        Stalls::merged(all.into_iter().flat_map(|stalls| stalls.as_slice()).copied().collect())
    }

    /// Returns the observations in a span of time, counted from its beginning.
    #[must_use]
    pub fn during(&self, origin_us: u64, length_us: u64) -> Self {
        Self {
            stalls: self.stalls.during(origin_us, length_us),
            server: self.server.during(origin_us, length_us),
            client: self.client.during(origin_us, length_us),
            steal: self.steal.during(origin_us, length_us),
            ..self.clone()
        }
    }

    /// Returns an observation without a watch, for this reason.
    #[must_use]
    pub fn unwatched(why: impl Into<String>) -> Self {
        Self { unwatched: Some(why.into()), ..Self::default() }
    }

    /// Returns a sentence on threads that did not run although they had work; `None` if that is too
    /// little to matter.
    #[must_use]
    pub fn sentence_of_threads(&self) -> Option<String> {
        let server_us = self.server.total_us();
        let client_us = self.client.total_us();
        (server_us.max(client_us) >= WORTH_A_WORD_US).then(|| {
            format!(
                "Other programs had the processors, or a signal stopped them, while the server's \
                 threads had work for {} ms and the clients' for {} ms: what was late by that is \
                 not held against the volumes.",
                whole_ms(server_us),
                whole_ms(client_us),
            )
        })
    }

    /// Returns a sentence on the steal that no stall and no thread shows; `None` if that is too
    /// little to matter.
    #[must_use]
    pub fn sentence_of_steal(&self) -> Option<String> {
        let steal_us = self.steal.total_us();
        (steal_us >= WORTH_A_WORD_US).then(|| {
            format!(
                "The machine's host took {} ms more from its processors, in short pieces (steal in \
                 /proc/stat): what is short by that is undecided.",
                whole_ms(steal_us),
            )
        })
    }

    /// Returns a sentence on the machine's pauses in a run; `None` if there is nothing to report.
    /// `kept` is whether all promises were kept.
    #[must_use]
    pub fn sentence(&self, kept: bool) -> Option<String> {
        if let Some(why) = &self.unwatched {
            return Some(format!(
                "Pauses of the machine itself were not watched ({why}): they count against the \
                 promise."
            ));
        }
        let Some(longest) = self.stalls.longest() else {
            let blamed = !kept && !self.real_time;
            return blamed.then(|| format!("No pause of the machine itself was seen; {UNSHARP}."));
        };
        let unsharp = if self.real_time { String::new() } else { format!("; {UNSHARP}") };
        let times = times(self.stalls.as_slice().len());
        Some(format!(
            "The machine itself stood still {times} for {} ms in all (longest {} ms, in second \
             {}): those moments are judged by the time it ran{unsharp}.",
            whole_ms(self.stalls.total_us()),
            whole_ms(longest.length_us),
            longest.start_us / 1_000_000,
        ))
    }
}

/// Returns sentences on the machine's pauses in several runs; empty if there is nothing to report.
#[must_use]
pub fn sentences_of_runs(runs: &[Observed], kept: bool) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    for why in runs.iter().filter_map(|run| run.unwatched.as_ref()) {
        let text = format!("Pauses of the machine itself were not watched in some runs ({why}).");
        if !sentences.contains(&text) {
            sentences.push(text);
        }
    }
    let of_run = |run: &Observed| Some(run.stalls.longest()?.length_us);
    let longest = (1..).zip(runs).filter_map(|(run, of)| Some((of_run(of)?, run))).max();
    let is_unsharp = runs.iter().any(|run| run.unwatched.is_none() && !run.real_time);
    if let Some((longest_us, longest_in)) = longest {
        let count: usize = runs.iter().map(|run| run.stalls.as_slice().len()).sum();
        let total_us: u64 = runs.iter().map(|run| run.stalls.total_us()).sum();
        let paused = runs.iter().filter(|run| !run.stalls.is_empty());
        sentences.push(format!(
            "The machine itself stood still in {} of {} runs, {} for {} ms in all \
             (longest {} ms, in the run that came as number {longest_in}){}.",
            paused.count(),
            runs.len(),
            times(count),
            whole_ms(total_us),
            whole_ms(longest_us),
            if is_unsharp { format!("; {UNSHARP}") } else { String::new() },
        ));
    } else if is_unsharp && !kept {
        sentences.push(format!("No pause of the machine itself was seen; {UNSHARP}."));
    }
    sentences
}

fn times(count: usize) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}

/// Threads that waited for less than this in a whole run are not mentioned.
const WORTH_A_WORD_US: u64 = 20_000;

/// The reason for which a watch may have missed stalls.
const UNSHARP: &str =
    "the watch had no real-time priority (run as root for it) and misses some on a busy machine";

/// Microseconds as milliseconds, rounded.
pub(crate) fn whole_ms(us: u64) -> u64 {
    us.saturating_add(500) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stalls(list: &[(u64, u64)]) -> Stalls {
        let stall = |&(start_us, length_us): &(u64, u64)| Stall { start_us, length_us };
        Stalls::merged(list.iter().map(stall).collect())
    }

    #[test]
    fn processors_that_stand_still_together_are_one_stall() {
        let both = stalls(&[(130, 20), (100, 40), (200, 10), (210, 5), (300, 0)]);
        assert_eq!(both, stalls(&[(100, 50), (200, 15)]));
        assert_eq!(both.total_us(), 65);
    }

    #[test]
    fn a_run_sees_only_its_own_stalls() {
        let seen = stalls(&[(10, 5), (95, 10), (150, 20), (195, 50)]).during(100, 100);
        assert_eq!(seen, stalls(&[(0, 5), (50, 20), (95, 5)]));
        assert!(Stalls::NONE.during(1, 1).is_empty());
    }

    #[test]
    fn earlier_stalls_keep_their_lengths_and_begin_at_time_0() {
        let stall = |start_us, length_us| Stall { start_us, length_us };
        let stalls = Stalls::merged(vec![stall(10, 15), stall(100, 50), stall(1_000, 7)]);
        assert_eq!(stalls.earlier(0), stalls);
        let earlier = [stall(0, 5), stall(80, 50), stall(980, 7)];
        assert_eq!(stalls.earlier(20).as_slice(), earlier);
        assert_eq!(stalls.earlier(2_000), Stalls::NONE);
    }

    #[test]
    fn doubtful_time_is_three_times_as_long_as_the_stall() {
        let known = stalls(&[(2_000_000, 10_000), (9_000_000, 120_000), (9_200_000, 120_000)]);
        let doubtful = known.doubtful();
        assert_eq!(doubtful.lost_us(0..4_000_000), 30_000);
        assert_eq!(doubtful.touching(0..4_000_000)[0].start_us, 1_990_000);
        // Of the seconds that begin from 8.3 s to 9.0 s more than a fifth was lost.
        assert_eq!(doubtful.lost_us(8_300_000..10_000_000), 1_700_000);
        assert_eq!(doubtful.lost_us(10_000_000..20_000_000), 0);
        assert!(Stalls::NONE.doubtful().is_empty());
    }

    #[test]
    fn waits_of_threads_are_reported_if_they_matter() {
        let quiet = Observed { server: stalls(&[(5, 9_000)]), ..Observed::default() };
        assert_eq!(quiet.sentence_of_threads(), None);
        let client = stalls(&[(5, 9_000), (50_000, 30_000)]);
        let text = Observed { client, ..quiet.clone() }.sentence_of_threads().unwrap();
        assert!(text.contains("for 9 ms and the clients' for 39 ms"), "{text}");
        let all = Observed { stalls: stalls(&[(9_000, 6_000)]), ..quiet };
        assert_eq!((all.lost().total_us(), all.lost_by_server().total_us()), (14_995, 14_995));
        assert_eq!(all.during(9_000, 1_000_000).lost(), stalls(&[(0, 6_000)]));
    }

    #[test]
    fn steal_is_reported_if_it_matters_and_is_cut_to_its_run() {
        let run = |list| Observed { steal: stalls(list), ..Observed::default() };
        assert_eq!(run(&[(5, 19_000)]).sentence_of_steal(), None);
        let much = run(&[(5, 19_000), (50_000, 30_000)]);
        let text = much.sentence_of_steal().unwrap();
        assert!(text.contains("took 49 ms more"), "{text}");
        assert_eq!(much.during(60_000, 10_000).steal, stalls(&[(0, 10_000)]));
        // It may have been lost, but is not known to have been.
        assert!(much.lost().is_empty() && much.lost_by_server().is_empty());
    }

    #[test]
    fn the_sentence_counts_and_names_the_longest() {
        let unsharp = Observed::default();
        assert_eq!(unsharp.sentence(true), None);
        assert!(unsharp.sentence(false).unwrap().starts_with("No pause of the machine itself"));
        let sharp = Observed { real_time: true, ..unsharp };
        assert_eq!(sharp.sentence(false), None);
        let stalls = stalls(&[(1_000_000, 11_400), (23_500_000, 61_000), (25_000_000, 24_800)]);
        assert_eq!(
            Observed { stalls: stalls.clone(), ..sharp }.sentence(true).unwrap(),
            "The machine itself stood still 3 times for 97 ms in all (longest 61 ms, in second \
             23): those moments are judged by the time it ran."
        );
        let unsharp = Observed { stalls, ..Observed::default() }.sentence(true).unwrap();
        assert!(
            unsharp.ends_with(
                "it ran; the watch had no real-time priority (run as root for \
                                   it) and misses some on a busy machine."
            ),
            "{unsharp}"
        );
        assert!(Observed::unwatched("no books").sentence(true).unwrap().contains("(no books)"));
    }

    #[test]
    fn stalls_of_many_runs_are_summarised_in_sentences() {
        let run = |list: &[(u64, u64)]| Observed {
            stalls: stalls(list),
            real_time: true,
            ..Observed::default()
        };
        let quiet = run(&[]);
        assert_eq!(sentences_of_runs(&[quiet.clone(), quiet.clone()], false), Vec::<String>::new());
        let paused = [quiet, run(&[(5, 20_400), (90_000, 61_000)]), run(&[(7, 30_000)])];
        assert_eq!(
            sentences_of_runs(&paused, true),
            ["The machine itself stood still in 2 of 3 runs, 3 times for 111 ms in all (longest \
              61 ms, in the run that came as number 2)."]
        );
        let unwatched = Observed::unwatched("no books");
        let unsharp = Observed { stalls: stalls(&[(1, 9_000)]), ..Observed::default() };
        let [books, paused] =
            &sentences_of_runs(&[unwatched.clone(), unsharp, unwatched], true)[..]
        else {
            panic!("each is told once")
        };
        assert!(books.contains("in some runs (no books)"), "{books}");
        let blind = sentences_of_runs(&[Observed::default()], false);
        assert!(blind[0].starts_with("No pause of the machine itself was seen"), "{blind:?}");
        assert_eq!(sentences_of_runs(&[Observed::default()], true), Vec::<String>::new());
        assert!(
            paused.contains("1 of 3 runs, once for 9 ms") && paused.contains(UNSHARP),
            "{paused}"
        );
    }

    #[test]
    fn json_keeps_the_list() {
        let json = serde_json::to_string(&stalls(&[(5, 6)])).unwrap();
        assert_eq!(json, r#"[{"start_us":5,"length_us":6}]"#);
        assert_eq!(serde_json::from_str::<Stalls>(&json).unwrap(), stalls(&[(5, 6)]));
    }

    proptest! {
        /// Compares with a model that decides for every microsecond whether it is lost.
        #[test]
        fn time_is_lost_where_some_processor_stood(
            list in proptest::collection::vec((0_u64..200, 0_u64..40), 0..12),
            from in 0_u64..250, length in 0_u64..100,
        ) {
            let stood = |us: u64| list.iter().any(|&(at, long)| (at..at + long).contains(&us));
            let union = stalls(&list);
            let span = from..from + length;
            let want = span.clone().filter(|&us| stood(us)).count() as u64;
            prop_assert_eq!(union.lost_us(span.clone()), want);
            prop_assert_eq!(union.during(from, length).total_us(), want);
            prop_assert_eq!(union.touching(span).is_empty(), want == 0);
            prop_assert_eq!(union.total_us(), (0..300).filter(|&us| stood(us)).count() as u64);
        }
    }
}
