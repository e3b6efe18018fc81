//! Runs a live database in place of a scenario's requests: transactions at a share of the
//! database's maximum, its log, and a batch job of sessions that read pages.
//!
//! The database's own counters are read once a second: the number of page reads in the
//! transactions' and in the batch's tables, the number of flushes of its log, and the waits for
//! each. The volume's counter is that of its server.

mod roles;

use evenkeel_core::convert::saturating;
use std::path::Path;

use self::roles::{Batch, Roles};
use super::jobs::Outcome;
use super::method::{Context, Driven};
use super::recorder::STRETCHES_MAX;
use super::{Files, Host, spans_of, without_limits};
use crate::databases::{self, Counted, Database, Running, Second, Transactions, Waits};
use evenkeel_core::qos::pacing::Limit;
use evenkeel_lab::fio::VolumeProgress;
use evenkeel_lab::stalls::{Server, Watch};
use evenkeel_lab::{LabError, cancel};
use evenkeel_os::clock;
use evenkeel_sim::figures::histogram::LatencySummary;
use evenkeel_sim::scenario::Case;
use evenkeel_sim::scenario::expect::Subject;
use evenkeel_sim::scenario::program::Engine;
use evenkeel_sim::scenario::setup::Setup;
use evenkeel_sim::text;
use evenkeel_sim::world::record::{Record, Sample, Span, SpanRecord};
use evenkeel_sim::world::run::{SubjectResults, subject};

const NS_PER_S: u64 = 1_000_000_000;
/// Making a cluster, its tables and the search for its maximum, in seconds.
const AROUND_S: u64 = 25;

/// Returns whether a world's clients are those of a database.
pub(super) fn is_in(setup: &Setup) -> bool {
    engine(setup).is_some()
}

/// Returns which database it is.
pub(super) fn engine(setup: &Setup) -> Option<Engine> {
    setup.clients.iter().find_map(|client| roles::load(client)?.0.engine())
}

/// Returns the approximate duration in seconds.
pub(super) fn length_s(setup: &Setup) -> u64 {
    setup.duration_ns / NS_PER_S + AROUND_S
}

/// Refuses a case that cannot be driven.
pub(super) fn check(case: &Case) -> Result<(), LabError> {
    Roles::of(case).map(|_| ())
}

/// Runs the database of a case.
pub(super) fn drive(context: &mut Context<'_>) -> Result<Driven, LabError> {
    let Context { case, seed, folder, .. } = *context;
    let setup = &case.setup;
    let roles = Roles::of(case)?;
    // There is no database without a file system.
    context.files = Files::Mounted;
    // Without limits, until all is laid out.
    let exports = context.host.open(&without_limits(setup))?;
    let mut outcome = Outcome::new(context);
    let stacks = outcome.mount(context, &exports, |volume| volume == roles.volume)?;
    let mounted = stacks.iter().flatten().next();
    let stack = mounted.ok_or_else(|| LabError::Unjudgeable("nothing is mounted".to_owned()))?;
    // EC2's disks reported no write cache ("flush: disabled"), so a flush of the log was one
    // request. A loop device would turn it into two, one after the other.
    stack.without_flushes()?;
    let database = databases::start(roles.engine, stack, folder)?;
    outcome.driven.storage.push(format!("{}; its file system has nobarrier", database.described()));
    outcome.driven.programs.extend(roles.program.tools());
    let mut run = Run { roles, database, seed, scratch: folder, counted: Vec::new() };
    let per_second = run.rate(setup, context.host, &mut outcome)?;
    let watch = Watch::start(Server::Here);
    let started_ms = clock::unix_us() / 1_000;
    let seconds = run.load(context, per_second, &mut outcome)?;
    let stalls = super::during(&watch.finish(), Some(started_ms), setup);
    run.record(case, &mut outcome, &seconds, started_ms);
    Ok(Driven { stalls, ..outcome.driven })
}

/// Returns the set-up with volumes limited to a rate, without credits.
fn held(setup: &Setup, per_second: u64) -> Setup {
    let mut held = without_limits(setup);
    for volume in &mut held.volumes {
        volume.pacing.operations = Some(Limit { per_second, credit: None });
    }
    held
}

/// Counters of the database and of its volume's server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counters {
    database: Counted,
    volume: u64,
}

/// The last samples that progress covers.
const SHOWN: usize = 16;

impl Counters {
    fn since(&self, before: &Self) -> Self {
        let volume = self.volume.saturating_sub(before.volume);
        Self { database: self.database.since(&before.database), volume }
    }
}

fn summary(waits: &[Waits]) -> LatencySummary {
    let sum = |pick: fn(&Waits) -> u64| waits.iter().map(pick).sum();
    LatencySummary::of_sum(sum(|waits| waits.count), sum(|waits| waits.sum_ns))
}

/// A database that is ready for its load.
struct Run<'a> {
    roles: Roles,
    database: Box<dyn Database>,
    seed: u64,
    scratch: &'a Path,
    /// The counters' increase in each sample.
    counted: Vec<Counters>,
}

impl Run<'_> {
    /// Measures the database's maximum, and restores its state. Returns the rate that its load
    /// shall have, in transactions per second.
    fn rate(
        &mut self,
        setup: &Setup,
        host: &mut dyn Host,
        outcome: &mut Outcome,
    ) -> Result<f64, LabError> {
        let Roles { probe_iops, percent, .. } = self.roles;
        self.rest(host, &held(setup, probe_iops))?;
        let maximum = self.database.maximum(self.seed)?;
        outcome.driven.commands.push(format!(
            "{}  # {:.1} transactions a second on {probe_iops} IOPS",
            maximum.command, maximum.per_second
        ));
        self.rest(host, setup)?;
        Ok(maximum.per_second * percent as f64 / 100.0)
    }

    /// Writes changed pages and drops caches without limits, and then applies these limits to the
    /// volumes.
    fn rest(&mut self, host: &mut dyn Host, limits: &Setup) -> Result<(), LabError> {
        host.limit(&without_limits(limits))?;
        self.database.rest()?;
        host.limit(limits)
    }

    /// Runs the load, sample by sample. Returns its log of the transactions.
    fn load(
        &mut self,
        context: &mut Context<'_>,
        per_second: f64,
        outcome: &mut Outcome,
    ) -> Result<Vec<Second>, LabError> {
        let setup = &context.case.setup;
        let length_s = setup.duration_ns / NS_PER_S;
        let began_ns = clock::monotonic().ns;
        let mut before = self.look(context.host)?;
        let wanted = Transactions { per_second, length_s };
        let mut transactions = self.database.transactions(wanted, self.seed, self.scratch)?;
        outcome.driven.commands.push(transactions.command());
        let mut batches: Vec<Running> = Vec::new();
        for sample in 1..=setup.duration_ns / setup.sample_ns {
            let at_ns = sample * setup.sample_ns;
            let next = self.roles.batches.get(batches.len());
            if let Some(Batch { readers, .. }) = next.filter(|next| next.start_ns < at_ns) {
                let begun = self.database.readers(readers, self.seed, self.scratch)?;
                outcome.driven.commands.push(begun.command());
                batches.push(begun);
            }
            clock::sleep_until_ns(began_ns + at_ns);
            cancel::go_on()?;
            let now = self.look(context.host)?;
            self.database.forget_batch()?;
            let since = now.since(&before);
            before = now;
            self.counted.push(since);
            (context.progress)(&[self.progress(setup, &since, at_ns)]);
            transactions.is_well()?;
            batches.iter_mut().try_for_each(Running::is_well)?;
        }
        batches.iter_mut().try_for_each(Running::finish)?;
        transactions.finish()?;
        self.database.log(&transactions, self.scratch)
    }

    /// Returns the counters.
    fn look(&mut self, host: &mut dyn Host) -> Result<Counters, LabError> {
        let database = self.database.counted()?;
        let volume = host.counted()?.get(self.roles.volume).copied().unwrap_or(0);
        Ok(Counters { database, volume })
    }

    fn progress(&self, setup: &Setup, since: &Counters, at_ns: u64) -> VolumeProgress {
        let sample_s = setup.sample_ns as f64 / 1e9;
        let mean_ns = |waits: Waits| summary(&[waits]).mean_ns;
        let lately = &self.counted[self.counted.len().saturating_sub(SHOWN)..];
        let shown = |pick: fn(&Counters) -> Waits| {
            let means: Vec<u64> = lately.iter().map(|sample| mean_ns(pick(sample))).collect();
            format!("{} {}", text::blocks(&means), text::latency(mean_ns(pick(since))))
        };
        let text = format!(
            "{} TPS, data reads {}, log flushes {}",
            text::rate((since.database.transactions as f64 / sample_s).round()),
            shown(|at| at.database.data),
            shown(|at| at.database.log)
        );
        VolumeProgress {
            name: setup.volumes[self.roles.volume].name.clone(),
            iops: since.volume as f64 / sample_s,
            ios_total: self.counted.iter().map(|sample| sample.volume).sum(),
            runtime_ms: at_ns / 1_000_000,
            told: text,
        }
    }

    /// Adds the records of the clients and of the volume, and the transactions, to the outcome.
    fn record(&self, case: &Case, outcome: &mut Outcome, seconds: &[Second], started_ms: u64) {
        let setup = &case.setup;
        let of_client = |number: usize, pick: fn(&Counters) -> Waits| {
            let waits: Vec<Waits> = self.counted.iter().map(pick).collect();
            let number = saturating::<_, u32>(number);
            record(&waits, setup, spans_of(case, Subject::Client(number)))
        };
        let recorded = &mut outcome.driven.recorded;
        let Roles { transactions, log, volume, .. } = self.roles;
        recorded.clients[transactions].record =
            Some(of_client(transactions, |at| at.database.data));
        if let Some(log) = log {
            recorded.clients[log].record = Some(of_client(log, |at| at.database.log));
        }
        for (nth, Batch { client, start_ns, .. }) in self.roles.batches.iter().enumerate() {
            // The database counts all batches together. At most one runs at a time.
            let next = self.roles.batches.get(nth + 1);
            let span =
                Span { from_ns: *start_ns, to_ns: next.map_or(u64::MAX, |next| next.start_ns) };
            let its_own = |(nth, at): (u64, &Counters)| {
                if span.contains(nth * setup.sample_ns) {
                    at.database.batch
                } else {
                    Waits::default()
                }
            };
            let waits: Vec<Waits> = (0..).zip(&self.counted).map(its_own).collect();
            let subject = Subject::Client(saturating::<_, u32>(*client));
            recorded.clients[*client].record = Some(record(&waits, setup, spans_of(case, subject)));
        }
        // The times of the volume's requests are not used, as the database counts its own waits.
        let ios: Vec<Waits> =
            self.counted.iter().map(|counted| Waits { count: counted.volume, sum_ns: 0 }).collect();
        recorded.completed = ios.iter().map(|ios| ios.count).sum();
        let number = saturating::<_, u32>(volume);
        let of_volume = record(&ios, setup, spans_of(case, Subject::Volume(number)));
        let mut done = vec![Waits::default(); self.counted.len()];
        for second in seconds {
            let at_ms = (second.unix_s * 1_000).saturating_sub(started_ms);
            let sample = usize::try_from(at_ms * 1_000_000 / setup.sample_ns);
            if let Some(waits) = sample.ok().and_then(|sample| done.get_mut(sample)) {
                waits.count += second.count;
                waits.sum_ns += second.sum_us * 1_000;
            }
        }
        let (told, done) = if seconds.is_empty() {
            // Their times are not known.
            ("as the database counts them", self.counted.iter().map(done_of).collect())
        } else {
            ("as pgbench sees them", done)
        };
        let done = record(&done, setup, Vec::new());
        let more = [
            SubjectResults { unit: "transactions", ..subject("transactions", told, &done) },
            subject("volume", "as its server counts", &of_volume),
        ];
        outcome.driven.more.extend(more);
        outcome.driven.recorded.volumes[volume] = of_volume;
    }
}

fn done_of(at: &Counters) -> Waits {
    Waits { count: at.database.transactions, sum_ns: 0 }
}

/// Returns a record of the counts of each sample.
fn record(waits: &[Waits], setup: &Setup, spans: Vec<Span>) -> Record {
    let sample = |waits: &Waits| Sample { completed: waits.count, ..Sample::default() };
    let in_span = |span: Span| {
        let at_ns = (0_u64..).map(|number| number * setup.sample_ns);
        let inside = at_ns.zip(waits).filter(|(at_ns, _)| span.contains(*at_ns));
        let inside: Vec<Waits> = inside.map(|(_, waits)| *waits).collect();
        SpanRecord { span, dispatched: 0, latency: summary(&inside) }
    };
    let together = waits.len().div_ceil(STRETCHES_MAX).max(1);
    Record {
        samples: waits.iter().map(sample).collect(),
        bytes: 0,
        latency: summary(waits),
        quantiles_ns: Vec::new(),
        latency_samples: together as u64,
        latencies: waits.chunks(together).map(summary).collect(),
        spans: spans.into_iter().map(in_span).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_sim::scenario::catalogue;
    use evenkeel_sim::scenario::{self, Source};

    pub fn case_of(text: &str, name: &str) -> Case {
        let mut cases = scenario::read(&Source::new("s.toml", text)).unwrap().cases;
        cases.retain(|case| case.name == name);
        cases.remove(0)
    }

    #[test]
    fn a_world_is_held_at_a_rate_without_credits() {
        let text = catalogue::find("batch-beside-oltp-short").unwrap();
        let case = case_of(text, "PostgreSQL on gp2");
        assert!(is_in(&case.setup) && !is_in(&case_of(text, "gp2").setup));
        let probed = held(&case.setup, 500).volumes[0].pacing.operations.unwrap();
        assert_eq!((probed.per_second, probed.credit), (500, None));
    }

    #[test]
    fn counters_become_a_record() {
        let setup = case_of(catalogue::find("batch-beside-oltp-short").unwrap(), "gp2").setup;
        let waits = |count, sum_ns| Waits { count, sum_ns };
        let seconds = [waits(2, 30), waits(0, 0), waits(4, 100)];
        let span = Span { from_ns: NS_PER_S, to_ns: 3 * NS_PER_S };
        let record = record(&seconds, &setup, vec![span]);
        let counts: Vec<u64> = record.samples.iter().map(|sample| sample.completed).collect();
        let means: Vec<u64> = record.latencies.iter().map(|latency| latency.mean_ns).collect();
        assert_eq!((counts, means), (vec![2, 0, 4], vec![15, 0, 25]));
        let [in_span] = record.spans[..] else { panic!("{record:?}") };
        assert_eq!((in_span.latency.count, in_span.latency.mean_ns), (4, 25));
        assert_eq!((record.latency.count, record.latency.mean_ns), (6, 21));
        assert_eq!(record.latency.p99_ns, 0, "nobody knows it");
    }
}
