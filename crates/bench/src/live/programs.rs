//! Drives programs one after the other, each a batch: on a mounted file system the programs
//! themselves, without one those of their requests that would reach the volume. Other clients of
//! the same device run beside them.

use evenkeel_core::convert::saturating;
use std::path::Path;
use std::time::Duration;

use super::database;
use super::jobs::Outcome;
use super::method::{Context, Driven};
use super::requests::{Part, parts_of};
use super::{Export, in_a_line, seconds};
use crate::desktop::{self, Score, Workdir};
use crate::mounts::MountStack;
use crate::postgres::{Server, pgbench};
use crate::{databases, durable};
use evenkeel_lab::child::Guarded;
use evenkeel_lab::fio::{self, Job, VolumeProgress};
use evenkeel_lab::{LabError, cancel};
use evenkeel_sim::scenario::program::ProgramSetup;
use evenkeel_sim::scenario::setup::{ClientSetup, Load, Setup, Target};
use evenkeel_sim::workload::{DURATION_S_MAX, Workload};
use evenkeel_sim::world::client::BatchRecord;

/// The longest mean time of a program's request, on the busiest of disks.
const REQUEST_MAX: Duration = Duration::from_millis(20);
/// The longest time of a program beside its requests, and in all.
const PROGRAM_AROUND: Duration = Duration::from_secs(600);
const PROGRAM_MAX: Duration = Duration::from_secs(12 * 3_600);

/// Returns whether clients of a set-up are programs, apart from the load beside them.
pub(super) fn are_any(setup: &Setup) -> bool {
    let is_batch = |client: &ClientSetup| {
        let of = |setup: ProgramSetup| !setup.program.is_timed() && !setup.program.is_of_iomelt();
        client.program.is_some_and(of)
    };
    setup.clients.iter().any(is_batch) && !database::is_in(setup)
}

/// Returns the longest time that this client's program may take; longer is a hang.
fn longest(client: &ClientSetup) -> Duration {
    let Load::Job { ios, .. } = &client.load else { return PROGRAM_AROUND };
    // Of a program that only runs live, a call counts as at least one request.
    let (requests, seconds) = match client.program {
        Some(ProgramSetup { program, calls, seconds }) if program.is_live_only() => {
            (calls, seconds)
        }
        _ => (*ios, 0),
    };
    let requests = REQUEST_MAX.saturating_mul(saturating::<_, u32>(requests));
    PROGRAM_AROUND.saturating_add(requests + Duration::from_secs(seconds)).min(PROGRAM_MAX)
}

/// One program of a case.
pub(super) struct Test<'a> {
    number: usize,
    client: &'a ClientSetup,
    volume: usize,
    ios: u64,
    depth: u16,
}

/// Runs every program of a case, in the order of their starts. A program that is missing, fails or
/// prints nonsense is recorded as a failure, and the others continue.
pub(super) fn drive(context: &mut Context<'_>) -> Result<Driven, LabError> {
    let Context { case, seed, folder, .. } = *context;
    let setup = &case.setup;
    let tests = tests(setup)?;
    let exports = context.host.open(setup)?;
    let mut outcome = Outcome::new(context);
    let is_used = |volume| tests.iter().any(|test| test.volume == volume);
    let stacks = outcome.mount(context, &exports, is_used)?;
    let _neighbours = neighbours(setup, &exports, seed)?;
    for (nth, test) in (1..).zip(&tests) {
        let stack = stacks[test.volume].as_ref();
        if !test.can_run(stack.is_some()) {
            continue;
        }
        let ready = test.ready(stack, folder);
        let before = context.host.counted()?[test.volume];
        let bound_here = bound_here(test.client);
        outcome.driven.speeds.look(bound_here.as_slice());
        let started_ns = outcome.now_ns();
        let place = (&exports[test.volume], folder, seed);
        let ran = ready.and_then(|ready| test.run(&ready, place).map(|score| (score, ready)));
        let counted = context.host.counted()?[test.volume] - before;
        outcome.driven.speeds.look(bound_here.as_slice());
        let name = test.name().to_owned();
        let (Score { took_ns, command }, ready) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                // If the process is asked to stop, the error is not the program's failure.
                cancel::go_on()?;
                let why = in_a_line(&error);
                outcome.driven.failures.push(format!("{}: {name}: {why}", case.label));
                continue;
            }
        };
        let manner = test.manner(&ready);
        outcome.driven.commands.push(format!(
            "{command}  # {}, {name}, {manner}: {counted} I/Os counted by the server",
            case.label
        ));
        outcome.driven.storage.extend(ready.described());
        if let (Ready::Workdir(_) | Ready::Database(_), Some(of)) = (&ready, test.client.program) {
            outcome.driven.programs.extend(of.program.tools());
        }
        outcome.count(test.volume, test.ios, counted);
        outcome.batch(test.number, BatchRecord { started_ns, took_ns });
        let iops = test.ios as f64 * 1e9 / took_ns.max(1) as f64;
        let runtime_ms = outcome.now_ns() / 1_000_000;
        let volume_progress =
            VolumeProgress { name, iops, ios_total: nth, runtime_ms, ..Default::default() };
        (context.progress)(&[volume_progress]);
    }
    Ok(outcome.driven)
}

/// Returns the name of a client whose program is limited by the machine as much as by the volume.
pub(super) fn bound_here(client: &ClientSetup) -> Option<&str> {
    client.program.filter(|of| of.program.is_bound_by_client()).map(|_| client.name.as_str())
}

/// The place in which a program runs, prepared for it.
enum Ready<'a> {
    /// A mounted file system.
    Workdir(Workdir<'a>),
    /// A database on one.
    Database(Server),
    /// No file system: the program's requests are made directly.
    Export,
}

impl Ready<'_> {
    /// Returns a description of the setup beside the file system, if there is any.
    fn described(&self) -> Option<String> {
        match self {
            Self::Database(server) => Some(server.described.clone()),
            Self::Workdir(_) | Self::Export => None,
        }
    }
}

/// Returns the programs in the order of their starts.
pub(super) fn tests(setup: &Setup) -> Result<Vec<Test<'_>>, LabError> {
    let mut tests = Vec::new();
    for (number, client) in setup.clients.iter().enumerate() {
        if client.program.is_none() {
            continue;
        }
        let (Target::Volume(volume), Load::Job { ios, depth, .. }) = (client.target, &client.load)
        else {
            let what = format!("client \"{}\" is a program, and not on one volume", client.name);
            return Err(LabError::Unjudgeable(what));
        };
        let volume = volume as usize;
        let ios = *ios;
        let depth = *depth;
        tests.push(Test { number, client, volume, ios, depth });
    }
    tests.sort_by_key(|test| test.client.start_ns);
    Ok(tests)
}

/// Returns the load beside programs and batches. Each of its seconds is like the others, so that it
/// does not depend on the duration.
pub(super) fn parts_beside(setup: &Setup) -> Result<Vec<Part>, LabError> {
    let longest_ns = u64::from(DURATION_S_MAX) * 1_000_000_000;
    let duration_ns = setup.duration_ns.min(longest_ns);
    let looked_at = Setup { duration_ns, ..setup.clone() };
    let mut parts = Vec::new();
    for (number, client) in setup.clients.iter().enumerate() {
        let is_batch = matches!(client.load, Load::Job { poisson: false, .. });
        if client.program.is_some() || is_batch {
            continue;
        }
        let of_client = parts_of(&looked_at, number, client)
            .map_err(|what| LabError::Unjudgeable(format!("client \"{}\" {what}", client.name)))?;
        parts.extend(of_client);
    }
    Ok(parts)
}

/// Starts the load beside programs and batches. Dropping the result ends it.
pub(super) fn neighbours(
    setup: &Setup,
    exports: &[Export],
    seed: u64,
) -> Result<Option<Guarded>, LabError> {
    let jobs: Vec<Job> = parts_beside(setup)?
        .into_iter()
        .map(|part| Job {
            name: setup.volumes[part.volume].name.clone(),
            target: exports[part.volume].uri().into(),
            workload: Workload { seed, ..part.workload },
        })
        .collect();
    let length_s = seconds(setup.duration_ns);
    if jobs.is_empty() { Ok(None) } else { fio::beside(&jobs, length_s).map(Some) }
}

impl Test<'_> {
    /// Returns the client's name in the scenario.
    pub fn name(&self) -> &str {
        &self.client.name
    }

    /// Returns whether the program can run here. A program that needs a file system cannot run
    /// without one, nor one of a database that is not installed.
    fn can_run(&self, is_mounted: bool) -> bool {
        let Some(ProgramSetup { program, .. }) = self.client.program else { return true };
        match program.engine() {
            Some(engine) => is_mounted && databases::probe(engine).is_none(),
            None => is_mounted || program.is_of_requests(),
        }
    }

    /// Prepares the program; its time does not include this.
    fn ready<'a>(
        &self,
        stack: Option<&'a MountStack>,
        scratch: &'a Path,
    ) -> Result<Ready<'a>, LabError> {
        match (stack, self.client.program) {
            (Some(stack), Some(setup)) if setup.program.engine().is_some() => {
                pgbench::ready(stack, scratch).map(Ready::Database)
            }
            (Some(stack), Some(setup)) => {
                if let Some(server) = desktop::server_folder(setup.program) {
                    stack.serves(&stack.path().join(server))?;
                }
                let longest = longest(self.client);
                let workdir = Workdir { folder: stack.path(), scratch, longest };
                workdir.settle()?;
                Ok(Ready::Workdir(workdir))
            }
            _ => Ok(Ready::Export),
        }
    }

    /// Runs the program. `place` is its export, a folder for its files, and a seed.
    fn run(&self, ready: &Ready<'_>, place: (&Export, &Path, u64)) -> Result<Score, LabError> {
        let (export, folder, seed) = place;
        match (ready, self.client.program) {
            (Ready::Workdir(workdir), Some(setup)) => workdir.run(setup),
            (Ready::Database(server), Some(setup)) => pgbench::batch(server, setup.calls, seed),
            _ => self.direct(export, folder, seed),
        }
    }

    /// Returns how the program runs there, for the record.
    fn manner(&self, ready: &Ready<'_>) -> &'static str {
        match (ready, self.client.program) {
            (Ready::Workdir(_) | Ready::Database(_), Some(setup)) => setup.program.manner(),
            _ => "its requests",
        }
    }

    /// Makes the program's requests directly: durable ones one at a time, others by fio.
    fn direct(&self, export: &Export, folder: &Path, seed: u64) -> Result<Score, LabError> {
        let shape = self.client.shape;
        if shape.fua {
            if self.depth != 1 || shape.read_percent != 0 {
                let name = self.name();
                let what = format!("client \"{name}\" does not make one durable write at a time");
                return Err(LabError::Unjudgeable(what));
            }
            let socket = &export.socket;
            let name = &export.name;
            let took_ns = durable::write_batch(socket, name, self.ios, shape.block_bytes)?;
            let command = format!("{} durable writes of {} bytes", self.ios, shape.block_bytes);
            return Ok(Score { took_ns, command });
        }
        let workdir = Workdir { folder, scratch: folder, longest: longest(self.client) };
        desktop::batch(&export.uri().into(), &shape, (self.ios, self.depth), &workdir, seed)
    }
}
