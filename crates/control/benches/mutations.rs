//! Mutations per second of a control plane with many volumes: model, journal and the sequence of a
//! change, without the HTTP API, on a data plane that answers at once.
//!
//! `cargo bench -p evenkeel-control --bench mutations [-- VOLUMES...]`
//!
//! Each row is measured on a database on the disk of the temporary folder, where every commit is
//! synced, and on one in memory (`/dev/shm`), which shows our own work alone. The last row measures
//! mutations of other volumes while the data plane takes five seconds to create one.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a measurement may panic, and measures

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_control::journal::Journal;
use evenkeel_control::journal::sqlite::SqliteJournal;
use evenkeel_control::model::{
    Begins, Command, Event, Host, HostState, Phase, Settings, Tags, Token, Volume,
};
use evenkeel_control::plane::Plane;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::volume::{Rules, VolumeChange};
use evenkeel_wire::agent::HostAddress;
use support::{HOSTS, Obedient, ZONE, host_id, now, request, volume_id};

/// The default model sizes.
const SIZES: [u64; 3] = [1_000, 10_000, 100_000];
/// Maximum number of mutations of each kind; fewer if they take longer than [`PHASE`].
const MUTATIONS: u64 = 500;
/// Maximum time for one kind.
const PHASE: Duration = Duration::from_secs(5);
/// Maximum number of client tokens that are stored beside the volumes.
const TOKENS_MAX: u64 = 50_000;
/// The volume that is created slowly, and the time that takes.
const SLOW: VolumeId = VolumeId::from_bits(u128::MAX >> 64);
const SLOW_CREATE: Duration = Duration::from_secs(5);

/// Stores this many volumes, as an earlier run of the server would have.
fn fill(path: &Path, volumes: u64) {
    let mut journal = SqliteJournal::open(path).unwrap();
    let mut revision = journal.load().unwrap().revision;
    let hosts = (0..HOSTS).map(|number| {
        Event::Host(Host {
            id: host_id(number),
            instance_type: "m5.large".into(),
            address: HostAddress::Remote(
                [10, 0, 0, u8::try_from(number).unwrap().wrapping_add(1)].into(),
            ),
            registered: now(),
            state: HostState::Running,
            tags: Tags::new(),
            zone: None,
        })
    });
    revision = journal.commit(&hosts.collect::<Vec<_>>().into(), revision).unwrap();
    let numbers: Vec<u64> = (0..volumes).collect();
    for batch in numbers.chunks(10_000) {
        let mut events = vec![];
        for &number in batch {
            let id = volume_id(number);
            let used = now();
            let spec = Rules::newest().resolve(&request(number)).unwrap();
            events.push(Event::Volume(Volume {
                phase: Phase::Ready,
                ..Volume::new(id, ZONE, spec, used)
            }));
            if number < TOKENS_MAX {
                let fingerprint = format!("fingerprint-{number}");
                let token = Token { fingerprint, volume: id, used };
                events.push(Event::Token(format!("token-{number}"), token));
            }
        }
        revision = journal.commit(&events.into(), revision).unwrap();
    }
}

/// The number of mutations of a kind, and their total time.
struct Rate {
    mutations: u64,
    taken: Duration,
    slowest: Duration,
}

impl Rate {
    fn per_second(&self) -> f64 {
        f64::from(u32::try_from(self.mutations).unwrap()) / self.taken.as_secs_f64()
    }
}

fn measured(count: u64, plane: &Plane, command: impl Fn(u64) -> Command) -> Rate {
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    let mut mutations = 0;
    while mutations < count && started.elapsed() < PHASE {
        let command = command(mutations);
        let began = Instant::now();
        plane.execute(&command, false).unwrap();
        slowest = slowest.max(began.elapsed());
        mutations += 1;
    }
    Rate { mutations, taken: started.elapsed(), slowest }
}

/// Runs mutations of other volumes while one is being created slowly; returns their durations,
/// sorted.
fn beside_a_slow_create(plane: &Plane, volumes: u64) -> Vec<Duration> {
    std::thread::scope(|scope| {
        let create = |id, number| Command::CreateVolume {
            id,
            request: request(number),
            begins: Begins::default(),
            zone: ZONE.into(),
            tags: Tags::new(),
            token: None,
        };
        let slow = scope.spawn(move || plane.execute(&create(SLOW, 0), false).unwrap());
        // It has begun once the model has the volume.
        while !plane.model().volumes.contains_key(&SLOW) {
            std::thread::yield_now();
        }
        let mut taken = vec![];
        for number in 0.. {
            let id = volume_id(volumes + MUTATIONS + number);
            let change = VolumeChange { size_gib: Some(1_000), ..VolumeChange::default() };
            for command in [
                create(id, number),
                Command::ModifyVolume { id, change },
                Command::DeleteVolume { id },
            ] {
                let began = Instant::now();
                plane.execute(&command, false).unwrap();
                if slow.is_finished() {
                    taken.sort_unstable();
                    return taken;
                }
                taken.push(began.elapsed());
            }
            plane.renew_leases();
        }
        taken
    })
}

/// Measures one model in a folder: creates volumes, then changes them.
fn run(folder: &Path, volumes: u64) -> Vec<(&'static str, Rate)> {
    let path = folder.join("control.db");
    fill(&path, volumes);
    let journal = Box::new(SqliteJournal::open(&path).unwrap());
    let agent = Obedient::slow(SLOW, SLOW_CREATE);
    let plane = Plane::start(journal, Settings::default(), Arc::new(agent), || {}).unwrap();
    let created = measured(MUTATIONS, &plane, |number| Command::CreateVolume {
        id: volume_id(volumes + number),
        request: request(number),
        begins: Begins::default(),
        zone: ZONE.into(),
        tags: Tags::new(),
        token: Some((format!("new-token-{number}"), format!("new-fingerprint-{number}"))),
    });
    let count = created.mutations;
    let modified = measured(count, &plane, |number| Command::ModifyVolume {
        id: volume_id(volumes + number),
        change: VolumeChange { size_gib: Some(1_000), ..VolumeChange::default() },
    });
    let count = modified.mutations;
    let attached = measured(count, &plane, |number| Command::AttachVolume {
        id: volume_id(volumes + number),
        instance: host_id(number),
        device: format!("/dev/sd{}", char::from(b'a' + u8::try_from(number / HOSTS).unwrap())),
    });
    let count = attached.mutations;
    let detached = measured(count, &plane, |number| Command::DetachVolume {
        id: volume_id(volumes + number),
        instance: None,
        device: None,
    });
    let count = detached.mutations;
    let deleted =
        measured(count, &plane, |number| Command::DeleteVolume { id: volume_id(volumes + number) });
    let ticked = {
        let started = Instant::now();
        plane.tick();
        started.elapsed()
    };
    let tick = Rate { mutations: 1, taken: ticked, slowest: ticked };
    let beside = beside_a_slow_create(&plane, volumes);
    let percentile = |part: usize| beside[(beside.len() * part / 1_000).min(beside.len() - 1)];
    println!(
        "{:<8} {volumes:>8} beside a create of {} s: {} mutations, p50 {:.2} ms, p99 {:.2} ms, \
         slowest {:.2} ms",
        "",
        SLOW_CREATE.as_secs(),
        beside.len(),
        percentile(500).as_secs_f64() * 1e3,
        percentile(990).as_secs_f64() * 1e3,
        percentile(1_000).as_secs_f64() * 1e3,
    );
    vec![
        ("create", created),
        ("modify", modified),
        ("attach", attached),
        ("detach", detached),
        ("delete", deleted),
        ("tick", tick),
    ]
}

fn main() {
    let named: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let sizes = if named.is_empty() { SIZES.to_vec() } else { named };
    println!(
        "{:<8} {:>8} {:<7} {:>10} {:>12}",
        "journal", "volumes", "what", "a second", "slowest"
    );
    for (journal, parent) in [("disk", std::env::temp_dir()), ("memory", "/dev/shm".into())] {
        if !parent.is_dir() {
            println!("{journal}: there is no {}", parent.display());
            continue;
        }
        for &volumes in &sizes {
            let folder = tempfile::tempdir_in(&parent).unwrap();
            for (what, rate) in run(folder.path(), volumes) {
                let per_second = rate.per_second();
                let slowest = rate.slowest.as_secs_f64() * 1e3;
                println!(
                    "{journal:<8} {volumes:>8} {what:<7} {per_second:>10.0} {slowest:>9.2} ms"
                );
            }
        }
    }
}
