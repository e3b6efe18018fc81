//! `evenkeel bench replay`: a live data plane is driven by fio while it notes what its scheduler is
//! asked and answers; the same in virtual time has to be the same.

use super::{begin, failed, print, seconds};
use crate::cli::BenchReplay;
use crate::cmd::apply;
use crate::message::{Exit, Failure};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{CreditLimit, Limit, Pacing};
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_engine::{Engine, EngineConfig, UnixAccess};
use evenkeel_lab::bench::NbdUri;
use evenkeel_lab::bench::fio::{self, Detail, Job};
use evenkeel_lab::demo;
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;
use evenkeel_sim::world::live::{self, Replay};
use evenkeel_store::memory::MemoryPool;
use std::fmt::Write as _;
use std::sync::Arc;

/// Room for so many entries a second: four for each request, and a poll now and then.
const ENTRIES_PER_SECOND: u64 = 200_000;

/// Longer loads would only fill more memory: about 16 MB for each second.
const SECONDS_MAX: u32 = 60;

/// Live, timers are late and machines pause, but nothing may go before it does in the simulator; a
/// tick of the wheel is allowed, because the two began to count at different times.
const EARLIER_NS_MAX: u64 = 100_000;

/// What is driven: a limit that is steady, a higher one, and one whose credits end.
fn volumes() -> [(&'static str, Pacing, u8); 3] {
    let limit = |per_second, credit| Some(Limit { per_second, credit });
    let credit = CreditLimit { refill_per_second: 300, capacity: 5_400 };
    let paced = |operations| Pacing { operations, ..Pacing::UNLIMITED };
    [
        ("1000-mixed", paced(limit(1_000, None)), 70),
        ("3000-reads", paced(limit(3_000, None)), 100),
        ("burst-writes", paced(limit(3_000, Some(credit))), 0),
    ]
}

pub fn run(arguments: &BenchReplay) -> Result<(), Failure> {
    let seconds = seconds(arguments.time);
    if seconds > SECONDS_MAX {
        let message =
            format!("time: {seconds} s of a trace are too many: use {SECONDS_MAX}s at most");
        return Err(Failure::new(message).exit(Exit::Usage));
    }
    let folder = begin(&std::env::temp_dir(), "evenkeel-replay-")?;
    let socket = folder.path().join("nbd.sock");
    let engine = Engine::start(EngineConfig {
        // One scheduler: the order between volumes is compared, too.
        cores: 1,
        io: arguments.io.into(),
        tcp: Vec::new(),
        unix: Some(socket.clone()),
        unix_access: UnixAccess::default(),
        pool: Arc::new(MemoryPool::new()),
    })
    .map_err(failed)?;
    // Two more than it lasts: fio sets up before it begins, and ends in its own time.
    let entries = ENTRIES_PER_SECOND.saturating_mul(u64::from(seconds) + 2);
    engine.record(usize::try_from(entries).unwrap_or(usize::MAX));
    let mut jobs = Vec::new();
    for (number, (name, pacing, read_percent)) in (1..).zip(volumes()) {
        let id = VolumeId::from_bits(number);
        apply(&engine, id, ByteCount(GIB), pacing)?;
        let workload = Workload {
            read_percent,
            seed: u64::try_from(number).unwrap_or(1),
            ..Workload::random_read(16 << 10, 32, seconds)
        };
        let uri = NbdUri::unix(&socket, &id.to_string());
        jobs.push(Job { name: name.to_owned(), target: uri.into(), workload });
    }
    fio::run(&jobs, Detail::Totals, folder.path(), &mut |volumes| {
        eprintln!("{}", demo::progress_line(volumes));
    })
    .map_err(failed)?;
    let trace = engine.recorded().pop().ok_or_else(|| Failure::new("the core recorded nothing"))?;
    engine.shutdown();
    eprintln!("playing back {} entries", trace.entries().len());
    let replay = live::replay(&trace).map_err(failed)?;
    print(&arguments.output, &replay, shown)?;
    let is_same = |volume: &live::VolumeReplay| {
        volume.same_order && volume.live_earlier_max_ns <= EARLIER_NS_MAX
    };
    if replay.volumes.iter().all(is_same) {
        return Ok(());
    }
    Err(Failure::new("the simulator did something else than the live data plane"))
}

fn shown(replay: &Replay) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "the same calls again: {} dispatches, each at the same nanosecond in the same order\n\
         the requests alone, in the simulator:",
        text::thousands(replay.same)
    );
    let _ = writeln!(
        out,
        "  {:<13} {:>10} {:>10} {:>19} {:>16} {:>18}",
        "volume",
        "dispatches",
        "same order",
        "seconds off by I/Os",
        "live later, max",
        "live earlier, max"
    );
    for ((name, ..), volume) in volumes().iter().zip(&replay.volumes) {
        let _ = writeln!(
            out,
            "  {name:<13} {:>10} {:>10} {:>19} {:>16} {:>18}",
            text::thousands(volume.dispatches),
            if volume.same_order { "yes" } else { "NO" },
            volume.off_max(),
            text::latency(volume.live_later_max_ns),
            text::latency(volume.live_earlier_max_ns)
        );
    }
    out
}
