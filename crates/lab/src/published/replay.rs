//! `evenkeel bench replay`: a live data plane is driven by fio while it notes what its scheduler is
//! asked and answers; the same in virtual time has to be the same.

use std::fmt::Write as _;

use super::{Bench, Outcome};
use crate::LabError;
use crate::bench::fio::Job;
use crate::bench::{NbdUri, data_plane};
use crate::stalls::Server;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{CreditLimit, Limit, Pacing};
use evenkeel_core::qos::trace::Detail;
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_engine::{EngineConfig, IoMode};
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;
use evenkeel_sim::world::live::{self, Replay};

/// Room for so many entries a second: four for each request, and a poll now and then.
const ENTRIES_PER_SECOND: u64 = 200_000;

/// Longer loads would only fill more memory: about 16 MB for each second.
pub const SECONDS_MAX: u32 = 60;

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

/// Drives a data plane that talks to the kernel in this way, and plays back what it has noted. A
/// load longer than [`SECONDS_MAX`] is for the caller to refuse.
///
/// # Errors
/// If the data plane does not start, fio cannot be run, or the trace makes no sense.
pub fn measure(mut bench: Bench<'_>, io: IoMode) -> Result<Outcome, LabError> {
    let socket = bench.folder.join("nbd.sock");
    let engine = data_plane::start(EngineConfig {
        // One scheduler: the order between volumes is compared, too.
        cores: 1,
        unix: Some(socket.clone()),
        ..data_plane::in_memory(io)
    })?;
    // Two more than it lasts: fio sets up before it begins, and ends in its own time.
    let entries = ENTRIES_PER_SECOND.saturating_mul(u64::from(bench.seconds) + 2);
    let recorder = engine.recorder();
    recorder.begin(usize::try_from(entries).unwrap_or(usize::MAX), Detail::Calls);
    let mut jobs = Vec::new();
    for (number, (name, pacing, read_percent)) in (1_u32..).zip(volumes()) {
        let id = VolumeId::from_bits(number.into());
        data_plane::apply(&engine, id, ByteCount(GIB), pacing)?;
        let workload = Workload {
            read_percent,
            seed: number.into(),
            ..Workload::random_read(16 << 10, 32, bench.seconds)
        };
        let target = NbdUri::unix(&socket, &id.to_string()).into();
        jobs.push(Job { name: name.to_owned(), target, workload });
    }
    bench.totals(&jobs, Server::Here)?;
    let noted = recorder.end().pop();
    let trace = noted.ok_or_else(|| LabError::failed("the core recorded nothing"))?;
    engine.shutdown();
    bench.report(&format!("playing back {} entries", trace.entries().len()));
    let replay = live::replay(&trace).map_err(LabError::failed)?;
    let is_same = |volume: &live::VolumeReplay| {
        volume.same_order && volume.live_earlier_max_ns <= EARLIER_NS_MAX
    };
    let pass = replay.volumes.iter().all(is_same);
    let why = "the simulator did something else than the live data plane";
    Outcome::new(&replay, shown(&replay), pass, why)
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
