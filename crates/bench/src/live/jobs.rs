//! Batches of durable calls, one after the other: in the manner of IOMelt on a mounted file system,
//! or as the device writes that a file system makes of them.
//!
//! On ext4 a durable call of 4 KiB is three device writes: data, journal, commit. A client of a
//! scenario counts device writes, so its `job_ios` are three for each call. The server's counter
//! verifies this.

use super::method::{Context, Driven};
use super::{Export, Files, Host, programs};
use crate::durable;
use crate::iomelt::{Melt, Pass};
use crate::mounts::{FileSystem, Frontend, MountStack};
use evenkeel_lab::LabError;
use evenkeel_lab::fio::VolumeProgress;
use evenkeel_os::clock;
use evenkeel_sim::scenario::Case;
use evenkeel_sim::scenario::expect::Counts;
use evenkeel_sim::scenario::program::Program;
use evenkeel_sim::scenario::setup::{ClientSetup, Load, Setup, Target, Think};
use evenkeel_sim::world::ClientOutcome;
use evenkeel_sim::world::client::BatchRecord;
use evenkeel_sim::world::record::Record;
use evenkeel_sim::world::run::{Recorded, SubjectResults};

/// Device writes of a durable call on ext4.
const WRITES_PER_CALL: u64 = 3;

/// Calls on a file system that was just made, before anything is measured.
const WARM_UP_CALLS: u64 = 8;

/// Returns whether all clients are batches of durable calls on volumes, apart from the load beside
/// them.
pub(super) fn are_all(setup: &Setup) -> bool {
    let is_job = |client: &&ClientSetup| {
        matches!(client.load, Load::Job { .. }) && matches!(client.target, Target::Volume(_))
    };
    let batches = || setup.clients.iter().filter(|client| !client.is_beside());
    batches().next().is_some() && batches().all(|client| is_job(&client))
}

/// The batches on one volume, round after round.
struct Place<'a> {
    volume: usize,
    name: &'a str,
    roles: Vec<Role>,
    rounds: u64,
}

/// The pass that a client of a scenario stands for.
#[derive(Clone, Copy)]
struct Role {
    client: usize,
    pass: Pass,
    /// Requests of each batch.
    ios: u64,
    /// Batches in a round.
    times: u64,
}

/// Runs the batches of every client: rounds of all volumes in turn, so that a machine that drifts
/// does so for all.
pub(super) fn drive(context: &mut Context<'_>) -> Result<Driven, LabError> {
    let Context { case: Case { setup, .. }, seed, .. } = *context;
    let places = places(setup)?;
    let exports = context.host.open(setup)?;
    let mut outcome = Outcome::new(context);
    let is_used = |volume| places.iter().any(|place| place.volume == volume);
    let mounted = outcome.mount(context, &exports, is_used)?;
    for place in &places {
        if let Some(stack) = &mounted[place.volume] {
            warm_up(stack, seed)?;
        }
    }
    let _neighbours = programs::neighbours(setup, &exports, seed)?;
    let rounds = places.iter().map(|place| place.rounds).max().unwrap_or(0);
    for round in 0..rounds {
        for place in &places {
            if round >= place.rounds {
                continue;
            }
            match &mounted[place.volume] {
                Some(stack) => {
                    let bound_here = place.bound_here(setup);
                    outcome.driven.speeds.look(&bound_here);
                    outcome.melt(place, stack, seed.wrapping_add(round), context.host)?;
                    outcome.driven.speeds.look(&bound_here);
                }
                None => outcome.direct(place, &exports[place.volume], context.host)?,
            }
            if round == 0 {
                outcome.driven.commands.push(place.command(mounted[place.volume].as_ref()));
            }
            let runtime_ms = outcome.now_ns() / 1_000_000;
            let name = place.name.to_owned();
            let iops = outcome.last_rate(place);
            let ios_total = round + 1;
            let volume_progress =
                VolumeProgress { name, iops, ios_total, runtime_ms, ..Default::default() };
            (context.progress)(&[volume_progress]);
        }
    }
    Ok(outcome.driven)
}

/// Writes the first file of a new file system. It costs more writes than those that follow: the
/// bitmaps and tables are still untouched.
fn warm_up(stack: &MountStack, seed: u64) -> Result<(), LabError> {
    Melt::new(stack.path(), WARM_UP_CALLS, seed)?.run(Pass::SerialWrite).map(|_| ())
}

fn places(setup: &Setup) -> Result<Vec<Place<'_>>, LabError> {
    let mut places: Vec<Place<'_>> = Vec::new();
    for (number, client) in setup.clients.iter().enumerate() {
        if client.is_beside() {
            continue;
        }
        let (
            Target::Volume(volume),
            Load::Job { every_ns, ios, depth: 1, think: Think::No, poisson: false },
        ) = (client.target, &client.load)
        else {
            let what = format!("client \"{}\" does not make one call at a time", client.name);
            return Err(LabError::Unjudgeable(what));
        };
        let pass = pass_of(client)?;
        let batches = setup.duration_ns / (*every_ns).max(1);
        let role = |times| Role { client: number, pass, ios: *ios, times };
        let volume = volume as usize;
        match places.iter_mut().find(|place| place.volume == volume) {
            Some(place)
                if batches > 0
                    && batches.is_multiple_of(place.rounds.max(1))
                    && !writes_only(pass) =>
            {
                place.roles.push(role(batches / place.rounds.max(1)));
            }
            Some(place) if batches == place.rounds => place.roles.push(role(1)),
            Some(place) => {
                return Err(LabError::Unjudgeable(format!(
                    "client \"{}\" makes {batches} batches, where \"{}\" has {} rounds: passes \
                     that write need one in each, the others one or more",
                    client.name, place.name, place.rounds
                )));
            }
            None => places.push(Place {
                volume,
                name: &setup.volumes[volume].name,
                roles: vec![role(1)],
                rounds: batches,
            }),
        }
    }
    places.iter().try_for_each(Place::check)?;
    Ok(places)
}

/// Returns the passes that clients stand for, of each volume.
#[cfg(test)]
pub(super) fn passes(setup: &Setup) -> Result<Vec<(String, Vec<&'static str>)>, LabError> {
    let names = |place: &Place<'_>| place.roles.iter().map(|role| role.pass.name()).collect();
    Ok(places(setup)?.iter().map(|place| (place.name.to_owned(), names(place))).collect())
}

/// Returns the pass that a client stands for: one that writes is known by its shape, others by
/// name.
fn pass_of(client: &ClientSetup) -> Result<Pass, LabError> {
    let shape = &client.shape;
    match client.program.map(|setup| setup.program) {
        Some(Program::MeltRead) => Ok(Pass::SerialRead),
        Some(Program::MeltReread) => Ok(Pass::RandomReread),
        Some(Program::MeltRereadAlone) => Ok(Pass::RandomRereadAlone),
        Some(Program::MeltMixed) => Ok(Pass::Mixed),
        _ if shape.read_percent != 0 || shape.block_bytes != 4 << 10 => {
            let what = format!("client \"{}\" does not write 4 KiB blocks", client.name);
            Err(LabError::Unjudgeable(what))
        }
        _ if shape.sequential => Ok(Pass::SerialWrite),
        _ => Ok(Pass::RandomRewrite),
    }
}

impl Place<'_> {
    /// Returns the calls of each pass, as its device writes imply.
    fn calls(&self) -> u64 {
        let writes = self.roles.iter().filter(|role| writes_only(role.pass));
        writes.map(|role| role.ios / WRITES_PER_CALL).max().unwrap_or(0)
    }

    /// Returns the clients whose passes are limited by their machine as much as by the volume.
    fn bound_here<'b>(&self, setup: &'b Setup) -> Vec<&'b str> {
        let clients = self.roles.iter().map(|role| &setup.clients[role.client]);
        clients.filter_map(programs::bound_here).collect()
    }

    /// Returns the role of the client that a pass stands for.
    fn role(&self, pass: Pass) -> Option<&Role> {
        self.roles.iter().find(|role| role.pass == pass)
    }

    /// Returns how often a pass is made in a round; at least once if its figure is published.
    fn times(&self, pass: Pass) -> u64 {
        self.role(pass).map_or(u64::from(pass.is_published()), |role| role.times)
    }

    /// Returns a comment that describes each round; there is no command line, as no program is
    /// started.
    fn command(&self, stack: Option<&MountStack>) -> String {
        let rounds = self.rounds;
        let Some(stack) = stack else {
            let writes = self.roles.iter().filter(|role| writes_only(role.pass));
            let writes: Vec<String> =
                writes.map(|role| format!("{}: {} writes", role.pass.name(), role.ios)).collect();
            return format!(
                "# \"{}\", {rounds} rounds, over NBD, durable, of 4 KiB: {}",
                self.name,
                writes.join(", ")
            );
        };
        let often = |pass: Pass| match self.times(pass) {
            0 => None,
            1 => Some(pass.name().to_owned()),
            times => Some(format!("{} ({times} times)", pass.name())),
        };
        let passes: Vec<String> = Pass::ALL.into_iter().filter_map(often).collect();
        format!(
            "# \"{}\", {rounds} rounds, a file of {} blocks of 4 KiB with O_SYNC in {}: {}",
            self.name,
            self.calls(),
            stack.path().display(),
            passes.join(", ")
        )
    }

    /// Refuses passes over more or less than the file that the first one leaves.
    fn check(&self) -> Result<(), LabError> {
        let calls = self.calls();
        let is_other = |role: &&Role| {
            role.ios != if writes_only(role.pass) { calls * WRITES_PER_CALL } else { calls }
        };
        let Some(Role { pass, ios, .. }) = self.roles.iter().find(is_other) else { return Ok(()) };
        let name = self.name;
        let pass = pass.name();
        Err(LabError::Unjudgeable(format!(
            "the {pass} on \"{name}\" has job_ios = {ios}, where the file has {calls} blocks: \
             passes that write need {WRITES_PER_CALL} for each, the others one"
        )))
    }
}

/// Returns whether a pass only makes durable writes.
const fn writes_only(pass: Pass) -> bool {
    matches!(pass, Pass::SerialWrite | Pass::RandomRewrite)
}

/// The outcome so far of batches, one after the other.
pub(super) struct Outcome {
    pub driven: Driven,
    began_ns: u64,
}

impl Outcome {
    /// Creates an empty outcome of a case whose volumes are open.
    pub fn new(context: &Context<'_>) -> Self {
        let setup = &context.case.setup;
        // The load beside the batches is not recorded.
        let outcome = |client: &ClientSetup| ClientOutcome {
            record: (!client.is_beside()).then(Record::default),
            batches: Vec::new(),
            dropped: 0,
        };
        let recorded = Recorded {
            volumes: vec![Record::default(); setup.volumes.len()],
            clients: setup.clients.iter().map(outcome).collect(),
            counts: vec![Counts::default(); setup.volumes.len()],
            ..Recorded::default()
        };
        let storage = vec![context.host.storage()];
        Self {
            driven: Driven { recorded, storage, ..Driven::default() },
            began_ns: clock::monotonic().ns,
        }
    }

    /// Mounts a file system on each volume that is used, if the case uses files. Returns the stack
    /// of each volume, in order.
    pub fn mount(
        &mut self,
        context: &Context<'_>,
        exports: &[Export],
        is_used: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<MountStack>>, LabError> {
        let mut mounted = Vec::new();
        let volumes = context.case.setup.volumes.iter();
        for (number, (volume, export)) in volumes.zip(exports).enumerate() {
            if context.files == Files::None || !is_used(number) {
                mounted.push(None);
                continue;
            }
            let below = context.folder.join(format!("chain-{number}"));
            let uri = export.uri();
            let stack = MountStack::open(&below, &[Frontend::Nbdfuse(&uri)], FileSystem::Ext4)?;
            self.driven.storage.push(format!("{}: {}", volume.name, stack.described));
            self.driven.programs.extend(&stack.programs);
            mounted.push(Some(stack));
        }
        Ok(mounted)
    }

    /// Makes the passes on a file, each a batch.
    fn melt(
        &mut self,
        place: &Place<'_>,
        stack: &MountStack,
        seed: u64,
        host: &mut dyn Host,
    ) -> Result<(), LabError> {
        let calls = place.calls();
        let mut melt = Melt::new(stack.path(), calls, seed)?;
        let often = |pass| std::iter::repeat_n(pass, place.times(pass) as usize);
        for pass in Pass::ALL.into_iter().flat_map(often) {
            let before = host.counters()?[place.volume];
            let batch = BatchRecord { started_ns: self.now_ns(), took_ns: melt.run(pass)? };
            let after = host.counters()?[place.volume];
            if writes_only(pass) {
                self.count(place.volume, calls * WRITES_PER_CALL, after.ios - before.ios);
                let counts = &mut self.driven.recorded.counts[place.volume];
                counts.calls += calls;
                counts.flushes += after.flushes - before.flushes;
            }
            match place.role(pass) {
                Some(role) => self.batch(role.client, batch),
                None => self.more(place, pass, calls, batch),
            }
        }
        Ok(())
    }

    /// Makes the device writes of the passes that write.
    fn direct(
        &mut self,
        place: &Place<'_>,
        export: &Export,
        host: &mut dyn Host,
    ) -> Result<(), LabError> {
        for Role { client, pass, ios, .. } in place.roles.iter().copied() {
            // Without a file there is no page cache that would answer the others.
            if !writes_only(pass) {
                continue;
            }
            let before = host.counted()?[place.volume];
            let started_ns = self.now_ns();
            let took_ns = durable::write_batch(&export.socket, &export.name, ios, 4 << 10)?;
            let counted = host.counted()?[place.volume] - before;
            self.count(place.volume, ios, counted);
            self.batch(client, BatchRecord { started_ns, took_ns });
        }
        Ok(())
    }

    pub fn now_ns(&self) -> u64 {
        clock::monotonic().ns - self.began_ns
    }

    /// Returns the I/Os per second of the last batch of a place's first client.
    fn last_rate(&self, place: &Place<'_>) -> f64 {
        let last = place.roles.first().and_then(|role| {
            let batch = self.driven.recorded.clients[role.client].batches.last()?;
            Some(role.ios as f64 * 1e9 / batch.took_ns.max(1) as f64)
        });
        last.unwrap_or(0.0)
    }

    pub fn count(&mut self, volume: usize, answered: u64, counted: u64) {
        let counts = &mut self.driven.recorded.counts[volume];
        counts.answered += answered;
        counts.counted += counted;
        self.driven.recorded.completed += counted;
    }

    pub fn batch(&mut self, client: usize, batch: BatchRecord) {
        self.driven.recorded.clients[client].batches.push(batch);
    }

    fn more(&mut self, place: &Place<'_>, pass: Pass, calls: u64, batch: BatchRecord) {
        let name = format!("{} · {}", place.name, pass.name());
        let known = self.driven.more.iter_mut().find(|known| known.name == name);
        let job = (batch.started_ns, batch.took_ns);
        match known {
            Some(known) => known.jobs.push(job),
            None => self.driven.more.push(SubjectResults {
                name,
                kind: format!("on {}", place.name),
                jobs: vec![job],
                job_ios: calls,
                block_bytes: 4 << 10,
                unit: "calls",
                ..SubjectResults::default()
            }),
        }
    }
}
