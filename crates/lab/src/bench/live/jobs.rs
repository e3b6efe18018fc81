//! Batches of durable calls, one after the other: in the manner of IOMelt on a mounted file system,
//! or as the device writes that a file system makes of them.
//!
//! On ext4 a durable call of 4 KiB is three device writes: data, journal, commit. A client of a
//! scenario counts device writes, so its `job_ios` are three for each call; the server's own
//! counter says whether it is so.

use std::path::Path;

use super::{Export, Files, Host};
use crate::LabError;
use crate::bench::chain::{Chain, FileSystem, Front};
use crate::bench::durable;
use crate::bench::fio::VolumeProgress;
use crate::bench::iomelt::{Melt, Pass};
use crate::clock;
use crate::sim::client::BatchRecord;
use crate::sim::expect::Counts;
use crate::sim::record::Record;
use crate::sim::run::{Recorded, SubjectResults};
use crate::sim::scenario::Case;
use crate::sim::setup::{ClientSetup, Load, Setup, Target, Think};
use crate::sim::world::ClientOutcome;

/// Device writes of a durable call on ext4.
const WRITES_PER_CALL: u64 = 3;

/// A case whose clients all make batches, run for real.
#[derive(Default)]
pub(super) struct Batches {
    pub recorded: Recorded,
    pub commands: Vec<String>,
    pub storage: Vec<String>,
    /// Programs that came to nothing, and why.
    pub failures: Vec<String>,
    /// Passes that no client stands for: those that read, which the page cache answers.
    pub more: Vec<SubjectResults>,
}

/// Whether a world's clients do nothing but durable batches, each on a volume.
pub(super) fn are_all(setup: &Setup) -> bool {
    let is_job = |client: &ClientSetup| {
        matches!(client.load, Load::Job { .. }) && matches!(client.target, Target::Volume(_))
    };
    setup.clients.iter().all(is_job)
}

/// About how long the batches take, in seconds: what their limits make of them, and half as much
/// again for the passes that are not counted.
pub(super) fn length_s(setup: &Setup) -> u64 {
    let of_client = |client: &ClientSetup| {
        let (Target::Volume(volume), Load::Job { every_ns, ios, .. }) =
            (client.target, &client.load)
        else {
            return 0;
        };
        let limit = setup.volumes[volume as usize].pacing.operations;
        let rate = limit.map_or(u64::MAX, |limit| limit.per_second).max(1);
        ios * (setup.duration_ns / (*every_ns).max(1)) / rate
    };
    setup.clients.iter().map(of_client).sum::<u64>() * 3 / 2 + 1
}

/// What is done on one volume, round after round.
struct Place<'a> {
    volume: usize,
    name: &'a str,
    /// Number, pass, and requests of each of its clients.
    clients: Vec<(usize, Pass, u64)>,
    rounds: u64,
}

/// Runs the batches of every client: rounds of all volumes in turn, so that a machine that drifts
/// does so for all.
pub(super) fn drive(
    case: &Case,
    seed: u64,
    host: &mut dyn Host,
    files: Files,
    folder: &Path,
    progress: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<Batches, LabError> {
    let setup = &case.setup;
    let places = places(setup)?;
    let exports = host.open(setup)?;
    let mut came = Came::new(setup, host.storage());
    let is_used = |volume| places.iter().any(|place| place.volume == volume);
    let mounted = came.mount(setup, &exports, files, folder, is_used)?;
    let rounds = places.iter().map(|place| place.rounds).max().unwrap_or(0);
    for round in 0..rounds {
        for place in &places {
            if round >= place.rounds {
                continue;
            }
            match &mounted[place.volume] {
                Some(chain) => came.melt(place, chain, seed.wrapping_add(round), host)?,
                None => came.direct(place, &exports[place.volume], host)?,
            }
            let runtime_ms = came.now_ns() / 1_000_000;
            let (name, iops) = (place.name.to_owned(), came.last_rate(place));
            let ios_total = round + 1;
            let told = VolumeProgress { name, iops, ios_total, runtime_ms, ..Default::default() };
            progress(&[told]);
        }
    }
    Ok(came.batches)
}

fn places(setup: &Setup) -> Result<Vec<Place<'_>>, LabError> {
    let mut places: Vec<Place<'_>> = Vec::new();
    for (number, client) in setup.clients.iter().enumerate() {
        let (Target::Volume(volume), Load::Job { every_ns, ios, depth: 1, think: Think::No }) =
            (client.target, &client.load)
        else {
            let what = format!("client \"{}\" does not make one call at a time", client.name);
            return Err(LabError::Unjudgeable(what));
        };
        if client.shape.read_percent != 0 || client.shape.block_bytes != 4 << 10 {
            let what = format!("client \"{}\" does not write 4 KiB blocks", client.name);
            return Err(LabError::Unjudgeable(what));
        }
        let pass = if client.shape.sequential { Pass::SerialWrite } else { Pass::RandomRewrite };
        let rounds = setup.duration_ns / (*every_ns).max(1);
        let volume = volume as usize;
        match places.iter_mut().find(|place| place.volume == volume) {
            Some(place) => place.clients.push((number, pass, *ios)),
            None => places.push(Place {
                volume,
                name: &setup.volumes[volume].name,
                clients: vec![(number, pass, *ios)],
                rounds,
            }),
        }
    }
    Ok(places)
}

/// What has come so far.
pub(super) struct Came {
    pub batches: Batches,
    began_ns: u64,
}

impl Came {
    pub fn new(setup: &Setup, storage: String) -> Self {
        // Nothing is recorded of those that only go on beside the batches.
        let outcome = |client: &ClientSetup| ClientOutcome {
            record: matches!(client.load, Load::Job { .. }).then(Record::default),
            batches: Vec::new(),
            dropped: 0,
        };
        let recorded = Recorded {
            volumes: vec![Record::default(); setup.volumes.len()],
            clients: setup.clients.iter().map(outcome).collect(),
            counts: vec![Counts::default(); setup.volumes.len()],
            ..Recorded::default()
        };
        let storage = vec![storage];
        Self {
            batches: Batches { recorded, storage, ..Batches::default() },
            began_ns: clock::monotonic_ns(),
        }
    }

    /// A file system on each volume that is used, if there are to be any; of each volume in order.
    pub fn mount(
        &mut self,
        setup: &Setup,
        exports: &[Export],
        files: Files,
        folder: &Path,
        is_used: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<Chain>>, LabError> {
        let mut mounted = Vec::new();
        for (number, (volume, export)) in setup.volumes.iter().zip(exports).enumerate() {
            if files == Files::None || !is_used(number) {
                mounted.push(None);
                continue;
            }
            let below = folder.join(format!("chain-{number}"));
            std::fs::create_dir_all(&below).map_err(LabError::io("cannot make", &below))?;
            let uri = export.uri();
            let chain = Chain::open(&below, &[Front::Nbdfuse(&uri)], FileSystem::Ext4)?;
            self.batches.storage.push(format!("{}: {}", volume.name, chain.described));
            mounted.push(Some(chain));
        }
        Ok(mounted)
    }

    /// The five passes on a file, each a batch.
    fn melt(
        &mut self,
        place: &Place<'_>,
        chain: &Chain,
        seed: u64,
        host: &mut dyn Host,
    ) -> Result<(), LabError> {
        let ios = place.clients.iter().map(|(.., ios)| *ios).max().unwrap_or(0);
        let calls = ios / WRITES_PER_CALL;
        let mut melt = Melt::new(chain.path(), calls, seed)?;
        for pass in Pass::ALL {
            let before = host.counted()?[place.volume];
            let batch = BatchRecord { started_ns: self.now_ns(), took_ns: melt.run(pass)? };
            let counted = host.counted()?[place.volume] - before;
            if matches!(pass, Pass::SerialWrite | Pass::RandomRewrite) {
                self.count(place.volume, calls * WRITES_PER_CALL, counted);
            }
            match place.clients.iter().find(|(_, of_client, _)| *of_client == pass) {
                Some((client, ..)) => self.batch(*client, batch),
                None => self.more(place, pass, calls, batch),
            }
        }
        Ok(())
    }

    /// The device writes of the passes that write.
    fn direct(
        &mut self,
        place: &Place<'_>,
        export: &Export,
        host: &mut dyn Host,
    ) -> Result<(), LabError> {
        for (client, _, ios) in &place.clients {
            let before = host.counted()?[place.volume];
            let started_ns = self.now_ns();
            let took_ns = durable::write_batch(&export.socket, &export.name, *ios, 4 << 10)?;
            let counted = host.counted()?[place.volume] - before;
            self.count(place.volume, *ios, counted);
            self.batch(*client, BatchRecord { started_ns, took_ns });
        }
        Ok(())
    }

    pub fn now_ns(&self) -> u64 {
        clock::monotonic_ns() - self.began_ns
    }

    /// I/Os per second of the last batch of a place's first client.
    fn last_rate(&self, place: &Place<'_>) -> f64 {
        let last = place.clients.first().and_then(|(client, _, ios)| {
            let batch = self.batches.recorded.clients[*client].batches.last()?;
            Some(*ios as f64 * 1e9 / batch.took_ns.max(1) as f64)
        });
        last.unwrap_or(0.0)
    }

    pub fn count(&mut self, volume: usize, answered: u64, counted: u64) {
        let counts = &mut self.batches.recorded.counts[volume];
        counts.answered += answered;
        counts.counted += counted;
        self.batches.recorded.completed += counted;
    }

    pub fn batch(&mut self, client: usize, batch: BatchRecord) {
        self.batches.recorded.clients[client].batches.push(batch);
    }

    fn more(&mut self, place: &Place<'_>, pass: Pass, calls: u64, batch: BatchRecord) {
        let name = format!("{} · {}", place.name, pass.name());
        let known = self.batches.more.iter_mut().find(|known| known.name == name);
        let job = (batch.started_ns, batch.took_ns);
        match known {
            Some(known) => known.jobs.push(job),
            None => self.batches.more.push(SubjectResults {
                name,
                kind: format!("on {}", place.name),
                jobs: vec![job],
                job_ios: calls,
                ..SubjectResults::default()
            }),
        }
    }
}
